"""The report as one HTML page, which sends no requests, runs no code from its inputs, and is reproducible."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from safevla_bench.explain.episode import rank_by_severity, select_worst
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary, aggregate, cells, has_verdict, measure_baseline
from safevla_bench.judging.rates import SAFETY, SR, Rate
from safevla_bench.judging.ruleset import LostEpisodes, Provenance, Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores, SpecColumn
from safevla_bench.report import render
from safevla_bench.report.album import Album, Replays, embed_replays
from safevla_bench.report.analysis import Analysis
from safevla_bench.report.charts import draw_chart
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.episode_table import MOST_DRAWN, EpisodeEntry, EpisodeTable, build_episode_table
from safevla_bench.report.headline import Headline, build_headline, describe_mixture
from safevla_bench.report.tables import cells as cell_tables
from safevla_bench.report.tables import comparison, explain, notices, sensitivity
from safevla_bench.report.tables.cells import violation_table
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.report.tables.firmness import describe_firmness
from safevla_bench.report.tables.series import describe_series, series_table
from safevla_bench.report.tables.table import Table
from safevla_bench.sensitivity.firmness import NO_FIRMNESS, EpisodeFirmness
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import NO_VALUE, format_amount, format_compact, format_fixed, format_interval, format_percent
from safevla_bench.trajectory.batch import Batch

_NO_ANALYSIS, _NO_ALBUM = Analysis(), Album()
_NO_REPLAYS: Replays = {}
_NO_DESCRIPTION: Mapping[str, object] = {}
# Maximum number of cells (policy × suite) for which the tables of violations are initially unfolded.
_MOST_UNFOLDED = 2


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
    analysis: Analysis = _NO_ANALYSIS,
    album: Album = _NO_ALBUM,
    replays: Replays = _NO_REPLAYS,
    remarks: Sequence[str] = (),
    firmness: Mapping[tuple[str | None, str], EpisodeFirmness] = NO_FIRMNESS,
    summarized: tuple[Sequence[Summary], Summary] | None = None,
) -> str:
    """Return the report on the scores as one HTML page, without writing it.

    Args:
        scores: the verdicts.
        batch: the records of the episodes, matched by policy and episode id; None = no charts.
        ruleset: the rules that judged the episodes, for formulas, limits and kinds of bodies.
        title: the title of the page.
        episode: the verdict as text if the page is about one episode; it then replaces the headline and the rates.
        provenance: what determined the verdicts, and which episodes were left out.
        description: how the scores were made, shown unchanged at the end.
        privileged: the policies that saw simulator state which no real robot has.
        analysis: the analyses in addition to the summaries; a missing analysis gets no section.
        album: pictures of episodes.
        replays: 3-D replays of episodes.
        remarks: sentences that apply to all numbers of the page.
        firmness: policy and episode id -> results of the episode's replays under varied physics.
        summarized: the summaries of all cells (policy × suite) and of all episodes; None = compute them from `scores`.
    """
    summaries, total = summarized or (cells(scores), aggregate(scores))
    # `records` computes the signals of an episode only once for all sections of the page.
    records = EpisodeRecords(scores, batch, ruleset)
    episodes = build_episode_table(records, analysis.bodies, firmness)
    firmness_lines = describe_firmness([*firmness.values()]) if firmness else ()
    headline = build_headline(summaries, total, analysis.comparison, mixture=describe_mixture(scores))
    # Verdicts under changed rules must not look like the usual verdicts.
    if changes := ruleset.describe_changes():
        headline = replace(headline, answer=f"Judged with {changes}. {headline.answer}")
    replay_section = embed_replays(records, replays)
    style, script = render.read_template("page.css"), render.read_template("page.js")
    return (
        render.template_environment()
        .get_template("page.html")
        .render(
            # Functions and constants that the template uses.
            **_TABLE_FUNCTIONS,
            **_cell_sections(summaries, total, frozenset(name for name in privileged if name is not None)),
            **_episode_sections(records, episodes),
            **_provenance_sections(scores, summaries, ruleset, provenance),
            # The Content-Security-Policy of the page; it has nothing to do with robots' policies.
            policy=render.content_security_policy(style, script, *replay_section.scripts),
            style=Markup(style),
            script=Markup(script),
            title=title,
            is_single=bool(episode),
            headline=Headline(episode) if episode else headline,
            remarks=[*remarks, *(f"Physics varied. {sentence}" for sentence in firmness_lines)],
            body_table=explain.body_table(analysis.bodies, scores) if analysis.bodies else None,
            album=album,
            in_3d=replay_section,
            analysis=analysis,
            provenance=_format_json(description) if description else (),
        )
    )


_TABLE_FUNCTIONS: Mapping[str, object] = {
    "onset_table": explain.onset_table,
    "difference_table": comparison.difference_table,
    "describe_series": describe_series,
    "series_table": series_table,
    "variant_table": sensitivity.variant_table,
    "dash": NO_VALUE,
    "fixed": lambda value: format_fixed(value, 2) if value == value else NO_VALUE,  # NaN is not equal to itself
    "interval": format_interval,
    "percent": format_percent,
}


def _cell_sections(summaries: Sequence[Summary], total: Summary, privileged: frozenset[str]) -> dict[str, object]:
    # Return the template's variables that depend on the summaries of cells (policy × suite).
    # `total` is the summary of all episodes, and `privileged` names the policies that saw the simulator's state.
    # `is_folded` says whether the tables of violations are initially closed.
    return {
        "total": total,
        "privileged": sorted({policy_name(cell) for cell in summaries}.intersection(privileged)),
        "outcomes": [(cell, policy_name(cell), list_known_rates(cell)) for cell in summaries],
        "numbers": cell_tables.headline_table(summaries, total, privileged=privileged),
        # Cells with crashed episodes alone have no violations.
        "violations": [summarize_violations(cell) for cell in summaries if cell.n or cell.judged],
        "is_folded": len(summaries) > _MOST_UNFOLDED,
        "torque_note": cell_tables.torque_note(summaries),
        "any_unsafe": total.rates[SAFETY.key].count < total.rates[SAFETY.key].n,
    }


def _episode_sections(records: EpisodeRecords, episodes: EpisodeTable) -> dict[str, object]:
    # Return the template's variables that depend on single episodes. `episodes` contains the lines of the page's table.
    # `case_numbers` maps an episode's number in the table to the position, from 1, among the worst episodes.
    worst = list(draw_worst(records, episodes.entries))
    return {
        "worst": worst,
        "case_numbers": {case["entry"].row.number: k for k, case in enumerate(worst, 1)},
        "episodes": episodes,
        "shared_states": find_shared_states(records, episodes.entries),
    }


def _provenance_sections(
    scores: Scores, summaries: Sequence[Summary], ruleset: Ruleset, provenance: Provenance | None
) -> dict[str, object]:
    # Return the template's variables on what determined the verdicts, and on what was not scored.
    # `skipped` are the problems of invalid episodes; `lost` counts episodes lost in damaged files (None = no loss).
    skipped, lost = (provenance.skipped, provenance.lost) if provenance else ((), None)
    return {
        "applicability": "on" if provenance is None else provenance.applicability,
        "damage": str(lost or ""),
        "standins": provenance_marks.warn_of_scores(scores),
        "baseline_warnings": notices.baseline_warnings(measure_baseline(scores)),
        # The table of what was not scored, and why; the function below turns a reason code into text.
        "unscored": notices.exclusion_table(
            summaries,
            scores.absent,
            skipped,
            lost or LostEpisodes(),
            lambda reason, suite: describe_reason(reason, ruleset.registry, suite),
        ),
        "limits": [describe_limits(spec) for spec in scores.specs if spec.is_scored],
    }


# Success and safety


def list_known_rates(cell: Summary) -> list[tuple[str, str, Rate]]:
    """Return one summary's known rates of success and safety, each as (name, metric key, rate)."""
    # A cell is the summary of one policy on one suite. Safety is known only if some episode has a verdict.
    # Without an interval (`ci`), a rate is unknown.
    named_keys = [("Success", SR.key), ("Safety", SAFETY.key)] if has_verdict(cell) else [("Success", SR.key)]
    return [(name, key, cell.rates[key]) for name, key in named_keys if cell.rates[key].ci]


