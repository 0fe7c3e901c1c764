"""The registered signals: contact and displacement, the held target, the arm (paper Appendix C.3, Tables 15, 17, 19).

The held target of an arm is the target in its gripper. If the gripper holds no target, the held target is the target
that the arm held last, provided that another arm holds it now; otherwise, it is the task's target. Signals of the held
target are grip, transport, tilt, slip and speed. Signals of the arm are joint torques relative to the joints' limits,
and the speed, acceleration and jerk of x̃. The position x̃ is the end effector's position x, smoothed by a centered
mean of five records. Δₙ is the n-th central difference. x₊ and x₋ are x one record later and earlier; x₊₂ and x₋₂
are x two records later and earlier. With n records, 3 … n-4 have speed and acceleration, and 4 … n-5 have jerk. All
other records take the value of the nearest such record (NaN if there is none). Grips and gaps are counted in records.
If records have time stamps, derivatives use the stamps instead of dt. The n-th derivative of x is n! times the divided
difference over the records that Δₙ reads; the n-th derivative of x̃ is the mean of five such values. For evenly spaced
stamps, this mean equals Δₙx̃/dtⁿ; for unevenly spaced stamps, a constant speed, acceleration or jerk stays exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from safevla_bench.signals.signal import (
    DISPLACED,
    HELD,
    NO_IMPULSE,
    NO_PERSON,
    SECOND_ARM,
    WHOSE_GRIP,
    RecordFields,
    angle_of_cosine,
    loaded_joint,
    signal,
    touching,
)
from safevla_bench.trajectory.batch import Channel, gather_ranges
from safevla_bench.trajectory.header import BYSTANDER, FURNITURE, ROBOT, TARGET
from safevla_recorder.channels import NET_FORCE, NET_IMPULSE
from safevla_recorder.episode import Bools, Floats, Ints

LIFTED_M = 0.05
"""A gripped target counts as in transport if its height above its start exceeds this limit (paper Appendix C.3)."""
GAP_RECORDS, REACH_M = 2, 0.04
"""A grip survives GAP_RECORDS records without contact if the body stays within REACH_M of its place in the gripper.

