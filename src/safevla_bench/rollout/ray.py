"""The engine `ray`: workers are actors of a Ray cluster, which exists already or is started on this machine.

Each actor has one environment. Only this process writes files, so actors need no shared file system. Ray is an optional
package, which is imported only if this engine is used.
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
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from safevla_bench import hosts, plugins
from safevla_bench.errors import HostError, RunError, SafevlaError
from safevla_bench.interface.environment import Host
from safevla_bench.rollout import episode, plan, scheduler
from safevla_bench.rollout.scheduler import Message, WorkerParts, WorkerSpec
from safevla_bench.text import get_logger

_log = get_logger(__name__)
ADDRESS: Final = "RAY_ADDRESS"  # environment variable with the cluster's address, used if no address is given
HERE: Final = "local"
_CONNECT_S = 5.0  # time limit for a connection to the cluster's address
_ANSWER_S = 20.0  # time limit of the probe, which includes importing Ray
# First bytes of an HTTP/2 connection. Ray, as a gRPC server, replies to them with a settings frame (type 4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_STORE_BYTES = 200 * 2**20  # size of a new cluster's object store; an actor sends one record (megabytes) at a time


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster, and the share of a node that each actor reserves. Raises `RunError` for an invalid share."""

    address: str | None = None
    """`HOST:PORT` of the head node; `auto` = the cluster that runs on this machine; None = the address in RAY_ADDRESS.
    Without RAY_ADDRESS, None starts a cluster on this machine, which ends with the run.
    """
    cpus: float = 1.0
    gpus: float = 0.0
    exclude: tuple[str, ...] = ()  # nodes to leave out: host names, Ray's node names, addresses or ids
    env: Mapping[str, str] = field(default_factory=dict)  # environment variables of the actors
    modules: tuple[str, ...] = ()  # local folders of Python modules or packages that Ray copies to the actors

    def __post_init__(self) -> None:
        # Ray accepts fractions of one CPU or GPU, but only whole numbers above 1.
        if not all(share >= 0 and (share <= 1 or share % 1 == 0) for share in (self.cpus, self.gpus)):
            problem = f"--actor cpus={self.cpus:g}, gpus={self.gpus:g} is not a share of a node"
            raise RunError(problem, remedy="Give whole numbers, or shares such as 0.25.")

    @property
    def place(self) -> str:
        """`address` or, if it is not set, RAY_ADDRESS; without both, `local`, which starts Ray on this machine."""
        return self.address or os.environ.get(ADDRESS) or HERE


@contextmanager
def connect_ray(cluster: RayCluster, slots: int) -> Iterator[Any]:
    """Connect to the cluster, or start a cluster for `slots` actors. Yield the module `ray`. Raises `RunError`."""
    # If the calling program has connected Ray already, its connection is used and stays open.
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        if cluster.modules:
            raise RunError("Ray is already connected, so drop --actor module=", remedy="Pass py_modules to ray.init.")
        yield ray
        return
    # Ray replaces the handler of SIGTERM. Only the main thread may set handlers.
    is_main, former_handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    # `getsignal` returns a function or a constant such as SIG_DFL. For a constant, SIGTERM acts as Ctrl-C.
    call_former = former_handler if callable(former_handler) else signal.default_int_handler
    try:
        ray = _start_ray(cluster, slots)
    except SystemExit:  # raised by Ray's SIGTERM handler, which is active while Ray starts
        call_former(signal.SIGTERM, None)
        raise
    if is_main:
        signal.signal(signal.SIGTERM, call_former)  # replaces Ray's handler
    try:
        yield ray
    finally:
        ray.shutdown()
        if is_main:
            signal.signal(signal.SIGTERM, former_handler or signal.SIG_DFL)


def require_room(ray: Any, cluster: RayCluster, left_out: Mapping[str, str]) -> None:
    """Raise `RunError` if no living node, except those in `left_out` (id -> reason), has enough CPUs and GPUs."""
    # Only a node's total resources count, not what is free now, because an actor can wait.
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in left_out]
    if any(node.get("CPU", 0) >= cluster.cpus and node.get("GPU", 0) >= cluster.gpus for node in nodes):
        return
    problem = f"no node of the Ray cluster has {cluster.cpus:g} CPUs and {cluster.gpus:g} GPUs for an actor"
    problem += "".join(f"\n  left out: {reason}" for reason in left_out.values())
    raise RunError(problem, remedy="Lower --actor cpus= or gpus=, or add a node: ray start --address ...")


