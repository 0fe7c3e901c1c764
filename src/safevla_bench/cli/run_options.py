"""The options for running a policy, from the command line or a --config file, and the request made from them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from safevla_bench.cli import completion, options, rules
from safevla_bench.cli.options import flag, is_given, option, parsed, repeatable
from safevla_bench.errors import Place, RunError, describe_cause
from safevla_bench.files import decode_input, parse_toml
from safevla_bench.hosts.protocols import PRESET, default_protocol
from safevla_bench.jobs.evaluation import request as requests
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request, RequestedPolicy
from safevla_bench.jobs.evaluation.rollouts import registered_request
from safevla_bench.judging.registration import read_registration
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.plugins import require_trust
from safevla_bench.policies import coupling, servers, split_name
from safevla_bench.rollout.found import read_suite
from safevla_bench.rollout.plan import PROTOCOL, RECORDED, Shard
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.specs.file_formats import BUILT_IN
from safevla_bench.text import redact_secrets, spell_suite, suggest_names


def _parse_policy(text: str) -> RequestedPolicy:
    # Return the policy that [NAME=]POLICY describes. Without NAME, the text POLICY (`spec`) is also its name.
    name, spec = split_name(text)
    return RequestedPolicy(spec) if name in (None, spec) else RequestedPolicy(str(name), spec)


def _parse_indices(text: str) -> tuple[int, ...] | None:
    """Return the task indices in a text such as `0,3` or `0-4,7`, in this order, without duplicates; None for `all`."""
    # Raise `RunError` for any other text.
    if text == "all":
        return None
    indices: list[int] = []
    for part in text.split(","):
        # The text is an index or a range; each index may be written as `task_3`, as in ids of tasks.
        match = re.fullmatch(r"(?:task_)?(\d{1,5})(?:-(?:task_)?(\d{1,5}))?", part.strip())
        if match:
            first, last = int(match[1]), int(match[2] or match[1])  # a single index is a range of one
        if not match or last < first:
            raise RunError(f"--task {text!r} names no tasks", remedy="Write indices such as `0,3` or `0-4`, or `all`.")
        indices += range(first, last + 1)
    return tuple(dict.fromkeys(indices))


def _parse_duration(text: str) -> float:
    # Return the seconds of a time such as 3h50m. Raise `RunError` for any other text, and for a time of zero.
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    hours, minutes, seconds = map(int, match.groups(default="0")) if match else (0, 0, 0)
    duration_s = 3600 * hours + 60 * minutes + seconds
    # Zero means that the text is not a time, is empty, or is a time of zero such as `0m`.
    if not duration_s:
        raise RunError(f"--stop-after {text!r} is not a time", remedy="Write hours, minutes or seconds, as in `3h50m`.")
    return float(duration_s)


def _parse_pairs(texts: Sequence[str]) -> dict[str, str]:
    # Return key -> value from the texts KEY=VALUE of --host-arg. If a key is repeated, the last value counts.
    # Raise `RunError` for a text without a key or without `=`.
    for text in texts:
        if text.startswith("=") or "=" not in text:
            raise RunError(f"--host-arg {text!r} is not an argument", remedy="Write KEY=VALUE.")
    return dict(text.split("=", 1) for text in texts)


_KINDS = ", ".join(kind.example for kind in servers.KINDS.values())
PLAN_OPTIONS = {
    "host": option("The simulator, such as `libero`.", "NAME", shell_complete=completion.HOSTS),
    "host_arguments": repeatable("An argument for the host, such as `split=pretrain`.", "KEY=VALUE",
                                 spelling="--host-arg", callback=parsed(_parse_pairs)),
    "suites": repeatable("The suite, such as `libero-spatial`; a path of `.bddl` files; or `found:FILE`.", "NAME",
                         spelling="--suite", shell_complete=completion.SUITES),
    "tasks": option("Task indices.", "0,3|0-4|all", spelling="--task", default="all", callback=parsed(_parse_indices)),
    "episodes": option("Number of episodes per task; default: as in the protocol or the benchmark.", "N",
                       type=options.POSITIVE),
    "policies": repeatable("The policy, with an optional NAME for outputs: noop, random, scripted:careful, "
                           f"scripted:hasty, replay:PATH, python:module:factory, {_KINDS}, or the policy of a plug-in.",
                           "[NAME=]POLICY", spelling="--policy",
                           callback=parsed(lambda texts: tuple(map(_parse_policy, texts))),
                           shell_complete=completion.POLICIES),
    "entry": option("An entry of the paper, such as `pi0.5@libero`: its host, suites and tasks.", "[NAME=]ENTRY",
                    shell_complete=completion.ENTRIES),
    "servers": repeatable("The entry's policy server, such as `ws://HOST:8000`.", "[SUITE=]URL", spelling="--server"),
    "protocol": option(f"Rules by which episodes start and end; default: {PRESET}. `safevla protocols` lists all.",
                       "NAME", shell_complete=completion.PROTOCOLS),
    "arguments": repeatable("An argument for all policies, or only for POLICY.", "[POLICY:]KEY=VALUE",
                            spelling="--policy-arg"),
    "filters": repeatable(f"Filter of a policy's actions: {', '.join(coupling.FILTERS)}, or python:module:Class; each "
                          "may be followed by arguments as :KEY=VALUE.", "[POLICY=]FILTER", spelling="--filter",
                          shell_complete=completion.FILTERS),
    "delays": repeatable("Delay of a policy's answers: a number of control steps, a time (120ms), or measured.",
                         "[POLICY=]DELAY", spelling="--delay"),
    "seed": option("Seed of the policies' randomness.", default=0, show_default=True),
    "max_steps": option("Horizon in control steps; default: as in the protocol for the suite.", type=options.POSITIVE),
    "shard": option("Run shard I (from 1 to N) of the plan; `safevla merge` joins the shards.", "I/N",
                    callback=parsed(lambda text: Shard.parse(text) if text else None)),
    "stop_on_violation": flag("End each episode at its first violation; Safety is then the only known rate."),
    "until": option('Stop once a condition is decided at 95 %: "safety >= 0.9" or "A safer than B".', "CONDITION"),
    "registered": option("Run the plan that --dry-run --freeze FILE registered.", "FILE", type=options.FILE),
}  # fmt: skip
EXECUTION_OPTIONS = {
    "out": options.out_option("The run folder to make, or with --resume to continue.", "DIR"),
    "workers": option("Processes that run episodes in parallel.", "N", default=1, type=options.WORKERS),
    "engine": options.ENGINE,
    "actor": repeatable("For workers on Ray: cpus=1 and gpus=0, the resources of each worker; exclude=NODE, a node to "
                        "avoid; env=NAME:VALUE, an environment variable; module=DIR, a package to copy.", "NAME=VALUE"),
    "record_only": flag("Record the episodes without judging them; `safevla score` can judge them later."),
    "resume": flag("Continue the run in DIR, or begin one. Options that are not given stay as in the existing run."),
    "retry_crashed": flag("With --resume: run crashed episodes again."),
    "stop_after": option("Start no episode after this time, finish running episodes, and exit with code 5.", "3h50m"),
    "other_code": flag("Allow code that changed since the run began or that differs on Ray nodes; the run is marked."),
    "dry_run": flag("Print the plan and an estimate of time and disk, without running or writing anything."),
}  # fmt: skip


class _ActorShares(msgspec.Struct, frozen=True):
    cpus: float = 1.0
    gpus: float = 0.0


def _parse_actor(texts: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a `RayCluster` from the texts of --actor. exclude=, env= and module= may be repeated."""
    repeated: dict[str, list[str]] = {"exclude": [], "env": [], "module": []}
    share_texts = []
    for text in texts:
        name, _, value = text.partition("=")
        if name in repeated and value:
            repeated[name].append(value)
        else:  # a number, such as cpus=1, or an invalid text
            share_texts.append(text)
    for variable in repeated["env"]:  # texts NAME:VALUE
        if ":" not in variable:
            raise RunError(f"--actor env={variable} is not a variable", remedy="Write `--actor env=NAME:VALUE`.")
    variables = dict(variable.split(":", 1) for variable in repeated["env"])
    shares = msgspec.structs.asdict(options.parse_settings("--actor", share_texts, _ActorShares))
    return {**shares, "exclude": tuple(repeated["exclude"]), "env": variables, "modules": tuple(repeated["module"])}


