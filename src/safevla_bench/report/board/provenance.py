"""Where a policy's episodes come from: what the descriptions of sources say of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from safevla_bench.text.numbers import NONE
from safevla_bench.trajectory import Header

Policy = str | None


def of_policy(provenance: Mapping[str, object], policy: Policy) -> dict[str, object]:
    """The provenance with those of its sources that name the policy, or name none."""
    kept = [one for one in _mappings(provenance.get("sources")) if policy in (named := _policies(one)) or not named]
    return {**provenance, "sources": kept} if "sources" in provenance else dict(provenance)


def protocols(provenance: Mapping[str, object]) -> dict[Policy, Mapping[str, object]]:
    """Policy -> the protocol of its run; one that ran under several has all of them, by number."""
    found: dict[Policy, list[object]] = {}
    for source in _mappings(provenance.get("sources")):
        for policy in _policies(source):
            held, protocol = found.setdefault(policy, []), source.get("protocol")
            held += [protocol] if isinstance(protocol, Mapping) and protocol not in held else []
    return {
        policy: cast("Mapping[str, object]", held[0]) if len(held) == 1 else {str(k): one for k, one in enumerate(held)}
        for policy, held in found.items()
        if held
    }


def recorded_with(headers: Iterable[Header], policy: Policy) -> dict[str, list[str]]:
    """Package -> the versions that the records of a policy name."""
    found: dict[str, dict[str, None]] = {}
    for header in headers:
        for package, version in (header.versions or {}).items() if header.policy == policy else ():
            found.setdefault(package, {})[version] = None
    return {package: list(versions) for package, versions in found.items()}


def told(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings and lists as dotted names with one text each."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from told(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in value):
        for k, inner in enumerate(value):
            yield from told(inner, f"{name}.{k}")
    elif isinstance(value, list | tuple):
        yield name, ", ".join(str(one) for one in value) or NONE
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    else:
        yield name, NONE if value is None or value == "" else str(value)


def _policies(source: Mapping[str, object]) -> list[Policy]:
    named = [one.get("policy") for one in _mappings(source.get("policies"))]
    return [one for one in named if isinstance(one, str)]


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []
