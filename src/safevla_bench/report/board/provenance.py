"""The provenance of a policy's episodes: their sources, protocols and package versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from safevla_bench.judged import JudgedSource
from safevla_bench.text.numbers import NO_VALUE
from safevla_bench.trajectory import Header

PolicyName = str | None


def select_sources(sources: Iterable[JudgedSource], policy: PolicyName) -> list[JudgedSource]:
    """Return the sources that name the policy, or name none."""
    return [source for source in sources if policy in source.policies or not source.policies]


def protocols_by_policy(sources: Iterable[JudgedSource]) -> dict[PolicyName, Mapping[str, object]]:
    """Return the protocol of each policy's run; of a policy that ran under several, all of them, by number."""
    by_policy: dict[PolicyName, list[Mapping[str, object]]] = {}
    for source in sources:
        for policy in source.policies:
            listed, protocol = by_policy.setdefault(policy, []), source.protocol
            listed += [protocol] if protocol is not None and protocol not in listed else []
    return {
        policy: listed[0] if len(listed) == 1 else {str(k): protocol for k, protocol in enumerate(listed)}
        for policy, listed in by_policy.items()
        if listed
    }


def package_versions(headers: Iterable[Header], policy: PolicyName) -> dict[str, list[str]]:
    """Return package -> the versions that the records of a policy name."""
    versions_by_package: dict[str, dict[str, None]] = {}
    for header in headers:
        for package, version in (header.versions or {}).items() if header.policy == policy else ():
            versions_by_package.setdefault(package, {})[version] = None
    return {package: list(versions) for package, versions in versions_by_package.items()}


def flatten_values(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested mappings and lists, each with its dotted name and a text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten_values(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for k, inner in enumerate(value):
            yield from flatten_values(inner, f"{name}.{k}")
    elif isinstance(value, list | tuple):
        yield name, ", ".join(str(item) for item in value) or NO_VALUE
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    else:
        yield name, NO_VALUE if value is None or value == "" else str(value)
