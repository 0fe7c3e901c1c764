"""The scheduler for several workers, local or remote, and the local worker processes.

Each worker has its own host, policies and environment, and receives one episode at a time. Workers write no file of the
run, but return the bytes of the episode's record. If a worker dies, its episode is rerun in another worker, up to
`RETRIES` times. Local workers are new Python processes, because forks break a simulator's threads and GL contexts.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, Final, Literal, Protocol

from safevla_bench import errors, hosts, policies
from safevla_bench.interface.environment import WORKER, WORKERS, Host
from safevla_bench.interface.policy import Policy
from safevla_bench.judging import monitor, ruleset
from safevla_bench.policies.coupling import Coupler, Coupling
from safevla_bench.rollout.episode import EnvRunner, EpisodeOutcome, StepCallback
from safevla_bench.rollout.plan import EpisodeQueue, PlannedEpisode, Scene, scene_of

RETRIES = 1  # number of times that an episode is restarted in a new worker after its worker died
STARTS = 3  # the run fails if this many workers in a row, on one node, die before they are ready
LOOK_S = 1.0  # time to wait for a message before checking that the workers are alive
_CLOSE_S = 30.0  # time for a worker to end by itself before it is killed


# Specifications and messages of workers


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """The data from which a worker creates one policy of a run."""

    spec: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    coupling: Coupling | None = None  # the policy's filter and delay; None = neither
    made: Policy | None = None  # an existing policy to send to the worker; None = make it from `spec` and `arguments`

    def make(self) -> Policy:
        # Return the policy to use in this process: `made`, or a new policy.
        return self.made or policies.make_policy(self.spec, self.arguments)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The host and the policies of a run by name, from which each worker makes its own host and policies."""

    host: str
    policies: Mapping[str, WorkerPolicy]
    stopping: ruleset.Ruleset | None = None  # rules whose first violation ends an episode; None = no early end
    host_arguments: Mapping[str, str] = field(default_factory=dict)
    filtering: ruleset.Ruleset | None = None  # rules of the monitor that filters use; None = no filter uses a monitor
    workers: int = 1  # number of workers in the run, for messages
    skips_crashing: bool = False  # whether to skip the rest of a task after `SAME_CRASHES` equal crashes

    def make_runner(self, host: Host, policies: Mapping[str, Policy]) -> EnvRunner:
        """Return a runner of episodes, with its monitor, filters and delays. Raises the errors of `Coupler`."""
        # `policies` are the policies that were made from the descriptions in `self.policies`.
        # A coupling describes a policy's filter and delay; a coupler applies them to the policy's actions.
        stopping_monitor = monitor.Monitor(self.stopping) if self.stopping else None
        couplings = {name: policy.coupling for name, policy in self.policies.items() if policy.coupling}
        couplers = {name: Coupler(coupling, self.filtering) for name, coupling in couplings.items()}
        return EnvRunner(host, policies, stopping_monitor, couplers, skips_crashing=self.skips_crashing)


class WorkerParts:
    """The host, the policies and the only environment of a worker."""

    def __init__(self, spec: WorkerSpec) -> None:
        os.environ[WORKERS] = str(spec.workers)  # clients of policy servers read this variable
        self.policies = {name: policy.make() for name, policy in spec.policies.items()}
        self.host = hosts.make_host(spec.host, spec.host_arguments)
        self.runner = spec.make_runner(self.host, self.policies)

    def close(self) -> None:
        # Close the environment (by the runner) and the policies.
        self.runner.close()
        for policy in self.policies.values():
            policy.close()


READY: Final = "ready"  # message of a worker that has made its host and policies and can take an episode
Message = Literal["ready"] | int | EpisodeOutcome | errors.SafevlaError
"""A worker sends `READY`, its episode's step count, its episode's outcome, or an error that ends the worker."""
STEPS_BETWEEN = 20  # steps between two progress reports


# The scheduler


class RemoteWorker(Protocol):
    """A process on any machine with its own host, policies and environment."""

    def begin(self, planned: PlannedEpisode) -> None:
        """Give the worker an episode. The pool later yields the worker's messages, or None if the worker has died."""

    def dismiss(self) -> None:
        """Request that the worker close everything and end; do not wait for its end."""

    def end(self, timeout_s: float) -> str:
        """Wait until the worker ends, kill it after the timeout, and return a text with the cause of its end."""


