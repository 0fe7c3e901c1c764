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
FAST = "SAFEVLA_FAST"  # environment variable; `no` means: run robosuite without our speed-up
_HIDDEN_LOG_PREFIXES = (  # beginnings of the robosuite log messages to hide
    "No private macro file found",
    "It is recommended to use a private macro",
    "To setup, run: python",
    "Could not import robosuite_models",
    "Could not load the mink-based whole-body IK",
    "Loading controller configuration from",
    "The config has defined for the controller",
)
_FREE, _BALL, _SLIDE = 0, 1, 2  # values of MuJoCo's mjtJoint; the value 3 is a hinge
_JOINT_READINGS = {  # maps names of extra observations to robosuite's keys for the first robot
    "joint_pos": "robot0_joint_pos",
    "joint_vel": "robot0_joint_vel",
    "gripper_qvel": "robot0_gripper_qvel",
}
RawObservation = Mapping[str, NDArray[np.generic]]


class MujocoHost(Host):
    """Base class of hosts with `MujocoEnv` environments. The hosts support all physics changes and viewers."""

    supports = HostSupport(changeable=frozenset(field.name for field in fields(PhysicsChange)), pictures=True)

    @abstractmethod
    def make(self, task: Task, wants: Wants) -> MujocoEnv:
        """Return a new environment of one task, before its first reset."""

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Return a viewer (`Stage`) of `episode`, a one-episode batch with `sim_state`. Raises `HostError` if the
        simulator cannot run on this machine, the task does not exist, or the record lacks a start or states.
        """
        return self.make(task, Wants()).open_stage(episode)


class MujocoEnv(RecordedEnv[Recorder]):
    """One MuJoCo task with its recorder. Subclasses make the simulation and implement `reset` and `step`."""

    action_meaning: str  # names of the parts of an action, for error messages
    still: tuple[float, ...]  # the action [A] that moves nothing and opens the gripper
    stage_camera: str  # default camera for views of recorded episodes
    appearance = ROBOSUITE

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        # `wants` lists what observations must contain.
        # `still` is the action that moves nothing, so its length is the number of values in an action.
        super().__init__(task, wants, versions, len(self.still))
        self._renders_next = True  # whether the next step renders camera images
        self._undo_hooks: list[Undo] = []  # functions that undo the changes made for recording

    @abstractmethod
    def _model_and_data(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return the current MuJoCo model and its data, which a reset may replace."""

    @abstractmethod
    def _read_scene(self) -> Scene:
        """Return the names and roles of the bodies in the current model."""

    def _make_pose_observer(self) -> Callable[[Floats, Floats], Observation] | None:
        # By default, returns None: the host cannot compute observations of given states. Subclasses may override this.
        # The function of a subclass maps qpos and qvel to the observation that the policy gets in this state.
        # `qpos` and `qvel` are the positions and velocities of all joints.
        return None

    def coordinates(self) -> tuple[Coordinate, ...]:
        # Returns which entries of the recorded state are positions and rotations, by name.
        model, _ = self._model_and_data()
        return model_coordinates(model, self._read_scene().body_name)

    def render_next(self, wanted: bool) -> None:
        # Sets whether the next step renders camera images.
        self._renders_next = wanted

    def open_stage(self, episode: Batch) -> MujocoStage:
        """Return a viewer of `episode`, a one-episode batch with `sim_state`. The viewer owns this environment.

        A reset with the record's seed makes the scene. Raises `HostError` if this machine cannot make the scene, if the
        record does not determine the start, or if it has no states of this model. Any error closes the environment.
        """
        try:
            self.reset(episode_seed(episode))
            # `scene` has the names and roles of the bodies. `observe` maps qpos and qvel to an observation, or is None.
            (model, _), scene, observe = self._model_and_data(), self._read_scene(), self._make_pose_observer()
            return MujocoStage(model, scene, episode, self.stage_camera, self.close, observe, self.appearance)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _set_substeps(self, count: int) -> None:
        """Set the number of substeps per control step. The model already has the new length of a substep."""

    def _change_physics(self, seed: EpisodeSeed, scene: Scene) -> Scene:
        """Apply the physics changes of `seed`, which last until recording stops; return the scene to record."""
        # A `Scene` holds what the recorder must know about the model. Only `apart_substeps` depends on the changes.
        # `_undo_hooks` are functions that are called when recording stops.
        change = seed.change or PhysicsChange()  # the default changes nothing
        model, data = self._model_and_data()
        # The last argument seeds the random directions in which objects are shifted.
        self._undo_hooks.append(change_model(model, data, scene, change, [seed.env_seed, seed.init_state_index]))
        if change.time_step == 1:  # the factor 1 means no change
            return scene
        substeps = round(self.dt_s / model.opt.timestep)  # per control step, whose duration stays `dt_s`
        new_substeps = max(1, round(substeps / change.time_step))
        self._undo_hooks.append(partial(self._set_time_step, float(model.opt.timestep), substeps))
        self._set_time_step(self.dt_s / new_substeps, new_substeps)
        # Contacts of a resting pair are recorded only after the pair was apart for `apart_substeps`.
        # `apart_substeps` is changed with the length of a substep, so that its duration stays about the same.
        return replace(scene, apart_substeps=max(1, round(scene.apart_substeps * new_substeps / substeps)))

    def _set_time_step(self, time_step_s: float, substeps: int) -> None:
        # Sets the length of a substep, and the number of substeps per control step.
        model, _ = self._model_and_data()
        model.opt.timestep = time_step_s
        self._set_substeps(substeps)

    def _stop_recording(self) -> None:
        # Undoes all changes made for the current episode, including changes of physics.
        undo_all(self._undo_hooks)
        self._recorder = None


