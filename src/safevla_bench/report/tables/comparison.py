"""Tables of comparisons: the tested differences between policies, and the effects of changes to suites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from safevla_bench.text import NO_VALUE, count_noun, format_compact, format_fixed, format_interval

PRIMARY = "‡"  # marks the primary verdict
# Maximum number of episodes that a note below a table names; JSON names all episodes.
_MOST_EPISODES = 8


class _Row(NamedTuple):
    # A row of the table. The columns of `difference_columns` read its attributes `result` and `metric`.
    scope: SuiteComparison
    compared: MetricComparison
    result: Difference

    @property
    def metric(self) -> Metric:
        # Return the metric of this row. `compared` is the comparison in one metric, named by its key.
        return METRICS[self.compared.metric]


def difference_table(comparison: Comparison) -> Table:
    """Return the table of differences, first policy minus second, with a row per suite, metric and pair of policies."""
    # In the columns, a row has the attributes `scope` (a suite, or all pooled) and `compared` (one metric).
    # The row's attribute `result` is the difference of one pair of policies.
    # Three or more policies form several pairs. Then rows name their policies, and p-values are adjusted.
    has_several_pairs = len(comparison.policies) > 2
    adjusted_meaning = "adjusted for the number of pairs"
    letters = choose_letters(comparison.policies)
    difference_column, interval_column, by_task_column = difference_columns(format_level(comparison), letters)
    columns = (
        text_column("Suite", lambda row: "all, pooled" if row.scope.suite is None else row.scope.suite),
        # The mark distinguishes the one primary verdict from exploratory verdicts.
        text_column("Metric", lambda row: Cell(row.metric.heading, mark=PRIMARY if row.compared.primary else "")),
        text_column(letters[0], lambda row: row.result.first) if has_several_pairs else None,
        text_column(letters[1], lambda row: row.result.second) if has_several_pairs else None,
        difference_column,
        interval_column,
        Column(
            "p",
            "p-value of the hypothesis that the policies are equal on the same tasks",
            partial(_pvalue_cell, "p_value"),
        ),
        Column("p, adj.", adjusted_meaning, partial(_pvalue_cell, "p_adjusted")) if has_several_pairs else None,
        by_task_column,
        Column(
            "p by task",
            "p-value of the hypothesis that the differences of tasks are symmetric about 0",
            partial(_pvalue_cell, "p_by_task"),
        ),
        Column("adj.", "the larger of adjusted p and adjusted p by task", partial(_pvalue_cell, "p_by_task_adjusted")),
        Column(
            "without one task",
            "smallest and largest difference without one of the tasks",
            lambda row: format_ends(row.metric, row.result.leave_one_out),
        ),
        text_column("Better", lambda row: verdict_cell(row.result, row.metric, letters, row.compared.primary)),
    )
    title = "Differences"
    if not has_several_pairs:
        title = f"{letters[0]} = {comparison.policies[0]}, {letters[1]} = {comparison.policies[1]}"
    title += ", across physics versions" if comparison.across_versions else ""
    return tabulate(title, _list_rows(comparison), *columns, notes=_difference_notes(comparison))


def difference_columns(level: str, letters: tuple[str, str], meaning: str = "") -> tuple[Column, Column, Column]:
    """Return columns for a difference and its two intervals. Rows must have the attributes `metric` and `result`."""
    # In a row, `result` is the difference of one pair of policies in the metric `metric`.
    # `level` is the confidence as text, such as `95 %`. `letters` replace the names of the two policies.
    # `meaning` explains the column of the difference.
    same_tasks, other_tasks = "interval for the same tasks run again", "interval for other tasks like these"
    return (
        Column(" − ".join(letters), meaning, lambda row: value_cell(row.metric, row.result.difference)),
        Column(level, same_tasks, lambda row: format_difference_ends(row.result, row.metric)),
        Column("by task", other_tasks, lambda row: format_ends(row.metric, row.result.ci_by_task)),
    )


def format_difference_ends(result: Difference, metric: Metric) -> str:
    """Return the interval of a difference on the same tasks as text. An open end becomes `above 0` or `below 0`."""
    # `ci` is the interval for the same tasks run again; without it, the text is a dash.
    if result.ci is None or not result.excludes_zero or 0.0 not in result.ci:
        return format_ends(metric, result.ci)
    # The interval of a significant difference excludes 0, so an end that is exactly 0 is open.
    low, high = (metric.format(end) for end in result.ci)
    return f"above {low} to {high}" if result.ci[0] == 0 else f"{low} to below {high}"


def format_p_value(value: float | None) -> str:
    """Return a p-value with three decimals, or `below 0.001`; for None, a dash."""
    if value is None:
        return NO_VALUE
    return "below 0.001" if value < 0.001 else format_fixed(value, 3)


def _list_rows(comparison: Comparison) -> list[_Row]:
    # Return a row per scope (a suite, or all suites pooled), metric and pair of policies.
    scoped_metrics = [(scope, compared) for scope in comparison.scopes for compared in scope.metrics]
    return [_Row(scope, compared, result) for scope, compared in scoped_metrics for result in compared.differences]


def format_level(comparison: Comparison) -> str:
    """Return the confidence level of a comparison in percent, as text."""
    return f"{format_compact(100 * comparison.confidence)} %"


def _pvalue_cell(field: str, row: _Row) -> Cell:
    # Return the p-value in the attribute `field` of the difference `row.result`; a dash if the p-value is None.
    value = getattr(row.result, field)
    return Cell("<0.001", value) if value is not None and value < 0.001 else Cell.number(value, 3)


def verdict_cell(result: Difference, metric: Metric, letters: tuple[str, str], primary: bool = True) -> Cell:
    """Return the verdict on a difference, such as `A safer`, `A better`, `identical`, `undecided` or `no`; a dash if
    there is no difference or no adjusted p-value. The cell also says if the verdict holds only on the same tasks, and
    if it is exploratory, since its metric is not `primary`.
    """
    # The order of these conditions matters, because several of them may hold.
    # `letters` replace the names of the two policies; `better` is the significantly better policy, or None.
    if result.identical and not result.no_verdict:
        return Cell("identical")
    if result.p_adjusted is None or result.difference is None:
        return Cell(NO_VALUE)
    if result.no_verdict:
        return Cell("no verdict")
    if result.better is None or result.undecided:
        return Cell("undecided" if result.undecided else "no")
    # `p_by_task` is None if there is only one task: then nothing is said about other tasks.
    scope_text = ""
    if result.p_by_task is not None and result.better_by_task is None:
        scope_text = "; undecided by task" if result.undecided_by_task else " on these tasks"
    letter = letters[1] if result.better == result.second else letters[0]
    return Cell(f"{letter} {metric.praise}{scope_text}{'' if primary else ', exploratory'}", emphasis="total")


def choose_letters(policies: Sequence[str]) -> tuple[str, str]:
    """Return letters for the two policies of a difference, or words if all letters are names of other policies.

    >>> choose_letters(["careful", "hasty"]), choose_letters(["a", "b"]), choose_letters(["B", "a"])
    (('A', 'B'), ('A', 'B'), ('X', 'Y'))
    """
    # Neither letter may be a policy's name (ignoring case), unless the letters are the two names in the same order.
    names = tuple(policy.upper() for policy in policies)
    letters = [pair for pair in (("A", "B"), ("X", "Y"), ("P", "Q")) if names == pair or {*names}.isdisjoint(pair)]
    return letters[0] if letters else ("first", "second")


def _difference_notes(comparison: Comparison) -> Iterator[str]:
    # Yield the notes below the table of differences. A row is one pair of policies in one metric on one suite.
    # `result` is the row's difference; `no_verdict` is the reason why this difference has no verdict, or "".
    yield "Clean is success without a violation. For paired policies, P[U|S] is over the pairs in which both succeeded."
    yield from _verdict_notes(comparison)
    labels_by_test: dict[str, dict[str, None]] = {}  # a dictionary keeps labels in order, without duplicates
    rows = _list_rows(comparison)
    for row in rows:
        labels_by_test.setdefault(row.result.test, {})[row.metric.label] = None
    test_names = "; ".join(f"{test} ({', '.join(names)})" for test, names in labels_by_test.items())
    yield (
        f"Tests: {test_names}; by task: exact sign-flip test on the differences of tasks. "
        "Differences of rates are in points."
    )
    # Episodes are paired if both policies started from the same initial states.
    weights = "all initial states have equal weight" if comparison.paired else "all tasks have equal weight"
    yield f"Differences: {weights}; in results by task, the difference of each task is one observation."
    results = [row.result for row in rows]
    for reason in dict.fromkeys(result.no_verdict for result in results if result.no_verdict):
        yield f"No verdict: {reason}."
    if unknown_counts := [result.unknown for result in results if result.undecided or result.undecided_by_task]:
        yield (
            "Undecided: some episodes crashed, were cut short or have no verdict (at most "
            f"{max(unknown_counts)}). If all these episodes favored one policy, the verdict could change. "
            "--allow-crashed decides without them."
        )
    yield from intervention_notes(comparison)
    yield from comparison.warnings


def intervention_notes(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on each action filter: its changes, its cost, and the episodes that it saved or spoiled."""
    # A filter changes actions before execution. Episodes with the filter are compared with episodes without it.
    # `changed` is the number of changed actions, and `mean_change` the mean norm of their changes.
    for effect in comparison.interventions:
        steps = effect.extra_steps
        cost = "" if steps is None else f" In pairs of two successes, the filter adds {steps:+.1f} steps on average."
        # The third field is the sum of all changes' norms. The text of `changes` is like `changed 3 of 90 actions ...`.
        changes = ActionChanges(effect.actions, effect.changed, effect.mean_change * effect.changed)
        yield f"{effect.policy}: a filter {changes}.{cost}"
        for title, episodes in (("Violations gone", effect.saved), ("Successes lost", effect.spoiled)):
            yield f"{title}: {list_first(episodes, most=_MOST_EPISODES)}." if episodes else f"{title}: none."


