"""What to run: a `Protocol` (data) and the tuple of `Planned` episodes that it and the user's choices give."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.interface import EpisodeSeed, Task

PRESET = "safevla-bench"


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How episodes start, run and end; the fields are described in the preset's file."""

    name: str
    wait_steps: int
    env_seed: int
    init_state: str
    stop_at_success: bool
    policy_seed: str
    horizons: dict[str, int]


@dataclass(frozen=True, slots=True)
class Planned:
    """One episode to run."""

    episode_id: str
    policy: str
    task: Task
    episode: int
    start: EpisodeSeed
    seed: int
    """The user's seed."""
    policy_seed: int
    horizon: int


def protocol(name: str = PRESET) -> Protocol:
    """A protocol that ships with the package."""
    text = resources.files(__package__).joinpath("protocols", f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Protocol)


def plan(
    tasks: Sequence[Task],
    episodes: int | None,
    policies: Sequence[str],
    rules: Protocol,
    *,
    seed: int = 0,
    max_steps: int | None = None,
) -> tuple[Planned, ...]:
    """Every episode, in the order policy, task, episode; `episodes` of each task, None = as many as its benchmark runs.

    Raises `RunError` where there is nothing to run, a policy is named twice, an initial state does not exist or the
    protocol knows no horizon for a suite.
    """
    _check(tasks, episodes, policies)
    return tuple(
        Planned(
            episode_id=f"{policy}/{task.benchmark}/{task.task_id}/ep_{episode:03d}",
            policy=policy,
            task=task,
            episode=episode,
            start=EpisodeSeed(init_state_index=episode, env_seed=rules.env_seed, wait_steps=rules.wait_steps),
            seed=seed,
            policy_seed=policy_seed(seed, task, episode),
            horizon=_horizon(task, rules, max_steps),
        )
        for policy in policies
        for task in tasks
        for episode in range(_count(task, episodes))
    )


def policy_seed(seed: int, task: Task, episode: int) -> int:
    """32 bits that differ between episodes and repeat between runs, machines and policies."""
    text = f"{seed}/{task.benchmark}/{task.task_id}/{episode}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _count(task: Task, episodes: int | None) -> int:
    return task.episodes if episodes is None else episodes


def _check(tasks: Sequence[Task], episodes: int | None, policies: Sequence[str]) -> None:
    if not tasks or not policies or (episodes is not None and episodes < 1):
        raise RunError("there is nothing to run", remedy="Give at least one task, one policy and one episode.")
    twice = sorted({policy for policy in policies if policies.count(policy) > 1})
    if twice:
        raise RunError(f"the policy {twice[0]!r} is named twice", remedy="Name each policy once.")
    for task in tasks:
        count = _count(task, episodes)
        if task.init_states is not None and count > task.init_states:
            problem = f"{task.benchmark} {task.task_id} has {task.init_states} initial states, {count} are asked for"
            raise RunError(problem, remedy=f"Pass --episodes {task.init_states} or fewer.")


def _horizon(task: Task, rules: Protocol, max_steps: int | None) -> int:
    if max_steps is not None:
        return max_steps
    horizon = rules.horizons.get(task.benchmark, task.horizon)
    if horizon is None:
        known = ", ".join(rules.horizons)
        problem = f"the protocol {rules.name!r} has no horizon for {task.benchmark!r}; it has {known}"
        raise RunError(problem, remedy="Pass --max-steps N.")
    return horizon
