"""The parts of a MuJoCo model: its tree of bodies, and a box around each collision geom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from safevla_recorder.geometry import ALL_MOTION, TRACKED, WORLD, Floats, Part, rotate

if TYPE_CHECKING:
    import mujoco
    from safevla_recorder.mujoco.recorder import Scene, SceneArm

_PLANE, _SLIDE, _HINGE = 0, 2, 3  # constants of MuJoCo's mjtGeom and mjtJoint


def read_parts(model: mujoco.MjModel, scene: Scene) -> tuple[list[Part], list[int], list[int]]:
    """Return the parts of a model, the ids of their bodies, and the indices of the parts that are hand or fingers.

    A part is a body that has a collision geom, that moves, or that is the first body with its recorded name.
    """
    roots, places = set(scene.objects.values()), {}
    hand = [body for arm in scene.all_arms for body in _bodies_of_hand(model, arm)]
    parts: list[Part] = []
    bodies: list[int] = []
    named: set[str] = set()
    carriers: dict[int, int] = {}  # body -> index of the part that carries the body's children
    for body in range(model.nbody):
        name = scene.body_name[body] if scene.body_name[body] in scene.roles else ""
        carrier = carriers[int(model.body_parentid[body])] if body else WORLD
        motion = () if body in roots else _moving_components(model, body)
        boxes, planes = _read_shapes(model, body)
        carriers[body] = carrier
        if motion or len(boxes) or len(planes) or body in roots or (name and name not in named):
            places[body] = len(parts)
            if motion or body in roots:
                carriers[body] = len(parts)
            parts.append(Part(name, TRACKED if body in roots else carrier, motion, boxes, planes))
            bodies.append(body)
            named.add(name)
    return parts, bodies, [places[body] for body in hand if body in places]


def _bodies_of_hand(model: mujoco.MjModel, arm: SceneArm) -> list[int]:
    """Return the lowest body that carries both finger groups and the end effector's site, and all bodies below it."""
    tips = [int(model.geom_bodyid[geom]) for group in arm.fingers or () for geom in group]
    if arm.eef_site is not None:
        tips.append(int(model.site_bodyid[arm.eef_site]))
    chains = [_ancestors(model, body) for body in tips]
    if not chains:
        return []
    palm = next(body for body in chains[0] if all(body in chain for chain in chains))
    return [body for body in range(model.nbody) if palm in _ancestors(model, body)]


def _ancestors(model: mujoco.MjModel, body: int) -> list[int]:
    chain = [body]
    while chain[-1]:
        chain.append(int(model.body_parentid[chain[-1]]))
    return chain


def _moving_components(model: mujoco.MjModel, body: int) -> tuple[int, ...]:
    """Return which components of a body's motion relative to its parent (0-2 rotation, 3-5 translation) can move."""
    first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
    if not count:
        return ALL_MOTION if model.body_mocapid[body] >= 0 else ()
    kind, axis = int(model.jnt_type[first]), np.abs(model.jnt_axis[first])
    along = int(axis.argmax())
    is_plain = count == 1 and axis.sum() - axis[along] < 1e-9
    if is_plain and kind == _HINGE and not np.cross(model.jnt_axis[first], model.jnt_pos[first]).any():
        return (along,)
    return (3 + along,) if is_plain and kind == _SLIDE else ALL_MOTION


def _read_shapes(model: mujoco.MjModel, body: int) -> tuple[Floats, Floats]:
    geoms = np.arange(model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body])
    collide = (model.geom_contype[geoms] != 0) | (model.geom_conaffinity[geoms] != 0)
    geoms = geoms[collide & hasattr(model, "geom_aabb")]  # geom_aabb exists since MuJoCo 2.3
    poses = np.concatenate([model.geom_pos, model.geom_quat], axis=1)
    is_plane = model.geom_type[geoms] == _PLANE
    solid = geoms[~is_plane]
    box = poses[solid]
    if not len(solid):
        return np.empty((0, 10)), poses[geoms]
    center, half = model.geom_aabb[solid, :3], model.geom_aabb[solid, 3:]
    place = box[:, :3] + rotate(box[:, 3:], center)
    return np.concatenate([place, box[:, 3:], half], axis=1), poses[geoms[is_plane]]
