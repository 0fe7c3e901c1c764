"""A batch being read: the intermediate arrays that several signals share, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory import TARGET, Batch, Channel, Poses, select

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)
A = TypeVar("A", bound=NDArray[Any])
SIGNAL = "signal"
"""The kind of what has one value a record."""


class Reading:
    """A batch and what is derived from it on demand; every array is [N, …] over its records."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._found: dict[tuple[str, str], Any] = {}

    def once(self, kind: str, name: str, compute: Callable[[Reading], A]) -> A:
        """`compute` of this reading, computed the first time it is asked for; read-only."""
        key = (kind, name)
        if key not in self._found:
            found = compute(self).view()
            found.flags.writeable = False
            self._found[key] = found
        kept: A = self._found[key]
        return kept

    def alone(self, episode: int) -> Reading:
        """One episode of the batch, and of it what signals have been derived from all."""
        one = Reading(select(self.batch, [episode]))
        records = slice(self.batch.starts[episode], self.batch.starts[episode + 1])
        one._found = {key: found[records] for key, found in self._found.items() if key[0] == SIGNAL}
        return one

    @cached_property
    def first(self) -> Ints:
        """The first record of each record's episode, [N]."""
        return np.repeat(self.batch.starts[:-1], self.batch.lengths)

    @cached_property
    def last(self) -> Ints:
        """The last record of each record's episode, [N]."""
        return np.repeat(self.batch.starts[1:] - 1, self.batch.lengths)

    @cached_property
    def dt_s(self) -> Floats:
        """Control step, [N]."""
        return np.repeat(self.batch.dt_s, self.batch.lengths)

    def of_record(self, per_episode: NDArray[T]) -> NDArray[T]:
        """A value an episode spread over its records, [N]."""
        return np.repeat(per_episode, self.batch.lengths)

    def unless(self, absent: Bools, values: Floats) -> Floats:
        """`values` [N], NaN in the episodes [E] that are marked absent."""
        return np.where(self.of_record(absent), np.nan, values) if absent.any() else values

    @cached_property
    def record_of_contact(self) -> Ints:
        """[C], the record each contact belongs to."""
        return np.repeat(np.arange(self.batch.starts[-1]), np.diff(self.batch.contacts.starts))

    @cached_property
    def held(self) -> Ints:
        """Body index of the held target, [N]: `gripped_body` where that is a target, else `target_object`, else -1."""
        gripped = self.batch.gripped
        named = (gripped >= 0) & (self._role(gripped) == TARGET)
        return np.where(named, gripped, self.of_record(self.batch.target))

    def _role(self, body: Ints) -> NDArray[np.int8]:
        """Role of a body; where the body is -1 the value means nothing."""
        return self.batch.body_role[body] if len(self.batch.body_role) else np.full(len(body), -1, dtype=np.int8)

    @cached_property
    def grip(self) -> Bools:
        """The gripper's contact, false where it holds something that is no target and where there is no held target."""
        gripped = self.batch.gripped
        foreign = (gripped >= 0) & (self._role(gripped) != TARGET)
        holds: Bools = self.batch.gripper_contact & ~foreign & (self.held >= 0)
        return holds

    @cached_property
    def eef_pos(self) -> Floats:
        """[N, 3], NaN where not recorded."""
        return self._rows(self.batch.eef_pos_m, 3)

    @cached_property
    def eef_quat(self) -> Floats:
        """[N, 4], unit, NaN where not recorded."""
        return unit_quaternions(self._rows(self.batch.eef_quat_wxyz, 4))

    def _rows(self, channel: Channel, width: int) -> Floats:
        if channel.present.all():
            return channel.values.reshape(-1, width)
        rows = np.full((int(self.batch.starts[-1]), width), np.nan)
        rows[self.of_record(channel.present)] = channel.values.reshape(-1, width)
        return rows

    @cached_property
    def held_pos(self) -> Floats:
        """Position of the held target, [N, 3], NaN where not recorded."""
        return self._posed(self.batch.body_pos_m, self.held, at=np.arange(len(self.held)))

    @cached_property
    def held_pos_start(self) -> Floats:
        """Position of the body held now, in record 0; [N, 3]."""
        return self._posed(self.batch.body_pos_m, self.held, at=self.first)

    def held_pos_shifted(self, by: int) -> Floats:
        """Position of the body held now, `by` records later, clipped to the episode; [N, 3]."""
        at = np.clip(np.arange(len(self.held)) + by, self.first, self.last)
        return self._posed(self.batch.body_pos_m, self.held, at=at)

    @cached_property
    def held_quat(self) -> Floats:
        """Orientation of the held target, [N, 4], unit, NaN where not recorded."""
        rows = self._posed(self.batch.body_quat_wxyz, self.held, at=np.arange(len(self.held)))
        return unit_quaternions(rows)

    @cached_property
    def held_quat_start(self) -> Floats:
        """Orientation of the body held now, in record 0; [N, 4], unit."""
        return unit_quaternions(self._posed(self.batch.body_quat_wxyz, self.held, at=self.first))

    def _posed(self, poses: Poses, body: Ints, at: Ints) -> Floats:
        """The pose of a body [N] in the record `at` [N] of the same episode, [N, size], NaN where not recorded."""
        column = columns(self.batch, poses)[body] if len(self.batch.body_role) else np.full(len(body), -1)
        known = (body >= 0) & (column >= 0)
        per_record = np.diff(poses.body_starts)
        base = np.concatenate([[0], np.cumsum(per_record * self.batch.lengths)])[:-1]
        row = self.of_record(base) + (at - self.first) * self.of_record(per_record) + column
        rows = np.full((len(body), poses.size), np.nan)
        rows[known] = poses.channel.values.reshape(-1, poses.size)[row[known]]
        return rows

    def lacks(self, field: str) -> Bools:
        """The episodes whose record lacks a field of `FIELDS`, [E]."""
        return self.once("lacks", field, FIELDS[field])

    def _held_lacks(self, poses: Poses) -> Bools:
        """One record whose held target is unknown or has no pose makes the field missing for the whole episode."""
        column = columns(self.batch, poses)[self.held] if len(self.batch.body_role) else self.held
        lacking = (self.held < 0) | (column < 0)
        return ~poses.present | np.logical_or.reduceat(lacking, self.batch.starts[:-1])


