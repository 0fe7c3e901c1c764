"""Batches of episodes in memory, as flat arrays and offsets.

Episodes differ in length, bodies and contacts, so offsets mark the items of each episode: episode e has the records
`starts[e]:starts[e+1]` and the bodies `body_starts[e]:body_starts[e+1]`; record r has the contacts
`contacts.starts[r]:contacts.starts[r+1]`. A single episode is a batch of one. Numbers are float64. Poses are in the
world frame, in meters and quaternions wxyz.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import Place, RecordError, SafevlaError
from safevla_bench.trajectory.header import ROLES, Header
from safevla_recorder.channels import POSES, ROWS, ChannelSpec, as_fields
from safevla_recorder.episode import Bools, Floats, Ints

T = TypeVar("T", bound=np.generic)
Stamps = Mapping[int, Floats]
"""For each episode with time stamps, by index: the time of each record since record 0 in seconds, [n]."""
CONTACT_NUMBERS = ("force_n", "impulse_ns", "net_force_n", "net_impulse_ns")


@dataclass(frozen=True, slots=True)
class Channel:
    """The rows of one channel. Episode e has `width[e]` numbers per row (-1 = not recorded). They are stored row after
    row in `values[starts[e]:starts[e+1]]`.
    """

    values: Floats
    starts: Ints
    width: Ints

    @property
    def present(self) -> Bools:
        """True for each episode that recorded the channel, [E]."""
        return self.width >= 0  # numbers per row in each episode, [E]; -1 = not recorded

    def episode_rows(self, index: int) -> Floats:
        """Return the rows of one episode, [rows, width]; an empty array [0, 0] if the channel was not recorded."""
        # There is a row per record or, in channels of actions, per action. A channel of width 0 also gives [0, 0].
        # `values` has the numbers of all episodes; the numbers of episode `index` begin at `starts[index]`.
        flat = self.values[self.starts[index] : self.starts[index + 1]]
        return flat.reshape(-1, self.width[index]) if self.width[index] > 0 else flat.reshape(0, 0)


@dataclass(frozen=True, slots=True)
class Poses:
    """Positions (`size` 3), quaternions (`size` 4) or values (`size` 1; Booleans are 1.0 or 0.0) of bodies. Each record
    of episode e has rows for the bodies `body[body_starts[e]:body_starts[e+1]]`, which are indices in the body table.
    """

    channel: Channel
    body: Ints
    body_starts: Ints
    size: int

    @property
    def present(self) -> Bools:
        """True for each episode that recorded the poses, [E]."""
        return self.channel.present

    def episode_poses(self, index: int) -> tuple[Ints, Floats]:
        """Return the bodies of one episode as indices, [P], and the bodies' values in each record, [n, P, size]."""
        # Without bodies, the arrays are empty, [0] and [0, 0, size]. `size` is 3 for positions, for example.
        # The indices refer to the batch's table of bodies.
        body = self.body[self.body_starts[index] : self.body_starts[index + 1]]
        flat = self.channel.values[self.channel.starts[index] : self.channel.starts[index + 1]]
        return body, flat.reshape(-1, len(body), self.size) if len(body) else flat.reshape(0, 0, self.size)


