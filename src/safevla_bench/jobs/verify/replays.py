"""Replays of recorded episodes: play the recorded actions again, record the replay, and compare the two records.

A replay shows that the actions lead to the record. It does not show where the actions came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from safevla_bench import hosts, plugins
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import HostError, Place, RunError, SafevlaError
from safevla_bench.hosts.mujoco.viewer import episode_seed, recorded_fixtures
from safevla_bench.hosts.protocols import EvaluationProtocol, load_protocol
from safevla_bench.interface.environment import Host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode, Task
from safevla_bench.jobs.verify import files
from safevla_bench.rollout.plan import PlannedEpisode, plan_episodes
from safevla_bench.sources.runs.episode_index import EpisodeIndex
from safevla_bench.sources.runs.folder import RUN, read_description
from safevla_bench.text import count_noun
from safevla_bench.trajectory import marks
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header
from safevla_recorder import robocasa
from safevla_recorder.attachment import openblas_kernel
from safevla_recorder.channels import CHANNELS, HANDLING, LINK_MOTION, NET_IMPULSE, SUBGOAL_NAMES, SUBGOALS, UNREPLAYED
from safevla_recorder.episode import EARLIER_SEED, FIXTURES, SIMULATION, STATES_SET, Floats, add_header_field
from safevla_recorder.folder import OWN_LOOP
from safevla_recorder.identity import TaskIdentity, find_official_name

ProgressCallback = Callable[[int, str], None]
"""Function called before each episode. The arguments are the number of finished episodes and the next episode's id."""
REPLAY = "replay"
# Tolerance (absolute plus relative) for replays that begin at a recorded state.
_STATE_TOLERANCE = 1e-5
GEOMETRY = "geometry"
PROCESSOR = (
    "The kernels of OpenBLAS depend on the processor, so on another processor the last digits may differ, and "
    "after contacts even more digits. Replay on the same kind of processor before you suspect the records."
)


# Comparison of records and replays


