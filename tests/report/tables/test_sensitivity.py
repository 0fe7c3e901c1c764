"""The tables of sensitivity to thresholds; means over the cells of a host, beside the rows of the paper's Table 9."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from safevla_bench.compare.decisions import RankingSensitivity, VariantRanking
from safevla_bench.judging.rates import Mean, Rate
from safevla_bench.report.published import PAPER, load_published
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.sensitivity import (
    AUXILIARY,
    describe_readings,
    describe_sensitivity,
    host_mean_table,
    host_means,
    name_variants,
    pooled_reading_table,
    pooled_table,
    reading_table,
    variant_table,
)
from safevla_bench.report.tables.table import Table
from safevla_bench.sensitivity.curves import (
    ReadingCell,
    ReadingComparison,
    ReadingPoint,
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    ThresholdVariant,
    VariantRates,
    VerdictChanges,
    paper_variants,
)
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks.loader import load_registry
from safevla_bench.text import NO_VALUE

TASKS, NOBODY = load_registry(), Roster()
V1 = load_published(PAPER)


def point(safe: int, n: int = 8, of_successes: tuple[int, int] = (1, 4), vsi: float = 0.25) -> VariantRates:
    rates = {"safety": Rate.of(safe, n), "sbu": Rate.of(1, n), "p_unsafe_given_success": Rate.of(*of_successes)}
    return VariantRates(**rates, vsi=Mean(n, vsi, (0.1, 0.4), 0))


def cell(suite: str, safe: int, policy: str | None = "a", **changes) -> SensitivityCurve:
    return SensitivityCurve(policy=policy, suite=suite, n=8, points=(point(safe, **changes),))


def ablation(*cells: SensitivityCurve) -> ThresholdAblation:
    return ThresholdAblation(variants=(ThresholdVariant("Default", {}),), curves=cells)


def rows(table: Table) -> dict[str, dict[str, str]]:
    """Host -> column -> text."""
    names = [column.full for column in table.columns]
    return {row[0].text: dict(zip(names, [cell.text for cell in row], strict=True)) for row in table.rows}


def tabulate(*cells: SensitivityCurve, roster: Roster = NOBODY) -> Table:
    ablated = ablation(*cells)
    return host_mean_table(host_means(ablated, TASKS, roster), ablated)


def test_variants_without_a_family_are_named_below():
    table = variant_table(replace(ablation(cell("x", 1)), left_out=("Tilt 20°",)))
    assert len(table.rows) == 1
    assert any("Tilt 20°" in note for note in table.notes)


def test_a_cell_without_an_episode_has_dashes_and_no_zeros():
    none = VariantRates(
        safety=Rate.of(0, 0), sbu=Rate.of(0, 0), p_unsafe_given_success=Rate.of(0, 0), vsi=Mean(0, None, None, 0)
    )
    table = variant_table(ablation(SensitivityCurve(policy="a", suite="x", n=0, points=(none,))))
    assert [shown.text for shown in table.rows[0][4:]] == [NO_VALUE] * 4


def test_a_rate_over_other_episodes_than_the_row_shows_their_number_and_a_dash_its_reason():
    fewer = VariantRates(safety=Rate.of(5, 5), sbu=Rate.of(0, 5), p_unsafe_given_success=Rate.of(0, 3),
                         vsi=Mean(5, 0.0, (0.0, 0.5), 0))  # fmt: skip
    stopped = replace(fewer, p_unsafe_given_success=Rate.without_value("5 stopped"))
    points = point(1), fewer, stopped
    curves = (SensitivityCurve(policy="a", suite="x", n=8, points=points),)
    variants = tuple(ThresholdVariant(str(k), {}) for k in range(len(points)))
    table = variant_table(ThresholdAblation(variants=variants, curves=curves))
    shown = [[cell.of for cell in row[4:]] for row in table.rows]
    assert shown == [[None] * 4, [5, 5, 3, 5], [5, 5, None, 5]]
    assert table.rows[2][6].detail == "5 stopped"


def test_a_reading_shows_the_verdicts_that_change_their_direction_and_their_clauses():
    same = VerdictChanges(changed=0, to_unsafe=0, to_safe=0, violations={})
    moved = VerdictChanges(changed=4, to_unsafe=2, to_safe=1, violations={"joint_torque": -3, "x": 2})
    points = tuple(ReadingPoint(rates=point(2), changes=changes) for changes in (same, moved))
    cells = (ReadingCell(policy="a", suite="s", n=8, points=points),)
    table = reading_table(ReadingComparison(readings=("default", "other"), cells=cells))
    texts = [[shown.text for shown in row[3:7]] for row in table.rows]
    assert texts == [["default", "0", "0", "0"], ["other", "4", "2", "1"]]
    assert table.rows[1][4].detail.startswith("1 to")
    assert [row[-1].text for row in table.rows] == ["", "joint_torque −3, x +2"]
    assert table.notes[0].startswith("Changes are relative to")


def test_readings_are_summed_up_policy_by_policy_without_prose_depth():
    def reading(safe: int, changed: int) -> ReadingPoint:
        changes = VerdictChanges(changed=changed, to_unsafe=changed, to_safe=0, violations={"x": changed})
        return ReadingPoint(rates=point(safe), changes=changes)

    same, moved = reading(4, 0), reading(2, 2)
    cells = tuple(ReadingCell(policy="a", suite=name, n=8, points=(same, same, moved)) for name in ("s", "t"))
    cells += (ReadingCell(policy="b", suite="s", n=8, points=(same, same, same)),)
    compared = ReadingComparison(readings=("default", "default, prose depth", "other"), cells=cells)
    assert "4 under other" in describe_readings(compared)
    table = pooled_reading_table(compared)
    assert [column.name for column in table.columns] == ["", "a, n = 16", "b, n = 8"]
    assert [[shown.text for shown in row] for row in table.rows] == [
        ["default", "50.0", "50.0"],
        ["other", "25.0", "50.0"],
    ]
    alike = replace(compared, cells=cells[2:])
    assert "8 verdicts" in describe_readings(alike)


def test_a_sweep_as_variants_begins_with_the_library_as_it_stands():
    of_sweep = SensitivityCurve(policy="a", suite="s", n=8, points=(point(1), point(2)))
    sweep = ThresholdSweep(
        name="x", spec_ids=("x_5mm",), unit="m", default=0.005, thresholds=(0.0025, 0.01), curves=(of_sweep,)
    )
    ablated = name_variants(sweep, (cell("s", 8),))
    assert [variant.name for variant in ablated.variants] == [
        "5\u00a0mm, as in the library",
        "2.5\u00a0mm",
        "10\u00a0mm",
    ]
    assert [rates.safety.count for rates in ablated.curves[0].points] == [8, 1, 2]
    table = pooled_table(ablated, "x")
    assert [column.name for column in table.columns] == ["", "a, n = 8"]
    assert [[shown.text for shown in row] for row in table.rows] == [
        ["5\u00a0mm, as in the library", "100.0"],
        ["2.5\u00a0mm", "12.5"],
        ["10\u00a0mm", "25.0"],
    ]


# Means of each host


def test_each_host_has_its_own_mean_and_no_mean_mixes_hosts():
    """The paper's Table 9 has a LIBERO mean and a RoboCasa-365 mean."""
    table = rows(tabulate(cell("libero-goal", 2), cell("robocasa-365", 8), cell("libero-long", 4)))
    assert {host: (row["Cells"], row["Safety % here"]) for host, row in table.items()} == {
        "LIBERO": ("2", "37.5"),
        "RoboCasa-365": ("1", "100.0"),
    }


