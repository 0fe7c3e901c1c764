"""Cumulative incidence of several ends of an observation, of which the first counts (Aalen and Johansen)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE, unit_mean_interval

Floats = NDArray[np.float64]
CENSORED = -1
"""The cause of an observation that was cut short before any end."""


@dataclass(frozen=True, slots=True)
class Incidence:
    """Shares of n observations that have ended by each cause, as steps at `times` [k], the first at 0, rising.

    `low` and `high` [k] are the interval of the first cause's share at each time alone.
    """

    n: int
    censored: int
    times: Floats
    shares: Floats
    """[causes, k]"""
    low: Floats
    high: Floats

    def at(self, time: float) -> int:
        """Return the index of the step that holds at a time of 0 or later."""
        return int(np.searchsorted(self.times, time, side="right")) - 1


def cumulative_incidence(
    times: Floats, causes: NDArray[np.int64], count: int, confidence: float = CONFIDENCE
) -> Incidence:
    """Return the cumulative incidence of each cause, and pointwise intervals of the first one's.

    O. O. Aalen and S. Johansen, Scandinavian Journal of Statistics 5 (1978) 141-150; the variance of J. J. Gaynor et
    al., Journal of the American Statistical Association 88 (1993) 400-409. The interval is Wilson's of the number of
    observations that would have that variance; without censoring this is their number, as for any proportion.

    Args:
        times: end of each observation, from 0 on, [n].
        causes: of each end, from 0 to `count` - 1, or `CENSORED`, [n]; ends come before censoring at the same time.
        count: number of causes.
        confidence: of the intervals.
    """
    n, ended = len(times), causes != CENSORED
    steps, index = np.unique(np.append(0.0, times[ended]), return_inverse=True)
    ends = np.array([np.bincount(index[1:][causes[ended] == k], minlength=len(steps)) for k in range(count)])
    at_risk = n - np.searchsorted(np.sort(times), steps).astype(np.float64)
    cut = np.searchsorted(np.sort(times[~ended]), steps)
    hazards, any_end = ends / np.maximum(at_risk, 1), ends.sum(axis=0)
    before = np.concatenate([[1.0], np.cumprod(1 - any_end / np.maximum(at_risk, 1))[:-1]])
    shares = np.minimum(1.0, np.cumsum(before * hazards, axis=1))
    variance = _first_variance(shares[0], before, ends[0], any_end, at_risk)
    bounds = [_wilson_bounds(*row, n, confidence) for row in zip(shares[0], variance, cut.tolist(), strict=True)]
    low, high = np.array(bounds).T
    return Incidence(n, int((~ended).sum()), steps, shares, low, high)


def _first_variance(
    share: Floats, before: Floats, ends: NDArray[np.int64], any_end: NDArray[np.int64], at_risk: Floats
) -> Floats:
    """Return the variance of the first cause's share at each step, [k]: sums over the steps j up to each."""
    left = at_risk - any_end
    hazard = np.divide(any_end, at_risk * left, out=np.zeros_like(at_risk), where=left > 0)  # else nothing comes later
    mixed = np.divide(before * ends, at_risk**2, out=np.zeros_like(at_risk), where=at_risk > 0)
    own = np.divide(before * mixed * (at_risk - ends), at_risk, out=np.zeros_like(at_risk), where=at_risk > 0)
    squares = share**2 * np.cumsum(hazard) - 2 * share * np.cumsum(hazard * share) + np.cumsum(hazard * share**2)
    products = share * np.cumsum(mixed) - np.cumsum(mixed * share)
    return np.asarray(np.maximum(0.0, squares + np.cumsum(own) - 2 * products))


def _wilson_bounds(share: float, variance: float, cut: int, n: int, confidence: float) -> tuple[float, float]:
    spread = share * (1 - share)
    effective = min(float(n), spread / variance) if variance > 0 and spread > 0 else float(n - cut)
    if effective <= 0:
        return 0.0, 1.0
    interval = unit_mean_interval(share * effective, effective, confidence)
    assert interval is not None
    return interval.low, interval.high
