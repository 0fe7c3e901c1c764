"""Pictures and proprioception for a dataset, rendered again from the recorded states of one episode."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from safevla_bench.errors import HostError
from safevla_bench.interface.environment import Host
from safevla_bench.interface.stage import Camera, ObservingStage, Stage
from safevla_bench.pictures.rendering import open_stage, render_checked
from safevla_bench.policies.servers.transforms import to_axis_angle
from safevla_bench.training.writer import Statistics, summarize_pixels
from safevla_bench.trajectory.batch import Batch

STATE_NAMES = ("eef_x_m", "eef_y_m", "eef_z_m", "eef_axis_angle_x", "eef_axis_angle_y", "eef_axis_angle_z")


def image_column(camera: str) -> str:
    """Return the column of a camera's pictures."""
    return f"observation.images.{camera}"


class UnknownCameraError(HostError):
    """The host has no such camera, in this episode as in all others."""


@dataclass(frozen=True, slots=True)
class CameraChoice:
    """The cameras of a dataset, by the host's names, and the height and width of their pictures in pixels."""

    names: tuple[str, ...]
    size: tuple[int, int] = (128, 128)


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
        stats={image_column(name): summarize_pixels(pictures) for name, pictures in images.items()},
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
