"""The queue of episodes, given out so that a worker keeps its environment as long as it can."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from safevla_bench.interface import Task
from safevla_bench.rollout.plan import PlannedEpisode

Scene = tuple[str, Task]
"""A policy and a task: what an environment is made for."""


def scene_of(planned: PlannedEpisode) -> Scene:
    """Return the scene of an episode."""
    return planned.policy, planned.task


class EpisodeQueue:
    """The episodes that nobody has begun, by scene, both in the order of the plan."""

    def __init__(self, episodes: Sequence[PlannedEpisode]) -> None:
        self._left: dict[Scene, deque[PlannedEpisode]] = {}
        for planned in episodes:
            self._left.setdefault(scene_of(planned), deque()).append(planned)

    def __bool__(self) -> bool:
        return any(self._left.values())

    def take_next(self, own: Scene | None, others: Collection[Scene]) -> PlannedEpisode | None:
        """Return the next episode for a worker whose environment is made for `own`, the other workers' for `others`.

        Of its own scene; else of the first scene that no other worker is at; else of the scene with most left, to help.
        """
        open_scenes = [scene for scene, episodes in self._left.items() if episodes]
        if not open_scenes:
            return None
        if own not in open_scenes:
            free = [scene for scene in open_scenes if scene not in others]
            own = free[0] if free else max(open_scenes, key=lambda scene: len(self._left[scene]))
        return self._left[own].popleft()

    def put_back(self, planned: PlannedEpisode) -> None:
        """Put an episode that must be run again first in its scene."""
        self._left.setdefault(scene_of(planned), deque()).appendleft(planned)
