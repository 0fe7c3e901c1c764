"""Finds the numbers of a pose by their names, and converts rotations to quaternions wxyz.

A name is split into words. Some words give the kind of quantity and the axis, as in `ee_quat_x`, `orientation.w`, `QX`
and `posZ`. All other words, such as `left`, are its group. `decide_pose` raises an error if the names are ambiguous.

Conventions that names imply: roll, pitch and yaw are rotations about the fixed axes x, y, z in this order (ROS REP
103), in radians. Six numbers are the first two columns of the rotation matrix (Zhou et al., CVPR 2019). `ee.wx`,
`ee.wy` and `ee.wz` are a rotation vector (huggingface/lerobot 7427f31,
robots/so_follower/robot_kinematic_processor.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from safevla_bench.archive.record_schema import refuse_field
from safevla_bench.files import read_shipped
from safevla_recorder.episode import Floats

SIZES = {"quaternion": 4, "rpy": 3, "rotvec": 3, "6d": 6, "6d_rows": 6, "matrix": 9}
"""Representation of a rotation -> number of values; `6d_rows` are the matrix's first two rows, as in PyTorch3D."""
_AXES = {"x": "x", "y": "y", "z": "z", "w": "w", "roll": "x", "pitch": "y", "yaw": "z"}
# First letter of a word such as `qx` -> kind of quantity.
_KIND_OF_PREFIX = {"q": "quaternion", "p": "position", "t": "position", "r": "rotation", "o": "rotation"}
_KIND_OF_PREFIX |= dict.fromkeys("vfdwag", "other")
# `_KINDS` maps words to kinds of quantities. `_UNITS` maps words to units.
# `_UNITS_AFTER_AXES` maps words that are units only after an axis or after the word for a position.
# If a number's name has a word in `_SCALARS`, the number is not part of a pose.
# `_FORCE_UNITS` maps words for units of forces and torques to the unit's factor, as text.
# A force or torque whose name has a word in `_UNMEASURED` was not measured.
# `_OWNERS` maps words for the hand to `hand`, and words that name no object to "".
_KINDS, _SCALARS, _UNITS, _UNITS_AFTER_AXES, _FORCE_UNITS, _UNMEASURED, _OWNERS = (
    {word: meaning for meaning, words in table.items() for word in words.split()}
    for table in read_shipped(__package__, "words.toml", dict[str, dict[str, str]]).values()
)
_HAND_WORDS = frozenset(word for word, owner in _OWNERS.items() if owner == "hand")
_ROTVEC_PAIRS = {("axis", "angle"), ("rotation", "vector"), ("rot", "vec")}


class PoseLayout(NamedTuple):
    """Indices of a pose's numbers: position x, y, z, and rotation (w, x, y, z if its `form` is `quaternion`).

    `doubt` is a warning about a convention that the names only imply; "" = none. `unit` and `angle_unit` are units in
    the names; "" = none.
    """

    position: tuple[int, ...]
    rotation: tuple[int, ...] = ()
    form: str = "quaternion"
    doubt: str = ""
    unit: str = ""
    angle_unit: str = ""

    @property
    def places(self) -> tuple[int, ...]:
        """Indices of all numbers of the pose."""
        return self.position + self.rotation


_Group: TypeAlias = frozenset[str]  # words of a name, except those for a quantity or axis
# Pattern for the end of a name: an axis (first group) and perhaps a unit, as in `fx_N` and `torque_x [N·m]`.
_FORCE_END = r"([xyz])(?:[\W_]+[km]?n(?:[\W_]*[cm]?m)?[\W_]*|[\W_]+(?:kg|lb|oz)f?[\W_]*)?$"
_FORCE_PATTERN = rf"(?:^|[^a-z])f(?:orces?)?[^a-z]*{_FORCE_END}"


class _NamedSet(NamedTuple):
    group: _Group
    kind: str
    axes: dict[str, list[int]]  # axis -> indices of the numbers for this axis

    def find_places(self, wanted: str) -> tuple[int, ...]:
        """Return one index per axis, in the order of `wanted` or of axis numbers; () unless each axis has one index."""
        # `axes` maps each axis to the indices of its numbers.
        # Axes are letters or, as in `rot6d_0`, numbers. `wanted` applies only to letters.
        is_numbered = "".join(self.axes).isdecimal()
        order = sorted(self.axes, key=int) if is_numbered else list(wanted)
        is_complete = set(order) == set(self.axes) and all(len(indices) == 1 for indices in self.axes.values())
        return tuple(self.axes[axis][0] for axis in order) if is_complete else ()


def _split_words(name: str) -> list[str]:
    # Return the lower-case words of a name: left, hand, pos, 6d for `leftHand_pos6d`.
    # A word ends before a capital letter, a digit or a sign. `6d` is one word, and so is a sign for degrees.
    text = _plain(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))
    text = re.sub(r"(milli|centi|deci|micro|nano|kilo)[\W_]+(?=met|rad|deg)", r"\1", text)  # as in `MilliMeters`
    return re.findall(r"6d|[^\W\d_]+|\d+|[°˚]", text)


def _find_sign(name: str) -> str:
    # Returns "-" if the name means a negated number, as in `-x`; "" otherwise, as in `left-x`.
    return "-" if re.search(r"(^|\.)\s*[-−]\s*\w", name) else ""


def _plain(name: str) -> str:
    # Returns the name in lower case. Full-width letters, and signs such as `㎜`, become ordinary letters.
    return re.sub("[\u3300-\u33ff\uff01-\uff5e]", lambda sign: unicodedata.normalize("NFKC", sign[0]), name).lower()


