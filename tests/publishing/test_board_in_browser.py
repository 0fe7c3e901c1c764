"""The board in chromium, from a folder: it fits, its links lead somewhere, and nothing complains."""

from __future__ import annotations

import pytest

from publishing.boards import episodes, measured
from report.test_page import HOSTILE
from safevla_bench.publishing.board import render_site, write_folder

LONG = "a-policy-with-a-very-long-name/and_several-parts:" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    results = measured(episodes(LONG, "1011"), episodes(HOSTILE, "1001"), episodes("b", "0000"), privileged=["b"])
    folder = tmp_path_factory.mktemp("web") / "deep" / "down"
    folder.parent.mkdir()
    write_folder(render_site(results), folder)
    return folder


@pytest.mark.parametrize("page", ["index.html", "method.html"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_is_styled_fetches_nothing_and_its_links_lead_somewhere(browser, folder, page, width):
    browser.open(folder / page, width=width)
    assert browser.run("document.scrollingElement.scrollWidth") <= width
    assert browser.run("getComputedStyle(document.body).display") == "block"
    assert browser.run("document.styleSheets.length") == 1
    assert browser.requests() == [(folder / page).as_uri()]
    links = browser.run("[...document.querySelectorAll('a[href]')].map(a => a.href.split('#')[0])")
    assert set(links) <= {(folder / name).as_uri() for name in ("index.html", "method.html")}
    assert not browser.run("!!window.ran")
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_bars_have_a_legend_and_an_axis_and_markers_at_the_ends_are_whole(browser, folder, width):
    browser.open(folder / "index.html", width=width)
    box = "{ const b = e.getBoundingClientRect(); return [b.left, b.right]; }"
    boxes = f"[...document.querySelectorAll(%r)].map(e => {box})"
    ends = browser.run(boxes % "#runs thead .picture .ends > span")
    bars = browser.run(boxes % "#runs .b-strip .b-grid")
    markers, region = browser.run(boxes % "#runs .b-strip circle"), browser.run(boxes % "#runs .scroll")[0]
    assert all(region[0] <= left and right <= region[1] for left, right in markers)
    assert abs(ends[0][0] - bars[0][0]) < 2, "0 is where the grid begins"
    assert abs(ends[1][1] - bars[4][1]) < 2, "100 % is where it ends"
    assert browser.run("document.querySelector('#runs thead .key').getBoundingClientRect().width") > 20


def test_a_hostile_name_is_there_as_text(browser, folder):
    browser.open(folder / "index.html")
    assert "onerror=alert(1)>" in browser.run("document.body.textContent")
