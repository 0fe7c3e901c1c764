"""Judging the row groups of Parquet archives in several processes on this machine or a Ray cluster.

A process reads and judges a row group, and sends back the scores and headers. The parent process joins the scores in
the order of the files, so that the results have the same bytes for any number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench import archive
from safevla_bench.archive import parquet
from safevla_bench.errors import RecordError, RunError, SafevlaError
from safevla_bench.explain.bodies import BodyViolation, find_bodies
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import JudgedChunk, join_judged, judge_chunk
from safevla_bench.sources.runs.episode_index import EpisodeIndex, Scan
from safevla_bench.sources.runs.policy_names import PolicyNames
from safevla_bench.sources.runs.sources import RecordSource, rename_batches
from safevla_bench.trajectory.batch import Batch, batch_of_headers
from safevla_bench.trajectory.header import EpisodeKey
from safevla_recorder.identity import describe_code

if TYPE_CHECKING:
    from safevla_bench.jobs.evaluation.survey import Survey
    from safevla_bench.rollout.ray import RayCluster


@dataclass(frozen=True)
class FilePart:
    """A part of an archive file: a range of the file's rows (None = all rows), and new names of renamed policies."""

    path: Path
    rows: range | None
    names: PolicyNames


# A judgement is a batch's scores, or the error because of which the batch has no scores.
# `judge_part` returns a value of the type `Items`.
Judgement = JudgedChunk | SafevlaError
Items = Sequence[RecordError | tuple[Batch, Judgement, Sequence[BodyViolation]]]
ParallelMap = Callable[[Callable[[FilePart], Items], Iterable[FilePart]], Iterator[Items]]


def judge_part(ruleset: Ruleset, part: FilePart, *, has_bodies: bool = False) -> Items:
    """Judge a part of an archive. Return an error for each damaged record, and a tuple for each batch: (its headers,
    lengths and times as a batch, its scores or an error, its bodies in violations). Bodies need `has_bodies`.
    """
    # `part` contains the path of a file, a range of its rows (None = all), and new names for policies in the file.
    items: list[RecordError | tuple[Batch, Judgement, Sequence[BodyViolation]]] = []
    for batch in rename_batches(archive.read_episodes([part.path], part.rows), part.names):
        if isinstance(batch, RecordError):
            items.append(batch)
            continue
        # `outline` contains the headers, lengths and times of the batch. Sending back all other channels would be slow.
        times = {"time_s": batch.channel("time_s")}
        outline = replace(batch_of_headers(batch.headers, batch.lengths), extra=batch.extra, further=times)
        try:
            fields = ruleset.read_fields(batch)
            chunk = judge_chunk(batch, ruleset, fields)
            bodies = list(find_bodies([fields], chunk.scores, ruleset)) if has_bodies else []
            items.append((outline, chunk, bodies))
        except SafevlaError as error:
            items.append((outline, error, []))
    return items


