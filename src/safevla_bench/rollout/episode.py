"""The loop that runs an episode: reset, then act and step until success, the horizon, a fault or a violation.

This module also has the serial engine, which runs all planned episodes in this process; the other engines are
`scheduler` and `ray`. An engine yields each episode when it ends, in any order. `RunFolderWriter` sorts the episodes
by the plan, so the choice of engine does not change a byte of a complete run.
"""

from __future__ import annotations

import os
import platform
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Protocol

import msgspec
import numpy as np

from safevla_bench import errors, hosts, plugins, version
from safevla_bench.archive import npz
from safevla_bench.interface import policy as interface
from safevla_bench.interface.environment import Host, HostEnv
from safevla_bench.interface.task import Task
from safevla_bench.judging.monitor import EpisodeStanding, Monitor
from safevla_bench.policies import coupling, servers
from safevla_bench.policies.servers.endpoint import Greeting, sanitize_greeting
from safevla_bench.rollout.plan import PlannedEpisode, apply_server_seed
from safevla_bench.sensitivity.firmness import are_off_path, tracked_path
from safevla_bench.sources.runs.folder import Latency
from safevla_bench.text import get_logger
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import CHOSEN, CLIPPED, CLIPPED_NUMBERS, PRIVILEGED, STOPPED_ON_VIOLATION
from safevla_bench.trajectory.single_episode import add_rows
from safevla_recorder.channels import CHUNK_STEP

OnStep = Callable[[int], None]
StepCallback = Callable[[PlannedEpisode, int], None]  # receives the number of control steps done in an episode
SERVER_RETRIES = 2  # number of restarts of an episode, on a new connection, after the policy server was lost
_PATH_CHECK_STEPS = 5  # steps between two checks of a replay's path; a check takes 1/8 of a LIBERO step's time
NO_COUPLERS: Mapping[str, coupling.Coupler] = MappingProxyType({})
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class EpisodeOutcome:
    """The result of an episode. `record` holds the bytes of the `.npz` file; None if there is no record."""

    planned: PlannedEpisode
    outcome: str
    steps: int
    record: bytes | None
    reason: str | None = None
    latency: Latency | None = None
    greeting: Greeting | None = None  # the self-description of the policy or its server
    wall_s: float | None = None  # wall time, including making the environment; None if the worker died
    is_policy_failure: bool = False  # whether the crash is an exception that the policy raised
    code: str | None = None  # identifies the code that was run, see `hosts.describe_code`; None if the worker died
    ran_on: str | None = None  # the node and the process that ran the episode

    @cached_property
    def batch(self) -> Batch | None:
        """The record as a batch of one episode, decoded at first use; None without a record."""
        # `record` has the bytes of the episode's `.npz` file.
        return None if self.record is None else npz.decode_npz(self.record)


