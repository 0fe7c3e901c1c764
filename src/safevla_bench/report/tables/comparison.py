"""Tables of a comparison: the differences between policies with tests, and the effects of changes to suites."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from safevla_bench.compare.comparison import Comparison, MetricComparison, SuiteComparison
from safevla_bench.compare.difference import Difference
from safevla_bench.compare.perturbation import CONTROL, MEASURED, Change, ChangeReport
from safevla_bench.compare.policy_results import list_first
from safevla_bench.judging.action_statistics import ActionChanges
from safevla_bench.judging.rates import METRICS, Metric
from safevla_bench.report.tables.columns import format_ends, value_cell
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.text import NO_VALUE, format_compact, format_fixed, format_interval

PRIMARY = "‡"  # marks the primary verdict
# Maximum number of episodes that a note below a table names; JSON has all.
_MOST_EPISODES = 8


class _Row(NamedTuple):
    scope: SuiteComparison
    compared: MetricComparison
    of: Difference

    @property
    def metric(self) -> Metric:
        return METRICS[self.compared.metric]


def difference_table(comparison: Comparison) -> Table:
    """Return the table of differences, first policy minus second, with a row per suite, metric and pair of policies."""
    several, adjusted = len(comparison.policies) > 2, "adjusted for the number of pairs"
    size, here, by_task = difference_columns(format_level(comparison))
    columns = (
        text_column("Suite", lambda row: "all, pooled" if row.scope.suite is None else row.scope.suite),
        text_column("Metric", lambda row: Cell(row.metric.heading, mark=PRIMARY if row.compared.primary else "")),
        text_column("A", lambda row: row.of.first) if several else None,
        text_column("B", lambda row: row.of.second) if several else None,
        size,
        here,
        Column("p", "p-value if the policies are equal on the same tasks", partial(_pvalue_cell, "p_value")),
        Column("p, adj.", adjusted, partial(_pvalue_cell, "p_adjusted")) if several else None,
        by_task,
        Column("p by task", "p-value if tasks' differences are symmetric about 0", partial(_pvalue_cell, "p_by_task")),
        Column("adj.", "the larger of both adjusted p-values", partial(_pvalue_cell, "p_by_task_adjusted")),
        Column("without one task", "least and greatest", lambda row: format_ends(row.metric, row.of.leave_one_out)),
        text_column("Better", lambda row: verdict_cell(row.of, row.metric, row.compared.primary)),
    )
    title = "Differences" if several else f"A = {comparison.policies[0]}, B = {comparison.policies[1]}"
    title += ", across physics versions" if comparison.across_versions else ""
    rows = [_Row(*place, difference) for place in _scoped_metrics(comparison) for difference in place[1].differences]
    return tabulate(title, rows, *columns, notes=_difference_notes(comparison))


def difference_columns(level: str, what: str = "") -> tuple[Column, Column, Column]:
    """Return the columns of a difference and its intervals; each row has a `metric`, and its difference is `of`."""
    here, elsewhere = "interval if the same tasks were run again", "interval if other tasks like these were run"
    return (
        Column("A − B", what, lambda row: value_cell(row.metric, row.of.difference)),
        Column(level, here, lambda row: format_difference_ends(row.of, row.metric)),
        Column("by task", elsewhere, lambda row: format_ends(row.metric, row.of.ci_by_task)),
    )


def format_difference_ends(item: Difference, metric: Metric) -> str:
    """Return the interval of a difference on these tasks as text; an open end at 0 becomes `above 0` or `below 0`."""
    if item.ci is None or not item.excludes_zero or 0.0 not in item.ci:
        return format_ends(metric, item.ci)
    low, high = (metric.format(end) for end in item.ci)
    return f"above {low} to {high}" if item.ci[0] == 0 else f"{low} to below {high}"


def format_p_value(value: float | None) -> str:
    """Return a p-value with three decimals, or `below 0.001`; for None, a dash."""
    return NO_VALUE if value is None else "below 0.001" if value < 0.001 else format_fixed(value, 3)


def _scoped_metrics(comparison: Comparison) -> Iterator[tuple[SuiteComparison, MetricComparison]]:
    return ((scope, metric) for scope in comparison.scopes for metric in scope.metrics)


def format_level(comparison: Comparison) -> str:
    """Return the confidence of a comparison in percent."""
    return f"{format_compact(100 * comparison.confidence)} %"


def _pvalue_cell(field: str, row: _Row) -> Cell:
    value = getattr(row.of, field)
    return Cell.number(value, 3) if value is None or value >= 0.001 else Cell("<0.001", value)


def verdict_cell(item: Difference, metric: Metric, primary: bool = True) -> Cell:
    """Return the verdict on a difference, such as `A safer`, `identical`, `undecided` or `no`; a dash if there is no
    difference or no adjusted p-value. For SR and clean success the word is `better`, for SBU `lower`. The cell also
    says if the result holds only on these tasks, and if it is exploratory because the metric is not `primary`.
    """
    words = {
        "identical": item.identical,
        NO_VALUE: item.p_adjusted is None or item.difference is None,
        "no verdict": item.no_verdict,
        "undecided": item.undecided,
        "no": item.better is None,
    }
    if word := next((word for word, holds in words.items() if holds), ""):
        return Cell(word)
    where = ""
    if item.p_by_task is not None and item.better_by_task is None:
        where = "; by task undecided" if item.undecided_by_task else " on these tasks"
    side = "A" if item.better == item.first else "B"
    return Cell(f"{side} {metric.praise}{where}{'' if primary else ', exploratory'}", emphasis="total")


def _difference_notes(comparison: Comparison) -> Iterator[str]:
    yield "Clean is success without a violation. P[U|S] of two paired policies is over pairs in which both succeeded."
    yield from _verdict_notes(comparison)
    tests: dict[str, dict[str, None]] = {}
    for _, metric in _scoped_metrics(comparison):
        for difference in metric.differences:
            tests.setdefault(difference.test, {})[METRICS[metric.metric].label] = None
    test_names = "; ".join(f"{test} ({', '.join(names)})" for test, names in tests.items())
    yield f"Tests: {test_names}; by task: exact sign-flip test on tasks' differences. Rates differ in points."
    weights = "all initial states have equal weight" if comparison.paired else "all tasks have equal weight"
    yield f"In a difference, {weights}; in results by task, the difference of each task is one observation."
    differences = [item for _, metric in _scoped_metrics(comparison) for item in metric.differences]
    for reason in dict.fromkeys(item.no_verdict for item in differences if item.no_verdict):
        yield f"No verdict: {reason}."
    if undecided := [item.unknown for item in differences if item.undecided or item.undecided_by_task]:
        yield (
            f"Undecided: up to {max(undecided)} episodes crashed, were cut short or have no verdict. If all "
            "these episodes favored one policy, the verdict could change. --allow-crashed decides without them."
        )
    yield from intervention_notes(comparison)
    yield from comparison.warnings


def intervention_notes(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on each filter of actions: its changes and cost, and the episodes that it improved or spoiled."""
    for item in comparison.interventions:
        steps = item.extra_steps
        cost = "" if steps is None else f" In pairs of two successes, the filter adds {steps:+.1f} steps on average."
        changes = ActionChanges(item.actions, item.changed, item.mean_change * item.changed)
        yield f"{item.policy}: a filter {changes}.{cost}"
        for what, names in (("Violations gone", item.saved), ("Successes lost", item.spoiled)):
            yield f"{what}: {list_first(names, most=_MOST_EPISODES)}." if names else f"{what}: none."


