"""The policy `maniskill:expert` executes plans of ManiSkill's motion planners, which use privileged state."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.hosts.maniskill import host
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task

EXPERT, CONTROL = "expert", "pd_joint_delta_pos"
UNIT_RAD = 0.1  # the angle [rad] by which an action of 1 rotates a joint
_REMEDY = f"Use `maniskill:expert` with --host maniskill --host-arg control={CONTROL}."


class _PlannerEnv:
    """An environment for planners. It takes joint positions, and executes and stores the equivalent joint changes."""

    control_mode = "pd_joint_pos"  # planners choose the format of their actions by this mode

    def __init__(self, env: Any) -> None:
        # Wrap a ManiSkill environment for a planner, which calls `env.unwrapped`, `reset` and `step`.
        self._env = env
        self.unwrapped = self  # so planners cannot bypass this wrapper
        self.actions: list[Action] = []  # the executed joint changes, [8] each

    def __getattr__(self, name: str) -> Any:
        # Return an attribute of the wrapped environment. Python calls this method if the wrapper lacks the attribute.
        return getattr(self._env, name)

    def reset(self, **_: object) -> None:
        """Do nothing: the wrapped environment is already at the episode's start."""

    def step(self, action: Action) -> Any:
        # `action` contains seven joints' target positions [rad] and the gripper's command.
        # Returns the environment's result.
        joints_rad = self._env.agent.robot.get_qpos()[0, :7].numpy()
        # In the host's actions, a joint's number is the joint's change divided by `UNIT_RAD`, from -1 to 1.
        unit_changes = np.append((action[:7] - joints_rad) / UNIT_RAD, action[7])
        self.actions.append(np.clip(unit_changes, -1.0, 1.0).astype(np.float64))
        return self._env.step(self.actions[-1].astype(np.float32))


class ManiskillPlanner:
    """A policy that executes the plan of ManiSkill's planner for the task, action by action. The planner works in a
    separate scene with the same seed. The plan is deterministic, so the policy's seed has no effect.
    """

    wants = Wants(privileged=True, extra=(host.START,))

    def __init__(self, planners: Mapping[str, Callable[..., Any]]) -> None:
        # `planners` maps the name of a task to ManiSkill's function that plans and executes the task.
        self._planners = planners
        self._task: Task | None = None
        self._envs: dict[str, Any] = {}  # the planner's scene for each task, by the task's name
        self._actions: list[Action] = []  # the remaining actions of the plan; [] = no plan was made yet

    def require_task(self, task: Task) -> None:
        """Raise `PolicyError` if ManiSkill has no planner for the task, or the actions are not joint changes."""
        if task.name not in self._planners:
            raise PolicyError(f"ManiSkill has no planner for {task.benchmark} {task.task_id}", remedy=_REMEDY)
        # The action for holding still differs between control modes, so it shows whether actions are joint changes.
        if task.still != host.still_action(CONTROL):
            count = len(task.still)
            problem = f"ManiSkill's planners move joints; this host's actions do something else ({count} numbers)"
            raise PolicyError(problem, remedy=_REMEDY)

    def reset(self, task: Task, seed: int) -> None:
        # `seed`, the policy's seed, has no effect, because plans are deterministic.
        self.require_task(task)
        self._task, self._actions = task, []  # the first `act` makes the plan, because it knows the episode's start

    def act(self, observation: Observation) -> Action:
        """Return the plan's next action, [8]. After the plan's end, repeat the last action. Raises `PolicyError`
        before the first reset, or if the observation lacks the seed of the host's random start.
        """
        if self._task is None or host.START not in observation.extra:
            raise PolicyError("policy 'maniskill' needs the random start of the ManiSkill host", remedy=_REMEDY)
        if not self._actions:
            seed, settle_steps = map(int, observation.extra[host.START])  # how the host's episode started
            self._actions = self._plan_actions(self._task, seed, settle_steps)
        # The last action stays in the list and is repeated.
        return self._actions.pop(0) if len(self._actions) > 1 else self._actions[0]

    def _plan_actions(self, task: Task, seed: int, settle_steps: int) -> list[Action]:
        # Return the actions that the planner executes in its scene. If there are none, return only the still action.
        if task.name not in self._envs:
            self._envs[task.name] = host.make_env(task.name, CONTROL)
        env, still = self._envs[task.name], np.array(task.still)
        host.build_scene(env, seed)
        # The same settling steps as in the host's episode lead to the same scene.
        for _ in range(settle_steps):
            env.step(still.astype(np.float32))
        planner_env = _PlannerEnv(env)
        with redirect_stdout(io.StringIO()):  # hides the output of a failed planner
            self._planners[task.name](planner_env, seed=seed)
        return planner_env.actions or [still]

    def close(self) -> None:
        # Release the planner's simulators.
        for env in self._envs.values():
            env.close()
        self._envs.clear()


def make(arg: str | None) -> ManiskillPlanner:
    """Return `maniskill:expert`. Raises `PolicyError` if the text after the colon is not `expert`, or if the planners
    lack a package. Raises `HostError` if ManiSkill is not installed.
    """
    if arg != EXPERT:
        raise PolicyError(f"policy 'maniskill' has no variant {arg!r}", remedy="Write maniskill:expert.")
    host.import_maniskill()  # raises `HostError`
    try:
        from mani_skill.examples.motionplanning.panda.run import MP_SOLUTIONS  # maps tasks to planners
    except ImportError as error:
        problem = f"policy 'maniskill' needs the package mplib: {error}"
        raise PolicyError(problem, remedy="make maniskill   (in a checkout)") from error
    return ManiskillPlanner(MP_SOLUTIONS)
