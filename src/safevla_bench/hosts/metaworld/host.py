"""Host of Meta-World: fifty tasks of a Sawyer arm in MuJoCo.

An action moves a mocap body by up to 1 cm per axis, and a weld constraint pulls the hand after the mocap body. No motor
drives the arm's joints, so there are no torques and no compliance. Forces are several times higher than with impedance
control (docs/reference/limits.md). `metaworld.toml` defines suites, tasks and names of bodies.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.files import read_shipped
from safevla_bench.hosts import check_start, check_wants, drawn_reset_seed, read_versions, require_known
from safevla_bench.hosts.mujoco.environment import MujocoEnv, MujocoHost
from safevla_bench.hosts.mujoco.graphics import importing
from safevla_bench.hosts.mujoco.renderer import Appearance, Renderer
from safevla_bench.interface.policy import Action, Observation, UnrenderedImages, Wants, check_action
from safevla_bench.interface.stage import Camera
from safevla_bench.interface.task import EpisodeSeed, Task
from safevla_recorder.identity import read_identity
from safevla_recorder.mujoco import recorder as mujoco_recorder
from safevla_recorder.mujoco.hook import hook_after, hook_substeps

if TYPE_CHECKING:
    import mujoco
    from metaworld.sawyer_xyz_env import SawyerXYZEnv

_SIMULATOR = ("mujoco", "gymnasium", "metaworld")
_INSTALL = "make metaworld   (in a checkout; it creates the separate environment .venv-metaworld)"
_FREE = 0  # MuJoCo's mjtJoint for a free joint
_ROBOT_ROOTS = ("base", "mocap")
_FINGERS = (("rightclaw", "rightpad"), ("leftclaw", "leftpad"))
STILL = (0.0, 0.0, 0.0, -1.0)
# Maps our camera's name to Meta-World's name and LeRobot's camera position [m] (envs/metaworld.py at 7427f31).
_MOVED_M = {"corner2-near": ("corner2", (0.75, 0.075, 0.7))}
CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV", *_MOVED_M)
_APPEARANCE = Appearance(  # as in Meta-World: goal markers are drawn, and cameras in `turned` are upside down
    groups=frozenset({0, 1, 2}), sites=True, turned=frozenset({"corner", "corner2", "corner3", "corner4"})
)
_HAND_READING, _STATE_READING = "agent_pos", "state"  # keys of `Observation.extra`


class MetaworldHost(MujocoHost):
    """The host `metaworld`. Without the pip extra `metaworld`, it can list only suites and tasks."""

    name = "metaworld"
    supports = replace(
        MujocoHost.supports,
        cameras=CAMERAS,
        readings=(_HAND_READING,),
        privileged_readings=(_STATE_READING,),
        changes="position",
        unit_m=0.01,
        drawn=True,
    )

    def suites(self) -> tuple[str, ...]:
        # Returns the names of the suites in this package's table of Meta-World tasks.
        return tuple(_read_tasks().suites)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        # Returns the suite's tasks in Meta-World's order; raises `HostError` for an unknown suite.
        return suite_tasks(suite)

    def make(self, task: Task, wants: Wants) -> MetaworldEnv:
        # Returns a new environment of one task. `wants` lists what the policy wants to observe.
        # `check_wants` raises `HostError` if the host cannot provide what `wants` lists.
        check_wants(wants, self.supports, "Meta-World")
        return MetaworldEnv(task, wants, self.versions())

    def versions(self) -> dict[str, str]:
        # Returns the versions of all packages that affect records; raises `HostError` if one is not installed.
        return read_versions((*_SIMULATOR, "numpy", "safevla-bench"), "Meta-World", _INSTALL)


class MetaworldEnv(MujocoEnv):
    """One Meta-World task with its recorder.

    Actions [4] in [-1, 1] move the hand by 1 cm per unit [0:3] and set the gripper's effort [3] (-1 opens). The pose in
    an observation is the pose of the site `endEffector`. Images are upright: images of upside-down cameras are rotated.
    If a policy wants privileged state, `extra["state"]` is Meta-World's observation [39], which includes the goal.
    Every policy gets the observation's first four numbers as `extra["agent_pos"]`: the hand's position [m] and the
    gripper's opening.
    """

    action_meaning = "position [3], gripper"
    still = STILL
    stage_camera = "corner3"
    embodiment = "Sawyer"
    appearance = _APPEARANCE

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        """Make Meta-World's environment; raises `HostError` if Meta-World lacks the task or cannot be imported."""
        super().__init__(task, wants, versions)
        self._task_entry = metaworld_task(task.name)  # target bodies, and the fixture with a part that must move
        self._env = make_env(task.name)
        # Hashes of the task's class and of Meta-World's code, for the record.
        self._identity = read_identity(type(self._env), None, "metaworld", "")
        self.dt_s = float(self._env.dt)  # duration of a control step
        self._action: Action = np.array(STILL)  # the action of the current step, which the hook records
        self._renderer: Renderer | None = None  # made when the first image is needed

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, let the scene settle, take record 0, and return its observation.

        `metaworld.MT1(task, seed=env_seed)` draws fifty variants of the task (goals and positions); initial state i is
        variant i. For a `drawn` start, `MT1` gets the seed `drawn_reset_seed(seed)`, and the start is the first
        variant. Meta-World moves the hand to its first pose in fifty steps, before the settling steps of `seed`. Raises
        `HostError` if `check_start` refuses the seed.
        """
        check_start(self.task, seed, MetaworldHost.supports)
        self._stop_recording()
        self._renders_next = True
        env = self._env
        if seed.drawn:
            variant = draw_variants(self.task.name, drawn_reset_seed(seed))[0]
        else:
            variant = draw_variants(self.task.name, seed.env_seed)[seed.init_state_index]
        env.set_task(variant)
        vector, _ = env.reset()  # Meta-World's observation [39]
        self._success = False
        still, objects = np.array(seed.wait_action or STILL), self._read_scene().objects
        for _ in mujoco_recorder.settling_steps(env.model, env.data, objects, seed.wait_steps, seed.rest_steps):
            vector, self._success = self._advance(still)
        self._start_recording(seed)
        return self._observe(vector)

    def _start_recording(self, seed: EpisodeSeed) -> None:
        # Changes the physics, takes record 0, and adds the hooks that record each substep and step.
        # When recording stops, `undo` functions remove the hooks. `_action` is the action of the current step.
        env, self._seed = self._env, seed
        scene = self._change_physics(seed, self._read_scene())  # names and roles of the bodies to record
        mujoco_recorder.warn_if_moving(env.model, env.data, scene.objects, self.task.task_id)
        recorder = mujoco_recorder.Recorder(env.model, env.data, scene)
        undo_substeps = hook_substeps(env, "_step_mujoco_simulation", env.data, recorder.record_substep)
        # Record after the physics step, but before Meta-World's `mj_forward`, which advances positions by one substep.
        undo_steps = hook_after(env, "do_simulation", lambda: recorder.record_step(self._action))

        self._recorder = recorder
        self._undo_hooks += [undo_substeps, undo_steps]

    def _set_substeps(self, count: int) -> None:
        # Sets the number of physics substeps per control step.
        self._env.frame_skip = count  # gymnasium's name of the number of substeps

    def step(self, action: Action) -> tuple[Observation, bool]:
        # Applies one action [4], which a hook records. Returns the next observation and Meta-World's success.
        # Raises `HostError` before the first reset, and `InvalidActionError` for a wrong length or non-finite values.
        # The text of `InvalidActionError` contains `action_meaning`.
        self._require_recorder()
        self._action = check_action(action, len(STILL), self.action_meaning).copy()
        vector, self._success = self._advance(self._action.copy())
        return self._observe(vector), self._success

    def _advance(self, action: Action) -> tuple[NDArray[np.float64], bool]:
        # Takes one control step in Meta-World. Returns Meta-World's observation [39] and whether the task is solved.
        vector, _, _, _, outcome = self._env.step(action)
        return vector, bool(outcome["success"])

    def _model_and_data(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        return self._env.model, self._env.data

    def _read_scene(self) -> mujoco_recorder.Scene:
        # Returns the names and roles of the bodies in the task's model, for the recorder.
        return read_scene(self._env.model, self._task_entry)

    def _target_object(self) -> str | None:
        # Returns the first body that the task must move; None if the task moves only the hand or a part of a fixture.
        targets = self._task_entry.targets
        return targets[0] if targets else None

    def close(self) -> None:
        # Stops recording, then frees the renderer and the simulator.
        self._stop_recording()
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None
        self._env.close()

    def _observe(self, vector: NDArray[np.float64]) -> Observation:
        """Convert Meta-World's observation `vector` [39] to our observation. Resets the setting of `render_next`."""
        # If `render_next(False)` was called, the images are placeholders, which raise an error when they are read.
        # The first four numbers of `vector` are the hand's position [m] and the gripper's opening.
        import mujoco

        data = self._env.data
        site, quat = data.site("endEffector"), np.empty(4)
        mujoco.mju_mat2Quat(quat, site.xmat)  # writes to `quat`
        extra_values = {_HAND_READING: vector[:4].copy()}
        if self._wants.privileged:
            extra_values[_STATE_READING] = vector.copy()
        images: Mapping[str, NDArray[np.uint8]] = UnrenderedImages(self._wants.cameras)
        if self._renders_next:
            size = self._wants.image_size
            images = {camera: self._aim_renderer(camera).image(size) for camera in self._wants.cameras}
        self._renders_next = True
        return Observation(
            instruction=self.task.instruction,
            eef_pos_m=site.xpos.copy(),
            eef_quat_wxyz=quat,
            gripper_qpos=np.array([data.joint(name).qpos[0] for name in ("r_close", "l_close")]),
            images=images,
            extra=extra_values,
        )

    def _aim_renderer(self, camera: str) -> Renderer:
        # Returns the renderer after setting its scene and camera for the next picture. `camera` is our camera's name.
        if self._renderer is None:
            self._renderer = Renderer(self._env.model, self._wants.image_size, _APPEARANCE)
        with self._moved_camera(camera) as model_camera:
            self._renderer.look(self._env.data, Camera(model_camera))
        return self._renderer

    @contextmanager
    def _moved_camera(self, camera: str) -> Iterator[str]:
        # In the block, a camera in `_MOVED_M` has the position [3] in m that is listed there.
        # Yields Meta-World's name of the camera. It differs from `camera`, our name, only for cameras in `_MOVED_M`.
        model_camera, moved_pos_m = _MOVED_M.get(camera, (camera, None))
        position = self._env.data.camera(model_camera).xpos  # a view, so assignments change `data`
        original_pos_m = position.copy()
        # `moved_pos_m` is None for a camera that stays in its place.
        position[:] = original_pos_m if moved_pos_m is None else moved_pos_m
        yield model_camera
        position[:] = original_pos_m


