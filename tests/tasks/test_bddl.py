"""Reading BDDL: what LIBERO reads, without LIBERO; and clear errors for what is none."""

from __future__ import annotations

import pytest

from safevla_bench.errors import RegistryError
from safevla_bench.tasks import bddl
from safevla_bench.tasks.entries import GoalBodies

TEXT = """
(define (problem LIBERO_Tabletop_Manipulation)  ; a comment (with a bracket
  (:domain robosuite)
  (:language Put the Bowl in the drawer)
  (:regions (bowl_region (:target table) (:ranges ((-0.1 0 0.1 0.2))))
            (top_region (:target wooden_cabinet_1)))
  (:fixtures table - table
             wooden_cabinet_1 - wooden_cabinet)
  (:objects bowl_1 bowl_2 - akita_black_bowl plate_1 - plate)
  (:init (On bowl_1 table_bowl_region) (Open wooden_cabinet_1_top_region))
  (:goal (And (In bowl_1 wooden_cabinet_1_top_region) (And (Close wooden_cabinet_1_top_region)))))
"""


def test_a_problem_is_read_in_lower_case_with_its_parts():
    problem = bddl.parse_bddl(TEXT)
    assert problem.language == "put the bowl in the drawer"
    assert problem.objects == {"bowl_1": "akita_black_bowl", "bowl_2": "akita_black_bowl", "plate_1": "plate"}
    assert problem.fixtures == {"table": "table", "wooden_cabinet_1": "wooden_cabinet"}
    assert problem.init == (("on", "bowl_1", "table_bowl_region"), ("open", "wooden_cabinet_1_top_region"))
    assert problem.goal == (("in", "bowl_1", "wooden_cabinet_1_top_region"), ("close", "wooden_cabinet_1_top_region"))
    assert problem.owner_of("wooden_cabinet_1_top_region") == "wooden_cabinet_1"
    assert problem.class_of("wooden_cabinet_1_top_region") == "wooden_cabinet"
    assert problem.class_of("nowhere") is None


def goal_bodies(goal: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    bodies = bddl.parse_bddl(TEXT[: TEXT.index("(:goal")] + f"(:goal (And {goal})))").goal_bodies()
    return bodies.receptacles, bodies.fixtures


def test_what_receives_an_object_is_a_receptacle_and_what_moves_by_a_joint_a_fixture():
    cabinet = ("wooden_cabinet_1",)
    assert bddl.parse_bddl(TEXT).goal_bodies() == GoalBodies(receptacles=cabinet, fixtures=cabinet)
    assert goal_bodies("(On bowl_1 plate_1) (On bowl_2 plate_1)") == (("plate_1",), ())
    assert goal_bodies("(Open wooden_cabinet_1_top_region) (Turnon wooden_cabinet_1)") == ((), cabinet)


def test_the_table_of_the_scene_and_what_is_itself_carried_are_not_receptacles():
    assert goal_bodies("(On bowl_1 table_bowl_region)") == ((), ())
    assert goal_bodies("(On bowl_1 bowl_2) (On bowl_2 plate_1)") == (("plate_1",), ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with"),
        ("(undefine)", "does not begin with"),
        ("(define (:goal (And (On a b)))", "lacks a closing bracket"),
        ("(define) )", "bracket ) too many"),
        ("(define (:objects a - b))", "no goal"),
        ("(define (:goal (Or (On a b) (On b a))))", "form (or ...)"),
        ("(" * 10_000, "deeper than 50"),
    ],
)
def test_what_is_not_a_problem_is_an_error_with_a_remedy(text, reason):
    with pytest.raises(RegistryError) as caught:
        bddl.parse_bddl(text)
    assert reason in caught.value.problem
    assert caught.value.remedy


def test_errors_name_the_file(tmp_path):
    bad = tmp_path / "task.bddl"
    bad.write_bytes(b"\xff")
    for path, reason in ((bad, "not UTF-8"), (tmp_path / "none.bddl", "No such file")):
        with pytest.raises(RegistryError, match=reason) as caught:
            bddl.read_bddl(path)
        assert caught.value.place.file == str(path)


@pytest.mark.libero
def test_every_file_of_the_installation_is_read_as_libero_reads_it():
    envs = pytest.importorskip("libero.libero.envs.bddl_utils", reason="LIBERO comes with the extra libero")
    from safevla_bench.hosts.libero.tasks import ALL_SUITES, bddl_file, suite_tasks

    for suite in ALL_SUITES:
        for task in suite_tasks(suite):
            ours, theirs = bddl.read_bddl(bddl_file(task)), envs.robosuite_parse_problem(str(bddl_file(task)))
            assert ours.goal == tuple(map(tuple, theirs["goal_state"]))
            assert ours.init == tuple(map(tuple, theirs["initial_state"]))
            assert ours.language == " ".join(theirs["language_instruction"])
            assert set(ours.objects) == {name for names in theirs["objects"].values() for name in names}
            assert ours.regions == {name: region["target"] for name, region in theirs["regions"].items()}