def _verdict_notes(comparison: Comparison) -> Iterator[str]:
    level = f"{format_compact(100 * (1 - comparison.confidence))} %"
    adjusted = " after adjustment for the number of pairs" if len(comparison.policies) > 2 else ""
    count = sum(len(metric.differences) for _, metric in _scoped_metrics(comparison) if not metric.primary)
    rest = f" The other {count} verdicts are exploratory, and not adjusted for their number." if count > 1 else ""
    yield f"{PRIMARY} marks the primary verdict.{rest}"
    yield (
        f"A policy is better on these tasks if p is at most {level}{adjusted}. It is also better for tasks like these "
        "if p by task is that small, supposing that the tasks' differences are symmetric. The number of "
        "episodes must be fixed in advance: repeated looks make wrong verdicts likelier, except with eval --until."
    )
    items = (item for _, metric in _scoped_metrics(comparison) for item in metric.differences)
    if needed := max((item.tasks_needed or 0 for item in items), default=0):
        yield f"With fewer than {needed} tasks, the test by task cannot show a difference."


# Effects of changes to suites


def describe_changes(report: ChangeReport) -> str:
    """Return as text which changes of suites are shown to affect SR or Safety, and then the results of controls."""
    moved = [
        f"{row.change} {'raises' if sign > 0 else 'lowers'} {metric.label} of {row.policy} by {_points(item, sign)}"
        for row in report.changes
        for metric in MEASURED
        if row.change != CONTROL and (sign := _sign(item := row.differences[metric.key]))
    ]
    controls = [row for row in report.changes if row.change == CONTROL]
    noise = [
        f"{row.policy} {', '.join(f'{metric.label} {_points(row.differences[metric.key])}' for metric in MEASURED)}"
        for row in controls
    ]
    answer = f"{'; '.join(moved)}." if moved else "No change is shown to affect SR or Safety."
    again = f"Repeated without a change: {'; '.join(noise)}." if noise else "There is no control: run the suite twice."
    return f"{answer[:1].upper()}{answer[1:]} {again}"


