"""Sequential tests with a planned number of looks: exact error, by enumeration and by simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from safevla_bench.statistics.sequential import sequential_look, sum_limits

shapes = st.lists(st.lists(st.sampled_from([1, 1, 1, 2, 3]), max_size=4), min_size=1, max_size=4)


def even_shares(looks):
    return [(k + 1) / looks for k in range(looks)]


@given(shapes, st.sampled_from([0.5, 0.9, 0.2]), st.sampled_from([0.05, 0.3, 0.6]))
def test_the_chance_to_end_a_test_of_a_true_rate_is_what_was_spent_on_each_side(steps, rate, error):
    """By all outcomes of every step: on each side at most half the error, and by each look its share of that."""
    shares = even_shares(len(steps))
    ended = np.zeros((2, len(steps)))
    for outcome in product((0, 1), repeat=sum(map(len, steps))):
        chance = np.prod([rate if step else 1 - rate for step in outcome])
        places = iter(outcome)
        gained = [sum(size * next(places) for size in sizes) for sizes in steps]
        sides = [
            sequential_look(steps[: k + 1], gained[: k + 1], rate, shares, 1 - error).side for k in range(len(steps))
        ]
        ended[0] += chance * np.array([side > 0 for side in sides])
        ended[1] += chance * np.array([side < 0 for side in sides])
    assert (ended <= error / 2 * np.square(shares) + 1e-12).all()


@pytest.mark.parametrize(("count", "rate"), [(8, 0.5), (30, 0.9), (200, 0.5), (250, 0.95)])
def test_one_look_is_the_exact_test(count, rate):
    ((low, high),) = sum_limits([[1] * count], rate, [1.0])
    assert stats.binom.cdf(low, count, rate) <= 0.025 < stats.binom.cdf(low + 1, count, rate)
    assert stats.binom.sf(high - 1, count, rate) <= 0.025 < stats.binom.sf(high - 2, count, rate)


def test_nothing_decides_where_nothing_differs_and_any_failure_where_the_limit_is_1():
    assert list(sum_limits([[], []], 0.5, [0.5, 1.0])) == [(-1, 1), (-1, 1)]
    assert list(sum_limits([[1] * 3], 1.0, [1.0])) == [(2, 4)]
    assert sequential_look([], [], 0.9, [1.0]).side == 0


def look_of_pairs(first, second, rounds):
    """The sides on which tests of paired outcomes [replicates, pairs] end."""
    wins, losses = (part.reshape(len(first), rounds, -1).sum(axis=2) for part in (first & ~second, ~first & second))
    for won, lost in zip(wins.tolist(), losses.tolist(), strict=True):
        steps = [[1] * (a + b) for a, b in zip(won, lost, strict=True)]
        yield sequential_look(steps, won, 0.5, even_shares(rounds)).side


@pytest.mark.parametrize("rates", [[0.5] * 4, [0.98] * 4, [0.05, 0.95, 0.5, 0.9]])
def test_equal_policies_are_told_apart_at_some_look_in_at_most_one_run_of_twenty(rates):
    generator = np.random.default_rng(3)
    first, second = (generator.random((800, 80)) < np.tile(rates, 20) for _ in range(2))
    sides = np.array(list(look_of_pairs(first, second, 20)))
    assert np.mean(sides != 0) <= 0.05 + 2 * 0.0077


def test_policies_that_are_each_better_on_some_of_these_tasks_and_equal_over_them_differ_no_more_often():
    generator = np.random.default_rng(4)
    first = generator.random((800, 80)) < np.tile([0.9, 0.6, 0.7, 0.8], 20)
    second = generator.random((800, 80)) < np.tile([0.6, 0.9, 0.8, 0.7], 20)
    assert np.mean(np.array(list(look_of_pairs(first, second, 20))) != 0) <= 0.05 + 2 * 0.0077


def test_it_finds_nearly_as_much_as_a_test_of_all_pairs_and_sooner():
    """Rates of 90 and 80 % in at most 200 pairs: the exact test of all finds 79 %, a confidence sequence 50 %."""
    generator = np.random.default_rng(5)
    first, second = generator.random((300, 200)) < 0.9, generator.random((300, 200)) < 0.8
    sides = np.array(list(look_of_pairs(first, second, 20)))
    assert np.mean(sides > 0) >= 0.68
    assert np.mean(sides < 0) <= 0.01
