"""Executes and records rollouts in a run folder; also registers rollouts before they run."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import chain, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec

from safevla_bench.errors import HostError, PolicyError, RunError, SafevlaError, TimeUpError
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.jobs.evaluation.preparation import PreparedRun, placeholder_servers, prepare_run, require_counts
from safevla_bench.jobs.evaluation.request import DEFAULT_EXECUTION, ExecutionOptions, Request, plan_fields
from safevla_bench.judging.registration import (
    SERVER,
    RegisteredTask,
    Registration,
    describe_rules,
    describe_specs,
    format_start,
)
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.policies.servers import KINDS, ChunkedPolicy, ask_repeatedly
from safevla_bench.rollout import plan, ray
from safevla_bench.rollout.episode import NOT_RUN, SAME_CRASHES, CrashSeries, EpisodeOutcome, Observer, run_serially
from safevla_bench.rollout.scheduler import ProcessPool, run_pool
from safevla_bench.sources.runs.folder import RUN, EpisodeRow, Repeats, read_description, recorded_code
from safevla_bench.sources.runs.parts import RawEpisode, episode_rows
from safevla_bench.sources.runs.writer import RunFolderWriter
from safevla_bench.text import get_logger, redact_secrets
from safevla_recorder.identity import is_other_code

_log = get_logger(__name__)


def roll_out(
    request: Request, out: Path, observer: Observer | None = None, running: ExecutionOptions = DEFAULT_EXECUTION
) -> list[EpisodeRow]:
    """Run every planned episode, record it in a run folder, and return the episodes' rows in plan order.

    Finished episodes are kept if this process ends early; `ExecutionOptions(resume=True)` continues the run.

    Raises the errors of `prepare_run`; `RunError` if the folder exists or holds a run with another request; `FileError`
    if writing fails; `PolicyError` if a policy's server refuses, or fails in the same way in consecutive episodes;
    `HostError` if the simulator is unusable or repeats the same crash; the errors of `run_pool` or `run_actors`;
    and `KeyboardInterrupt`. After an error, no new folder remains if nothing was recorded.
    """
    require_counts(workers=running.workers)
    out = out.absolute()  # a policy may change the working directory
    if has_nothing_to_run(request, out, running):
        with RunFolderWriter(out, read_description(out), resume=True):  # removes files that a killed process left
            return episode_rows(out)
    if running.resume and (out / RUN).exists():
        # Keep the arguments that the servers requested when the run began; {} means that none were requested.
        server_arguments = {policy.name: policy.asked for policy in Request.from_run(out).roster}
        policies = [replace(policy, asked=server_arguments.get(policy.name, {})) for policy in request.roster]
        request = replace(request, policies=policies)
    prepared = prepare_run(request, is_here=running.cluster is None)
    if running.cluster or running.workers > 1:  # workers make their policies themselves
        prepared.resources.close()  # close the policies that were made only for planning
        prepared = replace(prepared, policies={})
    open_folder = partial(RunFolderWriter, resume=running.resume, other_code=running.other_code)
    continuation = request.format_resume_command(out)
    with prepared.resources, open_folder(out, prepared.description, continuation=continuation) as writer:
        remedy = f"Correct the cause, then continue: {request.format_resume_command(out, '--retry-crashed')}"
        _run_pending(writer, prepared, running, observer, remedy)
    return episode_rows(out)


def has_nothing_to_run(request: Request, out: Path, running: ExecutionOptions) -> bool:
    """Return whether all episodes have run: `resume` is set, and `out` contains a complete run of the same request."""
    if not running.resume or not (out / RUN).exists() or read_description(out).get("complete") is not True:
        return False
    # With these options, rules influence the episodes. The writer compares rules; the comparison below ignores rules.
    if request.stop_on_violation or request.until or any(policy.coupling.filter for policy in request.roster):
        return False
    if running.retry_crashed and any(row.outcome == "crashed" for row in episode_rows(out)):
        return False
    # Ignore fields that do not influence the episodes.
    clear_facts = partial(replace, named_by=None, ruleset=None, volatile={}, servers=())
    return clear_facts(Request.from_run(out)) == clear_facts(request)


def _run_pending(
    writer: RunFolderWriter, prepared: PreparedRun, running: ExecutionOptions, observer: Observer | None, remedy: str
) -> None:
    # Run the episodes that the folder lacks, write them, and mark the run as complete. Errors show `remedy`.
    # `prepared.tally` counts the episodes by round and decides whether a stopping rule ends the run; None = no rule.
    # After a decision, the episodes of later rounds are dropped.
    prepared = replace(prepared, cast=replace(prepared.cast, skips_crashing=True, workers=running.workers))
    index_by_id = {planned.episode_id: index for index, planned in enumerate(prepared.episodes)}
    if writer.complete:
        if not running.retry_crashed or all(row.outcome != "crashed" for row in episode_rows(writer.folder)):
            return
        writer.reopen(index_by_id)  # removes the crashed episodes
    # Crashed episodes have no record. Such episodes count as done unless `retry_crashed` is set.
    done = {index: row for index, row in writer.episodes.items() if row.has_record or not running.retry_crashed}
    tally, pending = prepared.tally, list[plan.PlannedEpisode]()
    for index, planned in enumerate(prepared.episodes):
        if index not in done:
            pending.append(planned)
        elif tally:
            tally.add_episode(planned, writer.read_record(index) if done[index].has_record else None)
    if tally and tally.decision.is_decided:
        pending.clear()
    pending.sort(key=attrgetter("round"))  # a stable sort: within a round, keep the plan's order
    not_run: dict[tuple[str, str, str], EpisodeOutcome] = {}  # (policy, suite, task) -> last outcome
    ended_count = 0
    try:
        with closing(run_episodes(prepared, pending, running, observer)) as finished_episodes:
            # Each function below passes all episodes through, and may warn or raise an error after an episode.
            episodes = _warn_of_other_code(finished_episodes, recorded_code(prepared.description))
            episodes = _stop_at_equal_failures(episodes, len(pending), remedy)
            episodes = _warn_of_equal_actions(episodes)
            for episode in _warn_of_failed_beginning(episodes, prepared, {row.policy for row in done.values()}):
                ended_count += 1
                # After repeated crashes of a task, its remaining episodes are not run; report them at the end.
                if episode.outcome == NOT_RUN:
                    not_run[episode.planned.policy, episode.planned.task.suite, episode.planned.task.task_id] = episode
                    continue
                writer.add_episode(index_by_id[episode.planned.episode_id], raw_episode(episode), episode.record)
                if tally:
                    tally.add_episode(episode.planned, episode.batch)
                    if tally.decision.is_decided:
                        break
    except SafevlaError:  # delete the new folder if it contains no episodes
        if writer.fresh and not writer.episodes:
            writer.discard()
        raise
    if not_run:
        lines = [f"remaining episodes of {'/'.join(key)} were not run: {end.reason}" for key, end in not_run.items()]
        raise HostError(redact_secrets("\n".join(lines)), remedy=remedy)
    # Episodes can be missing for two reasons: the time was up, or the stopping rule had decided.
    if ended_count < len(pending) and running.stop_after_s and not (tally and tally.decision.is_decided):
        raise TimeUpError(f"the time of --stop-after is up; {len(pending) - ended_count} episodes are left")
    prepared.resources.close()  # disconnect, because some servers accept only one connection
    # policy -> how many repeated requests its server answered differently. On a cluster, servers are not asked.
    repeats = {} if running.cluster else _ask_servers_repeatedly(prepared)
    if tally is None:
        writer.finish(repeats=repeats)
        return
    if tally.decision.is_decided:  # drop rounds after the decision
        writer.keep_episodes([index for index, planned in enumerate(prepared.episodes) if tally.is_counted(planned)])
    writer.finish(msgspec.to_builtins(tally.decision), repeats)


def _warn_of_other_code(
    finished_episodes: Iterable[EpisodeOutcome], own_codes: Sequence[str]
) -> Iterator[EpisodeOutcome]:
    """Yield all episodes. Warn once about each version of the code that differs from this command's code."""
    warned: set[str] = set()
    for episode in finished_episodes:
        yield episode
        # Episodes whose worker died have no code version.
        if episode.code and episode.code not in warned and any(is_other_code(episode.code, code) for code in own_codes):
            warned.add(episode.code)
            text = "%s ran with code that differs from this command's:\n  %s\n  %s"
            _log.warning(text, episode.planned.episode_id, episode.code, " and ".join(own_codes))


