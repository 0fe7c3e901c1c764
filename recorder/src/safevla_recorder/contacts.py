"""Contacts of substeps in any simulator: their peaks and impulses, the gripped body, and the filter of contacts.

Resting and mechanical contacts are left out (docs/explanation/fidelity.md, static contacts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Hashable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.channels import FORCES
from safevla_recorder.episode import ARMS_VERSION, Bools, ContactList, Floats

Ints = NDArray[np.integer]
NOTHING = -1
_NEVER = -1


@dataclass(frozen=True)
class GeomMap:
    """The recorded bodies of an episode and the geoms that they own; constant over the episode.

    `place` [G] is the index in `roles` of the body that owns each geom. `fingers` [G] is 1 or 2 for geoms of the two
    finger groups, else 0; None = the robot has no such gripper. With several arms, 3 and 4 are the second arm's finger
    groups, and so on. `fixtures` [G] is the number of the fixture that a geom belongs to; 0 = none.
    """

    roles: Mapping[str, str]
    place: Ints
    fingers: Ints | None
    fixtures: Ints
    substep_s: float
    apart_substeps: int = 1
    forces: tuple[str, ...] = FORCES  # which of `FORCES` the contacts of this episode have
    torque_source: str | None = None
    """Source of the torques, such as `qfrc_actuator`; None = unknown, or torques are not recorded."""
    weights: Mapping[int, Floats] = field(default_factory=dict)
    """Maps the index of a body to the force that balances its weight, in the world frame [N], [3]."""
    geometry: str | None = None  # the scene's description, `Geometry.text`; None = not recorded
    arms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps each arm's name to its recorded bodies; empty = there is one arm, the whole robot."""
    arm_joints: Sequence[int] = ()  # joints of each arm, if there are several; empty = no torques are recorded

    @cached_property
    def robot(self) -> Bools:
        """Whether each recorded body is part of the robot, [B]."""
        return np.array([role == "robot" for role in self.roles.values()])

    @cached_property
    def arm(self) -> Ints:
        """The number, from 1, of the arm that each recorded body belongs to; 0 = none, [B]."""
        return group_numbers(self.roles, self.arms.values())

    @property
    def header(self) -> dict[str, object]:
        """The header's fields about the scene's geometry and, if there are several arms, about the arms."""
        if not self.arms:
            return {"geometry": self.geometry}
        joints, bodies = tuple(self.arm_joints) or None, {body: name for name, own in self.arms.items() for body in own}
        named = {"arms": tuple(self.arms), "arm_joints": joints, "arm_bodies": bodies}
        return {"schema_version": ARMS_VERSION, "geometry": self.geometry, **named}

    @cached_property
    def sides(self) -> Ints:
        """The array `fingers`, or zeros if it is None, [G]."""
        return np.zeros_like(self.place) if self.fingers is None else self.fingers


def group_numbers(members: Iterable[Hashable], groups: Iterable[Iterable[Hashable]]) -> NDArray[np.int64]:
    """Return the number, from 1, of the group that contains each member; 0 = none, [M]."""
    number = {member: place for place, group in enumerate(groups, start=1) for member in group}
    return np.array([number.get(member, 0) for member in members], dtype=np.int64)


@dataclass(frozen=True)
class SubstepContacts(ABC):
    """The contacts of geom pairs in successive substeps, in the simulator's order, [C] each; `substep` ascends."""

    substeps: int
    substep: Ints
    geom1: Ints
    geom2: Ints

    @property
    def are_net(self) -> bool:
        """True if each force is the net force of two geoms, False if it acts at a single contact point."""
        return False

    @abstractmethod
    def force_norms(self, which: Bools | Ints) -> Floats:
        """Return the norms of the chosen contacts' 3-D forces (normal and two tangents, no torques) [N], [K]."""

    @abstractmethod
    def force_vectors(self, which: Bools | Ints) -> Floats | None:
        """Return the chosen contacts' forces on their second geom, world frame [N], [K, 3]; None = only norms exist."""


