"""`safevla schema` and `safevla validate`: the trajectory contract."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from safevla_bench import runs
from safevla_bench.archive import schema
from safevla_bench.cli import OK, USER_ERROR, printable
from safevla_bench.cli.options import format_option, sources_argument


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of one episode: fields, types, units."""
    click.echo(json.dumps(schema(), indent=2))


@click.command("validate")
@sources_argument
@format_option
@click.pass_context
def validate_command(context: click.Context, sources: tuple[Path, ...], form: str) -> None:
    """Check archives or run folders against the trajectory contract.

    Every bad episode is listed with file, line, episode, step, field and remedy; then the exit code is 2.
    """
    found = [runs.open_source(source) for source in sources]
    if form == "json":
        click.echo(json.dumps([_checked(source) for source in found], indent=2))
    else:
        for source in found:
            _say(source)
    context.exit(USER_ERROR if any(source.problems for source in found) else OK)


def _say(source: runs.Source) -> None:
    for problem in source.problems:
        click.echo(f"error: {printable(str(problem))}", err=True)
    good, steps = _counts(source)
    click.echo(printable(f"{source.path}: {good} valid episodes ({steps} records), {len(source.problems)} bad"))


def _counts(source: runs.Source) -> tuple[int, int]:
    """Valid episodes and their records."""
    return (len(source.batch), int(source.batch.starts[-1])) if source.batch else (0, 0)


def _checked(source: runs.Source) -> dict[str, object]:
    good, steps = _counts(source)
    problems = [
        {"problem": one.problem, "remedy": one.remedy, **msgspec.to_builtins(one.place)} for one in source.problems
    ]
    return {"source": str(source.path), "valid_episodes": good, "records": steps, "problems": problems}
