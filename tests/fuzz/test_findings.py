"""What fuzzing found, one test each."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import msgspec
import pyarrow.parquet as pq
import pytest

from builders import episode
from report.scenes import rollout
from safevla_bench import archive
from safevla_bench.archive.jsonl import decode_json, encode_json
from safevla_bench.cli import run_command_line
from safevla_bench.errors import CollectedError, Place, PolicyError, RecordError, RunError, SafevlaError, SpecError
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies.servers.codecs import OPENPI, VLA_EVAL
from safevla_bench.report.figures.sheet import drawable_text
from safevla_bench.sources.runs.episode_index import read_sources, scan
from safevla_bench.sources.runs.folder import read_description, read_facts, read_frames
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.specs.loader import load_library
from safevla_bench.trajectory.batch import concatenate_batches
from sources.logs.log_files import save_mapping, straight_line, write_dataset


@pytest.mark.parametrize("dtype", ["f8,(", "(2,)f8", "f8,f8", "{'names': []}", "f8\n", "", "M8[s]", ",", "<f8 "])
def test_a_dtype_from_a_server_never_reaches_pythons_parser(dtype):
    openpi = {b"__ndarray__": True, b"data": bytes(8), b"dtype": dtype, b"shape": [1]}
    scalar = {b"__npgeneric__": True, b"data": 1.0, b"dtype": dtype}
    for codec, wire in ((OPENPI, openpi), (OPENPI, scalar), (VLA_EVAL, {k.decode(): v for k, v in openpi.items()})):
        with pytest.raises(PolicyError, match=r"be read|integers or"):
            codec.unpack(msgspec.msgpack.encode(wire))


def in_run(folder, **changes):
    (folder / "run.json").write_text(json.dumps({"complete": True, **changes}))
    return folder


@pytest.mark.parametrize("latency", [{"e": 1}, [], {"e": {"calls": 1, "p50_ms": 1.0}}, {"e": {"calls": "x"}}])
def test_a_latency_that_is_none_is_named(tmp_path, latency):
    with pytest.raises(RunError) as raised:
        read_facts(in_run(tmp_path, volatile={"policy_latency": latency}))
    assert raised.value.place.field == "volatile"


DEEP = b"[" * 200_000
NUMBER = b'{"planned": ' + b"9" * 5000 + b"}"


@pytest.mark.parametrize("content", [DEEP, NUMBER], ids=["depth", "digits"])
def test_a_run_json_that_python_cannot_read_is_a_run_error(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"cannot be read"):
        read_description(tmp_path)


@pytest.mark.parametrize("content", [b'[{"x": ' + DEEP, b'[{"file": "\xb6"}]}'], ids=["depth", "no text"])
def test_an_index_of_frames_that_python_cannot_read_is_a_run_error(tmp_path, content):
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "index.json").write_bytes(b'{"frames": ' + content)
    with pytest.raises(RunError, match="cannot be read"):
        read_frames(tmp_path)


def test_raw_episodes_of_anybody_are_errors_by_name(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "run.json").write_text('{"complete": false}')
    request = Request(host="fake", suites=("fake",), episodes=1, policies=("random",), max_steps=2)
    roll_out(request, tmp_path / "other")
    row = msgspec.json.encode(episode_rows(tmp_path / "other")[0])
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", bytes(77_777))
    large = archived.getvalue().replace(struct.pack("<I", 77_777), struct.pack("<I", 2**30 + 1))
    (tmp_path / "raw" / "000000.json").write_bytes(row)
    for content in (b"", b"x", large):
        (tmp_path / "raw" / "000000.npz").write_bytes(content)
        (problem,) = scan([tmp_path]).problems
        assert isinstance(problem, RecordError)
        assert "000000.npz" in str(problem)
    for bad in (b"", b"{}", b"[" * 10**5, row[:-2], b"\xff"):
        (tmp_path / "raw" / "000000.json").write_bytes(bad)
        with pytest.raises(RunError, match="row is damaged"):
            scan([tmp_path])


def test_names_of_any_length_make_no_message_of_that_length(tmp_path):
    error = SafevlaError("x" * 10**6, place=Place(file="f", episode="e" * 10**6, field="g" * 10**6))
    assert len(str(error)) < 3000
    (tmp_path / "mine.toml").write_text(f'[[specs]]\nspec_id = "{"s" * 9000}"\n"{"k" * 9000}" = 1\n')
    with pytest.raises(SpecError) as raised:
        load_library(tmp_path / "mine.toml")
    assert len(str(raised.value)) < 1500


def test_an_embodiment_without_a_name_is_not_a_panda():
    tree = json.loads(encode_json(episode(3), 0)) | {"embodiment": ""}
    judged = score(decode_json(json.dumps(tree).encode()), load_ruleset(missing="deactivate")).episode(0)
    assert judged.inactive_specs["joint_torque"] == "signal_missing:joint_torque_limit_nm"


def test_a_name_of_any_length_is_drawn_in_no_time():
    name = "L" * 100_000
    assert len(drawable_text(name)) <= 300


def test_compare_takes_a_suite_that_one_policy_did_not_run(tmp_path, capsys):
    parts = [("a", "libero-goal"), ("b", "libero-10"), ("a", "libero-10")]
    batches = [
        rollout(k, 0.5, 20, policy=policy, benchmark=suite, task_id="task_0", episode_id=f"{policy}{suite}")
        for k, (policy, suite) in enumerate(parts)
    ]
    archive.write_archive(tmp_path / "x.jsonl", concatenate_batches(batches))
    assert run_command_line(["compare", str(tmp_path / "x.jsonl"), "--unpaired"]) == 0
    assert "libero-goal" in capsys.readouterr().out


def test_a_record_of_several_lines_is_not_a_reason_to_lose_the_others(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(encode_json(episode(2), 0) + DEEP + b"\n")
    batch, index = read_sources([tmp_path / "x.jsonl"])
    assert len(batch) == 1
    assert len(index.problems) == 1
    assert not isinstance(index.problems[0], CollectedError)


@pytest.mark.parametrize(
    ("begin", "changed", "problem"),
    [
        (b"\x18\x04pose", b"\x18\x04\xceose", "is not UTF-8"),
        (b"\x15\x00\x15", b"\x1c\x00\x15", "cannot be read"),
    ],
    ids=["a name that is not text", "a struct in the place of a page's kind"],
)
def test_damage_in_a_lerobot_dataset_is_an_error(tmp_path, begin, changed, problem):
    folder = write_dataset(tmp_path / "set", [{"pose": straight_line(4)}])
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    pq.write_table(pq.read_table(path), path, compression="none", store_schema=False, use_dictionary=False)
    content = path.read_bytes()
    assert begin in content
    path.write_bytes(content.replace(begin, changed, 1 if begin[0] == 0x15 else -1))
    save_mapping(folder, '[episode]\nsuccess = true\n[eef]\nfrom = "pose"\nposition = [0, 1, 2]\n')
    (error,) = scan([folder]).problems
    assert problem in str(error)
