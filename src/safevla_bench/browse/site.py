"""The answers to a browser's requests: the index, files of runs, reports made where there is none, comparisons.

Only files of the runs that the index lists are sent, and only what lies within them. A page that this version did not
make is sent without leave to run a script.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from safevla_bench import compare, evaluation, runs
from safevla_bench.browse import pages
from safevla_bench.browse.pages import Choice
from safevla_bench.browse.run_list import find_runs, list_runs
from safevla_bench.errors import SafevlaError
from safevla_bench.report.render import content_security_policy, page_script, page_style, player_scripts
from safevla_bench.report.tables import Table

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
        self.folder = folder
        self._reports: dict[str, bytes] = {}
        self._judging = threading.Lock()
        find_runs(folder)

    @property
    def start(self) -> str:
        """Return the address to open: the report of the only run, else the index."""
        folders = find_runs(self.folder)
        return pages.run_address(next(iter(folders)), runs.REPORT) if len(folders) == 1 else pages.INDEX

    def reply(self, target: str) -> Reply:
        """Return the answer to the target of a GET request, such as `/compare?a=one&b=two`."""
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        try:
            if parts.path == pages.INDEX:
                return self._index(query)
            if parts.path == pages.COMPARE:
                return self._comparison(query)
            run, slash, file = parts.path.removeprefix(pages.RUN).partition("/")
            if parts.path.startswith(pages.RUN) and slash:
                return self._file(unquote(run), unquote(file))
        except SafevlaError as error:
            return _page(pages.message_page("That did not work", str(error)), HTTPStatus.CONFLICT)
        return _not_found()

    def _index(self, query: Mapping[str, str]) -> Reply:
        rows = list_runs(find_runs(self.folder))
        chosen = Choice(query["with"], query.get("policy")) if "with" in query else None
        if chosen is not None and chosen not in [Choice(row.run, row.policy) for row in rows]:
            return _not_found()
        return _page(pages.index_page(rows, self.folder.resolve().name, runs.REPORT, chosen))

    def _comparison(self, query: Mapping[str, str]) -> Reply:
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
            other = pages.compare_address(first, second, unpaired=True)
            links = [] if unpaired else [("Compare them as independent samples", other)]
            return _page(pages.message_page("These were not compared", str(error), links), HTTPStatus.CONFLICT)
        return _page(pages.comparison_page(first, second, tables, command))

    def _file(self, run: str, file: str) -> Reply:
        path = find_runs(self.folder).get(run)
        if path is None:
            return _not_found()
        own = _find_file(path, file)
        if own is not None:
            content = own.read_bytes()
            kind = _TYPES[own.suffix]
            return Reply(
                HTTPStatus.OK, content, kind, _report_policy(content) if kind == HTML else "default-src 'none'"
            )
        if file != runs.REPORT:
            return _not_found()
        content = self._make_report(run, path)
        return Reply(HTTPStatus.OK, content, HTML, _report_policy(content))

    def _make_report(self, run: str, path: Path) -> bytes:
        """Return the report of a run that has none, judged as `safevla score` would judge it."""
        with self._judging:
            if run not in self._reports:
                judged = evaluation.judge([path], evaluation.find_rules([path]))
                self._reports[run] = evaluation.render_report(judged).encode()
            return self._reports[run]


def _compare(paths: list[Path], names: tuple[str, ...], *, paired: bool) -> list[Table]:
    rules = evaluation.find_rules(paths)
    entrants = evaluation.load_policy_results(paths, rules, policies=names)
    report = compare.compare_policies(entrants, compare.ComparisonOptions(), paired=paired)
    return evaluation.comparison_tables(report, entrants, paths, rules)


def _find_file(run: Path, file: str) -> Path | None:
    """Return a file of a run that may be sent; None where it is no plain file, or lies elsewhere."""
    parts = file.split("/")
    if not run.is_dir() or "\0" in file or any(part in ("", ".", "..") or part[:1] == "." for part in parts):
        return None
    path = run.joinpath(*parts)
    inside = path.resolve().is_relative_to(run.resolve())
    return path if inside and path.is_file() and path.suffix in _TYPES else None


def _report_policy(content: bytes) -> str:
    """Return the policy of a page of a run: the report's own where this version made it, else no script at all."""
    head = content.replace(b"&#39;", b"'")[:4096]
    plain = content_security_policy(page_style(), page_script())
    with_player = content_security_policy(page_style(), page_script(), *player_scripts())
    return next((own for own in (plain, with_player) if f'content="{own}"'.encode() in head), _NO_SCRIPT)


def _page(text: str, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    return Reply(status, text.encode(), HTML, pages.page_policy())


def _not_found() -> Reply:
    message = "There is no such page. Runs may have been moved since the index was made."
    return _page(pages.message_page("Not found", message), HTTPStatus.NOT_FOUND)
