"""`safevla convert`: the same episodes in another form of archive."""

from __future__ import annotations

from pathlib import Path

import click

from safevla_bench import archive, runs
from safevla_bench.cli import printable
from safevla_bench.cli.options import skip_option, sources_argument
from safevla_bench.errors import Place, RunError


@click.command("convert")
@sources_argument
@click.argument("destination", metavar="DESTINATION")
@skip_option
def convert_command(sources: tuple[Path, ...], destination: str, skip_invalid: bool) -> None:
    """Write the episodes of archives or run folders as one archive, bit for bit.

    The suffix of DESTINATION names the form: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, or .json and .npz for a single
    episode. A DESTINATION that ends in / is a new folder of numbered .npz files. Nothing is overwritten.
    """
    target, as_folder = Path(destination), destination.endswith("/")
    if target.exists() or target.is_symlink():
        remedy = "Choose another destination, or remove it first."
        raise RunError("exists already", remedy=remedy, place=Place(file=destination))
    if not as_folder:
        archive.form_of(target)
    batch, opened = runs.open_sources(sources, skip_invalid=skip_invalid)
    if batch is None:
        raise RunError("there are no episodes to convert", remedy="Name sources that hold valid episodes.")
    if as_folder:
        archive.write_folder(target, batch)
    else:
        archive.write(target, batch)
    bad = runs.LeftOut.of([problem for source in opened for problem in source.problems])
    left_out = f"; {', '.join(bad.said())}" if bad else ""
    noun = "episode" if len(batch) == 1 else "episodes"
    click.echo(printable(f"{destination}: {len(batch)} {noun} ({int(batch.starts[-1])} records){left_out}"))
