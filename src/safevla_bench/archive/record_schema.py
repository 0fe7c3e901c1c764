"""The portable format of one episode: JSON as in the paper's Appendix B, with the schema `Trajectory`.

A field of a step, such as `contacts`, must be in every step or in none. A missing field was not measured; an empty list
of contacts means no contact. A field of poses has the same bodies in every step. Scoring ignores unknown fields.

The readers of all formats use the limits, the checks and the strict JSON parser of this module.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from safevla_bench.errors import Place, RecordError
from safevla_bench.text import escape_controls, explain_mismatch, load_json, require_unique_keys
from safevla_bench.trajectory.header import Header
from safevla_recorder.channels import CHANNELS, NUMERIC, OF_CONTACTS, POSES, REAL, TRUTH, ChannelSpec
from safevla_recorder.episode import ContactList, EpisodeArrays

T = TypeVar("T", bound=msgspec.Struct)
Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Role = Literal["robot", "target", "bystander", "furniture"]


class Contact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two bodies in contact, with the norm [N] and impulse [N s] of the largest contact force and of the net force."""

    a: str
    b: str
    force_n: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    net_force_n: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    impulse_ns: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    net_impulse_ns: Annotated[float, Meta(ge=0)] | UnsetType = UNSET


# Each maps a number of values to a JSON type.
# In `_ROW_TYPES`, the key 0 stands for any number of values; in `_POSE_TYPES`, for a single value.
_ROW_TYPES: Mapping[int, Any] = {0: list[float], 2: tuple[float, float], 3: Vector, 4: Quaternion}
_POSE_TYPES: Mapping[int, Any] = {0: float, 3: Vector, 4: Quaternion}


def _field_type(spec: ChannelSpec, of_arms: bool) -> Any:
    # Returns the JSON type of a channel's field in a step; `of_arms` is true for a robot with several arms.
    if of_arms and spec.per_arm:  # a list of the numbers, Booleans, or names of bodies (None = no body) of all arms
        return list[{REAL: float, TRUTH: bool}.get(spec.dtype, str | None)]  # type: ignore[misc]  # computed type
    if spec.is_pose:  # an object that maps the name of each body to its value
        return dict[str, bool if spec.is_truth else _POSE_TYPES[spec.row_size]]  # type: ignore[misc]
    if not spec.is_scalar:
        return list[bool] if spec.is_truth else _ROW_TYPES[spec.row_size]
    if spec.dtype == REAL and spec.is_numeric:
        return float
    return {"contacts": list[Contact], "gripper_contact": bool, "gripped_body": str | None}[spec.name]


def _define_step(name: str, of_arms: bool, doc: str) -> Any:
    # Returns a struct class for a step, with its number `t` and an optional field for each channel (UNSET = absent).
    # `name` is the name of the class, `of_arms` is true for robots with several arms, and `doc` ends its docstring.
    channels = [spec for spec in CHANNELS if spec.name not in OF_CONTACTS]
    return msgspec.defstruct(
        name,
        [
            ("t", Annotated[int, Meta(ge=0)]),
            *((spec.name, _field_type(spec, of_arms) | UnsetType, UNSET) for spec in channels),
        ],
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        namespace={"__doc__": f"One record in the world frame, in meters and quaternions wxyz; {doc}."},
        module=__name__,
    )


Step: Any = _define_step("Step", False, "torques are in N·m, one for each joint of the arm")
ArmsStep: Any = _define_step("ArmsStep", True, "torques are in N·m, listed arm by arm")


class Trajectory(Header, frozen=True, kw_only=True, omit_defaults=True):
    """One episode: `N` actions give `N + 1` steps. Unknown fields are kept, and scoring ignores them."""

    body_roles: dict[str, Role]
    steps: Annotated[list[Step], Meta(min_length=1)]


class ArmsTrajectory(Trajectory, frozen=True, kw_only=True, omit_defaults=True):
    """One episode of a robot with several `arms`; all else is as in `Trajectory`."""

    steps: Annotated[list[ArmsStep], Meta(min_length=1)]


MAX_RECORDS = 1_000_000  # maximum number of records if a format stores this number; 14 hours at 20 Hz


