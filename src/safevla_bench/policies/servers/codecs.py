"""Encode and decode messages with arrays in the formats of policy servers: MessagePack or JSON, never pickle.

Each kind of server encodes an array as a different map:

- openpi: {b"__ndarray__": True, b"data": raw bytes, b"dtype", b"shape"}; NumPy scalars have b"__npgeneric__".
- vla-eval: {"__ndarray__": True, "data": raw bytes, "dtype", "shape"}; NumPy scalars are plain numbers. Images may be
  {"__image__": True, "format": "png", "data", "shape"} (e1ee9ad src/vla_eval/protocol/image_codec.py).
- gr00t: {"__ndarray_class__": True, "as_npy": a file in NumPy's own format}. Since 3df8b38 (2026-05-07), as
  msgpack_numpy 0.4.8 does: {b"nd": True, b"type": dtype, b"kind": b"", b"shape", b"data": raw bytes}.
- openvla: JSON, as json_numpy 2.1.1 writes it: {"__numpy__": raw bytes in base 64, "dtype", "shape"}.
- xvla: the same JSON map as for openvla, stored as a text.

Incoming messages are not trusted. Decoding refuses arrays of objects or records, and arrays whose data does not fit
their shape. It also refuses messages that need too much memory or have more than `MAX_VALUES` values.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from safevla_bench.archive.npz import decode_array
from safevla_bench.errors import DamageError, InvalidActionError, PolicyError, ReplyError
from safevla_bench.files import decode_json
from safevla_bench.memory import limit_memory

MAX_VALUES = 100_000  # limit on the number of values in a message; an array counts as one value
_MAX_AXES, _MAX_DTYPE_CHARS = 32, 64  # limits on an array's number of axes and on the length of its dtype's name
_DTYPE_KINDS = "biufSU"  # Booleans, integers, floats, bytes and text; objects, records and complex numbers are refused
# Matches dtypes such as `<f4`, `float32` or `<M8[s]`. NumPy would parse other texts as records.
_PLAIN_DTYPE = re.compile(r"[<>|=]?[A-Za-z_?]{1,12}\d{0,9}(\[\d{0,4}[A-Za-z]{1,7}\])?")
_REMEDY = "Check that the server is of the chosen kind, and that this client supports its version."

Array = NDArray[Any]
Wire = Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """The codec of one kind of server. `encode_array` converts an array to a map, and `decode_map` converts such a map
    back to an array. If `is_json` is true, messages are JSON instead of MessagePack.
    """

    encode_array: Callable[[Array | np.generic], object]
    decode_map: Callable[[Wire], object]
    is_json: bool = False

    def pack(self, message: object) -> bytes:
        """Return the message as bytes; raise `PolicyError` for a value that the format cannot represent."""
        # The JSON and MessagePack libraries call `_encode_extension` for values such as arrays.
        try:
            if self.is_json:  # JSON with spaces, like the messages of the projects' clients
                return json.dumps(message, default=self._encode_extension, allow_nan=False).encode()
            return msgspec.msgpack.encode(message, enc_hook=self._encode_extension)
        except (TypeError, NotImplementedError, OverflowError, ValueError) as error:
            problem = f"a message cannot be encoded: {error}"
            raise PolicyError(problem, remedy="Send numbers, text and arrays.") from None

    def unpack(self, message: bytes) -> object:
        """Return the decoded message, with read-only arrays. Raises `ReplyError` if it is invalid or too large."""
        try:
            with limit_memory("the message"):
                if self.is_json:
                    value = decode_json(message, object)
                else:
                    # Many empty maps need little space in a message, but much memory.
                    _require_few_values(message)
                    value = msgspec.msgpack.decode(message)
            return self._restore_arrays(value, Counter(values=MAX_VALUES))  # all recursive calls share the count
        except DamageError as error:
            raise ReplyError(f"the message cannot be read: {error.problem}", remedy=_REMEDY) from None
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, LookupError, OverflowError) as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ReplyError(f"the message cannot be read: {reason}", remedy=_REMEDY) from None

    def _encode_extension(self, value: object) -> object:
        # Return a replacement for a value that the library cannot encode, such as an array or a NumPy scalar.
        if isinstance(value, np.float64):
            return float(value)  # as MessagePack libraries do, because np.float64 is a subclass of float
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind not in _DTYPE_KINDS:
                raise TypeError(f"arrays of the dtype {value.dtype} cannot be sent")
            return self.encode_array(value)
        raise NotImplementedError(f"{type(value).__name__} is not a number, text or array")

    def _restore_arrays(self, value: object, budget: Counter[str]) -> object:
        # Return `value` with arrays instead of the maps that represent arrays, at any depth.
        # All calls share `budget`: `budget["values"]` is the number of values that may still follow in the message.
        # `decode_map` returns the array that a map represents, or a map that represents no array.
        if not isinstance(value, list | dict):
            return value
        budget["values"] -= len(value)
        if budget["values"] < 0:
            raise _too_many_values_error()
        if isinstance(value, list):
            return [self._restore_arrays(element, budget) for element in value]
        decoded = self.decode_map(value)
        if decoded is not value:  # the map represented an array
            return decoded
        return {key: self._restore_arrays(entry, budget) for key, entry in value.items()}


def _too_many_values_error() -> ReplyError:
    # Return the error for a message with too many values, which would take too long to decode.
    return ReplyError(f"the message cannot be read: more than {MAX_VALUES:,} values", remedy=_REMEDY)


# Maps the first byte of a MessagePack value to the size of its length field, or to the fixed size of its content.
_LENGTH_BYTES = {first + k: 1 << k for first in (0xC4, 0xC7, 0xD9) for k in range(3)}
_LENGTH_BYTES |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_FIXED_BYTES = {0xCA: 4, 0xCB: 8, **{first + k: 1 << k for first in (0xCC, 0xD0) for k in range(4)}}
_FIXED_BYTES |= {0xD4 + k: 1 + (1 << k) for k in range(5)}


def _require_few_values(message: bytes) -> None:
    """Raise `ReplyError`, before decoding, if a MessagePack message has over 10 * `MAX_VALUES` values: an empty map
    takes 1 byte in a message, but 72 bytes in memory. `_restore_arrays` applies the exact limit after decoding.
    """
    # Step from value to value by the values' first bytes, without decoding. Maps and arrays announce further values.
    # `values_left` counts values that were announced but not yet read; the message itself is the first value.
    position, values_left, max_values = 0, 1, 10 * MAX_VALUES
    for values_read in range(max_values + 1):
        if not values_left or position >= len(message):  # the end; decoding refuses a truncated message
            return
        if values_read + values_left > max_values:
            raise _too_many_values_error()
        first_byte = message[position]
        # The size of the length field that follows; 0 = the first byte contains the length, or the length is fixed.
        length_bytes = _LENGTH_BYTES.get(first_byte, 0)
        length = int.from_bytes(message[position + 1 : position + 1 + length_bytes], "big")
        position, values_left = position + 1 + length_bytes, values_left - 1
        if 0x80 <= first_byte < 0x90:  # a short map; each entry consists of two values
            values_left += 2 * (first_byte & 15)
        elif 0x90 <= first_byte < 0xA0:  # a short array
            values_left += first_byte & 15
        elif 0xDC <= first_byte <= 0xDF:  # an array, or from 0xDE on a map, with a length field
            values_left += length if first_byte < 0xDE else 2 * length
        elif 0xA0 <= first_byte < 0xC0:  # a short text; skip its content
            position += first_byte & 31
        else:  # a number, text, bytes or extension; an extension needs one more byte for its type
            is_extension = 0xC7 <= first_byte <= 0xC9
            position += _FIXED_BYTES.get(first_byte, length + is_extension)


def _parse_dtype(text: object) -> np.dtype[Any]:
    # Return the dtype with this name in an untrusted message.
    # Raise `InvalidActionError` for a dtype that is not allowed, and `TypeError` or `ValueError` for an invalid one.
    if isinstance(text, list):  # a record's list of fields, as in msgpack_numpy
        raise InvalidActionError("an array of records instead of integers or floats", remedy=_REMEDY)
    if not isinstance(text, str) or len(text) > _MAX_DTYPE_CHARS or not _PLAIN_DTYPE.fullmatch(text):
        raise TypeError("the dtype is not a plain name")
    dtype = np.dtype(text)
    if dtype.kind not in _DTYPE_KINDS:
        raise InvalidActionError(f"an array of dtype {dtype} instead of integers or floats", remedy=_REMEDY)
    if not dtype.itemsize:  # items of 0 bytes, such as `<U0`
        raise ValueError(f"arrays of the dtype {text!r} cannot be read")
    return dtype


def _build_array(data: object, dtype_name: object, shape: object) -> Array:
    # Return the array with these bytes, dtype and shape, which come from an untrusted message.
    # Raise the errors of `_parse_dtype`, and `TypeError` or `ValueError` if the three do not fit together.
    dtype = _parse_dtype(dtype_name)
    if not isinstance(data, bytes) or not isinstance(shape, list):
        raise TypeError("an array without bytes or shape")
    # `type(length)`, because a Boolean is also an instance of int.
    if len(shape) > _MAX_AXES or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"an array cannot have the shape {shape[: _MAX_AXES + 1]}")
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes do not fit an array of {dtype} with the shape {shape}")
    return _require_unicode(np.ndarray(shape, dtype, data))


def _require_unicode(array: Array) -> Array:
    """Return `array`. Raise `ValueError` if its text has code points beyond Unicode, which NumPy cannot print."""
    if array.dtype.kind == "U":  # each character is stored as an integer of 4 bytes
        # View the characters as integers in the array's byte order.
        code_points = array.reshape(-1).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if code_points.max(initial=0) > sys.maxunicode:
            raise ValueError("an array of text with code points beyond Unicode")
    return array


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The keys of a map `{mark: True, ...}` that represents an array, in the map's order."""

    mark: str | bytes
    data: str | bytes = "data"
    dtype: str | bytes = "dtype"
    shape: str | bytes = "shape"
    scalar: str | bytes | None = None  # key that marks a scalar, which has no shape. None = scalars are plain numbers

    def encode(self, value: Array | np.generic) -> object:
        # Return the map that represents an array or a NumPy scalar; if `scalar` is None, a scalar's plain value.
        # The fields of `self` are the keys of the map.
        if isinstance(value, np.generic):
            if self.scalar is None:
                return value.item()
            return {self.scalar: True, self.data: value.item(), self.dtype: value.dtype.str}
        return {self.mark: True, self.data: value.tobytes(), self.dtype: value.dtype.str, self.shape: value.shape}

    def decode(self, wire: Wire) -> object:
        """Return the array or scalar that a map with a mark represents. Return maps without a mark unchanged."""
        # `wire` is a map from a message. The fields of `self` are keys of maps that represent arrays.
        # The map of an array contains the key `mark`, and the map of a scalar the key `scalar`.
        if self.mark in wire:
            return _build_array(wire[self.data], wire[self.dtype], wire[self.shape])
        if self.scalar in wire:  # if `scalar` is None, no map contains this key
            return _parse_dtype(wire[self.dtype]).type(wire[self.data])
        return wire


