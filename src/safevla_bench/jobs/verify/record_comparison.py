"""Comparison of a record with its replay: every channel, and what the host says of the episode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from safevla_bench.archive.json_text import encode_json
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import CLIPPED, CLIPPED_NUMBERS, DIVERGED, PRIVILEGED, STANDIN, STOPPED_ON_VIOLATION
from safevla_recorder.channels import CHANNELS

ABSENT = object()
"""Stands for a value that one side lacks."""
UNJUDGED = ("sim_state",)
"""Channels that no clause reads: a record may lack them."""
OF_LAST_STEP = ("contacts", "joint_torque_nm", "joint_torque_peak_nm", "gripper_contact", "gripped_body")
"""Channels that hang on the step before, which no simulator state holds."""
_PLANNED = ("episode_id", "env_seed", "init_state_index", "seed", "horizon")
_RUN_FIELDS = frozenset(
    (*_PLANNED, "schema_version", "policy", "outcome", "success", "versions", "steps")
    + (PRIVILEGED, STOPPED_ON_VIOLATION, CLIPPED, CLIPPED_NUMBERS, DIVERGED, "replay")
)
"""Fields of an episode that the run or its start give and not the host, and those that are compared on their own."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a record and its replay differ in one channel, or in one field of the header."""

    channel: str
    field: str
    """The place in the channel, such as `body_pos_m.cup[0]`."""
    recorded: object
    replayed: object
    """Plain values of JSON, `ABSENT` where that side has none."""
    source: str = "replay"
    """Where the second value is from."""
    step: int | None = None
    """The record, from 0; None in the header."""

    def __str__(self) -> str:
        where = self.field if self.step is None else f"step {self.step}, {self.field}"
        recorded, other = format_value(self.recorded), format_value(self.replayed)
        return f"{where}: {recorded} is recorded, the {self.source} has {other}"


_Step = dict[str, msgspec.Raw]


class _Line(msgspec.Struct):
    """An episode as JSON, the channels of its steps undecoded."""

    steps: list[_Step]


def compare_records(
    recorded: Batch, replayed: Batch, tolerance: float = 0.0, *, lenient: bool = False, skip_first: Sequence[str] = ()
) -> tuple[list[Difference], list[str]]:
    """Return the first difference in each channel and field of the header, the earliest first, and what was not
    compared.

    Compared are all channels of `CHANNELS`, and the header as far as the host gives it: roles, target, limits and marks
    decide verdicts too. Numbers are equal bit for bit, or differ by at most `tolerance`, absolute or relative. A
    channel that the record lacks differs, but for `UNJUDGED`; if `lenient` it is not compared, and named.
    """
    lines = [encode_json(batch) for batch in (recorded, replayed)]
    steps, again = (msgspec.json.decode(line, type=_Line).steps for line in lines)
    differences = list(_header_differences(*map(json.loads, lines), lenient=lenient))
    if len(steps) != len(again):
        differences.append(Difference("steps", "steps", len(steps), len(again)))
    uncompared = []
    for name in (spec.name for spec in CHANNELS):
        is_recorded, is_replayed = (any(name in step for step in side) for side in (steps, again))
        if is_replayed and not is_recorded and (lenient or name in UNJUDGED):
            uncompared.append(name)
        else:
            differences += _channel_difference(name, steps, again, tolerance, first=int(name in skip_first))
    return sorted(differences, key=lambda difference: difference.step or 0), uncompared


def _header_differences(
    recorded: Mapping[str, object], replayed: Mapping[str, object], *, lenient: bool
) -> Iterator[Difference]:
    shared = {STANDIN, *(recorded.keys() & {"body_roles", *Header.__struct_fields__})}
    names = shared if lenient else {*recorded, *replayed}
    for name in sorted(names - _RUN_FIELDS):
        yield from _first_difference(name, recorded.get(name, ABSENT), replayed.get(name, ABSENT))


def _channel_difference(
    name: str, recorded: Sequence[_Step], replayed: Sequence[_Step], tolerance: float, first: int
) -> Iterator[Difference]:
    for step, sides in enumerate(zip(recorded[first:], replayed[first:], strict=False), start=first):
        own, other = (bytes(side[name]) if name in side else b"" for side in sides)
        if own != other:
            values = [msgspec.json.decode(text) if text else ABSENT for text in (own, other)]
            if found := next(_first_difference(name, values[0], values[1], tolerance), None):
                yield replace(found, step=step)
                return


def _first_difference(name: str, first: object, second: object, tolerance: float = 0.0) -> Iterator[Difference]:
    for field, value, other in value_differences(first, second, name, tolerance):
        yield Difference(name, field, value, other)
        return


def plan_differences(header: Header, planned: PlannedEpisode) -> list[Difference]:
    """Return where a record's id, start, seed and horizon are not those of the plan."""
    expected = (planned.episode_id, planned.start.env_seed, planned.start.init_state_index, planned.seed)
    pairs = zip(_PLANNED, (*expected, planned.horizon), strict=True)
    return [
        Difference(name, name, value, plan, source="plan")
        for name, plan in pairs
        if (value := getattr(header, name)) != plan
    ]


def outcome_differences(header: Header, successes: Sequence[bool], planned: PlannedEpisode | None) -> list[Difference]:
    """Return where success and outcome of a record are not those of its replay, or it goes on beyond its end."""
    steps, success = len(successes), bool(successes and successes[-1])
    found = [] if header.success == success else [Difference("success", "success", header.success, success)]
    outcomes = _possible_outcomes(success=success, at_end=None if planned is None else steps == planned.horizon)
    if header.outcome_label not in outcomes:
        found.append(Difference("outcome", "outcome", header.outcome, " or ".join(outcomes)))
    if planned and planned.stop_at_success and True in successes[:-1]:
        found.append(Difference("success", "success", False, True, step=successes.index(True) + 1))
    if planned and steps > planned.horizon:
        found.append(Difference("steps", "steps", steps, planned.horizon, source="plan"))
    return found


def _possible_outcomes(*, success: bool, at_end: bool | None) -> tuple[str, ...]:
    if success:
        return ("success",)
    early = ("invalid_action", "stopped")
    return ("failure", "timeout", *early) if at_end is None else ("timeout",) if at_end else early


def value_differences(
    first: object, second: object, field: str = "", tolerance: float = 0.0
) -> Iterator[tuple[str, object, object]]:
    """Yield (place, value, other value) for each difference of two JSON values; a place is such as `field.b[2]`.

    Lists of different lengths, and values of different types, differ as a whole. Numbers of a type differ by more than
    `tolerance`, absolute and relative, if that is not 0.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            place = f"{field}.{key}" if field else key
            yield from value_differences(first.get(key, ABSENT), second.get(key, ABSENT), place, tolerance)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (item, other) in enumerate(zip(first, second, strict=True)):
            yield from value_differences(item, other, f"{field}[{index}]", tolerance)
    elif type(first) is not type(second) or not _is_equal(first, second, tolerance):
        yield field, first, second


def _is_equal(first: object, second: object, tolerance: float) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        near = bool(tolerance) and np.isclose(first, second, rtol=tolerance, atol=tolerance)
        return bool(near) or first.hex() == second.hex()
    return first == second


def format_value(value: object) -> str:
    """Return a value as JSON, cut after 200 characters; "nothing" for a value that is not there."""
    text = "nothing" if value is ABSENT else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
