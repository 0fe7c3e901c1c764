"""Every episode of a report: a line each, by what lines are sorted and filtered, and what each opens to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.explain.contributors import Involved
from safevla_bench.explain.episode import why_vacuous
from safevla_bench.explain.trace import Exhibit, exhibits, ranked
from safevla_bench.exposure import PHASES
from safevla_bench.report.charts import Spark, spark
from safevla_bench.report.episode_choice import natural
from safevla_bench.report.episode_list import EpisodeRow, rows
from safevla_bench.report.tables import UNNAMED
from safevla_bench.scores import ACTIVE, INACTIVE, UNCOUNTED, VACUOUS, Scores, null
from safevla_bench.signals import Reading
from safevla_bench.specs import Library
from safevla_bench.text.numbers import NONE, fixed, significant, unit_text, with_unit
from safevla_bench.trajectory import Batch, select

Floats = NDArray[np.float64]
MOST_DRAWN = 400
"""Signals are drawn for so many episodes, the worst first, so that the page stays one that opens at once."""
_AT_ONCE = 50
"""Episodes whose signals are derived together: arrays pay, and memory does not grow."""
ENDINGS: Mapping[str, str] = {
    "ss": "Succeeded, safe",
    "su": "Succeeded, unsafe",
    "fs": "Failed, safe",
    "fu": "Failed, unsafe",
    "nv": "Not judged",
    "st": "Stopped",
    "cr": "Crashed",
}
"""Kind -> how an episode ended, in words."""


@dataclass(frozen=True, slots=True)
class Facet:
    """Something to filter by, and its choices with how many episodes each has; a line names them by their index."""

    name: str
    label: str
    choices: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Clause:
    """What one specification said of one episode; no spark where the signal cannot be, or is not, drawn."""

    spec_id: str
    verdict: str
    violated: bool
    spark: Spark | None = None
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A specification that said nothing of an episode, and why."""

    spec_id: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of records in one phase, in thousandths of the episode."""

    phase: int
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of one episode as a strip, and how long each took."""

    strip: tuple[Stretch, ...]
    said: tuple[tuple[int, str, str], ...]
    """Number of the phase, its name, its time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One episode."""

    number: int
    key: tuple[str | None, str]
    """Policy, as the record names it, and episode id."""
    episode_id: str
    policy: str
    suite: str
    task: str
    kind: str
    ending: str
    worst: str
    vsi: str
    first: str
    keys: str
    """What each column sorts by: numbers, `-` where there is none."""
    facets: Mapping[str, str]
    """Facet -> indices of its choices."""
    instruction: str = ""
    facts: str = ""
    clauses: tuple[Clause, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()
    phases: Phases | None = None
    lost: tuple[str, ...] = ()
    """Why there is no record, line by line."""


@dataclass(frozen=True, slots=True)
class Register:
    """All episodes, what they can be filtered by, and how many have their signals drawn."""

    entries: tuple[Entry, ...]
    facets: tuple[Facet, ...]
    drawn: int


def register(
    scores: Scores, batch: Batch | None, library: Library, phase: Sequence[NDArray[np.int8]] | None = None
) -> Register:
    """The episodes in the order of the sources; those without a record come last.

    Args:
        scores: the verdicts.
        batch: their records, found again by policy and episode id; None draws no signals.
        library: the specifications.
        phase: the phase of each record, an array for each episode of the scores; None shows none.
    """
    at = places(scores, batch)
    there = {k: place for k in ranked(scores) if (place := at[k]) is not None}
    drawn = dict(islice(there.items(), MOST_DRAWN))
    told = dict(_evidence(scores, batch, library, drawn)) if batch else {}
    listed = rows(scores, _dt_s(batch, at))
    facets, ranks = _facets(scores, listed), _ranks(listed)
    entries = []
    for k, row in enumerate(listed):
        place = at[k] if k < len(at) else None
        one = _entry(row, _kind(scores, row), _keys(row, ranks), _choices(scores, row, facets))
        mine = phase[k] if phase and place is not None else None
        entries.append(replace(one, **_opened(scores, row, told.get(k)), **_recorded(batch, place, mine)))
    return Register(tuple(entries), facets, len(drawn))


def places(scores: Scores, batch: Batch | None) -> list[int | None]:
    """Where in the batch each judged episode is, [E]; None where it is not."""
    place = {(one.policy, one.episode_id): k for k, one in enumerate(batch.headers if batch else ())}
    return [place.get(key) for key in zip(scores.policy, scores.episode_id, strict=True)]


def _dt_s(batch: Batch | None, at: Sequence[int | None]) -> Floats:
    return np.array([np.nan if batch is None or k is None else batch.headers[k].dt for k in at], dtype=np.float64)


# A line


def _kind(scores: Scores, row: EpisodeRow) -> str:
    if row.outcome in UNCOUNTED:
        return "cr" if row.outcome == "crashed" else "st"
    return "nv" if row.spec is None else ("s" if row.success else "f") + ("s" if row.safe else "u")


def _entry(row: EpisodeRow, kind: str, keys: str, facets: Mapping[str, str]) -> Entry:
    told = row.outcome.replace("_", " ")
    plain = row.outcome in ("success", "failure", *UNCOUNTED)
    return Entry(
        number=row.number,
        key=(row.policy, row.episode_id),
        episode_id=row.episode_id,
        policy=row.policy or UNNAMED,
        suite=row.benchmark,
        task=row.task_id,
        kind=kind,
        ending=ENDINGS[kind] if plain else f"{ENDINGS[kind]} ({told})",
        worst=row.spec or NONE,
        vsi=NONE if row.vsi is None or kind == "nv" else fixed(row.vsi, 3),
        first=_first(row),
        keys=keys,
        facets=facets,
        lost=tuple((row.reason or "no reason recorded").strip().splitlines()) if row.success is None else (),
    )


def _first(row: EpisodeRow) -> str:
    if row.first_violation_step is None:
        return NONE
    at_s = row.first_violation_s
    return f"step {row.first_violation_step}" if at_s is None or np.isnan(at_s) else f"{fixed(at_s, 2)} s"


# What lines are sorted and filtered by


def _ranks(listed: Sequence[EpisodeRow]) -> tuple[Mapping[str, int], ...]:
    """The places of policies, of tasks and of specifications in their natural orders."""
    named = (
        {row.policy or UNNAMED for row in listed},
        {_task(row) for row in listed},
        {row.spec or "" for row in listed},
    )
    return tuple({name: k for k, name in enumerate(sorted(names, key=natural))} for names in named)


def _task(row: EpisodeRow) -> str:
    return f"{row.benchmark} / {row.task_id}"


def _keys(row: EpisodeRow, ranks: Sequence[Mapping[str, int]]) -> str:
    policies, tasks, specs = ranks
    outcome = None if row.success is None else 2 * (not row.safe) + (not row.success)
    values: tuple[float | None, ...] = (
        row.number,
        outcome,
        policies[row.policy or UNNAMED],
        tasks[_task(row)],
        specs[row.spec] if row.spec else None,
        row.vsi if row.spec else None,
        row.first_violation_step if row.first_violation_s is None else row.first_violation_s,
    )
    return " ".join("-" if value is None else f"{value:.6g}" for value in values)


def _facets(scores: Scores, listed: Sequence[EpisodeRow]) -> tuple[Facet, ...]:
    """What there is to choose among, with counts; a facet with a single choice stays, so that the page looks alike."""
    kinds = Counter(_kind(scores, row) for row in listed)
    broken = Counter({scores.specs[k].spec_id: int(scores.violated[k].sum()) for k in scores.scored})
    return (
        _facet("policy", "Policy", Counter(row.policy or UNNAMED for row in listed)),
        _facet("suite", "Suite", Counter(row.benchmark for row in listed)),
        _facet("task", "Task", Counter(_task(row) for row in listed)),
        Facet("outcome", "Outcome", tuple((kind, kinds[kind]) for kind in ENDINGS if kinds[kind])),
        _facet("broken", "Breaks", +broken),
    )


def _facet(name: str, label: str, counts: Counter[str]) -> Facet:
    return Facet(name, label, tuple((one, counts[one]) for one in sorted(counts, key=natural)))


def _choices(scores: Scores, row: EpisodeRow, facets: Sequence[Facet]) -> dict[str, str]:
    specs = [scores.specs[k].spec_id for k in scores.scored]
    broke = scores.violated[scores.scored, row.number - 1] if row.number <= len(scores) else ()
    mine = {
        "policy": [row.policy or UNNAMED],
        "suite": [row.benchmark],
        "task": [_task(row)],
        "outcome": [_kind(scores, row)],
        "broken": [spec_id for spec_id, violated in zip(specs, broke, strict=False) if violated],
    }
    index = {facet.name: {label: str(k) for k, (label, _) in enumerate(facet.choices)} for facet in facets}
    return {name: " ".join(index[name][label] for label in labels) for name, labels in mine.items()}


# What a line opens to


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the records say of one episode: its exhibits by specification, and why others are vacuous."""

    exhibits: Mapping[str, Exhibit]
    vacuous: Mapping[str, str]


def _evidence(
    scores: Scores, batch: Batch, library: Library, drawn: Mapping[int, int]
) -> Iterator[tuple[int, Evidence]]:
    """That of the episodes that are drawn, by their numbers and places; signals are derived of some at a time."""
    chosen = list(drawn)
    for start in range(0, len(chosen), _AT_ONCE):
        some = chosen[start : start + _AT_ONCE]
        reading = Reading(select(batch, [drawn[k] for k in some]))
        active = [scores.specs[k].spec_id for k in scores.scored if (scores.state[k, some] == ACTIVE).any()]
        signals.derive(reading, {name for one in active if one in library for name in library[one].signals})
        for place, k in enumerate(some):
            one = reading.alone(place)
            shown = {exhibit.spec.spec_id: exhibit for exhibit in exhibits(scores, k, one, library)}
            yield k, Evidence(shown, why_vacuous(scores.among(VACUOUS, k), library, one))


def _opened(scores: Scores, row: EpisodeRow, told: Evidence | None) -> dict[str, Any]:
    if row.success is None:
        return {}
    episode = row.number - 1
    vacuous = told.vacuous if told else dict.fromkeys(scores.among(VACUOUS, episode), "what it guards never came about")
    unjudged = [Unjudged(spec_id, "vacuous", why) for spec_id, why in vacuous.items()]
    unjudged += [Unjudged(spec_id, "inactive", why) for spec_id, why in scores.among(INACTIVE, episode).items()]
    return {"clauses": tuple(_clauses(scores, episode, told)), "unjudged": tuple(unjudged)}


def _clauses(scores: Scores, episode: int, told: Evidence | None) -> Iterator[Clause]:
    """Every specification that reached a verdict: the violated first, deepest first."""
    seen = told.exhibits if told else {}
    columns = [int(k) for k in scores.scored if scores.state[k, episode] == ACTIVE]
    for k in sorted(columns, key=lambda k: _order(scores, k, episode)):
        spec, one = scores.specs[k], seen.get(scores.specs[k].spec_id)
        yield Clause(
            spec.spec_id,
            verdict(scores, k, episode),
            bool(scores.violated[k, episode]),
            drawn := spark(one) if one else None,
            behind(one.involved, drawn.said) if one and one.involved and drawn else "",
        )


def _order(scores: Scores, k: int, episode: int) -> tuple[bool, float, float]:
    depth = null(scores.depth[k, episode]) or 0.0
    return not scores.violated[k, episode], -depth, float(scores.rho[k, episode]) / scores.specs[k].threshold


def verdict(scores: Scores, k: int, episode: int) -> str:
    """Kept or violated, by which margin, how deep."""
    spec, rho, depth = scores.specs[k], float(scores.rho[k, episode]), float(scores.depth[k, episode])
    unit, scale = unit_text(spec.unit, spec.threshold)
    margin = "" if spec.binary else f" by {with_unit(significant(abs(rho) * scale), unit)}"
    if not scores.violated[k, episode]:
        return f"kept{margin}"
    return f"violated{margin}" + ("" if np.isnan(depth) else f", depth {fixed(depth, 2)}")


def behind(who: Involved, said: str) -> str:
    """The bodies behind a value, in words; how much, where that has not been said."""
    return f"{who.what}: {' and '.join(who.names)}" + (f", {who.amount}" if who.amount not in said else "")


def _recorded(batch: Batch | None, place: int | None, phase: NDArray[np.int8] | None) -> dict[str, Any]:
    if batch is None or place is None:
        return {}
    header, count = batch.headers[place], int(batch.starts[place + 1] - batch.starts[place])
    facts = [
        *([f"initial state {header.init_state_index}"] if header.init_state_index is not None else []),
        *([f"seed {header.seed}"] if header.seed is not None else []),
        f"{count} records, {fixed((count - 1) * header.dt, 2)} s",
    ]
    return {
        "instruction": header.instruction or "",
        "facts": ", ".join(facts),
        "phases": None if phase is None else _phases(phase, header.dt),
    }


def _phases(phase: NDArray[np.int8], dt_s: float) -> Phases | None:
    if (phase < 0).any():
        return None
    starts = np.concatenate([[0], np.flatnonzero(np.diff(phase)) + 1, [len(phase)]])
    strip = [
        Stretch(int(phase[a]), f"{1000 * a / len(phase):.0f}", f"{1000 * (b - a) / len(phase):.0f}")
        for a, b in pairwise(starts.tolist())
    ]
    spent = [int((phase == k).sum()) for k in range(len(PHASES))]
    said = tuple((k, name, f"{fixed(spent[k] * dt_s, 2)} s") for k, name in enumerate(PHASES) if spent[k])
    return Phases(tuple(strip), said)
