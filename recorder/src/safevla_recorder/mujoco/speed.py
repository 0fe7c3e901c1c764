"""Make a robosuite environment step faster, with bitwise identical results, by skipping repeated computations.

Between two actions, robosuite runs its controllers once per substep. Each time, it looks up names, reads limits, copies
Jacobians, and asks every observable whether it needs a sample. With this module, robosuite's code runs in the first
substep of a control step. The other substeps do the same arithmetic on the same numbers in the same order, but reuse
the names and limits from the first substep. `replaced_methods.json` lists the methods of robosuite 1.4 and 1.5 that
this module replaces; methods that a class or hook defines differently are not replaced. `ForwardDynamics` saves more
time: robosuite computes the forward dynamics of one state up to three times per substep.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable

import numpy as np

from safevla_recorder.attachment import find_layer
from safevla_recorder.episode import Floats
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.hook import Undo, hook_call, undo_all, wrap_method

_VERSIONS = ("1.4.", "1.5.")
# Maps each replaced method to the first digits of the SHA-256 of its source code in robosuite 1.4.0 or 1.5.2.
# A method with other source code is not replaced.
_KNOWN_DIGESTS: dict[str, str] = json.loads(Path(__file__).with_name("replaced_methods.json").read_bytes())
# Names of controllers that only scale a goal to the range of the actuators.
_SPEED_LAWS = ("MobileBaseJointVelocityController", "SimpleGripController")


def speed_up(env: object) -> Undo:
    """Make a robosuite environment step faster, with bitwise identical results. Return a function that undoes this.

    States, observations, rewards and records stay the same; without rendering, LIBERO needs about 0.6 times as
    much CPU time (docs/evidence/benchmarks.md). `safevla doctor` verifies this on your machine. `env` is an environment
    of LIBERO, RoboCasa, or robosuite 1.4 or 1.5, or a wrapper of one. Raises `HostError` for all other environments.
    """
    # `base` defines the base class of robosuite's environments; LIBERO and RoboCasa have subclasses of it.
    base = sys.modules.get("robosuite.environments.base")
    domain = find_layer(env, base.MujocoEnv) if base is not None else None
    if domain is None:
        problem = f"an environment of type {type(env).__module__}.{type(env).__qualname__} cannot be sped up"
        raise HostError(problem, remedy="Pass an environment of robosuite, LIBERO or RoboCasa, or a wrapper of one.")
    version = str(sys.modules["robosuite"].__version__)
    if not version.startswith(_VERSIONS):
        raise HostError(f"robosuite {version} cannot be sped up", remedy="Use robosuite 1.4 or 1.5.")
    return _SpeedUp(domain).undo


class _SpeedUp:
    # The hooks on one robosuite environment. The hooks look up some objects only once in each control step.
    def __init__(self, env: Any) -> None:
        # `env` is a robosuite environment. Its simulation and robots are made again at each hard reset.
        self._env = env
        # Skips repeated physics; None = there is no simulation, or its methods are not robosuite's own.
        self._dynamics: ForwardDynamics | None = None
        self._fast_robots: list[_Robot14 | _Robot15] | None = None  # None = use robosuite's own robots
        self._hooks = [
            hook_call(env, "_initialize_sim", self._release_dynamics, self._attach_dynamics),
            hook_call(env, "_destroy_sim", self._release_dynamics),  # so that the old model can be freed
        ]
        # Replace only methods whose source code is that of robosuite.
        if _has_known_source(env, "_pre_action") and _has_known_source(env, "_update_observables"):
            self._hooks.append(wrap_method(env, "_pre_action", self._run_pre_action))
            self._hooks.append(wrap_method(env, "_update_observables", self._run_update_observables))
        self._own_pre_action = vars(env).get("_pre_action")  # this object's hook, which later hooks may wrap
        self._observables: list[Any] | None = None  # None = not looked up in this control step
        self._fast_controllers: dict[Any, _Controller] = {}  # maps robosuite's controllers to faster ones
        self._attach_dynamics()
        # robosuite collects garbage at each reset, which takes 0.1 s unless `gc.freeze` exempts imported objects.
        self._is_freezing = not gc.get_freeze_count()
        if self._is_freezing:
            gc.freeze()

    def undo(self) -> None:
        # Remove all hooks. Further calls do nothing.
        self._release_dynamics()
        undo_all(self._hooks)
        if self._is_freezing:
            gc.unfreeze()
        self._is_freezing = False

    def _attach_dynamics(self, *_: object, **__: object) -> None:
        # Called after robosuite has made a simulation. The arguments of the hooked method are not used.
        simulation = self._env.sim
        if simulation is not None and all(_has_known_source(simulation, method) for method in ("forward", "step")):
            self._dynamics = ForwardDynamics(simulation)

    def _release_dynamics(self) -> None:
        # Restore the simulation's methods, and forget the robots and controllers of this simulation.
        if self._dynamics is not None:
            self._dynamics.undo()
        self._dynamics, self._fast_robots = None, None
        self._fast_controllers.clear()

    def _run_pre_action(self, original: Callable[..., object], action: Any, policy_step: bool = False) -> None:
        # Replaces robosuite's `_pre_action` (`original`), which applies all robots' `action` in one physics substep.
        # `policy_step` is true in the first substep of a control step, in which robosuite's own method runs.
        # In later substeps, faster objects with the same results replace the robots.
        # `_dynamics` may skip repeated physics if no other hook wraps this method and all robots can be replaced.
        if policy_step:
            robots = [_make_fast_robot(self._env.sim, robot, self._fast_controllers) for robot in self._env.robots]
            # If this module cannot replace the methods of all robots, use robosuite's own substeps.
            self._fast_robots = None if None in robots else robots  # type: ignore[assignment]
            self._observables = None
            if self._dynamics is not None:
                is_outermost = vars(self._env).get("_pre_action") is self._own_pre_action
                self._dynamics.trust(is_outermost and self._fast_robots is not None)
        elif self._dynamics is not None:
            self._dynamics.trust_again()
        try:
            if policy_step or self._fast_robots is None:
                original(action, policy_step)
                return
            # The action consists of the robots' actions, one after another; `size` is the length of a robot's action.
            start = 0
            for robot in self._fast_robots:
                robot.control(action[start : start + robot.size])
                start += robot.size
        except BaseException:  # after an error, calls must not reuse results
            if self._dynamics is not None:
                self._dynamics.trust(writes_only_controls=False)
            raise

    def _run_update_observables(self, original: Callable[..., object], force: bool = False) -> None:
        # Replaces robosuite's `_update_observables`, the method `original`.
        # Updates each observable (sensor) that needs a sample now.
        # For each other observable, counts the time since the last sample.
        # In the first substep of a control step, robosuite's own method runs.
        # robosuite's method also runs if `force` demands samples of all observables.
        # The same holds if the source code of an observable's `update` is unknown.
        env = self._env
        if force or self._observables is None:
            original(force)
            observables = list(env._observables.values())
            one_per_type = {type(observable): observable for observable in observables}.values()
            has_own_update = any("update" in vars(observable) for observable in observables)  # replaced on an instance
            are_known = all(_has_known_source(observable, "update", "Observable") for observable in one_per_type)
            if are_known and not has_own_update:
                self._observables = observables
            return
        step_s, cache = env.model_timestep, env._obs_cache
        for observable in self._observables:
            passed_s = observable._time_since_last_sample + step_s
            if not observable._sampled or passed_s >= observable._sampling_timestep:
                observable.update(timestep=step_s, obs_cache=cache)
            elif observable._enabled:
                observable._time_since_last_sample = passed_s


_HALF_STEPS = ("step1", "step2")  # methods for the two halves of a substep, which RoboCasa's resets use


class ForwardDynamics:
    """Computes the forward dynamics of a robosuite `MjSim`, and skips repeated computations in trusted substeps.

    Kinematics, collisions and velocities depend only on state and model, so the second and third call in a substep can
    skip them. Actuation and constraint forces are solved in every call: controls and applied forces may change, and
    each solution is the solver's next starting point. MuJoCo's full functions are called in untrusted substeps, and for
    models with callbacks, plugins, flexible bodies or an integrator other than Euler's.
    """

    def __init__(self, simulation: Any) -> None:
        import mujoco

        # `simulation` is robosuite's `MjSim`. `_is_trusted`: calls in this substep may reuse results.
        # `_may_trust`: later substeps of this control step may also be trusted.
        # `_is_fully_computed`: the full dynamics of the state at the time `_time_s` were computed.
        self._mujoco, self._simulation = mujoco, simulation
        self._model, self._data = simulation.model._model, simulation.data._data
        self._may_trust = self._is_trusted = self._is_fully_computed = False
        self._time_s = 0.0  # simulated time of the last full computation [s]
        wrappers: dict[str, Callable[..., object]] = {"forward": self._forward, "step": self._step}
        wrappers.update({name: self._step_half for name in _HALF_STEPS if hasattr(simulation, name)})
        self._hooks = [wrap_method(simulation, name, wrapper) for name, wrapper in wrappers.items()]
        self._own_hooks = {name: vars(simulation)[name] for name in wrappers}

    def undo(self) -> None:
        """Restore the simulation's own methods."""
        undo_all(self._hooks)

    def trust(self, writes_only_controls: bool) -> None:
        """Trust or distrust the current substep: calls in a trusted substep reuse the results of the last full call.
        A substep is trusted if no other hook runs, and if code between the calls changes at most controls.
        """
        # Hooks of other code may change the state between the calls, so this object's hooks must be the outermost ones.
        may_trust = writes_only_controls and all(map(self._is_outermost, self._own_hooks)) and self._is_supported()
        self._may_trust = self._is_trusted = may_trust

    def trust_again(self) -> None:
        """Trust a later substep of a control step if `trust` has trusted the first substep."""
        # In a trusted substep, calls may reuse the results of the last full computation.
        self._is_trusted = self._may_trust

    def _is_outermost(self, name: str) -> bool:
        # Return whether no other code runs before this object's hook on the method `name`.
        # Other hooks, such as a recorder's, may wrap this object's hook if they run only after the hooked method.
        method: Any = vars(self._simulation).get(name)
        while name != "forward" and getattr(method, "is_only_after", False):
            method = method.__wrapped__
        return method is self._own_hooks[name]

    def _is_supported(self) -> bool:
        # Return whether results may be reused for this model. The model must use Euler's integrator.
        # The model must have no plugins, flexible bodies, callbacks, or options that enable further computations.
        mujoco, options, model = self._mujoco, self._model.opt, self._model
        is_euler = options.integrator == mujoco.mjtIntegrator.mjINT_EULER
        # Flags of all options that are off by default, except MULTICCD, which only changes how contacts are found.
        flags = int(options.enableflags) & ~int(getattr(mujoco.mjtEnableBit, "mjENBL_MULTICCD", 0))
        # MuJoCo calls the callbacks in stages that this module would skip.
        callbacks = (mujoco.get_mjcb_passive(), mujoco.get_mjcb_contactfilter(), mujoco.get_mjcb_sensor())
        is_extended = flags or model.nplugin or getattr(model, "nflex", 0) or any(callbacks)
        return bool(is_euler and not is_extended)

    def _is_unchanged(self) -> bool:
        # Return whether the results of the last full computation are still valid:
        # calls may reuse results in this substep, and the simulated time is still the same.
        time_s = self._data.time
        is_same_time = time_s == self._time_s and time_s > 0  # after MuJoCo has reset an unstable state, the time is 0
        return self._is_trusted and self._is_fully_computed and is_same_time

    def _forward(self, full_forward: Callable[[], object]) -> None:
        # Replaces `MjSim.forward`, the function `full_forward`.
        # If the state has not changed, `mj_forwardSkip` computes only actuation and constraint forces:
        # positions and velocities are not computed. The last argument, 0, means that sensors are computed.
        if self._is_unchanged():
            self._mujoco.mj_forwardSkip(self._model, self._data, self._mujoco.mjtStage.mjSTAGE_VEL, 0)
            return
        full_forward()
        self._time_s, self._is_fully_computed = self._data.time, True

    def _step(self, full_step: Callable[..., object], *args: object, **kwargs: object) -> None:
        # Replaces `MjSim.step`, the function `full_step`: one physics substep.
        # If the full dynamics of the state are known, call only those parts of `mj_step` that are not computed yet.
        # The checks may reset an unstable state, so they come before `_is_unchanged`.
        # The last argument of `mj_forwardSkip`, 0, means that sensors are computed.
        mujoco, model, data = self._mujoco, self._model, self._data
        mujoco.mj_checkPos(model, data)
        mujoco.mj_checkVel(model, data)
        if self._is_unchanged():
            mujoco.mj_forwardSkip(model, data, mujoco.mjtStage.mjSTAGE_VEL, 0)
            mujoco.mj_checkAcc(model, data)
            mujoco.mj_Euler(model, data)
        else:
            full_step(*args, **kwargs)
        # The state has changed, so no results are known for it.
        self._is_trusted = self._is_fully_computed = False

    def _step_half(self, half: Callable[[], None]) -> None:
        # Replaces `MjSim.step1` and `MjSim.step2`; `half` is the replaced method, after which no results are known.
        self._is_trusted = self._is_fully_computed = False
        half()


