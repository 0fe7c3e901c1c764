"""`safevla rollout` and `safevla eval`: run policies."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import click

from safevla_bench import evaluate, runs
from safevla_bench.cli import CRASHED, OK, dry_run, printable
from safevla_bench.cli.options import judge_options, say_where
from safevla_bench.cli.progress import watching
from safevla_bench.cli.run_options import Asked, run_options
from safevla_bench.cli.score import say
from safevla_bench.errors import ServerLostError, ServerRefusedError
from safevla_bench.report.render import text
from safevla_bench.report.tables import external
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
    _report_servers(asked)
    _report_invalid(asked)
    _report_crashes(asked, crashed)
    folder = shlex.quote(str(asked.out))
    click.echo(printable(f"Records: {asked.out}\nNext: safevla score {folder} --out {folder}"))
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
    _report_servers(asked)
    _report_invalid(asked)
    _report_crashes(asked, crashed)
    click.echo(printable(f"Run folder: {asked.out}\nNext: open {asked.out / runs.REPORT} in a browser."))
    context.exit(CRASHED if crashed else OK)


def _say_what_is_open(asked: Asked) -> None:
    for line in evaluate.left_open(asked.request):
        click.echo(printable(f"note: {line}"), err=True)
    if not asked.dry_run:
        say_where(asked.running.cluster)


def _plan(asked: Asked) -> None:
    click.echo(dry_run.text(evaluate.estimate(asked.request, asked.running)), nl=False)


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
    except (ServerLostError, ServerRefusedError):
        if (asked.out / runs.RUN).exists():
            done, planned = runs.progress(asked.out)
            again = f"{asked.again} --retry-crashed"
            click.echo(f"{done} of {planned} episodes have ended. With a server there again:\n  {again}", err=True)
        raise


def _report_replays(batch: Batch | None) -> None:
    table = external.replayed(batch) if batch else None
    if table:
        click.echo(f"\n{text(table)}")


def _report_stopped(asked: Asked, stopped: int) -> None:
    if asked.request.stop_on_violation:
        click.echo(f"{stopped} episodes were stopped at their first violation; they are in no rate.")


def _report_servers(asked: Asked) -> None:
    """Say where the servers of one cell were not all the same: its episodes may be of different checkpoints."""
    told = Counter((one.policy, one.suite) for one in runs.said(asked.out))
    for policy, suite in (cell for cell, count in told.items() if count > 1):
        line = f"note: the servers of {policy} on {suite} said {told[policy, suite]} different things of themselves"
        click.echo(printable(f"{line}: run.json holds them as volatile.{runs.GREETINGS}"), err=True)


def _report_invalid(asked: Asked) -> None:
    """Say where a policy gave what no simulator was given: its failures are not those of its skill."""
    invalid = [row for row in runs.episode_rows(asked.out) if row.outcome == "invalid_action"]
    for row in invalid[:1]:
        said = (row.reason or "").splitlines() or [""]
        click.echo(printable(f"invalid_action: {row.episode_id}: {said[0]}"), err=True)
        click.echo(f"{len(invalid)} episodes ended with an invalid action, and count as failures.", err=True)


def _report_crashes(asked: Asked, crashed: Mapping[str, str | None]) -> None:
    for episode_id, reason in list(crashed.items())[:3]:
        lines = (reason or "").strip().splitlines() or [""]
        said = lines[-1] if lines[0].startswith("Traceback") else lines[0]
        click.echo(printable(f"crashed: {episode_id}: {said}"), err=True)
    if crashed:
        counted = "1 episode crashed; it is" if len(crashed) == 1 else f"{len(crashed)} episodes crashed; they are"
        click.echo(f"{counted} in no rate. episodes.parquet holds why. To run again what crashed:", err=True)
        click.echo(f"  {asked.again} --retry-crashed", err=True)
