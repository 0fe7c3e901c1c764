"""Sample size: the number of episodes that a comparison of policies needs for a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import inf, sqrt

import msgspec
import numpy as np

from safevla_bench.compare.difference import least_tasks
from safevla_bench.errors import SafevlaError
from safevla_bench.statistics.intervals import CONFIDENCE, POWER, binomial_pmf, check_level
from safevla_bench.text import count_noun, format_compact, format_fixed
from safevla_recorder.episode import Floats, Ints

LEAST_DIFFERENCE = 1e-6
"""The smallest difference of rates that can be planned for. A smaller difference has no practical meaning."""
_SIGN_FLIP_TEST = "Sign-flip test of the tasks' differences"
_UNLIMITED_EPISODES = 10**9  # so many episodes per task that the sampling error is negligible


class SampleSizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of two rates to detect, with the baseline rate, the power and the confidence; all are fractions."""

    difference: float
    baseline: float = 0.8
    power: float = 0.8
    confidence: float = CONFIDENCE
    discordant: float | None = None
    """Share of pairs in which the policies differ; None = the share that independent outcomes would have."""
    tasks: int = 10
    task_spread: float = 0.0
    """Standard deviation, between tasks, of the true difference of the rates; 0 = the same difference in every task."""


class SampleSizePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for a verdict of `compare`: for similar tasks (sign flips), or on a single task (McNemar's test).

    `episodes` is the number of episodes per policy and task that detects the difference with the requested power; null
    if no number does. With fewer than `least_tasks` tasks, no number of episodes reaches that power. `least_tasks` is
    null if even a million tasks are too few.
    """

    rates: tuple[float, float]
    discordant: float
    episodes: int | None
    least_tasks: int | None
    request: SampleSizeRequest
    by_spread: dict[str, int | None] = {}
    """Spread between tasks (0, 0.1 or 0.2) -> `episodes`; empty for one task, or if the request has a spread."""

    def to_text(self) -> str:
        """Return the plan in sentences, one per line: the answer, and its assumptions."""
        return "\n".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        # Yields the answer, the numbers of episodes for other spreads between tasks, and the test with its assumptions.
        request = self.request
        first, second, power, level = map(_percent, (*self.rates, request.power, request.confidence))
        aim = (
            f"to distinguish {first} from {second} on {count_noun(request.tasks, 'task')}, "
            f"at {level} confidence and {power} power"
        )
        if self.least_tasks is None or request.tasks < self.least_tasks:
            least_text = "More than a million" if self.least_tasks is None else f"At least {self.least_tasks}"
            yield f"No number of episodes is enough {aim}. {least_text} tasks are needed."
        elif self.episodes is None:
            yield f"Over a million episodes per task are needed {aim}."
        else:
            total = f", {self.episodes * request.tasks} of each policy" if request.tasks > 1 else ""
            yield f"{self.episodes} episodes per task{total} are needed {aim}."
        numbers = [f"{'no number' if n is None else n} at {100 * float(key):g}" for key, n in self.by_spread.items()]
        if numbers:
            yield f"Episodes per task, by the standard deviation between tasks in points: {', '.join(numbers)}."
        yield f"{_SIGN_FLIP_TEST if request.tasks > 1 else 'McNemar, mid-p'}, assuming that {self._assumption()}."

    def _assumption(self) -> str:
        # Returns the part of a sentence that says how the outcomes are assumed to vary between tasks and pairs.
        request = self.request
        # `discordant` is the share of pairs of episodes in which the policies have different outcomes.
        # If the user did not state this share, the request's share is None, and the plan assumes independent outcomes.
        spread_text = f"varies between tasks by {format_compact(100 * request.task_spread)} points (standard deviation)"
        effect_text = f"the difference {spread_text if request.task_spread else 'is the same in each task'} and "
        note = "" if request.discordant else " (for independent outcomes; to change this, --assume discordant=SHARE)"
        share_percent = format_fixed(100 * self.discordant, 1)
        return f"{effect_text if request.tasks > 1 else ''}{share_percent} % of the pairs differ{note}"


def plan_sample_size(request: SampleSizeRequest) -> SampleSizePlan:
    """Return a plan with the number of episodes per policy and task that detects the difference.

    Raises:
        SafevlaError: the difference is too small, or both possible rates are outside 0 to 1. Also for `discordant`
            below the difference, for other numbers that are not fractions from 0 to 1, and for less than one task.
    """
    _check_request(request)
    baseline, difference = request.baseline, request.difference
    rates = [rate for rate in (baseline - difference, baseline + difference) if 0 <= rate <= 1]
    if not rates:
        problem = f"no rate from 0 to 100 % differs by {100 * difference:g} points from {100 * baseline:g} %"
        raise SafevlaError(problem, remedy="Give a smaller --plan or another --assume baseline=.")
    # If two rates are possible, assume the one nearer to 50 %, which needs more episodes.
    other_rate = min(rates, key=lambda rate: abs(rate - 0.5))
    # The share of pairs in which independent outcomes with these two rates differ
    independent_share = baseline + other_rate - 2 * baseline * other_rate
    discordant = max(difference, independent_share if request.discordant is None else request.discordant)
    episodes, needed_tasks = _plan_episodes_and_tasks(request, discordant, request.task_spread)
    # Without a given spread between tasks, also show the results for these standard deviations.
    spreads = (0.0, 0.1, 0.2) if request.tasks > 1 and not request.task_spread else ()
    return SampleSizePlan(
        rates=(baseline, other_rate),
        discordant=discordant,
        episodes=episodes,
        least_tasks=needed_tasks,
        request=request,
        by_spread={f"{spread:g}": _plan_episodes_and_tasks(request, discordant, spread)[0] for spread in spreads},
    )


def _plan_episodes_and_tasks(
    request: SampleSizeRequest, discordant: float, spread: float
) -> tuple[int | None, int | None]:
    # Returns the number of episodes per task; None = no number is enough.
    # Also returns the least number of tasks; None = even a million tasks are too few.
    tasks, difference, confidence = request.tasks, request.difference, request.confidence
    # `discordant` is the share of pairs in which the policies differ.
    # `spread` is the standard deviation, between tasks, of the true difference.
    if tasks == 1:
        pairs_needed = least_number(lambda n: paired_power(n, difference, discordant, confidence), request.power)
        return pairs_needed, 1
    # With `too_few` tasks, no sign-flip test can be significant.
    too_few = least_tasks(confidence) - 1
    # With unlimited episodes, the variance within a task does not matter, so any number (1.0) gives the same power.
    extra_tasks = least_number(
        lambda n: flip_power(_UNLIMITED_EPISODES, difference, 1.0, spread, too_few + n, confidence), request.power
    )
    needed_tasks = None if extra_tasks is None else too_few + extra_tasks
    if needed_tasks is None or tasks < needed_tasks:
        return None, needed_tasks
    # The difference between the two episodes of a pair is -1, 0 or 1. Its square has the mean `discordant`.
    variance = discordant - difference**2
    episodes = least_number(lambda n: flip_power(n, difference, variance, spread, tasks, confidence), request.power)
    return episodes, needed_tasks


def _check_request(request: SampleSizeRequest) -> None:
    # Raises the errors of `plan_sample_size`, except for a rate that would be below 0 or above 1.
    points = f"{100 * request.difference:g} points"
    check_level(request.power, request.confidence)
    if not LEAST_DIFFERENCE <= request.difference <= 1:
        remedy = f"Give a difference of at least {100 * LEAST_DIFFERENCE:g} and at most 100 percentage points."
        raise SafevlaError(f"a difference of {points} cannot be planned for", remedy=remedy)
    if not 0 <= request.baseline <= 1:
        raise SafevlaError(f"invalid rate baseline={request.baseline:g}", remedy="Use a fraction from 0 to 1.")
    if not 0 <= request.task_spread <= 1:
        raise SafevlaError(f"invalid spread of tasks: {request.task_spread:g}", remedy="Use a fraction from 0 to 1.")
    if request.tasks < 1:
        raise SafevlaError("the number of tasks is below 1", remedy="Give at least one task.")
    if request.discordant is not None and not request.difference - 1e-12 <= request.discordant <= 1:
        problem = f"discordant must be at most 1 and at least the difference, {request.difference:g} ({points})"
        raise SafevlaError(problem, remedy=f"Give `discordant` a value from {request.difference:g} to 1.")


def _percent(share: float) -> str:
    # Returns a share as text: 0.05 becomes `5 %`.
    return f"{format_compact(100 * share)} %"


# The power of tests


# Maximum number of tasks for which the power of sign flips is simulated. For more tasks, a t test's power is used.
_SIMULATED_TASKS = 12
_REPLICATES = 2000  # number of simulations from which the power of sign flips is computed


def flip_power(
    episodes: int, difference: float, variance: float, spread: float, tasks: int, confidence: float = CONFIDENCE
) -> float:
    """Return the power of the sign-flip test of at least 2 tasks with exact p-values (`flip_task_means`).

    For up to twelve tasks, the test is simulated with normally distributed sums, rounded to whole episodes; equal
    arguments give equal results. For more tasks, the power of a t test is returned. `episodes` is the number of
    episodes per policy and task. `variance` is the variance of the difference between one episode of each policy on one
    task. `spread` is the standard deviation, between tasks, of the true difference.
    """
    # The standard deviation of the sum of the differences in one task, over all episodes of the task
    sum_deviation = sqrt(episodes**2 * spread**2 + episodes * variance)
    if tasks <= _SIMULATED_TASKS:
        # [simulations, tasks]: simulated sums of the differences in each task
        sums = np.rint(episodes * abs(difference) + sum_deviation * _normal_draws(tasks))
        # Flipping the signs of a subset of tasks with a total of at most 0 does not reduce the sum over all tasks.
        # The matrix has a column for each subset, with 1 for the tasks in the subset.
        subset_totals = sums @ (np.arange(2**tasks) >> np.arange(tasks)[:, None] & 1)
        # The two-sided p-value is twice the share of such subsets.
        # The power is the share of simulations with a significant p-value.
        return float((2 * (subset_totals <= 0).mean(axis=1) <= 1 - confidence + 1e-12).mean())
    from scipy.special import nctdtr, stdtrit

    # With more tasks, the power of a t test is used. If the deviation is 0, any difference is detected.
    critical = float(stdtrit(tasks - 1, (1 + confidence) / 2))
    effect = episodes * abs(difference) / sum_deviation if sum_deviation else inf
    return 1 - float(nctdtr(tasks - 1, effect * sqrt(tasks), critical)) if effect < inf else 1.0


@lru_cache(maxsize=4)
def _normal_draws(tasks: int) -> Floats:
    # Returns fixed standard normal random numbers, [simulations, tasks]. All numbers of episodes use the same draws.
    # The array is cached, so it must not be changed.
    draws: Floats = np.random.Generator(np.random.PCG64(0)).standard_normal((_REPLICATES, tasks))
    draws.flags.writeable = False
    return draws


def paired_power(n: int, difference: float, discordant: float, confidence: float = CONFIDENCE) -> float:
    """Return the power of McNemar's test with mid-p-values over n pairs.

    `discordant` is the share of pairs in which the policies differ. The power is an exact sum over two binomial counts:
    the number of pairs in which the policies differ, and the number of these pairs in which the first policy wins.
    """
    from scipy.special import bdtr, bdtrik

    # `difference` is the true difference of the two rates.
    # The probability that the better policy wins a pair in which the policies differ
    winning_share = (discordant + abs(difference)) / (2 * discordant)
    margin = 9 * sqrt(n * discordant * (1 - discordant)) + 9
    low, high = max(0, int(n * discordant - margin)), min(n, int(n * discordant + margin))
    # possible numbers of pairs in which the policies differ, up to nine standard deviations from the expected number
    pair_counts: Ints = np.arange(low, high + 1)
    # Discordant pairs are the pairs in which the policies differ.
    # `rarer_counts`: per number of discordant pairs, the largest significant count of the rarer outcome (-1 = none)
    rarer_counts = np.ceil(np.nan_to_num(bdtrik((1 - confidence) / 2, pair_counts, 0.5)))
    # Mid-p-value of this count: only half of the probability of the count itself is included
    mid_p = 2 * bdtr(rarer_counts, pair_counts, 0.5) - binomial_pmf(rarer_counts.astype(np.int64), pair_counts, 0.5)
    rarer_counts = np.where(mid_p <= 1 - confidence + 1e-12, rarer_counts, rarer_counts - 1)
    # For each number of discordant pairs: the probabilities of the two significant results.
    # In the first result, the better policy wins rarely; in the second result, the worse policy wins rarely.
    tails = [
        np.where(rarer_counts >= 0, bdtr(np.maximum(rarer_counts, 0), pair_counts, rate), 0.0)
        for rate in (winning_share, 1 - winning_share)
    ]
    return float((binomial_pmf(pair_counts, n, discordant) * (tails[0] + tails[1])).sum())


def least_number(power_of: Callable[[int], float], power: float = POWER, most: int = 1_000_000) -> int | None:
    """Return a number n that reaches the power, although n - 1 does not; None if n would exceed about `most`.

    Power does not rise steadily: a slightly larger number may fall just short of the power again.
    """
    # `power_of` returns the power for a number. `low` is always too small.
    low, high = 0, 1
    while power_of(high) < power:  # double `high` until it is large enough, then bisect
        low, high = high, 2 * high
        if low > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high