def _has_known_source(owner: object, method: str, class_name: str = "") -> bool:
    # Return whether `owner` has robosuite's own, unchanged `method`; only this method has a faster equivalent.
    # If `class_name` is given, the method must also be defined by the class with this name.
    # The source code is compared by its hash; a method that was replaced on the instance itself is not robosuite's own.
    function = getattr(type(owner), method, None)
    full_name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    is_of_class = not class_name or full_name.endswith(f".{class_name}.{method}")
    if method in vars(owner) or full_name not in _KNOWN_DIGESTS or not is_of_class:
        return False
    return _source_digest(function) == _KNOWN_DIGESTS[full_name]


@lru_cache(maxsize=None)
def _source_digest(function: Any) -> str:
    # Return the first 12 hexadecimal digits of the SHA-256 of a function's source code; "" if it is not available.
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]
    except (OSError, TypeError):  # the source is not available
        return ""


def _make_fast_robot(simulation: Any, robot: Any, cache: dict[Any, _Controller]) -> _Robot14 | _Robot15 | None:
    # Return an object whose `control` replaces the robot's own `control` in later substeps.
    # Return None if a method to replace is not robosuite's own. `cache` maps robosuite's controllers to faster ones.
    # robosuite 1.5 has a composite controller with one controller per part of the robot; 1.4 has a single controller.
    composite = getattr(robot, "composite_controller", None)
    controllers = [robot.controller] if composite is None else list(composite.part_controllers.values())
    are_from_robosuite = all(
        type(controller).__module__.startswith("robosuite.")
        and not {"run_controller", "set_goal", "update"} & set(vars(controller))
        for controller in controllers
    )
    if robot.sim is not simulation or not _has_known_source(robot, "control") or not are_from_robosuite:
        return None
    if composite is not None:
        return _Robot15(robot, cache) if _has_known_source(composite, "run_controller") else None
    return _Robot14(robot, cache) if _has_known_source(robot, "grip_action") else None


