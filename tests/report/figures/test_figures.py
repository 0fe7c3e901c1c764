"""Every figure in every state: readable, honest, the same bytes each time, and no trace left in matplotlib."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

from report.figures.builders import DT_S, LONG, RECORDS, crashed, crowd
from report.figures.figure_texts import misplaced, read
from report.scenes import NAN, run, verdicts
from safevla_bench.errors import RunError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.figures import FIGURES, FigureInput, draw_figure, render_figure
from safevla_bench.report.figures.sheet import Page, figure_style, series_color, series_dash, series_marker

NO_RECORDS = (np.empty(0), np.empty(0, dtype=np.int64))
FOUR = ("libero-spatial", "libero-object", "libero-goal", "libero-10")
HOSTILE = "$\\frac{1}{2}$ </svg> \x1b[31m\u202e 模型 \n& {} %s"
STATES = {
    "nothing": crowd([], 0),
    "all crashed": crashed(["a", "b"]),
    "one episode": crowd(["openvla"], 1),
    "all safe": crowd(["openvla", "pi0"], 50, bad=0.0),
    "all unsafe": crowd(["openvla", "pi0"], 5, bad=60.0),
    "no verdict": verdicts((True, NAN, NAN)),
    "no policy name": verdicts((True, -1, 1), policy=None),
    "400 episodes": crowd(["openvla", "pi0", "pi0.5", "gr00t", "cosmos"], 400, bad=0.3),
    "ten long names": crowd(LONG, 60),
    "ten long names, two suites": crowd(LONG, 20, FOUR[:2]),
    "hostile": crowd([HOSTILE, HOSTILE + "2"], 3, [HOSTILE]),
}


@cache
def figure_input(state: str) -> FigureInput:
    return FigureInput(STATES[state], *NO_RECORDS)


def draw(name, verdicts_alone):
    """The figure of verdicts that no records came with."""
    if name == "onset":
        count = len(verdicts_alone.scores)
        verdicts_alone = FigureInput(verdicts_alone.scores, np.full(count, DT_S), np.full(count, RECORDS))
    return FIGURES[name].draw(verdicts_alone)


CROWDED = ("all unsafe", "400 episodes", "ten long names, two suites", "hostile")


@pytest.mark.parametrize("state", CROWDED)
@pytest.mark.parametrize("name", FIGURES)
def test_no_text_lies_on_another_or_leaves_the_sheet(name, state):
    assert misplaced(draw(name, figure_input(state))) == []


@pytest.mark.parametrize(("suites", "layout"), [(1, "suites"), (4, "pooled"), (4, "cells")])
def test_ten_long_names_never_overlap_in_any_layout(suites, layout):
    scores = crowd(LONG, 30, FOUR[:suites], seed=1, bad=0.03)
    figure = draw("tradeoff", FigureInput(scores, *NO_RECORDS, tradeoff_layout=layout))
    assert misplaced(figure) == []
    assert unnamed(figure) == []


def unnamed(figure):
    """The long names that the figure does not hold in full, in however many lines."""
    texts = "".join(read(figure)).replace(" ", "")
    return [name for name in LONG if name not in texts]


@pytest.mark.parametrize("name", FIGURES)
def test_every_policy_is_named_in_full(name):
    assert unnamed(draw(name, figure_input("ten long names"))) == []


@pytest.mark.parametrize("state", ["all unsafe", "all safe", "one episode"])
def test_a_bar_at_0_or_100_percent_stands_off_the_axes(state):
    axes = draw("tradeoff", figure_input(state)).axes
    bars = [line for panel in axes for line in panel.lines if len(line.get_xdata()) == 2]
    assert bars
    for bar in bars:
        (left, right), (bottom, top) = bar.axes.get_xlim(), bar.axes.get_ylim()
        assert all(left < x < right for x in bar.get_xdata())
        assert all(bottom < y < top for y in bar.get_ydata())


@pytest.mark.parametrize("state", ["nothing", "all crashed", "no verdict"])
def test_an_empty_figure_says_why_it_is_empty(state):
    reasons = {
        "There are no episodes.", "No episode was counted.", "—", "no violation",
        "No specification reached a verdict in any episode.", "Success or safety is unknown for each policy.",
    }  # fmt: skip
    for name in FIGURES:
        if (name, state) == ("tradeoff", "no verdict"):
            continue  # success and safety are counted all the same
        figure = draw(name, figure_input(state))
        assert {" ".join(text.split()) for text in read(figure)} & reasons, name
        assert misplaced(figure) == []


def test_pictures_come_from_records_too():
    batch = run(["calm", "rough"], [0.05, 1.0], 5, ["libero-10"])
    scores = score(batch, load_ruleset())
    for kind in FIGURES.values():
        assert render_figure(kind.draw(FigureInput(scores, batch.dt_s, batch.lengths)), "png")[:4] == b"\x89PNG"


# The same bytes, and nothing left behind


def digests():
    inputs = FigureInput(crowd([LONG[0], "pi0"], 8, ["libero-10", "libero-goal"]), None, None)
    figures = {name: draw(name, inputs) for name in FIGURES}
    return {
        f"{name}.{form}": hashlib.sha256(render_figure(figure, form)).hexdigest()
        for name, figure in figures.items()
        for form in (("svg", "pdf", "png") if name == "tradeoff" else ("svg",))
    }


_CODE = """
import json, sys
sys.path[:0] = sys.argv[1:]
from report.figures.test_figures import digests
print(json.dumps(digests()))
"""


def test_a_process_with_another_hash_seed_and_other_settings_writes_the_same_bytes(tmp_path):
    """Its settings are those of a user who likes large serif text and another salt."""
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 20\nfont.family: serif\nsvg.hashsalt: mine\nsavefig.bbox: tight\nsvg.fonttype: none\n"
        "lines.linewidth: 9\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "2", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    command = [sys.executable, "-c", _CODE, str(Path(__file__).parents[2])]
    output = subprocess.run(command, capture_output=True, check=True, env=environment, cwd=tmp_path).stdout
    assert json.loads(output) == digests()


def test_files_name_no_day_and_no_program():
    for form in ("svg", "pdf", "png"):
        content = render_figure(draw("tradeoff", figure_input("one episode")), form)
        assert all(word not in content for word in (b"CreationDate", b"<dc:date>", b"Matplotlib v", b"tEXtSoftware"))


def test_one_figure_can_be_rendered_twice():
    figure = draw("margins", figure_input("one episode"))
    for form in ("svg", "pdf"):
        assert render_figure(figure, form) == render_figure(figure, form)


def test_the_users_settings_stay_as_they_were(monkeypatch):
    monkeypatch.setitem(mpl.rcParams, "font.size", 23.0)
    before = dict(mpl.rcParams)
    render_figure(draw("families", figure_input("one episode")), "png")
    assert dict(mpl.rcParams) == before
    with figure_style():
        assert mpl.rcParams["font.size"] == 7.0


def test_pyplot_is_never_imported():
    code = "import sys, safevla_bench.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_color_is_never_the_only_difference():
    assert len({(series_color(k), series_marker(k)) for k in range(40)}) == 40
    assert len({series_marker(k) for k in range(10)}) == 10
    assert len({series_dash(k) for k in range(8)}) == 8


PAGES = (Page(6.75), Page(2.8, titled=False, remarks=("Judged otherwise.",)))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_for_another_page_has_its_width_and_is_as_readable(name: str, page: Page):
    scores = verdicts((True, 1, 1), (True, -5, 1), (False, 1, NAN))
    inputs = FigureInput(scores, np.full(3, DT_S), np.full(3, RECORDS))
    figure = draw_figure(lambda: FIGURES[name].draw(inputs), page)
    assert figure.get_figwidth() == pytest.approx(page.width_in)
    assert misplaced(figure) == []
    assert any(text.get_fontweight() == "bold" for text in figure.findobj(Text)) == page.titled
    assert any("Judged otherwise." in text.get_text() for text in figure.findobj(Text)) == bool(page.remarks)


def test_a_page_too_narrow_for_its_text_is_refused():
    with pytest.raises(RunError, match="the width is too small"):
        draw_figure(lambda: pytest.fail("drawn"), Page(2.5))


def test_the_page_of_one_figure_is_not_that_of_the_next():
    inputs = FigureInput(verdicts((True, 1, 1)), np.full(1, DT_S), np.full(1, RECORDS))
    before = render_figure(FIGURES["families"].draw(inputs), "svg")
    draw_figure(lambda: FIGURES["families"].draw(inputs), PAGES[0])
    assert render_figure(FIGURES["families"].draw(inputs), "svg") == before
