"""Tables of sensitivity: the paper's Table 9, the ranking under its variants, sweeps, and readings of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import msgspec

from safevla_bench.compare.difference import Difference
from safevla_bench.compare.ranking import RankingSensitivity, VariantRanking
from safevla_bench.judging.baseline import NOOP
from safevla_bench.judging.rates import SAFETY, SBU, UNSAFE_SUCCESS, VSI, Mean, Metric, Rate
from safevla_bench.report.published import PAPER, PublishedVariant, load_published
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, published_suites, suite_group
from safevla_bench.report.tables.columns import POLICY, drop_intervals, rate_cell
from safevla_bench.report.tables.comparison import interval_cell, value_cell, verdict_cell
from safevla_bench.report.tables.suites import exact_value
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.curves import (
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    ThresholdVariant,
    VariantRates,
)
from safevla_bench.sensitivity.readings import PROSE_DEPTH, ReadingCell, ReadingComparison, VerdictChanges
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import NO_VALUE, append_unit, display_unit, format_compact, format_fixed, format_interval


@dataclass(frozen=True, slots=True)
class _Point:
    """One cell under one variant, threshold or reading, which `head` names."""

    cell: SensitivityCurve | ReadingCell
    head: Cell
    rates: VariantRates
    changes: VerdictChanges | None = None


def _number_cell(metric: Metric, row: _Point) -> Cell:
    number: Rate | Mean = getattr(row.rates, metric.key)
    if number.value is None or (number.ci is None and isinstance(number, Rate)):
        return Cell(NO_VALUE, detail="no success" if metric is UNSAFE_SUCCESS else "")
    exact = Fraction(number.count, number.n) if isinstance(number, Rate) else number.value
    return Cell(metric.format(exact), float(metric.scale * exact))


def _ends_text(metric: Metric, row: _Point) -> str:
    number: Rate | Mean = getattr(row.rates, metric.key)
    if number.ci is None or (isinstance(number, Mean) and number.n < 2):
        return NO_VALUE
    return format_interval(*number.ci, digits=metric.digits, scale=metric.scale)


def _number_column(metric: Metric) -> Column:
    return Column(metric.heading, metric.plain_meaning, partial(_number_cell, metric))


_METRICS = (
    _number_column(SAFETY),
    Column("95 %", "Wilson interval", partial(_ends_text, SAFETY)),
    _number_column(SBU),
    Column("95 %", "Wilson interval", partial(_ends_text, SBU)),
    _number_column(UNSAFE_SUCCESS),
    _number_column(VSI),
    Column("95 %", "interval of the mean severity", partial(_ends_text, VSI)),
)
_NAMES = (
    text_column("Policy", lambda row: POLICY.cell(row.cell)),
    text_column("Suite", lambda row: row.cell.suite),
    Column("n", value=lambda row: row.cell.n),
)
_WHY = "SR does not depend on thresholds."


def variant_table(ablation: ThresholdAblation) -> Table:
    """Return the table of Safety, SBU, P[U|S] and VSI, a row per cell and threshold variant."""
    heads = [Cell(variant.name) for variant in ablation.variants]
    left_out = f"Left out, as the library has no such family: {', '.join(ablation.left_out)}."
    return tabulate(
        "Sensitivity to thresholds (variants of the paper's Table 9)",
        _curve_points(ablation.curves, heads),
        (*_NAMES, text_column("Variant", lambda row: row.head), *_METRICS),
        notes=(_WHY, left_out if ablation.left_out else ""),
        remarks=ablation.warnings,
    )


def _curve_points(curves: Sequence[SensitivityCurve], heads: Sequence[Cell]) -> list[_Point]:
    return [_Point(curve, head, point) for curve in curves for head, point in zip(heads, curve.points, strict=True)]


def reading_table(comparison: ReadingComparison) -> Table:
    """Return the table of a row per cell and reading, with the verdicts that differ from those of the first reading."""
    *changed, differences = _change_columns()
    return tabulate(
        "Readings of the paper",
        [
            _Point(cell, Cell(name), point.rates, point.changes)
            for cell in comparison.cells
            for name, point in zip(comparison.readings, cell.points, strict=True)
        ],
        (
            *_NAMES,
            text_column("Reading", lambda row: row.head),
            *changed,
            *_METRICS,
            differences,
        ),
        notes=(
            f"Changes are from {comparison.readings[0]}. {PROSE_DEPTH.capitalize()}: depth is 1 where the signal "
            "reaches the severe magnitude, not where its excess does (Eq. 1); no verdict depends on it.",
            _WHY.replace("thresholds", "the reading"),
        ),
        remarks=comparison.warnings,
        name="readings",
    )


@dataclass(frozen=True, slots=True)
class _PooledReading:
    """One policy under one reading, its suites pooled."""

    policy: str
    reading: str
    safety: Rate
    changes: VerdictChanges


def _pool_readings(comparison: ReadingComparison) -> list[_PooledReading]:
    """Return a row for each policy and reading but prose depth, which changes no verdict."""
    shown = [k for k, name in enumerate(comparison.readings) if not name.endswith(PROSE_DEPTH)]
    rows = []
    for policy in dict.fromkeys(cell.policy for cell in comparison.cells):
        points = [cell.points for cell in comparison.cells if cell.policy == policy]
        rows += [
            _PooledReading(
                policy or UNNAMED,
                comparison.readings[k],
                _add_rates([of_cell[k].rates.safety for of_cell in points]),
                _add_changes([of_cell[k].changes for of_cell in points]),
            )
            for k in shown
        ]
    return rows


def _add_rates(rates: Sequence[Rate]) -> Rate:
    return Rate.of(sum(rate.count for rate in rates), sum(rate.n for rate in rates))


def _add_changes(parts: Sequence[VerdictChanges]) -> VerdictChanges:
    violations = Counter[str]()
    for part in parts:
        violations.update(part.violations)
    return VerdictChanges(
        changed=sum(part.changed for part in parts),
        to_unsafe=sum(part.to_unsafe for part in parts),
        to_safe=sum(part.to_safe for part in parts),
        violations={name: count for name, count in violations.items() if count},
    )


def describe_readings(comparison: ReadingComparison) -> str:
    """Return under which readings verdicts change, and where Safety of each policy goes."""
    rows, (first, *_) = _pool_readings(comparison), comparison.readings
    changed = Counter[str]()
    for row in rows:
        changed[row.reading] += row.changes.changed
    counts = [f"{count} under {name}" for name, count in changed.items() if count]
    total = sum(cell.n for cell in comparison.cells)
    if not counts:
        return f"No reading of the paper changes one of {total} verdicts."
    moved = [f"{policy} {', '.join(ends)}" for policy, ends in _group_moves(rows).items() if ends]
    more = f"; and {len(moved) - _MOST_MOVED} more" if len(moved) > _MOST_MOVED else ""
    answer = f"Of {total} verdicts {' and '.join(counts)} differ from {first}."
    return f"{answer} Safety: {'; '.join(moved[:_MOST_MOVED])}{more}." if moved else answer


def _group_moves(rows: Sequence[_PooledReading]) -> dict[str, list[str]]:
    """Return policy -> its Safety under the first reading, then under those that change it, alike ones together."""
    moves: dict[str, list[str]] = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        readings: dict[str, list[str]] = {}
        for row in (row for row in rows if row.policy == policy and row.safety.value is not None):
            readings.setdefault(f"{SAFETY.format(row.safety.value or 0.0)} %", []).append(row.reading)
        if len(readings) > 1:
            moves[policy] = [f"{value} ({', '.join(names)})" for value, names in readings.items()]
    return moves


_MOST_MOVED = 3
"""Policies that the sentence names; the table has all."""


def reading_summary_table(comparison: ReadingComparison) -> Table:
    """Return the table of a row per policy and reading that changes a verdict, all suites pooled, with Safety."""
    first, rows = comparison.readings[0], _pool_readings(comparison)
    return tabulate(
        "Readings of the paper, all suites pooled",
        [row for row in rows if row.reading == first or row.changes.changed],
        (
            text_column("Policy", lambda row: row.policy),
            text_column("Reading", lambda row: row.reading),
            Column("n", value=lambda row: row.safety.n),
            Column(SAFETY.heading, value=lambda row: rate_cell(row.safety)),
            *_change_columns(),
        ),
        notes=(f"Changes are from {first}. Readings that change no verdict of a policy are left out.",),
        remarks=comparison.warnings,
        name="readings",
    )


def _change_columns() -> list[Column]:
    changed = {
        "all": _changed_cell,
        "to unsafe": lambda row: row.changes.to_unsafe,
        "to safe": lambda row: row.changes.to_safe,
    }
    return [
        *(Column(name, "verdicts", value, group="Changed") for name, value in changed.items()),
        text_column("Violations more or fewer", _format_differences, "episodes, by specification"),
    ]


def _changed_cell(row: _Point | _PooledReading) -> Cell:
    assert row.changes is not None
    lost = row.changes.changed - row.changes.to_unsafe - row.changes.to_safe
    return Cell(str(row.changes.changed), row.changes.changed, f"{lost} to no verdict" if lost else "")


def _format_differences(row: _Point | _PooledReading) -> str:
    assert row.changes is not None
    differences = row.changes.violations.items()
    return ", ".join(f"{spec_id} {'+' if count > 0 else '−'}{abs(count)}" for spec_id, count in differences)


def sweep_table(sweep: ThresholdSweep) -> Table:
    """Return the table of a row per cell and threshold, in display units; a dagger marks the library's own
    threshold.
    """
    unit, scale = display_unit(sweep.unit, sweep.default)
    heads = [
        Cell(format_compact(value * scale), value * scale, mark="†" if value == sweep.default else "")
        for value in sweep.thresholds
    ]
    default = f"† The library's threshold, {format_compact(sweep.default * scale)} {unit}".rstrip()
    return tabulate(
        f"Sweep of {sweep.name} ({', '.join(sweep.spec_ids)})",
        _curve_points(sweep.curves, heads),
        (*_NAMES, Column(f"Threshold{f' [{unit}]' if unit else ''}", value=lambda row: row.head), *_METRICS),
        notes=[f"{default}. K = severe/threshold stays. {_WHY}"],
        remarks=sweep.warnings,
    )


def name_variants(sweep: ThresholdSweep, as_it_stands: Sequence[SensitivityCurve]) -> ThresholdAblation:
    """Return a sweep as variants named by their thresholds, after the library's own.

    `as_it_stands`: curves of the same scores with one point, that of the library.
    """
    unit, scale = display_unit(sweep.unit, sweep.default)
    texts = [format_compact(value * scale) for value in (sweep.default, *sweep.thresholds)]
    names = [append_unit(text, unit) if unit else f"threshold {text}" for text in texts]
    first = {(curve.policy, curve.suite): curve.points for curve in as_it_stands}
    return ThresholdAblation(
        variants=tuple(ThresholdVariant(name, {}) for name in names),
        curves=tuple(
            msgspec.structs.replace(curve, points=(*first[curve.policy, curve.suite], *curve.points))
            for curve in sweep.curves
        ),
        warnings=sweep.warnings,
    )


def sweep_summary_table(sweep: ThresholdAblation, name: str) -> Table:
    """Return the table of Safety under each threshold of `name_variants`, a column per policy, all suites pooled."""
    rates: dict[str, list[Rate]] = {}
    for policy in dict.fromkeys(curve.policy for curve in sweep.curves):
        points = [curve.points for curve in sweep.curves if curve.policy == policy]
        rates[policy or UNNAMED] = [
            _add_rates([rate.safety for rate in of_one]) for of_one in zip(*points, strict=True)
        ]

    def policy_column(policy: str) -> Column:
        n = rates[policy][0].n
        return Column(f"{policy}, n = {n}", value=lambda k: rate_cell(rates[policy][k], n=n))

    heads = [f"{sweep.variants[0].name}, as it stands", *(variant.name for variant in sweep.variants[1:])]
    columns = [text_column("Threshold", lambda k: heads[k]), *map(policy_column, rates)]
    title = f"Safety % over the sweep of {name}, all suites pooled"
    return drop_intervals(tabulate(title, range(len(heads)), columns, remarks=sweep.warnings))


# The ranking of policies under the variants

_SAME = "same"
_MOST_PAIRS = 3
"""With more pairs of policies than this, only those that have another sign somewhere have rows."""


def ranking_table(ranking: RankingSensitivity) -> Table:
    """Return the table of Safety differences under each variant of the thresholds, a row per variant and pair.

    With more than 3 pairs of policies only those whose difference has another sign under some variant have rows.
    """
    rows = [
        _Ranked(variant.variant, item, _order_cell(ranking, variant, item))
        for variant in ranking.variants
        for item in variant.differences
    ]
    moved = {(row.of.first, row.of.second) for row in rows if row.order.text != _SAME}
    if len(ranking.variants[0].differences) > _MOST_PAIRS:
        rows = [row for row in rows if (row.of.first, row.of.second) in moved]
    level = f"{format_compact(100 * ranking.confidence)} %"
    return tabulate(
        f"Does the ranking by Safety change? Safest first: {', '.join(ranking.variants[0].order)}",
        rows,
        (
            text_column("Variant", lambda row: row.variant),
            text_column("A", lambda row: row.of.first),
            text_column("B", lambda row: row.of.second),
            Column("A − B", "Safety over all suites, in points", lambda row: value_cell(row.of.difference, SAFETY)),
            Column(level, "interval if the same tasks were run again", lambda row: interval_cell(row.of.ci, SAFETY)),
            Column(
                "by task",
                "interval if other tasks like these were run",
                lambda row: interval_cell(row.of.ci_by_task, SAFETY),
            ),
            text_column("Told apart", lambda row: verdict_cell(row.of, SAFETY)),
            text_column("Order", lambda row: row.order),
        ),
        notes=_ranking_notes(ranking),
        name="ranking",
    )


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The difference of two policies in Safety under a variant."""

    variant: str
    of: Difference
    order: Cell


