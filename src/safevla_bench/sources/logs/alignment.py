"""Resampling of one trial of a recording to the times of its clock.

One topic is the clock: the times of its messages are the instants, which can become records. Poses are interpolated. A
pose is unknown if no message arrived since the previous instant, because the tracker may have lost the body. Other
numbers stay known for two periods of their messages. Torques, forces and grips use all messages between records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import REMEDY_LARGE, refuse_field
from safevla_bench.errors import RecordError
from safevla_bench.sources.logs import mappings, records
from safevla_bench.sources.logs.clocks import Stamps, Times, find_placeless, place_messages
from safevla_bench.sources.logs.messages import MOST_NAMED, NumberTaker, PoseTaker, TransformTree
from safevla_bench.sources.logs.transforms import FrameTree, find_held, interpolate_poses, plain_frame
from safevla_bench.text import warn_once
from safevla_recorder.episode import Bools, Floats, Ints

_HELD_PERIODS = 2
_BURST_RATIO = 5  # warn of bursts if the mean time between messages exceeds the median by this factor
# If all other log times exceed this limit, messages with log time 0 and stamp 0 were sent before a simulation began.
_TICK_NS = 1_000_000_000
_LATEST_NS = np.iinfo(np.int64).max
_LOST_POSE = np.array([np.nan] * 3 + [1.0, 0.0, 0.0, 0.0])
Warn = Callable[[str], None]


class MessageSpan(NamedTuple):
    """One trial: its name, its facts, and its time span. The log times of its messages are in [begin_ns, end_ns)."""

    file: str
    name: str
    begin_ns: int
    end_ns: int
    facts: mappings.Episode
    first_ns: int  # log time of the recording's first message


def is_static(topic: str) -> bool:
    """Return whether a topic is named `tf_static`, which means that its messages are valid at any time."""
    # The topic may be in a namespace, as in `/robot1/tf_static`. Only the end of the name is compared.
    return topic.endswith("tf_static")


def align(
    trial: MessageSpan,
    mapping: mappings.LogMapping,
    takers: Mapping[str, NumberTaker | PoseTaker],
    transforms: TransformTree,
) -> records.LoggedEpisode:
    """Return the trial as an episode, with each mapped part of the record sampled at the instants of the clock.

    Raises `RecordError` if a part has no message, if the clock's times go back or are fewer than two, or if no
    transform connects the frames of poses.
    """
    # `takers` has the messages of each mapped part of the record. `transforms` has the transforms between frames (/tf).
    # `stamps`, `edge_stamps` and `held_stamps` map the name of a part or transform to the times of its messages.
    warn = partial(warn_once, trial.file)
    channels = {part: _Channel(takers[part], trial, warn) for part in mapping.sources}
    stamps = {part: channel.stamps for part, channel in channels.items() if not channel.is_static}
    # Moving transforms are interpolated. A static pose that changes is used until the next static pose.
    edge_stamps, held_stamps = transforms.list_stamps(), transforms.list_stamps(static=True)
    held_stamps |= {part: channel.stamps for part, channel in channels.items() if channel.is_static and channel.changes}
    for name, held in held_stamps.items():
        # Warn only if a static pose changes within the trial.
        if not ((trial.begin_ns < held.log_ns) & (held.log_ns < trial.end_ns)).any():
            continue
        last_s = f"{(held.log_ns.max() - trial.first_ns) / 1e9:.9f}".rstrip("0").rstrip(".")
        problem = f"has different static poses, the last {last_s} s after the first message"
        remedy = f"To use only the last pose, write start_s = {last_s} in an [[episode]]"
        warn(f"[{name}] {problem}; each pose is used from its time on, and the first pose also before. {remedy}")
    # The clock is the part or transform whose message times are the instants of the episode.
    clock = _choose_clock(mapping, trial.facts, stamps, edge_stamps)
    if clock in stamps:  # the clock is a part, not a transform
        is_placeless = find_placeless(stamps[clock])
        if is_placeless.any():
            problem = f"{is_placeless.sum()} messages are left out, since their header stamp is zero"
            warn(f"the clock is [{clock}]; {problem}")
            channels[clock].choose(~is_placeless)
            stamps[clock] = channels[clock].stamps
    times = place_messages({**stamps, **edge_stamps, **held_stamps}, clock, warn, mapping.max_latency_s, stamps.keys())
    # The instants [ns] at which all parts are sampled.
    # An instant can become a record if all parts of the robot are known then.
    instants = np.unique(times[clock].time_ns)
    if repeated_count := len(times[clock].time_ns) - len(instants):
        warn(f"{repeated_count} clock messages are left out, since they repeat an earlier time")
    if len(instants) < 2:
        remedy = "Choose another topic with `clock` under [episode]."
        raise RecordError("the clock's topic has messages at fewer than two times", remedy=remedy)
    if len(instants) * sum(channel.rows.shape[1] for channel in channels.values()) > mappings.MAX_NUMBERS:
        problem = f"resampling to the clock would give more than {mappings.MAX_NUMBERS} numbers"
        raise RecordError(problem, remedy=REMEDY_LARGE)
    tree = transforms.build_tree(times, mapping.transforms.max_gap_s)
    series = {part: channel.sample(instants, times.get(part), tree) for part, channel in channels.items()}
    if tree.rare_frames:
        gap_text = f"come once, or mostly over {mapping.transforms.max_gap_s:g} s apart"
        remedy = "If the frames move little, write a larger max_gap_s under [transforms]"
        warn(f"the transforms of {', '.join(tree.rare_frames)} {gap_text}; poses in between are unknown. {remedy}")
    for part, channel in channels.items():
        # If a force and the hand's poses are in the same frame, the axes of the force do not turn with the hand.
        force, hand = channel.taker, channels.get(part.replace("wrench", "eef", 1))
        if hand is not None and isinstance(force, NumberTaker) and isinstance(hand.taker, PoseTaker):
            is_fixed = force.frame in {*hand.taker.frame_names, *hand.frames} - {""}
            series[part] = series[part]._replace(is_fixed=is_fixed)
    # A dict serves as an ordered set. Frames without a name cannot be compared.
    frames = dict.fromkeys(frame for channel in channels.values() for frame in channel.frames if frame)
    if len(frames) > 1:
        named = [*frames][:MOST_NAMED]
        remedy = f'For each mapped pose, write `in = "{named[0]}"`, so that transforms (/tf) convert it.'
        raise RecordError(f"poses are in different frames: {', '.join(named)}", remedy=remedy)
    unnamed = ", ".join(f"[{part}]" for part, channel in channels.items() if channel.frames == ("",))
    if unnamed and frames:
        warn(f"the poses of {unnamed} do not name their frame; they are read as poses in {next(iter(frames))}")
    step_ns = int(np.median(np.diff(instants)))
    # An even clock has equal steps that divide 1 s evenly, unlike 33,333,333 ns, the rounded step of 30 Hz.
    is_even = bool((np.diff(instants) == step_ns).all()) and 10**9 % step_ns == 0
    return records.LoggedEpisode(
        name=trial.name,
        file=trial.file,
        time_s=(instants - instants[0]) / 1e9,
        dt_s=step_ns / 1e9,
        series=series,
        facts=trial.facts,
        has_stamps=not is_even,
    )


class _Channel:
    """The m messages of a trial for one part of the record. `rows` [m, k] are the numbers, and `stamps` the times."""

    def __init__(self, taker: NumberTaker | PoseTaker, trial: MessageSpan, warn: Warn) -> None:
        # `taker` holds all messages of the recording for one part of the record; only those in `trial` are kept.
        self.taker, self.columns, self.stamps, self.warn = taker, taker.columns, taker.stamps, warn
        self.frames: tuple[str, ...] = ()  # frames of the sampled poses; () if the part is not a pose
        if isinstance(taker, PoseTaker):
            self.in_frame = np.array(taker.frames)  # index of each pose's frame in `taker.frame_names`
            self.frames = (plain_frame(taker.columns.into),) if taker.columns.into else tuple(taker.frame_names)
            # `doubt` is a warning about a convention that the names do not state; "" = none.
            if taker.layout is not None and taker.layout.doubt:
                warn(f"[{taker.part}] {taker.layout.doubt}")
            # The first parent frame that may move, because it is the child of another frame; None = no such frame.
            moving_frame = next((frame for frame in taker.frame_names if frame in taker.children), None)
            if moving_frame and not taker.columns.into:
                problem = f"[{taker.part}] has the frame {moving_frame}, which may move"
                reason = f"since its pose is in {taker.topic}"
                warn(f"{problem}, {reason}; write `in` to convert the poses to a fixed frame")
        else:
            self.in_frame = np.zeros(len(taker.numbers), dtype=np.int64)
        self.rows = taker.numbers
        read_numbers = taker.read_numbers  # the numbers in the log's units
        finite = read_numbers[np.isfinite(read_numbers)]
        # The log probably stores float32 if float32 holds all numbers exactly and some have over 10 fractional bits.
        # (Numbers with few bits, such as 0.5, do not show how the log stores numbers.)
        with np.errstate(over="ignore"):
            self.is_single = bool((finite == finite.astype(np.float32)).all() and (finite * 1024 % 1 != 0).any())
        # A part is static (valid at any time) if its messages are latched, and are from /tf_static or all equal.
        self.is_static = taker.latched and (is_static(taker.topic) or bool((read_numbers == read_numbers[:1]).all()))
        self.changes = bool((read_numbers != read_numbers[-1:]).any())  # False if all messages are equal
        if not self.is_static:
            log_ns = self.stamps.log_ns
            is_in_trial = (log_ns >= trial.begin_ns) & (log_ns < trial.end_ns)
            # Messages before a simulation's first tick have log time 0 and stamp 0.
            is_timeless = (log_ns == 0) & (self.stamps.stamp_ns == 0)
            first_ns = log_ns[log_ns > 0].min(initial=_LATEST_NS)
            if is_timeless.any() and not is_timeless.all() and first_ns > _TICK_NS:
                problem = f"[{taker.part}]: {is_timeless.sum()} messages are left out"
                warn(f"{problem}: a simulation sent these messages before its first tick")
                is_in_trial &= ~is_timeless
            self.choose(is_in_trial)
        if not len(self.rows):
            problem = f"there is no message of {taker.part} in this trial"
            raise RecordError(problem, remedy="Check the start and the end of the trial.")
        converted = taker.convert(self.rows)
        self.rows = records.drop_zero_turns(converted, taker.columns, lambda problem: warn(f"[{taker.part}] {problem}"))

    def choose(self, chosen: NDArray[Any]) -> None:
        # Keeps only the messages that `chosen`, a mask or an array of indices, selects.
        # Each message has a row of numbers, the index of its frame, and times.
        self.rows, self.in_frame, self.stamps = self.rows[chosen], self.in_frame[chosen], self.stamps.choose(chosen)

    def sample(self, instants: Ints, times: Times | None, tree: FrameTree) -> records.Series:
        """Return the part's values at the instants. `times` are the messages' times; None if all are equal."""
        # `instants` [ns] are the times of the clock, and `tree` converts poses between frames.
        # Call `sample` only once, because it changes which messages the channel has, and their order.
        # `order` has indices of messages. For a static part, `order` has the message that is used at each instant.
        # For a part that is not static, `order` has all messages in order of time.
        # If all messages are equal, use the last message (-1) at each instant.
        order = np.full(len(instants), -1) if times is None else np.argsort(times.time_ns, kind="stable")
        if self.is_static and times is not None:
            order = order[find_held(times.time_ns[order], instants)]
        self.choose(order)
        # The times of the chosen messages; a static part has one message per instant.
        time_ns = instants if times is None or self.is_static else times.time_ns[order]
        if isinstance(self.taker, NumberTaker):
            series = _sample_numbers(self.rows, time_ns, instants)._replace(names=self.taker.find_order())
            if len(time_ns) > 2 and np.diff(time_ns).mean() > _BURST_RATIO * _find_period(time_ns):
                problem = f"the messages of {self.taker.topic} come in bursts; its numbers are unknown between bursts"
                self.warn(f"[{self.taker.part}] {problem}. Record header stamps of the measurements")
        else:
            series = _sample_poses(self._convert_poses(tree, time_ns), time_ns, instants, self.columns)
        series = series._replace(is_single=self.is_single)
        if times is None or self.is_static:
            return series._replace(poses=0)  # static poses are not counted, and have no rate
        steps_s = np.diff(time_ns) / 1e9
        period_s = float(np.median(steps_s)) if len(steps_s) else 0.0
        rate_hz = 1 / period_s if period_s else None
        gap_s = float(steps_s.max(initial=0.0)) or None
        return series._replace(time_base=times.base, rate_hz=rate_hz, longest_gap_s=gap_s)

    def _convert_poses(self, tree: FrameTree, time_ns: Ints) -> Floats:
        # Returns the poses at `time_ns`. If the mapping gives a frame as `in`, the poses are converted to this frame.
        # A pose contains NaN if the pose or a needed transform is unknown at that time.
        # `rows` are the poses before the conversion. `tree` has the transforms between frames.
        # If the mapping has `in`, `frames` has only the target frame.
        assert isinstance(self.taker, PoseTaker)
        if not self.taker.columns.into:
            return self.rows
        converted, is_known = np.full_like(self.rows, np.nan), records.are_known(self.rows, self.columns)
        for frame, frame_index in self.taker.frame_names.items():
            # `in_frame` has the index of each pose's frame.
            is_in_frame = is_known & (self.in_frame == frame_index)
            if not is_in_frame.any():
                continue
            # A pose cannot be converted if the message does not name the pose's frame.
            if not frame:
                problem = f"the poses of {self.taker.topic} do not name their frame"
                refuse_field(problem, "Leave `in` out.", self.taker.part)
            converted[is_in_frame] = tree.bring(self.rows[is_in_frame], frame, self.frames[0], time_ns[is_in_frame])
        return converted


def _choose_clock(
    mapping: mappings.LogMapping,
    facts: mappings.Episode,
    stamps: Mapping[str, Stamps],
    edge_stamps: Mapping[str, Stamps],
) -> str:
    # Returns the name of the part or transform whose messages define the instants.
    # If the mapping gives `clock`, the result is a part that is read from the topic `clock`.
    # Without `clock`, the result is, in order of preference: the hand, a pose, a transform, or any part.
    # If several parts qualify, the part with the most messages is chosen.
    # Poses come before faster torques, because poses sampled at the times of torques would have wrong accelerations.
    # `facts` is the mapping's table about the trial.
    # `stamps` has the times of parts, and `edge_stamps` has the times of transforms.
    asked_parts = [part for part in stamps if mapping.sources[part].source == facts.clock]
    if facts.clock is not None and not asked_parts:
        remedy = f"The mapped topics are: {', '.join(sorted({stamp.topic for stamp in stamps.values()}))}."
        raise RecordError(f"the clock topic {facts.clock!r} is not in the mapping", remedy=remedy)
    pose_parts = [part for part in stamps if isinstance(mapping.sources[part], mappings.PoseColumns)]
    hand_parts = [part for part in pose_parts if part.partition(".")[0] == "eef"]
    all_stamps = {**edge_stamps, **stamps}
    for candidates in (asked_parts, hand_parts, pose_parts, edge_stamps, stamps):
        if candidates:
            return max(candidates, key=lambda part: len(all_stamps[part].log_ns))
    raise RecordError("all mapped topics are static", remedy="Map a topic with changing values.")


def _sample_poses(rows: Floats, time_ns: Ints, instants: Ints, columns: mappings.AnyColumns) -> records.Series:
    # Return the pose at each instant, interpolated between the messages before and after the instant.
    # `rows` [m, 3 or 7] are the poses of the messages at the ascending times `time_ns`, [m].
    # The pose is known only if a message arrived after the previous instant.
    # In a gap, the body may be lost, so nothing is interpolated. The gap's first instant gets the last pose.
    # In a gap, the poses of the hand and of targets are unknown. With old poses, a target would seem to slip.
    is_pose = records.are_known(rows, columns)
    # Index of the last message at or before each instant; -1 = none.
    # `is_new`: whether an instant's last message came after the previous instant.
    last_pose = np.searchsorted(time_ns, instants, side="right") - 1
    is_new = np.diff(last_pose, prepend=-1) > 0
    last_indices = np.flatnonzero(np.diff(time_ns, append=_LATEST_NS))  # of several messages at one time, use the last
    # Interpolation needs quaternions. Poses without orientation and unknown poses get the quaternion 1, 0, 0, 0.
    keys = np.where(is_pose[:, None], np.hstack([rows, np.eye(1, 4).repeat(len(rows), axis=0)])[:, :7], _LOST_POSE)
    # Poses are interpolated between messages that are at most two periods (or two clock steps) apart.
    step_ns = _find_period(instants)
    # For the period, count one message per burst, or one per clock step if the burst is longer than a step.
    # `is_apart` is true for the messages that are counted: the first of each burst, and one per further step.
    is_apart = np.diff(time_ns, prepend=-_LATEST_NS // 2) > step_ns / 10
    # For each message, the time at which the message's burst begins.
    burst_begins_ns = time_ns[np.flatnonzero(is_apart)[np.cumsum(is_apart) - 1]]
    is_apart |= np.diff((time_ns - burst_begins_ns) // step_ns, prepend=0) > 0
    period_ns = _find_period(time_ns[is_apart])
    longest_ns = _HELD_PERIODS * max(period_ns if np.isfinite(period_ns) else 0.0, step_ns)
    position, rotation = interpolate_poses(time_ns[last_indices], keys[last_indices], instants, longest_ns)
    nearest = np.maximum(last_pose, 0)
    norms = np.linalg.norm(keys[nearest, 3:], axis=1, keepdims=True)  # keep norms, to warn if they are not 1
    values = np.hstack([position, norms * rotation.as_quat()[:, [3, 0, 1, 2]]])[:, : rows.shape[1]]
    uses_message = time_ns[nearest] == instants
    # At the first instant of a gap, a body keeps its last pose, except targets and the hand (which has no role).
    if getattr(columns, "role", "target") != "target":
        is_gap = ~records.are_known(values, columns)
        is_gap[0] &= instants[0] - time_ns[nearest[0]] <= longest_ns  # the first instant has no previous instant
        uses_message |= is_gap
    values = np.where(uses_message[:, None], rows[nearest], values)
    is_known = np.asarray(is_new & records.are_known(values, columns))
    return records.Series(values, is_known, poses=int(is_pose.sum()))


def _find_period(time_ns: Ints) -> float:
    # Returns the median time between messages [ns]; infinity for fewer than two messages.
    return float(np.median(np.diff(time_ns))) if len(time_ns) > 1 else np.inf


def _are_held(last_message: Ints, time_ns: Ints, instants: Ints) -> Bools:
    # Return for each instant whether the last message, at the index `last_message`, is at most two periods old, [n].
    # Two periods allow for one message that is late or lost. An index of -1 means that there is no message yet.
    age_ns = instants - time_ns[np.maximum(last_message, 0)]
    return np.asarray((last_message >= 0) & (age_ns <= _HELD_PERIODS * _find_period(time_ns)))


def _sample_numbers(rows: Floats, time_ns: Ints, instants: Ints) -> records.Series:
    # Return the latest value of each number at each instant, and all messages as `between`.
    # A value stays known for two periods of the messages that contain the number. `time_ns` is in ascending order.
    values, known = np.full((len(instants), rows.shape[1]), np.nan), np.ones(len(instants), np.bool_)
    for column in range(rows.shape[1]):
        has_number = np.isfinite(rows[:, column])
        if not has_number.any():  # if no message contains a number, the number and the part are never known
            known[:] = False
            continue
        last_message = np.searchsorted(time_ns[has_number], instants, side="right") - 1
        is_held = _are_held(last_message, time_ns[has_number], instants)
        values[is_held, column] = rows[has_number, column][last_message[is_held]]
        # The part is known only while all numbers of the part are known.
        known &= is_held
    next_instant = np.searchsorted(instants, time_ns)  # for each message, index of the first instant at or after it
    next_instant[time_ns < instants[0]] = -1  # -1 = before the first instant
    return records.Series(values, known, between=(rows, next_instant))
