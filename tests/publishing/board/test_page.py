"""Ranks are exact, ties share one, and letters say who was not told apart."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.publishing.board.page import Proportion, RankingEntry, disjoint_pairs, rank_entries


def entry(name: str, safety, sr=50, *, interval=None, ranked: bool = True) -> RankingEntry:
    share = Proportion() if safety is None else Proportion(Fraction(safety), interval)
    return RankingEntry(
        policy=name,
        page_path="",
        n="1",
        sr=Proportion(Fraction(sr)),
        safety=share,
        sbu=Proportion(),
        vsi="—",
        ranked=ranked,
    )


def ranks(entries, apart=None) -> list[tuple[str, str, str, str]]:
    return [(one.entry.policy, one.rank, one.sr_rank, one.letters) for one in rank_entries(entries, apart)]


def test_the_safest_is_first_and_the_rank_by_success_stands_beside_it():
    assert ranks([entry("a", 80, 90), entry("b", 90, 70), entry("c", 70, 80)]) == [
        ("b", "1", "3", ""), ("a", "2", "1", ""), ("c", "3", "2", ""),
    ]  # fmt: skip


def test_equal_values_share_a_rank_and_the_next_is_skipped():
    found = ranks([entry("a", 80), entry("b", 90), entry("c", 80), entry("d", 10)])
    assert [one[1] for one in found] == ["1", "2=", "2=", "4"]


def test_values_that_only_print_alike_are_not_equal():
    found = ranks([entry("a", Fraction(80001, 1000)), entry("b", 80)])
    assert [one[:2] for one in found] == [("a", "1"), ("b", "2")]


def test_without_a_verdict_or_a_rank_an_entry_is_last_and_moves_nobody():
    found = ranks([entry("none", None), entry("out", 99, 99, ranked=False), entry("a", 80, 10)])
    assert found == [("a", "1", "1", ""), ("out", "", "", ""), ("none", "", "", "")]


def test_letters_go_by_rank_and_leave_the_unranked_out():
    entries = [entry("a", 80), entry("b", 90), entry("c", 70), entry("out", 95, ranked=False)]
    assert [(one[0], one[3]) for one in ranks(entries, {(1, 2)})] == [("b", "a"), ("a", "ab"), ("c", "b"), ("out", "")]


def test_intervals_that_touch_are_not_told_apart():
    entries = [entry("a", 80, interval=(70.0, 85.0)), entry("b", 90, interval=(85.0, 95.0)),
               entry("c", 50, interval=(40.0, 69.9))]  # fmt: skip
    assert disjoint_pairs(entries) == {(0, 2), (1, 2)}


def test_without_intervals_nothing_is_said_of_anybody():
    assert disjoint_pairs([entry("a", 80), entry("b", 90, interval=(85.0, 95.0))]) is None
    assert {one[3] for one in ranks([entry("a", 80), entry("b", 10)], None)} == {""}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8))
def test_two_share_a_letter_exactly_where_their_intervals_overlap(numbers):
    entries = [entry(str(k), x, interval=(float(x - a), float(x + b))) for k, (x, a, b) in enumerate(numbers)]
    letters = {one.entry.policy: one.letters for one in rank_entries(entries, disjoint_pairs(entries))}
    ends = {one.policy: one.safety.interval for one in entries}
    for one, mine in ends.items():
        for other, theirs in ends.items():
            overlap = mine[0] <= theirs[1] and theirs[0] <= mine[1]
            assert bool(set(letters[one]) & set(letters[other])) == overlap


def test_a_value_without_a_reason_is_a_dash_and_never_zero():
    assert (Proportion().text, Proportion(missing_reason="no verdict").detail) == ("—", "no verdict")
    assert (Proportion(Fraction(0), (0.0, 3.7)).text, Proportion(Fraction(0), (0.0, 3.7)).detail) == ("0.0", "0.0–3.7")
