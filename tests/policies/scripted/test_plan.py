"""What a goal asks and what is left to do; which part of a fixture moves, and which way, on kitchens made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.interface.policy import Boxes
from safevla_bench.policies.scripted import plan, plan_stroke
from safevla_bench.policies.scripted.placement import CLOSED_M
from safevla_bench.policies.scripted.plan import (
    CAREFUL,
    FixtureGoal,
    Placement,
    goal_placements,
    remaining_subgoals,
    target_point,
)

CABINET = {
    "cabinet_1_base": ([0, 0.3, 0.1], [0.12, 0.1, 0.1]),
    "cabinet_1_part_bottom": ([0, 0.28, 0.05], [0.1, 0.11, 0.03]),
    "cabinet_1_part_top": ([0, 0.28, 0.15], [0.1, 0.11, 0.03]),
}
SITES = {"cabinet_1_bottom_region": [0, 0.3, 0.05], "cabinet_1_top_region": [0, 0.3, 0.15], "table_region": [0.3, 0, 0]}
JOINTS = {"cabinet_1_top_level": 0.0, "cabinet_1_bottom_level": -0.14}
STOVE = {"stove_1_burner": ([0.2, 0, 0], [0.1, 0.1, 0.02]), "stove_1_button": ([0, 0, 0], [0.03, 0.01, 0.02])}
OVEN = {"oven_1_main": ([0, 0.4, 0.1], [0.15, 0.1, 0.1]), "oven_1_door": ([-0.15, 0.3, 0.1], [0.02, 0.14, 0.09])}
BOWL = {"bowl": ([0.4, 0, 0.02], [0.02, 0.02, 0.02])}


@pytest.fixture
def kitchen(scene):
    """A cabinet whose bottom drawer is out, a stove that is off and an oven whose door stands open towards -y."""

    def make(goal=(), joints=(), boxes=CABINET | STOVE | OVEN | BOWL):
        setting = scene(boxes, goal, movable=("bowl",), sites=SITES)
        center = {name: np.zeros(3) for name in boxes} | {"oven_1_door": np.array([0.0, -0.14, 0.0])}
        positions = JOINTS | {"stove_1_button": 0.0, "oven_1_hinge": -np.pi / 2} | dict(joints)
        return replace(setting, joint_pos=positions, center_m=center)

    return make


def test_the_joint_is_the_one_whose_name_is_most_like_the_region(kitchen):
    assert plan.joint_position(kitchen(), "cabinet_1_bottom_region") == -0.14
    assert plan.joint_position(kitchen(), "cabinet_1_top_region") == 0.0


def test_a_drawer_is_around_its_region_and_slides_out_where_it_sticks_out(kitchen):
    fixture = plan.find_drawer(kitchen(), "cabinet_1_bottom_region")
    assert fixture.body == "cabinet_1_part_bottom"
    assert fixture.outward.tolist() == [0, -1]
    assert fixture.out_m == 0.14


def test_a_region_that_only_the_whole_fixture_is_around_is_not_a_drawer(kitchen):
    setting = kitchen(boxes=CABINET | {"cabinet_1_part_top": ([0, 0.28, 0.5], [0.1, 0.11, 0.03])})
    assert plan.find_drawer(setting, "cabinet_1_top_region") is None
    assert plan.find_drawer(kitchen(), "table_region") is None


def test_a_door_shuts_towards_the_rest_of_its_fixture(kitchen):
    fixture = plan.find_door(kitchen(), "oven_1")
    assert fixture.hinge_m.tolist() == [-0.15, 0.3]
    assert fixture.shut_rad == pytest.approx(np.pi / 2), "from -y by way of +x"


def test_the_bar_of_a_knob_is_what_stands_highest(kitchen):
    boxes = Boxes(
        center_m=np.array([[0, 0, 0.005], [0, 0, 0.02]]),
        half_extents_m=np.array([[0.03, 0.03, 0.005], [0.03, 0.006, 0.02]]),
        quat_wxyz=np.array([[1.0, 0, 0, 0]] * 2),
    )
    fixture = plan.find_knob(replace(kitchen(), pieces={"stove_1_button": boxes}), "stove_1")
    assert len(fixture.bar.top_m) == 1
    assert fixture.bar.top_m == pytest.approx([0.04])


def test_the_knob_is_pushed_round_its_axis_counter_clockwise(kitchen):
    waypoints = plan_stroke(kitchen(), FixtureGoal("turnon", "stove_1"), 0.0, CAREFUL)
    places = np.array([waypoint.place_m for waypoint in waypoints[1:]])
    np.testing.assert_allclose(np.diff(np.linalg.norm(places[:, :2], axis=1)), 0, atol=1e-9)
    assert (np.diff(np.unwrap(np.arctan2(places[:, 1], places[:, 0]))) > 0).all()
    assert np.ptp(places[:, 2]) == 0


def test_a_drawer_is_pushed_against_the_way_it_opens_and_past_shut(kitchen):
    scene = kitchen()
    waypoints = plan_stroke(scene, FixtureGoal("close", "cabinet_1_bottom_region"), 0.0, CAREFUL)
    travel = max(waypoint.place_m[1] for waypoint in waypoints) - waypoints[1].place_m[1]
    assert travel > plan.find_drawer(scene, "cabinet_1_bottom_region").out_m


@pytest.mark.parametrize(("kind", "least", "most"), [("open", 0.15, 0.2), ("ajar", 0.11, 0.15)])
def test_a_drawer_is_pulled_by_its_handle_with_closed_fingers(kitchen, kind, least, most):
    waypoints = plan_stroke(kitchen(), FixtureGoal(kind, "cabinet_1_top_region"), 0.0, CAREFUL)
    pulled = [waypoint for waypoint in waypoints if waypoint.aperture_m == CLOSED_M]
    assert least < pulled[0].place_m[1] - pulled[-1].place_m[1] < most


@pytest.mark.parametrize(
    "goal", [FixtureGoal("open", "table_region"), FixtureGoal("turnon", "cup"), FixtureGoal("close", "bowl")]
)
def test_what_the_scene_does_not_show_has_no_stroke(kitchen, goal):
    assert plan_stroke(kitchen(), goal, 0.0, CAREFUL) == ()


def test_what_must_be_open_or_on_comes_first_and_closing_last(kitchen):
    goal = (("close", "oven_1"), ("on", "bowl", "table_region"), ("turnon", "stove_1"))
    order = remaining_subgoals(kitchen(goal))
    assert order == (
        FixtureGoal("turnon", "stove_1"),
        Placement("bowl", "table_region"),
        FixtureGoal("close", "oven_1"),
    )


def test_a_closed_drawer_is_drawn_before_something_goes_in(kitchen):
    goal = (("in", "bowl", "cabinet_1_top_region"),)
    placed = Placement("bowl", "cabinet_1_top_region")
    assert remaining_subgoals(kitchen(goal)) == (FixtureGoal("ajar", "cabinet_1_top_region"), placed)
    assert remaining_subgoals(kitchen(goal, {"cabinet_1_top_level": -0.12})) == (placed,)


@pytest.mark.parametrize(
    ("predicate", "joints"),
    [
        (("open", "cabinet_1_top_region"), {"cabinet_1_top_level": -0.15}),
        (("close", "oven_1"), {"oven_1_hinge": 0.0}),
        (("turnon", "stove_1"), {"stove_1_button": 0.7}),
    ],
)
def test_what_is_done_is_not_missing(kitchen, predicate, joints):
    assert len(remaining_subgoals(kitchen((predicate,)))) == 1
    assert remaining_subgoals(kitchen((predicate,), joints)) == ()


def test_nothing_is_placed_under_a_roof(scene):
    goal = (("in", "bowl", "oven_1_region"),)
    boxes = BOWL | {"oven_1_roof": ([0, 0.4, 0.3], [0.15, 0.1, 0.01])}
    setting = scene(boxes, goal, movable=("bowl",), sites={"oven_1_region": [0, 0.4, 0.1]})
    assert goal_placements(setting) == ()


def test_objects_that_share_a_place_stand_beside_each_other(scene):
    goal = (("on", "pot", "hob_region"), ("on", "pan", "hob_region"))
    boxes = {"pot": ([0.5, 0, 0], [0.04, 0.07, 0.07]), "pan": ([0.5, 0.3, 0], [0.04, 0.07, 0.07])}
    setting = scene(boxes, goal, sites={"hob_region": [0, 0, 0]})
    spots = [target_point(setting, placement) for placement in goal_placements(setting)]
    assert spots[0] + spots[1] == pytest.approx([0, 0])
    assert abs(spots[0] - spots[1]) == pytest.approx([0.09, 0])


# Placements


TABLE = {"bowl": ([0, 0, 0], [0.05] * 3), "plate": ([0.3, 0, 0], [0.07] * 3), "cup": ([0, 0.3, 0], [0.04] * 3)}
REGIONS = {"basket_region": [0.1, 0.2, 0.05]}


@pytest.mark.parametrize(
    "predicate",
    [("open", "drawer"), ("turnon", "stove"), ("on", "stove", "plate"), ("on", "bowl", "nowhere"), ("up", "bowl")],
)
def test_what_is_not_a_placement_is_left_out(scene, predicate):
    goal = (predicate, ("on", "bowl", "plate"))
    assert goal_placements(scene(TABLE, goal, sites=REGIONS)) == (Placement("bowl", "plate"),)


def test_a_destination_is_a_body_or_a_region(scene):
    setting = scene(TABLE, sites=REGIONS)
    assert target_point(setting, Placement("bowl", "plate")).tolist() == [0.3, 0]
    assert target_point(setting, Placement("bowl", "basket_region")).tolist() == [0.1, 0.2]