UNJUDGED = ("sim_state", *HANDLING, LINK_MOTION, SUBGOALS)
"""Channels that a record may lack, because no clause reads them or older recorders did not write them."""
OF_LAST_STEP = (
    "contacts", "joint_torque_nm", "joint_torque_peak_nm", "gripper_contact", "gripped_body", "supported", SUBGOALS
)  # fmt: skip
"""Channels that depend on the previous step. A simulator state does not contain the previous step."""
_PLANNED_FIELDS = ("episode_id", "env_seed", "init_state_index", "seed", "horizon")
# Header fields that `compare_records` ignores. The run or the start determines them, or another check compares them.
_RUN_FIELDS = frozenset(
    (*_PLANNED_FIELDS, "schema_version", "policy", "outcome", "success", "versions", "steps")
    + (marks.PRIVILEGED, marks.STOPPED_ON_VIOLATION, marks.CLIPPED, marks.CLIPPED_NUMBERS, marks.DIVERGED, "replay")
    + (marks.DELAY, marks.CHOSEN, "benchmark", SIMULATION)
)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first difference between a record and its replay in one channel or header field."""

    channel: str
    text: str  # place in the channel, such as `body_pos_m.cup[0]`, with the values there
    step: int | None = None  # index of the differing record in the episode; None for the header

    @classmethod
    def of(cls, field: str, recorded: object, other: object, source: str = "replay", place: str = "") -> Self:
        """Return the difference at `place` between a record's value and the source's value. `ABSENT` means no value."""
        both_values = f"the record has {files.format_value(recorded)}, the {source} has {files.format_value(other)}"
        return cls(field, f"{place or field}: {both_values}")

    def __str__(self) -> str:
        # The difference as a phrase. A difference in the header has no step.
        return self.text if self.step is None else f"step {self.step}, {self.text}"


_Step = dict[str, msgspec.Raw]


class _Line(msgspec.Struct):
    steps: list[_Step]


def compare_records(
    recorded: Batch, replayed: Batch, *, lenient: bool = False, from_state: bool = False
) -> tuple[list[Deviation], list[str]]:
    """Return the first difference in each channel and header field, earliest first, and the names of uncompared parts.

    Numbers must be equal bit for bit. A channel that only the replay has is a difference, with two exceptions: channels
    that older records lack (`UNJUDGED` channels and net impulses), and any channel if `lenient` is true. These are not
    compared. `from_state`: the replay began at a recorded state. The comparison is then lenient, allows differences up
    to `_STATE_TOLERANCE`, and ignores values of record 0 that depend on the previous step.
    """
    lenient = lenient or from_state
    tolerance = _STATE_TOLERANCE if from_state else 0.0
    uncompared = ["forces and grip of record 0"] if from_state else []
    impulse = replayed.contacts.net_impulse_ns
    if np.isnan(recorded.contacts.net_impulse_ns).all() and not np.isnan(impulse).all():
        uncompared.append(NET_IMPULSE)
        replayed = replace(replayed, contacts=replace(replayed.contacts, net_impulse_ns=np.full_like(impulse, np.nan)))
    lines = [encode_json(batch) for batch in (recorded, replayed)]  # an episode as a JSON object: header and steps
    recorded_steps, replayed_steps = (msgspec.json.decode(line, type=_Line).steps for line in lines)
    recorded_header, replayed_header = map(json.loads, lines)
    # Do not compare the geometry in two cases. First, a replay may begin at a simulator state.
    # In a recording, record 0 contains link poses from before the simulator's last step; a state lacks these poses.
    # Second, a user's script may draw fixture poses without recording them.
    if from_state or (lenient and FIXTURES not in recorded_header):
        if GEOMETRY in recorded_header:
            uncompared.append(GEOMETRY)
        for header in (recorded_header, replayed_header):
            header.pop(GEOMETRY, None)
    differences = list(_find_header_differences(recorded_header, replayed_header, lenient=lenient))
    if len(recorded_steps) != len(replayed_steps):
        differences.append(Deviation.of("steps", len(recorded_steps), len(replayed_steps)))
    for name in (spec.name for spec in CHANNELS):
        is_recorded = any(name in step for step in recorded_steps)
        is_replayed = any(name in step for step in replayed_steps)
        if name in UNREPLAYED or (from_state and name == LINK_MOTION):  # link motion depends on record 0
            if is_recorded:
                uncompared.append(name)
        elif is_replayed and not is_recorded and (lenient or name in UNJUDGED):
            uncompared.append(name)
        else:
            # If a replay begins at a state, a channel that depends on the previous step is compared from record 1 on.
            first = 1 if from_state and name in OF_LAST_STEP else 0
            differences += islice(_find_channel_differences(name, recorded_steps, replayed_steps, tolerance, first), 1)
    return sorted(differences, key=lambda difference: difference.step or 0), uncompared


def _find_header_differences(
    recorded: Mapping[str, object], replayed: Mapping[str, object], *, lenient: bool
) -> Iterator[Deviation]:
    # Yield the first difference in each header field. If `lenient`, ignore fields that the record lacks.
    # Older recorders did not write the fields in `newer_names`, so compare only those that the record has.
    # Compare fixture poses only if both the record and the replay contain fixture poses.
    # `_RUN_FIELDS` are not compared here: the run or the start determines them, or another check compares them.
    if lenient:
        names = {marks.STANDIN, *(recorded.keys() & {"body_roles", FIXTURES, *Header.__struct_fields__})}
    else:
        newer_names = {*TaskIdentity().header_fields(), GEOMETRY, SUBGOAL_NAMES}
        names = {*recorded, *replayed} - (newer_names - recorded.keys())
    if FIXTURES not in recorded or FIXTURES not in replayed:
        names.discard(FIXTURES)
    for name in sorted(names - _RUN_FIELDS):
        recorded_value, replayed_value = recorded.get(name, files.ABSENT), replayed.get(name, files.ABSENT)
        if name == robocasa.RecordableKitchen.host and files.ABSENT not in (recorded_value, replayed_value):
            # Older records list a kitchen's groups in arbitrary (hash) order, so `to_plain` sorts the groups.
            recorded_value, replayed_value = map(robocasa.to_plain, (recorded_value, replayed_value))
        yield from _first_difference(name, recorded_value, replayed_value)


def _find_channel_differences(
    name: str, recorded: Sequence[_Step], replayed: Sequence[_Step], tolerance: float, first: int
) -> Iterator[Deviation]:
    # Yield the first difference in each record, beginning with record `first`. b"" stands for a missing channel.
    record_pairs = zip(recorded[first:], replayed[first:], strict=False)
    for step, (recorded_values, replayed_values) in enumerate(record_pairs, start=first):
        recorded_json, replayed_json = bytes(recorded_values.get(name, b"")), bytes(replayed_values.get(name, b""))
        if recorded_json == replayed_json:  # equal bytes, the usual case, need no decoding
            continue
        recorded_value = msgspec.json.decode(recorded_json) if recorded_json else files.ABSENT
        replayed_value = msgspec.json.decode(replayed_json) if replayed_json else files.ABSENT
        for difference in _first_difference(name, recorded_value, replayed_value, tolerance):
            yield replace(difference, step=step)


def _first_difference(name: str, recorded: object, replayed: object, tolerance: float = 0.0) -> Iterator[Deviation]:
    # Yield the first difference of two JSON values. Yield nothing if they are equal.
    differences = files.value_differences(recorded, replayed, name, tolerance)
    for field, recorded_value, replayed_value in islice(differences, 1):
        yield Deviation.of(name, recorded_value, replayed_value, place=field)


def plan_differences(header: Header, planned: PlannedEpisode) -> list[Deviation]:
    """Return the differences in id, start, seed and horizon between a record and the planned episode."""
    start = planned.start
    # In the order of `_PLANNED_FIELDS`:
    expected = (planned.episode_id, start.env_seed, start.init_state_index, planned.seed, planned.horizon)
    pairs = [(name, getattr(header, name), value) for name, value in zip(_PLANNED_FIELDS, expected, strict=True)]
    return [Deviation.of(name, recorded, value, "plan") for name, recorded, value in pairs if recorded != value]


def outcome_differences(header: Header, successes: Sequence[bool], planned: PlannedEpisode | None) -> list[Deviation]:
    """Return the differences between a record and its replay in success and outcome. Also return a difference if the
    record continues after its planned end. `successes` lists the replay's success after each action. `planned` is None
    if no plan determines the start and the horizon.
    """
    steps, success = len(successes), bool(successes and successes[-1])  # an episode without steps has no success
    differences = [] if header.success == success else [Deviation.of("success", header.success, success)]
    # The outcomes that agree with the replay.
    # Before its horizon, a planned episode without success ends only by an invalid action or by a stop.
    possible_outcomes: tuple[str, ...] = ("invalid_action", "stopped")
    if success:
        possible_outcomes = ("success",)
    elif planned is None:
        possible_outcomes = ("failure", "timeout", *possible_outcomes)
    elif steps == planned.horizon:
        possible_outcomes = ("timeout",)
    if header.outcome_label not in possible_outcomes:
        differences.append(Deviation.of("outcome", header.outcome, " or ".join(possible_outcomes)))
    # A planned episode ends at the first success or at the horizon. The record must not continue afterwards.
    if planned and planned.stop_at_success and True in successes[:-1]:
        differences.append(replace(Deviation.of("success", False, True), step=successes.index(True) + 1))
    if planned and steps > planned.horizon:
        differences.append(Deviation.of("steps", steps, planned.horizon, "plan"))
    return differences


# Replays


@dataclass(frozen=True)
class ReplaySetting:
    """Data that all replays of a run share: the host, its tasks and versions, and how the run's episodes begin."""

    host: Host
    tasks: Mapping[tuple[str, str], Task]
    versions: Mapping[str, str]
    rules: EvaluationProtocol
    run: RunFields
    is_audit: bool = False  # in an audit, episodes of an official suite must begin at the suite's planned starts

    @classmethod
    def read(cls, run: Path, *, is_audit: bool = False) -> Self:
        """Read a run folder's setting. Raises `RunError` if the run is incomplete, or names no host or no protocol."""
        place, remedy = Place(file=str(run)), "Name a complete run folder, as `safevla eval` makes them."
        description = read_description(run) if (run / RUN).is_file() else {}
        if description.get("complete") is not True:
            raise RunError("only a complete run can be replayed", remedy=remedy, place=place)
        if description.get("host", "") is None:  # for instance, a user's own loop with a simulator that has no host
            problem = "run.json names no host, so the recorded actions cannot be played again"
            add_host = "Omit replays, or add a host for your simulator: see docs/howto/adding-a-host.md."
            raise RunError(problem, remedy=add_host, place=place)
        try:
            rules = msgspec.convert(complete_protocol(description.get("protocol")), EvaluationProtocol)
            fields = msgspec.convert(description, RunFields)
        except msgspec.ValidationError:
            raise RunError("run.json does not say how an episode starts", remedy=remedy, place=place) from None
        host = hosts.make_host(fields.host, fields.host_arguments, named_by=run / RUN)
        suites = map(_resolve_suite, fields.suites)
        all_tasks = (task for suite in suites for task in hosts.list_tasks(host, suite, run / RUN))
        tasks = {(task.benchmark, task.task_id): task for task in all_tasks}
        return cls(host, tasks, host.versions(), rules, fields, is_audit)

    @property
    def is_own_loop(self) -> bool:
        """Whether a user's script with the recorder made the run, instead of `safevla eval`."""
        return self.rules.name == OWN_LOOP

    def find_task(self, header: Header) -> Task | None:
        """Return an episode's task; None if the host lacks it. Insert the instruction if a search chose one."""
        task = self.tasks.get((marks.base_suite(header.benchmark), header.task_id))
        if task and header.instruction and marks.is_chosen(header.benchmark):
            return replace(task, instruction=header.instruction)
        return task

    def plan(self, header: Header) -> PlannedEpisode | None:
        """Return the planned episode that a record's id names; None if no plan determines the record's start."""
        if self.is_own_loop or marks.is_chosen(header.benchmark):
            return None
        policy = header.policy or ""
        # A replayed recording determined the start, unless this is an audit of an official suite.
        if not self.needs_planned_start(header) and (header.policy is None or self.run.has_replayed(policy)):
            return None
        task, number_text = self.tasks[header.benchmark, header.task_id], header.episode_id.rpartition("ep_")[2]
        # An id without a valid number is planned as episode 0. `plan_differences` then reports the different id.
        episode = int(number_text) if number_text.isdecimal() and len(number_text) < 10 else 0
        # `recorded` makes `plan_episodes` plan only the episode with this number, so the number of episodes is None.
        recorded = {(policy, task): [episode]}
        (planned,) = plan_episodes(
            [task], None, [policy], self.rules, seed=self.run.seed or 0, max_steps=self.run.max_steps, recorded=recorded
        )
        # If the policy's server may choose the environment's seed, only the record contains the chosen seed.
        if header.env_seed is None or not planned.seed_from_server:
            return planned
        return replace(planned, start=replace(planned.start, env_seed=header.env_seed))

    def needs_planned_start(self, header: Header) -> bool:
        """Return whether a replay must begin at a start of the official suite that the episode names."""
        return self.is_audit and find_official_name(header.benchmark) is not None

    def find_starts(self, episode: Batch) -> tuple[Task, PlannedEpisode | None, list[EpisodeSeed]]:
        """Return task, planned episode (or None) and the starts to try. Raises `RunError` if a replay is impossible."""
        header, task = episode.headers[0], self.find_task(episode.headers[0])
        if task is None:
            raise RunError(f"the host has no task {header.task_id!r} in {header.benchmark!r}")
        if not episode.action.present[0]:
            raise RunError("the record has no action")
        # Another version of a simulator package may compute other states; the version of this package does not matter.
        for name, recorded in (header.versions or {}).items():
            if name != plugins.OWN_DISTRIBUTION and self.versions.get(name) != recorded:
                raise RunError(f"recorded with {name} {recorded}; installed here: {self.versions.get(name, 'none')}")
        planned = self.plan(header)
        starts = [planned.start] if planned else list(episode_starts(self.rules, episode))
        if not planned and self.needs_planned_start(header):
            # Drop starts that are not initial states of the suite.
            starts = [start for start in starts if not (start.recorded or start.placed or start.drawn)]
            if not starts or marks.start_marks(episode)[0]:
                raise RunError("the episode did not begin at an initial state of the suite, or its record names none")
        if not starts:
            raise RunError("the record has neither seed and initial state nor the positions of its fixtures")
        return task, planned, starts


