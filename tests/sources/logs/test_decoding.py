"""What is made of a definition of a type: code in bounded time, for every definition."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.containers import Topic
from safevla_bench.sources.logs.decoding import find_decoder
from sources.logs.ros_files import STORE, STORE1, joints

KIND = "p/msg/A"
EMPTY = "uint8 X=1\n"


def definition(**types: str) -> bytes:
    (first, *further) = types.items()
    return "".join([first[1], *(f"{'=' * 80}\nMSG: p/{name}\n{fields}" for name, fields in further)]).encode()


def doubling(levels: int) -> dict[str, str]:
    return {f"T{k}": f"T{k + 1} a\nT{k + 1} b\n" for k in range(levels)} | {f"T{levels}": EMPTY}


@pytest.mark.parametrize("encoding", ["cdr", "ros1"])
@pytest.mark.parametrize(
    "types",
    [
        {"A": "B[60000] b\n", "B": "C c\n", "C": EMPTY},
        {"A": "B[] b\n", "B": "C c\n", "C": EMPTY},
        {"A": "B[60000] b\n", "B": "uint8 structure_needs_at_least_one_member\n"},
        {"A": "B[250] b\n", "B": "C[250] c\n", "C": "uint8 x\n"},
        {"A": "".join(f"string[2000] x{k}\n" for k in range(50))},
        {"A": "T0 t\n", **doubling(60)},
        {"A": "A[] a\n"},
    ],
)
def test_a_definition_of_which_few_bytes_make_many_values_is_refused(types, encoding):
    with pytest.raises(RecordError, match="array of no"):
        find_decoder(Topic("/t", KIND, encoding, definition(**types)), None, None)


def test_constants_of_idl_are_read_in_linear_time_and_have_no_operators():
    def decoder(constant: str):
        text = f"module p {{ module msg {{ const long X = {constant}; struct A {{ double x[X]; }}; }}; }};"
        return find_decoder(Topic("/t", KIND, "cdr", text.encode(), "ros2idl"), None, None)

    assert len(decoder("(" * 50 + "2" + ")" * 50)(b"\0\1\0\0" + bytes(16)).x) == 2
    with pytest.raises(RecordError, match="definition of '/t'"):
        decoder("1 << 30000000")


def random_value(desc: Any, store: Any, rng: Random, sizes: Random) -> Any:
    """A value of a field; `sizes` draws what a layout depends on: texts and counts."""
    if desc[0] == 2:
        fields = {name: random_value(inner, store, rng, sizes) for name, inner in store.fielddefs[desc[1]][1]}
        return store.types[desc[1]](**fields)
    if desc[0] >= 3:
        inner, count = desc[1]
        count = sizes.randrange(4) if desc[0] == 4 else count
        values = [random_value(inner, store, rng, sizes) for _ in range(count)]
        is_numbers = inner[0] == 1 and inner[1][0] != "string"
        return np.array(values, dtype=DTYPES.get(inner[1][0], inner[1][0])) if is_numbers else values
    kind = desc[1][0]
    if kind == "string":
        return "".join(sizes.choices("abé/", k=sizes.randrange(6)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind.startswith("float"):
        return float(np.float32(rng.uniform(-9, 9)))
    return rng.randrange(1 << 7)


def plain(desc: Any, value: Any, store: Any) -> Any:
    """A value as dictionaries, lists and texts, without the constants of its types."""
    if desc[0] == 2:
        return {name: plain(inner, getattr(value, name), store) for name, inner in store.fielddefs[desc[1]][1]}
    if isinstance(value, np.ndarray):
        return [value.dtype.str, *value.tolist()]
    return [plain(desc[1][0], each, store) for each in value] if desc[0] >= 3 else repr(value)


DTYPES = {"byte": "uint8", "char": "uint8"}
PACKAGES = ("geometry_msgs", "sensor_msgs", "std_msgs", "tf2_msgs")
KINDS = sorted(kind for kind in {*STORE.fielddefs} | {*STORE1.fielddefs} if kind.startswith(PACKAGES))


@pytest.mark.parametrize("encoding", ["cdr", "cdr, big-endian", "ros1"])
def test_a_message_of_a_known_layout_is_decoded_as_by_rosbags(encoding):
    for kind in KINDS:
        store = STORE1 if encoding == "ros1" else STORE
        version = 1 if encoding == "ros1" else 2
        text = store.generate_msgdef(kind, ros_version=version)[0] if kind in store.fielddefs else ""
        if not text.strip():
            continue
        language = "ros1msg" if encoding == "ros1" else "ros2msg"
        decode = find_decoder(Topic("/t", kind, encoding[:4].strip(","), text.encode(), language), None, None)
        for k in range(8):  # pairs of one layout, which comes again
            message = random_value((2, kind), store, Random(k), Random(f"{kind} {k // 2 % 2}"))
            if encoding == "ros1":
                content = bytes(store.serialize_ros1(message, kind))
                expected = store.deserialize_ros1(content, kind)
            else:
                content = bytes(store.serialize_cdr(message, kind, little_endian=encoding == "cdr"))
                expected = store.deserialize_cdr(content, kind)
            assert plain((2, kind), decode(content), store) == plain((2, kind), expected, store), kind


def test_a_message_with_the_length_of_another_and_other_texts_or_counts_is_its_own():
    text, _ = STORE.generate_msgdef("sensor_msgs/msg/JointState", ros_version=2)
    decode = find_decoder(Topic("/t", "sensor_msgs/msg/JointState", "cdr", text.encode(), "ros2msg"), None, None)
    for names in (["j1", "j2"], ["j2", "j1"], ["j1", "j2"]):
        message = decode(bytes(STORE.serialize_cdr(joints(dict.fromkeys(names, 3.0)), "sensor_msgs/msg/JointState")))
        assert (message.name, message.effort.tolist()) == (names, [3.0, 3.0])
    content = bytearray(STORE.serialize_cdr(joints({"j1": 1.0, "j2": 2.0}), "sensor_msgs/msg/JointState"))
    content[content.index(b"j1") + 2] = 1  # no end of a text
    with pytest.raises(RecordError, match="terminator"):
        decode(bytes(content))
