"""Where labels go: beside their points, over nothing else, the same each time. Pure geometry, in points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_TURNS = (0, 8, 2, 14, 6, 10, 4, 12, 1, 15, 7, 9, 3, 13, 5, 11)
_DIRECTIONS = tuple((math.cos(k * math.pi / 8), math.sin(k * math.pi / 8)) for k in _TURNS)
"""Sixteen ways around a point: right and left first, where text reads best."""
_STEP_PT = 2.0
_NEAREST_PT = 4.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: left, bottom, right, top."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether they share area."""
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.top <= other.bottom or other.top <= self.bottom)


def place(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    within: Box,
    *,
    over: Sequence[Box] = (),
    avoid: Sequence[Box] = (),
    reach: float,
) -> list[Box] | None:
    """A box for each point's label: near its point, inside `within`, on no other label and on no box of `over`.

    Places are tried in rings around each point, the nearest first, and one that also leaves `avoid` free is preferred
    among all within reach. Points in crowds choose first.

    Args:
        points: the points, in points of 1/72 inch.
        sizes: width and height of each label.
        within: where labels may lie.
        over: what they must not cover, such as markers.
        avoid: what they should not cover, such as error bars.
        reach: how far a label may be from its point.

    Returns:
        The boxes in the order of the points; None where some label finds no place.
    """
    taken = [*over]
    found: dict[int, Box] = {}
    for k in _crowded_first(points):
        box = _best(points[k], sizes[k], within, taken, avoid, reach)
        if box is None:
            return None
        found[k] = box
        taken.append(box)
    return [found[k] for k in range(len(points))]


def _crowded_first(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices by how near the others are, nearest first; ties in order."""
    nearness = [sum(1.0 / (1.0 + math.dist(one, other)) for other in points) for one in points]
    return sorted(range(len(points)), key=lambda k: (-round(nearness[k], 9), k))


def _best(
    point: tuple[float, float],
    size: tuple[float, float],
    within: Box,
    taken: Sequence[Box],
    avoid: Sequence[Box],
    reach: float,
) -> Box | None:
    centres, far = _candidates(point, size, reach)
    half = np.array(size) / 2.0
    low, high = centres - half, centres + half
    inside = (low >= (within.left, within.bottom)).all(axis=1) & (high <= (within.right, within.top)).all(axis=1)
    free = inside & (_meetings(low, high, taken) == 0)
    if not free.any():
        return None
    cost = np.where(free, far + 6.0 * _meetings(low, high, avoid), np.inf)
    best = int(cost.argmin())
    return Box(float(low[best, 0]), float(low[best, 1]), float(high[best, 0]), float(high[best, 1]))


def _candidates(point: tuple[float, float], size: tuple[float, float], reach: float) -> tuple[Floats, Floats]:
    """Centres of boxes around a point, [C, 2], and how far each stands off, [C]."""
    off = np.arange(_NEAREST_PT, max(reach, _NEAREST_PT) + _STEP_PT / 2, _STEP_PT)
    way = np.array(_DIRECTIONS)
    aside = way * (np.array(size) / 2.0)
    centres = np.array(point) + off[:, None, None] * way + aside
    return centres.reshape(-1, 2), np.repeat(off, len(way))


def _meetings(low: Floats, high: Floats, boxes: Sequence[Box]) -> NDArray[np.int64]:
    """With how many boxes each candidate shares area, [C]."""
    many = np.zeros(len(low), dtype=np.int64)
    for box in boxes:
        many += (low[:, 0] < box.right) & (high[:, 0] > box.left) & (low[:, 1] < box.top) & (high[:, 1] > box.bottom)
    return many
