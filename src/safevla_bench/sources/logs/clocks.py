"""The times of all messages of a recording on one time base: integer nanoseconds since the clock's first message.

The header stamps of one topic, the clock, define the time base, even if their offset or rate differs from the log
times. Another topic's stamps are used if they are on this time base. Otherwise, the topic's log times are converted:
the clock's messages have log times and stamps, and conversion interpolates between them. A simulation writes a stamp of
zero before its first tick. The converted log time replaces a stamp of zero, unless the topic's times really start at 0.
If log times are too imprecise, the clock's messages with a stamp of zero are left out instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import RecordError
from safevla_recorder.episode import Ints

# Limit on the median difference [ns] between a topic's stamps and converted log times, for stamps on the time base.
# A topic with at least `_FEWEST_IN_QUARTERS` messages must satisfy the limit in each quarter of its messages.
_SAME_BASE_NS = 50_000_000
# Largest difference [ns] between stamps and log times that late messages can explain.
# If the difference exceeds `_SAME_BASE_NS`, a warning states whether late messages or different clocks are assumed.
_MAX_LATENCY_NS = 1_000_000_000
_FEWEST_IN_QUARTERS = 40
_MAX_RATE_RATIO = 50  # warn if stamps advance this many times faster or slower than log times
_MAX_ROUGHNESS = 1e-2  # limit on the error of interpolated stamps, as a multiple of the clock's median step
_FITTED_COUNT = 100  # extrapolation fits a line to this many messages at each end of the clock


class Stamps(NamedTuple):
    """The n messages of a topic in file order: index in the recording, log time [ns], header stamp [ns] (0 = none)."""

    topic: str
    order: Ints
    log_ns: Ints
    stamp_ns: Ints

    def choose(self, chosen: NDArray[Any]) -> Stamps:
        # Returns only the messages that `chosen`, a mask [n] or an array of indices, selects.
        # `order` is the index of each message in the recording.
        return Stamps(self.topic, self.order[chosen], self.log_ns[chosen], self.stamp_ns[chosen])


class Times(NamedTuple):
    """The time of each message on the recording's time base [ns], [n], and where the times come from, as text."""

    time_ns: Ints
    base: str


def place_messages(
    parts: Mapping[str, Stamps],
    clock: str,
    warn: Callable[[str], None],
    max_latency_s: float | None = None,
    clocks: Collection[str] | None = None,
) -> dict[str, Times]:
    """Return part -> times of its messages. `clock` is the part that defines the time base. `warn` receives warnings.
    Raises `RecordError` if the clock's times go back. The error states where, by how much, and which parts of `clocks`
    (None = all parts) have times that never go back.
    """
    # `parts` maps the name of each mapped part of the record, and of each transform, to its messages.
    # Header stamps are used if they differ by at most `max_latency_s` from log times; None = a default.
    reference, candidates = parts[clock], [stamps for name, stamps in parts.items() if clocks is None or name in clocks]
    is_stamped = _find_stamped(reference)
    # Without two stamps, the log times are the time base, and times are counted from the clock's first message.
    if is_stamped.sum() < 2:
        if step := describe_step_back(reference.log_ns):
            _refuse_step_back(candidates, reference.topic, "log times", step)
        warn(f"the messages of {reference.topic} have fewer than two header stamps, so log times are used")
        first_ns = int(reference.log_ns[0])
        return {name: Times(stamps.log_ns - first_ns, "log time") for name, stamps in parts.items()}
    # The clock's stamps must not go back. The log times may go back, since the order in the file can replace them.
    if step := describe_step_back(reference.stamp_ns[is_stamped]):
        _refuse_step_back(candidates, reference.topic, "header stamps", step)
    uses_log_times = not describe_step_back(reference.log_ns)
    position_kind = "log time" if uses_log_times else "order in the file"
    if not uses_log_times:
        problem = f"the log times of {reference.topic} go back {describe_step_back(reference.log_ns)}"
        warn(f"{problem}; messages without usable stamps are placed by their order in the file")

    def position_of(stamps: Stamps) -> Ints:
        # A position is a log time [ns] or, if the clock's log times go back, an index in the file.
        return stamps.log_ns if uses_log_times else stamps.order

    # Each clock message has a position and a stamp.
    # Interpolation between the clock's positions converts the position of any message to a stamp.
    clock_positions, first_indices = np.unique(position_of(reference)[is_stamped], return_index=True)
    clock_ns = reference.stamp_ns[is_stamped][first_indices]
    first_ns = int(clock_ns[0])
    # Nanoseconds of stamps per unit of position; about 1 if the positions are log times.
    rate = (int(clock_ns[-1]) - first_ns) / max(int(clock_positions[-1] - clock_positions[0]), 1)
    if uses_log_times and len(clock_positions) > 1 and not 1 / _MAX_RATE_RATIO < rate < _MAX_RATE_RATIO:
        problem = f"the header stamps of {reference.topic} advance {rate:.3g} times as fast as log time"
        warn(f"{problem}; are the stamps in seconds?")
    times = {}
    limit_ns = _SAME_BASE_NS if max_latency_s is None else max_latency_s * 1e9
    for name, stamps in parts.items():
        # The times of a part's messages are either converted positions, or the messages' header stamps.
        mapped_ns = _map_to_stamps(position_of(stamps), clock_positions, clock_ns) - first_ns
        stamps_ns = stamps.stamp_ns - first_ns
        has_stamp = _find_stamped(stamps)
        time_source = f"{position_kind}, mapped to the stamps of {reference.topic}"
        # The offset is the largest median difference between stamps and positions; infinite without stamps.
        offset_ns = max(_list_medians((stamps_ns - mapped_ns)[has_stamp], stamps_ns[has_stamp]), key=abs)
        step = describe_step_back(stamps_ns[has_stamp])
        use_stamps = name == clock or abs(offset_ns) <= limit_ns
        # Beyond the default limit, use stamps only if their offset is at most 1 s, and messages seem to be late.
        # Stamps with an offset of at most 1 s that go back are also selected here, and are rejected below.
        if not use_stamps and max_latency_s is None and has_stamp.any():
            is_near = abs(offset_ns) <= _MAX_LATENCY_NS
            use_stamps = is_near and bool(step or (uses_log_times and _may_be_late(reference) and _may_be_late(stamps)))
            # For stamps that go back, a more exact warning follows below.
            if not (is_near and step):
                warn(_describe_doubt(stamps.topic, reference.topic, offset_ns / 1e9, position_kind, use_stamps))
        if use_stamps:
            if step:  # stamps that go back are not used
                warn(f"the header stamps of {stamps.topic} go back {step}; the {position_kind} is used")
            else:
                # Messages without a stamp keep the converted position.
                mapped_ns, time_source = np.where(has_stamp, stamps_ns, mapped_ns), "header stamps"
        times[name] = Times(mapped_ns, time_source)
    return times


