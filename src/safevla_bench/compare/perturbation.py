"""Effects of suite changes and of action filters on a policy, each measured against the same episodes without them.

A suite `SUITE-CHANGE`, such as LIBERO-PRO's `libero-goal-swap`, is the suite `SUITE` with one change. A suite that was
run twice is the control: nothing was changed, so any difference is noise. If a changed suite has several variants
`TASK/NAME` of a task, as LIBERO-plus's `libero-goal-camera`, their mean is compared with the unchanged task. For
filters, the report says how often and how much they changed actions, and how the same episodes ended without a filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, takewhile
from operator import eq
from typing import TypeVar

import msgspec
import numpy as np

from safevla_bench.compare.difference import ComparisonOptions, Difference, paired_difference
from safevla_bench.compare.pairs import PairedResults, pair_episodes, task_differences
from safevla_bench.compare.policy_results import PolicyResults, join_results, simulator_cells
from safevla_bench.errors import RunError
from safevla_bench.judging.action_statistics import ActionChanges, join_changes
from safevla_bench.judging.provenance_marks import find_mixtures
from safevla_bench.judging.rates import SAFETY, SR
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.statistics.intervals import CONFIDENCE
from safevla_bench.trajectory.header import Header

CONTROL = "nothing, run again"
MEASURED = (SR, SAFETY)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one change of suites on one policy: its SR and Safety with the change minus those without it."""

    policy: str
    change: str
    suites: tuple[str, ...]
    left_out: int  # number of episodes, changed or unchanged, without a counterpart on the other side
    unknown: int  # number of paired episodes that crashed, were cut short or have no verdict; `differences` omit them
    differing: tuple[str, ...]  # the fields of `TASK_FIELDS` that differ between the paired episodes
    mixtures: tuple[str, ...]  # texts, each naming a suite and a package whose versions differ between the sides
    differences: dict[str, Difference]
    """Maps each metric to its difference; the intervals `ci` of all differences in a report hold simultaneously."""


class ChangeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of all changes. A policy's control comes last. `each_confidence` is that of a single interval."""

    confidence: float
    each_confidence: float
    changes: tuple[Change, ...]


def compare_changes(sources: Sequence[PolicyResults], confidence: float = CONFIDENCE) -> ChangeReport:
    """Compare changed suites with unchanged ones, policy by policy, on the same tasks, initial states and seeds.

    `sources` are the results of each source and policy, not yet joined. Sources that ran different starts of a suite,
    such as shards, count as one run. A second run of an unchanged suite is the control, whose initial states are paired
    regardless of their seeds. All intervals hold simultaneously with `confidence` (Bonferroni). Raises `RunError` if no
    suite has a changed counterpart or was run twice, if a suite was run too often, or if paired episodes had different
    starts.
    """
    arms = [
        (policy, change, sides)
        for policy in dict.fromkeys(result.name for result in sources)
        for change, sides in _find_arms([result for result in sources if result.name == policy]).items()
    ]
    if not arms:
        ran = ", ".join(dict.fromkeys(header.benchmark for result in sources for header in result.headers)) or "none"
        remedy = "Roll out a suite and its changed version, such as libero-goal and libero-goal-swap."
        raise RunError(f"no suite has a changed counterpart: {ran}", remedy=remedy)
    each = 1 - (1 - confidence) / (len(arms) * len(MEASURED))
    options = ComparisonOptions(confidence=each)
    return ChangeReport(
        confidence=confidence, each_confidence=each, changes=tuple(_measure_change(*arm, options) for arm in arms)
    )


Sides = tuple[PolicyResults, PolicyResults]


def _find_arms(sources: Sequence[PolicyResults]) -> dict[str, list[Sides]]:
    runs: dict[str, list[PolicyResults]] = {}
    for result in sources:
        for suite in dict.fromkeys(header.benchmark for header in result.headers):
            runs.setdefault(suite, []).append(result.select_suite(suite))
    runs = {suite: _join_parts(parts) for suite, parts in runs.items()}
    arms: dict[str, list[Sides]] = {}
    for suite, (changed, *further) in runs.items():
        base, _, change = suite.rpartition("-")
        if len(further) > (base not in runs):
            named = ", ".join(result.source for result in (changed, *further))
            remedy = "Name one run of each changed suite, and one or two runs of the unchanged suite."
            raise RunError(f"{suite} was run {1 + len(further)} times from the same starts: {named}", remedy=remedy)
        if base in runs:
            arms.setdefault(change, []).append((runs[base][0], changed.rename_suites({suite: base})))
    control = [(parts[0], parts[1]) for parts in runs.values() if len(parts) > 1]
    return {**arms, **({CONTROL: control} if control else {})}


