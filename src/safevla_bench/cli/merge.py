"""`safevla merge`: the shards of a run as one run."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from safevla_bench import runs
from safevla_bench.cli import printable


@click.command("merge")
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SHARD...")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The run folder to make.")
def merge_command(shards: tuple[Path, ...], out: Path) -> None:
    """Join run folders made with --shard into one.

    It holds the same bytes as if the whole plan had been run at once, so the shards must be of one plan, all of them,
    each once and complete; what is wrong is named. The order in which they are given does not matter.
    """
    rows = runs.merge(shards, out)
    crashed = sum(row.outcome == "crashed" for row in rows)
    left_out = f"; {crashed} crashed, in no rate" if crashed else ""
    click.echo(printable(f"Run folder: {out} ({len(rows)} episodes{left_out})"))
    folder = shlex.quote(str(out))
    click.echo(printable(f"Next: safevla score {folder} --out {folder}"))
