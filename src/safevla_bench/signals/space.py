"""Signals of space: where bodies are, how far apart, how fast and at which angle they are.

Such a signal is named by its own definition, `distance(eef, "plate_*")`, so that a formula says all of it. A place is
the end effector (`eef`), what the gripper holds, else the target (`held`), a role (`robot`, `target`, `bystander`,
`furniture`: all posed bodies of it), or a body of the record by its name, in which `*` stands for any letters. Of
several bodies the nearest, lowest, fastest or most tilted counts. An episode without such a body has NaN throughout, so
that the clause is vacuous there; a pose that is not known makes the value unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from safevla_bench.errors import FormulaError
from safevla_bench.signals.signal import (
    FORMS,
    SIGNAL_KIND,
    Argument,
    Bodies,
    Floats,
    Ints,
    RecordFields,
    Signal,
    angle_of_cosine,
    format_call,
    unit_quaternions,
)
from safevla_bench.trajectory.batch import Poses
from safevla_bench.trajectory.header import ROLES

EEF, HELD_BODY, WORLD = "eef", "held", "world"
Measure: TypeAlias = Callable[["Sequence[Track]", Sequence[float], Floats], Floats]
"""Tracks of the places, the numbers, and the times of the records [n] in seconds -> [n, pairs], in the form's unit."""


