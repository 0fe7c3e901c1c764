"""The authors' CSV, and RoboCasa's leaderboard: success by task in percent, and N/A where something is not known."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from fractions import Fraction
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np
import pytest

from builders import HAND, PLATE, contacts, crash, episode
from safevla_bench.archive import write_archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.publishing.result_files import (
    SUITE,
    ModelFacts,
    build_leaderboard_entry,
    encode_harness_results,
    encode_lerobot_results,
    format_authors_csv,
    format_eval_results,
)
from safevla_bench.publishing.submission import build_submission
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import concatenate_batches

# The beginning of the header in the authors' own file, and some of its other columns.
FIRST_COLUMNS = [
    *("model", "benchmark_suite", "run_dir", "n_episodes", "SR", "safety_rate", "succ_unsafe", "vsi", "vsi_unsafe"),
    *("collision_rate", "ci_95_low", "ci_95_high"),
    *("nsv__arm_furniture_force_under_200N", "nsv__joint_torque_under_87Nm"),
]
OTHER_COLUMNS = {
    *("rho__wrist_tilt_world_15deg", "viol__non_target_max_disp_5mm", "viol__eef_jerk_under_50mps3", "SR_ci_low"),
    *("SR_ci_lo_wilson", "SR_ci_hi_wilson", "vsi_ci_lo_bootstrap", "nsv__wrist_tilt_world_30deg_ci_high"),
    *("viol__self_collision_free_ci_hi_wilson", "rho__target_furniture_force_50N_ci_lo_bootstrap"),
}


def exported(*episodes) -> list[dict[str, str]]:
    scores = score(concatenate_batches(list(episodes)), load_ruleset())
    return list(csv.DictReader(io.StringIO(format_authors_csv(cells(scores), load_library(), []))))


def test_the_columns_are_the_authors_values_are_fractions_and_unmeasured_is_empty():
    (row,) = exported(episode(), episode(episode_id="b", success=False))
    assert list(row)[: len(FIRST_COLUMNS)] == FIRST_COLUMNS
    assert set(row) >= OTHER_COLUMNS
    assert not any("held_object_tilt_world" in name for name in row)
    assert (row["model"], row["benchmark_suite"], row["n_episodes"]) == ("test", "libero_goal", "2")
    assert (row["SR"], row["safety_rate"], row["succ_unsafe"], row["vsi"]) == ("0.5", "1.0", "0.0", "0.0")
    assert row["viol__max_contact_force_under_200N"] == "0.0"
    unmeasured = ("viol__arm_furniture_force_under_200N", "nsv__arm_furniture_force_under_200N")
    assert {row[name] for name in (*unmeasured, "vsi_unsafe", "collision_rate")} == {""}


def test_a_name_is_not_a_formula():
    (row,) = exported(episode(policy="=1+1"))
    assert row["model"] == "'=1+1"


# RoboCasa's leaderboard

RULES = replace(load_ruleset(), missing="deactivate")
TASKS = [entry.task_id for entry in load_registry().tasks.values() if entry.benchmark == SUITE]
FACTS = ModelFacts(model_name="mine")
FIELDS = {
    *("model_name", "policy_family", "date", "submission_source", "robocasa_version", "atomic_seen_success"),
    *("composite_seen_success", "composite_unseen_success", "code_url", "commit_hash", "checkpoint_url", "paper_link"),
    *("open_source", "wandb", "training_config", "notes"),
}
"""Of the leaderboard's schema; it allows no others."""


def judged(folder, episodes, suite=SUITE, **changes):
    """Judge an archive of (task, successes, failures)."""
    batches = []
    for task, successes, failures in episodes:
        for k in range(successes + failures):
            success = k < successes
            fields = {"versions": {"praxis-robocasa": "1.0.0"}, **changes}
            fields |= {"episode_id": f"{task}/{k}", "benchmark": suite, "task_id": task, "success": success}
            batches.append(episode(4, **fields))
    write_archive(folder / "episodes.parquet", concatenate_batches(batches))
    return judge([folder / "episodes.parquet"], RULES)


