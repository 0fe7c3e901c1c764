"""Recordings of other tools: actions for replays (`read_recorded_actions`), and results (`read_results`).

Recorded actions come without contacts and forces, so they must be replayed before they can be judged. Results are in an
`eval_info.json` of LeRobot or in a recording of vla-evaluation-harness. Results state only which episodes succeeded, so
safety is unknown. An unknown value never counts as zero.

vla-evaluation-harness writes a file `recording-ID.sqlite` with these tables (source: harness 0.8.0,
src/vla_eval/recording.py, orchestrator.py and benchmarks/libero/benchmark.py):

    eval_metadata     one row per benchmark: its configuration, and the parameters that the model server requested
    episode_results   one row per episode, in the order in which a process ran them: task, initial state, status, steps
    step_rows         one JSON per step: `action` [7] and the `state` [8] after it, all float32. The state is the
                      end effector's position [3], its rotation [3] as an axis-angle, and the two fingers' positions

Older recordings have no actions. No recording has a simulator state, so a replay starts an episode as the harness did:
from an initial state, in an environment that was seeded once and then reset a known number of times.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from safevla_bench.errors import Place, RecordError, describe_cause
from safevla_bench.files import open_input, read_input
from safevla_bench.memory import limit_memory
from safevla_bench.sources.foreign.demonstrations import RecordedActions, read_demonstrations
from safevla_bench.text import load_json, shorten_name
from safevla_recorder.episode import Floats

T = TypeVar("T")


def read_recorded_actions(path: Path) -> list[RecordedActions] | None:
    """Return the recorded actions of each episode at `path`; None if `path` has no known kind of recording.

    Raises `RecordError` if a recording cannot be read, if an HDF5 file is missing, or if h5py is not installed.
    """
    # If a folder has recordings of vla-evaluation-harness, other recordings in the folder are not read.
    with limit_memory(path):
        files = recording_files(path)
        if files:
            return [episode for file in files for episode in _read_recording(file)]
        return read_demonstrations(path)


# Results


LACKS = "contacts, forces, object poses and joint torques, so Safety, SBU and VSI are unknown"
EVAL_INFO = "eval_info.json"
_SUCCESSES = {True: True, False: False}  # 1 and 0 in the file match True and False
_STATUSES = {"success": True, "fail": False, "error": None}
# Errors that readers raise for a damaged file, or for a file with an unexpected structure.
_READ_ERRORS = (OSError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class ForeignEpisode:
    """The result of one episode. `suite` and `task` are the names in the file. `success` is None after an error."""

    suite: str
    task: str
    success: bool | None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class ForeignResults:
    """The results in one file: the file's kind, its episodes, and remarks about the file."""

    kind: str
    episodes: tuple[ForeignEpisode, ...]
    remarks: tuple[str, ...] = ()


def find_results(path: Path) -> list[Path]:
    """Return the files at a path that `read_results` can read; [] if there are none. In a folder, return
    `eval_info.json` if it exists; otherwise, all recordings of vla-evaluation-harness.
    """
    info_path = path / EVAL_INFO if path.is_dir() else path
    if info_path.name == EVAL_INFO and info_path.is_file():
        return [info_path]
    return recording_files(path)


def read_results(path: Path) -> ForeignResults:
    """Return the episodes of an `eval_info.json` of LeRobot or a recording of vla-evaluation-harness. Raises
    `RecordError` if the file is of neither kind, cannot be read, or lists no episodes.
    """
    place = Place(file=str(path))
    try:
        with limit_memory(path):
            results = _read_harness_results(path) if _is_sqlite(path) else _read_lerobot(path)
    except _READ_ERRORS as error:
        remedy = "Name an unchanged `eval_info.json` of LeRobot, or `recording-*.sqlite` of vla-evaluation-harness."
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else describe_cause(error)
        raise RecordError(f"cannot be read as results: {reason}", remedy=remedy, place=place) from None
    if not results.episodes:
        raise RecordError("there are no episodes", remedy="Pass the file of a finished evaluation.", place=place)
    return results


