"""`safevla eval`: workers, resuming, arguments for one policy, and a plan that runs nothing."""

from __future__ import annotations

import itertools
import json
import os
from types import SimpleNamespace

import pytest

from folders import contents, record_own_loop
from safevla_bench import policies
from safevla_bench.cli.rollout import estimate_table
from safevla_bench.hosts.fake import host
from safevla_bench.jobs.evaluation import rollouts
from safevla_bench.rollout.episode import run_serially
from safevla_bench.rollout.plan import CostRange, RunEstimate
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.sources.runs.parts import episode_rows

FAKE = ["--host", "fake", "--suite", "fake", "--max-steps", "6"]


PLAN = [*FAKE, "--task", "0,1", "--episodes", 2, "--policy", "random"]


@pytest.fixture
def unfinished(safevla, tmp_path, monkeypatch):
    """A run in `run` that was interrupted after its second episode; what was printed."""

    def run_two(*arguments):
        for count, outcome in enumerate(run_serially(*arguments)):
            if count == 2:
                raise KeyboardInterrupt
            yield outcome

    monkeypatch.setattr(rollouts, "run_serially", run_two)
    printed = safevla("eval", *PLAN, "--library", "paper-text", "--out", tmp_path / "run")
    monkeypatch.undo()
    return printed


def test_an_interrupted_run_says_what_is_done_and_the_command_that_continues_it(safevla, tmp_path, unfinished):
    code, _, err = unfinished
    run = tmp_path / "run"
    command = f"safevla eval --resume --out {run} --library paper-text"
    assert code == 130
    assert "2 of 4" in err
    assert command in err
    safevla.ok(*command.split()[1:])
    safevla.ok("eval", *PLAN, "--library", "paper-text", "--out", tmp_path / "whole")
    assert contents(run) == contents(tmp_path / "whole")


