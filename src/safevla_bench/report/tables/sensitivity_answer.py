"""What a variation of thresholds says, first: how far Safety of each policy moves, and whether their order changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from safevla_bench.compare.ranking import RankingSensitivity
from safevla_bench.judging.rates import SAFETY, Rate
from safevla_bench.report.tables.columns import rate_cell
from safevla_bench.report.tables.table import UNNAMED, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.curves import ThresholdAblation

_MOST_NAMED = 3
"""Policies that a sentence names; more are counted, and in the table."""


@dataclass(frozen=True, slots=True)
class PolicySafety:
    """Safety of a policy over all suites: under the first variant, and the least and greatest with their variants."""

    policy: str
    default: Rate
    least: tuple[Rate, str]
    greatest: tuple[Rate, str]
    sizes: tuple[int, int]
    """The least and the greatest number of judged episodes, of variants that have any."""
    silent: tuple[str, ...]
    """The variants under which no episode is judged."""

    @property
    def is_still(self) -> bool:
        """True if no variant changes it, or the number of episodes that it is of."""
        has_one_value = self.least[0].value == self.greatest[0].value == self.default.value
        return has_one_value and self.sizes[0] == self.sizes[1] and not self.silent


def measure_safety(ablation: ThresholdAblation) -> list[PolicySafety]:
    """Return the range of Safety of each policy that has a value under the first variant, in the order of the curves.

    Of variants with an equal value the first is named.
    """
    pooled = {policy: _pool(ablation, policy) for policy in _list_policies(ablation)}
    names = [variant.name for variant in ablation.variants]
    return [_measure_range(policy or UNNAMED, rates, names) for policy, rates in pooled.items() if rates[0].n]


def _measure_range(policy: str, rates: Sequence[Rate], names: Sequence[str]) -> PolicySafety:
    known = [pair for pair in zip(rates, names, strict=True) if pair[0].n]
    sizes = [rate.n for rate, _ in known]
    return PolicySafety(
        policy,
        rates[0],
        min(known, key=lambda pair: pair[0].value or 0.0),
        max(known, key=lambda pair: pair[0].value or 0.0),
        (min(sizes), max(sizes)),
        tuple(name for rate, name in zip(rates, names, strict=True) if not rate.n),
    )


def _list_policies(ablation: ThresholdAblation) -> list[str | None]:
    return list(dict.fromkeys(curve.policy for curve in ablation.curves))


def _pool(ablation: ThresholdAblation, policy: str | None) -> list[Rate]:
    curves = [curve for curve in ablation.curves if curve.policy == policy]
    points = [[curve.points[k].safety for curve in curves] for k in range(len(ablation.variants))]
    return [Rate.of(sum(rate.count for rate in row), sum(rate.n for rate in row)) for row in points]


def describe_sensitivity(ablation: ThresholdAblation, ranking: RankingSensitivity | None) -> str:
    """Return how far Safety moves under the variants, policy by policy, and whether a pair is shown to change order."""
    ranges, policies = measure_safety(ablation), [policy or UNNAMED for policy in _list_policies(ablation)]
    if not ranges:
        return "Safety has no value: no specification reached a verdict."
    silent = [policy for policy in policies if policy not in {item.policy for item in ranges}]
    without = [f"Safety of {_join(silent, 'policies')} has no value."] if silent else []
    sentences = _range_sentences(ranges, len(ablation.variants) - 1)
    return " ".join([*sentences, *without, *_order_sentences(ranking, len(policies))])


def _range_sentences(ranges: Sequence[PolicySafety], others: int) -> Iterator[str]:
    """Yield whose Safety moves under the other variants, and how far."""
    moving = [item for item in ranges if not item.is_still]
    if not moving:
        yield f"None of the {others} other variants of the thresholds changes Safety of any policy."
    for item in moving[:_MOST_NAMED]:
        yield from _moving_sentences(item)
    if more := len(moving[_MOST_NAMED:]):
        yield f"That of {more} more changes too: see the table."
    if still := [item.policy for item in ranges if item.is_still and moving]:
        yield f"That of {_join(still, 'other policies')} does not change."


def _moving_sentences(item: PolicySafety) -> Iterator[str]:
    """Yield where Safety goes to either side; that it is of other episodes; and where it has no value."""
    fewest, most = item.sizes
    ends = [
        f"{side} to {_format_rate(rate, fewest < most)} ({variant})"
        for side, (rate, variant) in (("down", item.least), ("up", item.greatest))
        if rate.value != item.default.value
    ]
    moves = f", {' and '.join(ends)} under other thresholds" if ends else ""
    yield f"Safety of {item.policy} is {_format_rate(item.default, fewest < most)}{moves}."
    if fewest < most:
        yield f"It is of {fewest} to {most} episodes: those cut short are judged only where they violate."
    if item.silent:
        yield f"It has no value under {_join(item.silent, 'variants')}."


def _format_rate(rate: Rate, with_size: bool) -> str:
    return f"{SAFETY.format(rate.value or 0.0)} %{f' of {rate.n}' if with_size else ''}"


def _join(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} {what}"


def _order_sentences(ranking: RankingSensitivity | None, policies: int) -> Iterator[str]:
    """Yield whether the order of two policies is shown to change; nothing for a single policy."""
    if ranking is None:
        if policies > 1:
            yield "Whether their order changes is not known: they cannot be compared under every variant."
        return
    changes = [
        f"{variant.variant} ({_join([f'{after} above {before}' for before, after in variant.reversed], 'pairs')})"
        for variant in ranking.changes
    ]
    yield (
        f"The order changes under {'; '.join(changes)}." if changes else "No pair of policies is shown to change order."
    )


def range_table(ablation: ThresholdAblation, notes: Sequence[str] = ()) -> Table:
    """Return the table of each policy's Safety over all suites: as it stands, its least and its greatest."""
    return tabulate(
        f"Safety under {len(ablation.variants)} variants of the thresholds (paper's Table 9), all suites pooled",
        measure_safety(ablation),
        (
            text_column("Policy", lambda row: row.policy),
            Column("n", value=lambda row: row.default.n),
            Column(SAFETY.heading, value=lambda row: rate_cell(row.default)),
            Column("least", value=lambda row: rate_cell(row.least[0], n=row.default.n)),
            text_column("under", lambda row: row.least[1]),
            Column("greatest", value=lambda row: rate_cell(row.greatest[0], n=row.default.n)),
            text_column("under", lambda row: row.greatest[1]),
        ),
        notes=notes,
        remarks=ablation.warnings,
    )
