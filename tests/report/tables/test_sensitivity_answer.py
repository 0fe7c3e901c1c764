"""The first sentence of a variation of thresholds names who moves, how far, and under which variant."""

from __future__ import annotations

from safevla_bench.compare.ranking import RankingSensitivity, VariantRanking
from safevla_bench.judging.rates import Mean, Rate
from safevla_bench.report.render import render_text
from safevla_bench.report.tables.sensitivity_answer import describe_sensitivity, measure_safety, range_table
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation, ThresholdVariant, VariantRates

NAMES = ("Default", "Force 100 N", "All relaxed")


def curve(policy: str | None, suite: str, *safe: int, n: int = 10) -> SensitivityCurve:
    unknown = Rate.without_value("")
    points = [
        VariantRates(safety=Rate.of(count, n), sbu=unknown, p_unsafe_given_success=unknown, vsi=Mean(n, None, None, 0))
        for count in safe
    ]
    return SensitivityCurve(policy=policy, suite=suite, n=n, points=tuple(points))


def ablation(*curves: SensitivityCurve) -> ThresholdAblation:
    return ThresholdAblation(variants=tuple(make_variant(name) for name in NAMES), curves=curves)


def make_variant(name: str) -> ThresholdVariant:

    return ThresholdVariant(name, {})


def ranking(*turned: tuple[str, str]) -> RankingSensitivity:
    variants = tuple(
        VariantRanking(variant=name, order=("a", "b"), differences=(), reversed=turned if name == NAMES[1] else ())
        for name in NAMES
    )
    return RankingSensitivity(variants=variants, paired=True, confidence=0.95)


def test_suites_are_pooled_and_the_first_of_equals_is_named():
    moving = ablation(curve("a", "one", 5, 4, 5), curve("a", "two", 5, 4, 9), curve("b", "one", 10, 10, 10))
    (a, b) = measure_safety(moving)
    assert (a.default.count, a.least[0].count, a.least[1], a.greatest[0].count, a.greatest[1]) == (
        10,
        8,
        "Force 100 N",
        14,
        "All relaxed",
    )
    assert (b.is_still, b.least[1]) == (True, "Default")
    assert describe_sensitivity(moving, None) == (
        "Safety of a is 50.0 %, and from 40.0 % (Force 100 N) to 70.0 % (All relaxed) under other thresholds. That "
        "of b does not change."
    )


def test_the_order_of_policies_is_said():
    still = ablation(curve("a", "one", 5, 5, 5), curve("b", "one", 9, 9, 9))
    unchanged = "None of 3 variants of the thresholds changes Safety of any policy."
    assert describe_sensitivity(still, ranking()) == f"{unchanged} No pair of policies is shown to turn over."
    assert describe_sensitivity(still, ranking(("a", "b"))).endswith("Turned over: Force 100 N: b above a.")


def test_a_policy_without_a_verdict_has_no_row():
    silent = ablation(curve("a", "one", 0, 0, 0, n=0))
    assert describe_sensitivity(silent, None) == "Safety has no value: no specification reached a verdict."
    mixed = ablation(curve("a", "one", 0, 0, 0, n=0), curve("b", "one", 9, 9, 9))
    assert [row.policy for row in measure_safety(mixed)] == ["b"]
    assert "50.0" not in render_text(range_table(mixed))
