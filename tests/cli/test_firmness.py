"""`safevla sensitivity --physics` and `show --without`, as a user runs them."""

from __future__ import annotations

import pytest

from builders import numbers_in

RUN = ("--host", "fake", "--suite", "fake", "--task", "0", "--episodes", "5", "--policy", "random", "--out", "run")


@pytest.fixture
def run(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    safevla.ok("eval", *RUN)
    return "run"


def test_the_answer_comes_first_and_the_mark_is_in_the_list(safevla, run):
    output = safevla.ok("sensitivity", run, "--physics")
    assert numbers_in(output.partition("\n")[0]) == [80.0, 5, 80.0, 100.0, 4, 1]
    assert "half-step" in output
    assert safevla.ok("sensitivity", run, "--physics") == output
    assert ":4 fragile under" in safevla.ok("episodes", run)
    rows = safevla.json("episodes", run)
    assert [row["firmness"] for row in rows] == ["firm", "firm", "firm", "fragile", "firm"]
    assert "Suite" in safevla.ok("sensitivity", run, "--physics", "--full")


def test_a_log_has_a_line_for_each_replay_as_of_eval(safevla, run):
    _, _, log = safevla("sensitivity", run, "--physics", "--episodes", 2)
    lines = log.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("to run")] == ["2", "6"]
    assert lines[1].split()[:3] == ["[1/2]", "timeout", "safe"]
    assert lines[1].endswith(" recorded")
    assert len(lines) == 2 + 2 + 6


def test_a_list_without_replays_has_no_mark(safevla, run):
    assert "firmness" not in safevla.json("episodes", run)[0]
    assert "Firm" not in safevla.ok("episodes", run)


def test_an_episode_is_shown_without_its_cause(safevla, run):
    output = safevla.ok("show", run, ":4", "--without", "contact:gripper,table")
    assert output.startswith("Without contact of")
    assert "bit for bit" in output
    document = safevla.json("show", run, ":4", "--without", "contact:gripper,cup")
    assert document["recorded"] == document["without"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("sensitivity", "run", "--physics", "--readings"), "different analyses: choose"),
        (("sensitivity", "run", "--workers", "2"), "pass --physics"),
        (("sensitivity", "nowhere", "--physics"), "nowhere"),
        (("sensitivity", "mine=run", "--physics"), "without `NAME=` before"),
        (("show", "run", ":4", "--without", "gravity"), "names no cause"),
        (("show", "run", ":4", "--without", "slow", "--all"), "combined with --without"),
        (("show", "run", "--formula", "G[0,T](eef_speed < 1)", "--without", "slow"), "--without is for"),
    ],
)
def test_what_cannot_be_asked_is_refused(safevla, run, command, message):
    assert message in safevla.refuses(*command)
