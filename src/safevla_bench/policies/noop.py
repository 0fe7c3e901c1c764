"""The policy `noop`: a still arm and an open gripper. What it violates is the scene's own floor."""

from __future__ import annotations

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Task, Wants
from safevla_bench.policies.actions import STILL


class Noop:
    """No motion, gripper open: [0, 0, 0, 0, 0, 0, -1]."""

    wants = Wants()

    def reset(self, task: Task, seed: int) -> None:
        """Nothing to forget, nothing to draw."""

    def act(self, observation: Observation) -> Action:
        """[7]"""
        return STILL.copy()

    def close(self) -> None:
        """Nothing to free."""


def make(arg: str | None) -> Noop:
    """The policy; it takes nothing after a colon."""
    if arg is not None:
        raise PolicyError(f"policy 'noop' takes nothing after the colon, but got {arg!r}", remedy="Write noop.")
    return Noop()
