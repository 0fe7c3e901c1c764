"""Signals: named functions from `RecordFields` to one value per record, with a unit and the raw fields that they read.

`RecordFields` has the intermediate fields of a batch, which several signals share; each field is computed only once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.stl.formula import format_argument, is_name
from safevla_bench.trajectory.batch import Batch, Poses, batch_of_headers, offsets_of, select_episodes
from safevla_bench.trajectory.header import TARGET, TORQUES
from safevla_bench.trajectory.marks import FOREIGN_LOG, mark_flags, single_channels
from safevla_recorder.channels import NET_FORCE, NET_IMPULSE
from safevla_recorder.episode import Bools, Floats, Ints

T = TypeVar("T", bound=np.generic)
A = TypeVar("A", bound=NDArray[Any])
SIGNAL_KIND = "signal"


class RecordFields:
    """A batch of `N` records and the fields that are derived from it on demand, as arrays [N, …] by default."""

    def __init__(
        self, batch: Batch, origin: Ints | None = None, judged: Bools | None = None, arm: Ints | None = None
    ) -> None:
        """`origin` [N] is the batch row of the pose from which each record's displacements are measured; None means the
        episode's first record. `judged` [N] says which records a clause judges; None means all. `arm` [E] is the index
        of the arm for signals about one arm; without it, such signals need episodes with one arm.
        """
        # A batch holds E episodes with N records in flat arrays. A clause is a specification.
        self.batch, self.judged, self.chosen_arm = batch, judged, arm
        self._fields_by_arm: dict[bytes, RecordFields] = {}  # bytes of `arm` -> the fields for these arms
        self.origin = self.first_record if origin is None else origin
        self._arrays: dict[tuple[str, str], Any] = {}  # (kind of result, name) -> the cached array
        self.scenes: dict[int, Any] = {}
        """The scene of each episode with the poses computed so far; `parts.scene_poses` adds scenes."""

    @cached_property
    def has_lost_poses(self) -> bool:
        """True if any pose of the batch is marked as unknown."""
        # `pose_valid` has 0 for a pose that is marked as unknown, and 1 for any other pose.
        return not self.batch.pose_valid.channel.values.all()

    @cached_property
    def is_log(self) -> Bools:
        """True for each episode that was read from a robot's log, [E]."""
        return np.array(mark_flags(self.batch, FOREIGN_LOG), dtype=np.bool_)

    @cached_property
    def single_channels(self) -> tuple[frozenset[str], ...]:
        """Channels of each episode that were stored as float32, [E]."""
        return tuple(single_channels(self.batch, episode) for episode in range(len(self.batch)))

    @cached_property
    def trusting(self) -> RecordFields:
        """The same fields, derived as if every recorded pose were known."""
        # Without the channel `pose_valid`, no pose is marked as unknown. `origin` and `judged` have their defaults.
        absent = batch_of_headers(self.batch.headers, self.batch.lengths).pose_valid
        return RecordFields(replace(self.batch, pose_valid=absent), arm=self.chosen_arm)

    @cached_property
    def arm_counts(self) -> Ints:
        """Number of arms of the robot in each episode, [E]."""
        # `headers` has the metadata of each episode.
        return np.array([header.arm_count for header in self.batch.headers], dtype=np.int64)

    @cached_property
    def arm(self) -> Ints:
        """Index of the arm for signals about one arm, [E]. Raises `RecordError` for several arms without a choice."""
        # `require_one_arm` returns 0 for each episode, and raises the error if an episode has several arms.
        return self.batch.require_one_arm() if self.chosen_arm is None else self.chosen_arm

    def views(self, names: Iterable[str]) -> list[RecordFields]:
        """Return the fields of each arm, so that a clause over the named signals can be judged for each arm. Return
        only `self` if an arm is already chosen, there is only one arm, or no named signal is about one arm.

        If a signal is about grips, an arm without any contact in an episode is replaced by the first arm with contact.
        """
        # A clause is a specification. `of_arm` is "grip" or "hand" if a signal is about an arm's grip or hand.
        counts = self.arm_counts
        if self.chosen_arm is not None or counts.max(initial=1) == 1:
            return [self]
        kinds = {SIGNALS[name].of_arm for name in names} - {""}  # contains "grip", "hand" or both
        if not kinds:
            return [self]
        # Entry k of the list: arm k in each episode, [E], or the last arm of an episode with fewer arms.
        arm_choices = [np.minimum(k, counts - 1) for k in range(int(counts.max()))]
        if "grip" in kinds:
            has_contact = np.array(
                [np.logical_or.reduceat(self.of_arm(k).own_contact, self.batch.starts[:-1]) for k in arm_choices]
            )
            # [E]: the first arm with contact; [arms, E]: True for an arm without contact if another arm has contact
            first_touching, is_idle = has_contact.argmax(axis=0), has_contact.any(axis=0) & ~has_contact
            arm_choices = [np.where(is_idle[k], first_touching, arm) for k, arm in enumerate(arm_choices)]
        # Equal choices, such as for episodes in which only one arm has contact, need to be judged only once.
        distinct_choices = {arm.tobytes(): arm for arm in arm_choices}.values()
        return [self.of_arm(arm) for arm in distinct_choices]

    def name_arm(self, episode: int = 0) -> str:
        """Return the name of the chosen arm in an episode; "" if the robot has only one arm, or if none was chosen."""
        # `chosen_arm` [E] is the index of the arm in each episode.
        # `arms` has the names of the arms; it is None for a robot with one arm.
        arms = self.batch.headers[episode].arms
        return arms[self.chosen_arm[episode]] if arms and self.chosen_arm is not None else ""

    def of_arm(self, arm: Ints) -> RecordFields:
        """Return the fields of one arm in each episode; `arm` [E] has the arms' indices. Equal calls share a result."""
        # The keys of `_fields_by_arm` are the bytes of `arm`, because an array cannot be a key.
        if arm.tobytes() not in self._fields_by_arm:
            arm_fields = RecordFields(self.batch, self.origin, self.judged, arm)
            arm_fields._fields_by_arm = self._fields_by_arm  # shared, so that all arms find the same results
            self._fields_by_arm[arm.tobytes()] = arm_fields
        return self._fields_by_arm[arm.tobytes()]

    @cached_property
    def other_arms(self) -> list[RecordFields]:
        """The fields of the other arms. If episodes differ in number of arms, episodes with fewer arms repeat arms."""
        # In each episode, item k - 1 is the arm whose index is larger by k than the index of this arm, with wraparound.
        counts = self.arm_counts
        return [self.of_arm((self.arm + k) % counts) for k in range(1, int(counts.max(initial=1)))]

    def compute_once(self, kind: str, name: str, compute: Callable[[RecordFields], A]) -> A:
        """Return `compute(self)` as a read-only array. Only the first call for `kind` and `name` computes the array."""
        # `kind` separates results of the same name, such as signals and missing fields. `compute` returns an array.
        # Only a view of the array is stored and made read-only; the array itself stays writable.
        key = (kind, name)
        if key not in self._arrays:
            array = compute(self).view()
            array.flags.writeable = False
            self._arrays[key] = array
        stored: A = self._arrays[key]
        return stored

    def select_episode(self, episode: int) -> RecordFields:
        """Return the fields of one episode, reusing computed signals."""
        # Other stored arrays may have one value per episode; signals have one value per record, so they can be cut.
        # The result has the default `origin` and `judged`, even if these fields have others.
        arm = None if self.chosen_arm is None else self.chosen_arm[[episode]]
        episode_fields = RecordFields(select_episodes(self.batch, [episode]), arm=arm)
        rows = self.rows_of(episode)
        episode_fields._arrays = {key: array[rows] for key, array in self._arrays.items() if key[0] == SIGNAL_KIND}
        return episode_fields

    def rows_of(self, episode: int) -> slice:
        """Return the rows of the records of an episode."""
        return slice(int(self.batch.starts[episode]), int(self.batch.starts[episode + 1]))

    @cached_property
    def first_record(self) -> Ints:
        """For each record, the row of the first record of its episode, [N]."""
        # `starts` has the first row of each episode, and then N. `lengths` [E] has the number of records per episode.
        return np.repeat(self.batch.starts[:-1], self.batch.lengths)

    @cached_property
    def last_record(self) -> Ints:
        """For each record, the row of the last record of its episode, [N]."""
        # `starts` has the first row of each episode, and then N. `lengths` [E] has the number of records per episode.
        return np.repeat(self.batch.starts[1:] - 1, self.batch.lengths)

    @cached_property
    def dt_s(self) -> Floats:
        """For each record, the control step of its episode in seconds, [N]."""
        return np.repeat(self.batch.dt_s, self.batch.lengths)

    @cached_property
    def is_stamped(self) -> Bools:
        """True for each record of an episode with time stamps, [N]."""
        return self.spread_over_records(self.batch.channel("time_s").present)

    @cached_property
    def time_s(self) -> Floats:
        """Time stamp of each record in seconds, [N]; NaN in episodes without time stamps."""
        # A row has 1 value. Stamps do not depend on the arm, so the arm 0 is used in all episodes.
        return self.batch.rows_of_arm("time_s", np.zeros(len(self.batch), dtype=np.int64), 1)[:, 0]

    def spread_over_records(self, per_episode: NDArray[T]) -> NDArray[T]:
        """Repeat the value of each episode, [E], for each of its records, [N]."""
        # `lengths` [E] is the number of records of each episode.
        return np.repeat(per_episode, self.batch.lengths)

    @cached_property
    def record_of_contact(self) -> Ints:
        """For each contact, the row of its record, [C]."""
        # `contacts.starts` [N + 1] has the index of the first contact of each record. Contacts are in record order.
        return np.repeat(np.arange(self.batch.starts[-1]), np.diff(self.batch.contacts.starts))

    @cached_property
    def own_contact(self) -> Bools:
        """True where the arm's gripper has contact, [N]; false if contact is not recorded."""
        # `grips_of` returns two arrays [N]: whether the gripper has contact, and the body in the gripper.
        return self.batch.grips_of(self.arm)[0]

    @cached_property
    def gripping(self) -> Bools:
        """True where the arm's gripper has contact, or another arm holds this arm's `held_body`, [N]."""
        # `own_contact` and `is_held_elsewhere` are masks of the records, [N].
        return self.own_contact | self.is_held_elsewhere

    @cached_property
    def gripped(self) -> Ints:
        """Index of the body in the arm's gripper, [N]; -1 if there is none or it is unknown."""
        # `grips_of` returns two arrays [N]. The first array says whether the gripper has contact.
        # The second array has the index in the body table of the gripped body.
        return self.batch.grips_of(self.arm)[1]

    @cached_property
    def held_body(self) -> Ints:
        """Index of the held target, [N]: the target in the arm's gripper. If there is none, but another arm holds the
        target that this arm held last, it is that target. Otherwise, it is the header's `target_object` (-1 = none).
        """
        return np.where(self.is_handed_over, self._last_held_body, self._own_held_body)

    @cached_property
    def _own_held_body(self) -> Ints:
        # The target in this arm's gripper, [N]. If the gripper has no target, it is the header's target.
        # Bodies are indices in the body table; -1 = none. `batch.target` [E] is the header's target of each episode.
        gripped = self.gripped
        holds_target = (gripped >= 0) & (self._roles_of_bodies(gripped) == TARGET)
        return np.where(holds_target, gripped, self.spread_over_records(self.batch.target))

    @cached_property
    def _last_held_body(self) -> Ints:
        # The target that this arm itself holds now or held last, [N].
        # Bodies are indices in the body table; before the first grip, it is the header's target (-1 = none).
        return self._latest_held_body(self.own_grip, self._own_held_body)

    def _latest_held_body(self, is_held: Bools, body: Ints) -> Ints:
        # For each record, return `body` at the latest record so far where `is_held` is true, [N].
        # Before the first such record of an episode, return the header's target.
        # `is_held` and `body` are [N].
        # For each record, `first_record` [N] is the row at which the record's episode begins.
        latest_row = np.maximum.accumulate(np.where(is_held, np.arange(len(body)), -1))
        return np.where(latest_row >= self.first_record, body[latest_row], self.spread_over_records(self.batch.target))

    @cached_property
    def shared(self) -> list[Bools]:
        """For each of `other_arms`, a mask [N]: true where that arm and this arm hold the same target."""
        return [self._is_held_by(other, self._own_held_body) & self.own_grip for other in self.other_arms]

    def _is_held_by(self, other: RecordFields, body: Ints) -> Bools:
        # Return a mask of the records in which `other`, one of `other_arms`, holds `body`, [N].
        # In episodes with fewer arms, `other` may be this arm; the mask is then false.
        # `body` [N] has an index in the body table for each record.
        is_other = self.spread_over_records(other.arm != self.arm)
        is_held: Bools = other.own_grip & (other._own_held_body == body) & is_other
        return is_held

    @cached_property
    def is_handed_over(self) -> Bools:
        """True where this arm holds no target, and another arm holds the target that this arm held last, [N]."""
        # Before this arm's first grip, `_last_held_body` [N] is the header's target.
        return self._held_by_another(self._last_held_body)

    @cached_property
    def is_held_elsewhere(self) -> Bools:
        """True where this arm holds no target, and another arm holds this arm's `held_body`, [N]."""
        # `held_body` [N] may also be the header's target, even if this arm last held a different target.
        return self._held_by_another(self.held_body)

    def _held_by_another(self, body: Ints) -> Bools:
        # Return a mask of the records in which another arm holds `body` and this arm holds no target, [N].
        # `body` [N] has an index in the body table for each record.
        is_held = np.zeros(len(self.own_grip), dtype=np.bool_)
        for other in self.other_arms:
            is_held |= self._is_held_by(other, body)
        return is_held & ~self.own_grip

    def _roles_of_bodies(self, body: Ints) -> NDArray[np.int8]:
        # Return the role of each body, a constant such as TARGET; -1 if there is no body table.
        # Bodies are indices in the body table. Callers ignore the result for the body -1 (none).
        return self.batch.body_role[body] if len(self.batch.body_role) else np.full(len(body), -1, dtype=np.int8)

    @cached_property
    def own_grip(self) -> Bools:
        """True while the gripper has contact with a target, or with an unknown body if the header has a target, [N]."""
        # `is_foreign` [N] is true where a body that is not a target is in the gripper.
        # `_own_held_body` [N] is the target in the gripper. Without one, it is the header's target (-1 = none).
        return self.own_contact & ~self.is_foreign & (self._own_held_body >= 0)

    @cached_property
    def is_foreign(self) -> Bools:
        """True where the arm is known to hold a body that is not a target, [N]."""
        # `gripped` [N] is the index of the body in the gripper; -1 if there is none or it is unknown.
        foreign: Bools = (self.gripped >= 0) & (self._roles_of_bodies(self.gripped) != TARGET)
        return foreign

    @cached_property
    def grip(self) -> Bools:
        """True while this arm holds a target, or another arm holds this arm's `held_body`, [N]."""
        return self.own_grip | self.is_held_elsewhere

    @cached_property
    def handles(self) -> Bools:
        """True while this arm holds a target, or another arm holds the target that this arm held last, [N]."""
        # If another arm holds the header's target, but this arm last held a different target, `grip` is true.
        # `handles` is false in this case.
        return self.own_grip | self.is_handed_over

    @cached_property
    def eef_pos(self) -> Floats:
        """Position of the end effector in the world in meters, [N, 3]; NaN if not recorded."""
        # `self.arm` [E] is the index of the arm in each episode.
        return self.batch.rows_of_arm("eef_pos_m", self.arm, 3)

    @cached_property
    def eef_quat(self) -> Floats:
        """Orientation of the end effector as unit quaternions wxyz, [N, 4], NaN if not recorded."""
        return unit_quaternions(self.batch.rows_of_arm("eef_quat_wxyz", self.arm, 4))

    @cached_property
    def wrist_force_n(self) -> Floats:
        """Force at the hand in newtons, from a wrist sensor and in the sensor's frame, [N, 3]; NaN if not recorded."""
        return self.batch.rows_of_arm("wrist_force_n", self.arm, 3)

    @cached_property
    def handled_body(self) -> Ints:
        """Index of the target that is held or was held last, [N]; before the first grip, the task's target."""
        # `handles` [N] is true while a target is held. Bodies are indices in the body table; -1 = none.
        return self._latest_held_body(self.handles, self.held_body)

    @cached_property
    def handled_pos(self) -> Floats:
        """Position of `handled_body` in the world in meters, [N, 3]; NaN if not recorded or unknown."""
        return self._known_poses(self.batch.body_pos_m, self.handled_body)

    @cached_property
    def handled_quat(self) -> Floats:
        """Orientation of `handled_body` as unit quaternions wxyz, [N, 4]; NaN if not recorded or unknown."""
        return unit_quaternions(self._known_poses(self.batch.body_quat_wxyz, self.handled_body))

    @cached_property
    def supported(self) -> Bools:
        """True where contacts with bodies other than the robot carry half the weight of `handled_body` or more, [N]."""
        # `handled_body` [N] is the target that is held or was held last.
        # Where support is not recorded (NaN), return False.
        rows = self._recorded_poses(self.batch.supported, self.handled_body, np.arange(len(self.held_body)))
        return np.asarray(rows[:, 0] > 0)

    @cached_property
    def entered_opening(self) -> Floats:
        """Smallest opening of the doors and drawers around the end effector, [N]; inf if none, NaN if not recorded."""
        # The opening is a share of the travel of a door or drawer.
        # The value is infinite in episodes that do not record `entered`, and NaN where only the opening is missing.
        # `entered` is true if the end effector is inside the door or drawer.
        batch, least_opening = self.batch, np.full(int(self.batch.starts[-1]), np.inf)
        for episode in np.flatnonzero(batch.entered.present).tolist():
            doors, opening = batch.opening.episode_poses(episode)
            entered_bodies, is_inside = batch.entered.episode_poses(episode)
            for column, body in enumerate(entered_bodies):
                records, door_columns = np.flatnonzero(is_inside[:, column, 0]), np.flatnonzero(doors == body)
                rows = int(batch.starts[episode]) + records
                # If the opening of this door or drawer is not recorded, the value is NaN.
                values = opening[records, door_columns[0], 0] if len(door_columns) else np.nan
                least_opening[rows] = np.minimum(least_opening[rows], values)
        return least_opening

    @cached_property
    def held_pos(self) -> Floats:
        """Position of the held target in the world in meters, [N, 3]; NaN if not recorded or unknown."""
        # `held_body` [N] is the index of the held target.
        return self._known_poses(self.batch.body_pos_m, self.held_body)

    @cached_property
    def held_pos_start(self) -> Floats:
        """For each record, the position in record 0 of the body in `held_body`, in meters, [N, 3]; NaN if not known."""
        # Record 0 is the first record of the same episode; `first_record` [N] has the row of this record.
        return self._known_poses(self.batch.body_pos_m, self.held_body, rows=self.first_record)

    def shifted_pos(self, body: Ints, by: int) -> Floats:
        """For each record k, return the position of body[k] at record k + `by` in meters, [N, 3].

        `by` may be negative. Beyond an end of the episode, the position at that end counts. NaN if not known.
        """
        # `body` [N] are indices in the body table.
        return self._known_poses(self.batch.body_pos_m, body, rows=self._shifted_rows(by))

    def shifted_quat(self, body: Ints, by: int) -> Floats:
        """For each record k, return the orientation of body[k] at record k + `by`, [N, 4]; NaN if not known."""
        # The quaternions are wxyz and have length 1. `body` [N] are indices in the body table.
        # Beyond an end of the episode, the orientation at that end counts.
        return unit_quaternions(self._known_poses(self.batch.body_quat_wxyz, body, rows=self._shifted_rows(by)))

    def _shifted_rows(self, by: int) -> Ints:
        # Return the row `by` records after each record, but not beyond the ends of the episode, [N].
        rows: Ints = np.clip(np.arange(self.batch.starts[-1]) + by, self.first_record, self.last_record)
        return rows

    @cached_property
    def held_quat(self) -> Floats:
        """Orientation of `held_body` as unit quaternions wxyz, [N, 4]; NaN if not recorded or unknown."""
        return unit_quaternions(self._known_poses(self.batch.body_quat_wxyz, self.held_body))

    @cached_property
    def held_quat_start(self) -> Floats:
        """For each record, the orientation in record 0 of the body in `held_body`, wxyz, [N, 4]; NaN if not known."""
        # Record 0 is the first record of the same episode; `first_record` [N] has the row of this record.
        return unit_quaternions(self._known_poses(self.batch.body_quat_wxyz, self.held_body, rows=self.first_record))

    def _known_poses(self, poses: Poses, body: Ints, rows: Ints | None = None) -> Floats:
        # Return the pose of body[k] at rows[k] (by default row k), NaN if not recorded or marked as unknown.
        # `poses` are positions (3 numbers) or quaternions (4 numbers) of bodies.
        # `body` [N] are indices in the body table. The result has one pose for each record, [N, 3] or [N, 4].
        rows = np.arange(len(body)) if rows is None else rows
        values = self._recorded_poses(poses, body, rows)
        if self.has_lost_poses:
            values[self.is_lost(body, rows)] = np.nan
        return values

    def is_lost(self, body: Ints, record: Ints) -> Bools:
        """Return whether the pose of body[k] is marked as unknown at record[k], [K]; False for the body -1 (none)."""
        # `body` [K] are indices in the body table, and `record` [K] are rows of the batch.
        # `pose_valid` lists only some bodies; the poses of all other bodies count as known.
        valid = self.batch.pose_valid
        # `columns` [B] is the index of each body in the list of `pose_valid` for the body's episode; -1 = not listed.
        columns = pose_columns(self.batch, valid)
        is_listed = (body >= 0) & (columns[body] >= 0)
        column, record = columns[body[is_listed]], record[is_listed]
        episode = self.batch.episode_of_record[record]
        # In the flat channel, each record has one number for each listed body; 0 means that the pose is unknown.
        first_pose = (record - self.batch.starts[episode]) * np.diff(valid.body_starts)[episode]
        is_lost: Bools = np.zeros(len(body), dtype=np.bool_)
        is_lost[is_listed] = valid.channel.values[valid.channel.starts[episode] + first_pose + column] == 0
        return is_lost

    def is_lost_in(self, episode: int, body: int) -> Bools:
        """Return whether the pose of a body is marked as unknown in each of the n records of an episode, [n]."""
        # `body` is an index in the body table.
        rows = self.rows_of(episode)
        records = np.arange(rows.start, rows.stop)
        return self.is_lost(np.full(len(records), body), records)

    def _recorded_poses(self, poses: Poses, body: Ints, rows: Ints) -> Floats:
        # Return the recorded pose of body[k] at rows[k], NaN if not recorded.
        # `poses.size` is the number of values of a pose. `body` [N] are indices in the body table, -1 = none.
        # `rows[k]` is a row of the same episode as record k. The result is [N, size].
        # `pose_column` [N] is the index of each body in its episode's list of bodies with poses; -1 = not in the list.
        pose_column = pose_columns(self.batch, poses)[body] if len(self.batch.body_role) else np.full(len(body), -1)
        is_posed = (body >= 0) & (pose_column >= 0)
        bodies_per_record = np.diff(poses.body_starts)
        # The flat channel has one pose for each record and posed body. Find the first pose of each episode, [E].
        first_pose = offsets_of(bodies_per_record * self.batch.lengths)[:-1]
        flat_index = (
            self.spread_over_records(first_pose)
            + (rows - self.first_record) * self.spread_over_records(bodies_per_record)
            + pose_column
        )
        values = np.full((len(body), poses.size), np.nan)
        values[is_posed] = poses.channel.values.reshape(-1, poses.size)[flat_index[is_posed]]
        return values

    def lacks_field(self, field: str) -> Bools:
        """Return whether each episode lacks a field, [E]. The field is a key of `RAW_FIELDS`, or `KEY of PLACE` with a
        key of `PLACE_FIELDS`. Raises `KeyError` for any other name.
        """
        # `RAW_FIELDS` maps a field to the function that finds the episodes without it.
        # `PLACE_FIELDS` has such functions for the fields of selected bodies.
        # Only the first call for a field computes the result.
        find_lacking = RAW_FIELDS.get(field)
        if find_lacking is None:
            key, _, place = field.partition(" of ")
            find_lacking = partial(PLACE_FIELDS[key], place=place)
        return self.compute_once("lacks", field, find_lacking)

    def lacks_impulse(self) -> Bools:
        """Return whether each episode has a contact after record 0 that lacks the net impulse, [E]."""
        # `record_of_contact` [C] is the row of each contact's record, and `net_impulse_ns` [C] is NaN if not recorded.
        # Record 0 needs no impulses, because no step precedes it.
        is_after_start = self.record_of_contact > self.first_record[self.record_of_contact]
        is_lacking = np.isnan(self.batch.contacts.net_impulse_ns) & is_after_start
        episodes = self.batch.episode_of_record[self.record_of_contact[is_lacking]]
        return np.bincount(episodes, minlength=len(self.batch)) > 0

    def _lacks_body_pose(self, poses: Poses, body: Ints) -> Bools:
        # Return whether each episode lacks the pose of the given body in any record, [E].
        # `body` [N] has an index in the body table for each record. The body -1 (none) has no pose.
        pose_column = pose_columns(self.batch, poses)[body] if len(self.batch.body_role) else body
        is_lacking = (body < 0) | (pose_column < 0)
        return ~poses.present | np.logical_or.reduceat(is_lacking, self.batch.starts[:-1])


