"""A recorder for any simulator: the caller passes the contacts of each substep and the poses of each control step.

    recorder = EpisodeRecorder(SceneMap(shapes, roles, substep_s=1 / 240))
    recorder.begin(contacts, poses={"box": (position, quaternion)}, eef=(position, quaternion))
    for action in actions:
        for _ in range(substeps):
            ...                                          # the simulator's own step
            recorder.substep(contacts)                   # each contact: (shape, shape, force in N)
        recorder.step(action, poses=..., eef=...)
    recorder.build_recording(header)

Contacts, peaks and grips are computed by the same code as for MuJoCo's recorder (`mujoco.recorder`). Channels that are
not passed to `begin` are not recorded: missing values are never zeros. For a robot with several arms, make an
`EpisodeRecorder(scene, arms={"left": Arm(...), "right": Arm(...)})`, and pass `eef` and `torques_nm` by names of arms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Collection, Hashable, Iterable, Mapping, NamedTuple, Protocol, Sequence, Tuple
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safevla_recorder.channels import FORCES, LINK_MOTION, SUBGOAL_NAMES, SUBGOALS, as_fields
from safevla_recorder.contacts import (
    NOTHING,
    ContactFilter,
    GeomMap,
    MeasuredContacts,
    SubstepContacts,
    contact_peaks,
    gripped_bodies,
    group_numbers,
    join_contacts,
    supported_bodies,
)
from safevla_recorder.episode import Action, Bools, ContactList, EpisodeArrays, Floats, add_header_field
from safevla_recorder.errors import HostError
from safevla_recorder.geometry import Geometry, Part

# The records of one episode in any simulator, as they arrive: rows, actions, and contacts that are decoded in blocks


BLOCK = 32  # number of control steps whose contacts are decoded together; the copies take a few megabytes at most
Row = Mapping[str, Floats]  # arrays that were read at the end of one control step, by name


class ContactSource(Protocol):
    """A source of the contacts in the substeps since the last `take_contacts`; `len` is the number of substeps."""

    def __len__(self) -> int: ...  # the number of substeps since the last `take_contacts`

    def take_contacts(self) -> SubstepContacts:
        """Return the contacts copied since the last call, and empty the source."""


def assemble_recording(
    geoms: GeomMap,
    header: Mapping[str, object],
    records: int,
    contacts: ContactList | None,
    gripped: NDArray[np.int64] | None,
    channels: Mapping[str, object],
    supported: Bools | None = None,
) -> EpisodeArrays:
    """Return an episode from its arrays. `channels` holds all channels and fields of `EpisodeArrays` that have no
    separate argument; None = not recorded. Without finger groups, grips are not recorded.
    """
    # `geoms` describes the bodies, their roles and the finger groups; `header` contains the episode's facts.
    # `records` is n, the number of control steps plus one for record 0.
    # `gripped` [n], or [n, A] for `A` arms, is the index in `roles` of each gripper's held body; `NOTHING` = no body.
    # `supported` [n, W]: whether contacts carry at least half the weight of each of the `W` bodies in `geoms.weights`.
    if geoms.fingers is None:
        gripped = None
    # Which kinds of forces the contacts have, such as ("force_n", "net_force_n").
    forces = None if contacts is None else geoms.forces
    return EpisodeArrays(
        header={"forces": forces, "torque_source": geoms.torque_source, **geoms.header, **header},
        roles=geoms.roles,
        records=records,
        contacts=contacts,
        gripper_contact=None if gripped is None else np.not_equal(gripped, NOTHING),
        gripped_body=gripped,
        supported_bodies=() if supported is None else tuple(geoms.weights),
        supported=supported,
        **as_fields(EpisodeArrays, channels),  # channels that are not fields of the class are passed as `further`
    )


def subgoal_fields(
    names: Sequence[str], holds: Floats, extra: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Any]:
    """Return, for an `EpisodeArrays`, whether each of the goal's `G` predicates holds (`SUBGOALS`, bool [n, G]), and a
    copy of the host-specific fields `extra` whose header has the predicates' `names`.
    """
    # `holds` [n, G] has one row per record: 0 = the predicate does not hold, any other number = it holds.
    return {SUBGOALS: holds != 0, "extra": add_header_field(extra, SUBGOAL_NAMES, list(names))}


class EpisodeLog(ABC):
    """The records of a recorder's episode, one row each; channels are built on request.

    The methods that read records raise `HostError` if no episode has begun.
    """

    def __init__(self) -> None:
        self._rows: list[Row] = []  # one per record, with that record's arrays by name; empty = no episode has begun
        self.episode_key = ""
        """Unique text for the episode since the last begin; a copy of the recorder has the same. "" = no episode."""

    @abstractmethod
    def _build_channels(self, rows: Sequence[Row]) -> Mapping[str, object]:
        """Return the channels of the records `rows` by name, without actions; arrays have one row per record."""

    def _begin_log(self, geoms: GeomMap, source: ContactSource | None, first: Row) -> None:
        """Begin an episode with record 0, whose row is `first`. Decode its contacts from `source`, and empty `source`.
        At the end of each later control step, `source` must hold that step's contacts; None = no contacts are recorded.
        """
        # `geoms` says which recorded body, finger group and fixture owns each collision geom.
        self._geoms, self._source = geoms, source
        self.episode_key = uuid4().hex
        self._rows = [first]
        self._actions: list[Action] = []
        self._substep_counts: set[int] = set()  # the distinct numbers of substeps per control step
        # For each record whose contacts are not decoded yet: the number of substeps in the source up to that record.
        self._substep_ends: list[int] = []
        # The decoded contacts, the gripped bodies and whether bodies are supported: one item per block of records.
        self._decoded_contacts: list[ContactList] = []
        self._gripped: list[NDArray[np.int64]] = []
        self._supported: list[Bools] = []
        self._filter: ContactFilter | None = None
        # The index of a record that `_add_step` rejects, because some of its contacts were decoded too early.
        self._rejected_record: int | None = None
        if source is not None:
            contacts = source.take_contacts()
            self._filter = ContactFilter(geoms, contacts)
            self._decode_contacts(contacts, np.array([1]), substep_s=None)

    def require_episode(self) -> None:
        """Raise `HostError` if no episode has begun."""
        if not self._rows:
            raise HostError("no episode has begun", remedy="Call begin after settling, and after an error in substep.")

    def _read_action(self, action: Action) -> Floats:
        # Return a copy of the action [A]. Raise an error unless it has the length of the first action.
        size = len(self._actions[0]) if self._actions else None
        return read_list("the action", action, size, remedy="Pass a flat list of the same length in every step.")

    def _add_step(self, action: Floats, row: Row, substeps: int) -> None:
        """Add the record of a control step with this number of substeps, driven by `action` (from `_read_action`).
        Decode contacts every `BLOCK` steps. Raises `HostError` if some of the step's contacts are lost because records
        were read in the middle of the step, or if the source cannot return its contacts.
        """
        # The index of the new record is `len(self._rows)`.
        if self._rejected_record == len(self._rows):
            problem = f"the records were read in the middle of control step {len(self._rows)}, whose contacts are lost"
            raise HostError(problem, remedy="Read records between control steps, or begin the episode again.")
        self._rows.append(row)
        self._actions.append(action)
        self._substep_counts.add(substeps)
        if self._source is not None:  # contacts are recorded
            self._substep_ends.append(len(self._source))  # the number of substeps since the last decoding
            if len(self._substep_ends) == BLOCK:
                self.decode_pending()

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the sorted body pairs whose resting or mechanical contacts are left out; each pair is sorted."""
        self.require_episode()
        names = tuple(self._geoms.roles)
        # The filter lists pairs of indices in `names`; without recorded contacts, there is no filter.
        dropped = self._filter.dropped if self._filter else ()
        return tuple(sorted({(min(names[a], names[b]), max(names[a], names[b])) for a, b in dropped}))

    def step_range_s(self) -> tuple[float, float]:
        """Return the durations in s of the shortest and the longest control step; (0, inf) without steps."""
        self.require_episode()
        # The distinct numbers of substeps per control step, and the duration of a substep.
        return step_range_s(self._substep_counts, self._geoms.substep_s)

    def build_recording(self, header: Mapping[str, object]) -> EpisodeArrays:
        """Return the records up to now as one episode with this header, whose fields are `HEADER_FIELDS`.

        After a call between two control steps, recording can continue. A call in the middle of a control step may lose
        the step's contacts; then the step's record cannot be added.
        """
        self.decode_pending()
        # Each list contains one item per block of successive records. Without recorded contacts, the lists are empty.
        # `_supported` is also empty if no body's weight is known.
        contacts = join_contacts(self._decoded_contacts) if self._decoded_contacts else None
        gripped = np.concatenate(self._gripped) if self._gripped else None
        action = np.stack(self._actions) if self._actions else np.empty((0, 0))
        channels = {**self._build_channels(self._rows), "action": action}
        supported = np.concatenate(self._supported) if self._supported else None
        return assemble_recording(self._geoms, header, len(self._rows), contacts, gripped, channels, supported)

    def latest_record(self, header: Mapping[str, object]) -> EpisodeArrays:
        """Return the newest record as an episode of one record and no actions. The recorder keeps all records.

        Call this between control steps.
        """
        self.decode_pending()
        newest_contacts = gripped = supported = None
        if self._decoded_contacts:
            # Each list contains one item per block of successive records. The newest record is the last of its block.
            contacts, gripped = self._decoded_contacts[-1], self._gripped[-1][-1:]
            is_newest = contacts.record == len(self._rows) - 1
            newest_contacts = ContactList(*(column[is_newest] for column in contacts.columns().values()))
            # In the returned episode, the only record has the index 0.
            newest_contacts = replace(newest_contacts, record=np.zeros_like(newest_contacts.record))
        if self._supported:
            supported = self._supported[-1][-1:]
        # The result lacks the host-specific fields of an episode (`extra`), such as the names of sub-goals.
        channels = {**self._build_channels(self._rows[-1:]), "extra": {}}
        return assemble_recording(self._geoms, header, 1, newest_contacts, gripped, channels, supported)

    def decode_pending(self) -> None:
        """Compute the forces between bodies, and the grips, in all records that were added since the last call."""
        self.require_episode()
        if self._substep_ends:
            assert self._source is not None
            # For each record that is not decoded yet: the number of the source's substeps up to the record's end.
            ends, self._substep_ends = np.array(self._substep_ends), []
            self._decode_contacts(self._source.take_contacts(), ends, substep_s=self._geoms.substep_s)

    def _decode_contacts(self, contacts: SubstepContacts, ends: NDArray[np.int64], substep_s: float | None) -> None:
        """Decode and append the counted contacts and the gripped bodies of `R` records. `ends` [R] is the number of
        substeps up to the end of each record; later substeps are left out. `substep_s` is None for a single instant.
        """
        assert self._filter is not None
        # `contacts` contains every contact point since the last decoding. The new records follow the decoded ones.
        geoms, decoded_records = self._geoms, sum(len(block) for block in self._gripped)
        record_of_substep = decoded_records + np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        # Substeps after the last end belong to a control step without a record; `_add_step` rejects that step later.
        if contacts.substeps > ends[-1] and substep_s is not None:
            self._rejected_record = len(self._rows)
        # Indices of the contacts that count: neither resting nor mechanical contacts, nor contacts of later substeps.
        counted = np.flatnonzero(self._filter.mark_counted(contacts) & (contacts.substep < ends[-1]))
        self._decoded_contacts.append(contact_peaks(contacts, counted, record_of_substep, geoms.place, substep_s))
        # Grips and support are those in the last substep of each record, `ends - 1`.
        self._gripped.append(gripped_bodies(contacts, ends - 1, geoms))
        if geoms.weights:
            self._supported.append(supported_bodies(contacts, ends - 1, geoms))