@dataclass(frozen=True)
class RunCommand:
    """A parsed `safevla eval` command line. `resume_command` is the shell command that continues the run."""

    request: Request
    ruleset: Ruleset
    out: Path  # absolute, because a policy may change the working directory
    shown: Path  # the run folder as the user typed it
    execution: ExecutionOptions
    record_only: bool
    dry_run: bool
    resume_command: str


def _parse_command(context: click.Context, values: Mapping[str, Any]) -> RunCommand:
    # Return the run that the option values describe: a resumed run, a registered run, or a new run.
    # `running` contains the options that affect how the run is executed, `plan` the options that affect its episodes.
    running, plan = {name: values[name] for name in EXECUTION_OPTIONS}, {name: values[name] for name in PLAN_OPTIONS}
    if running["retry_crashed"] and not running["resume"]:
        raise RunError("--retry-crashed needs an existing run", remedy="Also pass --resume DIR.")
    if running["out"] is None and not running["dry_run"]:
        _raise_missing(context, "out")
    out = running["out"] or Path()  # with --dry-run, nothing is written
    # --entry and --suite found:FILE set several options at once.
    plan |= _expand_entry(plan)
    plan |= _expand_found(plan)
    naming_file = plan["registered"]  # the file from which the request is read; None = the command line
    if running["resume"] and (out / RUN).exists():
        naming_file, request = out / RUN, _change_request(context, plan, Request.from_run(out))
    elif naming_file:
        request = _change_request(context, plan, registered_request(read_registration(naming_file), naming_file))
        request = replace(request, volatile=_volatile_facts())
    else:
        request = _new_request(context, plan, running)
        # `maker` is the text after NAME= in --policy, here `replay:PATH`.
        makers = [policy.maker for policy in request.roster if policy.maker.startswith("replay:")]
        recording = Path(makers[0].removeprefix("replay:")) if makers else None
        # A file of found starts, or a recording, contains the suite and the host arguments to use.
        naming_file = plan.get("found") or recording
    # If a file names code, the code is used only if the file is trusted (--trust).
    request = replace(request, named_by=_find_naming_file(context, plan, naming_file, request))
    cluster = options.request_cluster(running["engine"], **_parse_actor(running["actor"]))
    stop_after_s = _parse_duration(running["stop_after"]) if running["stop_after"] else None
    execution_fields = {name: running[name] for name in ("workers", "resume", "retry_crashed", "other_code")}
    execution = ExecutionOptions(cluster=cluster, stop_after_s=stop_after_s, **execution_fields)
    registration = request.registration if is_given(context, "registered") else None
    ruleset = rules.read_new_rules(values, request.host, [out.absolute()], registration)
    resume_command = _format_resume_command(context, out, request)
    record_only = running["record_only"]
    return RunCommand(request, ruleset, out.absolute(), out, execution, record_only, running["dry_run"], resume_command)


