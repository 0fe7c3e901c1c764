"""Sample sizes of a comparison: episodes of each policy, and the precision of each policy's own rate."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from safevla_bench import statistics
from safevla_bench.errors import SafevlaError

_SIZES = (20, 50, 100, 200, 500, 1000, 2000)


class SampleSizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of rates to detect: from a baseline, as shares, with a power, at a confidence."""

    difference: float
    baseline: float = 0.8
    power: float = 0.8
    confidence: float = statistics.CONFIDENCE
    discordant: float | None = None
    only_paired: bool = False
    sequential: bool = False
    """Also plan the sequential comparison."""
    tasks: int | None = None
    """Plan for tasks like these, with so many of them; None = for these tasks."""
    task_spread: float = 0.1
    """Standard deviation between tasks of the true difference of the rates, as a share; with `tasks` only."""


class SampleDesign(msgspec.Struct, frozen=True, kw_only=True):
    """One design: `episodes` of each policy; `discordant` is null where episodes are independent.

    A sequential design needs at most `episodes`, and `mean_episodes` on average.
    """

    name: str
    discordant: float | None
    episodes: int
    half_width: float
    """Half the Wilson interval of each policy's own rate at so many episodes."""
    mean_episodes: float | None = None


class TaskDesign(msgspec.Struct, frozen=True, kw_only=True):
    """A design that shows the difference on tasks like these.

    `episodes` of each policy and task; null where no number shows it on so few tasks: it takes `least_tasks`, at least.
    """

    name: str
    tasks: int
    spread: float
    episodes: int | None
    least_tasks: int


class SampleSizePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Designs that detect the difference between two rates, and the precision of one rate by episodes."""

    rates: tuple[float, float]
    power: float
    confidence: float
    designs: tuple[SampleDesign, ...]
    half_widths: dict[int, float]
    task_designs: tuple[TaskDesign, ...] = ()


def plan_sample_size(request: SampleSizeRequest) -> SampleSizePlan:
    """Return the number of episodes of each policy that detects the difference, by design.

    Raises:
        SafevlaError: the difference is not above 0 or too small to plan for, the other rate would leave 0 to 1, a
            smaller share of pairs differs than the rates do, there are fewer than two tasks, or a number is no share.
    """
    if request.tasks is not None and request.tasks < 2:
        raise SafevlaError("one task says nothing about others", remedy="Give --task-count 2 or more.")
    if not request.difference > 0:
        raise SafevlaError("a difference of 0 is never detected", remedy="Give a difference above 0.")
    rates = (request.baseline, _other_rate(request))
    designs = [] if request.only_paired else [_unpaired_design(request, *rates)]
    return SampleSizePlan(
        rates=rates,
        power=request.power,
        confidence=request.confidence,
        designs=(*designs, *_paired_designs(request, *rates)),
        task_designs=tuple(_task_designs(request, *rates)),
        half_widths={n: statistics.half_width(request.baseline, n, request.confidence) for n in _SIZES},
    )


def _other_rate(request: SampleSizeRequest) -> float:
    """Return the rate to detect: baseline minus or plus the difference, the one within 0 to 1 and nearer to a half.

    Raises `SafevlaError` if both lie outside.
    """
    sides = (request.baseline - request.difference, request.baseline + request.difference)
    valid_rates = [rate for rate in sides if 0 <= rate <= 1]
    if not valid_rates:
        problem = f"no rate is {100 * request.difference:g} points from {100 * request.baseline:g} %"
        raise SafevlaError(problem, remedy="Give a smaller --plan or another --baseline.")
    return min(valid_rates, key=lambda candidate: abs(candidate - 0.5))


def _unpaired_design(request: SampleSizeRequest, first: float, second: float) -> SampleDesign:
    """Return the design of independent episodes for two rates; raises `SafevlaError` if they are too close."""
    episodes = statistics.unpaired_sample_size(first, second, request.power, request.confidence)
    return _make_design("independent episodes", None, episodes, request)


def _paired_designs(request: SampleSizeRequest, first: float, second: float) -> list[SampleDesign]:
    """Return designs for the given share of discordant pairs, else for three: unrelated to most similar outcomes.

    With `request.sequential` the sequential designs follow, without those that take too many episodes to simulate.
    Raises `SafevlaError` if the given share is less than the rates' difference.
    """
    difference = abs(first - second)
    if request.discordant is not None:
        if not request.discordant >= difference - 1e-12:
            problem = f"rates {100 * difference:g} points apart differ in at least {difference:g} of the pairs"
            raise SafevlaError(problem, remedy=f"Give --discordant {difference:g} or more.")
        shares = {"paired, as given": max(difference, request.discordant)}
    else:
        unrelated = first * (1 - second) + second * (1 - first)
        shares = {
            "paired, outcomes unrelated": unrelated,
            "paired, half as many differ": max(difference, unrelated / 2),
            "paired, one side always wins": difference,
        }
    designs = [_pair_design(name, discordant, difference, request) for name, discordant in shares.items()]
    if request.sequential:
        plans = [_sequential_design(name, discordant, difference, request) for name, discordant in shares.items()]
        designs += [plan for plan in plans if plan is not None]
    return designs


def _sequential_design(
    name: str, discordant: float, difference: float, request: SampleSizeRequest
) -> SampleDesign | None:
    """Return the paired design with a look after each pair; None where too many pairs would have to be simulated."""
    plan = statistics.sequential_paired_plan(difference, discordant, request.power, request.confidence)
    if plan is None:
        return None
    design = _make_design(name.replace("paired", "sequential"), discordant, plan.most, request)
    return msgspec.structs.replace(design, mean_episodes=plan.mean)


def _task_designs(request: SampleSizeRequest, first: float, second: float) -> Iterator[TaskDesign]:
    """Yield the design for tasks like these: of pairs if a discordant share is given, else of independent episodes.

    Nothing where the request names no number of tasks.
    """
    if request.tasks is None:
        return
    difference = abs(first - second)
    least = statistics.least_tasks(difference, request.task_spread, request.power, request.confidence)
    variances = {"independent episodes": first * (1 - first) + second * (1 - second)}
    if request.discordant is not None:
        variances = {"paired, as given": max(difference, request.discordant) - difference**2}
    for name, variance in variances.items():
        episodes = statistics.task_sample_size(
            difference, request.task_spread, request.tasks, variance, request.power, request.confidence
        )
        yield TaskDesign(
            name=name, tasks=request.tasks, spread=request.task_spread, episodes=episodes, least_tasks=least
        )


def _pair_design(name: str, discordant: float, difference: float, request: SampleSizeRequest) -> SampleDesign:
    """Return the paired design for a share of discordant pairs and a difference of the rates."""
    episodes = statistics.paired_sample_size(difference, discordant, request.power, request.confidence)
    return _make_design(name, discordant, episodes, request)


def _make_design(name: str, discordant: float | None, episodes: int, request: SampleSizeRequest) -> SampleDesign:
    """Return a design of so many episodes, with half the Wilson interval of a rate at the baseline."""
    half = statistics.half_width(request.baseline, episodes, request.confidence)
    return SampleDesign(name=name, discordant=discordant, episodes=episodes, half_width=half)
