"""The table of differences, and that of gates: what a cell may and may not say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from report.tables.reading import columns
from safevla_bench.compare.comparison import Comparison, MetricComparison, PolicyStanding, SuiteComparison
from safevla_bench.compare.difference import Difference
from safevla_bench.judging import gates
from safevla_bench.report.tables import comparison as comparing
from safevla_bench.report.tables import notices as gating
from safevla_bench.text import NO_VALUE


def difference(**changes: object) -> Difference:
    fields = {
        "first": "a", "second": "b", "difference": -0.0525, "ci": (-0.1, 0.02), "ci_by_task": None,
        "only_first": 1, "only_second": 3, "test": "McNemar, mid-p", "p_value": 0.625,
        "p_by_task": 0.5, "p_adjusted": 0.75, "tasks": 2,
    }  # fmt: skip
    return Difference(**{**fields, **changes})


def comparison(
    *differences: Difference,
    policies: tuple[str, ...] = ("a", "b"),
    metric: str = "safety",
    primary: bool = False,
    **changes: object,
):
    standing = PolicyStanding(policy="a", n=10, value=0.6, ci=(0.3, 0.8))
    metrics = MetricComparison(metric=metric, standings=(standing,), differences=differences, primary=primary)
    scope = SuiteComparison(suite=None, pairs=10, left_out=0, tasks=2, metrics=(metrics,))
    fields = {"policies": policies, "paired": True, "confidence": 0.9, "scopes": (scope,)}
    return Comparison(**{**fields, **changes})


def cells(table, row: int = 0) -> dict[str, str]:
    return {column.name: cell.text for column, cell in zip(table.columns, table.rows[row], strict=True)}


def test_a_difference_is_in_points_with_signs_kept_from_dashes():
    row = cells(comparing.difference_table(comparison(difference())))
    assert row["A − B"] == "-5.3"
    assert row["90 %"] == "-10.0 to 2.0"
    assert row["by task"] == NO_VALUE
    assert (row["p"], row["p by task"]) == ("0.625", "0.500")
    several = comparing.difference_table(comparison(difference(), policies=("a", "b", "c")))
    assert cells(several)["p, adj."] == "0.750"
    assert row["Better"] == "no"


@pytest.mark.parametrize(
    ("metric", "changes", "verdict"),
    [
        ("safety", {"better": "b", "better_by_task": "b"}, "B safer"),
        ("safety", {"better": "a", "better_by_task": "a", "difference": 0.2}, "A safer"),
        ("sbu", {"better": "a", "better_by_task": "a"}, "A lower"),
        ("vsi", {"better": "b", "better_by_task": "b", "difference": 0.1}, "B safer"),
        ("p_unsafe_given_success", {"better": "a", "better_by_task": "a"}, "A safer"),
        ("sr", {"better": "b", "better_by_task": "b"}, "B better"),
        ("clean", {"better": "b", "better_by_task": "b"}, "B better"),
        ("safety", {}, "no"),
        ("safety", {"no_verdict": "too few"}, "no verdict"),
        ("safety", {"undecided": True}, "undecided"),
        ("safety", {"p_value": 1.0, "identical": True, "difference": 0.0}, "identical"),
        ("safety", {"p_value": None, "p_adjusted": None, "difference": None}, NO_VALUE),
    ],
)
def test_who_is_better_is_said_in_words_that_do_not_depend_on_the_metric_s_sign(metric, changes, verdict):
    compared = comparison(difference(**changes), metric=metric, primary=True)
    assert cells(comparing.difference_table(compared))["Better"] == verdict
    other = cells(comparing.difference_table(comparison(difference(**changes), metric=metric)))["Better"]
    assert other == (f"{verdict}, exploratory" if "better" in changes else verdict)


def test_a_tiny_p_is_never_printed_as_zero():
    assert cells(comparing.difference_table(comparison(difference(p_value=1e-9))))["p"] == "<0.001"


def test_too_few_tasks_are_said():
    notes = comparing.difference_table(comparison(difference(tasks_needed=6))).notes
    assert "6 tasks" in str(notes)


def test_an_end_of_zero_that_is_excluded_is_open():
    row = difference(difference=0.05, ci=(0.0, 0.1), p_value=0.04, excludes_zero=True)
    assert "0.0 to 10.0" in cells(comparing.difference_table(comparison(row)))["90 %"]
    row = difference(ci=(-0.1, 0.0), p_value=0.04, excludes_zero=True)
    assert "-10.0 to below" in cells(comparing.difference_table(comparison(row)))["90 %"]


def test_looking_again_is_warned_of_where_a_verdict_is_for_one_look():
    warning = "repeated looks make wrong verdicts more likely, except with eval --until."
    assert any(warning in note for note in comparing.difference_table(comparison(difference())).notes)


def test_the_primary_verdict_is_marked_and_the_others_are_called_exploratory():
    compared = comparison(difference(), primary=True)
    (scope,) = compared.scopes
    other = MetricComparison(metric="sr", standings=(), differences=(difference(), difference()))
    exploratory = replace(compared, scopes=(replace(scope, metrics=(*scope.metrics, other)),))
    table = comparing.difference_table(exploratory)
    assert [cell.mark for cell in columns(table)["Metric"]] == [comparing.PRIMARY, "", ""]
    assert "The other 2" in str(table.notes)


def test_a_gate_of_what_was_not_scored_has_no_value():
    lost = gates.GateOutcome(policy=None, suite=None, gate=None, verdict="undecided", reason="crashed", n=2)
    table = gating.gate_table(gates.GateReport(verdict="undecided", per="policy", confidence=None, outcomes=(lost,)))
    assert [cell.text for cell in table.rows[0]] == [
        "all",
        "all",
        "every planned episode scored",
        "2",
        NO_VALUE,
        "undecided",
        "crashed",
    ]
