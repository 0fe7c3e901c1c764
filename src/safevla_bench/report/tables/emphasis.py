"""Marks in a column: bold for the best value, a dagger for the largest (paper Tables 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from safevla_bench.report.tables.table import LARGEST, Cell

Better = Literal["high", "low", ""]


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell with its exact value; `ranked` is whether it competes with the others of its column."""

    cell: Cell
    exact: Fraction | None = None
    ranked: bool = True


def marked(column: Sequence[Entry], better: Better = "", *, largest: bool = False) -> list[Cell]:
    """The cells of a column, the best in bold, and the largest with a dagger where that is asked.

    Values are compared exactly, so that two that print alike need not share a mark. Where all values that compete are
    equal, none stands out.
    """
    values = [one.exact for one in column if one.ranked and one.exact is not None]
    if len(set(values)) < 2:
        return [one.cell for one in column]
    best = {"high": max, "low": min}[better](values) if better else None
    most = max(values) if largest else None
    return [_marked(one, best, most) for one in column]


def _marked(one: Entry, best: Fraction | None, most: Fraction | None) -> Cell:
    cell = one.cell
    if not one.ranked or one.exact is None:
        return cell
    if one.exact == best:
        cell = replace(cell, emphasis="best")
    return replace(cell, mark=LARGEST) if one.exact == most else cell
