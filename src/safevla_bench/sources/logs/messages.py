"""Extract numbers, poses, transforms and trial marks from the messages of a recording, in file order."""

from __future__ import annotations

import math
import operator
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from safevla_bench.archive.record_schema import Budget, refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.sources.logs.clocks import Stamps, Times
from safevla_bench.sources.logs.decoding import JsonObject
from safevla_bench.sources.logs.mappings import Columns, PoseColumns
from safevla_bench.sources.logs.names import (
    PoseLayout,
    decide_forces,
    find_forces,
    find_positions,
    may_have_rotation,
    require_quaternions,
)
from safevla_bench.sources.logs.transforms import Edge, FrameTree, plain_frame
from safevla_bench.text import escape_controls
from safevla_recorder.episode import Floats

MOST_NAMED = 8
_SAMPLE_NUMBERS = 4  # memory overhead of a message, as a count of numbers in the budget
_MAX_NORM_DEVIATION = 10e-3  # tf2 ignores a transform whose squared quaternion norm differs from 1 by more than this
_LONGEST_NAME = 200
_MOST_NUMBERS = 256  # maximum number of values of a message that are searched for a pose
# Field of a message that holds the pose; "" = the whole message. The fields occur in these ROS types, in this order:
# Pose; PoseStamped; PoseWithCovarianceStamped and Odometry; TransformStamped.
_POSE_LOCATIONS = ("", "pose", "pose.pose", "transform")
# Fields whose numbers are never part of a pose, such as the offset in a MultiArray. Indices in a mapping skip them.
_UNCOUNTED_FIELDS = ("header", "timestamp", "stamp", "layout")
_FIELDS_OF_PART = {  # part -> message fields that may have the part's numbers; the first existing field is read
    "torque": ("effort", "data", "value"),
    "gripper": ("position", "effort", "data", "value"),
    "wrench": ("wrench.force", "force", "data", "value"),
    "action": ("effort", "data", "value", "position"),
}


@dataclass
class Taker:
    """Collects numbers from a topic's messages. For each message, `rows` has `width` numbers, and `marks` has three
    integers: the message's index in the recording, its log time [ns] and its header stamp [ns].
    """

    part: str
    topic: str
    budget: Budget
    marks: array[int] = field(default_factory=lambda: array("q"))
    rows: array[float] = field(default_factory=lambda: array("d"))
    width: int = 0
    latched: bool = False
    fields: str = ""  # field names of the first message that lacks the wanted fields

    def add(self, message: Any, order: int, log_ns: int, row: Sequence[float]) -> None:
        """Add a message's numbers. Raises `RecordError` if the count of numbers changes, or if memory is exhausted."""
        # `order` is the message's index in the recording, and `log_ns` is the log time [ns].
        # `row` has the numbers of the message.
        # Each message must have `width` numbers. `rows` and `marks` are flat arrays, to which each message is appended.
        if self.width != len(row):
            if self.rows:
                problem = f"messages have {self.width} and {len(row)} numbers"
                refuse_field(problem, "Choose the joints by name.", self.part)
            self.width = len(row)
        self.budget.spend(self.width + _SAMPLE_NUMBERS)
        self.marks.extend((order, log_ns, _read_stamp(message)))
        self.rows.extend(row)

    @property
    def stamps(self) -> Stamps:
        # Returns the index, log time [ns] and header stamp [ns] of each message, from the flat array `marks`.
        return Stamps(self.topic, *np.array(self.marks, dtype=np.int64).reshape(-1, 3).T)

    @property
    def numbers(self) -> Floats:
        """The k numbers of each of the m messages, [m, k]."""
        # Without messages, the width is unknown, and the shape is [0, 1].
        return np.array(self.rows, dtype=np.float64).reshape(-1, self.width or 1)

    @property
    def read_numbers(self) -> Floats:
        # Returns the numbers that are read from each message, in the log's units, [m, k]; `PoseTaker` overrides this.
        return self.numbers

    def note_fields(self, message: Any) -> None:
        """Store the field names of the first message that lacks all wanted fields, for error messages."""
        # Messages of ROS are objects with attributes; a message without attributes is described by its type.
        named = (str(name) for name in getattr(message, "__dict__", ()) if not str(name).startswith("__"))
        self.fields = self.fields or ", ".join(named) or type(message).__name__


