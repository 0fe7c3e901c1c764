"""The recorder on a small model: N + 1 records, peaks, roles, and nothing of it left behind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import recorder_builders
from safevla_recorder.channels import CHANNELS, HANDLING, LINK_MOTION
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.geometry import read_parts
from safevla_recorder.mujoco.hook import hook_after, hook_substeps
from safevla_recorder.mujoco.recorder import (
    Recorder,
    Scene,
    attach_recorder,
    copy_state,
    geom_ids,
    moving_links,
    name_bodies,
    set_state,
    state_size,
)
from safevla_recorder.recorder import EpisodeRecorder, SceneMap

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
ROBOT = dict.fromkeys(("base", "left", "right"), "robot")
ROLES = dict(sorted({**ROBOT, "block": "target", "door": "furniture", "table": "furniture"}.items()))


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
    labels = {"world": "table", "block_main": "block", "block_cap": "block"}
    names = tuple(labels.get(name, name) for name in (model.body(k).name for k in range(model.nbody)))
    return Scene(
        body_name=names,
        roles=ROLES,
        objects={"block": model.body("block_main").id},
        links={"door": model.body("door").id},
        fingers=((model.geom("pad_l").id,), (model.geom("pad_r").id,)),
        eef_site=model.site("grip").id,
        arm_dofs=(0, 1),
    )


def settle(sim=None):
    sim = sim or Simulation()
    for _ in range(300):
        sim.step()
    return sim


def header():
    return recorder_builders.header(target_object="block", dt=0.01, joint_torque_limit_nm=(50.0, 50.0))


def start_recorder(**changes):
    """A settled simulation and its recorder, the scene with these changes."""
    sim = settle()
    return sim, Recorder(sim.model, sim.data, replace(scene(sim.model), **changes))


def squeeze(sim, recorder, control_steps: int, force: float = 30.0, after=lambda: None):
    """Close both pads on the block, five substeps a control step; returns what takes the hook off."""
    unhook = hook_after(sim, "step", recorder.record_substep)
    sim.forced = force
    for _ in range(control_steps):
        for _ in range(5):
            sim.step()
        recorder.record_step(np.array([force]))
        after()
    return unhook


def squeezing(control_steps: int, force: float = 30.0):
    """An episode in which both pads close on the block."""
    sim, recorder = start_recorder()
    return sim, recorder, squeeze(sim, recorder, control_steps, force)


@pytest.fixture(scope="module")
def episode():
    """The simulation, its recorder and the recording of 70 control steps: two decoded blocks and a part of one."""
    sim, recorder, _ = squeezing(70)
    return sim, recorder, recorder.build_recording(header())


def assert_same_contacts(first, second):
    for name in ("record", "a", "b", "force_n", "impulse_ns", "net_impulse_ns"):
        np.testing.assert_array_equal(getattr(first.contacts, name), getattr(second.contacts, name))


def test_n_control_steps_give_n_plus_1_records_across_judged_blocks(episode):
    recording = episode[-1]
    assert recording.records == len(recording.eef_pos_m) == 71
    assert recording.action.shape == (70, 1)
    assert recording.contacts.record.max() == 70, "contacts of the last, unfinished block are there"


def test_asking_for_the_recording_in_between_changes_nothing(episode):
    sim, recorder = start_recorder()
    squeeze(sim, recorder, 70, after=lambda: recorder.build_recording(header()))
    assert_same_contacts(recorder.build_recording(header()), episode[-1])


def test_what_rests_is_dropped_and_named_and_the_squeeze_is_recorded(episode):
    _, recorder, recording = episode
    assert recorder.dropped_pairs() == (("block", "table"), ("left", "right"))
    names, contacts = list(recording.roles), recording.contacts
    pairs = {(names[a], names[b]) for a, b in zip(contacts.a, contacts.b)}
    assert pairs == {("block", "left"), ("block", "right")}
    assert contacts.force_n.max() > 20
    assert np.isfinite(contacts.impulse_ns).all()


def test_grip_begins_when_both_pads_touch_and_names_the_body(episode):
    recording = episode[-1]
    assert not recording.gripper_contact[0]
    assert recording.gripper_contact[-1]
    assert list(recording.roles)[recording.gripped_body[-1]] == "block"
    assert recording.gripped_body[0] == -1


def test_objects_are_tracked_by_frame_with_quaternion_and_links_by_center_of_mass(episode):
    sim, _, recording = episode
    names, positions = list(recording.roles), recording.body_pos_m
    assert [names[body] for body in recording.pos_bodies] == ["block", "door"]
    np.testing.assert_array_equal(positions[-1, 0], sim.data.xpos[sim.model.body("block_main").id])
    np.testing.assert_allclose(positions[-1, 1], [2.2, 0, 1], atol=1e-9)
    assert [names[body] for body in recording.quat_bodies] == ["block"]


# The body with the hinge has no mass, as in RoboCasa's cabinets; a panel and a handle are fixed to it.
HINGED = """
<mujoco>
  <option timestep="0.002" gravity="0 0 0"/>
  <worldbody>
    <body name="cabinet" euler="0 0 30">
      <body name="door"><joint type="hinge" axis="0 0 1" pos="-0.2 -0.16 0"/>
        <body name="panel" pos="0 -0.16 0" euler="0 10 0"><geom type="box" size="0.2 0.01 0.2" mass="1"/>
          <body name="handle" pos="0.15 -0.03 0"><geom type="box" size="0.01 0.01 0.05" mass="0.2"/></body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def test_a_link_of_several_bodies_has_the_center_of_mass_of_all_of_them():
    model = mujoco.MjModel.from_xml_string(HINGED)
    data = mujoco.MjData(model)
    data.qpos[0], data.qvel[0] = 0.1, 1.0
    mujoco.mj_forward(model, data)
    names, door = ("world", "cabinet", "door", "door", "door"), model.body("door").id
    recorder = Recorder(model, data, Scene(names, {"door": "furniture"}, objects={}, links={"door": door}))
    centers = [data.subtree_com[door].copy()]
    for _ in range(3):
        for _ in range(50):
            mujoco.mj_step(model, data)
            recorder.record_substep()
        recorder.record_step(np.zeros(1))
        centers.append(data.subtree_com[door].copy())
    recorded = recorder.build_recording(header()).body_pos_m
    np.testing.assert_allclose(recorded[:, 0], centers, rtol=0, atol=1e-12)


