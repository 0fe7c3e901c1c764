"""A submission: what a leaderboard needs to show a result and to check it, without the records themselves.

One JSON object: every episode's verdict, the counts that follow from them, the sha256 of every archive file, the
digests of library and registry, and the versions that made the records. `read` trusts nothing that it can recompute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from safevla_bench.errors import Place, RunError
from safevla_bench.files import digest
from safevla_bench.metrics import Summary, cells
from safevla_bench.runs import archive_parts, dump
from safevla_bench.scores import UNCOUNTED, EpisodeScore, Scores
from safevla_bench.tasks import Registry
from safevla_bench.trajectory import Header

Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="sha256 in hexadecimal")]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One episode; `robustness` holds the scored specifications that reached a verdict, violated where negative."""

    episode_id: str
    task_id: str
    outcome: str
    success: bool
    safe: bool
    sbu: bool
    vsi: Share
    robustness: dict[str, float]
    vacuous_specs: tuple[str, ...] = ()
    inactive_specs: dict[str, str] = {}
    """Specification -> why it does not apply."""
    first_violation_step: Count | None = None


class SubmittedCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy on one suite; stopped episodes are listed, and neither they nor crashed ones are in n."""

    policy: str | None
    benchmark: str | None
    """The host, such as libero."""
    suite: str
    privileged: bool
    """Whether the policy saw simulator state that no real robot has."""
    standin_assets: bool = False
    """Whether the simulator ran with stand-ins for its own assets: then this is no result on the suite."""
    n: Count
    crashed: Count
    stopped: Count
    success: Count
    safe: Count
    unsafe_success: Count
    vsi: Share | None
    episodes: tuple[Verdict, ...]


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of records."""

    name: str
    sha256: Digest


class JudgedBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decided the verdicts."""

    version: str
    library: str
    library_digest: Digest
    registry_digest: Digest
    capabilities: tuple[str, ...] = ()
    missing: str = "error"


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verdicts, and what it takes to make them again."""

    kind: Literal["safevla-submission"] = "safevla-submission"
    schema_version: Literal[1] = 1
    judged_by: JudgedBy
    recorded_with: dict[str, tuple[str, ...]]
    """Package -> the versions that the records name."""
    archive: Annotated[tuple[ArchiveFile, ...], Meta(min_length=1)]
    complete: bool
    """Whether every planned episode is there: no run was interrupted, no record left out."""
    skipped: Count = 0
    """Invalid episodes that were left out."""
    cells: Annotated[tuple[SubmittedCell, ...], Meta(min_length=1)]


def schema() -> dict[str, object]:
    """The JSON Schema of a submission."""
    return msgspec.json.schema(Submission)


def submission(
    scores: Scores,
    judged_by: JudgedBy,
    registry: Registry,
    archive: Sequence[ArchiveFile],
    *,
    recorded_with: Mapping[str, Sequence[str]],
    privileged: Sequence[str | None] = (),
    complete: bool = True,
    skipped: int = 0,
) -> Submission:
    """The submission of some scores.

    Raises:
        RunError: there is nothing to submit, or applicability was off.
    """
    if scores.provenance.get("applicability") == "off":
        raise RunError("applicability was off: an ablation is no result to submit", remedy="Judge with it on.")
    found = cells(scores)
    if not found:
        raise RunError("there are no episodes to submit", remedy="Name sources that hold episodes.")
    rows = list(scores.episodes())
    return Submission(
        judged_by=judged_by,
        recorded_with={name: tuple(versions) for name, versions in sorted(recorded_with.items())},
        archive=tuple(archive),
        complete=complete and not skipped,
        skipped=skipped,
        cells=tuple(_cell(cell, rows, registry, cell.policy in privileged) for cell in found),
    )


