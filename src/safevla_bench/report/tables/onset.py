"""The table of time to violation: the share that violated a limit by a time, how the others ended, near misses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from safevla_bench.explain.onset import ANY_LIMIT, FAILED, NEAR, SUCCEEDED, VIOLATED, CellOnset, SpecOnset
from safevla_bench.report.tables.table import (
    POLICY,
    SUITE,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    rate_cell,
    tabulate,
    text_column,
)
from safevla_bench.text import format_compact, format_fixed, format_interval, format_significant

_SHARES = (0.25, 0.5)
"""Of the longest episode: the times that the table shows before its end."""


def onset_table(cells: Sequence[CellOnset]) -> Table:
    """Return a row for each cell and scored specification that was violated or nearly so, and for any of them."""
    end_s = max((cell.end_s for cell in cells), default=0.0)
    times = sorted({float(format_significant(share * end_s, 2)) for share in _SHARES if end_s})
    rows = [(cell, row) for cell in cells for row in cell.specs if _is_shown(row)]
    is_cut = any(row.incidence.censored for _, row in rows)
    columns = (
        text_column("Policy", lambda row: POLICY.cell(row[0])),
        text_column("Suite", lambda row: SUITE.cell(row[0])),
        text_column("Limit", lambda row: row[1].spec_id),
        Column("n", "episodes in which it applies", lambda row: row[1].incidence.n),
        Column("Cut short", "before a violation", lambda row: _count_cut(row[1])) if is_cut else None,
        *(
            Column(f"by {format_compact(time)} s", group="Violated %", value=partial(_violated_cell, time=time))
            for time in times
        ),
        Column("at the end", group="Violated %", value=partial(_violated_cell, time=end_s)),
        Column("in success", group="Ended without %", value=lambda row: _ended_cell(row[1], SUCCEEDED)),
        Column("in failure", group="Ended without %", value=lambda row: _ended_cell(row[1], FAILED)),
        Column(
            "Near misses %",
            f"kept by less than {format_compact(100 * NEAR)} % of the limit",
            lambda row: rate_cell(row[1].near_misses, "all cut short", n=row[1].incidence.n),
        ),
    )
    table = tabulate("When violations begin, and near misses", rows, columns, name="onset")
    return add_notes(
        table,
        "Cumulative incidence (Aalen and Johansen): an episode ends with its first violation of the limit, else in "
        "success or in failure. Below each share its 95 % interval, at that time alone (Wilson).",
        "Episodes cut short without a violation count until then, as if cut at random." if is_cut else "",
    )


def _is_shown(row: SpecOnset) -> bool:
    return row.spec_id == ANY_LIMIT or bool(row.incidence.shares[VIOLATED][-1] or row.near_misses.count)


def _count_cut(row: SpecOnset) -> Cell:
    return count_cell(row.incidence.censored, "bad" if row.incidence.censored else "")


def _violated_cell(row: tuple[CellOnset, SpecOnset], time: float) -> Cell:
    found = row[1].incidence
    k = found.at(time)
    share, low, high = (100 * float(values[k]) for values in (found.shares[VIOLATED], found.low, found.high))
    return Cell(format_fixed(share, 1), share, format_interval(low, high, 1), interval=(low, high))


def _ended_cell(row: SpecOnset, end: int) -> Cell:
    share = 100 * float(row.incidence.shares[end][-1])
    return Cell(format_fixed(share, 1), share)
