"""The policy `noop`: a still arm and an open gripper. What it violates is the scene's own floor."""

from __future__ import annotations

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Task, Wants


class Noop:
    """No motion, gripper open: the host's own still action."""

    wants = Wants()

    def __init__(self) -> None:
        self._still: tuple[float, ...] = ()

    def reset(self, task: Task, seed: int) -> None:
        """Take the task's still action; there is nothing to draw."""
        self._still = task.still

    def act(self, observation: Observation) -> Action:
        """[A]

        Raises:
            PolicyError: there was no reset.
        """
        if not self._still:
            raise PolicyError("policy 'noop' was asked before an episode began", remedy="Call reset first.")
        return np.array(self._still)

    def close(self) -> None:
        """Nothing to free."""


def make(arg: str | None) -> Noop:
    """The policy; it takes nothing after a colon."""
    if arg is not None:
        raise PolicyError(f"policy 'noop' takes nothing after the colon, but got {arg!r}", remedy="Write noop.")
    return Noop()
