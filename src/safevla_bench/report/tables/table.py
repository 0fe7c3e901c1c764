"""A table as a value, and the cells that all builders make.

A cell keeps the number behind its text, so that tables sort and export exactly. A dash stands where there is no value,
and the cell says why. A dash never means zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Literal

from safevla_bench.judging.metrics import LEAST_UNSAFE, Mean, Rate, Summary, describe_unjudged
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
        """Return the line below the text: the detail, and `n = …` where `of` is given; empty with neither."""
        return ", ".join(part for part in (self.detail, "" if self.of is None else f"n = {self.of}") if part)


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `numeric` columns align at the right and are never wrapped. `meaning` spells a short name out.

    Neighbours of the same `group` share a heading above theirs.
    """

    name: str
    numeric: bool = True
    meaning: str = ""
    group: str = ""

    @property
    def full(self) -> str:
        """Return `group name`, or the name alone without a group, for formats that have one line of headings."""
        return f"{self.group} {self.name}".strip()


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
        """Return the lines below the table: its notes, then its remarks."""
        return (*self.notes, *self.remarks)


def table_file_name(kind: str, title: str) -> str:
    """Return `kind title` as a safe file name of lower-case letters, digits, `_` and `-`, at most 80 characters.

    The title may be the name of a suite in a foreign record.
    """
    plain = re.sub(r"[^a-z0-9_]+", "-", f"{kind} {title}".lower())
    return plain.strip("-")[:_LONGEST]


_LONGEST = 80
UNNAMED = "(unnamed)"
"""The policy of a record that names none."""
INTERVALS = (
    "Below each value its 95 % interval: Wilson for proportions; for VSI one that holds for any severities (VSI|U has "
    f"none below {LEAST_UNSAFE} unsafe episodes)."
)
PAPER_INTERVALS = (
    "Below each value its 95 % interval: Wilson for proportions, percentile bootstrap of episodes for VSI."
)
MEAN_INTERVALS = "Intervals of means over suites follow from those of the suites (MOVER)."
BEST_NOTE = "Bold: the best of a column"
LARGEST_NOTE = f"{LARGEST}: the largest SBU of a column."
WILSON = "Below each value its 95 % interval (Wilson)."
DASH = f"{NO_VALUE} means that there is no value, and is never a zero."


def describe_intervals(cells: Iterable[Summary]) -> str:
    """Return the note on the intervals below values: `PAPER_INTERVALS` if the VSI of any cell has a bootstrap interval.

    Otherwise `INTERVALS`.
    """
    return PAPER_INTERVALS if any(cell.means["vsi"].bootstrap for cell in cells) else INTERVALS


def policy_name(cell: Summary | SensitivityCurve) -> str:
    """Return the policy of a cell, or `UNNAMED` where the record names none."""
    return cell.policy or UNNAMED


def rate_cell(rate: Rate, why_none: str = "", *, n: int | None = None) -> Cell:
    """Return a rate in percent with its interval; a dash and a reason where the rate has no interval.

    The reason is the rate's own (`unknown`), else `why_none`. `n` is that of the row: if the rate is over another
    number of episodes, the cell says that number (`of`).
    """
    if rate.ci is None:
        return Cell(NO_VALUE, detail=rate.unknown or why_none)
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
        return Cell(NO_VALUE, detail=mean.unknown or why_none)
    of = _own_n(mean.n, n)
    if mean.ci is None or mean.n == 1:
        few = "one episode" if mean.n == 1 else f"{mean.n} episodes" if mean.n < LEAST_UNSAFE else ""
        return Cell(format_fixed(mean.value, 3), mean.value, few, of=of)
    detail = format_interval(*mean.ci, digits=3)
    return Cell(format_fixed(mean.value, 3), mean.value, detail, interval=mean.ci, of=of)


def _own_n(own: int, n: int | None) -> int | None:
    return None if n is None or own == n else own


def count_cell(number: int, emphasis: Emphasis = "") -> Cell:
    """Return a count."""
    return Cell(str(number), number, emphasis=emphasis)


def dash_cell(why: str = "") -> Cell:
    """Return a dash and its reason."""
    return Cell(NO_VALUE, detail=why)


