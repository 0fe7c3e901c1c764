"""An index of the runs in a folder: a static HTML page with links to the runs' reports."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.files import own_path, write_atomically
from safevla_bench.jobs.evaluation.judgement import find_rules, format_rescore_command
from safevla_bench.judging import judged, rates
from safevla_bench.report import render
from safevla_bench.report.tables.columns import metric_cell
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, text_column
from safevla_bench.sources.runs.folder import REPORT, RUN, SCORES, archive_digest
from safevla_bench.text import NO_VALUE

INDEX = "safevla-runs.html"  # file name of the index, in the folder of runs
MOST_RUNS = 1000  # the index lists at most this number of runs
# Number of folder levels that are searched for runs: 3 levels include RUNS/a/b/run.
_MAX_DEPTH = 3


_METRICS = (rates.SR, rates.SAFETY, rates.VSI)
_COLUMNS = (
    *map(text_column, ("Run", "Policy", "Suite")),
    *map(Column, ("n", *(metric.heading for metric in _METRICS))),
    text_column("Judged by"),
)


def find_runs(folder: Path) -> dict[str, Path]:
    """Return run name -> run folder, sorted by name. If `folder` is a run, return only this run. Otherwise, return
    at most `MOST_RUNS` runs in 3 folder levels; skip links and hidden folders. Raises `RunError` if there is no run.
    """
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}", remedy="Name a run folder, or a folder that holds run folders.")
    if _is_run(folder):
        return {folder.resolve().name: folder}
    # A run's name is its path relative to `folder`.
    run_folders = {path.relative_to(folder).as_posix(): path for path in _walk_runs(folder)}
    if not run_folders:
        remedy = "Make a run with `safevla eval --out DIR`, or judge an archive with `safevla score FILE --out DIR`."
        raise RunError(f"{folder} holds no run", remedy=remedy)
    return dict(sorted(run_folders.items())[:MOST_RUNS])


def _is_run(folder: Path) -> bool:
    # A run folder contains run.json. The folder that `safevla score --out` writes for an archive has only scores.json.
    return (folder / RUN).is_file() or (folder / SCORES).is_file()


def _walk_runs(folder: Path) -> Iterator[Path]:
    # Yield the run folders below `folder`. The caller has checked that `folder` itself is not a run.
    for folder_name, subfolders, _ in os.walk(folder, followlinks=False):
        path = Path(folder_name)
        is_run = _is_run(path)
        if is_run:
            yield path
        # Do not search the subfolders of a run, or subfolders below the deepest level.
        if is_run or len(path.relative_to(folder).parts) >= _MAX_DEPTH:
            subfolders.clear()
        # `os.walk` descends only into the subfolders that remain in this list.
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))


def list_runs(folders: Mapping[str, Path]) -> Table:
    """Return the table of runs: a row per run, policy and suite. A run without results has one row with the reason."""
    rows = [row for name, path in folders.items() for row in _run_rows(name, path)]
    return Table("Runs by policy and suite", _COLUMNS, tuple(rows))


def _run_rows(name: str, path: Path) -> list[tuple[Cell, ...]]:
    # Return the run's table rows. Each row has one cell per column of `_COLUMNS`.
    try:
        scores = judged.ScoresFile.read(path)
        # One summary per policy and suite.
        summaries = scores.list_cells()
        problem = "" if summaries else "no episode"
    except (RunError, ValueError, RecursionError):  # msgspec raises subclasses of ValueError
        problem = f"{SCORES} cannot be read" if (path / SCORES).exists() else "not judged yet"
    if problem:
        # One row: the run's name, a dash that carries the reason, and a plain dash in every other column.
        return [(Cell(name), Cell.dash(problem), *(Cell.dash() for _ in _COLUMNS[2:]))]
    rules = f"{scores.judged_by.library.label} {scores.judged_by.version}"
    # Mention the applicability of specifications only if it is not the default.
    if scores.judged_by.applicability != "on":
        rules += f", applicability {scores.judged_by.applicability}"
    rows = []
    for summary in summaries:
        # A record may have no policy name or no suite name.
        labels = Cell(name), Cell(summary.policy or UNNAMED), Cell(summary.suite or NO_VALUE)
        metric_cells = [metric_cell(metric, summary) for metric in _METRICS]
        rows.append((*labels, Cell.count(summary.n), *metric_cells, Cell(rules)))
    return rows


def find_page(folder: Path) -> Path:
    """Return the page to open: the report of a run folder. For any other folder, write an index of its runs and return
    the index. Raises `RunError` if there is no run or no report, and `FileError` if writing fails.
    """
    runs = find_runs(folder)
    # `find_runs` accepts a run folder, or a folder of runs. A folder of runs gets an index.
    if not _is_run(folder):
        write_atomically(own_path(folder, INDEX), _render_index(folder, runs))
        return folder / INDEX
    if not (folder / REPORT).is_file():
        raise RunError(f"{folder} has no report", remedy=f"Write the report: safevla score {shlex.quote(str(folder))}")
    return folder / REPORT


def _render_index(folder: Path, runs: Mapping[str, Path]) -> str:
    # Return the HTML of the index. `runs` maps the names of runs to folders. Each name is a path relative to `folder`.
    style = render.read_template("page.css") + render.read_template("runs/runs.css")
    script = render.read_template("runs/runs.js")
    # A folder's name may be invalid UTF-8, so quote the bytes of the name for the link.
    report_links = {
        name: f"{quote(os.fsencode(name))}/{REPORT}" for name, path in runs.items() if (path / REPORT).is_file()
    }
    template = render.template_environment().get_template("runs/index.html")
    return template.render(
        title=f"Runs in {folder.resolve().name}",
        listing=list_runs(runs),
        # If a run has no report, its link address is "".
        addresses=dict.fromkeys(runs, "") | report_links,
        # The security policy lets the browser run only this style and script.
        policy=render.content_security_policy(style, script),
        style=Markup(style),  # the CSS comes from this package, so it needs no escaping
        script=Markup(script),
    )


def describe_report(folder: Path) -> Iterator[str]:
    """Yield a remark if a run's records changed after its report, and a remark if non-default rules judged the run."""
    with suppress(SafevlaError):  # if the run cannot be read, the page shows the error
        if _is_run(folder):
            digest, judged_digests = archive_digest(folder), judged.ScoresFile.read(folder).list_archives()
            # A digest is None if the archive cannot be identified.
            can_compare = digest is not None and len(judged_digests) > 0 and None not in judged_digests
            if can_compare and digest not in judged_digests:
                update = format_rescore_command(folder)
                yield f"episodes were recorded or changed after this report was written; to update the report: {update}"
            # Yield a sentence if rules other than the default judged the run.
            yield from judged.describe_maker(folder, find_rules([folder]))