# Violations


def summarize_violations(cell: Summary) -> dict[str, str | Table]:
    """Return a summary's `name`, text on unsafe episodes (`words`), and violation tables (`scored`, `others`)."""
    # A cell is the summary of one policy on one suite. `count` of the `n` judged episodes are safe.
    safety = cell.rates[SAFETY.key]
    # The specifications of the tier `safe` are scored; all others are diagnostics.
    violated_specs = [spec for spec in cell.specs if spec.tier == "safe" and spec.violations.count]
    text = f"{safety.n - safety.count} of {safety.n} unsafe" if has_verdict(cell) else NO_VERDICT
    if violated_specs and has_verdict(cell):
        most_violated = max(violated_specs, key=lambda spec: spec.violations.count)
        text += f", most often {most_violated.spec_id} ({most_violated.violations.count})"
    return {
        "name": f"{policy_name(cell)}, {cell.suite or NO_VALUE}",
        "words": text,
        "scored": violation_table(cell),
        "others": violation_table(cell, scored=False),
    }


def describe_limits(spec: SpecColumn) -> tuple[str, str, str]:
    """Return as texts: a specification's name, its limit, and how far beyond the limit the depth is 1."""
    if spec.binary:  # every violation has depth 1
        return spec.spec_id, "must never occur", "any"
    limit, excess = (
        format_amount(amount, spec.unit, spec.threshold, format_compact) for amount in (spec.threshold, spec.severe)
    )
    return spec.spec_id, limit, excess


