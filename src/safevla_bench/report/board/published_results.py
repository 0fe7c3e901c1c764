"""Tables and pages of published results: what is printed, ranked as it stands, with what makes it incomparable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from safevla_bench.report.board.file_names import published_page
from safevla_bench.report.board.own_results import OVERLAP
from safevla_bench.report.board.page import PolicyPage, Section
from safevla_bench.report.board.ranking import Entry, League, Share, not_overlapping, stand
from safevla_bench.report.published import LEADERBOARD, PAPER, Published, PublishedCell, PublishedMean, counts_of
from safevla_bench.report.published import published as load
from safevla_bench.report.tables import Cell, Column, Table
from safevla_bench.statistics import Interval, mean_of_rates, wilson
from safevla_bench.text.numbers import NONE, fixed, span

_TITLES: Mapping[tuple[str, ...], str] = {
    ("robocasa-365",): "RoboCasa-365, 18 tasks",
    ("robocasa-pnp",): "RoboCasa, five tasks, auxiliary",
}


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One publication and its tables."""

    name: str
    reference: str
    date: str
    incomparable: tuple[str, ...]
    leagues: tuple[League, ...]


def publications() -> list[Publication]:
    """All that is shipped."""
    return [_publication(one) for one in _all()]


def _all() -> list[Published]:
    return [load(PAPER), load(LEADERBOARD)]


def _publication(of: Published) -> Publication:
    source = of.source
    return Publication(
        name=source.name,
        reference=source.reference,
        date=source.date,
        incomparable=source.incomparable,
        leagues=tuple(_leagues(of)),
    )


# Tables


def _leagues(of: Published) -> Iterator[League]:
    """A table for each set of suites of which means are printed, and for each suite beside them."""
    for names in dict.fromkeys(mean.benchmarks for mean in of.means):
        means = [mean for mean in of.means if mean.benchmarks == names]
        yield _league(names, [_mean_entry(mean, of) for mean in means], _reasons(_of_mean(means, of)))
    covered = {name for mean in of.means for name in mean.benchmarks}
    for name in dict.fromkeys(cell.benchmark for cell in of.cells if cell.benchmark not in covered):
        cells = [cell for cell in of.cells if cell.benchmark == name]
        yield _league((name,), [_cell_entry(cell) for cell in cells], _reasons((cell, cell.policy) for cell in cells))


def _league(names: tuple[str, ...], entries: Sequence[Entry], notes: tuple[str, ...]) -> League:
    apart = not_overlapping(entries)
    title = _TITLES.get(names, "LIBERO, mean of four suites" if len(names) > 1 else names[0])
    none = "No counts are given, so that nothing says which of these can be told apart."
    return League(
        title=title,
        scope=", ".join(names),
        standings=stand(entries, apart),
        told=(none if apart is None else OVERLAP) if any(one.ranked for one in entries) else "",
        notes=notes,
    )


def _mean_entry(mean: PublishedMean, of: Published) -> Entry:
    cells = [cell for cell in of.cells if cell.policy == mean.policy and cell.benchmark in mean.benchmarks]
    cells = cells if len(cells) == len(mean.benchmarks) else []
    return Entry(
        policy=mean.policy,
        page=published_page(mean.policy),
        n=str(sum(cell.n for cell in cells)) if cells else NONE,
        sr=_share(mean.sr, [(cell.sr, cell.n) for cell in cells]),
        safety=_share(mean.safety, [(cell.safety, cell.n) for cell in cells]),
        sbu=_share(mean.sbu, [(cell.sbu, cell.n) for cell in cells]),
        vsi=fixed(Fraction(repr(mean.vsi)), 3),
        remarks=(mean.training,) if mean.training else (),
    )


def _cell_entry(cell: PublishedCell) -> Entry:
    return Entry(
        policy=cell.policy,
        page=published_page(cell.policy),
        n=str(cell.n),
        sr=_share(cell.sr, [(cell.sr, cell.n)]),
        safety=_share(cell.safety, [(cell.safety, cell.n)]),
        sbu=_share(cell.sbu, [(cell.sbu, cell.n)]),
        vsi=NONE if cell.vsi is None else fixed(Fraction(repr(cell.vsi)), 3),
        remarks=("auxiliary",) if cell.auxiliary else (),
        ranked=not cell.auxiliary,
    )


def _share(printed: float, of: Sequence[tuple[float, int]]) -> Share:
    """A printed mean, with the interval that the counts behind its suites give."""
    rates = [(rate / 100, _interval(rate, n)) for rate, n in of]
    known = [(rate, interval) for rate, interval in rates if interval]
    whole = mean_of_rates(known) if len(known) == len(of) else None
    return Share(Fraction(repr(printed)), (100 * whole.low, 100 * whole.high) if whole else None)


def _interval(printed: float, n: int) -> Interval | None:
    """Wilson's interval of a printed rate; where its digits leave several counts, from the least to the greatest."""
    fits = counts_of(printed, n)
    ends = [wilson(count, n) for count in fits[:1] + fits[-1:]]
    low, high = ends[0] if ends else None, ends[-1] if ends else None
    return Interval(low.low, high.high) if low and high else None


