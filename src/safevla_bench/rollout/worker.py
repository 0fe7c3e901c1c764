"""A worker process: its own host, policies and environment, fed one episode at a time.

Started by `workers`, which passes the number of its end of a socket. It touches no file of
the run: an episode goes back as its compressed frame, and whatever kills this process costs the episode in flight.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Protocol

from safevla_bench import hosts, policies
from safevla_bench.errors import SafevlaError
from safevla_bench.interface import Host, Policy
from safevla_bench.monitor import Monitor
from safevla_bench.rollout.engine import Finished, Stage
from safevla_bench.rollout.plan import Planned

STEPS_BETWEEN = 20
"""Steps between two words about an episode that is running."""


class Stopping(Protocol):
    """What a monitor is made from, in any process."""

    def monitor(self) -> Monitor: ...


@dataclass(frozen=True, slots=True)
class Cast:
    """What takes part in a run, by name, so that any process can make its own: host and policies, with arguments."""

    host: str
    policies: Mapping[str, Mapping[str, str]]
    renders: bool = False
    """Whether a policy wants a camera."""
    stopping: Stopping | None = None
    """By what an episode ends at its first violation; None = none does."""
    host_arguments: Mapping[str, str] = field(default_factory=dict)

    def make(self) -> tuple[Host, dict[str, Policy]]:
        """Raises what `hosts.host` and `policies.policy` raise."""
        made = {name: policies.policy(name, arguments) for name, arguments in self.policies.items()}
        return hosts.host(self.host, self.host_arguments), made


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything is made, and an episode can come."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The episode in flight has come this far."""

    steps: int


@dataclass(frozen=True, slots=True)
class Failed:
    """This worker cannot go on, for a reason that the user must mend."""

    error: SafevlaError


Message = Ready | Stepped | Finished | Failed


def main() -> None:
    """Serve until None comes. The death of the other end ends this process at once, in whatever it is doing."""
    faulthandler.enable()
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    orders: SimpleQueue[Planned | None] = SimpleQueue()
    cast: Cast = connection.recv()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    try:
        _serve(connection, cast, orders)
    except SafevlaError as error:
        connection.send(Failed(error))


def _listen(connection: Connection, orders: SimpleQueue[Planned | None]) -> None:
    try:
        while True:
            orders.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def _serve(connection: Connection, cast: Cast, orders: SimpleQueue[Planned | None]) -> None:
    host, made = cast.make()
    stage = Stage(host, made, cast.stopping.monitor() if cast.stopping else None)
    connection.send(Ready())
    while (planned := orders.get()) is not None:
        connection.send(Finished.of(stage.play(planned, on_step=lambda steps: _tell(connection, steps))))
    stage.close()
    for policy in made.values():
        policy.close()


def _tell(connection: Connection, steps: int) -> None:
    if steps % STEPS_BETWEEN == 0:
        connection.send(Stepped(steps))
