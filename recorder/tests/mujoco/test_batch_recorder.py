"""Many worlds in one recorder: each world's episodes are, byte for byte, those of a recorder of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_recorder.batch_recorder import BatchRecorder
from safevla_recorder.npz import encode_episode
from safevla_recorder.recorder import EpisodeRecorder, SceneMap

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

# A slider with two pads squeezes a block and lifts it off a table, on which a heavy can rests beside.
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
SHAPES = ("table", "left", "right", "block", "can")
SCENE = SceneMap(
    shapes=dict(zip(SHAPES, SHAPES)),
    roles={"block": "target", "can": "bystander", "left": "robot", "right": "robot", "table": "furniture"},
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
HEADER = {"episode_id": "e", "benchmark": "b", "task_id": "t", "success": True, "dt": 0.01, "target_object": "block"}
SUBSTEPS = 5


class World:
    """A world of its own, which settles, then squeezes and lifts with forces of its own."""

    def __init__(self, seed):
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.body = {name: self.model.body(name).id for name in SHAPES}
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
        bodies = {(self.body[a], self.body[b]): k for k, (a, b) in enumerate(PAIRS)}
        net, wrench = np.zeros((len(PAIRS), 3)), np.zeros(6)
        for k in range(self.data.ncon):
            contact = self.data.contact[k]
            a, b = (int(self.model.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2))
            if contact.efc_address >= 0:
                mujoco.mj_contactForce(self.model, self.data, k, wrench)
                force = contact.frame.reshape(3, 3).T @ wrench[:3]
                if (a, b) in bodies:
                    net[bodies[a, b]] += force
                elif (b, a) in bodies:
                    net[bodies[b, a]] -= force
        return net

    def torques(self):
        return self.data.qfrc_actuator[:3].copy()

    def read(self):
        at, turn = self.data.xpos, self.data.xquat
        poses = {"can": (at[self.body["can"]], None), "block": (at[self.body["block"]], turn[self.body["block"]])}
        return {
            "poses": poses,
            "eef": (at[self.body["arm"] if "arm" in self.body else 2], turn[2]),
            "state": self.data.qpos,
        }


def stack(readings):
    """Return the readings of single worlds as those of a batch."""

    def pose(pick):
        quats = [pick(each)[1] for each in readings]
        return np.stack([pick(each)[0] for each in readings]), None if quats[0] is None else np.stack(quats)

    poses = {name: pose(lambda each, name=name: each["poses"][name]) for name in readings[0]["poses"]}
    return {
        "poses": poses,
        "eef": pose(lambda each: each["eef"]),
        "state": np.stack([each["state"] for each in readings]),
    }


def list_contacts(net):
    return [(a, b, force) for (a, b), force in zip(PAIRS, net) if force.any()]


def roll_out(share=np.asarray, steps=90, as_norms=False, lasts=lambda world, episode: 17 + 7 * world + 3 * episode):
    """Step four worlds; return the episodes of the batch, and those of recorders of one world, as they end."""
    worlds = [World(seed) for seed in range(4)]
    single = [EpisodeRecorder(SCENE) for _ in worlds]
    batch = BatchRecorder(SCENE, PAIRS, num_envs=len(worlds))
    left = [lasts(world, 0) for world in range(4)]
    ours, theirs, episodes = [], [], [0] * 4

    def net_of():
        net = np.stack([world.net_forces() for world in worlds])
        if not as_norms:
            return net, net
        norms = np.sqrt(net[..., 0] ** 2 + net[..., 1] ** 2 + net[..., 2] ** 2)
        return norms, norms[..., None] * [1.0, 0.0, 0.0]

    def given(readings):
        pair = lambda pose: tuple(part if part is None else share(part) for part in pose)  # noqa: E731
        return {
            "poses": {name: pair(pose) for name, pose in readings["poses"].items()},
            "eef": pair(readings["eef"]), "state": share(readings["state"]),
        }  # fmt: skip

    def begin(ids):
        told, net = net_of()
        torques = np.stack([world.torques() for world in worlds])
        batch.begin(
            share(told),
            torques_nm=share(torques),
            env_ids=share(np.array(ids)),
            **given(stack([w.read() for w in worlds])),
        )
        for k in ids:
            single[k].begin(list_contacts(net[k]), torques_nm=torques[k], **worlds[k].read())

    begin(range(4))
    for _ in range(steps):
        action = np.stack([world.choose_action() for world in worlds])
        for _ in range(SUBSTEPS):
            for world, force in zip(worlds, action):
                world.substep(force)
            told, net = net_of()
            torques = np.stack([world.torques() for world in worlds])
            buffers = share(told.copy()), share(torques.copy())
            batch.substep(*buffers)
            for buffer in buffers:  # simulators use their arrays again
                buffer[:] = -1.0
            for k, recorder in enumerate(single):
                recorder.substep(list_contacts(net[k]), torques[k])
        for k, recorder in enumerate(single):
            recorder.step(action[k], **worlds[k].read())
        left = [count - 1 for count in left]
        done = np.array(left) == 0
        ours += batch.step(share(action), done=share(done), **given(stack([w.read() for w in worlds])))
        theirs += [(k, single[k].build_recording(HEADER), single[k].dropped_pairs()) for k in np.flatnonzero(done)]
        for k in np.flatnonzero(done):
            episodes[k] += 1
            left[k] = lasts(k, episodes[k])
            worlds[k].reset()
        if done.any():
            begin(np.flatnonzero(done))
    ours += batch.end()
    theirs += [(k, single[k].build_recording(HEADER), single[k].dropped_pairs()) for k in range(4)]
    return ours, theirs


def assert_same(ours, theirs):
    assert [episode.world for episode in ours] == [world for world, *_ in theirs]
    for episode, (_, recording, dropped) in zip(ours, theirs):
        assert episode.dropped_pairs() == dropped
        own = episode.build_recording(HEADER)
        assert encode_episode(replace(own, extra={})) == encode_episode(recording)


@pytest.mark.parametrize("as_norms", [False, True])
def test_episodes_of_many_worlds_are_those_of_recorders_of_one_world(as_norms):
    ours, theirs = roll_out(as_norms=as_norms)
    assert_same(ours, theirs)
    recordings = [recording for _, recording, _ in theirs]
    names = list(recordings[0].roles)
    pairs = {(names[a], names[b]) for each in recordings for a, b in zip(each.contacts.a, each.contacts.b)}
    print(pairs, len(ours), [r.records for r in recordings], [dropped for *_, dropped in theirs][0])
    assert ("block", "table") in pairs, "a resting pair came apart and touched again"
    assert len({recording.records for recording in recordings}) > 5
    assert any(recording.gripper_contact.any() for recording in recordings)


def test_torch_tensors_give_the_same_episodes():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert_same(*roll_out(share=lambda values: torch.as_tensor(np.array(values))))
