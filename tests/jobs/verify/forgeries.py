"""Forgeries of a record: each changes one thing that decides a verdict, and leaves a lawful record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from safevla_bench.trajectory.batch import Batch, Channel, Contacts, concatenate_batches, select_episodes
from safevla_bench.trajectory.header import BYSTANDER, ROBOT
from safevla_bench.trajectory.marks import FOREIGN_LOG

Forgery = Callable[[Batch], Batch]
"""Takes a batch of one and returns another."""


def header(**fields: object) -> Forgery:
    return lambda batch: replace(batch, headers=(msgspec.structs.replace(batch.headers[0], **fields),))


def rows(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Forgery:
    """Change the rows of a channel of numbers, [rows, width]."""

    def forge_rows(batch: Batch) -> Batch:
        channel = batch.channel(name)
        changed = replace(channel, values=change(channel.episode_rows(0).copy()).ravel())
        if name in batch.further:
            return replace(batch, further={**batch.further, name: changed})
        return replace(batch, **{name: changed})

    return forge_rows


def poses(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Forgery:
    """Change the poses of all bodies, [n, P, size]."""

    def forge_poses(batch: Batch) -> Batch:
        table = batch.poses(name)
        values = change(table.episode_poses(0)[1].copy()).ravel()
        return replace(batch, **{name: replace(table, channel=replace(table.channel, values=values))})

    return forge_poses


def contacts(change: Callable[[Contacts], Contacts]) -> Forgery:
    return lambda batch: replace(batch, contacts=change(batch.contacts))


def without_contacts(table: Contacts) -> Contacts:
    none = {
        name: getattr(table, name)[:0] for name in ("a", "b", "force_n", "impulse_ns", "net_force_n", "net_impulse_ns")
    }
    return replace(table, starts=np.zeros_like(table.starts), **none)


def without(name: str) -> Forgery:
    """Drop a channel of numbers, as if nobody had recorded it."""
    return lambda batch: replace(batch, **{name: Channel(np.empty(0), np.zeros(2, np.int64), np.array([-1]))})


def with_unknown_poses(batch: Batch) -> Batch:
    """Say that a tracker lost every body throughout."""
    table, count = batch.body_pos_m, len(batch.body_pos_m.body)
    size = int(batch.lengths[0]) * count
    channel = Channel(np.zeros(size), np.array([0, size]), np.array([count]))
    return replace(batch, pose_valid=replace(table, channel=channel, size=1))


def with_bystanders_as_robot(batch: Batch) -> Batch:
    return replace(batch, body_role=np.where(batch.body_role == BYSTANDER, ROBOT, batch.body_role).astype(np.int8))


scaled_net_forces = contacts(lambda table: replace(table, net_force_n=table.net_force_n * 0.5))
"""A forgery of a record that has net forces; the fake host's have none."""
scaled_net_impulses = contacts(lambda table: replace(table, net_impulse_ns=table.net_impulse_ns * 0.5))
"""The same of net impulses."""

FORGERIES: dict[str, Forgery] = {
    "frozen bodies": poses("body_pos_m", lambda values: np.repeat(values[:1], len(values), axis=0)),
    "upright bodies": poses("body_quat_wxyz", lambda values: np.roll(values, 1, axis=2)),
    "emptied contacts": contacts(without_contacts),
    "scaled forces": contacts(lambda table: replace(table, force_n=table.force_n * 0.5)),
    "another impulse": contacts(lambda table: replace(table, impulse_ns=table.impulse_ns + 1e-9)),
    "zeroed torques": rows("joint_torque_nm", np.zeros_like),
    "zeroed peaks of torque": rows("joint_torque_peak_nm", np.zeros_like),
    "removed grip": rows("gripper_contact", np.zeros_like),
    "nothing gripped": rows("gripped_body", lambda values: np.full_like(values, -1)),
    "shifted eef": rows("eef_pos_m", lambda values: values + [0, 0, 1e-12]),
    "turned eef": rows("eef_quat_wxyz", lambda values: np.roll(values, 1, axis=1)),
    "one number of the last state": rows("sim_state", lambda values: np.vstack([values[:-1], values[-1] + 1e-9])),
    "lost poses": with_unknown_poses,
    "an eef without orientation": without("eef_quat_wxyz"),
    "roles of bystanders": with_bystanders_as_robot,
    "no target": lambda batch: replace(header(target_object=None)(batch), target=np.array([-1])),
    "limits of torque": header(joint_torque_limit_nm=(1e6,) * 7),
    "another control step": header(dt=1.0),
    "flipped success": lambda batch: header(success=not batch.headers[0].success, outcome=None)(batch),
    "changed outcome": header(success=False, outcome="failure"),
    "changed horizon": header(horizon=7),
    "a log of a robot": lambda batch: replace(batch, extra=({"header": {FOREIGN_LOG: True}},)),
    "another start": header(init_state_index=2),
    "another name": header(episode_id="scripted:hasty/fake/task_0/ep_077"),
}
"""What is forged -> how. Contacts and grip must be in the record for theirs to change it."""


def forge(batch: Batch, episodes: Sequence[int], forgery: Forgery) -> Batch:
    """Return the batch with some of its episodes forged."""
    singles = [select_episodes(batch, [index]) for index in range(len(batch))]
    return concatenate_batches([forgery(single) if k in episodes else single for k, single in enumerate(singles)])
