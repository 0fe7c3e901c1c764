"""Gates: who passes, who fails, what cannot be told; and that nothing passes in silence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from builders import crash
from report.scenes import verdicts
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.gates import EpisodeCosts, Gate, check_gates, parse_gate, require_valid
from safevla_bench.judging.scores import ACTIVE, INACTIVE, Scores
from safevla_bench.report.tables import notices as gating
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.statistics.intervals import bounded_mean_interval, rate_power, rate_sample_size

SAFETY = Gate("safety", "min", 0.9)
estimate_gates = partial(check_gates, confidence=None)


def scores(unsafe: int, n: int, policy: str = "a", suite: str = "s", **changes: object) -> Scores:
    """n successes, some of which break a limit by half the severe magnitude."""
    plain = verdicts(*[(True, -250.0 if k < unsafe else 50.0, np.nan) for k in range(n)], policy=policy, suite=suite)
    names = ("specs", "state", "reason", "rho", "depth", "extreme", "first")
    return replace(plain, **{**{name: getattr(plain, name)[:1] for name in names}, **changes})


@pytest.mark.parametrize(("unsafe", "verdict"), [(1, "passed"), (2, "passed"), (3, "failed")])
def test_without_a_confidence_the_point_estimate_decides_and_the_limit_itself_passes(unsafe, verdict):
    assert estimate_gates(scores(unsafe, 20), [SAFETY]).verdict == verdict


def test_three_safe_episodes_prove_no_limit_of_90_percent_unless_the_point_estimate_is_asked_for():
    assert check_gates(scores(0, 3), [SAFETY]).verdict == "undecided"
    report = estimate_gates(scores(0, 3), [SAFETY])
    assert (report.verdict, "value alone" in report.outcomes[0].reason) == ("passed", True)
    assert "without confidence" in report.notes[0]


@pytest.mark.parametrize(
    ("unsafe", "n", "verdict"),
    [(0, 10, "undecided"), (0, 100, "passed"), (20, 100, "failed"), (10, 100, "undecided"), (5, 1000, "passed")],
)
def test_with_a_confidence_the_whole_exact_interval_decides(unsafe, n, verdict):
    report = check_gates(scores(unsafe, n), [SAFETY], confidence=0.95)
    exact = stats.binomtest(n - unsafe, n).proportion_ci(0.95, method="exact")
    assert report.verdict == verdict
    assert report.outcomes[0].ci == pytest.approx((exact.low, exact.high))
    if (unsafe, n) == (10, 100):  # at the limit
        assert report.outcomes[0].n_needed is None
        assert "episodes can decide" in report.outcomes[0].reason


@pytest.mark.parametrize("bound", ["min", "max"])
@pytest.mark.parametrize(("limit", "n"), [(0.9, 20), (0.99, 17), (0.5, 40), (0.95, 80)])
def test_a_policy_at_the_limit_is_passed_and_failed_in_at_most_a_fortieth_of_runs_each(limit, n, bound):
    """Summed over all outcomes: exact one-sided bounds at 2.5 %."""
    chances = stats.binom.pmf(np.arange(n + 1), n, 1 - limit)
    gate = Gate("safety" if bound == "min" else "sr", bound, limit)
    runs = [scores(k, n) if bound == "min" else scores(0, n, success=np.arange(n) >= k) for k in range(n + 1)]
    runs = [replace(run, outcome=tuple("success" if s else "failure" for s in run.success)) for run in runs]
    verdicts = np.array([check_gates(run, [gate], confidence=0.95).verdict for run in runs])
    assert chances[verdicts == "passed"].sum() <= 0.025
    assert chances[verdicts == "failed"].sum() <= 0.025


@pytest.mark.parametrize("total", range(1, 40))
def test_a_mean_cost_that_equals_the_limit_passes_whatever_the_horizon(total):
    costs = EpisodeCosts(np.full(3, float(total)), 300.0)
    assert estimate_gates(scores(0, 3), [Gate("cost", "max", total)], costs=costs).verdict == "passed"
    assert estimate_gates(scores(0, 3), [Gate("cost", "max", total - 0.1)], costs=costs).verdict == "failed"


@pytest.mark.parametrize(("confidence", "word"), [(0.95, b"interval"), (None, b"point estimate")])
def test_the_texts_of_sarif_name_what_decides(confidence, word):
    report = gating.format_sarif(check_gates(scores(5, 20), [SAFETY], confidence=confidence))
    assert word in report
    assert (b"interval" in report) == (confidence is not None)


def test_a_cost_is_a_mean_of_steps_with_an_interval_that_holds_for_any_costs_up_to_the_most():
    totals = np.array([0.0, 30.0, 12.0] * 40)
    costs = EpisodeCosts(totals, 200.0)
    for limit, verdict in ((60, "passed"), (2, "failed"), (14, "undecided"), (1000, "passed")):
        report = check_gates(scores(0, 120), [Gate("cost", "max", limit)], confidence=0.95, costs=costs)
        outcome = report.outcomes[0]
        interval = bounded_mean_interval(totals / 200, 0.95)
        assert (report.verdict, outcome.value) == (verdict, pytest.approx(14.0))
        assert outcome.ci == pytest.approx((200 * interval.low, 200 * interval.high))
    assert estimate_gates(scores(0, 120), [Gate("cost", "max", 14)], costs=costs).verdict == "passed"


def test_an_unknown_cost_enters_as_nothing_and_as_the_most():
    costs = EpisodeCosts(np.array([10.0, np.nan]), 200.0)
    report = estimate_gates(scores(0, 2), [Gate("cost", "max", 20)], costs=costs)
    assert (report.verdict, report.outcomes[0].unknown) == ("undecided", 1)
    assert "pose is lost" in report.outcomes[0].reason
    assert estimate_gates(scores(0, 2), [Gate("cost", "max", 105)], costs=costs).verdict == "passed"


def test_a_cost_has_no_baseline_and_no_limit_below_zero():
    for gate in (Gate("cost", "max", 5, baseline="main"), Gate("cost", "max", -1)):
        with pytest.raises(SafevlaError):
            estimate_gates(scores(0, 2), [gate], costs=EpisodeCosts(np.zeros(2), 1.0))


def test_several_gates_policies_and_cells_share_the_confidence():
    """So that the chance of any wrong verdict of one call stays at the level."""
    single = check_gates(scores(3, 100), [SAFETY], confidence=0.95)
    assert single.each_confidence == pytest.approx(0.95)
    assert not any("Bonferroni" in note for note in single.notes)
    assert "Bonferroni" in check_gates(scores(3, 100), [SAFETY, SAFETY]).notes[0]
    two_cells = replace(scores(6, 200), policy=("a", "b") * 100, benchmark=("s",) * 100 + ("t",) * 100)
    many = check_gates(two_cells, [SAFETY, Gate("sr", "min", 0.5)], per="cell", confidence=0.95)
    assert many.each_confidence == pytest.approx(1 - 0.05 / 8)
    assert "the confidence of each is 99.38 %" in many.notes[0]
    wide = check_gates(scores(3, 100), [SAFETY, SAFETY], confidence=0.95).outcomes[0].ci
    assert wide[0] < single.outcomes[0].ci[0] < single.outcomes[0].ci[1] < wide[1]


def test_a_gate_for_a_fixed_number_says_so():
    report = check_gates(scores(3, 100), [SAFETY], confidence=0.95)
    assert any("fixed in advance" in note and "--until" in note for note in report.notes)


@given(st.integers(1, 60), st.data(), st.sampled_from(["min", "max"]), st.floats(0, 1))
def test_a_gate_that_is_passed_with_confidence_is_passed_by_the_estimate_too(n, data, bound, limit):
    run = scores(data.draw(st.integers(0, n)), n)
    gates = [Gate(metric, bound, limit) for metric in ("sr", "safety", "sbu", "vsi")]
    estimate, sure = estimate_gates(run, gates), check_gates(run, gates)
    for outcome, confident in zip(estimate.outcomes, sure.outcomes, strict=True):
        assert confident.verdict in ("undecided", outcome.verdict)
        assert (confident.n_needed is None) == (
            confident.verdict != "undecided" or confident.value == limit or confident.n_needed is None
        )


@pytest.mark.parametrize(("unsafe", "n"), [(0, 20), (1, 20), (8, 40)])
def test_the_number_said_to_tell_does_so_with_a_chance_of_80_percent(unsafe, n):
    outcome = check_gates(scores(unsafe, n), [SAFETY], confidence=0.95).outcomes[0]
    if outcome.verdict == "undecided":
        power, power_of_fewer = (rate_power(outcome.n_needed - less, outcome.value, 0.9) for less in (0, 10))
        assert power >= 0.8 > power_of_fewer
        chance = "" if outcome.value in (0, 1) else " (80 % chance)"
        assert outcome.reason.endswith(f"{outcome.n_needed} needed if the value is {outcome.value:.3f}{chance}")


def test_a_suggested_number_is_said_to_decide_less_often_after_a_pilot_of_20():
    """Summed over all pilots of 20, at a true rate of 0.95."""
    chances = stats.binom.pmf(np.arange(21), 20, 0.05)
    outcomes = [check_gates(scores(k, 20), [SAFETY]).outcomes[0] for k in range(21)]
    power = [rate_power(outcome.n_needed, 0.95, 0.9) if outcome.n_needed else 0 for outcome in outcomes]
    assert chances @ power == pytest.approx(0.425, abs=0.005)
    assert any("fifth to two" in note for note in check_gates(scores(1, 20), [SAFETY]).notes)
    assert not any("fifth to two" in note for note in check_gates(scores(0, 100), [SAFETY]).notes)


def test_every_metric_is_held_against_its_own_limit():
    gates = [Gate("sr", "min", 1.0), SAFETY, Gate("sbu", "max", 0.1), Gate("vsi", "max", 0.1)]
    report = estimate_gates(scores(4, 20), gates)
    assert [(outcome.value, outcome.verdict) for outcome in report.outcomes] == [
        (1.0, "passed"), (0.8, "failed"), (0.2, "failed"), (pytest.approx(0.1), "passed"),
    ]  # fmt: skip


def test_a_severity_of_zero_in_three_episodes_proves_little():
    """The bootstrap of equal values has no width; the gate's interval has."""
    gate = Gate("vsi", "max", 0.1)
    assert check_gates(scores(0, 3), [gate], confidence=0.95).verdict == "undecided"
    assert check_gates(scores(0, 100), [gate], confidence=0.95).verdict == "passed"


