"""The raw episode: one recorded episode as plain arrays, and a header of plain values."""

from __future__ import annotations

import io
import json
import logging
import math
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder import channels
from safevla_recorder.errors import Place, RecordError

_log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Action = NDArray[np.float64]
SCHEMA_VERSION, ARMS_VERSION = 1, 2
"""Schema versions of records with one arm and with several arms. Old versions of safevla-bench reject version 2."""
_REQUIRED = ("episode_id", "benchmark", "task_id", "success", "dt", "target_object")
_ROLLOUT = ("policy", "instruction", "seed", "env_seed", "init_state_index", "horizon", "outcome", "embodiment")
_SIMULATOR = ("versions", "dropped_pairs", "forces", "torque_source")
_IDENTITY = ("task_sha256", "init_states_sha256", "task_source")
_SCENE = ("geometry", "arms", "arm_joints", "arm_bodies")
_LEADING = ("schema_version", *_REQUIRED, "joint_torque_limit_nm")
HEADER_FIELDS = (*_LEADING, *_ROLLOUT, *_SIMULATOR, *_IDENTITY, *_SCENE)
"""Fields of a header, in the order of the file; `safevla_bench.trajectory.Header` describes them.

The fields in `_REQUIRED` must be present. `dt` is in s, and `target_object` may be None (no target).
"""
INTEGERS = ("seed", "env_seed", "init_state_index", "horizon")  # header fields with integer values
OUTCOMES = ("success", "failure", "timeout", "invalid_action", "stopped")
"""Outcomes of a recorded episode; a crash leaves no record. `success` is true only with the outcome `success`."""


@dataclass(frozen=True)
class EpisodeRow:
    """One row of a run's table of episodes; `reason` says why an episode crashed, was stopped or had an invalid action.

    Unknown fields are None. A recorder in a user's own loop does not know all fields.
    """

    episode_id: str
    policy: str
    benchmark: str
    task_id: str
    episode: int
    init_state_index: int | None
    env_seed: int | None
    seed: int | None
    policy_seed: int | None
    horizon: int | None
    outcome: str
    steps: int
    reason: str | None = None
    code: str | None = None  # identifies the recording process's code; see `identity.describe_code`


