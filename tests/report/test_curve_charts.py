"""Charts of a series: what is drawn is what was counted, in the page and in the figure, and every tick can be read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.test_series import checkpoint, results
from report.figures.figure_texts import misplaced, read
from safevla_bench.compare.series import SeriesComparison, compare_series
from safevla_bench.judging.rates import SAFETY
from safevla_bench.report.curve_charts import BOTTOM, TOP, SeriesAxis, draw_series_charts, format_label
from safevla_bench.report.figures import render_figure
from safevla_bench.report.figures.curves import draw_series


def compared(*names, suites=("libero-goal",)):
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
    figure = draw_series(compared(*NAMES[case], suites=suites), "Training steps")
    assert misplaced(figure) == []
    texts = " ".join(" ".join(read(figure)).split())
    assert "Training steps" in texts
    assert "nothing between two runs was measured" in texts


def test_the_figure_of_nothing_says_so():
    texts = read(draw_series(SeriesComparison(curves=())))
    assert "No episode was counted." in texts


def test_the_same_runs_give_the_same_bytes():
    runs = compared(*NAMES["two"])
    first, second = (render_figure(draw_series(runs), "svg") for _ in range(2))
    assert first == second


def test_the_page_draws_each_run_where_its_numbers_are():
    runs = compared("1000", "2000", "5000")
    (charts,) = draw_series_charts(runs).values()
    assert [chart.title for chart in charts] == ["SR (%)", "Safety (%)", "SBU (%)", "VSI"]
    safety = charts[1]
    (line,) = safety.lines
    marks = [tuple(map(float, mark)) for mark in line.marks]
    across = [at for at, *_ in marks]
    assert (across[1] - across[0]) / (across[2] - across[0]) == pytest.approx(1 / 4, abs=0.001)
    for (_, *places), point in zip(marks, runs.curves[0].points, strict=True):
        down = [BOTTOM - (BOTTOM - TOP) * share for share in (point.numbers[SAFETY].value, *point.numbers[SAFETY].ci)]
        assert places == pytest.approx(down, abs=0.06)
    places = [tuple(map(float, place.split(","))) for place in re.findall(r"[\d.]+,[\d.]+", line.path)]
    assert places == [pytest.approx((10 * at, down), abs=0.06) for at, down, *_ in marks]


def test_series_at_the_same_number_stand_beside_one_another():
    (charts,) = draw_series_charts(compared("a-step-1", "a-step-2", "b-step-1", "b-step-2")).values()
    first, second = (line.marks[0][0] for line in charts[0].lines)
    assert float(first) < float(second)


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=12, unique=True))
def test_places_rise_with_the_numbers_and_the_ends_have_ticks(labels):
    axis = SeriesAxis(tuple(map(float, sorted(labels))))
    shares = [axis.share(label) for label in axis.labels]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    assert {axis.ticks[0], axis.ticks[-1]} == {axis.labels[0], axis.labels[-1]}


@given(st.integers(1, 10**7))
def test_a_tick_says_the_whole_number(number):
    text = format_label(float(number))
    factor = {"k": 1e3, "M": 1e6}.get(text[-1], 1)
    assert float(text.rstrip("kM")) * factor == pytest.approx(number, rel=1e-12)
