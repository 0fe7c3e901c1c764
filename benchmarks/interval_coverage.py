"""How often the verdicts that are printed are wrong, what they find and at which price, and how often intervals cover.

By simulation and by exact sums. The two tables stand in docs/statistics.md:

    python benchmarks/interval_coverage.py --write docs/statistics.md

Without --write they are printed. It takes about two minutes of CPU time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from page_tables import format_table, print_tables
from scipy import stats
from scipy.special import betaln

from safevla_bench.compare.sample_size import SampleSizeRequest, plan_sample_size
from safevla_bench.explain.exposure import CENSORED, cumulative_incidence
from safevla_bench.sensitivity.calibration import quantile_interval
from safevla_bench.statistics.intervals import (
    Interval,
    bounded_mean_interval,
    exact_interval,
    rate_mean_interval,
    rate_power,
    rate_sample_size,
    sum_limits,
    wilson_interval,
)
from safevla_bench.statistics.tests import cmh_mid_p, flip_task_means, holm_adjust, mcnemar_mid_p, permute_task_means

Row = tuple[str, ...]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEVEL = 0.05
CASES = ((0.9, 0.9), 0.0), ((0.9, 0.8), 0.0), ((0.7, 0.7), 0.2)
"""Rates of two policies, and how much their difference varies between tasks: equal, different, interacting."""


def log_wealth_of_counts(hits: Ints, n: Ints, supposed: float) -> Floats:
    """Return log W_n of `sequential_interval` at a supposed rate for counts of hits among n, in closed form."""
    prior = betaln(hits + 0.5, n - hits + 0.5) - betaln(0.5, 0.5)
    wealth: Floats = prior - hits * np.log(supposed) - (n - hits) * np.log1p(-supposed)
    return wealth


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def share(hits: Sequence[bool] | NDArray[np.bool_]) -> str:
    """Format the share of simulated runs with its standard error [%]."""
    count, of = int(np.sum(hits)), len(hits)
    rate = count / of
    return f"{100 * rate:.1f}±{100 * (rate * (1 - rate) / of) ** 0.5:.1f}" if count else f"0 of {of}"


def percent(hits: Sequence[bool] | NDArray[np.bool_]) -> str:
    return f"{100 * np.mean(hits):.0f} %"


def draw_safety(
    seed: int, shape: tuple[int, int, int], rates: tuple[float, float], swing: float = 0.0
) -> NDArray[np.bool_]:
    """Return who is safe, [2, runs, tasks, episodes]; the difference varies between tasks by `swing` (deviation).

    Policies of equal rates are equal over tasks like these, whatever the swing.
    """
    rng, (runs, tasks, episodes) = generator(seed), shape
    shift = rng.normal(0, swing / 2, (runs, tasks))
    chances = np.clip([rates[0] + shift, rates[1] - shift], 0.01, 0.99)
    return rng.random((2, runs, tasks, episodes)) < chances[..., None]


def flip_p(sums: Ints | Floats, sizes: Ints | None = None) -> Floats:
    """Return the p-value by task of each run, given sums of differences and numbers of pairs, [runs, tasks]."""
    sizes = np.ones_like(sums, dtype=np.int64) if sizes is None else sizes
    return np.array([
        flip_task_means(row[n > 0] / n[n > 0], n[n > 0].astype(float)).p_value
        for row, n in zip(sums, sizes, strict=True)
    ])  # fmt: skip


def differ_by_task(safe: Bools) -> Bools:
    """Return which runs tell the two policies apart by task, given who is safe [2, runs, tasks, episodes]."""
    return flip_p(safe[0].sum(axis=2) - safe[1].sum(axis=2)) <= LEVEL


mcnemar = lru_cache(maxsize=None)(mcnemar_mid_p)
exact = lru_cache(maxsize=None)(exact_interval)


def mcnemar_p(safe: Bools) -> Floats:
    """Return the p-value on these tasks, over the last two axes of [2, runs, tasks, episodes]."""
    won, lost = ((safe[k] & ~safe[1 - k]).sum(axis=(-2, -1)) for k in (0, 1))
    return np.array([mcnemar(*pair) for pair in zip(won.tolist(), lost.tolist(), strict=True)])


def list_ends(interval: Callable[[int, int], Interval | None], n: int) -> Floats:
    """Return the ends of the interval of each count, [n + 1, 2]."""
    return np.array([[one.low, one.high] for one in (interval(k, n) for k in range(n + 1)) if one])


# Gates


def gate_rows(runs: int) -> Iterator[Row]:
    errors = []
    for limit, n in ((0.9, 20), (0.9, 200), (0.95, 50), (0.99, 17)):
        chances, ends = stats.binom.pmf(np.arange(n + 1), n, limit), list_ends(exact, n)
        errors += [chances[ends[:, 0] > limit].sum(), chances[ends[:, 1] < limit].sum()]
    needed = rate_sample_size(0.95, 0.9) or 0
    yield (
        "gate", "2.5 a side", f"≤ {100 * max(errors):.1f} (exact; limits .9 to .99, n 17 to 200)",
        f".95 v .9: {100 * rate_power(needed, 0.95, 0.9):.0f} %, {needed}",
    )  # fmt: skip
    for seeds in (2, 5):
        found = []
        for rate in (0.9, 0.95):  # seeds of a state correlate by 0.7
            means = generator(5).binomial(seeds, generator(4).beta(0.43 * rate, 0.43 * (1 - rate), (runs, 100))) / seeds
            ends = [bounded_mean_interval(row) for row in means]
            found += [[one.low > 0.9 for one in ends if one], [one.high < 0.9 for one in ends if one]]
        yield (
            f"gate, {seeds} seeds a state", "2.5 a side", share(max(found[:2], key=sum)),
            f".95 v .9: {percent(found[2])}, 100 states",
        )  # fmt: skip
    passes = []
    for rate in (0.87, 0.95):
        unsafe = generator(6).binomial(500, 1 - rate, runs)
        crashed = generator(7).binomial(unsafe, 0.6)
        for of in (np.full(runs, 500), 500 - crashed):  # at the worst, and with crashes left out
            ends = (exact(500 - u, n) for u, n in zip(unsafe.tolist(), of.tolist(), strict=True))
            passes.append([one.low >= 0.9 for one in ends if one])
    yield (
        "gate, 60 % of unsafe crash", "2.5", f"{share(passes[0])}; allowed {share(passes[1])} (.87 passes .9)",
        f".95 v .9: {percent(passes[2])}, 500",
    )  # fmt: skip
    yield from recheck_rows(runs)
    yield from suggestion_rows()


def recheck_rows(runs: int) -> Iterator[Row]:
    looks = np.arange(10, 501, 10)
    hits = {rate: (generator(3).random((runs, 500)) < rate).cumsum(axis=1)[:, looks - 1] for rate in (0.9, 0.95)}
    ends = [list_ends(exact, n) for n in looks.tolist()]

    def fixed(counts: Ints) -> Bools:
        inside = [(ends[k][counts[:, k], 0] <= 0.9) & (ends[k][counts[:, k], 1] >= 0.9) for k in range(len(looks))]
        return ~np.array(inside).T

    def sequence(counts: Ints) -> Bools:
        numbers = np.broadcast_to(looks, counts.shape)
        return log_wealth_of_counts(counts, numbers, 0.9) >= -np.log(LEVEL)

    for name, decide in (("gate, looks every 10 to 500", fixed), ("confidence sequence, same", sequence)):
        yield name, "5", share(decide(hits[0.9]).any(axis=1)), f".95 v .9: {price(decide(hits[0.95]), 500)}"


def suggestion_rows() -> Iterator[Row]:
    """How often the number that an undecided pilot suggests decides, over four rates and limits, summed exactly."""

    def decides(pilot: int, rate: float, limit: float) -> float:
        chances = stats.binom.pmf(np.arange(pilot + 1), pilot, rate)
        ends = list_ends(exact, pilot)
        undecided = np.flatnonzero((ends[:, 0] < limit) & (limit <= ends[:, 1]))
        needed = [rate_sample_size(k / pilot, limit) for k in undecided.tolist()]
        power = [rate_power(n, rate, limit) if n else 0.0 for n in needed]
        return 100 * float(np.dot(chances[undecided], power)) / chances[undecided].sum()

    settings = (0.95, 0.9), (0.8, 0.9), (0.98, 0.95), (0.6, 0.5)
    found = [[decides(pilot, *setting) for setting in settings] for pilot in (20, 50)]
    spans = (f"{min(shares):.0f} to {max(shares):.0f} % after a pilot of" for shares in found)
    yield "gate, suggested number", "", "", f"{next(spans)} 20, {next(spans)} 50 (exact)"


# --until


def price(decided: Bools, most: int) -> str:
    """Format how many runs end and the mean number of episodes, given which looks, after each ten, decide."""
    rounds = np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, decided.shape[1])
    return f"{percent(decided.any(axis=1))}, {10 * rounds.mean():.0f} of {most}"


def until_rows(runs: int) -> Iterator[Row]:
    def race(rate: float, rounds: int, crash: float = 0.0) -> tuple[Bools, Bools]:
        """Return by look of ten episodes which runs are passed at .9, and which failed, [runs, rounds]."""
        rng = generator(17)
        safe = rng.random((runs, rounds, 10)) < rate
        lost = ~safe & (rng.random(safe.shape) < crash)
        shares = [(k + 1) / rounds for k in range(rounds)]
        low, high = np.array(list(sum_limits([[1] * 10] * rounds, 0.9, shares))).T
        worst, best = (counted.sum(axis=2).cumsum(axis=1) for counted in (safe, safe | lost))
        return worst >= high, best <= low

    at_limit = share(np.logical_or(*race(0.9, 50)).any(axis=1))
    yield '`--until "safety >= .9"`', "5", at_limit, f".95 v .9: {price(race(0.95, 25)[0], 250)}"
    flattered = share(race(0.87, 50, 0.6)[0].any(axis=1))
    yield (
        "same, 60 % of unsafe crash", "2.5", f"{flattered} (.87 passes .9)",
        f".95 v .9: {price(race(0.95, 50, 0.6)[0], 500)}",
    )  # fmt: skip
    yield from rival_rows(runs)


def rival_rows(runs: int) -> Iterator[Row]:
    looks = [look_each_round(draw_safety(13, (runs, 10, 20), *case)) for case in CASES]
    names = '`--until "A safer than B"`', "compare, a look a round"
    for k, name in enumerate(names):
        equal, better, interacting = (look[k] for look in looks)
        yield (
            name, "5", f"{share(equal.any(axis=1))}; interacting {share(interacting.any(axis=1))}",
            f".9 v .8: {price(better, 200)} pairs",
        )  # fmt: skip


def look_each_round(safe: Bools) -> tuple[Bools, Bools]:
    """Return [runs, rounds] by --until and McNemar's test, of [2, runs, tasks, rounds]: who differs."""
    won, lost = ((safe[k] & ~safe[1 - k]).sum(axis=1) for k in (0, 1))
    rounds = won.shape[1]
    shares = [(k + 1) / rounds for k in range(rounds)]
    ends = np.array([list(sum_limits([[1] * int(k) for k in row], 0.5, shares)) for row in (won + lost)])
    sums, totals = won.cumsum(axis=1), (won + lost).cumsum(axis=1)
    fixed = [[mcnemar(a, n - a) <= LEVEL for a, n in zip(*row, strict=True)]
             for row in zip(sums.tolist(), totals.tolist(), strict=True)]  # fmt: skip
    return (sums <= ends[..., 0]) | (sums >= ends[..., 1]), np.array(fixed)


