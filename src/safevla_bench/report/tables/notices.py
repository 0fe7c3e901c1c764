"""Notices beside the numbers: what was not scored and why, and the warnings of the no-op baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from safevla_bench.judging.baseline import NOOP, Baseline, BaselineViolation, DoubtfulResult
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.ruleset import LostEpisodes
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.text import NO_VALUE, append_unit, display_unit, format_against_limit, format_compact

_NO_LOSS = LostEpisodes()


def exclusion_table(
    cells: Sequence[Summary],
    absent: Sequence[AbsentEpisode] = (),
    skipped: Sequence[str] = (),
    damage: LostEpisodes = _NO_LOSS,
) -> Table:
    """Return the table of what was not scored and why: lost episodes, damage, invalid ones, then clauses without a
    verdict.

    Clauses are the inactive and vacuous specifications. Without any row a note says that everything was judged.

    Args:
        cells: the summaries.
        absent: planned episodes without a record; the last line of each reason is shown.
        skipped: the problem of each invalid episode that was left out.
        damage: the episodes lost in damaged files.
    """
    rows = [*_lost_rows(cells, absent), *_damage_rows(damage), *_skipped_rows(skipped), *_spec_rows(cells)]
    columns = ("What", "Where", "Why")
    return Table(
        title="What was not scored, and why",
        columns=(*(Column(name, numeric=False) for name in columns), Column("Episodes")),
        rows=tuple(rows),
        notes=() if rows else ("Every specification was judged in every episode.",),
    )


def _lost_rows(cells: Sequence[Summary], absent: Sequence[AbsentEpisode]) -> list[tuple[Cell, ...]]:
    """Return rows of crashed, stopped and unjudged episodes, counted by policy, suite and reason.

    Crashed and stopped episodes that `absent` does not explain follow as a rest with a general reason.
    """
    reason_counts = Counter(
        (_policy_and_suite(episode.policy, episode.benchmark), episode.outcome, _last_line(episode.reason))
        for episode in absent
    )
    explained = Counter((where, outcome) for where, outcome, _ in reason_counts.elements())
    rows = [
        _exclusion_row(f"{outcome} episodes", where, why, count)
        for (where, outcome, why), count in reason_counts.items()
    ]
    for cell in cells:
        where = _policy_and_suite(cell.policy, cell.suite)
        for outcome, count in (("crashed", cell.crashed), ("stopped", cell.stopped)):
            rest = count - explained[where, outcome]
            if rest > 0:
                rows.append(_exclusion_row(f"{outcome} episodes", where, _why_outside(cell, outcome), rest))
        rows += [_exclusion_row(f"{NO_VERDICT} on safety", where, why, count) for why, count in cell.no_verdict.items()]
    return rows


def _why_outside(cell: Summary, outcome: str) -> str:
    if outcome == "stopped" and cell.stopped_on_violation:
        return "outside n: a violation stopped them, and their success is unknown"
    return "outside n; no reason recorded"


def _exclusion_row(what: str, where: str, why: str, count: int) -> tuple[Cell, ...]:
    return Cell(what), Cell(where), Cell(why), Cell(str(count), count)


def _policy_and_suite(policy: str | None, suite: str | None) -> str:
    return f"{policy or UNNAMED}, {suite or NO_VALUE}"


def _last_line(reason: str | None) -> str:
    lines = (reason or "").strip().splitlines()
    return lines[-1] if lines else "no reason recorded"


_MOST_SKIPPED = 20
"""Most invalid episodes that are named; the others are counted."""


def _skipped_rows(skipped: Sequence[str]) -> list[tuple[Cell, ...]]:
    reasons = [" ".join(why.split()) for why in skipped]
    rows = [_exclusion_row("invalid episode", "left out on request", why, 1) for why in reasons[:_MOST_SKIPPED]]
    unnamed_count = len(reasons) - len(rows)
    return rows + (
        [_exclusion_row("invalid episodes", "left out on request", "further ones", unnamed_count)]
        if unnamed_count
        else []
    )


def _damage_rows(damage: LostEpisodes) -> list[tuple[Cell, ...]]:
    """Return a row per lost episode and per damaged place, 20 of each at most, and rows that count the others.

    Where more were lost than can be counted, the last row of the lost episodes says so; [] without damage.
    """
    rows = [_exclusion_row("lost episode", "in a damaged file", name, 1) for name in damage.named[:_MOST_SKIPPED]]
    further = damage.episodes - len(rows)
    if damage.more:
        count_text = f"{further} and more" if further else "unknown"
        rows.append((Cell("lost episodes"), Cell("in a damaged file"), Cell("nobody knows how many"), Cell(count_text)))
    elif further:
        rows.append(_exclusion_row("lost episodes", "in a damaged file", "further ones", further))
    places = [" ".join(why.split()) for why in damage.places]
    unnamed_count = len(places) - _MOST_SKIPPED
    place_texts = [*places[:_MOST_SKIPPED], *([f"{unnamed_count} further places"] if unnamed_count > 0 else [])]
    return rows + [
        (Cell("damaged file"), Cell("read as far as it can be"), Cell(why), Cell(NO_VALUE)) for why in place_texts
    ]


def _spec_rows(cells: Sequence[Summary]) -> list[tuple[Cell, ...]]:
    """Return rows that count inactive (by reason) and vacuous specifications of the safe tier, by specification and
    suite.

    The counts are over all policies of a suite, as these face the same tasks.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for cell in cells:
        for spec in (spec for spec in cell.specs if spec.tier == "safe"):
            suite = cell.suite or NO_VALUE
            for reason, count in spec.inactive.items():
                counts[spec.spec_id, suite, f"inactive: {reason}"] += count
            if spec.vacuous:
                counts[spec.spec_id, suite, _VACUOUS] += spec.vacuous
    return [_exclusion_row(*key, count) for key, count in counts.items()]


