"""The recorder on a small model: N + 1 records, peaks, roles, and nothing of it left behind."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.hook import hook_after
from safevla_recorder.mujoco.recorder import Recorder
from safevla_recorder.mujoco.scene import Scene

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

# A slider with two pads squeezes a block that rests on a table; a door hangs beside.
MODEL = """
<mujoco>
  <option timestep="0.002" cone="elliptic"/>
  <worldbody>
    <body name="table"><geom name="top" type="box" size="1 1 0.05" pos="0 0 -0.05"/></body>
    <body name="base" pos="0 0 0.1">
      <site name="grip"/>
      <body name="left"><joint name="l" type="slide" axis="0 1 0" damping="1"/>
        <geom name="pad_l" type="box" size="0.02 0.01 0.02" pos="0 -0.1 0" mass="0.1"/></body>
      <body name="right"><joint name="r" type="slide" axis="0 1 0" damping="1"/>
        <geom name="pad_r" type="box" size="0.02 0.01 0.02" pos="0 0.1 0" mass="0.1"/></body>
    </body>
    <body name="block_main" pos="0 0 0.1"><freejoint/>
      <geom type="box" size="0.03 0.03 0.05" pos="0 0 -0.05" mass="0.2"/>
      <body name="block_cap" pos="0 0 0.03"><geom type="box" size="0.03 0.03 0.03" mass="0.05"/></body>
    </body>
    <body name="door" pos="2 0 1"><joint name="hinge" axis="0 0 1"/>
      <geom type="box" size="0.2 0.01 0.2" pos="0.2 0 0" mass="1"/></body>
  </worldbody>
  <actuator><motor joint="l"/><motor joint="r"/></actuator>
</mujoco>
"""
ROLES = {
    "base": "robot",
    "block": "target",
    "door": "furniture",
    "left": "robot",
    "right": "robot",
    "table": "furniture",
}


class Simulation:
    """What robosuite's MjSim is to the hook: an object with a method that steps."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.forced = 0.0

    def step(self, times=1):
        self.data.ctrl[:] = (self.forced, -self.forced)
        for _ in range(times):
            mujoco.mj_step(self.model, self.data)
        return "stepped"


def scene(model) -> Scene:
    names = ["table" if name == "world" else name for name in (model.body(k).name for k in range(model.nbody))]
    names = tuple("block" if name.startswith("block") else name for name in names)
    return Scene(
        body_name=names,
        roles=ROLES,
        objects={"block": model.body("block_main").id},
        links={"door": model.body("door").id},
        fingers=((model.geom("pad_l").id,), (model.geom("pad_r").id,)),
        eef_site=model.site("grip").id,
        arm_dofs=(0, 1),
    )


def settled():
    sim = Simulation()
    for _ in range(300):
        sim.step()
    return sim


def header():
    fields = {
        "episode_id": "e",
        "benchmark": "b",
        "task_id": "t",
        "success": True,
        "dt": 0.01,
        "target_object": "block",
    }
    return {**fields, "target_object": "block", "joint_torque_limit_nm": (50.0, 50.0)}


def squeezed(control_steps: int, force: float = 30.0):
    """An episode in which both pads close on the block; five substeps a control step."""
    sim = settled()
    recorder = Recorder(sim.model, sim.data, scene(sim.model))
    unhook = hook_after(sim, "step", recorder.record_substep)
    sim.forced = force
    for _ in range(control_steps):
        for _ in range(5):
            sim.step()
        recorder.record_step(np.array([force]))
    return sim, recorder, unhook


def test_n_control_steps_give_n_plus_1_records_across_judged_blocks():
    _, recorder, _ = squeezed(70)
    recording = recorder.build_recording(header())
    assert recording.records == len(recording.eef_pos_m) == 71
    assert recording.action.shape == (70, 1)
    assert recording.contacts.record.max() == 70, "contacts of the last, unfinished block are there"


