"""Actors of a Ray cluster as workers, one environment each; Ray is connected to, or started on this machine.

This process distributes the episodes and is the only one that writes; actors need no shared file system. The extra
`ray` is imported only when requested.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import platform
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from safevla_bench import hosts
from safevla_bench.errors import HostError, RunError, SafevlaError
from safevla_bench.interface.environment import Host
from safevla_bench.plugins import install_command
from safevla_bench.rollout import episode, plan, scheduler
from safevla_bench.rollout.scheduler import Message, WorkerParts, WorkerSpec

ADDRESS: Final = "RAY_ADDRESS"  # environment variable that names a cluster if no address is given
HERE: Final = "local"
_CONNECT_S = 5.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # gRPC, and so Ray, replies with settings (type 4)
_STORE_BYTES = 200 * 2**20
"""Object store of a cluster started here: records have some megabytes, and each actor sends one at a time."""


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster, and the share of a node that each actor reserves; raises `RunError` for an invalid share."""

    address: str | None = None
    """`HOST:PORT` of the head; `auto` = the cluster running on this machine; None = the one in RAY_ADDRESS, else Ray is
    started here for as long as needed.
    """
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not all(share >= 0 and (share <= 1 or share % 1 == 0) for share in (self.cpus, self.gpus)):
            problem = f"--actor cpus={self.cpus:g}, gpus={self.gpus:g} is not a share of a node"
            raise RunError(problem, remedy="Give whole numbers, or shares such as 0.25.")

    @property
    def place(self) -> str:
        """The effective address: `address`, else RAY_ADDRESS, else `local` = Ray is started here."""
        return self.address or os.environ.get(ADDRESS) or HERE


@contextmanager
def connect_ray(cluster: RayCluster, slots: int) -> Iterator[Any]:
    """Yield the connected module `ray`; disconnect after the block unless the process was connected before. A cluster
    started here has room for `slots` actors. Raises `RunError` if Ray or the cluster is unusable.
    """
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        yield ray
        return
    is_main, former = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    handle = former if callable(former) else signal.default_int_handler
    try:
        ray = _start_ray(cluster, slots)
    except SystemExit:  # raised by Ray's handler of SIGTERM, which is in force while it starts
        handle(signal.SIGTERM, None)
        raise
    if is_main:
        signal.signal(signal.SIGTERM, handle)
    try:
        yield ray
    finally:
        ray.shutdown()
        if is_main:
            signal.signal(signal.SIGTERM, former or signal.SIG_DFL)


def require_room(ray: Any, cluster: RayCluster) -> None:
    """Raise `RunError` if no living node has as many CPUs and GPUs in total as an actor reserves."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cluster.cpus and node.get("GPU", 0) >= cluster.gpus for node in nodes):
        return
    problem = f"no node of the Ray cluster has {cluster.cpus:g} CPUs and {cluster.gpus:g} GPUs for an actor"
    raise RunError(problem, remedy="Lower --actor cpus= or gpus=, or add a node: ray start --address ...")


def _start_ray(cluster: RayCluster, slots: int) -> Any:
    if importlib.util.find_spec("ray") is None:
        remedy = f"Install it, on every node: {install_command('ray')}"
        raise RunError("the engine ray needs Ray, which is not installed", remedy=remedy)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # default of Ray 2.60
    place = cluster.place
    own = _local_options(math.ceil(slots * cluster.cpus)) if place == HERE else {}
    ray: Any = importlib.import_module("ray")  # imports now, because Ray reads the variables at import
    try:
        if ":" in place:  # Ray would retry for minutes
            head, _, port = place.rpartition(":")
            with socket.create_connection((head.strip("[]"), int(port)), timeout=_CONNECT_S) as connection:
                if os.environ.get("RAY_USE_TLS", "0") == "0":
                    connection.sendall(_HTTP2)
                    if connection.recv(4)[3:] != b"\4":
                        raise OSError("what listens there is not Ray")
        ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"the Ray cluster {place} cannot be used: {first}", remedy=_REMEDY) from None
    return ray


def _local_options(cpus: int) -> dict[str, Any]:
    """Return the options of a private cluster, whose token is written nowhere, so that nobody else can use it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())
    return {"num_cpus": max(os.cpu_count() or 1, cpus), "include_dashboard": False, "object_store_memory": _STORE_BYTES}


_REMEDY = (
    "Run the command on a node of the cluster, with --engine ray:HOST:PORT as printed by `ray start --head` (usually "
    "port 6379), or ray:auto, and with its authentication token if it has one (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN)."
)


# Actors


def run_actors(
    spec: WorkerSpec,
    episodes: Sequence[plan.PlannedEpisode],
    count: int,
    cluster: RayCluster,
    *,
    other_code: bool = False,
) -> Generator[episode.EpisodeOutcome]:
    """Run the episodes with `count` actors and yield each as it ends; actors with other code than this process are
    refused, unless `other_code` allows them. Raises the errors of `connect_ray` and `run_pool`, and `RunError` if no
    node has as many CPUs and GPUs as an actor reserves, or Ray refuses this share.
    """
    count = min(count, len(episodes))
    with connect_ray(cluster, count) as ray:
        require_room(ray, cluster)
        yield from scheduler.run_pool(_ActorPool(ray, spec, cluster, other_code=other_code), episodes, count)


