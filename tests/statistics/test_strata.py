"""Statistics over tasks, each held against an independent route: enumeration, scipy, statsmodels, a simulation."""

from __future__ import annotations

from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy import optimize, special, stats
from statsmodels.stats import proportion

from safevla_bench.statistics import significance
from safevla_bench.statistics.intervals import Interval, is_significant, tango_interval
from safevla_bench.statistics.significance import (
    flip_pair_means,
    flip_task_means,
    invert_interval,
    join_tests,
    mcnemar_mid_p,
    mcnemar_test,
    paired_mean_test,
    score_difference,
)

# Tasks like these


def enumerated_p(terms: np.ndarray) -> float:
    """By its definition: the share of signs with a sum as far from 0 as the observed one."""
    sums, observed = np.array(list(product([-1, 1], repeat=len(terms)))) @ terms, abs(terms.sum())
    return float((np.abs(sums) >= observed - 1e-9).mean())


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
def test_flipping_tasks_is_the_exact_sign_flip_test_whatever_their_number(seed, tasks, kind):
    """Up to 13 tasks all subsets are tried; beyond, sums are added on a grid."""
    differences, weights = draw_differences(seed, tasks, kind)
    result, expected = flip_task_means(differences, weights).p_value, enumerated_p(weights * differences)
    assert result == pytest.approx(expected, rel=1e-9 if tasks <= 13 or kind != "severities" else 0.02)


@pytest.mark.parametrize("grid_only", [False, True])
@given(st.integers(0, 2**32), st.integers(6, 10), KINDS)
@settings(max_examples=15)
def test_the_interval_holds_the_differences_that_the_test_does_not_reject(grid_only, seed, tasks, kind):
    """By enumeration: just inside either end a shifted sample is not rejected, just outside it is."""
    differences, weights = draw_differences(seed, tasks, kind)
    with mock.patch.object(significance, "_EXACT_TERMS", 0 if grid_only else 13):
        result = flip_task_means(differences, weights).interval
    margin = 2e-3 if grid_only else 1e-6
    for end, inside in ((result.low, margin), (result.high, -margin)):
        assert enumerated_p(weights * (differences - end + inside)) <= 0.05
        if result.low + 2 * margin < result.high:
            assert enumerated_p(weights * (differences - end - inside)) > 0.05


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
    moved = flip_task_means(differences[order], weights[order])
    assert (moved.p_value, moved.interval) == (result.p_value, result.interval)
    mirrored = flip_task_means(-differences, weights)
    ends = (-mirrored.interval.high, -mirrored.interval.low, mirrored.p_value)
    assert ends == pytest.approx((result.interval.low, result.interval.high, result.p_value), abs=2e-5)


@pytest.mark.parametrize(("tasks", "known"), [(4, False), (5, False), (6, True)])
def test_fewer_than_six_tasks_have_no_interval(tasks, known):
    flipped = flip_task_means(np.full(tasks, 0.9), np.ones(tasks))
    assert (flipped.interval is not None) == known
    assert flipped.p_value == pytest.approx(2.0 ** (1 - tasks))


def test_many_tasks_have_no_least_p_value():
    """Random subsets could not get below 2e-4, which no adjustment for several verdicts survives."""
    assert flip_task_means(np.full(130, 0.02), np.full(130, 50.0)).p_value == pytest.approx(2.0**-129)
    assert flip_task_means(np.array([0.5] * 3 + [0.002] * 17), np.ones(20)).p_value == pytest.approx(2.0**-19)


def test_pairs_that_all_differ_alike_have_an_interval_without_width():
    result = flip_pair_means(np.full(321, 0.025))
    assert (result.interval.low, result.interval.high) == (0.025, 0.025)
    assert result.p_value < 1e-90


@given(st.integers(0, 2**32), st.sampled_from([5, 14, 40]), st.booleans())
@settings(max_examples=12, deadline=None)
def test_negative_differences_mirror_each_digit_of_the_flips(seed, tasks, has_weights):
    rng = default_rng(seed)
    differences = rng.choice([-1, -1 / 3, 0, 0.25, 1], tasks) if seed % 2 else rng.uniform(-1, 1, tasks)
    weights = rng.integers(1, 9, tasks).astype(np.float64) if has_weights else np.ones(tasks)
    for test in (lambda row: flip_task_means(row, weights), flip_pair_means):
        forth, back = test(differences), test(-differences)
        assert forth.p_value == back.p_value
        if forth.interval:
            assert (forth.interval.low, forth.interval.high) == (-back.interval.high, -back.interval.low)