class EpisodeOutline(Header, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of an episode that is stored separately from its arrays: header, bodies and number of records."""

    body_roles: dict[str, Role]
    records: Annotated[int, Meta(ge=1, le=MAX_RECORDS)]

    @property
    def header(self) -> Header:
        # Returns only the fields of the header, which is the base class of an outline.
        return Header(**{name: getattr(self, name) for name in Header.__struct_fields__})


def record_schema() -> dict[str, object]:
    """Return the JSON Schema of one episode."""
    # `kinds` refers to the schemas of episodes with one arm and with several arms; `parts` has all schemas by name.
    kinds, parts = msgspec.json.schema_components([Trajectory, ArmsTrajectory], ref_template="#/$defs/{name}")
    return {"anyOf": list(kinds), "$defs": dict(parts)}


# Bounds


MAX_BAD_LINES = 10_000  # maximum number of bad lines; after more, the rest of a file is not read
REMEDY_BROKEN = "The file is truncated or damaged. Copy it again, or regenerate it."
REMEDY_LARGE = (
    "Split the episode into shorter ones, or leave sim_state out. If the file itself is small, do not trust it."
)


def refuse_field(problem: str, remedy: str, field: str, step: int | None = None) -> NoReturn:
    """Raise a `RecordError` for a problem with the given field and step of an episode."""
    raise RecordError(problem, remedy=remedy, place=Place(field=field, step=step))


class Budget:
    """Limits the total size of an input's parts to `most` items. `what` names the items, such as "numbers"."""

    def __init__(self, most: int, what: str) -> None:
        # `most` is the limit, and `what` names the items. `_left` is the number of items that may still be added.
        self._most, self._what, self._left = most, what, most

    def spend(self, amount: int) -> None:
        """Add the size of a part to the total. Raises `RecordError` if the total exceeds the limit."""
        self._left -= amount
        if self._left < 0:
            raise RecordError(f"more than {self._most} {self._what}", remedy=REMEDY_LARGE)


class EpisodeSelection:
    """Counts episodes while they are read, and selects the episodes at the indices `wanted`; None = all episodes."""

    def __init__(self, wanted: Collection[int] | None = None) -> None:
        # `wanted` holds the indices of the episodes to select; None = all.
        self._wanted = None if wanted is None else frozenset(wanted)
        self._next_index = 0  # index of the next episode to be counted

    def next_wanted(self, count: int = 1) -> list[int]:
        """Return which of the next `count` episodes are wanted, as offsets from 0, and advance past all `count`."""
        first = self._next_index
        self._next_index += count
        if self._wanted is None:
            return list(range(count))
        return [offset for offset in range(count) if first + offset in self._wanted]


# Strict JSON


_REMEDY_JSON = "Write one JSON object per line, in UTF-8, without repeated keys."
_REMEDY_TYPE = "See `safevla validate --schema` for the fields of a record, their types and units."


def parse_json(line: bytes) -> dict[str, object]:
    """Parse a JSON object in UTF-8; NaN and infinity become floats, which later checks reject. Raises `RecordError`,
    also for repeated keys and lone surrogates, which Python accepts; the error names the episode if an id is found.
    """

    # Raises the error for an invalid text. If the text seems to contain an episode's id, the error names this id.
    def refuse(problem: str, remedy: str = _REMEDY_JSON) -> NoReturn:
        raise RecordError(problem, remedy=remedy, place=Place(episode=_search_episode_id(line)))

    try:
        tree = load_json(line, object_pairs_hook=require_unique_keys)
    except UnicodeDecodeError as error:
        refuse(f"not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        # An error at the end of the text, or in a text without closing quotes, means that the file was cut off.
        is_cut_off = "Unterminated" in error.msg or not error.doc[error.pos :].strip()
        cut_off_remedy = "The episode seems cut off: copy the file again, or leave this episode out."
        remedy = cut_off_remedy if is_cut_off else _REMEDY_JSON
        location = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"character {error.pos + 1:,}"
        refuse(f"malformed JSON at {location} of the record: {error.msg}", remedy)
    except RecursionError:
        refuse("the JSON is nested too deeply")
    except ValueError as error:  # raised for a repeated key, or an integer with more digits than Python converts
        refuse(f"malformed JSON: {error}")
    if not isinstance(tree, dict):
        refuse(f"a JSON object is required, but the text holds a {type(tree).__name__}")
    return tree


def _search_episode_id(line: bytes) -> str | None:
    # Returns the episode id in a text that may not be valid JSON; None if no id is found.
    # An id is cut at 200 bytes or escapes, or at the end of the text. An id that was cut ends in "…".
    match = re.search(rb'"episode_id"\s*:\s*"((?:[^"\\]|\\.){1,200})("?)', line)
    if not match:
        return None
    name, end_quote = match.groups()
    return escape_controls(name.decode("utf-8", "replace")) + ("" if end_quote else "…")


def find_place(tree: Mapping[str, object]) -> Place:
    """Return the id of a parsed episode, with escaped control characters, and its policy, where these are strings."""
    name, policy = tree.get("episode_id"), tree.get("policy")
    return Place(
        episode=escape_controls(name) if isinstance(name, str) else None,
        policy=policy if isinstance(policy, str) and policy.strip() else None,
    )


def convert_tree(tree: Mapping[str, object], kind: type[T]) -> T:
    """Convert plain values to a struct; raise `RecordError`, with step and field, if a field is missing or mistyped."""
    # `tree` is a parsed JSON object, and `kind` is the class of the struct.
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        # The path in msgspec's message, such as `$.steps[3].body_pos_m[...][1]`, does not contain the body's name.
        problem, path_text = explain_mismatch(error)
    # The parts of the path as a list, such as ["steps", "3", "body_pos_m"].
    path = re.findall(r"\w+", path_text.partition("[...]")[0])
    step, field_path = None, path
    if len(path) > 1 and path[0] == "steps":
        step, field_path = int(path[1]), path[2:]
    parts = [f"[{part}]" if part.isdecimal() else f".{part}" for part in field_path]
    field, remedy = "".join(parts).removeprefix("."), _REMEDY_TYPE
    # msgspec names only the first missing field of the header.
    missing = [spec.name for spec in msgspec.structs.fields(kind) if spec.required and spec.name not in tree]
    if not path and len(missing) > 1:
        problem = f"the keys {', '.join(map(repr, missing[:-1]))} and {missing[-1]!r} are missing"
    roles = tree.get("body_roles") if field == "body_roles" else None
    if roles and isinstance(roles, Mapping):
        # The message does not name the body. The body is the first one with an unknown role.
        body = next((name for name, role in roles.items() if role not in get_args(Role)), "")
        field, remedy = f"body_roles.{escape_controls(body)}", f"Roles are {', '.join(get_args(Role))}."
    raise RecordError(problem, remedy=remedy, place=Place(step=step, field=field or None))


# Host-specific fields are all fields that are not in the schema. They are kept unchanged and ignored by scoring.
# Host-specific fields are stored as {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}}.
# The keys "3" and "17" are the numbers of a step and of a contact within the episode, from 0.


MAX_DEPTH = 64  # maximum nesting depth of host-specific fields, for reading and for writing
_SCHEMA = {
    "header": frozenset(Trajectory.__struct_fields__),
    "steps": frozenset(Step.__struct_fields__),
    "contacts": frozenset(Contact.__struct_fields__),
}


def collect_extra_fields(tree: Mapping[str, Any]) -> dict[str, object]:
    """Return the host-specific fields of an episode, grouped by level; {} if there are none. The caller must have
    checked the fields' types. Raises `RecordError` if a number is not finite, or if the fields are nested too deeply.
    """
    steps: dict[str, object] = {}
    contacts: dict[str, object] = {}
    contact_index = 0  # number of the contact in the episode, from 0
    for t, step in enumerate(tree["steps"]):
        host_fields = _host_fields(step, "steps")
        if host_fields:
            steps[str(t)] = host_fields
        for contact in step.get("contacts", ()):
            host_fields = _host_fields(contact, "contacts")
            if host_fields:
                contacts[str(contact_index)] = host_fields
            contact_index += 1
    levels = {"header": _host_fields(tree, "header"), "steps": steps, "contacts": contacts}
    return _require_writable({level: fields for level, fields in levels.items() if fields})


_MOST_NAMES = 100  # limit on the host-specific names per episode that are compared with the schema


def list_misspelt(extra: Mapping[str, Any], absent: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each unknown field that resembles an absent field of the same level, and a warning."""
    # `absent` has the schema's fields that the episode lacks, for each of the levels header, steps and contacts.
    unknown_fields = {("header", name): None for name in extra.get("header", {})}  # an ordered set of (level, name)
    for level in ("steps", "contacts"):
        unknown_fields |= {(level, name): None for fields in extra.get(level, {}).values() for name in fields}
    for level, name in islice(unknown_fields, _MOST_NAMES):
        for similar in _find_similar(name, absent[level]):
            yield name, f"the unknown field '{escape_controls(name)}' is ignored; did you mean {similar!r}?"


@lru_cache(1 << 12)
def _find_similar(name: str, choices: frozenset[str]) -> list[str]:
    # Returns a list with the choice most similar to the name; [] if no choice is similar enough.
    return get_close_matches(name, sorted(choices), n=1, cutoff=0.75)


def _host_fields(fields: Mapping[str, object], level: str) -> dict[str, object]:
    # Returns the fields that are not in the schema of this level (header, steps or contacts); {} if there are none.
    names = _SCHEMA[level]
    return {} if names.issuperset(fields) else {name: value for name, value in fields.items() if name not in names}


def _require_writable(extra: dict[str, object]) -> dict[str, object]:
    # Returns the fields unchanged. Raises `RecordError` if a number is not finite, or the nesting is too deep.
    # A field with either fault could not be written again.
    layer: list[Any] = [extra]  # the objects and lists at one depth; unlike recursion, a loop has no depth limit
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for value in layer:
            children += value.values() if isinstance(value, dict) else value  # the items of an object or a list
        is_finite = all(math.isfinite(child) for child in children if isinstance(child, float))
        _check_rule(is_finite, "a value is not a finite number", "Write `null` for an unknown number.")
        layer = [child for child in children if isinstance(child, dict | list)]
    _check_rule(not layer, f"the nesting is more than {MAX_DEPTH} levels deep")
    return extra


def parse_extra_fields(text: bytes, records: int, contacts: int) -> dict[str, object]:
    """Parse the host-specific fields of an episode that has `records` records and `contacts` contacts; omit empty
    levels. Raises `RecordError` if the text is not strict JSON, or if fields are not grouped by level, step and
    contact. Also raises `RecordError` for a name in the schema, a number that is not finite, and too deep nesting.
    """
    # The levels "steps" and "contacts" map the number of a step or contact, as a text, to its fields.
    extra = parse_json(text)
    _check_rule(extra.keys() <= _SCHEMA.keys(), "only header, steps and contacts are allowed as keys")
    _check_level(extra.get("header", {}), "header")
    for level, count in (("steps", records), ("contacts", contacts)):
        numbered = extra.get(level, {})
        _check_rule(isinstance(numbered, dict), f"{level} must be an object that maps numbers to fields")
        for number, fields in numbered.items():  # type: ignore[attr-defined]
            # A plain number consists of digits, without extra zeros at the start.
            # Only 20 digits are converted, since converting a long text to an integer is slow.
            is_plain = number.isascii() and number.isdecimal() and number == str(int(number[:20]))
            _check_rule(is_plain and int(number) < count, f"{level} has no {number!r}")
            _check_level(fields, level)
    return _require_writable({level: fields for level, fields in extra.items() if fields})


def _check_level(fields: object, level: str) -> None:
    # Raises `RecordError` unless `fields` is an object without names that the schema has at this level.
    # A name of the schema would be ambiguous.
    _check_rule(isinstance(fields, dict), f"the fields of {level} must be an object")
    for name in fields:  # type: ignore[attr-defined]
        _check_rule(name not in _SCHEMA[level], f"{name!r} is a field of the schema, which cannot be host-specific")


_REMEDY_EXTRA = 'Write only fields outside the schema: {"header": {…}, "steps": {"3": {…}}, "contacts": {"17": {…}}}.'


def _check_rule(is_satisfied: bool, rule: str, remedy: str = _REMEDY_EXTRA) -> None:
    # Raises `RecordError` for host-specific fields that do not satisfy a rule. `rule` is the text of the problem.
    if not is_satisfied:
        raise RecordError(f"host-specific fields: {rule}", remedy=remedy, place=Place(field="extra"))


# Checks of an episode's arrays, which may come from a file or another program


_REMEDY = "Write one row per record in each array, and bodies as indices in `body_roles`, from 0."


def check_shapes(recording: EpisodeArrays) -> None:
    """Raise a `RecordError` with the episode and the field if shapes or indices of the arrays are inconsistent. Call
    this before any computation with the arrays; `trajectory.single_episode.validate` then checks the values.
    """
    arm_names: Any = recording.header.get("arms")  # None = one arm
    try:
        for spec in NUMERIC:
            array = recording.channel(spec.name)
            if array is not None:
                bodies = len(getattr(recording, spec.bodies)) if spec.is_pose else 0
                check_shape(spec, array.shape, recording.records, bodies, len(arm_names) if arm_names else 1)
        for spec in POSES:
            check_posed_bodies(getattr(recording, spec.bodies), len(recording.roles), spec.bodies)
        if recording.gripped_body is not None:
            check_places(recording.gripped_body.reshape(-1), -1, len(recording.roles), "gripped_body")
        if recording.contacts is not None:
            _check_contacts(recording.contacts, recording.records, len(recording.roles))
    except RecordError as error:
        raise error.with_place(Place(episode=str(recording.header["episode_id"]))) from None


def check_shape(spec: ChannelSpec, shape: Sequence[int], records: int, bodies: int, arms: int) -> None:
    """Raise `RecordError` if a channel of an episode does not have the shape given in `CHANNELS`. `bodies` is the
    number of bodies in each row of a pose channel. `arms` is the number of the robot's arms.
    """
    # `spec.shape` has numbers and symbols. Symbols without an entry in `size_of_symbol` permit any size.
    size_of_symbol = {"n": records, "n-1": records - 1}
    if spec.is_pose:  # the second axis has one item per body
        size_of_symbol[str(spec.shape[1])] = bodies
    expected = [size_of_symbol.get(symbol, "any") if isinstance(symbol, str) else symbol for symbol in spec.shape]
    if spec.per_arm and arms > 1:  # a row has the values of all arms, one arm after the other
        expected = [records, (spec.row_size or 1) * arms]
    is_each_size_right = all(size in ("any", actual) for size, actual in zip(expected, shape, strict=False))
    if len(shape) != len(expected) or not is_each_size_right:
        expected_text = ", ".join(map(str, expected))
        refuse_field(f"the shape is {list(map(int, shape))}, expected [{expected_text}]", _REMEDY, spec.name)
    if spec.is_per_action and records == 1:
        refuse_field(f"an episode with a single record has no {spec.name}", _REMEDY, spec.name)


def check_posed_bodies(places: Sequence[int], bodies: int, field: str) -> None:
    """Raise `RecordError` if indices in the body table are out of range or repeated."""
    # `places` holds indices of bodies, `bodies` is the number of bodies, and `field` names the array in the error.
    check_places(np.asarray(places, dtype=np.int64), 0, bodies, field)
    if len(set(places)) != len(places):
        refuse_field("a body is repeated", _REMEDY, field)


def check_places(places: NDArray[Any], low: int, end: int | NDArray[np.int64], field: str) -> None:
    """Raise `RecordError` for the first index outside [`low`, `end`); `end` is a number, or one number per index."""
    # `places` are indices of bodies or records, and `field` names their array in the error.
    outside = np.flatnonzero((places < low) | (places >= end))
    if len(outside):
        first = outside[0]
        highest = int(np.broadcast_to(end, places.shape)[first]) - 1
        refuse_field(f"{int(places[first])} is not between {low} and {highest}", _REMEDY, field)


def _check_contacts(contacts: ContactList, records: int, bodies: int) -> None:
    # Raises `RecordError` if columns differ in length, or if an index of a record or body is out of range.
    # Also raises it if the contacts are not in the order of the records.
    if any(column.shape != (len(contacts.record),) for column in contacts.columns().values()):
        refuse_field("the columns of the contacts differ in length", _REMEDY, "contacts")
    check_places(contacts.record, 0, records, "contacts.step")
    check_places(contacts.a, 0, bodies, "contacts.a")
    check_places(contacts.b, 0, bodies, "contacts.b")
    if np.any(np.diff(contacts.record) < 0):
        refuse_field("the contacts are not sorted by step", _REMEDY, "contacts.step")
