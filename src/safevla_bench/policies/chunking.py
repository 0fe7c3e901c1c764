"""Action chunking: a model that gives several actions at a time, as a policy that is asked for one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError, ReplyError, ServerRefusedError
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers.dialects import Dialect
from safevla_bench.policies.servers.endpoint import Greeting


class ChunkModel(Protocol):
    """A source of action chunks: a client of a policy server, or a model in this process."""

    wants: Wants

    def begin(self, task: Task, seed: int) -> None:
        """Begin an episode."""
        ...

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return the next actions, [H, A] with H ≥ 1, in the host's units."""
        ...

    def close(self) -> None:
        """Free what the model holds, such as a connection."""
        ...


class ChunkedPolicy:
    """A policy that carries out the first `replan` actions of each chunk, or all of them, then asks again.

    `calls_s` holds the wall seconds of each inference since the last reset. `dialect` is how the model is asked, for
    the run's description; `clip` says that actions out of the host's range are clipped, as its own project does.
    """

    def __init__(self, model: ChunkModel, replan: int | None, dialect: Dialect | None = None) -> None:
        """Wrap a model; `replan` None carries out all actions of each chunk. Nothing is connected yet."""
        self.wants, self.dialect = model.wants, dialect and replace(dialect, replan=replan)
        self.clip = dialect is not None and dialect.clip
        self.calls_s: list[float] = []
        self.model, self._replan = model, replan
        self._left: deque[Action] = deque()
        self._answered = False
        """Whether a reply could be used: one that cannot be, before any that could, would return in every episode."""

    @property
    def greeting(self) -> Greeting | None:
        """The description that the model's server gives of itself; None without a server."""
        return cast("Greeting | None", getattr(self.model, "greeting", None))

    @property
    def looks_next(self) -> bool:
        """True if the next action asks the model, which alone looks at observations."""
        return not self._left

    @property
    def env_seed(self) -> int | None:
        """The simulator's seed that the model's server asks for, if any."""
        return cast("int | None", getattr(self.model, "env_seed", None))

    def connect(self, task: Task) -> None:
        """Reach the model's server, if it has one, and set `wants` to what it asks for."""
        connect: Callable[[Task], None] | None = getattr(self.model, "connect", None)
        if connect is not None:
            connect(task)
            self.wants = self.model.wants

    def reset(self, task: Task, seed: int) -> None:
        """Begin an episode of the model, and forget the last chunk and its times."""
        self._left.clear()
        self.calls_s = []
        self.model.begin(task, seed)
        self.wants = self.model.wants

    def act(self, observation: Observation) -> Action:
        """Return the next action of the chunk, [A]; if none is left, the first of another chunk.

        Raises `InvalidActionError` if the model gave no [H, A] array, `ServerRefusedError` if its server's first reply
        cannot be read or holds too few actions, `PolicyError` if a later one does, and what the model raises.
        """
        if not self._left:
            self._left.extend(self._infer_chunk(observation))
        return self._left.popleft()

    def close(self) -> None:
        """Close the model."""
        self.model.close()

    def _infer_chunk(self, observation: Observation) -> NDArray[np.float64]:
        start = time.perf_counter()
        try:
            chunk = self.model.infer(observation)
        except ReplyError as error:
            if self._answered:
                raise
            raise ServerRefusedError(error.problem, remedy=error.remedy, place=error.place) from None
        self.calls_s.append(time.perf_counter() - start)
        if chunk.ndim != 2 or not len(chunk):
            remedy = "It must give [H, A], H actions of A numbers."
            raise InvalidActionError(f"the model gave an array of shape {chunk.shape}", remedy=remedy)
        if self._replan is not None and len(chunk) < self._replan:
            problem = f"the model gives {len(chunk)} actions at a time, and {self._replan} are to be carried out"
            kind = PolicyError if self._answered else ServerRefusedError
            raise kind(problem, remedy=f"Pass --policy-arg replan={len(chunk)} or fewer.")
        self._answered = True
        return chunk[: self._replan]


def parse_replan(text: str | None, default: int | None) -> int | None:
    """Return how many actions of a chunk are carried out: `default` for None, None (all of them) for `all`."""
    if text is None:
        return default
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise PolicyError(f"replan={text} is not a number of steps", remedy="Write replan=5, or replan=all.")
    return int(text)
