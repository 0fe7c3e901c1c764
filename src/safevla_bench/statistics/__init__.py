"""Intervals, tests and planning for proportions and means over episodes; counts and arrays in, numbers out."""

from __future__ import annotations

from safevla_bench.statistics.bootstrap import (
    RESAMPLES,
    bootstrap_means,
    percentiles,
    resampled_cluster_means,
    resampled_means,
)
from safevla_bench.statistics.intervals import (
    CONFIDENCE,
    Interval,
    mean_of_rates,
    mean_of_unit,
    newcombe,
    quantile,
    tango,
    wilson,
)
from safevla_bench.statistics.permutation import permutation_p, sign_flip_p
from safevla_bench.statistics.planning import half_width, paired_episodes, paired_power, unpaired_episodes
from safevla_bench.statistics.tests import Q, barnard, boschloo, cochran_q, holm, letters, mcnemar

__all__ = [
    "CONFIDENCE",
    "RESAMPLES",
    "Interval",
    "Q",
    "barnard",
    "bootstrap_means",
    "boschloo",
    "cochran_q",
    "half_width",
    "holm",
    "letters",
    "mcnemar",
    "mean_of_rates",
    "mean_of_unit",
    "newcombe",
    "paired_episodes",
    "paired_power",
    "percentiles",
    "permutation_p",
    "quantile",
    "resampled_cluster_means",
    "resampled_means",
    "sign_flip_p",
    "tango",
    "unpaired_episodes",
    "wilson",
]
