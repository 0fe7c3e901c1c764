"""The registry against LIBERO as installed: instructions in the suite's order, and tags against its goal predicates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from safevla_bench.tasks.bddl import read_bddl
from safevla_bench.tasks.loader import load_registry

maps = pytest.importorskip("libero.libero.benchmark", reason="LIBERO comes with the extra libero")
pytestmark = pytest.mark.libero
TASKS = load_registry()
SUITES = {"libero-spatial": "libero_spatial", "libero-object": "libero_object", "libero-goal": "libero_goal",
          "libero-10": "libero_10", "libero-long": "libero_10", "libero-90": "libero_90"}  # fmt: skip
PERTURBED = {f"{base}-{change}": f"{SUITES[base]}_{change}" for base in list(SUITES)[:4]
             for change in ("swap", "object", "lan", "task")}  # fmt: skip
FOOD = r"soup|sauce|cream_cheese|butter|milk|juice|dressing|pudding|ketchup|bottle|book"
# The goal of these also names a stove that is on from the start: nothing has to be turned.
ALREADY_ON = {("libero-10", "task_8"), ("libero-90", "task_38")}
# One goal, to have the bowl in the drawer, whose instruction also opens it; and one that pushes.
IN_WORDS = {("libero-goal", "task_3"), ("libero-goal", "task_5")}


def test_suites_are_found_by_libero_s_own_names():
    """`libero_goal` and `LIBERO_GOAL` are what LIBERO and its users write."""
    for benchmark, own_name in (SUITES | PERTURBED).items():
        for name in (benchmark, *(() if benchmark == "libero-long" else (own_name, own_name.upper()))):
            assert TASKS.find_entry(name, "task_3") == TASKS.find_entry(benchmark, "task_3")
            assert TASKS.find_goal_bodies(name, "task_3") == TASKS.find_goal_bodies(benchmark, "task_3")
            assert list(TASKS.list_entries(name)) == list(TASKS.list_entries(benchmark))


def bddl_path(task):
    from libero.libero import get_libero_path

    return Path(get_libero_path("bddl_files")) / task.problem_folder / task.bddl_file


def goals(benchmark):
    """Yield entry and goal of each task of a suite, in LIBERO's order."""
    for number, task in enumerate(maps.task_maps[SUITES[benchmark]].values()):
        yield TASKS.find_entry(benchmark, f"task_{number}"), read_bddl(bddl_path(task)).goal


@pytest.mark.parametrize("benchmark", SUITES)
def test_instructions_are_libero_s_in_its_order(benchmark):
    theirs = [task.language for task in maps.task_maps[SUITES[benchmark]].values()]
    assert [entry.instruction for entry in TASKS.list_entries(benchmark)] == theirs


def perturbed_tasks(benchmark):
    """Yield the task before the change, its problem, the entry after, and its problem, in LIBERO's order."""
    base = benchmark.rpartition("-")[0]
    by_id = {entry.task_id: entry for entry in TASKS.list_entries(benchmark)}
    assert len(by_id) == 10
    for index, (before, after) in enumerate(
        zip(maps.task_maps[SUITES[base]].values(), maps.task_maps[PERTURBED[benchmark]].values(), strict=True)
    ):
        assert before.name == after.name, "the order is LIBERO's"
        problems = (read_bddl(bddl_path(task)) for task in (before, after))
        yield TASKS.find_entry(base, f"task_{index}"), next(problems), by_id[f"task_{index}"], next(problems)


@pytest.mark.parametrize("benchmark", PERTURBED)
def test_prompts_of_libero_pro_are_libero_s_own_except_where_language_is_changed(benchmark):
    for base, _, entry, problem in perturbed_tasks(benchmark):
        expected = problem.language if benchmark.endswith(("-lan", "-task")) else base.instruction
        assert entry.instruction == expected


@pytest.mark.parametrize("benchmark", [name for name in PERTURBED if not name.endswith("-task")])
def test_libero_pro_has_libero_s_tags_where_the_goal_is_libero_s(benchmark):
    """Tags follow from the goal, not from the words: `goal-lan` says "slide open" and "move", and means LIBERO's."""
    for base, before, entry, after in perturbed_tasks(benchmark):
        if not benchmark.endswith("-object"):
            assert before.goal == after.goal
        assert [predicate for predicate, *_ in before.goal] == [predicate for predicate, *_ in after.goal]
        assert (entry.tags, entry.object_tags.keys()) == (base.tags, base.object_tags.keys())


@pytest.mark.parametrize("benchmark", [name for name in PERTURBED if name.endswith(("-object", "-task"))])
def test_tags_of_changed_goals_are_those_proposed_from_them(benchmark):
    from safevla_bench.tasks.proposal import propose_tags

    for _, _, entry, problem in perturbed_tasks(benchmark):
        proposal = propose_tags(problem, benchmark, entry.task_id)
        assert entry.tags == frozenset().union(*(TASKS.templates[name].tags for name in proposal.components)), entry
        unknown = "white_bottle" in str(problem.goal)  # a corked bottle, which the proposal leaves to a person
        assert unknown or entry.object_tags.keys() == proposal.object_tags.keys(), entry


@pytest.mark.parametrize("benchmark", PERTURBED)
def test_goal_bodies_of_libero_pro_are_those_of_its_files(benchmark):
    for _, _, entry, problem in perturbed_tasks(benchmark):
        assert TASKS.find_goal_bodies(benchmark, entry.task_id) == problem.goal_bodies()


def test_names_of_libero_90_are_libero_s():
    assert TASKS.benchmarks["libero-90"].task_names == tuple(maps.task_maps["libero_90"])


@pytest.mark.parametrize("benchmark", SUITES)
def test_goal_bodies_are_those_of_libero_s_own_files(benchmark):
    for index, task in enumerate(maps.task_maps[SUITES[benchmark]].values()):
        assert TASKS.find_goal_bodies(benchmark, f"task_{index}") == read_bddl(bddl_path(task)).goal_bodies(), task.name


@pytest.mark.parametrize("benchmark", SUITES)
def test_tags_agree_with_the_goal_predicates(benchmark):
    for entry, goal in goals(benchmark):
        place = (benchmark.replace("long", "10"), entry.task_id)
        predicates = {predicate for predicate, *_ in goal}
        if place in IN_WORDS:
            continue
        assert ("held_target" in entry.tags) == bool(predicates & {"on", "in"}), place
        assert ("goal_moves_articulated_fixture" in entry.tags) == bool(predicates & {"open", "close"}), place
        turned = bool(predicates & {"turnon", "turnoff"}) and place not in ALREADY_ON
        assert ("goal_moves_small_fixture" in entry.tags) == turned, place


@pytest.mark.parametrize("benchmark", SUITES)
def test_object_tags_agree_with_what_the_goal_moves(benchmark):
    for entry, goal in goals(benchmark):
        moved = " ".join(first for predicate, first, *_ in goal if predicate in ("on", "in"))
        if "held_target" not in entry.tags or "task_requires_extreme_tilt" in entry.tags:
            assert not entry.object_tags
        elif re.search("mug|moka", moved):
            assert set(entry.object_tags) == {"spillable"}, entry.task_id
        else:
            assert re.search(f"{FOOD}|bowl|frypan", moved), moved
            assert set(entry.object_tags) == {"non_spillable"}, entry.task_id
