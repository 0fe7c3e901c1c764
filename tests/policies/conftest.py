"""A scene in a few lines: bodies as boxes, an observation of a hand over them."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_bench.interface.policy import Observation, Privileged
from safevla_bench.interface.task import Task

UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
TASK = Task("fake", "task_0", 0, "place", "put it there", (0.0,) * 6 + (-1.0,), 1)


def freeze(numbers) -> np.ndarray:
    array = np.array(numbers, dtype=np.float64)
    array.flags.writeable = False
    return array


def scene(boxes, goal=(), *, movable=None, sites=None, pieces=None, turned=None) -> Privileged:
    """`boxes`: name -> (center, half extents); every array read-only, as hosts give them."""
    turned = turned or {}
    return Privileged(
        body_pos_m={name: freeze(center) for name, (center, _) in boxes.items()},
        body_quat_wxyz={name: freeze(turned.get(name, UPRIGHT)) for name in boxes},
        half_extents_m={name: freeze(half) for name, (_, half) in boxes.items()},
        center_m={name: freeze([0, 0, 0]) for name in boxes},
        sites_m={name: freeze(place) for name, place in (sites or {}).items()},
        goal=tuple(goal),
        movable=frozenset(boxes if movable is None else movable),
        pieces=pieces or {},
    )


def observe(privileged, eef=(-0.2, 0.0, 0.3), aperture=0.039) -> Observation:
    return Observation(
        instruction="put it there",
        eef_pos_m=freeze(eef),
        eef_quat_wxyz=freeze([0.0, 1.0, 0.0, 0.0]),
        gripper_qpos=freeze([aperture, -aperture]),
        privileged=privileged,
    )


@pytest.fixture(name="scene")
def _scene():
    return scene


@pytest.fixture(name="observe")
def _observe():
    return observe


@pytest.fixture
def task() -> Task:
    return TASK