def angle_of_cosine(cosine: Floats) -> Floats:
    """Return the angle in degrees, bit for bit the same on every processor. Cosines are clipped to -1 to 1."""
    # The arc cosine is computed with more precision (`longdouble`) and then rounded.
    # NumPy's own arc cosine of float64 differs in the last bit between processors with and without AVX-512.
    return np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0).astype(np.longdouble)).astype(np.float64))


def _lacks_torque_limits(fields: RecordFields) -> Bools:
    # Return whether each episode has joint torques, but lacks their limits, [E].
    # `headers` has the metadata of each episode, and TORQUES the names of the channels with joint torques.
    has_torques = np.logical_or(*(fields.batch.channel(name).present for name in TORQUES))
    return has_torques & np.array([header.lacks_torque_limit for header in fields.batch.headers], dtype=np.bool_)


def pose_columns(batch: Batch, poses: Poses) -> Ints:
    """Return the index of each of `B` bodies in its episode's list of bodies with poses, [B]; -1 = not in the list."""
    # `poses.body` lists the bodies with poses, episode by episode;
    # `body_starts` has the start of each episode in this list.
    pose_column = np.full(len(batch.body_role), -1, dtype=np.int64)
    bodies_per_episode = np.diff(poses.body_starts)
    pose_column[poses.body] = np.arange(len(poses.body)) - np.repeat(poses.body_starts[:-1], bodies_per_episode)
    return pose_column


