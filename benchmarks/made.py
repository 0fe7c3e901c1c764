"""Episodes for benchmarks: synthetic ones of a given size, and a run folder of recorded ones.

The synthetic ones are drawn once from a seed and break a few limits. The recorded ones are those of the demo archive,
LIBERO's with scripted policies, again and again under other ids.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from safevla_bench import archive
from safevla_bench.jobs import demo
from safevla_bench.sources.runs.folder import EpisodeRow
from safevla_bench.sources.runs.parts import write_run
from safevla_bench.trajectory.batch import Batch, Channel, concatenate_batches, select_episodes
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import ContactList, EpisodeArrays

DT_S, BODIES, CONTACTS = 0.05, 20, 6
ROLES = {"link7": "robot", "hand": "robot", "bowl": "target", "drawer": "furniture"} | {
    f"body_{k}": "bystander" for k in range(BODIES - 4)
}


def episode(number: int, records: int, rng: np.random.Generator) -> Batch:
    """One episode with 20 tracked bodies and some contacts in every record."""
    drift = np.cumsum(rng.normal(0, 2e-5, (records, BODIES, 3)), axis=0)
    turn = np.tile([1.0, 0.0, 0.0, 0.0], (records, BODIES, 1)) + rng.normal(0, 1e-3, (records, BODIES, 4))
    count = records * CONTACTS
    contacts = ContactList(
        record=np.repeat(np.arange(records), CONTACTS),
        a=rng.integers(0, 2, count),
        b=rng.integers(2, BODIES, count),
        force_n=rng.exponential(15.0, count),
        impulse_ns=rng.exponential(0.5, count),
        net_force_n=np.full(count, np.nan),
    )
    header = Header(
        episode_id=f"ep_{number:07d}", benchmark="libero-goal", task_id="task_8", success=number % 3 > 0, dt=DT_S,
        target_object="bowl", policy="synthetic", embodiment="Panda",
    )  # fmt: skip
    return from_recording(
        EpisodeArrays(
            header=msgspec.structs.asdict(header),
            roles=ROLES,
            records=records,
            eef_pos_m=np.cumsum(rng.normal(0, 1e-3, (records, 3)), axis=0),
            eef_quat_wxyz=turn[:, 0],
            pos_bodies=range(BODIES),
            body_pos_m=rng.uniform(-1, 1, (BODIES, 3)) + drift,
            quat_bodies=range(BODIES),
            body_quat_wxyz=turn,
            contacts=contacts,
            joint_torque_nm=rng.normal(0, 3, (records, 7)),
            gripper_contact=np.arange(records) // 40 % 2 == 1,
            gripped_body=None,
            action=rng.normal(0, 1, (records - 1, 7)),
            sim_state=None,
        )
    )


def batch(episodes: int, records: int = 300, *, first: int = 0) -> Batch:
    """So many episodes, each different; few are drawn and the others have their numbers under other ids."""
    rng = np.random.default_rng(0)
    drawn = concatenate_batches([episode(k, records, rng) for k in range(min(episodes, 32))])
    many = select_episodes(drawn, np.arange(episodes) % len(drawn))
    names = [f"ep_{first + k:07d}" for k in range(episodes)]
    headers = (replaced(header, name) for header, name in zip(many.headers, names, strict=True))
    return replace(many, headers=tuple(headers))


def replaced(header: Header, name: str) -> Header:
    return Header(**{field: getattr(header, field) for field in Header.__struct_fields__} | {"episode_id": name})


def files(folder: Path, count: int, episodes: int, records: int = 300) -> list[Path]:
    """So many archives, each of so many episodes."""
    paths = [folder / f"part-{k:05d}.parquet" for k in range(count)]
    for number, path in enumerate(paths):
        archive.write_archive(path, batch(episodes, records, first=number * episodes))
    return paths


def run_folder(folder: Path, episodes: int) -> None:
    """Write a complete run of so many recorded episodes, as `safevla eval` leaves it before it is judged."""
    recorded = archive.open_archive(demo.unpack_archive(folder.with_name("demo")))
    chosen = [(k % len(recorded), f"{recorded.headers[k % len(recorded)].episode_id}/{k}") for k in range(episodes)]
    rows = [row(recorded.headers[k], name, int(recorded.lengths[k])) for k, name in chosen]
    folder.mkdir()
    write_run(folder, {"schema_version": 1, "host": "libero"}, rows, (alone(recorded, k, name) for k, name in chosen))


def alone(recorded: Batch, index: int, name: str) -> Batch:
    """One episode under another id, with the simulator's state, which the demo archive leaves out.

    That has as many numbers as LIBERO's for these bodies, thirteen for each and eighteen of the arm, and drifts.
    """
    one = select_episodes(recorded, [index])
    width = 1 + 18 + 13 * len(one.body_pos_m.body)
    steps = np.random.default_rng(index).normal(0, 1e-4, (int(one.lengths[0]), width))
    values = np.cumsum(steps, axis=0).ravel()
    state = Channel(values, np.array([0, len(values)]), np.array([width]))
    return replace(one, headers=(replaced(one.headers[0], name),), sim_state=state)


def row(header: Header, name: str, records: int) -> EpisodeRow:
    """The row of an episode in the run's table."""
    return EpisodeRow(
        episode_id=name, policy=header.policy, benchmark=header.benchmark, task_id=header.task_id, episode=0,
        init_state_index=header.init_state_index, env_seed=header.env_seed, seed=header.seed, policy_seed=None,
        horizon=header.horizon, outcome=header.outcome, steps=records - 1,
    )  # fmt: skip