def run_episode(
    env: HostEnv,
    policy: interface.Policy,
    planned: PlannedEpisode,
    on_step: OnStep | None = None,
    watch: Monitor | None = None,
) -> EpisodeOutcome:
    """Run one episode. If the simulator or the policy raises, the outcome is `crashed`, with the reason. After an
    invalid action, the outcome is `invalid_action`, which is a failure with a record. If `watch` is given, the first
    violation of a scored specification ends the episode as `stopped`. Raises `ServerLostError` if the episode may be
    restarted, `ServerRefusedError` if the policy's server cannot be used at all, and `KeyboardInterrupt`.
    """
    policy_calls = _PolicyCalls(env, policy)
    steps, violation = 0, None  # `violation` names the violated clauses; None = no violation
    try:  # exceptions leave no record, except `InvalidActionError`, which the inner block handles
        try:
            observation = env.reset(planned.start)
            if isinstance(policy, interface.CuedPolicy):  # the policy must know which recorded episode it plays
                policy.cue(planned.start)
            _seed_generators(planned.policy_seed)
            policy_calls.is_asking = True  # an exception of `policy.reset` is the policy's failure
            policy.reset(planned.task, planned.policy_seed)
            policy_calls.is_asking = False
            # Record 0 may already violate a clause; then the episode has no step.
            violation = _violation_reason(watch.start(env.latest())) if watch else None
            outcome = _outcome_at_horizon(planned)
            while steps < planned.horizon and not violation:
                action = policy_calls.next_action(observation)
                if isinstance(policy, interface.SelectivePolicy):  # no policy sees the observation after the last step
                    env.render_next(policy.looks_next and steps + 1 < planned.horizon)
                observation, success = env.step(action)
                steps += 1
                if on_step:
                    on_step(steps)
                outcome = "success" if success else _outcome_at_horizon(planned)
                # A replay ends when it has left the recorded path, because later steps are meaningless.
                if (success and planned.stop_at_success) or _leaves_path(env, planned, steps):
                    break
                if watch and steps < planned.horizon:  # a violation at the last step cannot shorten the episode
                    violation = _violation_reason(watch.observe(env.latest()))
            outcome = "stopped" if violation else outcome
            reason = violation
        except errors.InvalidActionError as error:
            outcome, reason = "invalid_action", f"step {steps}: {error}"
        batch = policy_calls.add_chunk_steps(env.recorded())
        if isinstance(policy, interface.ReplayPolicy):
            # Add to the record how far the replay is from the recording.
            # `coordinates` says which entries of the simulator's state are positions and rotations.
            batch = policy.add_divergence(batch, env.coordinates(), observation)
    except (KeyboardInterrupt, errors.ServerLostError, errors.ServerRefusedError):
        raise
    except BaseException as error:  # policies and simulators can raise anything; the run continues
        # The message of a `PolicyError` explains the problem better than a traceback.
        reason = str(error) if isinstance(error, errors.PolicyError) else traceback.format_exc()
        latency, greeting = policy_calls.latency(), policy_calls.greeting()
        crash = EpisodeOutcome(planned, "crashed", steps, None, reason, latency, greeting)
        return replace(crash, is_policy_failure=policy_calls.is_asking)
    # Marks in the record's header say in which respects the episode differs from an ordinary one.
    marks: dict[str, object] = {PRIVILEGED: True} if policy.wants.privileged else {}
    marks |= {STOPPED_ON_VIOLATION: True} if violation else {}
    marks |= policy.marks if isinstance(policy, coupling.DelayedPolicy) else {}
    if planned.task.label:
        # A search chose the initial state, so its results are not the benchmark's.
        marks[CHOSEN] = {"init_state_index": planned.start.init_state_index, "placed_m": dict(planned.start.placed)}
    record = npz.encode_npz(_label_record(batch, planned, outcome, {**marks, **policy_calls.clip_marks()}))
    return EpisodeOutcome(planned, outcome, steps, record, reason, policy_calls.latency(), policy_calls.greeting())


def _seed_generators(seed: int) -> None:
    # Seeds the global random generators of Python, NumPy and, if it is imported, torch.
    # NumPy accepts seeds below 2**32, torch below 2**63.
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed % 2**63)


def _leaves_path(env: HostEnv, planned: PlannedEpisode, step: int) -> bool:
    # Returns whether a replay has left its recorded path. Returns False if there is no path, or no check at this step.
    path = planned.start.recorded.path if planned.start.recorded else None  # body positions at each record
    if path is None or step >= len(path) or step % _PATH_CHECK_STEPS:
        return False
    # Compare one record: the newest body positions with the recorded ones at this step.
    return bool(are_off_path(path[step : step + 1], tracked_path(env.latest())).any())


def _outcome_at_horizon(planned: PlannedEpisode) -> str:
    # Returns the outcome of an episode without success: `timeout`, or the recorded outcome after a complete replay.
    recorded = planned.start.recorded
    return recorded.ending if recorded and recorded.steps == planned.horizon else "timeout"


def _violation_reason(standing: EpisodeStanding) -> str | None:
    # Returns a text that names the violated clauses (specifications); None if no clause is violated.
    # A clause that one arm of several has violated is named `CLAUSE of ARM`.
    if not standing.violated:
        return None
    clause_names = (" of ".join(filter(None, (name, standing.clauses[name].arm))) for name in standing.violated)
    return f"{', '.join(clause_names)} violated at record {standing.step}"


_NO_CHUNK = (-1, -1)  # the chunk and step of an action that comes from no chunk