def test_a_run_whose_time_is_up_says_what_is_done_and_exits_with_a_code_of_its_own(safevla, tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr(rollouts, "time", SimpleNamespace(monotonic=itertools.count(0, 1000).__next__))
    code, _, err = safevla("eval", *PLAN, "--stop-after", "25m", "--out", run)
    assert code == 5
    assert "1 of 4" in err
    assert "3 episodes are" in err
    command = f"safevla eval --resume --out {run} --stop-after 25m"
    assert command in err
    monkeypatch.undo()
    safevla.ok(*command.split()[1:])
    safevla.ok("eval", *PLAN, "--out", tmp_path / "whole")
    assert contents(run) == contents(tmp_path / "whole")
    for text in ("3.5h", "0s", "50"):
        assert "not a time" in safevla.refuses("eval", *PLAN, "--stop-after", text, "--out", tmp_path / "no")


@pytest.mark.parametrize("kind", ["new", "empty", "link", "dangling", "filled meanwhile"])
def test_a_run_that_does_not_start_removes_what_it_wrote_alone(safevla, tmp_path, kind):
    """hostile/15"""
    out = tmp_path / "out"
    if kind != "new":
        (tmp_path / "own").mkdir()
        out.symlink_to(tmp_path / "own") if kind == "link" else out.mkdir()
    if kind == "dangling":
        (tmp_path / "own").rmdir()
        out.rmdir()
        out.symlink_to(tmp_path / "own")
    late = kind == "filled meanwhile"
    policy = (
        ["python:policies.starting:Late", "--policy-arg", f"out={out}"] if late else ["python:policies.starting:Camera"]
    )
    error = safevla.refuses("eval", *FAKE, "--task", "0", "--episodes", 1, "--policy", *policy, "--out", out)
    assert "Traceback" not in error
    if kind != "dangling":
        assert ("refused" if late else "no camera 'none'") in error
    assert out.is_symlink() == (kind in ("link", "dangling"))
    left = {path.name for path in out.iterdir()} if out.exists() else None
    assert left == {"new": None, "dangling": None, "filled meanwhile": {"notes.txt"}}.get(kind, set())


def test_text_that_is_not_unicode_is_escaped_where_it_is_written_and_refused_where_it_is_read(safevla, tmp_path):
    """hostile/14"""
    out = tmp_path / os.fsdecode(b"caf\xe9")
    plan = ["eval", *FAKE, "--task", "0", "--episodes", 3, "--policy", "mine=python:policies.starting:Surrogate"]
    code, _, err = safevla(*plan, "--out", out)
    assert code == 4
    assert "cannot open caf\\udce9.txt" in err
    assert [row.outcome for row in episode_rows(out)] == ["timeout", "crashed", "timeout"]
    assert "caf\\udce9.txt" in episode_rows(out)[1].reason
    assert safevla(*plan, "--out", out, "--resume", "--retry-crashed")[0] == 0
    safevla.ok("verify", out)
    safevla.ok("tables", out, "--format", "json", "--out", tmp_path / os.fsdecode(b"\xff.json"))
    (out / "run.json").write_text(json.dumps({**read_description(out), "host": "fake\ud800"}))
    for command in (["verify", out], ["score", out], ["episodes", out]):
        assert "run.json: cannot be" in safevla.refuses(*command)


def test_what_is_done_can_be_scored_and_is_left_alone_without_resume(safevla, tmp_path, unfinished):
    run = tmp_path / "run"
    assert "numbers cover only" in safevla.ok("score", run, "--out", tmp_path / "scored")
    assert json.loads((tmp_path / "scored" / "scores.json").read_text())["aggregate"]["n"] == 2
    before = contents(run)
    remedy = f"safevla eval --resume --out {run}"
    assert remedy in safevla.refuses("eval", *FAKE, "--policy", "random", "--out", run)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--seed", 1], "seed: the run"),
        (["--task", "0"], "tasks"),
        (["--episodes", 3], "episodes: the run"),
        (["--policy", "noop"], "policies[0].policy"),
        (["--max-steps", 5], "max_steps: the run"),
        ([], "versions.numpy: the run"),
    ],
)
def test_what_changes_results_cannot_be_changed_by_resuming(safevla, tmp_path, unfinished, options, difference):
    path = tmp_path / "run" / "run.json"
    description = json.loads(path.read_text())
    if not options:
        description["versions"]["numpy"] = "1.0"
        path.write_text(json.dumps(description))
    assert difference in safevla.refuses("eval", "--record-only", "--resume", "--out", tmp_path / "run", *options)


def test_resuming_without_a_run_needs_the_whole_request_and_begins_it(safevla, tmp_path):
    run = tmp_path / "run"
    assert "to resume" in safevla.refuses("eval", "--resume", "--out", run)
    assert not run.exists()
    for _ in range(2):  # the second time nothing is left to do
        safevla.ok("eval", "--record-only", "--resume", *FAKE, "--task", "0", "--policy", "noop", "--out", run)


def test_a_crashed_episode_stays_crashed_unless_it_is_to_be_retried(safevla, tmp_path, monkeypatch):
    run, plan = tmp_path / "run", [*FAKE, "--task", "0,2", "--policy", "noop", "--out"]
    assert safevla("eval", *plan, run)[0] == 4
    monkeypatch.setattr(host, "CRASH_AFTER", -1)
    assert safevla("eval", "--resume", "--out", run)[0] == 4
    safevla.ok("eval", "--resume", "--retry-crashed", "--out", run)
    safevla.ok("eval", *plan, tmp_path / "mended")
    assert contents(run) == contents(tmp_path / "mended")


