"""Rollouts of policies: the plan, one episode, and the engines that run them all (serial, worker pool, Ray)."""

from safevla_bench.rollout.engine import FinishedEpisode, Observer, run_serially
from safevla_bench.rollout.episode import EpisodeOutcome, run_episode
from safevla_bench.rollout.estimate import RunEstimate, estimate_run
from safevla_bench.rollout.plan import (
    PRESET,
    PROTOCOL,
    RECORDED,
    Episodes,
    EvaluationProtocol,
    PlannedEpisode,
    Shard,
    cut_plan,
    load_protocol,
    match_recording,
    plan_episodes,
)
from safevla_bench.rollout.ray import run_actors
from safevla_bench.rollout.scheduler import run_workers
from safevla_bench.rollout.worker import WorkerSpec

__all__ = [
    "PRESET",
    "PROTOCOL",
    "RECORDED",
    "EpisodeOutcome",
    "Episodes",
    "EvaluationProtocol",
    "FinishedEpisode",
    "Observer",
    "PlannedEpisode",
    "RunEstimate",
    "Shard",
    "WorkerSpec",
    "cut_plan",
    "estimate_run",
    "load_protocol",
    "match_recording",
    "plan_episodes",
    "run_actors",
    "run_episode",
    "run_serially",
    "run_workers",
]