@dataclass(frozen=True, slots=True)
class Contacts:
    """Contacts in record order. `a` and `b` are indices in the body table. Impulses and net forces that were not
    recorded are NaN. Clauses judge `force_n` by default: the largest force at a single contact of the two bodies, or
    their net force in records that have only net forces.
    """

    present: Bools
    starts: Ints
    a: Ints
    b: Ints
    force_n: Floats
    impulse_ns: Floats
    net_force_n: Floats
    net_impulse_ns: Floats

    def take(self, rows: Ints | slice, starts: Ints, present: Bools, shift: Ints | int = 0) -> Contacts:
        """Return the contacts at the indices `rows`, with new offsets `starts`. Raise the body indices by `shift`."""
        # `starts` [N + 1]: index of the first contact of each of the N records, then the number of contacts.
        # `present` [E] says whether each episode recorded contacts. `shift` is one number, or one for each contact.
        # `CONTACT_NUMBERS` names the arrays of forces and impulses; `a` and `b` hold the indices of the two bodies.
        numbers = {name: _take(getattr(self, name), rows) for name in CONTACT_NUMBERS}
        return Contacts(present, starts, self.a[rows] + shift, self.b[rows] + shift, **numbers)

    @classmethod
    def empty(cls, present: Bools, records: int) -> Contacts:
        """Return empty contacts for `records` records; `present` [E] marks the episodes that recorded contacts."""
        starts, no_bodies = np.zeros(records + 1, dtype=np.int64), np.empty(0, dtype=np.int64)  # no record has contacts
        return cls(present, starts, no_bodies, no_bodies, **dict.fromkeys(CONTACT_NUMBERS, np.empty(0)))

    @classmethod
    def join(cls, parts: Sequence[Contacts], present: Bools, shifts: Sequence[int]) -> Contacts:
        """Join the contacts of successive records, and add the shift of each part to the part's body indices."""
        # `present` [E] says for each episode of the result whether it recorded contacts.
        starts = _join_starts([part.starts for part in parts])
        a = np.concatenate([part.a + shift for part, shift in zip(parts, shifts, strict=True)])
        b = np.concatenate([part.b + shift for part, shift in zip(parts, shifts, strict=True)])
        numbers = {name: np.concatenate([getattr(part, name) for part in parts]) for name in CONTACT_NUMBERS}
        return cls(present, starts, a, b, **numbers)


