"""What we write for other programs, opened in these programs, holds the values of scores.json.

Each test imports its program itself: to import them all takes seconds in each process that collects tests.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from safevla_bench import cli
from safevla_bench.sources.runs.folder import encode_parquet

HASTY = ("--policy", "scripted:hasty")


@pytest.fixture(scope="module")
def demo(shipped, tmp_path_factory):
    """The demo's archive, its scores.json, and the folder of its data set for LeRobot."""
    folder = tmp_path_factory.mktemp("consumers")
    for words in (["score", shipped, "--out"], ["export", shipped, "--format", "lerobot", "--out"]):
        assert cli.run_command_line([*map(str, words), str(folder / words[0])]) == 0
    scores = json.loads((folder / "score/scores.json").read_text())
    return SimpleNamespace(archive=shipped, scores=scores, folder=folder / "score", frames=folder / "export")


def load(path, cache, **options):
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(str(path), cache_dir=str(cache), **options)["train"]


def join_pairs(value):
    """Return a list of keys and values as what it is of in scores.json."""
    is_pairs = isinstance(value, list) and value and isinstance(value[0], dict)
    return {pair["key"]: pair["value"] for pair in value} if is_pairs else value


def test_datasets_reads_the_scores_the_archive_and_the_frames(demo, tmp_path):
    rows = load("parquet", tmp_path, data_files=str(demo.folder / "scores.parquet"))
    for row, episode in zip(rows, demo.scores["episodes"], strict=True):
        names = ({*row} & {*episode}) - {"diagnostics"}
        assert {"safe", "vsi", "violated_specs", "first_violation_step", "robustness", "inactive_specs"} <= names
        assert {name: join_pairs(row[name]) for name in names} == {name: episode[name] for name in names}
    empty = pq.read_table(demo.folder / "scores.parquet").slice(0, 0)
    (tmp_path / "empty.parquet").write_bytes(encode_parquet(empty))  # as of a run whose episodes all crashed
    files = [str(tmp_path / "empty.parquet"), str(demo.folder / "scores.parquet")]
    assert len(load("parquet", tmp_path, data_files=files)) == len(rows)
    records = load("parquet", tmp_path, data_files=str(demo.archive))
    assert records["episode_id"] == [episode["episode_id"] for episode in demo.scores["episodes"]]
    frames = load(demo.frames, tmp_path)
    unsafe = [k for k, episode in enumerate(demo.scores["episodes"]) if not episode["safe"]]
    violating = np.array(frames["next.safe"]) == 0
    assert sorted({*np.array(frames["episode_index"])[violating].tolist()}) == unsafe
    assert len(unsafe) == 5


def test_datasets_keeps_the_frames_of_data_sets_of_one_name_apart(safevla, demo, tmp_path):
    """It finds cached frames by the folder's name and the card."""
    frames = {}
    for policy in ("scripted:careful", "scripted:hasty"):
        folder = tmp_path / policy.removeprefix("scripted:") / "set"
        safevla.ok("export", demo.archive, "--policy", policy, "--format", "lerobot", "--out", folder)
        frames[policy] = load(folder, tmp_path / "cache")
        written = pq.read_table(folder / "data/chunk-000/file-000.parquet")
        assert frames[policy]["action"][:] == written["action"].to_pylist()
    assert len({len(own) for own in frames.values()}) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # rdflib's own
def test_mlcroissant_reads_every_column_of_the_frames(demo):
    import mlcroissant

    dataset = mlcroissant.Dataset(jsonld=str(demo.frames / "croissant.json"))
    table = pq.read_table(demo.frames / "data/chunk-000/file-000.parquet")
    columns = {f"frames/{name}": table[name].to_pylist() for name in table.column_names}
    count = 0
    for count, row in enumerate(dataset.records("frames"), start=1):
        assert row.keys() == columns.keys()
        assert row["frames/next.safe"] == columns["frames/next.safe"][count - 1]
        np.testing.assert_array_equal(row["frames/next.margin"], columns["frames/next.margin"][count - 1])
    assert count == len(table) == 3011


