"""Many episodes in memory: flat arrays and offsets.

Episodes differ in length, bodies and contacts. Three levels are addressed by offsets: episode e owns records
`starts[e]:starts[e+1]` and bodies `body_starts[e]:body_starts[e+1]`; record r owns its contacts.
One episode is a batch of one. Numbers are float64, poses in the world frame, metres, quaternions wxyz.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory.header import ROLES, Header

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Channel:
    """One family of numbers: each row of episode e holds `width[e]` numbers; -1 = the family was not recorded.

    Episode e owns `values[starts[e]:starts[e+1]]`, row after row.
    """

    values: Floats
    starts: Ints
    width: Ints

    @property
    def present(self) -> Bools:
        """Whether the episode recorded the family, [E]."""
        return self.width >= 0

    def episode(self, index: int) -> Floats:
        """The rows of one episode, [rows, width]; [0, 0] where there is nothing."""
        flat = self.values[self.starts[index] : self.starts[index + 1]]
        return flat.reshape(-1, self.width[index]) if self.width[index] > 0 else flat.reshape(0, 0)


@dataclass(frozen=True, slots=True)
class Poses:
    """Positions (`size` 3) or quaternions (`size` 4) of some bodies of each episode.

    Every record of episode e holds the bodies `body[body_starts[e]:body_starts[e+1]]`, indices into the body table.
    """

    channel: Channel
    body: Ints
    body_starts: Ints
    size: int

    @property
    def present(self) -> Bools:
        return self.channel.present

    def episode(self, index: int) -> tuple[Ints, Floats]:
        """The bodies of one episode, [P], and their rows, [n, P, size]."""
        body = self.body[self.body_starts[index] : self.body_starts[index + 1]]
        flat = self.channel.values[self.channel.starts[index] : self.channel.starts[index + 1]]
        return body, flat.reshape(-1, len(body), self.size) if len(body) else flat.reshape(0, 0, self.size)


@dataclass(frozen=True, slots=True)
class Contacts:
    """Contacts in record order; `a` and `b` index the body table, impulse_ns is NaN where not recorded."""

    present: Bools
    starts: Ints
    a: Ints
    b: Ints
    force_n: Floats
    impulse_ns: Floats


@dataclass(frozen=True, slots=True)
class Batch:
    """E episodes with N records and B bodies in all."""

    headers: tuple[Header, ...]
    starts: Ints
    body_starts: Ints
    body_names: tuple[str, ...]
    """The vocabulary; a body of the table is a code into it."""
    body_name: Ints
    body_role: NDArray[np.int8]
    target: Ints
    """Body index of each episode's target object, -1 = none, [E]."""
    eef_pos_m: Channel
    eef_quat_wxyz: Channel
    body_pos_m: Poses
    body_quat_wxyz: Poses
    contacts: Contacts
    joint_torque_nm: Channel
    gripper_contact: Bools
    gripper_present: Bools
    gripped: Ints
    """Body index of what the gripper holds, -1 = unknown or nothing, [N]."""
    gripped_present: Bools
    action: Channel
    """The action that led to a record; an episode of n records has n - 1 rows."""
    sim_state: Channel
    extra: tuple[Mapping[str, object], ...]
    """Host-specific fields as they came, an episode: {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}}."""

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def lengths(self) -> Ints:
        """Records of each episode, [E]."""
        return np.diff(self.starts)

    @property
    def dt_s(self) -> Floats:
        """Control step of each episode in seconds, [E]."""
        return np.array([header.dt for header in self.headers], dtype=np.float64)

    @property
    def success(self) -> Bools:
        """The host's native success, [E]."""
        return np.array([header.success for header in self.headers], dtype=np.bool_)

    @property
    def episode_of_record(self) -> Ints:
        """The episode each record belongs to, [N]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def name(self, body: int) -> str:
        """The name of a body of the table."""
        return self.body_names[int(self.body_name[body])]

    def bodies(self, index: int) -> dict[str, str]:
        """Body -> role of one episode, in table order."""
        table = range(self.body_starts[index], self.body_starts[index + 1])
        return {self.name(k): ROLES[self.body_role[k]] for k in table}


PRIVILEGED = "privileged"
"""Host-specific header field: true where the policy saw state that no real robot has."""
STANDIN = "standin_assets"
"""Host-specific header field: true where the host ran on placeholders in the place of its own assets."""


def marked_privileged(extra: Mapping[str, object]) -> dict[str, object]:
    """An episode's host-specific fields with the mark of a policy that saw privileged state."""
    return _marked(extra, PRIVILEGED)


