"""`safevla convert`: the same episodes in another form of archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from safevla_bench import archive, runs
from safevla_bench.cli import printable
from safevla_bench.cli.options import skip_option, sources_argument
from safevla_bench.cli.progress import working
from safevla_bench.errors import Place, RunError
from safevla_bench.trajectory import Batch


@click.command("convert")
@sources_argument
@click.argument("destination", metavar="DESTINATION")
@skip_option
def convert_command(sources: tuple[Path, ...], destination: str, skip_invalid: bool) -> None:
    """Write the episodes of archives or run folders as one archive, bit for bit.

    The suffix of DESTINATION names the form: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, or .json and .npz for a single
    episode. A DESTINATION that ends in / is a new folder of numbered .npz files. Nothing is overwritten, and an archive
    of any size is converted in the memory of a few episodes.
    """
    target, as_folder = Path(destination), destination.endswith("/")
    if target.exists() or target.is_symlink():
        remedy = "Choose another destination, or remove it first."
        raise RunError("exists already", remedy=remedy, place=Place(file=destination))
    if not as_folder:
        archive.form_of(target)
    records = runs.Records(sources)
    with working("converting"):
        (archive.write_folder if as_folder else archive.write_chunks)(target, _passing(records, skip_invalid))
    left_out = f"; {', '.join(records.left_out.said())}" if records.left_out else ""
    noun = "episode" if len(records) == 1 else "episodes"
    click.echo(printable(f"{destination}: {len(records)} {noun} ({records.lengths.sum()} records){left_out}"))


def _passing(records: runs.Records, skip_invalid: bool) -> Iterator[Batch]:
    """The episodes some at a time; what is wrong with any of them stops the writer before it is done."""
    yield from records.first()
    records.require(skip_invalid=skip_invalid)
    if not len(records):
        raise RunError("there are no episodes to convert", remedy="Name sources that hold valid episodes.")
