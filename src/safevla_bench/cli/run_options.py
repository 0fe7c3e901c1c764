"""The options that say what to run and how, and what they ask for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from safevla_bench import evaluate, rollout, runs
from safevla_bench.cli.config import JUDGE_OPTIONS, config_option, key, options_of
from safevla_bench.cli.options import ACTORS, ENGINE, cluster
from safevla_bench.errors import Place, RunError
from safevla_bench.text.redaction import redacted

F = TypeVar("F", bound=Callable[..., Any])

_WHAT = [
    click.option("--host", metavar="NAME", help="The simulator, such as libero."),
    click.option("--host-arg", "host_arguments", multiple=True, metavar="KEY=VALUE",
                 help="An argument for the host, such as split=pretrain for robocasa. Repeatable."),
    click.option("--suite", "suites", multiple=True, metavar="NAME",
                 help="The task suite, such as libero-spatial, or a .bddl file or a folder of them. Repeatable."),
    click.option("--tasks", default="all", metavar="0,3|0-4|all", show_default=True, help="Tasks of each suite."),
    click.option("--episodes", type=click.IntRange(min=1), metavar="N",
                 help="Episodes a task; else those of the protocol that is asked for, else as many as the benchmark "
                      "runs: 50 in robocasa, 1 elsewhere."),
    click.option("--policy", "policies", multiple=True, metavar="NAME[:ARG]",
                 help="What acts: noop, random, scripted:careful, scripted:hasty, replay:FILE (recorded actions), "
                      "python:module:factory, a server's openpi:ws://HOST:8000, gr00t:HOST, vla-eval:HOST, or a "
                      "plug-in's. Repeatable."),
    click.option("--entry", metavar="NAME",
                 help="One of the paper's entries, such as pi0.5@libero, in place of --host and --policy: all its "
                      "suites, tasks and episodes, or those that are given. `safevla entries` lists them."),
    click.option("--server", "servers", multiple=True, metavar="[SUITE=]URL",
                 help="Where the entry is served, such as ws://HOST:8000. Repeatable."),
    click.option("--protocol", metavar="NAME",
                 help=f"How episodes start and end; else {evaluate.PRESET}. "
                      "`safevla protocols` lists them."),
    click.option("--policy-arg", "arguments", multiple=True, metavar="[POLICY:]KEY=VALUE",
                 help="An argument for every policy, or for the one that is named before it, as "
                      "scripted:careful:KEY=VALUE. Repeatable."),
    click.option("--seed", default=0, show_default=True, help="Of the policies' randomness."),
    click.option("--max-steps", type=click.IntRange(min=1), help="Horizon; else the protocol's for the suite."),
    click.option("--shard", metavar="I/N",
                 help="Run the I-th of N pieces of the plan, counted from 1; `safevla merge` joins them."),
    click.option("--archive", type=click.Choice(list(runs.FORMS)), default=runs.JSONL, show_default=True,
                 help="The form of the records: compressed JSON lines, or Parquet, which is judged faster."),
    click.option("--stop-on-violation", is_flag=True,
                 help="End each episode at its first violation. It is then `stopped`: counted apart, in no rate."),
]  # fmt: skip
_HOW = [
    click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
                 help="The run folder to make, or with --resume to continue."),
    click.option("--workers", default=1, type=click.IntRange(min=1), show_default=True, metavar="N",
                 help="Processes that run episodes side by side; results do not depend on it."),
    *ENGINE,
    *ACTORS,
    click.option("--resume", is_flag=True,
                 help="Continue the run in DIR, or begin it where there is none. What is not given is as in that run."),
    click.option("--retry-crashed", is_flag=True, help="With --resume: run crashed episodes again."),
    click.option("--dry-run", is_flag=True,
                 help="Print the episodes and an estimate of time and disk; run and write nothing."),
]  # fmt: skip
_NEEDED = ("host", "suites", "policies")


@dataclass(frozen=True)
class Asked:
    """What a command line asks for; `again` is the command that continues the run."""

    request: evaluate.Request
    out: Path
    running: evaluate.Running
    dry_run: bool
    again: str


def run_options(command: F) -> F:
    """Adds the options; the command takes them as one keyword, `asked`."""

    @wraps(command)
    @click.pass_context
    def wrapped(context: click.Context, *args: Any, **given: Any) -> Any:
        what = {name: given.pop(name) for name in _names(_WHAT)}
        how = {name: given.pop(name) for name in _names(_HOW)}
        return command(*args, asked=_asked(context, what, how), **given)

    with_options = reduce(lambda inner, option: option(inner), reversed([*_WHAT, *_HOW]), wrapped)
    return config_option(with_options)  # type: ignore[return-value]


def _names(options: Sequence[Callable[..., Any]]) -> list[str]:
    """The names under which click gives the options' values."""
    return [str(option.name) for option in options_of(options)]


