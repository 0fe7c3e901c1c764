"""Comparison of policies: on paired episodes where both ran the same ones, else as independent samples."""

from __future__ import annotations

from safevla_bench.compare.comparison import (
    Comparison,
    MetricComparison,
    PolicyStanding,
    SuiteComparison,
    compare_policies,
)
from safevla_bench.compare.difference import METRICS, ComparisonOptions, Difference, ProportionTest
from safevla_bench.compare.pairs import PairedResults, pair_episodes
from safevla_bench.compare.policy_results import PolicyResults, join_sources, make_names_unique, split_by_policy

__all__ = [
    "METRICS",
    "Comparison",
    "ComparisonOptions",
    "Difference",
    "MetricComparison",
    "PairedResults",
    "PolicyResults",
    "PolicyStanding",
    "ProportionTest",
    "SuiteComparison",
    "compare_policies",
    "join_sources",
    "make_names_unique",
    "pair_episodes",
    "split_by_policy",
]