def test_asking_for_the_recording_in_between_changes_nothing():
    _, plain, _ = squeezed(45)
    sim = settled()
    asked = Recorder(sim.model, sim.data, scene(sim.model))
    hook_after(sim, "step", asked.record_substep)
    sim.forced = 30.0
    for _ in range(45):
        for _ in range(5):
            sim.step()
        asked.record_step(np.array([30.0]))
        asked.build_recording(header())
    one, other = (r.build_recording(header()).contacts for r in (plain, asked))
    for name in ("record", "a", "b", "force_n", "impulse_ns"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_what_rests_is_dropped_and_named_and_the_squeeze_is_recorded():
    _, recorder, _ = squeezed(60)
    assert recorder.dropped_pairs() == (("block", "table"), ("left", "right"))
    recording = recorder.build_recording(header())
    names, contacts = list(recording.roles), recording.contacts
    pairs = {(names[a], names[b]) for a, b in zip(contacts.a, contacts.b)}
    assert pairs == {("block", "left"), ("block", "right")}
    assert recording.contacts.force_n.max() > 20
    assert np.isfinite(recording.contacts.impulse_ns).all()


def test_grip_begins_when_both_pads_touch_and_names_the_body():
    _, recorder, _ = squeezed(60)
    recording = recorder.build_recording(header())
    assert not recording.gripper_contact[0]
    assert recording.gripper_contact[-1]
    assert list(recording.roles)[recording.gripped[-1]] == "block"
    assert recording.gripped[0] == -1


def test_objects_are_tracked_by_frame_with_quaternion_and_links_by_centre_of_mass():
    sim, recorder, _ = squeezed(3)
    recording = recorder.build_recording(header())
    names, positions = list(recording.roles), recording.body_pos_m
    assert [names[body] for body in recording.pos_bodies] == ["block", "door"]
    np.testing.assert_array_equal(positions[-1, 0], sim.data.xpos[sim.model.body("block_main").id])
    np.testing.assert_allclose(positions[-1, 1], [2.2, 0, 1], atol=1e-9)
    assert [names[body] for body in recording.quat_bodies] == ["block"]


def test_torque_and_state_are_those_at_the_end_of_the_control_step():
    sim, recorder, _ = squeezed(4)
    recording = recorder.build_recording(header())
    np.testing.assert_array_equal(recording.joint_torque_nm[-1], [30.0, -30.0])
    state = recording.sim_state[-1]
    np.testing.assert_array_equal(state, np.concatenate([[sim.data.time], sim.data.qpos, sim.data.qvel]))


def test_the_peak_torque_is_the_largest_magnitude_over_the_substeps_of_a_control_step():
    sim = settled()
    recorder = Recorder(sim.model, sim.data, scene(sim.model))
    hook_after(sim, "step", recorder.record_substep)
    for forces in ((10.0, 40.0, 20.0), (5.0, 6.0, 7.0)):
        for sim.forced in forces:
            sim.step()
        recorder.record_step(np.array([forces[-1]]))
    recording = recorder.build_recording(header())
    peaks = recording.channel("joint_torque_peak_nm")
    np.testing.assert_array_equal(peaks[0], np.abs(recording.joint_torque_nm[0]))  # no substep precedes record 0
    np.testing.assert_array_equal(peaks[1:], [[40.0, 40.0], [7.0, 7.0]])
    np.testing.assert_array_equal(recording.joint_torque_nm[1:], [[20.0, -20.0], [7.0, -7.0]])
    np.testing.assert_array_equal(recorder.latest_record(header()).channel("joint_torque_peak_nm"), peaks[-1:])


def test_a_hook_passes_everything_on_and_is_gone_when_undone():
    sim, calls = Simulation(), []
    unhook = hook_after(sim, "step", lambda: calls.append(sim.data.time))
    assert sim.step(times=2) == "stepped"
    assert calls == [0.004]
    unhook()
    unhook()
    assert "step" not in vars(sim)
    sim.step()
    assert len(calls) == 1


def test_a_hook_set_later_by_somebody_else_stays():
    sim, calls = Simulation(), []
    unhook = hook_after(sim, "step", lambda: None)
    hook_after(sim, "step", lambda: calls.append(1))
    unhook()
    sim.step()
    assert calls == [1]


def test_substeps_of_a_control_step_that_broke_off_are_in_no_record():
    sim, recorder, _ = squeezed(40)
    for _ in range(3):
        sim.step()
    broken = recorder.build_recording(header())
    assert broken.records == 41
    assert broken.contacts.record.max() == 40
    np.testing.assert_array_equal(broken.contacts.force_n, squeezed(40)[1].build_recording(header()).contacts.force_n)


@pytest.mark.filterwarnings("ignore")
def test_a_diverging_simulation_is_an_error_and_no_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log file where it runs
    sim, recorder, _ = squeezed(2)
    sim.data.qvel[0] = 1e12
    sim.step()
    with pytest.raises(HostError, match="unstable in control step 3"):
        recorder.record_step(np.zeros(1))
    assert recorder.build_recording(header()).records == 3


def test_flexible_bodies_are_refused():
    class Soft:
        nflex = 1

    with pytest.raises(HostError, match="flexible"):
        Recorder(Soft(), None, None)
