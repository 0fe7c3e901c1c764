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

_NO_PAIR = -1


def measure_gaps(scene: ScenePoses, first: Sequence[int], second: Sequence[int], records: int) -> Floats:
    """Return the smallest gap in meters between parts in `first` and in `second`, [n]; NaN where a pose is unknown.

    The gap is 0 where parts overlap. Two parts of one body do not count. Two bodies that overlap in record 0 count only
    after they have separated. If no pair counts, the gap is infinite. Without shapes or poses in record 0, it is NaN.
    """
    # A part is a link or fixture of the scene, given by its index; several parts may belong to one body.
    # `first` and `second` are indices of parts, and `records` is the number n of records.
    # Two bodies overlap if the gap between them is at most TOLERANCE_M.
    distinct_rows, distinct_of_record = _find_distinct_records(scene, [*first, *second])
    solids_a, solids_b = (_Solids.of_parts(scene, parts, distinct_rows) for parts in (first, second))
    # True for each distinct record in which the pose of any part is unknown.
    # The sum of all centers is NaN if any center is NaN.
    is_unknown = np.isnan(np.concatenate([solids_a.centers, solids_b.centers], axis=1).sum(axis=(1, 2)))
    # `start` is the row of record 0 among the records with distinct poses.
    start = distinct_of_record[0]
    if is_unknown[start] or not len(solids_a.body) or not len(solids_b.body):
        return np.full(records, np.nan)
    # `pairs` [G, 2] lists the pairs of bodies.
    # `pair_number` [P, Q] is the index of the pair of bodies to which two parts belong.
    # `pair_number` is `_NO_PAIR` for two parts of one body.
    pairs, pair_number = _number_pairs(solids_a, solids_b)
    start_a, start_b = (solids.select(slice(start, start + 1)) for solids in (solids_a, solids_b))
    start_gaps = _least_gaps(start_a, start_b, pair_number, len(pairs))[0]
    overlapping_pairs = np.flatnonzero(start_gaps <= TOLERANCE_M)
    # Each pair of bodies that overlaps at the start has a separate column of gaps; all other pairs share column 0.
    column_of_pair = np.zeros(len(pairs), dtype=np.int64)
    column_of_pair[overlapping_pairs] = 1 + np.arange(len(overlapping_pairs))
    column = np.where(pair_number == _NO_PAIR, _NO_PAIR, column_of_pair[pair_number])
    gaps = _least_gaps(solids_a, solids_b, column, len(overlapping_pairs) + 1)
    gaps[is_unknown] = np.nan
    # Copy the results of the distinct records to all records. If every part is fixed, one row applies to all records.
    gaps, is_unknown = (
        np.broadcast_to(values[distinct_of_record], (records, *values.shape[1:])) for values in (gaps, is_unknown)
    )
    # A pair that overlaps in record 0 counts from the first record in which the bodies no longer overlap.
    # Column 0 always counts.
    has_separated = np.logical_or.accumulate(gaps > TOLERANCE_M, axis=0)
    has_separated[:, 0] = True
    least: Floats = np.where(has_separated, gaps, np.inf).min(axis=1)
    least[is_unknown] = np.nan
    return least


def pair_gaps(scene: ScenePoses, first: Sequence[int], second: Sequence[int], record: int) -> tuple[Ints, Floats]:
    """Return the `G` pairs of a body in `first` and a body in `second`, [G, 2], and their gaps in one record, [G]."""
    # `first` and `second` are indices of parts (links or fixtures of the scene); a pair has the bodies of two parts.
    # A pair has two indices in the body table. A body paired with itself has an infinite gap.
    solids_a, solids_b = (_Solids.of_parts(scene, parts, np.array([record])) for parts in (first, second))
    pairs, pair_number = _number_pairs(solids_a, solids_b)
    return pairs, _least_gaps(solids_a, solids_b, pair_number, len(pairs))[0]


