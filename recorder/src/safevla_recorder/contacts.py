"""Contacts in the substeps of any simulator: peak forces, impulses, the gripped body, and a filter of contacts.

The filter leaves out resting and mechanical contacts (docs/explanation/fidelity.md, static contacts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Hashable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.channels import FORCES
from safevla_recorder.episode import ARMS_VERSION, Bools, ContactList, Floats

Ints = NDArray[np.integer]
NOTHING = -1  # replaces a body's index if there is no body
_NEVER = -1  # entry of `ContactFilter._fate`: contacts of this pair of geoms never count


@dataclass(frozen=True)
class GeomMap:
    """The recorded bodies of an episode and the geoms that they own; constant over the episode.

    `place` [G] is the index in `roles` of the body that owns each of the `G` geoms. `fingers` [G] is 1 or 2 for geoms
    of the gripper's two finger groups, else 0; None = no gripper has fingers. With several arms, 3 and 4 are the second
    arm's finger groups, and so on. `fixtures` [G] is the number (from 1) of the fixture that owns each geom; 0 = none.
    """

    roles: Mapping[str, str]
    place: Ints
    fingers: Ints | None
    fixtures: Ints
    substep_s: float
    apart_substeps: int = 1
    forces: tuple[str, ...] = FORCES  # which of `FORCES` are recorded for contacts
    torque_source: str | None = None
    """Source of the torques, such as `qfrc_actuator`; None = unknown, or torques are not recorded."""
    weights: Mapping[int, Floats] = field(default_factory=dict)
    """Maps a body's index to the force that balances its weight, a vector [3] in N in the world frame."""
    geometry: str | None = None  # the scene's description, `Geometry.text`; None = not recorded
    arms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps each arm's name to its recorded bodies; empty = there is one arm, the whole robot."""
    arm_joints: Sequence[int] = ()  # number of joints of each of several arms; empty = no torques

    @cached_property
    def robot(self) -> Bools:
        """True for each recorded body that is part of the robot, [B]."""
        # The index of a body is its position in `roles`.
        return np.array([role == "robot" for role in self.roles.values()])

    @cached_property
    def arm(self) -> Ints:
        """Number (from 1) of the arm that each recorded body belongs to, [B]; 0 = no arm."""
        # The keys of `roles` are the recorded bodies. `arms` maps each arm's name to its bodies.
        return group_numbers(self.roles, self.arms.values())

    @property
    def header(self) -> dict[str, object]:
        """The header's fields about the scene's geometry, and about the arms of a robot with several arms."""
        # `geometry` is a text that describes the scene; None = not recorded. `arms` maps each arm's name to its bodies.
        # `arm_joints` contains each arm's number of joints (empty = no torques are recorded).
        if not self.arms:  # fields about arms exist only for several arms
            return {"geometry": self.geometry}
        return {
            "schema_version": ARMS_VERSION,
            "geometry": self.geometry,
            "arms": tuple(self.arms),
            "arm_joints": tuple(self.arm_joints) or None,
            "arm_bodies": {body: arm for arm, bodies in self.arms.items() for body in bodies},
        }

    @cached_property
    def finger_groups(self) -> Ints:
        """The array `fingers`, [G]; zeros if `fingers` is None."""
        # `fingers` is the number of each geom's finger group: 1 or 2 for the first gripper, 3 or 4 for the second.
        # 0 = the geom is not a finger. `fingers` is None if no gripper has fingers. `place` [G] is each geom's body.
        return np.zeros_like(self.place) if self.fingers is None else self.fingers


def group_numbers(members: Iterable[Hashable], groups: Iterable[Iterable[Hashable]]) -> NDArray[np.int64]:
    """Return the number (from 1) of each member's group, [M]; 0 = the member is in no group."""
    number_of = {member: number for number, group in enumerate(groups, start=1) for member in group}
    return np.array([number_of.get(member, 0) for member in members], dtype=np.int64)


@dataclass(frozen=True)
class SubstepContacts(ABC):
    """Contacts between geoms in successive substeps, [C]: sorted by `substep`, then in the simulator's order."""

    substeps: int
    substep: Ints
    geom1: Ints
    geom2: Ints

    @property
    def are_net(self) -> bool:
        """True if each force is the net force of two geoms, False if it acts at a single contact point."""
        return False  # subclasses may return True

    @abstractmethod
    def force_norms(self, which: Bools | Ints) -> Floats:
        """Return the norms [K] in N of the forces (normal and tangential) of contacts `which`, indices or a mask."""

    @abstractmethod
    def force_vectors(self, which: Bools | Ints) -> Floats | None:
        """Return the forces [K, 3] in N (world frame) on the second geoms of contacts `which`; None = unknown."""


