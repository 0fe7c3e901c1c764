"""Published policies as entries of `entries.toml`, the paper's policies first. `--policy ENTRY` runs an entry's policy,
a client of the published policy's servers.

The policy of an entry has one client per suite, because some published policies have a checkpoint, and thus a server,
for each suite. A server's address does not identify a policy, so a run's description omits the argument `server`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal, cast

import msgspec

from safevla_bench.errors import PolicyError
from safevla_bench.files import read_shipped
from safevla_bench.interface.policy import Policy
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import ChunkedPolicy, ChunkModel, dialects

UNKNOWN = "unknown"
MARK = "@"  # the names of all entries, and of no other policies, contain this character
EVERY = "all"
SERVER = "server"


class PaperEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published policy on one host. Its published numbers are found by the policy's name and the suite."""

    name: str
    policy: str
    host: str
    suites: tuple[str, ...]
    protocol: str
    dialect: str
    project: str
    serve: str  # command that starts the policy's server in its own project
    checkpoints: dict[str, str]  # the checkpoint for each suite, or a single checkpoint under the key `all`
    sources: dict[str, str]
    host_arguments: dict[str, str] = {}  # arguments of the host, such as RoboCasa's `split`
    listed: Literal["paper", "board", "harness"] = "paper"
    """Who published the numbers: the paper, its authors' leaderboard, or the project vla-evaluation-harness."""
    training: str | None = None
    auxiliary: bool = False  # whether the entry is in the paper's Table 6, outside the main results
    remarks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # unpublished facts, which are unknown or assumed

    @property
    def is_runnable(self) -> bool:
        # Whether the entry can be run: the policy's protocol and dialect are known.
        return UNKNOWN not in (self.protocol, self.dialect)

    @property
    def transport(self) -> str:
        """The kind of server that uses the entry's dialect; `unknown` if the dialect is unknown."""
        return dialects.load_dialect_file(self.dialect).transport if self.dialect != UNKNOWN else UNKNOWN

    def checkpoint(self, suite: str) -> str:
        """Return the checkpoint for a suite, or else the checkpoint for all suites, or else `unknown`."""
        return self.checkpoints.get(suite, self.checkpoints.get(EVERY, UNKNOWN))


@cache
def paper_entries() -> tuple[PaperEntry, ...]:
    """Return all entries: the paper's main entries, the paper's auxiliary entries, then all other entries."""
    # An entry is a published policy on one host (a simulator benchmark), with its servers and checkpoints.
    return read_shipped(__package__, "entries.toml", dict[str, tuple[PaperEntry, ...]])["entries"]


def find_entry(name: str) -> PaperEntry:
    """Return an entry by name. Raise `PolicyError` with a list of all names if there is no such entry."""
    entry = next((entry for entry in paper_entries() if entry.name == name), None)
    if entry is None:
        names = ", ".join(entry.name for entry in paper_entries())
        raise PolicyError(f"there is no entry {name!r}", remedy=f"Entries: {names}.")
    return entry


def assign_servers(entry: PaperEntry, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the server URL of each suite, in the entry's order. `texts` are `SUITE=URL` or `URL`; a text that does not
    begin with a suite of the entry is a URL for all suites. Later texts replace earlier texts. Suites without a server
    are omitted. Raises `PolicyError` for a URL for all suites if the suites have different checkpoints.
    """
    # `EVERY` is the key for all suites.
    urls: dict[str, str] = {}
    for text in texts:
        suite, equals, url = text.partition("=")
        if not equals or suite not in entry.suites:  # a URL may also contain an equals sign
            suite, url = EVERY, text
        urls[suite] = url
    has_several_checkpoints = len(set(entry.checkpoints.values())) > 1
    if EVERY in urls and has_several_checkpoints:
        problem = f"{entry.name} has a separate checkpoint for each suite, so one server cannot serve all suites"
        raise PolicyError(problem, remedy=f"Write the suite of each server: --server {entry.suites[0]}={urls[EVERY]}.")
    # A suite's own URL has priority over the URL for all suites.
    url_by_suite = {suite: urls.get(suite, urls.get(EVERY)) for suite in entry.suites}
    return {suite: url for suite, url in url_by_suite.items() if url is not None}


class EntryPolicy(ChunkedPolicy):
    """The policy of an entry. For each task, it queries the model on the server of the task's suite."""

    def __init__(self, entry: PaperEntry, models: Mapping[str, ChunkModel], replan: int | None) -> None:
        """Store the models by suite, and use the dialect of the first model."""
        # `replan` is the number of executed actions per chunk; None = all.
        super().__init__(next(iter(models.values())), replan)
        self.entry, self._models = entry, models

    def require_task(self, task: Task) -> None:
        """Raise `PolicyError` if the task's suite has no server."""
        suite = task.benchmark
        if suite not in self._models:
            problem = f"no server is named for {self.entry.name} on {suite}"
            raise PolicyError(problem, remedy=f"Run only suites that have a server, or pass --server {suite}=URL.")

    def connect(self, task: Task) -> None:
        # Connect to the server of the task's suite; raise `PolicyError` if there is none.
        self._choose_model(task)
        super().connect(task)

    def reset(self, task: Task, seed: int) -> None:
        # Begin an episode with the model of the task's suite.
        self._choose_model(task)
        super().reset(task, seed)

    def _choose_model(self, task: Task) -> None:
        # Use the model of the task's suite from now on. Raise `PolicyError` if the suite has no server.
        self.require_task(task)
        self.model = self._models[task.benchmark]

    def close(self) -> None:
        # Close all suites' models. Suites may share a model, and closing a model twice is harmless.
        for model in self._models.values():
            model.close()


def make_entry_policy(
    name: str, arguments: Mapping[str, str], open_policy: Callable[[str, Mapping[str, str]], Policy]
) -> EntryPolicy:
    """Make the policy of an entry. The argument `server` holds texts URL or SUITE=URL, separated by spaces. The clients
    of these servers get the other arguments and the entry's dialect. Raises `PolicyError` if no entry has that name,
    the entry cannot be run or has no server, or an argument is invalid.
    """
    # `open_policy` makes a client from KIND:URL and its arguments, without connecting.
    entry = find_entry(name)
    if not entry.is_runnable:
        problem = f"{name} cannot be run: {'; '.join(entry.unknown)}"
        raise PolicyError(problem, remedy=f"List the known facts about the server: safevla protocols --entries {name}")
    other_arguments = dict(arguments)
    texts = tuple(other_arguments.pop(SERVER, "").split())
    if not texts:
        remedy = f"Start the server, then pass --server URL. Command: {entry.serve}"
        raise PolicyError(f"{name} needs the address of its server", remedy=remedy)
    settings, url_by_suite = {"dialect": entry.dialect, **other_arguments}, assign_servers(entry, texts)
    urls = dict.fromkeys(url_by_suite.values())  # suites with the same URL share a client
    clients = {url: cast("ChunkedPolicy", open_policy(f"{entry.transport}:{url}", settings)) for url in urls}
    models = {suite: clients[url].model for suite, url in url_by_suite.items()}
    first_client = next(iter(clients.values()))  # all clients have the same arguments, so their `replan` is equal
    return EntryPolicy(entry, models, first_client.dialect.replan)
