"""From what is asked for to a rollout that can start: the host, its tasks, the policies and the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from safevla_bench import hosts, policies, rollout, runs
from safevla_bench.errors import HostError, RunError
from safevla_bench.evaluate.request import PLAINLY, Judge, Request, Running
from safevla_bench.interface import Host, Policy, Replaying, Task
from safevla_bench.policies.servers import dialects, entries
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.version import __version__


@dataclass(frozen=True)
class Prepared:
    """A rollout that can start: everything was named rightly and is at hand."""

    host: Host
    episodes: tuple[rollout.Planned, ...]
    policies: dict[str, Policy]
    cast: rollout.Cast
    description: Mapping[str, object]

    def close(self) -> None:
        """Free the policies, once."""
        while self.policies:
            self.policies.popitem()[1].close()


def prepare(request: Request) -> Prepared:
    """Find the host, its tasks and the policies, and plan the episodes; nothing is written yet.

    Raises `HostError`, `PolicyError`, `PluginError` or `RunError` for what the user must change.
    """
    host = hosts.host(request.host, request.host_arguments)
    tasks = tasks_of(host, request)
    _check_arguments(request)
    rules = rollout.protocol(request.protocol)
    told = {name: _told(request, name) for name in request.policies}
    made = {name: policies.policy(name, arguments) for name, arguments in told.items()}
    _check_servers(made, tasks)
    planned = rollout.plan(
        tasks, request.episodes, request.policies, rules, seed=request.seed, max_steps=request.max_steps
    )
    whole = tuple(rollout.matched(one, made[one.policy], request.max_steps) for one in planned)
    episodes, stretch = _piece(whole, request.shard)
    players = rollout.Cast(
        request.host,
        told,
        renders=any(policy.wants.cameras for policy in made.values()),
        stopping=request.watch if request.stop_on_violation else None,
        host_arguments=request.host_arguments,
    )
    described = _described(request, host, tasks, made, rules)
    description = {**described, "shard": stretch, "planned": len(episodes)}
    return Prepared(host, episodes, made, players, description)


def _piece(
    whole: tuple[rollout.Planned, ...], shard: rollout.Shard | None
) -> tuple[tuple[rollout.Planned, ...], runs.Stretch | None]:
    """The episodes of a shard, and where they lie in the plan."""
    if shard is None:
        return whole, None
    begun = rollout.bounds(whole, shard.count)
    first, end = begun[shard.number - 1 : shard.number + 1]
    return whole[first:end], runs.Stretch(shard.number, shard.count, first, len(whole))


def _check_arguments(request: Request) -> None:
    for name in request.policy_arguments:
        if name not in request.policies:
            problem = f"there is an argument for the policy {name!r}, which is not in this run"
            raise RunError(problem, remedy=f"Its policies: {', '.join(request.policies)}.")


def _told(request: Request, policy: str) -> dict[str, str]:
    """A policy's arguments; an entry's with its servers."""
    served = (
        {entries.SERVER: " ".join(request.servers)}
        if entries.MARK in policy.partition(":")[0] and request.servers
        else {}
    )
    return {**served, **request.arguments_of(policy)}


def _check_servers(made: Mapping[str, Policy], tasks: Sequence[Task]) -> None:
    for policy in made.values():
        if isinstance(policy, entries.Served):
            for task in tasks:
                policy.server(task.benchmark)


def tasks_of(host: Host, request: Request) -> list[Task]:
    """The tasks that are asked for; raises `HostError` where there is no such suite or task."""
    return [task for suite in request.suites for task in _tasks(host, suite, request.tasks)]


def _tasks(host: Host, suite: str, wanted: tuple[int, ...] | None) -> Sequence[Task]:
    tasks = {task.index: task for task in host.tasks(suite)}
    unknown = sorted(set(wanted or ()) - set(tasks))
    if unknown:
        remedy = f"It has the tasks {min(tasks)} to {max(tasks)}; `safevla tasks --benchmark {suite}` lists them."
        raise HostError(f"{suite} has no task {unknown[0]}", remedy=remedy)
    return list(tasks.values()) if wanted is None else [tasks[index] for index in wanted]


def _described(
    request: Request, host: Host, tasks: Sequence[Task], made: Mapping[str, Policy], rules: rollout.Protocol
) -> dict[str, object]:
    """All that repeats the run."""
    return {
        "schema_version": 1,
        "host": host.name,
        "host_arguments": dict(request.host_arguments),
        "suites": request.suites,
        "indices": request.tasks,
        "tasks": [f"{task.benchmark}/{task.task_id}" for task in tasks],
        "episodes": request.episodes,
        "policies": [
            {
                "policy": name,
                "arguments": request.arguments_of(name),
                "privileged": policy.wants.privileged,
                "cameras": policy.wants.cameras,
                **({"replay": policy.described} if isinstance(policy, Replaying) else {}),
                **_spoken(policy),
            }
            for name, policy in made.items()
        ],
        "protocol": rules.episode_values(),
        "seed": request.seed,
        "max_steps": request.max_steps,
        "archive": request.archive,
        **({"stop_on_violation": _watch(request.watch, tasks)} if request.stop_on_violation else {}),
        "versions": {"safevla-bench": __version__, **host.versions()},
        "volatile": {**request.volatile, **({"servers": request.servers} if request.servers else {})},
    }


def _watch(by: Judge, tasks: Sequence[Task]) -> dict[str, object]:
    """What decides that an episode ends: all that changes where it does. Raises where it cannot be decided."""
    by.monitor()
    specs, known = by.load()
    for task in tasks:
        known.tags(task.benchmark, task.task_id, by.capabilities)
    return {
        "library": specs.name,
        "library_digest": specs.digest,
        "registry_digest": known.digest,
        "capabilities": by.capabilities,
        "missing": by.missing,
    }


def _spoken(policy: Policy) -> dict[str, object]:
    """How a policy is asked, and from which of the paper's entries that follows."""
    spoken = getattr(policy, "dialect", None)
    said: dict[str, object] = {"dialect": dialects.values(spoken)} if isinstance(spoken, Dialect) else {}
    if isinstance(policy, entries.Served):
        one = policy.entry
        said["entry"] = {"name": one.name, "checkpoints": one.checkpoints, "unknown": one.unknown}
    return said


def estimate(request: Request, running: Running = PLAINLY) -> rollout.Estimate:
    """What `roll_out` would run and what that costs; raises what `prepare` raises, and writes nothing."""
    prepared = prepare(request if request.servers else replace(request, servers=_anywhere(request)))
    cameras = {name: len(policy.wants.cameras) for name, policy in prepared.policies.items()}
    prepared.close()
    return rollout.estimate(prepared.episodes, prepared.host.name, cameras, running.workers)


def _anywhere(request: Request) -> tuple[str, ...]:
    """Stands for the servers of a run that is only planned."""
    return tuple(f"{suite}=nowhere" for suite in request.suites)
