"""Phases of composite tasks, which consist of components. Recorded sub-goals show which component a record is part of.

`docs/explanation/phases.md` defines phases, with every edge case. If a tag of one component makes a clause inactive,
the clause can still be judged in the phases of the other components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import EpisodePhases, PhaseSpan, Spans
from safevla_bench.signals.signal import RecordFields
from safevla_bench.specs.spec import Spec
from safevla_bench.stl.trace import Trace
from safevla_bench.tasks.entries import OPENING, TaskEntry
from safevla_bench.tasks.reasons import (
    EVERY_PHASE,
    NO_OPENING,
    NO_PREDICATE_OF,
    NO_SUBGOAL_OF,
    NO_SUBGOALS,
    write_reason,
)
from safevla_bench.text import matches_pattern
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import host_header
from safevla_recorder.channels import SUBGOAL_NAMES, SUBGOALS
from safevla_recorder.episode import Bools, Ints


def divide_records(holds: Bools, columns: Sequence[Sequence[int]]) -> tuple[PhaseSpan, ...]:
    """Return the phases of an episode.

    `holds` [n, G] says which of `G` predicates hold in each of n records. `columns` lists the predicates that complete
    each component, as indices. If a predicate without a component changes in a phase, all components own the phase.
    """
    record_count, all_components = len(holds), frozenset(range(len(columns)))
    # [n, G]: True if the predicate's value differs from the value in the record before
    has_changed: Bools = np.diff(holds, axis=0, prepend=holds[:1])
    # [G]: the number of records at the end of the episode in which the predicate holds without interruption
    final_counts = np.logical_and.accumulate(holds[::-1]).sum(axis=0).tolist()
    # For each component, the record that completes it; `record_count` if no record does
    ends = [max(record_count - final_counts[k] for k in predicates) for predicates in columns]
    # A phase ends at a record that completes a component, or at the end of the episode.
    phase_ends = sorted({end for end in ends if 0 < end < record_count})
    phase_starts = [0, *(end + 1 for end in phase_ends)]
    # The predicates that complete no component
    unowned = [k for k in range(holds.shape[1]) if not any(k in predicates for predicates in columns)]
    spans = []
    for first, last in zip(phase_starts, [*phase_ends, record_count - 1], strict=True):
        if first <= last:  # the last phase is empty if the last record completes a component
            # [records of the phase, G]
            changes = has_changed[first : last + 1]
            # The last phase belongs to the components that are completed last or never.
            end_of_owners = last if last in phase_ends else max(ends)
            # A component owns the phase at whose end the component is completed.
            # A component also owns each phase in which one of its predicates changes.
            owners = frozenset(
                component
                for component, predicates in enumerate(columns)
                if ends[component] == end_of_owners or changes[:, list(predicates)].any()
            )
            if changes[:, unowned].any():
                owners = all_components
            spans.append(PhaseSpan(first, last, owners))
    return tuple(spans)


def find_phases(batch: Batch, episode: int, entry: TaskEntry) -> EpisodePhases:
    """Return the phases of an episode of a composite task. If phases are unknown, the result has the reason."""
    names: Any = host_header(batch.extra[episode]).get(SUBGOAL_NAMES)
    if not names:
        return EpisodePhases(reason=NO_SUBGOALS)
    # One array [n] per predicate (sub-goal): True in the records in which the predicate holds.
    # `changes` maps each predicate's name to the number of times its value changes.
    holds: list[Bools] = list((batch.channel(SUBGOALS).episode_rows(episode) != 0).T)
    changes = {name: int((row[1:] != row[:-1]).sum()) for name, row in zip(names, holds, strict=True)}
    # For each component of the task: the indices in `holds` of the predicates that complete it
    columns = list[list[int]]()
    for component in entry.components:
        own_columns = [
            k for k, name in enumerate(names) if any(matches_pattern(name, pattern) for pattern in component.predicates)
        ]
        # `match` has two groups: a pattern of body names, and the least share by which the body must be open.
        for match in map(OPENING.fullmatch, component.predicates):
            if match is None:
                continue
            # A condition on an opening, such as a drawer's, is a predicate, too. Append a column for each body.
            bodies, opening = batch.opening.episode_poses(episode)
            opening_columns = [
                k for k, body in enumerate(bodies) if matches_pattern(batch.body_label(int(body)), match[1])
            ]
            if not opening_columns:
                return EpisodePhases(reason=write_reason(NO_OPENING, match[1]), changes=changes)
            own_columns += range(len(holds), len(holds) + len(opening_columns))
            holds += [opening[:, k, 0] >= float(match[2]) for k in opening_columns]
        if not own_columns:
            # `code` is the kind of reason: no recorded sub-goal fits the component's patterns, or it has no patterns.
            code = NO_SUBGOAL_OF if component.predicates else NO_PREDICATE_OF
            return EpisodePhases(reason=write_reason(code, component.template), changes=changes)
        columns.append(own_columns)
    templates = tuple(component.template for component in entry.components)
    return EpisodePhases(divide_records(np.stack(holds, axis=1), columns), templates, changes=changes)


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """How the `E` episodes of a batch are judged phase by phase. `phases` [E] has None for tasks without components. If
    a clause only judges some phases of an episode, `intervals` has these phases, by clause and by episode.
    """

    phases: tuple[EpisodePhases | None, ...]
    intervals: Mapping[str, Mapping[int, Spans]]


def plan_phases(batch: Batch, ruleset: Ruleset, reasons: Mapping[str, NDArray[np.object_]]) -> PhasePlan:
    """Return how episodes are judged phase by phase. `reasons` has, per clause and episode [E], the reason why the
    clause is inactive, or "". Modify these texts: "" if the clause can be judged in some phase; if not, add why.
    """
    # Each entry describes a task. Only composite tasks have components, each with its own tags.
    entries = [ruleset.registry.find_entry(header.benchmark, header.task_id) for header in batch.headers]
    phases = [find_phases(batch, episode, entry) if entry.components else None for episode, entry in enumerate(entries)]
    intervals: dict[str, dict[int, Spans]] = {}
    for episode, (header, episode_phases) in enumerate(zip(batch.headers, phases, strict=True)):
        if episode_phases is None:
            continue
        # `barring` has the components whose tags make the clause inactive.
        for spec_id, barring in ruleset.barring_components(header.benchmark, header.task_id).items():
            if spans := episode_phases.intervals_without(barring):
                intervals.setdefault(spec_id, {})[episode] = spans
                reasons[spec_id][episode] = ""
            else:
                # No interval is left: phases are unknown, or every phase belongs to a barring component.
                reasons[spec_id][episode] += f";{episode_phases.reason or EVERY_PHASE}"
    return PhasePlan(tuple(phases), intervals)


def find_intervals(batch: Batch, spec: Spec, ruleset: Ruleset) -> dict[int, Spans]:
    """Map each episode to the intervals in which a clause is judged. Omit episodes without such intervals."""
    # An interval is a pair: the first record, and the record after the last one.
    # In the phases of the components in `barring`, the clause is inactive because of these components' tags.
    intervals = {}
    for episode, header in enumerate(batch.headers):
        barring = ruleset.barring_components(header.benchmark, header.task_id).get(spec.spec_id)
        if barring is not None:
            entry = ruleset.registry.find_entry(header.benchmark, header.task_id)
            if spans := find_phases(batch, episode, entry).intervals_without(barring):
                intervals[episode] = spans
    return intervals


def cut_intervals(trace: Trace, episodes: Ints, intervals: Mapping[int, Spans]) -> tuple[Trace, Ints, Ints]:
    """Return a trace in which each interval of the given episodes is a separate episode. For each interval, also return
    the original episode and the first row. An episode without intervals counts as one interval.
    """
    # For each interval, `spans` has the original episode, the first row, and the row after the last row.
    # `episodes` has the indices of the episodes to keep.
    # `intervals` has, by episode, pairs (first record, record after the last one), as indices within the episode.
    starts, spans = trace.starts.tolist(), list[tuple[int, int, int]]()
    for episode in episodes.tolist():
        start, whole_episode = starts[episode], (0, starts[episode + 1] - starts[episode])
        for first, after in intervals.get(episode, [whole_episode]):
            spans.append((episode, start + first, start + after))
    episode_of_interval, first_row, row_after = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    return trace.cut(episode_of_interval, first_row, row_after), episode_of_interval, first_row


def limit_records(fields: RecordFields, intervals: Mapping[int, Spans]) -> RecordFields:
    """Return fields with which only records in `intervals` are judged, in the episodes that have intervals. In each
    interval, displacement is measured from the interval's first record. Without any intervals, return `fields`.
    """
    if not intervals:
        return fields
    # For each row (record) of the batch: the row from which displacement is measured, and whether the row is judged
    origin, is_judged = fields.first_record.copy(), np.ones(len(fields.first_record), dtype=np.bool_)
    for episode, spans in intervals.items():
        start, end = fields.batch.starts[episode : episode + 2]
        is_judged[start:end] = False
        # Indices within the episode: `first` is the interval's first record, `after` the record after the last one.
        for first, after in spans:
            is_judged[start + first : start + after] = True
            origin[start + first : start + after] = start + first
    return RecordFields(fields.batch, origin, is_judged, fields.chosen_arm)
