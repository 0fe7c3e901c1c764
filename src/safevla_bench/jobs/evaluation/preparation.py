"""Preparation of a rollout: makes the host, tasks, policies and plan from a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from safevla_bench import plugins, policies
from safevla_bench.errors import HostError, PluginError, PolicyError, RunError, ServerUnreachableError
from safevla_bench.files import sha256_of
from safevla_bench.hosts import check_start, check_wants, describe_code, record_versions
from safevla_bench.hosts.protocols import EvaluationProtocol, load_protocol
from safevla_bench.interface.environment import Host, HostSupport
from safevla_bench.interface.policy import Policy, RemotePolicy, ReplayPolicy, SelectiveTaskPolicy
from safevla_bench.interface.task import EpisodeSeed, Task
from safevla_bench.jobs.evaluation import judgement, stopping_rule
from safevla_bench.jobs.evaluation.request import UNCOUPLED, Request, RequestedPolicy, select_tasks
from safevla_bench.judging import rates, registration
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.policies import coupling, python
from safevla_bench.policies.servers import dialects, entries
from safevla_bench.publishing.submission import describe_ruleset
from safevla_bench.rollout import plan as planning
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.rollout.scheduler import WorkerPolicy, WorkerSpec
from safevla_bench.sources.runs.folder import PlanStretch
from safevla_recorder.simulator_versions import find_differences


@dataclass(frozen=True)
class PreparedRun:
    """A planned run that is ready to start, with its host, episodes and policies."""

    host: Host
    episodes: tuple[PlannedEpisode, ...]
    policies: Mapping[str, Policy]
    cast: WorkerSpec  # says how a worker makes its host and policies, and which rules watch the episodes
    description: Mapping[str, object]
    resources: ExitStack  # closes the policies; policies that the caller made stay open
    tally: stopping_rule.RoundTally | None = None  # decides whether the run ends early; None = the whole plan runs


def prepare_run(request: Request, *, is_dry: bool = False, is_here: bool = True) -> PreparedRun:
    """Find the host, its tasks and the policies, and plan the episodes, without writing anything.

    In a dry run, `noop` replaces each policy that runs code, so the policy's cameras are unknown. `is_here` means that
    the workers run on this machine. If so, a policy server that this machine cannot reach is an error.

    Raises a `SafevlaError` if the user must change something: `HostError`, `PolicyError`, `PluginError`, `RunError` or,
    if rules watch the run, `RegistryError` or `SpecError`. Policies that were made before an error are closed.
    """
    require_counts(max_steps=request.max_steps)
    if not is_dry:
        plugins.require_trust(request.named_by, request.list_calls())
    host = request.make_host()
    selected = select_tasks(host, request)
    protocol = load_protocol(request.protocol)
    roster = [_add_server_arguments(request, policy, is_dry=is_dry, is_here=is_here) for policy in request.roster]
    request = replace(request, policies=roster)
    # The arguments for making each policy, by the policy's name. The user's arguments take precedence.
    options = {policy.name: {**(policy.asked or {}), **request.client_options(policy)} for policy in roster}
    with ExitStack() as resources:
        made_policies = {
            # A policy object of the caller (`made`) stays open; `resources` closes all other policies.
            policy.name: policy.made or resources.enter_context(closing(_make_policy(policy, options, is_dry=is_dry)))
            for policy in roster
        }
        # A coupler applies a policy's filter and delay; some filters read margins to the limits of specifications.
        couplers = _make_couplers(request, made_policies, host.supports, is_dry=is_dry)
        tasks, plan = _plan_episodes(request, selected, made_policies, protocol)
        _require_support(host, plan, made_policies, couplers)
        rule = _make_stopping_rule(request)  # None without `until`
        reads_margins = any(coupler.reads_margins for coupler in couplers.values())
        # Rules that judge episodes during the run, for a stopping rule, early ends or filters; None = not needed.
        watching_rules = request_rules(request) if rule or request.stop_on_violation or reads_margins else None
        episodes = _assign_rounds(plan) if rule else plan
        stretch = None  # the shard's place in the whole plan; None = no shard
        if shard := request.shard:
            bounds = planning.cut_plan(plan, shard.count)
            first, end = bounds[shard.number - 1], bounds[shard.number]  # shards are numbered from 1
            episodes, stretch = plan[first:end], PlanStretch(shard.number, shard.count, first, len(plan))
        couplings = {policy.name: policy.coupling for policy in roster if policy.name in couplers}
        worker_policies = {
            policy.name: WorkerPolicy(policy.maker, options[policy.name], couplings.get(policy.name))
            for policy in roster
        }
        worker_spec = WorkerSpec(
            request.host,
            worker_policies,
            stopping=watching_rules if request.stop_on_violation else None,
            host_arguments=request.host_arguments,
            filtering=watching_rules if reads_margins else None,
        )
        privileged = {name for name, coupler in couplers.items() if coupler.privileged}
        description = _describe_run(request, host, tasks, made_policies, protocol, worker_spec, privileged)
        full_description = {**description, "shard": stretch, "planned": len(episodes)}
        tally = stopping_rule.RoundTally(rule, watching_rules, episodes) if rule and watching_rules else None
        # From here on, the prepared run closes the policies (`pop_all`).
        return PreparedRun(host, episodes, made_policies, worker_spec, full_description, resources.pop_all(), tally)


def _assign_rounds(plan: Sequence[PlannedEpisode]) -> tuple[PlannedEpisode, ...]:
    # Return the plan with the round of each episode. A stopping rule may end the run after any round.
    # All episodes from one initial state belong to the same round. Rounds have the numbers 0, 1, 2 etc.
    # Each round has about the same share of each task's states. Otherwise, rules would judge small tasks first.
    states_of_task: dict[tuple[str, str], set[int]] = {}
    for episode in plan:
        states_of_task.setdefault((episode.task.benchmark, episode.task.task_id), set()).add(episode.state)
    round_count = min(map(len, states_of_task.values()), default=0)
    rounds = {
        (*task, state): number * round_count // len(states)
        for task, states in states_of_task.items()
        for number, state in enumerate(sorted(states))
    }
    keys = ((episode.task.benchmark, episode.task.task_id, episode.state) for episode in plan)
    return tuple(replace(episode, round=rounds[key]) for episode, key in zip(plan, keys, strict=True))


def require_counts(**counts: int | None) -> None:
    """Raise `RunError` if a count is below 1 or does not fit into 64 bits. None is accepted."""
    for name, count in counts.items():
        if count is not None and not 0 < count < 2**63:
            raise RunError(f"{name} is {count}", remedy="Give a number of 1 or more, below 2^63.")


def _add_server_arguments(request: Request, policy: RequestedPolicy, *, is_dry: bool, is_here: bool) -> RequestedPolicy:
    """Return the policy with `asked`: the arguments that its server requests, except those that the user gave. For an
    unreachable server, `asked` is {}, because the server may start later or be reachable only from other machines. But
    if the workers are on this machine and the run has no other policy, raises `ServerUnreachableError`.
    """
    user_arguments = request.client_options(policy)
    server_arguments = policy.asked or {}
    # Ask the server unless it was asked before, this is a dry run, or the caller made the policy.
    if policy.asked is None and not is_dry and policy.made is None:
        must_answer = is_here and len(request.policies) == 1
        tolerated_errors = () if must_answer else (ServerUnreachableError,)
        with suppress(*tolerated_errors):
            server_arguments = policies.ask_arguments(policy.maker, user_arguments)
    return replace(policy, asked={key: value for key, value in server_arguments.items() if key not in user_arguments})


def _make_policy(policy: RequestedPolicy, options: Mapping[str, dict[str, str]], *, is_dry: bool) -> Policy:
    # Make the policy from its arguments in `options` (policy name -> arguments).
    # A dry run uses `noop` instead of a policy that runs code.
    if is_dry and policies.runs_code(policy.maker):
        return policies.make_stand_in(policy.maker, options[policy.name])
    return policies.make_policy(policy.maker, options[policy.name])


def _make_couplers(
    request: Request, made_policies: Mapping[str, Policy], supports: HostSupport, *, is_dry: bool
) -> dict[str, coupling.Coupler]:
    # Return the object that applies the filter and the delay, for each policy that has either.
    couplers: dict[str, coupling.Coupler] = {}
    for policy in request.roster:
        wanted = policy.coupling
        if wanted == UNCOUPLED:
            continue
        if is_dry and wanted.list_calls():  # a dry run must not run the filter's code
            wanted = replace(wanted, filter=None)
        couplers[policy.name] = coupling.Coupler(wanted)
        # Raises an error if the policy or the host lacks what the filter or the delay needs.
        couplers[policy.name].require_fitting(policy.name, made_policies[policy.name], supports)
    return couplers


def _plan_episodes(
    request: Request, tasks: Sequence[Task], made_policies: Mapping[str, Policy], protocol: EvaluationProtocol
) -> tuple[Sequence[Task], tuple[PlannedEpisode, ...]]:
    # Plan the episodes. Return the tasks that have at least one episode, and the planned episodes.
    # With `--episodes recorded`: (policy, task) -> indices of the recorded episodes to replay. Otherwise None.
    recorded = _list_recorded_episodes(made_policies, tasks) if request.episodes == planning.RECORDED else None
    if recorded is not None:
        tasks = [task for task in tasks if any((name, task) in recorded for name in made_policies)]
    planned = planning.plan_episodes(
        tasks,
        request.episodes,
        [policy.name for policy in request.roster],
        protocol,
        seed=request.seed,
        max_steps=request.max_steps,
        recorded=recorded,
    )
    # A replay gets the start and the length of its recording; other episodes stay as planned.
    plan = [planning.match_recording(episode, made_policies[episode.policy], request.max_steps) for episode in planned]
    return tasks, tuple(plan)


def _require_support(
    host: Host,
    plan: Sequence[PlannedEpisode],
    made_policies: Mapping[str, Policy],
    couplers: Mapping[str, coupling.Coupler],
) -> None:
    # Raise an error if the host or a task lacks an ability that a policy, its filter or a planned start needs.
    supports = host.supports
    for name, policy in made_policies.items():
        # A privileged policy needs poses, unless `extra` names a reading that the host gives only to such policies.
        reads_poses = policy.wants.privileged and {*policy.wants.extra} <= {*supports.readings}
        if reads_poses and not supports.privileged:
            readings = " or ".join(supports.privileged_readings) or "nothing"
            remedy = f"Use a host with privileged state, or list what the policy reads in Wants.extra: {readings}."
            need = f"policy {name!r} needs privileged state (the poses of bodies)"
            raise PolicyError(f"{need}, but this host has none: {host.name}", remedy=remedy)
    for planned in plan:
        policy = made_policies[planned.policy]
        # A `SelectiveTaskPolicy` supports only some tasks.
        if isinstance(policy, SelectiveTaskPolicy):
            policy.require_task(planned.task)
        if planned.task.arms:  # names of the arms of a task with several arms
            _require_support_of_arms(planned, policy, couplers.get(planned.policy))
        check_start(planned.task, planned.start, supports)
    for policy in made_policies.values():
        is_served = isinstance(policy, RemotePolicy)  # the server may request other cameras later
        wants = replace(policy.wants, cameras=(), extra=()) if is_served else policy.wants
        check_wants(wants, supports, f"the host {host.name}")


def _require_support_of_arms(planned: PlannedEpisode, policy: Policy, coupler: coupling.Coupler | None) -> None:
    """Raise `PolicyError` for a server, privileged policy or privileged filter, because each supports only one arm."""
    # Privileged policies and filters read simulator state that a real robot cannot measure.
    has_privileged_filter = coupler is not None and coupler.privileged
    if isinstance(policy, RemotePolicy) or policy.wants.privileged or has_privileged_filter:
        subject = f"the filter of {planned.policy}" if has_privileged_filter else planned.policy
        task_arms = f"{planned.task.benchmark} {planned.task.task_id} has {', '.join(planned.task.arms)}"
        remedy = "Use `noop`, `random`, a replay, or a policy object that reads `observation.arms`."
        raise PolicyError(f"{subject} supports only one arm, but {task_arms}", remedy=remedy)


def _make_stopping_rule(request: Request) -> stopping_rule.StoppingRule | None:
    # Return the rule for `until`, or None without `until`. Raise `RunError` if the rule contradicts other options.
    if request.until is None:
        return None
    rule = stopping_rule.parse_condition(request.until, [policy.name for policy in request.roster])
    if request.shard:
        problem = "--until and --shard are both given, but a shard cannot decide for the whole plan"
        raise RunError(problem, remedy="Omit --until or --shard.")
    if request.stop_on_violation and rule.metric != rates.SAFETY.key:
        remedy = "Omit --stop-on-violation, or use a condition on Safety."
        raise RunError(f"--stop-on-violation leaves the metric of --until unknown: {rule.metric}", remedy=remedy)
    return rule


def _list_recorded_episodes(
    made_policies: Mapping[str, Policy], tasks: Sequence[Task]
) -> dict[tuple[str, Task], tuple[int, ...]]:
    # Return (policy, task) -> indices of the task's recorded episodes. Omit tasks without recorded episodes.
    # Raise an error if a policy is not a replay, or if a replay's recording has no episode of the tasks.
    recorded: dict[tuple[str, Task], tuple[int, ...]] = {}
    for name, policy in made_policies.items():
        if not isinstance(policy, ReplayPolicy):
            problem = f"`--episodes recorded` is given, but this policy replays no recording: {name}"
            raise RunError(problem, remedy="Pass --episodes N.")
        numbers_by_task = {(name, task): policy.recorded_episodes(task) for task in tasks}
        recorded |= {key: numbers for key, numbers in numbers_by_task.items() if numbers}
        if not any(numbers_by_task.values()):
            policy.match(tasks[0], EpisodeSeed(0, 0, wait_steps=0))  # raises an error that lists the recorded episodes
    return recorded


def list_start_notes(request: Request) -> list[str]:
    """Return sentences on versions that differ from the protocol or have known effects; [] for an invalid request."""
    try:
        plugins.require_trust(request.named_by, request.list_calls())
        protocol, host = load_protocol(request.protocol), request.make_host()
        planned_tasks = {f"{task.benchmark}/{task.task_id}" for task in select_tasks(host, request)}
        installed = host.versions()
    except (HostError, PluginError, RunError):
        return []
    # Pairs (package, (the protocol's version, installed version)):
    differing = protocol.version_differences(host.name, installed).items()
    # `find_differences` lists known effects of the installed versions; keep those that concern a planned task.
    documented = [known for known in find_differences(host.name, installed) if any(map(known.concerns, planned_tasks))]
    prefix = f"the protocol {protocol.name} expects"
    return [
        *(f"{prefix} {package} {established}; {version} is installed" for package, (established, version) in differing),
        *(known.describe(installed[known.package]) for known in documented),
    ]


def _describe_run(
    request: Request,
    host: Host,
    tasks: Sequence[Task],
    made_policies: Mapping[str, Policy],
    protocol: EvaluationProtocol,
    worker_spec: WorkerSpec,
    privileged: Collection[str],
) -> dict[str, object]:
    # Return the content of run.json before the first episode. `tasks` are the tasks with at least one planned episode.
    # `privileged` names the policies whose filters read privileged simulator state.
    tag_files = judgement.read_host_registry(request.host)
    policies = [_describe_policy(row, made_policies[row.name], row.name in privileged) for row in request.roster]
    return {
        "schema_version": 1,
        "host": host.name,
        "host_arguments": dict(request.host_arguments),
        **({judgement.HOST_REGISTRY: tag_files} if tag_files else {}),
        "suites": request.suites,
        "indices": request.tasks,
        "tasks": [f"{task.suite}/{task.task_id}" for task in tasks],
        "episodes": request.episodes,
        "policies": policies,
        "protocol": protocol.episode_values(),
        "seed": request.seed,
        "max_steps": request.max_steps,
        **({"found": {"file": str(request.found), "sha256": sha256_of(request.found)}} if request.found else {}),
        "archive": request.archive,
        **({"stop_on_violation": _describe_rules(worker_spec.stopping, tasks)} if worker_spec.stopping else {}),
        **({"filtered_by": _describe_rules(worker_spec.filtering, tasks)} if worker_spec.filtering else {}),
        **({"until": request.until} if request.until else {}),
        **({registration.REGISTERED: request.registration.to_document()} if request.registration else {}),
        "versions": record_versions(host),
        "code": [describe_code(host)],
        "volatile": {**request.volatile, **({"servers": request.servers} if request.servers else {})},
    }


def _describe_policy(requested: RequestedPolicy, policy: Policy, is_filter_privileged: bool) -> dict[str, object]:
    # Return the policy's row in run.json. Omit entries without a value.
    return {
        "policy": requested.name,
        **({"spec": requested.spec} if requested.spec else {}),
        "arguments": requested.arguments,
        **({"server_arguments": requested.asked} if requested.asked else {}),
        **requested.coupling.describe(),
        "privileged": policy.wants.privileged or is_filter_privileged,
        "cameras": policy.wants.cameras,
        **({"replay": policy.description} if isinstance(policy, ReplayPolicy) else {}),
        **_describe_construction(policy, requested.made is not None),
    }


def request_rules(request: Request) -> Ruleset:
    """Return the request's rules. Without them, return registered or default rules, extended by the host's tags."""
    if request.ruleset is not None:
        return request.ruleset
    registered = request.registration
    # The registration freezes the rules of a registered run.
    chosen = registered.load_rules() if registered else load_ruleset()
    return chosen.with_host_registry(judgement.read_host_registry(request.host))


def _describe_rules(ruleset: Ruleset, tasks: Sequence[Task]) -> dict[str, object]:
    # Return the description of the rules for run.json.
    # `require_tags` and `tags` raise an error if the registry or a task lacks the tags that the rules need.
    ruleset.require_tags()
    for task in tasks:
        ruleset.tags(task.benchmark, task.task_id)
    return describe_ruleset(ruleset)


def _describe_construction(policy: Policy, is_object: bool) -> dict[str, object]:
    # Return the entries of run.json that say how the policy was made. `is_object`: the caller passed a policy object.
    description: dict[str, object] = {}
    dialect = getattr(policy, "dialect", None)  # the meaning of a server's requests and replies
    if isinstance(dialect, dialects.Dialect):
        description["dialect"] = dialects.dialect_values(dialect)
    if isinstance(policy, entries.EntryPolicy):
        # The policy is a published entry of the paper. `unknown` lists the facts about the entry that the paper omits.
        entry = policy.entry
        description["entry"] = {"name": entry.name, "checkpoints": entry.checkpoints, "unknown": entry.unknown}
    if isinstance(policy, python.InProcessPolicy) and policy.orientation != python.UPRIGHT:
        description["orientation"] = policy.orientation
    if is_object:
        made_object = policy.made if isinstance(policy, python.InProcessPolicy) else policy
        description["object"] = f"{type(made_object).__module__}.{type(made_object).__qualname__}"
    return description


def estimate_run(request: Request, workers: int = 1) -> planning.RunEstimate:
    """Return the estimated cost of `roll_out`, without writing anything. Raises the errors of `prepare_run`."""
    # `workers` is the number of parallel workers.
    # Policies that the paper lists need the address of their server, but an estimate sends no request to the server.
    full_request = request if request.servers else replace(request, servers=placeholder_servers(request))
    prepared = prepare_run(full_request, is_dry=True)
    # Per policy: number of cameras to render (None = unknown), and steps between two calls of the policy.
    camera_counts: dict[str, int | None] = {}
    replan_intervals: dict[str, int] = {}
    with prepared.resources:
        for name, policy in prepared.policies.items():
            # `spec` says how to make the policy. A dry run uses `noop` instead of a policy that runs code.
            is_stand_in = policies.runs_code(prepared.cast.policies[name].spec)
            camera_counts[name] = None if is_stand_in else len(policy.wants.cameras)
            dialect = getattr(policy, "dialect", None)
            replan = dialect.replan if isinstance(dialect, dialects.Dialect) else None
            replan_intervals[name] = replan or 1
    return planning.estimate_plan(prepared.episodes, prepared.host.name, camera_counts, workers, replan_intervals)


def placeholder_servers(request: Request) -> tuple[str, ...]:
    """Return a placeholder text SUITE=nowhere for each suite. A run that is only planned needs no servers."""
    return tuple(f"{suite}=nowhere" for suite in request.suites)
