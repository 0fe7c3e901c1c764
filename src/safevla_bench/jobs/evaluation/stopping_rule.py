"""Rules that stop a run as soon as a condition is decided: `safevla eval --until`.

A round runs about the same share of every task's initial states with every policy, usually one state of each task. The
rule is tested after each round, with limits that account for the number of tests (looks). If the metric is graded, such
as VSI, the test is a confidence sequence of the mean. An episode that crashed, was cut short or has no verdict has an
unknown value. A test decides only if its verdict is the same with all unknown values set to 0, and with all set to 1.
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
_EXACT_BOUNDARY = "exact test; the spent error grows with the squared share of the planned episodes"
_SEQUENCE_BOUNDARY = "confidence sequence"
_FORMS = 'Write "safety >= 0.9" (also with sr, clean, sbu, vsi or <=), or "A safer than B" with policies of the run.'


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """A condition that ends a run: either a gate for each policy, or the question which of two policies is safer."""

    condition: str
    gate: Gate | None = None
    rivals: tuple[str, str] | None = None

    @property
    def metric(self) -> GateMetric:
        # The metric whose value is read from each episode. A pair of policies is compared in Safety.
        return self.gate.metric if self.gate else "safety"


Verdict = Literal["passed", "failed", "safer", "less safe", "undecided"]


class RuleVerdict(msgspec.Struct, frozen=True):
    """A rule's verdict on one policy or on a pair of policies.

    `n` initial states are counted; at `unknown` of them, some episode's value is unknown. `least` and `greatest` are
    the test results with all unknown values set to 0 and to 1, respectively. For a pair, `least` sets the first
    policy's unknown values to 0 and the second policy's to 1; `greatest` does the opposite. A pair's tests count the
    first policy's wins among all wins. `ci` is the interval of a graded mean. It covers all possible unknown values.
    """

    subject: str
    verdict: Verdict
    n: int
    unknown: int
    least: SequentialLook | None = None
    greatest: SequentialLook | None = None
    ci: tuple[float, float] | None = None

    def to_text(self, unit: str = "") -> str:
        """Return the verdict with its interval or counts. `unit` is the noun for the counts, such as ` differences`."""
        # `unknown` is the number of initial states with unknown values. `ci` is an interval, for graded values only.
        # `least.gained` is the least possible sum of the values, and `least.total` the maximum sum.
        details = [f"{self.unknown} unknown"] if self.unknown else []
        if self.ci:
            details = [format_interval(*self.ci, digits=3), *details]
        elif self.least:
            details = [f"{self.least.gained} of {self.least.total}{unit}", *details]
        return f"{self.subject} {self.verdict}" + (f" ({', '.join(details)})" if details else "")


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The rule's verdicts after `rounds` complete rounds, and whether they decide the condition; stored in run.json."""

    condition: str
    is_decided: bool
    confidence: float
    boundary: str
    looks: int  # planned number of tests, one after each round
    rounds: int
    episodes: int
    findings: tuple[RuleVerdict, ...]

    def to_sentence(self, planned: int) -> str:
        # `planned` is the number of planned episodes.
        head = "Decided" if self.is_decided else "Not decided"
        # For a pair of policies, the tests ignore initial states at which the two policies are equal.
        unit = " differences" if _SAFER.search(self.condition) else ""
        findings = "; ".join(finding.to_text(unit) for finding in self.findings)
        return f"{head} after {self.episodes} of {planned} episodes: {self.condition} on these tasks: {findings}."


def parse_condition(condition: str, policies: Sequence[str]) -> StoppingRule:
    """Parse a condition such as `safety >= 0.9` or `A safer than B`. Raises `RunError` for an invalid condition."""
    if found := _SAFER.fullmatch(condition.strip()):
        first, second = found.groups()
        for name in (first, second):
            if name not in policies:
                problem = f"--until names a policy that this run lacks: {name!r}"
                raise RunError(problem, remedy=f"Run: {', '.join(policies)}.")
        if first == second:
            raise RunError("--until compares a policy with itself", remedy=_FORMS)
        return StoppingRule(condition, rivals=(first, second))
    # A gate compares a metric of each policy with a limit.
    return StoppingRule(condition, gate=parse_gate(condition, "--until", _FORMS))