class WorkerPool(Protocol):
    """Starts workers of one kind and receives their messages."""

    remedy: str  # advice for the user if workers die before they are ready

    def start(self, number: int) -> RemoteWorker:
        """Start a worker; it sends `READY` when it can take an episode."""

    def tolerate_failed_start(self, worker: Any, cause: str, *, is_final: bool) -> bool:
        """Return whether the run ignores the end of a worker that was not ready yet. If not, a refusal (`is_final`)
        ends the run, and so do `STARTS` such deaths in a row if no other worker is left.
        """

    def receive_messages(self, workers: Mapping[int, Any]) -> Iterator[tuple[int, Message | None]]:
        """Wait up to about a second and yield (worker number, message). The message is None if the worker has died."""


@dataclass
class _CrewMember:
    # A worker and its current work.

    worker: RemoteWorker
    current: PlannedEpisode | None = None
    steps: int = 0  # steps in the current episode, as last reported
    scene: Scene | None = None
    waits: bool = False  # whether the worker is ready and idle

    @property
    def is_starting(self) -> bool:
        # True until the worker's first message. From then on, the worker has an episode, waits, or is dismissed.
        return self.current is None and not self.waits


def run_pool(
    pool: WorkerPool,
    episodes: Sequence[PlannedEpisode],
    count: int,
    on_step: StepCallback | None = None,
    later: Iterable[Sequence[PlannedEpisode]] = (),
    ends_s: float = math.inf,
) -> Generator[EpisodeOutcome]:
    """Run the episodes with at most `count` workers of a pool and yield the outcomes as the episodes end, in any order.
    The same workers run each further batch from `later`, which is requested when all earlier episodes have ended. No
    episode starts once `time.monotonic()` reaches `ends_s`. Raises `RunError` if workers die before they are ready, and
    any `SafevlaError` that ends a worker.
    """
    # `crew` has the running workers and decides which worker runs which episode.
    # Without `later`, workers end when no episode is left for them.
    crew = _Crew(pool, keeps_idle=later != (), ends_s=ends_s)
    try:
        for batch in chain([episodes], later):
            crew.add_batch(batch, count)
            while crew.is_working:
                workers = {number: member.worker for number, member in crew.workers.items()}
                for number, message in pool.receive_messages(workers):
                    member = crew.workers[number]
                    if isinstance(message, int):  # the number of steps done in the worker's episode
                        member.steps = message
                        if on_step and member.current:
                            on_step(member.current, message)
                    elif (outcome := crew.handle_message(number, message)) is not None:
                        yield outcome
        # Dismiss all workers before waiting for any, so that they close their environments at the same time.
        for number in list(crew.workers):
            crew.dismiss(number)
        crew.close(_CLOSE_S)
    finally:  # after an error, or if the caller stops the iteration: kill the workers that still run
        crew.close(0.0)


