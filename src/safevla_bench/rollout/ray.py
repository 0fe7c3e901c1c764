"""Actors of a Ray cluster as workers: one environment each, on whatever node has room.

This process gives out episodes and is the only one that writes; an actor needs no shared file system. A record goes
back as its bytes, and an actor has one episode at a time, so at most one record an actor is on the way.
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
from safevla_bench.errors import HostError, SafevlaError
from safevla_bench.interface.environment import Host
from safevla_bench.rollout import ray_cluster as clusters
from safevla_bench.rollout.episode import EpisodeOutcome, StepCallback
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.rollout.ray_cluster import RayCluster
from safevla_bench.rollout.scheduler import run_pool
from safevla_bench.rollout.worker import (
    ONE_THREAD,
    Message,
    StepReached,
    WorkerFailed,
    WorkerParts,
    WorkerReady,
    WorkerSpec,
    usable_gpus,
    worker_environment,
)
from safevla_bench.version import __version__

LEAK_BYTES = 2 * 2**30
"""How much an actor's memory may grow after its first episode before it is replaced: simulators leak."""
_LOOK_S = 1.0
"""Time to wait for a message before checking that there is room for actors at all."""


def run_actors(
    spec: WorkerSpec,
    episodes: Sequence[PlannedEpisode],
    count: int,
    cluster: RayCluster,
    on_step: StepCallback | None = None,
) -> Generator[EpisodeOutcome]:
    """Run the episodes with `count` actors and yield each as it ends; raises as `connect_ray` and `run_pool` do."""
    count = min(count, len(episodes))
    with clusters.connect_ray(cluster, count) as ray:
        yield from run_pool(_ActorPool(ray, spec, cluster), episodes, count, on_step)


@dataclass(frozen=True, slots=True)
class ActorReply:
    """The reply of an actor: a message for the scheduler, and the memory that it uses, 0 if unknown."""

    message: Message
    resident_bytes: int = 0