def _read_outcome(value: object, field: str, outcomes: Mapping[Any, T]) -> T:
    # Return the meaning of a field's value. Raise `ValueError` if the value is not one of `outcomes`.
    # `outcomes` maps each valid value in the file to a meaning, such as "fail" to False.
    for known, outcome in outcomes.items():
        if value == known:
            return outcome
    found, choices = shorten_name(json.dumps(value, default=str)), " or ".join(map(json.dumps, outcomes))
    raise ValueError(f"{field} is {found}, not {choices}")


class _Metrics(msgspec.Struct):
    successes: list[object]


class _Task(msgspec.Struct):
    task_group: object
    task_id: object
    metrics: _Metrics


class _EpisodeSuccess(msgspec.Struct):
    success: object


class _TaskResults(msgspec.Struct):
    per_task: list[_Task]
    overall: dict[str, object] = {}


class _EpisodeResults(msgspec.Struct):
    per_episode: list[_EpisodeSuccess]  # format of lerobot before 0.4.0 (scripts/eval.py)


def _read_lerobot(path: Path) -> ForeignResults:
    # Reads an `eval_info.json`. A `ForeignEpisode` has the suite, the task and whether the episode succeeded.
    tree = load_json(read_input(path))
    episodes, remarks = [], []
    if isinstance(tree, dict) and "per_episode" in tree and "per_task" not in tree:
        for i, row in enumerate(msgspec.convert(tree, _EpisodeResults).per_episode):
            success = _read_outcome(row.success, f"per_episode[{i}].success", _SUCCESSES)
            episodes.append(ForeignEpisode("unnamed", "unnamed", success))
        remarks.append("the file is from LeRobot before 0.4, so it names neither suites nor tasks")
    else:
        results = msgspec.convert(tree, _TaskResults)
        for i, task in enumerate(results.per_task):
            for j, value in enumerate(task.metrics.successes):
                success = _read_outcome(value, f"per_task[{i}].metrics.successes[{j}]", _SUCCESSES)
                episodes.append(ForeignEpisode(str(task.task_group), f"task_{task.task_id}", success))
        stated_count = results.overall.get("n_episodes")
        if stated_count not in (None, len(episodes)):
            remarks.append(f"the file lists {len(episodes)} episodes, but states {stated_count}")
    return ForeignResults("LeRobot eval_info.json", tuple(episodes), tuple(remarks))


def _read_harness_results(path: Path) -> ForeignResults:
    # Reads the SQLite file of a recording. `_SUITES` and `_RESULTS` are SQL queries.
    # `eval_id` identifies an evaluation of one benchmark.
    with closing(_open_recording(path)) as connection:
        metadata_by_id = {eval_id: load_json(text) for eval_id, text in connection.execute(_SUITES)}
        suites = {eval_id: str(metadata.get("benchmark") or eval_id) for eval_id, metadata in metadata_by_id.items()}
        episodes = tuple(
            ForeignEpisode(
                suites.get(eval_id, str(eval_id)),
                str(task),
                _read_outcome(status, "status", _STATUSES),
                steps,
            )
            for eval_id, task, status, steps in connection.execute(_RESULTS)
        )
    errors = sum(episode.success is None for episode in episodes)
    remarks = [f"{errors} episodes ended in an error and are excluded from all rates"] if errors else []
    if any(_libero_parameters(metadata) for metadata in metadata_by_id.values()):
        command = f"safevla eval --policy {shlex.quote(f'replay:{path}')} --out DIR"
        remarks.append(f"If the recording has actions for LIBERO, this command replays and judges them: {command}")
    return ForeignResults("vla-evaluation-harness recording", episodes, tuple(remarks))


_SUITES = "SELECT eval_id, metadata FROM eval_metadata"
_RESULTS = "SELECT eval_id, task_name, status, steps FROM episode_results ORDER BY eval_id, task_name, episode_id, eid"


