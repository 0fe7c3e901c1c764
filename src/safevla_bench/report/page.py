"""The report as one self-contained page: no request, no executable input, the same bytes for the same inputs.

Each section is a value, made here and put into `templates/page.html` there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary, aggregate, cells, has_verdict, measure_baseline
from safevla_bench.judging.rates import SAFETY, SR, Rate
from safevla_bench.judging.ruleset import LostEpisodes, Provenance, Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores, SpecColumn
from safevla_bench.report import curve_charts, render
from safevla_bench.report.album import Album, Replays, embed_replays
from safevla_bench.report.analysis import Analysis
from safevla_bench.report.cases import WorstEpisode, draw_worst, find_shared_states
from safevla_bench.report.curve_charts import CurveChart, DifferenceBar
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.episode_table import ENDINGS, EpisodeEntry, build_episode_table
from safevla_bench.report.headline import Headline, build_headline, describe_mixture
from safevla_bench.report.tables import cells as cell_tables
from safevla_bench.report.tables import comparison, explain, notices, sensitivity
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.report.tables.firmness import describe_firmness
from safevla_bench.report.tables.host_means import host_mean_table
from safevla_bench.report.tables.series import describe_series, series_table
from safevla_bench.report.tables.table import Table
from safevla_bench.report.tables.violations import violation_table
from safevla_bench.sensitivity.firmness import NO_FIRMNESS, EpisodeFirmness
from safevla_bench.text import (
    NO_VALUE,
    format_amount,
    format_compact,
    format_fixed,
    format_interval,
    format_percent,
)
from safevla_bench.trajectory.batch import Batch

_NOTHING, _EMPTY, _NO_REPLAYS = Analysis(), Album(), Replays()
_NO_DESCRIPTION: Mapping[str, object] = {}
_OPEN = 2
"""Most cells for which the tables of violations are open."""
Legend = Sequence[tuple[str, str]]
"""CSS classes and name of each policy or series."""


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
    bodies = analysis.bodies.violations if analysis.bodies else None
    episodes = build_episode_table(records, analysis.phase, bodies, firmness)
    if firmness:
        lines = describe_firmness([*firmness.values()]).split("\n")
        remarks = [*remarks, *(f"Physics varied. {line}" for line in lines)]
    skipped, lost = (provenance.skipped, provenance.lost) if provenance else ((), None)
    opening = describe_opening(scores, ruleset, summaries, total, analysis, provenance, marked)
    in_3d = embed_replays(records, replays)
    style, script = render.read_template("page.css"), render.read_template("page.js")
    template = render.template_environment().get_template("page.html")
    return template.render(
        policy=render.content_security_policy(style, script, *in_3d.scripts),
        style=Markup(style),
        script=Markup(script),
        title=title,
        is_single=bool(episode),
        total=total,
        opening=replace(opening, headline=Headline(episode)) if episode else opening,
        remarks=remarks,
        outcomes=[describe_outcome(cell, cell.policy in marked) for cell in summaries],
        numbers=cell_tables.headline_table(summaries, total, privileged=marked),
        violations=describe_violations(scores, summaries, analysis),
        worst=describe_worst(records, episodes.entries, total),
        episodes=episodes,
        endings=ENDINGS,
        album=album,
        in_3d=in_3d,
        shared_states=find_shared_states(records, episodes.entries),
        comparison=describe_comparison(analysis),
        series=describe_runs(analysis),
        sensitivity=describe_sensitivity(analysis, summaries, privileged),
        unscored=notices.exclusion_table(summaries, scores.absent, skipped, lost or LostEpisodes()),
        limits=[describe_limits(spec) for spec in scores.specs if spec.is_scored],
        provenance=list(_flatten(description)),
        dash=NO_VALUE,
        fixed=lambda value: format_fixed(value, 2) if value == value else NO_VALUE,
        interval=format_interval,
        percent=format_percent,
    )


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The answer, and what a reader must know before any number."""

    headline: Headline
    is_ablation: bool
    privileged: Sequence[str]
    damage: str
    standins: Sequence[str]
    baseline_warnings: Sequence[str]
    baseline_limits: Table


