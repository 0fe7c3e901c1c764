"""The index of the episodes of sources: one scan finds it, and then any of the episodes can be read again.

Archives of any size are judged in the memory of a few episodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import Budget
from safevla_bench.errors import CollectedError, DamageError, Place, RecordError, RunError
from safevla_bench.sources.runs.folder import AbsentEpisode, archive_parts
from safevla_bench.sources.runs.sources import LeftOut, RecordSource, open_sources, remedy_for
from safevla_bench.trajectory.batch import Batch, batch_of_headers, concatenate_batches, select_episodes
from safevla_bench.trajectory.header import EpisodeKey, Header
from safevla_bench.trajectory.marks import (
    PRIVILEGED,
    Kitchen,
    kitchens,
    mark_flags,
    read_earlier_resets,
    reset_fields,
)

CHUNK_RECORDS, CHUNK_BYTES = 1 << 13, 1 << 26
"""Control steps that are read before they are judged: enough for arrays to pay, some tens of megabytes."""
Indices = Sequence[int] | NDArray[np.int64]


class EpisodeNote(NamedTuple):
    """The part of an episode that an index keeps."""

    header: Header
    length: int
    is_privileged: bool
    """True if the policy saw privileged state."""
    earlier_resets: int | None
    """The resets before the episode's own since the environment was seeded."""
    kitchen: Kitchen | None

    @classmethod
    def of_batch(cls, batch: Batch) -> list[EpisodeNote]:
        """Return a note of each episode, which stays when the records are let go."""
        resets, flags = map(read_earlier_resets, reset_fields(batch)), mark_flags(batch, PRIVILEGED)
        return list(map(cls, batch.headers, batch.lengths.tolist(), flags, resets, kitchens(batch)))