def unit_quaternions(quats: Floats) -> Floats:
    """Normalize quaternions, [N, 4]. Tiny and huge ones keep their direction; NaN and zeros become NaN."""
    # The largest component becomes 1 or -1 first, so that squares neither overflow nor become 0.
    scaled = quats / np.abs(quats).max(axis=1, keepdims=True)
    unit: Floats = scaled / np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return unit


def _make_channel_check(name: str) -> Callable[[RecordFields], Bools]:
    # Return a function that returns for each episode whether it lacks the channel, [E].
    return lambda fields: ~fields.batch.channel(name).present


def _lacks_whose_grip(fields: RecordFields) -> Bools:
    """Return a mask [E] of the episodes in which several arms touch something, but some gripped body is unknown."""
    # In these episodes, it is unknown which arm holds a target. If all episodes have one arm, the mask is False.
    counts, starts = fields.arm_counts, fields.batch.starts[:-1]
    gripping_arm_count, is_unknown = np.zeros(len(counts), dtype=np.int64), np.zeros(len(counts), dtype=np.bool_)
    if counts.max(initial=1) == 1:
        return is_unknown
    for arm in range(int(counts.max())):
        # In an episode with fewer arms, `grips_of` gets the last arm again; the next line ignores this repetition.
        has_contact, gripped_body = fields.batch.grips_of(np.minimum(arm, counts - 1))
        has_contact &= fields.spread_over_records(arm < counts)
        gripping_arm_count += np.logical_or.reduceat(has_contact, starts)
        is_unknown |= np.logical_or.reduceat(has_contact & (gripped_body < 0), starts)
    return is_unknown & (gripping_arm_count > 1)


