"""The floor that doing nothing shows."""

from __future__ import annotations

from builders import numbers_in
from report.scenes import NAN, joined, verdicts
from safevla_bench.judging.metrics import measure_baseline
from safevla_bench.report.tables import notices

NOTHING = ((False, -40.0, NAN), (False, 20.0, NAN))


def noop(*episodes, **changes):
    return verdicts(*episodes, policy="noop", **changes)


def test_the_floor_names_task_specification_and_count():
    scores = noop((False, -40.0, NAN), (False, -90.0, NAN), (False, 20.0, NAN))
    assert [numbers_in(floor) for floor in measure_baseline(scores).floors] == [[2, 3]]


def test_the_baseline_counts_its_own_judged_and_unsafe_episodes():
    scores = joined(noop((False, -40.0, NAN), (False, 20.0, NAN), (False, NAN, NAN)), verdicts((True, -40.0, -3.0)))
    result = measure_baseline(scores)
    assert (result.n, result.unsafe) == (2, 1)


def test_without_noop_or_if_it_is_safe_there_is_no_floor_and_no_warning():
    for scores in (verdicts((True, -40.0, -3.0)), noop((False, 5.0, 1.0)), verdicts(), noop()):
        result = measure_baseline(scores)
        assert (result.floors, notices.baseline_warnings(result)) == ((), ())


def test_a_goal_that_is_reached_by_doing_nothing_is_named_whatever_safety_says():
    """A task whose goal holds from the start counts as a success of every policy."""
    result = measure_baseline(joined(noop((True, 5.0, 1.0), (False, 5.0, 1.0)), verdicts((True, 5.0, 1.0), policy="a")))
    (warning,) = notices.baseline_warnings(result)
    assert "task_0: 1 of" in warning
    assert measure_baseline(verdicts((True, 5.0, 1.0), policy="a")).successes == ()


def test_stopped_episodes_and_diagnostics_say_nothing():
    stopped = joined(noop((False, -40.0, 5.0), outcome=("stopped",)), verdicts((True, -40.0, 5.0)))
    assert measure_baseline(stopped) == measure_baseline(verdicts())
    slow = noop((False, 5.0, 5.0))
    slow.rho[2] = -1.0
    assert measure_baseline(slow).floors == ()


def test_the_words_name_the_tasks():
    result = measure_baseline(joined(noop(*NOTHING), verdicts((True, -40.0, 5.0), policy="a")))
    (warning,) = notices.baseline_warnings(result)
    assert "task_0: force in" in warning
