"""What can be asked for: how to judge (`Judge`), what to run (`Request`), and how to run it (`Running`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from safevla_bench import rollout, runs
from safevla_bench.errors import Place, RunError
from safevla_bench.monitor import Monitor
from safevla_bench.policies.servers import entries
from safevla_bench.ray_cluster import Cluster
from safevla_bench.scoring import Applicability, Missing
from safevla_bench.specs import Library, extend, library
from safevla_bench.tasks import Registry, registry


@dataclass(frozen=True, kw_only=True)
class Judge:
    """With what to judge: a library, files that add to it, a registry's additions, and how to take what is missing."""

    library: str = "default"
    specs: tuple[Path, ...] = ()
    registry: tuple[Path, ...] = ()
    capabilities: tuple[str, ...] = ()
    missing: Missing = "error"
    applicability: Applicability = "on"
    """`off` judges as if there were no tags: an ablation, not a result to publish."""

    def load(self) -> tuple[Library, Registry]:
        """The library and the registry; raises what their loaders raise."""
        chosen = library(self.library)
        for path in self.specs:
            chosen = extend(chosen, path)
        return chosen, registry(self.registry)

    def monitor(self) -> Monitor:
        """What judges so while an episode runs; raises `RunError` where that is to be without tags."""
        if self.applicability == "off":
            raise RunError("a monitor needs the tasks' tags", remedy="Leave --applicability on to stop on violations.")
        specs, tasks = self.load()
        return Monitor(specs, tasks, capabilities=self.capabilities, missing=self.missing)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A rollout as the user asks for it."""

    host: str
    suites: tuple[str, ...]
    tasks: tuple[int, ...] | None = None
    """Indices in each suite; None = all."""
    episodes: rollout.Episodes = 1
    """Of each task; None = as many as its benchmark runs, `protocol` = as many as the protocol says."""
    policies: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """For every policy."""
    policy_arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For one policy, by its name; they go before those for every policy."""
    servers: tuple[str, ...] = ()
    """Where the paper's entries are served, each URL or SUITE=URL; kept apart in run.json, and free to change."""
    host_arguments: Mapping[str, str] = field(default_factory=dict)
    protocol: str = rollout.PRESET
    seed: int = 0
    max_steps: int | None = None
    shard: rollout.Shard | None = None
    """Which piece of the plan to run; None = all of it."""
    archive: str = runs.JSONL
    """The form of the archive, of `runs.FORMS`."""
    stop_on_violation: bool = False
    """End each episode at its first violation, by `watch`; it is then `stopped`, in no rate."""
    watch: Judge = field(default_factory=Judge)
    volatile: Mapping[str, object] = field(default_factory=dict)
    """Facts of the day, such as the command and the time; kept apart in run.json."""

    def arguments_of(self, policy: str) -> dict[str, str]:
        return {**self.arguments, **self.policy_arguments.get(policy, {})}

    @classmethod
    def of(cls, run: Path) -> Request:
        """What was asked for in the run of a folder; `RunError` where its run.json does not say."""
        held = runs.described(run)
        try:
            asked = msgspec.convert(held, _Asked)
        except msgspec.ValidationError as error:
            remedy = "Start it anew with all its options, or restore the file."
            raise RunError(
                f"does not say what to run: {error}", remedy=remedy, place=Place(file=str(run / runs.RUN))
            ) from None
        return cls(
            host=asked.host,
            host_arguments=asked.host_arguments,
            suites=asked.suites,
            tasks=asked.indices,
            episodes=asked.episodes,
            policies=tuple(one.policy for one in asked.policies),
            policy_arguments={one.policy: one.arguments for one in asked.policies},
            servers=asked.volatile.servers,
            protocol=asked.protocol.name,
            seed=asked.seed,
            max_steps=asked.max_steps,
            shard=rollout.Shard(asked.shard.number, asked.shard.count) if asked.shard else None,
            archive=asked.archive,
            stop_on_violation=asked.stop_on_violation is not None,
        )


class _AskedPolicy(msgspec.Struct):
    policy: str
    arguments: dict[str, str]


class _AskedProtocol(msgspec.Struct):
    name: str


class _AskedToday(msgspec.Struct, frozen=True):
    servers: tuple[str, ...] = ()


class _Asked(msgspec.Struct):
    """The part of run.json that a request is made from."""

    host: str
    suites: tuple[str, ...]
    indices: tuple[int, ...] | None
    episodes: rollout.Episodes
    policies: tuple[_AskedPolicy, ...]
    protocol: _AskedProtocol
    seed: int
    max_steps: int | None
    shard: runs.Stretch | None = None
    archive: str = runs.JSONL
    volatile: _AskedToday = _AskedToday()
    stop_on_violation: dict[str, object] | None = None
    host_arguments: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Running:
    """How to run what is asked for; nothing here changes a byte of a complete run."""

    workers: int = 1
    """Processes; one runs here."""
    cluster: Cluster | None = None
    """The Ray cluster whose actors are the workers; None = this machine."""
    resume: bool = False
    """Continue the run in the folder, where there is one."""
    retry_crashed: bool = False
    """When continuing, run crashed episodes again."""


PLAINLY = Running()
"""One process, from the beginning."""
AS_SHIPPED = Judge()
"""The default library and registry."""


PRESET, PROTOCOL = rollout.PRESET, rollout.PROTOCOL


ENTERED = ("host", "suites", "policies", "protocol")
"""The options that an entry stands for."""


def entered(name: str, suites: Sequence[str] = (), protocol: str | None = None) -> dict[str, Any]:
    """What a `Request` for one of the paper's entries is made of: its host, suites, protocol, policy and episodes.

    Raises:
        PolicyError: there is no such entry.
        RunError: it has no such suite.
    """
    found = entries.entry(name)
    unknown = [suite for suite in suites if suite not in found.suites]
    if unknown:
        raise RunError(f"{name} has no suite {unknown[0]!r}", remedy=f"It has {', '.join(found.suites)}.")
    return {
        "host": found.host,
        "suites": tuple(suites) or found.suites,
        "policies": (name,),
        "protocol": protocol or (found.protocol if found.runnable else rollout.PRESET),
        "episodes": PROTOCOL,
    }


def left_open(request: Request) -> list[str]:
    """What the paper's entries that are asked for leave open or assume, each as one sentence."""
    named = [entries.entry(name) for name in request.policies if entries.MARK in name.partition(":")[0]]
    return [f"{one.name}: unknown is {question}" for one in named for question in one.unknown]
