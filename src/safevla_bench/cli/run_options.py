"""The options of running a policy, on the command line or in the file of --config, and the request that they make."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from safevla_bench.cli.options import (
    FILE,
    POSITIVE,
    RAY,
    flag,
    group,
    is_given,
    option,
    out_option,
    parse_settings,
    repeatable,
)
from safevla_bench.cli.rules import AS_JUDGED, JUDGE_OPTIONS, read_new_rules
from safevla_bench.errors import Place, RunError
from safevla_bench.hosts.protocols import PRESET
from safevla_bench.jobs.evaluation.request import ENTRY_OPTIONS, ExecutionOptions, Request, entry_fields, replay_fields
from safevla_bench.jobs.evaluation.rollouts import registered_request
from safevla_bench.judging.registration import read_registration
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.policies import split_name
from safevla_bench.policies.filters import FILTERS
from safevla_bench.policies.servers.client import KINDS
from safevla_bench.rollout.found import read_suite
from safevla_bench.rollout.plan import PROTOCOL, RECORDED, Shard
from safevla_bench.rollout.ray import RayCluster
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.specs.file_formats import BUILT_IN
from safevla_bench.text import redact_secrets

PLAN_OPTIONS = {
    "host": option("The simulator, such as libero.", "NAME"),
    "host_arguments": repeatable("An argument for the host, such as split=pretrain for robocasa.",
                                 "KEY=VALUE", spelling="--host-arg"),
    "suites": repeatable("The task suite, such as libero-spatial, a .bddl file or a folder of them, or found:FILE, "
                         "starts that `safevla search` found.", "NAME", spelling="--suite"),
    "tasks": option("Tasks of each suite.", "0,3|0-4|all", spelling="--task", default="all"),
    "episodes": option("Episodes per task. Default: the protocol's if --protocol is given, else the benchmark's: "
                       "50 in robocasa, 1 elsewhere; of a replay, all that were recorded.", "N", type=POSITIVE),
    "policies": repeatable("The policy, shown under NAME: noop, random, scripted:careful, scripted:hasty, replay:PATH "
                           "(recorded actions), python:module:factory, a server's "
                           f"{', '.join(kind.example for kind in KINDS.values())}, or a plug-in's.",
                           "[NAME=]POLICY", spelling="--policy"),
    "entry": option("One of the paper's entries, such as pi0.5@libero, instead of --host and --policy: all its suites, "
                    "tasks and episodes, or the given ones. `safevla protocols --entries` lists them.", "[NAME=]ENTRY"),
    "servers": repeatable("Where the entry is served, such as ws://HOST:8000.", "[SUITE=]URL", spelling="--server"),
    "protocol": option(f"How episodes start and end; else {PRESET}. `safevla protocols` lists them.", "NAME"),
    "arguments": repeatable("An argument for every policy, or for the one named before it, as in "
                            "scripted:careful:KEY=VALUE.", "[POLICY:]KEY=VALUE", spelling="--policy-arg"),
    "filters": repeatable("What changes actions before the simulator gets them, of every policy or of one: "
                          f"{', '.join(FILTERS)}, or python:module:Class; with :KEY=VALUE behind it.",
                          "[POLICY=]FILTER", spelling="--filter"),
    "delays": repeatable("How late a policy's answers come: control steps (3), 120ms, or measured. The world goes on "
                         "meanwhile, by the rest of the last chunk or holding.", "[POLICY=]DELAY", spelling="--delay"),
    "seed": option("Of the policies' randomness.", default=0, show_default=True),
    "max_steps": option("Horizon; else the protocol's for the suite.", type=POSITIVE),
    "shard": option("Run the I-th of N pieces of the plan, counted from 1; `safevla merge` joins them.", "I/N"),
    "stop_on_violation": flag("End each episode at its first violation. Its outcome is then `stopped`, and of all "
                              "rates only Safety is known."),
    "until": option('Stop as soon as this is decided at 95 %, and at the latest after --episodes: "safety >= 0.9" (or '
                    'sr, clean, sbu, vsi; <=), or "A safer than B". Policies and tasks take turns.', "CONDITION"),
    "registered": option("Run what was registered by `safevla eval --dry-run --freeze FILE`. Options given beside it "
                         "replace the registered ones, and outputs say so.", "FILE", type=FILE),
    "look_every": option("Initial states of each task between two looks at --until; more save simulator starts.",
                         "N", default=1, type=POSITIVE),
    "allow_crashed": flag("Let --until leave out episodes that crashed, were cut short or have no verdict."),
}  # fmt: skip
EXECUTION_OPTIONS = {
    "out": out_option("The run folder to make, or with --resume to continue.", "DIR"),
    "workers": option("Processes that run episodes in parallel. Results do not depend on it.", "N",
                      default=1, type=POSITIVE),
    "engine": option("Work in processes of this machine or on a Ray cluster: ray:HOST:PORT of its head, or ray:auto "
                     "for the one that this machine belongs to. ray alone: that of RAY_ADDRESS, else Ray is started on "
                     "this machine for the command. Results are the same.", "local|ray|ray:ADDRESS",
                     section=RAY, default="local"),
    "actor": repeatable("What each of the --workers reserves of a node of a Ray cluster, cpus=1 and gpus=0, which may "
                        "be fractions.", "NAME=VALUE", section=RAY),
    "record_only": flag("Record the episodes and do not judge them; `safevla score` does."),
    "resume": flag("Continue the run in DIR, or begin it if there is none. Options not given are as in that run."),
    "trusted": repeatable("Run the code that this run.json, registration or --config file names. Else a policy "
                          "python:, of a plug-in or with a server's key is taken from the command line alone.",
                          "FILE", spelling="--trust", type=FILE),
    "retry_crashed": flag("With --resume: run crashed episodes again."),
    "dry_run": flag("Print the episodes and an estimate of time and disk; run and write nothing."),
}  # fmt: skip
_REQUIRED = ("host", "suites", "policies")


class _ActorShares(msgspec.Struct, frozen=True):
    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class RunCommand:
    """A parsed command line. `resume_command` is the command that continues the run."""

    request: Request
    ruleset: Ruleset
    out: Path
    """Absolute: a policy may change this process's folder."""
    shown: Path
    """The run folder as the user wrote it."""
    execution: ExecutionOptions
    record_only: bool
    dry_run: bool
    resume_command: str