class RayWorker:
    """The actor that runs episodes. It touches no file of the run."""

    def __init__(self, spec: WorkerSpec, number: int, versions: Mapping[str, str]) -> None:
        self._spec, self._number, self._versions = spec, number, versions
        self._parts: WorkerParts | None = None

    def prepare(self) -> Message:
        """Make host and policies, and reply that the worker is ready, or with a user error that names this node. Sets
        this process's environment variables. Versions and code must be those of the command's machine.
        """
        os.environ.update(scheduler.worker_environment(self._number, os.environ))
        try:
            self._parts = WorkerParts(self._spec)
            installed = name_installed(self._parts.host)
            pairs = ((name, installed.get(name), version) for name, version in self._versions.items())
            if differing := [f"{name} {own}, not {version}" for name, own, version in pairs if own != version]:
                problem = f"it has other versions than the command's own environment: {'; '.join(differing)}"
                remedy = "Install the same on every node; records depend on it. --other-code takes other code."
                raise HostError(problem, remedy=remedy)
        except SafevlaError as error:
            return _failed_here(error)
        return scheduler.READY

    def run_planned(self, planned: plan.PlannedEpisode) -> Message:
        """Run an episode and reply with its outcome, or with an error that ends the run and names this node."""
        assert self._parts is not None
        try:
            return self._parts.runner.run_planned(planned)
        except SafevlaError as error:
            return _failed_here(error)

    def close(self) -> None:
        if self._parts:
            self._parts.close()


def name_installed(host: Host) -> dict[str, str]:
    """Return package -> version for all that records depend on, and as `code` what identifies their code."""
    return {**hosts.record_versions(host), "code": hosts.describe_code(host)}


def _failed_here(error: SafevlaError) -> SafevlaError:
    error.problem = f"on the node {platform.node()}: {error.problem}"
    return error


class ActorHandle:
    """The local side of an actor; `asked` refers to its reply to the last request."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self._handle = ray, handle
        self._is_ready = False
        self._cause = "it was ended"
        self.asked = handle.prepare.remote()

    def begin(self, planned: plan.PlannedEpisode) -> None:
        self.asked = self._handle.run_planned.remote(planned)

    def dismiss(self) -> None:
        """Request the actor to close and end, which frees its share of the node; kill it if it is not ready yet."""
        if not self._is_ready:
            self._ray.kill(self._handle)
            return
        self.asked = self._handle.close.remote()
        self._handle.__ray_terminate__.remote()

    def end(self, timeout_s: float) -> str:
        """Wait `timeout_s` for the last reply of an actor that was ready, kill it, and return why it ended."""
        if timeout_s and self._is_ready:
            self._ray.wait([self.asked], timeout=timeout_s)
        self._ray.kill(self._handle)
        return self._cause

    def receive(self) -> Message | None:
        """Return the actor's reply to the last request, or None if the actor has died, is unreachable or raised an
        error; `end` then gives the reason.
        """
        try:
            message: Message = self._ray.get(self.asked)
        except self._ray.exceptions.RayError as error:
            self._cause = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            return None
        self._is_ready = True
        return message


class _ActorPool:
    remedy = "Every node needs safevla-bench with the same extras as here; its messages are in Ray's logs on its node."

    def __init__(self, ray: Any, spec: WorkerSpec, cluster: RayCluster, *, other_code: bool) -> None:
        self._ray, self._cluster = ray, cluster
        self._versions = name_installed(hosts.make_host(spec.host, spec.host_arguments))
        if other_code:
            del self._versions["code"]
        self._spec = ray.put(spec)  # recorded actions may be large; each node fetches them once
        try:
            self._actors = ray.remote(RayWorker).options(
                num_cpus=cluster.cpus,
                num_gpus=cluster.gpus,
                max_restarts=0,
                scheduling_strategy="SPREAD",
                runtime_env={"env_vars": {name: os.environ.get(name, "1") for name in scheduler.ONE_THREAD}},
            )
        except ValueError as error:
            raise RunError(f"--actor: {error}", remedy="Give whole numbers, or shares such as 0.25.") from None

    def start(self, number: int) -> ActorHandle:
        return ActorHandle(self._ray, self._actors.remote(self._spec, number, self._versions))

    def receive_messages(self, workers: Mapping[int, ActorHandle]) -> Iterator[tuple[int, Message | None]]:
        by_asked = {worker.asked: number for number, worker in workers.items()}
        ready, _ = self._ray.wait(list(by_asked), num_returns=1, timeout=scheduler.LOOK_S)
        for asked in ready:
            yield by_asked[asked], workers[by_asked[asked]].receive()
        if not ready:
            require_room(self._ray, self._cluster)
