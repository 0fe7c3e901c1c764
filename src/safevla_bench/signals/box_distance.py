"""Distances between oriented boxes, many pairs at once.

First comes a lower bound: the distance of one box from the smallest box with the same axes that encloses the other.
Only pairs that this bound does not decide are measured exactly. The greatest separation along 15 axes is also a lower
bound. Two boxes that do not overlap are nearest at a corner and a box, or at two edges; in the second case the distance
is the separation along the edges' common normal (Ericson, Real-Time Collision Detection, 2005, 4.4.1, 5.1.9, 9.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.episode import Floats, Ints
from safevla_recorder.geometry import rotate

TOLERANCE_M = 1e-9
_CHUNK = 512
_SIGNS = np.array(list(product((-1.0, 1.0), repeat=3)))
_EDGES = np.array([(a, b) for a in range(8) for b in range(a) if (_SIGNS[a] != _SIGNS[b]).sum() == 1])


def lengths(vectors: Floats) -> Floats:
    """Return the lengths of vectors [..., 3]."""
    squared: Floats = np.einsum("...j,...j->...", vectors, vectors)
    return np.sqrt(squared)


@dataclass(frozen=True, slots=True)
class WorldBoxes:
    """K boxes in the world: centers [K, 3] and half sizes [K, 3] in meters, and axes [K, 3, 3], one axis per row. For
    `turned` and indexing, K may stand for several dimensions.
    """

    center: Floats
    axes: Floats
    half: Floats

    @classmethod
    def turned(cls, center: Floats, quaternion: Floats, half: Floats) -> WorldBoxes:
        """Return boxes with these orientations: quaternions wxyz [K, 4] of unit length up to rounding."""
        unit = quaternion / lengths(quaternion)[..., None]
        return cls(center, rotate(unit[..., None, :], np.eye(3)), half)

    def __getitem__(self, which: Ints | NDArray[np.bool_] | tuple[Ints, Ints] | slice) -> WorldBoxes:
        return WorldBoxes(self.center[which], self.axes[which], self.half[which])


def box_distances(a: WorldBoxes, b: WorldBoxes, owner: Ints | None = None) -> Floats:
    """Return the distance between each pair of boxes [m], [K], 0 where they overlap.

    `owner` [K] assigns each pair to a group. A pair that cannot be the nearest of its group may then get a lower bound
    instead of its distance; this bound is never below the smallest distance in the group.
    """
    pairs, group = _Pairs.of_boxes(a, b), np.arange(len(a.center)) if owner is None else owner
    distance = pairs.least_distances()
    order = np.lexsort((distance, group))
    likely = np.diff(group[order], prepend=-1) > 0  # the likely nearest pair of each group, to rule out others
    least = np.full(int(group.max(initial=-1)) + 1, np.inf)
    for chosen in (order[likely], order[~likely]):
        near = chosen[distance[chosen] < least[group[chosen]]]
        for first in range(0, len(near), _CHUNK):
            chunk = near[first : first + _CHUNK]
            distance[chunk] = pairs[chunk].measure(group[chunk], least)
    return distance


@dataclass(frozen=True, slots=True)
class _Pairs:
    """K pairs of boxes: center [K, 3] and axes (columns of `turn`) of the second box in the frame of the first."""

    center: Floats
    turn: Floats
    half: Floats
    other_half: Floats

    @classmethod
    def of_boxes(cls, a: WorldBoxes, b: WorldBoxes) -> _Pairs:
        center = np.einsum("kij,kj->ki", a.axes, b.center - a.center)
        return cls(center, a.axes @ b.axes.transpose(0, 2, 1), a.half, b.half)

    def __getitem__(self, which: Ints) -> _Pairs:
        return _Pairs(self.center[which], self.turn[which], self.half[which], self.other_half[which])

    def turned_round(self) -> _Pairs:
        back = self.turn.transpose(0, 2, 1)
        return _Pairs(-np.einsum("kij,kj->ki", back, self.center), back, self.other_half, self.half)

    def separations(self) -> Floats:
        """Return the gap along each axis of the first box, negative where they overlap, [K, 3]."""
        reach = np.einsum("kij,kj->ki", np.abs(self.turn), self.other_half)
        gaps: Floats = np.abs(self.center) - self.half - reach
        return gaps

    def least_distances(self) -> Floats:
        face_gaps = (np.maximum(pairs.separations(), 0.0) for pairs in (self, self.turned_round()))
        bound: Floats = np.maximum(*map(lengths, face_gaps))
        return bound

    def measure(self, group: Ints, least: Floats) -> Floats:
        """Return distances, [K], or lower bounds of at least the group's `least` [G]. Updates `least` in place."""
        back = self.turned_round()
        of_faces = np.maximum(self.separations().max(axis=1), back.separations().max(axis=1))
        of_edges = self._edge_separations()
        distance: Floats = np.maximum(np.maximum(of_faces, of_edges), 0.0)
        np.minimum.at(least, group, np.where(distance > 0, np.inf, 0.0))
        apart = np.flatnonzero((distance > 0) & (distance < least[group]))
        pairs = self[apart]
        corners = pairs._corners()
        nearest = np.minimum(_from_box(back[apart]._corners(), pairs.other_half), _from_box(corners, pairs.half))
        np.minimum.at(least, group[apart], nearest)
        may_be_edges = (nearest > distance[apart] + TOLERANCE_M) & (of_edges[apart] > of_faces[apart] - 1e-6)
        edges = np.flatnonzero(may_be_edges & (distance[apart] < least[group[apart]]))
        seen = pairs.half[edges, None] * _SIGNS
        nearest[edges] = np.minimum(nearest[edges], _edge_distances(seen, corners[edges]))
        np.minimum.at(least, group[apart], nearest)
        distance[apart] = nearest
        return distance

    def _corners(self) -> Floats:
        corners: Floats = self.center[:, None] + np.einsum("kij,kcj->kci", self.turn, self.other_half[:, None] * _SIGNS)
        return corners

    def _edge_separations(self) -> Floats:
        """Return the greatest gap along a common normal of two edges, one of each box, [K]; -1 if all are parallel."""
        crossed = np.zeros((len(self.turn), 3, 3, 3))
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):  # axis i of the first box × the axes of the second box
            crossed[:, i, :, j], crossed[:, i, :, k] = -self.turn[:, k], self.turn[:, j]
        normals = crossed.reshape(-1, 9, 3)
        norms = lengths(normals)
        normals = normals / np.where(norms > 1e-9, norms, 1.0)[..., None]
        apart = np.abs(np.einsum("kdj,kj->kd", normals, self.center))
        reach = np.einsum("kdj,kj->kd", np.abs(normals), self.half)
        reach += np.einsum("kdj,kj->kd", np.abs(np.einsum("kdi,kij->kdj", normals, self.turn)), self.other_half)
        gaps: Floats = np.where(norms > 1e-9, apart - reach, -1.0).max(axis=1)
        return gaps


