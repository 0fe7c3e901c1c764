"""Progress on stderr: a status line. For a run: a bar on a terminal, or a line per episode in a log file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from safevla_bench.cli import echo, escape_output
from safevla_bench.judging.scores import NO_VERDICT, verdict_word
from safevla_bench.text import count_noun, escape_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from safevla_bench.publishing.tracking import OutcomeScorer
    from safevla_bench.rollout.episode import EpisodeOutcome, Observer
    from safevla_bench.rollout.plan import PlannedEpisode

T = TypeVar("T")
# Width of the bar in columns. The count, the remaining time and the rates also fit into 80 columns.
_BAR_WIDTH = 12


@contextmanager
def _draw_on_stderr(make: Callable[[Console], AbstractContextManager[T]]) -> Iterator[T]:
    # Draw on stderr during the `with` block. Text that the block prints is escaped; the drawing is not.
    from rich.console import Console

    unescaped_stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    with make(Console(file=unescaped_stderr)) as drawn, escape_output():
        yield drawn


@contextmanager
def show_status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on stderr, if stderr is a terminal, and yield a function that replaces the line's text."""
    if not sys.stderr.isatty():
        yield lambda new_text: None
        return
    with _draw_on_stderr(lambda console: console.status(text)) as status:
        yield lambda new_text: status.update(escape_controls(new_text))


@contextmanager
def show_frame_progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """Yield a callback (items done, current item) that moves a bar on stderr, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, current: None
        return
    with _draw_on_stderr(make_progress) as progress:
        bar = progress.add_task("starting", total=total)
        yield lambda done, current: progress.update(bar, completed=done, description=escape_controls(current))


@contextmanager
def show_run_progress(scorer: OutcomeScorer) -> Iterator[Observer]:
    """Yield an observer that draws a bar on stderr, or prints a line per episode if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield EpisodeLines(scorer)
        return
    with _draw_on_stderr(make_progress) as progress:
        yield RunProgressBar(progress, scorer)


def make_progress(console: Console) -> Progress:
    """Return a progress bar that disappears at the end. It shows count, bar, time left and a text, cut to the width."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return Progress(
        MofNCompleteColumn(),
        BarColumn(_BAR_WIDTH),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=cut),
        console=console,
        transient=True,
        expand=True,
    )


class EpisodeLines:
    """Observer that prints a line per finished episode: outcome, verdict, seconds and violated specifications."""

    def __init__(self, scorer: OutcomeScorer) -> None:
        self.scorer = scorer
        self.count = self.total = 0

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        self.count, self.total = 0, len(episodes)
        noun = "replay" if any(planned.start.recorded for planned in episodes) else "episode"
        click.echo(f"{count_noun(self.total, noun)} to run", err=True)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Print nothing, because a log needs no count of steps."""

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Judge the episode and print a line on stderr: `no verdict` if the episode crashed or cannot be judged."""
        self.count += 1
        scores = self.scorer.score(outcome)
        row = None if scores is None else scores.episode(0)
        wall_time = "     – s" if outcome.wall_s is None else f"{outcome.wall_s:6.1f} s"
        verdict = NO_VERDICT if row is None else verdict_word(row.safe)
        violated = f"  ({', '.join(row.violated_specs)})" if row and row.violated_specs else ""
        position = f"[{self.count:{len(str(self.total))}}/{self.total}]"
        line = f"{position} {outcome.outcome:14} {verdict:10} {wall_time}  {outcome.planned.episode_id}{violated}"
        latency = outcome.latency
        if latency and latency.waiting_p50_ms is not None:
            waiting = f"{latency.waiting_p50_ms:.0f} ms in queue and network"
            line += f"  ({latency.p50_ms:.0f} ms per request, including {waiting})"
        echo(line, err=True)


class RunProgressBar:
    """Observer that shows the rates of the finished episodes in a progress bar."""

    def __init__(self, progress: Progress, scorer: OutcomeScorer) -> None:
        self.progress = progress
        self.scorer = scorer
        self.task = progress.add_task("starting", total=None)
        self.rates: dict[str, list[bool]] = {"SR": [], "Safety": [], "SBU": []}
        self.crashed = 0

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        self.progress.reset(self.task, total=len(episodes))

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        if steps % 20 == 0:
            self._update_description(f"{planned.episode_id} step {steps}")

    def finished(self, outcome: EpisodeOutcome) -> None:
        self.crashed += 1 if outcome.batch is None else 0
        scores = self.scorer.score(outcome)
        if scores is not None:
            success = bool(scores.success[0]) if scores.is_counted[0] else None
            results = zip(self.rates.values(), (success, scores.verdict(0), scores.unsafe_success(0)), strict=True)
            for flags, holds in results:
                if holds is not None:
                    flags.append(holds)
        self.progress.advance(self.task)
        request, latency = "", outcome.latency
        if latency and latency.waiting_p50_ms is not None:
            request = f" · {latency.p50_ms:.0f} ms per request, {latency.waiting_p50_ms:.0f} ms waiting"
        self._update_description(f"{outcome.planned.episode_id}{request}")

    def _update_description(self, current: str) -> None:
        rates = [f"{name} {100 * sum(flags) / len(flags):.0f} %" for name, flags in self.rates.items() if flags]
        crashed = [f"{self.crashed} crashed"] if self.crashed else []
        self.progress.update(self.task, description=" · ".join([*rates, *crashed, escape_controls(current)]))