class _Robot14:
    # Replaces `control` of a robosuite 1.4 robot in all substeps except the first.
    # `size` is the length of the action; `cache` contains the faster controllers.
    def __init__(self, robot: Any, cache: dict[Any, _Controller]) -> None:
        # `robot` is robosuite 1.4's robot. `_ctrl` is the simulator's own array of all actuators' inputs.
        self._robot, self._ctrl, self.size = robot, robot.sim.data._data.ctrl, int(robot.action_dim)
        self._run_arm = _find_run(robot.controller, _Controller14, cache)
        self._arm_actuators = np.array(robot._ref_joint_actuator_indexes)
        self._low, self._high = robot.torque_limits  # in N·m, for each joint of the arm
        self._has_gripper = bool(robot.has_gripper)
        if self._has_gripper:
            self._gripper_actuators = np.array(robot._ref_joint_gripper_actuator_indexes)
            low, high = robot.sim.model._model.actuator_ctrlrange[self._gripper_actuators].T
            # Gripper actions from -1 to 1 are scaled to the range of the gripper's actuators.
            self._middle, self._half = 0.5 * (high + low), 0.5 * (high - low)

    def control(self, action: Floats) -> None:
        # Write the inputs of this robot's actuators for the current substep.
        # The first substep has set the arm's goal, so only the gripper's part of the robot's `action` [size] is used.
        # `_run_arm` returns the torques in N·m of the arm's joints.
        # Gripper actions from -1 to 1 are scaled to the actuators' range.
        robot = self._robot
        robot.torques = self._run_arm().clip(self._low, self._high)
        if self._has_gripper:
            gripper_action = robot.gripper.format_action(action[robot.controller.control_dim :])
            self._ctrl[self._gripper_actuators] = self._middle + self._half * gripper_action
        self._ctrl[self._arm_actuators] = robot.torques


