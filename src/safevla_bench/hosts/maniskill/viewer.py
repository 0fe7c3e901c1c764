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

_SKETCH_SIZE = (120, 160)  # height and width of the pictures in which candidate cameras are compared
_FOVY_RAD = np.pi / 4  # vertical field of view that `close_ups` assumes: MuJoCo's default
_PLANE_HALF_SIZE_M = 10.0  # half size of the drawn square for an infinite plane
# SAPIEN's cameras look along x with z up; a `Viewpoint` looks along -z with y up.
_TO_OPENGL = np.array([0.5, 0.5, -0.5, -0.5])
# The axis of a capsule, cylinder or plane is x in SAPIEN, but z in `Shape`.
_ALONG_Z = np.array([0.5**0.5, 0.0, 0.5**0.5, 0.0])
_RGBA = {
    "robot": (0.85, 0.85, 0.88, 1.0),
    "target": (0.85, 0.45, 0.25, 1.0),
    "bystander": (0.3, 0.5, 0.75, 1.0),
    "furniture": (0.75, 0.68, 0.58, 1.0),
}


def to_pose(pose: Any) -> tuple[Floats, Floats]:
    """Return position [3] in m and unit quaternion wxyz [4] of a SAPIEN pose, which has single precision."""
    # The quaternion is normalized again, because single precision makes its norm differ from 1.
    quat_wxyz = pose.q.astype(np.float64)
    return pose.p.astype(np.float64), quat_wxyz / np.linalg.norm(quat_wxyz)


@dataclass(frozen=True)
class StagedScene:
    """ManiSkill's environment with an episode's scene. `bodies` maps recorded names to SAPIEN's bodies. `tracked` names
    the bodies with recorded positions. `arm` names the link that each joint of the arm moves.
    """

    env: Any
    bodies: Mapping[str, Any]
    roles: Mapping[str, str]
    tracked: tuple[str, ...]
    arm: tuple[str, ...]
    cameras: tuple[str, ...]