class _Crew:
    # The workers of a run by number, and the episodes that no worker has started yet.

    def __init__(self, pool: WorkerPool, *, keeps_idle: bool, ends_s: float) -> None:
        # `pool` starts workers. If `keeps_idle`, workers without an episode wait for a next batch instead of ending.
        # No episode starts once `time.monotonic()` reaches `ends_s`.
        self._pool, self._keeps_idle, self._ends_s = pool, keeps_idle, ends_s
        self._queue = EpisodeQueue()
        self._deaths: Counter[str] = Counter()  # episode id -> workers that died while they ran this episode
        self._startup_deaths = 0  # workers in a row that died before they were ready
        self.workers: dict[int, _CrewMember] = {}
        self._dismissed: list[RemoteWorker] = []  # workers that were asked to end; `close` waits for them

    @property
    def _startable_episodes(self) -> EpisodeQueue:
        # The queue of episodes that may start. After the time limit, each access returns a new empty queue.
        return self._queue if time.monotonic() < self._ends_s else EpisodeQueue()

    @property
    def is_working(self) -> bool:
        # Whether an episode runs or may still start.
        return bool(self._startable_episodes) or any(member.current for member in self.workers.values())

    def handle_message(self, number: int, message: Message | None) -> EpisodeOutcome | None:
        """Handle a worker's message (None = the worker died). If an episode has ended, return the outcome."""
        if message is None:
            return self._handle_death(number)
        if isinstance(message, errors.SafevlaError):
            # The worker has ended with this error. A pool may tolerate the refusal of a worker that is not ready yet.
            member, cause = self.workers[number], str(message)
            if not member.is_starting or not self._pool.tolerate_failed_start(member.worker, cause, is_final=True):
                raise message
            self.dismiss(number)
            self._start(number)
            return None
        # The message is `READY` or an outcome, so the worker is idle. The message also shows that workers can start.
        self.workers[number].current, self._startup_deaths = None, 0
        self._assign_next(number)
        return message if isinstance(message, EpisodeOutcome) else None

    def dismiss(self, number: int) -> None:
        # Requests that the worker end, and keeps it for `close`.
        worker = self.workers.pop(number).worker
        worker.dismiss()
        self._dismissed.append(worker)

    def close(self, timeout_s: float) -> None:
        # Waits at most `timeout_s` for each worker to end, and then kills the worker.
        for worker in [*(member.worker for member in self.workers.values()), *self._dismissed]:
            worker.end(timeout_s)
        self.workers.clear()
        self._dismissed.clear()

    def add_batch(self, episodes: Sequence[PlannedEpisode], count: int) -> None:
        # Queues a batch, gives episodes to idle workers, and starts up to `count` workers, at most one per episode.
        self._startable_episodes.add(episodes)
        for number in [number for number, member in self.workers.items() if member.waits]:
            self._assign_next(number)
        for number in range(min(count, len(episodes))):  # more workers than episodes would be idle
            if number not in self.workers:
                self._start(number)

    def _start(self, number: int) -> None:
        # Starts a worker, unless no episode is left for it.
        if self._startable_episodes:
            self.workers[number] = _CrewMember(self._pool.start(number))

    def _assign_next(self, number: int) -> None:
        # Gives a worker its next episode. If none is left, the worker waits for a next batch, or ends.
        member = self.workers[number]
        # A worker keeps its environment for episodes of the same scene (policy and task), which saves time.
        others = [other.scene for other in self.workers.values() if other is not member and other.scene]
        planned = self._startable_episodes.take_next(member.scene, others)
        member.waits = planned is None
        if planned is not None:
            member.current, member.scene, member.steps = planned, scene_of(planned), 0
            member.worker.begin(planned)
        elif not self._keeps_idle:
            self.dismiss(number)

    def _handle_death(self, number: int) -> EpisodeOutcome | None:
        # Queues the dead worker's episode again, and returns None. After the last attempt, returns the outcome instead.
        # Starts a new worker with the same number. After `STARTS` deaths of starting workers in a row, none is started.
        # Raises `RunError` if no other worker is running when starting workers have died `STARTS` times in a row.
        member, outcome = self.workers.pop(number), None
        cause = member.worker.end(_CLOSE_S)
        if member.is_starting:
            if not self._pool.tolerate_failed_start(member.worker, cause, is_final=False):
                self._startup_deaths += 1  # set to 0 when any worker becomes ready
            if self._startup_deaths >= STARTS:
                if self.workers:
                    return None  # the other workers run the episodes
                raise errors.RunError(f"workers die while they start: {cause}", remedy=self._pool.remedy)
        elif member.current is None:
            pass  # the worker was idle
        elif self._deaths[member.current.episode_id] < RETRIES:  # the episode may be restarted
            self._deaths[member.current.episode_id] += 1
            self._startable_episodes.put_back(member.current)
        else:
            last_attempt = f"the last time after {member.steps} steps or more: {cause}"
            reason = f"the worker died in each of {RETRIES + 1} attempts, {last_attempt}"
            outcome = EpisodeOutcome(member.current, "crashed", member.steps, None, reason)
        self._start(number)
        return outcome


