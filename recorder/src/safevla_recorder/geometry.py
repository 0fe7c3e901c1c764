"""The geometry of a scene: poses of fixed bodies and robot links, and oriented boxes around all collision shapes.

A scene is a list of parts. The description of a scene is a JSON text: each part's pose in record 0, relative to its
parent, and the part's shapes by their hash. All episodes of a scene have the same description, which a file stores only
once. The channel `link_motion` is each part's motion relative to its parent since record 0: a rotation vector and a
translation in the part's own frame.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WORLD, TRACKED = -1, -2  # special values of `Part.parent`
ALL_MOTION = tuple(range(6))  # value of `Part.motion` if all components can change
MERGED_M = 0.005  # a merged box extends beyond the original boxes by less than this distance [m]
_RESOLUTION = 2.0**-22  # motions are rounded to 0.24 µrad or µm, so that compressed records stay small


@dataclass(frozen=True)
class Part:
    """A rigid part of a scene: a link, or a body that does not move."""

    body: str  # recorded body that the part belongs to; empty = none
    parent: int = WORLD
    """Index of the parent, an earlier part; `WORLD` = attached to the world; `TRACKED` = has the pose of `body`."""
    motion: tuple[int, ...] = ()
    """Components of the motion relative to the parent: 0 to 2 are a rotation vector, 3 to 5 are a translation."""
    boxes: Floats = field(default_factory=lambda: np.empty((0, 10)))
    """Boxes in the part's frame, [K, 10]: center [m], quaternion wxyz and half sizes [m] of each."""
    planes: Floats = field(default_factory=lambda: np.empty((0, 7)))
    """Planes in the part's frame, [K, 7]: point and quaternion. Points with negative z in a plane's frame are solid."""


class Geometry:
    """The parts of one episode, with their poses in record 0."""

    def __init__(self, parts: Sequence[Part], hand: Sequence[int], position: Floats, quaternion: Floats) -> None:
        """Describe `P` parts by their world poses [P, 3] and [P, 4]. `hand` are the indices of hand and fingers."""
        # Positions are in m, quaternions are wxyz.
        self._moving_parts = [k for k, part in enumerate(parts) if part.motion]  # indices of moving parts in `parts`
        # Each moving part has six components of motion; keep only the components that can change.
        self._motion_columns = [
            6 * k + axis for k, part in enumerate(self._moving_parts) for axis in parts[part].motion
        ]
        # The index −1 means the world: `_relative_poses` appends the world's frame as the last row.
        # A tracked part has no parent. Its parent's index is set to that of the world.
        self._parents = [max(part.parent, WORLD) for part in parts]
        # Positions [1, P, 3] and quaternions [1, P, 4] in record 0, relative to the parents.
        self._start_poses = self._relative_poses(position[None], quaternion[None])
        is_finite = np.isfinite(np.concatenate(self._start_poses, axis=2)).all()
        self.text = self._describe(parts, hand) if is_finite else None
        """The scene's description; None if a pose is not finite."""

    def _relative_poses(self, position: Floats, quaternion: Floats) -> tuple[Floats, Floats]:
        # Return the parts' poses in their parents' frames, given their world poses [n, P, 3] and [n, P, 4].
        # `_parents` lists the index of each part's parent; −1 selects the last frame.
        # The world's frame is appended here as the last frame.
        records = len(position)
        parent_position = np.concatenate([position, np.zeros((records, 1, 3))], axis=1)[:, self._parents]
        world_quaternion = np.broadcast_to([[[1.0, 0.0, 0.0, 0.0]]], (records, 1, 4))
        parent_quaternion = np.concatenate([quaternion, world_quaternion], axis=1)[:, self._parents]
        relative_position = turn_back(parent_quaternion, position - parent_position)
        return relative_position, multiply(parent_quaternion * _INVERSE, quaternion)

    def measure_motion(self, position: Floats, quaternion: Floats) -> Floats | None:
        """Return `link_motion` [n, M] from world poses [n, P, 3] and [n, P, 4]; None if `M` is 0 or `text` is None."""
        # `link_motion` is the motion of the moving parts since record 0, relative to their parents:
        # one row per record, one column for each of the `M` components that can change, in rad or m.
        # `_start_poses` are the parts' poses in record 0, relative to their parents.
        if self.text is None or not self._motion_columns:
            return None
        relative_position, relative_quaternion = (
            values[:, self._moving_parts] for values in self._relative_poses(position, quaternion)
        )
        start_position, start_quaternion = (values[:, self._moving_parts] for values in self._start_poses)
        # Rotation and translation are in the part's own frame in record 0.
        rotation = multiply(start_quaternion * _INVERSE, relative_quaternion)
        translation = turn_back(start_quaternion, relative_position - start_position)
        motion = np.concatenate([_rotation_vector(rotation), translation], axis=2).reshape(len(position), -1)
        # Rounding makes compressed records smaller. Adding 0.0 turns −0.0 into 0.0.
        rounded: Floats = np.round(motion[:, self._motion_columns] / _RESOLUTION) * _RESOLUTION + 0.0
        return rounded

    def _describe(self, parts: Sequence[Part], hand: Sequence[int]) -> str:
        # Return the scene's description, a JSON text: the indices of the hand's parts,
        # one row for each part with its pose in record 0, and a mapping from hashes to a part's boxes and planes.
        # Rounding gives all episodes of a scene the same text. Adding 0.0 turns −0.0 into 0.0.
        shapes: dict[str, list[list[float]]] = {}
        part_rows = []
        poses = np.concatenate(self._start_poses, axis=2)[0].tolist()  # [P, 7]: position, quaternion
        for part, pose in zip(parts, poses):
            row = {"body": part.body, "parent": part.parent, "motion": list(part.motion)}
            # The pose of a tracked part is recorded by the channels of its body.
            row["pose"] = [] if part.parent == TRACKED else [round(number, 8) + 0.0 for number in pose]
            boxes = merge_boxes(np.ascontiguousarray(part.boxes).tobytes()).tolist()  # the cache needs hashable bytes
            shape_rows = [[round(number, 6) + 0.0 for number in shape] for shape in boxes + part.planes.tolist()]
            if shape_rows:
                row["shape"] = hashlib.sha256(json.dumps(shape_rows).encode()).hexdigest()[:16]
                shapes[str(row["shape"])] = shape_rows
            part_rows.append(row)
        return json.dumps({"hand": list(hand), "parts": part_rows, "shapes": shapes}, separators=(",", ":"))


