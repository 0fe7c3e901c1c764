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
from safevla_recorder.mujoco.recorder import Scene, set_state, state_size, subtree_bodies

if TYPE_CHECKING:
    import mujoco

HAND_CAMERA = "robot0_eye_in_hand"
_SKETCH = (120, 160)
WELL_SHOWN = 0.015  # a body that covers this share of the default view is easy to find
_ENOUGH = 0.06  # larger shares of a close-up count as this one, so that a table has no advantage over a finger
_NEARLY_BEST = 0.85
_TURNS_DEG = (0, 30, -30, 60, -60, 90, -90, 135, -135, 180)
_TILTS_DEG = (-30, -50, -12, -70)
_RADII = 5.0
_DISTANCE_M = (0.4, 1.4)
_UNSET_RGBA = (0.5, 0.5, 0.5, 1.0)  # a geom of this default color gets its material's color (MuJoCo 3.2.3)
_ENDLESS_M = 10.0
_VISIBLE_SITES = 3


class MujocoStage(stage.Stage):
    """One recorded episode of a MuJoCo host. The stage owns the host's environment."""

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
        """Keep the episode, a batch of one that includes `sim_state`, and make a simulation without a renderer.

        `on_close` frees the host's environment. `observe` maps qpos and qvel to an observation; None if the host has no
        such function. Raises `HostError` if the record has no states, or states of another model.
        """
        import mujoco

        self._model, self._data, self._scene = model, mujoco.MjData(model), scene
        self._states, self._camera, self._on_close = read_states(episode, state_size(model)), camera, on_close
        self._observe, self._appearance = observe, appearance
        tracked, positions = episode.body_pos_m.episode_poses(0)
        self._recorded = {episode.body_label(int(body)): positions[:, place] for place, body in enumerate(tracked)}
        self._eye: Renderer | None = None
        names = {str(model.camera(number).name) for number in range(model.ncam)}
        self.further_cameras = (HAND_CAMERA,) if HAND_CAMERA in names - {camera} else ()
        self.arm = tuple(scene.body_name[body] for body in model.dof_bodyid[list(scene.all_dofs)])

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> stage.Camera:
        """Return the default camera if it shows every body well or `bodies` is empty. Otherwise return a close-up that
        shows them nearly as well as possible. Raises `HostError` if the model lacks a body or cannot be rendered.
        """
        usual = stage.Camera(self._camera)
        if not bodies:
            return usual
        self._set(record)
        self._open_renderer(size)  # with the picture's size, so that `render` needs no new renderer
        if (self._sketch_shares(usual, bodies) >= WELL_SHOWN).all():
            return usual
        owners = self._model.geom_bodyid
        found = (np.flatnonzero(np.isin(owners, self._shown_ids(name, owners >= 0))) for name in bodies)
        groups = [geoms for geoms in found if len(geoms)]
        if not groups:
            return usual
        balls = (_bounding_ball(self._model, self._data, geoms) for geoms in groups)
        where, radius = min(balls, key=lambda ball: ball[1])
        cameras = list(close_ups(where, radius, azimuth_deg(self._model, self._data, self._camera)))
        return choose_camera(cameras, [self._sketch_shares(camera, bodies) for camera in cameras])

    def render(
        self, record: int, camera: stage.Camera, size: tuple[int, int], bodies: Sequence[str] = ()
    ) -> stage.Picture:
        """Return one record's picture from one camera. Raises `HostError` if the model lacks a body or cannot be
        rendered, and `KeyError` if the model has no camera of that name.
        """
        self._set(record)
        eye = self._open_renderer(size)
        eye.look(self._data, camera)
        seen = self._locate_bodies(eye, bodies, size) if bodies else np.zeros(size, dtype=np.uint8)
        return stage.Picture(eye.image(size), seen, self._current_positions())

    def observe(self, record: int) -> Observation | None:
        """Return the host's observation of a record, without images; None if the host cannot make one."""
        if self._observe is None:
            return None
        self._set(record)
        return self._observe(self._data.qpos.copy(), self._data.qvel.copy())

    def geometry(self) -> stage.SceneGeometry:
        """Return the model's visible shapes, and its default camera at record 0."""
        self._set(0)
        shown = {name: tuple(self._visible_body_ids(name)) for name in sorted(set(self._scene.body_name))}
        stand_ins = {name: parts for name, parts in shown.items() if self._scene.body_name[parts[0]] != name}
        shapes = extract_geometry(self._model, self._data, self._scene, self._camera, self._appearance)
        return replace(shapes, stand_ins=stand_ins)

    def pose(self, record: int) -> stage.ScenePose:
        """Return the poses of the model's bodies and the contacts between them in a record."""
        self._set(record)
        touches = find_touches(self._model, self._data, self._scene)
        return stage.ScenePose(self._data.xpos.copy(), self._data.xquat.copy(), touches, self._current_positions())

    def close(self) -> None:
        if self._eye is not None:
            self._eye.close()
        self._eye = None
        self._on_close()

    def _set(self, record: int) -> None:
        """Set the model to the instant of a record's poses. Poses are taken at the start of the last substep, but the
        state at its end (see `mujoco.Recorder`), so positions move back by one substep, which is exact up to rounding.
        Record 0 may follow no substep; its positions are moved back only if this brings them closer to those recorded.
        """
        self._pose(record, -self._model.opt.timestep)
        if record == 0:
            gap = self._position_error_m(0)
            self._pose(0, 0.0)
            if gap <= self._position_error_m(0):
                self._pose(0, -self._model.opt.timestep)

    def _pose(self, record: int, later_s: float) -> None:
        import mujoco

        model, data = self._model, self._data
        set_state(model, data, self._states[record])
        mujoco.mj_integratePos(model, data.qpos, data.qvel, later_s)
        mujoco.mj_forward(model, data)

    def _position_error_m(self, record: int) -> float:
        shown = self._current_positions()
        gaps = [np.linalg.norm(shown[name] - at[record]) for name, at in self._recorded.items() if name in shown]
        return float(sum(gaps))

    def _current_positions(self) -> Mapping[str, Floats]:
        objects = {name: self._data.xpos[body].copy() for name, body in self._scene.objects.items()}
        return objects | {name: self._data.xipos[body].copy() for name, body in self._scene.links.items()}

    def _open_renderer(self, size: tuple[int, int]) -> Renderer:
        if self._eye is None or (np.array(self._eye.size) < size).any():
            least = self._eye.size if self._eye else _SKETCH
            if self._eye is not None:
                self._eye.close()
            largest = (max(least[0], size[0]), max(least[1], size[1]))
            self._eye = Renderer(self._model, largest, self._appearance)
        return self._eye

    def _sketch_shares(self, camera: stage.Camera, bodies: Sequence[str]) -> Floats:
        eye = self._open_renderer(_SKETCH)
        eye.look(self._data, camera)
        return shares(self._locate_bodies(eye, bodies, _SKETCH), len(bodies))

    def _locate_bodies(self, renderer: Renderer, bodies: Sequence[str], size: tuple[int, int]) -> NDArray[np.uint8]:
        numbers = np.zeros(self._model.nbody + 1, dtype=np.uint8)  # entry -1 stands for no body
        for number, name in enumerate(bodies, start=1):
            numbers[self._visible_body_ids(name)] = number
        return numbers[renderer.bodies(size)]

    def _body_ids(self, name: str) -> list[int]:
        bodies = [body for body, other in enumerate(self._scene.body_name) if other == name]
        if not bodies:
            problem = f"the model has no body {name!r}"
            raise HostError(problem, remedy="Render with the versions that run.json names.")
        return bodies

    def _visible_body_ids(self, name: str) -> list[int]:
        return self._shown_ids(name, np.isin(self._model.geom_group, list(self._appearance.groups)))

    def _shown_ids(self, name: str, counts: Bools) -> list[int]:
        """Return the ids of the bodies to show for a recorded body. A body without geoms that `counts` [ngeom] marks is
        replaced by all bodies attached to it that have such geoms, or else by its closest ancestor that has them.
        """
        bodies, owners = self._body_ids(name), self._model.geom_bodyid
        if bodies != [0] and not (np.isin(owners, bodies) & counts).any():
            carried = [body for body in subtree_bodies(self._model, bodies[0]) if (counts & (owners == body)).any()]
            bodies = carried or bodies
        while not (np.isin(owners, bodies) & counts).any() and bodies != [0]:
            bodies = [int(self._model.body_parentid[bodies[0]])]
        return bodies


