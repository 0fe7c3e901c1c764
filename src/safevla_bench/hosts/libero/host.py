"""LIBERO: its suites, and task files of one's own, in robosuite 1.4, recorded.

The simulator is imported when an environment is made. What makes a LIBERO episode repeatable stands in
`LiberoEnv.reset` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.actions import checked
from safevla_bench.hosts.libero import install
from safevla_bench.hosts.libero import tasks as listed
from safevla_bench.hosts.libero.scene import PrivilegedView, header, scene
from safevla_bench.hosts.libero.states import coordinates, starting_state, tell_controllers
from safevla_bench.hosts.mujoco.contacts import Floats
from safevla_bench.hosts.mujoco.recorder import Recorder, attached
from safevla_bench.hosts.mujoco.settling import settling
from safevla_bench.hosts.mujoco.viewer import MujocoStage, start
from safevla_bench.interface import Action, Coordinate, EpisodeSeed, Observation, Task, Wants
from safevla_bench.trajectory import Batch, Header, from_recording

if TYPE_CHECKING:
    from safevla_bench.hosts.libero.attachment import WatchedLibero

CAMERAS = ("agentview", "robot0_eye_in_hand")
CONTROL_STEP_S = 0.05
STILL: Action = np.array([0.0] * 6 + [-1.0])
"""No motion, gripper opening: LIBERO's own settling action."""
_ACTION = "position [3], rotation [3], gripper"


