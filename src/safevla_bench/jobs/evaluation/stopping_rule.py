"""Rules that stop a run as soon as a condition is decided: `safevla eval --until`.

A round runs the next initial state of every task with every policy. The rule is tested after each round, with limits
that account for the number of tests (looks). For graded values, the mean has a confidence sequence
(`statistics.intervals`). The value of an episode that crashed, was cut short or has no verdict is unknown. So a verdict
counts only if it is the same with all unknown values set to 0 and with all set to 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import msgspec
import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.judging.gates import Gate, metric_values, parse_gate
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.rates import VSI, GateMetric
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.sources.runs.folder import DECISION
from safevla_bench.statistics.intervals import CONFIDENCE, SequentialLook, sequential_interval, sequential_look
from safevla_bench.text import format_interval
from safevla_bench.trajectory.batch import Batch

_SAFER = re.compile(r"(.+?)\s+safer\s+than\s+(.+)", re.IGNORECASE | re.DOTALL)
_BOUNDARY = "exact; error spent as the squared share of the planned episodes"
_SEQUENCE = "confidence sequence"
_FORMS = 'Write "safety >= 0.9" (also with sr, clean, sbu, vsi or <=), or "A safer than B" with policies of the run.'


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """A condition: either a gate that each policy must pass, or the question which of two policies is safer."""

    condition: str
    gate: Gate | None = None
    rivals: tuple[str, str] | None = None

    @property
    def metric(self) -> GateMetric:
        return self.gate.metric if self.gate else "safety"


Verdict = Literal["passed", "failed", "safer", "less safe", "undecided"]


class RuleVerdict(msgspec.Struct, frozen=True):
    """A rule's verdict on one policy or on a pair of policies.

    `n` is the number of counted initial states, and `unknown` the number of those with an episode of unknown value.
    `least` and `greatest` are the tests with all unknown values set to 0 and to 1, respectively. For a pair, `least`
    sets those of the first policy to 0 and of the second to 1, and `greatest` does the opposite; the tests count the
    first policy's wins among all wins. `ci` is the confidence sequence of a graded mean, over all possible values.
    """

    subject: str
    verdict: Verdict
    n: int
    unknown: int
    least: SequentialLook | None = None
    greatest: SequentialLook | None = None
    ci: tuple[float, float] | None = None

    def to_text(self, unit: str = "") -> str:
        """Return the verdict with its interval or counts. `unit` names what is counted."""
        details = [f"{self.unknown} unknown"] if self.unknown else []
        if self.ci:
            details = [format_interval(*self.ci, digits=3), *details]
        elif self.least:
            details = [f"{self.least.gained} of {self.least.total}{unit}", *details]
        return f"{self.subject} {self.verdict}" + (f" ({', '.join(details)})" if details else "")


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The findings after some complete rounds, and whether they decide the condition; stored in run.json."""

    condition: str
    is_decided: bool
    confidence: float
    boundary: str
    looks: int  # planned number of tests, one after each round
    rounds: int
    episodes: int
    findings: tuple[RuleVerdict, ...]

    def to_sentence(self, planned: int) -> str:
        head = "Decided" if self.is_decided else "Not decided"
        unit = " differences" if _SAFER.search(self.condition) else ""
        findings = "; ".join(finding.to_text(unit) for finding in self.findings)
        return f"{head} after {self.episodes} of {planned} episodes: {self.condition} on these tasks: {findings}."


def parse_condition(condition: str, policies: Sequence[str]) -> StoppingRule:
    """Return the rule from a text such as `safety >= 0.9` or `A safer than B`; raise `RunError` for other texts."""
    if found := _SAFER.fullmatch(condition.strip()):
        first, second = found.groups()
        for name in (first, second):
            if name not in policies:
                raise RunError(f"--until names {name!r}, which this run lacks", remedy=f"Run: {', '.join(policies)}.")
        if first == second:
            raise RunError("--until compares a policy with itself", remedy=_FORMS)
        return StoppingRule(condition, rivals=(first, second))
    return StoppingRule(condition, gate=parse_gate(condition, "--until", _FORMS))


# Suite, task and initial state.
_Start = tuple[str, str, int]