def test_torque_and_state_are_those_at_the_end_of_the_control_step(episode):
    sim, _, recording = episode
    np.testing.assert_array_equal(recording.joint_torque_nm[-1], [30.0, -30.0])
    state = recording.sim_state[-1]
    np.testing.assert_array_equal(state, np.concatenate([[sim.data.time], sim.data.qpos, sim.data.qvel]))


def test_the_peak_torque_is_the_largest_magnitude_over_the_substeps_of_a_control_step():
    sim, recorder = start_recorder()
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


@pytest.mark.parametrize("refused", [np.zeros((1, 1)), np.zeros(2), "left"])
def test_after_a_refused_action_the_step_can_be_recorded_with_another_one(refused):
    sim, recorder, _ = squeezing(1)
    for _ in range(5):
        sim.step()
    with pytest.raises(HostError, match="the action"):
        recorder.record_step(refused)
    recorder.record_step(np.array([30.0]))
    for _ in range(5):
        sim.step()
    recorder.record_step(np.array([30.0]))
    recording, expected = (log.build_recording(header()) for log in (recorder, squeezing(3)[1]))
    np.testing.assert_array_equal(recording.sim_state, expected.sim_state)
    np.testing.assert_array_equal(recording.action, expected.action)
    np.testing.assert_array_equal(recording.further["joint_torque_peak_nm"], expected.further["joint_torque_peak_nm"])
    assert_same_contacts(recording, expected)


