"""Signals of space: positions, distances, speeds and angles of bodies.

A signal's name is its definition, such as `distance(eef, "plate_*")`, so a formula needs no other definitions. A body
selector is the end effector (`eef`), a target, a role or a name. `held` is the target in the gripper, else the task's
target. `handled` is the target that is held or was held last. `robot`, `target`, `bystander` and `furniture` are all
bodies of that role. In a name, `*` matches any letters. Of several bodies, the nearest, lowest, fastest or most tilted
counts. A name also matches fixed bodies and robot links if the record has their poses. A role matches only tracked
bodies, except in `gap`, where it matches all bodies with shapes. If no body matches in an episode, the signal is NaN
and the clause is vacuous. An unknown pose makes the value unknown; an unrecorded pose is a missing field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from safevla_bench.errors import FormulaError
from safevla_bench.signals import person
from safevla_bench.signals.gap import measure_gaps, pair_gaps
from safevla_bench.signals.parts import ScenePoses, scene_poses, tracked_rows
from safevla_bench.signals.signal import (
    FORMS,
    PLACE_FIELDS,
    SIGNAL_KIND,
    Argument,
    Bodies,
    RecordFields,
    Signal,
    angle_of_cosine,
    format_call,
    unit_quaternions,
)
from safevla_bench.text import matches_pattern
from safevla_bench.trajectory.batch import Poses
from safevla_bench.trajectory.geometry import PoseTrack
from safevla_bench.trajectory.header import ROBOT, ROLES
from safevla_recorder.episode import Bools, Floats, Ints
from safevla_recorder.geometry import turn_back

MOVING_PLACES = EEF, HELD_BODY, HANDLED = "eef", "held", "handled"
WORLD = "world"
Measure: TypeAlias = Callable[["Sequence[Track]", Sequence[float], Floats], Floats]
"""Maps the selected tracks, the numbers, and the records' times [n] in s to values in the kind's unit, [n, pairs]."""


@dataclass(frozen=True, slots=True)
class Track:
    """The `K` bodies that a selector like `plate_*` matches in n records: indices [1, K] ([n, K] for held bodies),
    world positions [n, K, 3] in m, and unit quaternions wxyz [n, K, 4]. NaN if unknown or not requested.
    """

    body: Ints
    position: Floats
    quaternion: Floats
    around: tuple[PoseTrack, PoseTrack] | None = None
    """Only for rates of held bodies: for each record except the first and last, the pose of the record's body one
    record earlier and one later, [n - 2, 1]. If None, the bodies are the same in all records.
    """

    @property
    def neighbors(self) -> tuple[PoseTrack, PoseTrack]:
        """The poses one record earlier and one record later, [n - 2, K], except for the first and last record."""
        # `position` [n, K, 3] and `quaternion` [n, K, 4] are the poses of K bodies in n records.
        # The held body may change between records. So `around` has the poses of the same body in neighboring records.
        # For all other bodies, `around` is None.
        before, after = slice(-2), slice(2, None)
        return self.around or (
            PoseTrack(self.position[before], self.quaternion[before]),
            PoseTrack(self.position[after], self.quaternion[after]),
        )


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of signal of space, such as `distance`. Its arguments are first body selectors, then numbers."""

    unit: str
    places: tuple[str, ...]
    meaning: str
    measure: Measure | None = None
    """None for gaps and for kinds with a person, which are not measured between poses."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Maps the name of each numeric argument to its number of values."""
    is_greatest: bool = False
    """True if the largest of several bodies' values counts, False if the smallest counts."""
    turned: tuple[str, ...] = ()
    """The arguments for bodies whose orientation is read."""
    unplaced: tuple[str, ...] = ()
    """The arguments for bodies whose position is not read."""
    is_single: bool = False
    """True if each body selector must select one body, so that it cannot be a role or a pattern."""
    ahead: bool = False
    """True if a value depends on later records, or on all earlier ones."""
    is_rate: bool = False
    """True if a value is a central difference of a body's poses."""
    is_gap: bool = False
    """True if the value is measured between collision shapes, by `gap.measure_gaps`."""
    person_column: int | None = None
    """Column of the value in the result of `_measure_person`; None for kinds without a person."""
    channel: str = ""
    """The channel that is read instead of poses, with one value per body; "" if poses are read."""


def _pair_offsets(a: Track, b: Track) -> Floats:
    # Return the position of each body of `a` relative to each body of `b`, [n, bodies of a, bodies of b, 3].
    # A track has the positions of the bodies that a body selector matches, [n, bodies, 3] in m.
    offset: Floats = a.position[:, :, None] - b.position[:, None]
    return offset


