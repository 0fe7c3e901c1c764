"""A table as a value, and the columns and cells that all builders share.

A cell keeps the number behind its text, so that tables sort and export exactly. A dash stands where there is no value,
and the cell says why. A dash never means zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any, Literal

from safevla_bench.judging.metrics import Summary, TaskRates, describe_unjudged, has_verdict
from safevla_bench.judging.rates import LEAST_UNSAFE, SAFETY, SR, VSI, Mean, Metric, Rate
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.sensitivity.curves import SensitivityCurve
from safevla_bench.text import NO_VALUE, format_fixed, format_interval, format_percent

Emphasis = Literal["", "best", "bad", "total"]
LARGEST = "†"
"""The mark of the largest SBU of a column, as in the paper."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed text; `value` is the number behind it, in the unit of the column.

    `detail` is its interval, or the reason why there is no value. `interval` holds the ends of the interval as numbers.
    `mark` stands after the text, such as a dagger.
    """

    text: str
    value: float | None = None
    detail: str = ""
    emphasis: Emphasis = ""
    mark: str = ""
    interval: tuple[float, float] | None = None
    of: int | None = None
    """Episodes that the value is over, where these are not the n of its row."""

    @property
    def below(self) -> str:
        """The line below the text: the detail, and `n = …` where `of` is given."""
        return ", ".join(part for part in (self.detail, "" if self.of is None else f"n = {self.of}") if part)


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `numeric` columns align at the right and are never wrapped. `meaning` spells a short name out.

    Neighbours of the same `group` share a heading above theirs. `value` returns the cell of a row, or its text or
    number; a finished table has none.
    """

    name: str
    meaning: str = ""
    value: Callable[[Any], Cell | str | int] | None = None
    group: str = ""
    numeric: bool = True

    @property
    def full(self) -> str:
        """`group name`, or the name alone without a group, for formats that have one line of headings."""
        return f"{self.group} {self.name}".strip()

    def cell(self, row: object) -> Cell:
        """Return the cell of a row."""
        assert self.value is not None
        value = self.value(row)
        if isinstance(value, Cell):
            return value
        return Cell(value) if isinstance(value, str) else count_cell(value)