def _may_be_late(messages: Stamps) -> bool:
    # Returns whether the median log time is -0.05 to 1 s after the stamp, as if one clock gave both.
    has_stamp = _find_stamped(messages)
    stamp_ns = messages.stamp_ns[has_stamp]
    delays_ns = _list_medians(messages.log_ns[has_stamp] - stamp_ns, stamp_ns)
    return min(delays_ns) >= -_SAME_BASE_NS and max(delays_ns) <= _MAX_LATENCY_NS


def _list_medians(differences_ns: Ints, stamp_ns: Ints) -> list[float]:
    # Returns the median of each quarter of the messages, since a clock may drift, or be set during the recording.
    # For few messages, returns the median of all; without messages, returns infinity.
    # A tracker that lost its object may send the last pose again, with its old stamp, so repeated stamps do not count.
    # If most stamps are repeated, as those of a clock that counts seconds, all stamps count.
    is_new = np.diff(stamp_ns, prepend=stamp_ns[:1] - 1) != 0
    if len(is_new) and np.median(np.diff(np.flatnonzero(np.append(is_new, True)))) == 1:
        differences_ns = differences_ns[is_new]
    quarters = np.array_split(differences_ns, 4 if len(differences_ns) >= _FEWEST_IN_QUARTERS else 1)
    return [float(np.median(quarter)) if len(quarter) else np.inf for quarter in quarters]


def _describe_doubt(topic: str, clock: str, offset_s: float, position_kind: str, use_stamps: bool) -> str:
    # Returns a warning that a topic's stamps are off by `offset_s`. The warning says how to use the alternative times.
    # `use_stamps` is true if the stamps are used despite the offset, which is then at most 1 s.
    # `position_kind` is the alternative to stamps: log time, or order in the file.
    side = "before" if offset_s < 0 else "after"
    problem = f"by {clock}'s clock, the header stamps of {topic} are {abs(offset_s):.2f} s {side} its {position_kind}"
    if abs(offset_s) * 1e9 > _MAX_LATENCY_NS:
        return f"{problem}; the {position_kind} is used, because the clocks differ"
    # The warning has the times in use and the assumed cause, then the alternative times and their cause.
    chosen, cause, other, other_cause = "stamps are", "messages arrive late", position_kind, "the clocks differ"
    # The limit that selects the alternative times: a `max_latency_s` of 0.05 excludes stamps with this offset.
    limit_s = _SAME_BASE_NS / 1e9
    if not use_stamps:
        chosen, cause, other, other_cause = f"{position_kind} is", other_cause, "the stamps", cause
        limit_s = math.ceil(abs(offset_s) * 10) / 10  # round up to 0.1 s, to include the stamps
    remedy = f"If {other_cause}, write max_latency_s = {limit_s:g} at the top of the mapping, to use {other}"
    return f"{problem}; the {chosen} used, as if {cause}. {remedy}"


