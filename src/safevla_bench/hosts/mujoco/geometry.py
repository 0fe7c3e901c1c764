"""The geometry of a MuJoCo model: visible geoms and sites as values, where bodies touch, and cameras that show them.

Textures become colours of corners (of a mesh with texture coordinates), or one mean colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.hosts.mujoco.renderer import Appearance
from safevla_bench.interface.stage import (
    CLOSE_UP,
    Camera,
    SceneGeometry,
    Shape,
    ShapeKind,
    Touch,
    TriangleMesh,
    Viewpoint,
)
from safevla_recorder.episode import Floats
from safevla_recorder.mujoco.scene import Scene

if TYPE_CHECKING:
    import mujoco

WELL_SHOWN = 0.015
"""Share of a picture that makes a body easy to find in the default view."""
_ENOUGH = 0.06
"""Share of a close-up beyond which a body is not shown any better: a table shall not outweigh a finger."""
_NEARLY_BEST = 0.85
_TURNS_DEG = (0, 30, -30, 60, -60, 90, -90, 135, -135, 180)
_TILTS_DEG = (-30, -50, -12, -70)
_RADII = 5.0
_DISTANCE_M = (0.4, 1.4)
_UNSET_RGBA = (0.5, 0.5, 0.5, 1.0)
"""A geom of this colour has its material's (MuJoCo 3.2.3, engine_vis_visualize.c, setMaterial)."""
_ENDLESS_M = 10.0
_VISIBLE_SITES = 3


def extract_geometry(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    scene: Scene,
    camera: str,
    appearance: Appearance,
    stand_ins: Mapping[str, tuple[int, ...]],
) -> SceneGeometry:
    """Return the visible shapes of a model; the parts are its bodies, and the camera is where `data` has it.

    `stand_ins` are the parts shown for a body without a shape of its own. Raises `KeyError` for a `camera` that the
    model lacks.
    """
    meshes: dict[tuple[int, int], TriangleMesh] = {}
    shapes = tuple(_visible_shapes(model, appearance, meshes))
    return SceneGeometry(scene.body_name, stand_ins, shapes, tuple(meshes.values()), _viewpoint(model, data, camera))