def check_replays(
    run: Path, records: EpisodeIndex, indices: Sequence[int], observer: ProgressCallback, *, is_audit: bool = False
) -> list[files.Finding]:
    """Replay the recorded episodes at these indices in the run's host; return one result per episode. If no replay is
    possible here, return one open check with the reason. Raises `RunError` if the archive changes during the replays.
    """
    try:
        setting = ReplaySetting.read(run, is_audit=is_audit)
    except SafevlaError as error:
        return [files.open_check(REPLAY, f"nothing can be replayed here: {error}")]
    findings = []
    for done, index in enumerate(indices):
        observer(done, records.headers[index].episode_id)
        findings.append(_check_replay(setting, records.read_episode(index)))
    return findings


class _PolicyFields(msgspec.Struct):
    policy: str
    spec: str | None = None


class RunFields(msgspec.Struct):
    """The fields of run.json that, together with the protocol, determine the host and the plan of episodes."""

    host: str
    host_arguments: dict[str, str] = {}
    suites: tuple[str, ...] = ()
    seed: int | None = None
    max_steps: int | None = None
    policies: tuple[_PolicyFields, ...] = ()

    def has_replayed(self, policy: str) -> bool:
        """Return whether the policy played a recording. If so, the recording determined the initial states."""
        return any(row.policy == policy and (row.spec or policy).startswith("replay:") for row in self.policies)


