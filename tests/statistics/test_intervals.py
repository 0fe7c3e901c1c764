"""Intervals of rates and differences: exact coverage, and oracles from scipy, statsmodels and a plain likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy import optimize, stats
from statsmodels.stats.proportion import confint_proportions_2indep

from safevla_bench.errors import SafevlaError
from safevla_bench.statistics.intervals import (
    Interval,
    _spacing_cdf,
    bootstrap_means,
    bounded_mean_ends,
    bounded_mean_interval,
    combine_intervals,
    exact_interval,
    find_root,
    geometric_interval,
    is_significant,
    mean_p_values,
    mean_rate_interval,
    median_interval,
    normal_quantile,
    percentile_interval,
    rate_power,
    rate_sample_size,
    reconcile_interval,
    tango_interval,
    wilson_interval,
)
from safevla_bench.statistics.significance import mcnemar_mid_p


@given(st.integers(1, 400), st.floats(0, 1))
def test_the_interval_of_a_mean_holds_the_mean_even_at_its_ends(n, p):
    result = wilson_interval(n * p, n)
    assert 0 <= result.low <= n * p / n <= result.high <= 1
    assert wilson_interval(n, n).high == 1.0
    assert wilson_interval(0, n).low == 0.0


def likelihood_limits(b: int, c: int, n: int, confidence: float) -> tuple[float, float]:
    """Tango's limits the long way: the chance of the second winning by maximizing the likelihood numerically."""

    def score(d: float) -> float:
        low, high = max(0.0, -d) + 1e-13, (1 - d) / 2 - 1e-13

        def surprise(q: float) -> float:
            return -(b * np.log(q + d + 1e-300) + c * np.log(q) + (n - b - c) * np.log(1 - 2 * q - d))

        q = optimize.minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
        return (b - c - n * d) / np.sqrt(n * (2 * q + d - d * d))

    z, observed = stats.norm.ppf(0.5 + confidence / 2), (b - c) / n
    low = optimize.brentq(lambda d: score(d) - z, -0.9999, observed, xtol=1e-12)
    return low, optimize.brentq(lambda d: score(d) + z, observed, 0.9999, xtol=1e-12)


@pytest.mark.parametrize(
    ("b", "c", "n"), [(1, 7, 21), (12, 2, 50), (40, 20, 160), (150, 86, 1600), (3, 3, 10), (9, 1, 400), (5, 4, 12)]
)
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_tangos_interval_agrees_with_a_numerical_likelihood(b, c, n, confidence):
    result = tango_interval(b, c, n, confidence)
    np.testing.assert_allclose((result.low, result.high), likelihood_limits(b, c, n, confidence), atol=2e-6)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_tangos_interval_holds_the_difference_and_turns_over_with_the_sides(b, c, same):
    n = b + c + same
    if n == 0:
        assert tango_interval(b, c, n) is None
        return
    interval, other = tango_interval(b, c, n), tango_interval(c, b, n)
    assert -1 <= interval.low <= (b - c) / n <= interval.high <= 1
    np.testing.assert_allclose((interval.low, interval.high), (-other.high, -other.low), atol=1e-9)


def test_tangos_interval_of_equals_shrinks_as_z_squared_over_n():
    z2 = normal_quantile() ** 2
    for n in (1, 10, 200):
        result = tango_interval(0, 0, n)
        assert (-result.low, result.high) == (pytest.approx(z2 / (n + z2)), pytest.approx(z2 / (n + z2)))


@pytest.mark.parametrize("find", [wilson_interval, exact_interval])
def test_of_nothing_there_is_no_interval(find):
    assert find(0, 0) is None
    assert tango_interval(0, 0, 0) is None
    assert bounded_mean_interval(np.empty(0)) is None
    assert isinstance(find(0, 1), Interval)


