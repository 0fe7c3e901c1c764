"""Findings of the checks of a run folder; checks of its records: digests, the same episodes in table and archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from safevla_bench import archive
from safevla_bench.errors import Place, RecordError, RunError
from safevla_bench.sources.runs import folder
from safevla_bench.sources.runs.folder import MANIFEST, RUN, EpisodeRow, archive_parts, read_description
from safevla_bench.sources.runs.parts import changed_files, changed_parts, episode_rows, has_raw, record_files
from safevla_bench.sources.runs.plan_check import compare_plan
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import standin_benchmarks

CheckVerdict = Literal["agrees", "differs", "unchecked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, its verdict, and the details or the reason why it is open."""

    check: str
    verdict: CheckVerdict
    said: str
    wanted: bool = True
    """True if the user asked for the check; if it is open, the verification is open."""
    uncompared: tuple[str, ...] = ()
    """Channels and fields that an agreement does not cover."""


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Return whether no check differs."""
        return all(finding.verdict != "differs" for finding in self.findings)

    @property
    def has_open_checks(self) -> bool:
        """Return whether a check that was asked for is open."""
        return any(finding.verdict == "unchecked" and finding.wanted for finding in self.findings)


def agreement(check: str, detail: str) -> Finding:
    """Return the finding of a check that agrees."""
    return Finding(check, "agrees", detail)


def mismatch(check: str, detail: str) -> Finding:
    """Return the finding of a check that differs."""
    return Finding(check, "differs", detail)


def open_check(check: str, detail: str, *, wanted: bool = True) -> Finding:
    """Return the finding of a check that could not be made; `detail` is the reason."""
    return Finding(check, "unchecked", detail, wanted)


# Digests and episodes


PARTS, FILES, EPISODES = "archive parts", "files", "episodes"
_SHARED_FIELDS = ("policy", "benchmark", "task_id", "init_state_index", "env_seed", "seed", "horizon", "outcome")
"""Fields that both the table and a record hold."""


def check_parts(run: Path) -> list[Finding]:
    """Check the parts of the archive against the manifest's digests: a finding for each difference, one if all agree.

    Raw records, which have no digests, give an open finding.
    """
    if has_raw(run) and not archive_parts(run):
        reason = "the raw records of safevla-recorder have no digests"
        return [open_check(PARTS, f"{reason}; the checksums in each file are checked by reading", wanted=False)]
    try:
        findings = [mismatch(PARTS, f"{name} {detail}") for name, detail in changed_parts(run)]
    except RunError as error:
        return [mismatch(PARTS, str(error))]
    return findings or [agreement(PARTS, f"{len(archive_parts(run))} match their sha256 in {MANIFEST}")]


def check_files(run: Path) -> list[Finding]:
    """Check the files beside the archive, run.json and the manifest among them, against the manifest's digests.

    Open where the manifest is missing or damaged, which `check_parts` says.
    """
    try:
        changed = changed_files(run)
    except RunError:
        return [open_check(FILES, f"{MANIFEST} has no digests of them", wanted=False)]
    findings = [mismatch(FILES, detail) for detail in changed]
    return findings or [agreement(FILES, f"each matches its sha256 in {MANIFEST}, facts of the day included")]


@dataclass(frozen=True)
class ArchiveContents:
    """Headers and lengths of the episodes of an archive of any size; records are read in batches of bounded size."""

    parts: tuple[Path, ...]
    headers: tuple[Header, ...]
    steps: tuple[int, ...]
    """Actions of each episode."""
    standin: tuple[str, ...]
    """The benchmarks that were simulated with stand-ins for the host's own assets."""
    problems: tuple[RecordError, ...]

    @classmethod
    def read_run(cls, run: Path) -> Self:
        """Read all of a run folder's archive as `read_files` does. Raises `RunError` where a raw row is damaged."""
        return cls.read_files(record_files(run))

    @classmethod
    def read_files(cls, paths: Sequence[Path]) -> Self:
        """Read all of an archive's files and return their headers and lengths; damaged episodes are its `problems`."""
        headers: list[Header] = []
        steps: list[int] = []
        standin: dict[str, None] = {}
        problems: list[RecordError] = []
        for batch in archive.read_episodes(paths):
            if isinstance(batch, RecordError):
                problems.append(batch)
                continue
            headers += batch.headers
            steps += (batch.lengths - 1).tolist()
            standin |= dict.fromkeys(standin_benchmarks(batch))
        return cls(tuple(paths), tuple(headers), tuple(steps), tuple(standin), tuple(problems))

    def read_episode(self, index: int) -> Batch:
        """Return the episode of an index among the headers as a batch of one, read anew.

        Raises `RunError` where the archive no longer holds an episode of that id.
        """
        name = self.headers[index].episode_id
        places = None if self.problems else [index]  # behind damage the places are not known
        for batch in archive.read_episodes(self.parts, places):
            if isinstance(batch, Batch) and name in (episode_ids := [header.episode_id for header in batch.headers]):
                return select_episodes(batch, [episode_ids.index(name)])
        problem = "it changed while it was read"
        raise RunError(problem, remedy="Verify when nothing writes there.", place=Place(file=str(self.parts[0])))


