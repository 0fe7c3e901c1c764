"""Intervals of rates and differences: exact coverage, and oracles from scipy, statsmodels and a plain likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.proportion import confint_proportions_2indep

from safevla_bench.statistics.intervals import (
    Interval,
    bounded_mean_interval,
    exact_interval,
    is_significant,
    newcombe_interval,
    normal_quantile,
    rate_mean_interval,
    reconcile_interval,
    tango_interval,
    unit_mean_interval,
    wilson_interval,
)
from safevla_bench.statistics.strata import mcnemar_mid_p


@pytest.mark.parametrize("n", [20, 200])
def test_wilson_covers_what_it_says_on_average_over_rates(n):
    """Exact: the binomial is summed, nothing is drawn."""
    rates = np.linspace(0.02, 0.98, 97)
    intervals = [wilson_interval(k, n) for k in range(n + 1)]
    low, high = np.array([[one.low, one.high] for one in intervals]).T
    inside = (low[:, None] <= rates) & (rates <= high[:, None])
    coverage = (stats.binom.pmf(np.arange(n + 1)[:, None], n, rates) * inside).sum(axis=0)
    assert 0.94 <= coverage.mean() <= 0.97


@given(st.integers(1, 300), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_a_mean_of_zeros_and_ones_is_wilsons(n, data, confidence):
    count = data.draw(st.integers(0, n))
    mine, theirs = unit_mean_interval(count, n, confidence), wilson_interval(count, n, confidence)
    np.testing.assert_allclose((mine.low, mine.high), (theirs.low, theirs.high), atol=1e-12)


@given(st.integers(1, 400), st.floats(0, 1))
def test_the_interval_of_a_mean_holds_the_mean_even_at_its_ends(n, p):
    found = unit_mean_interval(n * p, n)
    assert 0 <= found.low <= n * p / n <= found.high <= 1
    assert unit_mean_interval(n, n).high == 1.0
    assert unit_mean_interval(0, n).low == 0.0


def test_the_interval_of_a_mean_is_cautious_for_graded_values():
    """Coverage by simulation for severities, most of them zero, never below the nominal one."""
    generator = np.random.default_rng(1)
    shape = (4000, 60)
    values = np.where(generator.random(shape) < 0.3, generator.beta(2, 3, shape), 0.0)
    intervals = [unit_mean_interval(total, shape[1]) for total in values.sum(axis=1)]
    assert np.mean([one.low <= 0.3 * 0.4 <= one.high for one in intervals]) >= 0.95


def test_newcombes_interval_is_the_published_one():
    """Newcombe 1998, first example: 56/70 and 48/80."""
    found = newcombe_interval(56, 70, 48, 80)
    assert (round(found.low, 4), round(found.high, 4)) == (0.0524, 0.3339)


@given(st.integers(1, 200), st.integers(1, 200), st.data())
def test_newcombe_agrees_with_statsmodels(n, m, data):
    a, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    found = newcombe_interval(a, n, b, m)
    theirs = confint_proportions_2indep(a, n, b, m, method="newcomb", compare="diff")
    np.testing.assert_allclose((found.low, found.high), theirs, atol=1e-10)


def likelihood_limits(b: int, c: int, n: int, confidence: float) -> tuple[float, float]:
    """Tango's limits the long way: the chance of the second winning by maximising the likelihood numerically."""

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
    found = tango_interval(b, c, n, confidence)
    np.testing.assert_allclose((found.low, found.high), likelihood_limits(b, c, n, confidence), atol=2e-6)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_tangos_interval_holds_the_difference_and_turns_over_with_the_sides(b, c, same):
    n = b + c + same
    if n == 0:
        assert tango_interval(b, c, n) is None
        return
    one, other = tango_interval(b, c, n), tango_interval(c, b, n)
    assert -1 <= one.low <= (b - c) / n <= one.high <= 1
    np.testing.assert_allclose((one.low, one.high), (-other.high, -other.low), atol=1e-9)


def test_tangos_interval_of_equals_shrinks_as_z_squared_over_n():
    z2 = normal_quantile() ** 2
    for n in (1, 10, 200):
        found = tango_interval(0, 0, n)
        assert (-found.low, found.high) == (pytest.approx(z2 / (n + z2)), pytest.approx(z2 / (n + z2)))


def test_tangos_interval_covers_what_it_says():
    """Exact, over all outcomes of 40 pairs, for three pairs of rates."""
    n = 40
    for p_b, p_c in ((0.2, 0.1), (0.1, 0.1), (0.3, 0.05)):
        b, c = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
        there = b + c <= n
        chance = stats.multinomial.pmf(np.stack([b, c, n - b - c], -1)[there], n, [p_b, p_c, 1 - p_b - p_c])
        likely = chance > 1e-7
        pairs = zip(b[there][likely].tolist(), c[there][likely].tolist(), strict=True)
        found = [tango_interval(x, y, n) for x, y in pairs]
        inside = [one.low <= p_b - p_c <= one.high for one in found]
        assert 0.935 <= chance[likely] @ inside <= 0.975


