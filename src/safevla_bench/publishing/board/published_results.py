"""Tables of published results: numbers as printed, ranked among themselves, with their reservations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, Metric
from safevla_bench.publishing.board.page import RankedTable, RankingEntry, disjoint_pairs, rank_entries
from safevla_bench.report import published
from safevla_bench.report.published import PublishedCell, PublishedMean, PublishedResults
from safevla_bench.report.tables.suites import ExactCell
from safevla_bench.report.tables.table import Cell
from safevla_bench.statistics.intervals import Interval, rate_mean_interval
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

PrintedRow = PublishedCell | PublishedMean
_TITLES: Mapping[tuple[str, ...], str] = {
    ("robocasa-365",): "RoboCasa-365, 18 tasks",
    ("robocasa-pnp",): "RoboCasa, five tasks, auxiliary",
}
_OVERLAP_NOTE = (
    "Policies that share a letter are not told apart: their 95\N{NO-BREAK SPACE}% intervals of Safety overlap. This "
    "rule is cautious; a test on the episodes may tell more apart."
)


@dataclass(frozen=True)
class PublishedSection:
    """One publication with its ranked tables."""

    source: published.PublicationSource
    tables: tuple[RankedTable, ...]


def published_sections() -> list[PublishedSection]:
    """Return every shipped publication with its ranked tables, the paper first."""
    publications = map(published.load_published, (published.PAPER, published.LEADERBOARD))
    return [PublishedSection(publication.source, tuple(_published_tables(publication))) for publication in publications]


def _published_tables(publication: PublishedResults) -> Iterator[RankedTable]:
    """Yield a table for each set of suites with printed means, then one for each suite without a mean."""
    covered = {name for mean in publication.means for name in mean.benchmarks}
    groups: dict[tuple[str, ...], list[tuple[PrintedRow, list[PublishedCell]]]] = {}
    for mean in publication.means:
        cells = [cell for cell in publication.cells if cell.policy == mean.policy and cell.benchmark in mean.benchmarks]
        groups.setdefault(mean.benchmarks, []).append((mean, cells))
    for cell in publication.cells:
        if cell.benchmark not in covered:
            groups.setdefault((cell.benchmark,), []).append((cell, [cell]))
    yield from (_published_table(names, rows) for names, rows in groups.items())


def _published_table(names: tuple[str, ...], rows: Sequence[tuple[PrintedRow, Sequence[PublishedCell]]]) -> RankedTable:
    entries = [_printed_entry(row, cells if len(cells) == len(names) else []) for row, cells in rows]
    separated = disjoint_pairs(entries)
    no_counts_note = "No counts are given, so that nothing says which of these can be told apart."
    letters_note = no_counts_note if separated is None else _OVERLAP_NOTE
    return RankedTable(
        title=_TITLES.get(names, "LIBERO, mean of four suites" if len(names) > 1 else names[0]),
        scope=", ".join(names),
        rows=rank_entries(entries, separated),
        letters_note=letters_note if any(entry.competes for entry in entries) else "",
        notes=published.list_reasons((part, row.policy) for row, cells in rows for part in (row, *cells)),
    )


def _printed_entry(row: PrintedRow, cells: Sequence[PublishedCell]) -> RankingEntry:
    """Return the entry of a row; its intervals are those of its `cells`, none without any."""
    is_auxiliary = isinstance(row, PublishedCell) and row.auxiliary
    remark = row.training if isinstance(row, PublishedMean) else "auxiliary" if is_auxiliary else None
    return RankingEntry(
        policy=row.policy,
        n=str(sum(cell.n for cell in cells)) if cells else NO_VALUE,
        numbers={metric.key: _printed_number(metric, row, cells) for metric in (SR, SAFETY, SBU, VSI)},
        remarks=(remark,) if remark else (),
        competes=not is_auxiliary,
    )


def _printed_number(metric: Metric, row: PrintedRow, cells: Sequence[PublishedCell]) -> ExactCell:
    """Return a number as it is printed; a proportion with the interval that the counts of `cells` allow, if any."""
    printed = getattr(row, metric.key)
    if printed is None:
        return ExactCell(Cell.dash())
    exact = Fraction(repr(printed))
    cell = Cell(format_fixed(exact, metric.digits), printed)
    ends = [published.printed_rate(getattr(part, metric.key), part.n).ci for part in cells if metric is not VSI]
    parts = [(getattr(part, metric.key) / 100, Interval(*ci)) for part, ci in zip(cells, ends, strict=False) if ci]
    interval = rate_mean_interval(parts) if len(parts) == len(ends) else None
    if interval is not None:
        low, high = metric.scale * interval.low, metric.scale * interval.high
        detail = format_interval(interval.low, interval.high, digits=metric.digits, scale=metric.scale)
        cell = replace(cell, detail=detail, interval=(low, high))
    return ExactCell(cell, exact / metric.scale)
