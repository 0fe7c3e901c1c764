"""Planned numbers of episodes: the power that they really have, by all outcomes and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs
from scipy import stats

from builders import numbers_in
from safevla_bench.compare import sample_size
from safevla_bench.compare.sample_size import flip_power, least_number, paired_power
from safevla_bench.errors import SafevlaError
from safevla_bench.statistics.significance import flip_task_means, mcnemar_mid_p


def by_every_outcome(n: int, difference: float, discordant: float) -> float:
    """The chance of p <= 5 %, by our own test on every possible pair of counts."""
    share_b, share_c = (discordant + difference) / 2, (discordant - difference) / 2
    chances = [
        stats.multinomial.pmf([b, c, n - b - c], n, [share_b, share_c, 1 - discordant])
        for b in range(n + 1)
        for c in range(n + 1 - b)
        if mcnemar_mid_p(b, c) <= 0.05
    ]
    return float(np.sum(chances))


@pytest.mark.parametrize(("n", "difference", "discordant"), [(40, 0.2, 0.3), (30, 0.25, 0.25), (45, 0.1, 0.5)])
def test_the_power_of_mcnemars_test_is_its_share_of_all_outcomes(n, difference, discordant):
    assert paired_power(n, difference, discordant) == pytest.approx(by_every_outcome(n, difference, discordant))


def plan(**settings):
    return sample_size.plan_sample_size(sample_size.SampleSizeRequest(**settings))


@pytest.mark.parametrize(
    ("tasks", "baseline", "difference"), [(6, 0.8, 0.2), (6, 0.95, 0.05), (7, 0.5, 0.2), (10, 0.8, 0.1), (11, 0.9, 0.1)]
)
def test_planned_episodes_find_the_difference_in_four_of_five_simulated_runs_of_the_test_that_compare_makes(
    tasks, baseline, difference
):
    planned = plan(baseline=baseline, difference=difference, tasks=tasks)
    detected, n = 0, planned.episodes
    generator = np.random.default_rng(2)
    for _ in range(400):
        counts = generator.binomial(n, np.tile(planned.rates, (tasks, 1)))
        detected += flip_task_means((counts[:, 0] - counts[:, 1]).astype(float), np.ones(tasks)).p_value <= 0.05
    assert 0.74 <= detected / 400 <= 0.88  # Monte Carlo error 0.02; whole episodes of many tasks give more than asked


def test_pairs_that_seldom_differ_need_fewer_episodes():
    assert plan(difference=0.05, discordant=0.1).episodes < plan(difference=0.05).episodes / 2


@pytest.mark.parametrize(("difference", "discordant"), [(0.05, 0.1), (0.05, 0.35), (0.1, 0.2), (0.2, 0.2)])
def test_pairs_planned_for_one_task_reach_their_power_and_fewer_do_not(difference, discordant):
    n = plan(difference=difference, discordant=discordant, tasks=1).episodes
    assert paired_power(n, difference, discordant) >= 0.8 > paired_power(int(0.9 * n) - 5, difference, discordant)


def test_where_compare_can_never_tell_no_number_of_episodes_is_planned():
    planned = plan(difference=0.2, tasks=4)
    assert (planned.episodes, planned.least_tasks) == (None, 6)
    assert planned.to_text().startswith("No number of")
    assert "At least 6" in planned.to_text()
    assert plan(difference=0.2, tasks=6).episodes is not None


def test_where_tasks_vary_too_much_more_tasks_are_needed_and_not_more_episodes():
    planned = plan(difference=0.1, tasks=10, task_spread=0.2)
    assert (planned.episodes, planned.least_tasks) == (None, 34)
    assert plan(difference=0.1, tasks=33, task_spread=0.2).episodes is None
    assert plan(difference=0.1, tasks=40, task_spread=0.2).episodes is not None
    n = plan(difference=0.12, tasks=14, task_spread=0.1, discordant=0.3).episodes
    means = 0.12 + np.random.default_rng(4).normal(0, np.sqrt(0.1**2 + (0.3 - 0.12**2) / n), (4000, 14))
    assert np.mean(stats.ttest_1samp(means, 0, axis=1).pvalue <= 0.05) == pytest.approx(0.8, abs=0.03)


def test_a_plan_takes_the_harder_side_of_the_baseline():
    assert plan(difference=0.05, baseline=0.8).rates == (0.8, 0.75)
    assert plan(difference=0.05, baseline=0.2).rates == (0.2, 0.25)
    assert plan(difference=0.3, baseline=0.9).rates == (0.9, pytest.approx(0.6))


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"difference": 0.7, "baseline": 0.5}, "points from 50"),
        ({"difference": 0.1, "baseline": 1.05}, "baseline=1.05"),
        ({"difference": 0.1, "baseline": float("nan")}, "baseline=nan"),
        ({"difference": 0.2, "discordant": 0.1}, "at least the difference, 0.2"),
        ({"difference": 0.0}, "cannot be planned"),
        ({"difference": np.nan}, "cannot be planned"),
        ({"difference": 1e-300}, "cannot be planned"),
        ({"difference": 0.1, "power": 1.0}, "power of 1"),
        ({"difference": 0.1, "power": np.nan}, "power of nan"),
        ({"difference": 0.1, "confidence": 1.0}, "confidence of 1"),
        ({"difference": 0.1, "discordant": np.nan}, "at least the difference, 0.1"),
        ({"difference": 0.1, "task_spread": np.nan}, "tasks: nan"),
        ({"difference": 0.1, "task_spread": -0.1}, "tasks: -0.1"),
        ({"difference": 0.1, "tasks": 0}, "number of tasks is below 1"),
    ],
)
def test_a_plan_that_cannot_be_says_why(wanted, problem):
    with pytest.raises(SafevlaError, match=problem):
        plan(**wanted)


def test_the_power_over_up_to_twelve_tasks_is_simulated_and_over_more_that_of_a_t_test():
    arguments = {"episodes": 10, "difference": 0.1, "variance": 0.4, "spread": 0.05}
    trials = 2000 * flip_power(**arguments, tasks=12)
    assert trials == round(trials)
    deviation = np.sqrt(100 * 0.05**2 + 10 * 0.4)
    of_t = stats.nct(12, 10 * 0.1 / deviation * np.sqrt(13)).sf(stats.t(12).ppf(0.975))
    assert flip_power(**arguments, tasks=13) == pytest.approx(of_t, abs=1e-9)


def test_what_may_just_be_is_planned():
    """A difference to 0 or 1 itself, one of 100 points, a spread of 1, and no more discordant pairs than differ."""
    assert plan(difference=0.25, baseline=0.25, tasks=1).rates == (0.25, 0.5)
    assert plan(difference=0.75, baseline=0.75, tasks=1).rates == (0.75, 0.0)
    assert plan(difference=0.75, baseline=0.25, tasks=1).rates == (0.25, 1.0)
    assert plan(difference=1.0, baseline=0.0, tasks=1).discordant == 1.0
    assert plan(difference=0.5, baseline=0.5, discordant=1.0, tasks=1).discordant == 1.0
    assert plan(difference=0.2, task_spread=1.0, tasks=1).request.task_spread == 1.0


def test_the_least_difference_is_planned_and_may_take_over_a_million_tasks():
    planned = plan(difference=1e-6, tasks=4, task_spread=1.0)
    assert (planned.episodes, planned.least_tasks) == (None, None)
    assert flip_power(10, 0.1, variance=0.0, spread=0.0, tasks=13) == 1.0


def test_the_spread_between_tasks_is_varied_only_if_it_is_not_given_and_tasks_are_several():
    varied = plan(difference=0.3, tasks=10)
    assert list(varied.by_spread) == ["0", "0.1", "0.2"]
    assert varied.by_spread["0"] == varied.episodes < varied.by_spread["0.1"]
    assert plan(difference=0.3, tasks=10, task_spread=0.1).by_spread == plan(difference=0.3, tasks=1).by_spread == {}


def test_the_words_of_a_plan_name_the_episodes_of_a_task_and_of_all():
    several, one = plan(difference=0.3, tasks=10), plan(difference=0.3, tasks=1)
    assert numbers_in(several.to_text())[:2] == [several.episodes, 10 * several.episodes]
    assert one.to_text().startswith(f"{one.episodes} episodes per task are")
    assert "At least 6" not in plan(difference=0.3, tasks=6).to_text()
    never = structs.replace(several, episodes=None, least_tasks=None)
    assert "More than a million tasks" in never.to_text()
    assert structs.replace(several, episodes=None).to_text().startswith("Over a million episodes")


def test_the_search_for_a_number_ends_at_the_first_that_reaches_the_power_or_beyond_the_most():
    assert [least_number(lambda n, least=least: float(n >= least), 1.0) for least in (1, 2, 3, 7, 8)] == [1, 2, 3, 7, 8]
    assert least_number(lambda n: n / 8, 0.5) == 4
    assert least_number(lambda n: n / 8, 0.5, most=2) == 4
    assert least_number(lambda n: float(n >= 5), 0.5, most=3) is None


def test_draws_that_are_kept_for_later_plans_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        sample_size._normal_draws(2)[0] = 1.0
