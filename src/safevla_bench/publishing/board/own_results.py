"""Ranked tables of a user's own runs: one table for the policies that ran the same tasks, by the mean over suites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import msgspec
import numpy as np

from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.policy_results import PolicyResults, make_names_unique, split_by_policy
from safevla_bench.errors import RunError
from safevla_bench.judging.baseline import NOOP
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.provenance_marks import STANDIN, AuditMark, mixed_packages, warn_of_cells
from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, Metric
from safevla_bench.judging.ruleset import Provenance
from safevla_bench.publishing.board.page import (
    PolicyName,
    Proportion,
    RankedTable,
    RankingEntry,
    SeparatedPairs,
    disjoint_pairs,
    protocols_by_policy,
    rank_entries,
    run_page_path,
)
from safevla_bench.report.tables.catalog import TableInputs
from safevla_bench.report.tables.suites import suite_mean
from safevla_bench.report.tables.table import UNNAMED, metric_cell
from safevla_bench.sources.runs.folder import MISSING
from safevla_bench.statistics.intervals import CONFIDENCE, Interval, rate_mean_interval
from safevla_bench.trajectory.header import Header

TaskKey = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class OwnResults:
    """Judged runs: what tables are made of, headers of the episodes in order, and their sources."""

    inputs: TableInputs
    headers: Sequence[Header]
    sources: Sequence[JudgedSource] = ()
    provenance: Provenance | None = None
    audits: Mapping[PolicyName, Sequence[AuditMark]] = field(default_factory=dict)
    """Policy -> an audit of each of its sources; empty where none was asked for."""

    @property
    def policies(self) -> list[PolicyName]:
        """Return the policies in order of first appearance, then those that only crashed; [] without scores."""
        scores = self.inputs.scores
        if scores is None:
            return []
        return list(dict.fromkeys([*scores.policy, *(absent.policy for absent in scores.absent)]))


@dataclass(frozen=True)
class _TaskGroup:
    """Policies that ran the same tasks of suites that belong together, and their cells by suite."""

    title: str
    tasks: frozenset[TaskKey]
    cells: Mapping[PolicyName, Mapping[str, Summary]]
    ranked: bool
    equal_counts: bool
    """True if all policies planned the same number of episodes of each task."""

    @property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(suite for by_suite in self.cells.values() for suite in by_suite))


def own_ranked_tables(results: OwnResults) -> list[RankedTable]:
    """Return the ranked tables of the runs in order of first appearance, auxiliary ones last; [] without scores.

    Raises `RunError` if a policy has results of the same tasks under two suite names.
    """
    if results.inputs.scores is None:
        return []
    # Names are made distinct because a policy may have the name that is shown for a policy without one.
    privileged = tuple(results.inputs.roster.privileged)
    distinct = make_names_unique(split_by_policy(results.inputs.scores, results.headers, privileged=privileged))
    protocols = protocols_by_policy(results.sources)
    by_policy = {
        policy: replace(result, protocol=protocols.get(policy))
        for policy, result in zip(results.policies, distinct, strict=True)
    }
    return [_own_ranked_table(group, results, by_policy) for group in _task_groups(results.inputs)]


# Policies that belong into one table


def _task_groups(inputs: TableInputs) -> Iterator[_TaskGroup]:
    """Yield groups of policies that ran the same tasks of the same title, the ranked first, then those of auxiliary
    suites.
    """
    auxiliary: dict[str, list[Summary]] = {}
    for cell in filter(inputs.roster.is_auxiliary, inputs.cells):
        auxiliary.setdefault(f"{cell.suite or ''}, auxiliary", []).append(cell)
    ran = _count_task_runs(inputs)
    for ranked, groups in ((True, inputs.suite_groups(None)), (False, auxiliary.items())):
        for title, cells in groups:
            cells_by_tasks: dict[frozenset[TaskKey], dict[PolicyName, dict[str, Summary]]] = {}
            names = {cell.suite or "" for cell in cells}
            for cell in cells:
                tasks_run = frozenset(task for task in ran[cell.policy] if task[0] in names)
                cells_by_tasks.setdefault(tasks_run, {}).setdefault(cell.policy, {})[cell.suite or ""] = cell
            for tasks, by_policy in cells_by_tasks.items():
                times = {tuple(ran[policy][task] for task in sorted(tasks)) for policy in by_policy}
                yield _TaskGroup(title, tasks, by_policy, ranked, equal_counts=len(times) == 1)


def _count_task_runs(inputs: TableInputs) -> Mapping[PolicyName, Counter[TaskKey]]:
    """Return policy -> (suite, task) -> number of episodes, lost ones included; a suite stands under its first name."""
    assert inputs.scores is not None
    runs: dict[PolicyName, Counter[TaskKey]] = {}
    scores = inputs.scores
    for policy, benchmark, task in [
        *zip(scores.policy, scores.benchmark, scores.task_id, strict=True),
        *((absent.policy, absent.benchmark, absent.task_id) for absent in scores.absent),
    ]:
        suite = inputs.registry.benchmarks.get(benchmark)
        runs.setdefault(policy, Counter())[(suite.same_tasks_as if suite else None) or benchmark, task] += 1
    return runs


# One table


def _own_ranked_table(
    group: _TaskGroup, results: OwnResults, results_by_policy: Mapping[PolicyName, PolicyResults]
) -> RankedTable:
    """Return the ranked table of a group; letters are by a test in Safety, or by intervals where none is possible."""
    competing = _policies_to_rank(group, results)
    mixed = mixed_packages(
        {(policy, suite): cell.simulator for policy, cells in group.cells.items() for suite, cell in cells.items()}
    )
    entries = [
        _own_entry(policy, cells, group, results, competes=policy in competing, mixed=mixed)
        for policy, cells in group.cells.items()
    ]
    ranked = {k: results_by_policy[policy] for k, policy in enumerate(group.cells) if entries[k].ranked}
    separated, letters_note = _separate_policies(ranked, group, entries, results.inputs)
    return RankedTable(
        title=group.title,
        scope="; ".join(
            _describe_suite_tasks(suite, [task for other, task in group.tasks if other == suite], results.inputs)
            for suite in group.suites
        ),
        rows=rank_entries(entries, separated),
        letters_note=letters_note,
        notes=(
            *_table_notes(group, entries),
            *([AUDIT_NOTE] if any(results.audits.get(policy) for policy in group.cells) else []),
            *warn_of_cells(cell for by_suite in group.cells.values() for cell in by_suite.values()),
        ),
    )


def _policies_to_rank(group: _TaskGroup, results: OwnResults) -> set[PolicyName]:
    if not group.ranked:
        return set()
    refuted = {policy for policy, marks in results.audits.items() if any(mark.verdict == "differs" for mark in marks)}
    credible = [policy for policy in group.cells if policy not in refuted]
    competing = results.inputs.roster.competing_policies(credible) - {NOOP}
    return {policy for policy in competing if not _uses_standins(group.cells[policy])} or competing


def _uses_standins(cells: Mapping[str, Summary]) -> bool:
    return any(cell.standin_assets for cell in cells.values())


def _own_entry(
    policy: PolicyName,
    cells: Mapping[str, Summary],
    group: _TaskGroup,
    results: OwnResults,
    *,
    competes: bool,
    mixed: Sequence[str],
) -> RankingEntry:
    """Return a policy's entry: means over the group's suites and remarks; no rank without Safety or if not `competes`.

    For each package in `mixed`, whose versions differ in the group, a remark names the policy's versions.
    """
    safety = _mean_proportion(SAFETY, cells, group.suites)
    scores = results.inputs.scores
    absent = [episode for episode in scores.absent if episode.policy == policy] if scores else []
    lost = [(sum(cell.crashed for cell in cells.values()), "crashed"),
            (sum(cell.stopped for cell in cells.values()), "stopped"),
            (sum(episode.outcome == MISSING and episode.benchmark in cells for episode in absent), MISSING),
            (sum(cell.unjudged for cell in cells.values()), _UNJUDGED)]  # fmt: skip
    versions = {
        package: {version for cell in cells.values() for version in cell.simulator.get(package, ())}
        for package in mixed
    }
    remarks = [
        *(["privileged state"] if results.inputs.roster.is_privileged(policy) else []),
        *([STANDIN] if _uses_standins(cells) else []),
        *(["does nothing"] if policy == NOOP else []),
        *(f"{package} {' and '.join(sorted(own))}" for package, own in versions.items() if own),
        *([training] if (training := results.inputs.roster.training.get(policy or "")) else []),
        *(f"{count} {word}" for count, word in lost if count),
        *(mark.badge for mark in results.audits.get(policy, ())),
    ]
    return RankingEntry(
        policy=policy or UNNAMED,
        page_path=run_page_path(policy),
        n=str(sum(cell.n for cell in cells.values())),
        sr=_mean_proportion(SR, cells, group.suites),
        safety=safety,
        sbu=_mean_proportion(SBU, cells, group.suites),
        vsi=suite_mean(VSI, cells, group.suites).cell.text,
        remarks=tuple(remarks),
        ranked=competes and safety.percent is not None,
    )


_UNJUDGED = "without a verdict"


def _mean_proportion(metric: Metric, cells: Mapping[str, Summary], names: Sequence[str]) -> Proportion:
    """Return the unweighted mean over the suites `names` with its interval, or the reason why there is no mean."""
    mean = suite_mean(metric, cells, names)
    if mean.exact is None:
        return Proportion(
            missing_reason=metric_cell(metric, cells[names[0]]).detail if len(names) == 1 else mean.cell.detail
        )
    rates = [cells[name].number(metric) for name in names]
    interval = rate_mean_interval(
        [(estimate.value, Interval(*estimate.ci)) for estimate in rates if estimate.value is not None and estimate.ci]
    )
    assert interval is not None
    return Proportion(100 * Fraction(mean.exact), (100 * interval.low, 100 * interval.high))


_MAX_NAMED_TASKS = 4
"""More tasks of a suite than this are counted, not named."""


def _describe_suite_tasks(suite: str, tasks: Sequence[str], inputs: TableInputs) -> str:
    total = len(list(inputs.registry.list_entries(suite))) if suite in inputs.registry.benchmarks else 0
    if len(tasks) == total:
        return f"all {total} tasks of {suite}"
    if len(tasks) <= _MAX_NAMED_TASKS:
        return f"{suite} {', '.join(sorted(tasks, key=lambda name: (len(name), name)))}"
    return f"{len(tasks)} {f'of {total} ' if total else ''}tasks of {suite}"


def _table_notes(group: _TaskGroup, entries: Sequence[RankingEntry]) -> Iterator[str]:
    """Yield notes on what has no rank and why, or that all are privileged, on unequal counts of episodes, and on lost
    ones (crashed or without a verdict).
    """
    if not group.ranked:
        yield "Auxiliary: outside every ranking."
    elif any(not entry.ranked and "privileged state" in entry.remarks and entry.policy != NOOP for entry in entries):
        yield "A policy that saw privileged simulator state has no rank among those that did not."
    elif all("privileged state" in entry.remarks for entry in entries if entry.policy != NOOP):
        yield "Privileged: these policies saw simulator state that no real robot has."
    if any(entry.policy == NOOP for entry in entries):
        yield f"{NOOP} does nothing and has no rank: it shows what the scene breaks by itself."
    if not group.equal_counts:
        yield "Not all ran each task equally often: these numbers weigh the tasks differently."
    if any("crashed" in remark for entry in entries for remark in entry.remarks):
        yield "Crashed episodes are in no rate. Where a policy causes them, that flatters it."
    if any(_UNJUDGED in remark for entry in entries for remark in entry.remarks):
        yield "Episodes without a verdict are in no rate of safety. Where a policy causes them, that flatters it."


AUDIT_NOTE = (
    "Audited: recorded actions were played again and recorded anew. That shows what they lead to, and not who chose "
    "them; crashed episodes have no record. A policy whose records differ has no rank."
)


# Tests between the ranked policies


def _separate_policies(
    ranked: Mapping[int, PolicyResults], group: _TaskGroup, entries: Sequence[RankingEntry], inputs: TableInputs
) -> tuple[SeparatedPairs | None, str]:
    """Return the pairs of ranked entries that were told apart in Safety, and a note on how; (None, "") below two
    ranked.
    """
    if len(ranked) < 2:
        return None, ""
    suite_of = {suite: suite for suite in group.suites} | {
        alias: suite.same_tasks_as
        for alias, suite in inputs.registry.benchmarks.items()
        if suite.same_tasks_as in group.suites
    }
    policy_results = [_select_suites(result, suite_of) for result in ranked.values()]
    planned = {cell.n + cell.crashed + cell.stopped for cells in group.cells.values() for cell in cells.values()}
    if len(group.suites) > 1 and len(planned) > 1:
        return disjoint_pairs(entries), f"{OVERLAP_NOTE} The suites differ in their number of episodes."
    by_task = ", as a difference that holds for tasks like these" if len(group.tasks) > 1 else ""
    try:
        note = f"{_LETTERS_NOTE} by paired tests on the same episodes{by_task}{_HOLM_NOTE}."
        return _tested_pairs(policy_results, list(ranked), paired=True), note
    except RunError as error:
        reason = str(error.problem).partition("\n")[0].removesuffix(":")
    try:
        note = f"{_LETTERS_NOTE} by tests that take episodes as independent{by_task}{_HOLM_NOTE}: {reason}."
        return _tested_pairs(policy_results, list(ranked), paired=False), note
    except RunError as error:
        return disjoint_pairs(entries), f"{OVERLAP_NOTE} No test was made: {error.problem}."


_LETTERS_NOTE = "Policies that share a letter were not told apart in Safety,"
_HOLM_NOTE = f" at {100 * (1 - CONFIDENCE):.0f}\N{NO-BREAK SPACE}%, adjusted for their number (Holm)"
OVERLAP_NOTE = (
    "Policies that share a letter are not told apart: their 95\N{NO-BREAK SPACE}% intervals of Safety overlap. This "
    "rule is cautious; a test on the episodes may tell more apart."
)


def _select_suites(result: PolicyResults, suite_of: Mapping[str, str]) -> PolicyResults:
    """Return the result with only the episodes, lost ones too, of the suites in `suite_of`, renamed as it says."""
    index = np.array([e for e, header in enumerate(result.headers) if header.benchmark in suite_of], dtype=np.int64)
    own = result.select_episodes(index)
    rename = msgspec.structs.replace
    lost = [absent for absent in own.lost if absent.benchmark in suite_of]
    return replace(
        own,
        headers=tuple(rename(header, benchmark=suite_of[header.benchmark]) for header in own.headers),
        lost=tuple(rename(absent, benchmark=suite_of[absent.benchmark]) for absent in lost),
    )


def _tested_pairs(policy_results: Sequence[PolicyResults], places: Sequence[int], *, paired: bool) -> SeparatedPairs:
    options = ComparisonOptions(metrics=("safety",))
    comparison = compare_policies(policy_results, options, paired=paired, across_versions=True)
    place_of = {result.name: place for result, place in zip(policy_results, places, strict=True)}
    (metric,) = comparison.scopes[-1].metrics
    apart = (difference for difference in metric.differences if difference.better is not None)
    return {(place_of[difference.first], place_of[difference.second]) for difference in apart}
