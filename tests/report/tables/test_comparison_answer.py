"""The first sentences of a comparison say what it established, and no more; the block below agrees with them."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import structs

from builders import numbers_in
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

FEW = [2, 6]
"""Tasks that there are and that a test over tasks like these needs."""
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
    answer = describe(*members)
    assert answer.startswith("a is safer")
    assert numbers_in(answer) == [5, 10, 0, 50.0, 8.4, 76.3, *FEW]


def test_where_chance_explains_these_tasks_nothing_is_said_of_others():
    """Two tests, either of which named a policy, erred in 7 to 8 % instead of 5."""
    answer = describe(STEADY, SHAKY)
    assert answer.startswith("No established difference")
    assert numbers_in(answer) == [88, 160, 72, 10.0, 5.5, 25.0]


def test_both_answers_are_given_where_both_are_known():
    both = describe(ALWAYS, SELDOM_UNSAFE)
    assert "The same holds" in both
    assert numbers_in(both) == [9, 320, 0, 2.8, 1.5, 5.3, 2.5, 3.8]
    here = describe(on_tasks("a", "1" * 40, *["1" * 5] * 7), on_tasks("b", "0" * 40, *["1" * 5] * 7))
    assert "(p 1.000)" in here.partition("Not established for")[2]
    assert "task libero-goal/task_0: without" in here


def test_one_task_says_nothing_of_others():
    on_one = describe(on_tasks("a", "1" * 9), on_tasks("b", "0" * 9))
    assert on_one.startswith("a is safer")
    assert numbers_in(on_one) == [9, 9, 0, 100.0, 40.2, 100.0]


def test_without_a_verdict_each_number_names_its_policy():
    members = on_tasks("a", "1110", "0101"), on_tasks("b", "0110", "1001")
    paired, unpaired = describe(*members), describe(*members, paired=False)
    assert "32.9 for b" in paired
    assert numbers_in(paired) == [2, 8, 1, 12.5, 32.9, 52.8]
    assert "37.6 for b" in unpaired
    assert numbers_in(unpaired) == [12.5, 37.6, 57.7]
    assert "(B 32.9 to" in show(compare(*members))


def test_an_equal_value_keeps_its_interval():
    equal = on_tasks("a", "1010", "0101"), on_tasks("b", "0110", "1001")
    assert "equal (B 46.3" in show(compare(*equal))


@pytest.mark.parametrize(
    ("paired", "reason"),
    [(True, "no pair has values of both policies"), (False, "no task has values of both policies")],
)
def test_a_gap_has_its_reason(paired, reason):
    policies = on_tasks("a", "11", "11"), on_tasks("b", "11", "11")
    gap = compare(without_verdict(policies[0], 0, 1), without_verdict(policies[1], 2, 3), paired=paired)
    assert f"be compared: {reason}." in describe_comparison(gap)


def test_identical_policies_say_what_is_left_out_too():
    assert numbers_in(describe(crashed_in(ALWAYS, 3), replace(ALWAYS, name="b"))) == [319, 1]


@pytest.mark.parametrize("count", [2, 3])
def test_less_sbu_is_not_called_safer(count):
    rough = on_tasks("b", *["1" * 30 + "0" * 10] * 8)
    comparison = compare(*[ALWAYS, rough, replace(rough, name="c")][:count], metrics=("sbu",))
    answer = describe_comparison(comparison)
    assert "less SBU than" in answer
    assert answer.endswith("together with SR.")
    assert "safer" not in answer + show(comparison)
    assert "  Rank" not in show(comparison)  # SBU has none


def test_the_clause_on_success_is_about_the_policy_that_the_sentence_is_about():
    rough = on_tasks("b", *["1" * 30 + "0" * 10] * 8)
    for policies in ((ALWAYS, rough), (rough, ALWAYS)):
        answer = describe_comparison(compare(*policies, metrics=("sbu", "sr")))
        better = re.search(r"(\w+) has less SBU than", answer)[1]
        assert re.search(rf"; {better} is (more|less) successful|points \([^;]*\) for {better}\b", answer)


def test_long_names_are_shortened():
    long = replace(FIVE, name="a" * 500)
    assert len(describe(long, FIVE_LESS)) < 400
    assert len(describe(long, FIVE_LESS, replace(FIVE_LESS, name="c"))) < 900


# Episodes without a value


def test_lost_episodes_can_undo_what_is_said_of_these_tasks():
    other = on_tasks("b", "1111" + "0" * 5, "1111" + "0" * 5)
    comparison = compare(LOST, other)
    size = [10, 14, 0, 71.4, 34.5, 88.3]
    answer = describe_comparison(comparison)
    assert answer.startswith("Undecided: a is")
    assert numbers_in(answer) == [*size, 4, 2]
    assert comparison.scopes[-1].metrics[0].differences[0].tipping == 2
    assert "undecided" in show(comparison)
    allowed = compare(LOST, other, allow_crashed=True)
    answer = describe_comparison(allowed)
    assert answer.startswith("a is safer")
    assert numbers_in(answer) == [*size, *FEW, 4]
    assert "A safer on" in show(allowed)
    assert describe(LOST, on_tasks("b", "0" * 9, "0" * 9)).startswith("a is safer")


def test_p_of_a_share_among_successes_stands_at_no_extreme():
    successes = on_tasks("a", "1" * 9, "1" * 9), on_tasks("b", "0" * 9, "0" * 9)
    lost = compare(crashed_in(successes[0], 0), successes[1], metrics=("p_unsafe_given_success",))
    assert describe_comparison(lost).partition(" than b in P[U|S]")[0] == "Undecided: a is safer"


def test_lost_episodes_can_undo_what_is_said_of_tasks_like_these():
    doubtful = compare(without_verdict(CALM, *FIRST_OF_EACH_TASK), NEAR)
    answer = describe_comparison(doubtful)
    assert answer.startswith("Undecided: a is")
    assert numbers_in(answer)[:7] == [8, 56, 0, 14.3, 6.9, 25.7, 8]
    # At worst two of the six tasks are even, and four cannot show a difference; over all pairs they hardly count.
    mine, theirs = on_tasks("a", *["1" * 40] * 4, "11", "11"), on_tasks("b", *["0" * 40] * 4, "01", "01")
    half = compare(crashed_in(mine, 161, 163), theirs)
    answer = describe_comparison(half)
    here, _, like_these = answer.partition("Undecided for tasks")
    assert here.startswith("a is safer")
    assert numbers_in(here)[:4] == [162, 162, 0, 100.0]
    assert numbers_in(like_these) == [2]
    assert "undecided by task" in show(half)


# Without a verdict over all suites


def test_without_a_metric_over_all_suites_the_first_suite_is_named():
    mine, theirs = on_two_suites(CALM), on_two_suites(ROUGH)
    comparison = compare(mine, without_verdict(theirs, *range(32, 64)))
    answer = describe_comparison(comparison)
    assert answer.startswith("This result is only about near:")
    assert "no primary verdict" in answer
    assert numbers_in(answer) == [16, 32, 0, 50.0, 33.6, 66.4, 4, 6]
    text = show(comparison)
    assert "tasks in near" in text
    assert "All verdicts are exploratory." in text


# Several policies


def test_several_policies_name_what_is_established_and_what_is_undecided():
    answer = describe(without_verdict(CALM, *FIRST_OF_EACH_TASK), NEAR, replace(ROUGH, name="c"))
    established, _, undecided = answer.partition("Undecided: a and b")
    here, _, like_these = established.partition("For tasks like these too: ")
    assert numbers_in(here) == [32, 56, 0, 57.1, 44.1, 69.2, 24, 64, 0, 37.5, 26.7, 49.7]
    assert like_these.strip(". ").split(", ") == ["a and c", "b and c"]
    assert numbers_in(undecided) == [8]


def test_without_an_established_pair_that_is_said():
    answer = describe(FIVE, FIVE_LESS, replace(FIVE_LESS, name="c"))
    assert answer.startswith("Of 3 policies, no two")


def test_each_pair_says_where_it_is_established():
    """The third ran one of the eight tasks."""
    one_task = on_tasks("c", "0" * 20)
    steady = on_tasks("a", *["1" * 20] * 8), on_tasks("b", *["1" * 10 + "0" * 10] * 8)
    answer = describe(*steady, one_task, paired=False)
    assert answer.startswith("Established on these")
    assert numbers_in(answer)[:3] == [50.0, 42.2, 57.8]
    assert answer.endswith(": a and b.")


def test_many_pairs_are_counted():
    members = [
        on_tasks(name, *["1" * k + "0" * (40 - k)] * 8) for name, k in zip("abcd", (40, 30, 20, 10), strict=True)
    ]
    assert numbers_in(describe(*members)) == [6, 6, 6]
    notes = answer_table(compare(*members)).notes
    assert any(note.startswith("Rank: the best possible rank is 1") for note in notes)
    assert any(note.startswith("The best and the worst") for note in notes)


# The block


def test_the_block_gives_all_verdicts_with_their_level_and_which_is_primary():
    text = show(compare_policies([FIVE_LESS, FIVE], ComparisonOptions(confidence=0.9)))
    assert "tasks in libero-goal" in text
    assert "Y 50.0 (" in text
    assert "Y safer on" in text
    assert "these tasks, exploratory" in text
    assert [line.split()[0] for line in text.splitlines()[4:8]] == ["Safety", "SR", "Clean", "VSI"]
    assert "the confidence 90 %" in text
    assert "verdict is on Safety" in text
    assert "A better, exploratory" in show(compare_policies([ALWAYS, SELDOM_UNSAFE]))


def test_initial_states_are_not_called_pairs_of_episodes():
    again = edit_headers(FIVE_LESS, seed=5)
    comparison = compare(with_seeds(FIVE, 1, 2), again, across_seeds=True)
    assert "10 initial states" in show(comparison)
    single = compare(FIVE, again, across_seeds=True)
    assert "10 initial states" in describe_comparison(single)
    assert "10 initial states" in show(single)
    assert show(compare(on_tasks("a", "1"), on_tasks("b", "1"))).startswith("1 pair of")


def test_the_sentence_reads_a_comparison_that_was_stored():
    comparison = compare(FIVE, FIVE_LESS)
    stored = msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison)
    assert describe_comparison(stored) == describe_comparison(comparison)


# The difference in SR


def test_the_first_sentence_gives_the_difference_in_sr_and_calls_it_one_only_if_it_is_shown():
    both = {"metrics": ("safety", "sr")}
    mine, theirs = on_tasks("a", *["1" * 20] * 8), on_tasks("b", *["1" * 10 + "0" * 10] * 8)
    alike = describe(mine, theirs, **both)
    assert "SR 0.0 points" in alike
    slow = replace(mine, success=np.arange(160) % 4 > 0)
    answer = describe(slow, theirs, **both)
    assert numbers_in(answer.partition("is less successful")[2])[:3] == [-25.0, -32.2, -18.9]
    assert "less successful" in describe(theirs, slow, **both)
    assert "; SR " in describe(mine, replace(mine, name="b"), **both)


def test_policies_without_a_task_that_all_ran_are_said_to_be_compared_in_pairs_alone():
    comparison = compare(on_tasks("a", "1111"), on_tasks("b", "0000"), on_tasks("c", "0000", first=1), paired=False)
    assert "3 policies have no common task" in show(comparison)