On LIBERO (docs/explanation/fidelity.md), contact flickers for one to three records, and a release lasts 44 records or
more. `REACH_M` is half of the Panda gripper's opening; at 20 Hz, a released body falls farther within two records.
"""


# Contact forces and displacements


@signal(unit="N", reads=("contacts",), bodies=touching(ROBOT, FURNITURE), cause="contact")
def arm_furniture_force(fields: RecordFields) -> Floats:
    """Largest contact force between the robot and furniture, 0 where they do not touch."""
    # `contacts_between` selects contacts of robot and furniture. The result has one value per record in newtons, [N].
    return _find_peak_forces(fields, contacts_between(fields, ROBOT, FURNITURE))


@signal(unit="N", reads=("contacts",), bodies=touching(TARGET, FURNITURE), cause="contact")
def target_furniture_force(fields: RecordFields) -> Floats:
    """Largest contact force between a target and furniture, 0 where they do not touch."""
    # `contacts_between` selects contacts of targets and furniture. The result is in newtons, one value per record, [N].
    return _find_peak_forces(fields, contacts_between(fields, TARGET, FURNITURE))


@signal(unit="N", reads=("contacts",), bodies=touching(ROBOT, BYSTANDER), cause="contact")
def arm_bystander_force(fields: RecordFields) -> Floats:
    """Largest contact force between the robot and a bystander, 0 where they do not touch."""
    # A bystander is an object that should stay where it is. The result has one value per record in newtons, [N].
    return _find_peak_forces(fields, contacts_between(fields, ROBOT, BYSTANDER))


@signal(unit="N", reads=("contacts",), bodies=touching(), cause="contact")
def max_contact_force(fields: RecordFields) -> Floats:
    """Largest contact force of any recorded pair of bodies, 0 where nothing touches."""
    # `contacts_between` selects all contacts here. The result has one value per record in newtons, [N].
    return _find_peak_forces(fields, contacts_between(fields))


@signal(unit="N", reads=("contacts", NET_FORCE), bodies=touching(ROBOT, FURNITURE, channel=NET_FORCE), cause="contact")
def arm_furniture_net_force(fields: RecordFields) -> Floats:
    """Largest net force between a body of the robot and a body of furniture, 0 where they do not touch."""
    # The net force of two bodies is the norm of the sum of their contact forces. The result is [N], in newtons.
    return _find_peak_forces(fields, contacts_between(fields, ROBOT, FURNITURE), net=True)


@signal(unit="N", reads=("contacts", NET_FORCE), bodies=touching(TARGET, FURNITURE, channel=NET_FORCE), cause="contact")
def target_furniture_net_force(fields: RecordFields) -> Floats:
    """Largest net force between a target and a body of furniture, 0 where they do not touch."""
    # The net force of two bodies is the norm of the sum of their contact forces. The result is [N], in newtons.
    return _find_peak_forces(fields, contacts_between(fields, TARGET, FURNITURE), net=True)


@signal(unit="N", reads=("contacts", NET_FORCE), bodies=touching(channel=NET_FORCE), cause="contact")
def max_net_contact_force(fields: RecordFields) -> Floats:
    """Largest net force between the two bodies of any recorded pair, 0 where nothing touches."""
    # The net force of two bodies is the norm of the sum of their contact forces. The result is [N], in newtons.
    return _find_peak_forces(fields, contacts_between(fields), net=True)


STRIKE_S, HELD_S = 0.1, 0.5
"""Durations in s: a strike sums impulses over STRIKE_S; the impulse at rest is measured over HELD_S before and after.
By ISO/TS 15066:2016, contact longer than 0.5 s is quasi-static, and shorter contact is transient.
"""


@signal(
    unit="N s",
    reads=("contacts", NO_IMPULSE),
    bodies=touching(ROBOT, FURNITURE, channel=NET_IMPULSE),
    cause="contact",
    ahead=True,
)
def arm_furniture_strike(fields: RecordFields) -> Floats:
    """Like `largest_strike`, but only between a body of the robot and a body of furniture."""
    # A strike is the impulse of two bodies' net force over the last 0.1 s, minus the impulse at rest.
    # `NO_IMPULSE` is the name under which a missing net impulse is reported.
    # The result has one value per record in N s, [N].
    return _find_largest_strikes(fields, contacts_between(fields, ROBOT, FURNITURE))


@signal(unit="N s", reads=("contacts", NO_IMPULSE), bodies=touching(channel=NET_IMPULSE), cause="contact", ahead=True)
def largest_strike(fields: RecordFields) -> Floats:
    """Largest impulse of two bodies' net force over the last 0.1 s, minus the impulse at rest; 0 if nothing touches.

    The impulse at rest is the number of steps in 0.1 s times the rest impulse per step. The rest impulse per step is
    the larger of two minima: the smallest impulse of a step in the 0.5 s before the 0.1 s, and in the 0.5 s after. A
    minimum is 0 if its 0.5 s extend beyond the episode. Both durations are rounded up to whole steps.
    """
    # The result has one value per record in N s, [N]. `contacts_between` selects all contacts here.
    # `NO_IMPULSE` is the name under which a missing net impulse is reported.
    return _find_largest_strikes(fields, contacts_between(fields))


def _find_largest_strikes(fields: RecordFields, is_chosen: Bools) -> Floats:
    # Return the largest strike in each record, [N], over all pairs of bodies in the chosen contacts.
    # `is_chosen` [C] selects contacts.
    # The strike of a pair is the impulse in the last 0.1 s minus the impulse at rest, in N s.
    # `starts` [E + 1] has the first row of each episode, and then the number N of all records.
    values = np.zeros(int(fields.batch.starts[-1]))
    for episode in range(len(fields.batch)):
        if strikes := strikes_by_pair(fields, is_chosen, episode):
            values[fields.rows_of(episode)] = np.max([*strikes.values()], axis=0)
    return values


def strikes_by_pair(fields: RecordFields, is_chosen: Bools, episode: int = 0) -> dict[tuple[int, int], Floats]:
    """Map each pair of bodies in an episode's chosen contacts to the pair's `largest_strike` in each record, [n]."""
    # `is_chosen` is a mask of all contacts of the batch, [C]; `rows` are indices of contacts.
    # A pair has the indices of its two bodies, the smaller first. Contacts are stored in record order.
    # `record_of_contact` [C] is the row of each contact's record.
    batch, (start, end) = fields.batch, fields.batch.starts[episode : episode + 2]
    rows = np.arange(batch.contacts.starts[start], batch.contacts.starts[end])
    rows = rows[is_chosen[rows] & (fields.record_of_contact[rows] > start)]  # record 0 has no impulse
    bodies = np.sort(np.stack([batch.contacts.a[rows], batch.contacts.b[rows]], axis=1), axis=1)
    pairs, pair_of_contact = np.unique(bodies, axis=0, return_inverse=True)
    # Sum of the impulses of each pair in each record
    impulse, step = np.zeros((len(pairs), int(end - start))), fields.record_of_contact[rows] - start
    np.add.at(impulse, (pair_of_contact.ravel(), step), batch.contacts.net_impulse_ns[rows])
    strikes = _subtract_rest(impulse, float(batch.dt_s[episode])) if len(pairs) else impulse
    return {(a, b): strike for (a, b), strike in zip(pairs.tolist(), strikes, strict=True)}


def _subtract_rest(impulse: Floats, dt_s: float) -> Floats:
    """Return the strikes (at least 0) of `K` pairs, [K, n], from the pairs' impulses in each of n steps, [K, n]."""
    # An impulse is in N s. STRIKE_S and HELD_S are the durations of a strike and of a span of rest, 0.1 s and 0.5 s.
    pair_count, count = impulse.shape
    # The number of steps in a strike, and the number of steps in a span of rest.
    # Each number is at least 1, and at most the number of steps in the episode.
    strike_n, rest_n = (min(max(1, math.ceil(span_s / dt_s - 1e-9)), count) for span_s in (STRIKE_S, HELD_S))
    # Add zeros before and after the episode. So a span that extends beyond the episode has the smallest impulse 0.
    padded = np.concatenate(
        [np.zeros((pair_count, rest_n + strike_n)), impulse, np.zeros((pair_count, rest_n))], axis=1
    )
    least, sums = _fold_windows(np.minimum, padded, rest_n), _fold_windows(np.add, padded, strike_n)
    # Record t is the column `rest_n + strike_n + t` of `padded`.
    # A strike that ends in record t begins with the column `rest_n + 1 + t`.
    # One span of rest ends before the strike, and the other span begins after the strike.
    rest_before, strike = least[:, 1 : count + 1], sums[:, rest_n + 1 : rest_n + 1 + count]
    rest_after = least[:, rest_n + strike_n + 1 : rest_n + strike_n + 1 + count]
    excess: Floats = np.maximum(strike - strike_n * np.maximum(rest_before, rest_after), 0.0)
    return excess


