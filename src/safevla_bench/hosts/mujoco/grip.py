"""What a gripper holds: the body that both of its finger groups touch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.hosts.mujoco.contacts import Bools, Ints, Touches

NOTHING = -1


def gripped(touches: Touches, instants: Ints, fingers: Ints, place: Ints, robot: Bools) -> NDArray[np.int64]:
    """Place of the body that both finger groups touch in each of the substeps `instants`, -1 = none, [R].

    `fingers` [G] is 0, or 1 and 2 for the geoms of the two groups, `place` [G] the recorded body of each geom,
    `robot` [B] tells which bodies are robot: none of them is ever held.
    Of several bodies, the one with the largest single finger contact; of equals, the first.
    """
    holding = np.full(len(instants), NOTHING, dtype=np.int64)
    instant_of = np.full(touches.substeps, NOTHING)
    instant_of[instants] = np.arange(len(instants))
    now = np.flatnonzero(instant_of[touches.substep] != NOTHING)
    first, second = fingers[touches.geom1[now]], fingers[touches.geom2[now]]
    other = place[np.where(first > 0, touches.geom2[now], touches.geom1[now])]
    near = (first + second > 0) & ~robot[other]
    at = instant_of[touches.substep[now]]
    for instant in np.intersect1d(at[near & (first + second == 1)], at[near & (first + second == 2)]):
        here = np.flatnonzero(near & (at == instant))
        holding[instant] = _strongest(touches, now[here], first[here] + second[here], other[here])
    return holding


def _strongest(touches: Touches, which: Ints, side: Ints, body: Ints) -> int:
    both = np.intersect1d(body[side == 1], body[side == 2])
    if len(both) < 2:
        return int(both[0]) if len(both) else NOTHING
    force = touches.forces(which)
    return int(both[np.argmax([force[body == one].max() for one in both])])
