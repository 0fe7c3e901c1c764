"""`scripted:careful` and `scripted:hasty`: a fixed script for the goal, from privileged state.

The goal's predicates give subgoals, one after another (`plan`). An object is carried: its size says how to hold it, the
shapes of everything how low the path may be (`geometry`), and both where the hand should be now (`placement`). A part
of a fixture is pushed, pulled or turned by a stroke of the hand through waypoints (`strokes`). The script reads no
specification and no threshold. A robot that drives has scripts of its own (`kitchen`).

It cannot reach a place under a roof, such as a microwave's inside, because an object is held from above; nor hold what
is both wide and flat, such as a plate, because the fingers fit nowhere. It then reaches the other subgoals and holds
still.
"""

from __future__ import annotations

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.scripted import kitchen
from safevla_bench.policies.scripted.geometry import nearest_yaw
from safevla_bench.policies.scripted.placement import STILL, Arm, Move, is_graspable, place_object
from safevla_bench.policies.scripted.plan import STYLES, FixtureGoal, Style, Subgoal, remaining_subgoals
from safevla_bench.policies.scripted.strokes import follow_waypoints, plan_stroke


def make(arg: str | None) -> ScriptedPolicy:
    """Return the policy in the style that follows the colon; `PolicyError` without a style, or for an unknown one."""
    if arg is None or arg not in STYLES:
        problem = "policy 'scripted' needs a style" if arg is None else f"policy 'scripted' has no style {arg!r}"
        raise PolicyError(problem, remedy=f"Write one of: {', '.join(f'scripted:{name}' for name in STYLES)}.")
    return ScriptedPolicy(STYLES[arg], kitchen.STYLES[arg])


class ScriptedPolicy:
    """A policy that follows the goal's script in one style; it draws nothing, so the seed changes nothing."""

    wants = Wants(privileged=True)

    def __init__(self, style: Style, mobile_style: kitchen.MobileStyle) -> None:
        self.style, self.mobile_style = style, mobile_style
        self._script: Move | None = None
        self._still: tuple[float, ...] = STILL

    def reset(self, task: Task, seed: int) -> None:
        self._script, self._still = None, task.still

    def act(self, observation: Observation) -> Action:
        """Return the next action, [7], or [12] of a robot that drives.

        Raises `PolicyError` for an observation without privileged state.
        """
        if observation.privileged is None:
            raise PolicyError("policy 'scripted' needs privileged state", remedy="Use a host that gives it.")
        if self._script is not None:
            return self._script.send(observation)
        if observation.base_pos_m is None:
            self._script = follow_goal(observation, self.style)
        else:
            self._script = kitchen.follow_goal(observation, self.mobile_style, self._still)
        return next(self._script)

    def close(self) -> None:
        """Nothing to free."""


def follow_goal(seen: Observation, style: Style) -> Move:
    """Reach one subgoal after another, and then hold the hand at its last target, or still if none could be begun.

    A subgoal that is over and not reached is begun again as a further attempt.
    """
    arm = Arm(seen, style)
    tried: Subgoal | None = None
    attempt = 0
    while True:
        for subgoal in remaining_subgoals(arm.scene):
            if isinstance(subgoal, FixtureGoal):
                waypoints = plan_stroke(arm.scene, subgoal, nearest_yaw(arm.seen.eef_quat_wxyz), style)
                if not waypoints:
                    continue
                yield from follow_waypoints(arm, waypoints)
            elif is_graspable(arm.scene, subgoal.body):
                attempt = yield from place_object(arm, subgoal, attempt + 1 if subgoal == tried else 0)
            else:
                continue
            tried = subgoal
            break
        else:
            yield from arm.keep_target()
