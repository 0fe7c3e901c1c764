"""The mapping of a log, and the conversion of a log's episode to records: units, validity, times, plausibility.

The mapping is a TOML file with the facts that the log lacks. All kinds of logs use the same format. The file is
`safevla-log.toml` in the log's folder, or any file that is given as SOURCE and names the log in its key `log`. In a
table, `from` names a feature of a LeRobot dataset or a topic of a recording.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
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
from safevla_bench.text import count_noun, escape_controls, explain_mismatch, quote_toml, suggest_names, warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import ARMS_VERSION, SCHEMA_VERSION, find_robot
from safevla_bench.trajectory.marks import FOREIGN_LOG, LOG_BENCHMARK, SINGLE
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Bools, EpisodeArrays, Floats, add_header_field, add_header_mark

NAME = "safevla-log.toml"


MAX_NUMBERS = 1 << 25  # maximum count of numbers in an episode (256 MiB), enough for an hour of 90 numbers at 100 Hz
_MAX_MAPPING_BYTES = 1 << 20
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
_TURN_RAD = 2 * np.pi * 1.01  # largest plausible angle [rad]: a full turn plus a tolerance of 1 %
SCALES_M: Mapping[str, float] = {"m": 1.0, "cm": 0.01, "mm": 0.001}


@contextmanager
def translated_errors(path: Path, remedy: str, *further: type[Exception]) -> Iterator[None]:
    """Replace the errors that readers raise for a damaged file, and `further` errors, by a `RecordError` for `path`."""
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
    field: str | None = None  # location in a message, such as `pose.position`; None = the part's default
    names: tuple[str, ...] | None = None
    index: tuple[Count, ...] | None = None
    scale: float = 1.0  # each number is multiplied by this factor, which converts it to the record's unit


class PoseColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pose: position in the world and, if there is one, orientation."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    frame: str | None = None  # the child frame to read, if messages have child frames
    into: str | None = msgspec.field(name="in", default=None)  # the frame into which transforms convert the pose
    # Indices of x, y, z; None = the numbers' names give x, y, z, or there are only three numbers.
    position: tuple[Count, Count, Count] | None = None
    quaternion: tuple[Count, Count, Count, Count] | None = None  # indices of the quaternion; None = found by name
    quaternion_order: Literal["wxyz", "xyzw"] | None = None  # order of the quaternion; None = as the names say
    rotation: tuple[Count, ...] | None = None  # indices of a rotation in another form; None = found by name
    # Form of the rotation; None = as the names say, else a quaternion.
    rotation_form: Literal["rpy", "rotvec", "6d", "6d_rows", "matrix"] | None = None
    rotation_order: Annotated[str, Meta(pattern="^([xyz]{3}|[XYZ]{3})$")] = "xyz"
    """Order of the axes of `rpy`: lower case for fixed axes, upper case for axes that turn with the body."""
    # Unit of the angles; None = the unit in the names. Without a unit, angles are in radians, up to a full turn.
    angle_unit: Literal["rad", "deg"] | None = None
    unit: Literal["m", "cm", "mm"] | None = None  # None = the unit in the names, as in `x_mm`, else m

    @property
    def stated(self) -> tuple[int, ...]:
        """All indices that the mapping gives."""
        return (*(self.position or ()), *(self.rotation or ()), *(self.quaternion or ()))

    def find_numbers(self, part: str, names: Sequence[str], size: int) -> naming.PoseLayout:
        """Return which of `size` numbers are the pose; `names` are the numbers' names, or []. Raises `RecordError` if
        this is ambiguous; the error lists lines that would complete the mapping.
        """
        rotation = self.rotation if self.quaternion is None else self.quaternion
        arm = (
            part.removeprefix("eef.") if part.startswith("eef.") and self.position is None and rotation is None else ""
        )
        try:
            form, order = self.rotation_form, self.quaternion_order
            layout = naming.decide_pose(names, size, self.position, rotation, form, order, self.rotation_order, arm)
        except ValueError as question:
            listed_numbers = ", ".join(f"{index} {name}" for index, name in enumerate(names)) or f"0 to {size - 1}"
            suggested = naming.suggest_pose(names, size)
            if not suggested:
                remedy = f"The numbers are: {escape_controls(listed_numbers)}. Correct the keys that contradict them."
                refuse_field(f"{self.source!r}: {question}", remedy, part)
            lines = [f"[{part}]", f"from = {quote_toml(self.source)}", *suggested]
            if part == "eef" and len(naming.find_positions(names)) > 1:
                lines.append("# or, for several arms: a table [eef.ARM] for each arm; names must contain the word ARM")
            introduction = f"The numbers are: {escape_controls(listed_numbers)}. Add these lines to the mapping:"
            refuse_field(f"{self.source!r}: {question}", "\n  ".join([introduction, *lines]), part)
        self.factor_m(part, layout.unit)
        if layout.form in ("rpy", "rotvec"):
            named = layout.angle_unit or naming.find_unit([self.field or ""], naming.ANGLE_UNITS)
            if named:
                _require_unit(part, "angle_unit", named, self.angle_unit, ("rad", "deg"))
            return layout._replace(angle_unit=named)
        return layout

    def factor_m(self, part: str, named: str = "") -> float:
        """Return the factor that converts positions to meters. `named` is the unit in the names of the numbers; ""
        leaves it to the name of `field`. Raises `RecordError` if the unit is unknown or contradicts the mapping's.
        """
        named = named or naming.find_unit([self.field or ""], naming.LENGTH_UNITS)
        if named:
            _require_unit(part, "unit", named, self.unit, tuple(SCALES_M))
        return SCALES_M[self.unit or named or "m"]

    def arrange(self, numbers: Floats, layout: naming.PoseLayout, part: str) -> Floats:
        """Return poses [n, size] as x, y, z [m], with w, x, y, z if oriented; raise `RecordError` for odd rotations."""
        position, rotation = numbers[:, layout.position], numbers[:, layout.rotation]
        position = position * self.factor_m(part, layout.unit)
        angle_unit = self.angle_unit or layout.angle_unit
        if not layout.rotation:
            return position
        if layout.form in ("rpy", "rotvec") and not angle_unit and np.nanmax(np.abs(rotation), initial=0) > _TURN_RAD:
            problem = f"the largest angle is {np.nanmax(np.abs(rotation)):.0f}, more than a full turn in radians"
            refuse_field(problem, 'Write angle_unit = "deg"; or "rad", if the angles are in radians.', "angle_unit")
        if layout.form == "matrix":
            rotation = naming.require_rotations(rotation, part)
        wxyz = naming.rotations_to_wxyz(rotation, layout.form, self.rotation_order, angle_unit == "deg")
        return np.hstack([position, wxyz])


def _require_unit(part: str, key: str, named: str, stated: str | None, known: Collection[str]) -> None:
    # `named` is the unit in the names of the numbers, and `stated` the unit that the mapping gives as `key`.
    if named not in known:
        remedy = f"Convert the numbers to one of the units {', '.join(known)}, and name them accordingly."
        refuse_field(f"the names give the unit {named!r}", remedy, part)
    if stated not in (None, named):
        remedy = f"Write the unit that the names say, or leave `{key}` out."
        refuse_field(f"{key} is {stated!r}, but the names say {named!r}", remedy, part)


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
    """Force measured without contact [N], without the tool's weight if `mass_kg` is given; None = measured at rest."""
    tare_s: Positive = 1.0  # the tare is measured in the first interval of this length in which the hand is still
    mass_kg: Positive | None = None  # mass of the tool below the sensor; the tool's weight is subtracted from forces


class GripColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number that shows a grip. While the gripper holds something, it is between the bounds (1 without bounds)."""

    holds_above: float | None = None
    holds_below: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        # A number between these bounds means that the gripper holds something.
        low, high = self.holds_above, self.holds_below
        return -np.inf if low is None else low, np.inf if high is None else high


class Episode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that the log does not contain, about all its episodes, or about one trial if the mapping lists trials."""

    benchmark: str = LOG_BENCHMARK
    task: str | None = None  # the task's id; None = derived from the instruction, or from the file's name
    template: str | None = None  # kind of task, such as `pnp-basic`, to select specifications; only for `real-robot`
    policy: str | None = None
    # Success of every episode, or the feature whose value in the last frame is the success; None = `next.success`.
    success: bool | str | None = None
    # Name of an episode -> the episode's outcome. Outcomes have priority over `success`.
    outcomes: Mapping[str, Literal["success", "failure", "timeout", "stopped"]] = {}
    embodiment: str | None = None  # name of the robot, which implies its torque limits; None = as in the dataset
    target: str | None = None  # the body that the task moves; None = the first body with the role target
    # Topic whose messages become records. None = the hand's topic or, without a hand, the topic with the most poses.
    clock: str | None = None
    # Start of a trial [s], counted from the first message, or from 1970 if the number is 1e8 or more. None = no limit.
    start_s: float | None = None
    end_s: float | None = None  # end of a trial, counted like `start_s`; None = no limit
    marker: str | None = None  # topic whose messages start trials; a message with the value `false` ends a trial


class Transforms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The topics of a recording's transforms, and the longest gap between them that is interpolated."""

    topics: tuple[str, ...] = ("/tf", "/tf_static")
    max_gap_s: Positive = 1.0


class ArmColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of one arm of a robot with several: [eef.ARM], [torque.ARM], [gripper.ARM] and [wrench.ARM]."""

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
    # ROS distribution whose types are used if a recording does not define them; None = the recording's distribution.
    ros_distro: str | None = None
    arms: Mapping[str, ArmColumns] = {}  # arm -> its parts; empty if there is only one arm
    action: Columns | None = None
    bodies: Mapping[str, BodyColumns] = {}

    @property
    def sources(self) -> dict[str, Columns | PoseColumns]:
        """Return the name of each mapped part, such as `eef`, `eef.ARM` or `bodies.NAME` -> the part's source."""
        # Suffix of a part's name (".left" for an arm, "" without arms) -> the object that holds the part's columns.
        owner_by_suffix: dict[str, object] = {f".{arm}": columns for arm, columns in self.arms.items()} or {"": self}
        parts = {
            f"{part}{suffix}": getattr(owner, part) for part in OF_ARMS for suffix, owner in owner_by_suffix.items()
        }
        mapped = {name: columns for name, columns in {**parts, "action": self.action}.items() if columns is not None}
        return {**mapped, **{f"bodies.{name}": body for name, body in self.bodies.items()}}

    def columns_of(self, part: str) -> dict[str, Columns | PoseColumns]:
        """Return the sources of a part such as `eef`: one source, or one per arm; {} if the part is not mapped."""
        return {name: columns for name, columns in self.sources.items() if name.partition(".")[0] == part}


def read_mapping(path: Path) -> LogMapping:
    """Read a mapping file. Raises `RecordError` if the file cannot be read, is too large or not TOML, has an unknown
    key or an invalid value, or contradicts itself.
    """
    with limit_memory(path), translated_errors(path, "docs/howto/real-robots.md shows the file's form."):
        tree = parse_toml(read_input(path, _MAX_MAPPING_BYTES).decode("utf-8"))
        _require_finite(tree)
        if "trials" in tree:
            raise ValueError("unknown key 'trials': write a table [[episode]] for each trial")
        if isinstance(tree.get("episode"), list):
            tree["trials"] = tree.pop("episode")
        tree = _collect_arms(tree)
        try:
            mapping = msgspec.convert(tree, LogMapping)
        except msgspec.ValidationError as error:
            raise _explain_invalid_mapping(error, tree) from None
        _require_consistent_arms(mapping)
        for name, columns in mapping.sources.items():
            _require_one_choice(name, columns)
        _require_used_facts(mapping)
        targets = [name for name, body in mapping.bodies.items() if body.role == "target"]
        all_facts = mapping.episode, *mapping.trials
        for target in {episode.target for episode in all_facts} - {None, *targets}:
            listed = ", ".join(targets) or "none"
            raise ValueError(f"target {target!r} is not a body with role target; bodies with this role: {listed}")
        for name, grip in mapping.columns_of("gripper").items():
            assert isinstance(grip, GripColumns)
            if len(grip.names or grip.index or ("the only number",)) != 1:
                raise ValueError(f"[{name}] must be one number: give one name or one index")
            if not grip.bounds[0] < grip.bounds[1]:
                raise ValueError(f"in [{name}], holds_above must be below holds_below")
        if zero_scaled := [
            name for name, columns in mapping.sources.items() if isinstance(columns, Columns) and not columns.scale
        ]:
            raise ValueError(f"[{zero_scaled[0]}] has scale = 0, which makes every number 0")
        for name, columns in mapping.columns_of("wrench").items():
            assert isinstance(columns, Columns)
            if len(columns.names or columns.index or "xyz") != 3:
                raise ValueError(f"[{name}] must be three numbers: give the names or the index of the forces x, y, z")
        if any(episode.template is not None and episode.benchmark != LOG_BENCHMARK for episode in all_facts):
            others = "for other benchmarks, put the tags into a --rules file"
            raise ValueError(f"a template requires the benchmark {LOG_BENCHMARK}; {others}")
    return mapping


def _require_one_choice(part: str, columns: Columns | PoseColumns) -> None:
    # An error if a part chooses numbers in two ways, or chooses no number or one number twice.
    if isinstance(columns, PoseColumns):
        if columns.quaternion is not None and (columns.rotation is not None or columns.rotation_form is not None):
            other = "rotation" if columns.rotation is not None else "rotation_form"
            raise ValueError(f"[{part}] has quaternion and {other}: write one of them")
        if any(axis == following for axis, following in pairwise(columns.rotation_order)):
            order = columns.rotation_order
            raise ValueError(f"in [{part}], rotation_order {order!r} has an axis twice in a row; write e.g. 'xyz'")
        columns.factor_m(part)
        return
    if columns.names is not None and columns.index is not None:
        raise ValueError(f"[{part}] has names and index: write one of them")
    chosen = columns.index if columns.names is None else columns.names
    if chosen is not None and not 0 < len({*chosen}) == len(chosen):
        key, fault = "index" if columns.names is None else "names", "a number twice" if chosen else "no number"
        raise ValueError(f"in [{part}], {key} has {fault}: write each number once, or leave {key} out")


def _require_used_facts(mapping: LogMapping) -> None:
    # An error if a key of an episode has no effect.
    if unused := next((key for key in ("start_s", "end_s", "marker") if getattr(mapping.episode, key) is not None), ""):
        raise ValueError(f"{unused} is for trials: write a table [[episode]] for each trial, not [episode]")
    for trial in mapping.trials:
        if trial.marker is not None and (trial.start_s is not None or trial.end_s is not None):
            raise ValueError("a trial has a marker and start_s or end_s: write one of them")


