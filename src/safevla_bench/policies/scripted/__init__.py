"""The policies `scripted:careful` and `scripted:hasty`: scripts that reach the task's goal with privileged state.

The script moves the goal's objects to their places, one after another. It chooses a grasp that fits the object's size
(`placement`), and the lowest path without collisions (`motion`). Scripts for mobile robots are in `kitchen`. No script
reads specifications or thresholds.

The script cannot move parts of fixtures. It grasps from above, so it cannot reach places under a roof, such as the
inside of a microwave. It cannot hold wide, flat objects such as a plate, because they do not fit between the fingers.
It skips these objects, places the other objects, and then holds still.
"""

from __future__ import annotations

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.scripted import kitchen, motion, placement


def make(arg: str | None) -> ScriptedPolicy:
    """Return the policy in the style `arg`, careful or hasty; raise `PolicyError` for a missing or unknown style."""
    if arg is None or arg not in motion.STYLES:
        problem = "policy 'scripted' needs a style" if arg is None else f"policy 'scripted' has no style {arg!r}"
        raise PolicyError(problem, remedy=f"Write one of: {', '.join(f'scripted:{name}' for name in motion.STYLES)}.")
    return ScriptedPolicy(motion.STYLES[arg], kitchen.STYLES[arg])


_ACTION_SIZES = (7, 12)  # an arm on a fixed base, and an arm on a mobile base


class ScriptedPolicy:
    """A policy that follows a script for the task's goal in one style. It is deterministic: the seed has no effect."""

    wants = Wants(privileged=True)

    def __init__(self, style: motion.Style, mobile_style: kitchen.MobileStyle) -> None:
        # `style` is for a fixed base, and `mobile_style` for a mobile base. The observation shows which base there is.
        self.style, self.mobile_style = style, mobile_style
        self._script: motion.Move | None = None  # the episode's generator of actions; None before the first `act`
        self._still: tuple[float, ...] = motion.STILL

    def require_task(self, task: Task) -> None:
        """Raise `PolicyError` unless the task's actions have 7 numbers (an arm) or 12 (an arm on a mobile base)."""
        if len(task.still) not in _ACTION_SIZES:
            problem = f"the script needs actions of 7 or 12 numbers, but the host's actions have {len(task.still)}"
            raise PolicyError(problem, remedy="Choose another policy, such as `noop` or `random`.")

    def reset(self, task: Task, seed: int) -> None:
        # `seed` is ignored: the policy is deterministic. The first `act` starts the script, with its observation.
        self._script, self._still = None, task.still

    def act(self, observation: Observation) -> Action:
        """Return the next action, [7], or [12] for a mobile robot. Raises `PolicyError` without privileged state."""
        if observation.privileged is None:
            raise PolicyError("policy 'scripted' needs privileged state", remedy="Use a host that provides this state.")
        if self._script is not None:  # continue the script until its next action
            return self._script.send(observation)  # the script never ends
        if observation.base_pos_m is None:  # the robot has no mobile base
            self._script = follow_goal(observation, self.style)
        else:
            self._script = kitchen.follow_goal(observation, self.mobile_style, self._still)
        return next(self._script)

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""


def follow_goal(seen: Observation, style: motion.Style) -> motion.Move:
    """Place one object after another. If an object misses its place, try to place it again. At the end, keep the hand
    at its last target; if there was nothing to place, hold still.
    """
    # Yield an action [7], and receive the next observation, forever.
    arm = motion.FixedArm(seen, style)
    last_tried: placement.Placement | None = None
    attempt = 0
    while True:
        unfinished = placement.placements_left(arm.scene)
        if not unfinished:
            yield from arm.keep_target()
            continue
        # If the same object is still unfinished, the last attempt failed; the next attempt uses another grasp.
        attempt = attempt + 1 if unfinished[0] == last_tried else 0
        last_tried = unfinished[0]
        attempt = yield from placement.place_object(arm, last_tried, attempt)  # an object may need several attempts
