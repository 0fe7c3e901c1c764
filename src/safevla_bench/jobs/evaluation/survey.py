"""Collects data for the report while records are judged, so that the records are decoded only once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from safevla_bench.explain.bodies import BodyViolation, find_bodies
from safevla_bench.explain.episode import severity_keys
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scoring import JudgedChunk, judge_chunk
from safevla_bench.report.episode_table import MOST_DRAWN
from safevla_bench.report.page import drawn_episodes
from safevla_bench.trajectory.batch import Batch, select_episodes


class Survey:
    """Data for the report from the records: the bodies in all violations, and the records of the worst episodes."""

    def __init__(self) -> None:
        self.is_complete = False  # set to true when all judged episodes have been collected
        self.restart()

    def restart(self) -> None:
        """Discard all collected episodes."""
        self._bodies: list[BodyViolation] = []
        self._episode_count = 0
        self._kept: list[tuple[list[int], Batch]] = []  # pairs (episode indices, records) with the worst episodes
        self._worst_indices = np.empty(0, dtype=np.int64)  # indices of the worst episodes so far, ascending
        self._worst_keys = np.empty((2, 0))  # sort keys of the worst episodes for `np.lexsort`

    def judge_batch(self, batch: Batch, ruleset: Ruleset) -> JudgedChunk:
        """Judge the next episodes as `judge_chunk` does, and collect the data that the report needs."""
        # `severity_keys` [2, episodes] sorts the episodes by their worst violation.
        fields = ruleset.read_fields(batch)
        chunk = judge_chunk(batch, ruleset, fields)
        self._keep_worst(batch, severity_keys(chunk.scores))
        self.add_bodies(find_bodies([fields], chunk.scores, ruleset), len(batch))
        return chunk

    def add_bodies(self, bodies: Iterable[BodyViolation], episodes: int) -> None:
        """Add the bodies in violations of `episodes` further episodes. In `bodies`, these are numbered from 1."""
        self._bodies += [replace(body, number=body.number + self._episode_count) for body in bodies]
        self._episode_count += episodes

    def _keep_worst(self, batch: Batch, keys: np.ndarray) -> None:
        # Keep the records of the batch's episodes that are among the worst episodes so far.
        # `keys` [2, episodes] is the result of `severity_keys`, which sorts the worst episode first.
        batch_indices = self._episode_count + np.arange(len(batch))  # [episodes]
        indices = np.append(self._worst_indices, batch_indices)
        keys = np.concatenate([self._worst_keys, keys], axis=1)
        columns = np.sort(np.lexsort(keys)[:MOST_DRAWN])  # ascending indices of the worst `MOST_DRAWN` episodes
        self._worst_indices, self._worst_keys = indices[columns], keys[:, columns]
        # `_kept` lists pairs (indices of episodes, records of these episodes).
        worst = set(self._worst_indices.tolist())
        self._kept += _select_kept([(batch_indices.tolist(), batch)], worst)
        # Removing episodes copies records, so keep up to `_MOST_SPARE` episodes that are no longer among the worst.
        if sum(len(kept_indices) for kept_indices, _ in self._kept) > MOST_DRAWN + _MOST_SPARE:
            self._kept = list(_select_kept(self._kept, worst))

    def take_records(self, judged: Judged) -> tuple[Batch, list[BodyViolation]]:
        """Return a batch, and the bodies involved in violations. The batch contains the records of episodes that the
        page draws, and only headers of all others. Empties a complete survey; reads all records if it is incomplete.
        """
        drawn = {*drawn_episodes(judged.scores)}
        if self.is_complete:
            bodies, kept = self._bodies, list(_select_kept(self._kept, drawn))
            self.restart()
            # Records that the survey did not keep are read from the source.
            batches = [batch for _, batch in kept]
            kept_indices = {index for indices, _ in kept for index in indices}
            other_episodes = judged.records.read_episodes(sorted(drawn - kept_indices))
            if other_episodes is not None:
                batches.append(other_episodes)
        else:
            batches = []
            # While `find_bodies` reads all records, `read_chunks` appends the drawn episodes to `batches`.
            bodies = list(find_bodies(judged.records.read_chunks(drawn, batches), judged.scores, judged.ruleset))
        self.is_complete = False
        return judged.records.append_headers(batches, drawn), bodies


_MOST_SPARE = 32  # maximum number of kept episodes that are no longer among the worst


def _select_kept(kept: Iterable[tuple[list[int], Batch]], wanted: set[int]) -> Iterable[tuple[list[int], Batch]]:
    # Yield the pairs (episode indices, records), limited to episodes in `wanted`. Omit pairs without such episodes.
    for indices, batch in kept:
        rows = [row for row, index in enumerate(indices) if index in wanted]
        if len(rows) == len(indices):
            yield indices, batch
        elif rows:
            yield [indices[row] for row in rows], select_episodes(batch, rows)
