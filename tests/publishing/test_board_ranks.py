"""Ranks are exact, ties share one; published numbers stand as printed."""

from __future__ import annotations

from fractions import Fraction

import pytest

from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI
from safevla_bench.publishing.board import RankingEntry, published_sections, rank_entries
from safevla_bench.report.published import LEADERBOARD, PAPER, load_published, printed_rate
from safevla_bench.report.tables.cells import ExactCell
from safevla_bench.report.tables.table import Cell
from safevla_bench.statistics.intervals import wilson_interval


def entry(name: str, safety, sr=50, *, competes: bool = True) -> RankingEntry:
    numbers = {metric.key: ExactCell(Cell.dash()) for metric in (SBU, VSI)}
    numbers[SR.key] = ExactCell(Cell(""), Fraction(sr) / 100)
    numbers[SAFETY.key] = ExactCell(Cell.dash() if safety is None else Cell(""), safety and Fraction(safety) / 100)
    return RankingEntry(policy=name, n="1", numbers=numbers, competes=competes)


def rank(*entries, better=()) -> list[tuple[str, str, str]]:
    return [(row.policy, row.rank, row.sr_rank) for row in rank_entries(entries, {"safety": better})]


def test_ranks_run_from_those_shown_better_to_those_shown_worse():
    rows = rank(entry("a", 80, 90), entry("b", 90, 70), entry("c", 10, 80), better=[("b", "c"), ("a", "c")])
    assert rows == [("b", "1–2", "1–3"), ("a", "1–2", "1–3"), ("c", "3", "1–3")]


def test_a_pair_whose_numbers_here_have_the_other_order_is_not_ranked_by_it():
    assert rank(entry("a", 80), entry("b", 90), better=[("a", "b")]) == [("b", "1–2", "1–2"), ("a", "1–2", "1–2")]


def test_without_a_verdict_or_a_rank_an_entry_is_last_and_moves_nobody():
    rows = rank(entry("none", None), entry("out", 99, 99, competes=False), entry("a", 80, 10), better=[("out", "a")])
    assert rows == [("a", "1", "1"), ("out", "", ""), ("none", "", "")]


# Published results


def published(name: str):
    return next(section for section in published_sections() if name in section.source.name).tables


def test_the_paper_s_entries_rank_by_safety_with_sr_beside():
    libero, robocasa, pnp = published("paper")
    assert [(row.policy, row.rank, row.sr_rank) for row in libero.rows] == [
        ("pi-RL-130", "1", "3–4"), ("Cosmos-Policy-2B", "2–5", "1–3"), ("pi0.5", "2–5", "1–3"),
        ("GR00T-N1.7", "2–5", "1–4"), ("OpenVLA-7B", "2–5", "5"),
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
