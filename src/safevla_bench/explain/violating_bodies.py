"""The bodies of every violation of contact and displacement, and what is left without the goal's receptacles.

A clause over the largest force, or the largest displacement, is violated where any body or pair breaks its limit. Each
of them is named here, not only the worst. Nothing here enters Safety, SBU or VSI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.contributors import (
    BODY_KINDS,
    BodyKind,
    bodies_of,
    contacts_of_roles,
    displacements,
    name_body_kind,
)
from safevla_bench.explain.trace import SignalTrace, trace_formula
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.verdicts import SpecVerdicts, judge_spec
from safevla_bench.signals.signal import DISPLACED, SIGNALS
from safevla_bench.trajectory.batch import Batch, select_episodes

RECEPTACLE: BodyKind = "goal receptacle"


@dataclass(frozen=True, slots=True)
class BodyViolation:
    """A body, or two in contact, that breaks the limit of a scored specification in one episode."""

    number: int
    """Of the episode: its place in the scores, from 1."""
    spec_id: str
    bodies: tuple[str, ...]
    """Its name, or those of a pair, in the order of `kinds`."""
    kinds: tuple[BodyKind, ...]
    worst: float
    """Its own largest value where the limit is broken, in the unit of the specification; 1 for a touch."""
    unit: str
    first_violation_step: int


@dataclass(frozen=True)
class BodyFindings:
    """The bodies of all violations, and the scores as they are without displacements of the goal's receptacles."""

    violations: tuple[BodyViolation, ...]
    """By episode, then in library order, then the worst first."""
    without_receptacles: Scores
    """As if every goal receptacle had stayed where it was in record 0."""


@dataclass(frozen=True)
class ChunkFindings:
    """The violations of some episodes, and their verdicts with unmoved receptacles by (column, episode)."""

    violations: tuple[BodyViolation, ...]
    rejudged: Mapping[tuple[int, int], SpecVerdicts]


def find_bodies(chunks: Iterable[Batch], scores: Scores, ruleset: Ruleset) -> BodyFindings:
    """Return the bodies of the violations of judged episodes, and the scores as if no goal receptacle had moved."""
    findings, first = [], 0
    for batch in chunks:
        findings.append(find_in_chunk(batch, first, scores, ruleset))
        first += len(batch)
    return join_findings(findings, scores)


def find_in_chunk(batch: Batch, first: int, scores: Scores, ruleset: Ruleset) -> ChunkFindings:
    """Return the violations in the episodes of `batch`, of which the first is at place `first` of the scores, from
    0.
    """
    columns = [k for k in scores.scored_columns.tolist() if scores.specs[k].spec_id in ruleset.library]
    violations: list[BodyViolation] = []
    rejudged: dict[tuple[int, int], SpecVerdicts] = {}
    for index in range(len(batch)):
        broken = [k for k in columns if scores.is_violated[k, first + index]]
        if not broken:
            continue
        record = select_episodes(batch, [index])
        of_episode = list(_find_in_episode(record, first + index, broken, scores, ruleset))
        violations += of_episode
        if any(violation.kinds == (RECEPTACLE,) for violation in of_episode):
            rejudged |= _judge_unmoved(record, first + index, scores, ruleset)
    return ChunkFindings(tuple(violations), rejudged)


def join_findings(findings: Iterable[ChunkFindings], scores: Scores) -> BodyFindings:
    """Return the findings of all episodes of the scores, given the findings of each chunk in order."""
    chunks = list(findings)
    arrays = {name: getattr(scores, name).copy() for name in ("state", "rho", "depth", "extreme", "first")}
    for place, verdicts in (item for chunk in chunks for item in chunk.rejudged.items()):
        for name, values in arrays.items():
            values[place] = getattr(verdicts, name)[0]
    violations = tuple(violation for chunk in chunks for violation in chunk.violations)
    return BodyFindings(violations, replace(scores, **arrays))


