"""Shards: a plan cut into pieces of nearly equal length that are run on their own, each into its own run folder.

A shard is a stretch of the plan, which goes task after task: a task's environment is made in one shard, or in the two
that meet in it. Who runs which episode depends on the plan alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.rollout.plan import Planned


@dataclass(frozen=True, slots=True)
class Shard:
    """The `number`-th of `count` pieces, counted from 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            remedy = f"Shards count from 1: 1/{max(1, self.count)} to {max(1, self.count)}/{max(1, self.count)}."
            raise RunError(f"there is no shard {self}", remedy=remedy)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def read(cls, text: str) -> Shard:
        """A shard as it is written, such as `2/8`."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal()):
            raise RunError(f"--shard {text!r} is no shard", remedy="Write its number and how many there are: 2/8.")
        return cls(int(number), int(count))


def bounds(episodes: Sequence[Planned], count: int) -> list[int]:
    """Where each of `count` shards begins in the plan, and the plan's end, [count + 1].

    Cut where the horizons before an episode reach a shard's part of all; each shard has at least one episode. Raises
    `RunError` where there are too few.
    """
    if count > len(episodes):
        remedy = f"Take {len(episodes)} shards or fewer."
        raise RunError(f"{len(episodes)} episodes cannot be cut into {count} shards", remedy=remedy)
    middles = [2 * before + one.horizon for before, one in zip(_before(episodes), episodes, strict=True)]
    total = 2 * sum(one.horizon for one in episodes)
    cuts = np.searchsorted(np.array(middles) * count, np.arange(count) * total)
    room = np.minimum(cuts, len(episodes) - count + np.arange(count))
    begun = np.maximum.accumulate(room - np.arange(count)) + np.arange(count)
    return [*begun.tolist(), len(episodes)]


def _before(episodes: Sequence[Planned]) -> list[int]:
    """The horizons of all earlier episodes, [E]."""
    return [0, *accumulate(one.horizon for one in episodes)][:-1]
