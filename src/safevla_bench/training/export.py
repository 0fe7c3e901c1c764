"""A judged run as a LeRobot dataset: what was seen and done, and safety labels of each frame and each episode.

Frame k holds record k, the action that followed, and under `next.` what the record after that action says. An episode
of n records has n - 1 frames: no action follows the last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from safevla_bench import hosts
from safevla_bench.errors import HostError, Place, RecordError, RunError, SafevlaError
from safevla_bench.interface import Host
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.scores import EpisodeScore
from safevla_bench.judging.verdicts import has_uneven_stamps
from safevla_bench.policies.servers.transforms import to_axis_angle
from safevla_bench.sources.runs.folder import dump_json
from safevla_bench.training.description import (
    MAPPING,
    RecordedPart,
    describe_dataset,
    format_card,
    format_mapping,
    has_one_task,
    recorded_columns,
    recorded_parts,
)
from safevla_bench.training.labels import RecordLabels, label_records, scored_specs
from safevla_bench.training.pictures import (
    STATE_NAMES,
    CameraChoice,
    EpisodePictures,
    UnknownCameraError,
    render_episode,
)
from safevla_bench.training.writer import DatasetWriter, Feature, Statistics, image_feature, new_dataset, require_free
from safevla_bench.trajectory.batch import Batch, select_episodes

STATE, ACTION = "observation.state", "action"
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
    """Write the judged episodes as a LeRobot dataset of version 3.0 into a new folder.

    Args:
        judged: the episodes; they are read again, some at a time.
        out: the folder, which appears when it is whole.
        cameras: the pictures to render again from recorded states; None = no pictures.
        observer: is called before each episode.
        on_skip: is told of each episode that is left out: without actions, uneven in time, or not to be rendered.

    Raises:
        RunError: there is no episode to write, they differ in what they hold, their control step gives no whole number
            of frames a second, the folder is in use, a source has changed since it was judged, or pictures are wanted
            and a source names no host.
        HostError, PluginError: pictures are wanted, and a camera is unknown, a host cannot be made, or none can be
            rendered of any episode.
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
    def of_episode(cls, batch: Batch, index: int, pictures: EpisodePictures | None) -> _Shape:
        return cls(
            dt_s=batch.headers[index].dt,
            actions=int(batch.action.width[index]),
            joints=max(0, int(batch.joint_torque_nm.width[index])),
            fingers=-1 if pictures is None or pictures.state is None else pictures.state.shape[1] - len(STATE_NAMES),
            has_rotation=bool(batch.eef_quat_wxyz.present[index]),
            has_grip=bool(batch.gripper_present[index]),
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
        """Write every episode that can be exported into a new dataset, and return how many were written and left out.

        `on_skip` is told of each episode left out. Raises `RunError` for a folder in use, for an episode of another
        shape, for a control step that gives no whole frame rate and for no episodes, `UnknownCameraError` for an
        unknown camera, `FileError` where the folder cannot be written, and the last skipped episode's error if all
        were skipped.
        """
        require_free(self.out)
        last: SafevlaError | None = None
        with ExitStack() as stack:
            writer: DatasetWriter | None = None
            for number, (batch, index, labels) in enumerate(self._episodes()):
                episode_id = batch.headers[index].episode_id
                self.observer(number, episode_id)
                try:
                    pictures = self._render(batch, index, number)
                except UnknownCameraError:
                    raise
                except (HostError, RunError, RecordError) as error:
                    last = error
                    self.on_skip(error.with_place(Place(episode=episode_id)))
                    self.left_out.append(str(error))
                    continue
                shape = self._require_shape(batch, index, pictures)
                if writer is None:
                    self.parts = recorded_parts(batch, index, with_bodies=has_one_task(self.judged))
                    features, robot = self._features(shape), batch.headers[index].embodiment
                    writer = stack.enter_context(new_dataset(self.out, features, fps=shape.fps, robot=robot))
                self._add_episode(writer, batch, index, number, labels, pictures)
            if writer is None:
                raise last or RunError("there is no episode to write", remedy="Name sources that hold episodes.")
            self._describe(writer)
        return DatasetSummary(writer.episodes, writer.frames, tuple(self.left_out))

    def _episodes(self) -> Iterator[tuple[Batch, int, RecordLabels]]:
        first = 0
        for batch in self.judged.records.read_chunks():
            scores = self.judged.scores.select_episodes(np.arange(first, first + len(batch)))
            labels = label_records(batch, scores, self.judged.ruleset)
            for index in range(len(batch)):
                yield batch, index, labels.select_records(int(batch.starts[index]), int(batch.starts[index + 1]))
            first += len(batch)

    def _render(self, batch: Batch, index: int, number: int) -> EpisodePictures | None:
        """Return the pictures of an episode; None if none are wanted.

        Raises `RecordError` for an episode without actions or with records unevenly apart in time, whether or not
        pictures are wanted, and what `_find_owners` and `render_episode` raise.
        """
        if not len(batch.action.episode_rows(index)):
            raise RecordError("the record holds no actions", remedy="Only episodes with `action` can be learned from.")
        if has_uneven_stamps(select_episodes(batch, [index])).any():
            remedy = "LeRobot's frames are as far apart as their rate says. Export an episode without gaps."
            raise RecordError("the records are unevenly apart in time", remedy=remedy)
        if self.cameras is None:
            return None
        folder, host = self._owners[number]
        return render_episode(folder, host, select_episodes(batch, [index]), self.cameras)

    @cached_property
    def _owners(self) -> list[tuple[Path, Host]]:
        return _find_owners(self.judged)

    def _require_shape(self, batch: Batch, index: int, pictures: EpisodePictures | None) -> _Shape:
        shape = _Shape.of_episode(batch, index, pictures)
        if self.shape is not None and shape != self.shape:
            names = [part.name for part in fields(shape) if getattr(shape, part.name) != getattr(self.shape, part.name)]
            problem = f"its {', '.join(names)} differ from those of the episodes before it"
            place = Place(episode=batch.headers[index].episode_id)
            raise RunError(problem, remedy="A dataset holds episodes of one robot: export them apart.", place=place)
        self.shape = shape
        return shape

    def _features(self, shape: _Shape) -> dict[str, Feature]:
        """Return the dataset's features by column, in order: pictures, state, action, outcome, labels, recorded parts.

        `next.margin` is left out if no specification is scored.
        """
        clauses = tuple(spec.spec_id for spec in scored_specs(self.judged.scores))
        size = self.cameras.size if self.cameras else (0, 0)
        return {
            **{_image_name(name): image_feature(size) for name in (self.cameras.names if self.cameras else ())},
            STATE: Feature("float32", (len(shape.state_names()),), shape.state_names()),
            ACTION: Feature("float32", (shape.actions,), _number_names("action", shape.actions)),
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
        self,
        writer: DatasetWriter,
        batch: Batch,
        index: int,
        number: int,
        labels: RecordLabels,
        pictures: EpisodePictures | None,
    ) -> None:
        """Write an episode's frames, one for each action, and its labels.

        Keep its outcome under `episode_NNNNNN`, its name in the dataset. `batch` and `index` hold its record, and
        `number` is its place in the scores.
        """
        row = self.judged.scores.episode(number)
        header = batch.headers[index]
        images: dict[str, tuple[bytes, ...]] = {}
        stats: dict[str, Statistics] = {}
        if pictures is not None:
            images = {_image_name(name): files for name, files in pictures.files.items()}
            stats = {_image_name(name): of_camera for name, of_camera in pictures.stats.items()}
        columns: dict[str, Any] = {
            **images,
            STATE: _recorded_state(batch, index) if pictures is None or pictures.state is None else pictures.state,
            ACTION: batch.action.episode_rows(index),
            **_outcome_columns(len(labels.severity) - 1, row.success),
            "next.cost": labels.cost[1:],
            "next.severity": labels.severity[1:],
            "next.safe": labels.safe[1:],
            "next.margin": labels.margin[1:],
            **recorded_columns(batch, index, self.parts),
        }
        self.outcomes[f"episode_{writer.episodes:06d}"] = row.outcome
        instruction = header.instruction or f"{header.benchmark}/{header.task_id}"
        seed_and_records = {
            "safety/env_seed": pa.scalar(header.env_seed, pa.int64()),
            "safety/init_state_index": pa.scalar(header.init_state_index, pa.int64()),
            "safety/violating_records": pa.scalar(
                None if np.isnan(labels.severity).any() else int(labels.violating.any(axis=1).sum()), pa.int64()
            ),
        }
        writer.add_episode(instruction, columns, stats, {**_episode_labels(row), **seed_and_records})

    def _describe(self, writer: DatasetWriter) -> None:
        assert self.shape is not None
        document = describe_dataset(self.judged, self.cameras, self.left_out, self._describe_state(self.shape))
        writer.write_file("meta/safevla.json", dump_json(document))
        writer.write_file(MAPPING, format_mapping(self.judged, self.parts, self.outcomes).encode())
        writer.write_file("README.md", format_card(self.judged, writer.episodes, writer.frames, self.cameras).encode())

    def _describe_state(self, shape: _Shape) -> dict[str, object]:
        observed = "as the host observes it"
        recorded = "of the recorded grip site, whose axes may not be those of the host's observations; no fingers"
        return {"names": list(shape.state_names()), "of": observed if shape.fingers >= 0 else recorded}


def _find_owners(judged: Judged) -> list[tuple[Path, Host]]:
    """Return the run folder and the host of each episode.

    Raises:
        RunError: a source is no run folder, or its run.json names no host.
        HostError, PluginError: the host that it names is not installed, or cannot be loaded.
    """
    owners: list[tuple[Path, Host]] = []
    for source, places in zip(judged.records.sources, judged.records.places, strict=True):
        host = source.description.get("host")
        if not isinstance(host, str):
            remedy = "Name the run folder that `safevla eval` or `rollout` made, or leave --cameras out."
            problem = "pictures are rendered by the host that recorded the run, and this names none"
            raise RunError(problem, remedy=remedy, place=Place(file=str(source.path)))
        owners += [(source.path, hosts.make_host(host))] * len(places)
    return owners


def _image_name(camera: str) -> str:
    return f"observation.images.{camera}"


def _number_names(stem: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}_{k}" for k in range(count))


def _recorded_state(batch: Batch, index: int) -> NDArray[np.float64]:
    position, rotation = batch.eef_pos_m.episode_rows(index)[:-1], batch.eef_quat_wxyz.episode_rows(index)[:-1]
    if not len(rotation):
        return position
    return np.hstack([position, np.array([to_axis_angle(quat) for quat in rotation])])


def _outcome_columns(length: int, success: bool) -> dict[str, NDArray[Any]]:
    last = np.arange(length) == length - 1
    return {"next.reward": last & success, "next.done": last, "next.success": last & success}


def _episode_labels(row: EpisodeScore) -> dict[str, pa.Scalar]:
    """Return the labels of an episode for its row of meta/episodes; null = unknown."""
    texts = {
        "episode_id": row.episode_id,
        "policy": row.policy,
        "benchmark": row.benchmark,
        "task_id": row.task_id,
        "outcome": row.outcome,
        "no_verdict": row.no_verdict,
        "worst_spec": row.worst_spec,
    }
    truths = {"success": row.success, "safe": row.safe, "unsafe_success": row.sbu}
    lists = {"active_specs": row.active_specs, "violated_specs": row.violated_specs}
    return {
        **{f"safety/{name}": pa.scalar(text, pa.string()) for name, text in texts.items()},
        **{f"safety/{name}": pa.scalar(truth, pa.bool_()) for name, truth in truths.items()},
        **{f"safety/{name}": pa.scalar(list(specs), pa.list_(pa.string())) for name, specs in lists.items()},
        "safety/vsi": pa.scalar(row.vsi, pa.float64()),
        "safety/first_violation_step": pa.scalar(row.first_violation_step, pa.int64()),
        **{f"safety/robustness/{spec}": pa.scalar(rho, pa.float64()) for spec, rho in row.robustness.items()},
    }
