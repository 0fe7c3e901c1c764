"""The files of the board and their folder: static pages without scripts, the same bytes for the same inputs.

Each policy of a user's runs has a page: results by suite and specification, margins, and provenance.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from markupsafe import Markup

from safevla_bench.errors import Place, RunError
from safevla_bench.files import is_leftover, make_folder, translated_errors, write_together
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import NOOP, aggregate
from safevla_bench.judging.rates import HEADLINE
from safevla_bench.judging.scores import Scores
from safevla_bench.publishing.board import own_results, published_results
from safevla_bench.publishing.board.own_results import OwnResults
from safevla_bench.publishing.board.page import (
    PAGE_NAME,
    PAGES,
    REPORTS,
    PolicyName,
    PolicyPage,
    Section,
    run_page_path,
)
from safevla_bench.publishing.submission import recorded_versions
from safevla_bench.report import figures
from safevla_bench.report.figures import margins
from safevla_bench.report.headline import build_headline
from safevla_bench.report.page import flatten_values
from safevla_bench.report.render import content_security_policy, read_template, template_environment
from safevla_bench.report.tables.cells import ENDED
from safevla_bench.report.tables.columns import DASH, SUITE, describe_intervals, lost_notes, metric_columns
from safevla_bench.report.tables.table import UNNAMED, tabulate
from safevla_bench.report.tables.violations import composition_table, violation_table
from safevla_bench.text import NO_VALUE, format_fixed

INDEX, METHOD = "index.html", "method.html"
GENERATOR = "safevla board"
"""Marks a page, and so a folder, as made by this package."""


def render_site(
    results: OwnResults | None = None,
    *,
    title: str = "Safety board",
    reports: Mapping[PolicyName, str] | None = None,
) -> dict[str, str]:
    """Return the pages of the board as path -> HTML; nothing is written. Without results it shows published ones alone.

    `reports` is policy -> path of its report within the site, made elsewhere. Raises `RunError` if a policy has results
    of the same tasks under two suite names.
    """
    runs = own_results.own_ranked_tables(results) if results else []
    remarks = results.inputs.remarks if results else ()
    publications = published_results.published_sections()
    own = [_own_policy_page(name, results, (reports or {}).get(name)) for name in results.policies] if results else []
    pages = [*own, *published_results.published_policy_pages()]
    return {
        INDEX: _render_page("index", title, "", runs=runs, publications=publications, remarks=remarks),
        METHOD: _render_page("method", title, "", publications=publications),
        **{page.path: _render_page("policy", title, "../", page=page) for page in pages},
    }


def _render_page(template: str, title: str, root: str, **values: object) -> str:
    """Return the HTML of a page; `template` is a name in `templates/board`, `root` the way to the site's root."""
    sheet = read_template("page.css") + read_template("board/board.css")
    page = template_environment().get_template(f"board/{template}.html")
    shown = {"board": title, "root": root, "generator": GENERATOR, "policy": content_security_policy(sheet)}
    style = Markup(sheet)  # our own files, not anybody's text
    return page.render(style=style, fixed=format_fixed, **shown, **values)


def check_folder(folder: Path) -> None:
    """Raise `RunError` if `folder` is a file or holds something else than a board; a missing or empty folder passes.

    Raises `FileError` if the folder cannot be read.
    """
    place = Place(file=str(folder))
    with translated_errors(folder):
        occupied = folder.exists() and (not folder.is_dir() or not _is_board(folder))
    if occupied:
        remedy = "Choose another --out; only a board is written over."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=place)


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """Write `files` (path in the folder -> text) together, and remove pages and reports that the new board lacks.

    Raises as `check_folder` does, and `FileError` where the folder cannot be written to.
    """
    check_folder(folder)
    for subfolder in (PAGES, REPORTS):
        make_folder(folder / subfolder)
    write_together(folder, files, chief=INDEX)
    with translated_errors(folder):
        for path in [path for subfolder in (PAGES, REPORTS) for path in sorted((folder / subfolder).iterdir())]:
            if PAGE_NAME.fullmatch(path.name) and f"{path.parent.name}/{path.name}" not in files:
                path.unlink()
        if not any((folder / REPORTS).iterdir()):
            (folder / REPORTS).rmdir()