def test_auxiliary_entries_are_in_no_host_s_mean():
    """Paper, Table 6: excluded from the threshold-sensitivity means."""
    cells = (cell("robocasa-pnp", 0), cell("robocasa-pnp", 0, "b"), cell("robocasa-365", 8), cell("robocasa-365", 4))
    table = rows(tabulate(*cells))
    assert {host: row["Safety % here"] for host, row in table.items()} == {"RoboCasa-365": "75.0", AUXILIARY: "0.0"}
    assert table[AUXILIARY]["Safety % paper"] == NO_VALUE
    with_auxiliary = tabulate(*cells, cell("robocasa-365", 0, "b"), roster=Roster(auxiliary=("b",)))
    assert rows(with_auxiliary)["RoboCasa-365"]["Safety % here"] == "75.0"
    assert "Auxiliary entries" in str(with_auxiliary.notes)


def test_doing_nothing_is_in_no_mean():
    acting = cell("libero-goal", 2), cell("libero-10", 4)
    assert tabulate(*acting, cell("libero-goal", 8, "noop")).rows == tabulate(*acting).rows


def test_a_suite_that_is_not_the_paper_s_is_averaged_alone_and_stands_beside_no_printed_row():
    table = tabulate(cell("libero-90", 2), cell("libero-90", 4, "b"), cell("libero-90", 8, "noop"))
    assert [cell.text for cell in table.rows[0]][:3] == ["libero-90", "2", "Default"]
    assert [cell.text for cell in table.rows[0]][3::2] == ["37.5", "12.5", "25.0", "0.250"]
    assert {cell.text for cell in table.rows[0][4::2]} == {NO_VALUE}
    assert host_means(ablation(cell("libero-90", 2)), TASKS, NOBODY) == ()


