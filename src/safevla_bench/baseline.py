"""The floor that doing nothing shows: limits that a scene breaks by itself, whoever acts in it.

Where the policy `noop` violates a specification, a static force or an object that had not settled is counted as
everybody's violation. The floor says which specification in which task, and which violations of other policies it puts
in doubt.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.scores import Scores, SpecColumn

NOOP = "noop"
"""The policy that does nothing."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """One scored specification that doing nothing violates in one task."""

    benchmark: str
    task_id: str
    spec: SpecColumn
    violations: int
    n: int
    """Counted episodes of `noop` in the task."""
    extreme: float | None
    """The value furthest beyond the limit, in the unit of the specification; None where it has none."""
    first_step: int
    """The earliest violating record; 0 = before any action."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Another policy's unsafe episodes in the tasks of a floor."""

    policy: str | None
    unsafe: int
    """Its unsafe episodes, of all tasks."""
    shared: int
    """Those that violate, among others, a specification that doing nothing violates in that task."""
    only: int
    """Those that violate nothing else."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What `noop` says of a set of episodes: nothing where it is not among them (n = 0)."""

    n: int
    unsafe: int
    floors: tuple[Floor, ...]
    doubts: tuple[Doubt, ...]


def baseline(scores: Scores) -> Baseline:
    """The floor that the counted episodes of `noop` show, and the other policies that stand on it."""
    noop = np.array([policy == NOOP for policy in scores.policy], dtype=np.bool_) & scores.counted
    violated = scores.violated[scores.scored]
    floors = tuple(_floors(scores, noop))
    return Baseline(
        n=int(noop.sum()),
        unsafe=int((noop & ~scores.safe).sum()),
        floors=floors,
        doubts=_doubts(scores, violated, _floored(scores, floors)) if floors else (),
    )


def _floors(scores: Scores, noop: NDArray[np.bool_]) -> list[Floor]:
    """In order of the tasks' first appearance, then of the library."""
    tasks = list(zip(scores.benchmark, scores.task_id, strict=True))
    found = []
    for task in dict.fromkeys(task for task, acted_not in zip(tasks, noop, strict=True) if acted_not):
        members = np.flatnonzero(noop & np.array([other == task for other in tasks]))
        for column in scores.scored:
            broken = members[scores.violated[column, members]]
            if len(broken):
                found.append(_floor(scores, task, int(column), broken, len(members)))
    return found


def _floor(scores: Scores, task: tuple[str, str], column: int, broken: NDArray[np.int64], n: int) -> Floor:
    furthest = broken[scores.rho[column, broken].argmin()]
    extreme = float(scores.extreme[column, furthest])
    return Floor(
        benchmark=task[0],
        task_id=task[1],
        spec=scores.specs[column],
        violations=len(broken),
        n=n,
        extreme=None if np.isnan(extreme) else extreme,
        first_step=int(scores.first[column, broken].min()),
    )


def _floored(scores: Scores, floors: tuple[Floor, ...]) -> NDArray[np.bool_]:
    """Whether doing nothing violates a scored specification in the task of an episode, [K, E]."""
    known = {(floor.benchmark, floor.task_id, floor.spec.spec_id) for floor in floors}
    tasks = list(zip(scores.benchmark, scores.task_id, strict=True))
    return np.array([[(*task, scores.specs[k].spec_id) in known for task in tasks] for k in scores.scored])


def _doubts(scores: Scores, violated: NDArray[np.bool_], floored: NDArray[np.bool_]) -> tuple[Doubt, ...]:
    """The policies with an episode that shares a violation, in order of first appearance."""
    shared = (violated & floored).any(axis=0) & scores.counted
    only = shared & ~(violated & ~floored).any(axis=0)
    found = []
    for policy in dict.fromkeys(scores.policy):
        mine = np.array([other == policy for other in scores.policy], dtype=np.bool_)
        if policy != NOOP and (mine & shared).any():
            unsafe = mine & scores.counted & ~scores.safe
            found.append(
                Doubt(
                    policy=policy,
                    unsafe=int(unsafe.sum()),
                    shared=int((mine & shared).sum()),
                    only=int((mine & only).sum()),
                )
            )
    return tuple(found)
