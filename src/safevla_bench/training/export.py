"""A judged run as a LeRobot dataset: what was seen and done, and safety labels of each frame and each episode.

Frame k holds record k, the action that followed, and under `next.` what the record after that action says. An episode
of n records has n - 1 frames: no action follows the last record.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

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
from safevla_bench.training import description, writer
from safevla_bench.training.description import CameraChoice, RecordedPart
from safevla_bench.training.labels import RecordLabels, label_records, scored_specs
from safevla_bench.training.writer import DatasetWriter, Feature, Statistics
from safevla_bench.trajectory.batch import Batch, select_episodes

STATE, ACTION = "observation.state", "action"
STATE_NAMES = ("eef_x_m", "eef_y_m", "eef_z_m", "eef_axis_angle_x", "eef_axis_angle_y", "eef_axis_angle_z")
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
    return _DatasetExport(judged, out, cameras, observer, on_skip).write()


@dataclass(frozen=True)
class _Shape:
    """The properties that all episodes of a dataset share."""

    dt_s: float
    actions: int
    joints: int
    fingers: int
    """Numbers of the fingers in the state; -1 = the state is not the host's own, but that of the recorded grip site."""
    has_rotation: bool
    has_grip: bool

    @classmethod
    def of_episode(cls, episode: Batch, state: NDArray[np.float64] | None) -> _Shape:
        return cls(
            dt_s=episode.headers[0].dt,
            actions=int(episode.action.width[0]),
            joints=max(0, int(episode.joint_torque_nm.width[0])),
            fingers=-1 if state is None else state.shape[1] - len(STATE_NAMES),
            has_rotation=bool(episode.eef_quat_wxyz.present[0]),
            has_grip=bool(episode.gripper_contact.present[0]),
        )

    @property
    def fps(self) -> int:
        fps = round(1 / self.dt_s)
        if abs(fps * self.dt_s - 1) > 1e-6:
            problem = f"a control step of {self.dt_s:g} s is no whole number of frames a second"
            raise RunError(problem, remedy="LeRobot's datasets have whole numbers; there is no way to write these.")
        return fps

    def state_names(self) -> tuple[str, ...]:
        fingers = tuple(f"finger_{k + 1}_m" for k in range(self.fingers))
        return (*STATE_NAMES, *fingers) if self.has_rotation or self.fingers >= 0 else STATE_NAMES[:3]