_INVERSE = np.array([1.0, -1.0, -1.0, -1.0])  # a unit quaternion times these signs is the inverse rotation
# For each of x, y and z: the index of the next axis in cyclic order, and of the axis after it.
_NEXT, _AFTER_NEXT = np.array([1, 2, 0]), np.array([2, 0, 1])


def cross(a: Floats, b: Floats) -> Floats:
    """Return the cross products of vectors [..., 3]. For few vectors, this function is ten times as fast as NumPy's."""
    product: Floats = a[..., _NEXT] * b[..., _AFTER_NEXT] - a[..., _AFTER_NEXT] * b[..., _NEXT]
    return product


def multiply(a: Floats, b: Floats) -> Floats:
    """Return the products of quaternions wxyz, [..., 4]."""
    # The product of a and b is the rotation b, followed by the rotation a.
    w = a[..., :1] * b[..., :1] - (a[..., 1:] * b[..., 1:]).sum(axis=-1, keepdims=True)
    return np.concatenate([w, a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:] + cross(a[..., 1:], b[..., 1:])], -1)


def rotate(quaternion: Floats, vector: Floats) -> Floats:
    """Return vectors [..., 3] rotated by unit quaternions wxyz [..., 4]."""
    # With the quaternion (w, u): v + 2 w (u × v) + 2 u × (u × v).
    twice = 2.0 * cross(quaternion[..., 1:], vector)
    turned: Floats = vector + quaternion[..., :1] * twice + cross(quaternion[..., 1:], twice)
    return turned


def turn_back(quaternion: Floats, vector: Floats) -> Floats:
    """Rotate world vectors [..., 3] into the frames of bodies, given the bodies' unit quaternions wxyz [..., 4]."""
    return rotate(quaternion * _INVERSE, vector)


def _rotation_vector(quaternion: Floats) -> Floats:
    # Return the rotation vectors [..., 3] in rad of unit quaternions wxyz [..., 4]: a vector's direction is the axis,
    # and its length is the angle. The quaternions q and −q are the same rotation; use the one with the smaller angle.
    shorter = np.where(quaternion[..., :1] < 0, -1.0, 1.0) * quaternion
    half_sine = np.sqrt(np.square(shorter[..., 1:]).sum(axis=-1, keepdims=True))  # sine of half the angle
    vector: Floats = shorter[..., 1:] * (
        2.0 * np.arctan2(half_sine, shorter[..., :1]) / np.where(half_sine > 0, half_sine, 1.0)
    )
    return vector


# Boxes


