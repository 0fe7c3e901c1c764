"""Evaluation protocols as data: `*.toml` here, each value with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.protocols.fields import FIELDS, UNKNOWN_SOURCE, EvaluationProtocol, Inference

PRESET = "safevla-bench"
RELEASE = "release"

__all__ = [
    "FIELDS",
    "PRESET",
    "UNKNOWN_SOURCE",
    "EvaluationProtocol",
    "Inference",
    "ProtocolRow",
    "compare_protocols",
    "describe_field",
    "load_protocol",
    "protocol_names",
    "protocol_rows",
]


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """One value of one or several protocols, in their order, with the source of each."""

    field: str
    values: tuple[object, ...]
    sources: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return any(value != self.values[0] for value in self.values)


def protocol_names() -> tuple[str, ...]:
    """Return the names of the protocols that ship with the package, sorted."""
    files = (path.name for path in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


@cache
def load_protocol(name: str = PRESET) -> EvaluationProtocol:
    """Return a protocol by its name.

    Raises:
        RunError: there is none of that name; lists those there are.
    """
    if name not in protocol_names():
        raise RunError(f"there is no protocol {name!r}", remedy=f"Protocols: {', '.join(protocol_names())}.")
    content = resources.files(__package__).joinpath(f"{name}.toml").read_bytes()
    return msgspec.toml.decode(content, type=EvaluationProtocol)


def protocol_rows(*protocols: EvaluationProtocol) -> list[ProtocolRow]:
    """Return every value of the protocols, side by side, in the order of `FIELDS`; None where one says nothing."""
    columns = [dict(_flatten_values(values)) for values in protocols]
    order = list(FIELDS)
    fields = sorted(
        {field for values in columns for field in values}, key=lambda field: (order.index(_field_key(field)), field)
    )
    return [
        ProtocolRow(
            field,
            tuple(values.get(field) for values in columns),
            tuple(_value_source(values, field) for values in protocols),
        )
        for field in fields
    ]


def compare_protocols(first: EvaluationProtocol, second: EvaluationProtocol) -> list[ProtocolRow]:
    """Return the values in which two protocols differ."""
    return [row for row in protocol_rows(first, second) if row.differs]


def describe_field(field: str) -> str:
    """Return the description of a protocol's field."""
    return FIELDS[_field_key(field)]


def _field_key(field: str) -> str:
    """Return the key of `FIELDS` for a field; fields by suite share one."""
    return field if field in FIELDS else field.rpartition(".")[0]


def _flatten_values(protocol: EvaluationProtocol) -> Iterator[tuple[str, object]]:
    for name, value in protocol.values().items():
        if name == "name":
            continue
        if name == "inference" and value is None:
            yield name, RELEASE
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())
        else:
            yield name, value


def _value_source(protocol: EvaluationProtocol, field: str) -> str:
    """Return the source of a value: its own, or that of the group it belongs to."""
    place = field
    while place not in protocol.sources and "." in place:
        place = place.rpartition(".")[0]
    return protocol.sources.get(place, UNKNOWN_SOURCE)
