"""Several workers, wherever they are: who runs what, and what becomes of an episode whose worker dies.

An engine says how a worker is started and heard (`Pool`, `Worker`); `workers` has processes of this machine, `actors`
those of a Ray cluster. The rules are here, once for all engines: an episode whose worker died is begun again in another
one, `RETRIES` times; a worker has one episode at a time, and gets the next when its record has arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from safevla_bench.errors import RunError
from safevla_bench.rollout.engine import Finished, Observer
from safevla_bench.rollout.plan import Planned
from safevla_bench.rollout.queue import Scene, Shares, scene
from safevla_bench.rollout.worker import Failed, Message, Stepped

RETRIES = 1
"""How often an episode is begun again, each time in a fresh worker, after its worker died."""
_CLOSE_S = 30.0


class Worker(Protocol):
    """One process somewhere, with its own host, policies and environment."""

    @property
    def spent(self) -> bool:
        """Whether it should be replaced by a fresh one before it gets another episode."""

    def begin(self, planned: Planned) -> None:
        """Give it an episode; what it says of it is heard later, its death too."""

    def dismiss(self) -> None:
        """There is nothing left to do for it: it closes what it made, and ends."""

    def end(self, timeout_s: float) -> str:
        """Wait for its end, after the timeout end it; says in words how it ended."""


W = TypeVar("W", bound=Worker)


class Pool(Protocol[W]):
    """Where workers come from."""

    starts: int
    """How many workers in a row may die before they can begin."""
    remedy: str
    """What helps where more of them do."""

    def start(self, number: int) -> W:
        """Start a worker; it says `Ready` when an episode can come."""

    def heard(self, workers: Mapping[int, W]) -> Iterator[tuple[int, Message | None]]:
        """Wait a little for what the workers say, by number; None from one that has died."""


@dataclass
class _Seat(Generic[W]):
    """A worker and what is known of it."""

    worker: W
    current: Planned | None = None
    steps: int = 0
    """Of the episode in flight, as far as is known."""
    scene: Scene | None = None


def run_crew(
    pool: Pool[W], episodes: Sequence[Planned], count: int, observer: Observer | None = None
) -> Generator[Finished]:
    """Run the episodes with `count` workers of a pool and yield each as it ends, in no order.

    Raises `RunError` where workers die before they can begin, and what a worker itself cannot mend: `HostError`,
    `PolicyError`, `PluginError`. Whatever ends this generator ends the workers.
    """
    if observer:
        observer.started(episodes)
    crew = _Crew(pool, episodes, observer)
    try:
        crew.hire(min(count, len(episodes)))
        while crew.at_work:
            for number, message in crew.heard():
                if (finished := crew.take(number, message)) is not None:
                    yield finished
        crew.dismiss()
        crew.close(_CLOSE_S)
    finally:
        crew.close(0.0)


class _Crew(Generic[W]):
    """The workers, what is left to be done, and how often an episode has cost a worker."""

    def __init__(self, pool: Pool[W], episodes: Sequence[Planned], observer: Observer | None) -> None:
        self._pool, self._observer = pool, observer
        self._left = Shares(episodes)
        self._deaths: Counter[str] = Counter()
        self._stillborn: Counter[int] = Counter()
        self._seats: dict[int, _Seat[W]] = {}
        self._dismissed: list[W] = []

    @property
    def at_work(self) -> bool:
        """Whether an episode is in flight or still to be begun; a worker that has not come yet is not waited for."""
        return bool(self._left) or any(seat.current for seat in self._seats.values())

    def hire(self, count: int) -> None:
        for number in range(count):
            self._start(number)

    def heard(self) -> Iterator[tuple[int, Message | None]]:
        return self._pool.heard({number: seat.worker for number, seat in self._seats.items()})

    def take(self, number: int, message: Message | None) -> Finished | None:
        """Act on a message; returns the episode that it ends, if it does."""
        seat = self._seats[number]
        if message is None:
            return self._bury(number)
        if isinstance(message, Failed):
            raise message.error
        if isinstance(message, Stepped):
            seat.steps = message.steps
            if self._observer and seat.current:
                self._observer.stepped(seat.current, message.steps)
            return None
        seat.current = None
        self._stillborn[number] = 0
        self._occupy(number)
        return self._told(message) if isinstance(message, Finished) else None

    def dismiss(self) -> None:
        for number in list(self._seats):
            self._release(number)

    def close(self, timeout_s: float) -> None:
        """End every worker, each within the time."""
        for worker in [*(seat.worker for seat in self._seats.values()), *self._dismissed]:
            worker.end(timeout_s)
        self._seats.clear()
        self._dismissed.clear()

    def _start(self, number: int) -> None:
        self._seats[number] = _Seat(self._pool.start(number))

    def _release(self, number: int) -> None:
        worker = self._seats.pop(number).worker
        worker.dismiss()
        self._dismissed.append(worker)

    def _occupy(self, number: int) -> None:
        """Give a worker its next episode, or let it go."""
        seat = self._seats[number]
        if seat.worker.spent and self._left:
            self._release(number)
            self._start(number)
            return
        others = [one.scene for one in self._seats.values() if one is not seat and one.scene]
        planned = self._left.take(seat.scene, others)
        if planned is None:
            self._release(number)
            return
        seat.current, seat.scene, seat.steps = planned, scene(planned), 0
        seat.worker.begin(planned)

    def _bury(self, number: int) -> Finished | None:
        """A worker has died: begin its episode again in a fresh one, or give it up as crashed."""
        seat = self._seats.pop(number)
        cause = seat.worker.end(_CLOSE_S)
        if seat.current is None:
            self._stillborn[number] += 1
            if self._stillborn[number] >= self._pool.starts:
                raise RunError(f"a worker died while it started: {cause}", remedy=self._pool.remedy)
        finished = self._mourned(seat.current, seat.steps, cause) if seat.current else None
        if self._left:
            self._start(number)
        return finished

    def _mourned(self, planned: Planned, steps: int, cause: str) -> Finished | None:
        """The end of an episode that has cost too many workers; else it is to be begun again."""
        self._deaths[planned.episode_id] += 1
        if self._deaths[planned.episode_id] <= RETRIES:
            self._left.give_back(planned)
            return None
        known = f"at last after {steps} steps or more: {cause}"
        reason = f"its worker died in each of {RETRIES + 1} attempts, {known}"
        return self._told(Finished(planned, "crashed", steps, None, reason))

    def _told(self, finished: Finished) -> Finished:
        if self._observer:
            self._observer.finished(finished.opened())
        return finished
