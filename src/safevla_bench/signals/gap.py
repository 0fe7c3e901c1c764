"""The gap between bodies: the smallest distance between their collision shapes, record by record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from safevla_bench.signals.box_distance import TOLERANCE_M, WorldBoxes, box_distances, lengths
from safevla_bench.signals.parts import ScenePoses
from safevla_bench.trajectory.geometry import PoseTrack
from safevla_recorder.episode import Floats, Ints
from safevla_recorder.geometry import multiply, rotate

_APART = -1


def measure_gaps(scene: ScenePoses, first: Sequence[int], second: Sequence[int], records: int) -> Floats:
    """Return the smallest gap between any part of `first` and any of `second` [m], [n]; NaN if a pose is unknown.

    The gap is 0 where parts overlap. Two parts of one body are not a pair. Two bodies that overlap in record 0 are left
    out until they separate. The gap is infinite while no pair remains.
    """
    rows, row = _find_distinct(scene, [*first, *second])
    a, b = _Solids.of_parts(scene, first, rows), _Solids.of_parts(scene, second, rows)
    unknown = np.isnan(np.concatenate([a.centers, b.centers], axis=1).sum(axis=(1, 2)))
    at_start = slice(row[0], row[0] + 1)
    if unknown[row[0]] or not len(a.body) or not len(b.body):
        return np.full(records, np.nan)
    pairs, group = _number_pairs(a, b)
    start = _least_gaps(a.select(at_start), b.select(at_start), group, len(pairs))[0]
    overlapping = np.flatnonzero(start <= TOLERANCE_M)
    label = np.zeros(len(pairs), dtype=np.int64)
    label[overlapping] = 1 + np.arange(len(overlapping))
    gaps = _least_gaps(a, b, np.where(group == _APART, _APART, label[group]), len(overlapping) + 1)
    gaps[unknown] = np.nan
    gaps, unknown = (np.broadcast_to(values[row], (records, *values.shape[1:])) for values in (gaps, unknown))
    has_separated = np.logical_or.accumulate(gaps > TOLERANCE_M, axis=0)
    has_separated[:, 0] = True
    least: Floats = np.where(has_separated, gaps, np.inf).min(axis=1)
    least[unknown] = np.nan
    return least


def pair_gaps(
    scene: ScenePoses, first: Sequence[int], second: Sequence[int], records: int, record: int
) -> tuple[Ints, Floats]:
    """Return the pairs of bodies between two lists of parts, [G, 2], and the gap of each pair in one record, [G]."""
    a, b = (_Solids.of_parts(scene, parts, np.array([record])) for parts in (first, second))
    pairs, group = _number_pairs(a, b)
    return pairs, _least_gaps(a, b, group, len(pairs))[0]


def _find_distinct(scene: ScenePoses, parts: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the rows of the m records with distinct poses, [m], and for each record the index into these rows, [n], so
    that equal poses are measured once. If all parts are fixed, both arrays are [1]. Poses are rounded to 1e-11.
    """
    placed = map(scene.place, parts)
    tracks = [values for track in placed for values in (track.position, track.quaternion) if len(values) > 1]
    if not tracks:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    poses = np.round(np.concatenate(tracks, axis=1), 11)
    _, rows, row = np.unique(poses, axis=0, return_index=True, return_inverse=True)
    return rows, row.reshape(-1)


def _number_pairs(a: _Solids, b: _Solids) -> tuple[Ints, Ints]:
    pairs = np.unique(np.stack(np.broadcast_arrays(a.body[:, None], b.body), axis=-1).reshape(-1, 2), axis=0)
    number = {(int(one), int(two)): k for k, (one, two) in enumerate(pairs)}
    return pairs, np.array([[_APART if p == q else number[int(p), int(q)] for q in b.body] for p in a.body])


