"""The mapping of a log: a TOML file with facts that the log lacks.

All kinds of logs use the same format. The file is `safevla-log.toml` in the log's folder, or any file that the user
gives as SOURCE and whose key `log` names the log. In a table, `from` names a feature of a LeRobot dataset or a topic of
a recording.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta, inspect

from safevla_bench.archive.record_schema import refuse_field
from safevla_bench.errors import Place, RecordError, describe_cause
from safevla_bench.files import parse_toml, read_input
from safevla_bench.memory import limit_memory
from safevla_bench.sources.logs import names as naming
from safevla_bench.text import count_noun, escape_controls, explain_mismatch, quote_toml, suggest_names
from safevla_bench.trajectory.marks import LOG_BENCHMARK
from safevla_recorder.episode import Floats

NAME = "safevla-log.toml"


MAX_NUMBERS = 1 << 25  # maximum count of numbers in an episode (256 MiB): an hour of 90 numbers at 100 Hz
_MAX_MAPPING_BYTES = 1 << 20
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
_TURN_RAD = 2 * np.pi * 1.01  # largest plausible angle [rad]: a full turn plus a tolerance of 1 %
SCALES_M: Mapping[str, float] = {"m": 1.0, "cm": 0.01, "mm": 0.001}


@contextmanager
def translated_errors(path: Path, remedy: str, *further: type[Exception]) -> Iterator[None]:
    """Replace errors that readers raise for a damaged file, and errors in `further`, by a `RecordError` for `path`."""
    # `further` are additional exception types. Messages are put on one line and cut to 400 characters.
    place = Place(file=str(path))
    try:
        yield
    except RecordError as error:
        raise error.with_place(place) from None
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, pa.ArrowException, *further) as error:
        problem = f"cannot be read: {' '.join(describe_cause(error).split())[:400]}"
        raise RecordError(problem, remedy=remedy, place=place) from None


class Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of a feature or of a message: all numbers, or the numbers that the mapping chooses by name or index."""

    source: str = msgspec.field(name="from")
    field: str | None = None  # field of a message, such as `pose.position`; None = the default of the part
    names: tuple[str, ...] | None = None
    index: tuple[Count, ...] | None = None
    scale: float = 1.0  # factor that converts the numbers to the record's unit

    @property
    def states_unit(self) -> bool:
        # Returns whether the mapping states the unit of the numbers; forces and torques have a key `unit`.
        return abs(self.scale) != 1 or getattr(self, "unit", None) is not None

    def require_scale(self, part: str, names: Sequence[str]) -> None:
        """Raise `RecordError` if `names`, the field or the source state a different unit or quantity for forces or
        torques, unless the mapping explains this by `scale` or `unit`.
        """
        # `names` are the names of the numbers, or [].
        # A unit found in names is a pair: its word ("" = none), and its factor to `base` ("" = unknown).
        base = {"wrench": "N", "torque": "N m"}.get(part.partition(".")[0])
        if base is None:  # other parts of a record have no unit
            return
        texts = [*names]
        # If the field or the source says torques, `q1` is the name of a joint, not of its position.
        if re.search("tau|torque|effort", f"{self.field} {self.source}".lower()):
            texts = [re.sub(r"(?<![^\W\d_])q(?=[\W_]*\d)", "joint", name, flags=re.IGNORECASE) for name in names]
        try:
            units = [naming.find_force_unit(group) for group in (texts, [self.field or ""], [self.source])]
        except ValueError as question:
            listed = escape_controls(", ".join(names))
            refuse_field(str(question), f"Convert the numbers to one unit. Their names are: {listed}.", part)
        if base == "N":
            # In `/force_torque/wrench` and `torque_sensor`, the word `torque` does not describe the numbers.
            label = (self.field or self.source).lower()
            has_label = re.search(r"(^|[./])(?!.*force)[^./]*(torque|moment|tau)s?$", label)
            units += [("torque", "")] * (has_label is not None or any(map(naming.says_torque, names)))
        unit, factor = next((found for found in units if found[0]), ("", ""))
        remedy = f"Under [{part}], write `scale = {factor}`, which converts them to {base}."
        if not factor:
            stated = f'`unit = "{base}"` if the numbers were measured in {base}'
            remedy = f"Under [{part}], write the factor to {base} as `scale`, or {stated}."
        # `scale` may include a gear ratio, so it need not equal the unit's factor.
        # `scale` must be above 1 if the named unit is larger than `base`, and below 1 if the unit is smaller.
        size = abs(self.scale)
        is_open = (size - 1) * (float(factor) - 1) <= 0 if factor else not self.states_unit
        if unit and is_open:
            refuse_field(f"the names say {unit!r}, but `scale` is {self.scale:g}", remedy, part)


class PoseColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pose: position and, if known, orientation."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    frame: str | None = None  # the child frame to read, if messages have child frames
    into: str | None = msgspec.field(name="in", default=None)  # the frame into which transforms convert the pose
    # Indices of x, y, z. None = found by the names of the numbers, or there are only three numbers.
    position: tuple[Count, Count, Count] | None = None
    quaternion: tuple[Count, Count, Count, Count] | None = None  # indices of the quaternion; None = found by name
    quaternion_order: Literal["wxyz", "xyzw"] | None = None  # order of the quaternion; None = the order in the names
    rotation: tuple[Count, ...] | None = None  # indices of a rotation that is not a quaternion; None = found by name
    # Representation of the rotation. None = the representation in the names; a quaternion if the names give none.
    rotation_form: Literal["rpy", "rotvec", "6d", "6d_rows", "matrix"] | None = None
    rotation_order: Annotated[str, Meta(pattern="^([xyz]{3}|[XYZ]{3})$")] = "xyz"
    """Order of the axes of `rpy`: lower case for fixed axes, upper case for axes that turn with the body."""
    # Unit of the angles. None = the unit in the names; if the names give none, radians of at most a full turn.
    angle_unit: Literal["rad", "deg"] | None = None
    unit: Literal["m", "cm", "mm"] | None = None  # None = the unit in names such as `x_mm`; m if names give none

    @property
    def states_unit(self) -> bool:
        # Returns whether the mapping states the units of the position and of the angles.
        return self.unit is not None and self.angle_unit is not None

    @property
    def stated(self) -> tuple[int, ...]:
        """The indices of position and rotation that the mapping gives, in this order; () if it gives none."""
        return (*(self.position or ()), *(self.rotation or ()), *(self.quaternion or ()))

    def find_numbers(self, part: str, names: Sequence[str], size: int, labels: Sequence[str] = ()) -> naming.PoseLayout:
        """Return which of `size` numbers are the pose. `names` are the names of the numbers, or []. Raises
        `RecordError` if the pose is ambiguous; the error lists lines that would complete the mapping.
        """
        # `labels` are names with units, as in `x [mm]`, if the log gives units apart from the names.
        # `part` is the name of the part of the record, such as `eef`, `eef.left` or `bodies.cup`.
        rotation = self.rotation if self.quaternion is None else self.quaternion
        # Without indices, the pose of an arm's hand is in the numbers whose names contain the arm's name.
        is_found_by_arm = part.startswith("eef.") and self.position is None and rotation is None
        arm = part.removeprefix("eef.") if is_found_by_arm else ""
        try:
            form, order = self.rotation_form, self.quaternion_order
            layout = naming.decide_pose(names, size, self.position, rotation, form, order, self.rotation_order, arm)
            label = self.field or self.source
            if labels:
                unit, angle_unit = naming.find_units(labels, layout.position, layout.rotation)
                layout = layout._replace(unit=unit, angle_unit=angle_unit)
            naming.refuse_other_order(order, [*names, label])
            if self.position is None and naming.says_change(label):
                raise ValueError(f"which numbers are x, y, z of [{part}]? {label!r} does not name a pose")
            is_found = self.position is None
            owner_doubt = naming.find_owner_doubt(part, names, layout.position, label) if is_found else ""
        except ValueError as question:
            # The error asks, for example, `which numbers are x, y, z?`. Suggest lines for the mapping.
            listed_numbers = ", ".join(f"{index} {name}" for index, name in enumerate(names)) or f"0 to {size - 1}"
            suggested = [] if str(question) == naming.OTHER_ROTATION else naming.suggest_pose(names, size)
            if not suggested and " x, y, z of " in str(question):  # the names are those of a different object
                suggested = [f"position = {naming.FILL_IN}  # indices of x, y, z, from 0"]
            if not suggested:  # the names, or keys in the mapping, contradict each other
                listed_numbers = f"The numbers are: {escape_controls(listed_numbers)}."
                remedy = f"{listed_numbers} Correct the names, or the keys that contradict them."
                refuse_field(f"{self.source!r}: {question}", remedy, part)
            lines = [f"[{part}]", f"from = {quote_toml(self.source)}", *suggested]
            if part == "eef" and len(naming.find_positions(names)) > 1:
                lines.append("# or, for several arms: a table [eef.ARM] for each arm; names must contain the word ARM")
            introduction = f"The numbers are: {escape_controls(listed_numbers)}. Add these lines to the mapping:"
            refuse_field(f"{self.source!r}: {question}", "\n  ".join([introduction, *lines]), part)
        layout = layout._replace(doubt="; ".join(filter(None, [layout.doubt, owner_doubt])))
        self.factor_m(part, layout.unit)  # raises an error for an unknown or contradictory unit
        if layout.form in ("rpy", "rotvec"):
            # The unit of angles comes from the mapping, the names of the numbers or the field. The default is radians.
            named_unit = layout.angle_unit or naming.find_unit([self.field or ""], naming.ANGLE_UNITS)
            if named_unit:
                _require_unit(part, "angle_unit", named_unit, self.angle_unit, ("rad", "deg"))
            else:
                self._refuse_unclear_unit(part, "angle_unit", naming.ANGLE_UNITS, ("rad", "deg"))
            unit = {"rad": "radians", "deg": "degrees"}[self.angle_unit or named_unit or "rad"]
            return layout._replace(angle_unit=named_unit, doubt=layout.doubt.replace("in radians", f"in {unit}"))
        return layout

    def factor_m(self, part: str, named_unit: str = "") -> float:
        """Return the factor that converts positions to meters. `named_unit` is the unit in the names of the numbers; if
        it is "", `field` may name a unit. Raises `RecordError` if the unit is unknown or contradicts the mapping.
        """
        named_unit = named_unit or naming.find_unit([self.field or ""], naming.LENGTH_UNITS)
        if named_unit:
            _require_unit(part, "unit", named_unit, self.unit, tuple(SCALES_M))
        else:
            self._refuse_unclear_unit(part, "unit", naming.LENGTH_UNITS, tuple(SCALES_M))
        # From here on, the mapping's unit is None, equals the names' unit, or replaces a doubtful unit in the names.
        return SCALES_M[self.unit or named_unit or "m"]

    def _refuse_unclear_unit(self, part: str, key: str, units: Collection[str], known: Sequence[str]) -> None:
        # Raises `RecordError` if a unit is only in the source's name, such as `tcp_mm`, and the mapping lacks `key`.
        # `units` are all units, and `known` are the possible values of `key`, of which the first is the default.
        unit = naming.find_unit([self.source], units)
        if unit not in ("", known[0], *naming.DOUBTFUL_UNITS) and getattr(self, key) is None:
            remedy = f"Under [{part}], write `{key}`: {', '.join(known)}."
            refuse_field(f"{self.source!r} may mean that the unit of the numbers is {unit!r}", remedy, part)

    def arrange(self, numbers: Floats, layout: naming.PoseLayout, part: str) -> Floats:
        """Convert numbers [n, size] to poses: x, y, z [m], then w, x, y, z (if known). May raise `RecordError`."""
        # `layout` has the indices of the pose's numbers. `part` is the name of the table in the mapping, for errors.
        # Errors are raised for an unclear unit, implausible angles, and numbers that are not a rotation.
        position, rotation = numbers[:, layout.position], numbers[:, layout.rotation]
        position = position * self.factor_m(part, layout.unit)
        angle_unit = self.angle_unit or layout.angle_unit
        if not layout.rotation:
            return position
        # Without a stated unit, angles beyond a full turn are probably in degrees.
        if layout.form in ("rpy", "rotvec") and not angle_unit and np.nanmax(np.abs(rotation), initial=0) > _TURN_RAD:
            problem = f"the largest angle is {np.nanmax(np.abs(rotation)):.0f}, more than a full turn in radians"
            refuse_field(problem, 'Write `angle_unit = "deg"`; or "rad", if the angles are in radians.', "angle_unit")
        if layout.form == "matrix":
            rotation = naming.require_rotations(rotation, part)
        elif layout.form in ("6d", "6d_rows"):  # complete the matrix by its third column or row
            third = np.cross(rotation[:, :3], rotation[:, 3:])
            rotation = naming.require_rotations(np.hstack([rotation, third]), part)[:, :6]
        elif layout.form == "quaternion":
            naming.require_quaternions(rotation, part)
        wxyz = naming.rotations_to_wxyz(rotation, layout.form, self.rotation_order, angle_unit == "deg")
        return np.hstack([position, wxyz])