def _resolve_suite(suite: str) -> str:
    """Return the official suite whose name or path is `suite`. If no official suite matches, return `suite`."""
    # A suite may be the path of a folder with task files, or the path of one task file in such a folder.
    for path in (Path(suite), Path(suite).parent):
        official_name = find_official_name(path.name)
        if official_name:
            return official_name
    return suite


def complete_protocol(protocol: object) -> object:
    """Return run.json's protocol, and add the fields of `EvaluationProtocol` that it lacks, for `msgspec.convert`."""
    if not isinstance(protocol, Mapping):
        return protocol  # invalid: `msgspec.convert` raises an error
    # run.json omits the texts `about` and `sources`, which do not influence episodes.
    if protocol.get("name") != OWN_LOOP:
        return {**protocol, "about": "", "sources": {}}
    wait_steps = protocol.get("wait_steps")
    # The run.json of a user's script lists each distinct number of waiting steps that its episodes used.
    # If the list contains only one number, this number applies to all episodes.
    steps = wait_steps[0] if isinstance(wait_steps, list) and len(wait_steps) == 1 else None
    return {**msgspec.to_builtins(load_protocol()), "name": OWN_LOOP, "wait_steps": steps, "wait_steps_by_suite": {}}


def choose_episodes(headers: Sequence[Header], count: int, salt: str = "") -> list[int]:
    """Draw up to `count` episodes: those with the smallest `draw_key`. Return the drawn indices in ascending order."""
    by_draw_key = sorted(range(len(headers)), key=lambda index: draw_key(headers[index], salt))
    return sorted(by_draw_key[:count])


