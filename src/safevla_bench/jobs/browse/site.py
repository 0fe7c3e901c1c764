"""The answers to a browser's requests: the index, files of runs, reports made where there is none, comparisons.

Only files of the runs that the index lists are sent, and only what lies within them. A page that this version did not
make is sent without leave to run a script.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from markupsafe import Markup

from safevla_bench import archive
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.errors import RecordError, SafevlaError
from safevla_bench.files import read_input
from safevla_bench.jobs.browse.run_list import RunRow, find_runs, list_runs
from safevla_bench.jobs.evaluation.judgement import find_rules, judge, load_policy_results
from safevla_bench.jobs.evaluation.outputs import comparison_tables, render_report
from safevla_bench.judging import judged
from safevla_bench.judging.rates import SAFETY, SR, VSI
from safevla_bench.report.render import (
    content_security_policy,
    page_script,
    page_style,
    player_scripts,
    read_template,
    template_environment,
)
from safevla_bench.report.tables.table import UNNAMED, Cell, Table, count_cell, metric_cell
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.runs.folder import REPORT
from safevla_bench.text import NO_VALUE

INDEX, RUN, COMPARE = "/", "/run/", "/compare"
_METRICS = (SR, SAFETY, VSI)
HEADS = ("Run", "Policy", "Suite", "n", *(metric.heading for metric in _METRICS), "When", "Simulated by", "Judged by")


@dataclass(frozen=True, slots=True)
class Choice:
    """One side of a comparison: a policy of a run."""

    run: str
    policy: str | None

    @property
    def label(self) -> str:
        """Return the choice in words: `POLICY of RUN`."""
        return f"{self.policy or UNNAMED} of {self.run}"


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of the index: its cells, the address of its report, and the one that compares it, if it can be."""

    cells: tuple[Cell, ...]
    report: str
    compare: str
    is_chosen: bool


def run_address(run: str, file: str) -> str:
    """Return the path of a file of a run on this server, escaped: `/run/RUN/FILE`."""
    return f"{RUN}{quote(run, safe='')}/{quote(file)}"


def compare_address(first: Choice, second: Choice, *, unpaired: bool = False) -> str:
    """Return the path and query of the comparison of two policies on this server, escaped."""
    named = [("a", first.run), ("ap", first.policy), ("b", second.run), ("bp", second.policy)]
    query = [(key, value) for key, value in named if value is not None]
    return f"{COMPARE}?{urlencode([*query, *([('unpaired', '1')] if unpaired else [])])}"


def choose_address(choice: Choice) -> str:
    """Return the path and query of the index on which the other side of a comparison with `choice` is chosen."""
    query = [("with", choice.run), *([("policy", choice.policy)] if choice.policy is not None else [])]
    return f"{INDEX}?{urlencode(query)}"


def page_policy() -> str:
    """Return the Content-Security-Policy of the pages made here; a run's report has a policy of its own."""
    return content_security_policy(_style(), _script())


def index_page(rows: Sequence[RunRow], folder: str, report: str, chosen: Choice | None = None) -> str:
    """Return the index as HTML: a row for each run, policy and suite, with links to choose a side of a comparison.

    With `chosen` the links compare the row with that side. `folder` is the name to show, `report` the file of a report.
    """
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
    numbers = (metric_cell(metric, row.cell) for metric in _METRICS)
    suite = Cell(row.cell.suite or NO_VALUE)
    return (Cell(row.run), Cell(row.policy or UNNAMED), suite, count_cell(row.cell.n), *numbers, *_origin_cells(row))


def _origin_cells(row: RunRow) -> tuple[Cell, ...]:
    return tuple(Cell(text or NO_VALUE) for text in (row.started, row.simulated_by, row.judged_by))


def comparison_page(first: Choice, second: Choice, tables: Sequence[Table], command: str) -> str:
    """Return the comparison of two policies as HTML, with the command that prints the same numbers."""
    title = f"{first.label} against {second.label}"
    return _render("comparison", title, first=first, second=second, tables=tables, command=command)


