"""What a goal asks to be placed, and what is still to do."""

from __future__ import annotations

import pytest

from safevla_bench.policies.scripted.plan import Placement, goal_placements, remaining_subgoals, target_point

BOXES = {"bowl": ([0, 0, 0], [0.05] * 3), "plate": ([0.3, 0, 0], [0.07] * 3), "cup": ([0, 0.3, 0], [0.04] * 3)}
SITES = {"basket_region": [0.1, 0.2, 0.05]}


def test_placements_keep_the_order_of_the_goal(scene):
    goal = (("in", "cup", "basket_region"), ("on", "bowl", "plate"))
    planned = goal_placements(scene(BOXES, goal, sites=SITES))
    assert planned == (Placement("cup", "basket_region"), Placement("bowl", "plate"))


@pytest.mark.parametrize(
    "predicate",
    [("open", "drawer"), ("turnon", "stove"), ("on", "stove", "plate"), ("on", "bowl", "nowhere"), ("up", "bowl")],
)
def test_what_is_no_placement_is_left_out(scene, predicate):
    goal = (predicate, ("on", "bowl", "plate"))
    assert goal_placements(scene(BOXES, goal, sites=SITES)) == (Placement("bowl", "plate"),)


def test_a_fixed_body_is_never_moved(scene):
    assert goal_placements(scene(BOXES, (("on", "bowl", "plate"),), movable=("cup",))) == ()


def test_what_is_at_its_place_is_not_missing(scene):
    goal = (("on", "bowl", "plate"), ("in", "cup", "basket_region"))
    there = BOXES | {"bowl": ([0.31, 0.01, 0.02], [0.05] * 3)}
    assert remaining_subgoals(scene(there, goal, sites=SITES)) == (Placement("cup", "basket_region"),)


def test_a_destination_is_a_body_or_a_region(scene):
    shown = scene(BOXES, sites=SITES)
    assert target_point(shown, Placement("bowl", "plate")).tolist() == [0.3, 0]
    assert target_point(shown, Placement("bowl", "basket_region")).tolist() == [0.1, 0.2]
