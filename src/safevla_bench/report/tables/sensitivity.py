"""Sensitivity to thresholds: how far Safety moves, the paper's Table 9, sweeps, and the ranking of policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from safevla_bench.compare.decisions import RankingSensitivity, VariantRanking
from safevla_bench.compare.difference import Difference
from safevla_bench.judging.rates import SAFETY, SBU, UNSAFE_SUCCESS, VSI, Mean, Metric, Rate
from safevla_bench.report.tables.columns import POLICY, drop_intervals, format_ends, rate_cell, value_cell
from safevla_bench.report.tables.comparison import difference_columns, verdict_cell
from safevla_bench.report.tables.suites import exact_value
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.curves import (
    PROSE_DEPTH,
    ReadingCell,
    ReadingComparison,
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    ThresholdVariant,
    VariantRates,
    VerdictChanges,
)
from safevla_bench.text import append_unit, display_unit, format_compact

_MOST_NAMED = 3
"""Policies that a sentence names; more are counted, and in the table."""


# Safety of each policy, all suites pooled: the answer


def _pool_safety(cells: Iterable[tuple[str | None, Sequence[Rate]]]) -> dict[str, list[Rate]]:
    """Return policy -> its Safety at each point, its suites pooled; `cells` are pairs of policy and Safety."""
    points: dict[str, list[Sequence[Rate]]] = {}
    for policy, rates in cells:
        points.setdefault(policy or UNNAMED, []).append(rates)
    return {
        policy: [
            Rate.of(sum(rate.count for rate in rates), sum(rate.n for rate in rates))
            for rates in zip(*of_suites, strict=True)
        ]
        for policy, of_suites in points.items()
    }


def _pool_curves(ablation: ThresholdAblation) -> dict[str, list[Rate]]:
    return _pool_safety((curve.policy, [point.safety for point in curve.points]) for curve in ablation.curves)


def describe_sensitivity(ablation: ThresholdAblation, ranking: RankingSensitivity | None) -> str:
    """Return how far Safety moves under the variants, policy by policy, and whether a pair is shown to change order."""
    safety = _pool_curves(ablation)
    known = {policy: rates for policy, rates in safety.items() if rates[0].n}
    if not known:
        return "Safety has no value: no specification reached a verdict."
    silent = [policy for policy in safety if policy not in known]
    without = [f"Safety of {_join(silent, 'policies')} has no value."] if silent else []
    sentences = _range_sentences(known, [variant.name for variant in ablation.variants])
    return " ".join([*sentences, *without, *_order_sentences(ranking, len(safety))])


def _range_sentences(safety: Mapping[str, Sequence[Rate]], names: Sequence[str]) -> Iterator[str]:
    """Yield whose Safety, or the number of episodes that it is of, moves under other variants, and how far."""
    moving = [policy for policy, rates in safety.items() if len({(rate.value, rate.n) for rate in rates}) > 1]
    if not moving:
        yield f"None of the {len(names) - 1} other variants of the thresholds changes Safety of any policy."
    for policy in moving[:_MOST_NAMED]:
        yield _moving_sentence(policy, safety[policy], names)
    if more := len(moving[_MOST_NAMED:]):
        yield f"That of {more} more changes too: see the table."
    if still := [policy for policy in safety if policy not in moving and moving]:
        yield f"That of {_join(still, 'other policies')} does not change."


def _moving_sentence(policy: str, rates: Sequence[Rate], names: Sequence[str]) -> str:
    """Return where Safety goes to either side; of variants with an equal value the first is named."""
    known = [pair for pair in zip(rates, names, strict=True) if pair[0].n]
    low, high = min(known, key=_value), max(known, key=_value)
    ends = [
        f"{side} to {_format_rate(rate)} ({variant})"
        for side, (rate, variant) in (("down", low), ("up", high))
        if rate.value != rates[0].value
    ]
    sizes = {rate.n for rate in rates}
    moves = f", {' and '.join(ends)} under other thresholds" if ends else ""
    of = f"; judged under each are {min(sizes)} to {max(sizes)} episodes" if len(sizes) > 1 else ""
    return f"Safety of {policy} is {_format_rate(rates[0])}{moves}{of}."


def _value(pair: tuple[Rate, str]) -> float:
    return pair[0].value or 0.0


def _format_rate(rate: Rate) -> str:
    return f"{SAFETY.format(rate.value or 0.0)} %"


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


def pooled_table(ablation: ThresholdAblation, title: str) -> Table:
    """Return Safety under each variant, a column per policy, all suites pooled."""
    names = [variant.name for variant in ablation.variants]
    return _pooled_table(title, names, _pool_curves(ablation), ablation.warnings)


def _pooled_table(
    title: str, names: Sequence[str], safety: Mapping[str, Sequence[Rate]], remarks: Sequence[str]
) -> Table:
    def policy_column(policy: str, rates: Sequence[Rate]) -> Column:
        return Column(f"{policy}, n = {rates[0].n}", value=lambda k: rate_cell(rates[k], n=rates[0].n))

    columns = [text_column("", lambda k: names[k]), *(policy_column(*item) for item in safety.items())]
    return drop_intervals(tabulate(f"{title}, all suites pooled", range(len(names)), columns, remarks=remarks))


# Cells under each variant or threshold


@dataclass(frozen=True, slots=True)
class _CellPoint:
    """One cell under one variant, threshold or reading, which `name` names."""

    cell: SensitivityCurve | ReadingCell
    name: str
    rates: VariantRates
    changes: VerdictChanges | None = None
    """Verdicts that differ from those of the first reading."""


def _number_cell(metric: Metric, row: _CellPoint) -> Cell:
    number: Rate | Mean = getattr(row.rates, metric.key)
    return value_cell(metric, exact_value(number), "no success" if metric is UNSAFE_SUCCESS else "")


def _ends_text(metric: Metric, row: _CellPoint) -> str:
    number: Rate | Mean = getattr(row.rates, metric.key)
    return format_ends(metric, None if isinstance(number, Mean) and number.n < 2 else number.ci)


def _number_column(metric: Metric) -> Column:
    return Column(metric.heading, metric.plain_meaning, partial(_number_cell, metric))


_RATE_COLUMNS = (
    _number_column(SAFETY),
    Column("95 %", "Wilson interval", partial(_ends_text, SAFETY)),
    _number_column(SBU),
    Column("95 %", "Wilson interval", partial(_ends_text, SBU)),
    _number_column(UNSAFE_SUCCESS),
    _number_column(VSI),
    Column("95 %", "interval of the mean severity", partial(_ends_text, VSI)),
)
_CELL_COLUMNS = (
    text_column("Policy", lambda row: POLICY.cell(row.cell)),
    text_column("Suite", lambda row: row.cell.suite),
    Column("n", value=lambda row: row.cell.n),
)
_SAME_SR = "SR does not depend on thresholds."


def variant_table(
    ablation: ThresholdAblation, title: str = "Sensitivity to thresholds (variants of the paper's Table 9)"
) -> Table:
    """Return the table of Safety, SBU, P[U|S] and VSI, a row per cell and threshold variant."""
    left_out = f"Left out, as the library has no such family: {', '.join(ablation.left_out)}."
    return tabulate(
        title,
        [
            _CellPoint(curve, variant.name, point)
            for curve in ablation.curves
            for variant, point in zip(ablation.variants, curve.points, strict=True)
        ],
        (*_CELL_COLUMNS, text_column("Variant", lambda row: row.name), *_RATE_COLUMNS),
        notes=(_SAME_SR, left_out if ablation.left_out else ""),
        remarks=ablation.warnings,
    )


def name_variants(sweep: ThresholdSweep, as_it_stands: Sequence[SensitivityCurve]) -> ThresholdAblation:
    """Return a sweep as variants named by their thresholds, after the library's own.

    `as_it_stands`: curves of the same scores with one point, that of the library.
    """
    unit, scale = display_unit(sweep.unit, sweep.default)
    texts = [format_compact(value * scale) for value in (sweep.default, *sweep.thresholds)]
    names = [append_unit(text, unit) if unit else f"threshold {text}" for text in texts]
    names[0] += ", as it stands"
    first = {(curve.policy, curve.suite): curve.points for curve in as_it_stands}
    return ThresholdAblation(
        variants=tuple(ThresholdVariant(name, {}) for name in names),
        curves=tuple(
            msgspec.structs.replace(curve, points=(*first[curve.policy, curve.suite], *curve.points))
            for curve in sweep.curves
        ),
        warnings=sweep.warnings,
    )


# Readings of the paper


def reading_table(comparison: ReadingComparison) -> Table:
    """Return the table of a row per cell and reading, with the verdicts that differ from those of the first reading."""
    return tabulate(
        "Readings of the paper",
        [
            _CellPoint(cell, name, point.rates, point.changes)
            for cell in comparison.cells
            for name, point in zip(comparison.readings, cell.points, strict=True)
        ],
        (
            *_CELL_COLUMNS,
            text_column("Reading", lambda row: row.name),
            Column("all", "verdicts", lambda row: _changed_cell(row.changes), group="Changed"),
            Column("to unsafe", "verdicts", lambda row: row.changes.to_unsafe, group="Changed"),
            Column("to safe", "verdicts", lambda row: row.changes.to_safe, group="Changed"),
            *_RATE_COLUMNS,
            text_column("Violations more or fewer", _format_differences, "episodes, by specification"),
        ),
        notes=(
            f"Changes are from {comparison.readings[0]}. {PROSE_DEPTH.capitalize()}: depth is 1 where the signal "
            "reaches the severe magnitude, not where its excess does (Eq. 1); no verdict depends on it.",
            _SAME_SR.replace("thresholds", "the reading"),
        ),
        remarks=comparison.warnings,
        name="readings",
    )


def _changed_cell(changes: VerdictChanges) -> Cell:
    lost = changes.changed - changes.to_unsafe - changes.to_safe
    return Cell(str(changes.changed), changes.changed, f"{lost} to no verdict" if lost else "")


def _format_differences(row: Any) -> str:
    return ", ".join(f"{spec_id} {'+' if n > 0 else '−'}{abs(n)}" for spec_id, n in row.changes.violations.items())


def describe_readings(comparison: ReadingComparison) -> str:
    """Return under which readings verdicts change."""
    changed = {
        name: sum(cell.points[k].changes.changed for cell in comparison.cells)
        for k, name in enumerate(comparison.readings)
    }
    total = sum(cell.n for cell in comparison.cells)
    counts = [f"{count} under {name}" for name, count in changed.items() if count]
    if not counts:
        return f"No reading of the paper changes one of {total} verdicts."
    return f"Of {total} verdicts {' and '.join(counts)} differ from {comparison.readings[0]}."


def pooled_reading_table(comparison: ReadingComparison) -> Table:
    """Return Safety under each reading but prose depth, which changes no verdict; a column per policy."""
    places = [k for k, name in enumerate(comparison.readings) if not name.endswith(PROSE_DEPTH)]
    safety = _pool_safety((cell.policy, [cell.points[k].rates.safety for k in places]) for cell in comparison.cells)
    names = [comparison.readings[k] for k in places]
    return _pooled_table("Safety % under each reading of the paper", names, safety, comparison.warnings)


# The ranking of policies under the variants


def ranking_table(ranking: RankingSensitivity) -> Table:
    """Return the table of Safety differences under each variant of the thresholds, a row per variant and pair."""
    level = f"{format_compact(100 * ranking.confidence)} %"
    count = len(ranking.variants)
    pairing = "the same episodes, paired" if ranking.paired else f"independent episodes ({ranking.unpaired})"
    return tabulate(
        f"Does the ranking by Safety change? Safest first: {', '.join(ranking.variants[0].order)}",
        [_Ranked(variant, item) for variant in ranking.variants for item in variant.differences],
        (
            text_column("Variant", lambda row: row.variant.variant),
            text_column("A", lambda row: row.of.first),
            text_column("B", lambda row: row.of.second),
            *difference_columns(level, "Safety over all suites, in points"),
            text_column("Told apart", lambda row: verdict_cell(row.of, SAFETY)),
            text_column("Order", _order_cell),
        ),
        notes=(
            f"Differences are of {pairing}. Told apart: under each variant, adjusted for the number of pairs.",
            f"Picked afterwards from {count} variants, a verdict errs more often: for equal policies in 11 to 22 %."
            if count > 1
            else "",
        ),
        name="ranking",
    )


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The difference of two policies in Safety under a variant."""

    variant: VariantRanking
    of: Difference
    metric: Metric = SAFETY


def _order_cell(row: _Ranked) -> Cell:
    is_reversed = {row.of.first, row.of.second} in map(set, row.variant.reversed)
    return Cell("changed", emphasis="bad") if is_reversed else Cell("not shown to change")