def _verdict_notes(comparison: Comparison) -> Iterator[str]:
    # Yield the notes on which verdict is primary, on what makes a policy better, and on tests with too few tasks.
    # A row is one pair of policies in one metric on one suite.
    limit = f"{format_compact(100 * (1 - comparison.confidence))} %"
    adjusted = " after adjustment for the number of pairs" if len(comparison.policies) > 2 else ""
    rows = _list_rows(comparison)
    # A single exploratory verdict needs no remark on the number of verdicts.
    exploratory_count = sum(not row.compared.primary for row in rows)
    exploratory = ""
    if exploratory_count > 1:
        exploratory = f" The other {exploratory_count} verdicts are exploratory, and not adjusted for their number."
    yield f"{PRIMARY} marks the primary verdict.{exploratory}"
    yield (
        f"A policy is better on these tasks if p is at most {limit}{adjusted}. A policy is also better for tasks like "
        "these if p by task meets the same limit, and if the differences of tasks are symmetric. The number of "
        "episodes must be fixed in advance: repeated looks make wrong verdicts more likely, except with eval --until."
    )
    # `tasks_needed` is None if there are enough tasks.
    tasks_needed = [row.result.tasks_needed for row in rows if row.result.tasks_needed]
    if tasks_needed:
        yield f"The test by task cannot show a difference with fewer than {max(tasks_needed)} tasks."


