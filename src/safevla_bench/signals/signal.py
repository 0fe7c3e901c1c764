"""What a signal is: a named function from a `Reading` to one value a record, with its unit and the fields it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps

import numpy as np
from numpy.typing import NDArray

from safevla_bench.signals.record_fields import FIELDS, SIGNAL, Reading

Values = NDArray[np.float64] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Signal:
    """A derived signal (paper Table 19).

    `compute` returns [N]: NaN in every record of an episode where the signal is missing (a field of `reads` is not
    recorded) or undefined (nothing to measure: no tracked body, or too few records for the stencil).
    """

    name: str
    unit: str
    reads: tuple[str, ...]
    boolean: bool
    ahead: bool
    """Whether a value reads later records, so that it may change while the episode grows."""
    meaning: str
    compute: Callable[[Reading], Values]


_REGISTERED: dict[str, Signal] = {}
SIGNALS: Mapping[str, Signal] = _REGISTERED


def signal(
    *, unit: str, reads: tuple[str, ...], boolean: bool = False, ahead: bool = False
) -> Callable[[Callable[[Reading], Values]], Callable[[Reading], Values]]:
    """Register a function as the signal of its name, computed once a reading.

    The first line of its docstring is the meaning. One that reads later records must say so by `ahead`; any other
    reads its own record, record 0, and the records from the last before the current grip on.
    """
    unknown = set(reads) - set(FIELDS)
    assert not unknown, unknown

    def register(compute: Callable[[Reading], Values]) -> Callable[[Reading], Values]:
        name = compute.__name__
        meaning = (compute.__doc__ or "").strip().splitlines()[0]

        @wraps(compute)
        def once(reading: Reading) -> Values:
            return reading.once(SIGNAL, name, compute)

        _REGISTERED[name] = Signal(name, unit, reads, boolean, ahead, meaning, once)
        return once

    return register