def describe_opening(
    scores: Scores,
    ruleset: Ruleset,
    cells: Sequence[Summary],
    total: Summary,
    analysis: Analysis,
    provenance: Provenance | None,
    privileged: Collection[str],
) -> Opening:
    """Return the opening of a page on these scores, summarized in `cells` and in `total`."""
    headline = build_headline(cells, total, analysis.comparison, mixture=describe_mixture(scores))
    if changes := ruleset.describe_changes():
        headline = replace(headline, answer=f"Judged with {changes}. {headline.answer}")
    baseline = measure_baseline(scores)
    return Opening(
        headline=headline,
        is_ablation=provenance is not None and provenance.applicability == "off",
        privileged=sorted({policy_name(cell) for cell in cells}.intersection(privileged)),
        damage=str((provenance and provenance.lost) or ""),
        standins=provenance_marks.warn_of_scores(scores),
        baseline_warnings=notices.baseline_warnings(baseline),
        baseline_limits=notices.baseline_table(baseline),
    )


# Success and safety


@dataclass(frozen=True, slots=True)
class OutcomeShare:
    """One outcome of a cell: its name, its kind, its count, and the count of those before it."""

    name: str
    kind: str
    count: int
    before: int


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """A cell's success and safety, without what was not counted or judged."""

    cell: Summary
    policy: str
    suite: str
    lost: str
    privileged: bool
    """True if the policy saw simulator state."""
    whiskers: tuple[tuple[str, str, Rate], ...]
    """Name and kind of each known rate."""
    shares: tuple[OutcomeShare, ...]


def describe_outcome(cell: Summary, privileged: bool) -> CellOutcome:
    """Return the outcome of a cell."""
    outside = (("crashed", cell.crashed), ("stopped", cell.stopped), ("without a verdict", cell.unjudged))
    whiskers = [("Success", SR.key), *([("Safety", SAFETY.key)] if has_verdict(cell) else [])]
    return CellOutcome(
        cell=cell,
        policy=policy_name(cell),
        suite=cell.suite or NO_VALUE,
        lost=", ".join(f"{count} {name}" for name, count in outside if count),
        privileged=privileged,
        whiskers=tuple((name, kind, cell.rates[kind]) for name, kind in whiskers if cell.rates[kind].ci),
        shares=_outcome_shares(cell) if has_verdict(cell) and not cell.stopped_on_violation and cell.n else (),
    )


def _outcome_shares(cell: Summary) -> tuple[OutcomeShare, ...]:
    succeeded = cell.rates[SR.key].count
    counts = [
        ("succeeded, safe", "ss", cell.success_safe),
        ("succeeded, unsafe", "su", cell.success_unsafe),
        ("failed, safe", "fs", cell.failure_safe),
        ("failed, unsafe", "fu", cell.failure_unsafe),
        (f"succeeded, {NO_VERDICT}", "nv", succeeded - cell.success_safe - cell.success_unsafe),
        (f"failed, {NO_VERDICT}", "nv", cell.n - succeeded - cell.failure_safe - cell.failure_unsafe),
    ]
    shown = counts if any(count for *_, count in counts[4:]) else counts[:4]
    return tuple(
        OutcomeShare(name, kind, count, sum(other for *_, other in counts[:k]))
        for k, (name, kind, count) in enumerate(shown)
    )


# Violations


@dataclass(frozen=True, kw_only=True)
class Violations:
    """The violations of each cell, the bodies behind them, when, how long and how hard; `folded` = closed at first."""

    cells: Sequence[CellViolations]
    torque_note: str
    folded: bool
    bodies: Sequence[Table]
    onset_charts: Sequence[CurveChart]
    onset_legend: Legend
    onsets: Table
    exposures: Sequence[Table]


@dataclass(frozen=True, slots=True)
class CellViolations:
    """A cell's violations in a sentence and a table, and the clauses outside every score."""

    name: str
    words: str
    scored: Table
    others: Table


def summarize_violations(cell: Summary) -> CellViolations:
    """Return a cell's tables of violations, scored and not, and the sentence on its unsafe episodes above them."""
    safety = cell.rates[SAFETY.key]
    top = max(
        (spec for spec in cell.specs if spec.tier == "safe"), key=lambda spec: spec.violations.count, default=None
    )
    most = f", most often {top.spec_id} ({top.violations.count})" if top and top.violations.count else ""
    return CellViolations(
        name=f"{policy_name(cell)}, {cell.suite or NO_VALUE}",
        words=f"{safety.n - safety.count} of {safety.n} unsafe{most}" if has_verdict(cell) else NO_VERDICT,
        scored=violation_table([cell]),
        others=violation_table([cell], scored=False),
    )


