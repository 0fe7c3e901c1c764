"""MCAP files as sources: topics at rates of their own, and nothing is read between two messages."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from builders import same_bits
from safevla_bench.errors import RecordError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sources.logs import containers
from safevla_bench.trajectory.batch import Batch
from sources.logs.log_files import pose_message, problem, read, save_mapping, write_mcap

MAPPED = """
[episode]
task = "mug"
success = true

[eef]
from = "/eef"

[bodies.mug]
from = "/mug"
role = "bystander"
"""


def messages(gap: tuple[float, float] = (9, 9), jitter: float = 0.0) -> list[tuple[str, float, dict]]:
    rng = np.random.default_rng(0)
    times = [0.05 * k + jitter * rng.uniform(-1, 1) for k in range(40)]
    eef = [("/eef", 5 + t, pose_message(0.1 * t)) for t in times]
    mug = [("/mug", 5 + t, pose_message(0.5)) for t in times if not gap[0] <= t < gap[1]]
    joints = [
        ("/joints", 5 + 0.01 * k, {"name": ["b", "a"], "position": [0.1, 0.2], "effort": [3.0, -6.0]})
        for k in range(200)
    ]
    return sorted([*eef, *mug, *joints], key=lambda row: (row[1], row[0]))


def folder_of(tmp_path: Path, rows: list, text: str = MAPPED) -> Path:
    write_mcap(tmp_path / "take_1.mcap", rows)
    save_mapping(tmp_path, text)
    return tmp_path


def test_a_file_is_an_episode_whose_records_are_messages_of_the_clock(tmp_path):
    text = MAPPED + '[torque]\nfrom = "/joints"\nnames = ["a", "b"]\nlimits_nm = [12, 12]\n'
    (batch,) = read(folder_of(tmp_path, messages(), text))
    assert (batch.headers[0].episode_id, batch.headers[0].dt) == ("take_1", pytest.approx(0.05))
    assert batch.lengths.tolist() == [40]
    assert not batch.channel("time_s").present[0]
    assert batch.joint_torque_nm.episode_rows(0)[7].tolist() == [-6.0, 3.0]
    (row,) = score(batch, load_ruleset())
    assert row.robustness["joint_torque"] == 0.5
    assert row.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.1)


def test_torques_of_seven_joints_that_end_in_zeros_are_not_a_lost_pose(tmp_path):
    rows = [("/eef", 5 + 0.05 * k, pose_message(0.1 * k)) for k in range(9)]
    rows += [("/joints", 5 + 0.05 * k, {"effort": [3.0] + [0.0] * 6}) for k in range(9)]
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[torque]\nfrom = "/joints"\n'
    text += "limits_nm = [9, 9, 9, 9, 9, 9, 9]\n"
    (batch,) = read(folder_of(tmp_path, sorted(rows, key=lambda row: row[1]), text))
    assert batch.joint_torque_nm.episode_rows(0).tolist() == [[3.0] + [0.0] * 6] * 9


def test_a_body_without_a_message_since_the_record_before_is_unknown(tmp_path):
    (batch,) = read(folder_of(tmp_path, messages(gap=(0.6, 1.0))))
    assert batch.pose_valid.channel.values.sum() == 40 - 8


def test_uneven_messages_have_time_stamps_and_derivatives_by_them(tmp_path):
    (batch,) = read(folder_of(tmp_path, messages(jitter=0.01)))
    assert batch.channel("time_s").present[0]
    (row,) = score(batch, load_ruleset())
    assert row.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.1)
    assert row.diagnostics["eef_acc_under_5mps2"].extreme == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("names", "numbers"), [(["a", "b"], [1.0, 2.0, 3.0]), (["a", "b", "c"], [1.0, 2.0])])
def test_names_and_numbers_of_different_counts_are_refused(tmp_path, names, numbers):
    rows = [("/eef", 5 + 0.05 * k, pose_message(0.1 * k)) for k in range(9)]
    rows += [("/joints", 5 + 0.05 * k, {"name": names, "effort": numbers}) for k in range(9)]
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[torque]\nfrom = "/joints"\nnames = ["b"]\n'
    folder = folder_of(tmp_path, sorted(rows, key=lambda row: row[1]), text)
    assert "names and numbers" in problem(folder)


def test_errors_name_the_topics_and_names_of_the_file(tmp_path):
    folder = folder_of(tmp_path, messages(), "")
    assert "/eef test.eef, json" in problem(folder)
    save_mapping(folder, MAPPED.replace("/mug", "/cup"))
    assert "topic '/cup'" in problem(folder)
    save_mapping(folder, MAPPED + '[torque]\nfrom = "/joints"\nnames = ["c"]\n')
    assert "b, a" in problem(folder)
    save_mapping(folder, MAPPED + '[torque]\nfrom = "/joints"\nfield = "velocity"\n')
    assert "name, position, effort" in problem(folder)
    save_mapping(folder, MAPPED.replace('from = "/eef"', 'from = "/joints"'))
    assert "has a pose" in problem(folder)
    save_mapping(folder, MAPPED.replace("[episode]", '[episode]\nclock = "/other"'))
    assert "topic '/other'" in problem(folder)


def test_transforms_are_read_by_their_child_frame(tmp_path):
    def transforms(x: float) -> dict:
        turn = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
        inner = {"translation": {"x": x, "y": 0.0, "z": 0.1}, "rotation": turn}
        return {"transforms": [{"child_frame_id": "cup", "transform": inner}]}

    rows = [("/tf", 0.1 * k, transforms(0.01 * k)) for k in range(12)]
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "/tf"\nframe = "cup"\n'
    (batch,) = read(folder_of(tmp_path, rows, text))
    assert batch.eef_pos_m.episode_rows(0)[:, 0] == pytest.approx(0.01 * np.arange(12))
    save_mapping(tmp_path, text.replace("cup", "mug"))
    assert "of eef" in problem(tmp_path)


def test_each_file_of_a_folder_is_an_episode_and_a_damaged_one_an_error(tmp_path):
    folder = folder_of(tmp_path, messages())
    write_mcap(tmp_path / "take_2.mcap", messages())
    content = (tmp_path / "take_1.mcap").read_bytes()
    (tmp_path / "take_0.mcap").write_bytes(content[: len(content) // 2])
    error, *batches = read(folder)
    assert "take_0.mcap" in str(error)
    assert [batch.headers[0].episode_id for batch in batches] == ["take_1", "take_2"]


@pytest.mark.parametrize(("content", "words"), [(b"\x1f\x8b\x08", "with gzip"), (b"<!DOCTYPE html>", "a web page")])
def test_other_content_under_the_name_of_a_recording_is_named(tmp_path, content, words):
    (tmp_path / "take.mcap").write_bytes(content * 40)
    save_mapping(tmp_path, MAPPED)
    assert words in problem(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_altered_bytes_are_an_episode_or_an_error_and_nothing_else(tmp_path, seed):
    rng = random.Random(seed)
    folder = folder_of(tmp_path, messages()[:90])
    content = bytearray((tmp_path / "take_1.mcap").read_bytes())
    for _ in range(rng.randint(1, 6)):
        content[rng.randrange(8, len(content))] = rng.randrange(256)
    (tmp_path / "take_1.mcap").write_bytes(bytes(content))
    assert all(isinstance(outcome, Batch | RecordError) for outcome in read(folder))


def test_a_bit_that_turned_over_is_an_error_or_changes_no_number(tmp_path):
    """The file's checksums are compared: damage never becomes a number that nobody measured."""
    folder = folder_of(tmp_path, messages()[:90])
    content = (tmp_path / "take_1.mcap").read_bytes()
    (intact,) = read(folder)
    rng, errors = random.Random(0), 0
    for _ in range(150):
        place = rng.randrange(8, len(content))
        flipped = bytes([content[place] ^ 1 << rng.randrange(8)])
        (tmp_path / "take_1.mcap").write_bytes(content[:place] + flipped + content[place + 1 :])
        (outcome,) = read(folder)
        errors += isinstance(outcome, RecordError)
        assert isinstance(outcome, RecordError) or same_bits(outcome, intact)
    assert errors


