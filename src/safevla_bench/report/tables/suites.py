"""Tables with one row a policy and suites side by side with their mean: the paper's Tables 4 to 6."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from safevla_bench.judging.metrics import Mean, Rate, Summary, has_verdict
from safevla_bench.report.tables.cells import Roster, why_no_safety
from safevla_bench.report.tables.table import (
    BEST_NOTE,
    LARGEST,
    LARGEST_NOTE,
    MEAN_INTERVALS,
    UNNAMED,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    dash_cell,
    describe_intervals,
    lost_cells,
    lost_columns,
    lost_kinds,
    lost_notes,
    mean_cell,
    rate_cell,
    table_file_name,
)
from safevla_bench.statistics.intervals import Interval, rate_mean_interval
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

Cells = Mapping[str, Summary]
"""The cells of one policy by suite."""
Better = Literal["high", "low", ""]


@dataclass(frozen=True, slots=True)
class ExactCell:
    """A cell with its exact value; `competes` is whether it competes with the others of its column."""

    cell: Cell
    exact: Fraction | None = None
    competes: bool = True


def mark_column(column: Sequence[ExactCell], better: Better = "", *, largest: bool = False) -> list[Cell]:
    """Return the cells of a column, the best in bold and, if `largest`, the largest with a dagger.

    Exact values are compared, so that two values that print alike need not share a mark. With fewer than two different
    values among those that compete, none is marked.
    """
    values = [entry.exact for entry in column if entry.competes and entry.exact is not None]
    if len(set(values)) < 2:
        return [entry.cell for entry in column]
    best = {"high": max, "low": min}[better](values) if better else None
    most = max(values) if largest else None
    return [_mark_cell(entry, best, most) for entry in column]


def _mark_cell(entry: ExactCell, best: Fraction | None, most: Fraction | None) -> Cell:
    cell = entry.cell
    if not entry.competes or entry.exact is None:
        return cell
    if entry.exact == best:
        cell = replace(cell, emphasis="best")
    return replace(cell, mark=LARGEST) if entry.exact == most else cell


@dataclass(frozen=True, slots=True)
class SuiteMetric:
    """A number of a cell.

    `better` is the end that is bold. `needs_verdict`: it has no meaning where no specification reached a verdict.
    `count_base` gives the n that a reader takes it to be over; None for one that never is over all episodes.
    """

    name: str
    meaning: str
    read: Callable[[Summary], Rate | Mean]
    better: Better
    largest: bool = False
    needs_verdict: bool = True
    count_base: Callable[[Summary], int | None] = lambda cell: cell.n

    def exact_cell(self, cell: Summary | None) -> ExactCell:
        """Return the metric of a cell; a dash with the reason where the cell is None, has no verdict, or
        has no value.
        """
        if cell is None:
            return ExactCell(dash_cell("not run"))
        if self.needs_verdict and not has_verdict(cell):
            return ExactCell(dash_cell(why_no_safety(cell)))
        value, n = self.read(cell), self.count_base(cell)
        if isinstance(value, Rate):
            why = "no success" if cell.n else "no episode"
            return ExactCell(rate_cell(value, why, n=n), Fraction(value.count, value.n) if value.n else None)
        why = "none unsafe" if cell.rates["safety"].count == cell.judged else "not known"
        return ExactCell(mean_cell(value, why, n=n), None if value.value is None else Fraction(value.value))

    def suite_mean(self, cells: Cells, suites: Sequence[str]) -> ExactCell:
        """Return the unweighted mean over suites (of ratios, for P[U|S]), with an interval that follows from theirs.

        A dash unless every suite was run and judged, and where some value is unknown. Suites in which the metric is
        undefined, such as P[U|S] without a success, are left out and counted; such a mean competes for no mark.
        """
        judged_cells = [cells[suite] for suite in suites if suite in cells]
        if unknown := next((value.unknown for value in map(self.read, judged_cells) if value.unknown), ""):
            return ExactCell(dash_cell(unknown))
        judged_cells = [cell for cell in judged_cells if (has_verdict(cell) if self.needs_verdict else cell.n)]
        if len(judged_cells) < len(suites):
            return ExactCell(dash_cell(f"{len(judged_cells)} of {len(suites)} suites"))
        exact = [value for value in (self.exact_cell(cell).exact for cell in judged_cells) if value is not None]
        if not exact:
            return ExactCell(dash_cell(self.exact_cell(judged_cells[0]).cell.detail))
        value = sum(exact, Fraction(0)) / len(exact)
        if len(exact) < len(suites):
            return ExactCell(self._mean_cell(value, f"of {len(exact)} of {len(suites)} suites"), value, competes=False)
        interval = self._mean_interval([self.read(cell) for cell in judged_cells])
        return ExactCell(self._mean_cell(value, interval=interval), value)

    def _mean_interval(self, values: Sequence[Rate | Mean]) -> Interval | None:
        defined = [value for value in values if value.value is not None]
        limits = [(value.value, Interval(*value.ci)) for value in defined if value.value is not None and value.ci]
        return rate_mean_interval(limits) if len(limits) == len(defined) else None

    def _mean_cell(self, value: Fraction, detail: str = "", interval: Interval | None = None) -> Cell:
        scale, digits = (100, 1) if self.name.endswith("%") else (1, 3)
        text = format_fixed(scale * value, digits)
        if interval is None:
            return Cell(text, float(scale * value), detail)
        bounds = (scale * interval.low, scale * interval.high)
        detail = format_interval(interval.low, interval.high, digits=digits, scale=scale)
        return Cell(text, float(scale * value), detail, interval=bounds)


def _rate_reader(name: str) -> Callable[[Summary], Rate | Mean]:
    return lambda cell: cell.rates[name]


def _mean_reader(name: str) -> Callable[[Summary], Rate | Mean]:
    return lambda cell: cell.means[name]


SR = SuiteMetric("SR %", "success rate", _rate_reader("sr"), "high", needs_verdict=False)
SAFETY = SuiteMetric("Safety %", "share of judged episodes that break no limit", _rate_reader("safety"), "high")
SBU = SuiteMetric("SBU %", "succeeded but unsafe, of all judged episodes", _rate_reader("sbu"), "low", largest=True)
UNSAFE_SUCCESS = SuiteMetric(
    "P[U|S] %",
    "unsafe, of the successes",
    _rate_reader("p_unsafe_given_success"),
    "low",
    count_base=lambda cell: cell.rates["sr"].count,
)
VSI = SuiteMetric("VSI", "mean severity of the worst violation, 0 to 1", _mean_reader("vsi"), "low")
VSI_UNSAFE = SuiteMetric(
    "VSI|U",
    "the same over unsafe episodes only",
    _mean_reader("vsi_given_unsafe"),
    "low",
    count_base=lambda cell: None,
)


def suite_table(cells: Sequence[Summary], roster: Roster, title: str = "", *, order: Sequence[str] = ()) -> Table:
    """Return the table of SR, Safety and SBU by suite with means, then means of P[U|S] and VSI (paper Tables 4, 5).

    One row per policy.

    Args:
        cells: the cells of suites over which a mean makes sense; auxiliary ones are left out.
        roster: training kinds and flags of the policies.
        title: the group of suites, such as LIBERO.
        order: the order of suites; those not in it come last, in the order of the cells.
    """
    names = _suite_names(cells, roster, order)
    by_suite = (SR, SAFETY, SBU)
    return _policy_table("Main results", cells, roster, title, names, by_suite, (UNSAFE_SUCCESS, VSI))


def severity_table(cells: Sequence[Summary], roster: Roster, title: str = "", *, order: Sequence[str] = ()) -> Table:
    """Return the table of P[U|S], VSI and VSI|U by suite with their means; arguments are as in `suite_table`."""
    names = _suite_names(cells, roster, order)
    return _policy_table("Severity", cells, roster, title, names, (UNSAFE_SUCCESS, VSI, VSI_UNSAFE), ())


def _suite_names(cells: Sequence[Summary], roster: Roster, order: Sequence[str]) -> list[str]:
    names = dict.fromkeys(cell.suite or NO_VALUE for cell in cells if not roster.is_auxiliary(cell))
    return sorted(names, key=lambda suite: order.index(suite) if suite in order else len(order))


def _policy_table(
    kind: str,
    cells: Sequence[Summary],
    roster: Roster,
    title: str,
    names: Sequence[str],
    by_suite: Sequence[SuiteMetric],
    averages: Sequence[SuiteMetric],
) -> Table:
    """Return a table with one row per policy: the metrics of each suite with their means, then means alone.

    Args:
        kind: what the table is about, for its title and file name.
        cells: the cells; auxiliary ones are left out.
        roster: training kinds and flags of the policies.
        title: the group of suites; may be empty.
        names: the suites, in order. With a single suite there are no means, and a column names the suite.
        by_suite: metrics with a column for each suite and their mean.
        averages: metrics with a column for the mean alone.
    """
    main_cells = [cell for cell in cells if not roster.is_auxiliary(cell)]
    policies = _cells_by_policy(main_cells)
    competing = roster.competing_policies(policies)
    lost_names = lost_kinds(main_cells)
    blocks = [*(_metric_block(metric, policies, names, competing) for metric in by_suite)]
    blocks += [_mean_block(metric, policies, names, competing) for metric in averages]
    columns = [column for block in blocks for column in block[0]]
    values = [column for block in blocks for column in block[1]]
    only_suite = [Cell(names[0])] if len(names) == 1 else []
    rows = [
        (
            roster.policy_cell(policy),
            roster.training_cell(policy),
            *only_suite,
            _episode_count_cell(policy_cells),
            *(column[k] for column in values),
            *_lost_suite_cells(policy_cells, lost_names),
        )
        for k, (policy, policy_cells) in enumerate(policies.items())
    ]
    head = [Column("Policy", numeric=False), Column("Training", numeric=False)]
    head += [Column("Suite", numeric=False)] if only_suite else []
    head.append(Column("n", meaning="episodes a suite"))
    name = table_file_name("main" if kind == "Main results" else kind, title)
    heading = f"{kind}: {title}" if title else kind
    table = Table(heading, (*head, *columns, *lost_columns(lost_names)), tuple(rows), name=name)
    several = ["Means over suites are unweighted; a policy without all of them has none.", MEAN_INTERVALS]
    notes = (describe_intervals(main_cells), *(several if len(names) > 1 else []))
    outside = [policy or UNNAMED for policy in policies if policy not in competing]
    return add_notes(table, *notes, *mark_notes(rows, outside), *lost_notes(lost_names, main_cells))


def mark_notes(rows: Iterable[Sequence[Cell]], outside: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the notes on bold and on the dagger, each empty where the rows bear no such mark.

    The note on bold names the policies that are `outside`, which bear neither mark.
    """
    cells = [cell for row in rows for cell in row]
    but = f", without {' and '.join(outside)}" if outside else ""
    best = f"{BEST_NOTE}{but}." if any(cell.emphasis == "best" for cell in cells) else ""
    return (best, LARGEST_NOTE if any(cell.mark == LARGEST for cell in cells) else "")


