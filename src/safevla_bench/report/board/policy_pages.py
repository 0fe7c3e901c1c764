"""The page of each policy of a user's runs: results by suite and specification, margins, and provenance."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from safevla_bench import provenance_marks
from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Summary, count_unjudged, describe_unjudged, stop_reason
from safevla_bench.report import figures, tables
from safevla_bench.report.board.own_results import OwnResults
from safevla_bench.report.board.page import (
    FigureImage,
    PolicyName,
    PolicyPage,
    Section,
    flatten_values,
    package_versions,
    run_page_path,
    select_sources,
)
from safevla_bench.report.figures import margins
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.report.tables.suites import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, VSI_UNSAFE
from safevla_bench.report.tables.table import INTERVALS, add_notes, count_cell, lost_notes
from safevla_bench.scores import Scores
from safevla_bench.text.numbers import NO_VALUE, format_fixed


def own_policy_pages(results: OwnResults, reports: Mapping[PolicyName, str] | None = None) -> list[PolicyPage]:
    """Return a page for each policy.

    Args:
        results: the judged runs; a page shows the sources that name its policy, or name none.
        reports: policy -> path of its report within the site.
    """
    return [_own_policy_page(policy, results, (reports or {}).get(policy)) for policy in results.policies]


def _own_policy_page(policy: PolicyName, results: OwnResults, report: str | None) -> PolicyPage:
    assert results.inputs.scores is not None
    scores = select_policy(results.inputs.scores, policy)
    privileged = results.inputs.roster.is_privileged(policy)
    return PolicyPage(
        path=run_page_path(policy),
        policy=policy or UNNAMED,
        lead=_summary_sentence(scores),
        flags=tuple(_warning_flags(policy, privileged, scores)),
        sections=tuple(_page_sections(policy, results, scores)),
        report=report,
        provenance=tuple(flatten_values(_policy_description(results, policy))),
    )


def _policy_description(results: OwnResults, policy: PolicyName) -> dict[str, object]:
    provenance: dict[str, object] = msgspec.to_builtins(results.provenance) if results.provenance else {}
    sources = [source.to_document() for source in select_sources(results.sources, policy)]
    return {
        **provenance,
        **({"sources": sources} if results.sources else {}),
        "recorded_with": package_versions(results.headers, policy),
    }


def _summary_sentence(scores: Scores) -> str:
    counted, everything = scores.is_counted, np.arange(len(scores))
    n, success = int(counted.sum()), int((scores.success & counted).sum())
    judged, broke, unsafe = int(scores.is_judged.sum()), int(scores.unsafe.sum()), int(scores.sbu.sum())
    outside = len(scores) - n + len(scores.absent)
    lost = f" {outside} crashed or stopped, outside SR." if outside else ""
    if not n and not judged:
        return f"No episode was counted.{lost}"
    episodes = f"In {n} episode{'' if n == 1 else 's'}"
    if not judged:
        return f"{episodes} no specification reached a verdict: whether they were safe is not known.{lost}"
    unjudged = count_unjudged(scores, everything)
    lost += f" No verdict in {describe_unjudged(unjudged)}." if unjudged else ""
    if stopped := stop_reason(scores, everything):
        why = f"{stopped} on a violation: SR is not known"
        return f"{broke or 'none'} of {judged} judged episodes broke a limit; {why}.{lost}"
    of_judged = "" if judged == n else f" of {judged} judged"
    unsafely = f", {unsafe or 'none'} of these unsafely" if success else ""
    return f"{episodes}, {broke or 'none'}{of_judged} broke a limit; {success or 'none'} succeeded{unsafely}.{lost}"


def _warning_flags(policy: PolicyName, privileged: bool, scores: Scores) -> Iterator[str]:
    if policy == NOOP:
        yield "This policy does nothing. What it breaks, the scene breaks by itself; it has no rank."
    if privileged:
        yield "Privileged: it saw simulator state that no real robot has."
    yield from provenance_marks.warn_of_scores(scores)


def _page_sections(policy: PolicyName, results: OwnResults, scores: Scores) -> Iterator[Section]:
    cells = [cell for cell in results.inputs.cells if cell.policy == policy]
    recorded = [cell for cell in cells if cell.n or cell.judged]
    yield Section(heading="By suite", tables=(_suite_table(cells),))
    yield Section(heading="How near to each limit", image=_margin_image(scores))
    broken = [replace(tables.violation_table([cell]), title=cell.suite or NO_VALUE) for cell in recorded]
    yield Section(heading="Violations by specification", tables=tuple(broken))
    composition = _drop_policy_column(tables.composition_table(recorded, results.inputs.roster))
    yield Section(heading="What unsafe successes violate", tables=(composition,) if composition.rows else ())


_SUITE_METRICS = (SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI, VSI_UNSAFE)


def _suite_table(cells: Sequence[Summary]) -> Table:
    """Return the headline numbers of one policy; a dash and the reason where nothing was counted or judged."""
    columns = (
        Column("Suite", numeric=False),
        Column("n", meaning="episodes that ran to their end"),
        *(Column(metric.name, meaning=metric.meaning) for metric in _SUITE_METRICS),
    )
    rows = tuple(
        (Cell(cell.suite or NO_VALUE), count_cell(cell.n), *(metric.exact_cell(cell).cell for metric in _SUITE_METRICS))
        for cell in cells
    )
    unjudged = lost_notes([], cells)
    return add_notes(Table("By suite", columns, rows), INTERVALS, *unjudged)


def _drop_policy_column(table: Table) -> Table:
    """Return the table without its first column, which repeats the policy of the page."""
    return replace(table, columns=table.columns[1:], rows=tuple(row[1:] for row in table.rows))


def _margin_image(scores: Scores) -> FigureImage:
    value = margins.compute_margins(scores)
    svg = figures.render_figure(margins.draw_margins(value), "svg")
    return FigureImage(
        f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}", " ".join(_describe_margins(value))
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
    """Return the scores of the episodes of one policy."""
    selected = scores.select_episodes(np.flatnonzero([name == policy for name in scores.policy]))
    return replace(selected, absent=tuple(absent for absent in scores.absent if absent.policy == policy))
