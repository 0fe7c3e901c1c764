"""Host of robosuite 1.5's tasks for one arm (with cubes, nuts, bins, a door or a hanging tool) and for two arms.

`robosuite.toml` defines tasks and goals. robosuite is imported when an environment is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.files import read_shipped
from safevla_bench.hosts import check_start, check_wants, drawn_reset_seed, registered_task, require_known
from safevla_bench.hosts.mujoco import environment
from safevla_bench.hosts.mujoco.graphics import importing
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import EpisodeSeed, SearchSpace, Task
from safevla_recorder.attachment import package_versions
from safevla_recorder.identity import read_identity
from safevla_recorder.mujoco import recorder
from safevla_recorder.mujoco.hook import hook_after
from safevla_recorder.mujoco.recorder import Scene, SceneArm, subtree_bodies

SUITE, SUITE_GR1 = "robosuite", "robosuite-gr1"
STILL = (*[0.0] * 6, -1.0)
_INSTALL = "pip install 'safevla-bench[robosuite]' in a separate environment, or use the one from `make robocasa`"
_DISTRIBUTIONS = ("praxis-robosuite", "robosuite")
_VERSION = "1.5."
_OPEN = "open"

Goal = tuple[tuple[str, ...], ...]
CAMERAS = ("agentview", "frontview", "birdview", "robot0_eye_in_hand")


class RobosuiteHost(environment.MujocoHost):
    """The host `robosuite`. Without the pip extra `robosuite`, it can only list suites and tasks."""

    name = "robosuite"
    supports = replace(environment.ROBOSUITE_SUPPORT, cameras=CAMERAS, states=True, placed=True)

    def suites(self) -> tuple[str, ...]:
        # Returns the names of the suites: tasks of Panda arms, and tasks of the robot GR1.
        return SUITE, SUITE_GR1

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the suite's tasks, with the registry's instructions; raise `HostError` for an unknown suite."""
        require_known("robosuite", "suite", suite, self.suites())
        table = _read_tasks()
        names = [name for name in table.goals if find_team(name).suite == suite]
        teams = map(find_team, names)
        return tuple(
            registered_task(suite, name, index, team.still, horizon=table.horizon, arms=team.arms)
            for index, (name, team) in enumerate(zip(names, teams, strict=True))
        )

    def make(self, task: Task, wants: Wants) -> RobosuiteTaskEnv:
        # Returns a new environment of one task. `wants` lists what the policy wants to observe.
        # `check_wants` raises `HostError` for unsupported requests. `arms` is empty if there is only one arm.
        check_wants(wants, self.supports, "the host robosuite")
        if wants.privileged and task.arms:
            problem = f"{task.name} has several arms, but privileged state needs a single arm"
            raise HostError(problem, remedy="Use a policy without privileged state.")
        return RobosuiteTaskEnv(task, wants, self.versions())

    def search_space(self, task: Task, start: EpisodeSeed) -> SearchSpace:
        """Return the search space: x and y of each recorded object, and of each fixture that the goal opens, within the
        ranges of robosuite's samplers.
        """
        # The ranges are known only after a reset, which makes the samplers. `start` determines that reset.
        with closing(self.make(task, Wants())) as env:
            env.reset(start)
            return env.search_space()

    def versions(self) -> dict[str, str]:
        """Return the versions of all packages that affect trajectories; raise `HostError` without robosuite 1.5."""
        # Either one of `_DISTRIBUTIONS` provides robosuite.
        versions = package_versions(("mujoco", *_DISTRIBUTIONS, "numpy"))  # lists only installed packages
        installed = [versions[name] for name in _DISTRIBUTIONS if name in versions]
        if not installed:
            raise HostError("robosuite is not installed", remedy=_INSTALL)
        if not all(version.startswith(_VERSION) for version in installed):
            problem = f"robosuite {' and '.join(installed)} is installed, but this host needs robosuite 1.5"
            raise HostError(problem, remedy=_INSTALL)
        return versions