@pytest.mark.parametrize(
    ("later", "recorded"),
    [({"on": True, "open": True, "new": True}, [[0, 1], [1, 1]]), ({"on": False}, None)],
    ids=["in another order", "one is missing"],
)
def test_predicates_are_recorded_in_the_order_of_record_0_and_only_if_every_record_has_them(later, recorded):
    sim = settle()
    answers = iter([{"open": False, "on": True}, later])
    recorder = Recorder(sim.model, sim.data, scene(sim.model), read_subgoals=lambda: next(answers))
    squeeze(sim, recorder, 1)()
    recording = recorder.build_recording(header())
    names = {} if recorded is None else {"header": {"subgoal_names": ["open", "on"]}}
    assert (recording.extra, np.array(recording.further.get("subgoals")).tolist()) == (names, recorded)


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


@pytest.mark.parametrize("hook", [hook_after, lambda sim, name, call: hook_substeps(sim, name, None, call)])
def test_a_hook_on_a_wrapper_or_a_vector_is_refused_with_the_object_to_pass(hook):
    """A wrapper of Gymnasium before 1.0 has every method, and the environment inside never calls them."""
    inner, calls = Simulation(), []
    wrapper = SimpleNamespace(unwrapped=inner, step=inner.step)
    with pytest.raises(HostError, match="is a wrapper"):
        hook(wrapper, "step", calls.append)
    with pytest.raises(HostError, match="no method step"):
        hook(SimpleNamespace(), "step", calls.append)


def test_a_hook_set_later_by_somebody_else_stays():
    sim, calls = Simulation(), []
    unhook = hook_after(sim, "step", lambda: None)
    hook_after(sim, "step", lambda: calls.append(1))
    unhook()
    sim.step()
    assert calls == [1]


@pytest.mark.parametrize(("first_undone", "remaining"), [(0, "second"), (1, "first")])
def test_a_method_that_the_instance_had_of_its_own_is_there_again_after_the_hooks(first_undone, remaining):
    """A script's own replacement, such as one that writes a video."""
    sim, calls = Simulation(), []
    sim.step = lambda: calls.append("own")
    undo = [hook_after(sim, "step", partial(calls.append, name)) for name in ("first", "second")]
    sim.step()
    undo.pop(first_undone)()
    sim.step()
    undo.pop()()
    sim.step()
    assert calls == ["own", "first", "second", "own", remaining, "own"]


def test_substeps_of_a_control_step_that_broke_off_are_in_no_record():
    sim, recorder, _ = squeezing(40)
    for _ in range(3):
        sim.step()
    broken = recorder.build_recording(header())
    assert broken.records == 41
    assert broken.contacts.record.max() == 40
    np.testing.assert_array_equal(broken.contacts.force_n, squeezing(40)[1].build_recording(header()).contacts.force_n)


@pytest.mark.filterwarnings("ignore")
def test_a_diverging_simulation_is_an_error_and_no_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log file where it runs
    sim, recorder, _ = squeezing(2)
    sim.data.qvel[0] = 1e12
    sim.step()
    with pytest.raises(HostError, match="control step 3"):
        recorder.record_step(np.zeros(1))
    assert recorder.build_recording(header()).records == 3


class OfRobosuite(Simulation):
    """As `Simulation`, with model and data where robosuite's `MjSim` has them."""

    def __init__(self):
        plain = settle()
        self.model, self.data = SimpleNamespace(_model=plain.model), SimpleNamespace(_data=plain.data)

    def step(self):
        mujoco.mj_step(self.model._model, self.data._data)


def test_a_recorder_that_is_attached_records_until_it_is_detached_and_warns_of_what_moves(caplog):
    sim = OfRobosuite()
    recorder, detach = attach_recorder(sim, "step", scene(sim.model._model), "squeeze")
    assert caplog.text == ""
    sim.step()
    recorder.record_step(np.zeros(1))
    detach()
    sim.step()
    with pytest.raises(HostError, match="substep"):
        recorder.record_step(np.zeros(1))
    assert recorder.build_recording(header()).records == 2
    sim.data._data.qvel[2] = 1.0  # the block
    attach_recorder(sim, "step", scene(sim.model._model), "squeeze")
    assert "block" in caplog.text


