"""Made-up judged runs for boards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from report.scenes import joined, verdicts
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.publishing.board import OwnResults
from safevla_bench.report.tables.catalog import TableInputs
from safevla_bench.report.tables.cells import Roster
from safevla_bench.trajectory.header import Header


def episodes(policy: str | None, safe: str, success: str | None = None, **changes: Any) -> Scores:
    """One episode a character: `1` if it was safe; success likewise, all by default."""
    success = success or "1" * len(safe)
    pairs = zip(safe, success, strict=True)
    scores = verdicts(
        *[(succeeded == "1", 50.0 if is_safe == "1" else -50.0, 1.0) for is_safe, succeeded in pairs], policy=policy
    )
    suite = changes.pop("suite", "libero-goal")
    tasks = changes.pop("tasks", None) or ["task_0"] * len(safe)
    names = tuple(f"{policy}/{suite}/{task}/{k}" for k, task in enumerate(tasks))
    return replace(scores, benchmark=(suite,) * len(safe), task_id=tuple(tasks), episode_id=names, **changes)


def measured(*parts: Scores, privileged: Sequence[str] = (), starts: bool = True, **changes: Any) -> OwnResults:
    """Judged runs; with `starts` the k-th episode of every part began in state k, so that parts are paired."""
    scores = joined(*(parts or (verdicts(),)))
    headers = [
        Header(
            episode_id=part.episode_id[k],
            benchmark=part.benchmark[k],
            task_id=part.task_id[k],
            success=bool(part.success[k]),
            dt=0.05,
            target_object=None,
            policy=part.policy[k],
            init_state_index=k if starts else None,
            seed=0,
        )
        for part in parts
        for k in range(len(part))
    ]
    roster = Roster(privileged=privileged)
    inputs = TableInputs(scores=scores, ruleset=load_ruleset(), roster=roster, **changes)
    return OwnResults(inputs=inputs, headers=headers)
