"""The board: a static site that ranks policies by Safety, with separate tables for a user's runs and published results.

Policies that ran the same tasks share a table, and are ranked by their mean Safety over the table's suites. The pages
contain no scripts. Equal inputs give pages with equal bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations
from pathlib import Path

from markupsafe import Markup

from safevla_bench.compare.comparison import compare_where_possible
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.policy_results import UNNAMED as UNNAMED_POLICY
from safevla_bench.compare.policy_results import PolicyResults, Protocols, TaskKey
from safevla_bench.errors import Place, RunError
from safevla_bench.files import has_partial_name, make_folder, own_path, read_input, translated_errors, write_together
from safevla_bench.judging.metrics import NOOP, Summary
from safevla_bench.judging.provenance_marks import STANDIN, AuditMark, warn_of_cells
from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, Metric
from safevla_bench.publishing.conditions import Conditions
from safevla_bench.report import published
from safevla_bench.report.published import PublishedCell, PublishedMean, PublishedResults
from safevla_bench.report.render import content_security_policy, read_template, template_environment
from safevla_bench.report.tables.catalog import TableInputs
from safevla_bench.report.tables.cells import ExactCell, suite_mean
from safevla_bench.report.tables.columns import metric_cell
from safevla_bench.report.tables.comparison_answer import format_ranks
from safevla_bench.report.tables.table import UNNAMED, Cell
from safevla_bench.sources.runs.folder import MISSING
from safevla_bench.statistics import intervals
from safevla_bench.statistics.significance import holm_adjust, invert_interval
from safevla_bench.tasks.identity import is_own_task
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import NO_VALUE, format_fixed, format_interval
from safevla_recorder.identity import find_official_name

PolicyName = str | None
INDEX, METHOD, REPORTS = "index.html", "method.html", "reports"
GENERATOR = "safevla board"  # marks the pages of a board; a folder with such a page is a board
_MAX_PLAIN_LENGTH = 40  # maximum length of the readable part of a report's file name
AUDIT_NOTE = (
    "Audited: the recorded actions were replayed and recorded again. This shows what the actions lead to, but not who "
    "chose them; crashed episodes have no record. A policy whose records differ has no rank."
)
_NO_RATE_NOTE = (
    "Rates leave out crashed episodes. Safety and SBU also leave out episodes without a verdict. "
    "This favors policies that cause such episodes."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingEntry:
    """One policy in one table. `numbers` maps metric keys to means over the table's suites, with 95 % intervals if
    counts are known. `remarks` appear next to the policy's name. If `competes` is false, the policy gets no rank.
    """

    policy: str
    report: str = ""  # path of the policy's report in the site; "" = no report
    n: str
    numbers: Mapping[str, ExactCell]
    remarks: tuple[str, ...] = ()
    competes: bool = True
    rank: str = ""
    sr_rank: str = ""

    @property
    def is_ranked(self) -> bool:
        # Returns whether the policy gets a rank: it competes, and its Safety is known.
        return self.competes and self.numbers[SAFETY.key].exact is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTable:
    """A ranked table: its title, its tasks as text (`scope`), its rows (the safest policy first), and its notes."""

    title: str
    scope: str
    rows: tuple[RankingEntry, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnResults:
    """The judged runs of a user, and the facts about them for a board."""

    inputs: TableInputs
    audits: Mapping[PolicyName, Sequence[AuditMark]] = field(default_factory=dict)
    """Maps a policy to its audits, one audit per source; empty if no audit was requested."""
    has_reports: bool = False  # whether the site also gets a report for each policy
    conditions: Mapping[tuple[PolicyName, str], Conditions] = field(default_factory=dict)
    """Maps (policy, suite) to the episodes' conditions. Policies with different conditions are in different tables."""
    disqualified: Mapping[PolicyName, str] = field(default_factory=dict)  # policy -> reason why the policy has no rank
    policy_results: Sequence[PolicyResults] = ()
    """Results of the policies, for comparisons. Without results, no policy counts as better than another policy."""
    protocols: Protocols = ()
    """The known protocols of the sources. If they differ, the comparison does not pair episodes."""

    @property
    def policies(self) -> list[PolicyName]:
        """The policies in order of first appearance; policies without any record come last. [] without scores."""
        scores = self.inputs.scores
        return [] if scores is None else list(dict.fromkeys([*scores.policy, *(lost.policy for lost in scores.absent)]))


