"""Ground truth of MuJoCo scenes, with body sizes from collision geometry, for policies that want privileged state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.interface.policy import Boxes, Privileged
from safevla_recorder.episode import Floats
from safevla_recorder.mujoco.recorder import Scene, subtree_bodies

if TYPE_CHECKING:
    import mujoco

# Values of MuJoCo's mjtGeom. Planes are left out, because they have no size. No host has height fields.
_SPHERE, _CAPSULE, _ELLIPSOID, _CYLINDER, _BOX, _MESH = 2, 3, 4, 5, 6, 7


class ScenePrivileged:
    """Ground truth of a scene at each step, by recorded name. Covers all bodies with bounded collision geometry, except
    the robot's. Sizes are measured once, in the pose at construction. Bodies that share a name get the first's pose.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        scene: Scene,
        goal: tuple[tuple[str, ...], ...],
        sites: Mapping[str, Floats],
    ) -> None:
        """Measure sizes in the pose of `data`. `sites` maps names of goal sites to array views [3] of positions."""
        # `scene` has the recorded name of each MuJoCo body, and roles by name.
        # `goal` has predicates, such as ("on", "cube", "plate").
        self._model, self._data, self._goal, self._sites = model, data, goal, sites
        self._movable = frozenset(scene.objects)
        bodies_of_name: dict[str, tuple[int, ...]] = {}
        for body, name in enumerate(scene.body_name):
            if scene.roles.get(name) != "robot":
                bodies_of_name[name] = (*bodies_of_name.get(name, ()), body)
        # One box around each named body, and one box around each of its collision geoms; None without such geoms.
        boxes = {name: bounding_box(model, data, bodies[0], bodies) for name, bodies in bodies_of_name.items()}
        pieces = {name: piece_boxes(model, data, bodies[0], bodies) for name, bodies in bodies_of_name.items()}
        self._boxes = {name: box for name, box in boxes.items() if box}
        self._pieces = {name: geom_boxes for name, geom_boxes in pieces.items() if geom_boxes}
        # Sizes and pieces are in the frame of the first body with the name.
        self._root_body = {name: bodies_of_name[name][0] for name in self._boxes}
        self._hand: tuple[int, ...] = ()  # ids of the bodies of hand and fingers
        if scene.eef_site is not None:  # robosuite's end effector is a sibling of the fingers, so use the parent
            self._hand = subtree_bodies(model, model.body_parentid[model.site_bodyid[scene.eef_site]])

    def read_now(self) -> Privileged:
        """Return the scene's current ground truth, as read-only copies."""
        # `_root_body` maps names of bodies to MuJoCo ids. `_boxes` maps names to half extents and center, [3] each.
        # `_pieces` has a box for each geom. `_boxes` and `_pieces` were measured once, in the frames of their bodies.
        # The boxes of the hand are measured now. `_hand` has the ids of hand and finger bodies.
        # `_goal` has the goal's predicates. `_movable` has the names of the movable bodies.
        # `_sites` has the positions of goal sites, [3] each, as views of MuJoCo's data.
        data = self._data
        return Privileged(
            body_pos_m={name: read_only(data.xpos[body]) for name, body in self._root_body.items()},
            body_quat_wxyz={name: read_only(data.xquat[body]) for name, body in self._root_body.items()},
            half_extents_m={name: half_extents for name, (half_extents, _) in self._boxes.items()},
            center_m={name: center for name, (_, center) in self._boxes.items()},
            sites_m={name: read_only(position) for name, position in self._sites.items()},
            goal=self._goal,
            movable=self._movable,
            pieces=self._pieces,
            hand=piece_boxes(self._model, data, 0, self._hand),  # body 0 is the world
        )


def _collision_geoms(model: mujoco.MjModel, bodies: tuple[int, ...]) -> NDArray[np.intp]:
    # Returns the ids of the bodies' geoms that can collide and have a finite size. Planes are infinite.
    can_collide = (model.geom_contype | model.geom_conaffinity) != 0
    is_bounded = np.isin(model.geom_type, (_SPHERE, _CAPSULE, _ELLIPSOID, _CYLINDER, _BOX, _MESH))
    return np.flatnonzero(np.isin(model.geom_bodyid, bodies) & can_collide & is_bounded)


def _mesh_vertices(model: mujoco.MjModel, geom: int) -> NDArray[np.float32]:
    # Returns the vertices of a geom's mesh in the geom's frame, [V, 3].
    mesh = model.geom_dataid[geom]
    first = model.mesh_vertadr[mesh]
    vertices: NDArray[np.float32] = model.mesh_vert[first : first + model.mesh_vertnum[mesh]]
    return vertices