def draw_key(header: Header, salt: str = "") -> bytes:
    """Return one digest of the salt, policy and episode id. A draw takes the episodes with the smallest digests."""
    # Digests make the draw independent of the order of episodes; a later salt makes the draw unforeseeable.
    return hashlib.sha256(f"{salt}{header.policy}\n{header.episode_id}".encode()).digest()


def _check_replay(setting: ReplaySetting, episode: Batch) -> files.Finding:
    # Replay the episode from each possible start until a replay agrees, and return the last result.
    check = f"{REPLAY} {episode.headers[0].episode_id}"
    try:
        task, planned, starts = setting.find_starts(episode)
    except RunError as error:
        return files.open_check(check, str(error))
    misplanned = plan_differences(episode.headers[0], planned) if planned else []
    # The record itself contradicts the plan, so no replay is needed.
    if misplanned:
        return files.mismatch(check, "; ".join(map(str, misplanned)))
    for start in starts:
        try:
            replayed = replay_actions(setting.host, task, start, episode)
        except SafevlaError as error:
            finding = files.open_check(check, f"the host cannot replay the episode here: {error}")
        except Exception as error:  # a simulator can raise any error
            finding = files.mismatch(check, f"the simulator raised {type(error).__name__}: {error}. {PROCESSOR}")
        else:
            finding = _compare_replay(episode, replayed, start, planned, lenient=setting.is_own_loop)
        if finding.verdict == "agrees":
            break
    return finding


