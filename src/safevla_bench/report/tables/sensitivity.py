"""Tables of what other thresholds do: the paper's Table 9 for one's own runs, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Mean, Rate
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.sensitivity import Ablation, Curve, Point, Sweep
from safevla_bench.text.numbers import NONE, fixed, short, span, unit_text

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


def ablation(found: Ablation) -> Table:
    """One row a cell and variant; behind several cells their unweighted means, as in the paper's Table 9.

    The policy that does nothing is in no mean.
    """
    names = [variant.name for variant in found.variants]
    rows = [row for curve in found.curves for row in _rows(curve, [Cell(name) for name in names])]
    averaged = [curve for curve in found.curves if curve.policy != NOOP]
    if len(averaged) > 1:
        rows += [
            (Cell("Mean of cells", emphasis="total"), Cell(""), Cell(""), Cell(name), *_means(averaged, k))
            for k, name in enumerate(names)
        ]
    notes = [
        _WHY,
        *([f"Means are without {NOOP}, which does nothing."] if 1 < len(averaged) < len(found.curves) else []),
        *([f"Left out, as the library has no such family: {', '.join(found.left_out)}."] if found.left_out else []),
    ]
    return Table(
        title="Sensitivity to thresholds (variants of the paper's Table 9)",
        columns=(*_NAMES, Column("Variant", numeric=False), *_METRICS),
        rows=tuple(rows),
        notes=tuple(notes),
        remarks=found.warnings,
    )


def sweep(found: Sweep) -> Table:
    """One row a cell and threshold; the library's own threshold stands out where it is on the grid."""
    unit, scale = unit_text(found.unit, found.default)
    rows = []
    for curve in found.curves:
        cells = [_threshold(value, scale, value == found.default) for value in found.thresholds]
        rows += _rows(curve, cells)
    return Table(
        title=f"Sweep of {found.name} ({', '.join(found.spec_ids)})",
        columns=(*_NAMES, Column(f"Threshold{f' [{unit}]' if unit else ''}"), *_METRICS),
        rows=tuple(rows),
        notes=(
            f"† The library's threshold, {short(found.default * scale)} {unit}".rstrip()
            + ". K = severe/threshold stays. "
            + _WHY,
        ),
        remarks=found.warnings,
    )


def _threshold(value: float, scale: int, is_default: bool) -> Cell:
    return Cell(short(value * scale), value, mark="†" if is_default else "")


def _rows(curve: Curve, heads: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    names = (Cell(curve.policy or UNNAMED), Cell(curve.suite), Cell(str(curve.n), curve.n))
    return [(*names, head, *_point(point)) for head, point in zip(heads, curve.points, strict=True)]


def _point(point: Point) -> tuple[Cell, ...]:
    given = point.p_unsafe_given_success
    vsi = point.vsi
    return (
        *_rate(point.safety),
        *_rate(point.sbu),
        _rate(given)[0] if given.n else Cell(NONE, detail="no success"),
        Cell(NONE) if vsi.value is None else Cell(fixed(vsi.value, 3), vsi.value),
        Cell(_mean_span(vsi)),
    )


def _rate(rate: Rate) -> tuple[Cell, Cell]:
    if rate.ci is None:
        return Cell(NONE), Cell(NONE)
    return Cell(fixed(Fraction(100 * rate.count, rate.n), 1), rate.value), Cell(span(*rate.ci, digits=1, scale=100))


def _mean_span(mean: Mean) -> str:
    return NONE if mean.ci is None or mean.n < 2 else span(*mean.ci, digits=3)


def _means(curves: Sequence[Curve], k: int) -> tuple[Cell, ...]:
    """Unweighted means of cell values, proportions exact; cells without a value are left out, and that is said."""
    points = [curve.points[k] for curve in curves]
    rates = [[getattr(one, name) for one in points] for name in ("safety", "sbu", "p_unsafe_given_success")]
    safety, sbu, given = (_mean_rate(found) for found in rates)
    severities = [Fraction(one.vsi.value) for one in points if one.vsi.value is not None]
    vsi = Cell(fixed(_average(severities), 3), float(_average(severities))) if severities else Cell(NONE)
    return safety, Cell(""), sbu, Cell(""), given, vsi, Cell("")


def _mean_rate(rates: Sequence[Rate]) -> Cell:
    there = [Fraction(one.count, one.n) for one in rates if one.n]
    if not there:
        return Cell(NONE)
    detail = "" if len(there) == len(rates) else f"{len(there)} of {len(rates)} cells"
    return Cell(fixed(100 * _average(there), 1), float(_average(there)), detail)


def _average(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)
