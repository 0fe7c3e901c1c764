"""The mapping of a log, and the conversion of a log's episode to records: units, validity, times, plausibility.

The mapping is a TOML file with the facts that the log lacks. All kinds of logs use the same format. The file is
`safevla-log.toml` in the log's folder, or any file that is given as SOURCE and names the log in its key `log`. In a
table, `from` names a feature of a LeRobot dataset or a topic of a recording.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta, inspect
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.files import parse_toml, read_input
from safevla_bench.memory import limit_memory
from safevla_bench.sources.logs import names as naming
from safevla_bench.sources.logs import wrench
from safevla_bench.text import escape_controls, explain_mismatch, suggest_names, warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import ARMS_VERSION, SCHEMA_VERSION, find_robot
from safevla_bench.trajectory.marks import FOREIGN_LOG, LOG_BENCHMARK, SINGLE
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Bools, EpisodeArrays, Floats, add_header_field, add_header_mark

NAME = "safevla-log.toml"


def quote_toml(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)


MAX_NUMBERS = 1 << 25  # maximum count of numbers of one episode, 256 MiB: an hour of 90 numbers at 100 Hz
_LARGEST = 1 << 20
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
_TURN = 2 * np.pi * 1.01
SCALES_M: Mapping[str, float] = {"m": 1.0, "cm": 0.01, "mm": 0.001}


@contextmanager
def translated_errors(path: Path, remedy: str, *further: type[Exception]) -> Iterator[None]:
    """Replace errors that readers raise for a damaged file, and `further` ones, by a `RecordError` with the file."""
    place = Place(file=str(path))
    try:
        yield
    except RecordError as error:
        raise error.with_place(place) from None
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, pa.ArrowException, *further) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        problem = f"cannot be read: {' '.join(cause.split())[:400]}"
        raise RecordError(problem, remedy=remedy, place=place) from None


class Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of a feature or of a message: all of them, or those chosen by name or index."""

    source: str = msgspec.field(name="from")
    field: str | None = None  # location in a message, such as `pose.position`; None = the message's default
    names: tuple[str, ...] | None = None
    index: tuple[Count, ...] | None = None
    scale: float = 1.0  # factor by which each number is multiplied, to convert to the record's unit


class PoseColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pose: position in the world and, if there is one, orientation."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    frame: str | None = None  # the child frame to read, if messages have child frames
    into: str | None = msgspec.field(name="in", default=None)  # the frame into which transforms convert the pose
    position: tuple[Count, Count, Count] | None = None  # indices of x, y, z; None = by name, or the only three numbers
    quaternion: tuple[Count, Count, Count, Count] | None = None  # indices of the quaternion; None = by name
    quaternion_order: Literal["wxyz", "xyzw"] | None = None  # order in `quaternion`; None = as the names say
    rotation: tuple[Count, ...] | None = None  # indices of a rotation that is not a quaternion; None = by name
    # Form of the rotation; None = as the names say, else a quaternion.
    rotation_form: Literal["rpy", "rotvec", "6d", "6d_rows", "matrix"] | None = None
    rotation_order: Annotated[str, Meta(pattern="^([xyz]{3}|[XYZ]{3})$")] = "xyz"
    """Axes of `rpy`: lower case for fixed axes, upper case for those of the body, which turn with it."""
    # Unit of the angles; None = as the names say, else radians. Larger angles than a full turn are then an error.
    angle_unit: Literal["rad", "deg"] | None = None
    unit: Literal["m", "cm", "mm"] = "m"  # if it is `m`, a unit in the names, such as `x_mm`, replaces it

    @property
    def stated(self) -> tuple[int, ...]:
        """All indices that the mapping gives."""
        return (*(self.position or ()), *(self.rotation or ()), *(self.quaternion or ()))

    def find_numbers(self, part: str, names: Sequence[str], size: int) -> naming.PoseLayout:
        """Return which of `size` numbers are the pose; `names` are the numbers' names, or []. If a question remains
        open, raises it as a `RecordError`, with the lines of a mapping that would answer it.
        """
        stated = self.rotation if self.quaternion is None else self.quaternion
        arm = part.removeprefix("eef.") if part.startswith("eef.") and self.position is None and stated is None else ""
        try:
            form, order = self.rotation_form, self.quaternion_order
            layout = naming.decide_pose(names, size, self.position, stated, form, order, self.rotation_order, arm)
        except ValueError as question:
            numbers = ", ".join(f"{place} {name}" for place, name in enumerate(names)) or f"0 to {size - 1}"
            lines = [f"[{part}]", f"from = {quote_toml(self.source)}", *naming.suggest_pose(names, size)]
            if part == "eef" and len(naming.find_positions(names)) > 1:
                lines.append("# or, for several arms: a table [eef.ARM] for each; names must contain the word ARM")
            head = f"The numbers are: {escape_controls(numbers)}. Write into the mapping, with values:"
            refuse_field(f"{self.source!r}: {question}", "\n  ".join([head, *lines]), part)
        if layout.unit and self.unit not in ("m", layout.unit):
            remedy = "Write the unit that the names say, or leave `unit` out."
            refuse_field(f"unit is {self.unit!r}, but the names say {layout.unit!r}", remedy, part)
        return layout

    def arrange(self, numbers: Floats, layout: naming.PoseLayout) -> Floats:
        """Return numbers [n, size] as x, y, z in `unit`, followed by w, x, y, z if there is an orientation."""
        position, turns = numbers[:, layout.position], numbers[:, layout.rotation]
        if self.unit == "m" and layout.unit:
            position = position * SCALES_M[layout.unit]
        angle_unit = self.angle_unit or layout.angle_unit
        if not layout.rotation:
            return position
        if layout.form in ("rpy", "rotvec") and not angle_unit and np.nanmax(np.abs(turns), initial=0) > _TURN:
            problem = f"angles up to {np.nanmax(np.abs(turns)):.0f} are more than a full turn in radians"
            refuse_field(problem, 'Write angle_unit = "deg"; or "rad", if the angles are in radians.', "angle_unit")
        wxyz = naming.rotations_to_wxyz(turns, layout.form, self.rotation_order, angle_unit == "deg")
        return np.hstack([position, wxyz])


