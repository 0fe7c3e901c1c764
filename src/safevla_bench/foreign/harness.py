"""Recordings of vla-evaluation-harness: the actions that LIBERO executed, and the proprioception after each.

A file `recording-ID.sqlite` holds, for each benchmark entry of a run (read at harness 0.8.0, src/vla_eval/recording.py,
orchestrator.py and benchmarks/libero/benchmark.py):

    eval_metadata     the entry's configuration, and what the model server asked of the benchmark
    episode_results   task, initial state, status and steps, in the order in which each process ran them
    step_rows         JSON a step: `action` [7] and `state` [8] = the end effector's position [3] and rotation [3] as an
                      axis-angle, and the two fingers' positions, all float32, after the action

Files from before the harness's pull request 150 have no actions. No file has a simulator state, so a replay starts
where the harness says that it started: from an initial state, in an environment that was seeded once and had been reset
so many times.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.foreign.demonstrations import Floats, RecordedActions

PATTERN = "recording-*.sqlite"
_HEADER = b"SQLite format 3\x00"
_LIBERO = "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark"
_SEED, _WAIT_STEPS = 7, 10
"""Defaults of that benchmark's `seed` and `num_steps_wait`."""
_METADATA = "SELECT eval_id, safe_name, metadata FROM eval_metadata"
_EPISODES = (
    "SELECT sid, eid, eval_id, task_name, episode_id, status, steps, context FROM episode_results ORDER BY sid, rowid"
)
_STEPS = "SELECT fields FROM step_rows WHERE sid = ? AND eid = ? ORDER BY step_id"


def is_sqlite(path: Path) -> bool:
    """Return whether a file is an SQLite database; False where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_HEADER)) == _HEADER
    except OSError:
        return False


def recording_files(path: Path) -> list[Path]:
    """Return the harness's recordings in an output folder, or the file itself; empty where there are none."""
    if path.is_dir():
        return sorted(path.glob(PATTERN))
    return [path] if path.is_file() and is_sqlite(path) else []


def open_recording(path: Path) -> sqlite3.Connection:
    """Return a read-only connection to an SQLite file, which the caller closes.

    Raises `sqlite3.Error` if none can be made.
    """
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def holds_actions(connection: sqlite3.Connection) -> bool:
    """Return whether any step of a recording has the action that was executed."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    query = "SELECT 1 FROM step_rows WHERE json_extract(fields, '$.action') IS NOT NULL LIMIT 1"
    return "step_rows" in tables and connection.execute(query).fetchone() is not None


def read_recording(path: Path) -> list[RecordedActions]:
    """Return the LIBERO episodes of a recording that ran to their end, in the order in which they ran.

    Raises:
        RecordError: the file is of another structure, or no episode of LIBERO holds actions.
    """
    try:
        with closing(open_recording(path)) as connection:
            takes = list(_read_episodes(path, connection))
    except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        remedy = "Name the output folder of vla-evaluation-harness, or its recording-*.sqlite."
        problem = f"cannot be read as a recording of vla-evaluation-harness: {type(error).__name__}: {error}"
        raise RecordError(problem, remedy=remedy, place=Place(file=str(path))) from None
    if not takes:
        remedy = (
            "It records LIBERO's actions since its version 0.7; leave `recording.step_fields` out, or put `action` and "
            "`state` there."
        )
        problem = "no episode of its LIBERO benchmark ran to its end with its actions recorded"
        raise RecordError(problem, remedy=remedy, place=Place(file=str(path)))
    return takes


def _read_episodes(path: Path, connection: sqlite3.Connection) -> Iterator[RecordedActions]:
    """Yield the LIBERO episodes that ended in success or failure and hold an action in every step, in stored order.

    `earlier_resets` counts the episodes that one environment ran before this one, of whatever outcome. Raises
    `RecordError` if rows of steps are missing, or actions or states are not numbers of the expected size.
    """
    entries = {
        str(eval_id): (str(name), _entry_parameters(json.loads(text)))
        for eval_id, name, text in connection.execute(_METADATA)
    }
    environment: tuple[str, str, str] | None = None
    resets = 0
    for sid, eid, eval_id, task, episode_id, status, steps, text in connection.execute(_EPISODES).fetchall():
        name, parameters = entries.get(str(eval_id), ("", None))
        if parameters is None:
            continue
        context = json.loads(text)
        # A process keeps its environment while the task stays the same, and seeds it only when it makes it.
        present = (str(sid), str(eval_id), str(context["task_id"]))
        resets = resets + 1 if present == environment else 0
        environment = present
        rows = [json.loads(fields) for (fields,) in connection.execute(_STEPS, (sid, eid))]
        if status not in ("success", "fail") or not rows or any("action" not in row for row in rows):
            continue
        where = Place(str(path), episode=f"{task}, episode {episode_id}")
        if len(rows) != steps:
            problem = f"{steps} steps, but {len(rows)} rows of them"
            raise RecordError(problem, remedy="The file lost rows; leave the episode out.", place=where)
        yield RecordedActions(
            name=f"{name}/task_{int(context['task_id'])}/episode_{int(episode_id)}",
            source=path.name,
            actions=_read_rows(rows, "action", 7, where),
            proprioception=_read_rows(rows, "state", 8, where) if all("state" in row for row in rows) else None,
            success=status == "success",
            benchmark=str(parameters["suite"]).replace("_", "-"),
            task_id=f"task_{int(context['task_id'])}",
            instruction=str(task),
            init_state_index=int(context["episode_idx"]),
            env_seed=int(parameters["env_seed"]),
            wait_steps=int(parameters["num_steps_wait"]),
            earlier_resets=resets,
            policy=name,
            absolute=bool(parameters["absolute_action"]),
        )


def _entry_parameters(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the parameters of LIBERO's benchmark; None for another benchmark.

    Configured parameters come before those that the server told, and these before the harness's defaults. Raises
    `KeyError` without `config`.
    """
    config = metadata["config"]
    if config["benchmark"] != _LIBERO:
        return None
    asked = metadata.get("server_info", {}).get("observation_params") or {}
    given = {
        "suite": "libero_spatial",
        "seed": _SEED,
        "num_steps_wait": _WAIT_STEPS,
        "absolute_action": False,
        **asked,
        **(config.get("params") or {}),
    }
    seed = given["seed"] if given.get("env_seed") is None else given["env_seed"]
    return {**given, "env_seed": seed}


def _read_rows(rows: Sequence[Mapping[str, Any]], field: str, size: int, where: Place) -> Floats:
    """Return a field of all rows, [n, size]; raise `RecordError` for another size or numbers that are not finite."""
    values = np.array([row[field] for row in rows], dtype=np.float64)
    if values.shape != (len(rows), size) or not np.isfinite(values).all():
        problem = f"`{field}` has the shape {values.shape}, or numbers that are not finite"
        raise RecordError(problem, remedy=f"{size} finite numbers a step.", place=where)
    return values