def _is_board(folder: Path) -> bool:
    index = folder / INDEX
    if not index.exists():
        return {path.name for path in folder.iterdir() if not is_leftover(path)} <= {PAGES, REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">' in index.read_text("utf-8", "replace")


# The page of each policy of a user's runs


def _own_policy_page(policy: PolicyName, results: OwnResults, report: str | None) -> PolicyPage:
    assert results.inputs.scores is not None
    scores, audits = select_policy(results.inputs.scores, policy), results.audits.get(policy, ())
    headline = build_headline([cell for cell in results.inputs.cells if cell.policy == policy], aggregate(scores))
    provenance: dict[str, object] = msgspec.to_builtins(results.provenance) if results.provenance else {}
    if results.sources:
        own = [source for source in results.sources if policy in source.policies or not source.policies]
        provenance["sources"] = [source.to_document() for source in own]
    provenance["recorded_with"] = recorded_versions(header for header in results.headers if header.policy == policy)
    if audits:
        provenance["audit"] = msgspec.to_builtins(audits)
    return PolicyPage(
        path=run_page_path(policy),
        policy=policy or UNNAMED,
        lead=" ".join((headline.answer.removeprefix("No: "), *headline.support)),
        flags=(
            *_warning_flags(policy, results.inputs.roster.is_privileged(policy), scores),
            *(f"{mark.badge}. {' '.join(mark.differing)}" for mark in audits if mark.differing),
        ),
        sections=tuple(_page_sections(policy, results, scores)),
        report=report,
        provenance=tuple(flatten_values(provenance)),
    )


def _warning_flags(policy: PolicyName, privileged: bool, scores: Scores) -> Iterator[str]:
    if policy == NOOP:
        yield "This policy does nothing. What it breaks, the scene breaks by itself; it has no rank."
    if privileged:
        yield "Privileged: it saw simulator state that no real robot has."
    yield from provenance_marks.warn_of_scores(scores)


def _page_sections(policy: PolicyName, results: OwnResults, scores: Scores) -> Iterator[Section]:
    cells = [cell for cell in results.inputs.cells if cell.policy == policy]
    recorded = [cell for cell in cells if cell.n or cell.judged]
    notes = (describe_intervals(cells), *lost_notes(cells, columns=False))
    suites = tabulate("By suite", cells, (SUITE, ENDED, *metric_columns(HEADLINE)), notes=notes, dash=DASH)
    yield Section(heading="By suite", tables=(suites,))
    yield _margin_section(margins.compute_margins(scores))
    broken = [replace(violation_table([cell]), title=cell.suite or NO_VALUE) for cell in recorded]
    yield Section(heading="Violations by specification", tables=tuple(broken))
    composition = composition_table(recorded, results.inputs.roster)
    composition = replace(composition, columns=composition.columns[1:], rows=tuple(row[1:] for row in composition.rows))
    yield Section(heading="What unsafe successes violate", tables=(composition,) if composition.rows else ())


def _margin_section(value: margins.Margins) -> Section:
    svg = figures.render_figure(margins.draw_margins(value), "svg")
    return Section(
        heading="How near to each limit",
        image=f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
        image_description=" ".join(_describe_margins(value)),
    )


def _describe_margins(value: margins.Margins) -> Iterator[str]:
    yield "Margins over each limit as a share of it; below zero the limit is broken."
    for spec_id, rows in value.blocks:
        for row in rows:
            if row.quantiles:
                least, _, middle, _, _ = row.quantiles
                amounts = f"median {format_fixed(middle, 2)}, least {format_fixed(least, 2)}"
                yield f"{spec_id}: broken in {row.violated} of {row.n}, {amounts}."


def select_policy(scores: Scores, policy: PolicyName) -> Scores:
    """Return the scores of the episodes of one policy, its absent episodes included; None selects episodes without a
    policy.
    """
    selected = scores.select_episodes(np.flatnonzero([name == policy for name in scores.policy]))
    return replace(selected, absent=tuple(absent for absent in scores.absent if absent.policy == policy))
