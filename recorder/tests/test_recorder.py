"""The recorder for any simulator: fed by MuJoCo it records what MuJoCo's own does; a family not told is not there."""

from __future__ import annotations

import numpy as np
import pytest

from recorder_builders import header
from safevla_recorder.errors import HostError
from safevla_recorder.geometry import ALL_MOTION, Part
from safevla_recorder.recorder import Arm, EpisodeRecorder, SceneMap

ROLES = {"table": "furniture", "box": "target", "left": "robot", "right": "robot"}
SHAPES = {("table", 0): "table", ("box", 0): "box", ("hand", 1): "left", ("hand", 2): "right"}
TABLE, BOX, LEFT, RIGHT = SHAPES
UPRIGHT = (1.0, 0.0, 0.0, 0.0)
HEADER = header(dt=0.02, target_object="box")


def scene(**changes):
    return SceneMap(**{"shapes": SHAPES, "roles": ROLES, "substep_s": 0.01, "fingers": ((LEFT,), (RIGHT,)), **changes})


def poses(height=0.0):
    return {"box": ((0.0, 0.0, height), UPRIGHT)}


def squeeze(changed=None, **families):
    """Two control steps of two substeps: the box rests, then both fingers press it while it is off the table."""
    recorder = EpisodeRecorder(scene(**changed or {}))
    recorder.begin([(BOX, TABLE, 5.0), (LEFT, RIGHT, 1.0)], poses=poses(), **families)
    for contacts in ([(TABLE, BOX, 6.0)], [(TABLE, BOX, 7.0), (LEFT, BOX, 2.0)]):
        recorder.substep(contacts)
    recorder.step([0.5], poses=poses(), **families)
    for contacts in ([(LEFT, BOX, 3.0), (LEFT, BOX, 4.0)], [(BOX, TABLE, 8.0), (LEFT, BOX, 1.0), (BOX, RIGHT, 9.0)]):
        recorder.substep(contacts)
    recorder.step([1.0], poses=poses(0.1), **families)
    return recorder


def rows(recording):
    names, listed = list(recording.roles), recording.contacts
    pairs = zip(listed.record.tolist(), listed.a, listed.b, listed.force_n.tolist(), listed.impulse_ns.tolist())
    return [(record, names[a], names[b], force, round(impulse, 9)) for record, a, b, force, impulse in pairs]


def test_peaks_impulses_and_grip_follow_the_rules_of_static_contacts():
    recording = squeeze().build_recording(HEADER)
    assert rows(recording) == [
        (1, "box", "left", 2.0, 0.02),
        (2, "box", "left", 4.0, 0.08),
        (2, "box", "right", 9.0, 0.09),
        (2, "box", "table", 8.0, 0.08),  # it was apart for a substep
    ]
    assert recording.gripper_contact.tolist() == [False, False, True]
    assert [list(recording.roles)[place] for place in recording.gripped_body[2:]] == ["box"]
    assert recording.action.tolist() == [[0.5], [1.0]]
    assert squeeze().dropped_pairs() == (("box", "table"), ("left", "right"))


def test_what_is_not_given_is_not_recorded():
    recording = squeeze({"fingers": None}).build_recording(HEADER)
    absent = ("eef_pos_m", "eef_quat_wxyz", "joint_torque_nm", "sim_state", "gripper_contact", "gripped_body")
    assert [name for name in absent if getattr(recording, name) is not None] == []
    assert recording.channel("joint_torque_peak_nm") is None
    recorder = EpisodeRecorder(scene(fingers=None))
    recorder.begin(None, poses={}, eef=((0, 0, 0), None), state=[1.0])
    recorder.substep()
    recorder.step([0.0], poses={}, eef=((0, 0, 1), None), state=[2.0])
    recording = recorder.build_recording(HEADER)
    assert (recording.contacts, recording.body_pos_m, recording.eef_quat_wxyz) == (None, None, None)
    assert recording.eef_pos_m.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert recorder.latest_record(HEADER).sim_state.tolist() == [[2.0]]
    assert recorder.dropped_pairs() == ()


def test_sub_goals_are_booleans_in_the_order_of_record_0_and_an_episode_has_the_same_throughout():
    recorder = EpisodeRecorder(scene(fingers=None))
    recorder.begin(None, poses=poses(), subgoals={"on box table": False, "open drawer": True})
    recorder.substep()
    recorder.step([0.0], poses=poses(), subgoals={"open drawer": False, "on box table": True})
    recording = recorder.build_recording(HEADER)
    assert recording.further["subgoals"].tolist() == [[False, True], [True, False]]
    assert recording.extra == {"header": {"subgoal_names": ["on box table", "open drawer"]}}
    assert recorder.latest_record(HEADER).further["subgoals"].tolist() == [[True, False]]
    recorder.substep()
    with pytest.raises(HostError, match="sub-goal open drawer"):
        recorder.step([0.0], poses=poses(), subgoals={"on box table": True})