def test_the_hubs_library_reads_the_rates_of_the_card_and_of_the_results(safevla, demo, tmp_path):
    from huggingface_hub import DatasetCard, ModelCard, parse_eval_result_entries

    (tmp_path / "meta.toml").write_text('dataset_id = "org/safety"\n')
    export = ["export", demo.archive, *HASTY, "--meta", tmp_path / "meta.toml"]
    safevla.ok(*export, "--format", "hub", "--out", tmp_path / "card.md")
    safevla.ok(*export, "--format", "eval-results", "--out", tmp_path / "results.yaml")
    card = {
        (result.dataset_type, result.metric_type): (result.metric_value, result.metric_args["n"])
        for result in ModelCard.load(tmp_path / "card.md").data.eval_results
    }
    entries = parse_eval_result_entries(yaml.safe_load((tmp_path / "results.yaml").read_text()))
    values = {tuple(entry.task_id.split("_", 1)): entry.value for entry in entries}
    assert values == {name: value for name, (value, _) in card.items()}
    for cell in demo.scores["cells"]:
        if cell["policy"] == HASTY[1]:
            for metric in ("sr", "safety", "sbu"):
                rate = cell["rates"][metric]
                assert card[cell["suite"], metric] == (pytest.approx(100 * rate["value"], abs=0.005), rate["n"])
            assert values[cell["suite"], "vsi"] == pytest.approx(cell["vsi"], abs=5e-5)
    assert DatasetCard.load(demo.frames / "README.md").data.tags[0] == "LeRobot"


def test_readers_of_junit_and_sarif_count_the_verdicts_of_gates(safevla, demo, tmp_path):
    import junitparser
    from sarif.loader import load_sarif_file

    gate = ["gate", demo.archive, "--min-safety", "0.9", "--min-sr", "0.2", "--junit"]
    outcomes = safevla.json(*gate, tmp_path / "gate.xml")["outcomes"]
    safevla(*gate, tmp_path / "gate.sarif")
    verdicts = [outcome["verdict"] for outcome in outcomes]
    assert {*verdicts} == {"passed", "failed", "undecided"}
    report = junitparser.JUnitXml.fromfile(str(tmp_path / "gate.xml"))
    assert (report.failures, report.errors) == (verdicts.count("failed"), verdicts.count("undecided"))
    for case, outcome in zip((case for suite in report for case in suite), outcomes, strict=True):
        assert case.classname == f"{outcome['policy']} / all"
        assert case.is_passed == (outcome["verdict"] == "passed")
        assert all(f"{outcome['value']:.3f} over {outcome['n']}" in result.message for result in case.result)
    log = load_sarif_file(str(tmp_path / "gate.sarif"))
    assert log.get_distinct_tool_names() == ["safevla gate"]
    severities = {"failed": "error", "undecided": "none"}
    problems = [severities[verdict] for verdict in verdicts if verdict != "passed"]
    assert [row["Severity"] for row in log.get_records()] == problems


def test_tensorboard_shows_each_episode_and_the_final_numbers(safevla, demo, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    safevla.ok("export", demo.archive, "--format", "tensorboard", "--out", tmp_path)
    log = EventAccumulator(str(tmp_path / "tensorboard/export-1")).Reload()
    curves = {name: {each.step: each.value for each in log.Scalars(name)} for name in log.Tags()["scalars"]}
    for step, episode in enumerate(demo.scores["episodes"], start=1):
        prefix = f"{episode['policy']}/{episode['benchmark']}/episode/"
        assert curves[f"{prefix}safe"][step] == episode["safe"]
        assert curves[f"{prefix}vsi"][step] == pytest.approx(episode["vsi"], rel=1e-6)
    for cell in demo.scores["cells"]:
        (value,) = curves[f"final/{cell['policy']}/{cell['suite']}/safety"].values()
        assert value == pytest.approx(cell["safety"], rel=1e-6)
    safevla.ok("export", demo.archive, "--format", "tensorboard", "--out", tmp_path, "--set", "applicability=phased")
    (config,) = EventAccumulator(str(tmp_path / "tensorboard/export-2")).Reload().Tensors("config")
    assert b"applicability: phased" in config.tensor_proto.string_val[0]
    runs = sorted(path.parent for path in tmp_path.glob("tensorboard/*/*"))
    assert runs == [tmp_path / "tensorboard/export-1", tmp_path / "tensorboard/export-2"]
