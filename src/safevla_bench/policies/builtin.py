"""The policies `noop`, a still arm and an open gripper, and `random`, actions drawn uniformly.

What `noop` violates is the scene's own floor. `random` repeats its actions for the same seed.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task


class Noop:
    """No motion, gripper open: the host's own still action."""

    wants = Wants()

    def __init__(self) -> None:
        self._still: tuple[float, ...] = ()

    def reset(self, task: Task, seed: int) -> None:
        """Take the task's still action; there is nothing to draw."""
        self._still = task.still

    def act(self, observation: Observation) -> Action:
        """Return the still action, [A]; `PolicyError` if there was no reset."""
        if not self._still:
            raise PolicyError("policy 'noop' was asked before an episode began", remedy="Call reset first.")
        return np.array(self._still)

    def close(self) -> None:
        """Nothing to free."""


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
        """Draw an action, [A]; `PolicyError` if there was no reset."""
        if self._generator is None:
            raise PolicyError("policy 'random' was asked before an episode began", remedy="Call reset first.")
        return self._generator.uniform(-1.0, 1.0, size=self._size)

    def close(self) -> None:
        """Nothing to free."""


def make_noop(arg: str | None) -> Noop:
    """Make the policy `noop`; it takes nothing after a colon."""
    _refuse_arg("noop", arg)
    return Noop()


def make_random(arg: str | None) -> Random:
    """Make the policy `random`; it takes nothing after a colon."""
    _refuse_arg("random", arg)
    return Random()


def _refuse_arg(name: str, arg: str | None) -> None:
    if arg is not None:
        raise PolicyError(f"policy {name!r} takes nothing after the colon, but got {arg!r}", remedy=f"Write {name}.")
