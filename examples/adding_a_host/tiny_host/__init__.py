"""A host in one file: a hand with two fingers over a box on a table, in plain MuJoCo."""

from importlib.metadata import version
from pathlib import Path

import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, check_wants, episode_header
from safevla_bench.interface.environment import Host, HostEnv
from safevla_bench.interface.policy import Observation, check_action
from safevla_bench.interface.task import Coordinate, Task
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.mujoco.recorder import Recorder, Scene, settling_steps

REGISTRY = Path(__file__).with_name("registry.toml")
MODEL = """
<mujoco>
  <option timestep="0.002" cone="elliptic" gravity="0 0 -9.81"/>
  <worldbody>
    <body name="table"><geom type="box" size="0.5 0.5 0.02" pos="0 0 -0.02"/></body>
    <body name="hand" pos="0 0 0.25" gravcomp="1">
      <joint name="x" type="slide" axis="1 0 0" damping="20"/>
      <joint name="z" type="slide" axis="0 0 1" damping="20"/>
      <geom type="box" size="0.02 0.08 0.01" pos="0 0 0.06" mass="0.3"/>
      <site name="grip" pos="0 0 -0.01"/>
      <body name="left"><joint name="left" type="slide" axis="0 1 0" damping="50" range="0 0.05" limited="true"/>
        <geom name="left_pad" type="box" size="0.01 0.005 0.03" pos="0 -0.06 0" mass="0.05"/></body>
      <body name="right"><joint name="right" type="slide" axis="0 -1 0" damping="50" range="0 0.05" limited="true"/>
        <geom name="right_pad" type="box" size="0.01 0.005 0.03" pos="0 0.06 0" mass="0.05"/></body>
    </body>
    <body name="box" pos="0 0 0.031"><freejoint/>
      <geom type="box" size="0.02 0.02 0.03" mass="0.05" friction="1.5"/></body>
  </worldbody>
  <actuator>
    <position joint="x" kp="200"/><position joint="z" kp="200"/><motor joint="left"/><motor joint="right"/>
  </actuator>
</mujoco>
"""
ROLES = {"box": "target", "hand": "robot", "left": "robot", "right": "robot", "table": "furniture"}
SUBSTEPS, DT_S = 25, 0.05
STILL = np.array([0.0, 0.0, -1.0])


def start(model, data, seed):
    """Put everything where the seed says."""
    import mujoco

    mujoco.mj_resetData(model, data)
    jitter = np.random.default_rng([seed.env_seed, seed.init_state_index]).uniform(-0.008, 0.008, 2)
    data.joint(model.body("box").jntadr[0]).qpos[:2] = jitter
    mujoco.mj_forward(model, data)


def control(model, data, action, after=lambda: None):
    """One control step: move the hand's goal by up to 10 mm in x and z, open or close; `after` each substep."""
    import mujoco

    data.ctrl[:2] += 0.01 * np.clip(action[:2], -1, 1)
    data.ctrl[2:] = 5.0 * np.clip(action[2], -1, 1)
    for _ in range(SUBSTEPS):
        mujoco.mj_step(model, data)
        after()


class TinyHost(Host):
    name = "tiny"

    def suites(self):
        return ("tiny",)

    def tasks(self, suite):
        if suite != "tiny":
            raise HostError(f"the tiny host has no suite {suite!r}", remedy="Suites: tiny.")
        return (Task("tiny", "lift", 0, "lift", "lift the box", tuple(STILL)),)

    def make(self, task, wants):
        check_wants(wants, self.supports, "the tiny host")
        try:
            return TinyEnv(task, self.versions())
        except ImportError as error:
            raise HostError(f"the tiny host needs MuJoCo: {error}", remedy="pip install mujoco") from error

    def versions(self):
        return {name: version(name) for name in ("mujoco", "numpy", "safevla-bench")}


class TinyEnv(HostEnv):
    dt_s = DT_S

    def __init__(self, task, versions):
        import mujoco

        self.task, self.versions = task, versions
        self.action_low, self.action_high = np.full(3, -1.0), np.full(3, 1.0)
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.recorder = None

    def scene(self):
        model = self.model
        names = tuple("table" if body == 0 else model.body(body).name for body in range(model.nbody))
        return Scene(
            body_name=names,
            roles=ROLES,
            objects={"box": model.body("box").id},
            links={},
            fingers=((model.geom("left_pad").id,), (model.geom("right_pad").id,)),
            eef_site=model.site("grip").id,
            arm_dofs=(0, 1),
        )

    def reset(self, seed):
        check_start(self.task, seed, TinyHost.supports)
        self.seed = seed
        start(self.model, self.data, seed)
        still = STILL if seed.wait_action is None else np.array(seed.wait_action)
        scene = self.scene()
        for _ in settling_steps(self.model, self.data, scene.objects, seed.wait_steps, seed.rest_steps):
            control(self.model, self.data, still)
        self.recorder = Recorder(self.model, self.data, scene)  # takes record 0
        return self.observation()

    def step(self, action):
        self.begun()
        taken = check_action(action, size=3).copy()
        control(self.model, self.data, taken, after=self.recorder.record_substep)
        self.recorder.record_step(taken)
        return self.observation(), self.success()

    def recorded(self):
        self.begun()
        header = episode_header(
            self.task,
            self.seed,
            success=self.success(),
            dt=DT_S,
            target_object="box",
            versions=self.versions,
            joint_torque_limit_nm=(100.0, 100.0),  # forces here, in newton: both joints slide
            embodiment="tiny",
            dropped_pairs=self.recorder.dropped_pairs(),
        )
        return from_recording(self.recorder.build_recording(header))

    def coordinates(self):
        first = 1 + int(self.model.jnt_qposadr[self.model.body("box").jntadr[0]])  # behind the time
        return (Coordinate("box", "position", first, 3), Coordinate("box", "rotation", first + 3, 4))

    def close(self):
        pass

    def begun(self):
        if self.recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")

    def success(self):
        return bool(self.data.body("box").xpos[2] > 0.08)

    def observation(self):
        site = self.data.site("grip")
        return Observation(
            instruction=self.task.instruction,
            eef_pos_m=site.xpos.copy(),
            eef_quat_wxyz=np.array([1.0, 0.0, 0.0, 0.0]),
            gripper_qpos=self.data.qpos[2:4].copy(),
        )