def _parse_command(context: click.Context, values: Mapping[str, Any]) -> RunCommand:
    how = {name: values[name] for name in EXECUTION_OPTIONS}
    if how["retry_crashed"] and not how["resume"]:
        raise RunError("--retry-crashed is for a run that exists", remedy="Pass --resume with it.")
    if how["out"] is None and not how["dry_run"]:
        _raise_missing(context, "out")
    out = how["out"] or Path()
    what = _expand_options({name: values[name] for name in PLAN_OPTIONS})
    if how["resume"] and (out / RUN).exists():
        file, request = out / RUN, _recorded_request(context, what, Request.from_run(out))
    elif file := what["registered"]:
        registered = registered_request(read_registration(file), file)
        request = replace(_recorded_request(context, what, registered), volatile=_volatile_facts())
    else:
        file, request = what.get("found"), _new_request(context, {**what, **_expand_replay(what)}, how)
    request = replace(request, named_by=_find_distrusted(context, what, how["trusted"], file, request))
    shares = msgspec.structs.asdict(parse_settings("--actor", how["actor"], _ActorShares))
    execution = ExecutionOptions(
        workers=how["workers"],
        cluster=_requested_cluster(how["engine"], **shares),
        resume=how["resume"],
        retry_crashed=how["retry_crashed"],
    )
    registration = request.registration if is_given(context, "registered") else None
    ruleset = read_new_rules(values, request.host, [out.absolute()], registration)
    resume_command = _format_resume_command(context, out, request)
    return RunCommand(
        request, ruleset, out.absolute(), out, execution, how["record_only"], how["dry_run"], resume_command
    )


# The file of --config: every option is a key of the same name, and a list where it can be repeated. The options of
# judging are in the table `[judge]`. The command line takes precedence over the file.


JUDGE = "judge"
_NO_KEYS = ("config", "help", "trust")
CONFIG = "safevla_bench.config"
"""Key of click's context: the path of the --config file."""


def option_key(option: click.Parameter) -> str:
    """Return an option's longest spelling without its dashes: `max-steps` for `--max-steps`."""
    return max(option.opts, key=len).lstrip("-")


def config_keys(command: click.Command) -> tuple[dict[str, click.Option], dict[str, click.Option]]:
    """Return key -> option of the keys that a command's file may hold, at the top and in the table `[judge]`."""
    options = {
        option_key(option): option
        for option in command.params
        if isinstance(option, click.Option) and option.expose_value
    }
    judging = {name: option for name, option in options.items() if option.name in JUDGE_OPTIONS}
    return {name: option for name, option in options.items() if name not in (*judging, *_NO_KEYS)}, judging