@dataclass(frozen=True)
class ContactList:
    """C contacts of one episode, in the order of its records. `a` and `b` are indices in `roles`; NaN = not recorded.

    `net_force_n` is the norm of the net force, the vector sum of all contact forces between two bodies. `force_n` is
    the largest norm of the force at one contact point, or `net_force_n` if only the net force is known. Both are peaks
    over the substeps. With a substep of t seconds, `impulse_ns` is Σ |force| · t over all contact points and substeps,
    and `net_impulse_ns` (empty = NaN) is Σ |net force| · t over all substeps.
    """

    record: Ints
    a: Ints
    b: Ints
    force_n: Floats
    impulse_ns: Floats
    net_force_n: Floats
    net_impulse_ns: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        """Replace missing net impulses by NaN."""
        if not len(self.net_impulse_ns):
            # The class is frozen, so a normal assignment would raise an error.
            object.__setattr__(self, "net_impulse_ns", np.full(np.shape(self.record), np.nan))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns as arrays by name, with the names in `CONTACT_COLUMNS`."""
        # The column `step` is the field `record`; all other columns are named like the fields.
        return {name: getattr(self, "record" if name == "step" else name) for name in channels.CONTACT_COLUMNS}


@dataclass(frozen=True)
class EpisodeArrays:
    """One episode of n records as plain arrays; None = the channel was not recorded.

    Body numbers are indices in `roles` (body -> role). The shapes are: eef_pos_m [n,3], eef_quat_wxyz [n,4], body_pos_m
    [n,P,3] of `pos_bodies`, body_quat_wxyz [n,Q,4] of `quat_bodies`, joint_torque_nm [n,J], gripper_contact [n],
    gripped_body [n] (−1 = nothing), action [n-1,A], sim_state [n,S], pose_valid [n,V] of `valid_bodies`. With k arms,
    which the header names, shapes are eef_pos_m [n,3k], eef_quat_wxyz [n,4k], gripper_contact and gripped_body [n,k].
    `header` has the fields `HEADER_FIELDS`; fields that are None may be missing.
    """

    header: Mapping[str, object]
    roles: Mapping[str, str]
    records: int
    eef_pos_m: Floats | None = None
    eef_quat_wxyz: Floats | None = None
    pos_bodies: Sequence[int] = ()
    body_pos_m: Floats | None = None
    quat_bodies: Sequence[int] = ()
    body_quat_wxyz: Floats | None = None
    contacts: ContactList | None = None
    joint_torque_nm: Floats | None = None
    gripper_contact: Bools | None = None
    gripped_body: Ints | None = None
    action: Floats | None = None
    sim_state: Floats | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    further: Mapping[str, Floats] = field(default_factory=dict)
    """Numeric channels of `CHANNELS` that have no field in this class, by name."""
    valid_bodies: Sequence[int] = ()
    pose_valid: Bools | None = None
    """False if the pose of a body in `valid_bodies` is unknown. The poses of all other bodies are always known."""
    supported_bodies: Sequence[int] = ()
    supported: Bools | None = None
    opening_bodies: Sequence[int] = ()
    opening: Floats | None = None
    entered_bodies: Sequence[int] = ()
    entered: Bools | None = None

    def channel(self, name: str) -> Floats | None:
        """Return the rows of the numeric channel `name`; None = not recorded."""
        # `further` contains the channels that have no field in this class, by name.
        values: Floats | None = getattr(self, name, None) if name not in self.further else self.further[name]
        return values


ABSOLUTE = "absolute_actions"
"""Host-specific header field: true if actions are poses in the world instead of changes of pose."""
FIXTURES = "fixtures"
"""Header field: root body of a fixture -> position [3] in m, quaternion [4] wxyz. Absent if seeds determine them."""
STATES_SET = "states_set"
"""Header field: number of initial states that a user's loop set after the reset; absent unless more than one."""
SIMULATION = "simulation"
"""Header field: facts from `read_simulation` that, like versions, affect the last digits of a trajectory."""

EARLIER_SEED = "earlier_seed"
"""Header field: the last `seed`, and `earlier_resets`, how many resets lie between it and the episode's."""


def add_header_mark(extra: Mapping[str, object], mark: str) -> dict[str, object]:
    """Return a copy of an episode's host-specific fields (`extra`) in which the header field `mark` is true."""
    return add_header_field(extra, mark, True)


def add_header_field(extra: Mapping[str, object], name: str, value: object) -> dict[str, object]:
    """Return a copy of an episode's host-specific fields (`extra`) in which the header field `name` is `value`."""
    header = extra.get("header", {})  # under this key, `extra` stores additional fields of the header
    assert isinstance(header, Mapping)
    return {**extra, "header": {**header, name: value}}


NO_COST = -1.0  # value in `LABEL_COST` for a missing cost


def add_costs(recording: EpisodeArrays, costs: Sequence[object]) -> EpisodeArrays:
    """Return the recording with the simulator's costs of its n - 1 steps. Each cost is a number, or a mapping from
    names to numbers.

    `NO_COST` replaces a missing or invalid cost, such as -2. Raises `RecordError` unless `costs` has n - 1 entries.
    """
    costs_of_steps = [_select_valid_costs(cost) for cost in costs]  # for each step, its costs by name
    if len(costs_of_steps) != recording.records - 1:
        problem = f"{len(costs_of_steps)} costs were given for {recording.records - 1} steps"
        raise RecordError(problem, remedy="Give one cost per step; None if a step has no cost.")
    names = sorted({name for cost_of in costs_of_steps for name in cost_of})
    if not names:  # no step has a valid cost
        return recording
    # `rows` contains one row per step, and one column per name of a cost.
    rows = np.array([[cost_of.get(name, NO_COST) for name in names] for cost_of in costs_of_steps])
    extra = add_header_field(recording.extra, channels.LABELS, names)
    return replace(recording, further={**recording.further, channels.LABEL_COST: rows}, extra=extra)


