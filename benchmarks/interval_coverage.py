"""How often the claims that are printed are wrong, what they find, and how often intervals miss, by simulation.

The table stands in docs/evidence/statistics.md:

    python benchmarks/interval_coverage.py --write docs/evidence/statistics.md

Without --write it is printed. With 3,000 runs a row, whose standard error is at most 0.4 points, and the laws of 5,000
random designs it takes about fifteen minutes on one core; --runs takes fewer. The exit code is 1 if a law breaks or a
simulated error is above its statement by more than three standard errors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from page_tables import format_table, print_tables
from scipy.special import expit, logit

from safevla_bench.compare.sample_size import SampleSizeRequest, plan_sample_size
from safevla_bench.explain.agreement import kappa_interval
from safevla_bench.explain.exposure import CENSORED, cumulative_incidence
from safevla_bench.judging.rates import StartMeans
from safevla_bench.sensitivity.calibration import quantile_interval
from safevla_bench.statistics.intervals import (
    Interval,
    bounded_mean_interval,
    combine_intervals,
    exact_interval,
    geometric_interval,
    is_significant,
    mean_p_values,
    mean_rate_interval,
    median_interval,
    sum_limits,
    wilson_interval,
)
from safevla_bench.statistics.significance import (
    MeanTest,
    barnard_p,
    flip_task_means,
    holm_adjust,
    invert_interval,
    max_t_adjust,
    mcnemar_test,
    page_trend,
    paired_mean_test,
    score_difference,
)

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
LEVEL = 0.05
EXACT = lru_cache(maxsize=None)(exact_interval)
WILSON = lru_cache(maxsize=None)(wilson_interval)


@dataclass(frozen=True)
class Claim:
    """A claim under one scenario: the stated error in percent, in which runs it was wrong, and what it finds."""

    name: str
    scenario: str
    stated: float | None
    """None: shown for warning; the claim's assumption does not hold there."""
    wrong: Sequence[bool] | Bools
    power: str = ""

    @property
    def error(self) -> float:
        return 100 * float(np.mean(self.wrong)) if len(self.wrong) else 0.0

    @property
    def deviation(self) -> float:
        """The standard error of the simulated share [%], taken at the stated one where that is greater."""
        share = max(self.error, self.stated or 0.0) / 100
        return 100 * float(np.sqrt(share * (1 - share) / len(self.wrong)))

    @property
    def holds(self) -> bool:
        return self.stated is None or self.error <= self.stated + 3 * self.deviation

    def to_row(self) -> tuple[str, ...]:
        stated = "not stated" if self.stated is None else f"{self.stated:g}"
        if not len(self.wrong):
            return self.name, self.scenario, "", "", self.power
        share = self.error / 100
        error = f"{self.error:.1f} ± {100 * np.sqrt(share * (1 - share) / len(self.wrong)):.1f}"
        return self.name, self.scenario, stated, error if self.holds else f"**{error}**", self.power


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def percent(hits: Sequence[bool] | Bools) -> str:
    return f"{100 * np.mean(hits):.0f} %"


def draw_policies(
    seed: int, shape: tuple[int, int, int, int], shifts: Sequence[float] = (), swing: float = 0.0, base: float = 0.8
) -> Bools:
    """Return who is safe, [policies, runs, tasks, episodes]: Beta task rates and an effect of each initial state.

    `shifts` are the policies' effects on the logit; a random effect of policy and task has the deviation `swing`.
    """
    rng, (policies, runs, tasks, episodes) = generator(seed), shape
    center = logit(np.clip(rng.beta(4 * base, 4 * (1 - base), (runs, tasks)), 0.02, 0.98))[..., None]
    state = rng.normal(0, 1, (runs, tasks, episodes))
    own = np.reshape([*shifts, *[0.0] * (policies - len(shifts))], (-1, 1, 1, 1))
    own = own + rng.normal(0, swing, (policies, runs, tasks, 1)) if swing else own
    return rng.random(shape) < expit(center + state + own)


@cache
def paired(won: int, lost: int, n: int) -> tuple[float, Interval]:
    test = mcnemar_test(won, lost, n)
    assert test.interval is not None
    return test.p_value, test.interval


