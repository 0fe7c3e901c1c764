"""Scoring the episodes of run folders and archives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from safevla_bench import metrics, runs
from safevla_bench.compare import Entrant, entrants, joined, named_apart
from safevla_bench.errors import DamageError, RunError, SafevlaError
from safevla_bench.evaluate.request import AS_SHIPPED, Judge
from safevla_bench.ray_cluster import Cluster
from safevla_bench.ray_scoring import score_records
from safevla_bench.scores import Scores
from safevla_bench.scoring import Manner, score_chunks
from safevla_bench.specs import Library
from safevla_bench.tasks import Registry
from safevla_bench.trajectory import Batch
from safevla_bench.version import __version__


@dataclass(frozen=True)
class Judged:
    """Scores with what they were made from."""

    scores: Scores
    records: runs.Records
    library: Library
    description: Mapping[str, object]
    judge: Judge = AS_SHIPPED
    paths: tuple[Path, ...] = ()
    """The sources, where their frames are."""

    @cached_property
    def batch(self) -> Batch | None:
        """All records at once, None where there is none; `records` gives some at a time, in less memory."""
        return self.records.whole()

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The policies that saw state which no real robot has."""
        return self.records.privileged

    @property
    def ablated(self) -> bool:
        """Whether applicability was off."""
        return self.scores.provenance.get("applicability") == "off"

    @property
    def left_out(self) -> runs.LeftOut:
        """The episodes of the sources that are not judged: invalid ones, and those lost in damaged files."""
        return self.records.left_out

    @property
    def skipped(self) -> int:
        """How many these are, as far as they can be counted."""
        return self.left_out.known

    @property
    def interrupted(self) -> int:
        """How many of the judged run folders do not hold every episode that was planned."""
        sources = self.description.get("sources", ())
        assert isinstance(sources, list)
        return sum(source.get("complete") is False for source in sources)

    def summaries(self) -> tuple[list[metrics.Summary], metrics.Summary]:
        """The cells and the aggregate."""
        return metrics.cells(self.scores), metrics.aggregate(self.scores)


def judge(paths: Sequence[Path], by: Judge, *, skip_invalid: bool = False, cluster: Cluster | None = None) -> Judged:
    """Score every episode of the sources, here or on a Ray cluster, with the same scores.

    Raises `CollectedError` listing every bad episode, `SignalError`, `UnknownTaskError`, `SpecError`, `RegistryError`.
    """
    specs, tasks = by.load()
    found = _on(cluster, paths, specs, tasks, by) if cluster else None
    records, scores = found or _here(paths, specs, tasks, by, skip_invalid)
    records.require(skip_invalid=skip_invalid)
    skipped = [str(problem) for problem in records.problems if not isinstance(problem, DamageError)]
    provenance = {**judged_by(by, skipped), **_lost(records)}
    scores = replace(scores, absent=tuple(records.absent), provenance=provenance)
    return Judged(scores, records, specs, _joined(records, provenance), by, tuple(paths))


def judged_by(by: Judge, skipped: Sequence[str] = ()) -> dict[str, object]:
    """What decides a verdict, by name and digest, as scores.json tells it; raises what the loaders raise."""
    specs, tasks = by.load()
    return {
        "library": {"name": specs.name, "digest": specs.digest},
        "registry": {"name": "+".join(["built-in", *(path.stem for path in by.registry)]), "digest": tasks.digest},
        "capabilities": by.capabilities,
        "missing": by.missing,
        "applicability": by.applicability,
        "skipped": list(skipped),
        "version": __version__,
    }


def _here(
    paths: Sequence[Path], specs: Library, tasks: Registry, by: Judge, skip_invalid: bool
) -> tuple[runs.Records, Scores]:
    """The records, read once, and their scores."""
    records = runs.Records(paths)
    chunks = records.first()
    try:
        return records, _scored(chunks, specs, tasks, by)
    except SafevlaError:
        for _ in chunks:  # bad episodes come before what the good ones lack, and all of them are listed
            pass
        records.require(skip_invalid=skip_invalid)
        raise