@pytest.mark.parametrize("find", [unit_mean_interval, wilson_interval, exact_interval])
def test_of_nothing_there_is_no_interval(find):
    assert find(0, 0) is None
    assert newcombe_interval(0, 0, 1, 2) is None
    assert tango_interval(0, 0, 0) is None
    assert bounded_mean_interval(np.empty(0)) is None
    assert isinstance(find(0, 1), Interval)


# The mean of several proportions


def test_the_mean_of_one_proportion_has_its_own_interval():
    alone = wilson_interval(17, 20)
    found = rate_mean_interval([(17 / 20, alone)])
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high))
    assert rate_mean_interval([]) is None


def test_the_mean_of_two_is_half_of_newcombe_s_difference_to_the_complement():
    # p/2 + q/2 = (p - (1 - q))/2 + 1/2, and Wilson's interval of 1 - q is that of q, turned round
    for (a, n), (b, m) in [((17, 20), (3, 10)), ((0, 8), (9, 9)), ((50, 200), (199, 200))]:
        found = rate_mean_interval([(a / n, wilson_interval(a, n)), (b / m, wilson_interval(b, m))])
        difference = newcombe_interval(a, n, m - b, m)
        assert (found.low, found.high) == pytest.approx(((difference.low + 1) / 2, (difference.high + 1) / 2))


def test_the_mean_of_four_suites_covers_the_truth_about_as_often_as_it_says():
    rates, n, runs = np.array([0.75, 0.98, 0.86, 0.9]), 50, 2000
    counts = np.random.default_rng(0).binomial(n, rates, size=(runs, 4))
    intervals = {k: wilson_interval(k, n) for k in range(n + 1)}
    found = [rate_mean_interval([(k / n, intervals[k]) for k in row]) for row in counts.tolist()]
    covered = sum(one.low <= rates.mean() <= one.high for one in found) / runs
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
    """The integral of the characteristic function against the incomplete beta function."""
    for count in {0, 1, n // 3, n - 1, n}:
        values = (np.arange(n) < count).astype(float)
        mine, theirs = bounded_mean_interval(values, confidence), exact_interval(count, n, confidence)
        np.testing.assert_allclose((mine.low, mine.high), (theirs.low, theirs.high), atol=2e-9)


def test_the_interval_of_a_bounded_mean_is_the_quantile_of_random_weights():
    """By drawing the weights of its definition."""
    generator = np.random.default_rng(5)
    values = generator.beta(2, 3, 20) * (generator.random(20) < 0.4)
    weights = generator.dirichlet(np.ones(21), 200_000)
    found = bounded_mean_interval(values)
    assert found.high == pytest.approx(np.quantile(weights @ np.append(values, 1.0), 0.975), abs=2e-3)
    assert found.low == pytest.approx(np.quantile(weights @ np.append(values, 0.0), 0.025), abs=2e-3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interval_of_a_bounded_mean_holds_the_mean_has_a_width_and_mirrors(values):
    values = np.array(values)
    found, mirrored = bounded_mean_interval(values), bounded_mean_interval(1 - values)
    assert 0 <= found.low <= values.mean() + 1e-9
    assert values.mean() - 1e-9 <= found.high <= 1
    assert found.high - found.low > 0.01
    np.testing.assert_allclose((1 - mirrored.high, 1 - mirrored.low), (found.low, found.high), atol=3e-9)


def test_many_distinct_values_are_merged_without_moving_the_interval():
    values = np.random.default_rng(3).beta(0.5, 4, 1500)
    merged, narrower = bounded_mean_interval(values), bounded_mean_interval(np.tile(values, 4))
    normal = 1.96 * values.std() / np.sqrt(len(values))
    assert merged.high - merged.low == pytest.approx(2 * normal, rel=0.08)
    assert narrower.high - narrower.low == pytest.approx(normal, rel=0.05)


@pytest.mark.parametrize("depth", [1.0, 0.3, None])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.3])
def test_the_interval_of_severity_covers_where_the_bootstrap_does_not(rate, depth):
    """Twenty episodes, of which few are unsafe: the percentile bootstrap covers 0.32 to 0.64 at 2 to 5 %."""
    generator = np.random.default_rng(11)
    depths = np.full((150, 20), depth) if depth else generator.uniform(0, 1, (150, 20))
    values = np.where(generator.random((150, 20)) < rate, depths, 0.0)
    mean = rate * (depth or 0.5)
    found = [bounded_mean_interval(row) for row in values]
    assert np.mean([one.low <= mean <= one.high for one in found]) >= 0.95


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
        found = reconcile_interval(plain, (b - c) / n, p, confidence)
        significant = is_significant(p, confidence)
        assert (found.low >= 0 or found.high <= 0) if significant else (found.low <= 0 <= found.high)
        assert found.low <= (b - c) / n <= found.high
        changed += [(b, c)] if found != plain and b > c else []
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