@dataclass(frozen=True)
class ParallelJudge:
    """Judges the row groups of archives in other processes. `run` is a parallel `map` of a function over file parts."""

    run: ParallelMap

    def can_judge(self, sources: Sequence[RecordSource]) -> bool:
        """Return whether all files of the sources are Parquet archives. Other files are judged in one process."""
        # For an unfinished run, whose files may still change, `files` is empty.
        return all(
            source.files and all(file.suffix == parquet.SUFFIX and not file.is_dir() for file in source.files)
            for source in sources
        )

    def score_scan(
        self, scan: Scan, ruleset: Ruleset, survey: Survey | None = None
    ) -> tuple[EpisodeIndex, JudgedChunk]:
        """Return the index of the sources' episodes, and their scores. Raises the errors of `score_chunks`."""
        judgements: list[Judgement] = []
        sources = scan.sources
        # Replace each source's `read` by a function that also judges the source and appends to `judgements`.
        scan.sources = [
            replace(source, read=partial(self._read_and_judge, ruleset, judgements, source, survey))
            for source in sources
        ]
        # `scan.index` reads all sources. The batches in `kept` lack the judged channels, so drop these batches.
        records = replace(scan.index(), sources=tuple(sources), kept=None)
        if survey is not None:
            # The survey is complete only if it contains exactly the episodes of the index.
            chunks = [judgement for judgement in judgements if isinstance(judgement, JudgedChunk)]
            survey.is_complete = sum(len(chunk.scores) for chunk in chunks) == len(records)
        return records, _join_scores(records, judgements, ruleset)

    def score_records(self, records: EpisodeIndex, ruleset: Ruleset) -> Scores:
        """Return the scores of the episodes in an index, judged by `ruleset`. Raises the errors of `score_chunks`."""
        judgements: list[Judgement] = []
        for source in records.sources:
            deque(self._read_and_judge(ruleset, judgements, source), maxlen=0)  # reading a source fills `judgements`
        return _join_scores(records, judgements, ruleset).scores

    def _read_and_judge(
        self, ruleset: Ruleset, judgements: list[Judgement], source: RecordSource, survey: Survey | None = None
    ) -> Iterator[Batch | RecordError]:
        # Judge the source and append the judgements of its batches to `judgements`.
        # Yield the same as `source.read`: the batches without repeated episodes, and an error for each damaged record.
        file_of_episode: dict[EpisodeKey, str] = {}
        parts = list(_list_parts(source))  # row groups of the source's files
        if not any(part.rows for part in parts):  # no file has rows; `source.read` yields the errors
            yield from (error for error in source.read() if isinstance(error, RecordError))
            return
        # `run` works like `map`: it yields the result of the function for each part, computed in other processes.
        judge_one = partial(judge_part, ruleset, has_bodies=survey is not None)
        for part, items in zip(parts, self.run(judge_one, parts), strict=True):
            for item in items:
                if isinstance(item, RecordError):
                    yield item
                    continue
                batch, judgement, bodies = item
                judgements.append(judgement)
                if survey is not None:
                    survey.add_bodies(bodies, len(batch))
                yield from archive.drop_repeated(batch, part.path, file_of_episode)


def _list_parts(source: RecordSource) -> Iterator[FilePart]:
    # Yield a part of the source for each row group of its files, except empty row groups.
    for file in source.files:
        bounds = pairwise(accumulate(parquet.count_rows(file), initial=0))
        row_ranges: list[range | None] = [range(first, end) for first, end in bounds if end > first]
        # If a file has no rows, yield one part with `rows=None`.
        yield from (FilePart(file, rows, source.policy_names) for rows in row_ranges or [None])


def _join_scores(records: EpisodeIndex, judgements: Sequence[Judgement], ruleset: Ruleset) -> JudgedChunk:
    # Join the judgements, and return the scores of the index's episodes, which are all valid and not repeated.

    def require_scores() -> Iterator[JudgedChunk]:
        # Yield the scores of each batch; raise the error of the first batch that could not be judged.
        for judgement in judgements:
            if isinstance(judgement, SafevlaError):
                raise judgement
            yield judgement

    joined = join_judged(require_scores(), ruleset)
    keys = list(zip(joined.scores.policy, joined.scores.episode_id, strict=True))
    # The usual case: no episode is invalid or repeated.
    if keys == [header.key for header in records.headers]:
        return joined
    first_position: dict[EpisodeKey, int] = {}  # if an episode is repeated, use its first scores
    for position, key in enumerate(keys):
        first_position.setdefault(key, position)
    positions = np.array([first_position[header.key] for header in records.headers], dtype=np.int64)
    # `()`: there are no errors.
    return JudgedChunk(joined.scores.select_episodes(positions), (), joined.net_changes[positions])