@given(st.floats(-0.999, 0.999), st.floats(0.05, 50), st.integers(0, 4))
def test_a_root_is_found_however_steep_the_function(root, slope, power):
    found = find_root(lambda x: np.arctan(slope * (x - root)) + (x - root) ** (2 * power + 1), -1.0, 1.0)
    assert found == pytest.approx(root, abs=2e-12)
    assert find_root(lambda x: root - x, 1.0, -1.0) == pytest.approx(root, abs=2e-12)


@pytest.mark.parametrize(
    "function", [lambda x: np.exp(x) - 1.3, lambda x: x**3 - 0.2, lambda x: np.arctan(20 * (x - 0.3))]
)
def test_a_root_is_found_in_a_third_of_the_steps_of_halving(function):
    points = []
    find_root(lambda x: points.append(x) or function(x), -1.0, 1.0)
    assert len(points) <= 14  # halving 2 to 1e-12 takes 41 steps


# The mean of several proportions


def test_the_mean_of_one_proportion_has_its_own_interval():
    alone = wilson_interval(17, 20)
    result = combine_intervals([(17 / 20, alone)], [1.0])
    assert (result.low, result.high) == pytest.approx((alone.low, alone.high))


def test_the_mean_of_two_is_half_of_newcombe_s_difference_to_the_complement():
    # p/2 + q/2 = (p - (1 - q))/2 + 1/2, and Wilson's interval of 1 - q is that of q, turned round
    for (a, n), (b, m) in [((17, 20), (3, 10)), ((0, 8), (9, 9)), ((50, 200), (199, 200))]:
        result = combine_intervals([(a / n, wilson_interval(a, n)), (b / m, wilson_interval(b, m))], (0.5, 0.5))
        low, high = confint_proportions_2indep(a, n, m - b, m, method="newcomb", compare="diff")
        assert (result.low, result.high) == pytest.approx(((low + 1) / 2, (high + 1) / 2))


def test_the_mean_of_four_suites_covers_the_truth_about_as_often_as_it_says():
    rates, n, runs = np.array([0.75, 0.98, 0.86, 0.9]), 50, 2000
    counts = default_rng(0).binomial(n, rates, size=(runs, 4))
    intervals = {k: wilson_interval(k, n) for k in range(n + 1)}
    result = [combine_intervals([(k / n, intervals[k]) for k in row], [0.25] * 4) for row in counts.tolist()]
    covered = sum(interval.low <= rates.mean() <= interval.high for interval in result) / runs
    assert 0.93 < covered < 0.985


# Exact intervals, and the mean of values between 0 and 1