@dataclass(frozen=True, slots=True)
class Track:
    """The bodies of a place in one episode of n records: their ids [K], positions [n, K, 3] in metres, in the world,
    and orientations [n, K, 4] as unit quaternions wxyz. NaN where not known or not asked for.
    """

    body: Ints
    position: Floats
    quaternion: Floats


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of signal of space, with the keys of its arguments: places first, then numbers."""

    unit: str
    places: tuple[str, ...]
    numbers: Mapping[str, int]
    """Key -> how many numbers it takes."""
    meaning: str
    measure: Measure
    is_greatest: bool = False
    """Of several bodies the greatest value counts, else the smallest."""
    turned: tuple[str, ...] = ()
    """The places whose orientation is read."""
    unplaced: tuple[str, ...] = ()
    """The places whose position is not read."""
    is_single: bool = False
    """A place is one body: no role and no pattern."""
    ahead: bool = False


def _offsets(a: Track, b: Track) -> Floats:
    """Return the position of each body of `a` seen from each of `b` [m], [n, K, L, 3]; infinitely far from itself."""
    offset: Floats = a.position[:, :, None] - b.position[:, None]
    offset[:, (a.body[:, None] == b.body) & (a.body[:, None] >= 0)] = np.inf
    return offset


def _distance(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    return _flatten(np.sqrt(np.square(_offsets(*tracks)).sum(axis=-1)))


def _height(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    return _flatten(_offsets(*tracks)[..., 2])


def _clearance(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    center, half = np.array(numbers[:3]), np.array(numbers[3:]) / 2.0
    seen = _turn_back(tracks[1].quaternion[:, None], _offsets(*tracks))
    beyond = np.abs(seen - center) - half
    outside = np.sqrt(np.square(np.maximum(beyond, 0.0)).sum(axis=-1))
    return _flatten(outside + np.minimum(beyond.max(axis=-1), 0.0))


def _flatten(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def _turn_back(quaternion: Floats, vector: Floats) -> Floats:
    """Return vectors [..., 3] of the world in the frame of a body of that orientation wxyz [..., 4]."""
    w, axis = quaternion[..., :1], -quaternion[..., 1:]
    twice = 2.0 * np.cross(axis, vector)
    turned: Floats = vector + w * twice + np.cross(axis, twice)
    return turned


def _speed(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    (track,) = tracks
    step = np.sqrt(np.square(track.position[2:] - track.position[:-2]).sum(axis=-1))
    return _extend(step, time_s)


def _turning_rate(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    (track,) = tracks
    before, after = track.quaternion[:-2], track.quaternion[2:]
    nearer = np.where((before * after).sum(axis=-1, keepdims=True) < 0, -after, after)  # q and -q are one rotation
    apart, together = (np.sqrt(np.square(ends).sum(axis=-1)) for ends in (before - nearer, before + nearer))
    quarter = np.arctan2(apart.astype(np.longdouble), together).astype(np.float64)  # as in `angle_of_cosine`
    return _extend(np.degrees(4.0 * quarter), time_s)


def _extend(change: Floats, time_s: Floats) -> Floats:
    rate = np.full((len(time_s), change.shape[1]), np.nan)
    if len(change):
        rate[1:-1] = change / (time_s[2:] - time_s[:-2])[:, None]
        rate[0], rate[-1] = rate[1], rate[-2]
    return rate


def _tilt(tracks: Sequence[Track], numbers: Sequence[float], time_s: Floats) -> Floats:
    x, y = tracks[0].quaternion[..., 1], tracks[0].quaternion[..., 2]
    return angle_of_cosine(1.0 - 2.0 * (x * x + y * y))


def _position(axis: str) -> Form:
    column, meaning = "xyz".index(axis), f"{axis} of the position of {{of}} in the world."
    return Form("m", ("of",), {}, meaning, lambda tracks, *_: tracks[0].position[:, :, column], is_single=True)


PLACED_FORMS: Mapping[str, Form] = {
    **{f"position_{axis}": _position(axis) for axis in "xyz"},
    "distance": Form("m", ("of", "to"), {}, "Distance between the positions of {of} and {to}.", _distance),
    "height_above": Form("m", ("of", "above"), {}, "Height of the position of {of} above that of {above}.", _height),
    "clearance": Form(
        "m",
        ("of", "box"),
        {"center_m": 3, "size_m": 3},
        "Distance of the position of {of} from a box fixed to {box}, negative inside.",
        _clearance,
        turned=("box",),
    ),
    "speed": Form("m/s", ("of",), {}, "Speed of {of} by central difference.", _speed, is_greatest=True, ahead=True),
    "turning_rate": Form(
        "deg/s",
        ("of",),
        {},
        "Turning rate of {of} by central difference.",
        _turning_rate,
        is_greatest=True,
        turned=("of",),
        unplaced=("of",),
        ahead=True,
    ),
    "tilt": Form(
        "deg",
        ("of",),
        {},
        "Angle between the z axis of {of} and the vertical.",
        _tilt,
        is_greatest=True,
        turned=("of",),
        unplaced=("of",),
    ),
}
"""Form -> what it measures. In TOML its keys name the arguments, in a formula they stand in this order."""


def write_call(form: str, values: Mapping[str, object]) -> str:
    """Return the name of the signal that a TOML table defines: its form, and its keys of `PLACED_FORMS`.

    Raises `FormulaError` for a form or key that does not exist, or is missing.
    """
    kind = _find_form(form)
    keys = (*kind.places, *kind.numbers)
    for key in (*values, *keys):
        if key not in keys or key not in values:
            problem = f"{form} has no key {key!r}" if key not in keys else f"{form} lacks the key {key!r}"
            raise FormulaError(problem, remedy=f"its keys: {', '.join(keys)}")
    arguments: list[object] = []
    for key in keys:
        value = values[key]
        arguments += value if isinstance(value, list) else [value]
    for argument in arguments:
        if isinstance(argument, bool) or not isinstance(argument, str | int | float):
            raise FormulaError(f"{argument!r} is neither a name nor a number", remedy=_usage(form, kind))
    given = tuple(argument if isinstance(argument, str) else float(argument) for argument in arguments)  # type: ignore[arg-type]
    return make_signal(form, given).name


def _find_form(form: str) -> Form:
    if form not in PLACED_FORMS:
        raise FormulaError(f"there is no form {form!r}", remedy=f"forms: {', '.join(PLACED_FORMS)}")
    return PLACED_FORMS[form]


def _usage(form: str, kind: Form) -> str:
    numbers = [key if count == 1 else f"{key} ({count} numbers)" for key, count in kind.numbers.items()]
    return f"{form} takes {', '.join((*kind.places, *numbers))}"


@cache
def make_signal(form: str, arguments: tuple[Argument, ...]) -> Signal:
    """Return the signal of a form and its arguments; raise `FormulaError` if they do not fit."""
    kind = _find_form(form)
    places, numbers = arguments[: len(kind.places)], arguments[len(kind.places) :]
    named = [place for place in places if isinstance(place, str)]
    sizes = [number for number in numbers if isinstance(number, float) and np.isfinite(number)]
    if len(named) != len(kind.places) or len(numbers) != len(sizes) or len(sizes) != sum(kind.numbers.values()):
        raise FormulaError(f"{format_call(form, arguments)} does not fit", remedy=_usage(form, kind))
    if "size_m" in kind.numbers and min(sizes[-3:]) <= 0:
        raise FormulaError("a box has positive sizes", remedy="size_m = [x, y, z], whole lengths in metres")
    for key, place in zip(kind.places, named, strict=True):
        _check_place(place, key, kind)
    name = format_call(form, arguments)

    def compute(fields: RecordFields) -> Floats:
        return fields.compute_once(SIGNAL_KIND, name, lambda own: _measure(own, kind, named, sizes))

    roles = dict(zip(kind.places, named, strict=True))
    reads = tuple(dict.fromkeys(field for key, place in roles.items() for field in _fields_read(kind, key, place)))
    meaning = kind.meaning.format(**{key: _PLACE_WORDS.get(place, place) for key, place in roles.items()})
    behind = Bodies("place", "measured at", call=(form, arguments))
    return Signal(name, kind.unit, reads, False, False, kind.ahead, meaning, compute, None, behind)


def _check_place(place: str, key: str, kind: Form) -> None:
    if not place or '"' in place:
        raise FormulaError(f"{place!r} is not the name of a body", remedy=f"places: {_PLACES}")
    if place == WORLD and key != "box":
        raise FormulaError("only a box is fixed to the world", remedy="name a body, a role, eef or held")
    if kind.is_single and (place in ROLES or "*" in place):
        raise FormulaError(f"{place!r} may be several bodies", remedy="name one body, eef or held")


_PLACE_WORDS = {
    EEF: "the end effector",
    HELD_BODY: "the held target",
    WORLD: "the world",
    "robot": "any part of the robot",
    "target": "any target",
    "bystander": "any bystander",
    "furniture": "any furniture",
}
_PLACES = f"eef, held, {', '.join(ROLES)}, or the name of a body, where * stands for any letters"


def _fields_read(kind: Form, key: str, place: str) -> list[str]:
    if place == WORLD:
        return []
    position, quaternion = {
        EEF: ("eef_pos_m", "eef_quat_wxyz"),
        HELD_BODY: ("body_pos_m of the held target", "body_quat_wxyz of the held target"),
    }.get(place, ("body_pos_m", "body_quat_wxyz"))
    return ([] if key in kind.unplaced else [position]) + ([quaternion] if key in kind.turned else [])


def _measure(fields: RecordFields, kind: Form, places: Sequence[str], numbers: Sequence[float]) -> Floats:
    values = np.full(int(fields.batch.starts[-1]), np.nan)
    fold = np.max if kind.is_greatest else np.min
    for episode in range(len(fields.batch)):
        records = slice(int(fields.batch.starts[episode]), int(fields.batch.starts[episode + 1]))
        tracks = [_track(fields, kind, *item, episode, records) for item in zip(kind.places, places, strict=True)]
        if all(len(track.body) for track in tracks):
            measured = fold(kind.measure(tracks, numbers, _times(fields, records)), axis=1)
            values[records] = np.where(np.isinf(measured), np.nan, measured) + 0.0
    return values


def measure_places(fields: RecordFields, call: tuple[str, tuple[Argument, ...]], record: int) -> tuple[int, ...]:
    """Return the bodies behind a signal of space in one record of the only episode, as indices into the body table.

    The end effector and the world are none.
    """
    form, arguments = call
    kind = PLACED_FORMS[form]
    places = [str(place) for place in arguments[: len(kind.places)]]
    numbers = [float(number) for number in arguments[len(kind.places) :]]
    records = slice(0, int(fields.batch.starts[-1]))
    tracks = [_track(fields, kind, *item, 0, records) for item in zip(kind.places, places, strict=True)]
    if not all(len(track.body) for track in tracks):
        return ()
    row = kind.measure(tracks, numbers, _times(fields, records))[record]
    if np.isnan(row).all():
        return ()
    best = int(np.nanargmax(row) if kind.is_greatest else np.nanargmin(row))
    chosen = np.unravel_index(best, [len(track.body) for track in tracks])
    bodies = [int(track.body[k]) for track, k in zip(tracks, chosen, strict=True)]
    held = int(fields.held_body[record])
    return tuple(held if body == _HELD_ID else body for body in bodies if body >= 0 or (body == _HELD_ID and held >= 0))


def find_boxes(fields: RecordFields, call: tuple[str, tuple[Argument, ...]]) -> list[tuple[str | None, list[float]]]:
    """Return the boxes of a `clearance` in the only episode: the name of the body that each is fixed to (None = the
    world), and its centre in the body's frame and its sizes, six numbers in metres. Other forms have none.
    """
    form, arguments = call
    if form != "clearance":
        return []
    place, numbers = str(arguments[1]), [float(number) for number in arguments[2:]]
    if place == WORLD:
        return [(None, numbers)]
    if place in (EEF, HELD_BODY):
        return []
    bodies = _bodies_at(fields, place, None, 0)
    return [(fields.batch.body_label(int(body)), numbers) for body in bodies]


_EEF_ID, _HELD_ID, _WORLD_ID = -1, -2, -3


def _times(fields: RecordFields, records: slice) -> Floats:
    count = records.stop - records.start
    if fields.is_stamped[records].all():
        return fields.time_s[records]
    return np.arange(count) * fields.dt_s[records]


def _track(fields: RecordFields, kind: Form, key: str, place: str, episode: int, records: slice) -> Track:
    count = records.stop - records.start
    if place == WORLD:
        return Track(np.array([_WORLD_ID]), np.zeros((count, 1, 3)), np.tile([1.0, 0, 0, 0], (count, 1, 1)))
    if place == EEF:
        return Track(np.array([_EEF_ID]), fields.eef_pos[records][:, None], fields.eef_quat[records][:, None])
    if place == HELD_BODY:
        return Track(np.array([_HELD_ID]), fields.held_pos[records][:, None], fields.held_quat[records][:, None])
    body = _bodies_at(fields, place, fields.batch.body_quat_wxyz if key in kind.unplaced else None, episode)
    position = _poses(fields, fields.batch.body_pos_m, body, episode, records)
    quaternion = _poses(fields, fields.batch.body_quat_wxyz, body, episode, records)
    return Track(body, position, unit_quaternions(quaternion.reshape(-1, 4)).reshape(quaternion.shape))


def _bodies_at(fields: RecordFields, place: str, poses: Poses | None, episode: int) -> Ints:
    batch = fields.batch
    body, _ = (poses or batch.body_pos_m).episode_poses(episode)
    if place in ROLES:
        chosen = batch.body_role[body] == ROLES.index(place)
    else:
        chosen = np.array([fnmatchcase(batch.body_label(int(each)), place) for each in body], dtype=np.bool_)
    selected: Ints = body[chosen]
    return selected


def _poses(fields: RecordFields, poses: Poses, body: Ints, episode: int, records: slice) -> Floats:
    """Return the poses of bodies in the records of an episode, [n, K, size]; NaN where a body's is not known."""
    posed, rows = poses.episode_poses(episode)
    number = np.arange(records.start, records.stop)
    track = np.full((len(number), len(body), poses.size), np.nan)
    for k, each in enumerate(body):
        column = np.flatnonzero(posed == each)
        if len(column):
            track[:, k] = rows[:, column[0]]
        if fields.has_lost_poses:
            track[fields.is_lost(np.full(len(number), each), number), k] = np.nan
    return track


FORMS.update({form: partial(make_signal, form) for form in PLACED_FORMS})
