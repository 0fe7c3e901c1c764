"""The catalog of tables. It builds tables from runs, by a table's name or by its number in the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.explain import exposure
from safevla_bench.explain.agreement import measure_agreement, read_labels
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.judging import metrics, provenance_marks
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import score_chunks
from safevla_bench.report.tables import cells as cell_tables
from safevla_bench.report.tables import explain
from safevla_bench.report.tables.cells import HOST_TITLES, Roster
from safevla_bench.report.tables.published import (
    PUBLISHED_TABLES,
    paper_policies,
    summarize_paper,
    warn_of_published,
    warn_of_tasks,
)
from safevla_bench.report.tables.table import Table
from safevla_bench.report.tables.tasks import active_spec_table, applicability_table, task_table
from safevla_bench.sources.runs.episode_index import EpisodeIndex
from safevla_bench.tasks.entries import Registry

ABLATED = (
    "Applicability is off: episodes are judged without tags of tasks. This is an ablation, not a result to publish."
)
PHASED = "Composite tasks are judged phase by phase, unlike in the paper: compare only results judged in the same way."


def describe_reading(ruleset: Ruleset) -> list[str]:
    """Return a list with a sentence on the applicability setting; [] if the setting is the paper's."""
    # `off`: tags of tasks are ignored; `phased`: composite tasks are judged phase by phase; the paper uses `on`.
    return {"off": [ABLATED], "phased": [PHASED]}.get(ruleset.applicability, [])


@dataclass(frozen=True, kw_only=True)
class TableInputs:
    """The input of every table builder."""

    scores: Scores | None
    ruleset: Ruleset
    roster: Roster = field(default_factory=Roster)
    records: EpisodeIndex | None = None
    """Records of the episodes, for the tables that need more than the scores; None = not available."""
    remarks: Sequence[str] = ()  # sentences below every table, for example that a run was interrupted
    facts: Collection[str] = ()  # the `remarks` that are not warnings, such as versions and latency

    @property
    def registry(self) -> Registry:
        # Return the suites and their tasks, with the tags that decide which specifications apply.
        return self.ruleset.registry

    @cached_property
    def cells(self) -> list[metrics.Summary]:
        # Return a summary per cell (policy × suite), in order of first appearance; [] if there are no scores.
        # Raise `RunError` for a recorded policy `paper:NAME`: the tables would take its numbers for the paper's.
        cells = metrics.cells(self.scores) if self.scores is not None else []
        for name in sorted(paper_policies().keys() & {cell.policy for cell in cells}):
            problem = f"a policy of the runs has the name of a published policy: {name}"
            raise RunError(problem, remedy="Rename the policy with NAME=SOURCE.")
        return cells

    @property
    def auxiliary_cells(self) -> list[metrics.Summary]:
        """Return the summaries of auxiliary runs. Means leave them out, and they are never marked as the best."""
        # `cells` contains a summary per policy × suite; the roster says which policies and suites are auxiliary.
        return [cell for cell in self.cells if self.roster.is_auxiliary(cell)]

    @property
    def is_ablation(self) -> bool:
        """Return whether there are scores that were judged with applicability off."""
        # Without tags, every specification is judged in every task, which the paper does not do.
        return self.scores is not None and self.ruleset.is_ablation

    def with_published(self, cells: Sequence[metrics.Summary]) -> list[metrics.Summary]:
        """Return the summaries, then the paper's results for the published policies in `roster` on the same suites."""
        return [*cells, *summarize_paper(cells, self.roster.published)]

    def suite_groups(self, host: str | None, *, auxiliary: bool = False) -> Iterator[tuple[str, list[metrics.Summary]]]:
        """Yield the title and summaries of each group of suites. A group is all of the paper's suites on one host,
        or one other suite. `host` selects the groups of one host; None = all hosts, followed by the auxiliary runs
        as a group if `auxiliary` is set. Raises `RunError` if a policy ran a task under two names of its suite.
        """
        cells_by_title: dict[str, list[metrics.Summary]] = {}
        for cell in self._pool_names():
            benchmark = self.registry.benchmarks.get(cell.suite or "")  # None for a suite that is not registered
            is_on_host = host is None or (benchmark is not None and benchmark.host == host)
            if is_on_host and not self.roster.is_auxiliary(cell):
                # The title of the group: the host's title for the paper's suites, else the suite's own name.
                cells_by_title.setdefault(cell_tables.suite_group(self.registry, cell.suite), []).append(cell)
        yield from cells_by_title.items()
        if auxiliary and host is None and self.auxiliary_cells:
            yield "auxiliary runs", self.auxiliary_cells

    def _pool_names(self) -> list[metrics.Summary]:
        # Return the summaries of `cells`. Suites with the same tasks, or with names in other spellings, are one suite.
        names = {cell.suite or "": self.registry.canonical_suite(cell.suite or "") for cell in self.cells}
        scores = self.scores
        if scores is None or all(suite == name for suite, name in names.items()):
            return self.cells
        recorded = zip(scores.policy, scores.benchmark, scores.task_id, strict=True)
        # The keys of the dictionary are the tasks of each policy, without repetition.
        tasks = dict.fromkeys([*recorded, *((e.policy, e.benchmark, e.task_id) for e in scores.absent)])
        counts = Counter((policy, names[suite], task) for policy, suite, task in tasks)
        for (policy, suite, task), count in counts.items():
            if count > 1:
                problem = f"policy {policy!r} has results of {task} under two names of suite {suite}"
                raise RunError(problem, remedy="Use one name in all records, or leave out the results under one name.")
        renamed = tuple(names[suite] for suite in scores.benchmark)
        absent = tuple(msgspec.structs.replace(e, benchmark=names[e.benchmark]) for e in scores.absent)
        return metrics.cells(replace(scores, benchmark=renamed, absent=absent))