class _PolicyCalls:
    # Asks the policy for an episode's actions, checks and clips them, and keeps counts and times for the outcome.

    def __init__(self, env: HostEnv, policy: interface.Policy) -> None:
        # `_low` and `_high` are the bounds of an action's A numbers, [A].
        self._low, self._high, self._policy = env.action_low, env.action_high, policy
        self._call_times_s: list[float] = []  # wall time of each call of the policy
        self.is_asking = False  # true while the policy runs, and after the policy raised an exception
        self.clips = bool(getattr(policy, "clip", False))  # whether the policy permits that its actions are clipped
        self._chunk_steps: list[tuple[int, int]] = []  # for each action: number of the chunk, step in the chunk
        self._actions_before_clipping: list[interface.Action] = []  # original values of the clipped actions

    def next_action(self, observation: interface.Observation) -> interface.Action:
        # Returns the policy's action. An action out of bounds is refused, unless the policy permits clipping.
        start, self.is_asking = time.perf_counter(), True
        raw_action = self._policy.act(observation)
        self.is_asking = False
        self._call_times_s.append(time.perf_counter() - start)
        # Raises `InvalidActionError` unless the action is an array of finite numbers, [A].
        action = interface.check_action(raw_action, self._low.size)
        policy = self._policy
        chunk_step = policy.chunk_step if isinstance(policy, servers.ChunkQueue | coupling.DelayedPolicy) else None
        # Some servers reply with a chunk of several actions, which are executed one after the other.
        self._chunk_steps.append(chunk_step or _NO_CHUNK)
        clipped = np.clip(action, self._low, self._high)
        if np.array_equal(clipped, action):
            return action
        if not self.clips:
            # The first number of the action that is out of bounds.
            index = int(np.flatnonzero(clipped != action)[0])
            # The numbers are not rounded, because rounding could hide a small difference between value and bound.
            bounds = f"[{self._low[index]}, {self._high[index]}]"
            problem = f"the action is out of bounds: number {index} is {action[index]}, not in {bounds}"
            remedy = "Fix the policy's output, or set `clip = True` on the policy if its authors also clip actions."
            raise errors.InvalidActionError(problem, remedy=remedy)
        self._actions_before_clipping.append(action)
        return clipped

    def add_chunk_steps(self, batch: Batch) -> Batch:
        """Return the batch. If any action came from a chunk, add a channel with each action's chunk and step in it."""
        recorded_count = int(batch.starts[-1]) - 1  # number of actions with a record; record 0 has no action
        rows = self._chunk_steps[:recorded_count]  # leaves out an invalid action at the end, which has no record
        has_chunks = any(row != _NO_CHUNK for row in rows)
        return add_rows(batch, CHUNK_STEP, np.array(rows, dtype=np.float64)) if has_chunks else batch

    def clip_marks(self) -> dict[str, object]:
        # Returns the marks of clipped actions for the record's header; {} if the policy does not permit clipping.
        if not self.clips:
            return {}
        if not self._actions_before_clipping:
            return {CLIPPED: 0}
        requested = np.array(self._actions_before_clipping)
        is_outside = (requested < self._low) | (requested > self._high)
        # [A, 2]: for each of the `A` numbers, how often the number was out of bounds, and the largest absolute value.
        per_number = np.stack([is_outside.sum(axis=0), np.abs(requested).max(axis=0)], axis=1)
        return {CLIPPED: len(requested), CLIPPED_NUMBERS: per_number.tolist()}

    def latency(self) -> Latency | None:
        # Returns quantiles (50 % and 95 %, in ms) of the policy's response times; None if the policy was not called.
        # A policy that measures its own calls has the call times in `calls_s` and the waiting times in `waits_s`.
        policy_times_s: Sequence[float] | None = getattr(self._policy, "calls_s", None)
        times_s = self._call_times_s if policy_times_s is None else policy_times_s
        if not times_s:
            return None
        p50, p95 = 1000 * np.percentile(times_s, [50, 95])
        waits_s: Sequence[float] = getattr(self._policy, "waits_s", None) or ()
        waiting_ms = 1000 * float(np.median(waits_s)) if waits_s else None
        return Latency(calls=len(times_s), p50_ms=float(p50), p95_ms=float(p95), waiting_p50_ms=waiting_ms)

    def greeting(self) -> Greeting | None:
        # Returns the self-description of the policy or its server; None if there is no valid description.
        # The description comes from a server, so its content is not trusted.
        return sanitize_greeting(getattr(self._policy, "greeting", None)) or None


def _label_record(batch: Batch, planned: PlannedEpisode, outcome: str, marks: Mapping[str, object]) -> Batch:
    # Returns the record with the run's fields and `marks` in the header.
    versions = batch.headers[0].versions
    if versions and plugins.OWN_DISTRIBUTION in versions:  # the installed metadata may be older
        versions = {**versions, plugins.OWN_DISTRIBUTION: version.__version__}
    header = msgspec.structs.replace(
        batch.headers[0],
        episode_id=planned.episode_id,
        benchmark=planned.task.suite,
        # In a suite of chosen starts (with a label), the index counts these starts, not the benchmark's initial states.
        init_state_index=planned.episode if planned.task.label else batch.headers[0].init_state_index,
        policy=planned.policy,
        seed=planned.seed,
        horizon=planned.horizon,
        success=outcome == "success",
        outcome=outcome,
        versions=versions,
    )
    (extra,) = batch.extra  # further entries of the record; the entry `header` has further fields of the header
    fields = extra.get("header", {})
    assert isinstance(fields, Mapping)
    marked_extra = {**extra, "header": {**fields, **marks}} if marks else extra
    return replace(batch, headers=(header,), extra=(marked_extra,))


