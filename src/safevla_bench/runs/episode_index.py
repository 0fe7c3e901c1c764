"""The records of sources, some at a time: archives of any size are judged in the memory of a few episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import CollectedError, DamageError, Place, RecordError, RunError
from safevla_bench.runs.sources import Stream, open_stream, remedy_for
from safevla_bench.scores import Absent
from safevla_bench.trajectory import PRIVILEGED, Batch, Header, bearing, concatenate, hollow, select

CHUNK_RECORDS = 1 << 13
"""Control steps that are read before they are judged: enough for arrays to pay, some tens of megabytes."""
_MARKS = (PRIVILEGED,)
Key = tuple[str | None, str]
"""Policy and episode id: what an episode is found by across sources."""


def key(header: Header) -> Key:
    """What tells an episode from all others of the sources."""
    return header.policy, header.episode_id


@dataclass(frozen=True, slots=True)
class Noted:
    """What is kept of a batch that was read once: its headers, their lengths, and which bear a mark."""

    headers: tuple[Header, ...]
    lengths: tuple[int, ...]
    marked: Mapping[str, tuple[Key, ...]]

    @classmethod
    def of(cls, batch: Batch) -> Noted:
        marked = {mark: tuple(key(header) for header in bearing(batch, mark)) for mark in _MARKS}
        return cls(batch.headers, tuple(batch.lengths.tolist()), marked)


@dataclass(frozen=True)
class LeftOut:
    """Episodes of the sources that are not among those read: not valid, or lost with the file that they were in."""

    invalid: int
    lost: int
    damaged: int
    """Places of files where something is damaged or gone."""
    unknown: bool
    """Whether more were lost than anybody can count."""

    @classmethod
    def of(cls, problems: Sequence[RecordError]) -> LeftOut:
        """What these errors stand for."""
        damage = [one for one in problems if isinstance(one, DamageError)]
        named = sum(one.place.episode is not None for one in damage)
        counted = sum(one.episodes or 0 for one in damage if one.place.episode is None)
        unknown = any(one.episodes is None for one in damage if one.place.episode is None)
        return cls(len(problems) - len(damage), named + counted, len(damage) - named, unknown)

    @property
    def known(self) -> int:
        """How many there are at least."""
        return self.invalid + self.lost

    def __bool__(self) -> bool:
        return bool(self.known or self.damaged)

    def said(self) -> list[str]:
        """Each kind as one sentence without its full stop."""
        found = [f"{_episodes(self.invalid, 'invalid ')} left out"] if self.invalid else []
        if self.unknown:
            found.append(f"{'more than ' if self.lost else ''}{_counted(self.lost)} lost in damaged files")
        elif self.lost:
            found.append(f"{_episodes(self.lost)} lost in damaged files")
        elif self.damaged:
            found.append("a file is not as it was written; every episode that it should hold was read")
        return found


def _counted(count: int) -> str:
    return _episodes(count) if count else "an unknown number of episodes"


def _episodes(count: int, kind: str = "") -> str:
    return f"{count} {kind}episode{'' if count == 1 else 's'}"


class Records:
    """The episodes of sources. The first reading keeps what each says once; later ones give the same episodes.

    What it says of the episodes, in their order, is whole after the first reading.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the sources; raises `RunError` where one is none."""
        self.streams = [open_stream(path) for path in paths]
        self.headers: list[Header] = []
        self._lengths: list[int] = []
        self._found: list[list[tuple[int, Key]]] = [[] for _ in self.streams]
        self._problems: list[list[RecordError]] = [[] for _ in self.streams]
        self._places = [0 for _ in self.streams]
        self._marked: dict[str, set[Key]] = {mark: set() for mark in _MARKS}

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Records of each episode, [E]."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def dt_s(self) -> NDArray[np.float64]:
        """Control step of each episode in seconds, [E]."""
        return np.array([header.dt for header in self.headers], dtype=np.float64)

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The policies that saw state which no real robot has."""
        return tuple(dict.fromkeys(one.policy for one in self.headers if key(one) in self._marked[PRIVILEGED]))

    @property
    def problems(self) -> list[RecordError]:
        """What was wrong with bad episodes, source after source."""
        return [problem for those in self._problems for problem in those]

    @property
    def left_out(self) -> LeftOut:
        """How many episodes are not among these."""
        return LeftOut.of(self.problems)

    @property
    def absent(self) -> list[Absent]:
        """The planned episodes without a record, of all sources."""
        return [one for stream in self.streams for one in stream.absent]

    @property
    def lost(self) -> list[Absent]:
        """The episodes whose record is gone with a damaged file, where a run's table says which they are."""
        found: list[Absent] = []
        for stream, problems in zip(self.streams, self._problems, strict=True):
            names = {problem.place.episode for problem in problems if isinstance(problem, DamageError)}
            found += [one for one in stream.expected or () if one.episode_id in names]
        return found

    @property
    def descriptions(self) -> list[tuple[Path, Mapping[str, object]]]:
        """The path of each source, and its run.json."""
        return [(stream.path, stream.description) for stream in self.streams]

    @property
    def ambiguous(self) -> bool:
        """Whether a source names an episode twice; a reading that is not in pieces makes an error of the second."""
        names = [[episode_id for _, (_, episode_id) in found] for found in self._found]
        return any(len(set(one)) < len(one) for one in names)

    @property
    def intact(self) -> bool:
        """Whether no source is damaged and none has lost an episode, after a reading without errors."""
        names = [[episode_id for _, (_, episode_id) in found] for found in self._found]
        return all(stream.intact(found) for stream, found in zip(self.streams, names, strict=True))

    def first(self) -> Iterator[Batch]:
        """The first reading, some episodes at a time; bad ones are in `problems`."""
        for number, stream in enumerate(self.streams):
            yield from chunked(self._noted(number, stream))

    def note(self, number: int, said: Noted | RecordError) -> None:
        """Keep what the first reading of a stream has come to next; streams one after the other, each in its order."""
        if isinstance(said, RecordError):
            self._problems[number].append(said)
            self._places[number] += (said.episodes or 0) if isinstance(said, DamageError) else 1
            return
        self.headers += said.headers
        self._lengths += said.lengths
        self._found[number] += [(self._places[number] + k, key(header)) for k, header in enumerate(said.headers)]
        for mark, those in said.marked.items():
            self._marked[mark].update(those)
        self._places[number] += len(said.headers)

    def require(self, *, skip_invalid: bool = False) -> None:
        """After the first reading: every episode must be good, unless that is not asked for, and in one source.

        Raises `CollectedError` with every bad episode of every source, and `RunError` for one that is in two.
        """
        if self.problems and not skip_invalid:
            raise CollectedError(self.problems, remedy=remedy_for(self.problems))
        seen: dict[Key, Path] = {}
        for stream, found in zip(self.streams, self._found, strict=True):
            for _, (policy, episode_id) in found:
                if (policy, episode_id) in seen:
                    problem = f"policy {policy!r} has this episode in {seen[policy, episode_id]} too"
                    remedy = "Score each source once, or give the episodes of different policies their policy's name."
                    raise RunError(problem, remedy=remedy, place=Place(file=str(stream.path), episode=episode_id))
            seen.update(dict.fromkeys((one for _, one in found), stream.path))

    def chunks(self) -> Iterator[Batch]:
        """Another reading: the same episodes, some at a time. `RunError` where a source holds others by now."""
        for stream, found in zip(self.streams, self._found, strict=True):
            known, count = {one for _, one in found}, 0
            for batch in chunked(_only(stream.read(), known)):
                count += len(batch)
                yield batch
            if count != len(found):
                raise _changed(stream.path)

    def whole(self) -> Batch | None:
        """All episodes at once, None where there is none."""
        batches = list(self.chunks())
        return concatenate(batches) if batches else None

    def episodes(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch | None:
        """Some of the episodes, in the order given; None where none is asked for. Only these are made sense of."""
        chosen = [int(k) for k in indices]
        picked: dict[Key, Batch] = {}
        base = 0
        for stream, found in zip(self.streams, self._found, strict=True):
            mine = [found[k - base] for k in chosen if base <= k < base + len(found)]
            picked |= _picked(stream, mine) if mine else {}
            base += len(found)
        return concatenate([picked[key(self.headers[k])] for k in chosen]) if chosen else None

    def some(self, indices: Sequence[int]) -> Batch:
        """All episodes, of which only these have the numbers of their records; the others say no more than a header."""
        chosen = sorted(set(indices))
        full = self.episodes(chosen)
        known = set(chosen)
        rest = [k for k in range(len(self)) if k not in known]
        return select(self._among([] if full is None else [full], rest), np.argsort([*chosen, *rest]))

    def keeping(self, indices: Sequence[int]) -> Keeping:
        """`chunks`, and these episodes from the same reading."""
        return Keeping(self, sorted(set(indices)))

    def _among(self, parts: Sequence[Batch], rest: Sequence[int]) -> Batch:
        """The episodes of the parts, then the rest, which say no more than a header."""
        return concatenate([*parts, hollow([self.headers[k] for k in rest], self.lengths[rest])])

    def only(self, indices: Sequence[int]) -> Records:
        """Some of the episodes, in the order of all, as if the sources held no others."""
        wanted, base = set(indices), 0
        chosen = copy(self)
        chosen.headers = [header for k, header in enumerate(self.headers) if k in wanted]
        chosen._lengths = [length for k, length in enumerate(self._lengths) if k in wanted]
        chosen._found = []
        for found in self._found:
            chosen._found.append([one for k, one in enumerate(found, base) if k in wanted])
            base += len(found)
        return chosen

    def _noted(self, number: int, stream: Stream) -> Iterator[Batch]:
        for read in stream.first():
            self.note(number, read if isinstance(read, RecordError) else Noted.of(read))
            if not isinstance(read, RecordError):
                yield read


class Keeping:
    """One reading of all episodes, some at a time, which keeps a few of them as they pass."""

    def __init__(self, records: Records, chosen: Sequence[int]) -> None:
        self._records, self._chosen = records, chosen
        self._kept: list[Batch] = []
        self._passing = self._pass()

    def __iter__(self) -> Iterator[Batch]:
        return self._passing

    def _pass(self) -> Iterator[Batch]:
        first, wanted = 0, set(self._chosen)
        for batch in self._records.chunks():
            mine = [k for k in range(len(batch)) if first + k in wanted]
            if mine:
                self._kept.append(select(batch, mine))
            yield batch
            first += len(batch)

    def batch(self) -> Batch:
        """What was kept and then all others, of which no more is known than a header.

        What nobody has read so far is read here.
        """
        deque(self._passing, maxlen=0)
        kept = set(self._chosen)
        return self._records._among(self._kept, [k for k in range(len(self._records)) if k not in kept])


def chunked(found: Iterable[Batch]) -> Iterator[Batch]:
    """The same episodes in batches of a good size."""
    gathered: list[Batch] = []
    for batch in found:
        gathered.append(batch)
        if sum(int(one.starts[-1]) for one in gathered) >= CHUNK_RECORDS:
            yield concatenate(gathered)
            gathered.clear()
    if gathered:
        yield concatenate(gathered)


def _only(found: Iterable[Batch | RecordError], known: set[Key]) -> Iterator[Batch]:
    """The known episodes."""
    for read in found:
        if isinstance(read, RecordError):
            continue
        mine = [k for k, header in enumerate(read.headers) if key(header) in known]
        if len(mine) == len(read):
            yield read
        elif mine:
            yield select(read, mine)


def _picked(stream: Stream, wanted: Sequence[tuple[int, Key]]) -> dict[Key, Batch]:
    """The wanted episodes by their key: looked for at their places, and wherever they are by now."""
    known = {one for _, one in wanted}
    for places in ([place for place, _ in wanted], None):
        found = {
            key(header): select(batch, [k])
            for batch in _only(stream.read(places), known)
            for k, header in enumerate(batch.headers)
        }
        if known <= found.keys():
            return found
    raise _changed(stream.path)


def _changed(path: Path) -> RunError:
    problem = "it changed while it was read"
    return RunError(problem, remedy="Run the command again when nothing writes there.", place=Place(file=str(path)))
