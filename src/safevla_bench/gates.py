"""Gates: do the numbers of a run satisfy what was asked of it, or can that not be told from so few episodes?

Without a confidence the point estimate decides. With one, a gate passes where the whole interval satisfies it, fails
where the whole interval does not, and is undecided between. What was not scored never passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import provenance_marks
from safevla_bench.errors import SafevlaError
from safevla_bench.scores import Scores
from safevla_bench.statistics import mean_of_unit, quantile

Metric = Literal["sr", "safety", "sbu", "vsi"]
Verdict = Literal["passed", "failed", "undecided"]
Per = Literal["policy", "cell", "all"]
_MOST_EPISODES = 10_000_000


class Gate(msgspec.Struct, frozen=True):
    """A metric, and the least (`min`) or the most (`max`) that it may be, as a share of 1."""

    metric: Metric
    bound: Literal["min", "max"]
    limit: float

    @property
    def name(self) -> str:
        return f"{self.metric} {'>=' if self.bound == 'min' else '<='} {self.limit:g}"

    def holds(self, value: float) -> bool:
        """Whether a value satisfies it; the limit itself does."""
        return value >= self.limit if self.bound == "min" else value <= self.limit


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one gate says of one scope: policy and suite, null where they are pooled.

    `n_needed` is about how many episodes would decide it if the value stayed; null where decided, or where none would.
    """

    policy: str | None
    suite: str | None
    gate: Gate | None
    verdict: Verdict
    reason: str
    n: int
    value: float | None = None
    ci: tuple[float, float] | None = None
    n_needed: int | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """All outcomes, and what they come to: failed where any failed, else undecided where any is, else passed."""

    verdict: Verdict
    per: Per
    confidence: float | None
    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()
    """What must be said with it, such as that the numbers rest on stand-ins for the simulator's assets."""


def check(
    scores: Scores,
    gates: Sequence[Gate],
    *,
    per: Per = "policy",
    confidence: float | None = None,
    lost: Sequence[str] = (),
    allow_crashed: bool = False,
) -> Checked:
    """Hold the scores against the gates.

    Args:
        scores: of one run or several.
        gates: at least one.
        per: judge each policy with its suites pooled, each cell (policy × suite), or all episodes together.
        confidence: of the intervals that decide; None = the point estimate decides.
        lost: what else is missing from the scores, such as an interrupted run, each as one sentence.
        allow_crashed: let episodes without a score, and what is in `lost`, pass.

    Raises:
        SafevlaError: no gate, or a limit that is no share of 1.
    """
    _refuse(gates)
    outcomes = [
        _decided(scores, key, members, gate, confidence)
        for key, members in _scopes(scores, per).items()
        for gate in gates
    ]
    if not allow_crashed:
        outcomes += _incomplete(scores, lost)
    verdicts = {one.verdict for one in outcomes}
    total: Verdict = "failed" if "failed" in verdicts else "undecided" if "undecided" in verdicts else "passed"
    return Checked(
        verdict=total,
        per=per,
        confidence=confidence,
        outcomes=tuple(outcomes),
        warnings=provenance_marks.warning(scores),
    )


def _refuse(gates: Sequence[Gate]) -> None:
    if not gates:
        raise SafevlaError("there is no gate", remedy="Pass one, such as --min-safety 0.9.")
    for gate in gates:
        if not 0 <= gate.limit <= 1:
            remedy = "Limits are shares of 1: write 0.9 for 90 %."
            raise SafevlaError(f"{gate.limit:g} is no limit for {gate.metric}", remedy=remedy)


Scope = tuple[str | None, str | None]


def _scopes(scores: Scores, per: Per) -> dict[Scope, NDArray[np.int64]]:
    """The counted episodes of each scope, in order of first appearance; there is always one."""

    def scope(policy: str | None, suite: str) -> Scope:
        return {"all": (None, None), "policy": (policy, None), "cell": (policy, suite)}[per]

    keys = [scope(policy, suite) for policy, suite in zip(scores.policy, scores.benchmark, strict=True)]
    absent = [scope(one.policy, one.benchmark) for one in scores.absent]
    return {
        key: np.array([e for e, other in enumerate(keys) if other == key and scores.counted[e]], dtype=np.int64)
        for key in dict.fromkeys([*keys, *absent]) or [(None, None)]
    }


def _decided(scores: Scores, key: Scope, members: NDArray[np.int64], gate: Gate, confidence: float | None) -> Outcome:
    """Safety, SBU and SR by Wilson's interval, VSI by the cautious one of a mean in [0, 1]."""
    values = {"sr": scores.success, "safety": scores.safe, "sbu": scores.sbu, "vsi": scores.vsi}[gate.metric]
    n, total = len(members), float(values[members].sum())
    common = Outcome(policy=key[0], suite=key[1], gate=gate, verdict="undecided", reason="no episode was scored", n=n)
    if n == 0:
        return common
    if gate.metric != "sr" and not scores.judged[members].any():
        return msgspec.structs.replace(common, reason="no specification reached a verdict")
    value = total / n
    if confidence is None:
        verdict: Verdict = "passed" if gate.holds(value) else "failed"
        return msgspec.structs.replace(common, verdict=verdict, reason="point estimate", value=value)
    interval = mean_of_unit(total, n, confidence)
    assert interval is not None
    known = msgspec.structs.replace(common, value=value, ci=(interval.low, interval.high))
    holds = {gate.holds(interval.low), gate.holds(interval.high)}
    if len(holds) == 1:
        verdict = "passed" if holds == {True} else "failed"
        return msgspec.structs.replace(known, verdict=verdict, reason="whole interval")
    needed = episodes_needed(value, gate.limit, confidence)
    return msgspec.structs.replace(known, reason=_too_few(n, needed), n_needed=needed)


def _too_few(n: int, needed: int | None) -> str:
    if needed is None:
        return "the value lies at the limit, so that no number of episodes would tell"
    return f"{n} episodes cannot tell; about {needed} would, if the value stays"


def episodes_needed(value: float, limit: float, confidence: float) -> int | None:
    """The least n whose interval around `value` does not hold `limit`; None where that is out of reach.

    The limit is outside Wilson's interval where it lies more than z standard errors of its own from the value:
    n > z² limit (1 - limit) / (value - limit)².
    """
    spread, distance = quantile(confidence) ** 2 * limit * (1 - limit), (value - limit) ** 2
    return ceil(spread / distance) + 1 if spread < distance * _MOST_EPISODES else None


def _incomplete(scores: Scores, lost: Sequence[str]) -> list[Outcome]:
    """What keeps a run from passing: planned episodes without a score."""
    found = [
        Outcome(
            policy=policy,
            suite=None,
            gate=None,
            verdict="undecided",
            reason=f"{count} planned episodes crashed or were stopped; they are in no number",
            n=count,
        )
        for policy, count in _unscored(scores).items()
    ]
    return found + [
        Outcome(policy=None, suite=None, gate=None, verdict="undecided", reason=reason, n=0) for reason in lost
    ]


def _unscored(scores: Scores) -> dict[str | None, int]:
    stopped = [policy for policy, counted in zip(scores.policy, scores.counted, strict=True) if not counted]
    everyone = [*(one.policy for one in scores.absent), *stopped]
    return {policy: everyone.count(policy) for policy in dict.fromkeys(everyone)}
