"""Rules by which a run stops as soon as its question is decided: `safevla eval --until`.

A round is the next episodes of every task and policy, so many of each. After each round a confidence sequence over the
episodes of all whole rounds decides (`statistics.sequential`). It holds at every look, for tasks that differ too, as
every task has had as many episodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import runs, statistics
from safevla_bench.errors import RunError
from safevla_bench.gates import Gate, GateMetric, metric_values
from safevla_bench.judged import Judged
from safevla_bench.rollout import PlannedEpisode
from safevla_bench.ruleset import Ruleset
from safevla_bench.scoring import score
from safevla_bench.statistics import CONFIDENCE, Interval
from safevla_bench.text import format_interval
from safevla_bench.trajectory import Batch

_SAFER = " safer than "
_FORMS = 'Write "safety >= 0.9" (or sr, sbu, vsi; <=), or "A safer than B" with two policies of the run.'


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """A condition: a gate for each policy, or which of two policies is safer; exactly one is given."""

    condition: str
    gate: Gate | None = None
    rivals: tuple[str, str] | None = None

    @property
    def metric(self) -> GateMetric:
        """The metric that decides: the gate's, or Safety."""
        return self.gate.metric if self.gate else "safety"


class RuleVerdict(msgspec.Struct, frozen=True):
    """A rule's verdict on one policy, or on two, with the interval that gave it."""

    subject: str
    verdict: Literal["passed", "failed", "safer", "less safe", "undecided"]
    n: int
    ci: tuple[float, float] | None


class Decision(msgspec.Struct, frozen=True):
    """The findings after so many whole rounds, and whether they decide; run.json holds it."""

    condition: str
    is_decided: bool
    confidence: float
    rounds: int
    episodes: int
    findings: tuple[RuleVerdict, ...]

    def to_sentence(self, planned: int) -> str:
        """Return the decision, and how many of the planned episodes it took."""
        findings = "; ".join(
            f"{finding.subject} {finding.verdict}"
            + (f" ({format_interval(*finding.ci, digits=3)})" if finding.ci else "")
            for finding in self.findings
        )
        head = "Decided" if self.is_decided else "Not decided"
        return f"{head} after {self.episodes} of {planned} episodes: {self.condition}: {findings}."


def parse_condition(condition: str, policies: Sequence[str]) -> StoppingRule:
    """Return the rule of a condition such as "safety >= 0.9" or "A safer than B".

    Raises `RunError` where the text is no condition, its limit is outside 0..1, a policy in it is not run, or a policy
    is compared with itself.
    """
    if _SAFER in condition:
        first, _, second = (part.strip() for part in condition.partition(_SAFER))
        for name in (first, second):
            if name not in policies:
                raise RunError(f"--until names {name!r}, which is not run", remedy=f"Run: {', '.join(policies)}.")
        if first == second:
            raise RunError("--until compares a policy with itself", remedy=_FORMS)
        return StoppingRule(condition, rivals=(first, second))
    return StoppingRule(condition, gate=_parse_gate(condition))


def _parse_gate(condition: str) -> Gate:
    """Return the gate of a condition such as "safety >= 0.9".

    Raises `RunError` where the text is no condition or its limit is outside 0..1.
    """
    metric, relation, limit = [*condition.split(), "", "", ""][:3]
    try:
        value = float(limit)
    except ValueError:
        value = float("nan")
    is_known = metric in get_args(GateMetric) and relation in (">=", "<=") and len(condition.split()) == 3
    if not is_known or math.isnan(value):
        raise RunError(f"--until {condition!r} is no condition", remedy=_FORMS)
    if not 0 <= value <= 1:
        problem = f"--until {condition!r} has the limit {limit}, which is not from 0 to 1"
        raise RunError(problem, remedy="Write rates and severities as fractions: 0.9 for 90 %.")
    bound: Literal["min", "max"] = "min" if relation == ">=" else "max"
    return Gate(metric, bound, value)  # type: ignore[arg-type]


