"""A judged run as a LeRobot dataset: what was seen and done, and safety labels of each frame and each episode.

Frame k holds record k, the action that followed, and under `next.` what the record after that action says. An episode
of n records has n - 1 frames: no action follows the last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench import hosts
from safevla_bench.errors import HostError, Place, RecordError, RunError, SafevlaError
from safevla_bench.interface.environment import Host
from safevla_bench.interface.stage import Camera, ObservingStage, Stage
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.scores import EpisodeScore
from safevla_bench.judging.scoring import has_uneven_stamps
from safevla_bench.pictures.rendering import open_stage, render_checked
from safevla_bench.policies.servers.transforms import to_axis_angle
from safevla_bench.sources.runs.folder import dump_json
from safevla_bench.training import description
from safevla_bench.training.description import CameraChoice
from safevla_bench.training.labels import RecordLabels, label_records, scored_specs
from safevla_bench.training.writer import Column, DatasetWriter, Feature, new_dataset
from safevla_bench.trajectory.batch import Batch, select_episodes

_STATE_NAMES = ("eef_x_m", "eef_y_m", "eef_z_m", "eef_axis_angle_x", "eef_axis_angle_y", "eef_axis_angle_z")
_STATE = "observation.state"
ProgressCallback = Callable[[int, str], None]
"""Called before each episode with the number of finished episodes and the id of the next."""
SkipCallback = Callable[[SafevlaError], None]
"""Called with the reason why an episode is left out."""


@dataclass(frozen=True)
class DatasetSummary:
    """The counts of what was written: episodes, frames, and the reason of each episode that was left out."""

    episodes: int
    frames: int
    left_out: tuple[str, ...] = ()


def export_dataset(
    judged: Judged,
    out: Path,
    cameras: CameraChoice | None = None,
    observer: ProgressCallback = lambda done, what: None,
    on_skip: SkipCallback = lambda reason: None,
) -> DatasetSummary:
    """Write the judged episodes as a LeRobot dataset of version 3.0 into a new folder, which appears when it is whole.

    The episodes are read again, some at a time. `cameras` are the pictures to render again from recorded states; None =
    no pictures. `on_skip` is called for each episode that is left out: without actions, uneven in time, or not to be
    rendered.

    Raises:
        RunError: there is no episode to write, they differ in what they hold, their control step gives no whole number
            of frames a second, the folder is in use, a source has changed since it was judged, or pictures are wanted
            and a source names no host.
        HostError, PluginError: pictures are wanted, and a camera is unknown, a host cannot be made, or no episode can
            be rendered.
        RecordError: every episode is without actions or uneven in time.
        FileError: the folder cannot be written.
    """
    last: SafevlaError = RunError("there is no episode to write", remedy="Name sources that hold episodes.")
    left_out: list[str] = []
    robot = judged.headers[0].embodiment if judged.headers else None
    with new_dataset(out, fps=_frame_rate(judged), robot=robot) as dataset:
        owners = _episode_owners(judged) if cameras else []
        for number, (episode, labels) in enumerate(_labelled_episodes(judged)):
            observer(number, episode.headers[0].episode_id)
            try:
                seen = _seen_columns(episode, *owners[number], cameras) if cameras else {}
                columns = {**_recorded_columns(episode), **seen}
            except UnknownCameraError:
                raise
            except (HostError, RunError, RecordError) as error:
                last = error.with_place(Place(episode=episode.headers[0].episode_id))
                on_skip(last)
                left_out.append(str(last))
                continue
            _add_episode(dataset, judged, number, columns, labels)
        if not dataset.episodes:
            raise last
        _describe_dataset(dataset, judged, out.resolve().name, cameras, left_out)
    return DatasetSummary(dataset.episodes, dataset.frames, tuple(left_out))


def _frame_rate(judged: Judged) -> int:
    steps = {header.dt for header in judged.headers}
    rate = round(1 / max(steps, default=1))
    if any(abs(rate * dt_s - 1) > 1e-6 for dt_s in steps):
        shown = ", ".join(f"{dt_s:g} s" for dt_s in sorted(steps))
        problem = f"a control step of {shown} is not one whole number of frames a second"
        raise RunError(problem, remedy="LeRobot's datasets have whole numbers: export episodes of one such rate.")
    return rate


def _labelled_episodes(judged: Judged) -> Iterator[tuple[Batch, RecordLabels]]:
    first = 0
    for batch in judged.records.read_chunks():
        scores = judged.scores.select_episodes(np.arange(first, first + len(batch)))
        labels = label_records(batch, scores, judged.ruleset)
        for index, (start, end) in enumerate(pairwise(batch.starts.tolist())):
            yield select_episodes(batch, [index]), labels.select_records(start, end)
        first += len(batch)


def _episode_owners(judged: Judged) -> list[tuple[Path, Host]]:
    """Return the run folder and the host of each episode."""
    owners: list[tuple[Path, Host]] = []
    for source, indices in judged.records.by_source():
        host = source.description.get("host")
        if not isinstance(host, str):
            remedy = "Name the run folder that `safevla eval` made, or leave --cameras out."
            problem = "pictures are rendered by the host that recorded the run, and this names none"
            raise RunError(problem, remedy=remedy, place=Place(file=str(source.path)))
        owners += [(source.path, hosts.make_host(host))] * len(indices)
    return owners


# The columns of an episode


def _recorded_columns(episode: Batch) -> dict[str, Column]:
    """Return state and action of an episode; raises `RecordError` if it has no actions or is uneven in time."""
    action = episode.action.episode_rows(0)
    if not len(action):
        raise RecordError("the record holds no actions", remedy="Only episodes with `action` can be learned from.")
    if has_uneven_stamps(episode).any():
        remedy = "LeRobot's frames are as far apart as their rate says. Export an episode without gaps."
        raise RecordError("the records are unevenly apart in time", remedy=remedy)
    state = episode.eef_pos_m.episode_rows(0)[:-1]
    if episode.eef_quat_wxyz.present[0]:
        rotation = [to_axis_angle(quat) for quat in episode.eef_quat_wxyz.episode_rows(0)[:-1]]
        state = np.hstack([state, np.array(rotation)])
    names = tuple(f"action_{k}" for k in range(action.shape[1]))
    return {_STATE: _state_column(state), "action": Column(Feature("float32", (len(names),), names), action)}


def _state_column(state: NDArray[np.float64]) -> Column:
    fingers = tuple(f"finger_{k + 1}_m" for k in range(state.shape[1] - len(_STATE_NAMES)))
    names = (*_STATE_NAMES, *fingers)[: state.shape[1]]
    return Column(Feature("float32", (len(names),), names), state)


def _add_episode(
    dataset: DatasetWriter, judged: Judged, number: int, columns: dict[str, Column], labels: RecordLabels
) -> None:
    header, row = judged.headers[number], judged.scores.episode(number)
    clauses = tuple(spec.spec_id for spec in scored_specs(judged.scores))
    last = np.arange(1, len(labels.severity)) == len(labels.severity) - 1
    unknown = Feature("float32", is_summarized=False)
    columns |= {
        "next.reward": Column(Feature("float32"), last & row.success),
        "next.done": Column(Feature("bool"), last),
        "next.success": Column(Feature("bool"), last & row.success),
        "next.cost": Column(unknown, labels.cost[1:]),
        "next.severity": Column(unknown, labels.severity[1:]),
        "next.safe": Column(Feature("int8"), labels.safe[1:]),
    }
    if clauses:
        margins = Feature("float32", (len(clauses),), clauses, is_summarized=False)
        columns["next.margin"] = Column(margins, labels.margin[1:])
    violating = None if np.isnan(labels.severity).any() else int(labels.violating.any(axis=1).sum())
    counts = {"env_seed": header.env_seed, "init_state_index": header.init_state_index, "violating_records": violating}
    instruction = header.instruction or f"{header.benchmark}/{header.task_id}"
    dataset.add_episode(instruction, columns, _episode_labels(row, counts))


def _episode_labels(row: EpisodeScore, counts: dict[str, int | None]) -> dict[str, pa.Scalar]:
    """Return the labels of an episode for its row of meta/episodes, `counts` behind them; null = unknown."""
    text, truth, number = pa.string(), pa.bool_(), pa.float64()
    names = ("episode_id", "policy", "benchmark", "task_id", "outcome", "no_verdict", "worst_spec")
    labels: dict[str, tuple[object, pa.DataType]] = {
        **{name: (getattr(row, name), text) for name in names},
        "success": (row.success, truth),
        "safe": (row.safe, truth),
        "unsafe_success": (row.sbu, truth),
        **{name: (list(getattr(row, name)), pa.list_(text)) for name in ("active_specs", "violated_specs")},
        "vsi": (row.vsi, number),
        "first_violation_step": (row.first_violation_step, pa.int64()),
        **{f"robustness/{spec}": (rho, number) for spec, rho in row.robustness.items()},
        **{name: (count, pa.int64()) for name, count in counts.items()},
    }
    return {f"safety/{name}": pa.scalar(value, kind) for name, (value, kind) in labels.items()}


def _describe_dataset(
    dataset: DatasetWriter, judged: Judged, name: str, cameras: CameraChoice | None, left_out: list[str]
) -> None:
    about = f"{dataset.episodes} episodes, {dataset.frames} frames. {judged.provenance.to_sentence()}"
    croissant = description.describe_as_croissant(name, about, dataset.schema, dataset.row_schema)
    dataset.write_file("meta/safevla.json", dump_json(description.describe_dataset(judged, cameras, left_out)))
    dataset.write_file("croissant.json", dump_json(croissant))
    dataset.write_file("README.md", description.format_card(about).encode())


# Pictures and proprioception, rendered again from the recorded states of one episode


class UnknownCameraError(HostError):
    """The host has no such camera, in this episode as in all others."""


def _seen_columns(record: Batch, folder: Path, host: Host, choice: CameraChoice) -> dict[str, Column]:
    """Return the pictures before each action of an episode (a batch of one with `sim_state`), and the observed state.

    The state is there if the host can say it: position [3] in m, axis-angle [3] as robosuite's `quat2axisangle`, both
    in the frame of the host's observations, and the fingers [G].

    Raises:
        HostError: the host cannot show episodes or has no such camera, or the record lacks its states.
        RunError: run.json is missing or damaged, or bodies would not be shown where they were recorded.
    """
    feature = Feature("image", (*choice.size, 3), ("height", "width", "channels"))
    with closing(open_stage(folder, host, record)) as stage:
        columns = {
            f"observation.images.{name}": Column(feature, _render_camera(stage, record, name, choice.size))
            for name in choice.names
        }
        steps = range(int(record.lengths[0]) - 1)
        states = [read_state(stage, k) for k in steps] if isinstance(stage, ObservingStage) else []
    known = [state for state in states if state is not None]
    return {**columns, _STATE: _state_column(np.array(known))} if known else columns


def read_state(stage: ObservingStage, record: int) -> NDArray[np.float64] | None:
    """Return the proprioception of a record, [6 + G]; None where the host cannot say it."""
    seen = stage.observe(record)
    if seen is None:
        return None
    return np.concatenate([seen.eef_pos_m, to_axis_angle(seen.eef_quat_wxyz), seen.gripper_qpos])


def _render_camera(stage: Stage, record: Batch, name: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    camera, steps = Camera(name), range(int(record.lengths[0]) - 1)
    try:
        return np.stack([render_checked(stage, record, k, camera, size).image for k in steps])
    except KeyError as error:  # MuJoCo's own, which lists the names there are
        problem = f"there is no camera {name!r}: {error.args[0]}"
        raise UnknownCameraError(problem, remedy="Choose another by --cameras.") from None