def test_flips_of_counts_in_many_tasks_are_those_of_all_subsets():
    rng = default_rng(5)
    sizes = rng.integers(3, 6, 15)
    counts = rng.integers(-1, 4, 15)
    result = flip_task_means(counts / sizes, sizes.astype(np.float64))
    subsets = np.arange(1, 2**15)[:, None] >> np.arange(15) & 1
    means, tail = np.sort((subsets @ counts) / (subsets @ sizes)), int(0.025 * 2**15)
    rarer = min((means <= 0).sum(), (means >= 0).sum()) + 1
    assert result.p_value == pytest.approx(2 * rarer / 2**15)
    assert (result.interval.low, result.interval.high) == pytest.approx((means[tail - 1], means[-tail]), abs=1e-8)


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


def test_thirteen_differences_are_flipped_in_every_way():
    """By enumeration, ties of pairs half; a grid of sums is only near it."""
    differences, weights = default_rng(8).uniform(-0.6, 1, 13), default_rng(9).uniform(1, 9, 13)
    assert flip_task_means(differences, weights).p_value == pytest.approx(enumerated_p(weights * differences), rel=1e-9)
    assert flip_pair_means(differences).p_value == pytest.approx(enumerated_mid_p(differences), rel=1e-9)


@pytest.mark.parametrize("seed", [5, 23, 28])
def test_fourteen_pairs_are_flipped_on_a_grid_finer_than_that_of_tasks(seed):
    """The table of weighted tasks, with 2,048 steps, would move these p-values by 0.001."""
    differences = default_rng(seed).uniform(-1, 1, 14)
    assert flip_pair_means(differences).p_value == pytest.approx(enumerated_mid_p(differences), abs=2e-4)


def enumerated_mid_p(differences: np.ndarray) -> float:
    """The p-value from all flips; those exactly as extreme as the observed count half."""
    sums = np.array(list(product([-1, 1], repeat=len(differences)))) @ differences
    observed = abs(differences.sum())
    return float((np.abs(sums) > observed + 1e-9).mean() + (np.abs(np.abs(sums) - observed) <= 1e-9).mean() / 2)


# These tasks


@pytest.mark.parametrize(("split", "ends"), [((4, 0, 104), (0.0, None)), ((0, 4, 104), (None, 0.0))])
def test_mcnemars_test_has_tangos_interval_opened_on_the_side_of_the_worse(split, ends):
    tested, tango = mcnemar_test(*split, 0.95), tango_interval(*split)
    assert tested.p_value == mcnemar_mid_p(*split[:2])
    kept = [plain if end is None else end for plain, end in zip((tango.low, tango.high), ends, strict=True)]
    assert [tested.interval.low, tested.interval.high] == pytest.approx(kept)


@given(st.integers(0, 25), st.integers(0, 25))
def test_mid_p_halves_the_outcomes_as_likely_as_the_observed(first, second):
    chances = stats.binom.pmf(np.arange(first + second + 1), first + second, 0.5)
    fewer = min(first, second)
    assert mcnemar_mid_p(first, second) == pytest.approx(2 * chances[:fewer].sum() + chances[fewer])


def test_rows_of_several_tests_are_joined_and_a_missing_interval_is_no_number():
    joined = join_tests([mcnemar_test(3, 1, 9), mcnemar_test(0, 0, 0)])
    alone = mcnemar_test(3, 1, 9)
    np.testing.assert_array_equal(joined.p_value, [alone.p_value, 1.0])
    np.testing.assert_array_equal(joined.interval.low, [alone.interval.low, np.nan])
    np.testing.assert_array_equal(joined.interval.high, [alone.interval.high, np.nan])


def draw_strata(seed: int) -> tuple[np.ndarray, ...]:
    random = default_rng(seed)
    tasks = int(random.integers(1, 12))
    sizes, others = random.integers(1, 30, tasks), random.integers(1, 30, tasks)
    rates = random.beta(3, 1, tasks)
    first = random.binomial(sizes, np.clip(rates + random.normal(0, 0.25), 0, 1))
    return first.astype(float), sizes, random.binomial(others, rates).astype(float), others


