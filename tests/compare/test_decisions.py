"""What a comparison decides: the ranking under other thresholds, which policy to take, gates against another run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from builders import crash
from compare.scenes import draw_scores, edit_headers, policy, run_headers, simulated, without_verdict
from report.scenes import joined, rollout
from report.tables.reading import texts
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.decisions import RankingSensitivity, check_against, rank_under_variants, select_policy
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.policy_results import join_results, split_by_policy
from safevla_bench.compare.sample_size import SampleSizeRequest, plan_sample_size
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.judging.gates import Gate, parse_gate
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables.comparison_answer import describe_next, describe_selection, selection_table
from safevla_bench.report.tables.sensitivity import ranking_table
from safevla_bench.sensitivity.curves import ThresholdVariant, apply_variant, paper_variants
from safevla_bench.statistics.intervals import exact_interval, tango_interval
from safevla_bench.trajectory.batch import Batch, concatenate_batches

RULES = load_ruleset()


def episodes(policy: str, pushes: tuple[bool, ...], force_n: float) -> list[Batch]:
    """Episodes of `libero-spatial`, some of which push the plate by 6 mm; the hardest contact has this force."""
    batches = []
    for k, push in enumerate(pushes):
        batch = rollout(k, 0.2 if push else 0.0, success=True, policy=policy, episode_id=f"{policy}{k}")
        force = np.minimum(batch.contacts.force_n, 20.0)
        force[0] = force_n
        header = structs.replace(batch.headers[0], init_state_index=k, seed=0)
        batches.append(replace(batch, headers=(header,), contacts=replace(batch.contacts, force_n=force)))
    return batches


BATCH = concatenate_batches([*episodes("firm", (False,) * 16, 150.0), *episodes("pushing", (True, False) * 8, 20.0)])
VARIANTS = paper_variants(RULES.library)[0]


def rank(batch: Batch, **options: object) -> RankingSensitivity | None:
    return rank_under_variants(score(batch, RULES), batch.headers, RULES.library, VARIANTS, **options)


def compare_under(variant: ThresholdVariant, batch: Batch, *, paired: bool) -> tuple[Difference, ...]:
    """The differences in Safety over all suites under a variant."""
    results = split_by_policy(apply_variant(score(batch, RULES), RULES.library, variant), batch.headers)
    options = ComparisonOptions(metrics=("safety",))
    return compare_policies(results, options, paired=paired).scopes[-1].metrics[0].differences


def test_a_threshold_that_changes_the_order_of_two_policies_is_named():
    """150 N are within 200 N and beyond 100 N: the firm policy is the safer one, and then the less safe one."""
    sensitivity = rank(BATCH)
    assert sensitivity.paired
    assert sensitivity.variants[0].order == ("firm", "pushing")
    assert [(change.variant, change.order, change.reversed) for change in sensitivity.changes] == [
        ("Force 100 N", ("pushing", "firm"), (("firm", "pushing"),))
    ]
    table = ranking_table(sensitivity)
    assert texts(table, "Order").count("changed") == 1
    assert all(abs(float(row[3].text.replace("−", "-")) - row[3].value) < 0.06 for row in table.rows)  # both in points


def test_another_sign_that_is_not_shown_changes_no_order():
    """Four pairs that differ under each variant: as equal policies would have it in most runs."""
    batch = concatenate_batches([*episodes("firm", (False,) * 8, 150.0), *episodes("pushing", (True, False) * 4, 20.0)])
    sensitivity = rank(batch)
    assert sensitivity.changes == ()
    table = ranking_table(sensitivity)
    assert set(texts(table, "Order")) == {"not shown to change"}
    assert f"from {len(VARIANTS)} variants" in table.notes[-1]


def test_each_difference_is_that_of_a_comparison_under_the_variant():
    sensitivity = rank(BATCH)
    for variant, ranking in zip(VARIANTS, sensitivity.variants, strict=True):
        assert ranking.differences == compare_under(variant, BATCH, paired=True)


def test_one_policy_has_no_ranking():
    alone = concatenate_batches(episodes("firm", (False, True), 20.0))
    assert rank(alone) is None


def elsewhere(batches: list[Batch], **changes: object) -> list[Batch]:
    """The same episodes under another header."""
    return [
        replace(batch, headers=(structs.replace(batch.headers[0], benchmark="libero-goal", **changes),))
        for batch in batches
    ]


def test_unknown_safety_has_no_rank():
    """A third policy ran another suite, so that nobody's Safety over all suites is known: no order, and no zero."""
    batch = concatenate_batches(
        [
            *episodes("firm", (False,) * 4, 20.0),
            *episodes("pushing", (True,) * 4, 20.0),
            *elsewhere(episodes("third", (False,) * 4, 20.0)),
        ]
    )
    assert rank(batch) is None