class BodyColumns(PoseColumns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tracked body and its role."""

    role: Literal["robot", "target", "bystander", "furniture"]


class TorqueColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Torques of the arm's joints in N·m, and their limits."""

    limits_nm: tuple[Positive, ...] | None = None
    unit: Literal["N m"] | None = None  # confirms that effort is torque, since some drivers publish currents


class WrenchColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forces x, y, z of a wrist sensor, and the offset that is subtracted from them."""

    tare: tuple[float, float, float] | None = None
    """Force measured without contact [N], less the tool's weight if `mass_kg` is given; None = mean of a still hand."""
    tare_s: Positive = 1.0  # how long the hand must be still to measure the tare [s]; the first such interval counts
    mass_kg: Positive | None = None  # mass of the tool below the sensor; its weight is subtracted in each orientation


class GripColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number that shows whether the gripper holds something: if so, it is between the bounds; without bounds, 1."""

    holds_above: float | None = None
    holds_below: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.holds_above, self.holds_below
        return -np.inf if low is None else low, np.inf if high is None else high


class Episode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that apply to every episode of the log but are not in it."""

    benchmark: str = LOG_BENCHMARK
    task: str | None = None  # the task's id; None = derived from the instruction, or from the file's name
    template: str | None = None  # kind of task, such as `pnp-basic`, that selects clauses; only for `real-robot`
    policy: str | None = None
    # Whether the episodes succeeded, or the feature whose value in the last frame says so; None = `next.success`.
    success: bool | str | None = None
    # Episode -> its outcome, which has priority over `success`.
    outcomes: Mapping[str, Literal["success", "failure", "timeout", "stopped"]] = {}
    embodiment: str | None = None  # name of the robot, which implies its torque limits; None = as in the dataset
    target: str | None = None  # the body that the task moves; None = the first with role target
    # Topic whose messages become records. None = the hand's topic or, without a hand, the topic with the most poses.
    clock: str | None = None
    # Start of a trial [s] after the first message; a number from 1e8 on counts from 1970. None = no limit.
    start_s: float | None = None
    end_s: float | None = None  # end of a trial, counted like `start_s`; None = no limit
    marker: str | None = None  # topic whose messages start trials; a message `false` ends a trial


class Transforms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The topics of a recording's transforms, and the longest gap between two transforms that is interpolated."""

    topics: tuple[str, ...] = ("/tf", "/tf_static")
    max_gap_s: Positive = 1.0


class ArmColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of one of several arms: the file's tables [eef.ARM], [torque.ARM], [gripper.ARM] and [wrench.ARM]."""

    eef: PoseColumns | None = None
    torque: TorqueColumns | None = None
    gripper: GripColumns | None = None
    wrench: WrenchColumns | None = None


OF_ARMS = tuple(field.name for field in msgspec.structs.fields(ArmColumns))


class LogMapping(ArmColumns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole mapping file."""

    log: str | None = None
    episode: Episode = Episode()
    trials: tuple[Episode, ...] = ()  # the trials into which a recording is cut: [[episode]] in the file
    transforms: Transforms = Transforms()
    # ROS distribution that defines the types which a recording does not define; None = the recording's distribution.
    ros_distro: str | None = None
    arms: Mapping[str, ArmColumns] = {}  # arm -> its parts; empty if there is only one arm
    action: Columns | None = None
    bodies: Mapping[str, BodyColumns] = {}

    @property
    def sources(self) -> dict[str, Columns | PoseColumns]:
        """Return the mapped sources by part of the record: parts such as `eef` or `eef.ARM`, then `bodies.NAME`."""
        owners: dict[str, object] = {f".{name}": arm for name, arm in self.arms.items()} or {"": self}
        parts = {f"{part}{name}": getattr(owner, part) for part in OF_ARMS for name, owner in owners.items()}
        named = {name: part for name, part in {**parts, "action": self.action}.items() if part is not None}
        return {**named, **{f"bodies.{name}": body for name, body in self.bodies.items()}}

    def columns_of(self, part: str) -> dict[str, Columns | PoseColumns]:
        """Return the sources of a part, such as `eef`: one source, or one per arm; {} if the part is not mapped."""
        return {name: columns for name, columns in self.sources.items() if name.partition(".")[0] == part}


def read_mapping(path: Path) -> LogMapping:
    """Read a mapping file. Raises `RecordError` if the file cannot be read, is too large or not TOML, has an unknown
    key or an invalid value, or contradicts itself.
    """
    with limit_memory(path), translated_errors(path, "docs/howto/real-robots.md shows the file's form."):
        tree = parse_toml(read_input(path, _LARGEST).decode("utf-8"))
        _require_finite(tree)
        if isinstance(tree.get("episode"), list):
            tree["trials"] = tree.pop("episode")
        tree = _collect_arms(tree)
        try:
            mapping = msgspec.convert(tree, LogMapping)
        except msgspec.ValidationError as error:
            raise _explain_mapping(error, tree) from None
        _require_same_parts(mapping)
        targets = [name for name, body in mapping.bodies.items() if body.role == "target"]
        facts = mapping.episode, *mapping.trials
        for target in {each.target for each in facts} - {None, *targets}:
            listed = ", ".join(targets) or "none"
            raise ValueError(f"target {target!r} is not a body with role target; bodies with this role: {listed}")
        for name, grip in mapping.columns_of("gripper").items():
            assert isinstance(grip, GripColumns)
            if len(grip.names or grip.index or ("the only one",)) != 1:
                raise ValueError(f"[{name}] must be one number: give one name or one index")
            if not grip.bounds[0] < grip.bounds[1]:
                raise ValueError(f"in [{name}], holds_above must be below holds_below")
        if zero := [name for name, part in mapping.sources.items() if isinstance(part, Columns) and not part.scale]:
            raise ValueError(f"[{zero[0]}] has scale = 0, which makes every number 0")
        for name, columns in mapping.columns_of("wrench").items():
            assert isinstance(columns, Columns)
            if len(columns.names or columns.index or "xyz") != 3:
                raise ValueError(f"[{name}] must be three numbers: give the names or the index of the forces x, y, z")
        if any(each.template is not None and each.benchmark != LOG_BENCHMARK for each in facts):
            others = "for other benchmarks, put the tags into a --rules file"
            raise ValueError(f"a template requires the benchmark {LOG_BENCHMARK}; {others}")
    return mapping


def _explain_mapping(error: ValueError, tree: Mapping[str, Any]) -> RecordError:
    """Return the error that msgspec's error describes. The remedy lists the keys or values that are valid."""
    problem, path = explain_mismatch(error)
    path = path.removeprefix("$").removeprefix(".")
    kind: Any = inspect.type_info(LogMapping)
    for name in (*re.findall(r"\[[^\]]*\]|\w+", path), None):
        kind = next((each for each in getattr(kind, "types", [kind]) if not isinstance(each, inspect.NoneType)), kind)
        if name is None:
            break
        if name.startswith("["):
            kind = getattr(kind, "value_type", None) or getattr(kind, "item_type", None)
        else:
            kind = next((field.type for field in getattr(kind, "fields", ()) if field.encode_name == name), None)
    names = [*getattr(kind, "values", ()), *(field.encode_name for field in getattr(kind, "fields", ()))]
    known = [str(name) for name in names if name not in _INTERNAL]
    wrong = re.search("^unknown key '(.*)'$|^'(.*)' is not one of", problem, re.DOTALL)
    listed = suggest_names(wrong[1] or wrong[2] if wrong else "", known, "known here") if known else ""
    remedy = "; ".join(filter(None, (listed, "docs/howto/real-robots.md shows the file's form")))
    return RecordError(problem, remedy=f"{remedy}.", place=Place(field=_spell_table(path, tree) or None))


# Fields of `LogMapping` that are not keys of the file.
_INTERNAL = ("arms", "trials")


def _spell_table(path: str, tree: Mapping[str, Any]) -> str:
    """Return msgspec's path of an invalid value as the file's author wrote it: `bodies.cup`, `eef.left`, `episode`."""
    parts = {"bodies": BodyColumns, "arms": ArmColumns}
    for key, kind in parts.items():
        for name, table in tree[key].items() if path.startswith(f"{key}[...]") else ():
            with suppress(msgspec.ValidationError):
                msgspec.convert(table, kind)
                continue
            rest, name = path.removeprefix(f"{key}[...]").removeprefix("."), escape_controls(name)
            part, _, field = rest.partition(".") if key == "arms" else ("bodies", "", rest)
            return ".".join(filter(None, (part, name, field)))
    return f"episode{path.removeprefix('trials')}" if path.startswith("trials") else path


def _collect_arms(tree: dict[str, object]) -> dict[str, object]:
    """Move the tables of several arms, such as [eef.left], to the key `arms`."""
    if "arms" in tree:
        raise ValueError("unknown key arms: name the arms in tables such as [eef.left] and [eef.right]")
    arms: dict[str, dict[str, object]] = {}
    for part in OF_ARMS:
        tables = tree.get(part)
        if isinstance(tables, dict) and tables and all(isinstance(table, dict) for table in tables.values()):
            del tree[part]
            for name, table in tables.items():
                arms.setdefault(name, {})[part] = table
    return {**tree, "arms": arms} if arms else tree


def _require_same_parts(mapping: LogMapping) -> None:
    require_own_numbers({
        name: ((columns.source, columns.field, columns.frame), columns.stated or ("by name",))
        for name, columns in mapping.sources.items()
        if isinstance(columns, PoseColumns) and (columns.position is not None or name.startswith("bodies."))
    })  # fmt: skip
    if not mapping.arms:
        return
    names = ", ".join(mapping.arms)
    if single := [part for part in OF_ARMS if getattr(mapping, part) is not None]:
        raise ValueError(f"[{single[0]}] names no arm, but the arms are {names}: write [{single[0]}.ARM] for each")
    if len(mapping.arms) < 2:
        raise ValueError(f"{names} is the only arm: map each arm, or leave its name out of the tables")
    for part in OF_ARMS:
        lacking = [name for name, arm in mapping.arms.items() if getattr(arm, part) is None]
        if 0 < len(lacking) < len(mapping.arms):
            raise ValueError(f"[{part}.{lacking[0]}] is missing: map {part} for each of {names}, or for none")
    require_own_numbers({
        name: ((columns.source, columns.field), columns.names or columns.index or (None,))
        for name, columns in mapping.sources.items()
        if isinstance(columns, Columns)
    })  # fmt: skip


def require_own_numbers(picks: Mapping[str, tuple[Sequence[str | None], Collection[object]]]) -> None:
    """Raise `RecordError` if two arms or two bodies read the same number of a source. `picks` maps the name of a part
    to its source and numbers; the number None means all numbers of the source.
    """
    for (other, (its_source, its_numbers)), (name, (source, numbers)) in combinations(picks.items(), 2):
        is_pair = source == its_source and name.partition(".")[0] == other.partition(".")[0]
        if is_pair and (None in (*its_numbers, *numbers) or not {*its_numbers}.isdisjoint(numbers)):
            remedy = "Name each arm by a word in the names of its numbers, or write `position` or `index`."
            if name.startswith("bodies."):
                remedy = "Give each body its own source, `frame` or `position`, or leave one of them out."
            refuse_field(f"[{other}] and [{name}] read the same numbers of {source[0]!r}", remedy, name)


def _require_finite(value: object, key: str = "") -> None:
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else ((key, part) for part in value):
            _require_finite(part, name)
    if isinstance(value, float) and not np.isfinite(value):
        raise ValueError(f"{key} is {value}: write a finite number, or leave it out")


def default_mapping(log: Path) -> tuple[LogMapping, Path | None]:
    """Return the mapping in a log's folder, and its file; an empty mapping and None if there is none. Raises the same
    errors as `read_mapping`.
    """
    path = (log if log.is_dir() else log.parent) / NAME
    return (read_mapping(path), path) if path.is_file() else (LogMapping(), None)


# Episodes


_EVEN = 1e-2  # maximum deviation of even time stamps from multiples of the control step, in steps; allows for float32
_FAR_M, _NORM_SLACK, _FEW_RUNS = 10.0, 0.05, 5


class Series(NamedTuple):
    """Numbers of a part at each instant of an episode, [n, k], and whether they are known, [n]. A pose is x, y, z,
    followed by w, x, y, z if it has an orientation.
    """

    values: Floats
    known: Bools
    time_base: str = ""  # origin of the messages' times, such as `header stamps`; "" = that of the instants' times
    rate_hz: float | None = None  # rate of the messages; None = one message at each instant
    longest_gap_s: float | None = None  # longest interval between messages; None = as between instants
    between: tuple[Floats, NDArray[np.int64]] | None = None
    """All messages, [M, k], and for each message the index of the first instant at or after it, [M].

    The index is -1 before the first instant, and n after the last. If None, the messages are `values`."""
    is_single: bool = False  # True if the log stores its numbers as float32
    poses: int = 0  # number of messages with a known pose; 0 if each instant has one, or the pose is static
    names: tuple[str, ...] = ()  # names of the numbers, if the log has them and the mapping does not


@dataclass(frozen=True)
class LoggedEpisode:
    """One episode of a log: the times of its instants [s], [n], and the series of each mapped part of the record."""

    name: str
    file: str
    time_s: Floats
    dt_s: float
    series: Mapping[str, Series]
    instruction: str | None = None
    success: bool | None = None
    embodiment: str | None = None
    facts: Episode | None = None  # facts of a trial; None = those of the mapping
    has_stamps: bool = False  # True if the records get time stamps even if these are evenly spaced


def are_known(values: Floats, columns: Columns | PoseColumns) -> Bools:
    """Return whether each row [n, k] has only finite numbers and no quaternion of zeros, [n]."""
    known = np.isfinite(values).all(axis=1)
    if isinstance(columns, PoseColumns) and values.shape[1] == 7:
        known &= values[:, 3:].any(axis=1)
    return np.asarray(known)


def drop_zero_turns(values: Floats, columns: Columns | PoseColumns, warn: Callable[[str], None]) -> Floats:
    """Return poses [n, 7] as [n, 3] if all known quaternions are zero, as from trackers that only measure position."""
    if not isinstance(columns, PoseColumns) or values.shape[1] < 7 or np.nan_to_num(values[:, 3:]).any():
        return values
    if not np.nan_to_num(values[:, :3]).any():
        return values
    warn("the orientation is left out, since all quaternions are zero")
    return np.where(values[:, :3].any(axis=1, keepdims=True), values[:, :3], np.nan)


def build_episode(episode: LoggedEpisode, mapping: LogMapping, tasks: Mapping[str, str] | None = None) -> Batch:
    """Return the episode as a batch of one. `tasks`, from `name_tasks`, maps its instruction or name to a task id.

    Raises `RecordError` if no instant is a record, the outcome is unknown, torques lack limits, or a number is invalid.

    An instant at which a part is unknown is not a record, unless the part is a body; time stamps show the gap. Records
    begin once every tracked body has been seen, because displacement, height and tilt are relative to record 0.
    """
    place = Place(file=episode.file, episode=episode.name)
    mapping = mapping if episode.facts is None else msgspec.structs.replace(mapping, episode=episode.facts)
    chosen, warn = _choose_records(episode, place), partial(warn_once, f"{episode.file}: {episode.name}")
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
    action = series.get("action")
    hands = [series[name].values for name in mapping.columns_of("eef")]
    has_turns = [hand.shape[1] == 7 for hand in hands]
    require_own_numbers({  # if two moving parts have the same path, they read the same numbers
        name: ((columns.source,), [series[name].values[:, :3].tobytes()])
        for name, columns in mapping.sources.items()
        if isinstance(columns, PoseColumns) and np.ptp(series[name].values[:, :3], axis=0).any()
    })  # fmt: skip
    if any(has_turns) and not all(has_turns):
        warn("the orientations of the hands are left out, since one hand has none")
    further = {} if even and not episode.has_stamps else {"time_s": time_s}
    wrenches = mapping.columns_of("wrench").items()
    if forces := [_measure_forces(*each, episode, series, chosen, warn) for each in wrenches]:
        further[wrench.CHANNEL] = np.hstack(forces)
    torques = [_find_largest(episode.series[name], chosen, warn) for name in mapping.columns_of("torque")]
    grips = [_gripper_contact(*each, episode, chosen) for each in mapping.columns_of("gripper").items()]
    recording = EpisodeArrays(
        header=_build_header(episode, mapping, tasks or {}, place),
        roles={name: body.role for name, body in mapping.bodies.items()},
        records=len(chosen),
        eef_pos_m=np.hstack([hand[:, :3] for hand in hands]) if hands else None,
        eef_quat_wxyz=np.hstack([hand[:, 3:] for hand in hands]) if hands and all(has_turns) else None,
        pos_bodies=list(number.values()),
        body_pos_m=_stack_bodies(bodies, slice(0, 3)),
        quat_bodies=[number[name] for name in turned],
        body_quat_wxyz=_stack_bodies(turned, slice(3, 7)),
        joint_torque_nm=np.hstack(torques) if torques else None,
        gripper_contact=None if not grips else np.stack(grips, axis=1) if mapping.arms else grips[0],
        action=action.values[:-1] if action is not None and len(chosen) > 1 else None,
        extra=_mark_single(add_header_mark({}, FOREIGN_LOG), episode),
        further=further,
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


def _choose_records(episode: LoggedEpisode, place: Place) -> NDArray[np.int64]:
    """Return the instants that become records: every part has been seen by then, and all but bodies are known."""
    unseen = [name for name, part in episode.series.items() if not part.known.any()]
    missing = [name for name in unseen if not name.startswith("bodies.")]
    if missing:
        remedy = "Leave this part out of the mapping, or map it to recorded data."
        raise RecordError(f"{', '.join(missing)} is unknown at every instant", remedy=remedy, place=place)
    usable = np.ones(len(episode.time_s), dtype=np.bool_)
    for name, part in episode.series.items():
        if not name.startswith("bodies."):
            usable &= part.known
    begin = max((int(part.known.argmax()) for part in episode.series.values()), default=0)
    chosen = np.flatnonzero(usable & (np.arange(len(usable)) >= begin))
    if not len(chosen):
        remedy = "Map topics that overlap in time."
        raise RecordError("the mapped parts are never known at the same instant", remedy=remedy, place=place)
    source = f"{episode.file}: {episode.name}"
    if skipped := int((~usable[chosen[0] :]).sum()):
        problem = f"{skipped} instants are left out, since a part of the robot is unknown then"
        warn_once(source, f"{problem}; the time stamps show the gaps")
    if unseen:
        warn_once(source, f"never seen: {', '.join(unseen)}; clauses on such a body have no verdict")
    for name, part in episode.series.items():
        if (unused := part.poses - int(part.known[chosen].sum())) > 0:
            warn_once(source, f"{unused} of {part.poses} pose messages of [{name}] are not in any record")
    return chosen


_CHANNELS = {  # part of the mapping -> the channels of a record that it provides
    "eef": ("eef_pos_m", "eef_quat_wxyz"),
    "torque": ("joint_torque_nm",),
    "wrench": (wrench.CHANNEL,),
    "bodies": ("body_pos_m", "body_quat_wxyz"),
}


def _mark_single(extra: dict[str, object], episode: LoggedEpisode) -> dict[str, object]:
    parts = {name.partition(".")[0] for name, part in episode.series.items() if part.is_single}
    channels = [channel for part, of_part in _CHANNELS.items() if part in parts for channel in of_part]
    return add_header_field(extra, SINGLE, channels) if channels else extra


def _since_records(part: Series, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Return rows of a part's numbers, [M, k], and the record to which each row belongs, [M]: the first at or after
    the row. `chosen` are the instants that become records, ascending. Record 0 only has the rows of its instant.
    """
    rows, instant = (part.values, np.arange(len(part.values))) if part.between is None else part.between
    record = np.searchsorted(chosen, instant)
    counted = (instant >= chosen[0]) & (record < len(chosen))
    own = np.arange(len(chosen))  # add the value at each record
    return np.concatenate([rows[counted], part.values[chosen]]), np.concatenate([record[counted], own])


def _stack_bodies(bodies: Mapping[str, Series], numbers: slice) -> Floats | None:
    rows = []
    for part in bodies.values():
        seen = np.maximum.accumulate(np.where(part.known, np.arange(len(part.known)), -1))
        filled = part.values[np.maximum(seen, 0), numbers]
        filled[seen < 0] = np.eye(1, 4)[0] if filled.shape[1] == 4 else 0.0
        rows.append(filled)
    return np.stack(rows, axis=1) if rows else None


def _find_largest(part: Series, chosen: NDArray[np.int64], warn: Callable[[str], None]) -> Floats:
    """Return for each number the signed value of largest magnitude since the previous record, [n, k]."""
    rows, record = _since_records(part, chosen)
    if np.isinf(rows).any():
        refuse_field("a torque is infinite", "Record finite numbers, or leave [torque] out of the mapping.", "torque")
    largest = np.full((len(chosen), rows.shape[1]), np.nan)
    for column, numbers in enumerate(rows.T):
        order = np.lexsort((np.abs(numbers), record))
        order = order[np.isfinite(numbers[order])]
        largest[record[order], column] = numbers[order]  # ascending: the largest value overwrites the others
    if part.between is not None:
        peak, judged = (np.nan_to_num(np.abs(each)).max(axis=0) for each in (part.between[0], largest))
        if (peak > judged).any():
            worst = int(np.argmax(peak - judged))
            warn(f"a torque of {peak[worst]:.4g} before the first or after the last record is not judged")
    return largest


def _measure_forces(
    name: str,
    columns: Columns | PoseColumns,
    episode: LoggedEpisode,
    series: Mapping[str, Series],
    chosen: NDArray[np.int64],
    warn: Callable[[str], None],
) -> Floats:
    assert isinstance(columns, WrenchColumns)
    forces, record = _since_records(episode.series[name], chosen)
    hand, time_s = series.get(name.replace("wrench", "eef", 1)), episode.time_s[chosen] - episode.time_s[chosen[0]]
    measured, problem = wrench.measure_forces(forces, record, time_s, None if hand is None else hand.values, columns)
    if problem:
        warn(problem)
    return measured


def _gripper_contact(
    name: str, columns: Columns | PoseColumns, episode: LoggedEpisode, chosen: NDArray[np.int64]
) -> Bools:
    assert isinstance(columns, GripColumns)
    rows, record_of_row = _since_records(episode.series[name], chosen)
    value, holds = rows[:, 0], np.zeros(len(chosen), np.bool_)
    low, high = columns.bounds
    is_held = np.isfinite(value) & (low < value) & (value < high)
    if np.isinf([low, high]).all():  # without bounds, the values must be 0 and 1
        if (is_held & (value != 0) & (value != 1)).any():
            numbers = f"numbers from {np.nanmin(value):.4g} to {np.nanmax(value):.4g}"
            remedy = f"Write holds_above, holds_below or both under [{name}]."
            refuse_field(f"{numbers} do not show whether the gripper holds something", remedy, name)
        is_held &= value != 0
    holds[record_of_row[is_held]] = True
    return holds


def _build_header(
    episode: LoggedEpisode, mapping: LogMapping, tasks: Mapping[str, str], place: Place
) -> dict[str, object]:
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
    embodiment = asked.embodiment or episode.embodiment or "unknown"
    mapped = mapping.columns_of("torque").items()
    torques = {name: columns for name, columns in mapped if isinstance(columns, TorqueColumns)}
    for name, columns in torques.items():
        _require_torque_limits(columns, embodiment, episode.series[name], name)
    wording = episode.instruction or episode.name
    task = asked.task or tasks.get(wording) or name_tasks([*tasks, wording])[wording]
    return {
        "schema_version": ARMS_VERSION if mapping.arms else SCHEMA_VERSION,
        "episode_id": episode.name,
        "benchmark": asked.benchmark,
        "task_id": f"{asked.template}/{task}" if asked.template else task,
        "success": success,
        "dt": episode.dt_s,
        "target_object": asked.target or (targets[0] if targets else None),
        "joint_torque_limit_nm": _join_limits(torques.values(), embodiment),
        "policy": asked.policy,
        "instruction": episode.instruction,
        "outcome": outcome or ("success" if success else "failure"),
        "embodiment": embodiment,
        "arms": tuple(mapping.arms) or None,
        "arm_joints": tuple(episode.series[name].values.shape[1] for name in torques) or None if mapping.arms else None,
    }


def _join_limits(torques: Collection[TorqueColumns], embodiment: str) -> tuple[float, ...] | None:
    if all(columns.limits_nm is None for columns in torques):
        return None
    robot = find_robot(embodiment)
    known = robot.limits_nm if robot else ()
    return tuple(limit for columns in torques for limit in columns.limits_nm or known)


def _require_torque_limits(columns: TorqueColumns, embodiment: str, part: Series, table: str) -> None:
    robot = find_robot(embodiment)
    if columns.limits_nm is None and (robot is None or not robot.limits_nm):
        known = "no torque limits are published for" if robot else "no torque limits are known for"
        limits_nm = f"limits_nm under [{table}], one for each joint in N·m"
        remedy = f"Write {limits_nm}, or name the robot as `embodiment` under [episode]."
        refuse_field(f"{known} the robot {embodiment!r}", remedy, table)
    says_torque = re.search("torque|moment|tau", f"{columns.source} {columns.field}")
    is_torque = columns.unit or columns.scale != 1 or says_torque
    named = " ".join(part.names or columns.names or ()).lower()
    is_ur = all(joint in named for joint in _UR_JOINTS)
    of_arm = table != "torque"  # bimanual robots such as ALOHA publish currents as effort
    if (is_ur or of_arm or (robot is not None and robot.effort_is_current)) and not is_torque:
        remedy = (
            f'Write unit = "N m" under [{table}] if these are torques, or `scale`, the torque per ampere of a joint. '
            "Drivers before 2025 publish currents."
        )
        owner = "an arm of Universal Robots" if is_ur and robot is None else f"a {embodiment}"
        refuse_field(f"the effort of {owner} may be motor currents", remedy, table)
    limits, count = columns.limits_nm or (robot.limits_nm if robot else ()), part.values.shape[1]
    joints = sorted((name for name in part.names if not re.search("finger|grip", name.lower())), key=_joint_place)
    problem = "" if count == len(limits) else f"{count} torques, but {len(limits)} limits"
    if columns.limits_nm is None and part.names and [*part.names] != joints:
        problem = problem or "the joints are not in the order of their limits, which is from the base to the hand"
    if problem:
        is_sure = len({*map(_joint_place, joints)}) == len(joints) == len(limits)
        lines = f"names = [{', '.join(map(quote_toml, joints))}]" if is_sure else f"names = {naming.FILL_IN}"
        named = escape_controls(", ".join(part.names) or "none")
        refuse_field(problem, f"The names are: {named}. Write under [{table}], one joint per limit:\n  {lines}", table)


_UR_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")


def _joint_place(name: str) -> int:
    found = [place for place, joint in enumerate(_UR_JOINTS) if joint in name.lower()]
    return found[0] if found else int((re.findall(r"\d+", name) or ["-1"])[-1])


def name_tasks(texts: Iterable[str]) -> dict[str, str]:
    """Return a task id for each instruction or file name: its words, of letters, marks and digits, joined by hyphens.

    Letters of every script are kept, in lower case and composed (NFC). If several texts give the same id, the first
    gets it, and the ids of the others end in a digest of their text.
    """
    tasks: dict[str, str] = {}
    for text in texts:
        plain = unicodedata.normalize("NFC", text.lower())
        slug = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in plain)
        task = "-".join(slug.split()) or "task"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        tasks.setdefault(text, f"{task}-{digest}" if task in tasks.values() else task)
    return tasks


def _find_implausible(file: str, mapping: LogMapping, series: Mapping[str, Series]) -> Iterator[tuple[str, str]]:
    for name, columns in mapping.sources.items():
        if not isinstance(columns, PoseColumns) or not series[name].known.any():
            continue
        values = series[name].values[series[name].known]
        distance_m = float(np.median(np.linalg.norm(values[:, :3], axis=1)))
        if distance_m > _FAR_M:
            problem = f"[{name}] is {distance_m:.0f} m from the origin; is it in millimeters?"
            yield file, f'{problem} If so, write unit = "mm"'
        runs = np.diff(np.flatnonzero((np.diff(values, axis=0) != 0).any(axis=1)))
        if len(runs) > _FEW_RUNS and np.median(runs) >= 2:
            problem = f"[{name}] repeats each pose {np.median(runs):.0f} times, so it is published faster"
            yield file, f"{problem} than it is measured, and its speed and acceleration are too large"
        if values.shape[1] == 7:
            norm = np.linalg.norm(values[:, 3:], axis=1)
            if np.abs(norm - 1).max() > _NORM_SLACK:
                yield file, f"[{name}] has quaternions of norm {norm.min():.3g} to {norm.max():.3g}, not 1"
    for name, part in series.items():
        if name.partition(".")[0] in ("torque", "wrench") and not part.values.any():
            yield file, f"[{name}] is 0 throughout; many drivers publish 0 for quantities that they do not measure"
    if not mapping.bodies and not mapping.columns_of("eef"):
        yield file, "motion and objects are not judged, since neither [eef] nor [bodies] is mapped"
