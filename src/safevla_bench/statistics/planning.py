"""Planning of evaluations: the power of tests, and the number of episodes that has a power."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import ceil, inf, log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import SafevlaError
from safevla_bench.statistics.intervals import CONFIDENCE, normal_quantile
from safevla_bench.statistics.sequential import log_wealth_of_counts

POWER = 0.8


def check_level(power: float, confidence: float) -> None:
    """Raise `SafevlaError` for a power or a confidence that is not between 0 and 1."""
    for name, share in (("power", power), ("confidence", confidence)):
        if not 0 < share < 1:
            raise SafevlaError(f"a {name} of {share:g} is never reached", remedy="Give a share between 0 and 1.")


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise SafevlaError(f"{name} is {share:g}", remedy="Give a share from 0 to 1.")


def rate_sample_size(
    rate: float, limit: float, power: float = POWER, confidence: float = CONFIDENCE, most: int = 1_000_000
) -> int | None:
    """Return the least n whose exact interval excludes `limit` with the given power if the true rate is `rate`.

    The interval is `exact_interval`; its power rises in steps, so that a slightly greater n may fall just short again.
    None if `rate` is the limit, or about more than `most` would be needed. Raises `SafevlaError` for a number that is
    not a share.
    """
    _check_shares(rate=rate, limit=limit)
    check_level(power, confidence)
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
_LOOKS = 600
_MOST_STEP = 120_000


def sequential_rate_plan(
    rate: float, limit: float, power: float = POWER, confidence: float = CONFIDENCE
) -> SequentialPlan | None:
    """Return after how many episodes the confidence sequence excludes `limit` with the given power.

    By a simulation with a look after each of at most 600 evenly spaced numbers; the same arguments give the same plan.
    None if `rate` is the limit, or too many episodes are needed. Raises `SafevlaError` for a number that is not a
    share, and for a limit of 0 or 1.
    """
    _check_shares(rate=rate, limit=limit)
    if limit in (0, 1):
        raise SafevlaError(f"a limit of {limit:g} needs no plan", remedy="Give a limit between 0 and 1.")
    check_level(power, confidence)
    if rate == limit:
        return None
    step = max(1, _decisive_normal(rate, limit, power, confidence) // 50)
    if step > _MOST_STEP:
        return None
    generator = np.random.Generator(np.random.PCG64(0))
    hits = generator.binomial(step, rate, size=(_SIMULATIONS, _LOOKS)).cumsum(axis=1)
    looks = np.broadcast_to(step * np.arange(1, _LOOKS + 1), hits.shape)
    decided = log_wealth_of_counts(hits, looks, limit) >= -log(1 - confidence)
    first = np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, _LOOKS + 1)
    last = int(np.sort(first)[ceil(power * _SIMULATIONS) - 1])
    if last > _LOOKS:
        return None
    return SequentialPlan(most=last * step, mean=float(np.minimum(first, last).mean()) * step)


_SIMULATED_TASKS = 10
"""Greatest number of tasks for which the power of sign flips is simulated; with more it is that of a t test."""
_REPLICATES = 2000


def flip_power(
    episodes: int, difference: float, variance: float, spread: float, tasks: int, confidence: float = CONFIDENCE
) -> float:
    """Return the power of sign flips of the tasks' differences, by mid-p-values (`flip_task_means`).

    Up to ten tasks by simulation of normal sums rounded to whole episodes, with the same result for the same arguments;
    with more tasks that of a t test.

    Args:
        episodes: of each policy and task.
        difference: of the two rates, averaged over tasks like these.
        variance: of the difference in one episode of each policy on one task.
        spread: standard deviation between tasks of the true difference; 0 = the same in each task.
        tasks: number of tasks, at least 2.
        confidence: 1 - the test's level.
    """
    deviation = sqrt(episodes**2 * spread**2 + episodes * variance)
    if tasks <= _SIMULATED_TASKS:
        sums = np.rint(episodes * abs(difference) + deviation * _normal_draws(tasks))
        totals = sums @ (np.arange(2**tasks) >> np.arange(tasks)[:, None] & 1)
        shares = (totals <= 0).mean(axis=1) - (totals == 0).mean(axis=1) / 2
        return float((2 * shares <= 1 - confidence + 1e-12).mean())
    from scipy.stats import nct, t

    critical = float(t.isf((1 - confidence) / 2, tasks - 1))
    effect = episodes * abs(difference) / deviation if deviation else inf
    return float(nct.sf(critical, tasks - 1, effect * sqrt(tasks))) if effect < inf else 1.0


@lru_cache(maxsize=4)
def _normal_draws(tasks: int) -> NDArray[np.float64]:
    draws: NDArray[np.float64] = np.random.Generator(np.random.PCG64(0)).standard_normal((_REPLICATES, tasks))
    draws.flags.writeable = False
    return draws


def paired_power(n: int, difference: float, discordant: float, confidence: float = CONFIDENCE) -> float:
    """Return the power of McNemar's test by mid-p-values over n pairs of which a share is `discordant`.

    Exact: summed over the binomial number of discordant pairs, and how many of them the first policy wins.
    """
    from scipy.stats import binom

    share = (discordant + abs(difference)) / (2 * discordant)
    spread = 9 * sqrt(n * discordant * (1 - discordant)) + 9
    low, high = max(0, int(n * discordant - spread)), min(n, int(n * discordant + spread))
    many: NDArray[np.int64] = np.arange(low, high + 1)
    # The largest minority that is still significant among that many; -1 = none is.
    fewest = binom.ppf((1 - confidence) / 2, many, 0.5)
    mid_p = 2 * binom.cdf(fewest, many, 0.5) - binom.pmf(fewest, many, 0.5)
    fewest = np.where(mid_p <= 1 - confidence + 1e-12, fewest, fewest - 1)
    rejected = binom.cdf(fewest, many, share) + binom.cdf(fewest, many, 1 - share)
    return float((binom.pmf(many, n, discordant) * rejected).sum())


def least_number(power_of: Callable[[int], float], power: float = POWER, most: int = 1_000_000) -> int | None:
    """Return a number n with the power while n - 1 has not; None if it is over about `most`.

    Power may rise in steps, so that a slightly greater number may fall just short again.
    """
    low, high = 0, 1
    while power_of(high) < power:
        low, high = high, 2 * high
        if low > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high
