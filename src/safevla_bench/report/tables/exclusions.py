"""What was not scored, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from safevla_bench.metrics import Summary
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.scores import Absent
from safevla_bench.text.numbers import NONE


@dataclass(frozen=True, slots=True)
class Damage:
    """What damaged files cost: how many episodes were lost, at least where there are more; which; and where."""

    episodes: int = 0
    more: bool = False
    named: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        """How many were lost; nothing where no file is damaged."""
        if not (self.places or self.named):
            return ""
        if self.more:
            return f"more than {self.episodes} episodes lost" if self.episodes else "an unknown number of episodes lost"
        return f"{self.episodes} episode{'' if self.episodes == 1 else 's'} lost"


_WHOLE = Damage()


def unscored(
    cells: Sequence[Summary],
    absent: Sequence[Absent] = (),
    skipped: Sequence[str] = (),
    damage: Damage = _WHOLE,
) -> Table:
    """What was not scored and why: lost episodes first, then specifications that were inactive or vacuous.

    Args:
        cells: the summaries.
        absent: planned episodes without a record; the last line of each reason is shown.
        skipped: what was wrong with each invalid episode that was left out.
        damage: what damaged files cost.
    """
    rows = [*_lost_rows(cells, absent), *_damage_rows(damage), *_skipped_rows(skipped), *_spec_rows(cells)]
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


def _damage_rows(damage: Damage) -> list[tuple[Cell, ...]]:
    """The lost episodes by name, and each damaged place; how many it cost stands in the last row of the lost."""
    rows = [_row("lost episode", "in a damaged file", name, 1) for name in damage.named[:_MOST_SKIPPED]]
    further = damage.episodes - len(rows)
    if damage.more:
        said = f"{further} and more" if further else "unknown"
        rows.append((Cell("lost episodes"), Cell("in a damaged file"), Cell("nobody knows how many"), Cell(said)))
    elif further:
        rows.append(_row("lost episodes", "in a damaged file", "further ones", further))
    places = [" ".join(why.split()) for why in damage.places]
    more = len(places) - _MOST_SKIPPED
    shown = [*places[:_MOST_SKIPPED], *([f"{more} further places"] if more > 0 else [])]
    return rows + [(Cell("damaged file"), Cell("read as far as it can be"), Cell(why), Cell(NONE)) for why in shown]


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