def name_node(node: Mapping[str, Any]) -> str:
    """Return the host name of a node from `ray.nodes()`. Append the node's name in Ray if the names differ."""
    return " ".join(dict.fromkeys((node["NodeManagerHostname"], node["NodeName"])))


def find_excluded(ray: Any, names: Sequence[str]) -> dict[str, str]:
    """Return id -> reason for the nodes that the user excludes by `names`. Logs a warning for an unknown name."""
    name_keys = ("NodeManagerHostname", "NodeName", "NodeManagerAddress", "NodeID")
    nodes = [(node, {node[key] for key in name_keys}) for node in ray.nodes()]
    for name in names:
        if not any(name in node_names for _, node_names in nodes):
            _log.warning("--actor exclude=%s: the Ray cluster has no such node", name)
    return {
        node["NodeID"]: f"{name_node(node)}: excluded by --actor exclude="
        for node, node_names in nodes
        if node_names & {*names}
    }


def _start_ray(cluster: RayCluster, slots: int) -> Any:
    # Return the module `ray`, connected to the cluster or to a new cluster with room for `slots` actors.
    if importlib.util.find_spec("ray") is None:
        remedy = f"Install Ray on every node: {plugins.install_command('ray')}"
        raise RunError("the engine ray needs Ray, which is not installed", remedy=remedy)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # 0 is the default of Ray 2.60
    address = cluster.place
    options = _local_options(math.ceil(slots * cluster.cpus)) if address == HERE else {}
    ray: Any = importlib.import_module("ray")  # Ray reads the variables above at import
    try:
        if ":" in address:  # check the address first, because Ray would retry for minutes
            host, _, port = address.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as connection:
                if os.environ.get("RAY_USE_TLS", "0") == "0":  # with TLS, plain bytes would not be answered
                    connection.sendall(_HTTP2_PREFACE)
                    if connection.recv(4)[3:] != b"\4":  # a frame's fourth byte is its type
                        raise OSError("the program at this address is not Ray")
            probe_command = [sys.executable, "-c", _PROBE_PROGRAM, address]
            answer = subprocess.run(
                probe_command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=False
            )
            if answer.returncode:
                raise OSError(f"the program at this address is not the head of a Ray cluster: {answer.stdout}")
        environment = {"runtime_env": {"py_modules": list(cluster.modules)}} if cluster.modules else {}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options, **environment)
    except subprocess.TimeoutExpired:
        problem = f"the Ray cluster {address} cannot be used: no answer within {_ANSWER_S:g} s"
        raise RunError(problem, remedy=_REMEDY) from None
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        remedy = _LONG_PATH_REMEDY if "AF_UNIX" in reason else _REMEDY
        raise RunError(f"the Ray cluster {address} cannot be used: {reason}", remedy=remedy) from None
    # Log the messages of Ray's daemons, such as an actor's death, instead of printing them to the output.
    worker = sys.modules["ray._private.worker"]
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, **_: _log.debug("%s", data.get("lines"))  # type: ignore[attr-defined]
    return ray


def _local_options(cpus: int) -> dict[str, Any]:
    """Return the options of a private cluster. Its token is not saved, so that no one else can use the cluster."""
    # Also set environment variables that Ray reads at import: a token, and a switch that disables usage statistics.
    # `cpus` is the number of CPUs that the actors need; Ray gets at least this number, even if the machine has fewer.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())
    return {"num_cpus": max(os.cpu_count() or 1, cpus), "include_dashboard": False, "object_store_memory": _STORE_BYTES}


# A program that checks the address as `ray.init` does, but without retries for minutes.
_PROBE_PROGRAM = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1])
except Exception as error:
    print(f"{type(error).__name__}: {error}", end="")
    sys.exit(1)
