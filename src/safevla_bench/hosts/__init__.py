"""Hosts: simulators with an attached recorder. Entry points of the group ``safevla_bench.hosts`` register them.

An entry point names a factory, which returns a `Host`. The factory's keyword parameters are optional strings. In the
group ``safevla_bench.registries``, the entry point named like a host lists files with the tags of the host's tasks.
"""

from __future__ import annotations

import importlib.metadata
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from safevla_bench.errors import HostError, InvalidActionError, PluginError
from safevla_bench.interface.environment import Host, HostEnv, HostSupport
from safevla_bench.interface.policy import Action, Wants, check_action, check_extra
from safevla_bench.interface.task import SEED_END, EpisodeSeed, Task
from safevla_bench.plugins import NO_ARGUMENTS, OWN_DISTRIBUTION, PluginGroup, format_call, require_trust
from safevla_bench.tasks.loader import load_registry
from safevla_bench.text import spell_suite
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import DRAWN
from safevla_bench.trajectory.single_episode import from_recording
from safevla_bench.version import __version__
from safevla_recorder import attachment, identity
from safevla_recorder.episode import SIMULATION, EpisodeArrays, add_header_field, add_header_mark
from safevla_recorder.recorder import WritableEpisode

GROUP = "safevla_bench.hosts"
REGISTRIES = "safevla_bench.registries"  # entry points of this group name files with the tags of a host's tasks
_HOSTS = PluginGroup(GROUP, "host", "Hosts", HostError)
NOTHING_OPTIONAL = HostSupport()
_REGISTRIES = PluginGroup(REGISTRIES, "task registry of host", "Registries", HostError)


def host_names() -> tuple[str, ...]:
    """Return the names of the installed hosts, sorted."""
    return _HOSTS.names()


def host_owner(name: str) -> str:
    """Return the name of the distribution that provides a host; "" if no installed distribution does."""
    return _HOSTS.owner(name)


def describe_call(name: str, arguments: Mapping[str, str] = NO_ARGUMENTS) -> str | None:
    """Return the call that makes a plug-in host, as a text with the host's name and arguments. Untrusted files must not
    request this call. Return None if this package provides the host, or there are no arguments.
    """
    # A plug-in is another distribution's code, which might do anything with the arguments.
    # For example, the result is "host my-host(path='/data')". `arguments` maps names to texts.
    return format_call(f"host {name}", arguments) if arguments and not _HOSTS.is_own(name) else None


def make_host(name: str, arguments: Mapping[str, str] = NO_ARGUMENTS, *, named_by: Path | None = None) -> Host:
    """Make a host by name. `named_by` is the file that contains the name; None if the user gave the name.

    Raises `RunError` if an untrusted file gives arguments to a plug-in. Raises `HostError`, with the known names, for
    an unknown host or an unknown argument. Raises `PluginError`, which names the distribution, if loading fails.
    """
    # `arguments` maps names of the host's parameters to texts. `call` is None if no trust in the file is needed.
    call = describe_call(name, arguments)
    require_trust(named_by, [call] if call else [])
    host: Host = _HOSTS.make(name, arguments)
    return host


def record_versions(host: Host) -> dict[str, str]:
    """Return a mapping from package to version for all packages that affect records: the host's packages and this
    package. The version of this package is read from its code, because the installation's metadata may be older.
    """
    return {**host.versions(), OWN_DISTRIBUTION: __version__}


def describe_code(host: Host) -> str:
    """Return a text that identifies the code of the host and its recorder: see `identity.describe_code`."""
    # The first part of the module's name is the package that defines the host.
    return identity.describe_code(type(host).__module__.partition(".")[0])


def describe_suite(host: str, suite: str) -> str | None:
    """Return a text that names the task files if `suite` is a path; None if `suite` is the name of a suite."""
    # An untrusted file must not choose a path. The result of this function becomes part of the error message.
    # `host` is the host's name. `suite` is a suite's name, or the path of a BDDL file or of a folder with task files.
    # `is_own` is true for hosts of this package. `spell_suite` makes `libero_goal` and `LIBERO-Goal` equal.
    is_path = "/" in suite or suite.endswith(".bddl")
    if not is_path and Path(suite).exists():  # a suite of the host has priority over an existing path
        own_suites = make_host(host).suites() if _HOSTS.is_own(host) else ()
        is_path = spell_suite(suite) not in map(spell_suite, own_suites)
    return f"the task files at {suite}" if is_path else None


