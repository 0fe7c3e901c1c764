"""Divergence of a replay from its recording: body by body and joint by joint, and from which step on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Coordinate
from safevla_bench.sources.foreign.demonstrations import Floats, RecordedActions
from safevla_bench.trajectory.batch import Batch

UNITS = {"position": "m", "rotation": "rad"}


def measure_divergence(
    take: RecordedActions,
    played: Batch,
    coordinates: Sequence[Coordinate],
    tolerance: float,
    observed: Sequence[Observation] = (),
) -> dict[str, object]:
    """Return the fields that a record holds about its replay.

    `compared` counts the states, `exact` says whether all their numbers are the same, and `divergence` has for each
    coordinate the largest difference, its unit, and the first step beyond `tolerance`, in m and rad. If nothing can be
    compared, `compared` is 0 and these others are missing.

    Without states the recording's proprioception is compared with `observed`, the observation after each action, else
    the positions of bodies. Velocities and the time count for `exact` only.
    """
    outcome = {} if take.success is None else {"recorded_success": take.success}
    if take.states is None and take.proprioception is not None:
        return {**outcome, **_proprioception_divergence(take.proprioception, observed, tolerance)}
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


_HAND_ALONE = "the pose of the hand and its fingers alone; where objects were was not recorded"
_ROUNDED_RAD = 1e-5
"""Two rotations are the same if their angle is below this: a float32 axis-angle holds no more."""


def _proprioception_divergence(
    recorded: Floats, observed: Sequence[Observation], tolerance: float
) -> dict[str, object]:
    """Return the fields from the proprioception after each action: row k of `recorded`, [n, 8], is step k + 1."""
    count = min(len(recorded), len(observed))
    if not count:
        return {"compared": 0}
    was = recorded[:count]
    eef = np.array([observation.eef_pos_m for observation in observed[:count]])
    fingers = np.array([observation.gripper_qpos for observation in observed[:count]])
    turned = np.array([observation.eef_quat_wxyz for observation in observed[:count]])
    size = np.linalg.norm(was[:, 3:6], axis=1, keepdims=True)
    axis = was[:, 3:6] / np.where(size > 0, size, 1.0)
    recorded_quat = np.concatenate([np.cos(size / 2), axis * np.sin(size / 2)], axis=1)
    angle = _quaternion_angle(recorded_quat, turned)
    same = np.column_stack([eef, fingers]).astype(np.float32) == was[:, [0, 1, 2, 6, 7]].astype(np.float32)
    distances = {
        "end effector position": ("position", np.sqrt(np.square(eef - was[:, :3]).sum(axis=1))),
        "end effector rotation": ("rotation", angle),
        "fingers position": ("position", np.abs(fingers - was[:, 6:]).max(axis=1)),
    }
    divergence = {
        name: _describe_distance(kind, np.concatenate([[0.0], distance]), tolerance)
        for name, (kind, distance) in distances.items()
    }
    summary = _summarize(count, divergence, tolerance, exact=bool(same.all() and (angle < _ROUNDED_RAD).all()))
    return {"basis": _HAND_ALONE, **summary}


def has_diverged(replay: Mapping[str, object], *, succeeded: bool) -> bool:
    """Return whether a replay left its recording, by the tolerance or the success, or could not be compared."""
    divergence = replay.get("divergence")
    if not replay.get("compared") or not isinstance(divergence, Mapping):
        return True
    beyond = any(coordinate["first_step"] is not None for coordinate in divergence.values())
    return beyond or replay.get("recorded_success", succeeded) != succeeded


def _summarize(count: int, divergence: Mapping[str, object], tolerance: float, *, exact: bool) -> dict[str, object]:
    return {"compared": count, "exact": exact, "tolerance": tolerance, "divergence": divergence}


def _coordinate_distance(was: Floats, now: Floats, coordinate: Coordinate) -> Floats:
    part = slice(coordinate.first, coordinate.first + coordinate.size)
    if coordinate.kind == "rotation" and coordinate.size == 4:
        return _quaternion_angle(was[:, part], now[:, part])
    distance: Floats = np.sqrt(np.square(now[:, part] - was[:, part]).sum(axis=1))
    return distance


def _quaternion_angle(was: Floats, now: Floats) -> Floats:
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
