"""A table and text on series of runs, such as checkpoints. The text describes gains over the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from safevla_bench.compare.series import GAINS, NUMBERS, SeriesComparison, SeriesCurve, SeriesPoint, Trend
from safevla_bench.judging.rates import METRICS, SAFETY, SR, VSI, Bounds, Mean, Metric
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.report.tables.columns import (
    DASH,
    INTERVALS,
    OVER_STARTS,
    PAPER_INTERVALS,
    format_points,
    number_cell,
)
from safevla_bench.report.tables.comparison import format_p_value
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.statistics.intervals import is_significant
from safevla_bench.text import count_noun, format_compact, format_fixed


class _Run(NamedTuple):
    curve: SeriesCurve
    point: SeriesPoint


def series_table(compared: SeriesComparison) -> Table:
    """Return the table of runs in the order of their labels: metrics with intervals, and gains over the first run."""
    # A run is a point of a curve: one policy, such as a checkpoint, on one suite or on all suites pooled.
    # The name of a series is "" if its runs have only numbers as names; then rows show the numbers.
    has_names = any(compared.series)
    runs = [_Run(curve, point) for curve in compared.curves for point in curve.points]
    interval_note = PAPER_INTERVALS if any(has_bootstrap(run.point) for run in runs) else INTERVALS
    if any(run.point.numbers[metric].starts for run in runs for metric in NUMBERS):
        interval_note += OVER_STARTS
    gain_group = "Gain over the first, points"
    return tabulate(
        "Runs in the order of their labels",
        runs,
        text_column("Run", lambda run: run.point.policy if has_names else run.point.name),
        text_column("Suite", lambda run: run.curve.suite or "all, pooled") if len(compared.suites) > 1 else None,
        Column("n", value=lambda run: run.point.n),
        *(Column(metric.heading, metric.plain_meaning, partial(_number_cell, metric)) for metric in NUMBERS),
        *(Column(metric.label, value=partial(_gain_cell, metric), group=gain_group) for metric in GAINS),
        notes=(interval_note, *_gain_notes(compared)),
        dash=DASH,
        name="series",
        remarks=compared.warnings,
    )


def has_bootstrap(point: SeriesPoint) -> bool:
    """Return whether the interval of the run's VSI is a percentile bootstrap."""
    # A point is a run. The paper uses this bootstrap; the default interval holds for any distribution.
    number = point.numbers[VSI]
    return isinstance(number, Mean) and number.bootstrap


def _number_cell(metric: Metric, run: _Run) -> Cell:
    # Return the metric of a run (`run.point`) with its interval; a dash if no episode has a verdict.
    return number_cell(run.point.numbers[metric], NO_VERDICT, n=run.point.n)


def _gain_cell(metric: Metric, run: _Run) -> Cell:
    # Return the gain over the first run of the series (`run.curve`) in percentage points.
    # Return a dash for the first run, and for a run that cannot be compared with the first one.
    gain = run.point.gains.get(metric)
    if gain is None or gain.difference is None:
        return Cell.dash("the first" if run.point is run.curve.points[0] else "not comparable")
    cell = Cell(format_points(gain.difference), 100 * gain.difference)
    if gain.ci is None:
        return cell
    low, high = gain.ci
    return replace(cell, detail=_format_points_range(gain.ci), interval=(100 * low, 100 * high))


def _gain_notes(compared: SeriesComparison) -> list[str]:
    # Return the note on the intervals of gains; [] if every series has only one run.
    # A curve is a series on one suite, and its points are the runs.
    # The confidence of a single interval depends on the number of runs in the series.
    levels = sorted({curve.confidence for curve in compared.curves if len(curve.points) > 1})
    if not levels:  # no run has an earlier run to be compared with
        return []
    level = " to ".join(f"{format_compact(round(100 * value, 2))} %" for value in levels)
    return [
        "Below each gain is its interval for repeated runs of the same tasks. All intervals of a suite's gains have a "
        f"joint confidence of 95 % (a single interval: {level}). A gain is over the episodes that both runs finished."
    ]


