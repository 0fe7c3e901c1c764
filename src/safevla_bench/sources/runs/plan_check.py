"""The plan in run.json against the table of episodes: which planned episodes are missing, and what nobody planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.sources.runs.folder import DECISION, MISSING, RUN, AbsentEpisode, EpisodeRow
from safevla_bench.text import shorten_name

_REASON = "it was planned, and the table of episodes does not list it"
_NAMED = 1_000_000
"""Episodes of a plan up to which each has its name here; a run.json may claim any number."""
_SUITE_SIZES = (None, "protocol")
"""What run.json says of the number of episodes where each task of a suite has as many as its suite has."""


class PlanStretch(msgspec.Struct, frozen=True):
    """The `number`-th of `count` shards, from 1: its first place in the plan, and how many episodes the plan has.

    run.json holds it as `shard`.
    """

    number: int
    count: int
    first: int
    whole: int


class _Policy(msgspec.Struct):
    policy: str


class _Until(msgspec.Struct):
    look_every: int


class _Decision(msgspec.Struct):
    is_decided: bool
    rounds: int
    episodes: int


class _Plan(msgspec.Struct):
    """The fields of run.json that say which episodes the run was to have."""

    planned: int
    episodes: int | str | None = None
    policies: list[_Policy] = []
    tasks: list[str] = []
    shard: PlanStretch | None = None
    until: _Until | None = None
    decision: _Decision | None = msgspec.field(name=DECISION, default=None)

    @property
    def stopped(self) -> _Decision | None:
        return self.decision if self.decision and self.decision.is_decided else None

    def round_of(self, episode: int) -> int:
        return episode // max(1, self.until.look_every) if self.until else 0


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Between a run's plan and its table of episodes."""

    missing: tuple[AbsentEpisode, ...] = ()
    unnamed: int = 0
    """Further planned episodes that are not listed, where run.json does not tell which."""
    unplanned: int = 0


def name_episode(policy: str, task: str, episode: int) -> str:
    """Return the id of a planned episode; `task` is `SUITE/TASK`."""
    return f"{policy}/{task}/ep_{episode:03d}"


def compare_plan(description: Mapping[str, object], rows: Sequence[EpisodeRow]) -> PlanDifference:
    """Return what differs between the plan of a complete run, by its run.json, and the rows of its table of episodes.

    Nothing if run.json has no plan, as of a loop that was recorded from outside. Raises `RunError`: what run.json
    says of the plan is damaged.
    """
    if "planned" not in description:
        return PlanDifference()
    plan = _read_plan(description)
    listed = {row.episode_id for row in rows}
    expected = plan.stopped.episodes if plan.stopped else plan.planned
    planned = _name_planned(plan, rows)
    if planned is None or len(planned) != expected:
        surplus = len(rows) - expected
        return PlanDifference(unnamed=max(0, -surplus), unplanned=max(0, surplus))
    missing = [absent for name, absent in planned.items() if name not in listed]
    return PlanDifference(tuple(missing), unplanned=len(rows) - len(listed & planned.keys()))


def _read_plan(description: Mapping[str, object]) -> _Plan:
    for document in (description, {"planned": description["planned"], "episodes": "unknown"}):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(document, _Plan)
    problem = f"{RUN}: the number of planned episodes is damaged: {shorten_name(repr(description['planned']))}"
    raise RunError(problem, remedy="Restore the file.")


def _name_planned(plan: _Plan, rows: Sequence[EpisodeRow]) -> dict[str, AbsentEpisode] | None:
    """Return the planned episodes by id, in plan order; None if run.json and the rows do not tell which they are.

    The order is policy, task, episode. Where run.json has no number of episodes, it is that of the suite's rows, if
    this gives the whole plan.
    """
    whole = plan.shard.whole if plan.shard else plan.planned
    if whole > _NAMED or not (isinstance(plan.episodes, int) or plan.episodes in _SUITE_SIZES):
        return None
    counts = {task: _count_episodes(plan, task, rows) for task in plan.tasks}
    if len(plan.policies) * sum(counts.values()) != whole:
        return None
    scenes = ((policy.policy, task) for policy in plan.policies for task in plan.tasks)
    episodes = ((policy, task, number) for policy, task in scenes for number in range(counts[task]))
    first = max(0, plan.shard.first) if plan.shard else 0
    own = islice(episodes, first, first + max(0, plan.planned))
    kept = (episode for episode in own if plan.stopped is None or plan.round_of(episode[2]) < plan.stopped.rounds)
    return {name_episode(*episode): _absent_episode(*episode) for episode in kept}


def _count_episodes(plan: _Plan, task: str, rows: Sequence[EpisodeRow]) -> int:
    if isinstance(plan.episodes, int):
        return max(0, plan.episodes)
    return max((row.episode + 1 for row in rows if row.benchmark == task.partition("/")[0]), default=0)


def _absent_episode(policy: str, task: str, number: int) -> AbsentEpisode:
    benchmark, _, task_id = task.partition("/")
    return AbsentEpisode(
        episode_id=name_episode(policy, task, number),
        benchmark=benchmark,
        task_id=task_id,
        policy=policy,
        outcome=MISSING,
        reason=_REASON,
    )
