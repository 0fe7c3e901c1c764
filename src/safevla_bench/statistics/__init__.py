"""Intervals, tests and sample sizes for proportions and means over episodes, from counts and arrays."""

from __future__ import annotations

from safevla_bench.statistics.bootstrap import (
    RESAMPLES,
    bootstrap_means,
    percentile_interval,
    resampled_means,
)
from safevla_bench.statistics.group_sequential import SequentialLook, sequential_look, sum_limits
from safevla_bench.statistics.intervals import (
    CONFIDENCE,
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
from safevla_bench.statistics.planning import (
    SequentialPlan,
    flip_power,
    least_number,
    paired_power,
    rate_power,
    rate_sample_size,
    sequential_rate_plan,
)
from safevla_bench.statistics.sequential import (
    log_wealth_of_counts,
    sequential_difference,
    sequential_interval,
    sequential_p,
)
from safevla_bench.statistics.strata import (
    MeanTest,
    cmh_mid_p,
    flip_pair_means,
    flip_task_means,
    flip_task_p,
    mcnemar_mid_p,
    mean_rate_difference_interval,
    mean_rate_interval,
    permute_task_means,
    resampled_task_means,
)
from safevla_bench.statistics.tests import (
    barnard_p,
    holm_adjust,
    letter_display,
)

__all__ = [
    "CONFIDENCE",
    "RESAMPLES",
    "Interval",
    "MeanTest",
    "SequentialLook",
    "SequentialPlan",
    "barnard_p",
    "bootstrap_means",
    "bounded_mean_interval",
    "cmh_mid_p",
    "exact_interval",
    "flip_pair_means",
    "flip_power",
    "flip_task_means",
    "flip_task_p",
    "holm_adjust",
    "is_significant",
    "least_number",
    "letter_display",
    "log_wealth_of_counts",
    "mcnemar_mid_p",
    "mean_rate_difference_interval",
    "mean_rate_interval",
    "newcombe_interval",
    "normal_quantile",
    "paired_power",
    "percentile_interval",
    "permute_task_means",
    "rate_mean_interval",
    "rate_power",
    "rate_sample_size",
    "reconcile_interval",
    "resampled_means",
    "resampled_task_means",
    "sequential_difference",
    "sequential_interval",
    "sequential_look",
    "sequential_p",
    "sequential_rate_plan",
    "sum_limits",
    "tango_interval",
    "unit_mean_interval",
    "wilson_interval",
]
