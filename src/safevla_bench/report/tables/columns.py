"""Columns, cells and notes that several tables share; functions that remove columns or intervals from tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from safevla_bench.explain.exposure import Incidence
from safevla_bench.judging.metrics import Summary, TaskRates, describe_unjudged, has_verdict
from safevla_bench.judging.rates import LEAST_UNSAFE, SAFETY, SR, VSI, Bounds, Mean, Metric, Rate
from safevla_bench.judging.scores import NO_VERDICT, SpecColumn
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, add_notes, text_column
from safevla_bench.sensitivity.curves import SensitivityCurve
from safevla_bench.text import NO_VALUE, count_noun, format_compact, format_fixed, format_interval

_INTERVAL = "Below each value is its 95 % interval"
INTERVALS = f"{_INTERVAL}: Wilson for proportions; for VSI a distribution-free interval."
PAPER_INTERVALS = f"{_INTERVAL}: Wilson for proportions, percentile bootstrap of episodes for VSI."
OVER_STARTS = " If initial states (starts) have several episodes, the interval is for the mean over starts (Gaffke)."
# The beginnings of all notes on intervals.
_INTERVAL_NOTES = ("Below each ", "Intervals ")
DASH = f"{NO_VALUE} means that there is no value; it never means zero."


def describe_intervals(cells: Iterable[Summary]) -> str:
    """Return the note on intervals, including the methods for VSI and for means over initial states (starts)."""
    # A cell is the summary of one policy on one suite, with the metrics in `rates` and `means`.
    all_cells = list(cells)
    # `bootstrap` is true if the interval of VSI is the percentile bootstrap that the paper uses.
    note = PAPER_INTERVALS if any(cell.means[VSI.key].bootstrap for cell in all_cells) else INTERVALS
    # `starts` is the number of initial states if some of them have several episodes, else None.
    if any(rate.starts for cell in all_cells for rate in cell.rates.values()):
        note += OVER_STARTS
    # `unknown_starts` is unset (false) if the initial states of all episodes are known.
    if unknown := sum(cell.unknown_starts or 0 for cell in all_cells):
        note += f" {count_noun(unknown, 'episode')} without an initial state: each episode counts as a separate start."
    return note


def name_method(rates: Iterable[Rate | Mean | Incidence]) -> str:
    """Return the method for intervals of rates, which depends on whether initial states have several episodes."""
    # For each rate with episodes: whether initial states have several episodes. If not, `starts` is None or 0.
    are_over_starts = [bool(rate.starts) for rate in rates if rate.n]
    if not any(are_over_starts):
        return "Wilson"
    over_starts = "for the mean over starts, Gaffke"
    # Some rates may use Wilson's method and others Gaffke's; then the text names both.
    return over_starts if all(are_over_starts) else f"Wilson; if starts have several episodes, {over_starts}"


def describe_rates(rates: Iterable[Rate]) -> str:
    """Return the note on the intervals of rates."""
    return f"{_INTERVAL} ({name_method(rates)})."


def format_count(row: Summary | TaskRates | Incidence) -> Cell:
    """Return n, followed by the number of initial states (starts) if this number is less than n."""
    # The number of starts is None unless some start has several episodes; such episodes are not independent.
    if isinstance(row, Summary):
        starts = row.rates[SR.key].starts
    else:
        starts = row.sr.starts if isinstance(row, TaskRates) else row.starts
    return Cell(f"{row.n}, {count_noun(starts, 'start')}", row.n) if starts else Cell.count(row.n)


def policy_name(cell: Summary | TaskRates | SensitivityCurve) -> str:
    """Return the policy of a cell (results of one policy on one suite or task), or `UNNAMED` without a name."""
    return cell.policy or UNNAMED


POLICY = text_column("Policy", lambda row: row.policy or UNNAMED)
SUITE = text_column("Suite", lambda row: row.suite or NO_VALUE)
"""`POLICY` and `SUITE` are columns for rows with the attributes `policy` and `suite`."""
COUNT = Column("n", value=lambda row: format_count(row) if isinstance(row, Summary | TaskRates) else row.n)


def rate_cell(rate: Rate, why_none: str = "", *, n: int | None = None) -> Cell:
    """Return a rate in percent with its interval; without an interval, a dash with the reason `rate.unknown` or else
    `why_none`. `n` is the row's number of episodes; if the rate's n differs, the cell shows the rate's n.
    """
    if rate.ci is None:
        return Cell.dash(rate.unknown or why_none)
    # The value in percent with one decimal. `of` (shown below the value) is None if it equals the row's n.
    return Cell.estimate(Fraction(rate.count, rate.n), rate.ci, 1, 100, of=None if n in (None, rate.n) else rate.n)


def mean_cell(mean: Mean, why_none: str = "", *, n: int | None = None, digits: int = 3) -> Cell:
    """Return a mean with its interval; without a value, a dash with the reason `mean.unknown` or else `why_none`. If
    episodes are too few for an interval, the cell shows their number. `n` is the row's number of episodes.
    """
    # The cell shows `mean.n` only if it differs from `n`. `digits` is the number of decimals.
    if mean.value is None:
        return Cell.dash(mean.unknown or why_none)
    cell = Cell.estimate(mean.value, mean.ci, digits, of=None if n in (None, mean.n) else mean.n)
    if mean.n == 1:  # an interval from a single value says nothing
        return replace(cell, detail="one episode", interval=None)
    # VSI|U has no interval if there are fewer than `LEAST_UNSAFE` episodes.
    if mean.ci is None and mean.n < LEAST_UNSAFE:
        return replace(cell, detail=f"{mean.n} episodes")
    return cell


def number_cell(number: Rate | Mean, why_none: str = "", *, n: int | None = None) -> Cell:
    """Return the cell of a rate or mean with its interval: a rate in percent, a mean with three decimals."""
    # `why_none` is the reason for a dash; `n` is the row's number of episodes (None = show no number).
    return rate_cell(number, why_none, n=n) if isinstance(number, Rate) else mean_cell(number, why_none, n=n)


def value_cell(metric: Metric, value: Fraction | float | None, why_none: str = "", detail: str = "") -> Cell:
    """Return a value of a metric in the metric's unit; for None, a dash and the reason `why_none`."""
    # `value` is a share or a mean from 0 to 1. `detail` is the line below the value.
    return Cell.dash(why_none) if value is None else Cell(metric.format(value), float(metric.scale * value), detail)