@dataclass(frozen=True)
class MeasuredContacts(SubstepContacts):
    """Contacts with the simulator's forces: norms [C], or vectors [C, 3] on the second geom in the world frame.

    If `are_net`, each force is the net force of the two geoms, not the force at one contact point.
    """

    force_n: Floats
    are_net: bool = False

    def force_norms(self, which: Bools | Ints) -> Floats:
        """Return the norms of the forces of the chosen contacts [N], [K]."""
        force = self.force_n[which]
        return force if force.ndim == 1 else vector_norms(force)

    def force_vectors(self, which: Bools | Ints) -> Floats | None:
        """Return the chosen contacts' forces on their second geom, world frame [N], [K, 3]; None = only norms exist."""
        return None if self.force_n.ndim == 1 else self.force_n[which]


def contact_peaks(
    contacts: SubstepContacts, which: Ints, owner: Ints, place: Ints, substep_s: float | None
) -> ContactList:
    """Return the peak forces [N] and impulses [N·s] of the contacts `which`, one row per record and body pair.

    `owner` [substeps] is the record of each substep, and `place` [G] the body of each geom. `force_n` is the largest
    force of a single contact point. `net_force_n` is the largest norm, over the substeps, of the vector sum of forces;
    NaN without vectors. `impulse_ns` is Σ force · `substep_s` over substeps and contacts, and `net_impulse_ns` is Σ
    norm of the vector sum · `substep_s` over substeps; both are NaN if `substep_s` is None, as for a single instant.
    Rows are ordered by record, then by body pair with a < b. Without contacts there are no rows.
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
    net = total = np.full(len(groups), np.nan)
    vectors = contacts.force_vectors(which)
    if vectors is not None:
        along = np.where((a <= b)[:, None], vectors, -vectors)
        net, total = _net_peaks(along, member, contacts.substep[which], len(groups))
    record, pair = np.divmod(groups, bodies * bodies)
    return ContactList(
        record, *np.divmod(pair, bodies), net if contacts.are_net else peak, impulse, net, total * seconds
    )


def _net_peaks(vectors: Floats, group: Ints, substep: Ints, groups: int) -> tuple[Floats, Floats]:
    """Sum each group's vectors by substep. Return the largest norm of these sums, and the norms' total, [groups]."""
    instants, member = np.unique(group * (int(substep[-1]) + 1 if len(substep) else 1) + substep, return_inverse=True)
    sums = [np.bincount(member, weights=vectors[:, k], minlength=len(instants)) for k in range(3)]
    peak, total = np.zeros(groups), np.zeros(groups)
    of_instant = np.zeros(len(instants), dtype=np.int64)
    of_instant[member] = group
    norms = vector_norms(np.stack(sums, axis=1))
    np.maximum.at(peak, of_instant, norms)
    np.add.at(total, of_instant, norms)
    return peak, total


def vector_norms(vectors: Floats) -> Floats:
    """Return the norms [K] of vectors [K, 3]."""
    norms: Floats = np.sqrt(vectors[:, 0] ** 2 + vectors[:, 1] ** 2 + vectors[:, 2] ** 2)
    return norms


def join_contacts(lists: Sequence[ContactList]) -> ContactList:
    """Join the contact lists of successive records, keeping record numbers. Raises `ValueError` if there is no list."""
    return ContactList(*map(np.concatenate, zip(*(contacts.columns().values() for contacts in lists))))


def gripped_bodies(contacts: SubstepContacts, instants: Ints, geoms: GeomMap) -> NDArray[np.int64]:
    """Return the index of the body that both finger groups touch in each substep of `instants`, [R], or [R, A] with A
    arms; −1 = none. The robot's bodies do not count. Of several bodies, the one with the largest force at a single
    contact point is returned; if these forces are equal, the body with the lowest index.
    """
    if not geoms.arms:
        return _gripped_by(contacts, instants, geoms, geoms.sides)
    sides = [np.where((geoms.sides + 1) // 2 == k + 1, geoms.sides - 2 * k, 0) for k in range(len(geoms.arms))]
    return np.stack([_gripped_by(contacts, instants, geoms, fingers) for fingers in sides], axis=1)


def _gripped_by(contacts: SubstepContacts, instants: Ints, geoms: GeomMap, fingers: Ints) -> NDArray[np.int64]:
    holding = np.full(len(instants), NOTHING, dtype=np.int64)
    place = geoms.place
    instant_of = np.full(contacts.substeps, NOTHING)
    instant_of[instants] = np.arange(len(instants))
    now = np.flatnonzero(instant_of[contacts.substep] != NOTHING)
    first, second = fingers[contacts.geom1[now]], fingers[contacts.geom2[now]]
    other = place[np.where(first > 0, contacts.geom2[now], contacts.geom1[now])]
    near = (first + second > 0) & ~geoms.robot[other]
    at = instant_of[contacts.substep[now]]
    for instant in np.intersect1d(at[near & (first + second == 1)], at[near & (first + second == 2)]):
        finger = np.flatnonzero(near & (at == instant))
        holding[instant] = _strongest_body(contacts, now[finger], first[finger] + second[finger], other[finger])
    return holding


def _strongest_body(contacts: SubstepContacts, which: Ints, side: Ints, body: Ints) -> int:
    """Return the `body` that both finger groups touch (`side` 1 and 2). Prefer the largest force; −1 = no such body."""
    candidates = np.intersect1d(body[side == 1], body[side == 2])
    if len(candidates) < 2:
        return int(candidates[0]) if len(candidates) else NOTHING
    force = contacts.force_norms(which)
    return int(candidates[np.argmax([force[body == candidate].max() for candidate in candidates])])


def supported_bodies(contacts: SubstepContacts, instants: Ints, geoms: GeomMap) -> Bools:
    """Return whether, in each substep of `instants`, contacts with bodies other than the robot carry at least half the
    weight of each body in `weights`, [R, W].
    """
    instant_of = np.full(contacts.substeps, NOTHING)
    instant_of[instants] = np.arange(len(instants))
    a, b, at = geoms.place[contacts.geom1], geoms.place[contacts.geom2], instant_of[contacts.substep]
    is_weighed = np.isin(a, list(geoms.weights)) | np.isin(b, list(geoms.weights))
    which = np.flatnonzero((at != NOTHING) & is_weighed & (a != b) & ~geoms.robot[a] & ~geoms.robot[b])
    vectors, a, b, at = contacts.force_vectors(which), a[which], b[which], at[which]
    assert vectors is not None
    supported = np.zeros((len(instants), len(geoms.weights)), dtype=np.bool_)
    for column, (body, weight) in enumerate(geoms.weights.items()):
        along = ((b == body) * 1.0 - (a == body)) * (vectors @ weight)
        supported[:, column] = np.bincount(at, along, len(instants)) >= 0.5 * (weight @ weight)
    return supported


class ContactFilter:
    """A filter that decides by geom pair which contacts count, given the contacts of record 0.

    - A pair inside one recorded body, or between parts of one fixture, never counts.
    - Contacts between finger groups of one gripper are mechanical and never count. So are contacts between robot links
      that touch in record 0, unless the links belong to different arms.
    - A pair without a robot geom that touches in record 0 is resting: it counts after `apart_substeps` without contact.
    - Any other pair counts.
    """

    def __init__(self, geoms: GeomMap, first: SubstepContacts) -> None:
        """Classify geom pairs by the contacts of record 0, and list the left-out body pairs in `dropped`."""
        place, robot, fingers, fixtures = geoms.place, geoms.robot, geoms.sides, geoms.fixtures
        self._geoms, self._apart = len(place), geoms.apart_substeps
        fate = np.zeros((len(place), len(place)), dtype=np.int32)
        fate[place[:, None] == place] = _NEVER
        hands = (fingers + 1) // 2
        fate[(hands[:, None] == hands) & (fingers[:, None] != fingers)] = _NEVER
        fate[(fixtures[:, None] == fixtures) & (fixtures > 0)] = _NEVER
        a, b = place[first.geom1], place[first.geom2]
        arm = geoms.arm
        is_between_links = robot[a] & robot[b] & ((arm[a] == arm[b]) | (arm[a] == 0) | (arm[b] == 0))
        for link, other in {(int(x), int(y)) for x, y in zip(a[is_between_links], b[is_between_links])}:
            links = (place[:, None] == link) & (place == other)
            fate[links | links.T] = _NEVER
        self._fate = fate.reshape(-1)
        free = fate[first.geom1, first.geom2] != _NEVER
        self._resting = self._mark_resting(first, ~(robot[a] | robot[b]) & free)
        self.dropped = _dropped_pairs(geoms, a, b, is_between_links | ~(robot[a] | robot[b]))

    def _mark_resting(self, first: SubstepContacts, which: Bools) -> NDArray[np.int64]:
        """Give the S resting geom pairs the numbers 1 to S in the table `_fate`; return their indices in it, [2, S]."""
        g1, g2 = first.geom1[which].astype(np.int64), first.geom2[which].astype(np.int64)
        low, high = np.divmod(np.unique(np.minimum(g1, g2) * self._geoms + np.maximum(g1, g2)), self._geoms)
        resting = np.stack([low * self._geoms + high, high * self._geoms + low])
        self._away = np.zeros(len(low), dtype=np.int64)  # number of substeps that each pair has been apart
        self._fate[resting] = np.arange(1, resting.shape[1] + 1)
        return resting

    def mark_counted(self, contacts: SubstepContacts) -> Bools:
        """Return whether each contact counts, [C], and release resting pairs that have been apart long enough.

        A pair counts from the substep after the one that completed `apart_substeps` without contact. Call this on
        successive substeps: the filter stores how long each resting pair has been apart.
        """
        fate = self._fate[contacts.geom1.astype(np.int64) * self._geoms + contacts.geom2]
        count = self._resting.shape[1]
        seen = np.zeros((contacts.substeps, count + 2), dtype=np.bool_)
        seen[contacts.substep, fate] = True  # fate -1 indexes the last column
        resting = seen[:, 1:-1]
        if resting.all():
            self._away[:] = 0
            plain: Bools = fate == 0
            return plain
        now = np.arange(contacts.substeps)[:, None]
        away = now - np.maximum.accumulate(np.where(resting, now, -1 - self._away))
        apart: Bools = np.any(away >= self._apart, axis=0)
        # The first substep at which the pair has been apart long enough; a contact counts from the next substep on.
        gone = np.where(apart, (away >= self._apart).argmax(axis=0), contacts.substeps)
        since = np.concatenate([[-1], gone, [contacts.substeps]])
        counted: Bools = contacts.substep > since[fate]
        self._away = away[-1]
        self._fate[self._resting[:, apart]] = 0
        self._resting, self._away = self._resting[:, ~apart], self._away[~apart]
        self._fate[self._resting] = np.arange(1, self._resting.shape[1] + 1)
        return counted


def _dropped_pairs(geoms: GeomMap, a: Ints, b: Ints, listed: Bools) -> tuple[tuple[int, int], ...]:
    place, fingers, fixtures = geoms.place, geoms.sides, geoms.fixtures
    pairs = {(int(x), int(y)) for x, y in zip(a[listed], b[listed])}
    for side in range(1, int(fingers.max(initial=0)), 2):
        pairs |= {(int(x), int(y)) for x in set(place[fingers == side]) for y in set(place[fingers == side + 1])}
    for fixture in set(fixtures[fixtures > 0].tolist()):
        parts = set(place[fixtures == fixture].tolist())
        pairs |= {(x, y) for x in parts for y in parts}
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))