class ManiskillStage(stage.Stage):
    """The viewer of one recorded ManiSkill episode. It owns the host's environment."""

    def __init__(self, scene: StagedScene, episode: Batch, on_close: Callable[[], None]) -> None:
        """Read `episode`, a one-episode batch. Raises `HostError` if it lacks states or has states of another scene."""
        # `scene` has ManiSkill's environment (`env`) and SAPIEN's bodies by recorded name (`bodies`).
        # `on_close` frees the environment. `read_states` checks that each state has the size of this scene's states.
        self._scene, self._on_close = scene, on_close
        self._states = read_states(episode, scene.env.get_state().shape[-1])
        self._name_of_id = {body.entity.per_scene_id: name for name, body in scene.bodies.items()}
        # Cameras for pictures, by size (height, width) and vertical field of view [rad].
        self._cameras: dict[tuple[tuple[int, int], float], Any] = {}
        # Names of the links that the arm's joints move, and of the cameras that videos show in addition to the first.
        self.arm, self.further_cameras = scene.arm, scene.cameras[1:]

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> stage.Camera:
        """Return the default camera if it shows every body well, or if no body has a shape. Otherwise return a close-up
        with the bodies shown almost as large as possible. Raises `HostError` for unknown bodies, or if rendering fails.
        """
        # `_scene.cameras` are the names of ManiSkill's cameras. `size` has no effect here.
        # A ball is a sphere around a body: center [3], radius. A share is the fraction of a picture that a body covers.
        default_camera = stage.Camera(self._scene.cameras[0])
        balls = [ball for ball in (self._bounding_ball(record, name) for name in bodies) if ball is not None]
        if not balls or (self._measure_shares(record, default_camera, bodies) >= WELL_SHOWN).all():
            return default_camera
        # The close-ups begin with the azimuth of the default camera, which looks along its x axis.
        forward = rotate(self._camera_pose(default_camera)[1], np.array([1.0, 0.0, 0.0]))
        azimuth_deg = float(np.degrees(np.arctan2(forward[1], forward[0])))
        center_m, radius_m = min(balls, key=lambda ball: ball[1])  # aim at the smallest body
        cameras = list(close_ups(center_m, radius_m, azimuth_deg))
        return choose_camera(cameras, [self._measure_shares(record, camera, bodies) for camera in cameras])

    def render(
        self, record: int, camera: stage.Camera, size: tuple[int, int], bodies: Sequence[str] = ()
    ) -> stage.Picture:
        """Return one record's picture from one camera. Raises `HostError` for a body that the scene lacks, or if
        rendering is impossible, and `KeyError` if the scene has no camera of that name.
        """
        self._set_record(record)
        number_of_body = {name: number for number, name in enumerate(map(self._require_body, bodies), start=1)}
        pos_m, quat_wxyz, fovy_rad = self._camera_pose(camera)
        textures = self._capture(pos_m, quat_wxyz, fovy_rad, size)
        # For each pixel, the id of the entity that it shows, [H, W].
        shown_ids = np.array(textures["segmentation"][0, ..., 0].cpu(), dtype=np.int64)
        seen = np.zeros(size, dtype=np.uint8)
        for entity_id, name in self._name_of_id.items():
            seen[shown_ids == entity_id] = number_of_body.get(name, 0)
        return stage.Picture(np.array(textures["rgb"][0].cpu(), dtype=np.uint8), seen, self._tracked_positions())

    def geometry(self) -> stage.SceneGeometry:
        """Return the bodies' collision shapes, colored by role, and the default camera at record 0."""
        self._set_record(0)
        meshes: list[stage.TriangleMesh] = []
        shapes = tuple(self._read_shapes(meshes))  # the call also fills `meshes`
        # `multiply` converts the camera's quaternion from SAPIEN's axes to OpenGL's.
        # Each body is a part, and the second argument of `SceneGeometry` is empty, because each body has shapes.
        camera = stage.Camera(self._scene.cameras[0])
        pos_m, quat_wxyz, fovy_rad = self._camera_pose(camera)
        view = stage.Viewpoint(
            camera.name, _to_tuple(pos_m), _to_tuple(multiply(quat_wxyz, _TO_OPENGL)), float(np.degrees(fovy_rad))
        )
        return stage.SceneGeometry(tuple(self._scene.bodies), {}, shapes, tuple(meshes), view)

    def pose(self, record: int) -> stage.ScenePose:
        """Return the bodies' poses in a record, and their contacts. One additional physics step gives the contacts."""
        # `_scene.bodies` maps recorded names to SAPIEN's bodies.
        self._set_record(record)
        positions, quats = zip(*(to_pose(body.entity.pose) for body in self._scene.bodies.values()), strict=True)
        # PhysX reports contacts only after a step. The step changes poses, so the poses are read before the step.
        tracked_pos_m = self._tracked_positions()
        self._scene.env.scene.px.step()
        return stage.ScenePose(np.array(positions), np.array(quats), tuple(self._find_touches()), tracked_pos_m)

    def close(self) -> None:
        # Frees the cameras, then the host's environment.
        self._cameras.clear()
        self._on_close()

    def _set_record(self, record: int) -> None:
        # Sets the simulator to the state of a record. `_states` has the recorded states, [records, S].
        # ManiSkill takes an array of states [1, S], one for each parallel environment.
        self._scene.env.set_state(self._states[record : record + 1].astype(np.float32))

    def _tracked_positions(self) -> dict[str, Floats]:
        # Maps the name of each body with a recorded position to its current position [3] in m, world frame.
        return {name: to_pose(self._scene.bodies[name].entity.pose)[0] for name in self._scene.tracked}

    def _require_body(self, name: str) -> str:
        # Returns the name of a body of the scene; raises `HostError` for other names.
        if name not in self._scene.bodies:
            remedy = "Render with the package versions that run.json lists."
            raise HostError(f"the scene has no body {name!r}", remedy=remedy)
        return name

    # Cameras

    def _camera_pose(self, camera: stage.Camera) -> tuple[Floats, Floats, float]:
        # Returns a camera's position [3] in m, quaternion wxyz [4] in SAPIEN's axes, and vertical field of view [rad].
        if camera.lookat_m is not None:  # a free camera looks at this point; other cameras belong to ManiSkill
            # A rotation's quaternion consists of the cosine and sine of half its angle.
            half_azimuth, half_elevation = np.radians([camera.azimuth_deg, camera.elevation_deg]) / 2
            yaw = np.array([np.cos(half_azimuth), 0.0, 0.0, np.sin(half_azimuth)])
            quat_wxyz = multiply(yaw, np.array([np.cos(half_elevation), 0.0, -np.sin(half_elevation), 0.0]))
            forward_m = rotate(quat_wxyz, np.array([camera.distance_m, 0.0, 0.0]))
            return camera.lookat_m - forward_m, quat_wxyz, _FOVY_RAD
        if camera.name not in self._scene.cameras:
            raise KeyError(f"Invalid name {camera.name!r}. Valid names: {list(self._scene.cameras)}")
        from mani_skill.sensors.camera import parse_camera_configs  # imported late: sensors need a rendering device

        env = self._scene.env
        configs = parse_camera_configs(env._default_sensor_configs) | parse_camera_configs(env.agent._sensor_configs)
        config = configs[camera.name]
        # In a scene with several robots, no robot has a camera.
        links = {} if hasattr(env.agent, "agents") else env.agent.robot.links_map
        mount = config.mount or links.get(config.entity_uid)  # None if the camera is fixed in the world
        pose = mount._objs[0].entity.pose * config.pose.sp if mount else config.pose.sp
        # Without a field of view, the camera has an intrinsic matrix, whose entry [1][1] is the focal length in pixels.
        fovy_rad = config.fov or 2 * np.arctan(config.height / 2 / config.intrinsic[1][1])
        return *to_pose(pose), float(fovy_rad)

    def _capture(self, pos_m: Floats, quat_wxyz: Floats, fovy_rad: float, size: tuple[int, int]) -> Mapping[str, Any]:
        # Returns a picture's textures `rgb` and `segmentation`, [1, H, W, channels] each; `size` is (height, width).
        # The camera's pose is in SAPIEN's axes. Cameras of the same size and field of view are used again.
        render_device()  # raises `HostError` if this machine cannot render
        import sapien
        from mani_skill.sensors.camera import Camera, CameraConfig

        scene, key = self._scene.env.scene, (size, fovy_rad)
        if key not in self._cameras:
            # Name, pose, width, height and field of view. The pose is set below.
            config = CameraConfig(f"stage_{len(self._cameras)}", sapien.Pose(), size[1], size[0], fovy_rad)
            self._cameras[key] = Camera(config, scene)
        camera = self._cameras[key]
        camera.camera._render_cameras[0].local_pose = sapien.Pose(pos_m, quat_wxyz)
        scene.update_render()
        camera.capture()
        textures: Mapping[str, Any] = camera.get_obs(depth=False, position=False)
        return textures

    def _measure_shares(self, record: int, camera: stage.Camera, bodies: Sequence[str]) -> Floats:
        # Returns the fraction of a small picture of the record that each of the `B` bodies covers, [B].
        return shares(self.render(record, camera, _SKETCH_SIZE, bodies).seen, len(bodies))

    def _bounding_ball(self, record: int, name: str) -> tuple[Floats, float] | None:
        # Returns center [3] and radius, in m, of a sphere around a body's shapes in a record (world frame).
        # Planes do not count; None if there are no other shapes. Raises `HostError` for an unknown body.
        body = self._scene.bodies[self._require_body(name)]
        self._set_record(record)
        pos_m, quat_wxyz = to_pose(body.entity.pose)
        boxes, _ = read_shapes(body)  # columns: center [3], quaternion [4] and half extents [3] in the body's frame
        if not len(boxes):
            return None
        centers = pos_m + np.array([rotate(quat_wxyz, center) for center in boxes[:, :3]])
        center_m = (centers.min(axis=0) + centers.max(axis=0)) / 2
        # The distance from a box's center to any point of the box is at most half of the box's diagonal.
        radii = np.linalg.norm(centers - center_m, axis=1) + np.linalg.norm(boxes[:, 7:], axis=1)
        return center_m, float(radii.max())

    # Shapes and contacts

    def _read_shapes(self, meshes: list[stage.TriangleMesh]) -> Iterator[stage.Shape]:
        # Yields the bodies' collision shapes, each with its pose in the body's frame. Appends the meshes to `meshes`.
        # `part` is the index of the body. The color depends on the body's role.
        # The shape of a mesh has the size 0, because the vertices determine the mesh's size.
        for part, (name, body) in enumerate(self._scene.bodies.items()):
            for shape in body.collision_shapes:
                kind, rgba = shape_kind(shape), _RGBA[self._scene.roles[name]]
                pos_m, quat_wxyz = to_pose(shape.local_pose)
                if hasattr(shape, "vertices"):
                    vertices = np.asarray(shape.vertices, dtype=np.float64) * shape.scale
                    meshes.append(stage.TriangleMesh(vertices, np.asarray(shape.triangles, dtype=np.int64)))
                    mesh_pose, mesh_index = (_to_tuple(pos_m), _to_tuple(quat_wxyz)), len(meshes) - 1
                    yield stage.Shape("mesh", part, (0.0, 0.0, 0.0), *mesh_pose, rgba, mesh_index)
                    continue
                if kind in {"plane", "capsule", "cylinder"}:
                    quat_wxyz = multiply(quat_wxyz, _ALONG_Z)
                size = (_PLANE_HALF_SIZE_M, _PLANE_HALF_SIZE_M, 0.0) if kind == "plane" else half_size(shape)
                if kind in {"capsule", "cylinder"}:
                    x, radius, _ = size
                    # In `Shape`, the radius comes first, and a capsule's half length excludes the caps.
                    size = (radius, x - radius if kind == "capsule" else x, radius)
                yield stage.Shape(kind, part, size, _to_tuple(pos_m), _to_tuple(quat_wxyz), rgba)

    def _find_touches(self) -> Iterator[stage.Touch]:
        # Yields the contacts with forces of the last physics step, except contacts of bodies without a name.
        # A contact has two bodies' names, a mean point [3] in m, and the direction [3] of the force on the second body.
        # SAPIEN gives the impulse on the first body. `_name_of_id` maps ids of SAPIEN's entities to recorded names.
        for contact in self._scene.env.scene.px.get_contacts():
            first, second = (self._name_of_id.get(body.entity.per_scene_id) for body in contact.bodies)
            points = [point for point in contact.points if point.impulse.any()]
            if points and first and second:
                impulse_on_second = -np.sum([point.impulse for point in points], axis=0, dtype=np.float64)
                direction = impulse_on_second / max(float(np.linalg.norm(impulse_on_second)), 1e-12)
                point_m = np.mean([point.position for point in points], axis=0)
                yield stage.Touch(first, second, _to_tuple(point_m), _to_tuple(direction))


