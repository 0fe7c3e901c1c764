"""Viewer of a recorded ManiSkill episode: pictures, collision shapes and contacts, from the record's `sim_state`.

Only pictures need a rendering device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.maniskill.graphics import render_device
from safevla_bench.hosts.mujoco.viewer import WELL_SHOWN, choose_camera, close_ups, read_states, shares
from safevla_bench.interface import stage
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.episode import Floats
from safevla_recorder.geometry import multiply, rotate

_SKETCH = (120, 160)
_FOVY_RAD = np.pi / 4  # the angle of MuJoCo's free camera, which `close_ups` assumes
_ENDLESS_M = 10.0
_TO_OPENGL = np.array([0.5, 0.5, -0.5, -0.5])  # SAPIEN's cameras look along x (z up), a `Viewpoint` along -z (y up)
_ALONG_Z = np.array([0.5**0.5, 0.0, 0.5**0.5, 0.0])  # SAPIEN's capsules, cylinders, planes are along x, ours along z
_RGBA = {
    "robot": (0.85, 0.85, 0.88, 1.0),
    "target": (0.85, 0.45, 0.25, 1.0),
    "bystander": (0.3, 0.5, 0.75, 1.0),
    "furniture": (0.75, 0.68, 0.58, 1.0),
}


def to_pose(pose: Any) -> tuple[Floats, Floats]:
    """Return position [3] in m and unit quaternion wxyz [4] of a SAPIEN pose, which has single precision."""
    turn = pose.q.astype(np.float64)
    return pose.p.astype(np.float64), turn / np.linalg.norm(turn)


@dataclass(frozen=True)
class StagedScene:
    """ManiSkill's environment with the scene of an episode. `bodies` are SAPIEN's bodies by recorded name. `tracked`
    names the bodies whose positions are recorded, `arm` the links that the arm's joints move.
    """

    env: Any
    bodies: Mapping[str, Any]
    roles: Mapping[str, str]
    tracked: tuple[str, ...]
    arm: tuple[str, ...]
    cameras: tuple[str, ...]


class ManiskillStage(stage.Stage):
    """One recorded ManiSkill episode. The stage owns the host's environment."""

    def __init__(self, scene: StagedScene, episode: Batch, on_close: Callable[[], None]) -> None:
        """Keep the episode, a batch of one. Raises `HostError` if it has no states, or states of another scene."""
        self._scene, self._on_close = scene, on_close
        self._states = read_states(episode, scene.env.get_state().shape[-1])
        self._names = {body.entity.per_scene_id: name for name, body in scene.bodies.items()}
        self._eyes: dict[tuple[tuple[int, int], float], Any] = {}
        self.arm, self.further_cameras = scene.arm, scene.cameras[1:]

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> stage.Camera:
        """Return the default camera if it shows every body well or `bodies` is empty. Otherwise return a close-up that
        shows them nearly as well as possible. Raises `HostError` if the scene lacks a body or cannot be rendered.
        """
        usual = stage.Camera(self._scene.cameras[0])
        balls = [ball for name in bodies if (ball := self._bounding_ball(record, name))]
        if not balls or (self._shares(record, usual, bodies) >= WELL_SHOWN).all():
            return usual
        forward = rotate(self._camera_pose(usual)[1], np.array([1.0, 0.0, 0.0]))
        azimuth_deg = float(np.degrees(np.arctan2(forward[1], forward[0])))
        cameras = list(close_ups(*min(balls, key=lambda ball: ball[1]), azimuth_deg))
        return choose_camera(cameras, [self._shares(record, camera, bodies) for camera in cameras])

    def render(
        self, record: int, camera: stage.Camera, size: tuple[int, int], bodies: Sequence[str] = ()
    ) -> stage.Picture:
        """Return one record's picture from one camera. Raises `HostError` if the scene lacks a body or cannot be
        rendered, and `KeyError` if the scene has no camera of that name.
        """
        self._set(record)
        wanted = {name: number for number, name in enumerate(map(self._require_body, bodies), start=1)}
        place_m, turn, fovy_rad = self._camera_pose(camera)
        textures = self._look(place_m, turn, fovy_rad, size)
        shown = np.array(textures["segmentation"][0, ..., 0].cpu(), dtype=np.int64)
        seen = np.zeros(size, dtype=np.uint8)
        for number, name in self._names.items():
            seen[shown == number] = wanted.get(name, 0)
        return stage.Picture(np.array(textures["rgb"][0].cpu(), dtype=np.uint8), seen, self._positions())

    def geometry(self) -> stage.SceneGeometry:
        """Return the bodies' collision shapes, colored by role, and the default camera at record 0."""
        self._set(0)
        meshes: list[stage.TriangleMesh] = []
        shapes = tuple(self._read_shapes(meshes))
        camera = stage.Camera(self._scene.cameras[0])
        place_m, turn, fovy_rad = self._camera_pose(camera)
        view = stage.Viewpoint(
            camera.name, _plain(place_m), _plain(multiply(turn, _TO_OPENGL)), float(np.degrees(fovy_rad))
        )
        return stage.SceneGeometry(tuple(self._scene.bodies), {}, shapes, tuple(meshes), view)

    def pose(self, record: int) -> stage.ScenePose:
        """Return the poses of the bodies in a record, and the contacts that one further physics step finds."""
        self._set(record)
        places, turns = zip(*(to_pose(body.entity.pose) for body in self._scene.bodies.values()), strict=True)
        positions_m = self._positions()
        self._scene.env.scene.px.step()
        return stage.ScenePose(np.array(places), np.array(turns), tuple(self._find_touches()), positions_m)

    def close(self) -> None:
        self._eyes.clear()
        self._on_close()

    def _set(self, record: int) -> None:
        self._scene.env.set_state(self._states[record : record + 1].astype(np.float32))

    def _positions(self) -> dict[str, Floats]:
        return {name: to_pose(self._scene.bodies[name].entity.pose)[0] for name in self._scene.tracked}

    def _require_body(self, name: str) -> str:
        if name not in self._scene.bodies:
            remedy = "Render with the package versions that run.json lists."
            raise HostError(f"the scene has no body {name!r}", remedy=remedy)
        return name

    # Cameras

    def _camera_pose(self, camera: stage.Camera) -> tuple[Floats, Floats, float]:
        """Return a camera's position [3], quaternion wxyz [4] in SAPIEN's axes, and vertical field of view [rad]."""
        if camera.lookat_m is not None:
            azimuth, elevation = np.radians([camera.azimuth_deg, camera.elevation_deg]) / 2
            yaw = np.array([np.cos(azimuth), 0.0, 0.0, np.sin(azimuth)])
            turn = multiply(yaw, np.array([np.cos(elevation), 0.0, -np.sin(elevation), 0.0]))
            return camera.lookat_m - rotate(turn, np.array([camera.distance_m, 0.0, 0.0])), turn, _FOVY_RAD
        if camera.name not in self._scene.cameras:
            raise KeyError(f"Invalid name {camera.name!r}. Valid names: {list(self._scene.cameras)}")
        from mani_skill.sensors.camera import parse_camera_configs  # only sensors need a rendering device

        env = self._scene.env
        configs = parse_camera_configs(env._default_sensor_configs) | parse_camera_configs(env.agent._sensor_configs)
        config = configs[camera.name]
        links = {} if hasattr(env.agent, "agents") else env.agent.robot.links_map  # only a single robot has cameras
        mount = config.mount or links.get(config.entity_uid)
        pose = mount._objs[0].entity.pose * config.pose.sp if mount else config.pose.sp
        fovy_rad = config.fov or 2 * np.arctan(config.height / 2 / config.intrinsic[1][1])
        return *to_pose(pose), float(fovy_rad)

    def _look(self, place_m: Floats, turn: Floats, fovy_rad: float, size: tuple[int, int]) -> Mapping[str, Any]:
        render_device()
        import sapien
        from mani_skill.sensors.camera import Camera, CameraConfig

        scene, key = self._scene.env.scene, (size, fovy_rad)
        if key not in self._eyes:
            config = CameraConfig(f"stage_{len(self._eyes)}", sapien.Pose(), size[1], size[0], fovy_rad)
            self._eyes[key] = Camera(config, scene)
        eye = self._eyes[key]
        eye.camera._render_cameras[0].local_pose = sapien.Pose(place_m, turn)
        scene.update_render()
        eye.capture()
        textures: Mapping[str, Any] = eye.get_obs(depth=False, position=False)
        return textures

    def _shares(self, record: int, camera: stage.Camera, bodies: Sequence[str]) -> Floats:
        return shares(self.render(record, camera, _SKETCH, bodies).seen, len(bodies))

    def _bounding_ball(self, record: int, name: str) -> tuple[Floats, float] | None:
        """Return center [3] and radius [m] of a ball around a body's shapes except planes; None if there are none."""
        body = self._scene.bodies[self._require_body(name)]
        self._set(record)
        place_m, turn = to_pose(body.entity.pose)
        boxes = read_shapes(body)[0]
        if not len(boxes):
            return None
        centers = place_m + np.array([rotate(turn, center) for center in boxes[:, :3]])
        middle = (centers.min(axis=0) + centers.max(axis=0)) / 2
        radii = np.linalg.norm(centers - middle, axis=1) + np.linalg.norm(boxes[:, 7:], axis=1)
        return middle, float(radii.max())

    # Shapes and contacts

    def _read_shapes(self, meshes: list[stage.TriangleMesh]) -> Iterator[stage.Shape]:
        for part, (name, body) in enumerate(self._scene.bodies.items()):
            for shape in body.collision_shapes:
                kind = shape_kind(shape)
                place, turn = to_pose(shape.local_pose)
                rgba = _RGBA[self._scene.roles[name]]
                if hasattr(shape, "vertices"):
                    corners = np.asarray(shape.vertices, dtype=np.float64) * shape.scale
                    meshes.append(stage.TriangleMesh(corners, np.asarray(shape.triangles, dtype=np.int64)))
                    size, number = (0.0, 0.0, 0.0), len(meshes) - 1
                    yield stage.Shape("mesh", part, size, _plain(place), _plain(turn), rgba, number)
                    continue
                x, y, z = (_ENDLESS_M, _ENDLESS_M, 0.0) if kind == "plane" else half_size(shape)
                if kind in {"plane", "capsule", "cylinder"}:
                    turn = multiply(turn, _ALONG_Z)
                    x, y = (y, x - y if kind == "capsule" else x) if kind != "plane" else (x, y)
                yield stage.Shape(kind, part, (x, y, z), _plain(place), _plain(turn), rgba)

    def _find_touches(self) -> Iterator[stage.Touch]:
        for contact in self._scene.env.scene.px.get_contacts():
            a, b = (self._names.get(body.entity.per_scene_id) for body in contact.bodies)
            points = [point for point in contact.points if point.impulse.any()]
            if points and a and b:
                normal = -np.sum([point.impulse for point in points], axis=0, dtype=np.float64)
                unit = normal / max(float(np.linalg.norm(normal)), 1e-12)
                yield stage.Touch(a, b, _plain(np.mean([point.position for point in points], axis=0)), _plain(unit))


