"""The index of all episodes in the sources. One scan builds the index; then any episode can be read again.

So an archive of any size can be judged with only a few of its episodes in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from safevla_bench import archive
from safevla_bench.archive.record_schema import Budget
from safevla_bench.errors import CollectedError, DamageError, Place, RecordError, RunError
from safevla_bench.memory import limit_memory
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.runs.folder import AbsentEpisode, archive_parts
from safevla_bench.sources.runs.sources import LeftOut, RecordSource, open_sources, remedy_for
from safevla_bench.trajectory.batch import (
    Batch,
    Channel,
    Stamps,
    batch_of_headers,
    concatenate_batches,
    offsets_of,
    select_episodes,
)
from safevla_bench.trajectory.header import EpisodeKey, Header
from safevla_bench.trajectory.marks import PRIVILEGED, Kitchen, earlier_resets, kitchens, mark_flags, start_marks

CHUNK_RECORDS, CHUNK_BYTES = 1 << 13, 1 << 26  # a batch has at least this many records or bytes
KEPT_BYTES = 1 << 26  # keep valid episodes in memory up to this limit; beyond it, read the files again
Indices = Sequence[int] | NDArray[np.int64]


class EpisodeNote(NamedTuple):
    """The facts about an episode that an index keeps."""

    header: Header
    length: int
    is_privileged: bool  # true if the policy saw simulator state that a robot cannot measure
    earlier_resets: int | None  # number of resets since the environment was seeded, which affects fixtures
    kitchen: Kitchen | None  # the values that determine a RoboCasa episode's initial state, if recorded
    start_marks: tuple[str, ...]  # header fields that mark an initial state that is not in the suite
    stamps_s: NDArray[np.float64] | None  # seconds from record 0 to each record; None if they are `dt` apart
    source: int  # index of the episode's source
    place: int  # index among all (also invalid) episodes of the source


@dataclass(frozen=True)
class EpisodeIndex:
    """The valid episodes of sources in order, and the location of each episode."""

    sources: tuple[RecordSource, ...]
    notes: tuple[EpisodeNote, ...]
    problems: tuple[RecordError, ...]
    lost: tuple[AbsentEpisode, ...]  # episodes in a run's table whose records were lost in a damaged file
    problem_sources: tuple[int, ...] = ()  # index of each problem's source
    kept: tuple[Sequence[Batch], ...] | None = None  # the valid episodes of each source, if all fit into `KEPT_BYTES`

    def __len__(self) -> int:
        # The number of valid episodes.
        return len(self.notes)

    @cached_property
    def headers(self) -> tuple[Header, ...]:
        # The header of each valid episode, in order; invalid episodes are only in `problems`.
        return tuple(note.header for note in self.notes)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of records of each episode, [E]."""
        return np.array([note.length for note in self.notes], dtype=np.int64)

    @cached_property
    def dt_s(self) -> NDArray[np.float64]:
        """Control step of each episode [s], [E]."""
        return np.array([header.dt for header in self.headers], dtype=np.float64)

    @cached_property
    def stamps_s(self) -> Stamps:
        """Index of an episode -> seconds from record 0 to each record; no entry if the records are `dt` apart."""
        return {index: note.stamps_s for index, note in enumerate(self.notes) if note.stamps_s is not None}

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The distinct policies that saw simulator state that no real robot can measure; None = an unnamed policy."""
        # The keys of a dictionary are distinct and keep their order.
        return tuple(dict.fromkeys(note.header.policy for note in self.notes if note.is_privileged))

    @property
    def left_out(self) -> LeftOut:
        """Counts of the episodes that are not in the index, because they are invalid, lost or missing."""
        return LeftOut.from_problems(self.problems, self.sources)

    def count_left_out(self, policy: str | None, sources: Sequence[int]) -> LeftOut:
        """Return the counts of `left_out` for the sources with these indices, without other policies' episodes."""
        problems = []
        for problem, source in zip(self.problems, self.problem_sources, strict=False):
            recorded = problem.place.policy  # None = unknown, so that the episode may be of any policy
            is_of_policy = recorded is None or self.sources[source].policy_names.get(recorded, recorded) == policy
            if source in sources and is_of_policy:
                problems.append(problem)
        return LeftOut.from_problems(problems, [self.sources[k] for k in sources])

    @property
    def absent(self) -> list[AbsentEpisode]:
        """Planned episodes of all sources that crashed or are missing. Episodes whose record was lost are in `lost`."""
        return [absent for source in self.sources for absent in source.absent]

    def by_source(self) -> list[tuple[RecordSource, range]]:
        # Returns each source with the indices of its episodes.
        # A note has the facts about one episode. Notes are in source order, so the indices of a source are consecutive.
        # bounds[k] is the number of episodes before source k; the last bound is the number of all episodes.
        bounds = np.searchsorted([note.source for note in self.notes], range(len(self.sources) + 1)).tolist()
        return [(source, range(bounds[k], bounds[k + 1])) for k, source in enumerate(self.sources)]

    def require_valid(self, *, skip_invalid: bool = False) -> None:
        """Raise `CollectedError` with all problems (if any), unless `skip_invalid`. A duplicate episode in one source
        is a problem, too. Raise `RunError` if two sources have the same episode.
        """
        if self.problems and not skip_invalid:
            raise CollectedError(self.problems, remedy=remedy_for(self.problems, is_any_valid=bool(self.notes)))
        # A note has the facts about one episode, such as the index of its source.
        seen: dict[EpisodeKey, int] = {}  # (policy, episode id) -> index of the first source with this episode
        for note in self.notes:
            policy, episode_id = note.header.key
            first_source = seen.setdefault(note.header.key, note.source)
            if first_source != note.source:
                problem = f"policy {policy!r} has the same episode in {self.sources[first_source].path}"
                remedy = (
                    "An episode in two sources would count twice in a table. Name each source once. Record a policy "
                    "such as noop in only one run, and name different policies differently (NAME=PATH). Or use "
                    "`safevla compare`, which judges each source alone."
                )
                place = Place(file=str(self.sources[note.source].path), episode=episode_id)
                raise RunError(problem, remedy=remedy, place=place)

    def read_chunks(self, wanted: Collection[int] = (), kept: list[Batch] | None = None) -> Iterator[Batch]:
        """Yield all valid episodes in batches, in order; each batch is from one source. Batches with the episodes at
        the indices `wanted` are appended to `kept`. Raises `RunError` if the number of episodes in a source has changed
        since the scan.
        """
        wanted = frozenset(wanted)
        for source_index, (source, indices) in enumerate(self.by_source()):
            # The (policy, episode id) of the source's valid episodes; `_filter_episodes` drops all other episodes.
            keys = {self.headers[index].key for index in indices}
            first = indices.start  # index of the next batch's first episode
            # `self.kept` has each source's valid episodes if all fit into memory; the parameter `kept` is an output.
            batches = source.read() if self.kept is None else self.kept[source_index]
            for batch in merge_batches(_filter_episodes(batches, keys)):
                chosen = [offset for offset in range(len(batch)) if first + offset in wanted]  # offsets in the batch
                if kept is not None and chosen:
                    kept.append(select_episodes(batch, chosen))
                first += len(batch)
                yield batch
            # If `first` is not the end of the source's range after the last batch, episodes were added or lost.
            if first != indices.stop:
                raise _changed_source(source.path)

    def read_all(self) -> Batch | None:
        """Return all valid episodes as one batch; None if there are none. Raises the same errors as `read_chunks`."""
        batches = list(self.read_chunks())
        return concatenate_batches(batches) if batches else None

    def find_source(self, index: int) -> RecordSource:
        # Returns the source of the episode at this index. The note of an episode has the index of the source.
        return self.sources[self.notes[index].source]

    def read_episodes(self, indices: Indices) -> Batch | None:
        """Return the episodes at these indices, in the order given; None if `indices` is empty. Only these episodes are
        decoded. Raises `RunError` if a source no longer has an episode at its location.
        """
        # A note has the facts about one episode, such as the index of its source. A key is (policy, episode id).
        notes = [self.notes[int(index)] for index in indices]
        episode_by_key: dict[EpisodeKey, Batch] = {}
        for source_index, source in enumerate(self.sources):
            wanted = [note for note in notes if note.source == source_index]
            # `self.kept` has each source's valid episodes if all fit into memory; None = read the files again.
            episode_by_key |= _read_wanted(source, wanted, None if self.kept is None else self.kept[source_index])
        return concatenate_batches([episode_by_key[note.header.key] for note in notes]) if notes else None

    def read_episode(self, index: int) -> Batch:
        """Return the episode at an index. Raises the same errors as `read_episodes`."""
        episode = self.read_episodes([index])
        assert episode is not None  # one index gives a batch of one episode
        return episode

    def read_sparsely(self, indices: Sequence[int]) -> Batch:
        """Return all episodes in order. Episodes not at `indices` have only a header, a length and time stamps."""
        chosen = sorted(set(indices))
        with_records = self.read_episodes(chosen)
        # `batch` has the chosen episodes and then all others. `order` has the index in `batch` of each episode.
        batch = self.append_headers([] if with_records is None else [with_records], chosen)
        order = np.argsort([*chosen, *self._other_indices(chosen)])
        return select_episodes(batch, order)

    def append_headers(self, batches: Sequence[Batch], indices: Collection[int]) -> Batch:
        """Return the episodes of `batches` (at `indices`), then all others with only header, length and time stamps."""
        others = self._other_indices(indices)
        # An episode without time stamps has an empty array.
        times_s = [self.stamps_s.get(index, np.empty(0)) for index in others]
        counts = np.array([len(times) for times in times_s], dtype=np.int64)
        # An episode's row width in the channel of time stamps is 1; without time stamps, it is -1 (not recorded).
        # The empty array in front lets `concatenate` accept a list without episodes.
        stamps = Channel(np.concatenate([np.empty(0), *times_s]), offsets_of(counts), np.where(counts, 1, -1))
        without_records = batch_of_headers([self.headers[index] for index in others], self.lengths[others])
        return concatenate_batches([*batches, replace(without_records, further={"time_s": stamps})])

    def _other_indices(self, indices: Collection[int]) -> list[int]:
        # Returns the indices of all episodes that are not at `indices`, ascending.
        return sorted(set(range(len(self))) - set(indices))

    def select_episodes(self, indices: Iterable[int]) -> EpisodeIndex:
        """Return an index with only the episodes at `indices`, in unchanged order. Indices out of range are ignored.
        Problems and lost episodes stay in the index.
        """
        # A note has the facts about one episode.
        wanted = set(indices)
        return replace(self, notes=tuple(note for index, note in enumerate(self.notes) if index in wanted))


