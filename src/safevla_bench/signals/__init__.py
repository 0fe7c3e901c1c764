"""Signals: one value per record, derived from raw fields (paper Table 19).

To add a signal, decorate a function in a module of this package with `signal`. Formulas with unknown names are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals import catalogue, handling, space
from safevla_bench.signals.signal import RAW_FIELDS, SIGNALS, RecordFields, Values
from safevla_bench.stl.formula import Formula
from safevla_bench.stl.parser import parse_formula
from safevla_bench.stl.trace import Trace
from safevla_bench.stl.units import check_units
from safevla_bench.trajectory.batch import Batch

_MODULES = (catalogue, handling, space)


@lru_cache(maxsize=1024)  # a sweep over thresholds parses the same formulas repeatedly
def parse_signal_formula(text: str, unit: str | None = None) -> Formula:
    """Parse a formula over the registered signals.

    `unit` is the unit of the placeholder `threshold`; if it is None, the placeholder counts as a number without a unit.
    Raises the same errors as `parse_formula` and `check_units`.
    """
    # `_IsBoolean` maps each known signal to whether it is Boolean. `check_units` returns a formula and a unit.
    return check_units(parse_formula(text, _IsBoolean()), signal_unit, unit)[0]


def signal_unit(name: str) -> str:
    """Return the unit of a registered signal as text, such as `m/s`."""
    return SIGNALS[name].unit


class _IsBoolean(Mapping[str, bool]):
    # Maps the name of each signal to whether the signal is Boolean.
    def __getitem__(self, name: str) -> bool:
        # Raises KeyError for an unknown name, and FormulaError for a call such as `gap(…)` with invalid arguments.
        return SIGNALS[name].boolean

    def __contains__(self, name: object) -> bool:
        # Also true for an incomplete call such as `gap(`, although `__getitem__` raises KeyError for it.
        return name in SIGNALS

    def __iter__(self) -> Iterator[str]:
        return iter(SIGNALS)  # the names of the registered signals

    def __len__(self) -> int:
        return len(SIGNALS)


def derive_signals(batch: Batch | RecordFields, names: Iterable[str]) -> Mapping[str, Values]:
    """Return the named signals over the batch's records, [N] each, sorted by name.

    A missing or undefined numeric signal is NaN throughout the episode. Raises `KeyError` for an unknown name.
    """
    # `fields` caches everything that is derived from the batch. N is the number of records of all episodes.
    fields = batch if isinstance(batch, RecordFields) else RecordFields(batch)
    with np.errstate(invalid="ignore"):
        return {name: SIGNALS[name].compute(fields) for name in sorted(set(names))}


def build_trace(fields: RecordFields, names: Iterable[str]) -> Trace:
    """Return a trace of the named signals. It marks values that depend on unknown poses, or on records past the end."""
    # A trace holds each signal's values [N], and a mask [N] of the records where the value is unknown.
    # `ends_open` is True for a signal whose last values of an episode depend on records after the end.
    sorted_names = sorted(set(names))
    values = derive_signals(fields, sorted_names)
    # Only the signals in `uncertain` may have unknown values. Unknown poses only affect signals that read poses.
    uncertain = [name for name in sorted_names if SIGNALS[name].ends_open]
    if fields.has_lost_poses:
        uncertain += [name for name in sorted_names if any(field.startswith("body_") for field in SIGNALS[name].reads)]
    with np.errstate(invalid="ignore"):
        unknown_by_signal = {name: SIGNALS[name].unknown_records(fields) for name in uncertain}
    unknown = {name: is_unknown for name, is_unknown in unknown_by_signal.items() if is_unknown.any()}
    # If any episode has time stamps, they replace the constant control step.
    stamps = fields.time_s if fields.is_stamped.any() else None
    return Trace(
        values, fields.batch.starts, fields.batch.dt_s, unknown, stamps, _find_single_precision(fields, sorted_names)
    )


def _find_single_precision(fields: RecordFields, names: Iterable[str]) -> dict[str, NDArray[np.bool_]]:
    # Map each signal to a mask [E], true for the episodes that store a field of this signal as float32.
    # Signals without such an episode are left out.
    if not any(fields.single_channels):
        return {}
    masks = {}
    for name in names:
        # A field that a signal reads is `CHANNEL` or `CHANNEL of PLACE`.
        channels_read = {field.partition(" of ")[0] for field in SIGNALS[name].reads}
        if "/s" in SIGNALS[name].unit:  # a rate of change also depends on time stamps
            channels_read.add("time_s")
        is_single = np.array([not channels_read.isdisjoint(stored) for stored in fields.single_channels])
        if is_single.any():
            masks[name] = is_single
    return masks


_HELD_TARGET = "the held target"


def describe_missing(field: str) -> str:
    """Describe a missing field, such as `body_pos_m is missing` or `no pose of flat_stove* is recorded`."""
    # A field is `CHANNEL` or `CHANNEL of PLACE`. A place is a body, such as `drawer` in `opening of drawer`.
    # A field in RAW_FIELDS is described by its name. `_HELD_TARGET` is the place `the held target`.
    channel, _, place = field.partition(" of ")
    word_of_channel = {
        "body_pos_m": "pose",
        "body_quat_wxyz": "orientation",
        "body_shapes": "shape",
        "opening": "opening",
    }
    if place == _HELD_TARGET:
        return f"the held target is unknown, or {channel} lacks it (see target_object, body_roles and gripped_body)"
    if field in RAW_FIELDS or channel not in word_of_channel:
        return f"{field} is missing"
    return f"no {word_of_channel[channel]} of {place} is recorded"


def missing_fields(batch: Batch | RecordFields, names: Iterable[str]) -> Mapping[str, NDArray[np.bool_]]:
    """Map each raw field that the signals read to a mask [E] of episodes without it. Complete fields are left out."""
    # For example: "contacts" -> True for the episodes that do not record contacts.
    fields = batch if isinstance(batch, RecordFields) else RecordFields(batch)
    raw_fields = sorted({field for name in names for field in SIGNALS[name].reads})
    lacks_by_field = {field: fields.lacks_field(field) for field in raw_fields}
    return {field: is_lacking for field, is_lacking in lacks_by_field.items() if is_lacking.any()}