# Suites, tasks and goals; names and roles of a model's bodies


class MetaworldTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task: its instruction, its target bodies, and the fixture (`moves`) with a part that must move."""

    instruction: str
    targets: tuple[str, ...] = ()
    moves: str | None = None


class _MetaworldTasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    horizon: int
    init_states: int
    names: Mapping[str, str]
    suites: Mapping[str, tuple[str, ...]]
    tasks: Mapping[str, MetaworldTask]


@cache
def _read_tasks() -> _MetaworldTasks:
    # Returns the contents of `metaworld.toml`: suites, tasks, and names of bodies. Cached.
    return read_shipped(__package__, "metaworld.toml", _MetaworldTasks)


def suite_tasks(suite: str) -> tuple[Task, ...]:
    """Return a suite's tasks in Meta-World's order; raises `HostError` for an unknown suite."""
    # A task's id is its name in Meta-World. `STILL` is the action that moves nothing.
    table = _read_tasks()
    require_known("Meta-World", "suite", suite, table.suites)
    return tuple(
        Task(suite, name, index, name, table.tasks[name].instruction, STILL, table.init_states, table.horizon)
        for index, name in enumerate(table.suites[suite])
    )


def metaworld_task(name: str) -> MetaworldTask:
    """Return the entry of the task with this Meta-World name; raise `HostError` if the name is unknown."""
    tasks = _read_tasks().tasks
    require_known("Meta-World", "task", name, tasks)
    return tasks[name]


def import_metaworld() -> Any:
    """Return the package `metaworld`; raise `HostError` if it is missing or cannot be imported."""
    MetaworldHost().versions()  # raises `HostError` if a package is missing
    with importing("Meta-World", _INSTALL), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides gymnasium's warnings about its registry
        import metaworld
    return metaworld


def make_env(name: str) -> SawyerXYZEnv:
    """Return Meta-World's environment of a task, without a renderer and without a limit on its steps."""
    env = import_metaworld().env_dict.ALL_V3_ENVIRONMENTS[name]()
    env.max_path_length = 2**31  # Meta-World refuses steps after this number of steps
    return env


