"""LeRobot datasets (version 3, and 2): actions and instructions, but not where in a simulator an episode starts.

meta/info.json                   `codebase_version`; what is made of several files is found by their place
meta/tasks.parquet | .jsonl      task_index -> instruction
data/chunk-NNN/*.parquet         a row a frame: episode_index, frame_index, task_index, action
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.errors import Place, RecordError
from safevla_bench.foreign.take import RecordedActions

INFO = Path("meta", "info.json")
_COLUMNS = ["episode_index", "frame_index", "task_index", "action"]


def read_dataset(folder: Path) -> list[RecordedActions]:
    """Return the episodes of a dataset, by their index.

    Raises:
        RecordError: a file cannot be read, or lacks what an episode needs.
    """
    files = sorted(folder.glob("data/chunk-*/*.parquet"))
    if not files:
        remedy = "Episodes are in data/chunk-000/file-000.parquet and on; download the dataset's data, not only meta."
        raise RecordError("there are no episodes", remedy=remedy, place=Place(file=str(folder)))
    try:
        instructions = dict(_read_instructions(folder))
        table = pa.concat_tables([pq.read_table(file, columns=_COLUMNS) for file in files])
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        remedy = f"A LeRobot dataset of version 3 has frames with {', '.join(_COLUMNS)}."
        raise RecordError(f"cannot be read: {error}", remedy=remedy, place=Place(file=str(folder))) from None
    return list(_split_episodes(folder, table, instructions))


def _split_episodes(folder: Path, table: pa.Table, instructions: dict[int, str]) -> Iterator[RecordedActions]:
    ordered = table.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])
    episode = ordered["episode_index"].to_numpy()
    task = ordered["task_index"].to_numpy()
    actions = np.array(ordered["action"].to_pylist(), dtype=np.float64)
    numbers, first = np.unique(episode, return_index=True)
    for number, rows in zip(numbers, np.split(np.arange(len(episode)), first[1:]), strict=True):
        yield RecordedActions(
            name=f"episode_{number:06d}",
            source=folder.name,
            actions=actions[rows],
            instruction=instructions.get(int(task[rows[0]])),
        )


def _read_instructions(folder: Path) -> Iterator[tuple[int, str]]:
    """Index and text of each task; pandas keeps the text in the table's index, under a name of its own."""
    table = folder / "meta" / "tasks.parquet"
    if table.is_file():
        rows = pq.read_table(table).to_pylist()
    else:
        lines = (folder / "meta" / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    for row in rows:
        yield int(row["task_index"]), next(value for value in row.values() if isinstance(value, str))
