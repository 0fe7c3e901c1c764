"""The filter of contacts: resting and mechanical ones are left out (docs/fidelity.md, static contacts)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.contacts import Ints, SubstepContacts
from safevla_recorder.episode import Bools

_NEVER = -1


class ContactFilter:
    """Filter of contacts by geom pair, which starts from the contacts of record 0.

    - Inside one recorded body, or between the parts of one fixture: never counts.
    - The two finger groups of one gripper, and robot links that touch in record 0: mechanical, never count.
    - Touching in record 0 without a robot geom: resting; counts once it was apart for `apart` substeps in a row.
    - Any other pair counts.

    `place` [G] is the recorded body of each geom, `robot` [B] tells which of these are robot, `fingers` [G] is 0, or
    1 and 2 for the geoms of the two finger groups, `fixtures` [G] is 0, or the number of a geom's fixture.
    """

    def __init__(
        self,
        place: Ints,
        robot: Bools,
        fingers: Ints,
        first: SubstepContacts,
        apart: int = 1,
        fixtures: Ints | None = None,
    ) -> None:
        """Sort the geom pairs by the contacts of record 0, `first`.

        `dropped` then has the body pairs that are left out.
        """
        geoms = len(place)
        self._geoms, self._apart = geoms, apart
        fate = np.zeros((geoms, geoms), dtype=np.int32)
        fate[place[:, None] == place] = _NEVER
        fate[fingers[:, None] * fingers == 2] = _NEVER
        if fixtures is None:
            fixtures = np.zeros(geoms, dtype=np.int64)
        fate[(fixtures[:, None] == fixtures) & (fixtures > 0)] = _NEVER
        a, b = place[first.geom1], place[first.geom2]
        both = robot[a] & robot[b]
        for link, other in {(int(x), int(y)) for x, y in zip(a[both], b[both])}:
            links = (place[:, None] == link) & (place == other)
            fate[links | links.T] = _NEVER
        self._fate = fate.reshape(-1)
        free = fate[first.geom1, first.geom2] != _NEVER
        self._resting = self._mark_resting(first, ~(robot[a] | robot[b]) & free)
        self.dropped = _dropped_pairs(place, fingers, fixtures, a, b, both | ~(robot[a] | robot[b]))

    def _mark_resting(self, first: SubstepContacts, which: Bools) -> NDArray[np.int64]:
        """Mark the geom pairs of the contacts `which` [C] of `first` as resting, and return their places in the table.

        The table `_fate` is flat over (geom, geom), so each pair has two places, [2, S]; its fate is its number from
        1. Also starts the count of substeps that each pair has been apart, at 0.
        """
        g1, g2 = first.geom1[which].astype(np.int64), first.geom2[which].astype(np.int64)
        low, high = np.divmod(np.unique(np.minimum(g1, g2) * self._geoms + np.maximum(g1, g2)), self._geoms)
        resting = np.stack([low * self._geoms + high, high * self._geoms + low])
        self._away = np.zeros(len(low), dtype=np.int64)  # substeps that each pair has been apart for so far
        self._fate[resting] = np.arange(1, resting.shape[1] + 1)
        return resting

    def mark_counted(self, contacts: SubstepContacts) -> Bools:
        """Return whether each contact counts, [C], and release the resting pairs that came apart.

        A pair released here counts from the substep after the one that completed `apart` substeps without a touch.
        Call this on successive substeps: how long each resting pair has been apart is kept between calls.
        """
        fate = self._fate[contacts.geom1.astype(np.int64) * self._geoms + contacts.geom2]
        count = self._resting.shape[1]
        seen = np.zeros((contacts.substeps, count + 2), dtype=np.bool_)
        seen[contacts.substep, fate] = True  # fate -1 falls on the last column
        resting = seen[:, 1:-1]
        if resting.all():
            self._away[:] = 0
            plain: Bools = fate == 0
            return plain
        now = np.arange(contacts.substeps)[:, None]
        away = now - np.maximum.accumulate(np.where(resting, now, -1 - self._away))
        apart: Bools = np.any(away >= self._apart, axis=0)
        # The first substep at which the pair is apart; a contact counts from the next on.
        gone = np.where(apart, (away >= self._apart).argmax(axis=0), contacts.substeps)
        since = np.concatenate([[-1], gone, [contacts.substeps]])
        counted: Bools = contacts.substep > since[fate]
        self._away = away[-1]
        self._release_pairs(apart)
        return counted

    def _release_pairs(self, apart: Bools) -> None:
        """Let the resting pairs marked in `apart` [S] count from now on, and number the others anew from 1."""
        self._fate[self._resting[:, apart]] = 0
        self._resting, self._away = self._resting[:, ~apart], self._away[~apart]
        self._fate[self._resting] = np.arange(1, self._resting.shape[1] + 1)


def _dropped_pairs(
    place: Ints, fingers: Ints, fixtures: Ints, a: Ints, b: Ints, listed: Bools
) -> tuple[tuple[int, int], ...]:
    """Return the body pairs that are left out, as places, sorted, each with the lower place first; no body with itself.

    These are the pairs (a, b) of record 0 marked in `listed`, all pairs of the two finger groups' bodies, and all
    pairs of one fixture's bodies.
    """
    pairs = {(int(x), int(y)) for x, y in zip(a[listed], b[listed])}
    pairs |= {(int(x), int(y)) for x in set(place[fingers == 1]) for y in set(place[fingers == 2])}
    for fixture in set(fixtures[fixtures > 0].tolist()):
        parts = set(place[fixtures == fixture].tolist())
        pairs |= {(x, y) for x in parts for y in parts}
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))
