"""`safevla eval` and `safevla eval`: workers, resuming, arguments for one policy, and a plan that runs nothing."""

from __future__ import annotations

import json

import pytest

from folders import contents
from safevla_bench.cli.rollout import estimate_table
from safevla_bench.hosts.fake import host
from safevla_bench.jobs.evaluation import rollouts
from safevla_bench.rollout.episode import run_serially
from safevla_bench.rollout.estimate import CostRange, RunEstimate
from safevla_bench.sources.runs.parts import episode_rows

FAKE = ["--host", "fake", "--suite", "fake", "--max-steps", "6"]


@pytest.fixture
def unfinished(safevla, tmp_path, monkeypatch):
    """A run in `run` that was interrupted after its second episode; what was printed."""
    really = run_serially

    def two(*given):
        for count, outcome in enumerate(really(*given)):
            if count == 2:
                raise KeyboardInterrupt
            yield outcome

    monkeypatch.setattr(rollouts, "run_serially", two)
    asked = [*FAKE, "--task", "0,1", "--episodes", 2, "--policy", "random", "--library", "paper-text"]
    printed = safevla("eval", *asked, "--out", tmp_path / "run")
    monkeypatch.undo()
    return printed


def test_an_interrupted_run_says_what_is_done_and_the_command_that_continues_it(safevla, tmp_path, unfinished):
    code, _, err = unfinished
    run = tmp_path / "run"
    command = f"safevla eval --resume --out {run} --library paper-text"
    assert code == 130
    assert "2 of 4 episodes are done and kept" in err
    assert command in err
    assert safevla(*command.split()[1:])[0] == 0
    again = [*FAKE, "--task", "0,1", "--episodes", 2, "--policy", "random", "--library", "paper-text"]
    assert safevla("eval", *again, "--workers", 2, "--out", tmp_path / "whole")[0] == 0
    assert contents(run) == contents(tmp_path / "whole")


def test_what_is_done_can_be_scored_and_is_said_to_be_incomplete(safevla, tmp_path, unfinished):
    code, out, _ = safevla("score", tmp_path / "run", "--out", tmp_path / "scored")
    assert code == 0
    assert "An interrupted run is among these" in out
    assert json.loads((tmp_path / "scored" / "scores.json").read_text())["aggregate"]["n"] == 2
    assert safevla("score", tmp_path / "run", "--out", tmp_path / "scores")[0] == 0


def test_without_resume_an_unfinished_run_is_left_alone_and_the_remedy_is_the_command(safevla, tmp_path, unfinished):
    before = contents(tmp_path / "run")
    code, _, err = safevla("eval", *FAKE, "--policy", "random", "--out", tmp_path / "run")
    assert code == 2
    assert f"safevla eval --resume --out {tmp_path}/run" in err
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (["--seed", 1], "seed: the run has 0, asked is 1"),
        (["--task", "0"], "tasks"),
        (["--episodes", 3], "episodes: the run has 2, asked is 3"),
        (["--policy", "noop"], "policies[0].policy"),
        (["--max-steps", 5], "max_steps: the run has 6, asked is 5"),
    ],
)
def test_what_changes_results_cannot_be_changed_by_resuming(safevla, tmp_path, unfinished, other, named):
    code, _, err = safevla("eval", "--record-only", "--resume", "--out", tmp_path / "run", *other)
    assert code == 2
    assert named in err


def test_another_version_is_refused(safevla, tmp_path, unfinished):
    path = tmp_path / "run" / "run.json"
    held = json.loads(path.read_text())
    held["versions"]["numpy"] = "1.0"
    path.write_text(json.dumps(held))
    code, _, err = safevla("eval", "--resume", "--out", tmp_path / "run")
    assert code == 2
    assert 'versions.numpy: the run has "1.0"' in err


def test_resuming_where_there_is_no_run_needs_the_whole_request_and_begins_it(safevla, tmp_path):
    code, _, err = safevla("eval", "--resume", "--out", tmp_path / "run")
    assert code == 2
    assert "there is no run to resume" in err
    assert not (tmp_path / "run").exists()
    asked = [*FAKE, "--task", "0", "--policy", "noop", "--out", tmp_path / "run"]
    assert safevla("eval", "--record-only", "--resume", *asked)[0] == 0
    assert safevla("eval", "--record-only", "--resume", *asked)[0] == 0  # nothing is left to do


def test_a_crashed_episode_stays_crashed_unless_it_is_to_be_retried(safevla, tmp_path, monkeypatch):
    run = tmp_path / "run"
    asked = [*FAKE, "--task", "0,2", "--policy", "noop", "--out"]
    assert safevla("eval", *asked, run)[0] == 4
    assert safevla("eval", "--resume", "--out", run)[0] == 4
    monkeypatch.setattr("safevla_bench.hosts.fake.host.CRASH_AFTER", -1)
    assert safevla("eval", "--resume", "--out", run)[0] == 4
    assert safevla("eval", "--resume", "--retry-crashed", "--out", run)[0] == 0
    assert safevla("eval", *asked, tmp_path / "mended")[0] == 0
    assert contents(run) == contents(tmp_path / "mended")


