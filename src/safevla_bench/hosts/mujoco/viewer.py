"""Viewer of a recorded MuJoCo episode: pictures, shapes and contacts, computed from the record's `sim_state`.

A texture becomes vertex colors if the mesh has texture coordinates, otherwise one mean color.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.renderer import ROBOSUITE, Appearance, Renderer
from safevla_bench.interface import stage
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import DRAWN, chosen_start, earlier_resets, host_header, mark_flags, replay_fields
from safevla_recorder.episode import FIXTURES, Bools, Floats
from safevla_recorder.geometry import rotate
from safevla_recorder.mujoco.recorder import Scene, link_offsets, set_state, state_size, subtree_bodies

if TYPE_CHECKING:
    import mujoco

HAND_CAMERA = "robot0_eye_in_hand"
_SKETCH_SIZE = (120, 160)  # height and width of the pictures in which candidate cameras are compared
WELL_SHOWN = 0.015  # a body that covers this fraction of the default view is easy to find
_ENOUGH_SHARE = 0.06  # a close-up gains nothing by showing the smallest body larger than this fraction of the picture
_NEARLY_BEST_RATIO = 0.85  # the smallest body may be smaller than in the best view by this factor
_TURNS_DEG = (0, 30, -30, 60, -60, 90, -90, 135, -135, 180)
_TILTS_DEG = (-30, -50, -12, -70)
_DISTANCE_RADII = 5.0  # distance of a close-up, as a multiple of the shown bodies' radius
_DISTANCE_LIMITS_M = (0.4, 1.4)
_UNSET_RGBA = (0.5, 0.5, 0.5, 1.0)  # a geom of this default color gets its material's color (MuJoCo 3.2.3)
_PLANE_HALF_SIZE_M = 10.0  # half size of the drawn square for an infinite plane
_VISIBLE_SITE_GROUPS = 3  # MuJoCo shows sites of the groups 0 to 2 by default


class MujocoStage(stage.Stage):
    """The viewer of one recorded episode of a MuJoCo host. It owns the host's environment."""

    def __init__(
        self,
        model: mujoco.MjModel,
        scene: Scene,
        episode: Batch,
        camera: str,
        on_close: Callable[[], None],
        observe: Callable[[Floats, Floats], Observation] | None = None,
        appearance: Appearance = ROBOSUITE,
    ) -> None:
        """Read `episode`, a one-episode batch with `sim_state`, and make a simulation without a renderer.

        `on_close` frees the host's environment. `observe` maps qpos and qvel to an observation; None if the host cannot
        compute it. Raises `HostError` if the record's states are missing or belong to another model.
        """
        # `camera` is the default camera's name. `arm` gets the name of the body that each joint of the arms moves.
        import mujoco

        self._model, self._data, self._scene = model, mujoco.MjData(model), scene
        self._states, self._camera, self._on_close = read_states(episode, state_size(model)), camera, on_close
        self._observe, self._appearance = observe, appearance
        # The recorded positions of each tracked body, [records, 3] in m, to compare with the positions in pictures.
        tracked, positions = episode.body_pos_m.episode_poses(0)
        self._recorded_pos_m = {
            episode.body_label(int(body)): positions[:, column] for column, body in enumerate(tracked)
        }
        self._renderer: Renderer | None = None  # made when the first picture is needed
        camera_names = {str(model.camera(camera_id).name) for camera_id in range(model.ncam)}
        has_further_camera = camera != HAND_CAMERA and HAND_CAMERA in camera_names
        # The cameras that videos show in addition to the default camera.
        self.further_cameras = (HAND_CAMERA,) if has_further_camera else ()
        self.arm = tuple(scene.body_name[body] for body in model.dof_bodyid[list(scene.all_dofs)])

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> stage.Camera:
        """Return the default camera if it shows every body well, or if no body has a shape. Otherwise return a close-up
        with the bodies shown almost as large as possible. Raises `HostError` for unknown bodies, or if rendering fails.
        """
        default_camera = stage.Camera(self._camera)
        if not bodies:
            return default_camera
        self._set_record(record)
        self._open_renderer(size)  # with this size, `render` can use the same renderer
        if (self._measure_shares(default_camera, bodies) >= WELL_SHOWN).all():
            return default_camera
        balls = []  # (center, radius) of a sphere around each body
        # Invisible geoms also count. A body without geoms is replaced by attached bodies or by an ancestor.
        all_geoms = np.ones(self._model.ngeom, dtype=np.bool_)
        for name in bodies:
            geoms = np.flatnonzero(np.isin(self._model.geom_bodyid, self._shown_body_ids(name, all_geoms)))
            if len(geoms):
                balls.append(_bounding_ball(self._model, self._data, geoms))
        if not balls:
            return default_camera
        center_m, radius_m = min(balls, key=lambda ball: ball[1])  # aim at the smallest body
        # The candidates look at the center from several directions. The first one has the default camera's azimuth.
        cameras = list(close_ups(center_m, radius_m, azimuth_deg(self._model, self._data, self._camera)))
        return choose_camera(cameras, [self._measure_shares(camera, bodies) for camera in cameras])

    def render(
        self, record: int, camera: stage.Camera, size: tuple[int, int], bodies: Sequence[str] = ()
    ) -> stage.Picture:
        """Return one record's picture from one camera. Raises `HostError` for a body that the model lacks, or if
        rendering is impossible, and `KeyError` if the model has no camera of that name.
        """
        self._set_record(record)
        renderer = self._open_renderer(size)
        renderer.look(self._data, camera)
        seen = self._locate_bodies(renderer, bodies, size) if bodies else np.zeros(size, dtype=np.uint8)
        return stage.Picture(renderer.image(size), seen, self._current_positions())

    def observe(self, record: int) -> Observation | None:
        """Return the host's observation of a record, without images; None if the host cannot make one."""
        if self._observe is None:
            return None
        self._set_record(record)
        return self._observe(self._data.qpos.copy(), self._data.qvel.copy())

    def geometry(self) -> stage.SceneGeometry:
        """Return the model's visible shapes, and its default camera at record 0. `stand_ins` maps the name of each body
        without visible geoms to the ids of the bodies that are shown instead.
        """
        # If a body has no visible geom, the ids to show belong to bodies with other names.
        # `_scene.body_name` has the recorded name of each MuJoCo body.
        self._set_record(0)
        ids_by_name = {name: tuple(self._visible_body_ids(name)) for name in sorted(set(self._scene.body_name))}
        stand_ins = {name: ids for name, ids in ids_by_name.items() if self._scene.body_name[ids[0]] != name}
        geometry = extract_geometry(self._model, self._data, self._scene, self._camera, self._appearance)
        return replace(geometry, stand_ins=stand_ins)

    def pose(self, record: int) -> stage.ScenePose:
        """Return the poses of the model's bodies in one record, and the contacts between the bodies."""
        self._set_record(record)
        # MuJoCo's `xpos` and `xquat` are the poses of all bodies.
        touches = find_touches(self._model, self._data, self._scene)
        return stage.ScenePose(self._data.xpos.copy(), self._data.xquat.copy(), touches, self._current_positions())

    def close(self) -> None:
        # Frees the renderer, then the host's environment.
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None
        self._on_close()

    def _set_record(self, record: int) -> None:
        """Set the model to the instant of a record's poses. The recorder takes poses at the start of the last substep,
        but states at its end (see `mujoco.recorder`). So positions move back by one substep, which is exact up to
        rounding. Record 0 may have no earlier substep, so its positions stay if they then fit the record better.
        """
        self._set_state(record, -self._model.opt.timestep)
        if record == 0:
            moved_back_error_m = self._position_error_m(0)
            self._set_state(0, 0.0)
            if moved_back_error_m <= self._position_error_m(0):
                self._set_state(0, -self._model.opt.timestep)

    def _set_state(self, record: int, offset_s: float) -> None:
        # Sets a record's state, then moves all positions by `offset_s` times their velocities.
        # A negative offset gives earlier positions.
        import mujoco

        model, data = self._model, self._data
        set_state(model, data, self._states[record])
        mujoco.mj_integratePos(model, data.qpos, data.qvel, offset_s)
        mujoco.mj_forward(model, data)

    def _position_error_m(self, record: int) -> float:
        # Returns the sum of the distances [m] between current and recorded positions of the tracked bodies.
        # `_recorded_pos_m` maps the names of tracked bodies to positions in all records, [records, 3].
        current_pos_m = self._current_positions()
        errors_m = [
            np.linalg.norm(current_pos_m[name] - path_m[record])
            for name, path_m in self._recorded_pos_m.items()
            if name in current_pos_m
        ]
        return float(sum(errors_m))

    def _current_positions(self) -> Mapping[str, Floats]:
        # Returns positions as in records: the origin of an object's frame, and the center of mass of a fixture's link.
        # `objects` and `links` map names to ids of bodies. A position is [3] in m, in the world frame.
        data, links = self._data, self._scene.links
        objects = {name: data.xpos[body].copy() for name, body in self._scene.objects.items()}
        bodies = [*links.values()]
        centers = data.xipos[bodies] + rotate(data.xquat[bodies], link_offsets(self._model, data, self._scene))
        return objects | dict(zip(links, centers, strict=True))

    def _open_renderer(self, size: tuple[int, int]) -> Renderer:
        # Returns a renderer for pictures of at least `size` (height, width).
        # If the current renderer is too small, a larger one replaces it.
        height, width = self._renderer.size if self._renderer else _SKETCH_SIZE
        if self._renderer is None or height < size[0] or width < size[1]:
            if self._renderer is not None:
                self._renderer.close()
            new_size = (max(height, size[0]), max(width, size[1]))
            self._renderer = Renderer(self._model, new_size, self._appearance)
        return self._renderer

    def _measure_shares(self, camera: stage.Camera, bodies: Sequence[str]) -> Floats:
        # Returns the fraction of a small picture from `camera` that each of the `B` bodies covers, [B].
        renderer = self._open_renderer(_SKETCH_SIZE)
        renderer.look(self._data, camera)
        return shares(self._locate_bodies(renderer, bodies, _SKETCH_SIZE), len(bodies))

    def _locate_bodies(self, renderer: Renderer, bodies: Sequence[str], size: tuple[int, int]) -> NDArray[np.uint8]:
        # Returns an array [H, W] for the renderer's current view; `size` is (height, width).
        # A pixel is i + 1 if it shows `bodies[i]`, or 0 if it shows none of them.
        number_of_body = np.zeros(self._model.nbody + 1, dtype=np.uint8)  # the last entry (index -1) means no body
        for number, name in enumerate(bodies, start=1):
            number_of_body[self._visible_body_ids(name)] = number
        return number_of_body[renderer.bodies(size)]  # `renderer.bodies` gives the body id at each pixel, or -1

    def _body_ids(self, name: str) -> list[int]:
        # Returns the ids of all bodies of the model with this recorded name; raises `HostError` if there are none.
        # `_scene.body_name` has the recorded name of each MuJoCo body.
        bodies = [body for body, recorded_name in enumerate(self._scene.body_name) if recorded_name == name]
        if not bodies:
            problem = f"the model has no body {name!r}"
            raise HostError(problem, remedy="Render with the versions that run.json names.")
        return bodies

    def _visible_body_ids(self, name: str) -> list[int]:
        # Returns the ids of the bodies that pictures show for a recorded body. `groups` are visible geom groups.
        # A body without visible geoms is replaced by bodies attached to it, or by an ancestor.
        return self._shown_body_ids(name, np.isin(self._model.geom_group, list(self._appearance.groups)))

    def _shown_body_ids(self, name: str, is_counted: Bools) -> list[int]:
        """Return the ids of the bodies to show for a recorded body. If the body has no geoms in the mask `is_counted`
        [ngeom], return all attached bodies with counted geoms, or else the closest ancestor with counted geoms.
        """
        # An example is a finger's pad without visible geoms: pictures show the finger instead.
        bodies, world = self._body_ids(name), [0]
        bodies_with_geoms = {int(body) for body in self._model.geom_bodyid[is_counted]}
        if bodies != world and bodies_with_geoms.isdisjoint(bodies):
            attached = [body for body in subtree_bodies(self._model, bodies[0]) if body in bodies_with_geoms]
            bodies = attached or bodies
        while bodies != world and bodies_with_geoms.isdisjoint(bodies):
            bodies = [int(self._model.body_parentid[bodies[0]])]
        return bodies