def read_states(episode: Batch, width: int) -> Floats:
    """Return the states of a batch of one, [n, width]; raise `HostError` if it has none, or states of another model."""
    states = episode.sim_state.episode_rows(0)
    if not len(states):
        remedy = "Only records with `sim_state` can be shown; `safevla eval` writes such records."
        raise HostError("the record holds no simulator states", remedy=remedy)
    if states.shape[1] != width:
        problem = f"the record's states have {states.shape[1]} numbers, but the model's have {width}"
        raise HostError(problem, remedy="Render with the versions that run.json names.")
    return states


def episode_seed(episode: Batch) -> EpisodeSeed:
    """Return the seed that recreates the episode's scene, without settling steps, because states are set directly. If
    the record lacks the seed or initial state, but is a replay or has poses of fixtures, the episode starts from its
    first state. Raises `HostError` if neither start is possible, or if the record's fixtures are not poses.
    """
    header = episode.headers[0]
    if header.env_seed is None or header.init_state_index is None:
        replayed = _read_recorded_start(episode)
        if replayed is not None:
            return EpisodeSeed(0, header.env_seed or 0, wait_steps=0, recorded=replayed)
    if header.env_seed is None or header.init_state_index is None:
        lacking = [name for name in ("env_seed", "init_state_index") if getattr(header, name) is None]
        remedy = "The seed and the index place what `sim_state` lacks, such as fixtures. In your own loop, call "
        remedy += "env.seed(N) before each reset, as `safevla eval` does."
        raise HostError(f"the record's header lacks {' and '.join(lacking)}", remedy=remedy)
    (resets,) = earlier_resets(episode)
    (drawn,) = mark_flags(episode, DRAWN)
    index, placed = chosen_start(episode)
    return EpisodeSeed(
        index or 0, header.env_seed, wait_steps=0, earlier_resets=resets, drawn=bool(drawn), placed=placed
    )