def require_dataset_keys(mapping: LogMapping) -> None:
    """Raise `RecordError` if the mapping of a dataset has a key that applies to recordings only."""
    used = ["[[episode]]"] if mapping.trials else []
    used += ["episode.clock"] if mapping.episode.clock is not None else []
    used += ["[transforms]"] if mapping.transforms != Transforms() else []
    used += ["ros_distro"] if mapping.ros_distro is not None else []
    used += [
        f"{part}.{key}"
        for part, columns in mapping.sources.items()
        for attribute, key in (("field", "field"), ("frame", "frame"), ("into", "in"))
        if getattr(columns, attribute, None) is not None
    ]
    if used:
        remedy = "Leave it out: a dataset has its own episodes and features, without messages, frames or clocks."
        refuse_field(f"{used[0]} applies to recordings only", remedy, used[0].strip("[]"))


def _explain_invalid_mapping(error: Exception, tree: Mapping[str, Any]) -> RecordError:
    """Return a `RecordError` that explains an error of msgspec. The remedy lists the valid keys or values."""
    problem, path = explain_mismatch(error)
    path = path.removeprefix("$").removeprefix(".")
    node: Any = inspect.type_info(LogMapping)
    # Follow the path through the types of `LogMapping`. None is the end of the path, at the type of the invalid value.
    for key in (*re.findall(r"\[[^\]]*\]|\w+", path), None):
        # From a union such as `str | None`, take the first type that is not None.
        node = next((kind for kind in getattr(node, "types", [node]) if not isinstance(kind, inspect.NoneType)), node)
        if key is None:
            break
        if key.startswith("["):
            node = getattr(node, "value_type", None) or getattr(node, "item_type", None)
        else:
            node = next((field.type for field in getattr(node, "fields", ()) if field.encode_name == key), None)
    valid_names = [*getattr(node, "values", ()), *(field.encode_name for field in getattr(node, "fields", ()))]
    known = [str(name) for name in valid_names if name not in _INTERNAL_FIELDS]
    invalid = re.search("^unknown key '(.*)'$|^'(.*)' is not one of", problem, re.DOTALL)
    listed = suggest_names(invalid[1] or invalid[2] if invalid else "", known, "known here") if known else ""
    remedy = "; ".join(filter(None, (listed, "docs/howto/real-robots.md shows the file's form")))
    return RecordError(problem, remedy=f"{remedy}.", place=Place(field=_path_in_file(path, tree) or None))


# Fields of `LogMapping` that are not keys of the file.
_INTERNAL_FIELDS = ("arms", "trials")


def _path_in_file(path: str, tree: Mapping[str, Any]) -> str:
    """Return the path of an invalid value as in the file, such as `bodies.cup`. `path` is its form in msgspec."""
    # In msgspec's form, `[...]` replaces the name of a table, so search for the first invalid table.
    struct_by_key = {"bodies": BodyColumns, "arms": ArmColumns}
    for key, struct in struct_by_key.items():
        for name, table in tree[key].items() if path.startswith(f"{key}[...]") else ():
            with suppress(msgspec.ValidationError):
                msgspec.convert(table, struct)
                continue
            inner_path, name = path.removeprefix(f"{key}[...]").removeprefix("."), escape_controls(name)
            part, _, field = inner_path.partition(".") if key == "arms" else ("bodies", "", inner_path)
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


def _require_consistent_arms(mapping: LogMapping) -> None:
    # All arms need the same parts, and no two arms or bodies may read the same numbers.
    require_own_numbers({
        name: ((columns.source, columns.field, columns.frame), columns.stated or ("by name",))
        for name, columns in mapping.sources.items()
        if isinstance(columns, PoseColumns) and (columns.position is not None or name.startswith("bodies."))
    })  # fmt: skip
    if not mapping.arms:
        return
    arm_names = ", ".join(mapping.arms)
    if armless := [part for part in OF_ARMS if getattr(mapping, part) is not None]:
        raise ValueError(
            f"[{armless[0]}] names no arm; write a table [{armless[0]}.ARM] for each of the arms: {arm_names}"
        )
    if len(mapping.arms) < 2:
        raise ValueError(f"{arm_names} is the only arm: map each arm, or leave the arm's name out of the tables")
    for part in OF_ARMS:
        lacking = [name for name, arm in mapping.arms.items() if getattr(arm, part) is None]
        if 0 < len(lacking) < len(mapping.arms):
            raise ValueError(f"[{part}.{lacking[0]}] is missing: map {part} for all arms or for none ({arm_names})")
    require_own_numbers({
        name: ((columns.source, columns.field), columns.names or columns.index or (None,))
        for name, columns in mapping.sources.items()
        if isinstance(columns, Columns)
    })  # fmt: skip


def require_own_numbers(picks: Mapping[str, tuple[Sequence[str | None], Collection[object]]]) -> None:
    """Raise `RecordError` if two arms or two bodies read the same number of a source. `picks` maps the name of a part
    to the part's source and numbers. The number None means all numbers of the source.
    """
    for (other, (other_source, other_numbers)), (name, (source, numbers)) in combinations(picks.items(), 2):
        # Only two parts of the same kind can conflict, such as `eef.left` and `eef.right`.
        may_clash = source == other_source and name.partition(".")[0] == other.partition(".")[0]
        if may_clash and (None in (*other_numbers, *numbers) or not {*other_numbers}.isdisjoint(numbers)):
            remedy = "Name each arm by a word in the names of its numbers, or write `position` or `index`."
            if name.startswith("bodies."):
                remedy = "Give each body its own source, `frame` or `position`, or leave one of them out."
            refuse_field(f"[{other}] and [{name}] read the same numbers of {source[0]!r}", remedy, name)


