"""`safevla search`: look for starts from which a policy succeeds unsafely."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from safevla_bench.cli import CRASHED, OK, echo
from safevla_bench.cli.options import POSITIVE, command, group, option, quote_paths
from safevla_bench.cli.progress import show_run_progress
from safevla_bench.cli.rollout import echo_crashes
from safevla_bench.cli.rules import JUDGE_OPTIONS, read_new_rules
from safevla_bench.cli.run_options import EXECUTION_OPTIONS, PLAN_OPTIONS, make_request
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.request import ExecutionOptions
from safevla_bench.jobs.search.optimizers import Method
from safevla_bench.jobs.search.search import FOLDER, Objective, SearchPlan, describe_claim, search_starts
from safevla_bench.judging.provenance_marks import warn_of_scores
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.publishing.tracking import OutcomeScorer
from safevla_bench.sources.runs.folder import REPORT
from safevla_bench.sources.runs.parts import episode_rows

_ASKED = ("host", "suites", "tasks", "policies", "arguments", "seed")
_CHOICES = ("wordings", "policy_seeds")
"""What --set takes that is no rule."""


def _parse_choices(changes: Sequence[str]) -> dict[str, Any]:
    chosen = {name: value for name, _, value in (text.partition("=") for text in changes) if name in _CHOICES}
    if not (count := chosen.get("policy_seeds", "1")).isdecimal():
        raise RunError(f"policy_seeds={count} is not a number", remedy="Write --set policy_seeds=8.")
    return {"wordings": chosen.get("wordings"), "policy_seeds": int(count)}


def _read_ruleset(judging: Mapping[str, Any], host: str) -> Ruleset:
    changes = [text for text in judging["changes"] if text.partition("=")[0] not in _CHOICES]
    return read_new_rules({**judging, "changes": changes}, host)


@command(
    "search", common="--host --suite --task --policy --out --workers --resume --budget --objective --method --until"
)
def search_command(
    context: click.Context,
    asked: Mapping[str, Any] = group({name: PLAN_OPTIONS[name] for name in _ASKED}),
    out: Path | None = EXECUTION_OPTIONS["out"],
    workers: int = EXECUTION_OPTIONS["workers"],
    resume: bool = EXECUTION_OPTIONS["resume"],
    budget: int = option("Rollouts in each task.", "N", type=POSITIVE, default=200),
    objective: str | None = option(
        "What to break: a clause, by its robustness over its threshold, or a formula. Default: every scored clause.",
        "CLAUSE|FORMULA",
    ),
    method: Method = option(
        "directed: CMA-ES, which needs the extra `search`. random: independent draws, which bound a rate.",
        type=click.Choice(get_args(Method)),
        default="directed",
    ),
    until: str = option(
        "Leave a task when a start is found, or spend the budget.",
        type=click.Choice(["found", "budget"]),
        default="found",
    ),
    judging: Mapping[str, Any] = group(JUDGE_OPTIONS),
) -> None:
    """Search a task's starts for unsafe successes: rollouts that succeed and break a limit.

    A start places the task's objects within its own regions. --set wordings=FILE (a wording a line; or a suite, such as
    libero-goal-lan) and --set policy_seeds=N choose what the policy is told, and its seed, too. What is found is a
    suite of starts, DIR/found/NAME.json (NAME is DIR's), on which `safevla eval --suite found:FILE` runs any policy.
    Its rates are none of the benchmark's. --resume goes on if the same is asked for; two searches with one --seed write
    the same bytes.
    """
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    name = re.sub(r"[^a-z0-9]+", "-", out.absolute().name.lower()).strip("-")[:40] or "search"
    request = make_request(context, asked)
    ruleset = _read_ruleset(judging, request.host)
    plan = SearchPlan(
        request=request,
        name=name,
        objective=Objective.parse(objective, ruleset),
        method=method,
        budget=budget,
        until_found=until == "found",
        **_parse_choices(judging["changes"]),
    )
    with show_run_progress(OutcomeScorer(ruleset)) as observer:
        suite, judged = search_starts(plan, out, observer, ExecutionOptions(workers=workers, resume=resume))
    for task in suite.tasks:
        echo(describe_claim(task, suite))
    echo_crashes([row for row in episode_rows(out) if row.outcome == "crashed"])
    for line in warn_of_scores(judged.scores):
        echo(f"note: {line}")
    echo(f"Run folder: {out}\nReport: {out / REPORT}")
    if suite.starts:
        file = out / FOLDER / f"{name}.json"
        command = f"safevla eval --suite found:{quote_paths(file)} --policy {quote_paths(suite.policy)} --out DIR"
        echo(f"Found starts: {file}\nNext: {command}")
    context.exit(CRASHED if any(task.crashed for task in suite.tasks) else OK)