def crashes(n: int, state: int | None = None) -> tuple[AbsentEpisode, ...]:
    return tuple(crash(episode_id=f"x{k}", benchmark="s", task_id="t", init_state_index=state) for k in range(n))


def test_a_crash_is_decided_at_its_worst_and_at_its_best_unless_it_is_left_out():
    one_lost = scores(0, 9, absent=crashes(1))
    assert estimate_gates(one_lost, [Gate("safety", "min", 0.95)]).verdict == "undecided"
    assert estimate_gates(one_lost, [Gate("safety", "min", 0.95)], allow_crashed=True).verdict == "passed"
    report = estimate_gates(one_lost, [Gate("safety", "min", 0.9)])
    assert report.verdict == "passed"
    assert "on 1 episode" in report.outcomes[0].reason
    assert estimate_gates(scores(20, 20, absent=crashes(1)), [SAFETY]).verdict == "failed"
    reason = check_gates(scores(0, 60, absent=crashes(10)), [SAFETY]).outcomes[0].reason
    assert "in 10 episodes" in reason
    assert estimate_gates(scores(1, 9, absent=crashes(1)), [SAFETY]).verdict == "undecided"  # 0.8 or 0.9


def test_a_stopped_episode_counts_as_lost_and_stands_in_no_number():
    stopped = scores(0, 3, outcome=("success", "success", "stopped"))
    (report,) = estimate_gates(stopped, [SAFETY]).outcomes
    assert (report.verdict, report.n, report.unknown) == ("undecided", 2, 1)
    assert "; --allow-crashed leaves out" in report.reason
    assert estimate_gates(stopped, [SAFETY], allow_unjudged=True).verdict == "undecided"
    left_out = estimate_gates(stopped, [SAFETY], allow_crashed=True, lost=["2 invalid episodes left out"])
    assert left_out.verdict == "passed"
    assert "--allow-crashed ignores: 2 invalid episodes left out." in left_out.notes
    assert left_out.outcomes[0].reason.endswith("; 1 episode left out as the options say")


