"""Series of runs, ordered by a number in their names, such as training steps: each run's four metrics, and its gains.

A gain is a run's SR or Safety minus that of the first run in the series, on the same episodes if possible.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress, pairwise

import msgspec
import numpy as np

from safevla_bench.compare.comparison import compare_where_possible
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.pairs import number_distinct, pair_episodes
from safevla_bench.compare.policy_results import PolicyResults, Protocols, comparison_warnings
from safevla_bench.errors import RunError
from safevla_bench.judging.metrics import describe_uneven
from safevla_bench.judging.rates import METRICS, SAFETY, SBU, SR, VSI, Mean, Metric, Rate, bounded_means
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.statistics.significance import holm_adjust, page_trend
from safevla_bench.text import format_compact
from safevla_recorder.episode import Floats

_NUMBER = re.compile(r"(?:(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[kKM](?![A-Za-z]))?")
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6}
_TRAINING_WORDS = r"(?:steps?|ckpts?|checkpoints?|epochs?|iters?|iterations?|updates?)"
_TRAINING_BEFORE = re.compile(rf"(?:^|[^a-z]){_TRAINING_WORDS}[^a-z0-9]*$", re.IGNORECASE)
_TRAINING_AFTER = re.compile(rf"^[^a-z0-9]*{_TRAINING_WORDS}(?:$|[^a-z])", re.IGNORECASE)
_EPOCH = re.compile(r"((?:^|[^a-z])epochs?[^a-z0-9]*)\d+", re.IGNORECASE)
NUMBERS = (SR, SAFETY, SBU, VSI)  # the metrics of each run
GAINS = (SR, SAFETY)  # the metrics that are compared with the first run of the series


@dataclass(frozen=True, slots=True)
class SeriesLabel:
    """The number in a run's name, and the text before and after the number; all runs of a series share this text."""

    value: float
    before: str
    after: str

    @property
    def series(self) -> str:
        """The name of the series: the run's name with `…` for the number; empty if the name is only a number."""
        return f"{self.before}…{self.after}" if self.before or self.after else ""

    @property
    def is_training(self) -> bool:
        """True if the name is only a number, or says that the number counts training, as in `careful-step-1000`."""
        # The patterns find words such as `step` or `epoch` next to the number.
        return not self.series or bool(_TRAINING_BEFORE.search(self.before) or _TRAINING_AFTER.search(self.after))


def read_label(name: str) -> SeriesLabel | None:
    """Return the last number of a name and the text around it; None for a name without a number.

    `k` and `M` after the number mean thousands and millions. A minus sign counts only if the name is only a number.

    >>> read_label("careful-step-20k")
    SeriesLabel(value=20000.0, before='careful-step-', after='')
    >>> read_label("-0.5").value, read_label("base")
    (-0.5, None)
    """
    # If the name is only a negative number, there is no text around the number.
    sign = -1.0 if name.startswith("-") else 1.0
    if sign < 0 and _NUMBER.fullmatch(name[1:]):
        return SeriesLabel(sign * _parse_number(name[1:]), "", "")
    numbers = list(_NUMBER.finditer(name))
    if not numbers:
        return None
    last = numbers[-1]
    before = name[: last.start()]
    if _TRAINING_BEFORE.search(before):
        # In `epoch=3-step=4000`, the epoch follows from the step, and is not a part of the series' name.
        before = _EPOCH.sub(r"\1…", before)
    return SeriesLabel(_parse_number(last.group()), before, name[last.end() :])


def _parse_number(text: str) -> float:
    # Returns the value of a match of `_NUMBER`, such as `1,000` or `20k`.
    plain = text.replace(",", "")
    return float(plain[:-1]) * _FACTORS[plain[-1]] if plain[-1] in _FACTORS else float(plain)


@dataclass(frozen=True, kw_only=True)
class SeriesPoint:
    """One run: its metrics `NUMBERS`, each with a separate 95 % interval, and its gains over the first run.

    The intervals of all gains in a series hold simultaneously.
    """

    label: float
    policy: str
    n: int  # number of episodes that ran to their end
    numbers: Mapping[Metric, Rate | Mean]
    gains: Mapping[Metric, Difference]
    """Gains of SR and Safety; empty for the first run, and if the run cannot be compared with the first."""

    @property
    def name(self) -> str:
        # The run's number as text; `label` is the number in the run's name, such as training steps.
        return format_compact(self.label)


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Page's trend test of one metric over ordered checkpoints, on initial states that all checkpoints finished."""

    metric: str
    states: int
    correlation: float
    """Spearman's rank correlation of the metric with the order of checkpoints, averaged over initial states."""
    p_adjusted: float  # two-sided p-value, adjusted for testing both SR and Safety (Holm)
    unknown: int = 0  # number of planned episodes without a value; the test omits such episodes at all checkpoints
    p_at_worst: float | None = None
    """The adjusted p-value if unknown values count against the trend; 1 for a reversed trend. Null if all are known."""