def test_a_policy_that_asks_the_command_to_end_leaves_every_planned_episode_and_exit_code_4(
    safevla, tmp_path, monkeypatch
):
    (tmp_path / "leaver.py").write_text("class Leaver:\n    def act(self, observation):\n        raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = [*FAKE, "--task", "0,1", "--policy", "python:leaver:Leaver", "--out", tmp_path / "run"]
    assert safevla("eval", *plan)[0] == 4
    assert [row.outcome for row in episode_rows(tmp_path / "run")] == ["crashed"] * 2


def test_a_plug_in_that_asks_the_command_to_end_is_an_error_and_no_success(safevla, tmp_path, monkeypatch):
    def leave(host, suite):
        raise SystemExit(0)

    monkeypatch.setattr(host.FakeHost, "tasks", leave)
    assert "SystemExit: 0" in safevla.refuses("eval", *FAKE, "--policy", "noop", "--out", tmp_path / "run")


@pytest.mark.parametrize("missing", ["--host", "--suite", "--policy", "--out", "--resume"])
def test_what_is_needed_to_run_is_named(safevla, tmp_path, missing):
    options = {"--host": "fake", "--suite": "fake", "--policy": "noop", "--out": tmp_path / "run"}
    options.pop(missing, None)
    words = [word for pair in options.items() for word in pair]
    assert missing in safevla.refuses("eval", *words, *(["--retry-crashed"] if missing == "--resume" else []))
    assert not (tmp_path / "run").exists()


# --policy-arg


def test_an_argument_is_for_every_policy_or_for_the_one_it_names(safevla, tmp_path, monkeypatch):
    arguments, make_policy = {}, policies.make_policy

    def make_still(name, options):
        arguments[name] = dict(options)
        return make_policy("noop")

    monkeypatch.setattr(policies, "make_policy", make_still)
    texts = ["speed=1", "scripted:careful:speed=2", "a:url=ws://host:80/x=y"]
    options = [word for text in texts for word in ("--policy-arg", text)]
    roster = ["--policy", "a", "--policy", "scripted:careful"]
    safevla.ok("eval", "--record-only", *FAKE, "--task", "0", *roster, *options, "--out", tmp_path / "run")
    assert arguments == {"a": {"speed": "1", "url": "ws://host:80/x=y"}, "scripted:careful": {"speed": "2"}}
    described = json.loads((tmp_path / "run" / "run.json").read_text())["policies"]
    assert {policy["policy"]: policy["arguments"] for policy in described} == arguments


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("scripted:speed=1", "policy 'scripted' of"),
        ("speed", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("noop:=1", "POLICY:KEY=VALUE"),
    ],
)
def test_an_argument_for_nobody_is_refused(safevla, tmp_path, argument, message):
    options = ["--policy", "noop", "--policy-arg", argument, "--out", tmp_path / "run"]
    assert message in safevla.refuses("eval", "--record-only", *FAKE, *options)


# --shard


def test_shards_are_resumed_as_they_were_asked_and_merged_into_the_whole_run(safevla, tmp_path):
    shards = [tmp_path / "shard-1", tmp_path / "shard-2"]
    for number, shard in enumerate(shards, start=1):
        safevla.ok("eval", "--record-only", *PLAN, "--shard", f"{number}/2", "--out", shard)
        safevla.ok("eval", "--record-only", "--resume", "--out", shard)
    err = safevla.refuses("eval", "--record-only", *PLAN, "--resume", "--shard", "2/2", "--out", shards[0])
    assert "1, the request has" in err
    safevla.ok("eval", *PLAN, "--out", tmp_path / "whole")
    merged = tmp_path / "merged"
    assert f"safevla score {merged}" in safevla.ok("merge", *reversed(shards), "--out", merged)
    safevla.ok("score", merged, "--out", merged)
    assert contents(merged) == contents(tmp_path / "whole")


def test_a_plan_of_a_shard_shows_its_episodes_only(safevla):
    plan = [*FAKE, "--task", "0,1", "--episodes", 3, "--policy", "noop", "--dry-run"]
    out = safevla.ok("eval", *plan, "--shard", "2/2")
    assert "at most 18" in out
    assert "task_0" not in out
    safevla.refuses("eval", *plan, "--shard", "7/7")