# The site


def render_site(results: OwnResults | None = None) -> dict[str, str]:
    """Return the board's pages as a map from path to HTML, without writing them. Without `results`, the pages show only
    published results. Raises `RunError` if a policy has results on the same tasks under two suite names.
    """
    style_sheet = read_template("page.css") + read_template("board/board.css")
    inputs = results.inputs if results else None
    values = {
        "generator": GENERATOR,
        "policy": content_security_policy(style_sheet),
        "style": Markup(style_sheet),  # the style sheet needs no escaping, because it is part of this package
        "fixed": format_fixed,
        "runs": own_ranked_tables(results) if results else [],
        "warnings": [remark for remark in inputs.remarks if remark not in inputs.facts] if inputs else (),
        "facts": [remark for remark in inputs.remarks if remark in inputs.facts] if inputs else (),
        "publications": published_sections(),
    }
    templates = {INDEX: "board/index.html", METHOD: "board/method.html"}  # path in the site -> template
    return {path: template_environment().get_template(name).render(**values) for path, name in templates.items()}


def report_path(policy: PolicyName) -> str:
    """Return the path of a policy's report in the site; `policy` is None for records that name no policy.

    The file name consists of the letters a-z and digits of the policy's name, and of a digest of the full name. The
    file name has no path separator and only one dot. Two names never collide, even on file systems that ignore case.

    >>> report_path("../pi0.5")
    'reports/pi0-5-b16f5d9922c5.html'
    """
    # The digest also depends on the label, so that a policy with an empty name and a policy without a name differ.
    label = "unnamed run" if policy is None else "run"
    readable_part = re.sub(r"[^a-z0-9]+", "-", (policy or "").lower()).strip("-")[:_MAX_PLAIN_LENGTH].strip("-")
    digest = hashlib.sha256(f"{label}\0{policy or ''}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{REPORTS}/{readable_part}-{digest}.html" if readable_part else f"{REPORTS}/{digest}.html"


def check_folder(folder: Path) -> None:
    """Raise `RunError` if `folder` is a file or has content that is not a board's; `FileError` if it is unreadable."""
    with translated_errors(folder):
        is_occupied = folder.exists() and (not folder.is_dir() or not _is_replaceable(folder))
    if is_occupied:
        remedy = "Choose another --out; only an existing board is replaced."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=Place(file=str(folder)))


