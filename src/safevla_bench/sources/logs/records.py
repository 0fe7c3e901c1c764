"""Converts an episode of a log to records by the log's mapping: units, validity, times, plausibility checks."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.sources.logs import mappings, wrench
from safevla_bench.sources.logs import names as naming
from safevla_bench.text import count_noun, escape_controls, quote_toml, warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import ARMS_VERSION, SCHEMA_VERSION, find_robot
from safevla_bench.trajectory.marks import FOREIGN_LOG, SINGLE
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Bools, EpisodeArrays, Floats, add_header_field, add_header_mark

# Episodes


# Tolerance for evenly spaced time stamps [control steps], for times that were rounded to float32.
_MAX_DEVIATION_STEPS = 1e-2
_MOST_LATE = 10  # warn if more than 1 in 10 instants is left out at the start
# Limits for warnings about a pose: its distance from the origin, and the deviation of its quaternion's norm from 1.
# A jump to the origin is reported only if it is longer than `_JUMP_M` [m].
# Repeated poses are reported only if the pose changed more than `_FEW_RUNS` times.
_FAR_M, _NORM_SLACK, _JUMP_M, _FEW_RUNS = 10.0, 0.05, 0.05, 5


class Series(NamedTuple):
    """The k numbers of a part of the record at each of n instants, [n, k], and whether they are known, [n]. A pose is
    x, y, z [m], then w, x, y, z if it has an orientation.
    """

    values: Floats
    known: Bools
    # Where the times of the messages come from, such as `header stamps`; "" = from the clock.
    time_base: str = ""
    rate_hz: float | None = None  # rate of messages [Hz]; None = one message per instant
    longest_gap_s: float | None = None  # longest time between messages [s]; None = use the time between instants
    between: tuple[Floats, NDArray[np.int64]] | None = None
    """The k numbers of all `M` messages, [M, k], and the first instant at or after each message's time, [M].

    The instant's index is -1 before the first instant, and n after the last. If None, all messages are in `values`."""
    is_single: bool = False  # True if the log stores the part's numbers as float32
    poses: int = 0  # number of messages with a known pose; 0 = not counted (static poses)
    names: tuple[str, ...] = ()  # names of the numbers, if only the log gives them
    is_fixed: bool = False  # True for forces whose axes do not turn with the hand

    @property
    def measurements(self) -> Floats:
        # Returns the k numbers of all messages. If each message is an instant, as in a dataset, these are `values`.
        return self.values if self.between is None else self.between[0]


@dataclass(frozen=True)
class LoggedEpisode:
    """One episode of a log: the times of its n instants [s], [n], and the series of each mapped part of the record."""

    name: str
    file: str
    time_s: Floats
    dt_s: float
    series: Mapping[str, Series]
    instruction: str | None = None
    success: bool | None = None
    embodiment: str | None = None
    facts: mappings.Episode | None = None  # facts about a trial; None = [episode] in the mapping
    has_stamps: bool = False  # True if even evenly spaced records get time stamps


def are_known(values: Floats, columns: mappings.AnyColumns) -> Bools:
    """Return whether each row [n, k] has only finite numbers and, with a quaternion, a positive finite norm, [n]."""
    # `values` are the numbers of a part of the record; quaternions w, x, y, z are in the last four columns of poses.
    known = np.isfinite(values).all(axis=1)
    if isinstance(columns, mappings.PoseColumns) and values.shape[1] == 7:
        # A norm that overflows is infinite, so the pose is unknown.
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(values[:, 3:], axis=1)
        known &= (norms > 0) & np.isfinite(norms)
    return np.asarray(known)


def drop_zero_turns(values: Floats, columns: mappings.AnyColumns, warn: Callable[[str], None]) -> Floats:
    """Return poses [n, 7] as [n, 3] if all quaternions are zero or unknown, as from trackers without orientation."""
    # `values` are the numbers of any part, [n, k], and `columns` is the part's table in the mapping.
    # `warn` logs a sentence.
    # Numbers that are not poses with an orientation are returned unchanged.
    if not isinstance(columns, mappings.PoseColumns) or values.shape[1] < 7 or np.nan_to_num(values[:, 3:]).any():
        return values
    if not np.nan_to_num(values[:, :3]).any():  # the positions are zero or unknown, too
        return values
    warn("the orientation is left out, since it is zero or unknown throughout")
    # A position of zeros without an orientation means that tracking failed.
    positions = values[:, :3]
    return np.where(positions.any(axis=1, keepdims=True), positions, np.nan)


