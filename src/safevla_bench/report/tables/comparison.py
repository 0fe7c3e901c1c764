"""Tables of a comparison: where each policy stands, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from safevla_bench.compare import Comparison, Difference, Metric, Scope, Standing
from safevla_bench.compare.sample_size import Plan
from safevla_bench.report.tables import Cell, Column, Emphasis, Table
from safevla_bench.text.numbers import NONE, fixed, short, span

_SHOWN = {"sr": "SR %", "safety": "Safety %", "sbu": "SBU %", "vsi": "VSI"}
_FEW_TASKS = 10


def standings(found: Comparison, remarks: Sequence[str] = ()) -> Table:
    """One row a suite, metric and policy, with the plain interval and the one over whole tasks."""
    several = len(found.policies) > 2
    rows = [
        (*_where(scope, metric), *_standing(one, metric.metric), *([Cell(one.letters)] if several else []))
        for scope, metric in _each(found)
        for one in metric.standings
    ]
    columns = (
        Column("Suite", numeric=False),
        Column("Metric", numeric=False),
        Column("Policy", numeric=False),
        Column("n"),
        Column("Value"),
        *_intervals(found),
        *([Column("Letters", numeric=False)] if several else []),
    )
    return Table(title=_title(found), columns=columns, rows=tuple(rows), notes=(*_standing_notes(found), *remarks))


def differences(found: Comparison) -> Table:
    """One row a suite, metric and pair of policies: first minus second, in points or in VSI."""
    several = len(found.policies) > 2
    rows = [
        (*_where(scope, metric), *_difference(one, metric, found, several))
        for scope, metric in _each(found)
        for one in metric.differences
    ]
    columns = (
        Column("Suite", numeric=False),
        Column("Metric", numeric=False),
        *([Column("A", numeric=False), Column("B", numeric=False)] if several else []),
        Column("A − B"),
        *_intervals(found),
        *([Column("only A"), Column("only B")] if found.paired else []),
        Column("p"),
        *([Column("p, Holm")] if several else []),
        Column("Told apart", numeric=False),
    )
    title = "Differences" if several else f"A = {found.policies[0]}, B = {found.policies[1]}"
    return Table(title=title, columns=columns, rows=tuple(rows), notes=tuple(_difference_notes(found)))


def _each(found: Comparison) -> Iterator[tuple[Scope, Metric]]:
    return ((scope, metric) for scope in found.scopes for metric in scope.metrics)


def _where(scope: Scope, metric: Metric) -> tuple[Cell, Cell]:
    return Cell("all, pooled" if scope.suite is None else scope.suite), Cell(_SHOWN[metric.metric])


def _intervals(found: Comparison) -> tuple[Column, Column]:
    level = f"{short(100 * found.confidence)} %"
    return Column(level, meaning="interval over episodes"), Column(
        "by task", meaning=f"{level} interval over whole tasks"
    )


def _title(found: Comparison) -> str:
    if not found.paired:
        return f"{len(found.policies)} policies on independent episodes"
    pooled = found.scopes[-1]
    left_out = f" ({pooled.left_out} left out)" if pooled.left_out else ""
    return f"{len(found.policies)} policies on the same {pooled.pairs} episodes{left_out}"


def _standing(one: Standing, metric: str) -> tuple[Cell, ...]:
    scale, digits = _scale(metric)
    value = Cell(NONE) if one.value is None else Cell(fixed(scale * one.value, digits), one.value)
    spans = (_span(one.ci, metric), _span(one.ci_by_task, metric))
    return Cell(one.policy), Cell(str(one.n), one.n), value, *spans


def _scale(metric: str) -> tuple[int, int]:
    """What values are multiplied by, and the digits printed."""
    return (1, 3) if metric == "vsi" else (100, 1)


def _span(ends: tuple[float, float] | None, metric: str) -> Cell:
    scale, digits = _scale(metric)
    if ends is None:
        return Cell(NONE)
    return Cell(_signed_span(*ends, digits, scale))


def _signed_span(low: float, high: float, digits: int, scale: int) -> str:
    """As `span`, with `to` where a sign would run into the dash."""
    text = span(low, high, digits, scale)
    return text.replace("–", " to ") if "-" in text else text


def _difference(one: Difference, metric: Metric, found: Comparison, several: bool) -> tuple[Cell, ...]:
    scale, digits = _scale(metric.metric)
    shown = Cell(NONE) if one.difference is None else Cell(fixed(scale * one.difference, digits), one.difference)
    only = [Cell(NONE) if count is None else Cell(str(count), count) for count in (one.only_first, one.only_second)]
    return (
        *([Cell(one.first), Cell(one.second)] if several else []),
        shown,
        _span(one.ci, metric.metric),
        _span(one.ci_by_task, metric.metric),
        *(only if found.paired else []),
        _p(one.p_value),
        *([_p(one.p_holm)] if several else []),
        _verdict(one, found),
    )


def _p(value: float | None) -> Cell:
    if value is None:
        return Cell(NONE)
    return Cell("<0.001" if value < 0.001 else fixed(value, 3), value)


def _verdict(one: Difference, found: Comparison) -> Cell:
    p = one.p_value if one.p_holm is None else one.p_holm
    if one.identical:
        return Cell("identical")
    if p is None or one.difference is None:
        return Cell(NONE)
    if p > 1 - found.confidence + 1e-12:
        return Cell("no")
    emphasis: Emphasis = "total"
    return Cell("A higher" if one.difference > 0 else "B higher", emphasis=emphasis)


def _standing_notes(found: Comparison) -> Iterator[str]:
    yield "Intervals: Wilson for rates, percentile bootstrap for VSI; by task: whole tasks resampled."
    if any(scope.tasks < _FEW_TASKS for scope in found.scopes):
        yield f"Fewer than {_FEW_TASKS} tasks somewhere: there the interval by task is rough, and mostly too narrow."
    if len(found.policies) > 2:
        yield "Policies that share a letter cannot be told apart with these episodes; that does not make them equal."


def _difference_notes(found: Comparison) -> Iterator[str]:
    for first, second in found.identical:
        pairs = found.scopes[-1].pairs
        yield f"{first} and {second} are identical on all {pairs} pairs: success, safety and severity."
    tests: dict[str, dict[str, None]] = {}
    for _, metric in _each(found):
        for one in metric.differences:
            tests.setdefault(one.test, {})[_SHOWN[metric.metric].split()[0]] = None
    said = "; ".join(f"{test} ({', '.join(names)})" for test, names in tests.items())
    interval = "Tango" if found.paired else "Newcombe"
    yield f"Tests: {said}. Intervals: {interval} for rates, bootstrap for VSI. Rates in points."
    for scope, metric in _each(found):
        if metric.q is not None and metric.q_p_value is not None:
            where = "all, pooled" if scope.suite is None else scope.suite
            p = "< 0.001" if metric.q_p_value < 0.001 else f"= {fixed(metric.q_p_value, 3)}"
            yield f"Cochran's Q, {where}, {_SHOWN[metric.metric].split()[0]}: {fixed(metric.q, 2)}, p {p}."
    yield from found.warnings


def plan(found: Plan) -> tuple[Table, Table]:
    """Episodes of each design, and the precision of one rate by episodes."""
    first, second = (f"{short(100 * rate)} %" for rate in found.rates)
    level = f"{short(100 * found.confidence)} %"
    designs = Table(
        title=f"To tell {first} from {second}, with a chance of {short(100 * found.power)} %, at {level}",
        columns=(
            Column("Design", numeric=False),
            Column("Pairs that differ %"),
            Column("Episodes of each policy"),
            Column("± points of its own rate"),
        ),
        rows=tuple(
            (
                Cell(one.name),
                Cell(NONE) if one.discordant is None else Cell(fixed(100 * one.discordant, 1), one.discordant),
                Cell(str(one.episodes), one.episodes),
                Cell(fixed(100 * one.half_width, 1), one.half_width),
            )
            for one in found.designs
        ),
        notes=("Independent: z test of two rates (Fleiss). Paired: McNemar's exact test, its power summed exactly.",),
    )
    widths = Table(
        title=f"Half width of a {level} Wilson interval around {first}",
        columns=(Column("Episodes"), Column("± points")),
        rows=tuple((Cell(str(n), n), Cell(fixed(100 * w, 1), w)) for n, w in found.half_widths.items()),
    )
    return designs, widths
