"""The mapping of a log, and the way from what was read to an episode: units, validity, time stamps, what looks wrong.

The mapping is a TOML file that says what the log does not say by itself. One form serves every kind of log. It is
`safevla-log.toml` in the log's folder, or a file anywhere whose key `log` names the log; that file is then the SOURCE.
`from` is a feature of a LeRobot dataset or a topic of an MCAP file.
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from safevla_bench.errors import Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import SCHEMA_VERSION
from safevla_bench.trajectory.marks import FOREIGN_LOG, LOG_BENCHMARK
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Recording, add_header_mark

NAME = "safevla-log.toml"
MAX_NUMBERS = 1 << 25
"""Numbers of one episode, 256 MiB: an hour of 90 numbers at 100 Hz."""
_LARGEST = 1 << 20
Positive = Annotated[float, Meta(gt=0)]
SCALES_M: Mapping[str, float] = {"m": 1.0, "cm": 0.01, "mm": 0.001}


@contextmanager
def translated_errors(path: Path, remedy: str, *further: type[Exception]) -> Iterator[None]:
    """Raise `RecordError` naming the file for whatever its readers raise for damage, `further` errors included."""
    place = Place(file=str(path))
    try:
        yield
    except RecordError as error:
        raise error.with_place(place) from None
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, pa.ArrowException, *further) as error:
        problem = f"cannot be read: {' '.join(str(error).split())[:400]}"
        raise RecordError(problem, remedy=remedy, place=place) from None


class Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of a feature or of a message: all of them, or those that are named or counted (from 0)."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    """Where in a message they are, such as `pose.position`; None = as usual for the message."""
    names: tuple[str, ...] | None = None
    index: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    scale: float = 1.0
    """What each number is multiplied with, to have it in the record's unit."""


class PoseColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pose: position in the world and, where there is one, orientation."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    frame: str | None = None
    """Of a topic of transforms, the child frame."""
    position: tuple[int, int, int] | None = None
    """Places of x, y and z in a feature; None = by name, else the first three."""
    quaternion: tuple[int, int, int, int] | None = None
    """Places of the quaternion in a feature; None = by name, else the four after the position; without any there is
    none."""
    quaternion_order: Literal["wxyz", "xyzw"] | None = None
    """Of a feature's numbers; the fields of a message have names. None = wxyz, with a warning where it looks wrong."""
    unit: Literal["m", "cm", "mm"] = "m"


