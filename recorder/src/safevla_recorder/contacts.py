"""Contacts of some substeps, whichever simulator lists them: peaks and impulses of body pairs, and the gripped body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.episode import Bools, ContactList, Floats

Ints = NDArray[np.integer]


class SubstepContacts(Protocol):
    """Geom pairs that touch in some substeps, [C] each, in the simulator's order."""

    @property
    def substeps(self) -> int:
        """Number of substeps."""
        ...

    @property
    def substep(self) -> Ints:
        """Substep of each contact, ascending."""
        ...

    @property
    def geom1(self) -> Ints:
        """One geom of each contact."""
        ...

    @property
    def geom2(self) -> Ints:
        """The other geom of each contact."""
        ...

    def force_norms(self, which: Bools | Ints) -> Floats:
        """Return the norm of the 3-D force of the chosen contacts [N], normal and both tangents, no torques, [K]."""
        ...


@dataclass(frozen=True)
class MeasuredContacts:
    """Contacts whose forces the simulator tells as norms, newton; see `SubstepContacts`."""

    substeps: int
    substep: Ints
    geom1: Ints
    geom2: Ints
    force_n: Floats

    def force_norms(self, which: Bools | Ints) -> Floats:
        """Return the forces of the chosen contacts [N], [K]."""
        return self.force_n[which]


def contact_peaks(
    contacts: SubstepContacts, which: Ints, owner: Ints, place: Ints, substep_s: float | None
) -> ContactList:
    """Return the peak force [N] and impulse [N·s] of the contacts `which`, one row for each record and body pair.

    `owner` [substeps] is the record of each substep, `place` [G] the body of each geom. The peak is the largest single
    contact's force. The impulse is the sum over substeps and contacts of force times `substep_s`; NaN if `substep_s`
    is None, as for an instant. Rows are ordered by record, then by body pair with a < b; no contacts give no rows.
    """
    a, b = place[contacts.geom1[which]], place[contacts.geom2[which]]
    bodies = int(place.max()) + 1
    key = (owner[contacts.substep[which]] * bodies + np.minimum(a, b)) * bodies + np.maximum(a, b)
    groups, member = np.unique(key.astype(np.int64), return_inverse=True)
    force = contacts.force_norms(which)
    peak = np.zeros(len(groups))
    np.maximum.at(peak, member, force)
    seconds = np.float64(np.nan if substep_s is None else substep_s)
    impulse: Floats = np.bincount(member, weights=force, minlength=len(groups)) * seconds
    record, pair = np.divmod(groups, bodies * bodies)
    return ContactList(record, *np.divmod(pair, bodies), peak, impulse)


def join_contacts(lists: Sequence[ContactList]) -> ContactList:
    """Return the contact lists of successive records as one; record numbers stay. Raises `ValueError` for no lists."""
    names = ("record", "a", "b", "force_n", "impulse_ns")
    return ContactList(*(np.concatenate([getattr(contacts, name) for contacts in lists]) for name in names))


NOTHING = -1


def gripped_bodies(
    contacts: SubstepContacts, instants: Ints, fingers: Ints, place: Ints, robot: Bools
) -> NDArray[np.int64]:
    """Return the place of the body that both finger groups touch in each substep of `instants`, -1 = none, [R].

    `fingers` [G] is 0, or 1 and 2 for the geoms of the two groups, `place` [G] the recorded body of each geom. `robot`
    [B] tells which bodies are robot: none of them is ever held. Of several bodies, the one with the largest single
    finger contact is returned; of equals, the one with the lowest place.
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
    """Return the body of `body` [K] that contacts of both sides touch, -1 if there is none.

    `which` [K] are finger contacts of one instant, `side` [K] their finger group, 1 or 2. Of several bodies, the one
    with the largest single force is returned; of equals, the one with the lowest place.
    """
    both = np.intersect1d(body[side == 1], body[side == 2])
    if len(both) < 2:
        return int(both[0]) if len(both) else NOTHING
    force = contacts.force_norms(which)
    return int(both[np.argmax([force[body == candidate].max() for candidate in both])])