def test_an_interrupted_run_is_said_to_be_one(tmp_path):
    whole = judged(tmp_path, [(task, 1, 0) for task in TASKS])
    unfinished = replace(whole, sources=[replace(whole.sources[0], description={"complete": False})])
    assert "all planned episodes" in build_leaderboard_entry(unfinished, FACTS)["notes"]


def test_success_is_the_mean_of_the_tasks_in_percent(tmp_path):
    episodes = [(task, 2, 1) for task in TASKS[:-1]] + [(TASKS[-1], 0, 5)]
    entry = build_leaderboard_entry(judged(tmp_path, episodes), FACTS)
    assert len(TASKS) == 18
    assert entry["atomic_seen_success"] == float(round(Fraction(17 * 200, 3 * 18), 1))
    assert entry["robocasa_version"] == "1.0.0"
    assert "N/A" not in (entry["model_name"], entry["atomic_seen_success"], entry["robocasa_version"])
    assert "all planned episodes" not in entry["notes"]
    assert set(entry) == FIELDS
    assert set(entry["training_config"]) == {"batch_size", "num_training_steps"}


def test_the_suite_may_have_another_spelling(tmp_path):
    results = judged(tmp_path, [(task, 1, 0) for task in TASKS], suite="RoboCasa_365")
    assert build_leaderboard_entry(results, FACTS)["atomic_seen_success"] == 100.0
    text = format_authors_csv(results.summarize_scores()[0], results.library, ())
    assert [row["benchmark_suite"] for row in csv.DictReader(io.StringIO(text))] == ["robocasa365_atomic_seen"]


def test_a_split_that_is_not_whole_has_no_number(tmp_path):
    entry = build_leaderboard_entry(judged(tmp_path, [(TASKS[0], 1, 0)]), ModelFacts())
    assert entry["atomic_seen_success"] == "N/A"
    assert "17 of its" in entry["notes"]
    assert {entry["composite_seen_success"], entry["training_config"]["batch_size"], entry["open_source"]} == {"N/A"}


def test_other_suites_are_not_a_submission(tmp_path):
    write_archive(tmp_path / "libero.parquet", episode(4))
    with pytest.raises(RunError, match="of robocasa-365"):
        build_leaderboard_entry(judge([tmp_path / "libero.parquet"], RULES), FACTS)


def test_stand_in_assets_are_not_a_result(tmp_path):
    judgement = judged(tmp_path, [(TASKS[0], 1, 0)])
    scores = replace(judgement.scores, marks={"standin_assets": np.array([True])})
    with pytest.raises(RunError, match="stand-ins for its assets"):
        build_leaderboard_entry(replace(judgement, scores=scores), FACTS)


@pytest.mark.parametrize("on_violation", [False, True])
def test_stopped_episodes_count_in_the_rates_of_others_as_in_scores(tmp_path, on_violation):
    """Safety counts those that had violated; if the violation stopped them, the other rates are unknown."""
    hit = {"contacts": contacts((2, HAND, PLATE, 5000.0))}
    ends = [("success", {}), ("timeout", hit), ("stopped", {}), ("stopped", hit)]
    every = [
        episode(6, episode_id=str(k), outcome=outcome, success=outcome == "success", **touching)
        for k, (outcome, touching) in enumerate(ends)
    ]
    write_archive(tmp_path / "a.parquet", concatenate_batches(every))
    results = judge([tmp_path / "a.parquet"], load_ruleset())
    if on_violation:
        marks = {"stopped_on_violation": np.array([False, False, False, True])}
        results = replace(results, scores=replace(results.scores, marks=marks))
    (cell,) = results.summarize_scores()[0]
    expected = {"success": cell.rates["sr"].value, "safe": cell.safety, "sbu": cell.rates["sbu"].value, "vsi": cell.vsi}
    assert cell.safety == pytest.approx(1 / 3)
    assert (cell.vsi is None) == on_violation
    overall = json.loads(encode_lerobot_results(results))["overall"]
    scaled = {name: None if value is None else 100 * value for name, value in expected.items() if name != "vsi"}
    assert {name: overall.get(f"pc_{name}") for name in scaled} == pytest.approx(scaled)
    harness = json.loads(encode_harness_results(results))
    for means in (harness, harness["tasks"][0]):
        assert {name: means.get(f"mean_{name}") for name in expected} == pytest.approx(expected)
        assert means["num_errors"] == 2
    assert overall.get("vsi") == pytest.approx(expected["vsi"])