def test_a_chunk_that_says_more_than_a_chunk_may_hold_is_refused_before_it_is_decompressed(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "_MAX_CHUNK_BYTES", 20_000)
    assert "decompresses to more" in problem(folder_of(tmp_path, messages()))


STAMPS = {
    "float": lambda k: {"header": {"stamp": 1_700_000_000 + 0.05 * k}},
    "text": lambda k: {"header": {"stamp": f"{1_700_000_000 + 0.05 * k:.3f}000000"}},
    "iso": lambda k: {"timestamp": f"2023-11-14T22:13:{20 + k // 20:02d}.{50 * (k % 20):03d}Z"},
    "iso-zone": lambda k: {"timestamp": f"2023-11-14 23:13:{20 + k // 20:02d},{50 * (k % 20):03d}000000+01:00"},
    "ms": lambda k: {"timestamp": 1_700_000_000_000 + 50 * k},
    "us": lambda k: {"timestamp": 1_700_000_000_000_000 + 50_000 * k},
    "ns": lambda k: {"timestamp": 1_700_000_000_000_000_000 + 50_000_000 * k},
    "float-sec": lambda k: {"header": {"stamp": {"sec": 1_700_000_000.0 + k // 20, "nanosec": 5e7 * (k % 20)}}},
}


@pytest.mark.parametrize("form", sorted(STAMPS))
def test_stamps_in_json_are_read_to_the_nanosecond_as_numbers_and_as_text(tmp_path, form):
    rng = np.random.default_rng(1)
    rows = [("/eef", 5 + 0.05 * k + 0.02 * rng.uniform(), pose_message(0.005 * k) | STAMPS[form](k)) for k in range(60)]
    (batch,) = read(folder_of(tmp_path, rows, '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n'))
    assert (batch.headers[0].dt, batch.lengths.tolist()) == (0.05, [60])
    assert not batch.channel("time_s").present[0]
    (row,) = score(batch, load_ruleset(missing="deactivate"))
    assert row.diagnostics["eef_speed_under_1mps"].extreme == pytest.approx(0.1)


def test_positions_of_joints_are_never_read_as_torques(tmp_path):
    rows = [("/eef", 5 + 0.05 * k, pose_message(0.1 * k)) for k in range(9)]
    rows += [("/joints", 5 + 0.05 * k, {"name": ["a"], "position": [0.1]}) for k in range(9)]
    text = '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[torque]\nfrom = "/joints"\nlimits_nm = [9]\n'
    assert "has the mapped numbers" in problem(folder_of(tmp_path, sorted(rows, key=lambda row: row[1]), text))


def test_a_name_that_has_another_format_s_suffix_inside_is_another_recording(tmp_path):
    # The rule: two recordings are one only if their whole names are.
    for name in ("pick.mcap", "pick.mcap_filtered.mcap"):
        write_mcap(tmp_path / name, [("/eef", 5 + 0.1 * k, pose_message(0.01 * k)) for k in range(9)])
    save_mapping(tmp_path, '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n')
    assert sorted(batch.headers[0].episode_id for batch in read(tmp_path)) == ["pick", "pick.mcap_filtered"]
