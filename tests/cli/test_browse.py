"""`safevla open`: it serves until Ctrl-C, opens a browser if there is one, and prints the address either way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from safevla_bench.jobs.browse import RunServer


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with scores alone: nothing is judged here."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "scores.json").write_text("{}")
    (tmp_path / "mine" / "report.html").write_text("the report")
    return tmp_path / "mine"


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked to open; the server ends at once, as by Ctrl-C."""
    addresses: list[str] = []

    def interrupt(server: RunServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunServer, "serve_forever", interrupt)
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    return addresses


def test_the_report_of_a_run_is_opened_and_its_address_printed(safevla, run_folder, addresses):
    code, out, err = safevla("open", run_folder, "--port", "0")
    (address,) = addresses
    assert (code, err) == (0, "")
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/run/mine/report.html")
    assert address in out


@pytest.mark.parametrize("reason", ["not wanted", "no display", "does not start"])
def test_without_a_browser_the_address_is_printed(safevla, run_folder, addresses, monkeypatch, reason):
    def fail(address: str) -> bool:
        raise webbrowser.Error("no browser")

    if reason == "no display":
        monkeypatch.delenv("DISPLAY")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    if reason == "does not start":
        monkeypatch.setattr(webbrowser, "open", fail)
    options = ["--no-browser"] if reason == "not wanted" else []
    code, out, err = safevla("open", run_folder, *options, "--port", "0")
    assert (code, addresses) == (0, [])
    assert "http://127.0.0.1:" in out
    assert ("ssh -L" in err and "No browser opened here" in err) == (reason != "not wanted")


@pytest.mark.parametrize(
    ("name", "words"), [("empty", "holds no run"), ("notes.txt", "there is no folder"), ("mine", "port")]
)
def test_a_folder_without_runs_a_file_of_another_kind_and_a_taken_port_are_named(
    safevla, run_folder, addresses, tmp_path, name, words
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("a note")
    port = "1" if os.geteuid() else "70000"
    assert words in safevla.refuses("open", tmp_path / name, *(("--port", port) if name == "mine" else ()))
    assert addresses == []


def test_ctrl_c_ends_the_server_quietly(run_folder):
    command = [sys.executable, "-m", "safevla_bench", "open", str(run_folder), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(address) as reply:
            assert reply.read() == b"the report"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