@dataclass
class MarkTaker(Taker):
    """Collects the values of messages that mark trials; a message without a Boolean gets the value 1."""

    others: list[str | float] = field(default_factory=list)  # marks that are numbers or texts

    def take(self, message: Any, order: int, log_ns: int) -> None:
        # Adds a message that marks a trial: 1 = begins, 0 = ends. A message without a Boolean begins a trial.
        # Numbers and texts are also kept in `others`, since the meaning of such marks may be unclear.
        mark = _first_field(message, "data")  # as in std_msgs/Bool
        if isinstance(mark, str | int | float) and not isinstance(mark, bool):
            self.others.append(mark)
        self.add(message, order, log_ns, [float(mark) if isinstance(mark, bool) else 1.0])

    def require_clear(self) -> None:
        # A mark is a message that begins or ends a trial. `others` are the marks that are not Booleans.
        # Raises `RecordError` if no mark begins a trial, or if it is unclear whether every mark does.
        # Numbers or texts are unclear if every second mark may end a trial: 0 and 1, two texts, or equal second marks.
        if not any(self.rows):
            remedy = "Name another topic as `marker`, or write start_s and end_s for each [[episode]]."
            found = f"all messages on {self.topic} are false" if self.rows else f"there is no message on {self.topic}"
            refuse_field(f"{found}, so no trial begins", remedy, self.part)
        marks = set(self.others)
        is_pair = marks == {0, 1} or (len(marks) == 2 and all(isinstance(mark, str) for mark in marks))
        # `others[k::2]` has every second mark. Fewer than four marks do not show a repetition.
        if is_pair or (len(marks) > 1 and len(self.others) > 3 and 1 in {len(set(self.others[k::2])) for k in (0, 1)}):
            names = [escape_controls(str(mark)[:_LONGEST_NAME]) for mark, _ in Counter(self.others).most_common(3)]
            problem = f"{self.topic} holds marks such as {', '.join(names)}: it is unclear which of them begin trials"
            remedy = "Instead of `marker`, write a table [[episode]] with start_s and end_s for each trial."
            refuse_field(problem, remedy, self.part)