@given(st.integers(1, 40_000), st.data(), st.sampled_from([0.8, 0.95, 0.995]))
def test_wilsons_interval_is_scipys_to_the_last_bit(n, data, confidence):
    count = data.draw(st.integers(0, n))
    mine, theirs = wilson_interval(count, n, confidence), stats.binomtest(count, n).proportion_ci(confidence, "wilson")
    assert (mine.low, mine.high) == (theirs.low, theirs.high)


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.995]))
def test_the_exact_interval_is_scipys(n, data, confidence):
    count = data.draw(st.integers(0, n))
    mine, theirs = exact_interval(count, n, confidence), stats.binomtest(count, n).proportion_ci(confidence, "exact")
    np.testing.assert_allclose((mine.low, mine.high), (theirs.low, theirs.high), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 60, 200, 3000])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_the_interval_of_a_bounded_mean_of_zeros_and_ones_is_the_exact_one(n, confidence):
    """The beta distribution, and the integral of the characteristic function in the p-values."""
    for count in {0, 1, n // 3, n - 1, n}:
        values = (np.arange(n) < count).astype(float)
        mine, theirs = bounded_mean_interval(values, confidence), exact_interval(count, n, confidence)
        np.testing.assert_allclose((mine.low, mine.high), (theirs.low, theirs.high), atol=2e-9)
        inner = [end for end in (theirs.low, theirs.high) if 0 < end < 1]
        p_values = [mean_p_values(values[None], end)[0] for end in inner]
        np.testing.assert_allclose(p_values, 1 - confidence, atol=1e-9)


@pytest.mark.parametrize(
    "values", [[0.3] * 4, [0.3] * 4 + [1.0] * 2, [0.0, 0.3, 0.3], [0.2, 0.7, 1.0, 1.0], [0.9, 1.0]]
)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_of_a_bounded_mean_ends_where_its_p_value_says(values, confidence):
    """One value below 1 is solved by a beta distribution, several by secant steps; the p-values need neither."""
    interval = bounded_mean_interval(np.array(values), confidence)
    for end in (interval.low, interval.high):
        assert mean_p_values(np.array([values]), end)[0] == pytest.approx(1 - confidence, abs=1e-6)


def test_the_greatest_and_the_least_mean_are_refuted_by_values_between_them():
    values = np.array([[0.2, 0.5, 0.9], [0.0, 0.5, 1.0]])
    assert mean_p_values(values, 1.0).tolist() == mean_p_values(values, 0.0).tolist() == [0, 0]


def test_the_interval_of_a_bounded_mean_is_the_quantile_of_random_weights():
    """By drawing the weights of its definition."""
    generator = default_rng(5)
    values = generator.beta(2, 3, 20) * (generator.random(20) < 0.4)
    weights = generator.dirichlet(np.ones(21), 200_000)
    result = bounded_mean_interval(values)
    assert result.high == pytest.approx(np.quantile(weights @ np.append(values, 1.0), 0.975), abs=2e-3)
    assert result.low == pytest.approx(np.quantile(weights @ np.append(values, 0.0), 0.025), abs=2e-3)


def test_the_probability_of_a_mean_with_random_weights_is_zero_at_the_least_value_and_far_below_the_others():
    counts = np.array([[1.0, 28, 24, 12, 5, 17, 25]])
    points = np.array([[1, 0.644, 0.667, 0.047, 0.415, 0.683, 0.903]])
    assert _spacing_cdf(points, counts, np.array([0.047])) == [0]
    assert _spacing_cdf(np.array([[1, 0.5]]), np.array([[1.0, 1]]), np.array([0.5])) == [0]
    assert _spacing_cdf(points, counts, np.array([0.0905])) == pytest.approx([0], abs=1e-12)
    assert _spacing_cdf(points, counts, np.array([1.0])) == [1]


def test_weighted_values_are_scaled_and_bounded_by_the_greatest_scale():
    """By drawing the weights of its definition, for three values of unequal weight."""
    values, shares = np.array([0.9, 0.2, 0.6]), np.array([0.5, 0.2, 0.3])
    weights = default_rng(5).dirichlet(np.ones(4), 400_000)
    result = bounded_mean_interval(values, 0.9, shares)
    for end, side in ((result.high, values), (1 - result.low, 1 - values)):
        drawn = np.quantile(weights @ (3 * np.append(shares * side, shares.max())), 0.95)
        assert end == pytest.approx(min(1.0, drawn), abs=4e-3)
    alike = bounded_mean_interval(values, 0.9, np.full(3, 1 / 3)), bounded_mean_interval(values, 0.9)
    assert (alike[0].low, alike[0].high) == pytest.approx((alike[1].low, alike[1].high), abs=1e-8)


def test_rows_have_the_ends_that_each_has_alone_at_its_confidence_and_without_what_is_unknown():
    values = default_rng(6).random((3, 6))
    weights = default_rng(7).dirichlet(np.ones(6), 3)
    values[1, 2:4] = weights[1, 2:4] = np.nan
    weights[1] /= np.nansum(weights[1])
    for shares in (weights, None):
        ends = bounded_mean_ends(values, np.array([0.8, 0.9, 0.95]), shares)
        for k, level in enumerate((0.8, 0.9, 0.95)):
            known = ~np.isnan(values[k])
            alone = bounded_mean_interval(values[k, known], level, shares if shares is None else shares[k, known])
            assert (ends[0][k], ends[1][k]) == pytest.approx((alone.low, alone.high), abs=2e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interval_of_a_bounded_mean_holds_the_mean_has_a_width_and_mirrors(values):
    values = np.array(values)
    result, mirrored = bounded_mean_interval(values), bounded_mean_interval(1 - values)
    assert 0 <= result.low <= values.mean() + 1e-9
    assert values.mean() - 1e-9 <= result.high <= 1
    assert result.high - result.low > 0.01
    np.testing.assert_allclose((1 - mirrored.high, 1 - mirrored.low), (result.low, result.high), atol=3e-9)


def test_many_distinct_values_are_merged_without_moving_the_interval():
    values = default_rng(3).beta(0.5, 4, 1500)
    merged, narrower = bounded_mean_interval(values), bounded_mean_interval(np.tile(values, 4))
    normal = 1.96 * values.std() / np.sqrt(len(values))
    assert merged.high - merged.low == pytest.approx(2 * normal, rel=0.08)
    assert narrower.high - narrower.low == pytest.approx(normal, rel=0.05)


@pytest.mark.parametrize("depth", [1.0, 0.3, None])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.3])
def test_the_interval_of_severity_covers_where_the_bootstrap_does_not(rate, depth):
    """Twenty episodes, few of them unsafe: the percentile bootstrap covers 0.32 to 0.64 at 2 to 5 %."""
    generator = default_rng(11)
    depths = np.full((150, 20), depth) if depth else generator.uniform(0, 1, (150, 20))
    values = np.where(generator.random((150, 20)) < rate, depths, 0.0)
    mean = rate * (depth or 0.5)
    result = [bounded_mean_interval(row) for row in values]
    assert np.mean([interval.low <= mean <= interval.high for interval in result]) >= 0.95


