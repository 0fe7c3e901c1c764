"""The paper's entries as data (`entries.toml`), and each as a policy: `--policy ENTRY`, asked through its servers.

An entry's policy opens a client of its transport for the suite at hand, so that one checkpoint a suite is one server a
suite. Where its servers are is no part of what it is: `server` is left out of a run's description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Action, Observation, Policy, Task
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.metadata import Greeting

UNKNOWN = "unknown"
MARK = "@"
"""Stands in the name of every entry, and in that of no other policy."""
EVERY = "all"
SERVER = "server"

Open = Callable[[str, Mapping[str, str]], Policy]
"""Makes the policy `TRANSPORT:URL` with arguments."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy on one host, as the paper evaluates it; the numbers are in the publication, by policy and suite."""

    name: str
    policy: str
    host: str
    suites: tuple[str, ...]
    protocol: str
    dialect: str
    project: str
    serve: str
    """The command that starts its server in its own project."""
    checkpoints: dict[str, str]
    """By suite, or one for `all`."""
    sources: dict[str, str]
    training: str | None = None
    auxiliary: bool = False
    """Table 6: outside of the paper's main results."""
    remarks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """What neither the paper nor the policy's project says, and this entry therefore leaves open or assumes."""

    @property
    def runnable(self) -> bool:
        return UNKNOWN not in (self.protocol, self.dialect)

    @property
    def transport(self) -> str:
        return dialects.file(self.dialect).transport if self.dialect != UNKNOWN else UNKNOWN

    def checkpoint(self, suite: str) -> str:
        return self.checkpoints.get(suite, self.checkpoints.get(EVERY, UNKNOWN))


class _Zoo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: tuple[Entry, ...]


@cache
def entries() -> tuple[Entry, ...]:
    """All entries, in the paper's order; the auxiliary ones last."""
    content = resources.files(__package__).joinpath("entries.toml").read_bytes()
    return msgspec.toml.decode(content, type=_Zoo).entries


def entry(name: str) -> Entry:
    """The entry of that name.

    Raises:
        PolicyError: there is none; lists those there are.
    """
    found = next((one for one in entries() if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in entries())
        raise PolicyError(f"there is no entry {name!r}", remedy=f"Entries: {known}.")
    return found


def servers(found: Entry, texts: tuple[str, ...]) -> dict[str, str]:
    """Each suite's server from `URL` and `SUITE=URL`; a suite that is not named has none.

    Raises:
        PolicyError: a suite that the entry has not, or one URL for suites whose checkpoints differ.
    """
    chosen: dict[str, str] = {}
    for text in texts:
        suite, equals, url = text.partition("=")
        if not (equals and suite in found.suites):
            suite, url = EVERY, text
        chosen[suite] = url
    several = len(set(found.checkpoints.values())) > 1
    if EVERY in chosen and several:
        problem = f"{found.name} has a checkpoint for each suite, so one server cannot be right for all"
        example = f"{found.suites[0]}={chosen[EVERY]}"
        raise PolicyError(problem, remedy=f"Name the suite of each server: --server {example}.")
    return {suite: chosen.get(suite, chosen.get(EVERY, "")) for suite in found.suites if {suite, EVERY} & set(chosen)}


class Served:
    """An entry's policy: a client for each server, which connects when an episode of one of its suites begins."""

    def __init__(self, found: Entry, where: Mapping[str, str], opened: Callable[[str], Policy]) -> None:
        self.entry = found
        self._where = dict(where)
        self._clients = {url: opened(url) for url in dict.fromkeys(where.values())}
        self._now: Policy | None = None
        first = next(iter(self._clients.values()))
        self.dialect: Dialect = getattr(first, "dialect", None) or dialects.dialect(found.dialect)
        self.wants, self.clip = first.wants, self.dialect.clip

    def server(self, suite: str) -> str:
        """Where the suite is served; raises `PolicyError` where it is not."""
        if suite not in self._where:
            problem = f"no server is named for {self.entry.name} on {suite}"
            raise PolicyError(problem, remedy=f"Pass --server {suite}=URL, or only suites that have one.")
        return self._where[suite]

    @property
    def calls_s(self) -> Sequence[float] | None:
        """What its client says of its inferences."""
        spent: Sequence[float] | None = getattr(self._now, "calls_s", None)
        return spent

    @property
    def greeting(self) -> Greeting | None:
        """What the suite's server says of itself."""
        said: Greeting | None = getattr(self._now, "greeting", None)
        return said

    def reset(self, task: Task, seed: int) -> None:
        """Begin an episode with the suite's server; raises `PolicyError` where the suite has none."""
        self._now = self._clients[self.server(task.benchmark)]
        self._now.reset(task, seed)

    def act(self, observation: Observation) -> Action:
        """[A]

        Raises:
            PolicyError: there was no reset; and what the client raises.
        """
        if self._now is None:
            raise PolicyError(f"{self.entry.name} was asked before an episode began", remedy="Call reset first.")
        return self._now.act(observation)

    def close(self) -> None:
        """Close every client."""
        while self._clients:
            self._clients.popitem()[1].close()


def make(name: str, arguments: Mapping[str, str], open_policy: Open) -> Served:
    """The policy of an entry. `server` holds URL or SUITE=URL texts with blanks between them.

    All other arguments go to the client of the transport, with the name of the dialect.

    Raises:
        PolicyError: there is no such entry, it cannot be run, or it has no server.
    """
    found = entry(name)
    if not found.runnable:
        problem = f"{name} cannot be run: {'; '.join(found.unknown)}"
        raise PolicyError(problem, remedy="It is listed for its published numbers only.")
    rest = dict(arguments)
    texts = tuple(rest.pop(SERVER, "").split())
    if not texts:
        raise PolicyError(
            f"{name} needs the address of its server", remedy=f"Start it: {found.serve}; pass --server URL."
        )
    spoken = {"dialect": found.dialect, **rest}
    return Served(found, servers(found, texts), lambda url: open_policy(f"{found.transport}:{url}", spoken))