# Effects of changes to suites


def describe_changes(report: ChangeReport) -> str:
    """Return as text the changes of suites that significantly affect SR or Safety, and the results of control runs."""
    # A row is one policy with one change of its suites. `differences` is changed minus unchanged suite, by metric.
    # The control is a second run of an unchanged suite: it shows how large differences are by chance alone.
    effects, control_effects = [], []
    for row in report.changes:
        results = [(metric, row.differences[metric.key]) for metric in MEASURED]
        if row.change == CONTROL:
            points = ", ".join(f"{metric.label} {_in_points(result)}" for metric, result in results)
            control_effects.append(f"{row.policy} {points}")
            continue
        for metric, result in results:
            if result.excludes_zero:  # the effect is significant
                # The verb (raises or lowers) gives the sign, so the number itself is made positive.
                verb, sign = ("raises", 1) if (result.difference or 0.0) > 0 else ("lowers", -1)
                effect = f"{row.change} {verb} {metric.label} of {row.policy}"
                if result.undecided:
                    episodes = count_noun(result.unknown, "episode")
                    effect = f"whether {effect} is undecided, because {episodes} without a value could change this"
                else:
                    effect = f"{effect} by {_in_points(result, sign)}"
                effects.append(effect)
    # An effect begins with a lowercase word, so the first letter of the sentence is capitalized below.
    answer = f"{'; '.join(effects)}." if effects else "No change is shown to affect SR or Safety."
    control_text = "There is no control: run the unchanged suite once more."
    if control_effects:
        control_text = f"Controls (unchanged suites, run again): {'; '.join(control_effects)}."
    return f"{answer[:1].upper()}{answer[1:]} {control_text}"


