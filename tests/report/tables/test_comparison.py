"""Tables of comparisons, plans, variants and gates: what a cell may and may not say."""

from __future__ import annotations

import pytest

from safevla_bench import compare, gates
from safevla_bench.compare import sample_size
from safevla_bench.metrics import Mean, Rate
from safevla_bench.report.render import markdown, text
from safevla_bench.report.tables import comparison as comparing
from safevla_bench.report.tables import gates as gating
from safevla_bench.report.tables import sensitivity
from safevla_bench.sensitivity import Ablation, Curve, Point, Sweep, Variant
from safevla_bench.text.numbers import NONE


def difference(**changes: object) -> compare.Difference:
    fields = {
        "first": "a", "second": "b", "difference": -0.0525, "ci": (-0.1, 0.02), "ci_by_task": None, "both": 5,
        "only_first": 1, "only_second": 3, "neither": 1, "test": "McNemar, exact", "p_value": 0.625,
    }  # fmt: skip
    return compare.Difference(**{**fields, **changes})


def comparison(*found: compare.Difference, policies: tuple[str, ...] = ("a", "b"), **changes: object):
    standing = compare.Standing(policy="a", n=10, count=6, value=0.6, ci=(0.3, 0.8), ci_by_task=None)
    metric = compare.Metric(metric="safety", standings=(standing,), differences=found)
    scope = compare.Scope(suite=None, pairs=10, left_out=0, tasks=2, metrics=(metric,))
    fields = {"policies": policies, "paired": True, "confidence": 0.9, "seed": 0, "scopes": (scope,)}
    return compare.Comparison(**{**fields, **changes})


def cells(table, row: int = 0) -> dict[str, str]:
    return {column.name: cell.text for column, cell in zip(table.columns, table.rows[row], strict=True)}


def test_a_difference_is_in_points_with_signs_kept_from_dashes():
    found = cells(comparing.differences(comparison(difference())))
    assert found["A − B"] == "-5.3"
    assert found["90 %"] == "-10.0 to 2.0"
    assert found["by task"] == NONE
    assert (found["only A"], found["only B"], found["p"], found["Told apart"]) == ("1", "3", "0.625", "no")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"p_value": 0.1}, "B higher"),
        ({"p_value": 0.1, "difference": 0.2}, "A higher"),
        ({"p_value": 0.11}, "no"),
        ({"p_value": 0.01, "p_holm": 0.2}, "no"),
        ({"p_value": 1.0, "identical": True, "difference": 0.0}, "identical"),
        ({"p_value": None, "difference": None}, NONE),
    ],
)
def test_told_apart_goes_by_the_adjusted_p_at_the_asked_confidence(changes, verdict):
    assert cells(comparing.differences(comparison(difference(**changes))))["Told apart"] == verdict


def test_a_tiny_p_is_never_printed_as_zero():
    assert cells(comparing.differences(comparison(difference(p_value=1e-9))))["p"] == "<0.001"


def test_independent_episodes_have_no_counts_of_pairs():
    table = comparing.differences(comparison(difference(), paired=False))
    assert "only A" not in [column.name for column in table.columns]
    assert "Newcombe" in " ".join(table.notes)
    assert "independent" in comparing.standings(comparison(difference(), paired=False)).title


def test_few_tasks_are_said_beside_the_interval_by_task():
    assert any("Fewer than 10 tasks" in note for note in comparing.standings(comparison(difference())).notes)


def test_a_plan_prints_in_every_renderer():
    for table in comparing.plan(sample_size.plan(sample_size.Wanted(difference=0.1))):
        assert text(table)
        assert markdown(table)


def point(safe: int, n: int, given: tuple[int, int] = (1, 4)) -> Point:
    return Point(
        safety=Rate.of(safe, n),
        sbu=Rate.of(1, n),
        p_unsafe_given_success=Rate.of(*given),
        vsi=Mean(n, 0.25, (0.1, 0.4)),
    )


def curve(suite: str, *points: Point, n: int = 8) -> Curve:
    return Curve(policy="a", suite=suite, n=n, points=points)


def test_means_over_cells_are_of_exact_values_and_count_what_is_left_out():
    """190.5/200 and 95.25: halves go away from zero, from the exact mean of 381/400 and nothing less."""
    curves = (curve("x", point(381, 400), n=400), curve("y", point(381, 400, (0, 0)), n=400))
    table = sensitivity.ablation(Ablation(variants=(Variant("Default", {}),), curves=curves))
    mean = table.rows[-1]
    by_name = dict(zip([column.name for column in table.columns], mean, strict=True))
    assert mean[0].text == "Mean of cells"
    assert by_name["Safety %"].text == "95.3"
    assert (by_name["P[U|S] %"].text, by_name["P[U|S] %"].detail) == ("25.0", "1 of 2 cells")
    assert table.rows[1][8].text == NONE


def test_doing_nothing_is_in_no_mean_over_cells():
    acting = curve("x", point(2, 8)), curve("y", point(4, 8))
    noop = Curve(policy="noop", suite="x", n=8, points=(point(8, 8),))
    alone, beside = (
        sensitivity.ablation(Ablation(variants=(Variant("Default", {}),), curves=one))
        for one in (acting, (*acting, noop))
    )
    assert beside.rows[-1] == alone.rows[-1]
    assert set(beside.notes) - set(alone.notes) == {"Means are without noop, which does nothing."}


def test_variants_without_a_family_are_named_below():
    found = Ablation(variants=(Variant("Default", {}),), curves=(curve("x", point(1, 8)),), left_out=("Tilt 20°",))
    table = sensitivity.ablation(found)
    assert len(table.rows) == 1
    assert any("Tilt 20°" in note for note in table.notes)


def test_a_sweep_shows_small_lengths_in_millimetres_and_marks_the_default():
    found = Sweep(
        name="x", spec_ids=("x_5mm",), unit="m", default=0.005, thresholds=(0.0025, 0.005),
        curves=(curve("s", point(1, 8), point(2, 8)),),
    )  # fmt: skip
    table = sensitivity.sweep(found)
    assert [row[3].text + row[3].mark for row in table.rows] == ["2.5", "5†"]
    assert [row[3].value for row in table.rows] == [0.0025, 0.005]
    assert table.notes[0].startswith("† The library's threshold, 5 mm.")


def test_a_cell_without_an_episode_has_dashes_and_no_zeros():
    none = Point(safety=Rate.of(0, 0), sbu=Rate.of(0, 0), p_unsafe_given_success=Rate.of(0, 0), vsi=Mean(0, None, None))
    table = sensitivity.ablation(Ablation(variants=(Variant("Default", {}),), curves=(curve("x", none, n=0),)))
    assert [cell.text for cell in table.rows[0][4:]] == [NONE] * 7


def test_a_gate_of_what_was_not_scored_has_no_value():
    lost = gates.Outcome(policy=None, suite=None, gate=None, verdict="undecided", reason="crashed", n=2)
    table = gating.table(gates.Checked(verdict="undecided", per="all", confidence=None, outcomes=(lost,)))
    assert [cell.text for cell in table.rows[0]] == [
        "all",
        "all",
        "every planned episode scored",
        "2",
        NONE,
        "undecided",
        "crashed",
    ]