def privileged_policies(batch: Batch) -> tuple[str | None, ...]:
    """The policies whose records bear the mark, in order of first appearance."""
    return tuple(dict.fromkeys(header.policy for header in bearing(batch, PRIVILEGED)))


def marked_standin(extra: Mapping[str, object]) -> dict[str, object]:
    """An episode's host-specific fields with the mark of a host that ran on stand-ins for its assets."""
    return _marked(extra, STANDIN)


def standin_benchmarks(batch: Batch) -> tuple[str, ...]:
    """The benchmarks of which records bear that mark, in order of first appearance."""
    return tuple(dict.fromkeys(header.benchmark for header in bearing(batch, STANDIN)))


def _marked(extra: Mapping[str, object], mark: str) -> dict[str, object]:
    header = extra.get("header", {})
    assert isinstance(header, Mapping)
    return {**extra, "header": {**header, mark: True}}


def bearing(batch: Batch, mark: str) -> list[Header]:
    """Headers of the episodes that bear a mark, `PRIVILEGED` or `STANDIN`."""
    return [header for header, bears in zip(batch.headers, marks(batch, mark), strict=True) if bears]


def marks(batch: Batch, mark: str) -> tuple[bool, ...]:
    """Whether each episode bears a mark, `PRIVILEGED` or `STANDIN`; [E]."""
    fields = (extra.get("header") for extra in batch.extra)
    return tuple(isinstance(held, Mapping) and held.get(mark) is True for held in fields)


def hollow(headers: Sequence[Header], lengths: Ints) -> Batch:
    """Episodes of which no more is known than how many records each has, [E], and what it says once."""
    episodes, starts = len(headers), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    none, records = np.zeros(episodes + 1, dtype=np.int64), int(starts[-1])
    absent = Channel(np.empty(0), none, np.full(episodes, -1))
    nowhere, nothing, false = np.empty(0, dtype=np.int64), np.empty(0), np.zeros(episodes, dtype=np.bool_)
    return Batch(
        headers=tuple(headers),
        starts=starts,
        body_starts=none,
        body_names=(),
        body_name=nowhere,
        body_role=np.empty(0, dtype=np.int8),
        target=np.full(episodes, -1),
        eef_pos_m=absent,
        eef_quat_wxyz=absent,
        body_pos_m=Poses(absent, nowhere, none, 3),
        body_quat_wxyz=Poses(absent, nowhere, none, 4),
        contacts=Contacts(false, np.zeros(records + 1, dtype=np.int64), nowhere, nowhere, nothing, nothing),
        joint_torque_nm=absent,
        gripper_contact=np.zeros(records, dtype=np.bool_),
        gripper_present=false,
        gripped=np.full(records, -1),
        gripped_present=false,
        action=absent,
        sim_state=absent,
        extra=({},) * episodes,
    )


def gather(starts: Ints, episodes: Ints) -> tuple[Ints, Ints]:
    """Indices of the flat items that the chosen owners own, in their order, and the new offsets."""
    counts = starts[episodes + 1] - starts[episodes]
    new = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    items = np.arange(new[-1])
    items += np.repeat(starts[episodes] - new[:-1], counts)
    return items, new


def select(batch: Batch, episodes: Sequence[int] | Ints) -> Batch:
    """The chosen episodes, in the order given."""
    chosen = np.asarray(episodes, dtype=np.int64)
    records, starts = gather(batch.starts, chosen)
    bodies, body_starts = gather(batch.body_starts, chosen)
    shift = body_starts[:-1] - batch.body_starts[chosen]
    contacts, contact_starts = gather(batch.contacts.starts, records)
    contact_shift = np.repeat(np.repeat(shift, np.diff(starts)), np.diff(contact_starts))
    return replace(
        batch,
        headers=tuple(batch.headers[e] for e in chosen),
        extra=tuple(batch.extra[e] for e in chosen),
        starts=starts,
        body_starts=body_starts,
        body_name=batch.body_name[bodies],
        body_role=batch.body_role[bodies],
        target=_moved(batch.target[chosen], shift),
        eef_pos_m=_select_channel(batch.eef_pos_m, chosen),
        eef_quat_wxyz=_select_channel(batch.eef_quat_wxyz, chosen),
        body_pos_m=_select_poses(batch.body_pos_m, chosen, shift),
        body_quat_wxyz=_select_poses(batch.body_quat_wxyz, chosen, shift),
        joint_torque_nm=_select_channel(batch.joint_torque_nm, chosen),
        action=_select_channel(batch.action, chosen),
        sim_state=_select_channel(batch.sim_state, chosen),
        contacts=Contacts(
            present=batch.contacts.present[chosen],
            starts=contact_starts,
            a=batch.contacts.a[contacts] + contact_shift,
            b=batch.contacts.b[contacts] + contact_shift,
            force_n=batch.contacts.force_n[contacts],
            impulse_ns=batch.contacts.impulse_ns[contacts],
        ),
        gripper_contact=batch.gripper_contact[records],
        gripper_present=batch.gripper_present[chosen],
        gripped=_moved(batch.gripped[records], np.repeat(shift, np.diff(starts))),
        gripped_present=batch.gripped_present[chosen],
    )


