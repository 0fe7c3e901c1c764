"""How the shipped archive is made; needs the extra `libero` at the versions of constraints/libero.txt.

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
from safevla_bench.trajectory import Batch, Channel, concatenate

HOST = "libero"
TASKS: Mapping[str, tuple[int, ...]] = MappingProxyType({"libero-object": (0, 2), "libero-spatial": (0, 4, 5)})
"""Suite -> indices of its tasks, chosen so that safe, unsafe and failed episodes all occur; they rank no policy."""
EPISODES = 2
POLICIES = ("scripted:careful", "scripted:hasty")

__all__ = ["EPISODES", "HOST", "POLICIES", "TASKS", "episodes", "make", "record"]


def episodes() -> tuple[rollout.Planned, ...]:
    """The episodes of the archive, in its order; raises `HostError` where LIBERO is not installed."""
    suites = {suite: hosts.host(HOST).tasks(suite) for suite in TASKS}
    tasks = [suites[suite][index] for suite, indices in TASKS.items() for index in indices]
    return rollout.plan(tasks, EPISODES, POLICIES, rollout.protocol())


def record(planned: Sequence[rollout.Planned]) -> Iterator[Batch]:
    """Roll the episodes out and yield the records, each a batch of one without `sim_state`.

    Raises `HostError` where the simulator cannot be used, `RunError` with the reason where an episode crashed.
    """
    made = {name: policies.policy(name) for name in {one.policy for one in planned}}
    for outcome in rollout.run_all(hosts.host(HOST), planned, made):
        if outcome.batch is None:
            raise RunError(f"{outcome.planned.episode_id} crashed: {outcome.reason}")
        yield _without_state(outcome.batch)


def _without_state(batch: Batch) -> Batch:
    """The batch as if `sim_state`, more than half of its bytes, had not been recorded."""
    count = len(batch)
    absent = Channel(np.empty(0), np.zeros(count + 1, dtype=np.int64), np.full(count, -1, dtype=np.int64))
    return replace(batch, sim_state=absent)


def make(path: Path, only: Sequence[str] = ()) -> None:
    """Record all episodes, or those of these ids, and write the archive, whole or not at all."""
    planned = [one for one in episodes() if not only or one.episode_id in only]
    archive.write(path, concatenate(list(record(planned))))