@dataclass
class NumberTaker(Taker):
    """Collects numbers from a topic's messages. The mapping chooses the numbers by name or by index."""

    columns: Columns = field(kw_only=True)
    seen: dict[tuple[str, ...], list[int]] = field(default_factory=dict)  # names in a message -> indices to read
    size: int = 0  # count of numbers in the previous message
    frame: str = ""  # frame of the first message; "" = no frame
    has_efforts: bool = False  # True if the numbers are from the default field `effort`

    def take(self, message: Any, order: int, log_ns: int) -> None:
        """Add a message if it has any mapped number. Raises `RecordError` if the message does not fit the mapping."""
        # `order` is the index of the message in the recording, and `log_ns` is the log time [ns].
        columns = self.columns
        # The mapping (`columns`) chooses numbers by `names` or by `index`. If it gives neither, it chooses all.
        names, numbers = self._find_numbers(message)
        if not numbers:
            return
        # `size` is the count of numbers in the previous message; 0 before the first message.
        if columns.index and self.size not in (0, len(numbers)):
            problem = f"messages of {self.topic} have {self.size} and {len(numbers)} numbers, so indices may differ"
            refuse_field(problem, "Publish all numbers in every message, or choose them by `names`.", self.part)
        self.size = len(numbers)
        # `seen` maps the names in a message to the indices of the numbers to read; [] if the mapping names no numbers.
        # Messages with the same names share the indices in `seen`.
        if names not in self.seen:
            self.seen[names] = [names.index(name) if name in names else -1 for name in columns.names or ()]
            repeated = [name for name in columns.names or () if names.count(name) > 1]
            if repeated:
                remedy = "Choose them by `index`, counted from 0, or give them different names."
                problem = f"a message of {self.topic} has several numbers called {repeated[0]!r}"
                refuse_field(problem, remedy, self.part)
            is_chosen = bool(columns.names or columns.index)
            if self.part.partition(".")[0] == "wrench" and names and not is_chosen:
                try:
                    self.seen[names] = decide_forces(names, len(numbers))
                except ValueError as question:
                    remedy = f"Choose them by `names`. The names are: {escape_controls(', '.join(names))}."
                    refuse_field(f"{self.topic}: {question}", remedy, self.part)
            if columns.names is None and len(self.seen) > 1:
                listed = "; ".join(", ".join(joint_names) for joint_names in self.seen)
                refuse_field(f"the joints differ between messages: {listed}", "Choose joints by `names`.", self.part)
        # Read the named numbers; without names, the numbers at the mapping's indices; without indices, all numbers.
        indices = self.seen[names] or columns.index or range(len(numbers))
        try:
            # An index of -1 means that the message lacks the name; null in JSON is None.
            row = [math.nan if index < 0 or numbers[index] is None else float(numbers[index]) for index in indices]
        except (LookupError, TypeError, ValueError) as error:
            # Find the cause: a text or (TypeError) a list or object instead of a number, or an index that is too large.
            text = next((number for number in numbers if isinstance(number, str)), "")
            if text:
                remedy = "In the mapping, name a topic of numbers or Booleans."
                refuse_field(f"{self.topic} holds text, {escape_controls(text[:_LONGEST_NAME])!r}", remedy, self.part)
            remedy = f"Indices go from 0 to {len(numbers) - 1}."
            if isinstance(error, TypeError):
                remedy = "Write the location of the numbers as `field`, such as `wrench.force`."
                refuse_field(f"{self.topic} holds objects or lists of numbers, not numbers", remedy, self.part)
            refuse_field(f"a message lacks a mapped number: {error}", remedy, self.part)
        # Messages without any of the named numbers are skipped, since a topic may have messages of several devices.
        if columns.names is None or not all(map(math.isnan, row)):
            self.frame = self.frame if self.rows else _parent_frame(message)
            self.add(message, order, log_ns, row)

    def _find_numbers(self, message: Any) -> tuple[tuple[str, ...], list[Any]]:
        # Returns the names of a message's numbers (() = no names), and their values.
        # Reads the field that the mapping gives.
        # Without such a field, reads the first field in `_FIELDS_OF_PART` that the message has.
        # Values may also be text or None.
        # `self.columns` is the mapping's table: `names` are the names of the numbers to read, `index` their indices.
        part = self.part.partition(".")[0]
        locations = _FIELDS_OF_PART[part] if self.columns.field is None else (self.columns.field,)
        # The values of the fields that exist in the message, in order of preference.
        candidates: list[Any] = [_get_field(message, location) for location in locations]
        candidates = [value for value in candidates if value is not None]
        if part == "gripper":
            # A grip may be seen in a position or in an effort, so the user must choose.
            non_empty = [value for value in candidates if np.size(value)]
            if len(non_empty) > 1:
                remedy = f'Write `field = "position"` or `field = "effort"` under [{self.part}].'
                refuse_field(f"the messages of {self.topic} have positions and efforts", remedy, self.part)
            candidates = non_empty or candidates
        values = candidates[0] if candidates else None
        self.has_efforts |= part == "torque" and self.columns.field is None and hasattr(message, "effort")
        name: Any = getattr(message, "name", None)  # the names of the numbers, or a single text
        is_list = hasattr(name, "__iter__") and not isinstance(name, str)
        names: tuple[str, ...] = tuple(map(str, name)) if is_list else ()
        if values is None and part == "wrench" and self.columns.field is None:
            # The forces may be fields such as `fx`, `fy` and `fz`.
            members = getattr(message, "__dict__", {})  # a JSON message may be a list or a number
            fields = {field: value for field, value in members.items() if isinstance(value, int | float)}
            if find_forces([*fields]):
                return tuple(fields), [*fields.values()]
        if values is None:
            self.note_fields(message)
            return (), []
        if part == "wrench":  # `field` may name the whole wrench, with or without its header
            values = getattr(values, "wrench", values)
            values = getattr(values, "force", values)
        # Values may be an object (name -> number), a vector with fields x, y, z, an array, a list or a single number.
        if isinstance(values, JsonObject):
            names, values = tuple(values.__dict__), values.__dict__.values()
        elif not isinstance(values, np.ndarray) and hasattr(values, "z"):
            values = values.x, values.y, values.z
        if isinstance(values, np.ndarray):
            values = values.tolist()
        numbers = [values] if np.isscalar(values) else [*values]
        if numbers and len(names) != len(numbers):  # the names do not match the numbers
            if self.columns.names is not None or (names and self.columns.index is None):
                remedy = f"There are {len(names)} names and {len(numbers)} numbers; choose numbers with `index`."
                refuse_field("the counts of names and numbers differ in a message", remedy, self.part)
            names = ()
        return names, numbers

    def convert(self, numbers: Floats) -> Floats:
        # Returns the numbers times the mapping's `scale`.
        return numbers * self.columns.scale

    def find_order(self) -> tuple[str, ...]:
        """Return the names of the numbers in order; () if the mapping gives names, or if the messages have no names."""
        names = next(iter(self.seen), ()) if self.columns.names is None else ()  # names in the first message
        # Indices of the numbers to read, from the mapping or for the forces; [] or None = all numbers.
        indices = self.columns.index or self.seen.get(names)
        return tuple(names[index] for index in indices) if names and indices else names

    def require_some(self) -> None:
        """Raise `RecordError` if no message has a mapped number, or if a mapped name is in no message."""
        # Also raises an error for an unclear unit. `seen` has the names of the numbers in each kind of message.
        # `rows` are the numbers that were read from the messages so far. `fields` describes the first message.
        known_names = dict.fromkeys(name for names in self.seen for name in names)
        missing = [name for name in self.columns.names or () if name not in known_names]
        if missing and self.seen:
            remedy = f"The names in the messages are: {', '.join(known_names) or 'none'}."
            refuse_field(f"no message of {self.topic} has the name {', '.join(missing)}", remedy, self.part)
        if not self.rows:
            hint = "The numbers are missing or NaN in all messages."
            if self.fields:
                hint = f"The message has: {self.fields}."
            remedy = f"Write the location of the numbers as `field`. {hint}"
            if self.fields in ("list", "int", "float", "str", "bool", "NoneType"):  # a JSON message without fields
                remedy = f"Map a topic whose messages are objects with fields; those of {self.topic} are {self.fields}."
            refuse_field("no message has the mapped numbers", remedy, self.part)
        # Numbers from the default field `effort` of joint states are torques.
        columns = msgspec.structs.replace(self.columns, field="effort") if self.has_efforts else self.columns
        columns.require_scale(self.part, self.columns.names or self.find_order())


