"""The description of a dataset, for people and programs, and the part of the records that it keeps, in float64.

`safevla-log.toml` says which column is what of a record, so that the dataset is a source like any log: what was kept is
judged again, and contacts, which are not kept, are not judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench.errors import RunError
from safevla_bench.judging.judged import Judged
from safevla_bench.specs.spec import Spec
from safevla_bench.stl.formula import format_formula
from safevla_bench.training.labels import HOLDS, UNKNOWN, VIOLATED, scored_specs
from safevla_bench.training.writer import Feature
from safevla_bench.trajectory.batch import Batch

MAPPING = "safevla-log.toml"
_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
_CUT = {"timeout": "timeout", "stopped": "stopped", "invalid_action": "stopped"}
"""Outcome -> the one that a log can have; what did not run to its end must not become a failure that is safe."""


@dataclass(frozen=True, slots=True)
class CameraChoice:
    """The cameras of a dataset, by the host's names, and the height and width of their pictures in pixels."""

    names: tuple[str, ...]
    size: tuple[int, int] = (128, 128)


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """One part of a record: its column, its table in the mapping, and the numbers of one record."""

    column: str
    table: str
    names: tuple[str, ...]
    dtype: str = "float64"
    role: str | None = None
    """Of a tracked body."""

    @property
    def feature(self) -> Feature:
        """The column's feature; of a body, whose poses may be unknown, without statistics."""
        return Feature(self.dtype, (len(self.names),), self.names, is_summarized=self.role is None)


def recorded_parts(episode: Batch, *, with_bodies: bool) -> tuple[RecordedPart, ...]:
    """Return the parts that an episode (a batch of one) has: hand, torques, grip, actions and, on demand, its bodies.

    Each only where it was recorded, but for actions, which are always there.
    """
    parts = tuple(part for part, _ in _read_parts(episode) if with_bodies or part.role is None)
    columns = [part.column for part in parts]
    if repeated := [column for column in columns if columns.count(column) > 1]:
        problem = f"two bodies would have the column {repeated[0]}, as `/` becomes `_` in it"
        raise RunError(problem, remedy="Rename one of them in the simulator's model.")
    return parts


def recorded_columns(episode: Batch, parts: Sequence[RecordedPart]) -> dict[str, NDArray[np.generic]]:
    """Return the numbers of each part before each action, [n - 1, …].

    The numbers are NaN for a body that this episode does not track, and where its pose is lost.
    """
    values = {part.column: numbers for part, numbers in _read_parts(episode)}
    count = int(episode.lengths[0]) - 1
    return {part.column: values.get(part.column, np.full((count, len(part.names)), np.nan)) for part in parts}


def _read_parts(episode: Batch) -> Iterator[tuple[RecordedPart, NDArray[np.generic]]]:
    """Yield each part of an episode, and its numbers before each action."""
    if episode.eef_pos_m.present[0]:
        place, rotation = episode.eef_pos_m.episode_rows(0)[:-1], episode.eef_quat_wxyz.episode_rows(0)[:-1]
        pose = np.hstack([place, rotation]) if len(rotation) else place
        yield RecordedPart("record.eef_pose", "eef", _POSE[: pose.shape[1]]), pose
    torque, action = episode.joint_torque_nm.episode_rows(0)[:-1], episode.action.episode_rows(0)
    if (joints := int(episode.joint_torque_nm.width[0])) > 0:
        yield RecordedPart("record.joint_torque_nm", "torque", tuple(f"joint_{k}" for k in range(joints))), torque
    if episode.gripper_contact.present[0]:
        grip = RecordedPart("record.gripper_contact", "gripper", ("gripper_contact",), "bool")
        yield grip, episode.gripping[:-1]
    numbers = tuple(f"action_{k}" for k in range(int(episode.action.width[0])))
    yield RecordedPart("record.action", "action", numbers), action
    places, rotations, validity = (
        dict(zip(bodies.tolist(), values[:-1].swapaxes(0, 1), strict=True))
        for bodies, values in (
            poses.episode_poses(0) for poses in (episode.body_pos_m, episode.body_quat_wxyz, episode.pose_valid)
        )
    )
    for body, place in places.items():
        name = episode.body_label(body)
        pose = np.hstack([place, rotations[body]]) if body in rotations else place.copy()
        if body in validity:
            pose[validity[body][:, 0] == 0] = np.nan
        column, table = f"record.body.{name.replace('/', '_')}", f"bodies.{json.dumps(name)}"
        yield RecordedPart(column, table, _POSE[: pose.shape[1]], role=episode.body_roles(0)[name]), pose


