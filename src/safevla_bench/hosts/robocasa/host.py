"""RoboCasa-365: the 18 atomic-seen tasks on the mobile manipulator PandaOmron in robosuite 1.5, recorded.

What makes an episode repeatable stands in `RobocasaEnv.reset` and `safevla_bench.hosts.robocasa.kitchens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, check_wants, require_known
from safevla_bench.hosts.mujoco.environment import MujocoHost, RawObservation, RobosuiteEnv, to_wxyz
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.hosts.mujoco.viewer import MujocoStage
from safevla_bench.hosts.robocasa import kitchens
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import EpisodeSeed, Task
from safevla_bench.tasks.loader import registry
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.episode import add_header_mark
from safevla_recorder.mujoco.recorder import Scene
from safevla_recorder.robocasa import (
    ASSETS_ENTRY,
    EMBODIMENT,
    OFFICIAL,
    STANDIN_MARK,
    episode_meta,
    goal_target,
    moved_fixture,
    read_scene,
)

CAMERAS = ("robot0_agentview_left", "robot0_agentview_right", "robot0_agentview_center", "robot0_eye_in_hand")


class RobocasaHost(MujocoHost):
    """The host `robocasa`; needs the extra `robocasa` and RoboCasa's assets for everything but its suites and tasks.

    Args:
        split: whose scenes and objects: `target` (layout and style 1 to 10) or `pretrain` (11 to 60).
        horizons: of which release of RoboCasa: `v1.0.1` or `v1.0.0`.
    """

    name = "robocasa"

    def __init__(self, split: str = kitchens.SPLITS[0], horizons: str = kitchens.HORIZONS[0]) -> None:
        require_known("RoboCasa", "split", split, kitchens.SPLITS)
        require_known("RoboCasa", "horizons", horizons, kitchens.HORIZONS)
        self._split, self._horizons = split, horizons

    def suites(self) -> tuple[str, ...]:
        return tuple(kitchens.read_table().suites)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the suite's tasks in alphabetical order, with the horizons of that release."""
        table, entries = kitchens.read_table(), registry().tasks
        require_known("RoboCasa", "suite", suite, table.suites)
        return tuple(
            Task(
                benchmark=suite,
                task_id=name,
                index=index,
                name=name,
                instruction=entries[suite, name].instruction or name,
                horizon=table.tasks[name]["horizon"][self._horizons],
                episodes=table.episodes,
                still=kitchens.STILL,
            )
            for index, name in enumerate(table.suites[suite])
        )

    def make(self, task: Task, wants: Wants) -> RobocasaEnv:
        """Return a new environment of one task. Raises `HostError` if RoboCasa or its assets are missing, it has no
        such task, camera or reading, or the policy gives poses.
        """
        check_wants(wants, CAMERAS, "RoboCasa")
        return RobocasaEnv(task, wants, self.versions(), self._split, self._horizons)

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Set up a recorded episode, a batch of one with its `sim_state`, to be looked at, in the kitchen it names."""
        header = episode.extra[0].get("header")
        scene = header.get(self.name) if isinstance(header, Mapping) else None
        if not isinstance(scene, Mapping) or "split" not in scene:
            problem = "the record does not say by which split and seed its kitchen was made"
            raise HostError(problem, remedy="Only records of `safevla eval` can be shown.")
        split = str(scene["split"])
        require_known("RoboCasa", "split", split, kitchens.SPLITS)
        return RobocasaEnv(task, Wants(), self.versions(), split, self._horizons).open_stage(episode)

    def versions(self) -> dict[str, str]:
        return kitchens.versions()


class RobocasaEnv(RobosuiteEnv):
    """One RoboCasa task with its recorder.

    Actions are those of PandaOmron's composite controller, [12] in [-1, 1]: end effector 0.05 m [0:3] and 0.5 rad [3:6]
    a unit in the frame of the base, gripper [6] (-1 opens, +1 closes), base forward, sideways and turn [7:10], torso
    [10], and mode [11]: above 0 the base moves and the arm stands still, else the arm moves. The end effector's pose in
    an observation is the grip site's, as in the record. Images are upright.
    """

    action_meaning = "position [3], rotation [3], gripper, base [3], torso, mode"
    still = kitchens.STILL
    stage_camera = "robot0_agentview_center"
    embodiment = EMBODIMENT

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str], split: str, horizons: str) -> None:
        """Look up the task and import RoboCasa; the first reset makes its kitchen."""
        super().__init__(task, wants, versions)
        self._split, self._horizons = split, horizons
        self._goal = kitchens.task_goal(task)
        self._class = kitchens.task_class(task)
        self._start: kitchens.KitchenStart | None = None
        self._meta: Mapping[str, Any] = {}

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a kitchen built anew, settle, take record 0.

        The same seed gives the same bytes, in this environment or another: RoboCasa rebuilds its model at each reset,
        and a kitchen that was used before remembers its last fixtures and where its generator stood, so a new one is
        made for each episode. What RoboCasa draws by the order of a set has one order here (`kitchens`). The kitchen's
        own reset settles for ten control steps before those of `seed`.

        Every start is drawn, whether `seed.drawn` says so or not: RoboCasa's tasks have no initial states.

        Raises:
            HostError: `check_start` refuses the seed, or RoboCasa cannot build this kitchen.
        """
        check_start(self.task, seed, takes_states=False)
        kind = self._class
        start = kitchens.start(self._split, seed, kind.EXCLUDE_LAYOUTS, kind.EXCLUDE_STYLES)
        make = partial(kitchens.make_kitchen, self.task, start, self._wants)
        kitchen, self._start = self._make_anew(make, is_seen=not seed.wait_steps), start
        raw = kitchen.reset()
        self._meta = episode_meta(kitchen)
        return self._settle_and_record(seed, raw, bool(kitchen._check_success()))

    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        raw, reward, _, _ = self._robosuite().step(action)
        return raw, bool(reward)

    def _read_scene(self) -> Scene:
        return read_scene(self._robosuite(), goal_target(self._goal), moved_fixture(self._goal))

    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        return kitchens.view_privileged(self._robosuite(), scene, self._goal)

    def _target_object(self) -> str | None:
        return goal_target(self._goal)

    def _extra_fields(self) -> dict[str, object]:
        assert self._start is not None
        fields = {**asdict(self._start), "horizons": self._horizons, "ep_meta": self._meta}
        extra: dict[str, object] = {"header": {"robocasa": fields}}
        return add_header_mark(extra, STANDIN_MARK) if self._versions[ASSETS_ENTRY] != OFFICIAL else extra

    def _instruction(self) -> str:
        return self._meta["lang"] or self.task.instruction

    def _base_pose(self, raw: RawObservation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(raw["robot0_base_pos"], dtype=np.float64), to_wxyz(raw["robot0_base_quat"])
