"""Several worker processes on this machine, each with its own host, policies and environment.

They are new Python processes, no forks: a simulator's threads and GL contexts survive none. This process gives out
episodes, takes back what they recorded, and is the only one that writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from safevla_bench.errors import RunError
from safevla_bench.rollout import devices
from safevla_bench.rollout.dispatch import Finished, Observer
from safevla_bench.rollout.plan import Planned
from safevla_bench.rollout.sharing import Scene, Shares, scene
from safevla_bench.rollout.worker import Cast, Failed, Message, Stepped

RETRIES = 1
"""How often an episode is begun again, each time in a fresh worker, after its worker died."""
_LOOK_S = 1.0
"""How long to wait for a word before looking whether the workers are alive."""
_CLOSE_S = 30.0
_START = "import sys; sys.path[:] = {}; from safevla_bench.rollout.worker import main; main()"


class Worker:
    """One process and this side of the socket to it."""

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
        self.ready = False
        self.current: Planned | None = None
        self.steps = 0
        """Of the episode in flight, as far as is known."""
        self.scene: Scene | None = None
        self._send(cast)

    def begin(self, planned: Planned) -> None:
        self.current, self.scene, self.steps = planned, scene(planned), 0
        self._send(planned)

    def dismiss(self) -> None:
        """There is nothing left to do for it: it closes what it made, and ends."""
        self.scene = None
        self._send(None)

    def died(self) -> bool:
        """Whether it is gone with nothing left to be heard."""
        return self.process.poll() is not None and not self.connection.poll()

    def end(self, timeout_s: float) -> None:
        """Wait for its end; after the timeout end it."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            self.connection.close()

    def _send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except OSError:
            return  # it has died; that is seen where its words are waited for


def run_workers(
    cast: Cast, episodes: Sequence[Planned], count: int, observer: Observer | None = None
) -> Generator[Finished]:
    """Run the episodes in `count` processes and yield each as it ends, in no order.

    Raises `RunError` where a worker dies before it can begin, and what a worker itself cannot mend: `HostError`,
    `PolicyError`, `PluginError`. Whatever ends this generator ends the workers.
    """
    if observer:
        observer.started(episodes)
    crew = _Crew(cast, episodes, observer)
    try:
        crew.hire(min(count, len(episodes)))
        while crew.at_work:
            for worker, message in crew.heard():
                if (finished := crew.take(worker, message)) is not None:
                    yield finished
        crew.close(_CLOSE_S)
    finally:
        crew.close(0.0)


class _Crew:
    """The workers, what is left to be done, and how often an episode has cost a worker."""

    def __init__(self, cast: Cast, episodes: Sequence[Planned], observer: Observer | None) -> None:
        self._cast, self._observer = cast, observer
        self._left = Shares(episodes)
        self._deaths: Counter[str] = Counter()
        self._workers: dict[int, Worker] = {}
        self._dismissed: list[Worker] = []
        self._gpus = devices.gpus(os.environ) if cast.renders else ()

    @property
    def at_work(self) -> bool:
        return bool(self._workers)

    def hire(self, count: int) -> None:
        for number in range(count):
            self._start(number)

    def heard(self) -> Iterator[tuple[int, Message | None]]:
        """What the workers say, by number; None from one that has died."""
        by_connection = {worker.connection: number for number, worker in self._workers.items()}
        ready = wait(list(by_connection), timeout=_LOOK_S)
        for connection in ready:
            assert isinstance(connection, Connection)
            yield by_connection[connection], _received(connection)
        if not ready:
            yield from [(number, None) for number, worker in self._workers.items() if worker.died()]

    def take(self, number: int, message: Message | None) -> Finished | None:
        """Act on a message; returns the episode that it ends, if it does."""
        worker = self._workers[number]
        if message is None:
            return self._bury(number)
        if isinstance(message, Failed):
            raise message.error
        if isinstance(message, Stepped):
            worker.steps = message.steps
            if self._observer and worker.current:
                self._observer.stepped(worker.current, message.steps)
            return None
        worker.ready, worker.current = True, None
        self._occupy(number)
        return self._told(message) if isinstance(message, Finished) else None

    def close(self, timeout_s: float) -> None:
        """End every worker, each within the time."""
        for worker in [*self._workers.values(), *self._dismissed]:
            worker.end(timeout_s)
        self._workers.clear()
        self._dismissed.clear()

    def _start(self, number: int) -> None:
        environment = devices.environment(number, os.environ, self._gpus, cameras=self._cast.renders)
        self._workers[number] = Worker(self._cast, environment)

    def _occupy(self, number: int) -> None:
        """Give a worker its next episode, or let it go."""
        worker = self._workers[number]
        others = [one.scene for one in self._workers.values() if one is not worker and one.scene]
        planned = self._left.take(worker.scene, others)
        if planned:
            worker.begin(planned)
            return
        worker.dismiss()
        self._dismissed.append(self._workers.pop(number))

    def _bury(self, number: int) -> Finished | None:
        """A worker has died: begin its episode again in a fresh one, or give it up as crashed."""
        worker = self._workers.pop(number)
        worker.end(_CLOSE_S)
        cause = death(worker.process.returncode)
        planned = worker.current
        if not worker.ready or planned is None:
            remedy = "Its messages are above. Fewer --workers need less memory; one worker runs in this process."
            raise RunError(f"a worker died while it started: {cause}", remedy=remedy)
        self._deaths[planned.episode_id] += 1
        finished = None
        if self._deaths[planned.episode_id] > RETRIES:
            known = f"at last after {worker.steps} steps or more: {cause}"
            reason = f"its worker died in each of {RETRIES + 1} attempts, {known}"
            finished = self._told(Finished(planned, "crashed", worker.steps, None, reason))
        else:
            self._left.give_back(planned)
        if self._left:
            self._start(number)
        return finished

    def _told(self, finished: Finished) -> Finished:
        if self._observer:
            self._observer.finished(finished.opened())
        return finished


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
