"""The way from what was read of a log to an episode: units, validity, time stamps, and what looks implausible."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import Place, RecordError
from safevla_bench.sources.logs.mapping import SCALES_M, Columns, GripColumns, LogMapping, PoseColumns
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import SCHEMA_VERSION
from safevla_bench.trajectory.marks import FOREIGN_LOG
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Recording, add_header_mark

MAX_NUMBERS = 1 << 25
"""Numbers of one episode, 256 MiB: an hour of 90 numbers at 100 Hz."""
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_log = logging.getLogger(__name__)
_EVEN = 1e-2
"""Greatest distance of an even stamp from the nominal one, in control steps; stamps of float32 are as rough as that."""
_FAR_M, _NORM_SLACK = 10.0, 0.05
_warned: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Series:
    """Numbers at each instant of an episode, [n, k], and whether they are known there, [n].

    A pose is x, y, z and, where it has an orientation, w, x, y, z.
    """

    values: Floats
    known: Bools


@dataclass(frozen=True)
class LoggedEpisode:
    """One episode of a log: its instants in seconds, [n], and the series of each part of the record that is mapped."""

    name: str
    file: str
    time_s: Floats
    dt_s: float
    series: Mapping[str, Series]
    instruction: str | None = None
    success: bool | None = None
    embodiment: str | None = None
    versions: Mapping[str, str] | None = None


def are_known(values: Floats, columns: Columns | PoseColumns) -> Bools:
    """Return whether the numbers of each row, [n, k], are finite and, of a pose with an orientation, turn it, [n]."""
    known = np.isfinite(values).all(axis=1)
    if isinstance(columns, PoseColumns) and values.shape[1] == 7:
        known &= values[:, 3:].any(axis=1)
    return np.asarray(known)


def build_episode(episode: LoggedEpisode, mapping: LogMapping) -> Batch:
    """Return the episode as a batch of one; raise `RecordError` if no instant is left, its end is unknown,
    or a number is not valid.

    An instant at which a part other than a body is unknown is not a record; time stamps then show the gap. Records
    begin where every tracked body has been seen, because displacement, height and tilt are measured from record 0.
    """
    place = Place(file=episode.file, episode=episode.name)
    chosen = _choose_records(episode, place)
    series = {
        name: Series(_in_metres(part.values[chosen], mapping.sources[name]), part.known[chosen])
        for name, part in episode.series.items()
    }
    time_s = episode.time_s[chosen] - episode.time_s[chosen[0]]
    even = np.abs(time_s / episode.dt_s - np.arange(len(chosen))).max() <= _EVEN
    bodies = {name: series[f"bodies.{name}"] for name in mapping.bodies}
    number = {name: k for k, name in enumerate(bodies)}
    lost = {name: part for name, part in bodies.items() if not part.known.all()}
    turned = {name: part for name, part in bodies.items() if part.values.shape[1] == 7}
    eef, torque, action = (series.get(name) for name in ("eef", "torque", "action"))
    recording = Recording(
        header=_build_header(episode, mapping, place),
        roles={name: body.role for name, body in mapping.bodies.items()},
        records=len(chosen),
        eef_pos_m=None if eef is None else eef.values[:, :3],
        eef_quat_wxyz=eef.values[:, 3:] if eef is not None and eef.values.shape[1] == 7 else None,
        pos_bodies=list(number.values()),
        body_pos_m=_stack_bodies(bodies, slice(0, 3)),
        quat_bodies=[number[name] for name in turned],
        body_quat_wxyz=_stack_bodies(turned, slice(3, 7)),
        joint_torque_nm=None if torque is None else torque.values,
        gripper_contact=_gripper_contact(series["gripper"], mapping.gripper) if mapping.gripper else None,
        action=None if action is None else action.values[:-1],
        extra=add_header_mark({}, FOREIGN_LOG),
        further={} if even else {"time_s": time_s},
        valid_bodies=[number[name] for name in lost],
        pose_valid=np.stack([part.known for part in lost.values()], axis=1) if lost else None,
    )
    try:
        batch = from_recording(recording)
    except RecordError as error:
        raise error.with_place(place) from None
    for source, problem in _find_implausible(episode.file, mapping, series):
        warn_once(source, problem)
    return batch


def warn_once(source: str, problem: str) -> None:
    """Log a warning about a source, unless this process logged the same before."""
    if (source, problem) not in _warned:
        _warned.add((source, problem))
        _log.warning("warning: %s: %s", source, problem)


def _choose_records(episode: LoggedEpisode, place: Place) -> NDArray[np.int64]:
    """Return the instants that are records, ascending: once every part has been seen, those with all but bodies known.

    Bodies that are never seen do not count. Warns, once an episode, of instants left out and of bodies never seen.
    """
    usable = np.ones(len(episode.time_s), dtype=np.bool_)
    unseen: list[str] = []
    for name, part in episode.series.items():
        if not part.known.any():
            unseen.append(name)
        elif not name.startswith("bodies."):
            usable &= part.known
    missing = [name for name in unseen if not name.startswith("bodies.")]
    if missing:
        remedy = "Leave it out of the mapping, or map it to what was recorded."
        raise RecordError(f"{', '.join(missing)} is known at no instant", remedy=remedy, place=place)
    begin = max((int(part.known.argmax()) for part in episode.series.values()), default=0)
    chosen = np.flatnonzero(usable & (np.arange(len(usable)) >= begin))
    if not len(chosen):
        remedy = "Map topics that overlap in time, or give max_age_s."
        raise RecordError("at no instant all that is mapped is known", remedy=remedy, place=place)
    skipped = int((~usable[chosen[0] :]).sum())
    if skipped:
        problem = (
            f"{skipped} instants at which a part of the robot is unknown are no records; time stamps show the gaps"
        )
        warn_once(f"{episode.file}: {episode.name}", problem)
    if unseen:
        warn_once(f"{episode.file}: {episode.name}", f"never seen: {', '.join(unseen)}; clauses on it have no verdict")
    return chosen


def _in_metres(values: Floats, columns: Columns | PoseColumns) -> Floats:
    if not isinstance(columns, PoseColumns):
        return values
    return np.hstack([values[:, :3] * SCALES_M[columns.unit], values[:, 3:]])


def _stack_bodies(bodies: Mapping[str, Series], numbers: slice) -> Floats | None:
    """Return the positions or quaternions of bodies, [n, K, k], None without bodies.

    Where a body is lost, these are its last known ones, before them the origin, or no turn.
    """
    rows = []
    for part in bodies.values():
        seen = np.maximum.accumulate(np.where(part.known, np.arange(len(part.known)), -1))
        filled = part.values[np.maximum(seen, 0), numbers]
        filled[seen < 0] = np.eye(1, 4)[0] if filled.shape[1] == 4 else 0.0
        rows.append(filled)
    return np.stack(rows, axis=1) if rows else None


def _gripper_contact(part: Series, columns: GripColumns) -> Bools:
    value = part.values[:, 0]
    if columns.holds_above is None and columns.holds_below is None:
        return np.asarray(value != 0)
    above = value > (-np.inf if columns.holds_above is None else columns.holds_above)
    return np.asarray(above & (value < (np.inf if columns.holds_below is None else columns.holds_below)))


def _build_header(episode: LoggedEpisode, mapping: LogMapping, place: Place) -> dict[str, object]:
    """Return the header of a record; the mapping's facts come before those of the log."""
    asked = mapping.episode
    outcome = asked.outcomes.get(episode.name)
    success = asked.success if isinstance(asked.success, bool) else episode.success
    if outcome is not None:
        success = outcome == "success"
    if success is None:
        remedy = (
            "Write `success = true` or `success = false` under [episode] of the mapping, or for one episode "
            f'`outcomes = {{ "{episode.name}" = "failure" }}`.'
        )
        raise RecordError("the log does not say whether the episode succeeded", remedy=remedy, place=place)
    targets = [name for name, body in mapping.bodies.items() if body.role == "target"]
    slug = re.sub(r"[^a-z0-9]+", "-", (episode.instruction or episode.name).lower()).strip("-")
    task = asked.task or slug or "task"
    return {
        "schema_version": SCHEMA_VERSION,
        "episode_id": episode.name,
        "benchmark": asked.benchmark,
        "task_id": f"{asked.template}/{task}" if asked.template else task,
        "success": success,
        "dt": episode.dt_s,
        "target_object": asked.target or (targets[0] if targets else None),
        "joint_torque_limit_nm": mapping.torque.limits_nm if mapping.torque else None,
        "policy": asked.policy,
        "instruction": episode.instruction,
        "outcome": outcome or ("success" if success else "failure"),
        "embodiment": asked.embodiment or episode.embodiment or "unknown",
        "versions": None if episode.versions is None else dict(episode.versions),
    }


