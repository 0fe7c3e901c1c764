"""Statistics over tasks, each held against an independent route: enumeration, scipy, statsmodels, a simulation."""

from __future__ import annotations

from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy import stats
from statsmodels.stats.contingency_tables import StratifiedTable
from statsmodels.stats.proportion import confint_proportions_2indep

from safevla_bench.statistics import tests
from safevla_bench.statistics.intervals import is_significant, wilson_interval
from safevla_bench.statistics.tests import (
    cmh_mid_p,
    flip_pair_means,
    flip_task_means,
    mcnemar_mid_p,
    mean_rate_difference_interval,
    mean_rate_interval,
    permute_task_means,
)

# Tasks like these


def enumerated_mid_p(terms: np.ndarray) -> float:
    """By its definition: twice the share of signs with a greater sum, and half of those with the observed one."""
    sums, observed = np.array(list(product([-1, 1], repeat=len(terms)))) @ terms, abs(terms.sum())
    alike = np.abs(sums - observed) <= 1e-9
    return min(1.0, 2 * float((sums > observed)[~alike].sum() + alike.sum() / 2) / len(sums))


def draw_differences(seed: int, tasks: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Differences of tasks and their weights: of pairs of unequal number, of rates of twenty, of severities."""
    random = default_rng(seed)
    sizes = random.integers(10, 21, tasks).astype(float)
    if kind == "pairs":
        return random.integers(-5, 9, tasks) / sizes, sizes
    rates = random.integers(-6, 11, tasks) / 20
    mostly_none = np.where(random.random(tasks) < 0.5, 0.0, random.uniform(-0.3, 0.6, tasks))
    return (rates if kind == "rates" else mostly_none), np.ones(tasks)


KINDS = st.sampled_from(["pairs", "rates", "severities"])


@given(st.integers(0, 2**32), st.integers(1, 16), KINDS)
@settings(max_examples=25)
def test_flipping_tasks_is_the_mid_p_sign_flip_test_whatever_their_number(seed, tasks, kind):
    """Up to 13 tasks all subsets are tried; beyond, sums are added on a grid."""
    differences, weights = draw_differences(seed, tasks, kind)
    result, expected = flip_task_means(differences, weights).p_value, enumerated_mid_p(weights * differences)
    assert result == pytest.approx(expected, rel=1e-9 if tasks <= 13 or kind != "severities" else 0.02)


@pytest.mark.parametrize("grid_only", [False, True])
@given(st.integers(0, 2**32), st.integers(6, 10), KINDS)
@settings(max_examples=15)
def test_the_interval_holds_the_differences_that_the_test_does_not_reject(grid_only, seed, tasks, kind):
    """By enumeration: just inside either end a shifted sample is not rejected, just outside it is."""
    differences, weights = draw_differences(seed, tasks, kind)
    with mock.patch.object(tests, "_EXACT_TERMS", 0 if grid_only else 13):
        result = flip_task_means(differences, weights).interval
    margin = 2e-3 if grid_only else 1e-6
    for end, inside in ((result.low, margin), (result.high, -margin)):
        assert enumerated_mid_p(weights * (differences - end + inside)) <= 0.05
        if result.low + 2 * margin < result.high:
            assert enumerated_mid_p(weights * (differences - end - inside)) > 0.05


@given(st.integers(0, 2**32), st.integers(6, 40), KINDS, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
@settings(max_examples=25)
def test_the_interval_excludes_no_difference_exactly_where_the_test_is_significant(seed, tasks, kind, confidence):
    flipped = flip_task_means(*draw_differences(seed, tasks, kind), confidence)
    if flipped.interval is not None:
        assert agrees(flipped.interval, flipped.p_value, confidence)


def agrees(interval, p_value, confidence):
    """An end of 0 beside a significant p-value is an open one."""
    if is_significant(p_value, confidence):
        return interval.low >= 0 or interval.high <= 0
    return interval.low <= 0 <= interval.high


@given(st.integers(0, 2**32), st.integers(6, 30), KINDS)
@settings(max_examples=15)
def test_neither_the_order_of_tasks_nor_that_of_policies_matters(seed, tasks, kind):
    differences, weights = draw_differences(seed, tasks, kind)
    result, order = flip_task_means(differences, weights), default_rng(seed).permutation(tasks)
    assert flip_task_means(differences[order], weights[order]) == result
    mirrored = flip_task_means(-differences, weights)
    ends = (-mirrored.interval.high, -mirrored.interval.low, mirrored.p_value)
    assert ends == pytest.approx((result.interval.low, result.interval.high, result.p_value), abs=2e-5)


@pytest.mark.parametrize(("tasks", "known"), [(4, False), (5, False), (6, True)])
def test_fewer_than_six_tasks_have_no_interval_though_five_have_a_mid_p_below_the_level(tasks, known):
    flipped = flip_task_means(np.full(tasks, 0.9), np.ones(tasks))
    assert (flipped.interval is not None) == known
    assert flipped.p_value == pytest.approx(2.0**-tasks)


def test_many_tasks_have_no_least_p_value():
    """Random subsets could not get below 2e-4, which no adjustment for several verdicts survives."""
    assert flip_task_means(np.full(130, 0.02), np.full(130, 50.0)).p_value == pytest.approx(2.0**-130)
    assert flip_task_means(np.array([0.5] * 3 + [0.002] * 17), np.ones(20)).p_value == pytest.approx(2.0**-20)


def test_pairs_that_all_differ_alike_have_an_interval_without_width():
    result = flip_pair_means(np.full(321, 0.025))
    assert (result.interval.low, result.interval.high) == (0.025, 0.025)
    assert result.p_value < 1e-90


@pytest.mark.parametrize("tasks", [40, 130])
def test_very_many_tasks_are_as_many_random_signs(tasks):
    differences = default_rng(1).normal(0.04, 0.3, tasks)
    signs = default_rng(2).integers(0, 2, (100_000, tasks), dtype=np.int8) * 2.0 - 1
    expected = (np.abs(signs @ differences) >= abs(differences.sum())).mean()
    result = flip_task_means(differences, np.ones(tasks))
    assert result.p_value == pytest.approx(expected, abs=0.005)
    near = 1.96 * differences.std() / np.sqrt(tasks)
    assert (result.interval.low, result.interval.high) == pytest.approx(
        (differences.mean() - near, differences.mean() + near), abs=0.1 * near
    )


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
@settings(max_examples=12)
def test_flipping_pairs_that_differ_wholly_is_mcnemar_s_test(first, second, alike):
    differences = np.repeat([1.0, -1.0, 0.0], [first, second, alike])
    if len(differences):
        assert flip_pair_means(differences).p_value == pytest.approx(mcnemar_mid_p(first, second), abs=1e-9)


@pytest.mark.parametrize("pairs", [60, 700])
def test_the_interval_of_many_pairs_is_near_the_normal_one(pairs):
    """Most pairs are alike, so that rounding moves them all the same way."""
    random = default_rng(4)
    differences = np.where(random.random(pairs) < 0.2, random.uniform(-0.8, 1, pairs), 0.0)
    result, half = flip_pair_means(differences).interval, 1.96 * differences.std() / np.sqrt(pairs)
    ends = differences.mean() - half, differences.mean() + half
    assert (result.low, result.high) == pytest.approx(ends, abs=(0.3 if pairs < 100 else 0.06) * half)


# These tasks


@given(st.integers(0, 25), st.integers(0, 25))
def test_mid_p_halves_the_outcomes_as_likely_as_the_observed(first, second):
    chances = stats.binom.pmf(np.arange(first + second + 1), first + second, 0.5)
    fewer = min(first, second)
    assert mcnemar_mid_p(first, second) == pytest.approx(2 * chances[:fewer].sum() + chances[fewer])


@given(st.integers(0, 2**32))
@settings(max_examples=12)
def test_strata_are_summed_over_all_their_tables(seed):
    """Every table of every stratum with the observed margins, one by one."""
    random = default_rng(seed)
    n, m = random.integers(1, 5, 3), random.integers(1, 5, 3)
    counts, others = random.binomial(n, 0.6), random.binomial(m, 0.4)
    totals, observed = counts + others, int(counts.sum())
    chances: dict[int, float] = {}
    for first in product(*(range(size + 1) for size in n)):
        likely = np.prod([stats.hypergeom.pmf(x, a + b, t, a) for x, a, b, t in zip(first, n, m, totals, strict=True)])
        chances[sum(first)] = chances.get(sum(first), 0.0) + float(likely)
    sides = [sum(chance for total, chance in chances.items() if (total - observed) * side > 0) for side in (-1, 1)]
    assert cmh_mid_p(counts, n, others, m) == pytest.approx(2 * min(sides) + chances[observed])
    assert cmh_mid_p(others, m, counts, n) == pytest.approx(cmh_mid_p(counts, n, others, m))


def test_strata_that_are_all_alike_do_not_differ():
    assert cmh_mid_p(np.array([5, 0]), np.array([5, 9]), np.array([4, 0]), np.array([4, 9])) == 1.0


def test_many_episodes_agree_with_statsmodels():
    counts, others = np.array([300, 120, 410]), np.array([270, 150, 395])
    n = np.full(3, 500)
    table = StratifiedTable([np.array([[a, 500 - a], [b, 500 - b]]) for a, b in zip(counts, others, strict=True)])
    assert cmh_mid_p(counts, n, others, n) == pytest.approx(table.test_null_odds().pvalue, abs=0.01)


def test_one_stratum_is_wilson_s_interval_and_more_episodes_narrow_it():
    result, expected = mean_rate_interval(np.array([7.0]), np.array([20])), wilson_interval(7, 20)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high))
    few, many = (mean_rate_interval(np.full(5, 0.9 * n), np.full(5, n)) for n in (10, 100))
    assert few.low < many.low < 0.9 < many.high < few.high
    never = mean_rate_interval(np.zeros(10), np.full(10, 20))
    assert (never.low, never.high) == pytest.approx((0.0, 0.0289), abs=1e-4)  # no violation is not certainty


def test_one_stratum_is_newcombe_s_interval_of_a_difference():
    result = mean_rate_difference_interval(*(np.array([x]) for x in (15.0, 20, 9.0, 30)))
    expected = confint_proportions_2indep(15, 20, 9, 30, method="newcomb", compare="diff")
    assert (result.low, result.high) == pytest.approx(expected)
    assert mean_rate_difference_interval(*[np.array([])] * 4) is None


@pytest.mark.parametrize(("tasks", "episodes"), [(10, 20), (10, 3), (40, 5)])
def test_the_difference_over_tasks_is_covered(tasks, episodes):
    """Limits of each task pushed into their tails together (X. Yan and X. G. Su, 2010) cover .83 to .94 here."""
    random = default_rng(3)
    rates = random.beta(0.5, 0.5, tasks)
    others, sizes, covered = np.clip(rates - 0.1, 0, 1), np.full(tasks, episodes), 0
    for _ in range(500):
        x, y = random.binomial(episodes, rates), random.binomial(episodes, others)
        result = mean_rate_difference_interval(x.astype(float), sizes, y.astype(float), sizes)
        covered += result.low <= (rates - others).mean() <= result.high
    assert covered / 500 >= 0.94


def test_the_interval_over_tasks_is_narrower_than_the_pooled_one_where_tasks_differ():
    rates, sizes = np.array([1.0, 0.9, 0.8, 0.2, 0.1, 0.0]), np.full(6, 50)
    result = mean_rate_difference_interval(50 * rates, sizes, 50 * rates, sizes)
    pooled = confint_proportions_2indep(150, 300, 150, 300, method="newcomb", compare="diff")
    assert result.high - result.low < 0.7 * (pooled[1] - pooled[0])


def test_labels_within_one_task_agree_with_scipy_s_permutation_test():
    first, second = default_rng(1).random(12), default_rng(2).random(15) ** 2

    def studentised(x, y, axis):
        spread = x.var(axis=axis, ddof=1) / x.shape[axis] + y.var(axis=axis, ddof=1) / y.shape[axis]
        return (x.mean(axis=axis) - y.mean(axis=axis)) / np.sqrt(spread)

    result = permute_task_means([first], [second], default_rng(0))
    for shift, expected in ((0.0, result.p_value), (result.interval.low, 0.05), (result.interval.high, 0.05)):
        theirs = stats.permutation_test((first - shift, second), studentised, vectorized=True, rng=default_rng(4))
        assert expected == pytest.approx(theirs.pvalue, abs=0.02)


def test_relabelling_keeps_its_level_where_means_are_equal_and_variances_are_not():
    """Ten episodes of great variance against forty of small one: the difference of plain means rejects in a fifth."""
    rng = default_rng(6)
    p_values = [
        permute_task_means([rng.normal(0, 3, 10)], [rng.normal(0, 1, 40)], default_rng(k), tries=199).p_value
        for k in range(150)
    ]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.12


def test_equal_values_in_each_task_are_not_a_difference_however_tasks_differ():
    tasks = [np.zeros(5), np.ones(5)]
    assert permute_task_means(tasks, tasks, default_rng(0), tries=500).p_value == 1.0
    single = [np.array([1.0]), np.array([0.5])]
    result = permute_task_means(single, [np.array([0.0])] * 2, default_rng(0))
    assert result.p_value == pytest.approx(0.25, abs=0.02)  # one of four labellings is as great on either side
    assert (result.interval.low, result.interval.high) == pytest.approx((-1, 1), abs=1e-4)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(2, 9), st.floats(0, 0.7))
@settings(max_examples=15)
def test_the_interval_of_severities_agrees_with_their_test_and_turns_over_with_the_sides(seed, tasks, episodes, share):
    random = default_rng(seed)
    draw = lambda: [np.where(random.random(episodes) < share, random.random(episodes), 0) for _ in range(tasks)]  # noqa: E731
    values, others = draw(), draw()
    result = permute_task_means(values, others, default_rng(0), tries=500)
    assert agrees(result.interval, result.p_value, 0.95)
    estimate = np.mean([a.mean() - b.mean() for a, b in zip(values, others, strict=True)])
    assert result.interval.low - 1e-5 <= estimate <= result.interval.high + 1e-5
