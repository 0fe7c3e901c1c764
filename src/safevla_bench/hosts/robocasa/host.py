"""RoboCasa-365: the 18 atomic-seen tasks on the mobile manipulator PandaOmron in robosuite 1.5, recorded.

What makes an episode repeatable stands in `RobocasaEnv.reset` and `safevla_bench.hosts.robocasa.kitchens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, check_wants
from safevla_bench.hosts.mujoco.environment import RawObservation, RobosuiteEnv, flat_state, to_wxyz
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.hosts.mujoco.viewer import MujocoStage, read_told_scene, recorded_fixtures
from safevla_bench.hosts.robocasa import install, kitchens
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode, Task
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import mark_standin
from safevla_recorder.mujoco.scene import Scene, set_state, state_size
from safevla_recorder.robocasa.attachment import ASSETS_ENTRY, EMBODIMENT, OFFICIAL, episode_meta, read_scene

if TYPE_CHECKING:
    import mujoco
    from robocasa.environments.kitchen.kitchen import Kitchen

CAMERAS = ("robot0_agentview_left", "robot0_agentview_right", "robot0_agentview_center", "robot0_eye_in_hand")


class RobocasaHost:
    """The host `robocasa`; needs the extra `robocasa` and RoboCasa's assets for everything but its suites and tasks.

    Args:
        split: whose scenes and objects: `target` (layout and style 1 to 10) or `pretrain` (11 to 60).
        horizons: of which release of RoboCasa: `v1.0.1` or `v1.0.0`.
    """

    name = "robocasa"

    def __init__(self, split: str = kitchens.SPLITS[0], horizons: str = kitchens.HORIZONS[0]) -> None:
        self._split = _require_one_of("split", split, kitchens.SPLITS)
        self._horizons = _require_one_of("horizons", horizons, kitchens.HORIZONS)

    def suites(self) -> tuple[str, ...]:
        return kitchens.suites()

    def tasks(self, suite: str) -> tuple[Task, ...]:
        return kitchens.tasks(suite, self._horizons)

    def make(self, task: Task, wants: Wants) -> RobocasaEnv:
        check_wants(wants, CAMERAS, "RoboCasa")
        return RobocasaEnv(task, wants, self.versions(), self._split, self._horizons)

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        scene = read_told_scene(episode, self.name)
        if not scene:
            remedy = "Only records of this host, or of safevla_recorder.record, can be shown."
            raise HostError("the record does not say in which kitchen it was made", remedy=remedy)
        split = _require_one_of("split", str(scene.get("split", kitchens.SPLITS[0])), kitchens.SPLITS)
        env = RobocasaEnv(task, Wants(), self.versions(), split, self._horizons)
        if "split" in scene:
            return env.open_stage(episode)
        # An episode of a loop of somebody's own names no seed of this host's.
        return env.open_stage(episode, lambda: env.rebuild(scene, recorded_fixtures(episode)))

    def versions(self) -> dict[str, str]:
        return install.versions()


def _require_one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise HostError(f"RoboCasa has no {name} {value!r}", remedy=f"Write {name}= one of: {', '.join(choices)}.")
    return value


class RobocasaEnv(RobosuiteEnv):
    """One RoboCasa task with its recorder.

    Actions are those of PandaOmron's composite controller, [12] in [-1, 1]: end effector 0.05 m [0:3] and 0.5 rad [3:6]
    a unit in the frame of the base, gripper [6] (-1 opens, +1 closes), base forward, sideways and turn [7:10], torso
    [10], and mode [11]: above 0 the base moves and the arm stands still, else the arm moves. The end effector's pose in
    an observation is the grip site's, as in the record. Images are upright.
    """

    action_meaning = "position [3], rotation [3], gripper, base [3], torso, mode"
    substep_method = "step2"
    # With its `lite_physics` robosuite advances a substep in two halves; forces are there after the second.
    stage_camera = "robot0_agentview_center"
    embodiment = EMBODIMENT

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str], split: str, horizons: str) -> None:
        super().__init__(task, wants, versions, len(kitchens.STILL))
        self._split, self._horizons = split, horizons
        self._rules = kitchens.kitchen_task(task)
        self._class = install.task_class(task)
        self._kitchen: Kitchen | None = None
        self._start: kitchens.KitchenStart | None = None
        self._meta: Mapping[str, Any] = {}

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a kitchen built anew, settle, take record 0.

        A kitchen that was used before remembers its last fixtures and where its generator stood, so a new one is made
        for each episode. Its own reset settles for ten control steps before those of `seed`. An episode of somebody's
        own kitchen, which `seed.recorded.told` describes, is begun in one of the same options: at its recorded state if
        one is given, else from `seed.env_seed` as the generator's own seed, after as many resets as the loop had made.
        Every start is drawn. Raises `HostError` if an episode cannot start by this seed.
        """
        check_start(self.task, seed)
        if seed.recorded is not None and seed.recorded.state is not None:
            raw = self._begin_at_state(seed.recorded, seed.recorded.state, is_seen=not seed.wait_steps)
        else:
            raw = self._begin_from_seed(seed)
        kitchen = self._require_kitchen()
        still = np.array(seed.wait_action or kitchens.STILL)
        raw, success = self._settle(seed, still, raw, bool(kitchen._check_success()))
        self._start_recording(seed, success=success)
        return self._observe(raw)

    def rebuild(self, told: Mapping[str, object], fixtures: Mapping[str, NDArray[np.float64]]) -> mujoco.MjModel:
        """Make the kitchen that a record describes by its header field `robocasa`, and return its model.

        RoboCasa's description does not say where on a counter it drew the place of a toaster or a knife block;
        `fixtures` does, root body -> position [3] in m and quaternion [4] wxyz. Raises `HostError` if the field
        describes no kitchen, or the kitchen made here has other joints.
        """
        meta = told.get("ep_meta")
        if not isinstance(meta, Mapping):
            raise kitchens.no_kitchen_error()
        kitchen = self._make_kitchen(kitchens.told_start(told, 0), told, is_seen=True)
        kitchens.describe_kitchen(kitchen, meta, told.get("joints"))
        kitchen.reset()
        self._meta = meta
        model = kitchen.sim.model._model
        kitchens.require_joints(model, told.get("joints"))
        for body in range(model.nbody):
            pose = fixtures.get(str(model.body(body).name))
            if pose is not None:
                model.body_pos[body], model.body_quat[body] = pose[:3], pose[3:]
        return model

    def _make_kitchen(self, start: kitchens.KitchenStart, told: Mapping[str, object], *, is_seen: bool) -> Kitchen:
        self.close()
        self._kitchen = kitchen = install.kitchen(self.task, start, self._wants)
        kitchens.set_options(kitchen, told.get("options"))
        self._gate.install(kitchen)
        self._renders_next = True
        self._gate.set_open(is_seen)
        self._start = start
        return kitchen

    def _begin_from_seed(self, seed: EpisodeSeed) -> RawObservation:
        told = seed.recorded.told if seed.recorded is not None else {}
        start = (
            kitchens.told_start(told, seed.env_seed)
            if told
            else kitchens.start(self._split, seed, self._class.EXCLUDE_LAYOUTS, self._class.EXCLUDE_STYLES)
        )
        kitchen = self._make_kitchen(start, told, is_seen=not seed.wait_steps)
        if told:
            for _ in range(seed.earlier_resets or 0):
                kitchen.reset()
        raw: RawObservation = kitchen.reset()
        self._meta = episode_meta(kitchen)
        return raw

    def _begin_at_state(self, recorded: RecordedEpisode, state: Sequence[float], *, is_seen: bool) -> RawObservation:
        fixtures = {name: np.array(pose) for name, pose in recorded.fixtures}
        model = self.rebuild(recorded.told, fixtures)
        kitchen: Any = self._require_kitchen()
        data = kitchen.sim.data._data
        set_state(model, data, flat_state(state, state_size(model)))
        kitchen.sim.forward()
        kitchens.restore_memory(kitchen, recorded.told.get("memory"))
        self._gate.set_open(is_seen)
        raw: RawObservation = kitchen._get_observations(force_update=True)
        return raw

    def close(self) -> None:
        """Free the simulator; a reset makes another. Closing twice is harmless."""
        self._stop_recording()
        if self._kitchen is not None:
            self._kitchen.close()
        self._kitchen = None

    def _require_kitchen(self) -> Kitchen:
        if self._kitchen is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._kitchen

    def _robosuite(self) -> Any:
        return self._require_kitchen()

    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        raw, reward, _, _ = self._require_kitchen().step(action)
        return raw, bool(reward)

    def _read_scene(self) -> Scene:
        return read_scene(self._require_kitchen(), self._rules.target, self._rules.moves)

    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        return kitchens.view_privileged(self._require_kitchen(), scene, self._rules)

    def _target_object(self) -> str | None:
        return self._rules.target

    def _extra_fields(self) -> dict[str, object]:
        assert self._start is not None
        fields = {**asdict(self._start), "horizons": self._horizons, "ep_meta": self._meta}
        extra: dict[str, object] = {"header": {"robocasa": fields}}
        return mark_standin(extra) if self._versions[ASSETS_ENTRY] != OFFICIAL else extra

    def _instruction(self) -> str:
        return self._meta["lang"] or self.task.instruction

    def _base_pose(self, raw: RawObservation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(raw["robot0_base_pos"], dtype=np.float64), to_wxyz(raw["robot0_base_quat"])
