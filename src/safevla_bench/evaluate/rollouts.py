"""Running what was prepared into a run folder."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

from safevla_bench import rollout, runs
from safevla_bench.errors import SafevlaError
from safevla_bench.evaluate.preparation import Prepared, prepare
from safevla_bench.evaluate.request import PLAINLY, Request, Running
from safevla_bench.text.redaction import redacted


def roll_out(
    request: Request, out: Path, observer: rollout.Observer | None = None, running: Running = PLAINLY
) -> list[runs.EpisodeRow]:
    """Run every planned episode into a run folder; returns the row of each, in plan order.

    What is finished is kept, whatever ends this process, and `Running(resume=True)` continues from there.

    Raises what `prepare` raises, `RunError` where the folder is in the way or holds a run that was asked for
    differently, `HostError` where the simulator cannot be used (no folder is left behind where nothing was recorded),
    and `KeyboardInterrupt`.
    """
    prepared = prepare(request)
    try:
        with runs.RunWriter(out, prepared.description, resume=running.resume) as writer:
            _fill(writer, prepared, running, observer)
    finally:
        prepared.close()
    return runs.episode_rows(out)


def _fill(writer: runs.RunWriter, prepared: Prepared, running: Running, observer: rollout.Observer | None) -> None:
    if writer.complete:
        if not running.retry_crashed or all(row.outcome != "crashed" for row in runs.episode_rows(writer.folder)):
            return
        writer.reopen()
    places = {planned.episode_id: place for place, planned in enumerate(prepared.episodes)}
    pending = [one for one in prepared.episodes if not _done(writer.entries.get(places[one.episode_id]), running)]
    try:
        with closing(_engine(prepared, pending, running, observer)) as ended:
            for finished in ended:
                place, today = places[finished.planned.episode_id], (finished.latency, finished.greeting)
                writer.append(place, _row(finished), finished.frame, *today)
    except SafevlaError:
        if writer.fresh and not writer.entries:
            writer.discard()
        raise
    writer.finish()


def _done(entry: runs.Entry | None, running: Running) -> bool:
    return entry is not None and not (running.retry_crashed and entry.row.outcome == "crashed")


def _engine(
    prepared: Prepared, pending: Sequence[rollout.Planned], running: Running, observer: rollout.Observer | None
) -> Generator[rollout.Finished]:
    """The pending episodes as they end, run here, by workers or by actors."""
    if not pending:
        return
    if running.cluster:
        prepared.close()
        yield from rollout.run_actors(prepared.cast, pending, running.workers, running.cluster, observer)
        return
    if running.workers > 1:
        prepared.close()  # the workers make their own; a large model need not be here too
        yield from rollout.run_workers(prepared.cast, pending, running.workers, observer)
        return
    watch = prepared.cast.stopping.monitor() if prepared.cast.stopping else None
    for outcome in rollout.run_all(prepared.host, pending, prepared.policies, observer, watch):
        yield rollout.Finished.of(outcome)


def _row(finished: rollout.Finished) -> runs.EpisodeRow:
    planned = finished.planned
    played = planned.start.recorded is not None and planned.start.recorded.state is not None
    return runs.EpisodeRow(
        episode_id=planned.episode_id,
        policy=planned.policy,
        benchmark=planned.task.benchmark,
        task_id=planned.task.task_id,
        episode=planned.episode,
        init_state_index=None if played else planned.start.init_state_index,
        env_seed=planned.start.env_seed,
        seed=planned.seed,
        policy_seed=planned.policy_seed,
        horizon=planned.horizon,
        outcome=finished.outcome,
        steps=finished.steps,
        reason=None if finished.reason is None else redacted(finished.reason),
    )