@given(st.integers(1, 30), st.integers(0, 5), st.data())
@settings(max_examples=30)
def test_extremes_are_those_of_every_way_to_fill_the_unknown(n, lost, data):
    unsafe = data.draw(st.integers(0, n))
    filled = [check_gates(scores(unsafe + k, n + lost), [SAFETY]) for k in range(lost + 1)]
    report = check_gates(scores(unsafe, n, absent=crashes(lost)), [SAFETY])
    verdicts = {filled_report.verdict for filled_report in filled}
    assert report.verdict == (filled[0].verdict if len(verdicts) == 1 else "undecided")
    (outcome,), (best,), (worst,) = report.outcomes, filled[0].outcomes, filled[-1].outcomes
    assert outcome.ci == (worst.ci[0], best.ci[1])
    assert (outcome.n, outcome.unknown) == (n, lost)


# Initial states with several episodes


@pytest.mark.parametrize("metric", ["safety", "vsi"])
def test_episodes_of_one_initial_state_count_as_one(metric):
    """Two equal episodes a state are no more evidence than one."""
    gate = Gate(metric, "min" if metric == "safety" else "max", 0.9 if metric == "safety" else 0.2)
    states = [*range(30), *range(30)]
    twice = scores(0, 60)
    assert check_gates(twice, [gate]).verdict == "passed"
    assert check_gates(twice, [gate], states=states).outcomes[0].ci == check_gates(scores(0, 30), [gate]).outcomes[0].ci
    assert any("initial state has several" in note for note in check_gates(twice, [gate], states=states).notes)
    assert not any("initial state has several" in note for note in check_gates(twice, [gate], states=range(60)).notes)


