"""`safevla doctor` says what it finds, with remedies, and its exit code tells whether there is an error."""

from __future__ import annotations

import json

import numpy as np
import pytest

from policies.servers.stub_servers import openpi, websockets
from safevla_bench.cli import OK, USER_ERROR
from safevla_bench.jobs import doctor
from safevla_bench.jobs.doctor.machine import failed_check, passed_check, warned_check


@pytest.fixture
def examine(monkeypatch, safevla):
    """Run `doctor` where these are the findings; returns exit code and stdout."""

    def run(findings, *options):
        monkeypatch.setattr(doctor, "examine_machine", lambda *_, **__: iter(findings))
        return safevla("doctor", *options)[:2]

    return run


GOOD, BAD = passed_check("Python", "3.11"), failed_check("b", "bad", "mend")
ODD = warned_check("GL", "missing: libGL", "apt-get install libgl1")


def test_no_error_exits_0_and_names_the_next_command(examine):
    assert examine([GOOD, ODD]) == (
        OK,
        "ok       Python: 3.11\n"
        "warning  GL: missing: libGL\n"
        "           → apt-get install libgl1\n"
        "\n"
        "No error, 1 warning. Next: safevla demo\n",
    )


def test_neighbors_with_one_remedy_show_it_once(examine):
    assert examine([BAD, BAD, ODD])[1].splitlines()[:4] == [
        "error    b: bad",
        "error    b: bad",
        "           → mend",
        "warning  GL: missing: libGL",
    ]


def test_an_error_exits_2(examine):
    code, out = examine([BAD, BAD, ODD])
    assert code == USER_ERROR
    assert "2 errors" in out


def test_json_holds_every_finding(examine):
    code, out = examine([GOOD, BAD], "--format", "json")
    assert code == USER_ERROR
    assert json.loads(out) == {
        "ok": False,
        "findings": [
            {"check": "Python", "level": "ok", "found": "3.11", "remedy": None},
            {"check": "b", "level": "error", "found": "bad", "remedy": "mend"},
        ],
    }


def test_what_a_simulator_says_cannot_command_the_terminal(examine):
    assert "\x1b" not in examine([failed_check("b", "\x1b[31mred", "\x1b]0;title\x07")])[1]


def test_a_policy_server_is_shown_and_the_command_that_it_prints_is_one(safevla):
    reply = {"actions": np.tile([0.2, -0.1, 0.3, 0.02, 0.01, -0.03, -1.0], (10, 1))}
    with websockets(openpi(lambda request, number: reply)) as peer:
        out = safevla.ok("doctor", "--server", f"openpi:{peer.url}")
        (command,) = [line.partition("eval: safevla ")[2] for line in out.splitlines() if "eval: safevla" in line]
        safevla.ok(*command.split()[:-2], "--task", "0", "--dry-run")
    assert "           'prompt' str\n" in out
    assert "eval command above" in out


def test_a_server_that_is_not_there_exits_2_and_is_in_the_json_too(safevla):
    code, out, _ = safevla("doctor", "--server", "openpi:ws://127.0.0.1:9", "--policy-arg", "connect_timeout_s=0.2",
                           "--format", "json")  # fmt: skip
    document = json.loads(out)
    assert (code, document["ok"]) == (USER_ERROR, False)
    assert [finding["level"] for finding in document["findings"]] == ["ok", "error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy-arg", "replan=5"), "--policy-arg needs"),
        (("--server", "a:1", "--quick"), "--quick applies"),
        (("--server", "a:1", "--out", "runs"), "--out applies"),
    ],
)
def test_options_of_a_machine_and_of_a_server_do_not_go_together(safevla, options, words):
    assert words in safevla.refuses("doctor", *options)
