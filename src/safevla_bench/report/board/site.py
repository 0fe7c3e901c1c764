"""All files of the board: the same bytes for the same inputs, nothing fetched, nothing that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from markupsafe import Markup

from safevla_bench.report.board import own_results, policy_pages, published_results
from safevla_bench.report.board.own_results import Measured, Policy
from safevla_bench.report.board.page import PolicyPage
from safevla_bench.report.html import content_security_policy, environment, style

INDEX, METHOD = "index.html", "method.html"
GENERATOR = "safevla board"
"""The mark by which a folder is known to hold a board."""


def site(
    of: Measured | None = None,
    *,
    title: str = "Safety board",
    provenance: Mapping[str, object] | None = None,
    reports: Mapping[Policy, str] | None = None,
) -> dict[str, str]:
    """The pages of the board by their path.

    Args:
        of: judged runs; without them the board shows published results alone.
        title: what the board is called.
        provenance: how the runs came about.
        reports: policy -> path of its report within the site, made elsewhere.
    """
    pages = [*(policy_pages.pages(of, provenance or {}, reports) if of else ()), *published_results.pages()]
    return dict(_rendered(title, own_results.leagues(of) if of else [], pages, of.material.remarks if of else ()))


def _rendered(
    title: str, runs: Sequence[object], pages: Sequence[PolicyPage], remarks: Sequence[str]
) -> Iterator[tuple[str, str]]:
    published = published_results.publications()
    yield INDEX, _page("index", title, "", runs=runs, publications=published, remarks=remarks)
    yield METHOD, _page("method", title, "", publications=published)
    for one in pages:
        yield one.path, _page("policy", title, "../", of=one)


def _page(template: str, title: str, root: str, **values: object) -> str:
    sheet = style() + _own_style()
    return (
        environment()
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


def _own_style() -> str:
    return resources.files("safevla_bench.report").joinpath("templates", "board", "board.css").read_text("utf-8")
