"""`safevla eval` with a policy behind a server: what is printed when the server is not there, or goes away."""

from __future__ import annotations

import re

import pytest

from policies.servers.stub_servers import chunk, openpi, websockets
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.policies.servers import REQUESTS
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.sources.runs.folder import Repeats, read_facts
from safevla_bench.sources.runs.parts import episode_rows
from scenes import WITHOUT_WRIST

FAKE = ["--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "6", "--episodes", "3"]
ARGUMENTS = ["cameras=agentview,none", "connect_timeout_s=5", "timeout_s=60"]
PATIENT = [word for argument in ARGUMENTS for word in ("--policy-arg", argument)]
QUICK = ["--policy-arg", "cameras=agentview,none", "--policy-arg", "connect_timeout_s=0.2"]


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
def test_without_its_server_a_run_does_not_begin_and_leaves_nothing_behind(safevla, tmp_path, monkeypatch, mode):
    def start(*arguments):
        pytest.fail("the simulator was started")

    monkeypatch.setattr(FakeHost, "make", start)
    options = ("--policy", "mine=openpi:127.0.0.1:1", *QUICK, "--out", tmp_path / "run")
    err = safevla.refuses("eval", *mode, *FAKE, *options)
    assert "within 0.2 s" in err
    assert "Start the server" in err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_asks_no_server(safevla):
    safevla.ok("eval", *FAKE, "--policy", "openpi:127.0.0.1:1", *QUICK, "--dry-run")


def test_when_the_server_goes_away_progress_is_printed_with_the_command_that_goes_on(safevla, tmp_path):
    remaining = [2]

    def refuse(connection, request):
        return connection.respond(503, "no upstream\n") if remaining[0] <= 0 else None

    def answer(request, number):
        remaining[0] -= 1
        return chunk(6)

    run = tmp_path / "run"
    with websockets(openpi(answer, WITHOUT_WRIST), process_request=refuse) as peer:
        arguments = [*FAKE, "--policy", f"openpi:{peer.url}", *PATIENT, "--policy-arg", "replan=3"]
        err = safevla.refuses("eval", *arguments, "--out", run)
        assert "1 of 3" in err
        again = f"safevla eval --resume --out {run} --retry-crashed"
        assert again in err
        remaining[0] = 99
        safevla.ok(*again.split()[1:])
    assert [row.outcome for row in episode_rows(run)] == ["timeout"] * 3


def test_where_the_servers_of_a_cell_are_not_all_the_same_it_is_noted(safevla, tmp_path):
    names = iter("?ABC" + "?" * REQUESTS)  # what it wants, the episodes, and whether it repeats itself

    def handle(connection):
        connection.send(OPENPI.pack({"checkpoint": next(names)}))
        for _ in connection:
            connection.send(OPENPI.pack(chunk(5)))

    with websockets(handle) as peer:
        code, _, err = safevla(
            "eval", "--record-only", *FAKE, "--policy", f"openpi:{peer.url}", *PATIENT, "--out", tmp_path / "run"
        )
    assert code == 0
    assert "volatile.policies_say" in err


def test_the_report_says_how_fast_a_server_answered_and_a_measured_delay_is_of_its_answers(safevla, tmp_path):
    options = (*FAKE, *PATIENT, "--delay", "measured", "--out", tmp_path / "run")
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST)) as peer:
        out = safevla.ok("eval", "--policy", f"mine=openpi:{peer.url}", *options)
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (out, page):
        assert "mine answered in " in text
        assert "ms (median)" in text
        assert re.search(r"lasts \d+ ms", text)
        assert "by the time to compute them" in text


def test_the_report_says_whether_the_server_answers_the_same_twice_and_what_that_does_to_pairs(safevla, tmp_path):
    values = iter([0.3, 0.3, 0.3, 0.0, 0.0, 0.1, 0.0, 0.2])  # three episodes; then the one request five times

    def answer(request, number):
        return chunk(6, next(values, 0.3))

    run, repeatable = tmp_path / "run", tmp_path / "alike"
    with websockets(openpi(answer, WITHOUT_WRIST)) as peer:
        arguments = [*FAKE, "--policy", f"mine=openpi:{peer.url}", *PATIENT, "--policy-arg", "replan=6"]
        out = safevla.ok("eval", *arguments, "--out", run)
        safevla.ok("eval", *arguments, "--out", repeatable)
    line = (
        "mine: 2 of 4 repeated requests had another answer; all requests were sent after the run, with a made-up "
        "scene. If answers vary, paired episodes"
    )
    assert line in " ".join(out.split())
    assert line in (run / "report.html").read_text()
    assert read_facts(run).repeated_answers["mine"] == Repeats(asked=4, other=2)
    assert "0 of 4" in safevla.ok("score", repeatable)


def test_without_a_server_or_with_one_that_fails_repeats_are_not_mentioned(safevla, tmp_path):
    assert "repeated requests" not in safevla.ok("eval", *FAKE, "--policy", "random", "--out", tmp_path / "run")
    count = iter(range(99))

    def answer(request, number):
        return chunk(6) if next(count) < 3 else "no such key"

    with websockets(openpi(answer, WITHOUT_WRIST)) as peer:
        arguments = ("--policy", f"openpi:{peer.url}", *PATIENT, "--policy-arg", "replan=6")
        assert "repeated requests" not in safevla("eval", *FAKE, *arguments, "--out", tmp_path / "served")[1]
    assert read_facts(tmp_path / "served").repeated_answers == {}