@contextmanager
def open_judge(workers: int, cluster: RayCluster | None = None) -> Iterator[ParallelJudge | None]:
    """Yield a judge with `workers` local processes, or with tasks on a cluster; yield None for one local process. The
    judge raises `RunError` if a process dies or a node has different code. Raises the errors of `connect_ray`.
    """
    # A `ParallelJudge` needs a parallel `map`: a function of (function, items) that yields the results in order.
    if cluster is not None:
        from safevla_bench.rollout.ray import connect_ray, require_room

        with connect_ray(cluster, workers) as ray:
            require_room(ray, cluster, {})
            remote_call = ray.remote(num_cpus=cluster.cpus, scheduling_strategy="SPREAD")(_call_on_node)
            yield ParallelJudge(partial(_map_ahead, partial(_submit_to_ray, ray, remote_call), workers))
    elif workers == 1:
        yield None  # the caller judges in its own process
    else:
        # `spawn` starts fresh interpreters, because forked processes could inherit locks that other threads hold.
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with_parent)
        try:
            yield ParallelJudge(partial(_map_ahead, partial(_submit_to_pool, pool), workers))
        finally:
            pool.shutdown(cancel_futures=True)


def _map_ahead(submit: Callable[..., Callable[[], Any]], workers: int, function: Any, items: Iterable[Any]) -> Any:
    # Yield the function's result for each item, in order.
    # `submit` starts a call and returns a function that waits for its result.
    # Submit at most two items per process in advance.
    pending: deque[Callable[[], Any]] = deque()
    for item in items:
        pending.append(submit(function, item))
        if len(pending) == 2 * workers:
            yield pending.popleft()()  # wait for the result of the oldest call
    while pending:
        yield pending.popleft()()


def _submit_to_pool(pool: ProcessPoolExecutor, function: Any, item: Any) -> Callable[[], Any]:
    # Submit the item, and return a function that waits for its result.
    def receive() -> Any:
        # Wait for the item's result, and return it.
        try:
            return future.result()
        except BrokenProcessPool:
            problem = "a judging process died, often because memory ran out"
            raise RunError(problem, remedy="Use fewer --workers, which need less memory.") from None

    # Block SIGINT while a worker process may start.
    # The worker inherits the blocked signal, so that Ctrl-C interrupts only the parent process.
    unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        future = pool.submit(function, item)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
    return receive


def _end_with_parent() -> None:
    # Make this worker process exit when the command's process (its parent) is killed.
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    # Wait until the parent process ends. Then exit at once, even if the main thread is still judging.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _submit_to_ray(ray: Any, remote_call: Any, function: Any, item: Any) -> Callable[[], Any]:
    # Submit the item, and return a function that waits for its result.
    def receive() -> Any:
        # Wait for the item's result, and return it; raise the error that the task returned.
        try:
            result = ray.get(result_reference)
        except ray.exceptions.RayError as error:
            # The last line of a Ray error states the cause.
            problem = f"a task on the Ray cluster failed: {str(error).strip().splitlines()[-1]}"
            raise RunError(problem, remedy="Install this machine's version of safevla-bench on every node.") from None
        if isinstance(result, SafevlaError):
            raise result
        return result

    # `_call_on_node` also needs the code version and the working directory of this machine, so send both.
    result_reference = remote_call.remote(describe_code(), Path.cwd(), function, item)
    return receive


def _call_on_node(code: str, folder: Path, function: Any, item: Any) -> Any:
    # Call the function on a node of the cluster, and return the result. `code` is the code version of the command.
    # Return a `SafevlaError` instead of raising the error, because Ray would wrap it; `_submit_to_ray` raises it again.
    try:
        own_code = describe_code()
        if own_code != code:
            problem = f"the code of the node {platform.node()} differs from this machine's:\n  {own_code}\n  {code}"
            raise RunError(problem, remedy="Install the same code on every node, because verdicts depend on the code.")
        if not item.path.is_absolute():  # `folder` is the command's working directory
            os.chdir(folder)
        return function(item)
    except SafevlaError as error:
        return error
