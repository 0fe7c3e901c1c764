"""Registration of a rollout before it is run, and the request that a registration makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from safevla_bench import rollout
from safevla_bench.errors import RunError
from safevla_bench.evaluation.preparation import placeholder_servers, prepare_run
from safevla_bench.evaluation.request import Request, policy_fields, until_fields
from safevla_bench.registration import (
    SERVER,
    RegisteredPolicy,
    RegisteredTask,
    RegisteredUntil,
    Registration,
    compare_registrations,
    describe_rules,
    describe_specs,
    format_start,
)
from safevla_bench.ruleset import Ruleset


def freeze_request(request: Request, ruleset: Ruleset) -> Registration:
    """Return the registration of a rollout and its judgement; nothing is run or written.

    Raises what `prepare_run` raises, and `RunError` for a shard, a replay and a policy that is an object.
    """
    _require_registrable(request)
    prepared = prepare_run(
        replace(request, servers=request.servers or placeholder_servers(request), ruleset=ruleset, registration=None)
    )
    prepared.close()
    return Registration(
        host=prepared.host.name,
        host_arguments=dict(request.host_arguments),
        suites=tuple(request.suites),
        indices=request.tasks,
        episodes_per_task=request.episodes,
        policies=tuple(
            RegisteredPolicy(policy=name, arguments=request.policy_options(name), spec=request.policy_specs.get(name))
            for name in request.policies
        ),
        protocol=rollout.load_protocol(request.protocol).episode_values(),
        seed=request.seed,
        max_steps=request.max_steps,
        stop_on_violation=request.stop_on_violation,
        until=RegisteredUntil(condition=request.until, look_every=request.look_every) if request.until else None,
        tasks=_register_tasks(prepared.episodes, request.policies[0]),
        n=len(prepared.episodes),
        specs=describe_specs(ruleset),
        rules=describe_rules(ruleset),
    )


def _require_registrable(request: Request) -> None:
    """Raise `RunError` for a request of a shard, of a replay, or of a policy that is an object."""
    if request.shard is not None:
        remedy = "Freeze without --shard; --shard I/N --registered FILE then runs a piece of it."
        raise RunError("a registration is of the whole plan, not of a shard", remedy=remedy)
    replayed = [name for name in request.policies if request.policy_spec(name).partition(":")[0] == "replay"]
    if replayed:
        remedy = "Register the runs that are still to be made."
        raise RunError(f"{replayed[0]} repeats what has been run, and cannot be registered beforehand", remedy=remedy)
    if request.policy_objects:
        remedy = "Name the policy by its module: python:my_module:MyPolicy."
        raise RunError("a policy object has no name by which it could be made again", remedy=remedy)


def _register_tasks(episodes: Sequence[rollout.PlannedEpisode], policy: str) -> tuple[RegisteredTask, ...]:
    """Return the tasks with their horizon and the starts of their episodes, taken from this policy's episodes.

    The starts are those of every policy. A task with several horizons has an entry for each.
    """
    starts: dict[tuple[str, int], list[str]] = {}
    for planned in episodes:
        if planned.policy == policy:
            task = f"{planned.task.benchmark}/{planned.task.task_id}"
            seed = SERVER if planned.seed_from_server else planned.start.env_seed
            starts.setdefault((task, planned.horizon), []).append(format_start(planned.start.init_state_index, seed))
    return tuple(
        RegisteredTask(task=task, horizon=horizon, episodes=" ".join(of_task))
        for (task, horizon), of_task in starts.items()
    )


def list_deviations(registration: Registration, request: Request, ruleset: Ruleset) -> list[str]:
    """Return a sentence for each field in which a request and its rules are not what was registered; [] where none.

    A shard of the registered plan is no deviation. Raises what `freeze_request` raises.
    """
    asked = freeze_request(replace(request, shard=None), ruleset)
    return list(compare_registrations(registration, asked))


def registered_request(registration: Registration) -> Request:
    """Return the request that runs what was registered."""
    return Request(
        host=registration.host,
        host_arguments=registration.host_arguments,
        suites=registration.suites,
        tasks=registration.indices,
        episodes=registration.episodes_per_task,
        protocol=str(registration.protocol.get("name")),
        seed=registration.seed,
        max_steps=registration.max_steps,
        stop_on_violation=registration.stop_on_violation,
        registration=registration,
        **policy_fields(registration.policies),
        **until_fields(registration.until),
    )
