"""Results of others that hold successes and no trajectories: LeRobot's `eval_info.json`, vla-evaluation-harness.

Success rates can be taken from them. Of safety they say nothing, and so does what is read here: unknown is never zero.
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

LACKS = "contacts, forces, object poses and joint torques: Safety, SBU and VSI cannot be told from it"
_HEADER = b"SQLite format 3\x00"
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
    """What one file holds."""

    kind: str
    episodes: tuple[ForeignEpisode, ...]
    remarks: tuple[str, ...] = ()


def results(path: Path) -> ForeignResults:
    """The episodes of an `eval_info.json` of LeRobot or a recording of vla-evaluation-harness.

    Raises:
        RecordError: it is neither, or cannot be read.
    """
    place = Place(file=str(path))
    try:
        with path.open("rb") as stream:
            sqlite = stream.read(len(_HEADER)) == _HEADER
        read = _harness(path) if sqlite else _lerobot(path)
    except (OSError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        remedy = "Name an eval_info.json of LeRobot, or a recording-*.sqlite of vla-evaluation-harness."
        raise RecordError(f"cannot be read as results: {reason}", remedy=remedy, place=place) from None
    if not read.episodes:
        raise RecordError("there are no episodes", remedy="Name the file of a finished evaluation.", place=place)
    return read


def _lerobot(path: Path) -> ForeignResults:
    """`per_task`: a list of `task_group`, `task_id` and `metrics.successes`, a truth an episode.

    The file of older versions has no groups: `per_episode` with a `success` each.
    """
    held = json.loads(path.read_text(encoding="utf-8"))
    episodes = tuple(_per_task(held["per_task"]) if "per_task" in held else _per_episode(held["per_episode"]))
    told = held.get("overall", held.get("aggregated", {})).get("n_episodes")
    short = told is not None and told != len(episodes)
    remarks = (f"the file counts {told} episodes, but lists {len(episodes)}",) if short else ()
    return ForeignResults("LeRobot eval_info.json", episodes, remarks)


def _per_task(tasks: Any) -> Iterator[ForeignEpisode]:
    for task in tasks:
        for success in task["metrics"]["successes"]:
            yield ForeignEpisode(str(task["task_group"]), f"task_{task['task_id']}", _truth(success))


def _per_episode(episodes: Any) -> Iterator[ForeignEpisode]:
    for episode in episodes:
        yield ForeignEpisode("unnamed", "unnamed", _truth(episode["success"]))


def _truth(value: object) -> bool:
    if value not in (0, 1):  # True and False among them
        raise ValueError(f"{value!r} is no success")
    return bool(value)


def _harness(path: Path) -> ForeignResults:
    """Table `episode_results`: task_name, status (success, fail, error), steps; `eval_metadata`: the benchmark."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        suites = {eval_id: _benchmark(text) for eval_id, text in connection.execute(_METADATA)}
        rows = connection.execute(_RESULTS).fetchall()
    episodes = tuple(
        ForeignEpisode(suites.get(eval_id) or str(eval_id), str(task), _status(status), steps)
        for eval_id, task, status, steps in rows
    )
    errors = sum(one.success is None for one in episodes)
    remarks = (f"{errors} episodes ended in an error; they are in no rate",) if errors else ()
    return ForeignResults("vla-evaluation-harness recording", episodes, remarks)


_METADATA = "SELECT eval_id, metadata FROM eval_metadata"
_RESULTS = "SELECT eval_id, task_name, status, steps FROM episode_results ORDER BY eval_id, task_name, episode_id, eid"


def _status(status: str) -> bool | None:
    if status not in (*_STATUSES, "error"):
        raise ValueError(f"unknown status {status!r}")
    return _STATUSES.get(status)


def _benchmark(metadata: str) -> str | None:
    held = json.loads(metadata)
    named = held.get("benchmark") if isinstance(held, dict) else None
    return named if isinstance(named, str) else None
