"""Runs in the order of their labels: the numbers are those of the tables, and words follow from intervals alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.scenes import crashed_in, entrant, run_headers, without_verdict
from report.scenes import joined, verdicts
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.policy_results import split_by_policy as split
from safevla_bench.compare.series import (
    NUMBERS,
    compare_series,
    find_series,
    measure_order,
    measure_trends,
    read_label,
)
from safevla_bench.errors import RunError
from safevla_bench.judging.metrics import aggregate, cells
from safevla_bench.judging.rates import SAFETY, SR
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.report.tables.series import describe_series, describe_trends, series_table

TASKS, STATES = 10, 10


def checkpoint(name, sr, safety, *, suite="libero-goal", tasks=TASKS, states=STATES, first=0):
    """Scores of one run: the first share of each task's states succeeds, the last share is safe."""
    places = [(task, state) for task in range(tasks) for state in range(states)]
    episodes = [
        (state < round(sr * states), 1.0 if state >= states - round(safety * states) else -250.0, 1.0)
        for _, state in places
    ]
    return verdicts(
        *episodes,
        policy=name,
        suite=suite,
        episode_id=tuple(f"{suite}/{task}/{state}" for task, state in places),
        task_id=tuple(f"task_{first + task}" for task, _ in places),
    )


def results(*runs):
    scores = joined(*runs)
    return split(scores, run_headers(scores))


def describe(*runs):
    return " ".join(describe_series(compare_series(results(*runs))))


# Labels


@pytest.mark.parametrize(
    ("name", "value", "series"),
    [
        ("1000", 1000.0, ""),
        ("20k", 20000.0, ""),
        ("2K", 2000.0, ""),
        ("1.5M", 1.5e6, ""),
        ("1e5", 1e5, ""),
        ("1,000,000", 1e6, ""),
        ("ckpt-10,000", 10000.0, "ckpt-…"),
        ("-0.5", -0.5, ""),
        ("-20", -20.0, ""),
        ("careful-step-1000", 1000.0, "careful-step-…"),
        ("pi0.5-ft (3 epochs)", 3.0, "pi0.5-ft (… epochs)"),
        ("model-7b-20k", 20000.0, "model-7b-…"),
        ("7b", 7.0, "…b"),
        ("epoch=3-step=4000", 4000.0, "epoch=…-step=…"),
        ("epochs_3_seed_4", 4.0, "epochs_3_seed_…"),
    ],
)
def test_the_label_is_the_last_number_and_the_text_around_it_the_series(name, value, series):
    label = read_label(name)
    assert (label.value, label.series) == (value, series)


@given(st.floats(0, 1e12, allow_nan=False))
def test_a_number_as_python_prints_it_is_read_back(number):
    assert read_label(repr(number)).value == number


def test_a_name_without_a_number_has_no_label():
    assert read_label("careful") is read_label("") is None


def test_only_names_that_count_training_make_a_series_by_themselves():
    """Version numbers and seeds are not an order of training, and nobody asked for one."""

    def select(*names):
        return [result.name for result in find_series(results(*(checkpoint(name, 0.5, 0.5) for name in names)))]

    assert select("pi0", "pi0.5", "student-1", "student-2", "noop") == []
    assert select("1000", "2000", "noop", "step-5") == ["1000", "2000"]
    assert select("a_ckpt_1", "a_ckpt_2", "3 epochs", "4 epochs") == ["a_ckpt_1", "a_ckpt_2", "3 epochs", "4 epochs"]
    assert select("footsteps-1", "footsteps-2") == []
    assert select("epoch=3-step=4000", "epoch=4-step=5000") == ["epoch=3-step=4000", "epoch=4-step=5000"]


# Numbers


def test_numbers_are_those_of_the_cells_and_pooled_those_of_all_episodes():
    runs = [checkpoint(str(k), k / 10, 1 - k / 10, suite=suite) for k in (2, 9) for suite in ("a", "b")]
    compared = compare_series(results(*runs))
    assert compared.suites == ("a", "b", None)
    all_cells = {(cell.policy, cell.suite): cell for cell in cells(joined(*runs))}
    for curve in compared.curves:
        for point in curve.points:
            own = [run for run in runs if run.policy[0] == point.policy]
            cell = aggregate(joined(*own)) if curve.suite is None else all_cells[point.policy, curve.suite]
            assert point.numbers == {metric: cell.number(metric) for metric in NUMBERS}
            assert point.n == cell.n