def test_a_policy_that_asks_the_command_to_end_leaves_every_planned_episode_and_exit_code_4(
    safevla, tmp_path, monkeypatch
):
    (tmp_path / "leaver.py").write_text("class Leaver:\n    def act(self, observation):\n        raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = [*FAKE, "--task", "0,1", "--policy", "python:leaver:Leaver", "--out", tmp_path / "run"]
    assert safevla("eval", *asked)[0] == 4
    assert [row.outcome for row in episode_rows(tmp_path / "run")] == ["crashed"] * 2


def test_a_plug_in_that_asks_the_command_to_end_is_an_error_and_no_success(safevla, tmp_path, monkeypatch):
    def leave(host, suite):
        raise SystemExit(0)

    monkeypatch.setattr("safevla_bench.hosts.fake.host.FakeHost.tasks", leave)
    code, _, err = safevla("eval", *FAKE, "--policy", "noop", "--out", tmp_path / "run")
    assert code == 2
    assert "SystemExit: 0" in err


def test_retrying_needs_a_run(safevla, tmp_path):
    code, _, err = safevla("eval", *FAKE, "--policy", "noop", "--retry-crashed", "--out", tmp_path / "run")
    assert code == 2
    assert "--resume" in err


@pytest.mark.parametrize("missing", ["--host", "--suite", "--policy", "--out"])
def test_what_is_needed_to_run_is_named(safevla, tmp_path, missing):
    asked = {"--host": "fake", "--suite": "fake", "--policy": "noop", "--out": tmp_path / "run"}
    del asked[missing]
    code, _, err = safevla("eval", *[word for pair in asked.items() for word in pair])
    assert code == 2
    assert missing in err
    assert not (tmp_path / "run").exists()


# --policy-arg


@pytest.fixture
def made(monkeypatch):
    """What each policy was made with; every policy is the still one."""
    from safevla_bench import policies

    seen = {}
    really = policies.make_policy

    def recorded(name, arguments):
        seen[name] = dict(arguments)
        return really("noop")

    monkeypatch.setattr(policies, "make_policy", recorded)
    return seen


def test_an_argument_is_for_every_policy_or_for_the_one_it_names(safevla, tmp_path, made):
    given = ["speed=1", "scripted:careful:speed=2", "a:url=ws://host:80/x=y"]
    asked = [word for one in given for word in ("--policy-arg", one)]
    named = ["--policy", "a", "--policy", "scripted:careful"]
    assert safevla("eval", "--record-only", *FAKE, "--task", "0", *named, *asked, "--out", tmp_path / "run")[0] == 0
    assert made == {"a": {"speed": "1", "url": "ws://host:80/x=y"}, "scripted:careful": {"speed": "2"}}
    held = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {one["policy"]: one["arguments"] for one in held["policies"]} == made


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("scripted:speed=1", "'scripted', which is not in this run"),
        ("speed", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("noop:=1", "POLICY:KEY=VALUE"),
    ],
)
def test_an_argument_for_nobody_is_refused(safevla, tmp_path, given, named):
    asked = ["--policy", "noop", "--policy-arg", given, "--out", tmp_path / "run"]
    code, _, err = safevla("eval", "--record-only", *FAKE, *asked)
    assert code == 2
    assert named in err


# --shard


def test_shards_are_resumed_as_they_were_asked_and_merged_into_the_whole_run(safevla, tmp_path):
    asked = [*FAKE, "--task", "0,1", "--episodes", 2, "--policy", "random"]
    for number in (1, 2):
        shard = tmp_path / f"shard-{number}"
        assert safevla("eval", "--record-only", *asked, "--shard", f"{number}/2", "--out", shard)[0] == 0
        assert safevla("eval", "--record-only", "--resume", "--out", shard)[0] == 0
    assert safevla("eval", *asked, "--out", tmp_path / "whole")[0] == 0
    code, out, _ = safevla("merge", tmp_path / "shard-2", tmp_path / "shard-1", "--out", tmp_path / "merged")
    assert code == 0
    assert f"safevla score {tmp_path}/merged" in out
    assert safevla("score", tmp_path / "merged", "--out", tmp_path / "merged")[0] == 0
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


def test_a_shard_is_resumed_as_no_other_piece(safevla, tmp_path):
    asked = [*FAKE, "--task", "0,1", "--policy", "random", "--out", tmp_path / "run"]
    assert safevla("eval", "--record-only", *asked, "--shard", "1/2")[0] == 0
    code, _, err = safevla("eval", "--record-only", *asked, "--resume", "--shard", "2/2")
    assert code == 2
    assert "shard.number: the run has 1, asked is 2" in err