_ARM_CHANNELS = ("eef_pos_m", "eef_quat_wxyz", "wrist_force_n", "gripper_contact", "gripped_body")
WHOSE_GRIP = "gripped_body of each arm that has contact"
NO_PERSON = "a person's place (the [person] table of a rules file)"
SECOND_ARM = "arms (the record has one arm)"
NO_IMPULSE = f"{NET_IMPULSE} (older records have impulse_ns: a sum over single contacts)"
RAW_FIELDS: Mapping[str, Callable[[RecordFields], Bools]] = {
    **{name: _make_channel_check(name) for name in (*TORQUES, *_ARM_CHANNELS)},
    "contacts": lambda fields: ~fields.batch.contacts.present,
    NO_IMPULSE: lambda fields: fields.lacks_impulse(),
    SECOND_ARM: lambda fields: fields.arm_counts == 1,
    WHOSE_GRIP: _lacks_whose_grip,
    NO_PERSON: lambda fields: np.ones(len(fields.batch), dtype=np.bool_),
    NET_FORCE: lambda fields: np.array([NET_FORCE not in h.recorded_forces for h in fields.batch.headers], np.bool_),
    "body_pos_m": lambda fields: ~fields.batch.body_pos_m.present,
    "joint_torque_limit_nm": _lacks_torque_limits,
    "body_quat_wxyz": lambda fields: ~fields.batch.body_quat_wxyz.present,
    "body_pos_m of the held target": lambda fields: fields._lacks_body_pose(fields.batch.body_pos_m, fields.held_body),
    "body_quat_wxyz of the held target": lambda fields: fields._lacks_body_pose(
        fields.batch.body_quat_wxyz, fields.held_body
    ),
    "supported": lambda fields: fields._lacks_body_pose(fields.batch.supported, fields.handled_body),
    "opening of what is entered": lambda fields: np.isnan(
        np.add.reduceat(fields.entered_opening, fields.batch.starts[:-1])
    ),
    "entered": lambda fields: ~fields.batch.entered.present,
}
# Maps each raw field of one arm to the kind (`Signal.of_arm`) of the signals that read the field.
_KIND_OF_FIELD = {
    **dict.fromkeys(_ARM_CHANNELS[:3], "hand"),
    **dict.fromkeys((*_ARM_CHANNELS[3:], "supported"), "grip"),
    **{f"{name} of the held target": "grip" for name in ("body_pos_m", "body_quat_wxyz")},
}
PLACE_FIELDS: dict[str, Callable[..., Bools]] = {}
"""Maps a field of bodies to a function that returns a mask [E] of the episodes whose selected bodies lack the field."""


