"""The scene of a RoboCasa model in robosuite 1.5: names, roles and tracked bodies, the task's goal, the episode's meta.

A goal (`goals.json`) is a verb, then names of the episode's objects or attributes of RoboCasa's task that hold a
fixture. What is put `in`, `on` or `under` something is the target. With every other verb the goal moves the fixture
itself, or (`at`) the robot.
"""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping, Tuple, cast

import numpy as np

from safevla_recorder.mujoco.scene import Scene, assign_roles, geom_ids, moving_links, name_bodies, subtree_bodies

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen

    import mujoco

Goal = Tuple[str, ...]
AT = "at"
_PUTS = ("in", "on", "under")
_OBJECTS_FOLDER = "/objects/"


@lru_cache(maxsize=None)
def known_goals() -> dict[str, Goal]:
    """Return the goal of each task whose goal is known, by RoboCasa's name of the task. Cached."""
    content = cast(bytes, pkgutil.get_data(__name__, "goals.json"))
    return {name: tuple(words) for name, words in json.loads(content.decode()).items()}


def goal_target(goal: Goal) -> str | None:
    """Return the object that the goal puts somewhere; None if there is none."""
    return goal[1] if goal[0] in _PUTS else None


def moved_fixture(goal: Goal) -> str | None:
    """Return the attribute of RoboCasa's task with the fixture that the goal moves; None if there is none."""
    return goal[1] if goal[0] not in (*_PUTS, AT) else None


def episode_meta(kitchen: Kitchen) -> dict[str, Any]:
    """Return RoboCasa's own description of the episode, as plain values: `set_ep_meta` rebuilds the kitchen from it."""
    return {str(key): to_plain(value) for key, value in kitchen.get_ep_meta().items()}


def to_plain(value: object) -> Any:
    """Return a value in the types of JSON; a text is cut to what follows its last `/objects/`, as RoboCasa takes paths
    on any machine.
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_plain(value.tolist())
    if isinstance(value, str):
        return value.rpartition(_OBJECTS_FOLDER)[2]
    return value if value is None or isinstance(value, (bool, int, float)) else getattr(value, "name", str(value))


LID = "lid"
"""The blender's lid: a fixture in RoboCasa, but held and put in place like an object, and so recorded as one."""
_GRIP_SITE = "gripper0_right_grip_site"
_ROBOT = "robot0_base"


def read_scene(kitchen: Kitchen, target: str | None, moved_fixture: str | None) -> Scene:
    """Return names and roles of the kitchen's present model.

    Objects go by RoboCasa's names with all their bodies, whatever else by MuJoCo's body names, as furniture. Links of
    articulated fixtures are tracked unless the goal moves the fixture (docs/fidelity.md, bystanders).
    """
    model = kitchen.sim.model._model
    objects = _find_objects(kitchen, target)
    robot = subtree_bodies(model, int(model.body(_ROBOT).id))
    body_name = name_bodies(model, objects)
    moved = _moved_bodies(kitchen, moved_fixture, model)
    fixtures = (body for body in moving_links(model, 0) if body not in {*robot, *moved})
    links = {body_name[body]: body for body in fixtures if body_name[body] not in objects}
    targets = [target] if target else []
    fingers = kitchen.robots[0].gripper["right"].important_geoms
    return Scene(
        body_name=body_name,
        roles=assign_roles(model, body_name, objects=objects, links=links, targets=targets, robot=robot),
        objects=objects,
        links=links,
        fingers=(geom_ids(model, fingers["left_finger"]), geom_ids(model, fingers["right_finger"])),
        eef_site=int(model.site(_GRIP_SITE).id),
        arm_dofs=tuple(int(model.joint(f"robot0_joint{k}").dofadr[0]) for k in range(1, 8)),
        # RoboCasa sets joints of some fixtures anew after each control step: where two overlap at rest, their contact
        # goes for a few substeps and comes back with the force of the overlap.
        apart_substeps=round(kitchen.control_timestep / kitchen.model_timestep),
    )


def _find_objects(kitchen: Kitchen, target: str | None) -> dict[str, int]:
    objects = {str(name): int(body) for name, body in kitchen.obj_body_id.items()}
    if target == LID:
        lid = kitchen.blender.blender_lid
        objects[LID] = int(kitchen.sim.model._model.body(lid.root_body).id)
    return objects


def _moved_bodies(kitchen: Kitchen, moved_fixture: str | None, model: mujoco.MjModel) -> tuple[int, ...]:
    if moved_fixture is None:
        return ()
    fixture = getattr(kitchen, moved_fixture)
    return subtree_bodies(model, int(model.body(fixture.root_body).id))