def _read_recorded_start(episode: Batch) -> RecordedEpisode | None:
    (replay,) = replay_fields(episode)
    poses, states = recorded_fixtures(episode), episode.sim_state.episode_rows(0)
    if not len(states) or (not replay and not poses):
        return None
    fixtures = tuple((name, tuple(pose.tolist())) for name, pose in poses.items())
    name, source = str(replay.get("episode")), str(replay.get("source"))
    return RecordedEpisode(name, source, len(states) - 1, tuple(states[0].tolist()), fixtures=fixtures)


def recorded_fixtures(episode: Batch) -> dict[str, Floats]:
    """Return the recorded fixture poses: root body -> position [3] in m and quaternion [4] wxyz, in the world frame; {}
    if none are recorded. Raises `HostError` if they are not poses.
    """
    (replay,), (extra,) = replay_fields(episode), episode.extra
    placed = (replay or host_header(extra)).get(FIXTURES)
    if not placed:
        return {}
    try:
        poses = msgspec.convert(placed, dict[str, Annotated[list[float], msgspec.Meta(min_length=7, max_length=7)]])
    except msgspec.ValidationError:
        remedy = "Give seven numbers for each fixture: position and quaternion, w first."
        raise HostError("the record's `fixtures` are not poses", remedy=remedy) from None
    return {name: np.array(pose) for name, pose in poses.items()}