def shape_kind(shape: Any) -> Any:
    """Return the kind of a SAPIEN collision shape, such as `box` or `convexmesh`."""
    return type(shape).__name__.removeprefix("PhysxCollisionShape").lower()


def read_shapes(body: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a box around each collision shape of a body, [K, 10], and its planes, [L, 7]; formats as in `Part`."""
    boxes, planes = [np.empty((0, 10))], [np.empty((0, 7))]
    for shape in body.collision_shapes:
        place, turn = to_pose(shape.local_pose)
        if shape_kind(shape) == "plane":
            planes.append(np.concatenate([place, multiply(turn, _ALONG_Z)])[None])
            continue
        if hasattr(shape, "vertices"):
            corners = np.asarray(shape.vertices, dtype=np.float64) * shape.scale
            low, high = corners.min(axis=0), corners.max(axis=0)
        else:
            high = np.array(half_size(shape))
            low = -high
        center = place + rotate(turn, (low + high) / 2.0)
        boxes.append(np.concatenate([center, turn, (high - low) / 2.0])[None])
    return np.concatenate(boxes), np.concatenate(planes)


def half_size(shape: Any) -> tuple[float, float, float]:
    """Return half the size [m] of a box, sphere, capsule or cylinder; x is along a capsule's or cylinder's axis."""
    if shape_kind(shape) == "box":
        x, y, z = map(float, shape.half_size)
        return x, y, z
    radius = float(shape.radius)
    length = {"sphere": radius, "capsule": radius + getattr(shape, "half_length", 0.0)}
    return float(length.get(shape_kind(shape), getattr(shape, "half_length", radius))), radius, radius


def _plain(values: Any) -> Any:
    return tuple(np.asarray(values, dtype=np.float64).tolist())
