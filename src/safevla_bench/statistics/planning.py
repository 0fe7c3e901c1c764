"""Planning of evaluations: the number of episodes that show a difference, and the width of intervals."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from math import ceil, inf, log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import SafevlaError
from safevla_bench.statistics.intervals import CONFIDENCE, normal_quantile, unit_mean_interval
from safevla_bench.statistics.sequential import log_wealth_of_counts

POWER = 0.8
LEAST_DIFFERENCE = 1e-6
"""The smallest difference of rates that is planned for: any number of episodes for less has no meaning."""
_MOST_EXACT = 1_000_000
"""Pairs beyond which the normal approximation is taken: it is then as good as the exact power, which takes minutes."""


def _check_level(power: float, confidence: float) -> None:
    """Raise `SafevlaError` unless power and confidence are shares strictly between 0 and 1."""
    for name, share in (("power", power), ("confidence", confidence)):
        if not 0 < share < 1:
            raise SafevlaError(f"a {name} of {share:g} is never reached", remedy="Give a share between 0 and 1.")


def _check_shares(**shares: float) -> None:
    """Raise `SafevlaError`, which names the first, unless all are numbers from 0 to 1."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise SafevlaError(f"{name} is {share:g}", remedy="Give a share from 0 to 1.")


def _check_difference(difference: float) -> None:
    """Raise `SafevlaError` unless a difference of two rates is at least `LEAST_DIFFERENCE` and at most 1 in size."""
    if not LEAST_DIFFERENCE <= abs(difference) <= 1:
        remedy = f"Give one of at least {100 * LEAST_DIFFERENCE:g} percentage points, and at most 100."
        raise SafevlaError(f"a difference of {100 * difference:g} points cannot be planned for", remedy=remedy)


