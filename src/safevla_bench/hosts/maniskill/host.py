"""ManiSkill 3, recorded: table-top tasks of a Panda in SAPIEN, on PhysX's CPU solver.

Nothing is rendered, so Vulkan is not needed: SAPIEN makes materials only on a rendering device, so stand-ins replace
them while a scene is built. PhysX reports the normal forces of contacts but no friction (docs/howto/maniskill.md).
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import resources
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.hosts import RecordedEnv, check_start, check_wants, drawn_reset_seed, read_versions, require_known
from safevla_bench.hosts.mujoco.graphics import importing
from safevla_bench.interface.environment import Host, HostSupport
from safevla_bench.interface.policy import Action, Observation, Wants, check_action
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.tasks.loader import load_registry
from safevla_recorder.geometry import ALL_MOTION, TRACKED, WORLD, Part, multiply, rotate
from safevla_recorder.identity import read_identity
from safevla_recorder.mujoco.hook import hook_after
from safevla_recorder.recorder import Contact, EpisodeRecorder, SceneMap

SUITE = "maniskill"
CONTROLS = {
    "pd_ee_delta_pose": ("position [3], rotation [3], gripper", 7),
    "pd_ee_delta_pos": ("position [3], gripper", 4),
    "pd_joint_delta_pos": ("joints [7], gripper", 8),
}
"""ManiSkill's control modes that this host supports, the default first, with the parts of an action and their sizes."""
TORQUE_LIMIT_NM = (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0)
"""Torque limits of the Panda's joints, base first, from ManiSkill's URDF; its drives would allow 100 N·m each."""
_ARM = len(TORQUE_LIMIT_NM)
_AXIS_TORQUE = 3
"""Index of the torque about the joint's axis in SAPIEN's wrench (force [3], torque [3]), in a frame with x along it."""
_RESTING_M_S = 0.05
_INSTALL = "make maniskill   (in a checkout: it makes ManiSkill's own environment, .venv-maniskill)"
STATE, START = "state", "start"
_READINGS = ("joint_pos", "joint_vel")
_building = threading.Lock()
"""Held while SAPIEN's materials are replaced, so that environments in threads take turns."""


class TaskFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bodies that a task's success requires to be moved, a held tool last, the conjuncts of success by their names
    in the result of `evaluate`, `not NAME` if it must be false, and ManiSkill's limit in steps.
    """

    targets: tuple[str, ...]
    subgoals: tuple[str, ...] = ()
    horizon: int = 50


TASKS: Mapping[str, TaskFacts] = msgspec.toml.decode(
    resources.files(__package__).joinpath("maniskill.toml").read_bytes(), type=dict[str, TaskFacts]
)


class ManiskillHost(Host):
    """The host `maniskill`; everything but its suites and tasks needs the extra `maniskill`."""

    name = "maniskill"
    supports = HostSupport(readings=_READINGS, privileged_readings=(STATE, START))

    def __init__(self, control: str = next(iter(CONTROLS))) -> None:
        require_known("the host maniskill", "control", control, CONTROLS)
        self._control = control

    def suites(self) -> tuple[str, ...]:
        return (SUITE,)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        require_known("ManiSkill", "suite", suite, self.suites())
        told, still = load_registry().tasks, still_action(self._control)
        return tuple(
            Task(SUITE, name, index, name, told[SUITE, name].instruction or name, still, horizon=rules.horizon)
            for index, (name, rules) in enumerate(TASKS.items())
        )

    def make(self, task: Task, wants: Wants) -> ManiskillEnv:
        """Return a new environment of one task; raise `HostError` for a camera, or for a policy that gives poses."""
        check_wants(wants, self.supports, "ManiSkill")
        return ManiskillEnv(task, wants, self.versions(), self._control)

    def versions(self) -> dict[str, str]:
        return read_versions(("mani-skill", "sapien", "torch", "numpy", "safevla-bench"), "ManiSkill", _INSTALL)


class ManiskillEnv(RecordedEnv[EpisodeRecorder]):
    """One ManiSkill task with its recorder.

    Actions in [-1, 1] are ManiSkill's. Those of `pd_ee_delta_pose`, [7], move the midpoint of the fingers by 0.1 m per
    unit [0:3] and turn the hand by -0.1 rad per unit about the base's axes [3:6], as ManiSkill does; 1 opens the
    fingers [6]. A policy that wants privileged state gets `extra["state"]`, ManiSkill's observation `state`, and
    `extra["start"]` [2]: the seed of ManiSkill's reset and the number of settling steps after it.
    """

    embodiment = "Panda"
    torque_limit_nm = TORQUE_LIMIT_NM

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str], control: str) -> None:
        self._meaning, size = CONTROLS[control]
        super().__init__(task, wants, versions, size)
        self._targets = task_targets(task.name)
        self._env = make_env(task.name, control)
        self._identity = read_identity(type(self._env), None, "mani_skill", "envs")
        self.dt_s = float(self._env.control_timestep)

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a new scene with a seed made of `env_seed` and the index; settle, take record 0. At least
        one settling step is made, because PhysX reports contacts only after a step.
        """
        check_start(self.task, seed, ManiskillHost.supports)
        self._recorder, self._seed = None, seed
        env = self._env
        start(env, drawn_reset_seed(seed))
        parts, hand, self._pieces = read_parts(env)
        scene = replace(read_scene(env, self._targets), parts=parts, hand=hand)
        self._bodies = dynamic_bodies(env)
        still = np.array(seed.wait_action or self.task.still)
        self._settled = self._settle(still, max(1, seed.wait_steps), seed.rest_steps)
        recorder = EpisodeRecorder(scene)
        recorder.begin(read_contacts(env, scene), torques_nm=read_torques(env), **self._read_poses())
        hook_after(env.scene, "step", lambda: recorder.substep(read_contacts(env, scene), read_torques(env)))
        self._recorder = recorder
        return self._observe()

    def _settle(self, still: Action, wait_steps: int, rest_steps: int) -> int:
        for step in range(wait_steps + rest_steps):
            speeds = [np.linalg.norm(body.linear_velocity) for body in self._bodies.values()]
            if step >= wait_steps and max(speeds, default=0.0) <= _RESTING_M_S:
                return step
            self._advance(still)
        return wait_steps + rest_steps

    def step(self, action: Action) -> tuple[Observation, bool]:
        recorder = self._require_recorder()
        taken = check_action(action, len(self.action_low), self._meaning).copy()
        self._advance(taken)
        recorder.step(taken, **self._read_poses())
        return self._observe(), self._success

    def _advance(self, action: Action) -> None:
        self._obs, *_, self._outcome = self._env.step(action.astype(np.float32))
        self._success = bool(self._outcome["success"])

    def _target_object(self) -> str:
        return self._targets[0]

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the current `sim_state`: those of actors, then of the robot's joints, arm first."""
        return state_coordinates(self._env)

    def close(self) -> None:
        self._recorder = None
        self._env.close()

    def _read_poses(self) -> dict[str, Any]:
        poses = {name: to_pose(body.entity.pose) for name, body in self._bodies.items()}
        parts = [to_pose(piece.entity.pose) for piece in self._pieces]
        read = {"poses": poses, "eef": self._read_hand(), "state": read_state(self._env), "parts": parts}
        goals = TASKS[self.task.name].subgoals
        holds = {name: bool(self._outcome[name.removeprefix("not ")]) != name.startswith("not ") for name in goals}
        return {**read, "subgoals": holds or None}

    def _read_hand(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return to_pose(self._env.agent.tcp._objs[0].entity.pose)

    def _observe(self) -> Observation:
        joints, wanted = robot(self._env), self._wants
        own = {"joint_pos": joints.qpos[:_ARM], "joint_vel": joints.qvel[:_ARM]}
        extra = {name: values.astype(np.float64) for name, values in own.items() if name in wanted.extra}
        if wanted.privileged:
            extra[STATE] = self._obs[0].numpy().astype(np.float64)
            extra[START] = np.array([drawn_reset_seed(self._seed), self._settled], dtype=np.float64)
        place, turn = self._read_hand()
        fingers = joints.qpos[_ARM:].astype(np.float64)
        return Observation(self.task.instruction, place, turn, fingers, extra=extra)


# Objects of ManiSkill and SAPIEN


def still_action(control: str) -> tuple[float, ...]:
    """Return a control mode's action that moves nothing and opens the gripper."""
    return (*[0.0] * (CONTROLS[control][1] - 1), 1.0)


def task_targets(name: str) -> tuple[str, ...]:
    """Return the bodies that a task's success requires to be moved; raise `HostError` for an unknown name."""
    require_known("the host maniskill", "task", name, TASKS)
    return TASKS[name].targets


def import_maniskill() -> Mapping[str, Any]:
    """Return ManiSkill's registry of tasks; raise `HostError` if ManiSkill is missing or cannot be imported."""
    ManiskillHost().versions()
    with importing("ManiSkill", _INSTALL, by_egl=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SAPIEN warns that Vulkan is missing; gymnasium warns too
        import mani_skill.envs
        from mani_skill.utils.registration import REGISTERED_ENVS
    mani_skill.logger.setLevel(logging.ERROR)  # it warns about poses that its own tasks leave undefined
    found: Mapping[str, Any] = REGISTERED_ENVS
    return found


def make_env(name: str, control: str = next(iter(CONTROLS))) -> Any:
    """Return ManiSkill's environment of a task, without rendering and without a limit on its steps."""
    task = import_maniskill()[name]
    options = {"sim_backend": "physx_cpu", "render_backend": "none", "obs_mode": "state", "reward_mode": "none"}
    with without_visuals():
        return task.make(control_mode=control, **options)


def start(env: Any, seed: int) -> None:
    """Build a new scene, so that nothing of an earlier episode remains in the solver, and draw the start."""
    with without_visuals():
        env.reset(seed=seed, options={"reconfigure": True})


class _NoVisual:
    """A stand-in for a material or texture, which is never rendered."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@contextmanager
def without_visuals() -> Iterator[None]:
    """Let SAPIEN build scenes without a rendering device; `render_backend="none"` still makes materials."""
    import sapien.render
    import sapien.wrapper.urdf_loader

    with _building, ExitStack() as patches:
        for module in (sapien.render, sapien.pysapien.render, sapien.wrapper.urdf_loader):
            for name in ("RenderMaterial", "RenderTexture2D"):
                patches.enter_context(mock.patch.object(module, name, _NoVisual))
        yield


def robot(env: Any) -> Any:
    """Return SAPIEN's articulation of the robot."""
    return env.agent.robot._objs[0]


def dynamic_bodies(env: Any) -> dict[str, Any]:
    """Return SAPIEN's freely moving bodies by ManiSkill's names."""
    moving = {name: actor for name, actor in env.scene.actors.items() if actor.px_body_type == "dynamic"}
    return {name: actor._bodies[0] for name, actor in moving.items()}


def read_scene(env: Any, targets: tuple[str, ...]) -> SceneMap:
    """Return names and roles: links have their own names, actors ManiSkill's. Bodies without collision shapes, such as
    goal markers, are left out. Shapes of one entity form one body.
    """
    links = {link.entity.name: link for link in robot(env).links if link.collision_shapes}
    solid = {name: actor._bodies[0] for name, actor in env.scene.actors.items() if actor._bodies[0].collision_shapes}
    moving = dynamic_bodies(env)
    roles = dict.fromkeys(links, "robot")
    roles |= {name: "target" if name in targets else "bystander" for name in moving}
    roles |= {name: "furniture" for name in solid if name not in moving}
    fingers = [[body.entity.per_scene_id for name, body in links.items() if side in name] for side in _FINGERS]
    return SceneMap(
        shapes={body.entity.per_scene_id: name for name, body in (links | solid).items()},
        roles=roles,
        substep_s=float(env.sim_timestep),
        fingers=(fingers[0], fingers[1]),
        forces=("force_n", "net_force_n"),
        torque_source="joint_wrench",
    )


_FINGERS = ("leftfinger", "rightfinger")


def read_parts(env: Any) -> tuple[list[Part], list[int], list[Any]]:
    """Return the robot's links and the solid actors as parts, the indices of hand and fingers, and SAPIEN's bodies."""
    links = sorted(robot(env).links, key=lambda link: len(_ancestors(link)))
    places = {link.entity.name: place for place, link in enumerate(links)}
    parts = []
    for link in links:
        name = link.entity.name if link.collision_shapes else ""
        parent = places[link.parent.entity.name] if link.parent else WORLD
        parts.append(Part(name, parent, _joint_motion(link), *read_shapes(link)))
    fingers = [link for link in links if any(side in link.entity.name for side in _FINGERS)]
    hand = {places[link.entity.name] for finger in fingers for link in (finger, finger.parent) if link}
    for name, actor in env.scene.actors.items():
        body = actor._bodies[0]
        if body.collision_shapes:
            kind = actor.px_body_type
            parent, motion = (TRACKED, ()) if kind == "dynamic" else (WORLD, ALL_MOTION if kind == "kinematic" else ())
            parts.append(Part(name, parent, motion, *read_shapes(body)))
            links.append(body)
    return parts, sorted(hand), links


def _ancestors(link: Any) -> list[Any]:
    return [link.parent, *_ancestors(link.parent)] if link.parent else []


def _joint_motion(link: Any) -> tuple[int, ...]:
    """Return the components in which a link moves: one for a joint about or along an axis of its frame."""
    joint = link.joint
    if joint.type == "fixed":
        return ()
    place, turn = to_pose(joint.pose_in_child)
    axis = rotate(turn, np.array([1.0, 0.0, 0.0]))
    along = int(np.abs(axis).argmax())
    is_plain = bool(np.abs(axis[along]) > 1.0 - 1e-9)
    if is_plain and joint.type == "prismatic":
        return (3 + along,)
    is_centered = bool(np.abs(np.delete(place, along)).max() < 1e-6)
    return (along,) if is_plain and is_centered and joint.type.startswith("revolute") else ALL_MOTION


_PLANE_TURN = np.array([0.5**0.5, 0.0, 0.5**0.5, 0.0])
"""SAPIEN's planes face x, ours face z."""


def read_shapes(body: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a box around each collision shape in the body's frame, [K, 10], and its planes, [L, 7]."""
    boxes, planes = [np.empty((0, 10))], [np.empty((0, 7))]
    for shape in body.collision_shapes:
        kind = type(shape).__name__.removeprefix("PhysxCollisionShape")
        place, turn = to_pose(shape.local_pose)
        if kind == "Plane":
            planes.append(np.concatenate([place, multiply(turn, _PLANE_TURN)])[None])
            continue
        if hasattr(shape, "vertices"):
            corners = np.asarray(shape.vertices, dtype=np.float64) * shape.scale
            low, high = corners.min(axis=0), corners.max(axis=0)
        else:
            high = _half_size(kind, shape)
            low = -high
        center = place + rotate(turn, (low + high) / 2.0)
        boxes.append(np.concatenate([center, turn, (high - low) / 2.0])[None])
    return np.concatenate(boxes), np.concatenate(planes)


def _half_size(kind: str, shape: Any) -> NDArray[np.float64]:
    if kind == "Box":
        return np.asarray(shape.half_size, dtype=np.float64)
    radius = float(shape.radius)
    length = {"Sphere": radius, "Capsule": radius + getattr(shape, "half_length", 0.0)}
    return np.array([length.get(kind, getattr(shape, "half_length", radius)), radius, radius], dtype=np.float64)


def read_contacts(env: Any, scene: SceneMap) -> Iterator[Contact]:
    """Yield the contact points that carry force, with the normal force on the second body in the world frame [N], [3].

    SAPIEN also lists points that are only close, and gives the impulse on the first body.
    """
    for contact in env.scene.px.get_contacts():
        first, second = (body.entity.per_scene_id for body in contact.bodies)
        for point in contact.points:
            if point.impulse.any():
                yield first, second, -point.impulse.astype(np.float64) / scene.substep_s


def read_torques(env: Any) -> NDArray[np.float64]:
    """Return the torques of the arm's drives in the last physics step, base first [N·m], [7]."""
    wrenches: NDArray[np.float32] = robot(env).get_link_incoming_joint_forces()
    return wrenches[1 : _ARM + 1, _AXIS_TORQUE].astype(np.float64)


def read_state(env: Any) -> NDArray[np.float64]:
    """Return ManiSkill's flat state: position, quaternion wxyz and velocities of each actor and of the robot's base,
    then positions and velocities of its joints.
    """
    state: NDArray[np.float64] = env.get_state()[0].numpy().astype(np.float64)
    return state


def state_coordinates(env: Any) -> tuple[Coordinate, ...]:
    """Return which numbers of `read_state` are positions and rotations."""
    told, first = list[Coordinate](), 0
    for kind in ("actors", "articulations"):
        for name, values in env.get_state_dict()[kind].items():
            told += [Coordinate(name, "position", first, 3), Coordinate(name, "rotation", first + 3, 4)]
            first += values.shape[-1]
    joints = [joint.name for joint in robot(env).active_joints]
    place = first - 2 * len(joints)
    told += [Coordinate(name, "rotation", place + k, 1) for k, name in enumerate(joints[:_ARM])]
    return *told, *(Coordinate(name, "position", place + _ARM + k, 1) for k, name in enumerate(joints[_ARM:]))


def to_pose(pose: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return position [3] in m and unit quaternion wxyz [4] of a SAPIEN pose, which has single precision."""
    turn = pose.q.astype(np.float64)
    return pose.p.astype(np.float64), turn / np.linalg.norm(turn)
