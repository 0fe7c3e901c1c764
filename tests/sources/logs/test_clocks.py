"""The time of messages: one base, integer nanoseconds, and nothing that was guessed without a word."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.clocks import Stamps, find_placeless, place_messages

EPOCH_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def stamps(topic: str, log_ns, stamp_ns) -> Stamps:
    log = np.asarray(log_ns, dtype=np.int64)
    return Stamps(topic, np.arange(len(log)), log, np.asarray(stamp_ns, dtype=np.int64))


def place(parts: dict[str, Stamps], clock: str = "eef", max_latency_s: float | None = None) -> tuple[dict, list[str]]:
    problems: list[str] = []
    return place_messages(parts, clock, problems.append, max_latency_s), problems


@given(st.integers(0, 2**62), st.lists(st.integers(1, 10**8), min_size=2, max_size=30), st.integers(-(10**17), 10**17))
def test_stamps_of_the_clock_are_kept_to_the_nanosecond_whatever_the_log_says(start, steps, offset):
    header = start + np.cumsum([0, *steps])
    times, problems = place({"eef": stamps("/eef", header // 3 + offset, header + (header == 0))})
    assert np.diff(times["eef"].time_ns).tolist() == np.diff(header + (header == 0)).tolist()
    assert problems == []


@pytest.mark.parametrize(("apart_ms", "is_own"), [(0, True), (50, True), (-50, True), (51, False), (-5000, False)])
def test_a_topic_has_its_own_stamps_if_they_are_within_50_ms_of_the_clocks(apart_ms, is_own):
    log = EPOCH_NS + 50 * MS * np.arange(20)
    own = log + 7 * MS - 10**15
    parts = {"eef": stamps("/eef", log, log + 7 * MS - 10**15), "mug": stamps("/mug", log, own + apart_ms * MS)}
    times, _ = place(parts)
    assert times["mug"].base.startswith("header stamps" if is_own else "log time, mapped")
    expected = 50 * MS * np.arange(20) + (apart_ms * MS if is_own else 0)
    assert times["mug"].time_ns.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("eef_late_ms", "mug_late_ms", "is_own", "other_reading"),
    [
        (0, 150, True, "max_latency_s = 0.05 "),
        (150, 0, True, "max_latency_s = 0.05 "),
        (0, -150, False, "max_latency_s = 0.2 "),  # a message is not logged before its stamp
        (10**12, 10**12 + 150, False, "max_latency_s = 0.2 "),  # log times are of another clock
        (0, 1001, False, "because the clocks differ"),
    ],
)
def test_stamps_over_50_ms_off_are_a_warning_up_to_1_s_with_the_line_for_the_other_reading(
    eef_late_ms, mug_late_ms, is_own, other_reading
):
    at = EPOCH_NS + 50 * MS * np.arange(20)
    parts = {"eef": stamps("/eef", at + eef_late_ms * MS, at), "mug": stamps("/mug", at + mug_late_ms * MS, at)}
    times, problems = place(parts)
    assert times["mug"].base.startswith("header stamps") == is_own
    (problem,) = problems
    assert re.search(r"/mug are (0\.15|1\.00) s", problem)
    assert other_reading in problem
    if other_reading.startswith("max_latency_s"):
        times, problems = place(parts, max_latency_s=float(other_reading.split()[2]))
        assert (times["mug"].base.startswith("header stamps"), problems) == (not is_own, [])


@pytest.mark.parametrize("ahead", [lambda k: 10_000 * (k > 60), lambda k: k])  # ms: set at a message, or drifting
@pytest.mark.parametrize("moved", ["eef", "mug"])
def test_a_clock_that_is_set_or_drifts_during_the_recording_is_noticed(ahead, moved):
    k = np.arange(100)
    at = EPOCH_NS + 50 * MS * k
    own = {part: at + MS * ahead(k) * (part == moved) for part in ("eef", "mug")}
    times, (problem,) = place({part: stamps(f"/{part}", at, own[part]) for part in own})
    assert "the clocks differ" in problem
    assert times["mug"].time_ns.tolist() == times["eef"].time_ns.tolist()
    late = stamps("/mug", at + 300 * MS * (k > 80), at)  # stamps are right where only the messages are late
    times, (problem,) = place({"eef": stamps("/eef", at, at), "mug": late})
    assert "the stamps are used" in problem
    assert times["mug"].time_ns.tolist() == (at - EPOCH_NS).tolist()


@pytest.mark.parametrize(("count", "is_noticed"), [(40, True), (39, False)])
def test_a_late_part_of_few_messages_is_not_a_change_of_the_clock(count, is_noticed):
    k = np.arange(count)
    at = EPOCH_NS + 50 * MS * k
    _, problems = place({"eef": stamps("/eef", at, at), "mug": stamps("/mug", at, at + 10_000 * MS * (k > 30))})
    assert bool(problems) == is_noticed


def test_a_tracker_that_repeats_its_last_message_keeps_its_stamps_and_a_clock_of_seconds_is_a_warning():
    at = EPOCH_NS + 50 * MS * np.arange(100)
    lost = stamps("/mug", at, np.minimum(at, at[40]))
    times, problems = place({"eef": stamps("/eef", at, at), "mug": lost})
    assert problems == []
    assert times["mug"].time_ns.max() == 2000 * MS
    seconds = stamps("/mug", at, at // 10**9 * 10**9)
    _, (problem,) = place({"eef": stamps("/eef", at, at), "mug": seconds})
    assert "before its log time" in problem


def test_log_times_are_mapped_through_the_clock_whose_rate_may_be_another():
    """A simulation at half speed: a topic without stamps runs on simulated time too."""
    log = EPOCH_NS + 100 * MS * np.arange(11)
    parts = {"eef": stamps("/eef", log, 10**9 + (log - EPOCH_NS) // 2), "f": stamps("/f", log + 30 * MS, log * 0)}
    times, _ = place(parts)
    assert times["f"].time_ns[:3].tolist() == [15 * MS, 65 * MS, 115 * MS]
    assert times["f"].time_ns[-1] == 515 * MS  # beyond the last pair by the same rate


def test_a_single_stamp_of_zero_is_mapped_and_a_simulation_may_start_at_zero():
    log = EPOCH_NS + 50 * MS * np.arange(10)
    header = 10**9 + 50 * MS * np.arange(10)
    header[4] = 0
    times, _ = place({"eef": stamps("/eef", log, header)})
    assert np.diff(times["eef"].time_ns).tolist() == [50 * MS] * 9
    times, _ = place({"eef": stamps("/eef", log, 50 * MS * np.arange(10))})
    assert np.diff(times["eef"].time_ns).tolist() == [50 * MS] * 9


def test_without_stamps_log_times_are_used_and_a_warning_says_so():
    log = EPOCH_NS + 50 * MS * np.arange(5)
    times, problems = place({"eef": stamps("/eef", log, log * 0), "mug": stamps("/mug", log, log + 10**15)})
    assert times["mug"].time_ns.tolist() == (50 * MS * np.arange(5)).tolist()
    assert ["/eef have" in problem for problem in problems] == [True]


@pytest.mark.parametrize("by_header", [True, False])
def test_a_clock_that_goes_back_is_an_error_that_says_where_and_by_how_much(by_header):
    back = EPOCH_NS + 50 * MS * np.maximum(np.arange(10) - 1, 0) - 410 * MS * (np.arange(10) >= 6)
    even = EPOCH_NS + 50 * MS * np.arange(10)
    part = stamps("/eef", even, back) if by_header else stamps("/eef", back, back * 0)
    with pytest.raises(RecordError, match=r"0\.36 s.*message 7, 0\.2 s") as caught:
        place({"eef": part})
    assert ("header stamps" if by_header else "log times") in caught.value.problem
    assert "`clock`" not in caught.value.remedy  # no topic could be it
    with pytest.raises(RecordError) as caught:
        place({"eef": part, "back": part._replace(topic="/back"), "mug": stamps("/mug", even, even)})
    assert "`clock` under [episode]" in caught.value.remedy
    assert caught.value.remedy.endswith(": /mug.")


def test_of_a_topic_with_two_stamps_these_say_whether_it_can_be_the_clock_and_with_one_the_log():
    back = EPOCH_NS + MS * np.array([0, 50, 20])
    parts = {f"/{count}": stamps(f"/{count}", back, [*back[:count], *[0] * (3 - count)]) for count in (1, 2)}
    with pytest.raises(RecordError) as caught:
        place({"eef": stamps("/eef", back, back), **parts})
    assert caught.value.remedy.endswith(": /2.")


def test_increasing_stamps_hold_though_the_log_goes_back_and_other_topics_go_by_the_order_of_the_file():
    even = 10**9 + 50 * MS * np.arange(10)
    log = EPOCH_NS + even - 5000 * MS * (np.arange(10) >= 5)
    eef = Stamps("/eef", np.arange(0, 20, 2), log, even)
    joints = Stamps("/joints", np.arange(1, 21, 2), log, log * 0)
    times, problems = place({"eef": eef, "joints": joints})
    assert np.diff(times["eef"].time_ns).tolist() == [50 * MS] * 9
    assert times["joints"].time_ns.tolist() == (25 * MS + 50 * MS * np.arange(10)).tolist()
    assert "times of /eef" in problems[0]


def test_another_topic_whose_stamps_go_back_is_placed_by_its_log_times_with_a_warning():
    log = EPOCH_NS + 50 * MS * np.arange(10)
    header = log.copy()
    header[5] -= 60 * MS
    times, problems = place({"eef": stamps("/eef", log, log), "mug": stamps("/mug", log, header)})
    assert times["mug"].time_ns.tolist() == times["eef"].time_ns.tolist()
    assert "stamps of /mug" in problems[0]


def test_a_message_of_the_clock_without_a_stamp_is_left_out_where_log_times_are_too_rough_to_replace_it():
    log = EPOCH_NS + 50 * MS * np.arange(10)
    header = log - 10**15
    header[[0, 6]] = 0
    assert not find_placeless(stamps("/eef", log, header)).any()
    jittered = log + 9 * MS * np.sin(np.arange(10) ** 2).round().astype(np.int64)
    assert np.flatnonzero(find_placeless(stamps("/eef", jittered, header))).tolist() == [0, 6]


def test_a_simulation_that_begins_at_zero_keeps_that_stamp_however_late_it_was_logged():
    log = EPOCH_NS + 50 * MS * np.arange(10)
    log[0] += 31 * MS
    clock = stamps("/eef", log, 50 * MS * np.arange(10))
    assert not find_placeless(clock).any()
    times, _ = place({"eef": clock})
    assert times["eef"].time_ns.tolist() == (50 * MS * np.arange(10)).tolist()


def test_stamps_that_are_no_seconds_by_the_log_are_a_warning():
    log = EPOCH_NS + 50 * MS * np.arange(10)
    _, problems = place({"eef": stamps("/eef", log, 10**9 + 50_000 * MS * np.arange(10))})
    assert "1e+03 times" in problems[0]


def test_a_single_stamp_gives_no_step_by_which_zero_would_be_a_stamp():
    clock = stamps("/eef", EPOCH_NS + 50 * MS * np.arange(3), [0, 50 * MS, 0])
    assert not find_placeless(clock).any()
    times, _ = place({"eef": clock})
    assert len(times["eef"].time_ns) == 3


@pytest.mark.parametrize(
    ("header_ms", "placeless"),
    [
        ([0, 50, 100], []),
        ([0, 100, 150, 200], []),  # two periods after a stamp of 0
        ([0, 140, 190, 240], [0]),
        ([0, 0, 50, 100], [0, 1]),
        ([0, 50, 0, 100, 150], [2]),
        ([50, 0, 100], [1]),
    ],
)
def test_zero_is_the_first_stamp_of_a_simulation_only_if_the_next_message_has_a_stamp_soon_after(header_ms, placeless):
    rough = EPOCH_NS + 50 * MS * np.cumsum(np.arange(len(header_ms)) % 3)
    assert np.flatnonzero(find_placeless(stamps("/eef", rough, MS * np.array(header_ms)))).tolist() == placeless


@pytest.mark.parametrize(("late_ms", "placeless"), [(0.5, []), (0.6, [7])])
def test_log_times_replace_stamps_if_they_are_within_1_percent_of_a_step(late_ms, placeless):
    log = EPOCH_NS + 50 * MS * np.arange(9)
    header = log - 10**15
    log[2] += int(late_ms * MS)
    header[7] = 0
    assert np.flatnonzero(find_placeless(stamps("/eef", log, header))).tolist() == placeless


@pytest.mark.parametrize(("stamped_ms", "warns"), [(1, True), (2, True), (3, False), (4900, False), (5000, True)])
def test_stamps_that_advance_50_times_as_fast_or_slowly_as_the_log_are_a_warning(stamped_ms, warns):
    times, problems = place({"eef": stamps("/eef", [EPOCH_NS, EPOCH_NS + 100 * MS], [MS, (1 + stamped_ms) * MS])})
    assert times["eef"].time_ns.tolist() == [0, stamped_ms * MS]
    assert ["times as fast" in problem for problem in problems] == [True] * warns


@pytest.mark.parametrize(
    ("log_ms", "stamp_ms", "other_ms", "mapped_ms"),
    [
        ([0, 0, 0], [50, 100, 150], [-20, 30], [-20, 30]),  # one log time: by the rate of the log
        ([0, 100], [50, 100], [-20, 130], [-10, 65]),
        ([0, 100, 200, 300], [50, 90, 180, 250], [0, 300], [0, 200]),
    ],
)
def test_log_times_beyond_those_of_the_clock_go_on_at_its_rate_and_its_own_are_exact(
    log_ms, stamp_ms, other_ms, mapped_ms
):
    clock = stamps("/eef", EPOCH_NS + MS * np.array(log_ms), MS * np.array(stamp_ms))
    times, problems = place({"eef": clock, "f": stamps("/f", EPOCH_NS + MS * np.array(other_ms), [0, 0])})
    assert times["f"].time_ns.tolist() == [MS * place for place in mapped_ms]
    assert problems == []