def rate_sample_size(
    rate: float, limit: float, power: float = POWER, confidence: float = CONFIDENCE, most: int = 1_000_000
) -> int | None:
    """Return the least n whose exact interval excludes `limit` with the given power if the true rate is `rate`.

    The interval is Clopper and Pearson's. The power rises in steps, so a slightly larger n may fall just short again.
    None if `rate` is the limit, or about more than `most` would be needed. Raises `SafevlaError` if a number is no
    share.
    """
    _check_shares(rate=rate, limit=limit)
    _check_level(power, confidence)
    if rate == limit:
        return None
    near = _decisive_normal(rate, limit, power, confidence)
    if near > most:
        return None
    numbers = count(max(1, near // 2 - 20), max(1, near // 400))
    return next(n for n in numbers if rate_power(n, rate, limit, confidence) >= power - 1e-12)


def rate_power(n: int, rate: float, limit: float, confidence: float = CONFIDENCE) -> float:
    """Return the probability that the exact interval of n episodes lies on the side of `limit` where `rate` does."""
    from scipy.stats import binom

    tail = (1 - confidence) / 2
    if rate < limit:
        return rate_power(n, 1 - rate, 1 - limit, confidence)
    least = int(binom.isf(tail, n, limit)) + 1  # P(X >= least) <= tail at the limit
    return float(binom.sf(least - 1, n, rate)) if least <= n else 0.0


def _decisive_normal(rate: float, limit: float, power: float, confidence: float) -> int:
    """Return the n at which a normal approximation has the power; at most about 1e18.

    `rate` and `limit` must differ.
    """
    z, reach = normal_quantile(confidence), NormalDist().inv_cdf(power)
    root = z * sqrt(limit * (1 - limit)) + reach * sqrt(rate * (1 - rate))
    ratio = min(root / abs(rate - limit), 1e9)
    return ceil(ratio**2) + 1


@dataclass(frozen=True, slots=True)
class SequentialPlan:
    """A sequential design: the most episodes or pairs, and the mean number until it is decided or they are used up."""

    most: int
    mean: float


_SIMULATIONS = 1000
_MOST_STEPS = 6000


def sequential_rate_plan(
    rate: float, limit: float, power: float = POWER, confidence: float = CONFIDENCE
) -> SequentialPlan | None:
    """Return after how many episodes the confidence sequence excludes `limit` with the given power.

    By simulation of a rate, with a look after each of at most 600 evenly spaced numbers. None if `rate` is the limit,
    or too many episodes are needed. Raises `SafevlaError` if a number is no share, or the limit is 0 or 1,
    which no number of episodes excludes or all do.
    """
    _check_shares(rate=rate, limit=limit)
    if limit in (0, 1):
        raise SafevlaError(f"a limit of {limit:g} needs no plan", remedy="Give a limit between 0 and 1.")
    _check_level(power, confidence)
    if rate == limit:
        return None
    return _simulate_plan(rate, limit, 1.0, _decisive_normal(rate, limit, power, confidence), power, confidence)


def sequential_paired_plan(
    difference: float, discordant: float, power: float = POWER, confidence: float = CONFIDENCE
) -> SequentialPlan | None:
    """Return after how many pairs the sequential paired test distinguishes two rates; see `paired_sample_size`.

    None if the rates are equal, or too many pairs are needed. Raises `SafevlaError` if fewer pairs differ than the
    rates do, the difference is below `LEAST_DIFFERENCE`, or a number is no share.
    """
    if difference == 0:
        return None
    _check_pairs(difference, discordant)
    _check_level(power, confidence)
    share = (discordant + abs(difference)) / (2 * discordant)
    near = ceil(_decisive_normal(share, 0.5, power, confidence) / discordant)
    return _simulate_plan(share, 0.5, discordant, near, power, confidence)


def _simulate_plan(
    rate: float, limit: float, share: float, near: int, power: float, confidence: float
) -> SequentialPlan | None:
    """Simulate sequences in which a `share` of the episodes counts, and return when `power` of them are decided.

    `rate` is that of the episodes that count, `limit` the rate to exclude, `near` a rough number of episodes, which
    sets how far looks are apart. None if too many episodes are needed. The same arguments give the same plan.
    """
    step = max(1, near // 50)
    looks = _MOST_STEPS // 10
    if near > 10 * _MOST_STEPS * 100:
        return None
    generator = np.random.Generator(np.random.PCG64(0))
    counted = generator.binomial(step, share, size=(_SIMULATIONS, looks)).cumsum(axis=1)
    increments = np.diff(counted, axis=1, prepend=0)
    hits = generator.binomial(increments, rate).cumsum(axis=1)
    decided = log_wealth_of_counts(hits, counted, limit) >= -log(1 - confidence)
    first = np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, looks + 1)
    last = int(np.sort(first)[ceil(power * _SIMULATIONS) - 1])
    if last > looks:
        return None
    return SequentialPlan(most=last * step, mean=float(np.minimum(first, last).mean()) * step)


def task_sample_size(
    difference: float,
    spread: float,
    tasks: int,
    variance: float,
    power: float = POWER,
    confidence: float = CONFIDENCE,
    most: int = 1_000_000,
) -> int | None:
    """Return the episodes of each task that show a mean difference over tasks like these; None if over about `most`.

    None too where no number of episodes shows the difference on so few tasks.

    The mean over tasks varies by spread²/tasks, which more episodes do not reduce, and by variance/(tasks · episodes).
    Power of a two-sided t test of the task means, by the noncentral t distribution.

    Args:
        difference: of the two rates, averaged over all tasks of the kind.
        spread: standard deviation between tasks of the true difference.
        tasks: number of tasks run, at least 2.
        variance: of the difference in one episode of each policy on one task.
        power: chance to find the difference.
        confidence: 1 - the test's level.
        most: greatest number tried.

    Raises:
        SafevlaError: the difference is 0 or no difference of rates, there is one task, the variance is negative or
            infinite, or a number, the spread among them, is no share.
    """
    _check_task_plan(difference, spread, power, confidence)
    if tasks < 2 or not 0 <= variance < inf:
        raise SafevlaError(f"{tasks} tasks of variance {variance:g}", remedy="Give 2 tasks or more, and a variance.")
    if _task_power(difference, spread**2, tasks, confidence) < power:
        return None
    low, high = 0, 1
    while _task_power(difference, spread**2 + variance / high, tasks, confidence) < power:
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        reached = _task_power(difference, spread**2 + variance / middle, tasks, confidence) >= power
        low, high = (low, middle) if reached else (middle, high)
    return high


def least_tasks(difference: float, spread: float, power: float = POWER, confidence: float = CONFIDENCE) -> int:
    """Return the least number of tasks on which any number of episodes shows the mean difference; at least 2.

    Raises:
        SafevlaError: the difference is 0 or no difference of rates, or a number is no share.
    """
    _check_task_plan(difference, spread, power, confidence)
    low, high = 1, 2
    while _task_power(difference, spread**2, high, confidence) < power:
        low, high = high, 2 * high
    while high - low > 1:  # the power rises with the number of tasks
        middle = (low + high) // 2
        reached = _task_power(difference, spread**2, middle, confidence) >= power
        low, high = (low, middle) if reached else (middle, high)
    return high


def _check_task_plan(difference: float, spread: float, power: float, confidence: float) -> None:
    """Raise `SafevlaError` if the difference is too small or beyond 1, or another number is no share."""
    _check_difference(difference)
    _check_shares(spread=spread)
    _check_level(power, confidence)


def _task_power(difference: float, variance: float, tasks: int, confidence: float) -> float:
    """Return the power of a two-sided t test that `tasks` means of this variance have mean 0.

    1 if the variance is 0.
    """
    from scipy.stats import nct, t

    if variance <= 0:
        return 1.0
    critical = float(t.isf((1 - confidence) / 2, tasks - 1))
    return float(nct.sf(critical, tasks - 1, abs(difference) / sqrt(variance / tasks)))


def half_width(rate: float, n: int, confidence: float = CONFIDENCE) -> float:
    """Return half the width of Wilson's interval if a share `rate` of n episodes counts; infinite if n is 0.

    Raises `SafevlaError` if a number is no share.
    """
    _check_shares(rate=rate)
    _check_level(POWER, confidence)
    interval = unit_mean_interval(rate * n, n, confidence)
    return float("inf") if interval is None else (interval.high - interval.low) / 2


def unpaired_sample_size(first: float, second: float, power: float = POWER, confidence: float = CONFIDENCE) -> int:
    """Return the independent episodes per policy that distinguish two rates, which must differ, with the given power.

    J. L. Fleiss, Statistical Methods for Rates and Proportions, two-sided z test of two proportions without continuity
    correction. Raises `SafevlaError` if the rates are equal or a number is no share.
    """
    _check_shares(first=first, second=second)
    _check_difference(first - second)
    _check_level(power, confidence)
    mean, difference = (first + second) / 2, abs(first - second)
    z, reach = normal_quantile(confidence), NormalDist().inv_cdf(power)
    spread = first * (1 - first) + second * (1 - second)
    return ceil(((z * sqrt(2 * mean * (1 - mean)) + reach * sqrt(spread)) / difference) ** 2)


def paired_sample_size(
    difference: float, discordant: float, power: float = POWER, confidence: float = CONFIDENCE
) -> int:
    """Return the pairs of episodes with which McNemar's exact test distinguishes two rates with the given power.

    It is the smallest n near the normal approximation whose exact power reaches it. The power rises in steps, so a
    slightly larger n may fall just short again. Beyond a million pairs it is the normal approximation's.

    Args:
        difference: of the two rates.
        discordant: share of pairs in which the policies differ, at least |difference|.
        power: chance to find the difference.
        confidence: 1 - the test's level.

    Raises:
        SafevlaError: the difference is 0, fewer pairs differ than the rates do, or a number is no share.
    """
    _check_pairs(difference, discordant)
    _check_level(power, confidence)
    z, reach = normal_quantile(confidence), NormalDist().inv_cdf(power)
    root = z * sqrt(discordant) + reach * sqrt(max(0.0, discordant - difference**2))
    near = ceil((root / difference) ** 2)
    if near > _MOST_EXACT:
        return near
    start = max(1, int(0.95 * near) - 5)
    step = max(1, near // 400)
    return next(n for n in count(start, step) if paired_power(n, difference, discordant, confidence) >= power)


def _check_pairs(difference: float, discordant: float) -> None:
    """Raise `SafevlaError` unless the difference can be planned for and so large a share of pairs can differ."""
    _check_difference(difference)
    if not abs(difference) - 1e-12 <= discordant <= 1:
        problem = f"rates {100 * abs(difference):g} points apart differ in at least {abs(difference):g} of the pairs"
        raise SafevlaError(problem, remedy=f"Give a share of {abs(difference):g} or more, and at most 1.")


def paired_power(n: int, difference: float, discordant: float, confidence: float = CONFIDENCE) -> float:
    """Return the power of McNemar's exact test over n pairs. It is exact, by summing over all outcomes.

    The number of discordant pairs is binomial, and so is how many of them the first policy wins.
    """
    from scipy.stats import binom

    share = (discordant + abs(difference)) / (2 * discordant)
    spread = 9 * sqrt(n * discordant * (1 - discordant)) + 9
    low, high = max(0, int(n * discordant - spread)), min(n, int(n * discordant + spread))
    many: NDArray[np.int64] = np.arange(low, high + 1)
    # The largest minority that is still significant among that many; -1 = none is.
    fewest = binom.ppf((1 - confidence) / 2, many, 0.5) - 1
    fewest = np.where(2 * binom.cdf(fewest + 1, many, 0.5) <= 1 - confidence, fewest + 1, fewest)
    rejected = binom.cdf(fewest, many, share) + binom.cdf(fewest, many, 1 - share)
    return float((binom.pmf(many, n, discordant) * rejected).sum())
