"""Evaluation protocols as data: `*.toml` here, each value with its source; how to list, show and compare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.protocols.fields import FIELDS, UNTOLD, Inference, Protocol

PRESET = "safevla-bench"
RELEASE = "release"

__all__ = [
    "FIELDS",
    "PRESET",
    "UNTOLD",
    "Inference",
    "Protocol",
    "Row",
    "compare",
    "described",
    "names",
    "protocol",
    "rows",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One value of one or several protocols, in their order, with the source of each."""

    field: str
    values: tuple[object, ...]
    sources: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return any(value != self.values[0] for value in self.values)


def names() -> tuple[str, ...]:
    """The protocols that ship with the package, sorted."""
    found = (path.name for path in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


@cache
def protocol(name: str = PRESET) -> Protocol:
    """A protocol by its name.

    Raises:
        RunError: there is none of that name; lists those there are.
    """
    if name not in names():
        raise RunError(f"there is no protocol {name!r}", remedy=f"Protocols: {', '.join(names())}.")
    content = resources.files(__package__).joinpath(f"{name}.toml").read_bytes()
    return msgspec.toml.decode(content, type=Protocol)


def rows(*which: Protocol) -> list[Row]:
    """Every value of the protocols, side by side, in the order of `FIELDS`; None where one says nothing."""
    said = [dict(_flat(one)) for one in which]
    order = list(FIELDS)
    fields = sorted({field for one in said for field in one}, key=lambda field: (order.index(_key(field)), field))
    return [
        Row(field, tuple(one.get(field) for one in said), tuple(_source(one, field) for one in which))
        for field in fields
    ]


def compare(first: Protocol, other: Protocol) -> list[Row]:
    """The values in which two protocols differ."""
    return [row for row in rows(first, other) if row.differs]


def described(field: str) -> str:
    """What a value of a protocol is, in words."""
    return FIELDS[_key(field)]


def _key(field: str) -> str:
    """The key of `FIELDS` for a field; those by suite have one together."""
    return field if field in FIELDS else field.rpartition(".")[0]


def _flat(one: Protocol) -> Iterator[tuple[str, object]]:
    for name, value in one.values().items():
        if name == "name":
            continue
        if name == "inference" and value is None:
            yield name, RELEASE
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())
        else:
            yield name, value


def _source(one: Protocol, field: str) -> str:
    """Where a value stands: its own source, or that of the values it is among."""
    place = field
    while place not in one.sources and "." in place:
        place = place.rpartition(".")[0]
    return one.sources.get(place, UNTOLD)