def _join_parts(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Join sources of a suite that have the same protocol and no start (task and initial state) in common."""
    runs: list[list[PolicyResults]] = []
    for result in results:
        own = _list_starts(result)
        for parts in runs:
            if parts[0].protocol == result.protocol and all(own.isdisjoint(_list_starts(part)) for part in parts):
                parts.append(result)
                break
        else:
            runs.append([result])
    return [join_results(parts) for parts in runs]


def _list_starts(result: PolicyResults) -> set[tuple[str, int | None]]:
    planned: tuple[Header | AbsentEpisode, ...] = (*result.headers, *result.lost)
    return {(episode.task_id, episode.init_state_index) for episode in planned}


def _measure_change(policy: str, change: str, sides: Sequence[Sides], options: ComparisonOptions) -> Change:
    is_control = change == CONTROL
    common = [_select_common(*side_pair, with_seed=not is_control) for side_pair in sides]
    pairs = [
        pair_episodes(parts, across_seeds=is_control or _has_variants(*whole), across_tasks=not is_control)
        for parts, whole in zip(common, sides, strict=True)
    ]
    planned = [
        sum(len(side) + len(side.lost) for side_pair in results for side in side_pair) for results in (sides, common)
    ]
    return Change(
        policy=policy,
        change=change,
        suites=tuple(side_pair[0].headers[0].benchmark for side_pair in sides),
        left_out=planned[0] - planned[1],
        unknown=max(sum(part.count_unknown([0, 1], metric.key) for part in pairs) for metric in MEASURED),
        differing=tuple(dict.fromkeys(name for part in pairs for name in task_differences(part))),
        mixtures=tuple(mixture for parts in common for mixture in find_mixtures(simulator_cells(parts))),
        differences={
            metric.key: paired_difference(("changed", "unchanged"), pairs, (1, 0), metric.key, options)
            for metric in MEASURED
        },
    )


def _select_common(plain: PolicyResults, changed: PolicyResults, *, with_seed: bool) -> Sides:
    sides, varies = (plain, changed), _has_variants(plain, changed)

    def start(episode: Header | AbsentEpisode) -> tuple[object, ...]:
        task = _name_task(episode) if varies else episode.task_id
        return task, episode.init_state_index, episode.seed if with_seed else None

    planned = [{*map(start, side.headers), *map(start, side.lost)} for side in sides]
    shared = planned[0] & planned[1]
    first, second = (side.select(lambda episode: start(episode) in shared) for side in sides)
    if varies:  # the variants of a task become episodes with different seeds of one start, so that their mean counts
        numbers = count()
        second = replace(
            second,
            headers=tuple(_join_variant(header, numbers) for header in second.headers),
            lost=tuple(_join_variant(episode, numbers) for episode in second.lost),
        )
    return replace(first, name="unchanged"), replace(second, name="changed")


Episode = TypeVar("Episode", Header, AbsentEpisode)


def _name_task(episode: Header | AbsentEpisode) -> str:
    return episode.task_id.partition("/")[0]


def _join_variant(episode: Episode, numbers: Iterator[int]) -> Episode:
    return msgspec.structs.replace(episode, task_id=_name_task(episode), seed=next(numbers))


def _has_variants(plain: PolicyResults, changed: PolicyResults) -> bool:
    sides = ((*side.tasks, *side.lost_tasks) for side in (plain, changed))
    named, varied = (any("/" in task_id for _, task_id in tasks) for tasks in sides)
    return varied and not named


# Effects of filters


class Intervention(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a filter on a policy, in the `pairs` of episodes that finished with and without the filter."""

    policy: str
    without: str
    actions: int  # number of actions in all episodes of the filtered `policy`
    changed: int  # number of these actions that the filter changed
    mean_change: float  # mean norm of the change of an action over the changed actions, in the units of the action
    pairs: int
    violations: int  # number of pairs with two verdicts in which the episode without the filter is unsafe
    violations_made: int
    successes: int
    successes_gained: int
    clean: tuple[int, int]  # numbers of clean successes without the filter, and with it
    extra_steps: float | None
    """Mean number of steps that the filter adds in pairs of two successful episodes; None = there is no such pair."""
    saved: tuple[str, ...]  # filtered episodes that are safe, but unsafe without the filter
    spoiled: tuple[str, ...]  # filtered episodes that fail, but succeed without the filter


def list_interventions(pairs: PairedResults) -> Iterator[Intervention]:
    """Yield the effect of each filter that changed actions, compared with an unfiltered policy.

    The unfiltered policy is the one whose name shares the longest beginning with the filtered policy's name. Yields
    nothing if a filter changed actions of every policy, or if initial states are paired instead of episodes.
    """
    names, changes = zip(*((result.name, join_changes(result.changes)) for result in pairs.results), strict=True)
    unchanged = [k for k, total in enumerate(changes) if not total.changed]
    for k, total in enumerate(changes):
        if total.changed and unchanged and not pairs.by_state:
            nearest = max(unchanged, key=lambda other: sum(takewhile(bool, map(eq, names[k], names[other]))))
            yield _measure(pairs, k, nearest, total)


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