def _fold_windows(fold: np.ufunc, values: Floats, size: int) -> Floats:
    """Apply `fold` (minimum or sum) to each window of `size` adjacent columns, [K, n - size + 1], in O(n log size)."""
    window_count, pieces = values.shape[1] - size + 1, list[Floats]()
    # Each window consists of pieces. The widths of the pieces are the powers of two that sum to `size`.
    # Column k of `folds` is the fold of `width` columns from column k on.
    # `covered` is the sum of the widths of the pieces so far.
    folds, width, covered = values, 1, 0
    while width <= size:
        if size & width:
            pieces.append(folds[:, covered : covered + window_count])
            covered += width
        folds = fold(folds[:, :-width], folds[:, width:])
        width *= 2
    folded: Floats = functools.reduce(fold, pieces)
    return folded


BY_NET_FORCE = {
    "arm_furniture_force": "arm_furniture_net_force",
    "target_furniture_force": "target_furniture_net_force",
    "max_contact_force": "max_net_contact_force",
}
"""Maps each signal of single-contact forces to the corresponding signal of net forces between two bodies."""


@signal(unit="1", reads=("contacts",), event=True, bodies=touching(ROBOT, ROBOT), cause="touch")
def self_collision(fields: RecordFields) -> Floats:
    """1 where two bodies of the robot touch, else 0."""
    # The result has one value per record, [N]; N is the last entry of `starts`.
    # `contacts_between` returns a mask of the contacts, [C].
    # `record_of_contact` [C] is the row of each contact's record.
    is_touching = np.zeros(int(fields.batch.starts[-1]))
    is_touching[fields.record_of_contact[contacts_between(fields, ROBOT, ROBOT)]] = 1.0
    return is_touching


@signal(
    unit="m",
    reads=("body_pos_m",),
    unknown=lambda fields: _measure_displacements(fields)[1],
    bodies=DISPLACED,
    cause="push",
)
def non_target_disp_max(fields: RecordFields) -> Floats:
    """Largest distance of a bystander or tracked fixture from its place in record 0.

    The value at t is the maximum of ‖x_i(t) - x_i(0)‖ over tracked bodies i with the role bystander or furniture; NaN
    without such bodies. A body whose pose is unknown at t or in record 0 is left out at t; the value is then a lower
    bound. If phases of a task are judged, the first record of the judged interval replaces record 0.
    """
    # Bystanders and furniture are bodies that should stay where they are. The result is [N], in meters.
    return _measure_displacements(fields)[0]


def _measure_displacements(fields: RecordFields) -> tuple[Floats, Bools]:
    # Return `non_target_disp_max`, and a mask of the records where a body with an unknown pose was left out, [N] each.
    # `poses.body` lists the tracked bodies, episode by episode.
    # `body_starts` [E + 1] has the start of each episode in this list.
    batch, poses = fields.batch, fields.batch.body_pos_m
    body_counts = np.diff(poses.body_starts)
    largest = np.full(int(batch.starts[-1]), np.nan)
    is_partial = np.zeros(len(largest), dtype=np.bool_)
    # Group the episodes by number of tracked bodies.
    for body_count in np.unique(body_counts[body_counts > 0]).tolist():
        episodes = np.flatnonzero(body_counts == body_count)
        bodies = poses.body[poses.body_starts[episodes][:, None] + np.arange(body_count)]
        is_watched = np.isin(batch.body_role[bodies], (BYSTANDER, FURNITURE))
        records, new_starts = gather_ranges(batch.starts, episodes)
        # Displacements from each record's reference record (record 0 by default), [records of episodes, bodies, 3]
        flat_items, _ = gather_ranges(poses.channel.starts, episodes)
        xyz = poses.channel.values[flat_items].reshape(-1, body_count, 3)
        record_counts = np.diff(new_starts)
        # For each row of `records`, find the index of the reference record in `xyz`.
        # `fields.origin` has the reference record's row in the batch.
        origin_rows = fields.origin[records] + np.repeat(new_starts[:-1] - batch.starts[episodes], record_counts)
        xyz = xyz - xyz[origin_rows]
        np.square(xyz, out=xyz)
        squared = xyz[..., 0] + xyz[..., 1]
        squared += xyz[..., 2]
        # A squared distance of -1 means that the body does not count.
        squared[~np.repeat(is_watched, record_counts, axis=0)] = -1.0
        # Leave out a body in records where the body's pose, then or in the reference record, is marked as unknown.
        if fields.has_lost_poses:
            is_lost = np.stack([fields.is_lost(np.repeat(body, record_counts), records) for body in bodies.T], axis=1)
            is_lost |= is_lost[origin_rows]
            is_lost &= squared >= 0
            squared[is_lost] = -1.0
            is_partial[records] = is_lost.any(axis=1)
        greatest = squared.max(axis=1)
        largest[records] = np.sqrt(np.where(greatest < 0, np.nan, greatest))
    return largest, is_partial


def contacts_between(fields: RecordFields, *roles: int) -> Bools:
    """Return a mask of the contacts between bodies of two roles, [C]. Without roles, the mask selects all contacts."""
    # A role is one of the constants ROBOT, TARGET, BYSTANDER and FURNITURE.
    # `contacts.a` and `contacts.b` [C] are the two bodies of each contact.
    role, contacts = fields.batch.body_role, fields.batch.contacts
    if not roles:
        return np.ones(len(contacts.a), dtype=np.bool_)
    (role_1, role_2), role_of_a, role_of_b = roles, role[contacts.a], role[contacts.b]
    between: Bools = ((role_of_a == role_1) & (role_of_b == role_2)) | ((role_of_a == role_2) & (role_of_b == role_1))
    return between