ROBOSUITE_SUPPORT = replace(MujocoHost.supports, privileged=True, readings=tuple(_JOINT_READINGS), unit_m=0.05)
"""Abilities of all hosts with a `RobosuiteEnv`. With robosuite's controllers, an action of 1 moves the hand by 5 cm."""


class RobosuiteEnv(MujocoEnv):
    """One task in a robosuite environment with its recorder. Subclasses make the environment, and call
    `_settle_and_record` in `reset`. During a reset, the `CameraGate` is open only for the returned observation.
    """

    dt_s = CONTROL_STEP_S
    substep_method = "step2"
    """The method of robosuite's `MjSim` that ends a physics substep: after it, the substep's forces are available.
    robosuite 1.5 splits a substep into the methods `step1` and `step2` (`lite_physics`).
    """

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        super().__init__(task, wants, versions)
        self._gate = CameraGate(wants.image_size)  # switches the rendering of camera images on and off
        # The reader of true poses and sizes; None unless the policy wants privileged observations.
        self._privileged: ScenePrivileged | None = None
        self._env: Any = None  # robosuite's environment, or LIBERO's wrapper of it; None = not made yet
        self._is_fast = os.environ.get(FAST) != "no"  # whether to skip robosuite's redundant computations
        self._undo_speed_up: Undo | None = None  # removes the speed-up; None if it is not applied

    def run_fast(self, wanted: bool) -> None:
        # Sets whether episodes after the next reset skip robosuite's redundant computations.
        self._is_fast = wanted

    def _update_speed_up(self) -> None:
        # Applies or removes the speed-up of robosuite, as `run_fast` requested. It skips redundant computations.
        # `_undo_speed_up` removes the speed-up; None if it is not applied.
        if self._is_fast and self._undo_speed_up is None:
            self._undo_speed_up = speed_up(self._robosuite_env())
        elif not self._is_fast and self._undo_speed_up is not None:
            self._undo_speed_up()
            self._undo_speed_up = None

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it, and return the observation and the benchmark's success.

        Raises `InvalidActionError`, before simulating, for an action of the wrong length or with values that are not
        finite. Raises `HostError` if the simulation diverged, no reset was made, or the simulator rendered no picture.
        """
        recorder = self._require_recorder()
        # `still` is an example of a valid action, and `action_meaning` describes its numbers in error messages.
        checked = policy.check_action(action, len(self.still), self.action_meaning)
        self._gate.set_open(self._renders_next)  # a closed gate renders no pictures
        self._renders_next = True  # later steps render by default
        raw, success = self._advance(checked.copy())
        recorder.record_step(checked)
        self._success = success
        return self._observe(raw), success

    def _make_pose_observer(self) -> Callable[[Floats, Floats], Observation]:
        # Returns a function that sets all joints to `qpos` and `qvel` and returns the observation of this state.
        # The function changes the state of the simulation.
        import mujoco

        def observe(qpos: Floats, qvel: Floats) -> Observation:
            model, data = self._model_and_data()
            data.qpos[:], data.qvel[:] = qpos, qvel
            mujoco.mj_forward(model, data)
            return self._observe(self._robosuite_env()._get_observations(force_update=True))

        return observe

    def close(self) -> None:
        """Free the simulator; a reset makes a new one. Closing twice is harmless."""
        self._stop_recording()
        if self._env is not None:
            self._env.close()
        self._env = None

    def _robosuite_env(self) -> Any:
        # Returns robosuite's environment; raises `HostError` before the first reset and after `close`.
        if self._env is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._env

    def _replace_env(self, make_env: Callable[[], Any], *, is_seen: bool) -> Any:
        # Closes robosuite's environment, and returns a new one from `make_env()`, which the caller must reset.
        # `is_seen` says whether the policy gets the observation of that reset.
        self.close()
        self._env, self._undo_speed_up = make_env(), None
        self._update_speed_up()
        self._install_gate(is_seen=is_seen)
        return self._env

    def _install_gate(self, *, is_seen: bool) -> None:
        # Installs the switch for camera pictures in robosuite's environment. An open switch lets robosuite render.
        # If `is_seen` is true, the policy gets the next reset's observation, so the switch is opened.
        self._gate.install(self._robosuite_env())
        self._gate.set_open(is_seen)
        self._renders_next = True

    @abstractmethod
    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        """Apply one action, and return robosuite's observation and whether the benchmark's task is solved."""
        # robosuite's observation is a mapping from names, such as `robot0_eef_pos`, to arrays.

    @abstractmethod
    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        """Return a reader of the current scene's ground truth."""

    def _set_substeps(self, count: int) -> None:
        # Sets the number of physics substeps per control step.
        env = self._robosuite_env()
        # robosuite rounds `control_timestep / model_timestep` down to get the number of substeps per control step.
        # The time step [s] is therefore the next smaller float, so that the quotient is not below `count`.
        env.model_timestep = np.nextafter(env.control_timestep / count, 0.0)

    def _model_and_data(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        simulation = self._robosuite_env().sim  # `model` and `data` of an `MjSim` wrap MuJoCo's objects
        return simulation.model._model, simulation.data._data

    def _arm_prefixes(self) -> Mapping[str, str]:
        # By default, returns {}: there is only one arm, whose keys in robosuite's observation begin with `robot0_`.
        # With several arms, a subclass maps each arm to the prefix of its keys, such as `robot1_`.
        return {}

    def _base_pose(self, raw: RawObservation) -> tuple[Floats, Floats] | tuple[None, None]:
        # By default, returns (None, None), because the robot has no mobile base.
        # A subclass may return the base's position [3] in m and quaternion wxyz [4], in the world frame.
        return None, None

    def _settle_and_record(self, seed: EpisodeSeed, raw: RawObservation, success: bool) -> Observation:
        """Take the settling steps that `seed` requests, take record 0, and return its observation. `raw` is robosuite's
        observation before settling, and `success` is the success before settling.
        """
        still = np.array(seed.wait_action or self.still)  # the action of all settling steps, [A]
        model, data = self._model_and_data()
        settling = settling_steps(model, data, self._read_scene().objects, seed.wait_steps, seed.rest_steps)
        for step, _ in enumerate(settling):
            self._gate.set_open(step >= seed.wait_steps - 1)  # render in each step that may be the last settling step
            raw, success = self._advance(still.copy())
        self._seed, self._success = seed, success
        # Changes of physics apply from record 0 on. `scene` has the names and roles of the bodies to record.
        # The recorder runs after each call of the simulation's method `substep_method`, which ends a physics substep.
        scene = self._change_physics(seed, self._read_scene())
        simulation, task_id = self._robosuite_env().sim, self.task.task_id
        self._recorder, detach = attach_recorder(
            simulation, self.substep_method, scene, task_id, read_subgoals=self._read_subgoals
        )
        self._undo_hooks.append(detach)  # `detach` removes the recorder from the simulation
        self._privileged = self._view_privileged(scene) if self._wants.privileged else None
        return self._observe(raw)

    def _observe(self, raw: RawObservation) -> Observation:
        # Converts robosuite's observation `raw`, a mapping from names to arrays, to the observation for the policy.
        # `_privileged` reads the true poses and sizes; None unless the policy wants them.
        # `joint_values` holds the additional quantities that the policy requests, such as joint positions.
        # `_JOINT_READINGS` maps the names of requested quantities to robosuite's keys.
        base_pos_m, base_quat_wxyz = self._base_pose(raw)
        joint_values = {name: self._read_joints(raw, _JOINT_READINGS[name]) for name in self._wants.extra}
        arms = {name: read_arm(raw, prefix) for name, prefix in self._arm_prefixes().items()}
        # `arms` is empty if there is only one arm. `joined` concatenates the values of all arms.
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
            extra={**self._extra_readings(), **joint_values},
        )

    def _read_joints(self, raw: RawObservation, robot0_key: str) -> Floats:
        # Returns one quantity of all robots, joined. `robot0_key` is the first robot's key, such as `robot0_joint_pos`.
        arm_prefixes = self._arm_prefixes().values() or ["robot0_"]
        # Two arms of one robot, such as `robot0_left_` and `robot0_right_`, share a key. A dict removes repetitions.
        robot_prefixes = dict.fromkeys(prefix[: len("robot0_")] for prefix in arm_prefixes)
        keys = [robot0_key.replace("robot0_", prefix) for prefix in robot_prefixes]
        return np.concatenate([np.array(raw[key], dtype=np.float64) for key in keys])

    def _extra_readings(self) -> dict[str, Floats]:
        # By default, returns {}. A subclass may return entries of `Observation.extra` that every policy gets unasked.
        return {}

    def _read_subgoals(self) -> Mapping[str, bool]:
        # By default, returns {}, which means that nothing is known about parts of the goal.
        # A subclass may map each predicate of the goal to whether it held when the simulator last evaluated it.
        return {}

    def _read_simulation(self) -> dict[str, object]:
        # Returns facts about how the simulator runs, such as its renderer, for the record's header.
        return read_simulation(self._robosuite_env())

    def _read_images(self, raw: RawObservation) -> Mapping[str, NDArray[np.uint8]]:
        # Returns the upright images [H, W, 3] of the cameras that the policy wants.
        # If this step did not have to render, the result is a placeholder, which raises an error when an image is read.
        if not self._gate.is_open:
            return policy.UnrenderedImages(self._wants.cameras)
        # `is_fresh` is true if the simulator has rendered since the gate was opened.
        if self._wants.cameras and not self._gate.is_fresh:
            problem = "the simulator rendered no image in this control step"
            raise HostError(problem, remedy="Let the simulator's cameras sample once per control step, at 20 Hz.")
        # robosuite's images begin with the bottom row.
        return {camera: np.array(raw[f"{camera}_image"][::-1], dtype=np.uint8) for camera in self._wants.cameras}