def _in_points(result: Difference, sign: int = 1) -> str:
    # Return as text the difference and its interval (`ci`) in percentage points, both multiplied by `sign`.
    # With the sign -1, the interval's ends are also swapped.
    if result.difference is None:
        return "not known"
    points = f"{format_fixed(100 * sign * result.difference, 1)} points"
    if result.ci is None:
        return points
    low, high = sorted(sign * end for end in result.ci)
    return f"{points} ({format_interval(low, high, digits=1, scale=100)})"


def change_table(report: ChangeReport, notes: tuple[str, ...] = ()) -> Table:
    """Return the table of effects in points (changed minus unchanged suite), with a row for each policy and change."""
    columns = (
        text_column("Policy", lambda row: row.policy),
        text_column("Changed", lambda row: row.change),
        text_column("Suites", lambda row: ", ".join(row.suites)),
        # The number of pairs that have a value of either metric.
        Column("Pairs", value=lambda row: max(result.pairs or 0 for result in row.differences.values())),
        *(Column(metric.label, "points", partial(_difference_cell, metric)) for metric in MEASURED),
        Column("Unknown", "pairs with an unknown value", lambda row: Cell.fault(row.unknown)),
        Column("Left out", "episodes without a counterpart", lambda row: row.left_out),
        text_column("Tasks differ in", lambda row: ", ".join(row.differing) or "no recorded property"),
    )
    joint_note = (
        f"Each difference is the changed minus the unchanged suite, on the same tasks, initial states and seeds. "
        f"The joint confidence of all intervals on these tasks is {format_compact(100 * report.confidence)} %, because "
        f"the confidence of each interval is {format_compact(round(100 * report.each_confidence, 2))} % (Bonferroni)."
    )
    # If simulators differ between the two runs, the difference is not only an effect of the change.
    mixture_notes = (
        f"For {row.change} of {row.policy}, not only suites but also simulators differ: {'; '.join(row.mixtures)}."
        for row in report.changes
        if row.mixtures and row.change != CONTROL
    )
    title = "Effects of changes to suites"
    return tabulate(title, report.changes, *columns, notes=(joint_note, *mixture_notes, *notes))


def _difference_cell(metric: Metric, row: Change) -> Cell:
    # Return the effect of a change on the metric with its interval; without a difference, a dash with the reason.
    result = row.differences[metric.key]
    if result.difference is None:
        return Cell.dash(result.no_verdict or "no pair has values for both suites")
    return Cell.estimate(result.difference, result.ci, metric.digits, metric.scale)
