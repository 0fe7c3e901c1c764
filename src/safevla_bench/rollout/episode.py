"""One loop for every host and every policy: reset, act, step, until success, the horizon, a fault or a violation."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from safevla_bench.errors import InvalidActionError, PolicyError, ServerLostError, ServerRefusedError
from safevla_bench.interface import Action, Coordinated, HostEnv, Observation, Policy, Replaying
from safevla_bench.monitor import Monitor, Standing, newest
from safevla_bench.policies.servers.metadata import Greeting, fit
from safevla_bench.rollout.plan import Planned
from safevla_bench.runs import Latency
from safevla_bench.trajectory import Batch, marked_privileged

OnStep = Callable[[int], None]
CLIPPED = "clipped_actions"
"""Host-specific header field: how many actions were out of range and clipped, where the policy's own protocol clips."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended: its record (None where it crashed), its outcome, the steps it took, and why."""

    planned: Planned
    outcome: str
    steps: int
    batch: Batch | None
    reason: str | None = None
    latency: Latency | None = None
    greeting: Greeting | None = None
    """What the policy, or its server, says of itself."""

    @property
    def success(self) -> bool:
        return self.outcome == "success"


def run_episode(
    env: HostEnv, policy: Policy, planned: Planned, on_step: OnStep | None = None, watch: Monitor | None = None
) -> Outcome:
    """Run one episode; whatever the simulator or the policy raises is the outcome `crashed`, with its traceback.

    An action that must not reach the simulator ends the episode as `invalid_action`, a failure with a record. With a
    `watch` the first violation of the safe tier ends it as `stopped`.

    Raises:
        ServerLostError: the policy's server went away, or could not be reached; the episode may be begun again.
        ServerRefusedError: the policy's server cannot be used, now or in another episode.
    """
    asked = _Asked(env, policy)
    steps = 0
    try:
        observation = env.reset(planned.start)
        if isinstance(policy, Replaying):
            policy.cue(planned.start)
        policy.reset(planned.task, planned.policy_seed)
        reason = _violated(watch.start(newest(env))) if watch else None
        outcome = "stopped" if reason else _when_over(planned)
        while steps < planned.horizon and not reason:
            observation, success = env.step(asked.action(observation))
            steps += 1
            if on_step:
                on_step(steps)
            outcome = "success" if success else _when_over(planned)
            if success and planned.stop_at_success:
                break
            reason = _violated(watch.observe(newest(env))) if watch and steps < planned.horizon else None
            outcome = "stopped" if reason else outcome
    except InvalidActionError as error:
        outcome, reason = "invalid_action", f"step {steps}: {error}"
    except (ServerLostError, ServerRefusedError):
        raise
    except PolicyError as error:  # it says what is wrong better than where in this package it was raised
        return Outcome(planned, "crashed", steps, None, str(error), asked.latency(), asked.greeting())
    except Exception:  # a policy and a simulator can raise anything; the run goes on without this episode
        return Outcome(planned, "crashed", steps, None, traceback.format_exc(), asked.latency(), asked.greeting())
    batch = env.recorded()
    if isinstance(policy, Replaying):
        batch = policy.compared(batch, env.coordinates() if isinstance(env, Coordinated) else ())
    labelled = _labelled(batch, planned, outcome, policy.wants.privileged, asked.clipped)
    return Outcome(planned, outcome, steps, labelled, reason, asked.latency(), asked.greeting())


def _when_over(planned: Planned) -> str:
    """The outcome of an episode that neither succeeds nor is ended before its horizon."""
    recorded = planned.start.recorded
    return recorded.ending if recorded and recorded.steps == planned.horizon else "timeout"


def _violated(standing: Standing) -> str | None:
    if standing.safe:
        return None
    return f"{', '.join(standing.violated)} violated at record {standing.step}"


class _Asked:
    """The seam between policy and simulator: each action is timed, checked, and clipped where that is the rule."""

    def __init__(self, env: HostEnv, policy: Policy) -> None:
        self._low, self._high, self._policy = env.action_low, env.action_high, policy
        self._calls_s: list[float] = []
        self.clipped: int | None = 0 if getattr(policy, "clip", False) else None
        """How many actions were clipped; None where none may be."""

    def action(self, observation: Observation) -> Action:
        """[A], within the bounds of the host; raises what the policy raises, and `InvalidActionError`."""
        start = time.perf_counter()
        given = self._policy.act(observation)
        self._calls_s.append(time.perf_counter() - start)
        action = _finite(given, self._low.shape)
        within = np.clip(action, self._low, self._high)
        if np.array_equal(within, action):
            return action
        if self.clipped is None:
            raise self._out_of_range(action, within)
        self.clipped += 1
        return within

    def _out_of_range(self, action: Action, within: Action) -> InvalidActionError:
        place = int(np.flatnonzero(within != action)[0])
        bounds = f"[{self._low[place]:g}, {self._high[place]:g}]"
        remedy = "Mend the policy's output. It is clipped only for policies whose own project does so."
        problem = f"number {place} of the action, {action[place]:g}, is not in {bounds}"
        return InvalidActionError(problem, remedy=remedy)

    def latency(self) -> Latency | None:
        """What the calls took so far: the policy's own account of its inferences, else of each action."""
        own: Sequence[float] | None = getattr(self._policy, "calls_s", None)
        spent = self._calls_s if own is None else own
        if not spent:
            return None
        p50, p95 = 1000 * np.percentile(spent, [50, 95])
        return Latency(calls=len(spent), p50_ms=float(p50), p95_ms=float(p95))

    def greeting(self) -> Greeting | None:
        """What the policy or its server says of itself; None where it says nothing."""
        return fit(getattr(self._policy, "greeting", None)) or None


def _finite(given: object, shape: tuple[int, ...]) -> Action:
    """What a policy gave as finite numbers of that shape; `InvalidActionError` where it is something else."""
    remedy = "Mend the policy's output."
    try:
        action = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidActionError(f"a {type(given).__name__} that is no array of numbers", remedy=remedy) from None
    if action.shape != shape:
        problem = f"an action of shape {action.shape}, where the host takes {shape}"
        raise InvalidActionError(problem, remedy=remedy)
    if not np.isfinite(action).all():
        raise InvalidActionError(f"the action {action.tolist()} is not finite", remedy=remedy)
    return action


def _labelled(batch: Batch, planned: Planned, outcome: str, privileged: bool, clipped: int | None) -> Batch:
    """The host's record with what only the run knows; a policy that saw privileged state is marked in the record."""
    header = msgspec.structs.replace(
        batch.headers[0],
        episode_id=planned.episode_id,
        policy=planned.policy,
        seed=planned.seed,
        horizon=planned.horizon,
        outcome=outcome,
    )
    (extra,) = batch.extra
    marked = marked_privileged(extra) if privileged else extra
    return replace(batch, headers=(header,), extra=(marked if clipped is None else _counted(marked, clipped),))


def _counted(extra: Mapping[str, object], clipped: int) -> dict[str, object]:
    """An episode's host-specific fields with the number of its actions that were clipped."""
    header = extra.get("header", {})
    assert isinstance(header, Mapping)
    return {**extra, "header": {**header, CLIPPED: clipped}}