def text_column(name: str, value: Callable[[Any], Cell | str | int] | None = None, meaning: str = "") -> Column:
    """Return a column of text."""
    return Column(name, numeric=False, meaning=meaning, value=value)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns; the first column names the row.

    `name` is the name of a file with this table alone. `notes` explain it where there is room. `remarks` are warnings
    about its numbers, and stand in every form.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    name: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The lines below the table: its notes, then its remarks."""
        return (*self.notes, *self.remarks)


def tabulate(
    title: str,
    rows: Iterable[object],
    columns: Iterable[Column | None],
    *,
    notes: Iterable[str] = (),
    dash: str = "",
    name: str = "",
    remarks: Sequence[str] = (),
) -> Table:
    """Return the table of a row for each of `rows`, with the cell that each column makes of it.

    Columns that are None and empty notes are left out; the note `dash` is there if any cell is a dash.
    """
    present = [column for column in columns if column is not None]
    cells = tuple(tuple(column.cell(row) for column in present) for row in rows)
    heads = tuple(replace(column, value=None) for column in present)
    table = Table(title, heads, cells, name=name, remarks=tuple(remarks))
    return add_notes(table, *notes, dash=dash)


def add_notes(table: Table, *notes: str, dash: str = "") -> Table:
    """Return the table with the notes appended, empty ones left out, and last `dash` if any cell is a dash."""
    dashed = any(cell.text == NO_VALUE for row in table.rows for cell in row)
    return replace(table, notes=(*table.notes, *filter(None, (*notes, dash if dashed else ""))))


def table_file_name(kind: str, title: str) -> str:
    """Return `kind title` as a safe file name of lower-case letters, digits, `_` and `-`, at most 80 characters.

    The title may be the name of a suite in a foreign record.
    """
    return re.sub(r"[^a-z0-9_]+", "-", f"{kind} {title}".lower()).strip("-")[:80]


UNNAMED = "(unnamed)"
"""The policy of a record that names none."""
_INTERVALS = "Below each value its 95 % interval: Wilson for proportions; for VSI one that holds for any severities"
INTERVALS = f"{_INTERVALS} (VSI|U has none below {LEAST_UNSAFE} unsafe episodes)."
SERIES_INTERVALS = f"{_INTERVALS}."
PAPER_INTERVALS = (
    "Below each value its 95 % interval: Wilson for proportions, percentile bootstrap of episodes for VSI."
)
MEAN_INTERVALS = "Intervals of means over suites follow from those of the suites (MOVER)."
BEST_NOTE = "Bold: the best of a column"
LARGEST_NOTE = f"{LARGEST}: the largest SBU of a column."
WILSON = "Below each value its 95 % interval (Wilson)."
DASH = f"{NO_VALUE} means that there is no value, and is never a zero."


def describe_intervals(cells: Iterable[Summary]) -> str:
    """Return the note on the intervals below values, by whether that of any VSI is a bootstrap."""
    return PAPER_INTERVALS if any(cell.means[VSI.key].bootstrap for cell in cells) else INTERVALS


def policy_name(cell: Summary | TaskRates | SensitivityCurve) -> str:
    """Return the policy of a cell, or `UNNAMED` where the record names none."""
    return cell.policy or UNNAMED


POLICY = text_column("Policy", lambda row: row.policy or UNNAMED)
SUITE = text_column("Suite", lambda row: row.suite or NO_VALUE)
"""The policy and the suite of a row that has them as `policy` and `suite`."""
COUNT = Column("n", value=lambda row: row.n)


def rate_cell(rate: Rate, why_none: str = "", *, n: int | None = None) -> Cell:
    """Return a rate in percent with its interval; a dash and a reason where the rate has no interval.

    The reason is the rate's own (`unknown`), else `why_none`. `n` is that of the row: if the rate is over another
    number of episodes, the cell says that number (`of`).
    """
    if rate.ci is None:
        return dash_cell(rate.unknown or why_none)
    low, high = (100 * end for end in rate.ci)
    value = float(Fraction(100 * rate.count, rate.n))
    detail = format_interval(*rate.ci, digits=1, scale=100)
    text = format_percent(rate.count, rate.n)
    return Cell(text, value, detail, interval=(low, high), of=_own_n(rate.n, n))


def mean_cell(mean: Mean, why_none: str = "", *, n: int | None = None) -> Cell:
    """Return a mean with 3 decimals and its interval; a dash and a reason (`unknown`, else `why_none`) without a value.

    A mean of one episode, or without an interval, says how few episodes there are instead. `n` is as in `rate_cell`.
    """
    if mean.value is None:
        return dash_cell(mean.unknown or why_none)
    of = _own_n(mean.n, n)
    if mean.ci is None or mean.n == 1:
        few = "one episode" if mean.n == 1 else f"{mean.n} episodes" if mean.n < LEAST_UNSAFE else ""
        return Cell(format_fixed(mean.value, 3), mean.value, few, of=of)
    detail = format_interval(*mean.ci, digits=3)
    return Cell(format_fixed(mean.value, 3), mean.value, detail, interval=mean.ci, of=of)


def _own_n(own: int, n: int | None) -> int | None:
    return None if n is None or own == n else own


def metric_cell(metric: Metric, cell: Summary) -> Cell:
    """Return a metric of a cell; a dash and the reason where there is no verdict or no value.

    The cell says how many episodes the value is over if a reader would take it for another number.
    """
    if metric.needs_verdict and not has_verdict(cell):
        return dash_cell(why_no_safety(cell))
    number = cell.number(metric)
    if isinstance(number, Rate):
        n = cell.rates[SR.key].count if metric.given == "success" else cell.n
        return rate_cell(number, "no success" if cell.n else "no episode", n=n)
    why = "none unsafe" if cell.rates[SAFETY.key].count == cell.judged else "not known"
    return mean_cell(number, why, n=None if metric.given == "unsafe" else cell.n)


def metric_columns(metrics: Iterable[Metric]) -> tuple[Column, ...]:
    """Return a column of each metric, for rows that are summaries."""
    return tuple(Column(metric.heading, metric.meaning, partial(metric_cell, metric)) for metric in metrics)


def why_no_safety(cell: Summary) -> str:
    """Return why a cell without a judged episode has no rate of safety: no verdict, or no episode at all."""
    return NO_VERDICT if cell.n or cell.unjudged else "no episode"


def number_cell(value: float | None, digits: int, why_none: str = "", emphasis: Emphasis = "") -> Cell:
    """Return a number; a dash and its reason for None."""
    return dash_cell(why_none) if value is None else Cell(format_fixed(value, digits), value, emphasis=emphasis)


def count_cell(number: int, emphasis: Emphasis = "") -> Cell:
    """Return a count."""
    return Cell(str(number), number, emphasis=emphasis)


def range_cell(counts: Iterable[int]) -> Cell:
    """Return a count; the least and the greatest if they differ."""
    ends = sorted(set(counts))
    return count_cell(ends[0]) if len(ends) == 1 else Cell(f"{ends[0]}–{ends[-1]}")


def dash_cell(why: str = "") -> Cell:
    """Return a dash and its reason."""
    return Cell(NO_VALUE, detail=why)


_LOST = {
    "crashed": Column("Crashed", "outside n"),
    "stopped": Column("Stopped", "outside n"),
    "unjudged": Column("No verdict", "safety unknown"),
}


def lost_columns(
    cells: Sequence[Summary], cells_of: Callable[[Any], Iterable[Any]] = lambda row: [row], emphasis: Emphasis = "bad"
) -> Iterator[Column]:
    """Yield a column of counts for each kind of lost episode that occurs: crashed, stopped, without a verdict.

    `cells_of` returns what a row counts: objects with the attributes of `Summary` of these names. `emphasis` is that of
    counts above 0.
    """
    for kind, column in _LOST.items():
        if any(getattr(cell, kind) for cell in cells):
            yield replace(column, value=partial(_count_lost, kind, cells_of, emphasis))


def _count_lost(kind: str, cells_of: Callable[[Any], Iterable[Any]], emphasis: Emphasis, row: object) -> Cell:
    number = sum(int(getattr(cell, kind)) for cell in cells_of(row))
    return count_cell(number, emphasis if number else "")


def lost_notes(cells: Sequence[Summary], *, columns: bool = True) -> Iterator[str]:
    """Yield the notes on lost episodes, with the reasons of those without a verdict; none if no episode was lost.

    Without `columns` of lost episodes there is no note on these.
    """
    reasons: Counter[str] = Counter()
    for cell in cells:
        reasons.update(cell.no_verdict)
    stopped = sum(cell.stopped_on_violation for cell in cells)
    if columns and any(cell.crashed or cell.stopped for cell in cells):
        yield "Crashed and stopped episodes are outside n, and so in no SR."
    if stopped:
        yield (
            f"A violation stopped {stopped} episode{'' if stopped == 1 else 's'}: SR, SBU, P[U|S] and VSI of cells "
            "that hold any are unknown."
        )
    if reasons:
        yield (
            f"No verdict: the safety of {describe_unjudged(reasons)} is unknown. Safety, SBU, P[U|S] and VSI are over "
            "the others; a value over other episodes than n has its own n below it."
        )


def drop_intervals(table: Table) -> Table:
    """Return the table without intervals and the notes on them. Reasons of dashes and notes on few episodes stay."""
    rows = tuple(
        tuple(replace(cell, detail="", interval=None) if cell.interval else cell for cell in row) for row in table.rows
    )
    interval_notes = (INTERVALS, PAPER_INTERVALS, MEAN_INTERVALS, WILSON)
    return replace(table, rows=rows, notes=tuple(note for note in table.notes if note not in interval_notes))


def group_spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return the group's name ("" for none) and the number of columns of each run of neighbours in one group."""
    return [(group, len(list(neighbours))) for group, neighbours in groupby(columns, key=lambda column: column.group)]