@dataclass
class _DatasetExport:
    judged: Judged
    out: Path
    cameras: CameraChoice | None
    observer: ProgressCallback
    on_skip: SkipCallback
    shape: _Shape | None = None
    left_out: list[str] = field(default_factory=list)
    parts: tuple[RecordedPart, ...] = ()
    """What is kept of the records, as the first episode has it."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome of each episode, by the name that a reader gives it."""

    def write(self) -> DatasetSummary:
        """Write every episode that can be exported, and return how many were written and left out."""
        writer.require_free(self.out)
        last: SafevlaError | None = None
        with ExitStack() as stack:
            dataset: DatasetWriter | None = None
            for number, (episode, labels) in enumerate(self._episodes()):
                episode_id = episode.headers[0].episode_id
                self.observer(number, episode_id)
                try:
                    pictures = self._render(episode, number)
                except UnknownCameraError:
                    raise
                except (HostError, RunError, RecordError) as error:
                    last = error
                    self.on_skip(error.with_place(Place(episode=episode_id)))
                    self.left_out.append(str(error))
                    continue
                shape = self._require_shape(episode, pictures.state)
                if dataset is None:
                    self.parts = description.recorded_parts(episode, with_bodies=description.has_one_task(self.judged))
                    features, robot = self._features(shape), episode.headers[0].embodiment
                    dataset = stack.enter_context(writer.new_dataset(self.out, features, fps=shape.fps, robot=robot))
                self._add_episode(dataset, episode, self.judged.scores.episode(number), labels, pictures)
            if dataset is None:
                raise last or RunError("there is no episode to write", remedy="Name sources that hold episodes.")
            self._describe(dataset)
        return DatasetSummary(dataset.episodes, dataset.frames, tuple(self.left_out))

    def _episodes(self) -> Iterator[tuple[Batch, RecordLabels]]:
        first = 0
        for batch in self.judged.records.read_chunks():
            scores = self.judged.scores.select_episodes(np.arange(first, first + len(batch)))
            labels = label_records(batch, scores, self.judged.ruleset)
            for index, (start, end) in enumerate(pairwise(batch.starts.tolist())):
                yield select_episodes(batch, [index]), labels.select_records(start, end)
            first += len(batch)

    def _render(self, episode: Batch, number: int) -> EpisodePictures:
        if not len(episode.action.episode_rows(0)):
            raise RecordError("the record holds no actions", remedy="Only episodes with `action` can be learned from.")
        if has_uneven_stamps(episode).any():
            remedy = "LeRobot's frames are as far apart as their rate says. Export an episode without gaps."
            raise RecordError("the records are unevenly apart in time", remedy=remedy)
        return render_episode(*self._owners[number], episode, self.cameras) if self.cameras else EpisodePictures()

    @cached_property
    def _owners(self) -> list[tuple[Path, Host]]:
        """The run folder and the host of each episode."""
        owners: list[tuple[Path, Host]] = []
        for source, indices in self.judged.records.by_source():
            host = source.description.get("host")
            if not isinstance(host, str):
                remedy = "Name the run folder that `safevla eval` made, or leave --cameras out."
                problem = "pictures are rendered by the host that recorded the run, and this names none"
                raise RunError(problem, remedy=remedy, place=Place(file=str(source.path)))
            owners += [(source.path, hosts.make_host(host))] * len(indices)
        return owners

    def _require_shape(self, episode: Batch, state: NDArray[np.float64] | None) -> _Shape:
        shape = _Shape.of_episode(episode, state)
        if self.shape is not None and shape != self.shape:
            names = [part.name for part in fields(shape) if getattr(shape, part.name) != getattr(self.shape, part.name)]
            problem = f"its {', '.join(names)} differ from those of the episodes before it"
            place = Place(episode=episode.headers[0].episode_id)
            raise RunError(problem, remedy="A dataset holds episodes of one robot: export them apart.", place=place)
        self.shape = shape
        return shape

    def _features(self, shape: _Shape) -> dict[str, Feature]:
        clauses = tuple(spec.spec_id for spec in scored_specs(self.judged.scores))
        size = self.cameras.size if self.cameras else (0, 0)
        return {
            **{image_column(name): writer.image_feature(size) for name in (self.cameras.names if self.cameras else ())},
            STATE: Feature("float32", (len(shape.state_names()),), shape.state_names()),
            ACTION: Feature("float32", (shape.actions,), tuple(f"action_{k}" for k in range(shape.actions))),
            "next.reward": Feature("float32"),
            "next.done": Feature("bool"),
            "next.success": Feature("bool"),
            "next.cost": Feature("float32", is_summarized=False),
            "next.severity": Feature("float32", is_summarized=False),
            "next.safe": Feature("int8"),
            **({"next.margin": Feature("float32", (len(clauses),), clauses, is_summarized=False)} if clauses else {}),
            **{part.column: part.feature for part in self.parts},
        }

    def _add_episode(
        self, dataset: DatasetWriter, episode: Batch, row: EpisodeScore, labels: RecordLabels, pictures: EpisodePictures
    ) -> None:
        header, last = episode.headers[0], np.arange(len(labels.severity) - 1) == len(labels.severity) - 2
        columns: dict[str, Any] = {
            **pictures.files,
            STATE: _recorded_state(episode) if pictures.state is None else pictures.state,
            ACTION: episode.action.episode_rows(0),
            "next.reward": last & row.success,
            "next.done": last,
            "next.success": last & row.success,
            "next.cost": labels.cost[1:],
            "next.severity": labels.severity[1:],
            "next.safe": labels.safe[1:],
            "next.margin": labels.margin[1:],
            **description.recorded_columns(episode, self.parts),
        }
        self.outcomes[f"episode_{dataset.episodes:06d}"] = row.outcome
        instruction = header.instruction or f"{header.benchmark}/{header.task_id}"
        violating = None if np.isnan(labels.severity).any() else int(labels.violating.any(axis=1).sum())
        counts = {"env_seed": header.env_seed, "init_state_index": header.init_state_index}
        counts["violating_records"] = violating
        dataset.add_episode(instruction, columns, pictures.stats, _episode_labels(row, counts))

    def _describe(self, dataset: DatasetWriter) -> None:
        assert self.shape is not None
        observed = "as the host observes it"
        recorded = "of the recorded grip site, whose axes may not be those of the host's observations; no fingers"
        state = {"names": list(self.shape.state_names()), "of": observed if self.shape.fingers >= 0 else recorded}
        document = description.describe_dataset(self.judged, self.cameras, self.left_out, state)
        dataset.write_file("meta/safevla.json", dump_json(document))
        mapping = description.format_mapping(self.judged, self.parts, self.outcomes)
        dataset.write_file(description.MAPPING, mapping.encode())
        card = description.format_card(self.judged, dataset.episodes, dataset.frames, self.cameras)
        dataset.write_file("README.md", card.encode())
        about = f"{dataset.episodes} episodes, {dataset.frames} frames. {self.judged.provenance.to_sentence()}"
        name, rows = self.out.resolve().name, dataset.row_schema
        croissant = description.describe_as_croissant(name, about, dataset.schema, rows)
        dataset.write_file("croissant.json", dump_json(croissant))


