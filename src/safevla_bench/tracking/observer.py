"""Observers that send each finished episode to a tracker, and never cost one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from safevla_bench.errors import SafevlaError
from safevla_bench.rollout import EpisodeOutcome, Observer, PlannedEpisode
from safevla_bench.ruleset import Ruleset, load_ruleset
from safevla_bench.scores import EpisodeScore, Scores
from safevla_bench.scoring import score
from safevla_bench.tracking.trackers import Tracker, open_tracker
from safevla_bench.tracking.values import RunningRates, episode_values

WarnCallback = Callable[[str], None]
"""Called with one sentence when a tracker fails."""


def score_outcome(outcome: EpisodeOutcome, ruleset: Ruleset) -> Scores | None:
    """Return the scores of one episode; None where it crashed, or cannot be judged: the judge says why at the end."""
    try:
        return None if outcome.batch is None else score(outcome.batch, ruleset)
    except SafevlaError:
        return None


class TrackingObserver:
    """Sends every finished episode to a tracker: its verdict, its length and the rates of its cell so far.

    Whatever the tracker raises is reported once. It is then not asked again, and the run goes on as without it.
    """

    def __init__(
        self,
        tracker: Tracker,
        ruleset: Ruleset | None = None,
        warn: WarnCallback = lambda sentence: None,
        name: str = "the tracker",
    ) -> None:
        self._tracker: Tracker | None = tracker
        self._ruleset, self._warn, self._name = ruleset or load_ruleset(), warn, name
        self._rates = RunningRates()
        self._count = self._crashed = 0

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Send nothing: what is planned is in the configuration."""

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Send nothing: trackers are for episodes."""

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Send the episode's numbers."""
        self._count += 1
        self._crashed += outcome.batch is None
        numbers: dict[str, float] = {"episode/steps": outcome.steps, "crashed": self._crashed}
        if outcome.wall_s is not None:
            numbers["episode/seconds"] = outcome.wall_s
        scores = score_outcome(outcome, self._ruleset)
        if scores is not None:
            numbers |= self._score_values(scores.episode(0), is_counted=bool(scores.is_counted[0]))
        self._send(numbers)

    def add_scores(self, scores: Scores) -> None:
        """Send the numbers of episodes that were judged before, in order."""
        for k, row in enumerate(scores.episodes()):
            self._count += 1
            self._send(self._score_values(row, is_counted=bool(scores.is_counted[k])))

    def _score_values(self, row: EpisodeScore, *, is_counted: bool) -> dict[str, float]:
        return {**episode_values(row), **self._rates.add(row, is_counted=is_counted)}

    def _send(self, numbers: Mapping[str, float]) -> None:
        self._try(lambda tracker: tracker.log(self._count, numbers))

    def finish(self, numbers: Mapping[str, float]) -> None:
        """Send the final numbers and close the tracker."""
        self._try(lambda tracker: tracker.finish(numbers))
        self._tracker = None

    def _try(self, send: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            send(self._tracker)
        except Exception as error:  # a tracker may raise anything, and no episode depends on it
            self._tracker = None
            self._warn(f"{self._name} failed and gets nothing more of this run: {type(error).__name__}: {error}")


class ObserverGroup:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Tell each which episodes are to be run."""
        for observer in self._observers:
            observer.started(episodes)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Tell each how far an episode is."""
        for observer in self._observers:
            observer.stepped(planned, steps)

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Tell each how an episode ended."""
        for observer in self._observers:
            observer.finished(outcome)


def open_observers(
    names: Sequence[str], folder: Path, config: Mapping[str, object], ruleset: Ruleset, warn: WarnCallback
) -> list[TrackingObserver]:
    """Begin a run of each tracker and return what observes for it; raises `RunError` where one cannot begin."""
    return [TrackingObserver(open_tracker(name, folder, config), ruleset, warn, name) for name in names]
