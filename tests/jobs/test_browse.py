"""The index of runs: what is listed, where its links lead, and that names are only ever shown."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import safevla_bench as sb
from report.browser import Browser
from safevla_bench.errors import RunError
from safevla_bench.jobs.browse import INDEX, find_page, find_runs, list_runs

HOSTILE = "<script>alert(1)<&'\"%2e%2e"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of the same episodes; one has a hostile name."""
    folder = tmp_path_factory.mktemp("runs")
    shared = {"suite": "fake", "tasks": [0, 1], "episodes": 2, "max_steps": 5}
    sb.evaluate("noop", out=folder / "still", **shared)
    sb.evaluate("random", out=folder / "deep" / HOSTILE, **shared)
    return folder


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    """A copy that may be changed, with a secret beside it."""
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "secret.json").write_text("secret")
    return tmp_path / "runs"


class Links(HTMLParser):
    """The addresses of a page, its tags and its text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, text: str) -> None:
        self.text += text


def test_every_run_is_listed_with_the_numbers_of_its_scores(folder: Path):
    rows = list_runs(find_runs(folder)).rows
    assert [row[0].text for row in rows] == [f"deep/{HOSTILE}", "still"]
    for run, policy, _, count, success_rate, safety, *_ in rows:
        (cell,) = json.loads((folder / run.text / "scores.json").read_bytes())["cells"]
        assert (policy.text, count.value) == (cell["policy"], cell["n"])
        assert (success_rate.value, safety.value) == (100 * cell["sr"], 100 * cell["safety"])


def test_a_run_alone_is_opened_at_its_report_and_a_folder_at_the_index(folder: Path):
    assert find_page(folder) == folder / INDEX
    assert find_page(folder / "still") == folder / "still" / "report.html"


def test_what_is_not_a_run_is_named(tmp_path: Path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match=re.escape(str(path))):
            find_page(path)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"n": "x"}]}', "[" * 100_000])
def test_scores_that_cannot_be_read_are_listed_as_that(folder: Path, damage: str):
    (folder / "still" / "scores.json").write_text(damage)
    run, policy, *_ = list_runs(find_runs(folder)).rows[-1]
    assert (run.text, policy.text, "scores.json" in policy.detail) == ("still", "—", True)
    assert "cannot be read" in Links(find_page(folder)).text


def test_every_link_of_the_index_leads_to_a_report_and_names_are_only_ever_shown(folder: Path):
    index = Links(find_page(folder))
    assert [folder / unquote(link) for link in index.links] == [
        run / "report.html" for run in find_runs(folder).values()
    ]
    assert all(set("<>:\"'").isdisjoint(link) and (folder / unquote(link)).is_file() for link in index.links)
    assert index.tags.count("script") == 1
    assert HOSTILE in index.text


def test_a_run_without_a_report_has_no_link_and_says_how_it_gets_one(folder: Path):
    (folder / "still" / "report.html").unlink()
    assert len(Links(find_page(folder)).links) == 1
    with pytest.raises(RunError, match="safevla score"):
        find_page(folder / "still")


def test_folders_behind_links_are_not_runs(folder: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    shutil.move(folder / "still", tmp_path / "elsewhere" / "still")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "direct").symlink_to(tmp_path / "elsewhere" / "still")
    assert list(find_runs(folder)) == [f"deep/{HOSTILE}"]


# In a browser


@pytest.mark.long
def test_the_index_sorts_in_a_browser(folder: Path, browser: Browser):
    browser.open(find_page(folder).as_uri())
    names = "Array.from(document.querySelectorAll('#runs tbody th'), (head) => head.textContent)"
    before = browser.run(names)
    press = "document.querySelectorAll('#runs thead button')[0].click()"
    browser.run(press)
    assert browser.run(names) == sorted(before)
    browser.run(press)
    assert browser.run(names) == sorted(before, reverse=True)
    assert "greatest first" in browser.run("document.getElementById('sorted').textContent")
    assert browser.complaints() == []


@pytest.mark.long
def test_a_telephone_shows_every_number_of_the_index_and_its_sorting(folder: Path, browser: Browser):
    browser.open(find_page(folder).as_uri(), width=390, height=844)
    hidden = """[...document.querySelectorAll('#runs td, #runs button')].filter((e) => e.checkVisibility()
        && e.getBoundingClientRect().right > innerWidth + 0.5).length"""
    assert browser.run(hidden) == 0
    assert browser.run("[...document.querySelectorAll('#runs td, #runs button')].every((e) => e.checkVisibility())")
    labels = browser.run("[...document.querySelectorAll('#runs tbody tr:first-child td')].map((e) => e.dataset.label)")
    heads = browser.run("[...document.querySelectorAll('#runs thead th')].map((e) => e.textContent)")
    assert labels == heads[1:]
