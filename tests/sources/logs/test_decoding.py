"""What is made of a definition of a type: code in bounded time, for every definition."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.containers import Topic
from safevla_bench.sources.logs.decoding import find_decoder
from sources.logs.ros_files import STORE, T, header, joints

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
        {"A": "B[2] b\n", "B": EMPTY},
        {"A": "B[60000] b\n", "B": "uint8 structure_needs_at_least_one_member\n"},
        {"A": "B[250] b\n", "B": "C[250] c\n", "C": "uint8 x\n"},
        {"A": "".join(f"string[2000] x{k}\n" for k in range(50))},
        {"A": "T0 t\n", **doubling(60)},
        {"A": "A[] a\n"},
    ],
)
def test_a_definition_of_which_few_bytes_make_many_values_is_refused(types, encoding):
    with pytest.raises(RecordError, match="array of length 0"):
        find_decoder(Topic("/t", KIND, encoding, definition(**types)), None, None)


def test_constants_of_idl_are_read_in_linear_time_and_have_no_operators():
    def decoder(constant: str):
        text = f"module p {{ module msg {{ const long X = {constant}; struct A {{ double x[X]; }}; }}; }};"
        return find_decoder(Topic("/t", KIND, "cdr", text.encode(), "ros2idl"), None, None)

    assert len(decoder("(" * 50 + "2" + ")" * 50)(b"\0\1\0\0" + bytes(16)).x) == 2
    with pytest.raises(RecordError, match="definition of '/t'"):
        decoder("1 << 30000000")


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


@pytest.mark.parametrize(
    ("encoding", "text", "language", "word"),
    [
        ("cbor", "float64 x\n", "ros2msg", "unsupported encoding 'cbor'"),
        ("cdr", "float64 x\n" + "# remark\n" * 30_000, "ros2msg", "too large"),
    ],
)
def test_another_encoding_and_a_very_long_definition_are_refused(encoding, text, language, word):
    with pytest.raises(RecordError, match=word):
        find_decoder(Topic("/t", KIND, encoding, text.encode(), language), None, None)


def test_a_definition_with_a_name_that_is_none_of_ros_is_refused():
    with pytest.raises(RecordError, match="invalid name 'p/msg/1A'"):
        find_decoder(Topic("/t", "p/msg/1A", "cdr", b"float64 x\n", "ros2msg"), None, None)


def test_definitions_of_idl_with_a_heading_each_are_read():
    parts = [
        ("A", "module p { module msg { struct A { p::msg::B b; double y; }; }; };"),
        ("B", "module p { module msg { struct B { double x; }; }; };"),
    ]
    text = "".join(f"{'=' * 80}\nIDL: p/msg/{name}\n{idl}\n" for name, idl in parts)
    decode = find_decoder(Topic("/t", KIND, "cdr", text.encode(), "ros2idl"), None, None)
    message = decode(b"\0\1\0\0" + np.array([2.0, 3.0]).tobytes())
    assert (message.b.x, message.y) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("asked", "written"),
    [(None, None), ("humble", "melodic"), (None, "humble"), (None, "melodic"), ("jazzy", "humble")],
)
def test_a_type_that_is_not_defined_is_that_of_the_distribution_asked_for_or_else_of_the_recordings(asked, written):
    kind = "sensor_msgs/msg/JointState"
    decode = find_decoder(Topic("/t", kind, "cdr"), asked, written)
    assert decode(bytes(STORE.serialize_cdr(joints({"j": 3.0}), kind))).effort.tolist() == [3.0]


def test_a_type_in_which_distributions_differ_is_asked_for_and_read_as_that_of_the_one_that_is_named():
    kind = "sensor_msgs/msg/Range"  # which has a variance from Iron on
    differing = Topic("/t", kind, "cdr")
    content = bytes(STORE.serialize_cdr(T[kind](header(), 0, 0.5, 0.25, 4.0, 2.0), kind))
    for names in (("humble", None), (None, "humble"), ("humble", "jazzy")):
        message = find_decoder(differing, *names)(content)
        assert (message.range, hasattr(message, "variance")) == (2.0, False)
    words = {(None, None): "ros_distro", (None, "melodic"): "ros_distro", ("melodic", "humble"): "humble"}
    for names, word in words.items():
        with pytest.raises(RecordError) as caught:
            find_decoder(differing, *names)
        assert word in caught.value.remedy
    with pytest.raises(RecordError) as caught:
        find_decoder(differing._replace(kind="own/msg/Own"), None, None)
    assert "Record again" in caught.value.remedy


@pytest.mark.parametrize("is_defined", [True, False])
def test_a_sequence_of_very_many_elements_is_refused(is_defined):
    kind, message = "sensor_msgs/msg/JointState", joints({"j": 3.0})
    definition = STORE.generate_msgdef(kind, ros_version=2)[0].encode() if is_defined else b""
    decode = find_decoder(Topic("/t", kind, "cdr", definition, "ros2msg"), None, None)
    for count in (1 << 16, (1 << 16) + 1):
        message.effort = np.zeros(count)
        content = bytes(STORE.serialize_cdr(message, kind))
        if count == 1 << 16:
            assert len(decode(content).effort) == count
    with pytest.raises(RecordError):
        decode(content)
