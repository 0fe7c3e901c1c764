"""What is made of a definition of a type: code in bounded time, for every definition."""

from __future__ import annotations

import pytest

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.containers import Topic
from safevla_bench.sources.logs.decoding import find_decoder
from sources.logs.ros_files import STORE, joints

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