def _cell(cell: Summary, rows: Sequence[EpisodeScore], registry: Registry, privileged: bool) -> SubmittedCell:
    suite = registry.benchmarks.get(cell.suite or "")
    return SubmittedCell(
        policy=cell.policy,
        benchmark=suite.host if suite else None,
        suite=cell.suite or "",
        privileged=privileged,
        standin_assets=cell.standin_assets,
        n=cell.n,
        crashed=cell.crashed,
        stopped=cell.stopped,
        success=cell.rates["sr"].count,
        safe=cell.rates["safety"].count,
        unsafe_success=cell.success_unsafe,
        vsi=cell.vsi,
        episodes=tuple(_verdict(row) for row in rows if (row.policy, row.benchmark) == (cell.policy, cell.suite)),
    )


def _verdict(row: EpisodeScore) -> Verdict:
    return Verdict(
        episode_id=row.episode_id,
        task_id=row.task_id,
        outcome=row.outcome,
        success=row.success,
        safe=row.safe,
        sbu=row.sbu,
        vsi=row.vsi,
        robustness={name: rho for name, rho in row.robustness.items() if rho is not None},
        vacuous_specs=row.vacuous_specs,
        inactive_specs=row.inactive_specs,
        first_violation_step=row.first_violation_step,
    )


def archive_files(paths: Sequence[Path]) -> list[ArchiveFile]:
    """Every file of records of archives and run folders, with its sha256."""
    parts = [(path, part) for path in paths for part in (archive_parts(path) if path.is_dir() else [path])]
    named = [(part.name if part == path else f"{path.resolve().name}/{part.name}", part) for path, part in parts]
    return [ArchiveFile(name=name, sha256=digest(part)) for name, part in named]


def versions(headers: Iterable[Header]) -> dict[str, list[str]]:
    """Package -> the versions that the records name."""
    found: dict[str, set[str]] = {}
    for header in headers:
        for package, version in (header.versions or {}).items():
            found.setdefault(package, set()).add(version)
    return {package: sorted(those) for package, those in found.items()}


def written(found: Submission) -> bytes:
    """A submission as JSON."""
    return dump(found)


def read(path: Path) -> Submission:
    """A submission from a file, checked: its form, and that counts, rates and verdicts agree.

    Raises:
        RunError: it cannot be read, is no submission, or contradicts itself; names what.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Submission)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        remedy = "Export it again: safevla export --format submission."
        raise RunError(f"is no submission: {error}", remedy=remedy, place=Place(file=str(path))) from None
    problems = [problem for cell in found.cells for problem in _problems(cell)]
    if problems:
        remedy = "Export it again from the records; a submission is not edited by hand."
        raise RunError("contradicts itself: " + "; ".join(problems[:5]), remedy=remedy, place=Place(file=str(path)))
    return found


def _problems(cell: SubmittedCell) -> Iterator[str]:
    where = f"{cell.policy} on {cell.suite}"
    counted = [one for one in cell.episodes if one.outcome not in UNCOUNTED]
    stated = (cell.n, cell.success, cell.safe, cell.unsafe_success)
    real = (
        len(counted),
        *(sum(getattr(one, name) for one in counted) for name in ("success", "safe", "sbu")),
    )
    for name, told, is_so in zip(("n", "success", "safe", "unsafe_success"), stated, real, strict=True):
        if told != is_so:
            yield f"{where}: {name} is {told}, its episodes have {is_so}"
    mean = sum(one.vsi for one in counted) / len(counted) if counted else None
    if (mean is None) != (cell.vsi is None) or not math.isclose(mean or 0.0, cell.vsi or 0.0, abs_tol=1e-9):
        yield f"{where}: vsi is {cell.vsi}, its episodes have {mean}"
    if len({one.episode_id for one in cell.episodes}) < len(cell.episodes):
        yield f"{where}: an episode occurs twice"
    for one in cell.episodes:
        yield from (f"{where}, {one.episode_id}: {why}" for why in _contradictions(one))


def _contradictions(one: Verdict) -> Iterator[str]:
    if one.safe != all(rho >= 0 for rho in one.robustness.values()):
        yield "safe does not follow from its robustness"
    if one.sbu != (one.success and not one.safe):
        yield "sbu does not follow from success and safe"
    if one.safe and one.vsi > 0:
        yield "it is safe and has a severity"
    if one.safe != (one.first_violation_step is None):
        yield "it is safe and has a first violation, or neither"
