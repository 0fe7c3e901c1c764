"""Messages on the wire: the bytes of each project's own packing, exact both ways, and nothing that could run code.

`tests/cases/make_openpi_frames.py` packed them with openpi's own client, `make_vla_eval_frames.py` with the harness's
own code, `make_gr00t_frames.py` with GR00T's own of two revisions.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from safevla_bench.errors import PolicyError
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN, OPENPI, OPENVLA, VLA_EVAL, Codec
from safevla_bench.policies.servers.gr00t import Modality, choose_codec, parse_modalities

CODECS = {"openpi": OPENPI, "gr00t": GR00T, "gr00t main": GR00T_MAIN, "vla-eval": VLA_EVAL, "openvla": OPENVLA}
ALL = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
CASES = Path(__file__).parents[2] / "cases"
MESSAGES = {
    "request": {
        "observation/image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        "observation/state": np.linspace(-1, 1, 8),
        "prompt": "put the bowl on the plate",
    },
    "reply": {"actions": np.arange(14, dtype=np.float32).reshape(2, 7), "server_timing": {"infer_ms": 12.5}},
    "scalars": {"f4": np.float32(0.5), "i8": np.int64(-3), "bool": np.bool_(True), "f8": np.float64(0.1)},
    "empty": {"none": None, "list": [1, "two", 3.0], "array": np.zeros((0, 7))},
    "numbers": {"small": 5, "byte": 200, "two": 60000, "four": 2**31, "eight": 2**40, "minus": -5, "less": -(2**33)},
    "texts": {"short": "é", "long": "x" * 300, "bytes": b"\x00\xff"},
    "big-endian": {"array": np.arange(3, dtype=">i4"), "text": np.array(["ab", "c"])},
}


def same(value: object, expected: object) -> None:
    if isinstance(expected, np.ndarray):
        assert isinstance(value, np.ndarray)
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert value.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert isinstance(value, dict)
        assert list(value) == list(expected)
        same([*value.values()], [*expected.values()])
    elif isinstance(expected, list):
        assert isinstance(value, list)
        for first, second in zip(value, expected, strict=True):
            same(first, second)
    else:
        assert value == expected


def frames(which: str, wire: str | None = None) -> dict[str, bytes]:
    cases = json.loads((CASES / f"{which}_frames.json").read_text())
    return {name: bytes.fromhex(frame) for name, frame in (cases[wire] if wire else cases).items()}


def message(kind: str, payload: dict, seq: int, timestamp: float) -> dict:
    return {"type": kind, "payload": payload, "seq": seq, "timestamp": timestamp}


OBSERVATION = {
    "images": {"agentview": np.arange(12, dtype=np.uint8).reshape(2, 2, 3)},
    "states": np.linspace(-1, 1, 8),
    "task_description": "put the bowl on the plate",
}
HARNESS = {
    "hello": message("hello", {"harness_version": "0.8.0", "protocol_version": 1}, 1, 12.5),
    "episode_start": message("episode_start", {"task": {"name": "lift", "task_id": 3}}, 2, 13.0),
    "observation": message("observation", OBSERVATION, 3, 13.5),
    "action": message("action", {"actions": np.linspace(-1, 1, 7, dtype=np.float32)}, 3, 14.0),
    "chunk": message("action", {"actions": np.arange(14, dtype=np.float64).reshape(2, 7)}, 4, 14.5),
    "scalars": message("action", {"f": np.float32(0.5), "i": np.int64(-3), "b": np.bool_(True)}, 5, 15.0),
    "error": message("error", {"error": "observation_failed: KeyError: 'states'"}, 6, 15.5),
}
IMAGE, STATE, TEXT = OBSERVATION["images"]["agentview"][None, None], np.float32([[[0.25]]]), "put the bowl on the plate"
FLAT = {"video.image": IMAGE, "state.x": STATE, "annotation.human.action.task_description": [TEXT]}
NESTED = {
    "video": {"image": IMAGE},
    "state": {"x": STATE},
    "language": {"annotation.human.action.task_description": [[TEXT]]},
}
MODALITIES = {
    "ping": {"endpoint": "ping"},
    "reset": {"endpoint": "reset", "data": {"options": None}, "api_token": "k3y"},
    "flat": {"endpoint": "get_action", "data": {"observation": FLAT, "options": None}},
    "nested": {"endpoint": "get_action", "data": {"observation": NESTED, "options": None}},
    "bare": {"endpoint": "get_action", "data": FLAT},
    "reply": [{"action.x": np.arange(16, dtype=np.float32).reshape(1, 16, 1)}, {}],
    "big-endian": {"array": np.arange(3, dtype=">i4"), "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
    "error": {"error": "Unknown endpoint: reset"},
}
WIRES: dict[str, Codec] = {"gr00t": GR00T, "gr00t main": GR00T_MAIN}
DESCRIBED = "modality_config"
EVERY = [
    *((OPENPI, MESSAGES[name], frame) for name, frame in frames("openpi").items()),
    *((VLA_EVAL, HARNESS[name], frame) for name, frame in frames("vla_eval").items()),
    *((WIRES[wire], MODALITIES[name], frames("gr00t", wire)[name]) for wire in WIRES for name in MODALITIES),
]
IDS = [*frames("openpi"), *frames("vla_eval"), *(f"{wire} {name}" for wire in WIRES for name in MODALITIES)]


@pytest.mark.parametrize(("codec", "message", "frame"), EVERY, ids=IDS)
def test_a_message_has_the_bytes_of_its_project_and_is_read_from_them(codec, message, frame):
    assert codec.pack(message).hex() == frame.hex()
    same(codec.unpack(frame), message)


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_s_modalities_tell_its_wire_its_keys_and_its_frames(wire):
    """Both are read by the codec of the tags, which asks before the wire is known."""
    config = GR00T.unpack(frames("gr00t", wire)[DESCRIBED])
    assert choose_codec(config) is WIRES[wire]
    assert parse_modalities(config) == {
        "video": Modality(("video.image",)),
        "action": Modality(("action.x", "action.gripper"), tuple(range(16))),
    }


@ALL
@given(array=arrays.arrays(arrays.scalar_dtypes().filter(lambda d: d.kind in "biuf"), arrays.array_shapes(min_side=0)))
def test_arrays_come_back_bit_for_bit_and_cannot_be_written_to(codec, array):
    restored = codec.unpack(codec.pack({"deep": [array]}))["deep"][0]
    same(restored, array)
    assert not restored.flags.writeable


@ALL
def test_an_array_that_is_not_a_contiguous_block_is_packed_as_its_values(codec):
    turned = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)[:, ::-1]
    assert codec.pack(turned) == codec.pack(np.ascontiguousarray(turned)) or codec is GR00T
    assert np.array_equal(codec.unpack(codec.pack(turned)), turned)


@ALL
@pytest.mark.parametrize(
    "array",
    [np.array([{}], dtype=object), np.zeros(2, dtype="V3"), np.zeros(2, dtype=[("a", "i4")]), np.zeros(2, complex)],
    ids=["objects", "void", "records", "complex"],
)
def test_objects_records_and_complex_numbers_are_not_sent(codec, array):
    with pytest.raises(PolicyError, match="cannot be encoded"):
        codec.pack({"a": array})


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def npy(array: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npy_of(descr: str) -> bytes:
    """An array file whose head describes its type so: it never reaches Python's parser."""
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(8)


