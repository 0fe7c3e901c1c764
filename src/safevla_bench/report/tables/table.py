"""A table as a value, and the cells that all builders make.

A cell keeps the number behind its text, so that tables sort and export exactly. A dash stands where there is no value,
and the cell says why; it never stands for zero, nor zero for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from safevla_bench.metrics import Mean, Rate, Summary
from safevla_bench.text.numbers import NONE, fixed, percent, span

Emphasis = Literal["", "best", "bad", "total"]
LARGEST = "†"
"""The mark of the largest SBU of a column, as in the paper."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is printed; `value` is the number behind it, in the unit of the column.

    `detail` is its interval, or why there is no value; `interval` holds the ends behind a detail that is one. `mark`
    stands after the text, such as a dagger.
    """

    text: str
    value: float | None = None
    detail: str = ""
    emphasis: Emphasis = ""
    mark: str = ""
    interval: tuple[float, float] | None = None


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
        """The name with its group's, for formats that have one line of headings."""
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns; the first column names the row.

    `name` is what a file of this table alone is called. `notes` explain it where there is room; `remarks` are what must
    not be parted from its numbers, and are in every form.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    name: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        """What is written below it."""
        return (*self.notes, *self.remarks)


def file_name(kind: str, title: str) -> str:
    """What a file of a table is called: the title may be a suite's name from a stranger's record."""
    plain = re.sub(r"[^a-z0-9_]+", "-", f"{kind} {title}".lower())
    return plain.strip("-")[:_LONGEST]


_LONGEST = 80
UNNAMED = "(unnamed)"
"""Stands for the policy of a record that names none."""
INTERVALS = "Below each value its 95 % interval: Wilson for proportions, percentile bootstrap of episodes for VSI."
WILSON = "Below each value its 95 % interval (Wilson)."
DASH = f"{NONE} means that there is no value, and is never a zero."


def policy_name(cell: Summary) -> str:
    """The policy of a cell, also where the record names none."""
    return cell.policy or UNNAMED


def proportion(rate: Rate, why_none: str = "") -> Cell:
    """A rate in percent with its interval; where n is zero a dash and the reason."""
    if rate.ci is None:
        return Cell(NONE, detail=why_none)
    low, high = (100 * end for end in rate.ci)
    value = float(Fraction(100 * rate.count, rate.n))
    return Cell(percent(rate.count, rate.n), value, span(*rate.ci, digits=1, scale=100), interval=(low, high))


def mean(of: Mean, why_none: str = "") -> Cell:
    """A mean with its interval; where nothing counts a dash and the reason."""
    if of.value is None or of.ci is None:
        return Cell(NONE, detail=why_none)
    if of.n == 1:
        return Cell(fixed(of.value, 3), of.value, "one episode")
    return Cell(fixed(of.value, 3), of.value, span(*of.ci, digits=3), interval=of.ci)


def count(number: int, emphasis: Emphasis = "") -> Cell:
    """A count."""
    return Cell(str(number), number, emphasis=emphasis)


def none(why: str = "") -> Cell:
    """A dash and its reason."""
    return Cell(NONE, detail=why)


def lost(cells: Iterable[Summary]) -> list[str]:
    """Which of `crashed` and `stopped` there are any of."""
    found = list(cells)
    return [name for name in ("crashed", "stopped") if any(getattr(cell, name) for cell in found)]


def lost_columns(names: Iterable[str]) -> tuple[Column, ...]:
    """A column for each of them."""
    return tuple(Column(name.capitalize(), meaning="outside n") for name in names)


def lost_cells(cells: Sequence[Summary], names: Iterable[str]) -> tuple[Cell, ...]:
    """How many of each there are in some cells together."""
    counts = [sum(int(getattr(cell, name)) for cell in cells) for name in names]
    return tuple(count(number, "bad" if number else "") for number in counts)


def with_notes(table: Table, *notes: str, dash: str = DASH) -> Table:
    """The table with notes that are not empty, and a last one where dashes need a word."""
    dashed = any(cell.text == NONE for row in table.rows for cell in row)
    return replace(table, notes=(*table.notes, *(note for note in notes if note), *([dash] if dashed else [])))


def without_intervals(table: Table) -> Table:
    """The table with values alone; the reasons of dashes stay."""
    rows = tuple(
        tuple(replace(cell, detail="", interval=None) if cell.interval else cell for cell in row) for row in table.rows
    )
    return replace(table, rows=rows, notes=tuple(note for note in table.notes if note not in (INTERVALS, WILSON)))