class _Robot15:
    # Replaces `control` of a robosuite 1.5 robot, whose controller has several parts, in all substeps except the first.
    def __init__(self, robot: Any, cache: dict[Any, _Controller]) -> None:
        # `robot` is robosuite 1.5's robot. `_ctrl` is the simulator's own array of all actuators' inputs.
        # `size` is the length of the robot's action. `cache` maps robosuite's controllers to faster ones.
        self._composite, self._ctrl, self.size = robot.composite_controller, robot.sim.data._data.ctrl, robot.action_dim
        limits, indices = robot.sim.model._model.actuator_ctrlrange, robot._ref_actuators_indexes_dict
        controllers, is_enabled = self._composite.part_controllers, robot._enabled_parts
        enabled_parts = [name for name in controllers if is_enabled.get(name, False)]
        # Maps each enabled part, such as an arm or a gripper, to the function that computes its actuators' inputs.
        self._laws = {name: _find_run(controllers[name], _Controller15, cache) for name in enabled_parts}
        # `__self__` of each bound method is a faster controller, or robosuite's controller if no faster one exists.
        arm_controllers = [getattr(self._laws.get(arm), "__self__", None) for arm in self._composite.arms]
        # `update_state` only passes the arms' origins to their controllers; the faster controllers read these directly.
        are_faster = all(getattr(arm, "has_center", False) for arm in arm_controllers)
        self._can_skip_update = are_faster and _has_known_source(self._composite, "update_state")
        self._actuators = {name: np.array(indices[name], dtype=np.intp) for name in self._laws}
        self._limits = {name: tuple(limits[index].T.copy()) for name, index in self._actuators.items()}
        self._shapes = [index.shape for index in self._actuators.values()]
        self._all_actuators = np.concatenate(list(self._actuators.values()))
        self._low, self._high = limits[self._all_actuators].T.copy()

    def control(self, action: Floats) -> None:
        # Write the inputs of this robot's actuators for the current substep.
        # `action` is not used, because the goals of all parts were set in the control step's first substep.
        # As in robosuite, `_applied_action_dict` gets the inputs of each part.
        # For each part, `_laws` contains the function that computes the inputs of the part's actuators.
        # For each part, `_actuators` contains the actuators' indices, and `_limits` the range of the actuators' inputs.
        if not self._can_skip_update:
            self._composite.update_state()
        applied = self._composite._applied_action_dict
        applied.clear()
        for name, run in self._laws.items():
            applied[name] = run()
        if [values.shape for values in applied.values()] == self._shapes:  # one assignment for all parts is faster
            self._ctrl[self._all_actuators] = np.concatenate(list(applied.values())).clip(self._low, self._high)
            return
        for name, values in applied.items():
            self._ctrl[self._actuators[name]] = values.clip(*self._limits[name])