def test_gains_are_the_comparisons_with_the_first_at_a_level_that_all_share():
    first, middle, last = results(*(checkpoint(str(k), k / 10, 0.5) for k in (1, 4, 8)))
    (curve,) = compare_series([last, first, middle]).curves
    assert [point.label for point in curve.points] == [1, 4, 8]
    assert curve.confidence == pytest.approx(1 - 0.05 / 4)
    options = ComparisonOptions(metrics=("sr", "safety"), confidence=curve.confidence)
    for point, other in zip(curve.points[1:], (middle, last), strict=True):
        sr, safety = compare_policies([other, first], options).scopes[-1].metrics
        for gain, metric in ((point.gains[SR], sr), (point.gains[SAFETY], safety)):
            (expected,) = metric.differences
            assert (gain.difference, gain.ci, gain.ci_by_task) == (
                expected.difference,
                expected.ci,
                expected.ci_by_task,
            )
    assert curve.points[0].gains == {}


def test_the_order_of_sources_changes_nothing():
    runs = results(*(checkpoint(str(k), k / 10, 0.5) for k in (1, 4, 8)))
    assert compare_series(runs) == compare_series(runs[::-1])


def test_what_has_no_verdict_is_a_dash_and_never_a_zero():
    silent = [
        replace(run, state=np.zeros_like(run.state), rho=np.full_like(run.rho, np.nan))
        for run in (checkpoint("1", 0.1, 1.0), checkpoint("2", 0.9, 1.0))
    ]
    compared = compare_series(results(*silent))
    assert compared.curves[0].points[1].numbers[SAFETY].value is None
    row = series_table(compared).rows[1]
    assert [cell.text for cell in row[3:6]] == ["—"] * 3
    assert NO_VERDICT in row[3].detail
    assert "It is unknown whether" in " ".join(describe_series(compared))


# Words


def test_success_before_safety_takes_intervals_that_do_not_overlap_and_a_later_rise():
    text = describe(checkpoint("1", 0.0, 0.3), checkpoint("2", 0.8, 0.3), checkpoint("3", 0.9, 0.9))
    assert text.startswith("Over the checkpoints")
    assert "Safety rises" in text
    assert "at 2, the gain" in text
    assert "than 1: 3." in text


def test_a_safety_that_never_rises_is_not_a_later_one():
    text = describe(checkpoint("1", 0.0, 0.5), checkpoint("2", 0.8, 0.5))
    assert "rises before Safety" in text
    assert "safer than 1." in text


def test_a_safety_that_falls_is_named():
    text = describe(checkpoint("1", 0.0, 0.9), checkpoint("2", 0.8, 0.2))
    assert "lower Safety than" in text


def test_a_policy_that_does_nothing_is_safe_and_cannot_get_safer():
    text = describe(checkpoint("1", 0.0, 1.0), checkpoint("2", 0.8, 1.0))
    assert "cannot rise" in text
    assert "to be safer" not in text


def test_safety_can_be_first_too():
    text = describe(checkpoint("1", 0.1, 0.1), checkpoint("2", 0.1, 0.9), checkpoint("3", 0.9, 0.9))
    assert "rises before success" in text


def test_both_at_once_is_open():
    assert "Success at 2" in describe(checkpoint("1", 0.1, 0.1), checkpoint("2", 0.8, 0.8))


def test_a_safety_that_alone_rises_is_found_where_success_has_risen_nowhere():
    """The search for risen Safety goes over all runs, not only those where success has risen."""
    first, last = results(checkpoint("1", 0.3, 0.3), checkpoint("2", 0.5, 0.62))
    (curve,) = compare_series([first, last]).curves
    gains = curve.points[1]
    assert gains.gains[SAFETY].ci[0] > 0
    text = describe(checkpoint("1", 0.3, 0.3), checkpoint("2", 0.5, 0.62))
    assert "than 1: 2." in text


def test_equal_runs_say_nothing():
    assert describe(checkpoint("1", 0.5, 0.5), checkpoint("2", 0.5, 0.5)).startswith("No run is")


def test_few_tasks_say_nothing_of_others():
    text = describe(checkpoint("1", 0.0, 0.5, tasks=3, states=40), checkpoint("2", 0.9, 0.5, tasks=3, states=40))
    assert "about 3 tasks" in text


# What is not a series


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ((("1000", 0), ("base", 0)), "policy name 'base'"),
        ((("1000", 0),), "'1000' is a"),
        ((("a-1", 0), ("a-2", 0), ("b-1", 0)), "'b-1' is a"),
        ((("1000", 0), ("1k", 0)), "label 1000: '1000'"),
        ((("1", 0), ("2", 10)), "in common with the first"),
    ],
)
def test_what_makes_no_series_is_named_with_a_remedy(runs, problem):
    with pytest.raises(RunError, match=problem) as caught:
        compare_series(results(*(checkpoint(name, 0.5, 0.5, first=first) for name, first in runs)))
    assert caught.value.remedy