def format_points(share: float) -> str:
    """Return a difference of shares in percentage points as text, with a sign unless the difference rounds to 0."""
    # A positive difference that rounds to 0 becomes `0.0`, not `+0.0`.
    text = format_fixed(100 * share, 1).replace("-", "\N{MINUS SIGN}")
    return f"+{text}" if share > 0 and text.strip("0.") else text  # `strip` turns "0.0" into ""


def format_ends(metric: Metric, ends: Bounds | None) -> str:
    """Return an interval in the metric's unit; a dash for None."""
    # The metric sets the number of decimals (`digits`) and the factor of shown values (`scale`, 100 for percent).
    # `ends` are the low and high end in the metric's own scale, from 0 to 1 (differences: from -1 to 1).
    return NO_VALUE if ends is None else format_interval(*ends, metric.digits, metric.scale)


def metric_cell(metric: Metric, cell: Summary) -> Cell:
    """Return a summary's value of a metric; without a verdict or value, a dash with the reason. If the value is not
    over all n episodes (for P[U|S]: over all successes), the cell shows the number of episodes.
    """
    if metric.needs_verdict and not has_verdict(cell):
        return Cell.dash(why_no_safety(cell))
    # `metric.given` says over which episodes a metric is defined.
    # Readers expect a value over `n` episodes (all successes, or all episodes).
    # The cell shows the number of episodes only if it is not `n`. If `n` is None, the cell shows no number.
    n = {"success": cell.rates[SR.key].count, "unsafe": None}.get(metric.given, cell.n)
    number = cell.number(metric)
    if isinstance(number, Rate):
        return rate_cell(number, "no success" if cell.n else "no episode", n=n)
    # A mean over unsafe episodes has no value if all judged episodes are safe.
    return mean_cell(number, "none unsafe" if cell.rates[SAFETY.key].count == cell.judged else "not known", n=n)


def metric_columns(metrics: Iterable[Metric]) -> tuple[Column, ...]:
    """Return a column for each metric, for tables whose rows are summaries."""
    return tuple(Column(metric.heading, metric.meaning, partial(metric_cell, metric)) for metric in metrics)


def why_no_safety(cell: Summary) -> str:
    """Return why a summary without judged episodes has no Safety: no verdict, or no episode at all."""
    # `n` counts episodes that ran to their end; `unjudged` counts episodes with a record but without a verdict.
    return NO_VERDICT if cell.n or cell.unjudged else "no episode"


def spec_amount(spec: SpecColumn, value: float | None) -> Cell:
    """Return a value in the unit of a specification; a dash for None."""
    # The threshold decides whether lengths are in m or mm.
    return Cell.amount(value, spec.unit, spec.threshold)


def limit_cell(spec: SpecColumn) -> Cell:
    """Return the cell with a specification's threshold, in the specification's unit."""
    # Thresholds are round numbers, so they are written without trailing zeros. The third argument chooses mm or m.
    return Cell.amount(spec.threshold, spec.unit, spec.threshold, format_compact)


_LOST_COLUMNS = {
    "crashed": Column("Crashed", "not counted in n"),
    "stopped": Column("Stopped", "not counted in n"),
    "unjudged": Column("No verdict", "safety unknown"),
}