# Local worker processes, and the program that they run


ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def worker_environment(worker: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a worker: the worker's number, and by default one linear-algebra thread."""
    # `inherited` are the variables of this process, such as `os.environ`; they override the number of threads.
    return {**dict.fromkeys(ONE_THREAD, "1"), **inherited, WORKER: str(worker)}


_PROGRAM = "import sys; sys.path[:] = {}; from safevla_bench.rollout.scheduler import serve_episodes; serve_episodes()"


class WorkerProcess:
    """A local worker process, and the pipe that connects it to this process."""

    def __init__(self, spec: WorkerSpec, environment: Mapping[str, str]) -> None:
        # `child_end` is the worker's end of the pipe; the worker gets its file descriptor as an argument.
        self.connection, child_end = Pipe()
        # Ctrl-C sends SIGINT to the whole process group. The signal is blocked here, and workers inherit the block.
        former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(sys.path), str(child_end.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr, because a simulator's output is not a result
                pass_fds=[child_end.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
            child_end.close()
        self._send(spec)

    def begin(self, planned: PlannedEpisode) -> None:
        # Send an episode to the worker. Its outcome arrives later through the pipe.
        self._send(planned)

    def dismiss(self) -> None:
        # After the message None, the worker closes everything and ends.
        self._send(None)

    def end(self, timeout_s: float) -> str:
        """Wait `timeout_s` for the process, kill it if it still runs, close the pipe, and return how it ended."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            self.connection.close()
        return describe_exit(self.process.returncode)

    def _send(self, message: object) -> None:
        # Send a message to the worker. Nothing happens if the worker has died.
        try:
            self.connection.send(message)
        except OSError:
            return  # the process has died; `receive_messages` will report this


class ProcessPool:
    """The pool of local worker processes."""

    remedy = "The worker's messages are above. Fewer --workers need less memory; a single worker runs in this process."

    def __init__(self, spec: WorkerSpec) -> None:
        # From `spec`, each worker makes its own host and policies.
        self._spec = spec

    def start(self, number: int) -> WorkerProcess:
        # Start worker `number`, which becomes ready later; `receive_messages` reports this.
        return WorkerProcess(self._spec, worker_environment(number, os.environ))

    def tolerate_failed_start(self, worker: WorkerProcess, cause: str, *, is_final: bool) -> bool:
        # False = count the failure. All processes run on this machine, so another process would probably also fail.
        return False

    def receive_messages(self, workers: Mapping[int, WorkerProcess]) -> Iterator[tuple[int, Message | None]]:
        # Yield (worker number, message) for each message that has arrived. The message is None if the worker has died.
        number_of_connection = {worker.connection: number for number, worker in workers.items()}
        ready = wait(list(number_of_connection), timeout=LOOK_S)
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                message: Message | None = connection.recv()
            except (EOFError, OSError):  # the worker's end of the pipe is closed
                message = None
            yield number_of_connection[connection], message
        if not ready:  # a child process of a dead worker may keep the pipe open
            for number, worker in workers.items():
                if worker.process.poll() is not None and not worker.connection.poll():
                    yield number, None


def describe_exit(returncode: int) -> str:
    """Return a text with the cause of a process's end. A negative return code is the signal that killed it."""
    if returncode >= 0:
        return f"the process exited with status {returncode}"
    hint = ", often because memory ran out" if returncode == -signal.SIGKILL else ""
    names = {member.value: member.name for member in signal.Signals}  # some signal numbers have no name
    return names.get(-returncode, f"signal {-returncode}") + hint


def serve_episodes() -> None:
    """Run the episodes that arrive at the file descriptor `sys.argv[1]`, until None arrives; send the outcomes back."""
    faulthandler.enable()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # a simulator's child processes must not keep the pipe open
    connection = Connection(descriptor)
    episode_queue: SimpleQueue[PlannedEpisode | None] = SimpleQueue()
    spec: WorkerSpec = connection.recv()
    # The thread notices at once if the command dies, even during an episode, and ends this process.
    threading.Thread(target=_receive_episodes, args=(connection, episode_queue), daemon=True).start()

    def report(steps: int) -> None:
        # Send the number of steps done in the running episode, but not after each step.
        if steps % STEPS_BETWEEN == 0:
            connection.send(steps)

    try:
        parts = WorkerParts(spec)
        connection.send(READY)
        while (planned := episode_queue.get()) is not None:  # waits for the next episode
            connection.send(parts.runner.run_planned(planned, report))
        parts.close()
    except errors.SafevlaError as error:  # the scheduler raises this error, or reports it
        connection.send(error)


def _receive_episodes(connection: Connection, episode_queue: SimpleQueue[PlannedEpisode | None]) -> None:
    # Puts each received message into the queue, and ends this process if the connection breaks.
    try:
        while True:
            episode_queue.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)