def _ask_servers_repeatedly(prepared: PreparedRun) -> dict[str, Repeats]:
    """Return policy -> how many repeated requests got different answers. Servers that do not answer are omitted."""
    # In the reversed order, each policy's first task comes last and overwrites the policy's other tasks.
    first_tasks = {episode.policy: episode.task for episode in reversed(prepared.episodes)}
    repeats: dict[str, Repeats] = {}
    for name, worker_policy in prepared.cast.policies.items():
        # `KINDS` are the kinds of policies that query a server.
        if worker_policy.spec.partition(":")[0] in KINDS and name in first_tasks:
            with suppress(PolicyError), closing(cast("ChunkedPolicy", worker_policy.make())) as policy:
                repeats[name] = ask_repeatedly(policy, first_tasks[name])
    return repeats


_TRACEBACK = re.compile(r"(  \+ Exception Group )?Traceback ")


def _stop_at_equal_failures(
    finished_episodes: Iterable[EpisodeOutcome], planned_count: int, remedy: str
) -> Iterator[EpisodeOutcome]:
    """Yield all episodes. After `SAME_CRASHES` equal failures in a row, raise an error in two cases, unless all
    `planned_count` episodes have ended. Case 1, one policy's server failed: `PolicyError`. Case 2, no episode has taken
    a step or `SAME_CRASHES` different tasks failed: `PolicyError` if the policy caused the failures, else `HostError`.
    """
    series = CrashSeries()
    for ended_count, episode in enumerate(finished_episodes, start=1):
        yield episode
        series.add_outcome(episode)
        repeats = len(series.places)  # `places` lists the (policy, suite, task) of each failure in the current series
        if repeats < SAME_CRASHES or ended_count >= planned_count:
            continue
        policy = episode.planned.policy
        # A crash's reason begins with a traceback, except if a policy server failed.
        is_server_failure = episode.outcome == "crashed" and not _TRACEBACK.match(episode.reason or "")
        if is_server_failure and all(task_key[0] == policy for task_key in series.places):
            problem = f"{policy}: {repeats} episodes in a row failed in the same way: {series.failure}"
            raise PolicyError(redact_secrets(problem), remedy=remedy)
        if not series.has_begun or len(set(series.places)) >= SAME_CRASHES:
            when = "" if series.has_begun else " before any episode had begun"
            problem = f"{repeats} episodes in a row crashed in the same way{when}: {series.failure}"
            if episode.is_policy_failure:
                raise PolicyError(redact_secrets(problem), remedy=remedy)
            raise HostError(redact_secrets(problem), remedy=f"{remedy}\n  `safevla doctor` checks the simulator.")


