"""Exposure: duration, severity and time of violations, and the phase of the task in which they occurred.

Each episode is measured in `episodes`; means over the episodes of a cell, and violations by success and failure, are
here.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.exposure.episodes import PHASES, Exposure
from safevla_bench.judging.metrics import Mean, Rate, bootstrapped_means
from safevla_bench.judging.scores import INACTIVE, Scores

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


def summarize_exposure(exposure: Exposure, scores: Scores) -> list[CellExposure]:
    """Summarize each policy × suite, in order of first appearance: its judged episodes that ran to their end.

    A cell without such an episode has n = 0, and no mean, median or rate. `exposure` and `scores` hold the same
    episodes in the same order.

    >>> import safevla_bench as sb
    >>> from safevla_bench.explain.exposure import summarize_exposure
    >>> from safevla_bench.explain.exposure.episodes import measure_exposure
    >>> batch = sb.open_archive("tests/cases/appendix_b.json")
    >>> ruleset = sb.load_ruleset()
    >>> scores = sb.score(batch, ruleset)
    >>> [cell] = summarize_exposure(measure_exposure(batch, scores, ruleset), scores)
    >>> cell.n, cell.violation_s.value, cell.first_s
    (1, 0.0, None)
    """
    keys = list(zip(scores.policy, scores.benchmark, strict=True))
    summaries = []
    for policy, suite in dict.fromkeys(keys):
        of_cell = (
            np.array([key == (policy, suite) for key in keys], dtype=np.bool_) & scores.is_counted & scores.is_judged
        )
        summaries.append(_summarize_cell(exposure, scores, np.flatnonzero(of_cell), policy, suite))
    return summaries


def _summarize_cell(exposure: Exposure, scores: Scores, members: Ints, policy: str | None, suite: str) -> CellExposure:
    """Return the exposure of one policy and suite over the episodes `members`, indices into the scores."""
    totals = (exposure.any_s, exposure.above_force_s, exposure.above_impulse_ns)
    means = bootstrapped_means(np.vstack([*(row[members] for row in totals), exposure.violation_s[:, members]]))
    success, unsafe = scores.success[members], scores.unsafe[members]
    phased = members[~np.isnan(exposure.phase_violation_s[0, members])]
    return CellExposure(
        policy=policy,
        suite=suite,
        n=len(members),
        violation_s=means[0],
        above_force_s=means[1],
        above_impulse_ns=means[2],
        first_s=_median_or_none(exposure.first_any_s[members]),
        unsafe_successes=Rate.of((unsafe & success).sum(), success.sum()),
        unsafe_failures=Rate.of((unsafe & ~success).sum(), (~success).sum()),
        specs=tuple(
            _summarize_spec(exposure, scores, members, row, means[3 + row]) for row in range(len(exposure.specs))
        ),
        phased=len(phased),
        phases=_summarize_phases(exposure, phased) if len(phased) else (),
    )


def _summarize_spec(exposure: Exposure, scores: Scores, members: Ints, row: int, violation_s: Mean) -> SpecExposure:
    """Return the exposure of the specification in `row` of the exposure over the episodes `members`."""
    column = scores.scored_columns[row]
    applies = scores.state[column, members] != INACTIVE
    violated, success = scores.is_violated[column, members], scores.success[members]
    return SpecExposure(
        spec_id=exposure.specs[row].spec_id,
        violation_s=violation_s,
        first_s=_median_or_none(exposure.first_s[row, members]),
        in_successes=Rate.of((violated & success).sum(), (applies & success).sum()),
        in_failures=Rate.of((violated & ~success).sum(), (applies & ~success).sum()),
    )


def _summarize_phases(exposure: Exposure, members: Ints) -> tuple[PhaseExposure, ...]:
    """Return time and violating time [s], summed over the episodes `members`, and first violations in each phase."""
    return tuple(
        PhaseExposure(
            phase=name,
            total_s=float(exposure.phase_s[k, members].sum()),
            violation_s=float(exposure.phase_violation_s[k, members].sum()),
            first_violations=int((exposure.first_phase[members] == k).sum()),
        )
        for k, name in enumerate(PHASES)
    )


def _median_or_none(values: Floats) -> float | None:
    defined = values[~np.isnan(values)]
    return float(np.median(defined)) if len(defined) else None
