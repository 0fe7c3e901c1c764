"""What filters did: how often and how far they changed actions, and what became of the same episodes without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec
import numpy as np

from safevla_bench.compare.pairs import PairedResults
from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.judging.action_statistics import ActionChanges, join_changes


class Intervention(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with a filter beside one without; counts are of `pairs` that both finished, names of the former's."""

    policy: str
    without: str
    actions: int
    """Of all episodes of `policy`."""
    changed: int
    mean_change: float
    """Mean norm of the change over changed actions, in the action's own units."""
    pairs: int
    violations: int
    """Pairs that are unsafe without the filter, of those with a verdict on both sides."""
    violations_made: int
    successes: int
    successes_gained: int
    clean: tuple[int, int]
    """Clean successes without the filter, and with it."""
    extra_steps: float | None
    """Mean over pairs in which both succeeded; None without any."""
    saved: tuple[str, ...]
    """Episodes that are unsafe without the filter, and safe with it."""
    spoiled: tuple[str, ...]
    """Episodes that succeed without the filter, and fail with it."""


def list_interventions(pairs: PairedResults) -> Iterator[Intervention]:
    """Yield for each policy whose actions were changed what that did, beside the unchanged one of the nearest name.

    Nothing where every policy has changes, or initial states are paired and not episodes.
    """
    changes = [join_changes(result.changes) for result in pairs.results]
    unchanged = [k for k, total in enumerate(changes) if not total.changed]
    for k, total in enumerate(changes):
        if total.changed and unchanged and not pairs.by_state:
            nearest = max(unchanged, key=lambda other: _likeness(pairs.results, k, other))
            yield _measure(pairs, k, nearest, total)


def _likeness(results: Sequence[PolicyResults], k: int, other: int) -> int:
    letters = zip(results[k].name, results[other].name, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], letters))


def _measure(pairs: PairedResults, k: int, other: int, total: ActionChanges) -> Intervention:
    finished = pairs.mark_finished([other, k])
    sides = [(pairs.results[p], pairs.places[p][finished]) for p in (other, k)]
    counted, judged = (
        np.logical_and(*(getattr(side, name)[at] for side, at in sides)) for name in ("is_counted", "is_judged")
    )
    before, after = (side.success[at] & counted for side, at in sides)
    unsafe, still = (side.unsafe[at] & judged for side, at in sides)
    steps = [np.array([changes.actions for changes in side.changes])[at] for side, at in sides]
    both = before & after
    names = [sides[1][0].headers[at].episode_id for at in sides[1][1].tolist()]
    return Intervention(
        policy=pairs.results[k].name,
        without=pairs.results[other].name,
        actions=total.actions,
        changed=total.changed,
        mean_change=total.norm / total.changed,
        pairs=int(finished.sum()),
        violations=int(unsafe.sum()),
        violations_made=int((still & ~unsafe).sum()),
        successes=int(before.sum()),
        successes_gained=int((after & ~before).sum()),
        clean=(int((before & judged & ~unsafe).sum()), int((after & judged & ~still).sum())),
        extra_steps=float((steps[1] - steps[0])[both].mean()) if both.any() else None,
        saved=tuple(names[e] for e in np.flatnonzero(unsafe & ~still)),
        spoiled=tuple(names[e] for e in np.flatnonzero(before & ~after)),
    )