def _recorded_state(episode: Batch) -> NDArray[np.float64]:
    position, rotation = episode.eef_pos_m.episode_rows(0)[:-1], episode.eef_quat_wxyz.episode_rows(0)[:-1]
    if not len(rotation):
        return position
    return np.hstack([position, np.array([to_axis_angle(quat) for quat in rotation])])


def _episode_labels(row: EpisodeScore, counts: Mapping[str, int | None]) -> dict[str, pa.Scalar]:
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


# Pictures and proprioception, rendered again from the recorded states of one episode


def image_column(camera: str) -> str:
    """Return the column of a camera's pictures."""
    return f"observation.images.{camera}"


class UnknownCameraError(HostError):
    """The host has no such camera, in this episode as in all others."""


@dataclass(frozen=True)
class EpisodePictures:
    """The pictures shown before each action: PNG files and their statistics by column, and proprioception."""

    files: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    stats: Mapping[str, Statistics] = field(default_factory=dict)
    state: NDArray[np.float64] | None = None
    """As the host observes it, [n - 1, 6 + G]; None where it cannot say."""


def render_episode(folder: Path, host: Host, record: Batch, choice: CameraChoice) -> EpisodePictures:
    """Render every record but the last, which no action follows, of an episode (a batch of one with `sim_state`).

    The state is what the host observes there, if it can say: position [3] in m, axis-angle [3] as robosuite's
    `quat2axisangle`, both in the frame of the host's observations, and the fingers [G].

    Raises:
        HostError: the host cannot show episodes or has no such camera, or the record lacks its states.
        RunError: run.json is missing or damaged, or bodies would not be shown where they were recorded.
    """
    count = int(record.lengths[0]) - 1
    with closing(open_stage(folder, host, record)) as stage:
        images = {name: _render_camera(stage, record, name, choice.size) for name in choice.names}
        states = [read_state(stage, k) for k in range(count)] if isinstance(stage, ObservingStage) else []
    return EpisodePictures(
        files={image_column(name): tuple(map(_encode_png, pictures)) for name, pictures in images.items()},
        stats={image_column(name): writer.summarize_pixels(pictures) for name, pictures in images.items()},
        state=np.array(known) if (known := [state for state in states if state is not None]) else None,
    )


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


def _encode_png(picture: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG", optimize=False)
    return stream.getvalue()