def score_by_search(x, n, y, m, difference: float) -> float:
    """The score with the likeliest rates found by search on each task's likelihood, and corrected for its skewness.

    The corrected score z is the root of score = z + skewness (z² - 1) / 6.
    """
    variance = third = 0.0
    for a, size, b, other in zip(x, n, y, m, strict=True):
        low, high = max(0.0, -difference), min(1.0, 1 - difference)

        def loss(q, a=a, size=size, b=b, other=other):
            p = min(max(q + difference, 0.0), 1.0)
            return -(special.xlogy(a, p) + special.xlog1py(size - a, -p) + special.xlogy(b, q)
                     + special.xlog1py(other - b, -q))  # fmt: skip

        q = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-11}).x
        q = min((q, low, high), key=loss)
        p = q + difference
        variance += (p * (1 - p) / size + q * (1 - q) / other) * (size + other) / (size + other - 1)
        third += p * (1 - p) * (1 - 2 * p) / size**2 - q * (1 - q) * (1 - 2 * q) / other**2
    score, skewness = ((x / n - y / m).mean() - difference) * len(n) / np.sqrt(variance), third / variance**1.5
    roots = np.roots([skewness / 6, 1, -score - skewness / 6]) if abs(skewness) > 1e-6 else np.array([score])
    return float(min(roots.real, key=abs))


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_the_score_test_and_its_interval_follow_their_definition(seed):
    """At an end the statistic is the normal quantile; the p-value is that of the statistic at 0."""
    x, n, y, m = draw_strata(seed)
    result = score_difference(x, n, y, m)
    if 0 < (x + y).sum() < (n + m).sum():
        assert result.p_value == pytest.approx(2 * stats.norm.sf(abs(score_by_search(x, n, y, m, 0.0))), abs=1e-6)
    for end, z in ((result.interval.low, 1.96), (result.interval.high, -1.96)):
        if abs(end) < 0.97:
            assert score_by_search(x, n, y, m, end) == pytest.approx(z, abs=2e-3)


@pytest.mark.parametrize("empty", [(0, 0, 2, 5), (3, 5, 0, 0), (0, 0, 0, 0)])
def test_a_task_without_episodes_of_a_policy_does_not_count(empty):
    x, n, y, m = np.array([[8, 9, 6], [10, 10, 12], [3, 5, 5], [10, 11, 12]])
    result, longer = score_difference(x, n, y, m), score_difference(*np.c_[[x, n, y, m], empty])
    assert longer.p_value == result.p_value
    assert (longer.interval.low, longer.interval.high) == (result.interval.low, result.interval.high)


@pytest.mark.parametrize("counts", [(9, 10, 3, 10), (6, 7, 2, 7), (40, 50, 30, 50)])
def test_the_p_value_of_one_stratum_of_equal_numbers_is_that_of_statsmodels(counts):
    result = score_difference(*(np.array([number]) for number in counts))
    expected = proportion.test_proportions_2indep(*counts, method="score", compare="diff", correction=True).pvalue
    assert result.p_value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("tasks", "n", "m", "rate"), [(2, 1, 50, 0.95), (5, 3, 50, 0.98), (10, 2, 50, 0.98)])
def test_rare_failures_against_many_more_episodes_do_not_raise_the_error(tasks, n, m, rate):
    """Without the correction for skewness these err in 8 to 10 %."""
    x, y = np.arange(tasks * n + 1), np.arange(tasks * m + 1)
    chances = np.outer(stats.binom.pmf(x, tasks * n, rate), stats.binom.pmf(y, tasks * m, rate))
    p_values = [
        [score_difference(*(np.array([float(v)]) for v in (a, tasks * n, b, tasks * m))).p_value
         if chances[a, b] > 1e-6 else 1.0 for b in y] for a in x
    ]  # fmt: skip
    assert chances[np.array(p_values) <= 0.05].sum() < 0.05


@given(st.integers(0, 2**32), st.sampled_from([0.9, 0.95, 0.99]))
@settings(max_examples=300, deadline=None)
def test_the_score_interval_has_the_side_of_its_test_and_turns_over_with_the_policies(seed, confidence):
    x, n, y, m = draw_strata(seed)
    result, mirrored = score_difference(x, n, y, m, confidence), score_difference(y, m, x, n, confidence)
    assert (mirrored.p_value, mirrored.interval.low) == (result.p_value, -result.interval.high)
    assert mirrored.interval.high == -result.interval.low
    estimate, interval = (x / n - y / m).mean(), result.interval
    assert interval.low - 1e-9 <= estimate <= interval.high + 1e-9
    assert (interval.low > 0 or interval.high < 0) == is_significant(result.p_value, confidence)
    order = default_rng(seed).permutation(len(x))
    again = score_difference(x[order], n[order], y[order], m[order], confidence)
    assert again.p_value == pytest.approx(result.p_value, abs=1e-9)
    assert (again.interval.low, again.interval.high) == pytest.approx((interval.low, interval.high), abs=1e-8)


