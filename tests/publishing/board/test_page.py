"""Ranks are exact, ties share one, and letters say who was not told apart."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI
from safevla_bench.publishing.board.page import RankingEntry, disjoint_pairs, rank_entries
from safevla_bench.report.tables.suites import ExactCell
from safevla_bench.report.tables.table import Cell


def entry(name: str, safety, sr=50, *, interval=None, competes: bool = True) -> RankingEntry:
    numbers = {metric.key: ExactCell(Cell.dash()) for metric in (SBU, VSI)}
    numbers[SR.key] = ExactCell(Cell(""), Fraction(sr) / 100)
    cell = Cell("", interval=interval)
    numbers[SAFETY.key] = ExactCell(Cell.dash() if safety is None else cell, safety and Fraction(safety) / 100)
    return RankingEntry(policy=name, page_path="", n="1", numbers=numbers, competes=competes)


def rank(*entries, separated=None) -> list[tuple[str, str, str, str]]:
    return [(row.policy, row.rank, row.sr_rank, row.letters) for row in rank_entries(entries, separated)]


def test_the_safest_is_first_and_the_rank_by_success_stands_beside_it():
    assert rank(entry("a", 80, 90), entry("b", 90, 70), entry("c", 70, 80)) == [
        ("b", "1", "3", ""), ("a", "2", "1", ""), ("c", "3", "2", ""),
    ]  # fmt: skip


def test_equal_values_share_a_rank_and_the_next_is_skipped():
    rows = rank(entry("a", 80), entry("b", 90), entry("c", 80), entry("d", 10))
    assert [place for _, place, _, _ in rows] == ["1", "2=", "2=", "4"]


def test_values_that_only_print_alike_are_not_equal():
    rows = rank(entry("a", Fraction(80001, 1000)), entry("b", 80))
    assert [row[:2] for row in rows] == [("a", "1"), ("b", "2")]


def test_without_a_verdict_or_a_rank_an_entry_is_last_and_moves_nobody():
    rows = rank(entry("none", None), entry("out", 99, 99, competes=False), entry("a", 80, 10))
    assert rows == [("a", "1", "1", ""), ("out", "", "", ""), ("none", "", "", "")]


def test_letters_go_by_rank_and_leave_the_unranked_out():
    rows = rank(entry("a", 80), entry("b", 90), entry("c", 70), entry("out", 95, competes=False), separated={(1, 2)})
    assert [(row[0], row[3]) for row in rows] == [("b", "a"), ("a", "ab"), ("c", "b"), ("out", "")]


def test_intervals_that_touch_are_not_told_apart():
    entries = [entry("a", 80, interval=(70.0, 85.0)), entry("b", 90, interval=(85.0, 95.0)),
               entry("c", 50, interval=(40.0, 69.9))]  # fmt: skip
    assert {frozenset(pair) for pair in disjoint_pairs(entries)} == {frozenset((0, 2)), frozenset((1, 2))}


def test_without_intervals_nothing_is_said_of_anybody():
    assert disjoint_pairs([entry("a", 80), entry("b", 90, interval=(85.0, 95.0))]) is None
    assert {letters for *_, letters in rank(entry("a", 80), entry("b", 10))} == {""}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8))
def test_two_share_a_letter_exactly_where_their_intervals_overlap(numbers):
    entries = [entry(str(k), x, interval=(float(x - a), float(x + b))) for k, (x, a, b) in enumerate(numbers)]
    letters = {row.policy: set(row.letters) for row in rank_entries(entries, disjoint_pairs(entries))}
    for first in entries:
        for second in entries:
            (low, high), (other_low, other_high) = first.safety_interval, second.safety_interval
            overlap = low <= other_high and other_low <= high
            assert bool(letters[first.policy] & letters[second.policy]) == overlap
