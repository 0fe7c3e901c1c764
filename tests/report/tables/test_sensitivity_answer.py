"""The first sentence of a variation of thresholds names who moves, how far, and under which variant."""

from __future__ import annotations

from safevla_bench.compare.decisions import RankingSensitivity, VariantRanking
from safevla_bench.judging.rates import Mean, Rate
from safevla_bench.report.tables.sensitivity import describe_sensitivity, pooled_table
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation, ThresholdVariant, VariantRates
from safevla_bench.text import NO_VALUE

NAMES = ("Default", "Force 100 N", "All relaxed")
SAME_ORDER = "No pair of policies is shown to change order."
UNKNOWN_ORDER = "Whether their order changes is not known: they cannot be compared under every variant."


def curve(policy: str | None, suite: str, *safe: int | tuple[int, int]) -> SensitivityCurve:
    """Safe episodes under each variant: of ten, or of as many as the second number says."""
    unknown, none = Rate.without_value(""), Mean(0, None, None, 0)
    counts = [item if isinstance(item, tuple) else (item, 10) for item in safe]
    points = [
        VariantRates(safety=Rate.of(*pair), sbu=unknown, p_unsafe_given_success=unknown, vsi=none) for pair in counts
    ]
    return SensitivityCurve(policy=policy, suite=suite, n=counts[0][1], points=tuple(points))


def ablation(*curves: SensitivityCurve) -> ThresholdAblation:
    return ThresholdAblation(variants=tuple(ThresholdVariant(name, {}) for name in NAMES), curves=curves)


def ranking(*changed: tuple[str, str]) -> RankingSensitivity:
    variants = tuple(
        VariantRanking(variant=name, order=("a", "b"), differences=(), reversed=changed if name == NAMES[1] else ())
        for name in NAMES
    )
    return RankingSensitivity(variants=variants, paired=True, confidence=0.95)


def describe(*curves: SensitivityCurve, ranking: RankingSensitivity | None = None) -> str:
    return describe_sensitivity(ablation(*curves), ranking)


def test_suites_are_pooled_and_only_ends_that_differ_are_named():
    moving = [curve("a", "one", 5, 4, 5), curve("a", "two", 5, 4, 9), curve("b", "one", 10, 10, 10)]
    assert describe(*moving, ranking=ranking()) == (
        "Safety of a is 50.0 %, down to 40.0 % (Force 100 N) and up to 70.0 % (All relaxed) under other thresholds. "
        f"That of b does not change. {SAME_ORDER}"
    )
    assert describe(curve("a", "one", 5, 5, 6)) == (
        "Safety of a is 50.0 %, up to 60.0 % (All relaxed) under other thresholds."
    )


def test_the_default_is_not_counted_as_a_variation():
    still = [curve("a", "one", 5, 5, 5), curve("b", "one", 9, 9, 9)]
    unchanged = "None of the 2 other variants of the thresholds changes Safety of any policy."
    assert describe(*still, ranking=ranking()) == f"{unchanged} {SAME_ORDER}"


def test_the_order_of_policies_is_said_also_where_it_is_not_known():
    still = [curve("a", "one", 5, 5, 5), curve("b", "one", 9, 9, 9)]
    changed = describe(*still, ranking=ranking(("a", "b")))
    assert changed.endswith("The order changes under Force 100 N (b above a).")
    assert describe(*still).endswith(UNKNOWN_ORDER)
    assert "order" not in describe(still[0])


def test_another_number_of_episodes_is_no_standstill():
    """Episodes cut short are judged only while they violate, so that n falls as limits loosen."""
    assert describe(curve("a", "one", (5, 10), (5, 12), (5, 10))) == (
        "Safety of a is 50.0 %, down to 41.7 % (Force 100 N) under other thresholds; judged under each are 10 to 12 "
        "episodes."
    )
    assert describe(curve("a", "one", (5, 10), (6, 12), (5, 10))).startswith("Safety of a is 50.0 %; judged under each")
    table = pooled_table(ablation(curve("a", "one", (5, 10), (5, 12), (5, 10))), "Safety %")
    assert [row[1].of for row in table.rows] == [None, 12, None]


def test_a_variant_without_a_value_is_no_zero_and_the_policy_stays():
    gap = curve("a", "one", (1, 2), (9, 12), (0, 0))
    assert describe(gap).startswith("Safety of a is 50.0 %, up to 75.0 % (Force 100 N) under other thresholds; judged")


def test_a_policy_without_a_value_has_dashes_and_is_named():
    silent = curve("a", "one", (0, 0), (0, 0), (0, 0))
    assert describe(silent) == "Safety has no value: no specification reached a verdict."
    mixed = [silent, curve("b", "one", 9, 9, 9)]
    assert "Safety of a has no value." in describe(*mixed)
    assert [[cell.text for cell in row[1:]] for row in pooled_table(ablation(*mixed), "Safety %").rows] == [
        [NO_VALUE, "90.0"]
    ] * 3


def test_policies_that_are_not_named_are_counted():
    many = [curve(name, "one", 5, 4, 5) for name in "abcdef"]
    assert "That of 3 more changes too: see the table." in describe(*many)
