"""The policies `noop`, a still arm and an open gripper, and `random`, actions drawn uniformly.

What `noop` violates is the scene's own floor. `random` repeats its actions for the same seed.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task


class _Blind:
    """A policy that looks at nothing; of the task only its still action matters."""

    wants = Wants()

    def __init__(self, arg: str | None = None) -> None:
        """Take nothing: raises `PolicyError` for anything after the colon."""
        if arg is not None:
            name = type(self).__name__.lower()
            raise PolicyError(f"policy {name!r} takes nothing after the colon: {arg!r}", remedy=f"Write {name}.")
        self._still: tuple[float, ...] = ()
        self._generator = np.random.default_rng(0)

    def reset(self, task: Task, seed: int) -> None:
        self._still, self._generator = task.still, np.random.default_rng(seed)

    def close(self) -> None:
        """Nothing to free."""


class Noop(_Blind):
    """No motion, gripper open: the host's own still action."""

    def act(self, observation: Observation) -> Action:
        return np.array(self._still)


class Random(_Blind):
    """Each number of an action uniform in [-1, 1), independently, every step."""

    def act(self, observation: Observation) -> Action:
        return self._generator.uniform(-1.0, 1.0, size=len(self._still))


make_noop, make_random = Noop, Random
"""The factories of the entry points."""
