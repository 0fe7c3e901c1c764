"""Distances between oriented boxes, many pairs at once.

Cheap lower bounds replace most exact measurements. The first bound replaces one box by its bounding box along the axes
of the other box. The second bound is the greatest separation of the boxes along 15 axes. If two boxes do not overlap,
the nearest points are a corner of one box, or points on an edge of each box. For edges, the distance is the separation
along their common normal (Ericson, Real-Time Collision Detection, 2005, 4.4.1, 5.1.9, 9.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.episode import Floats, Ints
from safevla_recorder.geometry import rotate

TOLERANCE_M = 1e-9
_CHUNK_PAIRS = 512
_CORNER_SIGNS = np.array(list(product((-1.0, 1.0), repeat=3)))  # a box's corners, in units of the half sizes, [8, 3]
# The indices of the two corners of each edge, [12, 2]. Their signs differ in one component.
_EDGE_CORNERS = np.array(
    [(a, b) for a in range(8) for b in range(a) if (_CORNER_SIGNS[a] != _CORNER_SIGNS[b]).sum() == 1]
)


def lengths(vectors: Floats) -> Floats:
    """Return the lengths of vectors [..., 3]."""
    squared: Floats = np.einsum("...j,...j->...", vectors, vectors)
    return np.sqrt(squared)


@dataclass(frozen=True, slots=True)
class WorldBoxes:
    """`K` boxes in the world: centers [K, 3] and half sizes [K, 3] in meters, and axes [K, 3, 3], one axis per row. In
    `from_quaternions` and in indexing, `K` may stand for several dimensions.
    """

    center: Floats
    axes: Floats
    half: Floats

    @classmethod
    def from_quaternions(cls, center: Floats, quaternion: Floats, half: Floats) -> WorldBoxes:
        """Return boxes with the orientations `quaternion`: unit quaternions up to rounding, wxyz, [K, 4]."""
        # `center` and `half` (half sizes) are [K, 3] in meters. The axes of a box are the rows of a matrix, [3, 3].
        unit = quaternion / lengths(quaternion)[..., None]
        return cls(center, rotate(unit[..., None, :], np.eye(3)), half)

    def __getitem__(self, which: Ints | NDArray[np.bool_] | tuple[Ints, Ints] | slice) -> WorldBoxes:
        # Select boxes by index, mask or slice, as NumPy does.
        # `center` and `half` are [..., 3] and `axes` is [..., 3, 3]; `which` selects along their leading dimensions.
        return WorldBoxes(self.center[which], self.axes[which], self.half[which])


def box_distances(a: WorldBoxes, b: WorldBoxes, owner: Ints | None = None) -> Floats:
    """Return the distance in meters between the boxes of each pair, [K]; 0 where they overlap.

    `owner` [K] assigns each pair to a group. A pair that cannot be the nearest pair of its group may get a lower bound
    instead of its distance; the bound is never below the smallest distance in the group.
    """
    # A lower bound never exceeds the true distance. Pairs of one group have the same number in `owner`.
    # So a pair needs no exact measurement if its bound is at least the smallest distance measured so far in its group.
    # Pairs are measured in chunks, which limits memory.
    pairs, group = _BoxPairs.of_boxes(a, b), np.arange(len(a.center)) if owner is None else owner
    distance = pairs.lower_bounds()
    # First measure the pair with the smallest lower bound of each group.
    # This pair is probably the nearest, so that most other pairs of the group need no measurement.
    order = np.lexsort((distance, group))
    is_first_of_group = np.diff(group[order], prepend=-1) > 0
    least = np.full(int(group.max(initial=-1)) + 1, np.inf)  # smallest measured distance of each group
    for candidates in (order[is_first_of_group], order[~is_first_of_group]):
        # `distance` still has lower bounds here.
        # Only a pair whose bound is below the smallest distance of its group can be nearer.
        undecided = candidates[distance[candidates] < least[group[candidates]]]
        for start in range(0, len(undecided), _CHUNK_PAIRS):
            chunk = undecided[start : start + _CHUNK_PAIRS]
            distance[chunk] = pairs[chunk].measure(group[chunk], least)
    return distance


@dataclass(frozen=True, slots=True)
class _BoxPairs:
    """K pairs of boxes: center [K, 3] and axes (columns of `turn`) of the second box, in the first box's frame."""

    center: Floats
    turn: Floats
    half: Floats
    other_half: Floats

    @classmethod
    def of_boxes(cls, a: WorldBoxes, b: WorldBoxes) -> _BoxPairs:
        # Pair each of the K boxes of `a` with the box of `b` at the same index.
        # Products with `a.axes` (one axis per row) rotate world vectors into the frame of the first box.
        # `half` and `other_half` are the half sizes of the first and the second box in m.
        center = np.einsum("kij,kj->ki", a.axes, b.center - a.center)
        return cls(center, a.axes @ b.axes.transpose(0, 2, 1), a.half, b.half)

    def __getitem__(self, which: Ints) -> _BoxPairs:
        # Select pairs by their indices.
        return _BoxPairs(self.center[which], self.turn[which], self.half[which], self.other_half[which])

    def exchange_boxes(self) -> _BoxPairs:
        # Return the same pairs, with the first and the second box of each pair exchanged.
        # The columns of `turn` [K, 3, 3] are the second box's axes in the frame of the first box.
        # So the transpose of `turn` is the inverse rotation. `center` is the center of the second box.
        inverse_turn = self.turn.transpose(0, 2, 1)
        return _BoxPairs(-np.einsum("kij,kj->ki", inverse_turn, self.center), inverse_turn, self.other_half, self.half)

    def separations(self) -> Floats:
        """Return the gap between the boxes along each axis of the first box, negative where they overlap, [K, 3]."""
        # In the frame of the first box, `center` is the second box's center.
        # The columns of `turn` are the second box's axes in this frame.
        # `half` and `other_half` are the half sizes of the two boxes, [K, 3] in m.
        # Half the extent of the second box along each axis of the first box, [K, 3]
        reach = np.einsum("kij,kj->ki", np.abs(self.turn), self.other_half)
        gaps: Floats = np.abs(self.center) - self.half - reach
        return gaps

    def lower_bounds(self) -> Floats:
        # Return a lower bound of the distance for each pair, [K].
        # Replace one box by its bounding box along the axes of the other box; this only reduces the distance.
        # Do so for each box of the pair, and return the larger of the two distances.
        own_gaps, other_gaps = (np.maximum(pairs.separations(), 0.0) for pairs in (self, self.exchange_boxes()))
        bound: Floats = np.maximum(lengths(own_gaps), lengths(other_gaps))
        return bound

    def measure(self, group: Ints, least: Floats) -> Floats:
        """Return each pair's distance, [K], or a lower bound if another pair of the group is nearer. Updates `least`
        [G], the smallest distance of each group, in place.
        """
        # `group` [K] has the group of each pair.
        # For two separate boxes, the nearest point of one box is a corner, or both nearest points lie on edges.
        # The greatest separation along 15 axes is a lower bound of the distance; if it is negative, the boxes overlap.
        # The axes are the 3 face normals of each box, and the 9 common normals of two edges, one of each box.
        exchanged = self.exchange_boxes()
        face_separation = np.maximum(self.separations().max(axis=1), exchanged.separations().max(axis=1))
        edge_separation = self._edge_separations()
        distance: Floats = np.maximum(np.maximum(face_separation, edge_separation), 0.0)
        # If the boxes of a pair overlap, the smallest distance in the pair's group is 0.
        np.minimum.at(least, group, np.where(distance > 0, np.inf, 0.0))
        # Select the pairs whose boxes do not overlap and that may still be the nearest pair of their group.
        apart = np.flatnonzero((distance > 0) & (distance < least[group]))
        # Measure distances from the corners of one box to the other box.
        pairs = self[apart]
        corners = pairs._corners()
        nearest = np.minimum(
            _least_corner_distances(exchanged[apart]._corners(), pairs.other_half),
            _least_corner_distances(corners, pairs.half),
        )
        np.minimum.at(least, group[apart], nearest)
        # Two edges may be nearer than any corner if the greatest separation is along a normal of two edges.
        # `TOLERANCE_M` (1e-9) and 1e-6 allow for rounding errors.
        may_be_edges = (nearest > distance[apart] + TOLERANCE_M) & (
            edge_separation[apart] > face_separation[apart] - 1e-6
        )
        edge_pairs = np.flatnonzero(may_be_edges & (distance[apart] < least[group[apart]]))
        own_corners = pairs.half[edge_pairs, None] * _CORNER_SIGNS
        nearest[edge_pairs] = np.minimum(nearest[edge_pairs], _least_edge_distances(own_corners, corners[edge_pairs]))
        np.minimum.at(least, group[apart], nearest)
        distance[apart] = nearest
        return distance

    def _corners(self) -> Floats:
        # Return the corners of the second box in the frame of the first box, [K, 8, 3].
        # `center` and `turn` (axes as columns) give the pose of the second box in this frame.
        # `_CORNER_SIGNS` [8, 3] has a row such as (1, -1, 1) for each corner.
        # The row multiplies the half sizes `other_half`.
        corners: Floats = self.center[:, None] + np.einsum(
            "kij,kcj->kci", self.turn, self.other_half[:, None] * _CORNER_SIGNS
        )
        return corners

    def _edge_separations(self) -> Floats:
        # Return the greatest gap along the common normals of an edge of one box and an edge of the other, [K].
        # Parallel edges have no unique normal and give -1.
        # Edges are parallel to the axes of their box. So the cross products of the 9 pairs of axes are the normals.
        # In the first box's frame, `center` is the center of the second box.
        # The columns of `turn` are the second box's axes in this frame.
        # `half` and `other_half` are the half sizes of the first and the second box, [K, 3] in m.
        cross_products = np.zeros((len(self.turn), 3, 3, 3))
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):  # cross axis i of the first box with the second box's axes
            cross_products[:, i, :, j], cross_products[:, i, :, k] = -self.turn[:, k], self.turn[:, j]
        normals = cross_products.reshape(-1, 9, 3)
        norms = lengths(normals)
        # Parallel axes have no normal; dividing by 1 avoids a division by zero.
        normals = normals / np.where(norms > 1e-9, norms, 1.0)[..., None]
        center_distance = np.abs(np.einsum("kdj,kj->kd", normals, self.center))
        # Half the extent of the first box along each normal, plus half the extent of the second box, [K, 9]
        half_extents = np.einsum("kdj,kj->kd", np.abs(normals), self.half)
        half_extents += np.einsum("kdj,kj->kd", np.abs(np.einsum("kdi,kij->kdj", normals, self.turn)), self.other_half)
        gaps: Floats = np.where(norms > 1e-9, center_distance - half_extents, -1.0).max(axis=1)
        return gaps