def read_arm(raw: RawObservation, prefix: str) -> policy.ArmObservation:
    """Return the observation of the arm whose keys in `raw` begin with `prefix`; `fingers` is [0] without a gripper."""
    # `fingers` holds the positions of the finger joints; the position of the end effector is in the world frame.
    fingers = np.array(raw.get(f"{prefix}gripper_qpos", ()), dtype=np.float64)
    eef_pos_m = np.array(raw[f"{prefix}eef_pos"], dtype=np.float64)
    return policy.ArmObservation(eef_pos_m, to_wxyz(raw[f"{prefix}eef_quat"]), fingers)


def camera_options(wants: Wants) -> dict[str, object]:
    """Return robosuite's camera options. The environment renders only if `wants` has a camera."""
    height, width = wants.image_size
    has_cameras = bool(wants.cameras)
    return {
        "has_renderer": False,  # do not open a window
        "has_offscreen_renderer": has_cameras,
        "use_camera_obs": has_cameras,
        "camera_names": list(wants.cameras),
        "camera_heights": height,
        "camera_widths": width,
        # Only our rollout ends episodes.
        # Without `ignore_done`, robosuite would refuse steps after the first 1000, which include settling steps.
        "ignore_done": True,
    }


def env_options(robot: str, wants: Wants, count: int = 1, controller: str | None = None) -> dict[str, object]:
    """Return the keyword arguments for an environment of `count` identical robots. `controller` is the kind of
    controller; None = the robots' default. The environment renders only if `wants` has a camera. Imports robosuite.
    """
    # `robot` is robosuite's name of the robot.
    from robosuite.controllers import load_composite_controller_config

    configs = [load_composite_controller_config(controller=controller, robot=robot) for _ in range(count)]
    if count == 1:
        return {"robots": robot, "controller_configs": configs[0], **camera_options(wants)}
    return {"robots": [robot] * count, "controller_configs": configs, **camera_options(wants)}


