"""Many MuJoCo worlds in one recorder: the episodes of each are, byte for byte, those of a recorder of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batch_builders import HEADER, Recorders
from safevla_recorder import batch_recorder
from safevla_recorder.batch_recorder import BatchRecorder
from safevla_recorder.contacts import vector_norms
from safevla_recorder.episode import encode_episode
from safevla_recorder.recorder import SceneMap

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

# Two pads squeeze a block and lift it off a table, on which a heavy can rests beside.
MODEL = """
<mujoco>
  <option timestep="0.002" cone="elliptic"/>
  <worldbody>
    <body name="table"><geom type="box" size="1 1 0.05" pos="0 0 -0.05"/></body>
    <body name="arm" pos="0 0 0.1"><joint name="z" type="slide" axis="0 0 1" damping="5"/>
      <geom type="box" size="0.02 0.15 0.01" pos="0 0 0.15" mass="0.2" contype="0" conaffinity="0"/>
      <body name="left"><joint name="l" type="slide" axis="0 1 0" damping="1"/>
        <geom type="box" size="0.02 0.01 0.02" pos="0 -0.1 -0.05" mass="0.1"/></body>
      <body name="right"><joint name="r" type="slide" axis="0 1 0" damping="1"/>
        <geom type="box" size="0.02 0.01 0.02" pos="0 0.1 -0.05" mass="0.1"/></body>
    </body>
    <body name="block" pos="0 0 0.05"><freejoint/><geom type="box" size="0.03 0.03 0.05" mass="0.05"/></body>
    <body name="can" pos="0.08 0 0.05"><freejoint/><geom type="box" size="0.03 0.03 0.05" mass="0.5"/></body>
  </worldbody>
  <actuator><motor joint="z"/><motor joint="l"/><motor joint="r"/></actuator>