class LiberoHost:
    """The host `libero`; needs the extra `libero` for everything but its suites."""

    name = "libero"

    def suites(self) -> tuple[str, ...]:
        """The suites' benchmark names."""
        return tuple(listed.SUITES)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """The suite's tasks in LIBERO's order; `libero-long` is `libero-10`.

        A path in the place of a suite's name is one's own task: a BDDL file, or a folder of them in the order of their
        names. The folder's name is their benchmark's.

        Raises:
            HostError: there is no such suite or file, or LIBERO is not installed.
        """
        benchmark = listed.ALIASES.get(suite, suite)
        if benchmark not in listed.SUITES:
            if listed.is_path(suite):
                install.require()
                return listed.tasks_at(Path(suite))
            known = ", ".join([*listed.SUITES, *listed.ALIASES])
            remedy = f"Suites: {known}; or the path of a .bddl file, or of a folder of them."
            raise HostError(f"LIBERO has no suite {suite!r}", remedy=remedy)
        install.require()
        return listed.tasks(benchmark)

    def make(self, task: Task, wants: Wants) -> LiberoEnv:
        """An environment of one task; a renderer and its GL context only where a policy wants a camera.

        Raises:
            HostError: LIBERO cannot be used here, has no such task, or has no such camera.
        """
        unknown = sorted(set(wants.cameras) - set(CAMERAS))
        if unknown:
            raise HostError(f"LIBERO has no camera {unknown[0]!r}", remedy=f"Cameras: {', '.join(CAMERAS)}.")
        return LiberoEnv(task, wants, self.versions())

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Set up a recorded episode, a batch of one with its `sim_state`, to be looked at.

        Raises:
            HostError: nothing can be rendered here, or the record lacks what it takes.
        """
        env = self.make(task, Wants())
        try:
            env.reset(start(episode))
            return env.staged(episode)
        except BaseException:
            env.close()
            raise

    def versions(self) -> dict[str, str]:
        """Versions of all that a trajectory depends on, by distribution."""
        return install.versions()

    def watched(self, env: object) -> WatchedLibero | None:
        """An environment of somebody else's making, to be recorded in their own loop; None if it is none of LIBERO's.

        Raises:
            HostError: it is LIBERO's, but cannot be recorded; says why.
        """
        from safevla_bench.hosts.libero.attachment import watched

        return watched(env)


class LiberoEnv:
    """One LIBERO task with its recorder.

    Actions are OSC_POSE's, [7] in [-1, 1]: 0.05 m and 0.5 rad a unit in the robot's base frame, gripper -1 opens and
    +1 closes; robosuite clips what is outside. The end effector's pose in an observation is LIBERO's own
    (`robot0_eef_pos`, `robot0_eef_quat` with w first), as its policies were trained on; the record has the grip site's,
    whose axes are the hand's turned by 90 degrees about its approach direction. Images are upright: MuJoCo renders
    from the bottom row, so they are flipped vertically here, once; a policy trained on images turned by 180 degrees
    mirrors them itself.
    """

    dt_s = CONTROL_STEP_S

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        self.task = task
        self.action_low, self.action_high = np.full(7, -1.0), np.full(7, 1.0)
        self._wants, self._versions = wants, versions
        self._init_states = listed.init_states(task)
        self._env = install.control_env(str(listed.bddl_file(task)), wants)
        self._unhook: Callable[[], None] | None = None
        self._recorder: Recorder | None = None
        self._privileged: PrivilegedView | None = None
        self._seed: EpisodeSeed | None = None
        self._success = False

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, settle, take record 0.

        The same seed gives the same bytes, in this environment or another. Three properties of LIBERO stand against
        that:

        - Its initial states hold no poses of fixtures, which are drawn anew at each reset from NumPy's global
          generator: it is seeded before every reset.
        - In tasks that begin with something open or closed, each reset adds one more sampler of that joint and none
          is taken away, so that each episode draws more numbers than the one before. The reset builds the
          list from the BDDL file again; it is emptied before.
        - An initial state set without a reset keeps the solver's warm start and the controller's goal of the last
          episode: there is always a reset.

        A task without initial states of its own, and any that is to be `drawn`, starts where the reset places things,
        with a seed made of the environment's and the index. A recorded state goes before all that.

        Raises:
            HostError: the task has no such initial state, or the recorded state is not one of its simulation.
        """
        played = seed.recorded if seed.recorded and seed.recorded.state is not None else None
        state = None if seed.drawn or played else self._initial_state(seed.init_state_index)
        still = STILL if seed.wait_action is None else checked(np.array(seed.wait_action), len(STILL), _ACTION)
        self._stop_recording()
        domain = self._env.env
        domain.object_property_initializers.clear()
        self._env.seed(placement_seed(seed) if state is None and played is None else seed.env_seed)
        seen = install.hard_reset(domain)
        if played is not None:
            state = starting_state(domain, played)
        if state is not None:
            seen = self._env.set_init_state(state)
        if played is not None:
            tell_controllers(domain)
        success = bool(self._env.check_success())
        for _ in settling(seed, domain.sim, scene(domain).objects):
            seen, _, success, _ = self._env.step(still.copy())
        self._seed, self._success = seed, bool(success)
        self._start_recording()
        return self._observation(seen)

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it; returns the observation and LIBERO's own success.

        Raises:
            InvalidActionError: the action is not seven finite numbers; nothing has been simulated.
            HostError: the simulation diverged, or there was no reset.
        """
        recorder = self._recording()
        taken = checked(action, len(STILL), _ACTION)
        seen, _, success, _ = self._env.step(taken.copy())
        recorder.step(taken)
        self._success = bool(success)
        return self._observation(seen), self._success

    def recorded(self) -> Batch:
        """The episode so far as a validated batch of one."""
        recorder = self._recording()
        return from_recording(recorder.recording(self._header(recorder)))

    def latest(self) -> Batch:
        """The newest record alone, as a validated batch of one record."""
        recorder = self._recording()
        return from_recording(recorder.latest(self._header(recorder)))

    def coordinates(self) -> tuple[Coordinate, ...]:
        """The joints of the present model, free ones by the name of their body."""
        return coordinates(self._env.env)

    def staged(self, episode: Batch) -> MujocoStage:
        """The scene of the last reset as a stage for an episode that began with the same seed; it owns this one."""
        domain = self._env.env
        return MujocoStage(domain.sim.model._model, scene(domain), episode, CAMERAS[0], self.close)

    def close(self) -> None:
        """Free the simulator; the environment cannot be used afterwards. Closing twice is harmless."""
        self._stop_recording()
        if hasattr(self._env, "env"):  # LIBERO's close deletes it
            self._env.close()

    def _initial_state(self, index: int) -> Floats | None:
        if self._init_states is None:
            return None
        count = len(self._init_states)
        if not 0 <= index < count:
            problem = f"{self.task.benchmark} {self.task.task_id} has no initial state {index}"
            raise HostError(problem, remedy=f"It has {count}: choose from 0 to {count - 1}.")
        state: Floats = self._init_states[index]
        return state

    def _start_recording(self) -> None:
        domain = self._env.env
        view = scene(domain)
        self._recorder, self._unhook = attached(domain.sim, "step", view, self.task)
        self._privileged = PrivilegedView(domain, view) if self._wants.privileged else None

    def _stop_recording(self) -> None:
        if self._unhook is not None:
            self._unhook()
        self._unhook, self._recorder, self._privileged = None, None, None

    def _recording(self) -> Recorder:
        if self._recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._recorder

    def _header(self, recorder: Recorder) -> Header:
        assert self._seed is not None
        elsewhere = self._seed.recorded is not None and self._seed.recorded.state is not None
        return header(
            self._env.env,
            recorder,
            self.task,
            self._versions,
            dt=self.dt_s,
            success=self._success,
            env_seed=self._seed.env_seed,
            index=None if elsewhere else self._seed.init_state_index,
        )

    def _observation(self, seen: Mapping[str, NDArray[np.generic]]) -> Observation:
        return Observation(
            instruction=self.task.instruction,
            eef_pos_m=np.array(seen["robot0_eef_pos"], dtype=np.float64),
            eef_quat_wxyz=np.array(seen["robot0_eef_quat"][[3, 0, 1, 2]], dtype=np.float64),
            gripper_qpos=np.array(seen["robot0_gripper_qpos"], dtype=np.float64),
            images={camera: np.array(seen[f"{camera}_image"][::-1], dtype=np.uint8) for camera in self._wants.cameras},
            privileged=self._privileged.now() if self._privileged else None,
        )


def placement_seed(seed: EpisodeSeed) -> int:
    """32 bits that place the objects of a task without initial states: one draw for each (env_seed, index)."""
    return int(np.random.SeedSequence([seed.env_seed, seed.init_state_index]).generate_state(1)[0])
