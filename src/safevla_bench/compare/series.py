"""Runs in the order of a number in their names, such as training steps: four numbers of each, and its gains.

A gain is a run's SR or Safety minus that of the first run of its series, on the same episodes where both ran them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from safevla_bench.compare.comparison import Comparison, compare_where_possible
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.policy_results import PolicyResults, comparison_warnings
from safevla_bench.errors import RunError
from safevla_bench.judging.rates import METRICS, SAFETY, SBU, SR, VSI, Mean, Metric, Rate, severity_means
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.text import format_compact

_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[kKM](?![A-Za-z]))?")
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6}
_TRAINING = r"(?:steps?|ckpts?|checkpoints?|epochs?|iters?|iterations?|updates?)"
_BEFORE = re.compile(rf"(?:^|[^a-z]){_TRAINING}[^a-z0-9]*$", re.IGNORECASE)
_AFTER = re.compile(rf"^[^a-z0-9]*{_TRAINING}(?:$|[^a-z])", re.IGNORECASE)
NUMBERS = (SR, SAFETY, SBU, VSI)
"""The metrics of each run."""
GAINS = (SR, SAFETY)
"""Those that are compared with the first run of the series."""


@dataclass(frozen=True, slots=True)
class SeriesLabel:
    """The number in a run's name, and the text around it, which is the same in all runs of a series."""

    value: float
    before: str
    after: str

    @property
    def series(self) -> str:
        """The name of the series: the run's name with dots for the number.

        Empty for a name that is the number alone.
        """
        return f"{self.before}…{self.after}" if self.before or self.after else ""

    @property
    def is_training(self) -> bool:
        """True if the name is a number alone, or says that it counts training, as in `careful-step-1000`."""
        return not self.series or bool(_BEFORE.search(self.before) or _AFTER.search(self.after))


def read_label(name: str) -> SeriesLabel | None:
    """Return the last number of a name and the text around it; None for a name without a number.

    `k` and `M` after the number mean thousands and millions. A minus counts only if the name is the number alone.

    >>> read_label("careful-step-20k")
    SeriesLabel(value=20000.0, before='careful-step-', after='')
    >>> read_label("-0.5").value, read_label("base")
    (-0.5, None)
    """
    sign = -1.0 if name.startswith("-") else 1.0
    if sign < 0 and _NUMBER.fullmatch(name[1:]):
        return SeriesLabel(sign * _parse_number(name[1:]), "", "")
    numbers = list(_NUMBER.finditer(name))
    if not numbers:
        return None
    last = numbers[-1]
    return SeriesLabel(_parse_number(last.group()), name[: last.start()], name[last.end() :])


def _parse_number(text: str) -> float:
    plain = text.replace(",", "")
    return float(plain[:-1]) * _FACTORS[plain[-1]] if plain[-1] in _FACTORS else float(plain)


@dataclass(frozen=True, kw_only=True)
class SeriesPoint:
    """One run: its `NUMBERS`, each with its 95 % interval alone, and its gains over the first run.

    The intervals of gains hold for all gains of their curve together.
    """

    label: float
    policy: str
    n: int
    """Episodes that ran to their end."""
    numbers: Mapping[Metric, Rate | Mean]
    gains: Mapping[Metric, Difference]
    """Of SR and Safety; none of the first run, and none where the two cannot be compared."""

    @property
    def name(self) -> str:
        """The label as it is printed."""
        return format_compact(self.label)


@dataclass(frozen=True, kw_only=True)
class SeriesCurve:
    """The runs of one series in one suite, or in all pooled (None), by rising label."""

    series: str
    suite: str | None
    points: tuple[SeriesPoint, ...]
    paired: bool = True
    """True if every gain is of the same episodes on both sides."""
    confidence: float = CONFIDENCE
    """Of the interval of each gain."""


@dataclass(frozen=True, kw_only=True)
class SeriesComparison:
    """Curves by suite, then of all suites pooled for a series that has several; `warnings` are sentences beside."""

    curves: tuple[SeriesCurve, ...]
    warnings: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names of the series, in order of first appearance."""
        return tuple(dict.fromkeys(curve.series for curve in self.curves))

    @property
    def suites(self) -> tuple[str | None, ...]:
        """The suites, then None for all pooled where some series has several."""
        return tuple(dict.fromkeys(curve.suite for curve in self.curves))

    def select_suite(self, suite: str | None) -> list[SeriesCurve]:
        """Return the curves of one suite (None: of all pooled), in order of the series; [] if there are none."""
        return [curve for curve in self.curves if curve.suite == suite]

    @property
    def pooled(self) -> SeriesComparison:
        """The comparison with the last curve of each series alone: that of all its suites, or of its only suite."""
        return replace(self, curves=tuple({curve.series: curve for curve in self.curves}.values()))


def find_series(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return, in order, the results named as checkpoints of a training of which there are two or more; [] if none.

    A name counts if it is a number alone, or the number counts training (`step-1000`). What another number means, such
    as a version's, nobody can tell.
    """
    labels = [read_label(result.name) for result in results]
    sizes = Counter(label.series for label in labels if label and label.is_training)
    return [
        result
        for result, label in zip(results, labels, strict=True)
        if label and label.is_training and sizes[label.series] > 1
    ]


