"""Kinds of bodies: what a body of a violation is to the task, by its role, its name and the task's goal.

The vocabulary is closed. The role and the position are the record's. The goal's bodies are the registry's
(`[goal_bodies]`); where it has none for the task, bystanders are of unknown kind. Parts of the robot are told by the
names that robosuite gives them. A kind decides no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from safevla_bench.tasks import GoalBodies, Registry
from safevla_bench.trajectory import BYSTANDER, FURNITURE, ROBOT, TARGET, Batch

BodyKind = Literal[
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
]
BODY_KINDS: tuple[BodyKind, ...] = get_args(BodyKind)
KIND_MEANINGS: Mapping[BodyKind, str] = {
    "arm link": "a link of the robot's arm",
    "gripper": "hand and fingers",
    "mount": "what a fixed arm stands on",
    "mobile base": "what drives the arm about",
    "robot part": "of the robot, and its name tells no more",
    "target": "an object that the goal puts somewhere",
    "distractor": "a free object that the goal does not name",
    "goal receptacle": "what the goal puts an object in or on: a plate, a basket, a drawer's cabinet, a stove",
    "bystander of unknown kind": "a free object of a task whose goal the registry does not know",
    "goal fixture": "a fixture of which the goal moves a joint",
    "fixture link": "a link of another articulated fixture, whose position is recorded",
    "furniture": "everything else: table, walls, floor, parts that do not move",
}
# robosuite prefixes the bodies of a robot by the part that they belong to (1.4: LIBERO; 1.5: RoboCasa).
_ROBOT_PARTS: tuple[tuple[BodyKind, re.Pattern[str]], ...] = (
    ("mobile base", re.compile(r"mobile_?base|wheel", re.IGNORECASE)),
    ("mount", re.compile(r"mount|pedestal", re.IGNORECASE)),
    ("gripper", re.compile(r"gripper|finger|hand", re.IGNORECASE)),
    ("arm link", re.compile(r"link|shoulder|elbow|forearm|wrist", re.IGNORECASE)),
)


def name_body_kind(batch: Batch, episode: int, body: int, registry: Registry) -> BodyKind:
    """Return the kind of a body of the batch's table, which belongs to that episode."""
    header, poses = batch.headers[episode], batch.body_pos_m
    posed = poses.body[poses.body_starts[episode] : poses.body_starts[episode + 1]]
    goal = registry.find_goal_bodies(header.benchmark, header.task_id)
    return _body_kind(batch.body_label(body), int(batch.body_role[body]), body in posed, goal)


def _body_kind(name: str, role: int, is_posed: bool, goal: GoalBodies | None) -> BodyKind:
    if role == ROBOT:
        return next((kind for kind, pattern in _ROBOT_PARTS if pattern.search(name)), "robot part")
    if role == TARGET:
        return "target"
    if role == FURNITURE and goal is not None and _names_body(goal.fixtures, name):
        return "goal fixture"
    if goal is not None and _names_body(goal.receptacles, name):
        return "goal receptacle"
    if role == BYSTANDER:
        return "bystander of unknown kind" if goal is None else "distractor"
    return "fixture link" if is_posed else "furniture"


def _names_body(names: Sequence[str], body: str) -> bool:
    """Return whether the body has one of the names, or is a part of the fixture of that name."""
    return any(body == name or body.startswith(f"{name}_") for name in names)
