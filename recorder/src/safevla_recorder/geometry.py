"""The geometry of a scene: poses of fixed bodies and robot links, and oriented boxes around all collision shapes.

A scene is a list of parts. Its description is a JSON text with each part's pose relative to its parent in record 0, and
its shapes by their hash. The description is the same for all episodes of a scene, and is stored once in a file. The
channel `link_motion` is each part's motion relative to its parent since record 0: a rotation vector and a translation
in the part's own frame.
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
WORLD, TRACKED = -1, -2
ALL_MOTION = tuple(range(6))
MERGED_M = 0.005  # boxes are merged if all points of the merged box are closer than this to the original boxes
_RESOLUTION = 2.0**-22  # resolution of motions, 0.24 µrad or µm, so that compressed records stay small


@dataclass(frozen=True)
class Part:
    """A rigid part of a scene: a link, or a body that does not move."""

    body: str  # recorded body that the part belongs to; empty = none
    parent: int = WORLD
    """Index of the parent, an earlier part. `WORLD` = the part is fixed; `TRACKED` = its pose is that of `body`."""
    motion: tuple[int, ...] = ()
    """Components of the motion relative to the parent: 0 to 2 are a rotation vector, 3 to 5 are a translation."""
    boxes: Floats = field(default_factory=lambda: np.empty((0, 10)))
    """Boxes in the part's frame, [K, 10]: center [m], quaternion wxyz and half sizes [m] of each."""
    planes: Floats = field(default_factory=lambda: np.empty((0, 7)))
    """Planes in the part's frame, [K, 7]: point and quaternion of each; the half-space below its xy plane is solid."""


class Geometry:
    """The parts of one episode, with their poses in record 0."""

    def __init__(self, parts: Sequence[Part], hand: Sequence[int], position: Floats, quaternion: Floats) -> None:
        """Describe the scene. `hand` has the indices of hand and finger parts; world poses are [P, 3] and [P, 4]."""
        self._moving = [k for k, part in enumerate(parts) if part.motion]
        self._columns = [6 * k + axis for k, place in enumerate(self._moving) for axis in parts[place].motion]
        self._parents = [max(part.parent, WORLD) for part in parts]
        self._start = self._place(position[None], quaternion[None])
        self.text = self._describe(parts, hand) if np.isfinite(np.concatenate(self._start, axis=2)).all() else None
        """The scene's description; None if a pose is not finite."""

    def _place(self, position: Floats, quaternion: Floats) -> tuple[Floats, Floats]:
        rows = len(position)
        ground = np.concatenate([position, np.zeros((rows, 1, 3))], axis=1)[:, self._parents]
        upright = np.broadcast_to([[[1.0, 0.0, 0.0, 0.0]]], (rows, 1, 4))
        back = np.concatenate([quaternion, upright], axis=1)[:, self._parents]
        return turn_back(back, position - ground), multiply(back * _INVERSE, quaternion)

    def measure_motion(self, position: Floats, quaternion: Floats) -> Floats | None:
        """Return the channel `link_motion`, [n, M], for world poses [n, P, 3] and [n, P, 4]; None if M is 0."""
        if self.text is None or not self._columns:
            return None
        place, turn = (values[:, self._moving] for values in self._place(position, quaternion))
        start, back = (values[:, self._moving] for values in self._start)
        turned = multiply(back * _INVERSE, turn)
        moved = turn_back(back, place - start)
        motion = np.concatenate([_rotation_vector(turned), moved], axis=2).reshape(len(position), -1)
        rounded: Floats = np.round(motion[:, self._columns] / _RESOLUTION) * _RESOLUTION + 0.0
        return rounded

    def _describe(self, parts: Sequence[Part], hand: Sequence[int]) -> str:
        shapes: dict[str, list[list[float]]] = {}
        rows = []
        for k, part in enumerate(parts):
            pose = [*self._start[0][0, k].tolist(), *self._start[1][0, k].tolist()]
            row = {"body": part.body, "parent": part.parent, "motion": list(part.motion)}
            row["pose"] = [] if part.parent == TRACKED else [round(number, 8) + 0.0 for number in pose]
            boxes = merge_boxes(np.ascontiguousarray(part.boxes).tobytes()).tolist()
            numbers = [[round(number, 6) + 0.0 for number in shape] for shape in boxes + part.planes.tolist()]
            if numbers:
                row["shape"] = hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]
                shapes[str(row["shape"])] = numbers
            rows.append(row)
        return json.dumps({"hand": list(hand), "parts": rows, "shapes": shapes}, separators=(",", ":"))


_INVERSE = np.array([1.0, -1.0, -1.0, -1.0])