_VACUOUS = "vacuous: it applies, but what it guards never arose (nothing held, lifted or tracked)"


# Limits that doing nothing breaks


def baseline_warnings(baseline: Baseline) -> tuple[str, ...]:
    """Return warnings for the reader; () where `noop` violates nothing and reaches no goal, or was not run."""
    return (*_violation_warnings(baseline), *_success_warnings(baseline))


def _success_warnings(baseline: Baseline) -> tuple[str, ...]:
    if not baseline.successes:
        return ()
    where = ", ".join(f"{task.benchmark} {task.task_id}: {task.successes} of {task.n}" for task in baseline.successes)
    return (
        f"{NOOP}, which does nothing, succeeded ({where}): there the goal holds from the start or comes about by "
        "itself, and counts as a success of every policy.",
    )


def _violation_warnings(baseline: Baseline) -> tuple[str, ...]:
    """Return the warning that names the tasks in which doing nothing breaks limits, then one per doubtful result.

    () if there are no such tasks.
    """
    if not baseline.floors:
        return ()
    tasks = dict.fromkeys((floor.benchmark, floor.task_id) for floor in baseline.floors)
    where = ", ".join(f"{benchmark} {task}" for benchmark, task in tasks)
    episode_count = f"{baseline.unsafe} of {baseline.n} episode{'' if baseline.n == 1 else 's'}"
    return (
        f"{NOOP}, which does nothing, broke limits in {episode_count} ({where}): there the scene itself is "
        "beyond a limit, and every policy may be charged for it.",
        *(_format_doubt(doubt) for doubt in baseline.doubts),
    )


def _format_doubt(doubt: DoubtfulResult) -> str:
    also = f"{doubt.shared} of its {doubt.unsafe} unsafe episodes broke one of the same limits in the same task"
    other = f"{doubt.only} of these broke no other limit" if doubt.only else "all of these broke other limits too"
    return f"{doubt.policy or UNNAMED}: {also}; {other}."


def baseline_table(baseline: Baseline) -> Table:
    """Return the table of the specifications that the no-op policy violates: in which task, how far and how often.

    No rows where it violates none.
    """
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("Specification", numeric=False),
        Column("Violated", f"of {NOOP}'s episodes there"),
        Column("Worst value"),
        Column("Limit"),
        Column("From record", "0 is before any action"),
    )
    notes = ("Compare policies on such tasks with care, or leave these tasks out.",) if baseline.floors else ()
    rows = tuple(_floor_row(floor) for floor in baseline.floors)
    return Table("Limits that doing nothing breaks", columns, rows, notes)


def _floor_row(floor: BaselineViolation) -> tuple[Cell, ...]:
    """Return the row of one violated limit; the texts are in display units, the values behind them in the clause's
    unit.
    """
    unit, scale = display_unit(floor.spec.unit, floor.spec.threshold)
    limit = floor.spec.threshold * scale
    worst = NO_VALUE if floor.extreme is None else append_unit(format_against_limit(floor.extreme * scale, limit), unit)
    return (
        Cell(floor.benchmark),
        Cell(floor.task_id),
        Cell(floor.spec.spec_id),
        Cell(f"{floor.violations}/{floor.n}", floor.violations, emphasis="bad"),
        Cell(worst, floor.extreme),
        Cell("none at all" if floor.spec.binary else append_unit(format_compact(limit), unit), floor.spec.threshold),
        Cell(str(floor.first_step), floor.first_step),
    )
