"""`safevla import`: results that others wrote, as far as they go."""

from __future__ import annotations

from pathlib import Path

import click

from safevla_bench import foreign
from safevla_bench.cli.options import format_option
from safevla_bench.report.render import json, text
from safevla_bench.report.tables import external


@click.command("import")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@format_option
def import_command(sources: tuple[Path, ...], form: str) -> None:
    r"""Read results of other tools, which hold successes and no trajectories: SR with intervals, and what they lack.

    FILE is LeRobot's eval_info.json, or a recording-*.sqlite of vla-evaluation-harness. Neither holds contacts or
    poses, so there is no Safety, no SBU and no VSI to be had from them: not recorded is printed, never zero.

    \b
    To have the same policy judged, record it: safevla eval, or safevla_bench.record in your own loop.
    """
    tables = [external.imported(foreign.results(path), path.name) for path in sources]
    if form == "json":
        click.echo(json(tables), nl=False)
        return
    click.echo("\n".join(text(table) for table in tables))
    click.echo("Next: to have safety judged, record the rollouts: safevla eval --help")
