"""Actors of a Ray cluster as workers, one environment each, and the cluster: reached, or started on this machine.

This process gives out episodes and is the only one that writes; an actor needs no shared file system. A record goes
back as its bytes, and an actor has one episode at a time, so at most one record an actor is on the way.

`ray` is an extra and is imported here when it is asked for, and nowhere before.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from safevla_bench import hosts
from safevla_bench.errors import HostError, RunError, SafevlaError
from safevla_bench.interface.environment import Host
from safevla_bench.plugins import install_command
from safevla_bench.rollout.episode import EpisodeOutcome, StepCallback
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.rollout.scheduler import run_pool
from safevla_bench.rollout.worker import (
    ONE_THREAD,
    Message,
    WorkerFailed,
    WorkerParts,
    WorkerReady,
    WorkerSpec,
    usable_gpus,
    worker_environment,
)
from safevla_bench.version import __version__

ADDRESS: Final = "RAY_ADDRESS"
"""The environment variable that names a cluster if no address is given."""
NODES: Final = (
    "Every node needs safevla-bench with the same extras as here; the worker's own messages are in Ray's logs on its "
    "node, session_latest/logs in Ray's temporary folder."
)
"""What helps if Ray's workers cannot work."""
_TOKEN, _TOKEN_FILE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
AUTO, HERE = "auto", "local"
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_STORE_BYTES = 200 * 2**20
"""Object store of a cluster of our own: a record has some megabytes, and one an actor is on the way at most."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster, and what an actor on it is given.

    Raises `RunError` for a negative, infinite or too fine share, and for more than one GPU that is not whole.
    """

    address: str | None = None
    """`HOST:PORT` of the head, `auto` = the cluster that runs on this machine; None = what RAY_ADDRESS says, else Ray
    is started here for as long as it is needed."""
    cpus: float = 1.0
    """Share of a node that each actor reserves; Ray places by it, and does not enforce it."""
    gpus: float = 0.0
    episodes: int = 100
    """After how many episodes an actor is replaced by a fresh one."""

    def __post_init__(self) -> None:
        for option, share in (("--actor cpus", self.cpus), ("--actor gpus", self.gpus)):
            if not (math.isfinite(share) and share >= 0 and round(share, 4) == share):
                remedy = "Give a number such as 2 or 0.25, with four decimals at most."
                raise RunError(f"{option}={share:g} is no share of a node", remedy=remedy)
        if self.gpus > 1 and not float(self.gpus).is_integer():
            remedy = "Give a fraction of one GPU, or a whole number of them."
            raise RunError(f"--actor gpus={self.gpus:g} is no share of a node", remedy=remedy)

    @property
    def place(self) -> str:
        """The address that counts: `address`, else that of RAY_ADDRESS, else `local` = Ray is started here."""
        return self.address or os.environ.get(ADDRESS) or HERE


@contextmanager
def connect_ray(cluster: RayCluster, slots: int) -> Iterator[Any]:
    """Yield the module `ray`, connected; disconnect after the block unless the process was connected before.

    A cluster that is started here has room for `slots` actors or tasks. Raises `RunError` if Ray is not installed, the
    cluster is not there or of another version, or no node has in all as many CPUs and GPUs as an actor reserves.
    """
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        require_room(ray, cluster)
        yield ray
        return
    ray = _start_ray(cluster, slots)
    with _log_worker_deaths():
        try:
            require_room(ray, cluster)
            yield ray
        finally:
            ray.shutdown()


