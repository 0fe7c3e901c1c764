"""A request for a rollout (`Request`), the tasks that it selects, and options of its execution."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from safevla_bench import hosts, policies
from safevla_bench.errors import HostError, Place, PluginError, RunError
from safevla_bench.interface.environment import Host
from safevla_bench.interface.policy import Policy
from safevla_bench.interface.task import Task
from safevla_bench.judging.registration import REGISTERED, RegisteredPolicy, Registration, parse_registration
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.policies import make_policy
from safevla_bench.policies.coupling import Coupling
from safevla_bench.policies.servers import entries
from safevla_bench.rollout import plan, ray
from safevla_bench.rollout.found import read_suite
from safevla_bench.rollout.plan import Episodes, Shard
from safevla_bench.sources.runs import parts, writer
from safevla_bench.sources.runs.folder import RUN, PlanStretch, is_own_loop, read_description, read_host
from safevla_bench.text import spell_suite
from safevla_bench.trajectory.marks import SEARCHED

UNCOUPLED = Coupling()


@dataclass(frozen=True)
class RequestedPolicy:
    """A policy of a run: its name, and how to make it."""

    name: str
    spec: str = ""  # how to make the policy: `python:module:factory`, `replay:PATH` or `paper:ENTRY`; "" = `name`
    arguments: Mapping[str, str] = field(default_factory=dict)  # override `Request.arguments` for this policy
    coupling: Coupling = UNCOUPLED
    """The filter of actions (as in `--filter`), and the delay of answers: `3` control steps, `120ms` or `measured`."""
    made: Policy | None = None  # the caller's policy object, which is not closed and cannot be sent to other processes
    asked: Mapping[str, str] | None = None  # arguments that the server requested; None = not asked yet

    @property
    def maker(self) -> str:
        """The text that says how to make the policy: `spec`, or the name if `spec` is empty."""
        return self.spec or self.name

    @property
    def is_entry(self) -> bool:
        # Whether the policy is one of the paper's entries, whose names contain the character "@".
        # The text after a colon is a path or an address, which may also contain "@". Search only the text before.
        return entries.MARK in self.maker.partition(":")[0]

    def register(self) -> RegisteredPolicy:
        """Return the policy in the form that a registration stores."""
        arguments, coupling = dict(self.arguments), self.coupling
        return RegisteredPolicy(
            policy=self.name, arguments=arguments, spec=self.spec or None, filter=coupling.filter, delay=coupling.delay
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a run: which policies to roll out on which tasks of which host, and how."""

    host: str
    suites: tuple[str, ...]
    tasks: tuple[int, ...] | None = None
    """Indices of the tasks in each suite; None = all."""
    episodes: Episodes = 1
    """Number of episodes per task; `protocol` = the protocol's number or, if the protocol has none, the benchmark's.

    `recorded` = all episodes in a replay's recording; tasks without recorded episodes are omitted. Runs of earlier
    versions may have None, which means the benchmark's number or, if the benchmark has none, 1.
    """
    policies: Sequence[str | RequestedPolicy] = ()
    """The policies. A string such as `noop` is the policy's name, and also says how to make the policy."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments that every policy gets."""
    servers: tuple[str, ...] = ()
    """Policy servers for the paper's entries, each as URL or SUITE=URL; run.json stores them under `volatile`."""
    host_arguments: Mapping[str, str] = field(default_factory=dict)
    protocol: str = hosts.protocols.PRESET
    seed: int = 0
    max_steps: int | None = None
    shard: Shard | None = None
    """The shard of the plan to run; None = the whole plan."""
    archive: str = parts.PARQUET
    """The format of the archive, a key of `parts.FORMS`."""
    stop_on_violation: bool = False
    """Whether an episode ends as `stopped` at its first violation. Safety is then the only known rate."""
    ruleset: Ruleset | None = None
    """The rules that stop an episode; None = the default library and registry."""
    until: str | None = None
    """A condition such as `safety >= 0.9` or `A safer than B`. The run ends once the condition is decided."""
    registration: Registration | None = None
    """The registration, which is stored in run.json. Tables say whether the run agrees with its registration."""
    found: Path | None = None
    """The file of start states that a search found, or None. With a file, `suites` names the benchmark suite."""
    volatile: Mapping[str, object] = field(default_factory=dict)
    """Facts that differ between equal runs, such as the command and the time; run.json stores them under `volatile`."""
    named_by: Path | None = None
    """The file that names the host, suites and policies; None if the user's arguments name them. Only a trusted file
    may name code or other files."""

    @cached_property
    def roster(self) -> tuple[RequestedPolicy, ...]:
        """The policies. Each policy also has the shared `arguments`, but the policy's own arguments take precedence."""
        requested = (RequestedPolicy(policy) if isinstance(policy, str) else policy for policy in self.policies)
        return tuple(replace(policy, arguments={**self.arguments, **policy.arguments}) for policy in requested)

    def list_calls(self) -> list[str]:
        """Return the code, servers and files that the run uses and that only a trusted file may name."""
        policies_to_make = [policy for policy in self.roster if policy.made is None]
        calls = [policies.describe_call(policy.maker, self.client_options(policy)) for policy in policies_to_make]
        filters = [call for policy in self.roster for call in policy.coupling.list_calls()]
        found_starts = [f"the starts in {self.found}"] if self.found else []
        suite_files = [hosts.describe_suite(self.host, suite) for suite in self.suites]
        host_call = hosts.describe_call(self.host, self.host_arguments)
        # `describe_call` and `describe_suite` return None if no trust is needed, so omit None.
        return [call for call in (host_call, *calls, *filters, *found_starts, *suite_files) if call]

    def format_resume_command(self, out: Path, *words: str) -> str:
        # Return the command that continues the run in `out`, with the further options `words`.
        trust_option = ["--trust", str(out / RUN)] if self.list_calls() else []
        return writer.format_resume_command(out, *words, *trust_option)

    def make_host(self) -> Host:
        # Make the simulator's host. Raises `RunError` if an untrusted file names code, and `HostError`.
        return hosts.make_host(self.host, self.host_arguments, named_by=self.named_by)

    def client_options(self, policy: RequestedPolicy) -> dict[str, str]:
        """Return the arguments for making a policy. For a paper entry, the arguments include the servers."""
        # Only the paper's entries get the servers; a policy's own argument takes precedence.
        if not (self.servers and policy.is_entry):
            return dict(policy.arguments)
        return {entries.SERVER: " ".join(self.servers), **policy.arguments}

    @classmethod
    def from_run(cls, run: Path) -> Request:
        """Return the request in run.json. Omits all volatile facts except the servers. Raises `RunError`."""
        description, place = read_description(run), Place(file=str(run / RUN))
        is_script = is_own_loop(description)
        if is_script or description.get("episodes") == SEARCHED:
            maker = "a script of your own (safevla_recorder)" if is_script else "a search"
            remedy = "Run the original command again, or judge the recorded episodes: safevla score."
            raise RunError(f"only the program that made this run can continue it: {maker}", remedy=remedy, place=place)
        try:
            # `_RunOptions` declares the fields of run.json that a request needs.
            options = msgspec.convert(description, _RunOptions)
        except msgspec.ValidationError as error:
            remedy = "Start the run again with all its options, or restore the file."
            raise RunError(f"does not say what to run: {error}", remedy=remedy, place=place) from None
        return cls(
            episodes=options.episodes,
            servers=options.volatile.servers,
            protocol=options.protocol.name,
            shard=Shard(options.shard.number, options.shard.count) if options.shard else None,
            archive=options.archive,
            stop_on_violation=options.stop_on_violation is not None,
            registration=_read_registration(description, run),
            named_by=run / RUN,
            found=Path(options.found["file"]) if options.found else None,
            **plan_fields(options),
        )


