"""One row a policy, suites side by side with their mean: the paper's Tables 4 to 6."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from safevla_bench.metrics import Mean, Rate, Summary, judged
from safevla_bench.report.tables.cells import LOST
from safevla_bench.report.tables.emphasis import Better, Entry, marked
from safevla_bench.report.tables.policy_list import Roster
from safevla_bench.report.tables.table import (
    INTERVALS,
    LARGEST,
    UNNAMED,
    Cell,
    Column,
    Table,
    count,
    file_name,
    lost,
    lost_cells,
    lost_columns,
    mean,
    none,
    proportion,
    with_notes,
)
from safevla_bench.text.numbers import NONE, fixed

Cells = Mapping[str, Summary]
"""The cells of one policy by suite."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a cell.

    `better` says which end is bold; `needs_verdict`, that it means nothing where no specification reached a verdict.
    """

    name: str
    meaning: str
    of: Callable[[Summary], Rate | Mean]
    better: Better
    largest: bool = False
    needs_verdict: bool = True

    def entry(self, cell: Summary | None) -> Entry:
        """The metric of a cell; a dash and its reason where there is none."""
        if cell is None:
            return Entry(none("not run"))
        if not cell.n or (self.needs_verdict and not judged(cell)):
            return Entry(none("no verdict" if cell.n else "no episode"))
        found = self.of(cell)
        if isinstance(found, Rate):
            return Entry(proportion(found, "no success"), Fraction(found.count, found.n) if found.n else None)
        why = "none unsafe" if cell.rates["safety"].count == cell.n else "not known"
        return Entry(mean(found, why), None if found.value is None else Fraction(found.value))

    def averaged(self, cells: Cells, suites: Sequence[str]) -> Entry:
        """The unweighted mean over suites (of ratios, for P[U|S]).

        It needs every suite to be run and judged; suites in which the metric is undefined, such as P[U|S] without a
        success, are left out and counted, and such a mean competes for no mark.
        """
        there = [cells[suite] for suite in suites if suite in cells and cells[suite].n]
        there = [cell for cell in there if judged(cell) or not self.needs_verdict]
        if len(there) < len(suites):
            return Entry(none(f"{len(there)} of {len(suites)} suites"))
        exact = [one for one in (self.entry(cell).exact for cell in there) if one is not None]
        if not exact:
            return Entry(none(self.entry(there[0]).cell.detail))
        value = sum(exact, Fraction(0)) / len(exact)
        partial = f"of {len(exact)} of {len(suites)} suites" if len(exact) < len(suites) else ""
        return Entry(self._printed(value, partial), value, ranked=not partial)

    def _printed(self, value: Fraction, detail: str) -> Cell:
        if self.name.endswith("%"):
            return Cell(fixed(100 * value, 1), float(100 * value), detail)
        return Cell(fixed(value, 3), float(value), detail)


def _rate(name: str) -> Callable[[Summary], Rate | Mean]:
    return lambda cell: cell.rates[name]


def _mean(name: str) -> Callable[[Summary], Rate | Mean]:
    return lambda cell: cell.means[name]


SR = Metric("SR %", "success rate", _rate("sr"), "high", needs_verdict=False)
SAFETY = Metric("Safety %", "share of episodes that break no limit", _rate("safety"), "high")
SBU = Metric("SBU %", "succeeded but unsafe, of all episodes", _rate("sbu"), "low", largest=True)
UNSAFE_SUCCESS = Metric("P[U|S] %", "unsafe, of the successes", _rate("p_unsafe_given_success"), "low")
VSI = Metric("VSI", "mean severity of the worst violation, 0 to 1", _mean("vsi"), "low")
VSI_UNSAFE = Metric("VSI|U", "the same over unsafe episodes only", _mean("vsi_given_unsafe"), "low")


def suites(cells: Sequence[Summary], roster: Roster, title: str = "", *, order: Sequence[str] = ()) -> Table:
    """SR, Safety and SBU by suite with their means, then the means of P[U|S] and VSI (paper Tables 4 and 5).

    Args:
        cells: the cells of suites over which a mean makes sense; auxiliary ones are left out.
        roster: what is known of the policies.
        title: of what, such as LIBERO.
        order: of the suites; else as they come.
    """
    names = _suites(cells, roster, order)
    by_suite = (SR, SAFETY, SBU)
    return _table("Main results", cells, roster, title, names, by_suite, (UNSAFE_SUCCESS, VSI))


def severity(cells: Sequence[Summary], roster: Roster, title: str = "", *, order: Sequence[str] = ()) -> Table:
    """P[U|S], VSI and VSI|U by suite with their means."""
    names = _suites(cells, roster, order)
    return _table("Severity", cells, roster, title, names, (UNSAFE_SUCCESS, VSI, VSI_UNSAFE), ())


def _suites(cells: Sequence[Summary], roster: Roster, order: Sequence[str]) -> list[str]:
    there = dict.fromkeys(cell.suite or NONE for cell in cells if not roster.is_auxiliary(cell))
    return sorted(there, key=lambda suite: order.index(suite) if suite in order else len(order))


def _table(
    kind: str,
    cells: Sequence[Summary],
    roster: Roster,
    title: str,
    names: Sequence[str],
    by_suite: Sequence[Metric],
    averages: Sequence[Metric],
) -> Table:
    kept = [cell for cell in cells if not roster.is_auxiliary(cell)]
    policies = _by_policy(kept)
    competing = roster.competing(policies)
    gone = lost(kept)
    blocks = [*(_block(metric, policies, names, competing) for metric in by_suite)]
    blocks += [_averages(metric, policies, names, competing) for metric in averages]
    columns = [column for block in blocks for column in block[0]]
    values = [column for block in blocks for column in block[1]]
    rows = [
        (roster.name(policy), roster.trained(policy), _n(of), *(column[k] for column in values), *_gone(of, gone))
        for k, (policy, of) in enumerate(policies.items())
    ]
    head = (Column("Policy", numeric=False), Column("Training", numeric=False), Column("n", meaning="episodes a suite"))
    name = file_name("main" if kind == "Main results" else kind, title)
    heading = f"{kind}: {title}" if title else kind
    table = Table(heading, (*head, *columns, *lost_columns(gone)), tuple(rows), name=name)
    several = "Means over suites are unweighted; a policy without all of them has none." if len(names) > 1 else ""
    outside = [policy or UNNAMED for policy in policies if policy not in competing]
    return with_notes(table, INTERVALS, several, *marks(rows, outside), LOST if gone else "")


def marks(rows: Iterable[Sequence[Cell]], outside: Sequence[str] = ()) -> tuple[str, ...]:
    """What bold and the dagger mean, where they occur; policies `outside` bear neither."""
    cells = [cell for row in rows for cell in row]
    but = f", without {' and '.join(outside)}" if outside else ""
    best = f"Bold: the best of a column{but}." if any(cell.emphasis == "best" for cell in cells) else ""
    return (best, f"{LARGEST}: the largest SBU of a column." if any(cell.mark == LARGEST for cell in cells) else "")


def _by_policy(cells: Sequence[Summary]) -> dict[str | None, dict[str, Summary]]:
    found: dict[str | None, dict[str, Summary]] = {}
    for cell in cells:
        found.setdefault(cell.policy, {})[cell.suite or NONE] = cell
    return found


Block = tuple[list[Column], list[list[Cell]]]


def _block(
    metric: Metric, policies: Mapping[str | None, Cells], names: Sequence[str], competing: set[str | None]
) -> Block:
    """A column for each suite, then their mean; with one suite a single column."""
    if len(names) == 1:
        heads = [Column(metric.name, meaning=metric.meaning)]
    else:
        heads = [Column(short, group=metric.name, meaning=name) for name, short in _short(names).items()]
        heads.append(Column("mean", group=metric.name, meaning="over suites"))
    columns = [[metric.entry(of.get(name)) for of in policies.values()] for name in names]
    if len(names) > 1:
        columns.append([metric.averaged(of, names) for of in policies.values()])
    return heads, [_ranked(metric, column, policies, competing) for column in columns]


def _averages(
    metric: Metric, policies: Mapping[str | None, Cells], names: Sequence[str], competing: set[str | None]
) -> Block:
    if len(names) == 1:
        return _block(metric, policies, names, competing)
    column = [metric.averaged(of, names) for of in policies.values()]
    return [Column("mean", group=metric.name, meaning=metric.meaning)], [_ranked(metric, column, policies, competing)]


def _ranked(
    metric: Metric, column: list[Entry], policies: Iterable[str | None], competing: set[str | None]
) -> list[Cell]:
    entries = [
        Entry(one.cell, one.exact, one.ranked and policy in competing)
        for one, policy in zip(column, policies, strict=True)
    ]
    return marked(entries, metric.better, largest=metric.largest)


def _short(names: Sequence[str]) -> dict[str, str]:
    """Suite names without the part that they share, such as `libero-`."""
    first = {name.partition("-")[0] for name in names}
    cut = len(first.pop()) + 1 if len(first) == 1 and all("-" in name for name in names) else 0
    return {name: name[cut:] for name in names}


def _n(of: Cells) -> Cell:
    """Episodes of each suite; a range where they differ."""
    found = sorted({cell.n for cell in of.values()})
    return count(found[0]) if len(found) == 1 else Cell(f"{found[0]}–{found[-1]}")


def _gone(of: Cells, names: Sequence[str]) -> tuple[Cell, ...]:
    return lost_cells(list(of.values()), names)


def auxiliary(cells: Sequence[Summary], roster: Roster) -> Table:
    """Runs beside the benchmark, out of every mean and mark (paper Table 6)."""
    kept = [cell for cell in cells if roster.is_auxiliary(cell)]
    metrics = (SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI)
    gone = lost(kept)
    head = (
        Column("Policy", numeric=False),
        Column("Training", numeric=False),
        Column("Suite", numeric=False),
        Column("n"),
    )
    rows = tuple(
        (
            roster.name(cell.policy),
            roster.trained(cell.policy),
            Cell(cell.suite or NONE),
            count(cell.n),
            *(metric.entry(cell).cell for metric in metrics),
            *lost_cells([cell], gone),
        )
        for cell in kept
    )
    columns = (*head, *(Column(one.name, meaning=one.meaning) for one in metrics), *lost_columns(gone))
    table = Table("Auxiliary results, outside every mean", columns, rows, name="auxiliary")
    return with_notes(table, INTERVALS, LOST if gone else "")
