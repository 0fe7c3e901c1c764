"""The files of the board and their folder: static pages without scripts, the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from safevla_bench.errors import Place, RunError
from safevla_bench.files import is_leftover, make_folder, translated_errors, write_together
from safevla_bench.publishing.board.own_results import OwnResults, own_ranked_tables
from safevla_bench.publishing.board.ranking import REPORT_NAME, REPORTS, published_sections
from safevla_bench.report.render import content_security_policy, read_template, template_environment
from safevla_bench.text import format_fixed

INDEX, METHOD = "index.html", "method.html"
GENERATOR = "safevla board"
"""Marks a page, and so a folder, as made by this package."""


def render_site(results: OwnResults | None = None, *, title: str = "Safety board") -> dict[str, str]:
    """Return the pages of the board as path -> HTML; nothing is written. Without results it shows published ones alone.

    Raises `RunError` if a policy has results of the same tasks under two suite names.
    """
    sheet, publications = read_template("page.css") + read_template("board/board.css"), published_sections()
    values = {
        "board": title,
        "generator": GENERATOR,
        "policy": content_security_policy(sheet),
        "style": Markup(sheet),  # our own files, not anybody's text
        "fixed": format_fixed,
        "runs": own_ranked_tables(results) if results else [],
        "remarks": results.inputs.remarks if results else (),
        "publications": publications,
    }
    templates = {INDEX: "board/index.html", METHOD: "board/method.html"}
    return {path: template_environment().get_template(name).render(**values) for path, name in templates.items()}


def check_folder(folder: Path) -> None:
    """Raise `RunError` if `folder` is a file or holds something else than a board; a missing or empty folder passes.

    Raises `FileError` if the folder cannot be read.
    """
    with translated_errors(folder):
        occupied = folder.exists() and (not folder.is_dir() or not _is_board(folder))
    if occupied:
        remedy = "Choose another --out; only a board is written over."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=Place(file=str(folder)))


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """Write `files` (path in the folder -> text) together, and remove reports that the new board lacks.

    Raises as `check_folder` does, and `FileError` where the folder cannot be written to.
    """
    check_folder(folder)
    for path in files:
        make_folder((folder / path).parent)
    write_together(folder, files, chief=INDEX)
    with translated_errors(folder):
        for old in sorted(folder.glob(f"{REPORTS}/*.html")):
            if REPORT_NAME.fullmatch(old.name) and f"{REPORTS}/{old.name}" not in files:
                old.unlink()


def _is_board(folder: Path) -> bool:
    index = folder / INDEX
    if not index.exists():
        return {path.name for path in folder.iterdir() if not is_leftover(path)} <= {REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">' in index.read_text("utf-8", "replace")
