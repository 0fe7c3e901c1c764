"""All planned episodes, one after another; an environment is made once for the episodes of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

from safevla_bench.interface import Host, HostEnv, Policy
from safevla_bench.rollout.episode import Outcome, run_episode
from safevla_bench.rollout.plan import Planned


class Observer(Protocol):
    """Watches a run; it changes nothing."""

    def started(self, episodes: Sequence[Planned]) -> None: ...

    def stepped(self, planned: Planned, steps: int) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


def run_all(
    host: Host, episodes: Sequence[Planned], policies: Mapping[str, Policy], observer: Observer | None = None
) -> Iterator[Outcome]:
    """Run the episodes in order and yield each outcome as it ends. A crash costs the environment, not the run."""
    if observer:
        observer.started(episodes)
    for (name, task), group in groupby(episodes, key=lambda planned: (planned.policy, planned.task)):
        policy, env = policies[name], None
        try:
            for planned in group:
                env = env or host.make(task, policy.wants)
                outcome = _one(env, policy, planned, observer)
                if outcome.outcome == "crashed":
                    _discard(env)
                    env = None
                yield outcome
        finally:
            if env:
                env.close()


def _one(env: HostEnv, policy: Policy, planned: Planned, observer: Observer | None) -> Outcome:
    if observer is None:
        return run_episode(env, policy, planned)
    outcome = run_episode(env, policy, planned, on_step=lambda steps: observer.stepped(planned, steps))
    observer.finished(outcome)
    return outcome


def _discard(env: HostEnv) -> None:
    """Close an environment that raised; it may raise again, and what matters is already recorded."""
    try:
        env.close()
    except Exception:
        return
