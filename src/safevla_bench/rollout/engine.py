"""All planned episodes in this process; what every other engine is measured against.

An engine takes the episodes that are to be run and yields each as it ends, in any order; `RunWriter` puts them into the
order of the plan, so that no engine can change a byte of a complete run. `workers` and `actors` are the others.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from safevla_bench.archive import jsonl
from safevla_bench.errors import HostError, SafevlaError, ServerLostError, ServerUnreachableError
from safevla_bench.interface import Coordinated, Host, HostEnv, Policy, Task
from safevla_bench.monitor import Monitor
from safevla_bench.policies.servers.metadata import Greeting
from safevla_bench.rollout.episode import OnStep, Outcome, run_episode
from safevla_bench.rollout.plan import Planned
from safevla_bench.runs import Latency

_FRAME = ".jsonl.zst"
SERVER_RETRIES = 2
"""How often an episode is begun again, on a new connection, after its policy server was lost."""


class Observer(Protocol):
    """Watches a run; it changes nothing. Workers and actors tell of every twentieth step."""

    def started(self, episodes: Sequence[Planned]) -> None: ...

    def stepped(self, planned: Planned, steps: int) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """An outcome as it travels between processes and into a file: its record is a compressed frame."""

    planned: Planned
    outcome: str
    steps: int
    frame: bytes | None
    reason: str | None = None
    latency: Latency | None = None
    greeting: Greeting | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Finished:
        frame = None if outcome.batch is None else jsonl.member(outcome.batch, 0, _FRAME)
        told = (outcome.reason, outcome.latency, outcome.greeting)
        return cls(outcome.planned, outcome.outcome, outcome.steps, frame, *told)

    def opened(self) -> Outcome:
        """The outcome with its record read again."""
        batch = None if self.frame is None else jsonl.from_member(self.frame, _FRAME)
        return Outcome(self.planned, self.outcome, self.steps, batch, self.reason, self.latency, self.greeting)


class Stage:
    """The one environment of a process: kept for the episodes of a policy and task, made anew for others and after a
    crash.
    """

    def __init__(self, host: Host, policies: Mapping[str, Policy], watch: Monitor | None = None) -> None:
        self._host, self._policies, self._watch = host, policies, watch
        self._env: HostEnv | None = None
        self._made_for: tuple[str, Task] | None = None

    def play(self, planned: Planned, on_step: OnStep | None = None) -> Outcome:
        """Run one episode; raises `SafevlaError` where the host cannot be used or the policy's server is not there to
        begin with. All else is the outcome `crashed`.
        """
        policy = self._policies[planned.policy]
        try:
            env = self._environment(planned, policy)
        except SafevlaError:
            raise
        except Exception:  # a simulator can raise anything; the run goes on without this episode
            return Outcome(planned, "crashed", 0, None, traceback.format_exc())
        outcome = _persistently(env, policy, planned, on_step, self._watch)
        if outcome.outcome == "crashed":
            self._discard()
        return outcome

    def close(self) -> None:
        """Close the environment; its place can be taken by another."""
        env, self._env = self._env, None
        if env:
            env.close()

    def _environment(self, planned: Planned, policy: Policy) -> HostEnv:
        if self._made_for != (planned.policy, planned.task):
            self.close()
        if self._env is None:
            self._env = self._host.make(planned.task, policy.wants)
            self._made_for = (planned.policy, planned.task)
        _require_start(self._env, planned)
        return self._env

    def _discard(self) -> None:
        """Close an environment that raised; it may raise again, and what matters is already recorded."""
        try:
            self.close()
        except Exception:
            return


def _require_start(env: HostEnv, planned: Planned) -> None:
    """Raise `HostError` where the episode starts from a recorded state and the environment knows nothing of such."""
    recorded = planned.start.recorded
    if recorded and recorded.state is not None and not isinstance(env, Coordinated):
        problem = f"the host of {planned.task.benchmark} cannot start from a recorded state"
        raise HostError(problem, remedy="Replay records that name their initial state and seed.")


def _persistently(
    env: HostEnv, policy: Policy, planned: Planned, on_step: OnStep | None, watch: Monitor | None
) -> Outcome:
    """Run an episode, and again where its policy server goes away under it."""
    reached = 0

    def count(steps: int) -> None:
        nonlocal reached
        reached = steps
        if on_step:
            on_step(steps)

    for attempt in range(1 + SERVER_RETRIES):
        try:
            return run_episode(env, policy, planned, count, watch)
        except ServerLostError as error:
            if attempt == 0 and isinstance(error, ServerUnreachableError):
                raise  # nothing was lost, and no other episode would fare better
            last = error
    reason = f"the policy server was lost in each of {1 + SERVER_RETRIES} attempts, at last: {last}"
    return Outcome(planned, "crashed", reached, None, reason)


def run_all(
    host: Host,
    episodes: Sequence[Planned],
    policies: Mapping[str, Policy],
    observer: Observer | None = None,
    watch: Monitor | None = None,
) -> Iterator[Outcome]:
    """Run the episodes in order and yield each outcome as it ends. A crash costs the environment, not the run."""
    if observer:
        observer.started(episodes)
    stage = Stage(host, policies, watch)
    try:
        for planned in episodes:
            yield _one(stage, planned, observer)
    finally:
        stage.close()


def _one(stage: Stage, planned: Planned, observer: Observer | None) -> Outcome:
    if observer is None:
        return stage.play(planned)
    outcome = stage.play(planned, on_step=lambda steps: observer.stepped(planned, steps))
    observer.finished(outcome)
    return outcome
