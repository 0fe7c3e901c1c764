"""Tests of means by re-labelling: honest for few episodes and for values of any distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.statistics.bootstrap import RESAMPLES

_EXACT = 12
"""Up to so many pairs that differ, all sign patterns are tried."""
_CHUNK = 1 << 20
_ALIKE = 1e-12
"""Sums nearer than this are one: they differ by the order of addition."""


def sign_flip_p(differences: NDArray[np.float64], generator: np.random.Generator, tries: int = RESAMPLES) -> float:
    """Two-sided p-value that paired differences [n] centre on zero: how often do random signs give so large a sum?

    Exact where at most 12 differ from zero, else from random signs, the observed ones counted in. 1 where none differs.
    """
    there = differences[differences != 0]
    if not len(there):
        return 1.0
    observed = abs(float(there.sum())) - _ALIKE
    if len(there) <= _EXACT:
        bits = np.arange(2 ** len(there))[:, None] >> np.arange(len(there)) & 1
        return float((np.abs((2 * bits - 1) @ there) >= observed).mean())
    extreme, per_chunk = 0, max(1, _CHUNK // len(there))
    for start in range(0, tries, per_chunk):
        signs = generator.integers(0, 2, size=(min(per_chunk, tries - start), len(there)), dtype=np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ there) >= observed).sum())
    return (extreme + 1) / (tries + 1)


def permutation_p(
    values: NDArray[np.float64],
    others: NDArray[np.float64],
    generator: np.random.Generator,
    tries: int = RESAMPLES,
) -> float:
    """Two-sided p-value that two independent samples, [n] and [m], have one distribution: by random re-labelling.

    How often is the difference of means so large? The observed labels are counted in.
    """
    pooled, n = np.concatenate([values, others]), len(values)
    expected = n * float(pooled.mean())
    observed = abs(float(values.sum()) - expected) - _ALIKE
    extreme, per_chunk = 0, max(1, _CHUNK // len(pooled))
    for start in range(0, tries, per_chunk):
        rows = np.tile(pooled, (min(per_chunk, tries - start), 1))
        sums = generator.permuted(rows, axis=1)[:, :n].sum(axis=1)
        extreme += int((np.abs(sums - expected) >= observed).sum())
    return (extreme + 1) / (tries + 1)