def test_a_task_without_tags_costs_no_rollout(safevla, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_TASKS", (*host._TASKS, ("new", "do something new")))
    command = ["eval", *FAKE, "--task", "3", "--policy", "noop", "--out", tmp_path / "run"]
    err = safevla.refuses(*command)
    assert "task_3" in err
    assert "--rules" in err
    assert not (tmp_path / "run").exists()
    safevla.ok(*command, "--set", "applicability=off")


# --dry-run


def test_a_plan_is_printed_with_its_cost_and_nothing_is_written(safevla, tmp_path):
    plan = ["eval", *FAKE[:4], "--task", "0,1", "--episodes", 3, "--policy", "noop", "--dry-run"]
    out = safevla.ok(*plan, "--workers", 4, "--out", tmp_path / "run")
    assert "at most 240" in out
    assert out.count("noop") == 2
    assert "with 4 workers" in out
    assert " kB" in out
    assert list(tmp_path.iterdir()) == []
    safevla.ok(*plan, "--record-only")
    safevla.refuses(*plan, "--record-only", "--policy", "nonsense")


def test_the_time_to_expect_stands_before_its_bounds():
    plan = RunEstimate((), 1, CostRange(60.0, 120.0), CostRange(1e6, 3e6), "made up")
    assert "1.5 min (1.0" in str(estimate_table(plan).notes)


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
def test_a_policy_that_gives_what_no_simulator_takes_is_reported(safevla, tmp_path, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wild.py").write_text("class Policy:\n    def act(self, observation):\n        return [9.0] * 7\n")
    plan = [*FAKE, "--task", "0", "--episodes", 2, "--policy", "python:wild:Policy", "--out", tmp_path / "run"]
    err = safevla.refuses("eval", *mode, *plan)  # as for a server whose replies cannot be used
    for words in (
        "error: every episode ended with an invalid action: correct the policy's actions.",
        "invalid_action: python:wild:Policy/fake/task_0/ep_000 (and 1 other episode): step 0: the action is out",
        "set `clip = True` on the policy",
        "2 episodes ended with an invalid action: SR counts them as failures",
    ):
        assert words in err


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
@pytest.mark.parametrize("when", ["init", "act"])
def test_a_policy_that_changes_the_folder_of_the_process_does_not_move_the_run(
    safevla, tmp_path, monkeypatch, mode, when
):
    (tmp_path / "away").mkdir()
    move = f"os.chdir({str(tmp_path / 'away')!r})"
    init, act = (move, "pass") if when == "init" else ("pass", move)
    (tmp_path / f"mover_{when}.py").write_text(
        f"import os\nclass Policy:\n    def __init__(self): {init}\n"
        f"    def act(self, observation):\n        {act}\n        return [0.0] * 7\n"
    )
    monkeypatch.chdir(tmp_path)
    out = safevla.ok("eval", *mode, *FAKE, "--task", "0", "--policy", f"python:mover_{when}:Policy", "--out", "run")
    assert "run\n" in out
    assert (tmp_path / "run" / "run.json").exists()
    assert not list((tmp_path / "away").iterdir())


def test_a_finished_run_is_judged_again_without_its_code_and_that_is_proposed_first(safevla, tmp_path, monkeypatch):
    """Nothing of what run.json names is made: neither host nor policy, which may be a server that is gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("class Policy:\n    def act(self, observation): return [0.0] * 7\n")
    plan = [*FAKE, "--task", "0", "--episodes", 1, "--policy", "python:mine:Policy"]
    safevla.ok("eval", *plan, "--out", "run")
    message = safevla.refuses("eval", *plan, "--out", "run")
    assert message.index("--resume") < message.index("another --out")
    (tmp_path / "mine.py").unlink()
    before = contents(tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    safevla.ok("eval", "--resume", "--out", "run")
    safevla.ok("eval", "--resume", "--retry-crashed", "--record-only", "--out", "run")
    assert contents(tmp_path / "run") == before
    changed = safevla.refuses("eval", "--resume", "--out", "run", "--max-steps", 5)
    assert "not trusted" in changed


def test_a_run_of_ones_own_script_is_not_proposed_to_be_continued(safevla, tmp_path):
    message = safevla.refuses("eval", *FAKE, "--policy", "noop", "--out", record_own_loop(tmp_path / "run"))
    assert ("your own" in message, "--resume" in message) == (True, False)