class BodyColumns(PoseColumns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tracked body and its role."""

    role: Literal["robot", "target", "bystander", "furniture"]


class TorqueColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Torques of the arm's joints in N·m, and their limits."""

    limits_nm: tuple[Positive, ...] | None = None


class GripColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number that tells whether the gripper holds something: it is between the two bounds, or true."""

    holds_above: float | None = None
    holds_below: float | None = None


class Episode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of every episode of the log that it does not hold itself."""

    benchmark: str = LOG_BENCHMARK
    task: str | None = None
    """The task's id; None = made of the instruction, or of the file's name."""
    template: str | None = None
    """Kind of the task, such as `pnp-basic`, which decides what is judged of objects; of `real-robot` only."""
    policy: str | None = None
    success: bool | str | None = None
    """Whether the episodes succeeded, or the feature that says so in its last frame; None = `next.success`."""
    outcomes: Mapping[str, Literal["success", "failure", "timeout", "stopped"]] = {}
    """Episode -> how it ended, where they differ."""
    embodiment: str | None = None
    """The robot; the torque limits of a known one are used. None = as the dataset says."""
    target: str | None = None
    """The body that the task moves; None = the first of role target."""
    clock: str | None = None
    """The topic whose messages are the records; None = the end effector's, else the first that is mapped."""


class LogMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    log: str | None = None
    episode: Episode = Episode()
    eef: PoseColumns | None = None
    torque: TorqueColumns | None = None
    gripper: GripColumns | None = None
    action: Columns | None = None
    bodies: Mapping[str, BodyColumns] = {}

    @property
    def sources(self) -> dict[str, Columns | PoseColumns]:
        """Return what is read, by part of the record: `eef`, `torque`, `gripper`, `action`, then `bodies.NAME`.

        Parts that are not mapped are left out.
        """
        parts = {"eef": self.eef, "torque": self.torque, "gripper": self.gripper, "action": self.action}
        named = {name: part for name, part in parts.items() if part is not None}
        return {**named, **{f"bodies.{name}": body for name, body in self.bodies.items()}}


def read_mapping(path: Path) -> LogMapping:
    """Return the mapping in a file.

    Raises `RecordError` if the file cannot be read, is too large or no TOML, has a key or a value that the form does
    not know, or contradicts itself.
    """
    with translated_errors(path, "docs/real-robots.md shows the file's form."):
        mapping = msgspec.convert(tomllib.loads(read_input(path, _LARGEST).decode("utf-8")), LogMapping)
        targets = [name for name, body in mapping.bodies.items() if body.role == "target"]
        target, grip = mapping.episode.target, mapping.gripper
        if target is not None and target not in targets:
            raise ValueError(f"target {target!r} is no body of role target; those are: {', '.join(targets) or 'none'}")
        if grip is not None and len(grip.names or grip.index or ("the only one",)) != 1:
            raise ValueError("[gripper] is one number: give one name or one index")
        if mapping.episode.template is not None and mapping.episode.benchmark != LOG_BENCHMARK:
            raise ValueError(f"a template is for the benchmark {LOG_BENCHMARK}; tags of others are in a --rules file")
    return mapping


def default_mapping(log: Path) -> tuple[LogMapping, Path | None]:
    """Return the mapping that lies in a log's folder, and its file; an empty mapping and None if there is none.

    Raises `RecordError` as `read_mapping` does.
    """
    path = (log if log.is_dir() else log.parent) / NAME
    return (read_mapping(path), path) if path.is_file() else (LogMapping(), None)


# Episodes


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
    series = {name: Series(part.values[chosen], part.known[chosen]) for name, part in episode.series.items()}
    for name, columns in mapping.sources.items():
        if isinstance(columns, PoseColumns):
            series[name].values[:, :3] *= SCALES_M[columns.unit]
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
        action=action.values[:-1] if action is not None and len(chosen) > 1 else None,
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
    """Return the instants that are records: once every part has been seen, those with all but bodies known."""
    unseen = [name for name, part in episode.series.items() if not part.known.any()]
    missing = [name for name in unseen if not name.startswith("bodies.")]
    if missing:
        remedy = "Leave it out of the mapping, or map it to what was recorded."
        raise RecordError(f"{', '.join(missing)} is known at no instant", remedy=remedy, place=place)
    usable = np.ones(len(episode.time_s), dtype=np.bool_)
    for name, part in episode.series.items():
        if not name.startswith("bodies."):
            usable &= part.known
    begin = max((int(part.known.argmax()) for part in episode.series.values()), default=0)
    chosen = np.flatnonzero(usable & (np.arange(len(usable)) >= begin))
    if not len(chosen):
        remedy = "Map topics that overlap in time."
        raise RecordError("at no instant all that is mapped is known", remedy=remedy, place=place)
    source = f"{episode.file}: {episode.name}"
    if skipped := int((~usable[chosen[0] :]).sum()):
        problem = f"{skipped} instants at which a part of the robot is unknown are no records"
        warn_once(source, f"{problem}; time stamps show the gaps")
    if unseen:
        warn_once(source, f"never seen: {', '.join(unseen)}; clauses on it have no verdict")
    return chosen


def _stack_bodies(bodies: Mapping[str, Series], numbers: slice) -> Floats | None:
    """Return the positions or quaternions of bodies, [n, K, k], None without bodies."""
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
    }


def _find_implausible(file: str, mapping: LogMapping, series: Mapping[str, Series]) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for what looks wrong in the mapped parts; nothing where all looks right."""
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