def _require_unit(part: str, key: str, named: str, stated: str | None, known: Collection[str]) -> None:
    # Raises `RecordError` if the unit in the names is doubtful, unknown, or not the one that the mapping states.
    # `named` is the unit in the names of the numbers; `stated` is the mapping's value of `key` (None = no value).
    # `part` is the name of a table in the mapping, and `key` is the table's key for the unit.
    # `known` are the convertible units.
    # An unknown word in brackets, as in `x [base]`, is not always a unit.
    is_word = named.partition("/")[0] not in (*naming.LENGTH_UNITS, *naming.ANGLE_UNITS)
    if named in naming.DOUBTFUL_UNITS or is_word:
        if stated is None:
            default = {"unit": '`unit = "m"` if they are in meters', "angle_unit": '`angle_unit = "rad"` if in radians'}
            remedy = f"Under [{part}], write {default[key]}; otherwise, convert the numbers."
            refuse_field(f"the names may mean that the unit of the numbers is {named!r}", remedy, part)
    elif named not in known:
        remedy = f"Convert the numbers to one of the units {', '.join(known)}, and name them accordingly."
        refuse_field(f"the names give the unit {named!r}", remedy, part)
    elif stated not in (None, named):
        remedy = f"Write the unit in the names, or leave `{key}` out."
        refuse_field(f"{key} is {stated!r}, but the unit in the names is {named!r}", remedy, part)