"""
_LONG_PATH_REMEDY = (
    "The names of Ray's sockets would be too long: set RAY_TMPDIR to a directory with a short path, such as /tmp."
)
_REMEDY = (
    "Run the command on a node of the cluster, with --engine ray:HOST:PORT as printed by `ray start --head` (usually "
    "port 6379), or ray:auto. If the cluster has an authentication token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
)


# Actors


def run_actors(
    spec: WorkerSpec,
    episodes: Sequence[plan.PlannedEpisode],
    count: int,
    cluster: RayCluster,
    on_step: episode.StepCallback | None = None,
    *,
    ends_s: float = math.inf,
    other_code: bool = False,
) -> Generator[episode.EpisodeOutcome]:
    """Run the episodes with `count` actors and yield each outcome when its episode ends. An actor whose code differs
    from this process's code is refused, unless `other_code` is true. Raises the errors of `connect_ray` and `run_pool`,
    and `RunError` if no node has the CPUs and GPUs that an actor reserves, or if Ray refuses these numbers.
    """
    # From `spec`, each actor makes its host and policies. `on_step` gets an episode and its number of steps done.
    # No episode starts once `time.monotonic()` reaches `ends_s`.
    count = min(count, len(episodes))  # further actors would have nothing to run
    with connect_ray(cluster, count) as ray:
        pool = _ActorPool(ray, spec, cluster, other_code=other_code)
        require_room(ray, cluster, pool.left_out)
        yield from scheduler.run_pool(pool, episodes, count, on_step, ends_s=ends_s)


class RayWorker:
    """The actor that runs episodes. It neither reads nor writes files of the run."""

    def __init__(self, spec: WorkerSpec, number: int, versions: Mapping[str, str], key: str = "") -> None:
        # From `spec`, the actor with this `number` makes its host and policies.
        # The node must have the packages in `versions`; `key` is the key of the step count in Ray's store.
        self._spec, self._number, self._versions, self._key = spec, number, versions, key
        self._reported_s = 0.0  # time of the last report of the step count
        self._parts: WorkerParts | None = None  # the host, the policies and the environment; None before `prepare`

    def prepare(self) -> tuple[str, str] | SafevlaError:
        """Make the host and the policies. Returns `READY` and the actor's process, or an error that names the node."""
        os.environ.update(scheduler.worker_environment(self._number, os.environ))
        try:
            self._parts = WorkerParts(self._spec)
            installed = name_installed(self._parts.host)
            # The packages whose version differs here, with the expected version.
            expected = {name: version for name, version in self._versions.items() if installed.get(name) != version}
            if expected:
                differences = [f"{name} {installed.get(name)}, not {version}" for name, version in expected.items()]
                problem = f"this node's versions differ from the command's environment: {'; '.join(differences)}"
                remedy = "Install the same versions on every node, or pass --other-code to permit other code."
                raise HostError(problem, remedy=remedy)
        except SafevlaError as error:  # returned, because Ray would wrap a raised error in an error of Ray
            return _name_this_node(error)
        return scheduler.READY, episode.describe_process()

    def run_planned(self, planned: plan.PlannedEpisode) -> Message:
        """Run an episode. Returns its outcome, or an error that ends the run and names this node."""
        assert self._parts is not None
        try:
            return self._parts.runner.run_planned(planned, partial(self._report_steps, planned.episode_id))
        except SafevlaError as error:
            return _name_this_node(error)

    def _report_steps(self, episode_id: str, steps: int) -> None:
        # Stores the step count under this actor's key, at most once per `LOOK_S`, for the command's process to read.
        if time.monotonic() - self._reported_s >= scheduler.LOOK_S:
            self._reported_s = time.monotonic()
            _call_store("put", self._key, f"{steps} {episode_id}".encode(), overwrite=True)

    def close(self) -> None:
        # Close the policies and the environment. `_parts` is None if `prepare` failed.
        if self._parts:
            self._parts.close()


def name_installed(host: Host) -> dict[str, str]:
    """Return package -> version for all packages that records depend on; the entry `code` identifies our code."""
    return {**hosts.record_versions(host), "code": hosts.describe_code(host)}