@dataclass(frozen=True)
class EpisodeIndex:
    """The episodes of sources in order, and where each lies."""

    sources: tuple[RecordSource, ...]
    headers: tuple[Header, ...]
    lengths: NDArray[np.int64]
    """Records of each episode, [E]."""
    places: tuple[tuple[tuple[int, EpisodeKey], ...], ...]
    """Of each source its episodes, by their place in it."""
    problems: tuple[RecordError, ...]
    lost: tuple[AbsentEpisode, ...]
    """The episodes whose record is gone with a damaged file, where a run's table tells which they are."""
    privileged_keys: frozenset[EpisodeKey]
    earlier_resets: Mapping[EpisodeKey, int]
    """The resets before an episode's own since the environment was seeded: fixtures stand elsewhere than after one."""
    kitchens: Mapping[EpisodeKey, Kitchen]
    """What fixes the start of each RoboCasa episode that says it."""

    @classmethod
    def from_notes(
        cls, sources: Sequence[RecordSource], notes: Sequence[Sequence[EpisodeNote | RecordError]]
    ) -> EpisodeIndex:
        """Return the index of sources, given what a scan of each found, in order."""
        good = [note for of_source in notes for note in of_source if isinstance(note, EpisodeNote)]
        lengths = np.array([note.length for note in good], dtype=np.int64)
        lengths.setflags(write=False)
        return cls(
            sources=tuple(sources),
            headers=tuple(note.header for note in good),
            lengths=lengths,
            places=tuple(tuple(_episode_places(of_source)) for of_source in notes),
            problems=tuple(note for of_source in notes for note in of_source if isinstance(note, RecordError)),
            lost=tuple(chain.from_iterable(map(_lost_episodes, sources, notes))),
            privileged_keys=frozenset(note.header.key for note in good if note.is_privileged),
            earlier_resets={note.header.key: note.earlier_resets for note in good if note.earlier_resets},
            kitchens={note.header.key: note.kitchen for note in good if note.kitchen},
        )

    def __len__(self) -> int:
        return len(self.headers)

    @cached_property
    def dt_s(self) -> NDArray[np.float64]:
        """Control step of each episode in seconds, [E]."""
        return np.array([header.dt for header in self.headers], dtype=np.float64)

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The policies that saw state which no real robot has, each once; None is a policy without a name."""
        return tuple(dict.fromkeys(header.policy for header in self.headers if header.key in self.privileged_keys))

    @property
    def left_out(self) -> LeftOut:
        """The counts of the episodes that are not among these, because they are invalid, lost or missing."""
        return LeftOut.from_problems(self.problems, self.sources)

    @property
    def absent(self) -> list[AbsentEpisode]:
        """The planned episodes that crashed and have no record, of all sources; those with a lost record are `lost`."""
        return [absent for source in self.sources for absent in source.absent]

    def has_repeated_ids(self) -> bool:
        """Return whether a source has two episodes of one policy and id, which a scan in pieces does not notice."""
        return any(len({key for _, key in places}) < len(places) for places in self.places)

    def is_intact(self) -> bool:
        """Return whether no part of a run was changed and no source has lost an episode; reads every part of runs.

        Taken for granted, and not asked here, is a scan without errors.
        """
        names = [[episode_id for _, (_, episode_id) in places] for places in self.places]
        return all(source.is_intact(of_source) for source, of_source in zip(self.sources, names, strict=True))

    def require_valid(self, *, skip_invalid: bool = False) -> None:
        """Raise `CollectedError` for all that is bad, unless `skip_invalid`; `RunError` for an episode in two sources.

        An episode that is twice in one source passes: see `has_repeated_ids`.
        """
        if self.problems and not skip_invalid:
            raise CollectedError(self.problems, remedy=remedy_for(self.problems))
        seen: dict[EpisodeKey, Path] = {}
        for source, places in zip(self.sources, self.places, strict=True):
            for _, (policy, episode_id) in places:
                if (policy, episode_id) in seen:
                    problem = f"policy {policy!r} has this episode in {seen[policy, episode_id]} too"
                    remedy = (
                        "Name each source once. In one table such episodes would count twice: leave the policy (noop, "
                        "say) out of all runs but one, show another policy under its own name (NAME=PATH), or use "
                        "`safevla compare`, which judges each source alone."
                    )
                    raise RunError(problem, remedy=remedy, place=Place(file=str(source.path), episode=episode_id))
            seen.update(dict.fromkeys((name for _, name in places), source.path))

    def read_chunks(self, wanted: Collection[int] = (), kept: list[Batch] | None = None) -> Iterator[Batch]:
        """Yield all good episodes in batches, in order, each batch of one source.

        Those at the indices `wanted` are appended to `kept` on the way, which is complete once all is read. Raises
        `RunError` if a source has fewer or more of them than at the scan.
        """
        first, wanted = 0, frozenset(wanted)
        for source, places in zip(self.sources, self.places, strict=True):
            names, end = {name for _, name in places}, first + len(places)
            for batch in merge_batches(_filter_episodes(source.read(), names)):
                chosen = [k for k in range(len(batch)) if first + k in wanted]
                if kept is not None and chosen:
                    kept.append(select_episodes(batch, chosen))
                first += len(batch)
                yield batch
            if first != end:
                raise _changed_source(source.path)

    def read_all(self) -> Batch | None:
        """Return all good episodes as one batch; None if there are none. Raises as `read_chunks` does."""
        batches = list(self.read_chunks())
        return concatenate_batches(batches) if batches else None

    def find_source(self, index: int) -> RecordSource:
        """Return the source of the episode at an index."""
        ends = np.cumsum([len(places) for places in self.places])
        return self.sources[int((ends <= index).sum())]

    def read_episodes(self, indices: Indices) -> Batch | None:
        """Return the episodes at these indices, in the order given; None for no indices.

        Only these are decoded, unless a source has moved them since the scan: then all of that source is searched.
        Raises `RunError` if a source no longer holds one of them.
        """
        chosen = [int(k) for k in indices]
        picked: dict[EpisodeKey, Batch] = {}
        base = 0
        for source, places in zip(self.sources, self.places, strict=True):
            wanted = [places[k - base] for k in chosen if base <= k < base + len(places)]
            picked |= _read_wanted(source, wanted) if wanted else {}
            base += len(places)
        return concatenate_batches([picked[self.headers[k].key] for k in chosen]) if chosen else None

    def read_sparsely(self, indices: Sequence[int]) -> Batch:
        """Return all episodes in order: those at `indices` with their records, others with header and length alone."""
        chosen = sorted(set(indices))
        full = self.read_episodes(chosen)
        batch = self.append_headers([] if full is None else [full], chosen)
        return select_episodes(batch, np.argsort([*chosen, *self._others(chosen)]))

    def append_headers(self, batches: Sequence[Batch], indices: Collection[int]) -> Batch:
        """Return the episodes of the batches, those at `indices`, then all others with header and length alone."""
        rest = self._others(indices)
        return concatenate_batches([*batches, batch_of_headers([self.headers[k] for k in rest], self.lengths[rest])])

    def _others(self, indices: Collection[int]) -> list[int]:
        return sorted(set(range(len(self))) - set(indices))

    def select_episodes(self, indices: Iterable[int]) -> EpisodeIndex:
        """Return the index of the episodes at `indices`, in the order of all, as if the sources held no others.

        Indices out of range are ignored. Problems and lost episodes stay.
        """
        wanted, number = set(indices), count()
        places = [tuple(place for place in of_source if next(number) in wanted) for of_source in self.places]
        rows = sorted(wanted & set(range(len(self))))
        headers = tuple(self.headers[k] for k in rows)
        return replace(self, headers=headers, lengths=self.lengths[rows], places=tuple(places))


class Scan:
    """One pass over sources that yields their episodes, some at a time, and then has their index."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the sources; raises as `open_sources` does."""
        self._sources = open_sources(paths)
        files = [
            path
            for source in self._sources
            for path in ([source.path] if source.path.is_file() else archive_parts(source.path))
        ]
        size = sum(path.stat().st_size for path in files)
        self._budget = Budget(max(MAX_NOTES_BYTES, size), "bytes of what is kept of all episodes")
        self._notes: list[list[EpisodeNote | RecordError]] = [[] for _ in self._sources]
        self._batches = self._read()

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def index(self) -> EpisodeIndex:
        """Return the index of all episodes, after reading what was not read so far; bad episodes are its `problems`."""
        for _ in self._batches:
            pass
        return EpisodeIndex.from_notes(self._sources, self._notes)

    def _read(self) -> Iterator[Batch]:
        for source, notes in zip(self._sources, self._notes, strict=True):
            yield from merge_batches(self._note_batches(source, notes))

    def _note_batches(self, source: RecordSource, notes: list[EpisodeNote | RecordError]) -> Iterator[Batch]:
        """Yield the good batches of a source; each episode's note, and each error, is appended to `notes`.

        Raises `RecordError` if these take more than the budget.
        """
        for batch in source.scan():
            found: Sequence[EpisodeNote | RecordError]
            found = [batch] if isinstance(batch, RecordError) else EpisodeNote.of_batch(batch)
            try:
                self._budget.spend(_ERROR_BYTES if isinstance(batch, RecordError) else _memory(found))
            except RecordError as error:
                raise error.with_place(Place(file=str(source.path))) from None
            notes += found
            if isinstance(batch, Batch):
                yield batch


