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


def measured(*parts: Scores, privileged: Sequence[str] = (), **changes: Any) -> OwnResults:
    scores = joined(*(parts or (verdicts(),)))
    roster = Roster(privileged=privileged)
    inputs = TableInputs(scores=scores, ruleset=load_ruleset(), roster=roster, **changes)
    return OwnResults(inputs=inputs)