def test_runs_of_other_episodes_are_warned_of_and_compared_on_common_tasks():
    compared = compare_series(results(checkpoint("1", 0.1, 0.5), checkpoint("2", 0.9, 0.5, tasks=5)))
    assert "have different episodes" in compared.warnings[0]
    assert not compared.curves[0].paired
    assert compared.curves[0].points[1].gains[SR].tasks == 5


def test_a_suite_that_only_one_series_ran_is_not_pooled_with_others():
    compared = compare_series(
        results(
            *(checkpoint(f"a-{k}", 0.5, 0.5, suite=suite) for k in (1, 2) for suite in ("x", "y")),
            *(checkpoint(f"b-{k}", 0.5, 0.5, suite="x") for k in (1, 2)),
        )
    )
    assert [(curve.suite, curve.series) for curve in compared.curves] == [
        ("x", "a-…"), ("x", "b-…"), ("y", "a-…"), (None, "a-…"),
    ]  # fmt: skip
    assert [(curve.suite, curve.series) for curve in compared.pooled.curves] == [(None, "a-…"), ("x", "b-…")]
    assert [curve.series for curve in compared.select_suite("x")] == ["a-…", "b-…"]
    assert compared.select_suite("z") == []


def test_a_suite_of_the_first_run_alone_has_one_point_and_the_full_confidence():
    runs = [checkpoint("1", 0.5, 0.5, suite=suite) for suite in ("x", "y")]
    _, alone, _ = compare_series(results(*runs, checkpoint("2", 0.5, 0.5, suite="x"))).curves
    assert (alone.suite, len(alone.points), alone.paired, alone.trends) == ("y", 1, True, ())
    assert alone.confidence == pytest.approx(0.95)


def test_a_violation_that_stopped_an_episode_leaves_a_run_its_safety_alone():
    first, last = results(checkpoint("1", 0.5, 0.5), checkpoint("2", 0.5, 0.5))
    stops = np.arange(len(last)) == 5
    last = replace(last, is_counted=~stops, stopped_on_violation=stops, unsafe=last.unsafe | stops)
    numbers = compare_series([first, last]).curves[0].points[1].numbers
    assert [numbers[metric].value is None for metric in NUMBERS] == [True, False, True, True]


def test_a_change_of_safety_that_unknown_episodes_could_undo_is_undecided():
    first, last = results(checkpoint("1", 0.1, 0.9), checkpoint("2", 0.9, 0.5))
    unknown = without_verdict(first, *(k for k in range(100) if k % 10 >= 5))
    certain, open_text = (" ".join(describe_series(compare_series([run, last]))) for run in (first, unknown))
    assert "lower Safety than 1: 2" in certain
    assert "rises before Safety" in certain
    assert "Whether Safety at 2 differs from 1 is undecided" in open_text
    assert "lower Safety" not in open_text
    assert "rises before" not in open_text


def test_what_is_said_of_a_series_begins_with_why_its_gains_are_not_of_pairs():
    scores = joined(checkpoint("1", 0.1, 0.5), checkpoint("2", 0.9, 0.5))
    headers = run_headers(scores)
    (identity,) = compare_series(split(scores, headers)).warnings
    blank = [msgspec.structs.replace(header, init_state_index=None, seed=None) for header in headers]
    unpaired, other, seeds = compare_series(split(scores, blank)).warnings
    assert ("cannot be paired" in unpaired, other, "seed" in seeds) == (True, identity, True)


def test_episodes_that_do_not_say_their_start_are_independent_and_that_is_said():
    scores = joined(checkpoint("1", 0.1, 0.5), checkpoint("2", 0.9, 0.5))
    blank = [msgspec.structs.replace(header, init_state_index=None) for header in run_headers(scores)]
    compared = compare_series(split(scores, blank))
    assert not compared.curves[0].paired
    assert any("cannot be paired" in line for line in compared.warnings)


