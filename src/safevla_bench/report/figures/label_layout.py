"""Layout of labels beside their points without overlaps: pure geometry, in points of 1/72 inch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SIXTEENTHS = (0, 8, 2, 14, 6, 10, 4, 12, 1, 15, 7, 9, 3, 13, 5, 11)
_DIRECTIONS = tuple((math.cos(k * math.pi / 8), math.sin(k * math.pi / 8)) for k in _SIXTEENTHS)
"""Sixteen directions around a point: right and left first, where text reads best."""
_STEP_PT = 2.0
_MIN_DISTANCE_PT = 4.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: left, bottom, right, top."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Return whether the two boxes share area."""
        left_or_right = self.right <= other.left or other.right <= self.left
        above_or_below = self.top <= other.bottom or other.top <= self.bottom
        return not (left_or_right or above_or_below)


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    within: Box,
    *,
    over: Sequence[Box] = (),
    avoid: Sequence[Box] = (),
    reach: float,
) -> list[Box] | None:
    """Return a box for each point's label: near its point, inside `within`, on no other label and on no box of `over`.

    Places are tried in rings around each point, the nearest first. Among all within reach, one that also leaves `avoid`
    free is preferred. Points in crowds are placed first.

    Args:
        points: the points, in points of 1/72 inch.
        sizes: width and height of each label.
        within: the area for labels.
        over: boxes that labels must not cover, such as markers.
        avoid: boxes that labels should not cover, such as error bars.
        reach: the largest distance of a label from its point.

    Returns:
        The boxes in the order of the points; None if a label finds no place.
    """
    occupied = [*over]
    boxes: dict[int, Box] = {}
    for k in _crowding_order(points):
        box = _best_box(points[k], sizes[k], within, occupied, avoid, reach)
        if box is None:
            return None
        boxes[k] = box
        occupied.append(box)
    return [boxes[k] for k in range(len(points))]


def _crowding_order(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points, those with the nearest neighbours first; ties in order."""
    nearness = [sum(1.0 / (1.0 + math.dist(point, other)) for other in points) for point in points]
    return sorted(range(len(points)), key=lambda k: (-round(nearness[k], 9), k))


def _best_box(
    point: tuple[float, float],
    size: tuple[float, float],
    within: Box,
    occupied: Sequence[Box],
    avoid: Sequence[Box],
    reach: float,
) -> Box | None:
    centres, far = _candidate_centres(point, size, reach)
    half = np.array(size) / 2.0
    low, high = centres - half, centres + half
    inside = (low >= (within.left, within.bottom)).all(axis=1) & (high <= (within.right, within.top)).all(axis=1)
    free = inside & (_overlap_counts(low, high, occupied) == 0)
    if not free.any():
        return None
    cost = np.where(free, far + 6.0 * _overlap_counts(low, high, avoid), np.inf)
    best = int(cost.argmin())
    return Box(float(low[best, 0]), float(low[best, 1]), float(high[best, 0]), float(high[best, 1]))


def _candidate_centres(point: tuple[float, float], size: tuple[float, float], reach: float) -> tuple[Floats, Floats]:
    """Return centres of boxes around a point, [C, 2], and their distances from it, [C]."""
    distances = np.arange(_MIN_DISTANCE_PT, max(reach, _MIN_DISTANCE_PT) + _STEP_PT / 2, _STEP_PT)
    directions = np.array(_DIRECTIONS)
    offsets = directions * (np.array(size) / 2.0)
    centres = np.array(point) + distances[:, None, None] * directions + offsets
    return centres.reshape(-1, 2), np.repeat(distances, len(directions))


def _overlap_counts(low: Floats, high: Floats, boxes: Sequence[Box]) -> NDArray[np.int64]:
    """Return the number of boxes that each candidate shares area with, [C]."""
    counts = np.zeros(len(low), dtype=np.int64)
    for box in boxes:
        counts += (low[:, 0] < box.right) & (high[:, 0] > box.left) & (low[:, 1] < box.top) & (high[:, 1] > box.bottom)
    return counts
