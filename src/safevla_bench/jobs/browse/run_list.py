"""The runs of a folder, and what their score files say: a row for each run, policy and suite.

Nothing is judged here. A run without scores, or whose files cannot be read, has a row that says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from safevla_bench.archive import detect_suffix
from safevla_bench.errors import RunError
from safevla_bench.files import read_input
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.ruleset import NamedDigest
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.runs.folder import MAX_SCORES_BYTES, RUN, SCORES, read_description

MOST_RUNS = 1000
_DEEPEST = 3
"""Levels of folders below the one that is listed."""
"""The largest scores.json that is read."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One policy on one suite of one run; `cell` is None where there are no scores, and `problem` says why.

    `run` is its folder below the one that is listed. `started` is `2026-11-22 15:03`, or empty where it is not known.
    """

    run: str
    policy: str | None = None
    cell: Summary | None = None
    started: str = ""
    simulated_by: str = ""
    judged_by: str = ""
    problem: str = ""
    is_comparable: bool = True
    """False for a folder that holds scores without the episodes that they judge."""


def find_runs(folder: Path) -> dict[str, Path]:
    """Return run name -> folder, sorted by name, the first `MOST_RUNS` alone; a run folder or file stands for itself.

    A name is the path below `folder`. Folders are searched 3 levels deep, without links, hidden folders, and folders
    inside a run.

    Raises:
        RunError: there is no such folder or file, or no run in the folder.
        RecordError: the file is no archive and no log, by its name.
    """
    if not folder.exists():
        raise RunError(f"there is no {folder}", remedy="Name a run folder, or a folder that holds some.")
    if folder.is_file() and find_log(folder) is None:
        detect_suffix(folder)
    if folder.is_file() or _is_run(folder):
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


def list_runs(folders: Mapping[str, Path]) -> list[RunRow]:
    """Return the rows of the runs, in the order of `folders`: one for each cell, or a single row with a problem.

    Nothing is raised for a run whose files cannot be read.
    """
    return [
        replace(row, is_comparable=path.is_file() or (path / RUN).is_file())
        for name, path in folders.items()
        for row in _run_rows(name, path)
    ]


class _JudgedBy(msgspec.Struct):
    version: str = ""
    library: NamedDigest = NamedDigest("", "")
    applicability: str = ""


class _ScoresFile(msgspec.Struct):
    """The part of scores.json that the list shows."""

    cells: list[Summary] = []
    judged_by: _JudgedBy = msgspec.field(default_factory=_JudgedBy)


def _run_rows(name: str, path: Path) -> list[RunRow]:
    """Return a row for each cell of a run's scores.

    A single row with its problem where there are none, or not readable.
    """
    started = _start_time(path)
    try:
        scores = _read_scores(path / SCORES)
    except FileNotFoundError:
        return [RunRow(name, started=started, problem="not judged yet")]
    except NotADirectoryError:
        return [RunRow(name, problem="an archive")]
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return [RunRow(name, started=started, problem=f"{SCORES} cannot be read")]
    if not scores.cells:
        return [RunRow(name, started=started, problem="no episode")]
    judged_by = scores.judged_by
    rules = f"{judged_by.library.label} {judged_by.version}".strip()
    ablated = ", applicability off" if judged_by.applicability == "off" else ""
    return [
        RunRow(
            run=name,
            policy=cell.policy,
            cell=cell,
            started=started,
            simulated_by=", ".join(
                f"{package} {' and '.join(versions)}" for package, versions in cell.simulator.items()
            ),
            judged_by=rules + ablated,
        )
        for cell in scores.cells
    ]


def _read_scores(path: Path) -> _ScoresFile:
    """Return the part of a score file that the list shows.

    Raises `ValueError` if it is malformed, `OSError` if it is absent, too large or cannot be read.
    """
    return msgspec.json.decode(read_input(path, MAX_SCORES_BYTES), type=_ScoresFile)


def _start_time(folder: Path) -> str:
    try:
        volatile = read_description(folder).get("volatile")
        moment = datetime.fromisoformat(str(volatile["started"])) if isinstance(volatile, dict) else None
    except (RunError, KeyError, ValueError):
        return ""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M")