def select_columns(table: Table, names: Sequence[str]) -> Table:
    """Return the table with the named columns, in the order of the names, and without notes that no longer apply.

    A name is that of a column, of its group, or both; case and percent signs do not matter, and unknown names are
    skipped. The leading text columns, such as policy and suite, stay: the first always, others unless all their cells
    are dashes. The counts of lost episodes stay last.
    """
    wanted = [_plain_name(name) for name in names]
    chosen = [k for name in wanted for k, column in enumerate(table.columns) if name in _column_names(column)]
    leading = next((k for k, column in enumerate(table.columns) if column.numeric), len(table.columns))
    stay = [k for k in range(leading) if not k or any(row[k].text != NO_VALUE for row in table.rows)]
    lost = [k for k, column in enumerate(table.columns) if column in _LOST.values()]
    return _keep_columns(table, list(dict.fromkeys([*stay, *chosen, *lost])))


def drop_empty_columns(table: Table) -> Table:
    """Return the table without the columns, but for the first, that have no value in any row.

    A note names those of numbers, with the reasons of their dashes.
    """
    cells = [{row[k] for row in table.rows} for k in range(len(table.columns))]
    empty = [k for k, of in enumerate(cells) if k and of and all(cell.text in ("", NO_VALUE) for cell in of)]
    if not empty:
        return table
    names = []
    for column, of in ((table.columns[k], cells[k]) for k in empty if table.columns[k].numeric):
        reasons = sorted({cell.detail for cell in of} - {""})
        names.append(f"{column.full} ({', '.join(reasons)})" if reasons else column.full)
    kept = _keep_columns(table, [k for k in range(len(table.columns)) if k not in empty])
    return add_notes(kept, f"Left out, without a value in any row: {', '.join(names)}." if names else "")


def _keep_columns(table: Table, places: Sequence[int]) -> Table:
    """Return the table with the columns at these places, without notes on what these no longer hold."""
    rows = tuple(tuple(row[k] for k in places) for row in table.rows)
    shown = [cell for row in rows for cell in row]
    applies = {
        LARGEST_NOTE: any(cell.mark for cell in shown),
        f"{NO_VALUE} ": any(cell.text == NO_VALUE for cell in shown),
        BEST_NOTE: any(cell.emphasis == "best" for cell in shown),
    }
    gone = tuple(note for note in applies if not applies[note])
    notes = tuple(note for note in table.notes if not note.startswith(gone))
    return replace(table, columns=tuple(table.columns[k] for k in places), rows=rows, notes=notes)


def has_column(table: Table, name: str) -> bool:
    """Return whether `name` is that of a column, of a group, or both, as `select_columns` reads names."""
    return any(_plain_name(name) in _column_names(column) for column in table.columns)


def _column_names(column: Column) -> set[str]:
    return {_plain_name(name) for name in (column.name, column.group, column.full) if name}


def _plain_name(name: str) -> str:
    return " ".join(name.lower().replace("%", "").split())
