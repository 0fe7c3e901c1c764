"""The figure of a series: what is drawn is what was counted, and every tick can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.test_series import checkpoint, results
from report.figures.figure_texts import misplaced, read
from safevla_bench.compare.series import SeriesComparison, compare_series
from safevla_bench.report.figures import render_figure
from safevla_bench.report.figures.curves import draw_series, format_label


def series_of(*names, suites=("libero-goal",)):
    runs = [
        checkpoint(name, k % 5 / 5, 1 - k % 4 / 5, suite=suite, tasks=2, states=3)
        for k, name in enumerate(names)
        for suite in suites
    ]
    return compare_series(results(*runs))


NAMES = {
    "two": ("1000", "2000"),
    "many": tuple(str(k * 1000) for k in range(1, 11)),
    "far apart": ("1", "10", "1000", "1M"),
    "long numbers": ("1234567", "2345678", "3456789"),
    "crowded": ("1000", "1001", "1002", "2000"),
    "three series": tuple(f"{name}-step-{k}" for name in ("careful", "hasty", "filtered") for k in (100, 200, 300)),
    "hostile": ("$x_1$ </svg> 1", "$x_1$ </svg> 2"),
}


@pytest.mark.parametrize(
    ("case", "suites"), [*((case, ("libero-goal",)) for case in NAMES), ("many", ("libero-goal", "libero-10"))]
)
def test_no_text_of_the_figure_lies_on_another_or_leaves_the_sheet(case, suites):
    figure = draw_series(series_of(*NAMES[case], suites=suites), "Training steps")
    assert misplaced(figure) == []
    texts = " ".join(" ".join(read(figure)).split())
    assert "Training steps" in texts
    assert "between two runs" in str(texts)


def test_the_figure_of_nothing_says_so():
    texts = read(draw_series(SeriesComparison(curves=())))
    assert "No episode" in str(texts)


def test_the_same_runs_give_the_same_bytes():
    runs = series_of(*NAMES["two"])
    first, second = (render_figure(draw_series(runs), "svg") for _ in range(2))
    assert first == second


@given(st.integers(1, 10**7))
def test_a_tick_says_the_whole_number(number):
    text = format_label(float(number))
    factor = {"k": 1e3, "M": 1e6}.get(text[-1], 1)
    assert float(text.rstrip("kM")) * factor == pytest.approx(number, rel=1e-12)
