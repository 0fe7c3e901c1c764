"""`compare --sequential`: a p-value and an interval that hold at every look, of these tasks alone."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_bench.compare.difference import (
    ComparisonOptions,
    TaskValues,
    judge_margin,
    paired_difference,
    unpaired_difference,
)
from safevla_bench.compare.pairs import StateMeans
from safevla_bench.statistics.sequential import sequential_difference, sequential_p

SEQUENTIAL = ComparisonOptions(sequential=True)
TASKS = [("s", f"t{k % 4}") for k in range(40)]


def states(first, second):
    return StateMeans(tuple(TASKS[: len(first)]), np.array(first, float), np.array(second, float), is_single=True)


def test_pairs_are_judged_by_the_sequence_of_their_differences_and_other_tasks_not_at_all():
    """The test of tasks like these is made for one look, so it may not decide here."""
    first, second = [1.0] * 36 + [0.0] * 4, [1.0] * 20 + [0.0] * 20
    difference = paired_difference(("a", "b"), states(first, second), "safety", SEQUENTIAL)
    values = np.array(first) - np.array(second)
    interval = sequential_difference(values)
    assert (difference.p_value, difference.ci) == (sequential_p(values), (interval.low, interval.high))
    assert (difference.p_by_task, difference.ci_by_task) == (None, None)
    assert (difference.deciding_p, difference.deciding_ci) == (difference.p_value, difference.ci)
    assert (difference.only_first, difference.only_second) == (16, 0)
    plain = paired_difference(("a", "b"), states(first, second), "safety", ComparisonOptions())
    assert plain.p_value < difference.p_value
    assert plain.deciding_p == plain.p_by_task


def test_independent_episodes_are_paired_in_turn_within_their_task():
    """Episodes without a counterpart on the other side wait for one."""
    first = TaskValues("a", {("s", "t0"): np.array([1.0, 1.0, 0.0]), ("s", "t1"): np.array([1.0])})
    second = TaskValues("b", {("s", "t0"): np.array([0.0, 1.0]), ("s", "t1"): np.array([0.0, 0.0])})
    difference = unpaired_difference(first, second, "safety", SEQUENTIAL)
    assert difference.p_value == pytest.approx(sequential_p(np.array([1.0, 0.0, 1.0])))
    assert difference.pairs is None
    assert difference.only_first is None


@pytest.mark.parametrize("margin", [0.05, 0.9])
def test_a_margin_is_judged_by_the_sequence_alone(margin):
    first, second = [1.0] * 40, [1.0] * 20 + [0.0] * 20
    options = ComparisonOptions(sequential=True, margin=margin)
    difference = paired_difference(("a", "b"), states(first, second), "safety", options)
    assert judge_margin([difference], "safety", options) == ("equivalent" if margin == 0.9 else "first not worse")


def test_equal_policies_are_told_apart_at_some_look_in_at_most_a_twentieth_of_runs():
    rng = np.random.default_rng(2)
    apart = 0
    for _ in range(120):
        first, second = rng.random(200) < 0.8, rng.random(200) < 0.8
        values = first.astype(float) - second
        apart += any(sequential_p(values[:n]) <= 0.05 for n in range(20, 201, 20))
    assert apart / 120 <= 0.05
