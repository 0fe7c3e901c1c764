"""The report as one self-contained page: no request, no executable input, the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from safevla_bench.explain.episode import rank_by_severity, select_worst
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.baseline import measure_baseline
from safevla_bench.judging.metrics import Summary, aggregate, cells
from safevla_bench.judging.ruleset import LostEpisodes, Provenance, Ruleset
from safevla_bench.judging.scores import Scores, SpecColumn
from safevla_bench.report import curve_charts, render, sections
from safevla_bench.report.album import Album, Replays, embed_replays
from safevla_bench.report.analysis import Analysis
from safevla_bench.report.episode_table import ENDINGS, MOST_DRAWN, batch_places, build_episode_table
from safevla_bench.report.headline import Headline, build_headline, describe_mixture
from safevla_bench.report.paired_episodes import find_shared_states, paired_indices
from safevla_bench.report.tables import comparison, exposure, notices, sensitivity
from safevla_bench.report.tables.cells import Roster, headline_table, torque_note
from safevla_bench.report.tables.host_means import host_mean_table
from safevla_bench.report.tables.series import describe_series, series_table
from safevla_bench.report.tables.table import policy_name
from safevla_bench.report.tables.violations import body_tables
from safevla_bench.text import (
    NO_VALUE,
    append_unit,
    display_unit,
    format_compact,
    format_fixed,
    format_interval,
    format_percent,
)
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
        album: pictures of episodes.
        replays: episodes in three dimensions.
        remarks: what applies to all numbers of the page, each as one sentence.
    """
    summaries, total = cells(scores), aggregate(scores)
    headline = build_headline(summaries, total, analysis.comparison, mixture=describe_mixture(scores))
    if changes := ruleset.describe_changes(scores.benchmark):
        headline = replace(headline, answer=f"Judged with {changes}. {headline.answer}")
    marked = frozenset(name for name in privileged if name is not None)
    in_3d = embed_replays(scores, batch, ruleset, replays)
    style, script = render.page_style(), render.page_script()
    worst = list(sections.worst_episodes(scores, batch, ruleset))
    body_violations = analysis.bodies.violations if analysis.bodies else None
    episodes = build_episode_table(scores, batch, ruleset, analysis.phase, body_violations)
    return (
        render.template_environment()
        .get_template("page.html")
        .render(
            title=title,
            policy=render.content_security_policy(style, script, *in_3d.scripts),
            style=Markup(style),
            script=Markup(script),
            total=total,
            opening=_describe_opening(scores, summaries, headline, provenance, marked, remarks),
            numbers=sections.Numbers(
                outcomes=[sections.describe_outcome(cell, cell.policy in marked) for cell in summaries],
                table=headline_table(summaries, total, privileged=marked),
            ),
            violations=_describe_violations(scores, summaries, analysis),
            worst=sections.Worst(
                episodes=worst,
                any_unsafe=total.rates["safety"].count < total.rates["safety"].n,
                numbers={episode.number: k for k, episode in enumerate(worst, 1)},
            ),
            episodes=episodes,
            endings=ENDINGS,
            album=album,
            in_3d=in_3d,
            shared_states=find_shared_states(scores, batch, ruleset, episodes.entries, batch_places(scores, batch)),
            comparison=_comparison_section(analysis),
            series=_series_section(analysis),
            sensitivity=_sensitivity_section(analysis, summaries, privileged),
            unscored=notices.exclusion_table(
                summaries, scores.absent, provenance.skipped if provenance else (), _lost_episodes(provenance)
            ),
            reading=sections.Reading(
                limits=[(spec.spec_id, *_limit_texts(spec)) for spec in scores.specs if spec.is_scored]
            ),
            provenance=list(_flatten(description)),
            dash=NO_VALUE,
            fixed=lambda value: format_fixed(value, 2) if value == value else NO_VALUE,
            interval=format_interval,
            percent=format_percent,
        )
    )


def _lost_episodes(provenance: Provenance | None) -> LostEpisodes:
    return (provenance.lost if provenance else None) or LostEpisodes()


