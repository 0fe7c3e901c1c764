"""Space robustness of a formula over many episodes at once, in discrete time (paper Section 3.1, Appendix C.1).

The margin of a predicate on a signal s is bound - s or s - bound, in the unit of s; it is 0 if s equals the bound up to
rounding. `<` and `<=` have the same margin. `not` flips the sign, `and` is the minimum, and `or` is the maximum. The
margin of `a -> b` is the margin of b while a holds, else +inf; with `plain_conditions`, it is max(-a, b) (paper). `G`
is the minimum over a window, and `F` is the maximum. `a U b` is max over t' of min(b(t'), min of a over [t, t')). The
bounds of a window are seconds after each record, in multiples of the control step; the episode's end clips the window.
With time stamps, a window contains the records whose stamps lie in it. Over an empty window, `G` is +inf, and `F` and
`U` are -inf; `hangs_on_empty_window` finds verdicts that depend on this convention. Boolean signals are +inf or -inf.
NaN is an error.

A signal is infinite if it has nothing to measure, such as the gap between bodies that have not separated. A comparison
with an infinite value has no margin: `G` omits the record. Under `F` and `U`, which a single record can satisfy, the
margin is unknown.

Values may be unknown at some records (`Trace.unknown`). Robustness is then the largest that any true values could give
(the best case); the worst case is the smallest. `G` omits a record if its value is unknown, or if it is unknown whether
the gate is open. A formula that is violated in the best case is violated for any true values. Any other formula has a
verdict if it holds in the worst case, or if it has only `G` and at least one record was judged.
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
    start_rows,
    to_margins,
)
from safevla_bench.stl.trace import (
    MAX,
    MIN,
    Bools,
    Floats,
    Ints,
    Trace,
    are_boolean,
    first_true,
    fold_pieces,
    fold_ranges,
    subtract,
)


@dataclass(frozen=True, slots=True)
class FormulaVerdict:
    """Verdict of a formula on `E` episodes."""

    rho: Floats  # robustness at record 0, [E]; violated iff negative
    extreme: Floats
    """Worst raw signal value in the window while the gate is open, [E].

    An upper bound gives the maximum, a lower bound the minimum. NaN if the gate never opens, and for formulas other
    than G(predicate) and G(gate -> predicate).
    """
    first_violation: Ints
    """Record of the first violation, [E]; -1 if there is none.

    If `always_form` of the formula is a G, it is the first record with a negative margin. If `always_form` is a
    conjunction, it is the earliest of its parts' first violations. For any other formula, it is record 0.
    """


@np.errstate(all="ignore")  # overflow and division by zero are reported as errors below
def robustness(formula: syntax.Formula, trace: Trace) -> Floats:
    """Return the robustness at record 0 of each episode, [E], in the unit of the predicate that decides it.

    Raises:
        SignalError: a signal is missing, is NaN or has the wrong kind, or arithmetic overflows.
        FormulaError: a window bound is not a multiple of the control step of an episode without time stamps, or
            `threshold` was not substituted.
    """
    # `trace` holds the signals of E episodes. A negative robustness means that the episode violates the formula.
    rho = np.empty(len(trace))
    for episodes, group in group_by_step(formula, trace):
        clause = match_clause(formula)
        # A clause is G(comparison) or G(condition -> comparison). It compares one signal with a constant bound.
        if clause:  # faster than `evaluate_formula`, with the same result
            rho[episodes] = _measure_clause(clause, group).rho
        else:
            rho[episodes] = to_margins(evaluate_formula(formula, group, at_start=True))
    return rho


def settle_unknown(formula: syntax.Formula, trace: Trace, rho: Floats, *, binary: bool = False) -> tuple[Floats, Bools]:
    """Return each episode's robustness, [E], and whether unknown values or an early end leave it without a verdict,
    [E]. `rho` [E] is the robustness with the best possible values. A negative `rho` is a verdict. A formula with only G
    keeps `rho` if it judged a record: `rho` is finite or, for a `binary` specification, some record's value in a root G
    is known. Any other formula gets the robustness with the worst possible values; if this robustness is negative,
    there is no verdict. Raises the same errors as `robustness`.
    """
    # G is `always`. Arrays [N] have one value per record of all episodes.
    # For a `binary` specification, only the sign of the robustness counts.
    # An obligation that the episode's end cuts off counts as kept in one formula, and as broken in the other.
    kept, broken = syntax.cut_off_readings(formula)
    can_one_satisfy = _can_one_record_satisfy(broken)
    # Masks [N] of records with unknown values; the first covers all records if an end may cut off an obligation.
    unknown_masks = [np.full(trace.starts[-1], kept != broken), *trace.unknown.values()]
    if can_one_satisfy:  # records with infinite values are uncertain, too, because a G omits them
        unknown_masks += [np.isinf(values) for values in trace.signals.values()]
    is_uncertain_record = np.logical_or.reduce(unknown_masks)
    # `uncertain` are the indices of the episodes with at least one such record.
    uncertain = np.flatnonzero(np.logical_or.reduceat(is_uncertain_record, trace.starts[:-1]))
    settled, is_undecided = rho.copy(), np.zeros(len(trace), np.bool_)
    if len(uncertain):
        settled[uncertain], is_undecided[uncertain] = _settle_episodes(
            broken, trace.select_episodes(uncertain), rho[uncertain], can_one_satisfy, binary
        )
    return settled, is_undecided


def hangs_on_infinite_values(formula: syntax.Formula, trace: Trace) -> Bools:
    """Return whether infinite values alone can leave each episode without a verdict, [E]: a signal has no value in some
    record, no value is unknown, and the episode's end cannot cut off an obligation of the formula.
    """
    kept, broken = syntax.cut_off_readings(formula)
    has_infinite, has_unknown = (
        np.logical_or.reduceat(np.logical_or.reduce([np.zeros(trace.starts[-1], np.bool_), *masks]), trace.starts[:-1])
        for masks in ([np.isinf(values) for values in trace.signals.values()], trace.unknown.values())
    )
    return has_infinite & ~has_unknown & (kept == broken)


@np.errstate(all="ignore")
def _settle_episodes(
    formula: syntax.Formula, trace: Trace, rho: Floats, can_one_satisfy: bool, binary: bool
) -> tuple[Floats, Bools]:
    # Return the results of `settle_unknown` for episodes with unknown values.
    # `formula` treats obligations that the episode's end cuts off as broken. `rho` [E] is the best possible robustness.
    # `can_one_satisfy` is true if a single record can satisfy the formula or a part of it.
    # `binary` is true if only the sign of the robustness counts.
    worst = np.empty(len(trace))
    judged_record = np.zeros(len(trace), np.bool_)
    for episodes, group in group_by_step(formula, trace):
        worst[episodes] = to_margins(evaluate_formula(formula, group, at_start=True, best=False))
        if binary:
            judged_record[episodes] = _has_decided_record(formula, group)
    if not binary:
        # With margins, the best robustness is finite if at least one record was judged.
        judged_record = rho < np.inf
    # If one record can satisfy the formula, judged records give no verdict, because an unknown record may satisfy it.
    has_verdict = rho < 0 if can_one_satisfy else (rho < 0) | judged_record
    return np.where(has_verdict, rho, worst), ~(has_verdict | (worst >= 0))


def _can_one_record_satisfy(formula: syntax.Formula, positive: bool = True) -> bool:
    """Return whether the formula has an `F`, `U` or negated `G`, so that a single record can satisfy a part of it."""
    # F is `eventually`, U is `until`, and G is `always`.
    # Under an odd number of negations (`positive` is False), a `G` acts as an `F`.
    operator = syntax.Eventually if positive else syntax.Always
    if isinstance(formula, syntax.Until | operator):
        return True
    match formula:
        case syntax.Not(child):
            return _can_one_record_satisfy(child, not positive)
        case syntax.Implies(left, right):
            return _can_one_record_satisfy(left, not positive) or _can_one_record_satisfy(right, positive)
        case syntax.And(left, right) | syntax.Or(left, right):
            return _can_one_record_satisfy(left, positive) or _can_one_record_satisfy(right, positive)
        case syntax.Always(_, child) | syntax.Eventually(_, child):
            return _can_one_record_satisfy(child, positive)
        case _:
            return False


def _has_decided_record(formula: syntax.Formula, trace: Trace) -> Bools:
    # Return for a root G whether each episode has a decided record, [E]; all False for any other formula.
    # A record is decided if its best and worst values are equal.
    if not isinstance(formula, syntax.Always):
        return np.zeros(len(trace), np.bool_)
    # The values at every record, [N]: once with the best, once with the worst possible values of unknown signals.
    best, worst = (
        to_margins(evaluate_formula(formula.child, trace, at_start=False, best=best)) for best in (True, False)
    )
    has_decided = evaluate_window(best == worst, MAX, formula.window, trace, at_start=True)
    return np.asarray(has_decided, dtype=np.bool_)


def hangs_on_empty_window(formula: syntax.Formula, trace: Trace) -> Bools:
    """Return whether a window without records decides the verdict of each episode, [E]. The formula is judged twice:
    with the usual values of empty windows (`G` true, `F` and `U` false), and with the opposite values. If the two
    verdicts differ, an empty window decides. Raises the same errors as `robustness`.
    """
    # G is `always`, F is `eventually`, and U is `until`. For instance, a window is empty if the episode ends before it.
    # A window from 0 s always contains the record that it starts from, so it cannot be empty.
    if all(window.start_s == 0 for window in syntax.bounded_windows(formula)):
        return np.zeros(len(trace), np.bool_)
    opposite_rho = robustness(syntax.reverse_empty_windows(formula), trace)
    return np.not_equal(robustness(formula, trace) >= 0, opposite_rho >= 0)


@np.errstate(all="ignore")
def count_condition(formula: syntax.Formula, trace: Trace) -> tuple[Ints, Ints] | None:
    """For G(a -> b) or a -> b, return two counts for each episode, [E]: the records in which the condition a holds, and
    the examined records. In a -> b -> c, the condition is that a and b hold. Without G, only record 0 is examined.
    Return None for any other formula.
    """
    child = formula.child if isinstance(formula, syntax.Always) else formula
    conditions: list[syntax.Formula] = []
    while isinstance(child, syntax.Implies) and not child.plain:
        conditions.append(child.left)
        child = child.right
    if not conditions:
        return None
    # `held` counts the records in which all conditions hold, and `records` counts the examined records.
    held, records = np.zeros((2, len(trace)), np.int64)
    window = formula.window if isinstance(formula, syntax.Always) else syntax.Window(0.0, 0.0)
    for episodes, group in group_by_step(formula, trace):
        # With `best=False` inside a negation (`positive=False`), an unknown condition counts as not holding.
        values = [
            evaluate_formula(condition, group, at_start=False, best=False, positive=False) for condition in conditions
        ]
        holds = np.logical_and.reduce([is_positive(part) for part in values])
        held_before = np.concatenate([[0], np.cumsum(holds)])  # number of earlier records in which all conditions hold
        lo, hi = start_rows(window, group)
        # [lo, hi) are the rows of the window that starts at the episode's first record.
        held[episodes], records[episodes] = held_before[hi] - held_before[lo], hi - lo
    return held, records


@np.errstate(all="ignore")
def trajectory_robustness(formula: syntax.Formula, trace: Trace, *, best: bool = True) -> Floats:
    """Return the robustness at every record, [N], for the best or worst possible values. Raises like `robustness`."""
    rho = np.empty(trace.starts[-1])
    for episodes, group in group_by_step(formula, trace):
        rho[trace.record_rows(episodes)] = to_margins(evaluate_formula(formula, group, at_start=False, best=best))
    return rho


@np.errstate(all="ignore")
def judge_formula(formula: syntax.Formula, trace: Trace) -> FormulaVerdict:
    """Return robustness, worst signal value and first violation of each episode. Raises the errors of `robustness`."""
    # A group has episodes with the same control step, which decides how many records a window contains.
    verdict = FormulaVerdict(np.empty(len(trace)), np.empty(len(trace)), np.empty(len(trace), np.int64))
    for episodes, group in group_by_step(formula, trace):
        # All episodes have the same control step, so nothing must be copied.
        if group is trace:
            return _judge_group(formula, trace)
        group_verdict = _judge_group(formula, group)
        verdict.rho[episodes] = group_verdict.rho
        verdict.extreme[episodes] = group_verdict.extreme
        verdict.first_violation[episodes] = group_verdict.first_violation
    return verdict


def _judge_group(formula: syntax.Formula, trace: Trace) -> FormulaVerdict:
    # Return the result of `judge_formula` for episodes with the same control step.
    clause = match_clause(formula)
    # A clause is G(comparison) or G(condition -> comparison). It compares one signal with a constant bound.
    if clause:
        return _measure_clause(clause, trace).to_verdict(trace)
    # Only a one-sided comparison of a signal has a worst signal value; NaN means none.
    no_extreme = np.full(len(trace), np.nan)
    # `always_form` replaces other operators by G (`Always`) where possible, so that a record can be found.
    match syntax.always_form(formula):
        case syntax.And(left, right):
            first, second = _judge_group(left, trace), _judge_group(right, trace)
            # The earlier violation of the two sides counts. If only one is violated, `later` is its record.
            earlier, later = np.sort([first.first_violation, second.first_violation], axis=0)
            violation = np.where(earlier >= 0, earlier, later)  # -1 = the side is not violated
            return FormulaVerdict(np.minimum(first.rho, second.rho), no_extreme, violation)
        case syntax.Always(window, child):
            values = evaluate_formula(child, trace, at_start=False)
            rho = to_margins(evaluate_window(values, MIN, window, trace, at_start=True))
            lo, hi = start_rows(window, trace)
            # The first row of each episode's window [lo, hi) at which the child is false.
            rows = first_true(is_positive(negate(values)), lo, hi)
            return FormulaVerdict(rho, no_extreme, _rows_to_records(rows, trace.starts[:-1]))
        case _:
            rho = to_margins(evaluate_formula(formula, trace, at_start=True))
            # No single record violates such a formula, so a violation counts from record 0; -1 means no violation.
            return FormulaVerdict(rho, no_extreme, np.where(rho < 0, 0, -1))


def _rows_to_records(rows: Ints, starts: Ints) -> Ints:
    # Return each row's index in its episode, which begins at `starts`; -1 (no row) stays -1.
    return np.where(rows < 0, -1, rows - starts)


# One-sided clauses: `G(s < bound)` and `G(condition -> s < bound)`, also with `>`. Most specifications have this form.


@dataclass(frozen=True, slots=True)
class OneSidedClause:
    """The formula G(s < bound) or G(s > bound), maybe with a condition. The worst value of s decides its margin."""

    window: syntax.Window
    gate: syntax.Formula | None
    predicate: syntax.Compare
    signal: str
    bound: float
    upper: bool  # true if values above the bound violate the clause
    plain: bool = False  # true if the gate's margin counts too, as in the paper

    def margins(self, values: Floats, rounding: Floats | float) -> Floats:
        """Return the margin of each signal value, in the same shape; 0 if the value equals the bound up to rounding."""
        # `upper` is True if values above `bound` violate the clause.
        # `rounding` is the relative difference up to which two numbers count as equal.
        return subtract(self.bound, values, rounding) if self.upper else subtract(values, self.bound, rounding)


def match_clause(formula: syntax.Formula) -> OneSidedClause | None:
    """Return G(comparison) or G(gate -> comparison) as a one-sided clause; None for any other formula. One side of the
    comparison must be a bare signal, and the other side, the bound, must read no signal; otherwise return None. Raises
    `FormulaError` if the bound contains `threshold`, and `SignalError` if it divides by zero or overflows.
    """
    # G is `always`. A one-sided clause can be judged fast, because the worst value of its signal decides it.
    match formula:
        case syntax.Always(window, syntax.Implies(gate, syntax.Compare() as predicate, plain)):
            return _one_sided_clause(window, gate, predicate, plain)
        case syntax.Always(window, syntax.Compare() as predicate):
            return _one_sided_clause(window, gate=None, predicate=predicate)
        case _:
            return None


def _one_sided_clause(
    window: syntax.Window, gate: syntax.Formula | None, predicate: syntax.Compare, plain: bool = False
) -> OneSidedClause | None:
    # Return the clause; None unless one side of the predicate is a bare signal, and the other side reads no signal.
    # `is_upper` is true if the bound limits the signal from above.
    # The predicate must hold while the condition `gate` holds, or always if `gate` is None.
    # If `plain`, the gate's margin counts, too. The bound reads no signal, so its value needs no trace (None).
    is_upper = predicate.operator in ("<", "<=")
    match predicate:
        case syntax.Compare(_, syntax.NumericSignal(name), bound) if not reads_signal(bound):
            pass
        case syntax.Compare(_, bound, syntax.NumericSignal(name)) if not reads_signal(bound):
            # The bound is on the left, so `bound < signal` limits the signal from below.
            is_upper = not is_upper
        case _:
            return None
    return OneSidedClause(window, gate, predicate, name, float(evaluate_expression(bound, None)), is_upper, plain)


@dataclass(frozen=True, slots=True)
class _ClauseMeasurement:
    clause: OneSidedClause
    rho: Floats  # [E], as in `FormulaVerdict`
    extreme: Floats
    gate_open: Bools | None  # [N]; None = the clause has no gate
    lo: Ints  # rows [lo, hi) of the window of each episode
    hi: Ints
    values: Floats  # the result of `_least_violating_values`

    def to_verdict(self, trace: Trace) -> FormulaVerdict:
        # Return three arrays [E]: robustness `rho`, worst signal value `extreme`, and record of the first violation.
        # The index of the record counts from the start of its episode; -1 means no violation.
        first_violation, violated = np.full(len(trace), -1), np.flatnonzero(self.rho < 0)
        first_violation[violated] = _rows_to_records(self._find_first_rows(violated, trace), trace.starts[violated])
        return FormulaVerdict(self.rho, self.extreme, first_violation)

    def _find_first_rows(self, episodes: Ints, trace: Trace) -> Ints:
        # Return the first violating row of each of the `episodes`; -1 if none violates.
        # `lo` and `hi` [E] hold the window [lo, hi) of each episode in `trace`.
        # `gate_open` [N] is true where the condition holds; None means that the clause has no condition.
        rows, lengths = trace.record_rows(episodes), trace.lengths[episodes]
        rounding = np.repeat(trace.rounding((self.clause.signal,))[episodes], lengths)
        failing = self.clause.margins(self.values[rows], rounding) < 0
        if self.gate_open is not None:
            failing &= self.gate_open[rows]
        # `shift` is the offset between a row's index in the trace and the row's index in `failing`, for each episode.
        # `failing` has only the records of `episodes`, while `lo` and `hi` count rows of the whole trace.
        shift = trace.starts[episodes] - (np.cumsum(lengths) - lengths)
        first = first_true(failing, self.lo[episodes] - shift, self.hi[episodes] - shift)
        return np.where(first < 0, -1, first + shift)


def _measure_clause(clause: OneSidedClause, trace: Trace) -> _ClauseMeasurement:
    # Return the robustness and the worst value of the clause, without the first violation, which takes longer to find.
    # `gate_open` [N] is whether the condition surely holds at each record; None if the clause has no condition.
    gate = gate_open = None
    if clause.gate is not None:
        gate = evaluate_formula(clause.gate, trace, at_start=False, best=False, positive=False)
        gate_open = is_positive(gate)
    # The window of each episode has the rows [lo, hi), [E] each. `worst` [E] is the worst signal value in each window.
    lo, hi = start_rows(clause.window, trace)
    values = _least_violating_values(clause, trace)
    worst = _worst_values(clause, values, gate_open, lo, hi, trace)
    if gate is not None and not are_boolean(gate) and clause.plain:  # the gate's margin counts, too
        margins = disjunction(negate(gate), predicate_margin(clause.predicate, trace))
        rho = to_margins(fold_ranges(margins, MIN, lo, hi))
    else:
        smallest_margin = clause.margins(worst, trace.rounding((clause.signal,)))
        rho = np.where(np.isnan(worst), np.inf, smallest_margin + 0.0)  # NaN: the gate never opens
    return _ClauseMeasurement(clause, rho, worst, gate_open, lo, hi, values)


def _worst_values(
    clause: OneSidedClause, values: Floats, gate_open: Bools | None, lo: Ints, hi: Ints, trace: Trace
) -> Floats:
    # Return the field `extreme` of the `FormulaVerdict`, [E].
    # `extreme` is the largest value of the signal for an upper bound, else the smallest value.
    # Only records in the window [lo, hi) with an open gate count; NaN without such a record.
    fold = MAX if clause.upper else MIN
    # Divide all records into pieces, and find the worst value of each piece. The gate does not change within a piece.
    # A piece with an open gate is either completely inside a window or completely outside.
    cuts = _piece_starts(gate_open, lo, hi, trace)
    pieces = fold_pieces(values, fold, cuts)
    if np.isnan(pieces.max(initial=-np.inf)):
        trace.reject_nan(values, clause.signal)
    # Keep only the pieces in which the gate is open.
    if gate_open is not None:
        open_pieces = np.flatnonzero(gate_open.take(cuts))
        cuts, pieces = cuts.take(open_pieces), pieces.take(open_pieces)
    if cuts is not lo:  # an episode may have several pieces, or none
        first, last = np.searchsorted(cuts, lo), np.searchsorted(cuts, hi)
        pieces = cast(Floats, fold_ranges(pieces, fold, first, last))
    # If the worst value is the fold's value of an empty set, no record of the episode counts.
    return np.where(pieces == fold.empty_value, np.nan, pieces)


def _least_violating_values(clause: OneSidedClause, trace: Trace) -> Floats:
    # Return the clause's signal [N]. Replace infinite values so that they cannot violate the clause.
    # Replace an unknown value by the possible value that violates the clause least.
    # `clause.upper` is True if values above the bound violate the clause. Unknown values may have a known lower bound.
    values = trace.numeric_signal(clause.signal)
    if clause.upper and not values.max(initial=-np.inf) < np.inf:  # faster than a search; also true for NaN
        values = np.where(np.isinf(values), -np.inf, values)  # an infinite gap means that there is no pair of bodies
    if clause.signal not in trace.unknown:
        return values
    replacement = trace.least_values(clause.signal) if clause.upper else np.inf
    return np.where(trace.unknown[clause.signal], replacement, values)


def _piece_starts(gate_open: Bools | None, lo: Ints, hi: Ints, trace: Trace) -> Ints:
    # Return the first row of each piece, for `fold_pieces`. Together, the pieces cover all rows.
    # If each piece is an episode, return `lo` itself.
    # A new piece begins where `gate_open` [N] changes, and where an episode's window [lo, hi) begins or ends.
    if gate_open is None and np.array_equal(lo, trace.starts[:-1]) and np.array_equal(hi, trace.starts[1:]):
        return lo
    window_edges = np.concatenate([lo, hi])
    window_edges = window_edges[window_edges < trace.starts[-1]]
    if gate_open is None:
        is_start = np.zeros(trace.starts[-1], np.bool_)
        is_start[window_edges] = True
    else:
        # Pieces with a closed gate are not used, so an edge of a window matters only where the gate is open.
        is_start = np.empty(trace.starts[-1], np.bool_)
        np.not_equal(gate_open[1:], gate_open[:-1], out=is_start[1:])
        is_start[window_edges[gate_open.take(window_edges)]] = True
    is_start[0] = True
    return np.flatnonzero(is_start)