def test_strata_that_are_all_alike_do_not_differ():
    assert score_difference(np.array([5.0, 0]), np.array([5, 9]), np.array([4.0, 0]), np.array([4, 9])).p_value == 1.0


def test_a_task_with_many_episodes_does_not_outweigh_nine_with_few():
    """Cochran, Mantel and Haenszel's test weighs tasks by episodes and found the other policy better here."""
    x = np.array([70.0, 5, 4, 5, 4, 4, 4, 4, 4, 3])
    y = np.array([95.0, 3, 3, 3, 3, 3, 4, 4, 4, 4])
    n = np.array([100] + [5] * 9)
    result = score_difference(x, n, y, n)
    assert (x / n - y / n).mean() == pytest.approx(0.095)
    assert result.interval.low < 0 < result.interval.high


@pytest.mark.parametrize(("tasks", "episodes"), [(10, 20), (10, 3), (40, 5)])
def test_the_difference_over_tasks_is_covered(tasks, episodes):
    random = default_rng(3)
    rates = random.beta(0.5, 0.5, tasks)
    others, sizes, covered = np.clip(rates - 0.1, 0, 1), np.full(tasks, episodes), 0
    for _ in range(300):
        x, y = random.binomial(episodes, rates).astype(float), random.binomial(episodes, others).astype(float)
        result = score_difference(x, sizes, y, sizes).interval
        covered += result.low <= (rates - others).mean() <= result.high
    assert covered / 300 >= 0.93


# Means of values from 0 to 1


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 0.7))
@settings(max_examples=25, deadline=None)
def test_the_interval_of_severities_agrees_with_their_test_and_turns_over_with_the_sides(seed, pairs, share):
    random = default_rng(seed)
    values, others = (np.where(random.random(pairs) < share, random.random(pairs), 0) for _ in range(2))
    result, mirrored = paired_mean_test(values - others), paired_mean_test(others - values)
    assert agrees(result.interval, result.p_value, 0.95)
    assert mirrored.p_value == pytest.approx(result.p_value, abs=1e-9)
    assert (mirrored.interval.low, mirrored.interval.high) == pytest.approx(
        (-result.interval.high, -result.interval.low), abs=1e-9
    )
    at_p = paired_mean_test(values - others, 1 - result.p_value).interval if 1e-6 < result.p_value < 1 else None
    if at_p:
        assert min(abs(at_p.low), abs(at_p.high)) == pytest.approx(0.0, abs=1e-5)


def test_an_inverted_interval_ends_at_zero_at_its_p_value():
    for mean in (0.1, 0.3, -0.2):
        result = invert_interval(lambda level, mean=mean: Interval(*stats.norm.interval(level, mean, 0.1)))
        assert result.p_value == pytest.approx(2 * stats.norm.sf(abs(mean) / 0.1), abs=3e-4)
        assert agrees(result.interval, result.p_value, 0.95)
    for ends in ((0.0, 1.0), (-1.0, 0.0)):
        assert invert_interval(lambda level, ends=ends: Interval(*ends)).p_value == pytest.approx(1.0, abs=3e-4)


@given(st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_several_rows_have_the_numbers_that_each_has_alone(seed):
    """Rows of pairs of policies are tested at once; NaN and tasks of size 0 do not count."""
    rng = default_rng(seed)
    gaps = np.where(rng.random((20, 30)) < 0.3, rng.uniform(-1, 1, (20, 30)), 0.0)
    gaps[3, 10:] = np.nan
    sizes, tasks = rng.integers(1, 9, (2, 20, 7)), rng.uniform(-1, 1, (20, 7))
    counts = [rng.binomial(size, 0.7).astype(float) for size in sizes]
    split = rng.integers(1, 9, (3, 20))
    many = [
        paired_mean_test(gaps),
        score_difference(counts[0], sizes[0], counts[1], sizes[1]),
        flip_task_means(tasks, sizes[0].astype(float)),
        mcnemar_test(split[0], split[1], split.sum(axis=0)),
    ]
    for k in range(20):
        alone = [
            paired_mean_test(gaps[k][~np.isnan(gaps[k])]),
            score_difference(counts[0][k], sizes[0][k], counts[1][k], sizes[1][k]),
            flip_task_means(tasks[k], sizes[0][k].astype(float)),
            mcnemar_test(*(int(part[k]) for part in split[:2]), int(split[:, k].sum())),
        ]
        for rows, one in zip(many, alone, strict=True):
            assert rows.p_value[k] == pytest.approx(one.p_value, abs=1e-9)
            assert (rows.interval.low[k], rows.interval.high[k]) == pytest.approx(
                (one.interval.low, one.interval.high), abs=2e-9
            )
