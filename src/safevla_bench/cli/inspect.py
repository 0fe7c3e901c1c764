"""`safevla episodes`, `safevla show` and `safevla stl`: look at what was recorded and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click
import msgspec

from safevla_bench import evaluate, runs
from safevla_bench.cli.options import format_option, judge_options, skip_option, sources_argument
from safevla_bench.cli.progress import working
from safevla_bench.cli.score import say_missing
from safevla_bench.explain import episode as explaining
from safevla_bench.explain import query
from safevla_bench.report import episode_choice, episode_list, render, terminal
from safevla_bench.specs import Axis


@click.command("episodes")
@sources_argument
@click.option("--unsafe", is_flag=True, help="Only unsafe episodes; with --spec, only those that violate it.")
@click.option("--safe", is_flag=True, help="Only safe episodes.")
@click.option("--success/--no-success", default=None, help="Only episodes that succeeded, or only those that did not.")
@click.option("--spec", metavar="ID", help="Look at one specification alone: episodes in which it reached a verdict.")
@click.option("--axis", type=click.Choice(get_args(Axis)), help="Only those that violate a specification of this axis.")
@click.option("--policy", metavar="NAME", help="Only this policy's episodes.")
@click.option("--suite", metavar="NAME", help="Only this suite's.")
@click.option("--task", metavar="TASK", help="Only this task's, such as task_3 or libero-goal/task_3.")
@click.option("--outcome", metavar="NAME", help="Only this outcome: success, failure, timeout, crashed and the like.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(get_args(episode_choice.Order)),
    help="Greatest vsi, smallest rho (over its threshold), or earliest violation first; or by id.",
)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@judge_options
@skip_option
@format_option
def episodes_command(
    sources: tuple[Path, ...],
    unsafe: bool,
    safe: bool,
    success: bool | None,
    spec: str | None,
    axis: str | None,
    policy: str | None,
    suite: str | None,
    task: str | None,
    outcome: str | None,
    order: episode_choice.Order | None,
    limit: int | None,
    judge: evaluate.Judge,
    skip_invalid: bool,
    form: str,
) -> None:
    """List the episodes of archives or run folders with their verdicts.

    Margin is the robustness of the worst specification, in its unit: negative where violated. The number of an episode
    stays the same however the list is filtered and sorted; `safevla show` takes it.
    """
    judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
    asked = None if spec is None else judged.library.canonical(spec)
    found = _rows(judged, asked)
    shown = episode_choice.chosen(
        found,
        violated=unsafe,
        safe=safe,
        success=success,
        axis=axis,
        policy=policy,
        suite=suite,
        task=task,
        outcome=outcome,
    )
    shown = episode_choice.ordered(shown, order)[:limit]
    total = len(judged.scores) + len(judged.scores.absent)
    if form == "json":
        _json(shown)
    else:
        click.echo(render.text(episode_list.table(shown, total, asked=asked)), nl=False)
        say_missing(judged)


@click.command("show")
@sources_argument
@click.argument("episode", metavar="EPISODE")
@click.option("--all", "every", is_flag=True, help="Plot every specification, not only what was broken or nearest.")
@judge_options
@skip_option
@format_option
def show_command(
    sources: tuple[Path, ...], episode: str, every: bool, judge: evaluate.Judge, skip_invalid: bool, form: str
) -> None:
    """Explain one episode: which specification it broke or came nearest to breaking, when, which bodies, by how much.

    EPISODE is an episode's id, its number in `safevla episodes` of the same sources, or how its id alone ends.
    """
    judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
    row = episode_choice.find(_rows(judged), episode)
    index = row.number - 1
    record = judged.records.episodes([index]) if index < len(judged.records) else None
    if record is None:
        _gone(row, form)
        return
    told = explaining.explanation(judged.scores, record, judged.library, index, place=0)
    if form == "json":
        _json(explaining.document(told))
    else:
        click.echo(terminal.text(told, every=every), nl=False)


@click.command("stl")
@click.argument("formula", metavar="FORMULA")
@sources_argument
@skip_option
@format_option
def stl_command(formula: str, sources: tuple[Path, ...], skip_invalid: bool, form: str) -> None:
    """Ask a formula in signal temporal logic of every episode, whatever its task.

    For instance 'G[0,T](transport -> held_object_tilt < 20)'; `safevla specs` shows more. The deciding record is where
    the robustness was found: the smallest margin under G, the greatest under F. An episode that lacks a field which the
    formula reads is listed as such. Nothing is scored.
    """
    asked = query.formula(formula)
    records = runs.Records(sources)
    with working("asking"):
        answers = query.ask_chunks(asked, records.first())
    records.require(skip_invalid=skip_invalid)
    answers += query.gone(records.absent, len(records))
    if form == "json":
        _json(answers)
        return
    click.echo(render.text(query.table(asked, answers)), nl=False)
    for said in records.left_out.said():
        click.echo(f"{said}.")


def _rows(judged: evaluate.Judged, asked: str | None = None) -> list[episode_list.EpisodeRow]:
    return episode_list.rows(judged.scores, judged.records.dt_s, asked)


def _gone(row: episode_list.EpisodeRow, form: str) -> None:
    """Say why an episode cannot be explained: it left no record."""
    if form == "json":
        _json(row)
        return
    click.echo(terminal.lost(row), nl=False)


def _json(document: object) -> None:
    click.echo(json.dumps(msgspec.to_builtins(document), indent=2, allow_nan=False))