DOUBTFUL_UNITS = ("in", "ft")  # `in` may be a preposition; `ft`, a foot or force-torque
_NO_LENGTHS = ("pixel", "tick", "percent", "normalized", "m/s", "mph", "km/h")
_SMALL_UNITS = ("m", "cm", "mm", "um", "nm", "inch", "dm", "thou", "angstrom")
LENGTH_UNITS = (*_SMALL_UNITS, "km", "yd", "mi", "hm", *DOUBTFUL_UNITS, *_NO_LENGTHS)
ANGLE_UNITS = ("rad", "deg", "mrad", "urad", "mdeg", "gon", "arcmin", "arcsec", "rev", "deg/s", "rpm")
# Pattern for the text in brackets at the end of a name, unless this text is a number.
_BRACKETS = r"[\[(]([^\[\]()]*[^\d\W_][^\[\]()]*|[%‰'\"′″]+)[\])]\W*$"


def find_unit(names: Iterable[str], known: Collection[str]) -> str:
    """Return the unit in `known` that the names contain, as in `x_mm`, or unknown words in brackets, as in `x [foo]`;
    "" = none. Raises `ValueError` if units differ.
    """
    name_units: set[str] = set()  # the units in each name, "" for a name without a unit
    for name in names:
        words = _split_words(name)
        units = []
        for previous, word, following in zip(["", *words], words, [*words[1:], ""], strict=False):
            unit = _UNITS.get(word, "")
            # In `x_in_base`, the word `in` is not a unit.
            # Words such as `in` are a unit only after an axis, and only at the end or before another axis.
            if _may_precede_unit(previous) and (not following or following in _AXES):
                unit = unit or _UNITS_AFTER_AXES.get(word, "")
            # In `m1_x_mm`, `m1` is the name of an object. Numbers in `m/s` are not positions.
            if unit in known and not (word == "m" and following.isdecimal()):
                units.append(f"{unit}/s" if following in ("s", "sec", "second", "per") else unit)
        match = re.search(_BRACKETS, _plain(name))
        if match and {*_UNITS, *_UNITS_AFTER_AXES, *_AXES}.isdisjoint(_split_words(match[1])):
            units.append(match[1])
        elif match and units and re.search(r"\d", match[1]) and not units[-1].endswith("/s"):
            units = [match[1]]  # the unit has a factor, as in `x [0.1 mm]`
        name_units.update(units or [""])
    if len(name_units) > 1:
        question = "which unit do the numbers have? Their names give several units"
        raise ValueError(f"{question}; convert the numbers to one unit")
    return name_units.pop() if name_units else ""


def find_force_unit(names: Iterable[str]) -> tuple[str, str]:
    """Return the word for a unit in the names of forces or torques, and its factor to N or N·m ("" = unknown). `pos`
    and the like are unknown units. ("", "") = N, N·m or no unit. Raises `ValueError` if units differ.
    """
    names = [*names]
    words_in_names = [*filter(None, map(_find_sign, names)), *chain(*map(_split_words, names))]
    if not_measured := next((word for word in words_in_names if word in ("-", *_UNMEASURED)), ""):
        return not_measured, ""
    # In `tau_q1`, the joint is called q1.
    texts = [re.sub(r"(tau|torques?|efforts?)[\W_]*q(?![^\W\d_])", r"\1", _plain(name)) for name in names]
    # If all names share a text in brackets, such as `[foo]`, it is a unit, perhaps with a factor, as in `[0.1 N]`.
    brackets = {match[1].strip() if (match := re.search(_BRACKETS, text)) else "" for text in texts}
    shared = brackets.pop() if len(brackets) == 1 else ""
    if re.search(r"\d", shared):
        return shared, ""
    shared = re.sub(r"^([xyz]|n(ewtons?)?([\W_]*m(et(er|re)s?)?)?)$", "", shared)
    units: set[tuple[str, str]] = set()
    for text in texts:
        # Letters that follow each other, such as `mNm`, are one word; `[A]` is one word, too.
        words = [*re.findall(r"[\[(]\w[\])]|[^\W\d_]+|%", text)]
        last = next((word for word in reversed(words) if word not in _AXES), "")
        # `_FORCE_UNITS` maps words to factors, as text. Words with "?" count only at the end of a name.
        # For example, `current` and `LB` are not units in `current_state` and `LB_hip`.
        known = [word for word in words if word in _FORCE_UNITS and (word == last or "?" not in _FORCE_UNITS[word])]
        pairs = [first + second for first, second in pairwise(words) if first + second in _FORCE_UNITS]
        unit = (pairs or known or [shared])[0]
        units.add((unit, _FORCE_UNITS.get(unit, "").strip("?")))
    if len({factor for _, factor in units}) > 1:
        raise ValueError("which unit do the numbers have? Their names give several units")
    return max(units, default=("", ""))


def says_torque(name: str) -> bool:
    """Return whether a name means a torque, such as `tx` or `wrench.torque`. `force_torque.fx` is a force."""
    has_torque = re.search(rf"torque|moment|(?:^|[\W\d_])(?:tau|τ)(?![^\W\d_]{2})|[tm]{_FORCE_END}", name.lower())
    return has_torque is not None and not re.search(_FORCE_PATTERN, name.lower())


