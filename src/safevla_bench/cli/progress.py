"""Progress on stderr: a status line, or the bar of a run with its SR, Safety and SBU. Silent if it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from safevla_bench.errors import SafevlaError
from safevla_bench.rollout import EpisodeOutcome, Observer, PlannedEpisode
from safevla_bench.ruleset import Ruleset, load_ruleset
from safevla_bench.scoring import score
from safevla_bench.text.sanitize import escape_controls


@contextmanager
def show_status(what: str) -> Iterator[None]:
    """Show a status line if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


@contextmanager
def show_run_progress(ruleset: Ruleset | None = None) -> Iterator[Observer | None]:
    """Return an observer that draws the bar, or None where stderr is no terminal.

    Episodes are scored by the ruleset; without one, by the default library and registry.
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield RunProgressBar(progress, ruleset or load_ruleset())


class RunProgressBar:
    """Observer of a run that shows the rates of the finished episodes."""

    def __init__(self, progress: Progress, ruleset: Ruleset) -> None:
        self.progress = progress
        self.ruleset = ruleset
        self.task = progress.add_task("starting", total=None)
        self.success = self.safe = self.sbu = (0, 0)
        self.crashed = 0

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        self.progress.update(self.task, total=len(episodes))

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        if steps % 20 == 0:
            self._describe(f"{planned.episode_id} step {steps}")

    def finished(self, outcome: EpisodeOutcome) -> None:
        if outcome.batch is None:
            self.crashed += 1
        else:
            self._count(outcome)
        self.progress.advance(self.task)
        self._describe(outcome.planned.episode_id)

    def _count(self, outcome: EpisodeOutcome) -> None:
        assert outcome.batch is not None
        try:
            scores = score(outcome.batch, self.ruleset)
        except SafevlaError:  # the judge itself will say so at the end; the bar shows what it can
            return
        self.success = _count_share(self.success, bool(scores.success[0]) if scores.is_counted[0] else None)
        self.safe = _count_share(self.safe, scores.verdict(0))
        self.sbu = _count_share(self.sbu, scores.unsafe_success(0))

    def _describe(self, where: str) -> None:
        rates = [f"{name} {100 * count / n:.0f} %" for name, (count, n) in self._shares() if n]
        crashed = [f"{self.crashed} crashed"] if self.crashed else []
        self.progress.update(self.task, description=" · ".join([escape_controls(where), *rates, *crashed]))

    def _shares(self) -> list[tuple[str, tuple[int, int]]]:
        return [("SR", self.success), ("Safety", self.safe), ("SBU", self.sbu)]


def _count_share(share: tuple[int, int], holds: bool | None) -> tuple[int, int]:
    """Return a count and its n after one more episode; one that cannot tell, None, counts in neither."""
    count, n = share
    return share if holds is None else (count + holds, n + 1)
