"""Running policies: what to run (`plan`), one episode (`episode`), all of them (`dispatch`, `workers`, `actors`)."""

from safevla_bench.rollout.engine import Finished, Observer, run_all
from safevla_bench.rollout.episode import Outcome, run_episode
from safevla_bench.rollout.estimate import Estimate, estimate
from safevla_bench.rollout.plan import PRESET, PROTOCOL, Episodes, Planned, Protocol, matched, plan, protocol
from safevla_bench.rollout.ray import run_actors
from safevla_bench.rollout.shards import Shard, bounds
from safevla_bench.rollout.worker import Cast
from safevla_bench.rollout.worker_pool import run_workers

__all__ = [
    "PRESET",
    "PROTOCOL",
    "Cast",
    "Episodes",
    "Estimate",
    "Finished",
    "Observer",
    "Outcome",
    "Planned",
    "Protocol",
    "Shard",
    "bounds",
    "estimate",
    "matched",
    "plan",
    "protocol",
    "run_actors",
    "run_all",
    "run_episode",
    "run_workers",
]
