"""What a gripper holds: the body that both of its finger groups touch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.hosts.contacts import Bools, Ints, Touches

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
    side = fingers[touches.geom1] + fingers[touches.geom2]
    other = place[np.where(fingers[touches.geom1] > 0, touches.geom2, touches.geom1)]
    near = np.flatnonzero((side > 0) & (instant_of[touches.substep] != NOTHING) & ~robot[other])
    at = instant_of[touches.substep[near]]
    for instant in np.unique(at):
        here = near[at == instant]
        holding[instant] = _strongest(touches, here, side[here], other[here])
    return holding


def _strongest(touches: Touches, which: Ints, side: Ints, body: Ints) -> int:
    both = np.intersect1d(body[side == 1], body[side == 2])
    if len(both) < 2:
        return int(both[0]) if len(both) else NOTHING
    force = touches.forces(which)
    return int(both[np.argmax([force[body == one].max() for one in both])])
