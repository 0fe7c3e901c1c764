"""Diagnosis of a policy server by a few requests with an artificial scene: connection, dialect, actions and pictures.

Wrong normalization is visible in the actions: they are saturated, far out of range, or almost without motion.
"""

from __future__ import annotations

import json
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import numpy as np

from safevla_bench.errors import PolicyError, ReplyError, ServerLostError, ServerRefusedError
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.task import Task
from safevla_bench.jobs.doctor.machine import Diagnosis, failed_check, passed_check, warned_check
from safevla_bench.jobs.doctor.pictures import check_pictures
from safevla_bench.judging.action_statistics import ARM, GRIPPER, WIDTHS, find_oddities, measure_actions
from safevla_bench.plugins import NO_ARGUMENTS
from safevla_bench.policies import ask_arguments, make_policy, servers
from safevla_bench.policies.servers.dialects import Dialect, Reply, Request, describe_entries
from safevla_bench.sources.runs.folder import BY_CHANCE, Repeats
from safevla_bench.text import count_noun
from safevla_recorder.episode import Floats

_LETTERS = 300  # a diagnosis shows at most this number of characters of a server's greeting
_COMPONENT_NAMES = (*ARM, "gripper", "base x", "base y", "base turn", "torso", "base mode")
_STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
_EXAMPLE_TASKS = {
    "libero": Task("libero-spatial", "task_0", 0, "bowl", "pick up the black bowl and place it on the plate", _STILL),
    "robocasa": Task("robocasa-365", "OpenDrawer", 0, "OpenDrawer", "Open the left drawer.", _STILL),
    "robosuite": Task("robosuite", "Lift", 0, "Lift", "lift the cube", _STILL),
    "metaworld": Task("mt50", "push-v3", 40, "push-v3", "Push the puck to a goal", (0.0, 0.0, 0.0, -1.0)),
    "maniskill": Task("maniskill", "PickCube-v1", 0, "PickCube-v1", "pick up the cube", _STILL),
}
_WIDOWX = Task("simpler-widowx", "PutCarrotOnPlateInScene-v1", 1, "carrot", "put carrot on plate", _STILL)
_SCALING_REMEDY = "Check the dialect (safevla protocols) and the statistics by which the server scales its actions."


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """One server's replies to the same observation, in one dialect."""

    model: servers.ChunkModel
    asked: Mapping[str, str]  # client arguments that the server requested (also used by `eval`)
    arguments: Mapping[str, str]  # client arguments that the server did not request
    replan: int | None  # number of actions to execute from each reply; None = all
    request: Request
    reply: Reply
    replies: Sequence[Floats]  # each reply's H actions of A numbers, [H, A], as the simulator gets them
    seconds: tuple[float, ...]  # duration of each request
    pictures: tuple[Diagnosis, ...]  # result of the check of the pictures' orientation

    @property
    def actions(self) -> Floats:
        # The actions [H, A] in the last reply.
        return self.replies[-1]