@dataclass(frozen=True, slots=True)
class Batch:
    """`E` episodes with `N` records and `B` bodies in all."""

    headers: tuple[Header, ...]
    starts: Ints
    body_starts: Ints
    body_names: tuple[str, ...]
    """Distinct names of bodies; `body_name` holds indices into this tuple."""
    body_name: Ints  # the columns of the body table are `body_name` and `body_role`, [B]
    body_role: NDArray[np.int8]  # indices into `ROLES`
    target: Ints
    """Index of each episode's target object in the body table; -1 = none, [E]."""
    eef_pos_m: Channel
    eef_quat_wxyz: Channel
    body_pos_m: Poses
    body_quat_wxyz: Poses
    pose_valid: Poses
    """0.0 if the pose of a body is unknown, else 1.0. Bodies without a value always have known poses."""
    supported: Poses
    """1.0 if contacts with bodies other than the robot carry at least half of a body's weight."""
    opening: Poses
    """Opening of a door or drawer, as a share of the full travel."""
    entered: Poses
    """1.0 if the end effector is inside a drawer or behind a door."""
    contacts: Contacts
    joint_torque_nm: Channel
    gripper_contact: Channel
    """1.0 if the gripper has contact."""
    gripped_body: Channel
    """Index of the held body among the bodies of the episode, from 0; -1 = none."""
    action: Channel
    """The action that led to each record except the first; an episode of n records has n - 1 rows."""
    sim_state: Channel
    extra: tuple[Mapping[str, object], ...]
    """Host-specific fields, one mapping per episode: {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}}."""
    further: Mapping[str, Channel] = field(default_factory=dict)
    """Numeric channels of `CHANNELS` that are not fields of this class, by name."""

    def __len__(self) -> int:
        # Returns the number of episodes.
        return len(self.headers)

    @property
    def lengths(self) -> Ints:
        """Number of records of each episode, [E]."""
        return self.starts[1:] - self.starts[:-1]  # `starts` has each episode's first record, then the end

    @property
    def dt_s(self) -> Floats:
        """Duration of one control step in each episode, in seconds, [E]."""
        return np.array([header.dt for header in self.headers], dtype=np.float64)

    @property
    def success(self) -> Bools:
        """Success as the host defines it, [E]."""
        return np.array([header.success for header in self.headers], dtype=np.bool_)

    @property
    def episode_of_record(self) -> Ints:
        """For each record, the index of its episode, [N]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def gripping(self) -> Bools:
        """True where the gripper has contact, [N]; false if not recorded. Raises the errors of `require_one_arm`."""
        return self.grips_of(self.require_one_arm())[0]

    @property
    def gripped(self) -> Ints:
        """Index of the held body in the body table, -1 = unknown or none, [N]. Raises the errors of `gripping`."""
        return self.grips_of(self.require_one_arm())[1]

    def require_one_arm(self) -> Ints:
        """Return the arm index 0 for each episode, [E]. Raises `RecordError` if an episode has several arms, which the
        callers of this function cannot handle.
        """
        for header in self.headers:
            if header.arms:
                problem = f"the record has the arms {', '.join(header.arms)}, but this computation needs a single arm"
                remedy = "Use only episodes with one arm; `safevla export` selects episodes by --suite and --policy."
                raise RecordError(problem, remedy=remedy, place=Place(episode=header.episode_id, field="arms"))
        return np.zeros(len(self), dtype=np.int64)

    def grips_of(self, arm: Ints) -> tuple[Bools, Ints]:
        """Return `gripping` and `gripped`, [N] each, for one arm of each episode; `arm` [E] has the arm's index."""
        is_gripping = self.rows_of_arm("gripper_contact", arm, size=1, missing=0.0)[:, 0] != 0
        index_in_episode = self.rows_of_arm("gripped_body", arm, size=1, missing=-1.0)[:, 0].astype(np.int64)
        # The channel numbers the bodies within an episode, but `gripped` numbers them within the batch. -1 = none.
        return is_gripping, _shift_bodies(index_in_episode, np.repeat(self.body_starts[:-1], self.lengths))

    def rows_of_arm(self, name: str, arm: Ints, size: int, missing: float = np.nan) -> Floats:
        """Return one arm's numbers in each row of a channel, [N, size]; `arm` is the arm's index in each episode, [E].
        Numbers that were not recorded are replaced by `missing`.
        """
        channel = self.channel(name)
        # If each row of all episodes has only the numbers of one arm, the values can be returned without a copy.
        if channel.present.all() and (channel.width == size).all():
            return channel.values.reshape(-1, size)
        # `present` says for each record whether its episode has the channel. `width` is the count of numbers per row.
        rows, present = np.full((int(self.starts[-1]), size), missing), np.repeat(channel.present, self.lengths)
        # In row r of episode e, the arm's first number is at the index first[e] + r * width[e].
        first = channel.starts[:-1] + arm * size - self.starts[:-1] * channel.width
        start_of_row = np.repeat(first, self.lengths) + np.arange(len(rows)) * np.repeat(channel.width, self.lengths)
        rows[present] = channel.values[start_of_row[present, None] + np.arange(size)]
        return rows

    def elapsed_s(self, index: int, step: int) -> float:
        """Return the seconds from record 0 of an episode to the record `step`. Without time stamps, use dt."""
        stamps = self.channel("time_s")  # time stamps in seconds; they need not start at 0
        if not stamps.present[index]:
            return step * self.headers[index].dt
        first = int(stamps.starts[index])
        return float(stamps.values[first + step] - stamps.values[first])

    @property
    def stamps_s(self) -> Stamps:
        """For each episode with time stamps, by index: the times of the records since record 0 in seconds."""
        stamps = self.channel("time_s")
        stamps_of = {index: stamps.episode_rows(index)[:, 0] for index in np.flatnonzero(stamps.present).tolist()}
        return {index: times - times[0] for index, times in stamps_of.items()}

    def channel(self, name: str) -> Channel:
        """Return a channel of `ROWS`, without values if the batch lacks it. Raises `SafevlaError` for other names."""
        _require_name(name, _ROW_NAMES, "rows")
        # Some channels are fields of this class, all others are in `further`.
        channel: Channel | None = self.further.get(name, getattr(self, name, None))
        return absent_channel(len(self)) if channel is None else channel

    def numbers(self, spec: ChannelSpec) -> Channel:
        """Return the numbers of a channel, which has rows or poses. `spec` is the channel's entry in `CHANNELS`."""
        return self.poses(spec.name).channel if spec.is_pose else self.channel(spec.name)

    def poses(self, name: str) -> Poses:
        """Return a channel of `POSES` by name. Raises `SafevlaError` for a name that is not in `POSES`."""
        _require_name(name, _POSE_NAMES, "poses")
        poses: Poses = getattr(self, name)
        return poses

    def body_label(self, body: int) -> str:
        """Return the name of a body, given its index in the batch's body table."""
        return self.body_names[int(self.body_name[body])]  # `body_name` has indices into `body_names`

    def body_roles(self, index: int) -> dict[str, str]:
        """Return a map from each body of one episode to its role, in the order of the body table."""
        body_indices = range(self.body_starts[index], self.body_starts[index + 1])
        return {self.body_label(k): ROLES[self.body_role[k]] for k in body_indices}  # `body_role`: indices in `ROLES`


