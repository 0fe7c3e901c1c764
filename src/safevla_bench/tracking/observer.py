"""Observers that send the numbers of each finished episode to a tracker, and never cost one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from safevla_bench.errors import SafevlaError
from safevla_bench.metrics import Mean, Rate, Summary
from safevla_bench.rollout import EpisodeOutcome, Observer, PlannedEpisode
from safevla_bench.ruleset import Ruleset, load_ruleset
from safevla_bench.scores import EpisodeScore, Scores
from safevla_bench.scoring import score
from safevla_bench.tracking.trackers import Tracker, open_tracker

_RATES = ("sr", "safety", "sbu", "p_unsafe_given_success")
_MEANS = ("vsi", "vsi_given_unsafe")


def episode_values(row: EpisodeScore) -> dict[str, float]:
    """Return an episode's numbers by name, such as `episode/vsi`, truths as 0 or 1; unknown values are left out."""
    truths = {"success": row.success, "safe": row.safe, "unsafe_success": row.sbu}
    values = {f"episode/{name}": float(truth) for name, truth in truths.items() if truth is not None}
    return values if row.vsi is None else {**values, "episode/vsi": row.vsi}


class RunningRates:
    """SR, Safety, SBU and mean VSI of each cell over the episodes so far; each over those that can tell."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, row: EpisodeScore, *, is_counted: bool) -> dict[str, float]:
        """Count an episode and return the rates of its cell, by names such as `pi0/libero-goal/safety`.

        An episode whose value is unknown leaves that rate alone; without `is_counted` its success is left out.
        """
        known = {"sr": row.success if is_counted else None, "safety": row.safe, "sbu": row.sbu, "vsi": row.vsi}
        cell = cell_name(row.policy, row.benchmark)
        for name, value in known.items():
            if value is not None:
                total, n = self._sums.get(f"{cell}/{name}", (0.0, 0))
                self._sums[f"{cell}/{name}"] = (total + float(value), n + 1)
        return {name: total / n for name, (total, n) in self._sums.items() if name.startswith(f"{cell}/")}


def cell_name(policy: str | None, suite: str | None) -> str:
    """Return "POLICY/SUITE"; "policy" and "all" stand for None."""
    return f"{policy or 'policy'}/{suite or 'all'}"


def summary_values(cells: Iterable[Summary]) -> dict[str, float]:
    """Return every cell's final numbers by name, with their intervals and n; unknown values are left out."""
    values: dict[str, float] = {}
    for cell in cells:
        name = cell_name(cell.policy, cell.suite)
        values |= {f"{name}/n": cell.n, f"{name}/judged": cell.judged, f"{name}/crashed": cell.crashed}
        for key in _RATES:
            values |= _bounded_values(f"{name}/{key}", cell.rates[key])
        for key in _MEANS:
            values |= _bounded_values(f"{name}/{key}", cell.means[key])
    return values


def _bounded_values(name: str, number: Rate | Mean) -> dict[str, float]:
    """Return a number and the ends of its interval by name; {} for an unknown value, no ends without an interval."""
    if number.value is None:
        return {}
    bounds = {} if number.ci is None else {f"{name}_low": number.ci[0], f"{name}_high": number.ci[1]}
    return {name: number.value, **bounds}


def describe_ruleset(ruleset: Ruleset) -> dict[str, object]:
    """Return what judges, for a tracker's configuration."""
    return {
        "library": ruleset.library.name,
        "library_digest": ruleset.library.digest,
        "registry_digest": ruleset.registry.digest,
        "capabilities": list(ruleset.capabilities),
        "missing": ruleset.missing,
    }


WarnCallback = Callable[[str], None]
"""Called with one sentence when a tracker fails."""


def score_outcome(outcome: EpisodeOutcome, ruleset: Ruleset) -> Scores | None:
    """Return the scores of one episode.

    None where the episode crashed or cannot be judged, whose reason is not told.
    """
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
        """Judge the episode and send its numbers, those of a crashed episode without a verdict."""
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
        """Add the episode to its cell's rates and return its numbers with those rates."""
        return {**episode_values(row), **self._rates.add(row, is_counted=is_counted)}

    def _send(self, numbers: Mapping[str, float]) -> None:
        self._try(lambda tracker: tracker.log(self._count, numbers))

    def finish(self, numbers: Mapping[str, float]) -> None:
        """Send the final numbers and close the tracker; a second call does nothing."""
        self._try(lambda tracker: tracker.finish(numbers))
        self._tracker = None

    def _try(self, send: Callable[[Tracker], None]) -> None:
        """Call `send` with the tracker; if that raises, warn once and drop the tracker. Nothing after that."""
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
