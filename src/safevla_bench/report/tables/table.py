"""A table as a value: its cells, its columns, and how rows become a table.

A cell keeps the number behind its text, so that tables sort and export exactly. A dash stands where there is no value,
and the cell says why. A dash never means zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Any, Literal

from safevla_bench.judging.rates import Bounds
from safevla_bench.text import NO_VALUE, format_amount, format_fixed, format_interval, format_significant

Emphasis = Literal["", "best", "bad", "total"]
_Writer = Callable[[float], str]
UNNAMED = "(unnamed)"  # the policy of a record that names none


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
    interval: Bounds | None = None
    of: int | None = None  # episodes that the value is over, where these are not the n of its row

    @property
    def below(self) -> str:
        """The line below the text: the detail, and `n = …` where `of` is given."""
        return ", ".join(part for part in (self.detail, "" if self.of is None else f"n = {self.of}") if part)

    @classmethod
    def dash(cls, why: str = "") -> Cell:
        """Return a dash and its reason."""
        return cls(NO_VALUE, detail=why)

    @classmethod
    def count(cls, number: int, emphasis: Emphasis = "") -> Cell:
        """Return a count."""
        return cls(str(number), number, emphasis=emphasis)

    @classmethod
    def fault(cls, number: int) -> Cell:
        """Return a count that is bad unless it is 0."""
        return cls.count(number, "bad" if number else "")

    @classmethod
    def number(cls, value: float | None, digits: int, why_none: str = "", emphasis: Emphasis = "") -> Cell:
        """Return a number; a dash and its reason for None."""
        return cls.dash(why_none) if value is None else cls(format_fixed(value, digits), value, emphasis=emphasis)

    @classmethod
    def amount(
        cls, value: float | None, unit: str, limit: float | None = None, write: _Writer = format_significant
    ) -> Cell:
        """Return a value in its unit, as `format_amount` writes it."""
        return cls(format_amount(value, unit, limit, write), value)

    @classmethod
    def estimate(
        cls, value: Fraction | float, ends: Bounds, digits: int, scale: int = 1, of: int | None = None
    ) -> Cell:
        """Return a value and below it its interval, all times `scale`."""
        low, high = ends
        return cls(
            format_fixed(scale * value, digits),
            float(scale * value),
            format_interval(low, high, digits, scale),
            interval=(scale * low, scale * high),
            of=of,
        )


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
        return Cell(value) if isinstance(value, str) else Cell.count(value)


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


def group_spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return the group's name ("" for none) and the number of columns of each run of neighbours in one group."""
    return [(group, len(list(neighbours))) for group, neighbours in groupby(columns, key=lambda column: column.group)]