@lru_cache(maxsize=64)
def draw_variants(name: str, seed: int) -> tuple[Any, ...]:
    """Return Meta-World's fifty variants of a task (goals and positions), as drawn by `metaworld.MT1(name, seed)`."""
    # The variants are Meta-World's objects for `set_task`. `name` is Meta-World's name of the task.
    return tuple(import_metaworld().MT1(name, seed=seed).train_tasks)


def read_scene(model: mujoco.MjModel, entry: MetaworldTask) -> mujoco_recorder.Scene:
    """Return names and roles of the bodies in a task's model.

    The robot is the arm and the mocap body that moves it. Rigidly connected bodies count as one. Freely moving bodies
    and targets are objects. Other moving bodies are links of furniture; links that the goal moves are not tracked.
    """
    # A link of furniture is a part with a joint, such as a drawer. `entry.targets` names the task's target bodies.
    # `entry.moves` names a fixture with a part that must move (None = no such fixture).
    names = _body_names(model)
    robot = {body for root in _ROBOT_ROOTS for body in mujoco_recorder.subtree_bodies(model, int(model.body(root).id))}
    moving = [body for body in mujoco_recorder.moving_links(model, 0) if body not in robot]
    joint_types = {body: int(model.jnt_type[model.body_jntadr[body]]) for body in moving}
    goal_bodies = mujoco_recorder.subtree_bodies(model, int(model.body(entry.moves).id)) if entry.moves else ()
    # A moving target is an object, even if its joint is not free. Other bodies with a joint that is not free are links.
    objects = {names[body]: body for body in moving if names[body] in entry.targets or joint_types[body] == _FREE}
    links = {names[body]: body for body in moving if names[body] not in objects and body not in goal_bodies}
    roles = mujoco_recorder.assign_roles(model, names, objects=objects, links=links, targets=entry.targets, robot=robot)
    # All furniture of one body tree is one fixture. Records leave out contacts between parts of a fixture.
    roots = [body for body in range(1, model.nbody) if int(model.body_parentid[body]) == 0]
    trees = [{names[body] for body in mujoco_recorder.subtree_bodies(model, root)} for root in roots]
    furniture_of_trees = [frozenset(name for name in tree if roles.get(name) == "furniture") for tree in trees]
    return mujoco_recorder.Scene(
        body_name=names,
        roles=roles,
        objects=objects,
        links=links,
        fingers=(_finger_geoms(model, _FINGERS[0]), _finger_geoms(model, _FINGERS[1])),
        eef_site=int(model.site("endEffector").id),
        arm_dofs=(),
        fixtures=tuple(furniture for furniture in furniture_of_trees if len(furniture) > 1),
    )