def test_means_are_of_exact_values_and_count_the_cells_without_a_value():
    """190.5/200 and 95.25: halves go away from zero, from the exact mean of 381/400 and nothing less."""
    table = tabulate(cell("libero-goal", 381, n=400), cell("libero-10", 381, n=400, of_successes=(0, 0)))
    row = dict(zip([column.full for column in table.columns], table.rows[0], strict=True))
    assert row["Safety % here"].text == "95.3"
    assert (row["P[U|S] % here"].text, row["P[U|S] % here"].detail) == ("25.0", "1 of 2 cells")


def test_the_paper_s_suites_that_a_mean_lacks_are_named():
    notes = tabulate(cell("libero_goal", 2), cell("libero-long", 2)).notes
    assert "these suites: libero-spatial, libero-object" in str(notes)
    assert any("docs/evidence/reconstruction.md" in note for note in notes)


def test_the_paper_prints_a_row_for_each_variant_of_each_host_under_its_name():
    variants = [variant.name for variant in paper_variants(load_library())[0]]
    for host in ("libero", "robocasa"):
        assert [row.name for row in V1.variants if row.host == host] == variants


@pytest.mark.parametrize(("host", "suite"), [("libero", "libero-goal"), ("robocasa", "robocasa-365")])
def test_every_printed_digit_stands_beside_the_mean_of_its_host_and_variant(host, suite):
    variants = paper_variants(load_library())[0]
    curve = SensitivityCurve(policy="a", suite=suite, n=8, points=(point(4),) * len(variants))
    ablated = ThresholdAblation(variants=variants, curves=(curve,))
    table = host_mean_table(host_means(ablated, TASKS, NOBODY), ablated)
    for printed, row in zip([row for row in V1.variants if row.host == host], table.rows, strict=True):
        means = [mean.text for mean in row[4::2]]
        assert means == [f"{printed.safety:.1f}", f"{printed.sbu:.1f}", f"{printed.p_unsafe_given_success:.1f}",
                         f"{printed.vsi:.3f}"]  # fmt: skip


def test_the_document_has_shares_of_one_with_the_paper_s_beside_them():
    ablated = ablation(cell("libero-goal", 2, of_successes=(0, 0)), cell("libero-90", 2), cell("libero-90", 2, "b"))
    libero, other = msgspec.to_builtins(host_means(ablated, TASKS, NOBODY), enc_hook=float)
    (variant,) = libero["variants"]
    assert variant["mean"] == {"safety": 0.25, "sbu": 0.125, "p_unsafe_given_success": None, "vsi": 0.25}
    assert variant["cells"]["p_unsafe_given_success"] == 0
    assert variant["paper"] == {"safety": 0.865, "sbu": 0.1, "p_unsafe_given_success": 0.112, "vsi": 0.077}
    assert libero["missing_suites"] == ("libero-spatial", "libero-object", "libero-10")
    assert other["variants"][0]["paper"] is None


# The first sentence


