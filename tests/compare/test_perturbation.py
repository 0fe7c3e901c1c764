"""Changed suites beside unchanged ones: pairs by task, start and seed, and a control in which nothing is changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compare.made_runs import drawn, run_headers
from safevla_bench.compare.difference import ComparisonOptions, paired_difference
from safevla_bench.compare.pairs import pair_episodes
from safevla_bench.compare.perturbation import CONTROL, compare_changes
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.errors import RunError
from safevla_bench.report.tables.comparison import change_table, describe_changes
from safevla_bench.sources.runs.folder import AbsentEpisode


def source(suite, successes, safe=100, *, policy="a", seed=0, n=100):
    scores = drawn(policy, np.arange(n) < successes, np.arange(n)[::-1] < safe, suite=suite)
    return split_by_policy(scores, run_headers(scores, seed))[0]


BASE, SWAP, LAN = source("goal", 90), source("goal-swap", 60, 70), source("goal-lan", 90)
AGAIN = source("goal", 88, seed=1)


def test_a_changed_suite_is_paired_with_the_unchanged_one_and_intervals_hold_together():
    report = compare_changes([BASE, SWAP, LAN])
    assert [row.change for row in report.changes] == ["swap", "lan"]
    assert report.each_confidence == pytest.approx(1 - 0.05 / 4)
    swap, lan = report.changes
    assert (swap.suites, swap.left_out, swap.unknown) == (("goal",), 0, 0)
    item = swap.differences["sr"]
    assert (item.pairs, item.difference, lan.differences["sr"].difference) == (100, -0.3, 0.0)
    alike = replace(source("goal", 60, 70), name="b")
    states = pair_episodes([alike, BASE]).state_means((0, 1), "sr")
    expected = paired_difference(("b", "a"), states, "sr", ComparisonOptions(confidence=report.each_confidence))
    assert item.ci == expected.ci
    assert describe_changes(report).startswith("Swap lowers SR of a by 30.0 points (20.0–42.3)")
    assert "There is no control" in describe_changes(report)


def test_a_suite_that_was_run_twice_is_the_control_by_initial_state():
    report = compare_changes([BASE, SWAP, AGAIN])
    control = report.changes[-1]
    assert (control.change, control.differences["sr"].pairs) == (CONTROL, 100)
    assert control.differences["sr"].difference == pytest.approx(-0.02)
    assert "Run again without a change: a SR -2.0 points (" in describe_changes(report)
    assert [row[1].text for row in change_table(report).rows] == ["swap", CONTROL]


def test_suites_with_one_change_are_pooled_and_policies_stay_apart():
    others = [
        source("ten", 80),
        source("ten-swap", 70),
        source("goal", 50, policy="b"),
        source("goal-swap", 50, policy="b"),
    ]
    report = compare_changes([BASE, SWAP, *others])
    assert [(row.policy, row.suites) for row in report.changes] == [("a", ("goal", "ten")), ("b", ("goal",))]
    item = report.changes[0].differences["sr"]
    assert (item.pairs, item.tasks, item.difference) == (200, 20, -0.2)


def test_what_has_no_like_is_left_out_and_a_crash_is_unknown():
    fewer = SWAP.select_episodes(np.arange(90))
    crash = AbsentEpisode(episode_id="x", benchmark="goal-swap", task_id="task_0", policy="a", outcome="crashed",
                          init_state_index=9, seed=0)  # fmt: skip
    row = compare_changes([BASE, replace(fewer, lost=(crash,))]).changes[0]
    assert (row.differences["sr"].pairs, row.left_out, row.unknown) == (90, 9, 1)


def test_without_a_changed_suite_there_is_nothing_to_compare():
    with pytest.raises(RunError, match="no suite has its like with a change: goal"):
        compare_changes([BASE])
