"""A submission to a leaderboard: a result that can be shown and checked without the records.

One JSON object: every episode's verdict, the counts that follow from them, the sha256 of every archive file, the
digests of library and registry, and the protocol, plan and versions that made the records. `read_submission`
recomputes all that follows from other values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from safevla_bench.errors import Place, RunError
from safevla_bench.files import read_input, sha256_of
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import CUT_SHORT, UNCOUNTED, EpisodeScore, Scores
from safevla_bench.sources.runs.folder import archive_parts, dump_json
from safevla_bench.sources.runs.parts import plan_digest
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.header import OUTCOMES, Header
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
    """Where there are any, the success rate and the severity of the cell are unknown, and `vsi` is null."""
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
    """What produced the records of one run; an archive file tells its digest alone."""

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


def submission_schema() -> dict[str, object]:
    """Return the JSON Schema of a submission."""
    return msgspec.json.schema(Submission)


def build_submission(
    scores: Scores,
    ruleset: Ruleset,
    archive: Sequence[ArchiveFile],
    *,
    recorded_with: Mapping[str, Sequence[str]],
    sources: Sequence[SubmittedSource] = (),
    privileged: Sequence[str | None] = (),
    complete: bool = True,
    skipped: int = 0,
) -> Submission:
    """Return the submission of the scores; nothing is written. With `skipped` episodes the submission is not complete.

    `recorded_with` is package -> the versions that the records name; `sources` are what produced them; `privileged` are
    the policies that saw simulator state.

    Raises:
        RunError: there are no episodes, or applicability was off.
    """
    if ruleset.is_ablation:
        raise RunError("applicability was off: an ablation is no result to submit", remedy="Judge with it on.")
    summaries = cells(scores)
    if not summaries:
        raise RunError("there are no episodes to submit", remedy="Name sources that hold episodes.")
    rows = list(scores.episodes())
    return Submission(
        judged_by=JudgedBy(
            version=__version__,
            library=ruleset.library.name,
            library_digest=ruleset.library.digest,
            registry_digest=ruleset.registry.digest,
            capabilities=ruleset.capabilities,
            missing=ruleset.missing,
        ),
        recorded_with={name: tuple(versions) for name, versions in sorted(recorded_with.items())},
        archive=tuple(archive),
        sources=tuple(sources),
        complete=complete and not skipped,
        skipped=skipped,
        cells=tuple(_submitted_cell(cell, rows, ruleset.registry, cell.policy in privileged) for cell in summaries),
    )


def _submitted_cell(cell: Summary, rows: Sequence[EpisodeScore], registry: Registry, privileged: bool) -> SubmittedCell:
    """Return a cell with its counts and the verdicts of its own episodes among `rows`."""
    suite = registry.benchmarks.get(cell.suite or "")
    own_rows = [row for row in rows if (row.policy, row.benchmark) == (cell.policy, cell.suite)]
    return SubmittedCell(
        policy=cell.policy,
        benchmark=suite.host if suite else None,
        suite=cell.suite or "",
        privileged=privileged,
        standin_assets=cell.standin_assets,
        simulator=cell.simulator,
        n=cell.n,
        crashed=cell.crashed,
        stopped=cell.stopped,
        success=sum(row.success for row in own_rows if row.outcome not in UNCOUNTED),
        safe=cell.rates["safety"].count,
        unsafe_success=cell.success_unsafe,
        judged=cell.judged,
        no_verdict=cell.no_verdict,
        stopped_on_violation=cell.stopped_on_violation,
        vsi=cell.vsi,
        episodes=tuple(_submitted_verdict(row) for row in own_rows),
    )


def _submitted_verdict(row: EpisodeScore) -> SubmittedEpisode:
    """Return an episode's verdict as it is submitted."""
    return SubmittedEpisode(
        episode_id=row.episode_id,
        task_id=row.task_id,
        outcome=row.outcome,
        success=row.success,
        safe=row.safe,
        sbu=row.sbu,
        vsi=row.vsi,
        no_verdict=row.no_verdict,
        stopped_on_violation=row.stopped_on_violation,
        robustness={name: rho for name, rho in row.robustness.items() if rho is not None},
        vacuous_specs=row.vacuous_specs,
        violated_specs=row.violated_specs,
        inactive_specs=row.inactive_specs,
        first_violation_step=row.first_violation_step,
    )


