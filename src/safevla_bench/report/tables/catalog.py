"""Which tables there are, by name and by the paper's numbers, and those of them that some runs allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from safevla_bench import metrics, provenance_marks
from safevla_bench.errors import RunError
from safevla_bench.exposure import CellExposure
from safevla_bench.metrics import Summary
from safevla_bench.report import tables
from safevla_bench.report.tables import Cell, Column, Roster, Table, exposure
from safevla_bench.scores import Scores
from safevla_bench.specs import Library
from safevla_bench.tasks import Registry

ABLATED = "Applicability is off: judged as if tasks had no tags. This is an ablation, not a result to publish."


@dataclass(frozen=True, kw_only=True)
class Material:
    """What tables are made of.

    `untagged` judges the same episodes with applicability off; None where that is not at hand.
    """

    scores: Scores | None
    library: Library
    registry: Registry
    capabilities: Sequence[str] = ()
    roster: Roster = field(default_factory=Roster)
    untagged: Callable[[], Scores] | None = None
    exposed: Callable[[], tuple[list[CellExposure], float | None]] | None = None
    """Measures how long and how hard each cell broke its limits; None where the records are not at hand."""
    remarks: Sequence[str] = ()
    """What must be said with each table, such as that a run was interrupted."""

    @cached_property
    def cells(self) -> list[Summary]:
        return metrics.cells(self.scores) if self.scores is not None else []

    @property
    def ablated(self) -> bool:
        return self.scores is not None and self.scores.provenance.get("applicability") == "off"

    def groups(self, host: str | None) -> Iterator[tuple[str, list[Summary]]]:
        """Title and cells of the suites that belong together: the paper's by host, others each alone."""
        found: dict[str, list[Summary]] = {}
        for cell in self.cells:
            if not self.roster.is_auxiliary(cell) and host in (None, self._host(cell)):
                found.setdefault(self._group(cell), []).append(self._renamed(cell))
        for title, cells in found.items():
            _distinct(cells)
            yield title, cells

    def _renamed(self, cell: Summary) -> Summary:
        """The cell under the first name of its suite, so that libero-long and libero-10 are one column."""
        suite = self.registry.benchmarks.get(cell.suite or "")
        return msgspec.structs.replace(cell, suite=suite.same_tasks_as) if suite and suite.same_tasks_as else cell

    def _host(self, cell: Summary) -> str | None:
        suite = self.registry.benchmarks.get(cell.suite or "")
        return suite.host if suite else None

    def _group(self, cell: Summary) -> str:
        suite = self.registry.benchmarks.get(cell.suite or "")
        return _TITLES.get(suite.host, suite.host) if suite and suite.published else (cell.suite or "")


def _distinct(cells: Sequence[Summary]) -> None:
    """Refuse the same tasks twice: a mean over suites would count them twice."""
    keys = [(cell.policy, cell.suite) for cell in cells]
    for policy, suite in keys:
        if keys.count((policy, suite)) > 1:
            problem = f"policy {policy!r} has results of {suite} under two names, which are the same tasks"
            raise RunError(problem, remedy="Leave one of them out.")


_TITLES = {"libero": "LIBERO", "robocasa": "RoboCasa-365"}
Builder = Callable[[Material, str | None], list[Table]]


def _suites(of: Material, host: str | None) -> list[Table]:
    order = list(of.registry.benchmarks)
    return [_of(cells, tables.suites(cells, of.roster, title, order=order)) for title, cells in of.groups(host)]


def _severity(of: Material, host: str | None) -> list[Table]:
    order = list(of.registry.benchmarks)
    return [_of(cells, tables.severity(cells, of.roster, title, order=order)) for title, cells in of.groups(host)]


def _auxiliary(of: Material, host: str | None) -> list[Table]:
    there = [cell for cell in of.cells if of.roster.is_auxiliary(cell)]
    return [_of(there, tables.auxiliary(there, of.roster))] if there else []


def _violations(of: Material, host: str | None) -> list[Table]:
    found = _with_auxiliary(of, host)
    return [_of(cells, tables.constraints(cells, of.roster, title)) for title, cells in found]


def _composition(of: Material, host: str | None) -> list[Table]:
    found = _with_auxiliary(of, host)
    return [_of(cells, tables.composition(cells, of.roster, title)) for title, cells in found]


def _of(cells: Iterable[Summary], table: Table) -> Table:
    """The table with what must be said of the cells that its numbers are made of."""
    return replace(table, remarks=(*table.remarks, *provenance_marks.of_cells(cells)))


def _with_auxiliary(of: Material, host: str | None) -> Iterator[tuple[str, list[Summary]]]:
    yield from of.groups(host)
    there = [cell for cell in of.cells if of.roster.is_auxiliary(cell)]
    if there and host is None:
        yield "auxiliary runs", there


def _tasks(of: Material, host: str | None) -> list[Table]:
    if of.scores is None or not of.cells:
        return []
    return [_of(of.cells, tables.tasks(metrics.by_task(of.scores), of.cells, of.roster))]