SPLITS = [(b, c) for b in range(26) for c in range(26 - b)]


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("same", [0, 5, 100])
def test_tango_s_interval_is_reconciled_with_mcnemar_s_mid_p_value(same, confidence):
    """An end of 0 beside a significant p-value is an open one."""
    changed = []
    for b, c in SPLITS:
        n, p = b + c + same, mcnemar_mid_p(b, c)
        if n == 0:
            continue
        plain = tango_interval(b, c, n, confidence)
        result = reconcile_interval(plain, (b - c) / n, p, confidence)
        significant = is_significant(p, confidence)
        assert (result.low >= 0 or result.high <= 0) if significant else (result.low <= 0 <= result.high)
        assert result.low <= (b - c) / n <= result.high
        changed += [(b, c)] if result != plain and b > c else []
    if confidence == 0.95 and same == 100:
        assert changed == [(4, 0), (15, 6)]  # beyond 25 pairs 18:8 and 21:10


def test_a_significant_test_opens_the_interval_at_zero_on_the_far_side():
    around, beside = Interval(-0.1, 0.4), Interval(0.1, 0.4)
    assert reconcile_interval(around, 0.2, 0.04) == Interval(0.0, 0.4)
    assert reconcile_interval(Interval(-0.4, 0.1), -0.2, 0.04) == Interval(-0.4, 0.0)
    assert reconcile_interval(beside, 0.2, 0.06) == Interval(0.0, 0.4)
    assert reconcile_interval(around, 0.2, 0.06) == around
    assert reconcile_interval(beside, 0.2, 0.04) == beside
    assert reconcile_interval(None, 0.2, 0.04) is None


# Wilson and the bootstrap

# Paper Table 12: counts of 20 and of 200 and the printed intervals, in percent.
TABLE_12 = [
    (15, 20, 53.1, 88.8),
    (18, 20, 69.9, 97.2),
    (17, 20, 64.0, 94.8),
    (20, 20, 83.9, 100.0),
    (13, 20, 43.3, 81.9),
    (7, 20, 18.1, 56.7),
    (167, 200, 77.7, 88.0),
    (156, 200, 71.8, 83.2),
]


