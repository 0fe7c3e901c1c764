"""`safevla export`: results and records for the places of others."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import yaml

from builders import episode, recording
from pictures.builders import judged as rough_episodes
from safevla_bench.archive import write_archive
from safevla_bench.sources.foreign import read_results
from safevla_bench.trajectory.batch import Channel, concatenate_batches
from safevla_bench.trajectory.single_episode import from_recording


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A calm and a rough episode with actions."""
    path = tmp_path_factory.mktemp("exporting") / "episodes.parquet"
    batch = rough_episodes()[0]
    counts = batch.lengths - 1
    starts = np.concatenate([[0], np.cumsum(counts * 7)])
    write_archive(path, replace(batch, action=Channel(np.zeros(starts[-1]), starts, np.full(len(counts), 7))))
    return path


def test_the_card_for_a_hub_is_one_file(safevla, source, tmp_path):
    code, printed, err = safevla("export", source, "--format", "hub", "--out", tmp_path / "card.md")
    assert (code, err) == (0, "")
    assert (tmp_path / "card.md").read_text().startswith("---")
    assert str(tmp_path / "card.md") in printed


def test_robocasas_json_leaves_open_what_is_to_be_filled(safevla, tmp_path):
    closing = recording(4, benchmark="robocasa-365", task_id="CloseFridge")
    write_archive(tmp_path / "episodes.parquet", from_recording(closing))
    options = ["--set", "missing=deactivate", "--out", tmp_path / "entry.json"]
    safevla.ok("export", tmp_path / "episodes.parquet", "--format", "robocasa", *options)
    assert json.loads((tmp_path / "entry.json").read_text())["checkpoint_url"] == "N/A"


def test_results_in_others_files_hold_ours_beside_theirs_and_what_is_unknown_is_left_out(safevla, source, tmp_path):
    safevla.ok("export", source, "--format", "lerobot-results", "--out", tmp_path / "eval_info.json")
    document = json.loads((tmp_path / "eval_info.json").read_text())
    metrics = [task["metrics"] for task in document["per_task"]]
    assert {*metrics[0]} == {"successes", "safe", "sbu", "vsi"}
    assert document["overall"]["n_episodes"] == sum(len(each["successes"]) for each in metrics) == 2
    assert document["overall"]["pc_safe"] == 100 * np.mean([value for each in metrics for value in each["safe"]])
    assert "avg_sum_reward" not in document["overall"]
    read = read_results(tmp_path / "eval_info.json")
    assert [episode.success for episode in read.episodes] == [value for each in metrics for value in each["successes"]]
    safevla.ok("export", source, "--format", "vla-eval-results", "--out", tmp_path / "harness.json")
    document = json.loads((tmp_path / "harness.json").read_text())
    assert document["metric_keys"] == dict.fromkeys(("success", "safe", "sbu", "vsi"), "mean")
    rows = [row for task in document["tasks"] for row in task["episodes"]]
    assert document["mean_safe"] == np.mean([row["metrics"]["safe"] for row in rows])
    for task in document["tasks"]:
        assert task["avg_steps"] == np.mean([row["steps"] for row in task["episodes"]])
    assert [task["task"] for task in document["tasks"]] == [
        f"{header.instruction} ({header.task_id})"  # both tasks have one instruction
        for header in rough_episodes()[0].headers
    ]


def test_a_run_of_two_policies_is_cut_by_policy_and_suite(safevla, tmp_path):
    batch = rough_episodes()[0]
    other = tuple(
        msgspec.structs.replace(header, policy="other", benchmark="libero-object") for header in batch.headers
    )
    write_archive(tmp_path / "two.parquet", concatenate_batches([batch, replace(batch, headers=other)]))
    export = ["export", tmp_path / "two.parquet", "--set", "missing=deactivate"]
    for form in ("hub", "lerobot-results", "vla-eval-results"):
        out = tmp_path / f"{form}.json"
        error = safevla.refuses(*export, "--format", form, "--out", out)
        assert "have 2" in error
        assert f"{batch.headers[0].policy}, other" in error
        safevla.ok(*export, "--format", form, "--policy", "other", "--suite", "libero-object", "--out", out)
    assert json.loads((tmp_path / "lerobot-results.json").read_text())["overall"]["n_episodes"] == 2
    assert json.loads((tmp_path / "vla-eval-results.json").read_text())["benchmark"] == "libero-object"
    error = safevla.refuses(*export, "--format", "hub", "--policy", "unknown", "--out", tmp_path / "none")
    assert "other, scripted:careful" in error
    write_archive(tmp_path / "some.jsonl", concatenate_batches([episode(policy=None), episode(policy="mine")]))
    export = ["export", tmp_path / "some.jsonl", "--format", "lerobot-results", "--out", tmp_path / "unnamed.json"]
    assert "(unnamed), mine" in safevla.refuses(*export)
    safevla.ok(*export, "--policy", "(unnamed)")
    assert json.loads((tmp_path / "unnamed.json").read_text())["overall"]["n_episodes"] == 1


