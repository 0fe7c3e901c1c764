"""RoboCasa-365: the 18 atomic-seen tasks on the mobile manipulator PandaOmron in robosuite 1.5, recorded.

The simulator is imported when an environment is made. What makes a RoboCasa episode repeatable stands in
`RobocasaEnv.reset` and `robocasa_episodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.actions import checked
from safevla_bench.hosts.mujoco.contacts import Floats
from safevla_bench.hosts.mujoco.recorder import Recorder, attached
from safevla_bench.hosts.mujoco.settling import settling
from safevla_bench.hosts.mujoco.viewer import MujocoStage, start
from safevla_bench.hosts.robocasa import episodes, install
from safevla_bench.hosts.robocasa.scene import PrivilegedView, episode_meta, scene
from safevla_bench.interface import Action, EpisodeSeed, Observation, Task, Wants
from safevla_bench.trajectory import Batch, Header, from_recording, marked_standin

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen

CAMERAS = ("robot0_agentview_left", "robot0_agentview_right", "robot0_agentview_center", "robot0_eye_in_hand")
CONTROL_STEP_S = 0.05
_SHOWN_BY = "robot0_agentview_center"
_ACTION = "position [3], rotation [3], gripper, base [3], torso, mode"


class RobocasaHost:
    """The host `robocasa`; needs the extra `robocasa` and RoboCasa's assets for everything but its suites and tasks.

    Args:
        split: whose scenes and objects: `target` (layout and style 1 to 10) or `pretrain` (11 to 60).
        horizons: of which release of RoboCasa: `v1.0.1` or `v1.0.0`.
    """

    name = "robocasa"

    def __init__(self, split: str = episodes.SPLITS[0], horizons: str = episodes.HORIZONS[0]) -> None:
        """Raise `HostError` where there is no such split or release."""
        self._split = _one_of("split", split, episodes.SPLITS)
        self._horizons = _one_of("horizons", horizons, episodes.HORIZONS)

    def suites(self) -> tuple[str, ...]:
        """The suites' benchmark names."""
        return episodes.suites()

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """The suite's tasks in alphabetical order.

        Raises:
            HostError: there is no such suite.
        """
        return episodes.tasks(suite, self._horizons)

    def make(self, task: Task, wants: Wants) -> RobocasaEnv:
        """An environment of one task; a renderer and its GL context only where a policy wants a camera.

        Raises:
            HostError: RoboCasa or its assets are missing, it has no such task, or no such camera.
        """
        unknown = sorted(set(wants.cameras) - set(CAMERAS))
        if unknown:
            raise HostError(f"RoboCasa has no camera {unknown[0]!r}", remedy=f"Cameras: {', '.join(CAMERAS)}.")
        return RobocasaEnv(task, wants, self.versions(), self._split, self._horizons)

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Set up a recorded episode, a batch of one with its `sim_state`, to be looked at, in the kitchen it names.

        Raises:
            HostError: nothing can be rendered here, or the record lacks what it takes.
        """
        header = episode.extra[0].get("header")
        told = header.get("robocasa") if isinstance(header, Mapping) else None
        if not isinstance(told, Mapping):
            remedy = "Only records that this host made can be shown."
            raise HostError("the record does not say in which kitchen it was made", remedy=remedy)
        split = _one_of("split", str(told.get("split")), episodes.SPLITS)
        env = RobocasaEnv(task, Wants(), self.versions(), split, self._horizons)
        try:
            env.reset(start(episode))
            return env.staged(episode)
        except BaseException:
            env.close()
            raise

    def versions(self) -> dict[str, str]:
        """Versions of all that a trajectory depends on, by distribution, and whose assets they are."""
        return install.versions()


def _one_of(what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise HostError(f"RoboCasa has no {what} {value!r}", remedy=f"Write {what}= one of: {', '.join(known)}.")
    return value


class RobocasaEnv:
    """One RoboCasa task with its recorder.

    Actions are those of PandaOmron's composite controller, [12] in [-1, 1]: end effector 0.05 m [0:3] and 0.5 rad [3:6]
    a unit in the frame of the base, gripper [6] (-1 opens, +1 closes), base forward, sideways and turn [7:10], torso
    [10], and mode [11]: above 0 the base moves and the arm stands still, else the arm moves. The end effector's pose in
    an observation is the grip site's, as in the record. Images are upright.
    """

    dt_s = CONTROL_STEP_S

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str], split: str, horizons: str) -> None:
        self.task = task
        size = len(episodes.STILL)
        self.action_low, self.action_high = np.full(size, -1.0), np.full(size, 1.0)
        self._wants, self._versions, self._split, self._horizons = wants, versions, split, horizons
        self._rules = episodes.rules(task)
        self._class = install.task_class(task)
        self._kitchen: Kitchen | None = None
        self._unhook: Callable[[], None] | None = None
        self._recorder: Recorder | None = None
        self._privileged: PrivilegedView | None = None
        self._seed: EpisodeSeed | None = None
        self._start: episodes.Start | None = None
        self._meta: Mapping[str, Any] = {}
        self._success = False

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a kitchen built anew, settle, take record 0.

        The same seed gives the same bytes, in this environment or another: RoboCasa rebuilds its model at each reset,
        and a kitchen that was used before remembers its last fixtures and where its generator stood, so a new one is
        made for each episode. The kitchen's own reset settles for ten control steps before those of `seed`.

        Raises:
            HostError: the index is below 0, or RoboCasa cannot build this kitchen.
        """
        start = episodes.start(self._split, seed, self._class.EXCLUDE_LAYOUTS, self._class.EXCLUDE_STYLES)
        self.close()
        kitchen = install.kitchen(self.task, start, self._wants)
        self._kitchen = kitchen
        seen = kitchen.reset()
        self._start, self._meta = start, episode_meta(kitchen)
        success = bool(kitchen._check_success())
        for _ in settling(seed, kitchen.sim, scene(kitchen, self._rules).objects):
            seen, reward, _, _ = kitchen.step(np.array(seed.wait_action or episodes.STILL))
            success = bool(reward)
        self._seed, self._success = seed, success
        self._start_recording(kitchen)
        return self._observation(seen)

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it; returns the observation and RoboCasa's own success.

        Raises:
            InvalidActionError: the action is not twelve finite numbers; nothing has been simulated.
            HostError: the simulation diverged, or there was no reset.
        """
        recorder, kitchen = self._recording()
        taken = checked(action, len(episodes.STILL), _ACTION)
        seen, reward, _, _ = kitchen.step(taken.copy())
        recorder.step(taken)
        self._success = bool(reward)
        return self._observation(seen), self._success

    def recorded(self) -> Batch:
        """The episode so far as a validated batch of one."""
        recorder, _ = self._recording()
        recording = recorder.recording(self._header(recorder))
        return from_recording(replace(recording, extra=self._extra()))

    def staged(self, episode: Batch) -> MujocoStage:
        """The kitchen of the last reset as a stage for an episode that began with the same seed; it owns this one."""
        _, kitchen = self._recording()
        view = scene(kitchen, self._rules)
        return MujocoStage(kitchen.sim.model._model, view, episode, _SHOWN_BY, self.close)

    def latest(self) -> Batch:
        """The newest record alone, as a validated batch of one record."""
        recorder, _ = self._recording()
        return from_recording(recorder.latest(self._header(recorder)))

    def close(self) -> None:
        """Free the simulator; a reset makes another. Closing twice is harmless."""
        if self._unhook is not None:
            self._unhook()
        if self._kitchen is not None:
            self._kitchen.close()
        self._unhook, self._recorder, self._privileged, self._kitchen = None, None, None, None

    def _start_recording(self, kitchen: Kitchen) -> None:
        view = scene(kitchen, self._rules)
        # With its `lite_physics` robosuite advances a substep in two halves; forces are there after the second.
        self._recorder, self._unhook = attached(kitchen.sim, "step2", view, self.task)
        self._privileged = PrivilegedView(kitchen, view, self._rules) if self._wants.privileged else None

    def _recording(self) -> tuple[Recorder, Kitchen]:
        if self._recorder is None or self._kitchen is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._recorder, self._kitchen

    def _header(self, recorder: Recorder) -> Header:
        assert self._seed is not None
        index = self._seed.init_state_index
        return Header(
            episode_id=f"{self.task.benchmark}/{self.task.task_id}/init_{index:03d}",
            benchmark=self.task.benchmark,
            task_id=self.task.task_id,
            success=self._success,
            dt=self.dt_s,
            target_object=self._rules.target,
            instruction=self._instruction(),
            env_seed=self._seed.env_seed,
            init_state_index=index,
            embodiment="PandaOmron",
            versions=self._versions,
            dropped_pairs=recorder.dropped_pairs(),
        )

    def _extra(self) -> dict[str, object]:
        """From what the episode can be rebuilt, and the mark of assets that are not RoboCasa's own."""
        assert self._start is not None
        fields = {**asdict(self._start), "horizons": self._horizons, "ep_meta": self._meta}
        extra: dict[str, object] = {"header": {"robocasa": fields}}
        return marked_standin(extra) if self._versions[install.ASSETS_ENTRY] != install.OFFICIAL else extra

    def _instruction(self) -> str:
        return self._meta["lang"] or self.task.instruction

    def _observation(self, seen: Mapping[str, NDArray[np.generic]]) -> Observation:
        return Observation(
            instruction=self._instruction(),
            eef_pos_m=np.array(seen["robot0_eef_pos"], dtype=np.float64),
            eef_quat_wxyz=_wxyz(seen["robot0_eef_quat"]),
            gripper_qpos=np.array(seen["robot0_gripper_qpos"], dtype=np.float64),
            images={camera: np.array(seen[f"{camera}_image"][::-1], dtype=np.uint8) for camera in self._wants.cameras},
            privileged=self._privileged.now() if self._privileged else None,
            base_pos_m=np.array(seen["robot0_base_pos"], dtype=np.float64),
            base_quat_wxyz=_wxyz(seen["robot0_base_quat"]),
        )


def _wxyz(quat_xyzw: NDArray[np.generic]) -> Floats:
    return np.array(quat_xyzw[[3, 0, 1, 2]], dtype=np.float64)
