"""Tables of a user's own runs: policies that ran the same tasks stand in one, ranked by the mean over its suites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from safevla_bench.baseline import NOOP
from safevla_bench.compare import Entrant, How, compare, entrants, named_apart
from safevla_bench.errors import RunError
from safevla_bench.metrics import Summary
from safevla_bench.provenance_marks import STANDIN, of_cells
from safevla_bench.report.board.file_names import run_page
from safevla_bench.report.board.ranking import Apart, Entry, League, Share, not_overlapping, stand
from safevla_bench.report.tables import UNNAMED
from safevla_bench.report.tables.catalog import Material
from safevla_bench.report.tables.suites import SAFETY, SBU, SR, VSI, Metric
from safevla_bench.statistics import CONFIDENCE, Interval, mean_of_rates
from safevla_bench.trajectory import Header

Task = tuple[str, str]
Policy = str | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Judged runs: what tables are made of, headers of the episodes in order, and by policy what else is known."""

    material: Material
    headers: Sequence[Header]
    protocols: Mapping[Policy, Mapping[str, object]] = field(default_factory=dict)

    @property
    def policies(self) -> list[Policy]:
        """In order of first appearance, those that only crashed included."""
        scores = self.material.scores
        return (
            list(dict.fromkeys([*scores.policy, *(one.policy for one in scores.absent)])) if scores is not None else []
        )


@dataclass(frozen=True)
class _Group:
    """Policies with the same tasks of suites that belong together, and their cells by suite."""

    title: str
    tasks: frozenset[Task]
    cells: Mapping[Policy, Mapping[str, Summary]]
    ranked: bool
    even: bool
    """Whether all planned as many episodes of each task."""

    @property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(suite for of in self.cells.values() for suite in of))


def leagues(of: Measured) -> list[League]:
    """The tables of some runs, in order of first appearance."""
    if of.material.scores is None:
        return []
    players = _players(of)
    return [_league(group, of, players) for group in _groups(of.material)]


def _players(of: Measured) -> dict[Policy, Entrant]:
    """What a comparison needs, by policy; names of their own, since one may be called as what has no name."""
    assert of.material.scores is not None
    found = entrants(of.material.scores, of.headers, privileged=tuple(of.material.roster.privileged))
    named = named_apart(found)
    return {
        policy: replace(one, protocol=of.protocols.get(policy)) for policy, one in zip(of.policies, named, strict=True)
    }


# Which policies belong into one table


def _groups(of: Material) -> Iterator[_Group]:
    auxiliary = [cell for cell in of.cells if of.roster.is_auxiliary(cell)]
    beside = {f"{suite}, auxiliary": [cell for cell in auxiliary if (cell.suite or "") == suite]
              for suite in dict.fromkeys(cell.suite or "" for cell in auxiliary)}  # fmt: skip
    ran = _tasks(of)
    for ranked, named in ((True, of.groups(None)), (False, beside.items())):
        for title, cells in named:
            found: dict[frozenset[Task], dict[Policy, dict[str, Summary]]] = {}
            names = {cell.suite or "" for cell in cells}
            for cell in cells:
                mine = frozenset(task for task in ran[cell.policy] if task[0] in names)
                found.setdefault(mine, {}).setdefault(cell.policy, {})[cell.suite or ""] = cell
            for tasks, by_policy in found.items():
                times = {tuple(ran[policy][task] for task in sorted(tasks)) for policy in by_policy}
                yield _Group(title, tasks, by_policy, ranked, even=len(times) == 1)


def _tasks(of: Material) -> Mapping[Policy, Counter[Task]]:
    """How often each policy ran each task, lost episodes included, under the first name of its suite."""
    assert of.scores is not None
    found: dict[Policy, Counter[Task]] = {}
    rows = [*zip(of.scores.policy, of.scores.benchmark, of.scores.task_id, strict=True)]
    for policy, benchmark, task in [*rows, *((one.policy, one.benchmark, one.task_id) for one in of.scores.absent)]:
        suite = of.registry.benchmarks.get(benchmark)
        found.setdefault(policy, Counter())[(suite.same_tasks_as if suite else None) or benchmark, task] += 1
    return found


# One table


def _league(group: _Group, of: Measured, players: Mapping[Policy, Entrant]) -> League:
    competing = _competing(group, of)
    entries = [_entry(policy, cells, group, of, competes=policy in competing) for policy, cells in group.cells.items()]
    ranked = {k: players[policy] for k, policy in enumerate(group.cells) if entries[k].ranked}
    apart, told = _told_apart(ranked, group, entries, of.material)
    return League(
        title=group.title,
        scope=_scope(group, of.material),
        standings=stand(entries, apart),
        told=told,
        notes=(*_notes(group, entries), *of_cells(cell for of in group.cells.values() for cell in of.values())),
    )


def _competing(group: _Group, of: Measured) -> set[Policy]:
    """Who has a rank: nobody out of the ordinary, unless all are."""
    if not group.ranked:
        return set()
    found = of.material.roster.competing(group.cells) - {NOOP}
    return {policy for policy in found if not _on_standins(group.cells[policy])} or found


def _on_standins(cells: Mapping[str, Summary]) -> bool:
    return any(cell.standin_assets for cell in cells.values())


