"""Which episodes of an archive are wanted, so that a reader need not make sense of the others."""

from __future__ import annotations

from collections.abc import Collection


class Sieve:
    """Counts the episodes of a reading and says which of them to take: all, or those at the wanted places, from 0."""

    def __init__(self, wanted: Collection[int] | None = None) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._place = 0

    def take(self, count: int = 1) -> list[int]:
        """Which of the next `count` episodes are wanted, counted from the first of them."""
        first, self._place = self._place, self._place + count
        if self._wanted is None:
            return list(range(count))
        return [k for k in range(count) if first + k in self._wanted]
