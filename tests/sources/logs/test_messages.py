"""What is taken from single messages: numbers, poses, transforms, marks and stamps, and what is refused."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from safevla_bench.archive.record_schema import Budget
from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.clocks import Times
from safevla_bench.sources.logs.decoding import JsonObject
from safevla_bench.sources.logs.mappings import Columns, PoseColumns
from safevla_bench.sources.logs.messages import MarkTaker, NumberTaker, PoseTaker, Taker, TransformTree

UPRIGHT = {"w": 1.0, "x": 0.0, "y": 0.0, "z": 0.0}
S = 10**9


def message(**fields: Any) -> Any:
    return JsonObject({name: message(**v) if isinstance(v, dict) else v for name, v in fields.items()})


def taken(*messages: Any, part: str = "torque", most: int = 10**6, **columns: Any) -> NumberTaker:
    taker = NumberTaker(part, "/t", Budget(most, "numbers"), columns=Columns(source="/t", **columns))
    for order, each in enumerate(messages):
        taker.take(each, order, 100 + order)
    return taker


def poses_of(*messages: Any, **columns: Any) -> Any:
    taker = posed(*messages, **columns)
    return taker.convert(taker.numbers)


def posed(*messages: Any, **columns: Any) -> PoseTaker:
    taker = PoseTaker("eef", "/t", Budget(10**6, "numbers"), columns=PoseColumns(source="/t", **columns))
    for order, each in enumerate(messages):
        taker.take(each, order, 100 + order)
    return taker


def refused(word: str) -> Any:
    return pytest.raises(RecordError, match=word)


# Numbers


def test_a_topic_without_messages_has_no_number_and_no_stamp():
    taker = Taker("torque", "/t", Budget(0, "numbers"))
    assert (taker.numbers.shape, taker.stamps.log_ns.shape, taker.latched) == ((0, 1), (0,), False)


def test_numbers_have_the_order_and_time_of_their_messages():
    taker = taken(message(effort=[1.0, 2.0]), message(effort=[]), message(effort=[3.0, 4.0]))
    assert taker.numbers.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (taker.stamps.topic, taker.stamps.order.tolist(), taker.stamps.log_ns.tolist()) == ("/t", [0, 2], [100, 102])


def test_numbers_whose_count_changes_are_refused():
    with refused("2 and 3 numbers"):
        taken(message(effort=[1.0, 2.0]), message(effort=[1.0, 2.0, 3.0]))
    with refused("3 and 2 numbers"):  # index 1 may be that of another number
        taken(message(effort=[1.0, 2.0, 3.0]), message(effort=[2.0, 3.0]), index=(1,))


def test_each_message_counts_as_its_numbers_and_four_more():
    messages = [message(effort=[1.0, 2.0])] * 3
    assert len(taken(*messages, most=18).numbers) == 3
    with refused("more than 17 numbers"):
        taken(*messages, most=17)


@pytest.mark.parametrize(
    ("value", "mark"), [(True, 1.0), (False, 0.0), (2.5, 1.0), (0, 1.0), ("text", 1.0), (None, 1.0), ([0.0], 1.0)]
)
def test_a_mark_is_a_boolean_or_1(value, mark):
    taker = MarkTaker("marker", "/t", Budget(99, "numbers"))
    taker.take(message(data=value), 0, 0)
    assert taker.numbers.tolist() == [[mark]]


@pytest.mark.parametrize(
    ("values", "is_clear"),
    [
        ([0, 1, 2], True),
        ([1, 2], True),
        ([0, 0], True),
        ([True, False], True),
        (["a", "b", "c"], True),
        ([0, 1, 0], False),
        ([1.0, 0.0], False),
        (["start", "stop"], False),
        ([1, 0, 2, 0, 3, 0], False),
        (["start", "success", "start", "failure"], False),
        ([5, 5, 7, 7], True),
    ],
)
def test_marks_that_may_switch_trials_on_and_off_are_refused(values, is_clear):
    taker = MarkTaker("marker", "/t", Budget(99, "numbers"))
    for value in values:
        taker.take(message(data=value), 0, 0)
    with nullcontext() if is_clear else refused("begin trials"):
        taker.require_clear()


def test_marks_of_which_none_begins_a_trial_are_refused():
    taker = MarkTaker("marker", "/t", Budget(99, "numbers"))
    taker.take(message(data=False), 0, 0)
    with refused("all messages on /t are false, so no trial begins"):
        taker.require_clear()


def test_numbers_are_chosen_by_the_names_of_each_message_and_a_message_without_them_is_left_out():
    messages = [
        message(name=["a", "b"], effort=[1.0, 2.0]),
        message(name=["b", "c"], effort=[3.0, 4.0]),
        message(name=["c"], effort=[5.0]),
        message(name=["a"], effort=[math.nan]),
        message(name=["a", "b"], effort=[None, 6.0]),
    ]
    taker = taken(*messages, names=("b", "a"))
    np.testing.assert_equal(taker.numbers, [[2.0, 1.0], [3.0, math.nan], [6.0, math.nan]])
    assert taker.find_order() == ()
    with refused("joints differ"):
        taken(*messages[:2])
    with refused("no message of /t has the name d, e"):
        taken(*messages, names=("a", "d", "e")).require_some()
    with refused("no message has the mapped"):
        taken(messages[3], names=("a",)).require_some()
    with refused("several numbers called 'b'"):
        taken(message(name=["b", "a", "b"], effort=[1.0, 2.0, 3.0]), names=("a", "b"))


def test_without_names_in_the_mapping_an_unknown_message_counts_and_the_names_are_in_the_order_of_the_indices():
    messages = [message(name=["a", "b", "c"], effort=[math.nan] * 3), message(name=["a", "b", "c"], effort=[1, 2, 3])]
    taker = taken(*messages, index=(2, 0))
    np.testing.assert_equal(taker.numbers, [[math.nan, math.nan], [3.0, 1.0]])
    assert taker.find_order() == ("c", "a")
    assert taken(*messages).find_order() == ("a", "b", "c")
    assert taken(message(effort=[1.0]), index=(0,)).find_order() == ()


@pytest.mark.parametrize(
    ("fields", "columns", "word"),
    [
        ({"effort": ["open"]}, {}, "holds text, 'open'"),
        ({"effort": [1.0]}, {"index": (1,)}, "lacks a mapped number"),
        ({"effort": [[1.0]]}, {}, "objects or lists"),
        ({"name": ["a"], "effort": [1.0, 2.0]}, {}, "counts of names"),
        ({"name": ["a"], "effort": [1.0, 2.0]}, {"names": ("a",)}, "counts of names"),
        ({"effort": [1.0]}, {"names": ("a",)}, "counts of names"),
    ],
)
def test_a_message_that_lacks_what_is_mapped_is_refused(fields, columns, word):
    with refused(word):
        taken(message(**fields), **columns)


@pytest.mark.parametrize(
    ("part", "fields", "numbers"),
    [
        ("torque", {"data": [1.0], "effort": [2.0]}, [2.0]),
        ("torque.left", {"value": 3.0}, [3.0]),
        ("torque", {"effort": np.array([4.0, 5.0])}, [4.0, 5.0]),
        ("torque", {"effort": {"a": 1.0, "b": 2.0}}, [1.0, 2.0]),
        ("gripper", {"position": [], "effort": [7.0]}, [7.0]),
        ("gripper", {"position": [6.0], "effort": []}, [6.0]),
        ("gripper.left", {"data": True}, [1.0]),
        ("wrench", {"force": {"x": 1.0, "y": 2.0, "z": 3.0}, "data": 5.0}, [1.0, 2.0, 3.0]),
        ("wrench", {"wrench": {"force": {"x": 1.0, "y": 2.0, "z": 3.0}}}, [1.0, 2.0, 3.0]),
        ("action", {"position": [1.0], "value": 2.0}, [2.0]),
        ("action", {"position": [1.0]}, [1.0]),
    ],
)
def test_numbers_are_those_of_the_first_field_that_the_message_has(part, fields, numbers):
    assert taken(message(**fields), part=part).numbers.tolist() == [numbers]


def test_a_field_of_the_mapping_is_the_only_one_and_a_vector_is_its_three_numbers():
    class Vector:
        x, y, z = 1.0, 2.0, 3.0

    assert taken(message(a={"b": Vector()}, effort=[9.0]), field="a.b").numbers.tolist() == [[1.0, 2.0, 3.0]]
    taker = taken(message(effort=[9.0], x=1), message(other=2), field="a")
    with refused("no message has") as caught:
        taker.require_some()
    assert "effort, x." in caught.value.remedy
    with refused("no message has") as caught:
        taken(message(effort=[])).require_some()
    assert "in all messages" in caught.value.remedy
    with refused("positions and efforts"):
        taken(message(position=[1.0], effort=[2.0]), part="gripper")
    assert taken(message(position=[], effort=[]), part="gripper").numbers.size == 0


# Poses


PLACE = {"x": 1.0, "y": 2.0, "z": 3.0}
ROW = [1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({"position": PLACE, "orientation": UPRIGHT}, {}),
        ({"pose": {"position": PLACE, "orientation": UPRIGHT}}, {}),
        ({"pose": {"pose": {"position": PLACE, "orientation": UPRIGHT}}}, {}),
        ({"transform": {"translation": PLACE, "rotation": UPRIGHT}}, {}),
        ({"a": {"position": PLACE, "orientation": UPRIGHT}, "pose": {"position": UPRIGHT}}, {"field": "a"}),
        ({"pose": {"position": PLACE, "orientation": UPRIGHT}, "goal": {"position": PLACE}}, {}),
        ({"data": [9.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0]},
         {"field": "data", "position": (1, 2, 3), "quaternion": (4, 5, 6, 7), "quaternion_order": "wxyz"}),
        ({"x": 1.0, "y": 2.0, "z": 3.0, "qx": 0.0, "qy": 0.0, "qz": 0.0, "qw": 1.0}, {}),
    ],
)  # fmt: skip
def test_a_pose_is_found_in_every_message_that_has_one(fields, columns):
    taker = posed(message(**fields), **columns)
    assert taker.convert(taker.numbers).tolist() == [ROW]
    taker.require_some()


def test_a_position_alone_is_a_pose_and_one_orientation_makes_the_others_unknown():
    alone = message(pose={"position": PLACE})
    assert poses_of(alone).tolist() == [ROW[:3]]
    both = posed(alone, message(pose={"position": PLACE, "orientation": UPRIGHT}), alone)
    np.testing.assert_equal(both.convert(both.numbers), [ROW[:3] + [math.nan] * 4, ROW, ROW[:3] + [math.nan] * 4])
    np.testing.assert_equal(poses_of(message(a=1.0), alone), [[math.nan] * 3, ROW[:3]])


def test_an_orientation_in_another_form_is_never_left_out():
    with refused("orientation|rotation"):
        posed(message(pose={"position": PLACE, "orientation": {"a": 1.0, "b": 2.0, "c": 3.0}}))
    angles = {"roll": 0.0, "pitch": 0.0, "yaw": math.pi}
    taker = posed(message(pose={"position": PLACE, "orientation": angles}), field="pose")
    assert taker.convert(taker.numbers)[0] == pytest.approx([1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0])
    poses = [message(pose={"position": PLACE, "orientation": turn}) for turn in (UPRIGHT, angles)]
    np.testing.assert_equal(poses_of(*poses), [ROW, ROW[:3] + [math.nan] * 4])
    with refused("6 and 7 numbers"):
        posed(*poses[::-1], field="pose")


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({"a": PLACE, "b": {"x": 9.0, "y": 9.0, "z": 9.0}}, {"field": "a"}),
        ({"p": 1.0, "q": 2.0, "r": 3.0, "s": 4.0}, {"position": (0, 1, 2)}),
        ({"data": [1.0, 2.0, 3.0]}, {"field": "data"}),
        ({"position": [1.0, 2.0, 3.0]}, {}),
    ],
)
def test_numbers_are_a_position_where_the_mapping_names_their_field_or_indices_or_they_are_three(fields, columns):
    assert poses_of(message(**fields), **columns).tolist() == [ROW[:3]]
    with refused("no message has a pose"):
        posed(message(data=[1.0] * 7)).require_some()


def test_a_message_that_lacks_numbers_is_unknown_and_one_with_more_is_refused():
    first = message(x=1.0, y=2.0, z=3.0)
    np.testing.assert_equal(poses_of(first, message(x=1.0, y=2.0)), [[1.0, 2.0, 3.0], [1.0, 2.0, math.nan]])
    with refused("3 and 4 numbers"):
        posed(first, message(x=1.0, y=2.0, z=3.0, more=4.0))
    with refused("no message has a pose") as caught:
        posed(message(a=1.0, b="text"), message(c=1.0)).require_some()
    assert "a, b." in caught.value.remedy


def test_a_list_of_bodies_that_loses_one_is_refused_since_another_may_have_its_index_and_a_null_keeps_it():
    bodies = [{"p": [k, 0.0, 0.0]} for k in (1.0, 2.0, 3.0, 4.0)]
    rows = [[message(**body) for body in bodies]] * 3
    rows[1] = [None, rows[0][1], None, rows[0][3]]
    columns = {"field": "bodies", "position": (3, 4, 5)}
    known = [2.0, 0.0, 0.0]
    messages = [message(bodies=row) for row in rows]
    assert poses_of(*messages, **columns).tolist() == [known] * 3
    np.testing.assert_equal(poses_of(*messages[:2], message(bodies=[]), **columns), [known, known, [math.nan] * 3])
    with refused("12 and 9 numbers"):
        posed(*messages, message(bodies=rows[0][1:]), **columns)


@pytest.mark.parametrize("value", ["text", True, [1.0, 2.0]])
def test_a_coordinate_that_is_no_number_is_refused(value):
    with refused("x is"):
        posed(message(position={**PLACE, "x": value}))
    taker = posed(*(message(position={**PLACE, "x": number}) for number in ("1.5", np.array([1.5]), None)))
    np.testing.assert_equal(taker.convert(taker.numbers)[:, 0], [1.5, 1.5, math.nan])


def entry(child: str, x: float, parent: str = "world", **more: Any) -> Any:
    turn = {**UPRIGHT, **more}
    translation = {"x": x, "y": 0.0, "z": 0.0}
    return message(
        header={"frame_id": parent}, child_frame_id=child, transform={"translation": translation, "rotation": turn}
    )


def test_the_pose_of_a_child_frame_is_that_of_its_entries_in_lists_and_alone():
    messages = [message(transforms=[entry("a", 1.0), entry("/b", 2.0, "/base"), entry("b", 3.0)]), entry("b", 4.0)]
    taker = posed(*messages, frame="/b")
    assert taker.convert(taker.numbers)[:, 0].tolist() == [2.0, 3.0, 4.0]
    assert (taker.frame_names, list(taker.frames)) == ({"base": 0, "world": 1}, [0, 1, 1])
    assert [*taker.children] == ["a", "b"]
    taker.require_some()
    with refused("several frames") as caught:
        posed(entry("a", 1.0), entry("b", 2.0)).require_some()
    assert ": a, b." in caught.value.remedy
    posed(entry("a", 1.0), entry("a", 2.0)).require_some()
    for columns in ({}, {"frame": "c"}):
        with refused("no message of eef") as caught:
            posed(messages[0], **columns).require_some()
        assert ": a, b." in caught.value.remedy
    for unusable in ((), (message(transforms=[]),), (message(pose={"position": PLACE}),)):
        with refused("no message on /t has a child frame, but the mapping names 'c'"):
            posed(*unusable, frame="c").require_some()
    for unusable in ((), (message(transforms=[]),)):
        with refused("no message on /t has a pose"):
            posed(*unusable).require_some()


@pytest.mark.parametrize(
    ("fields", "frame"),
    [
        ({"header": {"frame_id": "/map"}, "frame_id": "b"}, "map"),
        ({"frame_id": "b", "parent_frame_id": "c"}, "b"),
        ({"parent_frame_id": "c"}, "c"),
        ({}, ""),
        ({"frame_id": "n" * 201}, "n" * 200),
    ],
)
def test_the_frame_of_a_pose_is_that_of_its_header_or_its_own(fields, frame):
    assert posed(message(position=PLACE, **fields)).frame_names == {frame: 0}


# Transforms


def tree(*entries: Any, static: bool = False) -> TransformTree:
    transforms = TransformTree(Budget(10**6, "numbers"))
    for order, each in enumerate(entries):
        transforms.take(each, order, order * S, static)
    return transforms


def test_transforms_that_tf2_ignores_are_ignored():
    ignored = [
        entry("a", math.nan), entry("a", 1.0, "a"), entry("a", 1.0, "/a"), entry("", 1.0), entry("a", 1.0, ""),
        entry("a", 1.0, w=1.006), entry("a", 1.0, w=0.994), message(other=1),
    ]  # fmt: skip
    assert tree(*ignored).list_stamps() == {}
    used = [entry("a", 1.0, w=1.004), entry("a", 2.0, w=0.996), message(transforms=[entry("b", 3.0)])]
    assert {topic: len(stamps.log_ns) for topic, stamps in tree(*used).list_stamps().items()} == {
        "transforms of a": 2,
        "transforms of b": 1,
    }
    assert tree(*used, static=True).list_stamps() == {}


def test_a_transform_of_foxglove_is_one_and_a_static_one_holds_until_the_next():
    flat = message(
        parent_frame_id="world", child_frame_id="a", translation={"x": 1.0, "y": 0.0, "z": 0.0}, rotation=UPRIGHT
    )
    times = {"transforms of a": Times(np.array([0, S]), "log time")}
    frames = tree(flat, entry("a", 2.0), static=True).build_tree(times, 1.0)
    brought = frames.bring(np.zeros((2, 3)), "a", "world", np.array([-S, 5 * S]))
    assert brought[:, 0].tolist() == [1.0, 2.0]


def test_transforms_are_interpolated_in_gaps_of_the_given_length_in_seconds():
    transforms = tree(entry("a", 0.0), entry("a", 1.0), entry("a", 3.0))
    times = {"transforms of a": Times(np.array([0, S, 3 * S]), "log time")}
    brought = transforms.build_tree(times, 1.5).bring(np.zeros((2, 3)), "a", "world", np.array([S // 2, 2 * S]))
    np.testing.assert_equal(brought[:, 0], [0.5, math.nan])


# Stamps


def stamp(**fields: Any) -> int:
    return int(taken(message(effort=[1.0], **fields)).stamps.stamp_ns[0])


@pytest.mark.parametrize(
    ("value", "expected_ns"),
    [
        ({"sec": 2, "nanosec": 3}, 2 * S + 3),
        ({"secs": 2, "nsecs": 3}, 2 * S + 3),
        ({"sec": 2, "nsec": 3}, 2 * S + 3),
        ({"seconds": 2, "nanos": 3}, 2 * S + 3),
        ({"seconds": 2, "nanoseconds": 3}, 2 * S + 3),
        ({"sec": 2.5, "nanosec": 3}, 2 * S + S // 2 + 3),
        ({"sec": 2}, 2 * S),
        ({"sec": math.nan, "nanosec": 3}, 0),
        ({"sec": "2", "nanosec": 3}, 0),
        ({}, 0),
        (None, 0),
        (99_999_999, 0),
        (100_000_000, 100_000_000 * S),
        (9_000_000_000, 9_000_000_000 * S),
        ("1.5", S + S // 2),
        ("1.", S),
        (100_000_000_000, 100_000_000_000 * 10**6),
        (9_000_000_000_000, 9_000_000_000_000 * 10**6),
        (100_000_000_000_000, 100_000_000_000_000 * 1000),
        (9_000_000_000_000_000, 9_000_000_000_000_000 * 1000),
        (100_000_000_000_000_000, 100_000_000_000_000_000),
        (1_700_000_000_000_000_001, 1_700_000_000_000_000_001),
        ("12345678901234567890", 0),
        ("-5.0", 0),
        ("2001-09-09T01:46:40Z", 10**9 * S),
        ("2001-09-09 01:46:40", 10**9 * S),
        ("2001-09-09T01:46:40.25", 10**9 * S + S // 4),
        ("2001-09-09T01:46:40,000000001999Z", 10**9 * S + 1),
        ("2001-09-09T03:46:40+02:00", 10**9 * S),
        ("2001-09-09T01:46:40 more", 0),
        ("2001-19-09T01:46:40", 0),
    ],
)
def test_a_stamp_is_read_in_each_of_its_forms_and_is_0_in_others(value, expected_ns):
    fields = message(timestamp=value).timestamp if isinstance(value, dict) else value
    assert stamp(timestamp=fields) == expected_ns
    assert stamp(stamp=fields) == expected_ns
    assert stamp(header=message(stamp=fields), timestamp=None) == expected_ns


def test_the_stamp_of_the_header_goes_before_that_of_the_message():
    assert stamp(header=message(stamp=message(sec=1, nanosec=0)), timestamp=message(sec=2, nanosec=0)) == S