def _find_run(
    controller: Any, make_faster: Callable[[Any], _Controller], cache: dict[Any, _Controller]
) -> Callable[[], Floats]:
    """Return the method `run` of a faster controller; if no faster one exists, `controller.run_controller`."""
    # `make_faster` makes a faster controller from robosuite's `controller`; `cache` stores the faster controller.
    # Both methods return the inputs of the controller's actuators, such as torques, and differ only in their speed.
    own_run: Callable[[], Floats] = controller.run_controller
    only_sets_speeds = any(_has_known_source(controller, "run_controller", class_name) for class_name in _SPEED_LAWS)
    if only_sets_speeds and _has_known_source(controller, "update"):
        # The faster controller does not interpolate goals.
        return own_run if controller.interpolator else _SpeedController15(controller).run
    # The faster controllers read at most one site.
    if not _has_known_source(controller, "update", "Controller") or getattr(controller, "num_ref_sites", 1) > 1:
        return own_run
    if controller not in cache:
        cache[controller] = make_faster(controller)
    return cache[controller].run


class _SpeedController15:
    """A faster controller of a gripper or mobile base in robosuite 1.5. The controller's goal is already set."""

    def __init__(self, controller: Any) -> None:
        # The indices of the controller's joints in MuJoCo's `qpos` and `qvel`.
        self._controller, self._data = controller, controller.sim.data._data
        self._joints, self._dofs = np.array(controller.qpos_index), np.array(controller.qvel_index)
        low, high = np.asarray(controller.actuator_min), np.asarray(controller.actuator_max)
        # Goals from -1 to 1 are scaled to the range of the actuators, unless the controller uses them as they are.
        self._middle, self._half = 0.5 * (high + low), 0.5 * (high - low)
        self._is_scaled = getattr(controller, "use_action_scaling", True)

    def run(self) -> Floats:
        """Return the joints' speeds, and change the controller's state as `run_controller` does."""
        controller = self._controller
        controller.joint_pos, controller.joint_vel = self._data.qpos[self._joints], self._data.qvel[self._dofs]
        goal = np.array(controller.goal_qvel)
        # A goal from -1 to 1 is scaled to the range of the actuators.
        controller.vels = self._middle + self._half * goal if self._is_scaled else goal
        controller.new_update = True
        return controller.vels  # type: ignore[no-any-return]


