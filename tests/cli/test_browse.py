"""`safevla open`: it opens a browser if there is one, and prints the page's path either way."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with scores alone: nothing is judged here."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "scores.json").write_text("{}")
    (tmp_path / "mine" / "report.html").write_text("the report")
    return tmp_path / "mine"


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked to open."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    return addresses


def test_the_report_of_a_run_is_opened_and_its_path_printed(safevla, run_folder, addresses):
    assert safevla("open", run_folder) == (0, f"{run_folder / 'report.html'}\n", "")
    assert addresses == [(run_folder / "report.html").as_uri()]


def test_of_a_folder_the_index_is_opened(safevla, run_folder, addresses):
    index = run_folder.parent / "safevla-runs.html"
    assert safevla("open", run_folder.parent)[1] == f"{index}\n"
    assert addresses == [index.as_uri()]
    assert "mine/report.html" in index.read_text()


@pytest.mark.parametrize("reason", ["not wanted", "no display", "no terminal", "does not start"])
def test_without_a_browser_the_path_is_printed(safevla, run_folder, addresses, monkeypatch, reason):
    def fail(address: str) -> bool:
        raise webbrowser.Error("no browser")

    if reason == "no display":
        monkeypatch.delenv("DISPLAY")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    if reason == "no terminal":
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    if reason == "does not start":
        monkeypatch.setattr(webbrowser, "open", fail)
    code, out, err = safevla("open", run_folder, *(["--no-browser"] if reason == "not wanted" else []))
    assert (code, addresses) == (0, [])
    assert "report.html" in out
    assert ("http.server" in err and "No browser was opened" in err) == (reason != "not wanted")


@pytest.mark.parametrize(("name", "words"), [("empty", "holds no run"), ("notes.txt", "is no folder")])
def test_a_folder_without_runs_and_a_file_of_another_kind_are_named(safevla, addresses, tmp_path, name, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("a note")
    assert words in safevla.refuses("open", tmp_path / name)
    assert addresses == []