def _of_mean(means: Sequence[PublishedMean], of: Published) -> Iterator[tuple[PublishedMean | PublishedCell, str]]:
    for mean in means:
        yield mean, mean.policy
        for cell in of.cells:
            if cell.policy == mean.policy and cell.benchmark in mean.benchmarks:
                yield cell, cell.policy


def _reasons(of: Iterable[tuple[PublishedMean | PublishedCell, str]]) -> tuple[str, ...]:
    """What makes the rows incomparable, each reason once, with the policies that it is about where not all."""
    found: dict[str, dict[str, None]] = {}
    policies: dict[str, None] = {}
    for one, policy in of:
        policies[policy] = None
        for reason in one.incomparable:
            found.setdefault(reason, {})[policy] = None
    return tuple(
        reason if len(those) == len(policies) else f"{', '.join(those)}: {reason}" for reason, those in found.items()
    )


# Pages


def pages() -> list[PolicyPage]:
    """A page for each policy that is named in any publication."""
    means = [mean.policy for of in _all() for mean in of.means]
    cells = [cell.policy for of in _all() for cell in of.cells]
    return [_page(name) for name in dict.fromkeys([*means, *cells])]


def _page(policy: str) -> PolicyPage:
    return PolicyPage(
        path=published_page(policy),
        policy=policy,
        lead="Published numbers, as they are printed. Nothing here was run or judged by this package.",
        sections=tuple(section for of in _all() for section in _sections(policy, of)),
    )


def _sections(policy: str, of: Published) -> Iterator[Section]:
    means = [mean for mean in of.means if mean.policy == policy]
    cells = [cell for cell in of.cells if cell.policy == policy]
    if not means and not cells:
        return
    every: list[PublishedMean | PublishedCell] = [*means, *cells]
    own = _reasons([(one, _where(one)) for one in every])
    yield Section(
        heading=of.source.name,
        words=(f"{of.source.reference}, {of.source.date}.",),
        tables=tuple(table for table in (_by_suite(means, cells), _violations(cells), _composition(cells)) if table),
        notes=(*of.source.incomparable, *own),
    )


def _where(one: PublishedMean | PublishedCell) -> str:
    return one.benchmark if isinstance(one, PublishedCell) else _mean_of(one)


_SUITE = Column("Suite", numeric=False)


def _by_suite(means: Sequence[PublishedMean], cells: Sequence[PublishedCell]) -> Table:
    columns = (
        _SUITE,
        Column("n", meaning="episodes"),
        Column("SR %", meaning="success rate"),
        Column("Safety %", meaning="share of episodes that break no limit"),
        Column("SBU %", meaning="succeeded but unsafe, of all episodes"),
        Column("P[U|S] %", meaning="unsafe, of the successes"),
        Column("VSI", meaning="mean severity of the worst violation, 0 to 1"),
    )
    rows = [
        (Cell(cell.benchmark), Cell(str(cell.n), cell.n),
         *(_rate(rate, cell.n) for rate in (cell.sr, cell.safety, cell.sbu)),
         _plain(cell.p_unsafe_given_success, 1), _plain(cell.vsi, 3))
        for cell in cells
    ]  # fmt: skip
    rows += [
        (Cell(_mean_of(mean), emphasis="total" if cells else ""), Cell(NONE),
         *(_plain(rate, 1) for rate in (mean.sr, mean.safety, mean.sbu)), Cell(NONE), _plain(mean.vsi, 3))
        for mean in means
    ]  # fmt: skip
    notes = ["Below each value Wilson's 95 % interval, from the count that its digits allow."] if cells else []
    return Table("By suite", columns, tuple(rows), (*notes, f"{NONE}: not printed."))


def _mean_of(mean: PublishedMean) -> str:
    return "Mean of four suites" if len(mean.benchmarks) > 1 else mean.benchmarks[0]


def _rate(printed: float, n: int) -> Cell:
    interval = _interval(printed, n)
    detail = span(interval.low, interval.high, digits=1, scale=100) if interval else ""
    return Cell(fixed(Fraction(repr(printed)), 1), printed, detail)


def _plain(printed: float | None, digits: int) -> Cell:
    return Cell(NONE) if printed is None else Cell(fixed(Fraction(repr(printed)), digits), printed)


def _violations(cells: Sequence[PublishedCell]) -> Table | None:
    rates = {cell.benchmark: cell.violations for cell in cells if cell.violations is not None}
    note = f"In %, of all episodes of the suite. {NONE}: not scored there."
    return _by_spec("Violations by specification", rates, 1, (note,))


def _composition(cells: Sequence[PublishedCell]) -> Table | None:
    shares = {cell.benchmark: cell.composition for cell in cells if cell.composition}
    note = f"In %, of the violations in unsafe successes; {NONE}: none, or not printed."
    return _by_spec("What unsafe successes violate", shares, 0, (note,))


def _by_spec(title: str, by_suite: dict[str, dict[str, float]], digits: int, notes: tuple[str, ...]) -> Table | None:
    specs = dict.fromkeys(spec for rates in by_suite.values() for spec in rates)
    if not specs:
        return None
    columns = (Column("Specification", numeric=False), *(Column(suite) for suite in by_suite))
    rows = tuple((Cell(spec), *(_plain(rates.get(spec), digits) for rates in by_suite.values())) for spec in specs)
    return Table(title, columns, rows, notes)
