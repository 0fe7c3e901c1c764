"""Hosts: simulators with a recorder attached, found by the entry points of the group ``safevla_bench.hosts``.

An entry point names a factory that returns a `Host`: its keyword parameters are all text and none required. One of the
same name in ``safevla_bench.registries`` names the file with the tags of its tasks.
"""

from __future__ import annotations

import importlib.metadata
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from safevla_bench.errors import HostError, InvalidActionError, PluginError
from safevla_bench.interface.environment import Host
from safevla_bench.interface.policy import Action, Wants, check_action
from safevla_bench.interface.task import EpisodeSeed, Task
from safevla_bench.plugins import NO_ARGUMENTS, PluginGroup, format_call, require_trust
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder import attachment
from safevla_recorder.attachment import TaskLabel
from safevla_recorder.recorder import EpisodeLog

GROUP = "safevla_bench.hosts"
REGISTRIES = "safevla_bench.registries"
"""Group of the entry points that name a host's file of tags: `module:attribute`, a path."""
_HOSTS = PluginGroup(GROUP, "host", "Hosts", HostError)
_REGISTRIES = PluginGroup(REGISTRIES, "the registry of host", "Registries", HostError)


def host_names() -> tuple[str, ...]:
    """Return the names of the hosts that are installed here, sorted."""
    return _HOSTS.names()


def host_owner(name: str) -> str:
    """Return the name of the distribution that offers a host; `nobody` if none does."""
    return _HOSTS.owner(name)


