"""Evaluation protocols as data: the files `*.toml` in this folder, with a source for each value. A file may name
another protocol as its `base`. Then the file holds only the values that differ from the base, with their sources.

A protocol defines how episodes start and end, how a policy sees the scene, and how the policy's output becomes actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.files import list_shipped, read_shipped
from safevla_recorder.simulator_versions import version_number

Resize = Literal["none", "pad-bilinear", "lanczos3", "middle-bilinear", "area"]
Flip = Literal["none", "vertical", "180"]
Switch = Literal["raw", "open-is-one", "open-above-half", "sign", "close-is-one", "close-above-half"]
SERVER_SEED = " or server"  # an `env_seed` with this suffix: the policy's server may choose another seed
UNKNOWN_SOURCE = "unknown"  # the text for an unknown source or version
REPACKAGED: Mapping[str, str] = {"robosuite": "praxis-robosuite"}  # maps packages to distributions with the same code


class Inference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a policy sees the scene, and how the policy's output becomes actions; see `FIELDS`."""

    render: tuple[int, int]
    flip: Flip
    jpeg: bool
    image_size: tuple[int, int]
    resize: Resize
    crop: float
    state: tuple[str, ...]
    gripper: Switch
    clip: bool
    replan: int | Literal["all", "server"]


class EvaluationProtocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published way to evaluate policies. `FIELDS` describes each value, and `sources` gives its source."""

    name: str
    about: str
    wait_steps: int
    wait_action: Literal["still"] | tuple[float, ...]
    env_seed: int | Annotated[str, msgspec.Meta(pattern=rf"^(sha256|\d+ \+ episode|\d+{SERVER_SEED})$")]
    rest_steps: int
    init_state: Literal["episode", "episode % count", "drawn"]
    policy_seed: int | Literal["sha256"]
    stop_at_success: bool
    resets: Literal["as-upstream"] | None = None
    wait_steps_by_suite: dict[str, int] = {}
    trials: dict[str, int]
    horizons: dict[str, int]
    simulator: dict[str, dict[str, str]]  # host -> package -> the authors' version, `<VERSION`, or `unknown`
    inference: Inference | None = None
    sources: dict[str, str]

    def suite_wait_steps(self, suite: str) -> int:
        """Return the number of settling steps before record 0: the value for this exact suite, or else `wait_steps`."""
        # A settling step is a control step that lets objects come to rest. It is not recorded.
        return self.wait_steps_by_suite.get(suite, self.wait_steps)

    def suite_trials(self, suite: str) -> int | None:
        # Returns the number of episodes per task of the suite; None if the protocol does not define a number.
        return find_suite_value(self.trials, suite)

    def suite_horizon(self, suite: str) -> int | None:
        # Returns the maximum number of policy steps per episode; None if the protocol does not define a number.
        return find_suite_value(self.horizons, suite)

    def values(self) -> dict[str, object]:
        """Return all values by field, including the name, without `about` and `sources`. Leave out `resets` if None."""
        # `about` is a description of the protocol. Nested structs become dictionaries.
        values = msgspec.to_builtins(self)
        left_out = ["about", "sources"]
        if self.resets is None:
            left_out.append("resets")
        return {name: value for name, value in values.items() if name not in left_out}

    def version_differences(self, host: str, installed: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Map each package whose version differs to a pair: the protocol's version and the installed version. An
        unknown version does not count as different.
        """
        # `installed` maps distributions to versions. `simulator` maps hosts to expected versions by package.
        # `<1.2` means any version below 1.2, and `UNKNOWN_SOURCE` is the text for an unknown version.
        # Some packages are installed by a distribution with another name, but the same code (`REPACKAGED`).
        differing = {}
        for package, expected in self.simulator.get(host, {}).items():
            distribution = package if package in installed else REPACKAGED.get(package, package)
            version = installed.get(distribution, UNKNOWN_SOURCE)
            if UNKNOWN_SOURCE in (expected, version):
                continue
            # Tuples such as (3, 2) for "3.2.0".
            expected_number, number = version_number(expected.removeprefix("<")), version_number(version)
            is_as_expected = number < expected_number if expected.startswith("<") else number == expected_number
            if not is_as_expected:
                differing[package] = (expected, version)
        return differing

    def episode_values(self) -> dict[str, object]:
        """Return the protocol's values for run.json: all except `inference`, which is recorded with the policy."""
        # `values` also leaves out texts about the protocol.
        return {name: value for name, value in self.values().items() if name != "inference"}


FIELDS: Mapping[str, str] = msgspec.json.decode(resources.files(__package__).joinpath("fields.json").read_bytes())
"""Maps a protocol's fields to their descriptions, in the order of tables. `a.b` means the field b of the field a."""


PRESET = "safevla-bench"
RELEASE = "release"
_SUITE_PROTOCOLS = {"simpler-widowx": "simplerenv"}  # maps a suite to the protocol of the suite's evaluator


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """One field of protocols. `values` and `sources` have one entry per protocol, in the order of the protocols."""

    field: str
    values: tuple[object, ...]
    sources: tuple[str, ...]

    @property
    def differs(self) -> bool:
        # True if at least two of the compared protocols have different values.
        return any(value != self.values[0] for value in self.values)


