"""The scheduler of several workers, wherever they are, and the worker processes of this machine.

An episode whose worker died is run again in another one, `RETRIES` times. Workers of this machine are new Python
processes, no forks: a simulator's threads and GL contexts survive none. This process alone gives out episodes and
writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.rollout.episode import EpisodeOutcome, StepCallback
from safevla_bench.rollout.plan import PlannedEpisode, Scene, scene_of
from safevla_bench.rollout.worker import Message, WorkerSpec, worker_environment

RETRIES = 1
"""How often an episode is begun again, each time in a fresh worker, after its worker died."""
STARTS = 3
"""How many workers in a row may die before they can begin."""
LOOK_S = 1.0
"""Time to wait for a message before checking that the workers are alive."""
_CLOSE_S = 30.0


class RemoteWorker(Protocol):
    """One process somewhere, with its own host, policies and environment."""

    def begin(self, planned: PlannedEpisode) -> None:
        """Give the worker an episode. Its messages arrive later through the pool, as does the notice of its death."""

    def dismiss(self) -> None:
        """Tell the worker that nothing is left to do: it closes what it made, and ends. Does not wait for that."""

    def end(self, timeout_s: float) -> str:
        """Wait for its end, kill it after the timeout, and return in words how it ended."""


class WorkerPool(Protocol):
    """A source of workers, which are all of one kind."""

    remedy: str
    """The advice for the user if workers die before they can begin."""

    def start(self, number: int) -> RemoteWorker:
        """Start a worker; it sends `READY` when it can take an episode."""

    def receive_messages(self, workers: Mapping[int, Any]) -> Iterator[tuple[int, Message | None]]:
        """Wait about a second at most and yield (worker number, message).

        The message is None from a worker that has died.
        """


class EpisodeQueue:
    """The episodes that nobody has begun, by scene, both in the order of the plan; the earliest round goes first."""

    def __init__(self, episodes: Sequence[PlannedEpisode] = ()) -> None:
        self._left: dict[Scene, deque[PlannedEpisode]] = {}
        self.add(episodes)

    def add(self, episodes: Sequence[PlannedEpisode]) -> None:
        """Put episodes last, in their order."""
        for planned in episodes:
            self._left.setdefault(scene_of(planned), deque()).append(planned)

    def __bool__(self) -> bool:
        return any(self._left.values())

    def take_next(self, own: Scene | None, others: Collection[Scene]) -> PlannedEpisode | None:
        """Remove and return the next episode for a worker whose environment is made for `own`; None if none is left.

        Only the earliest round counts. The episode is of `own`; else of the first scene that no other worker (`others`)
        is at; else of the scene with most episodes left, to help. `own` is None for a worker without an environment.
        """
        rounds = {scene: episodes[0].round for scene, episodes in self._left.items() if episodes}
        if not rounds:
            return None
        open_scenes = [scene for scene, number in rounds.items() if number == min(rounds.values())]
        if own not in open_scenes:
            free = [scene for scene in open_scenes if scene not in others]
            own = free[0] if free else max(open_scenes, key=lambda scene: len(self._left[scene]))
        return self._left[own].popleft()

    def put_back(self, planned: PlannedEpisode) -> None:
        """Put an episode that must be run again first in its scene."""
        self._left.setdefault(scene_of(planned), deque()).appendleft(planned)


@dataclass
class _BusyWorker:
    worker: RemoteWorker
    current: PlannedEpisode | None = None
    steps: int = 0
    """Of the episode in flight, as far as is known."""
    scene: Scene | None = None
    waits: bool = False
    """True if it is ready and has been given nothing."""


def run_pool(
    pool: WorkerPool,
    episodes: Sequence[PlannedEpisode],
    count: int,
    on_step: StepCallback | None = None,
    later: Iterable[Sequence[PlannedEpisode]] = (),
) -> Generator[EpisodeOutcome]:
    """Run the episodes with at most `count` workers of a pool and yield each as it ends, in no order.

    The same workers run each further batch of `later`, which is asked for when all before it have ended. Raises
    `RunError` if workers die before they can begin, and any `SafevlaError` that a worker cannot go on after.
    """
    crew = _Crew(pool, keeps=later != ())
    try:
        for batch in chain([episodes], later):
            crew.add_batch(batch, count)
            while crew.is_working:
                for number, message in pool.receive_messages({k: busy.worker for k, busy in crew.workers.items()}):
                    busy = crew.workers[number]
                    if isinstance(message, int):
                        busy.steps = message
                        if on_step and busy.current:
                            on_step(busy.current, message)
                    elif (finished := crew.handle_message(number, message)) is not None:
                        yield finished
        for number in list(crew.workers):
            crew.dismiss(number)
        crew.close(_CLOSE_S)
    finally:
        crew.close(0.0)


class _Crew:
    """The workers, the episodes that are left, and how often each episode has cost a worker."""

    def __init__(self, pool: WorkerPool, *, keeps: bool) -> None:
        self._pool, self._keeps = pool, keeps
        self._left = EpisodeQueue()
        self._deaths: Counter[str] = Counter()
        self._startup_deaths = 0
        self.workers: dict[int, _BusyWorker] = {}
        self._dismissed: list[RemoteWorker] = []

    @property
    def is_working(self) -> bool:
        return bool(self._left) or any(busy.current for busy in self.workers.values())

    def handle_message(self, number: int, message: Message | None) -> EpisodeOutcome | None:
        """Act on a worker's message, None for its death, and return the episode that has ended; None if none has."""
        if message is None:
            return self._handle_death(number)
        if isinstance(message, SafevlaError):
            raise message
        self.workers[number].current, self._startup_deaths = None, 0
        self._assign_next(number)
        return message if isinstance(message, EpisodeOutcome) else None

    def dismiss(self, number: int) -> None:
        worker = self.workers.pop(number).worker
        worker.dismiss()
        self._dismissed.append(worker)

    def close(self, timeout_s: float) -> None:
        for worker in [*(busy.worker for busy in self.workers.values()), *self._dismissed]:
            worker.end(timeout_s)
        self.workers.clear()
        self._dismissed.clear()

    def add_batch(self, episodes: Sequence[PlannedEpisode], count: int) -> None:
        """Give further episodes to the workers that wait, and to new ones up to `count` workers in all."""
        self._left.add(episodes)
        for number in [number for number, busy in self.workers.items() if busy.waits]:
            self._assign_next(number)
        for number in range(min(count, len(episodes))):
            if number not in self.workers:
                self.workers[number] = _BusyWorker(self._pool.start(number))

    def _assign_next(self, number: int) -> None:
        busy = self.workers[number]
        others = [other.scene for other in self.workers.values() if other is not busy and other.scene]
        planned = self._left.take_next(busy.scene, others)
        busy.waits = planned is None
        if planned is not None:
            busy.current, busy.scene, busy.steps = planned, scene_of(planned), 0
            busy.worker.begin(planned)
        elif not self._keeps:
            self.dismiss(number)

    def _handle_death(self, number: int) -> EpisodeOutcome | None:
        """Requeue a dead worker's episode or return it as crashed, and start a fresh worker if episodes are left."""
        busy, finished = self.workers.pop(number), None
        cause = busy.worker.end(_CLOSE_S)
        if busy.current is None:
            self._startup_deaths += 1
            if self._startup_deaths >= STARTS:
                raise RunError(f"workers die while they start: {cause}", remedy=self._pool.remedy)
        elif self._deaths[busy.current.episode_id] < RETRIES:
            self._deaths[busy.current.episode_id] += 1
            self._left.put_back(busy.current)
        else:
            reason = (
                f"its worker died in each of {RETRIES + 1} attempts, at last after {busy.steps} steps or more: {cause}"
            )
            finished = EpisodeOutcome(busy.current, "crashed", busy.steps, None, reason)
        if self._left:
            self.workers[number] = _BusyWorker(self._pool.start(number))
        return finished


