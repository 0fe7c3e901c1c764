"""The page's table of all episodes: a line each, its sort keys and filters, and the details it opens to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.bodies import BODY_KINDS, BodyViolation
from safevla_bench.explain.episode import rank_by_severity
from safevla_bench.judging.scores import Scores
from safevla_bench.report.episode_details import EpisodeDetails, EpisodeRecords, describe_episode
from safevla_bench.report.episode_list import (
    EpisodeListRow,
    add_firmness,
    add_violating_bodies,
    describe_ending,
    list_episodes,
    natural_key,
)
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.firmness import NO_FIRMNESS, EpisodeFirmness
from safevla_bench.text import NO_VALUE, format_fixed

MOST_DRAWN = 400
"""Number of episodes whose signals are drawn, the worst first: it bounds the size of the page."""
ENDINGS: Mapping[str, str] = {
    "ss": "Succeeded, safe",
    "su": "Succeeded, unsafe",
    "fs": "Failed, safe",
    "fu": "Failed, unsafe",
    "nv": "No verdict",
    "st": "Stopped, unsafe",
    "cr": "Crashed",
}
"""Kind -> the ending in words; every episode whose safety is unknown is of the kind `nv`."""


@dataclass(frozen=True, slots=True)
class Facet:
    """A filter and its choices, each with its count of episodes; a line names a choice by its index."""

    name: str
    label: str
    choices: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """One line: an episode, its sort keys, its filter choices and its details."""

    row: EpisodeListRow
    kind: str
    keys: str
    """The sort keys of the columns: numbers, `-` where there is none."""
    facets: Mapping[str, str]
    """Facet -> indices of its choices."""
    details: EpisodeDetails

    @property
    def key(self) -> tuple[str | None, str]:
        """Policy, as the record names it, and episode id."""
        return self.row.policy, self.row.episode_id

    @property
    def policy(self) -> str:
        return self.row.policy or UNNAMED

    @property
    def ending(self) -> str:
        """The outcome and the verdict in words."""
        row, mark = self.row, ", fragile" if self.row.firmness == "fragile" else ""
        return ENDINGS[self.kind] if row.success is None else describe_ending(row.success, row.safe, row.outcome) + mark

    @property
    def worst(self) -> str:
        """The worst specification."""
        return self.row.spec or NO_VALUE

    @property
    def vsi(self) -> str:
        return NO_VALUE if self.row.vsi is None else format_fixed(self.row.vsi, 3)

    @property
    def first(self) -> str:
        """The time of the first violation, or its step if no time is known."""
        if self.row.first_violation_step is None:
            return NO_VALUE
        at_s = _known_time_s(self.row)
        return f"step {self.row.first_violation_step}" if at_s is None else f"{format_fixed(at_s, 2)} s"

    @property
    def lost(self) -> list[str]:
        """Why the record is missing, in lines."""
        return [] if self.row.success is not None else (self.row.reason or "no reason recorded").strip().splitlines()


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """All episodes, their filters, and the number of episodes whose signals are drawn."""

    entries: tuple[EpisodeEntry, ...]
    facets: tuple[Facet, ...]
    drawn_count: int


def build_episode_table(
    records: EpisodeRecords,
    phase: Sequence[NDArray[np.int8]] | None = None,
    violations: Sequence[BodyViolation] | None = None,
    firmness: Mapping[tuple[str | None, str], EpisodeFirmness] = NO_FIRMNESS,
) -> EpisodeTable:
    """Return the table of all episodes in the order of the sources; those without a record come last.

    Signals are drawn for the worst 400 episodes that have a record.

    Args:
        records: the verdicts, and the records of any of the episodes.
        phase: the phase of each record, one array an episode of the scores; None shows none.
        violations: the bodies of all violations, for the filter by kind of body; None leaves that filter out.
        firmness: policy and episode id -> its replays under varied physics.
    """
    scores = records.scores
    drawn = list(islice((k for k in rank_by_severity(scores) if k in records), MOST_DRAWN))
    records.trace(drawn)
    headers = map(records.header, range(len(scores)))
    listed = list_episodes(scores, np.array([header.dt if header else np.nan for header in headers], dtype=np.float64))
    if violations is not None:
        listed = add_violating_bodies(listed, violations)
    listed = add_firmness(listed, firmness)
    labels = [_facet_labels(scores, row) for row in listed]
    facets, ranks = _build_facets(labels, violations is not None), _natural_ranks(listed)
    index = {facet.name: {label: str(k) for k, (label, _) in enumerate(facet.choices)} for facet in facets}
    is_drawn, phase_of = set(drawn), dict(enumerate(phase or ()))
    entries = [
        EpisodeEntry(
            row=row,
            kind=_outcome_kind(row),
            keys=_sort_keys(row, ranks),
            facets={name: " ".join(index[name][label] for label in row_labels[name]) for name in index},
            details=describe_episode(records, row, phase_of.get(k), drawn=k in is_drawn),
        )
        for k, (row, row_labels) in enumerate(zip(listed, labels, strict=True))
    ]
    return EpisodeTable(tuple(entries), facets, len(drawn))


# Lines


def _outcome_kind(row: EpisodeListRow) -> str:
    if row.success is None:
        return "cr"
    if row.safe is None:
        return "nv"
    return "st" if row.outcome == "stopped" else ("s" if row.success else "f") + ("s" if row.safe else "u")


def _known_time_s(row: EpisodeListRow) -> float | None:
    at_s = row.first_violation_s
    return None if at_s is None or np.isnan(at_s) else at_s


# Sort keys and filters


def _natural_ranks(listed: Sequence[EpisodeListRow]) -> tuple[Mapping[str, int], ...]:
    names = (
        {row.policy or UNNAMED for row in listed},
        {_task_label(row) for row in listed},
        {row.spec or "" for row in listed},
    )
    return tuple({name: k for k, name in enumerate(sorted(group, key=natural_key))} for group in names)


def _task_label(row: EpisodeListRow) -> str:
    return f"{row.benchmark} / {row.task_id}"


def _sort_keys(row: EpisodeListRow, ranks: Sequence[Mapping[str, int]]) -> str:
    """Return the sort keys of the columns, separated by spaces: numbers, `-` for a missing value."""
    policies, tasks, specs = ranks
    outcome = None if row.safe is None else 2 * (not row.safe) + (not row.success)
    first_s = _known_time_s(row)
    values: tuple[float | None, ...] = (
        row.number,
        outcome,
        policies[row.policy or UNNAMED],
        tasks[_task_label(row)],
        specs[row.spec] if row.spec else None,
        row.vsi,
        row.first_violation_step if first_s is None else first_s,
    )
    return " ".join("-" if value is None else f"{value:z.6g}" for value in values)


_FACETS = {
    "policy": "Policy",
    "suite": "Suite",
    "task": "Task",
    "outcome": "Outcome",
    "broken": "Breaks",
    "bodies": "Violating body",
}


def _facet_labels(scores: Scores, row: EpisodeListRow) -> dict[str, list[str]]:
    columns = [] if row.success is None else scores.scored_columns.tolist()
    return {
        "policy": [row.policy or UNNAMED],
        "suite": [row.benchmark],
        "task": [_task_label(row)],
        "outcome": [_outcome_kind(row)],
        "broken": [scores.specs[k].spec_id for k in columns if scores.is_violated[k, row.number - 1]],
        "bodies": list(dict.fromkeys(kind for kinds in row.body_kinds for kind in kinds)),
    }


def _build_facets(labels: Sequence[Mapping[str, Sequence[str]]], with_bodies: bool) -> tuple[Facet, ...]:
    """Return the filters with the counts of their choices.

    A filter with a single choice stays, so that pages look alike. The filter by violating body is left out unless
    violating bodies were looked for.
    """
    orders = {"outcome": list(ENDINGS), "bodies": list(BODY_KINDS)}
    facets = []
    for name, title in _FACETS.items():
        counts = Counter(label for row_labels in labels for label in row_labels[name])
        order = orders.get(name) or sorted(counts, key=natural_key)
        facets.append(Facet(name, title, tuple((choice, counts[choice]) for choice in order if counts[choice])))
    return tuple(facet for facet in facets if facet.name != "bodies" or with_bodies)
