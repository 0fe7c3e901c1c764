"""Decoding of messages (CDR of ROS 2, ROS 1, JSON and Protobuf) to objects whose attributes are the fields.

The library `rosbags` generates code from a file's type definitions. Before that, this module checks names and sizes in
the definitions, and drops constants. If the file has no definitions, the definitions of a ROS distribution are used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from safevla_bench.errors import RecordError
from safevla_bench.sources.logs.containers import Topic
from safevla_bench.text import load_json

Decode = Callable[[bytes], Any]
_MOST_ELEMENTS = 1 << 16  # maximum number of elements of a sequence or an array in a mapped message
_MAX_DEFINITION_CHARS = 1 << 18
# Maximum number of values in a message, since code is generated for each value. An array of numbers counts as one.
_MOST_VALUES = 1 << 11
# The only field of an empty type; the field takes 1 byte in CDR and no byte in ROS 1.
_NO_FIELD = "structure_needs_at_least_one_member"
_VALID_NAME = re.compile(r"[A-Za-z]\w*(/[A-Za-z]\w*)*", re.ASCII)
_NAN = re.compile(rb"[-+]?\bnan\b", re.IGNORECASE)
_IDL_SEPARATOR = "=" * 80 + "\n"


class JsonObject:
    """A JSON object whose fields are attributes."""

    def __init__(self, fields: dict[str, Any]) -> None:
        # `fields` become the object's attributes, so that JSON is read like messages of ROS.
        self.__dict__ = fields


def find_decoder(channel: Topic, asked: str | None, written: str | None) -> Decode:
    """Return the function that decodes a channel's messages. `asked` is the ROS distribution in the mapping, and
    `written` the distribution in the recording; None = unknown. Raises `RecordError` for an unsupported encoding, or an
    undefined or refused type. The returned function raises `RecordError` for a message that does not match its type.
    """
    try:
        # Convert errors of libraries to `RecordError`, except for a missing library and exhausted memory.
        decode = _make_decoder(channel, asked, written)
    except (ImportError, MemoryError, RecordError):
        raise
    except Exception as error:  # the parsers of type definitions may raise any exception
        raise _decoding_error(f"the definition of {channel.topic!r} cannot be read", error) from None

    def decode_or_refuse(content: bytes) -> Any:
        try:
            # Convert errors that the decoder raises for a bad message to `RecordError`.
            return decode(content)
        except MemoryError:
            raise
        except Exception as error:  # code generated from a type definition may raise any exception
            problem = f"a message of {channel.topic!r} cannot be decoded as {channel.kind}"
            raise _decoding_error(problem, error) from None

    return decode_or_refuse


def _make_decoder(channel: Topic, asked_distro: str | None, recorded_distro: str | None) -> Decode:
    # Returns the library's decoder for the channel's encoding. The decoder may raise errors of the library.
    # `asked_distro` is the ROS distribution that the mapping names, `recorded_distro` the recording's; None = unknown.
    if channel.encoding == "json":
        return _decode_json
    if channel.encoding in ("cdr", "ros1"):
        return _make_ros_decoder(channel, asked_distro, recorded_distro)
    if channel.encoding == "protobuf":
        from mcap.records import Schema
        from mcap_protobuf.decoder import DecoderFactory

        schema = Schema(id=1, name=channel.kind, encoding="protobuf", data=channel.definition)
        decode: Decode | None = DecoderFactory().decoder_for("protobuf", schema)
        assert decode is not None
        return decode
    problem = f"the messages of {channel.topic!r} have the unsupported encoding {channel.encoding!r}"
    raise RecordError(problem, remedy="Supported are CDR of ROS 2, ROS 1, JSON and Protobuf.")


def _decoding_error(problem: str, error: Exception) -> RecordError:
    # Returns an error with the first 200 characters of the cause's text, on one line.
    remedy = "The file is damaged, or its type definitions are wrong."
    return RecordError(f"{problem}: {' '.join(str(error).split())[:200]}", remedy=remedy)


def _decode_json(content: bytes) -> Any:
    # Returns the message's value; objects become `JsonObject`.
    try:
        return load_json(content, object_hook=JsonObject)
    except json.JSONDecodeError:  # C and C++ write NaN as `nan` or `-nan`
        return load_json(_NAN.sub(b"NaN", content), object_hook=JsonObject)


def _make_ros_decoder(channel: Topic, asked_distro: str | None, recorded_distro: str | None) -> Decode:
    # Returns the decoder for a type that is defined in the file or, without a definition, in a distribution of ROS 2.
    # The distributions are names such as `humble`; None = unknown.
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    from rosbags.typesys.store import Typestore

    text = channel.definition.decode()
    if len(text) > _MAX_DEFINITION_CHARS:  # the parser takes about 1 s per 100 KiB
        remedy = "In the mapping, choose a topic of poses or numbers."
        raise RecordError(f"the type of {channel.topic!r} is too large", remedy=remedy)
    if text.strip():
        if channel.language in ("ros2idl", "omgidl"):
            idl_texts = [text]
            if text.startswith(_IDL_SEPARATOR):  # after each separator line, a line names a type
                idl_texts = [part.partition("\n")[2] for part in text.split(_IDL_SEPARATOR)[1:]]
            types = {name: kind for idl_text in idl_texts for name, kind in _parse_idl_types(idl_text).items()}
        else:
            types = get_types_from_msg(text, channel.kind)
        # Check the definitions first, since the library generates Python code from them.
        _check_names(types)
        _measure_type(channel.kind, types, {})
        store = Typestore(max_sequence_length=_MOST_ELEMENTS)
        # Drop constants: they are not needed, and the library would write their values into Python code.
        without_constants: Any = {name: ([], fields) for name, (_, fields) in types.items()}
        # The empty store has the built-in types, such as `Time`.
        store.register({**get_typestore(Stores.EMPTY).fielddefs, **without_constants})
    else:
        # Name of a distribution, such as "humble" -> the identifier of the distribution's type store.
        by_distro = {store.value.rpartition("_")[2]: store for store in Stores if store.value.startswith("ros2_")}
        if asked_distro is not None and asked_distro not in by_distro:
            remedy = f"Known distributions: {', '.join(by_distro)}."
            raise RecordError(f"{asked_distro!r} is not a known distribution of ROS 2", remedy=remedy)
        # Use the ROS distribution that the mapping names. Without one, use the distribution that the recording names.
        # If neither names a distribution, try all of them.
        named_stores = [by_distro[name] for name in (asked_distro, recorded_distro) if name in by_distro]
        candidates = named_stores[:1] or list(by_distro.values())
        defining_stores = [store for store in map(get_typestore, candidates) if channel.kind in store.fielddefs]
        # The hash identifies a definition. All stores that define the type must agree.
        if len({store.hash_rihs01(channel.kind) for store in defining_stores}) != 1:
            problem = f"the type {channel.kind!r} of {channel.topic!r} is not defined in the file"
            remedy = (
                'ROS distributions define this type differently. In the mapping, name one, as in ros_distro = "humble".'
                if defining_stores
                else "Record again to MCAP, or with rosbag2 of ROS 2 Iron or later, which stores type definitions."
            )
            raise RecordError(problem, remedy=remedy)
        store = defining_stores[0]
        store.max_sequence_length = _MOST_ELEMENTS
    decode = store.deserialize_ros1 if channel.encoding == "ros1" else store.deserialize_cdr
    return partial(decode, typename=channel.kind)


def _parse_idl_types(text: str) -> Mapping[str, Any]:
    # Parse the types in an IDL text. Operators in constants are refused: parsing them takes exponential time.
    from rosbags.typesys.base import make_typesdict
    from rosbags.typesys.idl import IDLParser

    parser = IDLParser(text)
    parser.const_expr = parser.unary_expr
    types: Mapping[str, Any] = make_typesdict(parser.specification())
    return types


def _check_names(types: Mapping[str, Any]) -> None:
    # Raises `RecordError` if the name of a type or of a field could break out of the code that is generated from it.
    # `types` maps the name of a type to (constants, fields); a field is (name, description).
    for name, (_, fields) in types.items():
        # A description is (1, basic type), (2, name of a type), (3, (elements, length)) or (4, (elements, length)).
        # In a description, 3 is an array and 4 is a sequence. `elements` is again a pair that begins with 1 or 2.
        elements = [desc[1][0] if desc[0] >= 3 else desc for _, desc in fields]
        names = [name, *(field for field, _ in fields), *(desc[1] for desc in elements if desc[0] == 2)]
        for used in names:
            if not _VALID_NAME.fullmatch(used):
                problem = f"the definition of {name!r} has the invalid name {used!r}"
                raise RecordError(problem, remedy="The file is damaged.")


def _measure_type(kind: str, types: Mapping[str, Any], measured: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values in a message of type `kind`, and the minimum size of the message [bytes]. Raises
    `RecordError` if a short message or definition could produce very many values. A type without a definition counts as
    a time stamp (2 values, 8 bytes). A type that contains itself counts as empty. `measured` caches results.
    """
    # `types` maps the name of a type to (constants, fields); a field is (name, description) as in rosbags.
    if kind in measured or kind not in types:
        return measured.get(kind, (2, 8))
    value_count, min_bytes = 1, 0
    measured[kind] = (1, 0)  # a type that contains itself counts as empty
    for field, desc in types[kind][1]:
        # `desc[0]` is 1 for a basic type, 2 a named type, 3 an array, 4 a sequence. An array of numbers is one value.
        element = desc[1][0] if desc[0] >= 3 else desc
        length = desc[1][1] if desc[0] == 3 else 1
        element_values, element_bytes = 1, int(field != _NO_FIELD)  # the dummy field of an empty type has 0 bytes
        if element[0] == 2:
            element_values, element_bytes = _measure_type(element[1], types, measured)
        value_count += element_values if element[0] == 1 and element[1][0] != "string" else element_values * length
        min_bytes += 4 if desc[0] == 4 else element_bytes * length  # an empty sequence has only its length, in 4 bytes
        # Refuse elements of 0 bytes, since a short message could have any number of them.
        if value_count > _MOST_VALUES or not 0 < length <= _MOST_ELEMENTS or (desc[0] >= 3 and not element_bytes):
            problem = f"{kind}.{field} is an array of length 0, an array of empty elements, or has too many values"
            raise RecordError(problem, remedy="In the mapping, choose a topic of poses or numbers.")
    measured[kind] = value_count, min_bytes
    return value_count, min_bytes