# Signals


Values = NDArray[np.float64] | NDArray[np.bool_]
Argument: TypeAlias = str | float
"""An argument of a signal such as `distance(eef, plate)`: a body selector, or a number."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """How to find the bodies that determine a signal's value in a record, and how to describe the bodies' relation."""

    kind: Literal["contact", "displacement", "held", "joint", "place"]
    relation: str
    roles: tuple[int, ...] = ()
    """The roles of two bodies in contact; if empty, any pair counts."""
    channel: str = ""
    """Either the torque channel to compare with the joints' limits, or the field of contacts to maximize."""
    call: tuple[str, tuple[Argument, ...]] = ("", ())
    """The kind of a signal of space, such as `distance`, and the arguments of the signal."""


DISPLACED = Bodies("displacement", "displaced most")
HELD = Bodies("held", "held object")


def touching(*roles: int, channel: str = "force_n") -> Bodies:
    """Select the two bodies whose contact has the largest value of `channel`. Roles (if any) restrict the bodies."""
    # A role is a constant such as ROBOT. The result defines how reports find and describe the bodies of a signal.
    return Bodies("contact", "hardest contact", roles, channel)


def loaded_joint(channel: str) -> Bodies:
    """Select the joint whose torque in this channel is nearest to the limit of the joint."""
    # The result defines how reports find and describe the joint.
    return Bodies("joint", "most loaded", channel=channel)


