"""`safevla compare --plan`: how many episodes it takes to see a difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial, reduce, wraps
from typing import Any, TypeVar

import click
import msgspec

from safevla_bench.cli import sections
from safevla_bench.cli.options import is_given
from safevla_bench.compare import sample_size
from safevla_bench.report.render import render_text
from safevla_bench.report.tables import comparison

F = TypeVar("F", bound=Callable[..., Any])

_option = partial(sections.option, section=sections.PLANNING)
_OPTIONS = [
    _option("--plan", type=click.FloatRange(0, 100, min_open=True, max_open=True), metavar="POINTS",
            help="Plan how many episodes of each policy it takes to see a difference of so many percentage points; "
                 "needs no SOURCE."),
    _option("--baseline", default=0.8, show_default=True, type=click.FloatRange(0, 1), help="The rate of one policy."),
    _option("--power", default=0.8, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
            help="The chance of seeing it where it is there."),
    _option("--paired", is_flag=True, help="Only plan pairs: both policies on the same episodes."),
    _option("--discordant", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE",
            help="Share of pairs in which the policies differ, from a pilot run; else a range is shown."),
    _option("--task-count", type=click.IntRange(min=2), metavar="N", former=("--tasks",),
            help="Plan for tasks like these, with N of them."),
    _option("--task-spread", type=click.FloatRange(0, 100), default=10.0, show_default=True, metavar="POINTS",
            help="With --task-count: how much the true difference varies between tasks (standard deviation)."),
]  # fmt: skip
_NAMES = ("plan", "baseline", "power", "paired", "discordant", "task_count", "task_spread")


def plan_options(command: F) -> F:
    """Add the options of planning to a command. It takes them as one keyword, `planned`: None without --plan.

    Any of them without --plan is a usage error.
    """

    @wraps(command)
    @click.pass_context
    def with_plan(context: click.Context, *args: Any, **given: Any) -> Any:
        """Call the command with the options of planning by name as `planned`, None without --plan."""
        planned = {name: given.pop(name) for name in _NAMES}
        chosen = [name for name in _NAMES if is_given(context, name)]
        if planned["plan"] is None and chosen:
            raise click.UsageError(
                f"--{chosen[0].replace('_', '-')} is for a plan: pass --plan POINTS with it.", context
            )
        return command(*args, planned=None if planned["plan"] is None else planned, **given)

    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), with_plan)  # type: ignore[return-value]


def print_plan(planned: Mapping[str, Any], confidence: float, form: str, *, sequential: bool) -> None:
    """Print how many episodes it takes to see a difference, by the options of planning; `confidence` in percent."""
    request = sample_size.SampleSizeRequest(
        difference=planned["plan"] / 100,
        baseline=planned["baseline"],
        power=planned["power"],
        confidence=confidence / 100,
        discordant=planned["discordant"],
        only_paired=planned["paired"] or planned["discordant"] is not None,
        sequential=sequential,
        tasks=planned["task_count"],
        task_spread=planned["task_spread"] / 100,
    )
    plan = sample_size.plan_sample_size(request)
    if form == "json":
        click.echo(json.dumps(msgspec.to_builtins(plan), indent=2, allow_nan=False))
        return
    click.echo("\n".join(render_text(table) for table in comparison.sample_size_tables(plan)), nl=False)