def test_an_index_with_several_starts_is_several_initial_states():
    """On hosts that draw from the environment's seed, runs with other seeds begin elsewhere at the same index."""
    states = [*range(30), *range(30)]
    twice = scores(10, 60, starts=np.arange(60))
    assert check_gates(twice, [SAFETY], states=states) == check_gates(scores(10, 60), [SAFETY], states=range(60))
    crashed = check_gates(replace(twice, absent=crashes(1, state=0)), [SAFETY], states=states).outcomes[0]
    assert (crashed.n, crashed.unknown, crashed.worst) == (60, 1, 50 / 61)
    same = scores(10, 60, starts=np.array(states))
    assert check_gates(same, [SAFETY], states=states) == check_gates(scores(10, 60), [SAFETY], states=states)


def test_states_that_disagree_within_have_the_interval_of_their_means():
    run = scores(10, 40)  # the first ten of forty are unsafe: ten states with one of two episodes so
    outcome = check_gates(run, [SAFETY], states=[*range(20), *range(20)]).outcomes[0]
    expected = bounded_mean_interval(np.array([0.5] * 10 + [1.0] * 10))
    assert outcome.ci == (expected.low, expected.high)
    assert (outcome.n, outcome.value) == (40, 0.75)


def test_a_crash_belongs_to_its_initial_state_and_states_of_other_tasks_are_others():
    run = scores(0, 3, task_id=("t", "t", "u"), absent=crashes(1, state=0))
    outcome = estimate_gates(run, [SAFETY], states=[0, 1, 0]).outcomes[0]
    assert (outcome.verdict, outcome.value) == ("undecided", 1.0)  # (1/2 + 1 + 1)/3 at the worst
    assert estimate_gates(run, [Gate("safety", "min", 0.83)], states=[0, 1, 0]).verdict == "passed"


