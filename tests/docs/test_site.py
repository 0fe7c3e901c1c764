"""The documentation site: it builds without a warning, and works in a browser without any other host.

`make docs` builds the same files; what has not changed since is not built again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS, SITE = ROOT / "docs", ROOT / "build" / "docs"
PAGES = (
    *("index", "reference/commands", "reference/commands/eval", "reference/api", "reference/files"),
    *("reference/run-folder", "reference/cards/held_object_tilt_world_15deg", "reference/gallery"),
    *("explanation/one-episode", "tutorials/judge", "tutorials/record", "tutorials/evaluate", "howto/symptoms"),
    *(
        "explanation/faq",
        "reference/specifications",
        "explanation/fidelity",
        "howto/comparing",
        "howto/servers",
        "reference/glossary",
    ),
)
WIDTHS = (390, 1280)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site() -> Path:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", "build/docs-doctrees", "docs", SITE]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return SITE


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_no_other_host_complains_of_nothing_and_never_scrolls_sideways(site, browser, page):
    for width in WIDTHS:
        browser.open(site / f"{page}.html", width=width)
        assert [url for url in browser.requests() if not url.startswith("file://")] == []
        assert browser.complaints() == []
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_no_page_is_written_over_by_one_that_sphinx_makes():
    assert {path.stem for path in DOCS.iterdir()}.isdisjoint({"search", "genindex", "py-modindex"})


def test_every_page_is_reached_from_the_navigation(site, browser):
    browser.open(site / "index.html")
    linked = set(browser.run("[...document.querySelectorAll('.sidebar-tree a')].map(a => a.href)"))
    pages = {path.relative_to(DOCS).with_suffix(".html") for end in ("md", "ipynb") for path in DOCS.rglob(f"*.{end}")}
    assert {(site / page).as_uri() for page in pages - {Path("index.html")}} <= {
        link.partition("#")[0] for link in linked
    }


def test_the_theme_follows_the_browser_and_the_embedded_report_follows_the_theme(site, browser):
    background = "getComputedStyle(document.body).backgroundColor"
    colors = {}
    for scheme in ("light", "dark"):
        browser.open(site / "index.html", scheme=scheme)
        frame = "getComputedStyle(document.querySelector('.demo iframe')).colorScheme"
        colors[scheme] = (browser.run(background), browser.run(frame))
    assert colors["light"][0] != colors["dark"][0]
    assert (colors["light"][1], colors["dark"][1]) == ("light", "dark")


def test_the_landing_page_shows_the_demo_s_own_report(site, browser):
    browser.open(site / "_static" / "demo" / "report.html")
    assert "broke safety limits" in browser.run("document.querySelector('h1, .answer').parentNode.innerText")
    browser.open(site / "index.html")
    assert browser.run("document.querySelector('.demo iframe').src") == (site / "_static/demo/report.html").as_uri()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("vacuous", "howto/not-judged"),
        ("not judged", "howto/not-judged"),
        ("threshold suite", "howto/suite-threshold"),
        ("plot signal", "howto/plot-a-signal"),
        ("list bodies", "howto/list-bodies"),
        ("mujoco loop", "howto/mujoco-loop"),
    ],
)
def test_search_lists_the_right_page_among_the_first_two(site, browser, words, page):
    browser.open(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    found = browser.run(
        """new Promise(done => { const look = () => {
        const links = [...document.querySelectorAll('#search-results li > a')].map(a => a.href);
        document.querySelector('#search-results .search-summary')?.textContent ? done(links) : setTimeout(look, 50);
        }; look(); })"""
    )
    assert (site / f"{page}.html").as_uri() in [link.partition("#")[0].partition("?")[0] for link in found[:2]]


@pytest.mark.parametrize("page", ["measured", "which-command"])
def test_an_address_from_before_pages_had_folders_leads_to_the_page(site, browser, page):
    browser.open(f"{(site / f'{page}.html').as_uri()}#measured")
    (target,) = site.glob(f"[a-z]*/{page}.html")
    assert browser.run("document.location.href") == f"{target.as_uri()}#measured"


def test_moving_the_limit_changes_margin_and_depth(site, browser):
    browser.open(site / "explanation" / "one-episode.html")
    verdict = "document.querySelector('.threshold .verdict').textContent"
    assert "-105.8 N: violated." in browser.run(verdict)
    browser.run(
        """(() => { const input = document.querySelector('.limit-input'); input.value = 310;
        input.dispatchEvent(new Event('input')); })()"""
    )
    assert "4.2 N: holds." in browser.run(verdict)