_ROW_NAMES, _POSE_NAMES = ({spec.name: spec for spec in specs} for specs in (ROWS, POSES))


def _require_name(name: str, names: Collection[str], kind: str) -> None:
    # Raises `SafevlaError` unless `name` is one of `names`.
    # The message says that these are the channels of `kind`, which is "rows" or "poses".
    if name not in names:
        raise SafevlaError(f"no channel of {kind} has the name {name!r}", remedy=f"Known channels: {', '.join(names)}.")


def batch_of_headers(headers: Sequence[Header], lengths: Ints) -> Batch:
    """Return a batch of episodes without any channels, given each episode's header and number of records, [E] each."""
    # A `target` of -1 means that no target is known.
    # Every channel of the new batch counts as not recorded.
    episodes, starts = len(headers), offsets_of(lengths)
    zero_starts, absent = np.zeros(episodes + 1, dtype=np.int64), absent_channel(episodes)
    no_bodies = np.empty(0, dtype=np.int64)
    return Batch(
        headers=tuple(headers),
        starts=starts,
        body_starts=zero_starts,
        body_names=(),
        body_name=no_bodies,
        body_role=np.empty(0, dtype=np.int8),
        target=np.full(episodes, -1),
        contacts=Contacts.empty(np.zeros(episodes, dtype=np.bool_), int(starts[-1])),
        extra=({},) * episodes,
        **batch_channels(lambda _: absent, lambda spec: Poses(absent, no_bodies, zero_starts, spec.pose_size)),
    )


def batch_channels(rows: Callable[[ChannelSpec], Channel], poses: Callable[[ChannelSpec], Poses]) -> dict[str, Any]:
    """Return a batch's channels as keyword arguments. `rows` and `poses` return the channel for a `ChannelSpec`."""
    # `as_fields` puts channels that are not fields of `Batch` into the argument `further`.
    return as_fields(Batch, {spec.name: rows(spec) for spec in ROWS} | {spec.name: poses(spec) for spec in POSES})


def absent_channel(episodes: int) -> Channel:
    """Return a channel that none of the episodes recorded."""
    return Channel(values=np.empty(0), starts=np.zeros(episodes + 1, dtype=np.int64), width=np.full(episodes, -1))


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """Return the offset of each of `E` concatenated items, given their lengths, then the total length, [E + 1]."""
    # For example, the lengths [2, 3] give [0, 2, 5].
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def gather_ranges(starts: Ints, episodes: Ints) -> tuple[Ints, Ints]:
    """Return an array with the flat indices of all items of the chosen episodes, and each episode's offset in it."""
    # Episode e has the items from `starts[e]` to `starts[e + 1]`; `episodes` has the indices of the chosen episodes.
    counts = starts[episodes + 1] - starts[episodes]
    new_starts = offsets_of(counts)
    # Items keep their order within an episode, so one number is added to the indices of all items of an episode.
    items = np.arange(new_starts[-1])
    items += np.repeat(starts[episodes] - new_starts[:-1], counts)
    return items, new_starts