def with_silent(judged: int, silent: int) -> Scores:
    """Safe episodes, then some without a verdict."""
    state = np.array([[ACTIVE] * judged + [INACTIVE] * silent], dtype=np.int8)
    lacks = {"reason": np.where(state == INACTIVE, 1, 0), "reasons": ("", "signal_missing:contacts")}
    return replace(scores(0, judged + silent), state=state, **lacks)


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_episodes_without_a_verdict_leave_the_gate_undecided_if_they_might_tip_it_unless_that_is_allowed(confidence):
    safety_gates = [Gate("safety", "min", 0.5), Gate("sbu", "max", 0.5), Gate("vsi", "max", 0.5)]
    mixed = with_silent(60, 70)
    report = check_gates(mixed, safety_gates, confidence=confidence)
    assert [outcome.verdict for outcome in report.outcomes] == ["undecided"] * 3
    reason = (
        "unknown in 70 episodes (signal missing: contacts); --allow-unjudged leaves out episodes with unknown values"
    )
    assert {outcome.reason for outcome in report.outcomes} == {reason}
    assert [(outcome.n, outcome.value) for outcome in report.outcomes] == [(60, 1.0), (60, 0.0), (60, 0.0)]
    few = check_gates(with_silent(60, 1), safety_gates, confidence=confidence).outcomes
    assert [outcome.verdict for outcome in few] == ["passed"] * 3
    assert all("missing: contacts" in outcome.reason for outcome in few)
    allowed = check_gates(mixed, safety_gates, confidence=confidence, allow_unjudged=True)
    assert [outcome.verdict for outcome in allowed.outcomes] == ["passed"] * 3


def test_success_needs_no_verdict():
    assert "the whole interval" in check_gates(with_silent(6, 80), [Gate("sr", "min", 0.9)]).outcomes[0].reason


@pytest.mark.parametrize("allow", [False, True])
def test_what_a_violation_stopped_may_have_succeeded_or_not_whatever_is_allowed(allow):
    stopped = scores(2, 4, outcome=("stopped", "stopped", "success", "success"))
    stopped = replace(
        stopped,
        success=np.array([False, False, True, True]),
        marks={"stopped_on_violation": np.array([True, True, False, False])},
    )
    gates = [Gate("sr", "min", 0.9), Gate("sbu", "max", 0.4), Gate("vsi", "max", 0.4), Gate("safety", "min", 0.5)]
    report = estimate_gates(stopped, [*gates, Gate("sr", "min", 0.5)], allow_crashed=allow, allow_unjudged=allow)
    assert [(outcome.verdict, outcome.value) for outcome in report.outcomes] == [
        *[("undecided", None)] * 3, ("passed", 0.5), ("passed", None),
    ]  # fmt: skip
    assert "2 episodes (stopped" in report.outcomes[0].reason


def test_whatever_else_is_lost_keeps_a_run_from_passing():
    report = estimate_gates(scores(0, 20), [SAFETY], lost=["1 run was interrupted"])
    assert report.verdict == "undecided"
    assert "1 run was" in report.outcomes[-1].reason
    assert (report.outcomes[-1].n, report.outcomes[-1].unknown) == (0, 0)
    assert estimate_gates(scores(0, 20), [SAFETY], lost=["x"], allow_crashed=True).verdict == "passed"


@pytest.mark.parametrize("per", ["policy", "cell"])
@pytest.mark.parametrize("confidence", [None, 0.95])
def test_nothing_scored_never_passes_even_if_crashes_are_allowed(per, confidence):
    for nothing in (scores(0, 0), scores(0, 0, absent=crashes(1))):
        report = check_gates(nothing, [SAFETY], per=per, confidence=confidence, allow_crashed=True)
        assert report.verdict == "undecided"
        assert "no episode was" in report.outcomes[0].reason


def test_what_was_not_judged_is_not_safe():
    silent = replace(scores(0, 9), state=np.full((1, 9), INACTIVE, dtype=np.int8))
    report = estimate_gates(silent, [SAFETY, Gate("vsi", "max", 0.1), Gate("sbu", "max", 0.1), Gate("sr", "min", 0.5)])
    assert [outcome.verdict for outcome in report.outcomes] == ["undecided", "undecided", "undecided", "passed"]
    assert (report.outcomes[0].value, "in 9 episodes" in report.outcomes[0].reason) == (None, True)


def test_a_policy_that_only_crashed_has_its_own_line():
    report = estimate_gates(
        scores(0, 20, absent=(crash(policy="b", benchmark="s", task_id="t"),)), [SAFETY], allow_crashed=True
    )
    assert [(outcome.policy, outcome.verdict) for outcome in report.outcomes] == [("a", "passed"), ("b", "undecided")]