class _Controller:
    """A faster controller, which reads its inputs (joints, mass matrix, site, Jacobian) and applies a control law."""

    _update: Callable[[], None]  # subclasses define `_update` and `_solve`
    _solve: Callable[[], Floats]

    def __init__(self, controller: Any, site: str | None) -> None:
        import mujoco

        # `controller` is robosuite's. `site` is the name of the site that `controller` moves; None = only joints.
        # `_joints` and `_dofs` are the indices of the controller's joints in MuJoCo's `qpos` and `qvel`.
        self._mujoco_functions, self._controller = mujoco, controller
        simulation = controller.sim
        self._model, self._data = model, data = simulation.model._model, simulation.data._data
        self._joints, self._dofs = np.array(controller.qpos_index), np.array(controller.qvel_index)
        self._jacobian = np.empty((6, model.nv))  # Jacobian of the site for all joints: translation, rotation
        # Unpack the numbers 1, 2, ... as a packed mass matrix, to find where MuJoCo stores each entry of the matrix.
        # 0 = the entry is not stored, because the two joints do not affect each other.
        entry_numbers = np.empty((model.nv, model.nv))
        mujoco.mj_fullM(model, entry_numbers, np.arange(1.0, model.nM + 1))
        entry_numbers = entry_numbers[np.ix_(self._dofs, self._dofs)]
        self._mass_entries, self._is_uncoupled = np.maximum(entry_numbers - 1, 0).astype(np.intp), entry_numbers == 0
        self._has_uncoupled = bool(self._is_uncoupled.any())
        self._site = None if site is None else int(simulation.model.site_name2id(site))
        if self._site is not None:
            # Views of the site's current position [3] in m and rotation matrix [3, 3].
            self._pos, self._mat = data.site_xpos[self._site], data.site_xmat[self._site].reshape(3, 3)
        # For operational space control without interpolators, `_solve` replaces the controller's own law.
        interpolators = (getattr(controller, f"interpolator_{kind}", None) for kind in ("pos", "ori"))
        is_operational = _has_known_source(controller, "run_controller", "OperationalSpaceController")
        self._is_operational = is_operational and not any(interpolators)
        # robosuite's module with the functions of the control law, such as `opspace_matrices`.
        self._laws = sys.modules[type(controller).__module__]
        self._law: Callable[[], Floats] = self._solve if self._is_operational else controller.run_controller

    def run(self) -> Floats:
        """Do the same as the controller's `run_controller`: return the same result, and change the same attributes."""
        # The result has the inputs of the controller's actuators, such as the torques [J] of `J` joints in N·m.
        controller = self._controller
        if controller.new_update:  # the controller's copies of positions, velocities and matrices are outdated
            self._update()
        return self._law()

    def _solve_operational(self, errors: tuple[Floats, Floats], velocities: tuple[Floats, Floats]) -> Floats:
        """Return operational space control's torques [J] for errors in position [m] and rotation [rad], each [3]."""
        # `velocities` are the linear [m/s] and the angular velocity [rad/s] of the end effector, each [3].
        # The arithmetic and its order are those of robosuite, so that results are identical.
        # `laws` is robosuite's module.
        controller, laws, mass = self._controller, self._laws, self._controller.mass_matrix
        kp, kd = controller.kp, controller.kd  # stiffness and damping [6]: three for position, three for rotation
        force = errors[0] * kp[0:3] + -velocities[0] * kd[0:3]
        torque = errors[1] * kp[3:6] + -velocities[1] * kd[3:6]
        jacobian = controller.J_full
        # The effective mass matrices at the end effector, and a projection to motions that keep the end effector still.
        lambda_full, lambda_pos, lambda_ori, nullspace = laws.opspace_matrices(
            mass, jacobian, controller.J_pos, controller.J_ori
        )
        if controller.uncoupling:
            wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, torque)])
        else:
            wrench = np.dot(lambda_full, np.concatenate([force, torque]))
        torques: Floats = np.dot(jacobian.T, wrench) + self._data.qfrc_bias[self._dofs]
        # Further torques pull the joints to their initial positions without moving the end effector.
        joint_state = controller.initial_joint, controller.joint_pos, controller.joint_vel
        torques += laws.nullspace_torques(mass, nullspace, *joint_state)
        controller.torques, controller.new_update = torques, True
        return torques

    def _read_jacobian(self) -> Floats:
        # Return the site's Jacobian with respect to the controller's joints, [6, J]: translation, then rotation.
        self._fill_jacobian(self._site)
        return np.asfortranarray(self._jacobian.take(self._dofs, axis=1))

    def _fill_jacobian(self, site: int | None) -> None:
        # Write the Jacobian of this site to `_jacobian` [6, nv]: the rows of translation, then the rows of rotation.
        self._mujoco_functions.mj_jacSite(self._model, self._data, self._jacobian[:3], self._jacobian[3:], site)

    def _site_velocities(self) -> tuple[Floats, Floats]:
        # Return the velocity of the site of the latest `_fill_jacobian`: linear [m/s] and angular [rad/s], each [3].
        qvel = self._data.qvel
        return np.dot(self._jacobian[:3], qvel), np.dot(self._jacobian[3:], qvel)

    def _read_joints(self) -> None:
        # Copy the state and mass matrix [J, J] of the `J` joints from the simulator into robosuite's controller.
        # Mark the controller as up to date. `_mass_entries` [J, J] are indices in `qM`, MuJoCo's packed mass matrix.
        # Entries of uncoupled joints are not stored, and are 0.
        controller, data, dofs = self._controller, self._data, self._dofs
        controller.joint_pos, controller.joint_vel = data.qpos[self._joints], data.qvel[dofs]
        mass = data.qM.take(self._mass_entries)
        if self._has_uncoupled:
            mass[self._is_uncoupled] = 0.0
        controller.mass_matrix = mass.T  # transposing gives robosuite's memory order; the matrix is symmetric
        controller.new_update = False


