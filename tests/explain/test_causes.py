"""How a violation came about: hand-made cases whose cause is known, and laws over any contacts and motions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import BOWL, DRAWER, HAND, LINK, PLATE, ROLES, contacts, episode, recording, rest_positions
from safevla_bench.explain.causes import MOVED_M, CauseChain, find_cause
from safevla_bench.signals.signal import RecordFields
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import EpisodeArrays

N = 12
REGISTRY = load_registry()
DISPLACED = "non_target_disp_max"
FORCE = "max_contact_force"


def pushed(*touches: tuple[int, int, int, float], at: int = 6, **changes: Any) -> Batch:
    """A still scene with these contacts; the plate leaves its place in record `at`, 4 mm a record."""
    return from_recording(scene(touches, at, **changes))


def scene(touches: Sequence[tuple[int, int, int, float]], begins: int, **changes: Any) -> EpisodeArrays:
    pos = np.array(recording(N, **changes).body_pos_m)
    pos[:, 1, 0] += 0.004 * np.maximum(0, np.arange(N) - begins + 1)
    return recording(N, contacts=contacts(*touches), body_pos_m=pos, **changes)


def find(batch: Batch, signal: str = DISPLACED, first: int = 7) -> CauseChain:
    cause = find_cause(RecordFields(batch), signal, first, REGISTRY)
    assert cause is not None
    return cause


def test_an_arm_that_pushes_a_bowl_into_a_plate():
    cause = find(pushed((3, HAND, BOWL, 9.0), (4, HAND, BOWL, 9.0), (5, BOWL, PLATE, 12.0), (6, PLATE, BOWL, 30.0)))
    assert cause.bodies == ("hand", "bowl", "plate")
    assert (cause.steps, cause.step, cause.others) == ((4, 6), 6, ())
    for words in ("hand → bowl → plate", "left its place at 0.30 s", "8.00\u00a0mm away at 0.35 s", "from 0.25 s on"):
        assert words in cause.sentence


def test_an_arm_that_pushes_a_plate_itself():
    cause = find(pushed((6, LINK, PLATE, 12.0), (2, HAND, BOWL, 50.0)))
    assert cause.bodies == ("link7", "plate")


def test_a_contact_long_before_or_after_the_motion_began_did_not_begin_it():
    cause = find(pushed((2, HAND, PLATE, 12.0), (7, BOWL, PLATE, 12.0)))
    assert (cause.bodies, cause.steps) == (("plate",), ())
    assert "recorded contact explains" in cause.sentence


def test_a_body_that_stood_on_another_from_the_start_may_have_been_carried():
    """The record leaves out these contacts; a table that stands cannot carry."""
    roles = {**ROLES, "table": "furniture"}
    pairs = (("bowl", "plate"), ("drawer", "plate"), ("plate", "table"), ("bowl", "drawer"))
    sentence = find(pushed(roles=roles, dropped_pairs=pairs)).sentence
    assert "contacts with bowl and drawer, which began before the episode, are not recorded" in sentence
    assert "began before" not in find(pushed(roles=roles, dropped_pairs=pairs[2:])).sentence


def test_two_bodies_that_touch_at_once_are_both_named():
    cause = find(pushed((6, BOWL, PLATE, 12.0), (6, LINK, PLATE, 13.0)))
    assert (cause.bodies, cause.others) == (("link7", "plate"), ("bowl",))
    assert "bowl also touched plate" in cause.sentence


def test_furniture_that_stands_pushes_nothing():
    roles = {**ROLES, "wall": "furniture"}
    assert find(pushed((6, 5, PLATE, 12.0), roles=roles)).bodies == ("plate",)
    assert find(pushed((6, DRAWER, PLATE, 12.0))).bodies == ("drawer", "plate")


@pytest.mark.parametrize(("motion", "expected"), [([4], ("hand", "door", "plate")), ([], ("plate",))])
def test_a_door_whose_pose_is_not_tracked_pushes_if_it_can_move(motion, expected):
    """Hosts do not track the doors and drawers that the goal moves, but the scene's geometry has their joints."""
    part = {"body": "door", "parent": -1, "motion": motion, "pose": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]}
    geometry = json.dumps({"parts": [part], "hand": [], "shapes": {}})
    further = {"link_motion": np.zeros((N, 1))} if motion else {}
    roles = {**ROLES, "door": "furniture"}
    batch = pushed((5, HAND, 5, 9.0), (6, 5, PLATE, 12.0), roles=roles, geometry=geometry, further=further)
    assert find(batch).bodies == expected


