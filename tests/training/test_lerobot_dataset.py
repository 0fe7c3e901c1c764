"""Datasets in LeRobot's layout: what they hold is what was recorded and judged, and unknown stays unknown."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pictures.builders import judged as rough_episodes
from safevla_bench.archive import write_archive
from safevla_bench.errors import FileError, HostError, RunError, SafevlaError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.fake.host import FakeStage
from safevla_bench.interface.stage import Camera
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.pictures.rendering import open_stage
from safevla_bench.sources.foreign.demonstrations import read_demonstrations
from safevla_bench.training.export import CameraChoice, FrameWeighting, export_dataset, read_state
from safevla_bench.training.labels import label_records
from safevla_bench.training.writer import FrameColumn, FrameFeature, join_statistics
from safevla_bench.trajectory.batch import Channel, concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import add_rows

RULES = load_ruleset()
CAMERAS = CameraChoice(("agentview",), (24, 32))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A calm and a rough episode with actions."""
    path = tmp_path_factory.mktemp("training") / "episodes.parquet"
    batch = rough_episodes()[0]
    write_archive(path, replace(batch, action=random_actions(batch.lengths - 1, 7)))
    return path


def random_actions(counts, width):
    starts = np.concatenate([[0], np.cumsum(counts * width)])
    values = np.random.default_rng(0).uniform(-1, 1, starts[-1])
    return Channel(values, starts, np.full(len(counts), width))


@pytest.fixture(scope="module")
def fake_run(tmp_path_factory):
    """Three episodes on the fake host, the last of which crashes."""
    folder = tmp_path_factory.mktemp("training") / "run"
    request = Request(host="fake", suites=("fake",), tasks=(0, 1, 2), policies=("scripted:hasty",), max_steps=40)
    roll_out(request, folder)
    return folder


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory):
    """The verdicts on the source, the folder of its dataset, and what was written."""
    judged, folder = judge([source], RULES), tmp_path_factory.mktemp("training") / "set"
    return judged, folder, export_dataset(judged, folder)


@pytest.fixture(scope="module")
def pictured(fake_run, tmp_path_factory):
    """The folder of a dataset with pictures, and what was written."""
    folder = tmp_path_factory.mktemp("training") / "set"
    return folder, export_dataset(judge([fake_run], RULES), folder, CAMERAS)


def frames_of(folder):
    return pq.read_table(folder / "data/chunk-000/file-000.parquet")


def episode_rows_of(folder):
    return pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()