def bounding_box(
    model: mujoco.MjModel, data: mujoco.MjData, root: int, bodies: tuple[int, ...]
) -> tuple[Floats, Floats] | None:
    """Return half extents [3] and center [3] in m of a box around the collision geometry of `bodies` in its current
    pose. The box is in the frame of the body `root`. Return None if there is no bounded collision geometry.
    """
    geoms = _collision_geoms(model, bodies)
    if not len(geoms):
        return None
    # `lows` and `highs` have the two opposite corners [3] of a box around each geom.
    rotation = data.xmat[root].reshape(3, 3)
    lows, highs = zip(*(_geom_span(model, data, int(geom), data.xpos[root], rotation) for geom in geoms), strict=True)
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    return read_only((high - low) / 2), read_only((high + low) / 2)


def piece_boxes(model: mujoco.MjModel, data: mujoco.MjData, root: int, bodies: tuple[int, ...]) -> Boxes | None:
    """Return a box around each collision geom of `bodies` in the frame of the body `root`; None without such geoms."""
    geoms = _collision_geoms(model, bodies)
    if not len(geoms):
        return None
    # Each box has the axes of its geom.
    world_to_root = Rotation.from_matrix(data.xmat[root].reshape(3, 3)).inv()
    geom_rotations = data.geom_xmat[geoms].reshape(-1, 3, 3)  # from each geom's frame to the world
    centers_in_geom, half_extents = map(np.array, zip(*(_geom_box(model, int(geom)) for geom in geoms), strict=True))
    # World coordinates of the boxes' centers. A mesh's box need not be centered at the geom's origin.
    centers = data.geom_xpos[geoms] + np.einsum("gij,gj->gi", geom_rotations, centers_in_geom)
    quats_xyzw = (world_to_root * Rotation.from_matrix(geom_rotations)).as_quat()
    return Boxes(
        center_m=read_only(world_to_root.apply(centers - data.xpos[root])),
        half_extents_m=read_only(half_extents),
        quat_wxyz=read_only(np.roll(quats_xyzw, 1, axis=1)),  # moves w from the end to the start
    )


def read_only(array: NDArray[np.float64]) -> Floats:
    """Return a copy that cannot be written to."""
    read_only_copy = np.array(array, dtype=np.float64)
    read_only_copy.flags.writeable = False
    return read_only_copy


def _geom_span(
    model: mujoco.MjModel, data: mujoco.MjData, geom: int, origin: Floats, rotation: Floats
) -> tuple[Floats, Floats]:
    # Returns one geom's minimum and maximum coordinates [m], [3] each, in a frame.
    # `origin` [3] is the frame's origin; the columns of `rotation` [3, 3] are its axes (both in world coordinates).
    axes = rotation.T @ data.geom_xmat[geom].reshape(3, 3)  # columns: the geom's axes in that frame
    center = rotation.T @ (data.geom_xpos[geom] - origin)
    if model.geom_type[geom] == _MESH:
        points = _mesh_vertices(model, geom) @ axes.T
        return center + points.min(axis=0), center + points.max(axis=0)
    reach = _half_extents(int(model.geom_type[geom]), model.geom_size[geom], axes)
    return center - reach, center + reach


def _half_extents(kind: int, size: Floats, axes: Floats) -> Floats:
    # Returns half the extent [m] of a primitive along each axis of a frame, [3].
    # The columns of `axes` [3, 3] are the geom's axes in that frame. `kind` and `size` [3] are MuJoCo's.
    if kind == _SPHERE:
        return np.full(3, size[0])
    if kind == _BOX:
        return np.asarray(np.abs(axes) @ size)
    if kind == _ELLIPSOID:
        return np.asarray(np.sqrt((axes**2) @ size**2))
    # A capsule or cylinder lies along the geom's z axis. `cosine` [3] projects the length to the frame's axes.
    cosine, radius, half_length = np.abs(axes[:, 2]), size[0], size[1]
    if kind == _CAPSULE:
        return np.asarray(cosine * half_length + radius)
    sine = np.sqrt(np.clip(1 - cosine**2, 0, None))  # projects the radius of a cylinder's end
    return np.asarray(cosine * half_length + radius * sine)


def _geom_box(model: mujoco.MjModel, geom: int) -> tuple[Floats, Floats]:
    # Returns center [3] and half extents [3], in m, of a box around the geom, in the geom's frame.
    # A primitive shape is centered at the frame's origin; a mesh need not be.
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == _MESH:
        points = _mesh_vertices(model, geom)
        return (points.min(axis=0) + points.max(axis=0)) / 2, (points.max(axis=0) - points.min(axis=0)) / 2
    return np.zeros(3), _half_extents(kind, size, np.eye(3))
