"""Tables as values: each builder turns summaries into a `Table`, which `render` and the page print.

A cell keeps the number behind its text, so that tables sort and export exactly. A dash stands where there is no value,
and the cell says why; it never stands for zero, nor zero for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from safevla_bench.metrics import Mean, Rate, SpecSummary, Summary
from safevla_bench.report.numbers import NONE, fixed, percent, span
from safevla_bench.scores import Absent

Emphasis = Literal["", "best", "bad", "total"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What is printed; `value` is the number behind it, `detail` its interval, or why there is no value."""

    text: str
    value: float | None = None
    detail: str = ""
    emphasis: Emphasis = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `numeric` columns align at the right and are never wrapped. `meaning` spells a short name out."""

    name: str
    numeric: bool = True
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns; the first column names the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


UNNAMED = "(unnamed)"
"""Stands for the policy of a record that names none."""

_HEADLINE = (
    Column("n", meaning="episodes counted"),
    Column("SR %", meaning="success rate"),
    Column("Safety %", meaning="share of episodes that break no limit"),
    Column("SBU %", meaning="succeeded but unsafe, of all episodes"),
    Column("P[U|S] %", meaning="unsafe, of the successes"),
    Column("VSI", meaning="mean severity of the worst violation, 0 to 1"),
    Column("VSI|U", meaning="the same over unsafe episodes only"),
)
_INTERVALS = "Below each value its 95 % interval: Wilson for proportions, percentile bootstrap of episodes for VSI."
_DASH = f"{NONE} means that there is no value, and is never a zero."


def policy_name(cell: Summary) -> str:
    """The policy of a cell, also where the record names none."""
    return cell.policy or UNNAMED


def main(
    cells: Sequence[Summary],
    aggregate: Summary | None = None,
    *,
    privileged: Collection[str | None] = (),
    standin: Collection[str] = (),
) -> Table:
    """The headline numbers, one row a policy × suite, and all episodes pooled where there are several cells.

    Args:
        cells: one summary a row.
        aggregate: all episodes pooled.
        privileged: the policies that used simulator state no real robot has; their rows say so.
        standin: the suites that were simulated with stand-ins for the host's own assets; their rows say so.
    """
    pooled = [aggregate] if aggregate is not None and len(cells) > 1 else []
    lost = [name for name in ("crashed", "stopped") if any(getattr(cell, name) for cell in cells)]
    columns = (Column("Policy", numeric=False), Column("Suite", numeric=False), *_HEADLINE)
    rows = [(*_names(cell, privileged, standin), *_headline(cell), *_lost(cell, lost)) for cell in cells]
    rows += [(Cell("All, pooled", emphasis="total"), Cell(""), *_headline(one), *_lost(one, lost)) for one in pooled]
    return Table(
        title="Headline numbers",
        columns=(*columns, *(Column(name.capitalize(), meaning="outside n") for name in lost)),
        rows=tuple(rows),
        notes=_notes(rows, _INTERVALS, *(["Crashed and stopped episodes are outside n, in no rate."] if lost else [])),
    )


def _names(cell: Summary, privileged: Collection[str | None], standin: Collection[str] = ()) -> tuple[Cell, Cell]:
    seen = "privileged state" if cell.policy in privileged else ""
    assets = "stand-in assets" if cell.suite in standin else ""
    return Cell(policy_name(cell), detail=seen), Cell(cell.suite or NONE, detail=assets)


def _headline(cell: Summary) -> tuple[Cell, ...]:
    no_episode = "" if cell.n else "no episode"
    return (
        Cell(str(cell.n), cell.n),
        proportion(cell.rates["sr"], no_episode),
        proportion(cell.rates["safety"], no_episode),
        proportion(cell.rates["sbu"], no_episode),
        proportion(cell.rates["p_unsafe_given_success"], no_episode or "no success"),
        mean(cell.means["vsi"], no_episode),
        mean(cell.means["vsi_given_unsafe"], no_episode or "none unsafe"),
    )


def _lost(cell: Summary, names: Iterable[str]) -> tuple[Cell, ...]:
    counts = [int(getattr(cell, name)) for name in names]
    return tuple(Cell(str(count), count, emphasis="bad" if count else "") for count in counts)


def proportion(rate: Rate, why_none: str = "") -> Cell:
    """A rate in percent with its interval; where n is zero a dash and the reason."""
    if rate.ci is None:
        return Cell(NONE, detail=why_none)
    return Cell(percent(rate.count, rate.n), rate.value, span(*rate.ci, digits=1, scale=100))


def mean(of: Mean, why_none: str = "") -> Cell:
    """A mean with its interval; where nothing counts a dash and the reason."""
    if of.value is None or of.ci is None:
        return Cell(NONE, detail=why_none)
    interval = span(*of.ci, digits=3) if of.n > 1 else "one episode"
    return Cell(fixed(of.value, 3), of.value, interval)


def _notes(rows: Iterable[Sequence[Cell]], *notes: str) -> tuple[str, ...]:
    dashed = any(cell.text == NONE for row in rows for cell in row)
    return (*notes, _DASH) if dashed else notes


def violations(cells: Sequence[Summary], *, scored: bool = True) -> Table:
    """How often each specification was violated; one row a cell and specification.

    A specification that is inactive in every episode of a cell has dashes: it was not judged there.

    Args:
        cells: the summaries; with a single one the columns that name it are left out.
        scored: the safe tier; else diagnostics and alternate tiers, which enter no headline number.
    """
    several = len(cells) > 1
    naming = (Column("Policy", numeric=False), Column("Suite", numeric=False)) if several else ()
    rows = tuple(
        (*(_names(cell, ()) if several else ()), *_violation(cell, spec))
        for cell in cells
        for spec in cell.specs
        if (spec.tier == "safe") == scored
    )
    return Table(
        title="Violations by specification" if scored else "Diagnostics and alternate limits, outside every score",
        columns=(*naming, *_VIOLATION),
        rows=rows,
        notes=_notes(rows, "An episode counts once for each specification that it violates."),
    )


_VIOLATION = (
    Column("Specification", numeric=False),
    Column("Violated", meaning="episodes of all in the cell"),
    Column("% of all", meaning="with 95 % Wilson interval"),
    Column("of active", meaning="of the episodes where it applies"),
    Column("in successes", meaning="violations in successful episodes"),
    Column("Depth", meaning="mean normalised depth where it applies, 0 to 1"),
    Column("Vacuous", meaning="applies, but its condition never arose"),
    Column("Inactive", meaning="does not apply, or was not measured"),
)


def _violation(cell: Summary, spec: SpecSummary) -> tuple[Cell, ...]:
    inactive = sum(spec.inactive.values())
    outside = (_count(spec.vacuous), _count(inactive))
    if not spec.active:
        none = Cell(NONE, detail="inactive" if inactive else "no episode")
        return (Cell(spec.spec_id), none, *[Cell(NONE)] * 4, *outside)
    if spec.vacuous == spec.active:
        none = Cell(NONE, detail="vacuous")
        return (Cell(spec.spec_id), none, *[Cell(NONE)] * 4, *outside)
    count = spec.violations.count
    emphasis: Emphasis = "bad" if count else ""
    return (
        Cell(spec.spec_id),
        Cell(f"{count}/{cell.n}", count, emphasis=emphasis),
        proportion(spec.violations),
        Cell(f"{count}/{spec.active}", spec.violations_when_active.value),
        _count(spec.unsafe_success),
        mean(spec.nsv, "ungraded"),
        *outside,
    )


def _count(count: int) -> Cell:
    return Cell(str(count), count)


def unscored(cells: Sequence[Summary], absent: Sequence[Absent] = (), skipped: Sequence[str] = ()) -> Table:
    """What was not scored and why: lost episodes first, then specifications that were inactive or vacuous.

    Args:
        cells: the summaries.
        absent: planned episodes without a record; the last line of each reason is shown.
        skipped: what was wrong with each invalid episode that was left out.
    """
    rows = [*_lost_rows(cells, absent), *_skipped_rows(skipped), *_spec_rows(cells)]
    columns = ("What", "Where", "Why")
    return Table(
        title="What was not scored, and why",
        columns=(*(Column(name, numeric=False) for name in columns), Column("Episodes")),
        rows=tuple(rows),
        notes=() if rows else ("Every specification was judged in every episode.",),
    )


def _lost_rows(cells: Sequence[Summary], absent: Sequence[Absent]) -> list[tuple[Cell, ...]]:
    known = Counter((_where(one.policy, one.benchmark), one.outcome, _last_line(one.reason)) for one in absent)
    explained = Counter((where, outcome) for where, outcome, _ in known.elements())
    rows = [_row(f"{outcome} episodes", where, why, count) for (where, outcome, why), count in known.items()]
    for cell in cells:
        where = _where(cell.policy, cell.suite)
        for outcome, count in (("crashed", cell.crashed), ("stopped", cell.stopped)):
            rest = count - explained[where, outcome]
            rows += [_row(f"{outcome} episodes", where, "outside n; no reason recorded", rest)] if rest > 0 else []
    return rows


def _row(what: str, where: str, why: str, count: int) -> tuple[Cell, ...]:
    return Cell(what), Cell(where), Cell(why), Cell(str(count), count)


def _where(policy: str | None, suite: str | None) -> str:
    return f"{policy or UNNAMED}, {suite or NONE}"


def _last_line(reason: str | None) -> str:
    lines = (reason or "").strip().splitlines()
    return lines[-1] if lines else "no reason recorded"


_MOST_SKIPPED = 20
"""Invalid episodes named one by one; the others are counted."""


def _skipped_rows(skipped: Sequence[str]) -> list[tuple[Cell, ...]]:
    reasons = [" ".join(why.split()) for why in skipped]
    rows = [_row("invalid episode", "left out on request", why, 1) for why in reasons[:_MOST_SKIPPED]]
    more = len(reasons) - len(rows)
    return rows + ([_row("invalid episodes", "left out on request", "further ones", more)] if more else [])


def _spec_rows(cells: Sequence[Summary]) -> list[tuple[Cell, ...]]:
    """Inactive and vacuous counts of the safe tier, a suite: all its policies face the same tasks."""
    found: Counter[tuple[str, str, str]] = Counter()
    for cell in cells:
        for spec in (spec for spec in cell.specs if spec.tier == "safe"):
            suite = cell.suite or NONE
            for reason, count in spec.inactive.items():
                found[spec.spec_id, suite, f"inactive: {reason}"] += count
            if spec.vacuous:
                found[spec.spec_id, suite, _VACUOUS] += spec.vacuous
    return [_row(*key, count) for key, count in found.items()]


_VACUOUS = "vacuous: it applies, but what it guards never arose (nothing held, lifted or tracked)"
