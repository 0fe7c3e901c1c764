"""Logs for tests: LeRobot datasets after upstream's format, and MCAP files with JSON messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.errors import RecordError
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.trajectory.batch import Batch

FPS = 20


def write_dataset(folder: Path, episodes: Sequence[Mapping[str, np.ndarray[Any, Any]]], **info: Any) -> Path:
    """A dataset of version 3, as huggingface/lerobot writes it (commit 7427f31, src/lerobot/datasets)."""
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    features = {
        name: {"dtype": str(rows.dtype), "shape": list(rows.shape[1:]) or [1], "names": None}
        for name, rows in episodes[0].items()
    }
    described = {"codebase_version": "v3.0", "robot_type": "arm-x", "fps": FPS, "features": features, **info}
    (folder / "meta" / "info.json").write_text(json.dumps(described))
    tasks = pa.table({"task_index": pa.array([0]), "__index_level_0__": pa.array(["Pick the mug!"])})
    pq.write_table(tasks, folder / "meta" / "tasks.parquet")
    rows = [row for number, episode in enumerate(episodes) for row in _frames(number, episode)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "chunk-000" / "file-000.parquet")
    return folder


def _frames(number: int, episode: Mapping[str, np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    count = len(next(iter(episode.values())))
    return [
        {
            **{name: rows[t].tolist() for name, rows in episode.items()},
            "timestamp": float(np.float32(t / FPS)),
            "frame_index": t,
            "episode_index": number,
            "index": t,
            "task_index": 0,
        }
        for t in range(count)
    ]


def replace_column(folder: Path, name: str, values: pa.Array, file: int = 0) -> None:
    """Replace a column in a file of a dataset's frames."""
    path = folder / "data" / "chunk-000" / f"file-{file:03d}.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), path)


def straight_line(count: int = 30) -> np.ndarray[Any, Any]:
    """Poses that move by 0.1 m/s along x, upright, as x, y, z, w, x, y, z."""
    poses = np.zeros((count, 7), dtype=np.float64)
    poses[:, 0] = 0.1 * np.arange(count) / FPS
    poses[:, 2], poses[:, 3] = 0.2, 1.0
    return poses


def write_mcap(path: Path, messages: Sequence[tuple[str, float, Mapping[str, Any]]]) -> Path:
    """Messages of topics at times in seconds, as JSON."""
    from mcap.writer import Writer

    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        channels: dict[str, int] = {}
        for topic, time_s, message in messages:
            if topic not in channels:
                schema = writer.register_schema(name=f"test.{topic.strip('/')}", encoding="jsonschema", data=b"{}")
                channels[topic] = writer.register_channel(topic, "json", schema)
            at_ns = round(time_s * 1e9)
            writer.add_message(channels[topic], at_ns, json.dumps(message).encode(), at_ns)
        writer.finish()
    return path


def pose_message(x: float, y: float = 0.0, z: float = 0.1, frame: str = "world") -> dict[str, Any]:
    turn = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
    return {"header": {"frame_id": frame}, "pose": {"position": {"x": x, "y": y, "z": z}, "orientation": turn}}


def save_mapping(folder: Path, text: str) -> None:
    (folder / "safevla-log.toml").write_text(text)


def read(path: Path) -> list[Batch | RecordError]:
    return list(open_source(path).read())


def problem(path: Path) -> str:
    """The one error of a source, with its remedy."""
    try:
        (error,) = read(path)
    except RecordError as raised:
        error = raised
    assert isinstance(error, RecordError), error
    return f"{error} {error.remedy}"
