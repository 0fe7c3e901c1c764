"""Operations on a batch of one episode: conversion from and to the recorder's arrays, split, join, and validation.

A single record is a batch of one episode with one record, without action, simulator state and host-specific fields.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import Place, RecordError
from safevla_bench.text import count_noun
from safevla_bench.trajectory.batch import (
    CONTACT_NUMBERS,
    Batch,
    Channel,
    Contacts,
    Poses,
    batch_channels,
    batch_of_headers,
    offsets_of,
)
from safevla_bench.trajectory.geometry import read_geometry
from safevla_bench.trajectory.header import OUTCOMES, ROBOT, ROLES, TARGET, TORQUES, Header
from safevla_bench.trajectory.marks import SINGLE, header_fields, single_channels
from safevla_recorder.channels import (
    LARGEST,
    LINK_MOTION,
    NET_FORCE,
    NET_IMPULSE,
    POSES,
    ROWS,
    SUBGOAL_NAMES,
    SUBGOALS,
    ChannelSpec,
    as_fields,
)
from safevla_recorder.episode import Bools, ContactList, EpisodeArrays, Ints, add_header_field, describe_invalid_integer

_ABSENT = Channel(np.empty(0), np.zeros(2, dtype=np.int64), np.array([-1], dtype=np.int64))


def from_recording(recording: EpisodeArrays) -> Batch:
    """Convert a recording to a batch of one episode. Raises `RecordError` if the recording is invalid."""
    batch = _build_batch(recording)
    validate(batch)
    return batch


def empty_batch() -> Batch:
    """Return a batch without episodes."""
    return batch_of_headers((), np.empty(0, dtype=np.int64))


def _build_batch(recording: EpisodeArrays) -> Batch:
    # Converts the arrays of one episode to a batch of one, without checking them.
    # The body table has all bodies in the order of `recording.roles`.
    header = Header(**recording.header)  # type: ignore[arg-type]  # checked by `validate` and by readers
    names, records = list(recording.roles), recording.records
    return Batch(
        headers=(header,),
        starts=np.array([0, records], dtype=np.int64),
        body_starts=np.array([0, len(names)], dtype=np.int64),
        body_names=tuple(names),
        body_name=np.arange(len(names), dtype=np.int64),
        body_role=np.array([ROLES.index(role) for role in recording.roles.values()], dtype=np.int8),
        target=np.array([names.index(header.target_object) if header.target_object in names else -1], dtype=np.int64),
        contacts=_build_contacts(recording.contacts, records),
        extra=(recording.extra,),
        **batch_channels(
            # An episode with a single record has no actions, so that channels of actions count as not recorded.
            lambda spec: _build_channel(None if spec.is_per_action and records == 1 else recording.channel(spec.name)),
            lambda spec: _build_poses(recording, spec),
        ),
    )


def _build_contacts(contact_list: ContactList | None, record_count: int) -> Contacts:
    # Returns the contacts of one episode with `record_count` records. None = contacts were not recorded.
    present = np.array([contact_list is not None])
    if contact_list is None:
        return Contacts.empty(present, record_count)
    # `record` has the index of each contact's record; `starts` has the index of each record's first contact.
    starts = offsets_of(np.bincount(contact_list.record, minlength=record_count))
    _, *columns = contact_list.columns().values()  # `starts` replaces the first column, which has record indices
    return Contacts(present, starts, *columns)


def _build_channel(rows: NDArray[Any] | None) -> Channel:
    # Returns the channel of one episode, given an array [rows] or [rows, …]. None means not recorded.
    if rows is None:
        return _ABSENT  # a channel without values
    values = np.ascontiguousarray(rows, dtype=np.float64)
    width = int(np.prod(values.shape[1:], dtype=np.int64))  # numbers per row; 1 for an array [rows]
    return Channel(values.reshape(-1), np.array([0, values.size], dtype=np.int64), np.array([width], dtype=np.int64))


def _build_poses(recording: EpisodeArrays, spec: ChannelSpec) -> Poses:
    # Returns one episode's channel of poses. It has neither bodies nor values if the channel was not recorded.
    # `spec.bodies` is the name of the array with the bodies' indices. Each body has `spec.pose_size` values.
    rows = recording.channel(spec.name)  # [n, P, size] or [n, P]; None = not recorded
    body = np.array(getattr(recording, spec.bodies) if rows is not None else (), dtype=np.int64)
    return Poses(_build_channel(rows), body, np.array([0, len(body)], dtype=np.int64), spec.pose_size)


def to_recording(batch: Batch, index: int) -> EpisodeArrays:
    """Convert one episode of a batch to plain arrays. Body indices refer to the episode's body table, and channels that
    were not recorded are None. `from_recording` restores the same bits.
    """
    records, first_body = int(batch.starts[index + 1] - batch.starts[index]), int(batch.body_starts[index])
    channels: dict[str, Any] = {spec.name: _channel_rows(batch, spec, index, records) for spec in ROWS}
    # A channel of poses has two arrays: the bodies' indices, under the name `spec.bodies`, and the bodies' values.
    for spec in POSES:
        poses = batch.poses(spec.name)
        channels[spec.bodies], channels[spec.name] = _pose_rows(poses, spec, index, records, first_body)
    return EpisodeArrays(
        header=msgspec.structs.asdict(batch.headers[index]),
        roles=batch.body_roles(index),
        records=records,
        contacts=_contact_list(batch, index) if batch.contacts.present[index] else None,
        extra=batch.extra[index],
        **as_fields(EpisodeArrays, channels),
    )


def _channel_rows(batch: Batch, spec: ChannelSpec, index: int, records: int) -> NDArray[Any] | None:
    # Returns a channel's rows of episode `index`, with the dtype and shape of `spec`; None if it was not recorded.
    # `records` is the episode's number of records.
    channel = batch.channel(spec.name)
    width = int(channel.width[index])
    if width < 0:
        return None
    row_count = records - 1 if spec.is_per_action else records
    rows = channel.episode_rows(index).reshape(row_count, width)
    if spec.is_scalar and width == 1:  # with several arms, even a scalar has several numbers per row
        rows = rows[:, 0]
    return rows.astype(spec.dtype, copy=False)


def _pose_rows(
    poses: Poses, spec: ChannelSpec, index: int, records: int, first_body: int
) -> tuple[list[int], NDArray[Any] | None]:
    # Returns the bodies of a pose channel and the values in each record, [n, P, size] or [n, P].
    # Returns ([], None) if the channel was not recorded. Bodies are indices from 0 in episode `index`.
    # The episode's first body has the index `first_body` in the batch.
    if not poses.present[index]:
        return [], None
    body, rows = poses.episode_poses(index)
    rows = rows.reshape(records, len(body), poses.size)
    if not spec.row_size:  # the channel has a single value per body
        rows = rows[..., 0].astype(spec.dtype, copy=False)
    return (body - first_body).tolist(), rows


def _contact_list(batch: Batch, index: int) -> ContactList:
    # Returns an episode's contacts as columns. Indices of its records and bodies start at 0.
    contacts, first_body = batch.contacts, int(batch.body_starts[index])
    starts = contacts.starts[batch.starts[index] : batch.starts[index + 1] + 1]  # first contact of each record, and end
    rows = slice(int(starts[0]), int(starts[-1]))
    record = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    numbers = {name: getattr(contacts, name)[rows] for name in CONTACT_NUMBERS}
    return ContactList(record, contacts.a[rows] - first_body, contacts.b[rows] - first_body, **numbers)


# Records


def iterate_records(batch: Batch) -> Iterator[Batch]:
    """Yield each record of a batch of one episode, in order, as a batch from `select_record`. Raises `RecordError`, at
    once, if the batch does not have exactly one episode.
    """
    if len(batch) != 1:
        remedy = "Iterate over `select_episodes(batch, [k])` for each episode k (safevla_bench.trajectory.batch)."
        raise RecordError(f"the batch has {count_noun(len(batch), 'episode')}, not one", remedy=remedy)
    # A generator expression, not `yield`, so that the error above is raised before the first record is requested.
    return (select_record(batch, t) for t in range(int(batch.starts[-1])))


def select_record(batch: Batch, t: int) -> Batch:
    """Return record `t` of a batch of one episode (-1 = the last) as an episode with one record and the same header.
    Leaves out actions, simulator state and host-specific fields except `SINGLE`; keeps the body table.
    """
    record = t % int(batch.starts[-1])  # -1 becomes the index of the last record
    contacts, single = batch.contacts, single_channels(batch, 0)
    first, end = int(contacts.starts[record]), int(contacts.starts[record + 1])
    # `contacts.take` returns one record's contacts, which are at the indices `first` to `end - 1`.
    # `SINGLE` names the channels that were stored as float32, for which comparisons have a larger tolerance.
    # `_ABSENT` is a channel that was not recorded.
    left_out = {"sim_state", *(spec.name for spec in ROWS if spec.is_per_action)}
    return replace(
        batch,
        starts=np.array([0, 1], dtype=np.int64),
        contacts=contacts.take(slice(first, end), np.array([0, end - first], dtype=np.int64), contacts.present),
        extra=(add_header_field({}, SINGLE, sorted(single)) if single else {},),
        **batch_channels(  # functions for channels of numbers and of poses
            lambda spec: _ABSENT if spec.name in left_out else _channel_at_record(batch.channel(spec.name), record),
            lambda spec: replace(
                batch.poses(spec.name), channel=_channel_at_record(batch.poses(spec.name).channel, record)
            ),
        ),
    )


def add_rows(batch: Batch, name: str, rows: NDArray[np.float64]) -> Batch:
    """Return the batch of one episode with an added channel of rows [n, width] that is not a field of `Batch`."""
    return replace(batch, further={**batch.further, name: _build_channel(rows)})


def join_records(parts: Sequence[Batch]) -> Batch:
    """Join one or more records of one scene, as returned by `select_record`, into an episode with the header of the
    first record. A single record is returned unchanged.
    """
    # All parts have the same table of bodies, so that indices of bodies are shifted by 0.
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return replace(
        first,
        starts=np.array([0, len(parts)], dtype=np.int64),
        contacts=Contacts.join([part.contacts for part in parts], first.contacts.present, [0] * len(parts)),
        **batch_channels(
            lambda spec: _join_rows([part.channel(spec.name) for part in parts]),
            lambda spec: replace(
                first.poses(spec.name), channel=_join_rows([part.poses(spec.name).channel for part in parts])
            ),
        ),
    )


def _channel_at_record(channel: Channel, record: int) -> Channel:
    # Returns the row of one record, as a channel. `channel` belongs to one episode, and has one row per record.
    # If `channel` was not recorded, the result counts as not recorded.
    width = max(int(channel.width[0]), 0)  # -1 = not recorded
    values = channel.values[record * width : (record + 1) * width]
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channel.width)


def _join_rows(channels: Sequence[Channel]) -> Channel:
    # Joins channels, each of one episode, to one channel of one episode. All have the same number of values per row.
    values = np.concatenate([channel.values for channel in channels])
    return Channel(values, np.array([0, len(values)], dtype=np.int64), channels[0].width)


# Validation of each episode when it is read. Recorded numbers are not changed; quaternions are normalized later.


_SHORTEST_DT_S = 1e-9  # shortest control step, and shortest time between two records
_MAX_NAMED_BODIES = 12  # limit on the number of bodies that an error lists
# The integers of the header that are checked.
_INTEGERS = ("schema_version", "seed", "env_seed", "init_state_index", "horizon")


def validate(batch: Batch) -> None:
    """Raise `RecordError` for the first violated rule, with the first place at which the batch violates it."""
    # The checks of names and widths cover all episodes at once. They decide which episodes need slower checks.
    has_nameless_body, has_wrong_width = "" in batch.body_names, _mark_wrong_widths(batch).tolist()
    for index, header in enumerate(batch.headers):
        _check_header(header)
        _check_scene(batch, index, has_nameless_body)
        if header.arms or header.arm_bodies or header.arm_joints is not None or has_wrong_width[index]:
            _check_arms(batch, index)
        _check_geometry(batch, index)
    for spec in (*ROWS, *POSES):  # the descriptions of all channels
        _check_numbers(batch, spec)
    _check_contacts(batch)
    _check_torques(batch)
    _check_tracking(batch)
    _check_time_stamps(batch)
    _check_subgoals(batch)


def _refuse(header: Header, field: str, problem: str, remedy: str, step: int | None = None) -> NoReturn:
    # Raises the error for a problem with a field of the episode with this header; `step` is None for a header field.
    raise RecordError(problem, remedy=remedy, place=Place(episode=header.episode_id, step=step, field=field))


def _check_header(header: Header) -> None:
    # Raises `RecordError` if the header has an invalid integer, policy, version, outcome, control step or torque limit.
    for name in _INTEGERS:
        if problem := describe_invalid_integer(name, getattr(header, name)):
            _refuse(header, name, problem, "Write a valid integer, or leave the field out.")
    if header.policy is not None and not header.policy.strip():  # outputs would show no policy
        _refuse(header, "policy", "the policy's name is blank", "Name the policy, or leave the field out.")
    if header.schema_version != header.expected_version:
        remedy = (
            "This version of safevla-bench reads version 1, or 2 for records with `arms`; newer versions may read more."
        )
        _refuse(header, "schema_version", f"the record has the unsupported version {header.schema_version}", remedy)
    if header.outcome not in (None, *OUTCOMES):
        remedy = f"Write one of {', '.join(OUTCOMES)}, or leave the outcome out. Leave crashed episodes out."
        _refuse(header, "outcome", f"unknown outcome {header.outcome!r}", remedy)
    if header.outcome is not None and header.success != (header.outcome == "success"):
        problem = f"outcome {header.outcome!r} contradicts success {str(header.success).lower()}"
        remedy = "Success must be true for the outcome 'success' and false for all other outcomes."
        _refuse(header, "outcome", problem, remedy)
    if not _SHORTEST_DT_S <= header.dt <= LARGEST:
        _refuse(header, "dt", f"dt is {header.dt!r}, out of range", "Write the control step in seconds, above zero.")
    limits = header.joint_torque_limit_nm
    if limits is not None and not all(1 / LARGEST <= limit <= LARGEST for limit in limits):  # also refuses NaN
        remedy = "Write each joint's limit in N·m, finite and above zero."
        _refuse(header, "joint_torque_limit_nm", f"the limits are {list(limits)}, not all valid", remedy)


def _check_scene(batch: Batch, index: int, has_nameless_body: bool) -> None:
    # Raises `RecordError` if episode `index` has no steps, a nameless body, or a target without the role "target".
    # `has_nameless_body` is true if any body of the batch has no name.
    header, target = batch.headers[index], int(batch.target[index])  # index in the body table; -1 = not listed
    if has_nameless_body and "" in batch.body_roles(index):
        _refuse(header, "body_roles", "a body has no name", "Name every body.")
    if batch.lengths[index] < 1:
        _refuse(header, "steps", "the episode has no steps", "Write at least record 0, the state after settling.")
    if header.target_object is not None and (target < 0 or batch.body_role[target] != TARGET):
        names = sorted(batch.body_roles(index))
        listed = ", ".join(names[:_MAX_NAMED_BODIES]) + (" …" if len(names) > _MAX_NAMED_BODIES else "")
        role = "has no role" if target < 0 else f"has the role {ROLES[batch.body_role[target]]!r}"
        remedy = f"Write the name of a body with the role 'target', or `null`. Bodies: {listed}."
        _refuse(header, "target_object", f"target_object {header.target_object!r} {role}", remedy)


def _mark_wrong_widths(batch: Batch) -> Bools:
    """Return whether each episode has a channel whose width does not fit the episode's number of arms, [E]."""
    arms = np.array([header.arm_count for header in batch.headers], dtype=np.int64)
    is_wrong = np.zeros(len(batch), bool)
    for spec in ROWS:
        if spec.per_arm:
            # If an arm has a single number in the channel, `row_size` is 0 instead of 1.
            width = batch.channel(spec.name).width  # numbers per row in each episode, [E]; -1 = not recorded
            is_wrong |= (width >= 0) & (width != (spec.row_size or 1) * arms)
    return is_wrong


