"""Comparing policies: on the same episodes where they were run so, else as independent samples."""

from __future__ import annotations

from safevla_bench.compare.comparison import Comparison, Metric, Scope, Standing, compare
from safevla_bench.compare.difference import METRICS, Difference, How, Test
from safevla_bench.compare.pairs import Paired, pair
from safevla_bench.compare.policy_results import Entrant, entrants, joined, named_apart

__all__ = [
    "METRICS",
    "Comparison",
    "Difference",
    "Entrant",
    "How",
    "Metric",
    "Paired",
    "Scope",
    "Standing",
    "Test",
    "compare",
    "entrants",
    "joined",
    "named_apart",
    "pair",
]
