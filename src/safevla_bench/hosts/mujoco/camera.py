"""The choice of a camera: the point of interest, the cameras to try, and how well each shows the bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface import CLOSE_UP, Camera
from safevla_recorder.episode import Floats

if TYPE_CHECKING:
    import mujoco

WELL_SHOWN = 0.015
"""Share of a picture that makes a body easy to find in the default view."""
_ENOUGH = 0.06
"""Share of a close-up beyond which a body is not shown any better: a table shall not outweigh a finger."""
_NEARLY_BEST = 0.85
_TURNS_DEG = (0, 30, -30, 60, -60, 90, -90, 135, -135, 180)
_TILTS_DEG = (-30, -50, -12, -70)
_RADII = 5.0
_DISTANCE_M = (0.4, 1.4)


def focus(model: mujoco.MjModel, data: mujoco.MjData, groups: Sequence[NDArray[np.intp]]) -> tuple[Floats, float]:
    """The point to look at, [3], and the radius of the smallest body there, in metres.

    `groups` holds the geoms of each body. Where two bodies touch it is the middle of their contacts, else the centre of
    the smallest body: it shows where a contact was that has ended by the end of the control step.
    """
    balls = [_ball(model, data, geoms) for geoms in groups]
    center, radius = min(balls, key=lambda ball: ball[1])
    touching = [contact.pos.copy() for contact in data.contact if _between(contact, groups)]
    return (np.mean(touching, axis=0) if touching else center), radius


def _between(contact: mujoco.MjContact, groups: Sequence[NDArray[np.intp]]) -> bool:
    if len(groups) != 2 or contact.dist > 0:
        return False
    one, other = groups
    return bool((contact.geom1 in one and contact.geom2 in other) or (contact.geom2 in one and contact.geom1 in other))


def _ball(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.intp]) -> tuple[Floats, float]:
    """A ball around geoms; planes, which have no radius, count as large."""
    radii = np.where(model.geom_rbound[geoms] > 0, model.geom_rbound[geoms], np.inf)
    places = data.geom_xpos[geoms]
    center = (places.min(axis=0) + places.max(axis=0)) / 2
    return center, float((np.linalg.norm(places - center, axis=1) + radii).max())


def close_ups(lookat_m: Floats, radius_m: float, azimuth_deg: float) -> Iterator[Camera]:
    """Free cameras around a point, the most natural first: as the default camera looks, from a little above."""
    x, y, z = (float(part) for part in lookat_m)
    distance = float(np.clip(_RADII * radius_m, *_DISTANCE_M))
    for tilt in _TILTS_DEG:
        for turn in _TURNS_DEG:
            yield Camera(CLOSE_UP, (x, y, z), distance, azimuth_deg + turn, float(tilt))


def azimuth_deg(model: mujoco.MjModel, data: mujoco.MjData, camera: str) -> float:
    """The direction in which one of the model's cameras looks, seen from above."""
    forward = -data.cam_xmat[model.camera(camera).id].reshape(3, 3)[:, 2]
    return float(np.degrees(np.arctan2(forward[1], forward[0])))


def shares(seen: NDArray[np.uint8], bodies: int) -> Floats:
    """The share of the picture that shows each body, [B]; `seen` as in `Picture`."""
    counted: Floats = np.bincount(seen.ravel(), minlength=bodies + 1)[1:] / seen.size
    return counted


def chosen(cameras: Sequence[Camera], shown: Sequence[Floats]) -> Camera:
    """The first camera that shows its least visible body nearly as well as the best does."""
    scores = np.array([_score(one) for one in shown])
    return cameras[int(np.flatnonzero(scores >= _NEARLY_BEST * scores.max())[0])]


def _score(shown: Floats) -> float:
    capped = np.minimum(shown / _ENOUGH, 1.0)
    return float(capped.min() + capped.mean() / 4)
