"""Confidence sequences, and tests with a planned number of looks: closed forms, enumeration and simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betaln

from safevla_bench.statistics.intervals import (
    _prior_nodes,
    _scaled_binomial_pmf,
    sequential_interval,
    sequential_look,
    sum_limits,
)
from safevla_bench.statistics.significance import _list_subsets


def log_wealth_of_counts(hits, n, supposed):
    """The beta-binomial log wealth in closed form."""
    prior = betaln(hits + 0.5, n - hits + 0.5) - betaln(0.5, 0.5)
    return prior - hits * np.log(supposed) - (n - hits) * np.log1p(-supposed)


def coins(count: int, n: int) -> np.ndarray:
    return (np.arange(n) < count).astype(float)


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95]))
def test_for_zeros_and_ones_it_is_the_beta_binomial_sequence(n, data, confidence):
    """Its ends solve W = 1/alpha, with W in closed form from the beta function."""
    count = data.draw(st.integers(0, n))
    result = sequential_interval(coins(count, n), confidence)
    for end in (result.low, result.high):
        if 1e-6 < end < 1 - 1e-6:
            wealth = betaln(count + 0.5, n - count + 0.5) - betaln(0.5, 0.5)
            wealth -= count * np.log(end) + (n - count) * np.log1p(-end)
            assert wealth == pytest.approx(-np.log(1 - confidence), abs=2e-3)
            assert log_wealth_of_counts(np.array(count), np.array(n), end) == pytest.approx(wealth)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_it_holds_the_mean_and_mirrors(values):
    values = np.array(values)
    result, mirrored = sequential_interval(values), sequential_interval(1 - values)
    assert result.low - 1e-9 <= values.mean() <= result.high + 1e-9
    np.testing.assert_allclose((1 - mirrored.high, 1 - mirrored.low), (result.low, result.high), atol=1e-6)


def test_looks_every_ten_episodes_miss_less_often_than_they_may():
    """A rate at the limit, five hundred episodes: Wilson's intervals would miss at some look in a fifth of runs."""
    generator = np.random.default_rng(0)
    hits = (generator.random((4000, 500)) < 0.9).cumsum(axis=1)[:, 9::10]
    n = np.broadcast_to(np.arange(10, 501, 10), hits.shape)
    missed = log_wealth_of_counts(hits, n, 0.9) >= np.log(20)
    assert missed.any(axis=1).mean() <= 0.02
    assert (missed & (hits > 0.9 * n)).any(axis=1).mean() <= 0.01


def test_graded_values_and_tasks_that_differ_miss_no_more_often_in_whole_rounds():
    generator = np.random.default_rng(1)
    rounds, means = 30, np.array([0.02, 0.1, 0.6])
    missed = 0
    for _ in range(30):
        values = generator.beta(means * 2, (1 - means) * 2, (rounds, 3))
        looks = [sequential_interval(values[:k].ravel(), 0.8) for k in range(2, rounds + 1, 7)]
        missed += any(not look.low <= means.mean() <= look.high for look in looks)
    assert missed / 30 <= 0.2


def test_of_nothing_there_is_no_interval():
    assert sequential_interval(np.empty(0)) is None


# A planned number of looks


shapes = st.lists(st.lists(st.sampled_from([1, 1, 1, 2, 3]), max_size=4), min_size=1, max_size=4)


def even_shares(looks):
    return [(k + 1) / looks for k in range(looks)]


@given(shapes, st.sampled_from([0.5, 0.9, 0.2]), st.sampled_from([0.05, 0.3, 0.6]))
@settings(max_examples=30)
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
    for gained, side in ((low, -1), (low + 1, 0), (high - 1, 0), (high, 1)):
        look = sequential_look([[1] * count], [gained], rate, [1.0])
        assert (look.side, look.gained, look.total) == (side, gained, count)


def test_nothing_decides_if_nothing_differs_and_any_failure_does_if_the_limit_is_1():
    assert list(sum_limits([[], []], 0.5, [0.5, 1.0])) == [(-1, 1), (-1, 1)]
    assert list(sum_limits([[1] * 3], 1.0, [1.0])) == [(2, 4)]
    assert sequential_look([], [], 0.9, [1.0]).side == 0


def look_of_pairs(first, second, rounds):
    """The sides on which tests of paired outcomes [replicates, pairs] end."""
    wins, losses = (part.reshape(len(first), rounds, -1).sum(axis=2) for part in (first & ~second, ~first & second))
    for won, lost in zip(wins.tolist(), losses.tolist(), strict=True):
        steps = [[1] * (a + b) for a, b in zip(won, lost, strict=True)]
        yield sequential_look(steps, won, 0.5, even_shares(rounds)).side


MIXED = [0.05, 0.95, 0.5, 0.9]


@pytest.mark.parametrize(
    ("rates", "other_rates"),
    [([0.5] * 4, [0.5] * 4), ([0.98] * 4, [0.98] * 4), (MIXED, MIXED), ([0.9, 0.6, 0.7, 0.8], [0.6, 0.9, 0.8, 0.7])],
)
def test_policies_that_are_equal_over_the_tasks_differ_at_some_look_in_at_most_one_run_of_twenty(rates, other_rates):
    """Also if each is better on some of these tasks."""
    generator = np.random.default_rng(3)
    first, second = (generator.random((800, 80)) < np.tile(by_task, 20) for by_task in (rates, other_rates))
    sides = np.array(list(look_of_pairs(first, second, 20)))
    assert np.mean(sides != 0) <= 0.05 + 2 * 0.0077


def test_it_finds_nearly_as_much_as_a_test_of_all_pairs_and_sooner():
    """Rates of 90 and 80 % in at most 200 pairs: the exact test of all finds 79 %, a confidence sequence 50 %."""
    generator = np.random.default_rng(5)
    first, second = generator.random((300, 200)) < 0.9, generator.random((300, 200)) < 0.8
    sides = np.array(list(look_of_pairs(first, second, 20)))
    assert np.mean(sides > 0) >= 0.68
    assert np.mean(sides < 0) <= 0.01


def test_numbers_that_are_kept_for_later_calls_cannot_be_changed():
    for kept in (_scaled_binomial_pmf(1, 3, 0.5), _prior_nodes(), _list_subsets(3)):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 1.0
