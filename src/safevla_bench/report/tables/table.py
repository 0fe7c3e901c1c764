"""Immutable tables of cells and columns, and functions that build a table from rows.

A cell keeps the exact number that its text shows, so that tables can be sorted and exported exactly. A dash replaces a
missing value, and the cell says why the value is missing. A dash never means zero.
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
UNNAMED = "(unnamed)"  # the policy's name in reports if a record names no policy


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell. `value` is the exact number that `text` shows, in the unit of the column. `detail` is the interval as
    text, a remark, or why the value is missing; `interval` is both ends as numbers. `mark`, such as †, follows `text`.
    """

    text: str
    value: float | None = None
    detail: str = ""
    emphasis: Emphasis = ""
    mark: str = ""
    interval: Bounds | None = None
    of: int | None = None  # number of episodes of the value, if it differs from the n of the row

    @property
    def below(self) -> str:
        """The line below the text: `detail`, then `n = …` if `of` is not None."""
        # `detail` is an interval or a remark; `of` is the n of the value, if this differs from the n of the row.
        return ", ".join(part for part in (self.detail, "" if self.of is None else f"n = {self.of}") if part)

    @classmethod
    def dash(cls, why: str = "") -> Cell:
        # Return the cell of a missing value: a dash; `why` is the line below it, "" if the reason is obvious.
        return cls(NO_VALUE, detail=why)

    @classmethod
    def count(cls, number: int, emphasis: Emphasis = "") -> Cell:
        # Return the cell of a whole number. Its text is exact, so text and value are the same number.
        return cls(str(number), number, emphasis=emphasis)

    @classmethod
    def fault(cls, number: int) -> Cell:
        """Return the cell of a count; its emphasis is `bad` unless the count is 0."""
        return cls.count(number, "bad" if number else "")

    @classmethod
    def number(cls, value: float | None, digits: int, why_none: str = "") -> Cell:
        # Return a number with `digits` decimals; for None, a dash with the reason `why_none`.
        return cls.dash(why_none) if value is None else cls(format_fixed(value, digits), value)

    @classmethod
    def amount(
        cls, value: float | None, unit: str, limit: float | None = None, write: _Writer = format_significant
    ) -> Cell:
        # Return a cell with a value and its unit; a dash for None. A length is in mm if `limit` is small, else in m.
        # If `limit` is None, the value itself decides.
        # `write` turns the number into text.
        return cls(format_amount(value, unit, limit, write), value)

    @classmethod
    def estimate(
        cls, value: Fraction | float | None, ends: Bounds | None, digits: int, scale: int = 1, of: int | None = None
    ) -> Cell:
        """Return a cell with a value and its interval, both multiplied by `scale`; a dash if the value is None."""
        # `ends` are the interval's low and high end (None = no interval). `of` is a number of episodes to show.
        if value is None:
            return cls.dash()
        text, detail, interval = format_fixed(scale * value, digits), "", None
        if ends:
            detail, interval = format_interval(*ends, digits, scale), (scale * ends[0], scale * ends[1])
        return cls(text, float(scale * value), detail, interval=interval, of=of)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `meaning` explains a short name. `value` returns a row's cell, text or count; it is None in
    a finished table. Adjacent columns with the same `group` share a heading above their names. `numeric` columns are
    aligned right and never wrapped.
    """

    name: str
    meaning: str = ""
    value: Callable[[Any], Cell | str | int] | None = None
    group: str = ""
    numeric: bool = True

    @property
    def full(self) -> str:
        """`GROUP NAME`, or the name if there is no group, for formats with only one line of headings."""
        return f"{self.group} {self.name}".strip()

    def cell(self, row: object) -> Cell:
        # Return the cell of a row, from the column's function `value`; text and counts become cells.
        # Only columns of a finished table have no function.
        assert self.value is not None
        value = self.value(row)
        if isinstance(value, Cell):
            return value
        return Cell(value) if isinstance(value, str) else Cell.count(value)


def text_column(name: str, value: Callable[[Any], Cell | str | int] | None = None, meaning: str = "") -> Column:
    """Return a column of text, in which `value(row)` returns a row's cell, text or count."""
    # Unlike numbers, text is aligned left and may be wrapped. `meaning` explains a short name.
    return Column(name, numeric=False, meaning=meaning, value=value)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with a cell for each column; the first column names the row. `name` is the name of a file with only this
    table. `notes` explain the table and may be omitted to save space. `remarks` are warnings about the numbers, which
    every format includes.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    name: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def footnotes(self) -> tuple[str, ...]:
        # Return all sentences below the table: the explanations (`notes`), then the warnings (`remarks`).
        return (*self.notes, *self.remarks)


def tabulate(
    title: str,
    rows: Iterable[object],
    *columns: Column | None,
    notes: Iterable[str] = (),
    dash: str = "",
    name: str = "",
    remarks: Sequence[str] = (),
) -> Table:
    """Return the table with a row for each object in `rows`; `Column.value` makes the cells. Columns that are None, and
    empty notes, are left out. The note `dash` is added if any cell is a dash.
    """
    used_columns = [column for column in columns if column is not None]
    cells = tuple(tuple(column.cell(row) for column in used_columns) for row in rows)
    # A finished table has cells, so its columns need no functions.
    heads = tuple(replace(column, value=None) for column in used_columns)
    table = Table(title, heads, cells, name=name, remarks=tuple(remarks))
    return add_notes(table, *notes, dash=dash)


def add_notes(table: Table, *notes: str, dash: str = "") -> Table:
    """Return the table with the non-empty notes appended, and then the note `dash` if any cell is a dash."""
    # `dash` is the note on the meaning of a dash.
    has_dash = any(cell.text == NO_VALUE for row in table.rows for cell in row)
    return replace(table, notes=(*table.notes, *filter(None, (*notes, dash if has_dash else ""))))


def table_file_name(kind: str, title: str) -> str:
    """Return `kind title` as a safe file name: at most 80 lower-case letters, digits, `_` and `-`. The title may
    contain unsafe characters, because records may have any name of a suite.
    """
    return re.sub(r"[^a-z0-9_]+", "-", f"{kind} {title}".lower()).strip("-")[:80]


def group_spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return (group, number of columns) for each run of adjacent columns with the same group; "" = no group."""
    # `groupby` joins only adjacent columns, so a group may occur twice.
    return [(group, len(list(neighbors))) for group, neighbors in groupby(columns, key=lambda column: column.group)]
