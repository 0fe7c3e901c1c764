"""What the parts of the page show, as values: outcomes of a cell, its violations, episodes to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from safevla_bench.explain import trace
from safevla_bench.explain.trace import Exhibit
from safevla_bench.metrics import Rate, Summary, judged
from safevla_bench.report import tables
from safevla_bench.report.charts import Chart, chart
from safevla_bench.report.tables import Table, policy_name
from safevla_bench.scores import Scores
from safevla_bench.specs import Library
from safevla_bench.text.numbers import NONE, fixed, percent, span
from safevla_bench.trajectory import Batch, select

# Success against safety


@dataclass(frozen=True, slots=True)
class Whisker:
    """A proportion and its interval as places across a strip, in percent."""

    name: str
    kind: str
    value: str
    at: str
    low: str
    length: str
    interval: str


@dataclass(frozen=True, slots=True)
class Share:
    """One of the four outcomes: how many, which share, and where its part of the bar lies, in percent."""

    name: str
    kind: str
    count: int
    percent: str
    at: str
    width: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell's success and safety, drawn."""

    policy: str
    suite: str
    n: int
    lost: str
    privileged: bool
    standin: bool
    judged: bool
    """Whether any scored specification reached a verdict."""
    whiskers: tuple[Whisker, ...]
    shares: tuple[Share, ...]


def outcome(cell: Summary, privileged: bool) -> Outcome:
    """The drawing of a cell; without whiskers and shares of what was not counted, or not judged."""
    verdict = judged(cell)
    lost = [f"{count} {name}" for name, count in (("crashed", cell.crashed), ("stopped", cell.stopped)) if count]
    return Outcome(
        policy=policy_name(cell),
        suite=cell.suite or NONE,
        n=cell.n,
        lost=", ".join(lost),
        privileged=privileged,
        standin=cell.standin_assets,
        judged=verdict,
        whiskers=(
            *_whisker("Success", "sr", cell.rates["sr"]),
            *(_whisker("Safety", "safety", cell.rates["safety"]) if verdict else ()),
        ),
        shares=_shares(cell) if verdict else (),
    )


def _whisker(name: str, kind: str, rate: Rate) -> tuple[Whisker, ...]:
    """One whisker; none where nothing was counted."""
    if rate.ci is None or rate.value is None:
        return ()
    low, high = rate.ci
    return (
        Whisker(
            name=name,
            kind=kind,
            value=percent(rate.count, rate.n),
            at=fixed(100 * rate.value, 2),
            low=fixed(100 * low, 2),
            length=fixed(100 * (high - low), 2),
            interval=span(low, high, digits=1, scale=100),
        ),
    )


def _shares(cell: Summary) -> tuple[Share, ...]:
    """Safe success, unsafe success, safe failure, unsafe failure; empty where nothing was counted."""
    counts = (
        ("succeeded, safe", "ss", cell.success_safe),
        ("succeeded, unsafe", "su", cell.success_unsafe),
        ("failed, safe", "fs", cell.failure_safe),
        ("failed, unsafe", "fu", cell.failure_unsafe),
    )
    before = [sum(count for _, _, count in counts[:k]) for k in range(4)]
    return tuple(
        Share(name, kind, count, percent(count, cell.n), _percent(start, cell.n), _percent(count, cell.n))
        for (name, kind, count), start in zip(counts, before, strict=True)
        if cell.n
    )


def _percent(count: int, n: int) -> str:
    return percent(count, n, digits=2)


# Violations


@dataclass(frozen=True, slots=True)
class Violations:
    """A cell's violations, what they amount to in words, and the clauses outside every score."""

    name: str
    words: str
    scored: Table
    others: Table


def violations(cell: Summary) -> Violations:
    """A cell's tables of violations and the words above them."""
    unsafe = cell.success_unsafe + cell.failure_unsafe
    top = max((spec for spec in cell.specs if spec.tier == "safe"), key=lambda one: one.violations.count, default=None)
    most = f", most often {top.spec_id} ({top.violations.count})" if top and top.violations.count else ""
    return Violations(
        name=f"{policy_name(cell)}, {cell.suite or NONE}",
        words=f"{unsafe} of {cell.n} unsafe{most}" if judged(cell) else "no specification reached a verdict",
        scored=tables.violations([cell]),
        others=tables.violations([cell], scored=False),
    )


# The worst episodes


@dataclass(frozen=True, slots=True)
class Case:
    """An episode to look at, with a chart for each specification that reached a verdict; `number` is its line's."""

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
    broken: tuple[tuple[Exhibit, Chart], ...]
    kept: tuple[tuple[Exhibit, Chart], ...]


def cases(scores: Scores, batch: Batch | None, library: Library) -> Iterator[Case]:
    """The worst episodes; without charts where the batch lacks their record."""
    headers = batch.headers if batch else ()
    place = {(header.policy, header.episode_id): k for k, header in enumerate(headers)}
    for episode in trace.worst(scores):
        at = place.get((scores.policy[episode], scores.episode_id[episode]))
        record = select(batch, [at]) if batch is not None and at is not None else None
        yield _case(scores, episode, record, library)


def _case(scores: Scores, episode: int, record: Batch | None, library: Library) -> Case:
    shown = trace.exhibits(scores, episode, record, library) if record else []
    drawn = [(one, chart(one)) for one in shown]
    success, safe = bool(scores.success[episode]), bool(scores.safe[episode])
    vsi = float(scores.vsi[episode])
    return Case(
        number=episode + 1,
        key=(scores.policy[episode], scores.episode_id[episode]),
        episode_id=scores.episode_id[episode],
        policy=scores.policy[episode] or tables.UNNAMED,
        suite=scores.benchmark[episode],
        task=scores.task_id[episode],
        instruction=(record.headers[0].instruction or "") if record else "",
        outcome=ending(success, safe, scores.outcome[episode]),
        kind=("s" if success else "f") + ("s" if safe else "u"),
        vsi=NONE if np.isnan(vsi) else fixed(vsi, 3),
        broken=tuple(pair for pair in drawn if pair[0].violated),
        kept=tuple(pair for pair in drawn if not pair[0].violated),
    )


def ending(success: bool, safe: bool, outcome: str) -> str:
    """How the episode ended, in words; with the recorded outcome where that says more than success or failure."""
    ending = f"{'Succeeded' if success else 'Failed'}, {'safe' if safe else 'unsafe'}"
    return ending if outcome in ("success", "failure") else f"{ending} ({outcome.replace('_', ' ')})"
