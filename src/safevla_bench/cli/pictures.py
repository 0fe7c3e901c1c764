"""`safevla frames` and `figures`: pictures of recorded episodes, and drawings of their numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import click
from matplotlib.figure import Figure

from safevla_bench import hosts
from safevla_bench.cli import echo, options, rules
from safevla_bench.cli.progress import show_frame_progress
from safevla_bench.cli.score import print_warnings
from safevla_bench.compare.series import SeriesComparison
from safevla_bench.errors import Place, RunError, SafevlaError
from safevla_bench.explain.episode import select_unsafe_successes, select_worst
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.jobs.evaluation.judgement import compare_runs_in_order, make_rescorer
from safevla_bench.judging.judged import Judged
from safevla_bench.pictures.drawing import can_film, sheet_form, write_sheet
from safevla_bench.pictures.rendering import FrameStyle, RecordedRun, render_frames
from safevla_bench.plugins import install_command
from safevla_bench.report import episode_list
from safevla_bench.report import figures as drawing
from safevla_bench.report.figures.curves import draw_series, draw_sweep
from safevla_bench.report.figures.style import COLUMN, Page
from safevla_bench.report.figures.tradeoff import TradeoffLayout
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables.series import describe_series, series_table
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.curves import SweepRequest, parse_sweep, sweep_threshold
from safevla_bench.sources.runs.folder import FRAMES, REPORT, RUN, Frame, read_description

_MOST_RENDERED, _SHEET_ROWS = 12, 4
"""Episodes that are rendered unless the user says how many."""


class _SizeType(click.ParamType[tuple[int, int]]):
    name = "WxH"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{2,4})x(\d{2,4})", value)
        if not match:
            self.fail(f"{value!r} is no size; write WIDTHxHEIGHT in pixels, such as 640x480", param, ctx)
        return int(match[2]), int(match[1])


class FilmChoice(click.ParamType[str]):
    """`unsafe`, `all` or a number from 1."""

    name = "unsafe|all|N"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text itself where it is `unsafe`, `all` or a number from 1; anything else is click's error."""
        if value not in ("unsafe", "all") and not (value.isdecimal() and int(value) > 0):
            self.fail(f"{value!r} says no episodes; write unsafe, all, or how many of the worst", param, ctx)
        return value


@options.command("frames")
@click.argument("sources", type=options.FILE, metavar="RUN", callback=lambda context, argument, run: (run,))
@options.repeatable("--episode EPISODE", "names", "Its id, its number, or how its id ends.")
@options.option("--worst", "Else so many, the worst of each cell: 12, on a sheet 4.", type=options.POSITIVE)
@options.option(
    "--sheet FILE",
    "Also a sheet (.png, .jpg) of unsafe successes in three frames each, as the paper's Figure 3.",
    type=options.FILE,
)
@options.option("--size", "Pixels of a picture.", type=_SizeType(), default="640x480")
@options.option("--clips/--no-clips", "Clips, too; by default where the extra `video` is installed.", default=None)
@options.flag("--video", "Also a film of each whole episode, from both cameras; needs the extra `video`.")
@options.flag("--3d", "in_3d", "Also a replay in 3-D that the report lets readers turn around.")
@rules.judged_sources
def frames_command(
    sources: rules.JudgedSources,
    names: tuple[str, ...],
    worst: int | None,
    sheet: Path | None,
    size: tuple[int, int],
    clips: bool | None,
    video: bool,
    in_3d: bool,
) -> None:
    """Render episodes of a run folder into RUN/frames, in the simulator that recorded them.

    Of each episode: the initial state; for each broken specification the record in which it is broken worst, with a red
    border and the bodies involved outlined, from close up where the usual camera hides them; the final state, with a
    green border where it succeeded; a clip of how its worst violation comes about. An episode's number is the one in
    `safevla episodes`. Frames of other episodes stay, and so do films and replays that are not made anew. Needs the
    host and an off-screen OpenGL: see `safevla doctor`.
    """
    (run,) = sources.paths
    if sheet is not None:
        sheet_form(sheet)
    filming = _choose_clips(clips)
    if video:
        require_video()
    _read_host(run)
    judged = sources.judge()
    if not len(judged.records):
        remedy = "A crashed episode cannot be shown."
        raise RunError("no episode here has a record", remedy=remedy, place=Place(file=str(run)))
    chosen = _choose_episodes(judged, names, worst, sheet)
    frame_rows = _render_episodes(
        run, judged, chosen, FrameStyle(size=size, clips=filming, video=video, replay3d=in_3d)
    )
    shown_keys = {(row.policy, row.episode_id) for row in frame_rows}
    if sheet is not None:
        scores = judged.scores
        keys = {(scores.policy[k], scores.episode_id[k]): k for k in chosen}
        titles = {
            key: f"{k + 1}. {scores.policy[k] or UNNAMED}, {scores.benchmark[k]} {scores.task_id[k]}"
            for key, k in keys.items()
            if key in shown_keys
        }
        write_sheet(sheet, run, frame_rows, titles)
        echo(f"Sheet of {len(titles)}: {sheet}")
    size_mb = sum((run / FRAMES / row.file).stat().st_size for row in frame_rows) / 1e6
    count = "1 episode" if len(shown_keys) == 1 else f"{len(shown_keys)} episodes"
    echo(f"{len(frame_rows)} frames of {count}, {size_mb:.1f} MB: {run / FRAMES}")
    if in_3d:
        echo(f"3-D replays: in {run / REPORT} once it is written anew, under each episode's number")
    echo(f"Next: safevla score {shlex.quote(str(run))}")


