"""Runs in a browser of this machine: an index of the runs of a folder and their reports.

The server listens on 127.0.0.1 alone and answers GET. Only files of the runs that the index lists are sent. A
page that this version did not make is sent without leave to run a script.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec
from markupsafe import Markup

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.files import read_input
from safevla_bench.jobs.evaluation.judgement import find_rules
from safevla_bench.judging import judged, metrics, rates, ruleset
from safevla_bench.report import render
from safevla_bench.report.tables.columns import metric_cell
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, text_column
from safevla_bench.sources.runs.folder import MAX_SCORES_BYTES, REPORT, RUN, SCORES
from safevla_bench.text import NO_VALUE
from safevla_bench.version import __version__

# The runs of a folder

MOST_RUNS = 1000
_DEEPEST = 3
"""Levels of folders below the one that is listed."""


_METRICS = (rates.SR, rates.SAFETY, rates.VSI)
_COLUMNS = (
    *map(text_column, ("Run", "Policy", "Suite")),
    *map(Column, ("n", *(metric.heading for metric in _METRICS))),
    text_column("Judged by"),
)


def find_runs(folder: Path) -> dict[str, Path]:
    """Return run name -> folder, sorted by name, the first `MOST_RUNS` alone; a run folder stands for itself.

    Folders are searched 3 levels deep, without links, hidden folders, and folders inside a run. Raises `RunError` if
    there is no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}", remedy="Name a run folder, or a folder that holds some.")
    if _is_run(folder):
        return {folder.resolve().name: folder}
    folders = {path.relative_to(folder).as_posix(): path for path in _walk_runs(folder)}
    if not folders:
        remedy = "`safevla eval --out DIR` makes one; `safevla score FILE --out DIR` judges an archive into one."
        raise RunError(f"{folder} holds no run", remedy=remedy)
    return dict(sorted(folders.items())[:MOST_RUNS])


def _is_run(folder: Path) -> bool:
    return (folder / RUN).is_file() or (folder / SCORES).is_file()


def _walk_runs(folder: Path) -> Iterator[Path]:
    for place, folders, _ in os.walk(folder, followlinks=False):
        path = Path(place)
        depth = len(path.relative_to(folder).parts)
        is_run = depth > 0 and _is_run(path)
        if is_run:
            yield path
        folders[:] = [] if is_run or depth >= _DEEPEST else sorted(name for name in folders if name[:1] != ".")


class _ScoresFile(msgspec.Struct):
    judged_by: ruleset.Provenance
    cells: list[metrics.Summary] = []


def list_runs(folders: Mapping[str, Path]) -> Table:
    """Return the index of runs, in the order of `folders`: a row for each cell, or a single row with a problem.

    Nothing is judged, and nothing is raised for a run whose files cannot be read.
    """
    rows = [row for name, path in folders.items() for row in _run_rows(name, path)]
    return Table("Runs by policy and suite", _COLUMNS, tuple(rows))


def _run_rows(name: str, path: Path) -> list[tuple[Cell, ...]]:
    try:
        scores = msgspec.json.decode(read_input(path / SCORES, MAX_SCORES_BYTES), type=_ScoresFile)
        problem = "" if scores.cells else "no episode"
    except FileNotFoundError:
        problem = "not judged yet"
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        problem = f"{SCORES} cannot be read"
    if problem:
        return [(Cell(name), Cell.dash(problem), *[Cell.dash()] * (len(_COLUMNS) - 2))]
    rules = f"{scores.judged_by.library.label} {scores.judged_by.version}"
    rules += ", applicability off" if scores.judged_by.applicability == "off" else ""
    return [
        (
            Cell(name),
            Cell(cell.policy or UNNAMED),
            Cell(cell.suite or NO_VALUE),
            Cell.count(cell.n),
            *(metric_cell(metric, cell) for metric in _METRICS),
            Cell(rules),
        )
        for cell in scores.cells
    ]


# Pages

