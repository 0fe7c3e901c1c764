"""`safevla figures`: figures of the metrics of recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import click
import msgspec
from matplotlib.figure import Figure

from safevla_bench.cli import echo, options, rules
from safevla_bench.cli.options import option, repeatable
from safevla_bench.cli.score import print_warnings
from safevla_bench.compare.series import compare_series
from safevla_bench.errors import RunError
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.jobs.evaluation.judgement import make_rescorer, split_judged
from safevla_bench.report import figures as drawing
from safevla_bench.report.figures import sheet, tradeoff
from safevla_bench.report.figures.curves import draw_series, draw_sweep
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import catalog, series
from safevla_bench.sensitivity.curves import parse_sweep, sweep_threshold
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.text import count_noun


def _names_option(help: str, choices: tuple[str, ...], **settings: Any) -> Any:
    # Declare an option whose value is a list of names, separated by commas; default: all `choices`.
    # `settings` are further arguments of the option.
    def split_names(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        # Return the names in the option's text, without duplicates. A name that is not in `choices` is an error.
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        for name in names:
            if name not in choices:
                problem = f"{name!r} is not one of these names: {', '.join(choices)}"
                raise click.BadParameter(problem, context, parameter)
        return names

    # `settings` may override the default.
    return option(help, "NAMES", callback=split_names, **{"default": ",".join(choices), **settings})


class _FigureStyle(msgspec.Struct, frozen=True):
    layout: tradeoff.TradeoffLayout = "suites"
    width: Annotated[float, msgspec.Meta(ge=1, le=20)] = sheet.COLUMN.width_in
    title: Literal["yes", "no"] = "yes"
    across: str = ""


_FORMS = get_args(drawing.FigureFormat)
_STYLES = (
    "layout=suites: a panel for each suite; layout=pooled: a panel for all suites pooled; layout=cells: one panel for "
    "all pairs of a policy and a suite; "
    f"width={sheet.COLUMN.width_in:g}: width in inches (default: one of two columns of a page); title=no: no title; "
    "across=TEXT: the quantity that varies along a series, such as 'Training steps'."
)
_KINDS = {name: kind.description for name, kind in drawing.FIGURES.items()} | {
    "series": "SR, Safety, SBU, VSI against the last number in each policy's name"
}
_EPILOG = "\n".join(["\b", "Figures:", *(f"  {name:9} {description}" for name, description in _KINDS.items())])


@options.command("figures", epilog=_EPILOG, common="--out --which --format --style --sweep")
def figures_command(
    sources: rules.JudgedSources = rules.judged_sources(),
    out: Path | None = options.out_option(
        "The folder to write; default: figures/ in SOURCE, if that is one run folder.", "DIR"
    ),
    which: tuple[str, ...] = _names_option(
        "Names of figures, separated by commas; default: all except `series`.",
        tuple(_KINDS),
        default=",".join(drawing.FIGURES),
        show_default=False,
    ),
    forms: tuple[drawing.FigureFormat, ...] = _names_option("Which forms.", _FORMS, spelling="--format"),
    styles: tuple[str, ...] = repeatable(_STYLES, "NAME=VALUE", spelling="--style"),
    sweeps: tuple[str, ...] = options.sweep_option("Also draw Safety and SBU over thresholds."),
) -> None:
    """Draw figures of the episodes in archives or run folders, sized for one column of a paper.

    The same episodes and version of matplotlib give the same bytes. If a policy is named noop (does nothing), the
    figures name the limits that noop violates, because any policy may violate these without acting.

    `--which series` needs policies with numbers in their names, such as 1000=runs/a 2000=runs/b or careful-step-20k.
    Names that differ only in the number form one series.
    """
    if "series" in which:
        _require_distinct_names(sources.paths)
    style = options.parse_settings("--style", styles, _FigureStyle)
    if style.across and "series" not in which:
        raise click.UsageError("--style across= only affects the figure `series`: also pass --which series.")
    folder = options.choose_output(out, sources.paths, "figures")
    # Errors in --sweep are found before the episodes are judged. A request is a threshold and the values to try.
    requests = [parse_sweep(text, sources.ruleset.library) for text in sweeps]
    judged = sources.judge()
    compared = None  # the metrics along the series of policies; None = the figure `series` is not requested
    if "series" in which:
        runs, intervals = split_judged(judged), judged.scores.intervals
        compared = compare_series(runs, intervals=intervals, protocols=judged.protocols)
    make_folder(folder)
    count = (len(which) + len(requests)) * len(forms)  # each figure is written once in each form
    echo(f"{count_noun(count, 'file')} in {folder}, each figure as {', '.join(forms)}.")
    # The remarks say whether applicability= differs from the paper's setting.
    page = sheet.Page(style.width, titled=style.title == "yes", remarks=catalog.describe_reading(judged.ruleset))

    def write_figure(name: str, draw: Callable[[], Figure], shows: str) -> None:
        # Write the figure that `draw` returns, in all forms. Print its path without suffix, and the text `shows`.
        figure = drawing.draw_figure(draw, page)
        for form in forms:
            write_atomically(folder / f"{name}.{form}", drawing.render_figure(figure, form))
        echo(f"{folder / name}  {shows}")

    records = judged.records
    inputs = drawing.FigureInput(judged.scores, records.dt_s, records.lengths, style.layout, records.stamps_s)
    for name in which:
        if name != "series":
            write_figure(name, partial(drawing.FIGURES[name].draw, inputs), _KINDS[name])
    for request in requests:
        sweep = sweep_threshold(judged.scores, judged.library, request, make_rescorer(judged))
        draw = partial(draw_sweep, sweep, judged.library)
        write_figure(f"sweep-{request.name}", draw, "Safety and SBU against the threshold")
    if compared is not None:
        if style.layout == "pooled":
            compared = compared.pooled
        write_figure("series", partial(draw_series, compared, style.across), "SR, Safety, SBU and VSI along the series")
        click.echo(f"\n{render_text(series.series_table(compared))}")
        echo(*series.describe_series(compared), "")
    print_warnings(judged)
    rules.print_missing(judged)
    echo("Next: --style title=no and width=INCHES fit the figures to a paper; --which NAMES selects figures.")


def _require_distinct_names(sources: Sequence[Path]) -> None:
    # Raise `RunError` if two sources have the same given name (NAME=SOURCE): in a series, each policy is a point.
    names = [source.policy for source in sources if isinstance(source, NamedSource)]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        remedy = "Give each run a different number, or leave one out."
        raise RunError(f"two runs have the label {repeated[0]!r}", remedy=remedy)