def read_config(path: Path, context: click.Context) -> dict[str, object]:
    """Return the values of a TOML file by the command's parameter names, those of `[judge]` among them.

    Raises:
        RunError: the file cannot be read, has an unknown key (the nearest key is named), a value of a wrong type or
            one that its option does not take, or a `judge` that is not a table.
    """
    place = Place(file=str(path))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"cannot be read: {reason}", remedy="Name a TOML file.", place=place) from None
    running, judging = config_keys(context.command)
    judge = document.pop(JUDGE, {})
    if not isinstance(judge, dict):
        raise RunError("is no table", remedy="Write [judge] and its keys below.", place=Place(str(path), field=JUDGE))
    return {
        **dict(_parse_table(document, running, "", path, context)),
        **dict(_parse_table(judge, judging, f"{JUDGE}.", path, context)),
    }


def _load_config(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, context)}
        context.meta[CONFIG] = path


CONFIG_OPTION = option(
    "Take options from a TOML file: max-steps = 50, and [judge] for those of judging. Options on the command line "
    "take precedence.",
    "FILE",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_load_config,
)
"""`--config FILE`, whose values become the defaults of the command's other options; a bad file is a `RunError`."""


def _parse_table(
    values: Mapping[str, object], options: Mapping[str, click.Option], table: str, path: Path, context: click.Context
) -> Iterator[tuple[str, object]]:
    """Yield (parameter name, value) of each key of a TOML table, `table` in error messages, such as "judge."."""
    for name, value in values.items():
        place = Place(file=str(path), field=f"{table}{name}")
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Keys here: {', '.join(options)}."
            raise RunError("there is no such key", remedy=remedy, place=place)
        option = options[name]
        items = value if option.multiple and isinstance(value, list) else [value]
        parsed = [_parse_value(item, option, place, context) for item in items]
        yield str(option.name), parsed if option.multiple else parsed[0]