def _cells_by_policy(cells: Sequence[Summary]) -> dict[str | None, dict[str, Summary]]:
    by_policy: dict[str | None, dict[str, Summary]] = {}
    for cell in cells:
        by_policy.setdefault(cell.policy, {})[cell.suite or NO_VALUE] = cell
    return by_policy


Block = tuple[list[Column], list[list[Cell]]]


def _metric_block(
    metric: SuiteMetric, policies: Mapping[str | None, Cells], names: Sequence[str], competing: set[str | None]
) -> Block:
    """Return columns and marked values of a metric: each suite, then the mean; a single column with one suite.

    Each list of values has a cell per policy, in the order of `policies`. Only policies of `competing` are marked.
    """
    if len(names) == 1:
        heads = [Column(metric.name, meaning=metric.meaning)]
    else:
        heads = [Column(short, group=metric.name, meaning=name) for name, short in _short_names(names).items()]
        heads.append(Column("mean", group=metric.name, meaning="over suites"))
    columns = [[metric.exact_cell(policy_cells.get(name)) for policy_cells in policies.values()] for name in names]
    if len(names) > 1:
        columns.append([metric.suite_mean(policy_cells, names) for policy_cells in policies.values()])
    return heads, [_mark_competing(metric, column, policies, competing) for column in columns]


