"""Host of RoboCasa-365: the 18 atomic-seen tasks on the mobile manipulator PandaOmron in robosuite 1.5.

Task, split, index and the environment's seed determine an episode. The index selects a scene, numbered as in RoboCasa:

- `target`: the ten scenes (layout i, style i), i = 1..10, in turn; index 10 is the first scene again.
- `pretrain`: 2,500 scenes in rounds of fifty, one for each layout 11..60. In the first round, layout i has style i. In
  each further round, each layout gets the next style. So 2,500 episodes use every pair of layout and style once.

Pairs that a RoboCasa task excludes are removed before counting. The kitchen's random generator draws objects, their
positions and the robot's position. The generator's seed is 1000 * env_seed + index.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.files import read_shipped
from safevla_bench.hosts import check_start, check_wants, read_versions, registered_task, require_known
from safevla_bench.hosts.mujoco import environment
from safevla_bench.hosts.mujoco.graphics import importing
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.hosts.mujoco.viewer import MujocoStage
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import Kitchen, host_header
from safevla_recorder import robocasa
from safevla_recorder.episode import Floats, add_header_mark
from safevla_recorder.identity import read_identity
from safevla_recorder.mujoco.recorder import Scene
from safevla_recorder.robocasa import ASSETS_ENTRY, OFFICIAL, Goal, goal_target, moved_fixture

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen as KitchenEnv

SPLITS = ("target", "pretrain")
HORIZONS = ("v1.0.1", "v1.0.0")
STILL = (*[0.0] * 6, -1.0, *[0.0] * 4, -1.0)  # action that moves nothing and opens the gripper, in the arm's mode
SLIDE = "slide"
_TARGET_SCENES = range(1, 11)
_PRETRAIN_SCENES = range(11, 61)
_SEED_STRIDE = 1000
CAMERAS = ("robot0_agentview_left", "robot0_agentview_right", "robot0_agentview_center", "robot0_eye_in_hand")


class RobocasaHost(environment.MujocoHost):
    """The host `robocasa`. Without the pip extra `robocasa` and RoboCasa's assets, it can only list suites and tasks.

    Args:
        split: the scenes and objects to use: `target` (layouts and styles 1 to 10) or `pretrain` (11 to 60).
        horizons: the release of RoboCasa that defines the horizons: `v1.0.1` or `v1.0.0`.
    """

    name = "robocasa"
    supports = replace(environment.ROBOSUITE_SUPPORT, cameras=CAMERAS)

    def __init__(self, split: str = SPLITS[0], horizons: str = HORIZONS[0]) -> None:
        # `split` names a set of kitchens, and `horizons` names the release that defines the limits of steps.
        # Each check raises `HostError` for an unknown name.
        require_known("RoboCasa", "split", split, SPLITS)
        require_known("RoboCasa", "horizons", horizons, HORIZONS)
        self._split, self._horizons = split, horizons

    def suites(self) -> tuple[str, ...]:
        # Returns the names of the suites in this package's table of RoboCasa's tasks.
        return tuple(read_table().suites)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the suite's tasks in alphabetical order, with the horizons of the chosen release."""
        table = read_table()
        require_known("RoboCasa", "suite", suite, table.suites)
        horizons = {name: task["horizon"][self._horizons] for name, task in table.tasks.items()}
        return tuple(
            registered_task(suite, name, index, STILL, horizon=horizons[name], episodes=table.episodes)
            for index, name in enumerate(table.suites[suite])
        )

    def make(self, task: Task, wants: Wants) -> RobocasaEnv:
        """Return a new environment of one task. Raises `HostError` if RoboCasa or its assets are missing, if RoboCasa
        lacks the task or a wanted observation, or if the policy gives absolute poses.
        """
        check_wants(wants, self.supports, "RoboCasa")
        return RobocasaEnv(task, wants, self.versions(), self._split, self._horizons)

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Return a viewer (`Stage`) of `episode`, a one-episode batch with `sim_state`, in the recorded kitchen."""
        # The header of a record from this host names the split of the kitchen, which may differ from this host's split.
        kitchen_fields = host_header(episode.extra[0]).get(self.name)
        if not isinstance(kitchen_fields, Mapping) or "split" not in kitchen_fields:
            problem = "the record lacks the split and the seed of its kitchen"
            raise HostError(problem, remedy="Show a record that `safevla eval` wrote.")
        split = str(kitchen_fields["split"])
        require_known("RoboCasa", "split", split, SPLITS)
        return RobocasaEnv(task, Wants(), self.versions(), split, self._horizons).open_stage(episode)

    def versions(self) -> dict[str, str]:
        """Return the versions of all packages in use. The version of `robocasa-assets` is `official`, or `stand-in` if
        the assets are placeholders. Raises `HostError` if RoboCasa or its assets are missing. Imports no simulator.
        """
        require_robocasa()  # raises `HostError` without RoboCasa
        installed = {name: importlib.metadata.version(name) for name in (*_SIMULATOR, "numpy", "safevla-bench")}
        return {**installed, ASSETS_ENTRY: robocasa.STANDIN if robocasa.is_standin(assets()) else OFFICIAL}


class RobocasaEnv(environment.RobosuiteEnv):
    """One RoboCasa task with its recorder.

    Actions are those of PandaOmron's composite controller, [12] in [-1, 1]: end effector 0.05 m [0:3] and 0.5 rad [3:6]
    per unit in the frame of the base, gripper [6] (-1 opens, +1 closes), base forward, sideways and turn [7:10], torso
    [10], and mode [11]. If the mode is above 0, the base moves and the arm holds still; otherwise, the arm moves. Both
    observation and record have the pose of the grip site as the end effector's pose. Images are upright.
    """

    action_meaning = "position [3], rotation [3], gripper, base [3], torso, mode"
    still = STILL
    stage_camera = "robot0_agentview_center"
    embodiment = robocasa.EMBODIMENT

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str], split: str, horizons: str) -> None:
        super().__init__(task, wants, versions)
        self._split, self._horizons = split, horizons
        self._goal = task_goal(task)  # a verb with names, such as ("in", "obj", "cab")
        self._kitchen_class = task_class(task)  # RoboCasa's class of the task
        # Hashes of the task's class and of RoboCasa's code, for the record.
        self._identity = read_identity(self._kitchen_class, None, "robocasa", "environments")
        self._start: Kitchen | None = None  # split, layout, style and seed of the current kitchen
        self._episode_meta: Mapping[str, Any] = {}  # RoboCasa's description of the episode, such as its instruction

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a newly built kitchen, let the scene settle, take record 0, and return its observation.

        The same seed gives the same bytes, in this environment or another. RoboCasa rebuilds its model at each reset,
        and a used kitchen remembers its last fixtures and its generator's state, so each episode makes a new kitchen.
        If RoboCasa draws from a Python set, whose order varies, this host fixes the order. The kitchen's reset settles
        for ten control steps, before the settling steps of `seed`.

        Every start is drawn, even without `seed.drawn`, because RoboCasa's tasks have no initial states.

        Raises:
            HostError: `check_start` refuses the seed, or RoboCasa cannot build this kitchen.
        """
        check_start(self.task, seed, RobocasaHost.supports)
        kitchen_class = self._kitchen_class
        # `start` has the layout and the style of the kitchen, and the seed of its random generator.
        start = pick_scene(self._split, seed, kitchen_class.EXCLUDE_LAYOUTS, kitchen_class.EXCLUDE_STYLES)
        make = partial(make_kitchen, self.task, start, self._wants)
        # With settling steps, the policy never gets the reset's observation, so the reset need not render pictures.
        kitchen, self._start = self._replace_env(make, is_seen=not seed.wait_steps), start
        raw = kitchen.reset()
        self._episode_meta = robocasa.episode_meta(kitchen)
        return self._settle_and_record(seed, raw, bool(kitchen._check_success()))

    def _advance(self, action: Action) -> tuple[environment.RawObservation, bool]:
        # Simulates one control step. Returns robosuite's observation and whether the task is solved.
        raw, reward, _, _ = self._robosuite_env().step(action)
        return raw, bool(reward)  # the reward is 1 if the task is solved, else 0

    def _read_scene(self) -> Scene:
        # Returns the names and roles of the kitchen's bodies.
        # The goal determines the target object and the fixture that must move.
        return robocasa.read_scene(self._robosuite_env(), goal_target(self._goal), moved_fixture(self._goal))

    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        # Returns a reader of the kitchen's true poses and sizes, for policies that want them.
        return view_privileged(self._robosuite_env(), scene, self._goal)

    def coordinates(self) -> tuple[Coordinate, ...]:
        return ()  # not used, because no episode starts from a recorded state

    def _target_object(self) -> str | None:
        # Returns the object that the goal moves; None if the goal moves a fixture or the robot's base.
        return goal_target(self._goal)

    def _extra_fields(self) -> dict[str, object]:
        # Returns host-specific fields for the record. The field `robocasa` has the values that define the kitchen.
        # A mark is added if the assets are placeholders, not the official ones.
        assert self._start is not None  # the split, layout, style and seed of the kitchen, which a reset has set
        fields = {**self._start._asdict(), "horizons": self._horizons, "ep_meta": self._episode_meta}
        extra: dict[str, object] = {"header": {"robocasa": fields}}
        return add_header_mark(extra, robocasa.STANDIN_MARK) if self._versions[ASSETS_ENTRY] != OFFICIAL else extra

    def _instruction(self) -> str:
        # Returns the episode's instruction, with the names of the drawn objects.
        # If the kitchen has no instruction, returns the task's instruction, which does not name the objects.
        return self._episode_meta["lang"] or self.task.instruction

    def _base_pose(self, raw: environment.RawObservation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        # Returns the mobile base's position [3] in m and quaternion wxyz [4], world frame.
        return np.array(raw["robot0_base_pos"], dtype=np.float64), environment.to_wxyz(raw["robot0_base_quat"])


# Suites, tasks and the kitchens of their episodes


class TaskTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The suites, and the horizon of each task in each release of RoboCasa."""

    episodes: int
    suites: dict[str, tuple[str, ...]]
    tasks: dict[str, dict[Literal["horizon"], dict[str, int]]]


@cache
def read_table() -> TaskTable:
    """Return the table in `robocasa.toml`."""
    # The table has each suite's tasks, the number of episodes per task, and each task's limit of steps. Cached.
    return read_shipped(__package__, "robocasa.toml", TaskTable)


def task_goal(task: Task) -> Goal:
    """Return the condition for a task's success; raise `HostError` for an unknown task."""
    # The condition is a verb, followed by names of objects or of the task's attributes that contain fixtures.
    require_known("RoboCasa", "task", task.task_id, read_table().suites.get(task.benchmark, ()))
    return robocasa.known_goals()[task.task_id]


def pick_scene(split: str, seed: EpisodeSeed, no_layouts: Collection[int], no_styles: Collection[int]) -> Kitchen:
    """Return the kitchen of the episode whose index (>= 0) is in `seed`. Layouts and styles that the task excludes are
    skipped. After the last allowed scene of the split, counting continues with the first allowed scene.
    """
    # A scene is a pair of numbers: the layout and the style of the kitchen. The generator draws objects and positions.
    # The generator's seed is 1000 times the environment's seed, plus the index.
    index = seed.init_state_index
    scenes = _list_scenes(split)
    allowed = [(layout, style) for layout, style in scenes if layout not in no_layouts and style not in no_styles]
    layout, style = allowed[index % len(allowed)]
    return Kitchen(split, layout, style, _SEED_STRIDE * seed.env_seed + index)


@cache
def _list_scenes(split: str) -> tuple[tuple[int, int], ...]:
    # Returns the (layout, style) pairs of a split, in the order of episodes.
    # The split `target` has ten pairs, (1, 1) to (10, 10).
    # The split `pretrain` combines each of fifty layouts with each of fifty styles.
    # Every round has one pair per layout, and gives each layout the next style.
    if split == "target":
        return tuple((number, number) for number in _TARGET_SCENES)
    count = len(_PRETRAIN_SCENES)  # number of layouts, of styles, and of rounds
    return tuple(
        (layout, _PRETRAIN_SCENES[(index + round_number) % count])
        for round_number in range(count)
        for index, layout in enumerate(_PRETRAIN_SCENES)
    )


_BUTTON_SUFFIXES = ("_start_button", "_stop_button")


def read_goal(kitchen: KitchenEnv, goal: Goal) -> tuple[str, ...]:
    """Return the goal with the names of bodies and fixtures in this episode, such as `("close", "fridge_main_group")`.
    The verb `slide` becomes `slide_out` or `slide_in`.
    """
    verb, *names = goal
    if verb == SLIDE:
        verb = f"{SLIDE}_{'out' if kitchen.should_pull else 'in'}"
    object_names, goal_names = {robocasa.LID, *kitchen.objects}, []
    for name in names:
        # Names of objects stay unchanged. Any other name is an attribute of the kitchen: a fixture or a fixture's name.
        body_or_fixture = name if name in object_names else getattr(kitchen, name)
        goal_names.append(body_or_fixture if isinstance(body_or_fixture, str) else str(body_or_fixture.name))
    return (verb, *goal_names)


def view_privileged(kitchen: KitchenEnv, scene: Scene, goal: Goal) -> ScenePrivileged:
    """Return a reader of the kitchen's ground truth. Its `sites_m` hold the centers of the start and stop buttons. In a
    navigation task, they also hold `goal`, the base's target position, and `goal_ahead`, 1 m in front of `goal`.
    """
    # The verb of `goal` is `at` in a navigation task. `sites` maps a name to a position [3] in m, world frame.
    model, data = kitchen.sim.model._model, kitchen.sim.data._data
    sites: dict[str, Floats] = {}
    if goal[0] == robocasa.AT:
        goal_pos_m = np.array(kitchen.target_pos, dtype=np.float64)
        yaw_rad = float(kitchen.target_ori[2])  # the third Euler angle
        sites = {"goal": goal_pos_m, "goal_ahead": goal_pos_m + [np.cos(yaw_rad), np.sin(yaw_rad), 0.0]}
    geom_of_name = {str(model.geom(geom).name): geom for geom in range(model.ngeom)}
    sites |= {name: data.geom_xpos[geom] for name, geom in geom_of_name.items() if name.endswith(_BUTTON_SUFFIXES)}
    return ScenePrivileged(model, data, scene, (read_goal(kitchen, goal),), sites)


# The installation of RoboCasa, and functions that make kitchens


DISTRIBUTION = "praxis-robocasa"
_ROBOSUITE = "praxis-robosuite"
_SIMULATOR = ("mujoco", _ROBOSUITE, DISTRIBUTION)
ASSETS = "SAFEVLA_ROBOCASA_ASSETS"  # environment variable with a folder of assets that replaces the package's folder
INSTALL = "make robocasa   (in a checkout; it creates the separate environment .venv-robocasa)"
DOWNLOAD = "python -m robocasa.scripts.download_kitchen_assets --type all   (about 10 GB)"
_NEEDED = ("scenes", "textures", "fixtures/microwaves", "objects/objaverse", "objects/lightwheel")


def require_robocasa() -> None:
    """Raise `HostError` unless RoboCasa is installed without the distribution `robosuite`. Imports nothing."""
    read_versions(_SIMULATOR, "RoboCasa", INSTALL)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        other_version = importlib.metadata.version("robosuite")
        problem = f"robosuite {other_version} is installed next to {_ROBOSUITE}: both provide the package 'robosuite'"
        raise HostError(problem, remedy=f"Use a separate environment for RoboCasa: {INSTALL}")


def assets() -> Path:
    """Return the folder of assets: SAFEVLA_ROBOCASA_ASSETS, or else the package's; raise `HostError` if incomplete."""
    user_folder, package = os.environ.get(ASSETS), importlib.util.find_spec("robocasa")
    if user_folder:
        root = Path(user_folder).resolve()
    elif package is not None and package.origin:
        root = Path(package.origin).resolve().with_name("models") / "assets"
    else:
        raise HostError("RoboCasa is not installed: there is no package robocasa", remedy=INSTALL)
    # Some of the folders that complete assets contain.
    missing = [part for part in _NEEDED if not (root / part).is_dir()]
    if missing:
        location = f"{ASSETS}={user_folder}" if user_folder else str(root)
        problem = f"RoboCasa's assets are missing: {location} has no {missing[0]}"
        raise HostError(problem, remedy=f"{DOWNLOAD}, or set {ASSETS} to a folder with the assets.")
    return root


def make_kitchen(task: Task, start: Kitchen, wants: Wants) -> KitchenEnv:
    """Return RoboCasa's environment for one episode, before its reset; with a renderer only if cameras are wanted."""
    # The start has the layout, style, split and seed of the kitchen. PandaOmron is robosuite's name of the robot.
    return task_class(task)(
        **environment.env_options("PandaOmron", wants),
        layout_and_style_ids=[(start.layout, start.style)],
        obj_instance_split=start.split,
        seed=start.seed,
    )


def task_class(task: Task) -> type[KitchenEnv]:
    """Return RoboCasa's class of a task; raise `HostError` if RoboCasa or its assets are not available."""
    require_robocasa()
    _import_robocasa(assets())
    from robocasa.environments.kitchen.kitchen import REGISTERED_KITCHEN_ENVS

    return REGISTERED_KITCHEN_ENVS[task.task_id]  # type: ignore[no-any-return]


@cache
def _import_robocasa(root: Path) -> None:
    # Imports RoboCasa with the assets in the folder `root`, once per process.
    # Raises `HostError` if the import fails, or if RoboCasa was imported with other assets.
    environment.quieten_log()
    imported = sys.modules.get("robocasa.models")
    if imported is not None and Path(imported.assets_root).resolve() != root:
        problem = f"RoboCasa was imported with the assets in {imported.assets_root}"
        raise HostError(problem, remedy=f"Start a new process with {ASSETS}={root}.")
    # The redirection hides RoboCasa's message that mimicgen is missing.
    with importing("RoboCasa", INSTALL), contextlib.redirect_stdout(io.StringIO()):
        if imported is None:
            _load_package(root)
        counter = importlib.import_module("robocasa.models.fixtures.counter")
    # RoboCasa draws a kitchen counter's top from a Python set, whose order differs between processes and kitchens.
    # The draw is in line 813 of RoboCasa's models/fixtures/counter.py (robocasa 1.0.0).
    # With a set, the same seed could place a stand mixer differently. A dict keeps the order of the model.
    # RoboCasa's counter.py uses the name `set` nowhere else.
    counter.set = dict.fromkeys  # type: ignore[attr-defined]


def _load_package(root: Path) -> None:
    # Imports RoboCasa with the assets in `root`, a path that RoboCasa reads only once, during the import.
    # The path is therefore set in the subpackage `robocasa.models` before the code of the package `robocasa` runs.
    # After an error, the incomplete modules are removed, so that another attempt starts from the beginning.
    spec: Any = importlib.util.find_spec("robocasa")
    package = sys.modules["robocasa"] = importlib.util.module_from_spec(spec)
    try:
        importlib.import_module("robocasa.models").assets_root = str(root)  # type: ignore[attr-defined]
        spec.loader.exec_module(package)
    except BaseException:
        for name in ("robocasa", "robocasa.models"):
            sys.modules.pop(name, None)
        raise
