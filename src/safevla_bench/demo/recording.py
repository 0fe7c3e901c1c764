"""Recording of the shipped archive; needs the extra `libero` at the versions of constraints/libero.txt.

    python -m safevla_bench.demo src/safevla_bench/demo/rollouts.parquet

Each episode is rolled out by a careful and by a hasty built-in policy. The same versions give the same numbers, and so
the same bytes. A change of a scripted policy or of the recorder calls for a new recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from safevla_bench import archive, hosts, policies, rollout
from safevla_bench.errors import RunError
from safevla_bench.trajectory import Batch, Channel, concatenate_batches

HOST = "libero"
TASKS: Mapping[str, tuple[int, ...]] = MappingProxyType({"libero-object": (0, 2), "libero-spatial": (0, 4, 5)})
"""Suite -> indices of its tasks, chosen so that safe, unsafe and failed episodes all occur; no ranking of policies."""
EPISODES = 2
POLICIES = ("scripted:careful", "scripted:hasty")

__all__ = ["EPISODES", "HOST", "POLICIES", "TASKS", "plan_episodes", "record_archive", "record_episodes"]


def plan_episodes() -> tuple[rollout.PlannedEpisode, ...]:
    """Return the episodes of the archive, in its order; raises `HostError` if LIBERO is not installed."""
    suites = {suite: hosts.make_host(HOST).tasks(suite) for suite in TASKS}
    tasks = [suites[suite][index] for suite, indices in TASKS.items() for index in indices]
    return rollout.plan_episodes(tasks, EPISODES, POLICIES, rollout.load_protocol())


def record_episodes(planned: Sequence[rollout.PlannedEpisode]) -> Iterator[Batch]:
    """Roll the episodes out and yield the records, each a batch of one without `sim_state`.

    Raises `HostError` if the simulator cannot be used, and `RunError` with the reason if an episode crashed.
    """
    policies_by_name = {name: policies.make_policy(name) for name in {episode.policy for episode in planned}}
    for outcome in rollout.run_serially(hosts.make_host(HOST), planned, policies_by_name):
        if outcome.batch is None:
            raise RunError(f"{outcome.planned.episode_id} crashed: {outcome.reason}")
        yield _drop_sim_state(outcome.batch)


def _drop_sim_state(batch: Batch) -> Batch:
    """Return the batch without `sim_state`, which takes more than half of its bytes."""
    count = len(batch)
    absent = Channel(np.empty(0), np.zeros(count + 1, dtype=np.int64), np.full(count, -1, dtype=np.int64))
    return replace(batch, sim_state=absent)


def record_archive(path: Path, episode_ids: Sequence[str] = ()) -> None:
    """Record all episodes, or those with these ids, and write the archive at `path`, whole or not at all.

    Raises `HostError` or `RunError` as `record_episodes` does.
    """
    planned = [episode for episode in plan_episodes() if not episode_ids or episode.episode_id in episode_ids]
    archive.write_archive(path, concatenate_batches(list(record_episodes(planned))))