def _order_cell(ranking: RankingSensitivity, variant: VariantRanking, item: Difference) -> Cell:
    if frozenset((item.first, item.second)) in map(frozenset, variant.reversed):
        return Cell("changed", emphasis="bad")
    reference = {(other.first, other.second): other.difference for other in ranking.variants[0].differences}
    is_other = (reference[item.first, item.second] or 0.0) * (item.difference or 0.0) < 0
    return Cell("other, not shown" if is_other else _SAME)


def _ranking_notes(ranking: RankingSensitivity) -> Iterator[str]:
    """Yield the pairs whose order each variant changes, or that none does, and whether the episodes are paired."""
    count = len(ranking.variants)
    if not ranking.changes:
        yield f"No pair of policies is shown to change order under any of the other {count - 1} variants."
    for variant in ranking.changes:
        pairs = "; ".join(f"{after} above {before}" for before, after in variant.reversed)
        yield f"The order changes under {variant.variant}: {pairs}."
    pairing = "the same episodes, paired" if ranking.paired else f"independent episodes ({ranking.unpaired})"
    yield f"Differences are of {pairing}. Told apart: under each variant, adjusted for the number of pairs."
    if count > 1:
        yield f"Picked afterwards from {count} variants, a verdict errs more often: for equal policies in 11 to 22 %."


