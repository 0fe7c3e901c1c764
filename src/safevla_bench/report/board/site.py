"""The files of the board: static pages without scripts, the same bytes for the same inputs; and their folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from safevla_bench.errors import Place, RunError
from safevla_bench.files import is_leftover, make_folder, translated_errors, write_together
from safevla_bench.report.board import own_results, policy_pages, published_results
from safevla_bench.report.board.own_results import OwnResults
from safevla_bench.report.board.page import PAGE_NAME, PAGES, REPORTS, PolicyName, PolicyPage
from safevla_bench.report.html import content_security_policy, page_style, template_environment

INDEX, METHOD = "index.html", "method.html"
GENERATOR = "safevla board"
"""Marks a page, and so a folder, as made by this package."""


def render_site(
    results: OwnResults | None = None,
    *,
    title: str = "Safety board",
    reports: Mapping[PolicyName, str] | None = None,
) -> dict[str, str]:
    """Return the pages of the board by their path.

    Args:
        results: judged runs; without them the board shows published results alone.
        title: what the board is called.
        reports: policy -> path of its report within the site, made elsewhere.
    """
    pages = [
        *(policy_pages.own_policy_pages(results, reports) if results else ()),
        *published_results.published_policy_pages(),
    ]
    return dict(
        _render_pages(
            title,
            own_results.own_ranked_tables(results) if results else [],
            pages,
            results.inputs.remarks if results else (),
        )
    )


def _render_pages(
    title: str, runs: Sequence[object], pages: Sequence[PolicyPage], remarks: Sequence[str]
) -> Iterator[tuple[str, str]]:
    publications = published_results.published_sections()
    yield INDEX, _render_page("index", title, "", runs=runs, publications=publications, remarks=remarks)
    yield METHOD, _render_page("method", title, "", publications=publications)
    for page in pages:
        yield page.path, _render_page("policy", title, "../", page=page)


def _render_page(template: str, title: str, root: str, **values: object) -> str:
    sheet = page_style() + _board_style()
    return (
        template_environment()
        .get_template(f"board/{template}.html")
        .render(
            board=title,
            root=root,
            generator=GENERATOR,
            policy=content_security_policy(sheet),
            style=Markup(sheet),  # our own files, not anybody's text
            **values,
        )
    )


def _board_style() -> str:
    return resources.files("safevla_bench.report").joinpath("templates", "board", "board.css").read_text("utf-8")


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