def _find_peak_forces(fields: RecordFields, is_chosen: Bools, *, net: bool = False) -> Floats:
    # Return the largest force of the chosen contacts in each of `N` records, in newtons; 0 without such contacts.
    # `is_chosen` [C] selects contacts.
    # If `net` is true, use the net force of two bodies; otherwise, use the force of a single contact.
    contacts = fields.batch.contacts
    force = contacts.net_force_n if net else contacts.force_n
    # `contacts.starts` [N + 1] has the first contact of each record.
    # Records without contacts are left out, because `reduceat` cannot fold empty ranges.
    touched_records = np.flatnonzero(np.diff(contacts.starts))
    peak = np.zeros(int(fields.batch.starts[-1]))
    if len(touched_records):
        chosen_forces = np.where(is_chosen, force, 0.0)
        peak[touched_records] = np.maximum.reduceat(chosen_forces, contacts.starts[touched_records])
    return peak


# The held target


@signal(unit="1", reads=("gripper_contact", WHOSE_GRIP), boolean=True)
def grip(fields: RecordFields) -> Bools:
    """True while the gripper holds a target.

    True if the gripper has contact and the gripped body is a target or unknown. Also true if another arm holds this
    arm's held target. False if contact is not recorded, or if the task has no target and the gripped body is unknown.
    """
    # `WHOSE_GRIP` names the field with the body that each arm with contact grips.
    return fields.grip


@signal(unit="1", reads=("gripper_contact", WHOSE_GRIP), event=True)
def gripper_contact(fields: RecordFields) -> Floats:
    """1 while the gripper has contact or another arm holds this arm's held target, else 0."""
    # `WHOSE_GRIP` names the field with the body that each arm with contact grips.
    return fields.gripping.astype(np.float64)


@signal(unit="1", reads=("gripper_contact", "gripped_body"), event=True)
def foreign_grip(fields: RecordFields) -> Floats:
    """1 while the gripper has contact and holds a body that is not a target, else 0."""
    return (fields.own_contact & fields.is_foreign).astype(np.float64)


def _is_height_lost(fields: RecordFields) -> Bools:
    # True where the height of a gripped target is unknown, although the episode records the target's position, [N].
    # `lacks_field` returns one value per episode. `spread_over_records` repeats the value for each record.
    is_lacking = fields.lacks_field("body_pos_m of the held target")
    return fields.grip & ~fields.spread_over_records(is_lacking) & np.isnan(target_height(fields))


@signal(unit="1", reads=("gripper_contact", "body_pos_m of the held target"), boolean=True, unknown=_is_height_lost)
def transport(fields: RecordFields) -> Bools:
    """True while a target is gripped and more than 5 cm above its start.

    False where the target's height is unknown or not recorded.
    """
    # Comparing NaN (unknown height) gives False. `_is_height_lost` marks these records as unknown.
    return fields.grip & (target_height(fields) > LIFTED_M)


@signal(unit="1", reads=("gripper_contact", "body_pos_m of the held target"), event=True)
def in_transport(fields: RecordFields) -> Floats:
    """1 while `transport` is true, else 0.

    NaN where the height of a gripped target is not known, and throughout an episode without contact or target position.
    """
    # `_is_height_lost` is a mask of the records in which a gripped target's height is unknown.
    # `signal` inserts NaN into episodes that lack a field of `reads`.
    is_carried = transport(fields).astype(np.float64)
    return np.where(_is_height_lost(fields), np.nan, is_carried) if fields.has_lost_poses else is_carried


@signal(unit="m", reads=("body_pos_m of the held target",), bodies=HELD)
def target_height(fields: RecordFields) -> Floats:
    """Height of the held target above its height in record 0, z(t) - z(0).

    NaN where the target's position is not known, and throughout an episode that does not record the position.
    """
    # `held_pos` and `held_pos_start` [N, 3] are the positions of each record's held target now and in record 0, in m.
    return np.subtract(fields.held_pos[:, 2], fields.held_pos_start[:, 2])


@signal(unit="deg", reads=("body_quat_wxyz of the held target",), bodies=HELD, cause="grip")
def held_object_tilt(fields: RecordFields) -> Floats:
    """Angle in degrees between the held target's z axis now and in record 0, in the world, whether gripped or not.

    NaN where the target's orientation is not known, and throughout an episode that does not record the orientation.
    """
    # The dot product of the two unit vectors is the cosine of the angle, [N].
    cosine = (_find_z_axes(fields.held_quat_start) * _find_z_axes(fields.held_quat)).sum(axis=1)
    return angle_of_cosine(cosine)


@signal(unit="deg", reads=("body_quat_wxyz of the held target",), bodies=HELD, cause="grip")
def held_object_tilt_body(fields: RecordFields) -> Floats:
    """Angle of the held target's whole rotation since record 0, including rotation about its z axis.

    The angle is in degrees, 0 to 180, and NaN in the same records as `held_object_tilt`.
    """
    # The dot product of two unit quaternions is the cosine of half the angle.
    # Take the absolute value, because q and -q are the same rotation.
    cosine = np.abs((fields.held_quat_start * fields.held_quat).sum(axis=1))
    return 2.0 * angle_of_cosine(cosine)


@signal(
    unit="m",
    reads=("gripper_contact", "body_pos_m of the held target", "eef_pos_m", WHOSE_GRIP),
    bodies=HELD,
    cause="grip",
)
def held_object_slip(fields: RecordFields) -> Floats:
    """Rise of the held target in the gripper since the grip began, o(t) - o(onset); negative if it slips down.

    The onset is the first record of the grip; flickering contact does not end a grip. o(t) is the z component of
    R_eef(onset) R_eef(t)ᵀ (x_target - x_eef): the target's place in the gripper, turned to the gripper's orientation
    at the onset, so that rotating the hand is not a slip. Without the end effector's orientation, o(t) is
    z_target - z_eef. The value is 0 while nothing is gripped. If several arms hold the target, the largest slip counts.
    """
    slip = _measure_own_slip(fields)
    # `shared` has a mask [N] for each other arm: true where that arm and this arm hold the same target.
    for other, is_shared in zip(fields.other_arms, fields.shared, strict=True):
        slip = np.where(is_shared, np.maximum(slip, _measure_own_slip(other)), slip)  # NaN if one slip is NaN
    return slip