class RoundTally:
    """The finished episodes of a run by round, and the decision once it is made."""

    def __init__(self, rule: StoppingRule, ruleset: Ruleset, planned: Sequence[PlannedEpisode]) -> None:
        """Make a tally without episodes. Rounds count from 0; all episodes of an initial state are in one round."""
        self._rule, self._ruleset, self._planned = rule, ruleset, planned
        self._policies = tuple(dict.fromkeys(episode.policy for episode in planned))
        self._missing = Counter(episode.round for episode in planned)
        self._starts: dict[str, list[dict[_Start, list[str]]]] = {
            policy: [{} for _ in self._missing] for policy in self._policies
        }
        for episode in planned:
            start = episode.task.benchmark, episode.task.task_id, episode.state
            self._starts[episode.policy][episode.round].setdefault(start, []).append(episode.episode_id)
        self._values: dict[str, float] = {}
        self._rounds = 0
        self.decision = self._decide()

    def add_episode(self, planned: PlannedEpisode, record: Batch | None) -> None:
        """Count a finished episode, whose value is unknown if it has no record or verdict. If this completes its round,
        and perhaps later rounds, update `decision`. Raises the errors of `score`.
        """
        if record is not None:
            (value,) = metric_values(score(record, self._ruleset), np.array([0]), self._rule.metric)
            if not np.isnan(value):
                self._values[planned.episode_id] = float(value)
        self._missing[planned.round] -= 1
        while not self.decision.is_decided and self._missing.get(self._rounds, 1) == 0:
            self._rounds += 1
            self.decision = self._decide()

    def is_counted(self, planned: PlannedEpisode) -> bool:
        """Return whether an episode belongs to the complete rounds on which the decision is based."""
        return planned.round < self._rounds

    def _decide(self) -> Decision:
        findings = [self._compare_rivals(*self._rule.rivals)] if self._rule.rivals else self._find_gates()
        return Decision(
            condition=self._rule.condition,
            is_decided=all(finding.verdict != "undecided" for finding in findings),
            confidence=CONFIDENCE,
            boundary=_SEQUENCE if any(finding.ci for finding in findings) else _BOUNDARY,
            looks=len(self._missing),
            rounds=self._rounds,
            episodes=sum(map(self.is_counted, self._planned)),
            findings=tuple(findings),
        )

    def _find_gates(self) -> list[RuleVerdict]:
        gate, level = self._rule.gate, 1 - (1 - CONFIDENCE) / len(self._policies)
        assert gate is not None
        groups = (ids for rounds in self._starts.values() for group in rounds for ids in group.values())
        find = self._judge_mean if gate.metric == VSI.key or any(len(ids) > 1 for ids in groups) else self._judge_rate
        return [find(policy, gate, level) for policy in self._policies]

    def _judge_rate(self, policy: str, gate: Gate, level: float) -> RuleVerdict:
        bounds, shares = self._mean_bounds(policy), _planned_shares(map(len, self._starts[policy]))
        steps = [[1] * len(group) for group in bounds[0]]
        won = [[int(sum(group.values())) for group in means] for means in bounds]
        least, greatest = (sequential_look(steps, gained, gate.limit, shares, level) for gained in won)
        verdict = _agree(least.side, greatest.side, *_VERDICTS[gate.bound])
        return RuleVerdict(policy, verdict, least.total, self._count_unknown(policy), least, greatest)

    def _judge_mean(self, policy: str, gate: Gate, level: float) -> RuleVerdict:
        bounds = [[mean for group in means for mean in group.values()] for means in self._mean_bounds(policy)]
        least, greatest = (sequential_interval(np.array(means), level) for means in bounds)
        n, unknown = len(bounds[0]), self._count_unknown(policy)
        if not (least and greatest):
            return RuleVerdict(policy, "undecided", n, unknown)
        ci = least.low, greatest.high
        low, high = (1 if gate.is_satisfied(end) else -1 for end in ci)
        return RuleVerdict(policy, _agree(low, high, "passed", "failed"), n, unknown, ci=ci)

    def _compare_rivals(self, first: str, second: str) -> RuleVerdict:
        planned = zip(self._starts[first], self._starts[second], strict=True)
        shares = _planned_shares(len(group.keys() & other.keys()) for group, other in planned)
        counted = *self._starts[first][: self._rounds], *self._starts[second][: self._rounds]
        scale = math.lcm(*(len(names) for group in counted for names in group.values()))
        bounds = [
            [[round(scale * (a[key] - b[key])) for key in a if key in b] for a, b in zip(*means, strict=True)]
            for means in zip(self._mean_bounds(first), reversed(self._mean_bounds(second)), strict=True)
        ]
        least, greatest = (_look_at_differences(rounds, shares) for rounds in bounds)
        verdict, n = _agree(least.side, greatest.side, "safer", "less safe"), sum(map(len, bounds[0]))
        return RuleVerdict(first, verdict, n, self._count_unknown(first, second), least, greatest)

    def _count_unknown(self, *policies: str) -> int:
        rounds = zip(*(self._starts[policy][: self._rounds] for policy in policies), strict=True)
        return sum(
            any(name not in self._values for group in same for name in group[start])
            for same in rounds
            for start in set.intersection(*map(set, same))
        )

    def _mean_bounds(self, policy: str) -> list[list[dict[_Start, float]]]:
        def mean(names: Sequence[str], unknown: float) -> float:
            return sum(self._values.get(name, unknown) for name in names) / len(names)

        counted = self._starts[policy][: self._rounds]
        return [
            [{start: mean(names, unknown) for start, names in group.items()} for group in counted]
            for unknown in (0.0, 1.0)
        ]


# Bound of a gate -> the verdict for a rate above the limit, and the verdict for a rate below the limit.
_VERDICTS: Mapping[str, tuple[Verdict, Verdict]] = {"min": ("passed", "failed"), "max": ("failed", "passed")}


def _agree(least: int, greatest: int, above: Verdict, below: Verdict) -> Verdict:
    if not least == greatest != 0:
        return "undecided"
    return above if least > 0 else below


def _planned_shares(counts: Iterable[int]) -> list[float]:
    done = list(accumulate(counts))
    return [count / max(1, done[-1]) for count in done]


def _look_at_differences(rounds: Sequence[Sequence[int]], shares: Sequence[float]) -> SequentialLook:
    steps = [[abs(difference) for difference in group if difference] for group in rounds]
    won = [sum(difference for difference in group if difference > 0) for group in rounds]
    return sequential_look(steps, won, 0.5, shares, CONFIDENCE)


def describe_decision(description: Mapping[str, object]) -> str:
    """Return a sentence on the decision of the stopping rule in a run.json; "" if it is missing or damaged."""
    if DECISION not in description:
        return ""
    try:
        decision = msgspec.convert(description[DECISION], Decision)
    except msgspec.ValidationError:
        return ""
    planned = description.get("planned")
    return decision.to_sentence(planned if isinstance(planned, int) else decision.episodes)


def was_stopped_early(judged: Judged) -> bool:
    """Return whether a stopping rule ended any of the runs."""
    decisions = (source.description.get(DECISION) for source in judged.sources)
    return any(isinstance(decision, Mapping) and decision.get("is_decided") is True for decision in decisions)


STOPPED_EARLY = "A run stopped once its condition was decided, but intervals assume an episode count fixed in advance."
