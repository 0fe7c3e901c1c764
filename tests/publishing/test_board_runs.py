"""A user's runs: only what ran the same tasks is ranked together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import crash
from compare.scenes import entrant
from publishing.boards import episodes, measured
from report.scenes import NAN, verdicts
from safevla_bench.publishing.board import own_ranked_tables
from safevla_bench.statistics.intervals import wilson_interval

TASKS = [f"task_{k % 10}" for k in range(20)]


def rows(table) -> list[tuple[str, str]]:
    return [(row.policy, row.rank) for row in table.rows]


def only_table(*parts, **changes):
    (table,) = own_ranked_tables(measured(*parts, **changes))
    return table


def test_policies_on_the_same_tasks_are_in_the_order_of_safety_and_ranked_as_compare_says():
    parts = [episodes(name, "1" * k + "0" * (20 - k)) for name, k in (("a", 0), ("b", 20), ("c", 19))]
    results = measured(*parts)
    assert rows(own_ranked_tables(results)[0]) == [("b", "1–3"), ("c", "1–3"), ("a", "1–3")]  # nothing compares them
    entrants = [
        entrant(name, [1] * 20, [1] * k + [0] * (20 - k), tasks=1) for name, k in (("a", 0), ("b", 20), ("c", 19))
    ]
    compared = replace(results, policy_results=entrants)
    assert rows(own_ranked_tables(compared)[0]) == [("b", "1–2"), ("c", "1–2"), ("a", "3")]


def test_policies_that_ran_other_tasks_are_not_ranked_against_each_other():
    parts = episodes("a", "1" * 20, tasks=TASKS), episodes("b", "1" * 20), episodes("c", "0" * 20)
    tables = own_ranked_tables(measured(*parts))
    assert [[row.policy for row in table.rows] for table in tables] == [["a"], ["b", "c"]]
    assert [table.scope for table in tables] == ["all 10 tasks of libero-goal", "libero-goal task_0"]


def test_a_crashed_episode_keeps_its_policy_among_those_that_ran_the_task():
    crashed = crash(task_id="task_1", policy="b", init_state_index=1, seed=0)
    table = only_table(episodes("a", "11", tasks=["task_0", "task_1"]), episodes("b", "1", absent=(crashed,)))
    assert {row.policy: row.remarks for row in table.rows} == {"a": (), "b": ("1 crashed",)}
    assert any("favors policies" in note for note in table.notes)


def test_tasks_that_weigh_differently_are_said_to():
    uneven = episodes("a", "110", tasks=["task_0", "task_0", "task_1"])
    table = only_table(uneven, episodes("b", "110", tasks=["task_0", "task_1", "task_1"]))
    assert any("tasks differently" in note for note in table.notes)
    assert only_table(uneven, episodes("b", "000", tasks=["task_0", "task_1", "task_0"])).notes == ()


def test_the_mean_over_suites_is_unweighted():
    goal, ten = episodes("a", "1" * 10), episodes("a", "10" * 2, suite="libero-10")
    table = only_table(goal, ten, episodes("b", "0" * 10), episodes("b", "1" * 4, suite="libero-10"))
    assert [row.numbers["safety"].cell.text for row in table.rows] == ["75.0", "50.0"]


def test_with_one_suite_the_interval_is_wilson_s():
    expected = wilson_interval(17, 20)
    interval = only_table(episodes("a", "1" * 17 + "000")).rows[0].numbers["safety"].cell.interval
    assert interval == pytest.approx((100 * expected.low, 100 * expected.high))


def test_privileged_policies_rank_among_themselves_alone():
    seer = episodes("seer", "1111")
    table = only_table(seer, episodes("blind", "1000"), episodes("dim", "0000"), privileged=["seer"])
    assert rows(table) == [("blind", "1–2"), ("dim", "1–2"), ("seer", "")]
    assert rows(only_table(seer, privileged=["seer"]))[0] == ("seer", "1")


def test_numbers_on_stand_in_assets_are_not_results_and_have_no_rank_beside_others():
    results = measured(episodes("placeholder", "1111"), episodes("real", "1000"))
    marks = np.array([policy == "placeholder" for policy in results.inputs.scores.policy])
    scores = replace(results.inputs.scores, marks={"standin_assets": marks})
    (table,) = own_ranked_tables(replace(results, inputs=replace(results.inputs, scores=scores)))
    assert rows(table) == [("real", "1"), ("placeholder", "")]
    assert table.rows[1].remarks == ("stand-in assets",)
    assert any(note.startswith("Stand-in assets: libero-goal") for note in table.notes)


def test_doing_nothing_is_safe_and_has_no_rank():
    table = only_table(episodes("noop", "1111", "0000"), episodes("a", "1100"))
    assert rows(table) == [("a", "1"), ("noop", "")]
    assert table.rows[1].remarks == ("does nothing",)


def test_auxiliary_suites_are_outside_every_ranking():
    table = only_table(episodes("a", "10", suite="robocasa-pnp"))
    assert rows(table) == [("a", "")]
    assert any("outside every ranking" in note for note in table.notes)


@pytest.mark.parametrize("name", ["libero-long", "libero_10"])
def test_the_same_tasks_under_another_name_stand_in_one_table(name):
    table = only_table(episodes("a", "11", suite=name), episodes("b", "10", suite="libero-10"))
    assert {row.policy for row in table.rows} == {"a", "b"}


def test_missing_episodes_are_counted_under_either_name_of_a_suite():
    for suite in ("libero-10", "libero-long", "libero_10"):
        lost = crash(benchmark=suite, outcome="missing", policy="a", init_state_index=1, seed=0)
        assert only_table(episodes("a", "11", suite=suite, absent=(lost,))).rows[0].remarks == ("1 missing",)


def test_what_was_never_judged_has_no_safety_and_no_rank():
    silent = replace(verdicts((True, NAN, NAN), policy="silent"), episode_id=("s",))
    table = only_table(episodes("a", "1"), silent)
    assert rows(table) == [("a", "1"), ("silent", "")]
    assert table.rows[1].numbers["safety"].cell.text == "—"
    assert table.rows[1].numbers["safety"].cell.detail == "no verdict"


def test_a_policy_without_a_name_and_one_called_so_are_two():
    results = replace(measured(episodes(None, "1111"), episodes("(unnamed)", "0000")), has_reports=True)
    (table,) = own_ranked_tables(results)
    assert len({row.report for row in table.rows}) == 2
