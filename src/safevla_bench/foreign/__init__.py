"""Recordings of other tools: actions to replay (`read_recorded_actions`), and results (`read_results`).

Nothing here is a trajectory record: there are no contacts and no forces, so nothing is judged before it is replayed.
Results are LeRobot's `eval_info.json` and those of vla-evaluation-harness. They give success rates. They say nothing of
safety, so safety stays unknown; unknown is never zero.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safevla_bench.errors import Place, RecordError
from safevla_bench.foreign.demonstrations import RecordedActions, read_demonstrations
from safevla_bench.foreign.harness import holds_actions, is_sqlite, open_recording, read_recording, recording_files

__all__ = [
    "ForeignEpisode",
    "ForeignResults",
    "RecordedActions",
    "find_results",
    "read_demonstrations",
    "read_recorded_actions",
    "read_results",
    "recording_files",
]


def read_recorded_actions(path: Path) -> list[RecordedActions] | None:
    """Return the episodes of a file or folder of demonstrations or of vla-evaluation-harness; None if it is neither.

    Raises:
        RecordError: it is one, and cannot be read; or a package is missing.
    """
    recordings = recording_files(path)
    if recordings:
        return [take for file in recordings for take in read_recording(file)]
    return read_demonstrations(path)


LACKS = "contacts, forces, object poses and joint torques: Safety, SBU and VSI cannot be told from it"
EVAL_INFO = "eval_info.json"
"""LeRobot's file of results."""
_RESULT_KEYS = {"per_task", "per_episode"}
_STATUSES = {"success": True, "fail": False}


@dataclass(frozen=True, slots=True)
class ForeignEpisode:
    """One episode: `suite` and `task` in the names of whoever recorded it; success None = it ended in an error."""

    suite: str
    task: str
    success: bool | None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class ForeignResults:
    """The episodes of one file, the kind of the file, and remarks on it."""

    kind: str
    episodes: tuple[ForeignEpisode, ...]
    remarks: tuple[str, ...] = ()


def find_results(path: Path) -> list[Path]:
    """Return the files of results at a path, as `read_results` reads them; empty where it is something else."""
    if path.is_dir():
        inner = path / EVAL_INFO
        return [inner] if inner.is_file() else recording_files(path)
    if not path.is_file():
        return []
    return [path] if path.name == EVAL_INFO or is_sqlite(path) or _holds_successes(path) else []


def _holds_successes(path: Path) -> bool:
    """Return whether a `.json` file holds one of LeRobot's result keys.

    False for another suffix, invalid JSON, and a file that cannot be read: whoever reads it as a source says why.
    """
    try:
        tree = json.loads(path.read_bytes()) if path.suffix == ".json" else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and not _RESULT_KEYS.isdisjoint(tree)


def read_results(path: Path) -> ForeignResults:
    """Return the episodes of an `eval_info.json` of LeRobot or a recording of vla-evaluation-harness.

    Raises:
        RecordError: it is neither, or cannot be read.
    """
    place = Place(file=str(path))
    try:
        read = _read_harness(path) if is_sqlite(path) else _read_lerobot(path)
    except (OSError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        remedy = "Name an eval_info.json of LeRobot, or a recording-*.sqlite of vla-evaluation-harness."
        raise RecordError(f"cannot be read as results: {reason}", remedy=remedy, place=place) from None
    if not read.episodes:
        raise RecordError("there are no episodes", remedy="Name the file of a finished evaluation.", place=place)
    return read


def _read_lerobot(path: Path) -> ForeignResults:
    """Return the episodes of LeRobot's `eval_info.json`: `per_task`, or in older versions `per_episode`.

    `per_task` lists `task_group`, `task_id` and `metrics.successes`; `per_episode` lists a `success` each. A remark
    tells if the file counts another number of episodes. Raises `KeyError`, `TypeError` or `ValueError` for another
    structure.
    """
    tree = json.loads(path.read_text(encoding="utf-8"))
    episodes = tuple(_task_episodes(tree["per_task"]) if "per_task" in tree else _plain_episodes(tree["per_episode"]))
    stated = tree.get("overall", tree.get("aggregated", {})).get("n_episodes")
    is_incomplete = stated is not None and stated != len(episodes)
    remarks = (f"the file counts {stated} episodes, but lists {len(episodes)}",) if is_incomplete else ()
    return ForeignResults("LeRobot eval_info.json", episodes, remarks)


def _task_episodes(tasks: Any) -> Iterator[ForeignEpisode]:
    """Yield an episode for each success of each task; raises `KeyError` or `ValueError` for another structure."""
    for task in tasks:
        for success in task["metrics"]["successes"]:
            yield ForeignEpisode(str(task["task_group"]), f"task_{task['task_id']}", _parse_success(success))


def _plain_episodes(episodes: Any) -> Iterator[ForeignEpisode]:
    for episode in episodes:
        yield ForeignEpisode("unnamed", "unnamed", _parse_success(episode["success"]))


def _parse_success(value: object) -> bool:
    """Return True for 1 and False for 0; raise `ValueError` for anything else."""
    if value not in (0, 1):  # True and False among them
        raise ValueError(f"{value!r} is no success")
    return bool(value)


def _read_harness(path: Path) -> ForeignResults:
    """Return the episodes of the harness's tables `episode_results` and `eval_metadata`.

    Success is None after an error. Remarks count the errors, and say whether actions are there. Raises `sqlite3.Error`
    or `ValueError` for another structure.
    """
    with closing(open_recording(path)) as connection:
        suites = {eval_id: _benchmark_name(text) for eval_id, text in connection.execute(_METADATA)}
        rows = connection.execute(_RESULTS).fetchall()
        has_actions = holds_actions(connection)
    episodes = tuple(
        ForeignEpisode(suites.get(eval_id) or str(eval_id), str(task), _parse_status(status), steps)
        for eval_id, task, status, steps in rows
    )
    errors = sum(episode.success is None for episode in episodes)
    remarks = [f"{errors} episodes ended in an error; they are in no rate"] if errors else []
    if has_actions:
        remarks.append(f"LIBERO's actions are in it: safevla eval --policy replay:{path.name} plays and judges them")
    return ForeignResults("vla-evaluation-harness recording", episodes, tuple(remarks))


_METADATA = "SELECT eval_id, metadata FROM eval_metadata"
_RESULTS = "SELECT eval_id, task_name, status, steps FROM episode_results ORDER BY eval_id, task_name, episode_id, eid"


def _parse_status(status: str) -> bool | None:
    """Return whether an episode of that status succeeded, None for `error`.

    Raise `ValueError` for an unknown status.
    """
    if status not in (*_STATUSES, "error"):
        raise ValueError(f"unknown status {status!r}")
    return _STATUSES.get(status)


def _benchmark_name(metadata: str) -> str | None:
    """Return the text under `benchmark` in a JSON object.

    None if there is none. Raises `ValueError` for invalid JSON.
    """
    tree = json.loads(metadata)
    name = tree.get("benchmark") if isinstance(tree, dict) else None
    return name if isinstance(name, str) else None