# Comparisons


def these_rows(runs: int) -> Iterator[Row]:
    def cmh_p(safe: Bools) -> Floats:
        sizes = np.full(safe.shape[2], safe.shape[3])
        counts = safe.sum(axis=3)
        return np.array([cmh_mid_p(a, sizes, b, sizes) for a, b in zip(*counts, strict=True)])

    for name, p_of in (("pairs (McNemar)", mcnemar_p), ("unpaired (CMH)", cmh_p)):
        equal, better, swing = (p_of(draw_safety(20, (runs, 10, 20), *case)) <= LEVEL for case in CASES)
        yield (
            f"these tasks, {name}", "5", f"{share(equal)}; interacting {share(swing)}",
            f".9 v .8: {percent(better)}, 200",
        )  # fmt: skip


def task_rows(runs: int) -> Iterator[Row]:
    for tasks, episodes in ((6, 20), (10, 20), (10, 50), (40, 20)):
        equal, better, swing = (differ_by_task(draw_safety(21, (runs, tasks, episodes), *case)) for case in CASES)
        yield (
            f"by task (flips), {tasks} x {episodes}", "5", f"{share(equal)}; interacting {share(swing)}",
            f".9 v .8: {percent(better)}, {tasks * episodes}",
        )  # fmt: skip