class Scan:
    """One pass over sources. Iteration yields batches of episodes. `index` returns the index of all episodes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.sources = open_sources(paths)
        total_bytes = 0  # size of all files of the sources
        for source in self.sources:
            files = [source.path] if source.path.is_file() else archive_parts(source.path)
            total_bytes += sum(path.stat().st_size for path in files)
        # `_spend` uses this limit for facts and errors, not for records. The limit grows with the size of the files.
        self._budget = Budget(max(MAX_NOTES_BYTES, total_bytes), "bytes of facts about the episodes")
        # The results: facts about each valid episode, errors, and planned episodes whose record was lost.
        self._notes: list[EpisodeNote] = []
        self._problems: list[RecordError] = []
        self._problem_sources: list[int] = []  # index of each problem's source
        self._lost: list[AbsentEpisode] = []
        self._shared_values: dict[tuple[str, object], Any] = {}  # (field, value) -> the value's only copy in memory
        # Batches of each source; None once all batches together exceed `KEPT_BYTES`.
        self._kept: list[list[Batch]] | None = [[] for _ in self.sources]
        self._free_bytes = KEPT_BYTES  # remaining memory for `_kept`
        self._batches = self._read_batches()  # a generator: reading starts with the first batch

    def __iter__(self) -> Iterator[Batch]:
        # Always return the same iterator, so that the sources are read only once.
        return self._batches

    def index(self) -> EpisodeIndex:
        """Read the remaining episodes, and return the index of all episodes; invalid episodes are its `problems`."""
        # Read the remaining batches, which fills the lists of facts and errors.
        for _ in self._batches:
            pass
        kept = None if self._kept is None else tuple(self._kept)
        return EpisodeIndex(
            sources=tuple(self.sources),
            notes=tuple(self._notes),
            problems=tuple(self._problems),
            lost=tuple(self._lost),
            problem_sources=tuple(self._problem_sources),
            kept=kept,
        )

    def _read_batches(self) -> Iterator[Batch]:
        # Yields merged batches of valid episodes, and keeps them while all of them fit into `KEPT_BYTES`.
        for source_index, source in enumerate(self.sources):
            for batch in merge_batches(self._note_batches(source_index, source)):
                if self._kept is not None:
                    self._kept[source_index].append(batch)
                    self._free_bytes -= _batch_bytes(batch)
                    if self._free_bytes < 0:
                        self._kept = None
                yield batch

    def _note_batches(self, source_index: int, source: RecordSource) -> Iterator[Batch]:
        # Yields the source's valid episodes.
        # Appends facts about episodes to `_notes`, errors to `_problems`, and episodes in damaged files to `_lost`.
        place, damaged_ids = 0, set()  # `place`: index of the next episode among all (also invalid) episodes
        for batch in source.scan():
            if isinstance(batch, RecordError):
                self._spend(_ERROR_BYTES, source)
                self._problems.append(batch)
                self._problem_sources.append(source_index)
                if isinstance(batch, DamageError):
                    damaged_ids.add(batch.place.episode)
                    place += batch.episodes or 0  # number of lost episodes; None = unknown
                else:
                    place += 1
                continue
            # Each field of `EpisodeNote`, in order, has one sequence with a value per episode of the batch.
            headers, lengths = map(self._share_values, batch.headers), batch.lengths.tolist()
            header_facts = mark_flags(batch, PRIVILEGED), earlier_resets(batch), kitchens(batch), start_marks(batch)
            times_s = map(batch.stamps_s.get, range(len(batch)))  # None for an episode without time stamps
            notes = list(map(EpisodeNote, headers, lengths, *header_facts, times_s, repeat(source_index), count(place)))
            self._spend(_estimate_bytes(notes), source)
            self._notes += notes
            place += len(notes)
            yield batch
        # `source.expected` lists the episodes that must have a record; None = unknown.
        self._lost += [absent for absent in source.expected or () if absent.episode_id in damaged_ids]

    def _share_values(self, header: Header) -> Header:
        """Return a copy of the header that shares values with earlier headers, so that equal values are stored once."""
        shared_values = {}
        for name in _SHARED_FIELDS:
            value = getattr(header, name)
            key = repr(value) if isinstance(value, Mapping) else value  # a mapping cannot be a dictionary key
            shared_values[name] = self._shared_values.setdefault((name, key), value)  # the first of equal values
        return replace_fields(header, **shared_values)

    def _spend(self, size_bytes: int, source: RecordSource) -> None:
        # Counts memory for facts or errors. Raises `RecordError`, with the source's path, if the limit is exceeded.
        try:
            self._budget.spend(size_bytes)
        except RecordError as error:
            raise error.with_place(Place(file=str(source.path))) from None


def scan(paths: Sequence[Path]) -> EpisodeIndex:
    """Read the sources once and return the index of their episodes; invalid episodes are its `problems`."""
    return Scan(paths).index()  # reads all batches, and keeps them only if they fit into memory


def read_sources(paths: Sequence[Path]) -> tuple[Batch | None, EpisodeIndex]:
    """Read the sources once; return their valid episodes as one batch (None if there are none) and the index."""
    with limit_memory(", ".join(map(str, paths))):  # for errors: the names of the sources
        sources_scan = Scan(paths)
        batches = list(sources_scan)  # reading the batches also fills the scan's index
        return concatenate_batches(batches) if batches else None, sources_scan.index()


def open_archive(path: str | Path) -> Batch:
    """Return all episodes of an archive file, a run folder or a log as one batch. Raises `RunError` without episodes,
    `RecordError` or `CollectedError` for bad episodes.
    """
    source = Path(path)
    # A plain archive file needs no index. A folder or a robot's log is read through the index.
    if not source.is_dir() and find_log(source) is None:
        return archive.open_archive(source)
    batch, index = read_sources([source])
    index.require_valid()
    if batch is None:
        raise RunError("there are no episodes", remedy="Record episodes: safevla eval.", place=Place(file=str(path)))
    return batch


def merge_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Merge small batches. Each result except the last has at least `CHUNK_RECORDS` records or `CHUNK_BYTES` bytes."""
    gathered: list[Batch] = []
    record_count = total_bytes = 0
    for batch in batches:
        gathered.append(batch)
        record_count += int(batch.starts[-1])  # the last offset is the number of records
        total_bytes += _batch_bytes(batch)
        if record_count >= CHUNK_RECORDS or total_bytes >= CHUNK_BYTES:
            # A single large batch is yielded without a copy.
            yield concatenate_batches(gathered) if len(gathered) > 1 else batch
            gathered, record_count, total_bytes = [], 0, 0
    if gathered:
        yield concatenate_batches(gathered)


