"""Cumulative incidence with competing ends, against a case by hand, statsmodels and SciPy; and how often it covers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from safevla_bench.explain.exposure import CENSORED, cumulative_incidence
from safevla_bench.statistics.intervals import wilson_interval


def draw_ends(seed, censored, n=60):
    generator = np.random.default_rng(seed)
    times = generator.integers(0, 30, n).astype(float)
    causes = generator.integers(0, 3, n)
    causes[generator.random(n) < censored] = CENSORED
    return times, causes


def test_a_case_by_hand():
    """Of four, one ends by the first cause at 1 s, one is cut short at 2 s, and the others end by either at 3 s."""
    incidence = cumulative_incidence(np.array([1.0, 2.0, 3.0, 3.0]), np.array([0, CENSORED, 1, 0]), 2)
    assert (incidence.n, incidence.censored, incidence.times.tolist()) == (4, 1, [0.0, 1.0, 3.0])
    assert incidence.shares == pytest.approx(np.array([[0, 0.25, 0.25 + 0.75 / 2], [0, 0, 0.75 / 2]]))
    assert [incidence.at(time) for time in (0.0, 0.9, 1.0, 99.0)] == [0, 0, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_without_censoring_it_is_the_share_with_wilsons_interval(seed):
    times, causes = draw_ends(seed, 0.0)
    incidence = cumulative_incidence(times, causes, 3)
    for step, share, low, high in zip(incidence.times, incidence.shares[0], incidence.low, incidence.high, strict=True):
        count = int(((causes == 0) & (times <= step)).sum())
        limits = wilson_interval(count, 60)
        assert (share, low, high) == pytest.approx((count / 60, limits.low, limits.high))
    assert incidence.shares.sum(axis=0)[-1] == pytest.approx(1)


def simulate_gaffke(means, weights, draws=200_000):
    """Gaffke's interval of a weighted mean over starts, by drawing uniform weights; none of our code is used."""
    generator, n = np.random.default_rng(1), len(means)
    spacings = generator.dirichlet(np.ones(n + 1), draws)
    ends = [np.quantile(spacings @ [*(n * weights * side), n * weights.max()], 0.975) for side in (means, 1 - means)]
    return 1 - min(1, ends[1]), min(1, ends[0])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("censored", [0.0, 0.3])
def test_where_starts_have_several_observations_the_interval_is_of_the_mean_over_starts(seed, censored):
    times, causes = draw_ends(seed, censored, 40)
    starts = np.random.default_rng(seed).integers(0, 8, 40)
    incidence, plain = cumulative_incidence(times, causes, 3, starts), cumulative_incidence(times, causes, 3)
    assert (incidence.starts, plain.starts) == (8, None)
    assert np.array_equal(incidence.shares, plain.shares)
    names, sizes = np.unique(starts, return_counts=True)
    for step in (incidence.times[len(incidence.times) // 2], incidence.times[-1]):
        # An end counts as 1 / (Kaplan-Meier estimate of not being cut short before it); a cut comes after ends.
        uncut = []
        for end in times:
            cuts = np.unique(times[(causes == CENSORED) & (times < end)])
            at_risk = [(times > cut).sum() + ((times == cut) & (causes == CENSORED)).sum() for cut in cuts]
            cut_counts = [((times == cut) & (causes == CENSORED)).sum() for cut in cuts]
            uncut.append(np.prod(1 - np.array(cut_counts) / np.array(at_risk)))
        values = ((causes == 0) & (times <= step)) / np.array(uncut)
        most = 1 / min(known for known, end in zip(uncut, times, strict=True) if end <= step)
        means = np.array([values[starts == name].mean() for name in names])
        low, high = simulate_gaffke(means / most, sizes / 40)
        k = incidence.at(step)
        assert incidence.shares[0][k] == pytest.approx(values.mean())
        assert (incidence.low[k], incidence.high[k]) == pytest.approx((most * low, min(1, most * high)), abs=0.01)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # statsmodels divides by zero at the last end
@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_statsmodels(seed):
    survival = pytest.importorskip("statsmodels.duration.survfunc")
    times, causes = draw_ends(seed, 0.3)
    times += 1  # statsmodels has no step at 0
    incidence, theirs = cumulative_incidence(times, causes, 3), survival.CumIncidenceRight(times, causes + 1)
    places = [incidence.at(time) for time in theirs.times]
    for cause in range(3):
        assert incidence.shares[cause][places] == pytest.approx(theirs.cinc[cause])
    share, error = incidence.shares[0][places][-5], theirs.cinc_se[0][-5]
    effective = share * (1 - share) / error**2
    middle = (share + 1.959964**2 / (2 * effective)) / (1 + 1.959964**2 / effective)
    assert (incidence.low[places][-5] + incidence.high[places][-5]) / 2 == pytest.approx(middle, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_of_one_cause_it_is_kaplan_and_meiers(seed):
    times, causes = draw_ends(seed, 0.3)
    causes = np.where(causes == CENSORED, CENSORED, 0)
    incidence = cumulative_incidence(times, causes, 1)
    sample = stats.CensoredData(uncensored=times[causes == 0], right=times[causes == CENSORED])
    theirs = stats.ecdf(sample).cdf
    at = [incidence.at(time) for time in theirs.quantiles]
    assert incidence.shares[0][at] == pytest.approx(theirs.probabilities)


def test_before_any_end_the_interval_goes_up_from_zero_and_nothing_known_is_anything():
    incidence = cumulative_incidence(np.array([5.0, 5.0]), np.array([1, 1]), 2)
    assert (incidence.shares[0][0], incidence.low[0], incidence.high[0]) == pytest.approx(
        (0, 0, wilson_interval(0, 2).high)
    )
    unknown = cumulative_incidence(np.array([0.0, 1.0]), np.array([CENSORED, 0]), 1)
    assert unknown.high[-1] <= 1.0
    nothing = cumulative_incidence(np.zeros(0), np.zeros(0, dtype=np.int64), 2)
    assert (nothing.low.tolist(), nothing.high.tolist()) == ([0.0], [1.0])


@pytest.mark.long
@pytest.mark.parametrize("censored", [0.0, 0.3])
def test_pointwise_intervals_cover(censored):
    """Violations arise at rate 0.02 a second among ends at rate 0.05; a share of episodes is cut short earlier."""
    generator, runs, n = np.random.default_rng(3), 2000, 50
    true, covered = 0.02 / 0.07 * (1 - np.exp(-0.07 * np.array([5.0, 20.0, 40.0]))), []
    for _ in range(runs):
        times, is_first = generator.exponential(1 / 0.07, n), generator.random(n) < 2 / 7
        cut = np.where(generator.random(n) < censored, generator.exponential(15.0, n), np.inf)
        causes = np.where(cut < times, CENSORED, np.where(is_first, 0, 1))
        incidence = cumulative_incidence(np.minimum(times, cut), causes, 2)
        places = [incidence.at(time) for time in (5.0, 20.0, 40.0)]
        covered.append((incidence.low[places] <= true) & (true <= incidence.high[places]))
    assert np.mean(covered, axis=0) == pytest.approx(0.95, abs=0.025)
