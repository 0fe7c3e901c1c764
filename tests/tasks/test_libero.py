"""The registry against LIBERO as installed: instructions in the suite's order, and tags against its goal predicates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from safevla_bench.tasks import registry
from safevla_bench.tasks.bddl import read_bddl

maps = pytest.importorskip("libero.libero.benchmark", reason="LIBERO comes with the extra libero")
pytestmark = pytest.mark.libero
TASKS = registry()
SUITES = {"libero-spatial": "libero_spatial", "libero-object": "libero_object", "libero-goal": "libero_goal",
          "libero-10": "libero_10", "libero-long": "libero_10", "libero-90": "libero_90"}  # fmt: skip
FOOD = r"soup|sauce|cream_cheese|butter|milk|juice|dressing|pudding|ketchup|bottle|book"
# The goal of these also names a stove that is on from the start: nothing has to be turned.
ALREADY_ON = {("libero-10", "task_8"), ("libero-90", "task_38")}
# One goal, to have the bowl in the drawer, whose instruction also opens it; and one that pushes.
IN_WORDS = {("libero-goal", "task_3"), ("libero-goal", "task_5")}


def goal(task: object) -> list[tuple[str, ...]]:
    """The goal predicates in a task's file, as (predicate, argument, ...)."""
    from libero.libero import get_libero_path

    text = (Path(get_libero_path("bddl_files")) / task.problem_folder / task.bddl_file).read_text()
    part = text[text.index("(:goal") :]
    return [
        tuple(found.lower().split()) for found in re.findall(r"\(((?:On|In|Open|Close|Turnon|Turnoff) [^()]+)\)", part)
    ]


@pytest.mark.parametrize("benchmark", SUITES)
def test_instructions_are_libero_s_in_its_order(benchmark):
    theirs = [task.language for task in maps.task_maps[SUITES[benchmark]].values()]
    assert [entry.instruction for entry in TASKS.list_entries(benchmark)] == theirs


def test_names_of_libero_90_are_libero_s():
    assert TASKS.benchmarks["libero-90"].task_names == tuple(maps.task_maps["libero_90"])


@pytest.mark.parametrize("benchmark", SUITES)
def test_goal_bodies_are_those_of_libero_s_own_files(benchmark):
    from libero.libero import get_libero_path

    for index, task in enumerate(maps.task_maps[SUITES[benchmark]].values()):
        file = Path(get_libero_path("bddl_files")) / task.problem_folder / task.bddl_file
        assert TASKS.find_goal_bodies(benchmark, f"task_{index}") == read_bddl(file).goal_bodies(), file.name


@pytest.mark.parametrize("benchmark", SUITES)
def test_tags_agree_with_the_goal_predicates(benchmark):
    for number, task in enumerate(maps.task_maps[SUITES[benchmark]].values()):
        entry = TASKS.find_entry(benchmark, f"task_{number}")
        place = (benchmark.replace("long", "10"), entry.task_id)
        predicates = {predicate for predicate, *_ in goal(task)}
        if place in IN_WORDS:
            continue
        assert ("held_target" in entry.tags) == bool(predicates & {"on", "in"}), place
        assert ("goal_moves_articulated_fixture" in entry.tags) == bool(predicates & {"open", "close"}), place
        turned = bool(predicates & {"turnon", "turnoff"}) and place not in ALREADY_ON
        assert ("goal_moves_small_fixture" in entry.tags) == turned, place


@pytest.mark.parametrize("benchmark", SUITES)
def test_object_tags_agree_with_what_the_goal_moves(benchmark):
    for number, task in enumerate(maps.task_maps[SUITES[benchmark]].values()):
        entry = TASKS.find_entry(benchmark, f"task_{number}")
        moved = " ".join(first for predicate, first, *_ in goal(task) if predicate in ("on", "in"))
        if "held_target" not in entry.tags or "task_requires_extreme_tilt" in entry.tags:
            assert not entry.object_tags
        elif re.search("mug|moka", moved):
            assert set(entry.object_tags) == {"spillable"}, entry.task_id
        else:
            assert re.search(f"{FOOD}|bowl|frypan", moved), moved
            assert set(entry.object_tags) == {"non_spillable"}, entry.task_id
