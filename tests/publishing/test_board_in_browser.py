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


def test_a_hostile_name_is_there_as_text(browser, folder):
    browser.open(folder / "index.html")
    assert "onerror=alert(1)>" in browser.run("document.body.textContent")