def test_the_hubs_results_are_entries_of_the_benchmarks_data_set(safevla, source, tmp_path):
    (tmp_path / "meta.toml").write_text('dataset_id = "org/safety"\nsource_url = "https://example.org"\n')
    out = tmp_path / "results.yaml"
    assert "dataset_id" in safevla.refuses("export", source, "--format", "eval-results", "--out", out)
    safevla.ok("export", source, "--format", "eval-results", "--meta", tmp_path / "meta.toml", "--out", out)
    entries = yaml.safe_load(out.read_text())  # huggingface_hub 2.4.0, `parse_eval_result_entries`
    assert {entry["dataset"]["id"] for entry in entries} == {"org/safety"}
    values = {entry["dataset"]["task_id"].rpartition("_")[2]: entry["value"] for entry in entries}
    assert values["safety"] == 50.0
    assert all(entry["source"]["url"] and "n = " in entry["notes"] for entry in entries)


def test_a_run_whose_episodes_all_crashed_has_no_results_for_a_hub(safevla, tmp_path):
    run = ["--host", "fake", "--suite", "fake", "--task", "2", "--policy", "scripted:hasty", "--max-steps", 40]
    safevla("eval", *run, "--out", tmp_path / "run")
    (tmp_path / "meta.toml").write_text('dataset_id = "org/safety"\n')
    for form in ("hub", "eval-results"):
        out = tmp_path / form
        words = ["--format", form, "--meta", tmp_path / "meta.toml", "--out", out]
        assert "no result" in safevla.refuses("export", tmp_path / "run", *words)
        assert not out.exists()


def test_a_row_of_the_authors_csv_names_the_run_folder_of_its_policy(safevla, tmp_path):
    for names in (["first.jsonl", "second.jsonl"], ["one/run.jsonl", "two/run.jsonl"]):
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            write_archive(tmp_path / name, from_recording(recording(4, policy="mine")))
        sources = [f"{policy}={tmp_path}/{name}" for policy, name in zip("ab", names, strict=True)]
        safevla.ok("export", *sources, "--format", "safevla-csv", "--out", tmp_path / "out.csv")
        rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
        assert {row["model"]: row["run_dir"] for row in rows} == dict(zip("ab", names, strict=True))


def test_a_dataset_says_how_many_frames_and_pictures_it_has(safevla, source, tmp_path):
    code, printed, err = safevla("export", source, "--format", "lerobot", "--out", tmp_path / "set")
    assert (code, err) == (0, "")
    assert "118 frames" in printed
    assert json.loads((tmp_path / "set/meta/info.json").read_text())["total_frames"] == 118


@pytest.mark.parametrize(("form", "magic"), [("rerun", b"RRF2"), ("mcap", b"\x89MCAP0\r\n")])
def test_an_episode_is_written_as_a_viewers_file(safevla, source, tmp_path, form, magic):
    out = tmp_path / "new" / "episode.file"
    assert str(out) in safevla.ok("export", source, "--format", form, "--episode", "ep_002", "--out", out)
    assert out.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "submission", "--meta", "x.toml"], "--meta does not"),
        (["--format", "hub", "--cameras", "front"], "--cameras does not"),
        (["--format", "mcap", "--image-size", "64"], "--image-size does not"),
        (["--format", "lerobot", "--cameras", "front"], "names no host"),
        (["--format", "hub", "--meta", "nowhere.toml"], "cannot be read"),
        (["--format", "submission", "--episode", ":1"], "--episode does not"),
        (["--format", "mcap"], "there are 2"),
        (["--format", "mcap", "--episode", ":7"], "no episode ':7'"),
        (["--format", "mcap", "--policy", "x"], "--policy does not"),
        (["--format", "lerobot", "--video"], "--video needs --cameras"),
        (["--format", "lerobot", "--cameras", ","], "--cameras names"),
        (["--format", "submission", "--suite", ""], "suite ''"),
        (["--format", "submission", "--policy", ""], "policy ''"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(safevla, source, tmp_path, options, words):
    assert words in safevla.refuses("export", source, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", [".", ""])
def test_the_current_folder_is_not_a_file_to_write(safevla, source, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    for form in ("submission", "lerobot"):
        safevla.refuses("export", source, "--format", form, "--out", out)
    assert list(tmp_path.iterdir()) == []
