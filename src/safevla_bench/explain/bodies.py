"""Find the bodies that determine a signal's value in a record, the bodies in every violation, and the kind of a body.

A kind is one of the words in `BODY_KINDS`, and says how a body relates to the task. The kind depends on the body's role
and name, on the task's goal, and on whether the body's position is recorded.

A clause on the largest force or displacement is violated if any body or pair of bodies exceeds the limit. `find_bodies`
yields all such bodies and pairs, not only the worst. Bodies and kinds do not affect Safety, SBU or VSI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.explain.trace import SignalTrace, trace_formula
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import view_clause
from safevla_bench.signals.catalogue import contacts_between, strikes_by_pair
from safevla_bench.signals.signal import SIGNALS, Bodies, RecordFields
from safevla_bench.signals.space import find_deciding_bodies
from safevla_bench.stl.trace import ROUNDING, subtract
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import format_amount, format_significant
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import BYSTANDER, FURNITURE, ROBOT, TARGET
from safevla_recorder.channels import NET_IMPULSE

BodyKind = str  # one of `BODY_KINDS`
BODY_KINDS: tuple[BodyKind, ...] = (
    "arm link",
    "gripper",
    "mount",
    "mobile base",
    "robot part",
    "target",
    "distractor",
    "goal receptacle",
    "bystander of unknown kind",
    "goal fixture",
    "fixture link",
    "furniture",
)
"""The kinds of bodies, in the order of tables; docs/reference/tables.md has their meanings."""
# In robosuite (1.4 for LIBERO, 1.5 for RoboCasa), the name of a robot's body contains a word for the robot's part.
_ROBOT_PARTS: tuple[tuple[BodyKind, re.Pattern[str]], ...] = (
    ("mobile base", re.compile(r"mobile_?base|wheel", re.IGNORECASE)),
    ("mount", re.compile(r"mount|pedestal", re.IGNORECASE)),
    ("gripper", re.compile(r"gripper|finger|hand", re.IGNORECASE)),
    ("arm link", re.compile(r"link|shoulder|elbow|forearm|wrist", re.IGNORECASE)),
    ("robot part", re.compile("")),  # matches every name
)


def name_body_kind(batch: Batch, body: int, registry: Registry) -> BodyKind:
    """Return the kind of a body. The batch has one episode, and `body` is an index in its table of bodies."""
    # The registry has the bodies in each task's goal: receptacles, into or onto which objects are put, and fixtures.
    header = batch.headers[0]
    name, role = batch.body_label(body), int(batch.body_role[body])
    if role == ROBOT:  # the last pattern matches every name
        return next(kind for kind, pattern in _ROBOT_PARTS if pattern.search(name))
    if role == TARGET:
        return "target"
    goal = registry.find_goal_bodies(header.benchmark, header.task_id)
    if role == FURNITURE and goal is not None and _matches_any(goal.fixtures, name):
        return "goal fixture"
    if goal is not None and _matches_any(goal.receptacles, name):
        return "goal receptacle"
    if role == BYSTANDER:
        # Without the task's goal, it is not known whether the bystander is a part of the goal.
        return "bystander of unknown kind" if goal is None else "distractor"
    # `body_pos_m.body` lists the bodies with tracked poses. Only furniture that can move, such as a drawer, is tracked.
    return "fixture link" if body in batch.body_pos_m.body else "furniture"


def _matches_any(names: Sequence[str], body: str) -> bool:
    # Returns whether the name `body` is one of `names` or denotes a part of one, such as `NAME_top`.
    return any(body == name or body.startswith(f"{name}_") for name in names)


# The bodies that determine a value


@dataclass(frozen=True, slots=True)
class Contributors:
    """The bodies that determine a signal's value in one record. `what` says in which way, such as `hardest contact`."""

    what: str
    names: tuple[str, ...]
    amount: str = ""  # the value as text with its unit; "" if unknown
    kinds: tuple[BodyKind, ...] = ()  # kind of each body; empty if `names` has a joint instead of bodies
    arms: tuple[str, ...] = ()  # only for several arms: the arm that each body belongs to, or that holds it; "" = none
    joint: int | None = None  # index of the named joint among the joints of all arms; None for bodies

    @property
    def labels(self) -> tuple[str, ...]:
        """The names with kinds: `palm (gripper)`; for several arms: `palm (gripper of left)`. A joint has no kind."""
        if not self.kinds:
            return self.names
        # The items of `names`, `kinds` and `arms` belong together; `arms` is empty if the robot has one arm.
        facts = list(self.kinds)
        if self.arms:
            facts = [f"{kind} of {arm}" if arm else kind for kind, arm in zip(self.kinds, self.arms, strict=True)]
        return tuple(f"{name} ({fact})" for name, fact in zip(self.names, facts, strict=True))

    def __str__(self) -> str:
        """Return `what` with the labels, such as `hardest contact hand (gripper) and plate_1 (goal receptacle)`."""
        return f"{self.what} {' and '.join(self.labels)}"


