"""Export of a judged run as a LeRobot dataset: observations and actions, and safety labels of each frame and episode.

Frame k holds the observation of record k and the action that followed. Its columns that begin with `next.` hold the
labels of record k + 1. An episode of n records has n - 1 frames, since no action follows the last record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench import hosts
from safevla_bench.errors import HostError, Place, RecordError, RunError, SafevlaError
from safevla_bench.files import read_shipped
from safevla_bench.interface.environment import Host
from safevla_bench.interface.stage import Camera, Stage
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.scores import EpisodeScore
from safevla_bench.pictures.drawing import can_film
from safevla_bench.pictures.rendering import open_stage, render_checked
from safevla_bench.plugins import install_command
from safevla_bench.policies.servers.transforms import to_axis_angle
from safevla_bench.sources.runs.folder import dump_json
from safevla_bench.stl.formula import format_formula
from safevla_bench.training.labels import RecordLabels, label_records, scored_specs
from safevla_bench.training.writer import DatasetWriter, FrameColumn, FrameFeature, new_dataset
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.version import __version__
from safevla_recorder.channels import CHUNK_STEP, POLICY_ACTION

_STATE_NAMES = ("eef_x_m", "eef_y_m", "eef_z_m", "eef_axis_angle_x", "eef_axis_angle_y", "eef_axis_angle_z")
_STATE = "observation.state"
# Tolerance [control steps] of the check that records are evenly spaced.
# The check expects the time of record k at k control steps after record 0.
_EVEN_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class CameraChoice:
    """The cameras of a dataset, by the host's names, and the height and width of their pictures in pixels. If `video`,
    pictures are stored as films, which lose some detail and need an even height and width.
    """

    names: tuple[str, ...]
    size: tuple[int, int] = (128, 128)
    video: bool = False


@dataclass(frozen=True, slots=True)
class FrameWeighting:
    """Parameters of two columns: `next.weight` is exp(margin / `temperature`), and `next.cost_to_go` multiplies a cost
    by `discount` for each control step until the cost.
    """

    temperature: float = 1.0
    discount: float = 0.99


@dataclass(frozen=True)
class DatasetSummary:
    """Counts of the written episodes and frames."""

    episodes: int
    frames: int


def export_dataset(
    judged: Judged,
    out: Path,
    cameras: CameraChoice | None = None,
    observer: Callable[[int, str], None] = lambda done, what: None,
    on_skip: Callable[[SafevlaError], None] = lambda reason: None,
    facts: Mapping[str, str | None] = {},
    weighting: FrameWeighting = FrameWeighting(),
    pairs: bytes | None = None,
) -> DatasetSummary:
    """Write the judged episodes as a LeRobot dataset of version 3.0 into a new folder, which appears once it is
    complete.

    The episodes are read again, some at a time. `cameras` says which pictures to render from the recorded states; None
    = no pictures. `observer` is called with the number of finished episodes and the id of the next episode. `on_skip`
    is called with the reason for each episode that is left out: it has no actions, is unevenly spaced in time, or
    cannot be rendered. `facts` are the dataset's `license` (an identifier of the Hugging Face hub; by default
    "unknown"), `version` and `citation`. `pairs` is the content of `meta/pairs.jsonl`, an index of preference pairs of
    these episodes; if it is given, frames also hold the origin of each action.

    Raises:
        RunError: there is no episode to write, episodes have different columns, their control step does not give a
            whole number of frames per second, the folder is in use, or a source has changed since it was judged. With
            `cameras`, also if a source names no host, or, for films, if their library is missing or a side is odd.
        SafevlaError: with `cameras`, if a camera is unknown, a host cannot be made, or no episode can be rendered.
        RecordError: every episode lacks actions or is unevenly spaced in time.
        FileError: the folder cannot be written.
    """
    if cameras is not None and cameras.video and not can_film():
        raise RunError("films need the extra `video`", remedy=install_command("video"))
    if cameras is not None and cameras.video and any(side % 2 for side in cameras.size):
        raise RunError("the sides of a film must be even numbers", remedy="Choose another --image-size.")
    # If no episode can be written, `last_error` is raised: the error of the last episode that was left out.
    last_error: SafevlaError = RunError("there is no episode to write", remedy="Name sources with episodes.")
    left_out: list[str] = []
    robot = judged.headers[0].embodiment if judged.headers else None
    with new_dataset(out, fps=_find_frame_rate(judged), robot=robot) as dataset:
        folders_and_hosts = _list_folders_and_hosts(judged) if cameras else []
        for number, (episode, labels) in enumerate(_read_labeled_episodes(judged)):
            observer(number, episode.headers[0].episode_id)
            try:
                # The host that recorded the run makes the pictures and the state. Without `cameras`, both are left out.
                observed = _observed_columns(episode, *folders_and_hosts[number], cameras) if cameras else {}
                origins = {} if pairs is None else _origin_columns(episode)
                # The observed state replaces the recorded state, if the host can observe the state.
                columns = {**_recorded_columns(episode), **origins, **observed}
            except (HostError, RunError, RecordError) as error:
                last_error = error.with_place(Place(episode=episode.headers[0].episode_id))
                on_skip(last_error)
                left_out.append(str(last_error))
                continue
            _add_episode(dataset, judged, number, columns, labels, weighting)
        if not dataset.episodes:
            raise last_error
        if pairs is not None:
            dataset.write_file("meta/pairs.jsonl", pairs)
        # Facts that are None or empty are left out, so that their defaults apply.
        named_facts = {"name": out.resolve().name, **{name: text for name, text in facts.items() if text}}
        _describe_dataset(dataset, judged, named_facts, cameras, left_out, weighting)
    return DatasetSummary(dataset.episodes, dataset.frames)


def _find_frame_rate(judged: Judged) -> int:
    # Returns the frames per second of all episodes, one per control step; 1 if there are no episodes.
    steps_s = {header.dt for header in judged.headers}
    # There is one frame per control step, so the rate is the reciprocal of the step. All steps must give the same rate.
    rate = round(1 / max(steps_s, default=1))
    if any(abs(rate * step_s - 1) > 1e-6 for step_s in steps_s):  # smaller differences are rounding errors
        problem = f"no whole number of frames per second fits control steps of {', '.join(map(str, sorted(steps_s)))} s"
        raise RunError(problem, remedy="LeRobot needs a whole number: export episodes with one suitable control step.")
    return rate


def _read_labeled_episodes(judged: Judged) -> Iterator[tuple[Batch, RecordLabels]]:
    # Yields a one-episode batch and the labels of its records for each judged episode, in the order of `judged`.
    first_index = 0
    for batch in judged.records.read_chunks():
        # The verdicts on this batch's episodes, which are consecutive among the judged episodes.
        scores = judged.scores.select_episodes(np.arange(first_index, first_index + len(batch)))
        labels = label_records(batch, scores, judged.ruleset)
        for index, (start, end) in enumerate(pairwise(batch.starts.tolist())):
            yield select_episodes(batch, [index]), labels.select_records(start, end)
        first_index += len(batch)


def _list_folders_and_hosts(judged: Judged) -> list[tuple[Path, Host]]:
    # Returns the run's folder and the host of each judged episode.
    folders_and_hosts: list[tuple[Path, Host]] = []
    for source, indices in judged.records.by_source():
        host = source.description.get("host")
        if not isinstance(host, str):
            remedy = "Name the run folder that `safevla eval` made, or leave --cameras out."
            problem = "pictures need the host that recorded the run, but the run names no host"
            raise RunError(problem, remedy=remedy, place=Place(file=str(source.path)))
        # All episodes of one source have the same folder and host.
        folders_and_hosts += [(source.path, hosts.make_host(host))] * len(indices)
    return folders_and_hosts


# The columns of an episode


def _recorded_columns(episode: Batch) -> dict[str, FrameColumn]:
    # Returns the columns of the end effector's state and of the actions.
    # Raises `RecordError` without actions or for unevenly spaced records, and the errors of `require_one_arm`.
    action = episode.action.episode_rows(0)
    if not len(action):
        raise RecordError("the record holds no actions", remedy="Export only episodes with `action`.")
    times_s = episode.channel("time_s").values.ravel()  # empty if the record holds no time stamps
    # The time of each record in control steps; it should be the record's index.
    elapsed_steps = (times_s - times_s[:1]) / episode.dt_s[0]
    if np.abs(elapsed_steps - np.arange(len(times_s))).max(initial=0.0) > _EVEN_TOLERANCE:
        remedy = "LeRobot needs evenly spaced frames. Export episodes without gaps."
        raise RecordError("the records are unevenly spaced in time", remedy=remedy)
    episode.require_one_arm()
    # The last record has no action, so it has no frame.
    state = episode.eef_pos_m.episode_rows(0)[:-1]
    if episode.eef_quat_wxyz.present[0]:
        rotations = [to_axis_angle(quat) for quat in episode.eef_quat_wxyz.episode_rows(0)[:-1]]
        state = np.hstack([state, np.array(rotations)])
    names = tuple(f"action_{k}" for k in range(action.shape[1]))
    return {_STATE: _state_column(state), "action": FrameColumn(FrameFeature("float32", (len(names),), names), action)}


def _origin_columns(episode: Batch) -> dict[str, FrameColumn]:
    # Returns two columns: the policy's actions before any filter, and each action's chunk with the step in that chunk.
    policy_action, chunk_step = (episode.channel(name).episode_rows(0) for name in (POLICY_ACTION, CHUNK_STEP))
    column = _recorded_columns(episode)["action"]  # the actions that were executed
    if not len(chunk_step):
        chunk_step = np.full((len(column.values), 2), -1)  # -1 means that the action is not from a chunk
    if len(policy_action):  # if the channel is missing, no filter changed the actions
        column = replace(column, values=policy_action)
    chunk_feature = FrameFeature("int64", (2,), ("chunk", "step"), is_summarized=False)
    return {POLICY_ACTION: column, CHUNK_STEP: FrameColumn(chunk_feature, chunk_step)}


def _state_column(state: NDArray[np.float64]) -> FrameColumn:
    # Returns the column of `state`, [n, width]. The state may lack the fingers, or the fingers and the rotation.
    # A narrower state has no fingers, because `range` of a negative number is empty.
    fingers = tuple(f"finger_{k + 1}_m" for k in range(state.shape[1] - len(_STATE_NAMES)))
    names = (*_STATE_NAMES, *fingers)[: state.shape[1]]
    return FrameColumn(FrameFeature("float32", (len(names),), names), state)


def _add_episode(
    dataset: DatasetWriter,
    judged: Judged,
    number: int,
    columns: dict[str, FrameColumn],
    labels: RecordLabels,
    weighting: FrameWeighting,
) -> None:
    # Adds the columns of labels to `columns`, and writes the judged episode with the index `number`.
    # `labels` have one row for each of the episode's `n` records, and `columns` one for each of its n - 1 frames.
    header, score = judged.headers[number], judged.scores.episode(number)
    spec_ids = tuple(spec.spec_id for spec in scored_specs(judged.scores))
    last_frame = len(labels.severity) - 2  # the last record has no frame
    # True in the last frame only, [n - 1]; LeRobot marks the end and the success there.
    is_last = np.arange(last_frame + 1) == last_frame
    nullable_number = FrameFeature("float32", is_summarized=False)  # may be NaN (unknown), so it has no statistics
    columns |= {
        "next.reward": FrameColumn(FrameFeature("float32"), is_last & score.success),
        "next.done": FrameColumn(FrameFeature("bool"), is_last),
        "next.success": FrameColumn(FrameFeature("bool"), is_last & score.success),
        # Labels begin with record 1, because frame k has the labels of record k + 1.
        "next.cost": FrameColumn(nullable_number, labels.cost[1:]),
        "next.severity": FrameColumn(nullable_number, labels.severity[1:]),
        # The dtype is int64, because Rerun's reader of datasets ignores int8.
        "next.safe": FrameColumn(FrameFeature("int64"), labels.safe[1:]),
        "next.weight": FrameColumn(nullable_number, labels.weigh_records(weighting.temperature)[1:]),
    }
    if spec_ids:
        number_per_spec = FrameFeature("float32", (len(spec_ids),), spec_ids, is_summarized=False)
        columns["next.margin"] = FrameColumn(number_per_spec, labels.margin[1:])
        columns["next.cost_to_go"] = FrameColumn(number_per_spec, labels.costs_to_go(weighting.discount)[1:])
    # The number of violating records is unknown if any record's label is unknown (NaN).
    violating_count = None if np.isnan(labels.severity).any() else int(labels.violating.any(axis=1).sum())
    instruction = header.instruction or f"{header.benchmark}/{header.task_id}"
    dataset.add_episode(instruction, columns, _episode_labels(score, violating_count))


def _episode_labels(score: EpisodeScore, violating_count: int | None) -> dict[str, pa.Scalar]:
    # Returns an episode's labels by column name, with Arrow types that do not depend on the values.
    # `violating_count` is the number of records that violate a clause; None = unknown.
    text, boolean, number = pa.string(), pa.bool_(), pa.float64()
    names = ("episode_id", "policy", "benchmark", "task_id", "outcome", "no_verdict")
    labels: dict[str, tuple[object, pa.DataType]] = {
        **{name: (getattr(score, name), text) for name in names},
        "success": (score.success, boolean),
        "safe": (score.safe, boolean),
        "unsafe_success": (score.sbu, boolean),
        "violated_specs": (list(score.violated_specs), pa.list_(text)),
        "vsi": (score.vsi, number),
        "first_violation_step": (score.first_violation_step, pa.int64()),
        "violating_records": (violating_count, pa.int64()),
        **{f"robustness/{spec}": (rho, number) for spec, rho in score.robustness.items()},
    }
    # None becomes a null of the column's type.
    return {f"safety/{name}": pa.scalar(value, kind) for name, (value, kind) in labels.items()}


# Pictures and proprioception, rendered again from the recorded states of one episode


def _observed_columns(record: Batch, folder: Path, host: Host, choice: CameraChoice) -> dict[str, FrameColumn]:
    """Return columns with the pictures before each action and, if the host can observe it, the state. `record` holds
    one episode. The state has the position [3] in m, the rotation [3] as in robosuite's `quat2axisangle`, and the
    fingers [G]. Position and rotation are in the frame of the host's observations. Raises the errors of `open_stage`.
    Also raises `HostError` if only some states can be observed, and `SafevlaError` for an unknown camera.
    """
    feature = FrameFeature("video" if choice.video else "image", (*choice.size, 3), ("height", "width", "channels"))
    with closing(open_stage(folder, host, record)) as stage:
        columns = {
            f"observation.images.{name}": FrameColumn(feature, _render_camera(stage, record, name, choice.size))
            for name in choice.names
        }
        states = [read_state(stage, index) for index in range(int(record.lengths[0]) - 1)]
    known_states = [state for state in states if state is not None]
    if len(known_states) not in (0, len(states)):  # recorded states are in another frame
        problem = f"the host observes the state in only {len(known_states)} of {len(states)} records"
        raise HostError(problem, remedy="Fix the host: `Stage.observe` returns None in all records or in none.")
    return {**columns, _STATE: _state_column(np.array(known_states))} if known_states else columns


def read_state(stage: Stage, record: int) -> NDArray[np.float64] | None:
    """Return a record's proprioception, [6 + G], as in `observation.state`; None if the host cannot provide it."""
    observation = stage.observe(record)
    if observation is None:
        return None
    # Position [3], rotation [3], fingers [G].
    return np.concatenate([observation.eef_pos_m, to_axis_angle(observation.eef_quat_wxyz), observation.gripper_qpos])


