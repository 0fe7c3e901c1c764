"""Sections of the page as values: what its template is given, one value a section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safevla_bench.explain.episode import SpecTrace, select_worst, trace_specs
from safevla_bench.judging.metrics import Summary, has_verdict
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores, verdict_word
from safevla_bench.report.charts import Chart, draw_chart
from safevla_bench.report.curve_charts import CurveChart, DifferenceBar
from safevla_bench.report.headline import Headline
from safevla_bench.report.tables.cells import violation_table
from safevla_bench.report.tables.table import UNNAMED, Table, policy_name
from safevla_bench.text import NO_VALUE, format_fixed
from safevla_bench.trajectory.batch import Batch, select_episodes

Legend = Sequence[tuple[str, str]]
"""CSS classes and name of each policy or series."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The answer, and what a reader must know before any number."""

    headline: Headline
    is_ablation: bool
    privileged: Sequence[str]
    damage: str
    standins: Sequence[str]
    remarks: Sequence[str]
    baseline_warnings: Sequence[str]
    baseline_limits: Table


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Success and safety of each cell, drawn and as a table."""

    outcomes: Sequence[CellOutcome]
    table: Table


@dataclass(frozen=True, kw_only=True)
class Violations:
    """The violations of each cell, the bodies behind them, and how long and how hard; `folded` = closed at first."""

    cells: Sequence[CellViolations]
    torque_note: str
    folded: bool
    bodies: Sequence[Table]
    exposures: Sequence[Table]


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The worst episodes, drawn large; `numbers` is episode -> its place among them, from 1."""

    episodes: Sequence[WorstEpisode]
    any_unsafe: bool
    numbers: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class PolicyComparison:
    """Differences and standings of policies, or in `reason` why there are none; `unpaired` says why not by pairs."""

    policies: Sequence[str]
    reason: str
    unpaired: str
    bars: Sequence[DifferenceBar] = ()
    standings: Table | None = None
    differences: Table | None = None


@dataclass(frozen=True, kw_only=True)
class SeriesSection:
    """Checkpoints of one training: sentences, charts by suite, a legend of several series, and the numbers."""

    sentences: Sequence[str]
    legend: Legend
    charts: Mapping[str, Sequence[CurveChart]]
    table: Table


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Safety under other thresholds: charts by suite, and the paper's variants."""

    legend: Legend
    banded: bool
    charts: Mapping[str, Sequence[CurveChart]]
    variants: Table | None
    host_means: Table | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The limits of the scored specifications: name, limit, and the excess of depth 1."""

    limits: Sequence[tuple[str, str, str]]


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
    """A cell's success and safety."""

    policy: str
    suite: str
    n: int
    lost: str
    privileged: bool
    standin: bool
    stopped: bool
    """True if a violation stopped episodes, so that only Safety is known."""
    whiskers: tuple[tuple[str, str, Rate], ...]
    """Name and kind of each known rate."""
    shares: tuple[OutcomeShare, ...]


def describe_outcome(cell: Summary, privileged: bool) -> CellOutcome:
    """Return a cell's outcome, without what was not counted or judged; `privileged` = saw simulator state."""
    outside = (("crashed", cell.crashed), ("stopped", cell.stopped), ("without a verdict", cell.unjudged))
    whiskers = [("Success", "sr"), *([("Safety", "safety")] if has_verdict(cell) else [])]
    return CellOutcome(
        policy=policy_name(cell),
        suite=cell.suite or NO_VALUE,
        n=cell.n,
        lost=", ".join(f"{count} {name}" for name, count in outside if count),
        privileged=privileged,
        standin=cell.standin_assets,
        stopped=bool(cell.stopped_on_violation),
        whiskers=tuple((name, kind, cell.rates[kind]) for name, kind in whiskers if cell.rates[kind].ci),
        shares=_outcome_shares(cell) if has_verdict(cell) and not cell.stopped_on_violation and cell.n else (),
    )


def _outcome_shares(cell: Summary) -> tuple[OutcomeShare, ...]:
    succeeded = cell.rates["sr"].count
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


@dataclass(frozen=True, slots=True)
class CellViolations:
    """A cell's violations in a sentence and a table, and the clauses outside every score."""

    name: str
    words: str
    scored: Table
    others: Table


def summarize_violations(cell: Summary) -> CellViolations:
    """Return a cell's tables of violations, scored and not, and the sentence on its unsafe episodes above them."""
    safety = cell.rates["safety"]
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


# The worst episodes


@dataclass(frozen=True, slots=True)
class WorstEpisode:
    """An episode with a chart for each specification with a verdict; `number` is that of its line in the table."""

    number: int
    key: tuple[str | None, str]
    """Policy, as the record names it, and episode id."""
    episode_id: str
    policy: str
    suite: str
    task: str
    instruction: str
    outcome: str
    kind: str
    vsi: str
    broken: tuple[tuple[SpecTrace, Chart], ...]
    kept: tuple[tuple[SpecTrace, Chart], ...]


def worst_episodes(scores: Scores, batch: Batch | None, ruleset: Ruleset) -> Iterator[WorstEpisode]:
    """Yield the up to 6 episodes that `select_worst` picks, in its order; without charts where `batch` lacks theirs."""
    place = {header.key: k for k, header in enumerate(batch.headers if batch else ())}
    for episode in select_worst(scores):
        batch_index = place.get((scores.policy[episode], scores.episode_id[episode]))
        record = select_episodes(batch, [batch_index]) if batch is not None and batch_index is not None else None
        yield _worst_episode(scores, episode, record, ruleset)


def _worst_episode(scores: Scores, episode: int, record: Batch | None, ruleset: Ruleset) -> WorstEpisode:
    spec_traces = trace_specs(scores, episode, record, ruleset) if record else []
    drawn = [(spec_trace, draw_chart(spec_trace.chart)) for spec_trace in spec_traces]
    success, safe = bool(scores.success[episode]), scores.verdict(episode)
    vsi = float(scores.vsi[episode])
    return WorstEpisode(
        number=episode + 1,
        key=(scores.policy[episode], scores.episode_id[episode]),
        episode_id=scores.episode_id[episode],
        policy=scores.policy[episode] or UNNAMED,
        suite=scores.benchmark[episode],
        task=scores.task_id[episode],
        instruction=(record.headers[0].instruction or "") if record else "",
        outcome=describe_ending(success, safe, scores.outcome[episode]),
        kind=("s" if success else "f") + ("s" if safe else "u"),
        vsi=NO_VALUE if np.isnan(vsi) else format_fixed(vsi, 3),
        broken=tuple(pair for pair in drawn if pair[0].violated),
        kept=tuple(pair for pair in drawn if not pair[0].violated),
    )


def describe_ending(success: bool, safe: bool | None, outcome: str) -> str:
    """Return the ending and the verdict in words, such as `Failed, unsafe`; other outcomes follow in brackets."""
    if outcome == "stopped":
        return f"Stopped, {verdict_word(safe)}"
    ending = f"{'Succeeded' if success else 'Failed'}, {verdict_word(safe)}"
    return ending if outcome in ("success", "failure") else f"{ending} ({outcome.replace('_', ' ')})"