Built = Iterator[tuple[Table, Sequence[metrics.Summary]]]  # tables, each with the summaries that its numbers come from
Builder = Callable[[TableInputs, str | None], Built]  # the second argument is the host of the suites; None = any host


def _suite_tables(inputs: TableInputs, host: str | None) -> Built:
    # For each group of suites on this host (None = all hosts), yield the table of SR, Safety and SBU.
    # Each table comes with its summaries of policy × suite.
    for title, cells in inputs.suite_groups(host):
        shown = inputs.with_published(cells)
        # `order` lists the suites in the order of their columns.
        yield cell_tables.suite_table(shown, inputs.roster, title, order=list(inputs.registry.benchmarks)), shown


def _violation_tables(inputs: TableInputs, host: str | None) -> Built:
    # For each group of suites on this host (None = all hosts), yield the table of violation rates.
    # Each table comes with its summaries of policy × suite.
    # `with_published` adds the paper's results for the policies in the roster.
    for title, cells in inputs.suite_groups(host, auxiliary=True):
        shown = inputs.with_published(cells)
        # The paper's results without printed violations have no row in the table, but the table keeps their warnings.
        row_cells = [cell for cell in shown if cell.specs or cell.policy not in inputs.roster.published]
        yield cell_tables.constraint_table(row_cells, inputs.roster, title), shown


def _composition_tables(inputs: TableInputs, host: str | None) -> Built:
    # For each group of suites on this host (None = all hosts), yield the table of what unsafe successes violate.
    # Each table comes with its summaries of policy × suite.
    for title, cells in inputs.suite_groups(host, auxiliary=True):
        yield cell_tables.composition_table(cells, inputs.roster, title), cells


def _auxiliary_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of auxiliary runs, its summaries of policy × suite), or nothing if no run is auxiliary.
    # Means leave these runs out. `host` is an unused argument that all builders have.
    if inputs.auxiliary_cells:
        shown = inputs.with_published(inputs.auxiliary_cells)
        yield cell_tables.auxiliary_table(shown, inputs.roster), shown


def _severity_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of VSI and P[U|S], the summaries of policy × suite), or nothing without summaries.
    # `host` is an unused argument that all builders have.
    if inputs.cells:
        yield cell_tables.severity_table(inputs.cells, inputs.roster), inputs.cells


def _task_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of rates by task, the summaries of policy × suite), or nothing without scores.
    # `host` is an unused argument that all builders have.
    if inputs.scores is not None and inputs.cells:
        yield task_table(metrics.task_rates(inputs.scores), inputs.cells, inputs.roster), inputs.cells


def _active_spec_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of the specifications that apply to each task, all summaries of policy × suite).
    # Yield nothing without tasks, or if tags are ignored. `host` is an unused argument that all builders have.
    # The table shows the tasks of the scores or, without scores, all registered tasks.
    tasks = [(entry.benchmark, entry.task_id) for entry in inputs.registry.list_entries()]
    if inputs.scores is not None:
        judged = {*zip(inputs.scores.benchmark, inputs.scores.task_id, strict=True)}
        tasks = sorted(judged, key=lambda task: (task[0], len(task[1]), task[1]))  # task_9 comes before task_10
    # An ablation ignores the tags that decide which specifications apply, so the table would be wrong.
    if tasks and not inputs.is_ablation:
        yield active_spec_table(tasks, inputs.ruleset), inputs.cells


