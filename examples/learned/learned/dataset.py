"""The demonstrations of one student, chosen and stacked: pictures, states and labels of every moment that was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import safevla_bench as sb
from learned.plan import CHUNK, STRIDE, TEMPERATURE, Plan, Student
from learned.record import select_demos
from safevla_bench.training.labels import label_records

Floats32 = NDArray[np.float32]
MOVE = 6
"""Numbers of an action that move the hand; the last one is the gripper's."""


@dataclass(frozen=True)
class Moments:
    """N moments: images [N, 2, H, W, 3], states [N, 11], tasks [N], places [N, 6] m, and the chunk that follows.

    moves [N, CHUNK, 6], grips [N, CHUNK] (0 opens, 1 holds, 2 closes), known [N, CHUNK]: false after the end.
    """

    images: NDArray[np.uint8]
    states: Floats32
    tasks: NDArray[np.int64]
    places: Floats32
    moves: Floats32
    grips: NDArray[np.int64]
    known: NDArray[np.bool_]
    weights: Floats32
    """Weight of each moment in the loss, [N]; their mean is 1."""

    def __len__(self) -> int:
        return len(self.images)


def choose_demos(plan: Plan, student: Student, task: int) -> list[Path]:
    """Return a student's demonstrations of a task: the first `plan.demos` of its selection, of each teacher.

    Raises:
        SystemExit: there are not enough.
    """
    paths = []
    for folder in (plan.demo_folder(teacher, task) for teacher in student.teachers):
        chosen = select_demos(folder, student.chosen)
        if len(chosen) < plan.demos:
            raise SystemExit(f"{folder} has {len(chosen)} of {plan.demos} demonstrations ({student.chosen})")
        paths += [path.with_suffix(".npz") for path in chosen[: plan.demos]]
    return paths


def load_moments(plan: Plan, student: Student) -> Moments:
    """Return the moments of all demonstrations of a student, tasks numbered by their place in the plan."""
    parts = [
        read_moments(path, place, is_weighted=student.is_weighted)
        for place, task in enumerate(plan.tasks)
        for path in choose_demos(plan, student, task)
    ]
    moments = join_moments(parts)
    return replace(moments, weights=moments.weights / moments.weights.mean())


def read_moments(path: Path, task: int, *, is_weighted: bool = False) -> Moments:
    """Return the moments of one demonstration at which a picture was rendered."""
    with np.load(path) as arrays:
        images, states = arrays["images"], arrays["states"]
        places, actions = arrays["places"], arrays["actions"]
    looked = np.arange(len(images)) * STRIDE
    ahead = looked[:, None] + np.arange(CHUNK)
    known = ahead < len(actions)
    following = actions[np.minimum(ahead, len(actions) - 1)]
    grips = np.sign(following[..., MOVE]).astype(np.int64) + 1
    tasks = np.full(len(images), task)
    weights = weigh_actions(path, len(actions))[looked] if is_weighted else np.ones(len(images), dtype=np.float32)
    return Moments(images, states[looked], tasks, places[looked], following[..., :MOVE], grips, known, weights)


def weigh_actions(path: Path, count: int) -> Floats32:
    """Return the weight of each action of a demonstration, by the record after it; 0 if it is not known."""
    batch, rules = sb.open_archive(path.with_suffix(".parquet")), sb.load_ruleset()
    weights = label_records(batch, sb.score(batch, rules), rules).weigh_records(TEMPERATURE)[1 : count + 1]
    return np.nan_to_num(weights, nan=0.0).astype(np.float32)


def read_instruction(path: Path) -> str:
    """Return the words of a demonstration's task, from the record beside it."""
    return str(sb.open_archive(path.with_suffix(".parquet")).headers[0].instruction)


def join_moments(parts: Sequence[Moments]) -> Moments:
    """Return the moments of several parts, one after the other."""
    names = Moments.__dataclass_fields__
    return Moments(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