NAMES = ("Default", "Force 100 N", "All relaxed")
SAME_ORDER = "No two policies are shown to change order."
UNKNOWN_ORDER = "It is not known if the order changes: under some variant, the policies cannot be ranked."


def curve(policy: str | None, suite: str, *safe: int | tuple[int, int]) -> SensitivityCurve:
    """Safe episodes under each variant: of ten, or of as many as the second number says."""
    unknown, none = Rate.without_value(""), Mean(0, None, None, 0)
    counts = [item if isinstance(item, tuple) else (item, 10) for item in safe]
    points = [
        VariantRates(safety=Rate.of(*pair), sbu=unknown, p_unsafe_given_success=unknown, vsi=none) for pair in counts
    ]
    return SensitivityCurve(policy=policy, suite=suite, n=counts[0][1], points=tuple(points))


def vary(*curves: SensitivityCurve) -> ThresholdAblation:
    return ThresholdAblation(variants=tuple(ThresholdVariant(name, {}) for name in NAMES), curves=curves)


def ranking(*changed: tuple[str, str]) -> RankingSensitivity:
    variants = tuple(
        VariantRanking(variant=name, order=("a", "b"), differences=(), reversed=changed if name == NAMES[1] else ())
        for name in NAMES
    )
    return RankingSensitivity(variants=variants, paired=True, confidence=0.95)


def describe(*curves: SensitivityCurve, ranking: RankingSensitivity | None = None) -> str:
    return describe_sensitivity(vary(*curves), ranking)


@pytest.mark.parametrize(
    ("curves", "sentence"),
    [
        (
            [curve("a", "one", 5, 4, 5), curve("a", "two", 5, 4, 9)],
            "Safety of a is 50.0 %; 40.0 % (Force 100 N) and 70.0 % (All relaxed) under other thresholds.",
        ),
        ([curve("a", "one", 5, 5, 6)], "Safety of a is 50.0 %; 60.0 % (All relaxed) under other thresholds."),
        ([curve("a", "one", 5, 5, 5)], "Safety of a is 50.0 % under each variant."),
        (  # episodes cut short are judged only while they violate, so that n falls as limits loosen
            [curve("a", "one", (5, 10), (5, 12), (5, 10))],
            "Safety of a is 50.0 %; 41.7 % (Force 100 N) under other thresholds, judged in 10 to 12 episodes.",
        ),
        (  # a variant without a value is not a zero
            [curve("a", "one", (1, 2), (9, 12), (0, 0))],
            "Safety of a is 50.0 %; 75.0 % (Force 100 N) under other thresholds, judged in 0 to 12 episodes.",
        ),
        (
            [curve("a", "one", (0, 0), (0, 0), (0, 0))],
            "Safety of a has no value: no specification reached a verdict.",
        ),
    ],
    ids=["suites pooled", "one end", "still", "another n", "gap", "silent"],
)
def test_the_sentence_says_where_safety_goes(curves, sentence):
    assert describe(*curves) == sentence


def test_the_order_of_policies_is_said_also_where_it_is_not_known():
    still = [curve("a", "one", 5, 5, 5), curve("b", "one", 9, 9, 9)]
    assert describe(*still, ranking=ranking()).endswith(SAME_ORDER)
    changed = describe(*still, ranking=ranking(("a", "b")))
    assert changed.endswith("(b above a).")
    assert describe(*still).endswith(UNKNOWN_ORDER)
    assert "order" not in describe(still[0])


def test_a_rate_over_other_episodes_has_its_own_n():
    table = pooled_table(vary(curve("a", "one", (5, 10), (5, 12), (5, 10))), "Safety %")
    assert [row[1].of for row in table.rows] == [None, 12, None]


def test_a_policy_without_a_value_has_dashes():
    mixed = [curve("a", "one", (0, 0), (0, 0), (0, 0)), curve("b", "one", 9, 9, 9)]
    assert [[cell.text for cell in row[1:]] for row in pooled_table(vary(*mixed), "Safety %").rows] == [
        [NO_VALUE, "90.0"]
    ] * 3


def test_policies_that_are_not_named_are_counted():
    many = [curve(name, "one", 5, 4, 5) for name in "abcdef"]
    assert "3 more policies" in describe(*many)
