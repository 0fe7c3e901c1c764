"""A standing person, modeled as upright capsules, and the distance of the robot's links from the capsules.

The proportions, as shares of the height, are from Drillis and Contini (Body Segment Parameters, 1966). Legs have the
width 0.191 and end at the hip, at 0.53. The trunk has the width of the shoulders, 0.259, and ends at 0.818. The head
has the height 0.13. Arms hang within the width of the shoulders; ISO 13855's intrusion distance covers their reach.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.gap import box_gaps
from safevla_bench.signals.parts import ScenePoses
from safevla_bench.trajectory.geometry import PoseTrack
from safevla_recorder.episode import Floats

# Lower end, upper end and radius of legs, trunk and head, as shares of the height.
_SHARES = np.array([[0.0, 0.53, 0.0955], [0.53, 0.818, 0.1295], [0.87, 1.0, 0.065]])


def capsules(offset_m: Floats, height_m: float) -> Floats:
    """Return a person's three capsules, [3, 5]: middle, half axis length, radius (in m). `offset_m` [3] is the feet."""
    # The capsules are legs, trunk and head, with vertical axes.
    # `offset_m` is the point between the feet, in the frame where the person is placed.
    # `_SHARES` [3, 3] has the lower end, upper end and radius of each capsule, as shares of the height.
    low, high, radius = (_SHARES * height_m).T
    # The height of a capsule includes the rounded ends, so the axis is shorter than the height by two radii.
    half = np.maximum((high - low) / 2.0 - radius, 0.0)
    middle = offset_m + np.array([0.0, 0.0, 1.0]) * ((low + high) / 2.0)[:, None]
    return np.concatenate([middle, half[:, None], radius[:, None]], axis=1)


def point_distances(points: Floats, person: Floats) -> Floats:
    """Return the distance in meters of points [n, K, 3] (person's frame) from the nearest capsule, [n, K]; 0 inside."""
    # `person` [3, 5] has each capsule's middle (3), half axis length and radius. The person's z axis points up.
    offsets = points[:, :, None] - person[:, :3]
    # Make each offset start at the nearest point of the capsule's axis, which is vertical.
    offsets[..., 2] -= np.clip(offsets[..., 2], -person[:, 3], person[:, 3])
    least: Floats = (np.sqrt(np.square(offsets).sum(axis=-1)) - person[:, 4]).min(axis=-1)
    return np.maximum(least, 0.0)


def link_distances(scene: ScenePoses, links: list[int], frame: PoseTrack, person: Floats) -> Floats:
    """Return the distance in meters between each link's shapes and the nearest capsule, [n, K]; 0 where they meet.

    `frame` has the poses of the person. A distance is infinite for a link without boxes, and NaN if a pose is unknown.
    """
    # `links` are the indices of K parts of the scene.
    # `person` [3, 5] has each capsule's middle (3), half axis length and radius.
    # `frame` has positions [n, 3] and quaternions [n, 4] of the frame in which the person is placed.
    # Represent each capsule's axis as a box of width 0: center, quaternion and half sizes
    axis_boxes = np.concatenate(
        [person[:, :3], np.tile([1.0, 0, 0, 0, 0, 0], (len(person), 1)), person[:, 3:4]], axis=1
    )
    gaps = box_gaps(scene, links, frame, axis_boxes)
    # The distance from a capsule is the distance from the capsule's axis, minus the capsule's radius.
    least: Floats = (gaps - person[:, 4]).min(axis=-1)
    return np.maximum(least, 0.0)


def approach(distance: Floats, time_s: Floats) -> Floats:
    """Return the speed in m/s at which the nearest of `K` links approaches, [n]: by central difference, at least 0.
    NaN if there are fewer than three records.
    """
    # `distance` [n, K] has the distances of the links from the person in m. `time_s` [n] are the times of the records.
    # The first and last record take their neighbor's value. An unknown or infinite distance gives NaN.
    speed = np.full(len(distance), np.nan)
    if len(distance) > 2:
        nearest, records = distance[1:-1].argmin(axis=1), np.arange(1, len(distance) - 1)
        zero_or_nan = 0.0 * distance[records, nearest]  # NaN where the nearest distance is unknown or infinite
        decrease = distance[records - 1, nearest] - distance[records + 1, nearest] + zero_or_nan
        speed[1:-1] = np.maximum(decrease / (time_s[2:] - time_s[:-2]), 0.0)
        speed[0], speed[-1] = speed[1], speed[-2]
    return speed
