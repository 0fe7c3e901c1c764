"""The no-op baseline: limits that a scene breaks, and goals that it reaches, by itself, under any policy.

Where the policy `noop` violates a specification, a static force or an object that had not settled is counted as a
violation of every policy.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.judging.scores import Scores, SpecColumn

NOOP = "noop"


class BaselineViolation(msgspec.Struct, frozen=True, kw_only=True):
    """One scored specification that doing nothing violates in one task."""

    benchmark: str
    task_id: str
    spec: SpecColumn
    violations: int
    n: int
    """Judged episodes of `noop` in the task that ran to their end."""
    extreme: float | None
    """The value furthest beyond the limit, in the unit of the specification; None where it has none."""
    first_step: int
    """The earliest violating record; 0 = before any action."""


class DoubtfulResult(msgspec.Struct, frozen=True, kw_only=True):
    """Another policy's unsafe episodes in the tasks where doing nothing violates a specification."""

    policy: str | None
    unsafe: int
    shared: int
    """Those that violate, among others, a specification that doing nothing violates in that task."""
    only: int


class BaselineSuccess(msgspec.Struct, frozen=True, kw_only=True):
    """One task whose goal is reached without doing anything."""

    benchmark: str
    task_id: str
    successes: int
    n: int
    """Episodes of `noop` in the task that ran to their end."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Results of `noop` in a set of episodes, and those of others that they put in doubt; n = 0 without `noop`."""

    n: int
    unsafe: int
    floors: tuple[BaselineViolation, ...]
    doubts: tuple[DoubtfulResult, ...]
    successes: tuple[BaselineSuccess, ...] = ()


def measure_baseline(scores: Scores) -> Baseline:
    """Return the violations and successes of `noop` by task, and the other policies whose unsafe episodes share
    them.
    """
    is_noop = (
        np.array([policy == NOOP for policy in scores.policy], dtype=np.bool_) & scores.is_counted & scores.is_judged
    )
    violated = scores.is_violated[scores.scored_columns]
    violations = tuple(_baseline_violations(scores, is_noop))
    return Baseline(
        n=int(is_noop.sum()),
        unsafe=int((is_noop & scores.unsafe).sum()),
        floors=violations,
        doubts=_doubtful_results(scores, violated, _shares_baseline_violation(scores, violations))
        if violations
        else (),
        successes=tuple(_baseline_successes(scores)),
    )


def _baseline_successes(scores: Scores) -> Iterator[BaselineSuccess]:
    ran = [k for k, policy in enumerate(scores.policy) if policy == NOOP and scores.is_counted[k]]
    ends: dict[tuple[str, str], list[bool]] = {}
    for k in ran:
        ends.setdefault((scores.benchmark[k], scores.task_id[k]), []).append(bool(scores.success[k]))
    for (benchmark, task_id), successes in ends.items():
        if any(successes):
            yield BaselineSuccess(benchmark=benchmark, task_id=task_id, successes=sum(successes), n=len(successes))


def _baseline_violations(scores: Scores, is_noop: NDArray[np.bool_]) -> list[BaselineViolation]:
    """Return the scored specifications that `noop` violates in each task, by order of tasks, then of the library."""
    tasks = list(zip(scores.benchmark, scores.task_id, strict=True))
    violations = []
    for task in dict.fromkeys(task for task, acted_not in zip(tasks, is_noop, strict=True) if acted_not):
        members = np.flatnonzero(is_noop & np.array([other == task for other in tasks]))
        for column in scores.scored_columns:
            violating = members[scores.is_violated[column, members]]
            if len(violating):
                violations.append(_baseline_violation(scores, task, int(column), violating, len(members)))
    return violations


def _baseline_violation(
    scores: Scores, task: tuple[str, str], column: int, violating: NDArray[np.int64], n: int
) -> BaselineViolation:
    """Return one specification's violations in one task: `violating` are its episodes, `n` all of `noop` there."""
    furthest = violating[scores.rho[column, violating].argmin()]
    extreme = float(scores.extreme[column, furthest])
    return BaselineViolation(
        benchmark=task[0],
        task_id=task[1],
        spec=scores.specs[column],
        violations=len(violating),
        n=n,
        extreme=None if np.isnan(extreme) else extreme,
        first_step=int(scores.first[column, violating].min()),
    )


def _shares_baseline_violation(scores: Scores, violations: tuple[BaselineViolation, ...]) -> NDArray[np.bool_]:
    violated_specs = {(floor.benchmark, floor.task_id, floor.spec.spec_id) for floor in violations}
    tasks = list(zip(scores.benchmark, scores.task_id, strict=True))
    return np.array(
        [[(*task, scores.specs[k].spec_id) in violated_specs for task in tasks] for k in scores.scored_columns]
    )


def _doubtful_results(
    scores: Scores, violated: NDArray[np.bool_], shared_violation: NDArray[np.bool_]
) -> tuple[DoubtfulResult, ...]:
    """Return the policies with an episode that shares a violation with `noop`, in order of first appearance."""
    shared = (violated & shared_violation).any(axis=0) & scores.is_counted
    only = shared & ~(violated & ~shared_violation).any(axis=0)
    results = []
    for policy in dict.fromkeys(scores.policy):
        of_policy = np.array([other == policy for other in scores.policy], dtype=np.bool_)
        if policy != NOOP and (of_policy & shared).any():
            unsafe = of_policy & scores.is_counted & scores.unsafe
            results.append(
                DoubtfulResult(
                    policy=policy,
                    unsafe=int(unsafe.sum()),
                    shared=int((of_policy & shared).sum()),
                    only=int((of_policy & only).sum()),
                )
            )
    return tuple(results)
