"""Decoding of messages from bytes to objects whose attributes are the fields: CDR of ROS 2, ROS 1, JSON and Protobuf.

The file contains the definition of a type, from which code is generated (`rosbags`): names and sizes are checked first,
and its constants are dropped. A file without definitions is read with those of a ROS distribution.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.containers import Topic
from safevla_bench.text import load_json

Decode = Callable[[bytes], Any]
_MOST_ELEMENTS = 1 << 16  # maximum number of elements of a sequence or an array in a mapped message
_MAX_DEFINITION = 1 << 18
_MOST_VALUES = 1 << 11  # maximum number of values of a message for which code is generated; an array of numbers is one
_NO_FIELD = "structure_needs_at_least_one_member"  # a type that is one byte in CDR, and none in ROS 1
_MOST_LAYOUTS = 64
_FORMS = {"bool": "?", "float32": "f", "float64": "d", "int8": "b", "int16": "h", "int32": "i", "int64": "q"}
_FORMS |= {f"u{kind}": form.upper() for kind, form in _FORMS.items() if kind.startswith("int")}
_NAME = re.compile(r"[A-Za-z]\w*(/[A-Za-z]\w*)*", re.ASCII)
_NAN = re.compile(rb"[-+]?\bnan\b", re.IGNORECASE)
_IDL = "=" * 80 + "\n"


class JsonObject:
    """An object of JSON whose fields are attributes."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__ = fields


def find_decoder(channel: Topic, asked: str | None, written: str | None) -> Decode:
    """Return the function that decodes the messages of a channel, using the requested distribution of ROS, or the one
    that wrote the recording, if known. Raises `RecordError` for an unsupported encoding, a type whose definition is not
    known, or one that is refused. The function raises `RecordError` for a message that does not match its type.
    """
    try:
        decode = _make_decoder(channel, asked, written)
    except (ImportError, MemoryError, RecordError):
        raise
    except Exception as error:  # a parser of a definition may raise any exception
        raise _describe(f"the definition of {channel.topic!r} cannot be read", error) from None

    def decode_or_refuse(content: bytes) -> Any:
        try:
            return decode(content)
        except MemoryError:
            raise
        except Exception as error:  # code generated from a definition may raise any exception
            raise _describe(f"a message of {channel.topic!r} is not a {channel.kind}", error) from None

    return decode_or_refuse


def _make_decoder(channel: Topic, asked: str | None, written: str | None) -> Decode:
    if channel.encoding == "json":
        return _decode_json
    if channel.encoding in ("cdr", "ros1"):
        return _ros_decoder(channel, asked, written)
    if channel.encoding == "protobuf":
        from mcap.records import Schema
        from mcap_protobuf.decoder import DecoderFactory

        schema = Schema(id=1, name=channel.kind, encoding="protobuf", data=channel.definition)
        decode: Decode | None = DecoderFactory().decoder_for("protobuf", schema)
        assert decode is not None
        return decode
    problem = f"the messages of {channel.topic!r} are {channel.encoding!r}, which is not supported"
    raise RecordError(problem, remedy="Supported are CDR of ROS 2, ROS 1, JSON and Protobuf.")


def _describe(problem: str, error: Exception) -> RecordError:
    remedy = "The file is damaged, or its type definitions are wrong."
    return RecordError(f"{problem}: {' '.join(str(error).split())[:200]}", remedy=remedy)


def _decode_json(content: bytes) -> Any:
    try:
        return load_json(content, object_hook=JsonObject)
    except json.JSONDecodeError:  # C and C++ print `nan` and `-nan`
        return load_json(_NAN.sub(b"NaN", content), object_hook=JsonObject)


def _ros_decoder(channel: Topic, asked: str | None, written: str | None) -> Decode:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    from rosbags.typesys.store import Typestore

    text = channel.definition.decode()
    if len(text) > _MAX_DEFINITION:  # its parser needs a second per 100 KiB
        raise RecordError(f"the type of {channel.topic!r} is too large", remedy="Map a topic of poses or numbers.")
    if text.strip():
        if channel.language in ("ros2idl", "omgidl"):
            parts = [part.partition("\n")[2] for part in text.split(_IDL)[1:]] if text.startswith(_IDL) else [text]
            types = {name: kind for part in parts for name, kind in _types_from_idl(part).items()}
        else:
            types = get_types_from_msg(text, channel.kind)
        _check_names(types)
        _measure(channel.kind, types, {})
        store = Typestore(max_sequence_length=_MOST_ELEMENTS)
        store.register(
            {**get_typestore(Stores.EMPTY).fielddefs, **{name: ([], fields) for name, (_, fields) in types.items()}}
        )
    else:
        stores = {each.value.rpartition("_")[2]: each for each in Stores if each.value.startswith("ros2_")}
        if asked is not None and asked not in stores:
            remedy = f"Known distributions: {', '.join(stores)}."
            raise RecordError(f"{asked!r} is not a known distribution of ROS 2", remedy=remedy)
        chosen = [stores[name] for name in (asked, written) if name in stores][:1] or [*stores.values()]
        found = [store for store in map(get_typestore, chosen) if channel.kind in store.fielddefs]
        if len({store.hash_rihs01(channel.kind) for store in found}) != 1:
            problem = f"the type {channel.kind!r} of {channel.topic!r} is not defined in the file"
            remedy = (
                'ROS distributions define it differently. Write ros_distro = "humble", say, into the mapping.'
                if found
                else "Record it again with a rosbag2 that stores definitions (Iron and later), or to MCAP."
            )
            raise RecordError(problem, remedy=remedy)
        store = found[0]
        store.max_sequence_length = _MOST_ELEMENTS
    decode = store.deserialize_ros1 if channel.encoding == "ros1" else store.deserialize_cdr
    deserialize = partial(decode, typename=channel.kind)
    return _reuse_layouts(deserialize, channel.kind, store.fielddefs, channel.encoding == "cdr")