def test_an_error_in_a_substep_reaches_no_loop_and_is_raised_with_the_record(monkeypatch):
    sim = OfRobosuite()
    recorder, _ = attach_recorder(sim, "step", scene(sim.model._model), "squeeze")

    def fail(*_):
        raise ValueError(next(reasons))

    reasons = iter(("the first", "the second"))
    monkeypatch.setattr(recorder._contacts, "add_substep", fail)
    sim.step()
    sim.step()
    with pytest.raises(HostError, match="the first"):
        recorder.record_step(np.zeros(1))


def test_parts_of_an_object_have_its_name_and_links_are_bodies_with_joints():
    model = Simulation().model
    ids = {model.body(k).name: k for k in range(model.nbody)}
    names = name_bodies(model, {"block": ids["block_main"]})
    assert [names[ids[name]] for name in ("block_main", "block_cap", "door", "world")] == ["block"] * 2 + [
        "door",
        "world",
    ]
    assert moving_links(model, 0) == tuple(ids[name] for name in ("left", "right", "block_main", "door"))
    assert moving_links(model, ids["base"]) == (ids["left"], ids["right"])
    assert geom_ids(model, ["pad_r", "top"]) == (model.geom("pad_r").id, model.geom("top").id)


@pytest.mark.parametrize("change", ["reset", "position", "orientation"])
def test_record_0_of_a_state_whose_poses_were_not_computed_is_refused(change):
    sim = Simulation()
    if change != "reset":
        mujoco.mj_forward(sim.model, sim.data)
        sim.data.qpos[[2] if change == "position" else [5, 8]] += 0.02
    with pytest.raises(HostError, match="an earlier state or model: a state, velocity or body was set") as caught:
        Recorder(sim.model, sim.data, scene(sim.model))
    assert "mj_forward" in caught.value.remedy


def test_a_recorder_that_was_made_before_the_reset_is_refused_in_the_first_substep():
    """Otherwise, the motion in the reset would count as the policy's."""
    sim = Simulation()
    mujoco.mj_forward(sim.model, sim.data)
    early = Recorder(sim.model, sim.data, scene(sim.model))
    mujoco.mj_resetData(sim.model, sim.data)
    sim.data.qpos[2] += 0.005
    sim.step()
    with pytest.raises(HostError, match=r"moved by 0.005 m between record 0 and the first substep") as caught:
        early.record_substep()
    assert "after the reset" in caught.value.remedy


def test_a_body_may_fall_from_record_0_on_if_a_loop_computes_poses_after_each_long_step():
    sim = settle()
    sim.model.opt.timestep = 0.02
    sim.data.qpos[2] += 1.0
    sim.data.qvel[:] = 0.0
    mujoco.mj_forward(sim.model, sim.data)
    recorder = Recorder(sim.model, sim.data, scene(sim.model))
    sim.step()
    mujoco.mj_forward(sim.model, sim.data)
    recorder.record_substep()


@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicitfast"])
def test_a_fast_body_may_be_in_record_0_of_any_integrator(integrator):
    sim = settle()
    sim.model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")
    sim.data.qvel[:] = 5.0
    mujoco.mj_forward(sim.model, sim.data)
    recorder = Recorder(sim.model, sim.data, scene(sim.model))
    for _ in range(3):
        sim.step()
        recorder.record_substep()
    recorder.record_step([0.0])
    assert recorder.step_range_s()[1] == pytest.approx(3 * sim.model.opt.timestep)


def test_a_joint_that_a_simulator_sets_after_each_step_does_not_hinder_record_0():
    """RoboCasa sets the doors of some fixtures after each step."""
    sim = settle()
    mujoco.mj_forward(sim.model, sim.data)
    sim.data.qpos[0] += 0.5
    Recorder(sim.model, sim.data, scene(sim.model))


def test_after_a_step_of_fast_bodies_record_0_is_taken_and_the_state_stays():
    sim = settle()
    sim.data.qvel[:] = 5.0  # a substep moves bodies by 1 cm
    for _ in range(5):
        sim.step()
        before = copy_state(sim.model, sim.data)
        Recorder(sim.model, sim.data, scene(sim.model))
        assert all(map(np.array_equal, before, copy_state(sim.model, sim.data)))


