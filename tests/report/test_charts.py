"""Charts: no peak is lost, and what is marked is what the verdict says."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from report.scenes import trace_chart
from safevla_bench.report.charts import BOTTOM, TOP, draw_chart, draw_sparkline, round_ticks, thin_indices


@given(
    arrays(np.float64, st.integers(1, 3000), elements=st.floats(-1e9, 1e9) | st.just(np.nan)),
    st.integers(4, 700),
)
def test_thinning_keeps_ends_and_extremes(values, most):
    indices = thin_indices(values, most)
    assert len(indices) <= max(most, 1)
    assert list(indices) == sorted(set(indices))
    assert {indices[0], indices[-1]} == {0, len(values) - 1}
    if np.isfinite(values).any():
        assert np.nanmax(values[indices]) == np.nanmax(values)
        assert np.nanmin(values[indices]) == np.nanmin(values)


@given(st.integers(700, 5000), st.integers(0, 4999))
def test_a_single_spike_survives_wherever_it_is(count, at):
    values = np.zeros(count)
    values[at % count] = 1.0
    assert at % count in thin_indices(values)


def test_short_series_are_not_thinned():
    assert len(thin_indices(np.random.default_rng(0).random(600))) == 600


def test_a_long_chart_draws_at_most_600_points():
    chart = draw_chart(trace_chart(np.random.default_rng(0).random(5000) * 300))
    assert len(chart.line.split()) <= 600


def numbers(path: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]


def test_the_violation_is_marked_where_it_is_and_beyond_the_limit_only():
    values = np.full(101, 10.0)
    values[50:61] = 500.0
    chart = draw_chart(trace_chart(values))
    left, top, right, bottom, _ = numbers(chart.beyond)
    assert (left, right) == (490.0, 610.0)  # one record more on both sides, to where the line crosses the limit
    assert (top, f"{bottom:g}") == (0.0, chart.limit_y)
    assert "2.50 s" in chart.caption
    assert chart.worst_label == "500\N{NO-BREAK SPACE}N"


def test_what_lies_beyond_the_limit_behind_a_closed_gate_is_not_marked():
    values = np.full(101, 10.0)
    values[50:61] = 500.0
    gate = np.zeros(101, dtype=bool)
    gate[70:80] = True
    chart = draw_chart(trace_chart(values, gate=gate))
    assert chart.beyond == ""
    assert chart.caption.endswith("no violation")
    assert numbers(chart.open_gate)[:3] == [695.0, float(TOP), 795.0]
    assert chart.worst_label == "10.0\N{NO-BREAK SPACE}N"


def test_a_floor_is_violated_below():
    chart = draw_chart(trace_chart(np.linspace(0.0, -0.05, 101), limit=-0.02, upper=False, unit="m"))
    _, top, _, bottom, _ = numbers(chart.beyond)
    assert (f"{top:g}", bottom) == (chart.limit_y, float(BOTTOM))
    assert chart.limit_label == "limit -20\N{NO-BREAK SPACE}mm"
    assert chart.worst_label == "-50.0\N{NO-BREAK SPACE}mm"


@given(
    arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e6, 1e6)),
    st.just(0.0) | st.floats(1e-3, 1e4),
    st.booleans(),
)
def test_everything_lies_inside_the_plot(values, limit, upper):
    chart = draw_chart(trace_chart(values, limit=limit, upper=upper))
    heights = [float(point.rsplit(",", 1)[1]) for point in chart.line.split()]
    assert all(TOP - 0.1 <= y <= BOTTOM + 0.1 for y in [*heights, float(chart.limit_y), float(chart.worst_y)])


def test_values_that_are_not_finite_leave_a_gap():
    chart = draw_chart(trace_chart([1.0, 2.0, np.inf, 3.0, np.nan, 4.0]))
    assert chart.line.count("M") == 3


def test_a_value_between_two_gaps_is_a_dot_as_a_line_to_itself():
    points = [line.split() for line in draw_chart(trace_chart([1.0, 2.0, np.nan, 3.0, np.nan])).line.split("M")[1:]]
    assert [len(line) for line in points] == [2, 2]
    assert points[1][0] == points[1][1]


def test_a_gap_between_points_of_a_thinned_line_stays_a_gap():
    values = np.sin(np.arange(5000) / 100)
    values[1234] = np.nan
    assert draw_chart(trace_chart(values)).line.count("M") == 2


def test_a_margin_that_is_zero_throughout_is_a_chart_too():
    """A formula drawn by its margin has the limit 0, and a margin may lie on it from end to end."""
    chart = draw_chart(trace_chart([0.0, 0.0], limit=0.0))
    assert chart.limit_y == f"{BOTTOM}"
    assert draw_sparkline(trace_chart([0.0, 0.0], limit=0.0)).line


def test_one_record_is_a_chart_too():
    chart = draw_chart(trace_chart([300.0]))
    assert chart.across[0][1] == "0 s"
    assert chart.worst_x == "0.00%"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 897.3), (-0.05, 0.01), (0, 1e-6), (-3e5, 2e7)])
def test_ticks_are_round_few_and_within(low, high):
    ticks = round_ticks(low, high)
    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    step = f"{ticks[1] - ticks[0]:.6e}"
    assert step[0] in "125"
    assert set(step[1:].split("e")[0]) <= {".", "0"}


def test_records_with_time_stamps_are_drawn_and_told_where_their_times_are():
    """The highest of four records is at 0.5 of 5 s."""
    chart = replace(trace_chart([0.0, 300.0, 100.0, 0.0]), times_s=np.array([0.0, 0.5, 1.0, 5.0]))
    drawn = draw_chart(chart)
    assert (drawn.worst_x, drawn.worst_s, drawn.across[-1]) == ("10.00%", "0.50", ("100.00%", "5 s"))
    assert drawn.line.split()[2].startswith("200,")
    assert "over 5.00 s" in drawn.caption
    assert "first violation at" in draw_chart(replace(chart, first=1)).caption