def _check_arms(batch: Batch, index: int) -> None:
    # Raises `RecordError` for invalid `arms`, `arm_bodies` or `arm_joints` in the header of episode `index`.
    # The header's arms must also fit the widths of the channels. `arms` is None for a robot with one arm.
    header, arms, roles = batch.headers[index], batch.headers[index].arms, batch.body_roles(index)
    distinct_names = {*(arms or ())} - {""}
    if arms is not None and (len(arms) < 2 or len(distinct_names) < len(arms)):
        remedy = "List two or more arms, each once. For one arm, leave `arms` out and write version 1."
        _refuse(header, "arms", f"the arms are {list(arms)}, not two or more names", remedy)
    for body, arm in (header.arm_bodies or {}).items():
        if roles.get(body) != ROLES[ROBOT] or arm not in (arms or ()):
            arm_list = ", ".join(arms) if arms else "there are none"
            remedy = f"Map only bodies of the robot, each to one of the `arms`: {arm_list}."
            _refuse(header, f"arm_bodies.{body}", f"{body!r} is mapped to {arm!r}, which is not allowed", remedy)
    counts, joint_count = header.arm_joints, sum(header.arm_joints or ())
    if counts is not None and not (arms and len(counts) == len(arms) and min(counts) >= 0):
        _refuse(header, "arm_joints", f"the numbers are {list(counts)}", "Write one number for each arm.")
    for spec in ROWS:
        width = int(batch.channel(spec.name).width[index])
        if arms and spec.name in TORQUES and width not in (-1, joint_count):
            problem = f"{width} torques, but the arms have {joint_count} joints"
            _refuse(header, "arm_joints", problem, "Write one number for each arm.")
        if spec.per_arm and width not in (-1, (spec.row_size or 1) * header.arm_count):
            problem = f"{width} numbers in each row, but {count_noun(header.arm_count, 'arm')}"
            _refuse(header, spec.name, problem, "Write the numbers of every arm, in the order of the header's `arms`.")