class RobosuiteTaskEnv(environment.RobosuiteEnv):
    """One robosuite task with its recorder.

    Actions are those of the Panda's default controller, [7] in [-1, 1]: 0.05 m [0:3] and 0.5 rad [3:6] per unit in the
    frame of the base, and the gripper [6] (-1 opens). With two arms, the first arm's numbers come before the second
    arm's. An arm without a gripper has no number [6]. Images are upright. Success is robosuite's `_check_success`.
    """

    action_meaning = "position [3], rotation [3], gripper"
    stage_camera = CAMERAS[0]

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        self._team = find_team(task.name)  # the robots of the task
        self.still, self.embodiment = self._team.still, self._team.embodiment
        super().__init__(task, wants, versions)
        self._goal = task_goal(task.name)  # predicates, such as ("on", "cubeA", "cubeB")

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a new environment, let the scene settle, take record 0, and return its observation.

        Every start is drawn by `seed`, even without `seed.drawn`, because robosuite's tasks have no initial states. A
        recorded state overrides the draw. Raises `HostError` if `check_start` refuses the seed, the state does not fit
        the task's simulation, or robosuite cannot be imported.
        """
        check_start(self.task, seed, RobosuiteHost.supports)
        make = partial(make_env, self.task.name, self._wants, drawn_reset_seed(seed))
        # With settling steps, the policy never gets the reset's observation, so the reset need not render pictures.
        env = self._replace_env(make, is_seen=not seed.wait_steps)
        # Hashes of the task's class and of robosuite's code, for the record.
        self._identity = read_identity(find_env_class(self._team.task), None, "robosuite", "environments")
        # A reset first loads the model, which makes the samplers. Then the reset draws from the samplers.
        # `seed.placed` has coordinates of objects, which replace the drawn coordinates.
        hook_after(env, "_load_model", lambda: replace_places(env, seed.placed))
        raw = env.reset()
        if seed.recorded is not None and seed.recorded.state is not None:
            model, data = self._model_and_data()
            # Our records have the full state; states of robosuite's demonstrations end after the velocities.
            full_size = recorder.state_size(model)
            recorded_size = full_size if len(seed.recorded.state) == full_size else 1 + model.nq + model.nv
            state = environment.flat_state(seed.recorded.state, recorded_size)
            # Values that the recorded state lacks stay as the reset has set them.
            recorder.set_state(model, data, np.concatenate([state, recorder.copy_state(model, data)[recorded_size:]]))
            env.sim.forward()
            for robot in env.robots:  # controllers must not start from the pose after the reset
                robot.composite_controller.update_state()
                robot.composite_controller.reset()
            raw = env._get_observations(force_update=True)
        return self._settle_and_record(seed, raw, bool(env._check_success()))

    def search_space(self) -> SearchSpace:
        """Return the search space of the current episode; see `RobosuiteHost.search_space`."""
        # A sampler draws the places of objects, `mujoco_objects`, from a range of x and a range of y.
        # `_goal` has the predicates of the task's goal, such as ("open", "Door").
        sampler = _require_sampler(self._robosuite_env())
        # A composite sampler has a dict of samplers.
        object_samplers = getattr(sampler, "samplers", {"": sampler}).values()
        searched_names = {*self._read_scene().objects, *opened_fixtures(self._goal)}
        # The objects to search, each with its sampler.
        placements = [
            (object_sampler, obj)
            for object_sampler in object_samplers
            for obj in object_sampler.mujoco_objects
            if obj.name in searched_names
        ]
        ranges = []  # one array for each object: the rows are x and y, the columns are lowest and highest value
        for object_sampler, obj in placements:
            # Ranges are relative to a reference position.
            # If a whole object must lie in the range, the range shrinks by the object's radius on each side.
            margin_m = obj.horizontal_radius if object_sampler.ensure_object_boundary_in_range else 0
            center_m = np.reshape(object_sampler.reference_pos[:2], (2, 1))
            xy_range = np.array([object_sampler.x_range, object_sampler.y_range])
            ranges.append(xy_range + center_m + np.array([1, -1]) * margin_m)
        low, high = np.concatenate(ranges).T.tolist()
        names = tuple(f"{obj.name}.{axis}" for _, obj in placements for axis in "xy")
        # Two objects must not overlap: their distance must be at least the sum of their radii.
        min_distances = (
            (first.name, second.name, first.horizontal_radius + second.horizontal_radius)
            for (_, first), (object_sampler, second) in combinations(placements, 2)
            if object_sampler.ensure_valid_placement
        )
        return SearchSpace(names, tuple(low), tuple(high), apart_m=tuple(min_distances))

    def _advance(self, action: Action) -> tuple[environment.RawObservation, bool]:
        # Simulates one control step. Returns robosuite's observation and whether the task is solved.
        env = self._robosuite_env()
        raw, *_ = env.step(action)
        return raw, bool(env._check_success())

    def _read_subgoals(self) -> Mapping[str, bool]:
        # Returns whether each predicate of the goal holds, such as "in Milk VisualMilk_main" -> True; {} if unknown.
        # In tasks with bins or pegs, robosuite has a success flag for each object. Other tasks have no subgoals.
        # Attributes that a task lacks count as empty.
        env = self._robosuite_env()
        flags = getattr(env, "objects_in_bins", getattr(env, "objects_on_pegs", ()))
        objects = getattr(env, "objects", getattr(env, "nuts", ()))
        if not len(flags) or len(self._goal) == 1:  # if there is only one predicate, it is the goal
            return {}
        # A predicate has a verb, the name of an object (index 1), and maybe other names.
        is_done = {str(obj.name): bool(flag) for obj, flag in zip(objects, flags, strict=True)}
        return {" ".join(predicate): is_done[predicate[1]] for predicate in self._goal if predicate[1] in is_done}

    def _read_scene(self) -> Scene:
        # Returns the names and roles of the bodies in the model. `prefixes` maps arms to prefixes of observation keys.
        return read_scene(self._robosuite_env(), self._goal, self._team.prefixes)

    def _arm_prefixes(self) -> Mapping[str, str]:
        # Maps each arm's name to the prefix of its keys in robosuite's observation; {} if there is only one arm.
        return self._team.prefixes

    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        # Returns a reader of the scene's true poses and sizes, for policies that want them.
        # The goal may name bodies that are not objects, such as a peg. These bodies become sites at their positions.
        env, (model, data) = self._robosuite_env(), self._model_and_data()
        object_names = {obj.name for obj in env.model.mujoco_objects}
        # A predicate holds a verb, the object that it moves, and maybe other names.
        site_names = [name for _, _, *names in self._goal for name in names if name not in object_names]
        # Each position [3] is a view into MuJoCo's data, so it stays current.
        site_positions = {name: data.body(name).xpos for name in site_names}
        return ScenePrivileged(model, data, scene, self._goal, site_positions)

    def _target_object(self) -> str | None:
        # Returns the first object that the goal lifts or places; None if the goal only opens something.
        targets = goal_targets(self._goal)
        return targets[0] if targets else None


class Team(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The robots of a task."""

    task: str  # robosuite's name of the task
    suite: str = SUITE
    embodiment: str = "Panda"
    robot: str = "Panda"
    count: int = 1
    controller: str | None = None  # kind of controller; None = the robot's default
    still: tuple[float, ...] = STILL
    prefixes: Mapping[str, str] = {}
    """Maps each arm's name to the prefix of its keys in robosuite's observations; {} if there is only one arm."""

    @property
    def arms(self) -> tuple[str, ...]:
        # The names of the arms, which are the keys of `prefixes`; () if there is only one arm, which has no name.
        return tuple(self.prefixes)