def read_states(episode: Batch, width: int) -> Floats:
    """Return a one-episode batch's states, [n, width]; raise `HostError` for missing states or another width."""
    states = episode.sim_state.episode_rows(0)
    if not len(states):
        remedy = "Only records with `sim_state` can be shown; `safevla eval` writes such records."
        raise HostError("the record holds no simulator states", remedy=remedy)
    if states.shape[1] != width:
        problem = f"the record's states have {states.shape[1]} numbers, but the model's have {width}"
        raise HostError(problem, remedy="Render with the versions that run.json names.")
    return states


def episode_seed(episode: Batch) -> EpisodeSeed:
    """Return the seed that recreates the episode's scene, without settling steps, because states are set directly.
    Usually, the result has the recorded seed and index. If one of them is missing, the result starts from the record's
    first state, which requires a replay or recorded poses of fixtures. Raises `HostError` if the record determines no
    start, or if the recorded fixtures are not poses.
    """
    # The header has None for a missing seed or index.
    header = episode.headers[0]
    if header.env_seed is None or header.init_state_index is None:
        recorded_start = _read_recorded_start(episode)  # None if the record determines no start
        if recorded_start is not None:
            return EpisodeSeed(init_state_index=0, env_seed=header.env_seed or 0, wait_steps=0, recorded=recorded_start)
        lacking = [name for name in ("env_seed", "init_state_index") if getattr(header, name) is None]
        remedy = "The seed and the index determine poses that `sim_state` lacks, such as the poses of fixtures. "
        remedy += "In your own loop, call env.seed(N) before each reset, as `safevla eval` does."
        raise HostError(f"the record's header lacks {' and '.join(lacking)}", remedy=remedy)
    # `resets` is the number of earlier resets since the environment's only seeding (None = unknown).
    # `drawn` says whether the start was drawn at random. `placed` has coordinates of objects that a search chose.
    (resets,) = earlier_resets(episode)
    (drawn,) = mark_flags(episode, DRAWN)
    index, placed = chosen_start(episode)  # the index is None for a start that uses no initial state
    return EpisodeSeed(
        index or 0, header.env_seed, wait_steps=0, earlier_resets=resets, drawn=bool(drawn), placed=placed
    )


