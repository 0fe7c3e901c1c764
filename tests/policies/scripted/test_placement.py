"""What a goal asks to be placed, and where a grasp goes: across the narrow side, at a free rim, off neighbors."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_bench.policies.scripted import motion
from safevla_bench.policies.scripted.placement import (
    DEPTH_M,
    LEAST_HEIGHT_M,
    Placement,
    placements_left,
    rank_grasps,
    target_point,
)

CARTON = ([-0.1, 0.0, 0.05], [0.02, 0.06, 0.05])
BOWL = ([-0.1, 0.0, 0.03], [0.055, 0.055, 0.03])


def best(scene, name, clearance=0.02):
    return rank_grasps(scene, name, motion.obstacles_except(scene, name), 0.0, clearance)[0]


def opening_axis(yaw: float) -> np.ndarray:
    return np.array([np.sin(yaw), -np.cos(yaw)])


def test_a_carton_is_held_across_its_narrow_side_in_its_middle_below_its_top(scene):
    grasp = best(scene({"carton": CARTON}), "carton")
    assert abs(opening_axis(grasp.yaw_rad)[0]) == pytest.approx(1.0)
    assert grasp.place_m == pytest.approx([-0.1, 0.0, 0.10 - DEPTH_M])
    assert 0.02 < grasp.aperture_m < 0.04


def test_a_flat_box_is_held_above_what_it_lies_on(scene):
    grasp = best(scene({"butter": ([-0.1, 0, 0.009], [0.02, 0.04, 0.009])}), "butter")
    assert grasp.place_m[2] == pytest.approx(LEAST_HEIGHT_M)


def test_what_is_wider_than_the_fingers_is_held_at_its_rim_with_the_fingers_across_it(scene):
    grasp = best(scene({"bowl": BOWL}), "bowl")
    outward = grasp.place_m[:2] - [-0.1, 0.0]
    assert np.linalg.norm(outward) == pytest.approx(0.05)
    assert abs(opening_axis(grasp.yaw_rad) @ outward) == pytest.approx(0.05)


@pytest.mark.parametrize("side", [1, -1])
def test_the_rim_is_held_on_the_side_away_from_a_tall_neighbor(scene, side):
    wall = ([-0.1, side * 0.13, 0.15], [0.2, 0.02, 0.15])
    grasp = best(scene({"bowl": BOWL, "wall": wall}), "bowl")
    assert grasp.blocked_m[0] == 0
    rig = motion.hand_prisms(grasp.yaw_rad, grasp.aperture_m)
    reach = rig.reach_m.max(axis=0)[18 if side > 0 else 54]
    assert side * grasp.place_m[1] + reach < 0.11, "the hand ends before the wall begins"


def test_a_neighbor_beside_a_flat_box_makes_the_hand_shift_or_skew_and_stay_low(scene):
    butter, can = ([-0.1, 0.0, 0.009], [0.041, 0.021, 0.009]), ([-0.055, -0.1, 0.04], [0.03, 0.03, 0.04])
    alone, beside = best(scene({"butter": butter}), "butter"), best(scene({"butter": butter, "can": can}), "butter")
    assert beside.place_m[2] == alone.place_m[2]
    assert (*beside.place_m, beside.yaw_rad) != (*alone.place_m, alone.yaw_rad)
    rig = motion.hand_prisms(beside.yaw_rad, beside.aperture_m)
    obstacle = motion.body_prisms(scene({"can": can}), "can")
    assert motion.lowest_heights(rig, beside.place_m[None, :2], obstacle, 0.0, 0.0)[0] <= beside.place_m[2]


def test_neighbors_only_ever_raise_a_grasp(scene):
    rng = np.random.default_rng(0)
    for _ in range(20):
        neighbor = ([*rng.uniform(-0.2, 0.0, 2), 0.05], [0.03, 0.03, 0.05])
        crowded, free = scene({"bowl": BOWL, "neighbor": neighbor}), scene({"bowl": BOWL})
        assert best(crowded, "bowl").blocked_m[0] >= best(free, "bowl").blocked_m[0] >= 0


def test_a_grasp_is_offered_even_if_everything_is_blocked(scene):
    crowd = {f"wall_{k}": ([-0.1 + x, y, 0.2], [0.05, 0.05, 0.2]) for k, (x, y) in enumerate(np.eye(2) * 0.1)}
    grasps = rank_grasps(scene({"bowl": BOWL, **crowd}), "bowl", motion.obstacles_except(scene(crowd)), 0.0, 0.02)
    assert len(grasps) > 1
    assert [grasp.blocked_m[0] > 0.016 for grasp in grasps] == sorted(grasp.blocked_m[0] > 0.016 for grasp in grasps)


# Goals


TABLE = {
    "bowl": ([0, 0, 0.05], [0.05] * 3),
    "plate": ([0.3, 0, 0], [0.07, 0.07, 0.01]),
    "cup": ([0, 0.3, 0], [0.04] * 3),
}
REGIONS = {"basket_region": [0.1, 0.2, 0.05]}


@pytest.mark.parametrize(
    "predicate",
    [
        ("open", "drawer"),
        ("turnon", "stove"),
        ("on", "stove", "plate"),
        ("on", "bowl", "nowhere"),
        ("up", "bowl"),
        pytest.param(("on", "plate", "basket_region"), id="wide and flat"),
        pytest.param(("on", "cup", "cup_region"), id="there already"),
    ],
)
def test_what_cannot_be_placed_or_is_there_is_left_out(scene, predicate):
    goal = (predicate, ("on", "bowl", "plate"))
    shown = scene(TABLE, goal, sites=REGIONS | {"cup_region": [0, 0.3, 0]})
    assert placements_left(shown) == (Placement("bowl", "plate"),)


def test_nothing_is_placed_under_a_roof(scene):
    goal = (("in", "bowl", "oven_1_region"),)
    boxes = TABLE | {"oven_1_roof": ([0, 0.4, 0.3], [0.15, 0.1, 0.01])}
    assert placements_left(scene(boxes, goal, movable=("bowl",), sites={"oven_1_region": [0, 0.4, 0.1]})) == ()


@pytest.mark.parametrize(("place", "point"), [("plate", [0.3, 0]), ("basket_region", [0.1, 0.2])])
def test_a_destination_is_a_body_or_a_region(scene, place, point):
    assert target_point(scene(TABLE, sites=REGIONS), place).tolist() == point
