"""`safevla score` and `safevla report`: judge what was recorded."""

from __future__ import annotations

from pathlib import Path

import click

from safevla_bench import evaluate, runs
from safevla_bench.baseline import baseline
from safevla_bench.cli import printable
from safevla_bench.cli.options import engine_options, judge_options, say_where, skip_option, sources_argument
from safevla_bench.cli.progress import working
from safevla_bench.files import write_atomically
from safevla_bench.ray_cluster import Cluster
from safevla_bench.report import tables
from safevla_bench.report.render import text
from safevla_bench.report.tables import notices
from safevla_bench.report.tables.catalog import ABLATED


@click.command("score")
@sources_argument
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where to write.")
@judge_options
@skip_option
@engine_options
@click.option(
    "--legacy-ids", is_flag=True, help="Write the ids of the authors' tables, such as wrist_tilt_world_15deg."
)
def score_command(
    sources: tuple[Path, ...],
    out: Path,
    judge: evaluate.Judge,
    skip_invalid: bool,
    where: Cluster | None,
    legacy_ids: bool,
) -> None:
    """Judge archives or run folders; write scores.json, scores.parquet and report.html.

    A changed threshold, tag or specification needs no new rollout: score again. Nothing is written where any episode is
    bad, unless --skip-invalid is given.
    """
    say_where(where)
    with working("judging"):
        judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid, cluster=where)
        evaluate.write(judged, out, legacy_ids=legacy_ids)
    say(judged)
    click.echo(printable(f"Scores and report: {out / runs.REPORT}"))


@click.command("report")
@sources_argument
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The page to write.")
@judge_options
@skip_option
def report_command(sources: tuple[Path, ...], out: Path, judge: evaluate.Judge, skip_invalid: bool) -> None:
    """Judge archives or run folders and write the report, one self-contained HTML page."""
    with working("judging"):
        judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
        write_atomically(out, evaluate.report(judged))
    click.echo(printable(f"Report: {out}"))


def say(judged: evaluate.Judged) -> None:
    """Print the table of cells, and what was not scored."""
    cells, total = judged.summaries()
    click.echo(text(tables.main(cells, total, privileged=judged.privileged)))
    warn(judged)
    if judged.ablated:
        click.echo(ABLATED)
    say_missing(judged)


def say_missing(judged: evaluate.Judged) -> None:
    """Print what of the sources is not among the episodes."""
    if judged.interrupted:
        click.echo(evaluate.INTERRUPTED)
    if judged.left_out:
        click.echo(f"{'; '.join(judged.left_out.said())}. The report lists what.")


def warn(judged: evaluate.Judged) -> None:
    """Print which limits doing nothing breaks, where the episodes hold such a baseline."""
    found = baseline(judged.scores)
    for line in notices.warning(found):
        click.echo(f"warning: {printable(line)}")
    if found.floors:
        click.echo(f"\n{text(notices.table(found))}")