class _Controller14(_Controller):
    # Faster controller of an arm in robosuite 1.4.
    def __init__(self, controller: Any) -> None:
        super().__init__(controller, controller.eef_name)  # `eef_name` is the name of the end effector's site

    def _update(self) -> None:
        # Do what robosuite 1.4's `Controller.update` does: copy the pose and velocity of the end effector,
        # the Jacobian and the joints' state from the simulator into the controller.
        controller = self._controller
        controller.sim.forward()
        jac = self._read_jacobian()
        controller.ee_pos, controller.ee_ori_mat = self._pos.copy(), self._mat.copy()
        controller.ee_pos_vel, controller.ee_ori_vel = self._site_velocities()
        controller.J_pos, controller.J_ori = np.asfortranarray(jac[:3]), np.asfortranarray(jac[3:])
        controller.J_full = jac
        self._read_joints()

    def _solve(self) -> Floats:
        # Return operational space control's torques [J] in N·m for the end effector's distance from its goal pose.
        controller = self._controller
        rotation = self._laws.orientation_error(np.array(controller.goal_ori), controller.ee_ori_mat)
        errors = controller.goal_pos - controller.ee_pos, rotation
        return self._solve_operational(errors, (controller.ee_pos_vel, controller.ee_ori_vel))


class _Controller15(_Controller):
    # Faster controller of an arm or another part in robosuite 1.5.
    def __init__(self, controller: Any) -> None:
        super().__init__(controller, controller.ref_name)  # the name of the site that the controller moves; may be None
        self.has_center = self._is_operational
        """True if this controller updates its own origin, so that the composite controller does not need to."""
        if self.has_center:
            # The site at the origin of this part of the robot, and views of its current position and rotation matrix.
            name = f"{controller.naming_prefix}{controller.part_name}_center"
            self._center = center = int(controller.sim.model.site_name2id(name))
            self._origin = self._data.site_xpos[center], self._data.site_xmat[center].reshape(3, 3)

    def _update(self) -> None:
        # Do what robosuite 1.5's `Controller.update` does: copy the pose and velocity of the site,
        # the Jacobian and the joints' state from the simulator into the controller.
        controller = self._controller
        if not controller.lite_physics:  # with `lite_physics`, robosuite makes no forward pass here
            controller.sim.forward()
        if self._site is not None:
            jac = self._read_jacobian()
            controller.ref_pos[:], controller.ref_ori_mat[:, :] = self._pos, self._mat
            controller.ref_pos_vel[:], controller.ref_ori_vel[:] = self._site_velocities()
            controller.J_pos[:, :], controller.J_ori[:, :], controller.J_full[:, :] = jac[:3], jac[3:], jac
        self._read_joints()

    def _solve(self) -> Floats:
        # Return operational space control's torques [J] in N·m for the site's distance from its goal pose.
        # The velocities are relative to the origin of this part of the robot.
        controller = self._controller
        controller.update_origin(self._origin[0].copy(), self._origin[1].copy())
        # If the goal is given in the frame of the origin ("base"), convert it to the world's frame.
        position, orientation = controller.goal_pos, controller.goal_ori
        if controller.input_ref_frame == "base":
            position = controller.origin_pos + np.dot(controller.origin_ori, position)
            orientation = np.dot(controller.origin_ori, orientation)
        rotation = self._laws.orientation_error(orientation, controller.ref_ori_mat)
        self._fill_jacobian(self._center)
        center_velocities = self._site_velocities()
        velocities = controller.ref_pos_vel - center_velocities[0], controller.ref_ori_vel - center_velocities[1]
        return self._solve_operational((position - controller.ref_pos, rotation), velocities)
