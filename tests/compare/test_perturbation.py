"""What changes of a suite do, with a control, and what filters of actions do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from builders import crash, numbers_in
from compare.scenes import draw_scores, run_headers
from report.tables.reading import texts
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.difference import ComparisonOptions, paired_difference
from safevla_bench.compare.pairs import pair_episodes
from safevla_bench.compare.perturbation import CONTROL, compare_changes, list_interventions
from safevla_bench.compare.policy_results import PolicyResults, comparison_warnings, split_by_policy
from safevla_bench.errors import RunError
from safevla_bench.judging.action_statistics import ActionChanges, join_changes, measure_changes
from safevla_bench.report.tables.comparison import change_table, describe_changes, difference_table
from safevla_bench.report.tables.comparison_answer import describe_comparison
from safevla_bench.trajectory.header import Header


def source(suite, successes, safe=100, *, policy="a", seed=0, n=100):
    scores = draw_scores(policy, np.arange(n) < successes, np.arange(n)[::-1] < safe, suite=suite)
    return split_by_policy(scores, run_headers(scores, seed))[0]


BASE, SWAP, LAN = source("goal", 90), source("goal-swap", 60, 70), source("goal-lan", 90)
AGAIN = source("goal", 88, seed=1)


def test_a_changed_suite_is_paired_with_the_unchanged_one_and_intervals_hold_together():
    report = compare_changes([BASE, SWAP, LAN])
    assert [row.change for row in report.changes] == ["swap", "lan"]
    assert report.each_confidence == pytest.approx(1 - 0.05 / 4)
    swap, lan = report.changes
    assert (swap.suites, swap.left_out, swap.unknown) == (("goal",), 0, 0)
    item = swap.differences["sr"]
    assert (item.pairs, item.difference, lan.differences["sr"].difference) == (100, -0.3, 0.0)
    alike = replace(source("goal", 60, 70), name="b")
    options = ComparisonOptions(confidence=report.each_confidence)
    expected = paired_difference(("b", "a"), [pair_episodes([alike, BASE])], (0, 1), "sr", options)
    assert item.ci == expected.ci
    assert "30.0 points (20.0–42.3)" in describe_changes(report)
    assert "no control" in describe_changes(report)


def test_safety_has_no_difference_if_a_specification_judged_only_one_of_the_suites():
    judged = replace(BASE, judged_clauses=(("goal", "torque"),))
    lacking = replace(SWAP, missing_clauses=(("goal-swap", "torque"),))
    report = compare_changes([judged, lacking])
    (swap,) = report.changes
    assert swap.differences["sr"].difference == -0.3
    assert (swap.differences["safety"].difference, swap.differences["safety"].ci) == (None, None)
    assert "torque" in swap.differences["safety"].no_verdict
    assert "Safety of" not in describe_changes(report)
    elsewhere = replace(SWAP, missing_clauses=(("other", "torque"),))
    assert compare_changes([judged, elsewhere]).changes[0].differences["safety"].difference is not None


def test_success_has_no_difference_if_a_violation_stopped_episodes_of_either_suite():
    stops = np.arange(100) < 20
    stopped = replace(SWAP, is_counted=~stops, stopped_on_violation=stops, unsafe=SWAP.unsafe | stops)
    report = compare_changes([BASE, stopped, LAN])
    swap, lan = report.changes
    success, safety = swap.differences["sr"], swap.differences["safety"]
    assert (success.difference, success.ci, success.no_verdict != "") == (None, None, True)
    assert (safety.difference is not None, lan.differences["sr"].difference) == (True, 0.0)
    assert [texts(change_table(report), name)[0] for name in ("Pairs", "SR")] == ["100", "—"]


def test_a_suite_that_was_run_twice_is_the_control_by_initial_state():
    report = compare_changes([BASE, SWAP, AGAIN])
    control = report.changes[-1]
    assert (control.change, control.differences["sr"].pairs) == (CONTROL, 100)
    assert control.differences["sr"].difference == pytest.approx(-0.02)
    assert "SR -2.0 points" in describe_changes(report)
    assert texts(change_table(report), "Changed") == ["swap", CONTROL]


def test_parts_of_a_run_count_as_one_and_a_further_run_is_refused():
    whole = compare_changes([BASE, SWAP, AGAIN])
    halves = [
        [result.select(lambda header, k=k: (header.init_state_index or 0) % 2 == k) for k in (0, 1)]
        for result in (BASE, SWAP, AGAIN)
    ]
    assert all(len(half) == 50 for pair in halves for half in pair)
    assert compare_changes([half for pair in halves for half in pair]).changes == whole.changes
    for sources in ([BASE, SWAP, SWAP], [BASE, SWAP, AGAIN, AGAIN]):
        with pytest.raises(RunError, match=r"too many runs of the same starts \([23]\)"):
            compare_changes(sources)


def test_suites_with_one_change_are_pooled_and_policies_stay_apart():
    others = [
        source("ten", 80),
        source("ten-swap", 70),
        source("goal", 50, policy="b"),
        source("goal-swap", 50, policy="b"),
    ]
    report = compare_changes([BASE, SWAP, *others])
    assert [(row.policy, row.suites) for row in report.changes] == [("a", ("goal", "ten")), ("b", ("goal",))]
    item = report.changes[0].differences["sr"]
    assert (item.pairs, item.tasks, item.difference) == (200, 20, -0.2)


def test_variants_of_a_task_are_paired_with_its_first_start_and_count_once():
    """`TASK/NAME`, as LIBERO-plus has them: two variants of each of ten tasks, and starts of the tasks besides."""
    plain = source("goal", 20, n=20)
    starts = [
        structs.replace(h, task_id=f"task_{k % 10}", init_state_index=k // 10) for k, h in enumerate(plain.headers)
    ]
    varied = source("goal-camera", 5, n=20)
    variants = [
        structs.replace(h, task_id=f"task_{k % 10}/view_{k}", init_state_index=0) for k, h in enumerate(varied.headers)
    ]
    sides = replace(plain, headers=tuple(starts)), replace(varied, headers=tuple(variants))
    (row,) = compare_changes(sides).changes
    item = row.differences["sr"]
    assert (row.suites, row.left_out, item.tasks) == (("goal",), 10, 10)
    assert item.difference == pytest.approx((5 * 0.5 + 5 * 0.0) / 10 - 1)  # five tasks with one success of two
    assert item.ci[0] < item.difference < item.ci[1]
    later = replace(sides[1], headers=tuple(structs.replace(h, seed=9) for h in variants))
    (unpaired,) = compare_changes([sides[0], later]).changes
    assert (unpaired.left_out, unpaired.differences["sr"].difference) == (40, None)


def test_what_differs_between_the_tasks_of_a_change_is_named():
    words = replace(LAN, headers=tuple(structs.replace(header, instruction="open it") for header in LAN.headers))
    plain = replace(BASE, headers=tuple(structs.replace(header, instruction="open") for header in BASE.headers))
    report = compare_changes([plain, words])
    assert report.changes[0].differing == ("instruction",)
    assert texts(change_table(report), "Tasks differ in")[0] == "instruction"


def test_another_simulator_on_either_side_is_named():
    """Between a suite and its changed one, and in the control, whose sources are of one policy."""

    def run(result, mujoco):
        return replace(result, headers=tuple(structs.replace(h, versions={"mujoco": mujoco}) for h in result.headers))

    sources = [run(BASE, "3.2.3"), run(SWAP, "3.3.0"), run(LAN, "3.2.3"), run(AGAIN, "3.3.0")]
    report = compare_changes(sources)
    expected = ("goal: mujoco 3.2.3 (unchanged) and 3.3.0 (changed)",)
    assert [row.mixtures for row in report.changes] == [expected, (), expected]
    assert f"differ: {expected[0]}" in str(change_table(report).notes)
    assert "mujoco 3.2.3" in next(
        line for line in comparison_warnings(sources, 0, paired=True) if line.startswith("Several")
    )


def test_what_has_no_like_is_left_out_and_a_crash_is_unknown():
    fewer = SWAP.select_episodes(np.arange(90))
    crashed = crash(benchmark="goal-swap", init_state_index=9, seed=0)
    row = compare_changes([BASE, replace(fewer, lost=(crashed,))]).changes[0]
    assert (row.differences["sr"].pairs, row.left_out, row.unknown) == (90, 9, 1)
    elsewhere = crash(benchmark="goal-swap", init_state_index=99, seed=0)
    assert compare_changes([BASE, replace(fewer, lost=(crashed, elsewhere))]).changes[0].left_out == 10


@pytest.mark.parametrize(("unknown", "is_undecided"), [(0, False), (4, False), (30, True)])
def test_an_effect_that_unknown_episodes_could_undo_is_undecided(unknown, is_undecided):
    """At worst, the unknown episodes of the unchanged suite are unsafe, and then the change made nothing less safe."""
    base = replace(BASE, is_judged=np.arange(100) < 100 - unknown)
    report = compare_changes([base, source("goal-swap", 90, 80)])
    (row,) = report.changes
    safety, success = row.differences["safety"], row.differences["sr"]
    assert (safety.excludes_zero, safety.undecided, success.undecided) == (True, is_undecided, False)
    assert (row.unknown, safety.difference) == (unknown, pytest.approx(-20 / (100 - unknown)))
    sentence = f"Whether swap lowers Safety of a is undecided, because {unknown} episodes"
    assert describe_changes(report).startswith(sentence if is_undecided else "Swap lowers Safety of a by 2")


def test_tasks_with_a_slash_on_both_sides_are_no_variants():
    both = [
        replace(side, headers=tuple(structs.replace(h, task_id=f"{h.task_id}/{h.init_state_index % 2}")
                                    for h in side.headers)) for side in (BASE, SWAP)
    ]  # fmt: skip
    item = compare_changes(both).changes[0].differences["sr"]
    assert (item.tasks, item.pairs, item.difference) == (20, 100, -0.3)


def test_a_change_is_measured_in_a_single_episode_too():
    (row,) = compare_changes([source("goal", 1, 1, n=1), source("goal-swap", 0, 1, n=1)]).changes
    assert (row.suites, row.differences["sr"].difference) == (("goal",), -1.0)


def test_without_a_changed_suite_there_is_nothing_to_compare():
    with pytest.raises(RunError, match="counterpart: goal"):
        compare_changes([BASE])


# What filters did


def header(name, k):
    identity = {"episode_id": f"{name}/fake/task_{k % 2}/ep_{k // 2}", "benchmark": "fake", "task_id": f"task_{k % 2}"}
    start = {"seed": 0, "env_seed": 7, "init_state_index": k // 2, "horizon": 300}
    return Header(**identity, **start, success=True, dt=0.05, target_object=None, policy=name)


def behind(name, success, safe, *changes):
    every, none = np.ones(4, dtype=np.bool_), np.zeros(4, dtype=np.bool_)
    unsafe = np.array(safe) == 0
    return PolicyResults(
        name=name,
        source="runs/x",
        headers=tuple(header(name, k) for k in range(4)),
        success=np.array(success, dtype=np.bool_),
        unsafe=unsafe,
        vsi=0.5 * unsafe,
        is_counted=every,
        is_judged=every,
        stopped_on_violation=none,
        starts=np.arange(len(none)),
        progress=0.5 * unsafe,
        engaged=0.5 * unsafe,
        changes=tuple(ActionChanges(*change) for change in changes),
    )


PLAIN = behind("p (no filter)", [1, 1, 1, 0], [0, 0, 1, 1], (10,), (20,), (30,), (40,))
CAPPED = behind("p (filter=cap)", [1, 0, 1, 1], [1, 1, 0, 1], (16, 8, 2.0), (20, 4, 4.0), (31,), (9,))
OTHER = behind("noop", [0, 0, 0, 0], [1, 1, 1, 1], (40,), (40,), (40,), (40,))


def effect(*results):
    return next(list_interventions(pair_episodes(results)))


def test_saved_and_spoiled_are_the_pairs_whose_outcome_changes():
    intervention = effect(PLAIN, CAPPED)
    assert intervention.saved == ("p (filter=cap)/fake/task_0/ep_0", "p (filter=cap)/fake/task_1/ep_0")
    assert intervention.spoiled == ("p (filter=cap)/fake/task_1/ep_0",)
    assert (
        intervention.violations,
        intervention.violations_made,
        intervention.successes,
        intervention.successes_gained,
    ) == (2, 1, 3, 1)
    assert intervention.clean == (1, 2)
    assert (intervention.actions, intervention.changed, intervention.mean_change) == (76, 12, 0.5)
    assert intervention.extra_steps == pytest.approx(3.5)  # of the two pairs that succeed on both sides


def test_a_filtered_policy_stands_beside_the_unchanged_one_of_the_nearest_name():
    assert effect(OTHER, PLAIN, CAPPED).without == PLAIN.name
    assert effect(CAPPED, PLAIN, OTHER) == effect(OTHER, CAPPED, PLAIN)


def test_episodes_without_a_verdict_or_an_end_are_neither_saved_nor_spoiled():
    unjudged = replace(CAPPED, is_judged=np.zeros(4, dtype=np.bool_))
    assert effect(PLAIN, unjudged).saved == ()
    uncounted = replace(CAPPED, is_counted=np.zeros(4, dtype=np.bool_))
    assert effect(PLAIN, uncounted).spoiled == ()
    assert effect(PLAIN, uncounted).extra_steps is None


def test_nothing_is_said_if_no_action_was_changed_or_episodes_are_not_paired():
    assert compare_policies([PLAIN, OTHER]).interventions == ()
    assert compare_policies([PLAIN, CAPPED], paired=False).interventions == ()
    assert compare_policies([PLAIN, CAPPED], across_seeds=True).interventions == ()


def test_the_answer_and_the_notes_below_the_differences_say_what_the_filter_did():
    comparison = compare_policies([PLAIN, CAPPED])
    effect = describe_comparison(comparison).partition("With p (filter=cap)")[2]
    assert numbers_in(effect)[:9] == [2, 2, 1, 1, 3, 1, 4, 1, 2]
    notes = difference_table(comparison).notes
    assert any("12 of 76" in note for note in notes)
    assert any(note.startswith("Successes lost: p") for note in notes)


def test_changes_are_counted_by_action_and_measured_as_norms():
    executed = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    own = executed + [[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]]
    assert measure_changes(executed, own, 3) == ActionChanges(3, 2, 7.0)
    assert measure_changes(executed, np.empty((0, 0)), 3) == ActionChanges(3)
    assert join_changes([ActionChanges(3, 2, 7.0), ActionChanges(4)]) == ActionChanges(7, 2, 7.0)
    assert join_changes([]) == ActionChanges()
