"""The report as one self-contained page: no script, nothing fetched, the same bytes for the same inputs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from safevla_bench.metrics import Rate, Summary, aggregate, cells
from safevla_bench.report import evidence, tables
from safevla_bench.report.charts import Chart, chart
from safevla_bench.report.evidence import Exhibit
from safevla_bench.report.headline import headline
from safevla_bench.report.inert import inert
from safevla_bench.report.numbers import NONE, fixed, percent, short, span, unit_text, with_unit
from safevla_bench.report.tables import Table, policy_name
from safevla_bench.scores import Scores, SpecColumn
from safevla_bench.specs import Library
from safevla_bench.trajectory import Batch, select

_OPEN = 2
"""With more cells than this the tables of violations are folded."""


def page(
    scores: Scores, batch: Batch | None, library: Library, *, title: str, provenance: Mapping[str, object]
) -> str:
    """The report of some scores.

    Args:
        scores: the verdicts.
        batch: the records that they came from, found again by policy and episode id; None leaves the charts out.
        library: the specifications, for their formulas and limits.
        title: what the page is called.
        provenance: how the scores came about, shown at the end as it is. `policies` in it, or in the mappings of its
            `sources`, say which policies are `privileged`; `skipped` lists what was wrong with invalid episodes.
    """
    found, total = cells(scores), aggregate(scores)
    marked = frozenset(_privileged(provenance))
    skipped = _texts(provenance.get("skipped"))
    style = _style()
    return _environment().get_template("page.html").render(
        title=title,
        policy=_policy(style),
        style=Markup(style),  # our own file, not anybody's text
        headline=headline(found, total),
        total=total,
        privileged=sorted(marked & {policy_name(cell) for cell in found}),
        outcomes=[_outcome(cell, cell.policy in marked) for cell in found],
        main=tables.main(found, total, privileged=marked),
        violations=[_violations(cell) for cell in found if cell.n],
        folded=len(found) > _OPEN,
        cases=list(_cases(scores, batch, library)),
        any_unsafe=bool(total.success_unsafe + total.failure_unsafe),
        unscored=tables.unscored(found, scores.absent, skipped),
        limits=_limits(scores.specs),
        none=NONE,
        number=lambda value: fixed(value, 2) if value == value else NONE,
        provenance=list(_flat(provenance)),
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("safevla_bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: inert(value) if type(value) is str else value,
    )


@cache
def _style() -> str:
    return resources.files(__package__).joinpath("templates", "page.css").read_text(encoding="utf-8")


def _policy(style: str) -> str:
    """The Content-Security-Policy: nothing but this style sheet and images in the page itself."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


# What was privileged


def _privileged(provenance: Mapping[str, object]) -> Iterator[str]:
    """The policies that are said to be privileged, here or in one of the sources."""
    for told in _mappings(provenance.get("policies")):
        name = told.get("policy", told.get("name"))
        if told.get("privileged") is True and isinstance(name, str):
            yield name
    for source in _mappings(provenance.get("sources")):
        yield from _privileged(source)


def _mappings(value: object) -> Iterator[Mapping[str, object]]:
    for one in value if isinstance(value, list | tuple) else ():
        if isinstance(one, Mapping):
            yield one


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


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
    whiskers: tuple[Whisker, ...]
    shares: tuple[Share, ...]


def _outcome(cell: Summary, privileged: bool) -> Outcome:
    lost = [f"{count} {name}" for name, count in (("crashed", cell.crashed), ("stopped", cell.stopped)) if count]
    return Outcome(
        policy=policy_name(cell),
        suite=cell.suite or NONE,
        n=cell.n,
        lost=", ".join(lost),
        privileged=privileged,
        whiskers=(*_whisker("Success", "sr", cell.rates["sr"]), *_whisker("Safety", "safety", cell.rates["safety"])),
        shares=_shares(cell),
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


def _violations(cell: Summary) -> Violations:
    unsafe = cell.success_unsafe + cell.failure_unsafe
    top = max((spec for spec in cell.specs if spec.tier == "safe"), key=lambda one: one.violations.count, default=None)
    most = f", most often {top.spec_id} ({top.violations.count})" if top and top.violations.count else ""
    return Violations(
        name=f"{policy_name(cell)}, {cell.suite or NONE}",
        words=f"{unsafe} of {cell.n} unsafe{most}",
        scored=tables.violations([cell]),
        others=tables.violations([cell], scored=False),
    )


# The worst episodes


@dataclass(frozen=True, slots=True)
class Case:
    """An episode to look at, with a chart for each specification that reached a verdict."""

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


def _cases(scores: Scores, batch: Batch | None, library: Library) -> Iterator[Case]:
    headers = batch.headers if batch else ()
    place = {(header.policy, header.episode_id): k for k, header in enumerate(headers)}
    for episode in evidence.worst(scores):
        at = place.get((scores.policy[episode], scores.episode_id[episode]))
        record = select(batch, [at]) if batch is not None and at is not None else None
        yield _case(scores, episode, record, library)


def _case(scores: Scores, episode: int, record: Batch | None, library: Library) -> Case:
    shown = evidence.exhibits(scores, episode, record, library) if record else []
    drawn = [(one, chart(one)) for one in shown]
    success, safe = bool(scores.success[episode]), bool(scores.safe[episode])
    ending = f"{'Succeeded' if success else 'Failed'}, {'safe' if safe else 'unsafe'}"
    outcome = scores.outcome[episode]
    return Case(
        episode_id=scores.episode_id[episode],
        policy=scores.policy[episode] or tables.UNNAMED,
        suite=scores.benchmark[episode],
        task=scores.task_id[episode],
        instruction=(record.headers[0].instruction or "") if record else "",
        outcome=ending if outcome in ("success", "failure") else f"{ending} ({outcome.replace('_', ' ')})",
        kind=("s" if success else "f") + ("s" if safe else "u"),
        vsi=fixed(float(scores.vsi[episode]), 3) if scores.vsi[episode] == scores.vsi[episode] else NONE,
        broken=tuple(pair for pair in drawn if pair[0].violated),
        kept=tuple(pair for pair in drawn if not pair[0].violated),
    )


# Limits and provenance


def _limits(specs: Sequence[SpecColumn]) -> list[tuple[str, str, str]]:
    """Specification, its limit, and the excess at which its depth reaches 1."""
    return [(spec.spec_id, _quantity(spec, spec.threshold), _severe(spec)) for spec in specs if spec.scored]


def _severe(spec: SpecColumn) -> str:
    return "any violation" if spec.binary else NONE if spec.severe is None else _quantity(spec, spec.severe)


def _quantity(spec: SpecColumn, value: float) -> str:
    unit, scale = unit_text(spec.unit, spec.threshold)
    return with_unit(short(value * scale), unit)


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as dotted names with one text each; the same order as they came in."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in value):
        for k, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{k}")
    else:
        yield name, _told(value)


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return _listed(str(one) for one in value)
    return NONE if value is None or value == "" else str(value)


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(" ".join(text.split()) for text in texts) or NONE
