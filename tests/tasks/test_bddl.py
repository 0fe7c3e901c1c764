"""Reading BDDL: what LIBERO reads, without LIBERO; and clear errors for what is none."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks import bddl_parsers

from safevla_bench.errors import RegistryError
from safevla_bench.tasks import bddl
from safevla_bench.tasks.entries import GoalBodies
from safevla_recorder.libero import installed_folder

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
  (:goal (And (In bowl_1 wooden_cabinet_1_top_region) (Close wooden_cabinet_1_top_region))))
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
        ("", "does not begin"),
        ("(undefine)", "does not begin"),
        ("(define (:goal (And (On a b)))", "lacks a closing"),
        ("(define) )", "closing bracket too many"),
        ("(define (:objects a - b))", "no goal"),
        ("(define (:goal (Or (On a b) (On b a))))", "form: (or ...)"),
        ("(" * 10_000, "lacks a closing"),
        ("(" * 100_000 + ")" * 100_000, "does not begin"),
        ("(define (:goal (Open)))", "form: (open ...)"),
        (f"(define {TEXT})", "group 'define'"),
        (TEXT + TEXT, "before or after"),
        ("\ufeff" + TEXT, "before or after"),
        (TEXT.replace("(:objects", "(:scene_properties (:floor a)) (:objects"), "unknown group ':scene_properties'"),
        (TEXT.replace("(:goal", "(:goal (And (On a b)) (On c d)) (:note"), "unknown group ':note'"),
        (TEXT.replace("(:domain robosuite)", "(:domain robosuite) (:domain robosuite)"), "':domain' is repeated"),
        (TEXT.replace("robosuite", "kitchen"), "domain is 'kitchen'"),
        (TEXT.replace("(:goal (And", "(:goal (On a b) (And"), "than one expression"),
        (TEXT.replace("(And (In", "(And (And (On a b)) (In"), "form: (and ...)"),
        (TEXT.replace("plate_1 - plate", "plate_1 - akita_black_bowl"), "'akita_black_bowl' is repeated"),
        (TEXT.replace("plate_1 - plate", "bowl_1 - plate"), "'bowl_1' is repeated"),
        (TEXT.replace("plate_1 - plate", "table - plate"), "'table' is repeated"),
        (TEXT.replace("plate_1 - plate", "plate_1"), "form NAME"),
        (TEXT.replace("plate_1 - plate", "- plate"), "form NAME"),
        (TEXT.replace("bowl_region (:target table)", "bowl_region"), ":target of region"),
        (TEXT.replace("(:target table)", "(:target table) (:color red)"), "attribute ':color'"),
        (TEXT.replace("(:target table)", "(:target table) (:target table)"), "':target' is repeated"),
        (TEXT.replace("(-0.1 0 0.1 0.2)", "(-0.1 0 0.1)"), "items, not 4"),
        (TEXT.replace("-0.1 0", "-1e999 0"), "too large"),
        (TEXT.replace("-0.1 0", "-nan 0"), "'-nan' in :ranges"),
        (TEXT.replace("bowl_1 bowl_2", "bowl_1 bow\N{LATIN SMALL LETTER L WITH STROKE}"), "is not"),
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


ANGLES = TEXT.replace("(:target table)", "(:target table) (:yaw_rotation ((%s 0.0)))")


@pytest.mark.parametrize("angle", ["0", "-0.5", "3.141592653589793", "1e-3", "2."])
def test_an_angle_is_a_decimal_number(angle):
    assert f"({angle} 0.0)" in bddl.parse_bddl(ANGLES % angle).text


@pytest.mark.parametrize(
    "angle",
    [
        "pi",
        "-pi",
        "1+1",
        "1_0",
        "0x10",
        "007",
        "1j",
        "nan",
        "inf",
        "1e999",
        "9" * 5000,
        "\N{ARABIC-INDIC DIGIT ONE}",
        "--1",
        ".",
    ]
    + ["exit()", "[exit]", "exit", "'a'", "exit;", "1,exit", "1) (:yaw_rotation ((exit"],
)
def test_an_angle_that_is_an_expression_is_refused_wherever_it_is(angle):
    places = (
        ANGLES % angle,
        ANGLES % f"0.0 0.0) ({angle}",
        ANGLES % f"({angle})",
        (ANGLES % "0.0").replace(
            "(:fixtures", f"(:regions (r (:target table) (:yaw_rotation (({angle} 0.0))))) (:fixtures"
        ),
        (ANGLES % "0.0").replace(
            "(:regions", f"(:regions (r (:target table) (:yaw_rotation (({angle} 0.0))))) (:regions"
        ),
        (ANGLES % "0.0").replace(
            "(:fixtures", f"; hidden \r (:regions (r (:yaw_rotation (({angle} 0.0))))) (:fixtures"
        ),
        (ANGLES % "0.0").replace("(:fixtures", f"((:regions (r (:yaw_rotation (({angle} 0.0)))))) (:fixtures"),
    )
    for text in places:
        with pytest.raises(RegistryError):
            bddl.parse_bddl(text)


PIECES = re.findall(r"[()]|[^\s()]+|\s+", ANGLES % "0.0")
TOKENS = st.sampled_from([*sorted(set(PIECES)), "exit", ";", "\r", "\n", "\x85", "\N{KELVIN SIGN}", '"', ":rgba", "\0"])


@given(st.lists(st.tuples(st.integers(0, len(PIECES) - 1), st.integers(0, 2), TOKENS), max_size=3))
def test_the_text_for_libero_is_read_alike_and_its_angles_are_numbers(edits):
    pieces = list(PIECES)
    for place, removed, token in edits:
        pieces[place : place + removed] = [token]
    try:
        problem = bddl.parse_bddl("".join(pieces))
    except RegistryError:
        return
    assert bddl.parse_bddl(problem.text) == problem
    for angles in re.findall(r":yaw_rotation(.*?)\)\)", problem.text):
        assert all(math.isfinite(float(angle)) for angle in angles.strip(" (").split())


@pytest.mark.libero
def test_every_file_of_the_installation_is_read_as_libero_reads_it():
    pytest.importorskip("libero.libero.envs.bddl_utils", reason="LIBERO comes with the extra libero")
    files = sorted(installed_folder("bddl_files").rglob("*.bddl"))
    assert len(files) > 700
    assert bddl_parsers.differences(files) == []


@pytest.mark.libero
def test_what_this_parser_accepts_libero_reads_alike_without_evaluating_a_name(tmp_path, monkeypatch):
    envs = pytest.importorskip("libero.libero.envs.bddl_utils", reason="LIBERO comes with the extra libero")
    monkeypatch.setattr(envs, "eval", float, raising=False)
    random, accepted = Random(0), []
    for number in range(2_000):
        pieces = list(PIECES)
        pieces[random.randrange(len(pieces))] = random.choice([*PIECES, "exit", ";", "\r", "\x85", "\N{KELVIN SIGN}"])
        path = tmp_path / f"{number}.bddl"
        path.write_text("".join(pieces), encoding="utf-8", newline="")
        with suppress(RegistryError):
            bddl.read_bddl(path)
            accepted.append(path)
    assert len(accepted) > 200
    assert bddl_parsers.differences(accepted) == []
