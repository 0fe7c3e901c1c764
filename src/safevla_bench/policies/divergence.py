"""How far a replay went from its recording: body by body and joint by joint, and from which step on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from safevla_bench.foreign import Take
from safevla_bench.foreign.take import Floats
from safevla_bench.interface import Coordinate
from safevla_bench.trajectory import Batch

UNITS = {"position": "m", "rotation": "rad"}


def compare(take: Take, played: Batch, coordinates: Sequence[Coordinate], tolerance: float) -> dict[str, object]:
    """What a record says of it: how many states were `compared`, whether all their numbers are the same (`exact`), and
    under `divergence` for each coordinate the largest difference, its unit, and the first step beyond the tolerance.

    Args:
        take: the recording; without states, the positions of bodies are compared.
        played: the record of the replay.
        coordinates: what the numbers of a state are; velocities and the time count for `exact` only.
        tolerance: in m and rad.
    """
    states = played.sim_state.episode(0)
    if take.states is None or take.states.shape[1] != states.shape[1]:
        return _positions(take, played, tolerance)
    count = min(len(take.states), len(states))
    was, now = take.states[:count], states[:count]
    found = {f"{one.name} {one.kind}": _told(one.kind, _difference(was, now, one), tolerance) for one in coordinates}
    return _summary(count, found, tolerance, exact=was.tobytes() == np.ascontiguousarray(now).tobytes())


def _positions(take: Take, played: Batch, tolerance: float) -> dict[str, object]:
    """The same of the positions of bodies that both recorded; nothing where there is none."""
    bodies, places = played.body_pos_m.episode(0)
    found, exact, count = {}, True, 0
    for column, body in enumerate(bodies):
        was = take.positions_m.get(played.name(int(body)))
        if was is not None:
            count = min(len(was), len(places))
            one, other = was[:count], places[:count, column]
            exact &= bool((one == other).all())
            apart = np.sqrt(np.square(other - one).sum(axis=1))
            found[f"{played.name(int(body))} position"] = _told("position", apart, tolerance)
    return _summary(count, found, tolerance, exact=exact) if found else {"compared": 0}


def _summary(count: int, found: Mapping[str, object], tolerance: float, *, exact: bool) -> dict[str, object]:
    return {"compared": count, "exact": exact, "tolerance": tolerance, "divergence": found}


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


def _told(kind: str, difference: Floats, tolerance: float) -> Mapping[str, object]:
    beyond = np.flatnonzero(difference > tolerance)
    return {
        "max": float(difference.max()),
        "unit": UNITS[kind],
        "first_step": int(beyond[0]) if len(beyond) else None,
    }
