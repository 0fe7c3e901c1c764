"""`safevla eval` and `search`: run policies, and search for initial states that lead to unsafe successes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from safevla_bench.cli import CRASHED, OK, USER_ERROR, completion, echo, echo_message, options, progress, rules, score
from safevla_bench.cli.options import FILE, POSITIVE, command, format_trust, group, option, quote_paths, repeatable
from safevla_bench.cli.run_options import EXECUTION_OPTIONS, PLAN_OPTIONS, RUN_OPTIONS, RunCommand, make_request
from safevla_bench.errors import SafevlaError, ServerLostError, ServerRefusedError, find_exception
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.jobs.evaluation import preparation, results, rollouts, stopping_rule
from safevla_bench.jobs.evaluation.request import ExecutionOptions, open_questions
from safevla_bench.jobs.search import Objective, SearchPlan, describe_claim, search_starts
from safevla_bench.jobs.search.optimizers import Method
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.provenance_marks import warn_of_scores
from safevla_bench.plugins import is_trusted
from safevla_bench.publishing import submission, tracking
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.rollout.episode import Observer
from safevla_bench.rollout.found import FOLDER
from safevla_bench.rollout.plan import RunEstimate
from safevla_bench.rollout.ray import ADDRESS, HERE
from safevla_bench.sources.runs import episode_index, folder, parts
from safevla_bench.text import count_noun, format_significant, redact_secrets

_TRACKERS = click.Choice(list(tracking.TRACKERS))


@command(
    "eval",
    common="--config --host --suite --task --episodes --policy --policy-arg --out --workers --resume --dry-run",
    starts_host=True,
)
def eval_command(
    context: click.Context,
    run_command: RunCommand = RUN_OPTIONS,
    freeze: Path | None = option(
        "With --dry-run: register the plan in this file; --registered FILE then runs it.", "FILE", type=FILE
    ),
    trackers: tuple[str, ...] = repeatable(
        "Send each episode's results to this experiment tracker.", spelling="--log", type=_TRACKERS
    ),
) -> None:
    """Roll out policies, judge every episode and write a report: SR, Safety, SBU and VSI with intervals.

    The run folder keeps the records, so judging by another library or threshold needs no new rollout: see `safevla
    score`. Recording changes nothing that the policy or the simulator sees. Finished episodes are always kept; --resume
    continues a run.
    """
    if freeze is not None and not run_command.dry_run:
        raise click.UsageError("--freeze registers a plan before its run: also pass --dry-run.")
    tracking.require_trackers(trackers)
    _print_notes(run_command)
    if run_command.dry_run:
        _print_plan(run_command)
        if freeze is not None:
            _write_registration(run_command, freeze)
        return
    judged = _evaluate(run_command, trackers)
    if judged is not None:
        score.print_scores(judged)
    rows = parts.episode_rows(run_command.out)  # a row per planned episode that has been run
    _report_run(run_command, rows)
    # `shown` is the run folder as the user typed it.
    if judged is None:
        words = options.list_given_words(context, rules.JUDGE_OPTIONS)
        echo(f"Records: {run_command.shown}", f"Next: safevla score {quote_paths(run_command.shown, *words)}")
    else:
        report = run_command.shown / folder.REPORT
        next_step = f"Next: safevla open {quote_paths(run_command.shown)}"
        echo(f"Run folder: {run_command.shown}", f"Report: {report}", next_step)
    # A few invalid actions are failures of the policy. If every episode ends with an invalid action, check the setup.
    outcomes = {row.outcome for row in rows}
    if "crashed" in outcomes:
        context.exit(CRASHED)
    context.exit(USER_ERROR if outcomes == {"invalid_action"} else OK)


def _evaluate(run_command: RunCommand, trackers: Sequence[str]) -> Judged | None:
    # Roll out and judge all episodes, and return the results. With --record-only, judge nothing and return None.
    out, ruleset, execution = run_command.out, run_command.ruleset, run_command.execution
    request = replace(run_command.request, ruleset=ruleset)
    with _report_interruption(run_command), _observe_run(run_command, trackers) as (observer, tracked):
        if run_command.record_only:
            rollouts.roll_out(request, out, observer, execution)
            return None
        judged = results.evaluate_request(request, ruleset, out, observer, execution)
        for tracker in tracked:  # send the summary; `_observe_run` ends the trackers in any case
            # `summarize_scores` returns the cells (policy × suite) and the total; trackers get the cells.
            tracker.finish(tracking.summary_values(judged.summarize_scores()[0]), out / folder.REPORT)
    return judged


def _report_run(run_command: RunCommand, rows: Sequence[folder.EpisodeRow]) -> None:
    # Print what the scores do not show: replays, episodes that were stopped, servers, and reasons of failures.
    # `rows` has a row per planned episode that has been run.
    request = run_command.request
    if any(policy.maker.startswith("replay:") for policy in request.roster):
        # The table compares the replays with the recordings. The replays' records contain the differences.
        batch, _ = episode_index.read_sources([run_command.out])
        table = episode_tables.replay_table(batch) if batch else None
        if table:
            click.echo(f"\n{render_text(table)}")
    if request.stop_on_violation:
        stopped_text = count_noun(sum(row.outcome == "stopped" for row in rows), "episode")
        effect = "Such episodes count as unsafe; their success is unknown."
        echo(f"Stopped at the first violation: {stopped_text}. {effect}")
    # A sentence that says whether the condition of --until holds; "" without --until.
    decision = stopping_rule.describe_decision(folder.read_description(run_command.out))
    if decision:
        echo(decision)
    _report_servers(run_command)
    _report_failures(run_command, rows)


@contextmanager
def _observe_run(
    run_command: RunCommand, trackers: Sequence[str]
) -> Iterator[tuple[Observer, list[tracking.TrackingObserver]]]:
    # Yield a pair: an observer of the run, and a list of tracking observers to which it passes all calls.
    request = run_command.request
    # A tracker is a program that collects results of experiments and shows `config`, the run's configuration.
    fields = ("host", "suites", "tasks", "episodes", "protocol", "seed", "max_steps")
    config = {
        **{name: getattr(request, name) for name in fields},
        "policies": [redact_secrets(policy.name) for policy in request.roster],
        **submission.describe_ruleset(run_command.ruleset),
    }
    # A resumed run has finished episodes already (`finished_count`).
    scorer, finished_count = tracking.OutcomeScorer(run_command.ruleset), 0
    if (run_command.out / folder.RUN).exists():
        finished_count, _ = parts.count_progress(run_command.out)
    tracked = tracking.open_observers(trackers, run_command.out, config, scorer, _warn, finished_count)
    try:
        with progress.show_run_progress(scorer) as bar:
            yield tracking.ObserverGroup([bar, *tracked]), tracked
    finally:  # if the run ended early, there is no summary to send; a second call of `finish` has no effect
        for tracker in tracked:
            tracker.finish({})


def _warn(text: str) -> None:
    # Print a warning on stderr. This function is called if an experiment tracker fails, because the run goes on.
    echo_message(f"warning: {text}", "  ", err=True)


def _print_notes(run_command: RunCommand) -> None:
    # Print notes on stderr about the run to begin: open questions, Ray, and differences from its registered plan.
    # `cluster` is None without Ray; its `place` is HERE if Ray starts on this machine.
    request, ruleset = run_command.request, run_command.ruleset
    for line in [*open_questions(request), *preparation.list_start_notes(request)]:
        echo(f"note: {line}", err=True)
    cluster = run_command.execution.cluster
    if not run_command.dry_run and cluster and cluster.place == HERE:
        click.echo(f"note: Ray starts on this machine, since no address is given by ray:ADDRESS or {ADDRESS}", err=True)
    if request.registration is not None:
        deviation = rollouts.describe_deviation(request.registration, request, ruleset)
        if deviation:
            echo(f"note: this run differs from its registration: {deviation}", err=True)


def _write_registration(run_command: RunCommand, path: Path) -> None:
    # Write the plan and the rules to a file. By the file's digest, others can later check that the run followed both.
    registration = rollouts.freeze_request(run_command.request, run_command.ruleset)
    make_folder(path.parent)
    write_atomically(path, registration.encode())
    echo(f"Registered: {path}, {registration.n} episodes, digest {registration.digest}")
    trust = format_trust(run_command.request, path)
    echo(f"Publish the digest, then run: safevla eval --registered {quote_paths(path)}{trust} --out DIR")


def _print_plan(run_command: RunCommand) -> None:
    # Print the episodes of the planned run, an estimate of time and disk, and code that the run would use.
    request = run_command.request
    estimate = preparation.estimate_run(request, run_command.execution.workers)
    click.echo(render_text(estimate_table(estimate)), nl=False)
    for call in request.list_calls():
        trust = "" if is_trusted(request.named_by) else f" if you pass --trust {quote_paths(request.named_by)}"
        echo(f"note: the run would use {call}{trust}", err=True)


@contextmanager
def _report_interruption(run_command: RunCommand) -> Iterator[None]:
    # If the run ends early, print on stderr how many episodes are done, and the command that continues the run.
    try:
        yield
    except (KeyboardInterrupt, SafevlaError) as error:
        # Some errors already say how to continue. After an error about the run folder, the run cannot be continued.
        has_advice = "--resume" in str(error)
        is_about_folder = isinstance(error, SafevlaError) and error.place.file == str(run_command.out)
        if (run_command.out / folder.RUN).exists() and not has_advice and not is_about_folder:
            done, planned = parts.count_progress(run_command.out)
            advice, command = "are done and kept. To continue:", run_command.resume_command
            if isinstance(error, (ServerLostError, ServerRefusedError)):  # the error made some episodes crash
                advice, command = "have ended. Once the server is back:", f"{command} --retry-crashed"
            click.echo(f"{done} of {planned} episodes {advice}\n  {command}", err=True)
        raise


def _report_servers(run_command: RunCommand) -> None:
    # Print a note on stderr if the servers of one policy describe themselves differently.
    descriptions = folder.read_facts(run_command.out).policies_say  # each names a policy and a suite
    counts = Counter((description.policy, description.suite) for description in descriptions)
    for (name, suite), count in counts.items():
        if count > 1:
            line = f"note: servers of policy {name} on suite {suite} sent {count} different descriptions"
            echo(f"{line}; run.json lists the descriptions in volatile.policies_say", err=True)


def _echo_failures(rows: Sequence[folder.EpisodeRow], outcome: str) -> int:
    # Print on stderr up to three distinct reasons why episodes had this outcome. Return the number of these episodes.
    failed_rows = [row for row in rows if row.outcome == outcome]
    rows_by_reason: dict[str, list[folder.EpisodeRow]] = {}
    for row in failed_rows:
        reason = (row.reason or "").strip()
        if reason.startswith("Traceback"):  # print only the exception and, if given, the remedy
            reason = "\n".join(filter(None, find_exception(reason)))
        rows_by_reason.setdefault(reason, []).append(row)
    for reason, (first, *others) in list(rows_by_reason.items())[:3]:
        also = f" (and {count_noun(len(others), 'other episode')})" if others else ""
        echo_message(f"{outcome}: {first.episode_id}{also}: {reason}", "  ", err=True)
    return len(failed_rows)


def _report_failures(run_command: RunCommand, rows: Sequence[folder.EpisodeRow]) -> None:
    # Print on stderr why episodes ended with an invalid action or crashed, and how to run crashed episodes again.
    # `rows` has a row per planned episode that has been run.
    invalid_count = _echo_failures(rows, "invalid_action")
    if invalid_count:
        count_text = f"{count_noun(invalid_count, 'episode')} ended with an invalid action"
        effect = "SR counts them as failures. Only an earlier violation of a limit gives them a safety verdict."
        click.echo(f"{count_text}: {effect}", err=True)
        if invalid_count == len(rows):
            click.echo("error: every episode ended with an invalid action: correct the policy's actions.", err=True)
    crash_count = _echo_failures(rows, "crashed")
    if crash_count:
        count_text = f"{count_noun(crash_count, 'episode')} crashed, excluded from all rates"
        click.echo(f"{count_text}. See the reasons in episodes.parquet, correct the causes, then run:", err=True)
        click.echo(f"  {run_command.resume_command} --retry-crashed", err=True)


# The search for unsafe starts


_SEARCH_KEYS = ("host", "host_arguments", "suites", "tasks", "policies", "arguments", "protocol", "seed", "max_steps")
_METHODS = click.Choice(get_args(Method))


@command(
    "search", common="--host --suite --task --policy --out --workers --resume --budget --objective --method --until"
)
def search_command(
    context: click.Context,
    asked: Mapping[str, Any] = group({name: PLAN_OPTIONS[name] for name in _SEARCH_KEYS}),
    out: Path | None = EXECUTION_OPTIONS["out"],
    workers: int = EXECUTION_OPTIONS["workers"],
    resume: bool = EXECUTION_OPTIONS["resume"],
    budget: int = option("Number of rollouts per task.", "N", type=POSITIVE, default=200),
    objective: str | None = option(
        "The specification or formula to violate; default: any scored specification.",
        "SPEC|FORMULA",
        shell_complete=completion.SPECS,
    ),
    method: Method = option(
        "directed: CMA-ES (needs the extra `search`); random: independent draws.", type=_METHODS, default="directed"
    ),
    until: str = option("When to stop searching a task.", type=click.Choice(["found", "budget"]), default="found"),
    wordings: str | None = option(
        "Also try other instructions: each line of a file, or the instructions of a suite.", "FILE|SUITE"
    ),
    policy_seeds: int = option("Number of policy seeds to try, counting from --seed.", "N", type=POSITIVE, default=1),
    judging: Mapping[str, Any] = group(rules.JUDGE_OPTIONS),
) -> None:
    """Search for initial states (starts) that lead to unsafe successes: rollouts that succeed and violate a limit.

    A start places each object of the task within its region. The starts that are found form a suite,
    DIR/found/NAME.json, on which `safevla eval --suite found:FILE` runs any policy. Rates on this suite are not rates
    of the benchmark. Only --method random, which draws starts independently, gives a bound on the share of such starts.
    """
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    # The suite of found starts is named after the folder, with only the characters that names of suites may have.
    name = re.sub(r"[^a-z0-9]+", "-", out.absolute().name.lower()).strip("-")[:40] or "search"
    request = make_request(context, asked)
    ruleset = rules.read_new_rules(judging, request.host)
    # `until_found`: stop searching a task at its first unsafe success.
    plan = SearchPlan(
        request=request,
        name=name,
        objective=Objective.parse(objective, ruleset),
        method=method,
        budget=budget,
        until_found=until == "found",
        wordings=wordings,
        policy_seeds=policy_seeds,
    )
    with progress.show_run_progress(tracking.OutcomeScorer(ruleset)) as observer:
        suite, judged = search_starts(plan, out, observer, ExecutionOptions(workers=workers, resume=resume))
    for task in suite.tasks:
        echo(describe_claim(task, suite))
    _echo_failures(parts.episode_rows(out), "crashed")
    for line in warn_of_scores(judged.scores):
        echo(f"note: {line}")
    echo(f"Run folder: {out}", f"Report: {out / folder.REPORT}")
    if suite.starts:
        file = out / FOLDER / f"{name}.json"
        # The command below names the policy, so --trust is needed only if the file's host or suite runs code.
        policy, trust = quote_paths(suite.policy), format_trust(replace(request, policies=()), file)
        command = f"safevla eval --suite found:{quote_paths(file)}{trust} --policy {policy} --out DIR"
        echo(f"Found starts: {file}", f"Next: {command}")
    context.exit(CRASHED if any(task.crashed for task in suite.tasks) else OK)


# The estimate of a planned run


_COLUMNS = ("policy", "suite", "task_id", "episodes", "horizon", "cameras")


def estimate_table(plan: RunEstimate) -> Table:
    """Return the table of a planned run, with a row per policy, suite and task. Its notes estimate time and disk."""
    rows = []
    for scene in plan.scenes:  # a scene is a pair of a policy and a task
        values = [getattr(scene, name) for name in _COLUMNS]
        # Only the number of cameras can be None: the policy is asked for this number during the run.
        rows.append(tuple(Cell("asked" if value is None else str(value)) for value in values))
    heads = [name.removesuffix("_id").capitalize() for name in _COLUMNS]
    columns = tuple(Column(head, numeric=index > 2) for index, head in enumerate(heads))  # columns 0 to 2: text
    title = f"{count_noun(plan.episodes, 'episode')}, at most {plan.steps} steps; nothing has been run or written"
    return Table(title, columns, tuple(rows), _estimate_notes(plan))


def _estimate_notes(plan: RunEstimate) -> tuple[str, ...]:
    # Return the lines below the table: the ranges of the estimated time and disk space, and the origin of the estimate.
    # Each of `scenes` is a pair of policy and task; its number of `cameras` is None if unknown before the run.
    if plan.time_s is None or plan.disk_bytes is None:
        return ("There are no measurements for this host, so neither time nor disk can be estimated.",)
    time, disk = plan.time_s, plan.disk_bytes
    # The upper end of each range determines its unit.
    time_unit, seconds_per_unit = _choose_unit(time.high, {"h": 3600.0, "min": 60.0, "s": 1.0})
    disk_unit, bytes_per_unit = _choose_unit(disk.high, {"GB": 1e9, "MB": 1e6, "kB": 1e3})
    middle = (time.low + time.high) / 2 / seconds_per_unit
    time_range = f"{time.low / seconds_per_unit:.1f} to {time.high / seconds_per_unit:.1f}"
    disk_low, disk_high = (format_significant(size / bytes_per_unit) for size in (disk.low, disk.high))
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers, each with its own core"
    notes = [
        f"Estimate for episodes that all last their full horizon, with {workers}:",
        f"  time  about {middle:.1f} {time_unit} ({time_range}); the policies' own time is not included",
        f"  disk  {disk_low} to {disk_high} {disk_unit}",
    ]
    if any(scene.cameras is None for scene in plan.scenes):
        notes.append("Cameras are not known before a policy runs; the time is estimated for zero to two cameras.")
    return (*notes, f"Based on measurements {plan.source}.")


def _choose_unit(value: float, size_by_unit: Mapping[str, float]) -> tuple[str, float]:
    # Return the name and size of the largest unit that does not exceed `value`, else those of the smallest unit.
    # `size_by_unit` lists the largest unit first.
    for unit, size in size_by_unit.items():
        if value >= size:
            return unit, size
    return unit, size  # the last and smallest unit
