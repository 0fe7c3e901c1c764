"""Base classes of MuJoCo and robosuite environments: recording, observations, viewers and changes of physics."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import RecordedEnv
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.hosts.mujoco.renderer import ROBOSUITE, CameraGate
from safevla_bench.hosts.mujoco.viewer import MujocoStage, episode_seed
from safevla_bench.interface import policy
from safevla_bench.interface.environment import Host, HostSupport
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Coordinate, EpisodeSeed, PhysicsChange, Task
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.attachment import read_simulation
from safevla_recorder.episode import Bools, Floats
from safevla_recorder.mujoco.hook import Undo, undo_all
from safevla_recorder.mujoco.recorder import Recorder, Scene, attach_recorder, settling_steps
from safevla_recorder.mujoco.speed import speed_up

if TYPE_CHECKING:
    import mujoco

CONTROL_STEP_S = 0.05
FAST = "SAFEVLA_FAST"  # environment variable; `no` runs robosuite's code unchanged, including its repeated computations
_CHATTER = (
    "No private macro file found",
    "It is recommended to use a private macro",
    "To setup, run: python",
    "Could not import robosuite_models",
    "Could not load the mink-based whole-body IK",
    "Loading controller configuration from",
    "The config has defined for the controller",
)
_FREE, _BALL, _SLIDE = 0, 1, 2  # MuJoCo's mjtJoint; 3 is a hinge
_JOINT_READINGS = {
    "joint_pos": "robot0_joint_pos",
    "joint_vel": "robot0_joint_vel",
    "gripper_qvel": "robot0_gripper_qvel",
}
RawObservation = Mapping[str, NDArray[np.generic]]


class MujocoHost(Host):
    """Base class of hosts with `MujocoEnv` environments, which support all physics changes and viewers of records."""

    supports = HostSupport(changeable=frozenset(part.name for part in fields(PhysicsChange)), pictures=True)

    @abstractmethod
    def make(self, task: Task, wants: Wants) -> MujocoEnv:
        """Return a new environment of one task, before its first reset."""

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Return a stage for `episode`, a batch of one that includes `sim_state`. Raises `HostError` if the simulator
        cannot run on this machine or lacks the task, or if the record lacks its states or start.
        """
        return self.make(task, Wants()).open_stage(episode)


