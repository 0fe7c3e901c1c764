"""Archives of episodes: one way to open and one to append, whatever the form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from safevla_bench.archive import jsonl
from safevla_bench.archive.encoding import encode
from safevla_bench.archive.form import schema
from safevla_bench.errors import CollectedError, Place, RecordError
from safevla_bench.trajectory import Batch, concatenate

__all__ = ["append", "encode", "form_of", "open_archive", "read", "schema"]


def form_of(path: Path) -> str:
    """The suffix that names a file's form; `RecordError` where there is none that we read."""
    for suffix in (*jsonl.SUFFIXES, jsonl.WHOLE):
        if path.name.endswith(suffix):
            return suffix
    remedy = f"Archives are files ending in {', '.join([*jsonl.SUFFIXES, jsonl.WHOLE])}."
    raise RecordError("not an archive by its name", remedy=remedy, place=Place(file=str(path)))


def read(paths: Sequence[Path]) -> Iterator[Batch | RecordError]:
    """The episodes of an archive's files, in order, each a batch of one, or the error in its place.

    A file that is missing or cut off is an error too; the files after it are still read.
    """
    seen: dict[str, str] = {}
    for path in paths:
        try:
            form_of(path)
            for episode in jsonl.read(path):
                yield episode if isinstance(episode, RecordError) else _once(episode, path, seen)
        except RecordError as error:
            yield error
        except OSError as error:
            remedy = "Name an archive file or a run folder."
            yield RecordError(error.strerror or str(error), remedy=remedy, place=Place(file=str(path)))


def _once(episode: Batch, path: Path, seen: dict[str, str]) -> Batch | RecordError:
    name = episode.headers[0].episode_id
    if name in seen:
        remedy = f"It stands in {seen[name]} already. Give each episode of an archive its own id."
        place = Place(file=str(path), episode=name, field="episode_id")
        return RecordError("the episode_id is repeated", remedy=remedy, place=place)
    seen[name] = str(path)
    return episode


def open_archive(path: str | Path) -> Batch:
    """All episodes of one archive file.

    Raises `RecordError`, or `CollectedError` listing every bad episode where there is more than one.
    """
    episodes = list(read([Path(path)]))
    problems = [episode for episode in episodes if isinstance(episode, RecordError)]
    if problems:
        raise problems[0] if len(problems) == 1 else CollectedError(problems)
    batches = [episode for episode in episodes if isinstance(episode, Batch)]
    if not batches:
        remedy = "An archive holds at least one episode, a line each."
        raise RecordError("there are no episodes", remedy=remedy, place=Place(file=str(path)))
    return concatenate(batches)


def append(path: Path, batch: Batch) -> None:
    """Append every episode of a batch to an archive file, in order, and flush it to the file."""
    suffix = form_of(path)
    with path.open("ab") as stream:
        for index in range(len(batch)):
            stream.write(jsonl.member(batch, index, suffix))