def require_video() -> None:
    """Raise `RunError` unless the extra `video` is installed."""
    if not can_film():
        raise RunError("films need the extra `video`", remedy="pip install 'safevla-bench[video]'")


def film_episodes(run: Path, judged: Judged, choice: str) -> int:
    """Write films of the run's chosen episodes into its frames folder, and return the number of films.

    `choice` is `unsafe`, `all`, or how many of the worst. 0 where no episode with a record is chosen; nothing is
    written then. An episode that cannot be filmed is named on stderr and left out; if none can, the last error is
    raised. Other frames of the episodes stay.
    """
    count = len(judged.records)
    if choice == "unsafe":
        chosen = [index for index in range(count) if judged.scores.verdict(index) is False]
    else:
        chosen = list(range(count)) if choice == "all" else select_worst(judged.scores, int(choice))
    if not chosen:
        return 0
    return len(_render_episodes(run, judged, chosen, FrameStyle(stills=False, clips=False, video=True)))


def _render_episodes(run: Path, judged: Judged, chosen: Sequence[int], style: FrameStyle) -> Sequence[Frame]:
    shown = judged.records.read_sparsely(chosen)
    material = RecordedRun(run, hosts.make_host(_read_host(run)), shown, judged.scores, judged.ruleset)
    with show_frame_progress(len(chosen)) as observer:
        return render_frames(material, chosen, style, observer, make_skip_reporter())


def make_skip_reporter() -> Callable[[SafevlaError], None]:
    """Return a callback that prints on stderr why an episode is left out; a remedy is printed once."""
    printed: set[str] = set()

    def report_skipped(reason: SafevlaError) -> None:
        text = str(reason)
        if reason.remedy:
            text = text.removesuffix(reason.remedy).rstrip() if reason.remedy in printed else text
            printed.add(reason.remedy)
        echo(f"left out: {text}", err=True)

    return report_skipped


def _choose_clips(wanted: bool | None) -> bool:
    if wanted is False or can_film():
        return wanted is not False
    remedy = install_command("video")
    if wanted:
        raise RunError("clips need the extra `video`", remedy=remedy)
    click.echo(f"No clips: they need the extra `video`; {remedy}", err=True)
    return False


def _read_host(run: Path) -> str:
    place = Place(file=str(run))
    if not (run / RUN).exists():
        remedy = f"Name a folder that `safevla eval` made; it holds {RUN}."
        raise RunError("this is not a run folder", remedy=remedy, place=place)
    host = read_description(run).get("host")
    if not isinstance(host, str):
        raise RunError(f"{RUN} names no host", remedy="Only a host's own runs can be shown.", place=place)
    return host


def _choose_episodes(judged: Judged, names: Sequence[str], most: int | None, sheet: Path | None) -> list[int]:
    """Return the indices of the episodes to render, each once: those asked for, else the worst."""
    if not names and sheet is not None:
        chosen = select_unsafe_successes(judged.scores, most or _SHEET_ROWS)
        if not chosen:
            raise RunError("no episode succeeded and was unsafe", remedy="Name unsafe episodes: --episode EPISODE.")
        return chosen
    if not names:
        return select_worst(judged.scores, most or _MOST_RENDERED)
    rows = episode_list.list_episodes(judged.scores, judged.records.dt_s, None)
    numbers = [episode_list.find_episode(rows, name).number - 1 for name in names]
    for number in numbers:
        if number >= len(judged.records):
            raise RunError(f"{rows[number].episode_id} crashed and left no record", remedy="It cannot be shown.")
        if sheet is not None and rows[number].first_violation_step is None:
            remedy = "A row shows a violation; leave this episode out."
            raise RunError(f"{rows[number].episode_id} breaks no limit", remedy=remedy)
    return list(dict.fromkeys(numbers))


# Figures