def _require_finite(value: object, key: str = "") -> None:
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else ((key, item) for item in value):
            _require_finite(item, name)
    if isinstance(value, float) and not np.isfinite(value):
        raise ValueError(f"{key} is {value}: write a finite number, or leave the key out")


def default_mapping(log: Path) -> tuple[LogMapping, Path | None]:
    """Return the mapping in a log's folder, and the mapping's file. Return an empty mapping and None if the folder has
    no mapping. Raises the same errors as `read_mapping`.
    """
    path = (log if log.is_dir() else log.parent) / NAME
    return (read_mapping(path), path) if path.is_file() else (LogMapping(), None)


# Episodes


# Tolerance for evenly spaced time stamps, in control steps. It covers the rounding to float32.
_MAX_DEVIATION_STEPS = 1e-2
# Limits for warnings about a pose: its distance from the origin, and the deviation of its quaternion's norm from 1.
# Repeated poses are reported only if the pose changed more than `_FEW_RUNS` times.
_FAR_M, _NORM_SLACK, _FEW_RUNS = 10.0, 0.05, 5


class Series(NamedTuple):
    """Numbers of a part at each instant of an episode, [n, k], and whether they are known, [n]. A pose is x, y, z,
    followed by w, x, y, z if the pose has an orientation.
    """

    values: Floats
    known: Bools
    # Origin of the messages' times, such as `header stamps`; "" = the same origin as for the instants' times.
    time_base: str = ""
    rate_hz: float | None = None  # rate of the messages [Hz]; None = one message at each instant
    longest_gap_s: float | None = None  # longest interval between messages; None = longest one between instants
    between: tuple[Floats, NDArray[np.int64]] | None = None
    """All messages, [M, k], and for each message the index of the first instant at or after its time, [M].

    The index is -1 before the first instant, and n after the last. None = `values` are all messages."""
    is_single: bool = False  # True if the log stores the part's numbers as float32
    poses: int = 0  # number of messages with a known pose; 0 = not counted, as for a static pose
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
    facts: Episode | None = None  # facts of a trial; None = the facts of the mapping
    has_stamps: bool = False  # True if the records get time stamps even when they are evenly spaced


def are_known(values: Floats, columns: Columns | PoseColumns) -> Bools:
    """Return whether each row [n, k] has only finite numbers and no quaternion of zeros, [n]."""
    known = np.isfinite(values).all(axis=1)
    if isinstance(columns, PoseColumns) and values.shape[1] == 7:
        known &= values[:, 3:].any(axis=1)
    return np.asarray(known)


def drop_zero_turns(values: Floats, columns: Columns | PoseColumns, warn: Callable[[str], None]) -> Floats:
    """Return poses [n, 7] as [n, 3] if all quaternions are zero or unknown, as from trackers without orientation."""
    if not isinstance(columns, PoseColumns) or values.shape[1] < 7 or np.nan_to_num(values[:, 3:]).any():
        return values
    if not np.nan_to_num(values[:, :3]).any():
        return values
    warn("the orientation is left out, since it is zero or unknown throughout")
    # A position of zeros, without an orientation, means that tracking failed.
    return np.where(values[:, :3].any(axis=1, keepdims=True), values[:, :3], np.nan)


