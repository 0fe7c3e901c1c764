"""Messages with arrays, as policy servers pack them: MessagePack, and no pickle in either direction.

Each kind of server writes an array as a map of its own:

openpi      {b"__ndarray__": True, b"data": raw bytes, b"dtype", b"shape"}; NumPy scalars with b"__npgeneric__"
vla-eval    {"__ndarray__": True, "data": raw bytes, "dtype", "shape"}; NumPy scalars as plain numbers
gr00t       {"__ndarray_class__": True, "as_npy": a file in NumPy's own format}

What comes in is a stranger's: an array of objects, of records, or of another length than its shape is refused, and so
is a message of more values than `MOST_VALUES`, before it is decoded.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import npy
from safevla_bench.errors import PolicyError
from safevla_bench.policies.servers.msgpack_size import more_than

MOST_VALUES = 100_000
"""In one message, arrays aside, which are one value each: a chunk of actions as nested lists has some hundreds."""
_AXES, _DTYPE = 32, 64
"""Of an array; letters of its dtype."""
_KINDS = "biufSU"
"""Booleans, integers, floats, bytes and text. Objects, records and complex numbers are not numbers on a wire."""
_PLAIN = re.compile(r"[<>|=]?[A-Za-z_?]{1,12}\d{0,9}")
"""`<f4` or `float32`. What else NumPy takes for a dtype is of records, and runs Python's parser over a text."""
_REMEDY = "Is it a policy server of this kind, and of a version that this client speaks?"

Array = NDArray[Any]
Wire = Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """How one kind of server packs messages: `written` gives the map of an array, `read` the array of a map."""

    written: Callable[[Array | np.generic], object]
    read: Callable[[Wire], object]

    def pack(self, message: object) -> bytes:
        """The message as bytes; `PolicyError` for what the wire cannot carry."""
        try:
            return msgspec.msgpack.encode(message, enc_hook=self._hook)
        except (TypeError, NotImplementedError, OverflowError) as error:
            raise PolicyError(f"a message cannot be packed: {error}", remedy="Send numbers, text and arrays.") from None

    def unpack(self, message: bytes) -> object:
        """The message of the bytes, its arrays read-only; `PolicyError` where they are none, or too many."""
        if more_than(MOST_VALUES, message):
            remedy = "Send arrays as arrays: a reply holds one chunk of actions."
            raise PolicyError(f"a message that cannot be read: more than {MOST_VALUES:,} values", remedy=remedy)
        try:
            return self._restored(msgspec.msgpack.decode(message))
        except (
            msgspec.MsgspecError,
            RecursionError,
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            EOFError,
        ) as error:
            raise PolicyError(f"a message that cannot be read: {_short(error)}", remedy=_REMEDY) from None

    def _hook(self, value: object) -> object:
        if isinstance(value, np.float64):
            return float(value)  # a float, as every MessagePack library takes it
        if isinstance(value, np.ndarray | np.generic):
            return self.written(_checked(value))
        raise NotImplementedError(f"{type(value).__name__} is none of numbers, text and arrays")

    def _restored(self, value: object) -> object:
        if isinstance(value, list):
            return [self._restored(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = self.read(value)
        return {key: self._restored(one) for key, one in value.items()} if found is value else found


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _checked(value: Array | np.generic) -> Array | np.generic:
    if value.dtype.kind not in _KINDS:
        raise TypeError(f"arrays of {value.dtype} are not sent")
    return value


def _dtype(text: object) -> np.dtype[Any]:
    if not isinstance(text, str) or len(text) > _DTYPE or not _PLAIN.fullmatch(text):
        raise TypeError("a dtype that is no plain name")
    dtype = np.dtype(text)
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise ValueError(f"arrays of {text!r} are not read")
    return dtype


def _array(data: object, dtype: object, shape: object) -> Array:
    kind = _dtype(dtype)
    if not isinstance(data, bytes) or not isinstance(shape, list):
        raise TypeError("an array without bytes or shape")
    if len(shape) > _AXES or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"an array of shape {shape[: _AXES + 1]}")
    if len(data) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{len(data)} bytes for an array of {kind} of shape {shape}")
    return np.ndarray(shape, kind, data)


def _openpi_written(value: Array | np.generic) -> object:
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _openpi_read(wire: Wire) -> object:
    if b"__ndarray__" in wire:
        return _array(wire[b"data"], wire[b"dtype"], wire[b"shape"])
    if b"__npgeneric__" in wire:
        return _dtype(wire[b"dtype"]).type(wire[b"data"])
    return wire


def _vla_eval_written(value: Array | np.generic) -> object:
    if isinstance(value, np.generic):
        return value.item()
    return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": value.shape}


def _vla_eval_read(wire: Wire) -> object:
    return _array(wire["data"], wire["dtype"], wire["shape"]) if "__ndarray__" in wire else wire


def _gr00t_written(value: Array | np.generic) -> object:
    if isinstance(value, np.generic):
        return value.item()
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def _gr00t_read(wire: Wire) -> object:
    if "__ndarray_class__" not in wire:
        return wire
    content = wire["as_npy"]
    if not isinstance(content, bytes):
        raise TypeError("an array without bytes")
    head = npy.head(content)
    if head is None:
        raise ValueError("an array file that is no plain array of NumPy, version 1.0")
    array = _array(content[head.end :], head.descr, list(head.shape))
    return array if head.order == "C" else array.reshape(head.shape[::-1]).T


OPENPI = Codec(_openpi_written, _openpi_read)
VLA_EVAL = Codec(_vla_eval_written, _vla_eval_read)
GR00T = Codec(_gr00t_written, _gr00t_read)
