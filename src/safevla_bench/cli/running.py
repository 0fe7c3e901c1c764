"""`safevla rollout` and `safevla eval`: run policies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import click

from safevla_bench import evaluate, runs
from safevla_bench.cli import CRASHED, OK, planning, printable
from safevla_bench.cli.asking import Asked, run_options
from safevla_bench.cli.judging import say
from safevla_bench.cli.options import judge_options, say_where
from safevla_bench.cli.progress import watching
from safevla_bench.errors import ServerLostError
from safevla_bench.report import elsewhere
from safevla_bench.report.render import text
from safevla_bench.trajectory import Batch


@click.command("rollout")
@run_options
@click.pass_context
def rollout_command(context: click.Context, asked: Asked) -> None:
    """Roll out policies and record every episode into a run folder, without judging.

    Recording changes nothing that the policy or the simulator sees. What is finished is kept whatever happens, and
    --resume goes on from there.
    """
    _say_what_is_open(asked)
    if asked.dry_run:
        _plan(asked)
        return
    with _kept(asked), watching(evaluate.Judge()) as observer:
        rows = evaluate.roll_out(asked.request, asked.out, observer, asked.running)
    crashed = {row.episode_id: row.reason for row in rows if row.outcome == "crashed"}
    if any(name.startswith("replay:") for name in asked.request.policies):
        _report_replays(runs.open_source(asked.out).batch)
    _report_stopped(asked, sum(row.outcome == "stopped" for row in rows))
    _report_crashes(crashed)
    folder = shlex.quote(str(asked.out))
    click.echo(f"Records: {asked.out}")
    click.echo(f"Next: safevla score {folder} --out {folder}")
    context.exit(CRASHED if crashed else OK)


@click.command("eval")
@run_options
@judge_options
@click.pass_context
def eval_command(context: click.Context, asked: Asked, judge: evaluate.Judge) -> None:
    """Roll out policies, judge every episode and write a report: SR, Safety, SBU and VSI with intervals.

    The run folder holds the records, so that another library or threshold needs no new rollout: see `safevla score`.
    What is finished is kept whatever happens, and --resume goes on from there.
    """
    _say_what_is_open(asked)
    if asked.dry_run:
        _plan(asked)
        return
    request = replace(asked.request, watch=judge)
    with _kept(asked), watching(judge) as observer:
        judged = evaluate.evaluate(request, judge, asked.out, observer, asked.running)
    crashed = {one.episode_id: one.reason for one in judged.scores.absent}
    say(judged)
    if any(name.partition(":")[0] == "replay" for name in asked.request.policies):
        _report_replays(judged.batch)
    _report_stopped(asked, judged.scores.outcome.count("stopped"))
    _report_crashes(crashed)
    click.echo(f"Run folder: {asked.out}")
    click.echo(f"Next: open {asked.out / runs.REPORT} in a browser.")
    context.exit(CRASHED if crashed else OK)


def _say_what_is_open(asked: Asked) -> None:
    for line in evaluate.left_open(asked.request):
        click.echo(f"note: {line}", err=True)
    if not asked.dry_run:
        say_where(asked.running.cluster)


def _plan(asked: Asked) -> None:
    click.echo(planning.text(evaluate.estimate(asked.request, asked.running)), nl=False)


@contextmanager
def _kept(asked: Asked) -> Iterator[None]:
    """Say what an interrupted run leaves behind, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if (asked.out / runs.RUN).exists():
            done, planned = runs.progress(asked.out)
            click.echo(f"{done} of {planned} episodes are done and kept. Continue:\n  {asked.again}", err=True)
        raise
    except ServerLostError:
        if (asked.out / runs.RUN).exists():
            done, planned = runs.progress(asked.out)
            again = f"{asked.again} --retry-crashed"
            click.echo(f"{done} of {planned} episodes have ended. With a server there again:\n  {again}", err=True)
        raise


def _report_replays(batch: Batch | None) -> None:
    table = elsewhere.replayed(batch) if batch else None
    if table:
        click.echo(f"\n{text(table)}")


def _report_stopped(asked: Asked, stopped: int) -> None:
    if asked.request.stop_on_violation:
        click.echo(f"{stopped} episodes were stopped at their first violation; they are in no rate.")


def _report_crashes(crashed: Mapping[str, str | None]) -> None:
    for episode_id, reason in list(crashed.items())[:3]:
        lines = (reason or "").strip().splitlines() or [""]
        said = lines[-1] if lines[0].startswith("Traceback") else lines[0]
        click.echo(printable(f"crashed: {episode_id}: {said}"), err=True)
    if crashed:
        click.echo(f"{len(crashed)} episodes crashed; they are in no rate. episodes.parquet holds why.", err=True)
