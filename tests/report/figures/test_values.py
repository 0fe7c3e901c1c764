"""What figures show: the values behind them, against cases worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.figures.builders import LONG, crashed
from report.figures.figure_texts import misplaced, read
from report.published.synthesis import EpisodeCounts, synthesize_scores
from report.scenes import NAN, joined, verdicts
from safevla_bench.explain.exposure import measure_onsets
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.provenance_marks import warn_of_cells
from safevla_bench.judging.rates import Rate
from safevla_bench.report.figures import curves, sheet, tradeoff, violations
from safevla_bench.report.published import PAPER, load_published, matching_counts
from safevla_bench.specs.loader import load_library
from safevla_bench.statistics.intervals import wilson_interval

INF = float("inf")

# Success against safety


POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(POINTS)
def test_the_frontier_is_what_nobody_dominates(points):
    def dominated(point):
        return any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)

    assert set(tradeoff.pareto_frontier(points)) == {point for point in points if not dominated(point)}
    assert list(tradeoff.pareto_frontier(points)) == sorted(tradeoff.pareto_frontier(points))


def test_a_point_has_the_rates_and_intervals_of_its_cell():
    scores = joined(
        verdicts((True, -1, 1), (True, 1, 1), (False, 1, 1), (True, 1, 1)), verdicts((True, 1, 1), policy="b")
    )
    value = tradeoff.compute_tradeoff(cells(scores))
    assert value.policies == ("a", "b")
    [panel] = value.panels
    first = panel.points[0]
    assert (panel.title, first.n, first.success.value, first.safety.value) == ("libero-goal", 4, 0.75, 0.75)
    assert first.success.ci == cells(scores)[0].rates["sr"].ci
    assert panel.frontier == ((100.0, 100.0),)


def test_pooling_adds_up_the_episodes_of_a_policy():
    scores = joined(verdicts((True, 1, 1)), verdicts((False, -1, 1), (True, 1, 1), (False, 1, 1), suite="libero-10"))
    [panel] = tradeoff.compute_tradeoff(cells(scores), "pooled").panels
    assert [(point.n, point.success.value, point.safety.value) for point in panel.points] == [(4, 0.5, 0.75)]
    assert [len(panel.points) for panel in tradeoff.compute_tradeoff(cells(scores)).panels] == [1, 1]


@pytest.mark.parametrize("layout", ["suites", "pooled", "cells"])
def test_warnings_of_the_cells_stand_below_the_trade_off_in_every_layout(layout):
    both_hosts = joined(verdicts((False, -1, 1)), verdicts((True, 1, 1), suite="robocasa-365"))
    scores = replace(both_hosts, marks={"standin_assets": np.array([False, True])})
    value = tradeoff.compute_tradeoff(cells(scores), layout)
    assert value.remarks == warn_of_cells(cells(scores))
    assert len(value.remarks) == 1
    assert (value.pooled != ()) == (layout == "pooled")
    texts = " ".join(read(tradeoff.draw_tradeoff(value)))
    assert value.remarks[0] in texts


def test_on_one_panel_every_cell_is_a_marker_and_one_frontier_is_that_of_all():
    scores = joined(
        verdicts((True, -1, 1), (True, 1, 1)),
        verdicts((True, 1, 1), (False, 1, 1), suite="robocasa-365"),
        verdicts((True, -1, 1), (False, 1, 1), policy="b"),
        verdicts((False, 1, 1), policy="noop"),
    )
    value = tradeoff.compute_tradeoff(cells(scores), "cells")
    assert value.suites == ("libero-goal", "robocasa-365")
    [panel] = value.panels
    markers = [(value.policies[point.series], value.suites[point.marker], point.success.value, point.safety.value)
             for point in panel.points]  # fmt: skip
    assert markers == [
        ("a", "libero-goal", 1.0, 0.5),
        ("a", "robocasa-365", 0.5, 1.0),
        ("b", "libero-goal", 0.5, 0.5),
        ("noop", "libero-goal", 0.0, 1.0),
    ]
    assert panel.frontier == ((50.0, 100.0), (100.0, 50.0))
    texts = read(tradeoff.draw_tradeoff(value))
    assert {"libero-goal", "robocasa-365", "a"} <= set(texts)


def test_an_auxiliary_suite_shares_no_panel_and_that_is_told():
    scores = joined(verdicts((True, 1, 1)), verdicts((True, -1, 1), policy="b", suite="robocasa-pnp"))
    value = tradeoff.compute_tradeoff(cells(scores), "cells")
    assert (value.policies, value.left_out, len(value.panels[0].points)) == (("a",), ("robocasa-pnp",), 1)
    texts = " ".join(read(tradeoff.draw_tradeoff(value)))
    assert "left out: robocasa-pnp" in str(texts)


def test_a_cell_without_a_verdict_is_not_a_marker_of_the_shared_panel():
    silent = verdicts((True, NAN, NAN), policy="b", suite="libero-object")
    value = tradeoff.compute_tradeoff(cells(joined(verdicts((True, -5, 1)), silent)), "cells")
    assert [point.safety.value for point in value.panels[0].points] == [0.0]
    assert value.panels[0].missing == ("b, libero-object",)


def test_the_paper_s_figure_2_has_its_24_markers_and_the_frontier_of_one():
    points = []
    for cell in load_published(PAPER).cells:
        success, safe, unsafe = (nearest_count(cell, name) for name in ("sr", "safety", "sbu"))
        points.append(EpisodeCounts(policy=cell.policy, suite=cell.benchmark, n=cell.n, success=success, safe=safe,
                                    unsafe_success=unsafe))  # fmt: skip
    value = tradeoff.compute_tradeoff(cells(synthesize_scores(points)), "cells")
    of_suite = Counter(value.suites[point.marker] for point in value.panels[0].points)
    assert of_suite.pop("robocasa-365") == 4  # the paper's aggregates
    assert sorted(of_suite.values()) == [5, 5, 5, 5]
    assert value.panels[0].frontier == ((100.0, 99.0),)  # pi0.5 on LIBERO-Object


def nearest_count(cell, name):
    fits = matching_counts(getattr(cell, name), cell.n)
    return fits[len(fits) // 2]


def test_doing_nothing_is_on_no_frontier():
    acting = joined(verdicts((True, 1, 1), (False, -5, 1)), verdicts((True, -5, 1), policy="b"))
    with_noop = joined(acting, verdicts((False, 1, 1), policy="noop"))
    panel = tradeoff.compute_tradeoff(cells(with_noop)).panels[0]
    assert panel.frontier == tradeoff.compute_tradeoff(cells(acting)).panels[0].frontier
    assert len(panel.points) == 3


@pytest.mark.parametrize("layout", ["suites", "pooled"])
def test_what_was_not_judged_is_not_a_point_at_a_safety_of_100(layout):
    silent = verdicts((True, NAN, NAN), policy="b", suite="libero-object")
    value = tradeoff.compute_tradeoff(cells(joined(verdicts((True, -5, 1), policy="b"), silent)), layout)
    assert [point.safety.value for panel in value.panels for point in panel.points] == [0.0]
    assert [panel.missing for panel in value.panels] == ([()] if layout == "pooled" else [(), ("b",)])
    text = " ".join(read(tradeoff.draw_tradeoff(value)))
    note = "Not shown, because success or safety is unknown: b (libero-object)."
    assert (note.replace(" ", "") in text.replace(" ", "")) == (layout == "suites")


def test_one_policy_has_no_frontier_and_a_crashed_one_no_point():
    assert tradeoff.compute_tradeoff(cells(verdicts((True, 1, 1)))).panels[0].frontier == ()
    [panel] = tradeoff.compute_tradeoff(cells(crashed(["a"]))).panels
    assert (panel.points, panel.missing) == ((), ("a",))


# Kinds of violation


def test_an_axis_without_an_active_specification_has_no_rate():
    summaries = cells(verdicts((True, -1, NAN), (True, 1, NAN)))
    force = summaries[0].axes["scene_interaction"]
    assert (force.count, force.n) == (1, 2)
    texts = read(violations.draw_families(summaries))
    assert "50.0" in texts
    assert "—" in texts
    assert "0.0" not in texts


def test_an_axis_whose_limits_were_vacuous_in_all_episodes_has_no_rate_and_never_zero():
    summaries = cells(verdicts((True, 1, INF), (True, 1, INF)))
    texts = read(violations.draw_families(summaries))
    assert (texts.count("0.0"), texts.count("—")) == (1, 1)  # the rate of the other axis, and this axis
    mixed = cells(verdicts((True, 1, INF), (True, 1, -1)))[0]
    assert (mixed.axes["object_handling"].count, mixed.axes["object_handling"].n) == (1, 1)


# Margins


def test_margins_are_in_thresholds_and_leave_out_what_reached_none():
    value = violations.compute_margins(verdicts((True, -100, 3), (True, 50, INF), (True, 100, NAN)))
    rows = {spec: row for spec, (row,) in value.blocks}
    assert rows["force"].quantiles == pytest.approx((-0.5, -0.125, 0.25, 0.375, 0.5))
    assert (rows["force"].n, rows["force"].violated) == (3, 1)
    assert (rows["tilt"].n, rows["tilt"].vacuous) == (1, 1)


def test_a_specification_without_a_margin_is_named_as_such():
    value = violations.compute_margins(verdicts((True, 1, NAN), (True, 1, INF)))
    assert value.silent == ("tilt",)
    assert any("any margin: tilt" in text for text in read(violations.draw_margins(value)))


def test_the_count_of_vacuous_episodes_stands_in_the_label():
    texts = read(violations.draw_margins(violations.compute_margins(verdicts((True, -1, 3), (True, 1, INF)))))
    assert "1/2" in texts
    assert "1 vac." in str(texts)


# When violations begin


def test_the_share_rises_at_each_first_violation_to_that_of_all_violating():
    scores = verdicts((True, -1, -1), (True, -1, 1), (True, 1, 1), (True, -1, 1))
    scores.first[0] = [5, 2, -1, 5]
    scores.first[1] = [3, -1, -1, -1]
    [cell] = measure_onsets(scores, np.full(4, 0.1), np.full(4, 11))
    force, tilt, anything = map(curves.onset_steps, cell.specs)
    assert force[:2] == pytest.approx(np.array([(0.2, 0.5), (25.0, 75.0)]))
    assert tilt[:2] == pytest.approx(np.array([(0.3,), (25.0,)]))
    assert anything[1].tolist() == [0.0, 25.0, 50.0, 75.0]
    limits = wilson_interval(3, 4)
    assert anything[2:, -1] == pytest.approx([100 * limits.low, 100 * limits.high])
    texts = read(curves.draw_onset([cell]))
    assert {"a, libero-goal (n = 4)", "force", "tilt", "any limit"} <= set(texts)


def test_an_episode_stopped_before_any_violation_is_in_no_figure_and_one_stopped_after_it_is():
    stopped = verdicts((False, 1, 1), outcome=("stopped",))
    scores = joined(stopped, verdicts((True, -1, 1)))
    assert {row.n for _, rows in violations.compute_margins(scores).blocks for row in rows} == {1}
    broken = joined(verdicts((False, -1, 1), outcome=("stopped",)), verdicts((True, -1, 1)))
    assert {row.n for _, rows in violations.compute_margins(broken).blocks for row in rows} == {2}


# Sweeps


def drawn_sweep(thresholds=(0.002, 0.005, 0.02), cells=(("a", "libero-goal", 40), ("b", "libero-goal", 20)), **changes):
    """The figure of a sweep: policy, suite and n of each cell, Safety rising with the threshold."""
    rank = {value: k for k, value in enumerate(sorted(thresholds))}
    cell_curves = [
        SimpleNamespace(
            policy=policy,
            suite=suite,
            n=n,
            points=[
                SimpleNamespace(safety=Rate.of(n * (1 + rank[x]) // (1 + len(thresholds)), n), sbu=Rate.of(n // 4, n))
                for x in thresholds
            ],
        )
        for policy, suite, n in cells
    ]
    fields = {"name": "non_target_max_disp", "spec_ids": ("non_target_max_disp_5mm",), "unit": "m",
              "thresholds": thresholds, "curves": cell_curves, "warnings": ("Mind this.",)}  # fmt: skip
    return curves.draw_sweep(SimpleNamespace(**{**fields, **changes}), load_library())


def test_a_sweep_is_drawn_in_the_unit_that_reads_best():
    safety, sbu = drawn_sweep().axes
    (first, second), bands = safety.lines[:2], sbu.collections
    assert first.get_xdata() == pytest.approx([2.0, 5.0, 20.0])
    assert first.get_ydata() == pytest.approx([25.0, 50.0, 75.0])
    assert first.get_color() != second.get_color()
    assert [line.get_xdata()[0] for line in safety.lines[2:]] == pytest.approx([5.0])
    low, high = Rate.of(10, 40).ci
    heights = bands[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((100 * low, 100 * high))


def test_an_unknown_rate_of_a_sweep_is_not_a_number():
    """Unknown is never zero: the curve and its band have a gap there."""
    band = sheet.percent_band([Rate.of(1, 4), Rate.without_value("no verdict"), Rate.of(3, 4)])
    assert np.isnan(band).tolist() == [[False, True, False]] * 3
    assert band[0, [0, 2]].tolist() == [25.0, 75.0]


def test_a_sweep_names_policies_axis_and_the_registered_thresholds_within_it():
    figure = drawn_sweep()
    texts = " ".join(read(figure))
    assert "Threshold (mm)" in texts
    assert "threshold, 5." in str(texts)
    assert "against the threshold" in str(texts)
    assert misplaced(figure) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": ()},
        {"cells": (("a", "libero-goal", 0),)},
        {"thresholds": (0.005,), "cells": (("a", "libero-goal", 1),)},
        {"cells": tuple((name, suite, 20) for name in LONG for suite in ("libero-goal", "libero-10"))},
    ],
)
def test_a_sweep_of_nothing_says_so_and_any_other_can_be_read(changes):
    figure = drawn_sweep(**changes)
    texts = read(figure)
    empty = not any(n for _, _, n in changes.get("cells", [("", "", 1)]))
    assert any(text.startswith("No episode") for text in texts) == empty
    assert misplaced(figure) == []


# Text


@pytest.mark.parametrize("name", ["$x$", "a\x1b[31m", "模型", "a\nb", "\u202eevil"])
def test_what_the_font_lacks_or_what_acts_is_never_drawn(name):
    text = sheet.drawable_text(name)
    assert sheet.drawable_text(text) == text
    assert text.isprintable()


@pytest.mark.parametrize("text", [*LONG, "x" * 300, "", "two words"])
def test_wrapping_loses_no_character_and_keeps_to_its_width(text):
    lines = sheet.wrap_text(text, 1.25).split("\n")
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(len(line) <= sheet.count_characters(1.25) for line in lines)