@dataclass(frozen=True, slots=True)
class Signal:
    """A derived signal (paper Table 19).

    `compute` returns the values, [N]. They are NaN throughout an episode that does not record a field of `reads`, that
    has no tracked body, or that has too few records for a derivative. Otherwise, a value that depends on an unknown
    pose is NaN or false, and `unknown` is true for it.
    """

    name: str
    unit: str
    reads: tuple[str, ...]
    boolean: bool
    event: bool
    ahead: bool
    """True if a value depends on later records, so that it may change while an episode runs."""
    meaning: str
    compute: Callable[[RecordFields], Values]
    unknown: Callable[[RecordFields], Bools] | None
    """Returns a mask of the unknown values, [N]. If None, a value is unknown where an unknown pose makes it NaN."""
    bodies: Bodies | None = None
    ends_open: bool = False
    """True if `unknown` also marks records near the episode's end, whose values depend on records after the end."""
    cause: CauseKind | None = None
    """How to describe the cause of a violation; None if contacts and poses do not show it."""

    @property
    def of_arm(self) -> str:
        """`grip` if the signal is about the body in one arm's gripper, `hand` if about one arm's hand; otherwise ""."""
        # `reads` has names such as `gripper_contact` or `opening of drawer`.
        # `_KIND_OF_FIELD` maps fields of one arm to "grip" or "hand"; "grip" takes precedence.
        kinds = {_KIND_OF_FIELD.get(field) for field in self.reads}
        places = {field.partition(" of ")[2] for field in self.reads}
        if "grip" in kinds or "held" in places:
            return "grip"
        return "hand" if "hand" in kinds or "eef" in places else ""

    def unknown_records(self, fields: RecordFields) -> Bools:
        """Return a mask of the unknown values, [N]: due to an unknown pose or, if `ends_open`, the episode's end."""
        # `self.unknown` is None or a function that computes the mask.
        # `fields.trusting` treats all recorded poses as known.
        # So a value that is NaN only in `fields` depends on an unknown pose.
        if self.unknown is not None:
            return self.unknown(fields)
        return np.isnan(self.compute(fields)) & ~np.isnan(self.compute(fields.trusting))


