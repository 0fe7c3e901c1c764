"""How a policy is coupled to the simulator: through a filter of its actions, and with a delay of its answers.

With a delay the world goes on while a policy thinks, by what is left of its last chunk, else by holding. A policy is
asked as soon as what is left of its chunk lasts no longer than the delay, with the observation of that moment; the
answer is there so many control steps later. Of its actions as many are left out as old ones were executed meanwhile,
since those were for the steps that are past; one is always carried out.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.interface.environment import HostEnv
from safevla_bench.interface.policy import (
    Action,
    ChunkingPolicy,
    Observation,
    Policy,
    ReplayPolicy,
    SelectivePolicy,
    Wants,
)
from safevla_bench.interface.task import Task
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.plugins import format_call
from safevla_bench.policies.filters import FilteredEnv, hold, make_filter, runs_code, split_filter
from safevla_bench.trajectory.marks import DELAY

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Delay:
    """So many control steps, or milliseconds; without both, what each answer is measured to take."""

    steps: int | None = None
    ms: float | None = None

    @classmethod
    def parse(cls, text: str) -> Delay:
        """Return the delay of a text: `3` steps, `120ms`, or `measured`; raises `PolicyError` for another."""
        if text == MEASURED:
            return cls()
        if re.fullmatch(r"\d{1,4}", text):
            return cls(steps=int(text))
        if match := re.fullmatch(r"(\d{1,6}(?:\.\d+)?)ms", text):
            return cls(ms=float(match[1]))
        raise PolicyError(f"{text!r} is not a delay", remedy="Write control steps (3), 120ms, or measured.")

    def count_steps(self, dt_s: float, took_s: float) -> int:
        """Return the nearest number of control steps of `dt_s`, for an answer that took `took_s`."""
        if self.steps is not None:
            return self.steps
        return int((took_s if self.ms is None else self.ms / 1000) / dt_s + 0.5)


class DelayedPolicy:
    """A policy whose answers come late."""

    def __init__(self, policy: Policy, delay: Delay, dt_s: float) -> None:
        """Wrap a policy for an environment with control steps of `dt_s`; `PolicyError` for one that gives poses."""
        self._policy, self._delay, self._dt_s, self.wants = policy, delay, dt_s, policy.wants
        self.clip = bool(getattr(policy, "clip", False))
        self._timed_s: list[float] = []
        self._late: list[int] = []

    @property
    def greeting(self) -> object:
        """The policy's own statement about itself."""
        return getattr(self._policy, "greeting", None)

    @property
    def calls_s(self) -> Sequence[float]:
        """Seconds of each inference, as the policy counts them, else as they are measured here."""
        own: Sequence[float] | None = getattr(self._policy, "calls_s", None)
        return self._timed_s if own is None else own

    @property
    def looks_next(self) -> bool:
        """True if the next action may ask the policy, and that looks at its observation."""
        asks = self._due <= self._step if self._coming else len(self._left) <= self._lateness()
        return asks and (not isinstance(self._policy, SelectivePolicy) or self._policy.looks_next)

    @property
    def marks(self) -> Mapping[str, object]:
        """Fields of the record's header: answers, their mean and greatest lateness in steps, if any was late."""
        if not any(self._late):
            return {}
        told = {"answers": len(self._late), "mean_steps": float(np.mean(self._late)), "most_steps": max(self._late)}
        return {DELAY: {**told, **({MEASURED: True} if self._delay == Delay() else {})}}

    def reset(self, task: Task, seed: int) -> None:
        self._policy.reset(task, seed)
        self._last = np.array(task.still)
        self._still = np.array(task.still)
        self._left: deque[Action] = deque()
        self._coming: list[Action] = []
        self._timed_s, self._late = [], []
        self._step = self._due = self._meanwhile = 0

    def act(self, observation: Observation) -> Action:
        """Return the action for this control step: of the chunk that is there, else one that holds."""
        self._receive()
        if not self._coming and len(self._left) <= self._lateness():
            self._ask(observation)
            self._receive()
        if self._left:
            self._last = self._left.popleft()
            self._meanwhile += 1
        else:
            self._last = hold(self._still, self._last)
        self._step += 1
        return self._last

    def close(self) -> None:
        self._policy.close()

    def _lateness(self) -> int:
        """Return how late the next answer is expected to be; where delays are measured, as late as the last."""
        expected = self._late[-1] * self._dt_s if self._late else 0.0
        return self._delay.count_steps(self._dt_s, expected)

    def _ask(self, observation: Observation) -> None:
        began = time.perf_counter()
        self._coming = [self._policy.act(observation)]
        took_s = time.perf_counter() - began
        self._coming += self._policy.take_rest() if isinstance(self._policy, ChunkingPolicy) else []
        self._timed_s.append(took_s)
        self._late.append(self._delay.count_steps(self._dt_s, took_s))
        self._due, self._meanwhile = self._step + self._late[-1], 0

    def _receive(self) -> None:
        if self._coming and self._due <= self._step:
            past = min(self._meanwhile, len(self._coming) - 1)
            self._left, self._coming = deque(self._coming[past:]), []


@dataclass(frozen=True, slots=True)
class Coupling:
    """The texts of a policy's filter and delay; None = it has none."""

    filter: str | None = None
    delay: str | None = None

    def describe(self) -> dict[str, str]:
        """Return what run.json holds of it, beside the policy's arguments."""
        return {name: text for name, text in asdict(self).items() if text is not None}

    def list_calls(self) -> list[str]:
        """Return the call of a filter that is not ours, which a file must not choose."""
        return [format_call(*split_filter(self.filter))] if self.filter and runs_code(self.filter) else []


class Coupler:
    """Puts one policy's filter and delay between it and each environment."""

    def __init__(self, coupling: Coupling, rules: Ruleset | None = None) -> None:
        """Make the filter; `rules` are those by which its monitor judges. Raises what `make_filter` raises."""
        self._name = coupling.filter or ""
        self._filter = make_filter(self._name) if self._name else None
        self._delay = None if coupling.delay is None else Delay.parse(coupling.delay)
        self.privileged = bool(getattr(self._filter, "privileged", False))
        self.reads_margins = self._filter is not None and getattr(self._filter, "reads_margins", True)
        self._monitor = Monitor(rules) if rules and self.reads_margins else None

    def require_fitting(self, name: str, policy: Policy) -> None:
        """Raise `PolicyError` for a policy that cannot be coupled so: a replay, or one whose actions are poses."""
        if isinstance(policy, ReplayPolicy):
            problem = f"{name} plays recorded actions, which neither a filter nor a delay could change in time"
            raise PolicyError(problem, remedy="Run the policy that was recorded, or leave --filter and --delay out.")
        if policy.wants.absolute and (self._delay or not getattr(self._filter, "takes_poses", True)):
            problem = f"{name} gives poses, of which no number says how to hold"
            raise PolicyError(problem, remedy="Take a filter of your own (python:module:Class), and no delay.")

    def extend_wants(self, wants: Wants) -> Wants:
        """Return what an environment is to show to the policy and to the filter."""
        return replace(wants, privileged=wants.privileged or self.privileged)

    def couple(self, env: HostEnv, policy: Policy) -> tuple[HostEnv, Policy]:
        """Return environment and policy with what is between them."""
        if self._filter is not None:
            hides = self.privileged and not policy.wants.privileged
            env = FilteredEnv(env, self._name, self._filter, self._monitor, hides=hides)
        return env, policy if self._delay is None else DelayedPolicy(policy, self._delay, env.dt_s)