@pytest.mark.parametrize(("count", "n", "low", "high"), TABLE_12)
def test_wilson_gives_the_printed_intervals_of_table_12(count, n, low, high):
    result = wilson_interval(count, n)
    assert (round(100 * result.low, 1), round(100 * result.high, 1)) == (low, high)


def test_bootstrap_agrees_with_scipy_within_monte_carlo_error():
    values = default_rng(3).exponential(size=(3, 150))
    peer = stats.bootstrap((values,), np.mean, axis=-1, n_resamples=10_000, method="percentile", rng=default_rng(1))
    for result, low, high in zip(bootstrap_means(values, default_rng(0)), *peer.confidence_interval, strict=True):
        assert (result.low, result.high) == (pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.01))


def test_the_seed_decides_the_interval():
    values = default_rng(3).normal(size=(1, 40))
    assert bootstrap_means(values, default_rng(0)) == bootstrap_means(values, default_rng(0))
    assert bootstrap_means(values, default_rng(0)) != bootstrap_means(values, default_rng(1))


@pytest.mark.parametrize("only", [0.7, 0.0])
def test_a_conditional_mean_is_recomputed_in_each_resample_and_empty_ones_are_counted(only):
    values = np.full(12, np.nan)
    values[3] = only
    result = bootstrap_means(values[None], default_rng(0))[0]
    assert (result.low, result.high) == (pytest.approx(only), pytest.approx(only))
    assert result.skipped / 10_000 == pytest.approx((11 / 12) ** 12, abs=0.02)


def test_rows_share_their_resamples_and_do_not_depend_on_each_other():
    values = default_rng(3).normal(size=(2, 40))
    assert bootstrap_means(values, default_rng(0))[1] == bootstrap_means(values[1:], default_rng(0))[0]


def test_what_no_episode_has_is_unknown_and_what_never_varies_is_certain():
    values = np.vstack([np.full(5, np.nan), np.full(5, 0.25)])
    nothing, certain = bootstrap_means(values, default_rng(0))
    assert nothing is None
    assert (certain.low, certain.high, certain.skipped) == (0.25, 0.25, 0)
    assert bootstrap_means(np.empty((2, 0)), default_rng(0)) == [None, None]


@pytest.mark.parametrize("n", [1, 7, 200, 3001])
def test_a_resample_is_n_indices_drawn_in_turn_however_they_are_cut_into_chunks(n, monkeypatch):
    """The plain definition, so that published intervals keep their bytes."""
    monkeypatch.setattr("safevla_bench.statistics.intervals.RESAMPLES", 300)
    values = default_rng(4).random(n)
    values[::3] = np.nan if n > 1 else 0.5
    picks = default_rng(0).integers(0, n, size=(300, n))
    counted = ~np.isnan(values)
    totals = np.cumsum(np.where(counted, values, 0.0)[picks], axis=1)[:, -1]
    with np.errstate(invalid="ignore"):
        means = totals / counted[picks].sum(axis=1)
    assert bootstrap_means(values[None], default_rng(0)) == [percentile_interval(means)]


@given(st.integers(20, 400), st.floats(0.05, 0.95))
@settings(max_examples=20)
def test_the_resampled_count_of_a_binary_outcome_is_binomial(n, share):
    """Its quantiles are known exactly; those of 10,000 resamples have a rank within four standard errors of theirs."""
    count = round(share * n)
    result = bootstrap_means((np.arange(n) < count).astype(np.float64)[None], default_rng(0))[0]
    slack = 4 * np.sqrt(0.025 * 0.975 / 10_000)
    for end, tail in ((result.low, 0.025), (result.high, 0.975)):
        assert stats.binom.cdf(n * end + 1e-6, n, count / n) >= tail - slack
        assert stats.binom.cdf(n * end - 1 + 1e-6, n, count / n) <= tail + slack


# Medians, trials and several rates