def _render_camera(stage: Stage, record: Batch, name: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    # Returns the pictures [n - 1, H, W, 3] of all `n` records except the last.
    camera, indices = Camera(name), range(int(record.lengths[0]) - 1)
    try:
        return np.stack([render_checked(stage, record, index, camera, size).image for index in indices])
    except KeyError as error:  # the text of MuJoCo's error lists the cameras
        problem = f"there is no camera {name!r}: {error.args[0]}"
        raise SafevlaError(problem, remedy="Choose another camera with --cameras.") from None


# The description of the dataset, for people and programs


def _describe_dataset(
    dataset: DatasetWriter,
    judged: Judged,
    facts: Mapping[str, str],
    cameras: CameraChoice | None,
    left_out: Sequence[str],
    weighting: FrameWeighting,
) -> None:
    # Writes the files meta/safevla.json, croissant.json and README.md. `facts` are the dataset's name and, if given,
    # its license, version and citation. `left_out` has the reason for each episode that was left out.
    # `_FIXED` and `_COLUMNS` are texts that are the same in all datasets.
    about = f"{dataset.episodes} episodes, {dataset.frames} frames. {judged.provenance.to_sentence()}"
    # The scores only name the specifications; the library has their formulas.
    scored = [judged.library[spec.spec_id] for spec in scored_specs(judged.scores)]
    document = {
        "kind": "safevla-dataset",
        "schema_version": 2,
        "clauses": [
            {"id": spec.spec_id, "formula": format_formula(spec.formula)}
            | {name: getattr(spec, name) for name in ("threshold", "severe", "unit", "axis")}
            for spec in scored
        ],
        "columns": _COLUMNS,
        "weighting": asdict(weighting),
        "cameras": None if cameras is None else {"names": cameras.names, "height_width": cameras.size},
        "left_out": left_out,
        "origin": judged.describe_origin(),
    }
    dataset.write_file("meta/safevla.json", dump_json(document))
    license_name = facts.get("license", "unknown")
    # Facts for the catalog of data sets, in Croissant's terms.
    published = {
        "name": facts["name"],
        "description": about,
        "license": license_name,
        "version": facts.get("version", "1.0.0"),
        **({"datePublished": judged.started[:10]} if judged.started else {}),
        "citeAs": facts.get("citation", f"{facts['name']}, recorded and judged with safevla-bench {__version__}"),
    }
    dataset.write_file("croissant.json", dump_json(_describe_as_croissant(published, dataset.schema)))
    # The library `datasets` caches frames by the folder's name and this description, not by the content of the files.
    config = {**_FIXED["config"], "description": f"data/chunk-000/file-000.parquet, sha256 {dataset.close_frames()}"}
    # The front matter is YAML, and JSON is valid YAML.
    front_matter = dump_json({**_FIXED["front"], "configs": [config], "license": license_name}).decode()
    readme = f"---\n{front_matter}---\n\n# {facts['name']}\n\n{about}\n\n{_FIXED['text']}"
    dataset.write_file("README.md", readme.encode())


# The fixed parts of the description. A column name that ends in `.` or `/` is a prefix of column names.
_FIXED = read_shipped(__package__, "dataset.toml", dict[str, Any])
_COLUMNS: Mapping[str, str] = _FIXED["columns"]
_DATA_TYPES: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pa.types.is_boolean, "sc:Boolean"),
    (pa.types.is_integer, "sc:Integer"),
    (pa.types.is_floating, "sc:Float"),
    (pa.types.is_struct, "sc:ImageObject"),
)