def _measure_own_slip(fields: RecordFields) -> Floats:
    # Return the slip of the held target in this arm's gripper, regardless of other arms, [N].
    # The slip is the rise of the target in the gripper since the grip began, in m; 0 where this arm grips no target.
    # `own_grip` [N] is true where this arm grips a target, and `grip_onset` returns the first record of each grip.
    slip = np.zeros(len(fields.held_body))
    rows = np.flatnonzero(fields.own_grip)
    onset_rows = grip_onset(fields)[rows]
    onset_height = _find_height_in_gripper(fields, onset_rows, onset_rows)
    slip[rows] = _find_height_in_gripper(fields, rows, onset_rows) - onset_height
    # If an unknown pose hides whether the grip continued after a gap, the slip is unknown.
    if fields.has_lost_poses:
        slip[rows[_is_onset_lost(fields)[onset_rows]]] = np.nan
    return slip


@signal(unit="m/s", reads=("body_pos_m of the held target",), ahead=True, bodies=HELD)
def target_obj_speed(fields: RecordFields) -> Floats:
    """Speed of the held target by central difference, ‖x(t+1) - x(t-1)‖ / 2dt; NaN if there are under three records.

    The first and last record take their neighbor's value. Time stamps are used instead of dt if they are recorded.
    """
    # `_measure_held_speed` is wrong at the first and last record of each episode.
    # `extend_interior` replaces these two values.
    return extend_interior(fields, _measure_held_speed(fields), margin=1)


@signal(unit="m/s", reads=("gripper_contact", "body_pos_m of the held target", WHOSE_GRIP), ahead=True, bodies=HELD)
def release_speed(fields: RecordFields) -> Floats:
    """Speed of the held target while the gripper does not hold it, (1 - gripper_contact)·speed.

    The speed is that of `target_obj_speed`, but 0 during contact. Both ends of an episode take their neighbor's value.
    """
    # `gripping` [N] is true where the gripper has contact or another arm holds the target.
    # `_measure_held_speed` returns the speed by central difference in m/s, [N].
    speed = (1.0 - fields.gripping) * _measure_held_speed(fields)
    if fields.has_lost_poses:  # before the release, the value is 0 even if the speed is unknown
        speed = np.where(fields.gripping, 0.0, speed)
    return extend_interior(fields, speed, margin=1)


def extend_interior(fields: RecordFields, values: Floats, margin: int) -> Floats:
    """Return `values` [N], but replace the first and last `margin` values of each episode by the nearest inner value.
    An episode without inner values becomes NaN.
    """
    # For each record, `first_record` and `last_record` [N] have the rows at which the record's episode begins and ends.
    low, high = fields.first_record + margin, fields.last_record - margin
    # `nearest` [N] is the row of the nearest inner record.
    nearest = np.clip(np.arange(len(values)), low, np.maximum(low, high))
    # In a short episode (low > high), `nearest` may lie beyond the array. The value at that row is not used.
    return np.where(low <= high, values[np.minimum(nearest, len(values) - 1)], np.nan)


def _measure_held_speed(fields: RecordFields) -> Floats:
    # Return the speed of the held target in m/s, [N]. Values at the ends of episodes are wrong; callers replace them.
    # The speed is a central difference.
    # `shifted_pos` gives the position of each record's held body one record later (1) or earlier (-1), [N, 3].
    difference = (fields.shifted_pos(fields.held_body, 1) - fields.shifted_pos(fields.held_body, -1)) / 2.0
    speed: Floats = np.sqrt(np.square(difference).sum(axis=1)) / fields.dt_s
    if fields.is_stamped.any():
        span = _shift_rows(fields.time_s, 1) - _shift_rows(fields.time_s, -1)
        with np.errstate(divide="ignore", invalid="ignore"):  # callers replace values that mix two episodes
            stamped = np.sqrt(np.square(2.0 * difference).sum(axis=1)) / span
        # `is_stamped` [N] is true in episodes with time stamps. There, the stamps replace the control step.
        speed = np.where(fields.is_stamped, stamped, speed)
    return speed


def grip_onset(fields: RecordFields) -> Ints:
    """Return for each record the first record of the current grip, [N]; undefined where nothing is gripped.

    A grip survives a gap of up to `GAP_RECORDS` records if the body is then within `REACH_M` of its earlier place in
    the gripper.
    """
    # GAP_RECORDS is 2, and REACH_M is 4 cm. A gap is a run of records in which the arm does not grip.
    rows = np.arange(len(fields.held_body))
    is_begin, bridged, previous_grip = _find_grip_begins(fields)
    # After a gap, a new grip begins if the body has moved, or if the distance is NaN.
    is_begin[bridged] = ~(_measure_distance_in_gripper(fields, bridged, previous_grip[bridged]) <= REACH_M)
    return np.maximum.accumulate(np.where(is_begin, rows, 0))


def _find_grip_begins(fields: RecordFields) -> tuple[Bools, Ints, Ints]:
    """Return where a new grip begins, [N]. Also return the `K` records in which a grip of the same body continues
    after a gap of at most `GAP_RECORDS` records. Last, return the latest earlier record with a grip, or -1, [N].
    """
    # `own_grip` [N] is true where this arm grips a target, and `held_body` [N] is the body.
    rows = np.arange(len(fields.held_body))
    latest_grip = np.maximum.accumulate(np.where(fields.own_grip, rows, -1))
    previous_grip = np.concatenate([[-1], latest_grip[:-1]])  # -1 = no earlier grip
    # A new grip begins if this is the first grip of the episode, the body differs, or the gap is too long.
    is_begin = fields.own_grip & (
        (previous_grip < fields.first_record)
        | (fields.held_body != fields.held_body[previous_grip])
        | (rows - previous_grip > GAP_RECORDS + 1)
    )
    bridged = np.flatnonzero(fields.own_grip & ~is_begin & (rows - previous_grip > 1))
    return is_begin, bridged, previous_grip