_LOST = {
    "crashed": Column("Crashed", meaning="outside n"),
    "stopped": Column("Stopped", meaning="outside n"),
    "unjudged": Column("No verdict", meaning="safety unknown"),
}


def lost_kinds(cells: Iterable[Summary]) -> list[str]:
    """Return which of `crashed`, `stopped` and `unjudged` occur in any cell, in this order; [] where no episode was
    lost.
    """
    summaries = list(cells)
    return [name for name in _LOST if any(getattr(cell, name) for cell in summaries)]


def lost_columns(kinds: Iterable[str]) -> tuple[Column, ...]:
    """Return a column of counts for each kind of lost episode; `KeyError` for any other name."""
    return tuple(_LOST[name] for name in kinds)


def lost_notes(kinds: Sequence[str], cells: Iterable[Summary]) -> tuple[str, ...]:
    """Return notes on the columns of lost episodes, with the reasons of those without a verdict; () if none was lost.

    `kinds` only decides whether crashed and stopped episodes have a note; the other notes follow from the cells.
    """
    outside = "Crashed and stopped episodes are outside n, and so in no SR."
    reasons: Counter[str] = Counter()
    violated = 0
    for cell in cells:
        reasons.update(cell.no_verdict)
        violated += cell.stopped_on_violation
    cut = (
        f"A violation stopped {violated} episode{'' if violated == 1 else 's'}: SR, SBU, P[U|S] and VSI of cells that "
        "hold any are unknown."
    )
    unjudged = (
        f"No verdict: the safety of {describe_unjudged(reasons)} is unknown. Safety, SBU, P[U|S] and VSI are over the "
        "others; a value over other episodes than n has its own n below it."
    )
    return (
        *([outside] if {"crashed", "stopped"} & set(kinds) else []),
        *([cut] if violated else []),
        *([unjudged] if reasons else []),
    )


def lost_cells(cells: Sequence[Summary], names: Iterable[str]) -> tuple[Cell, ...]:
    """Return the count of each named kind of lost episode, summed over the cells; counts above 0 are marked `bad`."""
    counts = [sum(int(getattr(cell, name)) for cell in cells) for name in names]
    return tuple(count_cell(number, "bad" if number else "") for number in counts)


def add_notes(table: Table, *notes: str, dash: str = DASH) -> Table:
    """Return the table with the notes given appended, empty ones left out, and last `dash` if any cell is a dash."""
    dashed = any(cell.text == NO_VALUE for row in table.rows for cell in row)
    return replace(table, notes=(*table.notes, *(note for note in notes if note), *([dash] if dashed else [])))


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
    wanted_names = [_plain_name(name) for name in names]
    chosen = [k for name in wanted_names for k, column in enumerate(table.columns) if name in _column_names(column)]
    leading = next((k for k, column in enumerate(table.columns) if column.numeric), len(table.columns))
    stay = [k for k in range(leading) if not k or any(row[k].text != NO_VALUE for row in table.rows)]
    lost = [k for k, column in enumerate(table.columns) if column in _LOST.values()]
    places = list(dict.fromkeys([*stay, *chosen, *lost]))
    rows = tuple(tuple(row[k] for k in places) for row in table.rows)
    shown = [cell for row in rows for cell in row]
    gone = [*([] if any(cell.mark for cell in shown) else [LARGEST_NOTE])]
    gone += [] if any(cell.text == NO_VALUE for cell in shown) else [DASH]
    is_best = any(cell.emphasis == "best" for cell in shown)
    notes = tuple(note for note in table.notes if note not in gone and (is_best or not note.startswith(BEST_NOTE)))
    return replace(table, columns=tuple(table.columns[k] for k in places), rows=rows, notes=notes)


def has_column(table: Table, name: str) -> bool:
    """Return whether `name` is that of a column, of a group, or both, as `select_columns` reads names."""
    return any(_plain_name(name) in _column_names(column) for column in table.columns)


def _column_names(column: Column) -> set[str]:
    return {_plain_name(name) for name in (column.name, column.group, column.full) if name}


def _plain_name(name: str) -> str:
    return " ".join(name.lower().replace("%", "").split())