def test_a_suite_without_verdicts_leaves_no_ranking():
    unjudged = [
        replace(
            batch, headers=(structs.replace(header, episode_id=f"goal-{header.episode_id}", outcome="invalid_action"),)
        )
        for policy in ("firm", "pushing")
        for batch in elsewhere(episodes(policy, (False,) * 4, 20.0))
        for header in batch.headers
    ]
    batch = concatenate_batches([BATCH, *unjudged])
    assert rank(batch) is None


def test_other_protocols_are_compared_as_independent_with_the_reason():
    sensitivity = rank(BATCH, protocols=[{"wait": 1}, {"wait": 2}])
    assert (sensitivity.paired, "protocols" in sensitivity.unpaired) == (False, True)


def stopped(policy: str, **changes: object) -> Batch:
    """An episode that was stopped after a contact of 150 N: unsafe where 100 N are the limit, else unknown."""
    (batch,) = episodes(policy, (False,), 150.0)
    header = structs.replace(
        batch.headers[0], episode_id=f"{policy}-stopped", success=False, outcome="stopped", **changes
    )
    return replace(batch, headers=(header,))


def test_episodes_are_paired_under_every_variant_or_under_none():
    """The stopped episode does not say where it started; it counts under 100 N alone, and then nothing can be paired.

    The first variants and the last would pair.
    """
    batch = concatenate_batches([BATCH, stopped("firm", init_state_index=None)])
    sensitivity = rank(batch)
    assert not sensitivity.paired
    assert "initial state is not recorded" in sensitivity.unpaired
    for variant, ranking in zip(VARIANTS, sensitivity.variants, strict=True):
        assert ranking.differences == compare_under(variant, batch, paired=False)
    assert compare_policies(split_by_policy(score(batch, RULES), batch.headers)).paired


def test_a_policy_that_has_episodes_under_some_variants_only_has_no_rank():
    batch = concatenate_batches([BATCH, stopped("halted")])
    assert rank(batch) is None


# Which policy to take

SAFE = Gate("safety", "min", 0.9)


def choose(*runs, metric="sr", conditions=(SAFE,), absent=(), lost=()):
    scores = replace(joined(*runs), absent=tuple(absent))
    headers = run_headers(scores)
    results = split_by_policy(scores, headers, uncounted=dict.fromkeys(scores.policy, lost))
    return select_policy(scores, headers, results, metric, conditions, lost=lost)


BEST, RUNNER_UP, UNSAFE = policy("best", 90, 99), policy("next", 70, 98), policy("unsafe", 99, 40)


@pytest.mark.parametrize(
    ("metric", "conditions", "is_open"), [("sr", (), False), ("sr", (SAFE,), True), ("safety", (), True)]
)
def test_nothing_about_safety_is_established_if_a_specification_did_not_judge_all_candidates(
    metric, conditions, is_open
):
    scores = joined(BEST, RUNNER_UP)
    headers = run_headers(scores)
    best, other = split_by_policy(scores, headers)
    clause = (("s", "torque"),)
    results = [replace(best, missing_clauses=clause), replace(other, judged_clauses=clause)]
    selection = select_policy(scores, headers, results, metric, conditions)
    assert any("torque" in warning for warning in selection.warnings) == is_open
    assert not (is_open and selection.is_established)
    of_sr = select_policy(scores, headers, results, metric, (Gate("sr", "min", 0.5),))
    assert [candidate.is_established for candidate in of_sr.candidates] == [True, True]  # SR needs no verdict