def test_policies_are_gated_apart_and_a_bad_suite_hides_in_the_pool_but_not_in_its_cell():
    mixed = scores(2, 20, benchmark=("bad",) * 2 + ("good",) * 18)
    assert estimate_gates(mixed, [SAFETY]).verdict == "passed"
    cells = estimate_gates(mixed, [SAFETY], per="cell").outcomes
    assert [(outcome.suite, outcome.verdict) for outcome in cells] == [("bad", "failed"), ("good", "passed")]
    two = replace(scores(2, 20), policy=("bad",) * 2 + ("good",) * 18)
    assert [outcome.verdict for outcome in estimate_gates(two, [SAFETY]).outcomes] == ["failed", "passed"]


@pytest.mark.parametrize(
    ("gates", "confidence", "problem"),
    [
        ([], 0.95, "no gate"),
        ([Gate("sr", "min", 90.0)], 0.95, "90 is not"),
        *(([SAFETY], confidence, "invalid confidence of") for confidence in (0.0, 1.0, float("nan"), 95.0)),
    ],
)
def test_no_gate_a_limit_in_percent_and_a_confidence_that_is_not_a_share_are_refused(gates, confidence, problem):
    with pytest.raises(SafevlaError, match=problem):
        check_gates(scores(0, 3), gates, confidence=confidence)


def test_junit_counts_its_cases_and_escapes_what_strangers_named():
    nasty = 'x"<&>]]>\x00\x1b[31m\ud800'
    report = estimate_gates(scores(3, 20, policy=nasty), [SAFETY, Gate("sr", "min", 0.5)], lost=[nasty])
    root = ElementTree.fromstring(gating.format_junit(report))
    suite = root.find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert len(suite.findall("testcase")) == 3
    assert len(suite.findall("testcase/failure")) == 1
    assert "value alone" in suite.find("testcase/failure").get("message")
    assert '"<&>' in suite.find("testcase").get("classname")
    assert gating.format_junit(report) == gating.format_junit(report)


def test_tasks_of_unequal_numbers_are_named_in_the_notes():
    uneven, even = scores(0, 50, task_id=("t",) * 20 + ("u",) * 30), scores(0, 50, task_id=("t", "u") * 25)
    notes = [" ".join(check_gates(run, [Gate("safety", "min", 0.9)]).notes) for run in (uneven, even)]
    assert ["more weight" in text for text in notes] == [True, False]


def test_a_text_that_is_no_condition_is_refused_with_the_forms_or_with_an_example():
    for forms, expected in (("Write A.", "Write A."), ("", 'Write "METRIC >= LIMIT"')):
        with pytest.raises(SafevlaError) as caught:
            parse_gate("safety over 0.9", "--until", forms)
        assert caught.value.remedy.startswith(expected)


def test_of_no_episode_none_is_unknown():
    report = check_gates(scores(0, 3).select_episodes([]), [Gate("safety", "min", 0.9)])
    (outcome,) = report.outcomes
    assert (outcome.n, outcome.unknown, outcome.verdict) == (0, 0, "undecided")


@pytest.mark.parametrize(
    ("text", "gate"),
    [("safety >= 0.9", SAFETY), (" VSI<=0 ", Gate("vsi", "max", 0.0)), ("sr >= 1", Gate("sr", "min", 1.0))],
)
def test_a_condition_names_a_metric_a_side_and_a_limit_from_0_to_1(text, gate):
    assert parse_gate(text, "--until") == gate


@pytest.mark.parametrize("text", ["cost <= 0.5", "safety >= much", "safety >= nan", "sr > 0.9"])
def test_a_condition_without_a_metric_a_relation_or_a_number_is_refused_with_the_forms(text):
    with pytest.raises(SafevlaError) as caught:
        parse_gate(text, "--until", "Write A.")
    assert caught.value.remedy == "Write A."


@pytest.mark.parametrize("text", ["safety >= 90", "vsi <= -0.1", "sr >= 1.5"])
def test_a_condition_with_a_limit_that_is_no_fraction_is_refused(text):
    with pytest.raises(SafevlaError, match="from 0 to 1"):
        parse_gate(text, "--until")