def _select_valid_costs(cost: object) -> dict[str, float]:
    # Return a step's costs by name; values other than single numbers from 0 to `LARGEST` are left out.
    # `cost` is a mapping from names to numbers, or one number, which gets the name "cost"; None = no cost.
    cost_of = cost if isinstance(cost, Mapping) else {"cost": cost}
    numbers = {str(name): _read_number(value) for name, value in cost_of.items() if value is not None}
    return {name: number for name, number in numbers.items() if 0 <= number <= channels.LARGEST}


def _read_number(value: Any) -> float:
    # Return a cost as a number. If it is not a single number, warn and return NaN.
    with suppress(Exception):  # objects of other libraries may raise any error
        if isinstance(value, (str, bytes)):
            raise TypeError("text is not a number")  # `float` would accept some texts
        scalar = value if np.ndim(value) == 0 else np.asarray(value).reshape(()).item()
        return float(scalar)
    _warn_of_cost(type(value).__name__)
    return math.nan


@lru_cache(maxsize=None)
def _warn_of_cost(kind: str) -> None:
    # Warn once for each `kind`, the name of a Python type: later calls return the cached result.
    _log.warning("costs of type %s are not recorded, since they cannot be read as single numbers", kind)


def describe_invalid_integer(name: str, value: object) -> str:
    """Return what is wrong with the value of the header field `name`, one of `INTEGERS`; "" if nothing is wrong."""
    # A value that is not an integer, such as None for a missing field, is not checked.
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "the integer does not fit into 64 bits"
    if isinstance(value, int) and name == "init_state_index" and value < 0:
        return "the index of an initial state is negative"
    if isinstance(value, int) and name == "horizon" and value < 1:
        return "the horizon, the maximum number of steps, is below 1"
    return ""


def check_recorded_numbers(recording: EpisodeArrays) -> None:
    """Raise `RecordError`, which names episode and field, for the first invalid number: not finite, larger than 1e100,
    a quaternion of zeros, a negative force or impulse, or an invalid integer of the header. NaN is valid for an impulse
    that was not recorded.
    """
    for problem, field_name in _find_invalid_numbers(recording):  # the first problem raises an error
        place = Place(episode=str(recording.header["episode_id"]), field=field_name)
        remedy = "The episode is lost; look for overlapping bodies or extreme actions."
        if field_name in INTEGERS:
            remedy = "The episode is lost; pass a valid integer, or leave the field out."
        raise RecordError(problem, remedy=remedy, place=place)


def _find_invalid_numbers(recording: EpisodeArrays) -> Iterator[tuple[str, str]]:
    # For each invalid header field or channel of the episode, yield what is wrong and the name of the field or channel.
    for name in INTEGERS:
        if problem := describe_invalid_integer(name, recording.header.get(name)):
            yield problem, name
    for spec in channels.NUMERIC:  # all channels except those of the contacts
        values = recording.channel(spec.name)
        if values is not None and not np.isfinite(values).all():
            yield "a number is not finite", spec.name
        elif values is not None and spec.is_bounded and np.any(np.abs(values) > channels.LARGEST):
            yield "a number is implausibly large", spec.name
        elif values is not None and spec.is_rotation and not values.reshape(-1, 4).any(axis=1).all():
            yield "a quaternion has norm zero", spec.name
    contacts = recording.contacts
    if contacts is not None:
        recorded = channels.recorded_forces(recording.header.get("forces"))
        for name in channels.FORCES:
            force = getattr(contacts, name)
            if name in recorded or name == "force_n":  # with net forces alone, `force_n` is the net force
                is_valid = np.isfinite(force) & (force >= 0) & (force <= channels.LARGEST)
            else:  # a kind of force that was not recorded
                is_valid = np.isnan(force)
            if not is_valid.all():
                yield "a force is negative, not finite or implausibly large", f"contacts.{name}"
        for name in ("impulse_ns", channels.NET_IMPULSE):
            impulse = getattr(contacts, name)
            if np.isinf(impulse).any() or np.any(impulse < 0):  # NaN = the impulse was not recorded
                yield "an impulse is negative or infinite", f"contacts.{name}"