def scan(paths: Sequence[Path]) -> EpisodeIndex:
    """Read the sources once and return the index of their episodes; bad episodes are its `problems`."""
    return Scan(paths).index()


def read_sources(paths: Sequence[Path]) -> tuple[Batch | None, EpisodeIndex]:
    """Read the sources once and return their valid episodes as one batch, None if there are none, with the index."""
    reading = Scan(paths)
    batches = list(reading)
    return concatenate_batches(batches) if batches else None, reading.index()


def merge_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the same episodes in batches of `CHUNK_RECORDS` records or `CHUNK_BYTES` at least, but for the last."""
    gathered: list[Batch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += _memory(batch)
        if sum(int(part.starts[-1]) for part in gathered) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield concatenate_batches(gathered) if len(gathered) > 1 else batch
            gathered, size = [], 0
    if gathered:
        yield concatenate_batches(gathered)


MAX_NOTES_BYTES = 1 << 30
"""What an index keeps of all episodes, some 250,000, and of errors; of larger sources as much as their files have."""
_ERROR_BYTES, _OBJECT_BYTES = 1 << 12, 48


def _memory(value: object) -> int:
    """Return about how many bytes a tree of values takes; from `CHUNK_BYTES` on it is not counted to its end."""
    size = 0
    waiting: list[object] = [value]
    while waiting and size < CHUNK_BYTES:
        value = waiting.pop()
        if isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(value, str):
            size += _OBJECT_BYTES + len(value)
        elif isinstance(value, list | tuple):
            size += _OBJECT_BYTES + 8 * len(value)
            waiting += value
        elif isinstance(value, Mapping):
            waiting += [[*value], [*value.values()]]
        else:
            names: Iterable[str] = getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ()))
            size += 24
            waiting += [getattr(value, name) for name in names]
    return size


def _episode_places(notes: Sequence[EpisodeNote | RecordError]) -> Iterator[tuple[int, EpisodeKey]]:
    place = 0
    for note in notes:
        if isinstance(note, EpisodeNote):
            yield place, note.header.key
        place += (note.episodes or 0) if isinstance(note, DamageError) else 1


def _lost_episodes(source: RecordSource, notes: Sequence[EpisodeNote | RecordError]) -> list[AbsentEpisode]:
    names = {note.place.episode for note in notes if isinstance(note, DamageError)}
    return [absent for absent in source.expected or () if absent.episode_id in names]


def _filter_episodes(batches: Iterable[Batch | RecordError], names: set[EpisodeKey]) -> Iterator[Batch]:
    for batch in batches:
        if isinstance(batch, RecordError):
            continue
        chosen = [k for k, header in enumerate(batch.headers) if header.key in names]
        if len(chosen) == len(batch):
            yield batch
        elif chosen:
            yield select_episodes(batch, chosen)


def _read_wanted(source: RecordSource, wanted: Sequence[tuple[int, EpisodeKey]]) -> dict[EpisodeKey, Batch]:
    names = {name for _, name in wanted}
    for places in ([place for place, _ in wanted], None):
        episodes = {
            header.key: select_episodes(batch, [k])
            for batch in _filter_episodes(source.read(places), names)
            for k, header in enumerate(batch.headers)
        }
        if names <= episodes.keys():
            return episodes
    raise _changed_source(source.path)


def _changed_source(path: Path) -> RunError:
    problem = "it changed while it was read"
    return RunError(problem, remedy="Run the command again when nothing writes there.", place=Place(file=str(path)))
