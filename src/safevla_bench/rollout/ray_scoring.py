"""Judging on a Ray cluster: sources are cut into pieces, which are read and judged on any node.

The verdicts are joined in the order of the episodes, and are those of one process, byte for byte. Where anything is
wrong, the caller reads the sources itself, so that the errors are the same too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench import archive
from safevla_bench.archive import parquet
from safevla_bench.archive.record_schema import Budget
from safevla_bench.errors import Place, RecordError, RunError, SafevlaError
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import ScoredChunk, join_chunks, judge_chunk
from safevla_bench.rollout import ray_cluster as clusters
from safevla_bench.rollout.ray_cluster import RayCluster
from safevla_bench.sources.runs.episode_index import (
    MAX_NOTES_BYTES,
    BatchNotes,
    EpisodeIndex,
    merge_batches,
    note_batches,
)
from safevla_bench.sources.runs.sources import RecordSource, open_sources
from safevla_bench.version import __version__

PIECE_EPISODES = 100
"""About so many episodes of a Parquet file are judged by one task; other forms are one piece a file."""
_QUEUED_PER_SLOT = 4
"""Tasks that are submitted for each that can run: no more verdicts than of these wait to be joined."""
_VERSIONS = {"safevla-bench": __version__, "numpy": np.__version__}
_REMEDY = "Put the archive where every node finds it by the same path, or judge it here, without --engine ray."
PieceVerdicts = tuple[Sequence[BatchNotes | RecordError], Sequence[ScoredChunk]]
"""The notes of a piece for the index of episodes, in order, and the verdicts."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some episodes of a file, by their places in it (None = all), and the file's size here."""

    file: Path
    places: range | None
    size: int


def score_on_cluster(
    paths: Sequence[Path], ruleset: Ruleset, cluster: RayCluster
) -> tuple[EpisodeIndex, Scores] | None:
    """Return the index and the scores of sources; None if anything is wrong and they must be read here.

    Raises `RunError` if a source cannot be opened, the cluster cannot be used, a task on it is lost, or a node lacks a
    file or has other versions, and `RecordError` as `runs.open_sources` does.
    """
    sources = open_sources(paths)
    if any(source.policy_names for source in sources):  # a node knows one file, and not what others say of its policy
        return None
    if not all(source.files and all(file.is_file() for file in source.files) for source in sources):
        return None
    work = [(number, piece) for number, source in enumerate(sources) for piece in cut_source(source)]
    notes: list[list[BatchNotes | RecordError]] = [[] for _ in sources]
    chunks: list[ScoredChunk] = []
    with clusters.connect_ray(cluster, 1) as ray:
        for number, verdicts in _judge_pieces(ray, work, ruleset, cluster):
            if verdicts is None:
                return None
            notes[number] += verdicts[0]
            chunks += verdicts[1]
    index = EpisodeIndex.from_notes(sources, notes)
    if index.has_repeated_ids() or not index.is_intact():
        return None
    try:
        return index, join_chunks(chunks, ruleset)
    except SafevlaError:
        return None


def cut_source(source: RecordSource) -> Iterator[Piece]:
    """Yield the pieces of a source, in order. Raises `OSError` if a file is gone."""
    for file in source.files:
        for places in _cut_file(file):
            yield Piece(file.absolute(), places, file.stat().st_size)


def _cut_file(file: Path) -> list[range] | list[None]:
    """Return the places of pieces of about `PIECE_EPISODES` episodes, cut between row groups; [None] = in one piece."""
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


def _judge_pieces(
    ray: Any, work: Sequence[tuple[int, Piece]], ruleset: Ruleset, cluster: RayCluster
) -> Iterator[tuple[int, PieceVerdicts | None]]:
    """Yield (source, verdicts) of each piece, in order; None = only the whole can be judged."""
    shared = ray.put((ruleset, _VERSIONS))
    task = ray.remote(judge_piece).options(num_cpus=cluster.cpus, num_gpus=cluster.gpus)
    slots = int(ray.cluster_resources().get("CPU", 1) / max(cluster.cpus, 0.1)) + 1
    left, submitted = deque(work), deque[Any]()
    for number, piece in work:
        while left and len(submitted) < slots * _QUEUED_PER_SLOT:
            submitted.append(task.remote(left.popleft()[1], shared))
        try:
            verdicts: PieceVerdicts | str | None = ray.get(submitted.popleft())
        except ray.exceptions.RayError as error:
            raise RunError(f"judging failed: {clusters.describe_loss(error)}", remedy=clusters.NODES) from None
        if isinstance(verdicts, str):
            raise RunError(verdicts, remedy=_REMEDY, place=Place(file=str(piece.file)))
        yield number, verdicts


def judge_piece(piece: Piece, shared: tuple[Ruleset, dict[str, str]]) -> PieceVerdicts | str | None:
    """Return the verdicts on a piece, judged where this task runs; `shared` is the ruleset and the versions required.

    A text says why this node, which has other versions or another file, cannot judge it; None if the piece raises any
    error of ours.
    """
    ruleset, versions = shared
    if reason := _refusal_reason(piece, versions):
        return f"on the node {clusters.node_name()}: {reason}"
    notes: list[BatchNotes | RecordError] = []
    budget = Budget(max(MAX_NOTES_BYTES, piece.size), "bytes of what is kept of all episodes")
    try:
        batches = archive.read_episodes([piece.file], piece.places)
        noted = note_batches(batches, notes, budget, Place(file=str(piece.file)))
        chunks = [judge_chunk(batch, ruleset) for batch in merge_batches(noted)]
    except SafevlaError:
        return None
    return None if any(isinstance(note, RecordError) for note in notes) else (notes, chunks)


def _refusal_reason(piece: Piece, versions: dict[str, str]) -> str | None:
    if differing := clusters.describe_differences(versions, _VERSIONS):
        return differing
    try:
        size = piece.file.stat().st_size
    except OSError as error:
        return f"the file cannot be read there: {error.strerror or error}"
    return None if size == piece.size else f"the file there has {size} bytes, not the {piece.size} that it has here"
