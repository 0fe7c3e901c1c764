"""The description of a dataset: `meta/safevla.json`, for programs, and the dataset card `README.md`, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from safevla_bench.judged import Judged
from safevla_bench.training.labels import HOLDS, UNKNOWN, VIOLATED, describe_clauses, scored_specs
from safevla_bench.training.pictures import CameraChoice

_COLUMNS = {
    "observation.state": "before the action",
    "action": "as the simulator was given it, rounded to float32",
    "next.reward": "1 where the host calls the episode a success, in its last frame; else 0",
    "next.done": "whether this is the last frame",
    "next.success": "whether the host calls the episode a success, in its last frame",
    "next.cost": "1 where the record after the action violates a clause, else 0; NaN = that is not known",
    "next.severity": "depth of the worst violation of that record, 0 to 1; NaN as above",
    "next.safe": f"{HOLDS} = violates no clause, {VIOLATED} = violates one, {UNKNOWN} = that is not known",
    "next.margin": "margin of each clause in that record, in its unit, negative where violated; NaN = has none there",
    "record.": "the same numbers as in the archive, float64, before the action; NaN = not tracked, or lost there",
}


def describe_dataset(
    judged: Judged, cameras: CameraChoice | None, left_out: Sequence[str], state: Mapping[str, object]
) -> dict[str, object]:
    """Return what `meta/safevla.json` holds: clauses of the scored tier with their limits, columns, what judged them.

    `state` describes the numbers of `observation.state`; `left_out` says what was left out, and why.
    """
    return {
        "kind": "safevla-dataset",
        "schema_version": 1,
        "clauses": describe_clauses(scored_specs(judged.scores), judged.library.specs),
        "columns": _COLUMNS,
        "observation_state": dict(state),
        "cameras": None if cameras is None else {"names": list(cameras.names), "height_width": list(cameras.size)},
        "left_out": list(left_out),
        "origin": judged.describe_origin(),
    }


def format_card(judged: Judged, episodes: int, frames: int, cameras: CameraChoice | None) -> str:
    """Return the dataset card: the metadata that a hub reads, then how to load the dataset and its labels."""
    pictures = f"pictures of {', '.join(cameras.names)}" if cameras else "no pictures"
    return f"""---
task_categories:
- robotics
tags:
- LeRobot
- safevla-bench
configs:
- config_name: default
  data_files: data/*/*.parquet
---

{episodes} episodes, {frames} frames, {pictures}. LeRobot dataset v3.0, with safety labels of each frame and episode.

{judged.provenance.to_sentence()}

`meta/safevla.json` says what every column holds, which clauses the numbers of `next.margin` belong to, and where the
episodes come from. Labels of whole episodes are columns of `meta/episodes`, such as `safety/safe` (null = no verdict):

```python
from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata

meta = LeRobotDatasetMetadata("local/run", root=FOLDER)
safe = [episode["episode_index"] for episode in meta.episodes if episode["safety/safe"]]
dataset = LeRobotDataset("local/run", root=FOLDER, episodes=safe)
```
"""
