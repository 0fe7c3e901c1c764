"""What changes of suites do, in a sentence and as a table."""

from __future__ import annotations

from functools import partial

from safevla_bench.compare.difference import Difference
from safevla_bench.compare.perturbation import CONTROL, MEASURED, Change, ChangeReport
from safevla_bench.judging.rates import Metric
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.text import format_compact, format_fixed, format_interval


def describe_changes(report: ChangeReport) -> str:
    """Return which changes move SR or Safety, as far as the intervals establish it, then the controls."""
    moved = [
        f"{row.change} {'raises' if sign > 0 else 'lowers'} {metric.label} of {row.policy} by {_points(item, sign)}"
        for row in report.changes
        for metric in MEASURED
        if row.change != CONTROL and (item := row.differences[metric.key]).ci and (sign := _sign(item))
    ]
    controls = [row for row in report.changes if row.change == CONTROL]
    noise = [
        f"{row.policy} {', '.join(f'{metric.label} {_points(row.differences[metric.key])}' for metric in MEASURED)}"
        for row in controls
    ]
    answer = f"{'; '.join(moved)}." if moved else "No change is shown to move SR or Safety."
    again = f"Run again without a change: {'; '.join(noise)}." if noise else "There is no control: run the suite twice."
    return f"{answer[:1].upper()}{answer[1:]} {again}"


def _sign(item: Difference) -> int:
    """Return 1 or -1 if the whole interval lies above or below 0, else 0."""
    low, high = item.ci or (0.0, 0.0)
    return int(low > 0) - int(high < 0)


def _points(item: Difference, sign: int = 1) -> str:
    """Return a difference in points; with the sign -1, how far it lies below 0."""
    if item.difference is None:
        return "not known"
    points = f"{format_fixed(100 * sign * item.difference, 1)} points"
    if item.ci is None:
        return points
    low, high = sorted(sign * end for end in item.ci)
    return f"{points} ({format_interval(low, high, 1, 100)})"


def change_table(report: ChangeReport, notes: tuple[str, ...] = ()) -> Table:
    """Return a row for each policy and change: the pairs, and the differences changed minus unchanged in points."""
    columns = (
        text_column("Policy", lambda row: row.policy),
        text_column("Changed", lambda row: row.change),
        text_column("Suites", lambda row: ", ".join(row.suites)),
        Column("Pairs", value=lambda row: row.differences[MEASURED[0].key].pairs or 0),
        *(Column(metric.label, "points", value=partial(_difference_cell, metric=metric)) for metric in MEASURED),
        Column("Unknown", "paired episodes", lambda row: Cell.count(row.unknown, "bad" if row.unknown else "")),
        Column("Left out", "without their like", lambda row: row.left_out),
    )
    together = (
        f"Changed minus unchanged, on the same tasks, initial states and seeds. All intervals hold together at "
        f"{format_compact(100 * report.confidence)} % on these tasks: each is at "
        f"{format_compact(round(100 * report.each_confidence, 2))} % (Bonferroni)."
    )
    return tabulate("What changes of the suites do", report.changes, columns, notes=(together, *notes))


def _difference_cell(row: Change, metric: Metric) -> Cell:
    item = row.differences[metric.key]
    if item.difference is None:
        return Cell.dash("no pair has a value of both")
    detail = format_interval(*item.ci, 1, 100) if item.ci else ""
    return Cell(format_fixed(100 * item.difference, 1), 100 * item.difference, detail)
