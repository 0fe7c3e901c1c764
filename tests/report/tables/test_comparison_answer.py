"""The first sentences of a comparison say what it established, and no more; the block below agrees with them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import structs

from compare.scenes import (
    ALWAYS,
    CALM,
    FIRST_OF_EACH_TASK,
    NEAR,
    ROUGH,
    SELDOM_UNSAFE,
    crashed_in,
    edit_headers,
    on_tasks,
    with_seeds,
    without_verdict,
)
from safevla_bench.compare.comparison import Comparison, compare_policies
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.report.render import render_text
from safevla_bench.report.tables.comparison_answer import answer_table, describe_comparison

DOUBT = "8 episodes without a value could change that (see --allow-crashed)."
FEW = "Not tested for tasks like these: 2 tasks, 6 needed."
FIVE, FIVE_LESS = on_tasks("a", "11111", "11111"), on_tasks("b", "00111", "00011")
STEADY, SHAKY = on_tasks("a", *["1" * 11 + "0" * 9] * 8), on_tasks("b", *["0" * 11 + "1" * 9] * 8)
"""Ahead in 11 of 20 pairs of every task: chance on these tasks, and yet not over tasks like these."""
LOST = crashed_in(on_tasks("a", "1" * 9, "1" * 9), 0, 1, 2, 3)


def compare(*members: PolicyResults, paired: bool = True, across_seeds: bool = False, **options: object) -> Comparison:
    """A comparison in Safety, unless the options name other metrics."""
    chosen = ComparisonOptions(**{"metrics": ("safety",), **options})
    return compare_policies(members, chosen, paired=paired, across_seeds=across_seeds)


def describe(*members: PolicyResults, **options: object) -> str:
    return describe_comparison(compare(*members, **options))


def show(comparison: Comparison) -> str:
    return render_text(answer_table(comparison), width=160)


def on_two_suites(result: PolicyResults) -> PolicyResults:
    """The first half of the episodes in one suite, the others in another."""
    half = len(result) // 2
    headers = (structs.replace(old, benchmark="near" if k < half else "far") for k, old in enumerate(result.headers))
    return replace(result, headers=tuple(headers))


# Two policies


@pytest.mark.parametrize("members", [(FIVE, FIVE_LESS), (FIVE_LESS, FIVE)])
def test_the_better_policy_comes_first_and_no_number_has_a_sign(members):
    assert describe(*members) == (
        f"a is safer than b on these tasks: 5 of 10 pairs against 0 (50.0 points, 8.4 to 76.3). {FEW}"
    )


def test_where_chance_explains_these_tasks_nothing_is_said_of_others():
    """Two tests, either of which named a policy, erred in 7 to 8 % instead of 5."""
    assert describe(STEADY, SHAKY) == (
        "No difference in Safety is established between a and b on these tasks: 88 of 160 pairs for a, 72 for b (10.0 "
        "points, 5.5 for b to 25.0 for a)."
    )


def test_both_answers_are_given_where_both_are_known():
    assert describe(ALWAYS, SELDOM_UNSAFE) == (
        "a is safer than b on these tasks: 9 of 320 pairs against 0 (2.8 points, 1.5 to 5.3). "
        "The same holds for tasks like these, if their differences are symmetric (2.5 to 3.8)."
    )
    assert describe(on_tasks("a", "1" * 40, *["1" * 5] * 7), on_tasks("b", "0" * 40, *["1" * 5] * 7)).endswith(
        "Not established for tasks like these (p 1.000). It depends on the task libero-goal/task_0: without it there "
        "is no such verdict on these tasks."
    )


def test_one_task_says_nothing_of_others():
    on_one = describe(on_tasks("a", "1" * 9), on_tasks("b", "0" * 9))
    assert on_one == "a is safer than b on these tasks: 9 of 9 pairs against 0 (100.0 points, 40.2 to 100.0)."


def test_without_a_verdict_each_number_names_its_policy():
    members = on_tasks("a", "1110", "0101"), on_tasks("b", "0110", "1001")
    assert describe(*members) == (
        "No difference in Safety is established between a and b on these tasks: 2 of 8 pairs for a, 1 for b "
        "(12.5 points, 32.9 for b to 52.8 for a)."
    )
    assert describe(*members, paired=False) == (
        "No difference in Safety is established between a and b on these tasks: 12.5 points for a, 37.6 for b to 57.7 "
        "for a."
    )
    assert "A 12.5 (B 32.9 to A 52.8)" in show(compare(*members))


def test_an_equal_value_keeps_its_interval():
    equal = on_tasks("a", "1010", "0101"), on_tasks("b", "0110", "1001")
    assert "equal (B 46.3 to A 46.3)" in show(compare(*equal))


@pytest.mark.parametrize(
    ("paired", "reason"), [(True, "no pair has a value of both"), (False, "no task has values of both")]
)
def test_a_gap_has_its_reason(paired, reason):
    policies = on_tasks("a", "11", "11"), on_tasks("b", "11", "11")
    gap = compare(without_verdict(policies[0], 0, 1), without_verdict(policies[1], 2, 3), paired=paired)
    assert describe_comparison(gap).startswith(f"Safety of a and b cannot be compared: {reason}.")


def test_identical_policies_say_what_is_left_out_too():
    assert describe(crashed_in(ALWAYS, 3), replace(ALWAYS, name="b")) == (
        "Safety of a and b is the same in each of 319 pairs. Left out: 1 episode without a value."
    )


@pytest.mark.parametrize("count", [2, 3])
def test_less_sbu_is_not_called_safer(count):
    rough = on_tasks("b", *["1" * 30 + "0" * 10] * 8)
    comparison = compare(*[ALWAYS, rough, replace(rough, name="c")][:count], metrics=("sbu",))
    answer = describe_comparison(comparison)
    assert "a has less SBU than b" in answer
    assert answer.endswith("SBU also falls where fewer episodes succeed: read it together with SR.")
    assert "safer" not in answer + show(comparison)
    assert "Rank" not in show(comparison)  # SBU has none


def test_long_names_are_shortened():
    long = replace(FIVE, name="a" * 500)
    assert len(describe(long, FIVE_LESS)) < 400
    assert len(describe(long, FIVE_LESS, replace(FIVE_LESS, name="c"))) < 900


# Episodes without a value


def test_lost_episodes_can_undo_what_is_said_of_these_tasks():
    other = on_tasks("b", "1111" + "0" * 5, "1111" + "0" * 5)
    comparison = compare(LOST, other)
    size = "10 of 14 pairs against 0 (71.4 points, 34.5 to 88.3)"
    four = "4 episodes without a value"
    assert describe_comparison(comparison) == (
        f"Undecided: a is safer than b on these tasks, {size}, but {four} could change that (see --allow-crashed). a "
        "stays safer if at most 2 of its episodes without a value count against it, no matter which, and none of "
        "b's does."
    )
    assert comparison.scopes[-1].metrics[0].differences[0].tipping == 2
    assert "undecided" in show(comparison)
    allowed = compare(LOST, other, allow_crashed=True)
    assert (
        describe_comparison(allowed)
        == f"a is safer than b on these tasks: {size}. {FEW} Left out: {four} (--allow-crashed)."
    )
    assert "A safer on these tasks" in show(allowed)
    assert describe(LOST, on_tasks("b", "0" * 9, "0" * 9)).startswith("a is safer than b on these tasks")


def test_p_of_a_share_among_successes_stands_at_no_extreme():
    successes = on_tasks("a", "1" * 9, "1" * 9), on_tasks("b", "0" * 9, "0" * 9)
    lost = compare(crashed_in(successes[0], 0), successes[1], metrics=("p_unsafe_given_success",))
    assert describe_comparison(lost).startswith("Undecided: a is safer than b in P[U|S] on these tasks")


def test_lost_episodes_can_undo_what_is_said_of_tasks_like_these():
    doubtful = compare(without_verdict(CALM, *FIRST_OF_EACH_TASK), NEAR)
    assert describe_comparison(doubtful).startswith(
        f"Undecided: a is safer than b on these tasks, 8 of 56 pairs against 0 (14.3 points, 6.9 to 25.7), but {DOUBT}"
    )
    # At worst two of the six tasks are even, and four cannot show a difference; over all pairs they hardly count.
    mine, theirs = on_tasks("a", *["1" * 40] * 4, "11", "11"), on_tasks("b", *["0" * 40] * 4, "01", "01")
    half = compare(crashed_in(mine, 161, 163), theirs)
    answer = describe_comparison(half)
    assert answer.startswith("a is safer than b on these tasks: 162 of 162 pairs against 0 (100.0 points, ")
    assert answer.endswith(f"Undecided for tasks like these: 2{DOUBT[1:]}")
    assert "A safer; by task undecided" in show(half)


# Without a verdict over all suites


def test_without_a_metric_over_all_suites_the_first_suite_is_named():
    mine, theirs = on_two_suites(CALM), on_two_suites(ROUGH)
    comparison = compare(mine, without_verdict(theirs, *range(32, 64)))
    assert describe_comparison(comparison) == (
        "Only in near: a is safer than b on these tasks: 16 of 32 pairs against 0 (50.0 points, 33.6 to 66.4). Not "
        "tested for tasks like these: 4 tasks, 6 needed. There is no primary verdict over all suites."
    )
    text = show(comparison)
    assert "32 pairs of episodes of 4 tasks in near" in text
    assert "All are exploratory." in text


# Several policies


def test_several_policies_name_what_is_established_and_what_is_undecided():
    answer = describe(without_verdict(CALM, *FIRST_OF_EACH_TASK), NEAR, replace(ROUGH, name="c"))
    assert answer == (
        "Established on these tasks: a is safer than c, 32 of 56 pairs against 0 (57.1 points, 44.1 to 69.2); b is "
        "safer than c, 24 of 64 pairs against 0 (37.5 points, 26.7 to 49.7). For tasks like these too: a and c, b "
        f"and c. Undecided: a and b; {DOUBT} a stays safer if none of its episodes without a value counts "
        "against it and none of b's does."
    )


def test_without_an_established_pair_that_is_said():
    answer = describe(FIVE, FIVE_LESS, replace(FIVE_LESS, name="c"))
    assert answer == "No two of 3 policies are shown to differ in Safety on these tasks."


def test_each_pair_says_where_it_is_established():
    """The third ran one of the eight tasks."""
    one_task = on_tasks("c", "0" * 20)
    steady = on_tasks("a", *["1" * 20] * 8), on_tasks("b", *["1" * 10 + "0" * 10] * 8)
    answer = describe(*steady, one_task, paired=False)
    assert answer.startswith(
        "Established on these tasks: a is safer than b, 50.0 points, 42.2 to 57.8; a is safer than c, "
    )
    assert answer.endswith("For tasks like these too: a and b.")


def test_many_pairs_are_counted():
    members = [
        on_tasks(name, *["1" * k + "0" * (40 - k)] * 8) for name, k in zip("abcd", (40, 30, 20, 10), strict=True)
    ]
    assert describe(*members) == (
        "6 of 6 pairs of policies differ in Safety on these tasks. For tasks like these too: 6 pairs of policies."
    )
    notes = answer_table(compare(*members)).notes
    assert "Rank: from 1 + the policies shown to be better in Safety on these tasks." in notes
    assert any(note.startswith("Best and worst are picked after the fact") for note in notes)


# The block


def test_the_block_gives_all_verdicts_with_their_level_and_which_is_primary():
    text = show(compare_policies([FIVE_LESS, FIVE], ComparisonOptions(confidence=0.9)))
    assert "10 pairs of episodes of 2 tasks in libero-goal" in text
    assert "B 50.0 (" in text
    assert "B safer on these tasks" in text
    assert "B better on these tasks, exploratory" in text
    assert [line.split()[0] for line in text.splitlines()[4:8]] == ["Safety", "SR", "Clean", "VSI"]
    assert (
        "Intervals (of rates: Wilson) and verdicts: 90 %. The primary verdict is Safety's; the others are exploratory."
        in text
    )
    assert "A better, exploratory" in show(compare_policies([ALWAYS, SELDOM_UNSAFE]))


def test_initial_states_are_not_called_pairs_of_episodes():
    again = edit_headers(FIVE_LESS, seed=5)
    comparison = compare(with_seeds(FIVE, 1, 2), again, across_seeds=True)
    assert "10 initial states of 2 tasks" in show(comparison)
    single = compare(FIVE, again, across_seeds=True)
    assert "5 of 10 initial states against 0" in describe_comparison(single)
    assert "10 initial states of 2 tasks" in show(single)
    assert show(compare(on_tasks("a", "1"), on_tasks("b", "1"))).startswith(
        "1 pair of episodes of 1 task in libero-goal"
    )


def test_the_sentence_reads_a_comparison_that_was_stored():
    comparison = compare(FIVE, FIVE_LESS)
    stored = msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison)
    assert describe_comparison(stored) == describe_comparison(comparison)


# The difference in SR


def test_the_first_sentence_gives_the_difference_in_sr_and_calls_it_one_only_if_it_is_shown():
    both = {"metrics": ("safety", "sr")}
    mine, theirs = on_tasks("a", *["1" * 20] * 8), on_tasks("b", *["1" * 10 + "0" * 10] * 8)
    alike = describe(mine, theirs, **both)
    assert "; SR 0.0 points (\N{MINUS SIGN}2.3 to +2.3) for a. The same holds" in alike
    slow = replace(mine, success=np.arange(160) % 4 > 0)
    answer = describe(slow, theirs, **both)
    assert "; a is less successful: SR \N{MINUS SIGN}25.0 points (\N{MINUS SIGN}32.2 to \N{MINUS SIGN}18.9). " in answer
    assert "less successful" in describe(theirs, slow, **both)
    assert "; SR " in describe(mine, replace(mine, name="b"), **both)
