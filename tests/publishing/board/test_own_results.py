"""A user's runs: only what ran the same tasks is ranked together, and tests decide who was told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from publishing.board.builders import episodes, measured
from report.scenes import NAN, verdicts
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.publishing.board.own_results import own_ranked_tables
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.statistics.intervals import wilson_interval

TASKS = [f"task_{k % 10}" for k in range(20)]


def rows(league) -> list[tuple[str, str, str]]:
    return [(one.entry.policy, one.rank, one.letters) for one in league.rows]


def test_policies_on_the_same_episodes_are_told_apart_by_paired_tests():
    (league,) = own_ranked_tables(
        measured(episodes("bad", "0" * 20), episodes("good", "1" * 20), episodes("near", "1" * 19 + "0"))
    )
    assert rows(league) == [("good", "1", "a"), ("near", "2", "a"), ("bad", "3", "b")]
    assert "paired tests on the same episodes" in league.letters_note


def test_two_policies_get_letters_too():
    (league,) = own_ranked_tables(measured(episodes("a", "1" * 20), episodes("b", "0" * 20)))
    assert rows(league) == [("a", "1", "a"), ("b", "2", "b")]
    (league,) = own_ranked_tables(measured(episodes("a", "1" * 20), episodes("b", "1" * 19 + "0")))
    assert rows(league) == [("a", "1", "a"), ("b", "2", "a")]


def test_other_episodes_are_compared_as_independent_and_the_reason_is_said():
    (league,) = own_ranked_tables(measured(episodes("a", "1" * 20), episodes("b", "0" * 20), starts=False))
    assert rows(league) == [("a", "1", "a"), ("b", "2", "b")]
    assert "independent" in league.letters_note
    assert "do not say from which initial state they started" in league.letters_note


def test_different_protocols_are_no_pairs():
    of = measured(episodes("a", "1" * 20), episodes("b", "0" * 20))
    runs = [
        {"policies": [{"policy": name}], "protocol": {"settle_steps": steps}} for name, steps in (("a", 10), ("b", 20))
    ]
    of = replace(of, sources=[JudgedSource(run, None) for run in runs])
    assert "different protocols: settle_steps differ" in own_ranked_tables(of)[0].letters_note


def test_policies_that_ran_other_tasks_are_not_ranked_against_each_other():
    found = own_ranked_tables(
        measured(episodes("a", "1" * 20, tasks=TASKS), episodes("b", "1" * 20), episodes("c", "0" * 20))
    )
    assert [[one[0] for one in rows(league)] for league in found] == [["a"], ["b", "c"]]
    assert [league.scope for league in found] == ["all 10 tasks of libero-goal", "libero-goal task_0"]


def test_a_crashed_episode_keeps_its_policy_among_those_that_ran_the_task():
    gone = AbsentEpisode(episode_id="x", benchmark="libero-goal", task_id="task_1", policy="b", outcome="crashed",
                  init_state_index=1, seed=0)  # fmt: skip
    mine = episodes("a", "11", tasks=["task_0", "task_1"])
    (league,) = own_ranked_tables(measured(mine, episodes("b", "1", absent=(gone,))))
    assert {one[0] for one in rows(league)} == {"a", "b"}
    assert [one.entry.remarks for one in league.rows if one.entry.policy == "b"] == [("1 crashed",)]
    assert any("flatters" in note for note in league.notes)


def test_tasks_that_weigh_differently_are_said_to():
    uneven = episodes("a", "110", tasks=["task_0", "task_0", "task_1"])
    (league,) = own_ranked_tables(
        measured(uneven, episodes("b", "110", tasks=["task_0", "task_1", "task_1"]), starts=False)
    )
    assert any("weigh the tasks differently" in note for note in league.notes)
    (league,) = own_ranked_tables(measured(uneven, episodes("b", "000", tasks=["task_0", "task_1", "task_0"])))
    assert league.notes == ()


def test_the_mean_over_suites_is_unweighted_and_unequal_numbers_are_not_pooled():
    goal, ten = episodes("a", "1" * 10), episodes("a", "10" * 2, suite="libero-10")
    other = [episodes("b", "0" * 10), episodes("b", "1" * 4, suite="libero-10")]
    (league,) = own_ranked_tables(measured(goal, ten, *other))
    assert [one.entry.safety.text for one in league.rows] == ["75.0", "50.0"]
    assert "intervals of Safety overlap" in league.letters_note
    assert "differ in their number" in league.letters_note


def test_with_one_suite_the_interval_is_wilson_s():
    (league,) = own_ranked_tables(measured(episodes("a", "1" * 17 + "000")))
    expected = wilson_interval(17, 20)
    low, high = league.rows[0].entry.safety.interval
    assert (low, high) == pytest.approx((100 * expected.low, 100 * expected.high))


def test_a_policy_alone_has_a_rank_and_no_letter():
    (league,) = own_ranked_tables(measured(episodes("a", "10")))
    assert rows(league) == [("a", "1", "")]
    assert league.letters_note == ""


def test_privileged_policies_rank_among_themselves_alone():
    parts = episodes("seer", "1111"), episodes("blind", "1000"), episodes("dim", "0000")
    (league,) = own_ranked_tables(measured(*parts, privileged=["seer"]))
    assert [one[:2] for one in rows(league)] == [("blind", "1"), ("dim", "2"), ("seer", "")]
    (league,) = own_ranked_tables(measured(*parts[:1], privileged=["seer"]))
    assert rows(league)[0][:2] == ("seer", "1")


def test_numbers_on_stand_in_assets_are_no_results_and_have_no_rank_beside_others():
    of = measured(episodes("placeholder", "1111"), episodes("real", "1000"))
    marks = tuple(policy == "placeholder" for policy in of.inputs.scores.policy)
    scores = replace(of.inputs.scores, marks={"standin_assets": np.array(marks)})
    (league,) = own_ranked_tables(replace(of, inputs=replace(of.inputs, scores=scores)))
    assert [one[:2] for one in rows(league)] == [("real", "1"), ("placeholder", "")]
    assert league.rows[1].entry.remarks == ("stand-in assets",)
    assert any(note.startswith("Stand-in assets: libero-goal (placeholder) was") for note in league.notes)
    assert not any("privileged" in note for note in league.notes)


def test_doing_nothing_is_safe_and_has_no_rank():
    (league,) = own_ranked_tables(measured(episodes("noop", "1111", "0000"), episodes("a", "1100")))
    assert [one[:2] for one in rows(league)] == [("a", "1"), ("noop", "")]
    assert any("does nothing" in note for note in league.notes)


def test_auxiliary_suites_are_outside_every_ranking():
    (league,) = own_ranked_tables(measured(episodes("a", "10", suite="robocasa-pnp")))
    assert rows(league) == [("a", "", "")]
    assert any("outside every ranking" in note for note in league.notes)


def test_the_same_tasks_under_another_name_stand_in_one_table():
    (league,) = own_ranked_tables(
        measured(episodes("a", "11", suite="libero-long"), episodes("b", "10", suite="libero-10"))
    )
    assert {one[0] for one in rows(league)} == {"a", "b"}


def test_what_was_never_judged_has_no_safety_and_no_rank():
    silent = replace(verdicts((True, NAN, NAN), policy="silent"), episode_id=("s",))
    (league,) = own_ranked_tables(measured(episodes("a", "1"), silent))
    assert rows(league) == [("a", "1", ""), ("silent", "", "")]
    assert league.rows[1].entry.safety.text == "—"


def test_a_policy_without_a_name_and_one_called_so_are_two():
    (league,) = own_ranked_tables(measured(episodes(None, "1111"), episodes("(unnamed)", "0000")))
    assert len({one.entry.page_path for one in league.rows}) == 2
