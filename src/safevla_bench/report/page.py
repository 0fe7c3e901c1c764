"""The report as one self-contained page: no request, no executable input, the same bytes for the same inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from safevla_bench.explain.trace import rank_by_severity, select_worst
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.baseline import measure_baseline
from safevla_bench.judging.metrics import Summary, aggregate, cells
from safevla_bench.judging.ruleset import LostEpisodes, Provenance, Ruleset
from safevla_bench.judging.scores import Scores, SpecColumn
from safevla_bench.report import curve_charts, render, sections
from safevla_bench.report.analysis import Analysis
from safevla_bench.report.episode_table import ENDINGS, MOST_DRAWN, batch_places, build_episode_table
from safevla_bench.report.headline import build_headline, describe_mixture
from safevla_bench.report.paired_episodes import find_shared_states, paired_indices
from safevla_bench.report.replay3d import Replays, ReplaySection, embed_replays
from safevla_bench.report.sections import Album
from safevla_bench.report.tables import comparison, exposure, notices, sensitivity
from safevla_bench.report.tables.cells import Roster, headline_table, torque_note
from safevla_bench.report.tables.host_means import host_mean_table
from safevla_bench.report.tables.notices import exclusion_table
from safevla_bench.report.tables.series import describe_series, series_table
from safevla_bench.report.tables.table import policy_name
from safevla_bench.report.tables.violations import body_tables
from safevla_bench.text import NO_VALUE, append_unit, display_unit, format_compact, format_fixed
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header

_NOTHING, _EMPTY, _NO_REPLAYS = Analysis(), Album(), Replays()
_NO_DESCRIPTION: Mapping[str, object] = {}
_OPEN = 2
"""Most cells for which the tables of violations are open."""


def render_page(
    scores: Scores,
    batch: Batch | None,
    ruleset: Ruleset,
    *,
    title: str,
    provenance: Provenance | None = None,
    description: Mapping[str, object] = _NO_DESCRIPTION,
    privileged: Collection[str | None] = (),
    analysis: Analysis = _NOTHING,
    album: Album = _EMPTY,
    replays: Replays = _NO_REPLAYS,
    remarks: Sequence[str] = (),
) -> str:
    """Return the report of some scores as one HTML page; nothing is written.

    Args:
        scores: the verdicts.
        batch: the records that they came from, matched by policy and episode id; None leaves the charts out.
        ruleset: what judged them, for formulas, limits and kinds of bodies.
        title: the title of the page.
        provenance: what decided the verdicts, and which episodes were left out.
        description: how the scores came about, shown at the end as it is.
        privileged: the policies that saw simulator state which no real robot has.
        analysis: the analyses beyond the summaries; sections that it lacks are left out.
        album: frames of episodes.
        replays: episodes in three dimensions.
        remarks: what applies to all numbers of the page, each as one sentence.
    """
    summaries, total = cells(scores), aggregate(scores)
    headline = build_headline(summaries, total, analysis.comparison, mixture=describe_mixture(scores))
    if changes := ruleset.describe_changes(scores.benchmark):
        headline = replace(headline, answer=f"Judged with {changes}. {headline.answer}")
    in_3d = embed_replays(scores, batch, ruleset, replays)
    return (
        render.template_environment()
        .get_template("page.html")
        .render(
            title=title,
            **_page_texts(in_3d),
            headline=headline,
            ablated=provenance is not None and provenance.applicability == "off",
            remarks=remarks,
            **_number_sections(scores, summaries, total, provenance, privileged),
            album=album,
            in_3d=in_3d,
            **_episode_sections(scores, batch, ruleset, analysis),
            **_analysis_sections(analysis, summaries, privileged),
            bodies=body_tables(analysis.bodies, scores, summaries) if analysis.bodies else (),
            limits=_limit_rows(scores.specs),
            dash=NO_VALUE,
            number=lambda value: format_fixed(value, 2) if value == value else NO_VALUE,
            provenance=list(_flatten(description)),
        )
    )


def _page_texts(in_3d: ReplaySection) -> dict[str, object]:
    style, script = render.page_style(), render.page_script()
    return {
        "policy": render.content_security_policy(style, script, *in_3d.scripts),
        "style": Markup(style),
        "script": Markup(script),
        "player_scripts": [Markup(text) for text in in_3d.scripts],
    }


def _episode_sections(scores: Scores, batch: Batch | None, ruleset: Ruleset, analysis: Analysis) -> dict[str, object]:
    """Return the template values of the worst episodes, the table of all, and policies on the same initial state."""
    worst = list(sections.worst_episodes(scores, batch, ruleset))
    body_violations = analysis.bodies.violations if analysis.bodies else None
    table = build_episode_table(scores, batch, ruleset, analysis.phase, body_violations)
    return {
        "cases": worst,
        "case_of": defaultdict(int, {case.number: k for k, case in enumerate(worst, 1)}),
        "register": table,
        "endings": ENDINGS,
        "meetings": find_shared_states(scores, batch, ruleset, table.entries, batch_places(scores, batch)),
    }


def _number_sections(
    scores: Scores,
    summaries: Sequence[Summary],
    total: Summary,
    provenance: Provenance | None,
    privileged: Collection[str | None],
) -> dict[str, object]:
    """Return the template values of outcomes, violations, the no-op baseline, and what was not scored."""
    marked = frozenset(name for name in privileged if name is not None)
    damage = (provenance.lost if provenance else None) or LostEpisodes()
    outcomes = [sections.draw_outcome(cell, cell.policy in marked) for cell in summaries]
    noop_baseline = measure_baseline(scores)
    return {
        "total": total,
        "any_unsafe": total.rates["safety"].count < total.rates["safety"].n,
        "warnings": notices.baseline_warnings(noop_baseline),
        "floor": notices.baseline_table(noop_baseline),
        "standin": provenance_marks.warn_of_scores(scores),
        "lost": str(damage),
        "privileged": sorted(marked & {policy_name(cell) for cell in summaries}),
        "outcomes": outcomes,
        "any_unjudged": any(share.kind == "nv" for outcome in outcomes for share in outcome.shares),
        "main": headline_table(summaries, total, privileged=marked),
        "violations": [sections.summarize_violations(cell) for cell in summaries if cell.n or cell.judged],
        "torque_note": torque_note(summaries),
        "folded": len(summaries) > _OPEN,
        "unscored": exclusion_table(summaries, scores.absent, provenance.skipped if provenance else (), damage),
    }


def _analysis_sections(
    analysis: Analysis, summaries: Sequence[Summary], privileged: Collection[str | None]
) -> dict[str, object]:
    """Return the template values of exposure, comparison and sensitivity, and the analysis itself.

    What the analysis lacks is None or empty. `privileged` policies are marked in the means of hosts alone.
    """
    compared, ablated, ordered = analysis.comparison, analysis.ablation, analysis.series
    policies = list(dict.fromkeys(policy_name(cell) for cell in summaries))
    return {
        "analysis": analysis,
        "exposures": exposure.exposure_tables(analysis.exposures, analysis.force_threshold_n)
        if analysis.exposures
        else (),
        "standings": comparison.standing_table(compared) if compared else None,
        "differences": comparison.difference_table(compared) if compared else None,
        "bars": curve_charts.draw_bars(compared) if compared else [],
        "course": curve_charts.draw_series_charts(ordered) if ordered else {},
        "course_table": series_table(ordered) if ordered else None,
        "course_told": describe_series(ordered) if ordered else [],
        "course_series": [(curve_charts.series_style(k), name) for k, name in enumerate(ordered.series)]
        if ordered and len(ordered.series) > 1
        else [],
        "ablation": sensitivity.variant_table(ablated) if ablated else None,
        "host_means": host_mean_table(analysis.means, ablated, Roster(privileged=privileged))
        if ablated and analysis.means
        else None,
        "panels": curve_charts.draw_sweep_charts(analysis.sweeps, policies),
        "series": [(curve_charts.series_style(k), name) for k, name in enumerate(policies)],
        "banded": len(policies) <= curve_charts.MOST_BANDS,
    }


def drawn_episodes(scores: Scores, headers: Sequence[Header]) -> list[int]:
    """Return the indices of the episodes whose records the page draws, unordered and maybe repeated.

    `headers` are those of all episodes of `scores`, in their order. Of the episodes that are not drawn the page needs
    only headers and verdicts.
    """
    return [*select_worst(scores), *rank_by_severity(scores)[:MOST_DRAWN], *paired_indices(scores, headers)]


# Limits and provenance


def _limit_rows(specs: Sequence[SpecColumn]) -> list[tuple[str, str, str]]:
    return [(spec.spec_id, *_limit_texts(spec)) for spec in specs if spec.is_scored]


def _limit_texts(spec: SpecColumn) -> tuple[str, str]:
    if spec.binary:
        return "none at all", "any"
    severe = NO_VALUE if spec.severe is None else _format_quantity(spec, spec.severe)
    return _format_quantity(spec, spec.threshold), severe


def _format_quantity(spec: SpecColumn, value: float) -> str:
    unit, scale = display_unit(spec.unit, spec.threshold)
    return append_unit(format_compact(value * scale), unit)


def _flatten(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for k, inner in enumerate(value):
            yield from _flatten(inner, f"{name}.{k}")
    else:
        yield name, _format_value(value)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return _join_texts(str(item) for item in value)
    return NO_VALUE if value is None or value == "" else str(value)


def _join_texts(texts: Iterable[str]) -> str:
    return ", ".join(" ".join(text.split()) for text in texts) or NO_VALUE
