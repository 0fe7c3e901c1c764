"""Made-up policies: their results over pairs of episodes, and verdicts with headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from builders import official_fields
from report.scenes import verdicts
from safevla_bench.compare.comparison import Comparison, MetricComparison, compare_policies
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.trajectory.header import Header


def header(task: int, state: int, policy: str = "a", suite: str = "libero-goal", **changes: object) -> Header:
    fields = {
        "episode_id": f"{policy}/{suite}/task_{task}/ep_{state}",
        "benchmark": suite,
        "task_id": f"task_{task}",
        "success": True,
        "dt": 0.05,
        "target_object": None,
        "policy": policy,
        "seed": 0,
        "env_seed": 7,
        "init_state_index": state,
        "horizon": 300,
    }
    return Header(**{**fields, **official_fields(suite, f"task_{task}"), **changes})


def entrant(
    name: str, success: Sequence[int], safe: Sequence[int], vsi: Sequence[float] | None = None, tasks: int = 2
) -> PolicyResults:
    """Episodes spread over tasks in turn."""
    n = len(success)
    return PolicyResults(
        name=name,
        source="runs/x",
        headers=tuple(header(k % tasks, k // tasks, name) for k in range(n)),
        success=np.array(success, dtype=np.bool_),
        unsafe=~np.array(safe, dtype=np.bool_),
        vsi=np.array([0.0 if ok else 0.5 for ok in safe] if vsi is None else vsi, dtype=np.float64),
        is_counted=np.ones(n, dtype=np.bool_),
        is_judged=np.ones(n, dtype=np.bool_),
        stopped_on_violation=np.zeros(n, dtype=np.bool_),
        starts=np.arange(n),
        progress=np.full(n, np.nan),
        engaged=np.full(n, np.nan),
    )


def draw_policy(
    name: str, seed: int, n: int = 60, sr: float = 0.7, safety: float = 0.6, tasks: int = 12
) -> PolicyResults:
    rng = np.random.default_rng(seed)
    safe = rng.random(n) < safety
    vsi = np.where(safe, 0.0, rng.random(n))
    return entrant(name, rng.random(n) < sr, safe, vsi, tasks=tasks)


def on_tasks(name: str, *safe: str, first: int = 0) -> PolicyResults:
    """A policy on one task for each text, whose letters are its episodes: 1 = safe."""
    verdicts = [int(letter) for text in safe for letter in text]
    headers = tuple(header(first + k, state, name) for k, text in enumerate(safe) for state in range(len(text)))
    return replace(entrant(name, [1] * len(verdicts), verdicts), headers=headers)


def edit_headers(result: PolicyResults, **changes: object) -> PolicyResults:
    return replace(result, headers=tuple(structs.replace(old, **changes) for old in result.headers))


def in_one_task(result: PolicyResults) -> PolicyResults:
    return replace(result, headers=tuple(header(0, k, result.name) for k in range(len(result))))


def without_verdict(results: PolicyResults, *episodes: int) -> PolicyResults:
    """The results with no verdict in some episodes."""
    is_judged = results.is_judged.copy()
    is_judged[list(episodes)] = False
    return replace(results, is_judged=is_judged, vsi=np.where(is_judged, results.vsi, np.nan))


def crashed_in(result: PolicyResults, *episodes: int) -> PolicyResults:
    """The results without some episodes, which crashed."""
    finished = [k for k in range(len(result)) if k not in episodes]
    names = ("episode_id", "benchmark", "task_id", "policy", "init_state_index", "seed")
    lost = [
        AbsentEpisode(outcome="crashed", **{name: getattr(result.headers[k], name) for name in names}) for k in episodes
    ]
    return replace(result.select_episodes(np.array(finished, dtype=np.int64)), lost=tuple(lost))


def pick(comparison: Comparison, name: str, scope: int = -1) -> MetricComparison:
    return next(metric for metric in comparison.scopes[scope].metrics if metric.metric == name)


def compare_in(name: str, *members: PolicyResults, paired: bool = True, **options: object) -> MetricComparison:
    """The comparison in one metric over all suites; no other is computed."""
    return pick(compare_policies(members, ComparisonOptions(metrics=(name,), **options), paired=paired), name)


def difference_in(name: str, *members: PolicyResults, paired: bool = True, **options: object) -> Difference:
    """The difference of two policies in one metric over all suites."""
    (difference,) = compare_in(name, *members, paired=paired, **options).differences
    return difference


A = entrant("a", success=[1, 1, 1, 1, 0, 0, 1, 1], safe=[1, 1, 1, 0, 1, 0, 1, 1])
B = entrant("b", success=[1, 1, 0, 0, 0, 1, 1, 0], safe=[0, 0, 1, 0, 1, 0, 0, 1])
CALM, ROUGH = on_tasks("a", *["1" * 8] * 8), on_tasks("b", *["1111" + "0000"] * 8)
NEAR = on_tasks("b", *["1" * 7 + "0"] * 8)
FIRST_OF_EACH_TASK = range(0, 64, 8)
ALWAYS = on_tasks("a", *["1" * 40] * 8)
SELDOM_UNSAFE = on_tasks("b", *["1" * 39 + "0"] * 7, "1" * 38 + "00")


def simulated(result: PolicyResults, **versions: str) -> PolicyResults:
    return edit_headers(result, versions=versions)


def with_seeds(result: PolicyResults, *seeds: int) -> PolicyResults:
    """Every episode once for each seed, all alike."""
    many = result.select_episodes(np.repeat(np.arange(len(result)), len(seeds)))
    headers = (
        structs.replace(old, seed=seeds[k % len(seeds)], episode_id=f"{k}") for k, old in enumerate(many.headers)
    )
    return replace(many, headers=tuple(headers))


# Scores


def draw_scores(name, success, safe, *, tasks=10, first=0, **changes):
    """Scores of a policy from who succeeds and who is safe, episodes in turn over the tasks."""
    places = [(first + k % tasks, k // tasks) for k in range(len(success))]
    return verdicts(
        *[(bool(won), 1.0 if is_safe else -250.0, 1.0) for won, is_safe in zip(success, safe, strict=True)],
        policy=name,
        **changes,
        episode_id=tuple(f"{task}/{state}" for task, state in places),
        task_id=tuple(f"task_{task}" for task, _ in places),
    )


def policy(name, successes, safe, n=100, **changes):
    return draw_scores(name, np.arange(n) < successes, np.arange(n)[::-1] < safe, **changes)


def run_headers(scores, seed=0):
    return [
        Header(episode_id=name, benchmark=scores.benchmark[k], task_id=scores.task_id[k], policy=scores.policy[k],
               success=bool(scores.success[k]), dt=0.05, env_seed=7, seed=seed, target_object="bowl",
               init_state_index=int(name.rsplit("/", 1)[1]))
        for k, name in enumerate(scores.episode_id)
    ]  # fmt: skip
