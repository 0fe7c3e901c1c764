"""Who runs what next: episodes given out one by one, so that a worker keeps its environment as long as it can."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from safevla_bench.interface import Task
from safevla_bench.rollout.plan import Planned

Scene = tuple[str, Task]
"""A policy and a task: what an environment is made for."""


def scene(planned: Planned) -> Scene:
    """The scene of an episode."""
    return planned.policy, planned.task


class Shares:
    """The episodes that nobody has begun, by scene, both in the order of the plan."""

    def __init__(self, episodes: Sequence[Planned]) -> None:
        self._left: dict[Scene, deque[Planned]] = {}
        for planned in episodes:
            self._left.setdefault(scene(planned), deque()).append(planned)

    def __bool__(self) -> bool:
        return any(self._left.values())

    def take(self, own: Scene | None, others: Collection[Scene]) -> Planned | None:
        """The next episode for a worker whose environment is made for `own`, the other workers' for `others`.

        Of its own scene; else of the first scene that no other worker is at; else of the scene with most left, to help.
        """
        open_scenes = [one for one, left in self._left.items() if left]
        if not open_scenes:
            return None
        if own not in open_scenes:
            free = [one for one in open_scenes if one not in others]
            own = free[0] if free else max(open_scenes, key=lambda one: len(self._left[one]))
        return self._left[own].popleft()

    def give_back(self, planned: Planned) -> None:
        """An episode that has to be begun again comes first in its scene."""
        self._left.setdefault(scene(planned), deque()).appendleft(planned)