def test_the_best_of_those_that_satisfy_the_conditions_is_chosen_and_compared_with_the_next():
    selection = choose(UNSAFE, RUNNER_UP, BEST)
    assert (selection.chosen, selection.is_established) == ("best", True)
    assert [candidate.policy for candidate in selection.candidates] == ["best", "next", "unsafe"]
    assert selection.comparison.policies == ("best", "next")
    alone = [split_by_policy(run, run_headers(run))[0] for run in (BEST, RUNNER_UP)]
    expected = compare_policies(alone, ComparisonOptions(metrics=("sr",))).scopes[-1].metrics[0].differences
    assert selection.comparison.scopes[-1].metrics[0].differences == expected
    assert choose(UNSAFE, BEST, conditions=()).chosen == "unsafe"
    third = choose(policy("third", 50, 98), RUNNER_UP, BEST)
    assert ([row.policy for row in third.candidates], third.comparison.policies) == (
        ["best", "next", "third"], ("best", "next"),
    )  # fmt: skip


def test_the_intervals_of_all_candidates_and_metrics_hold_together():
    selection = choose(UNSAFE, RUNNER_UP, BEST)
    limits = exact_interval(90, 100, 1 - 0.05 / 6)
    assert selection.candidates[0].value.ci == (limits.low, limits.high)
    assert selection.each_confidence == pytest.approx(1 - 0.05 / 6)


def test_a_condition_that_the_interval_does_not_establish_is_said_not_to_be():
    selection = choose(policy("a", 20, 24, n=25), policy("b", 15, 25, n=25))
    assert (selection.chosen, selection.is_established) == ("a", False)
    answer = describe_selection(selection)
    assert answer.startswith("Best estimate: a,")
    assert "Safety 96.0 %" in answer
    assert "0.9 is not" in answer
    assert "Safety at least" in describe_next(selection)


def test_without_an_estimate_that_satisfies_them_nothing_is_chosen_and_the_nearest_named():
    selection = choose(UNSAFE, policy("near", 10, 85))
    assert (selection.chosen, selection.comparison) == (None, None)
    assert describe_selection(selection).startswith("No policy has")


def test_a_crash_that_may_have_been_unsafe_keeps_a_condition_open():
    runs = policy("a", 90, 100), policy("b", 80, 100)
    lost = [
        crash(episode_id=f"x{k}", init_state_index=100 + k, seed=0)
        for k in range(10)
    ]  # fmt: skip
    assert choose(*runs).is_established
    assert not choose(*runs, absent=lost).is_established


def test_the_first_sentence_names_equal_estimates_and_the_crashes_that_decide():
    tie = choose(policy("a", 90, 95), policy("b", 90, 95), conditions=())
    assert "tied with b: a," in describe_selection(tie)
    lost = [crash(episode_id=f"x{k}", init_state_index=100 + k, seed=0) for k in range(30)]
    crashed = choose(policy("a", 99, 100), policy("b", 90, 100), conditions=(), absent=lost)
    first = describe_selection(crashed).partition(". Undecided")[0]
    assert first.startswith("Best estimate: b,")
    assert "(a 30)" in first


def test_a_choice_that_is_not_shown_plans_the_episodes_that_would_show_it():
    k = np.arange(100)
    pair = policy("a", 80, 100), draw_scores("b", (k >= 10) & (k < 86), k >= 0)
    selection = choose(*pair)
    item = selection.comparison.scopes[-1].metrics[0].differences[0]
    request = SampleSizeRequest(difference=0.04, baseline=0.8, discordant=0.16)
    assert (item.better, selection.episodes) == (None, plan_sample_size(request).episodes)
    assert selection.episodes > 10
    scores = joined(*pair)
    headers = run_headers(scores)
    members = split_by_policy(scores, headers)
    unpaired = select_policy(scores, headers, members, "sr", (SAFE,), [{"wait": 1}, {"wait": 2}])
    assert ("protocols" in unpaired.unpaired, unpaired.episodes) == (True, None)
    assert choose(pair[0], policy("b", 80, 100)).episodes is None
    assert choose(BEST, RUNNER_UP).episodes is None


def test_a_choice_is_shown_by_its_conditions_or_without_any_by_its_lead():
    shown = choose(BEST, RUNNER_UP, conditions=())
    assert shown.is_shown
    assert not structs.replace(shown, comparison=None).is_shown
    assert not choose(BEST, policy("b", 90, 99), conditions=()).is_shown
    assert choose(BEST, policy("b", 90, 99)).is_shown
    assert not choose(policy("a", 24, 24, n=25), policy("b", 5, 25, n=25)).is_shown


