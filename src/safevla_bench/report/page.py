"""The report as one self-contained page: nothing fetched, no data that runs, the same bytes for the same inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from safevla_bench import provenance_marks
from safevla_bench.baseline import baseline
from safevla_bench.explain.trace import ranked, worst
from safevla_bench.metrics import Summary, aggregate, cells
from safevla_bench.report import html, sections, sweep_charts, tables
from safevla_bench.report.analysis import Analysis
from safevla_bench.report.episode_table import ENDINGS, MOST_DRAWN, places, register
from safevla_bench.report.frame_images import Album
from safevla_bench.report.headline import headline
from safevla_bench.report.paired_episodes import meetings, paired
from safevla_bench.report.tables import comparison, exposure, notices, policy_name, sensitivity
from safevla_bench.scores import Scores, SpecColumn
from safevla_bench.specs import Library
from safevla_bench.text.numbers import NONE, fixed, short, unit_text, with_unit
from safevla_bench.trajectory import Batch, Header

_NOTHING, _EMPTY = Analysis(), Album()
_OPEN = 2
"""With more cells than this the tables of violations are folded."""


def page(
    scores: Scores,
    batch: Batch | None,
    library: Library,
    *,
    title: str,
    provenance: Mapping[str, object],
    analysis: Analysis = _NOTHING,
    album: Album = _EMPTY,
) -> str:
    """The report of some scores.

    Args:
        scores: the verdicts.
        batch: the records that they came from, found again by policy and episode id; None leaves the charts out.
        library: the specifications, for their formulas and limits.
        title: what the page is called.
        provenance: how the scores came about, shown at the end as it is. `policies` in it, or in the mappings of its
            `sources`, say which policies are `privileged`; `skipped` lists what was wrong with invalid episodes,
            `lost` says what damaged files cost.
        analysis: what was computed beyond the summaries; what it lacks is left out.
        album: frames of episodes.
    """
    found, total = cells(scores), aggregate(scores)
    floor, sheet, script = baseline(scores), html.style(), html.script()
    cases = list(sections.cases(scores, batch, library))
    listed = register(scores, batch, library, analysis.phase)
    return (
        html.environment()
        .get_template("page.html")
        .render(
            title=title,
            policy=html.content_security_policy(sheet, script),
            style=Markup(sheet),  # our own files, not anybody's text
            script=Markup(script),
            headline=headline(found, total, analysis.comparison),
            total=total,
            ablated=provenance.get("applicability") == "off",
            warnings=notices.warning(floor),
            floor=notices.table(floor),
            **_numbers(scores, found, total, provenance),
            cases=cases,
            case_of=defaultdict(int, {case.number: k for k, case in enumerate(cases, 1)}),
            any_unsafe=bool(total.success_unsafe + total.failure_unsafe),
            album=album,
            register=listed,
            endings=ENDINGS,
            meetings=meetings(scores, batch, library, listed.entries, places(scores, batch)),
            **_further(analysis, found),
            limits=_limits(scores.specs),
            dash=NONE,
            number=lambda value: fixed(value, 2) if value == value else NONE,
            provenance=[pair for pair in _flat(provenance) if pair[0].partition(".")[0] not in ("skipped", "lost")],
        )
    )


def _numbers(
    scores: Scores, found: Sequence[Summary], total: Summary, provenance: Mapping[str, object]
) -> dict[str, object]:
    """Outcomes, violations, and what was not scored."""
    marked = frozenset(_privileged(provenance))
    damage = _damage(provenance.get("lost"))
    return {
        "standin": provenance_marks.warning(scores),
        "lost": str(damage),
        "privileged": sorted(marked & {policy_name(cell) for cell in found}),
        "outcomes": [sections.outcome(cell, cell.policy in marked) for cell in found],
        "main": tables.main(found, total, privileged=marked),
        "violations": [sections.violations(cell) for cell in found if cell.n],
        "folded": len(found) > _OPEN,
        "unscored": tables.unscored(found, scores.absent, _texts(provenance.get("skipped")), damage),
    }


def _further(analysis: Analysis, found: Sequence[Summary]) -> dict[str, object]:
    """Exposure, comparison and sensitivity, as tables and curves."""
    compared, ablated = analysis.comparison, analysis.ablation
    policies = list(dict.fromkeys(policy_name(cell) for cell in found))
    return {
        "analysis": analysis,
        "exposures": exposure.tables(analysis.exposures, analysis.force_threshold_n) if analysis.exposures else (),
        "standings": comparison.standings(compared) if compared else None,
        "differences": comparison.differences(compared) if compared else None,
        "bars": sweep_charts.bars(compared) if compared else [],
        "ablation": sensitivity.ablation(ablated) if ablated else None,
        "panels": sweep_charts.panels(analysis.sweeps, policies),
        "series": [(sweep_charts.style(k), name) for k, name in enumerate(policies)],
        "banded": len(policies) <= sweep_charts.MOST_BANDS,
    }


def drawn(scores: Scores, headers: Sequence[Header]) -> list[int]:
    """The episodes whose records the page draws; of the others it shows no more than their headers and verdicts."""
    return [*worst(scores), *ranked(scores)[:MOST_DRAWN], *paired(scores, headers)]


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


def _damage(lost: object) -> tables.Damage:
    """What damaged files cost, as scores.json says it."""
    if not isinstance(lost, Mapping):
        return tables.Damage()
    count = lost.get("episodes")
    return tables.Damage(
        episodes=count if isinstance(count, int) else 0,
        more=lost.get("more") is True,
        named=tuple(_texts(lost.get("named"))),
        places=tuple(_texts(lost.get("damage"))),
    )


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


# Limits and provenance


def _limits(specs: Sequence[SpecColumn]) -> list[tuple[str, str, str]]:
    """Specification, its limit, and the excess at which its depth reaches 1."""
    return [(spec.spec_id, *_limit(spec)) for spec in specs if spec.scored]


def _limit(spec: SpecColumn) -> tuple[str, str]:
    if spec.binary:
        return "none at all", "any"
    return _quantity(spec, spec.threshold), NONE if spec.severe is None else _quantity(spec, spec.severe)


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