def test_torques_are_sampled_at_the_last_substep_and_their_peaks_taken_over_all():
    recorder = EpisodeRecorder(scene())
    recorder.begin([], poses=poses(), torques_nm=[1.0, -2.0])
    for torques in ([5.0, -9.0], [-6.0, 3.0]):
        recorder.substep([], torques)
    recorder.step([0.0], poses=poses())
    recording = recorder.build_recording(HEADER)
    assert recording.joint_torque_nm.tolist() == [[1.0, -2.0], [-6.0, 3.0]]
    assert recording.channel("joint_torque_peak_nm").tolist() == [[1.0, 2.0], [6.0, 9.0]]


def test_parts_of_one_fixture_never_count():
    recorder = squeeze({"fixtures": [("box", "left")]})
    assert {row[1:3] for row in rows(recorder.build_recording(HEADER))} == {("box", "right"), ("box", "table")}
    assert ("box", "left") in recorder.dropped_pairs()


def test_the_newest_record_is_the_last_of_the_whole():
    recorder = squeeze(eef=((1, 2, 3), UPRIGHT), state=[4.0])
    newest, whole = recorder.latest_record(HEADER), recorder.build_recording(HEADER)
    assert rows(newest) == [(0, *row[1:]) for row in rows(whole) if row[0] == 2]
    np.testing.assert_array_equal(newest.body_pos_m, whole.body_pos_m[-1:])
    assert newest.gripped_body.tolist() == whole.gripped_body[-1:].tolist()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda recorder: recorder.begin([(BOX, "shelf", 1.0)], poses=poses()), "`shapes`"),
        (lambda recorder: recorder.substep(), "contacts: differs from"),
        (lambda recorder: recorder.substep([], [1.0]), "torques: differs from"),
        (lambda recorder: recorder.substep([(BOX, TABLE, 1.0), (BOX, "shelf", 1.0)]), "scene's `shapes`"),
    ],
)
def test_after_a_refused_beginning_or_substep_nothing_is_added_until_an_episode_begins_again(call, problem):
    """A caught error would else leave out what that substep did to forces and impulses, and nobody would know."""
    recorder = squeeze()
    recorder.substep([(LEFT, BOX, 3.0)])
    with pytest.raises(HostError, match=problem):
        call(recorder)
    for addition in (lambda: recorder.substep([]), lambda: recorder.step([0.0], poses=poses())):
        with pytest.raises(HostError, match=r"has begun\n.*settling"):
            addition()
    recorder.begin([], poses=poses())
    assert recorder.build_recording(HEADER).records == 1
    recorder.substep([])
    recorder.step([0.0], poses=poses())


def test_a_control_step_in_whose_middle_the_records_were_read_cannot_be_added():
    """Decoding empties the list of contacts, that of the step that has not ended too."""
    recorder = squeeze()
    recorder.substep([(LEFT, BOX, 3.0)])
    assert rows(recorder.build_recording(HEADER)) == rows(squeeze().build_recording(HEADER))
    recorder.substep([(LEFT, BOX, 3.0)])
    with pytest.raises(HostError, match="control step 3"):
        recorder.step([0.0], poses=poses())
    whole = squeeze()
    whole.build_recording(HEADER)
    whole.substep([])
    whole.step([0.0], poses=poses())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"roles": {**ROLES, "box": "toy"}}, "role 'toy'"),
        ({"roles": {"table": "furniture"}}, "box has no"),
        ({"fixtures": [("box", "dor")]}, "dor has no"),
        ({"parts": [Part("table"), Part("lamp"), Part("")]}, "lamp has no"),
        ({"forces": ()}, "forces are"),
        ({"forces": ("force_n", "torque_nm")}, "forces are"),
        ({"fingers": ((LEFT,), (("hand", 3),))}, r"shape \('hand', 3\)"),
    ],
)
def test_a_scene_that_cannot_be_is_an_error(change, problem):
    with pytest.raises(HostError, match=problem):
        scene(**change)