def _compare_replay(
    episode: Batch,
    replay: tuple[Batch, list[bool]],
    start: EpisodeSeed,
    planned: PlannedEpisode | None,
    *,
    lenient: bool,
) -> files.Finding:
    # Return the result of checking the replay that began at `start`. Usually, any difference from the record is a
    # mismatch. If `start` is a recorded state, or if the user's loop had another control step, differences leave the
    # check open.
    # `lenient` means that a user's own loop made the record; `planned` is None if no plan determines the start.
    check = f"{REPLAY} {episode.headers[0].episode_id}"
    replayed, successes = replay
    from_state = start.recorded is not None and start.recorded.state is not None
    differences, uncompared = compare_records(episode, replayed, lenient=lenient, from_state=from_state)
    if not planned:
        uncompared += ["horizon", "planned start"]
    differences = [*outcome_differences(episode.headers[0], successes, planned), *differences]
    if differences:
        detail = _describe_differences(differences, uncompared, _read_simulation(episode))
        if not from_state:
            cause = _find_step_cause(episode, replayed) if lenient else ""
            if cause:
                return files.open_check(check, f"{cause} {detail}")
            return files.mismatch(check, detail + (_describe_states_set(episode) if lenient else ""))
        caveat = _SOFT_RESETS if _had_soft_resets(episode) else ""
        caveat += "The replay began at the recorded first state, without the internal state of solver and controllers."
        return files.open_check(check, f"{detail} {caveat}")
    agreement = f"within {_STATE_TOLERANCE:g}, from its recorded first state" if from_state else "bit for bit"
    if start.earlier_resets and not from_state:
        agreement += f", with seed {start.env_seed} and {start.earlier_resets} earlier resets"
    detail = f"{count_noun(len(successes) + 1, 'record')}, {agreement}"
    if marks.standin_benchmarks(episode):
        detail += "; record and replay used stand-ins for the host's assets"
    if uncompared:
        detail += f"; not compared: {', '.join(uncompared)}"
    return replace(files.agreement(check, detail), uncompared=tuple(uncompared))


class _Simulation(msgspec.Struct):
    offscreen_renderer: bool | None = None
    as_rendered: bool | None = None
    """Whether resets computed forward dynamics. This package's resets do so only if the host has a renderer."""
    hard_reset: bool | None = None
    openblas_kernel: str | None = None


def _read_simulation(episode: Batch) -> _Simulation:
    # Return what the record's header says about the simulation; defaults if the header is damaged.
    try:
        return msgspec.convert(marks.host_header(episode.extra[0]).get(SIMULATION, {}), _Simulation)
    except msgspec.ValidationError:
        return _Simulation()


_DT_TOLERANCE = 1e-3  # relative tolerance of control steps


def _find_step_cause(episode: Batch, replayed: Batch) -> str:
    # A host cannot repeat a user's loop whose control step differs from the host's. Return a sentence about this.
    # Return "" if the control steps are equal, or if the times of the recorded states contradict the header.
    # A header may be forged, so the recorded states must confirm the header's control step.
    recorded_s, replayed_s = episode.headers[0].dt, replayed.headers[0].dt
    states = episode.sim_state.episode_rows(0)  # [n, S]; column 0 is the simulation time [s]
    has_own_step = len(states) > 1 and np.isclose(np.diff(states[:, 0]), recorded_s, rtol=_DT_TOLERANCE).all()
    if np.isclose(replayed_s, recorded_s, rtol=_DT_TOLERANCE) or not has_own_step:
        return ""
    return f"The loop's control step was {recorded_s:g} s, but the host's is {replayed_s:g} s."


def _describe_states_set(episode: Batch) -> str:
    # Return a sentence if a user's loop set several simulator states after one reset; otherwise return "".
    # Only the record's header gives the number of states.
    states = marks.read_count(marks.host_header(episode.extra[0]), STATES_SET)
    if states is None or states <= 1:
        return ""
    return (
        f" According to the record, the loop set {states} states after one reset. A replay cannot repeat such a loop,"
        " because the controllers remember the earlier states."
    )


_SOFT_RESETS = "The environment had soft resets, so seed and initial state do not determine the start. "


def _had_soft_resets(episode: Batch) -> bool:
    # A soft reset keeps the simulation's model. Return False if the record does not say how resets were made.
    return _read_simulation(episode).hard_reset is False


def _describe_processor(recorded_kernel: str | None) -> str:
    # Return a sentence on whether different processors may be the reason for a difference.
    replayed_kernel = openblas_kernel()
    if recorded_kernel is None or replayed_kernel is None:
        return PROCESSOR
    if recorded_kernel == replayed_kernel:
        return f"Record and replay used OpenBLAS's kernels {replayed_kernel}, so the processor is not the reason."
    return f"The record used OpenBLAS's kernels {recorded_kernel}; the replay used {replayed_kernel}. {PROCESSOR}"


