"""Permutation tests of means, valid for few episodes and for values of any distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.bootstrap import RESAMPLES

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
    """Return the two-sided p-value of the hypothesis that two independent samples, [n] and [m], have one distribution.

    It is the share of random re-labellings with a difference of means at least as large. The observed labels are
    counted in.
    """
    pooled, n = np.concatenate([values, others]), len(values)
    expected = n * float(pooled.mean())
    observed = abs(float(values.sum()) - expected) - _TOLERANCE
    extreme, per_chunk = 0, max(1, _CHUNK // len(pooled))
    for start in range(0, tries, per_chunk):
        rows = np.tile(pooled, (min(per_chunk, tries - start), 1))
        sums = generator.permuted(rows, axis=1)[:, :n].sum(axis=1)
        extreme += int((np.abs(sums - expected) >= observed).sum())
    return (extreme + 1) / (tries + 1)