@lru_cache(maxsize=4096)
def merge_boxes(content: bytes) -> Floats:
    """Merge boxes (bytes of float64 [K, 10]) if this adds less than `MERGED_M` to their extent. Cached."""
    # A row is a box: center [3] in m, quaternion [4] wxyz, half sizes [3] in m. Return the rows of the remaining boxes.
    # An argument of type bytes can be a key of the cache; an array cannot.
    boxes = np.frombuffer(content).reshape(-1, 10)
    # For each box, an upper bound [m] of how far the box extends beyond the original boxes inside.
    excess_so_far = np.zeros(len(boxes))
    while len(boxes) > 1:
        # Each pair of boxes gets an enclosing box. `excess` [K, K] is how far this box extends beyond the pair;
        # `low` and `high` [K, K, 3] are two corners of this box in the frame of the first box of the pair.
        excess, low, high = _measure_joins(boxes)
        # Merged boxes of earlier rounds already extend beyond the original boxes. Add their excess.
        excess += np.maximum(excess_so_far[:, None], excess_so_far)
        # Pair each box at most once per round, beginning with the pair that has the smallest excess.
        pairs: list[tuple[int, int]] = []
        paired: set[int] = set()
        for flat_index in np.argsort(excess, axis=None, kind="stable"):
            i, j = divmod(int(flat_index), len(boxes))
            if excess[i, j] >= MERGED_M:
                break
            if not {i, j} & paired:
                paired |= {i, j}
                pairs.append((i, j))
        if not pairs:
            break
        unpaired = [k for k in range(len(boxes)) if k not in paired]
        # Replace each pair i, j by a box that encloses both boxes and has the axes of box i.
        joined = [
            np.concatenate([
                boxes[i, :3] + rotate(boxes[i, 3:7], (low[i, j] + high[i, j]) / 2.0),
                boxes[i, 3:7],
                (high[i, j] - low[i, j]) / 2.0,
            ])
            for i, j in pairs
        ]  # fmt: skip
        boxes = np.concatenate([boxes[unpaired], joined])
        excess_so_far = np.concatenate([excess_so_far[unpaired], [excess[pair] for pair in pairs]])
    return boxes


def _measure_joins(boxes: Floats) -> tuple[Floats, Floats, Floats]:
    """Enclose each pair of boxes i and j in a box with the axes of i. Return an upper bound of how far the new box
    extends beyond i and j, [K, K] (inf for i = j), and the new box's low and high corners in i's frame, [K, K, 3].
    """
    # A row of `boxes` [K, 10] contains center [3] in m, quaternion [4] wxyz and half sizes [3] in m.
    # The frame of box i has its origin at the center of i. In the arrays below, axis 0 is box i, and axis 1 is box j.
    inverse, half_size = boxes[:, None, 3:7] * _INVERSE, boxes[:, None, 7:]
    center_of_j = rotate(inverse, boxes[None, :, :3] - boxes[:, None, :3])
    half_extents = boxes[None, :, 7:, None] * np.eye(3)  # [1, K, 3, 3]: half extents of box j along its own axes
    rotation_of_j = multiply(inverse, boxes[None, :, 3:7])[:, :, None]
    axes_of_j = rotate(rotation_of_j, np.eye(3))
    # Half extents of box j along the axes of box i.
    reach_of_j = np.abs(rotate(rotation_of_j, half_extents)).sum(axis=2)
    low, high = np.minimum(center_of_j - reach_of_j, -half_size), np.maximum(center_of_j + reach_of_j, half_size)
    # The first bound is the largest distance from a point of the enclosing box to box i.
    excess_beyond_i = np.sqrt(np.square(np.maximum(high - half_size, -half_size - low)).sum(axis=-1))
    # If boxes i and j have parallel axes, the distance from a point to the nearer box gives a second bound.
    # A point's distance to the nearer box is at most `half_gap` along one axis, and `margins` along the other two axes.
    margins = np.maximum.reduce(
        [high - half_size, -half_size - low, high - center_of_j - reach_of_j, center_of_j - reach_of_j - low]
    )
    half_gap = np.maximum(np.abs(center_of_j) - reach_of_j - half_size, 0.0) / 2.0
    squares = np.square(margins)
    aligned_excess = np.sqrt((squares.sum(axis=-1, keepdims=True) - squares + np.square(half_gap)).min(axis=-1))
    # Axes are parallel if each component of each axis of j, seen from i, is 0, 1 or −1.
    is_aligned = (np.abs(axes_of_j) * (1.0 - np.abs(axes_of_j)) < 1e-6).all(axis=(2, 3))
    excess = np.minimum(excess_beyond_i, np.where(is_aligned, aligned_excess, np.inf))
    np.fill_diagonal(excess, np.inf)
    return excess, low, high
