"""The geometry of an episode's scene, in the format of `safevla_recorder.geometry`: parts, and boxes around shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NoReturn

import msgspec
import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.files import decode_json
from safevla_recorder.channels import LARGEST
from safevla_recorder.episode import Floats
from safevla_recorder.geometry import TRACKED, WORLD, multiply, rotate


class PartRow(msgspec.Struct, frozen=True):
    """A rigid part of a scene, as in `safevla_recorder.geometry.Part`; `pose` [7] is empty if the part is tracked."""

    body: str
    parent: int
    pose: tuple[float, ...]
    motion: tuple[int, ...] = ()
    shape: str | None = None


class RecordedGeometry(msgspec.Struct, frozen=True, dict=True):
    """Parts of a scene, indices of the parts that are hand or fingers, and named shapes: boxes [10] and planes [7]."""

    parts: tuple[PartRow, ...]
    hand: tuple[int, ...]
    shapes: dict[str, tuple[tuple[float, ...], ...]]

    @cached_property
    def is_fixed(self) -> tuple[bool, ...]:
        """True for each part that keeps its world pose, because the part and all its ancestors have no motion."""
        # The parent of a part is the index of an earlier part, or the constant `WORLD` (-1) or `TRACKED` (-2).
        # A tracked part follows a recorded body, so it can move. `motion` lists the components of motion; () = none.
        fixed: list[bool] = []
        for part in self.parts:
            has_fixed_parent = part.parent == WORLD or (part.parent >= 0 and fixed[part.parent])
            fixed.append(not part.motion and has_fixed_parent)
        return tuple(fixed)

    @cached_property
    def components(self) -> tuple[tuple[int, int], ...]:
        """For each column of the channel `link_motion`: the index of a part, and the component of the part's motion."""
        # Components 0 to 2 are a rotation vector, and 3 to 5 are a translation.
        return tuple((k, axis) for k, part in enumerate(self.parts) for axis in part.motion)

    @cached_property
    def part_shapes(self) -> tuple[tuple[Floats, Floats], ...]:
        """Boxes [K, 10] and planes [L, 7] of each part, in the part's frame."""
        # A box has its center, quaternion wxyz and half sizes; a plane has a point and a quaternion.
        # A part names its shape. Several parts may name the same shape.
        arrays = {}
        for name, rows in self.shapes.items():
            boxes, planes = ([row for row in rows if len(row) == size] for size in (10, 7))  # see `Part`
            arrays[name] = (np.array(boxes).reshape(-1, 10), np.array(planes).reshape(-1, 7))
        nothing = (np.empty((0, 10)), np.empty((0, 7)))  # used for a part without a shape
        return tuple(nothing if part.shape is None else arrays[part.shape] for part in self.parts)


@lru_cache(maxsize=256)
def read_geometry(text: str) -> RecordedGeometry:
    """Parse the geometry in a header. Raises `RecordError` if the text is invalid. Results are cached."""
    try:
        geometry = decode_json(text, RecordedGeometry)
    except (ValueError, RecursionError) as error:
        _refuse(f"the text is not a geometry: {error}")
    for k, part in enumerate(geometry.parts):
        if not TRACKED <= part.parent < k:  # `TRACKED` is -2, `WORLD` is -1, other parents are indices of parts
            _refuse(f"part {k} has the parent {part.parent}, which is not an earlier part")
        if not all(0 <= axis < 6 for axis in part.motion) or len(set(part.motion)) < len(part.motion):
            _refuse(f"part {k} has invalid components of motion: {list(part.motion)}")
        if part.parent == TRACKED and (part.motion or not part.body):
            _refuse(f"part {k} is tracked, so it must have a body and no motion")
        if part.parent != TRACKED:
            _check_row(part.pose, 7, f"the pose of part {k}")
        if part.shape is not None and part.shape not in geometry.shapes:
            _refuse(f"part {k} has the shape {part.shape!r}, which is not listed")
    if not all(0 <= index < len(geometry.parts) for index in geometry.hand):
        _refuse("the hand lists the index of a missing part")
    for name, rows in geometry.shapes.items():
        for row in rows:
            _check_row(row, 7 if len(row) == 7 else 10, f"the shape {name!r}")  # 7 for a plane, 10 for a box
            if min(row[7:], default=0.0) < 0:  # the half sizes of a box; a plane has none
                _refuse(f"the shape {name!r} has a negative size")
    return geometry


def _check_row(row: tuple[float, ...], size: int, name: str) -> None:
    # Raises `RecordError` unless the row has `size` plausible numbers. `name` describes the row in the error.
    # The numbers are a position, a unit quaternion and, for a box, the half sizes.
    if len(row) != size or max(map(abs, row)) > LARGEST or abs(sum(number**2 for number in row[3:7]) - 1.0) > 1e-3:
        _refuse(f"{name} must have {size} numbers of plausible size that include a unit quaternion")


def _refuse(problem: str) -> NoReturn:
    # Raises the error for an invalid geometry.
    remedy = "Leave the header's geometry out, or write it with safevla_recorder."
    raise RecordError(problem, remedy=remedy, place=Place(field="geometry"))


@dataclass(frozen=True, slots=True)
class PoseTrack:
    """Positions [n, 3] in meters and unit quaternions wxyz [n, 4] in the world; NaN where unknown."""

    position: Floats
    quaternion: Floats

    def carry(self, position: Floats, quaternion: Floats) -> PoseTrack:
        """Return a body's world track, given its n poses (or one pose) in the frame of `self`, [n, 3] and [n, 4]."""
        # Positions are [n, 3] or [3], quaternions wxyz are [n, 4] or [4]. `multiply` combines two rotations.
        return PoseTrack(self.position + rotate(self.quaternion, position), multiply(self.quaternion, quaternion))


def move_part(part: PartRow, base: PoseTrack, motion: Floats | None) -> PoseTrack:
    """Return a part's track, given the parent's track `base` and the part's motion, [n, 6] or None if it is fixed."""
    # `part.pose` [7] is the part's pose in the parent's frame, as in record 0.
    # A motion since record 0 is a rotation vector [rad] and a translation [m] in the part's own frame.
    track = base.carry(np.array(part.pose[:3]), np.array(part.pose[3:]))
    if motion is None:
        return track
    # Convert the rotation vector motion[:, :3] to a quaternion: cos(angle / 2) and axis * sin(angle / 2).
    angle = np.sqrt(np.square(motion[:, :3]).sum(axis=1, keepdims=True))
    half_sine_per_angle = np.sin(angle / 2.0) / np.where(angle > 0, angle, 1.0)
    quaternion = np.concatenate([np.cos(angle / 2.0), motion[:, :3] * half_sine_per_angle], axis=1)
    return track.carry(motion[:, 3:], quaternion)
