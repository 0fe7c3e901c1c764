"""Whether the records are what the simulator does: recorded actions played again, states compared bit for bit.

Nothing here can tell how a policy came by its actions; only that these actions lead to these states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import hosts, runs
from safevla_bench.errors import SafevlaError
from safevla_bench.interface import EpisodeSeed, Host, Task, Wants
from safevla_bench.trajectory import Batch, Channel, Header, standin_benchmarks
from safevla_bench.verify.findings import Finding, agrees, differs, unchecked
from safevla_bench.verify.record_check import Recorded

Observer = Callable[[int, str], None]
"""Told before each episode how many are done, and which is next."""
REPLAY = "replay"
_OURS = "safevla-bench"
PROCESSOR = (
    "The kernels of OpenBLAS depend on the processor, so that on another processor than the recording's the last "
    "digits may differ, and from contacts on more than those. Replay on one of the same kind before you suspect the "
    "records."
)


class _Start(msgspec.Struct):
    """The part of a protocol that says how an episode starts."""

    wait_steps: int
    wait_action: str | tuple[float, ...]
    init_state: str
    rest_steps: int = 0


def replays(run: Path, records: Recorded, count: int, observer: Observer) -> list[Finding]:
    """Play `count` recorded episodes again in their host, or say why not."""
    description = runs.described(run)
    try:
        start = msgspec.convert(description.get("protocol"), _Start)
    except msgspec.ValidationError:
        return [unchecked(REPLAY, "run.json does not say how an episode starts: it was recorded in a loop of its own")]
    try:
        host = hosts.host(str(description.get("host")), _arguments(description))
        tasks = {(task.benchmark, task.task_id): task for task in _tasks(host, description)}
        here = host.versions()
    except SafevlaError as error:
        return [unchecked(REPLAY, f"the host cannot be used here: {error}")]
    found = []
    for done, index in enumerate(chosen(records.headers, count)):
        header = records.headers[index]
        observer(done, header.episode_id)
        episode = records.episode(index)
        said = _hindrance(episode, tasks, here)
        found.append(unchecked(_named(header), said) if said else _replayed(host, tasks, start, episode))
    return found


def chosen(headers: Sequence[Header], count: int) -> list[int]:
    """Which episodes: `count` of their places, those whose digest of policy and id is smallest."""

    def key(index: int) -> bytes:
        header = headers[index]
        return hashlib.sha256(f"{header.policy}\n{header.episode_id}".encode()).digest()

    return sorted(sorted(range(len(headers)), key=key)[:count])


def _named(header: Header) -> str:
    return f"{REPLAY} {header.episode_id}"


def _arguments(description: Mapping[str, object]) -> dict[str, str]:
    given = description.get("host_arguments")
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _tasks(host: Host, description: Mapping[str, object]) -> list[Task]:
    suites = description.get("suites")
    return [task for suite in suites for task in host.tasks(str(suite))] if isinstance(suites, list) else []


def _hindrance(episode: Batch, tasks: Mapping[tuple[str, str], Task], here: Mapping[str, str]) -> str | None:
    """Why an episode cannot be replayed here; None where it can."""
    header = episode.headers[0]
    if (header.benchmark, header.task_id) not in tasks:
        return f"the host has no task {header.task_id!r} in {header.benchmark!r}"
    if header.env_seed is None or header.init_state_index is None:
        return "the record does not say its seed and initial state"
    channels: Mapping[str, Channel] = {"action": episode.action, "sim_state": episode.sim_state}
    lacking = [name for name, channel in channels.items() if not channel.present[0]]
    if lacking:
        return f"the record has no {' and no '.join(lacking)}"
    for name, recorded in (header.versions or {}).items():
        if name != _OURS and here.get(name) != recorded:
            return f"it was recorded with {name} {recorded}, here is {here.get(name, 'none')}"
    return None


def _replayed(host: Host, tasks: Mapping[tuple[str, str], Task], start: _Start, episode: Batch) -> Finding:
    header = episode.headers[0]
    try:
        again = _rolled_out(host, tasks[header.benchmark, header.task_id], _seed(start, header), episode)
    except SafevlaError as error:
        return unchecked(_named(header), f"the host cannot replay it here: {error}")
    except Exception as error:  # a simulator can raise anything, where it raised nothing when this was recorded
        return differs(_named(header), f"the simulator raised {type(error).__name__}: {error}. {PROCESSOR}")
    recorded, replayed = _states(episode), _states(again)
    if recorded.shape != replayed.shape:
        said = f"{_size(recorded)} are recorded, the replay has {_size(replayed)}"
        return differs(_named(header), said)
    apart = np.flatnonzero((recorded.view(np.int64) != replayed.view(np.int64)).any(axis=1))
    if len(apart):
        gaps = np.abs(recorded - replayed).max(axis=1)
        where = f"step {apart[0]} of {len(recorded) - 1}"
        said = f"the states differ from {where} on, there by {gaps[apart[0]]:.3g}, later by up to {gaps.max():.3g}"
        return differs(_named(header), f"{said}. {PROCESSOR}")
    where = "; with stand-ins for the host's own assets, here as there" if standin_benchmarks(episode) else ""
    return agrees(_named(header), f"{_size(recorded)}, bit for bit{where}")


def _size(states: NDArray[np.float64]) -> str:
    return f"{states.shape[0]} states of {states.shape[1]} numbers"


def _seed(start: _Start, header: Header) -> EpisodeSeed:
    assert header.init_state_index is not None
    assert header.env_seed is not None
    return EpisodeSeed(
        init_state_index=header.init_state_index,
        env_seed=header.env_seed,
        wait_steps=start.wait_steps,
        wait_action=None if isinstance(start.wait_action, str) else start.wait_action,
        rest_steps=start.rest_steps,
        drawn=start.init_state == "drawn",
    )


def _rolled_out(host: Host, task: Task, seed: EpisodeSeed, episode: Batch) -> Batch:
    with closing(host.make(task, Wants())) as env:
        env.reset(seed)
        for action in episode.action.episode(0):
            env.step(action)
        return env.recorded()


def _states(episode: Batch) -> NDArray[np.float64]:
    return np.ascontiguousarray(episode.sim_state.episode(0), dtype=np.float64)