def check_episodes(run: Path, records: ArchiveContents) -> list[Finding]:
    """Check that the planned episodes are listed, and that each has one record, with the same task, seeds and outcome.

    There is one finding for each difference, and one if all agree; a table that is missing or damaged is a mismatch.
    """
    has_table = (run / folder.EPISODES).exists()
    if not has_table and not has_raw(run):
        return [mismatch(EPISODES, f"{folder.EPISODES} is missing")]
    try:
        rows = episode_rows(run)
    except RunError as error:
        return [mismatch(EPISODES, str(error))]
    table = folder.EPISODES if has_table else "raw"
    details = [*_plan_mismatches(run, rows, table), *_episode_mismatches(rows, records, table)]
    crashed = sum(row.outcome == "crashed" for row in rows)
    detail = f"{len(rows)} in {table}, {len(records.headers)} of them with a record and {crashed} crashed without one"
    return [mismatch(EPISODES, difference) for difference in details] or [agreement(EPISODES, detail)]


def _plan_mismatches(run: Path, rows: Sequence[EpisodeRow], table: str) -> Iterator[str]:
    difference = compare_plan(read_description(run), rows)
    yield from (f"{absent.episode_id!r} was planned, and is not in {table}" for absent in difference.missing)
    if difference.unnamed:
        yield f"{difference.unnamed} planned by {RUN} are not in {table}"
    if difference.unplanned:
        yield f"{difference.unplanned} in {table} are not planned by {RUN}, or there twice"


def _episode_mismatches(rows: Sequence[EpisodeRow], records: ArchiveContents, table: str) -> Iterator[str]:
    """Yield a sentence for an id twice in the table, for each episode missing on either side, and each difference."""
    row_by_id = {row.episode_id: row for row in rows}
    record_by_id = {
        header.episode_id: (header, count) for header, count in zip(records.headers, records.steps, strict=True)
    }
    if len(row_by_id) < len(rows):
        yield f"{table} names an episode twice"
    for name, row in row_by_id.items():
        if row.outcome == "crashed" and name in record_by_id:
            yield f"{name!r} crashed by {table}, and the archive has a record of it"
        elif row.outcome != "crashed" and name not in record_by_id:
            yield f"{name!r} is in {table}, and the archive has no record of it"
        elif name in record_by_id:
            yield from _field_mismatches(row, *record_by_id[name], table)
    yield from (f"{name!r} is in the archive, and not in {table}" for name in record_by_id if name not in row_by_id)


def _field_mismatches(row: EpisodeRow, header: Header, steps: int, table: str) -> Iterator[str]:
    pairs = {field: (getattr(row, field), getattr(header, field)) for field in _SHARED_FIELDS}
    pairs["steps"] = row.steps, steps
    for field, (listed, recorded) in pairs.items():
        if listed != recorded:
            yield f"{row.episode_id!r}, {field}: {listed!r} in {table}, {recorded!r} in the archive"
