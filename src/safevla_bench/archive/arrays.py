"""The plain arrays of one episode: the way from a `Batch` to them, and the checks on those of a stranger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import MAX_RECORDS, Role, refuse_field
from safevla_bench.archive.strict_json import type_error
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Poses
from safevla_bench.trajectory.header import Header
from safevla_recorder.channels import CHANNELS, NUMERIC, POSES, ROWS, ChannelSpec, as_fields
from safevla_recorder.episode import ContactList, Recording

_HEADER_FIELDS = Header.__struct_fields__
_REMEDY = "Write each family once a record, bodies by their place in body_roles, counted from 0."


class EpisodeOutline(Header, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of an episode that precedes its arrays: the header, the bodies, the number of records."""

    body_roles: dict[str, Role]
    records: Annotated[int, Meta(ge=1, le=MAX_RECORDS)]

    @property
    def header(self) -> Header:
        """Return the fields of the header as a `Header`, without bodies and number of records."""
        return Header(**{name: getattr(self, name) for name in _HEADER_FIELDS})


def parse_outline(tree: Mapping[str, object]) -> EpisodeOutline:
    """Return the outline from plain values.

    Raises `RecordError` naming the field that is missing, unknown or of wrong type.
    """
    try:
        return msgspec.convert(tree, EpisodeOutline)
    except msgspec.ValidationError as error:
        raise type_error(error, tree) from None


def to_recording(batch: Batch, index: int) -> Recording:
    """Return one episode of a batch as plain arrays.

    Bodies are places in its own body table, and what was not recorded is None. `from_recording` turns the result into
    the same bits again.
    """
    first, last = int(batch.starts[index]), int(batch.starts[index + 1])
    records, base = last - first, int(batch.body_starts[index])
    channels: dict[str, Any] = {spec.name: _channel_rows(batch, spec, index, records) for spec in ROWS}
    for spec in POSES:
        channels[spec.bodies], channels[spec.name] = _pose_rows(batch.poses(spec.name), spec, index, records, base)
    gripped = batch.gripped[first:last]
    return Recording(
        header=msgspec.structs.asdict(batch.headers[index]),
        roles=batch.body_roles(index),
        records=records,
        contacts=_contact_list(batch, index) if batch.contacts.present[index] else None,
        gripper_contact=batch.gripper_contact[first:last] if batch.gripper_present[index] else None,
        gripped=np.where(gripped >= 0, gripped - base, -1) if batch.gripped_present[index] else None,
        extra=batch.extra[index],
        **as_fields(Recording, channels),
    )


def _channel_rows(batch: Batch, spec: ChannelSpec, index: int, records: int) -> NDArray[np.float64] | None:
    channel = batch.channel(spec.name)
    width = int(channel.width[index])
    if width < 0:
        return None
    rows = channel.episode_rows(index).reshape(records - spec.is_per_action, width)
    return rows[:, 0] if spec.is_scalar else rows


def _pose_rows(
    poses: Poses, spec: ChannelSpec, index: int, records: int, base: int
) -> tuple[list[int], NDArray[Any] | None]:
    if not poses.present[index]:
        return [], None
    body, rows = poses.episode_poses(index)
    rows = rows.reshape(records, len(body), poses.size)
    return (body - base).tolist(), rows[..., 0].astype(np.bool_) if spec.is_truth else rows


def _contact_list(batch: Batch, index: int) -> ContactList:
    contacts, base = batch.contacts, int(batch.body_starts[index])
    starts = contacts.starts[batch.starts[index] : batch.starts[index + 1] + 1]
    own = slice(int(starts[0]), int(starts[-1]))
    return ContactList(
        record=np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
        a=contacts.a[own] - base,
        b=contacts.b[own] - base,
        force_n=contacts.force_n[own],
        impulse_ns=contacts.impulse_ns[own],
        net_force_n=contacts.net_force_n[own],
    )


def check_shapes(recording: Recording) -> None:
    """Raise `RecordError` naming episode and field if shapes or indices of the arrays do not fit together.

    Nothing is computed from the arrays before. `trajectory.validate` checks the values afterwards.
    """
    try:
        _check_arrays(recording)
        for spec in POSES:
            check_posed_bodies(getattr(recording, spec.bodies), len(recording.roles), spec.bodies)
        if recording.gripped is not None:
            check_places(recording.gripped, -1, len(recording.roles), "gripped_body")
        if recording.contacts is not None:
            _check_contacts(recording.contacts, recording.records, len(recording.roles))
    except RecordError as error:
        raise error.with_place(Place(episode=str(recording.header["episode_id"]))) from None


def _check_arrays(recording: Recording) -> None:
    arrays: dict[str, NDArray[Any] | None] = {spec.name: recording.channel(spec.name) for spec in NUMERIC}
    arrays |= {"gripper_contact": recording.gripper_contact, "gripped_body": recording.gripped}
    for spec in CHANNELS:
        array = arrays.get(spec.name)
        if array is not None:
            bodies = len(getattr(recording, spec.bodies)) if spec.is_pose else 0
            check_shape(spec, array.shape, recording.records, bodies)


def check_shape(spec: ChannelSpec, shape: Sequence[int], records: int, bodies: int = 0) -> None:
    """Raise `RecordError` if a channel of an episode has another shape than its row of `CHANNELS` says.

    `bodies` counts those that each row of a pose channel lists.
    """
    sizes = {"n": records, "n-1": records - 1} | ({spec.shape[1]: bodies} if spec.is_pose else {})
    expected = [sizes.get(symbol, "any") if isinstance(symbol, str) else symbol for symbol in spec.shape]
    if len(shape) != len(expected) or any(
        size not in ("any", actual) for size, actual in zip(expected, shape, strict=True)
    ):
        refuse_field(
            f"the shape is {list(map(int, shape))}, expected [{', '.join(map(str, expected))}]", _REMEDY, spec.name
        )
    if spec.is_per_action and records == 1:
        refuse_field(f"a single record has no {spec.name}", _REMEDY, spec.name)


def check_posed_bodies(places: Sequence[int], bodies: int, field: str) -> None:
    """Raise `RecordError` if places in the body table are out of range or repeated."""
    check_places(np.asarray(places, dtype=np.int64), 0, bodies, field)
    if len(set(places)) != len(places):
        refuse_field("a body is repeated", _REMEDY, field)


def check_places(places: NDArray[Any], low: int, end: int | NDArray[np.int64], field: str) -> None:
    """Raise `RecordError` for the first place below `low`, or not below `end` (one for all, or one each)."""
    bad = np.flatnonzero((places < low) | (places >= end))
    if len(bad):
        highest = int(np.broadcast_to(end, places.shape)[bad[0]]) - 1
        refuse_field(f"{int(places[bad[0]])} is not between {low} and {highest}", _REMEDY, field)


def _check_contacts(contacts: ContactList, records: int, bodies: int) -> None:
    if any(column.shape != (len(contacts.record),) for column in contacts.columns().values()):
        refuse_field("the columns differ in length", _REMEDY, "contacts")
    check_places(contacts.record, 0, records, "contacts.step")
    check_places(contacts.a, 0, bodies, "contacts.a")
    check_places(contacts.b, 0, bodies, "contacts.b")
    if np.any(np.diff(contacts.record) < 0):
        refuse_field("the contacts are not in the order of their steps", _REMEDY, "contacts.step")