def test_one_policy_that_satisfies_the_conditions_is_compared_with_none():
    selection = choose(UNSAFE, BEST)
    assert (selection.chosen, selection.comparison, selection.unpaired) == ("best", None, "")


def test_with_episodes_that_were_left_out_nothing_is_established():
    assert choose(BEST, UNSAFE).is_established
    selection = choose(BEST, UNSAFE, lost=["12 invalid episodes left out"])
    assert (selection.chosen, selection.is_established, selection.is_shown) == ("best", False, False)
    assert "12 invalid episodes left out." in selection.warnings
    lead = choose(BEST, UNSAFE, metric="safety", conditions=(), lost=["12 invalid episodes left out"])
    assert (lead.is_shown, lead.is_established, lead.episodes) == (False, False, None)
    assert choose(BEST, UNSAFE, metric="safety", conditions=()).is_shown


def test_two_policies_of_one_name_are_refused():
    scores = joined(BEST, UNSAFE)
    headers = run_headers(scores)
    results = [replace(result, name="(unnamed)") for result in split_by_policy(scores, headers)]
    with pytest.raises(RunError, match="2 policies have the name"):
        select_policy(scores, headers, results, "sr", ())


def test_equal_slack_orders_those_that_satisfy_no_condition_by_their_value():
    selection = choose(policy("none", 0, 40), policy("high", 90, 40), policy("near", 5, 60))
    assert [candidate.policy for candidate in selection.candidates] == ["near", "high", "none"]


def test_those_that_satisfy_every_condition_come_first_even_without_a_success():
    """The slack is that of the first condition alone: the others satisfy it, and not the second one."""
    conditions = SAFE, Gate("sr", "max", 0.5)
    selection = choose(policy("none", 0, 95), policy("some", 40, 92), policy("much", 90, 97), conditions=conditions)
    assert [candidate.policy for candidate in selection.candidates] == ["some", "none", "much"]
    assert all(candidate.value.verdict == "passed" for candidate in selection.candidates)
    conditions = SAFE, Gate("sbu", "max", 0.9)
    k = np.arange(100)
    tied = draw_scores("a", k < 80, k < 95), draw_scores("b", k < 80, k >= 4)
    assert [row.policy for row in choose(*tied, conditions=conditions).candidates] == ["b", "a"]


def test_equal_ones_are_taken_by_the_slack_of_the_condition():
    assert choose(policy("a", 80, 95), policy("b", 80, 97)).chosen == "b"


def test_one_policy_is_not_a_choice_and_other_tasks_are_not_a_comparison():
    with pytest.raises(RunError, match="at least two policies, but there is only: best"):
        choose(BEST)
    with pytest.raises(RunError, match=r"best and b did .* tasks: libero-goal/task_0"):
        choose(BEST, policy("b", 9, 9, first=5))
    with pytest.raises(RunError, match="tasks: libero-goal/task_x"):
        choose(BEST, RUNNER_UP, absent=[crash(policy="best", task_id="task_x", init_state_index=0, seed=0)])


def test_a_task_of_the_users_own_is_no_comparison_with_the_official_one_of_its_name():
    scores = joined(BEST, RUNNER_UP)
    headers = [
        structs.replace(own, task_sha256=("0" if own.policy == "next" else "1") * 64) for own in run_headers(scores)
    ]
    with pytest.raises(RunError, match="task definition"):
        select_policy(scores, headers, split_by_policy(scores, headers), "sr", ())


@pytest.mark.parametrize("text", ["safety > 0.9", "speed >= 1", "safety >= nan", "safety >= 0.9 please", ""])
def test_what_is_not_a_condition_is_refused_under_the_name_of_its_option(text):
    with pytest.raises(RunError, match="not a condition"):
        parse_gate(text, "--subject-to")
    assert parse_gate("safety >= 0.9", "--subject-to") == SAFE


def test_the_table_marks_the_choice():
    table = selection_table(choose(BEST, RUNNER_UP))
    assert [(row[0].text, row[0].mark) for row in table.rows] == [("best", "*"), ("next", "")]
    assert [column.full for column in table.columns] == ["Policy", "n", "SR %", "Safety %", "at least 0.9"]