@dataclass(frozen=True, kw_only=True)
class SeriesCurve:
    """The runs of one series, by ascending label, in one suite or in all suites pooled (`suite` None)."""

    series: str
    suite: str | None
    points: tuple[SeriesPoint, ...]
    paired: bool = True  # True if every gain compares the same episodes of both runs
    confidence: float = CONFIDENCE  # confidence of the interval of each gain
    trends: tuple[Trend, ...] = ()  # trends of the metrics `GAINS`; empty if episodes are not paired


@dataclass(frozen=True, kw_only=True)
class SeriesComparison:
    """The curves of each suite, followed by a curve of all suites pooled for each series with several suites."""

    curves: tuple[SeriesCurve, ...]
    warnings: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        # The name of each series once, in the order of the curves.
        return tuple(dict.fromkeys(curve.series for curve in self.curves))

    @property
    def suites(self) -> tuple[str | None, ...]:
        """The suites, followed by None (all suites pooled) if some series has several suites."""
        return tuple(dict.fromkeys(curve.suite for curve in self.curves))

    def select_suite(self, suite: str | None) -> list[SeriesCurve]:
        """Return the curves of one suite (None = all suites pooled), in order of the series; [] if there are none."""
        return [curve for curve in self.curves if curve.suite == suite]

    @property
    def pooled(self) -> SeriesComparison:
        """The comparison with one curve per series: the curve of all suites pooled, or of the only suite."""
        last_curves = {curve.series: curve for curve in self.curves}  # the curve of all suites is a series' last curve
        return replace(self, curves=tuple(last_curves.values()))


