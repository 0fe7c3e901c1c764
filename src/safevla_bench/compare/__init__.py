"""Comparison of policies: on paired episodes where both ran the same ones, else on the tasks that both ran."""

from __future__ import annotations

from safevla_bench.compare.comparison import (
    Comparison,
    MetricComparison,
    PolicyStanding,
    SuiteComparison,
    compare_policies,
)
from safevla_bench.compare.difference import (
    HIGHER_IS_BETTER,
    ComparisonOptions,
    Difference,
    MarginVerdict,
    least_tasks,
)
from safevla_bench.compare.pairs import PairedResults, pair_episodes
from safevla_bench.compare.policy_results import (
    METRICS,
    PolicyResults,
    join_sources,
    make_names_unique,
    split_by_policy,
)
from safevla_bench.compare.ranking import (
    RankingSensitivity,
    VariantRanking,
    compare_where_possible,
    rank_under_variants,
)
from safevla_bench.compare.series import (
    SeriesComparison,
    SeriesCurve,
    SeriesPoint,
    compare_series,
    find_series,
    read_label,
)

__all__ = [
    "HIGHER_IS_BETTER",
    "METRICS",
    "Comparison",
    "ComparisonOptions",
    "Difference",
    "MarginVerdict",
    "MetricComparison",
    "PairedResults",
    "PolicyResults",
    "PolicyStanding",
    "RankingSensitivity",
    "SeriesComparison",
    "SeriesCurve",
    "SeriesPoint",
    "SuiteComparison",
    "VariantRanking",
    "compare_policies",
    "compare_series",
    "compare_where_possible",
    "find_series",
    "join_sources",
    "least_tasks",
    "make_names_unique",
    "pair_episodes",
    "rank_under_variants",
    "read_label",
    "split_by_policy",
]