def describe_violations(scores: Scores, cells: Sequence[Summary], analysis: Analysis) -> Violations:
    """Return the section of violations of these scores, summarized in `cells`."""
    exposures = explain.exposure_tables(analysis.exposures, analysis.force_threshold_n) if analysis.exposures else ()
    return Violations(
        cells=[summarize_violations(cell) for cell in cells if cell.n or cell.judged],
        torque_note=cell_tables.torque_note(cells),
        folded=len(cells) > _OPEN,
        bodies=explain.body_tables(analysis.bodies, scores, cells) if analysis.bodies else (),
        onset_charts=curve_charts.draw_onsets(analysis.onsets),
        onset_legend=_make_legend(curve_charts.ONSET_ENDS),
        onsets=explain.onset_table(analysis.onsets),
        exposures=exposures,
    )


# The worst episodes


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The worst episodes, drawn large; `numbers` is episode -> its place among them, from 1."""

    episodes: Sequence[WorstEpisode]
    any_unsafe: bool
    numbers: Mapping[int, int]


def describe_worst(records: EpisodeRecords, entries: Sequence[EpisodeEntry], total: Summary) -> Worst:
    """Return the section of the worst episodes; `entries` are the lines of the episode table."""
    episodes = list(draw_worst(records, entries))
    return Worst(
        episodes=episodes,
        any_unsafe=total.rates[SAFETY.key].count < total.rates[SAFETY.key].n,
        numbers={case.entry.row.number: k for k, case in enumerate(episodes, 1)},
    )


# Comparison, series, sensitivity


@dataclass(frozen=True, kw_only=True)
class PolicyComparison:
    """Differences and standings of policies, or in `reason` why there are none; `unpaired` says why not by pairs."""

    reason: str
    unpaired: str
    policies: Sequence[str] = ()
    bars: Sequence[DifferenceBar] = ()
    standings: Table | None = None
    differences: Table | None = None


def describe_comparison(analysis: Analysis) -> PolicyComparison | None:
    """Return the comparison of an analysis, or why there is none; None if there is nothing to compare."""
    compared = analysis.comparison
    if compared is None:
        return PolicyComparison(reason=analysis.uncompared, unpaired="") if analysis.uncompared else None
    return PolicyComparison(
        reason="",
        unpaired=analysis.unpaired,
        policies=compared.policies,
        bars=curve_charts.draw_bars(compared),
        standings=comparison.standing_table(compared),
        differences=comparison.difference_table(compared),
    )


@dataclass(frozen=True, kw_only=True)
class SeriesSection:
    """Checkpoints of one training: sentences, charts by suite, a legend of several series, and the numbers."""

    sentences: Sequence[str]
    legend: Legend
    charts: Mapping[str, Sequence[CurveChart]]
    table: Table


def describe_runs(analysis: Analysis) -> SeriesSection | None:
    """Return the series of an analysis; None without any."""
    runs = analysis.series
    if runs is None or not runs.suites:
        return None
    return SeriesSection(
        sentences=describe_series(runs),
        legend=_make_legend(runs.series) if len(runs.series) > 1 else (),
        charts=curve_charts.draw_series_charts(runs),
        table=series_table(runs),
    )


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Safety under other thresholds: charts by suite, and the paper's variants."""

    legend: Legend
    banded: bool
    charts: Mapping[str, Sequence[CurveChart]]
    variants: Table | None
    host_means: Table | None


def describe_sensitivity(
    analysis: Analysis, cells: Sequence[Summary], privileged: Collection[str | None]
) -> Sensitivity | None:
    """Return the sweeps and variants of an analysis; None without any."""
    ablated, means = analysis.ablation, analysis.means
    policies = list(dict.fromkeys(policy_name(cell) for cell in cells))
    charts = curve_charts.draw_sweep_charts(analysis.sweeps, policies)
    roster = cell_tables.Roster(privileged=privileged)
    if not charts and not ablated:
        return None
    return Sensitivity(
        legend=_make_legend(policies),
        banded=len(policies) <= curve_charts.MOST_BANDS,
        charts=charts,
        variants=sensitivity.variant_table(ablated) if ablated else None,
        host_means=host_mean_table(means, ablated, roster) if ablated and means else None,
    )


def _make_legend(names: Sequence[str]) -> Legend:
    return [(curve_charts.series_style(k), name) for k, name in enumerate(names)]


def describe_limits(spec: SpecColumn) -> tuple[str, str, str]:
    """Return the name of a specification, its limit, and the excess of depth 1, as the page says them."""
    if spec.binary:
        return spec.spec_id, "none at all", "any"
    limit, severe = (
        format_amount(value, spec.unit, spec.threshold, format_compact) for value in (spec.threshold, spec.severe)
    )
    return spec.spec_id, limit, severe


# Provenance


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