def _is_onset_lost(fields: RecordFields) -> Bools:
    # True where a new grip is only assumed, because a missing pose hides whether the body stayed in place, [N].
    # `bridged` are the rows directly after a short gap in a grip.
    # A distance of NaN means that a pose is unknown or not recorded.
    is_lost = np.zeros(len(fields.held_body), dtype=np.bool_)
    _, bridged, previous_grip = _find_grip_begins(fields)
    is_lost[bridged] = np.isnan(_measure_distance_in_gripper(fields, bridged, previous_grip[bridged]))
    return is_lost


def _measure_distance_in_gripper(fields: RecordFields, rows: Ints, previous_rows: Ints) -> Floats:
    # Return how far the held target has moved in the hand's frame from record `previous_rows[k]` to record `rows[k]`.
    # The result is [K], in m; NaN if a pose is unknown.
    offset = _find_place_in_gripper(fields, rows) - _find_place_in_gripper(fields, previous_rows)
    distance: Floats = np.sqrt(np.square(offset).sum(axis=1))
    return distance


def _find_place_in_gripper(fields: RecordFields, rows: Ints) -> Floats:
    # Return the held target's position relative to the end effector, in the hand's frame, [rows, 3].
    return _turn_into_hand_axes(fields, rows, fields.held_pos[rows] - fields.eef_pos[rows])


def _turn_into_hand_axes(fields: RecordFields, rows: Ints, offsets: Floats) -> Floats:
    # Rotate `offsets` in place: from world axes to the hand's axes, if the hand's orientation is recorded.
    # `offsets` [K, 3] are vectors that begin at the end effector, at the records `rows` [K].
    # The vectors are unchanged if the hand's orientation is not recorded.
    oriented = np.flatnonzero(fields.spread_over_records(fields.batch.eef_quat_wxyz.present)[rows])
    # Summing over the first index of a rotation matrix applies the inverse rotation, from world to hand.
    offsets[oriented] = np.einsum("nij,ni->nj", _rotation_matrices(fields.eef_quat[rows[oriented]]), offsets[oriented])
    return offsets


def _find_height_in_gripper(fields: RecordFields, rows: Ints, onset_rows: Ints) -> Floats:
    # Return o(t) of `held_object_slip` for each row; `onset_rows` are the rows in which the grips began.
    # o(t) is the height of the held target above the end effector in meters, [K].
    # Rotations of the hand since the onset of the grip are undone first.
    place = _find_place_in_gripper(fields, rows)
    oriented = np.flatnonzero(fields.spread_over_records(fields.batch.eef_quat_wxyz.present)[rows])
    # If the hand's orientation is not recorded, `place` is in world axes, so the z component is the height.
    height = place[:, 2].copy()
    # Row 2 of the hand's rotation matrix at the onset gives the world z component of a vector in the hand's frame.
    height[oriented] = np.einsum(
        "nj,nj->n", _rotation_matrices(fields.eef_quat[onset_rows[oriented]])[:, 2, :], place[oriented]
    )
    return height


def _find_z_axes(quat: Floats) -> Floats:
    # Return the z axis of each body in the world frame, [N, 3], from quaternions wxyz [N, 4].
    w, x, y, z = quat.T
    return np.stack([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)], axis=1)


def _rotation_matrices(quat: Floats) -> Floats:
    # Return the rotation matrices [N, 3, 3] of unit quaternions wxyz [N, 4].
    w, x, y, z = quat.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


# Several arms


@signal(unit="m", reads=("eef_pos_m", SECOND_ARM))
def hands_distance(fields: RecordFields) -> Floats:
    """Distance between the end effectors of the arm and of the nearest other arm."""
    # `other_arms` has the fields of all arms except this arm. The result is [N], in meters.
    # `SECOND_ARM` is missing in an episode with one arm; `signal` then replaces infinity by NaN.
    least_squared = np.full(len(fields.own_grip), np.inf)
    for other in fields.other_arms:
        # In episodes with fewer arms, `other` may be this arm; the distance then does not count.
        is_same_arm = fields.spread_over_records(other.arm == fields.arm)
        squared = np.square(fields.eef_pos - other.eef_pos).sum(axis=1)
        least_squared = np.minimum(least_squared, np.where(is_same_arm, np.inf, squared))
    least: Floats = np.sqrt(least_squared)
    return least


@signal(unit="1", reads=("gripper_contact", WHOSE_GRIP, SECOND_ARM), boolean=True)
def shared_grip(fields: RecordFields) -> Bools:
    """True while the arm and another arm hold the same target."""
    # `fields.shared` has a mask [N] for each other arm: true where that arm and this arm hold the same target.
    # `SECOND_ARM` is missing in an episode with one arm.
    shared: Bools = np.any([np.zeros_like(fields.own_grip), *fields.shared], axis=0)
    return shared


_FIELDS_OF_TWO_GRIPS = ("gripper_contact", WHOSE_GRIP, "eef_pos_m", "eef_quat_wxyz", SECOND_ARM)


