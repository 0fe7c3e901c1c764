"""`safevla rollout` and `safevla eval`: run policies."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from safevla_bench.cli import CRASHED, OK, USER_ERROR, make_printable, sections
from safevla_bench.cli.frames import FilmChoice, film_episodes, require_video
from safevla_bench.cli.options import judge_options, log_option, print_engine_note
from safevla_bench.cli.progress import show_run_progress, track_run
from safevla_bench.cli.run_options import RunCommand, run_options
from safevla_bench.cli.score import print_scores
from safevla_bench.errors import ServerLostError, ServerRefusedError
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.evaluation.preparation import estimate_run, list_start_notes, request_rules
from safevla_bench.jobs.evaluation.request import open_questions
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.jobs.evaluation.rollouts import describe_deviation, freeze_request, roll_out
from safevla_bench.jobs.evaluation.stopping_rule import describe_decision
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.publishing import tracking
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.rollout.engine import Observer
from safevla_bench.rollout.estimate import CostRange, RunEstimate
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import FRAMES, GREETINGS, REPORT, RUN, read_description, read_greetings
from safevla_bench.sources.runs.parts import count_progress, episode_rows
from safevla_bench.text import NO_VALUE, redact_secrets
from safevla_bench.trajectory.batch import Batch


@sections.command("rollout")
@run_options
@log_option
@click.pass_context
def rollout_command(context: click.Context, run_command: RunCommand, trackers: tuple[str, ...]) -> None:
    """Roll out policies and record every episode into a run folder, without judging.

    Recording changes nothing that the policy or the simulator sees. What is finished is kept whatever happens, and
    --resume goes on from there.
    """
    tracking.require_trackers(trackers)
    _print_open_questions(run_command)
    if run_command.dry_run:
        _print_plan(run_command)
        return
    rules = request_rules(run_command.request)
    with _report_interruption(run_command), _observe_run(run_command, trackers, rules) as (observer, _):
        rows = roll_out(run_command.request, run_command.out, observer, run_command.execution)
    crashed = {row.episode_id: row.reason for row in rows if row.outcome == "crashed"}
    if _is_replay(run_command):
        _report_replays(read_sources([run_command.out])[0])
    _report_stopped(run_command, sum(row.outcome == "stopped" for row in rows))
    _report_decision(run_command)
    _report_servers(run_command)
    only_invalid = _report_invalid(run_command)
    _report_crashes(run_command, crashed)
    folder = shlex.quote(str(run_command.shown))
    click.echo(make_printable(f"Records: {run_command.shown}\nNext: safevla score {folder}"))
    context.exit(CRASHED if crashed else USER_ERROR if only_invalid else OK)


@sections.command("eval")
@run_options
@click.option(
    "--video",
    "films",
    type=FilmChoice(),
    metavar="unsafe|all|N",
    help="Films of the unsafe episodes, of all, or of the N worst, linked from the report; needs the extra `video`.",
)
@click.option(
    "--freeze",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --dry-run: write what would be run and how it is judged into FILE, with one digest. Publish the digest, "
    "then run --registered FILE: tables say whether a run is the registered one.",
)
@log_option
@judge_options
@click.pass_context
def eval_command(
    context: click.Context,
    run_command: RunCommand,
    films: str | None,
    freeze: Path | None,
    trackers: tuple[str, ...],
    ruleset: Ruleset,
) -> None:
    """Roll out policies, judge every episode and write a report: SR, Safety, SBU and VSI with intervals.

    The run folder holds the records, so that another library or threshold needs no new rollout: see `safevla score`.
    What is finished is kept whatever happens, and --resume goes on from there.
    """
    if freeze is not None and not run_command.dry_run:
        raise click.UsageError("--freeze registers what is not yet run: pass --dry-run with it.")
    tracking.require_trackers(trackers)
    _print_open_questions(run_command)
    _print_deviations(run_command, ruleset)
    if run_command.dry_run:
        _print_plan(run_command)
        if freeze is not None:
            _write_registration(run_command, ruleset, freeze)
        return
    if films is not None:
        require_video()
    request = replace(run_command.request, ruleset=ruleset)
    with _report_interruption(run_command), _observe_run(run_command, trackers, ruleset) as (observer, tracked):
        judged = evaluate_request(request, ruleset, run_command.out, observer, run_command.execution)
        for tracker in tracked:
            tracker.finish(tracking.summary_values(judged.summarize_scores()[0]))
    crashed = {episode.episode_id: episode.reason for episode in judged.scores.absent}
    print_scores(judged)
    if _is_replay(run_command):
        _report_replays(judged.batch)
    _report_stopped(run_command, judged.scores.outcome.count("stopped"))
    _report_decision(run_command)
    _report_servers(run_command)
    only_invalid = _report_invalid(run_command)
    _report_crashes(run_command, crashed)
    if films is not None:
        filmed = film_episodes(run_command.out, judged, films)
        write_outputs(judged, run_command.out)
        click.echo(make_printable(f"Films: {filmed}, in {run_command.shown / FRAMES}"))
    folder = shlex.quote(str(run_command.shown))
    report = run_command.shown / REPORT
    click.echo(make_printable(f"Run folder: {run_command.shown}\nReport: {report}\nNext: safevla open {folder}"))
    context.exit(CRASHED if crashed else USER_ERROR if only_invalid else OK)


@contextmanager
def _observe_run(
    run_command: RunCommand, trackers: Sequence[str], ruleset: Ruleset
) -> Iterator[tuple[Observer, list[tracking.TrackingObserver]]]:
    """Yield an observer of the run that feeds progress bar and trackers, and the list of the trackers alone.

    The trackers are told what is run and judged, with secrets removed from policies. They are closed at exit, after an
    error too.
    """
    request = run_command.request
    config = {
        "host": request.host,
        "suites": list(request.suites),
        "tasks": None if request.tasks is None else list(request.tasks),
        "episodes": request.episodes,
        "policies": [redact_secrets(name) for name in request.policies],
        "protocol": request.protocol,
        "seed": request.seed,
        "max_steps": request.max_steps,
        **tracking.describe_ruleset(ruleset),
    }
    scorer = tracking.OutcomeScorer(ruleset)
    with track_run(trackers, run_command.out, config, scorer) as tracked, show_run_progress(scorer) as bar:
        yield tracking.ObserverGroup([bar, *tracked]), tracked


def _print_open_questions(run_command: RunCommand) -> None:
    for line in [*open_questions(run_command.request), *list_start_notes(run_command.request)]:
        click.echo(make_printable(f"note: {line}"), err=True)
    if not run_command.dry_run:
        print_engine_note(run_command.execution.cluster)


def _print_deviations(run_command: RunCommand, ruleset: Ruleset) -> None:
    registration = run_command.request.registration
    if registration is not None and (deviation := describe_deviation(registration, run_command.request, ruleset)):
        click.echo(make_printable(f"note: not as registered: {deviation}"), err=True)


def _write_registration(run_command: RunCommand, ruleset: Ruleset, path: Path) -> None:
    registration = freeze_request(run_command.request, ruleset)
    make_folder(path.parent)
    write_atomically(path, registration.encode())
    shown = shlex.quote(str(path))
    click.echo(make_printable(f"Registered: {path}, {registration.n} episodes, digest {registration.digest}"))
    click.echo(make_printable(f"Publish the digest, then run: safevla eval --registered {shown} --out DIR"))


def _print_plan(run_command: RunCommand) -> None:
    request = run_command.request
    estimate = estimate_run(request, run_command.execution)
    click.echo(render_text(estimate_table(estimate)), nl=False)
    for call in request.list_calls():
        trust = f"; only with --trust {shlex.quote(str(request.named_by))}" if request.named_by else ""
        click.echo(make_printable(f"note: the run would call {call}{trust}"), err=True)


@contextmanager
def _report_interruption(run_command: RunCommand) -> Iterator[None]:
    """Print how many episodes are kept and the command that continues, if Ctrl-C or a lost server ends the block.

    The error is raised again. Nothing is printed where the run folder has no run.json yet.
    """
    try:
        yield
    except KeyboardInterrupt:
        if (run_command.out / RUN).exists():
            done, planned = count_progress(run_command.out)
            click.echo(
                f"{done} of {planned} episodes are done and kept. Continue:\n  {run_command.resume_command}", err=True
            )
        raise
    except (ServerLostError, ServerRefusedError):
        if (run_command.out / RUN).exists():
            done, planned = count_progress(run_command.out)
            again = f"{run_command.resume_command} --retry-crashed"
            click.echo(f"{done} of {planned} episodes have ended. With a server there again:\n  {again}", err=True)
        raise


def _is_replay(run_command: RunCommand) -> bool:
    request = run_command.request
    return any(request.policy_spec(name).partition(":")[0] == "replay" for name in request.policies)


def _report_replays(batch: Batch | None) -> None:
    table = episode_tables.replay_table(batch) if batch else None
    if table:
        click.echo(f"\n{render_text(table)}")


def _report_stopped(run_command: RunCommand, stopped: int) -> None:
    if run_command.request.stop_on_violation:
        counted = "1 episode was stopped at its" if stopped == 1 else f"{stopped} episodes were stopped at their"
        click.echo(f"{counted} first violation: unsafe, and it is not known whether any would have succeeded.")


def _report_decision(run_command: RunCommand) -> None:
    if sentence := describe_decision(read_description(run_command.out)):
        click.echo(make_printable(sentence))


def _report_servers(run_command: RunCommand) -> None:
    greetings = Counter((greeting.policy, greeting.suite) for greeting in read_greetings(run_command.out))
    for policy, suite in (cell for cell, count in greetings.items() if count > 1):
        line = (
            f"note: the servers of {policy} on {suite} said {greetings[policy, suite]} different things of themselves"
        )
        click.echo(make_printable(f"{line}: run.json holds them as volatile.{GREETINGS}"), err=True)


def _report_invalid(run_command: RunCommand) -> bool:
    """Print on stderr how many episodes ended with an invalid action, and the first one's reason; nothing for none.

    Return whether all did: then the policy is wrong, as one whose server is refused.
    """
    rows = episode_rows(run_command.out)
    invalid = [row for row in rows if row.outcome == "invalid_action"]
    for row in invalid[:1]:
        click.echo(make_printable(f"invalid_action: {row.episode_id}: {row.reason}"), err=True)
        counted = f"{len(invalid)} episode{'' if len(invalid) == 1 else 's'} ended with an invalid action"
        click.echo(f"{counted}: failures in SR, and without a verdict on safety unless a limit broke before.", err=True)
    if invalid and len(invalid) == len(rows):
        click.echo("error: no episode has ended otherwise: mend the policy's actions.", err=True)
    return bool(invalid) and len(invalid) == len(rows)


def _report_crashes(run_command: RunCommand, crashed: Mapping[str, str | None]) -> None:
    for episode_id, reason in list(crashed.items())[:3]:
        lines = (reason or "").strip().splitlines() or [""]
        summary = lines[-1] if lines[0].startswith("Traceback") else lines[0]
        click.echo(make_printable(f"crashed: {episode_id}: {summary}"), err=True)
    if crashed:
        counted = "1 episode crashed; it is" if len(crashed) == 1 else f"{len(crashed)} episodes crashed; they are"
        click.echo(f"{counted} in no rate. episodes.parquet holds why. To run again what crashed:", err=True)
        click.echo(f"  {run_command.resume_command} --retry-crashed", err=True)


# The estimate of a planned run


_COLUMNS = (
    Column("Policy", numeric=False),
    Column("Suite", numeric=False),
    Column("Task", numeric=False),
    Column("Episodes"),
    Column("Horizon"),
    Column("Cameras"),
)
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def estimate_table(plan: RunEstimate) -> Table:
    """Return a table with a row per policy, suite and task of a planned run.

    The table's notes hold the estimate of time and disk.
    """
    rows = tuple(
        tuple(
            Cell(NO_VALUE if value is None else str(value))
            for value in (row.policy, row.suite, row.task_id, row.episodes, row.horizon, row.cameras)
        )
        for row in plan.scenes
    )
    counted = "1 episode" if plan.episodes == 1 else f"{plan.episodes} episodes"
    title = f"{counted}, at most {plan.steps} steps; nothing has been run or written"
    return Table(title, _COLUMNS, rows, _estimate_notes(plan))


def _estimate_notes(plan: RunEstimate) -> tuple[str, ...]:
    """Return the lines on time and disk, or a single line that there are no figures for this host."""
    if plan.time_s is None or plan.disk_bytes is None:
        return ("There are no figures for this host, so neither time nor disk can be estimated.",)
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers, each with a core of its own"
    return (
        f"Estimate for episodes that all last their full horizon, with {workers}:",
        f"  time  {_format_duration(plan.time_s)}, without the policies' own time",
        f"  disk  {_format_size(plan.disk_bytes)}",
        f"From figures {plan.source}.",
    )


def _format_duration(span: CostRange) -> str:
    name, unit = ("h", 3600.0) if span.high >= 3600 else ("min", 60.0) if span.high >= 60 else ("s", 1.0)
    return f"about {span.middle / unit:.1f} {name} ({span.low / unit:.1f} to {span.high / unit:.1f})"


def _format_size(span: CostRange) -> str:
    name, unit = next(pair for pair in _UNITS if span.high >= pair[1] or pair[1] == 1)
    return f"{span.low / unit:.1f} to {span.high / unit:.1f} {name}"
