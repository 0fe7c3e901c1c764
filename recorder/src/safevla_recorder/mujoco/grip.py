"""The gripped body: the one that both finger groups of a gripper touch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.episode import Bools
from safevla_recorder.mujoco.contacts import Ints, SubstepContacts

NOTHING = -1


def gripped_bodies(
    contacts: SubstepContacts, instants: Ints, fingers: Ints, place: Ints, robot: Bools
) -> NDArray[np.int64]:
    """Return the place of the body that both finger groups touch in each substep of `instants`, -1 = none, [R].

    `fingers` [G] is 0, or 1 and 2 for the geoms of the two groups, `place` [G] the recorded body of each geom,
    `robot` [B] tells which bodies are robot: none of them is ever held.
    Of several bodies, the one with the largest single finger contact; of equals, the first.
    """
    holding = np.full(len(instants), NOTHING, dtype=np.int64)
    instant_of = np.full(contacts.substeps, NOTHING)
    instant_of[instants] = np.arange(len(instants))
    now = np.flatnonzero(instant_of[contacts.substep] != NOTHING)
    first, second = fingers[contacts.geom1[now]], fingers[contacts.geom2[now]]
    other = place[np.where(first > 0, contacts.geom2[now], contacts.geom1[now])]
    near = (first + second > 0) & ~robot[other]
    at = instant_of[contacts.substep[now]]
    for instant in np.intersect1d(at[near & (first + second == 1)], at[near & (first + second == 2)]):
        finger = np.flatnonzero(near & (at == instant))
        holding[instant] = _strongest_body(contacts, now[finger], first[finger] + second[finger], other[finger])
    return holding


def _strongest_body(contacts: SubstepContacts, which: Ints, side: Ints, body: Ints) -> int:
    both = np.intersect1d(body[side == 1], body[side == 2])
    if len(both) < 2:
        return int(both[0]) if len(both) else NOTHING
    force = contacts.force_norms(which)
    return int(both[np.argmax([force[body == candidate].max() for candidate in both])])
