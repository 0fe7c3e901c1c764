"""Signals as named functions from `RecordFields` to one value per record, with unit and the raw fields read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals.record_fields import RAW_FIELDS, SIGNAL_KIND, RecordFields

Values = NDArray[np.float64] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Signal:
    """A derived signal (paper Table 19).

    `compute` returns [N]. It is NaN in every record of an episode where the signal is missing (a field of `reads` is
    not recorded) or undefined (no tracked body, or too few records for the stencil).
    """

    name: str
    unit: str
    reads: tuple[str, ...]
    boolean: bool
    event: bool
    """True if its values are 0 and 1: whether something happens."""
    ahead: bool
    """True if a value reads later records, so that it may change while the episode grows."""
    meaning: str
    compute: Callable[[RecordFields], Values]


_REGISTERED: dict[str, Signal] = {}
SIGNALS: Mapping[str, Signal] = _REGISTERED


def signal(
    *, unit: str, reads: tuple[str, ...], boolean: bool = False, event: bool = False, ahead: bool = False
) -> Callable[[Callable[[RecordFields], Values]], Callable[[RecordFields], Values]]:
    """Register a function as the signal of its name, computed once per `RecordFields`.

    The first line of its docstring is the meaning. `event` says that a numeric signal is 0 or 1. A signal that reads
    later records must set `ahead`. Any other reads its own record, record 0, and the records of the current grip, with
    the `GAP_RECORDS` + 1 before it.
    """
    unknown = set(reads) - set(RAW_FIELDS)
    assert not unknown, unknown

    def register(compute: Callable[[RecordFields], Values]) -> Callable[[RecordFields], Values]:
        name = compute.__name__
        meaning = (compute.__doc__ or "").strip().splitlines()[0]

        def compute_unsigned_zeros(fields: RecordFields) -> Values:
            values = compute(fields)
            return values if values.dtype == np.bool_ else np.add(values, 0.0)  # no -0.0 reaches an output

        @wraps(compute)
        def compute_once(fields: RecordFields) -> Values:
            return fields.compute_once(SIGNAL_KIND, name, compute_unsigned_zeros)

        _REGISTERED[name] = Signal(name, unit, reads, boolean, event, ahead, meaning, compute_once)
        return compute_once

    return register