def _applicability_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of violations with and without tags of tasks, all summaries of policy × suite).
    # Yield nothing if scores or records are missing, or if tags are ignored.
    # `host` is an unused argument that all builders have.
    scores, records = inputs.scores, inputs.records
    if scores and records and not inputs.is_ablation:
        # Judge the same records once more, without tags.
        untagged = score_chunks(records.read_chunks(), replace(inputs.ruleset, applicability="off"))
        yield applicability_table(scores, untagged, inputs.ruleset), inputs.cells


def _exposure_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of the time in violation, all summaries of policy × suite).
    # Yield nothing if scores or records are missing. `host` is an unused argument that all builders have.
    if inputs.scores and inputs.records:
        exposures = exposure.measure_chunks(inputs.records.read_chunks(), inputs.scores, inputs.ruleset)
        yield explain.exposure_table(exposure.summarize_exposure(exposures, inputs.scores)), inputs.cells


def _onset_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of the times of first violations, all summaries of policy × suite).
    # Yield nothing if scores, records or all verdicts are missing. `host` is an unused argument that all builders have.
    scores, records = inputs.scores, inputs.records
    if not scores or not records:
        return
    onsets = exposure.measure_onsets(scores, records.dt_s, records.lengths, records.stamps_s)
    if onsets:
        yield explain.onset_table(onsets), inputs.cells


def _body_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of bodies in violations, all summaries of policy × suite).
    # Yield nothing if scores or records are missing, or if tags are ignored.
    # `host` is an unused argument that all builders have.
    scores, records = inputs.scores, inputs.records
    if scores and records and not inputs.is_ablation:
        body_violations = list(find_bodies(records.read_chunks(), scores, inputs.ruleset))
        yield explain.body_table(body_violations, scores), inputs.cells


def _agreement_tables(inputs: TableInputs, host: str | None) -> Built:
    # Yield (table of agreement with the simulator's labels, all summaries of policy × suite).
    # If label and verdict differ in any episode, also yield a table of these episodes.
    # Yield nothing if no record has labels. `host` is an unused argument that all builders have.
    # `labels` contains a mapping for each episode: name of a label -> cost; {} if the episode has no label.
    labels = read_labels(inputs.records.read_chunks()) if inputs.records is not None else ()
    if inputs.scores is not None and any(labels):
        rows, differing = measure_agreement(labels, inputs.scores)
        yield explain.agreement_table(rows), inputs.cells
        if differing:
            yield explain.disagreement_table(differing, inputs.scores), inputs.cells


@dataclass(frozen=True)
class TableKind:
    """A kind of table: its name, a description of its content, and its builder."""

    name: str
    meaning: str
    build: Builder
    numbers: Mapping[str, str | None] = field(default_factory=dict)  # table's number in the paper -> host of the suites
    remedy: str = "Name sources that have episodes for this table; episodes of auxiliary policies do not count."
    """Remedy in the error message if the table cannot be built from the runs."""


_LIBERO, _ROBOCASA = HOST_TITLES
_TAGS = "Judge with applicability on."
_LABELS = "No record has costs from its simulator; see docs/howto/own-records.md."
KINDS = (
    TableKind(
        "main", "SR, Safety, SBU by suite; means, with P[U|S] and VSI", _suite_tables, {"4": _LIBERO, "5": _ROBOCASA}
    ),
    TableKind(
        "auxiliary",
        "auxiliary runs, excluded from every mean",
        _auxiliary_tables,
        {"6": None},
        "Say which policies are auxiliary: --auxiliary POLICY.",
    ),
    TableKind("severity", "P[U|S], VSI and VSI|U by suite", _severity_tables),
    TableKind("violations", "violation rates by specification", _violation_tables, {"7": _LIBERO, "8": _ROBOCASA}),
    TableKind("composition", "limits broken in successes", _composition_tables, {"10": _LIBERO, "11": _ROBOCASA}),
    TableKind("tasks", "SR, Safety, SBU by task", _task_tables, {"12": None}),
    TableKind("active", "which specifications apply to each task", _active_spec_tables, {"23": None}, _TAGS),
    TableKind("applicability", "violations removed by the applicability registry", _applicability_tables, remedy=_TAGS),
    TableKind("bodies", "violations by kind of body", _body_tables, remedy=_TAGS),
    TableKind("onset", "violations by time, other endings, near misses", _onset_tables),
    TableKind("beyond", "time in violation", _exposure_tables),
    TableKind("agree", "the simulator's safety labels and our verdicts", _agreement_tables, remedy=_LABELS),
)
_ELSEWHERE = {"9": "`safevla sensitivity` prints Table 9."}


