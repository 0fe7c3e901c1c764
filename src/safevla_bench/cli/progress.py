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
    # `make(console)` returns a context manager that draws. Yield the value of this manager, such as a progress bar.
    from rich.console import Console

    # `main` has replaced stderr by a stream that escapes control sequences; drawing needs the original stream.
    unescaped_stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    with make(Console(file=unescaped_stderr)) as drawn, escape_output():
        yield drawn


@contextmanager
def show_status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on stderr, if stderr is a terminal, and yield a function that replaces the line's text."""
    if not sys.stderr.isatty():
        yield lambda new_text: None  # in a log file, a status line would be noise
        return
    with _draw_on_stderr(lambda console: console.status(text)) as status:
        yield lambda new_text: status.update(escape_controls(new_text))


@contextmanager
def show_frame_progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """Yield a callback (items done, current item) that moves a bar on stderr, if stderr is a terminal."""
    # `total` is the number of items. If stderr is not a terminal, the callback does nothing.
    if not sys.stderr.isatty():
        yield lambda done, current: None
        return
    with _draw_on_stderr(make_progress) as progress:
        bar = progress.add_task("starting", total=total)
        yield lambda done, current: progress.update(bar, completed=done, description=escape_controls(current))


@contextmanager
def show_run_progress(scorer: OutcomeScorer) -> Iterator[Observer]:
    """Yield an observer that draws a bar on stderr, or prints a line per episode if stderr is not a terminal."""
    # A run calls the observer when episodes start, advance and end. `scorer` judges each episode when it ends.
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
        self.scorer = scorer  # judges each episode when it ends
        self.count = self.total = 0  # counts of finished episodes and of all episodes

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        # Print on stderr how many episodes will run, and set the counts.
        # A run with several batches of episodes calls this before each batch, so the count starts again.
        # An episode with recorded actions (`start.recorded`) is a replay.
        self.count, self.total = 0, len(episodes)
        noun = "replay" if any(planned.start.recorded for planned in episodes) else "episode"
        click.echo(f"{count_noun(self.total, noun)} to run", err=True)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Print nothing, because a log needs no count of steps."""

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Judge the episode and print a line on stderr: `no verdict` if the episode crashed or cannot be judged."""
        # `wall_s` is the episode's duration (None = unknown). `latency` contains response times of the policy server.
        self.count += 1
        scores = self.scorer.score(outcome)
        row = None if scores is None else scores.episode(0)  # the scores of this one episode
        wall_time = "     – s" if outcome.wall_s is None else f"{outcome.wall_s:6.1f} s"
        verdict = NO_VERDICT if row is None else verdict_word(row.safe)
        violated = f"  ({', '.join(row.violated_specs)})" if row and row.violated_specs else ""
        # The text is, for example, `[ 3/10]`: the count is padded to the width of the total.
        position = f"[{self.count:{len(str(self.total))}}/{self.total}]"
        line = f"{position} {outcome.outcome:14} {verdict:10} {wall_time}  {outcome.planned.episode_id}{violated}"
        latency = outcome.latency
        if latency and latency.waiting_p50_ms is not None:  # known if the policy server reports its own time
            waiting = f"{latency.waiting_p50_ms:.0f} ms in queue and network"
            line += f"  ({latency.p50_ms:.0f} ms per request, including {waiting})"
        echo(line, err=True)


class RunProgressBar:
    """Observer that shows the rates of the finished episodes in a progress bar."""

    def __init__(self, progress: Progress, scorer: OutcomeScorer) -> None:
        # `progress` draws the bar, and `scorer` judges each episode when it ends.
        self.progress = progress
        self.scorer = scorer
        self.task = progress.add_task("starting", total=None)  # the bar's id; `started` sets the total
        # metric -> its values (true or false) in the finished episodes; unknown values are left out
        self.rates: dict[str, list[bool]] = {"SR": [], "Safety": [], "SBU": []}
        self.crashed = 0  # number of episodes that crashed

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        # Start the bar again, with the number of episodes to run; `task` is the bar's id.
        # The rates of earlier batches are kept.
        self.progress.reset(self.task, total=len(episodes))

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        # Show the episode's number of steps so far, but only every twentieth step, because drawing takes time.
        if steps % 20 == 0:
            self._update_description(f"{planned.episode_id} step {steps}")

    def finished(self, outcome: EpisodeOutcome) -> None:
        # Judge the episode that ended, add it to the rates, and move the bar.
        self.crashed += outcome.outcome == "crashed"  # a skipped episode has no record, but did not crash
        scores = self.scorer.score(outcome)
        if scores is not None:
            # An episode that was stopped early is not counted in SR, because its success is unknown (None).
            success = bool(scores.success[0]) if scores.is_counted[0] else None
            results = zip(self.rates.values(), (success, scores.verdict(0), scores.unsafe_success(0)), strict=True)
            for flags, holds in results:
                if holds is not None:
                    flags.append(holds)
        self.progress.advance(self.task)
        request, latency = "", outcome.latency  # `request` describes the policy server's latency; "" = unknown
        if latency and latency.waiting_p50_ms is not None:
            request = f" · {latency.p50_ms:.0f} ms per request, {latency.waiting_p50_ms:.0f} ms waiting"
        self._update_description(f"{outcome.planned.episode_id}{request}")

    def _update_description(self, current: str) -> None:
        # Show the rates so far, the number of crashes, and the text `current` about the current episode.
        # `rates` maps each metric to its values (true or false) in finished episodes. `task` is the bar's id.
        rates = [f"{name} {100 * sum(flags) / len(flags):.0f} %" for name, flags in self.rates.items() if flags]
        crashed = [f"{self.crashed} crashed"] if self.crashed else []
        self.progress.update(self.task, description=" · ".join([*rates, *crashed, escape_controls(current)]))
