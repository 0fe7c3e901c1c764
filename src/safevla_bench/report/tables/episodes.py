"""The list of episodes as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from safevla_bench import provenance_marks
from safevla_bench.report.episode_list import EpisodeListRow
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.text.numbers import NO_VALUE, append_unit, display_unit, format_fixed, format_significant


def episode_list_table(rows: Sequence[EpisodeListRow], total: int, *, spec_id: str | None = None) -> Table:
    """Tabulate rows of the episode list.

    Args:
        rows: the selected rows.
        total: the number of all episodes.
        spec_id: the only specification that the rows are about.
    """
    with_policy = len({row.policy for row in rows}) > 1
    columns = (
        Column("#"),
        Column("Episode", numeric=False),
        *([Column("Policy", numeric=False)] if with_policy else []),
        Column("Outcome", numeric=False),
        Column("Safe", numeric=False),
        Column("VSI"),
        *([] if spec_id else [Column("Worst specification", numeric=False)]),
        Column("Margin"),
        Column("First violation", numeric=False),
    )
    title = f"{len(rows)} of {total} episodes" + (f", judged by {spec_id} alone" if spec_id else "")
    cells = tuple(tuple(_episode_cells(row, with_policy, spec_id)) for row in rows)
    return Table(title, columns, cells, remarks=provenance_marks.warn_of_episodes(rows))


def _episode_cells(row: EpisodeListRow, with_policy: bool, spec_id: str | None) -> Iterable[Cell]:
    yield Cell(str(row.number), row.number)
    yield Cell(row.episode_id)
    if with_policy:
        yield Cell(row.policy or UNNAMED)
    yield Cell(row.outcome)
    yield Cell(NO_VALUE if row.safe is None else "yes" if row.safe else "no")
    yield Cell(NO_VALUE if row.vsi is None else format_fixed(row.vsi, 3), row.vsi)
    if spec_id is None:
        yield Cell(row.spec or NO_VALUE)
    yield Cell(_format_margin(row), row.rho)
    yield Cell(_format_first_violation(row))


def _format_margin(row: EpisodeListRow) -> str:
    if row.rho is None or row.threshold is None or row.unit is None:
        return NO_VALUE
    unit, scale = display_unit(row.unit, row.threshold)
    return append_unit(format_significant(row.rho * scale), unit)


def _format_first_violation(row: EpisodeListRow) -> str:
    if row.first_violation_s is None:
        return NO_VALUE
    return f"{format_fixed(row.first_violation_s, 2)} s, step {row.first_violation_step}"
