"""Messages of topics at rates of their own, sampled at the instants of a clock, without a file."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.archive.record_schema import Budget
from safevla_bench.errors import RecordError
from safevla_bench.sources.logs import alignment, mappings
from safevla_bench.sources.logs.alignment import MessageSpan, align
from safevla_bench.sources.logs.decoding import JsonObject
from safevla_bench.sources.logs.mappings import LogMapping, PoseColumns
from safevla_bench.sources.logs.messages import NumberTaker, PoseTaker, TransformTree
from safevla_bench.sources.logs.records import LoggedEpisode

FILES = itertools.count()  # a warning is given once a file
S, EPOCH_NS = 10**9, 1_700_000_000 * 10**9
Row = tuple[float, Any]  # log time from the epoch [s], and an x or numbers


def message(x: Any, stamp_s: float | None = None, frame: str = "", turn: float = 1.0, child: str = "") -> JsonObject:
    place = JsonObject({"x": x, "y": 0.0, "z": 0.0})
    pose = JsonObject({"position": place, "orientation": JsonObject({"w": turn, "x": 0.0, "y": 0.0, "z": 0.0})})
    stamp = None if stamp_s is None else JsonObject({"sec": int(stamp_s), "nanosec": round(stamp_s % 1 * S)})
    header = JsonObject({"frame_id": frame, "stamp": stamp})
    return JsonObject({"pose": pose, "effort": x if isinstance(x, list) else [x], "header": header,
                       "child_frame_id": child, "translation": place, "rotation": pose.orientation})  # fmt: skip


def aligned(tree: Mapping[str, Any], topics: Mapping[str, Sequence[Any]], span_s: tuple[float, float] = (-1e9, 9e9),
            latched: Sequence[str] = (), base_ns: int = EPOCH_NS, facts: Mapping[str, Any] | None = None,
            transforms: Sequence[Any] = (), static: bool = False) -> LoggedEpisode:  # fmt: skip
    """Topic -> its messages, each a log time [s] and a message or its x."""
    mapping = msgspec.convert(tree, LogMapping)
    takers: dict[str, NumberTaker | PoseTaker] = {}
    for part, columns in mapping.sources.items():
        kind: Any = PoseTaker if isinstance(columns, PoseColumns) else NumberTaker
        takers[part] = kind(part, columns.source, Budget(10**6, "numbers"), columns=columns)
        takers[part].latched = columns.source in latched
        for order, (at_s, content) in enumerate(topics[columns.source]):
            entry = content if isinstance(content, JsonObject) else message(content)
            takers[part].take(entry, order, base_ns + round(at_s * S))
    frames = TransformTree(Budget(10**6, "numbers"))
    for order, (at_s, entry) in enumerate(transforms):
        frames.take(entry, order, base_ns + round(at_s * S), static)
    begin, end = (base_ns + round(bound * S) for bound in span_s)
    span = MessageSpan(
        f"recording {next(FILES)}", "take", begin, end, msgspec.convert(facts or {}, mappings.Episode), base_ns
    )
    return align(span, mapping, takers, frames)


EEF = {"eef": {"from": "/e"}}
HAND = [(0.1 * k, 0.1 * k) for k in range(6)]


def test_the_instants_are_the_messages_of_the_clock_in_the_order_of_their_times(caplog):
    with caplog.at_level(logging.WARNING):
        episode = aligned(EEF, {"/e": HAND})
    assert "static" not in caplog.text
    assert (episode.time_s.tolist(), episode.dt_s, episode.has_stamps) == ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], 0.1, False)
    eef = episode.series["eef"]
    assert eef.values[:, 0].tolist() == [0.1 * k for k in range(6)]
    assert (eef.known.all(), eef.poses, eef.rate_hz, eef.longest_gap_s) == (True, 6, 10.0, 0.1)
    assert eef.time_base == "log time"


def test_messages_of_a_trial_are_those_from_its_begin_to_before_its_end():
    episode = aligned(EEF, {"/e": HAND}, (0.1, 0.4))
    assert episode.series["eef"].values[:, 0].tolist() == [0.1, 0.2, 0.1 * 3]
    with pytest.raises(RecordError, match="no message of eef in this trial"):
        aligned(EEF, {"/e": HAND}, (0.6, 9.0))


@pytest.mark.parametrize("count", [1, 2])
def test_a_clock_of_fewer_than_two_instants_is_an_error(count):
    rows = [(0.0, 1.0), (0.0, 2.0), (0.1, 3.0)][: count + 1]
    if count == 1:
        with pytest.raises(RecordError, match="fewer than two"):
            aligned(EEF, {"/e": rows})
    else:
        assert len(aligned(EEF, {"/e": rows}).time_s) == 2


def test_a_repeated_time_is_a_warning_with_the_count(caplog):
    with caplog.at_level(logging.WARNING):
        aligned(EEF, {"/e": [*HAND, HAND[-1], HAND[-1]]})
    assert "2 clock messages" in caplog.text


@pytest.mark.parametrize(
    ("steps_ms", "dt_s", "has_stamps"),
    [
        ([50, 50, 50], 0.05, False),
        ([50, 51, 50], 0.05, True),
        ([30, 30, 30], 0.03, True),
        ([8, 8], 0.008, False),
        ([16, 16], 0.016, True),
    ],
)
def test_times_are_kept_unless_the_steps_are_equal_and_divide_a_second(steps_ms, dt_s, has_stamps):
    rows = [(at / 1000, at / 1000) for at in np.cumsum([0, *steps_ms]).tolist()]
    episode = aligned(EEF, {"/e": rows})
    assert (episode.dt_s, episode.has_stamps) == (dt_s, has_stamps)


def test_a_message_of_the_clock_without_a_stamp_is_left_out_where_the_log_is_rough(caplog):
    late_s = [0.0, 0.03, 0.0, 0.04, 0.01, 0.0]
    rows = [(at + late, message(x, None if x == HAND[3][1] else 5 + at))
            for (at, x), late in zip(HAND, late_s, strict=True)]  # fmt: skip
    with caplog.at_level(logging.WARNING):
        episode = aligned(EEF, {"/e": rows})
    assert episode.time_s == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.5])
    assert episode.series["eef"].values[:, 0].tolist() == [HAND[k][1] for k in (0, 1, 2, 4, 5)]
    assert "the clock is [eef]; 1 messages" in caplog.text


@pytest.mark.parametrize(("most", "is_read"), [(60, True), (59, False)])
def test_the_numbers_after_sampling_are_limited(monkeypatch, most, is_read):
    monkeypatch.setattr(mappings, "MAX_NUMBERS", most)
    tree = {**EEF, "action": {"from": "/a"}, "torque": {"from": "/t", "limits_nm": [9.0, 9.0]}}
    topics = {"/e": HAND, "/a": HAND, "/t": [(at, [at, at]) for at, _ in HAND]}
    if is_read:
        assert len(aligned(tree, topics).time_s) == 6
    else:
        with pytest.raises(RecordError, match="more than 59"):
            aligned(tree, topics)


# Clocks


MANY = {
    "/e": HAND, "/fast": [(0.05 * k, 0.0) for k in range(12)], "/cup": [(0.02 * k, 0.0) for k in range(5)],
    "/pen": [(0.02 * k, 1.0) for k in range(4)],
}  # fmt: skip
CUP = {"cup": {"from": "/cup", "role": "target"}}


@pytest.mark.parametrize(
    ("tree", "facts", "count"),
    [
        ({**EEF, "action": {"from": "/fast"}, "bodies": CUP}, {}, 6),
        ({**EEF, "action": {"from": "/fast"}, "bodies": CUP}, {"clock": "/fast"}, 12),
        ({"eef": {"from": "/pen"}, "bodies": CUP}, {}, 4),
        ({"action": {"from": "/fast"}, "bodies": CUP}, {}, 5),
        ({"bodies": {"pen": {"from": "/pen", "role": "target"}, **CUP}}, {}, 5),
        ({"action": {"from": "/fast"}, "gripper": {"from": "/e"}}, {}, 12),
    ],
)
def test_the_clock_is_the_topic_asked_for_or_the_hand_or_the_pose_with_the_most_messages(tree, facts, count):
    assert len(aligned(tree, MANY, facts=facts).time_s) == count


def test_a_clock_that_is_not_mapped_and_topics_that_are_all_static_are_errors():
    with pytest.raises(RecordError, match="clock topic '/x'") as caught:
        aligned({**EEF, "bodies": CUP}, MANY, facts={"clock": "/x"})
    assert "/cup, /e." in caught.value.remedy
    with pytest.raises(RecordError, match="static"):
        aligned(EEF, {"/e": [(0.0, 1.0)] * 3}, latched=["/e"])


# Sampling


def test_a_pose_is_interpolated_where_a_new_one_came_since_the_instant_before():
    cup = [(0.0, 0.0), (0.15, 1.0), (0.3, 2.0), (0.32, 3.0)]
    body = aligned({**EEF, "bodies": CUP}, {"/e": HAND, "/cup": cup}).series["bodies.cup"]
    assert body.known.tolist() == [True, False, True, True, False, False]
    assert body.values[[0, 2, 3], 0] == pytest.approx([0.0, 4 / 3, 2.0])
    assert (body.poses, body.rate_hz, body.longest_gap_s) == (4, pytest.approx(1 / 0.15), pytest.approx(0.15))


@given(st.integers(-(10**8), 10**8), st.integers(20_000_000, 190_000_000))
def test_two_parts_that_move_together_are_together_whatever_the_phase_and_rate_of_their_messages(phase_ns, step_ns):
    times_s = [(phase_ns + k * step_ns) / S for k in range(-12, 30)]
    body = aligned({**EEF, "bodies": CUP}, {"/e": HAND, "/cup": [(at, at) for at in times_s]}).series["bodies.cup"]
    assert body.known.any()
    assert body.values[body.known, 0] == pytest.approx(np.array([x for _, x in HAND])[body.known], abs=1e-8)


def test_a_pose_is_unknown_next_to_one_that_was_lost_and_its_rotation_takes_the_shorter_arc():
    turns = [1.0, 1.1, -1.1, 1.1, 1.1, 1.1, 1.1]
    cup = [(0.05 + 0.1 * k, message(math.nan if k == 3 else 0.0, turn=turn)) for k, turn in enumerate(turns)]
    body = aligned({**EEF, "bodies": CUP}, {"/e": HAND, "/cup": cup}).series["bodies.cup"]
    assert body.known.tolist() == [False, True, True, False, False, True]
    assert np.abs(body.values[[1, 2, 5], 3]) == pytest.approx([1.0, 1.1, 1.1])
    assert not body.values[body.known, 4:].any()


def test_a_lost_body_is_not_interpolated_if_its_messages_are_faster_than_the_clock():
    cup = [(0.001 * k, 0.0) for k in range(252)] + [(0.302 + 0.001 * k, 1.0) for k in range(200)]
    hand = [(0.01 * k, 0.0) for k in range(50)]
    body = aligned({**EEF, "bodies": CUP}, {"/e": hand, "/cup": cup}).series["bodies.cup"]
    assert body.known[26:31].tolist() == [False] * 5
    assert body.values[body.known, 0].tolist() == [0.0] * 26 + [1.0] * int(body.known.sum() - 26)


@pytest.mark.parametrize("norm", [1e-200, 1e200])
def test_a_quaternion_without_a_norm_is_an_unknown_pose(norm):
    cup = [(0.1 * k, message(0.0, turn=norm if k == 2 else 1.0)) for k in range(6)]
    body = aligned({**EEF, "bodies": CUP}, {"/e": HAND, "/cup": cup}).series["bodies.cup"]
    assert body.known.tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize(("role", "is_known"), [("bystander", True), ("target", False)])
def test_the_last_sighting_of_a_bystander_counts_and_that_of_a_target_does_not(role, is_known):
    cup = [(0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.45, 5.0)]
    tree = {**EEF, "bodies": {"cup": {**CUP["cup"], "role": role}}}
    body = aligned(tree, {"/e": HAND, "/cup": cup}).series["bodies.cup"]
    assert body.known.tolist() == [True, True, True, False, False, is_known]
    assert not is_known or body.values[5, 0] == 5.0


@pytest.mark.parametrize(("first_s", "is_known"), [(-0.38, True), (-0.39, False), (0.01, False)])
def test_a_gap_of_more_than_two_periods_is_not_interpolated(first_s, is_known):
    cup = [(first_s, 0.0), (first_s + 0.2, 1.0), (first_s + 0.4, 2.0)] if first_s > 0 else [
        (first_s - 0.2, 0.0), (first_s, 1.0), (0.02, 2.0), (0.22, 3.0)
    ]  # fmt: skip
    episode = aligned({**EEF, "bodies": CUP}, {"/e": HAND, "/cup": cup})
    assert episode.series["bodies.cup"].known[0] == is_known


def test_a_number_is_held_for_two_of_its_periods_and_all_messages_are_kept():
    rows = [(0.05, [1.0, 5.0]), (0.15, [2.0, math.nan]), (0.25, [3.0, 6.0])]
    tree = {**EEF, "torque": {"from": "/t", "limits_nm": [9.0, 9.0], "scale": 2.0}}
    samples = aligned(tree, {"/e": HAND, "/t": rows}).series["torque"]
    assert samples.known.tolist() == [False, True, True, True, True, False]
    assert samples.values[1:4].tolist() == [[2.0, 10.0], [4.0, 10.0], [6.0, 12.0]]
    messages, instants = samples.between
    np.testing.assert_equal(messages, [[2.0, 10.0], [4.0, math.nan], [6.0, 12.0]])
    assert instants.tolist() == [1, 2, 3]


def test_numbers_that_come_in_bursts_are_a_warning(caplog):
    for within_s, warns in ((0.001, True), (0.02, False)):
        rows = [(0.1 * k + within_s * j, [1.0]) for k in range(6) for j in range(5)]
        with caplog.at_level(logging.WARNING):
            aligned({**EEF, "action": {"from": "/t"}}, {"/e": HAND, "/t": rows})
        assert ("[action] the messages of /t come in bursts" in caplog.text) == warns
        caplog.clear()


def test_messages_before_the_first_instant_and_after_the_last_belong_to_none():
    rows = [(-0.1, [1.0]), (0.0, [2.0]), (0.5, [3.0]), (0.6, [4.0])]
    samples = aligned({**EEF, "action": {"from": "/t"}}, {"/e": HAND, "/t": rows}).series["action"]
    assert samples.between[1].tolist() == [-1, 0, 5, 6]
    two = aligned({**EEF, "action": {"from": "/t"}}, {"/e": HAND, "/t": [(0.0, [1.0]), (0.1, [2.0])]}).series["action"]
    assert two.known.tolist() == [True, True, True, True, False, False]
    single = aligned({**EEF, "action": {"from": "/t"}}, {"/e": HAND, "/t": rows[1:2]}).series["action"]
    assert (single.known.all(), single.rate_hz, single.longest_gap_s) == (True, None, None)
    unknown = aligned({**EEF, "action": {"from": "/t"}}, {"/e": HAND, "/t": [(0.0, [math.nan])]}).series["action"]
    assert not unknown.known.any()


@pytest.mark.parametrize(
    ("numbers", "is_single"), [([0.1], False), ([float(np.float32(0.1))], True), ([3.0], False), ([1 / 1024], False),
                               ([1e300], False)]
)  # fmt: skip
def test_numbers_that_float32_holds_and_that_are_no_round_ones_are_of_single_precision(numbers, is_single):
    rows = [(at, numbers) for at, _ in HAND]
    samples = aligned({**EEF, "action": {"from": "/t"}}, {"/e": HAND, "/t": rows}).series["action"]
    assert samples.is_single == is_single


# Static and early messages


def test_a_latched_topic_whose_messages_are_equal_holds_throughout_and_else_it_has_times(caplog):
    tree = {**EEF, "bodies": CUP}
    with caplog.at_level(logging.WARNING):
        body = aligned(tree, {"/e": HAND, "/cup": [(3.0, 0.5)] * 2}, latched=["/cup"]).series["bodies.cup"]
    assert "static" not in caplog.text
    assert (body.known.all(), body.poses, body.values[0, 0], body.rate_hz) == (True, 0, 0.5, None)
    body = aligned(tree, {"/e": HAND, "/cup": [(0.0, 0.5), (0.1, 0.6)]}, latched=["/cup"]).series["bodies.cup"]
    assert (body.known.tolist(), body.poses) == ([True, True, False, False, False, False], 2)
    body = aligned(tree, {"/e": HAND, "/cup": [(0.3, 0.5)] * 2}).series["bodies.cup"]
    assert body.known.tolist() == [False, False, False, True, False, False]
    static = {**EEF, "bodies": {"cup": {"from": "/tf_static", "role": "target"}}}
    rows = {"/e": HAND, "/tf_static": [(0.1, 0.5), (0.3, 0.6), (0.3, 0.7)]}
    with caplog.at_level(logging.WARNING):
        body = aligned(static, rows, latched=["/tf_static"]).series["bodies.cup"]
    assert (body.known.all(), body.values[:, 0].tolist(), body.poses) == (True, [0.5] * 3 + [0.7] * 3, 0)
    assert "[bodies.cup] has different static poses, the last 0.3 s after the first message" in caplog.text
    last = aligned(static, rows, (0.3, 9.0), latched=["/tf_static"]).series["bodies.cup"]
    assert last.values[:, 0].tolist() == [0.7] * 3


@pytest.mark.parametrize(("first_s", "is_early"), [(1.0, False), (1.1, True)])
def test_messages_logged_at_0_are_left_out_if_the_others_are_logged_more_than_a_second_later(first_s, is_early, caplog):
    rows = [(0.0, 9.0), (0.0, 9.0), *((first_s + at, x) for at, x in HAND)]
    with caplog.at_level(logging.WARNING):
        episode = aligned(EEF, {"/e": rows}, base_ns=0)
    assert len(episode.time_s) == 6 + (not is_early)
    assert ("[eef]: 2 messages are left out" in caplog.text) == is_early


# Frames


def test_poses_in_several_frames_are_an_error_and_are_converted_where_the_mapping_says_so():
    cup = [(at, message(x, frame="camera")) for at, x in HAND]
    hand = [(at, message(x, frame="world")) for at, x in HAND]
    with pytest.raises(RecordError, match="different frames: world, camera") as caught:
        aligned({**EEF, "bodies": CUP}, {"/e": hand, "/cup": cup})
    assert 'in = "world"' in caught.value.remedy
    moves = [(at, message(2.0, frame="world", child="camera")) for at, _ in HAND]
    tree = {**EEF, "bodies": {"cup": {**CUP["cup"], "in": "/world"}}}
    body = aligned(tree, {"/e": hand, "/cup": cup}, transforms=moves).series["bodies.cup"]
    assert body.values[:, 0] == pytest.approx([2.0 + x for _, x in HAND])
    nameless = [*cup[:2], (0.25, message(0.0))]
    with pytest.raises(RecordError, match="do not name their frame"):
        aligned(tree, {"/e": hand, "/cup": nameless}, transforms=moves)
    unknown = [*cup[:2], (0.2, message(7.0, frame="", turn=0.0))]
    body = aligned(tree, {"/e": hand, "/cup": unknown}, transforms=moves).series["bodies.cup"]
    assert body.known.tolist() == [True, True, False, False, False, False]


def test_each_static_transform_is_used_from_its_time_on_and_the_first_from_the_start(caplog):
    cup = [(at, message(x, frame="camera")) for at, x in HAND]
    hand = [(at, message(x, frame="world")) for at, x in HAND]
    tree = {**EEF, "bodies": {"cup": {**CUP["cup"], "in": "/world"}}}
    for moved_to, warns in ((5.0, True), (2.0, False)):
        moves = [(at, message(x, frame="world", child="camera")) for at, x in ((0.1, 2.0), (0.3, moved_to))]
        with caplog.at_level(logging.WARNING):
            body = aligned(tree, {"/e": hand, "/cup": cup}, transforms=moves, static=True).series["bodies.cup"]
        assert body.values[:, 0] == pytest.approx([(2.0 if at < 0.29 else moved_to) + x for at, x in HAND])
        assert ("[transforms of camera] has different" in caplog.text) == warns
        caplog.clear()


@pytest.mark.parametrize(("max_gap_s", "count", "warns"), [(0.2, 3, True), (0.3, 3, False), (0.3, 1, True)])
def test_transforms_that_are_rarer_than_the_longest_gap_are_a_warning(caplog, max_gap_s, count, warns):
    cup = [(at, message(x, frame="camera")) for at, x in HAND]
    hand = [(at, message(x, frame="world")) for at, x in HAND]
    moves = [
        (at, message(2.0, frame="world", child=child))
        for at in (0.0, 0.25, 0.5)[:count]
        for child in ("camera", "unused")
    ]
    tree = {**EEF, "bodies": {"cup": {**CUP["cup"], "in": "world"}}, "transforms": {"max_gap_s": max_gap_s}}
    with caplog.at_level(logging.WARNING):
        body = aligned(tree, {"/e": hand, "/cup": cup}, transforms=moves).series["bodies.cup"]
    assert body.known.all() != warns
    assert ("transforms of camera come once, or mostly" in caplog.text) == warns


def test_a_pose_in_a_frame_that_its_topic_moves_and_a_convention_that_names_imply_are_warnings(caplog):
    rows = [(at, message(x, frame=frame, child=child)) for at, x in HAND
            for frame, child in (("world", "base"), ("base", "tool"))]  # fmt: skip
    for frame, warns in (("tool", True), ("base", False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            aligned({"eef": {"from": "/e", "frame": frame}}, {"/e": rows})
        assert ("the frame base, which may move" in caplog.text) == warns
    angles = {"x": 1.0, "y": 2.0, "z": 3.0, "roll": 0.1, "pitch": 0.2, "yaw": 0.3}
    with caplog.at_level(logging.WARNING):
        aligned(EEF, {"/e": [(at, JsonObject(angles)) for at, _ in HAND]})
    assert "[eef] roll, pitch and yaw" in caplog.text


def test_a_static_topic_is_one_whose_name_ends_in_tf_static():
    assert [alignment.is_static(topic) for topic in ("/tf_static", "/robot/tf_static", "/tf", "/tf_static/x")] == [
        True, True, False, False,
    ]  # fmt: skip