def _read_recorded_start(episode: Batch) -> RecordedEpisode | None:
    # Returns the record's first state as a start; None unless the record is a replay or contains poses of fixtures.
    # A state lacks the poses of fixtures, such as a cabinet, because fixtures do not move.
    (replay,) = replay_fields(episode)
    poses, states = recorded_fixtures(episode), episode.sim_state.episode_rows(0)
    if not len(states) or (not replay and FIXTURES not in host_header(episode.extra[0])):
        return None
    fixtures = tuple((name, tuple(pose.tolist())) for name, pose in poses.items())
    name, source = str(replay.get("episode")), str(replay.get("source"))  # "None" if the record is not a replay
    return RecordedEpisode(name, source, steps=len(states) - 1, state=tuple(states[0].tolist()), fixtures=fixtures)


def recorded_fixtures(episode: Batch) -> dict[str, Floats]:
    """Return the recorded poses of fixtures by root body: position [3] in m and quaternion [4] wxyz, in the world
    frame; {} if none are recorded. Raises `HostError` if the recorded values are not poses.
    """
    # In a replayed episode, the poses are in the header's field `replay`. Otherwise, they are in the host's header.
    (replay,), (extra,) = replay_fields(episode), episode.extra
    recorded = (replay or host_header(extra)).get(FIXTURES)
    if not recorded:
        return {}
    try:
        poses = msgspec.convert(recorded, dict[str, Annotated[list[float], msgspec.Meta(min_length=7, max_length=7)]])
    except msgspec.ValidationError:
        remedy = "Give seven numbers for each fixture: position and quaternion, w first."
        raise HostError("the record's `fixtures` are not poses", remedy=remedy) from None
    return {name: np.array(pose) for name, pose in poses.items()}