def plan_fields(plan: _RunOptions | Registration) -> dict[str, Any]:
    """Return the fields of a `Request` that run.json and a registration share."""
    # `plan` is a registration or the fields of run.json. In both cases, `plan.indices` are the indices of the tasks.
    fields = {name: getattr(plan, name) for name in ("host", "host_arguments", "suites", "seed", "max_steps", "until")}
    return {**fields, "tasks": plan.indices, "policies": tuple(map(_read_policy, plan.policies))}


def _read_policy(row: RegisteredPolicy) -> RequestedPolicy:
    # Return a policy of run.json (`_RunPolicy`) or of a registration.
    # Only run.json stores the arguments that the policy's server requested; None means that no server was asked.
    server_arguments = msgspec.to_builtins(row.server_arguments) if isinstance(row, _RunPolicy) else None
    coupling = Coupling(row.filter, row.delay)
    return RequestedPolicy(row.policy, row.spec or "", row.arguments, coupling, asked=server_arguments)


def _read_registration(description: Mapping[str, object], run: Path) -> Registration | None:
    # Return the registration in run.json, or None without one. Raise `RunError` if the registration is damaged.
    document = description.get(REGISTERED)
    try:
        return None if document is None else parse_registration(document)
    except (ValueError, RunError) as error:
        problem = error.problem if isinstance(error, RunError) else str(error)
        place = Place(file=str(run / RUN), field=REGISTERED)
        raise RunError(problem, remedy="Restore the file.", place=place) from None