def _parse_names(choices: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """Return a click callback that parses comma-separated names of a known set, each once, in the order given."""

    def split_names(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        unknown = [name for name in names if name not in choices]
        if unknown or not names:
            wrong = f"{unknown[0]!r} is none of them" if unknown else "name at least one"
            raise click.BadParameter(f"{wrong}: {', '.join(choices)}", context, parameter)
        return names

    return split_names


_WHICH, _FORMS = tuple(drawing.FIGURES), get_args(drawing.FigureFormat)
_EPILOG = "\n".join(["\b", "Figures:", *(f"  {name:9} {kind.description}" for name, kind in drawing.FIGURES.items())])


@options.command(
    "figures",
    epilog=_EPILOG,
    common="--out --which --format --layout --width --font-size --no-title --progress --sweep --series",
)
@options.sources_argument
@options.out_option("DIR", "Where to write; else figures/ of the one run.")
@options.option(
    "--which NAMES",
    "Which figures, with commas between; all by default.",
    callback=_parse_names(_WHICH),
    default=",".join(_WHICH),
    show_default=False,
)
@options.option(
    "--format FORMS", "forms", "Which forms, with commas between.", callback=_parse_names(_FORMS), default="svg,pdf,png"
)
@options.option(
    "--layout",
    "Tradeoff, series: a panel for each suite, or a policy's suites added up; tradeoff, cells: all policies and "
    "suites on one panel with one frontier: Figure 2.",
    type=click.Choice(["suites", "pooled", "cells"]),
    default="suites",
)
@options.option(
    "--width INCHES",
    "Width of the figures; the default is a column of a two-column paper.",
    default=COLUMN.width_in,
    type=options.Range(1, 20),
)
@options.option("--font-size POINTS", "Size of their text.", default=COLUMN.font_pt, type=options.Range(4, 20))
@options.flag("--no-title", "Leave titles out: a paper's caption says it.")
@options.flag("--progress", "Onset: percent of each episode instead of seconds.")
@options.repeatable(
    "--sweep NAME=GRID",
    "sweeps",
    "Also Safety and SBU over the thresholds of a family, as `safevla sensitivity --sweep` takes it.",
)
@options.flag(
    "--series",
    "Also SR, Safety, SBU and VSI against the last number in each policy's name, such as 1000=runs/a 2000=runs/b "
    "or careful-step-20k; runs named alike but for it make one series.",
)
@options.option("--across TEXT", "Series: what the numbers are, such as 'Training steps'.", default="")
@rules.judged_sources
def figures_command(
    sources: rules.JudgedSources,
    out: Path | None,
    which: tuple[str, ...],
    forms: tuple[drawing.FigureFormat, ...],
    layout: TradeoffLayout,
    width: float,
    font_size: float,
    no_title: bool,
    progress: bool,
    sweeps: tuple[str, ...],
    series: bool,
    across: str,
) -> None:
    """Draw figures of the episodes of archives or run folders, sized for one column of a paper.

    The same episodes give the same bytes with the same version of matplotlib. Where a policy is named noop, limits that
    it breaks are named, since every policy may be charged for them.
    """
    if across and not series:
        raise click.UsageError("--across says what the numbers of --series are; pass that too.")
    if series:
        _require_own_names(sources.paths)
    folder = options.choose_output(out, sources.paths, "figures")
    requests = [parse_sweep(text, sources.ruleset.library) for text in sweeps]
    judged = sources.judge()
    compared = compare_runs_in_order(judged) if series else None
    make_folder(folder)
    target = _FigureTarget(folder, Page(width, font_size, titled=not no_title), forms)
    inputs = drawing.FigureInput(
        judged.scores, judged.records.dt_s, judged.records.lengths, tradeoff_layout=layout, progress=progress
    )
    for name in which:
        kind = drawing.FIGURES[name]
        target.write(name, partial(kind.draw, inputs), kind.description)
    _write_sweeps(target, judged, requests)
    if compared is not None:
        compared = compared.pooled if layout == "pooled" else compared
        draw = partial(draw_series, compared, across)
        target.write("series", draw, "SR, Safety, SBU and VSI along the series")
        _print_series(compared)
    print_warnings(judged)
    rules.print_missing(judged)
    count = (len(which) + len(requests) + series) * len(forms)
    echo(f"{count} file{'s' * (count > 1)} in {folder}: {', '.join(forms)} of each.")


@dataclass(frozen=True)
class _FigureTarget:
    """The place of figures, the page that they are drawn for, and their forms."""

    folder: Path
    page: Page
    forms: tuple[drawing.FigureFormat, ...]

    def write(self, name: str, draw: Callable[[], Figure], shows: str) -> None:
        stem, figure = self.folder / name, drawing.draw_figure(draw, self.page)
        for form in self.forms:
            write_atomically(stem.with_name(f"{stem.name}.{form}"), drawing.render_figure(figure, form))
        echo(f"{stem}  {shows}")


def _write_sweeps(target: _FigureTarget, judged: Judged, requests: Sequence[SweepRequest]) -> None:
    rescore, specs = make_rescorer(judged), judged.library
    for request in requests:
        sweep = sweep_threshold(judged.scores, specs, request, rescore)
        draw = partial(draw_sweep, sweep, specs)
        target.write(f"sweep-{request.name}", draw, "Safety and SBU against the threshold")


def _require_own_names(sources: Sequence[Path]) -> None:
    names = [name for source in sources if (name := getattr(source, "policy", None)) is not None]
    for name in names:
        if names.count(name) > 1:
            raise RunError(f"two runs have the label {name!r}", remedy="Give each its own number, or leave one out.")


def _print_series(compared: SeriesComparison) -> None:
    click.echo(f"\n{render_text(series_table(compared))}")
    for sentence in describe_series(compared):
        echo(sentence)
    click.echo()