# Geometry of a model: visible geoms and sites, and contacts between bodies


def extract_geometry(
    model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, camera: str, appearance: Appearance
) -> stage.SceneGeometry:
    """Return a model's visible shapes, with the model's bodies as parts, and the viewpoint of the camera in `data`."""
    import mujoco

    # `camera` is a camera's name, and `appearance` says which geoms and sites are visible.
    # The second part of the result, `stand_ins`, is empty here; the caller fills it.
    meshes: dict[tuple[int, int], stage.TriangleMesh] = {}  # a key has the ids of a mesh and its texture
    shapes = tuple(_visible_shapes(model, appearance, meshes))
    camera_id, quat = model.camera(camera).id, np.empty(4)
    mujoco.mju_mat2Quat(quat, data.cam_xmat[camera_id])  # writes to `quat`
    pos_m, fovy_deg = _to_tuple(data.cam_xpos[camera_id]), float(model.cam_fovy[camera_id])
    view = stage.Viewpoint(camera, pos_m, _to_tuple(quat), fovy_deg)
    return stage.SceneGeometry(scene.body_name, {}, shapes, tuple(meshes.values()), view)


def _visible_shapes(
    model: mujoco.MjModel, appearance: Appearance, meshes: dict[tuple[int, int], stage.TriangleMesh]
) -> Iterator[stage.Shape]:
    """Yield the shapes of visible geoms, then of sites. Adds each pair of mesh and texture to `meshes` on first use."""
    import mujoco

    # Sites are marks without mass, such as goal regions. Height fields and other unsupported kinds are left out.
    kind_of_type: dict[int, stage.ShapeKind] = {
        int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")): kind for kind in get_args(stage.ShapeKind)
    }
    is_visible_geom = np.isin(model.geom_group, list(appearance.groups))
    is_visible_site = appearance.sites & (model.site_group < _VISIBLE_SITE_GROUPS)
    for element, is_visible in (("geom", is_visible_geom), ("site", is_visible_site)):
        types, bodies, positions, quats, sizes, materials, colors = (
            getattr(model, f"{element}_{field}") for field in ("type", "bodyid", "pos", "quat", "size", "matid", "rgba")
        )
        for index in np.flatnonzero(is_visible):
            kind = kind_of_type.get(int(types[index]))
            rgba, texture_id = _read_color_and_texture(model, int(materials[index]), colors[index])
            if kind is None or rgba[3] == 0:
                continue
            mesh_index = None  # the position of the mesh in `meshes`; None unless the shape is a mesh
            if kind == "mesh":
                mesh_key = (int(model.geom_dataid[index]), texture_id)
                if mesh_key not in meshes:
                    meshes[mesh_key] = _read_mesh(model, *mesh_key)
                mesh_index = list(meshes).index(mesh_key)  # a dict keeps the order of insertion
            # Without vertex colors, the texture's mean color tints the whole shape.
            if texture_id >= 0 and (mesh_index is None or meshes[mesh_key].colors is None):
                mean_rgb = _texture_image(model, texture_id)[..., :3].mean(axis=(0, 1)) / 255
                rgba = rgba * [*mean_rgb, 1.0]
            size, rgba = sizes[index], _to_tuple(np.clip(rgba, 0.0, 1.0))
            if kind == "plane":
                size = np.where(size == 0, _PLANE_HALF_SIZE_M, size)  # the size 0 means that the plane is infinite
            pos_m, quat_wxyz = _to_tuple(positions[index]), _to_tuple(quats[index])
            yield stage.Shape(kind, int(bodies[index]), _to_tuple(size), pos_m, quat_wxyz, rgba, mesh_index)


