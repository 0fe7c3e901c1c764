"""Recordings as real tools write them: one recording is one episode, however it is stored, split or compressed."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import zstandard

from builders import same_bits
from safevla_bench.errors import RecordError
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.logs.recordings import find_recordings
from safevla_bench.trajectory.batch import Batch
from sources.logs.log_files import problem, read, save_mapping, write_mcap
from sources.logs.ros_files import START_NS, STORE, STORE1, joints, pose, write_ros1, write_rosbag2

MAPPING = """
[episode]
task = "t"
success = true
[eef]
from = "/eef"
[torque]
from = "/joints"
limits_nm = [10]
"""
STEP_NS = 50_000_000


def rows(store=STORE, first: int = 0, last: int = 40) -> list:
    messages = []
    for k in range(first, last):
        at = START_NS + k * STEP_NS
        messages += [
            ("/joints", at, joints({"a": float(k % 7)}, at, store)),
            ("/eef", at, pose(0.01 * k, at, "world", store)),
        ]
    return messages


def episode(path: Path) -> Batch:
    if path.is_dir():
        save_mapping(path, MAPPING)
    else:
        save_mapping(path.parent, MAPPING)
    (batch,) = read(path)
    assert isinstance(batch, Batch), batch
    return batch


def numbers(batch: Batch) -> tuple:
    return batch.eef_pos_m.values.tolist(), batch.joint_torque_nm.values.tolist(), batch.headers[0].dt


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("mode", ["none", "file", "message"])
def test_a_rosbag2_folder_is_one_episode_whatever_its_storage_and_compression(tmp_path, storage, mode):
    plain = numbers(episode(write_rosbag2(tmp_path / "plain", rows())))
    batch = episode(write_rosbag2(tmp_path / "bag", rows(), storage, mode))
    assert batch.headers[0].episode_id == "bag"
    assert numbers(batch) == plain


@pytest.mark.parametrize("compression", [None, "bz2", "lz4"])
def test_a_bag_of_ros_1_is_one_episode(tmp_path, compression):
    plain = numbers(episode(write_rosbag2(tmp_path / "plain", rows())))
    batch = episode(write_ros1(tmp_path / "take.bag", rows(STORE1), compression))
    assert batch.headers[0].episode_id == "take"
    assert numbers(batch) == plain


def split(folder: Path, storage: str = "mcap") -> Path:
    suffix = {"mcap": ".mcap", "sqlite3": ".db3"}[storage]
    folder.mkdir()
    for number, (first, last) in enumerate([(0, 13), (13, 28), (28, 40)]):
        part = write_rosbag2(folder / f"part{number}", rows(STORE, first, last), storage)
        shutil.move(part / f"part{number}{suffix}", folder / f"run_{number}{suffix}")
        metadata = (part / "metadata.yaml").read_text()
        shutil.rmtree(part)
    listed = "".join(f"\n  - run_{number}{suffix}" for number in range(3))
    head, _, rest = metadata.partition("relative_file_paths:")
    tail = (
        rest[rest.index("\n  starting_time") :] if "\n  starting_time" in rest else rest[rest.index("\n  duration") :]
    )
    (folder / "metadata.yaml").write_text(f"{head}relative_file_paths:{listed}{tail}")
    return folder


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_parts_of_a_split_recording_are_one_episode_in_the_order_of_the_metadata(tmp_path, storage):
    whole = numbers(episode(write_rosbag2(tmp_path / "whole", rows())))
    assert numbers(episode(split(tmp_path / "parts", storage))) == whole


def test_parts_that_the_metadata_lists_in_a_wrong_order_are_joined_by_their_numbers(tmp_path, caplog):
    whole = numbers(episode(write_rosbag2(tmp_path / "whole", rows())))
    folder = split(tmp_path / "parts")
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(
        text.replace("run_2", "run_x").replace("run_0", "run_2").replace("run_x", "run_0")
    )
    assert numbers(episode(folder)) == whole
    assert "an order that differs from" in caplog.text


@pytest.mark.parametrize("text", ["", "rosbag2_bagfile_information: {", "a: 1", "- 1\n", "\0", "x: &a [*a]"])
def test_a_damaged_or_incomplete_metadata_is_tolerated(tmp_path, text, caplog):
    whole = numbers(episode(write_rosbag2(tmp_path / "whole", rows())))
    folder = split(tmp_path / "parts")
    (folder / "metadata.yaml").write_text(text)
    assert numbers(episode(folder)) == whole
    assert "joined by their" in caplog.text


def test_without_metadata_files_that_continue_each_other_are_one_recording(tmp_path, caplog):
    whole = numbers(episode(write_rosbag2(tmp_path / "whole", rows())))
    folder = split(tmp_path / "parts")
    (folder / "metadata.yaml").unlink()
    assert numbers(episode(folder)) == whole
    assert "one recording" in caplog.text
    (folder / "run_1.mcap").unlink()
    assert [recording.name for recording in find_recordings(folder)] == ["run_0", "run_2"]


def test_compressed_parts_without_metadata_that_are_named_by_their_folder_are_one_recording(tmp_path):
    """As a recorder that was killed leaves them (ros2/rosbag2, issue 990)."""
    folder = split(tmp_path / "parts", "sqlite3")
    for number in range(3):
        plain = folder / f"run_{number}.db3"
        (folder / f"parts_{number}.db3.zstd").write_bytes(zstandard.compress(plain.read_bytes()))
        plain.unlink()
    (folder / "metadata.yaml").unlink()
    assert numbers(episode(folder))[0][-1] == pytest.approx(0.1)


@pytest.mark.parametrize("number", range(3))
def test_a_part_that_is_not_listed_is_read_with_a_warning(tmp_path, number, caplog):
    folder = split(tmp_path / "parts")
    save_mapping(folder, MAPPING)
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(text.replace(f"\n  - run_{number}.mcap", ""))
    assert episode(folder).lengths.tolist() == [40]
    assert f"run_{number}.mcap" in caplog.text


def test_a_part_that_is_missing_is_an_error(tmp_path):
    folder = split(tmp_path / "parts")
    (folder / "run_1.mcap").unlink()
    with pytest.raises(RecordError, match=r"missing: run_1\.mcap"):
        find_recordings(folder)


def test_no_recording_of_a_folder_hides_another_and_what_is_not_read_is_named(tmp_path, caplog):
    write_rosbag2(tmp_path / "bag", rows())
    write_rosbag2(tmp_path / "killed", rows())
    (tmp_path / "killed" / "metadata.yaml").unlink()
    for path in (tmp_path / "take.mcap", tmp_path / "bag" / "other.mcap"):
        shutil.copy(next((tmp_path / "bag").glob("bag*.mcap")), path)
    assert [recording.name for recording in find_recordings(tmp_path)] == ["take", "bag"]
    assert "recordings in killed are not read" in caplog.text
    assert "does not list other.mcap" in caplog.text
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    with pytest.raises(RecordError, match=r"has recordings: take\.mcap"):
        find_log(tmp_path)


@pytest.mark.parametrize("is_folder", [False, True])
def test_two_recordings_of_one_name_are_refused(tmp_path, is_folder):
    path = write_mcap(tmp_path / "take.mcap", [("/eef", 5 + 0.1 * k, {"x": 0.0}) for k in range(3)])
    if is_folder:
        write_rosbag2(tmp_path / "take", rows())
    else:
        (tmp_path / "take.mcap.zst").write_bytes(zstandard.compress(path.read_bytes()))
    with pytest.raises(RecordError, match="several recordings are named 'take'") as caught:
        find_recordings(tmp_path)
    assert caught.value.place.field == "episode_id"


def test_a_folder_of_rosbag2_folders_holds_an_episode_each(tmp_path):
    for name in ("b", "a"):
        write_rosbag2(tmp_path / name, rows())
    save_mapping(tmp_path, MAPPING)
    assert [batch.headers[0].episode_id for batch in read(tmp_path)] == ["a", "b"]


def test_messages_of_sqlite_are_in_the_order_of_their_ids_so_that_a_clock_set_back_is_found(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", rows(), "sqlite3")
    with sqlite3.connect(folder / "bag.db3") as base:
        base.execute("DELETE FROM messages WHERE topic_id = (SELECT id FROM topics WHERE name = '/joints')")
        base.execute("UPDATE messages SET timestamp = timestamp - 5000000000 WHERE id > 40")
    (folder / "safevla-log.toml").write_text('[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n')
    assert episode_steps(folder) == [STEP_NS / 1e9] * 39  # by header stamps, which increase


def episode_steps(folder: Path) -> list[float]:
    (batch,) = read(folder)
    assert isinstance(batch, Batch), batch
    return [batch.headers[0].dt] * (int(batch.lengths[0]) - 1)


def without_definitions(folder: Path) -> Path:
    with sqlite3.connect(folder / "bag.db3") as base:
        base.execute("DROP TABLE message_definitions")
        base.execute("DROP TABLE schema")
    return folder


def test_without_definitions_types_are_those_of_a_distribution_of_ros(tmp_path):
    folder = without_definitions(write_rosbag2(tmp_path / "bag", rows(), "sqlite3"))
    assert episode(folder).lengths.tolist() == [40]
    save_mapping(folder, 'ros_distro = "melodic"\n' + MAPPING)
    assert "'melodic'" in problem(folder)


def test_a_type_that_is_defined_nowhere_is_an_error_that_names_it(tmp_path):
    folder = without_definitions(write_rosbag2(tmp_path / "bag", rows(), "sqlite3"))
    with sqlite3.connect(folder / "bag.db3") as base:
        base.execute("UPDATE topics SET type = 'my_msgs/msg/Own' WHERE name = '/joints'")
    save_mapping(folder, MAPPING)
    assert "'my_msgs/msg/Own'" in problem(folder)


def test_other_databases_and_empty_bags_say_what_they_are(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", rows(), "sqlite3")
    with sqlite3.connect(folder / "bag.db3") as base:
        base.execute("DELETE FROM messages")
    save_mapping(folder, MAPPING)
    assert "holds no messages" in problem(folder)
    (folder / "safevla-log.toml").unlink()
    assert re.search("no messages", problem(folder))
    with sqlite3.connect(tmp_path / "other.db3") as base:
        base.execute("CREATE TABLE rows (x)")
    assert "not a bag" in problem(tmp_path / "other.db3")


def test_a_bag_whose_columns_are_computed_is_refused_because_each_row_could_take_seconds(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", rows(), "sqlite3")
    with sqlite3.connect(folder / "bag.db3") as base:
        base.execute("ALTER TABLE messages ADD COLUMN further AS (length(hex(zeroblob(400000000))))")
    save_mapping(folder, MAPPING)
    assert "has computed columns" in problem(folder)


def test_a_bag_that_is_cut_off_is_an_error(tmp_path):
    bag = write_ros1(tmp_path / "take.bag", rows(STORE1))
    save_mapping(tmp_path, MAPPING)
    content = bag.read_bytes()
    bag.write_bytes(content[: len(content) // 2])
    assert "off or damaged" in problem(bag)


def test_a_bag_without_an_index_is_read(tmp_path):
    """As `rosbag record` leaves it when it is killed; `rosbag reindex` is not needed."""
    bag = write_ros1(tmp_path / "take.bag", rows(STORE1))
    whole = numbers(episode(bag))
    content = bag.read_bytes()
    at = content.index(b"index_pos=") + len(b"index_pos=")
    end = int.from_bytes(content[at : at + 8], "little")
    bag.write_bytes(content[:at] + bytes(8) + content[at + 8 : end])
    assert numbers(episode(bag.rename(f"{bag}.active"))) == whole


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["bag", "db3"])
def test_altered_bytes_are_an_episode_or_an_error_and_nothing_else(tmp_path, kind, seed):
    if kind == "bag":
        path = write_ros1(tmp_path / "take.bag", rows(STORE1, 0, 9), "lz4" if seed % 2 else None)
    else:
        path = write_rosbag2(tmp_path / "bag", rows(STORE, 0, 9), "sqlite3") / "bag.db3"
    save_mapping(path.parent, MAPPING)
    rng, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    for place in rng.integers(20, len(content), 4):
        content[place] = rng.integers(256)
    path.write_bytes(bytes(content))
    assert all(isinstance(outcome, Batch | RecordError) for outcome in read(path))


def test_two_readings_of_one_bag_have_the_same_bits(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", rows())
    assert same_bits(episode(folder), episode(folder))