def compare_pairs(first: Bools, second: Bools) -> list[tuple[float, Interval]]:
    """Return p-value and interval on these tasks of each run, of [runs, ...]."""
    axes = tuple(range(1, first.ndim))
    won, lost = (first & ~second).sum(axis=axes), (second & ~first).sum(axis=axes)
    return [paired(*pair, first[0].size) for pair in zip(won.tolist(), lost.tolist(), strict=True)]


def rejects(tests: Sequence[tuple[float, Interval]]) -> Bools:
    return np.array([is_significant(p) for p, _ in tests])


def misses(intervals: Sequence[Interval | None], truth: float) -> Bools:
    return np.array([one is None or not one.low - 1e-9 <= truth <= one.high + 1e-9 for one in intervals])


def misses_mean(rows: Sequence[Floats] | Floats, truth: float) -> Bools:
    """Return where Gaffke's interval misses: its p-value of the truth, which the laws tie to its ends, is faster."""
    return np.concatenate([is_significant(mean_p_values(row[None], truth)) for row in rows])


# Two policies


def pair_claims(runs: int) -> Iterator[Claim]:
    for tasks, episodes in ((3, 5), (10, 20), (40, 5)):
        equal, (better, worse) = (
            draw_policies(1, (2, runs, tasks, episodes)),
            draw_policies(2, (2, runs, tasks, episodes), (0.9,)),
        )
        yield Claim(
            "A safer than B, these tasks, paired", f"{tasks} x {episodes}, tasks and states differ", 5,
            rejects(compare_pairs(*equal)), f".87 v .77: {percent(rejects(compare_pairs(better, worse)))}",
        )  # fmt: skip
    rng = generator(3)
    gaps = np.array([0.2, 0.2, 0.2, 0.2, 0.2, -0.2, -0.2, -0.2, -0.2, -0.2])[:, None] / 2
    zero_sum = [rng.random((runs, 10, 20)) < 0.75 + sign * gaps for sign in (1, -1)]
    yield Claim("same", "10 x 20, five tasks +20 points, five -20", 5, rejects(compare_pairs(*zero_sum)))
    shifted = [rng.random((runs, 10, 10)) < 0.7 + sign * (gaps / 2 + 0.05) for sign in (1, -1)]
    yield Claim(
        "its interval", "10 x 10, +10 points, tasks differ", 5, misses([i for _, i in compare_pairs(*shifted)], 0.1)
    )


