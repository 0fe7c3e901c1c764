"""Alignment of one trial of a recording to the instants of its clock.

Each message of the clock's topic is an instant, which becomes a record. A body's pose is known at an instant only if it
arrived since the previous instant: a repeated old pose would look like rest and then a jump. A torque or grip combines
all messages since the previous record. Numbers that are not poses are valid for two periods of their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import REMEDY_LARGE, refuse_field
from safevla_bench.errors import RecordError
from safevla_bench.sources.logs import records
from safevla_bench.sources.logs.clocks import Stamps, Times, find_placeless, place_messages
from safevla_bench.sources.logs.messages import MOST_NAMED, NumberTaker, PoseTaker, TransformTree
from safevla_bench.sources.logs.transforms import FrameTree, plain_frame
from safevla_bench.text import warn_once
from safevla_recorder.episode import Bools, Floats, Ints

_HELD_PERIODS = 2
_TICK_NS = 1_000_000_000
"""Messages with log time 0 precede a simulation's start, and are left out, if all other log times exceed this."""
_LATEST = np.iinfo(np.int64).max
Warn = Callable[[str], None]


class MessageSpan(NamedTuple):
    """One trial: its name, its facts, and its time span. Its messages have log times [ns] in [begin_ns, end_ns)."""

    file: str
    name: str
    begin_ns: int
    end_ns: int
    facts: records.Episode


def is_static(topic: str) -> bool:
    """Return whether a topic's messages are valid at any time, like those of /tf_static."""
    return topic.endswith("tf_static")


def align(
    trial: MessageSpan,
    mapping: records.LogMapping,
    takers: Mapping[str, NumberTaker | PoseTaker],
    transforms: TransformTree,
) -> records.LoggedEpisode:
    """Return the trial's episode, with each part sampled at the instants of the clock.

    Raises `RecordError` if a part has no message, if the clock goes back or has fewer than two instants, or if poses
    are in frames that no transform connects.
    """
    warn = partial(warn_once, trial.file)
    channels = {part: _Channel(takers[part], trial, warn) for part in mapping.sources}
    stamps = {part: channel.stamps for part, channel in channels.items() if not channel.is_static}
    edges = transforms.stamps
    clock = _choose_clock(mapping, trial.facts, stamps, edges)
    if clock in stamps and (lacking := find_placeless(stamps[clock])).any():
        warn(f"{lacking.sum()} messages of the clock, [{clock}], are left out, since their header stamp is zero")
        channels[clock].choose(~lacking)
        stamps[clock] = channels[clock].stamps
    times = place_messages({**stamps, **edges}, clock, warn)
    instants = np.unique(times[clock].time_ns)
    if repeated := len(times[clock].time_ns) - len(instants):
        warn(f"{repeated} clock messages are left out, since they repeat an earlier time")
    if len(instants) < 2:
        remedy = "Choose another topic with `clock` under [episode]."
        raise RecordError("the clock's topic has fewer than two messages", remedy=remedy)
    if len(instants) * sum(channel.rows.shape[1] for channel in channels.values()) > records.MAX_NUMBERS:
        problem = f"more than {records.MAX_NUMBERS} numbers after resampling to the clock"
        raise RecordError(problem, remedy=REMEDY_LARGE)
    tree = transforms.build_tree(times, mapping.transforms.max_gap_s)
    series = {part: channel.sample(instants, times.get(part), tree) for part, channel in channels.items()}
    frames = dict.fromkeys(frame for channel in channels.values() for frame in channel.frames if frame)
    if len(frames) > 1:
        named = [*frames][:MOST_NAMED]
        remedy = f'Write in = "{named[0]}" into each part: transforms (/tf) then convert all poses to it.'
        raise RecordError(f"poses are in different frames: {', '.join(named)}", remedy=remedy)
    step_ns = int(np.median(np.diff(instants)))
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
    """The messages in a trial for one part of the record: their numbers, `rows` [m, k], and their times, `stamps`."""

    def __init__(self, taker: NumberTaker | PoseTaker, trial: MessageSpan, warn: Warn) -> None:
        self.taker, self.columns, self.stamps = taker, taker.columns, taker.stamps
        self.frames: tuple[str, ...] = ()
        if isinstance(taker, PoseTaker):
            self.rows, self.in_frame = taker.poses, np.array(taker.frames)
            self.frames = (plain_frame(taker.columns.into),) if taker.columns.into else tuple(taker.frame_names)
            if taker.layout is not None and taker.layout.doubt:
                warn(f"[{taker.part}] {taker.layout.doubt}")
            moving = next((frame for frame in taker.frame_names if frame in taker.children), None)
            if moving and not taker.columns.into:
                problem = f"[{taker.part}] is relative to {moving}, whose pose is also in {taker.topic} and may change"
                warn(f"{problem}; write `in` to convert the poses to a fixed frame")
        else:
            self.rows, self.in_frame = taker.numbers, np.zeros(len(taker.numbers), dtype=np.int64)
        finite = self.rows[np.isfinite(self.rows)]
        with np.errstate(over="ignore"):  # true if all numbers fit float32, and some have over 10 fractional bits
            self.is_single = bool((finite == finite.astype(np.float32)).all() and (finite * 1024 % 1 != 0).any())
        if isinstance(taker, NumberTaker):
            self.rows = self.rows * taker.columns.scale
        self.is_static = taker.latched and (is_static(taker.topic) or bool((self.rows == self.rows[:1]).all()))
        if self.is_static and (self.rows != self.rows[-1:]).any():
            warn(f"[{taker.part}] has different static poses; the last one is used throughout")
        if not self.is_static:
            log_ns = self.stamps.log_ns
            early = (log_ns == 0) & (self.stamps.stamp_ns == 0)
            early &= not early.all() and bool(log_ns[log_ns > 0].min(initial=_LATEST) > _TICK_NS)
            if early.any():
                problem = f"{early.sum()} messages of [{taker.part}] are left out"
                warn(f"{problem}: a simulation sent them before its first tick")
            self.choose((log_ns >= trial.begin_ns) & (log_ns < trial.end_ns) & ~early)
        if not len(self.rows):
            problem = f"there is no message of {taker.part} in this trial"
            raise RecordError(problem, remedy="Check the start and the end of the trial.")
        self.rows = records.drop_zero_turns(self.rows, taker.columns, lambda problem: warn(f"[{taker.part}] {problem}"))

    def choose(self, chosen: NDArray[Any]) -> None:
        self.rows, self.in_frame, self.stamps = self.rows[chosen], self.in_frame[chosen], self.stamps.choose(chosen)

    def sample(self, instants: Ints, times: Times | None, tree: FrameTree) -> records.Series:
        """Return the part sampled at the instants. `times` are the times of its messages; None for a static part."""
        order = np.full(len(instants), -1) if times is None else np.argsort(times.time_ns, kind="stable")
        self.choose(order)
        time_ns = instants if times is None else times.time_ns[order]
        if isinstance(self.taker, NumberTaker):
            series = _sample_numbers(self.rows, time_ns, instants)._replace(names=self.taker.find_order())
        else:
            series = _sample_poses(self._bring(tree, time_ns), time_ns, instants, self.columns)
        series = series._replace(is_single=self.is_single)
        if times is None:
            return series._replace(poses=0)
        steps_s = np.diff(time_ns) / 1e9
        period_s = float(np.median(steps_s)) if len(steps_s) else 0.0
        rate_hz, gap_s = (1 / period_s if period_s else None), float(steps_s.max(initial=0.0)) or None
        return series._replace(time_base=times.base, rate_hz=rate_hz, longest_gap_s=gap_s)

    def _bring(self, tree: FrameTree, time_ns: Ints) -> Floats:
        assert isinstance(self.taker, PoseTaker)
        if not self.taker.columns.into:
            return self.rows
        brought, known = np.full_like(self.rows, np.nan), records.are_known(self.rows, self.columns)
        for frame, number in self.taker.frame_names.items():
            of_frame = known & (self.in_frame == number)
            if of_frame.any() and not frame:
                problem = f"the poses of {self.taker.topic} do not name their frame"
                refuse_field(problem, "Leave `in` out.", self.taker.part)
            if of_frame.any():
                brought[of_frame] = tree.bring(self.rows[of_frame], frame, self.frames[0], time_ns[of_frame])
        return brought