def columns(batch: Batch, poses: Poses) -> Ints:
    """Each body's place among the posed bodies of its episode, -1 = not posed; [B]."""
    column = np.full(len(batch.body_role), -1, dtype=np.int64)
    counts = np.diff(poses.body_starts)
    column[poses.body] = np.arange(len(poses.body)) - np.repeat(poses.body_starts[:-1], counts)
    return column


def unit_quaternions(quats: Floats) -> Floats:
    """Quaternions at norm one, [N, 4]; scaled first, so that neither tiny nor huge ones lose their direction."""
    scaled = quats / np.abs(quats).max(axis=1, keepdims=True)
    unit: Floats = scaled / np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return unit


FIELDS: Mapping[str, Callable[[Reading], Bools]] = {
    "contacts": lambda reading: ~reading.batch.contacts.present,
    "body_pos_m": lambda reading: ~reading.batch.body_pos_m.present,
    "joint_torque_nm": lambda reading: ~reading.batch.joint_torque_nm.present,
    "eef_pos_m": lambda reading: ~reading.batch.eef_pos_m.present,
    "gripper_contact": lambda reading: ~reading.batch.gripper_present,
    "body_pos_m of the held target": lambda reading: reading._held_lacks(reading.batch.body_pos_m),
    "body_quat_wxyz of the held target": lambda reading: reading._held_lacks(reading.batch.body_quat_wxyz),
}
"""Raw fields that a signal may need, and which episodes lack them."""