def select_episodes(batch: Batch, episodes: Sequence[int] | Ints) -> Batch:
    """Return the chosen episodes, in the order of `episodes`."""
    indices = np.asarray(episodes, dtype=np.int64)
    chosen = _slice_if_successive(indices)
    # `records`, `bodies` and `contacts` are indices of items to keep; each `…starts` has the new offsets of the items.
    records, starts = _take_ranges(batch.starts, chosen)
    bodies, body_starts = _take_ranges(batch.body_starts, chosen)
    contacts, contact_starts = _take_ranges(batch.contacts.starts, records)
    shift: Ints | int
    contact_shift: Ints | int
    # `shift` has the number to add to body indices in each episode. `contact_shift` has this number for each contact.
    if isinstance(bodies, slice):  # in successive episodes, all indices of bodies shift by the same number
        shift = contact_shift = -int(bodies.start)
    else:
        shift = body_starts[:-1] - batch.body_starts[chosen]
        # Repeat each episode's shift for its records, and then each record's shift for its contacts.
        contact_shift = np.repeat(np.repeat(shift, np.diff(starts)), np.diff(contact_starts))
    return replace(
        batch,
        headers=tuple(batch.headers[e] for e in indices),
        extra=tuple(batch.extra[e] for e in indices),
        starts=starts,
        body_starts=body_starts,
        body_name=_take(batch.body_name, bodies),
        body_role=_take(batch.body_role, bodies),
        target=_shift_bodies(batch.target[chosen], shift),
        **batch_channels(
            lambda spec: _select_channel(batch.channel(spec.name), chosen),
            lambda spec: _select_poses(batch.poses(spec.name), chosen, shift),
        ),
        contacts=batch.contacts.take(contacts, contact_starts, batch.contacts.present[chosen], contact_shift),
    )


def _slice_if_successive(indices: Ints) -> Ints | slice:
    # If the indices are successive, return them as a slice, which is faster; else return them unchanged.
    is_successive = len(indices) and indices[0] >= 0 and (np.diff(indices) == 1).all()
    return slice(int(indices[0]), int(indices[-1]) + 1) if is_successive else indices


def _take_ranges(starts: Ints, chosen: Ints | slice) -> tuple[Ints | slice, Ints]:
    """Like `gather_ranges`, but return indices as a slice if the episodes are successive."""
    # `starts`: index of each episode's first item, then the number of items in all episodes.
    # `chosen`: indices of the episodes to keep.
    # Returns the indices of the items to keep, and the offset of each kept episode among these items.
    if not isinstance(chosen, slice):
        return gather_ranges(starts, chosen)
    chosen_starts = starts[chosen.start : chosen.stop + 1]
    return slice(int(chosen_starts[0]), int(chosen_starts[-1])), chosen_starts - chosen_starts[0]


def _take(values: NDArray[T], items: Ints | slice) -> NDArray[T]:
    # Returns the chosen items as a copy, so that the memory of the other items can be freed.
    return values[items].copy() if isinstance(items, slice) else values[items]


def _shift_bodies(body: Ints, shift: Ints | int) -> Ints:
    # Returns indices of bodies plus `shift`; -1, which means none, stays -1.
    return np.where(body >= 0, body + shift, -1)


def _select_channel(channel: Channel, episodes: Ints | slice) -> Channel:
    # Returns the channel's rows of the chosen episodes, in the order of `episodes`.
    items, starts = _take_ranges(channel.starts, episodes)
    return Channel(_take(channel.values, items), starts, _take(channel.width, episodes))