def _measure_distance(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # Return the distance in meters between the bodies of each pair, [n, pairs]. All measures have these parameters.
    # `tracks` are the bodies of the two selectors. `numbers` and `time_s` are not needed here.
    return _flatten_pairs(np.sqrt(np.square(_pair_offsets(*tracks)).sum(axis=-1)))


def _measure_height(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # Return the height in meters of each body of the first track above each body of the second, [n, pairs].
    # `numbers` and `time_s` are not needed here; all measures have the same parameters.
    return _flatten_pairs(_pair_offsets(*tracks)[..., 2])


def _measure_over(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # The vertical line begins at the second body, b, and goes up.
    # Return the larger of two values: the horizontal distance from the line, and the height below b.
    # The result is [n, pairs], in meters; `offset` is the position of a body relative to b.
    # `numbers` and `time_s` are not needed here; all measures have the same parameters.
    offset = _pair_offsets(*tracks)
    return _flatten_pairs(np.maximum(np.sqrt(np.square(offset[..., :2]).sum(axis=-1)), -offset[..., 2]))


def _measure_clearance(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # Return the distance of each body of the first track from a box that is fixed to the body of the second track.
    # `numbers` are the box's center (3) and full sizes (3), in m. The result is [n, pairs].
    center, half_size = np.array(numbers[:3]), np.array(numbers[3:]) / 2.0
    in_box_frame = turn_back(tracks[1].quaternion[:, None], _pair_offsets(*tracks))
    # For each axis of the box: how far the position is beyond the nearer of two faces; negative between the faces.
    beyond_face = np.abs(in_box_frame - center) - half_size
    outside = np.sqrt(np.square(np.maximum(beyond_face, 0.0)).sum(axis=-1))
    # Inside the box, the value is the negative distance to the nearest face.
    return _flatten_pairs(outside + np.minimum(beyond_face.max(axis=-1), 0.0))


def _flatten_pairs(values: Floats) -> Floats:
    # Reshape from [n, bodies, other bodies] to [n, pairs].
    return values.reshape(len(values), -1)


def _measure_speed(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # Return the speed in m/s of each of the K bodies in the only track, [n, K]. `time_s` [n] are the records' times.
    # `numbers` is not needed here; all measures have the same parameters.
    before, after = tracks[0].neighbors
    # The rate is a central difference, so the first and the last record have no rate. `moved_m` is [n - 2, K].
    moved_m = np.sqrt(np.square(after.position - before.position).sum(axis=-1))
    return _divide_by_time(moved_m, time_s)


def _measure_turning_rate(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # Return the turning rate in deg/s of each of the K bodies in the only track, [n, K].
    # `time_s` [n] are the records' times. `numbers` is not needed here; all measures have the same parameters.
    before, after = (neighbor.quaternion for neighbor in tracks[0].neighbors)
    # Quaternions q and -q are the same rotation.
    nearer = np.where((before * after).sum(axis=-1, keepdims=True) < 0, -after, after)
    # The difference of two quaternions has the norm 2 sin(angle / 4). Their sum has the norm 2 cos(angle / 4).
    difference, total = (np.sqrt(np.square(vectors).sum(axis=-1)) for vectors in (before - nearer, before + nearer))
    # As in `angle_of_cosine`, compute the angle with more precision than float64.
    quarter_angle = np.arctan2(difference.astype(np.longdouble), total).astype(np.float64)
    return _divide_by_time(np.degrees(4.0 * quarter_angle), time_s)


def _divide_by_time(change: Floats, time_s: Floats) -> Floats:
    # Divide each change over two steps, [n - 2, K], by the duration of these steps.
    # The first and last record take their neighbor's rate.
    # `time_s` [n] are the times of the records. The result is NaN if there are fewer than three records.
    rate = np.full((len(time_s), change.shape[1]), np.nan)
    if len(change):
        rate[1:-1] = change / (time_s[2:] - time_s[:-2])[:, None]
        rate[0], rate[-1] = rate[1], rate[-2]
    return rate


def _measure_tilt(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    # Return the angle in degrees between each body's z axis and the vertical, [n, K].
    # The cosine of this angle is the z component of the body's z axis.
    # `numbers` and `time_s` are not needed here; all measures have the same parameters.
    x, y = tracks[0].quaternion[..., 1], tracks[0].quaternion[..., 2]
    return angle_of_cosine(1.0 - 2.0 * (x * x + y * y))


def _make_position_form(axis: str) -> Form:
    # Return the signal kind for the world position along `axis`: x, y or z. A body later replaces `{of}`.
    # The kind has the unit m and one argument `of`, which must be a single body.
    # The lambda returns one coordinate of the positions, [n, K].
    column, meaning = "xyz".index(axis), f"Position of {{of}} in the world along {axis}."
    return Form("m", ("of",), meaning, lambda tracks, *_: tracks[0].position[:, :, column], is_single=True)


_PERSON_FIELDS: Mapping[str, Any] = {
    "places": ("of", "at"),
    "numbers": {"offset_m": 3, "height_m": 1},
    "turned": ("at",),
}
PLACED_FORMS: Mapping[str, Form] = {
    **{f"position_{axis}": _make_position_form(axis) for axis in "xyz"},
    "distance": Form("m", ("of", "to"), "Distance between the positions of {of} and {to}.", _measure_distance),
    "gap": Form(
        "m",
        ("of", "to"),
        "Least distance between the collision shapes of {of} and {to}, 0 where they overlap.",
        ahead=True,
        is_gap=True,
    ),
    "height_above": Form("m", ("of", "above"), "Height of {of} above {above}, by their positions.", _measure_height),
    "over": Form("m", ("of", "below"), "Distance of {of} from the vertical line above {below}.", _measure_over),
    "opening": Form(
        "1",
        ("of",),
        "Opening of {of} as a share of its travel.",
        lambda tracks, *_: tracks[0].position[:, :, 0],
        channel="opening",
    ),
    "clearance": Form(
        "m",
        ("of", "box"),
        "Distance of the position of {of} from a box fixed to {box}, negative inside.",
        _measure_clearance,
        numbers={"center_m": 3, "size_m": 3},
        turned=("box",),
    ),
    "person_distance": Form(
        **_PERSON_FIELDS,
        unit="m",
        meaning="Distance between {of} and a person placed in the frame of {at}, 0 where they meet.",
        person_column=0,
    ),
    "person_approach": Form(
        **_PERSON_FIELDS,
        unit="m/s",
        meaning="Speed at which {of} approaches a person placed in the frame of {at}, at least 0.",
        person_column=1,
        ahead=True,
    ),
    "speed": Form(
        "m/s",
        ("of",),
        "Speed of {of} by central difference.",
        _measure_speed,
        is_greatest=True,
        ahead=True,
        is_rate=True,
    ),
    "turning_rate": Form(
        "deg/s",
        ("of",),
        "Turning rate of {of} by central difference.",
        _measure_turning_rate,
        is_greatest=True,
        turned=("of",),
        unplaced=("of",),
        ahead=True,
        is_rate=True,
    ),
    "tilt": Form(
        "deg",
        ("of",),
        "Angle between the z axis of {of} and the vertical.",
        _measure_tilt,
        is_greatest=True,
        turned=("of",),
        unplaced=("of",),
    ),
}
"""The definition of each kind of signal. TOML names the arguments by keys; a formula lists them in the same order."""


def write_call(form: str, values: Mapping[str, object]) -> str:
    """Return the name of a signal, such as `tilt(held)`, from its kind and its arguments in a TOML table.

    Raises `FormulaError` for an unknown kind or key, a missing key, or an invalid argument.
    """
    # `values` maps keys to arguments: a body selector, a number or a list of numbers.
    # The name lists the arguments in the order of the kind's definition.
    definition = _find_form(form)
    keys = (*definition.places, *definition.numbers)
    for key in (*values, *keys):
        if key not in keys or key not in values:
            problem = f"{form} has no key {key!r}" if key not in keys else f"{form} lacks the key {key!r}"
            raise FormulaError(problem, remedy=f"use the keys {', '.join(keys)}")
    arguments: list[Argument] = []
    for key in keys:
        value = values[key]
        for argument in value if isinstance(value, list) else [value]:
            if isinstance(argument, bool) or not isinstance(argument, str | int | float):
                remedy = _describe_usage(form, definition)
                raise FormulaError(f"{argument!r} is neither a name nor a number", remedy=remedy)
            arguments.append(argument if isinstance(argument, str) else float(argument))
    return make_signal(form, tuple(arguments)).name


def _find_form(form: str) -> Form:
    # Return the kind of signal with this name. Raises `FormulaError` for an unknown name.
    # PLACED_FORMS maps the names of all kinds of signals of space to their definitions.
    if form not in PLACED_FORMS:
        raise FormulaError(f"unknown kind of signal {form!r}", remedy=f"kinds of signals: {', '.join(PLACED_FORMS)}")
    return PLACED_FORMS[form]


def _describe_usage(form: str, kind: Form) -> str:
    # Return the remedy for invalid arguments, such as `write distance(of, to)`.
    # `form` is the signal's name, such as `distance`.
    # `kind` has the names of its arguments: first body selectors, then numbers.
    numbers = [key if count == 1 else f"{key} ({count} numbers)" for key, count in kind.numbers.items()]
    return f"write {form}({', '.join((*kind.places, *numbers))})"


def _split_arguments(kind: Form, arguments: Sequence[Argument]) -> tuple[list[str], list[float]]:
    # Return the body selectors and the numbers among the arguments. Arguments of a wrong type are left out.
    # A kind has first body selectors (text), then numbers. The caller compares the counts to find wrong arguments.
    place_count = len(kind.places)
    places = [place for place in arguments[:place_count] if isinstance(place, str)]
    numbers = [number for number in arguments[place_count:] if isinstance(number, float)]
    return places, numbers


@cache
def make_signal(form: str, arguments: tuple[Argument, ...]) -> Signal:
    """Return the signal of this kind with these arguments. Raises `FormulaError` if the arguments are invalid."""
    # A signal of space has a call as its name, such as `distance(eef, cup)`: first body selectors, then numbers.
    kind = _find_form(form)
    places, numbers = _split_arguments(kind, arguments)
    # The arguments must be exactly the body selectors and numbers that the kind defines.
    number_count = sum(kind.numbers.values())
    has_valid_counts = len(places) == len(kind.places) and len(numbers) == number_count == len(arguments) - len(places)
    if not has_valid_counts or not np.isfinite(numbers).all():
        raise FormulaError(f"{format_call(form, arguments)} has invalid arguments", remedy=_describe_usage(form, kind))
    if "size_m" in kind.numbers and min(numbers[-3:]) <= 0:  # the sizes are the last three numbers
        raise FormulaError("a box must have positive sizes", remedy="give size_m = [x, y, z], full lengths in meters")
    # If the signal measures a person, the last number is the person's height in meters.
    if kind.person_column is not None and (places[0] not in (EEF, ROLES[ROBOT]) or not 0.5 <= numbers[-1] <= 2.5):
        problem = "a person must be 0.5 to 2.5 m tall, and `of` must be `robot` or `eef`"
        raise FormulaError(problem, remedy="write `of = robot` to measure from links, or `of = eef` from the hand")
    place_of_key = dict(zip(kind.places, places, strict=True))
    for key, place in place_of_key.items():
        _check_place(place, key, kind)
    name = format_call(form, arguments)

    def compute(fields: RecordFields) -> Floats:
        # Compute the signal's values at every record, [N], on the first call for these records.
        return fields.compute_once(
            SIGNAL_KIND, name, lambda own_fields: _compute_signal(own_fields, kind, places, numbers)
        )

    # The raw fields that the signal reads for all body selectors, without repetitions.
    fields_read = [name for key, place in place_of_key.items() for name in _list_fields_read(kind, key, place)]
    return Signal(
        name,
        kind.unit,
        reads=tuple(dict.fromkeys(fields_read)),
        boolean=False,
        event=False,
        ahead=kind.ahead or HANDLED in places,
        meaning=kind.meaning.format(**{key: _PLACE_WORDS.get(place, place) for key, place in place_of_key.items()}),
        compute=compute,
        unknown=None,
        bodies=Bodies("place", "measured at", call=(form, arguments)),
    )


def _check_place(place: str, key: str, kind: Form) -> None:
    # Raise `FormulaError` if `place` (a body selector) cannot be the argument `key` of this kind of signal.
    # WORLD is the fixed world. MOVING_PLACES are `eef`, `held` and `handled`.
    # ROLES are robot, target, bystander and furniture. A kind with a `channel` measures openings.
    # If `is_single`, a selector must select one body.
    if not place or '"' in place:
        raise FormulaError(f"{place!r} is not the name of a body", remedy=f"write {_PLACES_TEXT}")
    if place == WORLD and key not in ("box", "at"):
        raise FormulaError("only a box or person can be fixed to the world", remedy="name a body, a role, eef or held")
    if key == "at" and (place in (*MOVING_PLACES, *ROLES) or "*" in place):
        raise FormulaError(
            f"a person cannot be placed at {place!r}", remedy="write `at = world`, or at = the name of one body"
        )
    if kind.is_gap and place == HANDLED:
        raise FormulaError("gap cannot measure from `handled`", remedy="use `held`, or the name of a body")
    if kind.channel and place in MOVING_PLACES:
        raise FormulaError(f"{place} is not a door or drawer", remedy="name a door or drawer, with * for any letters")
    if kind.is_single and (place in ROLES or "*" in place):
        raise FormulaError(f"{place!r} may match several bodies", remedy="name one body, `eef` or `held`")


_PLACE_WORDS = {
    EEF: "the end effector",
    HELD_BODY: "the held target",
    HANDLED: "the target that is or was held",
    WORLD: "the world",
    **{role: f"any {role}" for role in ROLES},
    ROLES[ROBOT]: "any part of the robot",
}
_PLACES_TEXT = f"eef, held, handled, {', '.join(ROLES)}, or the name of a body, in which * matches any letters"


def _list_fields_read(kind: Form, key: str, place: str) -> list[str]:
    # Return the fields, as in `Signal.reads`, that a signal reads for the bodies in the argument `key`.
    # `place` is the body selector of this argument. A field is, for example, `body_pos_m of cup`.
    # `unplaced` names the arguments whose positions are not read.
    # `turned` names the arguments whose orientations are read.
    if kind.channel:
        return [f"{kind.channel} of {place}"]
    if place == WORLD:
        return []
    if kind.is_gap or (kind.person_column is not None and place == ROLES[ROBOT]):
        return [f"{_SHAPES} of {place}"]
    quantities = (["pos_m"] if key not in kind.unplaced else []) + (["quat_wxyz"] if key in kind.turned else [])
    if place == EEF:
        return [f"eef_{name}" for name in quantities]
    suffix_of_place = {HELD_BODY: " of the held target", HANDLED: " of the held target", **dict.fromkeys(ROLES, "")}
    suffix = suffix_of_place.get(place, f" of {place}")
    return [f"body_{name}{suffix}" for name in quantities]


def _compute_signal(fields: RecordFields, kind: Form, places: Sequence[str], numbers: Sequence[float]) -> Floats:
    # Return the values of a signal of space, [N].
    # `kind` defines how to measure; `places` are the body selectors and `numbers` the other arguments of the signal.
    # `person_column` is the index of the signal's value: 0 = distance from a person, 1 = speed; None = no person.
    if kind.person_column is not None:
        person_call = format_call("person", (*places, *numbers))
        distance_and_speed = fields.compute_once(
            "person", person_call, lambda own_fields: _measure_person(own_fields, kind, places, numbers)
        )
        return distance_and_speed[:, kind.person_column]
    values = np.full(int(fields.batch.starts[-1]), np.nan)
    # If a selector matches several bodies, `kind` decides whether the smallest or the greatest value counts.
    least_or_greatest = np.max if kind.is_greatest else np.min
    for episode in range(len(fields.batch)):
        records = fields.rows_of(episode)
        if kind.is_gap:
            values[records] = _measure_gap(fields, places, episode)
            continue
        tracks = _read_tracks(fields, kind, places, episode)
        if all(track.body.size for track in tracks):
            # Adding 0.0 avoids -0.0 in outputs.
            measured = least_or_greatest(_measure_pairs(fields, kind, tracks, numbers, episode), axis=1) + 0.0
            # Infinity means that there is no pair of two different bodies.
            # Infinity becomes NaN, except if a selector is `held` or `handled`.
            has_no_pair = np.isinf(measured) & {HELD_BODY, HANDLED}.isdisjoint(places)
            values[records] = np.where(has_no_pair, np.nan, measured)
    return values


def _measure_pairs(
    fields: RecordFields, kind: Form, tracks: Sequence[Track], numbers: Sequence[float], episode: int
) -> Floats:
    """Return the value for each pair of bodies (or each body if `tracks` has one item), [n, pairs]. The value is
    infinite for a body paired with itself if its pose is recorded, even if marked as unknown; otherwise NaN.
    """
    # `tracks` are the bodies that the selectors match in an episode of n records.
    # A pair with infinity is ignored, because the smallest value of all pairs counts.
    assert kind.measure is not None
    values = kind.measure(tracks, numbers, _record_times_s(fields, episode))
    if len(tracks) == 1:
        return values
    body, other_body = np.broadcast_arrays(tracks[0].body[:, :, None], tracks[1].body[:, None])
    # Reshape from [n or 1, bodies, other bodies] to [n, pairs].
    is_same_body = np.broadcast_to(((body == other_body) & (body >= 0)).reshape(len(body), -1), values.shape)
    body = np.broadcast_to(body.reshape(len(body), -1), values.shape)
    record, pair = np.nonzero(is_same_body)
    # If a pose is marked as unknown, the value of the pair is NaN, although the pose is recorded.
    is_lost = fields.is_lost(body[record, pair], fields.batch.starts[episode] + record)
    has_pose = ~np.isnan(values[record, pair]) | is_lost
    values[record[has_pose], pair[has_pose]] = np.inf
    return values


@np.errstate(invalid="ignore")  # poses may be unknown
def find_deciding_bodies(fields: RecordFields, call: tuple[str, tuple[Argument, ...]], record: int) -> tuple[int, ...]:
    """Return the bodies that determine a signal of space in one record, as indices in the body table.

    The batch must have one episode. The end effector and the world have no body.
    """
    # `call` is the signal's kind, such as `distance`, with its arguments. The result is () if the value is not known.
    form, arguments = call
    kind = PLACED_FORMS[form]
    places, numbers = _split_arguments(kind, arguments)
    if kind.is_gap:
        return _find_nearest_bodies(fields, places, record)
    if kind.person_column is not None:
        links, distance = _measure_person_distances(fields, kind, places, numbers, 0)
        return links[distance[record].argmin()] if links and np.isfinite(distance[record]).any() else ()
    tracks = _read_tracks(fields, kind, places, 0)
    if not all(track.body.size for track in tracks):
        return ()
    record_values = _measure_pairs(fields, kind, tracks, numbers, 0)[record]
    if not np.isfinite(record_values).any():
        return ()
    deciding_pair = int(np.nanargmax(record_values) if kind.is_greatest else np.nanargmin(record_values))
    # For each track, the column of the body that belongs to the deciding pair
    body_columns = np.unravel_index(deciding_pair, [track.body.shape[1] for track in tracks])
    bodies = []
    for track, column in zip(tracks, body_columns, strict=True):
        row = record if len(track.body) > 1 else 0  # a single row applies to all records
        bodies.append(int(track.body[row, column]))
    return tuple(body for body in bodies if body >= 0)


def find_boxes(fields: RecordFields, call: tuple[str, tuple[Argument, ...]]) -> list[tuple[str | None, list[float]]]:
    """Return the boxes of a `clearance`, or boxes around the person of a `person_distance`, for a batch of one episode.
    Each box has its body's name (None = world), and center and sizes in meters in that body's frame. Else return [].
    """
    # `call` is the signal's kind with its arguments. A box has x, y, z of its center, then three full sizes.
    form, arguments = call
    if form not in ("clearance", "person_distance"):
        return []
    # `place` is the body selector to which the box or person is fixed.
    (_, place), numbers = _split_arguments(PLACED_FORMS[form], arguments)
    if form == "person_distance":
        body_name = None if place == WORLD else place
        boxes = []
        # The numbers are the position of the feet (3) and the height.
        # Each vertical capsule of the person becomes a box.
        for x, y, z, half_axis, radius in person.capsules(np.array(numbers[:3]), numbers[3]).tolist():
            boxes.append((body_name, [x, y, z, 2 * radius, 2 * radius, 2 * (half_axis + radius)]))
        return boxes
    if place == WORLD:
        return [(None, numbers)]
    # Leave out a box at the end effector, or at the held or handled target, because these are not one named body.
    if place in MOVING_PLACES:
        return []
    bodies = _find_bodies_at(fields, place, fields.batch.body_pos_m, 0)
    return [(fields.batch.body_label(int(body)), numbers) for body in bodies]


_NO_BODY = np.array([[-1]])


def _record_times_s(fields: RecordFields, episode: int) -> Floats:
    # Return the time of each record of an episode, from time stamps. Without stamps, use the control step.
    records = fields.rows_of(episode)
    if fields.is_stamped[records].all():
        return fields.time_s[records]
    return np.arange(records.stop - records.start) * fields.dt_s[records]


def _read_tracks(fields: RecordFields, kind: Form, places: Sequence[str], episode: int) -> list[Track]:
    # Return a track for each body selector in `places`.
    # A track has the bodies that a body selector matches, with their poses in each record of the episode.
    keys_and_places = zip(kind.places, places, strict=True)
    return [_read_track(fields, kind, key, place, episode) for key, place in keys_and_places]


def _read_track(fields: RecordFields, kind: Form, key: str, place: str, episode: int) -> Track:
    # Return the bodies that `place` selects in an episode. `key` is the name of the argument with this body selector.
    # `kind` defines which poses the signal reads.
    # A track has the indices [1, K] or [n, K], positions [n, K, 3] and quaternions [n, K, 4] of K bodies.
    records = fields.rows_of(episode)
    record_count = records.stop - records.start
    # The world is a fixed place at the origin.
    # Like the end effector, the world has no index in the body table.
    if place == WORLD:
        return Track(_NO_BODY, np.zeros((record_count, 1, 3)), np.tile([1.0, 0, 0, 0], (record_count, 1, 1)))
    if place == EEF:
        return Track(_NO_BODY, fields.eef_pos[records][:, None], fields.eef_quat[records][:, None])
    if place in (HELD_BODY, HANDLED):
        attributes = [f"{place}_body", f"{place}_pos", f"{place}_quat"]
        body, position, quaternion = (getattr(fields, attribute)[records][:, None] for attribute in attributes)
        if not kind.is_rate:
            return Track(body, position, quaternion)
        # A rate of the held body compares poses of the same body, although another body may be held in the next record.
        interior = slice(records.start + 1, records.stop - 1)

        def read_neighbor(by: int) -> PoseTrack:
            # Return the poses `by` records later (earlier if negative), without the episode's first and last record.
            pos, quat = (_read_shifted(fields, place, part, by)[interior] for part in ("pos", "quat"))
            return PoseTrack(pos[:, None], quat[:, None])

        return Track(body, position, quaternion, (read_neighbor(-1), read_neighbor(1)))
    if kind.channel:
        # The track has values of a channel such as `opening` instead of positions.
        listed_bodies, values = fields.batch.poses(kind.channel).episode_poses(episode)
        is_chosen = _matches_place(fields, listed_bodies, place)
        no_quaternions = np.full((record_count, int(is_chosen.sum()), 4), np.nan)
        return Track(listed_bodies[is_chosen][None], values[:, is_chosen], no_quaternions)
    # Select the bodies that have positions.
    # If this kind of signal does not read positions, select the bodies that have orientations.
    poses = fields.batch.body_quat_wxyz if key in kind.unplaced else fields.batch.body_pos_m
    body = _find_bodies_at(fields, place, poses, episode)
    position = _read_poses(fields, fields.batch.body_pos_m, body, episode)
    quaternion = _read_poses(fields, fields.batch.body_quat_wxyz, body, episode)
    return Track(body[None], position, unit_quaternions(quaternion.reshape(-1, 4)).reshape(quaternion.shape))


def _read_shifted(fields: RecordFields, place: str, part: str, by: int) -> Floats:
    # Return `shifted_pos` or `shifted_quat` for the bodies at `held` or `handled`, [N, 3] or [N, 4].
    # The result is for all episodes, so it is computed only once and stored.
    # `part` is `pos` or `quat`, `place` is `held` or `handled`, and `by` is a number of records.
    def compute(own_fields: RecordFields) -> Floats:
        # `own_fields` has attributes such as `shifted_pos` and `held_body`.
        poses: Floats = getattr(own_fields, f"shifted_{part}")(getattr(own_fields, f"{place}_body"), by)
        return poses

    return fields.compute_once("shifted", f"{part} of {place} {by}", compute)


def _find_bodies_at(fields: RecordFields, place: str, poses: Poses, episode: int) -> Ints:
    # Return the bodies that have a role or match a name, as indices in the body table.
    # `place` is a role or a name, in which `*` matches any letters. `poses` are the poses that the bodies must have.
    body, _ = poses.episode_poses(episode)
    if place not in ROLES:
        # A name also matches bodies that are not listed, such as fixed ones.
        # Their poses follow from the scene's geometry.
        scene = scene_poses(fields, episode)
        placed_bodies = [other for other, part in scene.part_of_body.items() if scene.is_placed(part)] if scene else []
        body = np.array([*body, *(other for other in placed_bodies if other not in body)], dtype=np.int64)
    matching: Ints = body[_matches_place(fields, body, place)]
    return matching


def _matches_place(fields: RecordFields, body: Ints, place: str) -> Bools:
    # Return whether each body has the role or matches the name, [K].
    # `body` [K] are indices in the body table. `place` is a role or a name, in which `*` matches any letters.
    batch = fields.batch
    if place in ROLES:
        return np.asarray(batch.body_role[body] == ROLES.index(place))
    return np.array([matches_pattern(batch.body_label(int(index)), place) for index in body], dtype=np.bool_)


def _read_poses(fields: RecordFields, poses: Poses, body: Ints, episode: int) -> Floats:
    # Return the poses of `K` bodies, [n, K, 3] or [n, K, 4].
    # If no pose is recorded, use the scene's geometry. Without a geometry, return NaN.
    # `poses` are positions or quaternions, and `body` [K] are indices in the body table.
    # A scene has the poses of links and fixtures, computed from recorded motions.
    scene, records = scene_poses(fields, episode), fields.rows_of(episode)
    values = np.full((records.stop - records.start, len(body), poses.size), np.nan)
    for column, index in enumerate(body.tolist()):
        body_poses = tracked_rows(fields, poses, index, episode)
        if body_poses is None and scene is not None and index in scene.part_of_body:
            pose = scene.place(scene.part_of_body[index])
            body_poses = pose.position if poses.size == 3 else pose.quaternion
        if body_poses is not None:
            values[:, column] = body_poses
        if fields.has_lost_poses:  # a record may mark a pose as unknown; the pose's numbers are then invalid
            values[fields.is_lost_in(episode, index), column] = np.nan
    return values


# Missing fields of selected bodies, and gaps between them


_SHAPES, _OPENING = "body_shapes", "opening"


def _find_chosen_bodies(fields: RecordFields, place: str, episode: int) -> set[int]:
    # Return the bodies of an episode that a body selector matches, whether or not they have poses.
    # Bodies are indices in the body table; -1 means that no target is held.
    # `place` is a body selector: `held`, a role or a name, in which `*` matches any letters.
    batch = fields.batch
    if place == HELD_BODY:
        return {*fields.held_body[fields.rows_of(episode)].tolist()}
    table = range(int(batch.body_starts[episode]), int(batch.body_starts[episode + 1]))
    if place in ROLES:
        return {body for body in table if batch.body_role[body] == ROLES.index(place)}
    return {body for body in table if matches_pattern(batch.body_label(body), place)}


def recorded_bodies(fields: RecordFields, field: str, episode: int) -> set[int]:
    """Return the bodies of an episode that have `field`: `body_pos_m`, `body_quat_wxyz`, `opening` or `body_shapes`."""
    # Bodies are indices in the body table.
    # A scene has links and fixtures. Their poses follow from recorded motions.
    # A link or fixture has positions and orientations although no channel lists its body.
    if field == _OPENING:
        return {*fields.batch.opening.episode_poses(episode)[0].tolist()}
    scene = scene_poses(fields, episode)
    placed_bodies = {body for body, part in scene.part_of_body.items() if scene.is_placed(part)} if scene else set()
    if field != _SHAPES:
        return {*placed_bodies, *fields.batch.poses(field).episode_poses(episode)[0].tolist()}
    if scene is None:
        return set()
    bodies_and_shapes = zip(scene.body, scene.geometry.part_shapes, strict=True)
    return placed_bodies & {body for body, (boxes, planes) in bodies_and_shapes if len(boxes) or len(planes)}


def _lacks_poses(channel: str, fields: RecordFields, place: str) -> Bools:
    # Return whether each episode lacks `channel` (poses or openings) for the selected bodies, [E].
    # `place` is a body selector: `held`, a role, or a name, in which `*` matches any letters.
    is_lacking = ~fields.batch.poses(channel).present
    for episode in range(len(fields.batch)):
        chosen_bodies = _find_chosen_bodies(fields, place, episode)
        # If no body matches, the signal is undefined. The field is then missing only if `channel` is not recorded.
        if not chosen_bodies:
            continue
        bodies_with_field = recorded_bodies(fields, channel, episode)
        if channel == _OPENING:  # one body with an opening is enough
            is_lacking[episode] = chosen_bodies.isdisjoint(bodies_with_field)
        else:
            is_lacking[episode] = not chosen_bodies <= bodies_with_field
    return is_lacking


def _lacks_shapes(fields: RecordFields, place: str) -> Bools:
    # Return whether each episode lacks the shapes of the selected bodies, or the poses of these shapes, [E].
    # `place` is a body selector. A part is a link or fixture of the scene; its shapes are boxes and planes.
    # `scene.body` has the index of each part's body.
    is_lacking = np.array([header.geometry is None for header in fields.batch.headers], dtype=np.bool_)
    for episode in np.flatnonzero(~is_lacking).tolist():
        scene, parts = scene_poses(fields, episode), _find_parts_at(fields, place, episode)
        assert scene is not None
        chosen_bodies = _find_chosen_bodies(fields, place, episode) if place != EEF else set()
        has_shapes = any(len(shape_rows) for part in parts for shape_rows in scene.geometry.part_shapes[part])
        # If several bodies match, one body with shapes is enough. For the selector `held`, each held body needs shapes.
        lacks_shapes = bool(chosen_bodies or place == EEF) and not has_shapes
        if place == HELD_BODY:
            lacks_shapes = not chosen_bodies <= recorded_bodies(fields, _SHAPES, episode)
        is_lacking[episode] = lacks_shapes or not chosen_bodies <= {*scene.body} or not all(map(scene.is_placed, parts))
    return is_lacking


PLACE_FIELDS.update({
    **{name: partial(_lacks_poses, name) for name in ("body_pos_m", "body_quat_wxyz", _OPENING)},
    _SHAPES: _lacks_shapes,
})  # fmt: skip


def _find_parts_at(fields: RecordFields, place: str, episode: int, held: int | None = None) -> list[int]:
    # Return the parts of the selected bodies. If `held` is given, return the parts of this body instead.
    # Without a recorded geometry, return [].
    # A part is a link or fixture of the scene, given by its index.
    # `place` is a body selector, and `held` an index in the body table.
    scene = scene_poses(fields, episode)
    if scene is None:
        return []
    if place == EEF:
        return _find_hand_parts(fields, scene, episode)
    bodies = {held} if held is not None else _find_chosen_bodies(fields, place, episode)
    # Fixed parts of the robot, such as the mount, do not count.
    is_left_out = scene.geometry.is_fixed if place == ROLES[ROBOT] else (False,) * len(scene.body)
    return [part for part, body in enumerate(scene.body) if body in bodies and body >= 0 and not is_left_out[part]]


def _find_hand_parts(fields: RecordFields, scene: ScenePoses, episode: int) -> list[int]:
    # Return the parts of the hand and its fingers. For a robot with several arms, return only those of the chosen arm.
    # `geometry.hand` has the indices of the parts of all hands; `arm_bodies` maps the name of a body to its arm.
    header = fields.batch.headers[episode]
    if not header.arms:
        return [*scene.geometry.hand]
    arm, arm_of_body = header.arms[fields.arm[episode]], header.arm_bodies or {}
    hand_parts = [part for part in scene.geometry.hand if scene.body[part] >= 0]
    return [part for part in hand_parts if arm_of_body.get(fields.batch.body_label(scene.body[part])) == arm]


def _find_parts_of_places(fields: RecordFields, places: Sequence[str], episode: int, held: int) -> list[list[int]]:
    # Return the parts that each of two body selectors matches; `held` is the held body.
    # A part is a link or fixture of the scene, given by its index. `held` is used only for the body selector `held`.
    parts_of_places = [_find_parts_at(fields, place, episode, held if place == HELD_BODY else None) for place in places]
    for k, other in ((0, 1), (1, 0)):  # (index of a selector, index of the other selector)
        if places[k] == EEF:  # the hand is one body, so it has no gap to its own parts
            parts_of_places[other] = [part for part in parts_of_places[other] if part not in parts_of_places[k]]
    return parts_of_places


def _measure_gap(fields: RecordFields, places: Sequence[str], episode: int) -> Floats:
    # Return the gap between the bodies of two selectors in each record of an episode, [n]; NaN without a geometry.
    # The gap is the smallest distance of the bodies' shapes, in m. `places` are the two body selectors.
    scene, records = scene_poses(fields, episode), fields.rows_of(episode)
    values = np.full(records.stop - records.start, np.nan)
    if scene is None:
        return values
    held = fields.held_body[records] if HELD_BODY in places else np.full(len(values), -1)
    # The parts that `held` selects depend on the held body, so measure each held body separately.
    for body in np.unique(held).tolist():
        first, second = _find_parts_of_places(fields, places, episode, body)
        values[held == body] = measure_gaps(scene, first, second, len(values))[held == body]
    return values


def _measure_person_distances(
    fields: RecordFields, kind: Form, places: Sequence[str], numbers: Sequence[float], episode: int
) -> tuple[list[tuple[int, ...]], Floats]:
    # Return the body of each link (none for the hand), and the distances of the `K` links from a person in m, [n, K].
    # `K` is 0 without links, or without a body at which the person is placed. The person's shape is three capsules.
    # `places` are the links (`robot` or `eef`) and the body in whose frame the person is placed.
    # `numbers` are the position of the feet in this frame (3) and the height, in m.
    measured, person_frame = _read_tracks(fields, kind, places, episode)
    capsules = person.capsules(np.array(numbers[:3]), numbers[3])
    nothing: tuple[list[tuple[int, ...]], Floats] = [], np.empty((len(person_frame.position), 0))
    # The selector for the person's place must match exactly one body (or be the world).
    if person_frame.body.size != 1:
        return nothing
    if places[0] == EEF:
        in_person_frame = turn_back(person_frame.quaternion, measured.position - person_frame.position)
        return [()], person.point_distances(in_person_frame, capsules)
    scene, links = scene_poses(fields, episode), _find_parts_at(fields, places[0], episode)
    if scene is None or not links:
        return nothing
    person_poses = PoseTrack(person_frame.position[:, 0], person_frame.quaternion[:, 0])
    return [(scene.body[part],) for part in links], person.link_distances(scene, links, person_poses, capsules)


def _measure_person(fields: RecordFields, kind: Form, places: Sequence[str], numbers: Sequence[float]) -> Floats:
    """Return the distance in m of the nearest link from the person, and the link's speed of approach in m/s, [N, 2]."""
    # `places` are the body selectors of the signal. `numbers` are the position of the person's feet and the height.
    values = np.full((int(fields.batch.starts[-1]), 2), np.nan)
    for episode in range(len(fields.batch)):
        links, distance_m = _measure_person_distances(fields, kind, places, numbers, episode)
        # Without links, or without a body at which the person is placed, the values stay NaN.
        if links:
            least_m, speed_m_s = distance_m.min(axis=1), person.approach(distance_m, _record_times_s(fields, episode))
            # Infinity means that no link has shapes. Adding 0.0 avoids -0.0 in outputs.
            values[fields.rows_of(episode)] = np.where(np.isinf(least_m), np.nan, [least_m, speed_m_s]).T + 0.0
    return values


def _find_nearest_bodies(fields: RecordFields, places: Sequence[str], record: int) -> tuple[int, ...]:
    # For a batch of one episode, return the two bodies that determine the gap; () if the gap is not finite.
    # `places` are two body selectors. The result has indices in the body table.
    scene, gap = scene_poses(fields, 0), _measure_gap(fields, places, 0)[record]
    if scene is None or not np.isfinite(gap):
        return ()
    first, second = _find_parts_of_places(fields, places, 0, int(fields.held_body[record]))
    pairs, gaps = pair_gaps(scene, first, second, record)
    # `gap` may exceed the smallest of `gaps`, because bodies that overlap at the start count only after separating.
    return tuple(int(body) for body in pairs[np.nanargmin(np.abs(gaps - gap))])


FORMS.update({form: partial(make_signal, form) for form in PLACED_FORMS})
