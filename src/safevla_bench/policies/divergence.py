"""How far a replay went from its recording: body by body and joint by joint, and from which step on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from safevla_bench.foreign.take import Floats
from safevla_bench.interface import Coordinate
from safevla_bench.trajectory import Batch

UNITS = {"position": "m", "rotation": "rad"}


def compare(
    recorded: Floats | None, played: Batch, coordinates: Sequence[Coordinate], tolerance: float
) -> dict[str, object]:
    """What a record says of it: `compared` states, whether all their numbers are the same bits (`exact`), and under
    `divergence` for each coordinate the largest difference, its unit, and the first step beyond the tolerance.

    Args:
        recorded: flat states, [T, S] or [T + 1, S], None = there are none to compare with.
        played: the record of the replay.
        coordinates: what the numbers are; velocities and the time count for `exact` only.
        tolerance: in m and rad.
    """
    states = played.sim_state.episode(0)
    if recorded is None or recorded.shape[1] != states.shape[1]:
        return {"compared": 0}
    count = min(len(recorded), len(states))
    was, now = recorded[:count], states[:count]
    found = {f"{one.name} {one.kind}": _told(one, _difference(was, now, one), tolerance) for one in coordinates}
    return {
        "compared": count,
        "exact": was.tobytes() == np.ascontiguousarray(now).tobytes(),
        "tolerance": tolerance,
        "divergence": found,
    }


def _difference(was: Floats, now: Floats, one: Coordinate) -> Floats:
    """Distance in m, or angle in rad, at every compared step, [n]."""
    part = slice(one.first, one.first + one.size)
    if one.kind == "rotation" and one.size == 4:
        return _angle(was[:, part], now[:, part])
    distance: Floats = np.sqrt(np.square(now[:, part] - was[:, part]).sum(axis=1))
    return distance


def _angle(was: Floats, now: Floats) -> Floats:
    """Angle between quaternions of any norm, [n], exactly 0 where they are the same."""
    one, other = (q / np.linalg.norm(q, axis=1, keepdims=True) for q in (was, now))
    apart = np.minimum(np.linalg.norm(one - other, axis=1), np.linalg.norm(one + other, axis=1))
    angle: Floats = 4.0 * np.arcsin(np.clip(apart / 2.0, 0.0, 1.0))
    return angle


def _told(one: Coordinate, difference: Floats, tolerance: float) -> Mapping[str, object]:
    beyond = np.flatnonzero(difference > tolerance)
    return {
        "max": float(difference.max()),
        "unit": UNITS[one.kind],
        "first_step": int(beyond[0]) if len(beyond) else None,
    }
