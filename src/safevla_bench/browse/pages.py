"""The pages around the reports: the index of runs, the comparison of two, and messages. Strings in, strings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from markupsafe import Markup

from safevla_bench.browse.run_list import RunRow
from safevla_bench.report.render import (
    content_security_policy,
    page_style,
    read_template,
    template_environment,
)
from safevla_bench.report.tables import UNNAMED, Cell, Table
from safevla_bench.report.tables.suites import SAFETY, SR, VSI
from safevla_bench.report.tables.table import count_cell
from safevla_bench.text.numbers import NO_VALUE

INDEX, RUN, COMPARE = "/", "/run/", "/compare"
_METRICS = (SR, SAFETY, VSI)
HEADS = ("Run", "Policy", "Suite", "n", *(metric.name for metric in _METRICS), "When", "Simulated by", "Judged by")


@dataclass(frozen=True, slots=True)
class Choice:
    """One side of a comparison: a policy of a run."""

    run: str
    policy: str | None

    @property
    def label(self) -> str:
        """Return how the page calls it."""
        return f"{self.policy or UNNAMED} of {self.run}"


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of the index: its cells, the address of its report, and the one that compares it, if it can be."""

    cells: tuple[Cell, ...]
    report: str
    compare: str
    is_chosen: bool


def run_address(run: str, file: str) -> str:
    """Return the address of a file of a run."""
    return f"{RUN}{quote(run, safe='')}/{quote(file)}"


def compare_address(first: Choice, second: Choice, *, unpaired: bool = False) -> str:
    """Return the address of the comparison of two policies."""
    named = [("a", first.run), ("ap", first.policy), ("b", second.run), ("bp", second.policy)]
    query = [(key, value) for key, value in named if value is not None]
    return f"{COMPARE}?{urlencode([*query, *([('unpaired', '1')] if unpaired else [])])}"


def choose_address(choice: Choice) -> str:
    """Return the address of the index on which the other side is chosen."""
    query = [("with", choice.run), *([("policy", choice.policy)] if choice.policy is not None else [])]
    return f"{INDEX}?{urlencode(query)}"


def page_policy() -> str:
    """Return the Content-Security-Policy of these pages."""
    return content_security_policy(_style(), _script())


def index_page(rows: Sequence[RunRow], folder: str, report: str, chosen: Choice | None = None) -> str:
    """Return the index: a row for each run, policy and suite, sortable; once one is chosen, links compare it."""
    lines = [_index_line(row, report, chosen) for row in rows]
    return _render("index", f"Runs in {folder}", heads=HEADS, lines=lines, chosen=chosen, count=len({*_runs(rows)}))


def _runs(rows: Sequence[RunRow]) -> list[str]:
    return [row.run for row in rows]


def _index_line(row: RunRow, report: str, chosen: Choice | None) -> _Line:
    own = Choice(row.run, row.policy)
    compare = choose_address(own) if chosen is None else compare_address(chosen, own)
    if own == chosen or not row.is_comparable:
        compare = ""
    return _Line(_index_cells(row), run_address(row.run, report), compare, own == chosen)


def _index_cells(row: RunRow) -> tuple[Cell, ...]:
    if row.cell is None:
        empty = [Cell(NO_VALUE)] * (len(_METRICS) + 1)
        return (Cell(row.run), Cell(NO_VALUE, detail=row.problem), Cell(NO_VALUE), *empty, *_origin_cells(row))
    numbers = (metric.exact_cell(row.cell).cell for metric in _METRICS)
    suite = Cell(row.cell.suite or NO_VALUE)
    return (Cell(row.run), Cell(row.policy or UNNAMED), suite, count_cell(row.cell.n), *numbers, *_origin_cells(row))


def _origin_cells(row: RunRow) -> tuple[Cell, ...]:
    return tuple(Cell(text or NO_VALUE) for text in (row.started, row.simulated_by, row.judged_by))


def comparison_page(first: Choice, second: Choice, tables: Sequence[Table], command: str) -> str:
    """Return the comparison of two policies, and the command that prints the same numbers."""
    title = f"{first.label} against {second.label}"
    return _render("comparison", title, first=first, second=second, tables=tables, command=command)


def message_page(title: str, message: str, links: Sequence[tuple[str, str]] = ()) -> str:
    """Return a page with a message, such as why two runs are not comparable, and links: text and address."""
    return _render("message", title, message=message, links=links)


def _render(template: str, title: str, **values: object) -> str:
    return (
        template_environment()
        .get_template(f"runs/{template}.html")
        .render(
            title=title,
            policy=page_policy(),
            style=Markup(_style()),  # our own files, not anybody's text
            script=Markup(_script()),
            index=INDEX,
            **values,
        )
    )


def _style() -> str:
    return page_style() + read_template("runs/runs.css")


def _script() -> str:
    return read_template("runs/runs.js")
