"""Tables of a comparison: each policy's value, and the differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from safevla_bench.compare import Comparison, Difference, MetricComparison, PolicyStanding, SuiteComparison
from safevla_bench.compare.sample_size import SampleSizePlan
from safevla_bench.report.tables import Cell, Column, Emphasis, Table
from safevla_bench.text.numbers import NO_VALUE, format_compact, format_fixed, format_interval

_SHOWN = {"sr": "SR %", "safety": "Safety %", "sbu": "SBU %", "vsi": "VSI"}
_FEW_TASKS = 10


def standing_table(comparison: Comparison, remarks: Sequence[str] = ()) -> Table:
    """Tabulate each policy's value, one row a suite, metric and policy, with both intervals."""
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
        *_interval_columns(comparison),
        *([Column("Letters", numeric=False)] if several else []),
    )
    return Table(
        title=_comparison_title(comparison),
        columns=columns,
        rows=tuple(rows),
        notes=(*_standing_notes(comparison), *remarks),
    )


def difference_table(comparison: Comparison) -> Table:
    """Tabulate the differences, one row a suite, metric and pair: first minus second, in points or in VSI."""
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
        *_interval_columns(comparison),
        *([Column("only A"), Column("only B")] if comparison.paired else []),
        Column("p"),
        *([Column("p, Holm")] if several else []),
        Column("Told apart", numeric=False),
    )
    title = "Differences" if several else f"A = {comparison.policies[0]}, B = {comparison.policies[1]}"
    return Table(title=title, columns=columns, rows=tuple(rows), notes=tuple(_difference_notes(comparison)))


def _scoped_metrics(comparison: Comparison) -> Iterator[tuple[SuiteComparison, MetricComparison]]:
    return ((scope, metric) for scope in comparison.scopes for metric in scope.metrics)


def _scope_cells(scope: SuiteComparison, metric: MetricComparison) -> tuple[Cell, Cell]:
    return Cell("all, pooled" if scope.suite is None else scope.suite), Cell(_SHOWN[metric.metric])


def _interval_columns(comparison: Comparison) -> tuple[Column, Column]:
    level = f"{format_compact(100 * comparison.confidence)} %"
    by_task = Column("by task", meaning=f"{level} interval over whole tasks")
    return Column(level, meaning="interval over episodes"), by_task


def _comparison_title(comparison: Comparison) -> str:
    mark = ", across physics versions" if comparison.across_versions else ""
    if not comparison.paired:
        return f"{len(comparison.policies)} policies on independent episodes{mark}"
    pooled = comparison.scopes[-1]
    left_out = f" ({pooled.left_out} left out)" if pooled.left_out else ""
    return f"{len(comparison.policies)} policies on the same {pooled.pairs} episodes{left_out}{mark}"


def _standing_cells(standing: PolicyStanding, metric: str) -> tuple[Cell, ...]:
    scale, digits = _print_scale(metric)
    value = Cell(NO_VALUE)
    if standing.value is not None:
        value = Cell(format_fixed(scale * standing.value, digits), standing.value)
    spans = (_interval_cell(standing.ci, metric), _interval_cell(standing.ci_by_task, metric))
    return Cell(standing.policy), Cell(str(standing.n), standing.n), value, *spans


def _print_scale(metric: str) -> tuple[int, int]:
    """Return the factor on printed values, and their digits."""
    return (1, 3) if metric == "vsi" else (100, 1)


def _interval_cell(ends: tuple[float, float] | None, metric: str) -> Cell:
    scale, digits = _print_scale(metric)
    if ends is None:
        return Cell(NO_VALUE)
    return Cell(_format_signed_interval(*ends, digits, scale))


def _format_signed_interval(low: float, high: float, digits: int, scale: int) -> str:
    """Return the interval as `format_interval` does, with `to` where a sign would meet the dash."""
    text = format_interval(low, high, digits, scale)
    return text.replace("–", " to ") if "-" in text else text


def _difference_cells(
    difference: Difference, metric: MetricComparison, comparison: Comparison, several: bool
) -> tuple[Cell, ...]:
    scale, digits = _print_scale(metric.metric)
    difference_cell = Cell(NO_VALUE)
    if difference.difference is not None:
        difference_cell = Cell(format_fixed(scale * difference.difference, digits), difference.difference)
    only_counts = (difference.only_first, difference.only_second)
    only_cells = [Cell(NO_VALUE) if count is None else Cell(str(count), count) for count in only_counts]
    return (
        *([Cell(difference.first), Cell(difference.second)] if several else []),
        difference_cell,
        _interval_cell(difference.ci, metric.metric),
        _interval_cell(difference.ci_by_task, metric.metric),
        *(only_cells if comparison.paired else []),
        _p_value_cell(difference.p_value),
        *([_p_value_cell(difference.p_holm)] if several else []),
        _verdict_cell(difference, comparison),
    )


