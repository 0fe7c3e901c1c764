"""robosuite's own tasks, from `robosuite.toml`: goals, environments, scenes. Importing it imports no simulator."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.renderer import graphics_error
from safevla_bench.hosts.mujoco.robosuite_options import env_options, quieten_log
from safevla_bench.interface import Task, Wants
from safevla_bench.tasks import registry
from safevla_recorder.mujoco.scene import Scene, geom_ids, name_bodies, roles_in_use, subtree_bodies

SUITE = "robosuite"
STILL = (*[0.0] * 6, -1.0)
"""No motion, gripper opening."""
INSTALL = (
    "pip install 'safevla-bench[robosuite]' in an environment of its own, or make robocasa, whose robosuite this is"
)
_DISTRIBUTIONS = ("praxis-robosuite", "robosuite")
_VERSION = "1.5."
_OPENS = "open"

Goal = tuple[tuple[str, ...], ...]


class _TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    horizon: int
    goals: Mapping[str, Goal]


@cache
def _read_tasks() -> _TaskFile:
    text = (resources.files(__package__) / "robosuite.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_TaskFile)


def suite_tasks(suite: str) -> tuple[Task, ...]:
    """Return the suite's tasks, with the registry's instructions; raises `HostError` where there is no such suite."""
    if suite != SUITE:
        raise HostError(f"robosuite has no suite {suite!r}", remedy=f"Suites: {SUITE}.")
    file, known = _read_tasks(), registry().tasks
    return tuple(
        Task(SUITE, name, index, name, known[SUITE, name].instruction or name, STILL, horizon=file.horizon)
        for index, name in enumerate(file.goals)
    )


def task_goal(name: str) -> Goal:
    """Return what a task's success asks for, as predicates; raises `HostError` where there is no such task."""
    goals = _read_tasks().goals
    if name not in goals:
        raise HostError(f"the host robosuite has no task {name!r}", remedy=f"Tasks: {', '.join(goals)}.")
    return goals[name]


def goal_targets(goal: Goal) -> tuple[str, ...]:
    """Return the objects that a goal lifts or puts somewhere, in its order."""
    return tuple(name for verb, name, *_ in goal if verb != _OPENS)


def opened_fixtures(goal: Goal) -> tuple[str, ...]:
    """Return the fixtures of which a goal moves a part."""
    return tuple(name for verb, name, *_ in goal if verb == _OPENS)


def versions() -> dict[str, str]:
    """Return the versions of all that a trajectory depends on, by distribution; imports no simulator.

    Raises:
        HostError: robosuite is not installed, or not in version 1.5.
    """
    found = {}
    for name in ("mujoco", *_DISTRIBUTIONS, "numpy", "safevla-bench"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    installed = {name: version for name, version in found.items() if name in _DISTRIBUTIONS}
    if not installed:
        raise HostError("robosuite is not installed", remedy=INSTALL)
    for name, version in installed.items():
        if not version.startswith(_VERSION):
            raise HostError(f"{name} {version} is installed, this host runs on 1.5 only", remedy=INSTALL)
    return found


def make_env(name: str, wants: Wants, seed: int) -> Any:
    """Return robosuite's environment of a task, whose generator has that seed, before its reset.

    From then on robosuite's log lacks what `quieten_log` names.

    Raises:
        HostError: robosuite is not installed, is not version 1.5, or cannot be imported here.
    """
    versions()
    quieten_log()
    try:
        import robosuite  # noqa: F401 - importing it defines the classes of its tasks
    except ModuleNotFoundError as error:
        raise HostError(f"robosuite lacks a package: {error}", remedy=INSTALL) from error
    except Exception as error:  # MuJoCo and PyOpenGL each have their own for a MUJOCO_GL that they cannot serve
        raise graphics_error("robosuite", error) from error
    return find_env_class(name)(**env_options("Panda", wants), seed=seed)


def find_env_class(name: str) -> Any:
    """Return robosuite's own class of one of its tasks.

    `robosuite.make` goes by the name alone, and RoboCasa defines another `PickPlace`: whoever is imported last has it.
    """
    from robosuite.environments.manipulation.manipulation_env import ManipulationEnv

    kinds = list(ManipulationEnv.__subclasses__())
    for kind in kinds:
        kinds.extend(kind.__subclasses__())  # which this loop comes to as well
    return next(kind for kind in kinds if kind.__name__ == name and kind.__module__.startswith("robosuite."))


def read_scene(env: Any, goal: Goal) -> Scene:
    """Return names and roles of the present model of robosuite's environment.

    The robot is the subtree of its base. Objects are those of robosuite's that move freely, under its names with all
    their bodies: targets if the goal names them, else bystanders. Whatever else, fixed objects too, is furniture under
    MuJoCo's body names. Tasks of one object throw the others out of reach, where they fall to the floor:
    those are furniture, untracked, and what they do to the floor is left out. So is what parts of a door that is to be
    opened do to each other.
    """
    model, robot = env.sim.model._model, env.robots[0]
    things = {str(thing.name): int(model.body(thing.root_body).id) for thing in env.model.mujoco_objects}
    free = {name: body for name, body in things.items() if model.body_jntnum[body]}
    only = getattr(env, "obj_to_use", None)
    objects = {name: body for name, body in free.items() if only in (None, name)}
    names = name_bodies(model, free)
    roles = {
        **dict.fromkeys(names, "furniture"),
        **dict.fromkeys(objects, "bystander"),
        **dict.fromkeys(goal_targets(goal), "target"),
        **{names[body]: "robot" for body in subtree_bodies(model, int(model.body(robot.robot_model.root_body).id))},
    }
    fingers = robot.gripper["right"].important_geoms
    return Scene(
        body_name=names,
        roles=roles_in_use(model, names, roles, frozenset(objects)),
        objects=objects,
        links={},
        fingers=(geom_ids(model, fingers["left_finger"]), geom_ids(model, fingers["right_finger"])),
        eef_site=int(model.site(robot.gripper["right"].important_sites["grip_site"]).id),
        arm_dofs=tuple(int(model.joint(name).dofadr[0]) for name in robot.robot_model.arm_joints),
        fixtures=(
            frozenset({names[0], *free} - set(objects)),
            *(frozenset(names[body] for body in subtree_bodies(model, things[name])) for name in opened_fixtures(goal)),
        ),
    )
