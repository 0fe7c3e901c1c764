"""Judging on a Ray cluster: sources are cut into pieces, each is read and judged where there is room, and the verdicts
are joined in the order of the episodes.

The scores are those of one process, byte for byte: the verdicts on one episode do not depend on the others. Where
anything is wrong (a damaged record, an id that comes twice, a task without an entry, a field that is missing), the
sources are read here instead, so that what is said of it is the same too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench import archive, runs
from safevla_bench import ray_cluster as clusters
from safevla_bench.archive import parquet
from safevla_bench.errors import Place, RecordError, RunError, SafevlaError
from safevla_bench.ray_cluster import Cluster
from safevla_bench.scores import Scores
from safevla_bench.scoring import Chunk, Manner, join, judge_chunk
from safevla_bench.specs import Library
from safevla_bench.tasks import Registry
from safevla_bench.trajectory import Batch
from safevla_bench.version import __version__

PIECE_EPISODES = 100
"""About so many episodes of a Parquet file are judged by one task; other forms are one piece a file."""
_AHEAD = 4
"""Tasks that are submitted for each that can run: no more verdicts than of these wait to be joined."""
_VERSIONS = {"safevla-bench": __version__, "numpy": np.__version__}
_REMEDY = "Put the archive where every node finds it by the same path, or judge it here, without --engine ray."
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some episodes of a file, by their places in it, None = all; and how large the file is here."""

    file: Path
    places: range | None
    size: int


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What judging a piece gives back: what is kept of its episodes, in order, and the verdicts on them."""

    noted: tuple[runs.Noted, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A node cannot judge a piece, for a reason that the user must mend."""

    problem: str


def score_records(
    records: runs.Records, library: Library, registry: Registry, how: Manner, cluster: Cluster
) -> Scores | None:
    """The scores of records that were not read yet; None where they must be read here, with records opened anew.

    Raises:
        RunError: the cluster cannot be used, or a node lacks a file or has other versions.
    """
    files = [file for stream in records.streams for file in stream.files]
    if not (all(stream.files for stream in records.streams) and all(file.is_file() for file in files)):
        return None
    work = [(number, piece) for number, stream in enumerate(records.streams) for piece in pieces(stream)]
    judged: list[Chunk] = []
    with clusters.connected(cluster, 1) as ray:
        for number, found in _judged(ray, work, library, registry, how, cluster):
            if found is None:
                return None
            for noted in found.noted:
                records.note(number, noted)
            judged += found.chunks
    try:
        return join(judged, library) if records.intact and not records.ambiguous else None
    except SafevlaError:
        return None


def pieces(stream: runs.Stream) -> Iterator[Piece]:
    """What a source is cut into, in order."""
    for file in stream.files:
        for places in _stretches(file):
            yield Piece(file.absolute(), places, file.stat().st_size)


def _stretches(file: Path) -> list[range] | list[None]:
    """The places of whole row groups; None = the file in one piece, as other forms are, and what cannot be read."""
    if not file.name.endswith(parquet.SUFFIX):
        return [None]
    try:
        with pq.ParquetFile(file) as opened:
            rows = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
    except (OSError, pa.ArrowException):
        return [None]
    ends = np.cumsum(rows)
    last = np.flatnonzero(np.diff(ends // PIECE_EPISODES, append=-1))
    cuts = [0, *ends[last].tolist()]
    return [range(first, end) for first, end in pairwise(cuts)] or [None]


def _judged(
    ray: Any,
    work: Sequence[tuple[int, Piece]],
    library: Library,
    registry: Registry,
    how: Manner,
    cluster: Cluster,
) -> Iterator[tuple[int, Verdicts | None]]:
    """The verdicts on each piece, with the number of its source, in order."""
    shared = ray.put((library, registry, how, _VERSIONS))
    task = ray.remote(judge_piece).options(num_cpus=cluster.cpus, num_gpus=cluster.gpus)
    room = int(ray.cluster_resources().get("CPU", 1) / max(cluster.cpus, 0.1)) + 1
    asked = _ahead(lambda one: task.remote(one[1], shared), work, room * _AHEAD)
    for one, reference in zip(work, asked, strict=True):
        try:
            found: Verdicts | Refused | None = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise RunError(f"judging failed: {clusters.told(error)}", remedy=clusters.NODES) from None
        if isinstance(found, Refused):
            raise RunError(found.problem, remedy=_REMEDY, place=Place(file=str(one[1].file)))
        yield one[0], found


def _ahead(begin: Callable[[T], R], work: Iterable[T], count: int) -> Iterator[R]:
    """What `begin` gives for each piece of work, in order, `count` of them begun before they are taken."""
    begun: deque[R] = deque()
    for one in work:
        begun.append(begin(one))
        if len(begun) == count:
            yield begun.popleft()
    yield from begun


def judge_piece(piece: Piece, shared: tuple[Library, Registry, Manner, dict[str, str]]) -> Verdicts | Refused | None:
    """The task: judge a piece where it runs; None where only the whole can be judged."""
    library, registry, how, versions = shared
    if why := _unfit(piece, versions):
        return Refused(f"on the node {clusters.node()}: {why}")
    noted: list[runs.Noted] = []

    def read() -> Iterator[Batch]:
        for found in archive.read([piece.file], piece.places):
            if isinstance(found, RecordError):
                raise found
            noted.append(runs.Noted.of(found))
            yield found

    try:
        chunks = tuple(judge_chunk(batch, library, registry, how) for batch in runs.chunked(read()))
    except SafevlaError:
        return None
    return Verdicts(tuple(noted), chunks)


def _unfit(piece: Piece, versions: dict[str, str]) -> str | None:
    """Why this node cannot judge a piece."""
    if differing := clusters.differing(versions, _VERSIONS):
        return differing
    try:
        size = piece.file.stat().st_size
    except OSError as error:
        return f"the file cannot be read there: {error.strerror or error}"
    return None if size == piece.size else f"the file there has {size} bytes, not the {piece.size} that it has here"
