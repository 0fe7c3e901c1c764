"""Trials of a recording. A recording is one episode unless the mapping divides it into trials."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any

from safevla_bench.archive.record_schema import Budget, refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.sources.logs.alignment import MessageSpan, align, is_static
from safevla_bench.sources.logs.containers import Topic, Topics, damage_errors, read_messages
from safevla_bench.sources.logs.decoding import Decode, find_decoder
from safevla_bench.sources.logs.mappings import MAX_NUMBERS, LogMapping, PoseColumns, translated_errors
from safevla_bench.sources.logs.messages import MarkTaker, NumberTaker, PoseTaker, TransformTree
from safevla_bench.sources.logs.recordings import DAMAGE_REMEDY, Recording
from safevla_bench.sources.logs.records import LoggedEpisode
from safevla_bench.text import escape_controls

_BEGINNING, _END = -(1 << 62), 1 << 62
_EPOCH_S = 1e8  # times from this value on count from 1970, smaller times from the first message


def read_episodes(recording: Recording, mapping: LogMapping) -> Iterator[LoggedEpisode | RecordError]:
    """Yield an episode, or its error, for the whole recording or for each trial in the mapping. Files are read once.

    Raises `RecordError` if the reader is not installed, a file is damaged or too large, messages have an unsupported
    encoding, a mapped topic has no usable message, or a name in the mapping does not exist.
    """
    # A taker collects a topic's messages for one part of the record; a mark is a message that begins or ends a trial.
    budget = Budget(MAX_NUMBERS, "numbers in an episode")
    takers: dict[str, NumberTaker | PoseTaker] = {}
    for part, columns in mapping.sources.items():
        taker_class: Any = PoseTaker if isinstance(columns, PoseColumns) else NumberTaker
        takers[part] = taker_class(part, columns.source, budget, columns=columns)
    marks = {trial.marker: MarkTaker("marker", trial.marker, budget) for trial in mapping.trials if trial.marker}
    transforms = TransformTree(budget)
    # Read all messages first, then cut them into trials.
    first_ns = _collect_messages(recording, mapping, [*takers.values(), *marks.values()], transforms)
    for taker in takers.values():
        taker.require_some()
    for mark in marks.values():
        mark.require_clear()
    for trial in _list_trials(recording, mapping, marks, first_ns):
        try:
            yield align(trial, mapping, takers, transforms)
        except RecordError as error:
            yield error.with_place(Place(file=trial.file, episode=trial.name))


def _collect_messages(recording: Recording, mapping: LogMapping, takers: list[Any], transforms: TransformTree) -> int:
    # Passes each message to the `takers` for the message's topic, which store the message's numbers.
    # Returns the log time of the first message [ns].
    # Raises `RecordError` if the recording has no messages, or lacks a topic of the mapping.
    # Transforms are only read if the mapping converts a pose to another frame (`in`).
    needs_transforms = any(isinstance(columns, PoseColumns) and columns.into for columns in mapping.sources.values())
    transform_topics = frozenset(mapping.transforms.topics if needs_transforms else ())
    topics, message_index = Topics({*transform_topics, *(taker.topic for taker in takers)}), 0
    # Topic -> (decoder of the messages, takers of the messages, whether the topic has transforms).
    readers: dict[Topic, tuple[Decode, list[Any], bool]] = {}
    for path in recording.parts:
        with translated_errors(path, DAMAGE_REMEDY, *damage_errors()):
            for channel, log_ns, content in read_messages(path, topics):
                if channel not in readers:
                    decode = find_decoder(channel, mapping.ros_distro, recording.ros_distro)
                    topic_takers = [taker for taker in takers if taker.topic == channel.topic]
                    readers[channel] = decode, topic_takers, channel.topic in transform_topics
                    for taker in topic_takers:
                        # A latched topic also sends its last message to subscribers that connect later.
                        taker.latched |= channel.latched or is_static(channel.topic)
                decode, topic_takers, is_transform = readers[channel]
                message = decode(content)
                for taker in topic_takers:
                    try:
                        taker.take(message, message_index, log_ns)
                    except RecordError:
                        raise
                    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                        problem = f"a message of {channel.topic} has other values than expected: {error}"
                        refuse_field(problem, "Map another topic, or name the numbers as `field`.", taker.part)
                if is_transform:
                    transforms.take(message, message_index, log_ns, is_static(channel.topic))
                message_index += 1
    first_ns = topics.require_messages()
    for taker in takers:
        if taker.topic not in topics.channels:
            listed = "; ".join(f"{topic} ({kind})" for topic, kind in sorted(topics.list_kinds().items()))
            remedy = f"The recording has: {escape_controls(listed)}."
            refuse_field(f"there is no topic {taker.topic!r}", remedy, taker.part)
    return first_ns


def _list_trials(
    recording: Recording, mapping: LogMapping, marks: dict[str, MarkTaker], first_ns: int
) -> Iterator[MessageSpan]:
    # Yields the time spans of the mapping's trials, or one span for the whole recording. Trials are numbered from 0.
    # `marks` maps each marker (a topic) to its messages. `first_ns` is the log time of the recording's first message.
    # A span has the name, the begin and the end [ns] of a trial, and the mapping's facts about the trial.
    file = str(recording.parts[0])
    if not mapping.trials:
        yield MessageSpan(file, recording.name, _BEGINNING, _END, mapping.episode, first_ns)
    # Each table [[episode]] of the mapping has the facts about one trial, and a marker or times that delimit it.
    spans: list[tuple[int, int, int]] = []  # begin [ns], end [ns], index of the trial's facts
    for number, facts in enumerate(mapping.trials):
        if facts.marker is None:
            begin_ns = _BEGINNING if facts.start_s is None else _find_log_time(facts.start_s, first_ns)
            end_ns = _END if facts.end_s is None else _find_log_time(facts.end_s, first_ns)
            spans.append((begin_ns, end_ns, number))
        else:
            mark = marks[facts.marker]
            # A marker's change to true begins a trial, and a change to false ends the trial.
            # If all values of a marker are true, each value begins a trial and ends the previous trial.
            are_all_true = all(mark.rows)
            open_since_ns: int | None = None  # begin of the current trial; None = between trials
            for time_ns, value in sorted(zip(mark.stamps.log_ns.tolist(), mark.rows, strict=True), key=itemgetter(0)):
                if open_since_ns is not None and (are_all_true or not value):
                    spans.append((open_since_ns, time_ns, number))
                    open_since_ns = None
                if open_since_ns is None and value:
                    open_since_ns = time_ns
            if open_since_ns is not None:  # the last trial lasts until the end of the recording
                spans.append((open_since_ns, _END, number))
    # `before` and `after` are the indices of trials that follow each other in time.
    for (before, span), (after, next_span) in pairwise(sorted(enumerate(spans), key=lambda trial: trial[1])):
        if next_span[0] < span[1]:
            problem = (
                f"the trials {recording.name}_{before} and {recording.name}_{after} overlap, and would count twice"
            )
            remedy = "Write a start_s and an end_s for each [[episode]], so that each ends before the next begins."
            refuse_field(problem, remedy, "episode")
    for index, (begin_ns, end_ns, number) in enumerate(spans):
        yield MessageSpan(file, f"{recording.name}_{index}", begin_ns, end_ns, mapping.trials[number], first_ns)


def _find_log_time(bound_s: float, first_ns: int) -> int:
    # Returns a trial's start or end as a log time [ns].
    # A number of at least 1e8 is a time [s] since 1970. A smaller number is a time [s] since the first message.
    return round(bound_s * 1e9) + (0 if bound_s >= _EPOCH_S else first_ns)