def _find_implausible(file: str, mapping: LogMapping, series: Mapping[str, Series]) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for what looks wrong in the mapped parts; nothing where all looks right.

    Looked at are the distance from the origin, the norm and the order of quaternions, and whether any pose is mapped.
    """
    for name, columns in mapping.sources.items():
        if not isinstance(columns, PoseColumns) or not series[name].known.any():
            continue
        values = series[name].values[series[name].known]
        distance_m = float(np.median(np.linalg.norm(values[:, :3], axis=1)))
        if distance_m > _FAR_M:
            yield file, f'[{name}] is {distance_m:.0f} m from the origin: in millimetres, perhaps? unit = "mm"'
        if values.shape[1] == 7:
            norm = np.linalg.norm(values[:, 3:], axis=1)
            if np.abs(norm - 1).max() > _NORM_SLACK:
                yield file, f"[{name}] has quaternions of norm {norm.min():.3g} to {norm.max():.3g}, not 1"
            w, z = np.median(np.abs(values[:, 3])), np.median(np.abs(values[:, 6]))
            if columns.quaternion_order is None and w < 0.3 and z > 0.9:
                yield file, f'[{name}] has quaternions like x, y, z, w: quaternion_order = "xyzw", perhaps?'
    if not mapping.bodies and "eef" not in series:
        yield file, "neither [eef] nor [bodies] is mapped: nothing of motion or of objects is judged"
