"""Intervals, tests and sample sizes for proportions and means over episodes, from counts and arrays."""

from __future__ import annotations

from safevla_bench.statistics.bootstrap import (
    RESAMPLES,
    bootstrap_means,
    percentile_interval,
    resampled_cluster_means,
    resampled_means,
)
from safevla_bench.statistics.intervals import (
    CONFIDENCE,
    Interval,
    bounded_mean_interval,
    exact_interval,
    newcombe_interval,
    normal_quantile,
    rate_mean_interval,
    tango_interval,
    unit_mean_interval,
    wilson_interval,
)
from safevla_bench.statistics.planning import (
    SequentialPlan,
    half_width,
    least_tasks,
    paired_power,
    paired_sample_size,
    rate_power,
    rate_sample_size,
    sequential_paired_plan,
    sequential_rate_plan,
    task_sample_size,
    unpaired_sample_size,
)
from safevla_bench.statistics.sequential import (
    log_wealth_of_counts,
    sequential_difference,
    sequential_interval,
    sequential_p,
)
from safevla_bench.statistics.tests import (
    CochranQ,
    cochran_q,
    holm_adjust,
    letter_display,
    mcnemar_p,
    permutation_p,
    sign_flip_p,
)
from safevla_bench.statistics.unconditional import barnard_p, boschloo_p

__all__ = [
    "CONFIDENCE",
    "RESAMPLES",
    "CochranQ",
    "Interval",
    "SequentialPlan",
    "barnard_p",
    "bootstrap_means",
    "boschloo_p",
    "bounded_mean_interval",
    "cochran_q",
    "exact_interval",
    "half_width",
    "holm_adjust",
    "least_tasks",
    "letter_display",
    "log_wealth_of_counts",
    "mcnemar_p",
    "newcombe_interval",
    "normal_quantile",
    "paired_power",
    "paired_sample_size",
    "percentile_interval",
    "permutation_p",
    "rate_mean_interval",
    "rate_power",
    "rate_sample_size",
    "resampled_cluster_means",
    "resampled_means",
    "sequential_difference",
    "sequential_interval",
    "sequential_p",
    "sequential_paired_plan",
    "sequential_rate_plan",
    "sign_flip_p",
    "tango_interval",
    "task_sample_size",
    "unit_mean_interval",
    "unpaired_sample_size",
    "wilson_interval",
]