class _RobosuiteTasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    horizon: int
    goals: Mapping[str, Goal]
    teams: Mapping[str, Team]


@cache
def _read_tasks() -> _RobosuiteTasks:
    # Returns the contents of `robosuite.toml`: the horizon of all tasks, and each task's goal and robots. Cached.
    return read_shipped(__package__, "robosuite.toml", _RobosuiteTasks)


def task_goal(name: str) -> Goal:
    """Return the condition for a task's success, as predicates; raise `HostError` for an unknown task."""
    # A predicate is a verb with names, such as ("on", "cubeA", "cubeB").
    goals = _read_tasks().goals
    require_known("the host robosuite", "task", name, goals)
    return goals[name]


def find_team(name: str) -> Team:
    """Return the robots of a task: a Panda, unless `robosuite.toml` says otherwise."""
    # `name` is the name of the task. `Team(name)` is the default, a single Panda.
    return _read_tasks().teams.get(name) or Team(name)


def goal_targets(goal: Goal) -> tuple[str, ...]:
    """Return the objects that a goal lifts or places, in the goal's order."""
    # A goal's predicates are a verb, a name and maybe further names, such as ("on", "cubeA", "cubeB").
    # With `open`, the name is a fixture, not an object.
    return tuple(name for verb, name, *_ in goal if verb != _OPEN)


