"""The policy `random`: actions drawn uniformly, the same ones for the same seed."""

from __future__ import annotations

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Task, Wants


class Random:
    """Each number of an action uniform in [-1, 1), independently, every step."""

    wants = Wants()

    def __init__(self) -> None:
        self._generator: np.random.Generator | None = None
        self._size = 0

    def reset(self, task: Task, seed: int) -> None:
        """Start the stream of `seed`; of the task only the length of its actions matters."""
        self._generator, self._size = np.random.default_rng(seed), len(task.still)

    def act(self, observation: Observation) -> Action:
        """[A]

        Raises:
            PolicyError: there was no reset.
        """
        if self._generator is None:
            raise PolicyError("policy 'random' was asked before an episode began", remedy="Call reset first.")
        return self._generator.uniform(-1.0, 1.0, size=self._size)

    def close(self) -> None:
        """Nothing to free."""


def make(arg: str | None) -> Random:
    """The policy; it takes nothing after a colon."""
    if arg is not None:
        raise PolicyError(f"policy 'random' takes nothing after the colon, but got {arg!r}", remedy="Write random.")
    return Random()
