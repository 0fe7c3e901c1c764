"""The plain arrays of one episode: the way from a `Batch` to them, and the checks on those of a stranger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import MAX_RECORDS, Role
from safevla_bench.archive.strict_json import type_error
from safevla_bench.errors import Place, RecordError
from safevla_bench.trajectory.batch import Batch, Poses
from safevla_bench.trajectory.header import Header
from safevla_recorder.channels import CHANNELS, NUMERIC, POSES, ROWS, ChannelSpec, as_fields
from safevla_recorder.episode import ContactList, Recording

_HEADER_FIELDS = Header.__struct_fields__


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
    channels = {spec.name: _channel_rows(batch, spec, index, records) for spec in ROWS}
    poses = {spec: _pose_rows(batch.poses(spec.name), spec, index, records, base) for spec in POSES}
    gripped = batch.gripped[first:last]
    return Recording(
        header=msgspec.structs.asdict(batch.headers[index]),
        roles=batch.body_roles(index),
        records=records,
        contacts=_contact_list(batch, index) if batch.contacts.present[index] else None,
        gripper_contact=batch.gripper_contact[first:last] if batch.gripper_present[index] else None,
        gripped=np.where(gripped >= 0, gripped - base, -1) if batch.gripped_present[index] else None,
        extra=batch.extra[index],
        **as_fields(
            Recording,
            channels
            | {spec.bodies: bodies for spec, (bodies, _) in poses.items()}
            | {spec.name: rows for spec, (_, rows) in poses.items()},
        ),
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
    """Return the contacts of one episode; record and body numbers count from 0 within the episode."""
    contacts, base = batch.contacts, int(batch.body_starts[index])
    starts = contacts.starts[batch.starts[index] : batch.starts[index + 1] + 1]
    own = slice(int(starts[0]), int(starts[-1]))
    return ContactList(
        record=np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
        a=contacts.a[own] - base,
        b=contacts.b[own] - base,
        force_n=contacts.force_n[own],
        impulse_ns=contacts.impulse_ns[own],
    )


def check_shapes(recording: Recording) -> None:
    """Raise `RecordError` naming episode and field if array shapes or indices of the recording do not fit together.

    Nothing is computed from the arrays before. `trajectory.validate` checks the values afterwards.
    """
    for problem, field in chain(_find_wrong_shapes(recording), _find_wrong_bodies(recording)):
        remedy = "Write each family once a record, bodies by their place in body_roles, counted from 0."
        raise RecordError(problem, remedy=remedy, place=Place(episode=str(recording.header["episode_id"]), field=field))


def _find_wrong_shapes(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield (problem, channel) for each array of a wrong shape, and for a channel per action of a single record.

    Channels that are None are skipped.
    """
    sizes: dict[str | int, int] = {"n": recording.records, "n-1": recording.records - 1}
    sizes |= {spec.shape[1]: len(getattr(recording, spec.bodies)) for spec in POSES}
    arrays: dict[str, NDArray[Any] | None] = {spec.name: recording.channel(spec.name) for spec in NUMERIC}
    arrays |= {"gripper_contact": recording.gripper_contact, "gripped_body": recording.gripped}
    for spec in CHANNELS:
        array = arrays.get(spec.name)
        if array is None:
            continue
        expected = [sizes.get(symbol, "any") if isinstance(symbol, str) else symbol for symbol in spec.shape]
        if len(array.shape) != len(expected) or any(
            size not in ("any", actual) for size, actual in zip(expected, array.shape, strict=True)
        ):
            yield f"the shape is {list(array.shape)}, expected [{', '.join(map(str, expected))}]", spec.name
    for spec in NUMERIC:
        if spec.is_per_action and recording.records == 1 and arrays[spec.name] is not None:
            yield f"a single record has no {spec.name}", spec.name


def _find_wrong_bodies(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield (problem, field) for body numbers out of range or repeated, and for contacts that do not fit."""
    bodies = len(recording.roles)
    for spec in POSES:
        places = getattr(recording, spec.bodies)
        yield from _find_out_of_range(np.asarray(places, dtype=np.int64), 0, bodies, spec.bodies)
        if len(set(places)) != len(places):
            yield "a body is repeated", spec.bodies
    if recording.gripped is not None:
        yield from _find_out_of_range(recording.gripped, -1, bodies, "gripped_body")
    if recording.contacts is not None:
        yield from _find_contact_misfits(recording.contacts, recording.records, bodies)


def _find_contact_misfits(contacts: ContactList, records: int, bodies: int) -> Iterator[tuple[str, str]]:
    """Yield (problem, field) where columns differ in length, numbers are out of range, or records are not in order.

    Columns of different lengths are the only problem yielded then.
    """
    columns = (contacts.record, contacts.a, contacts.b, contacts.force_n, contacts.impulse_ns)
    if any(column.shape != (len(contacts.record),) for column in columns):
        yield "the columns differ in length", "contacts"
        return
    yield from _find_out_of_range(contacts.record, 0, records, "contacts.step")
    yield from _find_out_of_range(contacts.a, 0, bodies, "contacts.a")
    yield from _find_out_of_range(contacts.b, 0, bodies, "contacts.b")
    if np.any(np.diff(contacts.record) < 0):
        yield "the contacts are not in the order of their steps", "contacts.step"


def _find_out_of_range(places: NDArray[np.int64], low: int, end: int, field: str) -> Iterator[tuple[str, str]]:
    bad = places[(places < low) | (places >= end)]
    if len(bad):
        yield f"{int(bad[0])} is not between {low} and {end - 1}", field