def step_range_s(substep_counts: Collection[int], substep_s: float) -> tuple[float, float]:
    """Return the durations in s of the control steps with the fewest and the most substeps; (0, inf) without steps."""
    # `substep_counts` are the numbers of physics substeps in control steps; a substep takes `substep_s` seconds.
    if not substep_counts:
        return 0.0, math.inf
    return min(substep_counts) * substep_s, max(substep_counts) * substep_s


class WritableEpisode(Protocol):
    """An episode that a `RunWriter` can write: a recorder's episode, or an ended episode from a `BatchRecorder`."""

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of body names whose resting or mechanical contacts are left out. Each pair is sorted."""

    def build_recording(self, header: Mapping[str, object]) -> EpisodeArrays:
        """Return the records up to now as one episode with this header, whose fields are `HEADER_FIELDS`."""


# The recorder of any simulator


Shape = Hashable  # the simulator's own key of a collision shape, such as PyBullet's (body, link)
Contact = Tuple[Shape, Shape, ArrayLike]
"""Two shapes that touch, and the norm in N of the force between them at one point; for vectors see `SceneMap.forces`.

Every listed point counts as a contact. Leave out points at which shapes are close but do not touch (Bullet lists them).
"""
Pose = Tuple[ArrayLike, "ArrayLike | None"]
"""Position [3] in m and unit quaternion [4] wxyz, in the world frame; None = position only."""
ROLES = ("robot", "target", "bystander", "furniture")


@dataclass(frozen=True)
class SceneMap:
    """Names and roles of the bodies that own a simulator's collision shapes; constant over an episode.

    `shapes` maps each shape that can touch to the recorded body that owns it; one body may own several shapes. `roles`
    maps every recorded body to one of `ROLES`.
    """

    shapes: Mapping[Shape, str]
    roles: Mapping[str, str]
    substep_s: float
    fingers: tuple[Sequence[Shape], Sequence[Shape]] | None = None
    """Shapes of the gripper's two finger groups; None = there is no gripper, and grips are not recorded."""
    fixtures: Sequence[Collection[str]] = ()
    apart_substeps: int = 1
    forces: tuple[str, ...] = ("force_n",)
    """The kinds of forces that are recorded for contacts. With `net_force_n`, each contact's force must be a vector [3]
    in N: the force on the second shape, in the world frame. With `net_force_n` alone, pass the shapes' net force.
    """
    torque_source: str | None = None
    """Source of the arm's torques: `qfrc_actuator`, `drive_model`, `joint_wrench` or another name; None = unknown."""
    parts: Sequence[Part] = ()
    """Fixed bodies and robot links with their shapes. If given, every record must have the pose of each part."""
    hand: Sequence[int] = ()
    """Indices in `parts` of the hand and the fingers."""
    _index_of_shape: dict[Shape, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `HostError` for an unknown role, force or finger, and for bodies or fixture parts without a role."""
        if not self.forces or not set(self.forces) <= set(FORCES):
            raise HostError(f"the forces are {list(self.forces)}", remedy=f"Give one or both of {', '.join(FORCES)}.")
        for name, role in self.roles.items():
            if role not in ROLES:
                raise HostError(f"{name} has the unknown role {role!r}", remedy=f"Roles: {', '.join(ROLES)}.")
        # The recorded bodies that own parts of the scene's geometry; the `body` of a part without an owner is "".
        part_bodies = {part.body for part in self.parts if part.body}
        without_role = sorted({*self.shapes.values(), *chain(*self.fixtures), *part_bodies} - set(self.roles))
        if without_role:
            raise HostError(f"{without_role[0]} has no role", remedy=f"Give a role in `roles`: {', '.join(ROLES)}.")
        # The dataclass is frozen, so fill its existing dict.
        self._index_of_shape.update({shape: index for index, shape in enumerate(self.shapes)})
        for shape in chain(*(self.fingers or ())):
            self.place_of(shape)  # raises an error for an unknown shape

    def place_of(self, shape: Shape) -> int:
        """Return the index of a shape in `shapes`. Raises `HostError` for an unknown shape."""
        try:
            return self._index_of_shape[shape]
        except KeyError:
            remedy = "Map each shape that can touch to the body that owns it."
            raise HostError(f"the shape {shape!r} is not in the scene's `shapes`", remedy=remedy) from None

    def require_roles(self, bodies: Collection[str]) -> None:
        """Raise `HostError` unless every body in `bodies`, which have poses, has a role."""
        unknown = sorted(set(bodies) - set(self.roles))
        if unknown:
            raise HostError(f"{unknown[0]} has a pose but no role", remedy="Add this body to the scene's `roles`.")

    def require_parts(self, count: int) -> None:
        """Raise `HostError` unless `count`, the number of passed poses, equals the number of parts."""
        if count != len(self.parts):
            problem = f"{count} poses of parts were passed, but the scene has {len(self.parts)} parts"
            raise HostError(problem, remedy="Give `parts` a pose for each of the scene's parts, in every record.")

    def map_geoms(self) -> GeomMap:
        """Return the scene with indices instead of names: bodies sorted by name, shapes in the order of `shapes`."""
        roles = {name: self.roles[name] for name in sorted(self.roles)}
        index_of_body = {name: index for index, name in enumerate(roles)}
        # Each array has one number per shape. In `place`, this is the index of the body that owns the shape.
        # In `fingers` and `fixtures`, this is the number (from 1) of the shape's finger group or fixture; 0 = none.
        return GeomMap(
            roles=roles,
            place=np.array([index_of_body[name] for name in self.shapes.values()], dtype=np.int64),
            fingers=None if self.fingers is None else group_numbers(self.shapes, self.fingers),
            fixtures=group_numbers(self.shapes.values(), self.fixtures),
            substep_s=self.substep_s,
            apart_substeps=self.apart_substeps,
            forces=self.forces,
            torque_source=self.torque_source,
        )


@dataclass(frozen=True)
class Arm:
    """One of several arms: its recorded bodies, which do not include a torso or base, and its finger groups."""

    bodies: Collection[str]
    fingers: tuple[Sequence[Shape], Sequence[Shape]] | None = None
    """Shapes of the gripper's two finger groups; None = this arm has no gripper and never holds a body."""


class _Snapshot(NamedTuple):
    """The arguments of `begin` and `step` that describe the state at one instant, with each pose as a pair."""

    poses: Mapping[str, tuple[Any, Any]]
    eef_poses: Mapping[str, tuple[Any, Any]]  # the joined pose of all arms' end effectors; empty = not recorded
    state: Any
    parts: Mapping[str, tuple[Any, Any]]
    subgoals: Mapping[str, Any] | None


_NAME_ARMS = "Name the arms: `EpisodeRecorder(scene, arms=...)`."
_END_EFFECTOR = "the end effector"  # the name in messages


class EpisodeRecorder(EpisodeLog):
    """Records one episode in any simulator: call `begin`, then `substep` and `step`."""

    def __init__(self, scene: SceneMap, arms: Mapping[str, Arm] | None = None) -> None:
        """Store the scene and the robot's arms by name, in the order of the record; None = the robot has one arm.

        Raises `HostError` if `arms` has fewer than two arms or a value other than `Arm`, or if `scene` has `fingers` as
        well. Also raises it if an arm's body is not the robot's or is in two arms, or if a finger is in two groups.
        """
        super().__init__()
        are_arms = isinstance(arms, Mapping) and all(isinstance(arm, Arm) for arm in arms.values())
        if arms is not None and not are_arms:
            remedy = 'Write `EpisodeRecorder(scene, arms={"left": Arm(...), "right": Arm(...)})`.'
            raise HostError("the arms are not a mapping from name to Arm", remedy=remedy)
        self.scene, self._arms = scene, dict(arms or {})
        if arms is not None:
            self._check_arms()

    def begin(
        self,
        contacts: Iterable[Contact] | None,
        *,
        poses: Mapping[str, Pose],
        eef: Pose | Mapping[str, Pose] | None = None,
        torques_nm: ArrayLike | Mapping[str, ArrayLike] | None = None,
        state: ArrayLike | None = None,
        parts: Sequence[Pose] = (),
        subgoals: Mapping[str, bool] | None = None,
    ) -> None:
        """Take record 0, the settled state. Arguments that are None are not recorded in this episode.

        The previous episode is dropped, even if an unknown shape raises an error.

        Args:
            contacts: the contacts of this instant; None = the simulator does not report contacts.
            poses: poses of the tracked bodies, by name.
            eef: pose of the end effector; with several arms, a mapping from each arm's name to its pose.
            torques_nm: torques of the arm's joints [J], base first [N·m]; with several arms, a mapping from each
                arm's name to its torques. Every substep must then pass torques.
            state: all numbers that determine the simulator's state, flat, [S].
            parts: poses of the scene's `parts`, in their order, with orientations.
            subgoals: whether each predicate of the goal holds, by name.

        Raises:
            HostError: a shape or body is not in the scene, an arm is missing, or an array has a wrong shape.
        """
        self.scene.require_roles(poses)
        self._rows = []  # if an error follows, no episode has begun
        self._substeps = 0  # number of substeps in the current control step
        self._substep_torques: list[Floats] = []  # torques in each substep of the current control step
        self._contacts = _ContactBuffer(self.scene)
        if contacts is not None:
            self._contacts.add_substep(contacts)
        snapshot = self._pair_poses(poses, eef, state, parts, subgoals)
        # For several arms, each arm's number of torques in record 0; stored by `_join_torques`.
        self._joint_counts: dict[str, int] = {}
        torques = self._join_torques(torques_nm)
        self._first_description = _describe_channels(snapshot, torques)
        self._bodies, self._subgoal_names = tuple(poses), tuple(subgoals or ())  # the order is that of record 0
        torque_peak = None if torques is None else np.abs(torques)
        first = self._make_row(snapshot, torques, torque_peak)
        geoms = self._map_geoms()
        self._geometry: Geometry | None = None
        if self.scene.parts:
            self._geometry = Geometry(self.scene.parts, self.scene.hand, first["part_pos"], first["part_quat"])
            geoms = replace(geoms, geometry=self._geometry.text)
        self._begin_log(geoms, None if contacts is None else self._contacts, first)

    def _check_arms(self) -> None:
        # Raise an error unless there are several arms, and each arm has its own robot bodies and fingers.
        # A robot body, such as a torso, may be in no arm. A finger must belong to a body of its arm.
        remedy = "Put each robot body and each finger into only one arm, and pass no `fingers` in the scene."
        arm_bodies = [body for arm in self._arms.values() for body in arm.bodies]
        misassigned = sorted(
            body for body in arm_bodies if self.scene.roles.get(body) != "robot" or arm_bodies.count(body) > 1
        )
        if len(self._arms) < 2 or not all(name and isinstance(name, str) for name in self._arms):
            raise HostError(f"the arms are {list(self._arms)}", remedy="Name several arms; for one arm, omit `arms`.")
        if misassigned:
            raise HostError(f"{misassigned[0]} is not a robot body of exactly one arm", remedy=remedy)
        if self.scene.fingers is not None:
            raise HostError("a scene with several arms must not have fingers", remedy=remedy)
        # A group lists each of its shapes once here, so a shape that occurs twice is in several groups.
        fingers = [shape for arm in self._arms.values() for group in arm.fingers or () for shape in set(group)]
        for arm in self._arms.values():
            for shape in chain(*(arm.fingers or ())):
                self.scene.place_of(shape)  # raises an error for an unknown shape
                if self.scene.shapes[shape] not in arm.bodies or fingers.count(shape) > 1:
                    problem = f"the finger {shape!r} is not in exactly one finger group of its arm"
                    raise HostError(problem, remedy=remedy)

    def _map_geoms(self) -> GeomMap:
        # Return which body, finger group and fixture owns each of the scene's collision shapes, by indices.
        # If the robot has several arms, add the fingers, bodies and numbers of joints of the arms.
        geoms = self.scene.map_geoms()
        if not self._arms:
            return geoms
        # An arm without fingers has two empty groups, because `GeomMap` counts two groups per arm.
        groups = [group for arm in self._arms.values() for group in arm.fingers or ((), ())]
        has_fingers = any(len(group) > 0 for group in groups)
        fingers = group_numbers(self.scene.shapes, groups) if has_fingers else None
        bodies = {name: sorted(arm.bodies) for name, arm in self._arms.items()}
        return replace(geoms, fingers=fingers, arms=bodies, arm_joints=tuple(self._joint_counts.values()))

    def _list_by_arm(self, values: Any, plural_name: str) -> list[Any]:
        # Return the values of a mapping from arms' names to values, in the order of the arms.
        # Raise `HostError` unless its keys are the recorder's arms; the message calls the values `plural_name`.
        if not isinstance(values, Mapping) or set(values) != set(self._arms):
            remedy = f"Pass a mapping with the keys {', '.join(self._arms)}."
            raise HostError(f"the {plural_name} are not a mapping from arms' names", remedy=remedy)
        return [values[name] for name in self._arms]

    def _join_poses(self, eef: Pose | Mapping[str, Pose] | None) -> Pose | None:
        # Return the end effectors' poses of all `A` arms as one pose: positions [3A] in m, quaternions [4A] or None.
        # Without named arms, the pose of the single arm is returned unchanged. None = not recorded.
        if not self._arms and isinstance(eef, Mapping):
            raise HostError("poses that are given by arm need named arms", remedy=_NAME_ARMS)
        if not self._arms or eef is None:
            return eef  # type: ignore[return-value]  # not a mapping
        poses = self._list_by_arm(eef, "poses of the end effectors")
        shapes = {_shapes_of_arrays(pose) for pose in poses}
        # Either all arms have an orientation, or no arm has one.
        if shapes not in ({((3,), None)}, {((3,), (4,))}):
            remedy = "Give each arm a position of three numbers, and each arm or no arm an orientation of four numbers."
            raise HostError("the poses of the end effectors have different or wrong sizes", remedy=remedy)
        positions, quats = zip(*poses)
        return np.concatenate(positions), None if quats[0] is None else np.concatenate(quats)

    def _join_torques(self, torques_nm: ArrayLike | Mapping[str, ArrayLike] | None) -> Floats | None:
        # Return the torques in N·m of all arms' joints in one row [J], in the order of the arms; None = not recorded.
        # Store each arm's number of joints, and raise `HostError` if a number differs from record 0.
        if not self._arms and isinstance(torques_nm, Mapping):
            raise HostError("torques that are given by arm need named arms", remedy=_NAME_ARMS)
        if torques_nm is None:
            return None
        if not self._arms:
            return read_list("the torques", torques_nm)  # type: ignore[arg-type]  # no mapping
        by_arm = [read_list("the torques of an arm", torques) for torques in self._list_by_arm(torques_nm, "torques")]
        joint_counts = dict(zip(self._arms, map(len, by_arm)))
        if self._joint_counts and joint_counts != self._joint_counts:
            raise HostError("the torques belong to joints other than those in record 0", remedy="Pass the same joints.")
        self._joint_counts = joint_counts
        return np.concatenate(by_arm)

    def substep(
        self, contacts: Iterable[Contact] | None = None, torques_nm: ArrayLike | Mapping[str, ArrayLike] | None = None
    ) -> None:
        """Take the contacts and the arm's torques [J], N·m, of the substep that has just ended; with several arms, the
        torques of each arm by name.

        Raises `HostError` if no episode has begun, a shape is not in the scene, or the number of torques differs. Also
        raises it if contacts or torques are passed only in record 0 or only in this substep. An error ends the episode.
        """
        self.require_episode()
        rows, self._rows = self._rows, []  # an error in this substep ends the episode
        torques = self._join_torques(torques_nm)
        # Contacts and torques must be passed either always or never, and the number of torques is that of record 0.
        description = {"contacts": contacts is not None, "torques": None if torques is None else torques.shape}
        first = {"contacts": self._source is not None, "torques": self._first_description.get("torques")}
        require_same_channels(description, first)
        if contacts is not None:
            self._contacts.add_substep(contacts)
        if torques is not None:
            self._substep_torques.append(torques)
        self._substeps += 1
        self._rows = rows

    def step(
        self,
        action: ArrayLike,
        *,
        poses: Mapping[str, Pose],
        eef: Pose | Mapping[str, Pose] | None = None,
        state: ArrayLike | None = None,
        parts: Sequence[Pose] = (),
        subgoals: Mapping[str, bool] | None = None,
    ) -> None:
        """Add the record of the control step driven by `action` [A]. Call this right after the step's last physics
        substep, since the record has the torques of this substep.

        Raises `HostError` if no episode has begun, if no substep was recorded since the last record, or if records were
        read in the middle of this control step. Also raises it if bodies, channels or sizes differ from record 0, if a
        pose is not a pair or a quaternion is zero, or if the action is not a flat list as long as the first.
        """
        # The other arguments describe the state after this substep; see `begin`.
        self.require_episode()
        if not self._substeps:
            problem = f"no physics substep was recorded in control step {len(self._rows)}"
            raise HostError(problem, remedy="Call substep after each of the simulator's steps.")
        numbers = self._read_action(action)  # type: ignore[arg-type]  # the action is copied to an array
        torques = torque_peak = None  # None = torques are not recorded
        if self._substep_torques:
            torques, torque_peak = self._substep_torques[-1], np.abs(self._substep_torques).max(axis=0)
        snapshot = self._pair_poses(poses, eef, state, parts, subgoals)
        require_same_channels(_describe_channels(snapshot, torques), self._first_description)
        row = self._make_row(snapshot, torques, torque_peak)
        self._add_step(numbers, row, self._substeps)
        self._substep_torques, self._substeps = [], 0

    def _pair_poses(
        self,
        poses: Mapping[str, Pose],
        eef: Pose | Mapping[str, Pose] | None,
        state: ArrayLike | None,
        parts: Sequence[Pose],
        subgoals: Mapping[str, bool] | None,
    ) -> _Snapshot:
        # Return the arguments with each pose as a pair of position and quaternion (or None), by name.
        # All arms' end effectors are joined into one pose. Parts get the names "part 0", "part 1", ... for messages.
        joined = self._join_poses(eef)
        return _Snapshot(
            {name: split_pose(name, pose) for name, pose in poses.items()},
            {} if joined is None else {_END_EFFECTOR: split_pose(_END_EFFECTOR, joined)},
            state,
            {f"part {k}": split_pose(f"part {k}", pose) for k, pose in enumerate(parts)},
            subgoals,
        )

    def _make_row(self, snapshot: _Snapshot, torques: Floats | None, torque_peak: Floats | None) -> Row:
        # Return the arrays of one record by name. For arguments that were not passed, there are no arrays.
        # `torques` [J], N·m, are from the latest substep; `torque_peak` [J] are the control step's largest magnitudes.
        poses, eef_poses, state, parts, subgoals = snapshot
        self.scene.require_parts(len(parts))
        arm_count = len(self._arms) or 1
        allow_nan = bool(self._rows)  # record 0 must have no NaN, because displacements are measured from it
        # The shapes for `A` arms are [1, 3A] and [1, 4A].
        # The shapes for `B` bodies or parts are [B, 3] and [Q, 4]; `Q` is the number of orientations.
        eef_positions, eef_quats = _read_poses(eef_poses, arm_count, allow_nan=allow_nan)
        body_poses = {name: poses[name] for name in self._bodies}
        body_positions, body_quats = _read_poses(body_poses, allow_nan=allow_nan)
        part_positions, part_quats = _read_poses(parts)
        values: dict[str, object] = {
            "eef_pos_m": None if eef_positions is None else eef_positions[0],
            "eef_quat_wxyz": None if eef_quats is None else eef_quats[0],
            "body_pos_m": body_positions,
            "body_quat_wxyz": body_quats,
            "joint_torque_nm": torques,
            "joint_torque_peak_nm": torque_peak,
            "sim_state": None if state is None else read_list("the state", state),
            "part_pos": part_positions,
            "part_quat": part_quats,
            SUBGOALS: [bool(subgoals[name]) for name in self._subgoal_names] if subgoals else None,
        }
        return {name: np.array(value, dtype=np.float64) for name, value in values.items() if value is not None}

    def _build_channels(self, rows: Sequence[Row]) -> dict[str, object]:
        # Return the channels of the records `rows` by name, without actions: arrays with one row per record.
        # Add the lists of bodies with positions or orientations, as indices in the sorted names of the scene's bodies.
        index_of_body = {name: index for index, name in enumerate(sorted(self.scene.roles))}
        channels: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        if self._subgoal_names:
            channels.update(subgoal_fields(self._subgoal_names, channels[SUBGOALS]))
        if self._geometry is not None:
            # Store the motion of the parts relative to record 0 instead of their poses in the world.
            part_poses = channels.pop("part_pos"), channels.pop("part_quat")
            channels[LINK_MOTION] = self._geometry.measure_motion(*part_poses)
        # The description of record 0 says whether the pose of a body has an orientation.
        with_quat = [name for name in self._bodies if self._first_description[f"the pose of {name}"]]
        channels["pos_bodies"] = [index_of_body[name] for name in self._bodies]
        channels["quat_bodies"] = [index_of_body[name] for name in with_quat]
        return channels


class _ContactBuffer:
    """The contacts of the substeps since the last `take_contacts`, with indices of shapes."""

    def __init__(self, scene: SceneMap) -> None:
        # `place_of` returns a shape's index in the scene. `forces` names the kinds of forces that are recorded.
        self._place_of, self._forces = scene.place_of, scene.forces
        self._force_size = 3 if "net_force_n" in scene.forces else 1  # a vector, or only its norm
        self._rows: list[tuple[int, int, int]] = []  # substep and two indices of shapes for each contact
        self._force_n: list[Floats] = []  # for each substep, the forces in N of its contacts in one flat array
        self._substeps = 0

    def __len__(self) -> int:
        return self._substeps  # number of substeps since the last `take_contacts`

    def add_substep(self, contacts: Iterable[Contact]) -> None:
        # Store the contacts of one substep. Each contact is (shape, shape, force).
        # The force in N is a norm or, for net forces, a vector [3]. Raise `HostError` for a bad shape or force.
        place_of, substep, new_contacts = self._place_of, self._substeps, list(contacts)
        forces = [force for _, _, force in new_contacts]
        # Reject None here, because NumPy would convert it to NaN.
        force_n = None if any(force is None for force in forces) else _copy_numbers(forces)
        if force_n is None or force_n.size != len(new_contacts) * self._force_size:
            wanted = "a vector" if self._force_size == 3 else "one number"
            remedy = "Give vectors [3] if the scene's `forces` contain `net_force_n`; otherwise, give norms."
            remedy += " Convert tensors on a GPU or with a gradient to arrays first."
            raise HostError(f"the force of a contact cannot be read as {wanted}", remedy=remedy)
        self._rows += [(substep, place_of(a), place_of(b)) for a, b, _ in new_contacts]
        self._force_n.append(force_n.reshape(-1))
        self._substeps += 1

    def take_contacts(self) -> MeasuredContacts:
        # Return the contacts of all substeps since the last call, and empty the buffer.
        rows, substeps = self._rows, self._substeps
        force_n = np.concatenate([np.empty(0), *self._force_n])
        self._rows, self._force_n, self._substeps = [], [], 0
        substep, geom1, geom2 = (np.array([row[k] for row in rows], dtype=np.int64) for k in range(3))
        if self._force_size == 3:
            force_n = force_n.reshape(-1, 3)
        # If only net forces are recorded, each contact is the net contact of two shapes, not a single contact point.
        return MeasuredContacts(substeps, substep, geom1, geom2, force_n, are_net="force_n" not in self._forces)


_FLAT = "Pass a flat list: position [3], quaternion [4] wxyz, or one number per joint."


def read_list(name: str, values: ArrayLike, size: int | None = None, remedy: str = _FLAT) -> Floats:
    """Return `values` as a new array [size]; None = any size. Raises `HostError` if they are not such a flat list."""
    # Messages call the values `name`, and suggest `remedy` if the shape is wrong.
    numbers = _copy_numbers(values)
    if numbers is None:
        raise HostError(f"{name}: not a list of real numbers", remedy="Pass a flat list or array of real numbers.")
    if numbers.ndim != 1 or size not in (None, len(numbers)):
        wanted = "a flat list" if size is None else f"[{size}]"
        raise HostError(f"{name}: the shape is {list(numbers.shape)}, expected {wanted}", remedy=remedy)
    return numbers


def _copy_numbers(values: Any) -> Floats | None:
    # Return the values as a new array; None if they are not real numbers.
    try:
        array = np.asarray(values)
        return None if array.dtype.kind in "cSU" else np.array(array, dtype=np.float64)  # no complex numbers, no text
    except (TypeError, ValueError, RuntimeError):  # such as lists of different lengths, or tensors with a gradient
        return None


def split_pose(name: str, pose: Any) -> tuple[Any, Any]:
    """Return a pose's position and orientation. Raises `HostError` unless the pose has two items."""
    # Messages call the pose's owner `name`. The items are not checked; the orientation may be None.
    try:
        position, quat = pose
    except (TypeError, ValueError):
        remedy = "Pass (position, quaternion), or (position, None)."
        raise HostError(f"the pose of {name} is not a pair", remedy=remedy) from None
    return position, quat


def _shapes_of_arrays(pose: Pose | None) -> tuple[tuple[int, ...] | None, ...]:
    # Return the shapes of position and orientation, with None for a missing array; () for a missing pose.
    return () if pose is None else tuple(None if values is None else np.shape(values) for values in pose)


def _read_poses(
    poses: Mapping[str, tuple[Any, Any]], arm_count: int = 1, *, allow_nan: bool = True
) -> tuple[Floats | None, Floats | None]:
    # Return the positions [B, 3] of `B` named bodies, and the quaternions [Q, 4] of the `Q` bodies with an orientation.
    # If the poses of `arm_count` = `A` arms are joined into one pose, return [1, 3A] and [1, 4A]. None = no values.
    # Raise an error with the body's name for a wrong shape, a quaternion of zeros or, unless `allow_nan`, NaN.
    positions = {name: position for name, (position, _) in poses.items()}
    quats = {name: quat for name, (_, quat) in poses.items() if quat is not None}
    missing = [name for name, position in positions.items() if position is None]
    if missing:
        remedy = "Pass (position, quaternion), or (position, None)."
        raise HostError(f"the pose of {missing[0]} has no position", remedy=remedy)
    all_positions = _stack_lists("position", positions, 3 * arm_count, allow_nan)
    all_quats = _stack_lists("orientation", quats, 4 * arm_count, allow_nan)
    if all_quats is not None:
        is_zero = ~all_quats.reshape(-1, 4).any(axis=1)
        if is_zero.any():
            name = [*quats][int(is_zero.argmax()) // arm_count]  # each pose has `arm_count` quaternions
            problem = f"the orientation of {name} is a quaternion of zeros"
            raise HostError(problem, remedy="Pass a unit quaternion, w first.")
    return all_positions, all_quats


def _stack_lists(kind: str, lists: Mapping[str, ArrayLike], size: int, allow_nan: bool) -> Floats | None:
    # Return the `K` named lists, which have `size` numbers each, as rows [K, size]; None if there are no lists.
    # Raise an error for a list with a wrong shape or, unless `allow_nan`, with NaN.
    # The message contains `kind` and the list's name.
    if not lists:
        return None
    stacked = _copy_numbers([*lists.values()])
    if stacked is None or stacked.shape != (len(lists), size):
        # One of the lists is wrong, and `read_list` raises an error with its name.
        stacked = np.array([read_list(f"the {kind} of {name}", values, size) for name, values in lists.items()])
    if not allow_nan and np.isnan(stacked).any():
        name = [*lists][int(np.isnan(stacked).any(axis=1).argmax())]
        raise HostError(f"the {kind} of {name} has NaN", remedy="Pass finite numbers in record 0.")
    return stacked


def require_same_channels(description: Mapping[str, object], first: Mapping[str, object]) -> None:
    """Raise `HostError` unless a record or substep has the same bodies, channels and sizes as record 0. Both arguments
    map names of bodies or channels to values that must be equal, such as sizes.
    """
    # If a name is missing in one of the mappings, the value there counts as None.
    differing = sorted(name for name in {*description, *first} if description.get(name) != first.get(name))
    if differing:
        remedy = "Pass the same bodies and channels, with the same sizes, each time"
        problem = f"{differing[0]}: differs from record 0"
        raise HostError(problem, remedy=f"{remedy}; pass an empty list for no contacts.")


def _describe_channels(snapshot: _Snapshot, torques: Floats | None) -> dict[str, object]:
    # Return a mapping from each recorded channel's name in messages to a value that must be the same in all records:
    # whether a pose has an orientation, True for a sub-goal, or the shape of an array.
    # `torques` has the shape [J]; None = not recorded.
    poses = {**snapshot.poses, **snapshot.eef_poses}
    has_quat = {f"the pose of {name}": quat is not None for name, (_, quat) in poses.items()}
    arrays = {"state": snapshot.state, "torques": torques}
    goals = {f"the sub-goal {name}": True for name in snapshot.subgoals or ()}
    shapes = {
        name: values.shape if isinstance(values, np.ndarray) else read_list(f"the {name}", values).shape
        for name, values in arrays.items()
        if values is not None
    }
    return {**has_quat, **goals, **shapes}