def _viewpoint(model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> Viewpoint:
    import mujoco

    number, quat = model.camera(camera).id, np.empty(4)
    mujoco.mju_mat2Quat(quat, data.cam_xmat[number])
    return Viewpoint(camera, _three(data.cam_xpos[number]), _four(quat), float(model.cam_fovy[number]))


def _visible_shapes(
    model: mujoco.MjModel, appearance: Appearance, meshes: dict[tuple[int, int], TriangleMesh]
) -> Iterator[Shape]:
    """Yield the shapes of visible geoms, then sites; a mesh is added to `meshes`, by mesh and texture, when first
    met.
    """
    geoms = np.isin(model.geom_group, list(appearance.groups))
    sites = appearance.sites & (model.site_group < _VISIBLE_SITES)
    for name, shown in (("geom", geoms), ("site", sites)):
        kinds, bodies, places, turns, sizes, materials, colors = (
            getattr(model, f"{name}_{part}") for part in ("type", "bodyid", "pos", "quat", "size", "matid", "rgba")
        )
        for number in np.flatnonzero(shown):
            kind = _kind_of(kinds[number])
            rgba, texture = _surface(model, int(materials[number]), colors[number])
            if kind is None or rgba[3] == 0:
                continue
            mesh = None
            if kind == "mesh":
                key = (int(model.geom_dataid[number]), texture)
                if key not in meshes:
                    meshes[key] = _mesh(model, *key)
                mesh = list(meshes).index(key)
            has_colors = mesh is not None and meshes[key].colors is not None
            tint = np.ones(3) if has_colors else _mean_color(model, texture)
            where = (int(bodies[number]), _three(places[number]), _four(turns[number]))
            yield _shape(kind, where, sizes[number], rgba * [*tint, 1.0], mesh)


def _kind_of(number: int) -> ShapeKind | None:
    """Return the kind of a shape; None for a field of heights and the like, which are left out."""
    import mujoco

    kinds: dict[int, ShapeKind] = {
        mujoco.mjtGeom.mjGEOM_PLANE: "plane",
        mujoco.mjtGeom.mjGEOM_BOX: "box",
        mujoco.mjtGeom.mjGEOM_SPHERE: "sphere",
        mujoco.mjtGeom.mjGEOM_ELLIPSOID: "ellipsoid",
        mujoco.mjtGeom.mjGEOM_CAPSULE: "capsule",
        mujoco.mjtGeom.mjGEOM_CYLINDER: "cylinder",
        mujoco.mjtGeom.mjGEOM_MESH: "mesh",
    }
    return kinds.get(int(number))


def _shape(
    kind: ShapeKind,
    where: tuple[int, tuple[float, float, float], tuple[float, float, float, float]],
    size: Floats,
    rgba: Floats,
    mesh: int | None,
) -> Shape:
    sizes = np.where((size == 0) & (kind == "plane"), _ENDLESS_M, size)
    part, pos_m, quat_wxyz = where
    return Shape(kind, part, _three(sizes), pos_m, quat_wxyz, _four(np.clip(rgba, 0.0, 1.0)), mesh)


def _surface(model: mujoco.MjModel, material: int, rgba: NDArray[np.float32]) -> tuple[Floats, int]:
    import mujoco

    own = rgba.astype(np.float64)
    if material < 0:
        return own, -1
    texture = int(np.atleast_1d(model.mat_texid[material])[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
    return (model.mat_rgba[material].astype(np.float64) if tuple(own) == _UNSET_RGBA else own), texture


def _texture_image(model: mujoco.MjModel, texture: int) -> NDArray[np.uint8]:
    height, width, channels = (int(n[texture]) for n in (model.tex_height, model.tex_width, model.tex_nchannel))
    start = int(model.tex_adr[texture])
    return np.asarray(model.tex_data[start : start + height * width * channels]).reshape(height, width, channels)


def _mean_color(model: mujoco.MjModel, texture: int) -> Floats:
    if texture < 0:
        return np.ones(3)
    mean: Floats = _texture_image(model, texture)[..., :3].mean(axis=(0, 1)) / 255
    return mean


def _mesh(model: mujoco.MjModel, mesh: int, texture: int) -> TriangleMesh:
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    face, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    corners = model.mesh_vert[first : first + count].astype(np.float64)
    triangles = model.mesh_face[face : face + faces].astype(np.int64)
    if texture < 0 or model.mesh_texcoordadr[mesh] < 0:
        return TriangleMesh(corners, triangles)
    coordinates = int(model.mesh_texcoordadr[mesh]) + model.mesh_facetexcoord[face : face + faces]
    return TriangleMesh(corners, triangles, _corner_colors(model, texture, triangles, coordinates, count))


def _corner_colors(
    model: mujoco.MjModel, texture: int, triangles: NDArray[np.int64], coordinates: NDArray[np.int64], count: int
) -> NDArray[np.uint8]:
    """Return the colour of the texture at each of a mesh's `count` corners, [count, 3]; the mean where triangles
    differ there.
    """
    image = _texture_image(model, texture)
    height, width = image.shape[:2]
    u, v = np.moveaxis(model.mesh_texcoord[coordinates.ravel()].astype(np.float64) % 1.0, 1, 0)
    sampled = image[np.minimum((v * height).astype(int), height - 1), np.minimum((u * width).astype(int), width - 1)]
    uses = np.bincount(triangles.ravel(), minlength=count)
    sums = [np.bincount(triangles.ravel(), sampled[:, channel], count) for channel in range(3)]
    return np.rint(np.stack(sums, axis=1) / np.maximum(uses, 1)[:, None]).astype(np.uint8)


def find_touches(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene) -> tuple[Touch, ...]:
    """Return one touch for each pair of recorded bodies that touch in `data`: the mean point [3], m, in the world
    frame, and the direction [3], from the lower name's body to the other. Sorted by names.
    """
    points: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
    for contact in data.contact:
        if contact.dist > 0 or contact.geom1 < 0 or contact.geom2 < 0:
            continue
        a, b = (scene.body_name[model.geom_bodyid[geom]] for geom in (contact.geom1, contact.geom2))
        sign = 1.0 if a <= b else -1.0  # a contact's first axis points from geom1 to geom2
        points.setdefault((min(a, b), max(a, b)), []).append((contact.pos.copy(), sign * contact.frame[:3]))
    return tuple(_touch(*pair, contacts) for pair, contacts in sorted(points.items()))


def _touch(a: str, b: str, contacts: list[tuple[Floats, Floats]]) -> Touch:
    normal = np.sum([direction for _, direction in contacts], axis=0)
    length = float(np.linalg.norm(normal))
    # Forces of a grasp from both sides cancel; one of them is shown.
    direction = normal / length if length > 0.1 else contacts[0][1]
    return Touch(a, b, _three(np.mean([point for point, _ in contacts], axis=0)), _three(direction))


def _three(values: NDArray[np.floating]) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in values)
    return x, y, z


def _four(values: NDArray[np.floating]) -> tuple[float, float, float, float]:
    w, x, y, z = (float(value) for value in values)
    return w, x, y, z


# The choice of a camera


def focus(model: mujoco.MjModel, data: mujoco.MjData, groups: Sequence[NDArray[np.intp]]) -> tuple[Floats, float]:
    """Return centre [3] and radius of the smallest body, in m; `groups` holds the geoms of each body."""
    return min((_bounding_ball(model, data, geoms) for geoms in groups), key=lambda ball: ball[1])


def _bounding_ball(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.intp]) -> tuple[Floats, float]:
    radii = np.where(model.geom_rbound[geoms] > 0, model.geom_rbound[geoms], np.inf)
    places = data.geom_xpos[geoms]
    center = (places.min(axis=0) + places.max(axis=0)) / 2
    return center, float((np.linalg.norm(places - center, axis=1) + radii).max())


def close_ups(lookat_m: Floats, radius_m: float, azimuth_deg: float) -> Iterator[Camera]:
    """Yield free cameras around a point, the most natural first: as the default camera looks, from a little above."""
    x, y, z = (float(part) for part in lookat_m)
    distance = float(np.clip(_RADII * radius_m, *_DISTANCE_M))
    for tilt in _TILTS_DEG:
        for turn in _TURNS_DEG:
            yield Camera(CLOSE_UP, (x, y, z), distance, azimuth_deg + turn, float(tilt))


def azimuth_deg(model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> float:
    """Return the direction in which one of the model's cameras looks, seen from above, in degrees from x towards y."""
    forward = -data.cam_xmat[model.camera(camera).id].reshape(3, 3)[:, 2]
    return float(np.degrees(np.arctan2(forward[1], forward[0])))


def shares(seen: NDArray[np.uint8], bodies: int) -> Floats:
    """Return the share of the picture that shows each body, [B]; `seen` as in `Picture`."""
    counted: Floats = np.bincount(seen.ravel(), minlength=bodies + 1)[1:] / seen.size
    return counted


def choose_camera(cameras: Sequence[Camera], shown: Sequence[Floats]) -> Camera:
    """Return the first camera that shows the least visible body nearly as well as the best camera does; `shown` has for
    each camera the share of the picture that each body takes, [B].
    """
    least = np.minimum([seen.min() for seen in shown], _ENOUGH)
    return cameras[int(np.argmax(least >= _NEARLY_BEST * least.max()))]
