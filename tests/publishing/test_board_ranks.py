"""Ranks are exact, ties share one; published numbers stand as printed."""

from __future__ import annotations

from fractions import Fraction

import pytest

from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI
from safevla_bench.publishing.board import RankingEntry, published_sections, rank_entries
from safevla_bench.report.published import LEADERBOARD, PAPER, load_published, printed_rate
from safevla_bench.report.tables.suites import ExactCell
from safevla_bench.report.tables.table import Cell
from safevla_bench.statistics.intervals import wilson_interval


def entry(name: str, safety, sr=50, *, competes: bool = True) -> RankingEntry:
    numbers = {metric.key: ExactCell(Cell.dash()) for metric in (SBU, VSI)}
    numbers[SR.key] = ExactCell(Cell(""), Fraction(sr) / 100)
    numbers[SAFETY.key] = ExactCell(Cell.dash() if safety is None else Cell(""), safety and Fraction(safety) / 100)
    return RankingEntry(policy=name, n="1", numbers=numbers, competes=competes)


def rank(*entries) -> list[tuple[str, str, str]]:
    return [(row.policy, row.rank, row.sr_rank) for row in rank_entries(entries)]


def test_the_safest_is_first_and_the_rank_by_success_stands_beside_it():
    assert rank(entry("a", 80, 90), entry("b", 90, 70), entry("c", 70, 80)) == [
        ("b", "1", "3"), ("a", "2", "1"), ("c", "3", "2"),
    ]  # fmt: skip


def test_equal_values_share_a_rank_and_the_next_is_skipped():
    rows = rank(entry("a", 80), entry("b", 90), entry("c", 80), entry("d", 10))
    assert [place for _, place, _ in rows] == ["1", "2=", "2=", "4"]


def test_values_that_only_print_alike_are_not_equal():
    rows = rank(entry("a", Fraction(80001, 1000)), entry("b", 80))
    assert [row[:2] for row in rows] == [("a", "1"), ("b", "2")]


def test_without_a_verdict_or_a_rank_an_entry_is_last_and_moves_nobody():
    rows = rank(entry("none", None), entry("out", 99, 99, competes=False), entry("a", 80, 10))
    assert rows == [("a", "1", "1"), ("out", "", ""), ("none", "", "")]


# Published results


def published(name: str):
    return next(section for section in published_sections() if name in section.source.name).tables


def test_the_paper_s_entries_rank_by_safety_with_sr_beside():
    libero, robocasa, pnp = published("paper")
    assert [(row.policy, row.rank, row.sr_rank) for row in libero.rows] == [
        ("pi-RL-130", "1", "4"), ("Cosmos-Policy-2B", "2", "2"), ("pi0.5", "3", "1"), ("GR00T-N1.7", "4", "3"),
        ("OpenVLA-7B", "5", "5"),
    ]  # fmt: skip
    assert [row.policy for row in robocasa.rows] == ["pi0.5", "RLDX-1-FT-RC365", "pi0", "GR00T-N1.5"]
    assert {row.rank for row in pnp.rows} == {""}


def test_intervals_hold_every_count_that_the_printed_digits_allow():
    expected = wilson_interval(501, 900)  # 55.7 %
    assert published("paper")[1].rows[0].numbers["safety"].cell.interval == pytest.approx(
        (100 * expected.low, 100 * expected.high)
    )
    ci = printed_rate(87.1, 2000).ci  # 1741 or 1742
    assert ci == pytest.approx((wilson_interval(1741, 2000).low, wilson_interval(1742, 2000).high))


def test_the_leaderboard_gives_no_counts_and_so_no_intervals():
    rows = [row for table in published("leaderboard") for row in table.rows]
    assert {row.numbers["safety"].cell.interval for row in rows} == {None}


def test_every_source_and_the_cells_in_question_say_what_makes_them_incomparable():
    for section in published_sections():
        assert section.source.incomparable
        assert section.source.reference
        assert section.source.date
    libero, robocasa, pnp = published("paper")
    assert any("LIBERO-Goal" in note for note in libero.notes)
    assert any("arm-furniture" in note and note.startswith("pi0, pi0.5: ") for note in robocasa.notes)
    assert any("87Nm" in reason for reason in next(iter(published_sections())).source.incomparable)
    assert any("static force floor" in note for note in published("leaderboard")[1].notes)
    assert pnp.notes


@pytest.mark.parametrize(("name", "file"), [("paper", PAPER), ("leaderboard", LEADERBOARD)])
def test_printed_values_are_shown_as_they_are_printed(name, file):
    rows = {(row.policy, table.scope): row for table in published(name) for row in table.rows}
    for mean in load_published(file).means:
        numbers = rows[mean.policy, ", ".join(mean.benchmarks)].numbers
        texts = {key: number.cell.text for key, number in numbers.items()}
        assert texts == {"sr": f"{mean.sr}", "safety": f"{mean.safety}", "sbu": f"{mean.sbu}", "vsi": f"{mean.vsi:.3f}"}