def _active(of: Material, host: str | None) -> list[Table]:
    if of.ablated:
        return []
    if of.scores is None:
        every = [(entry.benchmark, entry.task_id) for entry in of.registry.entries()]
        return [tables.active_sets(every, of.library, of.registry, of.capabilities)]
    those = sorted(set(zip(of.scores.benchmark, of.scores.task_id, strict=True)), key=_by_suite(of.registry))
    found = [tables.active_sets(those, of.library, of.registry, of.capabilities, of.scores)] if those else []
    return [_of(of.cells, table) for table in found]


def _by_suite(registry: Registry) -> Callable[[tuple[str, str]], tuple[int, str, int, str]]:
    order = list(registry.benchmarks)

    def key(task: tuple[str, str]) -> tuple[int, str, int, str]:
        suite, name = task
        return order.index(suite) if suite in order else len(order), suite, len(name), name

    return key


def _applicability(of: Material, host: str | None) -> list[Table]:
    if of.scores is None or of.untagged is None or of.ablated or not len(of.scores):
        return []
    those = set(zip(of.scores.benchmark, of.scores.task_id, strict=True))
    templates = {task: _template(of.registry, task) for task in those}
    return [_of(of.cells, tables.ablation(of.scores, of.untagged(), templates))]


def _beyond(of: Material, host: str | None) -> list[Table]:
    return [_of(of.cells, table) for table in exposure.tables(*of.exposed())] if of.exposed and of.cells else []


def _template(registry: Registry, task: tuple[str, str]) -> str:
    entry = registry.entry(*task)
    return entry.template or " + ".join(entry.components)


@dataclass(frozen=True)
class Kind:
    """A sort of table: what it is called, what it shows, and how it is made."""

    name: str
    meaning: str
    build: Builder
    numbers: Mapping[str, str | None]
    """The paper's numbers, each with the host that it is about."""


KINDS = (
    Kind("main", "SR, Safety, SBU by suite with means; P[U|S], VSI", _suites, {"4": "libero", "5": "robocasa"}),
    Kind("severity", "P[U|S], VSI, VSI|U by suite with means", _severity, {}),
    Kind("auxiliary", "auxiliary runs, outside every mean", _auxiliary, {"6": None}),
    Kind("violations", "violation rates by specification", _violations, {"7": "libero", "8": "robocasa"}),
    Kind("composition", "what unsafe successes violate", _composition, {"10": "libero", "11": "robocasa"}),
    Kind("tasks", "SR, Safety, SBU by task", _tasks, {"12": None}),
    Kind("active", "which specifications apply to each task", _active, {"23": None}),
    Kind("applicability", "violations that the registry removes", _applicability, {}),
    Kind("beyond", "time in violation, impulse, phases of the task", _beyond, {}),
)
_ELSEWHERE = {"9": "Table 9 is `safevla sensitivity`."}


def build(of: Material, which: Iterable[str] = ()) -> list[Table]:
    """The tables that are asked for, in that order; all that the runs allow where none is named.

    Args:
        of: what they are made of.
        which: names of kinds, or the paper's numbers.

    Raises:
        RunError: there is no such table, or these runs do not allow it.
    """
    asked = list(dict.fromkeys(which))
    found = [table for one in asked for table in _asked(of, one)]
    if not asked:
        found = [table for kind in KINDS for table in kind.build(of, None)]
    if not found:
        raise RunError("there is no episode to tabulate", remedy="Name sources that hold episodes.")
    found = [replace(table, remarks=(*table.remarks, *of.remarks)) for table in _told_apart(found)]
    return [_branded(table) for table in found] if of.ablated else found


def _told_apart(found: Iterable[Table]) -> Iterator[Table]:
    """The tables, a number behind a name that an earlier one has: names of suites may differ by a sign alone."""
    seen: Counter[str] = Counter()
    for table in found:
        seen[table.name] += 1
        many = seen[table.name]
        yield replace(table, name=f"{table.name}-{many}") if many > 1 else table


def _branded(table: Table) -> Table:
    """The table with the mark of the ablation in every row, so that it stays in forms without notes."""
    rows = tuple((row[0], Cell("off", emphasis="bad"), *row[1:]) for row in table.rows)
    columns = (table.columns[0], Column("Applicability", numeric=False), *table.columns[1:])
    return replace(table, columns=columns, rows=rows, notes=(ABLATED, *table.notes))


def _asked(of: Material, one: str) -> list[Table]:
    for kind in KINDS:
        if one == kind.name or one in kind.numbers:
            found = kind.build(of, kind.numbers.get(one))
            if not found:
                raise RunError(f"these runs allow no table {one!r}", remedy=_why(of, kind, one))
            return found
    known = ", ".join(f"{kind.name} ({', '.join(kind.numbers)})" if kind.numbers else kind.name for kind in KINDS)
    raise RunError(f"there is no table {one!r}", remedy=_ELSEWHERE.get(one, f"There are: {known}."))


def _why(of: Material, kind: Kind, one: str) -> str:
    suites = ", ".join(dict.fromkeys(cell.suite or "" for cell in of.cells)) or "no episode"
    if kind.name == "auxiliary":
        return "Say which policies are auxiliary: --auxiliary POLICY."
    if kind.name in ("active", "applicability"):
        return "Judge with --applicability on."
    host = _TITLES.get(kind.numbers.get(one) or "", "")
    return f"Table {one} is about {host}; there is {suites}. `--which {kind.name}` takes what there is."