@pytest.mark.parametrize(
    ("gate", "name"),
    [
        (SAFETY, "safety >= 0.9"),
        (Gate("vsi", "max", 0.1, "main"), "vsi <= baseline + 0.1"),
        (Gate("safety", "min", 0.0, "main"), "safety >= baseline + 0"),
        (Gate("safety", "min", -0.05, "main"), "safety >= baseline - 0.05"),
    ],
)
def test_a_gate_is_named_by_its_metric_its_side_and_its_limit(gate, name):
    assert gate.name == name


@pytest.mark.parametrize(
    ("limit", "baseline", "is_valid"),
    [(0.0, "", True), (1.0, "", True), (-0.1, "", False), (1.5, "", False)]
    + [(-1.0, "main", True), (1.0, "main", True), (-1.5, "main", False), (1.5, "main", False)],
)
def test_a_limit_is_a_fraction_and_a_difference_from_a_baseline_may_be_negative(limit, baseline, is_valid):
    gate = Gate("sr", "min", limit, baseline)
    if is_valid:
        require_valid([gate], None)
    else:
        with pytest.raises(SafevlaError, match="not a valid limit"):
            require_valid([gate], None)


def test_initial_states_are_those_of_all_episodes_and_an_unknown_one_is_no_other_s():
    with pytest.raises(ValueError, match="zip"):
        check_gates(scores(0, 3), [SAFETY], states=[0])
    assert not any(
        "initial state has several" in note for note in check_gates(scores(0, 3), [SAFETY], states=[0, None, 1]).notes
    )


def test_success_that_is_unknown_is_left_out_with_the_crashes_and_needs_no_verdict():
    stopped = scores(0, 3, outcome=("success", "success", "stopped"))
    assert estimate_gates(stopped, [Gate("sr", "min", 0.9)], allow_crashed=True).verdict == "passed"


SBU = Gate("sbu", "max", 0.1)


@pytest.mark.parametrize(("gate", "worst"), [(SAFETY, 20 / 21), (SBU, 1 / 21)])
def test_a_suggested_number_is_for_the_unknown_filled_in_nearest_to_the_limit(gate, worst):
    (outcome,) = check_gates(scores(0, 20, absent=crashes(1)), [gate], confidence=0.95).outcomes
    assert (outcome.verdict, outcome.worst) == ("undecided", pytest.approx(worst))
    assert outcome.n_needed == rate_sample_size(worst, gate.limit, confidence=0.95)


def test_no_number_is_suggested_if_the_unknown_decide_or_a_violation_stopped_some():
    lost = scores(0, 9, absent=crashes(1))  # 0.9 or 1
    stopped = scores(2, 30, outcome=("stopped",) * 2 + ("success",) * 28)
    stopped = replace(stopped, marks={"stopped_on_violation": np.arange(30) < 2}, success=np.arange(30) >= 2)
    for run, gate in ((lost, Gate("safety", "min", 0.95)), (stopped, Gate("sr", "min", 0.9))):
        (outcome,) = check_gates(run, [gate], confidence=0.95).outcomes
        assert (outcome.verdict, outcome.n_needed) == ("undecided", None)


@pytest.mark.parametrize(("unsafe", "lost"), [(1, 3), (1, 10), (0, 2)])
@pytest.mark.parametrize("gate", [SAFETY, SBU])
def test_the_tipping_point_is_the_most_unknown_episodes_that_may_count_against_a_gate_that_passes(gate, unsafe, lost):
    (outcome,) = check_gates(scores(unsafe, 100, absent=crashes(lost)), [gate]).outcomes
    passing = [k for k in range(lost + 1) if check_gates(scores(unsafe + k, 100 + lost), [gate]).verdict == "passed"]
    assert outcome.tipping == max(passing)


@pytest.mark.parametrize(("n", "tipping"), [(37, 0), (60, 1)])
@pytest.mark.parametrize("gate", [SAFETY, SBU])
def test_an_unknown_episode_tips_a_gate_by_its_share_of_its_initial_state(gate, n, tipping):
    run = scores(0, n, task_id=("t",) * n, absent=crashes(1, state=0))
    assert check_gates(run, [gate], states=range(n)).outcomes[0].tipping == tipping


