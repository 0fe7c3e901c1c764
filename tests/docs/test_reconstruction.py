"""The arithmetic of the page of reconstruction holds against sums made in another way."""

from __future__ import annotations

import math
from fractions import Fraction
from types import ModuleType

import msgspec
import pytest

from safevla_bench.publishing.board import published_sections
from safevla_bench.report.published import PAPER, load_published

V1 = load_published(PAPER)


@pytest.fixture(scope="module")
def page(load_tool) -> ModuleType:
    return load_tool("reconstruct")


def test_the_chance_that_all_self_collisions_fail_is_the_product_of_draws_without_replacement(page):
    """The first of k falls on one of f failures among n episodes, the next on one of f - 1 among n - 1, and so on."""
    hit = [cell for cell in page.LIBERO if cell.violations["self_collision_free"]]
    logs = [
        math.log10((round(cell.n * (100 - cell.sr) / 100) - k) / (cell.n - k))
        for cell in hit
        for k in range(round(cell.n * cell.violations["self_collision_free"] / 100))
    ]
    assert len(logs) == 71
    assert page.chance_in_failures(hit) == pytest.approx(sum(logs))


def test_the_printed_vsi_excludes_tilt_with_its_own_depth_and_admits_the_capped_one(page):
    """Table 9, RoboCasa-365: 49.9 to 52.7 % is 2.7 points at least, each (20 - 15)/30 deep; VSI 0.154 to 0.153."""
    drop = page.printed_drop("robocasa", "Default", "Tilt 30°")
    assert page.least_uncapped_tilt_drop() == Fraction(27, 1000) / 6
    assert (drop.low, drop.high) == (0, Fraction(2, 1000))
    assert page.least_uncapped_tilt_drop() > drop.high
    assert drop.low <= page.greatest_capped_tilt_drop() < Fraction(1, 400)


def test_the_printed_vsi_at_100_newton_excludes_a_severe_magnitude_of_500_and_admits_250(page):
    printed = page.printed_vsi("robocasa", "Force 100 N")
    assert float(page.greatest_vsi_at_100_newton(500)) == pytest.approx(0.1545 + 0.2 * (0.5125 + 0.8795 - 0.5115))
    assert page.greatest_vsi_at_100_newton(500) < printed.low
    assert page.greatest_vsi_at_100_newton(250) > printed.high


def test_another_printed_number_makes_another_page(page, monkeypatch):
    """The page follows from the data: with VSI 0.149 at 30 degrees the argument on tilt would not hold."""
    rows = tuple(
        msgspec.structs.replace(row, vsi=0.149) if (row.host, row.name) == ("robocasa", "Tilt 30°") else row
        for row in V1.variants
    )
    before = page.build_page()
    monkeypatch.setattr(page, "V1", msgspec.structs.replace(V1, variants=rows))
    assert page.build_page() != before
    assert page.least_uncapped_tilt_drop() < page.printed_drop("robocasa", "Default", "Tilt 30°").high


def test_what_the_page_finds_stands_beside_the_published_numbers(page):
    """The board shows `incomparable`; the page is named there, and each finding about some cells stands with them."""
    assert any("docs/evidence/reconstruction.md" in reason for reason in V1.source.incomparable)
    for cell in V1.cells:
        rates = cell.violations or {}
        reasons = " ".join(cell.incomparable)
        in_failures = cell.benchmark.startswith("libero") and rates.get("self_collision_free", 0) > 0
        assert ("fell on failures" in reasons) == in_failures
        silent_arm = rates.get("arm_furniture_force_under_200N") == 0
        assert ("arm-furniture" in reasons) == silent_arm
        assert ("static contact" in reasons) == (cell.vsi == 1)
    section = next(iter(published_sections()))
    assert any("docs/evidence/reconstruction.md" in reason for reason in section.source.incomparable)
