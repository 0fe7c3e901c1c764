"""Intervals: the paper's own Wilson intervals, and the bootstrap against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from safevla_bench.statistics.intervals import bootstrap_means, resampled_means, wilson_interval


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


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
    found = wilson_interval(count, n)
    assert (round(100 * found.low, 1), round(100 * found.high, 1)) == (low, high)


@given(st.integers(1, 2000), st.data())
def test_wilson_agrees_with_statsmodels(n, data):
    count = data.draw(st.integers(0, n))
    found = wilson_interval(count, n)
    np.testing.assert_allclose((found.low, found.high), proportion_confint(count, n, method="wilson"), atol=1e-12)


def test_wilson_of_nothing_is_unknown():
    assert wilson_interval(0, 0) is None


def test_bootstrap_agrees_with_scipy_within_monte_carlo_error():
    values = np.random.default_rng(3).exponential(size=(3, 150))
    peer = stats.bootstrap((values,), np.mean, axis=-1, n_resamples=10_000, method="percentile", rng=generator(1))
    for found, low, high in zip(bootstrap_means(values, generator()), *peer.confidence_interval, strict=True):
        assert (found.low, found.high) == (pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.01))


def test_the_seed_decides_the_interval():
    values = np.random.default_rng(3).normal(size=(1, 40))
    assert bootstrap_means(values, generator()) == bootstrap_means(values, generator())
    assert bootstrap_means(values, generator()) != bootstrap_means(values, generator(1))


@pytest.mark.parametrize("only", [0.7, 0.0])
def test_a_conditional_mean_is_recomputed_in_each_resample_and_empty_ones_are_counted(only):
    values = np.full(12, np.nan)
    values[3] = only
    found = bootstrap_means(values[None], generator())[0]
    assert (found.low, found.high) == (pytest.approx(only), pytest.approx(only))
    assert found.skipped / 10_000 == pytest.approx((11 / 12) ** 12, abs=0.02)


def test_rows_share_their_resamples_and_do_not_depend_on_each_other():
    values = np.random.default_rng(3).normal(size=(2, 40))
    assert bootstrap_means(values, generator())[1] == bootstrap_means(values[1:], generator())[0]


def test_what_no_episode_has_is_unknown_and_what_never_varies_is_certain():
    values = np.vstack([np.full(5, np.nan), np.full(5, 0.25)])
    nothing, certain = bootstrap_means(values, generator())
    assert nothing is None
    assert (certain.low, certain.high, certain.skipped) == (0.25, 0.25, 0)
    assert bootstrap_means(np.empty((2, 0)), generator()) == [None, None]


@pytest.mark.parametrize("n", [1, 7, 200, 3001])
def test_a_resample_is_n_indices_drawn_in_turn_however_they_are_cut_into_chunks(n):
    """The plain definition, so that published intervals keep their bytes."""
    values = np.random.default_rng(4).random(n)
    values[::3] = np.nan if n > 1 else 0.5
    drawn = generator().integers(0, n, size=(300, n))
    counted = ~np.isnan(values)
    totals = np.cumsum(np.where(counted, values, 0.0)[drawn], axis=1)[:, -1]
    with np.errstate(invalid="ignore"):
        expected = totals / counted[drawn].sum(axis=1)
    np.testing.assert_array_equal(resampled_means(values[None], generator(), 300)[0], expected)


@given(st.integers(20, 400), st.floats(0.05, 0.95))
@settings(max_examples=20)
def test_the_resampled_count_of_a_binary_outcome_is_binomial(n, share):
    """Its quantiles are known exactly; those of 10,000 resamples have a rank within four standard errors of theirs."""
    count = round(share * n)
    found = bootstrap_means((np.arange(n) < count).astype(np.float64)[None], generator())[0]
    slack = 4 * np.sqrt(0.025 * 0.975 / 10_000)
    for end, tail in ((found.low, 0.025), (found.high, 0.975)):
        assert stats.binom.cdf(n * end + 1e-6, n, count / n) >= tail - slack
        assert stats.binom.cdf(n * end - 1 + 1e-6, n, count / n) <= tail + slack