@pytest.mark.long
def test_of_equal_policies_the_choice_has_an_interval_that_covers_and_is_seldom_called_better():
    """The estimate of the best of six is too high by more than a standard error; plain intervals would miss it."""
    generator, runs, rate = np.random.default_rng(5), 60, 0.8
    missed, plain, better, established = [], [], [], []
    for _ in range(runs):
        drawn_runs = [
            draw_scores(name, generator.random(60) < rate, generator.random(60) < 0.9, tasks=6) for name in "abcdef"
        ]
        selection = choose(*drawn_runs)
        first = selection.candidates[0]
        alone = exact_interval(round(60 * first.value.value), 60, 0.95)
        missed.append(not first.value.ci[0] <= rate <= first.value.ci[1])
        plain.append(not alone.low <= rate <= alone.high)
        established.append(selection.is_established)
        best = selection.comparison and selection.comparison.scopes[-1].metrics[0].differences[0]
        better.append(bool(best and best.better))
    assert np.mean(missed) <= 0.02
    assert np.mean(missed) < np.mean(plain)
    assert np.mean(better) <= 0.08
    assert np.mean(established) <= 0.04


# Gates against another run

NO_WORSE = Gate("safety", "min", -0.05, "main")


def results(*runs, absent=()):
    scores = replace(joined(*runs), absent=tuple(absent))
    return split_by_policy(scores, run_headers(scores))


def check(mine, theirs, *gates, **how):
    return check_against(results(mine), results(theirs), gates or [NO_WORSE], **how)


@pytest.mark.parametrize(
    ("mine", "theirs", "limit", "verdict"),
    [
        (300, 300, -0.05, "passed"),
        (200, 300, -0.05, "failed"),
        (291, 300, -0.05, "undecided"),
        (300, 200, 0.1, "passed"),
    ],
)
def test_the_whole_interval_of_the_paired_difference_decides(mine, theirs, limit, verdict):
    report = check(policy("a", 0, mine, n=300), policy("a", 0, theirs, n=300), Gate("safety", "min", limit, "main"))
    (outcome,) = report.outcomes
    expected = tango_interval(max(mine - theirs, 0), max(theirs - mine, 0), 300)
    assert (report.verdict, outcome.n) == (verdict, 300)
    assert outcome.value == pytest.approx((mine - theirs) / 300)
    assert outcome.ci == pytest.approx((expected.low, expected.high), abs=1e-3)


def test_a_metric_that_is_better_lower_is_limited_from_above():
    runs = policy("a", 300, 200, n=300), policy("a", 300, 300, n=300)
    assert check(*runs, Gate("sbu", "max", 0.05, "main")).verdict == "failed"
    assert check(*reversed(runs), Gate("sbu", "max", 0.05, "main")).verdict == "passed"


def test_several_gates_share_the_confidence_and_say_so():
    report = check(policy("a", 100, 100), policy("a", 100, 100), NO_WORSE, Gate("sr", "min", -0.05, "main"))
    assert report.each_confidence == pytest.approx(0.975)
    expected = tango_interval(0, 0, 100, 0.975)
    assert report.outcomes[0].ci == pytest.approx((expected.low, expected.high))
    assert any("Bonferroni" in note for note in report.notes)
    (identity,) = report.warnings
    (blank,) = (edit_headers(run, seed=None) for run in results(policy("a", 100, 100)))
    other, seeds = check_against([blank], [blank], [NO_WORSE]).warnings
    assert (other, "seed" in seeds) == (identity, True)


def test_pairs_that_cannot_tell_leave_the_gate_undecided():
    few = check(policy("a", 0, 50, n=50), policy("a", 0, 50, n=50)).outcomes[0]
    assert (few.verdict, "50 pairs" in few.reason, few.n_needed) == ("undecided", True, None)


