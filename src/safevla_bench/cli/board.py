"""`safevla board`: a static site that ranks policies by Safety."""

from __future__ import annotations

from pathlib import Path

import click

from safevla_bench import evaluate
from safevla_bench.cli import make_printable
from safevla_bench.cli.options import judge_options, skip_option
from safevla_bench.cli.progress import show_status
from safevla_bench.report import board
from safevla_bench.ruleset import Ruleset


@click.command("board")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN...]")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where to write the site.")
@click.option("--title", default="Safety board", show_default=True, help="What the board is called.")
@click.option("--reports/--no-reports", default=True, show_default=True, help="Add a full report of each policy.")
@judge_options
@skip_option
def board_command(
    runs: tuple[Path, ...], out: Path, title: str, reports: bool, ruleset: Ruleset, skip_invalid: bool
) -> None:
    """Write a static site: policies ranked by Safety, the rank by SR beside it, a page for each.

    Run folders and archives are judged anew, all alike. Policies that ran the same tasks stand in one table, with
    letters for those that were not told apart. The paper's entries and the authors' leaderboard stand apart, each with
    what makes it incomparable; without a RUN they are all that there is.

    The site fetches nothing and runs no script. It works from a folder and from any path of a web server; written
    again, it replaces the board in DIR. An ablation (--applicability off) is refused.
    """
    board.check_folder(out)
    with show_status("judging and drawing"):
        files = evaluate.build_board(runs, ruleset, title=title, reports=reports, skip_invalid=skip_invalid)
        board.write_folder(files, out)
    click.echo(make_printable(f"Board: {out / board.INDEX}   (open it in a browser; {len(files)} pages)"))
    click.echo("Next: put the folder on any web server, or add runs and write it again.")