def examine_server(
    server: str, arguments: Mapping[str, str] = NO_ARGUMENTS, host: str | None = None
) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each property of the server KIND:ADDRESS, then commands to evaluate the server. If it
    answers in no dialect, a check fails. `host` limits the dialects (None = all); KIND's default is tried first.
    """
    # `arguments` are the user's --policy-arg. The first dialect in which the server answers is reported.
    kind = servers.KINDS.get(server.partition(":")[0])
    if kind is None:
        kinds = "; ".join(f"{known.example} for {known.about}" for known in servers.KINDS.values())
        yield failed_check("server", "the argument does not name the kind of server", f"Write `KIND:ADDRESS`: {kinds}.")
        return
    if host is not None and host not in _EXAMPLE_TASKS:
        remedy = f"Name one of: {', '.join(_EXAMPLE_TASKS)}."
        yield failed_check("server", f"there is no example task for the host {host!r}", remedy)
        return
    yield passed_check("wire", f"asked as {server} ({kind.name}, {kind.wire})")
    refusals: dict[str, PolicyError] = {}  # dialect -> error of the request in this dialect
    for dialect in _candidate_dialects(kind, arguments, host):
        # The kind's default dialect needs no argument.
        policy_arguments = dict(arguments) if dialect == kind.dialect else {**arguments, "dialect": dialect}
        try:
            task_host = host or _first_host(dialect)
            answer = _query_server(server, policy_arguments, task_host, _example_task(task_host, dialect))
        except ServerLostError as error:
            yield failed_check("server", error.problem, error.remedy or "Start the server again.")
            return
        except PolicyError as error:  # the server may understand another dialect
            refusals[dialect] = error
            continue
        yield from _describe_answer(answer, refusals)
        yield from check_actions(answer.actions, answer.model.dialect)
        yield from answer.pictures
        command = _format_eval_command(server, answer, task_host)
        yield passed_check("first try", f"{command} --task 0 --episodes 1")
        yield passed_check("eval", command)
        return
    yield from _describe_refusals(kind, refusals, host)


def _candidate_dialects(kind: servers.ClientKind, arguments: Mapping[str, str], host: str | None) -> list[str]:
    # Return the names of the dialects to try, in this order. A dialect defines a server's requests and replies.
    if "dialect" in arguments:
        return [arguments["dialect"]]
    candidates = servers.dialects.dialects_of(kind.name)
    if host is not None:
        candidates = [dialect for dialect in candidates if host in servers.dialects.load_dialect_file(dialect).hosts]
    # The default dialect of this kind of server comes first, then the dialects whose first host is LIBERO.
    return sorted(candidates, key=lambda dialect: (dialect != kind.dialect, _first_host(dialect) != "libero"))


def _first_host(dialect: str) -> str:
    # Return the host with which to test the dialect: the first host in the dialect's file.
    return next(iter(servers.dialects.load_dialect_file(dialect).hosts))


def _example_task(host: str, dialect: str) -> Task:
    # Return an example task of the host. Requests to the server name this task.
    # A dialect is for the WidowX robot if its protocol gives a number of trials for WidowX tasks.
    is_widowx = _WIDOWX.benchmark in load_protocol(servers.dialects.load_dialect_file(dialect).release).trials
    return _WIDOWX if is_widowx else _EXAMPLE_TASKS[host]


def _query_server(server: str, arguments: dict[str, str], host: str, task: Task) -> ServerAnswer:
    # Send the same artificial observation several times in the dialect that `arguments` names.
    # Return the replies and the other data of the report. Raise a `PolicyError` if a request fails.
    # The server may request arguments of the client; the user's `arguments` take precedence.
    requested = ask_arguments(server, arguments)
    with closing(cast("servers.ChunkedPolicy", make_policy(server, {**requested, **arguments}))) as policy:
        model = policy.model
        model.connect(task)
        observation = servers.make_observation(model.wants, task.instruction)
        durations_s, replies = [], []
        for _ in range(servers.REQUESTS):
            model.begin(task, seed=0)  # some servers keep state within an episode
            start_s = time.perf_counter()
            reply = model.query(observation)
            durations_s.append(time.perf_counter() - start_s)
            replies.append(model.dialect.read_actions(reply))
        # Build the request once more, only to describe it.
        request, replan = model.dialect.build_request(observation), policy.dialect.replan
        pictures = tuple(check_pictures(model, task, host))
    return ServerAnswer(model, requested, arguments, replan, request, reply, replies, tuple(durations_s), pictures)


# Diagnoses of a server's replies


def _describe_answer(answer: ServerAnswer, refusals: Mapping[str, PolicyError]) -> Iterator[Diagnosis]:
    # Yield a check for each property of the answer. Only the check of the number of actions can give a warning.
    # `refusals`: dialect -> error, for dialects tried before.
    dialect = answer.model.dialect
    lines = [f"{dialect.name}: {servers.dialects.load_dialect_file(dialect.name).about}"]
    lines += [f"not {other}: {error.problem.splitlines()[0]}" for other, error in refusals.items()]
    yield passed_check("dialect", "\n".join(lines))
    greeting = json.dumps(answer.model.greeting, ensure_ascii=False)
    shown_greeting = greeting if len(greeting) <= _LETTERS else f"{greeting[:_LETTERS]} ..."
    yield passed_check("server", f"describes itself as {shown_greeting}")
    if answer.asked:
        requested = ", ".join(f"{name}={value}" for name, value in answer.asked.items())
        yield passed_check("asks for", f"{requested}: safevla eval uses these arguments")
    yield passed_check("request", "\n".join(describe_entries(answer.request)))
    yield passed_check("reply", "\n".join(describe_entries(answer.reply)))
    yield _describe_chunk(answer)
    first_ms, *later_ms = (1000 * duration_s for duration_s in answer.seconds)
    yield passed_check("latency", f"{first_ms:.0f} ms for the first request, then {statistics.median(later_ms):.0f} ms")
    yield passed_check("repeats", describe_repeats(answer.replies))


def describe_repeats(replies: Sequence[Floats]) -> str:
    """Describe how many replies ([H, A] each) to one observation differ from the first reply, and by how much."""
    others = servers.find_others(replies)
    summary = Repeats(asked=len(replies) - 1, other=len(others)).describe()
    if not others:
        return summary
    # Compare only replies with the same shape as the first reply. A gap is the largest difference from the first reply.
    # `initial` permits empty replies.
    gaps = [np.nanmax(np.abs(reply - replies[0]), initial=0.0) for reply in others if reply.shape == replies[0].shape]
    # If `gaps` is empty, all differing replies differ from the first reply in the number of actions.
    # `BY_CHANCE` is a hint on comparisons of policies whose answers vary.
    extent = f"largest difference {max(gaps):.2g}" if gaps else "in the number of actions"
    return f"{summary}, {extent}\n{BY_CHANCE}"


def _describe_chunk(answer: ServerAnswer) -> Diagnosis:
    # A reply contains a chunk of actions. `replan` is the number of actions to execute before the next request.
    # Warn if the chunk has fewer actions than `replan`.
    action_count, replan = len(answer.actions), answer.replan
    chunk_size = f"{count_noun(action_count, 'action')} per reply"
    if replan is None or replan == action_count:
        return passed_check("chunk", f"{chunk_size}, all executed")
    if replan < action_count:
        return passed_check("chunk", f"{chunk_size}, {replan} executed")
    detail = f"{chunk_size}, fewer than the {replan} that the dialect executes"
    return warned_check("chunk", detail, f"Pass --policy-arg replan={action_count}, as in the eval command below.")


def check_actions(actions: Floats, dialect: Dialect) -> Iterator[Diagnosis]:
    """Yield statistics of `H` actions [H, A], as the simulator gets them, and warnings. NaN and infinity are errors."""
    # Report only the first number that is NaN or infinite.
    if not np.isfinite(actions).all():
        row, column = np.argwhere(~np.isfinite(actions))[0]
        detail = f"component {column} of action {row} is {actions[row, column]}"
        yield failed_check("actions", detail, "Fix the model's output: an action that is not finite ends its episode.")
        return
    yield passed_check("actions", _format_statistics(actions))
    if dialect.wants.absolute or _first_host(dialect.name) not in WIDTHS:
        return  # normal ranges are known only for changes of pose, and only on the hosts in `WIDTHS`
    # The usual signs of gripper values are known only if the dialect passes the values on unchanged (`raw`).
    for oddity in find_oddities(measure_actions(actions, grips=dialect.switches.get(GRIPPER) == "raw")):
        if oddity.about in ("range", "gripper"):  # in a single chunk, repeated actions and a still gripper are normal
            yield warned_check(oddity.about, oddity.found, f"{oddity.cause} {_SCALING_REMEDY}")


def _format_statistics(actions: Floats) -> str:
    # Return a table with a line for each of the A components of the actions [H, A].
    count, width = actions.shape
    heading = f"minimum, mean and maximum of each number in {count} actions of {width} numbers"
    lines = [f"{heading}, as the simulator gets them"]
    component_stats = zip(actions.min(axis=0), actions.mean(axis=0), actions.max(axis=0), strict=True)
    for column, (lowest, mean, highest) in enumerate(component_stats):
        # `_COMPONENT_NAMES` are the components of a mobile robot's action. An arm's action consists of the first 7.
        # In all other actions, components have no names, so show the indices of the components.
        name = _COMPONENT_NAMES[column] if width in (7, len(_COMPONENT_NAMES)) else str(column)
        lines.append(f"{name:<9} {lowest:>8.3f} {mean:>8.3f} {highest:>8.3f}")
    return "\n".join(lines)


def _format_eval_command(server: str, answer: ServerAnswer, host: str) -> str:
    # Return the `safevla eval` command for the server. It omits the arguments that `eval` gets from the server.
    # `answer.arguments` are the user's arguments, with the dialect if it is not the default.
    # `answer.replan` is the number of actions to execute from each reply; None means all.
    action_count, policy_arguments = len(answer.actions), dict(answer.arguments)
    if answer.replan is not None and answer.replan > action_count:  # the server returns too few actions
        policy_arguments["replan"] = str(action_count)
    task = _example_task(host, answer.model.dialect.name)
    robot_options = ["--host-arg", "robot=widowx"] if task is _WIDOWX else []
    words = ["safevla", "eval", "--host", host, *robot_options, "--suite", task.benchmark, "--policy", server]
    for key, value in policy_arguments.items():
        words += ["--policy-arg", f"{key}={value}"]
    return shlex.join([*words, "--out", f"runs/{server.partition(':')[0]}"])


def _describe_refusals(
    kind: servers.ClientKind, refusals: Mapping[str, PolicyError], host: str | None
) -> Iterator[Diagnosis]:
    # Report only the most informative kind of errors that occurred.
    # Unreadable replies are the most informative errors; refusals by the server are the least informative errors.
    other_errors = {name: error for name, error in refusals.items() if not isinstance(error, ServerRefusedError)}
    unreadable_replies = {name: error for name, error in other_errors.items() if isinstance(error, ReplyError)}
    reported = unreadable_replies or other_errors or refusals  # dialect -> error; empty if no dialect was tried
    if not reported:
        remedy = "Omit --host, or name a dialect: safevla protocols lists all dialects."
        yield failed_check("dialect", f"the host {host!r} has no dialect for servers of the kind {kind.name}", remedy)
    # One failed check for each distinct problem, with the dialects in which the problem occurred.
    for problem in dict.fromkeys(error.problem for error in reported.values()):
        names = [name for name, error in reported.items() if error.problem == problem]
        advice = reported[names[0]].remedy or "Try another --policy-arg."
        yield failed_check("dialect", f"{', '.join(names)}: {problem}", advice)