def _call_store(verb: str, key: str, *values: Any, **options: Any) -> Any:
    """Put, get or delete a value in the store of Ray's head node; None on failure. Used only for progress reports."""
    with suppress(Exception):
        store = importlib.import_module("ray.experimental.internal_kv")
        return getattr(store, f"_internal_kv_{verb}")(key.encode(), *values, namespace=b"safevla", **options)
    return None


def _name_this_node(error: SafevlaError) -> SafevlaError:
    # Add the name of this node to `error.problem`.
    error.problem = f"on the node {platform.node()}: {error.problem}"
    return error


class ActorHandle:
    """The handle of an actor in this process. `pending_reply` is Ray's reference to the reply to the last request."""

    def __init__(self, ray: Any, handle: Any, key: str = "") -> None:
        # `handle` is Ray's own handle of the actor. Its methods end in `.remote()`, and return a reference at once.
        # Under `key`, the actor stores the number of steps done in its episode.
        self._ray, self._actor, self.key = ray, handle, key
        self._is_ready = False  # true once the actor has replied
        self._death_cause = "this command ended the actor"
        self._process, self.episode_id = "", ""  # `_process` names a ready actor's node and process
        self.pending_reply = handle.prepare.remote()  # the first request

    def begin(self, planned: plan.PlannedEpisode) -> None:
        # Request that the actor run an episode. `receive` later returns the reply.
        self.episode_id = planned.episode_id
        self.pending_reply = self._actor.run_planned.remote(planned)

    def dismiss(self) -> None:
        """Make the actor close and end, which frees its share of the node; kill it if it is not ready yet."""
        if not self._is_ready:
            self._ray.kill(self._actor)
            return
        # An actor handles its requests in order, so it ends after `close`.
        self.pending_reply = self._actor.close.remote()
        self._actor.__ray_terminate__.remote()

    def end(self, timeout_s: float) -> str:
        """Kill the actor and return why it ended. A ready actor first gets `timeout_s` for its last reply."""
        if timeout_s and self._is_ready:
            self._ray.wait([self.pending_reply], timeout=timeout_s)
        self._ray.kill(self._actor)
        # `_process` names the actor's node and process; "" = the actor was never ready.
        return f"{self._death_cause} ({self._process})" if self._process else self._death_cause

    def find_node(self) -> str:
        """Return the id of the node that Ray chose for the actor; "" = no node was chosen. The actor may be dead."""
        with suppress(Exception):  # Ray's public functions for an actor's node need Ray's dashboard
            return str(self._ray._private.state.actors(self._actor._actor_id.hex())["Address"]["NodeID"])
        return ""

    def receive(self) -> Message | None:
        """Return the actor's reply; None if the actor died, failed or cannot be reached. `end` returns the cause."""
        try:
            message = self._ray.get(self.pending_reply)
        except self._ray.exceptions.RayError as error:
            self._death_cause = _describe_death(error, self._ray)
            return None
        self._is_ready = True  # any reply shows that the actor lives
        if isinstance(message, tuple):  # the reply of `RayWorker.prepare`
            message, self._process = message
        return cast("Message", message)


def _describe_death(error: Exception, ray: Any) -> str:
    # Return why an actor ended. `error` is the error that Ray raises instead of a reply.
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "the node ran out of memory, so Ray killed the actor; put fewer actors on a node: --actor cpus="
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]  # lines of ids begin with a tab
    # One line with single spaces, at most 500 characters.
    return f"{type(error).__name__}: {' '.join(' '.join(lines).split())[:500]}"