def message_page(title: str, message: str, links: Sequence[tuple[str, str]] = ()) -> str:
    """Return a page with a message, such as why two runs are not comparable, and links: text and address."""
    return _render("message", title, message=message, links=links)


def _render(template: str, title: str, **values: object) -> str:
    """Return the page of a template in `runs/` as HTML, with our own style and script."""
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


HTML = "text/html; charset=utf-8"
_TYPES: Mapping[str, str] = {
    ".html": HTML,
    ".json": "application/json",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".mp4": "video/mp4",
    ".parquet": "application/octet-stream",
}
"""What is sent of a run, by the end of the name."""
_MOST_BYTES = 1 << 28
_NO_SCRIPT = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: status, bytes, their type, and the Content-Security-Policy of the page."""

    status: HTTPStatus
    content: bytes
    content_type: str = HTML
    policy: str = "default-src 'none'"


class RunSite:
    """The runs below a folder as pages. Runs that are added later are found when the index is asked for."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder, or the archive that stands for a run.

        Raises `RunError` where there is no run, and `RecordError` for a file that is no archive and no log, or an
        archive whose first episode is bad.
        """
        self.folder = folder
        self._reports: dict[str, bytes] = {}
        self._judging = threading.Lock()
        find_runs(folder)
        if folder.is_file() and find_log(folder) is None:
            for episodes in archive.read_episodes([folder], {0}):
                if isinstance(episodes, RecordError):
                    raise episodes

    @property
    def start(self) -> str:
        """Return the path to open: of the report of the only run, else of the index."""
        folders = find_runs(self.folder)
        return run_address(next(iter(folders)), REPORT) if len(folders) == 1 else INDEX

    def describe_maker(self) -> list[str]:
        """Return a sentence if there is one run, whose report is served, and it was judged by other rules."""
        paths = list(find_runs(self.folder).values())
        with suppress(SafevlaError):  # a run that cannot be read says so on its page
            return judged.describe_maker(paths[0], find_rules(paths).provenance()) if len(paths) == 1 else []
        return []

    def reply(self, target: str) -> Reply:
        """Return the answer to the target of a GET request, such as `/compare?a=one&b=two`.

        A target that leads nowhere is answered with status 404; a `SafevlaError` or `OSError` becomes a page with 409.
        """
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        try:
            if parts.path == INDEX:
                return self._index(query)
            if parts.path == COMPARE:
                return self._comparison(query)
            run, slash, file = parts.path.removeprefix(RUN).partition("/")
            if parts.path.startswith(RUN) and slash:
                return self._file(unquote(run), unquote(file))
        except (SafevlaError, OSError) as error:  # OSError: a file that may not be read, or that went meanwhile
            return _page(message_page("That did not work", str(error)), HTTPStatus.CONFLICT)
        return _not_found()

    def _index(self, query: Mapping[str, str]) -> Reply:
        rows = list_runs(find_runs(self.folder))
        chosen = Choice(query["with"], query.get("policy")) if "with" in query else None
        if chosen is not None and chosen not in [Choice(row.run, row.policy) for row in rows]:
            return _not_found()
        return _page(index_page(rows, self.folder.resolve().name, REPORT, chosen))

    def _comparison(self, query: Mapping[str, str]) -> Reply:
        """Return the comparison of the sides `a` with `ap` (run, policy) and `b` with `bp` as a page.

        Policies of both names are taken from both runs. `unpaired` in the query takes episodes as independent. 404 for
        an unknown run; 409 where the sides cannot be compared, with a link to the unpaired comparison unless that was
        asked for. One request at a time judges.
        """
        folders = find_runs(self.folder)
        first, second = (Choice(query.get(key, ""), query.get(f"{key}p")) for key in "ab")
        if first.run not in folders or second.run not in folders:
            return _not_found()
        unpaired = "unpaired" in query
        paths = list(dict.fromkeys(folders[choice.run] for choice in (first, second)))
        rows = [row for row in list_runs(folders) if row.run in (first.run, second.run)]
        several = len({(row.run, row.policy) for row in rows}) > 2
        names = tuple(dict.fromkeys(choice.policy for choice in (first, second) if choice.policy)) if several else ()
        words = ["safevla", "compare", *map(str, paths), *(word for name in names for word in ("--policy", name))]
        command = shlex.join([*words, *(["--unpaired"] if unpaired else [])])
        try:
            with self._judging:
                tables = _compare(paths, names, paired=not unpaired)
        except SafevlaError as error:
            other = compare_address(first, second, unpaired=True)
            links = [] if unpaired else [("Compare them as independent samples", other)]
            return _page(message_page("These were not compared", str(error), links), HTTPStatus.CONFLICT)
        return _page(comparison_page(first, second, tables, command))

    def _file(self, run: str, file: str) -> Reply:
        """Return a file of a run; a report that is missing is made now.

        404 for an unknown run, and for any other file that is missing or may not be sent.
        """
        path = find_runs(self.folder).get(run)
        if path is None:
            return _not_found()
        own = _find_file(path, file)
        if own is not None:
            content = read_input(own, _MOST_BYTES, within=path)
            kind = _TYPES[own.suffix]
            return Reply(
                HTTPStatus.OK, content, kind, _report_policy(content) if kind == HTML else "default-src 'none'"
            )
        if file != REPORT:
            return _not_found()
        content = self._make_report(run, path)
        return Reply(HTTPStatus.OK, content, HTML, _report_policy(content))

    def _make_report(self, run: str, path: Path) -> bytes:
        """Return the report of a run that has none, judged as `safevla score` would judge it; nothing is written.

        It is kept in memory for the next request. Raises `SafevlaError` where the run cannot be judged.
        """
        with self._judging:
            if run not in self._reports:
                judgement = judge([path], find_rules([path]))
                self._reports[run] = render_report(judgement).encode()
            return self._reports[run]


def _compare(paths: list[Path], names: tuple[str, ...], *, paired: bool) -> list[Table]:
    """Return the tables that compare the policies in `names` (() = all) of the runs at `paths`.

    Raises `SafevlaError` if the runs cannot be judged or compared.
    """
    rules = find_rules(paths)
    entrants = load_policy_results(paths, rules, policies=names)
    report = compare_policies(entrants, ComparisonOptions(), paired=paired)
    return comparison_tables(report, entrants, paths, rules)


def _find_file(run: Path, file: str) -> Path | None:
    """Return a file of a run that may be sent; None where it is absent, hidden, of another type, or outside the run.

    None too if the run is an archive.
    """
    parts = file.split("/")
    if not run.is_dir() or "\0" in file or any(part in ("", ".", "..") or part[:1] == "." for part in parts):
        return None
    path = run.joinpath(*parts)
    try:
        is_inside = path.resolve(strict=True).is_relative_to(run.resolve())
    except (
        OSError,
        RuntimeError,
    ):  # no such file, or too long a name; before Python 3.13 RuntimeError: links in a circle
        return None
    return path if is_inside and path.is_file() and path.suffix in _TYPES else None


def _report_policy(content: bytes) -> str:
    head = content.replace(b"&#39;", b"'")[:4096]
    plain = content_security_policy(page_style(), page_script())
    with_player = content_security_policy(page_style(), page_script(), *player_scripts())
    return next((own for own in (plain, with_player) if f'content="{own}"'.encode() in head), _NO_SCRIPT)


def _page(text: str, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    return Reply(status, text.encode(), HTML, page_policy())


def _not_found() -> Reply:
    message = "There is no such page. Runs may have been moved since the index was made."
    return _page(message_page("Not found", message), HTTPStatus.NOT_FOUND)