# Policies without randomness, for which equal episodes from one initial state are normal.
_DETERMINISTIC = ("noop", "scripted", "replay")


def _warn_of_equal_actions(finished_episodes: Iterable[EpisodeOutcome]) -> Iterator[EpisodeOutcome]:
    """Yield all episodes. Warn once per policy that takes the same actions from one initial state with two seeds."""
    first_by_start: dict[tuple[object, ...], tuple[int, bytes]] = {}  # start -> (policy seed, digest of actions)
    warned: set[str] = set()
    for episode in finished_episodes:
        yield episode
        planned, policy = episode.planned, episode.planned.policy
        if episode.record is None or policy in warned or policy.partition(":")[0] in _DETERMINISTIC:
            continue
        start = (policy, planned.task.suite, planned.task.task_id, planned.state, planned.start.env_seed)
        assert episode.batch is not None
        # Keep digests instead of actions, because actions need more memory.
        digest = sha256(episode.batch.channel("action").values.tobytes()).digest()
        first_seed, first_digest = first_by_start.setdefault(start, (planned.policy_seed, digest))
        if first_seed != planned.policy_seed and digest == first_digest:
            warned.add(policy)
            text = "%s: %s has the same actions as an episode from the same start with another policy seed. "
            text += "If the policy has randomness, it ignores its seed, so its episodes are not independent."
            _log.warning(text, policy, planned.episode_id)


