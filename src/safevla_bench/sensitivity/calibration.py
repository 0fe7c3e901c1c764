"""Limits from the behavior of a reference policy: a quantile of the extremes that it reaches in its successes.

A library's force limits were chosen for one robot, simulator and controller. If any of these differs, even a policy
that solves the tasks as intended may exceed the limits in most successes; the limits then cannot distinguish policies.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.files import fill_template
from safevla_bench.judging.metrics import NOOP
from safevla_bench.judging.rates import StartMeans
from safevla_bench.judging.scores import ACTIVE, Scores
from safevla_bench.specs.loader import proportional_severe
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.stl.formula import has_placeholder
from safevla_bench.text import count_noun
from safevla_recorder.episode import Floats, Ints

SHOWN_PERCENT = (50, 75, 90, 95)  # percentiles of the extremes in the table of limits


@dataclass(frozen=True, slots=True)
class Calibration:
    """The extremes of one specification in the reference policy's successes, and the limit from their quantile.

    `extremes` [n] are sorted magnitudes in the specification's unit: for each successful episode, the smallest
    threshold that it would have satisfied. `value` is the quantile of `extremes`. `interval` is the 95 % interval of
    the quantile on these tasks; with too few episodes, an end is infinite. `floor` is the largest extreme of
    the policy `noop`, which does nothing; None if `noop` has no episodes.
    """

    spec: Spec
    policy: str
    quantile: float
    extremes: Floats
    tasks: int
    starts: int  # number of different initial states of the successes
    violated: int  # number of successes that exceed the library's threshold
    value: float
    interval: tuple[float, float]
    floor: float | None

    @property
    def limit(self) -> float:
        """`value`, rounded up to two significant figures; 0 if `value` is 0 or less."""
        # `value` is a quantile of the extremes that the reference policy reaches in its successes.
        return round_up(self.value)

    @property
    def severe(self) -> float | None:
        """`limit`, times the library's ratio of severe magnitude to threshold; None without a severe magnitude."""
        return proportional_severe(self.spec, self.limit)

    @property
    def obstacle(self) -> str | None:
        """The reason why `limit` does not replace the library's threshold; None if `limit` replaces it."""
        # `extremes` has one value for each success. `interval` is the 95 % interval of the quantile of `extremes`;
        # with too few successes, the upper end is infinite. `floor` is the largest extreme of `noop`; None = unknown.
        if not math.isfinite(self.interval[1]):
            do = "does" if len(self.extremes) == 1 else "do"
            starts = f" from {count_noun(self.starts, 'initial state')}" if self.starts < len(self.extremes) else ""
            problem = f"{count_noun(len(self.extremes), 'success', 'es')}{starts} {do} not suffice"
            needed = f"{episodes_needed(self.quantile)}{', each from another initial state' if starts else ''}"
            return f"{problem}: an upper bound of this quantile needs at least {needed}"
        if self.limit <= self.spec.threshold:
            return "this limit does not exceed the library's threshold"
        if self.floor is not None and self.limit <= self.floor:
            return f"fix the scene or the record first: a policy without motion reaches {self.floor:g} {self.spec.unit}"
        return None


def calibrate(
    scores: Scores, library: Library, *, policy: str | None = None, quantile: float = 0.95
) -> tuple[Calibration, ...]:
    """Calibrate each scored specification that has a threshold, and a margin in any success of the reference policy.

    `library` is the library that judged the scores; the result is in the library's order. `policy` is the reference
    policy; None = the only policy other than `noop`. The largest extreme of `noop` is the floor. Each limit is chosen
    so that the share `quantile` of the reference's successes satisfies it. Raises `RunError` if the quantile is not in
    [0.5, 1), or if the reference is ambiguous or never succeeds.
    """
    if not 0.5 <= quantile < 1:
        remedy = "Choose a quantile of at least 0.5 and below 1, such as 0.95."
        raise RunError(f"no limit follows from a quantile of {quantile:g}", remedy=remedy)
    reference = _find_reference(scores, policy)
    policies = np.array([name or "" for name in scores.policy])
    is_success = (policies == reference) & scores.success
    if not is_success.any():
        problem = f"{reference} never succeeds, so limits cannot be derived"
        raise RunError(problem, remedy="Use a policy that solves tasks.")
    tasks = np.array([f"{suite} {task}" for suite, task in zip(scores.benchmark, scores.task_id, strict=True)])
    calibrations = []
    for row, spec_column in enumerate(scores.specs):
        spec = library[spec_column.spec_id]
        # signal < threshold has rho = threshold - extreme; signal > -threshold has rho = threshold + extreme.
        magnitudes = spec.threshold - scores.rho[row]
        has_margin = (scores.state[row] == ACTIVE) & np.isfinite(magnitudes)
        has_threshold = spec_column.is_scored and not spec_column.binary and has_placeholder(spec.written_formula)
        is_used = has_margin & is_success
        if not has_threshold or not is_used.any():
            continue
        extremes, floors = np.sort(magnitudes[is_used]), magnitudes[has_margin & (policies == NOOP)]
        calibrations.append(
            Calibration(
                spec=spec,
                policy=reference,
                quantile=quantile,
                extremes=extremes,
                tasks=len(set(tasks[is_used])),
                starts=len(set(scores.start[is_used].tolist())),
                violated=int((extremes > spec.threshold).sum()),
                value=order_statistic(extremes, quantile),
                interval=quantile_interval(magnitudes[is_used], quantile, scores.start[is_used]),
                floor=float(floors.max()) if len(floors) else None,
            )
        )
    return tuple(calibrations)


