"""Traces: signals of many episodes in one flat array [N], and temporal operators on these signals.

Values are margins (float64) or Booleans (bool). `np.minimum` and `np.maximum` work for both, since False < True. No
Python loop runs over records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import Place, SignalError

if TYPE_CHECKING:  # `typing` has `TypeIs` since Python 3.13
    from typing_extensions import TypeIs

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Values: TypeAlias = Floats | Bools


def are_boolean(values: Values) -> TypeIs[Bools]:
    """Return whether the values are Booleans, not margins."""
    return values.dtype == np.bool_


@dataclass(frozen=True, slots=True)
class Fold:
    """Minimum or maximum, and its value over an empty set."""

    ufunc: np.ufunc
    empty_value: float

    def neutral_value(self, values: Values) -> float | bool:
        """Return the value over an empty set: True or False if `values` are Booleans, else plus or minus infinity."""
        # A fold is a minimum (MIN) or a maximum (MAX). `empty_value` is its value over an empty set of numbers.
        # The value is +inf (MIN) or -inf (MAX), whose Boolean counterparts are True and False.
        return self.empty_value > 0 if values.dtype == np.bool_ else self.empty_value


MIN = Fold(np.minimum, np.inf)
MAX = Fold(np.maximum, -np.inf)
ROUNDING, ROUNDING_SINGLE = 1e-9, 1e-4
"""Relative difference up to which two numbers count as equal. For a number stored as float32, use ROUNDING_SINGLE."""
BLOCK_RECORDS = 1 << 16
"""Number of records processed at a time. Their float64 values take half a megabyte, which fits into a core's cache."""


def fold_spans(values: Values, fold: Fold, lo: Ints, hi: Ints) -> Values:
    """Return the minimum or maximum (`fold`) of values[lo:hi] for each range. Ranges may overlap; an empty range gives
    the fold's neutral value. Any range is covered by two overlapping spans of the same length, a power of two.
    """
    # `lo` and `hi` hold the bounds of each range, [R]; the result is [R].
    # The computing time grows with log2 of the longest range.
    folded = np.full_like(values, fold.neutral_value(values), shape=lo.shape)
    width, span, covered = hi - lo, 1, values  # covered[k] is the fold over values[k : k + span]
    while span <= width.max(initial=0):
        # A range of this width is covered by two spans, one at its start and one at its end, which overlap or touch.
        chosen = np.flatnonzero((width >= span) & (width < 2 * span))
        folded[chosen] = fold.ufunc(covered[lo[chosen]], covered[hi[chosen] - span])
        covered, span = fold.ufunc(covered[:-span], covered[span:]), 2 * span
    return cast(Values, folded)


def fold_until(hold: Values, reach: Values, lo: Ints, hi: Ints) -> Values:
    """Return out[t] = max over t' in [lo[t], hi[t]) of min(reach[t'], min of hold over t .. t'-1), [N]. `lo[t]` is
    never before t. An empty range gives minus infinity, or False for Booleans. Each run of records has two values: this
    maximum (reached) and the minimum of `hold` (held). Two adjacent runs a and b join to one run with reached =
    max(reached_a, min(held_a, reached_b)) and held = min(held_a, held_b). The binary digits of a range's width select
    the runs of length 1, 2, 4, ... that make up the range.
    """
    # `hold` and `reach` are [N]: the values of the left and right sides of the operator `until` at each record.
    # At first, `held` covers the records from t to lo[t]. There, `reach` does not count. The runs of the range follow.
    reached = np.full_like(reach, MAX.neutral_value(reach))
    held = fold_spans(hold, MIN, np.arange(len(hold)), lo)
    # `part_reached[i]` and `part_held[i]` are for the `span` records from i on. A range's next run is at `position`.
    part_reached, part_held, position, width, span = reach, hold, lo.copy(), hi - lo, 1
    while span <= width.max(initial=0):
        # To each range whose width has the binary digit `span`, join the next `span` records.
        joined = np.flatnonzero(width & span)
        reached_after = np.minimum(held[joined], part_reached[position[joined]])
        reached[joined] = np.maximum(reached[joined], reached_after)
        held[joined] = np.minimum(held[joined], part_held[position[joined]])
        position[joined] += span
        # Double the length of the runs, in the same way.
        part_reached = np.maximum(part_reached[:-span], np.minimum(part_held[:-span], part_reached[span:]))
        part_held = np.minimum(part_held[:-span], part_held[span:])
        span *= 2
    return reached


