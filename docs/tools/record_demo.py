"""Record the demo's archive anew, or some of its episodes: `record_demo.py FILE [EPISODE...]`.

That needs the extra `libero` at the versions of constraints/libero.txt. The same versions give the same numbers, and so
the same bytes. A change of a scripted policy or of the recorder calls for a new recording.

OpenBLAS chooses its kernels by the processor, and their last digits differ; robosuite's controller multiplies by them.
For a recording they are fixed before NumPy is imported, so that every x86-64 machine of this decade records the same.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["OPENBLAS_CORETYPE"] = "Haswell"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from safevla_bench import archive, hosts, policies
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.rollout import plan
from safevla_bench.rollout.episode import EnvRunner, run_serially
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.trajectory.batch import Batch, Channel, concatenate_batches

HOST = "libero"
TASKS: Mapping[str, tuple[int, ...]] = MappingProxyType({"libero-object": (0, 2), "libero-spatial": (0, 4, 5)})
"""Suite -> indices of its tasks, chosen so that safe, unsafe and failed episodes all occur; no ranking of policies."""
EPISODES = 2
POLICIES = ("scripted:careful", "scripted:hasty")


def plan_episodes() -> tuple[PlannedEpisode, ...]:
    """Return the episodes of the archive, in its order; raises `HostError` if LIBERO is not installed."""
    suites = {suite: hosts.make_host(HOST).tasks(suite) for suite in TASKS}
    tasks = [suites[suite][index] for suite, indices in TASKS.items() for index in indices]
    return plan.plan_episodes(tasks, EPISODES, POLICIES, load_protocol())


def record_episodes(planned: Sequence[PlannedEpisode]) -> Iterator[Batch]:
    """Roll the episodes out and yield the records, each a batch of one without `sim_state`.

    Raises `HostError` if the simulator cannot be used, and `RunError` with the reason if an episode crashed.
    """
    policies_by_name = {name: policies.make_policy(name) for name in {episode.policy for episode in planned}}
    for outcome in run_serially(EnvRunner(hosts.make_host(HOST), policies_by_name), planned):
        if outcome.batch is None:
            raise RunError(f"{outcome.planned.episode_id} crashed: {outcome.reason}")
        yield _drop_sim_state(outcome.batch)


def _drop_sim_state(batch: Batch) -> Batch:
    count = len(batch)
    absent = Channel(np.empty(0), np.zeros(count + 1, dtype=np.int64), np.full(count, -1, dtype=np.int64))
    return replace(batch, sim_state=absent)


def record_archive(path: Path, episode_ids: Sequence[str] = ()) -> None:
    """Record all episodes, or those with these ids, and write the archive at `path`, whole or not at all.

    Raises `HostError` or `RunError` as `record_episodes` does, and `RunError` for an id that no episode has.
    """
    planned = plan_episodes()
    names = [episode.episode_id for episode in planned]
    for name in episode_ids:
        if name not in names:
            raise RunError(f"the demo has no episode {name!r}", remedy=f"It has {', '.join(names)}.")
    planned = tuple(episode for episode in planned if not episode_ids or episode.episode_id in episode_ids)
    archive.write_archive(path, concatenate_batches(list(record_episodes(planned))))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: record_demo.py FILE [EPISODE...]")
    try:
        record_archive(Path(sys.argv[1]), sys.argv[2:])
    except SafevlaError as error:
        sys.exit(f"error: {error}")
