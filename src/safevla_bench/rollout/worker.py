"""A worker process: its own host, policies and environment, fed one episode at a time; and its share of the machine.

It touches no file of the run: an episode goes back as the bytes of its record.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

from safevla_bench import hosts, policies
from safevla_bench.errors import SafevlaError
from safevla_bench.interface.environment import Host
from safevla_bench.interface.policy import Policy
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.policies.coupling import Coupler, Coupling
from safevla_bench.policies.servers.endpoint import WORKER
from safevla_bench.rollout.episode import EnvRunner, EpisodeOutcome, OnStep
from safevla_bench.rollout.plan import PlannedEpisode

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
RENDERER, VISIBLE = "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES"


def worker_environment(
    worker: int, inherited: Mapping[str, str], *, renders: bool, devices: Path = Path("/dev")
) -> dict[str, str]:
    """Return the environment variables of a worker: those inherited, its number, and what the user has not set.

    Linear algebra gets one thread; workers that render do so on the usable GPUs in turn.
    """
    own = {**inherited, WORKER: str(worker)}
    for name in ONE_THREAD:
        own.setdefault(name, "1")
    if renders and (gpus := _usable_gpus(inherited, devices)):
        own.setdefault(RENDERER, gpus[worker % len(gpus)])
    return own


def _usable_gpus(variables: Mapping[str, str], devices: Path) -> list[str]:
    """Return the numbers of the visible GPUs, [] if one is no number, else of the files nvidia0, nvidia1, ..."""
    if VISIBLE in variables:  # robosuite refuses a renderer outside of it
        visible = [number.strip() for number in variables[VISIBLE].split(",")]
        return visible if all(number.isdecimal() for number in visible) else []
    numbers = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia*"))
    return sorted(filter(str.isdecimal, numbers), key=int)


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """What makes a policy of a run."""

    spec: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    coupling: Coupling | None = None
    """Its filter and delay, if it has any."""
    made: Policy | None = None
    """A policy that need not be made: it travels as it is."""

    def make(self) -> Policy:
        """Make the policy; raises what `make_policy` raises."""
        return self.made or policies.make_policy(self.spec, self.arguments)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The host of a run and its policies by name, so that any process can make its own."""

    host: str
    policies: Mapping[str, WorkerPolicy]
    renders: bool = False
    """True if a policy wants a camera."""
    stopping: Ruleset | None = None
    """The rules by which an episode ends at its first violation; None = none does."""
    host_arguments: Mapping[str, str] = field(default_factory=dict)
    filtering: Ruleset | None = None
    """The rules of the monitor that filters read; None = none reads it."""

    def make_runner(self, host: Host, policies: Mapping[str, Policy]) -> EnvRunner:
        """Make the monitor, the filters and the delays, and return what runs episodes; raises what `Coupler` raises."""
        watch = Monitor(self.stopping) if self.stopping else None
        coupled = {name: policy.coupling for name, policy in self.policies.items() if policy.coupling}
        couplers = {name: Coupler(coupling, self.filtering) for name, coupling in coupled.items()}
        return EnvRunner(host, policies, watch, couplers)


class WorkerParts:
    """The host, the policies and the one environment of a worker."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Make host and policies; raises what `hosts.make_host` and `policies.make_policy` raise."""
        self.policies = {name: policy.make() for name, policy in spec.policies.items()}
        self.host = hosts.make_host(spec.host, spec.host_arguments)
        self._runner = spec.make_runner(self.host, self.policies)

    def run_planned(self, planned: PlannedEpisode, on_step: OnStep | None = None) -> EpisodeOutcome:
        """Run an episode and return its end. Raises as `EnvRunner`."""
        return self._runner.run_planned(planned, on_step)

    def close(self) -> None:
        """Close the environment and the policies."""
        self._runner.close()
        for policy in self.policies.values():
            policy.close()


READY: Final = "ready"
"""Host and policies are made; the worker can take an episode."""
Message = Literal["ready"] | int | EpisodeOutcome | SafevlaError
"""A number is the steps of the episode in flight; an error is one that the user must mend: the worker cannot go on."""
STEPS_BETWEEN = 20
"""Steps between two reports about an episode that is running."""


def main() -> None:
    """Run this process as a worker until None comes; `sys.argv[1]` is the descriptor of its socket.

    An error that the user must mend is sent back. Where the other end of the socket closes, the process ends at once.
    """
    faulthandler.enable()
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    orders: SimpleQueue[PlannedEpisode | None] = SimpleQueue()
    spec: WorkerSpec = connection.recv()
    threading.Thread(target=_receive_orders, args=(connection, orders), daemon=True).start()

    def report(steps: int) -> None:
        if steps % STEPS_BETWEEN == 0:
            connection.send(steps)

    try:
        parts = WorkerParts(spec)
        connection.send(READY)
        while (planned := orders.get()) is not None:
            connection.send(parts.run_planned(planned, report))
        parts.close()
    except SafevlaError as error:
        connection.send(error)


def _receive_orders(connection: Connection, orders: SimpleQueue[PlannedEpisode | None]) -> None:
    try:
        while True:
            orders.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)