def _select_poses(poses: Poses, episodes: Ints | slice, shift: Ints | int) -> Poses:
    # Returns the chosen episodes' poses, in the order of `episodes`. `shift` is one number, or one per chosen episode.
    # `shift` is added to the indices of bodies, because the body table loses the bodies of other episodes.
    items, starts = _take_ranges(poses.body_starts, episodes)
    body = poses.body[items] + (shift if isinstance(shift, int) else np.repeat(shift, np.diff(starts)))
    return Poses(_select_channel(poses.channel, episodes), body, starts, poses.size)


def concatenate_batches(batches: Sequence[Batch]) -> Batch:
    """Join one or more batches into one batch, in order; a single batch is returned unchanged."""
    if len(batches) == 1:
        return batches[0]
    # All distinct names of bodies get a new common numbering. The body tables are joined.
    # In the joined table, a batch's indices of bodies rise by the number of bodies in all earlier batches.
    distinct_names = dict.fromkeys(name for batch in batches for name in batch.body_names)
    new_index = {name: index for index, name in enumerate(distinct_names)}
    body_shifts = offsets_of([len(batch.body_name) for batch in batches])[:-1].tolist()
    shifted_batches = list(zip(batches, body_shifts, strict=True))
    # For each batch: the new index of each of the batch's names.
    new_indices = [np.array([new_index[name] for name in batch.body_names], dtype=np.int64) for batch in batches]
    contacts_present = np.concatenate([batch.contacts.present for batch in batches])
    return Batch(
        headers=tuple(header for batch in batches for header in batch.headers),
        extra=tuple(extra for batch in batches for extra in batch.extra),
        starts=_join_starts([batch.starts for batch in batches]),
        body_starts=_join_starts([batch.body_starts for batch in batches]),
        body_names=tuple(new_index),
        # `body_name` holds indices into `body_names`.
        body_name=np.concatenate([new[batch.body_name] for new, batch in zip(new_indices, batches, strict=True)]),
        body_role=np.concatenate([batch.body_role for batch in batches]),
        target=np.concatenate([_shift_bodies(batch.target, shift) for batch, shift in shifted_batches]),
        **batch_channels(
            lambda spec: _concatenate_channels([batch.channel(spec.name) for batch in batches]),
            lambda spec: _concatenate_poses([batch.poses(spec.name) for batch in batches], body_shifts),
        ),
        contacts=Contacts.join([batch.contacts for batch in batches], contacts_present, body_shifts),
    )


def _join_starts(starts_of_parts: Sequence[Ints]) -> Ints:
    # Returns the offsets of all parts' items in one concatenated array.
    # A part with n episodes or records has n + 1 offsets.
    return offsets_of(np.concatenate([np.diff(starts) for starts in starts_of_parts]))


def _concatenate_channels(channels: Sequence[Channel]) -> Channel:
    # Returns one channel with the episodes of all the given channels, in order.
    values = np.concatenate([channel.values for channel in channels])
    width = np.concatenate([channel.width for channel in channels])
    return Channel(values, _join_starts([channel.starts for channel in channels]), width)


def _concatenate_poses(parts: Sequence[Poses], body_shifts: Sequence[int]) -> Poses:
    # Returns the poses of all parts' episodes, in order. Each part's shift is added to the part's indices of bodies.
    body = np.concatenate([poses.body + shift for poses, shift in zip(parts, body_shifts, strict=True)])
    channel = _concatenate_channels([poses.channel for poses in parts])
    return Poses(channel, body, _join_starts([poses.body_starts for poses in parts]), parts[0].size)


def elapsed_seconds(steps: Ints, dt_s: Floats, stamps_s: Stamps) -> Floats:
    """Return the seconds from each episode's record 0 to its record `steps`, [..., E]. Without time stamps, use dt."""
    # The last axis of `steps` has one record index per episode; `dt_s` [E] has the length of a control step.
    # For episodes with time stamps, `stamps_s` maps the episode's index to the times of its records since record 0 [s].
    seconds = np.asarray(steps * dt_s)
    for episode, times in stamps_s.items():
        seconds[..., episode] = times[steps[..., episode]]
    return seconds
