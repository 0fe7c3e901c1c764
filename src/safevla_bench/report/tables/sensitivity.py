"""Sensitivity to thresholds and to interpretations of the paper, as text and tables: Safety, means, and ranking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import msgspec

from safevla_bench.compare.decisions import RankingSensitivity, VariantRanking
from safevla_bench.compare.difference import Difference
from safevla_bench.judging.metrics import NOOP
from safevla_bench.judging.rates import SAFETY, SBU, UNSAFE_SUCCESS, VSI, Metric, Rate
from safevla_bench.report.published import NOT_PRINTED, PAPER, PublishedVariant, load_published
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, exact_value, published_suites, suite_group
from safevla_bench.report.tables.columns import POLICY, drop_intervals, rate_cell, value_cell
from safevla_bench.report.tables.comparison import choose_letters, difference_columns, verdict_cell
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
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import append_unit, display_unit, format_compact

# Maximum number of policies that the text describes; further policies are only in the table.
_MOST_NAMED = 3
_METRICS = (SAFETY, SBU, UNSAFE_SUCCESS, VSI)


# The answer: Safety of each policy, with all suites pooled


def _pool_safety(curves: Iterable[tuple[str | None, Sequence[Rate]]]) -> dict[str, list[Rate]]:
    # Return policy -> rates over all suites, one rate per variant.
    # Each item of `curves` is a policy and its rates on one suite, one rate per variant.
    rates_by_policy: dict[str, list[Sequence[Rate]]] = {}
    for policy, rates in curves:
        rates_by_policy.setdefault(policy or UNNAMED, []).append(rates)
    return {
        policy: [Rate.pool(rates) for rates in zip(*suite_rates, strict=True)]
        for policy, suite_rates in rates_by_policy.items()
    }


def _pool_curves(ablation: ThresholdAblation) -> dict[str, list[Rate]]:
    # Return policy -> Safety over all suites, one rate per threshold variant.
    # A curve contains a point per variant, with the rates of one policy on one suite.
    return _pool_safety((curve.policy, [point.safety for point in curve.points]) for curve in ablation.curves)


def describe_sensitivity(ablation: ThresholdAblation, ranking: RankingSensitivity | None) -> str:
    """Return as text the range of Safety of a few policies, and the pairs of policies that change their order."""
    # Policy -> its Safety under each variant, and the names of the variants in the same order.
    safety, names = _pool_curves(ablation), [variant.name for variant in ablation.variants]
    # Policies with a change in Safety are selected first (False sorts before True).
    # The sentences are in the order of the table.
    changing_first = sorted(safety, key=lambda policy: len({rate.value for rate in safety[policy]}) == 1)
    described = changing_first[:_MOST_NAMED]
    sentences = [_range_sentence(policy, rates, names) for policy, rates in safety.items() if policy in described]
    if hidden_count := len(safety) - len(sentences):
        sentences.append(f"The table has {hidden_count} more {'policy' if hidden_count == 1 else 'policies'}.")
    return " ".join([*sentences, *_order_sentences(ranking, len(safety))])


def _range_sentence(policy: str, rates: Sequence[Rate], variant_names: Sequence[str]) -> str:
    # Return a sentence on a policy's Safety under the default thresholds, and on its range under other variants.
    # `rates` has one rate per variant; the first variant is the default.
    if not rates[0].n:
        return f"Safety of {policy} has no value: no specification reached a verdict."
    # A variant has no value if no episode is judged under it (`n` is 0).
    known_values = [(rate.value or 0.0, name) for rate, name in zip(rates, variant_names, strict=True) if rate.n]
    default = rates[0].value or 0.0
    # The smallest and the largest value, each with the name of its (first) variant.
    least, greatest = min(known_values, key=itemgetter(0)), max(known_values, key=itemgetter(0))
    # The text names other variants only if their values differ from the default's.
    ends = [f"{SAFETY.format(value)} % ({name})" for value, name in (least, greatest) if value != default]
    unchanged_text = f" under each variant{' that has a value' if len(known_values) < len(rates) else ''}"
    range_text = f"; {' and '.join(ends)} under other thresholds" if ends else unchanged_text
    fewest, most = min(rate.n for rate in rates), max(rate.n for rate in rates)
    judged_text = f", judged in {fewest} to {most} episodes" if fewest < most else ""
    return f"Safety of {policy} is {SAFETY.format(default)} %{range_text}{judged_text}."


def _order_sentences(ranking: RankingSensitivity | None, policy_count: int) -> Iterator[str]:
    # Yield whether the order of policies by Safety changes under a variant of the thresholds.
    # `ranking` is None if the policies cannot be ranked.
    # `reversed` lists the pairs of policies whose order is significantly reversed under a variant.
    if ranking is None:
        if policy_count > 1:
            yield "It is not known if the order changes: under some variant, the policies cannot be ranked."
        return
    changes = []
    for variant in ranking.changes:
        # In a reversed pair, the first policy is safer under the default thresholds, the second under the variant.
        pairs = ", ".join(f"{after} above {before}" for before, after in variant.reversed)
        changes.append(f"{variant.variant} ({pairs})")
    yield f"The order changes under {'; '.join(changes)}." if changes else "No two policies are shown to change order."


def pooled_table(ablation: ThresholdAblation, title: str) -> Table:
    """Return the table of Safety under each variant of the thresholds, all suites pooled, with a column per policy."""
    names = [variant.name for variant in ablation.variants]
    return _pooled_table(title, names, _pool_curves(ablation), ablation.warnings)


def _pooled_table(
    title: str, row_names: Sequence[str], safety: Mapping[str, Sequence[Rate]], remarks: Sequence[str]
) -> Table:
    # Return a table with a row per variant and a column per policy.
    # `safety` is policy -> rates, with one rate for each of `row_names`.
    def policy_column(policy: str, rates: Sequence[Rate]) -> Column:
        # Return the column with the policy's Safety. Rows are indices into `row_names` and `rates`.
        # A cell shows its n only if it differs from the first row's.
        return Column(f"{policy}, n = {rates[0].n}", value=lambda k: rate_cell(rates[k], n=rates[0].n))

    columns = [text_column("", lambda k: row_names[k]), *(policy_column(policy, safety[policy]) for policy in safety)]
    return drop_intervals(tabulate(f"{title}, all suites pooled", range(len(row_names)), *columns, remarks=remarks))


# Tables with a row per policy, suite and variant of the thresholds


class _CellPoint(NamedTuple):
    cell: SensitivityCurve | ReadingCell
    name: str
    rates: VariantRates
    changes: VerdictChanges | None = None  # changes relative to the first interpretation of the paper


def _number_cell(metric: Metric, row: _CellPoint) -> Cell:
    # Return the value of a metric in one row (a policy, a suite and a variant); a dash without a value.
    # `row.rates` are the variant's rates, and `row.cell.n` is the number of the policy's episodes on the suite.
    number = getattr(row.rates, metric.key)
    # `n` is the expected number of episodes; the cell shows any other number (`of`).
    # P[U|S] is over successes. The cell shows the number of successes only if SBU does not cover all episodes.
    n = number.n if metric is UNSAFE_SUCCESS and row.rates.sbu.n == row.cell.n else row.cell.n
    cell = value_cell(metric, exact_value(number), number.unknown or ("no success" if metric is UNSAFE_SUCCESS else ""))
    return replace(cell, of=None if number.n in (0, n) else number.n)


_RATE_COLUMNS = [Column(metric.heading, metric.plain_meaning, partial(_number_cell, metric)) for metric in _METRICS]
_CELL_COLUMNS = (
    text_column("Policy", lambda row: POLICY.cell(row.cell)),
    text_column("Suite", lambda row: row.cell.suite),
    Column("n", value=lambda row: row.cell.n),
)
_SAME_SR = "SR does not depend on thresholds."
_INTERVALS = "The output of --format json has the intervals."


def variant_table(
    ablation: ThresholdAblation, title: str = "Sensitivity to thresholds (variants of the paper's Table 9)"
) -> Table:
    """Return the table of Safety, SBU, P[U|S] and VSI, with a row per policy, suite and threshold variant."""
    # A row contains a curve (a policy on a suite), the name of a variant, and the rates under this variant.
    # The note `left_out` is used only if a variant was left out.
    left_out = f"Variants left out, because the library lacks their specifications: {', '.join(ablation.left_out)}."
    return tabulate(
        title,
        [
            _CellPoint(curve, variant.name, point)
            for curve in ablation.curves
            for variant, point in zip(ablation.variants, curve.points, strict=True)
        ],
        *_CELL_COLUMNS,
        text_column("Variant", lambda row: row.name),
        *_RATE_COLUMNS,
        notes=(_SAME_SR, _INTERVALS, left_out if ablation.left_out else ""),
        remarks=ablation.warnings,
    )


def name_variants(sweep: ThresholdSweep, library_curves: Sequence[SensitivityCurve]) -> ThresholdAblation:
    """Return a sweep as variants that are named by their thresholds. The first variant has the library's threshold.
    `library_curves` are curves of each policy × suite, with a single point: the library's threshold.
    """
    unit, scale = display_unit(sweep.unit, sweep.default)
    # The library's threshold comes first; `scale` converts m to mm for small lengths.
    texts = [format_compact(value * scale) for value in (sweep.default, *sweep.thresholds)]
    names = [append_unit(text, unit) if unit else f"threshold {text}" for text in texts]
    names[0] += ", as in the library"
    # (policy, suite) -> the point of the library's threshold, which is put before the points of the sweep.
    first_points = {(curve.policy, curve.suite): curve.points for curve in library_curves}
    return ThresholdAblation(
        variants=tuple(ThresholdVariant(name, settings={}) for name in names),
        curves=tuple(
            msgspec.structs.replace(curve, points=(*first_points[curve.policy, curve.suite], *curve.points))
            for curve in sweep.curves
        ),
        warnings=sweep.warnings,
    )


# Readings of the paper


def reading_table(comparison: ReadingComparison) -> Table:
    """Return the table with a row per policy, suite and interpretation, with counts of changed verdicts."""
    # A reading is an interpretation of the paper. A row is a policy on a suite under one reading.
    # A row contains the rates under one reading of the specifications.
    # It also contains the number of verdicts that differ from the verdicts under the first reading.
    return tabulate(
        "Readings of the paper",
        [
            _CellPoint(cell, name, point.rates, point.changes)
            for cell in comparison.cells
            for name, point in zip(comparison.readings, cell.points, strict=True)
        ],
        *_CELL_COLUMNS,
        text_column("Reading", lambda row: row.name),
        Column("all", "verdicts", _changed_cell, group="Changed"),
        Column("to unsafe", "verdicts", lambda row: row.changes.to_unsafe, group="Changed"),
        Column("to safe", "verdicts", lambda row: row.changes.to_safe, group="Changed"),
        *_RATE_COLUMNS,
        text_column("Change in violations", _format_differences, "episodes, by specification"),
        notes=(
            f"Changes are relative to {comparison.readings[0]}. {PROSE_DEPTH.capitalize()}: the depth is 1 if the "
            "signal itself reaches the severe magnitude. In Eq. 1, it is 1 if the signal's excess over the limit "
            "reaches this magnitude. The choice between the two changes no verdict.",
            _INTERVALS,
        ),
        remarks=comparison.warnings,
        name="readings",
    )


def _changed_cell(row: _CellPoint) -> Cell:
    # Return the number of changed verdicts; below it, how many of them changed to no verdict.
    # In rows of this table, `changes` is never None.
    assert row.changes is not None
    to_no_verdict = row.changes.changed - row.changes.to_unsafe - row.changes.to_safe
    detail = f"{to_no_verdict} to no verdict" if to_no_verdict else ""
    return Cell(str(row.changes.changed), row.changes.changed, detail)


def _format_differences(row: _CellPoint) -> str:
    # Return for example `joint_torque +2, tilt −1`: changes in the number of violating episodes; zeros are left out.
    # In rows of this table, `changes` is never None.
    assert row.changes is not None
    return ", ".join(f"{spec_id} {'+' if n > 0 else '−'}{abs(n)}" for spec_id, n in row.changes.violations.items())


def describe_readings(comparison: ReadingComparison) -> str:
    """Return a sentence on how many verdicts change under each interpretation (reading) of the paper."""
    # Reading (interpretation) -> number of changed verdicts over all cells (policy × suite); point k is of reading k.
    changed = {
        name: sum(cell.points[k].changes.changed for cell in comparison.cells)
        for k, name in enumerate(comparison.readings)
    }
    verdicts = sum(cell.n for cell in comparison.cells)
    counts = [f"{count} under {name}" for name, count in changed.items() if count]
    if not counts:
        return f"No reading of the paper changes any of {verdicts} verdicts."
    return f"Of {verdicts} verdicts, {' and '.join(counts)} differ from the verdicts under {comparison.readings[0]}."


def pooled_reading_table(comparison: ReadingComparison) -> Table:
    """Return the table of Safety by policy under each interpretation except `PROSE_DEPTH`, which changes no verdict."""
    # A cell is one policy on one suite. Point k of each cell belongs to reading (interpretation) k.
    reading_indices = [k for k, name in enumerate(comparison.readings) if not name.endswith(PROSE_DEPTH)]
    safety = _pool_safety(
        (cell.policy, [cell.points[k].rates.safety for k in reading_indices]) for cell in comparison.cells
    )
    names = [comparison.readings[k] for k in reading_indices]
    return _pooled_table("Safety % under each reading of the paper", names, safety, comparison.warnings)


# The ranking of policies under the variants


def ranking_table(ranking: RankingSensitivity) -> Table:
    """Return the table of differences in Safety, with a row per threshold variant and pair of policies."""
    level = f"{format_compact(100 * ranking.confidence)} %"
    # The first variant has the default thresholds; its policies are in order, the safest first.
    # A row is the difference (`result`) of a pair of policies under one variant.
    letters = choose_letters(ranking.variants[0].order)
    count = len(ranking.variants)
    pairing = "the same episodes, paired" if ranking.paired else f"independent episodes ({ranking.unpaired})"
    return tabulate(
        f"Does the ranking by Safety change? Safest first: {', '.join(ranking.variants[0].order)}",
        [_Ranked(result, variant) for variant in ranking.variants for result in variant.differences],
        text_column("Variant", lambda row: row.variant.variant),
        text_column(letters[0], lambda row: row.result.first),
        text_column(letters[1], lambda row: row.result.second),
        *difference_columns(level, letters, "Safety over all suites, in points"),
        text_column("Better", lambda row: verdict_cell(row.result, SAFETY, letters)),
        text_column("Order", _order_cell),
        notes=(
            f"Basis of the differences: {pairing}. Verdicts in the column Better are adjusted for the number of pairs, "
            "not for the number of variants.",
            f"A verdict picked from {count} variants is wrong more often: in 11 to 22 % of cases if policies are equal."
            if count > 1
            else "",
        ),
        name="ranking",
    )


class _Ranked(NamedTuple):
    # A row of the table. The columns of `difference_columns` read its attributes `result` and `metric`.
    result: Difference
    variant: VariantRanking
    metric: Metric = SAFETY


def _order_cell(row: _Ranked) -> Cell:
    # Return whether the order of the row's two policies is significantly reversed, compared to the first variant.
    # Sets are compared, because the two policies of a pair may be in either order.
    is_reversed = {row.result.first, row.result.second} in map(set, row.variant.reversed)
    return Cell("changed", emphasis="bad") if is_reversed else Cell("not shown to change")


# Means of each host over policies and suites, next to the paper's Table 9


AUXILIARY = "auxiliary entries"
# Key of a metric -> value of the metric (a rate or a severity, from 0 to 1); None = unknown.
_Numbers = Mapping[str, Fraction | None]


class VariantMean(msgspec.Struct, frozen=True):
    """One variant's means over a host's cells (policy × suite). `cells`: metric -> number of averaged cells."""

    name: str
    mean: _Numbers
    cells: Mapping[str, int]
    paper: _Numbers | None  # the paper's row for this host and variant; None = not printed


class HostMean(msgspec.Struct, frozen=True, kw_only=True):
    """The means over the cells (policy × suite) of a host, of a suite outside the paper, or of auxiliary entries."""

    host: str
    cells: int
    suites: tuple[str, ...]
    missing_suites: tuple[str, ...]  # the paper's suites of this host that are not in these runs
    variants: tuple[VariantMean, ...]


def host_means(ablation: ThresholdAblation, registry: Registry, roster: Roster) -> tuple[HostMean, ...]:
    """Return the means of each host, in order of first appearance; auxiliary entries come last. The policy `noop` is
    left out. A mean over a single policy × suite is also left out, unless the paper reports the suite.
    """
    # A curve contains the rates of one policy on one suite (a cell) under each variant.
    # Title of a host (or of another suite, or of auxiliary entries) -> its curves.
    by_title: dict[str, list[SensitivityCurve]] = {}
    for curve in ablation.curves:
        if curve.policy != NOOP:
            title = AUXILIARY if roster.is_auxiliary(curve) else suite_group(registry, curve.suite)
            by_title.setdefault(title, []).append(curve)
    return tuple(
        _host_mean(title, by_title[title], ablation, registry)
        for title in sorted(by_title, key=lambda title: title == AUXILIARY)  # the auxiliary title comes last
        # A mean over one curve says nothing new, unless the paper has a mean to compare with.
        if len(by_title[title]) > 1 or published_suites(registry, title)
    )


def _host_mean(
    title: str, curves: Sequence[SensitivityCurve], ablation: ThresholdAblation, registry: Registry
) -> HostMean:
    # Return the means over these curves under each variant. `title` is a host, a suite, or `AUXILIARY`.
    suites = tuple(dict.fromkeys(curve.suite for curve in curves))
    # Variant -> the paper's row; {} if the paper has none for this host.
    published_variants = {row.name: row for row in load_published(PAPER).variants if HOST_TITLES[row.host] == title}
    suites_run = {registry.canonical_suite(suite or "") for suite in suites}
    return HostMean(
        host=title,
        cells=len(curves),
        suites=suites,
        # A suite is not missing if a suite with the same tasks was run under another name.
        missing_suites=tuple(suite for suite in published_suites(registry, title) if suite not in suites_run),
        variants=tuple(
            _variant_mean(variant.name, [curve.points[k] for curve in curves], published_variants.get(variant.name))
            for k, variant in enumerate(ablation.variants)
        ),
    )


def _variant_mean(name: str, points: Sequence[VariantRates], printed: PublishedVariant | None) -> VariantMean:
    # Return the means over cells under one variant. `points` are the rates of the cells; `printed` is the paper's row.
    # Cells without a value are left out; a metric without any value has the mean None.
    known_by_metric = {}
    for metric in _METRICS:
        values = [exact_value(getattr(point, metric.key)) for point in points]
        known_by_metric[metric.key] = [value for value in values if value is not None]
    paper = None
    if printed is not None:
        # `repr` gives the printed decimals exactly, whereas a float is only near them. Percentages are divided by 100.
        paper = {metric.key: Fraction(repr(getattr(printed, metric.key))) / metric.scale for metric in _METRICS}
    return VariantMean(
        name,
        {key: sum(values, Fraction(0)) / len(values) if values else None for key, values in known_by_metric.items()},
        {key: len(values) for key, values in known_by_metric.items()},
        paper,
    )


def host_mean_table(means: Sequence[HostMean], ablation: ThresholdAblation) -> Table:
    """Return the table of means, with a row per host and variant, next to the paper's Table 9 where it has numbers."""
    return tabulate(
        "Means of each host next to the paper's Table 9",
        [(host, variant) for host in means for variant in host.variants],  # a row is (host, variant)
        text_column("Host", lambda row: row[0].host),
        Column("Cells", "policy × suite", lambda row: row[0].cells),
        text_column("Variant", lambda row: row[1].name),
        *(column for metric in _METRICS for column in _mean_columns(metric)),
        notes=_mean_notes(means),
        remarks=ablation.warnings,
        name="host-means",
    )