# Worker processes on this machine


_START = "import sys; sys.path[:] = {}; from safevla_bench.rollout.worker import main; main()"


class WorkerProcess:
    """One process and this side of the socket to it."""

    def __init__(self, cast: WorkerSpec, environment: Mapping[str, str]) -> None:
        self.connection, theirs = Pipe()
        # Ctrl-C reaches the whole process group; the workers inherit that they do not hear it.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START.format(sys.path), str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a simulator prints is not a result of the command
                pass_fds=[theirs.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
            theirs.close()
        self._send(cast)

    def begin(self, planned: PlannedEpisode) -> None:
        self._send(planned)

    def dismiss(self) -> None:
        """Ask the worker to close and end."""
        self._send(None)

    def has_died(self) -> bool:
        """Return whether the process has ended, and nothing is left to read; False if its socket is closed too.

        `receive_messages` reads the closing.
        """
        return self.process.poll() is not None and not self.connection.poll()

    def end(self, timeout_s: float) -> str:
        """Wait `timeout_s` for the process, kill it if it still runs, close the socket, and return how it ended."""
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


class ProcessPool:
    """The worker processes of this machine."""

    remedy = "Its messages are above. Fewer --workers need less memory; one worker runs in this process."

    def __init__(self, cast: WorkerSpec) -> None:
        self._cast = cast

    def start(self, number: int) -> WorkerProcess:
        return WorkerProcess(self._cast, worker_environment(number, os.environ, renders=self._cast.renders))

    def receive_messages(self, workers: Mapping[int, WorkerProcess]) -> Iterator[tuple[int, Message | None]]:
        by_connection = {worker.connection: number for number, worker in workers.items()}
        ready = wait(list(by_connection), timeout=LOOK_S)
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                message: Message | None = connection.recv()
            except (EOFError, OSError):
                message = None
            yield by_connection[connection], message
        if not ready:
            yield from [(number, None) for number, worker in workers.items() if worker.has_died()]


def describe_exit(returncode: int) -> str:
    """Return in words how a process ended; a negative return code is the number of the signal that killed it."""
    if returncode >= 0:
        return f"it exited with status {returncode}"
    hint = ", often because memory ran out" if returncode == -signal.SIGKILL else ""
    names = {known.value: known.name for known in signal.Signals}
    return names.get(-returncode, f"signal {-returncode}") + hint