</mujoco>
"""
ROLES = {"block": "target", "can": "bystander", "left": "robot", "right": "robot", "table": "furniture"}
SCENE = SceneMap(
    shapes={name: name for name in ROLES},
    roles=ROLES,
    substep_s=0.002,
    fingers=(("left",), ("right",)),
    apart_substeps=2,
    forces=("net_force_n",),
    torque_source="qfrc_actuator",
)
PAIRS = [
    ("left", "right"), ("right", "block"), ("block", "left"), ("block", "table"), ("can", "table"), ("can", "block"),
    ("left", "table"), ("right", "can"),
]  # fmt: skip
SUBSTEPS = 5


class World:
    """Settles, then squeezes and lifts with forces of its own."""

    def __init__(self, seed):
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.body = {name: self.model.body(name).id for name in (*ROLES, "arm")}
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        mujoco.mj_resetData(self.model, self.data)
        self.data.ctrl[:] = (4.0, 0.0, 0.0)
        mujoco.mj_step(self.model, self.data, nstep=50)
        self.force, self.turn, self.steps = self.rng.uniform(2, 8), int(self.rng.integers(8, 20)), 0

    def choose_action(self):
        self.steps += 1
        lift = 4.0 if self.steps < self.turn else 4.0 + 3 * self.force
        grip = self.force if self.steps % 25 < 20 else -self.force
        return np.array([lift, grip, -grip])

    def substep(self, action):
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data)

    def net_forces(self):
        """Return the net force of each pair on its second body, world frame [K, 3]."""
        pair = {(self.body[a], self.body[b]): k for k, (a, b) in enumerate(PAIRS)}
        net, wrench = np.zeros((len(PAIRS), 3)), np.zeros(6)
        for k in range(self.data.ncon):
            contact = self.data.contact[k]
            a, b = (int(self.model.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2))
            if contact.efc_address >= 0 and ((a, b) in pair or (b, a) in pair):
                mujoco.mj_contactForce(self.model, self.data, k, wrench)
                force = contact.frame.reshape(3, 3).T @ wrench[:3]
                net[pair[a, b] if (a, b) in pair else pair[b, a]] += force if (a, b) in pair else -force
        return net

    def read(self):
        """Return poses, end effector and state, as `begin` and `step` take them, and the torques."""
        at, turn, body = self.data.xpos, self.data.xquat, self.body
        poses = {"can": (at[body["can"]], None), "block": (at[body["block"]], turn[body["block"]])}
        eef = (at[body["arm"]], turn[body["arm"]])
        return {"poses": poses, "eef": eef, "state": self.data.qpos}, self.data.qfrc_actuator[:3].copy()


def roll_out(share=np.array, as_norms=False, steps=90):
    """Step four worlds whose episodes end at different steps, and begin these again; return their recorders."""
    worlds = [World(seed) for seed in range(4)]
    recorders = Recorders(SCENE, PAIRS, len(worlds), share)
    steps_to_go = np.array([17, 24, 31, 20])

    def read_all():
        net = np.stack([world.net_forces() for world in worlds])
        readings, torques = zip(*(world.read() for world in worlds))
        return vector_norms(net.reshape(-1, 3)).reshape(net.shape[:2]) if as_norms else net, np.stack(torques), readings

    recorders.begin(range(4), *read_all())
    for _ in range(steps):
        actions = np.stack([world.choose_action() for world in worlds])
        for _ in range(SUBSTEPS):
            for world, action in zip(worlds, actions):
                world.substep(action)
            recorders.substep(*read_all()[:2])
        steps_to_go -= 1
        ended = np.flatnonzero(steps_to_go == 0)
        recorders.step(actions, read_all()[2], steps_to_go == 0)
        for k in ended:
            worlds[k].reset()
            steps_to_go[k] = 20 + 5 * k + len(recorders.episodes)
        recorders.begin(ended, *read_all())
    recorders.end()
    return recorders


@pytest.mark.parametrize("as_norms", [False, True], ids=["vectors", "norms"])
def test_episodes_of_many_worlds_are_those_of_recorders_of_one_world(as_norms):
    recorders = roll_out(as_norms=as_norms)
    recorders.assert_same()
    recordings = [recording for _, recording, _ in recorders.expected]
    names = list(recordings[0].roles)
    pairs = {(names[a], names[b]) for each in recordings for a, b in zip(each.contacts.a, each.contacts.b)}
    assert ("block", "table") in pairs, "a resting pair came apart and touched again"
    assert ("can", "table") in recorders.expected[0][2]
    assert ("can", "table") not in pairs
    assert len({recording.records for recording in recordings}) > 5
    assert any(recording.gripper_contact.any() for recording in recordings)


def test_tensors_of_torch_give_the_same_episodes(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def share(values):
        return torch.as_tensor(np.array(values))

    roll_out(share).assert_same()
    monkeypatch.setattr(batch_recorder, "is_on_device", torch.is_tensor)  # as if the CPU were another device
    recorders = roll_out(share)
    for episode, (_, recording, dropped) in zip(recorders.episodes, recorders.expected):
        own = episode.build_recording(HEADER)
        assert episode.dropped_pairs() == dropped
        for name, column in own.contacts.columns().items():  # torch's square root on a CPU is off by an ulp
            np.testing.assert_allclose(column, recording.contacts.columns()[name], rtol=1e-15)
        assert encode_episode(replace(own, extra={}, contacts=recording.contacts)) == encode_episode(recording)


def test_a_step_copies_one_truth_of_each_world_from_the_device(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(batch_recorder, "is_on_device", torch.is_tensor)
    copied = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: copied.append(tensor) or tensor)
    recorder = BatchRecorder(SCENE, PAIRS, num_envs=5)
    force, place = torch.ones(5, len(PAIRS)), torch.zeros(5, 3)
    recorder.begin(force, poses={"can": (place, None)}, env_ids=torch.arange(5))
    copied.clear()
    recorder.substep(force)
    assert copied == []
    recorder.step(torch.zeros(5, 2), poses={"can": (place, None)}, done=torch.zeros(5, dtype=torch.bool))
    assert [(values.dtype, tuple(values.shape)) for values in copied] == [(torch.bool, (5,))]