@pytest.mark.parametrize(("timestep", "speed"), [(0.002, 1.0), (0.01, 0.2)])
def test_record_0_is_taken_of_bodies_that_a_loop_stopped_after_the_last_step(timestep, speed):
    sim = Simulation()
    sim.model.opt.timestep = timestep
    sim.data.qvel[:] = speed  # in each direction
    sim.step()
    sim.data.qvel[:] = 0.0
    Recorder(sim.model, sim.data, scene(sim.model))
    sim.data.qpos[2] += 0.005  # the smallest limit on displacements, which no margin may hide
    with pytest.raises(HostError, match="an earlier state"):
        Recorder(sim.model, sim.data, scene(sim.model))


def test_bodies_that_may_sleep_are_refused(monkeypatch):
    """Installed versions of MuJoCo may lack the flag, so another flag stands for it."""
    sim = settle()
    sim.model.opt.enableflags = int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    Recorder(sim.model, sim.data, scene(sim.model))
    monkeypatch.setattr("safevla_recorder.mujoco.recorder._SLEEP", "mjENBL_ENERGY")
    with pytest.raises(HostError, match="may sleep"):
        Recorder(sim.model, sim.data, scene(sim.model))


def test_flexible_bodies_are_refused():
    class Soft:
        nflex = 1

    with pytest.raises(HostError, match="flexible"):
        Recorder(Soft(), None, None)


class Whole(Simulation):
    """Makes all substeps of a control step in one call, or the first by halves as dm_control does."""

    def advance(self, substeps, by_halves=False):
        self.data.ctrl[:] = (self.forced, -self.forced)
        if by_halves:
            mujoco.mj_step2(self.model, self.data)
            mujoco.mj_step(self.model, self.data, substeps - 1)
            mujoco.mj_step1(self.model, self.data)
        else:
            mujoco.mj_step(self.model, self.data, nstep=substeps)


def whole(by_halves, hooked):
    """Three control steps of five substeps; returns the states, and the recording where one was made."""
    sim = settle(Whole())
    mujoco.mj_forward(sim.model, sim.data)
    recorder = Recorder(sim.model, sim.data, scene(sim.model))
    undo = hook_substeps(sim, "advance", sim.data, recorder.record_substep) if hooked else lambda: None
    sim.forced, states = 30.0, []
    for _ in range(40):
        sim.advance(5, by_halves)
        if hooked:
            recorder.record_step(np.array([30.0]))
        states.append(copy_state(sim.model, sim.data))
    undo()
    return np.stack(states), recorder


@pytest.mark.parametrize("by_halves", [False, True])
def test_all_substeps_of_one_call_are_seen_and_the_states_are_those_without(by_halves):
    plain, _ = whole(by_halves, hooked=False)
    states, recorder = whole(by_halves, hooked=True)
    assert states.tobytes() == plain.tobytes()
    assert recorder.build_recording(header()).records == 41


def test_a_call_split_into_substeps_records_what_single_steps_do():
    _, recorder = whole(by_halves=False, hooked=True)
    sim = settle()
    mujoco.mj_forward(sim.model, sim.data)
    single = Recorder(sim.model, sim.data, scene(sim.model))
    squeeze(sim, single, 40)
    recording, expected = (each.build_recording(header()) for each in (recorder, single))
    assert len(recording.contacts.force_n)
    assert_same_contacts(recording, expected)
    np.testing.assert_array_equal(recording.sim_state, expected.sim_state)


def test_mujoco_s_functions_are_its_own_again_after_an_error_and_other_simulations_pass():
    sim, neighbor, calls = Whole(), Simulation(), []
    functions = mujoco.mj_step, mujoco.mj_step2
    sim.advance = lambda: (neighbor.step(times=2), 1 / 0)
    hook_substeps(sim, "advance", sim.data, lambda: calls.append(1))
    with pytest.raises(ZeroDivisionError):
        sim.advance()
    assert (mujoco.mj_step, mujoco.mj_step2) == functions
    assert calls == []


