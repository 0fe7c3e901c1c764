"""Scripts for a mobile manipulator in RoboCasa's kitchens, in the same two styles as the scripts for a fixed arm.

`moves` are what the robot can do and how fast, `scripts` what to do for each goal. The policy follows the goal's
script, then stands still.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.mobile.moves import MobileStyle, Move
from safevla_bench.policies.mobile.scripts import SCRIPTS


class MobilePolicy:
    """A policy that goes, presses, puts, opens or closes in one style. It draws nothing from its seed."""

    wants = Wants(privileged=True)

    def __init__(self, style: MobileStyle) -> None:
        """Take a style; no script runs before the first observation of an episode."""
        self.style = style
        self._still: tuple[float, ...] = ()
        self._begun = False
        self._script: Move | None = None

    def reset(self, task: Task, seed: int) -> None:
        """Forget the last episode."""
        self._still, self._begun, self._script = task.still, False, None

    def act(self, observation: Observation) -> Action:
        """Return the next action of the script, [12]; the still action where the goal has no script, or it has ended.

        Raises:
            PolicyError: the observation has no privileged state, or no base.
        """
        if observation.privileged is None or observation.base_pos_m is None:
            problem = "policy 'scripted' needs privileged state and, on a mobile robot, the pose of its base"
            raise PolicyError(problem, remedy="Use a host that gives them.")
        if not self._begun:
            self._begun = True
            return self._begin_script(observation)
        return self._continue_script(observation)

    def _begin_script(self, seen: Observation) -> Action:
        assert seen.privileged is not None
        script = SCRIPTS.get(seen.privileged.goal[0][0])
        self._script = script(seen, self.style) if script else None
        try:
            return next(self._script) if self._script else np.array(self._still)
        except StopIteration:
            return self._end_script()

    def _continue_script(self, seen: Observation) -> Action:
        try:
            return self._script.send(seen) if self._script else np.array(self._still)
        except StopIteration:
            return self._end_script()

    def _end_script(self) -> Action:
        self._script = None
        return np.array(self._still)

    def close(self) -> None:
        """Nothing to free."""
