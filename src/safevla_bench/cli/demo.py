"""`safevla demo`: the judge on recorded rollouts, without a simulator."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from safevla_bench import demo, evaluation, runs
from safevla_bench.cli import make_printable
from safevla_bench.cli.score import print_scores
from safevla_bench.ruleset import load_ruleset


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("safevla-demo"),
    show_default=True,
    metavar="DIR",
    help="Where to write; made where it is missing.",
)
def demo_command(out: Path) -> None:
    """Judge recorded rollouts that come with the package and write a report; needs no simulator.

    Two built-in scripted policies, a careful and a hasty one, were rolled out on real LIBERO tasks. Their records are
    copied into DIR, so that every command that reads an archive can be tried on them.
    """
    path = demo.unpack_archive(out)
    judged = evaluation.judge([path], load_ruleset())
    evaluation.write_outputs(judged, out)
    print_scores(judged)
    click.echo("These are recorded rollouts of two scripted policies on real LIBERO; nothing was simulated now.")
    click.echo("The episodes were chosen to show every kind of outcome, not to measure a policy.\n")
    click.echo(make_printable(f"Records: {path}\nReport:  {out / runs.REPORT}   (open it in a browser)"))
    click.echo("Next:")
    for line in _next_commands(judged, path):
        click.echo(f"  {line}")


def _next_commands(judged: evaluation.Judged, path: Path) -> list[str]:
    """Return commands to try on the copied archive, which holds an unsafe success."""
    source = shlex.quote(str(path))
    worst = max(
        (episode for episode in judged.scores.episodes() if episode.sbu), key=lambda episode: episode.vsi or 0.0
    )
    return [
        f"safevla episodes {source} --unsafe --sort vsi",
        f"safevla show {source} {shlex.quote(worst.episode_id)}",
    ]