EVIL_OPENPI = {
    "objects": {b"__ndarray__": True, b"data": pickle.dumps(Bomb()), b"dtype": "O", b"shape": [1]},
    "records": {b"__ndarray__": True, b"data": b"12345678", b"dtype": "i4,i4", b"shape": [1]},
    "too short": {b"__ndarray__": True, b"data": b"1", b"dtype": "<f8", b"shape": [4]},
    "too long": {b"__ndarray__": True, b"data": b"12345678", b"dtype": "|u1", b"shape": [4]},
    "negative": {b"__ndarray__": True, b"data": b"1234", b"dtype": "|u1", b"shape": [-2, -2]},
    "a guess": {b"__ndarray__": True, b"data": b"1234", b"dtype": "|u1", b"shape": [-1]},
    "truth as a side": {b"__ndarray__": True, b"data": b"1", b"dtype": "|u1", b"shape": [True]},
    "no dtype": {b"__ndarray__": True, b"data": b"1", b"shape": [1]},
    "no such dtype": {b"__ndarray__": True, b"data": b"1", b"dtype": "nonsense", b"shape": [1]},
    "nothing each": {b"__ndarray__": True, b"data": b"", b"dtype": "|S0", b"shape": [2**62]},
    "more than there is": {b"__ndarray__": True, b"data": b"", b"dtype": "f8", b"shape": [2**62] * 9},
    "sides without end": {b"__ndarray__": True, b"data": b"", b"dtype": "f8", b"shape": [2**63] * 90_000},
    "a dtype without end": {b"__ndarray__": True, b"data": b"", b"dtype": "f8," * 2**20, b"shape": [0]},
    "void": {b"__ndarray__": True, b"data": b"12345678", b"dtype": "V8", b"shape": [1]},
    "times": {b"__ndarray__": True, b"data": b"12345678", b"dtype": "m8", b"shape": [1]},
    "text as bytes": {b"__ndarray__": True, b"data": "1", b"dtype": "|u1", b"shape": [1]},
    "numbers as letters": {b"__ndarray__": True, b"data": 4 * b"\xff", b"dtype": ">U1", b"shape": []},
    "scalar objects": {b"__npgeneric__": True, b"data": 1, b"dtype": "O"},
}


