"""The files of the board and their folder: static pages without scripts, the same bytes for the same inputs.

Each policy of a user's runs has a page: results by suite and specification, and provenance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from safevla_bench.publishing.board.own_results import OwnResults, own_ranked_tables
from safevla_bench.publishing.board.ranking import (
    PAGE_NAME,
    PAGES,
    REPORTS,
    PolicyName,
    published_sections,
    run_page_path,
)
from safevla_bench.publishing.submission import recorded_versions
from safevla_bench.report.headline import build_headline
from safevla_bench.report.page import flatten_values
from safevla_bench.report.render import content_security_policy, read_template, template_environment
from safevla_bench.report.tables.cells import ENDED
from safevla_bench.report.tables.columns import DASH, SUITE, describe_intervals, lost_notes, metric_columns
from safevla_bench.report.tables.table import UNNAMED, Table, tabulate
from safevla_bench.report.tables.violations import violation_table
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
    runs = own_ranked_tables(results) if results else []
    remarks = results.inputs.remarks if results else ()
    publications = published_sections()
    pages = [_own_policy_page(name, results, (reports or {}).get(name)) for name in results.policies] if results else []
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
    with translated_errors(folder):
        occupied = folder.exists() and (not folder.is_dir() or not _is_board(folder))
    if occupied:
        remedy = "Choose another --out; only a board is written over."
        raise RunError("the folder exists and holds no board", remedy=remedy, place=Place(file=str(folder)))


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """Write `files` (path in the folder -> text) together, and remove pages and reports that the new board lacks.

    Raises as `check_folder` does, and `FileError` where the folder cannot be written to.
    """
    check_folder(folder)
    for path in files:
        make_folder((folder / path).parent)
    write_together(folder, files, chief=INDEX)
    with translated_errors(folder):
        for old in [*folder.glob(f"{PAGES}/*.html"), *folder.glob(f"{REPORTS}/*.html")]:
            if PAGE_NAME.fullmatch(old.name) and f"{old.parent.name}/{old.name}" not in files:
                old.unlink()


def _is_board(folder: Path) -> bool:
    index = folder / INDEX
    if not index.exists():
        return {path.name for path in folder.iterdir() if not is_leftover(path)} <= {PAGES, REPORTS, METHOD}
    return index.is_file() and f'<meta name="generator" content="{GENERATOR}">' in index.read_text("utf-8", "replace")


# The page of each policy of a user's runs


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPage:
    """One policy: `path` is the page's place in the site, `report` that of its report if there is one."""

    path: str
    policy: str
    lead: str
    flags: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    report: str | None = None
    provenance: tuple[tuple[str, str], ...] = ()


def _own_policy_page(policy: PolicyName, results: OwnResults, report: str | None) -> PolicyPage:
    assert results.inputs.scores is not None
    scores, audits = select_policy(results.inputs.scores, policy), results.audits.get(policy, ())
    cells = [cell for cell in results.inputs.cells if cell.policy == policy]
    headline = build_headline(cells, aggregate(scores))
    notes = (describe_intervals(cells), *lost_notes(cells, columns=False))
    suites = tabulate("By suite", cells, (SUITE, ENDED, *metric_columns(HEADLINE)), notes=notes, dash=DASH)
    violations = [
        replace(violation_table([cell]), title=f"Violations by specification: {cell.suite or NO_VALUE}")
        for cell in cells
        if cell.n or cell.judged
    ]
    return PolicyPage(
        path=run_page_path(policy),
        policy=policy or UNNAMED,
        lead=" ".join((headline.answer.removeprefix("No: "), *headline.support)),
        flags=(
            *_warning_flags(policy, results.inputs.roster.is_privileged(policy), scores),
            *(f"{mark.badge}. {' '.join(mark.differing)}" for mark in audits if mark.differing),
        ),
        tables=(suites, *violations),
        report=report,
        provenance=tuple(flatten_values(_describe_provenance(policy, results))),
    )


def _warning_flags(policy: PolicyName, privileged: bool, scores: Scores) -> Iterator[str]:
    if policy == NOOP:
        yield "This policy does nothing. What it breaks, the scene breaks by itself; it has no rank."
    if privileged:
        yield "Privileged: it saw simulator state that no real robot has."
    yield from provenance_marks.warn_of_scores(scores)


def _describe_provenance(policy: PolicyName, results: OwnResults) -> dict[str, object]:
    provenance: dict[str, object] = msgspec.to_builtins(results.provenance) if results.provenance else {}
    if results.sources:
        own = [source for source in results.sources if policy in source.policies or not source.policies]
        provenance["sources"] = [source.to_document() for source in own]
    provenance["recorded_with"] = recorded_versions(header for header in results.headers if header.policy == policy)
    if audits := results.audits.get(policy):
        provenance["audit"] = msgspec.to_builtins(audits)
    return provenance


def select_policy(scores: Scores, policy: PolicyName) -> Scores:
    """Return the scores of the episodes of one policy, its absent episodes included; None selects episodes without a
    policy.
    """
    selected = scores.select_episodes(np.flatnonzero([name == policy for name in scores.policy]))
    return replace(selected, absent=tuple(absent for absent in scores.absent if absent.policy == policy))
