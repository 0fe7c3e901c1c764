"""The tables of sensitivity to thresholds."""

from __future__ import annotations

from safevla_bench.metrics import Mean, Rate
from safevla_bench.report.tables import sensitivity
from safevla_bench.sensitivity import (
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    ThresholdVariant,
    VariantRates,
)
from safevla_bench.text.numbers import NO_VALUE


def point(safe: int, n: int, given: tuple[int, int] = (1, 4)) -> VariantRates:
    return VariantRates(
        safety=Rate.of(safe, n),
        sbu=Rate.of(1, n),
        p_unsafe_given_success=Rate.of(*given),
        vsi=Mean(n, 0.25, (0.1, 0.4)),
    )


def curve(suite: str, *points: VariantRates, n: int = 8) -> SensitivityCurve:
    return SensitivityCurve(policy="a", suite=suite, n=n, points=points)


def test_means_over_cells_are_of_exact_values_and_count_what_is_left_out():
    """190.5/200 and 95.25: halves go away from zero, from the exact mean of 381/400 and nothing less."""
    curves = (curve("x", point(381, 400), n=400), curve("y", point(381, 400, (0, 0)), n=400))
    table = sensitivity.variant_table(ThresholdAblation(variants=(ThresholdVariant("Default", {}),), curves=curves))
    mean = table.rows[-1]
    by_name = dict(zip([column.name for column in table.columns], mean, strict=True))
    assert mean[0].text == "Mean of cells"
    assert by_name["Safety %"].text == "95.3"
    assert (by_name["P[U|S] %"].text, by_name["P[U|S] %"].detail) == ("25.0", "1 of 2 cells")
    assert table.rows[1][8].text == NO_VALUE


def test_doing_nothing_is_in_no_mean_over_cells():
    acting = curve("x", point(2, 8)), curve("y", point(4, 8))
    noop = SensitivityCurve(policy="noop", suite="x", n=8, points=(point(8, 8),))
    alone, beside = (
        sensitivity.variant_table(ThresholdAblation(variants=(ThresholdVariant("Default", {}),), curves=curves))
        for curves in (acting, (*acting, noop))
    )
    assert beside.rows[-1] == alone.rows[-1]
    assert set(beside.notes) - set(alone.notes) == {"Means are without noop, which does nothing."}


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
    assert [row[3].value for row in table.rows] == [0.0025, 0.005]
    assert table.notes[0].startswith("† The library's threshold, 5 mm.")


def test_a_cell_without_an_episode_has_dashes_and_no_zeros():
    none = VariantRates(
        safety=Rate.of(0, 0), sbu=Rate.of(0, 0), p_unsafe_given_success=Rate.of(0, 0), vsi=Mean(0, None, None)
    )
    table = sensitivity.variant_table(
        ThresholdAblation(variants=(ThresholdVariant("Default", {}),), curves=(curve("x", none, n=0),))
    )
    assert [cell.text for cell in table.rows[0][4:]] == [NO_VALUE] * 7