def subtract(minuend: Floats | float, subtrahend: Floats | float, rounding: Floats | float) -> Floats:
    """Return the difference, or exactly 0 if the two numbers are equal up to rounding. As in `math.isclose`, numbers
    are equal if they differ by at most `rounding` times the larger magnitude. Arguments broadcast.
    """
    count = max(np.size(minuend), np.size(subtrahend))
    if count > BLOCK_RECORDS and max(np.ndim(minuend), np.ndim(subtrahend)) == 1:  # blocks that fit into the cache
        result = np.empty(count)
        for first in range(0, count, BLOCK_RECORDS):
            rows = slice(first, first + BLOCK_RECORDS)
            arguments = (
                argument[rows] if np.size(argument) == count else argument
                for argument in map(np.asarray, (minuend, subtrahend, rounding))
            )
            result[rows] = subtract(*arguments)
        return result
    difference = np.asarray(np.subtract(minuend, subtrahend))
    # If two numbers are equal up to a `rounding` of at most 0.5, neither is more than twice the other.
    # So all equal numbers pass this quick test.
    is_near = np.abs(difference) <= np.abs(np.multiply(subtrahend, 2.0 * rounding))
    if not is_near.any():
        return difference
    magnitude = np.maximum(np.abs(minuend), np.abs(subtrahend))
    limit = np.minimum(magnitude * rounding, np.finfo(np.float64).max)  # infinity is equal only to itself
    return np.where(is_near & (np.abs(difference) <= limit), 0.0, difference)


def fold_ranges(values: Values, fold: Fold, lo: Ints, hi: Ints) -> Values:
    """Return the fold of values[lo:hi] for each of `E` ranges, [E]. The ranges are disjoint and ascend."""
    # A fold is a minimum or a maximum.
    # An empty range has the fold's neutral value: +inf or True for MIN, -inf or False for MAX.
    # Fast case: the ranges are not empty, adjoin each other and end with the values.
    if len(lo) and hi[-1] == len(values) and np.array_equal(lo[1:], hi[:-1]) and bool(np.all(lo < hi)):
        return np.asarray(fold.ufunc.reduceat(values, lo))
    is_filled = lo < hi
    # `reduceat` also folds from the end of each range to the start of the next range; [::2] drops these results.
    # An index past the end of the values must be removed, because `reduceat` rejects it.
    cuts = np.column_stack([lo[is_filled], hi[is_filled]]).ravel()
    cuts = cuts[:-1] if len(cuts) and cuts[-1] == len(values) else cuts
    folded = np.empty_like(values, shape=(len(lo),))
    folded[is_filled] = fold.ufunc.reduceat(values, cuts)[::2]
    folded[~is_filled] = fold.neutral_value(values)
    return folded


def fold_pieces(values: Floats, fold: Fold, cuts: Ints) -> Floats:
    """Return the fold (minimum or maximum) of `P` adjacent pieces of values, [P]. `cuts` holds the first index of each
    piece and starts with 0. Values are read block by block: folding short pieces of a cached block is quick.
    """
    if len(values) <= BLOCK_RECORDS:
        return np.asarray(fold.ufunc.reduceat(values, cuts))
    folded, ends = np.empty(len(cuts)), np.append(cuts, len(values))
    # For each block of records, the index of the first piece that starts at or after the block's first record.
    first_pieces = np.searchsorted(cuts, np.arange(0, len(values), BLOCK_RECORDS))
    for first, last in pairwise([*first_pieces.tolist(), len(cuts)]):
        block = values[ends[first] : ends[last]]
        block.max(initial=-np.inf)  # reads the block into the cache; the result is not used
        fold.ufunc.reduceat(block, cuts[first:last] - ends[first], out=folded[first:last])
    return folded


