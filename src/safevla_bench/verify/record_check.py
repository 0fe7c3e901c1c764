"""Whether the records are those that were written: digests, and the same episodes in the table and in the archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from safevla_bench import archive, runs
from safevla_bench.errors import Place, RecordError, RunError
from safevla_bench.runs import EpisodeRow
from safevla_bench.trajectory import Batch, Header, select, standin_benchmarks
from safevla_bench.verify.findings import Finding, agrees, differs

PARTS, EPISODES = "archive parts", "episodes"
_FIELDS = ("policy", "benchmark", "task_id", "init_state_index", "env_seed", "seed", "horizon", "outcome")
"""What the table and a record both say."""


def parts(run: Path) -> list[Finding]:
    """Every part of the archive against its digest in the manifest; a part that is missing or added differs too."""
    try:
        found = [differs(PARTS, f"{name} {said}") for name, said in runs.changed(run)]
    except RunError as error:
        return [differs(PARTS, str(error))]
    return found or [agrees(PARTS, f"{len(runs.archive_parts(run))} match their sha256 in {runs.MANIFEST}")]


@dataclass(frozen=True)
class Recorded:
    """What the archive of a run holds, without its numbers: an archive of any size is read an episode at a time."""

    parts: tuple[Path, ...]
    headers: tuple[Header, ...]
    steps: tuple[int, ...]
    """Actions of each episode."""
    standin: tuple[str, ...]
    """The benchmarks that were simulated with stand-ins for the host's own assets."""
    problems: tuple[RecordError, ...]

    @classmethod
    def of(cls, run: Path) -> Self:
        """Read the archive of a run folder once."""
        headers: list[Header] = []
        steps: list[int] = []
        standin: dict[str, None] = {}
        problems: list[RecordError] = []
        for read in archive.read(runs.archive_parts(run)):
            if isinstance(read, RecordError):
                problems.append(read)
                continue
            headers += read.headers
            steps += (read.lengths - 1).tolist()
            standin |= dict.fromkeys(standin_benchmarks(read))
        return cls(tuple(runs.archive_parts(run)), tuple(headers), tuple(steps), tuple(standin), tuple(problems))

    def episode(self, index: int) -> Batch:
        """One episode as a batch of one, read again."""
        name = self.headers[index].episode_id
        wanted = None if self.problems else [index]  # behind damage nobody knows the places
        for read in archive.read(self.parts, wanted):
            if isinstance(read, Batch) and name in (held := [header.episode_id for header in read.headers]):
                return select(read, [held.index(name)])
        problem = "it changed while it was read"
        raise RunError(problem, remedy="Verify when nothing writes there.", place=Place(file=str(self.parts[0])))


def episodes(run: Path, records: Recorded) -> list[Finding]:
    """Every planned episode that did not crash has its one record, of the same task and seeds, ended the same way."""
    if not (run / runs.EPISODES).exists():
        return [differs(EPISODES, f"{runs.EPISODES} is missing")]
    try:
        rows = runs.episode_rows(run)
    except RunError as error:
        return [differs(EPISODES, str(error))]
    headers = records.headers
    found = [differs(EPISODES, said) for said in _mismatched(rows, headers, records.steps)]
    crashed = sum(row.outcome == "crashed" for row in rows)
    said = f"{len(rows)} in {runs.EPISODES}, {len(headers)} of them with a record and {crashed} crashed without one"
    return found or [agrees(EPISODES, said)]


def _mismatched(rows: Sequence[EpisodeRow], headers: Sequence[Header], steps: Sequence[int]) -> Iterator[str]:
    listed = {row.episode_id: row for row in rows}
    held = {header.episode_id: (header, count) for header, count in zip(headers, steps, strict=True)}
    if len(listed) < len(rows):
        yield f"{runs.EPISODES} names an episode twice"
    for name, row in listed.items():
        if row.outcome == "crashed" and name in held:
            yield f"{name!r} crashed by {runs.EPISODES}, and the archive has a record of it"
        elif row.outcome != "crashed" and name not in held:
            yield f"{name!r} is in {runs.EPISODES}, and the archive has no record of it"
        elif name in held:
            yield from _apart(row, *held[name])
    yield from (f"{name!r} is in the archive, and not in {runs.EPISODES}" for name in held if name not in listed)


def _apart(row: EpisodeRow, header: Header, steps: int) -> Iterator[str]:
    pairs = {field: (getattr(row, field), getattr(header, field)) for field in _FIELDS} | {"steps": (row.steps, steps)}
    for field, (told, recorded) in pairs.items():
        if told != recorded:
            yield f"{row.episode_id!r}, {field}: {told!r} in {runs.EPISODES}, {recorded!r} in the archive"