def box_gaps(scene: ScenePoses, parts: Sequence[int], frame: PoseTrack, boxes: Floats) -> Floats:
    """Return the gap between each of P parts and each of Q boxes, [n, P, Q].

    The boxes [Q, 10] are in `frame`. A gap is infinite for a part without boxes, and NaN if a pose is unknown.
    """
    records, count = len(frame.position), len(boxes)
    solid = [k for k, part in enumerate(parts) if len(scene.geometry.part_shapes[part][0])]
    a = _Solids.of_parts(scene, [parts[k] for k in solid], np.arange(records))
    b = _Solids.of_boxes(frame, boxes)
    group = np.arange(len(solid) * count).reshape(len(solid), count)
    gaps = np.full((records, len(parts), count), np.inf)
    gaps[:, solid] = _least_gaps(a, b, group, group.size).reshape(records, len(solid), count)
    gaps[np.isnan(a.centers).any(axis=(1, 2)) | np.isnan(b.centers).any(axis=(1, 2))] = np.nan
    return gaps


@dataclass(frozen=True, slots=True)
class _Solids:
    """P parts with shapes in the world over n records: a sphere around each part's boxes, all K boxes, and L planes."""

    body: Ints
    """Index of the body of each part, [P]."""
    centers: Floats
    """Center of the sphere around each part's boxes, [n, P, 3]; its radius is in `radius` [P]."""
    radius: Floats
    first: Ints
    """Index of the first box of each part, and at the end the number of boxes, [P + 1]."""
    boxes: WorldBoxes
    """The boxes of all parts, [n, K]."""
    point: Floats
    """A point on each plane, [n, L, 3]."""
    up: Floats
    plane_part: Ints

    @classmethod
    def of_parts(cls, scene: ScenePoses, parts: Sequence[int], rows: Ints) -> _Solids:
        shapes = [scene.geometry.part_shapes[part] for part in parts]
        solid = [k for k, (boxes, planes) in enumerate(shapes) if len(boxes) or len(planes)]
        tracks = [scene.place(parts[k]) for k in solid]
        position = _stack([track.position for track in tracks], rows, 3)
        quaternion = _stack([track.quaternion for track in tracks], rows, 4)
        boxes, planes = [shapes[k][0] for k in solid], [shapes[k][1] for k in solid]
        spheres = np.array([_bounding_sphere(rows) for rows in boxes]).reshape(-1, 4)
        counts = [len(rows) for rows in boxes]
        box, plane = np.concatenate([np.empty((0, 10)), *boxes]), np.concatenate([np.empty((0, 7)), *planes])
        owner, of_plane = (np.repeat(np.arange(len(solid)), list(map(len, each))) for each in (boxes, planes))
        return cls(
            body=np.array([scene.body[parts[k]] for k in solid], dtype=np.int64),
            centers=position + rotate(quaternion, spheres[:, :3]),
            radius=spheres[:, 3],
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            boxes=_place_boxes(position[:, owner], quaternion[:, owner], box),
            point=position[:, of_plane] + rotate(quaternion[:, of_plane], plane[:, :3]),
            up=rotate(multiply(quaternion[:, of_plane], plane[:, 3:]), np.array([0.0, 0.0, 1.0])),
            plane_part=of_plane,
        )

    @classmethod
    def of_boxes(cls, frame: PoseTrack, boxes: Floats) -> _Solids:
        count, placed = len(boxes), _place_boxes(frame.position[:, None], frame.quaternion[:, None], boxes)
        return cls(
            body=np.full(count, -1, dtype=np.int64),
            centers=placed.center,
            radius=lengths(boxes[:, 7:]),
            first=np.arange(count + 1),
            boxes=placed,
            point=np.empty((len(placed.center), 0, 3)),
            up=np.empty((len(placed.center), 0, 3)),
            plane_part=np.empty(0, dtype=np.int64),
        )

    def select(self, rows: slice) -> _Solids:
        return replace(
            self, centers=self.centers[rows], boxes=self.boxes[rows], point=self.point[rows], up=self.up[rows]
        )


