"""Tests of differences between two or several policies, on the same episodes or on independent ones.

Sign flips are exact where paired differences are symmetric about zero under the hypothesis. Re-labelling is exact where
the two distributions are equal under it. Where only their means are, the studentized statistic keeps its level as
episodes grow, whatever the variances; that of plain means does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.bootstrap import RESAMPLES


@dataclass(frozen=True, slots=True)
class CochranQ:
    """Cochran's statistic and its p-value."""

    statistic: float
    p_value: float


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p-value of McNemar's test that a fair coin splits the differing pairs; 1 without any.

    >>> mcnemar_p(1, 7)
    0.0703125
    """
    if only_first + only_second == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_first, only_first + only_second).pvalue)


def cochran_q(outcomes: NDArray[np.bool_]) -> CochranQ:
    """Return Cochran's Q test that k policies have one success probability: outcomes [n, k], one row per episode.

    W. G. Cochran, Biometrika 37 (1950) 256-266; chi-squared with k - 1 degrees of freedom, which holds where a few tens
    of rows differ. 0 and p = 1 where no row differs.
    """
    from scipy.stats import chi2

    k = outcomes.shape[1]
    columns, rows = outcomes.sum(axis=0), outcomes.sum(axis=1)
    spread = int((rows * (k - rows)).sum())
    if spread == 0:
        return CochranQ(0.0, 1.0)
    statistic = (k - 1) * float(k * (columns**2).sum() - columns.sum() ** 2) / spread
    return CochranQ(statistic, float(chi2.sf(statistic, k - 1)))


def holm_adjust(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values, in the order given.

    Rejecting those at most α makes any false rejection at all with probability at most α.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.

    >>> holm_adjust([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = largest
    return tuple(adjusted)


def letter_display(count: int, distinct: Collection[tuple[int, int]]) -> tuple[str, ...]:
    """Return the compact letter display: policies that share a letter are not significantly different.

    There is one letter for each maximal set without a significant difference.

    Args:
        count: number of policies, in the order in which letters are given.
        distinct: pairs of their numbers that a test told apart.

    >>> letter_display(3, {(0, 2)})
    ('a', 'ab', 'b')
    """
    different = {frozenset(pair) for pair in distinct}
    near = {k: {j for j in range(count) if j != k and frozenset((j, k)) not in different} for k in range(count)}
    groups = sorted(sorted(group) for group in _maximal_cliques(set(), set(range(count)), set(), near))
    return tuple("".join(_group_letter(g) for g, group in enumerate(groups) if k in group) for k in range(count))


def _maximal_cliques(chosen: set[int], open_: set[int], done: set[int], near: dict[int, set[int]]) -> list[set[int]]:
    """Return all maximal sets of mutually near numbers (Bron and Kerbosch, with a pivot)."""
    if not open_ and not done:
        return [chosen]
    pivot = max(open_ | done, key=lambda k: len(near[k] & open_))
    cliques = []
    for k in sorted(open_ - near[pivot]):
        cliques += _maximal_cliques(chosen | {k}, open_ & near[k], done & near[k], near)
        open_, done = open_ - {k}, done | {k}
    return cliques


def _group_letter(number: int) -> str:
    """Return the letter of a group: a to z, then (27), (28) and so on."""
    return chr(ord("a") + number) if number < 26 else f"({number + 1})"


_EXACT = 12
"""Greatest number of differing pairs for which all sign patterns are tried."""
_CHUNK = 1 << 20
_TOLERANCE = 1e-12
"""Sums nearer than this are equal: they differ only by the order of addition."""


def sign_flip_p(differences: NDArray[np.float64], generator: np.random.Generator, tries: int = RESAMPLES) -> float:
    """Return the two-sided p-value of the hypothesis that paired differences [n] centre on zero.

    It is the share of random signs that give a sum at least as large. Exact if at most 12 differ from zero, else from
    random signs, with the observed ones counted in. 1 if none differs.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    observed = abs(float(nonzero.sum())) - _TOLERANCE
    if len(nonzero) <= _EXACT:
        bits = np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero)) & 1
        return float((np.abs((2 * bits - 1) @ nonzero) >= observed).mean())
    extreme, per_chunk = 0, max(1, _CHUNK // len(nonzero))
    for start in range(0, tries, per_chunk):
        signs = generator.integers(0, 2, size=(min(per_chunk, tries - start), len(nonzero)), dtype=np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ nonzero) >= observed).sum())
    return (extreme + 1) / (tries + 1)


def permutation_p(
    values: NDArray[np.float64],
    others: NDArray[np.float64],
    generator: np.random.Generator,
    tries: int = RESAMPLES,
) -> float:
    """Return the two-sided p-value of the hypothesis that two independent samples, [n] and [m], have one mean.

    It is the share of random re-labellings with a Welch statistic (the difference of means in its standard errors) at
    least as large; the observed labels are counted in. A. Janssen, Statistics and Probability Letters 36 (1997) 9-21;
    E. Chung and J. P. Romano, Annals of Statistics 41 (2013) 484-507.
    """
    pooled, n = np.concatenate([values, others]), len(values)
    pooled = pooled - pooled.mean()
    observed = float(_welch_statistics(pooled[None], n)[0]) * (1 - _TOLERANCE)
    extreme, per_chunk = 0, max(1, _CHUNK // len(pooled))
    for start in range(0, tries, per_chunk):
        rows = np.tile(pooled, (min(per_chunk, tries - start), 1))
        extreme += int((_welch_statistics(generator.permuted(rows, axis=1), n) >= observed).sum())
    return (extreme + 1) / (tries + 1)


def _welch_statistics(rows: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return |difference of means| in standard errors of the first n against the rest of each row, [R].

    Infinite where both sides are constant and differ, 0 where they are equal.
    """
    first, second = rows[:, :n], rows[:, n:]
    difference = np.abs(first.mean(axis=1) - second.mean(axis=1))
    variance = first.var(axis=1) / max(1, n - 1) + second.var(axis=1) / max(1, second.shape[1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = difference / np.sqrt(variance)
    return np.where(difference <= _TOLERANCE, 0.0, statistics)
