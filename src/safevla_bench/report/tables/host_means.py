"""Means over the cells of each host under variants of the thresholds, beside the paper's Table 9."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial

import msgspec

from safevla_bench.judging.metrics import NOOP
from safevla_bench.judging.rates import METRICS, SAFETY, SBU, UNSAFE_SUCCESS, VSI, Metric
from safevla_bench.report.published import PAPER, PublishedVariant, load_published
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, published_suites, suite_group
from safevla_bench.report.tables.columns import value_cell
from safevla_bench.report.tables.suites import exact_value
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation, VariantRates
from safevla_bench.tasks.entries import Registry

_AVERAGED = (SAFETY.key, SBU.key, UNSAFE_SUCCESS.key, VSI.key)
AUXILIARY = "auxiliary entries"


_Numbers = Mapping[str, Fraction | None]
"""Key of a metric -> its value, a share of 1 or a severity; None where it has none."""


class VariantMean(msgspec.Struct, frozen=True):
    """The cells of a host under one variant: the exact mean of each metric, and of how many cells it is."""

    name: str
    mean: _Numbers
    cells: Mapping[str, int]
    paper: _Numbers | None
    """The paper's row of this host; None where it prints none."""


class HostMean(msgspec.Struct, frozen=True, kw_only=True):
    """The cells that are averaged together: of one host, of one suite that is not the paper's, or auxiliary ones."""

    host: str
    cells: int
    suites: tuple[str, ...]
    missing_suites: tuple[str, ...]
    """The paper's suites of this host that none of the cells is of."""
    variants: tuple[VariantMean, ...]


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
    paper_suites = published_suites(registry, title).items()
    return HostMean(
        host=title,
        cells=len(curves),
        suites=suites,
        missing_suites=tuple(suite for suite, names in paper_suites if not names & set(suites)),
        variants=tuple(
            _variant_mean(variant.name, [curve.points[k] for curve in curves], published.get(variant.name))
            for k, variant in enumerate(ablation.variants)
        ),
    )


def _variant_mean(name: str, points: Sequence[VariantRates], printed: PublishedVariant | None) -> VariantMean:
    numbers = {key: [exact_value(getattr(point, key)) for point in points] for key in _AVERAGED}
    known = {key: [value for value in values if value is not None] for key, values in numbers.items()}
    paper = None
    if printed is not None:
        paper = {key: Fraction(repr(getattr(printed, key))) / METRICS[key].scale for key in _AVERAGED}
    return VariantMean(
        name,
        {key: sum(values, Fraction(0)) / len(values) if values else None for key, values in known.items()},
        {key: len(values) for key, values in known.items()},
        paper,
    )


def host_mean_table(means: Sequence[HostMean], ablation: ThresholdAblation) -> Table:
    """Return the table of the mean of each number, a row per host and variant, beside the paper's Table 9 where it has
    a row.
    """
    beside_paper = any(variant.paper for host in means for variant in host.variants)
    return tabulate(
        "Means of each host" + (" beside the paper's Table 9" if beside_paper else ""),
        [(host, variant) for host in means for variant in host.variants],
        (
            text_column("Host", lambda row: row[0].host),
            Column("Cells", "policy × suite", lambda row: row[0].cells),
            text_column("Variant", lambda row: row[1].name),
            *(column for key in _AVERAGED for column in _mean_columns(METRICS[key], beside_paper)),
        ),
        notes=_mean_notes(means, beside_paper),
        remarks=ablation.warnings,
        name="host-means",
    )


_Row = tuple[HostMean, VariantMean]


def _mean_columns(metric: Metric, beside_paper: bool) -> tuple[Column, ...]:
    here, paper = partial(_mean_cell, metric), partial(_published_cell, metric)
    if not beside_paper:
        return (Column(metric.heading, value=here),)
    return Column("here", value=here, group=metric.heading), Column("paper", value=paper, group=metric.heading)


def _mean_cell(metric: Metric, row: _Row) -> Cell:
    (host, variant), count = row, row[1].cells[metric.key]
    detail = "" if count == host.cells else f"{count} of {host.cells} cells"
    return value_cell(metric, variant.mean[metric.key], "no cell has it", detail=detail)


def _published_cell(metric: Metric, row: _Row) -> Cell:
    paper = row[1].paper
    return value_cell(metric, None if paper is None else paper[metric.key], "not printed")


def _mean_notes(means: Sequence[HostMean], beside_paper: bool) -> Iterator[str]:
    yield "Unweighted means over cells; P[U|S] is a mean of ratios."
    for mean in means:
        if mean.missing_suites and any(variant.paper for variant in mean.variants):
            yield f"{mean.host}: without {', '.join(mean.missing_suites)}, which the paper's means hold."
    if any(mean.host == AUXILIARY for mean in means):
        yield "Auxiliary entries are in no other mean."
    if beside_paper:
        yield (
            "Paper: its own policies, simulators and clauses (20 cells of LIBERO, 4 of RoboCasa-365), for orientation; "
            "docs/reconstruction.md says what makes them incomparable."
        )