def find_suite_value(values: Mapping[str, int], suite: str) -> int | None:
    """Return the suite's value in `values`, or the value of the longest listed prefix of its name. None without such a
    prefix. For example, libero-goal-swap has the value of libero-goal: LIBERO-PRO evaluates suites like LIBERO.
    """
    parts = suite.split("-")
    for count in range(len(parts), 0, -1):  # tries, for example, libero-goal-swap, libero-goal and libero in turn
        name = "-".join(parts[:count])
        if name in values:
            return values[name]
    return None


def default_protocol(suites: Iterable[str]) -> str:
    """Return the name of the default protocol: the suites' protocol if all suites share one, else `PRESET`."""
    # `PRESET` is the name of this package's own protocol. Few suites have another default.
    chosen = {_SUITE_PROTOCOLS.get(suite, PRESET) for suite in suites}
    return chosen.pop() if len(chosen) == 1 else PRESET


def protocol_names() -> tuple[str, ...]:
    """Return the names of the protocols that ship with the package, sorted."""
    # Each protocol is a file `<name>.toml` in this package's folder.
    return list_shipped(__package__)


@cache
def load_protocol(name: str = PRESET) -> EvaluationProtocol:
    """Return a protocol by name; raise `RunError` with a list of the names if there is no protocol with this name."""
    if name not in protocol_names():
        raise RunError(f"there is no protocol {name!r}", remedy=f"Protocols: {', '.join(protocol_names())}.")
    return msgspec.convert(_read_values(name), EvaluationProtocol)


def _read_values(name: str) -> dict[str, Any]:
    # Returns a protocol's values. `base` is the name of another protocol, or None if the file has no base.
    # The base's values count for everything that this protocol's file does not give.
    values = read_shipped(__package__, f"{name}.toml", dict[str, Any])
    base = values.pop("base", None)
    return _merge_values(_read_values(base), values) if base else values


def _merge_values(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    # Returns a new dictionary with the values of both dictionaries. Tables that exist in both are merged recursively.
    # All other values in `changes` replace the values in `base`.
    merged = {key: _merge_values(base[key], changes[key]) for key in changes if isinstance(base.get(key), dict)}
    return {**base, **changes, **merged}


def preset_differences(recorded: Mapping[str, object]) -> list[str]:
    """Return the fields of a protocol in run.json whose values differ from the shipped protocol of the same name."""
    # `recorded` maps fields to the values that a run used. The fields are sorted.
    # Without a shipped protocol of this name, the list of fields is empty.
    name = recorded.get("name")
    if name not in protocol_names():
        return []
    # The round trip through JSON turns tuples into lists, as in run.json.
    preset = msgspec.json.decode(msgspec.json.encode(load_protocol(str(name)).episode_values()))
    recorded_values = msgspec.json.decode(msgspec.json.encode(recorded))
    return sorted(field for field in {*preset, *recorded_values} if preset.get(field) != recorded_values.get(field))


def protocol_rows(*protocols: EvaluationProtocol) -> list[ProtocolRow]:
    """Return one row for each field except the name. The rows are sorted by the order of `FIELDS`, then by field name.
    A row holds the field's value in each protocol; None if a protocol lacks the field.
    """
    # A field of a nested table has a dotted name: `horizons.libero-goal` is in the table `horizons`.
    # `FIELDS` maps fields to descriptions, in the order of display. A field without an entry has its table's entry.
    # A protocol's `sources` map fields to sources in the same way.
    columns = [dict(_flatten_field("", protocol.values())) for protocol in protocols]  # one per protocol
    field_order = list(FIELDS)
    fields = sorted(set().union(*columns), key=lambda field: (field_order.index(_nearest_key(FIELDS, field)), field))
    rows = []
    for field in fields:
        sources = (
            protocol.sources.get(_nearest_key(protocol.sources, field), UNKNOWN_SOURCE) for protocol in protocols
        )
        rows.append(ProtocolRow(field, tuple(column.get(field) for column in columns), tuple(sources)))
    return rows


def describe_field(field: str) -> str:
    """Return the description of a field, given the field's name in a row of `protocol_rows`."""
    # If a dotted field such as `horizons.libero-goal` has no description, the description of `horizons` is returned.
    return FIELDS[_nearest_key(FIELDS, field)]


def _flatten_field(name: str, value: object) -> Iterator[tuple[str, object]]:
    # Yields (dotted name, value) of each field except the protocol's name. `name` is the dotted name of `value`.
    # At the top, `name` is "". A missing `inference` becomes `RELEASE`: the policy's release defines the inference.
    if isinstance(value, Mapping):
        for key, inner_value in value.items():
            yield from _flatten_field(f"{name}.{key}" if name else key, inner_value)
    elif name == "inference" and value is None:
        yield name, RELEASE
    elif name != "name":
        yield name, value


def _nearest_key(keys: Mapping[str, object], field: str) -> str:
    # Returns the longest dotted prefix of `field` that is in `keys`, or the first part if no prefix is in `keys`.
    # For example, `horizons.libero-goal` has the prefixes `horizons.libero-goal` and `horizons`.
    while field not in keys and "." in field:
        field = field.rpartition(".")[0]
    return field