def require_room(ray: Any, cluster: RayCluster) -> None:
    """Raise `RunError` if no living node has in all as many CPUs and GPUs as an actor reserves."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(resources.get("CPU", 0) >= cluster.cpus and resources.get("GPU", 0) >= cluster.gpus for resources in nodes):
        return
    asked = f"{cluster.cpus:g} CPUs and {cluster.gpus:g} GPUs"
    shares = [f"{resources.get('CPU', 0):g} and {resources.get('GPU', 0):g}" for resources in nodes]
    has = "; ".join(shares) or "there is no node"
    problem = f"no node of the Ray cluster has {asked}, which each actor is to have (they have {has})"
    raise RunError(problem, remedy="Lower --actor cpus= or gpus=, or add a node: ray start --address ...")


def describe_differences(required: Mapping[str, str], installed: Mapping[str, str]) -> str | None:
    """Return in words which of the required versions are others, or absent, here; None if all are as required."""
    pairs = ((name, installed.get(name), version) for name, version in required.items())
    differing = [f"{name} {own}, not {version}" for name, own, version in pairs if own != version]
    return f"it has other versions than the command's own environment: {', '.join(differing)}" if differing else None


def describe_loss(error: Exception) -> str:
    """Return Ray's message about a lost worker as one line: node, kind of error and cause, without advice and ids."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = lines[-1].partition(" Some common causes")[0] if lines else "no reason is known"
    where = re.search(r"\bip[:=] ?([0-9a-f.:]*[0-9a-f])", text)
    return f"{f'on the node {where[1]}: ' if where else ''}{type(error).__name__}: {why}"


def _start_ray(cluster: RayCluster, slots: int) -> Any:
    """Return the module `ray`, connected to the cluster, or to one that is started here for this process."""
    if importlib.util.find_spec("ray") is None:
        remedy = f"Install it, on every node: {install_command('ray')}"
        raise RunError("the engine ray needs Ray, which is not installed", remedy=remedy)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray 2.60 does and earlier ones warn about
    place, own = cluster.place, {}
    if place == HERE:
        own = _local_options(math.ceil(slots * cluster.cpus))
    else:
        _require_answer(place)
    ray: Any = importlib.import_module("ray")  # after its environment is set, which it reads then
    try:
        ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        named = f"the Ray cluster {_describe_place(place)} cannot be used"
        problem = "Ray could not be started here" if place == HERE else named
        raise RunError(f"{problem}: {first}", remedy=_REMEDY) from None
    return ray