# The file of one raw episode (`.npz`) contains the arrays of `CHANNELS` by name, without pickles.
# Equal episodes give equal bytes. Bodies are indices in `body_roles`. `header` and `extra` are JSON texts in UTF-8.
# `header` contains the fields of the episode's header and `body_roles`.
# `header` also contains the number of `records`, and the names of `arrays`.
# If `arrays` lists an array that is missing in the file, the array was lost.
# All other missing arrays were not recorded.


# A zip archive stores a time for each file. A fixed time keeps the bytes of equal episodes equal.
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_TEXT = np.dtype("|u1")
DTYPES = {
    "header": _TEXT,
    **{spec.name: np.dtype(spec.dtype) for spec in channels.NUMERIC if not spec.is_grip},
    **{spec.bodies: np.dtype(channels.PLACE) for spec in channels.POSES},
    **{f"contacts.{column}": np.dtype(code) for column, code in channels.CONTACT_COLUMNS.items()},
    **{spec.name: np.dtype(spec.dtype) for spec in channels.NUMERIC if spec.is_grip},
    "extra": _TEXT,
}
"""Maps each array that a file may contain to its dtype, in the order of the file."""


def encode_episode(recording: EpisodeArrays) -> bytes:
    """Return one episode as the bytes of an `.npz` file. Raises `ValueError` if `header` or `extra` contains a number
    that is not finite, or text with a lone surrogate.
    """
    arrays, stream = _collect_arrays(recording), io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, dtype in DTYPES.items():  # all possible arrays, in the order of the file
            if name in arrays:
                entry = zipfile.ZipInfo(f"{name}.npy", _FIXED_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                content, array = io.BytesIO(), np.ascontiguousarray(arrays[name], dtype=dtype)
                np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
                archive.writestr(entry, content.getvalue())
    return stream.getvalue()


def _collect_arrays(recording: EpisodeArrays) -> dict[str, NDArray[Any]]:
    # Return the file's arrays by name. Channels that were not recorded have no array.
    # The arrays `header` and `extra` are JSON texts as bytes.
    values: dict[str, object] = {spec.name: recording.channel(spec.name) for spec in channels.NUMERIC}
    if recording.records == 1:  # a single record has no actions
        values.update({spec.name: None for spec in channels.NUMERIC if spec.is_per_action})
    # A channel with values for several bodies needs a further array: the indices of the bodies.
    recorded_poses = [spec for spec in channels.POSES if values[spec.name] is not None]
    values.update({spec.bodies: getattr(recording, spec.bodies) for spec in recorded_poses})
    if recording.contacts is not None:
        columns = recording.contacts.columns()
        # Columns that were not recorded contain only NaN, and are left out.
        if channels.NET_FORCE not in channels.recorded_forces(recording.header.get("forces")):
            del columns[channels.NET_FORCE]
        if np.isnan(columns[channels.NET_IMPULSE]).all():
            del columns[channels.NET_IMPULSE]
        values.update({f"contacts.{name}": column for name, column in columns.items()})
    values["extra"] = _encode_json(recording.extra) if recording.extra else None
    arrays = {name: np.asarray(value) for name, value in values.items() if value is not None}
    version = ARMS_VERSION if recording.header.get("arms") else SCHEMA_VERSION
    header = {"schema_version": version, **recording.header}
    # A field with the value None is left out, except `target_object`: None means that the task has no target.
    fields = {name: header[name] for name in HEADER_FIELDS if header.get(name) is not None or name == "target_object"}
    # The names of all arrays show a reader whether an array was lost or was not recorded.
    description = {"body_roles": dict(recording.roles), "records": recording.records, "arrays": sorted(arrays)}
    return {"header": _encode_json({**fields, **description}), **arrays}


def _encode_json(tree: Mapping[str, object]) -> NDArray[np.uint8]:
    # Return the JSON text of a mapping, in UTF-8, as an array of bytes. NaN or infinity raises `ValueError`.
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False)
    return np.frombuffer(text.encode(), dtype=np.uint8)