def compare_series(
    results: Sequence[PolicyResults],
    *,
    intervals: IntervalMethod = "default",
    protocols: Sequence[Mapping[str, object]] = (),
) -> SeriesComparison:
    """Order runs by the numbers in their names, and compare each with the first of its series.

    Args:
        results: one for each run; the text around the number tells series apart.
        intervals: the method of the 95 % intervals of mean severities.
        protocols: of the sources that state one; if any differ, no episodes are paired.

    Raises:
        RunError: a name without a number, a series of one run, one label twice, or no run of a series that shares a
            task with its first.
    """
    groups = _group_by_series(results)
    suites = [*dict.fromkeys(header.benchmark for result in results for header in result.headers), None]
    curves = [
        _make_curve(series, suite, members, intervals, protocols)
        for suite in suites
        for series, members in groups.items()
        if suite in _list_scopes(members)
    ]
    return SeriesComparison(
        curves=tuple(curves),
        warnings=tuple(dict.fromkeys(line for members in groups.values() for line in _warn(members, curves))),
    )


_Members = list[tuple[float, PolicyResults]]


def _group_by_series(results: Sequence[PolicyResults]) -> dict[str, _Members]:
    groups: dict[str, _Members] = {}
    for result in results:
        label = read_label(result.name)
        if label is None:
            remedy = "Name the run, such as 1000=runs/x, or leave it out."
            raise RunError(
                f"there is no number in the name {result.name!r}, which has no place in a series", remedy=remedy
            )
        groups.setdefault(label.series, []).append((label.value, result))
    for members in groups.values():
        members.sort(key=lambda member: member[0])
        _require_series(members)
    return groups


def _require_series(members: _Members) -> None:
    """Raise `RunError` if a series has one run, two runs of one label, or no further run of any task of its first."""
    names = [result.name for _, result in members]
    if len(members) < 2:
        remedy = "Name two runs or more alike but for the number: 1000=runs/a 2000=runs/b."
        raise RunError(f"{names[0]!r} is a series of one run", remedy=remedy)
    for (label, result), (next_label, other) in pairwise(members):
        if label == next_label:
            problem = f"two runs have the label {format_compact(label)}: {result.name!r} and {other.name!r}"
            raise RunError(problem, remedy="Give each its own number, or leave one out.")
    tasks = [set(result.tasks) for _, result in members]
    if not any(tasks[0] & others for others in tasks[1:]):
        problem = f"no run has a task in common with {names[0]!r}, the first of its series"
        raise RunError(problem, remedy="Roll all out on the same tasks: a difference of tasks is none of training.")


def _list_scopes(members: _Members) -> list[str | None]:
    suites = list(dict.fromkeys(header.benchmark for _, result in members for header in result.headers))
    return [*suites, None] if len(suites) > 1 else [*suites]


def _make_curve(
    series: str,
    suite: str | None,
    members: _Members,
    intervals: IntervalMethod,
    protocols: Sequence[Mapping[str, object]],
) -> SeriesCurve:
    present = [(label, result.select_suite(suite)) for label, result in members]
    present = [(label, result) for label, result in present if len(result)]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(GAINS) * (len(present) - 1))
    options = ComparisonOptions(metrics=tuple(metric.key for metric in GAINS), confidence=confidence)
    first = present[0][1]
    compared = [_compare_with_first(result, first, options, protocols) for _, result in present]
    return SeriesCurve(
        series=series,
        suite=suite,
        points=tuple(
            SeriesPoint(
                label=label,
                policy=result.name,
                n=int(result.is_counted.sum()),
                numbers=_measure_run(result, intervals),
                gains={METRICS[row.metric]: row.differences[0] for row in comparison.scopes[-1].metrics}
                if comparison
                else {},
            )
            for (label, result), comparison in zip(present, compared, strict=True)
        ),
        paired=all(comparison is None or comparison.paired for comparison in compared),
        confidence=confidence,
    )


def _compare_with_first(
    result: PolicyResults, first: PolicyResults, options: ComparisonOptions, protocols: Sequence[Mapping[str, object]]
) -> Comparison | None:
    if result is first:
        return None
    try:
        return compare_where_possible([result, first], options, protocols=protocols)[0]
    except RunError:
        return None


def _measure_run(result: PolicyResults, intervals: IntervalMethod) -> dict[Metric, Rate | Mean]:
    stopped = int(result.stopped_on_violation.sum())
    unknown = f"{stopped} stopped" if stopped else ""
    rates = {
        metric: Rate.without_value(unknown) if stopped and metric is not SAFETY else Rate.of_values(values)
        for metric in NUMBERS
        if metric.unit
        for values in [metric.values(result)]
    }
    return {**rates, VSI: severity_means(VSI.values(result)[None], intervals, unknown)[0]}


def _warn(members: _Members, curves: Sequence[SeriesCurve]) -> list[str]:
    results = [result for _, result in members]
    starts = [
        Counter((header.benchmark, header.task_id, header.init_state_index) for header in result.headers)
        for result in results
    ]
    warnings = list(comparison_warnings(results, 0, paired=True))
    if any(counted != starts[0] for counted in starts[1:]):
        warnings.insert(0, "The runs did not run the same episodes: part of what moves may be what was run.")
    elif not all(curve.paired for curve in curves if curve.points[0].policy == results[0].name):
        warnings.insert(0, "Gains are of independent episodes: the runs' episodes cannot be paired.")
    return warnings
