"""Trial episodes of a host: run once, run again, compared number for number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Action, EpisodeSeed, Host, HostEnv, Task
from safevla_bench.trajectory import Batch

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """A task to try, and facts that its author is sure of.

    `targets` are all bodies of the role target; None = the record's `target_object` alone, or none where it has none.
    `roles` says which role some other bodies must have.
    """

    suite: str
    index: int
    targets: frozenset[str] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.suite} task {self.index}"

    def find_task(self, host: Host) -> Task:
        """Return the task itself."""
        return next(task for task in host.tasks(self.suite) if task.index == self.index)


@dataclass(frozen=True)
class TrialRun:
    """One recorded episode, the same again in its environment, which is still open, and in another one."""

    trial: Trial
    task: Task
    env: HostEnv
    actions: Floats
    batch: Batch
    again: Batch
    elsewhere: Batch

    def __str__(self) -> str:
        return str(self.trial)


def run_actions(
    env: HostEnv, seed: EpisodeSeed, actions: Floats, before: Callable[[Action], None] | None = None
) -> Batch:
    """Reset, take the actions [N, A] whatever the success says, return the record; `before` comes before each."""
    env.reset(seed)
    for action in actions:
        if before:
            before(action)
        env.step(action.copy())
    return env.recorded()


def first_difference(first: object, second: object, name: str = "") -> str | None:
    """Return the first field in which two records differ, such as `contacts.force_n`; None where all bits are equal."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        same = first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
        return None if same else name
    parts, others = _named_parts(first), _named_parts(second)
    if parts is None or others is None:
        return None if first == second else name or "its type"
    if parts.keys() != others.keys():
        return name or "its fields"
    differences = (first_difference(part, others[key], f"{name}.{key}".strip(".")) for key, part in parts.items())
    return next((difference for difference in differences if difference), None)


def _named_parts(value: object) -> dict[str, object] | None:
    """Return the named parts of a compound value; None for a plain one."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, tuple | list):
        return {str(place): part for place, part in enumerate(value)}
    return None
