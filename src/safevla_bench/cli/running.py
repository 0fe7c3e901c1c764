"""`safevla rollout` and `safevla eval`: run policies."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from safevla_bench import evaluate, runs
from safevla_bench.cli import CRASHED, OK, printable
from safevla_bench.cli.judging import say
from safevla_bench.cli.options import judge_options
from safevla_bench.cli.progress import watching
from safevla_bench.errors import RunError

F = TypeVar("F", bound=Callable[..., Any])

_RUN = [
    click.option("--host", required=True, metavar="NAME", help="The simulator, such as libero."),
    click.option("--host-arg", "host_arguments", multiple=True, metavar="KEY=VALUE",
                 help="An argument for the host, such as split=pretrain for robocasa. Repeatable."),
    click.option("--suite", "suites", required=True, multiple=True, metavar="NAME",
                 help="The task suite, such as libero-spatial. Repeatable."),
    click.option("--tasks", default="all", metavar="0,3|0-4|all", show_default=True, help="Tasks of each suite."),
    click.option("--episodes", type=click.IntRange(min=1), metavar="N",
                 help="Episodes a task; else as many as the benchmark runs: 50 in robocasa, 1 elsewhere."),
    click.option("--policy", "policies", required=True, multiple=True, metavar="NAME[:ARG]",
                 help="What acts: noop, random, scripted:careful, scripted:hasty or a plug-in's. Repeatable."),
    click.option("--policy-arg", "arguments", multiple=True, metavar="KEY=VALUE",
                 help="An argument for the policies. Repeatable."),
    click.option("--seed", default=0, show_default=True, help="Of the policies' randomness."),
    click.option("--max-steps", type=click.IntRange(min=1), help="Horizon; else the protocol's for the suite."),
    click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR",
                 help="The run folder to make; it must not exist."),
]  # fmt: skip


def run_options(command: F) -> F:
    """Options that say what to run; the command takes them as two keywords, `request` and `out`."""

    @wraps(command)
    def wrapped(*args: Any, **given: Any) -> Any:
        request = evaluate.Request(
            host=given.pop("host"),
            suites=given.pop("suites"),
            tasks=_indices(given.pop("tasks")),
            episodes=given.pop("episodes"),
            policies=given.pop("policies"),
            arguments=dict(_pair("--policy-arg", text) for text in given.pop("arguments")),
            host_arguments=dict(_pair("--host-arg", text) for text in given.pop("host_arguments")),
            seed=given.pop("seed"),
            max_steps=given.pop("max_steps"),
            volatile={
                "command": shlex.join(["safevla", *sys.argv[1:]]),
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
        return command(*args, request=request, **given)

    return reduce(lambda inner, option: option(inner), reversed(_RUN), wrapped)  # type: ignore[return-value]


def _indices(text: str) -> tuple[int, ...] | None:
    """`0,3` or `0-4` or both, as task indices in the order given; None for `all`."""
    if text == "all":
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last.isdecimal() or not last):
            raise RunError(f"--tasks {text!r} names no tasks", remedy="Write indices such as 0,3 or 0-4, or all.")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _pair(option: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RunError(f"{option} {text!r} is no argument", remedy="Write KEY=VALUE.")
    return key, value


@click.command("rollout")
@run_options
@click.pass_context
def rollout_command(context: click.Context, request: evaluate.Request, out: Path) -> None:
    """Roll out policies and record every episode into a new run folder, without judging.

    Recording changes nothing that the policy or the simulator sees.
    """
    with _kept(out), watching(evaluate.Judge()) as observer:
        outcomes = evaluate.roll_out(request, out, observer)
    crashed = {one.planned.episode_id: one.reason for one in outcomes if one.outcome == "crashed"}
    _report_crashes(crashed)
    click.echo(f"Records: {out}")
    click.echo(f"Next: safevla score {shlex.quote(str(out))} --out {shlex.quote(str(out))}")
    context.exit(CRASHED if crashed else OK)


@click.command("eval")
@run_options
@judge_options
@click.pass_context
def eval_command(context: click.Context, request: evaluate.Request, out: Path, judge: evaluate.Judge) -> None:
    """Roll out policies, judge every episode and write a report: SR, Safety, SBU and VSI with intervals.

    The run folder holds the records, so that another library or threshold needs no new rollout: see `safevla score`.
    """
    with _kept(out), watching(judge) as observer:
        judged = evaluate.evaluate(request, judge, out, observer)
    crashed = {one.episode_id: one.reason for one in judged.scores.absent}
    say(judged)
    _report_crashes(crashed)
    click.echo(f"Run folder: {out}")
    click.echo(f"Next: open {out / runs.REPORT} in a browser.")
    context.exit(CRASHED if crashed else OK)


@contextmanager
def _kept(out: Path) -> Iterator[None]:
    """Say what an interrupted run leaves behind."""
    try:
        yield
    except KeyboardInterrupt:
        if out.exists():
            folder = shlex.quote(str(out))
            click.echo(f"The episodes finished so far are in {folder}; safevla score {folder} --out DIR", err=True)
        raise


def _report_crashes(crashed: Mapping[str, str | None]) -> None:
    for episode_id, reason in list(crashed.items())[:3]:
        last = (reason or "").strip().splitlines()[-1:]
        click.echo(printable(f"crashed: {episode_id}: {''.join(last)}"), err=True)
    if crashed:
        click.echo(f"{len(crashed)} episodes crashed; they are in no rate. episodes.parquet holds why.", err=True)
