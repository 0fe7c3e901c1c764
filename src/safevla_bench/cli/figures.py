"""`safevla figures`: drawings of judged episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import click
from matplotlib.figure import Figure

from safevla_bench import evaluate, sensitivity
from safevla_bench.cli import printable
from safevla_bench.cli.options import judge_options, skip_option, sources_argument
from safevla_bench.cli.score import say_missing, warn
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.report import figures as drawing
from safevla_bench.report.figures import sweeps as sweeping


def _names(known: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """What turns names with commas between them into names of a known set, each once, in the order given."""

    def split(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        asked = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        unknown = [name for name in asked if name not in known]
        if unknown or not asked:
            wrong = f"{unknown[0]!r} is none of them" if unknown else "name at least one"
            raise click.BadParameter(f"{wrong}: {', '.join(known)}", context, parameter)
        return asked

    return split


_WHICH, _FORMS = tuple(drawing.FIGURES), get_args(drawing.Form)
_EPILOG = "\n".join(["\b", "Figures:", *(f"  {name:9} {kind.shows}" for name, kind in drawing.FIGURES.items())])


@click.command("figures", epilog=_EPILOG)
@sources_argument
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where to write.")
@click.option(
    "--which",
    callback=_names(_WHICH),
    default=",".join(_WHICH),
    metavar="NAMES",
    help="Which figures, with commas between; all by default.",
)
@click.option(
    "--format",
    "forms",
    callback=_names(_FORMS),
    default="svg,pdf,png",
    show_default=True,
    metavar="FORMS",
    help="Which forms, with commas between.",
)
@click.option("--pooled", is_flag=True, help="Tradeoff: add up a policy's suites instead of one panel a suite.")
@click.option("--progress", is_flag=True, help="Onset: percent of each episode instead of seconds.")
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=GRID",
    help="Also Safety and SBU over the thresholds of a family, as `safevla sensitivity --sweep` takes it. Repeatable.",
)
@judge_options
@skip_option
def figures_command(
    sources: tuple[Path, ...],
    out: Path,
    which: tuple[str, ...],
    forms: tuple[drawing.Form, ...],
    pooled: bool,
    progress: bool,
    sweeps: tuple[str, ...],
    judge: evaluate.Judge,
    skip_invalid: bool,
) -> None:
    """Draw figures of the episodes of archives or run folders, sized for one column of a paper.

    The same episodes give the same bytes with the same version of matplotlib. Where a policy is named noop, limits that
    it breaks are named, since every policy may be charged for them.
    """
    specs, _ = judge.load()
    wanted = [sensitivity.asked(one, specs) for one in sweeps]
    judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
    shown = drawing.Shown(judged.scores, judged.records.dt_s, judged.records.lengths, pooled=pooled, progress=progress)
    make_folder(out)
    for name in which:
        _write(out / name, drawing.FIGURES[name].make(shown), forms, drawing.FIGURES[name].shows)
    rescore = evaluate.rescorer(judged, judge)
    for one in wanted:
        found = sensitivity.sweep(judged.scores, specs, one, rescore)
        figure = sweeping.draw(sweeping.sweep(found, specs))
        _write(out / f"sweep-{one.name}", figure, forms, "Safety and SBU against the threshold")
    warn(judged)
    say_missing(judged)
    click.echo(printable(f"{(len(which) + len(wanted)) * len(forms)} files in {out}: {', '.join(forms)} of each."))


def _write(stem: Path, figure: Figure, forms: tuple[drawing.Form, ...], shows: str) -> None:
    for form in forms:
        write_atomically(stem.with_name(f"{stem.name}.{form}"), drawing.rendered(figure, form))
    click.echo(printable(f"{stem}  {shows}"))