def describe_call(name: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> str | None:
    """Return the call of a host that a file must not choose, a plug-in's with arguments; None if the host is ours or
    has none.
    """
    return None if not arguments or _HOSTS.is_own(name) else format_call(f"host {name}", arguments)


def make_host(name: str, arguments: Mapping[str, str] = NO_ARGUMENTS, *, named_by: Path | None = None) -> Host:
    """Make the host of that name; `named_by` is the file that names it, None = the user did.

    Raises `RunError` if a file gives a plug-in arguments, `HostError`, with those there are, for an unknown host or
    argument, and `PluginError`, with the distribution, if the host cannot be loaded.
    """
    require_trust(named_by, [call] if (call := describe_call(name, arguments)) else [])
    made: Host = _HOSTS.make(name, arguments)
    return made


def registry_files(name: str) -> tuple[Path, ...]:
    """Return the files with the tags of a host's tasks; raises `PluginError`, with the distribution, for what is no
    file.
    """
    values = tuple(_REGISTRIES.load(name))
    for value in values:
        if not isinstance(value, str | os.PathLike) or not Path(value).is_file():
            owner = f"a fault of {_REGISTRIES.owner(name)}"
            remedy = f"Its entry point in {REGISTRIES} is to name the path of a .toml file: {owner}."
            raise PluginError(f"the registry of host {name!r} is no file: {value}", remedy=remedy)
    return tuple(map(Path, values))


def check_start(task: Task, seed: EpisodeSeed, *, takes_states: bool = True) -> None:
    """Raise `HostError` unless an episode of the task can start by this seed; for a host's `reset`.

    The environment's seed and the index are 0 or more. The index is below `Task.init_states`, if there is such a number
    and the start is neither drawn nor a recorded state. A `wait_action` is as long as `Task.still` and finite. There is
    a recorded state only if the host `takes_states`.
    """
    name = f"{task.benchmark} {task.task_id}"
    has_state = seed.recorded is not None and seed.recorded.state is not None
    if has_state and not takes_states:
        raise HostError(
            f"{name} starts from no recorded state",
            remedy="Replay by its initial state and seed, if the record has both.",
        )
    if seed.wait_action is not None:
        try:
            check_action(np.array(seed.wait_action), len(task.still))
        except InvalidActionError as error:
            still = ", ".join(f"{number:g}" for number in task.still)
            remedy = f"Give {len(task.still)} finite numbers; the task's own are {still}."
            raise HostError(f"{name} cannot settle by {error.problem}", remedy=remedy) from None
    if seed.env_seed < 0:
        problem = f"{name} cannot be seeded by {seed.env_seed}, which is below 0"
        raise HostError(problem, remedy="Give an environment seed of 0 or more.")
    index, count = seed.init_state_index, task.init_states
    if index < 0 and (seed.drawn or not count):
        problem = f"{name} has no episode {index}"
        raise HostError(problem, remedy="Its starts are drawn, and count from 0.")
    if count and (index < 0 or (index >= count and not (seed.drawn or has_state))):
        problem = f"{name} has no initial state {index}"
        raise HostError(problem, remedy=f"It has {count}: choose from 0 to {count - 1}.")


def drawn_reset_seed(seed: EpisodeSeed) -> int:
    """Return the 32-bit seed of a reset that places everything itself, made of `env_seed` and the index: that of
    episodes that are `drawn`, and of tasks without initial states.
    """
    return int(np.random.SeedSequence([seed.env_seed, seed.init_state_index]).generate_state(1)[0])


def episode_header(
    task: Task,
    seed: EpisodeSeed,
    *,
    success: bool,
    dt: float,
    target_object: str | None,
    versions: Mapping[str, str],
    **further: object,
) -> dict[str, object]:
    """Return the header of a host's episode, as `build_recording` takes it; `dt` in seconds. `further` are other
    fields of `safevla_bench.trajectory.Header`, such as `joint_torque_limit_nm`. It names no index if the episode
    starts from a recorded state.
    """
    is_recorded = seed.recorded is not None and seed.recorded.state is not None
    return attachment.episode_header(
        TaskLabel(task.benchmark, task.task_id, task.instruction),
        success=success,
        env_seed=seed.env_seed,
        index=None if is_recorded else seed.init_state_index,
        dt=dt,
        target_object=target_object,
        versions=dict(versions),
        **further,
    )


Log = TypeVar("Log", bound=EpisodeLog)


class RecordedEnv(ABC, Generic[Log]):
    """What environments share whose episode a recorder holds: bounds of ±1, the records, and their header."""

    dt_s: float
    embodiment: str
    torque_limit_nm: tuple[float, ...] | None = None
    """Of the arm's joints, base first, where they are not the embodiment's own."""

    def __init__(self, task: Task, wants: Wants, versions: Mapping[str, str], action_size: int) -> None:
        """Set bounds [A] of ±1; nothing is simulated."""
        self.task, self._wants, self._versions = task, wants, versions
        self.action_low: Action = np.full(action_size, -1.0)
        self.action_high: Action = np.full(action_size, 1.0)
        self._recorder: Log | None = None
        self._seed = EpisodeSeed(0, 0, 0)
        self._success = False

    @abstractmethod
    def _target_object(self) -> str | None:
        """Return the goal's first target."""

    def _extra_fields(self) -> dict[str, object]:
        return {}

    def _instruction(self) -> str:
        return self.task.instruction

    def recorded(self) -> Batch:
        """Return the episode so far as a validated batch of one; raises `HostError` before a reset."""
        recording = self._require_recorder().build_recording(self._build_header())
        return from_recording(replace(recording, extra=self._extra_fields()))

    def latest(self) -> Batch:
        """Return the newest record alone, without the host's own fields; raises `HostError` before a reset."""
        return from_recording(self._require_recorder().latest_record(self._build_header()))

    def _require_recorder(self) -> Log:
        if self._recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._recorder

    def _build_header(self) -> dict[str, object]:
        return episode_header(
            replace(self.task, instruction=self._instruction()),
            self._seed,
            success=self._success,
            dt=self.dt_s,
            target_object=self._target_object(),
            versions=self._versions,
            embodiment=self.embodiment,
            joint_torque_limit_nm=self.torque_limit_nm,
            dropped_pairs=self._require_recorder().dropped_pairs(),
        )


def check_wants(wants: Wants, cameras: Sequence[str], host: str, *, changes: str = "pose") -> None:
    """Raise `HostError` if a policy wants another camera, or gives poses where the host takes `changes` of them."""
    for camera in sorted(wants.cameras):
        require_known(host, "camera", camera, cameras)
    if wants.absolute and changes:
        problem = f"{host} takes changes of {changes}, and this policy gives poses"
        raise HostError(problem, remedy=f"Run it on LIBERO, or serve a model that gives changes of {changes}.")


def require_known(owner: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Raise `HostError`, with those there are, if `owner` has no suite, task, camera or the like of that name."""
    known = tuple(known)
    if name not in known:
        remedy = f"{kind.capitalize()}{'' if kind.endswith('s') else 's'}: {', '.join(known)}."
        raise HostError(f"{owner} has no {kind} {name!r}", remedy=remedy)


def read_versions(names: Iterable[str], simulator: str, remedy: str) -> dict[str, str]:
    """Return the versions of installed distributions; raises `HostError` if one is missing. Imports none of them."""
    try:
        return {name: importlib.metadata.version(name) for name in names}
    except importlib.metadata.PackageNotFoundError as error:
        problem = f"{simulator} is not installed: there is no distribution {error.name!r}"
        raise HostError(problem, remedy=remedy) from error