def opened_fixtures(goal: Goal) -> tuple[str, ...]:
    """Return the fixtures that the goal opens."""
    return tuple(name for verb, name, *_ in goal if verb == _OPEN)


def make_env(name: str, wants: Wants, seed: int) -> Any:
    """Return robosuite's environment of a task before its first reset. `seed` seeds its random generator."""
    RobosuiteHost().versions()  # raises `HostError` without robosuite 1.5
    environment.quieten_log()
    with importing("robosuite", _INSTALL):
        import robosuite  # noqa: F401 - the import defines the classes of robosuite's tasks
    team = find_team(name)  # the kind of robot, the number of robots, and the kind of controller
    options = environment.env_options(team.robot, wants, team.count, team.controller)
    return find_env_class(team.task)(**options, seed=seed)


def replace_places(env: Any, placed: Sequence[tuple[str, float]]) -> None:
    """Let robosuite's samplers draw as usual, then replace drawn coordinates by the values in `placed` [m]. Each draw
    raises `HostError` if `placed` names an unknown object, or an axis other than x and y.
    """
    # An entry of `placed` is, for example, ("cube.x", 0.1). `env` is robosuite's environment with a loaded model.
    if not placed and not hasattr(env, "placement_initializer"):
        return  # the task draws only the robots' poses
    draw_placements = _require_sampler(env).sample

    def sample() -> Any:
        # Replaces the sampler's method `sample`, and returns the same kind of dict.
        drawn = draw_placements()  # maps each object's name to (position, quaternion, object)
        for coordinate, value_m in placed:
            name, _, axis = coordinate.rpartition(".")
            if name not in drawn or axis not in {"x", "y"}:
                raise HostError(f"the robosuite task has no coordinate {coordinate!r}", remedy="Run the search again.")
            position, *quat_and_object = drawn[name]
            new_position = list(position)
            new_position["xy".index(axis)] = value_m
            drawn[name] = (tuple(new_position), *quat_and_object)
        return drawn

    env.placement_initializer.sample = sample


def _require_sampler(env: Any) -> Any:
    # Returns robosuite's sampler of the objects' places; raises `HostError` for a task without such a sampler.
    if not hasattr(env, "placement_initializer"):
        raise HostError(f"{type(env).__name__} has no objects to place", remedy="Search another task's initial states.")
    return env.placement_initializer


def find_env_class(name: str) -> Any:
    """Return robosuite's class of a task; raise `StopIteration` if robosuite has no class with this name.
    `robosuite.make` could return a class of RoboCasa, which also defines a class `PickPlace`.
    """
    from robosuite.environments.manipulation.manipulation_env import ManipulationEnv

    classes = list(ManipulationEnv.__subclasses__())
    for env_class in classes:
        classes.extend(env_class.__subclasses__())  # so the loop also visits subclasses of subclasses
    return next(
        env_class
        for env_class in classes
        if env_class.__name__ == name and env_class.__module__.startswith("robosuite.")
    )