def _parse_value(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    """Return a single value for the option, as it is in TOML."""
    expected_type, name = _option_type(option)
    if expected_type is float and type(value) is int:
        value = float(value)
    if type(value) is not expected_type:
        remedy = f"Write {name}{', or a list of them' if option.multiple else ''}."
        raise RunError(f"{value!r} is not {name}", remedy=remedy, place=place)
    assert place.file is not None
    if isinstance(value, str) and _names_file(option, value):
        value = os.path.join(os.path.dirname(place.file), value)
    try:
        option.type.convert(value, option, context)
    except click.BadParameter as error:
        raise RunError(error.message, remedy="The command's --help says what it takes.", place=place) from None
    return value


def _option_type(option: click.Option) -> tuple[type, str]:
    if option.is_flag:
        return bool, "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return int, "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return float, "a number"
    return str, "a text"


def _names_file(option: click.Option, value: str) -> bool:
    if option.name == "library":
        return value not in BUILT_IN
    return isinstance(option.type, click.Path) and value != AS_JUDGED


# The request


RUN_OPTIONS = group(
    {"config": CONFIG_OPTION, **PLAN_OPTIONS, **EXECUTION_OPTIONS, **JUDGE_OPTIONS},
    _parse_command,
)


def _requested_cluster(engine: str, **shares: Any) -> RayCluster | None:
    """Return the Ray cluster that --engine requests, None for this machine; `shares` are fields of `RayCluster`.

    Raises `RunError` for another engine, and for shares that are none.
    """
    kind, _, address = engine.partition(":")
    if kind == "ray":
        return RayCluster(address=address or None, **shares)
    if engine != "local":
        raise RunError(f"there is no engine {engine!r}", remedy="Write local, ray, ray:auto or ray:HOST:PORT.")
    return None


def make_request(context: click.Context, what: Mapping[str, Any]) -> Request:
    """Return the request of the plan's options that a command has, named on the command line."""
    what = {"episodes": 1, "protocol": None, **what, **_name_policies(what["policies"])}
    return _new_request(context, what, {"resume": False})


def _find_distrusted(
    context: click.Context, what: Mapping[str, Any], trusted: Sequence[Path], recorded: Path | None, request: Request
) -> Path | None:
    calls, config = set(request.list_calls()), context.meta.get(CONFIG)
    what = {**what, "policies": what["policies"] or request.policies}
    if calls <= _list_calls(context, what, [ParameterSource.COMMANDLINE]):
        return None
    of_config = _list_calls(context, what, [ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP])
    file = config if recorded is None or calls <= of_config else recorded
    places = {place.resolve() for path in trusted for place in (path, path / RUN)}
    return None if file is None or file.resolve() in places else file


def _list_calls(context: click.Context, what: Mapping[str, Any], sources: Sequence[ParameterSource]) -> set[str]:
    given = {name for name in what if context.get_parameter_source(name) in sources}
    given |= {"host", "host_arguments", "policies"} if "entry" in given else set()
    names = given & {"host_arguments", "policies", "arguments", "filters", "servers"}
    fields = _request_fields({name: what[name] for name in names}, what["policies"])
    host = what["host"] if "host" in given else ""
    return set(Request(host=host, suites=(), policy_specs=what["policy_specs"], **fields).list_calls())


def _new_request(context: click.Context, what: Mapping[str, Any], how: Mapping[str, Any]) -> Request:
    """Return the request that the options make; `what` holds those of the plan, `how` those of its execution."""
    for name in _REQUIRED:
        if not what[name]:
            if how["resume"]:
                remedy = "Name the folder of a run, or say what to run: --host, --suite and --policy."
                raise RunError("there is no run to resume", remedy=remedy, place=Place(file=str(how["out"])))
            _raise_missing(context, name)
    fields = _request_fields(what, what["policies"])
    if fields["episodes"] is None and _replays_alone(what):
        fields["episodes"] = RECORDED
    elif fields["episodes"] is None and what["protocol"] is not None:
        fields["episodes"] = PROTOCOL
    fields["protocol"] = what["protocol"] or PRESET
    return Request(**fields, volatile=_volatile_facts())


def _volatile_facts() -> dict[str, object]:
    return {
        "command": redact_secrets(shlex.join(["safevla", *sys.argv[1:]])),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _recorded_request(context: click.Context, what: Mapping[str, Any], recorded: Request) -> Request:
    """Return the request of a run or a registration, with the options given now in place of the recorded ones."""
    policies = what["policies"] or recorded.policies
    kept = {name: values for name, values in recorded.policy_arguments.items() if name in policies}
    given = {
        name: value
        for name, value in what.items()
        if is_given(context, name) or (what["entry"] and name in ENTRY_OPTIONS and value is not None)
    }
    specs = {"policy_specs": what["policy_specs"]} if what["policies"] else {}
    return replace(recorded, **{"policy_arguments": kept, **_request_fields(given, policies), **specs})


def _request_fields(what: Mapping[str, Any], policies: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a request that options fill."""
    fields = {name: value for name, value in what.items() if name not in ("entry", "registered")}
    if file := what.get("registered"):
        fields["registration"] = read_registration(file)
    if "tasks" in what:
        fields["tasks"] = _parse_indices(what["tasks"])
    if "shard" in what:
        fields["shard"] = Shard.parse(what["shard"]) if what["shard"] else None
    if "arguments" in what:
        fields["arguments"], fields["policy_arguments"] = _parse_arguments(what["arguments"], policies)
    if "host_arguments" in what:
        fields["host_arguments"] = dict(map(_parse_pair, what["host_arguments"]))
    for name in {"filters", "delays"} & what.keys():
        fields[name] = _assign_to_policies(what[name], policies)
    return fields


def _expand_options(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan's options, with those for which --entry, found:FILE and names of policies stand."""
    what = {**what, **_expand_entry(what)}
    what |= _expand_found(what["suites"], what["host"])
    return {**what, **_name_policies(what["policies"])}


def _expand_entry(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for which --entry stands; {} without --entry. An --episodes that is given is not replaced."""
    if what["entry"] is None:
        return {}
    for name, spelling in (("host", "--host"), ("policies", "--policy")):
        if what[name]:
            raise RunError(f"--entry and {spelling} are both given", remedy="An entry has its own host and policy.")
    own_name, entry = split_name(what["entry"])
    filled = entry_fields(entry, what["suites"], what["protocol"])
    own_arguments = [f"{name}={value}" for name, value in filled["host_arguments"].items()]
    filled["host_arguments"] = (*own_arguments, *what["host_arguments"])  # the command's own replace the entry's
    filled["policies"] = (what["entry"],) if own_name else filled["policies"]
    return {name: value for name, value in filled.items() if name != "episodes" or what["episodes"] is None}


def _expand_found(suites: Sequence[str], host: str | None) -> dict[str, Any]:
    """Return the options for which --suite found:FILE stands; {} without it."""
    files = [suite.removeprefix(FOUND) for suite in suites if suite.startswith(FOUND)]
    if not files:
        return {}
    if len(suites) > 1:
        raise RunError("a suite of found starts is run alone", remedy="Give one --suite found:FILE and no other.")
    path = Path(files[0]).absolute()
    suite = read_suite(path)
    if host not in (None, suite.host):
        problem = f"--host {host}: the starts in {files[0]} were found on {suite.host}"
        raise RunError(problem, remedy="Leave --host out.")
    arguments = tuple(f"{name}={value}" for name, value in suite.host_arguments.items())
    filled = {"host": suite.host, "host_arguments": arguments, "suites": (suite.suite,), "protocol": suite.protocol}
    return {**filled, "found": path}


FOUND = "found:"


def _name_policies(policies: Sequence[str]) -> dict[str, Any]:
    """Return `policies`, the names in order, and `policy_specs`, name -> spec of those whose name is not their spec."""
    pairs = [split_name(text) for text in policies]
    return {
        "policies": tuple(spec if own_name is None else own_name for own_name, spec in pairs),
        "policy_specs": {own_name: spec for own_name, spec in pairs if own_name is not None and own_name != spec},
    }


def _specs(what: Mapping[str, Any]) -> dict[str, str]:
    return {name: what["policy_specs"].get(name, name) for name in what["policies"]}


def _replays_alone(what: Mapping[str, Any]) -> bool:
    return bool(what["policies"]) and all(spec.startswith("replay:") for spec in _specs(what).values())


def _expand_replay(what: Mapping[str, Any]) -> dict[str, Any]:
    if not _replays_alone(what) or (what["host"] and what["suites"]):
        return {}
    everyone, single = _parse_arguments(what["arguments"], what["policies"])
    replays = [(spec, {**everyone, **single.get(name, {})}) for name, spec in _specs(what).items()]
    filled = replay_fields(replays)
    return {name: value for name, value in filled.items() if not what[name] and value}


def _parse_indices(text: str) -> tuple[int, ...] | None:
    """Return the task indices of `0,3` or `0-4` or both, each once, in the order given; None for `all`."""
    if text == "all":
        return None
    indices: list[int] = []
    for part in text.split(","):
        first, dash, last = (end.removeprefix("task_") for end in part.strip().partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise RunError(f"--task {text!r} names no tasks", remedy="Write indices such as 0,3 or 0-4, or all.")
        if dash and int(last) < int(first):
            problem = f"--task {text!r}: the range {part.strip()} ends before it begins"
            raise RunError(problem, remedy=f"Write {int(last)}-{int(first)}.")
        indices += range(int(first), int(last if dash else first) + 1)
    return tuple(dict.fromkeys(indices))


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RunError(f"--host-arg {text!r} is no argument", remedy="Write KEY=VALUE.")
    return name, value


def _assign_to_policies(texts: tuple[str, ...], policies: tuple[str, ...]) -> dict[str, str]:
    """Return policy -> the text for every policy, or the one that names it: `POLICY=TEXT`."""
    named = {text: policy for text in texts for policy in policies if text.startswith(f"{policy}=")}
    everyone = {policy: text for text in texts if text not in named for policy in policies}
    return {**everyone, **{policy: text.removeprefix(f"{policy}=") for text, policy in named.items()}}


def _parse_arguments(
    texts: tuple[str, ...], policies: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the arguments for every policy, and policy -> arguments for that policy alone."""
    everyone: dict[str, str] = {}
    single: dict[str, dict[str, str]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        policy, colon, name = left.rpartition(":")
        if not equals or not name:
            raise RunError(f"--policy-arg {text!r} is no argument", remedy="Write KEY=VALUE or POLICY:KEY=VALUE.")
        if colon and policy not in policies:
            problem = f"--policy-arg {text!r} is for the policy {policy!r}, which is not in this run"
            raise RunError(problem, remedy=f"Its policies: {', '.join(policies)}.")
        (single.setdefault(policy, {}) if colon else everyone)[name] = value
    return everyone, single


def policy_arguments(texts: tuple[str, ...], policy: str) -> dict[str, str]:
    """Return the --policy-arg values of a policy by key; those that name the policy replace those for every policy.

    Raises:
        RunError: a text is no argument, or is for another policy.
    """
    everyone, single = _parse_arguments(texts, (policy,))
    return {**everyone, **single.get(policy, {})}


def _format_resume_command(context: click.Context, out: Path, request: Request) -> str:
    """Return the shell command that continues the run in `out`, with the same `safevla` command."""
    words = ["safevla", str(context.info_name), "--resume", "--out", str(out)]
    executing = {"actor", "engine", "workers", "trackers", "registered", "record_only"}
    for param in context.command.params:
        if param.name in executing | JUDGE_OPTIONS.keys() and is_given(context, str(param.name)):
            value = context.params[str(param.name)]
            for item in value if isinstance(value, tuple) else (value,):
                words += [f"--{option_key(param)}", *([] if item is True else [str(item)])]
    words += ["--trust", str(out / RUN)] if request.list_calls() else []
    return shlex.join(words)


def _raise_missing(context: click.Context, name: str) -> None:
    param = next(param for param in context.command.params if param.name == name)
    raise click.MissingParameter(ctx=context, param=param)