def _read_color_and_texture(model: mujoco.MjModel, material_id: int, rgba: NDArray[np.float32]) -> tuple[Floats, int]:
    # Returns the color of a geom or site, [4] from 0 to 1, and the id of its material's texture, -1 = none.
    # `rgba` is the element's own color, and `material_id` is -1 if it has no material.
    import mujoco

    own_rgba = rgba.astype(np.float64)
    if material_id < 0:
        return own_rgba, -1
    texture_id = int(np.atleast_1d(model.mat_texid[material_id])[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
    # The default color means that no color was set. Then the material's color applies.
    is_unset = tuple(own_rgba) == _UNSET_RGBA
    return model.mat_rgba[material_id].astype(np.float64) if is_unset else own_rgba, texture_id


def _texture_image(model: mujoco.MjModel, texture_id: int) -> NDArray[np.uint8]:
    # Returns a texture as an image [H, W, 3 or 4], uint8. MuJoCo keeps all textures in the array `tex_data`.
    height, width, channels = (
        int(array[texture_id]) for array in (model.tex_height, model.tex_width, model.tex_nchannel)
    )
    start = int(model.tex_adr[texture_id])
    image = np.asarray(model.tex_data[start : start + height * width * channels]).reshape(height, width, channels)
    return image if channels > 2 else np.repeat(image[..., :1], 3, axis=2)  # a gray texture has one channel


def _read_mesh(model: mujoco.MjModel, mesh_id: int, texture_id: int) -> stage.TriangleMesh:
    # Returns a mesh. If it has texture coordinates, the texture `texture_id` (-1 = none) gives its vertices colors.
    first_vertex, vertex_count = int(model.mesh_vertadr[mesh_id]), int(model.mesh_vertnum[mesh_id])
    first_face, face_count = int(model.mesh_faceadr[mesh_id]), int(model.mesh_facenum[mesh_id])
    vertices = model.mesh_vert[first_vertex : first_vertex + vertex_count].astype(np.float64)
    triangles = model.mesh_face[first_face : first_face + face_count].astype(np.int64)
    if texture_id < 0 or model.mesh_texcoordadr[mesh_id] < 0:
        return stage.TriangleMesh(vertices, triangles)
    # The index of the texture coordinates for each corner of each triangle, [F, 3] for `F` triangles.
    texcoord_ids = int(model.mesh_texcoordadr[mesh_id]) + model.mesh_facetexcoord[first_face : first_face + face_count]
    return stage.TriangleMesh(
        vertices, triangles, _mean_vertex_colors(model, texture_id, triangles, texcoord_ids, vertex_count)
    )


def _mean_vertex_colors(
    model: mujoco.MjModel,
    texture_id: int,
    triangles: NDArray[np.int64],
    texcoord_ids: NDArray[np.int64],
    vertex_count: int,
) -> NDArray[np.uint8]:
    # Samples the texture at each triangle's corners. Returns colors [V, 3]: the mean of the samples at each vertex.
    # `triangles` [F, 3] has the vertices of each triangle.
    # `texcoord_ids` [F, 3] has the index of the texture coordinates at each corner.
    image = _texture_image(model, texture_id)
    height, width = image.shape[:2]
    u, v = (model.mesh_texcoord[texcoord_ids.ravel()].astype(np.float64) % 1.0).T  # textures repeat outside [0, 1]
    rows, columns = np.minimum((v * height).astype(int), height - 1), np.minimum((u * width).astype(int), width - 1)
    sampled = image[rows, columns]
    # `uses` [V] counts the corners at each vertex. It is at least 1 in the division, so unused vertices become black.
    uses = np.bincount(triangles.ravel(), minlength=vertex_count)
    sums = [np.bincount(triangles.ravel(), sampled[:, channel], vertex_count) for channel in range(3)]
    return np.rint(np.stack(sums, axis=1) / np.maximum(uses, 1)[:, None]).astype(np.uint8)


def find_touches(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene) -> tuple[stage.Touch, ...]:
    """Return one contact for each pair of recorded bodies that touch in `data`, sorted by names. A contact has the mean
    point [3] in m and the mean direction [3] from the pair's first body to the second, both in the world frame.
    """
    contacts_of_pair: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}  # (point, direction) of each contact
    for contact in data.contact:
        # Without a constraint, there is no touch (see `ContactLog`). A geom of a flexible body has the index -1.
        if contact.efc_address < 0 or contact.geom1 < 0 or contact.geom2 < 0:
            continue
        first, second = (scene.body_name[model.geom_bodyid[geom]] for geom in (contact.geom1, contact.geom2))
        # Names in a pair are sorted. If sorting exchanges the names, the direction is reversed.
        sign = 1.0 if first <= second else -1.0  # a contact's first axis points from geom1 to geom2
        pair = (min(first, second), max(first, second))
        contacts_of_pair.setdefault(pair, []).append((contact.pos.copy(), sign * contact.frame[:3]))
    touches = []
    for pair, contacts in sorted(contacts_of_pair.items()):
        points_m, directions = map(np.array, zip(*contacts, strict=True))
        direction_sum = directions.sum(axis=0)
        length_of_sum = float(np.linalg.norm(direction_sum))
        # In a two-sided grasp, the directions cancel. Then the first contact's direction is used.
        direction = direction_sum / length_of_sum if length_of_sum > 0.1 else directions[0]
        touches.append(stage.Touch(*pair, _to_tuple(points_m.mean(axis=0)), _to_tuple(direction)))
    return tuple(touches)


def _to_tuple(values: NDArray[np.floating]) -> Any:
    # Returns the array [n] as a tuple of n Python floats.
    return tuple(values.tolist())


# The choice of a camera


def _bounding_ball(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.intp]) -> tuple[Floats, float]:
    # Returns center [3] in m (world frame) and radius [m] of a sphere around the geoms with the ids `geoms`.
    # MuJoCo's `geom_rbound` is a geom's bounding radius. It is 0 for a plane, whose radius is infinite here.
    radii = np.where(model.geom_rbound[geoms] > 0, model.geom_rbound[geoms], np.inf)
    centers = data.geom_xpos[geoms]
    middle = (centers.min(axis=0) + centers.max(axis=0)) / 2
    return middle, float((np.linalg.norm(centers - middle, axis=1) + radii).max())