def build_episode(episode: LoggedEpisode, mapping: LogMapping, tasks: Mapping[str, str] | None = None) -> Batch:
    """Return a batch of one episode. `tasks` (from `name_tasks`) maps the episode's instruction or name to a task id.

    Raises `RecordError` if no instant is a record, the outcome is unknown, torques lack limits, or a number is invalid.

    An instant becomes a record if all parts except bodies are known at the instant; time stamps show the gaps. Records
    begin once every tracked body has been seen, because displacement, height and tilt are relative to record 0.
    """
    place = Place(file=episode.file, episode=episode.name)
    mapping = mapping if episode.facts is None else msgspec.structs.replace(mapping, episode=episode.facts)
    chosen, warn = _choose_records(episode, place), partial(warn_once, f"{episode.file}: {episode.name}")
    series = {name: Series(samples.values[chosen], samples.known[chosen]) for name, samples in episode.series.items()}
    for name in mapping.columns_of("gripper"):
        _require_width(name, episode.series[name], 1)
    for name in mapping.columns_of("wrench"):
        _require_width(name, episode.series[name], 3)
    time_s = episode.time_s[chosen] - episode.time_s[chosen[0]]
    is_even = np.abs(time_s / episode.dt_s - np.arange(len(chosen))).max() <= _MAX_DEVIATION_STEPS
    bodies = {name: series[f"bodies.{name}"] for name in mapping.bodies}
    body_index = {name: index for index, name in enumerate(bodies)}
    partly_unknown = {name: body for name, body in bodies.items() if not body.known.all()}
    oriented = {name: body for name, body in bodies.items() if body.values.shape[1] == 7}
    action = series.get("action")
    hand_poses = [series[name].values for name in mapping.columns_of("eef")]
    have_orientation = [pose.shape[1] == 7 for pose in hand_poses]
    require_own_numbers({  # two moving parts with the same positions at all times read the same numbers
        name: ((columns.source,), [series[name].values[:, :3].tobytes()])
        for name, columns in mapping.sources.items()
        if isinstance(columns, PoseColumns) and np.ptp(series[name].values[:, :3], axis=0).any()
    })  # fmt: skip
    if any(have_orientation) and not all(have_orientation):
        warn("the orientations of the hands are left out, since one hand has no orientation")
    further_channels = {} if is_even and not episode.has_stamps else {"time_s": time_s}
    # Each item has the name of a part, such as `wrench.left`, and its columns.
    wrenches = mapping.columns_of("wrench").items()
    if forces := [_measure_wrist_forces(*item, episode, series, chosen, warn) for item in wrenches]:
        further_channels[wrench.CHANNEL] = np.hstack(forces)
    torques = [_find_peak_torques(episode.series[name], chosen, warn) for name in mapping.columns_of("torque")]
    grips = [_find_grip_contact(*item, episode, chosen) for item in mapping.columns_of("gripper").items()]
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
        gripper_contact=None if not grips else np.stack(grips, axis=1) if mapping.arms else grips[0],
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
    for source, problem in _find_implausible(episode.file, mapping, series):
        warn_once(source, problem)
    return batch


def _require_width(part: str, samples: Series, size: int) -> None:
    if (width := samples.values.shape[1]) != size:
        listed = f" The names are: {escape_controls(', '.join(samples.names))}." if samples.names else ""
        chosen = "the forces x, y, z" if size == 3 else "the one that shows the grip"
        remedy = f"Choose {chosen} by `names` or `index` (from 0 to {width - 1}) under [{part}].{listed}"
        remedy = remedy if width > size else f"Under [{part}], write a topic or a `field` with {size} numbers."
        refuse_field(f"{count_noun(width, 'number')} {'is' if width == 1 else 'are'} mapped, not {size}", remedy, part)


def _choose_records(episode: LoggedEpisode, place: Place) -> NDArray[np.int64]:
    """Return the indices of the instants that become records: all bodies were seen, and other parts are known."""
    unseen = [name for name, samples in episode.series.items() if not samples.known.any()]
    missing = [name for name in unseen if not name.startswith("bodies.")]
    if missing:
        remedy = "Leave this part out of the mapping, or map it to recorded data."
        raise RecordError(f"{', '.join(missing)} is unknown at every instant", remedy=remedy, place=place)
    # True at each instant, [n], at which all parts except bodies are known.
    usable = np.ones(len(episode.time_s), dtype=np.bool_)
    for name, samples in episode.series.items():
        if not name.startswith("bodies."):
            usable &= samples.known
    first_complete = max((int(samples.known.argmax()) for samples in episode.series.values()), default=0)
    chosen = np.flatnonzero(usable & (np.arange(len(usable)) >= first_complete))
    if not len(chosen):
        remedy = "Map topics that overlap in time."
        raise RecordError("the mapped parts are never known at the same instant", remedy=remedy, place=place)
    label = f"{episode.file}: {episode.name}"
    if skipped := int((~usable[chosen[0] :]).sum()):
        problem = f"{skipped} instants are left out, since a part of the robot is unknown at these instants"
        warn_once(label, f"{problem}; the time stamps show the gaps")
    if unseen:
        warn_once(label, f"bodies never seen: {', '.join(unseen)}; specifications on these bodies have no verdict")
    for name, samples in episode.series.items():
        if (unused_poses := samples.poses - int(samples.known[chosen].sum())) > 0:
            warn_once(label, f"[{name}]: {unused_poses} of {samples.poses} pose messages are not in any record")
    return chosen


_CHANNELS_OF_PART = {  # part of the mapping -> the channels of a record that it provides
    "eef": ("eef_pos_m", "eef_quat_wxyz"),
    "torque": ("joint_torque_nm",),
    "wrench": (wrench.CHANNEL,),
    "bodies": ("body_pos_m", "body_quat_wxyz"),
}


def _mark_single_precision(extra: dict[str, object], episode: LoggedEpisode) -> dict[str, object]:
    # Marks the channels of parts whose numbers the log stores as float32.
    parts = {name.partition(".")[0] for name, samples in episode.series.items() if samples.is_single}
    channels = [
        channel for part, part_channels in _CHANNELS_OF_PART.items() if part in parts for channel in part_channels
    ]
    return add_header_field(extra, SINGLE, channels) if channels else extra


