"""Tables and pages of published results: numbers as printed, ranked among themselves, with their reservations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from safevla_bench.judging.rates import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, Metric
from safevla_bench.publishing.board import page
from safevla_bench.publishing.board.page import PolicyPage, RankedTable, RankingEntry, Section
from safevla_bench.report import published
from safevla_bench.report.published import PublishedCell, PublishedMean, PublishedResults
from safevla_bench.report.tables.suites import ExactCell
from safevla_bench.report.tables.table import Cell, Column, Table, text_column
from safevla_bench.statistics.intervals import Interval, rate_mean_interval
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

PrintedRow = PublishedCell | PublishedMean
_OF_ALL_EPISODES = (SR, SAFETY, SBU)
"""The metrics whose printed values are proportions of a cell's n episodes."""
_TITLES: Mapping[tuple[str, ...], str] = {
    ("robocasa-365",): "RoboCasa-365, 18 tasks",
    ("robocasa-pnp",): "RoboCasa, five tasks, auxiliary",
}


@dataclass(frozen=True)
class PublishedSection:
    """One publication with its ranked tables."""

    source: published.PublicationSource
    tables: tuple[RankedTable, ...]


def published_sections() -> list[PublishedSection]:
    """Return every shipped publication with its ranked tables, the paper first."""
    return [PublishedSection(publication.source, tuple(_published_tables(publication))) for publication in _load_all()]


def _load_all() -> list[PublishedResults]:
    return [published.load_published(published.PAPER), published.load_published(published.LEADERBOARD)]


# Tables


def _published_tables(publication: PublishedResults) -> Iterator[RankedTable]:
    """Yield a table for each set of suites with printed means, then one for each suite without a mean."""
    for names in dict.fromkeys(mean.benchmarks for mean in publication.means):
        entries, rows = [], list[PrintedRow]()
        for mean in (mean for mean in publication.means if mean.benchmarks == names):
            cells = [cell for cell in publication.cells if cell.policy == mean.policy and cell.benchmark in names]
            is_whole = len(cells) == len(mean.benchmarks)
            entries.append(_printed_entry(mean, cells if is_whole else [], mean.training))
            rows += [mean, *cells]
        yield _published_table(names, entries, rows)
    covered = {name for mean in publication.means for name in mean.benchmarks}
    for name in dict.fromkeys(cell.benchmark for cell in publication.cells if cell.benchmark not in covered):
        cells = [cell for cell in publication.cells if cell.benchmark == name]
        entries = [
            _printed_entry(cell, [cell], "auxiliary" if cell.auxiliary else None, competes=not cell.auxiliary)
            for cell in cells
        ]
        yield _published_table((name,), entries, cells)


def _published_table(
    names: tuple[str, ...], entries: Sequence[RankingEntry], rows: Sequence[PrintedRow]
) -> RankedTable:
    separated = page.disjoint_pairs(entries)
    no_counts_note = "No counts are given, so that nothing says which of these can be told apart."
    letters_note = no_counts_note if separated is None else page.OVERLAP_NOTE
    return RankedTable(
        title=_TITLES.get(names, "LIBERO, mean of four suites" if len(names) > 1 else names[0]),
        scope=", ".join(names),
        rows=page.rank_entries(entries, separated),
        letters_note=letters_note if any(entry.competes for entry in entries) else "",
        notes=published.list_reasons((row, row.policy) for row in rows),
    )


def _printed_entry(
    row: PrintedRow, cells: Sequence[PublishedCell], remark: str | None, *, competes: bool = True
) -> RankingEntry:
    """Return the entry of a printed row; n and intervals are those of its `cells`, none without any."""
    return RankingEntry(
        policy=row.policy,
        page_path=page.published_page_path(row.policy),
        n=str(sum(cell.n for cell in cells)) if cells else NO_VALUE,
        numbers={metric.key: _printed_number(metric, row, cells) for metric in (SR, SAFETY, SBU, VSI)},
        remarks=(remark,) if remark else (),
        competes=competes,
    )


def _printed_number(metric: Metric, row: PrintedRow, cells: Sequence[PublishedCell]) -> ExactCell:
    """Return a number as it is printed; a proportion with the interval that the counts of `cells` allow, if any."""
    printed = getattr(row, metric.key, None)
    cell = _printed_cell(printed, metric.digits)
    if printed is None:
        return ExactCell(cell)
    rates = [(getattr(part, metric.key), part.n) for part in cells] if metric in _OF_ALL_EPISODES else []
    if interval := _mean_interval(rates):
        detail = format_interval(interval.low, interval.high, digits=metric.digits, scale=metric.scale)
        cell = replace(cell, detail=detail, interval=(metric.scale * interval.low, metric.scale * interval.high))
    return ExactCell(cell, Fraction(repr(printed)) / metric.scale)