class MujocoEnv(RecordedEnv[Recorder]):
    """One MuJoCo task with its recorder. Subclasses make the simulation and implement `reset` and `step`."""

    action_meaning: str  # names of the parts of an action, for error messages
    still: tuple[float, ...]  # the action [A] that moves nothing and opens the gripper
    stage_camera: str  # default camera for views of recorded episodes
    appearance = ROBOSUITE

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        super().__init__(task, wants, versions, len(self.still))
        self._renders_next = True
        self._hooks: list[Undo] = []

    @abstractmethod
    def _mujoco(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return the current model and data."""

    @abstractmethod
    def _read_scene(self) -> Scene:
        """Return the names and roles of the bodies in the current model."""

    def _observe_pose(self) -> Callable[[Floats, Floats], Observation] | None:
        """Return a function that maps qpos and qvel to an observation; None if the host has no such function."""
        return None

    def coordinates(self) -> tuple[Coordinate, ...]:
        return model_coordinates(self._mujoco()[0], self._read_scene().body_name)

    def render_next(self, wanted: bool) -> None:
        self._renders_next = wanted

    def open_stage(self, episode: Batch) -> MujocoStage:
        """Return a stage for `episode`, a batch of one that includes `sim_state`. The stage owns this environment.

        A reset with the record's seed makes the scene. Closes the environment and raises `HostError` if the scene
        cannot be made on this machine, or if the record lacks its start or states of this model.
        """
        try:
            self.reset(episode_seed(episode))
            scene, observe = self._read_scene(), self._observe_pose()
            model = self._mujoco()[0]
            return MujocoStage(model, scene, episode, self.stage_camera, self.close, observe, self.appearance)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _set_substeps(self, count: int) -> None:
        """Set the number of substeps per control step; the model defines their length."""

    def _change_physics(self, seed: EpisodeSeed, scene: Scene) -> Scene:
        """Apply the physics changes of `seed`, which last until recording stops; return the scene to record."""
        change = seed.change or PhysicsChange()
        model, data = self._mujoco()
        self._hooks.append(change_model(model, data, scene, change, [seed.env_seed, seed.init_state_index]))
        if change.time_step == 1:
            return scene
        count = round(self.dt_s / model.opt.timestep)
        changed = max(1, round(count / change.time_step))
        self._hooks.append(partial(self._set_time_step, float(model.opt.timestep), count))
        self._set_time_step(self.dt_s / changed, changed)
        return replace(scene, apart_substeps=max(1, round(scene.apart_substeps * changed / count)))

    def _set_time_step(self, time_step_s: float, substeps: int) -> None:
        self._mujoco()[0].opt.timestep = time_step_s
        self._set_substeps(substeps)

    def _stop_recording(self) -> None:
        undo_all(self._hooks)
        self._recorder = None


ROBOSUITE_SUPPORT = replace(MujocoHost.supports, privileged=True, readings=tuple(_JOINT_READINGS), unit_m=0.05)
"""Abilities of all hosts with a `RobosuiteEnv`. With robosuite's controllers, an action of 1 moves the hand by 5 cm."""


class RobosuiteEnv(MujocoEnv):
    """One task in a robosuite environment with its recorder. Subclasses make the environment and start episodes in
    `reset` with `_settle_and_record`. `reset` opens the camera gate only for the observation that it returns.
    """

    dt_s = CONTROL_STEP_S
    substep_method = "step2"
    """The method of robosuite's `MjSim` after which the forces of a physics substep are available. robosuite 1.5 splits
    a substep into two halves (`lite_physics`).
    """

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        super().__init__(task, wants, versions)
        self._gate = CameraGate(wants.image_size)
        self._privileged: ScenePrivileged | None = None
        self._env: Any = None
        self._is_fast = os.environ.get(FAST) != "no"
        self._slow_down: Undo | None = None

    def run_fast(self, wanted: bool) -> None:
        self._is_fast = wanted

    def _set_speed(self) -> None:
        if self._is_fast and self._slow_down is None:
            self._slow_down = speed_up(self._robosuite())
        elif not self._is_fast and self._slow_down is not None:
            self._slow_down()
            self._slow_down = None

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it, and return the observation and the benchmark's success.

        Raises `InvalidActionError`, before simulating, for an action of the wrong length or with values that are not
        finite; `HostError` if the simulation diverged, no reset was made, or the simulator rendered no picture.
        """
        recorder = self._require_recorder()
        checked = policy.check_action(action, len(self.still), self.action_meaning)
        self._gate.set_open(self._renders_next)
        self._renders_next = True
        raw, success = self._advance(checked.copy())
        recorder.record_step(checked)
        self._success = success
        return self._observe(raw), success

    def _observe_pose(self) -> Callable[[Floats, Floats], Observation]:
        import mujoco

        def observe(qpos: Floats, qvel: Floats) -> Observation:
            model, data = self._mujoco()
            data.qpos[:], data.qvel[:] = qpos, qvel
            mujoco.mj_forward(model, data)
            return self._observe(self._robosuite()._get_observations(force_update=True))

        return observe

    def close(self) -> None:
        """Free the simulator; a reset makes a new one. Closing twice is harmless."""
        self._stop_recording()
        if self._env is not None:
            self._env.close()
        self._env = None

    def _robosuite(self) -> Any:
        if self._env is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._env

    def _make_anew(self, make: Callable[[], Any], *, is_seen: bool) -> Any:
        """Close the environment, and return a new one, which the caller must reset. `is_seen` says whether the
        observation of that reset is the first of the episode.
        """
        self.close()
        self._env, self._slow_down = make(), None
        self._set_speed()
        self._open_gate(is_seen=is_seen)
        return self._env

    def _open_gate(self, *, is_seen: bool) -> None:
        self._gate.install(self._robosuite())
        self._gate.set_open(is_seen)
        self._renders_next = True

    @abstractmethod
    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        """Apply one action, and return the observation and the benchmark's success."""

    @abstractmethod
    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        """Return a reader of the current scene's ground truth."""

    def _set_substeps(self, count: int) -> None:
        env = self._robosuite()
        env.model_timestep = np.nextafter(env.control_timestep / count, 0.0)  # robosuite rounds the step count down

    def _mujoco(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        simulation = self._robosuite().sim
        return simulation.model._model, simulation.data._data

    def _arm_prefixes(self) -> Mapping[str, str]:
        """Return arm name -> prefix of the arm's readings in robosuite's observations; {} if there is only one arm."""
        return {}

    def _base_pose(self, raw: RawObservation) -> tuple[Floats, Floats] | tuple[None, None]:
        return None, None

    def _settle_and_record(self, seed: EpisodeSeed, raw: RawObservation, success: bool) -> Observation:
        """Take the settling steps that `seed` requests, take record 0, and return its observation. `raw` and `success`
        are the values before settling.
        """
        still = np.array(seed.wait_action or self.still)
        steps = settling_steps(*self._mujoco(), self._read_scene().objects, seed.wait_steps, seed.rest_steps)
        for step, _ in enumerate(steps):
            self._gate.set_open(step >= seed.wait_steps - 1)  # each step from here on may be the last
            raw, success = self._advance(still.copy())
        self._seed, self._success = seed, success
        scene = self._change_physics(seed, self._read_scene())
        simulation, task_id = self._robosuite().sim, self.task.task_id
        self._recorder, detach = attach_recorder(
            simulation, self.substep_method, scene, task_id, read_subgoals=self._read_subgoals
        )
        self._hooks.append(detach)
        self._privileged = self._view_privileged(scene) if self._wants.privileged else None
        return self._observe(raw)

    def _observe(self, raw: RawObservation) -> Observation:
        base_pos_m, base_quat_wxyz = self._base_pose(raw)
        arms = {name: read_arm(raw, prefix) for name, prefix in self._arm_prefixes().items()}
        joined = policy.join_arms(list(arms.values()) or [read_arm(raw, "robot0_")])
        return Observation(
            instruction=self._instruction(),
            eef_pos_m=joined.eef_pos_m,
            eef_quat_wxyz=joined.eef_quat_wxyz,
            gripper_qpos=joined.gripper_qpos,
            arms=arms,
            images=self._read_images(raw),
            privileged=self._privileged.read_now() if self._privileged else None,
            base_pos_m=base_pos_m,
            base_quat_wxyz=base_quat_wxyz,
            extra=self._own_readings()
            | {name: self._read_joints(raw, _JOINT_READINGS[name]) for name in self._wants.extra},
        )

    def _read_joints(self, raw: RawObservation, name: str) -> Floats:
        prefixes = dict.fromkeys(prefix[: len("robot0_")] for prefix in self._arm_prefixes().values()) or ["robot0_"]
        names = [name.replace("robot0_", prefix) for prefix in prefixes]
        return np.concatenate([np.array(raw[each], dtype=np.float64) for each in names])

    def _own_readings(self) -> dict[str, Floats]:
        return {}

    def _read_subgoals(self) -> Mapping[str, bool]:
        """Return whether each predicate of the goal held when the simulator last evaluated it; {} if unknown."""
        return {}

    def _read_simulation(self) -> dict[str, object]:
        return read_simulation(self._robosuite())

    def _read_images(self, raw: RawObservation) -> Mapping[str, NDArray[np.uint8]]:
        if not self._gate.is_open:
            return policy.UnrenderedImages(self._wants.cameras)
        if self._wants.cameras and not self._gate.is_fresh:
            problem = "the simulator rendered no image in this control step"
            raise HostError(problem, remedy="Let the simulator's cameras sample once per control step, at 20 Hz.")
        return {camera: np.array(raw[f"{camera}_image"][::-1], dtype=np.uint8) for camera in self._wants.cameras}


def read_arm(raw: RawObservation, prefix: str) -> policy.ArmObservation:
    """Return the readings of one arm from robosuite's observation; no finger positions if it has no gripper."""
    fingers = np.array(raw.get(f"{prefix}gripper_qpos", ()), dtype=np.float64)
    place, turn = np.array(raw[f"{prefix}eef_pos"], dtype=np.float64), to_wxyz(raw[f"{prefix}eef_quat"])
    return policy.ArmObservation(place, turn, fingers)


def camera_options(wants: Wants) -> dict[str, object]:
    """Return robosuite's camera options for an environment, which renders only if `wants` has a camera."""
    height, width = wants.image_size
    rendered = bool(wants.cameras)
    return {
        "has_renderer": False,
        "has_offscreen_renderer": rendered,
        "use_camera_obs": rendered,
        "camera_names": list(wants.cameras),
        "camera_heights": height,
        "camera_widths": width,
        # Only the rollout ends episodes. If this is False, robosuite refuses step 1001, counting settling steps.
        "ignore_done": True,
    }


def env_options(robot: str, wants: Wants, count: int = 1, controller: str | None = None) -> dict[str, object]:
    """Return the keyword arguments for an environment of `count` identical robots. `controller` is the kind of their
    controllers, None = the robots' default. The environment renders only if `wants` has a camera. Imports robosuite.
    """
    from robosuite.controllers import load_composite_controller_config

    configs = [load_composite_controller_config(controller=controller, robot=robot) for _ in range(count)]
    robots = {"robots": robot, "controller_configs": configs[0]}
    return {
        **(robots if count == 1 else {"robots": [robot] * count, "controller_configs": configs}),
        **camera_options(wants),
    }


def quieten_log() -> None:
    """Silence robosuite's log messages that this package does not need."""
    logging.getLogger("robosuite_logs").addFilter(lambda record: not record.getMessage().startswith(_CHATTER))


def to_wxyz(quat_xyzw: NDArray[np.generic]) -> NDArray[np.float64]:
    """Convert a quaternion [4] from xyzw, as in robosuite, to wxyz."""
    return np.array(quat_xyzw[[3, 0, 1, 2]], dtype=np.float64)


def flat_state(recorded: Sequence[float], size: int) -> Floats:
    """Return a recorded flat state as an array [size]. Raises `HostError` if the state is not finite, or has another
    size because it belongs to another scene or version.
    """
    state = np.array(recorded, dtype=np.float64)
    if state.shape != (size,):
        problem = f"the recorded state has {state.size} numbers, but this simulation's state has {size}"
        raise HostError(problem, remedy="Use the task and the simulator version of the recording.")
    if not np.isfinite(state).all():
        raise HostError("the recorded state is not finite", remedy="Use a recording with finite numbers.")
    return state


def model_coordinates(model: Any, body_name: Sequence[str]) -> tuple[Coordinate, ...]:
    """Return the coordinates of every joint of a MuJoCo model in the flat state, which begins with the time. A free
    joint gives position and rotation, named after its body; another joint gives one coordinate, with its name if any.
    """
    found = list[Coordinate]()
    for joint in range(model.njnt):
        first, kind = 1 + int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
        body = body_name[int(model.jnt_bodyid[joint])]
        name = str(model.joint(joint).name) or body
        if kind == _FREE:
            found += [Coordinate(body, "position", first, 3), Coordinate(body, "rotation", first + 3, 4)]
        elif kind == _BALL:
            found.append(Coordinate(name, "rotation", first, 4))
        else:
            found.append(Coordinate(name, "position" if kind == _SLIDE else "rotation", first, 1))
    return tuple(found)


# Reversible changes of a compiled model for one episode


_CLASSES = 31  # bits of `contype`, an int32, without the sign
_FROZEN_KG = 1e10  # inertia at which nothing moves noticeably within an episode
ROBOT = "robot"


def change_model(
    model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, change: PhysicsChange, seed: Sequence[int]
) -> Undo:
    """Apply `change`, except its time step, to a model and its state; return a function that restores the model.

    The default change writes and computes nothing. `seed` determines the directions of `change.shift_m`. Raises
    `HostError` for a body that the scene lacks, and for a model with more kinds of geoms than bits.
    """
    changed = () if change == PhysicsChange() else _CHANGED
    kept = {name: getattr(model, name).copy() for name in changed}
    options = {name: getattr(model.opt, name) for name in ("iterations", "tolerance") if changed}

    def restore() -> None:
        for name, array in kept.items():
            getattr(model, name)[...] = array
        for name, value in options.items():
            setattr(model.opt, name, value)

    if change.iterations != 1:
        model.opt.iterations = max(1, round(model.opt.iterations * change.iterations))
        model.opt.tolerance /= change.iterations**2
    for kind in ("geom", "pair"):
        if change.softness != 1:
            solref, solimp = getattr(model, f"{kind}_solref"), getattr(model, f"{kind}_solimp")
            _soften(solref, solimp, change.softness, 2 * model.opt.timestep)
        if change.friction != 1:
            getattr(model, f"{kind}_friction")[...] *= change.friction
    if change.apart is not None:
        _part_geoms(model, *(_select_geoms(model, scene, name) for name in change.apart))
    if change.without is not None:
        _freeze_body(model, data, scene, change.without)
    if change.shift_m:
        _shift_bodies(model, data, change.shift_m, seed)
    return restore


_CHANGED = (  # arrays of a model that a change may write
    *(f"{kind}_{part}" for kind in ("geom", "pair") for part in ("solref", "solimp", "friction")),
    *(f"{kind}_{mask}" for kind in ("geom", "body") for mask in ("contype", "conaffinity")),
    "dof_armature",
    "dof_M0",
)


def _soften(solref: Floats, solimp: Floats, factor: float, least_s: float) -> None:
    """Multiply time constants [s] by a factor, or divide stiffness and damping if `solref` holds these (as negative
    values). MuJoCo uses no time constants below two time steps, `least_s`, so smaller ones are first set to `least_s`.
    """
    is_time = solref[:, :1] > 0
    softened = np.maximum(solref, [least_s, -np.inf]) * [factor, 1.0]
    solref[...] = np.where(is_time, softened, solref / [factor**2, factor])
    solimp[:, :2] = np.clip(1.0 - (1.0 - solimp[:, :2]) * factor, 0.0001, 0.9999)


def _select_geoms(model: mujoco.MjModel, scene: Scene, name: str) -> Bools:
    names = {body for body, role in scene.roles.items() if role == ROBOT} if name == ROBOT else {name}
    selected = np.array([scene.body_name[body] in names for body in model.geom_bodyid], dtype=np.bool_)
    if not selected.any():
        listed = ", ".join(sorted({scene.body_name[body] for body in model.geom_bodyid}))
        raise HostError(f"the scene has no body {name!r}", remedy=f"Bodies in the scene: {ROBOT}, {listed}.")
    return selected


def _part_geoms(model: mujoco.MjModel, first: Bools, second: Bools) -> None:
    """Prevent contact between geoms of `first` and `second`; all other pairs collide as before. Geoms with equal masks
    and in the same sets form a kind: its `contype` is one bit, its `conaffinity` the bits of kinds that it may touch.
    """
    contype, conaffinity = model.geom_contype, model.geom_conaffinity
    kinds, of_geom = np.unique(np.stack([contype, conaffinity, first, second]), axis=1, return_inverse=True)
    types, affinities, in_first, in_second = kinds
    if kinds.shape[1] > _CLASSES:
        problem = f"the scene has {kinds.shape[1]} kinds of geoms; at most {_CLASSES} can be distinguished"
        raise HostError(problem, remedy="Choose another contact pair.")
    meets = (types[:, None] & affinities) | (types & affinities[:, None]) != 0
    parted = in_first[:, None] & in_second
    meets &= (parted | parted.T) == 0
    bits = 1 << np.arange(kinds.shape[1])
    contype[...], conaffinity[...] = bits[of_geom.ravel()], (meets @ bits)[of_geom.ravel()]
    _join_masks(model)


def _join_masks(model: mujoco.MjModel) -> None:
    for mask in ("contype", "conaffinity"):
        of_body = getattr(model, f"body_{mask}")
        of_body[...] = 0
        np.bitwise_or.at(of_body, model.geom_bodyid, getattr(model, f"geom_{mask}"))


def _freeze_body(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, name: str) -> None:
    geoms = _select_geoms(model, scene, name)
    if scene.roles.get(name, ROBOT) == ROBOT:
        raise HostError(f"{name} is a part of the robot", remedy="Choose another body, or use contact:A,B.")
    for mask in ("geom_contype", "geom_conaffinity"):
        getattr(model, mask)[geoms] = 0
    _join_masks(model)
    dofs = [dof for dof, body in enumerate(model.dof_bodyid) if scene.body_name[body] == name]
    for inertia in ("dof_armature", "dof_M0"):  # MuJoCo uses `dof_M0` for bodies whose center of mass is their origin
        getattr(model, inertia)[dofs] = _FROZEN_KG
    data.qvel[dofs] = 0.0


def _shift_bodies(model: mujoco.MjModel, data: mujoco.MjData, shift_m: float, seed: Sequence[int]) -> None:
    import mujoco

    free = model.jnt_qposadr[model.jnt_type == _FREE]
    angle = np.random.default_rng(list(seed)).uniform(0, 2 * np.pi, size=len(free))
    data.qpos[free] += shift_m * np.cos(angle)
    data.qpos[free + 1] += shift_m * np.sin(angle)
    mujoco.mj_forward(model, data)