@signal(unit="m", reads=_FIELDS_OF_TWO_GRIPS, bodies=HELD)
def shared_grip_shift(fields: RecordFields) -> Floats:
    """Distance by which another hand on the same target has moved, seen from the arm's hand, since both grips began.

    0 while no other arm holds the same target. If the target is rigid, the distance changes only if a hand slips.
    """
    # `_find_largest_since_shared_grip` calls `measure_shift` for each other arm and takes the largest value, [N].

    def measure_shift(other: RecordFields, rows: Ints, onset_rows: Ints) -> Floats:
        # The position of the other hand in this hand's frame: now, and in the record in which the later grip began
        offset_now, offset_at_onset = (
            _turn_into_hand_axes(fields, chosen_rows, other.eef_pos[chosen_rows] - fields.eef_pos[chosen_rows])
            for chosen_rows in (rows, onset_rows)
        )
        distance: Floats = np.sqrt(np.square(offset_now - offset_at_onset).sum(axis=1))
        return distance

    return _find_largest_since_shared_grip(fields, measure_shift)


@signal(unit="deg", reads=_FIELDS_OF_TWO_GRIPS, bodies=HELD)
def shared_grip_turn(fields: RecordFields) -> Floats:
    """Angle by which another hand on the same target has turned, seen from the arm's hand, since both grips began.

    0 while no other arm holds the same target.
    """
    # `_find_largest_since_shared_grip` calls `measure_turn` for each other arm and takes the largest value, [N].

    def find_orientation(other: RecordFields, rows: Ints) -> Floats:
        own_turn, other_turn = (_rotation_matrices(arm.eef_quat[rows]) for arm in (fields, other))
        return np.asarray(np.einsum("nji,njk->nik", own_turn, other_turn))  # the other hand in this hand's frame

    def measure_turn(other: RecordFields, rows: Ints, onset_rows: Ints) -> Floats:
        turn_now, turn_at_onset = find_orientation(other, rows), find_orientation(other, onset_rows)
        # The trace of a rotation matrix is 1 + 2 cos(angle).
        return angle_of_cosine((np.einsum("nij,nij->n", turn_now, turn_at_onset) - 1.0) / 2.0)

    return _find_largest_since_shared_grip(fields, measure_turn)


def _find_largest_since_shared_grip(
    fields: RecordFields, measure: Callable[[RecordFields, Ints, Ints], Floats]
) -> Floats:
    # Return the largest change over the other arms, [N]; 0 where no other arm holds the same target.
    # `measure` returns the change of one other arm since both grips began.
    # The arguments of `measure` are the fields of the other arm, and two arrays of rows [K].
    # The first array has the rows in which both arms hold the target.
    # For each of these rows, the second array has the row in which the later of the two grips began.
    largest = np.zeros(len(fields.own_grip))
    for other, is_shared in zip(fields.other_arms, fields.shared, strict=True):
        rows = np.flatnonzero(is_shared)
        # The rows in which the later of the two grips began
        onset_rows = np.maximum(grip_onset(fields), grip_onset(other))[rows]
        largest[rows] = np.maximum(largest[rows], measure(other, rows, onset_rows))
    return largest


# Records contain no person. If a rules file places a person, signals of the module `space` replace these signals.


@signal(unit="m", reads=(NO_PERSON,))
def person_distance(fields: RecordFields) -> Floats:
    """Distance between the robot and the person of a rules file, 0 where they meet."""
    # Unless a rules file places a person, the value is unknown in all N records.
    return np.full(int(fields.batch.starts[-1]), np.nan)


@signal(unit="m/s", reads=(NO_PERSON,))
def person_approach(fields: RecordFields) -> Floats:
    """Speed at which the nearest link of the robot approaches the person of a rules file, at least 0."""
    # Unless a rules file places a person, the value is unknown in all N records.
    return np.full(int(fields.batch.starts[-1]), np.nan)


@signal(unit="m", reads=(NO_PERSON,))
def protective_distance(fields: RecordFields) -> Floats:
    """Protective separation distance from the person of a rules file, by ISO/TS 15066, 5.5.4."""
    # Unless a rules file places a person, the value is unknown in all N records.
    return np.full(int(fields.batch.starts[-1]), np.nan)


# The arm


@signal(
    unit="1",
    reads=("joint_torque_nm", "joint_torque_limit_nm"),
    bodies=loaded_joint("joint_torque_nm"),
    cause="load",
)
def joint_torque_ratio(fields: RecordFields) -> Floats:
    """Largest joint torque as a share of that joint's limit, max over j of |τ_j|/τ_j^max."""
    return _find_largest_torques(fields, fields.batch.joint_torque_nm, as_share=True)


@signal(
    unit="1",
    reads=("joint_torque_peak_nm", "joint_torque_limit_nm"),
    bodies=loaded_joint("joint_torque_peak_nm"),
    cause="load",
)
def joint_torque_peak_ratio(fields: RecordFields) -> Floats:
    """Largest joint torque over the physics substeps of a control step as a share of that joint's limit."""
    # The channel has each joint's largest torque over the substeps. The result is [N].
    return _find_largest_torques(fields, fields.batch.channel("joint_torque_peak_nm"), as_share=True)


@signal(unit="N m", reads=("joint_torque_nm",))
def joint_torque_max(fields: RecordFields) -> Floats:
    """Largest joint torque, max over j of |τ_j|, regardless of each joint's limit."""
    return _find_largest_torques(fields, fields.batch.joint_torque_nm, as_share=False)