def quieten_log() -> None:
    """Hide the messages in robosuite's log that begin with one of `_HIDDEN_LOG_PREFIXES`."""
    # The hidden messages are about optional files and packages and the loading of controllers, not about errors.
    logging.getLogger("robosuite_logs").addFilter(
        lambda record: not record.getMessage().startswith(_HIDDEN_LOG_PREFIXES)
    )


def to_wxyz(quat_xyzw: NDArray[np.generic]) -> NDArray[np.float64]:
    """Convert a quaternion [4] from xyzw, as in robosuite, to wxyz."""
    return np.array(quat_xyzw[[3, 0, 1, 2]], dtype=np.float64)


def flat_state(recorded: Sequence[float], size: int) -> Floats:
    """Return a recorded flat state as an array [size]; raise `HostError` if it is not finite or has another size."""
    state = np.array(recorded, dtype=np.float64)
    if state.shape != (size,):
        problem = f"the recorded state has {state.size} numbers, but this simulation's state has {size}"
        raise HostError(problem, remedy="Use the task and the simulator version of the recording.")
    if not np.isfinite(state).all():
        raise HostError("the recorded state is not finite", remedy="Use a recording with finite numbers.")
    return state


def model_coordinates(model: Any, body_name: Sequence[str]) -> tuple[Coordinate, ...]:
    """Return the coordinates of a MuJoCo model's joints in the flat state, which begins with the time. A free joint has
    a position and a rotation, named after the body. Any other joint has one coordinate, named after the joint or body.
    """
    # `body_name` gives the recorded name of each MuJoCo body.
    coordinates = list[Coordinate]()
    for joint in range(model.njnt):
        # The flat state begins with the time, followed by qpos. An index in the state is an address in qpos plus 1.
        start, joint_type = 1 + int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
        body = body_name[int(model.jnt_bodyid[joint])]
        name = str(model.joint(joint).name) or body
        if joint_type == _FREE:
            coordinates += [Coordinate(body, "position", start, 3), Coordinate(body, "rotation", start + 3, 4)]
        elif joint_type == _BALL:
            coordinates.append(Coordinate(name, "rotation", start, 4))
        else:
            coordinates.append(Coordinate(name, "position" if joint_type == _SLIDE else "rotation", start, 1))
    return tuple(coordinates)


