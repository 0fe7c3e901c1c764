"""Ranked tables of a user's own runs: one table for the policies that ran the same tasks, by the mean over suites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.policy_results import PolicyResults, TaskKey, make_names_unique, split_by_policy
from safevla_bench.errors import RunError
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.judging.metrics import NOOP, Summary
from safevla_bench.judging.provenance_marks import STANDIN, AuditMark, warn_of_cells
from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, Metric
from safevla_bench.judging.scores import Scores
from safevla_bench.publishing.board.ranking import (
    PolicyName,
    RankedTable,
    RankingEntry,
    SeparatedPairs,
    rank_entries,
    report_path,
)
from safevla_bench.report.tables.catalog import TableInputs
from safevla_bench.report.tables.columns import metric_cell
from safevla_bench.report.tables.suites import ExactCell, suite_mean
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sources.runs.folder import MISSING
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.trajectory.header import Header

AUDIT_NOTE = (
    "Audited: recorded actions were played again and recorded anew. That shows what they lead to, and not who chose "
    "them; crashed episodes have no record. A policy whose records differ has no rank."
)
_NO_RATE_NOTE = (
    "Crashed episodes and those without a verdict are in no rate. Where a policy causes them, that flatters it."
)


@dataclass(frozen=True, kw_only=True)
class OwnResults:
    """Judged runs: what tables are made of, headers of the episodes in order, and their sources."""

    inputs: TableInputs
    headers: Sequence[Header]
    sources: Sequence[JudgedSource] = ()
    audits: Mapping[PolicyName, Sequence[AuditMark]] = field(default_factory=dict)
    """Policy -> an audit of each of its sources; empty where none was asked for."""
    has_reports: bool = False
    """Whether each policy has a report in the site, made elsewhere."""

    @property
    def policies(self) -> list[PolicyName]:
        """Return the policies in order of first appearance, then those that only crashed; [] without scores."""
        scores = self.inputs.scores
        return [] if scores is None else list(dict.fromkeys([*scores.policy, *(lost.policy for lost in scores.absent)]))


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

    @property
    def all_cells(self) -> list[Summary]:
        return [cell for by_suite in self.cells.values() for cell in by_suite.values()]


def own_ranked_tables(results: OwnResults) -> list[RankedTable]:
    """Return the ranked tables of the runs in order of first appearance, auxiliary ones last; [] without scores.

    Raises `RunError` if a policy has results of the same tasks under two suite names.
    """
    if results.inputs.scores is None:
        return []
    # Names are made distinct because a policy may have the name that is shown for a policy without one.
    privileged = tuple(results.inputs.roster.privileged)
    distinct = make_names_unique(split_by_policy(results.inputs.scores, results.headers, privileged=privileged))
    by_policy = {
        policy: replace(result, protocol=_policy_protocol(policy, results.sources))
        for policy, result in zip(results.policies, distinct, strict=True)
    }
    return [_own_ranked_table(group, results, by_policy) for group in _task_groups(results.inputs)]


def _policy_protocol(policy: PolicyName, sources: Sequence[JudgedSource]) -> Mapping[str, object] | None:
    protocols = [source.protocol for source in sources if policy in source.policies and source.protocol is not None]
    is_one = all(protocol == protocols[0] for protocol in protocols)
    return {"several": protocols} if not is_one else protocols[0] if protocols else None


# Policies that belong into one table


def _task_groups(inputs: TableInputs) -> Iterator[_TaskGroup]:
    """Yield groups of policies that ran the same tasks of the same title, auxiliary suites last."""
    ran = _count_task_runs(inputs)
    for title, cells in inputs.suite_groups(None, auxiliary=True):
        cells_by_tasks: dict[frozenset[TaskKey], dict[PolicyName, dict[str, Summary]]] = {}
        names, ranked = {cell.suite or "" for cell in cells}, not inputs.roster.is_auxiliary(cells[0])
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
    scores, names = inputs.scores, _first_names(inputs)
    for policy, benchmark, task in [
        *zip(scores.policy, scores.benchmark, scores.task_id, strict=True),
        *((absent.policy, absent.benchmark, absent.task_id) for absent in scores.absent),
    ]:
        runs.setdefault(policy, Counter())[names.get(benchmark, benchmark), task] += 1
    return runs


def _first_names(inputs: TableInputs) -> dict[str, str]:
    return {name: suite.same_tasks_as or name for name, suite in inputs.registry.benchmarks.items()}


# One table


def _own_ranked_table(
    group: _TaskGroup, results: OwnResults, results_by_policy: Mapping[PolicyName, PolicyResults]
) -> RankedTable:
    """Return the ranked table of a group, with letters by a test in Safety where one can be made."""
    competing = _policies_to_rank(group, results)
    entries = [
        RankingEntry(
            policy=policy or UNNAMED,
            report=report_path(policy) if results.has_reports else "",
            n=str(sum(cell.n for cell in cells.values())),
            numbers={metric.key: _mean_number(metric, cells, group.suites) for metric in (SR, SAFETY, SBU, VSI)},
            remarks=tuple(_policy_remarks(policy, cells, results)),
            competes=policy in competing,
        )
        for policy, cells in group.cells.items()
    ]
    ranked = {k: results_by_policy[policy] for k, policy in enumerate(group.cells) if entries[k].is_ranked}
    separated, letters_note = _separate_policies(ranked, group, results.inputs) if len(ranked) > 1 else (None, "")
    return RankedTable(
        title=group.title,
        scope="; ".join(_describe_suite_tasks(suite, group, results.inputs) for suite in group.suites),
        rows=rank_entries(entries, separated),
        letters_note=letters_note,
        notes=(*_table_notes(group, results), *warn_of_cells(group.all_cells)),
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


def _mean_number(metric: Metric, cells: Mapping[str, Summary], suites: Sequence[str]) -> ExactCell:
    mean = suite_mean(metric, cells, suites)
    return mean if mean.exact is not None or len(suites) > 1 else ExactCell(metric_cell(metric, cells[suites[0]]))


def _policy_remarks(policy: PolicyName, cells: Mapping[str, Summary], results: OwnResults) -> Iterator[str]:
    roster, scores = results.inputs.roster, results.inputs.scores
    if roster.is_privileged(policy):
        yield "privileged state"
    if _uses_standins(cells):
        yield STANDIN
    if policy == NOOP:
        yield "does nothing"
    if training := roster.training.get(policy or ""):
        yield training
    absent = [lost for lost in scores.absent if lost.policy == policy] if scores else []
    lost = {
        "crashed": sum(cell.crashed for cell in cells.values()),
        "stopped": sum(cell.stopped for cell in cells.values()),
        MISSING: sum(episode.outcome == MISSING and episode.benchmark in cells for episode in absent),
        "without a verdict": sum(cell.unjudged for cell in cells.values()),
    }
    yield from (f"{count} {word}" for word, count in lost.items() if count)
    yield from (mark.badge for mark in results.audits.get(policy, ()))


def _describe_suite_tasks(suite: str, group: _TaskGroup, inputs: TableInputs) -> str:
    tasks = [task for other, task in group.tasks if other == suite]
    total = len(list(inputs.registry.list_entries(suite))) if suite in inputs.registry.benchmarks else 0
    if len(tasks) == total:
        return f"all {total} tasks of {suite}"
    return f"{suite} {', '.join(sorted(tasks, key=lambda name: (len(name), name)))}"


def _table_notes(group: _TaskGroup, results: OwnResults) -> Iterator[str]:
    if not group.ranked:
        yield "Auxiliary: outside every ranking."
    if not group.equal_counts:
        yield "Not all ran each task equally often: these numbers weigh the tasks differently."
    if any(cell.crashed or cell.unjudged for cell in group.all_cells):
        yield _NO_RATE_NOTE
    if any(results.audits.get(policy) for policy in group.cells):
        yield AUDIT_NOTE
    for policy in group.cells:
        differing = [line for mark in results.audits.get(policy, ()) for line in mark.differing]
        yield from (f"{policy or UNNAMED}: {line}" for line in differing)


# Tests between the ranked policies


def _separate_policies(
    ranked: Mapping[int, PolicyResults], group: _TaskGroup, inputs: TableInputs
) -> tuple[SeparatedPairs | None, str]:
    """Return the pairs of ranked entries that a test in Safety separates, None without one, and a note on the test."""
    if len(group.suites) > 1 and len({cell.n + cell.crashed + cell.stopped for cell in group.all_cells}) > 1:
        return None, "No letters: the suites differ in their number of episodes, so that no test is of their mean."
    suite_of = {name: first for name, first in _first_names(inputs).items() if first in group.suites}
    suite_of |= {suite: suite for suite in group.suites}
    own = {
        k: result.select(lambda episode: episode.benchmark in suite_of).rename_suites(suite_of)
        for k, result in ranked.items()
    }
    by_task = ", as a difference that holds for tasks like these" if len(group.tasks) > 1 else ""
    holm = f"at {100 * (1 - CONFIDENCE):.0f}\N{NO-BREAK SPACE}%, adjusted for their number (Holm)"
    reason = ""
    for paired, test in (
        (True, "paired tests on the same episodes"),
        (False, "tests that take episodes as independent"),
    ):
        try:
            note = f"Policies that share a letter were not told apart in Safety, by {test}{by_task} {holm}{reason}."
            return _tested_pairs(own, paired=paired), note
        except RunError as error:
            reason = ": " + str(error.problem).partition("\n")[0].removesuffix(":")
    return None, f"No letters, as no test could be made{reason}."


def _tested_pairs(results_by_place: Mapping[int, PolicyResults], *, paired: bool) -> SeparatedPairs:
    options = ComparisonOptions(metrics=(SAFETY.key,))
    comparison = compare_policies(list(results_by_place.values()), options, paired=paired, across_versions=True)
    place_of = {result.name: place for place, result in results_by_place.items()}
    (metric,) = comparison.scopes[-1].metrics
    apart = (difference for difference in metric.differences if difference.better is not None)
    return {(place_of[difference.first], place_of[difference.second]) for difference in apart}


def select_policy(scores: Scores, policy: PolicyName) -> Scores:
    """Return the scores of the episodes of one policy, its absent episodes included; None selects episodes without a
    policy.
    """
    selected = scores.select_episodes(np.flatnonzero([name == policy for name in scores.policy]))
    return replace(selected, absent=tuple(absent for absent in scores.absent if absent.policy == policy))
