"""Tables of a comparison: each policy's value, and the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from safevla_bench.compare.comparison import Comparison, MetricComparison, PolicyStanding, SuiteComparison
from safevla_bench.compare.difference import LEAST_RESAMPLED_TASKS, Difference, MarginVerdict, least_tasks
from safevla_bench.report.tables.table import Cell, Column, Emphasis, Table
from safevla_bench.statistics.intervals import is_significant
from safevla_bench.text import NO_VALUE, format_compact, format_fixed, format_interval

_SHOWN = {
    "sr": "SR %",
    "safety": "Safety %",
    "clean": "Clean %",
    "sbu": "SBU %",
    "p_unsafe_given_success": "P[U|S] %",
    "vsi": "VSI",
}
_SUCCESSES = ("sr", "clean")
"""The metrics in which the better policy is not the safer one."""
PRIMARY = "‡"
"""The mark of the primary verdict."""
_MARGIN_WORDS: Mapping[MarginVerdict | None, str] = {
    "equivalent": "equivalent",
    "first not worse": "A not worse",
    "second not worse": "B not worse",
    "open": "open",
    None: NO_VALUE,
}


def standing_table(comparison: Comparison, remarks: Sequence[str] = ()) -> Table:
    """Return the table of each policy's value, a row per suite, metric and policy, with the intervals by episode and by
    task.

    With more than two policies a last column has the letters that equal policies share. `remarks` are added to the
    notes.
    """
    several = len(comparison.policies) > 2
    rows = [
        (
            *_scope_cells(scope, metric),
            *_standing_cells(standing, metric.metric),
            *([Cell(standing.letters)] if several else []),
        )
        for scope, metric in _scoped_metrics(comparison)
        for standing in metric.standings
    ]
    columns = (
        Column("Suite", numeric=False),
        Column("Metric", numeric=False),
        Column("Policy", numeric=False),
        Column("n"),
        Column("Value"),
        Column(_level(comparison), meaning="interval over episodes"),
        Column("by task", meaning=f"{_level(comparison)} interval over whole tasks"),
        *([Column("Letters", numeric=False)] if several else []),
    )
    return Table(
        title=_comparison_title(comparison),
        columns=columns,
        rows=tuple(rows),
        notes=(*_standing_notes(comparison), *remarks),
    )


def difference_table(comparison: Comparison) -> Table:
    """Return the table of differences, a row per suite, metric and pair: first minus second, in points or in VSI.

    Columns A and B are there with more than two policies, counts of pairs where episodes are paired, and a verdict of
    equivalence where a margin was asked for.
    """
    several = len(comparison.policies) > 2
    rows = [
        (*_scope_cells(scope, metric), *_difference_cells(difference, metric, comparison, several))
        for scope, metric in _scoped_metrics(comparison)
        for difference in metric.differences
    ]
    columns = (
        Column("Suite", numeric=False),
        Column("Metric", numeric=False),
        *([Column("A", numeric=False), Column("B", numeric=False)] if several else []),
        Column("A − B"),
        Column(_level(comparison), meaning="interval if the same tasks were run again"),
        Column("p", meaning="of equal policies on the same tasks"),
        Column("by task", meaning="interval if other tasks like these were run"),
        Column("p by task", meaning="of equal policies on other tasks like these"),
        *([Column("only A:B", meaning="pairs that only A has, and only B")] if comparison.paired else []),
        *(
            [Column("p, adj.", meaning="the p-value that decides, adjusted for the pairs of policies")]
            if several
            else []
        ),
        Column("Told apart", numeric=False),
        *([] if comparison.margin is None else [Column(_margin_text(comparison), numeric=False)]),
    )
    title = "Differences" if several else f"A = {comparison.policies[0]}, B = {comparison.policies[1]}"
    return Table(title=title, columns=columns, rows=tuple(rows), notes=tuple(_difference_notes(comparison)))


def _scoped_metrics(comparison: Comparison) -> Iterator[tuple[SuiteComparison, MetricComparison]]:
    return ((scope, metric) for scope in comparison.scopes for metric in scope.metrics)


def _scope_cells(scope: SuiteComparison, metric: MetricComparison) -> tuple[Cell, Cell]:
    return Cell(_scope_name(scope)), Cell(_SHOWN[metric.metric], mark=PRIMARY if metric.primary else "")


def _scope_name(scope: SuiteComparison) -> str:
    return "all, pooled" if scope.suite is None else scope.suite


def _margin_text(comparison: Comparison) -> str:
    return f"± {format_compact(100 * (comparison.margin or 0.0))}"


def _level(comparison: Comparison) -> str:
    return f"{format_compact(100 * comparison.confidence)} %"


def _comparison_title(comparison: Comparison) -> str:
    mark = ", across physics versions" if comparison.across_versions else ""
    if not comparison.paired:
        return f"{len(comparison.policies)} policies on independent episodes{mark}"
    pooled = comparison.scopes[-1]
    what = "initial states" if _pairs_states(comparison) else "episodes"
    whose = "left out" if len(comparison.policies) == 2 else "lost by some"
    left_out = f" ({pooled.left_out} {whose})" if pooled.left_out else ""
    return f"{len(comparison.policies)} policies on the same {pooled.pairs} {what}{left_out}{mark}"


def _pairs_states(comparison: Comparison) -> bool:
    return any(
        difference.test == "sign flips" and metric.metric != "vsi"
        for _, metric in _scoped_metrics(comparison)
        for difference in metric.differences
    )


def _standing_cells(standing: PolicyStanding, metric: str) -> tuple[Cell, ...]:
    scale, digits = _print_scale(metric)
    value = Cell(NO_VALUE)
    if standing.value is not None:
        value = Cell(format_fixed(scale * standing.value, digits), scale * standing.value)
    spans = (interval_cell(standing.ci, metric), interval_cell(standing.ci_by_task, metric))
    return Cell(standing.policy), Cell(str(standing.n), standing.n), value, *spans


def _print_scale(metric: str) -> tuple[int, int]:
    return (1, 3) if metric == "vsi" else (100, 1)


def interval_cell(ends: tuple[float, float] | None, metric: str) -> Cell:
    """Return an interval as text in the unit printed for the metric; a dash for None."""
    scale, digits = _print_scale(metric)
    if ends is None:
        return Cell(NO_VALUE)
    return Cell(_format_signed_interval(*ends, digits, scale))


def _format_signed_interval(low: float, high: float, digits: int, scale: int) -> str:
    text = format_interval(low, high, digits, scale)
    return text.replace("–", " to ") if "-" in text else text


def _difference_cells(
    difference: Difference, metric: MetricComparison, comparison: Comparison, several: bool
) -> tuple[Cell, ...]:
    """Return the row of a pair after suite and metric; dashes stand for missing values.

    `several` adds the names of both policies; the counts of pairs and the margin follow the comparison.
    """
    scale, digits = _print_scale(metric.metric)
    difference_cell = Cell(NO_VALUE)
    if difference.difference is not None:
        difference_cell = Cell(format_fixed(scale * difference.difference, digits), scale * difference.difference)
    counts = (difference.only_first, difference.only_second)
    only_cell = Cell(NO_VALUE) if None in counts else Cell(f"{counts[0]}:{counts[1]}")
    return (
        *([Cell(difference.first), Cell(difference.second)] if several else []),
        difference_cell,
        interval_cell(difference.ci, metric.metric),
        _p_value_cell(difference.p_value),
        interval_cell(difference.ci_by_task, metric.metric),
        _p_value_cell(difference.p_by_task),
        *([only_cell] if comparison.paired else []),
        *([_p_value_cell(difference.p_adjusted)] if several else []),
        verdict_cell(difference, metric.metric, exploratory=not metric.primary),
        *([] if comparison.margin is None else [Cell(_MARGIN_WORDS[difference.margin])]),
    )


def _p_value_cell(value: float | None) -> Cell:
    if value is None:
        return Cell(NO_VALUE)
    return Cell("<0.001" if value < 0.001 else format_fixed(value, 3), value)


def verdict_cell(difference: Difference, metric: str, *, exploratory: bool = False) -> Cell:
    """Return `identical`, `A safer`, `B safer` or `no`; a dash without a difference or an adjusted p-value.

    For SR and clean success the word is `better`. `exploratory` is added where it says that policies differ. Without a
    verdict: `undecided`, or how many tasks it takes.
    """
    if difference.identical:
        return Cell("identical")
    if difference.p_adjusted is None or difference.difference is None:
        return Cell(NO_VALUE)
    if difference.tasks_needed is not None:
        return Cell(f"needs {difference.tasks_needed} tasks")
    if difference.undecided:
        return Cell("undecided")
    if difference.better is None:
        return Cell("no")
    emphasis: Emphasis = "total"
    word = "better" if metric in _SUCCESSES else "safer"
    kind = ", exploratory" if exploratory else ""
    return Cell(f"{'A' if difference.better == difference.first else 'B'} {word}{kind}", emphasis=emphasis)


def _standing_notes(comparison: Comparison) -> Iterator[str]:
    """Yield the notes below the table of values: how intervals and letters are made, and where tasks are few."""
    over = "" if comparison.paired else " Each task that all policies ran weighs the same."
    rates = "Wilson" if comparison.paired else "by the spread within tasks"
    few = ""
    if any(scope.tasks < LEAST_RESAMPLED_TASKS for scope in comparison.scopes):
        few = f", a dash below {LEAST_RESAMPLED_TASKS} tasks, of which it would be too narrow"
    yield (
        f"Intervals: {rates} for rates, one that holds for any values for VSI; by task: whole tasks resampled within "
        f"their suites{few}.{over}"
    )
    if any(metric.metric == "p_unsafe_given_success" for _, metric in _scoped_metrics(comparison)):
        both = comparison.paired and len(comparison.policies) == 2
        where = "pairs in which both succeeded" if both else "successes"
        yield f"Clean: success without a violation. P[U|S]: over {where}."
    if len(comparison.policies) > 2:
        yield "Policies that share a letter cannot be told apart with these episodes; that does not make them equal."
        yield "Best and worst are picked after the fact: letters allow for that, values and their intervals do not."
        if any(metric.metric == "sbu" for _, metric in _scoped_metrics(comparison)):
            yield "SBU has letters beside SR only, and for policies that succeed: who never succeeds has no SBU."


def _difference_notes(comparison: Comparison) -> Iterator[str]:
    """Yield the notes below the differences: identical pairs, verdicts, tests, unknown episodes, and warnings."""
    for first, second in comparison.identical:
        pairs = comparison.scopes[-1].pairs
        yield f"{first} and {second} are identical on all {pairs} pairs: success, safety and severity."
    yield from _verdict_notes(comparison)
    tests: dict[str, dict[str, None]] = {}
    differences = [item for _, metric in _scoped_metrics(comparison) for item in metric.differences]
    for _, metric in _scoped_metrics(comparison):
        for difference in metric.differences:
            tests.setdefault(difference.test, {})[_SHOWN[metric.metric].split()[0]] = None
    test_names = "; ".join(f"{test} ({', '.join(names)})" for test, names in tests.items())
    if any(
        ends is not None and p is not None and 0 in ends and is_significant(p, comparison.confidence)
        for item in differences
        for ends, p in ((item.ci, item.p_value), (item.ci_by_task, item.p_by_task))
    ):
        yield "An interval that ends at 0 beside a p below the level excludes 0."
    by_task = "" if comparison.sequential else "; by task: sign flips of the tasks' differences"
    yield f"Tests: {test_names}{by_task}. Rates in points."
    yield from _extreme_notes(comparison)
    yield from comparison.warnings


def _verdict_notes(comparison: Comparison) -> Iterator[str]:
    """Yield notes on which verdict is primary, what decides, where tasks are too few to decide, and what the margin
    means.
    """
    level = f"{format_compact(100 * (1 - comparison.confidence))} %"
    several = len(comparison.policies) > 2
    adjusted = " after adjustment for the pairs of policies (Holm)" if several else ""
    count = sum(len(metric.differences) for _, metric in _scoped_metrics(comparison) if not metric.primary)
    rest = f" The other {count} are exploratory, and not adjusted for their number." if count > 1 else ""
    yield f"{PRIMARY} The primary verdict.{rest}"
    tasks = [scope.tasks for scope in comparison.scopes if scope.metrics]
    if comparison.sequential:
        yield (
            f"Told apart: p at most {level}{adjusted}. It holds however often you look, for these tasks only. "
            "Look after whole rounds, with as many episodes of every task."
        )
        return
    which = "p by task" if max(tasks) > 1 else "p"
    one_task = "; with one task, p" if 1 in tasks and max(tasks) > 1 else ""
    yield (
        f"Told apart: {which} at most {level}{adjusted}{one_task}. Fixed in advance: looking again as episodes come "
        "makes wrong verdicts likelier; eval --until allows it."
    )
    if any(item.tasks_needed for _, metric in _scoped_metrics(comparison) for item in metric.differences):
        yield "Needs N tasks: fewer tell no policies apart by task, whatever they show."
    if comparison.margin is not None:
        margin = format_compact(100 * comparison.margin)
        yield (
            f"{_margin_text(comparison)}: a policy is not worse where both intervals, of the same tasks and by task, "
            f"exclude {margin} points ({margin} hundredths of VSI) to its disadvantage; both not worse = equivalent. "
            f"Open too where they differ in fewer than {least_tasks(comparison.confidence)} tasks, or in all alike: "
            "such tasks say little of others."
        )


def _extreme_notes(comparison: Comparison) -> Iterator[str]:
    """Yield, per primary difference with unknown episodes, its range if all of them were the worst or best for a side.

    Then why verdicts are undecided, with the most episodes that are unknown to one.
    """
    undecided = [
        item.unknown for _, metric in _scoped_metrics(comparison) for item in metric.differences if item.undecided
    ]
    if undecided:
        yield (
            f"Undecided: up to {max(undecided)} episodes crashed, were cut short or have no verdict, and could change "
            "the verdict if all were the worst, or the best, for one side. --allow-crashed decides without them."
        )
    for scope, metric in _scoped_metrics(comparison):
        for difference in metric.differences if metric.primary else ():
            if difference.extremes is None:
                continue
            low, high = (format_fixed(100 * end, 1) for end in difference.extremes)
            name = _SHOWN[metric.metric].split()[0]
            yield (
                f"{difference.first} − {difference.second}, {_scope_name(scope)}, {name}: {low} to {high} if all that "
                "crashed or has no verdict were the worst, or the best, for one side."
            )