def _sign(item: Difference) -> int:
    return (1 if (item.difference or 0.0) > 0 else -1) if item.excludes_zero else 0


def _points(item: Difference, sign: int = 1) -> str:
    if item.difference is None:
        return "not known"
    points = f"{format_fixed(100 * sign * item.difference, 1)} points"
    if item.ci is None:
        return points
    low, high = sorted(sign * end for end in item.ci)
    return f"{points} ({format_interval(low, high, 1, 100)})"


def change_table(report: ChangeReport, notes: tuple[str, ...] = ()) -> Table:
    """Return the table of effects in points (changed minus unchanged suite), with a row for each policy and change."""
    columns = (
        text_column("Policy", lambda row: row.policy),
        text_column("Changed", lambda row: row.change),
        text_column("Suites", lambda row: ", ".join(row.suites)),
        Column("Pairs", value=lambda row: row.differences[MEASURED[0].key].pairs or 0),
        *(Column(metric.label, "points", partial(_difference_cell, metric)) for metric in MEASURED),
        Column("Unknown", "paired episodes", lambda row: Cell.fault(row.unknown)),
        Column("Left out", "episodes without counterpart", lambda row: row.left_out),
        text_column("Tasks differ in", lambda row: ", ".join(row.differing) or "nothing that is recorded"),
    )
    together = (
        f"Each difference is changed suite minus unchanged suite, on the same tasks, initial states and seeds. "
        f"Together, the intervals hold at {format_compact(100 * report.confidence)} % on these tasks, because each "
        "holds at "
        f"{format_compact(round(100 * report.each_confidence, 2))} % (Bonferroni)."
    )
    mixed = (
        f"For {row.change} of {row.policy}, not only suites but also simulators differ: {'; '.join(row.mixtures)}."
        for row in report.changes
        if row.mixtures and row.change != CONTROL
    )
    return tabulate("Effects of changes to suites", report.changes, *columns, notes=(together, *mixed, *notes))


def _difference_cell(metric: Metric, row: Change) -> Cell:
    item, none = row.differences[metric.key], Cell.dash("no pair has values for both suites")
    return none if item.difference is None else Cell.estimate(item.difference, item.ci, metric.digits, metric.scale)