# A start is a tuple (suite, task, initial state).
_Start = tuple[str, str, int]
# One mapping per round: start -> ids of one policy's episodes from this start.
_Rounds = list[dict[_Start, list[str]]]


class RoundTally:
    """The finished episodes of a run by round, and the decision on the rule's condition so far."""

    def __init__(self, rule: StoppingRule, ruleset: Ruleset, planned: Sequence[PlannedEpisode]) -> None:
        """Make an empty tally. Rounds are numbered from 0. All episodes from one initial state share a round."""
        self._rule, self._ruleset, self._planned = rule, ruleset, planned
        self._policies = tuple(dict.fromkeys(episode.policy for episode in planned))
        self._missing = Counter(episode.round for episode in planned)  # round -> number of unfinished episodes
        # policy -> for each round: start state -> ids of the planned episodes from this state.
        self._planned_ids: dict[str, _Rounds] = {policy: [{} for _ in self._missing] for policy in self._policies}
        for episode in planned:
            start = episode.task.benchmark, episode.task.task_id, episode.state
            self._planned_ids[episode.policy][episode.round].setdefault(start, []).append(episode.episode_id)
        self._values: dict[str, float] = {}  # episode id -> value, if the value is known
        self._rounds = 0  # number of complete rounds
        self.decision = self._decide()

    def add_episode(self, planned: PlannedEpisode, record: Batch | None) -> None:
        """Count a finished episode. If it has no record or verdict, its value is unknown. Update `decision` if the
        episode completes one or more rounds. Raises the errors of `score`.
        """
        if record is not None:
            # The metric's value in this episode; NaN if unknown, for example if the episode is not judged.
            (value,) = metric_values(score(record, self._ruleset), np.array([0]), self._rule.metric)
            if not np.isnan(value):
                self._values[planned.episode_id] = float(value)
        self._missing[planned.round] -= 1
        # After the last round, `self._rounds` is not a key of `_missing`.
        while not self.decision.is_decided and self._missing.get(self._rounds) == 0:
            self._rounds += 1
            self.decision = self._decide()

    def is_counted(self, planned: PlannedEpisode) -> bool:
        """Return whether an episode belongs to the complete rounds on which the decision is based."""
        return planned.round < self._rounds

    def _decide(self) -> Decision:
        # Return the rule's decision after the complete rounds, of which there may be none.
        # `rivals` are the names of two policies, or None. `looks` below is the planned number of tests, one per round.
        findings = [self._compare_rivals(*self._rule.rivals)] if self._rule.rivals else self._judge_policies()
        return Decision(
            condition=self._rule.condition,
            is_decided=all(finding.verdict != "undecided" for finding in findings),
            confidence=CONFIDENCE,
            boundary=_SEQUENCE_BOUNDARY if any(finding.ci for finding in findings) else _EXACT_BOUNDARY,
            looks=len(self._missing),
            rounds=self._rounds,
            episodes=sum(map(self.is_counted, self._planned)),
            findings=tuple(findings),
        )

    def _judge_policies(self) -> list[RuleVerdict]:
        # Test each policy against the limit of the rule's gate, a condition such as `safety >= 0.9`.
        # `level` is the confidence of the test of each policy.
        # Bonferroni: the probability that any policy's verdict is wrong is at most 1 - CONFIDENCE.
        gate, level = self._rule.gate, 1 - (1 - CONFIDENCE) / len(self._policies)
        assert gate is not None
        start_count = sum(len(starts) for rounds in self._planned_ids.values() for starts in rounds)
        # Fewer start states than episodes: several episodes begin at the same state.
        repeats_starts = start_count < len(self._planned)
        # The value of a start state is 0 or 1. If the metric is graded, or if start states repeat, it is a mean.
        judge = self._judge_mean if gate.metric == VSI.key or repeats_starts else self._judge_rate
        return [judge(policy, gate, level) for policy in self._policies]

    def _judge_rate(self, policy: str, gate: Gate, level: float) -> RuleVerdict:
        # Test whether the policy's share of start states with the value 1 is above or below the limit.
        # `level` is the confidence of the test.
        least_means, greatest_means = self._bound_means(policy)
        shares = _cumulative_shares(map(len, self._planned_ids[policy]))
        # Every value is 0 or 1, and each start state counts as one step of the sequential test.
        steps = [[1] * len(starts) for starts in least_means]
        least_sums = [int(sum(starts.values())) for starts in least_means]
        greatest_sums = [int(sum(starts.values())) for starts in greatest_means]
        least = sequential_look(steps, least_sums, gate.limit, shares, level)
        greatest = sequential_look(steps, greatest_sums, gate.limit, shares, level)
        # `side` is 1 (above the limit), -1 (below) or 0 (undecided).
        # `_VERDICTS[bound]` is a pair: the verdict for a share above the limit, and for a share below the limit.
        verdict = _agreed_verdict(least.side, greatest.side, *_VERDICTS[gate.bound])
        return RuleVerdict(policy, verdict, least.total, self._count_unknown(policy), least, greatest)

    def _judge_mean(self, policy: str, gate: Gate, level: float) -> RuleVerdict:
        # Compute one interval for the least possible values, and one for the greatest possible values.
        # `level` is the confidence of each interval.
        # The gate is decided if the whole range from `low` to `high` is on one side of the limit.
        least_means, greatest_means = self._bound_means(policy)
        least_values = [mean for starts in least_means for mean in starts.values()]
        greatest_values = [mean for starts in greatest_means for mean in starts.values()]
        least = sequential_interval(np.array(least_values), level)
        greatest = sequential_interval(np.array(greatest_values), level)
        n, unknown = len(least_values), self._count_unknown(policy)
        if not (least and greatest):  # there are too few values for an interval
            return RuleVerdict(policy, "undecided", n, unknown)
        low, high = least.low, greatest.high
        verdict: Verdict = "undecided"
        if gate.is_satisfied(low) == gate.is_satisfied(high):
            verdict = "passed" if gate.is_satisfied(low) else "failed"
        return RuleVerdict(policy, verdict, n, unknown, ci=(low, high))

    def _compare_rivals(self, first: str, second: str) -> RuleVerdict:
        # Test whether the first policy wins more than half of the start states at which the two policies differ.
        # The weight of a start state is the absolute difference between the two policies' means at this state.
        round_pairs = zip(self._planned_ids[first], self._planned_ids[second], strict=True)
        shares = _cumulative_shares(len(starts.keys() & other_starts.keys()) for starts, other_starts in round_pairs)
        complete = *self._planned_ids[first][: self._rounds], *self._planned_ids[second][: self._rounds]
        # The scale is a common denominator of all means, so that the scaled differences are whole numbers.
        scale = math.lcm(*(len(ids) for starts in complete for ids in starts.values()))
        first_least, first_greatest = self._bound_means(first)
        second_least, second_greatest = self._bound_means(second)
        # The differences are least if the first policy's unknown values are 0 and the second policy's are 1.
        least_differences = _subtract_means(first_least, second_greatest, scale)
        least = _test_differences(least_differences, shares)
        greatest = _test_differences(_subtract_means(first_greatest, second_least, scale), shares)
        # `side` is 1 (the first policy wins more), -1 (the second) or 0 (undecided).
        verdict, n = _agreed_verdict(least.side, greatest.side, "safer", "less safe"), sum(map(len, least_differences))
        return RuleVerdict(first, verdict, n, self._count_unknown(first, second), least, greatest)

    def _count_unknown(self, *policies: str) -> int:
        # Count the initial states that occur for all `policies`, and have an episode whose value is unknown.
        count = 0
        complete_rounds = (self._planned_ids[policy][: self._rounds] for policy in policies)
        for starts_of_policies in zip(*complete_rounds, strict=True):  # one mapping start -> ids for each policy
            for start in set.intersection(*map(set, starts_of_policies)):
                ids = [episode_id for starts in starts_of_policies for episode_id in starts[start]]
                if not all(episode_id in self._values for episode_id in ids):
                    count += 1
        return count

    def _bound_means(self, policy: str) -> list[list[dict[_Start, float]]]:
        # Return two lists with one mapping per complete round: start state -> mean value of the state's episodes.
        # Unknown values are set to 0 in the first list, and to 1 in the second list.
        def mean(ids: Sequence[str], unknown: float) -> float:
            # Return the mean value of the episodes with these ids; `unknown` replaces values that are not known.
            return sum(self._values.get(episode_id, unknown) for episode_id in ids) / len(ids)

        complete = self._planned_ids[policy][: self._rounds]
        return [
            [{start: mean(ids, unknown) for start, ids in starts.items()} for starts in complete]
            for unknown in (0.0, 1.0)
        ]