def shape_kind(shape: Any) -> Any:
    """Return the kind of a SAPIEN collision shape, such as `box` or `convexmesh`."""
    # The name of the class is, for example, `PhysxCollisionShapeBox`.
    return type(shape).__name__.removeprefix("PhysxCollisionShape").lower()


def read_shapes(body: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return boxes around a body's `K` shapes other than planes, [K, 10], and its `L` planes, [L, 7], as in `Part`."""
    # A box is center [3] in m, quaternion wxyz [4] and half sizes [3] in m, in the frame of the SAPIEN body `body`.
    # A plane is a point [3] and a quaternion [4] in the same frame; the quaternion's z axis is the normal.
    boxes, planes = [np.empty((0, 10))], [np.empty((0, 7))]  # empty arrays, since `concatenate` needs at least one
    for shape in body.collision_shapes:
        pos_m, quat_wxyz = to_pose(shape.local_pose)
        if shape_kind(shape) == "plane":
            planes.append(np.concatenate([pos_m, multiply(quat_wxyz, _ALONG_Z)])[None])
            continue
        if hasattr(shape, "vertices"):
            # The corners of a box around the mesh, in the shape's frame.
            vertices = np.asarray(shape.vertices, dtype=np.float64) * shape.scale
            low, high = vertices.min(axis=0), vertices.max(axis=0)
        else:
            high = np.array(half_size(shape))
            low = -high
        center = pos_m + rotate(quat_wxyz, (low + high) / 2.0)
        boxes.append(np.concatenate([center, quat_wxyz, (high - low) / 2.0])[None])
    return np.concatenate(boxes), np.concatenate(planes)


def half_size(shape: Any) -> tuple[float, float, float]:
    """Return half sizes [m] along x, y, z of a box, sphere, capsule or cylinder; capsules and cylinders lie along x."""
    if shape_kind(shape) == "box":
        x, y, z = map(float, shape.half_size)
        return x, y, z
    radius = float(shape.radius)
    if shape_kind(shape) == "sphere":
        return radius, radius, radius
    cap_m = radius if shape_kind(shape) == "capsule" else 0.0  # SAPIEN's half length excludes a capsule's round ends
    return float(cap_m + shape.half_length), radius, radius


def _to_tuple(values: Any) -> Any:
    # Returns the numbers of an array [n] as a tuple of n Python floats.
    return tuple(np.asarray(values, dtype=np.float64).tolist())
