"""The description of a dataset, for people and programs: what its columns hold, its clauses, and where it is from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import pyarrow as pa

from safevla_bench.judging.judged import Judged
from safevla_bench.specs.spec import Spec
from safevla_bench.stl.formula import format_formula
from safevla_bench.training.labels import HOLDS, UNKNOWN, VIOLATED, scored_specs


@dataclass(frozen=True, slots=True)
class CameraChoice:
    """The cameras of a dataset, by the host's names, and the height and width of their pictures in pixels."""

    names: tuple[str, ...]
    size: tuple[int, int] = (128, 128)


_COLUMNS = {
    "observation.images.": "picture of a camera before the action",
    "observation.state": "before the action, as the host observes it, with its fingers; without them, of the recorded "
    "grip site, whose axes may not be those of the host's observations",
    "action": "as the simulator was given it, rounded to float32",
    "next.reward": "1 where the host calls the episode a success, in its last frame; else 0",
    "next.done": "whether this is the last frame",
    "next.success": "whether the host calls the episode a success, in its last frame",
    "next.cost": "1 where the record after the action violates a clause, else 0; NaN = that is not known",
    "next.severity": "depth of the worst violation of that record, 0 to 1; NaN as above",
    "next.safe": f"{HOLDS} = violates no clause, {VIOLATED} = violates one, {UNKNOWN} = that is not known",
    "next.margin": "margin of each clause in that record, in its unit, negative where violated; NaN = has none there",
    "episode_index": "number of the episode",
    "tasks": "its instruction",
    "length": "number of its frames",
    "safety/success": "whether the host calls it a success",
    "safety/safe": "whether it violates no clause; null = no verdict, and `safety/no_verdict` says why",
    "safety/unsafe_success": "whether it succeeded and violated a clause; null = not known",
    "safety/vsi": "depth of its worst violation, 0 to 1; null = no verdict",
    "safety/first_violation_step": "the first record that violates a clause; null = none does",
    "safety/violating_records": "number of records that violate a clause; null = not known",
    "safety/robustness/": "robustness of a clause over the episode, in its unit, negative where violated; null = none",
    "safety/": "of the episode as it was recorded and judged; null = not known",
}
"""Column of frames or of meta/episodes -> what it holds; a key that ends in `.` or `/` is of all that begin so."""


def describe_dataset(judged: Judged, cameras: CameraChoice | None, left_out: Sequence[str]) -> dict[str, object]:
    """Return what `meta/safevla.json` holds: clauses of the scored tier with their limits, columns, what judged them.

    `left_out` says what was left out, and why.
    """
    return {
        "kind": "safevla-dataset",
        "schema_version": 1,
        "clauses": [_describe_clause(judged.library[spec.spec_id]) for spec in scored_specs(judged.scores)],
        "columns": _COLUMNS,
        "cameras": None if cameras is None else {"names": cameras.names, "height_width": cameras.size},
        "left_out": left_out,
        "origin": judged.describe_origin(),
    }


def _describe_clause(spec: Spec) -> dict[str, object]:
    limits = {"threshold": spec.threshold, "severe": spec.severe, "unit": spec.unit, "axis": spec.axis}
    return {"id": spec.spec_id, "formula": format_formula(spec.formula), **limits}


def describe_as_croissant(name: str, about: str, frames: pa.Schema, episodes: pa.Schema) -> dict[str, object]:
    """Return what `croissant.json` holds of a dataset: the columns of its frames, and those of its episodes' labels.

    Its context is that of Croissant 1.0 (mlcommons.org/croissant), whole: readers warn of any other.
    """
    context = resources.files(__package__).joinpath("croissant_context.json").read_bytes()
    labels = [column for column in episodes if _find_meaning(column.name)]
    parts = {"frames": ("data/*/*.parquet", frames), "episodes": ("meta/episodes/*/*.parquet", labels)}
    return {
        "@context": json.loads(context),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": about,
        "distribution": [
            {
                **_name_node("cr:FileSet", f"{part}-files", f"{part}-files"),
                "encodingFormat": "application/x-parquet",
                "includes": pattern,
            }
            for part, (pattern, _) in parts.items()
        ],
        "recordSet": [
            {**_name_node("cr:RecordSet", part, part), "field": [_describe_field(part, column) for column in columns]}
            for part, (_, columns) in parts.items()
        ],
    }


def _name_node(kind: str, key: str, name: str) -> dict[str, str]:
    return {"@type": kind, "@id": key, "name": name}


def _find_meaning(name: str) -> str | None:
    keys = (key for key in _COLUMNS if name == key or (key[-1] in "./" and name.startswith(key)))
    return next((_COLUMNS[key] for key in keys), None)


_DATA_TYPES: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pa.types.is_boolean, "sc:Boolean"),
    (pa.types.is_string, "sc:Text"),
    (pa.types.is_integer, "sc:Integer"),
    (pa.types.is_floating, "sc:Float"),
    (pa.types.is_struct, "sc:ImageObject"),
)


def _describe_field(part: str, column: pa.Field) -> dict[str, object]:
    is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    kind = column.type.value_type if is_list else column.type
    source: dict[str, object] = {"fileSet": {"@id": f"{part}-files"}, "extract": {"column": column.name}}
    return {
        **_name_node("cr:Field", f"{part}/{column.name}", column.name),
        **({"description": meaning} if (meaning := _find_meaning(column.name)) else {}),
        "dataType": next(name for is_kind, name in _DATA_TYPES if is_kind(kind)),
        **({"repeated": True} if is_list else {}),
        "source": {**source, "transform": {"jsonPath": "bytes"}} if pa.types.is_struct(kind) else source,
    }


def format_card(about: str) -> str:
    """Return the dataset card: the metadata that a hub reads, then how to load the dataset and its labels."""
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

{about} LeRobot dataset v3.0, with safety labels of each frame and episode.

`meta/safevla.json` says what every column holds, which clauses the numbers of `next.margin` belong to, and where the
episodes come from. Labels of whole episodes are columns of `meta/episodes`, such as `safety/safe` (null = no verdict):

```python
from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata

meta = LeRobotDatasetMetadata("local/run", root=FOLDER)
safe = [episode["episode_index"] for episode in meta.episodes if episode["safety/safe"]]
dataset = LeRobotDataset("local/run", root=FOLDER, episodes=safe)
```
"""