_FIRST_EPISODES = 10  # a working policy is expected to succeed at least once in this number of first episodes


def _warn_of_failed_beginning(
    finished_episodes: Iterable[EpisodeOutcome], prepared: PreparedRun, begun_policies: Collection[str]
) -> Iterator[EpisodeOutcome]:
    """Yield all episodes. Warn if a policy with cameras fails in all its first episodes. Skip `begun_policies`."""
    policy_rows = cast("Sequence[Mapping[str, Any]]", prepared.description["policies"])
    # policy -> number of its failed episodes so far, for policies that have not succeeded yet:
    failures = {row["policy"]: 0 for row in policy_rows if row["cameras"] and row["policy"] not in begun_policies}
    for episode in finished_episodes:
        yield episode
        policy = episode.planned.policy
        if episode.outcome == "success":
            failures.pop(policy, None)  # this policy works, so never warn
        # Other outcomes, such as a crash, do not show how well the policy works.
        elif policy in failures and episode.outcome in ("timeout", "invalid_action"):
            failures[policy] += 1
            if failures[policy] == _FIRST_EPISODES:
                spec = prepared.cast.policies[policy].spec
                server = spec if spec.partition(":")[0] in KINDS else "KIND:URL"
                text = "%s: none of the first %d episodes succeeded. Is a picture turned or mirrored? "
                text += "`safevla doctor --server %s` compares the orientations (docs/howto/symptoms.md)."
                _log.warning(text, policy, _FIRST_EPISODES, server)


def run_episodes(
    prepared: PreparedRun,
    pending: Sequence[plan.PlannedEpisode],
    running: ExecutionOptions,
    observer: Observer | None,
    later: Iterable[Sequence[plan.PlannedEpisode]] = (),
) -> Generator[EpisodeOutcome]:
    """Run the pending episodes, then each batch in `later` (ignored by Ray). Yield outcomes as episodes end."""
    # `later` yields batches that depend on the outcomes of earlier batches, as in a search.
    if not pending and not later:
        return
    if observer and pending:
        observer.started(pending)
    # Called after each control step with the planned episode and its number of steps so far
    on_step = observer.stepped if observer else None
    deadline_s = math.inf if running.stop_after_s is None else time.monotonic() + running.stop_after_s
    if running.cluster:
        run_actors = partial(ray.run_actors, ends_s=deadline_s, other_code=running.other_code)
        engine = run_actors(prepared.cast, pending, running.workers, running.cluster, on_step)
    elif running.workers > 1:
        engine = run_pool(ProcessPool(prepared.cast), pending, running.workers, on_step, later, deadline_s)
    else:
        # `cast` says how to make the host and the policies, and which rules watch the episodes.
        runner = prepared.cast.make_runner(prepared.host, prepared.policies)
        # Start no episode after the deadline.
        planned = takewhile(lambda _: time.monotonic() < deadline_s, chain(pending, chain.from_iterable(later)))
        engine = run_serially(runner, planned, on_step)
    with closing(engine):
        for outcome in engine:
            if observer:
                observer.finished(outcome)
            yield outcome


def raw_episode(end: EpisodeOutcome) -> RawEpisode:
    """Return an episode's row, with latency and the server's greeting. Redact secrets in the reason of a failure."""
    planned = end.planned
    # An episode that begins at a recorded simulator state has no index of an initial state.
    is_from_state = planned.start.recorded is not None and planned.start.recorded.state is not None
    names_in_plan = ("episode_id", "policy", "episode", "seed", "policy_seed", "horizon")
    names_in_outcome = ("outcome", "steps", "latency", "greeting", "code", "ran_on")
    return RawEpisode(
        benchmark=planned.task.suite,
        task_id=planned.task.task_id,
        init_state_index=None if is_from_state else planned.state,
        env_seed=planned.start.env_seed,
        reason=None if end.reason is None else redact_secrets(end.reason),
        **{name: getattr(planned, name) for name in names_in_plan},
        **{name: getattr(end, name) for name in names_in_outcome},
    )