def list_tasks(host: Host, suite: str, named_by: Path | None) -> tuple[Task, ...]:
    """Return a suite's tasks. `named_by` is the file that names the suite; None if the user named it. Raises `RunError`
    if an untrusted file names a path to task files. Also raises the errors of `Host.tasks`.
    """
    task_files = describe_suite(host.name, suite)
    require_trust(named_by, [task_files] if task_files else [])
    return host.tasks(suite)


def registry_files(name: str) -> tuple[Path, ...]:
    """Return the paths of the files that hold the tags of a host's tasks. Raises `PluginError`, which names the
    distribution, if an entry point does not name an existing file.
    """
    # `name` is the host's name. A distribution that provides a host lists the files in an entry point.
    # The tags select the specifications by which a task's records are judged.
    paths = tuple(_REGISTRIES.load(name))
    for path in paths:
        if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
            report_request = f"please report this to the authors of {_REGISTRIES.owner(name)}"
            remedy = f"Its entry point in {REGISTRIES} must name the path of a .toml file; {report_request}."
            raise PluginError(f"the registry of host {name!r} is not a file: {path}", remedy=remedy)
    return tuple(map(Path, paths))


def check_start(task: Task, seed: EpisodeSeed, supports: HostSupport = NOTHING_OPTIONAL) -> None:
    """Raise `HostError` unless a host with the abilities `supports` can start an episode of the task from this seed.

    A run checks all planned episodes before the first one starts, and a host checks each episode in `reset`. `env_seed`
    must be from 0 to 2**32 - 1, and `init_state_index` 0 or more. If the episode starts from an initial state of the
    task, the index must be below the number of initial states. `wait_action` must be finite and have the length of
    `Task.still`. `supports` must include each ability that the start needs: recorded states, placements, physics
    changes or drawn starts.
    """
    # The first checks concern optional abilities: recorded states, placements, physics changes and drawn starts.
    # Each entry of `seed.placed` is the name of a coordinate, such as `cup.x`, and the coordinate's value [m].
    # `Task.still` is the action that moves nothing.
    full_name = f"{task.benchmark} {task.task_id}"
    has_state = seed.recorded is not None and seed.recorded.state is not None
    if has_state and not supports.states:
        remedy = "Replay the episode from its initial state and seed, if its record has both."
        raise HostError(f"{full_name} cannot start from a recorded state", remedy=remedy)
    if seed.placed and (has_state or not supports.placed):
        problem = f"{full_name} cannot start with {seed.placed[0][0]} at a chosen place"
        raise HostError(problem, remedy="Use a host that can place objects; docs/reference/hosts.md lists the hosts.")
    # Names of the fields of `PhysicsChange` that the start changes, but the host cannot change.
    unsupported = seed.change.changed - supports.changeable if seed.change else ()
    if unsupported:
        problem = f"{full_name} cannot change its physics ({', '.join(sorted(unsupported))})"
        raise HostError(problem, remedy="Use a host that can change physics; docs/reference/hosts.md lists the hosts.")
    if seed.drawn and task.init_states and not supports.drawn:
        problem = f"{full_name} starts only from its initial states"
        raise HostError(problem, remedy="Use a protocol whose `init_state` is not `drawn`.")
    if seed.wait_action is not None:
        try:
            check_action(np.array(seed.wait_action), len(task.still))
        except InvalidActionError as error:
            default_action = ", ".join(f"{number:g}" for number in task.still)
            remedy = f"Give {len(task.still)} finite numbers; by default the task uses {default_action}."
            raise HostError(f"{full_name} cannot use this settling action: {error.problem}", remedy=remedy) from None
    if not 0 <= seed.env_seed < SEED_END:
        problem = f"{full_name} cannot use the seed {seed.env_seed}"
        raise HostError(problem, remedy="Give an environment seed of 0 or more and below 2**32.")
    # `count` is the number of the task's fixed initial states; None if seeds draw the initial states.
    index, count = seed.init_state_index, task.init_states
    if index < 0 and (seed.drawn or not count):
        problem = f"{full_name} has no episode {index}"
        raise HostError(problem, remedy="Give an index of 0 or more; each index draws another initial state.")
    # Drawn and recorded starts do not use the initial states of the task, so any index of 0 or more is valid.
    needs_initial_state = not (seed.drawn or has_state)
    if count and (index < 0 or (needs_initial_state and index >= count)):
        problem = f"{full_name} has no initial state {index}"
        raise HostError(problem, remedy=f"The task has {count} initial states; give an index from 0 to {count - 1}.")


