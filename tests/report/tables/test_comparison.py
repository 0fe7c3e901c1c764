"""Tables of comparisons, plans, variants and gates: what a cell may and may not say.

Gate outcomes as a table.
"""

from __future__ import annotations

import pytest

from safevla_bench import compare, gates
from safevla_bench.compare import sample_size
from safevla_bench.report.render import render_markdown, render_text
from safevla_bench.report.tables import comparison as comparing
from safevla_bench.report.tables import comparison as gating
from safevla_bench.text.numbers import NO_VALUE


def difference(**changes: object) -> compare.Difference:
    fields = {
        "first": "a", "second": "b", "difference": -0.0525, "ci": (-0.1, 0.02), "ci_by_task": None, "both": 5,
        "only_first": 1, "only_second": 3, "neither": 1, "test": "McNemar, exact", "p_value": 0.625,
    }  # fmt: skip
    return compare.Difference(**{**fields, **changes})


def comparison(*differences: compare.Difference, policies: tuple[str, ...] = ("a", "b"), **changes: object):
    standing = compare.PolicyStanding(policy="a", n=10, count=6, value=0.6, ci=(0.3, 0.8), ci_by_task=None)
    metric = compare.MetricComparison(metric="safety", standings=(standing,), differences=differences)
    scope = compare.SuiteComparison(suite=None, pairs=10, left_out=0, tasks=2, metrics=(metric,))
    fields = {"policies": policies, "paired": True, "confidence": 0.9, "seed": 0, "scopes": (scope,)}
    return compare.Comparison(**{**fields, **changes})


def cells(table, row: int = 0) -> dict[str, str]:
    return {column.name: cell.text for column, cell in zip(table.columns, table.rows[row], strict=True)}


def test_a_difference_is_in_points_with_signs_kept_from_dashes():
    row = cells(comparing.difference_table(comparison(difference())))
    assert row["A − B"] == "-5.3"
    assert row["90 %"] == "-10.0 to 2.0"
    assert row["by task"] == NO_VALUE
    assert (row["only A"], row["only B"], row["p"], row["Told apart"]) == ("1", "3", "0.625", "no")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"p_value": 0.1}, "B higher"),
        ({"p_value": 0.1, "difference": 0.2}, "A higher"),
        ({"p_value": 0.11}, "no"),
        ({"p_value": 0.01, "p_holm": 0.2}, "no"),
        ({"p_value": 1.0, "identical": True, "difference": 0.0}, "identical"),
        ({"p_value": None, "difference": None}, NO_VALUE),
    ],
)
def test_told_apart_goes_by_the_adjusted_p_at_the_asked_confidence(changes, verdict):
    assert cells(comparing.difference_table(comparison(difference(**changes))))["Told apart"] == verdict


def test_a_tiny_p_is_never_printed_as_zero():
    assert cells(comparing.difference_table(comparison(difference(p_value=1e-9))))["p"] == "<0.001"


def test_independent_episodes_have_no_counts_of_pairs():
    table = comparing.difference_table(comparison(difference(), paired=False))
    assert "only A" not in [column.name for column in table.columns]
    assert "Newcombe" in " ".join(table.notes)
    assert "independent" in comparing.standing_table(comparison(difference(), paired=False)).title


def test_few_tasks_are_said_beside_the_interval_by_task():
    assert any("Fewer than 10 tasks" in note for note in comparing.standing_table(comparison(difference())).notes)


def test_a_plan_prints_in_every_renderer():
    for table in comparing.sample_size_tables(
        sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.1))
    ):
        assert render_text(table)
        assert render_markdown(table)


def test_a_gate_of_what_was_not_scored_has_no_value():
    lost = gates.GateOutcome(policy=None, suite=None, gate=None, verdict="undecided", reason="crashed", n=2)
    table = gating.gate_table(gates.GateReport(verdict="undecided", per="all", confidence=None, outcomes=(lost,)))
    assert [cell.text for cell in table.rows[0]] == [
        "all",
        "all",
        "every planned episode scored",
        "2",
        NO_VALUE,
        "undecided",
        "crashed",
    ]
