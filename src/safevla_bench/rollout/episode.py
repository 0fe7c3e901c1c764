"""One loop for every host and every policy: reset, act, step, until success, the horizon, a fault or a violation."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from safevla_bench.errors import InvalidActionError
from safevla_bench.interface import Coordinated, HostEnv, Policy, Replaying
from safevla_bench.monitor import Monitor, Standing, newest
from safevla_bench.rollout.plan import Planned
from safevla_bench.trajectory import Batch, marked_privileged

OnStep = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended: its record (None where it crashed), its outcome, the steps it took, and why."""

    planned: Planned
    outcome: str
    steps: int
    batch: Batch | None
    reason: str | None = None

    @property
    def success(self) -> bool:
        return self.outcome == "success"


def run_episode(
    env: HostEnv, policy: Policy, planned: Planned, on_step: OnStep | None = None, watch: Monitor | None = None
) -> Outcome:
    """Run one episode; whatever the simulator or the policy raises is the outcome `crashed`, with its traceback.

    An action that must not reach the simulator ends the episode as `invalid_action`, a failure with a record. With a
    `watch` the first violation of the safe tier ends it as `stopped`.
    """
    steps = 0
    try:
        observation = env.reset(planned.start)
        if isinstance(policy, Replaying):
            policy.cue(planned.start)
        policy.reset(planned.task, planned.policy_seed)
        reason = _violated(watch.start(newest(env))) if watch else None
        outcome = "stopped" if reason else _when_over(planned)
        while steps < planned.horizon and not reason:
            observation, success = env.step(policy.act(observation))
            steps += 1
            if on_step:
                on_step(steps)
            if success:
                outcome = "success"
                break
            reason = _violated(watch.observe(newest(env))) if watch and steps < planned.horizon else None
            outcome = "stopped" if reason else outcome
    except InvalidActionError as error:
        outcome, reason = "invalid_action", str(error)
    except Exception:  # a policy and a simulator can raise anything; the run goes on without this episode
        return Outcome(planned, "crashed", steps, None, traceback.format_exc())
    batch = env.recorded()
    if isinstance(policy, Replaying):
        batch = policy.compared(batch, env.coordinates() if isinstance(env, Coordinated) else ())
    return Outcome(planned, outcome, steps, _labelled(batch, planned, outcome, policy.wants.privileged), reason)


def _when_over(planned: Planned) -> str:
    """The outcome of an episode that neither succeeds nor is ended before its horizon."""
    recorded = planned.start.recorded
    return recorded.ending if recorded and recorded.steps == planned.horizon else "timeout"


def _violated(standing: Standing) -> str | None:
    if standing.safe:
        return None
    return f"{', '.join(standing.violated)} violated at record {standing.step}"


def _labelled(batch: Batch, planned: Planned, outcome: str, privileged: bool) -> Batch:
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
    return replace(batch, headers=(header,), extra=(marked,))
