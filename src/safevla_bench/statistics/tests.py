"""Tests of whether policies differ: two or several, on the same episodes or on independent ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Q:
    """Cochran's statistic and its p-value."""

    statistic: float
    p_value: float


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value of McNemar's test: are the pairs that differ split like the throws of a fair coin?

    >>> mcnemar(1, 7)
    0.0703125
    """
    if only_first + only_second == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_first, only_first + only_second).pvalue)


def barnard(count: int, n: int, other: int, m: int) -> float:
    """Barnard's unconditional exact two-sided p-value for two independent proportions, pooled variance."""
    from scipy.stats import barnard_exact

    return _unconditional(barnard_exact, count, n, other, m)


def boschloo(count: int, n: int, other: int, m: int) -> float:
    """Boschloo's: Barnard's idea on Fisher's p-value."""
    from scipy.stats import boschloo_exact

    return _unconditional(boschloo_exact, count, n, other, m)


def _unconditional(test: object, count: int, n: int, other: int, m: int) -> float:
    """1 where both samples are all alike: no table is less extreme, and scipy has no statistic for it."""
    assert callable(test)
    if count + other in (0, n + m):
        return 1.0
    return min(1.0, float(test([[count, other], [n - count, m - other]]).pvalue))


def cochran_q(outcomes: NDArray[np.bool_]) -> Q:
    """Cochran's Q test that k policies have one success chance: outcomes [n, k], a row an episode that all ran.

    W. G. Cochran, Biometrika 37 (1950) 256-266; chi-squared with k - 1 degrees of freedom, which holds where a few tens
    of rows differ. 0 and p = 1 where no row differs.
    """
    from scipy.stats import chi2

    k = outcomes.shape[1]
    columns, rows = outcomes.sum(axis=0), outcomes.sum(axis=1)
    spread = int((rows * (k - rows)).sum())
    if spread == 0:
        return Q(0.0, 1.0)
    statistic = (k - 1) * float(k * (columns**2).sum() - columns.sum() ** 2) / spread
    return Q(statistic, float(chi2.sf(statistic, k - 1)))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """p-values adjusted so that the chance of any false difference among them stays at the level.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = largest
    return tuple(adjusted)


def letters(count: int, apart: Collection[tuple[int, int]]) -> tuple[str, ...]:
    """Compact letter display: policies that share a letter were not told apart, those that share none were.

    One letter for each largest set in which no two were told apart.

    Args:
        count: how many policies, in the order in which letters are to be given.
        apart: pairs of their numbers that a test told apart.

    >>> letters(3, {(0, 2)})
    ('a', 'ab', 'b')
    """
    different = {frozenset(pair) for pair in apart}
    near = {k: {j for j in range(count) if j != k and frozenset((j, k)) not in different} for k in range(count)}
    groups = sorted(sorted(group) for group in _cliques(set(), set(range(count)), set(), near))
    return tuple("".join(_letter(g) for g, group in enumerate(groups) if k in group) for k in range(count))


def _cliques(chosen: set[int], open_: set[int], done: set[int], near: dict[int, set[int]]) -> list[set[int]]:
    """All largest sets of mutually near numbers (Bron and Kerbosch, with a pivot)."""
    if not open_ and not done:
        return [chosen]
    pivot = max(open_ | done, key=lambda k: len(near[k] & open_))
    found = []
    for k in sorted(open_ - near[pivot]):
        found += _cliques(chosen | {k}, open_ & near[k], done & near[k], near)
        open_, done = open_ - {k}, done | {k}
    return found


def _letter(number: int) -> str:
    """The letter of a group: a to z, then (27), (28) and so on."""
    return chr(ord("a") + number) if number < 26 else f"({number + 1})"