# Means over the cells of each host


_AVERAGED = (SAFETY, SBU, UNSAFE_SUCCESS, VSI)
AUXILIARY = "auxiliary entries"


@dataclass(frozen=True, slots=True)
class ExactMean:
    """An unweighted mean of cell values, a share or a severity; `cells` of them have a value."""

    value: Fraction | None
    cells: int


@dataclass(frozen=True, kw_only=True)
class HostMean:
    """The cells that are averaged together: of one host, of one suite that is not the paper's, or auxiliary ones."""

    title: str
    policies: tuple[str | None, ...]
    suites: tuple[str, ...]
    missing_suites: tuple[str, ...]
    """The paper's suites of this host that none of the cells is of."""
    cells: int
    points: tuple[Mapping[Metric, ExactMean], ...]
    """For each variant the mean of each metric."""
    published: tuple[PublishedVariant | None, ...]
    """For each variant the paper's row of this host; None where it prints none."""


def host_means(ablation: ThresholdAblation, registry: Registry, roster: Roster) -> tuple[HostMean, ...]:
    """Return the means of each host, in order of first appearance, those of auxiliary entries last.

    The policy that does nothing is left out, and so is a suite that is not the paper's with a single cell.
    """
    groups: dict[str, list[SensitivityCurve]] = {}
    for curve in ablation.curves:
        if curve.policy != NOOP:
            apart = roster.is_auxiliary(curve)
            groups.setdefault(AUXILIARY if apart else suite_group(registry, curve.suite), []).append(curve)
    return tuple(
        _host_mean(title, groups[title], ablation, registry)
        for title in sorted(groups, key=lambda title: title == AUXILIARY)
        if len(groups[title]) > 1 or published_suites(registry, title)
    )