# Reversible changes of a compiled model for one episode


_MASK_BITS = 31  # number of bits in `contype` (int32), except the sign bit
_FROZEN_KG = 1e10  # a body with this much added mass [kg] does not move noticeably within an episode
ROBOT = "robot"


def change_model(
    model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, change: PhysicsChange, seed: Sequence[int]
) -> Undo:
    """Apply `change`, except its time step, to a model and its state; return a function that restores the model.

    The default change has no effect. `seed` determines the directions of `change.shift_m`. Raises `HostError` for a
    body that the scene lacks, or if there are more kinds of geoms than mask bits: see `_separate_geoms`.
    """
    if change == PhysicsChange():
        return lambda: None  # nothing changes, so no array needs to be copied
    saved_arrays = {name: getattr(model, name).copy() for name in _CHANGED_ARRAYS}
    saved_options = {name: getattr(model.opt, name) for name in ("iterations", "tolerance")}

    def restore() -> None:
        for name, array in saved_arrays.items():
            getattr(model, name)[...] = array
        for name, value in saved_options.items():
            setattr(model.opt, name, value)

    if change.iterations != 1:  # the solver stops at the first limit that it reaches
        model.opt.iterations = max(1, round(model.opt.iterations * change.iterations))
        model.opt.tolerance /= change.iterations**2
    for kind in ("geom", "pair"):  # a `pair` has contact parameters for its two geoms
        if change.softness != 1:
            solref, solimp = getattr(model, f"{kind}_solref"), getattr(model, f"{kind}_solimp")
            _soften(solref, solimp, change.softness, 2 * model.opt.timestep)  # MuJoCo's minimum is two time steps
        if change.friction != 1:
            getattr(model, f"{kind}_friction")[...] *= change.friction
    if change.apart is not None:  # the names of two bodies that must not touch each other
        first, second = (_select_geoms(model, scene, name) for name in change.apart)
        _separate_geoms(model, first, second)
    if change.without is not None:  # the name of a body that must neither move nor touch anything
        _freeze_body(model, data, scene, change.without)
    if change.shift_m:
        _shift_bodies(model, data, change.shift_m, seed)
    return restore