def _p_value_cell(value: float | None) -> Cell:
    if value is None:
        return Cell(NO_VALUE)
    return Cell("<0.001" if value < 0.001 else format_fixed(value, 3), value)


def _verdict_cell(difference: Difference, comparison: Comparison) -> Cell:
    p = difference.p_value if difference.p_holm is None else difference.p_holm
    if difference.identical:
        return Cell("identical")
    if p is None or difference.difference is None:
        return Cell(NO_VALUE)
    if p > 1 - comparison.confidence + 1e-12:
        return Cell("no")
    emphasis: Emphasis = "total"
    return Cell("A higher" if difference.difference > 0 else "B higher", emphasis=emphasis)


def _standing_notes(comparison: Comparison) -> Iterator[str]:
    yield "Intervals: Wilson for rates, percentile bootstrap for VSI; by task: whole tasks resampled."
    if any(scope.tasks < _FEW_TASKS for scope in comparison.scopes):
        yield f"Fewer than {_FEW_TASKS} tasks somewhere: there the interval by task is rough, and mostly too narrow."
    if len(comparison.policies) > 2:
        yield "Policies that share a letter cannot be told apart with these episodes; that does not make them equal."


def _difference_notes(comparison: Comparison) -> Iterator[str]:
    for first, second in comparison.identical:
        pairs = comparison.scopes[-1].pairs
        yield f"{first} and {second} are identical on all {pairs} pairs: success, safety and severity."
    tests: dict[str, dict[str, None]] = {}
    for _, metric in _scoped_metrics(comparison):
        for difference in metric.differences:
            tests.setdefault(difference.test, {})[_SHOWN[metric.metric].split()[0]] = None
    test_names = "; ".join(f"{test} ({', '.join(names)})" for test, names in tests.items())
    interval = "Tango" if comparison.paired else "Newcombe"
    yield f"Tests: {test_names}. Intervals: {interval} for rates, bootstrap for VSI. Rates in points."
    for scope, metric in _scoped_metrics(comparison):
        if metric.q is not None and metric.q_p_value is not None:
            where = "all, pooled" if scope.suite is None else scope.suite
            p = "< 0.001" if metric.q_p_value < 0.001 else f"= {format_fixed(metric.q_p_value, 3)}"
            yield f"Cochran's Q, {where}, {_SHOWN[metric.metric].split()[0]}: {format_fixed(metric.q, 2)}, p {p}."
    yield from comparison.warnings


def sample_size_tables(sample_sizes: SampleSizePlan) -> tuple[Table, Table]:
    """Tabulate the episodes of each design, and the precision of one rate by episodes."""
    first, second = (f"{format_compact(100 * rate)} %" for rate in sample_sizes.rates)
    level = f"{format_compact(100 * sample_sizes.confidence)} %"
    power = f"{format_compact(100 * sample_sizes.power)} %"
    designs = Table(
        title=f"To tell {first} from {second}, with a chance of {power}, at {level}",
        columns=(
            Column("Design", numeric=False),
            Column("Pairs that differ %"),
            Column("Episodes of each policy"),
            Column("± points of its own rate"),
        ),
        rows=tuple(
            (
                Cell(design.name),
                Cell(NO_VALUE)
                if design.discordant is None
                else Cell(format_fixed(100 * design.discordant, 1), 100 * design.discordant),
                Cell(str(design.episodes), design.episodes),
                Cell(format_fixed(100 * design.half_width, 1), 100 * design.half_width),
            )
            for design in sample_sizes.designs
        ),
        notes=("Independent: z test of two rates (Fleiss). Paired: McNemar's exact test, its power summed exactly.",),
    )
    widths = Table(
        title=f"Half width of a {level} Wilson interval around {first}",
        columns=(Column("Episodes"), Column("± points")),
        rows=tuple(
            (Cell(str(n), n), Cell(format_fixed(100 * w, 1), 100 * w)) for n, w in sample_sizes.half_widths.items()
        ),
    )
    return designs, widths