def first_true(flags: Bools, lo: Ints, hi: Ints) -> Ints:
    """Return the first index in each range [lo, hi) at which a flag is set, [E]; -1 if there is none."""
    # `flags` is [N]. `lo` and `hi` hold the bounds of E ranges.
    rises = np.flatnonzero(flags[1:] > flags[:-1]) + 1  # where a set flag follows an unset flag
    # The first rise at or after `lo`. Without a rise, it is len(flags), which is never below `hi`.
    next_rise = np.searchsorted(rises, lo)
    first = np.append(rises, len(flags))[next_rise]
    # If the flag at `lo` is set already, `lo` is the first index. `np.minimum` keeps an empty range's `lo` in bounds.
    first = np.where((lo < hi) & flags[np.minimum(lo, len(flags) - 1)], lo, first) if len(flags) else first
    return np.where(first < hi, first, -1)


# The trace


@dataclass(frozen=True)
class Trace:
    """Signals of `E` episodes with `N` records in all. Episode e owns records `starts[e]:starts[e+1]`, at least one.
    Raises `SignalError` if an episode has no record, the starts do not match `dt_s`, or a signal is not [N].
    """

    signals: Mapping[str, NDArray[np.float64] | NDArray[np.bool_]]
    """Maps a signal's name to its values, [N]: float64, or bool if the signal is Boolean."""
    starts: Ints  # the first record of each episode, followed by N, [E + 1]
    dt_s: Floats  # control step of each episode in seconds, [E]
    unknown: Mapping[str, Bools] = field(default_factory=dict)
    """Maps a signal's name to whether its value is unknown at each record, [N]; all other signals are known.

    At these records the value is a lower bound of the true value; NaN gives no bound. A Boolean may be True or False.
    """
    time_s: Floats | None = None
    """Increasing time stamps of the records in s, [N]; NaN in episodes without stamps; None if all episodes lack them.

    Windows use stamps, if there are any, instead of control steps.
    """
    single: Mapping[str, Bools] = field(default_factory=dict)
    """Maps a signal to a mask of the episodes in which it was stored as float32, [E]; other signals never were."""

    def __post_init__(self) -> None:
        # `starts` holds the first row of each episode and, at its end, the number of rows.
        # `dt_s` has each episode's control step, and `signals` maps each name to the signal's values.
        if len(self.starts) != len(self.dt_s) + 1 or self.starts[0] != 0 or np.any(np.diff(self.starts) < 1):
            raise SignalError("the trace has an episode without records, or offsets `starts` that do not fit `dt_s`")
        for name, values in self.signals.items():
            if values.shape != (self.starts[-1],):
                raise SignalError(f"signal {name!r} has shape {values.shape}, not ({self.starts[-1]},)")

    def __len__(self) -> int:
        # The length of a trace is the number of its episodes, not of its records. `dt_s` has one value per episode.
        return len(self.dt_s)

    @cached_property
    def lengths(self) -> Ints:
        """Number of records of each episode, [E]."""
        return np.diff(self.starts)

    def record_rows(self, episodes: Ints) -> Ints:
        """Return the rows of all records of the given episodes, one episode after the other, in the order given."""
        # `starts` holds the first row of each episode.
        # For example, episodes with rows 0-2 and 3-4 give [3, 4, 0, 1, 2] for the episodes [1, 0].
        lengths = self.lengths[episodes]
        ends = np.cumsum(lengths)
        # Number the new rows, then shift each episode's rows from their new start to their start in this trace.
        rows = np.arange(ends[-1] if len(ends) else 0)
        new_starts = ends - lengths
        rows += np.repeat(self.starts[episodes] - new_starts, lengths)
        return rows

    def select_episodes(self, episodes: NDArray[np.bool_] | NDArray[np.integer]) -> Trace:
        """Return a trace of the episodes that a mask [E] or indices choose. Return `self` for all episodes in order."""
        chosen = np.flatnonzero(episodes) if episodes.dtype == np.bool_ else np.asarray(episodes, np.int64)
        if np.array_equal(chosen, np.arange(len(self))):
            return self
        return self.cut(chosen, self.starts[chosen], self.starts[chosen + 1])

    def cut(self, chosen: Ints, lo: Ints, hi: Ints) -> Trace:
        """Return a trace whose episode k has the rows lo[k]:hi[k] from episode chosen[k]; episodes may be repeated."""
        lengths = hi - lo
        starts = np.concatenate([[0], np.cumsum(lengths)])
        # Row of this trace for each row of the new one.
        rows = np.arange(starts[-1]) + np.repeat(lo - starts[:-1], lengths)
        # `unknown` and `signals` have one value per row, `single` and `dt_s` one per episode.
        unknown = {name: records[rows] for name, records in self.unknown.items()}
        single = {name: episodes[chosen] for name, episodes in self.single.items()}
        signals = {name: values[rows] for name, values in self.signals.items()}
        stamps = None if self.time_s is None else self.time_s[rows]
        return Trace(signals, starts, self.dt_s[chosen], unknown, stamps, single)

    def rounding(self, names: Iterable[str]) -> Floats:
        """Return for each episode the relative difference up to which a signal counts as equal to a limit, [E]."""
        # `single` maps a signal to a mask [E] of the episodes in which it was stored as float32.
        # An episode has the coarser rounding if any of the named signals was stored as float32.
        single_masks = [self.single[name] for name in names if name in self.single]
        is_single = np.logical_or.reduce([np.zeros(len(self), np.bool_), *single_masks])
        return np.where(is_single, ROUNDING_SINGLE, ROUNDING)

    def _signal_values(self, name: str) -> Values:
        # Return the values of a signal at every record, [N]. Raises `SignalError` if the trace does not have it.
        if name not in self.signals:
            signal_names = ", ".join(sorted(self.signals)) or "none"
            raise SignalError(f"the trace has no signal {name!r}", remedy=f"signals of the trace: {signal_names}")
        return self.signals[name]

    def boolean_signal(self, name: str) -> Bools:
        """Return a Boolean signal, [N]. Raises `SignalError` if the signal is missing or numeric."""
        values = self._signal_values(name)
        if values.dtype != np.bool_:
            raise SignalError(f"signal {name!r} is numeric, not Boolean", remedy=f"use a comparison: {name} < 1")
        return cast(Bools, values)

    def numeric_signal(self, name: str) -> Floats:
        """Return a numeric signal, [N], which may hold NaN. Raises `SignalError` unless it is float64."""
        values = self._signal_values(name)
        if values.dtype != np.float64:
            raise SignalError(
                f"signal {name!r} holds {values.dtype}, not float64",
                remedy="use a Boolean signal on its own, without a comparison",
            )
        return cast(Floats, values)

    def is_undefined(self, name: str) -> Bools:
        """Return whether a numeric signal is undefined in each episode, [E]: its value at record 0 is NaN, but not
        marked as unknown. Raises `SignalError` if the signal is missing or not numeric.
        """
        # `starts` holds the first row of each episode and, at its end, the number of rows.
        first = self.starts[:-1]
        undefined = np.isnan(self.numeric_signal(name)[first])
        return undefined & ~self.unknown[name][first] if name in self.unknown else undefined

    def least_values(self, name: str) -> Floats:
        """Return the lower bound of a numeric signal's true value, [N]: the stored value, or -inf for NaN."""
        # A value that is marked as unknown is stored as its lower bound, or as NaN if no bound is known.
        values = self.numeric_signal(name)
        return np.where(np.isnan(values), -np.inf, values)

    def reject_nan(self, values: Values, what: str) -> None:
        """Raise a `SignalError` if any of the `values`, [N], is NaN. The message begins with `what`, the name of the
        values, and gives the first such record. Booleans are never NaN.
        """
        # The maximum is NaN if any value is, and needs no temporary array.
        if values.dtype == np.bool_ or not np.isnan(values.max(initial=-np.inf)):
            return
        row = int(np.flatnonzero(np.isnan(values))[0])
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        step = row - int(self.starts[episode])
        raise SignalError(
            f"{what} is not a number (NaN) at record {step} of episode {episode} (of {len(self)}, counted from 0)",
            remedy="leave the episode out, or treat its signal as missing",
            place=Place(step=step),
        )