def test_what_differs_from_record_0_later_is_an_error_that_names_it():
    recorder = EpisodeRecorder(scene())
    for call in (recorder.dropped_pairs, lambda: recorder.substep([]), lambda: recorder.step([0], poses={})):
        with pytest.raises(HostError, match="no episode has"):
            call()
    with pytest.raises(HostError, match="no role"):
        recorder.begin([], poses={"cup": ((0, 0, 0), UPRIGHT)})
    recorder.begin([], poses=poses(), state=[1.0])
    with pytest.raises(HostError, match="control step 1"):
        recorder.step([0.0], poses=poses(), state=[1.0])
    recorder.substep([])
    for wrong in (
        {"poses": poses()},
        {"poses": poses(), "state": [1.0, 2.0]},
        {"poses": {"box": ((0, 0, 0), None)}, "state": [1.0]},
        {"poses": poses(), "state": [1.0], "eef": ((0, 0, 0), UPRIGHT)},
    ):
        with pytest.raises(HostError, match="from record 0"):
            recorder.step([0.0], **wrong)


@pytest.mark.parametrize(
    ("forces", "force"),
    [
        (("force_n",), (0.0, 0.0, 1.0)),
        (("force_n",), None),
        (("force_n",), 1j),
        (("net_force_n",), 1.0),
        (("net_force_n",), (1.0, None, 0.0, 0.0)),
        (("force_n", "net_force_n"), (1.0, 0.0)),
    ],
)
def test_a_force_is_one_number_or_a_vector_as_the_scene_says(forces, force):
    with pytest.raises(HostError, match="force of a contact"):
        EpisodeRecorder(scene(forces=forces)).begin([(BOX, TABLE, force)], poses=poses())


class Tensor:
    """A number whose `size` is a method, as in torch."""

    def __init__(self, number):
        self.number = number

    def size(self):
        return ()

    def __array__(self, dtype=None, copy=None):
        return np.array(self.number, dtype=dtype)

    def __float__(self):
        return self.number


@pytest.mark.parametrize("read", [float, Tensor, np.float32, lambda force: np.array([force])])
def test_the_force_of_a_contact_is_a_number_of_any_library(read):
    recorder = EpisodeRecorder(scene())
    recorder.begin([], poses=poses())
    recorder.substep([(LEFT, BOX, read(2.0))])
    recorder.step([0.0], poses=poses())
    assert recorder.build_recording(HEADER).contacts.force_n.tolist() == [2.0]


@pytest.mark.parametrize(("forces", "peak"), [(("force_n", "net_force_n"), 4.0), (("net_force_n",), 5.0)])
def test_vectors_between_two_bodies_add_up_in_each_substep_whichever_shape_is_named_first(forces, peak):
    recorder = EpisodeRecorder(scene(forces=forces))
    recorder.begin([], poses=poses())
    recorder.substep([(LEFT, BOX, (3.0, 0.0, 0.0)), (BOX, LEFT, (0.0, 4.0, 0.0)), (RIGHT, BOX, (0.0, 0.0, 2.0))])
    recorder.substep([(BOX, LEFT, (-1.0, 0.0, 0.0))])
    recorder.step([0.0], poses=poses())
    recorder.substep([(LEFT, BOX, (0.0, 0.0, 7.0))])
    recorder.step([0.0], poses=poses())
    contacts = recorder.build_recording(HEADER).contacts
    assert (contacts.record.tolist(), contacts.a.tolist(), contacts.b.tolist()) == ([1, 1, 2], [0, 0, 0], [1, 2, 1])
    assert contacts.force_n.tolist() == [peak, 2.0, 7.0]
    assert contacts.net_force_n.tolist() == [5.0, 2.0, 7.0]
    np.testing.assert_allclose(contacts.impulse_ns, [0.08, 0.02, 0.07])
    np.testing.assert_allclose(contacts.net_impulse_ns, [0.06, 0.02, 0.07])


def test_an_action_of_complex_numbers_is_refused():
    recorder = squeeze()
    recorder.substep([])
    with pytest.raises(HostError, match="real numbers"):
        recorder.step([1j], poses=poses())
    assert recorder.build_recording(HEADER).records == 3


@pytest.mark.parametrize("action", [0.5, [[0.5]], [0.5, 1.0], [[0.5], [1.0, 2.0]], "up"])
def test_an_action_that_is_no_list_as_long_as_the_first_is_refused_in_its_step(action):
    recorder = squeeze()
    recorder.substep([])
    with pytest.raises(HostError, match="the action: "):
        recorder.step(action, poses=poses())
    recorder.step([0.5], poses=poses())


