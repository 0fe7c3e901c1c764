"""Space robustness of a formula over many episodes at once, in discrete time.

A predicate's margin is bound - s or s - bound, in the unit of the signal (paper Section 3.1, Appendix C.1); `<` and
`<=` have one margin. Not flips the sign, and is the minimum, or the maximum, `a -> b` is max(-a, b), G the minimum, F
the maximum over a window, and until is max over t' of min(right(t'), min of left over [t, t')). Windows count seconds
from each record, multiples of the control step, and are clipped at the end of the episode; over no record G is +inf,
F and U are -inf, and `hangs_on_empty_window` finds the verdicts that this convention decides. Boolean signals are
crisp: +inf or -inf. NaN is an error, never a verdict.

Values may be unknown at some records (`Trace.unknown`). The robustness is then that of the best reading, the greatest
that any true values could give: under G a record is left out where what is judged, or whether the gate is open, is not
known, and a formula that is violated is violated whatever the true values are. `settle_unknown` says where a formula
that is not violated has a verdict: where it holds in the worst reading too, or where G judged other records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from safevla_bench.stl import formula as syntax
from safevla_bench.stl.evaluation import (
    disjunction,
    evaluate_expression,
    evaluate_formula,
    evaluate_window,
    group_by_step,
    is_positive,
    negate,
    predicate_margin,
    reads_signal,
    to_margins,
    window_steps,
)
from safevla_bench.stl.trace import MAX, MIN, Bools, Floats, Ints, Trace, first_true, fold_pieces, fold_ranges, is_crisp


@dataclass(frozen=True, slots=True)
class FormulaVerdict:
    """Verdict of a formula on E episodes."""

    rho: Floats
    """Robustness at record 0, [E]; violated iff negative."""
    extreme: Floats
    """Worst raw signal value in the window while the gate is open, [E].

    It is the maximum under an upper bound and the minimum under a lower one. It is NaN where the gate never opens, and
    for formulas other than G(predicate) and G(gate -> predicate).
    """
    first_violation: Ints
    """Record of the first violation, [E], -1 = none.

    Under a root G it is the first record whose margin is negative, under a conjunction the earliest of its violated
    parts, else 0.
    """


@np.errstate(all="ignore")  # overflow and division by zero are reported as errors below
def robustness(formula: syntax.Formula, trace: Trace) -> Floats:
    """Return the robustness at record 0 of each episode, [E], in the unit of the predicate that decides it.

    Raises:
        SignalError: the trace lacks a signal, or one has the wrong kind or is NaN, or arithmetic leaves the numbers.
        FormulaError: a window bound is not a multiple of an episode's control step, or `threshold` was not substituted.
    """
    rho = np.empty(len(trace))
    for episodes, part in group_by_step(formula, trace):
        clause = match_clause(formula)
        rho[episodes] = (
            _measure_clause(clause, part).rho if clause else to_margins(evaluate_formula(formula, part, at_start=True))
        )
    return rho


@np.errstate(all="ignore")
def settle_unknown(formula: syntax.Formula, trace: Trace, rho: Floats, *, binary: bool = False) -> tuple[Floats, Bools]:
    """Return the robustness of episodes with unknown values, [E], and whether unknown values leave no verdict, [E].

    A violation stands. A formula of G alone that judged any record has the margin of the best reading: that margin is
    finite, or with `binary` a record of a root G is decided. Any other formula has the margin of the worst reading, and
    no verdict if that is negative. `rho` is that of the best reading, [E]; `binary` specifications have no margins, so
    that +inf does not mean that nothing was judged. Raises as `robustness` does.
    """
    worst = np.empty(len(trace))
    rest = np.zeros(len(trace), np.bool_)
    for episodes, part in group_by_step(formula, trace):
        worst[episodes] = to_margins(evaluate_formula(formula, part, at_start=True, best=False))
        if binary:
            rest[episodes] = _decides_record(formula, part)
    if not binary:
        rest = rho < np.inf
    on_rest = rest & (not _hangs_on_single_record(formula))
    return np.where((rho < 0) | on_rest, rho, worst), ~((rho < 0) | (worst >= 0) | on_rest)


def _hangs_on_single_record(formula: syntax.Formula, positive: bool = True) -> bool:
    """Return whether the formula has an F or U that must hold, or a G that is negated (`positive` False: the
    reverse).
    """
    match formula:
        case syntax.Not(child):
            return _hangs_on_single_record(child, not positive)
        case syntax.And(left, right) | syntax.Or(left, right):
            return _hangs_on_single_record(left, positive) or _hangs_on_single_record(right, positive)
        case syntax.Implies(left, right):
            return _hangs_on_single_record(left, not positive) or _hangs_on_single_record(right, positive)
        case syntax.Always(_, child):
            return not positive or _hangs_on_single_record(child, positive)
        case syntax.Eventually(_, child):
            return positive or _hangs_on_single_record(child, positive)
        case syntax.Until():
            return True
        case _:
            return False


def _decides_record(formula: syntax.Formula, trace: Trace) -> Bools:
    if not isinstance(formula, syntax.Always):
        return np.zeros(len(trace), np.bool_)
    best, worst = (
        to_margins(evaluate_formula(formula.child, trace, at_start=False, best=best)) for best in (True, False)
    )
    decided = evaluate_window(best == worst, MAX, formula.window, trace, at_start=True)
    return np.asarray(decided, dtype=np.bool_)


def hangs_on_empty_window(formula: syntax.Formula, trace: Trace) -> Bools:
    """Return whether a window that holds no record decides the verdict of each episode, [E].

    The formula is judged with empty windows read as usual (G true, F and U false), and with all of them read the other
    way. True if the two verdicts differ. Raises as `robustness` does.
    """
    if all(window.start_s == 0 for window in syntax.bounded_windows(formula)):
        return np.zeros(len(trace), np.bool_)
    other_reading = robustness(syntax.reverse_empty_windows(formula), trace)
    return np.not_equal(robustness(formula, trace) >= 0, other_reading >= 0)


@np.errstate(all="ignore")
def trajectory_robustness(formula: syntax.Formula, trace: Trace, *, best: bool = True) -> Floats:
    """Return the robustness at every record, [N], in the best reading or the worst. Raises as `robustness` does."""
    rho = np.empty(trace.starts[-1])
    for episodes, part in group_by_step(formula, trace):
        rho[trace.record_rows(episodes)] = to_margins(evaluate_formula(formula, part, at_start=False, best=best))
    return rho


@np.errstate(all="ignore")
def judge_formula(formula: syntax.Formula, trace: Trace) -> FormulaVerdict:
    """Return robustness, worst signal value and first violation of each episode. Raises as `robustness` does."""
    verdict = FormulaVerdict(np.empty(len(trace)), np.empty(len(trace)), np.empty(len(trace), np.int64))
    for episodes, part in group_by_step(formula, trace):
        if part is trace:
            return _judge_group(formula, trace)
        group_verdict = _judge_group(formula, part)
        verdict.rho[episodes] = group_verdict.rho
        verdict.extreme[episodes] = group_verdict.extreme
        verdict.first_violation[episodes] = group_verdict.first_violation
    return verdict


def _judge_group(formula: syntax.Formula, trace: Trace) -> FormulaVerdict:
    clause = match_clause(formula)
    if clause:
        return _measure_clause(clause, trace).to_verdict(trace)
    unknown = np.full(len(trace), np.nan)
    match formula:
        case syntax.And(left, right):
            first, second = _judge_group(left, trace), _judge_group(right, trace)
            records = np.sort([first.first_violation, second.first_violation], axis=0)
            violation = np.where(records[0] >= 0, records[0], records[1])
            return FormulaVerdict(np.minimum(first.rho, second.rho), unknown, violation)
        case syntax.Always(window, child):
            values = evaluate_formula(child, trace, at_start=False)
            rho = to_margins(evaluate_window(values, MIN, window, trace, at_start=True))
            lo, hi = trace.layout.window_bounds(*window_steps(window, trace))
            rows = first_true(is_positive(negate(values)), lo, hi)
            return FormulaVerdict(rho, unknown, _rows_to_records(rows, trace.starts[:-1]))
        case _:
            rho = to_margins(evaluate_formula(formula, trace, at_start=True))
            return FormulaVerdict(rho, unknown, np.where(rho < 0, 0, -1))


def _rows_to_records(rows: Ints, starts: Ints) -> Ints:
    return np.where(rows < 0, -1, rows - starts)


# One-sided clauses: G(s < bound) and G(gate -> s < bound), and the same with >. Nearly all specifications are such.


_SEARCH_RECORDS = 1 << 14


@dataclass(frozen=True, slots=True)
class OneSidedClause:
    """G(signal below or above a bound), with or without a gate. The worst signal value decides the margin."""

    window: syntax.Window
    gate: syntax.Formula | None
    predicate: syntax.Compare
    signal: str
    bound: float
    upper: bool


def match_clause(formula: syntax.Formula) -> OneSidedClause | None:
    """Return a G over a comparison, or over gate -> comparison, as a one-sided clause; None for any other formula.

    None too unless one side of the comparison is a bare signal and the other, the bound, reads no signal. Raises
    `FormulaError` if `threshold` stands in the bound, `SignalError` if the bound divides by zero or overflows.
    """
    match formula:
        case syntax.Always(window, syntax.Implies(gate, syntax.Compare() as predicate)):
            return _one_sided_clause(window, gate, predicate)
        case syntax.Always(window, syntax.Compare() as predicate):
            return _one_sided_clause(window, None, predicate)
        case _:
            return None


def _one_sided_clause(
    window: syntax.Window, gate: syntax.Formula | None, predicate: syntax.Compare
) -> OneSidedClause | None:
    below = predicate.operator in ("<", "<=")
    match predicate:
        case syntax.Compare(_, syntax.NumericSignal(name), bound) if not reads_signal(bound):
            return OneSidedClause(window, gate, predicate, name, float(evaluate_expression(bound, None)), below)
        case syntax.Compare(_, bound, syntax.NumericSignal(name)) if not reads_signal(bound):
            return OneSidedClause(window, gate, predicate, name, float(evaluate_expression(bound, None)), not below)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _ClauseMeasurement:
    """A clause over a trace: rho [E], extreme [E], and what `first_violation` needs."""

    clause: OneSidedClause
    rho: Floats
    extreme: Floats
    gate_open: Bools | None
    lo: Ints
    hi: Ints

    def to_verdict(self, trace: Trace) -> FormulaVerdict:
        first_violation, violated = np.full(len(trace), -1), np.flatnonzero(self.rho < 0)
        first_violation[violated] = _rows_to_records(self._first_rows(violated, trace), trace.starts[violated])
        return FormulaVerdict(self.rho, self.extreme, first_violation)

    def _first_rows(self, episodes: Ints, trace: Trace) -> Ints:
        """Return the first violating row of each given episode's window, [K]; -1 = none."""
        values, rows = _clause_values(self.clause, trace), np.full(len(episodes), -1)
        at, end = self.lo[episodes], self.hi[episodes]
        searched = np.flatnonzero(at < end)
        while len(searched):
            count = min(max(1, _SEARCH_RECORDS // len(searched)), int((end - at)[searched].max()))
            read = np.minimum(at[searched, None] + np.arange(count), end[searched, None] - 1)
            worst = values.take(read)
            failing = worst > self.clause.bound if self.clause.upper else worst < self.clause.bound
            if self.gate_open is not None:
                failing &= self.gate_open.take(read)
            first = failing.argmax(axis=1)
            fails = failing[np.arange(len(searched)), first]
            rows[searched[fails]] = read[fails, first[fails]]
            at[searched] += count
            searched = searched[~fails & (at < end)[searched]]
        return rows


def _measure_clause(clause: OneSidedClause, trace: Trace) -> _ClauseMeasurement:
    gate = None if clause.gate is None else evaluate_formula(clause.gate, trace, at_start=False, best=False)
    gate_open = None if gate is None else is_positive(gate)
    lo, hi = trace.layout.window_bounds(*window_steps(clause.window, trace))
    worst = _worst_values(clause, gate_open, lo, hi, trace)
    if gate is None or is_crisp(gate):
        smallest_margin = clause.bound - worst if clause.upper else worst - clause.bound
        rho = np.where(np.isnan(worst), np.inf, smallest_margin + 0.0)
    else:  # a numeric gate has a margin of its own
        rho = to_margins(
            fold_ranges(
                disjunction(negate(gate), predicate_margin(clause.predicate, trace)),
                MIN,
                lo,
                hi,
            )
        )
    return _ClauseMeasurement(clause, rho, worst, gate_open, lo, hi)


def _worst_values(clause: OneSidedClause, gate_open: Bools | None, lo: Ints, hi: Ints, trace: Trace) -> Floats:
    """Return the worst value over the records [lo, hi) where the gate is open, NaN where there is none, [E]."""
    values, fold = _clause_values(clause, trace), MAX if clause.upper else MIN
    cuts = _piece_starts(gate_open, lo, hi, trace)
    pieces = fold_pieces(values, fold, cuts)
    if np.isnan(pieces.max(initial=-np.inf)):
        trace.reject_nan(values, clause.signal)
    if gate_open is not None:
        open_pieces = np.flatnonzero(gate_open.take(cuts))
        cuts, pieces = cuts.take(open_pieces), pieces.take(open_pieces)
    if cuts is not lo:
        first, last = np.searchsorted(cuts, lo), np.searchsorted(cuts, hi)
        pieces = cast(Floats, fold_ranges(pieces, fold, first, last))
    return np.where(pieces == fold.empty_value, np.nan, pieces)


def _clause_values(clause: OneSidedClause, trace: Trace) -> Floats:
    if clause.signal not in trace.unknown:
        return trace.numeric_signal(clause.signal)
    furthest = trace.least_values(clause.signal) if clause.upper else np.inf
    return np.where(trace.unknown[clause.signal], furthest, trace.numeric_signal(clause.signal))


def _piece_starts(gate_open: Bools | None, lo: Ints, hi: Ints, trace: Trace) -> Ints:
    if gate_open is None and np.array_equal(lo, trace.starts[:-1]) and np.array_equal(hi, trace.starts[1:]):
        return lo
    edges = np.concatenate([lo, hi])
    edges = edges[edges < trace.starts[-1]]
    if gate_open is None:
        first = np.zeros(trace.starts[-1], np.bool_)
        first[edges] = True
    else:
        first = np.empty(trace.starts[-1], np.bool_)
        np.not_equal(gate_open[1:], gate_open[:-1], out=first[1:])
        first[edges[gate_open.take(edges)]] = True
    first[0] = True
    return np.flatnonzero(first)