# The serial engine


class Observer(Protocol):
    """Observes a run without changing it. Workers report steps every twentieth step, Ray's actors once a second."""

    def started(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Receive the episodes to run next, before any of them starts."""

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        """Receive the number of control steps done in an episode."""

    def finished(self, outcome: EpisodeOutcome) -> None:
        """Receive the outcome of an episode, with its record if it has one."""


def describe_process() -> str:
    """Return this process's node and process id, as text."""
    return f"{platform.node()}, process {os.getpid()}"


NOT_RUN = "not run"  # outcome of an episode that was not run; it has neither a row nor a record, and can be run later
SAME_CRASHES = 3  # number of equal crashes in a row after which the rest of a task is skipped


def _task_key(planned: PlannedEpisode) -> tuple[str, str, str]:
    # Returns the policy, suite and task of an episode, by which crashes are counted.
    return planned.policy, planned.task.suite, planned.task.task_id


@dataclass
class CrashSeries:
    """The latest consecutive crashes with the same exception and the same message (numbers in messages may differ)."""

    failure: str = ""
    places: list[tuple[str, str, str]] = field(default_factory=list)  # policy, suite and task of each crash, in order
    has_begun: bool = False  # whether any episode has taken a step

    def add_outcome(self, result: EpisodeOutcome) -> None:
        """Take an episode's outcome into account, unless it is `NOT_RUN`."""
        if result.outcome == NOT_RUN:
            return
        self.has_begun = self.has_begun or result.steps > 0
        failure = errors.find_exception(result.reason or "")[0] if result.outcome == "crashed" else ""
        # `failure` is the exception with its message; "" if the episode did not crash. Numbers may differ, such as ids.
        # `places` has the policy, suite and task of each crash in the series.
        # A series ends at an episode that did not crash, or that crashed with a different exception or message.
        if not failure or _NUMBER_PATTERN.sub("", failure) != _NUMBER_PATTERN.sub("", self.failure):
            self.places.clear()
        self.failure = failure
        if failure:
            self.places.append(_task_key(result.planned))


_NUMBER_PATTERN = re.compile(r"0x[0-9a-f]+|\d+")


class EnvRunner:
    """Runs episodes in one environment, which is kept until the policy or task changes or an episode crashes."""

    def __init__(
        self,
        host: Host,
        policies: Mapping[str, interface.Policy],
        watch: Monitor | None = None,
        couplers: Mapping[str, coupling.Coupler] = NO_COUPLERS,
        *,
        skips_crashing: bool = False,
    ) -> None:
        # `watch` ends episodes at their first violation; `couplers` have the filters and delays of policies by name.
        # If `skips_crashing`, the rest of a task is not run after `SAME_CRASHES` equal crashes in a row.
        self._skips_crashing = skips_crashing
        self._host, self._policies, self._watch, self._couplers = host, policies, watch, couplers
        self._env: HostEnv | None = None
        self._made_for: tuple[str, Task] | None = None  # policy and task for which `_env` was made
        self._crashes = CrashSeries()

    def run_planned(self, planned: PlannedEpisode, on_step: OnStep | None = None) -> EpisodeOutcome:
        """Run one episode and return its outcome, which is `crashed` after an exception or the loss of the policy's
        server. If the runner skips crashing tasks, the outcome is `NOT_RUN` after `SAME_CRASHES` equal crashes in a row
        with the same policy and task. Raises `SafevlaError` if the host cannot be used, or if the policy's server
        refuses or cannot be reached.
        """
        began_s, policy = time.perf_counter(), self._policies[planned.policy]
        # True if the last `SAME_CRASHES` crashes of the series were all in this task
        if self._skips_crashing and self._crashes.places[-SAME_CRASHES:] == SAME_CRASHES * [_task_key(planned)]:
            reason = f"{SAME_CRASHES} episodes of this task crashed in the same way: {self._crashes.failure}"
            return EpisodeOutcome(planned, NOT_RUN, 0, None, reason)  # 0 steps, no record
        try:
            env = self._prepare_env(planned, policy)
        except (KeyboardInterrupt, errors.SafevlaError):
            raise
        except BaseException:  # a simulator can raise anything; the run continues
            outcome = EpisodeOutcome(planned, "crashed", 0, None, traceback.format_exc())  # 0 steps, no record
        else:
            # A coupler puts the policy's filter and delay between environment and policy.
            coupler = self._couplers.get(planned.policy)
            coupled_env, coupled_policy = coupler.couple(env, policy) if coupler else (env, policy)
            seeded = apply_server_seed(planned, policy)
            outcome = _run_with_retries(coupled_env, coupled_policy, seeded, on_step, self._watch)
            if outcome.outcome == "crashed":  # the environment may be in an undefined state
                self.close()
        self._crashes.add_outcome(outcome)
        spent_s, code = time.perf_counter() - began_s, hosts.describe_code(self._host)
        return replace(outcome, wall_s=spent_s, code=code, ran_on=describe_process())

    def close(self) -> None:
        """Close the environment, if there is one; the next episode makes a new one. Exceptions are only logged."""
        env, self._env = self._env, None  # no later episode uses this environment, even after an exception
        if env is None:
            return
        try:
            env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # harmless, because the episodes are recorded and a new environment will be made
            _LOG.warning("the environment of %s could not be closed: %s", env.task.task_id, error)

    def _prepare_env(self, planned: PlannedEpisode, policy: interface.Policy) -> HostEnv:
        # Returns the kept environment if it was made for this policy and task. If not, returns a new environment.
        if self._made_for != (planned.policy, planned.task):
            self.close()
        if self._env is None:
            if isinstance(policy, interface.RemotePolicy):
                policy.connect(planned.task)  # connects first, because making the simulator takes longer
            coupler = self._couplers.get(planned.policy)
            # A filter may need the simulator's state in addition to what the policy wants.
            wants = coupler.extend_wants(planned.policy, policy.wants) if coupler else policy.wants
            self._env = self._host.make(planned.task, wants)
            _require_still(self._env, planned.task)
            self._made_for = planned.policy, planned.task
        return self._env


def _require_still(env: HostEnv, task: Task) -> None:
    # Raises `HostError` unless the task's action that moves nothing has as many numbers as the environment's actions.
    if len(task.still) != len(env.action_low):
        counts = f"{len(task.still)} numbers, but actions have {len(env.action_low)}"
        problem = f"{task.benchmark} {task.task_id}: `Task.still` has {counts}"
        raise errors.HostError(problem, remedy="Fix the host: `Task.still` is the action that moves nothing.")


def _run_with_retries(
    env: HostEnv, policy: interface.Policy, planned: PlannedEpisode, on_step: OnStep | None, watch: Monitor | None
) -> EpisodeOutcome:
    # Restarts the episode if the policy's server is lost, up to `SERVER_RETRIES` times.
    # After the last attempt, returns the outcome `crashed`. After each step, `on_step` gets the number of steps done.
    # `watch` ends the episode at its first violation; None = the episode goes on.
    steps_done = 0  # steps of the latest attempt

    def count_steps(steps: int) -> None:
        # Remember the number of steps, because a lost attempt returns no outcome. Then pass the number on.
        nonlocal steps_done
        steps_done = steps
        if on_step:
            on_step(steps)

    for attempt in range(1 + SERVER_RETRIES):
        steps_done = 0
        try:
            return run_episode(env, policy, planned, count_steps, watch)
        except errors.ServerLostError as error:
            # At the first attempt, this error means that no server runs at the address.
            if attempt == 0 and isinstance(error, errors.ServerUnreachableError):
                raise  # not retried, because all other episodes would also fail
            last_error = error
    is_slow = isinstance(last_error, errors.ServerSlowError)
    event = "the policy server was too slow" if is_slow else "lost the policy server"
    reason = f"{event} in each of {1 + SERVER_RETRIES} attempts; last error: {last_error}"
    return EpisodeOutcome(planned, "crashed", steps_done, None, reason)  # None = there is no record


def run_serially(
    runner: EnvRunner, episodes: Iterable[PlannedEpisode], on_step: StepCallback | None = None
) -> Generator[EpisodeOutcome]:
    """Run the episodes in order and yield each outcome before the next episode starts. At the end, close the runner."""
    # `on_step` gets the episode and the number of steps, but the runner reports only the number.
    with closing(runner):
        for planned in episodes:
            yield runner.run_planned(planned, partial(on_step, planned) if on_step else None)