def _moved(body: Ints, shift: Ints | int) -> Ints:
    """Body indices after the table moved; -1 stays."""
    return np.where(body >= 0, body + shift, -1)


def _select_channel(channel: Channel, episodes: Ints) -> Channel:
    items, starts = gather(channel.starts, episodes)
    return Channel(channel.values[items], starts, channel.width[episodes])


def _select_poses(poses: Poses, episodes: Ints, shift: Ints) -> Poses:
    items, starts = gather(poses.body_starts, episodes)
    body = poses.body[items] + np.repeat(shift, np.diff(starts))
    return Poses(_select_channel(poses.channel, episodes), body, starts, poses.size)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """All episodes of at least one batch as one batch, in order."""
    if len(batches) == 1:
        return batches[0]
    code = {name: k for k, name in enumerate(dict.fromkeys(name for b in batches for name in b.body_names))}
    base = [0, *np.cumsum([len(b.body_name) for b in batches]).tolist()]

    def joined(pick: Callable[[Batch], NDArray[T]]) -> NDArray[T]:
        return np.concatenate([pick(b) for b in batches])

    def bodies(pick: Callable[[Batch], Ints]) -> Ints:
        return np.concatenate([_moved(pick(b), k) for b, k in zip(batches, base, strict=False)])

    def vocabulary(b: Batch) -> Ints:
        return np.array([code[name] for name in b.body_names], dtype=np.int64)[b.body_name]

    return Batch(
        headers=tuple(header for b in batches for header in b.headers),
        extra=tuple(extra for b in batches for extra in b.extra),
        starts=_join([b.starts for b in batches]),
        body_starts=_join([b.body_starts for b in batches]),
        body_names=tuple(code),
        body_name=joined(vocabulary),
        body_role=joined(lambda b: b.body_role),
        target=bodies(lambda b: b.target),
        eef_pos_m=_concatenate_channels([b.eef_pos_m for b in batches]),
        eef_quat_wxyz=_concatenate_channels([b.eef_quat_wxyz for b in batches]),
        body_pos_m=_concatenate_poses([b.body_pos_m for b in batches], base),
        body_quat_wxyz=_concatenate_poses([b.body_quat_wxyz for b in batches], base),
        joint_torque_nm=_concatenate_channels([b.joint_torque_nm for b in batches]),
        action=_concatenate_channels([b.action for b in batches]),
        sim_state=_concatenate_channels([b.sim_state for b in batches]),
        contacts=Contacts(
            present=joined(lambda b: b.contacts.present),
            starts=_join([b.contacts.starts for b in batches]),
            a=bodies(lambda b: b.contacts.a),
            b=bodies(lambda b: b.contacts.b),
            force_n=joined(lambda b: b.contacts.force_n),
            impulse_ns=joined(lambda b: b.contacts.impulse_ns),
        ),
        gripper_contact=joined(lambda b: b.gripper_contact),
        gripper_present=joined(lambda b: b.gripper_present),
        gripped=bodies(lambda b: b.gripped),
        gripped_present=joined(lambda b: b.gripped_present),
    )


def _join(starts: Sequence[Ints]) -> Ints:
    """The offsets of the concatenation."""
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(s) for s in starts]))]).astype(np.int64)


def _concatenate_channels(channels: Sequence[Channel]) -> Channel:
    return Channel(
        np.concatenate([c.values for c in channels]),
        _join([c.starts for c in channels]),
        np.concatenate([c.width for c in channels]),
    )


def _concatenate_poses(poses: Sequence[Poses], base: Sequence[int]) -> Poses:
    body = np.concatenate([p.body + k for p, k in zip(poses, base, strict=False)])
    channel = _concatenate_channels([p.channel for p in poses])
    return Poses(channel, body, _join([p.body_starts for p in poses]), poses[0].size)
