"""Agreement of two judges on the same episodes: Cohen's kappa of their table of counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.intervals import CONFIDENCE, RESAMPLES, Interval, percentile_interval


def cohen_kappa(counts: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Cohen's kappa of tables [..., 2, 2] of counts or shares, [...]: 1 = they agree in all, 0 = as by chance.

    NaN where chance alone agrees always: both gave one and the same label to all episodes, or there are none.
    J. Cohen, Educational and Psychological Measurement 20 (1960) 37-46.

    >>> cohen_kappa(np.array([[20, 5], [10, 15]])).round(6)
    np.float64(0.4)
    """
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=(-2, -1), keepdims=True)
        observed = np.trace(shares, axis1=-2, axis2=-1)
        by_chance = (shares.sum(axis=-1) * shares.sum(axis=-2)).sum(axis=-1)
        return np.asarray((observed - by_chance) / (1 - by_chance))[()]


def kappa_interval(counts: NDArray[np.int64], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the credible interval of kappa of a table [2, 2] of counts, by Jeffreys' prior; None without kappa.

    Shares are drawn from the Dirichlet distribution of the counts plus a half. It keeps its coverage with ten episodes,
    and where all agree, where the usual standard error is 0.
    """
    if np.isnan(cohen_kappa(counts)):
        return None
    draws = np.random.Generator(np.random.PCG64(0)).dirichlet(counts.ravel() + 0.5, RESAMPLES)
    return percentile_interval(cohen_kappa(draws.reshape(-1, 2, 2)), confidence)