def _describe_as_croissant(published: Mapping[str, str], frames: pa.Schema) -> dict[str, object]:
    # Returns the description of the dataset in the format Croissant (docs.mlcommons.org/croissant).
    # `published` are facts such as name and license, and `frames` are the columns of the frames.
    # `_FIXED` has the parts that all datasets share. The context maps Croissant's terms to their definitions.
    context = json.loads(resources.files(__package__).joinpath("croissant_context.json").read_bytes())
    records = [{**_FIXED["record_set"], "field": [_describe_field(column) for column in frames]}]
    rest = {"distribution": _FIXED["distribution"], "recordSet": records}
    return {"@context": context, **_FIXED["croissant"], **published, **rest}


def _describe_field(column: pa.Field) -> dict[str, object]:
    # Returns Croissant's description of a column of frames.
    is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    value_type = column.type.value_type if is_list else column.type
    source: dict[str, object] = {"fileSet": {"@id": "frames-files"}, "extract": {"column": column.name}}
    if pa.types.is_struct(value_type):  # a picture: a struct of its bytes and its path
        source["transform"] = {"jsonPath": "bytes"}
    # A key of `_COLUMNS` is a column's name, or the part of the name before a dot.
    # A dot is added to the name and to the key, so that the key `next.cost` does not match `next.cost_to_go`.
    keys = [key for key in _COLUMNS if f"{column.name}.".startswith(f"{key.rstrip('.')}.")]
    return {
        "@type": "cr:Field",
        "@id": f"frames/{column.name}",
        "name": column.name,
        **({"description": _COLUMNS[keys[0]]} if keys else {}),
        # The first name in `_DATA_TYPES` whose test accepts the type; one test accepts the type of every column.
        "dataType": next(name for is_kind, name in _DATA_TYPES if is_kind(value_type)),
        **({"repeated": True} if is_list else {}),
        "source": source,
    }
