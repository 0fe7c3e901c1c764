"""A model that gives several actions at a time, as a policy that is asked for one."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError
from safevla_bench.interface import Action, Observation, Task, Wants
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.metadata import Greeting


class Model(Protocol):
    """What gives action chunks: a client of a policy server, or a model in this process."""

    wants: Wants

    def begin(self, task: Task, seed: int) -> None:
        """An episode begins."""
        ...

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """The next actions, [H, A] with H ≥ 1, in the host's units."""
        ...

    def close(self) -> None: ...


class Chunked:
    """Carries out the first `replan` actions of each chunk, or all of them, then asks again.

    `calls_s` holds the wall seconds of each inference since the last reset. `dialect` is how the model is asked, for
    the run's description; `clip` says that actions out of the host's range are clipped, as its own project does.
    """

    def __init__(self, model: Model, replan: int | None, dialect: Dialect | None = None) -> None:
        self.wants, self.dialect = model.wants, dialect and replace(dialect, replan=replan)
        self.clip = dialect is not None and dialect.clip
        self.calls_s: list[float] = []
        self._model, self._replan = model, replan
        self._left: deque[Action] = deque()

    @property
    def greeting(self) -> Greeting | None:
        """What the model's server says of itself, where there is one."""
        said: Greeting | None = getattr(self._model, "greeting", None)
        return said

    def reset(self, task: Task, seed: int) -> None:
        """Forget what is left of the last chunk."""
        self._left.clear()
        self.calls_s = []
        self._model.begin(task, seed)

    def act(self, observation: Observation) -> Action:
        """[A]

        Raises:
            InvalidActionError: the model gave no [H, A] array.
            PolicyError: it gave fewer actions than are to be carried out, or cannot be asked.
        """
        if not self._left:
            self._left.extend(self._asked(observation))
        return self._left.popleft()

    def close(self) -> None:
        self._model.close()

    def _asked(self, observation: Observation) -> NDArray[np.float64]:
        start = time.perf_counter()
        chunk = self._model.infer(observation)
        self.calls_s.append(time.perf_counter() - start)
        if chunk.ndim != 2 or not len(chunk):
            remedy = "It must give [H, A], H actions of A numbers."
            raise InvalidActionError(f"the model gave an array of shape {chunk.shape}", remedy=remedy)
        if self._replan is not None and len(chunk) < self._replan:
            problem = f"the model gives {len(chunk)} actions at a time, and {self._replan} are to be carried out"
            raise PolicyError(problem, remedy=f"Pass --policy-arg replan={len(chunk)} or fewer.")
        return chunk[: self._replan]


def replanning(text: str | None, default: int | None) -> int | None:
    """How many actions of a chunk to carry out, from an argument; `all` is None. Raises `PolicyError`."""
    if text is None:
        return default
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise PolicyError(f"replan={text} is no number of steps", remedy="Write replan=5, or replan=all.")
    return int(text)
