"""Sends a run's numbers to an experiment tracker: Weights & Biases, Trackio, MLflow, TensorBoard, or a custom tracker.

The package of a tracker is imported only if the user requests it. If a tracker fails, no episode is lost.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.files import read_text, write_atomically
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import HEADLINE
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scores import EpisodeScore, Scores
from safevla_bench.judging.scoring import score
from safevla_bench.plugins import install_command
from safevla_bench.publishing.submission import describe_ruleset
from safevla_bench.rollout.episode import NOT_RUN, EpisodeOutcome, Observer
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.sources.runs.folder import MISSING
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.text import escape_controls, map_texts

Numbers = Mapping[str, float]
Row = Mapping[str, float | str]  # an episode's numbers, and its policy, suite and task


class Tracker(Protocol):
    """A receiver of numbers. If one of its methods raises an exception, a warning appears, the tracker gets nothing
    more, and the run continues. A tracker with a method `attach` also gets the path of the report.
    """

    def log(self, episode: int, row: Row) -> None:
        """Log the row of one episode. `episode` is its number from 1; a resumed run continues the numbering."""

    def finish(self, numbers: Numbers) -> None:
        """Take the final numbers, and close the tracker. The numbers are empty if the run was interrupted."""


_LABELS = ("policy", "suite", "task")  # the texts of a row; all other values are numbers


def _name_curves(row: Row) -> dict[str, float]:
    # Returns the numbers of an episode's row under names `POLICY/SUITE/NAME`: each policy has a curve on each suite.
    # The row's texts (policy, suite and task) are left out.
    prefix = f"{row.get('policy')}/{row.get('suite')}"
    return {f"{prefix}/{name}": float(value) for name, value in row.items() if name not in _LABELS}


class _NamedRun:
    """A tracker's run. The run folder stores the run's name, which the tracker chooses, so that a resumed rollout
    continues the same run. If `is_new` is true, the stored name is neither used nor written.
    """

    def __init__(self, package: str, folder: Path, is_new: bool) -> None:
        # `package` is the tracker's Python package. A file in `folder` stores the run's name.
        # If `is_new`, a stored name is ignored.
        self._api: Any = importlib.import_module(package)
        self._file, self._is_new = folder / f".{package}-run", is_new
        self._stored_name = read_text(self._file).strip() if not is_new and self._file.exists() else None

    def _store_name(self, name: object) -> None:
        # Stores the name that the tracker gave to the run, once, in the run folder.
        # Does nothing if the name is not text, if there is no run folder, or if `is_new`.
        if self._stored_name is None and not self._is_new and isinstance(name, str) and self._file.parent.is_dir():
            write_atomically(self._file, name)
            self._stored_name = name


class _HubTracker(_NamedRun):
    """A run in Weights & Biases or Trackio, which have the same functions. Environment variables configure them, such
    as WANDB_MODE=offline, and WANDB_PROJECT or TRACKIO_PROJECT for another project.
    """

    def __init__(
        self, package: str, key: str, name: str, folder: Path, config: Mapping[str, object], is_new: bool
    ) -> None:
        # `key` names the attribute that identifies a run; the parameter of `init` with the same name selects the run.
        # `package` is the tracker's Python package. A stored run is continued unless `is_new`.
        super().__init__(package, folder, is_new)
        self._name_attribute = key
        project = os.environ.get(f"{package.upper()}_PROJECT") or "safevla-bench"
        identity = {"name": name}
        if self._stored_name is not None:  # continue the stored run
            identity |= {key: self._stored_name, "resume": "allow"}
        self._run: Any = self._api.init(project=project, config=dict(config), **identity)

    def log(self, episode: int, row: Row) -> None:
        # Sends an episode's texts and numbers at the step `episode`. The first call also stores the run's name.
        self._store_name(getattr(self._run, self._name_attribute, None))
        self._api.log({name: row[name] for name in _LABELS if name in row} | _name_curves(row), step=episode)

    def attach(self, report: Path) -> None:
        # Uploads the file of the report.
        artifact = self._api.Artifact(report.stem, type="report")
        artifact.add_file(str(report))
        self._api.log_artifact(artifact)

    def finish(self, numbers: Numbers) -> None:
        # Sends the final numbers, which are empty for an interrupted run, and closes the tracker's run.
        if numbers:
            self._api.log(_final_values(numbers))
        self._api.finish()


class _MlflowTracker(_NamedRun):
    def __init__(self, name: str, folder: Path, config: Mapping[str, object], is_new: bool) -> None:
        # Continues the run whose id is stored in `folder`.
        # If `is_new`, or if no id is stored (None), begins a run with the name `name`.
        super().__init__("mlflow", folder, is_new)
        self._api.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or "safevla-bench")
        self._run = self._api.start_run(run_id=self._stored_name, run_name=name)
        self._api.log_params({key: str(value)[:500] for key, value in config.items()})  # MLflow limits the length

    def log(self, episode: int, row: Row) -> None:
        # Sends the numbers of an episode's row. The first call also stores the run's id.
        self._store_name(self._run.info.run_id)
        self._send(_name_curves(row), episode)

    def attach(self, report: Path) -> None:
        # Uploads the file of the report.
        self._api.log_artifact(str(report))

    def finish(self, numbers: Numbers) -> None:
        # Sends the final numbers, which are empty for an interrupted run, and closes the tracker's run.
        self._send(_final_values(numbers))
        self._api.end_run()

    def _send(self, numbers: Numbers, step: int | None = None) -> None:
        # Sends numbers under names that MLflow accepts. `step` is the episode's number; None for final numbers.
        self._api.log_metrics({name_metric(name): value for name, value in numbers.items()}, step=step)


def name_metric(name: str) -> str:
    """Return a name that MLflow accepts. Other characters become `_` and their code point; empty parts become `_`."""
    escaped = re.sub(r"[^\w\-. :/]", lambda match: f"_{ord(match[0]):x}", name)
    return re.sub(r"(?<=/)(?=/)", "_", escaped)  # matches the empty text between two slashes


class _TensorboardTracker:
    def __init__(self, name: str, folder: Path, config: Mapping[str, object], is_new: bool) -> None:
        # Chooses the folder for TensorBoard's files, in the run folder.
        # `config` is written as text with the first numbers. `name` is not used, because the folder names the run.
        runs = (folder / "tensorboard" / f"export-{number}" for number in count(1))  # each new run: a new folder
        self._folder = next(run for run in runs if not run.exists()) if is_new else folder / "tensorboard"
        self._last_episode = 0
        self._writer: Any = None  # created when the first number arrives
        self._config = "\n\n".join(f"{key}: {value}" for key, value in config.items())

    def log(self, episode: int, row: Row) -> None:
        # Writes the numbers of an episode's row.
        self._write(episode, _name_curves(row))

    def finish(self, numbers: Numbers) -> None:
        # Writes the final numbers, which are empty for an interrupted run, and closes the file if there is one.
        if numbers:
            self._write(self._last_episode, _final_values(numbers))
        if self._writer is not None:
            self._writer.close()

    def _write(self, episode: int, numbers: Numbers) -> None:
        # Writes numbers at the step `episode`. The first call also opens the file and writes the configuration.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._last_episode = episode
        self._writer = self._writer or EventFileWriter(str(self._folder))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        if self._config:
            text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
            content = TensorProto(dtype="DT_STRING", string_val=[self._config.encode()])
            values.append(Summary.Value(tag="config", tensor=content, metadata=text))
            self._config = ""
        self._writer.add_event(Event(wall_time=time.time(), step=episode, summary=Summary(value=values)))
        self._writer.flush()


def _final_values(numbers: Numbers) -> dict[str, float]:
    # Returns the final numbers of a run. The prefix in their names distinguishes them from the episodes' numbers.
    return {f"final/{name}": value for name, value in numbers.items()}


TRACKERS: Mapping[str, Callable[[str, Path, Mapping[str, object], bool], Tracker]] = {
    "wandb": partial(_HubTracker, "wandb", "id"),
    "trackio": partial(_HubTracker, "trackio", "name"),
    "mlflow": _MlflowTracker,
    "tensorboard": _TensorboardTracker,
}
"""Maps a tracker's name to the function that begins a run. The name is also the name of the tracker's package."""


def require_trackers(names: Sequence[str], option: str = "--log") -> None:
    """Raise `RunError` if a tracker's package is not installed. `option` is the option that requests the trackers."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder `wandb` of earlier runs is found, but has no origin
            # MLflow has no pip extra.
            remedy = "pip install mlflow-skinny" if name == "mlflow" else install_command(name)
            raise RunError(f"{option} {name} needs {name}, which is not installed", remedy=remedy)