_OPENPI = ArrayForm(b"__ndarray__", b"data", b"dtype", b"shape", b"__npgeneric__")
_VLA_EVAL = ArrayForm("__ndarray__")


def _encode_vla_eval_png(value: Array | np.generic) -> object:
    # Encode a value for vla-eval's servers: an image, [H, W, 3] uint8, becomes a map that holds a PNG file.
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3:  # not an image
        return _VLA_EVAL.encode(value)
    buffer = io.BytesIO()
    PillowImage.fromarray(value).save(buffer, format="PNG")
    return {"__image__": True, "format": "png", "data": buffer.getvalue(), "shape": value.shape}


def _encode_gr00t(value: Array | np.generic) -> object:
    # Return the map that represents an array for GR00T's servers; the map holds a file in NumPy's format.
    if isinstance(value, np.generic):
        return value.item()
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": buffer.getvalue()}


def _encode_msgpack_numpy(value: Array | np.generic) -> object:
    # Return the map that represents an array or scalar, as the library msgpack_numpy does.
    data = {b"data": value.tobytes()}
    if isinstance(value, np.generic):
        return {b"nd": False, b"type": value.dtype.str, **data}
    return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape, **data}


def _decode_gr00t(wire: Wire) -> object:
    """Decode a map in either of GR00T's two forms to an array or a NumPy scalar. Return other maps unchanged."""
    if b"nd" in wire:  # b"nd" is False for a scalar, which has no shape
        # An array with the shape [] is a scalar; `[()]` extracts its value.
        array = _build_array(wire[b"data"], wire[b"type"], wire[b"shape"] if wire[b"nd"] else [])
        return array if wire[b"nd"] else array[()]
    if "__ndarray_class__" not in wire:
        return wire
    npy_bytes = wire["as_npy"]  # a file in NumPy's format; `decode_array` never unpickles
    decoded = decode_array(npy_bytes) if isinstance(npy_bytes, bytes) else None
    if decoded is None:
        raise ValueError("the array file does not hold a plain NumPy array")
    _parse_dtype([] if decoded.dtype.names else decoded.dtype.str)  # refuses objects, and records (`[]`)
    return _require_unicode(decoded)


