"""`safevla schema` and `safevla validate`: the trajectory contract."""

from __future__ import annotations

import json
from pathlib import Path

import click

from safevla_bench import runs
from safevla_bench.archive import schema
from safevla_bench.cli import OK, USER_ERROR, printable


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of one episode: fields, types, units."""
    click.echo(json.dumps(schema(), indent=2))


@click.command("validate")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE...")
@click.pass_context
def validate_command(context: click.Context, sources: tuple[Path, ...]) -> None:
    """Check archives or run folders against the trajectory contract.

    Every bad episode is listed with file, line, episode, step, field and remedy; then the exit code is 2.
    """
    found = [runs.open_source(source) for source in sources]
    for source in found:
        for problem in source.problems:
            click.echo(f"error: {printable(str(problem))}", err=True)
        good = len(source.batch) if source.batch else 0
        steps = int(source.batch.starts[-1]) if source.batch else 0
        click.echo(f"{source.path}: {good} valid episodes ({steps} records), {len(source.problems)} bad")
    context.exit(USER_ERROR if any(source.problems for source in found) else OK)