def _body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Return each body's recorded name. A body that moves, is attached to the world or belongs to the robot has
    MuJoCo's name. Any other body has its parent's name. A moving body without a MuJoCo name has the name that
    `metaworld.toml` lists for its parent, or else its parent's name.
    """
    # The result has one name for each MuJoCo body. Bodies with the same name are one body in the record.
    names = ["world"]
    robot = mujoco_recorder.subtree_bodies(model, int(model.body("base").id))
    for body in range(1, model.nbody):
        # A parent comes before its children in MuJoCo's list, so the parent's name is known. A body with a joint moves.
        parent, own_name = int(model.body_parentid[body]), str(model.body(body).name)
        parent_name, moves = names[parent], model.body_jntnum[body] > 0
        is_separate = parent == 0 or body in robot or moves
        fallback = _read_tasks().names.get(parent_name, parent_name) if moves else parent_name
        names.append(own_name if is_separate and own_name else fallback)
    return tuple(names)


def _finger_geoms(model: mujoco.MjModel, bodies: tuple[str, ...]) -> tuple[int, ...]:
    # Returns the ids of a finger's geoms that can collide. `bodies` are MuJoCo's names of the finger's bodies.
    is_on_finger = np.isin(model.geom_bodyid, [int(model.body(name).id) for name in bodies])
    return tuple(int(geom) for geom in np.flatnonzero(is_on_finger & (model.geom_contype > 0)))