_CHANGED_ARRAYS = (  # the model's arrays that a change can modify
    *(f"{kind}_{part}" for kind in ("geom", "pair") for part in ("solref", "solimp", "friction")),
    *(f"{kind}_{mask}" for kind in ("geom", "body") for mask in ("contype", "conaffinity")),
    "dof_armature",
    "dof_M0",
)


def _soften(solref: Floats, solimp: Floats, factor: float, min_time_s: float) -> None:
    """Multiply time constants [s] by `factor`, after raising them to at least two time steps (`min_time_s`), as MuJoCo
    does. If `solref` holds negative stiffness and damping instead, divide the stiffness by factor² and the damping by
    factor. In `solimp`, the first two impedances d become 1 - (1 - d) * factor.
    """
    # Makes contacts softer if `factor` is above 1. `solref` and `solimp` have the parameters of n geoms or pairs.
    # Both arrays change in place. Rows of `solref` are (time constant, damping ratio) or -(stiffness, damping).
    is_time_constant = solref[:, :1] > 0
    softened = np.maximum(solref, [min_time_s, -np.inf]) * [factor, 1.0]
    solref[...] = np.where(is_time_constant, softened, solref / [factor**2, factor])
    solimp[:, :2] = np.clip(1.0 - (1.0 - solimp[:, :2]) * factor, 0.0001, 0.9999)


def _select_geoms(model: mujoco.MjModel, scene: Scene, name: str) -> Bools:
    # Returns a mask [ngeom] of the geoms of the body with this recorded name. The name `robot` means the whole robot.
    # Raises `HostError` if there is no such body, or if it has no geoms.
    robot_names = {body for body, role in scene.roles.items() if role == ROBOT}
    body_names = robot_names if name == ROBOT else {name}
    selected = np.array([scene.body_name[body] in body_names for body in model.geom_bodyid], dtype=np.bool_)
    if not selected.any():
        listed = ", ".join(sorted({scene.body_name[body] for body in model.geom_bodyid}))
        raise HostError(f"the scene has no body {name!r} with geoms", remedy=f"Bodies with geoms: {ROBOT}, {listed}.")
    return selected


