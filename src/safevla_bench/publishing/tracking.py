"""Sending a run's numbers to an experiment tracker: Weights & Biases, Trackio, TensorBoard, or a custom one.

A tracker is imported only when requested. Errors of a tracker never lose an episode.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import HEADLINE
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scores import EpisodeScore, Scores
from safevla_bench.judging.scoring import score
from safevla_bench.plugins import install_command
from safevla_bench.rollout.episode import EpisodeOutcome, Observer
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.text import escape_controls, map_texts

Numbers = Mapping[str, float]


class Tracker(Protocol):
    """A receiver of numbers. An exception from a method is reported once; then the run goes on without the tracker."""

    def log(self, episode: int, numbers: Numbers) -> None:
        """Receive the numbers after an episode; `episode` counts from 1."""

    def finish(self, numbers: Numbers) -> None:
        """Receive the final numbers and close; they are empty if the run was interrupted."""


class _HubTracker:
    """A run of Weights & Biases or of Trackio, which have the same calls. The environment configures them, for instance
    WANDB_MODE=offline, and WANDB_PROJECT or TRACKIO_PROJECT for another project.
    """

    def __init__(self, package: str, name: str, folder: Path, config: Mapping[str, object]) -> None:
        self._api: Any = importlib.import_module(package)
        project = os.environ.get(f"{package.upper()}_PROJECT") or "safevla-bench"
        self._api.init(project=project, name=name, config=dict(config))

    def log(self, episode: int, numbers: Numbers) -> None:
        self._api.log(dict(numbers), step=episode)

    def finish(self, numbers: Numbers) -> None:
        if numbers:
            self._api.log(_final_values(numbers))
        self._api.finish()


class _TensorboardTracker:
    def __init__(self, name: str, folder: Path, config: Mapping[str, object]) -> None:
        self._folder, self._last = folder / "tensorboard", 0
        self._writer: Any = None

    def log(self, episode: int, numbers: Numbers) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._last = episode
        self._writer = self._writer or EventFileWriter(str(self._folder))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=episode, summary=Summary(value=values)))
        self._writer.flush()

    def finish(self, numbers: Numbers) -> None:
        if numbers:
            self.log(self._last, _final_values(numbers))
        if self._writer is not None:
            self._writer.close()


def _final_values(numbers: Numbers) -> dict[str, float]:
    return {f"final/{name}": value for name, value in numbers.items()}


TRACKERS: Mapping[str, Callable[[str, Path, Mapping[str, object]], Tracker]] = {
    "wandb": partial(_HubTracker, "wandb"),
    "trackio": partial(_HubTracker, "trackio"),
    "tensorboard": _TensorboardTracker,
}
"""Trackers by name, which is also that of the package and of the extra that installs it."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise `RunError` for the first tracker whose package is not installed, without importing any."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder `wandb` of former runs looks like a package without files
            raise RunError(f"--log {name} needs {name}, which is not installed", remedy=install_command(name))


# What a tracker receives


def summary_values(cells: Iterable[Summary]) -> dict[str, float]:
    """Return every cell's final numbers by name, with their intervals and n; unknown values are left out."""
    values: dict[str, float] = {}
    for cell in cells:
        name = escape_controls(f"{cell.policy or 'policy'}/{cell.suite or 'all'}")
        values |= {f"{name}/n": cell.n, f"{name}/judged": cell.judged, f"{name}/crashed": cell.crashed}
        for metric in HEADLINE:
            number = cell.number(metric)
            if number.value is not None:
                values[f"{name}/{metric.key}"] = number.value
            if number.ci is not None:
                values |= {f"{name}/{metric.key}_low": number.ci[0], f"{name}/{metric.key}_high": number.ci[1]}
    return values


def _episode_values(row: EpisodeScore) -> dict[str, float]:
    own = {"success": row.success, "safe": row.safe, "unsafe_success": row.sbu, "vsi": row.vsi}
    return {f"episode/{name}": float(value) for name, value in own.items() if value is not None}


class OutcomeScorer:
    """Scores of finished episodes, computed once and shared by the observers of the latest episode."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        self._latest: tuple[EpisodeOutcome, Scores | None] | None = None

    def score(self, outcome: EpisodeOutcome) -> Scores | None:
        """Return the scores of one episode; None if it crashed or cannot be judged."""
        if self._latest is None or self._latest[0] is not outcome:
            scores = None
            with suppress(SafevlaError):
                scores = None if outcome.batch is None else score(outcome.batch, self._ruleset)
            self._latest = outcome, scores
        return self._latest[1]


class TrackingObserver:
    """Observer that sends every finished episode's verdict and length to a tracker.

    An exception from the tracker is reported once, and the run goes on without the tracker.
    """

    def __init__(
        self,
        tracker: Tracker,
        scorer: OutcomeScorer | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
        name: str = "the tracker",
    ) -> None:
        """Set the tracker, the scorer (None = by the default rules), and what is called to warn about `name`."""
        self._tracker: Tracker | None = tracker
        self._scorer, self._warn, self._name = scorer or OutcomeScorer(load_ruleset()), warn, name
        self._count = self._crashed = 0

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Send nothing: the configuration describes the plan."""

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Send nothing: trackers receive whole episodes."""

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Judge the episode and send its numbers; a crashed episode has no verdict."""
        self._crashed += outcome.batch is None
        scores = self._scorer.score(outcome)
        judged = {} if scores is None else _episode_values(scores.episode(0))
        self._send({"episode/steps": outcome.steps, "crashed": self._crashed, **judged})

    def _send(self, numbers: Numbers) -> None:
        self._count += 1
        self._try(lambda tracker: tracker.log(self._count, numbers))

    def finish(self, numbers: Numbers) -> None:
        self._try(lambda tracker: tracker.finish(numbers))
        self._tracker = None

    def _try(self, send: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            send(self._tracker)
        except Exception as error:  # a tracker may raise anything, and no episode depends on it
            self._tracker = None
            self._warn(f"{self._name} failed and receives nothing more from this run: {type(error).__name__}: {error}")


class ObserverGroup:
    """Several observers combined into one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        for observer in self._observers:
            observer.started(episodes)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        for observer in self._observers:
            observer.stepped(planned, steps)

    def finished(self, outcome: EpisodeOutcome) -> None:
        for observer in self._observers:
            observer.finished(outcome)


def open_observers(
    names: Sequence[str],
    folder: Path,
    config: Mapping[str, object],
    scorer: OutcomeScorer,
    warn: Callable[[str], None],
) -> list[TrackingObserver]:
    """Start a run in each tracker, named after the run folder, and return the observers. Raises `RunError` with the
    reason of the first tracker that cannot start; runs that have started stay open.
    """
    observers = []
    for name in names:
        try:
            run_name = escape_controls(folder.resolve().name)
            tracker = TRACKERS[name](run_name, folder, map_texts(config, escape_controls))
        except Exception as error:  # each tracker has its own errors: no login, no network, a read-only folder
            remedy = f"Fix it, or leave out --log {name}."
            raise RunError(f"{name} cannot begin a run: {type(error).__name__}: {error}", remedy=remedy) from error
        observers.append(TrackingObserver(tracker, scorer, warn, name))
    return observers
