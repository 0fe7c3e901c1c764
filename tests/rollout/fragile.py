"""A plug-in whose host is the fake one until a fault strikes, for the matrix of faults.

The environment says which: FRAGILE names the fault, FRAGILE_AT a folder. The fault strikes in the doomed episode, in
its third step or its reset: the first time only, or `-always`. The folder then holds the number of the process.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import numpy as np

from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.policy import Wants

DOOMED, AT_STEP = ("task_0", 1), 3
"""The task and initial state of the episode that is struck, and its step."""
INSTRUCTION = "put the block on the tray"
ENOUGH_FOR_ONE = 3
"""Files that the disk has room for: a record and its row, and another record without."""


def fault() -> tuple[str, bool]:
    """The fault's name, and whether it strikes every time."""
    name = os.environ.get("FRAGILE", "")
    return name.removesuffix("-always"), name.endswith("-always")


def place() -> Path:
    return Path(os.environ["FRAGILE_AT"])


def strike(*names: str) -> str | None:
    """The fault, if it is one of these and is to strike now; that it does is noted."""
    name, always = fault()
    if name not in names or (not always and (place() / "struck").exists()):
        return None
    with (place() / "struck").open("a") as noted:
        noted.write(f"{os.getpid()}\n")
    return name


def wait() -> None:
    """Until somebody says to go on, or ends this process."""
    while not (place() / "go").exists():
        time.sleep(0.001)


STRIKES = {
    "raise-in-step": lambda: (_ for _ in ()).throw(RuntimeError("the simulator broke")),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "wait": wait,
}


def tell_server(doomed: bool) -> None:
    """Whether the episode that now begins is the one that is struck."""
    (place() / "doomed").unlink(missing_ok=True)
    if doomed:
        (place() / "doomed").touch()


class Env:
    """The fake environment; everything but the fault is passed on."""

    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)

    def reset(self, seed):
        self._doomed = (self._env.task.task_id, seed.init_state_index) == DOOMED
        self._steps = 0
        if fault()[0].startswith("server") and self._env.task.task_id == DOOMED[0]:
            tell_server(self._doomed)
        if self._doomed and strike("raise-in-reset"):
            raise RuntimeError("the simulator broke")
        return self._env.reset(seed)

    def step(self, action):
        self._steps += 1
        name = strike(*STRIKES) if self._doomed and self._steps == AT_STEP else None
        if name:
            STRIKES[name]()
        return self._env.step(action)


class Host(FakeHost):
    name = "fragile"

    def make(self, task, wants):
        return Env(super().make(task, wants))


def full(path, content):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def full_after(count, write):
    """Writes so many files, and then the disk is full."""
    remaining = iter(range(count))

    def writing(path, content):
        (write if next(remaining, None) is not None else full)(path, content)

    return writing


def host():
    if fault()[0] == "disk":
        from safevla_bench.sources.runs import parts

        parts.write_atomically = full_after(ENOUGH_FOR_ONE, parts.write_atomically)
    if fault()[0] == "disk-at-the-end":
        from safevla_bench.sources.runs import folder

        folder.write_atomically = full
    return Host()


def is_doomed(observation) -> bool:
    """Whether the server has been told that this is the doomed episode."""
    return bool(fault()[0]) and observation.instruction == INSTRUCTION and (place() / "doomed").exists()


class Served:
    """Moves at random behind a server, which dies or falls silent in the doomed episode."""

    wants = Wants()

    def reset(self, task, seed):
        self._generator, self._steps = np.random.default_rng(seed), 0

    def act(self, observation):
        self._steps += 1
        name = strike("server-dies", "server-silent") if self._steps == AT_STEP and is_doomed(observation) else None
        if name == "server-dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "server-silent":
            wait()
        return self._generator.uniform(-1, 1, 7)

    def close(self):
        pass


def policy(arg):
    return Served()
