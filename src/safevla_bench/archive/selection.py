"""Selection of an archive's episodes, so that a reader need not decode the others."""

from __future__ import annotations

from collections.abc import Collection


class EpisodeSelection:
    """Counter of the episodes of a reading, which selects all of them or those at the wanted places, from 0."""

    def __init__(self, wanted: Collection[int] | None = None) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._place = 0

    def next_wanted(self, count: int = 1) -> list[int]:
        """Return the offsets, within the next `count` episodes, of those that are wanted."""
        first, self._place = self._place, self._place + count
        if self._wanted is None:
            return list(range(count))
        return [k for k in range(count) if first + k in self._wanted]