@dataclass(frozen=True)
class MeasuredContacts(SubstepContacts):
    """Contacts with the simulator's forces: norms [C], or forces [C, 3] on the second geoms in the world frame.

    If `are_net`, each force is the net force of the two geoms, not the force at one contact point.
    """

    force_n: Floats
    are_net: bool = False

    def force_norms(self, which: Bools | Ints) -> Floats:
        # Return the norms [K] in N of the forces of the contacts `which`, given by indices or a mask.
        # `force_n` contains the norms [C] or the vectors [C, 3] of all contacts.
        force = self.force_n[which]
        return force if force.ndim == 1 else vector_norms(force)

    def force_vectors(self, which: Bools | Ints) -> Floats | None:
        # Return the forces [K, 3] in N of the contacts `which`, given by indices or a mask;
        # None if `force_n` contains only norms [C], not vectors [C, 3] in the world frame.
        return None if self.force_n.ndim == 1 else self.force_n[which]


def contact_peaks(
    contacts: SubstepContacts, which: Ints, owner: Ints, place: Ints, substep_s: float | None
) -> ContactList:
    """Return peak forces in N and impulses in N·s of the contacts `which`, in one row per record and body pair.

    `owner` [substeps] is each substep's record, and `place` [G] is each geom's body. `force_n` is the largest force at
    a single contact point; if only net forces are known, it equals `net_force_n`. `net_force_n` is the largest norm of
    a substep's summed forces; NaN if only norms are known. `impulse_ns` is Σ force · `substep_s` over all contacts;
    `net_impulse_ns` is Σ net force · `substep_s` over all substeps. Both impulses are NaN if `substep_s` is None (a
    single instant). Rows are ordered by record, then by body pair with a < b. Without contacts there are no rows.
    """
    # `which` [K] contains the indices of the contacts that count. `a` and `b` [K] are the two bodies of each contact.
    a, b = place[contacts.geom1[which]], place[contacts.geom2[which]]
    body_count = int(place.max(initial=0)) + 1  # 1 for a scene without geoms
    # Contacts with the same record and body pair form a group. Group keys sort by record, lower body, higher body.
    group_key = (owner[contacts.substep[which]] * body_count + np.minimum(a, b)) * body_count + np.maximum(a, b)
    group_keys, group_of_contact = np.unique(group_key.astype(np.int64), return_inverse=True)
    force = contacts.force_norms(which)
    peak_force = np.zeros(len(group_keys))
    np.maximum.at(peak_force, group_of_contact, force)
    seconds_per_substep = np.float64(np.nan if substep_s is None else substep_s)
    impulse: Floats = np.bincount(group_of_contact, weights=force, minlength=len(group_keys)) * seconds_per_substep
    net_peak = net_sum = np.full(len(group_keys), np.nan)  # net forces are unknown without vectors
    vectors = contacts.force_vectors(which)
    if vectors is not None:
        # Use the force on the body with the higher index, so that the vectors of a pair can be added.
        force_on_higher = np.where((a <= b)[:, None], vectors, -vectors)
        net_peak, net_sum = _sum_net_forces(force_on_higher, group_of_contact, contacts.substep[which], len(group_keys))
    record, pair = np.divmod(group_keys, body_count * body_count)
    return ContactList(
        record,
        *np.divmod(pair, body_count),  # the two bodies, the lower index first
        net_peak if contacts.are_net else peak_force,
        impulse,
        net_peak,
        net_sum * seconds_per_substep,
    )


def _sum_net_forces(vectors: Floats, group_of_contact: Ints, substep: Ints, group_count: int) -> tuple[Floats, Floats]:
    """Return two arrays [groups]: the maximum and the sum, over substeps, of the norm of each group's net force."""
    # For each contact: `vectors` [K, 3] is the force in N, `group_of_contact` [K] the group, `substep` [K] the substep.
    # The contacts of a group belong to the same record and body pair. An instant is one substep of one group.
    # `substep` is sorted, so the last number is the largest.
    substep_count = int(substep[-1]) + 1 if len(substep) else 1
    instant_keys, instant_of_contact = np.unique(group_of_contact * substep_count + substep, return_inverse=True)
    component_sums = [
        np.bincount(instant_of_contact, weights=vectors[:, k], minlength=len(instant_keys)) for k in range(3)
    ]
    peak, total = np.zeros(group_count), np.zeros(group_count)
    group_of_instant = np.zeros(len(instant_keys), dtype=np.int64)
    group_of_instant[instant_of_contact] = group_of_contact
    norms = vector_norms(np.stack(component_sums, axis=1))  # the norm of the net force in each instant
    np.maximum.at(peak, group_of_instant, norms)
    np.add.at(total, group_of_instant, norms)
    return peak, total


