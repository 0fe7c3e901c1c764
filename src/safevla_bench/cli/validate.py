"""`safevla schema` and `safevla validate`: the trajectory contract."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from safevla_bench import runs
from safevla_bench.archive import schema
from safevla_bench.cli import OK, USER_ERROR, printable
from safevla_bench.cli.options import format_option, sources_argument
from safevla_bench.errors import RecordError


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
    found = [_checked(source) for source in sources]
    if form == "json":
        click.echo(json.dumps([_document(one) for one in found], indent=2))
    else:
        for one in found:
            _say(one)
    context.exit(USER_ERROR if any(one.problems for one in found) else OK)


@dataclass(frozen=True)
class _Checked:
    """A source with its valid episodes, their records, and what is wrong with the others."""

    path: Path
    episodes: int
    records: int
    problems: list[RecordError]


def _checked(path: Path) -> _Checked:
    records = runs.Records([path])
    for _ in records.first():
        pass
    return _Checked(path, len(records), int(records.lengths.sum()), records.problems)


def _say(found: _Checked) -> None:
    for problem in found.problems:
        click.echo(f"error: {printable(str(problem))}", err=True)
    left_out = runs.LeftOut.of(found.problems)
    lost = f", {'at least ' if left_out.unknown else ''}{left_out.lost} lost" if left_out.damaged else ""
    words = f"{found.path}: {found.episodes} valid episodes ({found.records} records), {left_out.invalid} bad{lost}"
    click.echo(printable(words))


def _document(found: _Checked) -> dict[str, object]:
    problems = [
        {"problem": one.problem, "remedy": one.remedy, **msgspec.to_builtins(one.place)} for one in found.problems
    ]
    return {
        "source": str(found.path),
        "valid_episodes": found.episodes,
        "records": found.records,
        "problems": problems,
    }