def _assign_to_records(samples: Series, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Return rows of a part's numbers, [M, k], and for each row the first record at or after the row's time, [M]. Each
    record also gets a row with its sampled value. Messages up to the instant before record 0 are left out.
    """
    messages, instants = (
        (samples.values, np.arange(len(samples.values))) if samples.between is None else samples.between
    )
    records = np.searchsorted(chosen, instants)
    is_counted = (instants >= chosen[0]) & (records < len(chosen))
    all_records = np.arange(len(chosen))  # each record also gets its sampled value
    return np.concatenate([messages[is_counted], samples.values[chosen]]), np.concatenate(
        [records[is_counted], all_records]
    )


def _stack_bodies(bodies: Mapping[str, Series], columns: slice) -> Floats | None:
    # An unknown pose is replaced by the last known pose or, before any known pose, by the origin without rotation.
    filled_bodies = []
    for body in bodies.values():
        last_known = np.maximum.accumulate(np.where(body.known, np.arange(len(body.known)), -1))
        filled = body.values[np.maximum(last_known, 0), columns]
        filled[last_known < 0] = np.eye(1, 4)[0] if filled.shape[1] == 4 else 0.0
        filled_bodies.append(filled)
    return np.stack(filled_bodies, axis=1) if filled_bodies else None


def _find_peak_torques(torques: Series, chosen: NDArray[np.int64], warn: Callable[[str], None]) -> Floats:
    """Return each joint's torque of largest magnitude since the previous record, with its sign, per record, [n, k]."""
    rows, record_of_row = _assign_to_records(torques, chosen)
    if np.isinf(rows).any():
        refuse_field("a torque is infinite", "Record finite numbers, or leave [torque] out of the mapping.", "torque")
    peaks = np.full((len(chosen), rows.shape[1]), np.nan)
    for joint, joint_torques in enumerate(rows.T):
        # The rows are sorted by record, and within a record by magnitude.
        order = np.lexsort((np.abs(joint_torques), record_of_row))
        order = order[np.isfinite(joint_torques[order])]
        peaks[record_of_row[order], joint] = joint_torques[order]  # the largest torque is assigned last
    # Messages before the first or after the last record may have a larger torque, which is not judged.
    if torques.between is not None:
        logged_peak, judged_peak = (
            np.nan_to_num(np.abs(torques_nm)).max(axis=0) for torques_nm in (torques.between[0], peaks)
        )
        if (logged_peak > judged_peak).any():
            worst_joint = int(np.argmax(logged_peak - judged_peak))
            warn(f"a torque of {logged_peak[worst_joint]:.4g} before the first or after the last record is not judged")
    return peaks


def _measure_wrist_forces(
    name: str,
    columns: Columns | PoseColumns,
    episode: LoggedEpisode,
    series: Mapping[str, Series],
    chosen: NDArray[np.int64],
    warn: Callable[[str], None],
) -> Floats:
    assert isinstance(columns, WrenchColumns)
    forces, record_of_row = _assign_to_records(episode.series[name], chosen)
    # The sensor of `wrench.left` is at the hand `eef.left`.
    hand, time_s = series.get(name.replace("wrench", "eef", 1)), episode.time_s[chosen] - episode.time_s[chosen[0]]
    measured, problem = wrench.measure_forces(
        forces, record_of_row, time_s, None if hand is None else hand.values, columns
    )
    if problem:
        warn(problem)
    return measured


def _find_grip_contact(
    name: str, columns: Columns | PoseColumns, episode: LoggedEpisode, chosen: NDArray[np.int64]
) -> Bools:
    # Returns for each record whether the gripper held something in any message of the record, [n].
    assert isinstance(columns, GripColumns)
    rows, record_of_row = _assign_to_records(episode.series[name], chosen)
    grip_values, has_contact = rows[:, 0], np.zeros(len(chosen), np.bool_)
    low, high = columns.bounds
    is_held = np.isfinite(grip_values) & (low < grip_values) & (grip_values < high)
    if np.isinf([low, high]).all():  # without bounds, the values must be 0 and 1
        if (is_held & (grip_values != 0) & (grip_values != 1)).any():
            numbers = f"numbers from {np.nanmin(grip_values):.4g} to {np.nanmax(grip_values):.4g}"
            remedy = f"Write holds_above, holds_below or both under [{name}]."
            refuse_field(f"{numbers} do not show whether the gripper holds something", remedy, name)
        is_held &= grip_values != 0
    has_contact[record_of_row[is_held]] = True
    return has_contact


def _build_header(
    episode: LoggedEpisode, mapping: LogMapping, tasks: Mapping[str, str], place: Place
) -> dict[str, object]:
    facts = mapping.episode
    outcome = facts.outcomes.get(episode.name)
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
    torques = {name: columns for name, columns in mapped_torques if isinstance(columns, TorqueColumns)}
    for name, columns in torques.items():
        _check_torques(columns, embodiment, episode.series[name], name)
    task_text = episode.instruction or episode.name
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
        "arm_joints": tuple(episode.series[name].values.shape[1] for name in torques) or None if mapping.arms else None,
    }