def has_one_task(judged: Judged) -> bool:
    """Return whether all episodes are of one task, so that they track the same bodies."""
    return len({(header.benchmark, header.task_id) for header in judged.headers}) == 1


def format_mapping(judged: Judged, parts: Sequence[RecordedPart], outcomes: Mapping[str, str]) -> str:
    """Return the mapping by which `safevla` reads the dataset.

    Benchmark, task and target stand there only if all episodes are of one task, the policy only if all have the same.
    `outcomes` are those of its episodes, by their names: of them, those that did not run to their end.
    """
    header = judged.headers[0]
    policies = set(judged.scores.policy)
    episode: list[str] = []
    if has_one_task(judged):
        episode += [f"benchmark = {json.dumps(header.benchmark)}", f"task = {json.dumps(header.task_id)}"]
        if header.target_object in {
            json.loads(part.table.removeprefix("bodies.")) for part in parts if part.role == "target"
        }:
            episode.append(f"target = {json.dumps(header.target_object)}")
    if len(policies) == 1 and (policy := policies.pop()):
        episode.append(f"policy = {json.dumps(policy)}")
    cut = {name: _CUT[outcome] for name, outcome in outcomes.items() if outcome in _CUT}
    if cut:
        episode.append("outcomes = { " + ", ".join(f'"{name}" = "{outcome}"' for name, outcome in cut.items()) + " }")
    opening = "# Which column is what of a record: `safevla score` of this folder reads it."
    tables = ["\n".join([opening, "[episode]", *episode])]
    for part in parts:
        lines = [f"[{part.table}]", f'from = "{part.column}"']
        if part.names == _POSE:
            lines.append('quaternion_order = "wxyz"')
        if part.role is not None:
            lines.append(f'role = "{part.role}"')
        if part.table == "torque" and len(header.torque_limit_nm) == len(part.names):
            lines.append(f"limits_nm = {[float(limit) for limit in header.torque_limit_nm]}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables) + "\n"


_COLUMNS = {
    "observation.images.": "picture of a camera before the action",
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

EPISODE_COLUMNS = {
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
"""What columns of meta/episodes hold."""


def describe_dataset(
    judged: Judged, cameras: CameraChoice | None, left_out: Sequence[str], state: Mapping[str, object]
) -> dict[str, object]:
    """Return what `meta/safevla.json` holds: clauses of the scored tier with their limits, columns, what judged them.

    `state` describes the numbers of `observation.state`; `left_out` says what was left out, and why.
    """
    return {
        "kind": "safevla-dataset",
        "schema_version": 1,
        "clauses": [_describe_clause(judged.library[spec.spec_id]) for spec in scored_specs(judged.scores)],
        "columns": _COLUMNS,
        "observation_state": dict(state),
        "cameras": None if cameras is None else {"names": list(cameras.names), "height_width": list(cameras.size)},
        "left_out": list(left_out),
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
    described = [column for column in episodes if column.name.startswith("safety/") or column.name in EPISODE_COLUMNS]
    parts = {"frames": ("data/*/*.parquet", frames), "episodes": ("meta/episodes/*/*.parquet", described)}
    return {
        "@context": json.loads(context),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": about,
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": f"{part}-files",
                "name": f"{part}-files",
                "encodingFormat": "application/x-parquet",
                "includes": pattern,
            }
            for part, (pattern, _) in parts.items()
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": part,
                "name": part,
                "field": [_describe_field(part, column) for column in columns],
            }
            for part, (_, columns) in parts.items()
        ],
    }


def _describe_field(part: str, column: pa.Field) -> dict[str, Any]:
    is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    is_picture = pa.types.is_struct(column.type)
    extract = {"fileSet": {"@id": f"{part}-files"}, "extract": {"column": column.name}}
    meanings = {**_COLUMNS, **EPISODE_COLUMNS}  # a key that ends in `.` or `/` is of all columns that begin so
    meaning = next((meanings[key] for key in meanings if column.name == key or _is_below(column.name, key)), None)
    return {
        "@type": "cr:Field",
        "@id": f"{part}/{column.name}",
        "name": column.name,
        **({"description": meaning} if meaning else {}),
        "dataType": "sc:ImageObject" if is_picture else _data_type(column.type.value_type if is_list else column.type),
        **({"repeated": True} if is_list else {}),
        "source": {**extract, "transform": {"jsonPath": "bytes"}} if is_picture else extract,
    }


def _is_below(name: str, key: str) -> bool:
    return key[-1] in "./" and name.startswith(key)


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    return "sc:Text" if pa.types.is_string(kind) else "sc:Integer" if pa.types.is_integer(kind) else "sc:Float"


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