@pytest.mark.parametrize(
    ("n", "confidence", "ranks"),
    [(0, 0.95, None), (5, 0.95, None), (5, 0.9375, (1, 5)), (6, 0.95, (1, 6)), (20, 0.95, (6, 15)), (9, 0.8, (3, 7))],
)
def test_the_interval_of_a_median_has_two_of_the_values_as_ends(n, confidence, ranks):
    """Ranks as in tables of the sign test; at 93.75 % five values are just enough."""
    values = default_rng(1).permutation(np.arange(1.0, n + 1))
    assert median_interval(values, confidence) == (ranks and Interval(*map(float, ranks)))


@pytest.mark.parametrize(("trials", "confidence"), [(1, 0.95), (2, 0.95), (7, 0.9)])
def test_trials_up_to_a_success_are_as_unlikely_at_either_end_as_the_confidence_says(trials, confidence):
    result, tail = geometric_interval(trials, confidence), (1 - confidence) / 2
    assert stats.geom.cdf(trials, result.low) == pytest.approx(tail)
    assert result.high == 1.0 if trials == 1 else stats.geom.sf(trials - 1, result.high) == pytest.approx(tail)


def test_the_mean_of_rates_is_that_of_one_or_of_equal_numbers_or_weighs_each_rate_alike():
    assert mean_rate_interval([3], [4], 0.9) == wilson_interval(3, 4, 0.9)
    assert mean_rate_interval([3, 1], [4, 4], 0.9) == exact_interval(4, 8, 0.9)
    values, weights = np.array([1.0, 1, 1, 0, 1, 0]), np.array([0.125] * 4 + [0.25] * 2)
    assert mean_rate_interval([3, 1], [4, 2], 0.9) == bounded_mean_interval(values, 0.9, weights)
    assert mean_rate_interval([], []) is mean_rate_interval([3, 0], [4, 0]) is mean_rate_interval([0], [0]) is None


# One rate against a limit


@pytest.mark.parametrize(
    ("n", "rate", "limit"), [(40, 0.98, 0.9), (60, 0.7, 0.9), (25, 0.05, 0.3), (30, 1.0, 0.9), (36, 1.0, 0.9)]
)
def test_the_power_of_an_exact_interval_is_its_share_of_all_outcomes(n, rate, limit):
    intervals = [exact_interval(k, n) for k in range(n + 1)]
    decides = [interval.low > limit if rate > limit else interval.high < limit for interval in intervals]
    assert rate_power(n, rate, limit) == pytest.approx(stats.binom.pmf(np.arange(n + 1), n, rate) @ decides)


@pytest.mark.parametrize(("rate", "limit"), [(1.0, 0.9), (0.95, 0.9), (0.8, 0.9), (0.02, 0.05), (0.3, 0.5)])
def test_the_planned_number_decides_with_its_power_and_a_tenth_fewer_does_not(rate, limit):
    n = rate_sample_size(rate, limit)
    assert rate_power(n, rate, limit) >= 0.8 > rate_power(int(0.85 * n) - 1, rate, limit)
    assert rate_sample_size(limit, limit) is None


@pytest.mark.parametrize("wrong", [-0.1, 1.1, np.nan, np.inf])
def test_a_limit_that_is_not_a_share_is_refused(wrong):
    with pytest.raises(SafevlaError):
        rate_sample_size(0.5, wrong)


@pytest.mark.parametrize("level", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("name", ["power", "confidence"])
def test_a_power_or_a_confidence_that_is_certain_or_none_is_refused(name, level):
    with pytest.raises(SafevlaError, match=name):
        rate_sample_size(0.9, 0.5, **{name: level})


def test_a_limit_may_be_never_or_always_and_one_too_near_has_no_number():
    """A tenth must show at least once in n episodes: 1 - 0.9^n is 0.8 from n = 16 on."""
    assert rate_sample_size(0.9, 1.0) == rate_sample_size(0.1, 0.0) == 16
    assert rate_sample_size(0.5, 0.5 + 1e-6) is rate_sample_size(0.6, 0.5, most=150) is None
    assert rate_sample_size(0.6, 0.5, most=250) > 150