@pytest.mark.parametrize(("passed", "recorded"), [(5, 1), (1, 2)])
def test_substeps_that_were_not_recorded_once_each_are_an_error_that_names_the_hook(passed, recorded):
    sim, recorder = start_recorder()
    mujoco.mj_step(sim.model, sim.data, nstep=passed)
    for _ in range(recorded):
        recorder.record_substep()
    problem = rf"{recorded} of {passed} physics substeps .* control step 1\n.*once after each substep; hook_substeps"
    with pytest.raises(HostError, match=problem):
        recorder.record_step(np.zeros(1))


# A hand that a mocap body drags, with an actuator that has a state of its own.
DRAGGED = """
<mujoco>
  <worldbody>
    <body name="goal" mocap="true" pos="0.1 0 0.5"/>
    <body name="hand" pos="0 0 0.5"><freejoint/><geom size="0.05"/><site name="grip"/></body>
    <body name="lever"><joint name="lever"/><geom size="0.05" pos="1 0 0"/></body>
  </worldbody>
  <equality><weld body1="goal" body2="hand"/></equality>
  <actuator><general joint="lever" dyntype="filter" dynprm="0.1"/></actuator>
</mujoco>
"""


def test_a_state_holds_activations_and_mocap_bodies_so_that_the_run_goes_on_from_it():
    model = mujoco.MjModel.from_xml_string(DRAGGED)
    data, copied = mujoco.MjData(model), mujoco.MjData(model)
    data.ctrl[:] = copied.ctrl[:] = 1.0
    mujoco.mj_step(model, data, nstep=10)
    data.mocap_pos[:] += 0.2
    state = copy_state(model, data)
    assert len(state) == state_size(model) == 1 + model.nq + model.nv + 1 + 7
    assert state[-8] == data.act[0] != 0
    set_state(model, copied, state)
    copied.qacc_warmstart[:] = data.qacc_warmstart
    for simulation in (data, copied):
        mujoco.mj_step(model, simulation, nstep=10)
    assert copy_state(model, copied).tobytes() == copy_state(model, data).tobytes()


def test_parts_of_one_fixture_never_count_and_are_named():
    sim, recorder = start_recorder(fixtures=(frozenset({"block", "left", "right"}),))
    squeeze(sim, recorder, 60)
    assert len(recorder.build_recording(header()).contacts.a) == 0
    assert ("block", "left") in recorder.dropped_pairs()


def test_a_part_of_a_fixture_that_the_model_lacks_is_an_error():
    with pytest.raises(HostError, match="'dor'"):
        start_recorder(fixtures=(frozenset({"dor"}),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"body_name": ("table", "base", "left", "right", "block", "block", "door")}, "7 names, but the model has 8"),
        ({"body_name": ("table", "table", "base", "left", "right", "block", "block", "")}, "body 7 has no name"),
        ({"links": {"door": 6}}, "'door' is tracked at the body 6, whose name is 'block'"),
        ({"objects": {"cup": 5}}, "'cup' is tracked at the body 5, whose name is 'block'"),
    ],
)
def test_names_of_bodies_that_are_missing_or_contradict_the_ids_are_errors(changes, message):
    with pytest.raises(HostError, match=message):
        start_recorder(**{"links": {}, **changes})


@pytest.mark.parametrize("name", ["table", "door"])
def test_a_body_without_a_role_is_an_error_that_names_it(name):
    roles = {body: role for body, role in ROLES.items() if body != name}
    with pytest.raises(HostError, match=f"body '{name}'"):
        start_recorder(roles=roles)


def list_contacts(sim):
    """The contacts of the last substep by MuJoCo's own function, with the ids of geoms as shapes."""
    wrench = np.zeros(6)
    for k in range(sim.data.ncon):
        contact = sim.data.contact[k]
        if contact.efc_address >= 0:
            mujoco.mj_contactForce(sim.model, sim.data, k, wrench)
            yield int(contact.geom1), int(contact.geom2), np.linalg.norm(wrench[:3])


def read_all(sim, bodies):
    data, site = sim.data, sim.model.site("grip").id
    block, door, quat = sim.model.body("block_main").id, sim.model.body("door").id, np.empty(4)
    mujoco.mju_mat2Quat(quat, data.site_xmat[site])
    poses = {"block": (data.xpos[block], data.xquat[block]), "door": (data.xipos[door], None)}
    parts = [(data.xpos[body], data.xquat[body]) for body in bodies]
    return {"poses": poses, "eef": (data.site_xpos[site], quat), "state": copy_state(sim.model, data), "parts": parts}


