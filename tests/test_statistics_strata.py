"""Statistics over tasks, each held against an independent route: enumeration, scipy, statsmodels, a simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import StratifiedTable
from statsmodels.stats.proportion import confint_proportions_2indep

from safevla_bench.statistics import (
    cmh_p,
    flip_task_means,
    mcnemar_mid_p,
    mean_rate_difference_interval,
    mean_rate_interval,
    resampled_task_means,
    sign_flip_p,
    task_permutation_p,
    wilson_interval,
)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# Tasks like these


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=9), st.integers(0, 100))
def test_flipping_tasks_is_the_sign_flip_test(tenths, seed):
    """Half of the subsets reach the observed sum as the sum of signs does: the two p-values are one."""
    differences = np.array(tenths) / 20
    flipped = flip_task_means(differences, np.ones(len(differences)), generator(seed))
    assert flipped.p_value == pytest.approx(sign_flip_p(differences, generator(seed)))


@given(st.lists(st.integers(-20, 20), min_size=6, max_size=9), st.lists(st.integers(1, 50), min_size=9, max_size=9))
@settings(max_examples=30)
def test_the_interval_holds_the_differences_that_the_test_does_not_reject(tenths, sizes):
    """By enumeration: just inside either end a shifted sample is not rejected, just outside it is."""
    differences, weights = np.array(tenths) / 20, np.array(sizes[: len(tenths)], dtype=np.float64)
    found = flip_task_means(differences, weights, generator()).interval

    def enumerated_p(centre: float) -> float:
        shifted = weights * (differences - centre)
        sums = np.array(list(product([-1, 1], repeat=len(shifted)))) @ shifted
        return float((np.abs(sums) >= abs(shifted.sum()) - 1e-12).mean())

    for end, inside in ((found.low, 1e-6), (found.high, -1e-6)):
        assert enumerated_p(end - inside) <= 0.05
        if found.low + 1e-5 < found.high:
            assert enumerated_p(end + inside) > 0.05


@pytest.mark.parametrize(("tasks", "known"), [(5, False), (6, True)])
def test_fewer_than_six_tasks_exclude_no_difference(tasks, known):
    flipped = flip_task_means(np.full(tasks, 0.9), np.ones(tasks), generator())
    assert (flipped.interval is not None) == known
    assert (flipped.p_value <= 0.05) == known


def test_many_tasks_agree_with_all_subsets_up_to_the_noise_of_random_ones():
    differences = generator(1).normal(0.1, 0.3, 15)
    found = flip_task_means(differences, np.ones(15), generator(2))
    signs = (np.arange(2**15)[:, None] >> np.arange(15) & 1) * 2 - 1
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert found.p_value == pytest.approx(exact, abs=0.02)


def test_equal_policies_on_tasks_that_interact_are_rarely_told_apart():
    """Each task favours one of two policies that are equal on average, however many episodes it has."""
    drawn, told_apart = generator(5), 0
    for _ in range(400):
        lean = drawn.normal(0, 0.25, 10)
        first, second = (drawn.binomial(40, np.clip(0.6 + sign * lean, 0, 1)) / 40 for sign in (0.5, -0.5))
        told_apart += flip_task_means(first - second, np.ones(10), drawn).p_value <= 0.05
    assert told_apart / 400 <= 0.075  # nominal 0.05, two standard errors of 400 replicates


# These tasks


@given(st.integers(0, 25), st.integers(0, 25))
def test_mid_p_halves_the_outcomes_as_likely_as_the_observed(first, second):
    chances = stats.binom.pmf(np.arange(first + second + 1), first + second, 0.5)
    observed = chances[first]
    alike = np.isclose(chances, observed, rtol=1e-9)
    expected = chances[(chances < observed) & ~alike].sum() + chances[alike].sum() / 2
    assert mcnemar_mid_p(first, second) == pytest.approx(expected if first != second else 1 - observed / 2)


@given(st.integers(0, 8), st.integers(1, 8), st.integers(0, 8), st.integers(1, 8))
def test_one_stratum_is_fisher_s_exact_test(count, n, other, m):
    count, other = min(count, n), min(other, m)
    expected = stats.fisher_exact([[count, n - count], [other, m - other]]).pvalue
    assert cmh_p(*(np.array([x]) for x in (count, n, other, m))) == pytest.approx(expected)


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_strata_are_summed_over_all_their_tables(seed):
    """Every table of every stratum with the observed margins, one by one."""
    drawn = generator(seed)
    n, m = drawn.integers(1, 5, 3), drawn.integers(1, 5, 3)
    counts, others = drawn.binomial(n, 0.6), drawn.binomial(m, 0.4)
    totals = counts + others
    chances: dict[int, float] = {}
    for first in product(*(range(size + 1) for size in n)):
        likely = np.prod([stats.hypergeom.pmf(x, a + b, t, a) for x, a, b, t in zip(first, n, m, totals, strict=True)])
        chances[sum(first)] = chances.get(sum(first), 0.0) + float(likely)
    observed = chances[int(counts.sum())]
    expected = sum(chance for chance in chances.values() if chance <= observed * (1 + 1e-9))
    assert cmh_p(counts, n, others, m) == pytest.approx(expected)
    alike = sum(chance for chance in chances.values() if np.isclose(chance, observed, rtol=1e-9, atol=0))
    assert cmh_p(counts, n, others, m, mid=True) == pytest.approx(expected - alike / 2)


def test_many_episodes_agree_with_statsmodels():
    counts, others = np.array([300, 120, 410]), np.array([270, 150, 395])
    n = np.full(3, 500)
    table = StratifiedTable([np.array([[a, 500 - a], [b, 500 - b]]) for a, b in zip(counts, others, strict=True)])
    assert cmh_p(counts, n, others, n, mid=True) == pytest.approx(table.test_null_odds().pvalue, abs=0.01)


def test_one_stratum_is_wilson_s_interval_and_more_episodes_narrow_it():
    found, expected = mean_rate_interval(np.array([7.0]), np.array([20])), wilson_interval(7, 20)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    few, many = (mean_rate_interval(np.full(5, 0.9 * n), np.full(5, n)) for n in (10, 100))
    assert few.low < many.low < 0.9 < many.high < few.high
    never = mean_rate_interval(np.zeros(10), np.full(10, 20))
    assert (never.low, never.high) == pytest.approx((0.0, 0.0289), abs=1e-4)  # no violation is no certainty


def test_one_stratum_is_newcombe_s_interval_of_a_difference():
    found = mean_rate_difference_interval(*(np.array([x]) for x in (15.0, 20, 9.0, 30)))
    expected = confint_proportions_2indep(15, 20, 9, 30, method="newcomb", compare="diff")
    assert (found.low, found.high) == pytest.approx(expected)
    assert mean_rate_difference_interval(*[np.array([])] * 4) is None


@pytest.mark.parametrize(("tasks", "episodes"), [(10, 20), (10, 3), (40, 5)])
def test_the_difference_over_tasks_is_covered(tasks, episodes):
    """Limits of each task pushed into their tails together (X. Yan and X. G. Su, 2010) cover .83 to .94 here."""
    drawn = generator(3)
    rates = drawn.beta(0.5, 0.5, tasks)
    others, sizes, covered = np.clip(rates - 0.1, 0, 1), np.full(tasks, episodes), 0
    for _ in range(500):
        x, y = drawn.binomial(episodes, rates), drawn.binomial(episodes, others)
        found = mean_rate_difference_interval(x.astype(float), sizes, y.astype(float), sizes)
        covered += found.low <= (rates - others).mean() <= found.high
    assert covered / 500 >= 0.94


def test_the_interval_over_tasks_is_narrower_than_the_pooled_one_where_tasks_differ():
    rates, sizes = np.array([1.0, 0.9, 0.8, 0.2, 0.1, 0.0]), np.full(6, 50)
    found = mean_rate_difference_interval(50 * rates, sizes, 50 * rates, sizes)
    pooled = confint_proportions_2indep(150, 300, 150, 300, method="newcomb", compare="diff")
    assert found.high - found.low < 0.7 * (pooled[1] - pooled[0])


def test_labels_within_one_task_agree_with_scipy_s_permutation_test():
    first, second = generator(1).random(12), generator(2).random(15) ** 2

    def studentised(x, y, axis):
        spread = x.var(axis=axis, ddof=1) / x.shape[axis] + y.var(axis=axis, ddof=1) / y.shape[axis]
        return (x.mean(axis=axis) - y.mean(axis=axis)) / np.sqrt(spread)

    theirs = stats.permutation_test((first, second), studentised, vectorized=True, rng=generator(4))
    assert task_permutation_p([first], [second], generator()) == pytest.approx(theirs.pvalue, abs=0.02)


def test_equal_values_in_each_task_are_no_difference_however_tasks_differ():
    tasks = [np.zeros(5), np.ones(5)]
    assert task_permutation_p(tasks, tasks, generator()) == 1.0
    single = [np.array([1.0]), np.array([0.5])]
    assert task_permutation_p(single, [np.array([0.0])] * 2, generator()) == pytest.approx(0.5, abs=0.02)


def test_tasks_are_drawn_within_their_suites():
    """Suites of which all tasks are alike never vary, whatever the suites' difference."""
    totals, suites = np.array([[1.0, 1.0, 0.0, 0.0]]), np.array([0, 0, 1, 1])
    means = resampled_task_means(totals, np.ones((1, 4)), suites, generator(), 200)
    assert (means == 0.5).all()
    assert np.ptp(resampled_task_means(totals, np.ones((1, 4)), np.zeros(4, dtype=int), generator(), 200)) > 0