# Limit on the memory [bytes] for errors and for facts about episodes, enough for some 200,000 episodes.
# If the total size of the sources' files is larger, this size is the limit.
MAX_NOTES_BYTES = 1 << 30
_SHARED_FIELDS = (
    "versions",
    "geometry",
    "dropped_pairs",
    "task_source",
    "instruction",
    "task_sha256",
    "init_states_sha256",
    "benchmark",
)
_ERROR_BYTES, _OBJECT_BYTES = 1 << 12, 48


def _batch_bytes(batch: Batch) -> int:
    # Returns the memory of a batch [bytes], without its headers, which the index keeps anyway.
    # `extra` holds one mapping of host-specific fields per episode.
    # Add the memory of `extra`, because `_array_bytes` counts only arrays.
    return _array_bytes(batch) + sum(_estimate_bytes(fields) for fields in batch.extra if fields)


def _array_bytes(value: object) -> int:
    # Returns the memory of all arrays in an array, mapping or dataclass [bytes]; 0 for any other value.
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_array_bytes, value.values()))
    # The fields of a dataclass. For a value that is not a dataclass, the sum is 0.
    return sum(_array_bytes(getattr(value, name)) for name in getattr(value, "__dataclass_fields__", ()))


def _estimate_bytes(value: object) -> int:
    # Returns the approximate memory of a value and of all values in it [bytes].
    # `_OBJECT_BYTES` (48) is about the size of an empty text or list; a number, None or a struct takes about half.
    if value is None or isinstance(value, int | float):
        return _OBJECT_BYTES // 2
    if isinstance(value, str):
        return _OBJECT_BYTES + len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        # A mapping counts like a list of all keys and values.
        return _estimate_bytes([*value, *value.values()])
    if isinstance(value, list | tuple):
        return _OBJECT_BYTES + 8 * len(value) + sum(map(_estimate_bytes, value))  # 8 bytes per reference to an item
    # The fields of a msgspec struct or a dataclass; () for other types.
    names: Iterable[str] = getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ()))
    return _OBJECT_BYTES // 2 + sum(_estimate_bytes(getattr(value, name)) for name in names)