def find_series(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return the results whose names mark them as checkpoints of a series of at least two runs, in the same order.

    A name marks a checkpoint if it is only a number, or says that the number counts training (`step-1000`). Other
    numbers may mean anything, such as a version.
    """
    # A label is the number in a run's name with the text around it; None without a number. `label.series` is that text.
    labels = [read_label(result.name) for result in results]
    run_counts = Counter(label.series for label in labels if label and label.is_training)
    is_checkpoint = (label and label.is_training and run_counts[label.series] > 1 for label in labels)
    return list(compress(results, is_checkpoint))


def compare_series(
    results: Sequence[PolicyResults], *, intervals: IntervalMethod = "default", protocols: Protocols = ()
) -> SeriesComparison:
    """Order runs by the numbers in their names, and compare each run with the first of its series.

    The text around the number identifies the series. `intervals` is the method for the intervals of mean severities. If
    any of the sources' `protocols` differ, no episodes are paired. Raises `RunError` for a name without a number, a
    series of one run, a duplicate label, or a series in which no run has a task in common with the first run.
    """
    # Text that identifies the series -> its runs as pairs (number, results), ordered by the number
    groups = _group_by_series(results)
    suites_by_series = {series: list(dict.fromkeys(suite for _, result in members for suite, _ in result.tasks))
              for series, members in groups.items()}  # fmt: skip
    # Curves of each suite, then curves of all suites pooled (None) for the series with several suites
    curves = [
        _make_curve(series, suite, members, intervals, protocols)
        for suite in [*dict.fromkeys(suite for result in results for suite, _ in result.tasks), None]
        for series, members in groups.items()
        if suite in suites_by_series[series] or (suite is None and len(suites_by_series[series]) > 1)
    ]
    return SeriesComparison(
        curves=tuple(curves),
        # The dictionary's keys are the distinct warnings in order.
        warnings=tuple(dict.fromkeys(line for members in groups.values() for line in _list_warnings(members, curves))),
    )


_Members = list[tuple[float, PolicyResults]]  # the label and the results of each run


def _group_by_series(results: Sequence[PolicyResults]) -> dict[str, _Members]:
    # Returns the runs of each series with their labels, sorted by label. Raises the errors of `compare_series`.
    groups: dict[str, _Members] = {}
    for result in results:
        label = read_label(result.name)
        if label is None:
            problem = f"policy name {result.name!r} contains no number, so it cannot be placed in a series"
            raise RunError(problem, remedy="Name the run by a number, such as `1000=runs/x`, or leave it out.")
        groups.setdefault(label.series, []).append((label.value, result))
    for members in groups.values():
        # A member is a pair: the number in the run's name, and the run's results.
        # `tasks` lists the (suite, task) of each episode.
        members.sort(key=lambda member: member[0])
        first_name, first_tasks = members[0][1].name, set(members[0][1].tasks)
        if len(members) < 2:
            remedy = "Name at least two runs that differ only in the number: `1000=runs/a 2000=runs/b`."
            raise RunError(f"{first_name!r} is a series of one run", remedy=remedy)
        for (label_value, result), (next_value, other) in pairwise(members):
            if label_value == next_value:
                problem = f"two runs have the label {format_compact(next_value)}: {result.name!r} and {other.name!r}"
                raise RunError(problem, remedy="Give each run a different number, or leave one out.")
        if not any(first_tasks & set(result.tasks) for _, result in members[1:]):
            problem = f"no run has a task in common with the first run of its series, {first_name!r}"
            remedy = "Roll out all runs on the same tasks, since other tasks may explain the difference."
            raise RunError(problem, remedy=remedy)
    return groups


def _make_curve(
    series: str, suite: str | None, members: _Members, intervals: IntervalMethod, protocols: Protocols
) -> SeriesCurve:
    # Returns the curve of one series in a suite (None = all suites), without the runs that have no episode there.
    # The intervals of all gains hold simultaneously (Bonferroni).
    # `members` are pairs of the number in a run's name and the run's results, in ascending order.
    in_suite = [(label, result.select_suite(suite)) for label, result in members]
    runs = [(label, result) for label, result in in_suite if len(result)]
    # The error level is divided by the number of gains: one for each metric of `GAINS` in each run except the first.
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(GAINS) * (len(runs) - 1))
    options = ComparisonOptions(metrics=tuple(metric.key for metric in GAINS), confidence=confidence)
    first, points, paired = runs[0][1], [], True
    for label, result in runs:
        gains: dict[Metric, Difference] = {}
        if result is not first:
            with suppress(RunError):  # if the run cannot be compared with the first, it has no gains
                comparison, unpaired = compare_where_possible([result, first], options, protocols=protocols)
                # The last scope covers all compared suites. It has one difference per metric: this run minus the first.
                gains = {METRICS[row.metric]: row.differences[0] for row in comparison.scopes[-1].metrics}
                paired = paired and not unpaired
        n, numbers = int(result.is_counted.sum()), _measure_run(result, intervals)
        points.append(SeriesPoint(label=label, policy=result.name, n=n, numbers=numbers, gains=gains))
    trends = tuple(measure_trends([result for _, result in runs], protocols))
    return SeriesCurve(
        series=series, suite=suite, points=tuple(points), paired=paired, confidence=confidence, trends=trends
    )


def measure_trends(results: Sequence[PolicyResults], protocols: Protocols = ()) -> Iterator[Trend]:
    """Yield the trends of SR and Safety over at least three ordered runs; nothing if the runs cannot be paired, or
    if planned episodes are missing.

    Each initial state gets the mean of its seeds. The first test omits episodes without a value. In the second test,
    such episodes count against the trend. If the metric rises, they get 1 in the first half of the runs, then 0.
    """
    if len(results) < 3 or any(protocol != protocols[0] for protocol in protocols):
        return
    if any(result.uncounted for result in results):
        return
    try:
        pairs = pair_episodes(results)
    except RunError:
        return
    # The distinct initial states, and for each episode the index of its state
    states, state_indices = number_distinct(key.state for key in pairs.keys)

    def test_trend(values: Floats) -> tuple[int, float, float]:
        # Returns the number of initial states, the rank correlation and the p-value; `values` is [runs, episodes].
        # An episode counts if its value is known in all runs.
        is_known = ~np.isnan(values).any(axis=0)
        counts = np.bincount(state_indices[is_known], minlength=len(states))
        sums = np.array([np.bincount(state_indices[is_known], row[is_known], len(states)) for row in values])
        # [states, runs]: the mean over the episodes of each initial state that counts
        means = (sums[:, counts > 0] / counts[counts > 0]).T
        return len(means), *page_trend(means)

    # Safety has no trend if a specification did not judge all episodes, and SR has none if a violation stopped some.
    uneven = describe_uneven((result.judged_clauses, result.missing_clauses) for result in results)
    stopped = any(result.stopped_on_violation.any() for result in results)
    metrics = [metric for metric in GAINS if not (uneven if metric.needs_verdict else stopped)]
    # For each metric, [runs, episodes]: each run's value in each paired episode, NaN if unknown
    values_by_metric = [pairs.metric_values(range(len(results)), metric.key) for metric in metrics]
    tests = [test_trend(values) for values in values_by_metric]
    # If the metric rises, unknown values become 1 in the first half of the runs, and 0 in the second half.
    # If the metric falls, unknown values become 0 in the first half of the runs, and 1 in the second half.
    is_late = np.arange(len(results))[:, None] >= len(results) / 2
    worst_tests = list(tests)
    for k, values in enumerate(values_by_metric):
        if np.isnan(values).any():
            worst_tests[k] = test_trend(np.where(np.isnan(values), is_late == (tests[k][1] < 0), values))
    # Holm's adjustment for testing several metrics
    adjusted, at_worst = (holm_adjust([p for *_, p in outcomes]) for outcomes in (tests, worst_tests))
    for k, (metric, (state_count, correlation, _)) in enumerate(zip(metrics, tests, strict=True)):
        unknown, worst_correlation = int(np.isnan(values_by_metric[k]).sum()), worst_tests[k][1]
        p_at_worst = 1.0 if worst_correlation * correlation <= 0 else at_worst[k]  # 1 if the trend is reversed
        yield Trend(
            metric=metric.key,
            states=state_count,
            correlation=correlation,
            p_adjusted=adjusted[k],
            unknown=unknown,
            p_at_worst=p_at_worst if unknown else None,
        )


def _measure_run(result: PolicyResults, intervals: IntervalMethod) -> dict[Metric, Rate | Mean]:
    # Returns the value of each metric of `NUMBERS`. If a violation stopped an episode, only Safety is known.
    stopped_count = int(result.stopped_on_violation.sum())
    reason = f"{stopped_count} stopped" if stopped_count else ""  # the reason why a metric has no value
    # `starts` are the episodes' initial states; intervals treat episodes with the same state as dependent.
    numbers: dict[Metric, Rate | Mean] = {}
    for metric in NUMBERS:
        if metric is VSI:  # a mean, not a rate; `[None]` makes the values the only row of a table
            numbers[metric] = bounded_means(VSI.values(result)[None], result.starts, intervals, reason)[0]
        elif stopped_count and metric is not SAFETY:
            numbers[metric] = Rate.without_value(reason)
        else:
            numbers[metric] = Rate.of_values(metric.values(result), result.starts)
    return numbers


def _list_warnings(members: _Members, curves: Sequence[SeriesCurve]) -> list[str]:
    # Returns the caveats of one series as sentences. `curves` contains the curves of all series.
    # `members` are pairs of the number in a run's name and the run's results.
    # A curve begins with its series' first run, unless that run has no episode in the suite.
    results = [result for _, result in members]
    # For each run, how many episodes begin in each initial state of each task
    start_counts = [
        Counter((header.benchmark, header.task_id, header.init_state_index) for header in result.headers)
        for result in results
    ]
    warnings = list(comparison_warnings(results, left_out=0, paired=True))
    if any(run_starts != start_counts[0] for run_starts in start_counts[1:]):
        warnings.insert(0, "The runs have different episodes, which may explain part of the changes.")
    elif not all(curve.paired for curve in curves if curve.points[0].policy == results[0].name):
        warnings.insert(0, "Gains compare independent episodes, because the runs' episodes cannot be paired.")
    return warnings


def measure_order(results: Sequence[PolicyResults]) -> list[Trend]:
    """Return the trends over the policies if all are different checkpoints of one training run; otherwise []."""
    ordered = find_series(results)
    labels = [label for result in ordered if (label := read_label(result.name))]  # every checkpoint has a label
    # Some policy is not a checkpoint, or the checkpoints belong to several training runs.
    if len(ordered) < len(results) or len({label.series for label in labels}) != 1:
        return []
    if len({label.value for label in labels}) < len(labels):  # equal numbers, such as in step-1000, step-1k
        return []
    order = sorted(range(len(labels)), key=lambda k: labels[k].value)
    return list(measure_trends([ordered[k] for k in order]))
