"""Signals: one value per record, derived from raw fields (paper Table 19).

To add a signal, decorate a function in a module of this package with `signal`. The loader checks all names in formulas.
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


@lru_cache(maxsize=1024)  # a sweep of thresholds parses the same few formulas repeatedly
def parse_signal_formula(text: str, unit: str | None = None) -> Formula:
    """Parse a formula over the registered signals.

    `unit` is the unit of the placeholder `threshold`; if it is None, the placeholder counts as a number without a unit.
    Raises the same errors as `parse_formula` and `check_units`.
    """
    return check_units(parse_formula(text, _IsBoolean()), signal_unit, unit)[0]


def signal_unit(name: str) -> str:
    """Return the unit of a registered signal, in the form that `check_units` needs."""
    return SIGNALS[name].unit


class _IsBoolean(Mapping[str, bool]):
    def __getitem__(self, name: str) -> bool:
        return SIGNALS[name].boolean

    def __iter__(self) -> Iterator[str]:
        return iter(SIGNALS)

    def __len__(self) -> int:
        return len(SIGNALS)


def derive_signals(batch: Batch | RecordFields, names: Iterable[str]) -> Mapping[str, Values]:
    """Return the named signals, by sorted name, each [N] over the batch's records.

    A numeric signal is NaN throughout an episode if it is missing or undefined. Raises `KeyError` for an unknown name.
    """
    fields = batch if isinstance(batch, RecordFields) else RecordFields(batch)
    with np.errstate(invalid="ignore"):
        return {name: SIGNALS[name].compute(fields) for name in sorted(set(names))}


def build_trace(fields: RecordFields, names: Iterable[str]) -> Trace:
    """Return the named signals as a trace, which marks values that a lost pose or the episode's end makes unknown."""
    chosen = sorted(set(names))
    values = derive_signals(fields, chosen)
    uncertain = [name for name in chosen if SIGNALS[name].ends_open]
    if fields.has_lost_poses:
        uncertain += [name for name in chosen if any(field.startswith("body_") for field in SIGNALS[name].reads)]
    with np.errstate(invalid="ignore"):
        unknown = {name: SIGNALS[name].unknown_records(fields) for name in uncertain}
    lost = {name: records for name, records in unknown.items() if records.any()}
    stamps = fields.time_s if fields.is_stamped.any() else None
    return Trace(values, fields.batch.starts, fields.batch.dt_s, lost, stamps, _find_single(fields, chosen))


def _find_single(fields: RecordFields, names: Iterable[str]) -> dict[str, NDArray[np.bool_]]:
    if not any(fields.single_channels):
        return {}
    found = {}
    for name in names:
        sources = {field.partition(" of ")[0] for field in SIGNALS[name].reads}
        sources |= {"time_s"} if "/s" in SIGNALS[name].unit else set()
        found[name] = np.array([not sources.isdisjoint(stored) for stored in fields.single_channels])
    return {name: episodes for name, episodes in found.items() if episodes.any()}


def describe_missing(field: str) -> str:
    """Describe a missing field, such as `body_pos_m is missing` or `no pose of flat_stove* is recorded`."""
    channel, _, place = field.partition(" of ")
    words = {"body_pos_m": "pose", "body_quat_wxyz": "orientation", "body_shapes": "shape", "opening": "opening"}
    if field in RAW_FIELDS or channel not in words:
        return f"{field} is missing"
    return f"no {words[channel]} of {place} is recorded"


def missing_fields(batch: Batch | RecordFields, names: Iterable[str]) -> Mapping[str, NDArray[np.bool_]]:
    """Return raw field -> whether each episode lacks it, [E], for fields that the signals read and an episode lacks."""
    fields = batch if isinstance(batch, RecordFields) else RecordFields(batch)
    raw_fields = sorted({field for name in names for field in SIGNALS[name].reads})
    lacking = {field: fields.lacks_field(field) for field in raw_fields}
    return {field: episodes for field, episodes in lacking.items() if episodes.any()}