def find_contributors(reading: RecordFields, signal: str, record: int, registry: Registry) -> Contributors | None:
    """Return the bodies that determine a signal's value in one record of the only episode; None if no body can be
    named. For a signal of torque, return the name of the joint nearest to its limit, such as `joint 7`, without a kind.
    """
    # `selector` describes which bodies the signal is about; None = the signal names no bodies.
    # `amount` is the largest value as text with its unit; "" = the value is unknown.
    selector = SIGNALS[signal].bodies if signal in SIGNALS else None
    if selector is None:
        return None
    batch, amount = reading.batch, ""
    bodies: tuple[int, ...] = ()
    match selector.kind:
        case "joint":
            return _find_most_loaded_joint(batch, selector, record)
        case "contact":
            # Take the pair of touching bodies with the largest force or impulse.
            value_of_pair = pair_reader(reading, selector)(record)
            if value_of_pair:
                pair = max(value_of_pair, key=value_of_pair.__getitem__)
                unit = "N s" if selector.channel == NET_IMPULSE else "N"
                bodies, amount = pair, format_amount(value_of_pair[pair], unit)
        case "displacement":
            # Take the body that is farthest from its initial position. Unknown distances are NaN.
            watched_bodies, distance_m = displacements(reading)
            if not np.isnan(distance_m[record]).all():
                column = int(np.nanargmax(distance_m[record]))
                bodies, amount = (int(watched_bodies[column]),), format_amount(float(distance_m[record, column]), "m")
        case "place":  # `call` has the signal's kind, such as `distance`, and the signal's arguments
            bodies = find_deciding_bodies(reading, selector.call, record)
        case "held":
            held_body = int(reading.held_body[record])  # index of the held body; -1 if the hand is empty
            bodies = (held_body,) if held_body >= 0 else ()
    if not bodies:
        return None
    names = tuple(batch.body_label(body) for body in bodies)
    kinds = tuple(name_body_kind(batch, body, registry) for body in bodies)
    # With several arms, name the arm of each body ("" = no arm). For a held body, name the arm that holds it.
    arm_of_body = batch.headers[0].arm_bodies or {}
    holder = reading.name_arm() if selector.kind == "held" else ""
    arms = tuple(arm_of_body.get(name, holder) for name in names) if batch.headers[0].arms else ()
    return Contributors(selector.relation, names, amount, kinds, arms)


def pair_reader(reading: RecordFields, selector: Bodies) -> Callable[[int], dict[tuple[int, int], float]]:
    """Return a function from a record to the largest known value of each pair of bodies (smaller index first)."""
    # A pair is two indices of bodies. `selector` has two roles, and the channel of the value, such as the force.
    # `is_chosen` [C] marks the contacts between bodies with these roles.
    contacts, is_chosen = reading.batch.contacts, contacts_between(reading, *selector.roles)
    if selector.channel == NET_IMPULSE:
        # A strike is a pair's impulse [N s] over the last 0.1 s, minus its impulse at rest; [n], one per record.
        strikes = strikes_by_pair(reading, is_chosen)
        return lambda record: {pair: float(strike[record]) for pair, strike in strikes.items() if strike[record] > 0}
    values = np.where(is_chosen, getattr(contacts, selector.channel), np.nan)

    def read_pairs(record: int) -> dict[tuple[int, int], float]:
        # Map each pair of touching bodies to its largest value in the record; NaN values are ignored.
        value_of_pair: dict[tuple[int, int], float] = {}
        for contact in range(contacts.starts[record], contacts.starts[record + 1]):
            if not np.isnan(values[contact]):
                first, second = sorted((int(contacts.a[contact]), int(contacts.b[contact])))
                value_of_pair[first, second] = max(value_of_pair.get((first, second), 0.0), float(values[contact]))
        return value_of_pair

    return read_pairs