def build_episode(
    episode: LoggedEpisode, mapping: mappings.LogMapping, tasks: Mapping[str, str] | None = None
) -> Batch:
    """Return a batch of one episode. `tasks` (from `name_tasks`) maps the episode's instruction or name to a task id.

    Raises `RecordError` if there would be no record, if success is unknown, if torques lack limits, or if data are bad.

    A clock time becomes a record if all mapped parts of the robot are known then; time stamps show the gaps. The first
    record comes after every tracked body has been seen: displacement, height and tilt are relative to record 0.
    """
    # `series` (below) has the numbers of each part at the chosen instants, which become the n records.
    place = Place(file=episode.file, episode=episode.name)
    if episode.facts is not None:  # the facts about this trial
        mapping = msgspec.structs.replace(mapping, episode=episode.facts)
    warn = partial(warn_once, f"{episode.file}: {episode.name}")
    chosen = _choose_records(episode, place)
    series = {name: Series(samples.values[chosen], samples.known[chosen]) for name, samples in episode.series.items()}
    for part, size in mappings.WIDTHS.items():
        for name in mapping.columns_of(part):
            _require_width(name, episode.series[name], size)
    time_s = episode.time_s[chosen] - episode.time_s[chosen[0]]
    # Records get time stamps if the times since record 0 are not evenly spaced.
    is_even = np.abs(time_s / episode.dt_s - np.arange(len(chosen))).max() <= _MAX_DEVIATION_STEPS
    bodies = {name: series[f"bodies.{name}"] for name in mapping.bodies}
    body_index = {name: index for index, name in enumerate(bodies)}
    # `partly_unknown` has the bodies with unknown poses in some records; `oriented`, the bodies with orientations.
    partly_unknown = {name: body for name, body in bodies.items() if not body.known.all()}
    oriented = {name: body for name, body in bodies.items() if body.values.shape[1] == 7}
    action = series.get("action")
    hand_poses = [series[name].values for name in mapping.columns_of("eef")]
    have_orientation = [pose.shape[1] == 7 for pose in hand_poses]
    mappings.require_own_numbers({  # if moving parts have equal positions, they read the same numbers
        name: ((columns.source,), [series[name].values[:, :3].tobytes()])
        for name, columns in mapping.sources.items()
        if isinstance(columns, mappings.PoseColumns) and np.ptp(series[name].values[:, :3], axis=0).any()
    })  # fmt: skip
    # A record has the orientations of all hands or of none.
    if any(have_orientation) and not all(have_orientation):
        warn("the orientations of the hands are left out, since one hand has no orientation")
    # Channels that a record has only if they are known: `time_s` and the force at the wrist.
    further_channels = {} if is_even and not episode.has_stamps else {"time_s": time_s}
    forces = [
        _measure_wrist_forces(name, columns, episode, series, chosen, warn)
        for name, columns in mapping.columns_of("wrench").items()
    ]
    if forces:
        further_channels[wrench.CHANNEL] = np.hstack(forces)
    torques = [_find_peak_torques(episode.series[name], chosen, warn) for name in mapping.columns_of("torque")]
    grips = [
        _find_grip_contact(name, columns, episode, chosen) for name, columns in mapping.columns_of("gripper").items()
    ]
    gripper_contact = None
    if grips:
        # With several arms, there is one column per arm, [n, arms]; otherwise, the shape is [n].
        gripper_contact = np.stack(grips, axis=1) if mapping.arms else grips[0]
    recording = EpisodeArrays(
        header=_build_header(episode, mapping, tasks or {}, place),
        roles={name: body.role for name, body in mapping.bodies.items()},
        records=len(chosen),
        eef_pos_m=np.hstack([pose[:, :3] for pose in hand_poses]) if hand_poses else None,
        eef_quat_wxyz=np.hstack([pose[:, 3:] for pose in hand_poses]) if hand_poses and all(have_orientation) else None,
        pos_bodies=list(body_index.values()),
        body_pos_m=_stack_bodies(bodies, slice(0, 3)),
        quat_bodies=[body_index[name] for name in oriented],
        body_quat_wxyz=_stack_bodies(oriented, slice(3, 7)),
        joint_torque_nm=np.hstack(torques) if torques else None,
        gripper_contact=gripper_contact,
        # An action leads to the next record, so the last action is left out.
        action=action.values[:-1] if action is not None and len(chosen) > 1 else None,
        extra=_mark_single_precision(add_header_mark({}, FOREIGN_LOG), episode),
        further=further_channels,
        valid_bodies=[body_index[name] for name in partly_unknown],
        pose_valid=np.stack([body.known for body in partly_unknown.values()], axis=1) if partly_unknown else None,
    )
    try:
        batch = from_recording(recording)
    except RecordError as error:
        raise error.with_place(place) from None
    # Warn only about episodes that are valid.
    for source, problem in _find_implausible(episode.file, mapping, series):
        warn_once(source, problem)
    return batch


