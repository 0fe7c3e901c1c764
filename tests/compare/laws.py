"""Laws of a comparison, which hold for every design; `benchmarks/interval_coverage.py` checks 5,000 designs."""

from __future__ import annotations

import numpy as np
import pytest

from compare.scenes import draw_policy
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.statistics.intervals import is_significant


def check_laws(seed: int, paired: bool, *metrics: str) -> None:
    """Exchanging policies mirrors every number; neither another policy nor the order of episodes changes one.

    The interval has the side of its test, and the verdict that of both. Adjusted p-values are drawn by start.
    """
    options = ComparisonOptions(metrics=metrics)
    rng = np.random.default_rng(seed)
    n, tasks = int(rng.integers(6, 30)), int(rng.integers(1, 9))
    rates = rng.uniform(0.3, 1.0, 3)
    mine, theirs, third = (
        draw_policy(name, seed + k, n, sr=rate, safety=rate, tasks=tasks)
        for k, (name, rate) in enumerate(zip("abc", rates, strict=True))
    )
    order = rng.permutation(n)
    shuffled = [result.select_episodes(order) for result in (mine, theirs)]
    forth, back, more, moved = (
        compare_policies(members, options, paired=paired).scopes[-1].metrics
        for members in ([mine, theirs], [theirs, mine], [third, mine, theirs], shuffled)
    )
    unadjusted = ("difference", "ci", "ci_by_task", "p_value", "p_by_task", "leave_one_out", "pairs", "excludes_zero")
    for one, other, many, again in zip(forth, back, more, moved, strict=True):
        item, turned = one.differences[0], other.differences[0]
        for name in ("p_value", "p_by_task", "p_adjusted", "better", "better_by_task", "depends_on", "excludes_zero"):
            assert getattr(turned, name) == (
                value if not isinstance(value := getattr(item, name), float) else pytest.approx(value, abs=1e-9)
            )
        for name in ("ci", "ci_by_task", "leave_one_out"):
            ends, mirrored = getattr(item, name), getattr(turned, name)
            assert mirrored == (ends and pytest.approx((-ends[1], -ends[0]), abs=2e-5))
        for name in unadjusted:
            value = getattr(item, name)
            expected = value if value is None or isinstance(value, bool) else pytest.approx(value, abs=2e-5)
            assert getattr(many.differences[2], name) == expected
            assert getattr(again.differences[0], name) == expected
        if item.ci and item.difference:
            assert item.excludes_zero == is_significant(item.p_value)
            assert item.excludes_zero or item.ci[0] <= 0 <= item.ci[1]
            assert not item.excludes_zero or item.ci[0] >= 0 or item.ci[1] <= 0
            assert item.better is None or item.excludes_zero
