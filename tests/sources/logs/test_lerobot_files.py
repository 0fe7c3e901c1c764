"""The files of a LeRobot dataset one by one: frames by episode, features as numbers, instructions and names."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from safevla_bench.errors import DamageError, RecordError
from safevla_bench.sources.logs import lerobot, mappings
from safevla_bench.sources.logs.lerobot import Dataset, Feature, feature_matrix, read_frames, read_instructions


def write_frames(folder: Path, *files: list[tuple[int, int]], **more: pa.Array) -> Path:
    """Files of frames, each (episode, frame)."""
    (folder / "data" / "chunk-000").mkdir(parents=True, exist_ok=True)
    (folder / "meta").mkdir(exist_ok=True)
    (folder / "meta" / "info.json").write_text("{}")
    for number, rows in enumerate(files):
        episodes, frames = (pa.array(column, pa.int64()) for column in (zip(*rows, strict=True) if rows else ((), ())))
        columns = {"episode_index": episodes, "frame_index": frames, "task_index": episodes, "x": frames} | more
        pq.write_table(pa.table(columns), folder / "data" / "chunk-000" / f"file-{number:03d}.parquet")
    return folder


def frames_of(folder: Path) -> list[tuple[str, list[int]]]:
    return [(lerobot.episode_name(table), table["x"].to_pylist()) for table in read_frames(folder, ["x"])]


def test_the_frames_of_each_episode_are_gathered_from_all_files_and_sorted(tmp_path):
    folder = write_frames(tmp_path, [(0, 0), (0, 1), (1, 0), (2, 1)], [(2, 0)], [], [(2, 2), (7, 0)])
    assert frames_of(folder) == [
        ("episode_000000", [0, 1]), ("episode_000001", [0]), ("episode_000002", [0, 1, 2]), ("episode_000007", [0]),
    ]  # fmt: skip
    with pytest.raises(RecordError, match="no episodes") as caught:
        frames_of(tmp_path / "data")
    assert caught.value.place.file == str(tmp_path / "data")


@pytest.mark.parametrize("files", [([(1, 0), (0, 0)],), ([(0, 0), (1, 0)], [(0, 1)])])
def test_an_episode_whose_frames_come_after_those_of_a_later_one_is_an_error(tmp_path, files):
    with pytest.raises(DamageError, match="not consecutive"):
        frames_of(write_frames(tmp_path, *files))


@pytest.mark.parametrize(
    ("module", "name", "most", "is_read"),
    [
        (lerobot, "MAX_RECORDS", 2, True),
        (lerobot, "MAX_RECORDS", 1, False),
        (mappings, "MAX_NUMBERS", 13, True),  # a frame has four numbers, and up to a byte for each
        (mappings, "MAX_NUMBERS", 7, False),
    ],
)
def test_an_episode_that_is_too_long_is_an_error_and_each_is_counted_alone(
    tmp_path, monkeypatch, module, name, most, is_read
):
    monkeypatch.setattr(module, name, most)
    folder = write_frames(tmp_path, [(0, 0)], [(0, 1), (1, 0), (1, 1)])
    if is_read:
        assert [len(rows) for _, rows in frames_of(folder)] == [2, 2]
    else:
        with pytest.raises(DamageError, match="too many frames"):
            frames_of(folder)


@pytest.mark.parametrize("values", [pa.array([0, None]), pa.array([0.0, 1.0]), pa.array(["0", "1"])])
@pytest.mark.parametrize("name", ["episode_index", "frame_index", "task_index"])
def test_key_columns_hold_integers_without_gaps(tmp_path, name, values):
    with pytest.raises(DamageError, match=name):
        frames_of(write_frames(tmp_path, [(0, 0), (0, 1)], **{name: values}))


@pytest.mark.parametrize(
    ("kept", "totals", "whole", "named", "lost"),
    [
        ([0, 1, 2], {"total_frames": 10, "total_episodes": 4}, "0123", "", []),
        ([0, 1, 2], {"total_frames": 9, "total_episodes": 3}, "0123", "", []),
        ([0, 1], {"total_frames": 10, "total_episodes": 4}, "01", "2", [1]),
        ([1, 2], {"total_frames": 10, "total_episodes": 4}, "23", "1", [1]),
        ([0, 2], {"total_frames": 10, "total_episodes": 4}, "03", "12", [0]),
        ([0, 2], {"total_frames": 10}, "03", "12", [None]),
        ([0, 1], {"total_episodes": 4}, "012", "", [1]),
        ([0, 2], {}, "013", "2", []),
    ],
)
def test_an_episode_that_may_lack_frames_is_lost_and_so_are_those_that_only_the_description_counts(
    tmp_path, kept, totals, whole, named, lost
):
    rows = [(e, t) for e, count in enumerate((2, 3, 3, 2)) for t in range(count)]
    for number, part in enumerate((rows[:3], rows[3:7], rows[7:])):
        if number in kept:
            write_frames(tmp_path / "part", part, index=pa.array([rows.index(row) for row in part]))
            file = tmp_path / "data" / "chunk-000" / f"file-{number:03d}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "part" / "data" / "chunk-000" / "file-000.parquet").rename(file)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(json.dumps(totals))
    outcomes = list(read_frames(tmp_path, ["x"]))
    damages = [outcome for outcome in outcomes if isinstance(outcome, DamageError)]
    tables = [outcome for outcome in outcomes if not isinstance(outcome, DamageError)]
    assert [lerobot.episode_name(table)[-1] for table in tables] == [*whole]
    assert [damage.place.episode[-1] for damage in damages if damage.place.episode] == [*named]
    assert [damage.episodes for damage in damages if not damage.place.episode] == lost


def test_a_whole_dataset_may_leave_frames_out_and_one_of_unknown_size_needs_no_column_index(tmp_path):
    folder = write_frames(tmp_path, [(0, 5), (0, 7), (1, 1), (1, 2)])
    for totals, expected in [
        ({"total_frames": 4}, [[5, 7], [1, 2]]),
        ({"total_frames": 5}, []),
        ({"total_frames": 3}, []),
        ({}, []),
    ]:
        (folder / "meta" / "info.json").write_text(json.dumps(totals))
        tables = [table for table in read_frames(folder, ["x"]) if not isinstance(table, DamageError)]
        assert [table["x"].to_pylist() for table in tables] == expected


# Features as numbers


def matrix(values: pa.Array, size: int = 1) -> list[list[float]]:
    return feature_matrix(pa.table({"f": values}), "f", size).tolist()


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        (pa.array([1, 2]), [[1.0], [2.0]]),
        (pa.array([True, False]), [[1.0], [0.0]]),
        (pa.array([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, 4.0]]),
        (pa.array([[1.0, 2.0]], pa.large_list(pa.float32())), [[1.0, 2.0]]),
        (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), [[1.0, 2.0]]),
        (pa.array([[[1, 2, 3], [4, 5, 6]]]), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]),
    ],
)
def test_a_feature_is_a_row_of_numbers_for_each_frame(values, rows):
    assert matrix(values) == rows


def test_frames_without_numbers_are_unknown_and_their_count_is_that_of_others_or_the_size():
    np.testing.assert_equal(matrix(pa.array([None, [1.0, 2.0]])), [[math.nan, math.nan], [1.0, 2.0]])
    np.testing.assert_equal(matrix(pa.array([None, None], pa.list_(pa.float64())), 3), [[math.nan] * 3] * 2)
    np.testing.assert_equal(matrix(pa.array([None, 5.0])), [[math.nan], [5.0]])


def test_text_different_counts_and_too_many_numbers_are_errors(monkeypatch):
    for values, word in (pa.array(["a"]), "not numbers"), (pa.array([[1.0], [1.0, 2.0]]), "1, 2"):
        with pytest.raises(ValueError, match=word):
            matrix(values)
    monkeypatch.setattr(mappings, "MAX_NUMBERS", 6)
    assert len(matrix(pa.array([[1.0, 2.0]] * 3))) == 3
    with pytest.raises(ValueError, match="more than 6"):
        matrix(pa.array([[1.0, 2.0]] * 4))


# Instructions


def test_instructions_are_read_from_either_file_in_the_order_of_their_indices(tmp_path):
    (tmp_path / "meta").mkdir()
    lines = [{"task_index": 3, "task": "lift"}, {"task_index": 1, "task": "push"}]
    text = "\n\n".join(map(json.dumps, lines)) + "\n"
    (tmp_path / "meta" / "tasks.jsonl").write_text(text)
    assert list(read_instructions(tmp_path).items()) == [(1, "push"), (3, "lift")]
    table = pa.table({"task_index": [0], "__index_level_0__": ["pour"]})
    pq.write_table(table, tmp_path / "meta" / "tasks.parquet")
    assert read_instructions(tmp_path) == {0: "pour"}


@pytest.mark.parametrize("line", ['{"task_index": 0}', '{"task": "a"}', '{"task_index": "0", "task": "a"}', "[1]"])
def test_a_row_of_instructions_without_an_index_or_a_text_is_an_error_with_its_number(tmp_path, line):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "tasks.jsonl").write_text(f'{{"task_index": 9, "task": "a"}}\n{line}\n')
    with pytest.raises(RecordError, match="row 2 ") as caught:
        read_instructions(tmp_path)
    assert caught.value.place.file.endswith("tasks.jsonl")


# Descriptions


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ([2], ["a", "b"], ["a", "b"]),
        ([2], ["a"], []),
        ([], ["a"], ["a"]),
        ([2], {"b": 1, "a": 0}, ["a", "b"]),
        ([2], {"motors": ["a", "b"]}, ["a", "b"]),
        ([3], {"p": ["a", "b"], "q": ["c"]}, ["p.a", "p.b", "q.c"]),
        ([2], {"b": 1, "a": "0"}, []),
        ([2, 2], [["a", "b"], ["x", "y"]], ["a.x", "a.y", "b.x", "b.y"]),
        ([4], [["a", "b", "c", "d"]], ["a", "b", "c", "d"]),
        ([4], [["a", "b", "c"], ["d"]], ["a", "b", "c", "d"]),
        ([3], [["a", "b", "c"], ["d"]], ["a.d", "b.d", "c.d"]),
        ([1], [["a"]], ["a"]),
        ([2], "ab", []),
        ([2], [], []),
        ([2], {}, []),
        ([2], [1, 2], ["1", "2"]),
    ],
)
def test_names_of_numbers_are_read_in_each_of_their_forms_or_there_are_none(shape, names, expected):
    feature = Feature(shape=shape, names=names)
    assert (feature.number_names, feature.size) == (expected, math.prod(shape))


def dataset(**features: Feature) -> Dataset:
    return Dataset("v3.0", 20.0, features, robot_type=3)


def test_sources_of_a_dataset_are_its_features_of_numbers():
    described = dataset(
        eef=Feature("float32", [3], ["x", "y", "z"]), timestamp=Feature("float32"), index=Feature("int64"),
        episode_index=Feature("int64"), cam=Feature("video"), photo=Feature("image"), text=Feature("string"),
        **{"next.success": Feature("bool"), "next.reward": Feature("float32", [1])},
    )  # fmt: skip
    assert [(found.name, found.names, found.size) for found in described.list_sources()] == [
        ("eef", ["x", "y", "z"], 3), ("next.reward", [], 1),
    ]  # fmt: skip
    assert described.robot is None
    with pytest.raises(RecordError) as caught:
        described.require_feature("hand", "eef")
    assert (caught.value.place.field, "eef; next.reward" in caught.value.remedy) == ("eef", True)


def read(folder: Path, text: str, columns: dict[str, Any], **described: Any) -> list[Any]:
    count = len(next(iter(columns.values())))
    values = {name: pa.array(rows) for name, rows in columns.items()}
    values = {"timestamp": pa.array([k / 20 for k in range(count)]), **values}
    write_frames(folder, [(0, k) for k in range(count)], **values)
    features = {name: {"dtype": "float64", "shape": list(np.shape(rows)[1:]) or [1]} for name, rows in columns.items()}
    for name, more in described.items():
        features[name] |= more
    (folder / "meta").mkdir(exist_ok=True)
    info = {"codebase_version": "v3.0", "fps": 20, "features": features}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    (folder / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "go"}')
    (folder / "safevla-log.toml").write_text(text)
    mapping = mappings.read_mapping(folder / "safevla-log.toml")
    return list(lerobot.read_episodes(lerobot.open_dataset(folder), mapping))


ACTION = '[episode]\nsuccess = true\n[action]\nfrom = "a"\n'
TWO = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    ("more", "rows", "names"),
    [
        ("", TWO, ("u", "v")),
        ("index = [1]\nscale = 2.0", [[4.0], [8.0], [12.0]], ("v",)),
        ('names = ["v"]', [[2.0], [4.0], [6.0]], ()),
    ],
)
def test_numbers_are_chosen_by_index_or_name_scaled_and_keep_their_names(tmp_path, more, rows, names):
    (episode,) = read(tmp_path, ACTION + more, {"a": TWO}, a={"names": ["u", "v"]})
    assert (episode.series["action"].values.tolist(), episode.series["action"].names) == (rows, names)
    assert (episode.time_s.tolist(), episode.dt_s, episode.instruction) == ([0.0, 0.05, 0.1], 0.05, "go")
    assert (episode.success, episode.embodiment, episode.series["action"].is_single) == (None, None, False)


@pytest.mark.parametrize(
    ("more", "described", "word"),
    [
        ("index = [2]", {}, "has 2 numbers"),
        ("index = []", {}, "no number"),
        ('names = ["u"]', {"names": ["u", "u"]}, "several numbers called 'u'"),
        ("", {"shape": [3]}, "has 2 numbers, but .* 3"),
        ("", {"shape": [65537]}, "65537 numbers per frame"),
        ("", {"dtype": "image"}, "holds image"),
    ],
)
def test_numbers_that_a_feature_does_not_have_are_an_error(tmp_path, more, described, word):
    with pytest.raises(RecordError, match=word):  # noqa: PT012
        for outcome in read(tmp_path, ACTION + more, {"a": TWO}, a=described):
            raise outcome


def test_the_last_action_may_be_unknown_and_no_other_number(tmp_path):
    text = ACTION + '[gripper]\nfrom = "g"\n'
    nan = math.nan
    (episode,) = read(tmp_path, text, {"a": [[nan], [1.0], [nan]], "g": [[1.0], [0.0], [nan]]})
    assert episode.series["action"].known.tolist() == [False, True, True]
    assert episode.series["gripper"].known.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("stamps", "times", "dt_s", "base"),
    [
        ([0.0, 0.05, 0.1004], [0.0, 0.05, 0.1], 0.05, "frame_index / fps"),
        ([0.0, 0.05, 0.1006], [0.0, 0.05, 0.1006], 0.05, "timestamp"),
        ([0.0, 0.054, 0.108], [0.0, 0.054, 0.108], 0.05, "timestamp"),
        ([0.0, 0.056, 0.112], [0.0, 0.056, 0.112], 0.056, "timestamp"),
        ([0.0, 0.044, 0.088], [0.0, 0.044, 0.088], 0.044, "timestamp"),
        ([0.0, 5.0, 10.0], [0.0, 5.0, 10.0], 5.0, "timestamp"),
        ([0.0, 0.1], [0.0, 0.1], 0.1, "timestamp"),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 0.05, "timestamp"),
        ([0.0, 0.052, 0.1], [0.0, 0.052, 0.1], 0.05, "timestamp"),
        ([7.0, 7.05, 7.1], [0.0, 0.05, 0.1], 0.05, "frame_index / fps"),
        ([1e5, 1e5 + 0.046875, 1e5 + 0.1015625], [0.0, 0.05, 0.1], 0.05, "frame_index / fps"),  # rounded to float32
        ([1e5, 1e5 + 0.046, 1e5 + 0.101], [1e5, 1e5 + 0.046, 1e5 + 0.101], 0.05, "timestamp"),
    ],
)
def test_stamps_are_the_times_where_they_differ_from_the_frames_by_a_hundredth(tmp_path, stamps, times, dt_s, base):
    (episode,) = read(tmp_path, ACTION, {"a": TWO[: len(stamps)], "timestamp": stamps})
    assert episode.time_s.tolist() == pytest.approx(times)
    assert episode.dt_s == pytest.approx(dt_s)
    assert episode.series["action"].time_base == base


def test_stamps_that_are_a_hundred_frames_apart_are_no_seconds(tmp_path):
    (error,) = read(tmp_path, ACTION, {"a": TWO, "timestamp": [0.0, 5.1, 10.2]})
    assert "not in seconds" in str(error)


@pytest.mark.parametrize("stamp", [math.nan, math.inf])
def test_stamps_must_be_finite(tmp_path, stamp):
    (error,) = read(tmp_path, ACTION, {"a": TWO, "timestamp": [0.0, stamp, 0.1]})
    assert "'timestamp' has a value that is not a finite" in str(error)


def test_stamps_that_count_frames_are_no_seconds(tmp_path):
    (error,) = read(tmp_path, ACTION, {"a": TWO, "timestamp": [0.0, 1.0, 2.0]})
    assert "not in seconds" in str(error)


def test_a_single_frame_has_the_step_of_the_frames(tmp_path):
    (episode,) = read(tmp_path, ACTION, {"a": TWO[:1], "timestamp": [7.0]})
    assert (episode.time_s.tolist(), episode.dt_s) == ([0.0], 0.05)


_POSE = [[500.0, 0.0, 200.0, 90.0, 0.0, 0.0]] * 3
_ANGLES = {"names": ["x", "y", "z", "roll", "pitch", "yaw"]}


@pytest.mark.parametrize(
    "described",
    [
        _ANGLES | {"units": ["mm"] * 3 + ["deg"] * 3},
        _ANGLES | {"unit": ["millimeters"] * 3 + ["degrees"] * 3},
        _ANGLES | {"units": {"x": "mm", "y": "mm", "z": "mm", "roll": "deg", "pitch": "deg", "yaw": "deg"}},
        {"names": ["x_mm", "y_mm", "z_mm", "roll", "pitch", "yaw"], "units": ["mm"] * 3 + ["deg"] * 3},
    ],
)
def test_units_of_a_feature_apply_to_its_pose(tmp_path, described):
    (episode,) = read(tmp_path, '[eef]\nfrom = "p"\nrotation_form = "rpy"\n', {"p": _POSE}, p=described)
    turned = np.sqrt(0.5)
    assert episode.series["eef"].values[0] == pytest.approx([0.5, 0.0, 0.2, turned, turned, 0.0, 0.0])


@pytest.mark.parametrize("units", [["mm", "deg"], "n/a", [None, "N/A", "", "-", "none", "unitless"]])
def test_a_mapping_states_units_that_a_feature_lacks_or_whose_list_does_not_fit(tmp_path, units):
    text = '[eef]\nfrom = "p"\nrotation_form = "rpy"\nunit = "mm"\nangle_unit = "deg"\n'
    (episode,) = read(tmp_path, text, {"p": _POSE}, p=_ANGLES | {"units": units})
    assert episode.series["eef"].values[0][:3] == pytest.approx([0.5, 0.0, 0.2])
    text = '[torque]\nfrom = "a"\nscale = 0.001\n'
    (episode,) = read(tmp_path, text, {"a": TWO}, a={"units": ["mNm"] * 3})
    assert episode.series["torque"].values[0].tolist() == [0.001, 0.002]


@pytest.mark.parametrize(
    ("described", "text", "word"),
    [
        (_ANGLES | {"units": ["mm", "deg"]}, "", "do not fit the numbers.*6 units"),
        (_ANGLES | {"units": {"position": "mm", "rotation": "deg"}}, "", "do not fit the numbers"),
        (_ANGLES | {"units": ["mm", "mm", "cm"] + ["deg"] * 3}, "", "several units"),
        (_ANGLES | {"units": ["ft"] * 3 + ["deg"] * 3}, "", "'ft'"),
        ({"names": ["x_cm", "y_cm", "z_cm", "roll", "pitch", "yaw"], "units": ["mm"] * 3 + ["deg"] * 3}, "", "several"),
        (_ANGLES | {"units": ["mm"] * 3 + ["deg"] * 3}, 'unit = "m"\n', "is 'm', but .* 'mm'"),
    ],
)
def test_units_of_a_feature_that_are_unclear_are_refused(tmp_path, described, text, word):
    with pytest.raises(RecordError) as caught:
        list(read(tmp_path, f'[eef]\nfrom = "p"\nrotation_form = "rpy"\n{text}', {"p": _POSE}, p=described))
    assert re.search(word, f"{caught.value} {caught.value.remedy}", re.DOTALL)


@pytest.mark.parametrize(("unit", "names"), [("mNm", None), ("rad", ["j1", "j2"]), (["A", "A"], ["j1", "j2"])])
def test_torques_whose_feature_has_another_unit_need_a_scale(tmp_path, unit, names):
    text = '[torque]\nfrom = "a"\n'
    with pytest.raises(RecordError, match="the names say"):
        list(read(tmp_path, text, {"a": TWO}, a={"units": unit, "names": names}))
    (episode,) = read(tmp_path, text + "scale = 0.001\n", {"a": TWO}, a={"units": unit, "names": names})
    assert episode.series["torque"].values[0].tolist() == [0.001, 0.002]


@pytest.mark.parametrize(("most", "is_read"), [(60, True), (59, False)])
def test_more_numbers_than_an_episode_may_have_are_an_error(tmp_path, monkeypatch, most, is_read):
    monkeypatch.setattr(mappings, "MAX_NUMBERS", most)
    (outcome,) = read(tmp_path, ACTION + '[torque]\nfrom = "a"\n', {"a": [[0.0] * 10] * 3})
    assert isinstance(outcome, RecordError) != is_read
    assert is_read or "more than 59 numbers" in str(outcome)


def test_a_rate_may_be_a_text_and_a_description_of_another_kind_is_an_error_with_the_field(tmp_path):
    (tmp_path / "meta").mkdir()
    info = {"codebase_version": "v3.0", "fps": "20", "features": {}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    assert (lerobot.open_dataset(tmp_path).fps, lerobot.open_dataset(tmp_path).folder) == (20.0, tmp_path)
    for change, field in ({"fps": "fast"}, "fps"), ({"fps": 0}, "fps"), ({"features": 3}, "features"):
        (tmp_path / "meta" / "info.json").write_text(json.dumps(info | change))
        with pytest.raises(RecordError) as caught:
            lerobot.open_dataset(tmp_path)
        assert caught.value.place.field == field


@pytest.mark.parametrize(
    ("values", "success", "warns"),
    [
        ([0.0, 0.0, 1.0], True, False),
        ([0.0, 1.0, 1.0], True, False),
        ([1.0, 0.0, 0.0], False, True),
        ([0.0, 0.0, 0.0], False, False),
        ([1.0, 0.0, math.nan], None, True),
        ([math.nan, 0.0, 1.0], True, False),
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]], True, False),
        ([[0.0, 0.0], [0.0, 0.0], [math.nan, 1.0]], None, False),
    ],
)
def test_success_is_that_of_the_last_frame_and_an_earlier_one_is_a_warning(tmp_path, caplog, values, success, warns):
    text = f'[episode]\nsuccess = "{tmp_path.name}"\n[action]\nfrom = "a"\n'
    (episode,) = read(tmp_path, text, {"a": TWO, tmp_path.name: values})
    assert episode.success is success
    assert ("true in frame 0" in caplog.text) == warns


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5])
def test_success_other_than_0_and_1_is_an_error_unless_the_mapping_gives_the_outcome(tmp_path, value):
    columns = {"a": TWO, "next.success": [0.0, value, 1.0]}
    (error,) = read(tmp_path, '[action]\nfrom = "a"\n', columns)
    assert error.place.field == "next.success"
    text = '[episode]\noutcomes = {episode_000000 = "failure"}\n[action]\nfrom = "a"\n'
    assert read(tmp_path, text, columns)[0].success is None
    with pytest.raises(RecordError, match="no feature 'x'"):
        read(tmp_path, '[episode]\nsuccess = "x"\n[action]\nfrom = "a"\n', columns)