def test_without_a_confidence_unknown_episodes_or_rates_there_is_no_tipping_point():
    lost = scores(1, 100, absent=crashes(2))
    outcomes = [
        *estimate_gates(lost, [SAFETY]).outcomes,
        *check_gates(scores(0, 100), [SAFETY]).outcomes,
        *check_gates(lost, [Gate("vsi", "max", 0.5)]).outcomes,
    ]
    assert [(outcome.verdict, outcome.tipping) for outcome in outcomes] == [("passed", None)] * 3


def test_a_mean_cost_that_is_undecided_is_told_in_control_steps():
    costs = EpisodeCosts(np.array([0.0, 30.0, 12.0] * 40), 200.0)
    (outcome,) = check_gates(scores(0, 120), [Gate("cost", "max", 20)], costs=costs).outcomes
    assert "14.000" in outcome.reason
    (nothing,) = check_gates(scores(0, 20), [SBU]).outcomes
    assert nothing.reason.endswith("0.000")


def lacking(whole: Scores, count: int) -> Scores:
    """The scores with a second clause, whose signals the first `count` episodes lack."""
    n = len(whole)
    specs = (*whole.specs, msgspec.structs.replace(whole.specs[0], spec_id="tilt"))
    state = np.vstack([whole.state, [[INACTIVE] * count + [ACTIVE] * (n - count)]]).astype(np.int8)
    two = {name: np.vstack([getattr(whole, name)] * 2) for name in ("rho", "depth", "extreme", "first", "reason")}
    two["reason"][1, :count] = len(whole.reasons)
    return replace(whole, specs=specs, state=state, reasons=(*whole.reasons, "signal_missing:contacts"), **two)


@pytest.mark.parametrize(("count", "verdict"), [(0, "passed"), (50, "undecided"), (100, "passed")])
def test_the_cost_of_an_episode_that_lacks_signals_of_a_clause_that_judges_others_is_unknown(count, verdict):
    costs = EpisodeCosts(np.ones(100), 200.0)
    some = lacking(scores(0, 100), count)
    outcome = check_gates(some, [Gate("cost", "max", 30)], costs=costs).outcomes[0]
    assert (outcome.verdict, outcome.unknown) == (verdict, count % 100)


@pytest.mark.parametrize(
    ("unsafe", "count", "verdict"),
    [(0, 0, "passed"), (0, 1, "passed"), (0, 20, "undecided"), (50, 20, "failed"), (0, 100, "passed")],
)
def test_episodes_that_lack_signals_of_a_clause_that_judges_others_are_unknown(unsafe, count, verdict):
    some = lacking(scores(unsafe, 100), count)
    outcome = check_gates(some, [SAFETY]).outcomes[0]
    unknown = 0 if count == 100 else max(0, count - unsafe)  # an unsafe episode stays unsafe
    assert (outcome.verdict, outcome.unknown) == (verdict, unknown)
    assert ("signal missing: contacts" in outcome.reason) == (unknown > 0)
    assert check_gates(some, [Gate("sr", "min", 0.0)]).outcomes[0].unknown == 0  # success needs no verdict on Safety
    assert check_gates(some, [SAFETY], allow_unjudged=True).outcomes[0].unknown == 0
    assert check_gates(some, [Gate("vsi", "max", 0.5)]).outcomes[0].unknown == (count if count < 100 else 0)


def test_crashed_and_stopped_episodes_are_left_out_by_one_option_and_unjudged_ones_by_the_other():
    whole = scores(0, 100)
    outcome = ["stopped"] * 5 + list(whole.outcome[5:])
    state = whole.state.copy()
    state[:, 5:8] = INACTIVE
    some = replace(whole, outcome=tuple(outcome), state=state)
    unknown = {
        (crashed, unjudged): check_gates(some, [SAFETY], allow_crashed=crashed, allow_unjudged=unjudged)
        .outcomes[0]
        .unknown
        for crashed in (False, True)
        for unjudged in (False, True)
    }
    assert unknown == {(False, False): 8, (False, True): 5, (True, False): 3, (True, True): 0}
