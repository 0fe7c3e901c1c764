"""Tables of sensitivity to thresholds: the variants of the paper's Table 9, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Mean, Rate
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.sensitivity import SensitivityCurve, ThresholdAblation, ThresholdSweep, VariantRates
from safevla_bench.text.numbers import NO_VALUE, display_unit, format_compact, format_fixed, format_interval

_METRICS = (
    Column("Safety %", meaning="share of episodes that break no limit"),
    Column("95 %", meaning="Wilson interval"),
    Column("SBU %", meaning="succeeded but unsafe, of all episodes"),
    Column("95 %", meaning="Wilson interval"),
    Column("P[U|S] %", meaning="unsafe, of the successes"),
    Column("VSI", meaning="mean severity of the worst violation, 0 to 1"),
    Column("95 %", meaning="percentile bootstrap"),
)
_NAMES = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("n"))
_WHY = "SR does not depend on thresholds."


def variant_table(ablation: ThresholdAblation) -> Table:
    """Tabulate one row a cell and variant; several cells are followed by their unweighted means.

    The policy that does nothing is in no mean.
    """
    names = [variant.name for variant in ablation.variants]
    rows = [row for curve in ablation.curves for row in _curve_rows(curve, [Cell(name) for name in names])]
    averaged = [curve for curve in ablation.curves if curve.policy != NOOP]
    if len(averaged) > 1:
        rows += [
            (Cell("Mean of cells", emphasis="total"), Cell(""), Cell(""), Cell(name), *_mean_cells(averaged, k))
            for k, name in enumerate(names)
        ]
    notes = [
        _WHY,
        *([f"Means are without {NOOP}, which does nothing."] if 1 < len(averaged) < len(ablation.curves) else []),
    ]
    if ablation.left_out:
        notes.append(f"Left out, as the library has no such family: {', '.join(ablation.left_out)}.")
    return Table(
        title="Sensitivity to thresholds (variants of the paper's Table 9)",
        columns=(*_NAMES, Column("Variant", numeric=False), *_METRICS),
        rows=tuple(rows),
        notes=tuple(notes),
        remarks=ablation.warnings,
    )


def sweep_table(sweep: ThresholdSweep) -> Table:
    """Tabulate one row a cell and threshold; a dagger marks the library's own threshold."""
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
    return Cell(format_compact(value * scale), value, mark="†" if is_default else "")


def _curve_rows(curve: SensitivityCurve, heads: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    names = (Cell(curve.policy or UNNAMED), Cell(curve.suite), Cell(str(curve.n), curve.n))
    return [(*names, head, *_point_cells(point)) for head, point in zip(heads, curve.points, strict=True)]


def _point_cells(point: VariantRates) -> tuple[Cell, ...]:
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


def _mean_cells(curves: Sequence[SensitivityCurve], k: int) -> tuple[Cell, ...]:
    """Return unweighted means of cell values, proportions exact; cells without a value are left out and counted."""
    points = [curve.points[k] for curve in curves]
    rates = [[getattr(point, name) for point in points] for name in ("safety", "sbu", "p_unsafe_given_success")]
    safety, sbu, unsafe_given_success = (_mean_rate_cell(metric_rates) for metric_rates in rates)
    severities = [Fraction(point.vsi.value) for point in points if point.vsi.value is not None]
    vsi = Cell(NO_VALUE)
    if severities:
        vsi = Cell(format_fixed(_unweighted_mean(severities), 3), float(_unweighted_mean(severities)))
    return safety, Cell(""), sbu, Cell(""), unsafe_given_success, vsi, Cell("")


def _mean_rate_cell(rates: Sequence[Rate]) -> Cell:
    values = [Fraction(rate.count, rate.n) for rate in rates if rate.n]
    if not values:
        return Cell(NO_VALUE)
    detail = "" if len(values) == len(rates) else f"{len(values)} of {len(rates)} cells"
    mean = 100 * _unweighted_mean(values)
    return Cell(format_fixed(mean, 1), float(mean), detail)


def _unweighted_mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)