def exploratory_rows(runs: int) -> Iterator[Row]:
    """Two equal policies on four suites of ten tasks x 5 and their pool, six metrics: all verdicts but the primary."""
    rng, found, better = generator(9), [], []
    for odds, hits in ((0.3, found), (0.15, better)):
        for _ in range(runs // 2):
            success = rng.random((2, 40, 5)) < 0.7
            unsafe = rng.random((2, 40, 5)) < np.reshape([odds, 0.3], (2, 1, 1))
            depth = np.where(unsafe, rng.uniform(0, 1, unsafe.shape), 0.0)
            both = success.all(axis=0)
            values = success, ~unsafe, success & unsafe, depth, success & ~unsafe, unsafe * both
            p_values = [
                flip_p((value[0].astype(float) - value[1]).sum(axis=1)[None, scope], size[None, scope])[0]
                for scope in (*(slice(10 * k, 10 * k + 10) for k in range(4)), slice(0, 40))
                for value, size in zip(values, [*[np.full(40, 5)] * 5, both.sum(axis=1)], strict=True)
            ]
            hits.append(min(p_values[:-5] + p_values[-4:]) <= LEVEL if hits is found else p_values[1] <= LEVEL)
    yield (
        "exploratory, any of 29", "5 each", f"{share(found)} (4 suites of 10 x 5)",
        f"one suite, .85 v .7: {percent(better)}, 50",
    )  # fmt: skip


def letter_rows(runs: int) -> Iterator[Row]:
    def p_values(rates: Sequence[float]) -> Floats:
        """Return the p-values of each pair of five policies on 10 x 20, and those adjusted (Holm), [2, runs, 10]."""
        counts = generator(24).binomial(20, np.reshape(rates, (5, 1, 1)), (5, runs, 10))
        plain = np.array([flip_p(counts[i] - counts[j]) for i, j in PAIRS]).T
        return np.array([plain, [holm_adjust(row.tolist()) for row in plain]])

    plain, adjusted = p_values([0.8] * 5)
    other = p_values([0.8] * 4 + [0.5])[1][:, [k for k, pair in enumerate(PAIRS) if 4 in pair]]
    yield (
        "letters of 5 policies", "5",
        f"{share((adjusted <= LEVEL).any(axis=1))}; best pair, not adjusted {share(plain.min(axis=1) <= LEVEL)}",
        f"one at .5, four at .8: {percent((other <= LEVEL).all(axis=1))}, 200",
    )  # fmt: skip


PAIRS = [(i, j) for i in range(5) for j in range(i + 1, 5)]


def crash_rows(runs: int) -> Iterator[Row]:
    """A crashes in 30 % of its unsafe episodes; its sums with crashes left out, taken as unsafe, and as safe."""

    def judge(rates: tuple[float, float], *, paired: bool) -> tuple[Bools, Bools]:
        """Return which runs of 10 x 50 tell the policies apart at both extremes, and with crashes left out."""
        safe = draw_safety(22, (runs, 10, 50), rates)
        crashed = ~safe[0] & (generator(23).random(safe[0].shape) < 0.3)
        sizes, others = 50 - crashed.sum(axis=2), safe[1].sum(axis=2)
        if paired:
            sums, sizes = safe[0].sum(axis=2) - (safe[1] & ~crashed).sum(axis=2), sizes
        else:  # a difference of means for each task, all tasks of equal weight
            sums, sizes = safe[0].sum(axis=2) / sizes - others / 50, np.ones_like(sizes)
        ends = [safe[0].sum(axis=2) - others, (safe[0] | crashed).sum(axis=2) - others]
        left_out = flip_p(sums, sizes) <= LEVEL
        agree = np.prod([np.sign(one.sum(axis=1)) == np.sign(sums.sum(axis=1)) for one in ends], axis=0) > 0
        return left_out & agree & (flip_p(ends[0]) <= LEVEL) & (flip_p(ends[1]) <= LEVEL), left_out

    for name, paired in (("paired", True), ("unpaired", False)):
        equal, allowed = judge((0.6, 0.6), paired=paired)
        yield (
            f"by task, A crashes, {name}", "5", f"{share(equal)}; allowed {share(allowed)} (10 x 50)",
            f".9 v .8: {percent(judge((0.9, 0.8), paired=paired)[0])}, 500",
        )  # fmt: skip


def series_rows(runs: int) -> Iterator[Row]:
    """Five runs, SR and Safety, each of the last four against the first: eight verdicts on these tasks together."""

    def rise(rate: float, swing: float) -> Bools:
        rng = generator(27)
        chances = np.clip(0.7 + rng.normal(0, swing / 2**0.5, (2, 5, runs, 10, 1)), 0.01, 0.99)
        chances[1, 4] += rate - 0.7
        values = rng.random((2, 5, runs, 10, 20)) < chances
        return np.array([[mcnemar_p(np.stack([metric[k], metric[0]])) <= LEVEL / 8 for k in range(1, 5)]
                         for metric in values])  # fmt: skip

    yield (
        "series of 5, above or below the first", "5",
        f"{share(rise(0.7, 0).any(axis=(0, 1)))}; interacting {share(rise(0.7, 0.2).any(axis=(0, 1)))}",
        f".85 v .7: {percent(rise(0.85, 0)[1, 3])}, 200",
    )  # fmt: skip


def ranking_rows(runs: int) -> Iterator[Row]:
    """Nine thresholds from a half to twice; how much an episode exceeds is drawn once and judged by each."""

    def judge(ratio: float) -> Floats:
        extremes = generator(28).lognormal(np.reshape([0, -np.log(ratio)], (2, 1, 1, 1)), 1, (2, runs, 10, 20))
        sums = [(extremes <= 1.7 * factor).sum(axis=3) for factor in np.geomspace(0.5, 2, 9)]
        return np.array([np.where(flip_p(a - b) <= LEVEL, np.sign((a - b).sum(axis=1)), 0) for a, b in sums])

    found = judge(1.0)
    both = (found > 0).any(axis=0) & (found < 0).any(axis=0)
    yield (
        "ranking under 9 thresholds: order changes", "5",
        f"{share(both)}; at a picked threshold {share((found != 0).any(axis=0))}",
        f"at each, extremes 1:2: {percent((judge(0.5) != 0).all(axis=0))}, 200",
    )  # fmt: skip


def calibration_rows(runs: int) -> Iterator[Row]:
    def misses(spread: float) -> str:
        rng, hits = generator(29), []
        truth = np.exp(1.6449 * (spread**2 + 0.3**2) ** 0.5)
        for _ in range(runs // 4):
            values = np.exp(rng.normal(np.repeat(rng.normal(0, spread, 10), 50), 0.3))
            low, high = quantile_interval(np.sort(values), 0.95)
            hits.append(not low <= truth <= high)
        return share(hits)

    yield "calibration, interval of the limit", "5", f"{misses(0.0)}; tasks differ {misses(0.3)} (10 x 50)", ""


def severity_rows(runs: int) -> Iterator[Row]:
    """Equal policies with even depths; rare and deep against often and shallow, of one mean; and half the mean."""

    def draw(rng: np.random.Generator, odds: float, depth: float) -> Floats:
        return np.where(rng.random((runs, 50)) < odds, np.minimum(rng.uniform(0.5, 1.5, (runs, 50)) * depth, 1), 0)

    def paired(first: Floats, second: Floats) -> Bools:
        return flip_p(first - second) <= LEVEL

    def unpaired(first: Floats, second: Floats) -> Bools:
        rng = generator(31)
        return np.array([
            permute_task_means([a], [b], rng, tries=499).p_value <= LEVEL
            for a, b in zip(first, second, strict=True)
        ])  # fmt: skip

    laws = ((0.3, 0.5), (0.3, 0.5)), ((0.15, 0.6), (0.9, 0.1)), ((0.15, 0.5), (0.5, 0.5))
    for name, decide in (("VSI, pairs (flips)", paired), ("VSI, unpaired (permutation)", unpaired)):
        equal, odd, better = (decide(*(draw(generator(30 + k), *law) for k, law in enumerate(both))) for both in laws)
        yield (
            name, "5", f"{share(equal)}; rare, deep v often, shallow {share(odd)} (n 50)",
            f".08 v .25: {percent(better)}, 50",
        )  # fmt: skip


def plan_rows(runs: int) -> Iterator[Row]:
    cells = []
    for tasks in (6, 10, 40):
        for rate, difference in ((0.9, 0.1), (0.8, 0.05)):
            plan = plan_sample_size(SampleSizeRequest(baseline=rate, difference=difference, tasks=tasks))
            assert plan.episodes
            counts = generator(33).binomial(plan.episodes, np.reshape(plan.rates, (2, 1, 1)), (2, runs, tasks))
            found = percent(flip_p(counts[0] - counts[1]) <= LEVEL)
            cells.append(f"{tasks} x {plan.episodes}: {found}")
        yield "`--plan` at 80 %", "", "", f".9 v .8, {cells[-2]}; .8 v .75, {cells[-1]}"


# Coverage


def coverage_rows(runs: int) -> Iterator[Row]:
    """Smallest and mean coverage: of rates summed exactly over 2 to 98 %, of VSI over rates and laws of depth."""
    rates = np.linspace(0.02, 0.98, 97)
    for name, interval in (("rate: Wilson", wilson_interval), ("rate: exact", exact)):
        for n in (20, 200):
            ends = list_ends(interval, n)
            inside = (ends[:, :1] <= rates) & (rates <= ends[:, 1:])
            covered = (stats.binom.pmf(np.arange(n + 1)[:, None], n, rates) * inside).sum(axis=0)
            yield f"{name}, n {n}", f"{100 * covered.mean():.1f}", f"{100 * covered.min():.1f}"
    for n in (20, 200):
        covers = []
        for k, (rate, law) in enumerate((rate, law) for rate in (0.02, 0.1, 0.5) for law in DEPTHS):
            rng = generator(100 + k)
            values = np.where(rng.random((runs // 4, n)) < rate, law(rng, (runs // 4, n)), 0.0)
            mean = rate * float(law(generator(1), (1000, 1000)).mean())
            covers.append(covering([bounded_mean_interval(row) for row in values], mean))
        yield f"VSI: Gaffke, n {n}", f"{np.mean(covers):.1f}", f"{min(covers):.1f}"
    yield from incidence_rows(runs)
    covers = []
    for suites in ((0.75, 0.98, 0.86, 0.9), (0.5, 0.6, 0.4, 0.7)):
        ends_of = {k: wilson_interval(k, 50) for k in range(51)}
        counts = generator(7).binomial(50, suites, size=(runs, 4)).tolist()
        found = [rate_mean_interval([(k / 50, ends_of[k]) for k in row]) for row in counts]
        covers.append(covering(found, float(np.mean(suites))))
    yield "four suites' mean: MOVER, n 50", f"{np.mean(covers):.1f}", f"{min(covers):.1f}"


def incidence_rows(runs: int) -> Iterator[Row]:
    """Violations at rates of .02, .005 and .08 a second among other ends at .05; a share is cut short before."""
    times = np.array([5.0, 20.0, 40.0])
    for cut in (0.0, 0.3):
        covers = []
        for rate in (0.02, 0.005, 0.08):
            rng, hazard = generator(51), rate + 0.05
            true = rate / hazard * (1 - np.exp(-hazard * times))
            inside = []
            for _ in range(runs):
                ends, causes = rng.exponential(1 / hazard, 50), np.where(rng.random(50) < rate / hazard, 0, 1)
                stops = np.where(rng.random(50) < cut, rng.exponential(15.0, 50), np.inf)
                found = cumulative_incidence(np.minimum(ends, stops), np.where(stops < ends, CENSORED, causes), 2)
                at = [found.at(time) for time in times]
                inside.append((found.low[at] <= true) & (true <= found.high[at]))
            covers += (100 * np.mean(inside, axis=0)).tolist()
        name = f"violated by a time, n 50, {100 * cut:.0f} % cut short"
        yield name, f"{np.mean(covers):.1f}", f"{min(covers):.1f}"


DEPTHS: tuple[Callable[[np.random.Generator, tuple[int, int]], Floats], ...] = (
    lambda _, shape: np.ones(shape),
    lambda rng, shape: rng.uniform(0, 1, shape),
    lambda rng, shape: rng.beta(0.5, 4, shape),
)


def covering(intervals: Sequence[Interval | None], mean: float) -> float:
    return 100 * float(np.mean([one is not None and one.low - 1e-9 <= mean <= one.high + 1e-9 for one in intervals]))


# Select


def selection_rows(runs: int) -> Iterator[Row]:
    """The greatest SR of five policies with a Safety of at least .9 by estimate: what is said of the choice."""
    rng, n, chosen = generator(41), 200, np.arange(runs)
    ends = {level: list_ends(lambda k, of, level=level: exact_interval(k, of, level), n) for level in (0.95, 0.995)}

    def race(rates: Sequence[float], safety: float, swing: float = 0.0) -> tuple[Ints, Ints, Bools]:
        """Return the counts of successes, of safe episodes, and who succeeds, the best first, [5, runs, ...]."""
        shift = rng.normal(0, swing / 2**0.5, (5, runs, 10))
        success = rng.random((20, 5, runs, 10)) < np.clip(np.array(rates)[:, None, None] + shift, 0.01, 0.99)
        safe = rng.binomial(n, safety, (5, runs))
        counts = success.sum(axis=(0, 3))
        order = np.argsort(-counts - 1000 * (safe >= 0.9 * n), axis=0, kind="stable")
        ranked = np.moveaxis(success, 0, 3)[order, chosen]
        return counts[order, chosen], safe[order, chosen], ranked

    counts, safe, ranked = race([0.8] * 5, 0.9)
    missed = {level: (limits[counts[0], 0] > 0.8) | (limits[counts[0], 1] < 0.8) for level, limits in ends.items()}
    alone = share(missed[0.95])
    yield "`select` of 5, interval of the choice", "5", f"{share(missed[0.995])}; not corrected {alone}", ""
    yield "same, its Safety of .9 established", "2.5", share(ends[0.995][safe[0], 0] >= 0.9), ""
    few = runs // 2
    interacting, unequal = race([0.8] * 5, 0.95, 0.2)[2], race([0.9, *[0.8] * 4], 0.95)[2]
    better = [differ_by_task(part[:2, :few]) for part in (ranked, interacting, unequal)]
    yield (
        "same, better than the runner-up", "5", f"{share(better[0])}; interacting {share(better[1])}",
        f".9 v four at .8: {percent(better[2])}, 200",
    )  # fmt: skip


PARTS = (
    gate_rows, until_rows, these_rows, task_rows, exploratory_rows, letter_rows, crash_rows, series_rows,
    ranking_rows, selection_rows, calibration_rows, severity_rows, plan_rows,
)  # fmt: skip


def format_page(runs: int, only: str) -> Iterator[str]:
    rows = (row for part in PARTS if only in part.__name__ for row in part(runs))
    yield from format_table(("verdict", "nominal %", "wrong %", "power, episodes"), rows)
    if only in coverage_rows.__name__:
        yield from format_table(("interval", "covers %, average", "least"), coverage_rows(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="simulated for each figure; fewer where they are slow")
    parser.add_argument("--only", default="", help="a part of the name of rows, such as gate")
    parser.add_argument("--write", type=Path, help="put the tables between the marks in this page")
    options = parser.parse_args()
    print_tables(format_page(options.runs, options.only), options.write, "coverage")


if __name__ == "__main__":
    main()
