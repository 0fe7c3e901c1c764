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
from safevla_bench.rollout.plan import PlannedEpisode


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
    def parse(cls, text: str) -> Shard:
        """Return the shard of a text such as `2/8`."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal()):
            raise RunError(f"--shard {text!r} is no shard", remedy="Write its number and how many there are: 2/8.")
        return cls(int(number), int(count))


def cut_plan(episodes: Sequence[PlannedEpisode], count: int) -> list[int]:
    """Return the place in the plan where each of `count` shards begins, and the plan's end, [count + 1].

    Cut where the horizons before an episode reach a shard's part of all; each shard has at least one episode. Raises
    `RunError` where there are too few.
    """
    if count > len(episodes):
        remedy = f"Take {len(episodes)} shards or fewer."
        raise RunError(f"{len(episodes)} episodes cannot be cut into {count} shards", remedy=remedy)
    middles = [
        2 * before + planned.horizon for before, planned in zip(_horizons_before(episodes), episodes, strict=True)
    ]
    total = 2 * sum(planned.horizon for planned in episodes)
    cuts = np.searchsorted(np.array(middles) * count, np.arange(count) * total)
    room = np.minimum(cuts, len(episodes) - count + np.arange(count))
    begun = np.maximum.accumulate(room - np.arange(count)) + np.arange(count)
    return [*begun.tolist(), len(episodes)]


def _horizons_before(episodes: Sequence[PlannedEpisode]) -> list[int]:
    """Return the sum of the horizons of all earlier episodes, [E]."""
    return [0, *accumulate(planned.horizon for planned in episodes)][:-1]