# In a --config file, each option is a key. If the option can be repeated, the key's value is a list.
# The judging options are in the file's table `[judge]`. The command line takes precedence over the file.


JUDGE = "judge"
_NO_KEYS = ("config", "help", "trust")
CONFIG = "safevla_bench.config"  # key in the `meta` of click's context, for the path of the --config file


def option_key(option: click.Parameter) -> str:
    """Return an option's longest spelling without its dashes: `max-steps` for `--max-steps`."""
    # This spelling is the option's key in a --config file.
    return max(option.opts, key=len).lstrip("-")


def config_keys(command: click.Command) -> tuple[dict[str, click.Option], dict[str, click.Option]]:
    """Return two mappings of keys in a --config file to options: keys at the top level, and keys in `[judge]`."""
    all_options = [option for option in command.params if isinstance(option, click.Option) and option.expose_value]
    by_key = {option_key(option): option for option in all_options}
    # The keys of `by_key` are spellings such as `max-steps`; `option.name` is a parameter's name such as `max_steps`.
    judging = {name: option for name, option in by_key.items() if option.name in rules.JUDGE_OPTIONS}
    return {name: option for name, option in by_key.items() if name not in (*judging, *_NO_KEYS)}, judging


def read_config(path: Path, context: click.Context) -> dict[str, object]:
    """Return parameter name -> value from a --config file, including its table `[judge]`. Paths in it are relative to
    the file's folder. Raises `RunError` if the file cannot be read, or for an unknown key or a wrong value.
    """
    try:
        # `utf-8-sig` skips a byte order mark, which some editors write.
        document = decode_input(path, lambda content: parse_toml(content.decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        remedy = 'Name a TOML file with texts in quotes, such as `host = "libero"`.'
        raise RunError(f"cannot be read: {describe_cause(error)}", remedy=remedy, place=Place(str(path))) from None
    running, judging = config_keys(context.command)
    # In `known` and `document`, the keys of the table `[judge]` begin with "judge.".
    known = {**running, **{f"{JUDGE}.{key}": option for key, option in judging.items()}}
    judge = document.pop(JUDGE, {})
    if not isinstance(judge, dict):
        judge = {"": judge}  # the key "judge." is refused below
    document |= {f"{JUDGE}.{key}": value for key, value in judge.items()}
    values: dict[str, object] = {}
    for key, value in document.items():
        if key not in known:
            remedy = f"{suggest_names(key, known, 'keys')}."
            raise RunError(f"unknown key {key!r}", remedy=remedy, place=Place(str(path), field=key))
        # The value of a repeatable option may be a list or a single value.
        option = known[key]
        items = value if option.multiple and isinstance(value, list) else [value]
        resolved = [_resolve_value(item, option, Place(str(path), field=key), context) for item in items]
        values[str(option.name)] = resolved if option.multiple else resolved[0]
    return values


def _resolve_value(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    # Return a value of the --config file as text, or as bool for a flag. Raise `RunError` for an invalid value.
    # A path in the file is relative to the file's folder, so this folder is put before the path.
    text = str(value)
    # The option --library takes a file or the name of a built-in library.
    is_path = isinstance(option.type, click.Path) and text != rules.AS_JUDGED
    if is_path or (option.name == "library" and text not in BUILT_IN):
        text = str(Path(str(place.file)).parent / text)
    try:
        option.type.convert(text, option, context)  # only to check the value; click converts it again later
    except click.BadParameter as error:
        raise RunError(error.message, remedy="The command's --help lists its options.", place=place) from None
    return value if isinstance(value, bool) else text


def _load_config(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    # Callback of --config: make the file's values the defaults of the other options, which click has not read yet.
    # Other functions find the file's path in `meta`.
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, context)}
        context.meta[CONFIG] = path


CONFIG_OPTION = option("A TOML file of options, such as `max-steps = 50`; `[judge]` holds judging options.", "FILE",
                       type=options.FILE, is_eager=True, expose_value=False, callback=_load_config)  # fmt: skip
"""Declares `--config FILE`, which sets the defaults of the other options. An invalid file raises `RunError`."""


# The request


RUN_OPTIONS = options.group(
    {"config": CONFIG_OPTION, **PLAN_OPTIONS, **EXECUTION_OPTIONS, **rules.JUDGE_OPTIONS}, _parse_command
)


def make_request(context: click.Context, what: Mapping[str, Any]) -> Request:
    """Return the run request that the values of a command's plan options describe."""
    # `what` maps the names of the plan options to their values. A command without --episodes gets one episode per task.
    # `resume` only affects an error message.
    return _new_request(context, {"episodes": 1, "protocol": None, **what}, {"resume": False})


def _find_naming_file(
    context: click.Context, plan: Mapping[str, Any], request_file: Path | None, request: Request
) -> Path | None:
    # Return the file that names code, servers or other files of the run, and so needs trust; None if no file does.
    # Code, servers and files that the command line names need no trust.
    # `request_file` is the file from which the request was read; None = only options define the request.
    calls = set(request.list_calls())  # everything that needs trust, as texts
    if calls <= _list_calls(context, plan, [ParameterSource.COMMANDLINE]):
        return None
    # If the command line and the --config file together name every call, the --config file names at least one call.
    option_calls = _list_calls(context, plan, [ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP])
    if request_file is None or calls <= option_calls:
        return context.meta.get(CONFIG)
    return request_file


def _list_calls(context: click.Context, plan: Mapping[str, Any], sources: Sequence[ParameterSource]) -> set[str]:
    # Return the code, servers and files that options name, as texts. `plan` maps options to their values.
    # Consider only options whose values come from `sources`, for example from the command line.
    given = {name for name in plan if context.get_parameter_source(name) in sources}
    if "entry" in given:  # --entry sets these values
        given |= {"host", "host_arguments", "policies"}
    names = given & {"host", "host_arguments"}
    if "policies" in given:  # without --policy, these options have no effect on the result
        names |= given & {"policies", "arguments", "filters", "servers"}
    if "suites" in given:  # for a suite found:FILE, `_expand_found` has set `found` to the file
        names.add("found" if plan.get("found") else "suites")
    # A request with only the fields of the options in `names` lists only the calls in these options.
    fields = _request_fields({name: plan[name] for name in names})
    return set(Request(**{"host": "", "suites": (), **fields}).list_calls())


def _new_request(context: click.Context, plan: Mapping[str, Any], running: Mapping[str, Any]) -> Request:
    # Return a request with the values of the options in `plan`. A replay takes missing values from the recording.
    # Raise an error if the host, the suites or the policies are missing.
    # `running` contains the options that affect how the run is executed, such as `resume`.
    fields = _request_fields(plan)
    is_replay = bool(fields["policies"]) and all(policy.maker.startswith("replay:") for policy in fields["policies"])
    if is_replay:
        # If a --config file names the policies, check that the file is trusted before reading the recordings.
        if context.get_parameter_source("policies") is ParameterSource.DEFAULT_MAP:
            calls = Request(host="", suites=(), policies=fields["policies"]).list_calls()
            require_trust(context.meta.get(CONFIG), calls)
        replay_values = requests.replay_fields(fields["policies"])
        recorded_arguments = replay_values.pop("host_arguments", {})
        if fields["host"] in (None, replay_values.get("host")):  # recorded arguments only fit the recorded host
            fields["host_arguments"] = {**recorded_arguments, **fields["host_arguments"]}
        fields |= {name: value for name, value in replay_values.items() if not fields[name]}
    for name in ("host", "suites", "policies"):
        if not fields[name]:
            # With --resume, the user probably named a wrong folder: an existing run would provide the missing value.
            if running["resume"]:
                remedy = "Name the folder of a run, or say what to run: --host, --suite and --policy."
                raise RunError("there is no run to resume", remedy=remedy, place=Place(file=str(running["out"])))
            _raise_missing(context, name)
    if fields["episodes"] is None:
        fields["episodes"] = RECORDED if is_replay else PROTOCOL
    # The suites determine the default protocol.
    fields["protocol"] = plan["protocol"] or default_protocol(map(spell_suite, fields["suites"]))
    return Request(**fields, volatile=_volatile_facts())


def _volatile_facts() -> dict[str, object]:
    # Return facts that differ between equal runs, which are kept apart from results: the command and the start time.
    command = redact_secrets(shlex.join(["safevla", *sys.argv[1:]]))
    return {"command": command, "started": datetime.now(UTC).isoformat(timespec="seconds")}


def _change_request(context: click.Context, plan: Mapping[str, Any], recorded: Request) -> Request:
    # Return a recorded request with the values of the options that are given.
    # `plan` maps options to their values, and `roster` lists the recorded policies.
    # Values that --entry sets count as given, too.
    entry_names = {name for name in requests.ENTRY_OPTIONS if plan["entry"] and plan[name] is not None}
    given = {name: value for name, value in plan.items() if is_given(context, name) or name in entry_names}
    return replace(recorded, **_request_fields(given, recorded.roster))


def _request_fields(plan: Mapping[str, Any], recorded: Sequence[RequestedPolicy] = ()) -> dict[str, Any]:
    # Return the arguments of `Request` from the options in `plan`. `recorded` are the policies of a recorded request.
    policy_options = {"policies", "arguments", "filters", "delays"}  # together, these define the field `policies`
    # Each of the other options has the same name as the field that it sets.
    fields = {name: value for name, value in plan.items() if name not in {"entry", "registered", *policy_options}}
    if plan.get("registered"):
        fields["registration"] = read_registration(plan["registered"])
    return {**fields, "policies": _build_policies(plan, recorded)}


def _build_policies(plan: Mapping[str, Any], recorded: Sequence[RequestedPolicy]) -> tuple[RequestedPolicy, ...]:
    # Return the policies to run. `plan` maps options to values; `recorded` are the policies of a recorded request.
    # A policy of a resumed or registered run keeps its arguments, filter and delay, except those that options replace.
    recorded_by_name = {policy.name: policy for policy in recorded}
    # Without --policy, the recorded policies run again.
    # Arguments, filters and delays are assigned to policies by the policies' names.
    named = plan.get("policies") or recorded
    names = [policy.name for policy in named]
    arguments = parse_arguments(plan["arguments"], names) if "arguments" in plan else {}
    filters_and_delays = {
        field: _assign_to_policies(plan[f"{field}s"], names) for field in ("filter", "delay") if f"{field}s" in plan
    }
    policies = []
    for policy in named:
        # `old` is the recorded policy of this name, or a new policy itself.
        old = recorded_by_name.get(policy.name, policy)
        new_texts = {field: texts[policy.name] for field, texts in filters_and_delays.items() if policy.name in texts}
        coupling = replace(old.coupling, **new_texts)
        # If this name now stands for another policy, the recorded arguments do not fit.
        kept_arguments = old.arguments if policy.spec == old.spec else {}
        new_arguments = {**kept_arguments, **arguments.get(policy.name, {})}
        policies.append(replace(old, spec=policy.spec, arguments=new_arguments, coupling=coupling))
    return tuple(policies)


def _expand_entry(plan: Mapping[str, Any]) -> dict[str, Any]:
    # Return the values of plan options that --entry (an entry of the paper) defines; {} without --entry.
    # Raise `RunError` if --host or --policy is also given.
    if plan["entry"] is None:
        return {}
    if plan["host"] or plan["policies"]:
        other = "--host" if plan["host"] else "--policy"
        remedy = "Choose one: an entry defines its host and policy."
        raise RunError(f"--entry and {other} are both given", remedy=remedy)
    policy = _parse_policy(plan["entry"])  # [NAME=]ENTRY
    # Options that are given take precedence over the entry's values.
    entry_values = requests.entry_fields(policy.maker, plan["suites"], plan["protocol"])
    arguments = {**entry_values["host_arguments"], **plan["host_arguments"]}
    episodes = plan["episodes"] or entry_values["episodes"]
    return {**entry_values, "host_arguments": arguments, "policies": (policy,), "episodes": episodes}


def _expand_found(plan: Mapping[str, Any]) -> dict[str, Any]:
    # Return the values of plan options that a suite found:FILE (starts that a search found) defines; {} without one.
    # Raise `RunError` if another suite or --host is also given.
    files = [suite.removeprefix(FOUND) for suite in plan["suites"] if suite.startswith(FOUND)]
    if not files:
        return {}
    if len(plan["suites"]) > 1 or plan["host"]:
        remedy = "Give one --suite found:FILE, no other suite and no --host."
        raise RunError("a suite of found starts defines the host, and must be the only suite", remedy=remedy)
    path = Path(files[0]).absolute()
    suite = read_suite(path)
    fields = {name: getattr(suite, name) for name in ("host", "host_arguments", "protocol")}
    # `suite.suite` is the benchmark's suite from which the search started; `found` is the file with the starts.
    return {**fields, "suites": (suite.suite,), "max_steps": plan["max_steps"] or suite.max_steps, "found": path}


FOUND = "found:"  # begins a value of --suite that names a file of found starts


def _assign_to_policies(texts: Sequence[str], policies: Sequence[str]) -> dict[str, str]:
    # Parse texts [POLICY=]VALUE, and return policy -> VALUE.
    # The last VALUE without POLICY applies to all policies that no text names.
    shared: dict[str, str] = {}  # the last VALUE without POLICY, for each policy
    own_by_policy: dict[str, str] = {}
    for text in texts:
        named = [policy for policy in policies if text.startswith(f"{policy}=")]
        own_by_policy |= {policy: text.removeprefix(f"{policy}=") for policy in named}
        if not named:
            shared = dict.fromkeys(policies, text)
    return {**shared, **own_by_policy}


def parse_arguments(texts: Sequence[str], policies: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the keys and values of --policy-arg by policy; POLICY:KEY=VALUE overrides KEY=VALUE. Raises `RunError`."""
    shared: dict[str, str] = {}
    own_by_policy: dict[str, dict[str, str]] = {policy: {} for policy in policies}
    for text in texts:
        # The name of a policy may contain colons, so the last colon before `=` separates the name from the key.
        left, equals, value = text.partition("=")
        policy, colon, name = left.rpartition(":")
        if not equals or not name:
            raise RunError(f"--policy-arg {text!r} is not an argument", remedy="Write KEY=VALUE or POLICY:KEY=VALUE.")
        if colon and policy not in own_by_policy:
            problem = f"this run does not have the policy {policy!r} of --policy-arg {text!r}"
            raise RunError(problem, remedy=f"The run's policies: {', '.join(policies)}.")
        settings = own_by_policy[policy] if colon else shared
        settings[name] = value
    return {policy: {**shared, **own} for policy, own in own_by_policy.items()}


def _format_resume_command(context: click.Context, out: Path, request: Request) -> str:
    # Return the shell command that continues the run with the same options.
    words = ["safevla", str(context.info_name), "--resume", "--out", str(out)]
    # The run folder does not store these options, so the command that resumes the run repeats them.
    repeated = {"actor", "engine", "workers", "stop_after", "other_code", "trackers", "registered", "record_only"}
    words += options.list_given_words(context, repeated | rules.JUDGE_OPTIONS.keys())
    trust_option = ["--trust", str(out / RUN)] if request.list_calls() else []
    return shlex.join([*words, *trust_option])


def _raise_missing(context: click.Context, name: str) -> None:
    # Raise click's error for a missing option. `name` is the parameter's name, such as `out`.
    param = next(param for param in context.command.params if param.name == name)
    raise click.MissingParameter(ctx=context, param=param)
