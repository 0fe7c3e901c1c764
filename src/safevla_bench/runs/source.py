"""SOURCEs: an archive file, or a run folder, complete or not, read as records and absent episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safevla_bench import archive
from safevla_bench.errors import CollectedError, Place, RecordError, RunError
from safevla_bench.runs import journal
from safevla_bench.runs.folder import ARCHIVE, MANIFEST, RUN, EpisodeRow, archive_parts, described, episode_rows
from safevla_bench.scores import Absent
from safevla_bench.trajectory import Batch, concatenate


@dataclass(frozen=True, slots=True)
class Source:
    """What a SOURCE holds: its records, its planned episodes without a record, its problems, and its description."""

    path: Path
    batch: Batch | None
    absent: tuple[Absent, ...]
    problems: tuple[RecordError, ...]
    description: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Stream:
    """A SOURCE whose records are not read yet; `read` gives them as often as asked, `archive.read` says how."""

    path: Path
    absent: tuple[Absent, ...]
    description: Mapping[str, object]
    read: Callable[..., Iterator[Batch | RecordError]]
    """With the places that are wanted, or without."""
    files: tuple[Path, ...] = ()
    """What `read` reads, one after the other; none where an unfinished run is read, which may go on meanwhile."""


def open_source(path: Path) -> Source:
    """Read an archive file or a run folder; bad episodes are in `problems`, the rest in `batch`.

    Of an unfinished run the episodes that are done are read, in plan order, while it runs or after it was killed.
    """
    stream = open_stream(path)
    read = list(stream.read())
    batches = [one for one in read if isinstance(one, Batch)]
    problems = tuple(one for one in read if isinstance(one, RecordError))
    return Source(path, concatenate(batches) if batches else None, stream.absent, problems, stream.description)


def open_stream(path: Path) -> Stream:
    """An archive file or a run folder, as it is now: an unfinished run may go on or be completed meanwhile."""
    if not path.exists():
        remedy = "Name an archive file or a run folder."
        raise RunError("there is no such file or folder", remedy=remedy, place=Place(file=str(path)))
    if path.is_dir():
        return _open_folder(path)
    return Stream(path, (), {}, partial(_some, path), (path,))


def _some(path: Path, wanted: Collection[int] | None = None) -> Iterator[Batch | RecordError]:
    """The episodes of an archive file; that there are none is an error."""
    some = wanted is not None
    for found in archive.read([path], wanted):
        some = True
        yield found
    if not some:
        remedy = "An archive holds at least one episode, a line each."
        yield RecordError("there are no episodes", remedy=remedy, place=Place(file=str(path)))


def _open_folder(path: Path) -> Stream:
    if not (path / RUN).exists():
        remedy = f"A run folder holds {RUN}; name one, or an archive file."
        raise RunError("this is not a run folder", remedy=remedy, place=Place(file=str(path)))
    description = described(path)
    if description.get("complete") is False and journal.exists(path):
        begun = _unfinished(path, description)
        description = described(path)  # it may have been completed while we read
        if begun and description.get("complete") is False:
            return begun
    parts = _parts(path)
    return _stream(path, episode_rows(path), description, partial(archive.read, parts), parts)


def _parts(path: Path) -> list[Path]:
    """The parts that are there and those that the manifest names: one that is missing is an error when it is read."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):  # `safevla verify` says so; the records can be read without it
        manifest = None
    named = manifest.get("parts") if isinstance(manifest, dict) else None
    listed = [path / ARCHIVE / Path(name).name for name in named] if isinstance(named, dict) else []
    return sorted({*archive_parts(path), *listed})


def _unfinished(path: Path, description: Mapping[str, object]) -> Stream | None:
    """What a run has done so far, None where its working state goes while it is read."""
    try:
        done = journal.Snapshot(path)
    except FileNotFoundError:
        return None
    return _stream(path, [entry.row for entry in done.entries], description, done.read)


def _stream(
    path: Path,
    rows: Sequence[EpisodeRow],
    description: Mapping[str, object],
    read: Callable[..., Iterator[Batch | RecordError]],
    files: Sequence[Path] = (),
) -> Stream:
    absent = tuple(_absent(row) for row in rows if row.outcome == "crashed")
    return Stream(path, absent, description, read, tuple(files))


def _absent(row: EpisodeRow) -> Absent:
    return Absent(**{name: getattr(row, name) for name in Absent.__struct_fields__})


def open_sources(paths: Sequence[Path], *, skip_invalid: bool = False) -> tuple[Batch | None, list[Source]]:
    """All records of several sources as one batch (None where there is none), and the sources.

    Raises `CollectedError` with every bad episode of every source, unless told to leave them out; and where the same
    policy has the same episode in two sources.
    """
    sources = [open_source(path) for path in paths]
    problems = [problem for source in sources for problem in source.problems]
    if problems and not skip_invalid:
        raise CollectedError(problems, remedy="Mend them, or pass --skip-invalid to score the others and count these.")
    _distinct(sources)
    batches = [source.batch for source in sources if source.batch is not None]
    return (concatenate(batches) if batches else None), sources


def _distinct(sources: Sequence[Source]) -> None:
    seen: dict[tuple[str | None, str], Path] = {}
    for source in sources:
        for header in source.batch.headers if source.batch else ():
            key = (header.policy, header.episode_id)
            if key in seen:
                problem = f"policy {header.policy!r} has this episode in {seen[key]} too"
                remedy = "Score each source once, or give the episodes of different policies their policy's name."
                raise RunError(problem, remedy=remedy, place=Place(file=str(source.path), episode=header.episode_id))
            seen[key] = source.path
