"""Means over the cells of each host under variants of the thresholds, beside the paper's Table 9."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from safevla_bench.judging.metrics import NOOP
from safevla_bench.judging.rates import SAFETY, SBU, UNSAFE_SUCCESS, VSI, Metric
from safevla_bench.report.published import PAPER, PublishedVariant, load_published
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, published_suites, suite_group
from safevla_bench.report.tables.columns import value_cell
from safevla_bench.report.tables.suites import exact_value
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_fixed

_AVERAGED = (SAFETY, SBU, UNSAFE_SUCCESS, VSI)
AUXILIARY = "auxiliary entries"


@dataclass(frozen=True, slots=True)
class VariantMean:
    """The cells of a host under one variant: the exact mean of each metric, and of how many cells it is."""

    name: str
    values: Mapping[Metric, Fraction | None]
    counts: Mapping[Metric, int]
    paper: PublishedVariant | None
    """The paper's row of this host; None where it prints none."""


@dataclass(frozen=True, kw_only=True)
class HostMean:
    """The cells that are averaged together: of one host, of one suite that is not the paper's, or auxiliary ones."""

    title: str
    policies: tuple[str | None, ...]
    suites: tuple[str, ...]
    missing_suites: tuple[str, ...]
    """The paper's suites of this host that none of the cells is of."""
    cells: int
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
    variants = []
    for k, variant in enumerate(ablation.variants):
        numbers = {
            metric: [exact_value(getattr(curve.points[k], metric.key)) for curve in curves] for metric in _AVERAGED
        }
        known = {metric: [value for value in of_all if value is not None] for metric, of_all in numbers.items()}
        means = {metric: sum(values, Fraction(0)) / len(values) if values else None for metric, values in known.items()}
        counts = {metric: len(values) for metric, values in known.items()}
        variants.append(VariantMean(variant.name, means, counts, published.get(variant.name)))
    return HostMean(
        title=title,
        policies=tuple(dict.fromkeys(curve.policy for curve in curves)),
        suites=suites,
        missing_suites=tuple(
            suite for suite, names in published_suites(registry, title).items() if not names & set(suites)
        ),
        cells=len(curves),
        variants=tuple(variants),
    )


def host_mean_table(means: Sequence[HostMean], ablation: ThresholdAblation, roster: Roster) -> Table:
    """Return the table of the mean of each number, a row per host and variant, beside the paper's Table 9 where it has
    a row.
    """
    beside_paper = any(variant.paper for host in means for variant in host.variants)
    return tabulate(
        "Means of each host" + (" beside the paper's Table 9" if beside_paper else ""),
        [(host, variant) for host in means for variant in host.variants],
        (
            text_column("Host", lambda row: row[0].title),
            Column("Cells", "policy × suite", lambda row: row[0].cells),
            text_column("Variant", lambda row: row[1].name),
            *(column for metric in _AVERAGED for column in _mean_columns(metric, beside_paper)),
        ),
        notes=_mean_notes(means, roster, beside_paper),
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
    (host, variant), count = row, row[1].counts[metric]
    detail = "" if count == host.cells else f"{count} of {host.cells} cells"
    return value_cell(metric, variant.values[metric], "no cell has it", detail=detail)


def _published_cell(metric: Metric, row: _Row) -> Cell:
    if row[1].paper is None:
        return Cell.dash("not printed")
    printed: float = getattr(row[1].paper, metric.key)
    return Cell(format_fixed(Fraction(repr(printed)), metric.digits), printed)


def _mean_notes(means: Sequence[HostMean], roster: Roster, beside_paper: bool) -> Iterator[str]:
    yield "Unweighted means over cells; P[U|S] is a mean of ratios."
    for mean in means:
        if mean.missing_suites and any(variant.paper for variant in mean.variants):
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


def mean_documents(means: Sequence[HostMean]) -> list[dict[str, object]]:
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
                    "mean": {m.key: None if value is None else float(value) for m, value in variant.values.items()},
                    "cells": {m.key: count for m, count in variant.counts.items()},
                    "paper": variant.paper and _published_shares(variant.paper),
                }
                for variant in host.variants
            ],
        }
        for host in means
    ]


def _published_shares(row: PublishedVariant) -> dict[str, float]:
    return {metric.key: float(Fraction(repr(getattr(row, metric.key))) / metric.scale) for metric in _AVERAGED}