def vector_norms(vectors: Floats) -> Floats:
    """Return the norms [K] of vectors [K, 3]."""
    norms: Floats = np.sqrt(vectors[:, 0] ** 2 + vectors[:, 1] ** 2 + vectors[:, 2] ** 2)
    return norms


def join_contacts(lists: Sequence[ContactList]) -> ContactList:
    """Join the contact lists of successive records; `lists` has at least one."""
    columns = zip(*(contacts.columns().values() for contacts in lists))  # one column of all lists at a time
    return ContactList(*map(np.concatenate, columns))


def gripped_bodies(contacts: SubstepContacts, instants: Ints, geoms: GeomMap) -> NDArray[np.int64]:
    """For each of the `R` substeps `instants`, return the index of the body that both finger groups touch: [R], or
    [R, A] for `A` arms; −1 = no body. The robot's bodies do not count. If the fingers touch several bodies, return the
    one with the largest force at a single contact point; if the forces are equal, the one with the lowest index.
    """
    groups = geoms.finger_groups
    if not geoms.arms:  # there is only one arm
        return _find_gripped_bodies(contacts, instants, geoms, groups)
    # Arm k has the finger groups 2k + 1 and 2k + 2. Renumber them as 1 and 2; groups of all other arms become 0.
    fingers_by_arm = [np.where((groups + 1) // 2 == k + 1, groups - 2 * k, 0) for k in range(len(geoms.arms))]
    return np.stack([_find_gripped_bodies(contacts, instants, geoms, fingers) for fingers in fingers_by_arm], axis=1)


def _row_of_contacts(contacts: SubstepContacts, instants: Ints) -> Ints:
    # Return the index in `instants` of each contact's substep, [C]; −1 = the substep is not in `instants`.
    row_of_substep = np.full(contacts.substeps, NOTHING)
    row_of_substep[instants] = np.arange(len(instants))
    return row_of_substep[contacts.substep]


def _find_gripped_bodies(contacts: SubstepContacts, instants: Ints, geoms: GeomMap, fingers: Ints) -> NDArray[np.int64]:
    # Return the index of the body in one arm's grip in each of the `R` substeps `instants`, [R]; −1 = no body.
    # `fingers` [G] is 1 or 2 for geoms of the arm's finger groups, else 0.
    held = np.full(len(instants), NOTHING, dtype=np.int64)
    row_of_contact = _row_of_contacts(contacts, instants)
    chosen = np.flatnonzero(row_of_contact != NOTHING)  # the contacts in the substeps `instants`
    row_of_contact = row_of_contact[chosen]
    geom1, geom2 = contacts.geom1[chosen], contacts.geom2[chosen]
    finger_group = fingers[geom1] + fingers[geom2]  # the geom that is not a finger adds 0
    # For each contact with a finger: the body of the geom that touches the finger.
    touched_body = geoms.place[np.where(fingers[geom1] > 0, geom2, geom1)]
    is_finger_contact = (finger_group > 0) & ~geoms.robot[touched_body]
    rows_by_group = [row_of_contact[is_finger_contact & (finger_group == group)] for group in (1, 2)]
    for row in np.intersect1d(*rows_by_group):  # substeps in which both finger groups touch bodies
        in_row = np.flatnonzero(is_finger_contact & (row_of_contact == row))
        held[row] = _strongest_body(contacts, chosen[in_row], finger_group[in_row], touched_body[in_row])
    return held


def _strongest_body(contacts: SubstepContacts, which: Ints, finger_group: Ints, body: Ints) -> int:
    """Return the body that both finger groups, 1 and 2, touch with the largest force; −1 = no such body."""
    # `which` [K] are one substep's contacts with fingers.
    # `finger_group` [K] is the group of the finger in each contact, and `body` [K] is the body that the finger touches.
    # If forces are equal, the body with the lowest index is returned.
    candidates = np.intersect1d(body[finger_group == 1], body[finger_group == 2])
    if len(candidates) < 2:
        return int(candidates[0]) if len(candidates) else NOTHING
    force = contacts.force_norms(which)
    largest_forces = [force[body == candidate].max() for candidate in candidates]
    return int(candidates[np.argmax(largest_forces)])


def supported_bodies(contacts: SubstepContacts, instants: Ints, geoms: GeomMap) -> Bools:
    """For each of the `R` substeps `instants` and `W` bodies in `weights`, return whether contacts carry at least half
    of the body's weight, [R, W]. Contacts with the robot do not count.
    """
    # For each contact: the indices of its two bodies.
    # Also the index of its substep in `instants`; −1 = the substep is not in `instants`.
    a, b, row = geoms.place[contacts.geom1], geoms.place[contacts.geom2], _row_of_contacts(contacts, instants)
    is_weighed = np.isin(a, list(geoms.weights)) | np.isin(b, list(geoms.weights))
    which = np.flatnonzero((row != NOTHING) & is_weighed & (a != b) & ~geoms.robot[a] & ~geoms.robot[b])
    vectors, a, b, row = contacts.force_vectors(which), a[which], b[which], row[which]
    assert vectors is not None
    supported = np.zeros((len(instants), len(geoms.weights)), dtype=np.bool_)
    for column, (body, weight) in enumerate(geoms.weights.items()):
        sign = (b == body) * 1.0 - (a == body)  # the vectors are forces on b, so forces on a are the opposite
        support = sign * (vectors @ weight)  # `weight` [3] is the force that balances the body's weight
        # Half the weight is carried if the sum of the forces along `weight` is at least half the length of `weight`.
        # Here, both sides are multiplied by the length of `weight`.
        supported[:, column] = np.bincount(row, support, len(instants)) >= 0.5 * (weight @ weight)
    return supported


class ContactFilter:
    """Decides which contacts count, from their pairs of geoms and from the contacts in record 0.

    - A pair inside one recorded body, or between parts of one fixture, never counts.
    - Contacts between finger groups of one gripper are mechanical and never count. So are contacts between robot links
      that touch in record 0, unless the links belong to different arms.
    - A pair without a robot geom is resting if it touches in record 0; it counts after `apart_substeps` substeps apart.
    - Any other pair counts.
    """

    def __init__(self, geoms: GeomMap, first: SubstepContacts) -> None:
        """Classify pairs of geoms by the contacts in record 0, `first`. `dropped` lists body pairs left out."""
        place, robot, fingers, fixtures = geoms.place, geoms.robot, geoms.finger_groups, geoms.fixtures
        self._geom_count, self._apart_substeps = len(place), geoms.apart_substeps
        # For each pair of geoms: 0 = contacts count, `_NEVER` = contacts never count, k > 0 = this is resting pair k.
        fate = np.zeros((len(place), len(place)), dtype=np.int32)
        fate[place[:, None] == place] = _NEVER  # both geoms belong to the same body
        # The number (from 1) of the gripper that each geom belongs to; 0 = no gripper.
        gripper = (fingers + 1) // 2
        # For geoms without a gripper, the finger group is 0, so only pairs of the two groups of one gripper remain.
        fate[(gripper[:, None] == gripper) & (fingers[:, None] != fingers)] = _NEVER
        fate[(fixtures[:, None] == fixtures) & (fixtures > 0)] = _NEVER
        # The bodies of each contact in record 0, [C], and the arm (from 1) of each body, [B]; 0 = the body has no arm.
        a, b = place[first.geom1], place[first.geom2]
        arm = geoms.arm
        # Contacts between robot links, unless the links belong to different arms.
        is_between_links = robot[a] & robot[b] & ((arm[a] == arm[b]) | (arm[a] == 0) | (arm[b] == 0))
        for link, other in set(zip(a[is_between_links].tolist(), b[is_between_links].tolist())):
            is_pair = (place[:, None] == link) & (place == other)
            fate[is_pair | is_pair.T] = _NEVER
        self._fate = fate.reshape(-1)
        is_without_robot = ~(robot[a] | robot[b])
        may_count = fate[first.geom1, first.geom2] != _NEVER
        self._resting_entries = self._mark_resting(first, is_without_robot & may_count)
        self.dropped = _list_dropped_pairs(geoms, a, b, is_between_links | is_without_robot)

    def _mark_resting(self, first: SubstepContacts, which: Bools) -> NDArray[np.int64]:
        """Number the `S` resting pairs from 1, in `_fate`. Return the indices of these entries, [2, S]."""
        # `first` are the contacts in record 0, and the mask `which` [C] selects the resting ones.
        # `_fate` contains one entry for each ordered pair of geoms.
        geom1, geom2 = first.geom1[which].astype(np.int64), first.geom2[which].astype(np.int64)
        pair_keys = np.unique(np.minimum(geom1, geom2) * self._geom_count + np.maximum(geom1, geom2))
        low, high = np.divmod(pair_keys, self._geom_count)
        resting = np.stack([pair_keys, high * self._geom_count + low])  # `_fate` lists a pair in both orders
        self._substeps_apart = np.zeros(len(low), dtype=np.int64)  # for how many substeps each pair has been apart
        self._fate[resting] = np.arange(1, resting.shape[1] + 1)
        return resting

    def mark_counted(self, contacts: SubstepContacts) -> Bools:
        """Return whether each contact counts, [C], and release resting pairs that have been apart long enough.

        After `apart_substeps` successive substeps without contact, a pair counts from the next substep on. Call this on
        successive substeps: the filter stores how long each resting pair has been apart.
        """
        fate = self._fate[contacts.geom1.astype(np.int64) * self._geom_count + contacts.geom2]
        resting_count = self._resting_entries.shape[1]
        # One row per substep. Column k is for resting pair k.
        # The first and the last column, for all other pairs, are not used.
        is_touching = np.zeros((contacts.substeps, resting_count + 2), dtype=np.bool_)
        is_touching[contacts.substep, fate] = True  # the entry −1 (never) selects the last column
        resting_touch = is_touching[:, 1:-1]
        if resting_touch.all():  # no pair was apart, so none is released
            self._substeps_apart[:] = 0
            counts_always: Bools = fate == 0
            return counts_always
        substep = np.arange(contacts.substeps)[:, None]
        # At each substep, the index of the pair's latest substep with contact; negative = before these substeps.
        last_touch = np.maximum.accumulate(np.where(resting_touch, substep, -1 - self._substeps_apart))
        substeps_apart = substep - last_touch
        is_long_apart = substeps_apart >= self._apart_substeps
        is_released: Bools = np.any(is_long_apart, axis=0)
        # The substep that releases each resting pair; the pair's contacts count from the next substep on.
        release_substep = np.where(is_released, is_long_apart.argmax(axis=0), contacts.substeps)
        # For each possible entry of `_fate`: the substep after which contacts count.
        # With the entry 0, contacts always count.
        # With the entry k, contacts count after the release of pair k.
        # With the entry −1, which selects the last item, contacts never count.
        counted_after = np.concatenate([[-1], release_substep, [contacts.substeps]])
        counted: Bools = contacts.substep > counted_after[fate]
        self._substeps_apart = substeps_apart[-1]
        # Released pairs always count from now on. The remaining resting pairs are numbered from 1 again.
        self._fate[self._resting_entries[:, is_released]] = 0
        self._resting_entries = self._resting_entries[:, ~is_released]
        self._substeps_apart = self._substeps_apart[~is_released]
        self._fate[self._resting_entries] = np.arange(1, self._resting_entries.shape[1] + 1)
        return counted


def _list_dropped_pairs(geoms: GeomMap, a: Ints, b: Ints, is_listed: Bools) -> tuple[tuple[int, int], ...]:
    # Return sorted pairs of bodies, the lower index first.
    # A pair is in the result if its bodies touch in record 0 (in a selected contact), or are parts of one fixture.
    # A pair is also in the result if its bodies own the two finger groups of one gripper.
    # `a` and `b` [C] are the bodies of the contacts in record 0, and the mask `is_listed` [C] selects contacts.
    place, fingers, fixtures = geoms.place, geoms.finger_groups, geoms.fixtures
    pairs = set(zip(a[is_listed].tolist(), b[is_listed].tolist()))
    # Finger groups 1 and 2 belong to the first gripper, groups 3 and 4 to the second, and so on.
    for group in range(1, int(fingers.max(initial=0)), 2):
        pairs.update(product(place[fingers == group].tolist(), place[fingers == group + 1].tolist()))
    for fixture in set(fixtures[fixtures > 0].tolist()):
        pairs.update(combinations(set(place[fixtures == fixture].tolist()), 2))
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))