def says_change(name: str) -> bool:
    """Return whether a name ends in a word for a velocity, acceleration, force, change or error: `/ee_velocity`."""
    last = "".join(_split_words(name)[-1:])
    pattern = "vel|velocit(y|ies)|speeds?|twist|linear|angular|acc|accelerations?|forces?|torques?|wrench"
    pattern += "|deltas?|err|errors?"
    return re.fullmatch(pattern, last) is not None


def _may_precede_unit(word: str) -> bool:
    # Return whether the word is an axis, such as `x` or `px`, or means that the number is a position.
    # The keys of `_KIND_OF_PREFIX` are letters before an axis, such as p. `_KINDS` maps words to kinds of quantities.
    is_prefixed_axis = len(word) == 2 and word[0] in _KIND_OF_PREFIX and word[1] in "xyz"
    return word in _AXES or is_prefixed_axis or _KINDS.get(word) == "position"


def find_units(names: Sequence[str], position: Sequence[int], rotation: Sequence[int] = ()) -> tuple[str, str]:
    """Return the units of position and angles in the names; "" = none. Raises `ValueError` if units are unclear."""
    # Units are unclear if names give several units, or if a position without a rotation has a unit of angles.
    position_names = [names[index] for index in position if index < len(names)]
    rotation_names = [names[index] for index in rotation if index < len(names)]
    angle_unit = "" if rotation else find_unit(position_names, ANGLE_UNITS)  # such as `rad`; `rad/s` is a rate
    if angle_unit.partition("/")[0] in ANGLE_UNITS:
        raise ValueError(f"which unit does the position have? The names say {angle_unit!r}")
    return find_unit(position_names, LENGTH_UNITS), find_unit(rotation_names, ANGLE_UNITS)


def _parse_name(name: str) -> tuple[_Group, str, str]:
    # Returns the group (all words that give no kind or axis), the kind of quantity and the axis; "" = none.
    # The kinds are position, rotation, euler, the keys of `SIZES`, and "other" for numbers that are not part of a pose.
    # In LeRobot, `ee.wx` is part of a rotation vector. In any other name, `wx` is an angular velocity.
    if match := re.fullmatch(r"(.*[._])?ee\.w([xyz])", name):
        return _parse_name(match[1] or "")[0], "rotvec", match[2]
    words = _split_words(name)
    kind, axis, group = "other" if _find_sign(name) else "", "", set[str]()
    for previous, word in zip(["", *words], words, strict=False):
        word_kind = _KINDS.get(word)
        # Two words such as `axis angle` give the kind together, so the first is not part of the group.
        if (previous, word) in _ROTVEC_PAIRS:
            word_kind = "rotvec"
            group.discard(previous)
        # A word such as `qx` gives both the kind and the axis.
        if len(word) == 2 and word[0] in _KIND_OF_PREFIX and word[1] in "xyzw":
            word_kind, axis = _KIND_OF_PREFIX[word[0]], word[1]
        elif word in _AXES or (word.isdecimal() and kind in (*SIZES, "rotation", "euler")):
            # Consecutive numbers, such as the row and the column in a matrix, form one axis.
            axis = _AXES.get(word, axis + word if axis.isdecimal() else word)
        elif word_kind is None:
            group.add(word)
        # The last word that has a kind gives the kind of the name; but if any word has the kind "other", it is "other".
        kind = "other" if "other" in (kind, word_kind) else word_kind or kind
    return frozenset(group), kind, axis


def _group_names(names: Sequence[str]) -> list[_NamedSet]:
    """Return the numbers whose names give an axis, as one set for each group and kind of quantity."""
    # The group of a name is its words without a kind or axis, such as `left`. Numbers without an axis are left out.
    axes_by_set: dict[tuple[_Group, str], dict[str, list[int]]] = {}
    has_forces = any(re.search(_FORCE_PATTERN, name.lower()) for name in names)
    for index, name in enumerate(names):
        group, kind, axis = _parse_name(name)
        # If other names are forces, names that end in `tx`, `ty` or `tz` are torques, not translations.
        is_torque = has_forces and re.search(f"t{_FORCE_END}", name.lower())
        if axis and kind != "other" and not is_torque:
            axes_by_set.setdefault((group, kind), {}).setdefault(axis, []).append(index)
    # If names give no kind of quantity, or only "rotation", a set with four axes is a quaternion.
    # A set with three axes and no kind is a position.
    # A set with three axes and the kind "rotation" is a rotation in an unknown representation ("turn").
    plain_kinds = {"": "position", "rotation": "turn"}
    named_sets = []
    for (group, kind), axes in axes_by_set.items():
        set_kind = plain_kinds.get(kind, kind)
        if kind in plain_kinds and ("w" in axes or len(axes) == 4):
            set_kind = "quaternion"
        named_sets.append(_NamedSet(group, set_kind, axes))
    return named_sets