_Row = tuple[HostMean, VariantMean]


def _mean_columns(metric: Metric) -> tuple[Column, Column]:
    # Return the columns of our mean and of the paper's mean of a metric.
    return (
        Column("here", value=partial(_mean_cell, metric), group=metric.heading),
        Column("paper", value=partial(_published_cell, metric), group=metric.heading),
    )


def _mean_cell(metric: Metric, row: _Row) -> Cell:
    # Return our mean, with the number of averaged cells (policy × suite) if some cells have no value.
    # `row` is a host and one of its variants; `variant.cells` counts the cells with a value of each metric.
    host, variant = row
    count = variant.cells[metric.key]
    detail = "" if count == host.cells else f"{count} of {host.cells} cells"
    return value_cell(metric, variant.mean[metric.key], "no cell has a value", detail=detail)


def _published_cell(metric: Metric, row: _Row) -> Cell:
    # Return the paper's mean for `row`, which is (host, variant); a dash if the paper has no such row.
    paper = row[1].paper
    return value_cell(metric, None if paper is None else paper[metric.key], NOT_PRINTED)


def _mean_notes(means: Sequence[HostMean]) -> Iterator[str]:
    # Yield the notes below the table of means, such as which of the paper's suites were not run.
    # A mean is of one host, or of auxiliary entries; `variant.paper` are the paper's numbers; None = not printed.
    yield "Unweighted means over cells; P[U|S] is a mean of ratios."
    for mean in means:
        if mean.missing_suites and any(variant.paper for variant in mean.variants):
            yield f"{mean.host}: the paper's means also include these suites: {', '.join(mean.missing_suites)}."
    if any(mean.host == AUXILIARY for mean in means):
        yield "Auxiliary entries are excluded from all other means."
    yield (
        "The paper's means are of other policies, simulators and clauses (20 cells of LIBERO, 4 of RoboCasa-365). "
        "They are only for orientation; docs/evidence/reconstruction.md says why they are not comparable."
    )