def _asked(context: click.Context, what: Mapping[str, Any], how: Mapping[str, Any]) -> Asked:
    if how["retry_crashed"] and not how["resume"]:
        raise RunError("--retry-crashed is for a run that exists", remedy="Pass --resume with it.")
    if how["out"] is None and not how["dry_run"]:
        _missing(context, "out")
    out = how["out"] or Path()
    begun = how["resume"] and (out / runs.RUN).exists()
    what = {**what, **_entered(what)}
    request = _continued(context, what, out) if begun else _new(context, what, how)
    running = evaluate.Running(
        workers=how["workers"], cluster=cluster(how), resume=how["resume"], retry_crashed=how["retry_crashed"]
    )
    return Asked(request, out, running, how["dry_run"], _again(context, out))


def _new(context: click.Context, what: Mapping[str, Any], how: Mapping[str, Any]) -> evaluate.Request:
    for name in _NEEDED:
        if not what[name]:
            if how["resume"]:
                remedy = "Name the folder of a run, or say what to run: --host, --suite and --policy."
                raise RunError("there is no run to resume", remedy=remedy, place=Place(file=str(how["out"])))
            _missing(context, name)
    volatile = {
        "command": redacted(shlex.join(["safevla", *sys.argv[1:]])),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    everything = {name: value for one, given in what.items() for name, value in _field(one, given, what["policies"])}
    if everything["episodes"] is None and what["protocol"] is not None:
        everything["episodes"] = evaluate.PROTOCOL
    everything["protocol"] = what["protocol"] or evaluate.PRESET
    return evaluate.Request(**everything, volatile=volatile)


def _continued(context: click.Context, what: Mapping[str, Any], out: Path) -> evaluate.Request:
    """What the run in the folder was asked for, with what is given now in its place; a difference is refused later."""
    held = evaluate.Request.of(out)
    policies = what["policies"] or held.policies
    fields: dict[str, Any] = {
        "policy_arguments": {one: them for one, them in held.policy_arguments.items() if one in policies}
    }
    for name, value in what.items():
        if _given(context, name) or (what["entry"] and name in evaluate.ENTERED and value is not None):
            fields.update(_field(name, value, policies))
    return replace(held, **fields)


def _field(name: str, value: Any, policies: tuple[str, ...]) -> list[tuple[str, Any]]:
    """The request's fields that an option fills."""
    if name == "entry":
        return []
    if name == "tasks":
        return [("tasks", _indices(value))]
    if name == "shard":
        return [("shard", rollout.Shard.read(value) if value else None)]
    if name == "arguments":
        everyone, single = _arguments(value, policies)
        return [("arguments", everyone), ("policy_arguments", single)]
    if name == "host_arguments":
        return [(name, dict(_pair(text) for text in value))]
    return [(name, value)]


def _entered(what: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry stands for."""
    if what["entry"] is None:
        return {}
    for name, option in (("host", "--host"), ("policies", "--policy")):
        if what[name]:
            raise RunError(f"--entry and {option} are both given", remedy="An entry has its own host and policy.")
    filled = evaluate.entered(what["entry"], what["suites"], what["protocol"])
    return {name: value for name, value in filled.items() if name != "episodes" or what["episodes"] is None}


def _indices(text: str) -> tuple[int, ...] | None:
    """`0,3` or `0-4` or both, as task indices in the order given; None for `all`."""
    if text == "all":
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last.isdecimal() or not last):
            raise RunError(f"--tasks {text!r} names no tasks", remedy="Write indices such as 0,3 or 0-4, or all.")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RunError(f"--host-arg {text!r} is no argument", remedy="Write KEY=VALUE.")
    return name, value


def _arguments(texts: tuple[str, ...], policies: tuple[str, ...]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Arguments for every policy, and those for one: what stands before the last colon left of = names it."""
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
    """The arguments of one policy; raises `RunError` for what is no argument, or is another policy's."""
    everyone, single = _arguments(texts, (policy,))
    return {**everyone, **single.get(policy, {})}


def _again(context: click.Context, out: Path) -> str:
    """The command that continues the run: what run.json does not hold is repeated."""
    words = ["safevla", str(context.info_name), "--resume", "--out", str(out)]
    kept = {option.name for option in JUDGE_OPTIONS} | {"workers", *_names([*ENGINE, *ACTORS])}
    for option in context.command.params:
        if option.name in kept and _given(context, str(option.name)):
            value = context.params[str(option.name)]
            for one in value if isinstance(value, tuple) else (value,):
                words += [f"--{key(option)}", str(one)]
    return shlex.join(words)


def _given(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def _missing(context: click.Context, name: str) -> None:
    option = next(one for one in context.command.params if one.name == name)
    raise click.MissingParameter(ctx=context, param=option)
