"""What a host offers so that an environment of somebody else's making can be recorded inside their own loop.

A host that can has a method `watched(env) -> Watched | None`, next to those of `Host`. Its `Watched` tells the
`Watcher` what happens to the environment, by `around`: hooks on that one instance, which pass every call on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Protocol

from numpy.typing import ArrayLike

from safevla_bench.errors import HostError, SafevlaError
from safevla_bench.hosts import host, hosts
from safevla_bench.hosts.mujoco.recorder import Recorder
from safevla_bench.interface import Action, Task
from safevla_bench.trajectory import Header

Undo = Callable[[], None]


class Watcher(Protocol):
    """Is told what happens to an environment, in the order in which it happens."""

    def seeded(self, seed: int) -> None:
        """The environment was given a seed."""
        ...

    def ending(self) -> None:
        """Whatever runs is over: a reset, another state or the close follows. Often told twice; the second is empty."""
        ...

    def reset(self) -> None:
        """A reset has succeeded. Must not raise: LIBERO's own reset would swallow it and try again."""
        ...

    def placed(self, init_state_index: int | None) -> None:
        """A state was set from outside: the task's initial state of that index, or none of them (None)."""
        ...

    def stepping(self, action: object) -> None:
        """The environment is about to take an action."""
        ...

    def stepped(self, success: bool) -> None:
        """It has taken it; `success` is the host's native one."""
        ...

    def failed(self, error: BaseException) -> None:
        """It raised instead."""
        ...


class Watched(Protocol):
    """One environment of somebody else's making."""

    host: str
    task: Task
    wait_steps: int
    """Settling steps that loops around this simulator usually make."""
    action_size: int
    versions: dict[str, str]

    def start_from(self, init_states: ArrayLike) -> None:
        """Take these as the task's initial states, [count, state]."""
        ...

    def watch(self, watcher: Watcher) -> Undo:
        """Tell `watcher` what happens from now on; returns what takes the hooks off."""
        ...

    def begin(self) -> tuple[Recorder, Undo]:
        """A recorder of the present model, attached, with record 0 taken; and what detaches it."""
        ...

    def holds(self, action: Action) -> bool:
        """Whether the action leaves the arm where it is, as settling actions do; the gripper may move."""
        ...

    def header(self, recorder: Recorder, *, success: bool, env_seed: int | None, index: int | None) -> Header:
        """What the record of an episode says once, as far as the host knows it."""
        ...


def watched(env: object) -> Watched:
    """The environment as one of the installed hosts sees it.

    Raises:
        HostError: no host knows it, or the one that does cannot record it; says why.
    """
    able = []
    for name in hosts():
        try:
            see = getattr(host(name), "watched", None)
        except SafevlaError:  # another host's trouble
            continue
        if see is None:
            continue
        able.append(name)
        found: Watched | None = see(env)
        if found is not None:
            return found
    problem = f"an environment of type {type(env).__module__}.{type(env).__qualname__} cannot be recorded"
    known = ", ".join(able) or "none"
    remedy = (
        "Pass the simulator's own environment, or a wrapper that holds it by now: some make theirs at the first reset. "
        f"Hosts that can record one: {known}."
    )
    raise HostError(problem, remedy=remedy)


def around(owner: object, method: str, wrapper: Callable[..., object]) -> Undo:
    """Call `wrapper(original, *args, **kwargs)` for each `owner.method(...)`, on this one instance.

    Returns what undoes it; where somebody has replaced the method since, theirs stays.
    """
    original = getattr(owner, method)

    @wraps(original)
    def wrapped(*args: object, **kwargs: object) -> object:
        return wrapper(original, *args, **kwargs)

    def undo() -> None:
        if vars(owner).get(method) is wrapped:
            delattr(owner, method)

    setattr(owner, method, wrapped)
    return undo