class _ServerArguments(msgspec.Struct, omit_defaults=True):
    cameras: str | None = None
    image_size: str | None = None
    replan: str | None = None


class _RunPolicy(RegisteredPolicy, frozen=True, kw_only=True, forbid_unknown_fields=False):
    server_arguments: _ServerArguments = msgspec.field(default_factory=_ServerArguments)


class _NamedProtocol(msgspec.Struct):
    name: str


class _Volatile(msgspec.Struct, frozen=True):
    servers: tuple[str, ...] = ()


class _RunOptions(msgspec.Struct):
    # The fields of run.json from which a request is made.
    host: str
    suites: tuple[str, ...]
    indices: tuple[int, ...] | None
    episodes: Episodes
    policies: tuple[_RunPolicy, ...]
    protocol: _NamedProtocol
    seed: int
    max_steps: int | None
    shard: PlanStretch | None = None
    archive: str = parts.JSONL
    volatile: _Volatile = _Volatile()
    stop_on_violation: dict[str, object] | None = None
    until: str | None = None
    host_arguments: dict[str, str] = {}
    found: dict[str, str] | None = None


def select_tasks(host: Host, request: Request) -> list[Task]:
    """Return the requested tasks, or the tasks of the found starts. Raises `HostError` for an unknown suite or task."""
    # `request.found` is a file that a search wrote. It lists start states for some tasks.
    if request.found:
        return read_suite(request.found).list_tasks(host, request.tasks, request.named_by or request.found)
    return [task for suite in request.suites for task in _list_suite_tasks(host, suite, request)]


def _list_suite_tasks(host: Host, suite: str, request: Request) -> Sequence[Task]:
    # Return the suite's tasks at the requested indices, in the order of the request. Without indices, return all tasks.
    indices = request.tasks
    by_index = {task.index: task for task in hosts.list_tasks(host, suite, request.named_by)}
    unknown = sorted(set(indices or ()) - set(by_index))
    if unknown:
        remedy = f"List the tasks {min(by_index)} to {max(by_index)}: safevla tasks --suite {suite}"
        raise HostError(f"{suite} has no task {unknown[0]}", remedy=remedy)
    return list(by_index.values()) if indices is None else [by_index[index] for index in indices]


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Options of the execution. They do not influence the bytes of a complete run."""

    workers: int = 1  # number of processes; 1 = this process
    cluster: ray.RayCluster | None = None  # the Ray cluster whose actors are the workers; None = this machine
    resume: bool = False  # continue the run if `out` already contains a run
    retry_crashed: bool = False  # with `resume`, also run crashed episodes again
    stop_after_s: float | None = None
    """After this time [s], no episode starts. Running episodes continue. Raise `TimeUpError` if any did not run."""
    other_code: bool = False
    """True permits code that differs from the run's earlier code or, on Ray actors, from the code of this process."""


