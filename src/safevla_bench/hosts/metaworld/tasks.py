"""Meta-World's suites and tasks, from `metaworld.toml`: what each moves, its environment, goals and scene."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.hosts import read_versions
from safevla_bench.hosts.mujoco.renderer import graphics_error
from safevla_bench.interface.task import Task
from safevla_recorder.mujoco.scene import Scene, assign_roles, moving_links, subtree_bodies

if TYPE_CHECKING:
    import mujoco
    from metaworld.sawyer_xyz_env import SawyerXYZEnv

_SIMULATOR = ("mujoco", "gymnasium", "metaworld")
_INSTALL = "make metaworld   (in a checkout: it makes Meta-World's own environment, .venv-metaworld)"
_FREE = 0  # MuJoCo's mjtJoint
_ROBOT_ROOTS = ("base", "mocap")
_FINGERS = (("rightclaw", "rightpad"), ("leftclaw", "leftpad"))
STILL = (0.0, 0.0, 0.0, -1.0)


class MetaworldTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task: what it asks for, the bodies that its goal moves, and the fixture of which it moves a part."""

    instruction: str
    targets: tuple[str, ...] = ()
    moves: str | None = None


class _TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    horizon: int
    init_states: int
    names: Mapping[str, str]
    suites: Mapping[str, tuple[str, ...]]
    tasks: Mapping[str, MetaworldTask]


@cache
def _read_tasks() -> _TaskFile:
    text = (resources.files(__package__) / "metaworld.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_TaskFile)


def suites() -> tuple[str, ...]:
    """Return the names of the suites."""
    return tuple(_read_tasks().suites)


def suite_tasks(suite: str) -> tuple[Task, ...]:
    """Return a suite's tasks in Meta-World's order; raises `HostError` where there is no such suite."""
    file = _read_tasks()
    if suite not in file.suites:
        raise HostError(f"Meta-World has no suite {suite!r}", remedy=f"Suites: {', '.join(file.suites)}.")
    return tuple(
        Task(suite, name, index, name, file.tasks[name].instruction, STILL, file.init_states, file.horizon)
        for index, name in enumerate(file.suites[suite])
    )


def metaworld_task(name: str) -> MetaworldTask:
    """Return what one task asks for, by Meta-World's name; raises `HostError` where there is none."""
    tasks = _read_tasks().tasks
    if name not in tasks:
        raise HostError(f"Meta-World has no task {name!r}", remedy="`tasks(suite)` lists them.")
    return tasks[name]


def moving_part_names() -> Mapping[str, str]:
    """Return the names of moving bodies that the models leave unnamed, by the body that they hang on."""
    return _read_tasks().names


def versions() -> dict[str, str]:
    """Return the versions of all that a trajectory depends on; raises `HostError` without Meta-World. Imports
    nothing.
    """
    return read_versions((*_SIMULATOR, "numpy", "safevla-bench"), "Meta-World", _INSTALL)


def import_metaworld() -> Any:
    """Return the package `metaworld`; raises `HostError` where it is missing or cannot be imported."""
    versions()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium's, about its own registry
            import metaworld
    except ModuleNotFoundError as error:
        raise HostError(f"Meta-World lacks a package: {error}", remedy=_INSTALL) from error
    except (ImportError, OSError, AttributeError) as error:
        raise graphics_error("Meta-World", error) from error
    return metaworld


def make_env(name: str) -> SawyerXYZEnv:
    """Return Meta-World's environment of a task, without a renderer and without a limit on its steps."""
    env = import_metaworld().env_dict.ALL_V3_ENVIRONMENTS[name]()
    env.max_path_length = 2**31
    return env


@lru_cache(maxsize=64)
def draw_goals(name: str, seed: int) -> tuple[Any, ...]:
    """Return Meta-World's own tasks, fifty goals and places of things, as `metaworld.MT1(name, seed)` draws them."""
    return tuple(import_metaworld().MT1(name, seed=seed).train_tasks)


def read_scene(model: mujoco.MjModel, rules: MetaworldTask) -> Scene:
    """Return names and roles of a task's model.

    The robot is the arm and the mocap body that drags it. A rigid piece is one body. Pieces that fly free, and the
    task's targets, are objects; other moving pieces are links of furniture, tracked unless the goal moves their
    fixture.
    """
    names = _body_names(model)
    robot = {body for root in _ROBOT_ROOTS for body in subtree_bodies(model, int(model.body(root).id))}
    moving = [body for body in moving_links(model, 0) if body not in robot]
    kinds = {body: int(model.jnt_type[model.body_jntadr[body]]) for body in moving}
    moved = subtree_bodies(model, int(model.body(rules.moves).id)) if rules.moves else ()
    objects = {names[body]: body for body in moving if names[body] in rules.targets or kinds[body] == _FREE}
    links = {names[body]: body for body in moving if names[body] not in objects and body not in moved}
    roles = assign_roles(model, names, objects=objects, links=links, targets=rules.targets, robot=robot)
    return Scene(
        body_name=names,
        roles=roles,
        objects=objects,
        links=links,
        fingers=(_finger_geoms(model, _FINGERS[0]), _finger_geoms(model, _FINGERS[1])),
        eef_site=int(model.site("endEffector").id),
        arm_dofs=(),
        fixtures=tuple(_fixtures(model, names, roles)),
    )


def _body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Return the recorded name of each MuJoCo body: its own if it moves, stands on the world or is the robot's, else
    its parent's. An unnamed body that moves has the name that `moving_part_names` gives for its parent, if any.
    """
    names = ["world"]
    robot = subtree_bodies(model, int(model.body("base").id))
    for body in range(1, model.nbody):
        parent, own = int(model.body_parentid[body]), str(model.body(body).name)
        stands_alone = parent == 0 or body in robot or model.body_jntnum[body] > 0
        fallback = moving_part_names().get(names[parent], names[parent]) if model.body_jntnum[body] else names[parent]
        names.append((own if stands_alone else "") or fallback)
    return tuple(names)


def _finger_geoms(model: mujoco.MjModel, bodies: tuple[str, ...]) -> tuple[int, ...]:
    inside = np.isin(model.geom_bodyid, [int(model.body(name).id) for name in bodies])
    return tuple(int(geom) for geom in np.flatnonzero(inside & (model.geom_contype > 0)))


def _fixtures(model: mujoco.MjModel, names: tuple[str, ...], roles: dict[str, str]) -> list[frozenset[str]]:
    roots = [body for body in range(1, model.nbody) if int(model.body_parentid[body]) == 0]
    parts = [{names[body] for body in subtree_bodies(model, root)} for root in roots]
    fixed = [frozenset(name for name in group if roles.get(name) == "furniture") for group in parts]
    return [group for group in fixed if len(group) > 1]
