"""A host on another engine: a hand with two fingers over a box on a table, in PyBullet."""

from importlib.metadata import version
from pathlib import Path

import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, check_wants, episode_header
from safevla_bench.interface.environment import Host, HostEnv
from safevla_bench.interface.policy import Observation, check_action
from safevla_bench.interface.task import Coordinate, Task
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.recorder import EpisodeRecorder, SceneMap

REGISTRY, HAND_FILE = (Path(__file__).with_name(name) for name in ("registry.toml", "hand.urdf"))
SUBSTEPS, SUBSTEP_S, STILL = 12, 1 / 240, (0.0, 0.0, -1.0)
TABLE, BOX, HAND = range(3)  # bodies as they are made
JOINTS = X, Z, LEFT, RIGHT = range(4)  # the hand's links, each moved by a slide of its own
SCENE = SceneMap(
    shapes={(TABLE, -1): "table", (BOX, -1): "box", (HAND, Z): "palm", (HAND, LEFT): "left", (HAND, RIGHT): "right"},
    roles={"table": "furniture", "box": "target", "palm": "robot", "left": "robot", "right": "robot"},
    substep_s=SUBSTEP_S,
    fingers=([(HAND, LEFT)], [(HAND, RIGHT)]),
    apart_substeps=SUBSTEPS,  # Bullet's resting contacts come and go
)


def make_world(p, seed):
    """Put everything where the seed says."""
    p.resetSimulation()
    p.setPhysicsEngineParameter(fixedTimeStep=SUBSTEP_S, deterministicOverlappingPairs=1)
    p.setGravity(0, 0, -9.81)
    table, box = (p.createCollisionShape(p.GEOM_BOX, halfExtents=(x, x, z)) for x, z in ((0.5, 0.02), (0.02, 0.03)))
    x, y = np.random.default_rng([seed.env_seed, seed.init_state_index]).uniform(-0.008, 0.008, 2)
    p.createMultiBody(0, table, basePosition=(0, 0, -0.02))
    p.createMultiBody(0.05, box, basePosition=(x, y, 0.03))
    p.loadURDF(str(HAND_FILE), basePosition=(0, 0, 0.31), useFixedBase=True)


def control(p, goal, action, after=lambda: None):
    """One control step: move the goal [x, z] by up to 10 mm, open or close; `after` each substep."""
    goal += 0.01 * np.clip(action[:2], -1, 1)
    targets, forces = [*goal, *[0.05 if action[2] > 0 else 0.0] * 2], [60, 60, 8, 8]
    p.setJointMotorControlArray(HAND, JOINTS, p.POSITION_CONTROL, targetPositions=targets, forces=forces)
    for _ in range(SUBSTEPS):
        p.stepSimulation()
        after()


def read_state(p):
    """Return pose and velocity of the box, positions and velocities of the joints, flat."""
    joints = [joint[:2] for joint in p.getJointStates(HAND, JOINTS)]
    return np.concatenate([*p.getBasePositionAndOrientation(BOX), *p.getBaseVelocity(BOX), *joints])


def contacts(p):
    """Yield the points where shapes touch: a normal force and two of friction each."""
    for _, a, b, link_a, link_b, *_, normal, friction1, _, friction2, _ in p.getContactPoints():
        if normal > 0:
            yield (a, link_a), (b, link_b), np.linalg.norm((normal, friction1, friction2))


def torques(p):
    return [joint[3] for joint in p.getJointStates(HAND, (X, Z))]


class BulletHost(Host):
    name = "bullet"

    def suites(self):
        return ("bullet",)

    def tasks(self, suite):
        if suite != "bullet":
            raise HostError(f"the bullet host has no suite {suite!r}", remedy="Suites: bullet.")
        return (Task("bullet", "lift", 0, "lift", "lift the box", STILL),)

    def make(self, task, wants):
        check_wants(wants)
        try:
            return BulletEnv(task, self.versions())
        except ImportError as error:
            raise HostError(f"the bullet host needs PyBullet: {error}", remedy="pip install pybullet") from error

    def versions(self):
        return {name: version(name) for name in ("pybullet", "numpy", "safevla-bench")}


class BulletEnv(HostEnv):
    dt_s = SUBSTEPS * SUBSTEP_S
    action_low, action_high = np.full(3, -1.0), np.full(3, 1.0)

    def __init__(self, task, versions):
        from pybullet import DIRECT
        from pybullet_utils.bullet_client import BulletClient

        self.task, self.versions = task, versions
        self.p, self.recorder = BulletClient(DIRECT), EpisodeRecorder(SCENE)

    def reset(self, seed):
        check_start(self.task, seed)
        self.seed, self.goal = seed, np.zeros(2)
        make_world(self.p, seed)
        for _ in range(seed.wait_steps):  # no `rest_steps`: the box stands on the table from the start
            control(self.p, self.goal, STILL if seed.wait_action is None else seed.wait_action)
        self.recorder.begin(contacts(self.p), torques_nm=torques(self.p), **self.poses())
        return self.observation()

    def step(self, action):
        self.recorder.require_episode()
        taken = check_action(action, size=3)
        control(self.p, self.goal, taken, lambda: self.recorder.substep(contacts(self.p), torques(self.p)))
        self.recorder.step(taken, **self.poses())
        return self.observation(), self.success()

    def recorded(self):
        self.recorder.require_episode()
        header = episode_header(
            self.task,
            self.seed,
            success=self.success(),
            dt=self.dt_s,
            target_object="box",
            versions=self.versions,
            joint_torque_limit_nm=(60.0, 60.0),  # forces here, in newton: both joints slide
            embodiment="bullet",
            dropped_pairs=self.recorder.dropped_pairs(),
        )
        return from_recording(self.recorder.build_recording(header))

    def close(self):
        self.p.disconnect()

    def coordinates(self):
        return (Coordinate("box", "position", 0, 3),)  # of `read_state`

    def poses(self):
        position, (x, y, z, w) = self.p.getBasePositionAndOrientation(BOX)  # PyBullet writes w last
        return {"poses": {"box": (position, (w, x, y, z))}, "eef": self.palm(), "state": read_state(self.p)}

    def palm(self):
        return self.p.getLinkState(HAND, Z, computeForwardKinematics=1)[0], (1.0, 0.0, 0.0, 0.0)

    def success(self):
        return bool(self.p.getBasePositionAndOrientation(BOX)[0][2] > 0.08)

    def observation(self):
        fingers = [joint[0] for joint in self.p.getJointStates(HAND, (LEFT, RIGHT))]
        return Observation(self.task.instruction, *map(np.array, self.palm()), np.array(fingers))