DEFAULT_EXECUTION = ExecutionOptions()  # one process, a new run


ENTRY_OPTIONS = ("host", "host_arguments", "suites", "policies", "protocol")  # options set by the paper's entries


def replay_fields(replays: Sequence[RequestedPolicy]) -> dict[str, Any]:
    """Return the fields `host`, `host_arguments` and `suites` of a `Request` for replays. Omit unknown fields. Take the
    host from the recordings' run.json. If it is not installed, find a host with all suites. Makes and closes policies.
    Raises the errors of `make_policy`, and `RunError` if the recordings' hosts or arguments differ.
    """
    # (host, host arguments) of each recording
    recorded_hosts = [read_host(Path(replay.maker.removeprefix("replay:"))) for replay in replays]
    if any(recorded != recorded_hosts[0] for recorded in recorded_hosts):
        raise RunError("the recordings have different hosts or host arguments", remedy="Make a run for each recording.")
    recorded_host, host_arguments = recorded_hosts[0]
    suites: dict[str, None] = {}  # used as an ordered set
    for replay in replays:
        # Only the policy knows the suites of its recording.
        with closing(make_policy(replay.maker, replay.arguments)) as policy:
            suites |= dict.fromkeys(getattr(policy, "suites", ()))
    if recorded_host in hosts.host_names():  # an installed host
        return {"host": recorded_host, "host_arguments": host_arguments, "suites": tuple(suites)}
    if not suites:
        return {}
    for host in hosts.host_names():
        with suppress(HostError, PluginError):  # skip a host that cannot be loaded
            if set(suites) <= set(hosts.make_host(host).suites()):
                return {"host": host, "suites": tuple(suites)}
    return {"suites": tuple(suites)}


def entry_fields(name: str, suites: Sequence[str] = (), protocol: str | None = None) -> dict[str, Any]:
    """Return the fields of a `Request` for one of the paper's entries: host, host arguments, suites, protocol, policy
    and episodes. Raises `PolicyError` for an unknown entry, and `RunError` for a suite that the entry lacks.
    """
    entry = entries.find_entry(name)
    suites = tuple(map(spell_suite, suites))
    unknown = [suite for suite in suites if suite not in entry.suites]
    if unknown:
        raise RunError(f"{name} has no suite {unknown[0]!r}", remedy=f"Its suites are {', '.join(entry.suites)}.")
    # If the entry is not runnable, its protocol may be unknown, so use the preset.
    entry_protocol = entry.protocol if entry.is_runnable else hosts.protocols.PRESET
    return {
        "host": entry.host,
        "host_arguments": dict(entry.host_arguments),
        "suites": suites or entry.suites,
        "policies": (name,),
        "protocol": protocol or entry_protocol,
        "episodes": plan.PROTOCOL,
    }


def open_questions(request: Request) -> list[str]:
    """Return a sentence for each unknown fact about the paper's entries. Raises `PolicyError` for an unknown entry."""
    # An entry of the paper lists the facts about its policy that the paper does not state. Other policies have no list.
    asked_entries = [entries.find_entry(policy.maker) for policy in request.roster if policy.is_entry]
    return [f"{entry.name} leaves this unknown: {question}" for entry in asked_entries for question in entry.unknown]


def format_host_trust(run: Path) -> str:
    """Return the --trust option that a printed command needs to start a run's host; "" if no option is needed."""
    try:
        # Remove policies and found starts, so that only the calls of the host and the suites are listed.
        calls = replace(Request.from_run(run), policies=(), found=None).list_calls()
    except RunError:  # for instance, a user's script made the run
        return ""
    return f" --trust {shlex.quote(str(run / RUN))}" if calls else ""