class _ActorPool:
    # The pool of Ray actors, see `scheduler.WorkerPool`.

    remedy = "Install safevla-bench with the same extras on every node. Ray's logs there hold the actors' messages."

    def __init__(self, ray: Any, spec: WorkerSpec, cluster: RayCluster, *, other_code: bool) -> None:
        # `ray` is the module `ray`. `_versions` are the packages and the code that each actor must have.
        self._ray, self._cluster = ray, cluster
        self._versions = name_installed(hosts.make_host(spec.host, spec.host_arguments))
        if other_code:  # actors then compare only the versions of packages
            del self._versions["code"]
        # `left_out` maps ids of nodes that get no actor to the reason.
        self.left_out, self._progress_read_s = find_excluded(ray, cluster.exclude), 0.0
        self._failed_starts: Counter[str] = Counter()  # node id -> failed starts in a row
        self._spec = ray.put(spec)  # the spec may hold large recorded actions; each node fetches the spec only once
        # One thread for linear algebra in each actor, unless the user's environment says otherwise.
        variables = {name: os.environ.get(name, "1") for name in scheduler.ONE_THREAD}
        self._actor_class = ray.remote(RayWorker)
        self._options = {
            "num_cpus": cluster.cpus,
            "num_gpus": cluster.gpus,
            "max_restarts": 0,  # the scheduler starts new actors, so Ray does not
            "scheduling_strategy": "SPREAD",  # Ray spreads the actors over the nodes
            "runtime_env": {"env_vars": {**variables, **cluster.env}},
        }
        try:
            self._actor_class.options(**self._options)  # only to check the options before any actor starts
        except ValueError as error:
            raise RunError(f"--actor: {error}", remedy="Give whole numbers, or shares such as 0.25.") from None

    def start(self, number: int) -> ActorHandle:
        # Create actor `number` on a node that is not left out. The actor then makes its host and policies (`prepare`).
        # In Ray's syntax, `!in(ID,ID)` selects all nodes except the listed ones.
        node_selector = {"ray.io/node-id": f"!in({','.join(self.left_out)})"} if self.left_out else {}
        actor_class = self._actor_class.options(**self._options, label_selector=node_selector)
        key = secrets.token_hex(8)  # key under which the actor stores its step count
        return ActorHandle(self._ray, actor_class.remote(self._spec, number, self._versions, key), key)

    def tolerate_failed_start(self, worker: ActorHandle, cause: str, *, is_final: bool) -> bool:
        """Return whether the actor's node died or any node has room for an actor; false if the actor had no node yet.
        Excludes a living node, with a warning, if its actor refuses or `STARTS` actors in a row die there at the start.
        """
        # `cause` says why the actor ended. `is_final`: the actor refused, because its node cannot run the episodes.
        # `_failed_starts` counts failed starts in a row by node, and `left_out` maps excluded nodes to the reason.
        living = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        node = worker.find_node()
        if node not in living:
            return bool(node)  # `node` is "" if Ray had not chosen a node yet
        self._failed_starts[node] += 1
        if (is_final or self._failed_starts[node] >= scheduler.STARTS) and node not in self.left_out:
            self.left_out[node] = f"{name_node(living[node])}: {cause}"
            _log.warning("the run goes on without the node %s", self.left_out[node])
        with suppress(RunError):
            require_room(self._ray, self._cluster, self.left_out)
            return True
        return False

    def receive_messages(self, workers: Mapping[int, ActorHandle]) -> Iterator[tuple[int, Message | None]]:
        # Yield (worker number, message) as `scheduler.WorkerPool` says; a message of None means that the actor died.
        # Step counts come from the store of Ray's head node. All other messages are replies to requests.
        if time.monotonic() - self._progress_read_s >= scheduler.LOOK_S:
            self._progress_read_s = time.monotonic()
            for number, worker in workers.items():
                steps, _, episode_id = (_call_store("get", worker.key) or b"").decode().partition(" ")
                if episode_id and episode_id == worker.episode_id:  # ignore the step count of an earlier episode
                    yield number, int(steps)
        number_of_reply = {worker.pending_reply: number for number, worker in workers.items()}
        ready, _ = self._ray.wait(list(number_of_reply), num_returns=1, timeout=scheduler.LOOK_S)
        for reply in ready:
            number = number_of_reply[reply]
            message = workers[number].receive()
            if message == scheduler.READY:  # the node works, so its earlier failures no longer count
                self._failed_starts.pop(workers[number].find_node(), None)
            yield number, message
        if not ready:  # nodes may have left the cluster, so check that the run can go on at all
            require_room(self._ray, self._cluster, self.left_out)