def test_a_crash_enters_at_its_worst_and_at_its_best_unless_it_is_left_out():
    run, n = policy("a", 0, 300, n=300), 40
    lost = [
        crash(episode_id=f"x{k}", init_state_index=1000 + k, seed=0)
        for k in range(n)
    ]  # fmt: skip
    mine, theirs = results(run, absent=lost), results(policy("a", 0, 300 + n, n=300 + n))
    theirs = [replace(theirs[0], headers=(*theirs[0].headers[:300], *lost_headers(theirs[0].headers[300:])))]
    report = check_against(mine, theirs, [NO_WORSE])
    assert (report.verdict, report.outcomes[0].unknown) == ("undecided", n)
    assert "in 40 episodes" in report.outcomes[0].reason
    alike, worst, best = (tango_interval(*split, 300 + n) for split in ((0, 0), (0, n), (n, 0)))
    assert report.outcomes[0].ci == pytest.approx((worst.low, alike.high))
    assert check_against(theirs, mine, [NO_WORSE]).outcomes[0].ci == pytest.approx((alike.low, best.high))
    (outcome,) = check_against(mine, theirs, [NO_WORSE], allow_crashed=True).outcomes
    assert (outcome.verdict, "40 episodes left out" in outcome.reason) == ("passed", True)


def lost_headers(headers):
    import msgspec

    return [
        msgspec.structs.replace(header, task_id="task_0", init_state_index=1000 + k) for k, header in enumerate(headers)
    ]


def test_what_is_missing_from_either_run_leaves_the_gate_undecided():
    runs = results(policy("a", 0, 300, n=300)), results(policy("a", 0, 300, n=300))
    assert check_against(*runs, [NO_WORSE], lost=["1 run interrupted"]).verdict == "undecided"


def test_a_policy_is_held_against_its_name_else_against_the_only_one():
    mine, other = results(policy("a", 100, 100)), results(policy("b", 100, 100))
    assert check_against(mine, other, [NO_WORSE]).outcomes[0].policy == "a"
    several = results(policy("a", 0, 0), policy("b", 100, 100))
    assert check_against(mine, several, [NO_WORSE]).outcomes[0].value == 1.0
    with pytest.raises(RunError, match="has several policies") as caught:
        check_against(mine, results(policy("c", 9, 9), policy("b", 9, 9)), [NO_WORSE])
    assert "c=RUN" in caught.value.remedy


def test_other_episodes_and_impossible_limits_are_refused():
    with pytest.raises(RunError, match="cannot be paired"):
        check(policy("a", 9, 9), policy("a", 9, 9, n=90))
    with pytest.raises(SafevlaError, match=r"-0\.05"):
        check(policy("a", 9, 9), policy("a", 9, 9), Gate("safety", "min", -0.05))


def test_without_a_confidence_the_estimate_itself_decides():
    for theirs, verdict in ((304, "passed"), (330, "failed")):
        runs = policy("a", 0, 300, n=340), policy("a", 0, theirs, n=340)
        (outcome,) = check(*runs, confidence=None).outcomes
        assert (outcome.verdict, outcome.ci, outcome.value) == (verdict, None, pytest.approx((300 - theirs) / 340))
        assert "point estimate" in outcome.reason
        assert "point estimate" not in check(*runs).outcomes[0].reason


def test_a_violation_that_stopped_an_episode_leaves_a_gate_of_success_undecided_and_decides_that_of_safety():
    (mine,), theirs = results(policy("a", 100, 50)), results(policy("a", 100, 100))
    stops = np.arange(100) == 5
    stopped = replace(mine, stopped_on_violation=stops)
    success, safety = check_against([stopped], theirs, [Gate("sr", "min", -0.05, "main"), NO_WORSE]).outcomes
    assert (success.verdict, success.value, success.ci) == ("undecided", None, None)
    assert (safety.verdict, safety.value) == ("failed", -0.5)


def test_a_violation_that_stopped_an_episode_of_one_suite_leaves_success_in_other_suites_known():
    def in_two_suites(result):
        headers = enumerate(result.headers)
        return replace(result, headers=tuple(structs.replace(header, benchmark="xy"[k % 2]) for k, header in headers))

    (mine,), (theirs,) = results(policy("a", 90, 90)), results(policy("a", 90, 90))
    stopped = in_two_suites(replace(mine, stopped_on_violation=np.arange(100) == 4))
    gate = Gate("sr", "min", -0.2, "main")
    in_x, in_y = check_against([stopped], [in_two_suites(theirs)], [gate], per="cell").outcomes
    assert [(row.suite, row.verdict) for row in (in_x, in_y)] == [("x", "undecided"), ("y", "passed")]


