"""`safevla validate`, `convert` and `merge`: archives and run folders."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from safevla_bench import archive
from safevla_bench.archive.record_schema import schema
from safevla_bench.cli import OK, USER_ERROR, make_printable
from safevla_bench.cli.options import (
    FILE,
    command,
    format_option,
    optional_sources_argument,
    out_option,
    print_json,
    require_sources,
    skip_option,
    sources_argument,
)
from safevla_bench.cli.progress import show_status
from safevla_bench.errors import Place, RecordError, RunError
from safevla_bench.sources.runs import episode_index
from safevla_bench.sources.runs.episode_index import Scan
from safevla_bench.sources.runs.shard_merge import merge_shards
from safevla_bench.sources.runs.sources import LeftOut
from safevla_bench.trajectory.batch import Batch


@command("validate")
@optional_sources_argument
@click.option("--schema", "wants_schema", is_flag=True, help="Print the JSON Schema of one episode instead.")
@format_option()
@click.pass_context
def validate_command(context: click.Context, sources: tuple[Path, ...], wants_schema: bool, form: str) -> None:
    """Check archives, run folders or logs against the trajectory contract.

    Every bad episode is listed with file, line, episode, step, field and remedy; then the exit code is 2.
    --schema needs no SOURCE; it says fields, types and units.
    """
    if wants_schema:
        if sources:
            raise click.UsageError("--schema checks nothing and takes no SOURCE.")
        click.echo(json.dumps(schema(), indent=2))
        return
    require_sources(sources)
    reports = [_check_source(source) for source in sources]
    if form == "json":
        print_json([_report_document(report) for report in reports])
    else:
        for report in reports:
            _print_report(report)
    context.exit(USER_ERROR if any(report.problems for report in reports) else OK)


@dataclass(frozen=True)
class _SourceReport:
    """A source with the numbers of its valid episodes and their records, and the problems of the others."""

    path: Path
    episodes: int
    records: int
    problems: Sequence[RecordError]


def _check_source(path: Path) -> _SourceReport:
    records = episode_index.scan([path])
    return _SourceReport(path, len(records), int(records.lengths.sum()), records.problems)


def _print_report(report: _SourceReport) -> None:
    for problem in report.problems:
        click.echo(f"error: {make_printable(str(problem))}", err=True)
    left_out = LeftOut.from_problems(report.problems)
    is_lost = left_out.damaged or left_out.lost
    lost = f", {'at least ' if left_out.unknown else ''}{left_out.lost} lost" if is_lost else ""
    words = f"{report.path}: {report.episodes} valid episodes ({report.records} records), {left_out.invalid} bad{lost}"
    click.echo(make_printable(words))


def _report_document(report: _SourceReport) -> dict[str, object]:
    """Return a source's report for JSON: its counts, and each problem with remedy and place."""
    problems = [
        {"problem": problem.problem, "remedy": problem.remedy, **msgspec.to_builtins(problem.place)}
        for problem in report.problems
    ]
    return {
        "source": str(report.path),
        "valid_episodes": report.episodes,
        "records": report.records,
        "problems": problems,
    }


@command("convert")
@sources_argument
@click.argument("destination", metavar="DESTINATION")
@skip_option
def convert_command(sources: tuple[Path, ...], destination: str, skip_invalid: bool) -> None:
    """Write the episodes of archives, run folders or logs as one archive, bit for bit.

    The suffix of DESTINATION names the form: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, or .json and .npz for a single
    episode. A DESTINATION that ends in / is a new folder of numbered .npz files. Nothing is overwritten, and an archive
    of any size is converted in the memory of a few episodes.
    """
    target, as_folder = Path(destination), destination.endswith("/")
    if target.exists() or target.is_symlink():
        remedy = "Choose another destination, or remove it first."
        raise RunError("exists already", remedy=remedy, place=Place(file=destination))
    if not as_folder:
        archive.detect_suffix(target)
    scan = Scan(sources)
    with show_status("converting"):
        (archive.write_folder if as_folder else archive.write_batches)(target, _read_valid_episodes(scan, skip_invalid))
    records = scan.index()
    left_out = f"; {', '.join(records.left_out.describe_kinds())}" if records.left_out else ""
    noun = "episode" if len(records) == 1 else "episodes"
    click.echo(make_printable(f"{destination}: {len(records)} {noun} ({records.lengths.sum()} records){left_out}"))


def _read_valid_episodes(scan: Scan, skip_invalid: bool) -> Iterator[Batch]:
    """Yield the valid episodes in batches, then raise `RecordError` for an invalid one unless `skip_invalid`.

    Raises `RunError` where there are no valid episodes. Both errors come before the writer completes its archive.
    """
    yield from scan
    records = scan.index()
    records.require_valid(skip_invalid=skip_invalid)
    if not len(records):
        raise RunError("there are no episodes to convert", remedy="Name sources that hold valid episodes.")


@command("merge")
@click.argument("shards", nargs=-1, required=True, type=FILE, metavar="SHARD...")
@out_option("DIR", "The run folder to make.", required=True)
def merge_command(shards: tuple[Path, ...], out: Path) -> None:
    """Join run folders made with --shard into one.

    It holds the same bytes as if the whole plan had been run at once, so the shards must be of one plan, all of them,
    each once and complete; what is wrong is named. The order in which they are given does not matter.
    """
    rows = merge_shards(shards, out)
    crashed = sum(row.outcome == "crashed" for row in rows)
    left_out = f"; {crashed} crashed, in no rate" if crashed else ""
    click.echo(make_printable(f"Run folder: {out} ({len(rows)} episodes{left_out})"))
    folder = shlex.quote(str(out))
    click.echo(make_printable(f"Next: safevla score {folder}"))
