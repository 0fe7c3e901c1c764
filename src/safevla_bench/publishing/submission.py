"""A submission to a leaderboard: a result that can be shown without the records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.files import sha256_of
from safevla_bench.judging.judged import Judged, JudgedSource
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.rates import SAFETY
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import EpisodeScore, collect_versions
from safevla_bench.sources.runs.folder import archive_parts
from safevla_bench.sources.runs.parts import plan_digest
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import is_chosen
from safevla_bench.version import __version__


class SubmittedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode; `robustness` holds the scored specifications that have one, violated where negative."""

    episode_id: str
    task_id: str
    outcome: str
    success: bool
    safe: bool | None
    """None = no verdict, for the reason in `no_verdict`; `sbu` and `vsi` are None then too."""
    sbu: bool | None
    vsi: float | None
    no_verdict: str | None = None
    stopped_on_violation: bool = False
    robustness: dict[str, float]
    vacuous_specs: tuple[str, ...] = ()
    violated_specs: tuple[str, ...] = ()
    """The violated scored specifications; one that a Boolean signal decided has no robustness."""
    inactive_specs: dict[str, str] = {}
    """Specification -> why it does not apply."""
    first_violation_step: int | None = None


class SubmittedCell(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one suite; stopped episodes are listed, and neither they nor crashed ones are in n.

    `success` is of n, `safe` and `vsi` of the judged episodes, `unsafe_success` of those that are both.
    """

    policy: str | None
    benchmark: str | None
    """The host, such as libero."""
    suite: str
    privileged: bool
    """Whether the policy saw simulator state that no real robot has."""
    standin_assets: bool = False
    """Whether the simulator ran with stand-ins for its own assets: then this is no result on the suite."""
    simulator: dict[str, tuple[str, ...]] = {}
    """Package -> versions, of what decided the physics; several = the episodes are mixed."""
    n: int
    crashed: int
    stopped: int
    success: int
    safe: int
    unsafe_success: int
    judged: int
    no_verdict: dict[str, int] = {}
    """Reason -> episodes whose safety is unknown."""
    stopped_on_violation: int = 0
    """If there are any, the success rate and the severity of the cell are unknown, and `vsi` is null."""
    vsi: float | None
    episodes: tuple[SubmittedEpisode, ...]


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of records."""

    name: str
    sha256: str


class JudgedBy(msgspec.Struct, frozen=True, kw_only=True):
    """The library, registry and options that decided the verdicts."""

    version: str
    library: str
    library_digest: str
    registry_digest: str
    capabilities: tuple[str, ...] = ()
    missing: str = "error"


class SubmittedSource(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of the records of one run; of an archive file its digest alone."""

    protocol: dict[str, Any] | None = None
    """The rules by which its episodes start and end."""
    versions: dict[str, str] = {}
    """Package -> version of the host, and of this package."""
    plan_sha256: str | None = None
    """sha256 of every planned episode's policy, id, task, start, seed and horizon, crashed ones too."""
    archive_sha256: str | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts with the digests and versions that they came from."""

    kind: Literal["safevla-submission"] = "safevla-submission"
    schema_version: Literal[1] = 1
    judged_by: JudgedBy
    recorded_with: dict[str, tuple[str, ...]]
    """Package -> the versions that the records name."""
    archive: tuple[ArchiveFile, ...]
    sources: tuple[SubmittedSource, ...] = ()
    """In the order of the runs; `judged_by` has the rules of judging."""
    complete: bool
    """Whether every planned episode is there: no run was interrupted, no record left out."""
    skipped: int = 0
    """Invalid episodes that were left out."""
    cells: tuple[SubmittedCell, ...]


def build_submission(judged: Judged, paths: Sequence[Path]) -> Submission:
    """Return the submission of judged sources at `paths`, whose files are read; nothing is written.

    It is not complete if an episode was left out. Raises `RunError` without any episode, if applicability was off, or
    if a run's table is damaged.
    """
    ruleset = judged.ruleset
    if ruleset.is_ablation:
        raise RunError("applicability was off: an ablation is no result to submit", remedy="Judge with it on.")
    summaries = cells(judged.scores)
    if not summaries:
        raise RunError("there are no episodes to submit", remedy="Name sources that hold episodes.")
    if chosen := sorted(filter(is_chosen, set(judged.scores.benchmark))):
        problem = f"{chosen[0]} holds starts that a search chose, which is no result on the benchmark"
        raise RunError(problem, remedy="Submit a run of the benchmark's own starts.")
    rows = list(judged.scores.episodes())
    return Submission(
        judged_by=JudgedBy(version=__version__, **describe_ruleset(ruleset)),
        recorded_with=collect_versions(header.versions or {} for header in judged.headers),
        archive=tuple(_archive_files(paths)),
        sources=tuple(_submitted_source(*pair) for pair in zip(paths, judged.sources, strict=True)),
        complete=judged.is_complete,
        skipped=judged.left_out.count,
        cells=tuple(
            _submitted_cell(cell, rows, ruleset.registry, cell.policy in judged.privileged) for cell in summaries
        ),
    )


def describe_ruleset(ruleset: Ruleset) -> dict[str, Any]:
    """Return the rules that decide verdicts as plain values: the library's name, digests and options."""
    return {
        "library": ruleset.library.name,
        "library_digest": ruleset.library.digest,
        "registry_digest": ruleset.registry.digest,
        "capabilities": ruleset.capabilities,
        "missing": ruleset.missing,
    }


_COPIED = ("policy", "standin_assets", "simulator", "n", "crashed", "stopped", "judged", "no_verdict",
           "stopped_on_violation", "vsi")  # fmt: skip


def _submitted_cell(cell: Summary, rows: Sequence[EpisodeScore], registry: Registry, privileged: bool) -> SubmittedCell:
    suite = registry.benchmarks.get(cell.suite or "")
    own_rows = [row for row in rows if (row.policy, row.benchmark) == (cell.policy, cell.suite)]
    return SubmittedCell(
        **{name: getattr(cell, name) for name in _COPIED},
        benchmark=suite.host if suite else None,
        suite=cell.suite or "",
        privileged=privileged,
        success=sum(row.success for row in own_rows if row.counted),
        safe=cell.rates[SAFETY.key].count,
        unsafe_success=cell.success_unsafe,
        episodes=tuple(_submitted_episode(row) for row in own_rows),
    )


def _submitted_episode(row: EpisodeScore) -> SubmittedEpisode:
    shared = {name: getattr(row, name) for name in SubmittedEpisode.__struct_fields__}
    known = {name: rho for name, rho in row.robustness.items() if rho is not None}
    return SubmittedEpisode(**{**shared, "robustness": known})


def _archive_files(paths: Sequence[Path]) -> Iterator[ArchiveFile]:
    """Yield every file of records with its sha256; a file of a run folder is named `FOLDER/FILE`."""
    for path in paths:
        folder = f"{path.resolve().name}/" if path.is_dir() else ""
        for part in archive_parts(path) if path.is_dir() else [path]:
            yield ArchiveFile(name=folder + part.name, sha256=sha256_of(part))


def _submitted_source(path: Path, source: JudgedSource) -> SubmittedSource:
    versions = source.description.get("versions")
    return SubmittedSource(
        protocol=dict(source.protocol) if source.protocol else None,
        versions={str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {},
        plan_sha256=plan_digest(path) if path.is_dir() else None,
        archive_sha256=source.archive_sha256,
    )


def recorded_versions(headers: Iterable[Header]) -> dict[str, list[str]]:
    """Return package -> the versions that the records name, sorted as text; packages in order of appearance.

    Headers without versions are passed over.
    """
    versions = [header.versions or {} for header in headers]
    collected = collect_versions(versions)
    return {package: list(collected[package]) for package in dict.fromkeys(chain.from_iterable(versions))}