def cross(a: Floats, b: Floats) -> Floats:
    """Return the cross products of vectors [..., 3]; for few vectors, ten times as fast as NumPy's."""
    product: Floats = a[..., _NEXT] * b[..., _LAST] - a[..., _LAST] * b[..., _NEXT]
    return product


_NEXT, _LAST = np.array([1, 2, 0]), np.array([2, 0, 1])


def multiply(a: Floats, b: Floats) -> Floats:
    """Return the products of quaternions wxyz, [..., 4]."""
    w = a[..., :1] * b[..., :1] - (a[..., 1:] * b[..., 1:]).sum(axis=-1, keepdims=True)
    return np.concatenate([w, a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:] + cross(a[..., 1:], b[..., 1:])], -1)


def rotate(quaternion: Floats, vector: Floats) -> Floats:
    """Return vectors [..., 3] rotated by unit quaternions wxyz [..., 4]."""
    twice = 2.0 * cross(quaternion[..., 1:], vector)
    turned: Floats = vector + quaternion[..., :1] * twice + cross(quaternion[..., 1:], twice)
    return turned


def turn_back(quaternion: Floats, vector: Floats) -> Floats:
    """Rotate world vectors [..., 3] into the frames of bodies, given the bodies' unit quaternions wxyz [..., 4]."""
    return rotate(quaternion * _INVERSE, vector)


def _rotation_vector(quaternion: Floats) -> Floats:
    axis = np.where(quaternion[..., :1] < 0, -1.0, 1.0) * quaternion
    sine = np.sqrt(np.square(axis[..., 1:]).sum(axis=-1, keepdims=True))
    vector: Floats = axis[..., 1:] * (2.0 * np.arctan2(sine, axis[..., :1]) / np.where(sine > 0, sine, 1.0))
    return vector


# Boxes


@lru_cache(maxsize=4096)
def merge_boxes(content: bytes) -> Floats:
    """Merge boxes, given as bytes of float64 [K, 10], if a merged box exceeds them by less than `MERGED_M`. Cached."""
    boxes = np.frombuffer(content).reshape(-1, 10)
    added = np.zeros(len(boxes))
    while len(boxes) > 1:
        excess, low, high = _join_excess(boxes)
        excess += np.maximum(added[:, None], added)
        pairs: list[tuple[int, int]] = []
        used: set[int] = set()
        for flat in np.argsort(excess, axis=None, kind="stable"):
            i, j = divmod(int(flat), len(boxes))
            if excess[i, j] >= MERGED_M:
                break
            if not {i, j} & used:
                used |= {i, j}
                pairs.append((i, j))
        if not pairs:
            break
        rest = [k for k in range(len(boxes)) if k not in used]
        joined = [
            np.concatenate([
                boxes[i, :3] + rotate(boxes[i, 3:7], (low[i, j] + high[i, j]) / 2.0),
                boxes[i, 3:7],
                (high[i, j] - low[i, j]) / 2.0,
            ])
            for i, j in pairs
        ]  # fmt: skip
        boxes = np.concatenate([boxes[rest], joined])
        added = np.concatenate([added[rest], [excess[pair] for pair in pairs]])
    return boxes


def _join_excess(boxes: Floats) -> tuple[Floats, Floats, Floats]:
    """Enclose each two boxes i and j by one box in the frame of i. Return the largest distance by which the enclosing
    box extends beyond i and j, [K, K], inf if unknown, and its lower and upper corner, [K, K, 3] each.
    """
    back, half = boxes[:, None, 3:7] * _INVERSE, boxes[:, None, 7:]
    center = rotate(back, boxes[None, :, :3] - boxes[:, None, :3])
    sides = boxes[None, :, 7:, None] * np.eye(3)  # [1, K, 3, 3]: half extents of box j along its axes
    turn = multiply(back, boxes[None, :, 3:7])[:, :, None]
    axes = rotate(turn, np.eye(3))
    reach = np.abs(rotate(turn, sides)).sum(axis=2)
    low, high = np.minimum(center - reach, -half), np.maximum(center + reach, half)
    beyond = np.sqrt(np.square(np.maximum(high - half, -half - low)).sum(axis=-1))  # extension beyond box i alone
    slack = np.maximum.reduce([high - half, -half - low, high - center - reach, center - reach - low])
    gap = np.maximum(np.abs(center) - reach - half, 0.0) / 2.0
    squares = np.square(slack)
    brick = np.sqrt((squares.sum(axis=-1, keepdims=True) - squares + np.square(gap)).min(axis=-1))
    is_aligned = (np.abs(axes) * (1.0 - np.abs(axes)) < 1e-6).all(axis=(2, 3))
    excess = np.minimum(beyond, np.where(is_aligned, brick, np.inf))
    np.fill_diagonal(excess, np.inf)
    return excess, low, high
