"""What is under way: a word, or the bar of a run with its SR, Safety and SBU; silent where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from safevla_bench.errors import SafevlaError
from safevla_bench.evaluate import Judge
from safevla_bench.rollout import Observer, Outcome, Planned
from safevla_bench.scoring import score
from safevla_bench.text.sanitize import inert


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say that something is under way, where somebody looks."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


@contextmanager
def watching(judge: Judge) -> Iterator[Observer | None]:
    """An observer that draws the bar, or None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, judge)


class Bar:
    """Counts steps and shows what the finished episodes say so far."""

    def __init__(self, progress: Progress, judge: Judge) -> None:
        self.progress = progress
        self.library, self.registry = judge.load()
        self.judge = judge
        self.task = progress.add_task("starting", total=None)
        self.done = self.success = self.safe = self.sbu = self.crashed = 0

    def started(self, episodes: Sequence[Planned]) -> None:
        self.progress.update(self.task, total=len(episodes))

    def stepped(self, planned: Planned, steps: int) -> None:
        if steps % 20 == 0:
            self._describe(f"{planned.episode_id} step {steps}")

    def finished(self, outcome: Outcome) -> None:
        if outcome.batch is None:
            self.crashed += 1
        else:
            self._count(outcome)
        self.progress.advance(self.task)
        self._describe(outcome.planned.episode_id)

    def _count(self, outcome: Outcome) -> None:
        assert outcome.batch is not None
        try:
            scores = score(
                outcome.batch,
                self.library,
                self.registry,
                capabilities=self.judge.capabilities,
                missing=self.judge.missing,
            )
        except SafevlaError:  # the judge itself will say so at the end; the bar shows what it can
            return
        self.done += 1
        self.success += int(scores.success[0])
        self.safe += int(scores.safe[0])
        self.sbu += int(scores.sbu[0])

    def _describe(self, where: str) -> None:
        rates = [f"{name} {100 * count / self.done:.0f} %" for name, count in self._counts()] if self.done else []
        crashed = [f"{self.crashed} crashed"] if self.crashed else []
        self.progress.update(self.task, description=" · ".join([inert(where), *rates, *crashed]))

    def _counts(self) -> list[tuple[str, int]]:
        return [("SR", self.success), ("Safety", self.safe), ("SBU", self.sbu)]
