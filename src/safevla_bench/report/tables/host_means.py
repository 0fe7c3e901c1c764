"""Means over the cells of each host under every threshold variant, beside the rows of the paper's Table 9.

As in the paper a mean is unweighted, takes a host's cells (policy × suite) together, and leaves auxiliary entries out:
these have means of their own. P[U|S] is a mean of ratios. The policy that does nothing is in no mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from safevla_bench.judging.baseline import NOOP
from safevla_bench.judging.rates import SAFETY, SBU, UNSAFE_SUCCESS, VSI, Metric
from safevla_bench.report.published import PAPER, PublishedVariant, load_published
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, published_suites, suite_group
from safevla_bench.report.tables.suites import exact_value
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, dash_cell, tabulate, text_column
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation, VariantRates
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_fixed

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


def host_means(
    ablation: ThresholdAblation, registry: Registry, roster: Roster, *, include_auxiliary: bool = False
) -> tuple[HostMean, ...]:
    """Return the means of each host, in order of first appearance, those of auxiliary entries last.

    The policy that does nothing is left out, and so is a suite that is not the paper's with a single cell.
    """
    groups: dict[str, list[SensitivityCurve]] = {}
    for curve in sorted(ablation.curves, key=lambda curve: _is_apart(curve, roster, include_auxiliary)):
        if curve.policy != NOOP:
            apart = _is_apart(curve, roster, include_auxiliary)
            title = AUXILIARY if apart else suite_group(registry, curve.suite)
            groups.setdefault(title, []).append(curve)
    return tuple(
        _host_mean(title, curves, ablation, registry)
        for title, curves in groups.items()
        if len(curves) > 1 or published_suites(registry, title)
    )


def _is_apart(curve: SensitivityCurve, roster: Roster, include_auxiliary: bool) -> bool:
    return not include_auxiliary and roster.is_auxiliary(curve)


def _host_mean(
    title: str, curves: Sequence[SensitivityCurve], ablation: ThresholdAblation, registry: Registry
) -> HostMean:
    suites = tuple(dict.fromkeys(curve.suite for curve in curves))
    return HostMean(
        title=title,
        policies=tuple(dict.fromkeys(curve.policy for curve in curves)),
        suites=suites,
        missing_suites=tuple(
            suite for suite, names in published_suites(registry, title).items() if not names & set(suites)
        ),
        cells=len(curves),
        points=tuple(_average_points([curve.points[k] for curve in curves]) for k in range(len(ablation.variants))),
        published=tuple(_published_row(title, variant.name) for variant in ablation.variants),
    )


def _average_points(points: Sequence[VariantRates]) -> dict[Metric, ExactMean]:
    return {metric: _average([exact_value(getattr(point, metric.key)) for point in points]) for metric in _AVERAGED}


def _average(values: Sequence[Fraction | None]) -> ExactMean:
    known = [value for value in values if value is not None]
    return ExactMean(sum(known, Fraction(0)) / len(known) if known else None, len(known))


def _published_row(title: str, variant: str) -> PublishedVariant | None:
    rows = load_published(PAPER).variants
    return next((row for row in rows if (HOST_TITLES[row.host], row.name) == (title, variant)), None)


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
        return dash_cell("no cell has it")
    detail = "" if mean.cells == cells else f"{mean.cells} of {cells} cells"
    return Cell(metric.format(mean.value), float(metric.scale * mean.value), detail)


def _published_cell(metric: Metric, row: _VariantMean) -> Cell:
    if row.paper is None:
        return dash_cell("not printed")
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
