"""Planned numbers of episodes: against statsmodels, and against the power that the planned n really has."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import NormalIndPower
from statsmodels.stats.proportion import power_proportions_2indep, proportion_effectsize

from safevla_bench.compare import sample_size
from safevla_bench.errors import SafevlaError
from safevla_bench.statistics import (
    exact_interval,
    half_width,
    least_tasks,
    mcnemar_p,
    paired_power,
    paired_sample_size,
    rate_power,
    rate_sample_size,
    sequential_paired_plan,
    sequential_rate_plan,
    task_sample_size,
    unpaired_sample_size,
    wilson_interval,
)

RATES = [(0.8, 0.75), (0.5, 0.4), (0.95, 0.9), (0.3, 0.6)]


@pytest.mark.parametrize(("first", "second"), RATES)
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_independent_episodes_reach_the_power_that_statsmodels_gives_them(first, second, power):
    n = unpaired_sample_size(first, second, power)
    assert power_proportions_2indep(first - second, second, n).power == pytest.approx(power, abs=0.01)
    arcsine = NormalIndPower().solve_power(proportion_effectsize(first, second), power=power, alpha=0.05)
    assert n == pytest.approx(arcsine, rel=0.03)


def by_every_outcome(n: int, difference: float, discordant: float) -> float:
    """The chance of p <= 5 %, by our own test on every possible pair of counts."""
    share_b, share_c = (discordant + difference) / 2, (discordant - difference) / 2
    chances = [
        stats.multinomial.pmf([b, c, n - b - c], n, [share_b, share_c, 1 - discordant])
        for b in range(n + 1)
        for c in range(n + 1 - b)
        if mcnemar_p(b, c) <= 0.05
    ]
    return float(np.sum(chances))


@pytest.mark.parametrize(("n", "difference", "discordant"), [(40, 0.2, 0.3), (30, 0.25, 0.25), (45, 0.1, 0.5)])
def test_the_power_of_mcnemars_test_is_its_share_of_all_outcomes(n, difference, discordant):
    assert paired_power(n, difference, discordant) == pytest.approx(by_every_outcome(n, difference, discordant))


@pytest.mark.parametrize(("difference", "discordant"), [(0.05, 0.1), (0.05, 0.35), (0.1, 0.2), (0.2, 0.2)])
def test_planned_pairs_reach_their_power_and_fewer_do_not(difference, discordant):
    n = paired_sample_size(difference, discordant)
    assert paired_power(n, difference, discordant) >= 0.8
    assert paired_power(int(0.9 * n) - 5, difference, discordant) < 0.8


def test_planned_pairs_find_the_difference_in_simulated_runs():
    n = paired_sample_size(0.1, 0.25)
    counts = np.random.default_rng(2).multinomial(n, [0.175, 0.075, 0.75], size=2000)
    found = np.mean([mcnemar_p(b, c) <= 0.05 for b, c, _ in counts.tolist()])
    assert found == pytest.approx(0.8, abs=0.03)


def test_half_a_width_is_half_of_wilsons():
    found = wilson_interval(160, 200)
    assert half_width(0.8, 200) == pytest.approx((found.high - found.low) / 2)


def test_a_plan_takes_the_harder_side_of_the_baseline():
    assert sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.05, baseline=0.8)).rates == (
        0.8,
        0.75,
    )
    assert sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.05, baseline=0.2)).rates == (
        0.2,
        0.25,
    )
    assert sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.3, baseline=0.9)).rates == (
        0.9,
        pytest.approx(0.6),
    )


def test_a_plan_shows_that_pairs_save_episodes_the_more_alike_they_are():
    designs = sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.05)).designs
    assert [one.discordant is None for one in designs] == [True, False, False, False]
    assert designs[1].episodes > designs[2].episodes > designs[3].episodes
    alone = sample_size.plan_sample_size(
        sample_size.SampleSizeRequest(difference=0.05, discordant=0.1, only_paired=True)
    ).designs
    assert [one.discordant for one in alone] == [0.1]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (sample_size.SampleSizeRequest(difference=0.7, baseline=0.5), "no rate is 70 points from 50 %"),
        (sample_size.SampleSizeRequest(difference=0.2, discordant=0.1), "differ in at least 0.2 of the pairs"),
    ],
)
def test_a_plan_that_cannot_be_says_why(wanted, problem):
    with pytest.raises(SafevlaError, match=problem):
        sample_size.plan_sample_size(wanted)


# One rate against a limit


@pytest.mark.parametrize(("n", "rate", "limit"), [(40, 0.98, 0.9), (60, 0.7, 0.9), (25, 0.05, 0.3), (30, 1.0, 0.9)])
def test_the_power_of_an_exact_interval_is_its_share_of_all_outcomes(n, rate, limit):
    intervals = [exact_interval(k, n) for k in range(n + 1)]
    decides = [one.low > limit if rate > limit else one.high < limit for one in intervals]
    assert rate_power(n, rate, limit) == pytest.approx(stats.binom.pmf(np.arange(n + 1), n, rate) @ decides)


@pytest.mark.parametrize(("rate", "limit"), [(1.0, 0.9), (0.95, 0.9), (0.8, 0.9), (0.02, 0.05), (0.3, 0.5)])
def test_the_planned_number_decides_with_its_power_and_a_tenth_fewer_does_not(rate, limit):
    n = rate_sample_size(rate, limit)
    assert rate_power(n, rate, limit) >= 0.8 > rate_power(int(0.85 * n) - 1, rate, limit)
    assert rate_sample_size(limit, limit) is None


def test_a_sequential_plan_decides_with_its_power_and_stops_earlier_on_average():
    fixed, plan = rate_sample_size(0.8, 0.9), sequential_rate_plan(0.8, 0.9)
    assert plan.mean < 1.1 * fixed < plan.most
    pairs, sequential = paired_sample_size(0.3, 0.42), sequential_paired_plan(0.3, 0.42)
    assert sequential.mean < pairs < sequential.most
    assert sequential_rate_plan(0.9, 0.9) is None
    for limit in (0.0, 1.0):
        with pytest.raises(SafevlaError, match="needs no plan"):
            sequential_rate_plan(0.5, limit)


# Tasks that differ


def test_planned_episodes_of_a_task_show_the_difference_in_simulated_runs():
    tasks, spread, variance = 12, 0.1, 0.3
    n = task_sample_size(0.12, spread, tasks, variance)
    generator = np.random.default_rng(4)
    means = 0.12 + generator.normal(0, np.sqrt(spread**2 + variance / n), (4000, tasks))
    assert np.mean(stats.ttest_1samp(means, 0, axis=1).pvalue <= 0.05) == pytest.approx(0.8, abs=0.03)


def test_where_tasks_differ_too_much_no_number_of_episodes_suffices():
    assert task_sample_size(0.1, 0.2, 10, 0.3) is None
    tasks = least_tasks(0.1, 0.2)
    assert task_sample_size(0.1, 0.2, tasks - 1, 0.3) is None
    assert task_sample_size(0.1, 0.2, tasks + 5, 0.3) is not None
    assert task_sample_size(0.1, 0.0, 10, 0.3) * 10 == pytest.approx((1.96 + 0.84) ** 2 * 0.3 / 0.1**2, rel=0.3)


def test_a_plan_for_tasks_like_these_knows_when_more_episodes_do_not_help():
    request = sample_size.SampleSizeRequest(difference=0.1, discordant=0.3, tasks=10, task_spread=0.2)
    (design,) = sample_size.plan_sample_size(request).task_designs
    assert (design.episodes, design.least_tasks) == (None, least_tasks(0.1, 0.2))
    more = sample_size.SampleSizeRequest(difference=0.1, discordant=0.3, tasks=50, task_spread=0.2)
    (design,) = sample_size.plan_sample_size(more).task_designs
    assert design.episodes == task_sample_size(0.1, 0.2, 50, 0.3 - 0.1**2)
    assert sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.1)).task_designs == ()


def test_a_sequential_plan_stands_beside_each_paired_one():
    plan = sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.2, sequential=True))
    fixed = [design for design in plan.designs if design.mean_episodes is None and design.discordant is not None]
    looking = [design for design in plan.designs if design.mean_episodes is not None]
    assert [design.discordant for design in looking] == [design.discordant for design in fixed]
    for one, other in zip(fixed, looking, strict=True):
        assert other.mean_episodes < 1.2 * one.episodes < 1.2 * other.episodes


def test_one_task_is_no_plan_for_others():
    with pytest.raises(SafevlaError, match="one task says nothing about others"):
        sample_size.plan_sample_size(sample_size.SampleSizeRequest(difference=0.1, tasks=1))


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"difference": np.nan}, "a difference of 0"),
        ({"difference": 1e-300}, "cannot be planned for"),
        ({"difference": 0.1, "power": 1.0}, "a power of 1 is never reached"),
        ({"difference": 0.1, "power": np.nan}, "a power of nan"),
        ({"difference": 0.1, "confidence": 1.0}, "a confidence of 1"),
        ({"difference": 0.1, "discordant": np.nan}, "differ in at least 0.1 of the pairs"),
        ({"difference": 0.1, "tasks": 5, "task_spread": np.nan}, "spread is nan"),
        ({"difference": 0.1, "tasks": 5, "task_spread": np.inf}, "spread is inf"),
        ({"difference": 0.1, "tasks": 5, "task_spread": -0.1}, "spread is -0.1"),
    ],
)
def test_a_plan_without_end_is_refused(wanted, problem):
    with pytest.raises(SafevlaError, match=problem):
        sample_size.plan_sample_size(sample_size.SampleSizeRequest(**wanted))


WRONG_DIFFERENCES = [0.0, np.nan, np.inf, 1.2, -1.2]
WRONG_SHARES = [-0.1, 1.1, np.nan, np.inf]


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        *((lambda wrong: least_tasks(wrong, 0.1), wrong) for wrong in WRONG_DIFFERENCES),
        *((lambda wrong: task_sample_size(wrong, 0.1, 5, 0.3), wrong) for wrong in WRONG_DIFFERENCES),
        *((lambda wrong: paired_sample_size(wrong, 0.3), wrong) for wrong in [*WRONG_DIFFERENCES, 0.4]),
        *((lambda wrong: sequential_paired_plan(wrong, 0.3), wrong) for wrong in [*WRONG_DIFFERENCES[1:], 0.4]),
        *((lambda wrong: unpaired_sample_size(0.5, wrong), wrong) for wrong in [0.5, *WRONG_SHARES]),
        *((lambda wrong: rate_sample_size(0.5, wrong), wrong) for wrong in WRONG_SHARES),
        *((lambda wrong: sequential_rate_plan(0.5, wrong), wrong) for wrong in WRONG_SHARES),
        *((lambda wrong: half_width(wrong, 10), wrong) for wrong in WRONG_SHARES),
        *((lambda wrong: task_sample_size(0.1, 0.1, wrong, 0.3), wrong) for wrong in [0, 1, -1]),
        *((lambda wrong: task_sample_size(0.1, 0.1, 5, wrong), wrong) for wrong in [-0.1, np.nan, np.inf]),
    ],
)
def test_a_number_that_no_plan_can_have_is_refused(plan, wrong):
    with pytest.raises(SafevlaError):
        plan(wrong)


def test_the_least_number_of_tasks_is_the_first_that_has_the_power():
    """So many tasks have the power, one fewer has not; a difference of a hundredth of a point is planned for too."""
    for difference, spread in [(0.1, 0.2), (0.3, 0.05), (0.05, 0.3), (0.2, 0.2)]:
        tasks = least_tasks(difference, spread)
        assert task_sample_size(difference, spread, tasks, 0.0) == 1
        assert tasks == 2 or task_sample_size(difference, spread, tasks - 1, 0.0) is None
    assert least_tasks(1e-4, 0.1) == pytest.approx((1.96 + 0.8416) ** 2 * 1e6, rel=1e-3)


def test_pairs_beyond_a_million_are_those_of_the_normal_approximation():
    assert paired_sample_size(0.001, 0.3) == pytest.approx((1.96 + 0.8416) ** 2 * 0.3 / 1e-6, rel=1e-3)
