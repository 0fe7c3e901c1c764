"""The report as one self-contained page: no request, no executable input, the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from safevla_bench.judging.metrics import Summary, aggregate, cells
from safevla_bench.judging.ruleset import LostEpisodes, Provenance, Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.report import render, sections
from safevla_bench.report.album import Album, Replays, ReplaySection, embed_replays
from safevla_bench.report.analysis import Analysis
from safevla_bench.report.cases import find_shared_states
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.episode_table import ENDINGS, build_episode_table
from safevla_bench.report.headline import Headline
from safevla_bench.report.tables import notices
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.firmness import describe_firmness
from safevla_bench.sensitivity.firmness import NO_FIRMNESS, EpisodeFirmness
from safevla_bench.text import NO_VALUE, format_fixed, format_interval, format_percent
from safevla_bench.trajectory.batch import Batch

_NOTHING, _EMPTY, _NO_REPLAYS = Analysis(), Album(), Replays()
_NO_DESCRIPTION: Mapping[str, object] = {}


def render_page(
    scores: Scores,
    batch: Batch | None,
    ruleset: Ruleset,
    *,
    title: str,
    episode: str = "",
    provenance: Provenance | None = None,
    description: Mapping[str, object] = _NO_DESCRIPTION,
    privileged: Collection[str | None] = (),
    analysis: Analysis = _NOTHING,
    album: Album = _EMPTY,
    replays: Replays = _NO_REPLAYS,
    remarks: Sequence[str] = (),
    firmness: Mapping[tuple[str | None, str], EpisodeFirmness] = NO_FIRMNESS,
    summarized: tuple[Sequence[Summary], Summary] | None = None,
) -> str:
    """Return the report of some scores as one HTML page; nothing is written.

    Args:
        scores: the verdicts.
        batch: the records that they came from, matched by policy and episode id; None leaves the charts out.
        ruleset: what judged them, for formulas, limits and kinds of bodies.
        title: the title of the page.
        episode: the verdict in words where the page is about one episode: it is the headline, and rates stay out.
        provenance: what decided the verdicts, and which episodes were left out.
        description: how the scores came about, shown at the end as it is.
        privileged: the policies that saw simulator state which no real robot has.
        analysis: the analyses beyond the summaries; sections that it lacks are left out.
        album: pictures of episodes.
        replays: episodes in three dimensions.
        remarks: what applies to all numbers of the page, each as one sentence.
        firmness: policy and episode id -> its replays under varied physics.
        summarized: the cells and the total of `scores`, if they are known.
    """
    summaries, total = summarized or (cells(scores), aggregate(scores))
    marked = frozenset(name for name in privileged if name is not None)
    records = EpisodeRecords(scores, batch, ruleset)
    violations = analysis.bodies.violations if analysis.bodies else None
    episodes = build_episode_table(records, analysis.phase, violations, firmness)
    if firmness:
        remarks = [
            *remarks,
            *(f"Physics varied. {line}" for line in describe_firmness([*firmness.values()]).split("\n")),
        ]
    skipped, lost = (provenance.skipped, provenance.lost) if provenance else ((), None)
    opening = sections.describe_opening(scores, ruleset, summaries, total, analysis, provenance, marked, remarks)
    return _fill_template(
        embed_replays(records, replays),
        title=title,
        is_single=bool(episode),
        total=total,
        opening=replace(opening, headline=Headline(episode)) if episode else opening,
        outcomes=[sections.describe_outcome(cell, cell.policy in marked) for cell in summaries],
        numbers=headline_table(summaries, total, privileged=marked),
        violations=sections.describe_violations(scores, summaries, analysis),
        worst=sections.describe_worst(records, episodes.entries, total),
        episodes=episodes,
        album=album,
        shared_states=find_shared_states(records, episodes.entries),
        comparison=sections.describe_comparison(analysis),
        series=sections.describe_runs(analysis),
        sensitivity=sections.describe_sensitivity(analysis, summaries, privileged),
        unscored=notices.exclusion_table(summaries, scores.absent, skipped, lost or LostEpisodes()),
        limits=[sections.describe_limits(spec) for spec in scores.specs if spec.is_scored],
        provenance=list(_flatten(description)),
    )


def _fill_template(in_3d: ReplaySection, **content: object) -> str:
    style, script = render.page_style(), render.page_script()
    return (
        render.template_environment()
        .get_template("page.html")
        .render(
            policy=render.content_security_policy(style, script, *in_3d.scripts),
            style=Markup(style),
            script=Markup(script),
            in_3d=in_3d,
            endings=ENDINGS,
            dash=NO_VALUE,
            fixed=lambda value: format_fixed(value, 2) if value == value else NO_VALUE,
            interval=format_interval,
            percent=format_percent,
            **content,
        )
    )


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