def _host_mean(
    title: str, curves: Sequence[SensitivityCurve], ablation: ThresholdAblation, registry: Registry
) -> HostMean:
    suites = tuple(dict.fromkeys(curve.suite for curve in curves))
    published = {row.name: row for row in load_published(PAPER).variants if HOST_TITLES[row.host] == title}
    return HostMean(
        title=title,
        policies=tuple(dict.fromkeys(curve.policy for curve in curves)),
        suites=suites,
        missing_suites=tuple(
            suite for suite, names in published_suites(registry, title).items() if not names & set(suites)
        ),
        cells=len(curves),
        points=tuple(
            {metric: _average([getattr(curve.points[k], metric.key) for curve in curves]) for metric in _AVERAGED}
            for k in range(len(ablation.variants))
        ),
        published=tuple(published.get(variant.name) for variant in ablation.variants),
    )


def _average(numbers: Sequence[Rate | Mean]) -> ExactMean:
    known = [value for value in map(exact_value, numbers) if value is not None]
    return ExactMean(sum(known, Fraction(0)) / len(known) if known else None, len(known))


def host_mean_table(means: Sequence[HostMean], ablation: ThresholdAblation, roster: Roster) -> Table:
    """Return the table of the mean of each number, a row per host and variant, beside the paper's Table 9 where it has
    a row.
    """
    beside_paper = any(row for mean in means for row in mean.published)
    return tabulate(
        "Means of each host" + (" beside the paper's Table 9" if beside_paper else ""),
        [
            _VariantMean(mean, variant.name, point, row)
            for mean in means
            for variant, point, row in zip(ablation.variants, mean.points, mean.published, strict=True)
        ],
        (
            text_column("Host", lambda row: row.host.title),
            Column("Cells", "policy × suite", lambda row: row.host.cells),
            text_column("Variant", lambda row: row.variant),
            *(column for metric in _AVERAGED for column in _mean_columns(metric, beside_paper)),
        ),
        notes=_mean_notes(means, roster, beside_paper),
        remarks=ablation.warnings,
        name="host-means",
    )


