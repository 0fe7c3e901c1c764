"""One recorded episode that can be played again, whoever recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Task

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Actions [T, A] in the host's units, and what is known of where they were played; None = not recorded.

    `states` are flat simulator states, [T, S] or [T + 1, S]: row k stands before action k. The task is told by
    `benchmark` and `task_id`, or by the name of its BDDL file (`task`), perhaps with its folder (`suite`), or by the
    instruction alone.
    """

    name: str
    source: str
    actions: Floats
    states: Floats | None = None
    positions_m: Mapping[str, Floats] = field(default_factory=dict)
    """Of bodies in the world, [T + 1, 3] each; compared where there are no states."""
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    benchmark: str | None = None
    task_id: str | None = None
    suite: str | None = None
    task: str | None = None
    instruction: str | None = None
    init_state_index: int | None = None
    env_seed: int | None = None
    wait_steps: int | None = None
    rest_steps: int = 0
    """Where `wait_steps` are known."""
    policy: str | None = None
    ending: str = "timeout"

    @property
    def of(self) -> str:
        """The task that it is of, as far as is known."""
        known = (self.benchmark, self.task_id) if self.benchmark else (self.suite, self.task)
        return "/".join(part for part in known if part) or (repr(self.instruction) if self.instruction else "no task")

    def fits(self, task: Task) -> bool:
        """Whether it is of that task; LIBERO writes a suite `libero_spatial` where we write `libero-spatial`."""
        if self.benchmark is not None:
            return (self.benchmark, self.task_id) == (task.benchmark, task.task_id)
        if self.task is not None:
            named = task.name.rpartition("/")[2].removesuffix(".bddl")
            return self.task == named and self._suite_fits(task)
        return self.instruction is not None and _plain(self.instruction) == _plain(task.instruction)

    def _suite_fits(self, task: Task) -> bool:
        return self.suite is None or self.suite.replace("_", "-") == task.benchmark.replace("_", "-")


def _plain(instruction: str) -> str:
    return " ".join(instruction.lower().strip(" .").split())
