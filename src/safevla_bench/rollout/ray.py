"""Actors of a Ray cluster as workers: one environment each, on whatever node has room.

This process gives out episodes and is the only one that writes; an actor needs no shared file system. A record goes
back as its compressed frame, and an actor has one episode at a time, so at most one record an actor is on the way.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safevla_bench import hosts
from safevla_bench import ray_cluster as clusters
from safevla_bench.errors import HostError, SafevlaError
from safevla_bench.interface import Host, Policy
from safevla_bench.ray_cluster import Cluster
from safevla_bench.rollout import devices
from safevla_bench.rollout.engine import Finished, Observer, Stage
from safevla_bench.rollout.plan import Planned
from safevla_bench.rollout.scheduler import run_crew
from safevla_bench.rollout.worker import STEPS_BETWEEN, Cast, Failed, Message, Ready, Stepped
from safevla_bench.version import __version__

LEAK_BYTES = 2 * 2**30
"""How much an actor's memory may grow after its first episode before it is replaced: simulators leak."""
_LOOK_S = 1.0
"""How long to wait for a word before looking whether there is room for actors at all."""


def run_actors(
    cast: Cast, episodes: Sequence[Planned], count: int, cluster: Cluster, observer: Observer | None = None
) -> Generator[Finished]:
    """Run the episodes with `count` actors and yield each as it ends; raises what `connected` and `run_crew` raise."""
    count = min(count, len(episodes))
    with clusters.connected(cluster, count) as ray:
        yield from run_crew(_Actors(ray, cast, cluster), episodes, count, observer)


@dataclass(frozen=True, slots=True)
class Said:
    """What an actor gives back: a word for the crew, and how much memory it uses by now, 0 where that is not known."""

    message: Message
    resident_bytes: int = 0


