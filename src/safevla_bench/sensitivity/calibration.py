"""Limits from what a reference policy does: the extremes over its successes, and their quantile.

A library's forces were chosen for one robot, simulator and controller. On another the policy that solves the tasks as
they are meant to be solved may exceed them in most successes, and then they tell nothing apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.judging.scores import ACTIVE, Scores
from safevla_bench.signals import parse_formula
from safevla_bench.specs.loader import proportional_severe
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.stl.formula import has_placeholder
from safevla_recorder.episode import Bools, Floats

_RESAMPLES = 2000
_LEAST_RESAMPLED_TASKS = 30
"""Fewest tasks whose resamples say something of other tasks; with ten that differ they miss the quantile in 23 %."""
SHOWN_PERCENT = (50, 75, 90, 95)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The extremes of one specification over a reference's successes, and the limit at a quantile.

    `extremes` [n] are sorted magnitudes in the specification's unit: the least threshold that each episode would have
    met. `interval` bounds the quantile at 95 %; its end is infinite where the episodes are too few. `floor` is the
    largest extreme of a policy that does nothing, None without one.
    """

    spec: Spec
    policy: str
    quantile: float
    extremes: Floats
    tasks: int
    violated: int
    """Successes that exceed the library's own threshold."""
    value: float
    interval: tuple[float, float]
    floor: float | None

    @property
    def is_bounded(self) -> bool:
        """True if there are enough episodes for an upper end of the interval."""
        return math.isfinite(self.interval[1])

    @property
    def interval_name(self) -> str:
        """The interval in words: with few tasks it says nothing of others."""
        return "95 % interval" + (" on these tasks" if self.tasks < _LEAST_RESAMPLED_TASKS else "")

    @property
    def limit(self) -> float:
        """The quantile, rounded up to two figures; 0 for a quantile of 0 or less."""
        return round_up(self.value)

    @property
    def severe(self) -> float | None:
        """The severe magnitude for `limit`: its ratio to the threshold is the library's.

        None if the library has none.
        """
        return proportional_severe(self.spec, self.limit)

    @property
    def obstacle(self) -> str | None:
        """The reason why `limit` does not replace the library's threshold; None where it does."""
        if not self.is_bounded:
            needed = episodes_needed(self.quantile)
            return f"{len(self.extremes)} successes do not bound this quantile from above: {needed} would"
        if self.limit <= self.spec.threshold:
            return "the library's threshold is not below it"
        if self.floor is not None and self.limit <= self.floor:
            return f"doing nothing reaches {self.floor:g} {self.spec.unit}: mend the scene or the record first"
        return None


def calibrate(
    scores: Scores,
    library: Library,
    *,
    policy: str | None = None,
    quantile: float = 0.95,
    idle: str = "noop",
) -> tuple[Calibration, ...]:
    """Return the calibration of each scored specification with a threshold in which the reference has a margin.

    Args:
        scores: of episodes judged by `library`.
        library: whose thresholds are measured; its order is that of the result.
        policy: the reference; None = the only one beside `idle`.
        quantile: of the reference's successes that are to be safe by each clause.
        idle: the policy that does nothing, whose extremes are the floor; it may have no episode.

    Raises:
        RunError: the quantile is below 0.5 or not below 1, the reference is not clear, or it never succeeds.
    """
    if not 0.5 <= quantile < 1:
        remedy = "Choose one from 0.5 to below 1, such as 0.95."
        raise RunError(f"a quantile of {quantile:g} makes no limit", remedy=remedy)
    reference = _find_reference(scores, policy, idle)
    policies = np.array([name or "" for name in scores.policy])
    chosen = (policies == reference) & scores.success
    if not chosen.any():
        raise RunError(f"{reference} has no success to learn from", remedy="Take a policy that solves the tasks.")
    calibrations = (
        _calibrate_spec(scores, column, library[spec.spec_id], reference, chosen, policies == idle, quantile)
        for column, spec in enumerate(scores.specs)
        if spec.is_scored and not spec.binary and has_placeholder(parse_formula(library[spec.spec_id].stl))
    )
    return tuple(calibration for calibration in calibrations if calibration is not None)


def _find_reference(scores: Scores, policy: str | None, idle: str) -> str:
    """Return the policy to learn from: `policy`, else the only policy beside `idle`; "" is the unnamed policy."""
    names = sorted({name or "" for name in scores.policy})
    candidates = [name for name in names if name != idle]
    if policy is not None and policy in names:
        return policy
    if policy is None and len(candidates) == 1:
        return candidates[0]
    there = f"Name one with --policy: {', '.join(candidates)}."
    remedy = there if candidates else "Name a run of a policy that does the tasks as it should."
    raise RunError(
        "it is not clear which policy to learn from" if policy is None else f"there is no policy {policy!r}",
        remedy=remedy,
    )


def _calibrate_spec(
    scores: Scores, column: int, spec: Spec, policy: str, chosen: Bools, idle: Bools, quantile: float
) -> Calibration | None:
    """Return the calibration of one specification over the `chosen` episodes; None if none of them has a finite
    margin.
    """
    # rho = threshold - extreme for an upper bound, and threshold + extreme for a lower one at -threshold.
    magnitude = spec.threshold - scores.rho[column]
    judged = (scores.state[column] == ACTIVE) & np.isfinite(magnitude)
    rows = np.flatnonzero(judged & chosen)
    if not len(rows):
        return None
    tasks = [f"{scores.benchmark[row]} {scores.task_id[row]}" for row in rows]
    floors = magnitude[judged & idle]
    extremes = np.sort(magnitude[rows])
    return Calibration(
        spec=spec,
        policy=policy,
        quantile=quantile,
        extremes=extremes,
        tasks=len(set(tasks)),
        violated=int((extremes > spec.threshold).sum()),
        value=order_statistic(extremes, quantile),
        interval=quantile_interval(magnitude[rows], tasks, quantile),
        floor=float(floors.max()) if len(floors) else None,
    )


