"""Distances between oriented boxes, many pairs at once: bounding spheres first, then the boxes of near pairs.

A distance is found by alternating projections, p the point of box A nearest to q and q that of box B nearest to p. The
distance |p - q| bounds it from above, the gap between both boxes along p - q from below. Where the two do not meet
after some rounds, or the boxes overlap, all features are compared: two boxes that do not overlap are nearest between a
corner and a box or between two edges (Ericson, Real-Time Collision Detection, 2005, 5.1.9 and 9.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.geometry import cross, rotate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TOLERANCE_M = 1e-9
_ROUNDS, _CHUNK = 12, 512
_SIGNS = np.array(list(product((-1.0, 1.0), repeat=3)))
_EDGES = np.array([(a, b) for a in range(8) for b in range(a) if (_SIGNS[a] != _SIGNS[b]).sum() == 1])


def lengths(vectors: Floats) -> Floats:
    """Return the lengths of vectors [..., 3]."""
    squared: Floats = np.einsum("...j,...j->...", vectors, vectors)
    return np.sqrt(squared)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Centres [K, 3] and half sizes [K, 3] in metres, and axes [K, 3, 3], a row each, in the world; K may be several
    dimensions for `turned` and indices.
    """

    center: Floats
    axes: Floats
    half: Floats

    @classmethod
    def turned(cls, center: Floats, quaternion: Floats, half: Floats) -> Boxes:
        """Return boxes of these orientations, unit quaternions wxyz [K, 4]."""
        return cls(center, rotate(quaternion[..., None, :], np.eye(3)), half)

    def __getitem__(self, which: Ints | NDArray[np.bool_] | tuple[Ints, Ints] | slice) -> Boxes:
        return Boxes(self.center[which], self.axes[which], self.half[which])

    def nearest(self, point: Floats) -> Floats:
        """Return the point of each box that is nearest to a point of the world, [K, 3]."""
        seen = np.einsum("kij,kj->ki", self.axes, point - self.center)
        clipped = np.clip(seen, -self.half, self.half)
        nearest: Floats = self.center + np.einsum("kij,ki->kj", self.axes, clipped)
        return nearest

    def reach(self, direction: Floats) -> Floats:
        """Return how far each box reaches from its centre along the unit vectors [K, ..., 3], [K, ...]."""
        along = np.abs(np.einsum("kij,k...j->k...i", self.axes, direction))
        reach: Floats = np.einsum("k...i,ki->k...", along, self.half)
        return reach

    @property
    def corners(self) -> Floats:
        """The corners, [K, 8, 3]."""
        sides = self.axes * self.half[..., None]
        corners: Floats = self.center[:, None] + np.einsum("ci,kij->kcj", _SIGNS, sides)
        return corners


def box_distances(a: Boxes, b: Boxes, owner: Ints | None = None) -> Floats:
    """Return the distance between each pair of boxes [m], [K], 0 where they overlap.

    With `owner` [K], groups of pairs, a pair that cannot be the nearest of its group may have a lower bound instead
    that is above the least distance of the group.
    """
    p = a.center
    upper, lower = np.full(len(p), np.inf), np.zeros(len(p))
    open_pairs = np.arange(len(p))
    for _ in range(_ROUNDS):
        one, two = a[open_pairs], b[open_pairs]
        q = two.nearest(p[open_pairs])
        nearer = one.nearest(q)
        p = p.copy()
        p[open_pairs] = nearer
        apart = lengths(q - nearer)
        upper[open_pairs] = np.minimum(upper[open_pairs], apart)
        along = (q - nearer) / np.where(apart > 0, apart, 1.0)[:, None]
        between = np.einsum("kj,kj->k", two.center - one.center, along) - one.reach(along) - two.reach(along)
        lower[open_pairs] = np.maximum(lower[open_pairs], between)
        open_pairs = _open(open_pairs, upper, lower, owner)
        if not len(open_pairs):
            break
    for first in range(0, len(open_pairs), _CHUNK):
        rest = open_pairs[first : first + _CHUNK]
        upper[rest] = lower[rest] = _compare_features(a[rest], b[rest])
    return np.where(upper - lower <= TOLERANCE_M, upper, lower)


def _open(pairs: Ints, upper: Floats, lower: Floats, owner: Ints | None) -> Ints:
    """Return the pairs whose distance is not known yet, and matters to their group."""
    matters = upper[pairs] - lower[pairs] > TOLERANCE_M
    if owner is not None:
        least = np.full(int(owner.max(initial=0)) + 1, np.inf)
        np.minimum.at(least, owner, upper)
        matters &= lower[pairs] < least[owner[pairs]]
    return pairs[matters]


def _compare_features(a: Boxes, b: Boxes) -> Floats:
    sides = np.concatenate([a.axes, b.axes], axis=1)
    edges = cross(a.axes[:, :, None], b.axes[:, None]).reshape(-1, 9, 3)
    size = lengths(edges)[..., None]
    edges = np.where(size > 1e-9, edges / np.where(size > 1e-9, size, 1.0), sides[:, :1])
    directions = np.concatenate([sides, edges], axis=1)  # one of them separates two boxes that do not overlap
    between = np.abs(np.einsum("kdj,kj->kd", directions, b.center - a.center))
    separation = (between - a.reach(directions) - b.reach(directions)).max(axis=1)
    distance = np.minimum(
        np.minimum(_corner_distances(a, b), _corner_distances(b, a)), _edge_distances(a.corners, b.corners)
    )
    return np.where(separation <= 0, 0.0, distance)


def _corner_distances(a: Boxes, b: Boxes) -> Floats:
    """Return the least distance of a corner of `a` from `b`, [K]."""
    seen = np.einsum("kij,kcj->kci", b.axes, a.corners - b.center[:, None])
    least: Floats = lengths(np.maximum(np.abs(seen) - b.half[:, None], 0.0)).min(axis=1)
    return least


def _edge_distances(a: Floats, b: Floats) -> Floats:
    """Return the least distance between edges inside which both nearest points lie, of boxes with these corners, [K].
    Where one does not, a corner is nearest.
    """
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
