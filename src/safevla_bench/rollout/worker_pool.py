"""Several worker processes on this machine, each with its own host, policies and environment.

They are new Python processes, no forks: a simulator's threads and GL contexts survive none. This process gives out
episodes, takes back what they recorded, and is the only one that writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from safevla_bench.rollout import devices
from safevla_bench.rollout.engine import Finished, Observer
from safevla_bench.rollout.plan import Planned
from safevla_bench.rollout.scheduler import RETRIES, run_crew
from safevla_bench.rollout.worker import Cast, Message

__all__ = ["RETRIES", "Cast", "Worker", "death", "run_workers"]

_LOOK_S = 1.0
"""How long to wait for a word before looking whether the workers are alive."""
_START = "import sys; sys.path[:] = {}; from safevla_bench.rollout.worker import main; main()"


class Worker:
    """One process and this side of the socket to it."""

    spent = False

    def __init__(self, cast: Cast, environment: Mapping[str, str]) -> None:
        self.connection, theirs = Pipe()
        # Ctrl-C reaches the whole process group; the workers inherit that they do not hear it.
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START.format(sys.path), str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a simulator prints is no result of the command
                pass_fds=[theirs.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
            theirs.close()
        self._send(cast)

    def begin(self, planned: Planned) -> None:
        self._send(planned)

    def dismiss(self) -> None:
        self._send(None)

    def died(self) -> bool:
        """Whether it is gone with nothing left to be heard."""
        return self.process.poll() is not None and not self.connection.poll()

    def end(self, timeout_s: float) -> str:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            self.connection.close()
        return death(self.process.returncode)

    def _send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except OSError:
            return  # it has died; that is seen where its words are waited for


def run_workers(
    cast: Cast, episodes: Sequence[Planned], count: int, observer: Observer | None = None
) -> Generator[Finished]:
    """Run the episodes in `count` processes and yield each as it ends; raises what `run_crew` raises."""
    return run_crew(_Machine(cast), episodes, count, observer)


class _Machine:
    """The worker processes of this machine."""

    starts = 1
    remedy = "Its messages are above. Fewer --workers need less memory; one worker runs in this process."

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self._gpus = devices.gpus(os.environ) if cast.renders else ()

    def start(self, number: int) -> Worker:
        return Worker(self._cast, devices.environment(number, os.environ, self._gpus, cameras=self._cast.renders))

    def heard(self, workers: Mapping[int, Worker]) -> Iterator[tuple[int, Message | None]]:
        by_connection = {worker.connection: number for number, worker in workers.items()}
        ready = wait(list(by_connection), timeout=_LOOK_S)
        for connection in ready:
            assert isinstance(connection, Connection)
            yield by_connection[connection], _received(connection)
        if not ready:
            yield from [(number, None) for number, worker in workers.items() if worker.died()]


def _received(connection: Connection) -> Message | None:
    try:
        message: Message = connection.recv()
    except (EOFError, OSError):
        return None
    return message


def death(returncode: int) -> str:
    """How a process ended, in words, from its return code."""
    if returncode >= 0:
        return f"it exited with status {returncode}"
    number = -returncode
    if number not in set(signal.Signals):
        return f"signal {number}"
    hint = ", often because memory ran out" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name} ({(signal.strsignal(number) or 'unknown').lower()}){hint}"
