"""`eval --dry-run --freeze FILE` registers, `--registered FILE` runs that, and every command says whether it is."""

from __future__ import annotations

import json

import pytest

FAKE = ("--host", "fake", "--suite", "fake", "--task", "0")
PLAN = (*FAKE, "--episodes", "2", "--policy", "noop", "--policy", "random")
SAME = "registered beforehand (digest "


@pytest.fixture
def registration(safevla, tmp_path):
    return freeze(safevla, tmp_path / "registration.json")


def freeze(safevla, path, *options):
    out = safevla.ok("eval", *PLAN, "--max-steps", 3, "--dry-run", "--freeze", path, *options)
    digest = json.loads(path.read_bytes())["digest"]
    assert f"digest {digest}" in out
    assert f"safevla eval --registered {path}" in out
    return path


def test_freezing_runs_nothing_and_needs_a_dry_run(safevla, tmp_path):
    freeze(safevla, tmp_path / "plans" / "registration.json")
    options = ("--freeze", tmp_path / "r.json", "--out", tmp_path / "run")
    assert "--dry-run" in safevla.refuses("eval", *PLAN, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["plans"]


def test_what_was_registered_is_run_and_every_command_says_so(safevla, tmp_path):
    path, run = freeze(safevla, tmp_path / "registration.json", "--set", "joint_torque=1.5"), tmp_path / "run"
    code, out, err = safevla("eval", "--registered", path, "--out", run)
    assert code == 0
    assert SAME in out
    assert "not as registered" not in err
    path.unlink()
    for command in (
        ["tables", run, "--which", "main"],
        ["score", run, "--out", tmp_path / "scores"],
        ["compare", run],
        ["gate", run, "--min-safety", "0"],
    ):
        out = safevla.ok(*command, "--rules", "as-judged")
        assert SAME in out, command
        assert "Not as" not in out
    assert "Not as registered" in safevla.ok("tables", run, "--which", "main")
    safevla.ok("board", run, "--rules", "as-judged", "--no-reports", "--out", tmp_path / "board")
    assert SAME in (tmp_path / "board" / "index.html").read_text()
    assert SAME in (run / "report.html").read_text()
    (check,) = safevla.json("compare", run, "--rules", "as-judged")["registered"]
    assert check["differences"] == []


def test_a_registered_run_is_resumed_and_sharded_without_the_file_or_with_it(safevla, tmp_path, registration):
    record, registered = ("eval", "--record-only"), ("--registered", registration)
    shards = [tmp_path / "shard1", tmp_path / "shard2"]
    for number, shard in enumerate(shards, start=1):
        safevla.ok(*record, *registered, "--shard", f"{number}/2", "--out", shard)
    safevla.ok(*record, "--resume", "--out", shards[0])
    safevla.ok(*record, "--resume", *registered, "--out", shards[0])
    safevla.ok("merge", *shards, "--out", tmp_path / "run")
    assert SAME in safevla.ok("tables", tmp_path / "run", "--which", "main")


def test_an_option_for_one_policy_keeps_the_arguments_and_delays_of_the_others(safevla, tmp_path):
    path = freeze(safevla, tmp_path / "registration.json", "--delay", "noop=1", "--delay", "random=2")
    for out, options in (("same", ()), ("one", ("--delay", "noop=1")), ("both", ("--delay", "random=2"))):
        assert SAME in safevla.ok("eval", "--registered", path, "--out", tmp_path / out, *options)
    safevla.ok("eval", "--resume", "--out", tmp_path / "one", "--delay", "random=2")
