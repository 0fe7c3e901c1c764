"""Divergence of a replay from its recording: body by body and joint by joint, and from which step on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from safevla_bench.foreign import RecordedActions
from safevla_bench.foreign.demonstrations import Floats
from safevla_bench.interface import Coordinate
from safevla_bench.trajectory import Batch

UNITS = {"position": "m", "rotation": "rad"}


def measure_divergence(
    take: RecordedActions, played: Batch, coordinates: Sequence[Coordinate], tolerance: float
) -> dict[str, object]:
    """Return the fields that a record holds about its replay.

    `compared` counts the states, `exact` says whether all their numbers are the same, and `divergence` has for each
    coordinate the largest difference, its unit, and the first step beyond the tolerance.

    Args:
        take: the recording; without states, the positions of bodies are compared.
        played: the record of the replay.
        coordinates: what the numbers of a state are; velocities and the time count for `exact` only.
        tolerance: in m and rad.
    """
    states = played.sim_state.episode_rows(0)
    if take.states is None or take.states.shape[1] != states.shape[1]:
        return _body_divergence(take, played, tolerance)
    count = min(len(take.states), len(states))
    was, now = take.states[:count], states[:count]
    divergence = {
        f"{coordinate.name} {coordinate.kind}": _describe_distance(
            coordinate.kind, _coordinate_distance(was, now, coordinate), tolerance
        )
        for coordinate in coordinates
    }
    return _summarize(count, divergence, tolerance, exact=was.tobytes() == np.ascontiguousarray(now).tobytes())


def _body_divergence(take: RecordedActions, played: Batch, tolerance: float) -> dict[str, object]:
    """Return the same fields from the positions of bodies that both recorded; a count of 0 where there are none."""
    bodies, places = played.body_pos_m.episode_poses(0)
    divergence, exact, count = {}, True, 0
    for column, body in enumerate(bodies):
        was = take.positions_m.get(played.body_label(int(body)))
        if was is not None:
            count = min(len(was), len(places))
            recorded, replayed = was[:count], places[:count, column]
            exact &= bool((recorded == replayed).all())
            apart = np.sqrt(np.square(replayed - recorded).sum(axis=1))
            divergence[f"{played.body_label(int(body))} position"] = _describe_distance("position", apart, tolerance)
    return _summarize(count, divergence, tolerance, exact=exact) if divergence else {"compared": 0}


def _summarize(count: int, divergence: Mapping[str, object], tolerance: float, *, exact: bool) -> dict[str, object]:
    return {"compared": count, "exact": exact, "tolerance": tolerance, "divergence": divergence}


def _coordinate_distance(was: Floats, now: Floats, coordinate: Coordinate) -> Floats:
    """Distance in m, or angle in rad, at every compared step, [n]."""
    part = slice(coordinate.first, coordinate.first + coordinate.size)
    if coordinate.kind == "rotation" and coordinate.size == 4:
        return _quaternion_angle(was[:, part], now[:, part])
    distance: Floats = np.sqrt(np.square(now[:, part] - was[:, part]).sum(axis=1))
    return distance


def _quaternion_angle(was: Floats, now: Floats) -> Floats:
    """Angle between quaternions of any norm, [n], exactly 0 where they are the same."""
    first, second = (q / np.linalg.norm(q, axis=1, keepdims=True) for q in (was, now))
    apart = np.minimum(np.linalg.norm(first - second, axis=1), np.linalg.norm(first + second, axis=1))
    angle: Floats = 4.0 * np.arcsin(np.clip(apart / 2.0, 0.0, 1.0))
    return angle


def _describe_distance(kind: str, difference: Floats, tolerance: float) -> Mapping[str, object]:
    beyond = np.flatnonzero(difference > tolerance)
    return {
        "max": float(difference.max()),
        "unit": UNITS[kind],
        "first_step": int(beyond[0]) if len(beyond) else None,
    }