def _least_corner_distances(corners: Floats, half: Floats) -> Floats:
    # Return the least distance of corners [K, 8, 3] from a box with its center at the origin, [K].
    # The corners are in the frame of the box, and `half` [K, 3] are the box's half sizes.
    least: Floats = lengths(np.maximum(np.abs(corners) - half[:, None], 0.0)).min(axis=1)
    return least


def _least_edge_distances(corners: Floats, other_corners: Floats) -> Floats:
    # Return the least distance between an edge of one box and an edge of the other box, [K].
    # Skip a pair of edges unless the nearest points of the two edges' lines are on the edges.
    # The result is infinity if all pairs of edges are skipped. Arrays of vectors are [K, 12 edges, 12 edges, 3].
    # `s` and `t` give the nearest points on the lines of two edges. Both are 0 to 1 if the points are on the edges.
    # Names are as in Ericson 5.1.9; `ab` is the dot product of d1 and d2.
    # The corners of the two boxes are [K, 8, 3] each, in the same frame.
    # `_EDGE_CORNERS` [12, 2] has the indices of the two corners of each edge.
    # An edge of the first box goes from `start` to `start` + d1.
    # An edge of the second box goes from `other_start` to `other_start` + d2.
    start, other_start = corners[:, _EDGE_CORNERS[:, 0], None], other_corners[:, None, _EDGE_CORNERS[:, 0]]
    d1, d2 = corners[:, _EDGE_CORNERS[:, 1], None] - start, other_corners[:, None, _EDGE_CORNERS[:, 1]] - other_start
    r = start - other_start
    pairs = ((d1, d1), (d2, d2), (d1, d2), (d1, r), (d2, r))
    aa, bb, ab, ar, br = (np.einsum("...j,...j->...", u, v) for u, v in pairs)
    determinant = aa * bb - ab * ab
    # The determinant is 0 for parallel edges. Parallel lines have no unique nearest points.
    is_skew = determinant > 1e-12 * aa * bb
    with np.errstate(divide="ignore", invalid="ignore"):
        s, t = (ab * br - bb * ar) / determinant, (aa * br - ab * ar) / determinant
    is_inside = is_skew & (s >= 0) & (s <= 1) & (t >= 0) & (t <= 1)
    s, t = np.where(is_inside, s, 0.0), np.where(is_inside, t, 0.0)
    distances = lengths(r + s[..., None] * d1 - t[..., None] * d2)
    least: Floats = np.where(is_inside, distances, np.inf).min(axis=(1, 2))
    return least