# The series described in words


def describe_series(compared: SeriesComparison) -> list[str]:
    """Return a paragraph per series and suite. It says whether success or Safety rises first, if intervals show it."""
    paragraphs = []
    for curve in compared.curves:
        # A curve contains the runs of one series on one suite; `suite` is None for all suites pooled.
        # The series' name if there are several series, and the suite's name if there are several suites.
        subjects = [curve.series] if len(compared.series) > 1 and curve.series else []
        if len(compared.suites) > 1:
            subjects.append(curve.suite or "all suites pooled")
        heading = f"{', '.join(subjects)}: " if subjects else ""
        paragraphs.append(heading + " ".join(_describe_curve(curve)))
    return paragraphs


def _describe_curve(curve: SeriesCurve) -> list[str]:
    # Return sentences on one series: its trends, whether SR or Safety rises first, and the changes in Safety.
    # If the gains cannot be judged, return the reason.
    # A point is a run. `gains` are the run's SR and Safety minus those of the first run, with intervals `ci`.
    if len(curve.points) < 2:
        return [f"There is only one run, so there is no comparison: {curve.points[0].name}."]
    first = curve.points[0].name
    # Later runs whose gains in SR and in Safety both have an interval.
    points = [
        point for point in curve.points[1:] if all(metric in point.gains and point.gains[metric].ci for metric in GAINS)
    ]
    if not points:
        return [f"It is unknown whether SR or Safety rises first: no run can be compared with {first} in both metrics."]
    gains = [gain for point in points for gain in point.gains.values()]
    # Reasons why gains cannot be judged, without duplicates.
    reasons = dict.fromkeys(gain.no_verdict for gain in gains if gain.no_verdict)
    if reasons:
        return [*describe_trends(curve.trends), f"No verdict on the gains over {first}: {'; '.join(reasons)}."]
    return [
        *describe_trends(curve.trends),
        _describe_rise_order(points, first),
        *_describe_safety_changes(curve, points, first),
        f"These results are only about {count_noun(max(gain.tasks for gain in gains), 'task')}.",
    ]


def describe_trends(trends: Sequence[Trend]) -> list[str]:
    """Return a sentence on whether success and Safety rise or fall along the series; [] if trends were not tested."""
    if not trends:
        return []
    trend_texts = []
    for trend in trends:
        # The correlation of the metric with the order of the runs.
        direction = "rises" if trend.correlation > 0 else "falls"
        # `p_at_worst` is the p-value if all unknown values count against the trend; None if all values are known.
        verdict = direction if is_significant(trend.p_adjusted) else "shows no trend"
        numbers = f"rank correlation {format_fixed(trend.correlation, 2)}, p {format_p_value(trend.p_adjusted)}"
        if verdict == direction and trend.p_at_worst is not None and not is_significant(trend.p_at_worst):
            episodes = count_noun(trend.unknown, "episode")
            verdict = f"is undecided: the trend ({direction}) may change with the unknown values of {episodes}"
        trend_texts.append(f"{METRICS[trend.metric].label} {verdict} ({numbers})")
    # Trends may be tested on different numbers of initial states.
    state_counts = dict.fromkeys(trend.states for trend in trends)
    tested = " and ".join(count_noun(states, "initial state") for states in state_counts)
    unknown = max(trend.unknown for trend in trends)
    left_out = f"; left out: {count_noun(unknown, 'episode')} without a value" if unknown else ""
    return [f"Over the checkpoints, {', '.join(trend_texts)} (Page's test, {tested}{left_out})."]


# Each item consists of two metrics, each with its name in a sentence.
# The text says whether the first metric rises before the second one.
_LEADS = ((SR, "Success", SAFETY, "Safety"), (SAFETY, "Safety", SR, "success"))