# Bound of a gate -> the verdict for a rate above the limit, and the verdict for a rate below the limit.
_VERDICTS: Mapping[str, tuple[Verdict, Verdict]] = {"min": ("passed", "failed"), "max": ("failed", "passed")}


def _agreed_verdict(least: int, greatest: int, above: Verdict, below: Verdict) -> Verdict:
    # `least` and `greatest` are test results: 1 (above the limit), -1 (below the limit) or 0 (undecided).
    # In `least`, all unknown values have their least possible value; in `greatest`, their greatest possible value.
    # If the two results differ, the unknown values matter, so nothing is decided.
    if least != greatest or least == 0:
        return "undecided"
    return above if least > 0 else below


def _cumulative_shares(counts: Iterable[int]) -> list[float]:
    # `counts` lists the number of initial states in each round. Return the cumulative shares of all initial states.
    totals = list(accumulate(counts))
    return [total / max(1, totals[-1]) for total in totals]  # `max` avoids a division by zero


def _subtract_means(
    first_rounds: Sequence[Mapping[_Start, float]], second_rounds: Sequence[Mapping[_Start, float]], scale: int
) -> list[list[int]]:
    # `first_rounds` and `second_rounds` contain a mapping for each round: start state -> mean value.
    # Return one list per round, with `scale` * (first mean - second mean) for each start state in both mappings.
    return [
        [round(scale * (first[start] - second[start])) for start in first if start in second]
        for first, second in zip(first_rounds, second_rounds, strict=True)
    ]