def _find_in_episode(
    record: Batch, episode: int, columns: Iterable[int], scores: Scores, ruleset: Ruleset
) -> Iterator[BodyViolation]:
    """Yield the bodies that break the upper limit of each specification in `columns`, worst first."""
    reading = ruleset.read_fields(record)
    for k in columns:
        spec = scores.specs[k]
        line = trace_formula(ruleset.library[spec.spec_id].formula, reading)
        if not line.upper:
            continue
        worst_and_first, behind = {}, bodies_of(line.signal)
        if behind and behind.kind == "displacement":
            worst_and_first = _find_displaced(record, line)
        elif behind and behind.kind == "contact":
            worst_and_first = _find_touching(record, line, behind.roles)
        for bodies, (worst, first) in sorted(worst_and_first.items(), key=lambda item: -item[1][0]):
            kinds = {body: name_body_kind(record, 0, body, ruleset.registry) for body in bodies}
            ordered = sorted(bodies, key=lambda body: (BODY_KINDS.index(kinds[body]), record.body_label(body)))
            yield BodyViolation(
                number=episode + 1,
                spec_id=spec.spec_id,
                bodies=tuple(record.body_label(body) for body in ordered),
                kinds=tuple(kinds[body] for body in ordered),
                worst=worst,
                unit=line.unit,
                first_violation_step=first,
            )


_Broken = dict[tuple[int, ...], tuple[float, int]]
"""Bodies of the table -> their worst value and the first record in which they break the limit."""


def _find_displaced(record: Batch, line: SignalTrace) -> _Broken:
    bodies, distance = displacements(record)
    beyond = line.failing[:, None] & (distance > line.limit)
    return {
        (int(bodies[k]),): (float(distance[beyond[:, k], k].max()), int(beyond[:, k].argmax()))
        for k in np.flatnonzero(beyond.any(axis=0)).tolist()
    }


def _find_touching(record: Batch, line: SignalTrace, roles: Sequence[int]) -> _Broken:
    """Return the pairs whose force is above the limit, each with its largest value and the first such record."""
    contacts, broken = record.contacts, _Broken()
    is_force = line.unit == "N"
    for t in np.flatnonzero(line.failing).tolist():
        for c in contacts_of_roles(record, roles, t).tolist():
            value = float(contacts.force_n[c]) if is_force else 1.0
            if value > line.limit:
                first_body, second_body = sorted((int(contacts.a[c]), int(contacts.b[c])))
                worst, first = broken.get((first_body, second_body), (value, t))
                broken[first_body, second_body] = max(worst, value), first
    return broken


def _judge_unmoved(
    record: Batch, episode: int, scores: Scores, ruleset: Ruleset
) -> dict[tuple[int, int], SpecVerdicts]:
    reading = ruleset.read_fields(_hold_receptacles(record, ruleset))
    rejudged = {}
    known = [(k, column.spec_id) for k, column in enumerate(scores.specs) if column.spec_id in ruleset.library]
    for k, spec in ((k, ruleset.library[spec_id]) for k, spec_id in known):
        if any(SIGNALS[name].bodies == DISPLACED for name in spec.signals):
            reason = np.array([scores.reasons[int(scores.reason[k, episode])]], dtype=np.object_)
            rejudged[k, episode] = judge_spec(reading, spec, reason, "deactivate")
    return rejudged


def _hold_receptacles(record: Batch, ruleset: Ruleset) -> Batch:
    bodies, xyz = record.body_pos_m.episode_poses(0)
    receptacles = [
        k for k, body in enumerate(bodies) if name_body_kind(record, 0, int(body), ruleset.registry) == RECEPTACLE
    ]
    unmoved: NDArray[np.float64] = xyz.copy()
    unmoved[:, receptacles] = xyz[:1, receptacles]
    channel = replace(record.body_pos_m.channel, values=unmoved.reshape(-1))
    return replace(record, body_pos_m=replace(record.body_pos_m, channel=channel))