def _find_reference(scores: Scores, policy: str | None) -> str:
    # Return the name of the reference policy. Raises `RunError` as in `calibrate`.
    names = sorted({name or "" for name in scores.policy})
    candidates = [name for name in names if name != NOOP]
    # If the user names a policy, any policy of the scores is accepted, even `noop`.
    if policy in names:
        return policy
    if policy is None and len(candidates) == 1:
        return candidates[0]
    problem = "it is not clear which policy is the reference" if policy is None else f"there is no policy {policy!r}"
    choice = f"Choose the reference with --policy: {', '.join(candidates)}."
    remedy = choice if candidates else "Calibrate with a run of a policy that solves the tasks as intended."
    raise RunError(problem, remedy=remedy)


def order_statistic(ordered: Floats, quantile: float) -> float:
    """Return the smallest value x in `ordered` such that at least the share `quantile` of all values is at most x.

    >>> order_statistic(np.arange(1.0, 101.0), 0.95)
    95.0
    """
    rank = math.ceil(quantile * len(ordered) - 1e-9)  # ranks start at 1; 1e-9 absorbs rounding errors
    return float(ordered[max(rank, 1) - 1])


def quantile_interval(values: Floats, quantile: float, starts: Ints | None = None) -> tuple[float, float]:
    """Return the 95 % interval of a population's quantile, from n ≥ 1 values; an end may be infinite. Values with equal
    `starts` [n] have the same initial state; None = all differ. Then the ends are the usual order statistics, which
    hold for any distribution (H. A. David and H. N. Nagaraja, Order Statistics, 7.1).
    """
    starts = np.arange(len(values)) if starts is None else starts

    def reaches(value: float, end: int) -> bool:
        # The interval of the share of the population up to `value` has a low end (0) and a high end (1).
        # Return whether the given end is at least `quantile`.
        interval = StartMeans.of((values <= value).astype(np.float64), starts).interval()
        assert interval is not None
        return interval[end] >= quantile

    candidates = [-math.inf, *np.unique(values).tolist(), math.inf]
    # If no other candidate reaches the quantile, the last one is the end: the share up to infinity is 1.
    low, high = (bisect_left(candidates[:-1], True, key=partial(reaches, end=end)) for end in (1, 0))
    return candidates[low], candidates[high]


def episodes_needed(quantile: float) -> int:
    """Return the smallest number of independent episodes with which `quantile_interval` has a finite upper end.

    >>> episodes_needed(0.95), episodes_needed(0.99)
    (72, 368)
    """
    # The upper end is finite if the probability that all n values lie below the quantile is at most 2.5 %.
    return math.ceil(math.log((1.0 - CONFIDENCE) / 2) / math.log(quantile))


def round_up(value: float) -> float:
    """Return a positive value rounded up to two significant figures; 0.0 for zero and negative values.

    >>> round_up(1379.2), round_up(0.0031), round_up(40.0)
    (1400.0, 0.0031, 40.0)
    """
    if value <= 0:
        return 0.0
    decimals = 1 - math.floor(math.log10(value))
    scaled = value * 10.0**decimals  # at least 10 and below 100
    rounded = math.ceil(scaled - 1e-9 * scaled)  # values of two significant digits are not raised
    return float(f"{rounded}e{-decimals}")


def format_limits(calibrations: Sequence[Calibration]) -> str:
    """Return the text of a file for `--rules`. A limit that replaces the library's threshold becomes a `[[limits]]`
    table; for any other limit, a comment gives the reason. Raises `RunError` if no limit replaces a threshold.
    """
    if all(calibration.obstacle for calibration in calibrations):
        remedy = "See the table of limits: record more episodes, choose another reference, or keep the library."
        raise RunError("the calibration gives no limit that can replace a threshold of the library", remedy=remedy)
    return fill_template(__package__, "limits.toml.jinja", {}, calibrations=calibrations)


def calibration_rows(calibrations: Sequence[Calibration]) -> list[dict[str, object]]:
    """Return each calibration as plain values, as printed by `safevla specs --calibrate --format json`. `limit` and
    `severe` are None if there is an `obstacle`; an infinite end of `interval` is None.
    """
    plain_fields = ("policy", "tasks", "violated", "floor", "quantile", "value", "obstacle")
    return [
        {
            "spec_id": calibration.spec.spec_id,
            "unit": calibration.spec.unit,
            "threshold": calibration.spec.threshold,
            "successes": len(calibration.extremes),
            **{f"p{share}": order_statistic(calibration.extremes, share / 100) for share in SHOWN_PERCENT},
            "largest": float(calibration.extremes[-1]),
            "interval": [end if math.isfinite(end) else None for end in calibration.interval],
            "limit": None if calibration.obstacle else calibration.limit,
            "severe": None if calibration.obstacle else calibration.severe,
            **{name: getattr(calibration, name) for name in plain_fields},
        }
        for calibration in calibrations
    ]