# Geometry of a model: visible geoms and sites, and contacts between bodies


def extract_geometry(
    model: mujoco.MjModel, data: mujoco.MjData, scene: Scene, camera: str, appearance: Appearance
) -> stage.SceneGeometry:
    """Return a model's visible shapes, with its bodies as parts, and the viewpoint of the camera in `data`."""
    import mujoco

    meshes: dict[tuple[int, int], stage.TriangleMesh] = {}
    shapes = tuple(_visible_shapes(model, appearance, meshes))
    number, quat = model.camera(camera).id, np.empty(4)
    mujoco.mju_mat2Quat(quat, data.cam_xmat[number])
    view = stage.Viewpoint(camera, _plain(data.cam_xpos[number]), _plain(quat), float(model.cam_fovy[number]))
    return stage.SceneGeometry(scene.body_name, {}, shapes, tuple(meshes.values()), view)


def _visible_shapes(
    model: mujoco.MjModel, appearance: Appearance, meshes: dict[tuple[int, int], stage.TriangleMesh]
) -> Iterator[stage.Shape]:
    """Yield the shapes of visible geoms, then of sites. Adds each pair of mesh and texture to `meshes` on first use."""
    import mujoco

    # Height fields and other unsupported kinds of geoms are left out.
    kinds: dict[int, stage.ShapeKind] = {
        int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")): kind for kind in get_args(stage.ShapeKind)
    }
    geoms = np.isin(model.geom_group, list(appearance.groups))
    sites = appearance.sites & (model.site_group < _VISIBLE_SITES)
    for name, shown in (("geom", geoms), ("site", sites)):
        types, bodies, places, turns, sizes, materials, colors = (
            getattr(model, f"{name}_{part}") for part in ("type", "bodyid", "pos", "quat", "size", "matid", "rgba")
        )
        for number in np.flatnonzero(shown):
            kind = kinds.get(int(types[number]))
            rgba, texture = _surface(model, int(materials[number]), colors[number])
            if kind is None or rgba[3] == 0:
                continue
            mesh = None
            if kind == "mesh":
                key = (int(model.geom_dataid[number]), texture)
                if key not in meshes:
                    meshes[key] = _mesh(model, *key)
                mesh = list(meshes).index(key)
            if texture >= 0 and (mesh is None or meshes[key].colors is None):
                rgba = rgba * [*_texture_image(model, texture)[..., :3].mean(axis=(0, 1)) / 255, 1.0]
            size = np.where((sizes[number] == 0) & (kind == "plane"), _ENDLESS_M, sizes[number])
            place, turn = _plain(places[number]), _plain(turns[number])
            yield stage.Shape(
                kind, int(bodies[number]), _plain(size), place, turn, _plain(np.clip(rgba, 0.0, 1.0)), mesh
            )


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


def _mesh(model: mujoco.MjModel, mesh: int, texture: int) -> stage.TriangleMesh:
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    face, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    corners = model.mesh_vert[first : first + count].astype(np.float64)
    triangles = model.mesh_face[face : face + faces].astype(np.int64)
    if texture < 0 or model.mesh_texcoordadr[mesh] < 0:
        return stage.TriangleMesh(corners, triangles)
    coordinates = int(model.mesh_texcoordadr[mesh]) + model.mesh_facetexcoord[face : face + faces]
    return stage.TriangleMesh(corners, triangles, _corner_colors(model, texture, triangles, coordinates, count))