def _is_replaceable(folder: Path) -> bool:
    # Returns whether a new board may replace the folder's content, which must be a board or nothing.
    index = folder / INDEX
    if not index.exists():  # an empty folder, or a first board that was interrupted
        return {path.name for path in folder.iterdir() if not has_partial_name(path)} <= {REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">'.encode() in read_input(index)


_REPORT_NAME = re.compile(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html")


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """Write all `files` (path in the folder -> text) or none of them. Remove reports that are not in the new board.
    Raises the errors of `check_folder`, and `FileError` if the folder is not writable.
    """
    check_folder(folder)
    for path in files:
        make_folder(own_path(folder, path).parent)
    write_together(folder, files, chief=INDEX)
    with translated_errors(folder):
        for old in folder.glob(f"{REPORTS}/*.html"):
            if _REPORT_NAME.fullmatch(old.name) and f"{REPORTS}/{old.name}" not in files:
                old.unlink()


# Ranks


Better = Mapping[str, Collection[tuple[str, str]]]
"""Maps a metric's key to pairs of policies that differ significantly on a table's tasks; the better one is first."""


def rank_entries(entries: Sequence[RankingEntry], better: Better) -> tuple[RankingEntry, ...]:
    """Return the entries of one table by decreasing Safety, with their ranks. Entries without a rank come last. A rank
    is the range from 1 + b to k - w. Here, k is the number of ranked policies; b policies are significantly better than
    the entry's policy, and w policies are significantly worse.
    """
    # `better` maps a metric's key to pairs of policies that differ significantly; the better one is first.
    ranked = [entry for entry in entries if entry.is_ranked]

    def sort_key(entry: RankingEntry) -> tuple[bool, Fraction]:
        # An unknown Safety sorts below every known Safety, which is at least 0.
        safety = entry.numbers[SAFETY.key].exact
        return entry.is_ranked, Fraction(-1) if safety is None else safety

    ordered = []  # each entry gets a rank by Safety, and a rank by SR (success rate)
    for entry in sorted(entries, key=sort_key, reverse=True):
        safety_rank, sr_rank = (_format_rank(entry, ranked, metric, better) for metric in (SAFETY, SR))
        ordered.append(replace(entry, rank=safety_rank, sr_rank=sr_rank))
    return tuple(ordered)


def _format_rank(entry: RankingEntry, ranked: Sequence[RankingEntry], metric: Metric, better: Better) -> str:
    # Returns the range of possible ranks, such as "1–3"; "" if the entry has no rank or no value of the metric.
    # `better` maps a metric's key to pairs (better policy, worse policy) that differ significantly.
    # `exact` is a number before rounding; None = unknown.
    numbers = {row.policy: row.numbers[metric.key].exact for row in ranked}
    values = {policy: number for policy, number in numbers.items() if number is not None}
    if entry not in ranked or entry.policy not in values:
        return ""
    shown_pairs = [pair for pair in better.get(metric.key, ()) if {*pair} <= values.keys()]  # both policies are ranked
    # A pair counts only if the better policy in the comparison also has the higher number in the table.
    pairs = [(winner, loser) for winner, loser in shown_pairs if values[winner] > values[loser]]
    better_count = sum(loser == entry.policy for _, loser in pairs)
    worse_count = sum(winner == entry.policy for winner, _ in pairs)
    return format_ranks((1 + better_count, len(values) - worse_count))


# A user's runs


@dataclass(frozen=True)
class _TaskGroup:
    # The policies of one table: they ran the same tasks under the same conditions. `cells`: policy -> suite -> numbers.
    title: str
    tasks: frozenset[TaskKey]
    cells: Mapping[PolicyName, Mapping[str, Summary]]
    ranked: bool
    # True if all policies have the same number of planned episodes for each task.
    equal_counts: bool
    # Maps each suite to the conditions of its episodes; empty if conditions are not recorded.
    conditions: Mapping[str, Conditions]
    # True if the suite has an official suite's name, but the policies did not run the official tasks.
    is_own: bool
    # True if a policy in this table, or in another table with the same title, ran only official tasks.
    has_official: bool

    @property
    def suites(self) -> list[str]:
        # Returns the suites of all policies in the table, without repetition, in order of first appearance.
        return list(dict.fromkeys(suite for by_suite in self.cells.values() for suite in by_suite))

    @property
    def all_cells(self) -> list[Summary]:
        # Returns the numbers of all policies on all suites of the table.
        return [cell for by_suite in self.cells.values() for cell in by_suite.values()]


def own_ranked_tables(results: OwnResults) -> list[RankedTable]:
    """Return the tables of a user's runs in order of first appearance, auxiliary tables last; [] without scores.
    Raises `RunError` if a policy has results on the same tasks under two suite names.
    """
    if results.inputs.scores is None:
        return []
    return [_build_own_table(group, results) for group in _group_by_tasks(results)]


def _group_by_tasks(results: OwnResults) -> Iterator[_TaskGroup]:
    # Yields one group for each table. A group's policies ran the same tasks under the same conditions.
    # A cell contains the numbers of a policy on a suite. `suite_groups(None)` covers all hosts.
    # For each table title, `suite_groups` yields the cells of all suites under this title.
    inputs = results.inputs
    counts_of_policy = _count_episodes(inputs)  # the number of planned episodes of each policy and task
    for title, cells in inputs.suite_groups(None, auxiliary=True):
        cells_of_policy: dict[PolicyName, dict[str, Summary]] = {}
        for cell in cells:
            cells_of_policy.setdefault(cell.policy, {})[cell.suite or ""] = cell
        suites = {cell.suite or "" for cell in cells}
        # Policies with the same key share a table. The key contains the tasks (suite, task) and the suites' conditions.
        # The key also contains `is_own`: true if tasks with official names differ from the official tasks.
        groups: dict[tuple[frozenset[TaskKey], object, bool], list[PolicyName]] = {}
        for policy, policy_cells in cells_of_policy.items():
            tasks = frozenset(task for task in counts_of_policy[policy] if task[0] in suites)
            conditions = tuple((suite, results.conditions.get((policy, suite))) for suite in sorted(policy_cells))
            identities = [identity for cell in policy_cells.values() for identity in cell.task_identity]
            is_own = any(map(is_own_task, identities))
            groups.setdefault((tasks, conditions, is_own), []).append(policy)
        for (tasks, _, is_own), policies in groups.items():
            first = policies[0]  # all policies of a group have the same conditions, so use those of the first policy
            # The distinct tuples of episode counts per task; a single tuple if all policies have the same counts.
            counts = {tuple(counts_of_policy[policy][task] for task in sorted(tasks)) for policy in policies}
            keys = [(first, suite) for suite in cells_of_policy[first] if (first, suite) in results.conditions]
            yield _TaskGroup(
                title=title,
                tasks=tasks,
                cells={policy: cells_of_policy[policy] for policy in policies},
                ranked=not inputs.roster.is_auxiliary(cells[0]),
                equal_counts=len(counts) == 1,
                conditions={suite: results.conditions[policy, suite] for policy, suite in keys},
                is_own=is_own,
                has_official=any(map(_ran_official_tasks_only, cells_of_policy.values())),
            )


def _ran_official_tasks_only(cells: Mapping[str, Summary]) -> bool:
    # Returns whether all suites of a policy are official, and all episodes certainly ran the official tasks.
    # `cells` maps suites to the policy's numbers. `task_identity` counts all other episodes, by reason.
    return all(find_official_name(suite) and not cell.task_identity for suite, cell in cells.items())


def _count_episodes(inputs: TableInputs) -> Mapping[PolicyName, Counter[TaskKey]]:
    # Returns the number of episodes of each policy and task (suite, task), including episodes without a record.
    # Suites with the same tasks count as one suite.
    assert inputs.scores is not None
    counts: dict[PolicyName, Counter[TaskKey]] = {}
    scores, canonical_names = inputs.scores, dict[str, str]()
    recorded = zip(scores.policy, scores.benchmark, scores.task_id, strict=True)
    absent = ((episode.policy, episode.benchmark, episode.task_id) for episode in scores.absent)
    for policy, benchmark, task in chain(recorded, absent):
        if benchmark not in canonical_names:
            canonical_names[benchmark] = inputs.registry.canonical_suite(benchmark)
        counts.setdefault(policy, Counter())[canonical_names[benchmark], task] += 1
    return counts


def _build_own_table(group: _TaskGroup, results: OwnResults) -> RankedTable:
    # Returns the table of the group's policies. Each policy has a row with its means over the group's suites.
    competing = _policies_to_rank(group, results)
    entries = [
        RankingEntry(
            policy=policy or UNNAMED,
            report=report_path(policy) if results.has_reports else "",
            n=str(sum(cell.n for cell in cells.values())),
            numbers={metric.key: _average_metric(metric, cells, group.suites) for metric in (SR, SAFETY, SBU, VSI)},
            remarks=tuple(_policy_remarks(policy, cells, results)),
            competes=policy in competing,
        )
        for policy, cells in group.cells.items()
    ]
    return RankedTable(
        title=group.title,
        scope="; ".join(_describe_suite_tasks(suite, group, results.inputs) for suite in group.suites),
        rows=rank_entries(entries, _find_better_pairs(group, competing, results)),
        notes=(*_table_notes(group, results), *warn_of_cells(group.all_cells)),
    )


def _find_better_pairs(group: _TaskGroup, competing: Collection[PolicyName], results: OwnResults) -> Better:
    # Compares the competing policies on the group's tasks. Returns {} if a comparison is not possible.
    # Otherwise, returns for each metric the pairs (winner, loser) that differ significantly.
    selected_results = []
    for policy_results in results.policy_results:
        name = None if policy_results.name == UNNAMED_POLICY else policy_results.name
        if name in competing:
            # Keep the episodes of this group's tasks. `split_judged` gave one name to all suites with the same tasks.
            in_group = policy_results.select(lambda episode: (episode.benchmark, episode.task_id) in group.tasks)
            if len(in_group):
                selected_results.append(in_group)
    try:
        options = ComparisonOptions(metrics=(SAFETY.key, SR.key))
        comparison, _ = compare_where_possible(selected_results, options, protocols=results.protocols)
    except RunError:
        return {}
    better: dict[str, list[tuple[str, str]]] = {}
    for metric in comparison.scopes[-1].metrics:  # the last scope contains all tasks
        better[metric.metric] = []
        for difference in metric.differences:
            if difference.better:  # None if the difference is not significant
                loser = difference.second if difference.better == difference.first else difference.first
                better[metric.metric].append((difference.better, loser))
    return better


def _policies_to_rank(group: _TaskGroup, results: OwnResults) -> set[PolicyName]:
    # Returns the group's policies that get a rank: none in a group of auxiliary policies.
    # No policy gets a rank if the group's tasks have the names of official tasks, but differ from them.
    if not group.ranked or group.is_own:
        return set()
    # An audit replays a policy's recorded actions. If the new records differ, the audit refutes the policy.
    refuted = {policy for policy, marks in results.audits.items() if any(mark.verdict == "differs" for mark in marks)}
    credible = [policy for policy in group.cells if policy not in refuted and policy not in results.disqualified]
    if group.has_official:  # if a table contains official results, do not rank results on other tasks
        credible = [policy for policy in credible if _ran_official_tasks_only(group.cells[policy])]
    competing = results.inputs.roster.competing_policies(credible) - {NOOP}  # `NOOP` is the policy that does nothing
    # Policies that ran with stand-in assets are ranked only if there are no other policies to rank.
    with_own_assets = {policy for policy in competing if not _uses_standins(group.cells[policy])}
    return with_own_assets or competing


def _uses_standins(cells: Mapping[str, Summary]) -> bool:
    # Returns whether a policy had an episode with stand-ins for the simulator's own assets. `cells`: suite -> numbers.
    return any(cell.standin_assets for cell in cells.values())


def _average_metric(metric: Metric, cells: Mapping[str, Summary], suites: Sequence[str]) -> ExactCell:
    # Returns a policy's mean of a metric over the suites, as a cell of a table. `cells`: suite -> the policy's numbers.
    mean = suite_mean(metric, cells, suites)
    if mean.exact is None and len(suites) == 1:  # a single suite's cell gives the reason for a missing number
        return ExactCell(metric_cell(metric, cells[suites[0]]))
    return mean


def _policy_remarks(policy: PolicyName, cells: Mapping[str, Summary], results: OwnResults) -> Iterator[str]:
    # Yields the remarks next to a policy's name: facts, counts of excluded episodes, audits, reasons for no rank.
    # `cells` maps suites to the policy's numbers.
    roster, scores = results.inputs.roster, results.inputs.scores
    if roster.is_privileged(policy):
        yield "privileged state"
    if _uses_standins(cells):
        yield STANDIN
    if policy == NOOP:
        yield "does nothing"
    if training := roster.training.get(policy or UNNAMED):
        yield training
    canonical_suite = results.inputs.registry.canonical_suite
    absent = [e.benchmark for e in scores.absent if e.policy == policy and e.outcome == MISSING] if scores else []
    missing_counts = Counter(absent)  # number of missing episodes by the recorded name of the suite
    excluded = {
        "crashed": sum(cell.crashed for cell in cells.values()),
        "stopped": sum(cell.stopped for cell in cells.values()),
        MISSING: sum(count for name, count in missing_counts.items() if canonical_suite(name) in cells),
        "without a verdict": sum(cell.unjudged for cell in cells.values()),
    }
    yield from (f"{count} {word}" for word, count in excluded.items() if count)
    yield from (mark.badge for mark in results.audits.get(policy, ()))
    if policy in results.disqualified:
        yield results.disqualified[policy]
    identities = dict.fromkeys(identity for cell in cells.values() for identity in cell.task_identity)
    yield from map(describe_reason, identities)


def _describe_suite_tasks(suite: str, group: _TaskGroup, inputs: TableInputs) -> str:
    # Returns, as text, which tasks of a suite the group's policies ran: "all 10 tasks of SUITE", or the tasks' names.
    tasks = [task for task_suite, task in group.tasks if task_suite == suite]
    total = len(list(inputs.registry.list_entries(suite))) if suite in inputs.registry.benchmarks else 0
    if len(tasks) == total:
        return f"all {total} tasks of {suite}"
    # Shorter names come first, so that task_2 precedes task_10.
    return f"{suite} {', '.join(sorted(tasks, key=lambda name: (len(name), name)))}"


def _table_notes(group: _TaskGroup, results: OwnResults) -> Iterator[str]:
    # Yields the notes below a table: why it has no ranks, the episodes' conditions, and caveats about the numbers.
    if not group.ranked:
        yield "Auxiliary: these policies are outside every ranking."
    if group.is_own:
        yield "Not ranked: these tasks have the names of official tasks, but differ from them."
    for conditions in dict.fromkeys(group.conditions.values()):
        suites = [suite for suite, other in group.conditions.items() if other == conditions]
        yield f"{', '.join(suites)}: {conditions}."
    if not group.equal_counts:
        yield "The policies have different numbers of episodes per task, so their rates weigh tasks differently."
    if any(cell.crashed or cell.unjudged for cell in group.all_cells):
        yield _NO_RATE_NOTE
    audits = {policy: results.audits[policy] for policy in group.cells if results.audits.get(policy)}
    if audits:
        yield AUDIT_NOTE
    for policy, marks in audits.items():
        yield from (f"{policy or UNNAMED}: {line}" for mark in marks for line in mark.differing)


# Published results

PrintedRow = PublishedCell | PublishedMean


@dataclass(frozen=True)
class PublishedSection:
    """One publication with its ranked tables."""

    source: published.PublicationSource
    tables: tuple[RankedTable, ...]


def published_sections() -> list[PublishedSection]:
    """Return every publication that comes with this package, with its ranked tables; the paper is first."""
    publications = map(published.load_published, (published.PAPER, published.LEADERBOARD))
    return [PublishedSection(publication.source, tuple(_group_published(publication))) for publication in publications]


def _group_published(publication: PublishedResults) -> Iterator[RankedTable]:
    # Yields tables in which all rows are about the same benchmarks. A benchmark in a mean gets no separate table.
    benchmarks_of_means = {name for mean in publication.means for name in mean.benchmarks}
    # Benchmarks -> rows. A row is a pair: a mean and its benchmarks' cells, or a cell and a list with only this cell.
    groups: dict[tuple[str, ...], list[tuple[PrintedRow, list[PublishedCell]]]] = {}
    for mean in publication.means:
        cells = [cell for cell in publication.cells if cell.policy == mean.policy and cell.benchmark in mean.benchmarks]
        groups.setdefault(mean.benchmarks, []).append((mean, cells))
    for cell in publication.cells:
        if cell.benchmark not in benchmarks_of_means:
            groups.setdefault((cell.benchmark,), []).append((cell, [cell]))
    yield from (_build_published_table(names, rows) for names, rows in groups.items())


def _build_published_table(
    names: tuple[str, ...], rows: Sequence[tuple[PrintedRow, Sequence[PublishedCell]]]
) -> RankedTable:
    # Returns a table of the benchmarks in `names`. Uses the counts of a row's cells if no benchmark lacks a cell.
    # Each row is a pair: a mean and its cells, or a cell and a list with only this cell.
    entries = [_printed_entry(row, cells if len(cells) == len(names) else []) for row, cells in rows]
    notes = list(published.list_reasons((part, row.policy) for row, cells in rows for part in (row, *cells)))
    if not any(entry.numbers[SAFETY.key].cell.interval for entry in entries):
        notes.insert(0, "No counts are given, so it is unknown which of these values differ significantly.")
    return RankedTable(
        title="LIBERO, mean of four suites" if len(names) > 1 else names[0],
        scope=", ".join(names),
        rows=rank_entries(entries, {metric.key: _find_better_printed(metric, rows, names) for metric in (SAFETY, SR)}),
        notes=tuple(notes),
    )


def _find_better_printed(
    metric: Metric, rows: Sequence[tuple[PrintedRow, Sequence[PublishedCell]]], names: tuple[str, ...]
) -> list[tuple[str, str]]:
    # Returns the pairs of policies whose printed counts differ significantly (MOVER; Holm). The better one is first.
    # Each row is a pair: a policy's printed numbers, and the cells from which they were computed.
    # `names` are the benchmarks' names. A policy is compared only if there is a cell for each benchmark.
    # The counts of all rates in these cells must also be known.
    rates_of_policy = {
        row.policy: [published.printed_rate(getattr(cell, metric.key), cell.n) for cell in cells]
        for row, cells in rows
        if len(cells) == len(names)
    }
    with_counts = {policy: rates for policy, rates in rates_of_policy.items() if all(rate.n for rate in rates)}

    def measure(policy: str, level: float) -> tuple[float, intervals.Interval]:
        # Returns the mean of the policy's rates, and its interval at the confidence `level`.
        rates = with_counts[policy]
        interval = intervals.mean_rate_interval([rate.count for rate in rates], [rate.n for rate in rates], level)
        assert interval is not None
        return sum(rate.count / rate.n for rate in rates) / len(rates), interval

    def compare_means(first: str, second: str, level: float) -> intervals.Interval:
        # Returns the interval of the difference between two policies' means, at the confidence `level`.
        return intervals.combine_intervals([measure(first, level), measure(second, level)], (1, -1))

    pairs = list(combinations(with_counts, 2))
    # `invert_interval` returns the test that is significant if and only if the interval excludes 0.
    p_values = [invert_interval(partial(compare_means, *pair)).p_value for pair in pairs]
    means = {policy: measure(policy, intervals.CONFIDENCE)[0] for policy in with_counts}
    return [
        (first, second) if means[first] > means[second] else (second, first)
        for (first, second), p_value in zip(pairs, holm_adjust(p_values), strict=True)
        if intervals.is_significant(p_value)
    ]


def _printed_entry(row: PrintedRow, cells: Sequence[PublishedCell]) -> RankingEntry:
    # Returns the entry of a published policy. `row` is the mean of `cells`, or the only cell.
    # If counts are not used, `cells` is empty.
    is_auxiliary = isinstance(row, PublishedCell) and row.auxiliary
    training = row.training if isinstance(row, PublishedMean) else None
    remark = "auxiliary" if is_auxiliary else training
    return RankingEntry(
        policy=row.policy,
        n=str(sum(cell.n for cell in cells)) if cells else NO_VALUE,
        numbers={metric.key: _printed_cell(metric, row, cells) for metric in (SR, SAFETY, SBU, VSI)},
        remarks=(remark,) if remark else (),
        competes=not is_auxiliary,
    )


def _printed_cell(metric: Metric, row: PrintedRow, cells: Sequence[PublishedCell]) -> ExactCell:
    # Returns a published number as a cell of a table, with an interval if the counts behind the number are known.
    # `row` contains the number; `cells` contain the numbers of its suites. If counts are not used, `cells` is empty.
    printed = getattr(row, metric.key)
    if printed is None:
        return ExactCell(Cell.dash())
    exact = Fraction(repr(printed))  # the printed decimal, such as 0.1, not the nearest binary number
    cell = Cell(format_fixed(exact, metric.digits), printed)
    interval = _bound_printed_rates(metric, cells)
    if interval is not None:
        low, high = metric.scale * interval.low, metric.scale * interval.high
        detail = format_interval(interval.low, interval.high, digits=metric.digits, scale=metric.scale)
        cell = replace(cell, detail=detail, interval=(low, high))
    return ExactCell(cell, exact / metric.scale)  # rates are printed in percent


def _bound_printed_rates(metric: Metric, cells: Sequence[PublishedCell]) -> intervals.Interval | None:
    # Returns an interval of the mean of the cells' printed rates. Several counts may give the same printed rate.
    # The low end is computed from the smallest possible counts, and the high end from the largest possible counts.
    # Returns None for VSI, which is not a rate, and if no count gives a printed rate.
    if metric is VSI:
        return None
    possible_counts = [published.matching_counts(getattr(cell, metric.key), cell.n) for cell in cells]
    if not possible_counts or not all(possible_counts):
        return None
    sizes = [cell.n for cell in cells]
    low = intervals.mean_rate_interval([min(counts) for counts in possible_counts], sizes)
    high = intervals.mean_rate_interval([max(counts) for counts in possible_counts], sizes)
    return None if low is None or high is None else intervals.Interval(low.low, high.high)