def test_frames_hold_records_actions_and_the_labels_of_the_record_after(dataset):
    judged, folder, summary = dataset
    batch, table = judged.batch, frames_of(folder)
    assert (summary.episodes, summary.frames) == (2, int(batch.starts[-1]) - 2)
    labels = label_records(batch, judged.scores, RULES)
    for e in range(2):
        rows = table.take(np.flatnonzero(table["episode_index"].to_numpy() == e))
        part = labels.select_records(int(batch.starts[e]), int(batch.starts[e + 1]))
        columns = {name: np.array(rows[name].to_pylist()) for name in rows.column_names}
        expected = {
            "action": batch.action.episode_rows(e).astype(np.float32),
            "next.margin": part.margin[1:].astype(np.float32),
            "next.cost": part.cost[1:].astype(np.float32),
            "frame_index": np.arange(len(rows)),
            "next.done": np.arange(len(rows)) == len(rows) - 1,
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(columns[name].astype(values.dtype), values, err_msg=name)
        place = batch.eef_pos_m.episode_rows(e)[:-1].astype(np.float32)
        np.testing.assert_array_equal(columns["observation.state"][:, :3], place)
        assert columns["next.reward"].sum() == float(batch.headers[e].success)
    assert table["index"].to_pylist() == list(range(summary.frames))


def test_croissant_names_every_column_of_the_frames_with_its_type_and_what_it_holds(pictured):
    folder, _ = pictured
    document = json.loads((folder / "croissant.json").read_text())
    assert document["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    (frames,) = ({field["name"]: field for field in part["field"]} for part in document["recordSet"])
    assert list(frames) == frames_of(folder).column_names
    counted = {"timestamp", "frame_index", "episode_index", "index", "task_index", "next.done"}
    assert {name for name, field in frames.items() if "description" not in field} == counted
    kinds = {name: (field["dataType"], field.get("repeated", False)) for name, field in frames.items()}
    assert kinds["next.margin"] == ("sc:Float", True)
    assert kinds["next.safe"] == ("sc:Integer", False)
    assert kinds["next.done"] == ("sc:Boolean", False)
    picture = frames["observation.images.agentview"]
    assert (picture["dataType"], picture["source"]["transform"]) == ("sc:ImageObject", {"jsonPath": "bytes"})
    assert picture["source"]["fileSet"] == {"@id": document["distribution"][0]["@id"]}
    assert list(folder.glob(document["distribution"][0]["includes"]))


def test_a_dataset_is_ready_for_a_hub_with_a_card_and_what_croissant_recommends(dataset, tmp_path):
    judged, folder, _ = dataset
    _, front, text = (folder / "README.md").read_text().split("---\n")
    card = json.loads(front)  # YAML takes JSON
    assert (card["license"], card["tags"][0]) == ("unknown", "LeRobot")
    (config,) = card["configs"]
    assert list(folder.glob(config["data_files"])) == [folder / "data/chunk-000/file-000.parquet"]
    assert "next.safe" in text
    export_dataset(
        judged, tmp_path / "set", facts={"license": "mit", "version": "2.0", "citation": "Us", "notes": None}
    )
    document = json.loads((tmp_path / "set/croissant.json").read_text())
    assert [document[name] for name in ("license", "version", "citeAs")] == ["mit", "2.0", "Us"]
    assert "datePublished" not in document, "an archive has no date"
    assert frames_of(folder).schema.field("next.safe").type == "int64"


def test_films_stand_in_for_pictures_and_have_a_frame_for_each(fake_run, pictured, tmp_path):
    av = pytest.importorskip("av", reason="films come with the extra video")
    export_dataset(judge([fake_run], RULES), tmp_path / "set", replace(CAMERAS, video=True))
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    feature = info["features"]["observation.images.agentview"]
    assert (feature["dtype"], feature["shape"], feature["info"]["video.fps"]) == ("video", [24, 32, 3], info["fps"])
    assert "observation.images.agentview" not in frames_of(tmp_path / "set").column_names
    table = frames_of(pictured[0])
    for row in episode_rows_of(tmp_path / "set"):
        place = {key: row[f"videos/observation.images.agentview/{key}"] for key in ("chunk_index", "file_index")}
        path = info["video_path"].format(video_key="observation.images.agentview", **place)
        with av.open(str(tmp_path / "set" / path)) as film:
            pictures = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        assert len(pictures) == row["length"]
        assert row["videos/observation.images.agentview/to_timestamp"] == pytest.approx(row["length"] / info["fps"])
        stored = table["observation.images.agentview"][row["dataset_from_index"]].as_py()["bytes"]
        assert np.abs(pictures[0].astype(int) - np.asarray(Image.open(io.BytesIO(stored)))).mean() < 12
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    assert np.array(stats["observation.images.agentview"]["mean"]).shape == (3, 1, 1)


def test_rows_of_episodes_hold_the_verdicts_and_where_their_frames_are(dataset):
    judged, folder, _ = dataset
    table = frames_of(folder)
    for row, verdict in zip(episode_rows_of(folder), judged.scores, strict=True):
        for name in ("episode_id", "safe", "success", "vsi"):
            assert row[f"safety/{name}"] == getattr(verdict, name)
        assert {name: row[f"safety/robustness/{name}"] for name in verdict.robustness} == verdict.robustness
        assert tuple(row["safety/violated_specs"]) == verdict.violated_specs
        own = table.slice(row["dataset_from_index"], row["length"])
        assert set(own["episode_index"].to_pylist()) == {row["episode_index"]}
        assert row["dataset_to_index"] == row["dataset_from_index"] + row["length"]
    metadata = pq.ParquetFile(folder / "data/chunk-000/file-000.parquet").metadata
    groups = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    assert groups == (judged.batch.lengths - 1).tolist(), "a row group an episode"


def test_an_episode_without_a_verdict_has_null_labels(source, tmp_path):
    (tmp_path / "never.toml").write_text(
        "[[specs]]\nspec_id = 'never'\ncanonical_family = 'x'\naxis = 'scene_interaction'\ntier = 'safe'\n"
        "stl = 'G[0,T](max_contact_force < threshold)'\nthreshold = 1\nsevere = 2\nunit = 'N'\n"
        "requires_all = ['spillable']\nsource = 'a test'\nrationale = 'Applies nowhere.'\n"
    )
    judged = judge([source], load_ruleset(tmp_path / "never.toml"))
    assert judged.scores.verdict(0) is None
    export_dataset(judged, tmp_path / "set")
    row, table = episode_rows_of(tmp_path / "set")[0], frames_of(tmp_path / "set")
    assert row["safety/safe"] is row["safety/violating_records"] is None
    assert np.isnan(table["next.cost"].to_numpy()).all()
    assert set(table["next.safe"].to_pylist()) == {-1}


def test_what_our_own_reader_of_lerobot_datasets_reads_is_what_was_written(dataset):
    judged, folder, _ = dataset
    takes = read_demonstrations(folder)
    assert [take.instruction for take in takes] == [header.instruction for header in judged.headers]
    for e, take in enumerate(takes):
        np.testing.assert_array_equal(take.actions, judged.batch.action.episode_rows(e).astype(np.float32))


def test_the_same_records_give_the_same_bytes(dataset, tmp_path):
    judged, folder, _ = dataset
    export_dataset(judged, tmp_path / "set")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert files
    assert all((folder / file).read_bytes() == (tmp_path / "set" / file).read_bytes() for file in files)


def test_statistics_of_parts_join_to_those_of_the_whole():
    values = np.random.default_rng(0).normal(size=(50, 3))
    feature = FrameFeature("float64", (3,))
    joined = join_statistics(
        FrameColumn(feature, values[:20]).summarize(), FrameColumn(feature, values[20:]).summarize()
    )
    for name, expected in {"mean": values.mean(0), "std": values.std(0), "min": values.min(0)}.items():
        np.testing.assert_allclose(joined[name], expected)
    assert joined["count"].tolist() == [50]
    parts = [np.quantile(part, 0.99, axis=0) for part in (values[:20], values[20:])]
    np.testing.assert_array_equal(joined["q99"], np.maximum(*parts))


def test_frames_of_pairs_hold_the_policy_s_own_action_and_the_step_of_its_chunk(source, tmp_path):
    batch = judge([source], RULES).batch
    parts = [select_episodes(batch, [k]) for k in range(2)]
    count = len(parts[0].action.episode_rows(0))
    own = np.random.default_rng(1).uniform(-1, 1, (count, 7))
    origin = np.array([[k // 3, k % 3] for k in range(count)], dtype=np.float64)
    coupled = add_rows(add_rows(parts[0], "policy_action", own), "chunk_step", origin)
    write_archive(tmp_path / "both.parquet", concatenate_batches([coupled, parts[1]]))
    export_dataset(judge([tmp_path / "both.parquet"], RULES), tmp_path / "set", pairs=b"{}\n")
    frames = frames_of(tmp_path / "set")
    columns = {name: np.array(frames[name].to_pylist()) for name in ("action", "policy_action", "chunk_step")}
    np.testing.assert_array_equal(columns["policy_action"][:count], own.astype(np.float32))
    np.testing.assert_array_equal(columns["policy_action"][count:], columns["action"][count:])
    np.testing.assert_array_equal(columns["chunk_step"][:count], origin)
    assert (columns["chunk_step"][count:] == -1).all()
    assert (tmp_path / "set/meta/pairs.jsonl").read_bytes() == b"{}\n"


def test_weights_and_costs_to_go_of_frames_are_by_the_stated_temperature_and_discount(source, tmp_path):
    judged = judge([source], RULES)
    export_dataset(judged, tmp_path / "set", weighting=FrameWeighting(temperature=0.5, discount=0.9))
    frames, first = frames_of(tmp_path / "set"), 0
    labels = label_records(judged.batch, judged.scores, RULES)
    for e in range(2):
        part = labels.select_records(int(judged.batch.starts[e]), int(judged.batch.starts[e + 1]))
        rows = frames.slice(first, len(part.worst) - 1)
        first += len(rows)
        weights = np.exp(part.worst[1:] / 0.5).astype(np.float32)
        np.testing.assert_array_equal(np.array(rows["next.weight"].to_pylist(), dtype=np.float32), weights)
        costs = part.costs_to_go(0.9)[1:].astype(np.float32)
        np.testing.assert_array_equal(np.array(rows["next.cost_to_go"].to_pylist(), dtype=np.float32), costs)
    assert json.loads((tmp_path / "set/meta/safevla.json").read_text())["weighting"] == {
        "temperature": 0.5,
        "discount": 0.9,
    }


def test_pictures_and_proprioception_are_those_of_the_record_before_the_action(fake_run, pictured):
    folder, summary = pictured
    assert summary.episodes == 2
    table, info = frames_of(folder), json.loads((folder / "meta/info.json").read_text())
    assert info["features"]["observation.images.agentview"]["shape"] == [24, 32, 3]
    stage = open_stage(fake_run, make_host("fake"), select_episodes(judge([fake_run], RULES).batch, [0]))
    for k in (0, 5):
        picture = Image.open(io.BytesIO(table["observation.images.agentview"][k].as_py()["bytes"]))
        np.testing.assert_array_equal(np.asarray(picture), stage.render(k, Camera("agentview"), (24, 32)).image)
        np.testing.assert_array_equal(table["observation.state"][k].as_py(), read_state(stage, k).astype(np.float32))
    stats = json.loads((folder / "meta/stats.json").read_text())["observation.images.agentview"]
    assert np.array(stats["mean"]).shape == (3, 1, 1)
    assert np.array(stats["max"]).max() <= 1


def test_datasets_takes_pictures_for_pictures(pictured, tmp_path):
    import datasets

    folder, _ = pictured
    frames = datasets.load_dataset(str(folder), cache_dir=str(tmp_path))["train"]
    assert frames.features["observation.images.agentview"] == datasets.Image()
    (first, *_) = frames_of(folder)["observation.images.agentview"].to_pylist()
    expected = np.asarray(Image.open(io.BytesIO(first["bytes"])))
    np.testing.assert_array_equal(np.asarray(frames[0]["observation.images.agentview"]), expected)


def test_where_the_host_cannot_say_what_it_observed_the_recorded_hand_stands_in(fake_run, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeStage, "observe", lambda self, record: None)
    export_dataset(judge([fake_run], RULES), tmp_path / "set", CAMERAS)
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["features"]["observation.state"]["shape"] == [6]
    assert "grip site" in (tmp_path / "set/meta/safevla.json").read_text()


def test_an_episode_whose_state_the_host_observes_only_at_times_is_left_out(fake_run, tmp_path, monkeypatch):
    observe = FakeStage.observe
    monkeypatch.setattr(FakeStage, "observe", lambda self, record: observe(self, record) if record else None)
    with pytest.raises(HostError, match="observes the state in only"):
        export_dataset(judge([fake_run], RULES), tmp_path / "set", CAMERAS)


@pytest.fixture
def darken(monkeypatch):
    """Makes the first so many episodes impossible to render."""

    def darken_first(count):
        episodes = []

        def open_in_the_dark(folder, host, record):
            episodes.append(record)
            if len(episodes) <= count:
                raise HostError("no light", remedy="Make some.")
            return open_stage(folder, host, record)

        monkeypatch.setattr("safevla_bench.training.export.open_stage", open_in_the_dark)

    return darken_first


def test_an_episode_that_cannot_be_rendered_is_left_out_with_its_reason(fake_run, tmp_path, darken):
    darken(1)
    skipped = []
    summary = export_dataset(judge([fake_run], RULES), tmp_path / "set", CAMERAS, on_skip=skipped.append)
    assert (summary.episodes, len(skipped)) == (1, 1)
    assert "no light" in str(skipped[0])
    assert "no light" in (tmp_path / "set/meta/safevla.json").read_text()
    darken(9)
    with pytest.raises(HostError, match="no light"):
        export_dataset(judge([fake_run], RULES), tmp_path / "none", CAMERAS)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_camera_that_does_not_exist_ends_the_export_at_once(fake_run, tmp_path):
    skipped, cameras = [], CameraChoice(("agentview", "above"))
    with pytest.raises(SafevlaError, match="camera 'above'"):
        export_dataset(judge([fake_run], RULES), tmp_path / "set", cameras, on_skip=skipped.append)
    assert not skipped
    assert not list(tmp_path.iterdir())


def test_pictures_need_a_run_folder_of_a_host(dataset, tmp_path):
    with pytest.raises(RunError, match="names no host"):
        export_dataset(dataset[0], tmp_path / "set", CAMERAS)


def judge_beside(source, folder, width):
    """Judge the source and beside it a third episode with actions of this width, 0 = without any."""
    batch = select_episodes(rough_episodes()[0], [0])
    other = replace(batch, headers=(msgspec.structs.replace(batch.headers[0], episode_id="other"),))
    other = replace(other, action=random_actions(batch.lengths - 1, width)) if width else other
    write_archive(folder / "other.parquet", other)
    return judge([source, folder / "other.parquet"], RULES)


def test_an_episode_without_actions_is_left_out(source, tmp_path):
    skipped = []
    summary = export_dataset(judge_beside(source, tmp_path, 0), tmp_path / "set", on_skip=skipped.append)
    assert summary.episodes == 2
    assert "holds no actions" in str(skipped[0])


def test_an_episode_with_a_gap_in_time_is_left_out(source, tmp_path):
    batch = rough_episodes()[0]
    stamps = [np.arange(length) * batch.headers[0].dt for length in batch.lengths]
    stamps[1][5:] += 1.0
    rows = Channel(np.concatenate(stamps), batch.starts.astype(np.int64), np.ones(len(batch), dtype=np.int64))
    batch = replace(batch, action=random_actions(batch.lengths - 1, 7), further={"time_s": rows})
    write_archive(tmp_path / "gapped.parquet", batch)
    skipped = []
    summary = export_dataset(judge([tmp_path / "gapped.parquet"], RULES), tmp_path / "set", on_skip=skipped.append)
    assert summary.episodes == 1
    assert "unevenly spaced" in str(skipped[0])


def test_robots_that_differ_are_not_put_into_one_dataset(source, tmp_path):
    with pytest.raises(RunError, match="features differ from those of earlier episodes"):
        export_dataset(judge_beside(source, tmp_path, 6), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_folder_in_use_is_left_alone_and_one_that_cannot_be_made_is_named(dataset, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RunError, match="folder already exists"):
        export_dataset(dataset[0], tmp_path)
    with pytest.raises(FileError, match="mine/set") as caught:
        export_dataset(dataset[0], tmp_path / "mine" / "set")
    assert ".part" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
