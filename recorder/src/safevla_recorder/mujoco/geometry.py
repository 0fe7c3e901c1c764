"""The parts of a MuJoCo model, from its tree of bodies, with a box around each collision geom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from safevla_recorder.geometry import ALL_MOTION, TRACKED, WORLD, Floats, Part, rotate

if TYPE_CHECKING:
    import mujoco
    from safevla_recorder.mujoco.recorder import Scene, SceneArm

_PLANE, _SLIDE, _HINGE = 0, 2, 3  # constants of MuJoCo's mjtGeom and mjtJoint


def read_parts(model: mujoco.MjModel, scene: Scene) -> tuple[list[Part], list[int], list[int]]:
    """Return the parts of a model, the ids of their bodies, and the indices of the parts of hand and fingers.

    A body is a part if it has a collision geom, if it moves, or if it is the first body with its recorded name.
    """
    # The ids of bodies are in the order of the parts.
    roots = set(scene.objects.values())  # objects can move freely, so their poses are tracked
    part_of_body: dict[int, int] = {}  # body -> index of its part
    parts: list[Part] = []
    used_names: set[str] = set()
    carriers: dict[int, int] = {}  # body -> index of the part to which the body's children are attached
    for body in range(model.nbody):
        name = scene.body_name[body] if scene.body_name[body] in scene.roles else ""
        carrier = carriers[int(model.body_parentid[body])] if body else WORLD
        motion = () if body in roots else _moving_components(model, body)
        boxes, planes = _read_shapes(model, body)
        carriers[body] = carrier
        if motion or len(boxes) or len(planes) or body in roots or (name and name not in used_names):
            part_of_body[body] = len(parts)
            if motion or body in roots:  # children of a fixed body are attached to what carries the fixed body
                carriers[body] = len(parts)
            parts.append(Part(name, TRACKED if body in roots else carrier, motion, boxes, planes))
            used_names.add(name)
    hand_bodies = [body for arm in scene.all_arms for body in _bodies_of_hand(model, arm)]
    return parts, list(part_of_body), [part_of_body[body] for body in hand_bodies if body in part_of_body]


def _bodies_of_hand(model: mujoco.MjModel, arm: SceneArm) -> list[int]:
    """Return the lowest common ancestor of fingers and end effector, and all bodies below; [] if the arm lacks both."""
    # `fingers` are the geom ids of two finger groups, and `eef_site` is the end effector's site; each may be None.
    carried_bodies = [int(model.geom_bodyid[geom]) for group in arm.fingers or () for geom in group]
    if arm.eef_site is not None:
        carried_bodies.append(int(model.site_bodyid[arm.eef_site]))
    chains = [_self_and_ancestors(model, body) for body in carried_bodies]
    if not chains:
        return []
    # Each chain goes from a body up to the world. The first body that is in all chains is the lowest common ancestor.
    palm = next(body for body in chains[0] if all(body in chain for chain in chains))
    return [body for body in range(model.nbody) if palm in _self_and_ancestors(model, body)]


def _self_and_ancestors(model: mujoco.MjModel, body: int) -> list[int]:
    # Return the ids of the body, its parent, and so on up to the world's body, 0.
    chain = [body]
    while chain[-1]:
        chain.append(int(model.body_parentid[chain[-1]]))
    return chain


def _moving_components(model: mujoco.MjModel, body: int) -> tuple[int, ...]:
    """Return the components of a body's motion relative to the parent that can vary: 0-2 rotate, 3-5 translate."""
    # Return () if the body is fixed to its parent.
    # If the motion is not along or about one coordinate axis of the body, return all six components.
    first_joint, joint_count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
    if not joint_count:
        # A mocap body has no joint, but a script may move it.
        return ALL_MOTION if model.body_mocapid[body] >= 0 else ()
    joint_type, axis = int(model.jnt_type[first_joint]), model.jnt_axis[first_joint]
    main_axis = int(np.abs(axis).argmax())
    is_coordinate_axis = np.abs(axis).sum() - np.abs(axis)[main_axis] < 1e-9
    if joint_count > 1 or not is_coordinate_axis:
        return ALL_MOTION
    if joint_type == _SLIDE:
        return (3 + main_axis,)
    # A hinge whose axis does not go through the body's origin also moves the origin.
    is_axis_through_origin = not np.cross(axis, model.jnt_pos[first_joint]).any()
    return (main_axis,) if joint_type == _HINGE and is_axis_through_origin else ALL_MOTION


def _read_shapes(model: mujoco.MjModel, body: int) -> tuple[Floats, Floats]:
    # Return the body's collision geoms in the body's frame, in the format of `Part`.
    # Boxes [K, 10] enclose all geoms other than planes: center in m, quaternion wxyz, half sizes in m.
    # A plane in the array [L, 7] is a point in m and a quaternion wxyz.
    geoms = np.arange(model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body])
    is_collision_geom = (model.geom_contype[geoms] != 0) | (model.geom_conaffinity[geoms] != 0)
    is_collision_geom |= np.isin(geoms, [model.pair_geom1, model.pair_geom2])  # pairs collide with any masks
    has_boxes = hasattr(model, "geom_aabb")  # MuJoCo before 2.3 lacks this field; then parts have no shapes
    geoms = geoms[is_collision_geom & has_boxes]
    poses = np.concatenate([model.geom_pos, model.geom_quat], axis=1)
    is_plane = model.geom_type[geoms] == _PLANE
    solid = geoms[~is_plane]
    solid_poses = poses[solid]
    if not len(solid):  # all collision geoms are planes
        return np.empty((0, 10)), poses[geoms]
    # `geom_aabb` contains the center and the half sizes of a box around each geom, in the geom's frame.
    center, half_size = model.geom_aabb[solid, :3], model.geom_aabb[solid, 3:]
    box_centers = solid_poses[:, :3] + rotate(solid_poses[:, 3:], center)
    return np.concatenate([box_centers, solid_poses[:, 3:], half_size], axis=1), poses[geoms[is_plane]]