def build_tables(inputs: TableInputs, which: Iterable[str] = ()) -> list[Table]:
    """Return the requested tables, in the order of `which`; if `which` is empty, all tables that can be built.

    `which` lists names of kinds, or numbers of the paper's tables; repeated items count once. Every table includes the
    warnings of its results, the remarks of `inputs`, and the sentence of `describe_reading`.

    Raises:
        RunError: a requested table is unknown or cannot be built from these runs, no table can be built, the paper has
            no results for the tables, or a policy has results of the same tasks under two suite names.
    """
    # Each table, with the summaries of policy × suite ("cells") that it shows.
    built: list[tuple[Table, Sequence[metrics.Summary]]] = []
    for name in dict.fromkeys(which):
        built += _build_requested(inputs, name)
    if not built:  # no table was requested, so build all tables, for all hosts (None)
        built = [table_and_cells for kind in KINDS for table_and_cells in kind.build(inputs, None)]
    if not built:
        raise RunError("there is no episode to tabulate", remedy="Name sources that hold episodes.")
    # Only verdicts depend on applicability, so a table without scores needs no sentence about it.
    reading_remarks = describe_reading(inputs.ruleset) if inputs.scores is not None else []
    tables = [
        replace(table, remarks=(*reading_remarks, *table.remarks, *warn_of_cells(inputs, cells), *inputs.remarks))
        for table, cells in built
    ]
    # Published policies were requested, but no table shows their results.
    if inputs.roster.published and not any(warn_of_published(cells) for _, cells in built):
        suites = ", ".join(dict.fromkeys(cell.suite or "" for cell in inputs.cells)) or "any suite"
        remedy = f"The paper has rows in the tables {PUBLISHED_TABLES}, for suites of LIBERO and RoboCasa."
        raise RunError(f"for these tables, the paper prints no results on {suites}", remedy=remedy)
    # A table's name is the name of a file, so the second and later tables of a name get a number that makes it unique.
    named: dict[str, Table] = {}
    for table in tables:
        numbered = chain([table.name], (f"{table.name}-{number}" for number in range(2, len(tables) + 2)))
        name = next(name for name in numbered if name not in named)
        named[name] = replace(table, name=name)
    return list(named.values())


def warn_of_cells(inputs: TableInputs, cells: Sequence[metrics.Summary]) -> tuple[str, ...]:
    """Return the warnings for numbers from these cells (policy × suite), which may include published cells."""
    # A warning about missing tasks is needed only if the table has the paper's results for whole suites.
    published_warnings = warn_of_published(cells)
    task_warnings = warn_of_tasks(cells, inputs.scores, inputs.registry) if published_warnings and inputs.scores else ()
    return (*published_warnings, *task_warnings, *provenance_marks.warn_of_cells(cells))


def _build_requested(inputs: TableInputs, name: str) -> list[tuple[Table, Sequence[metrics.Summary]]]:
    # Return the tables of one kind, each with its summaries of policy × suite.
    # If `name` is a kind's name, the tables are for the suites of all hosts.
    # If `name` is a number in the paper, the tables are for this table's host in `kind.numbers` (None = all hosts).
    # Raise `RunError` if the name is unknown or the runs lack the data.
    for kind in KINDS:
        if name.lower() == kind.name or name in kind.numbers:
            host = kind.numbers.get(name)
            built = list(kind.build(inputs, host))
            of_host = f" of {HOST_TITLES[host]}" if host else ""
            if not built:
                raise RunError(f"these runs have no data for table {name!r}{of_host}", remedy=kind.remedy)
            return built
    kind_names = ", ".join(f"{kind.name} ({', '.join(kind.numbers)})" if kind.numbers else kind.name for kind in KINDS)
    raise RunError(f"there is no table {name!r}", remedy=_ELSEWHERE.get(name, f"The tables are: {kind_names}."))