def _local_options(cpus: int) -> dict[str, Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if _TOKEN_FILE not in os.environ:
        os.environ.setdefault(_TOKEN, secrets.token_hex())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS lacks it
    return {"num_cpus": max(cores, cpus), "include_dashboard": False, "object_store_memory": _STORE_BYTES}


def _describe_place(place: str) -> str:
    return "of this machine" if place == AUTO else f"at {place}"


_REMEDY = (
    "Run the command on a node of the cluster, with --engine ray:HOST:PORT as `ray start --head` told it (usually port "
    "6379), or ray:auto; without an address and RAY_ADDRESS Ray is started on this machine."
)


def _require_answer(place: str) -> None:
    """Raise `RunError` if nobody listens, or somebody else: Ray itself would try for minutes."""
    if place != AUTO:
        _require_listener(place)
    asking = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    asking += [] if place == AUTO else ["--address", place]
    try:
        asked = subprocess.run(asking, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        asked = None
    if asked and asked.returncode == 0:
        return
    if place == AUTO:
        raise RunError("no Ray cluster runs on this machine", remedy=_REMEDY)
    problem = f"what listens at {place} is not the head of a Ray cluster, or asks for another {_TOKEN}"
    raise RunError(problem, remedy=_REMEDY)


def _require_listener(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and host and port.isdecimal()):
        raise RunError(f"{address!r} is no address of a Ray cluster", remedy=_REMEDY)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        problem = f"no Ray cluster can be reached at {address}: {getattr(error, 'strerror', None) or error}"
        raise RunError(problem, remedy=_REMEDY) from None


@contextmanager
def _log_worker_deaths() -> Iterator[None]:
    worker: Any = importlib.import_module("ray._private.worker")
    printing = getattr(worker, "print_to_stdstream", None)
    if printing:
        worker.print_to_stdstream = lambda message, *rest, **more: _LOG.info("%s", message)
    try:
        yield
    finally:
        if printing:
            worker.print_to_stdstream = printing


# Actors


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
    with connect_ray(cluster, count) as ray:
        yield from run_pool(_ActorPool(ray, spec, cluster), episodes, count, on_step)


class RayWorker:
    """The actor that runs episodes. It touches no file of the run."""

    def __init__(self, spec: WorkerSpec, number: int, versions: Mapping[str, str]) -> None:
        """Keep what `prepare` needs: `versions` by package are those to require."""
        self._spec, self._number, self._versions = spec, number, versions
        self._parts: WorkerParts | None = None

    def prepare(self) -> Message:
        """Make host and policies, and reply that the worker is ready, or with an error of the user naming this node.

        Sets this process's environment variables. The host's versions must be those of the command's machine.
        """
        seen = usable_gpus(os.environ) if self._spec.renders else ()
        os.environ.update(worker_environment(self._number, os.environ, seen, cameras=self._spec.renders))
        try:
            self._parts = WorkerParts(self._spec)
            if differing := describe_differences(self._versions, record_versions(self._parts.host)):
                raise HostError(differing, remedy="Install the same versions on every node; records depend on them.")
        except SafevlaError as error:
            return _failed_message(error)
        return WorkerReady()

    def run_planned(self, planned: PlannedEpisode) -> Message:
        """Run an episode and reply with its outcome, or with an error that ends the run, which names this node."""
        assert self._parts is not None
        try:
            return self._parts.run_planned(planned)
        except SafevlaError as error:
            return _failed_message(error)

    def close(self) -> None:
        """Close the environment and the policies."""
        if self._parts:
            self._parts.close()


def record_versions(host: Host) -> dict[str, str]:
    """Return the versions that records depend on by package: this package's and the host's."""
    return {"safevla-bench": __version__, **host.versions()}


def _failed_message(error: SafevlaError) -> WorkerFailed:
    error.problem = f"on the node {platform.node()}: {error.problem}"
    return WorkerFailed(error)


class ActorHandle:
    """This side of an actor: its last request, and the resources that it has used up."""

    def __init__(self, ray: Any, handle: Any, episodes: int) -> None:
        self._ray, self._handle, self._left = ray, handle, episodes
        self._is_ready = False
        self._cause = "it was ended"
        self.asked = handle.prepare.remote()

    @property
    def spent(self) -> bool:
        """True if the actor has run as many episodes as it may: simulators leak memory."""
        return self._left <= 0

    def begin(self, planned: PlannedEpisode) -> None:
        """Ask the actor to run an episode."""
        self._left -= 1
        self.asked = self._handle.run_planned.remote(planned)

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
            message: Message = self._ray.get(self.asked)
        except self._ray.exceptions.RayError as error:
            self._cause = describe_loss(error)
            return None
        self._is_ready = True
        return message


class _ActorPool:
    """The actors of a run."""

    starts = 3
    remedy = NODES

    def __init__(self, ray: Any, spec: WorkerSpec, cluster: RayCluster) -> None:
        self._ray, self._spec, self._cluster = ray, spec, cluster
        self._versions = record_versions(hosts.make_host(spec.host, spec.host_arguments))
        self._spec_once = ray.put(spec)  # recorded actions may be large; each node fetches them once
        self._made = ray.remote(RayWorker).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {name: os.environ.get(name, "1") for name in ONE_THREAD}},
        )

    def start(self, number: int) -> ActorHandle:
        made = self._made.remote(self._spec_once, number, self._versions)
        return ActorHandle(self._ray, made, self._cluster.episodes)

    def receive_messages(self, workers: Mapping[int, ActorHandle]) -> Iterator[tuple[int, Message | None]]:
        by_asked = {worker.asked: number for number, worker in workers.items()}
        ready, _ = self._ray.wait([*by_asked], num_returns=1, timeout=_LOOK_S)
        for asked in ready:
            yield by_asked[asked], workers[by_asked[asked]].receive()
        if not ready:
            require_room(self._ray, self._cluster)
