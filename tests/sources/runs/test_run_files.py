"""The files of a run folder one by one: what is written, what is read back, and what a strange file counts as."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from safevla_bench.errors import RecordError, RunError
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs.folder import (
    EPISODES,
    FRAMES,
    INDEX,
    MANIFEST,
    RUN,
    DayFacts,
    Frame,
    Latency,
    PlanDifference,
    PolicyGreeting,
    Repeats,
)
from safevla_recorder.episode import EpisodeRow
from safevla_recorder.folder import OWN_LOOP


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def sha(content: bytes | str) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def row(number: int, policy: str = "p", benchmark: str = "s", task_id: str = "t") -> EpisodeRow:
    return EpisodeRow(
        episode_id=f"{policy}/{benchmark}/{task_id}/ep_{number:03d}", policy=policy, benchmark=benchmark,
        task_id=task_id, episode=number, init_state_index=0, env_seed=0, seed=0, policy_seed=0, horizon=9,
        outcome="success", steps=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (run_folder.read_manifest, MANIFEST, {}),
        (run_folder.read_description, RUN, ["x"]),
        (run_folder.read_facts, RUN, {"volatile": {"ran_on": 3}}),
        (run_folder.read_episodes, EPISODES, b"PAR1"),
        (run_folder.read_frames, f"{FRAMES}/{INDEX}", {"frames": 3}),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, read, name, content):
    path = write(tmp_path / name, content)
    with pytest.raises(RunError) as caught:
        read(tmp_path)
    assert caught.value.place.file == str(path)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("error", "word"),
    [(OSError(errno.EIO, "no luck"), "no luck"), (OSError("why"), "why"), (RecordError("big"), "big")],
)
def test_an_error_of_a_reader_is_one_of_the_run_with_the_file_and_the_cause(tmp_path, error, word):
    with pytest.raises(RunError, match=f"cannot be read: {word}") as caught, run_folder.readable(tmp_path, "Fix it."):
        raise error
    assert caught.value.place.file == str(tmp_path)


def test_the_digest_of_a_run_is_that_of_its_manifest_or_of_its_raw_episodes(tmp_path):
    digest = run_folder.archive_digest
    assert digest(write(tmp_path / "a.jsonl", b"abc")) == sha("abc")
    assert digest(tmp_path / "absent") is None
    assert digest(tmp_path) is None
    raw = tmp_path / "run" / "raw"
    for name in ("000001.json", "000000.npz", ".000002.npz.1.partial"):
        write(raw / name, name.encode())
    listed = "".join(f"{sha(name)}  raw/{name}\n" for name in ("000000.npz", "000001.json"))
    assert digest(tmp_path / "run") == sha(listed)
    parts = {"archive/part-1": "bb", "archive/part-0": "aa"}
    write(tmp_path / "run" / MANIFEST, {"parts": parts, "episodes": 2, "files": {}})
    assert digest(tmp_path / "run") == sha("aa  archive/part-0\nbb  archive/part-1\n")
    write(tmp_path / "run" / MANIFEST, b"{")
    assert digest(tmp_path / "run") is None


@pytest.mark.parametrize(
    ("description", "host"),
    [
        (None, (None, {})),
        ({}, (None, {})),
        ({"host": 3, "host_arguments": {"a": 1}}, (None, {})),
        ({"host": "fake", "host_arguments": {"a": 1}}, ("fake", {"a": "1"})),
        ({"host": "fake", "host_arguments": [1]}, ("fake", {})),
    ],
)
def test_the_host_of_a_run_is_a_text_with_arguments_that_are_texts(tmp_path, description, host):
    if description is not None:
        write(tmp_path / RUN, description)
    assert run_folder.read_host(tmp_path) == host


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (run_folder.is_own_loop, {"protocol": {"name": OWN_LOOP}}, True),
        (run_folder.is_own_loop, {"protocol": {"name": "other"}}, False),
        (run_folder.is_own_loop, {"protocol": OWN_LOOP}, False),
        (run_folder.policy_rows, {}, []),
        (run_folder.policy_rows, {"policies": "pi"}, []),
        (run_folder.policy_rows, {"policies": ({"policy": "a"}, "b", {"policy": 3}, {})}, [{"policy": "a"}]),
        (run_folder.read_volatile, {"volatile": 3}, {}),
        (run_folder.read_volatile, {"volatile": {"a": 1}}, {"a": 1}),
        (run_folder.recorded_code, {"code": ["a", 3]}, ["a", "3"]),
        (run_folder.recorded_code, {"code": []}, ["unknown"]),
        (run_folder.recorded_code, {"code": "abc"}, ["unknown"]),
    ],
)
def test_what_a_description_says_in_another_form_counts_as_not_said(read, value, expected):
    assert read(value) == expected


def test_different_code_is_refused_or_allowed_with_a_warning_and_unknown_code_is_a_warning(caplog):
    with pytest.raises(RunError) as caught:
        run_folder.require_same_code("here", ["a 1"], ["a 1", "a 2"], is_allowed=False)
    assert caught.value.place.file == "here"
    assert not caplog.records
    run_folder.require_same_code("here", ["a 1"], ["a 2"], is_allowed=True)
    assert "different versions" in caplog.text
    caplog.clear()
    for codes in (["unknown"], ["a 1"]), (["a 1"], ["unknown"]):
        run_folder.require_same_code("here", *codes, is_allowed=False)
    assert ["is unknown" in record.getMessage() for record in caplog.records] == [True, True]
    caplog.clear()
    run_folder.require_same_code("here", ["a 1"], ["a 1", "b 3"], is_allowed=False)
    assert not caplog.records


def test_facts_of_the_day_are_added_to_those_that_there_are_and_none_add_nothing():
    assert DayFacts().add_to({"host": "fake"}) == {"host": "fake"}
    facts = DayFacts(ran_on={"a": "node"})
    assert facts.add_to({"volatile": {"x": 1}}) == {"volatile": {"x": 1, "ran_on": {"a": "node"}}}
    greetings = [PolicyGreeting(policy="p", suite="s", says={"k": k}, episodes=[f"{k}", f"{k}+"]) for k in (1, 2)]
    assert DayFacts(policies_say=greetings).statements == {"1": {"k": 1}, "1+": {"k": 1}, "2": {"k": 2}, "2+": {"k": 2}}
    assert Repeats(asked=9, other=2).describe().startswith("2 of 9 ")


def test_latencies_are_those_of_policies_with_a_server(tmp_path):
    latency = {"calls": 3, "p50_ms": 1.0, "p95_ms": 2.0}
    episodes = dict.fromkeys(["a/s/t/ep_000", "a/s/t/ep_001", "ab/s/t/ep_000", "b/s/t/ep_000"], latency)
    policies = [{"policy": "a", "dialect": "openpi"}, {"policy": "b"}, {"policy": "c", "dialect": "openpi"}]
    description = {"policies": policies, "volatile": {"policy_latency": episodes}}
    write(tmp_path / RUN, description)
    expected = {"a": [Latency(calls=3, p50_ms=1.0, p95_ms=2.0)] * 2}
    assert run_folder.served_latencies(tmp_path, description) == expected
    assert run_folder.served_latencies(tmp_path / "absent", {"policies": policies[1:2]}) == {}


@pytest.mark.parametrize("count", [0, 3000])
def test_a_table_has_checksums_and_no_group_of_rows_if_it_has_no_rows(count):
    table = pa.table({"x": np.random.default_rng(0).integers(1 << 62, size=count)})
    content = run_folder.encode_parquet(table)
    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    assert file.num_row_groups == min(count, 1)
    assert file.read().equals(table)
    if count:
        place = len(content) // 2
        damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(OSError, match="CRC"):
            pq.ParquetFile(io.BytesIO(damaged), page_checksum_verification=True).read()


def test_json_for_people_is_indented_and_has_no_value_of_numpy_and_no_invisible_character():
    assert run_folder.dump_json({"a": [float("nan")]}) == b'{\n  "a": [\n    null\n  ]\n}\n'
    with pytest.raises(TypeError):
        run_folder.dump_json({"a": np.float64(1)})
    assert json.loads(run_folder.encode_json({"a": "\ud800"})) in ({"a": "\ud800"}, {"a": "\\ud800"})
    assert b"\x1b" not in run_folder.encode_json({"a": "\x1b"})


def frame(file: str) -> Frame:
    return Frame(
        episode_id="e", policy=None, kind="final", record=0, time_s=0.0, caption="", success=True, camera="c",
        width=2, height=2, file=file,
    )  # fmt: skip


def picture(size: tuple[int, int] = (3, 2), form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.effect_noise(size, 50).save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize(("suffix", "form"), [("png", "PNG"), ("jpg", "JPEG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_a_picture_is_read_if_it_is_of_the_type_of_its_suffix(tmp_path, suffix, form):
    content = picture(form=form)
    write(tmp_path / FRAMES / f"a.{suffix}", content)
    assert run_folder.read_picture(tmp_path, frame(f"a.{suffix}")) == (form, content)
    write(tmp_path / FRAMES / f"a.{suffix}", picture(form="GIF"))
    assert run_folder.read_picture(tmp_path, frame(f"a.{suffix}")) is None


def test_a_picture_that_is_missing_too_large_elsewhere_or_of_no_known_type_is_none(tmp_path, monkeypatch):
    run, content = tmp_path / "run", picture()
    write(run / FRAMES / "a.png", content)
    write(run / FRAMES / "a.gif", picture(form="GIF"))
    assert run_folder.read_picture(run, frame("b.png")) is None
    assert run_folder.read_picture(run, frame("a.gif")) is None
    assert run_folder.read_picture(run, frame("a.png"), len(content)) == ("PNG", content)
    monkeypatch.setattr(run_folder, "_MAX_PIXELS", 6)
    assert run_folder.read_picture(run, frame("a.png")) == ("PNG", content)
    monkeypatch.setattr(run_folder, "_MAX_PIXELS", 5)
    assert run_folder.read_picture(run, frame("a.png")) is None
    monkeypatch.undo()
    for cut in (content[:20], picture((64, 64))[:-60]):
        write(run / FRAMES / "a.png", cut)
        assert run_folder.read_picture(run, frame("a.png")) is None
    (run / FRAMES / "c.png").symlink_to(write(tmp_path / "outside.png", content))
    assert run_folder.read_picture(run, frame("c.png")) is None


@pytest.mark.parametrize(("file", "is_valid"), [("a-0.png", True), ("0.png", True), ("../a.png", False),
                                                (".a.png", False), ("A.png", False), ("a.png\n", False)])  # fmt: skip
def test_the_index_of_pictures_is_read_in_its_order_and_names_of_files_are_plain(tmp_path, file, is_valid):
    assert run_folder.read_frames(tmp_path) == ()
    (tmp_path / FRAMES).mkdir()
    frames = (frame("z.png"), frame(file))
    assert run_folder.write_frames(tmp_path, frames) == tmp_path / FRAMES / INDEX
    if is_valid:
        assert run_folder.read_frames(tmp_path) == frames
    else:
        with pytest.raises(RunError, match="file name"):
            run_folder.read_frames(tmp_path)


def test_the_stem_of_a_picture_is_the_end_of_the_id_and_a_digest_of_policy_and_id():
    stem = run_folder.frame_stem("P", "P/Suite/Task 1/ep_003")
    assert stem.rpartition("-")[0] == "p-suite-task-1-ep-003"
    assert len(stem.rpartition("-")[2]) == 8
    assert len({stem, run_folder.frame_stem(None, "P/Suite/Task 1/ep_003"), run_folder.frame_stem("P", "p")}) == 3
    assert run_folder.frame_stem("p", "b" + "a" * 60).rpartition("-")[0] == "a" * 60
    assert len(run_folder.frame_stem("p", "/")) == 8


PLAN = {"planned": 4, "episodes": 2, "policies": [{"policy": "p"}], "tasks": ["s/t", "s/u"]}
ROWS = [row(0), row(1), row(0, task_id="u"), row(1, task_id="u")]


def compare(change: dict[str, object], rows: list[EpisodeRow]) -> tuple[list[str], int, int]:
    """Ids of missing episodes, and the counts of those without a name and of those that were not planned."""
    difference = run_folder.compare_plan({**PLAN, **change}, rows)
    return [absent.episode_id for absent in difference.missing], difference.unnamed, difference.unplanned


@pytest.mark.parametrize(
    ("change", "rows", "expected"),
    [
        ({}, ROWS, ([], 0, 0)),
        ({}, ROWS[1:3], (["p/s/t/ep_000", "p/s/u/ep_001"], 0, 0)),
        ({}, [*ROWS[1:], row(7)], (["p/s/t/ep_000"], 0, 1)),
        ({"episodes": None}, ROWS[:3], (["p/s/u/ep_001"], 0, 0)),  # as many as the largest task of the suite has
        ({"episodes": "protocol"}, ROWS[:3], (["p/s/u/ep_001"], 0, 0)),
        ({"episodes": 1, "planned": 2}, ROWS[:1], (["p/s/u/ep_000"], 0, 0)),
        ({"episodes": "some"}, ROWS[:3], ([], 1, 0)),
        ({"episodes": "some"}, [*ROWS, row(7)], ([], 0, 1)),
        ({"episodes": 3}, ROWS[:3], ([], 1, 0)),  # the plan has another number of episodes than its tasks
        ({"tasks": ["s/t", "s/u", "z/t"], "episodes": None}, ROWS[:3], (["p/s/u/ep_001"], 0, 0)),
        ({"planned": 2, "shard": {"number": 2, "count": 2, "first": 2, "whole": 4}}, ROWS[:3],
         (["p/s/u/ep_001"], 0, 2)),
        ({"planned": 2, "shard": {"number": 1, "count": 2, "first": -1, "whole": 4}}, ROWS[:1],
         (["p/s/t/ep_001"], 0, 0)),
        ({"decision": {"is_decided": True, "episodes": 3}}, ROWS[:2], ([], 1, 0)),
        ({"decision": {"is_decided": True, "episodes": 3}}, ROWS, ([], 0, 1)),
        ({"decision": {"is_decided": False, "episodes": 3}}, ROWS[:3], (["p/s/u/ep_001"], 0, 0)),
        ({"planned": 0, "episodes": 0}, [], ([], 0, 0)),
    ],
)  # fmt: skip
def test_missing_episodes_are_named_where_the_plan_names_them_and_counted_elsewhere(change, rows, expected):
    assert compare(change, rows) == expected


def test_a_missing_episode_has_the_names_of_the_plan_and_a_run_without_a_plan_misses_none(monkeypatch):
    (absent,) = run_folder.compare_plan(PLAN, ROWS[1:]).missing
    assert (absent.policy, absent.benchmark, absent.task_id, absent.outcome) == ("p", "s", "t", "missing")
    assert run_folder.compare_plan({}, ROWS) == PlanDifference()
    monkeypatch.setattr(run_folder, "_MAX_NAMED", 4)
    assert compare({}, ROWS[1:]) == (["p/s/t/ep_000"], 0, 0)
    monkeypatch.setattr(run_folder, "_MAX_NAMED", 3)
    assert compare({}, ROWS[1:]) == ([], 1, 0)
    with pytest.raises(RunError):
        compare({"planned": "many"}, ROWS)


def test_the_table_of_episodes_is_read_as_it_was_written_and_a_missing_one_is_empty(tmp_path):
    assert run_folder.read_episodes(tmp_path) == []
    run_folder.write_episodes(tmp_path, ROWS)
    assert run_folder.read_episodes(tmp_path) == ROWS
    assert os.listdir(tmp_path) == [EPISODES]