@pytest.mark.parametrize("evil", EVIL_OPENPI)
def test_an_array_that_lies_is_refused(evil):
    for codec, message in ((OPENPI, EVIL_OPENPI[evil]), (VLA_EVAL, as_text(EVIL_OPENPI[evil]))):
        if codec is VLA_EVAL and evil == "scalar objects":
            continue  # it has no scalars of its own
        with pytest.raises(PolicyError, match=r"be read|integers or") as caught:
            codec.unpack(msgspec.msgpack.encode({"a": message}))
        assert len(str(caught.value)) < 1000


def as_text(message: dict[bytes, object]) -> dict[str, object]:
    return {key.decode(): value for key, value in message.items()}


EVIL_FILES = {
    "objects": npy(np.array([Bomb()], dtype=object), allow_pickle=True),
    "records": npy(np.zeros(2, dtype=[("a", "i4")])),
    "numbers as letters": npy(np.frombuffer(4 * b"\xff", "<U1")),
    "short": npy(np.arange(4.0))[:-1],
    "long": npy(np.arange(4.0)) + b"more",
    "version": b"\x93NUMPY\x09\x00",
    "zip": b"PK\x03\x04",
    "pickle": pickle.dumps(Bomb()),
    "empty": b"",
    "text": "text",
    "an open bracket": npy_of("'<f8'\n("),
    "brackets": npy_of("(((((('<f8'"),
    "an expression": npy_of("'<f8', 1 if"),
    "no text": b"\x93NUMPY\x01\x00\x02\x00\xff\n",
}


@pytest.mark.parametrize("content", EVIL_FILES.values(), ids=EVIL_FILES)
def test_an_array_file_that_lies_is_refused(content):
    with pytest.raises(PolicyError, match=r"be read|integers or"):
        GR00T.unpack(msgspec.msgpack.encode({"__ndarray_class__": True, "as_npy": content}))


@ALL
@given(noise=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error_of_ours(codec, noise):
    try:
        codec.unpack(noise)
    except PolicyError:
        return
