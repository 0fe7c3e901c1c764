"""What is made of a definition of a type: code in bounded time, whatever the definition says."""

from __future__ import annotations

import pytest

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.containers import Channel
from safevla_bench.sources.logs.decoding import find_decoder

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
    with pytest.raises(RecordError, match="array of no length"):
        find_decoder(Channel("/t", KIND, encoding, definition(**types)), None, None)


def test_constants_of_idl_are_read_in_linear_time_and_have_no_operators():
    def decoder(constant: str):
        text = f"module p {{ module msg {{ const long X = {constant}; struct A {{ double x[X]; }}; }}; }};"
        return find_decoder(Channel("/t", KIND, "cdr", text.encode(), "ros2idl"), None, None)

    assert len(decoder("(" * 50 + "2" + ")" * 50)(b"\0\1\0\0" + bytes(16)).x) == 2
    with pytest.raises(RecordError, match="the definition of '/t' cannot be read: Could not parse"):
        decoder("1 << 30000000")
