"""The trace: signals of many episodes, on which formulas are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import Place, SignalError
from safevla_bench.stl.ragged import Bools, Floats, Ints, RaggedLayout, Values


@dataclass(frozen=True)
class Trace:
    """Signals of E episodes with N records in all. Episode e owns records `starts[e]:starts[e+1]`, at least one."""

    signals: Mapping[str, NDArray[np.float64] | NDArray[np.bool_]]
    """Name -> [N], float64, or bool where the signal is Boolean."""
    starts: Ints
    """[E + 1], from 0 to N."""
    dt_s: Floats
    """Control step of each episode in seconds, [E]."""

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.dt_s) + 1 or self.starts[0] != 0 or np.any(np.diff(self.starts) < 1):
            raise SignalError("an episode without records, or offsets that do not fit the control steps")
        for name, values in self.signals.items():
            if values.shape != (self.starts[-1],):
                raise SignalError(f"signal {name!r} has shape {values.shape}, not ({self.starts[-1]},)")

    def __len__(self) -> int:
        return len(self.dt_s)

    @cached_property
    def layout(self) -> RaggedLayout:
        """Layout of the episodes in the records."""
        return RaggedLayout(self.starts)

    def record_rows(self, episodes: Ints) -> Ints:
        """Return the rows of the given episodes, one episode after the other."""
        lengths = self.layout.lengths[episodes]
        ends = np.cumsum(lengths)
        rows = np.arange(ends[-1] if len(ends) else 0)
        rows += np.repeat(self.starts[episodes] - ends + lengths, lengths)
        return rows

    def select_episodes(self, episodes: NDArray[np.bool_] | NDArray[np.integer]) -> Trace:
        """Return the trace of the chosen episodes, by a mask [E] or by indices."""
        chosen = np.flatnonzero(episodes) if episodes.dtype == np.bool_ else np.asarray(episodes, np.int64)
        if np.array_equal(chosen, np.arange(len(self))):
            return self
        rows = self.record_rows(chosen)
        starts = np.concatenate([[0], np.cumsum(self.layout.lengths[chosen])])
        return Trace({name: values[rows] for name, values in self.signals.items()}, starts, self.dt_s[chosen])

    def _signal_values(self, name: str) -> Values:
        if name not in self.signals:
            signal_names = ", ".join(sorted(self.signals)) or "none"
            raise SignalError(f"the trace has no signal {name!r}", remedy=f"it has: {signal_names}")
        return self.signals[name]

    def boolean_signal(self, name: str) -> Bools:
        """Return a Boolean signal, [N]."""
        values = self._signal_values(name)
        if values.dtype != np.bool_:
            raise SignalError(f"signal {name!r} is numeric", remedy=f"compare it, as in {name} < 1")
        return cast(Bools, values)

    def numeric_signal(self, name: str) -> Floats:
        """Return a numeric signal, [N]. It may hold NaN."""
        values = self._signal_values(name)
        if values.dtype != np.float64:
            raise SignalError(
                f"signal {name!r} holds {values.dtype}, not float64", remedy="a Boolean signal stands by itself"
            )
        return cast(Floats, values)

    def reject_nan(self, values: Values, what: str) -> None:
        """Raise a `SignalError` that names the first record at which `values`, [N], are NaN."""
        if values.dtype == np.bool_ or not np.isnan(values.max(initial=-np.inf)):
            return
        row = int(np.flatnonzero(np.isnan(values))[0])
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        step = row - int(self.starts[episode])
        raise SignalError(
            f"{what} is not a number (NaN) at record {step} of episode {episode} (of {len(self)}, counted from 0)",
            remedy="leave the episode out, or treat the signal as missing there",
            place=Place(step=step),
        )