def _test_differences(rounds: Sequence[Sequence[int]], shares: Sequence[float]) -> SequentialLook:
    # Each start state at which the policies differ is one step of the test. The step's size is the absolute difference.
    # A step is a gain if the first policy is better. If both are equally safe, about half of all steps are gains.
    # `rounds` lists the differences in each complete round; `shares` is the result of `_cumulative_shares`.
    steps = [[abs(difference) for difference in round_differences if difference] for round_differences in rounds]
    gained = [sum(difference for difference in round_differences if difference > 0) for round_differences in rounds]
    return sequential_look(steps, gained, 0.5, shares, CONFIDENCE)


def describe_decision(description: Mapping[str, object]) -> str:
    """Return a sentence on the stopping rule's decision in run.json; "" if the decision is missing or damaged."""
    if DECISION not in description:
        return ""
    try:
        decision = msgspec.convert(description[DECISION], Decision)
    except msgspec.ValidationError:
        return ""
    # If run.json has no valid number of planned episodes, show the number of episodes in the complete rounds.
    planned = description.get("planned")
    return decision.to_sentence(planned if isinstance(planned, int) else decision.episodes)


def was_stopped_early(judged: Judged) -> bool:
    """Return whether a stopping rule decided some run, even if at its end, or a search ended before its budget."""
    decisions = (source.description.get(DECISION) for source in judged.sources)
    return any(isinstance(decision, Mapping) and decision.get("is_decided") is True for decision in decisions)


STOPPED_EARLY = "A run stopped once its condition was decided, but intervals assume an episode count fixed in advance."
