"""Runs of a series, such as checkpoints, in a table and in words: the four numbers, and what rises first.

The words follow from intervals of gains over the first run, which hold together. What no interval shows is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from safevla_bench.compare.difference import Difference, least_tasks
from safevla_bench.compare.series import SeriesComparison, SeriesCurve, SeriesPoint
from safevla_bench.report.tables.table import (
    PAPER_INTERVALS,
    Cell,
    Column,
    Table,
    add_notes,
    dash_cell,
    mean_cell,
    rate_cell,
)
from safevla_bench.text import format_compact, format_fixed

_INTERVALS = "Below each value its 95 % interval: Wilson for proportions; for VSI one that holds for any severities."


def series_table(compared: SeriesComparison) -> Table:
    """Return the table of runs: the numbers of each with intervals, and its gains over the first run of its series.

    Rows are in the order of the runs' labels; a column of suites is there with more than one.
    """
    several, suites = any(compared.series), len(compared.suites) > 1
    columns = (
        Column("Run", numeric=False),
        *([Column("Suite", numeric=False)] if suites else []),
        Column("n"),
        Column("SR %", "success rate"),
        Column("Safety %", "share of episodes that break no limit"),
        Column("SBU %", "succeeded but unsafe, of all episodes"),
        Column("VSI", "mean severity of the worst violation, 0 to 1"),
        Column("SR", group="Gain over the first, points"),
        Column("Safety", group="Gain over the first, points"),
    )
    rows = tuple(
        (
            Cell(point.policy if several else point.name),
            *([Cell(curve.suite or "all, pooled")] if suites else []),
            *_point_cells(point, is_first=not k),
        )
        for curve in compared.curves
        for k, point in enumerate(curve.points)
    )
    bootstrap = any(point.vsi.bootstrap for curve in compared.curves for point in curve.points)
    table = Table(
        title="Runs in the order of their labels",
        columns=columns,
        rows=rows,
        name="series",
        notes=(PAPER_INTERVALS if bootstrap else _INTERVALS,),
        remarks=compared.warnings,
    )
    return add_notes(table, *_gain_notes(compared))


def _point_cells(point: SeriesPoint, *, is_first: bool) -> tuple[Cell, ...]:
    numbers = [rate_cell(rate, "no verdict", n=point.n) for rate in (point.sr, point.safety, point.sbu)]
    gains = [_gain_cell(gain, is_first) for gain in (point.sr_gain, point.safety_gain)]
    return Cell(str(point.n), point.n), *numbers, mean_cell(point.vsi, "no verdict", n=point.n), *gains


def _gain_cell(gain: Difference | None, is_first: bool) -> Cell:
    if gain is None or gain.difference is None:
        return dash_cell("the first" if is_first else "not comparable")
    value = 100 * gain.difference
    if gain.ci is None:
        return Cell(_format_points(gain.difference), value)
    low, high = gain.ci
    return Cell(_format_points(gain.difference), value, _format_span(gain), interval=(100 * low, 100 * high))


def _gain_notes(compared: SeriesComparison) -> list[str]:
    if not any(len(curve.points) > 1 for curve in compared.curves):
        return []
    levels = sorted({curve.confidence for curve in compared.curves if len(curve.points) > 1})
    level = " to ".join(f"{format_compact(round(100 * value, 2))} %" for value in dict.fromkeys(levels))
    return [
        "Below each gain its interval if the same tasks were run again: all gains of a suite hold together at 95 % "
        f"(each at {level}). A gain is over the episodes that both runs finished."
    ]


# In words


def describe_series(compared: SeriesComparison) -> list[str]:
    """Return a paragraph per series and suite on what rises first, as far as the intervals of the gains show it."""
    return [_describe_curve(curve, compared) for curve in compared.curves]


def _describe_curve(curve: SeriesCurve, compared: SeriesComparison) -> str:
    whose = curve.series if len(compared.series) > 1 else ""
    where = (curve.suite or "all suites pooled") if len(compared.suites) > 1 else ""
    head = ", ".join(part for part in (whose, where) if part)
    return (f"{head}: " if head else "") + " ".join(describe_first_rise(curve))


def describe_first_rise(curve: SeriesCurve) -> list[str]:
    """Return sentences on whether success or Safety rises first over the first run, as far as intervals show it.

    They also say at which runs Safety is above or below the first, and whether this holds on other tasks. One sentence
    says why if there is nothing to compare.
    """
    if len(curve.points) < 2:
        return [f"One run alone ({curve.points[0].name}): nothing to compare it with."]
    first = curve.points[0].name
    comparable = [point for point in curve.points[1:] if _ends(point.sr_gain) and _ends(point.safety_gain)]
    if not comparable:
        return [f"What rises first cannot be said: no run can be compared with {first} in both SR and Safety."]
    return [
        _describe_order(comparable, first),
        *_describe_safety(curve, comparable, first),
        *_describe_like_tasks(comparable, curve),
    ]


def _ends(gain: Difference | None) -> tuple[float, float] | None:
    return None if gain is None else gain.ci


_Gain = Callable[[SeriesPoint], Difference | None]


def _sr(point: SeriesPoint) -> Difference | None:
    return point.sr_gain


def _safety(point: SeriesPoint) -> Difference | None:
    return point.safety_gain


@dataclass(frozen=True, slots=True)
class _Lead:
    """One of the two numbers, the other, and how to read the gains of each."""

    name: str
    other: str
    mine: _Gain
    theirs: _Gain


_LEADS = (_Lead("Success", "Safety", _sr, _safety), _Lead("Safety", "success", _safety, _sr))


def _describe_order(points: Sequence[SeriesPoint], first: str) -> str:
    """Return a sentence on which of success and Safety rises first.

    The first to rise is the number whose interval lies above 0 and above the other's, at the earliest run. Otherwise
    the sentence says that nothing is shown to rise, or that the order is open.
    """
    leads = [(ahead, lead) for lead in _LEADS if (ahead := _select_ahead(points, lead.mine, lead.theirs))]
    if leads:
        ahead, lead = min(leads, key=lambda leader: leader[0][0].label)
        return (
            f"{lead.name} rises {_name_order(ahead, lead, points)}: at {_list_labels(ahead)} it has gained more on "
            f"{first} than {lead.other} has ({f'at {ahead[0].name} ' if len(ahead) > 1 else ''}"
            f"{_describe_gains(ahead[0], lead)})."
        )
    risen = [(above[0], lead) for lead in _LEADS if (above := _select_risen(points, lead.mine))]
    if not risen:
        return f"No run is shown to be above {first} in success or in Safety: nothing can be said of what rises first."
    point, lead = min(risen, key=lambda riser: riser[0].label)
    return (
        f"{lead.name} is shown to be above {first} first at {point.name}, but by no more than {lead.other} may be "
        f"({_describe_gains(point, lead)}): which rises first is open."
    )


def _name_order(ahead: Sequence[SeriesPoint], lead: _Lead, points: Sequence[SeriesPoint]) -> str:
    """Return the words after `rises`: `before X`, `more than X`, or `and X is not shown to`, where X is the other
    number.

    `before` only where the other number is shown to rise, and only later than at the first run of `ahead`.
    """
    rises = _select_risen(points, lead.theirs)
    if not rises:
        return f"and {lead.other} is not shown to"
    return f"{'before' if rises[0].label > ahead[0].label else 'more than'} {lead.other}"


def _describe_gains(point: SeriesPoint, lead: _Lead) -> str:
    return f"{_format_span(lead.mine(point))} points against {_format_span(lead.theirs(point))}"


def _select_ahead(points: Sequence[SeriesPoint], mine: _Gain, theirs: _Gain) -> list[SeriesPoint]:
    return [point for point in _select_risen(points, mine) if _low(mine(point)) > _high(theirs(point))]


def _select_risen(points: Sequence[SeriesPoint], gain: _Gain) -> list[SeriesPoint]:
    return [point for point in points if _low(gain(point)) > 0]


def _low(gain: Difference | None) -> float:
    ends = _ends(gain)
    assert ends is not None
    return ends[0]


def _high(gain: Difference | None) -> float:
    ends = _ends(gain)
    assert ends is not None
    return ends[1]


def _describe_safety(curve: SeriesCurve, points: Sequence[SeriesPoint], first: str) -> list[str]:
    """Return sentences on the runs where Safety is above or below that of the first run, which is named `first`.

    Others say that the first run is 100 % safe or, if this is not so, that no run is shown to be safer than the first.
    """
    risen = _select_risen(points, _safety)
    fallen = [point for point in points if _high(point.safety_gain) < 0]
    full = curve.points[0].safety.value == 1.0
    return [
        *([f"On these tasks Safety is above that of {first} at {_list_labels(risen)}."] if risen else []),
        *([f"On these tasks Safety is below that of {first} at {_list_labels(fallen)}."] if fallen else []),
        *([f"Safety is 100 % at {first} and cannot rise from there."] if full else []),
        *([] if risen or full else [f"No run is shown to be safer than {first}."]),
    ]


def _describe_like_tasks(points: Sequence[SeriesPoint], curve: SeriesCurve) -> list[str]:
    """Return at most one sentence on whether SR is ahead of Safety on other tasks like these, or too few tasks to tell.

    [] with enough tasks if SR is ahead of Safety at no run.
    """
    tasks = max(gain.tasks for point in points for gain in (point.sr_gain, point.safety_gain) if gain)
    few = least_tasks(curve.confidence)
    if tasks < few:
        noun = "one task" if tasks == 1 else f"{tasks} tasks"
        return [f"This is of {noun} alone; of other tasks like these it would take {few} or more to tell."]
    ahead = _select_ahead(points, _sr, _safety)
    if not ahead:
        return []
    like = [point for point in ahead if _has_risen_more_by_task(point)]
    return [f"On tasks like these too at {_list_labels(like)}." if like else "On tasks like these it is not shown."]


def _has_risen_more_by_task(point: SeriesPoint) -> bool:
    mine, theirs = _ends_by_task(point.sr_gain), _ends_by_task(point.safety_gain)
    return bool(mine and theirs and mine[0] > max(0.0, theirs[1]))


def _ends_by_task(gain: Difference | None) -> tuple[float, float] | None:
    if gain is None or gain.difference is None:
        return None
    return gain.ci_by_task or (gain.difference, gain.difference)


def _list_labels(points: Sequence[SeriesPoint]) -> str:
    names = [point.name for point in points]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _format_span(gain: Difference | None) -> str:
    ends = _ends(gain)
    return "" if ends is None else f"{_format_points(ends[0])} to {_format_points(ends[1])}"


def _format_points(share: float) -> str:
    text = format_fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")
    return text if share <= 0 or text.strip("0.") == "" else f"+{text}"