def _choose_clock(
    mapping: records.LogMapping, facts: records.Episode, stamps: Mapping[str, Stamps], edges: Mapping[str, Stamps]
) -> str:
    """Return the part whose messages define the instants: the one that `clock` names; else the hand, since a record
    needs its pose; else the pose with the most messages. If all poses are static in their frames, it is the transform
    with the most messages. A faster torque is not used: poses interpolated at its instants have wrong accelerations.
    """
    asked = [part for part in stamps if mapping.sources[part].source == facts.clock]
    if facts.clock is not None and not asked:
        remedy = f"The mapped topics are: {', '.join(sorted({stamp.topic for stamp in stamps.values()}))}."
        raise RecordError(f"the clock topic {facts.clock!r} is not in the mapping", remedy=remedy)
    poses = [part for part in stamps if isinstance(mapping.sources[part], records.PoseColumns)]
    found = asked or [part for part in poses if part.partition(".")[0] == "eef"] or poses or [*edges] or [*stamps]
    if not found:
        raise RecordError("all mapped topics are static", remedy="Map a topic with changing values.")
    return max(found, key=lambda part: len({**edges, **stamps}[part].log_ns))


def _sample_poses(
    rows: Floats, time_ns: Ints, instants: Ints, columns: records.Columns | records.PoseColumns
) -> records.Series:
    """Return the last pose at each instant, known only if it arrived since the previous instant. `time_ns` ascends."""
    last = np.searchsorted(time_ns, instants, side="right") - 1
    values, messages = rows[np.maximum(last, 0)], int(records.are_known(rows, columns).sum())
    is_new = np.diff(last, prepend=-1) > 0
    is_new[0] &= _are_held(last[:1], time_ns, instants[:1])[0]
    return records.Series(values, np.asarray(is_new & records.are_known(values, columns)), poses=messages)


def _are_held(last: Ints, time_ns: Ints, instants: Ints) -> Bools:
    """Return whether the message with index `last` is at most two periods old at each instant, [n]; -1 = no message."""
    period = float(np.median(np.diff(time_ns))) if len(time_ns) > 1 else np.inf
    return np.asarray((last >= 0) & (instants - time_ns[np.maximum(last, 0)] <= _HELD_PERIODS * period))


def _sample_numbers(rows: Floats, time_ns: Ints, instants: Ints) -> records.Series:
    """Return the last value of each number at each instant, and all messages (`between`). A value is known for two
    periods of the messages that hold its number, since some messages may lack the number. `time_ns` ascends.
    """
    values, known = np.full((len(instants), rows.shape[1]), np.nan), np.ones(len(instants), np.bool_)
    for column in range(rows.shape[1]):
        present = np.isfinite(rows[:, column])
        last = np.searchsorted(time_ns[present], instants, side="right") - 1
        is_held = _are_held(last, time_ns[present], instants) if present.any() else np.zeros(len(instants), np.bool_)
        values[is_held, column] = rows[present, column][last[is_held]]
        known &= is_held
    return records.Series(values, known, between=(rows, np.searchsorted(instants, time_ns) - (time_ns < instants[0])))
