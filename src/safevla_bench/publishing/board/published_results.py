"""Tables and pages of published results: numbers as printed, ranked among themselves, with their reservations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from safevla_bench.judging.rates import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI
from safevla_bench.publishing.board.own_results import OVERLAP_NOTE
from safevla_bench.publishing.board.page import (
    PolicyPage,
    Proportion,
    RankedTable,
    RankingEntry,
    Section,
    disjoint_pairs,
    published_page_path,
    rank_entries,
)
from safevla_bench.report.published import (
    LEADERBOARD,
    PAPER,
    PublicationSource,
    PublishedCell,
    PublishedMean,
    PublishedResults,
    load_published,
    matching_counts,
)
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.statistics.intervals import Interval, rate_mean_interval, wilson_interval
from safevla_bench.text import NO_VALUE, format_fixed, format_interval

_TITLES: Mapping[tuple[str, ...], str] = {
    ("robocasa-365",): "RoboCasa-365, 18 tasks",
    ("robocasa-pnp",): "RoboCasa, five tasks, auxiliary",
}


@dataclass(frozen=True)
class PublishedSection:
    """One publication with its ranked tables."""

    source: PublicationSource
    tables: tuple[RankedTable, ...]


def published_sections() -> list[PublishedSection]:
    """Return every shipped publication with its ranked tables, the paper first."""
    return [PublishedSection(published.source, tuple(_published_tables(published))) for published in _load_all()]


def _load_all() -> list[PublishedResults]:
    return [load_published(PAPER), load_published(LEADERBOARD)]


# Tables


def _published_tables(published: PublishedResults) -> Iterator[RankedTable]:
    """Yield a table for each set of suites with printed means, then one for each suite without a mean."""
    for names in dict.fromkeys(mean.benchmarks for mean in published.means):
        means = [mean for mean in published.means if mean.benchmarks == names]
        rows: list[PublishedMean | PublishedCell] = []
        for mean in means:
            rows.append(mean)
            rows += [cell for cell in published.cells if cell.policy == mean.policy and cell.benchmark in names]
        reasons = _incomparable_reasons((row, row.policy) for row in rows)
        yield _published_table(names, [_mean_entry(mean, published) for mean in means], reasons)
    covered = {name for mean in published.means for name in mean.benchmarks}
    for name in dict.fromkeys(cell.benchmark for cell in published.cells if cell.benchmark not in covered):
        cells = [cell for cell in published.cells if cell.benchmark == name]
        reasons = _incomparable_reasons((cell, cell.policy) for cell in cells)
        yield _published_table((name,), [_cell_entry(cell) for cell in cells], reasons)


def _published_table(names: tuple[str, ...], entries: Sequence[RankingEntry], notes: tuple[str, ...]) -> RankedTable:
    """Return the ranked table of the suites `names`; letters by intervals that do not overlap, if all are known."""
    separated = disjoint_pairs(entries)
    title = _TITLES.get(names, "LIBERO, mean of four suites" if len(names) > 1 else names[0])
    no_counts_note = "No counts are given, so that nothing says which of these can be told apart."
    letters_note = no_counts_note if separated is None else OVERLAP_NOTE
    return RankedTable(
        title=title,
        scope=", ".join(names),
        rows=rank_entries(entries, separated),
        letters_note=letters_note if any(entry.ranked for entry in entries) else "",
        notes=notes,
    )


def _mean_entry(mean: PublishedMean, published: PublishedResults) -> RankingEntry:
    """Return the entry of a printed mean; n and intervals only where `published` has a cell for each of its suites."""
    cells = [cell for cell in published.cells if cell.policy == mean.policy and cell.benchmark in mean.benchmarks]
    cells = cells if len(cells) == len(mean.benchmarks) else []
    return replace(
        _printed_entry(mean, cells),
        n=str(sum(cell.n for cell in cells)) if cells else NO_VALUE,
        remarks=(mean.training,) if mean.training else (),
    )


def _cell_entry(cell: PublishedCell) -> RankingEntry:
    remarks = ("auxiliary",) if cell.auxiliary else ()
    return replace(_printed_entry(cell, [cell]), n=str(cell.n), remarks=remarks, ranked=not cell.auxiliary)


def _printed_entry(row: PublishedMean | PublishedCell, cells: Sequence[PublishedCell]) -> RankingEntry:
    return RankingEntry(
        policy=row.policy,
        page_path=published_page_path(row.policy),
        n=NO_VALUE,
        sr=_printed_proportion(row.sr, [(cell.sr, cell.n) for cell in cells]),
        safety=_printed_proportion(row.safety, [(cell.safety, cell.n) for cell in cells]),
        sbu=_printed_proportion(row.sbu, [(cell.sbu, cell.n) for cell in cells]),
        vsi=_number_cell(row.vsi, 3).text,
    )


def _printed_proportion(printed: float, rates_and_counts: Sequence[tuple[float, int]]) -> Proportion:
    rates = [(rate / 100, _printed_interval(rate, n)) for rate, n in rates_and_counts]
    known_rates = [(rate, interval) for rate, interval in rates if interval]
    mean = rate_mean_interval(known_rates) if len(known_rates) == len(rates_and_counts) else None
    return Proportion(Fraction(repr(printed)), (100 * mean.low, 100 * mean.high) if mean else None)


def _printed_interval(printed: float, n: int) -> Interval | None:
    fits = matching_counts(printed, n)
    ends = [wilson_interval(count, n) for count in fits[:1] + fits[-1:]]
    low, high = ends[0] if ends else None, ends[-1] if ends else None
    return Interval(low.low, high.high) if low and high else None


def _incomparable_reasons(rows: Iterable[tuple[PublishedMean | PublishedCell, str]]) -> tuple[str, ...]:
    """Return what makes the rows, each with a label (its policy, or its suite), incomparable."""
    policies_by_reason: dict[str, dict[str, None]] = {}
    policies: dict[str, None] = {}
    for row, policy in rows:
        policies[policy] = None
        for reason in row.incomparable:
            policies_by_reason.setdefault(reason, {})[policy] = None
    return tuple(
        reason if len(reason_policies) == len(policies) else f"{', '.join(reason_policies)}: {reason}"
        for reason, reason_policies in policies_by_reason.items()
    )


# Pages


def published_policy_pages() -> list[PolicyPage]:
    """Return a page for each policy of any publication, in order of first appearance, those of means first."""
    publications = _load_all()
    means = [mean.policy for published in publications for mean in published.means]
    cells = [cell.policy for published in publications for cell in published.cells]
    return [
        PolicyPage(
            path=published_page_path(policy),
            policy=policy,
            lead="Published numbers, as they are printed. Nothing here was run or judged by this package.",
            sections=tuple(
                section for published in publications for section in _publication_sections(policy, published)
            ),
        )
        for policy in dict.fromkeys([*means, *cells])
    ]


def _publication_sections(policy: str, published: PublishedResults) -> Iterator[Section]:
    """Yield the one section of a publication about a policy; nothing if the publication does not name the policy."""
    means = [mean for mean in published.means if mean.policy == policy]
    cells = [cell for cell in published.cells if cell.policy == policy]
    if not means and not cells:
        return
    labels: list[tuple[PublishedMean | PublishedCell, str]]
    labels = [*((mean, _mean_label(mean)) for mean in means), *((cell, cell.benchmark) for cell in cells)]
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
        heading=published.source.name,
        paragraphs=(f"{published.source.reference}, {published.source.date}.",),
        tables=tuple(table for table in tables if table),
        notes=(*published.source.incomparable, *_incomparable_reasons(labels)),
    )


def _printed_suite_table(means: Sequence[PublishedMean], cells: Sequence[PublishedCell]) -> Table:
    """Return the table of printed numbers, cells first, then means; a dash where a number is not printed."""
    columns = (
        Column("Suite", numeric=False),
        Column("n", meaning="episodes"),
        *(Column(metric.heading, metric.plain_meaning) for metric in (SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI)),
    )
    rows = [
        (Cell(cell.benchmark), Cell(str(cell.n), cell.n),
         *(_rate_cell(rate, cell.n) for rate in (cell.sr, cell.safety, cell.sbu)),
         _number_cell(cell.p_unsafe_given_success, 1), _number_cell(cell.vsi, 3))
        for cell in cells
    ]  # fmt: skip
    rows += [
        (Cell(_mean_label(mean), emphasis="total" if cells else ""), Cell(NO_VALUE),
         *(_number_cell(rate, 1) for rate in (mean.sr, mean.safety, mean.sbu)), Cell(NO_VALUE),
         _number_cell(mean.vsi, 3))
        for mean in means
    ]  # fmt: skip
    notes = ["Below each value Wilson's 95 % interval, from the count that its digits allow."] if cells else []
    return Table("By suite", columns, tuple(rows), (*notes, f"{NO_VALUE}: not printed."))


def _mean_label(mean: PublishedMean) -> str:
    return "Mean of four suites" if len(mean.benchmarks) > 1 else mean.benchmarks[0]


def _rate_cell(printed: float, n: int) -> Cell:
    interval = _printed_interval(printed, n)
    detail = format_interval(interval.low, interval.high, digits=1, scale=100) if interval else ""
    return Cell(format_fixed(Fraction(repr(printed)), 1), printed, detail)


def _number_cell(printed: float | None, digits: int) -> Cell:
    return Cell(NO_VALUE) if printed is None else Cell(format_fixed(Fraction(repr(printed)), digits), printed)


def _spec_table(title: str, by_suite: dict[str, dict[str, float]], digits: int, note: str) -> Table | None:
    specs = dict.fromkeys(spec for rates in by_suite.values() for spec in rates)
    if not specs:
        return None
    columns = (Column("Specification", numeric=False), *(Column(suite) for suite in by_suite))
    rows = tuple(
        (Cell(spec), *(_number_cell(rates.get(spec), digits) for rates in by_suite.values())) for spec in specs
    )
    return Table(title, columns, rows, (note,))
