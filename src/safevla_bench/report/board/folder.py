"""The folder of a board: a new board replaces an older one and never anything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import is_leftover, make_folder, translated_errors, write_together
from safevla_bench.report.board.file_names import PAGE_NAME, PAGES, REPORTS
from safevla_bench.report.board.site import GENERATOR, INDEX, METHOD


def check_folder(folder: Path) -> None:
    """Raise `RunError` if the folder holds something else than a board."""
    place = Place(file=str(folder))
    with translated_errors(folder):
        occupied = folder.exists() and (not folder.is_dir() or not _is_board(folder))
    if occupied:
        remedy = "Choose another --out; only a board is written over."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=place)


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """Write the files, and remove pages of an older board that the new one lacks.

    Raises:
        RunError: the folder holds something else than a board.
        FileError: the folder cannot be written to.
    """
    check_folder(folder)
    for subfolder in (PAGES, REPORTS):
        make_folder(folder / subfolder)
    write_together(folder, files, chief=INDEX)
    with translated_errors(folder):
        for stale in _stale_pages(files, folder):
            stale.unlink()
        if not any((folder / REPORTS).iterdir()):
            (folder / REPORTS).rmdir()


def _is_board(folder: Path) -> bool:
    """Return whether the folder holds a board, or only the rest of one whose first writing was cut off."""
    index = folder / INDEX
    if not index.exists():
        return {path.name for path in folder.iterdir() if not is_leftover(path)} <= {PAGES, REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">' in index.read_text("utf-8", "replace")


def _stale_pages(files: Mapping[str, str], folder: Path) -> list[Path]:
    paths = [path for subfolder in (PAGES, REPORTS) for path in sorted((folder / subfolder).iterdir())]
    return [path for path in paths if PAGE_NAME.fullmatch(path.name) and f"{path.parent.name}/{path.name}" not in files]