def _require_width(part: str, samples: Series, size: int) -> None:
    # Raises `RecordError` if `samples` does not have `size` numbers: 3 for a force, 1 for a grip.
    # `part` is the name of the table in the mapping. The remedy explains how to choose the numbers.
    width = samples.values.shape[1]
    if width != size:
        listed = f" The names are: {escape_controls(', '.join(samples.names))}." if samples.names else ""
        chosen = "the forces x, y, z" if size == 3 else "the number that shows the grip"
        remedy = f"Choose {chosen} by `names` or `index` (from 0 to {width - 1}) under [{part}].{listed}"
        if width < size:
            remedy = f"Under [{part}], write a topic or a `field` with {size} numbers."
        verb = "is" if width == 1 else "are"
        refuse_field(f"{count_noun(width, 'number')} {verb} mapped, not {size}", remedy, part)


def _choose_records(episode: LoggedEpisode, place: Place) -> NDArray[np.int64]:
    """Return the indices of the instants that become records, as `build_episode` explains."""
    # If a part of the robot is never known, raise an error. If a body is never known, warn.
    unseen = [name for name, samples in episode.series.items() if not samples.known.any()]
    missing = [name for name in unseen if not name.startswith("bodies.")]
    if missing:
        remedy = "Leave this part out of the mapping, or map it to recorded data."
        raise RecordError(f"{', '.join(missing)} is not known at any time of the episode", remedy=remedy, place=place)
    # Mask of the instants at which all parts except bodies are known, [n].
    is_usable = np.ones(len(episode.time_s), dtype=np.bool_)
    for name, samples in episode.series.items():
        if not name.startswith("bodies."):
            is_usable &= samples.known
    # The first instant by which each part and body has been known at least once, except those never known.
    first_complete = max((int(samples.known.argmax()) for samples in episode.series.values()), default=0)
    chosen = np.flatnonzero(is_usable & (np.arange(len(is_usable)) >= first_complete))
    if not len(chosen):
        remedy = "Map topics that overlap in time."
        raise RecordError("the mapped parts are never known at the same time", remedy=remedy, place=place)
    label = f"{episode.file}: {episode.name}"
    # Warn about instants after record 0 that are left out, and about many left-out instants at the start.
    skipped_count = int((~is_usable[chosen[0] :]).sum())
    if skipped_count:
        problem = f"clock times left out, since a part of the robot is unknown then: {skipped_count}"
        warn_once(label, f"{problem}; the time stamps show the gaps")
    late_count = int(chosen[0])
    if late_count > 1 and late_count * _MOST_LATE > len(is_usable):
        late = [name for name, samples in episode.series.items() if not samples.known[:late_count].any()]
        parts = ", ".join(f"[{name}]" for name in late if name not in unseen) or "a part of the robot"
        problem = f"{late_count} of {len(is_usable)} clock times at the start are left out and not judged"
        warn_once(label, f"{problem}, since {parts} is unknown until then")
    if unseen:
        warn_once(label, f"bodies without a known pose: {', '.join(unseen)}; specifications on them have no verdict")
    for name, samples in episode.series.items():
        # Count messages with a known pose that no record uses; `poses` is 0 if messages are not counted.
        unused_poses = samples.poses - int(samples.known[chosen].sum())
        if unused_poses > 0:
            hint = "; a faster topic as `clock` under [episode] makes more records"
            unused = f"[{name}]: {unused_poses} of {samples.poses} pose messages are not in any record"
            warn_once(label, unused + (hint if 2 * unused_poses > samples.poses else ""))
    return chosen


