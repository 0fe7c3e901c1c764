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
    """A task to try, and what its author knows of it for sure.

    `targets` are all bodies of the role target; None = the record's `target_object` alone, or none where it has none.
    `roles` says which role some other bodies must have.
    """

    suite: str
    index: int
    targets: frozenset[str] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.suite} task {self.index}"

    def task(self, host: Host) -> Task:
        """The task itself."""
        return next(task for task in host.tasks(self.suite) if task.index == self.index)


@dataclass(frozen=True)
class Tried:
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


def run(env: HostEnv, seed: EpisodeSeed, actions: Floats, before: Callable[[Action], None] | None = None) -> Batch:
    """Reset, take the actions [N, A] whatever the success says, return the record; `before` comes before each."""
    env.reset(seed)
    for action in actions:
        if before:
            before(action)
        env.step(action.copy())
    return env.recorded()


def first_difference(one: object, other: object, name: str = "") -> str | None:
    """Where two records differ first, such as `contacts.force_n`; None where they are equal bit for bit."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return None if same else name
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return None if one == other else name or "its type"
    if parts.keys() != others.keys():
        return name or "its fields"
    found = (first_difference(part, others[key], f"{name}.{key}".strip(".")) for key, part in parts.items())
    return next((difference for difference in found if difference), None)


def _parts(value: object) -> dict[str, object] | None:
    """The named parts of a compound value; None for a plain one."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, tuple | list):
        return {str(place): part for place, part in enumerate(value)}
    return None
