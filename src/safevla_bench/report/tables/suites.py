"""Tables with one row a policy and suites side by side with their mean: the paper's Tables 4 to 6."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from safevla_bench.judging.metrics import Summary, has_verdict
from safevla_bench.judging.rates import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, Mean, Metric, Rate
from safevla_bench.report.published import printed_mean
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.columns import (
    COUNT,
    DASH,
    SUITE,
    describe_intervals,
    lost_columns,
    lost_notes,
    metric_cell,
    metric_columns,
    range_cell,
)
from safevla_bench.report.tables.table import (
    UNNAMED,
    Cell,
    Column,
    Table,
    add_notes,
    table_file_name,
    tabulate,
    text_column,
)
from safevla_bench.statistics.intervals import Interval, rate_mean_interval
from safevla_bench.text import NO_VALUE

LARGEST = "†"
"""The mark of the largest SBU of a column, as in the paper."""
Cells = Mapping[str, Summary]
"""The cells of one policy by suite."""


@dataclass(frozen=True, slots=True)
class ExactCell:
    """A cell with its exact value; `competes` is whether it competes with the others of its column."""

    cell: Cell
    exact: Fraction | None = None
    competes: bool = True


def exact_value(number: Rate | Mean) -> Fraction | None:
    """Return the exact value of a proportion or a mean; None where it has none."""
    if isinstance(number, Rate):
        return Fraction(number.count, number.n) if number.n else None
    return None if number.value is None else Fraction(number.value)


def suite_mean(metric: Metric, cells: Cells, suites: Sequence[str]) -> ExactCell:
    """Return the unweighted mean over suites (of ratios, for P[U|S]), with an interval that follows from theirs.

    A dash unless every suite was run and judged, and where some value is unknown. Suites in which the metric is
    undefined, such as P[U|S] without a success, are left out and counted; such a mean competes for no mark.
    """
    run_cells = [cells[suite] for suite in suites if suite in cells]
    if unknown := next((number.unknown for cell in run_cells if (number := cell.number(metric)).unknown), ""):
        printed = printed_mean(run_cells[0].policy, suites) if metric is VSI else None
        return ExactCell(Cell(metric.format(printed.vsi), printed.vsi) if printed else Cell.dash(unknown))
    judged = [cell for cell in run_cells if (has_verdict(cell) if metric.needs_verdict else cell.n)]
    if len(judged) < len(suites):
        return ExactCell(Cell.dash(f"{len(judged)} of {len(suites)} suites"))
    numbers = [cell.number(metric) for cell in judged]
    exact = [value for value in map(exact_value, numbers) if value is not None]
    if not exact:
        return ExactCell(Cell.dash(metric_cell(metric, judged[0]).detail))
    value = sum(exact, Fraction(0)) / len(exact)
    cell = Cell(metric.format(value), float(metric.scale * value))
    if len(exact) < len(suites):
        return ExactCell(replace(cell, detail=f"of {len(exact)} of {len(suites)} suites"), value, competes=False)
    limits = [(number.value, Interval(*number.ci)) for number in numbers if number.value is not None and number.ci]
    interval = rate_mean_interval(limits) if len(limits) == len(numbers) else None
    if interval is not None:
        cell = Cell.estimate(value, (interval.low, interval.high), metric.digits, metric.scale)
    return ExactCell(cell, value)


def suite_table(cells: Sequence[Summary], roster: Roster, title: str = "", *, order: Sequence[str] = ()) -> Table:
    """Return the table of SR, Safety and SBU by suite with means, then means of P[U|S] and VSI (paper Tables 4, 5).

    One row per policy; auxiliary cells are left out. `order` is that of suites; those not in it come last.
    """
    main_cells = [cell for cell in cells if not roster.is_auxiliary(cell)]
    suites = dict.fromkeys(cell.suite or NO_VALUE for cell in main_cells)
    names = sorted(suites, key=lambda suite: order.index(suite) if suite in order else len(order))
    policies = _cells_by_policy(main_cells)
    competing = roster.competing_policies(policies)
    blocks = [column for metric in (SR, SAFETY, SBU) for column in _metric_block(metric, policies, names, competing)]
    for metric in (UNSAFE_SUCCESS, VSI):
        mean = _metric_block(metric, policies, names, competing)[-1]
        blocks.append(replace(mean, meaning=metric.meaning))
    table = tabulate(
        f"Main results: {title}" if title else "Main results",
        policies,
        (
            text_column("Policy", roster.policy_cell),
            text_column("Training", lambda policy: roster.training_kind(policy, names[0])),
            text_column("Suite", lambda policy: names[0]) if len(names) == 1 else None,
            Column("n", "episodes a suite", lambda policy: range_cell(cell.n for cell in policies[policy].values())),
            *blocks,
            *lost_columns(main_cells, lambda policy: policies[policy].values()),
        ),
        name=table_file_name("main", title),
    )
    several = [
        "Means over suites are unweighted; a policy without all of them has none.",
        "Intervals of means over suites follow from those of the suites (MOVER).",
    ]
    notes = (describe_intervals(main_cells), *(several if len(names) > 1 else []))
    outside = [policy or UNNAMED for policy in policies if policy not in {*competing, *roster.published}]
    return add_notes(table, *notes, *_mark_notes(table.rows, outside), *lost_notes(main_cells), dash=DASH)


def _mark_notes(rows: Iterable[Sequence[Cell]], outside: Sequence[str]) -> Iterator[str]:
    cells = [cell for row in rows for cell in row]
    if any(cell.emphasis == "best" for cell in cells):
        yield f"Bold: the best of a column{', without ' if outside else ''}{' and '.join(outside)}."
    if any(cell.mark == LARGEST for cell in cells):
        yield f"{LARGEST}: the largest SBU of a column."


def _cells_by_policy(cells: Sequence[Summary]) -> dict[str | None, dict[str, Summary]]:
    by_policy: dict[str | None, dict[str, Summary]] = {}
    for cell in cells:
        by_policy.setdefault(cell.policy, {})[cell.suite or NO_VALUE] = cell
    return by_policy


def _metric_block(
    metric: Metric, policies: Mapping[str | None, Cells], names: Sequence[str], competing: set[str | None]
) -> list[Column]:
    """Return the columns of a metric: each suite, then the mean; a single column with one suite."""
    heads = [Column(short, group=metric.heading, meaning=name) for name, short in _short_names(names).items()]
    columns = [[_exact_cell(metric, cells.get(name)) for cells in policies.values()] for name in names]
    if len(names) == 1:
        heads = [Column(metric.heading, metric.meaning)]
    else:
        heads.append(Column("mean", group=metric.heading, meaning="over suites"))
        columns.append([suite_mean(metric, cells, names) for cells in policies.values()])
    return [_marked_column(metric, *block, policies, competing) for block in zip(heads, columns, strict=True)]


def _exact_cell(metric: Metric, cell: Summary | None) -> ExactCell:
    if cell is None:
        return ExactCell(Cell.dash("not run"))
    is_known = has_verdict(cell) or not metric.needs_verdict
    return ExactCell(metric_cell(metric, cell), exact_value(cell.number(metric)) if is_known else None)


def _marked_column(
    metric: Metric,
    head: Column,
    column: Sequence[ExactCell],
    policies: Iterable[str | None],
    competing: set[str | None],
) -> Column:
    """Return the column with the best in bold, and of SBU the largest with a dagger, by exact values.

    With fewer than two different values among those that compete, none is marked.
    """
    entries = dict(zip(policies, column, strict=True))
    ranked = {
        policy: entry.exact
        for policy, entry in entries.items()
        if policy in competing and entry.competes and entry.exact is not None
    }
    cells = {policy: entry.cell for policy, entry in entries.items()}
    if len(set(ranked.values())) > 1:
        best, largest = (max if metric.better == "high" else min)(ranked.values()), max(ranked.values())
        for policy, value in ranked.items():
            if value == best:
                cells[policy] = replace(cells[policy], emphasis="best")
            if metric is SBU and value == largest:
                cells[policy] = replace(cells[policy], mark=LARGEST)
    return replace(head, value=cells.__getitem__)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    first = {name.partition("-")[0] for name in names}
    cut = len(first.pop()) + 1 if len(first) == 1 and all("-" in name for name in names) else 0
    return {name: name[cut:] for name in names}


def auxiliary_table(cells: Sequence[Summary], roster: Roster) -> Table:
    """Return the table of the cells that the roster calls auxiliary, out of every mean and mark (paper Table 6)."""
    auxiliary_cells = [cell for cell in cells if roster.is_auxiliary(cell)]
    return tabulate(
        "Auxiliary results, outside every mean",
        auxiliary_cells,
        (
            text_column("Policy", lambda cell: roster.policy_cell(cell.policy)),
            text_column("Training", lambda cell: roster.training_kind(cell.policy, cell.suite)),
            SUITE,
            COUNT,
            *metric_columns((SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI)),
            *lost_columns(auxiliary_cells),
        ),
        name="auxiliary",
        notes=(describe_intervals(auxiliary_cells), *lost_notes(auxiliary_cells)),
        dash=DASH,
    )