# What a tracker receives


def summary_values(summaries: Iterable[Summary]) -> dict[str, float]:
    """Return name -> final number for each cell: metrics, ends of intervals, episode counts. Omit unknown values."""
    values: dict[str, float] = {}
    for cell in summaries:  # a cell contains the numbers of a policy on a suite
        prefix = escape_controls(f"{cell.policy or 'policy'}/{cell.suite or 'all'}")
        values |= {f"{prefix}/n": cell.n, f"{prefix}/judged": cell.judged, f"{prefix}/crashed": cell.crashed}
        for metric in HEADLINE:
            number = cell.number(metric)
            if number.value is not None:
                values[f"{prefix}/{metric.key}"] = number.value
            if number.ci is not None:
                values |= {f"{prefix}/{metric.key}_low": number.ci[0], f"{prefix}/{metric.key}_high": number.ci[1]}
    return values


def _make_row(labels: tuple[str | None, str, str], steps: int, crashed: bool, score: EpisodeScore | None) -> Row:
    # Returns what trackers get about one episode: its numbers, and the names of policy, suite and task (`labels`).
    # Unknown numbers are omitted. `score` is None for an episode that crashed or cannot be judged.
    policy, suite, task = labels
    numbers: dict[str, float | None] = {"steps": steps, "crashed": crashed}
    if score is not None:
        success = score.success if score.counted else None  # the success of a stopped episode is unknown
        numbers |= {"success": success, "safe": score.safe, "unsafe_success": score.sbu, "vsi": score.vsi}
    return {
        **dict(zip(_LABELS, map(escape_controls, (policy or "policy", suite or "all", task)), strict=True)),
        **{f"episode/{name}": float(number) for name, number in numbers.items() if number is not None},
    }