@dataclass
class PoseTaker(Taker):
    """Collects the poses of one child frame, or all poses if messages have no child frames."""

    columns: PoseColumns = field(kw_only=True)
    frames: array[int] = field(default_factory=lambda: array("i"))
    frame_names: dict[str, int] = field(default_factory=dict)  # name of a parent frame -> the frame's index
    children: dict[str, None] = field(default_factory=dict)
    has_pose: bool = False  # True if a message had a known pose
    has_turn: bool = False  # True if a message had an orientation
    # Index, log time and stamp of the messages before the first known pose.
    # The first known pose gives the number of columns; then each message before it gets a row of NaN.
    unknown_marks: array[int] = field(default_factory=lambda: array("q"))
    layout: PoseLayout | None = None  # indices of the pose's numbers in a row; None = the message has pose fields
    names: tuple[str, ...] = ()

    def take(self, message: Any, order: int, log_ns: int) -> None:
        # Adds the pose in a message, or the pose of the wanted child frame in a list of transforms.
        # `order` is the index of the message in the recording, and `log_ns` is the log time [ns].
        # `frame_names` maps names of parent frames to indices. `frames` has the index of each message's frame.
        transforms, wanted_frame = getattr(message, "transforms", None), plain_frame(self.columns.frame or "")
        for entry in (message,) if transforms is None else transforms:
            child = plain_frame(str(getattr(entry, "child_frame_id", None) or ""))
            if child:
                self.children[child[:_LONGEST_NAME]] = None  # a dict serves as an ordered set
            # If the mapping names no frame, messages with a list of transforms are skipped.
            is_wanted = child == wanted_frame if wanted_frame else transforms is None
            if is_wanted:
                frame = _parent_frame(entry)
                self.frames.append(self.frame_names.setdefault(frame, len(self.frame_names)))
                try:
                    pose = self._find_pose(entry)
                except RecordError as error:
                    raise error.with_place(Place(field=self.part)) from None
                if not self.has_pose:
                    # Until a known pose shows how many numbers a row has, store only the times of messages.
                    self.budget.spend(_SAMPLE_NUMBERS)
                    self.unknown_marks.extend((order, log_ns, _read_stamp(entry)))
                    continue
                if self.unknown_marks:  # one row of NaN per message; `unknown_marks` has three integers per message
                    self.width = len(pose)
                    self.rows.extend([math.nan] * (self.width * len(self.unknown_marks) // 3))
                    self.marks.extend(self.unknown_marks)
                    del self.unknown_marks[:]
                self.add(entry, order, log_ns, pose)

    def _find_pose(self, message: Any) -> list[float]:
        # Returns position xyz and quaternion wxyz or, with a `layout`, all numbers of the message. NaN = unknown.
        # Sets `has_pose` if it finds a pose, and `has_turn` if the pose has an orientation.
        # If names or indices give the pose, sets both flags. The first such message also sets `layout` and `names`.
        # Try the usual locations of a pose, such as `pose.pose`, or only the one that the mapping gives as `field`.
        for location in _POSE_LOCATIONS if self.columns.field is None else (self.columns.field,):
            pose = _get_field(message, location)
            position = _first_field(pose, "position", "translation")
            orientation = _first_field(pose, "orientation", "rotation")
            if hasattr(position, "x") and not self._has_unread_orientation(pose, orientation):
                # If the mapping gives indices or a form of rotation, it expects a list of numbers.
                is_stated = bool(self.columns.stated or self.columns.rotation_form)
                if is_stated and hasattr(orientation, "w"):
                    problem = f"the messages of {self.topic} have fields for position and orientation"
                    remedy = "Leave out the indices and `rotation_form`, or name the field with the numbers as `field`."
                    refuse_field(f"{problem}, so indices do not apply", remedy, self.part)
                # If the mapping expects numbers, ignore a position without orientation, and search the numbers below.
                if not is_stated:
                    self.has_pose = True
                    self.has_turn = self.has_turn or hasattr(orientation, "w")
                    return [*_read_floats(position, "xyz"), *_read_floats(orientation, "wxyz")]
        # The message has no usable pose fields, so the names or the indices of its numbers give the pose.
        numbers = _iterate_numbers(_get_field(message, self.columns.field or ""))
        all_numbers = dict(islice(numbers, _MOST_NUMBERS))
        # Numbers in fields such as `header` and `timestamp` are not part of a pose.
        number_by_name = {
            name: number for name, number in all_numbers.items() if name.partition(".")[0] not in _UNCOUNTED_FIELDS
        }
        # The first message with known numbers decides which numbers are the pose (`layout`).
        is_mapped = bool(self.columns.field or self.columns.position)
        has_numbers = not all(map(math.isnan, number_by_name.values()))
        if self.layout is None and has_numbers and (is_mapped or find_positions([*number_by_name])):
            # If all names are decimal numbers, they are indices of a list without names.
            given_names = () if all(name.isdecimal() for name in number_by_name) else tuple(number_by_name)
            self.layout = self.columns.find_numbers(self.part, given_names, len(number_by_name))
            self.names = tuple(number_by_name)
            self.has_pose = self.has_turn = True
            # The fields that hold x, y and z, such as `bodies.2`.
            owners = {self.names[index].rpartition(".")[0] for index in self.layout.position}
            if self.columns.position and len(owners) > 1:
                chosen = escape_controls(", ".join(self.names[index] for index in self.layout.position))
                remedy = "Name the field with the pose as `field`, and count the numbers in it from 0."
                refuse_field(f"`position` chooses numbers of several fields: {chosen}", remedy, self.part)
            if self.columns.stated and len(number_by_name) < len(all_numbers):
                uncounted = f"the indices skip numbers in {', '.join(_UNCOUNTED_FIELDS)}"
                self.layout = self.layout._replace(doubt="; ".join(filter(None, [self.layout.doubt, uncounted])))
        if self.layout is None:
            self.note_fields(message)
        # More numbers than in the first message, or a shorter list, may be the poses of other objects.
        elif len(number_by_name) > len(self.names) or self._has_shorter_list(tuple(number_by_name)):
            problem = f"messages of {self.topic} have {len(self.names)} and {len(number_by_name)} numbers"
            refuse_field(problem, "Publish one pose per message, on a separate topic.", self.part)
        # Without a layout, the message has no pose, so all seven numbers are unknown.
        return [number_by_name.get(name, math.nan) for name in self.names] or [math.nan] * 7

    def _has_shorter_list(self, names: tuple[str, ...]) -> bool:
        # Returns whether a list with mapped numbers is shorter than in the first message.
        # An index may then refer to a different object than before. `names` are dotted, as in `bodies.2.position.x`.
        if self.layout is None or names == self.names:
            return False
        entries, first_entries = _find_entries(names), _find_entries(self.names)
        # The lists in the message, such as `bodies`, that contain mapped numbers.
        lists = {owner for index in self.layout.places for owner in _find_entries([self.names[index]])}
        # Compare the largest index of each list now and in the first message.
        return any(
            # A list's length is known only if the first message has all its indices (0, 1, 2, …).
            owner in entries and max(entries[owner]) < max(first_entries[owner]) == len(first_entries[owner]) - 1
            for owner in lists
        )

    def _has_unread_orientation(self, pose: Any, orientation: Any) -> bool:
        # Returns whether a pose with a position may have an orientation that is not in fields w, x, y, z.
        # For such an orientation, the caller finds the pose by the names of its numbers.
        if self.layout is not None:  # an earlier message was read by the names of its numbers
            return True
        if self.has_turn or hasattr(orientation, "w"):  # poses of this topic have an orientation in fields
            return False
        numbers = islice(_iterate_numbers(pose), _MOST_NUMBERS)
        return _names_may_have_rotation(tuple(name for name, number in numbers if not math.isnan(number)))

    @property
    def read_numbers(self) -> Floats:
        # Returns the numbers of the pose in each message, in the log's units.
        # `layout` has the indices of the pose's numbers; None = messages have pose fields, and the result is [m, 7].
        return self.numbers if self.layout is None else self.numbers[:, self.layout.places]

    def convert(self, numbers: Floats) -> Floats:
        # Converts the numbers of m messages to poses, [m, 7], or [m, 3] without orientations.
        # `layout` is None if the messages have fields for position and orientation, which need no rearrangement.
        if self.layout is not None:
            return self.columns.arrange(numbers, self.layout, self.part)
        # A row has x, y, z, w, x, y, z. `has_turn` is true if any message has an orientation.
        factors = np.array([self.columns.factor_m(self.part)] * 3 + [1.0] * 4)
        poses: Floats = numbers * factors
        require_quaternions(poses[:, 3:], self.part)
        return poses if self.has_turn else poses[:, :3]

    def require_some(self) -> None:
        """Raise `RecordError` if no message has a pose of the wanted frame, or if the mapping must choose a frame."""
        # `children` are all child frames in the messages, and `fields` the field names of a message without a pose.
        listed = ", ".join([*self.children][:MOST_NAMED])
        has_messages = bool(self.rows or self.unknown_marks)
        if not has_messages and self.children:
            remedy = f"The child frames are: {listed}. Write one as `frame`, or leave the part out of the mapping."
            refuse_field(f"there is no message of {self.part} in {self.topic}", remedy, self.part)
        if not has_messages:
            problem, remedy = f"no message on {self.topic} has a pose", "Leave this part out of the mapping."
            if self.columns.frame:
                wanted, remedy = self.columns.frame, "Leave `frame`, or this part, out of the mapping."
                problem = f"no message on {self.topic} has a child frame, but the mapping names {wanted!r}"
            refuse_field(problem, remedy, self.part)
        if self.columns.frame is None and len(self.children) > 1:
            remedy = f"Write one of these child frames as `frame`: {listed}."
            refuse_field(f"{self.topic} has poses of several frames", remedy, self.part)
        if not self.has_pose:
            remedy = f"Write the location of the pose as `field`. The message has: {self.fields}."
            refuse_field("no message has a pose", remedy, self.part)


class TransformTree:
    """The transforms of a recording, by child frame."""

    def __init__(self, budget: Budget) -> None:
        # `_edges` maps each child frame to its transforms and to the names of its parents (a dict as an ordered set).
        # `budget` limits the count of numbers that are stored.
        self._budget = budget
        self._edges: dict[str, tuple[Taker, dict[str, None]]] = {}

    def take(self, message: Any, order: int, log_ns: int, static: bool) -> None:
        """Add the transforms of a message, except those that tf2 would ignore."""
        # `order` is the message's index in the recording, and `log_ns` is the log time [ns].
        # `static` is true for messages such as those of /tf_static.
        entries = _first_field(message, "transforms")
        if not entries:  # the message may itself be a transform
            entries = [message] if _first_field(message, "child_frame_id") else []
        for entry in entries:
            child, parent = plain_frame(str(_first_field(entry, "child_frame_id") or "")), _parent_frame(entry)
            pose = _first_field(entry, "transform") or entry
            position = _read_floats(_first_field(pose, "translation"), "xyz")
            row = [*position, *_read_floats(_first_field(pose, "rotation"), "wxyz")]
            is_valid = math.isfinite(sum(row)) and abs(sum(q * q for q in row[3:]) - 1) < _MAX_NORM_DEVIATION
            if child and parent and child != parent and is_valid:
                new_taker = Taker(child, f"transforms of {child}", self._budget)
                taker, parents = self._edges.setdefault(child, (new_taker, {}))
                # A frame that any static topic publishes counts as static.
                taker.latched |= static
                parents[parent] = None
                taker.add(entry, order, log_ns, row)

    def list_stamps(self, static: bool = False) -> dict[str, Stamps]:
        """Return `transforms of FRAME` -> times, for child frames that move or have differing static transforms."""
        # If `static`, list the static frames whose transforms differ. Otherwise, list the moving frames.
        # Each taker stores the transforms of one frame; `latched` is true if the frame is static.
        takers = [taker for taker, _ in self._edges.values() if taker.latched == static]
        return {taker.topic: taker.stamps for taker in takers if not static or np.ptp(taker.numbers, axis=0).any()}

    def build_tree(self, times: Mapping[str, Times], max_gap_s: float) -> FrameTree:
        """Return the tree of frames. `times` maps each name that `list_stamps` returns to times."""
        # Transforms that are more than `max_gap_s` apart are not interpolated.
        # Each taker stores the transforms of one frame; `latched` is true if the frame is static.
        edges = {}
        for child, (taker, parents) in self._edges.items():
            time_ns, chosen = np.arange(1), np.array([-1])  # static, never changed: the last transform
            # For a moving frame, keep one transform per time.
            # For a static frame, keep all transforms; if times are equal, the last transform counts.
            if taker.topic in times:
                time_ns = times[taker.topic].time_ns
                chosen = np.argsort(time_ns, kind="stable")
                if not taker.latched:
                    chosen = np.unique(time_ns, return_index=True)[1]
                time_ns = time_ns[chosen]
            edges[child] = Edge(tuple(parents), time_ns, taker.numbers[chosen], taker.latched)
        return FrameTree(edges, max_gap_s * 1e9)


@lru_cache
def _names_may_have_rotation(names: tuple[str, ...]) -> bool:
    # Returns whether the names give one position, and other numbers that may be an orientation.
    positions = find_positions(names)
    return len(positions) == 1 and may_have_rotation(names, positions[0])


def _iterate_numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    # Yields (dotted name, number) for each number in a message or in its field `name`; "" = the message itself.
    # None becomes NaN, and a Boolean 0 or 1. Texts are skipped.
    # Three numbers in a list are named x, y, z. The items of any other list are named by their index.
    if value is None or isinstance(value, bool | int | float):
        yield name, math.nan if value is None else float(value)
        return
    children = getattr(value, "__dict__", None)
    if children is None and hasattr(value, "__len__") and not isinstance(value, str | bytes):
        keys = "xyz" if name and len(value) == 3 else map(str, range(len(value)))
        children = dict(zip(keys, value, strict=False))
    for key, child in (children or {}).items():
        yield from _iterate_numbers(child, f"{name}.{key}" if name else key)


def _find_entries(names: Sequence[str]) -> dict[str, set[int]]:
    # Returns, for each list in dotted names, the indices of the entries: {2} for `bodies` in `bodies.2.position.x`.
    entries: dict[str, set[int]] = {}
    for parts in (name.split(".") for name in names):
        for place, part in enumerate(parts):
            if part.isdecimal():
                entries.setdefault(".".join(parts[:place]), set()).add(int(part))
    return entries


def _get_field(message: Any, location: str) -> Any:
    # Returns the value of a (nested) field such as `pose.position`; None if missing. "" means the message itself.
    for name in location.split(".") if location else ():
        message = getattr(message, name, None)
    return message


def _first_field(message: Any, *names: str) -> Any:
    # Returns the value of the first of the fields `names` that the message has; None if it has none of them.
    for name in names:
        value = getattr(message, name, None)
        if value is not None:
            return value
    return None


def _parent_frame(message: Any) -> str:
    # Returns the name of the frame in which a pose or transform is given; "" if the message names no frame.
    frame = _get_field(message, "header.frame_id") or _first_field(message, "frame_id", "parent_frame_id") or ""
    return plain_frame(str(frame))[:_LONGEST_NAME]


def _read_floats(values: Any, names: str) -> list[float]:
    # Return the fields whose names are the letters of `names`, such as `xyzw`; NaN for a missing field.
    return [_to_float(name, getattr(values, name, None)) for name in names]


def _to_float(name: str, value: Any) -> float:
    # Converts a field's value to a float; None becomes NaN.
    # Raises `RecordError` with the field's name if the value cannot be read as a number.
    if value is None:
        return math.nan
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if isinstance(value, int | float | np.number | str) and not isinstance(value, bool):
        with suppress(OverflowError, ValueError):
            return float(value)
    problem = f"{name} is {escape_controls(repr(value)[:_LONGEST_NAME])}, not a number that can be read"
    raise RecordError(problem, remedy="Write numbers (null = unknown), or leave the part out of the mapping.")


def _read_stamp(message: Any) -> int:
    """Return a message's stamp [ns]; 0 = none. Stamps of ROS, Foxglove and Protobuf, numbers and texts are read."""
    # ROS has `header.stamp`; Foxglove's types have `timestamp`; JSON may have `stamp` without a header.
    stamp: Any = getattr(getattr(message, "header", None), "stamp", None)
    stamp = _first_field(message, "timestamp", "stamp") if stamp is None else stamp
    try:
        # Use `operator.index`, which accepts only integers, because a product of floats would be rounded.
        return operator.index(stamp.sec) * 10**9 + operator.index(stamp.nanosec)
    except (AttributeError, TypeError):
        pass
    if isinstance(stamp, str | float | int):
        return _parse_stamp(str(stamp))
    # Read other names for the seconds, as in Protobuf and in JSON of ROS 1. The seconds may be a float.
    seconds = _first_field(stamp, "sec", "secs", "seconds")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return 0
    nanoseconds = _first_field(stamp, "nanosec", "nsec", "nsecs", "nanos", "nanoseconds")
    return int(Decimal(str(seconds)).scaleb(9)) + int(nanoseconds or 0)  # Decimal does not round


_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)?")
_PLAIN_NUMBER = re.compile(r"\d{1,19}(\.\d*)?", re.ASCII)


def _parse_stamp(text: str) -> int:
    """Return a time in ns. The text is an ISO 8601 time (UTC without a time zone) or a number. Numbers below 1e11 are
    in s, larger numbers in ms, µs or ns (see below). Return 0 for any other text, and for integers below 1e8.
    """
    if match := _ISO_TIME.fullmatch(text):
        try:
            moment = datetime.fromisoformat(match[1] + (match[3] or "Z"))
        except ValueError:
            return 0
        # The pattern's groups are the time up to the seconds, up to nine digits of their fraction, and the time zone.
        return round(moment.timestamp()) * 10**9 + int((match[2] or "0").ljust(9, "0"))
    match = _PLAIN_NUMBER.fullmatch(text)
    if not match or (match[1] is None and len(text) < 9):  # a short integer is probably a counter
        return 0
    digits = len(text.partition(".")[0])  # 1 to 11 digits mean s; 12 to 14, ms; 15 to 17, µs; more, ns
    return int(Decimal(text).scaleb(9 - max(0, (digits - 9) // 3) * 3))