_INDEX, _RUN = "/", "/run/"
_HTML = "text/html; charset=utf-8"
_TYPES: Mapping[str, str] = {
    ".html": _HTML,
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


def run_address(run: str, file: str) -> str:
    """Return the path of a file of a run on this server, escaped: `/run/RUN/FILE`."""
    return f"{_RUN}{quote(run, safe='')}/{quote(file)}"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: status, bytes, their type, and the Content-Security-Policy of the page."""

    status: HTTPStatus
    content: bytes
    content_type: str = _HTML
    policy: str = "default-src 'none'"


def _say(status: HTTPStatus, text: str) -> Reply:
    return Reply(status, f"{text}\n".encode(), "text/plain; charset=utf-8")


_NOT_FOUND = _say(HTTPStatus.NOT_FOUND, "There is no such page. Runs may have moved since the index was made.")


def _render_index(folder: Path) -> Reply:
    folders = find_runs(folder)
    addresses = {name: run_address(name, REPORT) for name in folders}
    style = render.read_template("page.css") + render.read_template("runs/runs.css")
    script = render.read_template("runs/runs.js")
    policy = render.content_security_policy(style, script)
    page = render.template_environment().get_template("runs/index.html")
    content = page.render(
        title=f"Runs in {folder.resolve().name}",
        listing=list_runs(folders),
        addresses=addresses,
        policy=policy,
        style=Markup(style),  # our own files, not anybody's text
        script=Markup(script),
    )
    return Reply(HTTPStatus.OK, content.encode(), _HTML, policy)


class RunSite:
    """The runs below a folder as pages. Runs that are added later are found when the index is asked for."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder; raise `RunError` if there is no run."""
        self.folder = folder
        find_runs(folder)

    @property
    def start(self) -> str:
        """Return the path to open: of the report of the only run, else of the index."""
        folders = find_runs(self.folder)
        return run_address(next(iter(folders)), REPORT) if len(folders) == 1 else _INDEX

    def describe_maker(self) -> list[str]:
        """Return a sentence if there is one run, whose report is served, and it was judged by other rules."""
        paths = list(find_runs(self.folder).values())
        with suppress(SafevlaError):  # a run that cannot be read says so on its page
            return judged.describe_maker(paths[0], find_rules(paths).provenance()) if len(paths) == 1 else []
        return []

    def reply(self, target: str) -> Reply:
        """Return the answer to the target of a GET request, such as `/run/RUN/report.html`.

        A target that leads nowhere is answered with status 404; a `SafevlaError` or `OSError` in words with 409.
        """
        path = urlsplit(target).path
        try:
            if path == _INDEX:
                return _render_index(self.folder)
            run, slash, file = path.removeprefix(_RUN).partition("/")
            if path.startswith(_RUN) and slash:
                return self._file(unquote(run), unquote(file))
        except (SafevlaError, OSError) as error:  # OSError: a file that may not be read, or that went meanwhile
            return _say(HTTPStatus.CONFLICT, str(error))
        return _NOT_FOUND

    def _file(self, run: str, file: str) -> Reply:
        path = find_runs(self.folder).get(run)
        if path is None:
            return _NOT_FOUND
        own = _find_file(path, file)
        if own is None and file == REPORT:
            raise RunError(f"{run} has no report", remedy=f"`safevla score` writes it: safevla score {path}")
        if own is None:
            return _NOT_FOUND
        content, kind = read_input(own, _MOST_BYTES, within=path), _TYPES[own.suffix]
        policy = _report_policy(content) if kind == _HTML else "default-src 'none'"
        return Reply(HTTPStatus.OK, content, kind, policy)


def _find_file(run: Path, file: str) -> Path | None:
    """Return a file of a run that may be sent; None where it is absent, hidden, of another type, or outside the run."""
    parts = file.split("/")
    if "\0" in file or any(part in ("", ".", "..") or part[:1] == "." for part in parts):
        return None
    path = run.joinpath(*parts)
    try:
        is_inside = path.resolve(strict=True).is_relative_to(run.resolve())
    except (OSError, RuntimeError):  # no such file, or too long a name; before Python 3.13 RuntimeError: a circle
        return None
    return path if is_inside and path.is_file() and path.suffix in _TYPES else None


def _report_policy(content: bytes) -> str:
    head = content.replace(b"&#39;", b"'")[:4096]
    parts = [render.read_template(name) for name in ("page.css", "page.js", *render.PLAYER_SCRIPTS)]
    plain, with_player = render.content_security_policy(*parts[:2]), render.content_security_policy(*parts)
    return next((own for own in (plain, with_player) if f'content="{own}"'.encode() in head), _NO_SCRIPT)


# The server

_LOOPBACK = "127.0.0.1"


class RunServer(ThreadingHTTPServer):
    """Serves a `RunSite` on a port of 127.0.0.1; `address` is where it is."""

    daemon_threads = True

    def __init__(self, site: RunSite, port: int = 0) -> None:
        """Bind to a port, 0 = any free one; raise `RunError` if it is taken or not allowed."""
        self.site = site
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            remedy = "Choose another by --port, or leave it out for any free one."
            raise RunError(f"port {port} cannot be used: {error.strerror}", remedy=remedy) from None

    @property
    def address(self) -> str:
        """Return the address without a path, such as `http://127.0.0.1:8642`."""
        return f"http://{_LOOPBACK}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser that goes away in the middle of an answer is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    server_version, sys_version = f"safevla/{__version__}", ""
    timeout = 60

    def do_GET(self) -> None:
        """Send status, headers and page; 403 where `Host` is not this machine alone."""
        port = self.server.server_address[1]
        if self.headers.get_all("Host") in ([f"{_LOOPBACK}:{port}"], [f"localhost:{port}"]):
            reply = self.server.site.reply(self.path)
        else:
            reply = _say(HTTPStatus.FORBIDDEN, "This server is for this machine alone.")
        self.send_response(reply.status)
        headers = {
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.content)),
            "Content-Security-Policy": f"{reply.policy}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: requests are the user's own."""
