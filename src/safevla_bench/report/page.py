"""The report as one self-contained page: no script, nothing fetched, the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from safevla_bench.baseline import baseline
from safevla_bench.metrics import aggregate, cells
from safevla_bench.report import cautioning, tables, views
from safevla_bench.report.headline import headline
from safevla_bench.report.numbers import NONE, fixed, short, unit_text, with_unit
from safevla_bench.report.tables import policy_name
from safevla_bench.report.templating import content_security_policy, environment, style
from safevla_bench.scores import Scores, SpecColumn
from safevla_bench.specs import Library
from safevla_bench.trajectory import Batch

_OPEN = 2
"""With more cells than this the tables of violations are folded."""


def page(scores: Scores, batch: Batch | None, library: Library, *, title: str, provenance: Mapping[str, object]) -> str:
    """The report of some scores.

    Args:
        scores: the verdicts.
        batch: the records that they came from, found again by policy and episode id; None leaves the charts out.
        library: the specifications, for their formulas and limits.
        title: what the page is called.
        provenance: how the scores came about, shown at the end as it is. `policies` in it, or in the mappings of its
            `sources`, say which policies are `privileged`; `skipped` lists what was wrong with invalid episodes;
            `standin_assets` the suites that were simulated with stand-ins for the host's own assets.
    """
    found, total = cells(scores), aggregate(scores)
    marked = frozenset(_privileged(provenance))
    skipped = _texts(provenance.get("skipped"))
    standin = _texts(provenance.get("standin_assets"))
    floor, sheet = baseline(scores), style()
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            policy=content_security_policy(sheet),
            style=Markup(sheet),  # our own file, not anybody's text
            headline=headline(found, total),
            total=total,
            ablated=provenance.get("applicability") == "off",
            privileged=sorted(marked & {policy_name(cell) for cell in found}),
            standin=standin,
            warnings=cautioning.warning(floor),
            floor=cautioning.table(floor),
            outcomes=[views.outcome(cell, cell.policy in marked) for cell in found],
            main=tables.main(found, total, privileged=marked, standin=standin),
            violations=[views.violations(cell) for cell in found if cell.n],
            folded=len(found) > _OPEN,
            cases=list(views.cases(scores, batch, library)),
            any_unsafe=bool(total.success_unsafe + total.failure_unsafe),
            unscored=tables.unscored(found, scores.absent, skipped),
            limits=_limits(scores.specs),
            dash=NONE,
            number=lambda value: fixed(value, 2) if value == value else NONE,
            provenance=[pair for pair in _flat(provenance) if pair[0] != "skipped"],
        )
    )


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
