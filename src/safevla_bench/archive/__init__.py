"""Functions that read and write archives of episodes, and append to them. A file's suffix determines its format:

- `.jsonl`, `.jsonl.gz`, `.jsonl.zst`: one line per episode; episodes can be appended.
- `.json`, `.npz`: one episode per file.
- `.parquet`: one row per episode; the file can be written only as a whole.

Every format preserves an episode bit for bit, and the readers of all formats apply the same rules.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from safevla_bench import files
from safevla_bench.archive import jsonl, npz, parquet
from safevla_bench.archive.record_schema import EpisodeSelection
from safevla_bench.errors import CollectedError, DamageError, Place, RecordError
from safevla_bench.memory import limit_each, limit_memory
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes
from safevla_bench.trajectory.header import EpisodeKey

_SINGLE_EPISODE_SUFFIXES = (jsonl.WHOLE, npz.SUFFIX)
_READERS: Mapping[str, Callable[[Path, EpisodeSelection], Iterator[Batch | RecordError]]] = {
    **dict.fromkeys((*jsonl.SUFFIXES, jsonl.WHOLE), jsonl.read_jsonl),
    npz.SUFFIX: npz.read_npz,
    parquet.SUFFIX: parquet.read_parquet,
}


def detect_suffix(path: Path) -> str:
    """Return the suffix that determines a file's format, such as `.jsonl.gz`; the file need not exist. Raises
    `RecordError` if the name has no supported suffix, for example because it is the name of a folder.
    """
    for suffix in _READERS:  # maps each suffix to the function that reads the format
        if path.name.endswith(suffix):
            return suffix
    if path.is_dir():
        remedy = "Read a run folder with `safevla_bench.open_archive`, or `safevla score` in a shell."
        raise RecordError("a folder, not an archive", remedy=remedy, place=Place(file=str(path)))
    if path.suffix in (".hdf5", ".h5") and path.is_file():
        if not _holds_demonstrations(path):
            problem = "this HDF5 file has no demonstrations (data/demo_N), and no other layout of HDF5 is read"
            remedy = "Convert it to a LeRobot dataset, or write records from it: docs/howto/own-records.md."
            raise RecordError(problem, remedy=remedy, place=Place(file=str(path)))
        command = f"safevla eval --policy {shlex.quote(f'replay:{path}')} --out DIR"
        remedy = f"To replay, record and judge the demonstrations in their simulator, run: {command}"
        raise RecordError("HDF5 demonstrations hold actions, not records", remedy=remedy, place=Place(file=str(path)))
    suffixes = ", ".join(_READERS)
    remedy = f"Archives have one of these suffixes: {suffixes}. `safevla score` also reads results of other tools."
    raise RecordError("the file does not have an archive's suffix", remedy=remedy, place=Place(file=str(path)))


def _holds_demonstrations(path: Path) -> bool:
    # Returns whether the HDF5 file seems to have demonstrations, which are groups with the names data/demo_N.
    # HDF5 stores the names of groups as plain text. A match may also be other text.
    # The guess only selects the advice in an error message. Opening the file with `replay:` checks it exactly.
    # A name may begin in one block and end in the next, so the end of each block is searched with the next block.
    names = {b"data", b"demo_"}
    with files.open_input(path) as stream:
        rest = b""
        for block in iter(partial(stream.read, 1 << 20), b""):
            names -= {name for name in names if name in rest + block}
            if not names:
                return True
            rest = block[-4:]  # one byte less than the longest name
    return False


def read_episodes(paths: Sequence[Path], wanted: Collection[int] | None = None) -> Iterator[Batch | RecordError]:
    """Yield the episodes of the archive files in order, in batches, and a `RecordError` in place of each bad episode.
    Nothing is raised: a `RecordError` is also yielded for a missing, damaged or unsupported file, and for an episode
    whose policy and id occurred before. `wanted` holds the indices of the episodes to read, counted over all files;
    None = all episodes. If a row group of a Parquet file has a wanted episode, all episodes of the group are yielded.
    """
    selection = EpisodeSelection(wanted)  # counts the episodes across all files
    seen: dict[EpisodeKey, str] = {}  # (policy, episode id) -> the file that has the episode
    for path in paths:
        try:
            # `limit_each` yields the reader's batches and errors, and limits the memory for reading each of them.
            for episodes in limit_each(path, _READERS[detect_suffix(path)](path, selection)):
                if isinstance(episodes, RecordError):
                    yield episodes
                else:
                    yield from drop_repeated(episodes, path, seen)
        except RecordError as error:
            yield error
        except OSError as error:
            remedy = "Pass the path of an archive file or a run folder."
            yield DamageError(error.strerror or str(error), remedy=remedy, place=Place(file=str(path)))


def drop_repeated(batch: Batch, path: Path, seen: dict[EpisodeKey, str]) -> Iterator[Batch | RecordError]:
    """Yield the episodes whose keys are not in `seen`, and add the keys to `seen`. Yield an error for each repeat."""
    # A key is a pair (policy, episode id). `seen` maps a key to the episode's file; `path` is the batch's file.
    keys = [header.key for header in batch.headers]
    # Usually, no key is repeated, and the whole batch is yielded.
    if seen.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
        seen.update(dict.fromkeys(keys, str(path)))
        yield batch
        return
    for index, key in enumerate(keys):
        if key in seen:
            remedy = f"{seen[key]} already contains this episode. {_REMEDY_UNIQUE_IDS}"
            yield _repeated_id_error(key, path, remedy)
        else:
            seen[key] = str(path)
            yield select_episodes(batch, [index])


_REMEDY_UNIQUE_IDS = (
    "Give all episodes of a policy different ids. If there are several policies, name the policy of each episode."
)


def _repeated_id_error(key: EpisodeKey, path: Path, remedy: str) -> RecordError:
    # Returns the error for a second episode with the same policy and id. `path` is the file of the second episode.
    policy, episode_id = key
    by_policy = "" if policy is None else f" by policy {policy!r}"
    place = Place(file=str(path), episode=episode_id, field="episode_id", policy=policy)
    return RecordError(f"the episode_id is repeated{by_policy}", remedy=remedy, place=place)


def open_archive(path: str | Path) -> Batch:
    """Return all episodes of one archive file as one batch. Raises `RecordError` for a bad or missing file, a bad
    episode, or a file without episodes. Several problems are raised together, as a `CollectedError`.
    """
    with limit_memory(path):
        episodes = list(read_episodes([Path(path)]))  # batches, and errors of episodes or of the whole file
    problems = [episode for episode in episodes if isinstance(episode, RecordError)]
    if problems:
        raise problems[0] if len(problems) == 1 else CollectedError(problems)
    batches = [episode for episode in episodes if isinstance(episode, Batch)]
    if not batches:
        remedy = "An archive needs at least one episode, one per line or row."
        raise RecordError("there are no episodes", remedy=remedy, place=Place(file=str(path)))
    return concatenate_batches(batches)


def append_episodes(path: str | Path, batch: Batch) -> None:
    """Append all episodes of a batch to an archive file, in order, or none of them; a missing file is created. Only
    `.jsonl` formats support appending. The new ids are not compared with the ids in the file. Raises `RecordError` if
    the format is unknown or does not support appending, and `FileError` if the file cannot be written.
    """
    path = Path(path)
    suffix = detect_suffix(path)
    if suffix not in jsonl.SUFFIXES:
        remedy = f"Append to a file with the suffix {' or '.join(jsonl.SUFFIXES)}, then run `safevla convert`."
        raise RecordError(f"episodes cannot be appended to a {suffix} file", remedy=remedy, place=Place(file=str(path)))
    # All episodes are appended at once. If writing fails, the file is cut to its former length.
    files.append_bytes(path, b"".join(jsonl.encode_member(batch, index, suffix) for index in range(len(batch))))


def write_archive(path: Path, batch: Batch) -> None:
    """Write all episodes of a batch to one archive file. Raises the same errors as `write_batches`."""
    write_batches(path, [batch])


def write_batches(path: Path, batches: Iterable[Batch]) -> None:
    """Write the episodes of batches to one archive file, all or none; an existing file is replaced. Raises
    `RecordError` if the format is unknown, if an id is repeated, or if the format is for exactly one episode but the
    batches have none or several. Raises `FileError` if the file cannot be written.
    """
    suffix = detect_suffix(path)
    if suffix in _SINGLE_EPISODE_SUFFIXES:
        batches = _require_single_episode(batches, suffix, path)
    checked_batches = _require_unique_ids(batches, path)  # an iterator, which raises when it reaches a repeated id
    with files.open_atomically(path) as stream:  # an error inside this block leaves an existing file unchanged
        if suffix == parquet.SUFFIX:
            parquet.write_parquet(stream, checked_batches)
        else:
            # `encode(batch, index)` returns the bytes of one episode. The file consists of all episodes' bytes.
            encode = npz.encode_npz if suffix == npz.SUFFIX else partial(jsonl.encode_member, suffix=suffix)
            for batch in checked_batches:
                stream.writelines(encode(batch, index) for index in range(len(batch)))


def _require_single_episode(batches: Iterable[Batch], suffix: str, path: Path) -> Iterator[Batch]:
    # Yields the only episode as a batch. Raises `RecordError` if the batches have no episode or more than one.
    count = 0
    for batch in batches:
        if count == 0 and len(batch):
            first = select_episodes(batch, [0])
        count += len(batch)
    if count != 1:
        remedy = "Choose a format for several episodes, such as .jsonl or .parquet."
        place = Place(file=str(path))
        raise RecordError(f"a {suffix} file holds one episode, but there are {count}", remedy=remedy, place=place)
    yield first


def _require_unique_ids(batches: Iterable[Batch], path: Path) -> Iterator[Batch]:
    # Yields the batches unchanged. Raises `RecordError` if two episodes have the same policy and id.
    # The error names the file `path`.
    seen: set[EpisodeKey] = set()  # pairs (policy, episode id)
    for batch in batches:
        for header in batch.headers:
            if header.key in seen:
                remedy = f"{_REMEDY_UNIQUE_IDS} Write the episodes of each source to a separate file."
                raise _repeated_id_error(header.key, path, remedy)
            seen.add(header.key)
        yield batch
