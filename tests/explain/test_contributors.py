"""Kinds of bodies: a closed vocabulary, from role, name, recorded position and the task's goal, never a guess."""

from __future__ import annotations

import numpy as np
import pytest

from report.scenes import rollout
from safevla_bench.explain.bodies import BODY_KINDS, KIND_MEANINGS, name_body_kind
from safevla_bench.tasks.loader import registry
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Recording

REGISTRY = registry()


def kinds(roles: dict[str, str], benchmark: str, task_id: str, posed: tuple[str, ...] = ()) -> dict[str, str]:
    """Kind of each body of an episode of one record."""
    header = {"episode_id": "e", "benchmark": benchmark, "task_id": task_id, "success": True, "dt": 0.05,
              "target_object": None}  # fmt: skip
    places = tuple(k for k, name in enumerate(roles) if name in posed)
    positions = {"pos_bodies": places, "body_pos_m": np.zeros((1, len(places), 3))} if places else {}
    batch = from_recording(Recording(header=header, roles=roles, records=1, eef_pos_m=np.zeros((1, 3)), **positions))
    return {batch.body_label(body): name_body_kind(batch, 0, body, REGISTRY) for body in range(len(batch.body_role))}


def test_the_vocabulary_is_closed_and_each_kind_has_a_meaning():
    assert set(KIND_MEANINGS) == set(BODY_KINDS)
    assert len(set(BODY_KINDS)) == len(BODY_KINDS)


# Bodies of LIBERO (robosuite 1.4) and of RoboCasa (robosuite 1.5) as their recorders name them.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("robot0_link5", "arm link"),
        ("gripper0_leftfinger", "gripper"),
        ("gripper0_finger_joint1_tip", "gripper"),
        ("gripper0_right_right_gripper", "gripper"),
        ("mount0_pedestal_feet", "mount"),
        ("mount0_controller_box", "mount"),
        ("mobilebase0_support", "mobile base"),
        ("mobilebase0_wheeled_base", "mobile base"),
        ("thing", "robot part"),
    ],
)
def test_parts_of_the_robot_are_told_by_robosuite_s_names(name, kind):
    assert kinds({name: "robot"}, "libero-spatial", "task_0") == {name: kind}


def test_bystanders_are_receptacles_where_the_goal_names_them_and_distractors_elsewhere():
    roles = {"bowl_1": "target", "plate_1": "bystander", "plate_10": "bystander", "cookies_1": "bystander"}
    assert kinds(roles, "libero-spatial", "task_0") == {
        "bowl_1": "target",
        "plate_1": "goal receptacle",
        "plate_10": "distractor",
        "cookies_1": "distractor",
    }


def test_a_task_whose_goal_is_not_known_has_bystanders_of_unknown_kind():
    roles = {"plate_1": "bystander", "table": "furniture"}
    assert kinds(roles, "libero-spatial", "task_99") == {
        "plate_1": "bystander of unknown kind",
        "table": "furniture",
    }


def test_libero_long_has_the_goals_of_libero_10():
    assert REGISTRY.find_goal_bodies("libero-long", "task_0") == REGISTRY.find_goal_bodies("libero-10", "task_0")
    assert REGISTRY.find_goal_bodies("libero-10", "task_0").receptacles == ("basket_1",)


def test_fixtures_are_the_goal_s_or_links_with_a_position_or_furniture():
    roles = {
        "flat_stove_1_button": "furniture",
        "wooden_cabinet_1_cabinet_top": "furniture",
        "wooden_cabinet_1_base": "furniture",
        "table": "furniture",
    }
    tracked = ("wooden_cabinet_1_cabinet_top",)
    turned = {"flat_stove_1_button": "goal fixture", "wooden_cabinet_1_cabinet_top": "fixture link",
              "wooden_cabinet_1_base": "furniture", "table": "furniture"}  # fmt: skip
    assert kinds(roles, "libero-goal", "task_7", tracked) == turned
    on_top = {**dict.fromkeys(roles, "goal receptacle"), "flat_stove_1_button": "furniture", "table": "furniture"}
    assert kinds(roles, "libero-goal", "task_4", tracked) == on_top


def test_the_target_is_no_receptacle_though_another_goal_puts_something_on_it():
    assert kinds({"plate_1": "target"}, "libero-spatial", "task_0") == {"plate_1": "target"}


def test_the_kinds_of_an_ordinary_episode_are_all_of_the_vocabulary():
    batch = rollout(0)
    found = {name_body_kind(batch, 0, body, REGISTRY) for body in range(len(batch.body_role))}
    assert found <= set(BODY_KINDS)
    assert found == {"arm link", "gripper", "target", "goal receptacle", "fixture link", "furniture"}