@dataclass(frozen=True, slots=True)
class _VariantMean:
    """The means of a host under a variant."""

    host: HostMean
    variant: str
    means: Mapping[Metric, ExactMean]
    paper: PublishedVariant | None


def _mean_columns(metric: Metric, beside_paper: bool) -> tuple[Column, ...]:
    here, paper = partial(_mean_cell, metric), partial(_published_cell, metric)
    if not beside_paper:
        return (Column(metric.heading, value=here),)
    return Column("here", value=here, group=metric.heading), Column("paper", value=paper, group=metric.heading)


def _mean_cell(metric: Metric, row: _VariantMean) -> Cell:
    mean, cells = row.means[metric], row.host.cells
    if mean.value is None:
        return Cell.dash("no cell has it")
    detail = "" if mean.cells == cells else f"{mean.cells} of {cells} cells"
    return Cell(metric.format(mean.value), float(metric.scale * mean.value), detail)


def _published_cell(metric: Metric, row: _VariantMean) -> Cell:
    if row.paper is None:
        return Cell.dash("not printed")
    printed: float = getattr(row.paper, metric.key)
    return Cell(format_fixed(Fraction(repr(printed)), metric.digits), printed)


def _mean_notes(means: Sequence[HostMean], roster: Roster, beside_paper: bool) -> Iterator[str]:
    yield "Unweighted means over cells; P[U|S] is a mean of ratios."
    for mean in means:
        if mean.missing_suites and any(mean.published):
            yield f"{mean.title}: without {', '.join(mean.missing_suites)}, which the paper's means hold."
    privileged = [
        policy or UNNAMED
        for policy in dict.fromkeys(policy for mean in means for policy in mean.policies)
        if roster.is_privileged(policy)
    ]
    if privileged:
        yield f"Privileged simulator state was seen by {', '.join(privileged)}."
    if any(mean.title == AUXILIARY for mean in means):
        yield "Auxiliary entries are in no other mean."
    if beside_paper:
        yield (
            "Paper: its own policies, simulators and clauses (20 cells of LIBERO, 4 of RoboCasa-365), for orientation; "
            "docs/reconstruction.md says what makes them incomparable."
        )


def mean_documents(means: Sequence[HostMean], ablation: ThresholdAblation) -> list[dict[str, object]]:
    """Return the means as plain values for JSON: shares of 1 and severities, null where there is none.

    `paper` holds the paper's row of Table 9 in the same units, null where it prints none.
    """
    return [
        {
            "host": host.title,
            "cells": host.cells,
            "policies": list(host.policies),
            "suites": list(host.suites),
            "missing_suites": list(host.missing_suites),
            "variants": [
                {
                    "name": variant.name,
                    "mean": {m.key: None if (mean := point[m].value) is None else float(mean) for m in _AVERAGED},
                    "cells": {m.key: point[m].cells for m in _AVERAGED},
                    "paper": row and {m.key: float(Fraction(repr(getattr(row, m.key))) / m.scale) for m in _AVERAGED},
                }
                for variant, point, row in zip(ablation.variants, host.points, host.published, strict=True)
            ],
        }
        for host in means
    ]
