"""The policies `noop`, `random` and `metaworld:expert`.

`noop` keeps the arm still and the gripper open, so only the scene can cause a violation. `random` draws random actions;
the same seed gives the same actions. `metaworld:expert` executes the script that Meta-World provides for the task.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task

if TYPE_CHECKING:
    from metaworld.policies.policy import Policy as Script


class _BlindPolicy:
    # The common part of policies that ignore observations.
    wants = Wants()

    def __init__(self, arg: str | None = None) -> None:
        # `arg` is the text after the colon of NAME:ARG, or None without a colon. Subclasses refuse any text.
        if arg is not None:
            name = type(self).__name__.lower()  # the class `Noop` is the policy `noop`
            raise PolicyError(f"policy {name!r} takes no text after the colon: {arg!r}", remedy=f"Write {name}.")
        # `reset` sets both attributes: the host's action for holding still, and a generator with the episode's seed.
        self._still: tuple[float, ...] = ()
        self._generator = np.random.default_rng(0)

    def reset(self, task: Task, seed: int) -> None:
        self._still, self._generator = task.still, np.random.default_rng(seed)  # `still`: the action without motion

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""


class Noop(_BlindPolicy):
    """A policy that always returns the host's action for holding still with an open gripper."""

    def act(self, observation: Observation) -> Action:
        # Return the host's action for holding still, [A]; the observation is ignored.
        return np.array(self._still)


class Random(_BlindPolicy):
    """A policy that draws each number of every action independently and uniformly from [-1, 1)."""

    def act(self, observation: Observation) -> Action:
        # Return an action with independent uniform random numbers, [A]; the observation is ignored.
        return self._generator.uniform(-1.0, 1.0, size=len(self._still))


# Meta-World's scripts


EXPERT = "expert"
_REMEDY = "Use `metaworld:expert` with `--host metaworld`, after a reset."
STATE = "state"  # key of Meta-World's observation, an array [39], in `Observation.extra`


class MetaworldExpert:
    """Meta-World's script for the task, from `metaworld.policies`. The script is deterministic, so the seed has no
    effect. Its actions are clipped to [-1, 1], as in Meta-World's evaluation.
    """

    wants = Wants(privileged=True, extra=(STATE,))

    def __init__(self, scripts: Mapping[str, Callable[[], Script]]) -> None:
        # `scripts` maps the name of a task to the class of Meta-World's script for this task.
        self._scripts = scripts
        self._script: Script | None = None  # None until the first `reset`

    def require_task(self, task: Task) -> None:
        # Raise `PolicyError` if Meta-World has no script for the task.
        if task.name not in self._scripts:
            raise PolicyError(f"Meta-World has no script for {task.benchmark} {task.task_id}", remedy=_REMEDY)

    def reset(self, task: Task, seed: int) -> None:
        # A new script for each episode, because scripts may have state. `seed` is ignored: scripts are deterministic.
        self.require_task(task)
        self._script = self._scripts[task.name]()

    def act(self, observation: Observation) -> Action:
        """Return the script's action, [4]; raise `PolicyError` before a reset or without Meta-World's observation."""
        if self._script is None or STATE not in observation.extra:
            raise PolicyError("policy 'metaworld' needs Meta-World's observation", remedy=_REMEDY)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script often warns that it clips actions
            action = self._script.get_action(observation.extra[STATE].copy())  # the script may modify the array
        return np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0)  # as in Meta-World's evaluation

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""


def make_metaworld(arg: str | None) -> MetaworldExpert:
    """Return `metaworld:expert`; raise `PolicyError` if `arg` is not `expert`, or Meta-World is not installed."""
    if arg != EXPERT:
        raise PolicyError(f"policy 'metaworld' has no variant {arg!r}", remedy="Write metaworld:expert.")
    try:
        from metaworld.policies import ENV_POLICY_MAP  # maps the name of a task to its script's class
    except ImportError as error:
        problem = f"policy 'metaworld' needs the package metaworld: {error}"
        raise PolicyError(problem, remedy="pip install 'safevla-bench[metaworld]', or: make metaworld") from error
    return MetaworldExpert(ENV_POLICY_MAP)