def _filter_episodes(batches: Iterable[Batch | RecordError], keys: set[EpisodeKey]) -> Iterator[Batch]:
    # Yields the episodes with these keys (policy, episode id), in batches; errors are left out.
    for batch in batches:
        if isinstance(batch, RecordError):
            continue
        chosen = [index for index, header in enumerate(batch.headers) if header.key in keys]
        if len(chosen) == len(batch):
            yield batch
        elif chosen:
            yield select_episodes(batch, chosen)


def _read_wanted(
    source: RecordSource, wanted: Sequence[EpisodeNote], kept: Sequence[Batch] | None
) -> dict[EpisodeKey, Batch]:
    # Returns key -> batch of one episode. Raises `RunError` if the source lacks one of the wanted episodes.
    # `kept` has the source's valid episodes if they are in memory; None = read files. A key is (policy, episode id).
    keys = {note.header.key for note in wanted}
    if not wanted:
        return {}
    candidates = source.read([note.place for note in wanted]) if kept is None else kept
    episodes = {
        header.key: select_episodes(batch, [index])
        for batch in _filter_episodes(candidates, keys)
        for index, header in enumerate(batch.headers)
    }
    if keys != episodes.keys():
        raise _changed_source(source.path)
    return episodes


def _changed_source(path: Path) -> RunError:
    # Returns the error for the caller to raise.
    remedy = "Run the command again when no other process writes to the source."
    return RunError("the source changed while it was read", remedy=remedy, place=Place(file=str(path)))
