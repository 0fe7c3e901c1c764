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

from safevla_bench.rollout.engine import FinishedEpisode, Observer
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.rollout.scheduler import RETRIES, run_pool
from safevla_bench.rollout.worker import Message, WorkerSpec, usable_gpus, worker_environment

__all__ = ["RETRIES", "WorkerProcess", "WorkerSpec", "describe_exit", "run_workers"]

_LOOK_S = 1.0
"""Time to wait for a message before checking that the workers are alive."""
_START = "import sys; sys.path[:] = {}; from safevla_bench.rollout.worker import main; main()"


class WorkerProcess:
    """One process and this side of the socket to it."""

    spent = False

    def __init__(self, cast: WorkerSpec, environment: Mapping[str, str]) -> None:
        self.connection, theirs = Pipe()
        # Ctrl-C reaches the whole process group; the workers inherit that they do not hear it.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START.format(sys.path), str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a simulator prints is no result of the command
                pass_fds=[theirs.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
            theirs.close()
        self._send(cast)

    def begin(self, planned: PlannedEpisode) -> None:
        self._send(planned)

    def dismiss(self) -> None:
        self._send(None)

    def has_died(self) -> bool:
        """Return whether it is gone and no message of it is left."""
        return self.process.poll() is not None and not self.connection.poll()

    def end(self, timeout_s: float) -> str:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            self.connection.close()
        return describe_exit(self.process.returncode)

    def _send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except OSError:
            return  # it has died; `receive_messages` notices


def run_workers(
    cast: WorkerSpec, episodes: Sequence[PlannedEpisode], count: int, observer: Observer | None = None
) -> Generator[FinishedEpisode]:
    """Run the episodes in `count` processes and yield each as it ends; raises what `run_pool` raises."""
    return run_pool(_ProcessPool(cast), episodes, count, observer)


class _ProcessPool:
    """The worker processes of this machine."""

    starts = 1
    remedy = "Its messages are above. Fewer --workers need less memory; one worker runs in this process."

    def __init__(self, cast: WorkerSpec) -> None:
        self._cast = cast
        self._gpus = usable_gpus(os.environ) if cast.renders else ()

    def start(self, number: int) -> WorkerProcess:
        return WorkerProcess(self._cast, worker_environment(number, os.environ, self._gpus, cameras=self._cast.renders))

    def receive_messages(self, workers: Mapping[int, WorkerProcess]) -> Iterator[tuple[int, Message | None]]:
        by_connection = {worker.connection: number for number, worker in workers.items()}
        ready = wait(list(by_connection), timeout=_LOOK_S)
        for connection in ready:
            assert isinstance(connection, Connection)
            yield by_connection[connection], _receive_message(connection)
        if not ready:
            yield from [(number, None) for number, worker in workers.items() if worker.has_died()]


def _receive_message(connection: Connection) -> Message | None:
    try:
        message: Message = connection.recv()
    except (EOFError, OSError):
        return None
    return message


def describe_exit(returncode: int) -> str:
    """Return in words how a process ended, given its return code."""
    if returncode >= 0:
        return f"it exited with status {returncode}"
    number = -returncode
    if number not in set(signal.Signals):
        return f"signal {number}"
    hint = ", often because memory ran out" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name} ({(signal.strsignal(number) or 'unknown').lower()}){hint}"
