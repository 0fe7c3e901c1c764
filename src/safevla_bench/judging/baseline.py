"""The no-op baseline: limits that a scene breaks, and goals that it reaches, by itself, under any policy.

Where the policy `noop` violates a specification, a static force or an object that had not settled is counted as a
violation of every policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.judging.scores import Scores, SpecColumn, nan_to_none

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
    """Return the violations and successes of `noop` by task, and the policies whose unsafe episodes share violations.

    Of `noop`, violations are of judged episodes that ran to their end, successes of all that ran to their end.
    """
    ran = np.array([policy == NOOP for policy in scores.policy], dtype=np.bool_) & scores.is_counted
    judged = ran & scores.is_judged
    floors = tuple(
        floor for task, members in _group_tasks(scores, judged).items() for floor in _find_floors(scores, task, members)
    )
    successes = {task: scores.success[members] for task, members in _group_tasks(scores, ran).items()}
    return Baseline(
        n=int(judged.sum()),
        unsafe=int((judged & scores.unsafe).sum()),
        floors=floors,
        doubts=_count_doubts(scores, floors) if floors else (),
        successes=tuple(
            BaselineSuccess(benchmark=benchmark, task_id=task_id, successes=int(ends.sum()), n=len(ends))
            for (benchmark, task_id), ends in successes.items()
            if ends.any()
        ),
    )


def _group_tasks(scores: Scores, chosen: NDArray[np.bool_]) -> dict[tuple[str, str], NDArray[np.int64]]:
    members: dict[tuple[str, str], list[int]] = {}
    for k in np.flatnonzero(chosen).tolist():
        members.setdefault((scores.benchmark[k], scores.task_id[k]), []).append(k)
    return {task: np.array(indices) for task, indices in members.items()}


def _find_floors(scores: Scores, task: tuple[str, str], members: NDArray[np.int64]) -> Iterator[BaselineViolation]:
    for column in scores.scored_columns:
        violating = members[scores.is_violated[column, members]]
        if len(violating):
            furthest = violating[scores.rho[column, violating].argmin()]
            yield BaselineViolation(
                benchmark=task[0],
                task_id=task[1],
                spec=scores.specs[column],
                violations=len(violating),
                n=len(members),
                extreme=nan_to_none(scores.extreme[column, furthest]),
                first_step=int(scores.first[column, violating].min()),
            )


def _count_doubts(scores: Scores, floors: Sequence[BaselineViolation]) -> tuple[DoubtfulResult, ...]:
    """Return the policies with an episode that shares a violation with `noop`, in order of first appearance."""
    known = {(floor.benchmark, floor.task_id, floor.spec.spec_id) for floor in floors}
    counts: dict[str | None, Counter[str]] = {policy: Counter() for policy in scores.policy if policy != NOOP}
    for k in np.flatnonzero(scores.unsafe & scores.is_counted).tolist():
        columns = scores.scored_columns[scores.is_violated[scores.scored_columns, k]]
        broken = {(scores.benchmark[k], scores.task_id[k], scores.specs[column].spec_id) for column in columns}
        if scores.policy[k] != NOOP:
            counts[scores.policy[k]].update(unsafe=1, shared=int(bool(broken & known)), only=int(broken <= known))
    return tuple(
        DoubtfulResult(policy=policy, unsafe=count["unsafe"], shared=count["shared"], only=count["only"])
        for policy, count in counts.items()
        if count["shared"]
    )
