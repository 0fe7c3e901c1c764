"""The pages around runs: what is listed, and that nothing else is sent."""

from __future__ import annotations

import json
import re
import shutil
import threading
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path

import pytest

import safevla_bench as sb
from report.browser import Browser
from safevla_bench.errors import RunError
from safevla_bench.jobs.browse import RunServer, RunSite, find_runs, list_runs, run_address
from safevla_bench.report.render import PLAYER_SCRIPTS, content_security_policy, read_template

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

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page.decode())

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
    assert RunSite(folder).start == "/"
    alone = RunSite(folder / "still")
    assert alone.start == "/run/still/report.html"
    assert alone.reply(alone.start).content == (folder / "still" / "report.html").read_bytes()


def test_what_is_not_a_run_is_named(tmp_path: Path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match=re.escape(str(path))):
            RunSite(path)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"n": "x"}]}', "[" * 100_000])
def test_scores_that_cannot_be_read_are_listed_as_that(folder: Path, damage: str):
    (folder / "still" / "scores.json").write_text(damage)
    run, policy, *_ = list_runs(find_runs(folder)).rows[-1]
    assert (run.text, policy.text, policy.detail) == ("still", "—", "scores.json cannot be read")
    assert RunSite(folder).reply("/").status == 200


def test_every_link_of_the_index_leads_to_a_page_and_names_are_only_ever_shown(folder: Path):
    site = RunSite(folder)
    index = Links(site.reply("/").content)
    assert len(index.links) == 2
    assert all(link[:1] == "/" and site.reply(link).status == 200 for link in index.links)
    assert index.tags.count("script") == 1
    assert HOSTILE in index.text


def test_a_run_without_a_report_says_how_it_gets_one(folder: Path):
    (folder / "still" / "report.html").unlink()
    reply = RunSite(folder).reply(run_address("still", "report.html"))
    assert reply.status == 409
    assert b"safevla score" in reply.content


@pytest.mark.parametrize(
    "file",
    ["../secret.json", "../../secret.json", "..%2f..%2fsecret.json", "%2e%2e/%2e%2e/secret.json", "/etc/passwd",
     "%2fetc/passwd", "./run.json", "archive/../run.json", "link.json", "out/secret.json", ".hidden.json",
     "run.json%00", "archive", "", "raw.bin", "..\\..\\secret.json",
     f"{'n' * 300}.json", f"{'n/' * 3000}x.json", "circle.json", "run.json/run.json"],
)  # fmt: skip
def test_only_plain_files_within_a_run_are_sent(folder: Path, file: str):
    (folder / "still" / "link.json").symlink_to(folder.parent / "secret.json")
    (folder / "still" / "out").symlink_to(folder.parent)
    (folder / "still" / "circle.json").symlink_to("circle.json")
    (folder / "still" / ".hidden.json").write_text("secret")
    (folder / "still" / "raw.bin").write_text("secret")
    for run in ("still", "", "..", "%2e%2e", "still%2f.."):
        reply = RunSite(folder).reply(f"/run/{run}/{file}")
        assert reply.status == 404
        assert b"secret" not in reply.content


def test_a_file_that_cannot_be_read_is_named_on_a_page(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, *_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("safevla_bench.jobs.browse.read_input", refuse)
    reply = RunSite(folder).reply(run_address("still", "run.json"))
    assert reply.status == 409
    assert b"Permission denied" in reply.content


def test_folders_behind_links_are_not_runs(folder: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    shutil.move(folder / "still", tmp_path / "elsewhere" / "still")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "direct").symlink_to(tmp_path / "elsewhere" / "still")
    assert list(find_runs(folder)) == [f"deep/{HOSTILE}"]


def test_a_report_keeps_its_policy_and_a_foreign_page_may_run_no_script(folder: Path):
    site, page = RunSite(folder), folder / "still" / "report.html"
    parts = [read_template(name) for name in ("page.css", "page.js", *PLAYER_SCRIPTS)]
    assert site.reply("/run/still/report.html").policy == content_security_policy(*parts[:2])
    with_player = content_security_policy(*parts)
    escaped = with_player.replace("'", "&#39;")
    page.write_text(f'<meta http-equiv="Content-Security-Policy" content="{escaped}">')
    assert site.reply("/run/still/report.html").policy == with_player
    page.write_text("<script>alert(1)</script>")
    policy = site.reply("/run/still/report.html").policy
    assert policy.startswith("sandbox;")
    assert "script-src" not in policy


# In a browser


@pytest.fixture
def server(folder: Path):
    """The server, answering in a thread."""
    with RunServer(RunSite(folder)) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


def test_the_server_is_this_machines_alone(server: RunServer):
    host, port = server.server_address[:2]
    assert host == "127.0.0.1"
    own = f"127.0.0.1:{port}"
    for *names, status in (
        (own, 200),
        (f"localhost:{port}", 200),
        ("evil.example", 403),
        ("", 403),
        (own, "evil", 403),
    ):
        connection = HTTPConnection("127.0.0.1", port)
        connection.putrequest("GET", "/", skip_host=True)
        for name in names:
            connection.putheader("Host", name)
        connection.endheaders()
        reply = connection.getresponse()
        assert reply.status == status
        assert "default-src 'none'" in (reply.headers["Content-Security-Policy"] or "")
        connection.close()
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/", b"x")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_port_that_is_taken_is_named(server: RunServer, folder: Path):
    port = server.server_address[1]
    with pytest.raises(RunError, match=f"port {port} cannot be used"):
        RunServer(RunSite(folder), port)


@pytest.mark.long
def test_the_index_sorts_in_a_browser(server: RunServer, browser: Browser):
    browser.open(server.address + "/")
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
def test_a_telephone_shows_every_number_of_the_index_and_its_sorting(server: RunServer, browser: Browser):
    browser.open(server.address + "/", width=390, height=844)
    hidden = """[...document.querySelectorAll('#runs td, #runs button')].filter((e) => e.checkVisibility()
        && e.getBoundingClientRect().right > innerWidth + 0.5).length"""
    assert browser.run(hidden) == 0
    assert browser.run("[...document.querySelectorAll('#runs td, #runs button')].every((e) => e.checkVisibility())")
    labels = browser.run("[...document.querySelectorAll('#runs tbody tr:first-child td')].map((e) => e.dataset.label)")
    heads = browser.run("[...document.querySelectorAll('#runs thead th')].map((e) => e.textContent)")
    assert labels == heads[1:]