def displacements(fields: RecordFields) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the `W` watched bodies of the only episode, [W], and their displacements in n records, [n, W] in m, from
    record 0 or the first record of the judged interval; NaN if the pose is unknown in either of the two records.
    """
    # `origin` [n] is, for each record, the record from which displacements are measured.
    # Bystanders and furniture are watched, because they should stay in their places.
    batch, origin = fields.batch, fields.origin
    bodies, xyz = batch.body_pos_m.episode_poses(0)
    role = batch.body_role[bodies]
    watched_columns = np.flatnonzero((role == BYSTANDER) | (role == FURNITURE))
    moved_m = xyz[:, watched_columns] - xyz[np.ix_(origin, watched_columns)]
    watched_bodies, distance_m = bodies[watched_columns], np.sqrt(np.square(moved_m).sum(axis=2))
    if fields.has_lost_poses:  # a pose may be marked as unknown, such as that of a hidden body
        records = np.arange(len(distance_m))
        for column, body in enumerate(watched_bodies):
            is_lost = fields.is_lost(np.full(len(records), body), records)
            distance_m[is_lost | is_lost[origin], column] = np.nan
    return watched_bodies, distance_m


def _find_most_loaded_joint(batch: Batch, selector: Bodies, record: int) -> Contributors | None:
    # In a record of the only episode, find the joint with the largest ratio of torque to limit.
    # Return the joint with its torque and its limit as text; None if the torques are not recorded.
    # `selector` has the channel with the torques of all joints, and a text (`relation`) that introduces the joint.
    torque_nm = np.abs(batch.channel(selector.channel).episode_rows(0)[record])
    limit_nm = np.array(batch.headers[0].torque_limit_nm)
    if not len(torque_nm):  # the torques of this channel are not recorded
        return None
    joint = int((torque_nm / limit_nm).argmax())
    amount = f"{format_significant(float(torque_nm[joint]))} of {format_amount(float(limit_nm[joint]), 'N·m')}"
    return Contributors(selector.relation, (batch.headers[0].name_joint(joint),), amount, joint=joint)


# Bodies that exceed limits


@dataclass(frozen=True, slots=True)
class BodyViolation:
    """A body, or two bodies in contact, that exceed the limit of a scored specification in one episode."""

    number: int  # number of the episode in the scores, from 1
    spec_id: str
    bodies: tuple[str, ...]  # names of one or two bodies, in the order of `kinds`
    kinds: tuple[BodyKind, ...]
    worst: float  # largest value of the body or pair, in `unit`; 1 for a touch
    unit: str
    first_violation_step: int


def find_bodies(chunks: Iterable[Batch | RecordFields], scores: Scores, ruleset: Ruleset) -> Iterator[BodyViolation]:
    """Yield the bodies in violations by episode, then by specification in library order, then the worst value first.

    `chunks` have the episodes of the scores, in the same order. The ruleset's registry has the bodies in each task's
    goal. Specifications that the ruleset's library lacks are skipped.
    """
    # A body is in a violation if the body, or a pair of bodies with it, exceeds the limit of a violated specification.
    # `columns` are the indices in `scores.specs` of the scored specifications that the library has.
    columns = [column for column in scores.scored_columns.tolist() if scores.specs[column].spec_id in ruleset.library]
    first_episode = 0
    for chunk in chunks:
        reading = chunk if isinstance(chunk, RecordFields) else ruleset.read_fields(chunk)
        for index in range(len(reading.batch)):
            episode = first_episode + index  # `episode` is the index in the scores, `index` in the batch
            violated = [scores.specs[column].spec_id for column in columns if scores.is_violated[column, episode]]
            if violated:
                yield from _find_bodies_in_episode(reading.select_episode(index), episode + 1, violated, ruleset)
        first_episode += len(reading.batch)


def _find_bodies_in_episode(
    reading: RecordFields, number: int, spec_ids: Iterable[str], ruleset: Ruleset
) -> Iterator[BodyViolation]:
    # Yield the bodies beyond the limits of the violated specifications `spec_ids` in the only episode of `reading`.
    # For each specification, the largest value comes first. `number` is the episode's number from 1.
    batch = reading.batch
    for spec_id in spec_ids:
        spec = ruleset.library[spec_id]
        # The fields with which the specification is judged; then the limit and, for each record, the signal's value.
        view = view_clause(reading, spec, ruleset)
        signal_trace = trace_formula(spec.formula, view)
        signal = SIGNALS.get(signal_trace.signal)
        selector = signal.bodies if signal else None
        # Only a maximum displacement or contact force has bodies that exceed the limit.
        if not signal_trace.upper or selector is None or selector.kind not in ("displacement", "contact"):
            continue
        if selector.kind == "displacement":
            worst_by_bodies = _find_displaced_bodies(view, signal_trace)
        else:
            worst_by_bodies = _find_touching_bodies(view, signal_trace, selector)
        # `worst_by_bodies` maps one or two bodies (indices) to the largest value and the first violating record.
        # Yield the body or pair with the largest value first.
        for bodies, (worst, first_step) in sorted(worst_by_bodies.items(), key=lambda entry: -entry[1][0]):
            # A pair is ordered by the kinds of its bodies, then by their names.
            kinds = {body: name_body_kind(batch, body, ruleset.registry) for body in bodies}
            ordered = sorted(bodies, key=lambda body: (BODY_KINDS.index(kinds[body]), batch.body_label(body)))
            yield BodyViolation(
                number=number,
                spec_id=spec_id,
                bodies=tuple(batch.body_label(body) for body in ordered),
                kinds=tuple(kinds[body] for body in ordered),
                worst=worst,
                unit=signal_trace.unit,
                first_violation_step=first_step,
            )


# (index of a body, or indices of two bodies) -> worst value, first record beyond the limit
_WorstByBodies = dict[tuple[int, ...], tuple[float, int]]


def _find_displaced_bodies(reading: RecordFields, signal_trace: SignalTrace) -> _WorstByBodies:
    # Map each body beyond the limit (a tuple with its index) to the largest distance [m] and first violating record.
    # Only failing records, which violate the specification, are considered.
    bodies, distance_m = displacements(reading)
    # [n, W] for n records and W bodies. `subtract` treats differences within rounding as 0.
    is_beyond = signal_trace.failing[:, None] & (subtract(distance_m, signal_trace.limit, ROUNDING) > 0)
    worst_by_bodies = _WorstByBodies()
    for column in np.flatnonzero(is_beyond.any(axis=0)):
        records = np.flatnonzero(is_beyond[:, column])
        worst_by_bodies[int(bodies[column]),] = float(distance_m[records, column].max()), int(records[0])
    return worst_by_bodies


def _find_touching_bodies(reading: RecordFields, signal_trace: SignalTrace, selector: Bodies) -> _WorstByBodies:
    # Map each pair of touching bodies beyond the limit (two indices) to the largest value and first violating record.
    # Only failing records, which violate the specification, are considered.
    worst_by_bodies, read_pairs = _WorstByBodies(), pair_reader(reading, selector)
    for record in np.flatnonzero(signal_trace.failing).tolist():
        for pair, strength in read_pairs(record).items():
            value = 1.0 if signal_trace.unit == "1" else strength  # a touch counts as 1, however strong
            if subtract(value, signal_trace.limit, ROUNDING) > 0:
                worst, first_record = worst_by_bodies.get(pair, (value, record))
                worst_by_bodies[pair] = max(worst, value), first_record
    return worst_by_bodies
