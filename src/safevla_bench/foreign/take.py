"""One recorded episode that can be played again, whoever recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import Task

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedActions:
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
    def task_label(self) -> str:
        """Return the name of the task, as far as it is recorded."""
        names = (self.benchmark, self.task_id) if self.benchmark else (self.suite, self.task)
        return "/".join(part for part in names if part) or (repr(self.instruction) if self.instruction else "no task")

    def is_of_task(self, task: Task) -> bool:
        """Return whether these are actions of a task; LIBERO writes `libero_spatial` for our `libero-spatial`."""
        if self.benchmark is not None:
            return (self.benchmark, self.task_id) == (task.benchmark, task.task_id)
        if self.task is not None:
            named = task.name.rpartition("/")[2].removesuffix(".bddl")
            return self.task == named and self._is_of_suite(task)
        return self.instruction is not None and _normalize_instruction(self.instruction) == _normalize_instruction(
            task.instruction
        )

    def _is_of_suite(self, task: Task) -> bool:
        return self.suite is None or self.suite.replace("_", "-") == task.benchmark.replace("_", "-")


def _normalize_instruction(instruction: str) -> str:
    return " ".join(instruction.lower().strip(" .").split())