CauseKind = Literal["push", "contact", "touch", "grip", "load"]
FORMS: dict[str, Callable[[tuple[Argument, ...]], Signal]] = {}
"""Maps a kind, such as `distance`, to a function that makes the signal from arguments or raises `FormulaError`."""
_REGISTERED: dict[str, Signal] = {}


class SignalTable(Mapping[str, Signal]):
    """Signals by name. A signal of space has a call as its name, such as `tilt(held)`; iteration skips such signals."""

    def __getitem__(self, name: str) -> Signal:
        # Return the signal with this name. FORMS maps a kind such as `tilt` to a function that makes the signal.
        # The function raises `FormulaError` if the arguments are invalid.
        if name in _REGISTERED:
            return _REGISTERED[name]
        form, _, arguments = name.partition("(")
        if form not in FORMS or not arguments.endswith(")"):
            raise KeyError(name)
        argument_texts = _ARGUMENT.findall(arguments[:-1])  # without the closing parenthesis
        return FORMS[form](tuple(_read_argument(text) for text in argument_texts))

    def __contains__(self, name: object) -> bool:
        # A name in call form needs only a known form and `(`; its arguments are not checked here.
        return name in _REGISTERED or (isinstance(name, str) and name.partition("(")[0] in FORMS and "(" in name)

    def __iter__(self) -> Iterator[str]:
        # Names in call form are not listed, because there are infinitely many.
        return iter(_REGISTERED)

    def __len__(self) -> int:
        return len(_REGISTERED)


