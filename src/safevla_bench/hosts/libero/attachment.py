"""A LIBERO environment that somebody else made and steps, seen by the recorder: hooks, task, initial state.

The hooks sit on `ControlEnv` (and so on `OffScreenRenderEnv`) where LIBERO's robosuite environment inside it does not
see the call, else on that one, so that scripts which reach through `env.env` are seen too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from safevla_bench.errors import HostError
from safevla_bench.hosts.attachment import Undo, Watcher, around
from safevla_bench.hosts.libero import install
from safevla_bench.hosts.libero import tasks as listed
from safevla_bench.hosts.libero.scene import header, scene
from safevla_bench.hosts.mujoco.contacts import Floats
from safevla_bench.hosts.mujoco.recorder import Recorder, attached
from safevla_bench.interface import Action
from safevla_bench.trajectory import Header

if TYPE_CHECKING:
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain
    from libero.libero.envs.env_wrapper import ControlEnv

_INNER = ("_env", "env", "unwrapped")
"""Where wrappers, such as LeRobot's or gymnasium's, keep the environment they wrap."""
_ARM_JOINTS = 7


def watched(env: object) -> WatchedLibero | None:
    """The LIBERO environment in `env`, which may be a wrapper that holds it; None where there is none.

    Raises:
        HostError: it is a vector of environments, is closed, or has another robot or robosuite than records are for.
    """
    wrappers = sys.modules.get("libero.libero.envs.env_wrapper")
    if wrappers is None:  # nobody has made one
        return None
    vectors = sys.modules.get("libero.libero.envs.venv")
    if vectors is not None and isinstance(env, vectors.BaseVectorEnv):
        remedy = "Make single environments, one a process and each with an `out` of its own; `score` reads several."
        raise HostError("a vector of environments cannot be recorded: its workers are out of reach", remedy=remedy)
    found = next((layer for layer in _layers(env) if isinstance(layer, wrappers.ControlEnv)), None)
    return None if found is None else WatchedLibero(found)


def _layers(env: object) -> Iterator[object]:
    """The environment, then what it wraps, outside in."""
    seen: list[object] = []
    waiting = [env]
    while waiting and len(seen) < 16:
        layer = waiting.pop(0)
        if layer is None or any(layer is one for one in seen):
            continue
        seen.append(layer)
        yield layer
        waiting += [getattr(layer, name, None) for name in _INNER]


class WatchedLibero:
    """One `ControlEnv`, of any subclass."""

    host = "libero"
    wait_steps = 10

    def __init__(self, control: ControlEnv) -> None:
        domain = _domain(control)
        install.require_robosuite(str(sys.modules["robosuite"].__version__))
        self.versions = install.versions_found()
        self.task = listed.task_of(Path(domain.bddl_file_name))
        self.action_size = int(domain.action_dim)
        self._control, self._domain = control, domain
        self._init_states: Floats | None = listed.known_init_states(self.task)

    def start_from(self, init_states: ArrayLike) -> None:
        """Take these as the task's initial states, [count, 1 + nq + nv]."""
        self._init_states = np.atleast_2d(np.asarray(init_states, dtype=np.float64))

    def watch(self, watcher: Watcher) -> Undo:
        """Tell `watcher` what happens from now on; returns what takes the hooks off."""
        control, domain = self._control, self._domain

        def restarted(original: Any, *args: object, **kwargs: object) -> object:
            watcher.ending()
            return original(*args, **kwargs)

        def reset(original: Any, *args: object, **kwargs: object) -> object:
            watcher.ending()  # for scripts that reset `env.env`; for the others this is the second time
            seen = original(*args, **kwargs)
            watcher.reset()
            return seen

        def placed(original: Any, mujoco_state: ArrayLike) -> object:
            watcher.ending()
            result = original(mujoco_state)
            watcher.placed(self._index(mujoco_state))
            return result

        def seeded(original: Any, seed: int) -> object:
            watcher.seeded(int(seed))
            return original(seed)

        undo = [
            around(control, "reset", restarted),  # outside its loop, which swallows whatever is raised inside
            around(control, "set_state", placed),
            around(domain, "reset", reset),
            around(domain, "seed", seeded),
            around(domain, "step", partial(self._step, watcher)),
            around(domain, "close", restarted),
        ]

        def unwatch() -> None:
            for one in undo:
                one()

        return unwatch

    def _step(self, watcher: Watcher, original: Any, action: object) -> object:
        watcher.stepping(action)
        try:
            result = original(action)
        except BaseException as error:
            watcher.failed(error)
            raise
        watcher.stepped(bool(result[2]))
        return result

    def _index(self, state: ArrayLike) -> int | None:
        given = np.asarray(state, dtype=np.float64).ravel()
        states = self._init_states
        if states is None or states.shape[1:] != given.shape:
            return None
        return next(iter(np.flatnonzero((states == given).all(axis=1)).tolist()), None)

    def begin(self) -> tuple[Recorder, Undo]:
        """A recorder of the present model, attached, with record 0 taken; and what detaches it."""
        view = scene(self._domain)
        return attached(self._domain.sim, "step", view, self.task)

    def holds(self, action: Action) -> bool:
        """Whether only the gripper, the last number, is told anything."""
        return not np.any(action[:-1])

    def header(self, recorder: Recorder, *, success: bool, env_seed: int | None, index: int | None) -> Header:
        """The header as the host's own rollouts write it."""
        step_s = float(self._domain.control_timestep)
        return header(
            self._domain, recorder, self.task, self.versions, dt=step_s, success=success, env_seed=env_seed, index=index
        )


def _domain(control: ControlEnv) -> BDDLBaseDomain:
    domain = getattr(control, "env", None)
    if domain is None:
        raise HostError("the environment is closed", remedy="Make a new one before recording.")
    if hasattr(vars(domain).get("step"), "__wrapped__"):
        raise HostError("the environment is being recorded already", remedy="Record it once.")
    robot = domain.robots[0]
    if len(domain.robots) != 1 or len(robot._ref_joint_vel_indexes) != _ARM_JOINTS or "Panda" not in robot.name:
        named = ", ".join(str(one.name) for one in domain.robots)
        remedy = "Make the environment with one Panda, LIBERO's default."
        raise HostError(f"the robot {named} is not LIBERO's Panda, whose torque limits records have", remedy=remedy)
    return domain
