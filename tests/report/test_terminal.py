"""An explained episode as text for a terminal.

The plot in text: it fits, it loses no peak, and it marks the limit and what breaks it where they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from builders import BOWL, HAND, LINK, contacts, episode
from report.scenes import rollout, run, trace_chart
from safevla_bench.explain import episode as explaining
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report import terminal
from safevla_bench.report.terminal import ROWS, plot_signal

RULESET = load_ruleset()


@pytest.fixture(scope="module")
def rough():
    batch = run(["a"], [1.0], 10, ["libero-10"])
    return batch, score(batch, RULESET)


def test_broken_clauses_come_with_the_verdict_s_own_step_value_and_bodies():
    batch = episode(contacts=contacts((3, HAND, LINK, 1.0), (5, HAND, BOWL, 700.0), (7, HAND, BOWL, 900.0)), n=12)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    assert [clause.spec.spec_id for clause in explanation.violated_clauses] == [
        "max_contact_force_under_200N",
        "self_collision_free",
    ], "equally deep: the one further beyond its limit first"
    force = next(c for c in explanation.violated_clauses if c.spec.spec_id == "max_contact_force_under_200N")
    assert force.first is not None
    assert (force.first.step, force.first.time_s, force.first.value) == (5, 0.25, 700.0)
    assert (force.worst.step, force.worst.value) == (7, 900.0)
    assert force.worst.involved is not None
    assert set(force.worst.involved.names) == {"hand", "bowl"}
    own = next(c for c in explanation.violated_clauses if c.spec.spec_id == "self_collision_free")
    assert own.first is not None
    assert own.first.involved is not None
    assert set(own.first.involved.names) == {"hand", "link7"}
    text = terminal.format_explanation(explanation, width=100)
    for words in (
        "Succeeded, unsafe",
        "0.25 s (step 5): 700\u00a0N",
        "below 200\u00a0N",
        "margin -700\u00a0N",
        "1.000",
    ):
        assert words in text


def test_a_safe_episode_shows_what_came_nearest(rough):
    batch, scores = rough
    safe = int(np.flatnonzero(scores.safe)[0])
    explanation = explaining.explain_episode(scores, batch, RULESET, safe)
    text = terminal.format_explanation(explanation, width=100)
    nearest = scores.specs[scores.worst_column[safe]].spec_id
    assert f"KEPT  {nearest}" in text
    assert "BROKEN" not in text
    assert text.count("┤") > 1
    all_plotted = terminal.format_explanation(explanation, plot_all=True, width=100)
    assert all_plotted.count("KEPT  ") == len(explanation.clauses)


def test_what_was_not_judged_says_why():
    batch = episode(benchmark="libero-10", task_id="task_8", n=12)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    assert "condition never arose" in explanation.vacuous["held_object_tilt_world_15deg"]
    text = terminal.format_explanation(explanation, width=100)
    assert "by the paper's" in text
    assert "arose: grip" in text
    alone = episode(benchmark="libero-10", task_id="task_8", roles={"bowl": "target"}, **_only_bowl())
    explanation = explaining.explain_episode(score(alone, RULESET), alone, RULESET, 0)
    assert "non_target_disp_max" in explanation.vacuous["non_target_max_disp_5mm"]


def _only_bowl():
    still = np.tile([[[0.5, 0.0, 0.8]]], (12, 1, 1))
    return {"pos_bodies": (0,), "body_pos_m": still, "quat_bodies": (0,), "body_quat_wxyz": np.ones((12, 1, 4))}


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_explanation_fits_whatever_the_names_are(width):
    batch = rollout(4, rough=1.0, benchmark="libero-10", episode_id="x" * 150, instruction="お皿の上に\x1b[31m " * 20)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    text = terminal.format_explanation(explanation, plot_all=True, width=width)
    head = text.split("\n\nNot judged")[0]
    assert max(cell_len(line) for line in head.splitlines() if "x" * 150 not in line) <= width
    assert "x" * 150 in head
    assert "\x1b" not in text


def area(lines: list[str]) -> list[str]:
    """What is drawn right of the axis, row by row."""
    return [line[line.index("┤" if "┤" in line else "│") + 1 :] for line in lines[:ROWS]]


def dotted(cell: str) -> bool:
    return "\u2800" < cell <= "\u28ff"


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300),
    st.floats(-1e3, 1e3),
    st.integers(40, 200),
    st.booleans(),
)
def test_no_line_is_wider_than_asked(values, limit, width, upper):
    assert all(cell_len(line) <= width for line in plot_signal(trace_chart(values, limit, upper), width))


@pytest.mark.parametrize("count", [2, 50, 5000])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_peak_of_one_record_reaches_the_top_where_it_is(count, place):
    peak = round(place * (count - 1))
    place = peak / (count - 1)
    values = [0.0] * count
    values[peak] = 900.0
    lines = plot_signal(trace_chart(values, 200.0), 80)
    top = area(lines)[0]
    columns = [k for k, cell in enumerate(top) if dotted(cell)]
    width = len(lines[-2]) - lines[-2].index("└") - 1
    assert columns
    assert min(abs(k - place * (width - 1)) for k in columns) <= 1
    broken = next(line for line in lines if line.lstrip().startswith("broken"))
    marks = [k - broken.index("│") - 1 for k, cell in enumerate(broken) if cell == "▲"]
    assert min(abs(k - place * (width - 1)) for k in marks) <= 1
    assert max(marks) - min(marks) <= (width / count) + 1


def test_the_curve_has_no_gap():
    rows = area(plot_signal(trace_chart([0, 900, 0, 900, 100], 200.0), 80))
    assert all(any(dotted(row[k]) for row in rows if k < len(row)) for k in range(max(map(len, rows))))


def test_a_jump_is_drawn_through_every_row():
    rows = area(plot_signal(trace_chart([0.0] * 50 + [900.0] * 50, 200.0), 90))
    assert all(any(map(dotted, row)) for row in rows)


def test_the_limit_is_ruled_and_named_in_its_row():
    lines = plot_signal(trace_chart([0.0, 100.0, 400.0], 200.0), 80)
    with_limit = [line for line in lines if "limit 200" in line]
    assert len(with_limit) == 1
    assert "╌" in with_limit[0]
    assert not any("╌" in line for line in lines if line not in with_limit)
    assert lines.index(with_limit[0]) in (3, 4)


def test_what_is_kept_has_no_mark_and_what_is_ungated_no_strip():
    text = "\n".join(plot_signal(trace_chart([0.0, 100.0], 200.0), 80))
    assert "▲" not in text
    assert "open" not in text


def test_a_record_beyond_the_limit_under_a_closed_gate_is_not_marked():
    lines = plot_signal(trace_chart([0, 900, 0, 0, 900, 0], 200.0, gate=[True, False, False, True, True, True]), 80)
    strip = next(line for line in lines if line.lstrip().startswith("broken"))
    assert strip.index("▲") > len(strip) / 2
    assert any(line.lstrip().startswith("open") for line in lines)


def test_values_that_are_not_finite_are_left_out():
    rows = area(plot_signal(trace_chart([float("inf"), 100.0, 300.0], 200.0), 60))
    assert not dotted(rows[0][0])


def test_a_plot_over_time_stamps_has_each_record_at_its_time():
    """The spike is in the second of three records, at 1 of 10 s."""
    chart = replace(trace_chart([0.0, 900.0, 0.0], 200.0), times_s=np.array([0.0, 1.0, 10.0]))
    broken = next(line for line in plot_signal(chart, 80) if line.strip().startswith("broken"))
    marks = [k for k, mark in enumerate(broken.partition("│")[2]) if mark == "▲"]
    assert marks[0] > 0
    assert marks[-1] < 0.6 * 80
    assert plot_signal(chart, 80)[-1].endswith("10.00 s")


def test_an_episode_of_one_record_is_one_record():
    batch = episode(1)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    assert "1 record, 0.00 s" in terminal.format_explanation(explanation, width=100)