# Registration


def freeze_request(request: Request, ruleset: Ruleset) -> Registration:
    """Return the registration of a rollout and its judgement, without running or writing anything. Raises the errors of
    `prepare_run`, and `RunError` for a shard, replay, found starts, a policy object, or rules not from `load_ruleset`.
    """
    _require_registrable(request)
    # Planning sends no request to a server, so placeholder addresses are enough for the paper's entries.
    servers = request.servers or placeholder_servers(request)
    prepared = prepare_run(replace(request, servers=servers, ruleset=ruleset, registration=None), is_dry=True)
    prepared.resources.close()
    return Registration(
        host=prepared.host.name,
        host_arguments=dict(request.host_arguments),
        suites=tuple(request.suites),
        indices=request.tasks,
        episodes_per_task=request.episodes,
        policies=tuple(policy.register() for policy in request.roster),
        protocol=load_protocol(request.protocol).episode_values(),
        seed=request.seed,
        max_steps=request.max_steps,
        stop_on_violation=request.stop_on_violation,
        until=request.until,
        tasks=_register_tasks(prepared.episodes, request.roster[0].name),
        n=len(prepared.episodes),
        specs=describe_specs(ruleset),
        rules=describe_rules(ruleset),
    )


def _require_registrable(request: Request) -> None:
    # Raise `RunError` if a registration cannot describe the request's whole plan in advance.
    obstacles = {
        "a shard": request.shard is not None,
        "a replay": any(policy.maker.partition(":")[0] == "replay" for policy in request.roster),
        "found starts": request.found is not None,
        "a policy object, because a name cannot recreate it": any(policy.made for policy in request.roster),
    }
    for obstacle, is_present in obstacles.items():
        if is_present:
            problem = f"a registration covers a whole plan before the run; this is impossible for {obstacle}"
            raise RunError(problem, remedy="Omit this part; replace a policy object by a name: python:module:name.")


def _register_tasks(episodes: Sequence[plan.PlannedEpisode], policy: str) -> tuple[RegisteredTask, ...]:
    # Return a row for each task and horizon. All policies have the same initial states, so list those of `policy`.
    starts_by_task: dict[tuple[str, int], list[str]] = {}
    for planned in episodes:
        if planned.policy == policy:
            task = f"{planned.task.benchmark}/{planned.task.task_id}"
            # `SERVER` means that the policy's server chooses the seed.
            seed = SERVER if planned.seed_from_server else planned.start.env_seed
            start = format_start(planned.start.init_state_index, seed)
            starts_by_task.setdefault((task, planned.horizon), []).append(start)
    return tuple(
        RegisteredTask(task=task, horizon=horizon, episodes=" ".join(task_starts))
        for (task, horizon), task_starts in starts_by_task.items()
    )


def describe_deviation(registration: Registration, request: Request, ruleset: Ruleset) -> str:
    """Return a sentence if the request (except its shard) or the rules differ from the registration; otherwise ""."""
    # A registration contains a plan and rules that were fixed before the run. Equal digests mean equal content.
    digest = freeze_request(replace(request, shard=None), ruleset).digest
    if digest == registration.digest:
        return ""
    digests = f"this plan has the digest {digest}, but the registered plan has the digest {registration.digest}"
    return f"{digests}; --freeze writes this plan"


def registered_request(registration: Registration, file: Path = Path("registration")) -> Request:
    """Return the request for a registered run, without servers. `file` is the untrusted file of the registration."""
    return Request(
        named_by=file,
        episodes=registration.episodes_per_task,
        protocol=str(registration.protocol.get("name")),
        stop_on_violation=registration.stop_on_violation,
        registration=registration,
        **plan_fields(registration),
    )