def _printed_cell(printed: float | None, digits: int) -> Cell:
    return Cell.dash() if printed is None else Cell(format_fixed(Fraction(repr(printed)), digits), printed)


def _mean_interval(rates: Sequence[tuple[float, int]]) -> Interval | None:
    """Return the interval of the mean of printed rates (%, n); None without any, or if one of them fits no count."""
    ends = ((rate, published.printed_rate(rate, n).ci) for rate, n in rates)
    intervals = [(rate / 100, Interval(*ci)) for rate, ci in ends if ci]
    return rate_mean_interval(intervals) if len(intervals) == len(rates) else None


# Pages


def published_policy_pages() -> list[PolicyPage]:
    """Return a page for each policy of any publication, in order of first appearance, those of means first."""
    publications = _load_all()
    rows: list[PrintedRow] = [mean for publication in publications for mean in publication.means]
    rows += [cell for publication in publications for cell in publication.cells]
    return [
        PolicyPage(
            path=page.published_page_path(policy),
            policy=policy,
            lead="Published numbers, as they are printed. Nothing here was run or judged by this package.",
            sections=tuple(
                section for publication in publications for section in _publication_sections(policy, publication)
            ),
        )
        for policy in dict.fromkeys(row.policy for row in rows)
    ]


def _publication_sections(policy: str, publication: PublishedResults) -> Iterator[Section]:
    """Yield the one section of a publication about a policy; nothing if the publication does not name the policy."""
    means = [mean for mean in publication.means if mean.policy == policy]
    cells = [cell for cell in publication.cells if cell.policy == policy]
    if not means and not cells:
        return
    violations = {cell.benchmark: cell.violations for cell in cells if cell.violations is not None}
    shares = {cell.benchmark: cell.composition for cell in cells if cell.composition}
    of_all = f"In %, of all episodes of the suite. {NO_VALUE}: not scored there."
    of_unsafe = f"In %, of the violations in unsafe successes; {NO_VALUE}: none, or not printed."
    tables = (
        _printed_suite_table(means, cells),
        _spec_table("Violations by specification", violations, 1, of_all),
        _spec_table("What unsafe successes violate", shares, 0, of_unsafe),
    )
    yield Section(
        heading=publication.source.name,
        paragraphs=(f"{publication.source.reference}, {publication.source.date}.",),
        tables=tuple(table for table in tables if table.rows),
        notes=(
            *publication.source.incomparable,
            *published.list_reasons(
                [*((mean, _mean_label(mean)) for mean in means), *((cell, cell.benchmark) for cell in cells)]
            ),
        ),
    )


def _printed_suite_table(means: Sequence[PublishedMean], cells: Sequence[PublishedCell]) -> Table:
    headline = (SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI)
    cell_rows = [
        (Cell(cell.benchmark), Cell.count(cell.n), *(_printed_number(metric, cell, [cell]).cell for metric in headline))
        for cell in cells
    ]
    mean_rows = [
        (Cell(_mean_label(mean), emphasis="total" if cells else ""), Cell.dash(),
         *(_printed_number(metric, mean, []).cell for metric in headline))
        for mean in means
    ]  # fmt: skip
    columns = (
        text_column("Suite"),
        Column("n", meaning="episodes"),
        *(Column(metric.heading, metric.plain_meaning) for metric in headline),
    )
    notes = ["Below each value Wilson's 95 % interval, from the count that its digits allow."] if cells else []
    return Table("By suite", columns, (*cell_rows, *mean_rows), (*notes, f"{NO_VALUE}: not printed."))


def _mean_label(mean: PublishedMean) -> str:
    return "Mean of four suites" if len(mean.benchmarks) > 1 else mean.benchmarks[0]


def _spec_table(title: str, by_suite: Mapping[str, Mapping[str, float]], digits: int, note: str) -> Table:
    specs = dict.fromkeys(spec for rates in by_suite.values() for spec in rates)
    rows = tuple(
        (Cell(spec), *(_printed_cell(rates.get(spec), digits) for rates in by_suite.values())) for spec in specs
    )
    return Table(title, (text_column("Specification"), *(Column(suite) for suite in by_suite)), rows, (note,))