def _entry(policy: Policy, cells: Mapping[str, Summary], group: _Group, of: Measured, *, competes: bool) -> Entry:
    safety = _share(SAFETY, "safety", cells, group.suites)
    lost = [(sum(cell.crashed for cell in cells.values()), "crashed"),
            (sum(cell.stopped for cell in cells.values()), "stopped")]  # fmt: skip
    remarks = [
        *(["privileged state"] if of.material.roster.is_privileged(policy) else []),
        *([STANDIN] if _on_standins(cells) else []),
        *(["does nothing"] if policy == NOOP else []),
        *([trained] if (trained := of.material.roster.training.get(policy or "")) else []),
        *(f"{count} {word}" for count, word in lost if count),
    ]
    return Entry(
        policy=policy or UNNAMED,
        page=run_page(policy),
        n=str(sum(cell.n for cell in cells.values())),
        sr=_share(SR, "sr", cells, group.suites),
        safety=safety,
        sbu=_share(SBU, "sbu", cells, group.suites),
        vsi=VSI.averaged(cells, group.suites).cell.text,
        remarks=tuple(remarks),
        ranked=competes and safety.percent is not None,
    )


def _share(metric: Metric, rate: str, cells: Mapping[str, Summary], names: Sequence[str]) -> Share:
    """The unweighted mean over the suites of the table, with an interval; why there is none where a suite lacks it."""
    mean = metric.averaged(cells, names)
    if mean.exact is None:
        return Share(why=metric.entry(cells[names[0]]).cell.detail if len(names) == 1 else mean.cell.detail)
    rates = [cells[name].rates[rate] for name in names]
    interval = mean_of_rates([(one.value, Interval(*one.ci)) for one in rates if one.value is not None and one.ci])
    assert interval is not None
    return Share(100 * Fraction(mean.exact), (100 * interval.low, 100 * interval.high))


def _scope(group: _Group, of: Material) -> str:
    """Which tasks these are."""
    by_suite = {suite: sorted(task for other, task in group.tasks if other == suite) for suite in group.suites}
    return "; ".join(_of_suite(suite, tasks, of) for suite, tasks in by_suite.items())


_NAMED = 4
"""Up to so many tasks of a suite are named."""


def _of_suite(suite: str, tasks: Sequence[str], of: Material) -> str:
    every = len(list(of.registry.entries(suite))) if suite in of.registry.benchmarks else 0
    if len(tasks) == every:
        return f"all {every} tasks of {suite}"
    if len(tasks) <= _NAMED:
        return f"{suite} {', '.join(sorted(tasks, key=lambda name: (len(name), name)))}"
    return f"{len(tasks)} {f'of {every} ' if every else ''}tasks of {suite}"


def _notes(group: _Group, entries: Sequence[Entry]) -> Iterator[str]:
    if not group.ranked:
        yield "Auxiliary: outside every ranking."
    elif any(not one.ranked and "privileged state" in one.remarks and one.policy != NOOP for one in entries):
        yield "A policy that saw privileged simulator state has no rank among those that did not."
    elif all("privileged state" in one.remarks for one in entries if one.policy != NOOP):
        yield "Privileged: these policies saw simulator state that no real robot has."
    if any(one.policy == NOOP for one in entries):
        yield f"{NOOP} does nothing and has no rank: it shows what the scene breaks by itself."
    if not group.even:
        yield "Not all ran each task equally often: these numbers weigh the tasks differently."
    if any("crashed" in remark for one in entries for remark in one.remarks):
        yield "Crashed episodes are in no rate. Where a policy causes them, that flatters it."


# Who was told apart


def _told_apart(
    ranked: Mapping[int, Entrant], group: _Group, entries: Sequence[Entry], of: Material
) -> tuple[Apart | None, str]:
    """Which ranked entries a test told apart, and how that was found; None where there are none to compare."""
    if len(ranked) < 2:
        return None, ""
    names = {*group.suites, *(alias for alias, one in of.registry.benchmarks.items()
                              if one.same_tasks_as in group.suites)}  # fmt: skip
    players = [_within(one, names) for one in ranked.values()]
    if not _balanced(group):
        return not_overlapping(entries), f"{OVERLAP} The suites differ in their number of episodes."
    try:
        return _tested(players, list(ranked), paired=True), f"{LETTERS} by paired tests on the same episodes{_HOLM}."
    except RunError as error:
        reason = str(error.problem).partition("\n")[0].removesuffix(":")
        told = f"{LETTERS} by tests that take episodes as independent{_HOLM}: {reason}."
        return _tested(players, list(ranked), paired=False), told


LETTERS = "Policies that share a letter were not told apart in Safety,"
_HOLM = f" at {100 * (1 - CONFIDENCE):.0f}\N{NO-BREAK SPACE}%, adjusted for their number (Holm)"
OVERLAP = (
    "Policies that share a letter are not told apart: their 95\N{NO-BREAK SPACE}% intervals of Safety overlap. This "
    "rule is cautious; a test on the episodes may tell more apart."
)


def _within(one: Entrant, names: set[str]) -> Entrant:
    """The episodes of some suites."""
    index = np.array([e for e, header in enumerate(one.headers) if header.benchmark in names], dtype=np.int64)
    return replace(one.select(index), lost=tuple(lost for lost in one.lost if lost.benchmark in names))


def _balanced(group: _Group) -> bool:
    """Whether every policy has as many episodes in every suite: then pooling them is the mean over suites."""
    planned = {cell.n + cell.crashed + cell.stopped for of in group.cells.values() for cell in of.values()}
    return len(group.suites) == 1 or len(planned) == 1


def _tested(players: Sequence[Entrant], places: Sequence[int], *, paired: bool) -> Apart:
    found = compare(players, How(metrics=("safety",)), paired=paired)
    at = {one.name: place for one, place in zip(players, places, strict=True)}
    (metric,) = found.scopes[-1].metrics
    tested = [(one, one.p_value if one.p_holm is None else one.p_holm) for one in metric.differences]
    return {(at[one.first], at[one.second]) for one, p in tested if p is not None and p <= 1 - CONFIDENCE + 1e-12}