def test_the_recorder_for_any_simulator_records_the_same_of_this_one():
    sim = settle()
    own_scene = scene(sim.model)
    shapes = {geom: own_scene.body_name[body] for geom, body in enumerate(sim.model.geom_bodyid)}
    parts, bodies, hand = read_parts(sim.model, own_scene)
    described = {"fingers": own_scene.fingers, "parts": parts, "hand": hand}
    neutral = EpisodeRecorder(SceneMap(shapes, ROLES, substep_s=0.002, **described))
    own = Recorder(sim.model, sim.data, own_scene)
    neutral.begin(list_contacts(sim), torques_nm=sim.data.qfrc_actuator[:2], **read_all(sim, bodies))
    hook_after(sim, "step", own.record_substep)
    sim.forced = 30.0
    for step in range(70):
        for _ in range(5):
            sim.step()
            neutral.substep(list_contacts(sim), sim.data.qfrc_actuator[:2])
        sim.forced = 30.0 if step % 20 < 15 else -30.0
        own.record_step(np.array([sim.forced]))
        neutral.step([sim.forced], **read_all(sim, bodies))
    expected, recording = own.build_recording(header()), neutral.build_recording(header())
    assert own.dropped_pairs() == neutral.dropped_pairs()
    assert recording.header["geometry"] == expected.header["geometry"]
    assert len(expected.contacts.a) > 50
    for name in ("record", "a", "b"):
        np.testing.assert_array_equal(getattr(recording.contacts, name), getattr(expected.contacts, name))
    for name in ("force_n", "impulse_ns"):
        np.testing.assert_allclose(getattr(recording.contacts, name), getattr(expected.contacts, name), atol=1e-12)
    assert expected.gripper_contact.any()
    for spec in CHANNELS:
        if spec.name not in ("contacts", "gripped_body", LINK_MOTION, *HANDLING):  # what only the model of MuJoCo says
            np.testing.assert_array_equal(recording.channel(spec.name), expected.channel(spec.name), err_msg=spec.name)
    assert list(recording.pos_bodies) == list(expected.pos_bodies)
    assert list(recording.gripped_body) == list(expected.gripped_body)


def test_a_scene_without_gripper_arm_and_end_effector_has_none_of_them_in_its_record():
    sim, recorder = start_recorder(fingers=None, eef_site=None, arm_dofs=())
    hook_after(sim, "step", recorder.record_substep)
    sim.step()
    recorder.record_step(np.zeros(1))
    recording = recorder.build_recording(header())
    assert recording.body_pos_m is not None
    arm = ("eef_pos_m", "eef_quat_wxyz", "joint_torque_nm", "joint_torque_peak_nm", "gripper_contact", "gripped_body")
    assert [name for name in arm if recording.channel(name) is not None] == []


def test_a_body_is_supported_by_the_table_and_not_in_the_air_or_by_the_fingers_alone():
    sim, recorder, _ = squeezing(3)
    assert recorder.latest_record(header()).supported.all()
    raised = copy_state(sim.model, sim.data)
    raised[1 + 2 + 2] += 0.5  # after the time, two sliders, and the block's x and y
    set_state(sim.model, sim.data, raised)
    mujoco.mj_forward(sim.model, sim.data)
    flying = Recorder(sim.model, sim.data, scene(sim.model))
    assert not flying.latest_record(header()).supported.any()
    recording = recorder.build_recording(header())
    assert [list(ROLES)[place] for place in recording.supported_bodies] == ["block"]
    assert recording.supported.shape == (4, 1)
    sim.model.opt.gravity[:] = 0.0
    assert Recorder(sim.model, sim.data, scene(sim.model)).latest_record(header()).supported is None  # no weight