class OutcomeScorer:
    """Scores finished episodes. It stores the scores of the latest episode, so that several observers can use them."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        # A pair: the episode that was scored last, and its scores or None. None before the first call.
        self._latest: tuple[EpisodeOutcome, Scores | None] | None = None

    def score(self, outcome: EpisodeOutcome) -> Scores | None:
        """Return the scores of one episode; None if it crashed or cannot be judged."""
        if self._latest is None or self._latest[0] is not outcome:  # not the same episode as in the last call
            scores = None  # stays None if the episode crashed or cannot be judged
            with suppress(SafevlaError):
                scores = None if outcome.batch is None else score(outcome.batch, self._ruleset)
            self._latest = outcome, scores
        return self._latest[1]


class TrackingObserver:
    """Observer that sends the verdict and length of every finished episode to a tracker. If the tracker raises an
    exception, a warning says so, and the run goes on without the tracker.
    """

    def __init__(
        self,
        tracker: Tracker,
        scorer: OutcomeScorer | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
        name: str = "the tracker",
        finished: int = 0,
    ) -> None:
        """Send results to `tracker`. `scorer` scores the episodes; None means the default rules. If the tracker fails,
        `warn` gets a sentence that contains `name`. `finished` is the number of episodes that were sent before.
        """
        self._tracker: Tracker | None = tracker
        self._scorer, self._warn, self._name = scorer or OutcomeScorer(load_ruleset()), warn, name
        self._count = finished

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Send nothing, because the configuration already describes the plan."""

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Send nothing, because trackers receive whole episodes."""

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Judge the episode and send its numbers. Crashed episodes have no verdict. Skip episodes that did not run."""
        if outcome.outcome == NOT_RUN:
            return
        scores = self._scorer.score(outcome)
        task = outcome.planned.task
        labels = outcome.planned.policy, task.suite, task.task_id
        episode_score = None if scores is None else scores.episode(0)
        row = _make_row(labels, outcome.steps, outcome.batch is None, episode_score)  # no batch: the episode crashed
        self._count += 1
        self._send_or_drop(lambda tracker: tracker.log(self._count, row))

    def finish(self, numbers: Numbers, report: Path | None = None) -> None:
        """Send the final numbers and the report, and close the tracker. A second call does nothing."""
        # `report` is the path of a run's report; None = no report.
        self._send_or_drop(partial(_finish_tracker, numbers=numbers, report=report))
        self._tracker = None

    def _send_or_drop(self, send: Callable[[Tracker], None]) -> None:
        # Calls `send` with the tracker, unless the tracker was closed or dropped.
        # If the call fails, calls `warn` and drops the tracker.
        if self._tracker is None:
            return
        try:
            send(self._tracker)
        except Exception as error:  # a tracker may raise any error; the run must continue
            self._tracker = None
            self._warn(f"{self._name} failed and receives nothing more from this run: {type(error).__name__}: {error}")


