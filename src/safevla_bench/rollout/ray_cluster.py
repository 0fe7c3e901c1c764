"""A Ray cluster to work on: reached, or started on this machine, in bounded time and without Ray's own noise.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from safevla_bench.errors import RunError
from safevla_bench.plugins import install_command

ADDRESS: Final = "RAY_ADDRESS"
"""The environment variable that names a cluster if no address is given."""
NODES: Final = (
    "Every node needs safevla-bench with the same extras as here; the worker's own messages are in Ray's logs on its "
    "node, session_latest/logs in Ray's temporary folder."
)
"""What helps if Ray's workers cannot work."""
_MODE, _TOKEN, _TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_UNKNOWN = "AuthenticationError"
"""What Ray says if a token is asked for."""
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


def node_name() -> str:
    """Return this machine's name, for errors and reasons."""
    return platform.node() or "unknown"


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
    mode = os.environ.get(_MODE)
    complaint = _health_complaint(place, mode)
    if complaint is not None and _UNKNOWN in complaint and mode is None:
        complaint = _health_complaint(place, "token")
        if complaint is None:
            os.environ[_MODE] = "token"
    if complaint is None:
        return
    if _UNKNOWN in complaint:
        remedy = f"Set {_MODE}=token and {_TOKEN} to what `ray get-auth-token` prints on its head."
        raise RunError(f"the Ray cluster {_describe_place(place)} wants another authentication token", remedy=remedy)
    if place == AUTO:
        raise RunError("no Ray cluster runs on this machine", remedy=_REMEDY)
    raise RunError(f"what listens at {place} is not the head of a Ray cluster", remedy=_REMEDY)


def _require_listener(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and host and port.isdecimal()):
        raise RunError(f"{address!r} is no address of a Ray cluster", remedy=_REMEDY)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        problem = f"no Ray cluster can be reached at {address}: {getattr(error, 'strerror', None) or error}"
        raise RunError(problem, remedy=_REMEDY) from None


def _health_complaint(place: str, mode: str | None) -> str | None:
    asking = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    asking += [] if place == AUTO else ["--address", place]
    own = {**os.environ, **({_MODE: mode} if mode else {})}
    try:
        asked = subprocess.run(asking, capture_output=True, text=True, timeout=_ANSWER_S, check=False, env=own)
    except subprocess.TimeoutExpired:
        return "no answer"
    return None if asked.returncode == 0 else asked.stderr


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
