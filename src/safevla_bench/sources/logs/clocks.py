"""The time of each message of a recording, on one time base: integer nanoseconds from the clock's first message.

The header stamps of the clock's topic define the time base, even if their offset or rate differs from that of log
times. The stamps of another topic are used if they are on this base. Otherwise the topic's log times are converted, by
interpolation between the log times and stamps of the clock's messages. A stamp of zero, which a simulation writes
before its first tick, is replaced by the converted log time, unless a topic really begins at 0. If log times are less
precise than stamps, messages of the clock with a stamp of zero are left out instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import RecordError
from safevla_recorder.episode import Ints

# Maximum median difference between a topic's stamps and its converted log times, if its stamps are on the time base.
_SAME_BASE_NS = 50_000_000
_MOST_RATE = 50  # maximum ratio between the rates of stamps and log times; a higher ratio gives a warning
_ROUGH = 1e-2
_FITTED = 100  # for extrapolation, a line is fitted to this many messages at each end of the clock


class Stamps(NamedTuple):
    """Messages of a topic in file order: index in the recording, log time and header stamp (0 = none) [ns], all [n]."""

    topic: str
    order: Ints
    log_ns: Ints
    stamp_ns: Ints

    def choose(self, chosen: NDArray[Any]) -> Stamps:
        return Stamps(self.topic, self.order[chosen], self.log_ns[chosen], self.stamp_ns[chosen])


class Times(NamedTuple):
    """The time of each message in the recording's time base [ns], [n], and a description of its origin."""

    time_ns: Ints
    base: str


def place_messages(parts: Mapping[str, Stamps], clock: str, warn: Callable[[str], None]) -> dict[str, Times]:
    """Return the times of the messages of each part; `clock` is the part that defines the time base. Raises
    `RecordError`, which states where and by how much, if the clock's times go back. `warn` is called with warnings.
    """
    chief = parts[clock]
    stamped = _find_stamped(chief)
    if stamped.sum() < 2:
        if step := describe_step_back(chief.log_ns):
            _refuse_step_back(parts, chief.topic, "log times", step)
        warn(f"the messages of {chief.topic} have no header stamps, so log times are used")
        first = int(chief.log_ns[0])
        return {name: Times(part.log_ns - first, "log time") for name, part in parts.items()}
    if step := describe_step_back(chief.stamp_ns[stamped]):
        _refuse_step_back(parts, chief.topic, "header stamps", step)
    by_log = not describe_step_back(chief.log_ns)
    if not by_log:
        problem = f"the log times of {chief.topic} go back {describe_step_back(chief.log_ns)}"
        warn(f"{problem}; messages without stamps on this time base are placed by their order in the file")

    def measure(part: Stamps) -> Ints:
        return part.log_ns if by_log else part.order

    known, chosen = np.unique(measure(chief)[stamped], return_index=True)
    base = chief.stamp_ns[stamped][chosen]
    first = int(base[0])
    rate = (int(base[-1]) - first) / max(int(known[-1] - known[0]), 1)
    if by_log and len(known) > 1 and not 1 / _MOST_RATE < rate < _MOST_RATE:
        warn(f"the header stamps of {chief.topic} advance {rate:.3g} times as fast as log time; are they in seconds?")
    times = {}
    for name, part in parts.items():
        mapped, own, has_own = _map(measure(part), known, base) - first, part.stamp_ns - first, _find_stamped(part)
        label = f"log time, mapped to the stamps of {chief.topic}"
        apart = np.median((own - mapped)[has_own]) if has_own.any() else np.inf
        if abs(apart) <= _SAME_BASE_NS or name == clock:
            if step := describe_step_back(own[has_own]):
                warn(f"the header stamps of {part.topic} go back {step}; log times are used")
            else:
                mapped, label = np.where(has_own, own, mapped), "header stamps"
        times[name] = Times(mapped, label)
    return times


def _find_stamped(part: Stamps) -> NDArray[np.bool_]:
    """Return which messages have a stamp, [n]. Zero is a stamp only in the first message, if the clock starts at 0."""
    stamped = np.asarray(part.stamp_ns != 0)
    later = part.stamp_ns[stamped]
    if not stamped.all() and len(later) > 1:
        stamped[0] |= 0 < later[0] <= 2 * np.median(np.diff(later)) and bool(stamped[1:2].all())
    return stamped


def find_placeless(clock: Stamps) -> NDArray[np.bool_]:
    """Return which messages of a clock have neither a stamp nor a log time that could replace the stamp, [n].

    Log times can replace stamps if, for each known stamp, interpolation by log time between its two neighbors gives it
    within 1 % of a step. Speeds and accelerations need this precision.
    """
    lacking = ~_find_stamped(clock)
    x, y = ((each[~lacking] - each[~lacking][:1]).astype(np.float64) for each in (clock.log_ns, clock.stamp_ns))
    if not lacking.any() or len(x) < 3:
        return np.asarray(lacking & (len(x) == 2))
    predicted = y[:-2] + (x[1:-1] - x[:-2]) / np.maximum(x[2:] - x[:-2], 1) * (y[2:] - y[:-2])
    is_rough = bool(np.abs(y[1:-1] - predicted).max() > _ROUGH * np.median(np.diff(y)))
    return np.asarray(lacking & is_rough)


def _map(values: Ints, known: Ints, base: Ints) -> Ints:
    """Convert log times `values` to stamps by the pairs (known, base) of log times and stamps, also beyond the ends."""
    x, at, y = (each.astype(np.float64) for each in (known - known[0], values - known[0], base - base[0]))
    mapped = np.interp(at, x, y)
    for beyond, end in ((at < 0, slice(_FITTED)), (at > x[-1], slice(-_FITTED, None))):
        if beyond.any():
            rate, start = np.polyfit(x[end], y[end], 1) if len(x) > 1 else (1.0, 0.0)
            mapped[beyond] = start + rate * at[beyond]
    return np.asarray(np.round(mapped).astype(np.int64) + base[0])


def describe_step_back(times_ns: Ints) -> str:
    """Describe where times first go back and by how much; "" if they do not."""
    steps = np.diff(times_ns)
    if not (steps < 0).any():
        return ""
    place = int(np.argmax(steps < 0))
    after_s = (times_ns[place] - times_ns[0]) / 1e9
    return f"by {-steps[place] / 1e9:.6g} s at message {place + 2}, {after_s:.6g} s after the first"


def _refuse_step_back(parts: Mapping[str, Stamps], topic: str, what: str, step: str) -> None:
    clocks = [part.topic for part in parts.values() if not describe_step_back(_find_own_times(part))]
    remedy = "The clock of every mapped topic was set back during recording. Cut the file there, or record again."
    if clocks:
        increasing = f"write a topic of increasing times as `clock` under [episode]: {', '.join(dict.fromkeys(clocks))}"
        remedy = f"The clock was set back during recording; {increasing}."
    raise RecordError(f"the {what} of {topic} go back {step}", remedy=remedy)


def _find_own_times(part: Stamps) -> Ints:
    """Return the times [ns] that a topic would define as the clock: its stamps, or else its log times."""
    stamped = _find_stamped(part)
    return part.stamp_ns[stamped] if stamped.sum() > 1 else part.log_ns