# Recordings of vla-evaluation-harness


_PATTERN = "recording-*.sqlite"
_HEADER = b"SQLite format 3\x00"
_LIBERO = "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark"
_DEFAULTS: Mapping[str, object] = {  # defaults of the LIBERO benchmark in the harness (commit e1ee9ad)
    "suite": "libero_spatial",
    "seed": 7,
    "num_steps_wait": 10,
    "absolute_action": False,
}
_TABLES = ("eval_metadata", "episode_results", "step_rows")
_MOST_VALUE_BYTES = 1 << 20
_METADATA = "SELECT eval_id, safe_name, metadata FROM eval_metadata"
_EPISODES = (
    "SELECT sid, eid, eval_id, task_name, episode_id, status, steps, context FROM episode_results ORDER BY sid, rowid"
)
_STEPS = "SELECT fields FROM step_rows WHERE sid = ? AND eid = ? ORDER BY step_id"


def _is_sqlite(path: Path) -> bool:
    # Returns whether the file begins like an SQLite database; False if it cannot be read.
    try:
        with open_input(path) as stream:
            return stream.read(len(_HEADER)) == _HEADER
    except OSError:
        return False


def recording_files(path: Path) -> list[Path]:
    """Return the sorted recordings of vla-evaluation-harness in a folder; [path] for an SQLite file; otherwise []."""
    if path.is_dir():
        return sorted(path.glob(_PATTERN))
    # A .db3 file is skipped, since it is a bag of ROS 2.
    return [path] if path.is_file() and path.suffix != ".db3" and _is_sqlite(path) else []


def _open_recording(path: Path) -> sqlite3.Connection:
    # Returns a read-only connection to the database.
    # Only plain tables are accepted, since a view or a computed column could generate any amount of data.
    open_input(path).close()  # raise `RecordError` if the file is missing or unreadable
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    # SQLite raises an error for a text or blob above this limit.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
    try:
        query = "SELECT name, type FROM sqlite_master WHERE lower(name) IN (?, ?, ?)"  # SQLite ignores case in names
        for name, table_type in connection.execute(query, _TABLES):
            computed_column = connection.execute("SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden", (name,)).fetchone()
            if table_type != "table" or computed_column:
                raise ValueError(f"{name} is not a plain table")
    except (sqlite3.Error, ValueError):
        connection.close()
        raise
    return connection


def _read_recording(path: Path) -> list[RecordedActions]:
    # Returns the episodes with actions in a recording of the harness. Raises `RecordError` if there are none.
    try:
        with closing(_open_recording(path)) as connection:
            episodes = list(_read_episodes(path, connection))
    except RecordError as error:
        raise error.with_place(Place(file=str(path))) from None
    except _READ_ERRORS as error:
        remedy = "Name the output folder of vla-evaluation-harness, or its `recording-*.sqlite`."
        problem = f"cannot be read as a recording of vla-evaluation-harness: {type(error).__name__}: {error}"
        raise RecordError(problem, remedy=remedy, place=Place(file=str(path))) from None
    if not episodes:
        remedy = (
            "Record with vla-evaluation-harness 0.7 or later. In its configuration, leave out "
            "`recording.step_fields`, or list `action` and `state` in it."
        )
        problem = "no finished episode of the LIBERO benchmark has an action in every step"
        raise RecordError(problem, remedy=remedy, place=Place(file=str(path)))
    return episodes


