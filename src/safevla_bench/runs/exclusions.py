"""The episodes of sources that a reading leaves out: invalid ones, and those lost with damaged files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safevla_bench.errors import DamageError, RecordError


@dataclass(frozen=True)
class LeftOut:
    """Counts of the episodes of the sources that are not among those read."""

    invalid: int
    lost: int
    damaged: int
    """Places of files where something is damaged or gone."""
    unknown: bool
    """True if more were lost than can be counted."""

    @classmethod
    def from_problems(cls, problems: Sequence[RecordError]) -> LeftOut:
        """Return the counts that these errors stand for."""
        damage = [problem for problem in problems if isinstance(problem, DamageError)]
        named = sum(problem.place.episode is not None for problem in damage)
        unnamed = [problem for problem in damage if problem.place.episode is None]
        counted = sum(problem.episodes or 0 for problem in unnamed)
        unknown = any(problem.episodes is None for problem in unnamed)
        return cls(len(problems) - len(damage), named + counted, len(damage) - named, unknown)

    @property
    def count(self) -> int:
        """Return how many episodes are left out at least."""
        return self.invalid + self.lost

    def __bool__(self) -> bool:
        return bool(self.count or self.damaged)

    def describe_kinds(self) -> list[str]:
        """Return what is left out, a phrase for each kind; damage is named only where it cost no episode."""
        phrases = [f"{_count_episodes(self.invalid, 'invalid ')} left out"] if self.invalid else []
        if self.unknown:
            episodes_text = _count_episodes(self.lost) if self.lost else "an unknown number of episodes"
            phrases.append(f"{'more than ' if self.lost else ''}{episodes_text} lost in damaged files")
        elif self.lost:
            phrases.append(f"{_count_episodes(self.lost)} lost in damaged files")
        elif self.damaged:
            phrases.append("a file is not as it was written; every episode that it should hold was read")
        return phrases


def _count_episodes(count: int, kind: str = "") -> str:
    return f"{count} {kind}episode{'' if count == 1 else 's'}"


def remedy_for(problems: Sequence[RecordError]) -> str:
    """Return what to do where episodes are invalid or lost."""
    if any(isinstance(problem, DamageError) for problem in problems):
        return (
            "Copy the files anew from where they were made; or pass --salvage to take the episodes that can be read "
            "and count the others."
        )
    return "Mend them, or pass --skip-invalid to take the others and count these."