def _corner_colors(
    model: mujoco.MjModel, texture: int, triangles: NDArray[np.int64], coordinates: NDArray[np.int64], count: int
) -> NDArray[np.uint8]:
    image = _texture_image(model, texture)
    height, width = image.shape[:2]
    u, v = np.moveaxis(model.mesh_texcoord[coordinates.ravel()].astype(np.float64) % 1.0, 1, 0)
    sampled = image[np.minimum((v * height).astype(int), height - 1), np.minimum((u * width).astype(int), width - 1)]
    uses = np.bincount(triangles.ravel(), minlength=count)
    sums = [np.bincount(triangles.ravel(), sampled[:, channel], count) for channel in range(3)]
    return np.rint(np.stack(sums, axis=1) / np.maximum(uses, 1)[:, None]).astype(np.uint8)


def find_touches(model: mujoco.MjModel, data: mujoco.MjData, scene: Scene) -> tuple[stage.Touch, ...]:
    """Return one contact for each pair of recorded bodies that touch in `data`, sorted by names. Each has its mean
    point [3] in m and its direction [3] from the body whose name sorts first, both in the world frame.
    """
    points: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
    for contact in data.contact:
        if contact.dist > 0 or contact.geom1 < 0 or contact.geom2 < 0:
            continue
        a, b = (scene.body_name[model.geom_bodyid[geom]] for geom in (contact.geom1, contact.geom2))
        sign = 1.0 if a <= b else -1.0  # a contact's first axis points from geom1 to geom2
        points.setdefault((min(a, b), max(a, b)), []).append((contact.pos.copy(), sign * contact.frame[:3]))
    touches = []
    for pair, contacts in sorted(points.items()):
        places, directions = (np.array(values) for values in zip(*contacts, strict=True))
        normal = directions.sum(axis=0)
        length = float(np.linalg.norm(normal))
        # The directions of a two-sided grasp cancel, so only the first is shown.
        direction = normal / length if length > 0.1 else directions[0]
        touches.append(stage.Touch(*pair, _plain(places.mean(axis=0)), _plain(direction)))
    return tuple(touches)


def _plain(values: NDArray[np.floating]) -> Any:
    return tuple(values.tolist())


# The choice of a camera


def _bounding_ball(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.intp]) -> tuple[Floats, float]:
    radii = np.where(model.geom_rbound[geoms] > 0, model.geom_rbound[geoms], np.inf)
    places = data.geom_xpos[geoms]
    center = (places.min(axis=0) + places.max(axis=0)) / 2
    return center, float((np.linalg.norm(places - center, axis=1) + radii).max())


def close_ups(lookat_m: Floats, radius_m: float, azimuth_deg: float) -> Iterator[stage.Camera]:
    """Yield free cameras around a point. The first one has the azimuth `azimuth_deg` and looks down by 30 degrees."""
    x, y, z = (float(part) for part in lookat_m)
    distance = float(np.clip(_RADII * radius_m, *_DISTANCE_M))
    for tilt in _TILTS_DEG:
        for turn in _TURNS_DEG:
            yield stage.Camera(stage.CLOSE_UP, (x, y, z), distance, azimuth_deg + turn, float(tilt))


def azimuth_deg(model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> float:
    """Return a camera's viewing direction seen from above, in degrees from x towards y."""
    forward = -data.cam_xmat[model.camera(camera).id].reshape(3, 3)[:, 2]
    return float(np.degrees(np.arctan2(forward[1], forward[0])))


def shares(seen: NDArray[np.uint8], bodies: int) -> Floats:
    """Return the share of the picture that each body covers, [B]; `seen` is as in `Picture`."""
    counted: Floats = np.bincount(seen.ravel(), minlength=bodies + 1)[1:] / seen.size
    return counted


def choose_camera(cameras: Sequence[stage.Camera], shown: Sequence[Floats]) -> stage.Camera:
    """Return the first camera that shows its least visible body nearly as large as the best camera does. `shown` holds,
    per camera, the share of the picture that each body covers, [B].
    """
    least = np.minimum([seen.min() for seen in shown], _ENOUGH)
    return cameras[int(np.argmax(least >= _NEARLY_BEST * least.max()))]