AnyColumns = Columns | PoseColumns


class BodyColumns(PoseColumns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tracked body and its role."""

    role: Literal["robot", "target", "bystander", "furniture"]


class TorqueColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Torques of the arm's joints in N·m, and their limits."""

    limits_nm: tuple[Positive, ...] | None = None
    unit: Literal["N m"] | None = None  # confirms torques, since some drivers publish currents


class WrenchColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forces x, y, z of a wrist sensor, and the offset that is subtracted from them."""

    tare: tuple[float, float, float] | None = None
    """Force without contact [N] (less the tool's weight if `mass_kg` is given); None = measured at rest."""
    unit: Literal["N"] | None = None  # confirms that the numbers are forces in N, even if a name suggests another unit
    tare_s: Positive = 1.0  # length [s] of the still interval whose mean force is the tare
    mass_kg: Positive | None = None  # mass of the tool beyond the sensor; the tool's weight is subtracted from forces


class GripColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number that shows the grip: between the bounds (without bounds: 1) while the gripper holds something."""

    holds_above: float | None = None
    holds_below: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        # Returns (low, high): the gripper holds something while the number is between them. Infinite = no bound.
        low, high = self.holds_above, self.holds_below
        return -np.inf if low is None else low, np.inf if high is None else high


class Episode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that the log lacks: about one trial if the mapping lists trials, otherwise about all episodes."""

    benchmark: str = LOG_BENCHMARK
    task: str | None = None  # the task's id; None = derived from the instruction, or from the file's name
    template: str | None = None  # kind of task (`pnp-basic`), which selects specifications; benchmark `real-robot` only
    policy: str | None = None
    # True or False for all episodes, or the feature whose last value is the success of an episode.
    # None = the feature `next.success`.
    success: bool | str | None = None
    # Name of an episode -> outcome, which overrides `success`.
    outcomes: Mapping[str, Literal["success", "failure", "timeout", "stopped"]] = {}
    embodiment: str | None = None  # the robot's name, which selects torque limits; None = as in the dataset
    target: str | None = None  # the body that the task moves; None = the first body with the role target
    # Topic whose messages become records. None = the topic of the hand's pose.
    # If no hand is mapped, the default is the topic of the pose (or else of any part) with the most messages.
    clock: str | None = None
    # Start of a trial [s] since the first message, or since 1970 if the number is 1e8 or more. None = no limit.
    start_s: float | None = None
    end_s: float | None = None  # end of a trial [s], counted like `start_s`; None = no limit
    marker: str | None = None  # topic whose messages start trials; a Boolean that is false ends a trial


class Transforms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The topics with a recording's transforms, and the longest gap between transforms that is interpolated [s]."""

    topics: tuple[str, ...] = ("/tf", "/tf_static")
    max_gap_s: Positive = 1.0


class ArmColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of one arm of a robot with several arms: [eef.ARM], [torque.ARM], [gripper.ARM] and [wrench.ARM]."""

    eef: PoseColumns | None = None
    torque: TorqueColumns | None = None
    gripper: GripColumns | None = None
    wrench: WrenchColumns | None = None


WIDTHS = {"gripper": 1, "wrench": 3}  # part of the mapping -> how many numbers it has
OF_ARMS = tuple(field.name for field in msgspec.structs.fields(ArmColumns))


class LogMapping(ArmColumns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a mapping file."""

    log: str | None = None
    episode: Episode = Episode()
    trials: tuple[Episode, ...] = ()  # the trials into which a recording is cut: [[episode]] in the file
    transforms: Transforms = Transforms()
    # ROS distribution for the types that a recording does not define; None = the recording's distribution.
    ros_distro: str | None = None
    # Log times are converted to the clock's time base.
    # Limit [s] on the difference between header stamps and converted log times. Stamps beyond the limit are not used.
    max_latency_s: Positive | None = None  # None = 0.05 s, or up to 1 s (with a warning) if messages may be late
    arms: Mapping[str, ArmColumns] = {}  # arm -> its parts; empty if there is only one arm
    action: Columns | None = None
    bodies: Mapping[str, BodyColumns] = {}

    @property
    def sources(self) -> dict[str, AnyColumns]:
        """Return the name of each mapped part, such as `eef`, `eef.ARM` or `bodies.NAME` -> the part's source."""
        # Suffix of a part's name -> the object with the part's source. ".left" maps to an arm, and "" to this mapping.
        # `OF_ARMS` has the names of the attributes with the sources of parts.
        owner_by_suffix: dict[str, object] = {f".{arm}": columns for arm, columns in self.arms.items()} or {"": self}
        parts = {
            f"{part}{suffix}": getattr(owner, part) for part in OF_ARMS for suffix, owner in owner_by_suffix.items()
        }
        mapped = {name: columns for name, columns in {**parts, "action": self.action}.items() if columns is not None}
        return {**mapped, **{f"bodies.{name}": body for name, body in self.bodies.items()}}

    def columns_of(self, part: str) -> dict[str, AnyColumns]:
        """Return the sources of a part such as `eef`: one source, or one per arm; {} if the part is not mapped."""
        return {name: columns for name, columns in self.sources.items() if name.partition(".")[0] == part}


def read_mapping(path: Path) -> LogMapping:
    """Read a mapping file. Raises `RecordError` if the file cannot be read, is too large or not TOML, has an unknown
    key or an invalid value, or contradicts itself.
    """
    with limit_memory(path), translated_errors(path, "docs/howto/real-robots.md shows the file's format."):
        tree = parse_toml(read_input(path, _MAX_MAPPING_BYTES).decode("utf-8-sig"))
        _require_finite(tree)
        if "trials" in tree:
            raise ValueError("unknown key 'trials': write a table [[episode]] for each trial")
        # Several tables [[episode]] are trials; a single table [episode] has facts about all episodes.
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
            # The gripper holds something at numbers between the bounds, so the range must not be empty.
            if not grip.bounds[0] < grip.bounds[1]:
                raise ValueError(f"in [{name}], holds_above must be below holds_below")
        for name, columns in mapping.sources.items():
            if not isinstance(columns, Columns):
                continue
            if not columns.scale:
                raise ValueError(f"[{name}] has scale = 0, which makes every number 0")
            # A grip has one number, and a force has three. Other parts may have any count of numbers.
            size, chosen = WIDTHS.get(name.partition(".")[0]), columns.names or columns.index
            if size and chosen and len(chosen) != size:
                raise ValueError(f"[{name}] must be {count_noun(size, 'number')}, not {len(chosen)}")
        if any(episode.template is not None and episode.benchmark != LOG_BENCHMARK for episode in all_facts):
            others = "for other benchmarks, put the tags into a --rules file"
            raise ValueError(f"a template requires the benchmark {LOG_BENCHMARK}; {others}")
    return mapping


def _require_one_choice(part: str, columns: AnyColumns) -> None:
    # Raises `ValueError` if a part chooses numbers in two ways, chooses no number, or chooses a number twice.
    # For a pose, raises an error for two rotations, for an impossible order of axes, and for contradicting units.
    # `part` is the name of a table in the mapping, such as `eef.left`, and `columns` its content.
    if isinstance(columns, PoseColumns):
        if columns.quaternion is not None and (columns.rotation is not None or columns.rotation_form is not None):
            other = "rotation" if columns.rotation is not None else "rotation_form"
            raise ValueError(f"[{part}] has quaternion and {other}: write one of them")
        # An order such as `xxz` has only two rotations.
        if any(axis == following for axis, following in pairwise(columns.rotation_order)):
            order = columns.rotation_order
            raise ValueError(f"in [{part}], rotation_order {order!r} has an axis twice in a row; write e.g. 'xyz'")
        columns.factor_m(part)  # raises an error if the units contradict each other
        return
    if columns.names is not None and columns.index is not None:
        raise ValueError(f"[{part}] has names and index: write one of them")
    chosen = columns.index if columns.names is None else columns.names
    if chosen is not None and (not chosen or len({*chosen}) < len(chosen)):
        key = "index" if columns.names is None else "names"
        fault = "a number twice" if chosen else "no number"
        raise ValueError(f"in [{part}], {key} has {fault}: write each number once, or leave {key} out")


def _require_used_facts(mapping: LogMapping) -> None:
    # Raises `ValueError` if [episode] has a key that is only for trials, or if a trial has a marker and also times.
    unused = [key for key in ("start_s", "end_s", "marker") if getattr(mapping.episode, key) is not None]
    if unused:
        raise ValueError(f"{unused[0]} is for trials: write a table `[[episode]]` for each trial, not `[episode]`")
    for trial in mapping.trials:
        if trial.marker is not None and (trial.start_s is not None or trial.end_s is not None):
            raise ValueError("a trial has a marker and start_s or end_s: write one of them")


def refuse_recording_keys(mapping: LogMapping) -> None:
    """Raise `RecordError` if the mapping of a dataset has a key that only applies to recordings."""
    is_used = {  # key, as shown in errors -> whether the mapping has the key
        "[[episode]]": bool(mapping.trials),
        "episode.clock": mapping.episode.clock is not None,
        "[transforms]": mapping.transforms != Transforms(),
        "ros_distro": mapping.ros_distro is not None,
        "max_latency_s": mapping.max_latency_s is not None,
    }
    for part, columns in mapping.sources.items():
        for attribute, key in (("field", "field"), ("frame", "frame"), ("into", "in")):
            is_used[f"{part}.{key}"] = getattr(columns, attribute, None) is not None
    for key, is_in_mapping in is_used.items():
        if is_in_mapping:
            remedy = "Leave it out: a dataset has its own episodes and features, without messages, frames or clocks."
            refuse_field(f"{key} applies to recordings only", remedy, key.strip("[]"))


def _explain_invalid_mapping(error: Exception, tree: Mapping[str, Any]) -> RecordError:
    """Return a `RecordError` that explains an error of msgspec. The remedy lists the valid keys or values."""
    problem, path = explain_mismatch(error)
    # The path of the invalid value, such as `eef.position[0]` or `bodies[...].role`; "" = the whole file.
    path = path.removeprefix("$").removeprefix(".")
    node: Any = inspect.type_info(LogMapping)
    # Follow the path through the types of `LogMapping` to the type of the invalid value.
    for key in re.findall(r"\[[^\]]*\]|\w+", path):
        if key.startswith("["):  # an item of a dictionary or a list
            node = getattr(node, "value_type", None) or getattr(node, "item_type", None)
        else:
            node = {field.encode_name: field.type for field in getattr(node, "fields", ())}.get(key)
        # From a union such as `str | None`, take the first type that is not None.
        for kind in getattr(node, "types", ()):
            if not isinstance(kind, inspect.NoneType):
                node = kind
                break
    valid_names = [*getattr(node, "values", ()), *(field.encode_name for field in getattr(node, "fields", ()))]
    choices = [str(name) for name in valid_names if name not in _INTERNAL_FIELDS]
    # The key or value that is invalid, to suggest a similar one.
    match = re.search("^unknown key '(.*)'$|^'(.*)' is not one of", problem, re.DOTALL)
    invalid_name = match[1] or match[2] if match else ""
    listed = suggest_names(invalid_name, choices, "known here") if choices else ""
    remedy = "; ".join(filter(None, (listed, "docs/howto/real-robots.md shows the file's format")))
    return RecordError(problem, remedy=f"{remedy}.", place=Place(field=_path_in_file(path, tree) or None))


# Fields of `LogMapping` that are not keys of the file.
_INTERNAL_FIELDS = ("arms", "trials")


def _path_in_file(path: str, tree: Mapping[str, Any]) -> str:
    """Convert msgspec's path of an invalid value to the path in the file, such as `bodies.cup`."""
    # `tree` is the content of the file, with arms and trials already moved to their keys.
    # In msgspec's path, `[...]` replaces the name of a table. So validate each table to find the first invalid one.
    key, has_table_name, inner_path = path.partition("[...]")
    inner_path = inner_path.removeprefix(".")
    struct = {"bodies": BodyColumns, "arms": ArmColumns}.get(key) if has_table_name else None
    tables = tree[key] if struct is not None else {}
    for name, table in tables.items():
        try:
            msgspec.convert(table, struct)
        except msgspec.ValidationError:
            # A table such as [eef.left] in the file is `arms[...].eef` in msgspec's path.
            part, _, field = inner_path.partition(".") if key == "arms" else ("bodies", "", inner_path)
            return ".".join(filter(None, (part, escape_controls(name), field)))
    # In the file, the key of the trials is `episode`, not `trials`.
    return f"episode{path.removeprefix('trials')}" if path.startswith("trials") else path


def _collect_arms(tree: dict[str, object]) -> dict[str, object]:
    """Return `tree` with the tables of several arms, such as [eef.left], moved to the key `arms`. Modifies `tree`."""
    # If a part's table contains only tables, each is for an arm. Otherwise, the table is for the only arm.
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
    # Raises an error if arms have different parts, or if two arms or two bodies read the same numbers.
    # Raises an error if the mapping names only one arm, or if a table of a robot with several arms names no arm.
    # Without indices, compare ("by name",) for poses, and (None,), which means all numbers, for other parts.
    require_own_numbers({
        name: ((columns.source, columns.field, columns.frame), columns.stated or ("by name",))
        for name, columns in mapping.sources.items()
        if isinstance(columns, PoseColumns) and (columns.position is not None or name.startswith("bodies."))
    })  # fmt: skip
    if not mapping.arms:
        return
    arm_names = ", ".join(mapping.arms)
    for part in OF_ARMS:
        if getattr(mapping, part) is not None:
            raise ValueError(f"[{part}] names no arm; write a table [{part}.ARM] for each of the arms: {arm_names}")
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
    to (source, numbers). The number None means all numbers of the source.
    """
    for (other, (other_source, other_numbers)), (name, (source, numbers)) in combinations(picks.items(), 2):
        # Only two parts of the same kind can conflict, such as `eef.left` and `eef.right`.
        may_clash = source == other_source and name.partition(".")[0] == other.partition(".")[0]
        # None means all numbers of the source, so None conflicts with any number of the other part.
        share_numbers = None in (*other_numbers, *numbers) or not {*other_numbers}.isdisjoint(numbers)
        if may_clash and share_numbers:
            remedy = "Name each arm by a word in the names of its numbers, or write `position` or `index`."
            if name.startswith("bodies."):
                remedy = "Give each body its own source, `frame` or `position`, or leave one of them out."
            refuse_field(f"[{other}] and [{name}] read the same numbers of {source[0]!r}", remedy, name)


def _require_finite(value: object, key: str = "") -> None:
    # Raises an error if a number in the tree is NaN or infinite.
    # `key` is the key of the number, or of the list with the number.
    if isinstance(value, dict):
        for name, child in value.items():
            _require_finite(child, name)
    if isinstance(value, list):
        for child in value:
            _require_finite(child, key)
    if isinstance(value, float) and not np.isfinite(value):
        raise ValueError(f"{key} is {value}: write a finite number, or leave the key out")


def default_mapping(log: Path) -> tuple[LogMapping, Path | None]:
    """Return the mapping in a log's folder, and the mapping's file. Return an empty mapping and None if the folder has
    no mapping. Raises the same errors as `read_mapping`.
    """
    path = (log if log.is_dir() else log.parent) / NAME
    return (read_mapping(path), path) if path.is_file() else (LogMapping(), None)
