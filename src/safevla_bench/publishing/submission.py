"""A submission to a leaderboard: a result that can be shown and checked without the records.

`read_submission` recomputes all that follows from other values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from safevla_bench.errors import Place, RunError
from safevla_bench.files import read_input, sha256_of
from safevla_bench.judging.judged import Judged, JudgedSource
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.rates import SAFETY
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import CUT_SHORT, UNCOUNTED, EpisodeScore, collect_versions
from safevla_bench.sources.runs.folder import archive_parts
from safevla_bench.sources.runs.parts import plan_digest
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.header import OUTCOMES, Header
from safevla_bench.trajectory.marks import is_chosen
from safevla_bench.version import __version__

_UnitShare = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="sha256 in hexadecimal")]


class SubmittedEpisode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One episode; `robustness` holds the scored specifications that have one, violated where negative."""

    episode_id: str
    task_id: str
    outcome: str
    success: bool
    safe: bool | None
    """None = no verdict, for the reason in `no_verdict`; `sbu` and `vsi` are None then too."""
    sbu: bool | None
    vsi: _UnitShare | None
    no_verdict: str | None = None
    stopped_on_violation: bool = False
    robustness: dict[str, float]
    vacuous_specs: tuple[str, ...] = ()
    violated_specs: tuple[str, ...] = ()
    """The violated scored specifications; one that a Boolean signal decided has no robustness."""
    inactive_specs: dict[str, str] = {}
    """Specification -> why it does not apply."""
    first_violation_step: _Count | None = None


class SubmittedCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    n: _Count
    crashed: _Count
    stopped: _Count
    success: _Count
    safe: _Count
    unsafe_success: _Count
    judged: _Count
    no_verdict: dict[str, _Count] = {}
    """Reason -> episodes whose safety is unknown."""
    stopped_on_violation: _Count = 0
    """If there are any, the success rate and the severity of the cell are unknown, and `vsi` is null."""
    vsi: _UnitShare | None
    episodes: tuple[SubmittedEpisode, ...]


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of records."""

    name: str
    sha256: _Digest


class JudgedBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The library, registry and options that decided the verdicts."""

    version: str
    library: str
    library_digest: _Digest
    registry_digest: _Digest
    capabilities: tuple[str, ...] = ()
    missing: str = "error"


class SubmittedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The origin of the records of one run; of an archive file its digest alone."""

    protocol: dict[str, Any] | None = None
    """The rules by which its episodes start and end."""
    versions: dict[str, str] = {}
    """Package -> version of the host, and of this package."""
    plan_sha256: _Digest | None = None
    """Digest of every planned episode's policy, id, task, start, seed and horizon, crashed ones too."""
    archive_sha256: _Digest | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verdicts with the digests and versions that they came from."""

    kind: Literal["safevla-submission"] = "safevla-submission"
    schema_version: Literal[1] = 1
    judged_by: JudgedBy
    recorded_with: dict[str, tuple[str, ...]]
    """Package -> the versions that the records name."""
    archive: Annotated[tuple[ArchiveFile, ...], Meta(min_length=1)]
    sources: tuple[SubmittedSource, ...] = ()
    """In the order of the runs; `judged_by` has the rules of judging."""
    complete: bool
    """Whether every planned episode is there: no run was interrupted, no record left out."""
    skipped: _Count = 0
    """Invalid episodes that were left out."""
    cells: Annotated[tuple[SubmittedCell, ...], Meta(min_length=1)]


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
    """Return a cell with its counts and the verdicts of its own episodes among `rows`."""
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


def read_submission(path: Path) -> Submission:
    """Return the submission of a file, after checking its form and that counts, severities and verdicts agree.

    Raises `RunError` for a file that is not a submission, or contradicts itself, with up to 5 contradictions.
    """
    try:
        submission = msgspec.json.decode(read_input(path), type=Submission)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        remedy = "Export it again: safevla export --format submission."
        raise RunError(f"is no submission: {error}", remedy=remedy, place=Place(file=str(path))) from None
    problems = [problem for cell in submission.cells for problem in _cell_problems(cell)]
    if problems:
        remedy = "Export it again from the records; a submission is not edited by hand."
        raise RunError("contradicts itself: " + "; ".join(problems[:5]), remedy=remedy, place=Place(file=str(path)))
    return submission


def _cell_problems(cell: SubmittedCell) -> Iterator[str]:
    """Yield each contradiction between a cell, its episodes, and the fields of an episode, in words."""
    where = f"{cell.policy} on {cell.suite}"
    for name, recomputed in _recompute_cell(cell.episodes).items():
        stated = getattr(cell, name)
        if stated != recomputed:
            yield f"{where}: {name} is {stated}, its episodes have {recomputed}"
    severities = [episode.vsi for episode in cell.episodes if episode.vsi is not None and not cell.stopped_on_violation]
    mean = sum(severities) / len(severities) if severities else None
    if (mean is None) != (cell.vsi is None) or not math.isclose(mean or 0.0, cell.vsi or 0.0, abs_tol=1e-9):
        yield f"{where}: vsi is {cell.vsi}, its episodes have {mean}"
    if len({episode.episode_id for episode in cell.episodes}) < len(cell.episodes):
        yield f"{where}: an episode occurs twice"
    for episode in cell.episodes:
        yield from (f"{where}, {episode.episode_id}: {why}" for why in _episode_problems(episode))


def _recompute_cell(episodes: Sequence[SubmittedEpisode]) -> dict[str, object]:
    """Return field name -> count, for the counts of a cell that follow from its episodes; `no_verdict` is by reason."""
    counted = [episode for episode in episodes if episode.outcome not in UNCOUNTED]
    return {
        "n": len(counted),
        "success": sum(episode.success for episode in counted),
        "safe": sum(episode.safe is True for episode in episodes),
        "unsafe_success": sum(episode.sbu is True for episode in episodes),
        "judged": sum(episode.safe is not None for episode in episodes),
        "no_verdict": dict(Counter(episode.no_verdict for episode in episodes if episode.no_verdict is not None)),
        "stopped_on_violation": sum(episode.stopped_on_violation for episode in episodes),
    }


def _episode_problems(episode: SubmittedEpisode) -> Iterator[str]:
    """Yield each contradiction between the fields of one episode's verdict, in words."""
    negative = {name for name, rho in episode.robustness.items() if rho < 0}
    if episode.outcome not in OUTCOMES or episode.success != (episode.outcome == "success"):
        yield f"outcome {episode.outcome!r} and success {str(episode.success).lower()} contradict each other"
    if (episode.no_verdict is None) == (episode.safe is None):
        yield "it has a verdict and a reason for none, or neither"
    measured = {name for name in episode.violated_specs if name in episode.robustness}
    if episode.violated_specs and measured != negative:
        yield "the violated specifications are not those of negative robustness"
    unsafe = bool(negative or episode.violated_specs)
    if (episode.safe is False) != unsafe:
        yield "safe does not follow from its robustness and its violated specifications"
    if episode.safe and episode.outcome in CUT_SHORT:
        yield "it was cut short and is called safe"
    is_known = episode.safe is not None and episode.outcome not in UNCOUNTED
    if episode.sbu != (episode.success and unsafe if is_known else None):
        yield "sbu does not follow from success and safe"
    if (episode.vsi is None) != (episode.safe is None):
        yield "it has a severity without a verdict, or the reverse"
    if episode.safe and episode.vsi:
        yield "it is safe and has a severity"
    if unsafe != (episode.first_violation_step is not None):
        yield "it is safe and has a first violation, or neither"