class ProgressActor:
    """A light actor beside the command that collects the steps of running episodes and passes them on."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._new = asyncio.Event()

    async def report_steps(self, turn: int, steps: int) -> None:
        """Store the number of steps done in a turn for `next_steps`, in place of an earlier number."""
        self._steps[turn] = steps
        self._new.set()

    async def next_steps(self) -> dict[int, int]:
        """Wait for new steps and return them by turn; each is returned once."""
        await self._new.wait()
        self._new.clear()
        steps, self._steps = self._steps, {}
        return steps


class RayWorker:
    """The actor that runs episodes. It touches no file of the run."""

    def __init__(self, spec: WorkerSpec, number: int, versions: Mapping[str, str], progress: Any = None) -> None:
        """Keep what `prepare` needs: `versions` by package are those to require, `progress` a `ProgressActor`."""
        self._spec, self._number, self._versions, self._progress = spec, number, versions, progress
        self._parts: WorkerParts | None = None

    def prepare(self) -> ActorReply:
        """Make host and policies, and reply that the worker is ready, or with an error of the user naming this node.

        Sets this process's environment variables. The host's versions must be those of the command's machine.
        """
        seen = usable_gpus(os.environ) if self._spec.renders else ()
        os.environ.update(worker_environment(self._number, os.environ, seen, cameras=self._spec.renders))
        try:
            self._parts = WorkerParts(self._spec)
            if differing := clusters.describe_differences(self._versions, record_versions(self._parts.host)):
                raise HostError(differing, remedy="Install the same versions on every node; records depend on them.")
        except SafevlaError as error:
            return _failed_reply(error)
        return ActorReply(WorkerReady())

    def run_planned(self, planned: PlannedEpisode, turn: int) -> ActorReply:
        """Run an episode and reply with its outcome, or with an error that ends the run, which names this node.

        `turn` is a number that no other episode begun in this run has; progress is reported under it.
        """
        assert self._parts is not None

        def report(steps: int) -> None:
            if self._progress:
                self._progress.report_steps.remote(turn, steps)

        try:
            return ActorReply(self._parts.run_planned(planned, report), _resident_bytes())
        except SafevlaError as error:
            return _failed_reply(error)

    def close(self) -> None:
        """Close the environment and the policies."""
        if self._parts:
            self._parts.close()


def record_versions(host: Host) -> dict[str, str]:
    """Return the versions that records depend on by package: this package's and the host's."""
    return {"safevla-bench": __version__, **host.versions()}


def _failed_reply(error: SafevlaError) -> ActorReply:
    error.problem = f"on the node {clusters.node_name()}: {error.problem}"
    return ActorReply(WorkerFailed(error))


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class ActorHandle:
    """This side of an actor: its last request, and the resources that it has used up."""

    def __init__(self, ray: Any, handle: Any, episodes: int, turns: Iterator[int]) -> None:
        self._ray, self._handle, self._left, self._turns = ray, handle, episodes, turns
        self.turn = -1
        self._is_ready = False
        self._first_bytes = 0
        self._leaking = False
        self._cause = "it was ended"
        self.asked = handle.prepare.remote()

    @property
    def spent(self) -> bool:
        """True if the actor has run as many episodes as it may, or leaks memory."""
        return self._left <= 0 or self._leaking

    def begin(self, planned: PlannedEpisode) -> None:
        """Ask the actor to run an episode."""
        self._left -= 1
        self.turn = next(self._turns)
        self.asked = self._handle.run_planned.remote(planned, self.turn)

    def dismiss(self) -> None:
        """Ask the actor to close and then to end, which frees its share of the node; kill it if it is not ready yet."""
        if not self._is_ready:
            self._ray.kill(self._handle)
            return
        self.asked = self._handle.close.remote()
        self._handle.__ray_terminate__.remote()

    def end(self, timeout_s: float) -> str:
        """Wait `timeout_s` for the actor's last reply, kill it, and return in words why it is gone.

        The wait is left out if the actor is not ready.
        """
        if timeout_s and self._is_ready:
            self._ray.wait([self.asked], timeout=timeout_s)
        self._ray.kill(self._handle)
        return self._cause

    def receive(self) -> Message | None:
        """Wait for the actor's reply to the last request and return its message.

        None if the actor has died, cannot be reached or raised an error: `end` then says which.
        """
        try:
            reply: ActorReply = self._ray.get(self.asked)
        except self._ray.exceptions.RayError as error:
            self._cause = clusters.describe_loss(error)
            return None
        self._is_ready = True
        self._first_bytes = self._first_bytes or reply.resident_bytes
        self._leaking = reply.resident_bytes - self._first_bytes > LEAK_BYTES
        return reply.message


class _ActorPool:
    """The actors of a run."""

    starts = 3
    remedy = clusters.NODES

    def __init__(self, ray: Any, spec: WorkerSpec, cluster: RayCluster) -> None:
        self._ray, self._spec, self._cluster = ray, spec, cluster
        self._versions = record_versions(hosts.make_host(spec.host, spec.host_arguments))
        self._turns = itertools.count()
        own_node = ray.get_runtime_context().get_node_id()
        nearby = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(own_node, soft=True)
        self._progress = ray.remote(ProgressActor).options(num_cpus=0, scheduling_strategy=nearby).remote()
        self._listening = [self._progress.next_steps.remote()]
        self._spec_once = ray.put(spec)  # recorded actions may be large; each node fetches them once
        self._made = ray.remote(RayWorker).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {name: os.environ.get(name, "1") for name in ONE_THREAD}},
        )

    def start(self, number: int) -> ActorHandle:
        made = self._made.remote(self._spec_once, number, self._versions, self._progress)
        return ActorHandle(self._ray, made, self._cluster.episodes, self._turns)

    def receive_messages(self, workers: Mapping[int, ActorHandle]) -> Iterator[tuple[int, Message | None]]:
        by_asked = {worker.asked: number for number, worker in workers.items()}
        ready, _ = self._ray.wait([*by_asked, *self._listening], num_returns=1, timeout=_LOOK_S)
        for asked in ready:
            if asked in self._listening:
                yield from self._progress_messages(workers)
            else:
                yield by_asked[asked], workers[by_asked[asked]].receive()
        if not ready:
            clusters.require_room(self._ray, self._cluster)

    def _progress_messages(self, workers: Mapping[int, ActorHandle]) -> Iterator[tuple[int, Message]]:
        try:
            steps: dict[int, int] = self._ray.get(self._listening.pop())
        except self._ray.exceptions.RayError:  # the run does not need to know; it goes on without
            return
        self._listening.append(self._progress.next_steps.remote())
        yield from (
            (number, StepReached(steps[worker.turn])) for number, worker in workers.items() if worker.turn in steps
        )