@pytest.mark.parametrize(
    ("readings", "problem"),
    [
        ({"poses": {"box": ((0, 0, 0, 1), UPRIGHT)}}, r"position of box: .*\[4\], expected \[3\]"),
        ({"poses": {"box": ((0, 0, 0), np.eye(3))}}, r"orientation of box: .*\[3, 3\], expected \[4\]"),
        ({"poses": {"box": ((0, 0, 0), (0, 0, 0, 0))}}, "orientation of box is a quaternion of zeros"),
        ({"poses": {"box": ((0, 0, 0), (1, 0, 0, np.nan))}}, "orientation of box has NaN"),
        ({"poses": {"box": ((np.nan, 0, 0), UPRIGHT)}}, "position of box has NaN"),
        ({"poses": {"box": (None, UPRIGHT)}}, "pose of box has no position"),
        ({"poses": {"box": np.arange(7.0)}}, "pose of box is not a pair"),
        ({"eef": np.arange(7.0)}, "pose of the end effector is not a pair"),
        ({"eef": ((0, 0), UPRIGHT)}, "position of the end effector"),
        ({"torques_nm": [[1.0, 2.0]]}, "the torques: "),
        ({"state": [[1.0]]}, "the state: "),
        ({"state": [[1.0], [1.0, 2.0]]}, "the state: not"),
    ],
)
def test_a_reading_of_another_shape_is_refused_in_record_0(readings, problem):
    with pytest.raises(HostError, match=problem):
        EpisodeRecorder(scene()).begin([], **{"poses": poses(), **readings})


def test_the_newest_record_has_the_contacts_of_its_instant_and_no_fields_of_the_whole():
    recorder = EpisodeRecorder(scene())
    recorder.begin([(LEFT, BOX, 1.0)], poses=poses(), subgoals={"open": True})
    newest = recorder.latest_record(HEADER)
    assert (newest.records, newest.extra, newest.contacts.record.tolist()) == (1, {}, [0])
    assert np.isnan(newest.contacts.impulse_ns).all()
    assert newest.action is None


def test_parts_have_a_pose_in_every_record_and_move_from_that_of_record_0():
    recorder = EpisodeRecorder(scene(parts=[Part("table"), Part("left", 0, ALL_MOTION)], hand=[1]))
    at, half = (1.0, 2.0, 3.0), 0.125
    turned = (np.cos(half), 0.0, 0.0, np.sin(half))
    with pytest.raises(HostError, match="1 poses of parts"):
        recorder.begin([], poses=poses(), parts=[(at, UPRIGHT)])
    recorder.begin([], poses=poses(), parts=[(at, UPRIGHT), (at, UPRIGHT)])
    for quat in (turned, tuple(-number for number in turned)):  # the same turn
        recorder.substep([])
        recorder.step([0.0], poses=poses(), parts=[(at, UPRIGHT), ((1.5, 2.0, 3.0), quat)])
    motion = recorder.build_recording(HEADER).further["link_motion"]
    moved = [0.0, 0.0, 0.25, 0.5, 0.0, 0.0]
    np.testing.assert_allclose(motion, [[0.0] * 6, moved, moved], atol=1e-6)


@pytest.mark.parametrize("parts", [[Part("left", -1, ALL_MOTION)], [Part("left")]])
def test_without_known_poses_or_parts_that_move_there_is_no_motion(parts):
    start = np.nan if parts[0].motion else 0.0
    recorder = EpisodeRecorder(scene(parts=parts))
    recorder.begin([], poses=poses(), parts=[((start, 0.0, 0.0), UPRIGHT)])
    recording = recorder.build_recording(HEADER)
    assert "link_motion" not in recording.further
    assert (recording.header["geometry"] is None) == (len(parts[0].motion) > 0)


# Several arms

PALMS = {f"{side}_{finger}": "robot" for side in ("a", "b") for finger in ("thumb", "index")}
OF_ARMS = {"shapes": {**SHAPES, **{name: name for name in PALMS}}, "roles": {**ROLES, **PALMS}, "fingers": None}
ARMS = {side: Arm((f"{side}_thumb", f"{side}_index"), ((f"{side}_thumb",), (f"{side}_index",))) for side in ("a", "b")}


