"""Signals: one value per record, derived from raw fields (paper Table 19).

To add a signal, decorate a function in the module it belongs to. The loader checks every name that a formula uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals import catalogue, space
from safevla_bench.signals.signal import SIGNALS, RecordFields, Values
from safevla_bench.stl.formula import Formula
from safevla_bench.stl.parser import parse
from safevla_bench.stl.trace import Trace
from safevla_bench.trajectory.batch import Batch

_MODULES = (catalogue, space)


@lru_cache(maxsize=1024)  # a sweep of thresholds asks for the same few again and again
def parse_formula(text: str) -> Formula:
    """Return the formula over the registered signals that a text states; raises `FormulaError` as `parse` does."""
    return parse(text, _IsBoolean())


class _IsBoolean(Mapping[str, bool]):
    def __getitem__(self, name: str) -> bool:
        return SIGNALS[name].boolean

    def __iter__(self) -> Iterator[str]:
        return iter(SIGNALS)

    def __len__(self) -> int:
        return len(SIGNALS)


def derive_signals(batch: Batch | RecordFields, names: Iterable[str]) -> Mapping[str, Values]:
    """Return the named signals, by sorted name, each [N] over the batch's records.

    A numeric signal is NaN throughout an episode if it is missing or undefined. Raises
    `KeyError` for an unknown name.
    """
    fields = batch if isinstance(batch, RecordFields) else RecordFields(batch)
    with np.errstate(invalid="ignore"):
        return {name: SIGNALS[name].compute(fields) for name in sorted(set(names))}


def build_trace(fields: RecordFields, names: Iterable[str]) -> Trace:
    """Return the named signals as a trace with the records where a signal is unknown because a body's pose is."""
    chosen = sorted(set(names))
    values = derive_signals(fields, chosen)
    unknown: dict[str, NDArray[np.bool_]] = {}
    if fields.has_lost_poses:
        with np.errstate(invalid="ignore"):
            posed = [name for name in chosen if any(field.startswith("body_") for field in SIGNALS[name].reads)]
            unknown = {name: SIGNALS[name].unknown_records(fields) for name in posed}
    lost = {name: records for name, records in unknown.items() if records.any()}
    return Trace(values, fields.batch.starts, fields.batch.dt_s, lost)


def missing_fields(batch: Batch | RecordFields, names: Iterable[str]) -> Mapping[str, NDArray[np.bool_]]:
    """Return the raw fields that the named signals read and some episode lacks, with whether each episode does, [E]."""
    fields = batch if isinstance(batch, RecordFields) else RecordFields(batch)
    raw_fields = sorted({field for name in names for field in SIGNALS[name].reads})
    lacking = {field: fields.lacks_field(field) for field in raw_fields}
    return {field: episodes for field, episodes in lacking.items() if episodes.any()}
