"""Tables of sensitivity: the paper's Table 9, the ranking under its variants, sweeps, and readings of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from safevla_bench.compare.difference import Difference
from safevla_bench.compare.ranking import RankingSensitivity, VariantRanking
from safevla_bench.judging.metrics import Mean, Rate
from safevla_bench.report.tables.comparison import interval_cell, verdict_cell
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation, ThresholdSweep, VariantRates
from safevla_bench.sensitivity.readings import PROSE_DEPTH, ReadingCell, ReadingComparison, VerdictChanges
from safevla_bench.text import NO_VALUE, display_unit, format_compact, format_fixed, format_interval

_METRICS = (
    Column("Safety %", meaning="share of episodes that break no limit"),
    Column("95 %", meaning="Wilson interval"),
    Column("SBU %", meaning="succeeded but unsafe, of all episodes"),
    Column("95 %", meaning="Wilson interval"),
    Column("P[U|S] %", meaning="unsafe, of the successes"),
    Column("VSI", meaning="mean severity of the worst violation, 0 to 1"),
    Column("95 %", meaning="interval of the mean severity"),
)
_NAMES = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("n"))
_WHY = "SR does not depend on thresholds."


def variant_table(ablation: ThresholdAblation) -> Table:
    """Return the table of Safety, SBU, P[U|S] and VSI, a row per cell and threshold variant."""
    heads = [Cell(variant.name) for variant in ablation.variants]
    left_out = f"Left out, as the library has no such family: {', '.join(ablation.left_out)}."
    return Table(
        title="Sensitivity to thresholds (variants of the paper's Table 9)",
        columns=(*_NAMES, Column("Variant", numeric=False), *_METRICS),
        rows=tuple(row for curve in ablation.curves for row in _curve_rows(curve, heads)),
        notes=(_WHY, *([left_out] if ablation.left_out else [])),
        remarks=ablation.warnings,
    )


def reading_table(comparison: ReadingComparison) -> Table:
    """Return the table of a row per cell and reading, with the verdicts that differ from those of the first reading."""
    reference = comparison.readings[0]
    return Table(
        title="Readings of the paper",
        columns=(
            *_NAMES,
            Column("Reading", numeric=False),
            *(Column(name, group="Changed", meaning="verdicts") for name in ("all", "to unsafe", "to safe")),
            *_METRICS,
            Column("Violations more or fewer", numeric=False, meaning="episodes, by specification"),
        ),
        rows=tuple(
            (*_name_cells(cell), Cell(name), *_change_cells(point.changes), *_point_cells(point.rates),
             Cell(_format_differences(point.changes.violations)))
            for cell in comparison.cells
            for name, point in zip(comparison.readings, cell.points, strict=True)
        ),
        notes=(
            f"Changes are from {reference}. {PROSE_DEPTH.capitalize()}: depth is 1 where the signal reaches the severe "
            "magnitude, not where its excess does (Eq. 1); no verdict depends on it.",
            _WHY.replace("thresholds", "the reading"),
        ),
        remarks=comparison.warnings,
        name="readings",
    )  # fmt: skip


def _change_cells(changes: VerdictChanges) -> tuple[Cell, ...]:
    lost = changes.changed - changes.to_unsafe - changes.to_safe
    detail = f"{lost} to no verdict" if lost else ""
    counts = (changes.changed, changes.to_unsafe, changes.to_safe)
    return tuple(Cell(str(count), count, "" if k else detail) for k, count in enumerate(counts))


def _format_differences(violations: Mapping[str, int]) -> str:
    return ", ".join(f"{spec_id} {'+' if count > 0 else '−'}{abs(count)}" for spec_id, count in violations.items())


def sweep_table(sweep: ThresholdSweep) -> Table:
    """Return the table of a row per cell and threshold, in display units; a dagger marks the library's own
    threshold.
    """
    unit, scale = display_unit(sweep.unit, sweep.default)
    rows = []
    for curve in sweep.curves:
        cells = [_threshold_cell(value, scale, value == sweep.default) for value in sweep.thresholds]
        rows += _curve_rows(curve, cells)
    return Table(
        title=f"Sweep of {sweep.name} ({', '.join(sweep.spec_ids)})",
        columns=(*_NAMES, Column(f"Threshold{f' [{unit}]' if unit else ''}"), *_METRICS),
        rows=tuple(rows),
        notes=(
            f"† The library's threshold, {format_compact(sweep.default * scale)} {unit}".rstrip()
            + ". K = severe/threshold stays. "
            + _WHY,
        ),
        remarks=sweep.warnings,
    )


def _threshold_cell(value: float, scale: int, is_default: bool) -> Cell:
    return Cell(format_compact(value * scale), value * scale, mark="†" if is_default else "")


def _curve_rows(curve: SensitivityCurve, heads: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    return [(*_name_cells(curve), head, *_point_cells(point)) for head, point in zip(heads, curve.points, strict=True)]


def _name_cells(cell: SensitivityCurve | ReadingCell) -> tuple[Cell, ...]:
    return Cell(cell.policy or UNNAMED), Cell(cell.suite), Cell(str(cell.n), cell.n)


def _point_cells(point: VariantRates) -> tuple[Cell, ...]:
    """Return Safety and SBU with intervals, P[U|S], and VSI with its interval; dashes where there is no value."""
    unsafe_given_success = point.p_unsafe_given_success
    vsi = point.vsi
    return (
        *_rate_cells(point.safety),
        *_rate_cells(point.sbu),
        _rate_cells(unsafe_given_success)[0] if unsafe_given_success.n else Cell(NO_VALUE, detail="no success"),
        Cell(NO_VALUE) if vsi.value is None else Cell(format_fixed(vsi.value, 3), vsi.value),
        Cell(_format_mean_interval(vsi)),
    )


def _rate_cells(rate: Rate) -> tuple[Cell, Cell]:
    if rate.ci is None:
        return Cell(NO_VALUE), Cell(NO_VALUE)
    percentage = Fraction(100 * rate.count, rate.n)
    value = Cell(format_fixed(percentage, 1), float(percentage))
    return value, Cell(format_interval(*rate.ci, digits=1, scale=100))


def _format_mean_interval(mean: Mean) -> str:
    return NO_VALUE if mean.ci is None or mean.n < 2 else format_interval(*mean.ci, digits=3)


# The ranking of policies under the variants

_SAME = "same"
_MOST_PAIRS = 3
"""With more pairs of policies than this, only those that have another sign somewhere have rows."""


def ranking_table(ranking: RankingSensitivity) -> Table:
    """Return the table of Safety differences under each variant of the thresholds, a row per variant and pair.

    With more than 3 pairs of policies only those whose difference has another sign under some variant have rows.
    """
    names = ranking.variants[0].order
    rows = [
        (variant, item, _order_cell(ranking, variant, item))
        for variant in ranking.variants
        for item in variant.differences
    ]
    moved = {(item.first, item.second) for _, item, order in rows if order.text != _SAME}
    if len(ranking.variants[0].differences) > _MOST_PAIRS:
        rows = [row for row in rows if (row[1].first, row[1].second) in moved]
    level = f"{format_compact(100 * ranking.confidence)} %"
    return Table(
        title=f"Does the ranking by Safety change? Safest first: {', '.join(names)}",
        columns=(
            Column("Variant", numeric=False),
            Column("A", numeric=False),
            Column("B", numeric=False),
            Column("A − B", meaning="Safety over all suites, in points"),
            Column(level, meaning="interval if the same tasks were run again"),
            Column("by task", meaning="interval if other tasks like these were run"),
            Column("Told apart", numeric=False),
            Column("Order", numeric=False),
        ),
        rows=tuple(
            (
                Cell(variant.variant),
                Cell(item.first),
                Cell(item.second),
                Cell(NO_VALUE)
                if item.difference is None
                else Cell(format_fixed(100 * item.difference, 1), 100 * item.difference),
                interval_cell(item.ci, "safety"),
                interval_cell(item.ci_by_task, "safety"),
                verdict_cell(item, "safety"),
                order,
            )
            for variant, item, order in rows
        ),
        notes=tuple(_ranking_notes(ranking)),
        name="ranking",
    )


def _order_cell(ranking: RankingSensitivity, variant: VariantRanking, item: Difference) -> Cell:
    if frozenset((item.first, item.second)) in map(frozenset, variant.reversed):
        return Cell("turned over", emphasis="bad")
    reference = {(other.first, other.second): other.difference for other in ranking.variants[0].differences}
    is_other = (reference[item.first, item.second] or 0.0) * (item.difference or 0.0) < 0
    return Cell("other, not shown" if is_other else _SAME)


def _ranking_notes(ranking: RankingSensitivity) -> Iterator[str]:
    """Yield which pairs each variant turns over, or that none is, and whether the episodes are paired."""
    count = len(ranking.variants)
    if not ranking.changes:
        yield f"No pair of policies is shown to be turned over by any of the {count} variants."
    for variant in ranking.changes:
        pairs = "; ".join(f"{after} above {before}" for before, after in variant.reversed)
        yield f"{variant.variant} turns over: {pairs}."
    pairing = "the same episodes, paired" if ranking.paired else f"independent episodes ({ranking.unpaired})"
    yield f"Differences are of {pairing}. Told apart: under each variant, adjusted for the number of pairs."
    if count > 1:
        yield f"Picked afterwards from {count} variants, a verdict errs more often: for equal policies in 11 to 22 %."