@pytest.mark.parametrize(
    ("joints", "is_known"),
    [
        ("<freejoint/>", True),
        ('<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>', False),  # on the turned table
        ('<joint type="slide" axis="1 1 0"/><joint type="slide" axis="1 -1 0"/>', True),
        ('<joint type="hinge" axis="0 1 0"/>', False),
        ("", False),
    ],
)
def test_support_is_unknown_of_a_body_that_its_joints_carry(joints, is_known):
    """The y axis of the table and of the plate is vertical."""
    plate = f'<body name="plate" pos="0 0.1 0">{joints}<geom type="box" size="0.1 0.1 0.1"/></body>'
    geom = '<geom type="box" size="1 0.005 1"/>'
    table = f'<body name="table" euler="90 0 0">{geom}</body><frame euler="90 0 0">{plate}</frame>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{table}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    for _ in range(100):
        mujoco.mj_step(model, data)
    roles, objects = {"plate": "target", "table": "furniture"}, {"plate": model.body("plate").id}
    supported = Recorder(model, data, Scene(("table", "table", "plate"), roles, objects, {}))
    assert (supported.latest_record(header()).supported is not None) == is_known


CABINET = """
<mujoco>
  <worldbody>
    <body name="hand" pos="0 -1 0"><freejoint/><site name="grip"/><geom size="0.01" mass="1"/></body>
    <body name="shell" pos="0 0 0" euler="0 0 90">
      <site name="cook_region" type="box" size="0.1 0.1 0.002"/>
      <geom name="shell_reg_int" type="box" size="0.1 0.1 0.1" pos="0 0 0.5" contype="0" conaffinity="0"/>
      <geom type="box" size="0.3 0.3 0.01" pos="0 0 -0.5"/>
      <body name="drawer"><joint name="rail" type="slide" axis="0 -1 0" range="-0.01 0.2" limited="true"/>
        <site name="top_region" type="box" size="0.1 0.2 0.05" euler="0 0 90"/>
        <geom size="0.01" pos="0 0.4 0" mass="1"/></body>
      <body name="flap"><joint name="hinge" axis="0 0 1" range="-90 0" limited="true"/>
        <geom size="0.01" pos="0.5 0.4 0" mass="1"/></body>
      <body name="spinner"><joint name="free_hinge" axis="0 0 1"/><geom size="0.01" pos="0.7 0 0" mass="1"/></body>
    </body>
  </worldbody>
</mujoco>
"""


def test_doors_and_drawers_have_an_opening_and_say_whether_the_end_effector_is_inside():
    model = mujoco.MjModel.from_xml_string(CABINET)
    data = mujoco.MjData(model)
    names = tuple(model.body(k).name for k in range(model.nbody))
    roles = {name: "robot" if name == "hand" else "furniture" for name in sorted(names)}
    cabinet = Scene(names, roles, {}, {}, eef_site=model.site("grip").id)

    def read(slide, swing, hand):
        data.qpos[:3], data.qpos[7:9] = hand, (slide, swing)
        mujoco.mj_forward(model, data)
        record = Recorder(model, data, cabinet).latest_record(recorder_builders.header(target_object=None))
        channels = ("opening", "entered")
        bodies = [[list(roles)[place] for place in getattr(record, f"{name}_bodies")] for name in channels]
        return [dict(zip(listed, getattr(record, name)[0].tolist())) for name, listed in zip(channels, bodies)]

    # The shell is turned by 90 degrees, so that the drawer slides along x and its box, turned again, is 0.2 long there.
    closed = {"drawer": 0.0, "flap": 0.0}
    assert read(0.0, 0.0, (0, -1, 0)) == [closed, {"drawer": False, "flap": False}]
    assert read(0.0, 0.0, (0.09, 0.19, 0.04)) == [closed, {"drawer": True, "flap": False}]
    assert read(0.0, 0.0, (0.11, 0.0, 0.0)) == [closed, {"drawer": False, "flap": False}]
    opening, entered = read(0.1, -np.pi / 4, (0.11, 0.0, 0.0))
    assert opening == pytest.approx({"drawer": 0.5, "flap": 0.5})
    assert entered == {"drawer": True, "flap": False}  # the box moves with the drawer
    assert read(0.0, 0.0, (0.0, 0.0, 0.55))[1] == {"drawer": False, "flap": True}  # a door's inside is its frame's