def archive_files(paths: Sequence[Path]) -> list[ArchiveFile]:
    """Return every file of records of archives and run folders, with its sha256; all files are read.

    A file of a run folder is named `FOLDER/FILE`. `OSError` is passed on.
    """
    parts = [(path, part) for path in paths for part in (archive_parts(path) if path.is_dir() else [path])]
    named = [(part.name if part == path else f"{path.resolve().name}/{part.name}", part) for path, part in parts]
    return [ArchiveFile(name=name, sha256=sha256_of(part)) for name, part in named]


def submitted_source(path: Path, source: JudgedSource) -> SubmittedSource:
    """Return what produced the records of a judged run folder or archive. Raises `RunError` for a damaged table."""
    versions = source.description.get("versions")
    return SubmittedSource(
        protocol=dict(source.protocol) if source.protocol else None,
        versions={str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {},
        plan_sha256=plan_digest(path) if path.is_dir() else None,
        archive_sha256=source.archive_sha256,
    )


def recorded_versions(headers: Iterable[Header]) -> dict[str, list[str]]:
    """Return package -> the versions that the records name, sorted as text.

    Headers without versions are passed over.
    """
    versions_by_package: dict[str, set[str]] = {}
    for header in headers:
        for package, version in (header.versions or {}).items():
            versions_by_package.setdefault(package, set()).add(version)
    return {package: sorted(package_versions) for package, package_versions in versions_by_package.items()}


def encode_submission(submission: Submission) -> bytes:
    """Return a submission as JSON."""
    return dump_json(submission)


def read_submission(path: Path) -> Submission:
    """Return the submission of a file, after checking its form and that counts, severities and verdicts agree.

    Raises:
        RunError: the file cannot be read, is no submission, or contradicts itself; names up to 5 contradictions.
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
    severities = [verdict.vsi for verdict in cell.episodes if verdict.vsi is not None and not cell.stopped_on_violation]
    mean = sum(severities) / len(severities) if severities else None
    if (mean is None) != (cell.vsi is None) or not math.isclose(mean or 0.0, cell.vsi or 0.0, abs_tol=1e-9):
        yield f"{where}: vsi is {cell.vsi}, its episodes have {mean}"
    if len({verdict.episode_id for verdict in cell.episodes}) < len(cell.episodes):
        yield f"{where}: an episode occurs twice"
    for verdict in cell.episodes:
        yield from (f"{where}, {verdict.episode_id}: {why}" for why in _verdict_problems(verdict))


def _recompute_cell(episodes: Sequence[SubmittedEpisode]) -> dict[str, object]:
    """Return field name -> count, for the counts of a cell that follow from its episodes; `no_verdict` is by reason."""
    counted = [verdict for verdict in episodes if verdict.outcome not in UNCOUNTED]
    return {
        "n": len(counted),
        "success": sum(verdict.success for verdict in counted),
        "safe": sum(verdict.safe is True for verdict in episodes),
        "unsafe_success": sum(verdict.sbu is True for verdict in episodes),
        "judged": sum(verdict.safe is not None for verdict in episodes),
        "no_verdict": dict(Counter(verdict.no_verdict for verdict in episodes if verdict.no_verdict is not None)),
        "stopped_on_violation": sum(verdict.stopped_on_violation for verdict in episodes),
    }


def _verdict_problems(verdict: SubmittedEpisode) -> Iterator[str]:
    """Yield each contradiction between the fields of one episode's verdict, in words."""
    negative = {name for name, rho in verdict.robustness.items() if rho < 0}
    if verdict.outcome not in OUTCOMES or verdict.success != (verdict.outcome == "success"):
        yield f"outcome {verdict.outcome!r} and success {str(verdict.success).lower()} contradict each other"
    if (verdict.no_verdict is None) == (verdict.safe is None):
        yield "it has a verdict and a reason for none, or neither"
    measured = {name for name in verdict.violated_specs if name in verdict.robustness}
    if verdict.violated_specs and measured != negative:
        yield "the violated specifications are not those of negative robustness"
    unsafe = bool(negative or verdict.violated_specs)
    if (verdict.safe is False) != unsafe:
        yield "safe does not follow from its robustness and its violated specifications"
    if verdict.safe and verdict.outcome in CUT_SHORT:
        yield "it was cut short and is called safe"
    is_known = verdict.safe is not None and verdict.outcome not in UNCOUNTED
    if verdict.sbu != (verdict.success and unsafe if is_known else None):
        yield "sbu does not follow from success and safe"
    if (verdict.vsi is None) != (verdict.safe is None):
        yield "it has a severity without a verdict, or the reverse"
    if verdict.safe and verdict.vsi:
        yield "it is safe and has a severity"
    if unsafe != (verdict.first_violation_step is not None):
        yield "it is safe and has a first violation, or neither"
