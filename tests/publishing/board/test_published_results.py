"""Published results: shown as printed, ranked among themselves, told apart only by counts, and labelled."""

from __future__ import annotations

import pytest

from safevla_bench.publishing.board import published_results
from safevla_bench.report.published import LEADERBOARD, PAPER, load_published, printed_rate
from safevla_bench.statistics.intervals import wilson_interval


def published(name: str):
    return next(section for section in published_results.published_sections() if name in section.source.name).tables


def test_the_paper_s_entries_rank_by_safety_with_sr_beside():
    libero, robocasa, pnp = published("paper")
    assert [(row.policy, row.rank, row.sr_rank) for row in libero.rows] == [
        ("pi-RL-130", "1", "4"), ("Cosmos-Policy-2B", "2", "2"), ("pi0.5", "3", "1"), ("GR00T-N1.7", "4", "3"),
        ("OpenVLA-7B", "5", "5"),
    ]  # fmt: skip
    assert [row.policy for row in robocasa.rows] == ["pi0.5", "RLDX-1-FT-RC365", "pi0", "GR00T-N1.5"]
    assert {row.rank for row in pnp.rows} == {""}


def test_only_what_lies_clearly_apart_is_told_apart_in_the_paper():
    libero, robocasa, _ = published("paper")
    assert [row.letters for row in libero.rows] == ["a", "b", "b", "b", "b"]
    assert [row.letters for row in robocasa.rows] == ["a", "a", "b", "b"]
    assert "overlap" in libero.letters_note


def test_intervals_hold_every_count_that_the_printed_digits_allow():
    expected = wilson_interval(501, 900)  # 55.7 %
    assert published("paper")[1].rows[0].safety_interval == pytest.approx((100 * expected.low, 100 * expected.high))
    ci = printed_rate(87.1, 2000).ci  # 1741 or 1742
    assert ci == pytest.approx((wilson_interval(1741, 2000).low, wilson_interval(1742, 2000).high))


def test_the_leaderboard_gives_no_counts_so_nothing_is_told_apart():
    for table in published("leaderboard"):
        assert "No counts are given" in table.letters_note
        assert {(row.letters, row.safety_interval) for row in table.rows} == {("", None)}


def test_every_source_and_the_cells_in_question_say_what_makes_them_incomparable():
    for section in published_results.published_sections():
        assert section.source.incomparable
        assert section.source.reference
        assert section.source.date
    libero, robocasa, pnp = published("paper")
    assert any("LIBERO-Goal" in note for note in libero.notes)
    assert any("arm-furniture" in note and note.startswith("pi0, pi0.5: ") for note in robocasa.notes)
    assert any("87Nm" in reason for reason in next(iter(published_results.published_sections())).source.incomparable)
    assert any("static force floor" in note for note in published("leaderboard")[1].notes)
    assert pnp.notes


@pytest.mark.parametrize(("name", "file"), [("paper", PAPER), ("leaderboard", LEADERBOARD)])
def test_printed_values_are_shown_as_they_are_printed(name, file):
    rows = {(row.policy, table.scope): row for table in published(name) for row in table.rows}
    for mean in load_published(file).means:
        numbers = rows[mean.policy, ", ".join(mean.benchmarks)].numbers
        texts = {key: number.cell.text for key, number in numbers.items()}
        assert texts == {"sr": f"{mean.sr}", "safety": f"{mean.safety}", "sbu": f"{mean.sbu}", "vsi": f"{mean.vsi:.3f}"}
