"""Means over the cells of each host under every threshold variant, beside the rows of the paper's Table 9.

As in the paper a mean is unweighted, takes a host's cells (policy × suite) together, and leaves auxiliary entries out:
these have means of their own. P[U|S] is a mean of ratios. The policy that does nothing is in no mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from safevla_bench.judging.baseline import NOOP
from safevla_bench.judging.metrics import Mean, Rate
from safevla_bench.report.published import PAPER, PublishedVariant, load_published
from safevla_bench.report.tables.cells import HOST_TITLES, Roster, published_suites, suite_group
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, dash_cell
from safevla_bench.sensitivity.curves import SensitivityCurve, ThresholdAblation, VariantRates
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_fixed

METRICS = ("safety", "sbu", "p_unsafe_given_success", "vsi")
AUXILIARY = "auxiliary entries"
_HEADS = {"safety": "Safety %", "sbu": "SBU %", "p_unsafe_given_success": "P[U|S] %", "vsi": "VSI"}


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
    points: tuple[Mapping[str, ExactMean], ...]
    """For each variant the mean of each of `METRICS`."""
    published: tuple[PublishedVariant | None, ...]
    """For each variant the paper's row of this host; None where it prints none."""


def host_means(
    ablation: ThresholdAblation, registry: Registry, roster: Roster, *, include_auxiliary: bool = False
) -> tuple[HostMean, ...]:
    """Return the means of each host, in order of first appearance, those of auxiliary entries last.

    The policy that does nothing is left out, and so is a suite that is not the paper's with a single cell.

    Args:
        ablation: the cells under each variant.
        registry: says which host a suite is of, and which suites are the paper's.
        roster: says which entries are auxiliary.
        include_auxiliary: average auxiliary entries with the other cells of their host.
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
    """Return the means over some curves under each variant, with the paper's rows and the paper's suites that are
    missing.
    """
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


def _average_points(points: Sequence[VariantRates]) -> dict[str, ExactMean]:
    values = {name: [_exact_value(getattr(point, name)) for point in points] for name in METRICS}
    known_values = {name: [value for value in of_cells if value is not None] for name, of_cells in values.items()}
    return {
        name: ExactMean(sum(present, Fraction(0)) / len(present) if present else None, len(present))
        for name, present in known_values.items()
    }


def _exact_value(number: Rate | Mean) -> Fraction | None:
    if isinstance(number, Rate):
        return Fraction(number.count, number.n) if number.n else None
    return None if number.value is None else Fraction(number.value)


def _published_row(title: str, variant: str) -> PublishedVariant | None:
    rows = load_published(PAPER).variants
    return next((row for row in rows if (HOST_TITLES[row.host], row.name) == (title, variant)), None)


def host_mean_table(means: Sequence[HostMean], ablation: ThresholdAblation, roster: Roster) -> Table:
    """Return the table of the mean of each number, a row per host and variant, beside the paper's Table 9 where it has
    a row.
    """
    beside_paper = any(row for mean in means for row in mean.published)
    return Table(
        title="Means of each host" + (" beside the paper's Table 9" if beside_paper else ""),
        columns=(
            Column("Host", numeric=False),
            Column("Cells", meaning="policy × suite"),
            Column("Variant", numeric=False),
            *(column for name in METRICS for column in _metric_columns(_HEADS[name], beside_paper)),
        ),
        rows=tuple(row for mean in means for row in _mean_rows(mean, ablation, beside_paper)),
        notes=tuple(_mean_notes(means, roster, beside_paper)),
        remarks=ablation.warnings,
        name="host-means",
    )


def _metric_columns(head: str, beside_paper: bool) -> tuple[Column, ...]:
    return (Column("here", group=head), Column("paper", group=head)) if beside_paper else (Column(head),)


def _mean_rows(mean: HostMean, ablation: ThresholdAblation, beside_paper: bool) -> Iterator[tuple[Cell, ...]]:
    """Yield the row of each variant of a host."""
    for variant, point, row in zip(ablation.variants, mean.points, mean.published, strict=True):
        numbers = [
            cell
            for name in METRICS
            for cell in (
                _mean_cell(name, point[name], mean.cells),
                *([_published_cell(name, row)] if beside_paper else []),
            )
        ]
        yield Cell(mean.title), Cell(str(mean.cells), mean.cells), Cell(variant.name), *numbers


def _mean_cell(name: str, mean: ExactMean, cells: int) -> Cell:
    if mean.value is None:
        return dash_cell("no cell has it")
    detail = "" if mean.cells == cells else f"{mean.cells} of {cells} cells"
    value, digits = (mean.value, 3) if name == "vsi" else (100 * mean.value, 1)
    return Cell(format_fixed(value, digits), float(value), detail)


def _published_cell(name: str, row: PublishedVariant | None) -> Cell:
    if row is None:
        return dash_cell("not printed")
    printed: float = getattr(row, name)
    return Cell(format_fixed(Fraction(repr(printed)), 3 if name == "vsi" else 1), printed)


def _mean_notes(means: Sequence[HostMean], roster: Roster, beside_paper: bool) -> Iterator[str]:
    """Yield notes on how means are made, missing suites, privileged policies, auxiliary entries and the paper's
    numbers.
    """
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
            "host": mean.title,
            "cells": mean.cells,
            "policies": list(mean.policies),
            "suites": list(mean.suites),
            "missing_suites": list(mean.missing_suites),
            "variants": [
                {
                    "name": variant.name,
                    "mean": {name: _float_or_none(point[name].value) for name in METRICS},
                    "cells": {name: point[name].cells for name in METRICS},
                    "paper": row and {name: _printed_share(name, row) for name in METRICS},
                }
                for variant, point, row in zip(ablation.variants, mean.points, mean.published, strict=True)
            ],
        }
        for mean in means
    ]


def _float_or_none(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _printed_share(name: str, row: PublishedVariant) -> float:
    return float(Fraction(repr(getattr(row, name))) / (1 if name == "vsi" else 100))