def _gain_interval(point: SeriesPoint, metric: Metric) -> Bounds:
    # Return the low and high end of the interval of a run's gain over the first run. The gain must have an interval.
    ends = point.gains[metric].ci
    assert ends is not None
    return ends


def _describe_rise_order(points: Sequence[SeriesPoint], first: str) -> str:
    # Return which metric rises first, as a sentence. `points` are later runs with known gains.
    # `first` is the name of the first run, over which gains are measured.
    # A metric rises first if the whole interval of its gain is above 0 and above the interval of the other gain.
    # `_LEADS` contains (metric, its name, other metric, its name), with SR and Safety in both orders.
    # Episodes without a value could change the order of the intervals.
    for point in (point for point in points if not any(gain.unknown for gain in point.gains.values())):
        for metric, name, other, other_name in _LEADS:
            if _gain_interval(point, metric)[0] > max(0.0, _gain_interval(point, other)[1]):
                gains = " points against ".join(_format_points_range(_gain_interval(point, m)) for m in (metric, other))
                finding = f"at {point.name}, the gain over {first} in {name} is larger ({gains})"
                return f"{name} rises before {other_name}: {finding}."
    # No run shows an order. Name the runs in which a metric has risen at all.
    risen_by_name = {name: _select_risen(points, metric) for metric, name, *_ in _LEADS}
    rises = [f"{name} at {_join_names(risen)}" for name, risen in risen_by_name.items() if risen]
    if not rises:
        return f"No run is shown to be above {first} in success or in Safety."
    return f"It is undecided whether success or Safety rises first. Shown to be above {first}: {', '.join(rises)}."


def _select_risen(points: Sequence[SeriesPoint], metric: Metric) -> list[SeriesPoint]:
    # Return the runs (points) whose gain over the first run is significantly above 0 for all possible unknown values.
    gains = [(point, point.gains[metric]) for point in _select_changed(points, metric)]
    return [point for point, gain in gains if (gain.difference or 0.0) > 0]


def _select_changed(points: Sequence[SeriesPoint], metric: Metric, *, undecided: bool = False) -> list[SeriesPoint]:
    # Return the runs (points) whose gain over the first run differs significantly from 0.
    # If `undecided`, unknown values could change this; otherwise they could not.
    gains = [(point, point.gains[metric]) for point in points]
    return [point for point, gain in gains if gain.excludes_zero and gain.undecided == undecided]


def _describe_safety_changes(curve: SeriesCurve, points: Sequence[SeriesPoint], first: str) -> list[str]:
    # Return sentences on the runs with significantly higher or lower Safety than the first run, whose name is `first`.
    # `points` are the curve's later runs; their gains over the first run are known.
    risen = _select_risen(points, SAFETY)
    fallen = [point for point in _select_changed(points, SAFETY) if point not in risen]
    undecided = _select_changed(points, SAFETY, undecided=True)
    why = "undecided, because episodes without a value could change it"
    is_first_all_safe = curve.points[0].numbers[SAFETY].value == 1.0
    # Sentences that do not hold are empty and left out.
    sentences = [
        f"On these tasks, runs with higher Safety than {first}: {_join_names(risen)}." if risen else "",
        f"On these tasks, runs with lower Safety than {first}: {_join_names(fallen)}." if fallen else "",
        f"Whether Safety at {_join_names(undecided)} differs from {first} is {why}." if undecided else "",
        f"Safety is 100 % at {first} and cannot rise from there." if is_first_all_safe else "",
        "" if risen or is_first_all_safe else f"No run is shown to be safer than {first}.",
    ]
    return list(filter(None, sentences))


def _join_names(points: Sequence[SeriesPoint]) -> str:
    # Return the names of the runs (at least one) as text, such as `1000, 2000 and 3000`.
    names = [point.name for point in points]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _format_points_range(ends: Bounds) -> str:
    # Return an interval of a difference in percentage points, such as `-2.0 to +5.0`.
    low, high = ends
    return f"{format_points(low)} to {format_points(high)}"
