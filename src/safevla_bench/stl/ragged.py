"""Temporal operators on many episodes at once.

Values are margins, float64, or crisp truths, bool: `np.minimum` and `np.maximum` serve both, since False < True. All
episodes lie in one flat array [N]; no step is looped over in Python. A window [first, last] counts records from each
record on and is clipped at the end of its episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # part of typing from Python 3.13 on
    from typing_extensions import TypeIs

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Values: TypeAlias = Floats | Bools


def is_crisp(values: Values) -> TypeIs[Bools]:
    """Whether the values are truths, not margins."""
    return values.dtype == np.bool_


@dataclass(frozen=True, slots=True)
class Fold:
    """Minimum or maximum, and its value over nothing."""

    ufunc: np.ufunc
    over_nothing: float

    def neutral(self, values: Values) -> float | bool:
        """The value over nothing in the kind of `values`."""
        return self.over_nothing > 0 if values.dtype == np.bool_ else self.over_nothing


MIN = Fold(np.minimum, np.inf)
MAX = Fold(np.maximum, -np.inf)


@dataclass(frozen=True)
class Ragged:
    """Where E episodes lie in N records: episode e owns `starts[e]:starts[e+1]`, one record at least."""

    starts: Ints

    @cached_property
    def lengths(self) -> Ints:
        """Records of each episode, [E]."""
        return np.diff(self.starts)

    @cached_property
    def longest(self) -> int:
        """Records of the longest episode."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def episode_of(self) -> Ints:
        """The episode of each record, [N]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def remaining(self) -> Ints:
        """Records from each record to its episode's end, itself included, [N]."""
        return np.repeat(self.starts[1:], self.lengths) - np.arange(self.starts[-1])

    def ahead(self, values: Values, steps: int, past_end: float | bool) -> Values:
        """out[t] = values[t + steps], or `past_end` where the episode is over by then, [N]."""
        if steps == 0:
            return values
        moved = np.full_like(values, past_end)
        if steps < len(values):
            moved[:-steps] = np.where(self.remaining[:-steps] > steps, values[steps:], past_end)
        return moved

    def window(self, values: Values, fold: Fold, first: int, last: int) -> Values:
        """out[t] = the fold over values[t+first .. t+last], [N].

        Doubling: a window of 2w records is two of w, and any width two overlapping windows of a power of two, so that
        the cost grows with the logarithm of the width only.
        """
        nothing = fold.neutral(values)
        width = min(last, self.longest - 1) - first + 1
        if width <= 0:
            return np.full_like(values, nothing)
        covered, span = values, 1
        while span < width:
            step = min(span, width - span)
            covered = fold.ufunc(covered, self.ahead(covered, step, nothing))
            span += step
        return self.ahead(covered, first, nothing)

    def onwards(self, values: Values, fold: Fold, first: int) -> Values:
        """out[t] = the fold over values[t+first ..] up to the end of the episode, [N].

        One accumulate from the back. Complex numbers compare by their real parts first; an episode's number there
        makes the accumulate start afresh in each episode.
        """
        keys = np.empty(len(values), np.complex128)
        keys.real = self.episode_of if fold is MIN else -self.episode_of
        keys.imag = values
        folded = np.empty_like(values)
        folded[:] = fold.ufunc.accumulate(keys[::-1])[::-1].imag
        return self.ahead(folded, first, fold.neutral(values))

    def until(self, hold: Values, reach: Values, first: int, last: int) -> Values:
        """out[t] = max over t' in [t+first, t+last] of min(reach[t'], min of hold over t .. t'-1), [N].

        Doubling over pairs (reached, held): a stretch a followed by a stretch b reaches max(reached_a, min(held_a,
        reached_b)) and holds min(held_a, held_b). The stretch is put together from the binary digits of its width.
        """
        fails, holds = MAX.neutral(reach), MIN.neutral(hold)
        width = min(last, self.longest - 1) - first + 1
        if width <= 0:
            return np.full_like(reach, fails)
        reached, held = np.full_like(reach, fails), np.full_like(hold, holds)
        part_reached, part_held, span, covered = reach, hold, 1, 0
        while True:
            if width & span:
                after = self.ahead(part_reached, covered, fails)
                reached = np.maximum(reached, np.minimum(held, after))
                held = np.minimum(held, self.ahead(part_held, covered, holds))
                covered += span
            if covered == width:
                break
            part_reached = np.maximum(part_reached, np.minimum(part_held, self.ahead(part_reached, span, fails)))
            part_held = np.minimum(part_held, self.ahead(part_held, span, holds))
            span *= 2
        if first == 0:
            return reached
        return np.minimum(self.window(hold, MIN, 0, first - 1), self.ahead(reached, first, fails))

    def bounds(self, first: int, last: int | None) -> tuple[Ints, Ints]:
        """The records of each episode's window from its first record, as [lo, hi), both [E]; lo = hi if empty."""
        ends = self.starts[1:]
        lo = np.minimum(self.starts[:-1] + first, ends)
        return lo, ends if last is None else np.minimum(self.starts[:-1] + last + 1, ends)


def fold_ranges(values: Values, fold: Fold, lo: Ints, hi: Ints) -> Values:
    """The fold over values[lo:hi] for each of E ascending, disjoint ranges, [E]."""
    if len(lo) and hi[-1] == len(values) and np.array_equal(lo[1:], hi[:-1]) and bool(np.all(lo < hi)):
        return np.asarray(fold.ufunc.reduceat(values, lo))
    filled = lo < hi
    # reduceat takes the ends as starts of ranges nobody asked for; the last end may lie past the last record.
    cuts = np.column_stack([lo[filled], hi[filled]]).ravel()
    cuts = cuts[:-1] if len(cuts) and cuts[-1] == len(values) else cuts
    folded = np.empty_like(values, shape=(len(lo),))
    folded[filled] = fold.ufunc.reduceat(values, cuts)[::2]
    folded[~filled] = fold.neutral(values)
    return folded


def first_true(flags: Bools, lo: Ints, hi: Ints) -> Ints:
    """The first index in [lo, hi) where a flag is set, -1 where none is, [E]."""
    rises = np.flatnonzero(flags[1:] > flags[:-1]) + 1
    place = np.searchsorted(rises, lo)
    found = np.append(rises, len(flags))[place]
    found = np.where((lo < hi) & flags[np.minimum(lo, len(flags) - 1)], lo, found) if len(flags) else found
    return np.where(found < hi, found, -1)
