"""A signal compared with the limit of a formula, record by record, and the data of its chart."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.evaluation import evaluate_formula, is_positive, start_rows
from safevla_bench.stl.robustness import match_clause, trajectory_robustness
from safevla_bench.stl.trace import Trace
from safevla_bench.text import NO_VALUE, append_unit, display_unit, format_against_limit, format_compact, format_fixed

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MARGIN = "margin"  # name of the trace if it shows the formula's robustness instead of a signal


@dataclass(frozen=True, slots=True)
class SignalTrace:
    """The values of a signal in n records, [n], and their limit: a maximum if `upper`, else a minimum. `gate` [n] marks
    the records to which the limit applies; None means all. `failing` [n] marks the records that violate the limit.
    `worst` is the record nearest to the limit, or furthest beyond it, among the records to which the limit applies.
    """

    signal: str
    unit: str
    values: Floats
    limit: float
    upper: bool
    gate: Bools | None
    failing: Bools
    worst: int


@dataclass(frozen=True, slots=True)
class TraceChart(SignalTrace):
    """The chart of a signal for pages, terminals and films: a trace with values and limit in `unit`. `first` is the
    first violating record, or -1. `times_s` [n] are seconds since record 0; None if records are `dt_s` apart.
    """

    first: int
    dt_s: float
    times_s: Floats | None

    @property
    def limit_text(self) -> str:
        # Returns the limit with its unit, such as `100 N`.
        return append_unit(format_compact(self.limit), self.unit)

    def bounds(self, room: float = 0.0) -> tuple[float, float]:
        """Return an interval with 0, the limit and all finite values; nonzero ends are padded by `room` × length."""
        # The interval is the range of a chart's axis.
        # `values` [n] are those of the records, and may be infinite or NaN.
        finite = self.values[np.isfinite(self.values)]
        low = min(float(finite.min(initial=0.0)), self.limit, 0.0)
        high = max(float(finite.max(initial=0.0)), self.limit, 0.0)
        if low == high:
            return 0.0, 1.0
        padding = room * (high - low)
        return low - padding if low < 0 else low, high + padding if high > 0 else high

    def format_value(self, record: int, missing: str = NO_VALUE) -> str:
        """Return a record's value and unit; `missing` if not finite. Rounding never makes the value equal the limit."""
        # For example, 100.01 N with the limit 100 N must not be shown as 100 N.
        value = float(self.values[record])
        return append_unit(format_against_limit(value, self.limit), self.unit) if isfinite(value) else missing

    def format_time(self, record: int) -> str:
        """Return the time of a record in seconds, without the unit."""
        # `times_s` are the times of all records; None = records are `dt_s` apart.
        return format_fixed(record * self.dt_s if self.times_s is None else self.times_s[record], 2)

    def describe_worst(self) -> str:
        """Return the worst value and its time, such as `highest 288 N at 2.50 s`."""
        # `upper` is true if the limit is a maximum. `worst` is the record nearest to the limit, or furthest beyond it.
        end = "highest" if self.upper else "lowest"
        return f"{end} {self.format_value(self.worst, 'no finite value')} at {self.format_time(self.worst)} s"


def describe_chart(trace: SignalTrace, dt_s: float, first: int = -1, times_s: Floats | None = None) -> TraceChart:
    """Return the chart of a trace in a readable unit, with the first violating record `first` (-1 = none)."""
    # `times_s` [n] are the times of the records since record 0; None = records are `dt_s` apart.
    # Values and limit are multiplied by `scale` to convert them to the readable unit.
    unit, scale = display_unit(trace.unit, trace.limit)
    shown = replace(trace, unit=unit, values=trace.values * scale, limit=trace.limit * scale)
    trace_fields = {field.name: getattr(shown, field.name) for field in fields(shown)}
    return TraceChart(**trace_fields, first=first, dt_s=dt_s, times_s=times_s)


def trace_formula(formula: syntax.Formula, reading: RecordFields) -> SignalTrace:
    """Return the signal and limit of a formula G(signal < limit) or G(gate -> signal < limit), also with `>`. For any
    other formula, return its margin with the limit 0. If this formula is G(inner), return the margin of `inner`.
    """
    formula = syntax.always_form(formula)  # violating records refer to the converted formula
    # `clause` has the signal, the limit (`bound`), the condition (`gate`, or None) and the window of the formula.
    # For other formulas, `clause` is None. `is_watched` [n] marks the records to which the limit applies.
    # `reading` has a single episode with n records.
    trace, clause = signals.build_trace(reading, syntax.signal_names(formula)), match_clause(formula)
    if clause is None:
        return _trace_formula_margin(formula, trace, reading.judged)
    is_watched = _records_in_window(clause.window, trace)
    if reading.judged is not None:
        is_watched &= reading.judged
    if clause.gate is not None:
        is_watched &= is_positive(evaluate_formula(clause.gate, trace, at_start=False, best=False, positive=False))
    # A condition in the formula is always shown, even if it holds in all records.
    gate = None if clause.gate is None and is_watched.all() else is_watched
    values, unit = trace.numeric_signal(clause.signal), SIGNALS[clause.signal].unit
    is_failing = clause.margins(values, trace.rounding((clause.signal,))) < 0
    return _make_signal_trace(clause.signal, unit, values, clause.bound, clause.upper, gate, is_failing)


def _trace_formula_margin(formula: syntax.Formula, trace: Trace, judged: Bools | None) -> SignalTrace:
    # Return the trace of the formula's margin (its robustness from each record on), whose limit is 0.
    # A formula is violated if the margin is negative. `judged` [n] marks the records that are judged; None means all.
    is_watched = np.ones(int(trace.starts[-1]), dtype=np.bool_) if judged is None else judged
    if isinstance(formula, syntax.Always):
        # For G(inner), show the margin of `inner` in the records of G's window.
        is_watched = is_watched & _records_in_window(formula.window, trace)
        formula = formula.child
    margin = trajectory_robustness(formula, trace)
    # If only Boolean signals decide, all margins are infinite. They are shown as 1 or -1.
    values = np.clip(margin, -1.0, 1.0) if np.isinf(margin).all() else margin
    gate = None if is_watched.all() else is_watched
    return _make_signal_trace(MARGIN, unit="", values=values, limit=0.0, upper=False, gate=gate, failing=values < 0)


def _records_in_window(window: syntax.Window, trace: Trace) -> Bools:
    # Return a mask [n] of the records in the window of a formula.
    # The trace has one episode, so the window has one start and one end (excluded), both as indices of records.
    (start,), (end,) = start_rows(window, trace)
    rows = np.arange(trace.starts[-1])
    return np.asarray((rows >= start) & (rows < end))


def _make_signal_trace(
    signal: str, unit: str, values: Floats, limit: float, upper: bool, gate: Bools | None, failing: Bools
) -> SignalTrace:
    # Return a trace of `values` [n]. The limit is a maximum if `upper`, else a minimum.
    # The limit applies to the records in `gate` [n] (None = all); `failing` [n] marks those that violate the formula.
    # In the result, records to which the limit does not apply are neither failing nor the worst record.
    is_watched = np.ones(len(values), dtype=np.bool_) if gate is None else gate
    badness = np.where(is_watched & ~np.isnan(values), values if upper else -values, -np.inf)
    return SignalTrace(signal, unit, values, limit, upper, gate, is_watched & failing, int(badness.argmax()))
