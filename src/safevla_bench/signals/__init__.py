"""Signals: one value a record, derived from raw fields (paper Table 19).

To add one, decorate a function in the module it belongs to; every name that a specification uses is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals import actuation, contact, handling, kinematics
from safevla_bench.signals.record_fields import Reading
from safevla_bench.signals.signal import SIGNALS, Signal, Values
from safevla_bench.trajectory import Batch

__all__ = ["SIGNALS", "Reading", "Signal", "derive", "missing"]

_MODULES = (actuation, contact, handling, kinematics)


def derive(batch: Batch | Reading, names: Iterable[str]) -> Mapping[str, Values]:
    """The named signals, each [N] over the batch's records; NaN throughout an episode where missing or undefined."""
    reading = batch if isinstance(batch, Reading) else Reading(batch)
    with np.errstate(invalid="ignore"):
        return {name: SIGNALS[name].compute(reading) for name in sorted(set(names))}


def missing(batch: Batch | Reading, names: Iterable[str]) -> Mapping[str, NDArray[np.bool_]]:
    """The raw fields that the named signals read and some episode lacks, and which episodes: field -> [E]."""
    reading = batch if isinstance(batch, Reading) else Reading(batch)
    fields = sorted({field for name in names for field in SIGNALS[name].reads})
    lacking = {field: reading.lacks(field) for field in fields}
    return {field: where for field, where in lacking.items() if where.any()}