def _separate_geoms(model: mujoco.MjModel, first: Bools, second: Bools) -> None:
    """Prevent contact between the geoms in mask `first` and the geoms in mask `second`, [ngeom] each. Other pairs
    collide as before. Geoms of one kind have equal bit masks and equal entries in `first` and `second`. A kind's new
    `contype` is one bit. The kind's new `conaffinity` has the bits of all kinds that it may touch.
    """
    contype, conaffinity = model.geom_contype, model.geom_conaffinity
    # There are fewer bits than geoms, so all geoms that must behave alike share the bit of their kind.
    # `kinds` has one column for each of the `K` kinds. `collides` and `is_separated` have the shape [K, K].
    kinds, kind_of_geom = np.unique(np.stack([contype, conaffinity, first, second]), axis=1, return_inverse=True)
    kind_contypes, kind_affinities, in_first, in_second = kinds
    if kinds.shape[1] > _MASK_BITS:
        problem = f"the scene has {kinds.shape[1]} kinds of geoms; at most {_MASK_BITS} can be distinguished"
        raise HostError(problem, remedy="Choose another contact pair.")
    # In MuJoCo, two geoms collide if the `contype` of either one shares a bit with the `conaffinity` of the other.
    shared_bits = kind_contypes[:, None] & kind_affinities
    collides = (shared_bits | shared_bits.T) != 0
    is_separated = in_first[:, None] & in_second
    collides &= (is_separated | is_separated.T) == 0
    bits = 1 << np.arange(kinds.shape[1])  # kind k gets bit k; `collides @ bits` adds the bits of kinds that k touches
    kind_of_geom = kind_of_geom.ravel()  # NumPy 2.0 returns [1, ngeom]
    contype[...], conaffinity[...] = bits[kind_of_geom], (collides @ bits)[kind_of_geom]
    _update_body_masks(model)


def _update_body_masks(model: mujoco.MjModel) -> None:
    # Updates each body's collision masks. A body's mask is the union (bitwise or) of its geoms' masks.
    # MuJoCo skips pairs of bodies whose masks do not match.
    for mask_name in ("contype", "conaffinity"):
        body_mask = getattr(model, f"body_{mask_name}")  # a view, so assignments change the model
        body_mask[...] = 0
        np.bitwise_or.at(body_mask, model.geom_bodyid, getattr(model, f"geom_{mask_name}"))


def _freeze_body(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, name: str) -> None:
    # Disables all contacts of the body with the recorded name `name`, stops it, and makes it too heavy to move.
    # Raises `HostError` for a part of the robot, and for a body that the scene lacks.
    geoms = _select_geoms(model, scene, name)
    if scene.roles.get(name, ROBOT) == ROBOT:  # the name `robot` itself has no entry in `roles`
        raise HostError(f"{name} is a part of the robot", remedy="Choose another body, or use `contact:A,B`.")
    for mask_name in ("geom_contype", "geom_conaffinity"):
        getattr(model, mask_name)[geoms] = 0
    _update_body_masks(model)
    dofs = [dof for dof, body in enumerate(model.dof_bodyid) if scene.body_name[body] == name]
    for inertia in ("dof_armature", "dof_M0"):  # MuJoCo uses `dof_M0` for bodies whose center of mass is their origin
        getattr(model, inertia)[dofs] = _FROZEN_KG
    data.qvel[dofs] = 0.0


def _shift_bodies(model: mujoco.MjModel, data: mujoco.MjData, shift_m: float, seed: Sequence[int]) -> None:
    # Moves each free body by `shift_m` in a random horizontal direction, which `seed` determines.
    import mujoco

    x_addresses = model.jnt_qposadr[model.jnt_type == _FREE]  # index of each free body's x in qpos; y is the next entry
    angles_rad = np.random.default_rng(list(seed)).uniform(0, 2 * np.pi, size=len(x_addresses))
    data.qpos[x_addresses] += shift_m * np.cos(angles_rad)
    data.qpos[x_addresses + 1] += shift_m * np.sin(angles_rad)
    mujoco.mj_forward(model, data)