def close_ups(lookat_m: Floats, radius_m: float, azimuth_deg: float) -> Iterator[stage.Camera]:
    """Yield free cameras around a point. The first one has the azimuth `azimuth_deg` and looks down by 30 degrees."""
    # The cameras look at `lookat_m` [3] (world frame) from different directions. A negative tilt looks down.
    # The distance is a multiple, within limits, of the radius `radius_m` of the shown bodies.
    x, y, z = (float(coordinate) for coordinate in lookat_m)
    distance_m = float(np.clip(_DISTANCE_RADII * radius_m, *_DISTANCE_LIMITS_M))
    for tilt_deg in _TILTS_DEG:
        for turn_deg in _TURNS_DEG:
            yield stage.Camera(stage.CLOSE_UP, (x, y, z), distance_m, azimuth_deg + turn_deg, float(tilt_deg))


def azimuth_deg(model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> float:
    """Return the azimuth of a camera's viewing direction, in degrees from x towards y."""
    # `camera` is a camera's name. Its pose in `data` must be current.
    forward = -data.cam_xmat[model.camera(camera).id].reshape(3, 3)[:, 2]  # a camera looks along its negative z axis
    return float(np.degrees(np.arctan2(forward[1], forward[0])))


def shares(seen: NDArray[np.uint8], body_count: int) -> Floats:
    """Return the fraction of the picture that each of B = `body_count` bodies covers, [B]; `seen` is `Picture.seen`."""
    # In `seen`, the number of a body is 1 or more, and 0 means no body.
    covered: Floats = np.bincount(seen.ravel(), minlength=body_count + 1)[1:] / seen.size
    return covered


def choose_camera(cameras: Sequence[stage.Camera], shown: Sequence[Floats]) -> stage.Camera:
    """Return the first camera in which the least visible body appears nearly as large as in the best camera. `shown`
    holds, for each camera, the fraction of the picture that each of the `B` bodies covers, [B].
    """
    # A body that covers more than `_ENOUGH_SHARE` is large enough: covering even more does not make a camera better.
    smallest_shares = np.minimum([body_shares.min() for body_shares in shown], _ENOUGH_SHARE)
    is_good_enough = smallest_shares >= _NEARLY_BEST_RATIO * smallest_shares.max()
    return cameras[int(np.argmax(is_good_enough))]  # `argmax` returns the first True
