"""Which policy to take: the choice, what is said of it, and how often that is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compare.made_runs import drawn, policy, run_headers
from report.scenes import joined
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.decisions import select_policy
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.errors import RunError
from safevla_bench.judging.gates import Gate, parse_gate
from safevla_bench.report.tables.comparison_answer import describe_next, describe_selection, selection_table
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.statistics.intervals import exact_interval

SAFE = Gate("safety", "min", 0.9)


def choose(*runs, metric="sr", conditions=(SAFE,), absent=()):
    scores = replace(joined(*runs), absent=tuple(absent))
    headers = run_headers(scores)
    return select_policy(scores, headers, split_by_policy(scores, headers), metric, conditions)


BEST, RUNNER_UP, UNSAFE = policy("best", 90, 99), policy("next", 70, 98), policy("unsafe", 99, 40)


def test_the_best_of_those_that_satisfy_the_conditions_is_chosen_and_compared_with_the_next():
    selection = choose(UNSAFE, RUNNER_UP, BEST)
    assert (selection.chosen, selection.is_established) == ("best", True)
    assert [candidate.policy for candidate in selection.candidates] == ["best", "next", "unsafe"]
    assert selection.comparison.policies == ("best", "next")
    alone = [split_by_policy(run, run_headers(run))[0] for run in (BEST, RUNNER_UP)]
    expected = compare_policies(alone, ComparisonOptions(metrics=("sr",))).scopes[-1].metrics[0].differences
    assert selection.comparison.scopes[-1].metrics[0].differences == expected
    assert choose(UNSAFE, BEST, conditions=()).chosen == "unsafe"


def test_the_intervals_of_all_candidates_and_metrics_hold_together():
    selection = choose(UNSAFE, RUNNER_UP, BEST)
    limits = exact_interval(90, 100, 1 - 0.05 / 6)
    assert selection.candidates[0].value.ci == (limits.low, limits.high)
    assert selection.each_confidence == pytest.approx(1 - 0.05 / 6)


def test_a_condition_that_the_interval_does_not_establish_is_said_not_to_be():
    selection = choose(policy("a", 20, 24, n=25), policy("b", 15, 25, n=25))
    assert (selection.chosen, selection.is_established) == ("a", False)
    said = describe_selection(selection)
    assert said.startswith("Take a: SR 80.0 % (")
    assert "Safety 96.0 % (" in said
    assert "at least 0.9 is not established" in said
    assert "episodes would establish at least 0.9 if Safety were as measured" in describe_next(selection)


def test_a_better_policy_that_chance_may_have_kept_out_is_named():
    near = policy("near", 100, 88)
    assert "near has more (SR 100.0 %" in describe_selection(choose(near, RUNNER_UP))
    assert "unsafe" not in describe_selection(choose(UNSAFE, RUNNER_UP, BEST))


def test_without_an_estimate_that_satisfies_them_nothing_is_chosen_and_the_nearest_named():
    selection = choose(UNSAFE, policy("near", 10, 85))
    assert (selection.chosen, selection.comparison) == (None, None)
    assert describe_selection(selection).startswith("No policy has safety >= 0.9. near comes nearest: Safety 85.0 %")


def test_a_crash_that_may_have_been_unsafe_keeps_a_condition_open():
    runs = policy("a", 90, 100), policy("b", 80, 100)
    lost = [
        AbsentEpisode(episode_id=f"x{k}", benchmark="libero-goal", task_id="task_0", policy="a", outcome="crashed",
                      init_state_index=100 + k, seed=0)
        for k in range(10)
    ]  # fmt: skip
    assert choose(*runs).is_established
    assert not choose(*runs, absent=lost).is_established


def test_equal_ones_are_taken_by_the_slack_of_the_condition():
    assert choose(policy("a", 80, 95), policy("b", 80, 97)).chosen == "b"


def test_one_policy_is_no_choice_and_other_tasks_are_no_comparison():
    with pytest.raises(RunError, match="there is no choice: best"):
        choose(BEST)
    with pytest.raises(RunError, match="did not run the same tasks: libero-goal/task_0"):
        choose(BEST, policy("b", 9, 9, first=5))


@pytest.mark.parametrize("text", ["safety > 0.9", "speed >= 1", "safety >= nan", "safety >= 0.9 please", ""])
def test_what_is_no_condition_is_refused_under_the_name_of_its_option(text):
    with pytest.raises(RunError, match=r"--subject-to .* is no condition"):
        parse_gate(text, "--subject-to")
    assert parse_gate("safety >= 0.9", "--subject-to") == SAFE


def test_the_table_marks_the_choice():
    table = selection_table(choose(BEST, RUNNER_UP))
    assert [(row[0].text, row[0].mark) for row in table.rows] == [("best", "*"), ("next", "")]
    assert [column.full for column in table.columns] == ["Policy", "n", "SR %", "Safety %", "at least 0.9"]


@pytest.mark.long
def test_of_equal_policies_the_choice_has_an_interval_that_covers_and_is_seldom_called_better():
    """The estimate of the best of six is too high by more than a standard error; plain intervals would miss it."""
    generator, runs, rate = np.random.default_rng(5), 200, 0.8
    missed, plain, better, established = [], [], [], []
    for _ in range(runs):
        drawn_runs = [
            drawn(name, generator.random(60) < rate, generator.random(60) < 0.9, tasks=6) for name in "abcdef"
        ]
        selection = choose(*drawn_runs)
        first = selection.candidates[0]
        alone = exact_interval(round(60 * first.value.value), 60, 0.95)
        missed.append(not first.value.ci[0] <= rate <= first.value.ci[1])
        plain.append(not alone.low <= rate <= alone.high)
        established.append(selection.is_established)
        best = selection.comparison and selection.comparison.scopes[-1].metrics[0].differences[0]
        better.append(bool(best and best.better))
    assert np.mean(missed) <= 0.02
    assert np.mean(missed) < np.mean(plain)
    assert np.mean(better) <= 0.08
    assert np.mean(established) <= 0.04