def _read_episodes(path: Path, connection: sqlite3.Connection) -> Iterator[RecordedActions]:
    """Yield, in stored order, the LIBERO episodes that have an outcome and an action in every step."""
    # Raises `RecordError` if rows of steps are missing, or if numbers of a step are invalid.
    # `sid` identifies a process of the harness, `eid` an episode in the process, and `eval_id` an evaluation.
    # `_METADATA`, `_EPISODES` and `_STEPS` are SQL queries.
    # An action has 7 numbers, and a state of the end effector has 8.
    # Id of an evaluation -> the policy's name, and the parameters of the LIBERO benchmark.
    policy_by_id = {
        str(eval_id): (str(policy), _libero_parameters(load_json(text)))
        for eval_id, policy, text in connection.execute(_METADATA)
    }
    last_environment: tuple[str, str, str] | None = None
    resets = 0
    for sid, eid, eval_id, task, episode_id, status, steps, text in connection.execute(_EPISODES):
        policy, parameters = policy_by_id.get(str(eval_id), ("", None))
        if parameters is None:  # the benchmark is not LIBERO
            continue
        context = load_json(text)
        # A process of the harness keeps the same environment while the task stays the same.
        # The harness seeds the environment only once, when it creates the environment.
        environment = (str(sid), str(eval_id), str(context["task_id"]))
        # Number of resets before this episode. A replay repeats the resets, because each draws random numbers.
        resets = resets + 1 if environment == last_environment else 0
        last_environment = environment
        rows = []
        for (text_of_step,) in connection.execute(_STEPS, (sid, eid)):
            step = load_json(text_of_step)
            fields = [field for field in ("action", "state") if field in step]
            rows.append({field: list(step[field])[:_MAX_STEP_NUMBERS] for field in fields})
        has_all_actions = bool(rows) and all("action" in row for row in rows)
        # Skip episodes without an outcome or without actions, but count their resets.
        if status not in ("success", "fail") or not has_all_actions:
            continue
        place = Place(str(path), episode=f"{task}, episode {episode_id}")
        if len(rows) != steps:
            problem = f"the episode has {len(rows)} rows of steps, but the stated number of steps is {steps}"
            raise RecordError(problem, remedy="Steps are missing: remove the episode from the recording.", place=place)
        task_id = f"task_{int(context['task_id'])}"
        yield RecordedActions(
            name=f"{policy}/{task_id}/episode_{int(episode_id)}",
            source=path.name,
            actions=_read_rows(rows, "action", 7, place),
            proprioception=_read_rows(rows, "state", 8, place) if all("state" in row for row in rows) else None,
            success=status == "success",
            benchmark=str(parameters["suite"]).replace("_", "-"),
            task_id=task_id,
            instruction=str(task),
            init_state_index=int(context["episode_idx"]),
            env_seed=int(parameters["env_seed"]),
            wait_steps=int(parameters["num_steps_wait"]),
            earlier_resets=resets,
            policy=policy,
            absolute=bool(parameters["absolute_action"]),
        )


_MAX_STEP_NUMBERS = 128  # maximum number of values read from one field of a step (`action` has 7, `state` 8)


def _libero_parameters(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    # Returns the parameters of a LIBERO evaluation, with defaults for missing parameters.
    # Returns None for other benchmarks.
    config = metadata.get("config") or {}
    if config.get("benchmark") != _LIBERO:
        return None
    requested = (metadata.get("server_info") or {}).get("observation_params") or {}
    # Parameters in the configuration override those that the model server requests. Defaults come last.
    parameters = {**_DEFAULTS, **requested, **(config.get("params") or {})}
    # The harness seeds the environment with `env_seed` if it is given, and otherwise with `seed`.
    if parameters.get("env_seed") is None:
        parameters["env_seed"] = parameters["seed"]
    return parameters


def _read_rows(rows: Sequence[Mapping[str, Any]], field: str, size: int, place: Place) -> Floats:
    # Returns the values of a field, such as `action`, in all steps, [steps, size]. `place` is the episode, for errors.
    values = np.array([row[field] for row in rows], dtype=np.float64)
    if values.shape != (len(rows), size) or not np.isfinite(values).all():
        problem = f"`{field}` has a wrong shape or numbers that are not finite; its shape is {values.shape}"
        raise RecordError(problem, remedy=f"Record {size} finite numbers per step.", place=place)
    return values