def _on(
    cluster: Cluster, paths: Sequence[Path], specs: Library, tasks: Registry, by: Judge
) -> tuple[runs.Records, Scores] | None:
    """The same from a Ray cluster; None where anything is wrong with the records, and they must be read here."""
    records = runs.Records(paths)
    how = Manner(by.capabilities, by.missing, by.applicability)
    scores = score_records(records, specs, tasks, how, cluster)
    return None if scores is None else (records, scores)


def _lost(records: runs.Records) -> dict[str, object]:
    """What damaged files cost, where there are any: how many episodes, which, and where they were."""
    damage = [problem for problem in records.problems if isinstance(problem, DamageError)]
    if not damage:
        return {}
    left_out = records.left_out
    named = [problem.place.episode for problem in damage if problem.place.episode is not None]
    places = [str(problem) for problem in damage if problem.place.episode is None]
    return {"lost": {"episodes": left_out.lost, "more": left_out.unknown, "named": named, "damage": places}}


def _scored(chunks: Iterable[Batch], specs: Library, tasks: Registry, by: Judge) -> Scores:
    return score_chunks(
        chunks, specs, tasks, capabilities=by.capabilities, missing=by.missing, applicability=by.applicability
    )


def rescorer(judged: Judged, by: Judge) -> Callable[[Library], Scores]:
    """Judges the same records in the same way with another library, as `sensitivity` may ask."""
    _, tasks = by.load()

    def rescored(other: Library) -> Scores:
        again = _scored(judged.records.chunks(), other, tasks, by)
        return replace(again, absent=judged.scores.absent)

    return rescored


def lost(judged: Judged) -> list[str]:
    """What is missing from the scores beside crashed and stopped episodes, each as one sentence."""
    runs_were = "1 run was" if judged.interrupted == 1 else f"{judged.interrupted} runs were"
    found = [f"{runs_were} interrupted before the last episode"] if judged.interrupted else []
    return found + judged.left_out.said()


def contestants(
    paths: Sequence[Path], by: Judge, *, policies: Sequence[str] = (), skip_invalid: bool = False
) -> list[Entrant]:
    """The policies of every source (all, or those named), each source judged by itself, with names that differ.

    Sources of one policy that have no suite in common, such as runs on two hosts, are one contestant.

    Raises what `judge` raises, and `RunError` for a policy that no source has.
    """
    found: list[Entrant] = []
    for path in paths:
        judged = judge([path], by, skip_invalid=skip_invalid)
        (source,) = cast("list[Mapping[str, object]]", judged.description["sources"])
        protocol = source.get("protocol")
        found += entrants(
            replace(judged.scores, absent=(*judged.scores.absent, *judged.records.lost)),
            judged.records.headers,
            str(path),
            left_out=judged.left_out.said(),
            protocol=protocol if isinstance(protocol, dict) else None,
            privileged=judged.privileged,
        )
    unknown = [name for name in policies if name not in {one.name for one in found}]
    if unknown:
        remedy = f"There are {', '.join(dict.fromkeys(one.name for one in found)) or 'none'}."
        raise RunError(f"no source has the policy {unknown[0]!r}", remedy=remedy)
    return named_apart(joined([one for one in found if not policies or one.name in policies]))


def _joined(records: runs.Records, provenance: Mapping[str, object]) -> dict[str, object]:
    told = [
        {**(_repeatable(description) or {"archive": path.name}), "archive_sha256": runs.archive_digest(path)}
        for path, description in records.descriptions
    ]
    return {**provenance, "sources": told}


def _repeatable(description: Mapping[str, object]) -> dict[str, object]:
    """A run's description without the facts of the day, so that the same run gives the same report."""
    return {name: value for name, value in description.items() if name != "volatile"}
