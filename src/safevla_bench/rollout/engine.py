"""The serial engine: all planned episodes in this process. The others are `scheduler` and `ray`.

An engine yields each episode as it ends, in any order; `RunWriter` puts them into the order of the plan, so that no
engine can change a byte of a complete run.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from safevla_bench.archive import npz
from safevla_bench.errors import HostError, SafevlaError, ServerLostError, ServerUnreachableError
from safevla_bench.interface.environment import Coordinated, Host, HostEnv
from safevla_bench.interface.policy import Policy, RemotePolicy
from safevla_bench.interface.task import Task
from safevla_bench.judging.monitor import Monitor
from safevla_bench.policies.servers.endpoint import Greeting
from safevla_bench.rollout.episode import EpisodeOutcome, OnStep, run_episode
from safevla_bench.rollout.plan import PlannedEpisode, follow_server
from safevla_bench.sources.runs.folder import Latency

_LOG = logging.getLogger(__name__)
SERVER_RETRIES = 2
"""How often an episode is begun again, on a new connection, after its policy server was lost."""


class Observer(Protocol):
    """Watches a run and changes nothing. Workers and actors report every twentieth step."""

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Learn which episodes are to be run; it is called once, first."""
        ...

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Learn how many control steps of an episode are done."""
        ...

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Learn how an episode ended, with its record if it has one."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """An outcome as it travels between processes and into a file: its record is the bytes of an `.npz` file."""

    planned: PlannedEpisode
    outcome: str
    steps: int
    record: bytes | None
    reason: str | None = None
    latency: Latency | None = None
    greeting: Greeting | None = None
    wall_s: float | None = None

    @classmethod
    def from_outcome(cls, outcome: EpisodeOutcome) -> FinishedEpisode:
        """Return the outcome with its record as `.npz` bytes; the record is None where there is none."""
        record = None if outcome.batch is None else npz.encode_npz(outcome.batch)
        facts = (outcome.reason, outcome.latency, outcome.greeting, outcome.wall_s)
        return cls(outcome.planned, outcome.outcome, outcome.steps, record, *facts)

    def decode(self) -> EpisodeOutcome:
        """Return the outcome with its record decoded from the bytes; its batch is None where there is no record."""
        batch = None if self.record is None else npz.decode_npz(self.record)
        facts = (self.reason, self.latency, self.greeting, self.wall_s)
        return EpisodeOutcome(self.planned, self.outcome, self.steps, batch, *facts)


class EnvRunner:
    """The one environment of a process.

    It is kept for the episodes of a policy and task, and made anew for others and after a crash.
    """

    def __init__(self, host: Host, policies: Mapping[str, Policy], watch: Monitor | None = None) -> None:
        self._host, self._policies, self._watch = host, policies, watch
        self._env: HostEnv | None = None
        self._made_for: tuple[str, Task] | None = None

    def run_planned(self, planned: PlannedEpisode, on_step: OnStep | None = None) -> EpisodeOutcome:
        """Run one episode and return its outcome with the seconds that it took; exceptions make the outcome `crashed`.

        Raises `SafevlaError` where the host cannot be used, or the policy's server cannot be reached in the first
        place.
        """
        began_s, policy = time.perf_counter(), self._policies[planned.policy]
        try:
            env = self._prepare_env(planned, policy)
        except (KeyboardInterrupt, SafevlaError):
            raise
        except BaseException:  # a simulator can raise anything; the run goes on without this episode
            outcome = EpisodeOutcome(planned, "crashed", 0, None, traceback.format_exc())
        else:
            outcome = _run_with_retries(env, policy, follow_server(planned, policy), on_step, self._watch)
            if outcome.outcome == "crashed":
                self.close()
        return replace(outcome, wall_s=time.perf_counter() - began_s)

    def close(self) -> None:
        """Close the environment, if there is one; the next episode makes a new one. What it raises is logged alone."""
        env, self._env = self._env, None
        if env is None:
            return
        try:
            env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # its episodes are recorded, and what comes next has an environment of its own
            _LOG.warning("the environment of %s could not be closed: %s", env.task.task_id, error)

    def _prepare_env(self, planned: PlannedEpisode, policy: Policy) -> HostEnv:
        """Return the present environment if it is of the same policy and task, else a new one."""
        if self._made_for != (planned.policy, planned.task):
            self.close()
        if self._env is None:
            if isinstance(policy, RemotePolicy):
                policy.connect(planned.task)  # before the simulator, which takes longer to make than this to fail
            env = self._host.make(planned.task, policy.wants)
            _require_parts(env, planned.task)
            self._env = env  # from here on it is closed, whatever else is wrong
            _require_still(env, planned.task)
            self._made_for = planned.policy, planned.task
        recorded = planned.start.recorded
        if recorded and recorded.state is not None and not isinstance(self._env, Coordinated):
            problem = f"the host of {planned.task.benchmark} cannot start from a recorded state"
            raise HostError(problem, remedy="Replay records that name their initial state and seed.")
        return self._env


_PARTS = ("task", "dt_s", "action_low", "action_high", "reset", "step", "recorded", "close")


def _require_parts(env: HostEnv, task: Task) -> None:
    lacking = [part for part in _PARTS if not hasattr(env, part)]
    if lacking:
        problem = f"the environment of {task.benchmark} is a {type(env).__name__} without {lacking[0]!r}"
        raise HostError(problem, remedy=f"Mend the host: an environment has {', '.join(_PARTS)}.")


def _require_still(env: HostEnv, task: Task) -> None:
    if len(task.still) != len(env.action_low):
        counts = f"{len(task.still)} numbers, an action {len(env.action_low)}"
        problem = f"{task.benchmark} {task.task_id}: `Task.still` has {counts}"
        raise HostError(problem, remedy="Mend the host: it is the action, in its units, that moves nothing.")


def _run_with_retries(
    env: HostEnv, policy: Policy, planned: PlannedEpisode, on_step: OnStep | None, watch: Monitor | None
) -> EpisodeOutcome:
    """Run an episode, again up to `SERVER_RETRIES` times if its policy server is lost, and return its outcome."""
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
    return EpisodeOutcome(planned, "crashed", reached, None, reason)


def run_serially(
    host: Host,
    episodes: Sequence[PlannedEpisode],
    policies: Mapping[str, Policy],
    observer: Observer | None = None,
    watch: Monitor | None = None,
) -> Iterator[EpisodeOutcome]:
    """Run the episodes in order and yield each outcome as it ends. A crash costs the environment, not the run.

    Raises as `EnvRunner.run_planned` does; the environment is closed at the end, however the run ends.
    """
    if observer:
        observer.started(episodes)
    runner = EnvRunner(host, policies, watch)
    try:
        for planned in episodes:
            outcome = runner.run_planned(planned, partial(observer.stepped, planned) if observer else None)
            if observer:
                observer.finished(outcome)
            yield outcome
    finally:
        runner.close()
