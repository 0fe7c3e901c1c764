"""What was planned is what is there: rows, plan and records are counted against each other."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from folders import change_description, drop_episodes
from safevla_bench.errors import CollectedError, RunError
from safevla_bench.jobs.evaluation.judgement import describe_losses, judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.jobs.verify import verify_run
from safevla_bench.judging.gates import Gate, check_gates
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.rollout.plan import Shard
from safevla_bench.sources.runs.folder import EPISODES, compare_plan
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.sources.runs.writer import merge_shards

REQUEST = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=3, policies=("random", "noop"), max_steps=6)
SAFE = [Gate("safety", "min", 0.0)]


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "run"
    roll_out(REQUEST, folder)
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def gate(judged, **options):
    return check_gates(judged.scores, SAFE, lost=describe_losses(judged), **options).verdict


def differences(folder):
    return " ".join(finding.said for finding in verify_run(folder).findings if finding.verdict == "differs")


def test_planned_episodes_that_are_nowhere_are_named_and_leave_a_gate_undecided(run):
    drop_episodes(run, {"noop/fake/task_0/ep_001", "noop/fake/task_1/ep_002"})
    judged = judge([run], load_ruleset())
    assert [(absent.episode_id, absent.outcome) for absent in judged.scores.absent] == [
        ("noop/fake/task_0/ep_001", "missing"),
        ("noop/fake/task_1/ep_002", "missing"),
    ]
    (phrase,) = judged.left_out.describe_kinds()
    assert phrase.startswith("2 planned episodes")
    assert "noop on fake/task_1" in phrase
    assert not judged.is_complete
    assert gate(judged) == "undecided"
    assert gate(judged, allow_crashed=True) == "passed"
    assert "'noop/fake/task_0/ep_001'" in differences(run)


def test_episodes_of_a_plan_that_does_not_name_them_are_counted(run):
    rows = episode_rows(run)
    drop_episodes(run, {row.episode_id for row in rows if row.episode == 2})
    change_description(run, episodes=None)
    judged = judge([run], load_ruleset())
    assert ["4 planned episodes" in kind for kind in judged.left_out.describe_kinds()] == [True]
    assert gate(judged) == "undecided"
    assert re.search(r"\b4 \w+ planned by run\.json", differences(run))


def test_a_run_whose_table_is_gone_is_incomplete(run):
    (run / EPISODES).unlink()
    assert gate(judge([run], load_ruleset())) == "undecided"


def test_episodes_that_nobody_planned_leave_the_run_incomplete(run):
    change_description(run, episodes=2, planned=8)
    judged = judge([run], load_ruleset())
    assert ["4 episodes in" in kind for kind in judged.left_out.describe_kinds()] == [True]
    assert re.search(r"episodes\.parquet has 4 \w+", differences(run))


def test_a_record_that_the_table_does_not_list_is_an_error_and_never_judged(run):
    drop_episodes(run, {"noop/fake/task_0/ep_001"}, of_the_archive=False)
    with pytest.raises(CollectedError, match=r"ep_001.*not list"):
        judge([run], load_ruleset())
    judged = judge([run], load_ruleset(), skip_invalid=True)
    assert "noop/fake/task_0/ep_001" not in {header.episode_id for header in judged.headers}
    assert len(judged.headers) == 11


@pytest.mark.parametrize("planned", ["many", None, 1e300])
def test_a_plan_that_is_damaged_is_an_error(run, planned):
    change_description(run, planned=planned)
    with pytest.raises(RunError, match="plan is damaged"):
        judge([run], load_ruleset())


@pytest.mark.parametrize("planned", [-1, 10**12])
def test_a_plan_of_any_size_is_counted(run, planned):
    change_description(run, episodes=10**12, planned=planned)
    assert judge([run], load_ruleset()).left_out


def test_a_plan_takes_time_that_grows_with_its_length_alone(run):
    class Rows(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__()

    rows = Rows(episode_rows(run))
    compare_plan({"planned": 0, "episodes": "protocol", "tasks": [f"x{k}/y" for k in range(99)]}, rows)
    assert rows.passes < 9


def test_shards_and_what_is_merged_from_them_are_complete_and_a_lost_episode_of_a_shard_is_named(tmp_path):
    shards = [tmp_path / str(number) for number in (1, 2)]
    for number, folder in enumerate(shards, 1):
        roll_out(replace(REQUEST, shard=Shard(number, 2)), folder)
        assert not judge([folder], load_ruleset()).left_out
    merge_shards(shards, tmp_path / "merged")
    assert not judge([tmp_path / "merged"], load_ruleset()).left_out
    assert not differences(tmp_path / "merged")
    drop_episodes(shards[1], {"noop/fake/task_1/ep_000"})
    assert [absent.episode_id for absent in judge([shards[1]], load_ruleset()).scores.absent] == [
        "noop/fake/task_1/ep_000"
    ]


def test_a_run_that_its_rule_ended_has_the_episodes_of_its_rounds(tmp_path):
    request = replace(REQUEST, episodes=5, until="safety >= 0.01", policies=("noop",), tasks=(0,))
    rows = roll_out(request, tmp_path / "run")
    assert len(rows) < 5
    assert not judge([tmp_path / "run"], load_ruleset()).left_out
    assert not differences(tmp_path / "run")
    drop_episodes(tmp_path / "run", {"noop/fake/task_0/ep_000"})
    assert judge([tmp_path / "run"], load_ruleset()).left_out.unnamed == 1