# Episodes


def drawn_episodes(scores: Scores) -> list[int]:
    """Return the indices of the episodes whose records the page draws. The indices are unordered and may repeat."""
    # A caller that reads only these records can draw the same page as with all records.
    return [*select_worst(scores), *rank_by_severity(scores)[:MOST_DRAWN]]


def draw_worst(records: EpisodeRecords, entries: Sequence[EpisodeEntry]) -> Iterator[dict[str, Any]]:
    """Yield a mapping for each of the worst episodes (at most 6). `entry` is the episode's line in the page's table.
    `broken` contains a trace and a chart for each violated specification, `kept` for each satisfied specification.
    """
    # A trace consists of a specification's signal, limit and verdict. Numbers of episodes count from 1.
    entry_by_number = {entry.row.number: entry for entry in entries}
    for episode in select_worst(records.scores):
        evidence = records.evidence(episode)
        # Without a record there is no evidence, and so no chart.
        charted = [(trace, draw_chart(trace.chart)) for trace in (evidence.traces if evidence else ())]
        broken = [(trace, chart) for trace, chart in charted if trace.violated]
        kept = [(trace, chart) for trace, chart in charted if not trace.violated]
        yield {"entry": entry_by_number[episode + 1], "broken": broken, "kept": kept}


def find_shared_states(
    records: EpisodeRecords, entries: Sequence[EpisodeEntry]
) -> list[tuple[str, list[EpisodeEntry]]]:
    """Return the initial states from which several policies started, each with its episodes. The states whose outcomes
    differ most come first. A state is left out if the page does not list all its episodes.
    """
    # An entry is a line of the page's table; `entry.row.number` is the episode's number from 1.
    # `episodes_by_state` maps the title of an initial state to the indices of its episodes.
    scores, episodes_by_state = records.scores, dict[str, list[int]]()
    for episode in range(len(scores)):
        header = records.header(episode)
        if header is not None and header.init_state_index is not None:
            seed = "" if header.seed is None else f", seed {header.seed}"
            state = f"{header.benchmark} / {header.task_id}, state {header.init_state_index}{seed}"
            episodes_by_state.setdefault(state, []).append(episode)
    listed = {entry.row.number - 1: entry for entry in entries}  # index of an episode -> its entry
    # A state is shared if its episodes are of more than one policy.
    shared = [state for state, episodes in episodes_by_state.items() if len({scores.policy[k] for k in episodes}) > 1]
    shared.sort(key=lambda state: -_outcome_diversity(scores, episodes_by_state[state]))
    ranked = [(state, episodes_by_state[state]) for state in shared]
    # `>=` compares sets: all episodes of the state must be listed.
    return [(state, [listed[k] for k in episodes]) for state, episodes in ranked if listed.keys() >= {*episodes}]


def _outcome_diversity(scores: Scores, episodes: Sequence[int]) -> float:
    # Return a number that grows with the differences between the outcomes of these episodes (indices).
    # An episode's verdict is safe, unsafe or unknown. VSI is the depth of the worst violation (0 to 1; NaN = unknown).
    verdict_count = len({scores.verdict(k) for k in episodes})
    success_count = len(set(scores.success[episodes].tolist()))  # 1 = all episodes succeed, or none does
    vsi = np.nan_to_num(scores.vsi[episodes])
    # The number of different verdicts counts most, then whether success differs, then the range of VSI (0 to 1).
    return 4.0 * verdict_count + 2.0 * success_count + float(vsi.max() - vsi.min())


def _format_json(document: object) -> list[str]:
    # Return the lines of indented JSON, which the template shows one by one.
    return json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=False).split("\n")