@pytest.mark.parametrize(
    ("crashes", "said"), [(0, "Safety rises ("), (2, "Safety rises ("), (20, "Safety is undecided")]
)
def test_crashes_of_checkpoints_are_counted_and_may_leave_a_trend_undecided(crashes, said):
    """Twenty crashes of the last of three checkpoints could all be unsafe."""
    runs = [entrant(f"step-{k}", [1] * 40, [1] * safe + [0] * (40 - safe)) for k, safe in enumerate((8, 16, 24))]
    runs[2] = crashed_in(runs[2], *range(crashes))
    trends = measure_order(runs)
    safety = trends[1]
    assert (safety.unknown, safety.states) == (crashes, 40 - crashes)
    assert (safety.p_at_worst is None) == (not crashes)
    (sentence,) = describe_trends(trends)
    assert said in sentence
    assert (f"{crashes} episodes" in sentence) == bool(crashes)


def safe_in_first(counts, unjudged, in_run, filled=None):
    """Checkpoints, safe in this many first of 40 episodes; some of one run have no verdict, or this one."""
    runs = [entrant(f"step-{k}", [1] * 40, np.arange(40) < count) for k, count in enumerate(counts)]
    if filled is None:
        runs[in_run] = without_verdict(runs[in_run], *unjudged)
    else:
        runs[in_run].unsafe[list(unjudged)] = not filled
    return runs


@pytest.mark.parametrize(
    ("counts", "in_run", "unjudged", "worst"),
    [
        ((8, 14, 20), 1, range(30, 38), True),
        ((8, 12, 16, 20), 1, range(30, 38), True),
        ((8, 12, 16, 20), 2, range(8), False),
        ((20, 16, 12, 8), 1, range(8), False),
        ((20, 16, 12, 8), 2, range(30, 38), True),
    ],
)
def test_what_is_unknown_counts_against_a_trend_by_the_half_of_the_runs_that_it_is_in(counts, in_run, unjudged, worst):
    best, at_worst = (
        measure_order(safe_in_first(counts, unjudged, in_run, filled))[1].p_adjusted for filled in (not worst, worst)
    )
    safety = measure_order(safe_in_first(counts, unjudged, in_run))[1]
    assert (safety.p_at_worst, at_worst > best) == (at_worst, True)


@pytest.mark.parametrize("counts", [(8, 9, 10), (10, 10, 10)])
def test_a_trend_that_what_is_unknown_may_reverse_or_that_is_none_has_no_evidence_at_worst(counts):
    runs = safe_in_first(counts, range(8), 2)
    assert measure_order(runs)[1].p_at_worst == 1.0


def test_safety_has_no_trend_if_a_specification_did_not_judge_all_runs():
    runs = [entrant(f"step-{k}", [1] * 8, np.arange(8) < k) for k in range(3)]
    runs[0] = replace(runs[0], judged_clauses=(("s", "torque"),))
    runs[2] = replace(runs[2], missing_clauses=(("s", "torque"),))
    assert [trend.metric for trend in measure_order(runs)] == ["sr"]


def test_success_has_no_trend_if_a_violation_stopped_an_episode():
    runs = [entrant(f"step-{k}", [1] * 8, np.arange(8) < k) for k in range(3)]
    runs[1] = replace(runs[1], stopped_on_violation=np.arange(8) == 5, is_counted=np.arange(8) != 5)
    assert [trend.metric for trend in measure_order(runs)] == ["safety"]


def test_a_trend_takes_three_runs_of_one_protocol_and_policies_that_are_all_of_one_series():
    first, second, third = (entrant(f"step-{k}", [1] * 8, np.arange(8) < k) for k in range(3))
    assert len(list(measure_trends([first, second, third], [{"wait": 1}] * 3))) == 2
    assert list(measure_trends([first, second, third], [{"wait": 1}, {"wait": 2}])) == []
    assert list(measure_trends([first, second])) == []
    others = [replace(run, name=f"other-{run.name}") for run in (first, second, third)]
    assert measure_order([first, second, third, replace(third, name="noop")]) == []
    assert measure_order([first, second, third, *others]) == []
    assert len(measure_order([first, second, third])) == 2
    assert measure_order([first, second, third, replace(third, name="step-02")]) == []


def test_a_series_with_missing_episodes_has_no_verdict_and_no_trend():
    runs = results(*(checkpoint(f"{k}", 0.1 * k, 0.2 * k) for k in (1, 2, 4)))
    assert "higher Safety than 1" in " ".join(describe_series(compare_series(runs)))
    lost = [replace(run, uncounted=("12 invalid episodes left out",)) for run in runs]
    text = " ".join(describe_series(compare_series(lost)))
    assert "No verdict on the gains over 1: " in text
    assert "12 invalid episodes left out" in text
    assert "higher Safety" not in text
    assert len(list(measure_trends(runs))) == 2
    assert list(measure_trends(lost)) == []
