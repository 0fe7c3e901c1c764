"""Puts a board into a folder, over an older one where it lies there, and never over anything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import write_atomically
from safevla_bench.report.board.naming import OURS, PAGES, REPORTS
from safevla_bench.report.board.site import GENERATOR, INDEX, METHOD


def check(folder: Path) -> None:
    """Refuse a folder that holds something else than a board; raises `RunError`."""
    place = Place(file=str(folder))
    try:
        taken = folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not _is_board(folder)))
    except OSError as error:
        raise _unwritable(error, place) from None
    if taken:
        remedy = "Choose another --out; only a board is written over."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=place)


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write the files, and remove pages of an older board that are no more.

    Raises:
        RunError: the folder holds something else, or cannot be written to.
    """
    check(folder)
    try:
        for part in (PAGES, REPORTS):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for path, content in sorted(files.items(), key=lambda item: item[0] == INDEX):
            write_atomically(folder / path, content)
        for old in _stale(files, folder):
            old.unlink()
        if not any((folder / REPORTS).iterdir()):
            (folder / REPORTS).rmdir()
    except OSError as error:
        raise _unwritable(error, Place(file=str(folder))) from None


def _is_board(folder: Path) -> bool:
    """Whether a board lies there, or the part of one whose writing was cut off: the index comes last."""
    index = folder / INDEX
    if not index.exists():
        return {path.name for path in folder.iterdir()} <= {PAGES, REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">' in index.read_text("utf-8", "replace")


def _stale(files: Mapping[str, str], folder: Path) -> list[Path]:
    found = [path for part in (PAGES, REPORTS) for path in sorted((folder / part).iterdir())]
    return [path for path in found if OURS.fullmatch(path.name) and f"{path.parent.name}/{path.name}" not in files]


def _unwritable(error: OSError, place: Place) -> RunError:
    return RunError(error.strerror or str(error), remedy="Choose an --out that can be written to.", place=place)