def _finish_tracker(tracker: Tracker, numbers: Numbers, report: Path | None) -> None:
    # Sends the report's path to a tracker that has `attach`, then sends the final numbers and closes the tracker.
    if report is not None and hasattr(tracker, "attach"):
        tracker.attach(report)
    tracker.finish(numbers)


def _begin_run(name: str, folder: Path, config: Mapping[str, object], *, is_new: bool = False) -> Tracker:
    # Begins a run of a tracker, with the name of the run folder.
    # `name` is a key of `TRACKERS`, and `config` describes the run.
    # If `is_new` is false, an earlier run for this folder is continued.
    return TRACKERS[name](escape_controls(folder.resolve().name), folder, map_texts(config, escape_controls), is_new)


def send_results(name: str, folder: Path, judged: Judged, report: Path | None) -> None:
    """Send the episodes that ended or crashed to a new run of the tracker `name`, in the order of the plan. The rows
    equal those of a `TrackingObserver`. The new run has the name of `folder`. Raises `RunError` if the tracker fails.
    """
    try:
        tracker = _begin_run(name, folder, describe_ruleset(judged.ruleset), is_new=True)
        for number, row in enumerate(_iterate_rows(judged), start=1):
            tracker.log(number, row)
        # item 0: the numbers of each policy on each suite
        _finish_tracker(tracker, summary_values(judged.summarize_scores()[0]), report)
    except Exception as error:  # each tracker raises different errors: no login, no network, a read-only folder
        raise RunError(f"{name} failed: {type(error).__name__}: {error}", remedy="Correct the cause.") from error


def _iterate_rows(judged: Judged) -> Iterator[Row]:
    # For each source, yields the rows in the order of the plan, then the rows of recorded episodes outside the plan.
    # `crashed_keys` contains (policy, episode id) of planned episodes that ran, but have no record.
    crashed_keys = {(lost.policy, lost.episode_id) for lost in judged.scores.absent if lost.outcome != MISSING}
    for source, indices in judged.records.by_source():
        index_of_key = {judged.headers[k].key: k for k in indices}  # (policy, episode id) -> index of the record
        # Without absent episodes, the plan is not needed, because every episode has a record.
        for planned in episode_rows(source.path) if source.absent else ():
            # The plan uses the recorded names of policies, so replace these by the new names.
            key = source.policy_names.get(planned.policy, planned.policy), planned.episode_id
            if key in crashed_keys:
                yield _make_row((key[0], planned.benchmark, planned.task_id), planned.steps, crashed=True, score=None)
            elif key in index_of_key:
                yield _recorded_row(judged, index_of_key.pop(key))
        yield from (_recorded_row(judged, k) for k in index_of_key.values())


def _recorded_row(judged: Judged, index: int) -> Row:
    # Returns the row of a recorded episode; there are N - 1 steps between N records.
    score = judged.scores.episode(index)
    labels = score.policy, score.benchmark, score.task_id
    return _make_row(labels, int(judged.records.lengths[index]) - 1, crashed=False, score=score)


class ObserverGroup:
    """An observer that passes each call to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        # Each observer receives the calls, in the order of `observers`.
        self._observers = observers

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        # Informs each observer about the episodes to run next, before any of them starts.
        for observer in self._observers:
            observer.started(episodes)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        # Informs each observer about the number of control steps that an episode has done so far.
        for observer in self._observers:
            observer.stepped(planned, steps)

    def finished(self, outcome: EpisodeOutcome) -> None:
        # Informs each observer about the outcome of an episode.
        for observer in self._observers:
            observer.finished(outcome)


def open_observers(
    names: Sequence[str],
    folder: Path,
    config: Mapping[str, object],
    scorer: OutcomeScorer,
    warn: Callable[[str], None],
    finished: int = 0,
) -> list[TrackingObserver]:
    """Begin a run of each tracker, with the name of the run folder. Return one observer per tracker. `finished` is the
    number of episodes sent before. Raises `RunError` if a tracker cannot begin a run; runs that have begun stay open.
    """
    # `scorer` scores the episodes. If a tracker fails later, `warn` gets a sentence about this.
    observers = []
    for name in names:
        try:
            tracker = _begin_run(name, folder, config)
        except Exception as error:  # each tracker raises different errors, as in `send_results`
            remedy = f"Correct the cause, or leave out --log {name}."
            raise RunError(f"{name} cannot begin a run: {type(error).__name__}: {error}", remedy=remedy) from error
        observers.append(TrackingObserver(tracker, scorer, warn, name, finished))
    return observers