def read_scene(env: Any, goal: Goal, prefixes: Mapping[str, str] = MappingProxyType({})) -> Scene:
    """Return names and roles of the bodies in robosuite's current model. `prefixes` is empty if there is only one arm.

    Objects are robosuite's freely moving objects, with robosuite's names; each object includes all its bodies. Pegs and
    holes fixed to the hands are also objects. All other bodies, even a fixed object, are furniture, with MuJoCo's body
    names. Tasks of one object move the other objects out of reach; these are untracked furniture. Records leave out
    their contacts with the floor, and contacts between parts of a door that the goal opens.
    """
    model = env.sim.model._model
    peg_and_hole = [obj for obj in (getattr(env, "peg", None), getattr(env, "hole", None)) if obj is not None]
    root_bodies = {
        str(obj.name): int(model.body(obj.root_body).id) for obj in (*env.model.mujoco_objects, *peg_and_hole)
    }
    names_in_hand = {str(obj.name) for obj in peg_and_hole}
    free_bodies = {name: body for name, body in root_bodies.items() if model.body_jntnum[body] or name in names_in_hand}
    # In a task of one object, robosuite names the object in `obj_to_use`.
    only_object = getattr(env, "obj_to_use", None)
    objects = {name: body for name, body in free_bodies.items() if only_object is None or only_object == name}
    names = recorder.name_bodies(model, free_bodies)  # the recorded name of each MuJoCo body, [nbody]
    robot_roots = [int(model.body(robot.robot_model.root_body).id) for robot in env.robots]
    robot_bodies = [
        body for root in robot_roots for body in subtree_bodies(model, root) if names[body] not in free_bodies
    ]
    arms = {name: _read_arm(env, names, prefix, robot_bodies) for name, prefix in prefixes.items()}
    # With several arms, `arms` describes each arm, and the scene's fields for a single arm stay empty.
    only_arm = SceneArm() if arms else _read_arm(env, names, "robot0_right_", robot_bodies)
    roles = recorder.assign_roles(model, names, objects=objects, targets=goal_targets(goal), robot=robot_bodies)
    # Records leave out contacts within `out_of_reach` and within each opened fixture.
    # The floor belongs to the world, `names[0]`.
    out_of_reach = frozenset({names[0], *free_bodies} - set(objects))
    parts_of_opened = (subtree_bodies(model, root_bodies[name]) for name in opened_fixtures(goal))
    opened = (frozenset(names[body] for body in parts) for parts in parts_of_opened)
    return Scene(
        body_name=names,
        roles=roles,
        objects=objects,
        links={},
        fingers=only_arm.fingers,
        eef_site=only_arm.eef_site,
        arm_dofs=only_arm.arm_dofs,
        arms=arms,
        fixtures=(out_of_reach, *opened),
    )


def _read_arm(env: Any, names: Sequence[str], prefix: str, robot_bodies: Sequence[int]) -> SceneArm:
    # Returns the arm whose observation keys begin with `prefix`, such as `robot1_`, or `robot0_left_` for two arms.
    # `names` has the recorded name of each MuJoCo body. `robot_bodies` has the ids of all robots' bodies.
    # `eef_site` is the site of the arm's end effector. `arm_dofs` are the indices of the arm's joints in `qvel`.
    robot_name, _, side = prefix.rstrip("_").partition("_")
    side = side or "right"  # robosuite's name of a robot's only arm
    model, robot = env.sim.model._model, env.robots[int(robot_name.removeprefix("robot"))]
    gripper, dofs = robot.gripper[side], tuple(int(dof) for dof in robot.part_controllers[side].qvel_index)
    # A single arm includes all bodies of the robot. One of several arms includes the bodies that its first joint moves.
    root = int(model.dof_bodyid[dofs[0]]) if len(robot.arms) > 1 else model.body(robot.robot_model.root_body).id
    arm_bodies = {*subtree_bodies(model, int(root))}
    left, right = (recorder.geom_ids(model, gripper.important_geoms[name]) for name in ("left_finger", "right_finger"))
    return SceneArm(
        bodies=frozenset(names[body] for body in robot_bodies if body in arm_bodies),
        fingers=(left, right) if left and right else None,
        eef_site=int(model.site(gripper.important_sites["grip_site"]).id),
        arm_dofs=dofs,
    )
