"""Puts a board into a folder, over an older one where it lies there, and never over anything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import begun, make_folder, write_together, writing
from safevla_bench.report.board.file_names import OURS, PAGES, REPORTS
from safevla_bench.report.board.site import GENERATOR, INDEX, METHOD


def check(folder: Path) -> None:
    """Refuse a folder that holds something else than a board; raises `RunError`."""
    place = Place(file=str(folder))
    with writing(folder):
        taken = folder.exists() and (not folder.is_dir() or not _is_board(folder))
    if taken:
        remedy = "Choose another --out; only a board is written over."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=place)


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write the files, and remove pages of an older board that are no more.

    Raises:
        RunError: the folder holds something else.
        FileError: it cannot be written to.
    """
    check(folder)
    for part in (PAGES, REPORTS):
        make_folder(folder / part)
    write_together(folder, files, chief=INDEX)
    with writing(folder):
        for old in _stale(files, folder):
            old.unlink()
        if not any((folder / REPORTS).iterdir()):
            (folder / REPORTS).rmdir()


def _is_board(folder: Path) -> bool:
    """Whether a board lies there, or nothing but what is left of one whose first writing was cut off."""
    index = folder / INDEX
    if not index.exists():
        return {path.name for path in folder.iterdir() if not begun(path)} <= {PAGES, REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">' in index.read_text("utf-8", "replace")


def _stale(files: Mapping[str, str], folder: Path) -> list[Path]:
    found = [path for part in (PAGES, REPORTS) for path in sorted((folder / part).iterdir())]
    return [path for path in found if OURS.fullmatch(path.name) and f"{path.parent.name}/{path.name}" not in files]