def task_claims(runs: int) -> Iterator[Claim]:
    def judge(safe: Bools) -> tuple[Bools, Bools]:
        """Return who differs by task, and who does on these tasks and by task: the verdict."""
        gaps = safe[0].sum(axis=2) - safe[1].sum(axis=2)
        ones = np.ones(gaps.shape[1])
        alone = np.array([is_significant(flip_task_means(row / safe.shape[3], ones).p_value) for row in gaps])
        return alone, alone & rejects(compare_pairs(*safe))

    for tasks, episodes in ((6, 20), (6, 100), (10, 20), (24, 5)):
        swing = judge(draw_policies(4, (2, runs, tasks, episodes), swing=0.7))
        better = judge(draw_policies(5, (2, runs // 3, tasks, episodes), (0.9,)))
        scenario = f"{tasks} x {episodes}, symmetric differences between tasks"
        yield Claim("A safer than B, tasks like these", scenario, 5, swing[1], f".87 v .77: {percent(better[1])}")
    rng, ones = generator(6), np.ones(10)
    gaps = np.where(rng.random((runs, 10)) < 0.1, 0.45, -0.05)
    counts = [rng.binomial(20, np.clip(0.65 + sign * gaps / 2, 0, 1)) for sign in (1, -1)]
    odd = [is_significant(flip_task_means(row / 20, ones).p_value) for row in counts[0] - counts[1]]
    yield Claim("sign flips of tasks", "10 x 20, mean 0, one odd task in ten", None, odd)
    centered = [flip_task_means(row, ones).interval for row in rng.normal(0.1, 0.1, (runs, 10)).clip(-1, 1)]
    yield Claim("interval by task", "10 tasks, symmetric about 10 points", 5, misses(centered, 0.1))


# Independent episodes


def unpaired_claims(runs: int) -> Iterator[Claim]:
    name, rng = "A safer than B, these tasks, unpaired", generator(7)
    uneven = np.array([100, *[5] * 9])
    odd, mild = np.array([0.15, *[-0.15 / 9] * 9]), np.array([-0.15, *[0.05] * 9])
    spread = np.linspace(0.5, 0.99, 10)

    def judge(
        sizes: NDArray[np.int64], rates: Floats, others: Floats
    ) -> tuple[list[bool], list[MeanTest], list[float]]:
        better, tests, estimates = [], [], []
        for x, y in zip(rng.binomial(sizes, rates, (runs, 10)), rng.binomial(sizes, others, (runs, 10)), strict=True):
            estimate = float((x / sizes - y / sizes).mean())
            test = score_difference(x.astype(float), sizes, y.astype(float), sizes)
            turned = (x.sum() - y.sum()) * estimate < 0
            better.append(is_significant(test.p_value) and not turned)
            tests.append(test)
            estimates.append(estimate)
        return better, tests, estimates

    for scenario, sizes, rates, others in (
        ("10 x 20, tasks differ", np.full(10, 20), spread, spread),
        ("10 x 3, tasks differ", np.full(10, 3), spread, spread),
        ("10 x 1", np.full(10, 1), spread, spread),
        ("100 + 9 x 5, equal", uneven, np.full(10, 0.8), np.full(10, 0.8)),
        ("100 + 9 x 5, +15 points in the large task, mean 0", uneven, 0.7 + odd / 2, 0.7 - odd / 2),
    ):
        better, tests, _ = judge(sizes, rates, others)
        yield Claim(name, scenario, 5, better)
        excluded = [is_significant(test.p_value) for test in tests]  # 0 is in the interval by the laws if not
        yield Claim("its interval", scenario, 5, excluded)
    for n, m, rate in ((3, 50, 0.98), (5, 50, 0.95), (20, 200, 0.99)):
        few, many = np.full(5, n), np.full(5, m)
        counts = zip(rng.binomial(few, rate, (runs, 5)), rng.binomial(many, rate, (runs, 5)), strict=True)
        p_values = [score_difference(x.astype(float), few, y.astype(float), many).p_value for x, y in counts]
        yield Claim(name, f"5 x {n} against 5 x {m}, {100 * rate:.0f} %", 5, [is_significant(p) for p in p_values])
    better, tests, estimates = judge(uneven, 0.75 + mild / 2, 0.75 - mild / 2)
    worse = [is_better and estimate < 0 for is_better, estimate in zip(better, estimates, strict=True)]
    yield Claim(f"{name}: names the worse", "100 + 9 x 5, -15 points in the large task, mean +3", 2.5, worse)
    yield Claim("its interval", "same", 5, misses([test.interval for test in tests], 0.03))
    better, *_ = judge(np.full(10, 20), spread.clip(0, 0.98), (spread - 0.15).clip(0, 1))
    yield Claim(name, "power", None, (), f"15 points, 10 x 20: {percent(better)}")
    easy = np.array([1, 1, 1, 0.95, 0.9, 0.6, 0.5, 0.45, 0.4, 0.4])
    swing = np.array([-0.1] * 5 + [0.1] * 5) / 2
    wrong = []
    for _ in range(runs):
        n, m = rng.binomial(20, easy), rng.binomial(20, easy)
        if min(n.min(), m.min()) >= 3:
            x, y = rng.binomial(n, 0.2 + swing), rng.binomial(m, 0.2 - swing)
            wrong.append(is_significant(score_difference(x.astype(float), n, y.astype(float), m).p_value))
    yield Claim("same, unsafe among successes", "successes per task differ; easy tasks -10, hard +10", 5, wrong)
    barnard = lru_cache(maxsize=None)(barnard_p)
    counts = rng.binomial(20, 0.8, (runs, 2)).tolist()
    yield Claim(
        "same, one task (Barnard)", "20 episodes", 5, [is_significant(barnard(x, 20, y, 20)) for x, y in counts]
    )


# Several policies


def several_claims(runs: int) -> Iterator[Claim]:
    def find(safe: Bools) -> Bools:
        """Return which pairs differ on these tasks, [runs, pairs], of [policies, runs, tasks, episodes]."""
        pairs = list(combinations(range(len(safe)), 2))
        values = safe.astype(float).reshape(*safe.shape[:2], -1)
        plain = np.array([[p for p, _ in compare_pairs(safe[i], safe[j])] for i, j in pairs]).T
        rows = (np.array([values[i, k] - values[j, k] for i, j in pairs]) for k in range(safe.shape[1]))
        adjusted = np.array([max_t_adjust(part) for part in rows])
        return np.maximum(plain, adjusted) <= LEVEL + 1e-12

    for policies, tasks, episodes in ((3, 6, 10), (5, 8, 5), (10, 10, 4)):
        equal = find(draw_policies(11, (policies, runs, tasks, episodes)))
        yield Claim(
            f"any of {policies} policies better, these tasks", f"{tasks} x {episodes}, all equal", 5, equal.any(axis=1)
        )
    mixed = find(draw_policies(12, (4, runs, 5, 20), (2.5, 0.0, 0.0, -3.0)))
    yield Claim(
        "same, of 4", "5 x 20: two equal between a better and a far worse one", 5, mixed[:, 3],
        f"better v middle: {percent(mixed[:, 0])}",
    )  # fmt: skip
    by_task = []
    for safe in np.moveaxis(draw_policies(13, (4, runs, 7, 20), swing=0.7), 1, 0):
        rates = safe.mean(axis=2)
        by_task.append(
            max_t_adjust(np.array([rates[i] - rates[j] for i, j in combinations(range(4), 2)])).min() <= LEVEL
        )
    yield Claim("any of 4 policies better, tasks like these", "7 x 20, symmetric differences", 5, by_task)
    for policies in (2, 10):
        counts = generator(14).binomial(200, 0.9, (runs, policies)).tolist()
        yield Claim(
            "board: any published row better",
            f"{policies} equal, n 200",
            5,
            [bool(rank_rows(row, 200)) for row in counts],
        )


@cache
def rate_p(x: int, y: int, n: int) -> float:
    def measure(level: float) -> Interval:
        sides = [(k / n, mean_rate_interval([k], [n], level)) for k in (x, y)]
        return combine_intervals([(p, one) for p, one in sides if one], (1, -1))

    return invert_interval(measure).p_value


def rank_rows(counts: Sequence[int], n: int) -> list[float]:
    return [p for p in holm_adjust([rate_p(*sorted(pair), n) for pair in combinations(counts, 2)]) if is_significant(p)]


# Severities and other means


def severity_claims(runs: int) -> Iterator[Claim]:
    def draw(rng: np.random.Generator, n: int, odds: float, depth: float) -> Floats:
        return np.where(rng.random((runs, n)) < odds, np.minimum(rng.uniform(0.5, 1.5, (runs, n)) * depth, 1), 0)

    laws = {"equal": ((0.3, 0.5), (0.3, 0.5)), "rare deep v frequent shallow": ((0.15, 0.6), (0.9, 0.1))}
    few = max(1, runs // 10)
    for n in (20, 50, 200):
        rng = generator(20 + n)
        for scenario, (mine, theirs) in laws.items():
            gaps = draw(rng, n, *mine) - draw(rng, n, *theirs)
            better = draw(rng, n, 0.15, 0.5)[:few] - draw(rng, n, 0.5, 0.5)[:few]
            power, flips = (
                [is_significant(test(row).p_value) for row in better]
                for test in (paired_mean_test, lambda row: flip_task_means(row, np.ones(len(row))))
            )
            wrong = [is_significant(paired_mean_test(row).p_value) for row in gaps]
            yield Claim(
                "lower VSI, paired", f"n {n}, {scenario}", 5, wrong,
                f".08 v .25: {percent(power)}, by sign flips {percent(flips)}" if scenario == "equal" else "",
            )  # fmt: skip
    rng = generator(29)
    wrong = []
    for mine, theirs in zip(draw(rng, 50, 0.15, 0.6), draw(rng, 50, 0.9, 0.1), strict=True):
        ends = [(float(side.mean()), bounded_mean_interval(side)) for side in (mine, theirs)]
        interval = combine_intervals([(mean, one) for mean, one in ends if one], (1, -1))
        wrong.append(interval.low > 0 or interval.high < 0)
    yield Claim("lower VSI, unpaired (MOVER)", "n 50, rare deep v frequent shallow", 5, wrong)
    for n in (20, 50, 200):
        for rate in (0.03, 0.3):
            values = np.where(rng.random((runs, n)) < rate, np.minimum(rng.exponential(2.0, (runs, n)), 15.0), 0)
            truth = rate * 2.0 * (1 - np.exp(-7.5))
            missed = misses_mean(values / 15.0, truth / 15.0)
            yield Claim("mean time in violation", f"n {n}, {100 * rate:.0f} % violate", 5, missed)
    for n in (20, 200):
        force = rng.lognormal(4, 1, (runs, n))
        yield Claim(
            "median of peak force", f"n {n}, lognormal", 5, misses([median_interval(row) for row in force], np.exp(4))
        )


def rate_claims(runs: int) -> Iterator[Claim]:
    rng = generator(31)
    for n, rate in ((20, 0.9), (50, 0.95), (200, 0.99)):
        counts = rng.binomial(n, rate, runs).tolist()
        yield Claim(
            "rate in a gate (exact)", f"n {n}, {100 * rate:.0f} %", 5, misses([EXACT(k, n) for k in counts], rate)
        )
    wilson = [
        misses([WILSON(k, 50) for k in rng.binomial(50, rate, runs // 10).tolist()], rate)
        for rate in np.linspace(0.05, 0.95, 10)
    ]
    yield Claim("rate in a report (Wilson), average", "n 50, 5 to 95 %", 5, np.concatenate(wilson))
    for seeds, starts, concentration in ((2, 50, 0.43), (5, 40, 1.0), (10, 20, 1.0), (10, 20, 0.0)):
        share = (
            rng.random((runs, starts)) < 0.8
            if not concentration
            else rng.beta(concentration * 0.8, concentration * 0.2, (runs, starts))
        )
        missed = misses_mean(rng.binomial(seeds, share, (runs, starts)) / seeds, 0.8)
        kind = "deterministic" if not concentration else f"correlation {1 / (1 + concentration):.1f}"
        yield Claim("rate over starts", f"{seeds} seeds x {starts} starts, {kind}", 5, missed)
    sizes = np.tile([1, 2, 3, 8], 10)
    found = []
    for share in rng.beta(0.8, 0.2, (runs, 40)):
        values = np.concatenate([np.arange(n) < k for k, n in zip(rng.binomial(sizes, share), sizes, strict=True)])
        by_start = StartMeans.of(values.astype(float), np.repeat(np.arange(40), sizes))
        found.append(bounded_mean_interval(by_start.means, weights=by_start.shares))
    yield Claim("same", "1 to 8 seeds x 40 starts, correlation 0.5", 5, misses(found, 0.8))
    for sizes, scenario in (((20,) * 4, "4 x 20"), ((50,) * 4, "4 x 50"), ((20, 50, 50, 200), "20, 50, 50, 200")):
        rates = (0.98, 1.0, 0.98, 1.0)
        cached = lru_cache(maxsize=None)(lambda counts, sizes=sizes: mean_rate_interval(counts, sizes))
        rows = rng.binomial(sizes, rates, (runs, 4)).tolist()
        yield Claim(
            "mean of four suites", f"{scenario}, near 99 %", 5, misses([cached(tuple(row)) for row in rows], 0.99)
        )
    for n, rate, stated in ((10, 0.3, 10.5), (50, 0.3, 7), (100, 0.02, 19.5)):
        table = np.array([[(1 - rate) * 0.95, (1 - rate) * 0.05], [rate * 0.2, rate * 0.8]])
        truth = (np.trace(table) - (by := float(table.sum(0) @ table.sum(1)))) / (1 - by)
        found = [kappa_interval(rng.multinomial(n, table.ravel()).reshape(2, 2)) for _ in range(max(1, runs // 3))]
        known = [one for one in found if one is not None]
        yield Claim("kappa", f"n {n}, {100 * rate:.0f} % unsafe", stated, misses(known, truth))


# Gates, crashes, stopping, choices


def gate_claims(runs: int) -> Iterator[Claim]:
    rng = generator(41)
    for limit, n in ((0.9, 50), (0.95, 200)):
        counts = rng.binomial(n, limit, runs).tolist()
        yield Claim("gate passes", f"true value at {limit:g}, n {n}", 2.5, [EXACT(k, n).low > limit for k in counts])
        yield Claim("gate fails", "same", 2.5, [EXACT(k, n).high < limit for k in counts])
    for seeds in (2, 5):
        means = rng.binomial(seeds, rng.beta(0.43 * 0.9, 0.43 * 0.1, (runs, 100))) / seeds
        passed = misses_mean(means, 0.9) & (means.mean(axis=1) > 0.9)
        yield Claim("gate passes", f"{seeds} seeds of 100 states", 2.5, passed)
    unsafe = rng.binomial(500, 0.13, runs)
    crashed = rng.binomial(unsafe, 0.6)
    yield Claim(
        "gate at .9 passes",
        "true .87, 60 % of unsafe crash",
        2.5,
        [EXACT(500 - int(k), 500).low >= 0.9 for k in unsafe],
    )
    left = [EXACT(500 - int(u), 500 - int(c)).low >= 0.9 for u, c in zip(unsafe, crashed, strict=True)]
    yield Claim("same, --allow-crashed", "same", None, left)
    safe = draw_policies(42, (2, runs, 10, 50))
    lost = ~safe[0] & (rng.random(safe[0].shape) < 0.3)
    sides = [compare_pairs(first, safe[1]) for first in (safe[0], safe[0] | lost)]
    agree = np.sign([(first.sum(axis=(1, 2)) - safe[1].sum(axis=(1, 2))) for first in (safe[0], safe[0] | lost)])
    yield Claim(
        "A safer than B, paired",
        "equal; A crashes in 30 % of unsafe",
        5,
        rejects(sides[0]) & rejects(sides[1]) & (agree[0] == agree[1]),
    )
    yield from until_claims(runs)
    yield from select_claims(runs)


def until_claims(runs: int) -> Iterator[Claim]:
    rng, rounds = generator(43), 25
    low, high = np.array(list(sum_limits([[1] * 10] * rounds, 0.9, [(k + 1) / rounds for k in range(rounds)]))).T
    sums = {rate: (rng.random((runs, rounds, 10)) < rate).sum(axis=2).cumsum(axis=1) for rate in (0.9, 0.95)}
    ended = {rate: ((row <= low) | (row >= high)).any(axis=1) for rate, row in sums.items()}
    yield Claim(
        '`--until "safety >= .9"` decides',
        "true .9, a look every 10 of 250",
        5,
        ended[0.9],
        f"true .95: {percent(ended[0.95])}",
    )
    few = max(1, runs // 3)
    safe = draw_policies(44, (2, few, 10, 20))
    won, lost = ((safe[k] & ~safe[1 - k]).sum(axis=1) for k in (0, 1))
    shares = [(k + 1) / 20 for k in range(20)]
    wrong = []
    for row, total in zip(won.cumsum(axis=1), won + lost, strict=True):
        ends = np.array(list(sum_limits([[1] * int(k) for k in total], 0.5, shares)))
        wrong.append(bool(((row <= ends[:, 0]) | (row >= ends[:, 1])).any()))
    yield Claim('`--until "A safer than B"` decides', "equal, 10 x 20, a look a round", 5, wrong)


def select_claims(runs: int) -> Iterator[Claim]:
    rng, n, at = generator(45), 200, np.arange(runs)
    success, safe = rng.random((5, runs, n)) < 0.8, rng.binomial(n, 0.9, (5, runs))
    counts = success.sum(axis=2)
    order = np.argsort(-counts - 1000 * (safe >= 0.9 * n), axis=0, kind="stable")
    ends = [exact_interval(k, n, 0.995) for k in range(n + 1)]
    chosen, of_chosen = counts[order[0], at], safe[order[0], at]
    yield Claim("`select`: interval of the choice", "five equal, n 200", 5, misses([ends[k] for k in chosen], 0.8))
    yield Claim("same: its Safety of .9 established", "true .9", 2.5, [ends[k].low >= 0.9 for k in of_chosen])
    found = rejects(compare_pairs(success[order[0], at], success[order[1], at]))
    yield Claim("same: better than the runner-up", "five equal", 5, found)


# Trends, searches, calibration, onset, plans


def other_claims(runs: int) -> Iterator[Claim]:
    rng = generator(51)
    few = max(1, runs // 3)
    trends = []
    for safe in np.moveaxis(draw_policies(52, (5, few, 10, 5)).reshape(5, few, -1), 1, 0):
        trends.append(is_significant(page_trend(safe.T.astype(float), 999)[1]))
    rising = draw_policies(53, (5, max(1, runs // 10), 10, 5), (-0.6, -0.3, 0.0, 0.3, 0.6)).reshape(
        5, max(1, runs // 10), -1
    )
    power = [is_significant(page_trend(safe.T.astype(float), 999)[1]) for safe in np.moveaxis(rising, 1, 0)]
    yield Claim("trend over 5 checkpoints (Page)", "equal, 10 x 5", 5, trends, f"from .70 to .86: {percent(power)}")
    firsts = rng.geometric(0.02, runs).tolist()
    yield Claim("search `--until found`: rate", "2 %", 5, misses([geometric_interval(k) for k in firsts], 0.02))
    hits = rng.binomial(200, 0.02, runs).tolist()
    yield Claim("search `--until budget`: rate", "2 %, 200 trials", 5, misses([EXACT(k, 200) for k in hits], 0.02))
    truth = float(np.exp(1.6449 * 0.3))
    found = [quantile_interval(np.sort(np.exp(rng.normal(0, 0.3, 500))), 0.95) for _ in range(max(1, runs // 3))]
    yield Claim(
        "calibration: interval of the limit", "500 records", 5, [not low <= truth <= high for low, high in found]
    )
    yield from incidence_claims(max(1, runs // 3))
    for tasks in (6, 10, 40):
        plan = plan_sample_size(SampleSizeRequest(baseline=0.9, difference=0.1, tasks=tasks))
        assert plan.episodes
        counts = rng.binomial(plan.episodes, np.reshape(plan.rates, (2, 1, 1)), (2, max(1, runs // 10), tasks))
        gaps = (counts[0] - counts[1]) / plan.episodes
        found = [is_significant(flip_task_means(row, np.ones(tasks)).p_value) for row in gaps]
        yield Claim("`--plan` at 80 %", f".9 v .8, {tasks} x {plan.episodes}", None, (), percent(found))


def incidence_claims(runs: int) -> Iterator[Claim]:
    """Violations at a rate of .02 a second among other ends at .05; a share is cut short before."""
    for cut in (0.0, 0.3):
        rng, hazard, found = generator(54), 0.07, []
        truth = 0.02 / hazard * (1 - np.exp(-hazard * 20.0))
        for _ in range(runs):
            ends, causes = rng.exponential(1 / hazard, 50), np.where(rng.random(50) < 0.02 / hazard, 0, 1)
            stops = np.where(rng.random(50) < cut, rng.exponential(15.0, 50), np.inf)
            curve = cumulative_incidence(np.minimum(ends, stops), np.where(stops < ends, CENSORED, causes), 2)
            found.append(Interval(float(curve.low[curve.at(20.0)]), float(curve.high[curve.at(20.0)])))
        yield Claim("violated by a time", f"n 50, {100 * cut:.0f} % cut short", 5, misses(found, truth))


# Laws


def count_broken_laws(designs: int) -> int:
    """Return how many random designs, half of them paired, break a law of `tests/compare/laws.py`."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from compare.laws import check_laws

    broken, rng = 0, generator(61)
    for seed in range(designs):
        values = (1 + np.clip(rng.normal(rng.normal(0, 0.2), 0.3, rng.integers(1, 14)), -1, 1)) / 2
        interval, p_value = bounded_mean_interval(values), mean_p_values(values[None], 0.4)[0]
        try:
            assert bool(interval and not interval.low <= 0.4 <= interval.high) == is_significant(p_value)
            check_laws(seed, bool(seed % 2), "safety")
        except AssertionError as problem:
            broken += 1
            print(f"design {seed}: {problem}", file=sys.stderr)
    return broken


PARTS: tuple[Callable[[int], Iterator[Claim]], ...] = (
    pair_claims, task_claims, unpaired_claims, several_claims, severity_claims, rate_claims, gate_claims, other_claims
)  # fmt: skip
HEADS = ("claim", "scenario (tasks x episodes)", "stated error %", "simulated %", "power")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3000, help="simulated runs of each row")
    parser.add_argument("--designs", type=int, default=5000, help="random designs that check the laws")
    parser.add_argument("--only", default="", help="parts whose name holds this")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table of this page")
    args = parser.parse_args()
    claims = [claim for part in PARTS if args.only in part.__name__ for claim in part(args.runs)]
    broken = count_broken_laws(args.designs)
    lines = [*format_table(HEADS, [claim.to_row() for claim in claims])]
    lines += [
        "",
        f"{args.runs} runs a row (some a third or a tenth); laws broken in {broken} of {args.designs} random designs.",
    ]
    print_tables(lines, args.write, "coverage")
    failing = [claim for claim in claims if not claim.holds]
    for claim in failing:
        print(f"{claim.name}, {claim.scenario}: {claim.error:.1f} % instead of {claim.stated}", file=sys.stderr)
    return 1 if failing or broken else 0


if __name__ == "__main__":
    sys.exit(main())