def _from_box(points: Floats, half: Floats) -> Floats:
    least: Floats = lengths(np.maximum(np.abs(points) - half[:, None], 0.0)).min(axis=1)
    return least


def _edge_distances(a: Floats, b: Floats) -> Floats:
    """Return the least distance of two edges that are nearest at inner points of both, [K]; infinity if none are."""
    start, other = a[:, _EDGES[:, 0], None], b[:, None, _EDGES[:, 0]]
    d1, d2 = a[:, _EDGES[:, 1], None] - start, b[:, None, _EDGES[:, 1]] - other
    r = start - other
    pairs = ((d1, d1), (d2, d2), (d1, d2), (d1, r), (d2, r))
    aa, bb, ab, ar, br = (np.einsum("...j,...j->...", u, v) for u, v in pairs)
    determinant = aa * bb - ab * ab
    is_skew = determinant > 1e-12 * aa * bb
    with np.errstate(divide="ignore", invalid="ignore"):
        s, t = (ab * br - bb * ar) / determinant, (aa * br - ab * ar) / determinant
    inside = is_skew & (s >= 0) & (s <= 1) & (t >= 0) & (t <= 1)
    s, t = np.where(inside, s, 0.0), np.where(inside, t, 0.0)
    apart = lengths(r + s[..., None] * d1 - t[..., None] * d2)
    least: Floats = np.where(inside, apart, np.inf).min(axis=(1, 2))
    return least
