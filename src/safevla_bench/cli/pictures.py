"""`safevla frames`: pictures of recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from safevla_bench import hosts
from safevla_bench.cli import echo, options, rules
from safevla_bench.cli.options import flag, option, quote_paths, repeatable
from safevla_bench.cli.progress import show_frame_progress
from safevla_bench.errors import Place, RunError, SafevlaError
from safevla_bench.explain.episode import select_worst
from safevla_bench.judging.judged import Judged
from safevla_bench.pictures.drawing import can_film
from safevla_bench.pictures.rendering import FrameStyle, RecordedRun, render_frames
from safevla_bench.plugins import install_command
from safevla_bench.report import episode_list
from safevla_bench.sources.runs.folder import FRAMES, REPORT, RUN, read_description
from safevla_bench.text import count_noun

_PIXELS = click.IntRange(16, 9999)


@options.command("frames")
def frames_command(
    sources: rules.JudgedSources = rules.judged_sources(
        options.argument("RUN", type=options.FILE, callback=lambda context, argument, run: (run,))
    ),
    names: tuple[str, ...] = repeatable("Its id, its number, or how its id ends.", "EPISODE", spelling="--episode"),
    worst: int = option("Else so many, the worst of each cell.", type=options.POSITIVE, default=12),
    size: tuple[int, int] = option("Pixels of a picture.", "WIDTH HEIGHT", nargs=2, type=_PIXELS, default=(640, 480)),
    video: bool = flag("Also a film of each whole episode, from both cameras; needs the extra `video`."),
    in_3d: bool = flag("Also a replay in 3-D that the report lets readers turn around.", spelling="--3d"),
) -> None:
    """Render episodes of a run folder into RUN/frames, in the simulator that recorded them.

    Of each episode: the initial state; for each broken specification the record in which it is broken worst, with a red
    border and the bodies involved outlined, from close up where the usual camera hides them; the final state, with a
    green border where it succeeded. An episode's number is the one in `safevla episodes`. Frames of other episodes
    stay, and so do films and replays that are not made anew. Needs the host and an off-screen OpenGL: see `safevla
    doctor`.
    """
    (run,) = sources.paths
    if video and not can_film():
        raise RunError("films need the extra `video`", remedy=install_command("video"))
    host = _read_host(run)
    judged = sources.judge()
    if not len(judged.records):
        remedy = "A crashed episode cannot be shown."
        raise RunError("no episode here has a record", remedy=remedy, place=Place(file=str(run)))
    chosen = _choose_episodes(judged, names, worst)
    shown = judged.records.read_sparsely(chosen)
    material = RecordedRun(run, hosts.make_host(host), shown, judged.scores, judged.ruleset)
    style = FrameStyle(size=size[::-1], video=video, replay3d=in_3d)
    with show_frame_progress(len(chosen)) as observer:
        frame_rows = render_frames(material, chosen, style, observer, report_skipped)
    shown_keys = {(row.policy, row.episode_id) for row in frame_rows}
    size_mb = sum((run / FRAMES / row.file).stat().st_size for row in frame_rows) / 1e6
    echo(f"{len(frame_rows)} frames of {count_noun(len(shown_keys), 'episode')}, {size_mb:.1f} MB: {run / FRAMES}")
    if in_3d:
        echo(f"3-D replays: in {run / REPORT} once it is written anew, under each episode's number")
    echo(f"Next: safevla score {quote_paths(run)}")


def report_skipped(reason: SafevlaError) -> None:
    """Print on stderr why an episode is left out."""
    echo(f"left out: {reason}", err=True)


def _read_host(run: Path) -> str:
    place = Place(file=str(run))
    if not (run / RUN).exists():
        remedy = f"Name a folder that `safevla eval` made; it holds {RUN}."
        raise RunError("this is not a run folder", remedy=remedy, place=place)
    host = read_description(run).get("host")
    if not isinstance(host, str):
        raise RunError(f"{RUN} names no host", remedy="Only a host's own runs can be shown.", place=place)
    return host


def _choose_episodes(judged: Judged, names: Sequence[str], most: int) -> list[int]:
    """Return the indices of the episodes to render, each once: those asked for, else the worst."""
    if not names:
        return select_worst(judged.scores, most)
    rows = episode_list.list_episodes(judged.scores, judged.records.dt_s, None)
    numbers = [episode_list.find_episode(rows, name).number - 1 for name in names]
    for number in numbers:
        if number >= len(judged.records):
            raise RunError(f"{rows[number].episode_id} crashed and left no record", remedy="It cannot be shown.")
    return list(dict.fromkeys(numbers))