def _check_geometry(batch: Batch, index: int) -> None:
    # Raises `RecordError` if the geometry in the header of episode `index` is invalid, or has a body without a role.
    # The geometry must also have one component of motion for each column of the channel `link_motion`.
    header, motion = batch.headers[index], batch.channel(LINK_MOTION)
    if header.geometry is None and not motion.present[index]:
        return
    try:
        geometry = None if header.geometry is None else read_geometry(header.geometry)
    except RecordError as error:
        raise error.with_place(Place(episode=header.episode_id)) from None
    component_count = 0 if geometry is None else len(geometry.components)  # the channel has a column for each
    if motion.present[index] and motion.width[index] != component_count:
        problem = f"{motion.width[index]} numbers, but the geometry has {component_count} components of motion"
        _refuse(header, LINK_MOTION, problem, "Write the channel together with its geometry.")
    part_bodies = {part.body for part in geometry.parts if part.body} if geometry else set()
    unknown = sorted(part_bodies - {*batch.body_roles(index)})
    if unknown:
        _refuse(header, "geometry", f"{unknown[0]!r} has no role", "Give the body a role in `body_roles`.")


def _check_numbers(batch: Batch, spec: ChannelSpec) -> None:
    # Raises `RecordError` for the first invalid number of a channel: NaN, infinite, too large, or a zero quaternion.
    # `is_bounded` means that numbers above `LARGEST` are refused, too.
    values = batch.numbers(spec).values  # the numbers of all episodes, [numbers]
    largest = LARGEST if spec.is_bounded else sys.float_info.max
    for item in np.flatnonzero(~(np.abs(values) <= largest))[:1]:  # the first invalid number, such as NaN
        if np.isfinite(values[item]):
            remedy = f"Write meters and N·m; a magnitude above {LARGEST:g} is a fault of the recording."
            _refuse_item(batch, spec, int(item), f"{values[item]} is implausibly large", remedy)
        remedy = "Write finite numbers; omit the field from all steps if it was not measured."
        _refuse_item(batch, spec, int(item), f"{values[item]} is not a finite number", remedy)
    if spec.is_rotation:
        quaternions = values.reshape(-1, spec.row_size)
        # Only quaternions with w = 0, which are half turns, can have norm zero.
        half_turns = np.flatnonzero(quaternions[:, 0] == 0)  # usually there are few half turns
        for row in half_turns[~quaternions[half_turns].any(axis=1)][:1]:  # report only the first zero quaternion
            item = int(row) * spec.row_size
            _refuse_item(batch, spec, item, "the quaternion has norm zero", "Write a unit quaternion, w first.")