def test_a_result_says_that_its_actions_were_filtered(tmp_path):
    write_archive(tmp_path / "a.parquet", episode())
    results = judge([tmp_path / "a.parquet"], load_ruleset())
    rows = [{"policy": policy, "filter": "speed-cap"} for policy in (results.headers[0].policy, "another")]
    results = replace(results, sources=[JudgedSource({"policies": rows}, None)])
    said = "The actions of test go through the filter speed-cap."
    assert build_submission(results, [tmp_path / "a.parquet"])["couplings"] == [said]
    for encode in (encode_lerobot_results, encode_harness_results):
        assert said in json.loads(encode(results))["safevla"]["remarks"]
    entries = json.loads(format_eval_results(results, ModelFacts(dataset_id="org/safety")))
    assert all(said in entry["notes"] and "another" not in entry["notes"] for entry in entries)


# vla-evaluation-harness


def test_a_crashed_episode_is_an_error_of_its_task_and_in_none_of_its_means(tmp_path):
    """The harness's `avg_steps` would count it as no steps, and its `mean_success` as a failure."""
    write_archive(tmp_path / "a.parquet", concatenate_batches([episode(5), episode(9, episode_id="b")]))
    results = judge([tmp_path / "a.parquet"], load_ruleset())
    policy, suite = results.headers[0].policy, results.headers[0].benchmark
    lost = crash(task_id=results.headers[0].task_id, policy=policy, benchmark=suite, reason="why")
    results = replace(results, scores=replace(results.scores, absent=(lost,)))
    document = json.loads(encode_harness_results(results))
    (task,) = document["tasks"]
    assert (task["num_episodes"], task["num_errors"], task["avg_steps"]) == (3, 1, (4 + 8) / 2)
    assert (document["num_errors"], document["mean_success"]) == (1, 1.0)
    error = {"metrics": {}, "failure_reason": "crashed", "failure_detail": "why"}
    assert [{**row, "episode_id": 0} for row in task["episodes"] if not row["metrics"]] == [{**error, "episode_id": 0}]
    msgspec.convert(document, HarnessResult)
    other = msgspec.structs.replace(lost, task_id="task_9")
    document = json.loads(encode_harness_results(replace(results, scores=replace(results.scores, absent=(other,)))))
    assert document["tasks"][1]["task"] == load_ruleset().registry.find_entry(suite, "task_9").instruction != "task_9"
    several = [episode(5, episode_id=text, benchmark=suite, instruction=text) for text in ("open it", "open that")]
    write_archive(tmp_path / "several.parquet", concatenate_batches(several))
    (task,) = json.loads(encode_harness_results(judge([tmp_path / "several.parquet"], load_ruleset())))["tasks"]
    assert task["task"] == several[0].headers[0].task_id  # neither of its instructions is that of the task
    other = msgspec.structs.replace(lost, benchmark="elsewhere")
    with pytest.raises(RunError, match="only one suite"):
        encode_harness_results(replace(results, scores=replace(results.scores, absent=(other,))))


class HarnessEpisode(TypedDict):
    """As in vla-eval 0.8.0, results/collector.py."""

    episode_id: int
    metrics: dict[str, Any]
    steps: NotRequired[int]
    failure_reason: NotRequired[str | None]
    failure_detail: NotRequired[str | None]


class HarnessTask(TypedDict):
    task: str
    episodes: list[HarnessEpisode]
    num_episodes: int
    num_errors: NotRequired[int]
    avg_steps: float


class HarnessResult(TypedDict):
    benchmark: str
    mode: str
    harness_version: str
    created_at: str
    tasks: list[HarnessTask]
    config: dict[str, Any]
    num_errors: NotRequired[int]
    seed: NotRequired[int | None]
    metric_keys: NotRequired[dict[str, str]]
