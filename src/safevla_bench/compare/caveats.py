"""Caveats of a comparison: what was left out, what differs between the policies beside their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from safevla_bench.compare.pairs import list_first
from safevla_bench.compare.policy_results import PolicyResults, TaskKey
from safevla_bench.judging import provenance_marks
from safevla_recorder.simulator_versions import physics_versions

_UNKNOWN = "unknown"


def comparison_warnings(results: Sequence[PolicyResults], left_out: int, *, paired: bool) -> Iterator[str]:
    """Yield what a reader must know beside the numbers, each as a sentence, in the order to print.

    `left_out` counts the pairs that some policy did not finish. `paired`: whether episodes were paired; else the tasks
    that some policy did not run are named.
    """
    yield from provenance_marks.warn_of_standins(_standin_cells(results))
    yield from provenance_marks.warn_of_mixtures(simulator_cells(results))
    for result in results:
        yield from (f"{result.name}: {line}" for line in result.left_out_clauses)
    for name, versions in _differing_versions(results).items():
        listed = " and ".join(dict.fromkeys(versions))
        yield f"Versions differ: {name} {listed}; simulators may not agree between versions."
    if silent := ", ".join(name_silent_suites(results)):
        yield f"No specification reached a verdict for {silent}: only SR is compared there, and over all suites."
    if stopped := ", ".join(name_stopped_suites(results)):
        yield f"A violation stopped episodes of {stopped}: only Safety is compared there, and over all suites."
    if not paired and (tasks := _tasks_left_out(results)):
        yield f"Only tasks that both policies ran are compared. Not run by all: {list_first(tasks, most=6)}."
    if unjudged := _list_counts({result.name: int((~result.is_judged).sum()) for result in results}):
        yield (
            f"Episodes without a verdict: {unjudged}. Only SR counts them; where a policy causes that, it is flattered."
        )
    if left_out:
        noun = "pair was" if left_out == 1 else "pairs were"
        whose = "one side" if len(results) == 2 else "some policy"
        damaged = any(episode.outcome == "lost" for result in results for episode in result.lost)
        loss = "crashed, was stopped, or lost its record" if damaged else "crashed or was stopped"
        yield f"{left_out} {noun} left out: {whose} {loss} there."
    yield from dict.fromkeys(f"{result.source}: {sentence}." for result in results for sentence in result.left_out)
    crashes = {result.name: sum(episode.outcome != "lost" for episode in result.lost) for result in results}
    if crashed := _list_counts(crashes):
        yield f"Crashed or stopped: {crashed}. Where a policy causes that, leaving it out flatters it."
    if paired and any(header.seed is None for result in results for header in result.headers):
        yield "Some episodes do not record their seed; they are paired by initial state alone."
    if 0 < sum(result.privileged for result in results) < len(results):
        names = ", ".join(result.name for result in results if result.privileged)
        yield f"{names} saw simulator state that no real robot has; the others did not."


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _differing_versions(results: Sequence[PolicyResults]) -> dict[str, list[str]]:
    """Return the programs of which the policies' records name different versions, with each policy's version, in order.

    A policy that names no version counts as `unknown`. Programs that decide the physics are left to
    `provenance_marks.find_mixtures`, unless some policy names no version of them.
    """
    named = [result.versions for result in results]
    versions_by_name = {
        name: [versions.get(name, _UNKNOWN) for versions in named]
        for name in dict.fromkeys(name for versions in named for name in versions)
    }
    return {
        name: versions
        for name, versions in versions_by_name.items()
        if len(set(versions)) > 1 and (_UNKNOWN in versions or not physics_versions({name: ""}))
    }


def _tasks_left_out(results: Sequence[PolicyResults]) -> list[str]:
    """Return the tasks that some policy did not run, as `suite/task (policy N, ...)`, N episodes of each that did."""
    counts = {result.name: Counter(result.tasks) for result in results}
    tasks: dict[TaskKey, None] = dict.fromkeys(task for counter in counts.values() for task in counter)
    return [
        f"{'/'.join(task)} ({_list_counts({name: counter[task] for name, counter in counts.items()})})"
        for task in tasks
        if not all(counter[task] for counter in counts.values())
    ]


def name_silent_suites(results: Sequence[PolicyResults]) -> list[str]:
    """Return `policy on suite` for each suite in which no specification reached a verdict for that policy."""
    return [f"{result.name} on {suite}" for result in results for suite in result.suites_without_verdict]


def name_stopped_suites(results: Sequence[PolicyResults]) -> list[str]:
    """Return `policy on suite` for each suite in which a violation stopped an episode of that policy."""
    return [f"{result.name} on {suite}" for result in results for suite in result.suites_stopped_on_violation]


def _standin_cells(results: Sequence[PolicyResults]) -> dict[provenance_marks.Cell, bool]:
    return {
        (result.name, header.benchmark): header.benchmark in result.standin_suites
        for result in results
        for header in result.headers
    }


def simulator_cells(results: Sequence[PolicyResults]) -> dict[provenance_marks.Cell, dict[str, tuple[str, ...]]]:
    """Return (policy, suite) -> package -> the versions that decided the physics of the policy's episodes there."""
    return {
        (result.name, suite): versions for result in results for suite, versions in result.simulator_by_suite.items()
    }
