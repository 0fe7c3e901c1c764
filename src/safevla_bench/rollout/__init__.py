"""Running policies: what to run (`plan`), one episode (`episode`), all of them (`dispatch`)."""

from safevla_bench.rollout.dispatch import Observer, run_all
from safevla_bench.rollout.episode import Outcome, run_episode
from safevla_bench.rollout.plan import PRESET, Planned, Protocol, plan, protocol

__all__ = ["PRESET", "Observer", "Outcome", "Planned", "Protocol", "plan", "protocol", "run_all", "run_episode"]