def _reuse_layouts(decode: Decode, kind: str, types: Mapping[str, Any], is_cdr: bool) -> Decode:
    """Return a decoder that overwrites earlier messages of the same texts and counts; others use `decode`."""
    readers: dict[int, Decode] = {}
    tries = iter(range(_MOST_LAYOUTS))

    def decode_message(content: bytes) -> Any:
        reader = readers.get(len(content))
        message = reader(content) if reader is not None else None
        if message is None:
            message = decode(content)
            is_known = len(content) <= _MOST_ELEMENTS and (not is_cdr or content[1] == 1)
            if is_known and next(tries, None) is not None:
                with suppress(LookupError):  # a type that only `rosbags` can read
                    readers[len(content)] = _make_reader(message, content, kind, types, is_cdr)
        return message

    return decode_message


def _make_reader(message: Any, content: bytes, kind: str, types: Mapping[str, Any], is_cdr: bool) -> Decode:
    base = 4 if is_cdr else 0  # the encapsulation, of which the first two bytes matter
    fixed, numbers, places, arrays = [(0, f"{base // 2}s")], list[tuple[int, str]](), [], []

    def align(at: int, size: int) -> int:
        return at + (base - at) % size if is_cdr else at

    def walk(desc: Any, fields: Any, name: Any, at: int) -> int:  # the field's beginning, before padding; its end
        is_one, inner = desc[0] == 1, desc[1][0]
        if desc[0] == 2:
            for field, its in types[desc[1]][1]:
                if is_cdr or field != _NO_FIELD:
                    at = walk(its, fields[name].__dict__, field, at)
        elif is_one and inner != "string":
            at = align(at, struct.calcsize(_FORMS[inner]))
            numbers.append((at, _FORMS[inner]))
            places.append((fields, name))
            at += struct.calcsize(_FORMS[inner])
        elif is_one or desc[0] == 4:  # a text or a count
            at = align(at, 4)
            size = 4 + (int.from_bytes(content[at : at + 4], "little") if is_one else 0)
            fixed.append((at, f"{size}s"))
            at += size
        if desc[0] >= 3 and (inner[0] == 2 or inner[1][0] == "string"):
            for k in range(len(fields[name])):
                at = walk(inner, fields[name], k, at)
        elif desc[0] >= 3 and len(fields[name]):
            at = align(at, struct.calcsize(_FORMS[inner[1][0]]))
            arrays.append((fields, name, fields[name].dtype, len(fields[name]), at))
            at += fields[name].nbytes
        return at

    def compile_parts(parts: list[tuple[int, str]]) -> struct.Struct:
        ends = [0, *(at + struct.calcsize(f"<{form}") for at, form in parts)]
        return struct.Struct("<" + "".join(f"{at - end}x{form}" for end, (at, form) in zip(ends, parts, strict=False)))

    walk((2, kind), {"": message}, "", base)
    read_fixed, read_numbers = (compile_parts(parts).unpack_from for parts in (fixed, numbers))
    texts = read_fixed(content)

    def read(content: bytes) -> Any:
        if read_fixed(content) != texts:
            return None
        for (fields, name), number in zip(places, read_numbers(content), strict=True):
            fields[name] = number
        for fields, name, dtype, count, at in arrays:
            fields[name] = np.frombuffer(content, dtype, count, at)
        return message

    return read


def _types_from_idl(text: str) -> Mapping[str, Any]:
    """Parse only constants without operators: their grammar needs exponential time, and a few can make huge numbers."""
    from rosbags.typesys.base import make_typesdict
    from rosbags.typesys.idl import IDLParser

    parser = IDLParser(text)
    parser.const_expr = parser.unary_expr
    types: Mapping[str, Any] = make_typesdict(parser.specification())
    return types


def _check_names(types: Mapping[str, Any]) -> None:
    for name, (_, fields) in types.items():
        inner = [desc[1][0] if desc[0] >= 3 else desc for _, desc in fields]
        names = [name, *(field for field, _ in fields), *(desc[1] for desc in inner if desc[0] == 2)]
        if wrong := next((each for each in names if not _NAME.fullmatch(each)), None):
            raise RecordError(f"the definition of {name!r} is named {wrong!r}", remedy="The file is damaged.")


def _measure(kind: str, types: Mapping[str, Any], known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values in a message of a type, each of which needs code, and its minimum size in bytes.
    Raises `RecordError` if few bytes, of a message or of a definition, produce very many values. Types without
    definition are those of time. `known` holds the types measured so far; one that is being measured has no size.
    """
    if kind in known or kind not in types:
        return known.get(kind, (2, 8))
    known[kind] = values, size = 1, 0
    for field, desc in types[kind][1]:
        inner = desc[1][0] if desc[0] >= 3 else desc
        length = desc[1][1] if desc[0] == 3 else 1
        each, least = _measure(inner[1], types, known) if inner[0] == 2 else (1, int(field != _NO_FIELD))
        values += each if inner[0] == 1 and inner[1][0] != "string" else each * length
        size += 4 if desc[0] == 4 else least * length
        if values > _MOST_VALUES or not 0 < length <= _MOST_ELEMENTS or (desc[0] >= 3 and not least):
            problem = f"{kind}.{field} is an array of no length, of elements without fields, or of too many"
            raise RecordError(problem, remedy="Map a topic of poses or numbers.")
    known[kind] = values, size
    return values, size
