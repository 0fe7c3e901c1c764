"""Exposure of a cell: means over its episodes, and violations in successes and in failures apart."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.exposure.episodes import Exposure
from safevla_bench.exposure.phases import PHASES
from safevla_bench.metrics import BOOTSTRAP_SEED, Mean, Rate
from safevla_bench.scores import INACTIVE, Scores
from safevla_bench.statistics import bootstrap_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SpecExposure(msgspec.Struct, frozen=True, kw_only=True):
    """One specification in one cell."""

    spec_id: str
    violation_s: Mean
    """Time in violation, over the episodes in which it reached a verdict."""
    first_s: float | None
    """Median time of the first violation over the episodes that violate it."""
    in_successes: Rate
    """Violating episodes of the successes in which it applies."""
    in_failures: Rate


class PhaseExposure(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of the task, over the `phased` episodes of a cell."""

    phase: str
    total_s: float
    violation_s: float
    """Time in violation of any specification."""
    first_violations: int
    """Episodes whose first violation lies in it."""


class CellExposure(msgspec.Struct, frozen=True, kw_only=True):
    """One policy × suite."""

    policy: str | None
    suite: str
    n: int
    violation_s: Mean
    above_force_s: Mean
    above_impulse_ns: Mean
    first_s: float | None
    """Median time of the first violation over the unsafe episodes."""
    unsafe_successes: Rate
    unsafe_failures: Rate
    specs: tuple[SpecExposure, ...]
    phased: int
    """Episodes that have phases and a time in violation; `phases` is empty where none has."""
    phases: tuple[PhaseExposure, ...]


def summarize_exposure(spent: Exposure, scores: Scores) -> list[CellExposure]:
    """One summary for each policy × suite, in order of first appearance; crashed and stopped episodes are left out.

    >>> import safevla_bench as sb
    >>> from safevla_bench.exposure import measure_exposure, summarize_exposure
    >>> batch = sb.open_archive("tests/cases/appendix_b.json")
    >>> scores = sb.score(batch, sb.library(), sb.registry(), missing="deactivate")
    >>> [cell] = summarize_exposure(exposure(batch, scores, sb.library(), sb.registry()), scores)
    >>> cell.n, cell.violation_s.value, cell.first_s
    (1, 0.0, None)
    """
    keys = list(zip(scores.policy, scores.benchmark, strict=True))
    found = []
    for policy, suite in dict.fromkeys(keys):
        mine = np.array([key == (policy, suite) for key in keys], dtype=np.bool_) & scores.counted
        found.append(_cell(spent, scores, np.flatnonzero(mine), policy, suite))
    return found


def _cell(spent: Exposure, scores: Scores, members: Ints, policy: str | None, suite: str) -> CellExposure:
    named = (spent.any_s, spent.above_force_s, spent.above_impulse_ns)
    means = _means(np.vstack([*(row[members] for row in named), spent.violation_s[:, members]]))
    success, unsafe = scores.success[members], ~scores.safe[members]
    phased = members[~np.isnan(spent.phase_violation_s[0, members])]
    return CellExposure(
        policy=policy,
        suite=suite,
        n=len(members),
        violation_s=means[0],
        above_force_s=means[1],
        above_impulse_ns=means[2],
        first_s=_median(spent.first_any_s[members]),
        unsafe_successes=Rate.of((unsafe & success).sum(), success.sum()),
        unsafe_failures=Rate.of((unsafe & ~success).sum(), (~success).sum()),
        specs=tuple(_spec(spent, scores, members, row, means[3 + row]) for row in range(len(spent.specs))),
        phased=len(phased),
        phases=_phases(spent, phased) if len(phased) else (),
    )


def _spec(spent: Exposure, scores: Scores, members: Ints, row: int, violation_s: Mean) -> SpecExposure:
    column = scores.scored[row]
    applies = scores.state[column, members] != INACTIVE
    violated, success = scores.violated[column, members], scores.success[members]
    return SpecExposure(
        spec_id=spent.specs[row].spec_id,
        violation_s=violation_s,
        first_s=_median(spent.first_s[row, members]),
        in_successes=Rate.of((violated & success).sum(), (applies & success).sum()),
        in_failures=Rate.of((violated & ~success).sum(), (applies & ~success).sum()),
    )


def _phases(spent: Exposure, members: Ints) -> tuple[PhaseExposure, ...]:
    return tuple(
        PhaseExposure(
            phase=name,
            total_s=float(spent.phase_s[k, members].sum()),
            violation_s=float(spent.phase_violation_s[k, members].sum()),
            first_violations=int((spent.first_phase[members] == k).sum()),
        )
        for k, name in enumerate(PHASES)
    )


def _means(rows: Floats) -> list[Mean]:
    """Means over episodes with bootstrap intervals, NaN left out; [M, n]."""
    intervals = bootstrap_means(rows, np.random.Generator(np.random.PCG64(BOOTSTRAP_SEED)))
    found = []
    for row, interval in zip(rows, intervals, strict=True):
        there = row[~np.isnan(row)]
        ci = None if interval is None else (interval.low, interval.high)
        skipped = interval.skipped if interval else 0
        found.append(Mean(len(there), float(there.mean()) if len(there) else None, ci, skipped))
    return found


def _median(values: Floats) -> float | None:
    there = values[~np.isnan(values)]
    return float(np.median(there)) if len(there) else None