_CHANNELS_OF_PART = {  # part of the mapping -> channels of a record
    "eef": ("eef_pos_m", "eef_quat_wxyz"),
    "torque": ("joint_torque_nm",),
    "wrench": (wrench.CHANNEL,),
    "bodies": ("body_pos_m", "body_quat_wxyz"),
}


def _mark_single_precision(extra: dict[str, object], episode: LoggedEpisode) -> dict[str, object]:
    # Returns `extra`, with an entry that lists the record's channels (arrays) that the log stores as float32.
    # The names of parts without the arm's or body's name, such as `eef` for `eef.left`.
    parts = {name.partition(".")[0] for name, samples in episode.series.items() if samples.is_single}
    channels: list[str] = []
    for part, part_channels in _CHANNELS_OF_PART.items():
        if part in parts:
            channels += part_channels
    return add_header_field(extra, SINGLE, channels) if channels else extra


def _assign_to_records(samples: Series, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Return `M` rows of a part's numbers, [M, k], and for each row the first record at or after its time, [M]. There
    is a row for each message since record 0 and a row for the value sampled at each record.
    """
    # `chosen` are the indices of the instants that become records, in ascending order.
    # `instants` has each message's first instant at or after its time. Without `between`, use the sampled values.
    messages, instants = samples.values, np.arange(len(samples.values))
    if samples.between is not None:
        messages, instants = samples.between
    records = np.searchsorted(chosen, instants)
    # Messages before record 0 and after the last record belong to no record.
    is_counted = (instants >= chosen[0]) & (records < len(chosen))
    rows = np.concatenate([messages[is_counted], samples.values[chosen]])
    return rows, np.concatenate([records[is_counted], np.arange(len(chosen))])


def _stack_bodies(bodies: Mapping[str, Series], columns: slice) -> Floats | None:
    # Returns `columns` (positions or quaternions) of the poses of all bodies, [n, bodies, k]; None without bodies.
    # An unknown pose is replaced by the last known pose or, before any known pose, by the origin without rotation.
    filled_bodies = []
    for body in bodies.values():
        # For each record, the index of the last record so far with a known pose; -1 = none.
        last_known = np.maximum.accumulate(np.where(body.known, np.arange(len(body.known)), -1))
        filled = body.values[np.maximum(last_known, 0), columns]
        filled[last_known < 0] = np.eye(1, 4)[0] if filled.shape[1] == 4 else 0.0  # quaternion 1, 0, 0, 0
        filled_bodies.append(filled)
    return np.stack(filled_bodies, axis=1) if filled_bodies else None


def _find_peak_torques(torques: Series, chosen: NDArray[np.int64], warn: Callable[[str], None]) -> Floats:
    """Return, per record and joint, the signed torque of largest magnitude since the previous record [N·m], [n, k]."""
    # `chosen` are the indices of the instants that become records. An unknown torque is NaN. `warn` logs a sentence.
    rows, record_of_row = _assign_to_records(torques, chosen)
    if np.isinf(rows).any():
        refuse_field("a torque is infinite", "Record finite numbers, or leave [torque] out of the mapping.", "torque")
    peaks = np.empty((len(chosen), rows.shape[1]))
    for joint in range(rows.shape[1]):
        magnitudes = np.abs(rows[:, joint])
        peaks[:, [joint]] = wrench.pick_largest(rows[:, [joint]], magnitudes, record_of_row, len(chosen))
    # Warn if a torque before the first or after the last record, which is not judged, exceeds all judged torques.
    logged_peak = np.nan_to_num(np.abs(torques.measurements)).max(axis=0)
    judged_peak = np.nan_to_num(np.abs(peaks)).max(axis=0)
    if (logged_peak > judged_peak).any():
        worst_joint = int(np.argmax(logged_peak - judged_peak))
        warn(f"a torque of {logged_peak[worst_joint]:.4g} before the first or after the last record is not judged")
    return peaks


def _measure_wrist_forces(
    name: str,
    columns: mappings.AnyColumns,
    episode: LoggedEpisode,
    series: Mapping[str, Series],
    chosen: NDArray[np.int64],
    warn: Callable[[str], None],
) -> Floats:
    # Returns the largest force at one wrist in each record [N], [n, 3]; warns if forces may include a tool's weight.
    # `name` is the part's name, such as `wrench.left`. `series` has the parts at the n records.
    assert isinstance(columns, mappings.WrenchColumns)
    forces, record_of_row = _assign_to_records(episode.series[name], chosen)
    # The sensor of the table `wrench.left` is at the hand `eef.left`.
    hand = series.get(name.replace("wrench", "eef", 1))
    hand_poses = None if hand is None else hand.values
    time_s = episode.time_s[chosen] - episode.time_s[chosen[0]]
    is_fixed = episode.series[name].is_fixed
    peak_forces, problems = wrench.measure_forces(forces, record_of_row, time_s, hand_poses, columns, is_fixed)
    for problem in problems:
        warn(problem)
    # Warn if a force before the first or after the last record exceeds all others, as in a collision at the end.
    usual_n = np.nanmedian(forces, axis=0)  # about the sensor's offset
    all_forces = (forces, episode.series[name].measurements)
    judged_n, logged_n = (np.nanmax(np.linalg.norm(rows - usual_n, axis=1)) for rows in all_forces)
    if logged_n > judged_n + wrench.UNSTEADY_N:
        warn(f"a force of about {logged_n:.4g} N before the first or after the last record is not judged")
    return peak_forces


def _find_grip_contact(
    name: str, columns: mappings.AnyColumns, episode: LoggedEpisode, chosen: NDArray[np.int64]
) -> Bools:
    # Returns for each record whether the gripper held something according to any message of the record, [n].
    # `name` is the part's name, such as `gripper.left`; `chosen` are the indices of the instants that become records.
    assert isinstance(columns, mappings.GripColumns)
    rows, record_of_row = _assign_to_records(episode.series[name], chosen)
    grip_values = rows[:, 0]
    low, high = columns.bounds
    is_held = np.isfinite(grip_values) & (low < grip_values) & (grip_values < high)
    if np.isinf([low, high]).all():  # without bounds, the values must be 0 and 1
        labels = [columns.source, columns.field or "", *(columns.names or episode.series[name].names)]
        if any(naming.has_word(label, word) for label in labels for word in ("open", "opened", "released")):
            remedy = f"Under [{name}], write `holds_below = 0.5` if it holds something at 0, else `holds_above`."
            refuse_field("the names may mean that 1 is an open gripper", remedy, name)
        if (is_held & (grip_values != 0) & (grip_values != 1)).any():
            numbers = f"numbers from {np.nanmin(grip_values):.4g} to {np.nanmax(grip_values):.4g}"
            remedy = f"Write `holds_above`, `holds_below` or both under [{name}]."
            refuse_field(f"{numbers} do not show whether the gripper holds something", remedy, name)
        is_held &= grip_values != 0
    has_contact = np.zeros(len(chosen), np.bool_)
    has_contact[record_of_row[is_held]] = True
    return has_contact


def _build_header(
    episode: LoggedEpisode, mapping: mappings.LogMapping, tasks: Mapping[str, str], place: Place
) -> dict[str, object]:
    # Returns the header: names, outcome, robot and torque limits. `tasks` maps instructions to task ids.
    # Raises `RecordError` if the success is unknown, or if torques have no usable limits.
    facts = mapping.episode  # facts about the episode, from the mapping
    outcome = facts.outcomes.get(episode.name)
    # In the mapping, an outcome in `outcomes` overrides `success`. Either overrides the outcome in the log.
    success = facts.success if isinstance(facts.success, bool) else episode.success
    if outcome is not None:
        success = outcome == "success"
    if success is None:
        remedy = (
            "Write `success = true` or `success = false` under [episode] of the mapping, or for one episode "
            f'`outcomes = {{ "{episode.name}" = "failure" }}`.'
        )
        raise RecordError("the log does not say whether the episode succeeded", remedy=remedy, place=place)
    targets = [name for name, body in mapping.bodies.items() if body.role == "target"]
    embodiment = facts.embodiment or episode.embodiment or "unknown"
    mapped_torques = mapping.columns_of("torque").items()
    torques = {name: columns for name, columns in mapped_torques if isinstance(columns, mappings.TorqueColumns)}
    for name, columns in torques.items():
        _check_torques(columns, embodiment, episode.series[name], name)
    joint_counts = tuple(episode.series[name].values.shape[1] for name in torques)
    task_text = episode.instruction or episode.name
    # A task that is not in `tasks` gets an id that differs from all ids in `tasks`.
    task_id = facts.task or tasks.get(task_text) or name_tasks([*tasks, task_text])[task_text]
    return {
        "schema_version": ARMS_VERSION if mapping.arms else SCHEMA_VERSION,
        "episode_id": episode.name,
        "benchmark": facts.benchmark,
        "task_id": f"{facts.template}/{task_id}" if facts.template else task_id,
        "success": success,
        "dt": episode.dt_s,
        "target_object": facts.target or (targets[0] if targets else None),
        "joint_torque_limit_nm": _join_torque_limits(torques.values(), embodiment),
        "policy": facts.policy,
        "instruction": episode.instruction,
        "outcome": outcome or ("success" if success else "failure"),
        "embodiment": embodiment,
        "arms": tuple(mapping.arms) or None,
        "arm_joints": (joint_counts or None) if mapping.arms else None,
    }


def _join_torque_limits(torques: Collection[mappings.TorqueColumns], embodiment: str) -> tuple[float, ...] | None:
    # Returns the torque limits of all arms in order [N·m]; None if the robot's published limits apply to all arms.
    if all(columns.limits_nm is None for columns in torques):
        return None
    robot = find_robot(embodiment)
    published_nm = robot.limits_nm if robot else ()
    # If the mapping has no limits for an arm, use the robot's published limits.
    return tuple(limit for columns in torques for limit in columns.limits_nm or published_nm)


def _check_torques(columns: mappings.TorqueColumns, embodiment: str, samples: Series, table: str) -> None:
    # Raises an error if limits are unknown or do not match the joints, or if the numbers may be motor currents.
    # `table` is the name of the table in the mapping, such as `torque.left`; `samples` are the torques.
    robot = find_robot(embodiment)
    if columns.limits_nm is None and (robot is None or not robot.limits_nm):
        reason = "no torque limits are published for" if robot else "no torque limits are known for"
        needed_line = f"limits_nm under [{table}], one limit for each joint in N·m"
        remedy = f"Write {needed_line}, or name the robot as `embodiment` under [episode]."
        refuse_field(f"{reason} the robot {embodiment!r}", remedy, table)
    # The mapping or a name may state that the numbers are torques; otherwise, some robots' efforts are currents.
    source_says_torque = re.search("torque|moment|tau", f"{columns.source} {columns.field}")
    is_torque = columns.unit or columns.scale != 1 or source_says_torque
    joint_names = " ".join(samples.names or columns.names or ()).lower()
    is_ur = all(joint in joint_names for joint in _UR_JOINTS)
    is_bimanual = table != "torque"  # robots with several arms, such as ALOHA, often publish currents
    if (is_ur or is_bimanual or (robot is not None and robot.effort_is_current)) and not is_torque:
        remedy = (
            f'Write `unit = "N m"` under [{table}] if the numbers are torques. If they are currents, write the torque '
            "per ampere as `scale`. Drivers from before 2025 publish currents."
        )
        robot_text = "an arm of Universal Robots" if is_ur and robot is None else f"a {embodiment}"
        refuse_field(f"the effort of {robot_text} may be motor currents", remedy, table)
    limits_nm, count = columns.limits_nm or (robot.limits_nm if robot else ()), samples.values.shape[1]
    # The joints in the robot's order from base to hand, without the gripper's joints.
    joints = sorted((name for name in samples.names if not re.search("finger|grip", name.lower())), key=_joint_order)
    problem = ""
    # Published limits need the robot's order of joints. Limits in the mapping have the order of the numbers.
    if count != len(limits_nm):
        problem = f"{count} torques, but {len(limits_nm)} limits"
    elif columns.limits_nm is None and samples.names and [*samples.names] != joints:
        problem = "the joints are not in the order of their limits, which is from the base to the hand"
    if problem:
        # Suggest names only if no two names have the same place in the order, and if there is one limit per name.
        is_order_known = len({*map(_joint_order, joints)}) == len(joints) == len(limits_nm)
        names_text = f"[{', '.join(map(quote_toml, joints))}]" if is_order_known else naming.FILL_IN
        listed = escape_controls(", ".join(samples.names) or "none")
        remedy = f"The names are: {listed}. Write under [{table}], one joint per limit:\n  names = {names_text}"
        refuse_field(problem, remedy, table)


_UR_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")


def _joint_order(name: str) -> int:
    # Sort key of joints, from base to hand: index in `_UR_JOINTS`, else the last number in the name, else -1.
    for index, joint in enumerate(_UR_JOINTS):
        if joint in name.lower():
            return index
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1


# Pattern for signs that may change an instruction's meaning, such as a percent sign, a minus sign or a decimal point.
# It also matches marks after a number, as in 3' and 3", and signs between two digits, as in 1:2, except one hyphen.
_MEANINGFUL = re.compile(
    r"[/\\#%&*@‰‱٪؉؊°]|(?<!\w)[-\u2010-\u2015]\s*\.?\w|\.\d|\d['\"′″’”]|\d(?!-\d)(?:[^\w\s\u2044]+|\s*:\s*)\d"
)


def name_tasks(texts: Iterable[str]) -> dict[str, str]:
    """Return a task id for each instruction or file name: its words (letters, marks, numbers) joined by hyphens.

    Letters of all scripts are kept, in lower case and in Unicode's composed form (NFC). The id ends in a digest of the
    text if the id leaves out symbols or other signs with a meaning, or if an earlier text has the same id.
    """
    tasks: dict[str, str] = {}
    for text in texts:
        plain = unicodedata.normalize("NFC", text.lower())
        # Unicode's categories L, M and N are letters, marks and numbers; S are symbols.
        words = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in plain)  # drop punctuation
        task = "-".join(words.split()) or "task"
        narrow = unicodedata.normalize("NFKC", plain)  # replace wide signs, such as ％, by ordinary signs
        loses_meaning = any(unicodedata.category(c)[0] == "S" for c in plain) or _MEANINGFUL.search(narrow)
        if loses_meaning:  # without a digest, `pick -5` in one log and `pick 5` in another would be the same task
            task += f"-{_digest(' '.join(plain.split()).rstrip('.!?'))}"
        tasks.setdefault(text, f"{task}-{_digest(text)}" if task in tasks.values() else task)
    return tasks


def _digest(text: str) -> str:
    # Returns eight hexadecimal digits that differ for different texts. Unpaired surrogates are allowed.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _find_implausible(
    file: str, mapping: mappings.LogMapping, series: Mapping[str, Series]
) -> Iterator[tuple[str, str]]:
    # Yields (file, problem) for numbers that are valid, but probably wrong. `file` is the name of the log.
    # `series` maps each table of the mapping, such as `eef` or `bodies.cup`, to its values at the records.
    for name, columns in mapping.sources.items():
        if not isinstance(columns, mappings.PoseColumns) or not series[name].known.any():
            continue
        poses = series[name].values[series[name].known]
        distance_m = float(np.median(np.linalg.norm(poses[:, :3], axis=1)))
        if distance_m > _FAR_M:
            problem = f"[{name}] is {distance_m:.0f} m from the origin; are its positions in millimeters?"
            yield file, f'{problem} If so, write unit = "mm"'
        if name.partition(".")[0] == "eef" and not poses[:, :3].any():
            yield file, f"[{name}] is at the origin throughout; are these numbers its position?"
        # Warn of records at the origin next to a record far from it, since many trackers write zeros for a lost pose.
        is_zero = ~poses[:, :3].any(axis=1)
        is_far = np.linalg.norm(np.diff(poses[:, :3], axis=0), axis=1) > _JUMP_M
        if (is_far & np.diff(is_zero)).any():
            problem = f"[{name}] jumps to or from the origin, where it is in {count_noun(int(is_zero.sum()), 'record')}"
            yield file, f"{problem}; if zeros mean that the pose is lost, write NaN instead"
        # The count of records between each change of the pose and the next change.
        run_lengths = np.diff(np.flatnonzero((np.diff(poses, axis=0) != 0).any(axis=1)))
        if len(run_lengths) > _FEW_RUNS and np.median(run_lengths) >= 2:
            problem = f"[{name}] repeats each pose {np.median(run_lengths):.0f} times"
            reason = "poses are published faster than measured, so their speed and acceleration are too large"
            yield file, f"{problem}: {reason}"
        if poses.shape[1] == 7:
            norms = np.linalg.norm(poses[:, 3:], axis=1)
            if np.abs(norms - 1).max() > _NORM_SLACK:
                yield file, f"[{name}] has quaternions of norm {norms.min():.3g} to {norms.max():.3g}, not 1"
    for name, samples in series.items():
        if name.partition(".")[0] in ("torque", "wrench") and not samples.values.any():
            yield file, f"[{name}] is 0 throughout; many drivers publish 0 for quantities that they do not measure"
    if not mapping.bodies and not mapping.columns_of("eef"):
        yield file, "motion and objects are not judged, since neither [eef] nor [bodies] is mapped"