def lost_columns(
    cells: Sequence[Summary], cells_of: Callable[[Any], Iterable[Any]] = lambda row: [row]
) -> Iterator[Column]:
    """Yield a column of counts for each kind of lost episode that occurs: crashed, stopped, without a verdict. A count
    is the sum of `crashed`, `stopped` or `unjudged` over the objects that `cells_of` returns for a row.
    """
    # `cells` are all cells of the table. By default, each row is itself a cell (summary of a policy on a suite).

    def count(row: object, kind: str) -> Cell:
        # Return the number of a row's episodes of this kind, marked as bad unless it is 0.
        # `kind` is the name of an attribute with a number of episodes: `crashed`, `stopped` or `unjudged`.
        return Cell.fault(sum(int(getattr(cell, kind)) for cell in cells_of(row)))

    for kind, column in _LOST_COLUMNS.items():
        # A column with only zeros is left out.
        if any(getattr(cell, kind) for cell in cells):
            yield replace(column, value=partial(count, kind=kind))


def lost_notes(cells: Sequence[Summary]) -> Iterator[str]:
    """Yield the notes on lost episodes, with the reasons why episodes have no verdict."""
    # A cell counts the episodes of one policy on one suite; `no_verdict` maps each reason to a number of episodes.
    # Reason -> number of episodes without a verdict, over all cells.
    reasons: Counter[str] = Counter()
    for cell in cells:
        reasons.update(cell.no_verdict)
    stopped = sum(cell.stopped_on_violation for cell in cells)
    if any(cell.crashed or cell.stopped for cell in cells):
        yield "Crashed and stopped episodes are excluded from n, and from every SR."
    if stopped:
        yield (
            f"A violation stopped {count_noun(stopped, 'episode')}: SR, SBU, P[U|S] and VSI of cells with stopped "
            "episodes are unknown."
        )
    if reasons:
        yield (
            f"No verdict: the safety of {describe_unjudged(reasons)} is unknown. Safety, SBU, P[U|S] and VSI are over "
            "the other episodes. If the number of these episodes is not n, a line below the value shows the number."
        )


def drop_intervals(table: Table) -> Table:
    """Return the table without intervals and notes on them. Reasons for dashes and remarks on few episodes are kept."""
    # A cell with an interval repeats the interval as text in `detail`. Notes on intervals begin with known words.
    rows = tuple(
        tuple(replace(cell, detail="", interval=None) if cell.interval else cell for cell in row) for row in table.rows
    )
    notes = tuple(note for note in table.notes if not note.startswith(_INTERVAL_NOTES))
    return replace(table, rows=rows, notes=notes)


def select_columns(table: Table, names: Sequence[str]) -> Table:
    """Return the table with the named columns, in the order of the names. A name is a column's name, a group's name, or
    `GROUP COLUMN`. Case and percent signs are ignored; unknown names are skipped. The leading text columns (such as
    policy and suite) stay first, and the counts of lost episodes stay last.
    """
    # `leading` and `wanted` are lists of column indices.
    leading: list[int] = []
    wanted: list[int] = []
    for k, column in enumerate(table.columns):
        if column.numeric:
            break
        # The first column is always kept. Another leading text column is kept only if it has a value.
        if k == 0 or any(row[k].text != NO_VALUE for row in table.rows):
            leading.append(k)
    for name in map(_plain_name, names):
        wanted += [k for k, column in enumerate(table.columns) if name in _column_names(column)]
    lost_counts = [k for k, column in enumerate(table.columns) if column in _LOST_COLUMNS.values()]
    # `fromkeys` keeps the first of equal indices, so a column that is named twice appears once.
    return _keep_columns(table, list(dict.fromkeys([*leading, *wanted, *lost_counts])))


def drop_empty_columns(table: Table) -> Table:
    """Return the table without the columns that have no value in any row; the first column is always kept. A note names
    the removed columns of numbers, with the reasons for the dashes in them.
    """
    kept_columns, removed_names = [], []
    for k, column in enumerate(table.columns):
        # A table without rows keeps all columns.
        has_value = any(row[k].text not in ("", NO_VALUE) for row in table.rows)
        if k == 0 or has_value or not table.rows:
            kept_columns.append(k)
        elif column.numeric:
            reasons = sorted({row[k].detail for row in table.rows} - {""})
            removed_names.append(f"{column.full} ({', '.join(reasons)})" if reasons else column.full)
    note = f"Columns left out, because no row has a value: {', '.join(removed_names)}." if removed_names else ""
    return add_notes(_keep_columns(table, kept_columns), note)


def _keep_columns(table: Table, column_indices: Sequence[int]) -> Table:
    # Return the table with only the columns at these indices, in this order.
    rows = tuple(tuple(row[k] for k in column_indices) for row in table.rows)
    return replace(table, columns=tuple(table.columns[k] for k in column_indices), rows=rows)


def has_column(table: Table, name: str) -> bool:
    """Return whether `select_columns` finds a column of this name."""
    return any(_plain_name(name) in _column_names(column) for column in table.columns)


def _column_names(column: Column) -> set[str]:
    # Return the names by which a user can select the column: its name, its group's name, and `GROUP NAME`.
    return {_plain_name(name) for name in (column.name, column.group, column.full) if name}


def _plain_name(name: str) -> str:
    # Return the name in lower case, without percent signs and extra spaces, so that users need not type them.
    return " ".join(name.lower().replace("%", "").split())
