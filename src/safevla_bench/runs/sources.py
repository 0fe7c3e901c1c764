"""SOURCEs: an archive file, or a run folder, complete or not, read as records and absent episodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from safevla_bench import archive
from safevla_bench.errors import CollectedError, DamageError, Place, RecordError, RunError
from safevla_bench.runs import journal, manifest
from safevla_bench.runs.folder import MANIFEST, RUN, EpisodeRow, described, episode_rows
from safevla_bench.scores import Absent
from safevla_bench.text.sanitize import inert
from safevla_bench.trajectory import Batch, concatenate

LOST = "lost"
"""The outcome of an episode whose record is gone with a damaged file."""
_REASON = "its record is lost in a damaged file"


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
    expected: tuple[Absent, ...] | None = None
    """The episodes that are to have a record, as they are told where they have none; None = nobody knows."""
    complete: bool = False
    """Whether it is a run folder that nothing adds to any more, so that its files can be compared with the manifest."""

    def first(self) -> Iterator[Batch | RecordError]:
        """What `read` gives, with an error for each part that is not as it was written and each episode that is lost.

        A run's table of episodes says which are lost; then a record that names none of them is damage like any other,
        and is not counted beside the one whose record it was.
        """
        yield from _changed(self.path) if self.complete else ()
        yield from self.read() if self.expected is None else self._accounted([one.episode_id for one in self.expected])

    def intact(self, episodes: Collection[str]) -> bool:
        """Whether nothing is damaged or lost, where a reading found these episodes and no error."""
        expected = None if self.expected is None else {one.episode_id for one in self.expected}
        return expected in (None, set(episodes)) and not (self.complete and any(_changed(self.path)))

    def _accounted(self, expected: Sequence[str]) -> Iterator[Batch | RecordError]:
        left = {inert(name): name for name in expected}
        known = set(left)
        for one in self.read():
            names = [header.episode_id for header in one.headers] if isinstance(one, Batch) else [one.place.episode]
            for name in names:
                left.pop(inert(name or ""), None)
            yield one if isinstance(one, Batch) or inert(names[0] or "") in known else _uncounted(one)
        yield from (_lost(self.path, name) for name in left.values())


def _uncounted(error: RecordError) -> DamageError:
    return DamageError(error.problem, episodes=0, remedy=error.remedy, place=error.place)


def _lost(path: Path, episode: str) -> DamageError:
    place = Place(file=str(path), episode=episode)
    return DamageError("it was recorded, and no part of the archive has a record of it that can be read", place=place)


def _changed(path: Path) -> Iterator[DamageError]:
    """The parts of a complete run that are not as they were written; what they lost is found when they are read."""
    if not (path / MANIFEST).exists():  # `safevla verify` says so; the records can be read without it
        return
    try:
        for name, problem in manifest.changed(path):
            yield DamageError(problem, episodes=0, place=Place(file=str(path / name)))
    except RunError as error:
        yield DamageError(error.problem, episodes=0, remedy=error.remedy, place=error.place)


def open_source(path: Path) -> Source:
    """Read an archive file or a run folder; bad episodes are in `problems`, the rest in `batch`.

    Of an unfinished run the episodes that are done are read, in plan order, while it runs or after it was killed.
    """
    stream = open_stream(path)
    read = list(stream.first())
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
    rows, complete = episode_rows(path), description.get("complete") is True
    parts = manifest.parts(path)
    return _stream(path, rows, description, partial(archive.read, parts), parts, complete=complete)


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
    *,
    complete: bool = False,
) -> Stream:
    absent = tuple(_absent(row) for row in rows if row.outcome == "crashed")
    expected = tuple(replace(_absent(row), outcome=LOST, reason=_REASON) for row in rows if row.outcome != "crashed")
    return Stream(path, absent, description, read, tuple(files), expected if complete and rows else None, complete)


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
        raise CollectedError(problems, remedy=remedy_for(problems))
    _distinct(sources)
    batches = [source.batch for source in sources if source.batch is not None]
    return (concatenate(batches) if batches else None), sources


def remedy_for(problems: Sequence[RecordError]) -> str:
    """What to do where episodes are bad or lost."""
    if any(isinstance(problem, DamageError) for problem in problems):
        return (
            "Copy the files anew from where they were made; or pass --salvage to take the episodes that can be read "
            "and count the others."
        )
    return "Mend them, or pass --skip-invalid to take the others and count these."


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