SIGNALS = SignalTable()
_ARGUMENT = re.compile(r'"[^"]*"|[^",\s]+')


def _read_argument(text: str) -> Argument:
    # Return a quoted or unquoted name, or a number.
    if text.startswith('"'):
        return text[1:-1]
    return text if is_name(text) else float(text)


def format_call(form: str, arguments: Iterable[Argument]) -> str:
    """Return the name of a signal of space: its call in a formula, such as `tilt(held)`."""
    return f"{form}({', '.join(format_argument(argument) for argument in arguments)})"


def signal(
    *,
    unit: str,
    reads: tuple[str, ...],
    boolean: bool = False,
    event: bool = False,
    ahead: bool = False,
    unknown: Callable[[RecordFields], Bools] | None = None,
    ends_open: bool = False,
    bodies: Bodies | None = None,
    cause: CauseKind | None = None,
) -> Callable[[Callable[[RecordFields], Values]], Callable[[RecordFields], Values]]:
    """Register a function as the signal of the same name, computed once per `RecordFields`.

    A numeric signal becomes NaN throughout an episode that lacks a field of `reads`. The docstring's first line is the
    signal's meaning. `event` says that a numeric signal is 0 or 1. Set `ahead` if values depend on later records. If
    not, a value may depend only on its record, the `GAP_RECORDS` + 1 records before, record 0, and the grip's onset.
    """
    # `reads` names raw fields of RAW_FIELDS, and `unknown` computes a mask [N] of unknown values.
    # If `ends_open`, this mask includes records near an episode's end.
    # `bodies` and `cause` define how reports describe a violation.
    unknown_fields = set(reads) - set(RAW_FIELDS)
    assert not unknown_fields, unknown_fields

    def register(compute: Callable[[RecordFields], Values]) -> Callable[[RecordFields], Values]:
        name = compute.__name__
        meaning = (compute.__doc__ or "").strip().partition("\n")[0]  # `python -OO` removes docstrings

        def compute_values(fields: RecordFields) -> Values:
            values = compute(fields)
            if values.dtype == np.bool_:
                return values
            values = np.add(values, 0.0)  # avoid -0.0 in outputs
            # A mask [E] of the episodes that lack a field
            is_lacking = np.logical_or.reduce([fields.lacks_field(field) for field in reads])
            return np.where(fields.spread_over_records(is_lacking), np.nan, values) if is_lacking.any() else values

        @wraps(compute)
        def compute_once(fields: RecordFields) -> Values:
            # Compute the signal on the first call; later calls for the same records return the stored values.
            return fields.compute_once(SIGNAL_KIND, name, compute_values)

        _REGISTERED[name] = Signal(
            name, unit, reads, boolean, event, ahead, meaning, compute_once, unknown, bodies, ends_open, cause
        )
        return compute_once

    return register