def _join_torque_limits(torques: Collection[TorqueColumns], embodiment: str) -> tuple[float, ...] | None:
    if all(columns.limits_nm is None for columns in torques):
        return None
    robot = find_robot(embodiment)
    published_nm = robot.limits_nm if robot else ()
    return tuple(limit for columns in torques for limit in columns.limits_nm or published_nm)


def _check_torques(columns: TorqueColumns, embodiment: str, samples: Series, table: str) -> None:
    # Raises an error if limits are unknown, if numbers may be motor currents, or if limits do not fit the joints.
    robot = find_robot(embodiment)
    if columns.limits_nm is None and (robot is None or not robot.limits_nm):
        reason = "no torque limits are published for" if robot else "no torque limits are known for"
        needed_line = f"limits_nm under [{table}], one limit for each joint in N·m"
        remedy = f"Write {needed_line}, or name the robot as `embodiment` under [episode]."
        refuse_field(f"{reason} the robot {embodiment!r}", remedy, table)
    source_says_torque = re.search("torque|moment|tau", f"{columns.source} {columns.field}")
    is_torque = columns.unit or columns.scale != 1 or source_says_torque
    joint_names = " ".join(samples.names or columns.names or ()).lower()
    is_ur = all(joint in joint_names for joint in _UR_JOINTS)
    is_bimanual = table != "torque"  # bimanual robots such as ALOHA publish currents as `effort`
    if (is_ur or is_bimanual or (robot is not None and robot.effort_is_current)) and not is_torque:
        remedy = (
            f'Write unit = "N m" under [{table}] if the numbers are torques. If they are currents, write the torque '
            "per ampere as `scale`. Drivers from before 2025 publish currents."
        )
        robot_text = "an arm of Universal Robots" if is_ur and robot is None else f"a {embodiment}"
        refuse_field(f"the effort of {robot_text} may be motor currents", remedy, table)
    limits_nm, count = columns.limits_nm or (robot.limits_nm if robot else ()), samples.values.shape[1]
    joints = sorted((name for name in samples.names if not re.search("finger|grip", name.lower())), key=_joint_order)
    problem = "" if count == len(limits_nm) else f"{count} torques, but {len(limits_nm)} limits"
    if columns.limits_nm is None and samples.names and [*samples.names] != joints:
        problem = problem or "the joints are not in the order of their limits, which is from the base to the hand"
    if problem:
        is_order_known = len({*map(_joint_order, joints)}) == len(joints) == len(limits_nm)
        names_line = (
            f"names = [{', '.join(map(quote_toml, joints))}]" if is_order_known else f"names = {naming.FILL_IN}"
        )
        joint_names = escape_controls(", ".join(samples.names) or "none")
        refuse_field(
            problem, f"The names are: {joint_names}. Write under [{table}], one joint per limit:\n  {names_line}", table
        )


_UR_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")


def _joint_order(name: str) -> int:
    # Key that sorts joints from base to hand: the index in `_UR_JOINTS`, else the last number in the name, else -1.
    matches = [index for index, joint in enumerate(_UR_JOINTS) if joint in name.lower()]
    return matches[0] if matches else int((re.findall(r"\d+", name) or ["-1"])[-1])


def name_tasks(texts: Iterable[str]) -> dict[str, str]:
    """Return a task id for each instruction or file name: its words (letters, marks, numbers) joined by hyphens.

    Letters of all scripts are kept, in lower case and in Unicode's composed form (NFC). If several texts give the same
    id, the first text gets this id. The ids of the other texts then end in a digest of the text.
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
    # Yields (source, problem) for numbers that are possible, but probably wrong.
    for name, columns in mapping.sources.items():
        if not isinstance(columns, PoseColumns) or not series[name].known.any():
            continue
        poses = series[name].values[series[name].known]
        distance_m = float(np.median(np.linalg.norm(poses[:, :3], axis=1)))
        if distance_m > _FAR_M:
            problem = f"[{name}] is {distance_m:.0f} m from the origin; is it in millimeters?"
            yield file, f'{problem} If so, write unit = "mm"'
        # Numbers of records from one change of the pose to the next.
        run_lengths = np.diff(np.flatnonzero((np.diff(poses, axis=0) != 0).any(axis=1)))
        if len(run_lengths) > _FEW_RUNS and np.median(run_lengths) >= 2:
            problem = f"[{name}] repeats each pose {np.median(run_lengths):.0f} times"
            yield (
                file,
                f"{problem}: poses are published faster than measured, so their speed and acceleration are too large",
            )
        if poses.shape[1] == 7:
            norms = np.linalg.norm(poses[:, 3:], axis=1)
            if np.abs(norms - 1).max() > _NORM_SLACK:
                yield file, f"[{name}] has quaternions of norm {norms.min():.3g} to {norms.max():.3g}, not 1"
    for name, samples in series.items():
        if name.partition(".")[0] in ("torque", "wrench") and not samples.values.any():
            yield file, f"[{name}] is 0 throughout; many drivers publish 0 for quantities that they do not measure"
    if not mapping.bodies and not mapping.columns_of("eef"):
        yield file, "motion and objects are not judged, since neither [eef] nor [bodies] is mapped"