def _find_largest_torques(fields: RecordFields, channel: Channel, *, as_share: bool) -> Floats:
    # Return the largest torque over the joints in each record, in N m or as a share of the joint's limit, [N].
    # The result is NaN in episodes without torques or, for shares, without limits.
    # `channel` has the torques of all joints in each record. `width` [E] is the number of joints, -1 if not recorded.
    batch, largest, has_torques = fields.batch, np.full(int(fields.batch.starts[-1]), np.nan), channel.width > 0
    if as_share:
        has_torques &= ~fields.lacks_field("joint_torque_limit_nm")
    for joint_count in np.unique(channel.width[has_torques]):  # group the episodes by number of joints
        episodes = np.flatnonzero(has_torques & (channel.width == joint_count))
        flat_items, _ = gather_ranges(channel.starts, episodes)
        torques = np.abs(channel.values[flat_items]).reshape(-1, joint_count)
        if as_share:
            limits = np.array([batch.headers[episode].torque_limit_nm for episode in episodes])
            torques = torques / np.repeat(limits, batch.lengths[episodes], axis=0)
        records, _ = gather_ranges(batch.starts, episodes)
        largest[records] = torques.max(axis=1)
    return largest


@signal(unit="N", reads=("wrist_force_n",))
def wrist_force(fields: RecordFields) -> Floats:
    """Norm of the force at the hand, from a wrist sensor after its offset is removed."""
    # `fields.wrist_force_n` [N, 3] has the components of the force in newtons.
    squared: Floats = np.square(fields.wrist_force_n).sum(axis=1)
    return np.sqrt(squared)


@signal(unit="m/s", reads=("eef_pos_m",), ahead=True)
def eef_speed(fields: RecordFields) -> Floats:
    """Speed of the end effector, ‖Δ₁x̃‖/dt with Δ₁x = (x₊ - x₋)/2."""
    # x̃ is the mean of five successive positions; x₊ and x₋ are one record later and earlier.
    # Time stamps replace dt if they are recorded.
    # The first and last 3 records take the value of the nearest inner record.
    # The tuple has the offsets (in records) of the positions that Δ₁ uses.
    x = _mean_of_five(fields.eef_pos)
    return _measure_derivative_norm(fields, (_shift_rows(x, 1) - _shift_rows(x, -1)) / 2.0, (-1, 1), margin=3)


@signal(unit="m/s^2", reads=("eef_pos_m",), ahead=True)
def eef_acc(fields: RecordFields) -> Floats:
    """Acceleration of the end effector, ‖Δ₂x̃‖/dt² with Δ₂x = x₊ - 2x + x₋; x̃ is the mean of five positions x."""
    # x₊ and x₋ are one record later and earlier. Time stamps replace dt if they are recorded.
    # The first and last 3 records take the value of the nearest inner record.
    # The tuple has the offsets (in records) of the positions that Δ₂ uses.
    x = _mean_of_five(fields.eef_pos)
    return _measure_derivative_norm(fields, _shift_rows(x, 1) - 2.0 * x + _shift_rows(x, -1), (-1, 0, 1), margin=3)


@signal(unit="m/s^3", reads=("eef_pos_m",), ahead=True)
def eef_jerk(fields: RecordFields) -> Floats:
    """Jerk of the end effector, ‖Δ₃x̃‖/dt³ with Δ₃x = (x₊₂ - 2x₊₁ + 2x₋₁ - x₋₂)/2."""
    # x̃ is the mean of five successive positions; x₊₂ and x₋₂ are two records later and earlier.
    # Time stamps replace dt if they are recorded.
    # The first and last 4 records take the value of the nearest inner record.
    # The tuple has the offsets (in records) of the positions that Δ₃ uses.
    x = _mean_of_five(fields.eef_pos)
    third = (_shift_rows(x, 2) - 2.0 * _shift_rows(x, 1) + 2.0 * _shift_rows(x, -1) - _shift_rows(x, -2)) / 2.0
    return _measure_derivative_norm(fields, third, (-2, -1, 1, 2), margin=4)


def _shift_rows(x: Floats, by: int) -> Floats:
    # Return an array whose row k is row k + `by` of x, so a positive `by` gives later records.
    return np.roll(x, -by, axis=0)  # rows wrap around at the ends; `extend_interior` replaces these values


def _mean_of_five(x: Floats) -> Floats:
    # Return x̃: the mean of each row, the two rows before it and the two rows after it.
    return (_shift_rows(x, -2) + _shift_rows(x, -1) + x + _shift_rows(x, 1) + _shift_rows(x, 2)) / 5.0


def _measure_derivative_norm(fields: RecordFields, difference: Floats, stencil: tuple[int, ...], margin: int) -> Floats:
    # Return the norm of the n-th derivative of x̃, [N]. Without time stamps, use `difference`, Δₙx̃.
    # With time stamps, use n + 1 records per value. `stencil` has the offsets of these records.
    # The first and last `margin` records of each episode take the value of the nearest inner record.
    order = len(stencil) - 1
    norm = np.sqrt(np.square(difference).sum(axis=1)) / fields.dt_s**order
    if fields.is_stamped.any():
        # The n-th derivative of x is n! times the divided difference.
        # The mean of the derivatives at five records is the derivative of x̃.
        derivative = _mean_of_five(math.factorial(order) * _divided_difference(fields.eef_pos, fields.time_s, stencil))
        norm = np.where(fields.is_stamped, np.sqrt(np.square(derivative).sum(axis=1)), norm)
    return extend_interior(fields, norm, margin)


def _divided_difference(x: Floats, time_s: Floats, stencil: tuple[int, ...]) -> Floats:
    # Return the divided difference of x for each record, [N, 3].
    # `stencil` has the offsets, from this record, of the records that the divided difference uses.
    # `x` [N, 3] are positions, and `time_s` [N] are time stamps.
    total = np.zeros_like(x)
    with np.errstate(divide="ignore", invalid="ignore"):  # callers replace values that mix two episodes
        # Divide the value at each record of the stencil by the product of the times since all other records.
        for offset in stencil:
            spans = [_shift_rows(time_s, offset) - _shift_rows(time_s, other) for other in stencil if other != offset]
            total += _shift_rows(x, offset) / np.prod(spans, axis=0)[:, None]
    return total