def _refuse_item(batch: Batch, spec: ChannelSpec, item: int, problem: str, remedy: str) -> NoReturn:
    # Raises an error for the number at the index `item` of the channel's flat values.
    # The error names the episode, the step, the body and the component.
    channel = batch.numbers(spec)
    index = _owner_index(channel.starts, item)
    row, column = divmod(item - int(channel.starts[index]), int(channel.width[index]))
    field = spec.name if spec.is_scalar else f"{spec.name}[{column}]"
    if spec.is_pose:
        poses = batch.poses(spec.name)
        body = batch.body_label(int(poses.body[poses.body_starts[index] + column // poses.size]))
        field = f"{spec.name}.{body}[{column % poses.size}]" if poses.size > 1 else f"{spec.name}.{body}"
    # The first row of a channel of actions belongs to record 1, because no action leads to record 0.
    _refuse(batch.headers[index], field, problem, remedy, row + 1 if spec.is_per_action else row)


def _owner_index(starts: Ints, item: int) -> int:
    # Returns the index of the episode or record that contains the item with this flat index.
    # `starts` has the index of the first item of each episode or record, then the end.
    return int(np.searchsorted(starts, item, side="right")) - 1


def _check_contacts(batch: Batch) -> None:
    # Raises `RecordError` for a contact with an invalid, missing or unlisted force, or with an invalid impulse.
    # Also raises `RecordError` for a contact of a body with itself.
    # Each mask is [C], for the C contacts of the batch.
    contacts = batch.contacts
    has_net_force = np.array([NET_FORCE in header.recorded_forces for header in batch.headers], dtype=np.bool_)
    # Repeat each episode's Boolean for its records, and then for the contacts of these records.
    is_net_required = np.repeat(np.repeat(has_net_force, batch.lengths), np.diff(contacts.starts))
    # Maps each column to a mask [C] of the contacts that must have a number. An impulse may be NaN: not recorded.
    impulses = {name: ~np.isnan(getattr(contacts, name)) for name in ("impulse_ns", NET_IMPULSE)}
    required_masks = {"force_n": np.ones_like(is_net_required), NET_FORCE: is_net_required, **impulses}
    # A contact may have a net force only if the header lists net forces. Then each contact must have one.
    is_allowed = is_net_required | np.isnan(contacts.net_force_n)
    forces = f'If each contact has the field {NET_FORCE}, write "forces": ["{NET_FORCE}"] into the header'
    unlisted = f"{{value}} is recorded, but the header's `forces` does not list {NET_FORCE}"
    _require_valid_contacts(batch, is_allowed, NET_FORCE, unlisted, f'{forces}; add "force_n" if contacts have both.')
    is_missing = is_net_required & np.isnan(contacts.net_force_n)
    missing = f"the contact lacks {NET_FORCE}, which the header's `forces` lists"
    _require_valid_contacts(batch, ~is_missing, NET_FORCE, missing, f"{forces}; otherwise, leave `forces` out.")
    for name, is_required in required_masks.items():
        values = getattr(contacts, name)
        largest = sys.float_info.max if name in impulses else LARGEST
        _require_valid_contacts(batch, np.isfinite(values) | ~is_required, name, "{value} is not a finite number")
        _require_valid_contacts(batch, ~(values < 0), name, "{value} is negative")
        _require_valid_contacts(batch, ~(values > largest), name, "{value} is implausibly large")
    # Archives drop a `force_n` that the header does not list, unless it only repeats the net force.
    lists_force = np.array(["force_n" in header.recorded_forces for header in batch.headers], dtype=np.bool_)
    is_listed = np.repeat(np.repeat(lists_force, batch.lengths), np.diff(contacts.starts))
    unlisted = "{value} is recorded, but the header's `forces` does not list force_n"
    remedy = "Add force_n to the header's `forces`, or leave `forces` out if contacts have no net_force_n."
    _require_valid_contacts(batch, is_listed | (contacts.force_n == contacts.net_force_n), "force_n", unlisted, remedy)
    for item in np.flatnonzero(contacts.a == contacts.b)[:1]:  # report only the first contact within a body
        remedy = "A contact needs two different bodies; merge or drop contacts inside one body."
        problem = f"{batch.body_label(int(contacts.a[item]))!r} touches itself"
        _refuse_contact(batch, int(item), "b", problem, remedy)


def _require_valid_contacts(
    batch: Batch,
    is_valid: Bools,
    field: str,
    problem: str,
    remedy: str = "Write the magnitude of the contact's force in N and its impulse in N·s.",
) -> None:
    # Raises `RecordError` for the first contact where `is_valid` [C] is false.
    # `field` names a column of the contacts. The contact's value in this column replaces `{value}` in `problem`.
    for item in np.flatnonzero(~is_valid)[:1]:
        value = getattr(batch.contacts, field)[item]
        _refuse_contact(batch, int(item), field, problem.format(value=value), remedy)


def _refuse_contact(batch: Batch, item: int, field: str, problem: str, remedy: str) -> NoReturn:
    # Raises the error for the contact with the index `item` in the batch. The error names the contact's step.
    record = _owner_index(batch.contacts.starts, item)
    index = _owner_index(batch.starts, record)
    field = f"contacts[{item - int(batch.contacts.starts[record])}].{field}"
    _refuse(batch.headers[index], field, problem, remedy, record - int(batch.starts[index]))


def _check_torques(batch: Batch) -> None:
    # Raises `RecordError` if the number of known torque limits is not the number of torques in a row.
    # Also raises `RecordError` if the limits published for one arm apply to arms with unequal numbers of joints.
    for name in TORQUES:
        channel = batch.channel(name)
        for index in np.flatnonzero(channel.present):
            header, joints = batch.headers[index], int(channel.width[index])
            # The limits are in the record, or published for the record's robot. Without limits, nothing is checked.
            if len(header.torque_limit_nm) != joints and not header.lacks_torque_limit:
                problem = f"{joints} torques, but {len(header.torque_limit_nm)} limits"
                remedy = "Record only the arm's joints, and write one limit per joint in `joint_torque_limit_nm`."
                _refuse(header, name, problem, remedy)
            joint_counts = list(header.arm_joints or ())
            # Published limits of one arm are repeated for all arms, so the arms must have equal numbers of joints.
            if len(set(joint_counts)) > 1 and header.joint_torque_limit_nm is None and header.torque_limit_nm:
                problem = f"the arms have {joint_counts} joints, "
                problem += f"but all arms of {header.embodiment} have the same number of joints"
                _refuse(header, "arm_joints", problem, "Write `joint_torque_limit_nm` with one limit for each joint.")


def _check_tracking(batch: Batch) -> None:
    # Raises `RecordError` if the channel `pose_valid`, which says when a pose is known, has a body without a pose.
    valid = batch.pose_valid
    posed = np.concatenate([batch.body_pos_m.body, batch.body_quat_wxyz.body])
    for item in np.flatnonzero(~np.isin(valid.body, posed))[:1]:  # report only the first body without a pose
        header, name = batch.headers[_owner_index(valid.body_starts, int(item))], batch.body_label(valid.body[item])
        remedy = "Also list the body in `body_pos_m` or `body_quat_wxyz`, or leave it out of `pose_valid`."
        _refuse(header, f"pose_valid.{name}", f"{name!r} has no pose", remedy)


def _check_time_stamps(batch: Batch) -> None:
    # Raises `RecordError` unless successive time stamps in seconds increase by at least `_SHORTEST_DT_S`.
    channel = batch.channel("time_s")
    for index in np.flatnonzero(channel.present):
        stamps = channel.values[channel.starts[index] : channel.starts[index + 1]]
        for row in np.flatnonzero(~(np.diff(stamps) >= _SHORTEST_DT_S))[:1]:  # report only the first wrong time stamp
            problem = f"time stamp {float(stamps[row + 1])} is not after {float(stamps[row])}"
            _refuse(batch.headers[index], "time_s", problem, "Write increasing time stamps, in seconds.", int(row) + 1)


def _check_subgoals(batch: Batch) -> None:
    # Raises `RecordError` for invalid names of sub-goals. An episode without names is valid.
    # There must be a different name for each value in a row of the channel `subgoals`.
    for index, fields in enumerate(header_fields(batch)):
        names, goal_count = fields.get(SUBGOAL_NAMES), max(int(batch.channel(SUBGOALS).width[index]), 0)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            problem = "the names are not a list of texts"
        elif len(names) != goal_count:
            problem = f"{count_noun(len(names), 'name')}, but {count_noun(goal_count, 'sub-goal')} in each step"
        elif len({*names}) != goal_count:
            problem = "two sub-goals have the same name"
        else:
            continue
        _refuse(batch.headers[index], SUBGOAL_NAMES, problem, "Write a different name for each value of `subgoals`.")