def _mean_block(
    metric: SuiteMetric, policies: Mapping[str | None, Cells], names: Sequence[str], competing: set[str | None]
) -> Block:
    if len(names) == 1:
        return _metric_block(metric, policies, names, competing)
    column = [metric.suite_mean(policy_cells, names) for policy_cells in policies.values()]
    head = Column("mean", group=metric.name, meaning=metric.meaning)
    return [head], [_mark_competing(metric, column, policies, competing)]


def _mark_competing(
    metric: SuiteMetric, column: list[ExactCell], policies: Iterable[str | None], competing: set[str | None]
) -> list[Cell]:
    entries = [
        ExactCell(entry.cell, entry.exact, entry.competes and policy in competing)
        for entry, policy in zip(column, policies, strict=True)
    ]
    return mark_column(entries, metric.better, largest=metric.largest)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    first = {name.partition("-")[0] for name in names}
    cut = len(first.pop()) + 1 if len(first) == 1 and all("-" in name for name in names) else 0
    return {name: name[cut:] for name in names}


def _episode_count_cell(policy_cells: Cells) -> Cell:
    counts = sorted({cell.n for cell in policy_cells.values()})
    return count_cell(counts[0]) if len(counts) == 1 else Cell(f"{counts[0]}–{counts[-1]}")


def _lost_suite_cells(policy_cells: Cells, names: Sequence[str]) -> tuple[Cell, ...]:
    return lost_cells(list(policy_cells.values()), names)


def auxiliary_table(cells: Sequence[Summary], roster: Roster) -> Table:
    """Return the table of runs beside the benchmark, out of every mean and mark (paper Table 6), a row per cell.

    Cells that the roster does not call auxiliary are left out.
    """
    auxiliary_cells = [cell for cell in cells if roster.is_auxiliary(cell)]
    metrics = (SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI)
    lost_names = lost_kinds(auxiliary_cells)
    head = (
        Column("Policy", numeric=False),
        Column("Training", numeric=False),
        Column("Suite", numeric=False),
        Column("n"),
    )
    rows = tuple(
        (
            roster.policy_cell(cell.policy),
            roster.training_cell(cell.policy),
            Cell(cell.suite or NO_VALUE),
            count_cell(cell.n),
            *(metric.exact_cell(cell).cell for metric in metrics),
            *lost_cells([cell], lost_names),
        )
        for cell in auxiliary_cells
    )
    columns = (*head, *(Column(metric.name, meaning=metric.meaning) for metric in metrics), *lost_columns(lost_names))
    table = Table("Auxiliary results, outside every mean", columns, rows, name="auxiliary")
    return add_notes(table, describe_intervals(auxiliary_cells), *lost_notes(lost_names, auxiliary_cells))