def test_a_push_by_a_body_that_the_robot_does_not_touch_begins_there():
    assert find(pushed((6, BOWL, PLATE, 12.0))).bodies == ("bowl", "plate")
    assert find(pushed((1, HAND, BOWL, 9.0), (11, BOWL, PLATE, 9.0), at=11), first=11).bodies == (
        "hand",
        "bowl",
        "plate",
    )


@pytest.mark.parametrize(
    ("touches", "bodies"),
    [
        ([(7, DRAWER, HAND, 300.0)], ("hand", "drawer")),
        ([(7, DRAWER, BOWL, 300.0), (7, HAND, BOWL, 20.0)], ("hand", "bowl", "drawer")),
        ([(7, DRAWER, BOWL, 300.0), (6, HAND, DRAWER, 20.0)], ("hand", "drawer", "bowl")),
        ([(7, DRAWER, BOWL, 300.0)], ("bowl", "drawer")),
        ([(7, BOWL, PLATE, 300.0), (7, LINK, DRAWER, 20.0)], ("bowl", "plate")),
    ],
)
def test_a_force_is_led_back_to_the_robot_where_contacts_do(touches, bodies):
    cause = find(from_recording(recording(N, contacts=contacts(*touches))), FORCE)
    assert cause.bodies == bodies
    assert ("No recent contact of" in cause.sentence) == (not {"hand", "link7"} & set(bodies))
    assert "at 0.35 s" in cause.sentence


def test_the_speed_is_that_of_the_end_effector_in_the_step_before():
    eef = np.tile([0.4, 0.0, 1.0], (N, 1))
    eef[6:, 0] += 0.02
    assert "0.400\u00a0m/s" in find(pushed((6, HAND, PLATE, 9.0), eef_pos_m=eef)).sentence


def test_times_and_speed_are_those_of_the_stamps_where_records_have_them():
    eef = np.tile([0.4, 0.0, 1.0], (N, 1))
    eef[6:, 0] += 0.02
    stamps = np.where(np.arange(N) < 6, 0.05 * np.arange(N), 0.05 * np.arange(N) + 0.15)
    stamped = find(pushed((6, HAND, PLATE, 9.0), eef_pos_m=eef, further={"time_s": stamps}))
    assert "0.100\u00a0m/s" in stamped.sentence
    assert "at 0.45 s" in stamped.sentence
    assert "At 0.45 s" in stamped.sentence


def gripping(*touches: tuple[int, int, int, float]) -> Batch:
    grip = np.ones(N, dtype=np.bool_)
    return from_recording(
        recording(N, contacts=contacts(*touches), gripper_contact=grip, gripped_body=np.full(N, BOWL))
    )


def test_what_a_held_object_touched_may_have_turned_it():
    cause = find(gripping((3, HAND, BOWL, 9.0), (4, PLATE, BOWL, 9.0), (5, DRAWER, BOWL, 9.0)), "held_object_tilt", 6)
    assert (cause.bodies, cause.others) == (("drawer", "bowl"), ("plate",))
    assert "may have" in cause.sentence
    alone = find(gripping((3, HAND, BOWL, 9.0), (8, PLATE, BOWL, 9.0)), "held_object_slip", 6)
    assert (alone.bodies, alone.steps) == (("bowl",), ())
    assert "robot touched bowl" in alone.sentence


def test_a_strained_joint_names_what_the_robot_presses_on_then():
    pressed = find(
        gripping((6, HAND, BOWL, 9.0), (6, LINK, DRAWER, 90.0), (5, HAND, PLATE, 99.0)), "joint_torque_ratio", 6
    )
    assert pressed.bodies == ("link7", "drawer")
    free = find(gripping((5, HAND, PLATE, 99.0)), "joint_torque_ratio", 6)
    assert free.bodies == ()


def test_motion_alone_and_records_without_contacts_have_no_chain():
    assert find_cause(RecordFields(pushed((6, HAND, PLATE, 9.0))), "eef_speed", 6, REGISTRY) is None
    assert find_cause(RecordFields(pushed((6, HAND, PLATE, 9.0))), DISPLACED, -1, REGISTRY) is None
    silent = from_recording(recording(N, contacts=None))
    assert find_cause(RecordFields(silent), DISPLACED, 6, REGISTRY) is None


# Laws