def drawn_reset_seed(seed: EpisodeSeed) -> int:
    """Return a 32-bit seed, computed from `env_seed` and the episode's index, for a reset that places all objects at
    random. Episodes with a `drawn` start and tasks without initial states use such resets.
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
    """Return the header of a host's episode for `build_recording`; `dt` is in seconds. `further` holds additional
    fields of `safevla_bench.trajectory.Header`, such as `joint_torque_limit_nm`. The header of an episode that starts
    from a recorded state has no `init_state_index`.
    """
    # `target_object` is the name of the goal's first target, or None. `versions` maps packages to versions.
    is_recorded = seed.recorded is not None and seed.recorded.state is not None
    return attachment.episode_header(
        attachment.TaskLabel(task.benchmark, task.task_id, task.instruction),
        success=success,
        env_seed=seed.env_seed,
        index=None if is_recorded else seed.init_state_index,
        dt=dt,
        target_object=target_object,
        versions=dict(versions),
        **further,
    )


class RecordLog(WritableEpisode, Protocol):
    """The records of one episode, with the methods of `safevla_recorder.recorder.EpisodeLog`."""

    def latest_record(self, header: Mapping[str, object]) -> EpisodeArrays:
        # Returns an episode that has the given header and only the newest record.
        ...


Log = TypeVar("Log", bound=RecordLog)


class RecordedEnv(HostEnv, Generic[Log]):
    """Base class of environments that record their episodes. By default, the bounds of actions are -1 and 1."""

    embodiment: str
    torque_limit_nm: tuple[float, ...] | None = None  # torque limits [N·m], base first; None = the embodiment's limits
    _identity = identity.TaskIdentity()

    def __init__(self, task: Task, wants: Wants, versions: Mapping[str, str], action_size: int) -> None:
        """Set the bounds of all action values to -1 and 1. This starts no simulation."""
        # `wants` lists what observations must contain. `versions` maps packages to versions, for the record's header.
        # `action_size` is the number of values in an action. The recorder is None until the first reset.
        self.task, self._wants, self._versions = task, wants, versions
        self.action_low: Action = np.full(action_size, -1.0)
        self.action_high: Action = np.full(action_size, 1.0)
        self._recorder: Log | None = None
        # Each reset replaces `_seed` and `_success`.
        self._seed = EpisodeSeed(init_state_index=0, env_seed=0, wait_steps=0)
        self._success = False

    @abstractmethod
    def _target_object(self) -> str | None:
        """Return the name of the goal's first target; None if the goal has no target."""

    def _extra_fields(self) -> dict[str, object]:
        # Returns the host's entries for `extra` in the record. The entry `header` holds additional header fields.
        # A mark is a header field that is true. Every start of a task without initial states is drawn at random.
        # Therefore, a drawn start gets a mark only if the task has initial states.
        return add_header_mark({}, DRAWN) if self._seed.drawn and self.task.init_states else {}

    def _read_simulation(self) -> dict[str, object]:
        # Returns facts about how the simulator runs, such as its renderer, for the record's header; {} = no such facts.
        # None stands for an environment that is not robosuite's, so that only facts about NumPy's OpenBLAS are known.
        return attachment.read_simulation(None)

    def _instruction(self) -> str:
        # Returns the episode's instruction; a host overrides this if a reset determines the instruction.
        return self.task.instruction

    def recorded(self) -> Batch:
        """Return the episode up to now as a validated one-episode batch; raise `HostError` before the first reset."""
        # `extra` holds host-specific fields. Its entry `header` has additional header fields.
        # One of the additional header fields is `simulation`: facts about how the simulator runs.
        recording = self._require_recorder().build_recording(self._build_header())
        extra, simulation = self._extra_fields(), self._read_simulation()
        extra = add_header_field(extra, SIMULATION, simulation) if simulation else extra
        # The recorder's header fields are added last, so they replace the host's header fields of the same name.
        recorded_header = recording.extra.get("header", {})
        if isinstance(recorded_header, Mapping):
            for name, value in recorded_header.items():
                extra = add_header_field(extra, name, value)
        return from_recording(replace(recording, extra=extra))

    def latest(self) -> Batch:
        """Return only the newest record, without host-specific fields; raise `HostError` before the first reset."""
        return from_recording(self._require_recorder().latest_record(self._build_header()))

    def _require_recorder(self) -> Log:
        # Returns the current episode's recorder. Raises `HostError` before the first reset, when no recorder exists.
        if self._recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._recorder

    def _build_header(self) -> dict[str, object]:
        # Returns the header of the current episode. `success` is the newest value; `dt_s` is a control step [s].
        # `dropped_pairs` are the pairs of bodies whose contacts the recorder leaves out.
        # The fields of `_identity` identify the task's files. `embodiment` is the robot's name.
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
            **self._identity.header_fields(),
        )