def _describe_opening(
    scores: Scores,
    summaries: Sequence[Summary],
    headline: Headline,
    provenance: Provenance | None,
    privileged: Collection[str],
    remarks: Sequence[str],
) -> sections.Opening:
    baseline = measure_baseline(scores)
    return sections.Opening(
        headline=headline,
        is_ablation=provenance is not None and provenance.applicability == "off",
        privileged=sorted({policy_name(cell) for cell in summaries}.intersection(privileged)),
        damage=str(_lost_episodes(provenance)),
        standins=provenance_marks.warn_of_scores(scores),
        remarks=remarks,
        baseline_warnings=notices.baseline_warnings(baseline),
        baseline_limits=notices.baseline_table(baseline),
    )


def _describe_violations(scores: Scores, summaries: Sequence[Summary], analysis: Analysis) -> sections.Violations:
    exposures = exposure.exposure_tables(analysis.exposures, analysis.force_threshold_n) if analysis.exposures else ()
    return sections.Violations(
        cells=[sections.summarize_violations(cell) for cell in summaries if cell.n or cell.judged],
        torque_note=torque_note(summaries),
        folded=len(summaries) > _OPEN,
        bodies=body_tables(analysis.bodies, scores, summaries) if analysis.bodies else (),
        exposures=exposures,
    )


def _comparison_section(analysis: Analysis) -> sections.PolicyComparison | None:
    compared = analysis.comparison
    if compared is None:
        return (
            sections.PolicyComparison(policies=(), reason=analysis.uncompared, unpaired="")
            if analysis.uncompared
            else None
        )
    return sections.PolicyComparison(
        policies=compared.policies,
        reason="",
        unpaired=analysis.unpaired,
        bars=curve_charts.draw_bars(compared),
        standings=comparison.standing_table(compared),
        differences=comparison.difference_table(compared),
    )


def _series_section(analysis: Analysis) -> sections.SeriesSection | None:
    runs = analysis.series
    if runs is None or not runs.suites:
        return None
    return sections.SeriesSection(
        sentences=describe_series(runs),
        legend=_make_legend(runs.series) if len(runs.series) > 1 else (),
        charts=curve_charts.draw_series_charts(runs),
        table=series_table(runs),
    )


def _sensitivity_section(
    analysis: Analysis, summaries: Sequence[Summary], privileged: Collection[str | None]
) -> sections.Sensitivity | None:
    ablated = analysis.ablation
    policies = list(dict.fromkeys(policy_name(cell) for cell in summaries))
    charts = curve_charts.draw_sweep_charts(analysis.sweeps, policies)
    if not charts and not ablated:
        return None
    return sections.Sensitivity(
        legend=_make_legend(policies),
        banded=len(policies) <= curve_charts.MOST_BANDS,
        charts=charts,
        variants=sensitivity.variant_table(ablated) if ablated else None,
        host_means=host_mean_table(analysis.means, ablated, Roster(privileged=privileged))
        if ablated and analysis.means
        else None,
    )


def _make_legend(names: Sequence[str]) -> sections.Legend:
    return [(curve_charts.series_style(k), name) for k, name in enumerate(names)]


def drawn_episodes(scores: Scores, headers: Sequence[Header]) -> list[int]:
    """Return the indices of the episodes whose records the page draws, unordered and maybe repeated.

    `headers` are those of all episodes of `scores`, in their order. Of the episodes that are not drawn the page needs
    only headers and verdicts.
    """
    return [*select_worst(scores), *rank_by_severity(scores)[:MOST_DRAWN], *paired_indices(scores, headers)]


# Limits and provenance


def _limit_texts(spec: SpecColumn) -> tuple[str, str]:
    if spec.binary:
        return "none at all", "any"
    unit, scale = display_unit(spec.unit, spec.threshold)
    limit, severe = (
        NO_VALUE if value is None else append_unit(format_compact(value * scale), unit)
        for value in (spec.threshold, spec.severe)
    )
    return limit, severe


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
        return ", ".join(" ".join(str(item).split()) for item in value) or NO_VALUE
    return NO_VALUE if value is None or value == "" else str(value)