class Ears:
    """A light actor beside the command: takes in how far episodes are, and tells it when there is something new."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._new = asyncio.Event()

    async def tell(self, turn: int, steps: int) -> None:
        self._steps[turn] = steps
        self._new.set()

    async def told(self) -> dict[int, int]:
        """Steps by turn, since it was asked last; waits until there are any."""
        await self._new.wait()
        self._new.clear()
        told, self._steps = self._steps, {}
        return told


class Player:
    """The actor. It touches no file of the run."""

    def __init__(self, cast: Cast, number: int, versions: Mapping[str, str], ears: Any = None) -> None:
        self._cast, self._number, self._versions, self._ears = cast, number, versions, ears
        self._stage: Stage | None = None
        self._policies: dict[str, Policy] = {}

    def prepare(self) -> Said:
        """Make host and policies; an error that the user must mend names this node."""
        seen = devices.gpus(os.environ) if self._cast.renders else ()
        os.environ.update(devices.environment(self._number, os.environ, seen, cameras=self._cast.renders))
        try:
            host, self._policies = self._cast.make()
            _require_same(self._versions, versions(host))
            watch = self._cast.stopping.monitor() if self._cast.stopping else None
        except SafevlaError as error:
            return Said(Failed(_on_this_node(error)))
        self._stage = Stage(host, self._policies, watch)
        return Said(Ready())

    def play(self, planned: Planned, turn: int) -> Said:
        """Run an episode; `turn` tells it from every other that this run has begun."""
        assert self._stage is not None

        def tell(steps: int) -> None:
            if self._ears and steps % STEPS_BETWEEN == 0:
                self._ears.tell.remote(turn, steps)

        try:
            return Said(Finished.of(self._stage.play(planned, on_step=tell)), _resident_bytes())
        except SafevlaError as error:
            return Said(Failed(_on_this_node(error)))

    def close(self) -> None:
        if self._stage:
            self._stage.close()
        for policy in self._policies.values():
            policy.close()


def versions(host: Host) -> dict[str, str]:
    """What records depend on."""
    return {"safevla-bench": __version__, **host.versions()}


def _require_same(asked: Mapping[str, str], found: Mapping[str, str]) -> None:
    if differing := clusters.differing(asked, found):
        raise HostError(differing, remedy="Install the same versions on every node; records depend on them.")


def _on_this_node(error: SafevlaError) -> SafevlaError:
    error.problem = f"on the node {clusters.node()}: {error.problem}"
    return error


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Actor:
    """This side of an actor: what it was asked last, and what it has used up."""

    def __init__(self, ray: Any, handle: Any, episodes: int, turns: Iterator[int]) -> None:
        self._ray, self._handle, self._left, self._turns = ray, handle, episodes, turns
        self.turn = -1
        self._there = False
        self._first_bytes: int | None = None
        self._leaking = False
        self._cause = "it was ended"
        self.asked = handle.prepare.remote()

    @property
    def spent(self) -> bool:
        return self._left <= 0 or self._leaking

    def begin(self, planned: Planned) -> None:
        self._left -= 1
        self.turn = next(self._turns)
        self.asked = self._handle.play.remote(planned, self.turn)

    def dismiss(self) -> None:
        """It is asked to close, and then to end, which frees its share of the node; before it began, it just ends."""
        if not self._there:
            self._ray.kill(self._handle)
            return
        self.asked = self._handle.close.remote()
        self._handle.__ray_terminate__.remote()

    def end(self, timeout_s: float) -> str:
        if timeout_s and self._there:
            self._ray.wait([self.asked], timeout=timeout_s)
        self._ray.kill(self._handle)
        return self._cause

    def heard(self) -> Message | None:
        """What it has said to what it was asked last; None where it has died, or cannot be reached any more."""
        try:
            said: Said = self._ray.get(self.asked)
        except self._ray.exceptions.RayError as error:
            self._cause = clusters.told(error)
            return None
        self._there = True
        self._weigh(said.resident_bytes)
        return said.message

    def _weigh(self, resident_bytes: int) -> None:
        if resident_bytes and self._first_bytes is None:
            self._first_bytes = resident_bytes
        self._leaking = resident_bytes - (self._first_bytes or resident_bytes) > LEAK_BYTES


class _Actors:
    """The actors of a run."""

    starts = 3
    remedy = clusters.NODES

    def __init__(self, ray: Any, cast: Cast, cluster: Cluster) -> None:
        self._ray, self._cast, self._cluster = ray, cast, cluster
        self._versions = versions(hosts.host(cast.host, cast.host_arguments))
        self._turns = itertools.count()
        here = ray.get_runtime_context().get_node_id()
        beside = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        self._ears = ray.remote(Ears).options(num_cpus=0, scheduling_strategy=beside).remote()
        self._listening = [self._ears.told.remote()]
        self._cast_once = ray.put(cast)  # recorded actions may be large; each node fetches them once
        self._made = ray.remote(Player).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {name: os.environ.get(name, "1") for name in devices.ONE_THREAD}},
        )

    def start(self, number: int) -> Actor:
        made = self._made.remote(self._cast_once, number, self._versions, self._ears)
        return Actor(self._ray, made, self._cluster.episodes, self._turns)

    def heard(self, workers: Mapping[int, Actor]) -> Iterator[tuple[int, Message | None]]:
        by_asked = {worker.asked: number for number, worker in workers.items()}
        ready, _ = self._ray.wait([*by_asked, *self._listening], num_returns=1, timeout=_LOOK_S)
        for asked in ready:
            if asked in self._listening:
                yield from self._overheard(workers)
            else:
                yield by_asked[asked], workers[by_asked[asked]].heard()
        if not ready:
            clusters.require_room(self._ray, self._cluster)

    def _overheard(self, workers: Mapping[int, Actor]) -> Iterator[tuple[int, Message]]:
        """How far the episodes are that still run."""
        try:
            told: dict[int, int] = self._ray.get(self._listening.pop())
        except self._ray.exceptions.RayError:  # the run does not need to know; it goes on without
            return
        self._listening.append(self._ears.told.remote())
        for number, worker in workers.items():
            if worker.turn in told:
                yield number, Stepped(told[worker.turn])