def check_wants(wants: Wants, supports: HostSupport = NOTHING_OPTIONAL, host: str = "the host") -> None:
    """Raise `HostError` if a policy gives absolute poses that the host cannot use, or wants a camera or an extra
    observation that the host lacks. Runs check all policies before the first episode; hosts check in `make`.
    """
    # `wants` is the policy's request. `supports` lists the host's abilities. `host` is the host's name in errors.
    # Some extra observations are available only to policies that also want privileged simulator state.
    # `supports.changes` names the quantity that an action changes, such as `position`.
    if wants.cameras and not supports.cameras:
        raise HostError(f"{host} cannot render camera images", remedy="Use a policy that needs no camera.")
    for camera in sorted(wants.cameras):
        require_known(host, "camera", camera, supports.cameras)
    privileged_readings = supports.privileged_readings if wants.privileged else ()
    check_extra(wants, (*supports.readings, *privileged_readings), host)
    if wants.absolute and not supports.absolute:
        problem = f"this policy gives poses, but {host} accepts only relative actions (changes of {supports.changes})"
        raise HostError(problem, remedy=f"Use LIBERO, or a policy that gives changes of {supports.changes}.")


def require_known(owner: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Raise `HostError` with a list of the known names unless `owner` has a suite, task or camera with this name."""
    # `owner` and `kind` are words for the error's text, such as "LIBERO" and "suite".
    known = tuple(known)  # `known` may be an iterator, which can be read only once
    if name not in known:
        plural = kind if kind.endswith("s") else f"{kind}s"  # the word `horizons` already ends with s
        raise HostError(f"{owner} has no {kind} {name!r}", remedy=f"{plural.capitalize()}: {', '.join(known)}.")


def registered_task(suite: str, name: str, index: int, still: tuple[float, ...], **further: Any) -> Task:
    """Return a task with the registry's instruction (default: `name`). `further` has additional fields of `Task`."""
    # The registry is this package's list of tasks. `name` is the task's name there, and also becomes the task's id.
    # `still` is the action that moves nothing. Raises `KeyError` if the registry lacks the task.
    instruction = load_registry().tasks[suite, name].instruction or name
    return Task(suite, name, index, name, instruction, still, **further)


def read_versions(names: Iterable[str], simulator: str, remedy: str) -> dict[str, str]:
    """Return the versions of installed distributions without importing them; raise `HostError` if one is missing."""
    # `names` are the names of distributions. `simulator` and `remedy` are texts for the error.
    try:
        return {name: importlib.metadata.version(name) for name in names}
    except importlib.metadata.PackageNotFoundError as error:
        problem = f"{simulator} is not installed: there is no distribution {error.name!r}"
        raise HostError(problem, remedy=remedy) from error
