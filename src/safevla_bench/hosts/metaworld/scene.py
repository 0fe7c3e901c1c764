"""Names, roles and tracked bodies of a Meta-World model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.hosts.metaworld.tasks import MetaworldTask, moving_part_names
from safevla_recorder.mujoco.scene import Scene, moving_links, roles_in_use, subtree_bodies

if TYPE_CHECKING:
    import mujoco

_FREE = 0  # MuJoCo's mjtJoint
_ROBOT_ROOTS = ("base", "mocap")
_FINGERS = (("rightclaw", "rightpad"), ("leftclaw", "leftpad"))


def read_scene(model: mujoco.MjModel, rules: MetaworldTask) -> Scene:
    """Return names and roles of a task's model.

    The robot is the arm and the mocap body that drags it; it has no driven joints, so that none are listed. A rigid
    piece is one body, whatever it is made of. Pieces that fly free, and the task's targets, are objects; other moving
    pieces are links of furniture, tracked unless the goal moves their fixture. A fixture's parts touch by design.
    """
    names = _body_names(model)
    robot = {body for root in _ROBOT_ROOTS for body in subtree_bodies(model, int(model.body(root).id))}
    moving = [body for body in moving_links(model, 0) if body not in robot]
    moved = subtree_bodies(model, int(model.body(rules.moves).id)) if rules.moves else ()
    objects = {names[body]: body for body in moving if names[body] in rules.targets or _is_free(model, body)}
    links = {names[body]: body for body in moving if names[body] not in objects and body not in moved}
    roles = {
        **dict.fromkeys(names, "furniture"),
        **dict.fromkeys(objects, "bystander"),
        **dict.fromkeys(rules.targets, "target"),
        **{names[body]: "robot" for body in robot},
    }
    return Scene(
        body_name=names,
        roles=roles_in_use(model, names, roles, frozenset({*objects, *links})),
        objects=objects,
        links=links,
        fingers=(_finger_geoms(model, _FINGERS[0]), _finger_geoms(model, _FINGERS[1])),
        eef_site=int(model.site("endEffector").id),
        arm_dofs=(),
        fixtures=tuple(_fixtures(model, names, roles)),
    )


def _body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Return the recorded name of each MuJoCo body, by id.

    A named body that moves by itself, stands on the world, or is the robot's has its own name, any other its parent's.
    """
    names = ["world"]
    robot = subtree_bodies(model, int(model.body("base").id))
    for body in range(1, model.nbody):
        parent, own = int(model.body_parentid[body]), str(model.body(body).name)
        stands_alone = parent == 0 or body in robot or model.body_jntnum[body] > 0
        fallback = moving_part_names().get(names[parent], names[parent]) if model.body_jntnum[body] else names[parent]
        names.append((own if stands_alone else "") or fallback)
    return tuple(names)


def _is_free(model: mujoco.MjModel, body: int) -> bool:
    """Return whether a body's first joint is free; for bodies that have a joint only."""
    return int(model.jnt_type[model.body_jntadr[body]]) == _FREE


def _finger_geoms(model: mujoco.MjModel, bodies: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of the colliding geoms of some bodies."""
    inside = np.isin(model.geom_bodyid, [int(model.body(name).id) for name in bodies])
    return tuple(int(geom) for geom in np.flatnonzero(inside & (model.geom_contype > 0)))


def _fixtures(model: mujoco.MjModel, names: tuple[str, ...], roles: dict[str, str]) -> list[frozenset[str]]:
    """Return the recorded bodies of each piece of furniture that is made of several."""
    roots = [body for body in range(1, model.nbody) if int(model.body_parentid[body]) == 0]
    parts = [{names[body] for body in subtree_bodies(model, root)} for root in roots]
    fixed = [frozenset(name for name in group if roles[name] == "furniture") for group in parts]
    return [group for group in fixed if len(group) > 1]