def record_arms(arms=ARMS, joints=(2, 3), **changes):
    recorder = EpisodeRecorder(scene(**{**OF_ARMS, **changes}), arms=arms)
    still = {"a": ((0.0, 0.0, 1.0), UPRIGHT), "b": ((0.0, 5.0, 2.0), UPRIGHT)}
    torques = {name: np.arange(1.0, 1 + count) * (1 if name == "a" else 10) for name, count in zip(still, joints)}
    recorder.begin([("a_thumb", "b_thumb", 1.0)], poses=poses(), eef=still, torques_nm=torques)
    recorder.substep(
        [("b_thumb", BOX, 2.0), ("b_index", BOX, 3.0), ("a_thumb", BOX, 1.0), ("a_thumb", "b_index", 4.0)], torques
    )
    recorder.substep([("b_thumb", BOX, 2.0), ("b_index", BOX, 3.0), ("a_thumb", "a_index", 9.0)], torques)
    recorder.step([0.5], poses=poses(), eef=still)
    return recorder


def test_each_arm_has_its_own_hand_grip_and_torques_and_arm_against_arm_counts_from_record_0():
    recording = record_arms().build_recording(HEADER)
    assert recording.eef_pos_m.tolist() == [[0, 0, 1, 0, 5, 2]] * 2
    assert recording.eef_quat_wxyz.shape == (2, 8)
    assert recording.joint_torque_nm.tolist() == [[1, 2, 10, 20, 30]] * 2
    names = list(recording.roles)
    assert [[names[k] if k >= 0 else None for k in row] for row in recording.gripped_body] == [
        [None, None],
        [None, "box"],
    ]
    assert recording.gripper_contact.tolist() == [[False, False], [False, True]]
    touching = [(record, a, b) for record, a, b, *_ in rows(recording) if "box" not in (a, b)]
    assert touching == [(0, "a_thumb", "b_thumb"), (1, "a_thumb", "b_index")]
    assert ("a_index", "a_thumb") in record_arms().dropped_pairs()
    header = recording.header
    assert (header["arms"], header["arm_joints"], header["schema_version"]) == (("a", "b"), (2, 3), 2)
    assert header["arm_bodies"] == {name: name[0] for name in sorted(PALMS)}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"arms": {"a": ARMS["a"]}}, "the arms are"),
        ({"arms": ["a", "b"]}, "not a mapping"),
        ({"arms": {"a": ("a_palm",), "b": ("b_palm",)}}, "not a mapping"),
        ({"arms": {"a": ARMS["a"], "b": Arm(("a_thumb",))}}, "a_thumb is not"),
        ({"arms": {"a": ARMS["a"], "b": Arm(("table",))}}, "table is not"),
        ({"fingers": ((LEFT,), (RIGHT,))}, "have fingers"),
        ({"arms": {0: ARMS["a"], 1: ARMS["b"]}}, "the arms are"),
        ({"arms": {"a": ARMS["a"], "b": Arm(ARMS["b"].bodies, ARMS["a"].fingers)}}, "finger 'a_thumb'"),
        ({"arms": {"a": ARMS["a"], "b": Arm(ARMS["b"].bodies, (("b_thumb",),) * 2)}}, "finger 'b_thumb'"),
        ({"arms": {"a": ARMS["a"], "b": Arm(ARMS["b"].bodies, (("b_thumb",), (BOX,)))}}, "not in exactly one"),
    ],
)
def test_arms_that_contradict_the_scene_are_refused(wrong, problem):
    with pytest.raises(HostError, match=problem):
        record_arms(**wrong)


def test_poses_and_torques_must_be_given_by_arm_and_stay_those_of_record_0():
    recorder = EpisodeRecorder(scene(**OF_ARMS), arms=ARMS)
    with pytest.raises(HostError, match="end effectors are"):
        recorder.begin([], poses=poses(), eef=((0.0, 0.0, 1.0), None))
    with pytest.raises(HostError, match="torques are"):
        recorder.begin([], poses=poses(), torques_nm={"a": [1.0]})
    for pose in (None, (None, UPRIGHT), ((0.0, 0.0, 1.0), None), ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0))):
        eef = {"a": ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0, 0.0)), "b": pose}  # 5 + 3 numbers are not two orientations
        with pytest.raises(HostError, match="different or wrong sizes"):
            recorder.begin([], poses=poses(), eef=eef)
    for torques in (1.0, None, [[1.0]]):
        with pytest.raises(HostError, match="torques of an arm"):
            recorder.begin([], poses=poses(), torques_nm={"a": [1.0], "b": torques})
    recorder = record_arms()
    with pytest.raises(HostError, match="joints other than"):
        recorder.substep([], {"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0]})
    with pytest.raises(HostError, match="need named arms"):
        EpisodeRecorder(scene()).begin([], poses=poses(), eef={"a": ((0, 0, 0), None)})
    with pytest.raises(HostError, match="need named arms"):
        EpisodeRecorder(scene()).begin([], poses=poses(), torques_nm={"a": [1.0]})
