"""What fuzzing found, one test each; how it was found is in docs/trust.md."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from builders import episode
from report.scenes import rollout
from safevla_bench import specs
from safevla_bench.archive.json_decoder import decode
from safevla_bench.archive.json_encoder import encode
from safevla_bench.cli import run
from safevla_bench.errors import CollectedError, Place, PolicyError, RecordError, RunError, SafevlaError, SpecError
from safevla_bench.policies.servers.codecs import GR00T, OPENPI, VLA_EVAL
from safevla_bench.report.figures.sheet import cut
from safevla_bench.report.figures.style import plain, width_pt
from safevla_bench.runs import open_source
from safevla_bench.runs.folder import described, latencies
from safevla_bench.runs.frame_index import read_frames
from safevla_bench.runs.journal import Entry, Snapshot


def array_file(descr: str) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(8)


@pytest.mark.parametrize(
    "content",
    [array_file("'<f8'\n("), array_file("(((((('<f8'"), array_file("'<f8', 1 if"), b"\x93NUMPY\x01\x00\x02\x00\xff\n"],
    ids=["a bracket left open", "brackets", "an expression", "no text"],
)
def test_the_head_of_an_array_from_a_server_never_reaches_pythons_parser(content):
    with pytest.raises(PolicyError, match="cannot be read"):
        GR00T.unpack(msgspec.msgpack.encode({"__ndarray_class__": True, "as_npy": content}))


@pytest.mark.parametrize("dtype", ["f8,(", "(2,)f8", "f8,f8", "{'names': []}", "f8\n", "", "M8[s]", ",", "<f8 "])
def test_a_dtype_from_a_server_never_reaches_pythons_parser(dtype):
    openpi = {b"__ndarray__": True, b"data": bytes(8), b"dtype": dtype, b"shape": [1]}
    scalar = {b"__npgeneric__": True, b"data": 1.0, b"dtype": dtype}
    for codec, wire in ((OPENPI, openpi), (OPENPI, scalar), (VLA_EVAL, {k.decode(): v for k, v in openpi.items()})):
        with pytest.raises(PolicyError, match="cannot be read"):
            codec.unpack(msgspec.msgpack.encode(wire))


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_both_memory_orders_come_out_as_they_went_in(order):
    array = np.asarray(np.arange(6.0).reshape(2, 3), order=order)
    (found,) = GR00T.unpack(GR00T.pack([array]))
    assert np.array_equal(found, array)
    assert not found.flags.writeable


def in_run(folder, **changes):
    (folder / "run.json").write_text(json.dumps({"complete": True, **changes}))
    return folder


@pytest.mark.parametrize("held", [{"e": 1}, [], {"e": {"calls": 1, "p50_ms": 1.0}}, {"e": {"calls": "x"}}])
def test_a_latency_that_is_none_is_named(tmp_path, held):
    with pytest.raises(RunError) as raised:
        latencies(in_run(tmp_path, volatile={"policy_latency": held}))
    assert raised.value.place.field == "volatile.policy_latency"


DEEP = b"[" * 200_000
NUMBER = b'{"planned": ' + b"9" * 5000 + b"}"


@pytest.mark.parametrize("content", [DEEP, NUMBER], ids=["depth", "digits"])
def test_a_run_json_that_python_cannot_read_is_a_run_error(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"cannot be read"):
        described(tmp_path)


def test_an_index_of_frames_that_nests_too_deeply_is_a_run_error(tmp_path):
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "index.json").write_bytes(b'{"frames": [{"x": ' + DEEP)
    with pytest.raises(RunError, match="cannot be read"):
        read_frames(tmp_path)


def test_a_journal_cannot_ask_for_memory_that_no_file_fills(tmp_path, capsys):
    from safevla_bench import evaluate, runs

    asked = evaluate.Request(host="fake", suites=("fake",), episodes=1, policies=("random",), max_steps=2)
    evaluate.roll_out(asked, tmp_path / "run")
    row = msgspec.to_builtins(runs.episode_rows(tmp_path / "run")[0])
    partial = tmp_path / "run" / ".partial"
    partial.mkdir()
    (partial / "records.jsonl.zst").write_bytes(b"x")
    for offset, length in ((0, 10**15), (10**15, 1), (-1, 1), (0, -1)):
        entry = {"index": 0, "row": row, "offset": offset, "length": length}
        (partial / "journal.jsonl").write_bytes(msgspec.json.encode(entry) + b"\n")
        if min(offset, length) < 0:
            with pytest.raises(RunError, match="damaged"):
                Snapshot(tmp_path / "run")
        else:
            (found,) = Snapshot(tmp_path / "run").read()
            assert isinstance(found, RecordError)
    assert Entry.__struct_fields__[2:4] == ("offset", "length")


def test_names_of_any_length_make_no_message_of_that_length(tmp_path):
    error = SafevlaError("x" * 10**6, place=Place(file="f", episode="e" * 10**6, field="g" * 10**6))
    assert len(str(error)) < 3000
    (tmp_path / "mine.toml").write_text(f'[[specs]]\nspec_id = "{"s" * 9000}"\n"{"k" * 9000}" = 1\n')
    with pytest.raises(SpecError) as raised:
        specs.library(tmp_path / "mine.toml")
    assert len(str(raised.value)) < 1500


def test_an_embodiment_without_a_name_is_no_panda():
    tree = json.loads(encode(episode(3), 0)) | {"embodiment": ""}
    with pytest.raises(RecordError, match="7 torques, but 0 limits"):
        decode(json.dumps(tree).encode())


def test_a_name_of_any_length_is_drawn_in_no_time():
    name = "L" * 100_000
    assert len(plain(name)) <= 300
    assert width_pt(plain(cut(name, 60.0))) <= 60.0


def test_compare_takes_a_suite_that_one_policy_did_not_run(tmp_path, capsys):
    from safevla_bench import archive
    from safevla_bench.trajectory import concatenate

    parts = [("a", "libero-goal"), ("b", "libero-10"), ("a", "libero-10")]
    batch = [rollout(k, 0.5, 20, policy=p, benchmark=s, episode_id=f"{p}{s}") for k, (p, s) in enumerate(parts)]
    archive.write(tmp_path / "x.jsonl", concatenate(batch))
    assert run(["compare", str(tmp_path / "x.jsonl"), "--unpaired"]) == 0
    assert "libero-goal" in capsys.readouterr().out


def test_a_record_of_several_lines_is_no_reason_to_lose_the_others(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(encode(episode(2), 0) + DEEP + b"\n")
    source = open_source(tmp_path / "x.jsonl")
    assert len(source.batch) == 1
    assert len(source.problems) == 1
    assert not isinstance(source.problems[0], CollectedError)
