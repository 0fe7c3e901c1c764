"""What a variation of thresholds says, first: how far Safety of each policy moves, and whether their order changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from safevla_bench.compare.ranking import RankingSensitivity
from safevla_bench.judging.rates import SAFETY, Rate
from safevla_bench.report.tables.table import UNNAMED, Column, Table, rate_cell, tabulate, text_column
from safevla_bench.sensitivity.curves import ThresholdAblation

_MOST_NAMED = 3
"""Policies that the sentence names; more are in the table."""


@dataclass(frozen=True, slots=True)
class PolicySafety:
    """Safety of a policy over all suites: under the first variant, and the least and greatest with their variants."""

    policy: str
    default: Rate
    least: tuple[Rate, str]
    greatest: tuple[Rate, str]

    @property
    def is_still(self) -> bool:
        """True if no variant changes it."""
        return self.least[0].count == self.greatest[0].count == self.default.count


def measure_safety(ablation: ThresholdAblation) -> list[PolicySafety]:
    """Return the range of Safety of each policy that has a verdict, in the order of the curves; of equals the first."""
    policies = list(dict.fromkeys(curve.policy for curve in ablation.curves))
    pooled = {policy: _pool(ablation, policy) for policy in policies}
    names = [variant.name for variant in ablation.variants]
    return [
        PolicySafety(
            policy or UNNAMED,
            rates[0],
            min(zip(rates, names, strict=True), key=lambda pair: pair[0].value or 0.0),
            max(zip(rates, names, strict=True), key=lambda pair: pair[0].value or 0.0),
        )
        for policy, rates in pooled.items()
        if all(rate.n for rate in rates)
    ]


def _pool(ablation: ThresholdAblation, policy: str | None) -> list[Rate]:
    curves = [curve for curve in ablation.curves if curve.policy == policy]
    points = [[curve.points[k].safety for curve in curves] for k in range(len(ablation.variants))]
    return [Rate.of(sum(rate.count for rate in row), sum(rate.n for rate in row)) for row in points]


def describe_sensitivity(ablation: ThresholdAblation, ranking: RankingSensitivity | None) -> str:
    """Return how far Safety moves under the variants, policy by policy, and whether a pair is shown to turn over."""
    return " ".join(_sentences(measure_safety(ablation), ranking, len(ablation.variants)))


def _sentences(ranges: Sequence[PolicySafety], ranking: RankingSensitivity | None, count: int) -> Iterator[str]:
    if not ranges:
        yield "Safety has no value: no specification reached a verdict."
        return
    moving = [item for item in ranges if not item.is_still]
    if not moving:
        yield f"None of {count} variants of the thresholds changes Safety of any policy."
    for item in moving[:_MOST_NAMED]:
        (least, low), (greatest, high) = item.least, item.greatest
        yield (
            f"Safety of {item.policy} is {_percent(item.default)}, and from {_percent(least)} ({low}) to "
            f"{_percent(greatest)} ({high}) under other thresholds."
        )
    if moving and len(moving) < len(ranges):
        yield f"That of {_join([item.policy for item in ranges if item.is_still])} does not change."
    if ranking is not None:
        changes = [
            f"{variant.variant}: {after} above {before}"
            for variant in ranking.changes
            for before, after in variant.reversed
        ]
        yield f"Turned over: {'; '.join(changes)}." if changes else "No pair of policies is shown to turn over."


def _percent(rate: Rate) -> str:
    return f"{SAFETY.format(rate.value or 0.0)} %"


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} other policies"


def range_table(ablation: ThresholdAblation, notes: Sequence[str] = ()) -> Table:
    """Return the table of each policy's Safety over all suites: as it stands, its least and its greatest."""
    return tabulate(
        f"Safety under {len(ablation.variants)} variants of the thresholds (paper's Table 9), all suites pooled",
        measure_safety(ablation),
        (
            text_column("Policy", lambda row: row.policy),
            Column("n", value=lambda row: row.default.n),
            Column(SAFETY.heading, value=lambda row: rate_cell(row.default)),
            Column("least", value=lambda row: rate_cell(row.least[0])),
            text_column("under", lambda row: row.least[1]),
            Column("greatest", value=lambda row: rate_cell(row.greatest[0])),
            text_column("under", lambda row: row.greatest[1]),
        ),
        notes=notes,
        remarks=ablation.warnings,
    )
