"""How policies differ in SR, Safety, SBU and VSI, with intervals, tests, and who cannot be told apart from whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import provenance_marks, statistics
from safevla_bench.compare.difference import (
    METRICS,
    Difference,
    Duel,
    How,
    Pair,
    by_task,
    ends,
    generator,
    paired_difference,
    unpaired_difference,
)
from safevla_bench.compare.pairs import pair, tasks, unlike_versions
from safevla_bench.compare.policy_results import Entrant
from safevla_bench.errors import RunError

HIGHER_IS_BETTER = {"sr": True, "safety": True, "sbu": False, "vsi": False}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one metric: its value over n episodes, the plain interval and the one over whole tasks.

    `letters`: policies of one scope that share one were not told apart; empty where two were compared.
    """

    policy: str
    n: int
    count: int | None
    value: float | None
    ci: Pair | None
    ci_by_task: Pair | None
    letters: str = ""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one scope; `q` is Cochran's test that all policies are equal, where there are several."""

    metric: str
    standings: tuple[Standing, ...]
    differences: tuple[Difference, ...]
    q: float | None = None
    q_p_value: float | None = None


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """One suite, or all pooled (suite null): pairs counted (null where unpaired), pairs left out, tasks, metrics.

    Where a policy has a suite without any verdict, SR is the only metric.
    """

    suite: str | None
    pairs: int | None
    left_out: int
    tasks: int
    metrics: tuple[Metric, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Policies compared, the first with each other and so on; `identical` = in all that is judged, on every pair."""

    policies: tuple[str, ...]
    paired: bool
    confidence: float
    seed: int
    scopes: tuple[Scope, ...]
    identical: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def compare(
    entrants: Sequence[Entrant], how: How | None = None, *, paired: bool = True, across_seeds: bool = False
) -> Comparison:
    """Compare two policies or several, in each suite and over all suites pooled.

    Args:
        entrants: at least two, with names that differ (see `named_apart`).
        how: metrics, confidence, seed of the bootstrap, test.
        paired: compare episode by episode; else as independent samples.
        across_seeds: pair episodes of one initial state whatever their seeds.

    Raises:
        RunError: fewer than two entrants, one without an episode, no metric that is known, and, where paired, what
            `pair` raises.
    """
    how = how or How()
    _refuse(entrants)
    joined = pair(entrants, across_seeds=across_seeds) if paired else None
    chosen = joined.entrants if joined else tuple(entrants)
    if joined and not joined.keys:
        raise RunError("no pair was finished on both sides", remedy="Roll out the lost episodes again.")
    left_out = [key.suite for key in joined.left_out] if joined else []
    suites = list(dict.fromkeys([header.benchmark for one in chosen for header in one.headers] + left_out))
    scopes = [_scope(chosen, suite, left_out.count(suite), how, paired) for suite in suites]
    if len(suites) > 1:
        scopes.append(_scope(chosen, None, len(left_out), how, paired))
    if not any(scope.metrics for scope in scopes):
        remedy = "Compare SR, or record what the specifications need: `safevla score` says what that is."
        raise RunError(f"no specification reached a verdict for {', '.join(_silent(entrants))}", remedy=remedy)
    return Comparison(
        policies=tuple(one.name for one in chosen),
        paired=paired,
        confidence=how.confidence,
        seed=how.seed,
        scopes=tuple(scopes),
        identical=_identical(chosen) if paired else (),
        warnings=tuple(_warnings(entrants, len(left_out))),
    )


def _refuse(entrants: Sequence[Entrant]) -> None:
    if len(entrants) < 2:
        names = ", ".join(one.name for one in entrants) or "none"
        remedy = "Name two sources, or one that holds several policies."
        raise RunError(f"there is one policy to compare: {names}", remedy=remedy)
    for one in entrants:
        if not len(one):
            remedy = "Leave it out, or roll it out again."
            raise RunError(f"no episode of {one.name} was scored", remedy=remedy)


def _identical(chosen: Sequence[Entrant]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (one.name, other.name)
        for one, other in combinations(chosen, 2)
        if not one.silent_suites
        and not other.silent_suites
        and all(np.array_equal(one.values(metric), other.values(metric)) for metric in METRICS)
    )


def _warnings(entrants: Sequence[Entrant], left_out: int) -> list[str]:
    found = list(provenance_marks.sentence(_standins(entrants)))
    found += [
        f"Versions differ: {name} {' and '.join(dict.fromkeys(versions))}; simulators may not agree between versions."
        for name, versions in unlike_versions(entrants).items()
    ]
    if silent := _silent(entrants):
        named = ", ".join(silent)
        found.append(f"No specification reached a verdict for {named}: only SR is compared there, and over all suites.")
    if left_out:
        noun = "pair was" if left_out == 1 else "pairs were"
        found.append(f"{left_out} {noun} left out: one side {_lost_how(entrants)} there.")
    found += dict.fromkeys(f"{one.source}: {said}." for one in entrants for said in one.left_out)
    ended = {one.name: sum(gone.outcome != "lost" for gone in one.lost) for one in entrants}
    lost = [f"{name} {count}" for name, count in ended.items() if count]
    if lost:
        found.append(f"Crashed or stopped: {', '.join(lost)}. Where a policy causes that, leaving it out flatters it.")
    if any(header.seed is None for one in entrants for header in one.headers):
        found.append("Some episodes do not record their seed; they are paired by initial state alone.")
    if 0 < sum(one.privileged for one in entrants) < len(entrants):
        names = ", ".join(one.name for one in entrants if one.privileged)
        found.append(f"{names} saw simulator state that no real robot has; the others did not.")
    return found


def _silent(entrants: Sequence[Entrant]) -> list[str]:
    return [f"{one.name} on {suite}" for one in entrants for suite in one.silent_suites]


def _standins(entrants: Sequence[Entrant]) -> dict[provenance_marks.Cell, bool]:
    """Whether each entrant's episodes of each suite rest on stand-ins."""
    return {
        (one.name, header.benchmark): header.benchmark in one.standin_suites
        for one in entrants
        for header in one.headers
    }


def _lost_how(entrants: Sequence[Entrant]) -> str:
    damaged = any(gone.outcome == "lost" for one in entrants for gone in one.lost)
    return "crashed, was stopped, or lost its record" if damaged else "crashed or was stopped"


def _scope(chosen: Sequence[Entrant], suite: str | None, left_out: int, how: How, paired: bool) -> Scope:
    members = [_of_suite(one, suite) for one in chosen]
    known = not any(one.silent_suites for one in members)
    number = tasks(header for one in members for header in one.headers)
    clusters = [
        np.array([number[header.benchmark, header.task_id] for header in one.headers], dtype=np.int64)
        for one in members
    ]
    return Scope(
        suite=suite,
        pairs=len(members[0]) if paired else None,
        left_out=left_out,
        tasks=len(number),
        metrics=tuple(_metric(members, clusters, name, how, paired) for name in how.metrics if name == "sr" or known),
    )


def _of_suite(entrant: Entrant, suite: str | None) -> Entrant:
    return entrant.select(
        np.array([e for e, header in enumerate(entrant.headers) if suite in (None, header.benchmark)], dtype=np.int64)
    )


def _metric(
    members: Sequence[Entrant], clusters: Sequence[NDArray[np.int64]], name: str, how: How, paired: bool
) -> Metric:
    values = [one.values(name) for one in members]
    duels = list(combinations(range(len(members)), 2))
    contrast = paired_difference if paired else unpaired_difference
    found = [
        contrast(Duel(members[i].name, members[j].name, values[i], values[j], clusters[i], clusters[j], name), how)
        for i, j in duels
    ]
    several = len(members) > 2
    standings = [
        _standing(one.name, value, task, name, how) for one, value, task in zip(members, values, clusters, strict=True)
    ]
    if not several:
        return Metric(metric=name, standings=tuple(standings), differences=tuple(found))
    adjusted = statistics.holm([1.0 if one.p_value is None else one.p_value for one in found])
    apart = {duel for duel, p in zip(duels, adjusted, strict=True) if p <= 1 - how.confidence + 1e-12}
    q = statistics.cochran_q(np.array(values, dtype=np.bool_).T) if paired and name != "vsi" else None
    return Metric(
        metric=name,
        standings=_lettered(standings, apart, HIGHER_IS_BETTER[name]),
        differences=tuple(
            msgspec.structs.replace(one, p_holm=None if one.p_value is None else p)
            for one, p in zip(found, adjusted, strict=True)
        ),
        q=None if q is None else q.statistic,
        q_p_value=None if q is None else q.p_value,
    )


def _lettered(standings: Sequence[Standing], apart: set[tuple[int, int]], higher: bool) -> tuple[Standing, ...]:
    """Letters from the best policy on; none for one without an episode."""
    there = [k for k, one in enumerate(standings) if one.value is not None]
    order = sorted(there, key=lambda k: (standings[k].value or 0.0) * (-1 if higher else 1))
    place = {k: rank for rank, k in enumerate(order)}
    ranked = {(place[i], place[j]) for i, j in apart if i in place and j in place}
    given = dict(zip(order, statistics.letters(len(order), ranked), strict=True))
    return tuple(msgspec.structs.replace(one, letters=given.get(k, "")) for k, one in enumerate(standings))


def _standing(policy: str, values: NDArray[np.float64], task: NDArray[np.int64], metric: str, how: How) -> Standing:
    n, total = len(values), float(values.sum())
    plain: statistics.Interval | None
    if metric != "vsi":
        plain = statistics.wilson(int(total), n, how.confidence)
    elif n:
        means = statistics.resampled_means(values[None], generator(how))[0]
        plain = statistics.percentiles(means, how.confidence)
    else:  # a suite that only the others ran
        plain = None
    return Standing(
        policy=policy,
        n=n,
        count=None if metric == "vsi" else int(total),
        value=total / n if n else None,
        ci=ends(plain),
        ci_by_task=by_task(values[None], task, how, lambda means: means[0]),
    )