def _describe_differences(differences: Sequence[Deviation], uncompared: Sequence[str], simulation: _Simulation) -> str:
    # Return a sentence on the first difference, the other differing channels, and whether the processor is a reason.
    channels = list(dict.fromkeys(difference.channel for difference in differences))  # distinct channels
    also = f"; also different: {', '.join(channels[1:])}" if len(channels) > 1 else ""
    # Equal simulator states exclude numerical differences between processors.
    if "sim_state" in channels or "sim_state" in uncompared:
        reason = _describe_processor(simulation.openblas_kernel)
    else:
        reason = "The simulator's states agree, so the processor is not the reason."
    return f"{differences[0]}{also}. {reason}"


def episode_starts(protocol: EvaluationProtocol, episode: Batch) -> Iterator[EpisodeSeed]:
    """Yield the possible initial states (zero to two) of an episode according to its record."""
    # First the start given by the seed and the index of the initial state, then a recorded simulator state.
    header, (replay_mark,) = episode.headers[0], marks.replay_fields(episode)
    seed, earlier_resets = header.env_seed, marks.earlier_resets(episode)[0]
    if seed is None:  # the environment may have been seeded only at an earlier reset
        # The earlier seed and the number of resets since then determine the start.
        earlier_seed = marks.host_header(episode.extra[0]).get(EARLIER_SEED)
        if isinstance(earlier_seed, Mapping) and isinstance(earlier_seed.get("seed"), int):
            earlier_resets = marks.read_count(earlier_seed, marks.EARLIER_RESETS)
            seed = None if earlier_resets is None else earlier_seed["seed"]
    wait_steps = marks.read_count(replay_mark, marks.WAIT_STEPS)
    if _had_soft_resets(episode):
        # After soft resets, only the recorded first state determines the start. Without fixture poses, yield no start.
        with suppress(HostError):
            fixtures = tuple((name, tuple(pose.tolist())) for name, pose in recorded_fixtures(episode).items())
            states = episode.sim_state.episode_rows(0)
            if len(states):
                state = tuple(states[0].tolist())
                recorded = RecordedEpisode(header.episode_id, "", len(states) - 1, state, fixtures)  # "": no source
                yield EpisodeSeed(init_state_index=0, env_seed=header.env_seed or 0, wait_steps=0, recorded=recorded)
        return
    if seed is not None and header.init_state_index is not None:
        index, placed = marks.chosen_start(episode)
        if wait_steps is None:  # the record does not give the number of waiting steps
            wait_steps = protocol.suite_wait_steps(marks.base_suite(header.benchmark))
        yield EpisodeSeed(
            init_state_index=index or 0,
            env_seed=seed,
            wait_steps=wait_steps,
            wait_action=None if isinstance(protocol.wait_action, str) else protocol.wait_action,
            rest_steps=protocol.rest_steps,
            drawn=protocol.init_state == "drawn" or marks.mark_flags(episode, marks.DRAWN)[0],
            earlier_resets=earlier_resets,
            placed=placed,
        )
    # Also try the recorded fixture poses and first state, if the record has them.
    if header.env_seed is None or header.init_state_index is None:
        with suppress(HostError):
            yield episode_seed(episode)


def replay_actions(
    host: Host, task: Task, seed: EpisodeSeed, episode: Batch, actions: Floats | None = None
) -> tuple[Batch, list[bool]]:
    """Play the episode's actions, or `actions` [T, A] if given. Return the record and the success after each action."""
    played = episode.action.episode_rows(0) if actions is None else actions
    simulation = _read_simulation(episode)
    as_rendered = simulation.as_rendered
    if as_rendered is None:  # older records at most say whether there was a renderer
        as_rendered = simulation.offscreen_renderer is not False
    wants = Wants(absolute=marks.mark_flags(episode, marks.ABSOLUTE)[0], as_rendered=as_rendered)
    with closing(host.make(task, wants)) as env:
        env.reset(seed)
        poses = env.fixture_poses()
        successes = [bool(env.step(action)[1]) for action in played]  # `step` returns (observation, success)
        replayed = env.recorded()
        extra = add_header_field(replayed.extra[0], FIXTURES, poses) if poses else replayed.extra[0]
        return replace(replayed, extra=(extra,)), successes
