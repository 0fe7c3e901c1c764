"""Distances between boxes agree with an independent convex solver, overlaps and near-parallel boxes included."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from safevla_bench.signals.box_distance import WorldBoxes, box_distances

COUNT = 150


def random_pairs(kind: str) -> tuple[WorldBoxes, WorldBoxes]:
    rng = np.random.default_rng(list(kind.encode()))
    turns = rng.normal(size=(2, COUNT, 4))
    if kind == "crossing":
        turns[:, :, 1:3] = 0.0  # all vertical
    elif kind != "skew":
        turns[1] = turns[0] + (rng.normal(size=(COUNT, 4)) * 1e-5 if kind == "nearly parallel" else 0.0)
    turns /= np.linalg.norm(turns, axis=-1, keepdims=True)
    half = rng.uniform(0, 0.2, (2, COUNT, 3)) * (rng.random((2, COUNT, 3)) > 0.1)  # some are plates or rods
    center = rng.normal(size=(2, COUNT, 3)) * (0.05 if kind == "crossing" else 0.25)
    center[1, :, 2] += 0.2 * (kind == "crossing")  # one above the other, so that faces and edges cross
    return WorldBoxes.from_quaternions(center[0], turns[0], half[0]), WorldBoxes.from_quaternions(
        center[1], turns[1], half[1]
    )


def solve(a: WorldBoxes, b: WorldBoxes) -> NDArray[np.float64]:
    """The least distance by bounded least squares over the coordinates of both nearest points."""
    distances = []
    for k in range(len(a.center)):
        bound = np.concatenate([a.half[k], b.half[k]]) + 1e-13
        columns = np.hstack([a.axes[k].T, -b.axes[k].T])
        found = lsq_linear(columns, b.center[k] - a.center[k], (-bound, bound), method="bvls", tol=1e-15)
        distances.append(np.linalg.norm(found.fun))
    return np.array(distances)


@pytest.mark.parametrize("kind", ["skew", "parallel", "nearly parallel", "crossing"])
def test_distances_are_those_of_a_convex_solver(kind: str) -> None:
    a, b = random_pairs(kind)
    expected = solve(a, b)
    assert 0.02 < (expected < 1e-9).mean() < 0.5  # some overlap
    np.testing.assert_allclose(box_distances(a, b), expected, atol=2e-9)
    np.testing.assert_allclose(box_distances(b, a), expected, atol=2e-9)


def test_the_least_distance_of_a_group_does_not_depend_on_what_is_left_out() -> None:
    a, b = random_pairs("skew")
    owner = np.arange(COUNT) // 10
    every, some = box_distances(a, b).reshape(-1, 10), box_distances(a, b, owner).reshape(-1, 10)
    np.testing.assert_allclose(some.min(axis=1), every.min(axis=1), atol=2e-9)
    assert (some <= every + 2e-9).all()


def test_axes_are_unit_vectors_though_records_round_quaternions() -> None:
    """A norm of 1 + 1e-6 would scale a box's distances by twice that."""
    turns = np.random.default_rng(3).normal(size=(20, 4))
    turns /= np.linalg.norm(turns, axis=1, keepdims=True)
    exact, rounded = (
        WorldBoxes.from_quaternions(np.zeros((20, 3)), turns * (1.0 + off), np.ones((20, 3))) for off in (0.0, 1e-6)
    )
    np.testing.assert_allclose(rounded.axes, exact.axes, atol=1e-15)