def test_a_plan_of_a_shard_shows_its_episodes_only(safevla):
    asked = [*FAKE, "--task", "0,1", "--episodes", 3, "--policy", "noop", "--dry-run"]
    code, out, _ = safevla("eval", *asked, "--shard", "2/2")
    assert code == 0
    assert "3 episodes, at most 18 steps" in out
    assert "task_0" not in out
    assert safevla("eval", *asked, "--shard", "7/7")[0] == 2


def test_a_task_without_tags_costs_no_rollout(safevla, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_TASKS", (*host._TASKS, ("new", "do something new")))
    new = ["--host", "fake", "--suite", "fake", "--task", "3", "--policy", "noop", "--max-steps", "6"]
    code, _, err = safevla("eval", *new, "--out", tmp_path / "run")
    assert code == 2
    assert "task_3" in err
    assert "--rules" in err
    assert not (tmp_path / "run").exists()
    assert safevla("eval", *new, "--out", tmp_path / "run", "--set", "applicability=off")[0] == 0


def test_records_in_parquet_are_judged_alike(safevla, tmp_path):
    asked = [*FAKE, "--task", "0,1", "--episodes", 2, "--policy", "random"]
    for form in ("jsonl", "parquet"):
        assert safevla("eval", *asked, "--archive", form, "--out", tmp_path / form)[0] == 0
    assert [path.name for path in (tmp_path / "parquet" / "archive").iterdir()] == ["part-00000.parquet"]
    one, other = (json.loads((tmp_path / form / "scores.json").read_bytes()) for form in ("jsonl", "parquet"))
    (said,), (told,) = one.pop("sources"), other.pop("sources")
    assert one == other
    assert {name for name in said if said[name] != told[name]} == {"archive", "archive_sha256"}


# --dry-run


def test_a_plan_is_printed_with_its_cost_and_nothing_is_written(safevla, tmp_path):
    asked = ["--host", "fake", "--suite", "fake", "--task", "0,1", "--episodes", 3, "--policy", "noop"]
    code, out, _ = safevla("eval", *asked, "--workers", 4, "--dry-run", "--out", tmp_path / "run")
    assert code == 0
    assert "6 episodes, at most 240 steps; nothing has been run or written" in out
    assert out.count("noop") == 2
    assert "Estimate for episodes that all last their full horizon, with 4 workers" in out
    assert "kB" in out
    assert list(tmp_path.iterdir()) == []
    assert safevla("eval", "--record-only", *asked, "--dry-run")[0] == 0
    assert safevla("eval", "--record-only", *asked, "--policy", "nonsense", "--dry-run")[0] == 2


def test_the_time_to_expect_stands_before_its_bounds():
    plan = RunEstimate((), 1, CostRange(60.0, 120.0), CostRange(1e6, 3e6), "made up")
    assert "  time  about 1.5 min (1.0 to 2.0), without the policies' own time" in estimate_table(plan).notes


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
def test_a_policy_that_gives_what_no_simulator_takes_is_told(safevla, tmp_path, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wild.py").write_text("class Policy:\n    def act(self, observation):\n        return [9.0] * 7\n")
    asked = [*FAKE, "--task", "0", "--episodes", 2, "--policy", "python:wild:Policy", "--out", tmp_path / "run"]
    code, _, err = safevla("eval", *mode, *asked)
    assert code == 2  # as for a server whose replies cannot be used
    assert "error: no episode has ended otherwise: mend the policy's actions." in err
    assert "invalid_action: python:wild:Policy/fake/task_0/ep_000: step 0: number 0 of the action, 9" in err
    assert "set clip = True on it" in err
    assert "2 episodes ended with an invalid action: failures in SR, and without a verdict on safety" in err


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
@pytest.mark.parametrize("when", ["__init__", "act"])
def test_a_policy_that_changes_the_folder_of_the_process_does_not_move_the_run(
    safevla, tmp_path, monkeypatch, mode, when
):
    (tmp_path / "away").mkdir()
    source = "import os\nclass Policy:\n    def act(self, *_):\n        {}return [0.0] * 7\n    {}\n"
    away = f"os.chdir({str(tmp_path / 'away')!r})"
    init = f"def __init__(self, *_): {away}" if when == "__init__" else ""
    (tmp_path / f"mover_{when.strip('_')}_eval.py").write_text(
        source.format(f"{away}; " if when == "act" else "", init)
    )
    monkeypatch.chdir(tmp_path)
    policy = f"python:mover_{when.strip('_')}_eval:Policy"
    code, out, err = safevla("eval", *mode, *FAKE, "--task", "0", "--policy", policy, "--out", "run")
    assert code == 0, err
    assert "run\n" in out
    assert (tmp_path / "run" / "run.json").exists()
    assert not list((tmp_path / "away").iterdir())