def _encode_json_numpy(value: Array | np.generic) -> object:
    # Return the map that represents an array or scalar, as the library json_numpy does.
    text = base64.b64encode(value.tobytes()).decode()
    return {"__numpy__": text, "dtype": value.dtype.str, "shape": value.shape}


def _decode_json_numpy(wire: Wire) -> object:
    # Return the array or scalar that the library json_numpy encoded as a map; return other maps unchanged.
    if "__numpy__" not in wire:
        return wire
    array = _build_array(base64.b64decode(wire["__numpy__"], validate=True), wire["dtype"], wire["shape"])
    return array if wire["shape"] else array[()]  # an empty shape means a scalar


OPENPI = Codec(_OPENPI.encode, _OPENPI.decode)
VLA_EVAL = Codec(_VLA_EVAL.encode, _VLA_EVAL.decode)
VLA_EVAL_PNG = Codec(_encode_vla_eval_png, _VLA_EVAL.decode)
GR00T = Codec(_encode_gr00t, _decode_gr00t)  # for GR00T up to its tag n1.7-release, and for RLDX-1
GR00T_MAIN = Codec(_encode_msgpack_numpy, _decode_gr00t)  # for GR00T's main branch since 3df8b38, and for XPolicyLab
OPENVLA = Codec(_encode_json_numpy, _decode_json_numpy, is_json=True)
XVLA = Codec(lambda value: json.dumps(_encode_json_numpy(value)), _decode_json_numpy, is_json=True)
