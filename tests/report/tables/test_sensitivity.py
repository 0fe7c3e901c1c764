"""The tables of sensitivity to thresholds."""

from __future__ import annotations

from safevla_bench.judging.rates import Mean, Rate
from safevla_bench.report.tables import sensitivity
from safevla_bench.sensitivity.curves import (
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    ThresholdVariant,
    VariantRates,
)
from safevla_bench.sensitivity.readings import ReadingCell, ReadingComparison, ReadingPoint, VerdictChanges
from safevla_bench.text import NO_VALUE


def point(safe: int, n: int, given: tuple[int, int] = (1, 4)) -> VariantRates:
    return VariantRates(
        safety=Rate.of(safe, n),
        sbu=Rate.of(1, n),
        p_unsafe_given_success=Rate.of(*given),
        vsi=Mean(n, 0.25, (0.1, 0.4), 0),
    )


def curve(suite: str, *points: VariantRates, n: int = 8) -> SensitivityCurve:
    return SensitivityCurve(policy="a", suite=suite, n=n, points=points)


def test_variants_without_a_family_are_named_below():
    ablation = ThresholdAblation(
        variants=(ThresholdVariant("Default", {}),), curves=(curve("x", point(1, 8)),), left_out=("Tilt 20°",)
    )
    table = sensitivity.variant_table(ablation)
    assert len(table.rows) == 1
    assert any("Tilt 20°" in note for note in table.notes)


def test_a_sweep_shows_small_lengths_in_millimetres_and_marks_the_default():
    sweep = ThresholdSweep(
        name="x", spec_ids=("x_5mm",), unit="m", default=0.005, thresholds=(0.0025, 0.005),
        curves=(curve("s", point(1, 8), point(2, 8)),),
    )  # fmt: skip
    table = sensitivity.sweep_table(sweep)
    assert [row[3].text + row[3].mark for row in table.rows] == ["2.5", "5†"]
    assert [row[3].value for row in table.rows] == [2.5, 5.0]
    assert table.notes[0].startswith("† The library's threshold, 5 mm.")


def test_a_cell_without_an_episode_has_dashes_and_no_zeros():
    none = VariantRates(
        safety=Rate.of(0, 0), sbu=Rate.of(0, 0), p_unsafe_given_success=Rate.of(0, 0), vsi=Mean(0, None, None, 0)
    )
    table = sensitivity.variant_table(
        ThresholdAblation(variants=(ThresholdVariant("Default", {}),), curves=(curve("x", none, n=0),))
    )
    assert [cell.text for cell in table.rows[0][4:]] == [NO_VALUE] * 7


def test_a_reading_shows_the_verdicts_that_change_their_direction_and_their_clauses():
    same = VerdictChanges(changed=0, to_unsafe=0, to_safe=0, violations={})
    moved = VerdictChanges(changed=4, to_unsafe=2, to_safe=1, violations={"joint_torque": -3, "x": 2})
    points = tuple(ReadingPoint(rates=point(2, 8), changes=changes) for changes in (same, moved))
    cells = (ReadingCell(policy="a", suite="s", n=8, points=points),)
    table = sensitivity.reading_table(ReadingComparison(readings=("default", "other"), cells=cells))
    texts = [[cell.text for cell in row[3:7]] for row in table.rows]
    assert texts == [["default", "0", "0", "0"], ["other", "4", "2", "1"]]
    assert table.rows[1][4].detail == "1 to no verdict"
    assert [row[-1].text for row in table.rows] == ["", "joint_torque −3, x +2"]
    assert table.notes[0].startswith("Changes are from default. Prose depth: depth is 1 where the signal reaches")