def _stack(tracks: Sequence[Floats], rows: Ints, size: int) -> Floats:
    placed = [track[rows] if len(track) > 1 else np.broadcast_to(track, (len(rows), size)) for track in tracks]
    return np.stack(placed, axis=1) if placed else np.empty((len(rows), 0, size))


def _place_boxes(position: Floats, quaternion: Floats, boxes: Floats) -> WorldBoxes:
    center = position + rotate(quaternion, boxes[:, :3])
    return WorldBoxes.turned(center, multiply(quaternion, boxes[:, 3:7]), np.broadcast_to(boxes[:, 7:], center.shape))


def _bounding_sphere(boxes: Floats) -> list[float]:
    if not len(boxes):
        return [0.0, 0.0, 0.0, -np.inf]
    reach = lengths(boxes[:, 7:])[:, None]
    center = ((boxes[:, :3] - reach).min(axis=0) + (boxes[:, :3] + reach).max(axis=0)) / 2.0
    distance = lengths(boxes[:, :3] - center)[:, None]
    return [*center.tolist(), float((distance + reach).max())]


def _least_gaps(a: _Solids, b: _Solids, group: Ints, groups: int) -> Floats:
    """Return the least gap in each group of part pairs per record, [n, groups]; `group` [P, Q] is -1 for no pair."""
    records = len(a.centers)
    least = np.full(records * groups, np.inf)
    distance = lengths(a.centers[:, :, None] - b.centers[:, None])
    reach = a.radius[:, None] + b.radius
    slot = np.where(group >= 0, group, 0) + groups * np.arange(records)[:, None, None]
    is_pair = np.broadcast_to((group >= 0) & np.isfinite(reach), slot.shape)
    np.minimum.at(least, slot[is_pair], (distance + reach)[is_pair])
    near = is_pair & (np.maximum(distance - reach, 0.0) <= least[slot])
    record, p, q = np.nonzero(near)
    counts = (np.diff(a.first)[p], np.diff(b.first)[q])
    total = counts[0] * counts[1]
    pair = np.repeat(np.arange(len(total)), total)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(total) - total, total)
    i = a.first[p[pair]] + within // counts[1][pair]
    j = b.first[q[pair]] + within % counts[1][pair]
    row, place = record[pair], slot[near][pair]
    distance = lengths(a.boxes.center[row, i] - b.boxes.center[row, j])
    inner, outer = (one[i] + two[j] for one, two in zip(_box_radii(a), _box_radii(b), strict=True))
    np.minimum.at(least, place, np.maximum(distance - inner, 0.0))
    kept = np.flatnonzero(np.maximum(distance - outer, 0.0) <= least[place])
    row, place = row[kept], place[kept]
    exact = box_distances(a.boxes[row, i[kept]], b.boxes[row, j[kept]], place)
    least[:] = np.inf
    np.minimum.at(least, place, exact)
    gaps = least.reshape(records, groups)
    _add_planes(gaps, a, b, group)
    _add_planes(gaps, b, a, group.T)
    return gaps


def _box_radii(solids: _Solids) -> tuple[Floats, Floats]:
    half = solids.boxes.half[0]
    return half.min(axis=1, initial=np.inf), lengths(half)


def _add_planes(least: Floats, a: _Solids, b: _Solids, group: Ints) -> None:
    """Include the gaps between planes of `a` and boxes of `b` in the minimum `least` [n, groups]."""
    part, boxes = np.repeat(np.arange(len(b.body)), np.diff(b.first)), b.boxes
    for k, owner in enumerate(a.plane_part):
        up, point = a.up[:, k], a.point[:, k]
        reach = np.einsum("nki,nki->nk", np.abs(np.einsum("nkij,nj->nki", boxes.axes, up)), boxes.half)
        height = np.einsum("nkj,nj->nk", boxes.center - point[:, None], up) - reach
        for number in np.unique(group[owner][part]):
            if number >= 0:
                of_group = np.maximum(height[:, group[owner][part] == number], 0.0).min(axis=1)
                least[:, number] = np.minimum(least[:, number], of_group)