def order_statistic(ordered: Floats, quantile: float) -> float:
    """Return the least of the sorted values that at least this share of them does not exceed; there must be one.

    >>> order_statistic(np.arange(1.0, 101.0), 0.95)
    95.0
    """
    return float(ordered[max(math.ceil(quantile * len(ordered) - 1e-9), 1) - 1])


def quantile_interval(values: Floats, tasks: Sequence[str], quantile: float) -> tuple[float, float]:
    """Return the 95 % interval of a quantile, of values [n ≥ 1] with their tasks [n]; infinite if unbounded.

    The order statistics l and u with P(l <= B < u) >= 0.95, B ~ Binomial(n, quantile), which hold on these
    tasks for any distribution (H. A. David and H. N. Nagaraja, Order Statistics, 7.1). From 30 tasks on the interval is
    widened to that of resampled tasks, as other tasks may differ.
    """
    from scipy.special import bdtr

    ordered, n = np.sort(values), len(values)
    tail = (1.0 - CONFIDENCE) / 2
    chances = bdtr(np.arange(n + 1), n, quantile)  # P(B <= k)
    first, last = np.searchsorted(chances, [tail, 1.0 - tail]) + [0, 1]
    low = float(ordered[first - 1]) if first >= 1 else -math.inf
    high = float(ordered[last - 1]) if last <= n else math.inf
    names = sorted(set(tasks))
    if len(names) < _LEAST_RESAMPLED_TASKS:
        return low, high
    groups = [np.asarray(values)[np.array(tasks) == name] for name in names]
    draws = np.random.Generator(np.random.PCG64(0)).integers(len(groups), size=(_RESAMPLES, len(groups)))
    resampled = [order_statistic(np.sort(np.concatenate([groups[k] for k in draw])), quantile) for draw in draws]
    ends = np.quantile(resampled, [tail, 1.0 - tail], method="inverted_cdf")
    return min(low, float(ends[0])), max(high, float(ends[1]))


def episodes_needed(quantile: float) -> int:
    """Return the fewest independent episodes whose largest value bounds a quantile from above, at 95 %.

    >>> episodes_needed(0.95), episodes_needed(0.99)
    (72, 368)
    """
    return math.ceil(math.log((1.0 - CONFIDENCE) / 2) / math.log(quantile))


def round_up(value: float) -> float:
    """Return a positive value rounded up to two significant figures; 0.0 for zero and negative values.

    >>> round_up(1379.2), round_up(0.0031), round_up(40.0)
    (1400.0, 0.0031, 40.0)
    """
    if value <= 0:
        return 0.0
    decimals = 1 - math.floor(math.log10(value))
    scaled = value * 10.0**decimals
    rounded = math.ceil(scaled - 1e-9 * scaled)
    return float(f"{rounded}e{-decimals}")


def format_limits(calibrations: Sequence[Calibration]) -> str:
    """Return a file for `--rules`: a `[[limits]]` table for each limit that replaces the library's.

    The others are comments that say why not. Raises `RunError` without a limit to replace.
    """
    if all(calibration.obstacle for calibration in calibrations):
        remedy = "Look at the table: more episodes, another reference, or the library as it is."
        raise RunError("no limit is to be replaced", remedy=remedy)
    head = "# Limits from the successes of a reference policy. Judge by them: safevla score RUN --rules THIS_FILE"
    return "\n\n".join([head, *map(_format_limit, calibrations)]) + "\n"


def _format_limit(calibration: Calibration) -> str:
    spec, (low, high), n = calibration.spec, calibration.interval, len(calibration.extremes)
    if calibration.obstacle:
        return f"# {spec.spec_id}: {calibration.obstacle}"
    source = (
        f"quantile {calibration.quantile:g} of {n} successes of {calibration.policy} on {calibration.tasks} tasks: "
        f"{calibration.value:.4g} {spec.unit}, {calibration.interval_name} {low:.4g} to {high:.4g}"
    )
    severe = [] if calibration.severe is None else [f"severe = {calibration.severe:g}"]
    quoted = source.replace("\\", "\\\\").replace('"', '\\"')
    lines = [f'spec_id = "{spec.spec_id}"', f"threshold = {calibration.limit:g}", *severe, f'source = "{quoted}"']
    return "\n".join(["[[limits]]", *lines])


def calibration_rows(calibrations: Sequence[Calibration]) -> list[dict[str, object]]:
    """Return each calibration as plain values, as `safevla specs --calibrate --format json` prints them.

    `limit` and `severe` are None where there is an `obstacle`; an infinite end of the interval is None.
    """
    return [
        {
            "spec_id": calibration.spec.spec_id,
            "unit": calibration.spec.unit,
            "threshold": calibration.spec.threshold,
            "policy": calibration.policy,
            "successes": len(calibration.extremes),
            "tasks": calibration.tasks,
            "violated": calibration.violated,
            "floor": calibration.floor,
            **{f"p{share}": order_statistic(calibration.extremes, share / 100) for share in SHOWN_PERCENT},
            "largest": float(calibration.extremes[-1]),
            "quantile": calibration.quantile,
            "value": calibration.value,
            "interval": [end if math.isfinite(end) else None for end in calibration.interval],
            "limit": None if calibration.obstacle else calibration.limit,
            "severe": None if calibration.obstacle else calibration.severe,
            "obstacle": calibration.obstacle,
        }
        for calibration in calibrations
    ]