class RoundTally:
    """The finished episodes of a run by round, and the decision as soon as there is one."""

    def __init__(self, rule: StoppingRule, ruleset: Ruleset, planned: Sequence[PlannedEpisode]) -> None:
        """Begin with no episode finished: `decision` is then undecided; `ruleset` judges the episodes."""
        self._rule, self._ruleset, self._planned = rule, ruleset, planned
        self._policies = tuple(dict.fromkeys(episode.policy for episode in planned))
        self._missing = Counter(episode.round for episode in planned)
        self._values: dict[str, float] = {}
        self._rounds = 0
        self.decision = self._decide()

    def add_episode(self, planned: PlannedEpisode, record: Batch | None) -> None:
        """Count a finished episode and set `decision` when its round is whole, which may take several rounds further.

        An episode without a record (None) or a verdict counts as finished and has no value. Raises what `score` raises.
        """
        if record is not None:
            values = metric_values(score(record, self._ruleset), np.array([0]), self._rule.metric)
            if len(values):
                self._values[planned.episode_id] = float(values[0])
        self._missing[planned.round] -= 1
        while not self.decision.is_decided and self._missing.get(self._rounds, 1) == 0:
            self._rounds += 1
            self.decision = self._decide()

    def is_counted(self, planned: PlannedEpisode) -> bool:
        """Return whether an episode belongs to the whole rounds that the decision rests on."""
        return planned.round < self._rounds

    def _decide(self) -> Decision:
        """Return the decision after the whole rounds so far; it is decided if no finding is undecided."""
        findings = tuple(self._find_rival() if self._rule.rivals else self._find_gates())
        return Decision(
            condition=self._rule.condition,
            is_decided=all(finding.verdict != "undecided" for finding in findings),
            confidence=CONFIDENCE,
            rounds=self._rounds,
            episodes=sum(map(self.is_counted, self._planned)),
            findings=findings,
        )

    def _find_gates(self) -> list[RuleVerdict]:
        """Return each policy's verdict on the gate, undecided where the interval has the limit in it or there is none.

        All intervals hold together with `CONFIDENCE`.
        """
        gate, level = self._rule.gate, 1 - (1 - CONFIDENCE) / len(self._policies)
        assert gate is not None
        findings = []
        for policy in self._policies:
            values = np.array(list(self._policy_values(policy).values()))
            interval = statistics.sequential_interval(values, level)
            holds = {gate.is_satisfied(end) for end in (interval.low, interval.high)} if interval else {True, False}
            verdict: Literal["passed", "failed", "undecided"]
            verdict = "undecided" if len(holds) > 1 else "passed" if holds == {True} else "failed"
            findings.append(RuleVerdict(policy, verdict, len(values), _bounds(interval)))
        return findings

    def _find_rival(self) -> list[RuleVerdict]:
        """Return the verdict on the first of the two policies: safer, less safe or undecided.

        Safety is compared on the episodes that both finished with a verdict, paired by suite, task and number.
        """
        assert self._rule.rivals is not None
        first, second = (self._policy_values(policy) for policy in self._rule.rivals)
        differences: NDArray[np.float64] = np.array([first[key] - second[key] for key in first if key in second])
        interval = statistics.sequential_difference(differences, CONFIDENCE)
        verdict: Literal["safer", "less safe", "undecided"] = "undecided"
        if interval and (interval.low > 0 or interval.high < 0):
            verdict = "safer" if interval.low > 0 else "less safe"
        return [RuleVerdict(self._rule.rivals[0], verdict, len(differences), _bounds(interval))]

    def _policy_values(self, policy: str) -> dict[tuple[str, str, int], float]:
        """Return (suite, task, number) -> the metric's value, of a policy's episodes in whole rounds that have any."""
        return {
            (planned.task.benchmark, planned.task.task_id, planned.episode): self._values[planned.episode_id]
            for planned in self._planned
            if planned.policy == policy and self.is_counted(planned) and planned.episode_id in self._values
        }


def _bounds(interval: Interval | None) -> tuple[float, float] | None:
    """Return (low, high) of an interval; None stays None."""
    return None if interval is None else (interval.low, interval.high)


def describe_decision(description: Mapping[str, object]) -> str:
    """Return what the stopping rule of a run found, given its run.json.

    "" where there is no decision or a damaged one.
    """
    if runs.DECISION not in description:
        return ""
    try:
        decision = msgspec.convert(description[runs.DECISION], Decision)
    except msgspec.ValidationError:
        return ""
    planned = description.get("planned")
    return decision.to_sentence(planned if isinstance(planned, int) else decision.episodes)


def was_stopped_early(judged: Judged) -> bool:
    """Return whether a stopping rule ended any of the runs."""
    decisions = (source.description.get(runs.DECISION) for source in judged.sources)
    return any(isinstance(decision, Mapping) and decision.get("is_decided") is True for decision in decisions)


STOPPED_EARLY = "A run stopped when its condition was decided: the intervals here are for a number fixed in advance."