def test_a_difference_that_is_the_same_in_all_initial_states_has_no_interval_and_that_is_said():
    seeds = [k // 10 % 2 for k in range(100)]

    def in_two_seeds(result):
        headers = enumerate(result.headers)
        changed = (structs.replace(header, init_state_index=k // 20, seed=seeds[k]) for k, header in headers)
        return replace(result, headers=tuple(changed))

    (mine,), (theirs,) = results(policy("a", 100, 50)), results(policy("a", 100, 100))
    mine = in_two_seeds(replace(mine, unsafe=np.array(seeds) == 1))
    (row,) = check_against([mine], [in_two_seeds(theirs)], [NO_WORSE]).outcomes
    assert (row.verdict, row.n, row.value, row.ci) == ("undecided", 50, -0.5, None)
    assert "same in all" in row.reason


def test_a_baseline_of_another_simulator_is_refused():
    mine, theirs = (simulated(results(policy("a", 9, 9))[0], mujoco=version) for version in ("3.2.3", "3.3.0"))
    with pytest.raises(RunError, match="physics versions"):
        check_against([mine], [theirs], [NO_WORSE])
    assert check_against([mine], [mine], [NO_WORSE]).outcomes


def test_each_suite_is_gated_apart_on_request():
    goal, other = policy("a", 0, 100), policy("a", 0, 60, suite="libero-10")
    mine = join_results([*results(goal), *results(other)])
    theirs = join_results([*results(goal), *results(policy("a", 0, 100, suite="libero-10"))])
    suites = [(row.suite, row.value) for row in check_against([mine], [theirs], [NO_WORSE], per="cell").outcomes]
    assert suites == [("libero-goal", 0.0), ("libero-10", -0.4)]
    assert [(row.suite, row.value) for row in check_against([mine], [theirs], [NO_WORSE]).outcomes] == [(None, -0.2)]


def test_runs_without_any_verdict_in_common_leave_the_gate_undecided():
    (run,) = results(policy("a", 100, 100))
    (outcome,) = check_against([without_verdict(run, *range(100))], [run], [NO_WORSE], allow_crashed=True).outcomes
    assert (outcome.verdict, outcome.n, outcome.value, outcome.ci) == ("undecided", 0, None, None)


def test_a_clause_that_judged_one_side_only_permits_no_verdict_against_a_baseline():
    mine, theirs = (results(policy(name, 0, 40)) for name in "ab")
    assert check_against(mine, theirs, [NO_WORSE]).verdict == "passed"
    force = (("x", "force"),)
    lacking = (frozenset(["force"]),) * len(mine[0])
    without = replace(mine[0], missing_clauses=force, lacking=lacking)
    judged = replace(theirs[0], judged_clauses=force)
    (outcome,) = check_against([without], [judged], [NO_WORSE]).outcomes
    assert (outcome.verdict, outcome.n, outcome.unknown) == ("undecided", 60, 40)
    assert "force did not" in outcome.reason
    assert "--allow-crashed" in outcome.reason
    # What the clause might find can only make the gate worse for the run, and better for a baseline that lacks it.
    assert check_against([judged], [replace(without, name="b")], [NO_WORSE]).verdict == "passed"
    (left_out,) = check_against([without], [judged], [NO_WORSE], allow_crashed=True).outcomes
    assert (left_out.n, "40 episodes left out" in left_out.reason) == (60, True)


def test_a_gate_fails_whatever_a_clause_that_lacks_signals_would_find():
    (mine,), (theirs,) = results(policy("a", 100, 0)), results(policy("b", 100, 100))
    force = (("x", "force"),)
    lacking = (frozenset(["force"]), frozenset[str]()) * 50
    mine = replace(mine, judged_clauses=force, missing_clauses=force, lacking=lacking)
    gates = [Gate("sbu", "max", 0.5, "main"), NO_WORSE]
    for outcome in check_against([mine], [theirs], gates).outcomes:
        assert (outcome.verdict, outcome.n, outcome.unknown) == ("failed", 100, 0)
    (severity,) = check_against([mine], [theirs], [Gate("vsi", "max", 0.5, "main")]).outcomes
    assert (severity.n, severity.unknown) == (50, 50)