SIGNALS = (DISPLACED, FORCE, "self_collision", "held_object_tilt", "joint_torque_ratio")
touches = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, 4), st.integers(0, 4), st.sampled_from([1.0, 20.0, 300.0])).filter(
        lambda row: row[1] != row[2]
    ),
    max_size=25,
)


def permuted(plain: EpisodeArrays, order: list[int]) -> EpisodeArrays:
    """The same episode with its table of bodies in another order."""
    names, place = list(plain.roles), np.argsort(order)
    assert plain.contacts is not None
    moved = replace(plain.contacts, a=place[plain.contacts.a], b=place[plain.contacts.b])
    return replace(
        plain,
        roles={names[old]: plain.roles[names[old]] for old in order},
        contacts=moved,
        pos_bodies=tuple(int(place[k]) for k in plain.pos_bodies),
        quat_bodies=tuple(int(place[k]) for k in plain.quat_bodies),
    )


@given(touches, st.integers(1, N - 1), st.permutations(range(5)), st.sampled_from(SIGNALS))
def test_the_order_of_bodies_changes_nothing(rows, begins, order, signal):
    plain = scene(rows, begins)
    first, second = (RecordFields(from_recording(recorded)) for recorded in (plain, permuted(plain, order)))
    assert find_cause(first, signal, N - 1, REGISTRY) == find_cause(second, signal, N - 1, REGISTRY)


@given(touches, st.integers(1, N - 1), st.sampled_from(SIGNALS), st.integers(0, N - 1))
def test_every_link_of_a_chain_is_a_recorded_contact_and_none_comes_after_its_effect(rows, begins, signal, first):
    batch = from_recording(scene(rows, begins))
    cause = find_cause(RecordFields(batch), signal, first, REGISTRY)
    if cause is None:
        return
    assert len(cause.steps) == max(0, len(cause.bodies) - 1)
    names = list(ROLES)
    recorded = {(row[0], frozenset((names[row[1]], names[row[2]]))) for row in rows}
    for step, pair in zip(cause.steps, zip(cause.bodies, cause.bodies[1:], strict=False), strict=True):
        assert (step, frozenset(pair)) in recorded
    assert list(cause.steps) == sorted(cause.steps)
    assert len(set(cause.bodies)) == len(cause.bodies)
    assert max([*cause.steps, 0]) <= first
    for other in cause.others:
        assert any(frozenset((other, cause.bodies[-1])) == pair for _, pair in recorded)


@given(touches, st.integers(1, N - 2))
def test_a_body_is_said_to_leave_its_place_when_it_does(rows, begins):
    batch = from_recording(scene(rows, begins))
    assert find(batch, first=N - 1).step == begins
    assert MOVED_M < 0.004


# Phases


def phases(grip: Sequence[int], height: Sequence[float], **changes: Any) -> str:
    """The first letter of the phase of each record, `-` without one, as a cause that began there names it."""
    n = len(grip)
    position = rest_positions(n)
    position[:, 0, 2] += height
    fields = {"benchmark": "libero-goal", "task_id": "task_8", "gripper_contact": np.array(grip, dtype=np.bool_)}
    touching = contacts(*((record, HAND, DRAWER, 300.0) for record in range(n)))
    batch = episode(n, body_pos_m=position, contacts=touching, **{**fields, **changes})
    sentences = [find(batch, FORCE, first).sentence for first in range(n)]
    return "".join(
        words[0][0] if (words := re.findall(r"the stage of the grasp was (\w+)", text)) else "-" for text in sentences
    )


@pytest.mark.parametrize(
    ("grip", "height", "expected"),
    [
        ([0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0.1, 0.1, 0.02, 0, 0], "bbhtthaa"),
        ([0, 1, 0, 1, 0], [0, 0.1, 0.1, 0.1, 0], "bthta"),
        ([0, 0, 0], [0, 0, 0], "bbb"),
        ([1, 1, 1], [0, 0, 0.1], "hht"),
    ],
)
def test_a_pick_and_place_has_its_phases_in_order(grip, height, expected):
    assert phases(grip, height) == expected


@pytest.mark.parametrize(
    "changes", [{"task_id": "task_7"}, {"benchmark": "nobody-knows-it"}, {"gripper_contact": None}]
)
def test_without_a_held_object_or_its_grip_there_is_no_phase(changes):
    assert phases([0, 1, 0], [0, 0, 0], **changes) == "---"