def _find_stamped(messages: Stamps) -> NDArray[np.bool_]:
    # Returns which messages have a stamp, [n]. Zero means no stamp, except in the first message if stamps start at 0.
    is_stamped = np.asarray(messages.stamp_ns != 0)
    nonzero_ns = messages.stamp_ns[is_stamped]
    # A clock of a simulation may really start at 0.
    if not is_stamped.all() and len(nonzero_ns) > 1:
        # The first stamp is a real 0 if the next stamp follows within two periods.
        is_stamped[0] |= 0 < nonzero_ns[0] <= 2 * np.median(np.diff(nonzero_ns)) and bool(is_stamped[1:2].all())
    return is_stamped


def find_placeless(clock: Stamps) -> NDArray[np.bool_]:
    """Return which messages of a clock have neither a stamp nor a log time that can replace the stamp, [n].

    Log times can replace stamps if each known stamp is predicted within 1 % of a step by its two neighbors, with
    interpolation over log time. Speeds and accelerations need this precision.
    """
    is_stamped = _find_stamped(clock)
    log_ns, stamp_ns = clock.log_ns[is_stamped], clock.stamp_ns[is_stamped]
    if is_stamped.all() or len(log_ns) < 2:  # with fewer than two stamps, log times are used
        return np.zeros_like(is_stamped)
    if len(log_ns) == 2:  # two stamps are too few to check the log times
        return ~is_stamped
    # Floats hold times relative to the first message exactly.
    log, stamp = (log_ns - log_ns[0]).astype(np.float64), (stamp_ns - stamp_ns[0]).astype(np.float64)
    # Predict each stamp from its two neighbors, by linear interpolation over log time.
    predicted = stamp[:-2] + (log[1:-1] - log[:-2]) / np.maximum(log[2:] - log[:-2], 1) * (stamp[2:] - stamp[:-2])
    is_rough = bool(np.abs(stamp[1:-1] - predicted).max() > _MAX_ROUGHNESS * np.median(np.diff(stamp)))
    return np.asarray(~is_stamped & is_rough)


def _map_to_stamps(positions: Ints, clock_positions: Ints, clock_ns: Ints) -> Ints:
    # Convert `positions` to stamps: interpolate between the clock's messages, and extrapolate before and after them.
    # Positions are log times [ns] or indices in the file.
    # `clock_positions` and `clock_ns` are the positions and the stamps [ns] of the clock's messages.
    # Floats hold numbers relative to the clock's first message exactly.
    known_x = (clock_positions - clock_positions[0]).astype(np.float64)
    known_stamp = (clock_ns - clock_ns[0]).astype(np.float64)
    x = (positions - clock_positions[0]).astype(np.float64)
    stamps = np.interp(x, known_x, known_stamp)
    for is_beyond, nearest in ((x < 0, slice(_FITTED_COUNT)), (x > known_x[-1], slice(-_FITTED_COUNT, None))):
        if is_beyond.any():
            # Fit a line to the clock messages nearest to this end. With a single message, stamps advance like log time.
            rate, start = np.polyfit(known_x[nearest], known_stamp[nearest], 1) if len(known_x) > 1 else (1.0, 0.0)
            stamps[is_beyond] = start + rate * x[is_beyond]
    return np.asarray(np.round(stamps).astype(np.int64) + clock_ns[0])


def describe_step_back(times_ns: Ints) -> str:
    """Return as text where times first go back, and by how much; "" if they never do."""
    steps = np.diff(times_ns)
    if not (steps < 0).any():
        return ""
    index = int(np.argmax(steps < 0))
    after_s = (times_ns[index] - times_ns[0]) / 1e9
    # `index` is the message before the step, counted from 0.
    # The text counts from 1, so the next message is `index + 2`.
    return f"by {-steps[index] / 1e9:.6g} s (message {index + 2}, {after_s:.6g} s after the first message)"


def _refuse_step_back(candidates: Sequence[Stamps], topic: str, kind: str, step_text: str) -> None:
    # Raises the error that the clock's times go back. `candidates` are the topics that may be the clock instead.
    # `topic` is the clock's topic, and `kind` names the times that go back. `step_text` states where and by how much.
    usable_clocks = [messages.topic for messages in candidates if not describe_step_back(_find_own_times(messages))]
    cause = "The clock of every mapped topic was set back during recording, or the stamp of a message is wrong."
    trials = "write a table [[episode]] with start_s and end_s for each side of it"
    remedy = f"{cause} Cut the file at this message, or {trials}."
    if usable_clocks:
        choice = "set `clock` under [episode] to a topic whose times increase"
        cause = "The clock was set back during recording, or the stamp of this message is wrong"
        remedy = f"{cause}; {choice}: {', '.join(dict.fromkeys(usable_clocks))}."
    raise RecordError(f"the {kind} of {topic} go back {step_text}", remedy=remedy)


def _find_own_times(messages: Stamps) -> Ints:
    # Returns the stamps of a topic [ns]: the times of the records if the topic were the clock.
    # If the topic has fewer than two stamps, returns its log times instead.
    stamped = _find_stamped(messages)
    return messages.stamp_ns[stamped] if stamped.sum() > 1 else messages.log_ns
