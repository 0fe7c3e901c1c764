"""Kappa against statsmodels and a value by hand; its interval against a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa

from safevla_bench.statistics.agreement import cohen_kappa, kappa_interval


@pytest.mark.parametrize("counts", [(20, 5, 10, 15), (3, 0, 1, 6), (5, 0, 0, 5), (0, 4, 7, 0), (90, 3, 6, 1)])
def test_kappa_is_that_of_statsmodels(counts):
    table = np.array(counts).reshape(2, 2)
    assert float(cohen_kappa(table)) == pytest.approx(cohens_kappa(table).kappa)


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (9, 0, 0, 0), (0, 0, 0, 4)])
def test_where_chance_alone_agrees_there_is_no_kappa(counts):
    table = np.array(counts).reshape(2, 2)
    assert np.isnan(cohen_kappa(table))
    assert kappa_interval(table) is None


def test_few_episodes_that_all_agree_leave_room_for_disagreement():
    few, many = (kappa_interval(np.array([[n, 0], [0, n]])) for n in (4, 200))
    assert few.low < 0.6 < 0.97 < many.low


def test_the_interval_covers_the_true_kappa():
    shares = np.array([0.7, 0.05, 0.05, 0.2])
    true = float(cohen_kappa(shares.reshape(2, 2)))
    drawn = np.random.default_rng(0).multinomial(20, shares, size=200).reshape(-1, 2, 2)
    intervals = [interval for counts in drawn if (interval := kappa_interval(counts))]
    assert np.mean([interval.low <= true <= interval.high for interval in intervals]) > 0.9
