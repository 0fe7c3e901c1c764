"""The files of the board: static pages without scripts, the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from markupsafe import Markup

from safevla_bench.report.board import own_results, policy_pages, published_results
from safevla_bench.report.board.own_results import OwnResults
from safevla_bench.report.board.page import PolicyPage
from safevla_bench.report.board.provenance import PolicyName
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