def find_positions(names: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the indices of x, y, z of each position in the names; [] if there is none."""
    candidates = (named.find_places("xyz") for named in _group_names(names) if named.kind == "position")
    return [indices for indices in candidates if len(indices) == 3]


def find_arms(names: Sequence[str]) -> tuple[str, ...]:
    """Return the words that name arms, such as `left` and `right`; () unless each position has a different word."""
    # The sets of numbers that are a complete position. The group of a set has words such as `left`.
    positions = [named for named in _group_names(names) if named.kind == "position" and named.find_places("xyz")]
    groups = [position.group for position in positions]
    words = tuple(dict.fromkeys(word for group in groups for word in group))
    return words if len(groups) == len(words) > 1 and all(len(group) == 1 for group in groups) else ()


def has_word(name: str, arm: str) -> bool:
    """Return whether a name contains the word that names an arm."""
    # Names are compared by words, so that `left` is not in `leftover`.
    return arm.lower() in _split_words(name)


def decide_pose(
    names: Sequence[str],
    size: int,
    position: Sequence[int] | None = None,
    rotation: Sequence[int] | None = None,
    form: str | None = None,
    order: str | None = None,
    euler: str = "xyz",
    arm: str = "",
) -> PoseLayout:
    """Return which numbers form the pose. Indices that are not arguments are found by the names of the numbers.

    `order` of a quaternion is wxyz or xyzw; `euler` is the order of the axes of `rpy`. Three unnamed numbers are x, y,
    z. If names contain `arm`, only numbers with such names are used. Raises `ValueError` if the pose is ambiguous.
    """
    # `names` are the names of the `size` numbers, or []. `position` and `rotation` are indices that the mapping states.
    # `form` is a key of `SIZES`. None means that the mapping does not state a value.
    # The text of an error asks the user a question.
    # Find the pose among the numbers of this arm, by their names. The arguments None mean no indices in the mapping.
    # Convert the indices among the arm's numbers to indices among all numbers.
    arm_indices = [index for index, name in enumerate(names) if has_word(name, arm)] if arm else []
    if arm_indices:
        # Leave out the arm's word, since an arm may be called `r`, which is also a word for a rotation.
        word = rf"(?i)(?<![^\W_]){re.escape(arm)}(?![^\W_])"
        own_names = [re.sub(word, "", names[index]) for index in arm_indices]
        layout = decide_pose(own_names, len(own_names), None, None, form, order, euler)
        position = tuple(arm_indices[index] for index in layout.position)
        return layout._replace(position=position, rotation=tuple(arm_indices[index] for index in layout.rotation))
    rotation_size = SIZES[form or "quaternion"]
    # The mapping's indices must exist and differ.
    stated_indices = [*(position or ()), *(rotation or ())]
    if len({*stated_indices}) < len(stated_indices) or max(stated_indices, default=-1) >= size:
        used = ", ".join(map(str, stated_indices))
        problem = f"the mapping uses the indices {used} of {size} numbers"
        raise ValueError(f"{problem}; count from 0, and use each index once")
    is_size_plain = size == 3 or (size == 3 + rotation_size and (form or order))
    if position is None and not names and is_size_plain:  # the numbers are x, y, z, then the rotation (if any)
        position, rotation = range(3), rotation or range(3, size) or None
    is_by_name = position is None
    if position is None:
        positions = find_positions(names)
        if len(positions) != 1:
            lacking = f"Positions in the names: {len(positions) or 'none'}" if names else "The numbers have no names"
            raise ValueError(f"which numbers are x, y, z? {lacking}")
        position = positions[0]
        # Names such as `a`, `b` and `c` may be a rotation, so ask the user.
        if rotation is None and (open_rotation := _find_open_rotation(names)):
            raise ValueError(open_rotation.question)
    if rotation is None:
        # The group of a name is its words without a kind or axis, such as `left`.
        # If the names of the position have one group, the names of the rotation must have the same group.
        groups = {_parse_name(names[index])[0] for index in position} if names else set()
        group = groups.pop() if len(groups) == 1 else frozenset()
        layout = _find_rotation(names, tuple(position), group, form, order, euler, is_by_name=is_by_name)
        if not layout.rotation and (form or order or (is_by_name and may_have_rotation(names, layout.position))):
            raise ValueError("which numbers are the orientation? The names do not say")
        return layout
    if not {*rotation}.isdisjoint(position):
        raise ValueError("which numbers are the orientation? The mapping uses numbers whose names say x, y or z")
    if len(rotation) != rotation_size:
        needed = f"A {form or 'quaternion'} has {rotation_size} numbers, not {len(rotation)}"
        raise ValueError(f"which form does the rotation have? {needed}")
    own_rotations = _own_rotations(names, position)
    # The names may give an orientation for the position that differs from the numbers in the mapping.
    # The mapping's numbers are accepted only if they can be the same orientation in a different form.
    # The two forms must differ in the count of numbers, and the mapping's numbers must not be named like a rotation.
    is_other = any(len(own) == len(rotation) for own in own_rotations) or any(
        not named.isdisjoint(rotation) for named in _named_indices(names) if named not in own_rotations
    )
    if own_rotations and is_other and all(own.isdisjoint(rotation) for own in own_rotations):
        raise ValueError(OTHER_ROTATION)
    # One letter per named number, such as `xyzw`; "" if the names give no axes.
    axes = "".join(_parse_name(names[index])[2] for index in rotation if index < len(names))
    ordered = _order_quaternion(tuple(rotation), axes, order) if rotation_size == 4 else tuple(rotation)
    if form == "rpy" and sorted(axes) == [*"xyz"]:  # the names give the axis of each angle
        _require_every_axis(euler)
        ordered = tuple(ordered[axes.index(axis)] for axis in euler.lower())
    unit, angle_unit = find_units(names, position, ordered)
    return PoseLayout(tuple(position), ordered, form or "quaternion", unit=unit, angle_unit=angle_unit)


def _require_every_axis(euler: str) -> None:
    # Raises `ValueError` unless `euler`, an order of axes, has each of x, y and z once; `zyz` does not.
    if sorted(euler.lower()) != [*"xyz"]:
        raise ValueError(f"is rotation_order {euler!r}? The names give one angle for each of the axes x, y and z")


def _order_quaternion(indices: tuple[int, ...], axes: str, order: str | None) -> tuple[int, ...]:
    # Returns the four `indices` in the order w, x, y, z. Raises `ValueError` for an unknown or contradictory order.
    # `axes` are the axes in the numbers' names, such as `xyzw`. `order` is the mapping's order; None = not stated.
    named_order = axes if sorted(axes) == sorted("wxyz") else None
    if order is not None and named_order is not None and order != named_order:
        raise ValueError(f"is the quaternion {order}, as the mapping says, or {named_order}, as the names say?")
    order = named_order or order
    if order is None:
        raise ValueError("which number of the quaternion is w?")
    return tuple(indices[order.index(axis)] for axis in "wxyz")


def refuse_other_order(order: str | None, texts: Iterable[str]) -> None:
    """Raise `ValueError` if a text has the word for another order of quaternions than `order`, as in `quat_wxyz_0`."""
    words = {word for text in texts for word in _split_words(text)} & {"wxyz", "xyzw"}
    if order is not None and words and order not in words:
        raise ValueError(f"is the quaternion {order}, as the mapping says, or {words.pop()}, as the names say?")


def _find_rotation(
    names: Sequence[str],
    position: tuple[int, ...],
    group: _Group,
    form: str | None,
    order: str | None,
    euler: str,
    *,
    is_by_name: bool,
) -> PoseLayout:
    # Returns the layout of a position and the rotation whose names match. If no rotation matches, the layout has none.
    # The rotation is a set of numbers with at least three axes. Its names have the position's group or no group.
    # `group` has the position's words without a kind or axis, such as `left`.
    # `form`, `order` and `euler` are the mapping's values, as in `decide_pose`.
    # `is_by_name` is true if the names gave the position, and false if the mapping gave it.
    rotations = []
    for named_set in _group_names(names):
        shared = [index for axis_indices in named_set.axes.values() for index in axis_indices if index in position]
        if named_set.kind == "position" or len(named_set.axes) <= 2:
            continue
        if any(_parse_name(names[index])[1] for index in shared):
            raise ValueError("which numbers are x, y, z? The names of the numbers in `position` say orientation")
        if not shared:  # the rotation shares no number with the position
            rotations.append(named_set)
    own_rotations = _own_rotations(names, position)
    # `own` has the rotations whose names have the same words for an object as the position's names.
    # `matching` has the rotations that may belong to the position.
    own = [named_set for named_set in rotations if {*chain(*named_set.axes.values())} in own_rotations]
    matching = [
        named_set
        for named_set in rotations
        if named_set.group == group or not any(_object_words(names[k]) for k in chain(*named_set.axes.values()))
    ]
    if not is_by_name and (own or not (form or order)):
        # If the mapping gives the position, an orientation belongs to it only if the names of both have the same words.
        is_open = (matching and not group) or _hides_rotation(names, position)
        doubt = _NO_ORIENTATION if is_open and not own else ""
        if not own:
            return PoseLayout(position, doubt=doubt, unit=find_units(names, position)[0])
        matching = own
    if not is_by_name and not own:
        # The mapping states a rotation's form or order, so there must be a rotation.
        # Leave out rotations whose names have the object words of another position.
        taken = [
            _words_of(names, indices) for indices in _named_indices(names, "position") if indices.isdisjoint(position)
        ]
        matching = [
            named_set for named_set in matching if _words_of(names, chain(*named_set.axes.values())) not in taken
        ]
    if len({named_set.group for named_set in matching}) > 1:
        raise ValueError("which rotation belongs to the position? The names give several")
    if is_by_name and rotations and not matching:  # if the mapping gives the position, there may be none
        raise ValueError("which rotation belongs to the position? The names give only rotations of other objects")
    if not matching:
        return PoseLayout(position, unit=find_units(names, position)[0])
    # Prefer a set of numbers whose kind is the given form. Names such as `rx` give only axes, so they fit any form.
    stated_kind = (form or "").removesuffix("_rows")
    named_set = min(
        matching,
        key=lambda named: (
            named.kind != stated_kind,
            bool(form) and named.kind == "quaternion",
            _KIND_PREFERENCE.index(named.kind),
        ),
    )
    kind = form or named_set.kind
    if form and named_set.kind in ("quaternion", "rotvec") and named_set.kind != form:
        given = "quaternion" if named_set.kind == "quaternion" else "rotation vector"
        raise ValueError(f"is rotation_form {form!r}? The names give a {given}")
    if kind == "rpy" and named_set.axes.keys() == {*"xyz"}:
        _require_every_axis(euler)
    # The indices in the order of the form's axes; () if an axis is missing.
    indices = named_set.find_places({"quaternion": "wxyz", "rpy": euler.lower()}.get(kind, "xyz"))
    if kind == "quaternion" and len(indices) == 4:
        # The names give the order of the quaternion in the log. The mapping must not state a different order.
        axis_of_index = {index: axis for axis, axis_indices in named_set.axes.items() for index in axis_indices}
        ascending = tuple(sorted(indices))
        indices = _order_quaternion(ascending, "".join(axis_of_index[index] for index in ascending), order)
    if len(indices) != SIZES.get(kind):
        raise ValueError("which form does the rotation have? The names do not say")
    doubt = "" if form else _IMPLIED_CONVENTIONS.get(kind, "")
    return PoseLayout(position, indices, kind, doubt, *find_units(names, position, indices))


OTHER_ROTATION = "which rotation belongs to the position? The mapping gives one, the names another"
_NO_ORIENTATION = (
    "is read without an orientation, since the names of all orientations differ from those of the position; "
    "if it has one, write `quaternion` or `rotation`"
)


def _object_words(name: str) -> frozenset[str]:
    # Returns the words of a name that do not mean a quantity, an axis or a unit, such as `left` or `cup`.
    # The number in `obj_0_x` and `x0` belongs to the object, but the numbers in `pos_0` and `r_1_2` are indices.
    # `_KINDS` maps words to kinds of quantities, such as position.
    words = [word for word in _split_words(name) if word not in _UNITS]
    last = len(words)
    while last and words[last - 1].isdecimal():
        last -= 1
    if last and _KINDS.get(words[last - 1], "other") not in ("", "other"):
        words = words[:last]
    return frozenset(
        word
        for word in words
        # Keep words such as `target` or `wrist`, which have the kind "other", but also name an object.
        if not (
            _may_precede_unit(word)
            or _KINDS.get(word, "other") not in ("", "other")
            or re.fullmatch("[a-z][xyzw]", word)
        )
    )


def find_owner_doubt(part: str, names: Sequence[str], position: Sequence[int], source: str = "") -> str:
    """Return a warning if the position's names may not mean `part`, such as `eef`; "" = no warning. Raises `ValueError`
    if other names mean the part, or if a body's names mean a hand and `source`, the feature or topic, not the body.
    """
    own = [names[index] for index in position if index < len(names)]
    own_words = {word for name in own for word in _split_words(name)}
    kind, _, label = part.partition(".")
    wanted = _HAND_WORDS if kind == "eef" else frozenset(_split_words(label))
    # The name of an arm and a number, as in `left_x` and `x0`, are not the names of objects.
    objects = {word for name in own for word in _object_words(name) if not word.isdecimal()}
    objects -= {label, *_OWNERS} - _HAND_WORDS
    # The names fit the hand if they name no object.
    # The names fit a body if they contain no word for a hand, except words of the body's name.
    is_clear = not objects if kind == "eef" else own_words.isdisjoint(_HAND_WORDS - wanted)
    if kind != "eef" and any(word in _split_words(source) and not word.isdecimal() for word in wanted):
        is_clear = True
    if not own or wanted & own_words or (kind == "eef" and is_clear):
        return ""
    # Other names may be a position of the part if words such as `wrist` and `target` are ignored.
    others = (name for name in names if name not in own and wanted & {*_split_words(name)})
    parsed = (_parse_name(" ".join(word for word in _split_words(name) if word not in wanted)) for name in others)
    is_elsewhere = {*"xyz"} <= {axis for _, name_kind, axis in parsed if name_kind in ("", "position")}
    if is_elsewhere or not (is_clear or kind == "eef"):
        raise ValueError(f"which numbers are x, y, z of [{part}]? Those found are {', '.join(own)}")
    return f"is read from {', '.join(own)}; if that is right, write `position`" if kind == "eef" else ""


def _words_of(names: Sequence[str], indices: Iterable[int]) -> set[frozenset[str]]:
    # Returns the words that name objects, as one set for each name at `indices`, without duplicates.
    return {_object_words(names[index]) for index in indices if index < len(names)}


def _named_indices(names: Sequence[str], kind: str = "") -> Iterator[set[int]]:
    # Yields the indices of each set of numbers with three or more axes whose names mean `kind`; "" = not a position.
    for named_set in _group_names(names):
        if len(named_set.axes) > 2 and (named_set.kind == kind if kind else named_set.kind != "position"):
            yield {*chain(*named_set.axes.values())}


def _own_rotations(names: Sequence[str], position: Sequence[int]) -> list[set[int]]:
    # Returns the indices of each rotation whose names have the same words for an object as the position's names.
    words = _words_of(names, position)
    rotations = (indices for indices in _named_indices(names) if indices.isdisjoint(position))
    return [indices for indices in rotations if _words_of(names, indices) == words]


def _hides_rotation(names: Sequence[str], position: Sequence[int]) -> bool:
    # Returns whether a word for an object in the position's names hides a rotation.
    # For example, next to `wrist_x`, `wrist_qx` is a rotation, although `wrist` usually marks numbers of other kinds.
    words = _words_of(names, position)
    hidden = (name for name in names if _parse_name(name)[1] == "other" and _object_words(name) in words)
    rests = (" ".join(word for word in _split_words(name) if word not in _object_words(name)) for name in hidden)
    return any(_parse_name(rest)[1] in (*SIZES, "rotation", "euler") for rest in rests)


def may_have_rotation(names: Sequence[str], position: Sequence[int]) -> bool:
    """Return whether numbers outside the position may be an orientation: if one of their names means a rotation, or if
    at least three names give no quantity, since an orientation has at least three numbers.
    """
    other_names = [name for index, name in enumerate(names) if index not in position]
    # (group, kind) of each name outside the position, except names of another position.
    parsed = [
        (group, kind) for group, kind, axis in map(_parse_name, other_names) if not (axis and kind in ("", "position"))
    ]
    if any(kind in (*SIZES, "rotation", "euler") for _, kind in parsed) or _find_open_rotation(names) is not None:
        return True
    # `_SCALARS` has words such as `gripper` or `time`, whose numbers are never part of a pose.
    unexplained = [group for group, kind in parsed if not kind and group.isdisjoint(_SCALARS)]
    return len(unexplained) >= min(SIZES.values())


def _last_words(names: Sequence[str]) -> list[str]:
    # Returns the last word of each name, "" for a name without words.
    return ["".join(_split_words(name)[-1:]) for name in names]


class _OpenRotation(NamedTuple):
    # Three numbers whose names may mean a rotation. The user must decide whether they are a rotation.
    words: tuple[str, ...]  # last words of the three names
    question: str
    meaning: str
    settings: tuple[str, ...]  # lines for the mapping if the three numbers are a rotation


_OPEN_ROTATIONS = (
    _OpenRotation(
        ("a", "b", "c"),
        "are `a`, `b` and `c` KUKA angles, in degrees about the body's axes z, y and x?",
        "angles of a KUKA",
        ('rotation_form = "rpy"', 'rotation_order = "ZYX"', 'angle_unit = "deg"'),
    ),
    _OpenRotation(
        ("ax", "ay", "az"),
        "are `ax`, `ay` and `az` a rotation vector? If they are accelerations, write only `position`",
        "a rotation vector",
        ('rotation_form = "rotvec"',),
    ),
)


def _find_open_rotation(names: Sequence[str]) -> _OpenRotation | None:
    # Returns the kind of rotation that three names may mean, such as `a`, `b`, `c`; None if there is none.
    # Each of the three words, such as `a`, must be the end of exactly one name.
    # Three names do not mean a rotation if other names are a rotation or rates, or if a name ends in `d`.
    last_words = _last_words(names)
    has_rotation = any(len(named.axes) > 2 for named in _group_names(names) if named.kind != "position")
    # Rates are numbers such as `gyro_x` or `wx`. `ax` is not a rate here, since it may be part of a rotation vector.
    has_rates = any(
        kind == "other" and axis and word[0] != "a"
        for word, (_, kind, axis) in zip(last_words, map(_parse_name, names), strict=True)
    )
    if has_rotation or has_rates or "d" in last_words:
        return None
    return next((entry for entry in _OPEN_ROTATIONS if all(last_words.count(word) == 1 for word in entry.words)), None)


_KIND_PREFERENCE = ("quaternion", "rpy", "rotvec", "6d", "euler", "turn")
_IMPLIED_CONVENTIONS = {
    "rpy": "roll, pitch and yaw are read as angles in radians about the fixed axes x, y, z; if that is right, write "
    'rotation_form = "rpy" (some converters give these names to a rotation vector, rotation_form = "rotvec")',
    "6d": "six numbers are read as the first two columns of the rotation's matrix; if that is right, write "
    'rotation_form = "6d", else "6d_rows"',
}


def rotations_to_wxyz(values: Floats, form: str, order: str = "xyz", degrees: bool = False) -> Floats:
    """Convert rotations [n, SIZES[form]] to quaternions wxyz, [n, 4]; NaN if a row is not a rotation.

    `order` names the axes of `rpy`, as in scipy: lower case for fixed axes, upper case for axes of the body. Matrices
    are given row by row. Quaternions are returned unchanged.
    """
    if form == "quaternion":
        return values
    from scipy.spatial.transform import Rotation  # slow to import

    rows = values.reshape(len(values), -1, 3) if form == "matrix" else values
    if form.startswith("6d"):
        first, second = np.hsplit(values, 2)  # the third column or row is a cross product
        rows = np.stack([first, second, np.cross(first, second)], axis=2 if form == "6d" else 1)
    is_known = np.asarray(np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))
    if rows.ndim == 3:
        is_known[is_known] = np.linalg.det(rows[is_known]) > _MIN_DETERMINANT  # a rotation's determinant is 1
    quaternions = np.full((len(values), 4), np.nan)
    if is_known.any():
        chosen = rows[is_known]
        if rows.ndim == 3:
            rotations = Rotation.from_matrix(chosen)
        elif form == "rpy":
            rotations = Rotation.from_euler(order, chosen, degrees=degrees)
        else:
            rotations = Rotation.from_rotvec(chosen, degrees=degrees)
        quaternions[is_known] = rotations.as_quat()[:, [3, 0, 1, 2]]  # from scipy's order x, y, z, w
    return quaternions


_MIN_DETERMINANT, _MATRIX_SLACK, _NORM_SLACK = 0.9, 0.2, 0.5


def require_rotations(matrices: Floats, part: str) -> Floats:
    """Return the matrices, [n, 9], with NaN for non-rotations. Raises `RecordError` if most are not rotations."""
    is_known = np.isfinite(matrices).all(axis=1) & matrices.any(axis=1)
    known = matrices[is_known].reshape(-1, 3, 3)
    deviations = np.abs(known @ known.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2), initial=0.0)
    determinants = np.linalg.det(known)
    # The product of a rotation matrix and its transpose is the identity, and its determinant is 1.
    # The product may differ from the identity by 0.2 (`_MATRIX_SLACK`); the determinant must be at least 0.9.
    is_invalid = (deviations > _MATRIX_SLACK) | (determinants < _MIN_DETERMINANT)
    # A matrix that is not a rotation is an unknown pose. If most are bad, the indices or form are probably wrong.
    if 2 * is_invalid.sum() > len(known):
        first = int(is_invalid.argmax())
        reason = "its rows are not orthogonal unit vectors"
        if determinants[first] < _MIN_DETERMINANT:
            reason = f"its determinant is {determinants[first]:.3g}"
        remedy = "Check the indices or names in `rotation`, or write another `rotation_form`."
        refuse_field(f"the numbers of the rotation are not a rotation matrix: {reason}", remedy, part)
    is_unknown = np.ones(len(matrices), dtype=np.bool_)
    is_unknown[is_known] = is_invalid
    return np.where(is_unknown[:, None], np.nan, matrices)


def find_forces(names: Sequence[str]) -> list[int]:
    """Return the indices of forces x, y, z with names such as `fx` or `force.z`; [] unless each axis has one name."""
    # The pattern's group is the axis; "" for a name that is not a force.
    matches = [re.search(_FORCE_PATTERN, name.lower()) for name in names]
    axes = [match[1] if match else "" for match in matches]
    return [axes.index(axis) for axis in "xyz"] if sorted(filter(None, axes)) == ["x", "y", "z"] else []


def decide_forces(names: Sequence[str], size: int) -> list[int]:
    """Return the indices of a wrench's forces x, y, z. Raises `ValueError` if names and size do not determine them."""
    if forces := find_forces(names):
        return forces
    # Three numbers are the forces if they have no names, or if the names give only axes.
    is_other = any(
        says_torque(name)
        or not (re.search("f(?:orces?)?[^a-z]*[xyz]|force|wrench", name.lower()) or _parse_name(name)[1] == "")
        or not {"mm", "cm", "deg", "rad"}.isdisjoint(_UNITS.get(word) for word in _split_words(name))
        for name in names
    )
    if size == 3 and not is_other:
        plain_axes = [_parse_name(name)[2] for name in names]
        if not any(plain_axes):
            return [0, 1, 2]
        if sorted(plain_axes) == ["x", "y", "z"]:
            return [plain_axes.index(axis) for axis in "xyz"]
    raise ValueError("which three numbers are the forces x, y, z?")


def require_quaternions(quaternions: Floats, part: str) -> None:
    """Raise `RecordError` if the median norm of quaternions [n, 4], except unknown and zero ones, is far from 1."""
    # The norm is far from 1 if it differs by more than 0.5, `_NORM_SLACK`.
    with np.errstate(over="ignore"):  # a norm may overflow to infinity
        norms = np.linalg.norm(quaternions[np.isfinite(quaternions).all(axis=1)], axis=1)
    norms = norms[norms > 0]  # a quaternion of zeros means an unknown orientation
    if len(norms) and abs(np.median(norms) - 1) > _NORM_SLACK:
        remedy = "Check the indices or names in `position` and `rotation`; divide scaled quaternions by their norm."
        refuse_field(
            f"the numbers of the rotation are not a quaternion: its norm is {np.median(norms):.3g}", remedy, part
        )


FILL_IN = '"FILL IN"'  # placeholder; a mapping with it is rejected


def suggest_pose(names: Sequence[str], size: int) -> list[str]:
    """Return lines for the mapping that make an ambiguous pose unambiguous; [] if the names are unambiguous."""
    # The lines have placeholders to fill in, or guesses that are marked with CHECK.
    try:
        decide_pose(names, size)
        return []
    except ValueError as question:
        if "unit" in str(question):  # no line in the mapping resolves ambiguous units
            return []
        positions, problem = find_positions(names), str(question)
    lines = []
    # Six or seven unnamed numbers are x, y, z and a rotation, so the mapping needs lines only for the rotation.
    if len(positions) != 1 and (names or size not in (6, 7)):
        choices = ", from 0"
        if positions:
            choices = f": {' or '.join(str(list(indices)) for indices in positions)}"
        lines.append(f"position = {FILL_IN}  # indices of x, y, z{choices}")
    # Kind of quantity -> largest number of axes in a set of this kind.
    # If the names give several rotations, do not suggest any of them.
    axes_of_kind: dict[str, int] = {}
    for named_set in [] if "which rotation" in problem else _group_names(names):
        axes_of_kind[named_set.kind] = max(len(named_set.axes), axes_of_kind.get(named_set.kind, 0))
    # The kinds of quantities that may be a rotation have at least three axes. `turn` is a rotation in an unknown form.
    kinds = {kind for kind, axes in axes_of_kind.items() if axes > 2}
    if positions and (open_rotation := _find_open_rotation(names)):
        indices = [_last_words(names).index(word) for word in open_rotation.words]
        lines += [f"rotation = {indices}  # CHECK: {open_rotation.meaning}", *open_rotation.settings]
        return [*lines, *(f"# or, without an orientation, only: position = {list(place)}" for place in positions)]
    if axes_of_kind.get("turn") == SIZES["matrix"]:
        lines.append('rotation_form = "matrix"  # CHECK: row by row')
    elif axes_of_kind.get("turn") == SIZES["6d"]:
        lines.append(f'rotation_form = {FILL_IN}  # "6d" or "6d_rows"')
    elif kinds & {"euler", "turn"} or (not names and size == 6):
        lines += [f'rotation_form = {FILL_IN}  # "rpy" or "rotvec"', 'rotation_order = "xyz"  # CHECK: order of "rpy"']
    elif (len(positions) == 1 and axes_of_kind.get("quaternion") == SIZES["quaternion"]) or (not names and size == 7):
        lines.append(f'quaternion_order = {FILL_IN}  # "xyzw" or "wxyz"')
    elif len(positions) == 1:
        # The line for the rotation may be left out, unless the names give several rotations.
        omission = "" if "several" in problem else "; delete this line if there is none"
        forms = 'quaternion_order = "xyzw" or "wxyz", or rotation_form = "rpy", "rotvec", "6d" or "matrix"'
        lines += [
            f"position = {list(positions[0])}",
            f"rotation = {FILL_IN}  # indices of the orientation, from 0{omission}",
            f"# for an orientation, also write: {forms}",
        ]
    elif size > 3:
        lines.append("# for an orientation with other names, write: quaternion = [four indices] and quaternion_order")
    return lines