def _find_distinct_records(scene: ScenePoses, parts: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the rows of the `U` records with distinct poses, [U], and each record's index in these rows, [n]. So equal
    records are measured only once. Both arrays are [1] if all parts are fixed. Poses are rounded to 1e-11.
    """
    # `parts` are indices of parts of the scene. The track of a fixed part has only one row and is skipped.
    part_tracks = map(scene.place, parts)
    tracks = [values for track in part_tracks for values in (track.position, track.quaternion) if len(values) > 1]
    if not tracks:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    poses = np.round(np.concatenate(tracks, axis=1), 11)
    _, distinct, distinct_of_record = np.unique(poses, axis=0, return_index=True, return_inverse=True)
    return distinct, distinct_of_record.reshape(-1)


def _number_pairs(solids_a: _Solids, solids_b: _Solids) -> tuple[Ints, Ints]:
    # Return the `G` distinct pairs of a body in `solids_a` and a body in `solids_b`, [G, 2].
    # Also return the index of the pair of bodies for each part in `solids_a` and each part in `solids_b`, [P, Q].
    # The index is `_NO_PAIR` for two parts of one body, although the `G` pairs include that body paired with itself.
    # `body` has the index of each part's body in the body table.
    body_a, body_b = np.broadcast_arrays(solids_a.body[:, None], solids_b.body)
    bodies = np.stack([body_a, body_b], axis=-1).reshape(-1, 2)
    pairs, pair_number = np.unique(bodies, axis=0, return_inverse=True)
    return pairs, np.where(body_a == body_b, _NO_PAIR, pair_number.reshape(body_a.shape))


def box_gaps(scene: ScenePoses, parts: Sequence[int], frame: PoseTrack, boxes: Floats) -> Floats:
    """Return the gap between each of `P` parts and each of `Q` boxes, [n, P, Q].

    The boxes [Q, 10] are in `frame`. A gap is infinite for a part without boxes, and NaN if a pose is unknown.
    """
    # A part is a link or fixture of the scene, given by its index.
    # A box has its center, quaternion wxyz and half sizes, in m. `frame` has n poses in the world.
    record_count, box_count = len(frame.position), len(boxes)
    # `part_shapes` has the boxes and the planes of each part.
    with_boxes = [k for k, part in enumerate(parts) if len(scene.geometry.part_shapes[part][0])]
    part_solids = _Solids.of_parts(scene, [parts[k] for k in with_boxes], np.arange(record_count))
    box_solids = _Solids.of_boxes(frame, boxes)
    # Each pair of a part and a box is a separate group, so each pair gets an exact gap.
    pair_number = np.arange(len(with_boxes) * box_count).reshape(len(with_boxes), box_count)
    gaps = np.full((record_count, len(parts), box_count), np.inf)
    gaps[:, with_boxes] = _least_gaps(part_solids, box_solids, pair_number, pair_number.size).reshape(
        record_count, len(with_boxes), box_count
    )
    gaps[np.isnan(part_solids.centers).any(axis=(1, 2)) | np.isnan(box_solids.centers).any(axis=(1, 2))] = np.nan
    return gaps


@dataclass(frozen=True, slots=True)
class _Solids:
    """`P` parts in n records: a sphere around each part's boxes, and the `K` boxes and `L` planes of all parts."""

    body: Ints
    """Index of the body of each part, [P]."""
    centers: Floats
    """Center of the sphere around each part's boxes, [n, P, 3]; the sphere's radius is in `radius` [P]."""
    radius: Floats
    first: Ints
    """Index of the first box of each part; the last entry is the number of boxes, [P + 1]."""
    boxes: WorldBoxes
    """The boxes of all parts, [n, K]."""
    point: Floats
    """A point on each plane, [n, L, 3]."""
    up: Floats
    plane_part: Ints

    @classmethod
    def of_parts(cls, scene: ScenePoses, parts: Sequence[int], rows: Ints) -> _Solids:
        # Return the shapes of `parts` in the records `rows`. Parts without shapes are left out.
        # `rows` are the indices of n records.
        # `part_shapes` has each part's boxes [K, 10] (center, quaternion, half sizes) in the part's frame.
        # `part_shapes` also has each part's planes [L, 7] (point, quaternion); the space below a plane is solid.
        # `centers` and `radius` give a sphere around each part's boxes. `first` is the index of each part's first box.
        shapes = [scene.geometry.part_shapes[part] for part in parts]
        with_shapes = [k for k, (boxes, planes) in enumerate(shapes) if len(boxes) or len(planes)]
        tracks = [scene.place(parts[k]) for k in with_shapes]
        position = _stack_tracks([track.position for track in tracks], rows, 3)
        quaternion = _stack_tracks([track.quaternion for track in tracks], rows, 4)
        boxes, planes = [shapes[k][0] for k in with_shapes], [shapes[k][1] for k in with_shapes]
        spheres = np.array([_bounding_sphere(part_boxes) for part_boxes in boxes]).reshape(-1, 4)
        counts = [len(part_boxes) for part_boxes in boxes]
        box_rows = np.concatenate([np.empty((0, 10)), *boxes])
        plane_rows = np.concatenate([np.empty((0, 7)), *planes])
        # For each box, and for each plane, the index of the part to which it belongs.
        part_of_box = np.repeat(np.arange(len(with_shapes)), counts)
        part_of_plane = np.repeat(np.arange(len(with_shapes)), list(map(len, planes)))
        return cls(
            body=np.array([scene.body[parts[k]] for k in with_shapes], dtype=np.int64),
            centers=position + rotate(quaternion, spheres[:, :3]),
            radius=spheres[:, 3],
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            boxes=_place_boxes(position[:, part_of_box], quaternion[:, part_of_box], box_rows),
            point=position[:, part_of_plane] + rotate(quaternion[:, part_of_plane], plane_rows[:, :3]),
            up=rotate(multiply(quaternion[:, part_of_plane], plane_rows[:, 3:]), np.array([0.0, 0.0, 1.0])),
            plane_part=part_of_plane,
        )

    @classmethod
    def of_boxes(cls, frame: PoseTrack, boxes: Floats) -> _Solids:
        # Make each box a part without a body. The boxes [K, 10] are in `frame`.
        # A box has its center, quaternion wxyz and half sizes in m.
        # There are no planes (L = 0), and each sphere encloses one box.
        count, world_boxes = len(boxes), _place_boxes(frame.position[:, None], frame.quaternion[:, None], boxes)
        return cls(
            body=np.full(count, -1, dtype=np.int64),
            centers=world_boxes.center,
            radius=lengths(boxes[:, 7:]),
            first=np.arange(count + 1),
            boxes=world_boxes,
            point=np.empty((len(world_boxes.center), 0, 3)),
            up=np.empty((len(world_boxes.center), 0, 3)),
            plane_part=np.empty(0, dtype=np.int64),
        )

    def select(self, rows: slice) -> _Solids:
        # Return the same parts in only the records `rows`.
        # Only these four fields have a value for each record; their first dimension is the record.
        return replace(
            self, centers=self.centers[rows], boxes=self.boxes[rows], point=self.point[rows], up=self.up[rows]
        )


def _stack_tracks(tracks: Sequence[Floats], rows: Ints, size: int) -> Floats:
    # Return the values of `P` parts in the records `rows`, [rows, P, size]; the track of a fixed part has only one row.
    record_values = [track[rows] if len(track) > 1 else np.broadcast_to(track, (len(rows), size)) for track in tracks]
    return np.stack(record_values, axis=1) if record_values else np.empty((len(rows), 0, size))


def _place_boxes(position: Floats, quaternion: Floats, boxes: Floats) -> WorldBoxes:
    # Move boxes [K, 10] (center, quaternion, half sizes) from one frame per box to the world.
    # The frames have the positions [n, K, 3] and the quaternions [n, K, 4].
    center = position + rotate(quaternion, boxes[:, :3])
    return WorldBoxes.from_quaternions(
        center, multiply(quaternion, boxes[:, 3:7]), np.broadcast_to(boxes[:, 7:], center.shape)
    )


def _bounding_sphere(boxes: Floats) -> list[float]:
    # Return the center and radius of a sphere around boxes [K, 10]; the radius is -inf without boxes.
    # A box has its center, quaternion and half sizes.
    # Enclose each box in a sphere, and then these spheres in one sphere.
    if not len(boxes):
        return [0.0, 0.0, 0.0, -np.inf]
    box_radius = lengths(boxes[:, 7:])[:, None]
    center = ((boxes[:, :3] - box_radius).min(axis=0) + (boxes[:, :3] + box_radius).max(axis=0)) / 2.0
    center_distance = lengths(boxes[:, :3] - center)[:, None]
    return [*center.tolist(), float((center_distance + box_radius).max())]


def _least_gaps(solids_a: _Solids, solids_b: _Solids, group: Ints, groups: int) -> Floats:
    """Return the smallest gap in each group, [n, groups]; `group` [P, Q] is the group of two parts (-1 = no pair)."""
    # `solids_a` has P parts and `solids_b` has Q parts in n records.
    # Few pairs of boxes need an exact measurement, because spheres give cheap bounds.
    # The result is infinite for a group without pairs.
    record_count = len(solids_a.centers)
    least = np.full(record_count * groups, np.inf)
    center_distance = lengths(solids_a.centers[:, :, None] - solids_b.centers[:, None])
    radii_sum = solids_a.radius[:, None] + solids_b.radius
    # For each record and pair of parts: the index in `least` of the smallest gap in the pair's group, [n, P, Q]
    flat_group = np.where(group >= 0, group, 0) + groups * np.arange(record_count)[:, None, None]
    is_pair = np.broadcast_to((group >= 0) & np.isfinite(radii_sum), flat_group.shape)
    # Bounding spheres: a gap is at most the center distance plus the radii, and at least the distance minus the radii.
    np.minimum.at(least, flat_group[is_pair], (center_distance + radii_sum)[is_pair])
    is_near = is_pair & (np.maximum(center_distance - radii_sum, 0.0) <= least[flat_group])
    # List the pairs of parts that may have the smallest gap in their group. Then list the pairs of these parts' boxes.
    record, part_a, part_b = np.nonzero(is_near)
    near_pair, box_a, box_b = _pair_boxes(solids_a, solids_b, part_a, part_b)
    row, box_group = record[near_pair], flat_group[is_near][near_pair]
    center_distance = lengths(solids_a.boxes.center[row, box_a] - solids_b.boxes.center[row, box_b])
    inner_radii, outer_radii = (
        radii_of_a[box_a] + radii_of_b[box_b]
        for radii_of_a, radii_of_b in zip(_box_radii(solids_a), _box_radii(solids_b), strict=True)
    )
    # Bounds for pairs of boxes: upper bounds from the spheres inside the boxes, lower bounds from spheres around them
    np.minimum.at(least, box_group, np.maximum(center_distance - inner_radii, 0.0))
    undecided = np.flatnonzero(np.maximum(center_distance - outer_radii, 0.0) <= least[box_group])
    row, box_group = row[undecided], box_group[undecided]
    exact = box_distances(solids_a.boxes[row, box_a[undecided]], solids_b.boxes[row, box_b[undecided]], box_group)
    least[:] = np.inf  # replace the upper bounds by exact gaps
    np.minimum.at(least, box_group, exact)
    gaps = least.reshape(record_count, groups)
    _include_planes(gaps, solids_a, solids_b, group)
    _include_planes(gaps, solids_b, solids_a, group.T)
    return gaps


def _pair_boxes(solids_a: _Solids, solids_b: _Solids, part_a: Ints, part_b: Ints) -> tuple[Ints, Ints, Ints]:
    # For each k, pair every box of part `part_a[k]` with every box of part `part_b[k]`.
    # For each pair of boxes, return k and the indices of both boxes.
    # `solids.first` [P + 1] has the index of the first box of each part. Boxes of all parts have consecutive indices.
    box_count_a, box_count_b = np.diff(solids_a.first)[part_a], np.diff(solids_b.first)[part_b]
    pair_counts = box_count_a * box_count_b
    k = np.repeat(np.arange(len(pair_counts)), pair_counts)
    # For each pair of parts, number the pairs of boxes from 0. The box of the second part changes fastest.
    number = np.arange(len(k)) - np.repeat(np.cumsum(pair_counts) - pair_counts, pair_counts)
    box_a = solids_a.first[part_a[k]] + number // box_count_b[k]
    return k, box_a, solids_b.first[part_b[k]] + number % box_count_b[k]


def _box_radii(solids: _Solids) -> tuple[Floats, Floats]:
    # Return the radii of the largest sphere inside each box, [K], and of the smallest sphere around each box, [K].
    # Half sizes do not change between records, so those of the first record are enough.
    half = solids.boxes.half[0]
    return half.min(axis=1, initial=np.inf), lengths(half)


def _include_planes(least: Floats, plane_solids: _Solids, box_solids: _Solids, group: Ints) -> None:
    """Update `least` [n, groups] in place with gaps between planes of `plane_solids` and boxes of `box_solids`."""
    # `group` [P, Q] is the group of a part of `plane_solids` and a part of `box_solids`; -1 = not a pair.
    # `point` is a point on a plane, and `up` is the plane's normal. The space below the plane is solid.
    part_of_box, boxes = np.repeat(np.arange(len(box_solids.body)), np.diff(box_solids.first)), box_solids.boxes
    for plane, plane_part in enumerate(plane_solids.plane_part):
        up, point = plane_solids.up[:, plane], plane_solids.point[:, plane]
        # Half the extent of each box along the normal, and the height of the box's lowest point above the plane, [n, K]
        half_extent = np.einsum("nki,nki->nk", np.abs(np.einsum("nkij,nj->nki", boxes.axes, up)), boxes.half)
        height = np.einsum("nkj,nj->nk", boxes.center - point[:, None], up) - half_extent
        group_of_box = group[plane_part][part_of_box]
        for group_number in np.unique(group_of_box):
            if group_number >= 0:
                group_gap = np.maximum(height[:, group_of_box == group_number], 0.0).min(axis=1)
                least[:, group_number] = np.minimum(least[:, group_number], group_gap)
