"""Readings of many worlds as arrays of NumPy, or tensors on a device: where they are kept until an episode ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from copy import copy
from typing import Any, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.channels import LARGEST
from safevla_recorder.episode import Bools, Floats
from safevla_recorder.errors import HostError

Array = Any
"""An array of NumPy, a tensor of torch, or what `numpy.asarray` takes."""
_BLOCK = 64


class BatchArrays:
    """Arrays of N worlds: NumPy's, or torch's on the device of the first of `samples` that is on one.

    torch is not imported here: whoever has a tensor has. Tensors on the CPU are read as arrays, without a copy.
    """

    def __init__(self, samples: Sequence[Array], worlds: int) -> None:
        tensor = next((sample for sample in samples if is_on_device(sample)), None)
        self._worlds = worlds
        self._chosen: Sequence[int] | None = None
        self.xp: Any = np if tensor is None else sys.modules["torch"]
        self._options = {"dtype": self.xp.float64, **({} if tensor is None else {"device": tensor.device})}

    def choose(self, worlds: Sequence[int]) -> BatchArrays:
        """Return the same for reading the rows of these worlds alone."""
        chosen = copy(self)
        chosen._chosen = worlds
        return chosen

    def make_zeros(self, sizes: Sequence[int]) -> Array:
        """Return zeros of these sizes."""
        return self.xp.zeros(tuple(sizes), **self._options)

    def share(self, values: Array) -> Array:
        """Return numbers as a float64 array of this kind, without a copy where they are one."""
        if hasattr(values, "detach"):
            values = copy_to_host(values) if self.xp is np else values.detach()
        return self.xp.asarray(values, **self._options)

    def read(self, name: str, values: Array, *sizes: int | None, or_vectors: bool = False) -> Array:
        """Return the rows of the chosen worlds of `values` [N, *sizes], or [N, *sizes, 3] if they may be `or_vectors`.

        A size that is None may be any. Raises `HostError` for other shapes, or what is not real numbers.
        """
        array: Array = None
        with suppress(TypeError, ValueError, RuntimeError):
            is_complex = values.is_complex() if hasattr(values, "is_complex") else np.iscomplexobj(values)
            array = None if is_complex else self.share(values)
        shape, wanted = () if array is None else tuple(array.shape), (self._worlds, *sizes)
        own = shape[:-1] if or_vectors and len(shape) > len(wanted) and shape[-1] == 3 else shape
        if len(own) != len(wanted) or any(size not in (None, given) for size, given in zip(wanted, own)):
            problem = "not an array of real numbers" if array is None else f"the shape is {list(shape)}"
            sizes_text = ", ".join("any" if size is None else str(size) for size in wanted)
            vectors = f", or [{sizes_text}, 3]" if or_vectors else ""
            raise HostError(f"{name}: {problem}", remedy=f"Give numbers of the shape [{sizes_text}]{vectors}.")
        return array if self._chosen is None else array[self._chosen]

    def read_norms(self, values: Array, pairs: int) -> Array:
        """Return the norms of forces [N, K] or [N, K, 3] of the chosen worlds; NaN where no scene has such a norm."""
        force = self.read("the net forces", values, pairs, or_vectors=True)
        if len(force.shape) == 3:
            force = self.xp.sqrt(force[..., 0] ** 2 + force[..., 1] ** 2 + force[..., 2] ** 2)
        return self.xp.where((force >= 0) & (force <= LARGEST), force, np.nan)

    def are_finite(self, table: Array) -> Bools:
        """Return whether all numbers of each world are finite, [W], on the host."""
        return copy_to_host(self.xp.isfinite(table).all(1))


def is_on_device(values: Array) -> bool:
    """Return whether these are a tensor of torch that NumPy cannot read where it is."""
    return hasattr(values, "detach") and values.device.type != "cpu"


def copy_to_host(values: Array) -> NDArray[Any]:
    """Return an array, or a tensor on any device, as an array of NumPy; no copy if it is in the host's memory."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


class Timeline:
    """Tables of the readings of control steps, [N, F] each, by name, in blocks of `_BLOCK` rows; `last` is the newest
    row.
    """

    def __init__(self, arrays: BatchArrays, worlds: int) -> None:
        self._arrays, self._worlds = arrays, worlds
        self._blocks: list[dict[str, Array]] = [{}]
        self._dropped = self.last = 0

    def write(self, name: str, table: Array, worlds: Sequence[int] | None = None) -> None:
        """Write the newest row of these worlds, [W, F]; None = of all."""
        block, row = self._blocks[-1], self.last % _BLOCK
        if name not in block:
            block[name] = self._arrays.make_zeros((_BLOCK, self._worlds, table.shape[1]))
        if worlds is None:
            block[name][row] = table
        else:
            block[name][row, worlds] = table

    def advance(self, oldest: int) -> None:
        """Begin a new row; a block whose rows all come before `oldest` is used again."""
        self.last += 1
        if self.last % _BLOCK == 0:
            is_free = oldest // _BLOCK > self._dropped
            self._blocks.append(self._blocks.pop(0) if is_free else {})
            self._dropped += is_free

    def copy_rows(self, world: int, first: int) -> dict[str, Floats]:
        """Return the rows of a world from `first` on, [R, F], on the host."""
        blocks = self._blocks[first // _BLOCK - self._dropped :]
        stop = self.last + 1 - first // _BLOCK * _BLOCK
        rows = [slice(first % _BLOCK if k == 0 else 0, stop - k * _BLOCK) for k in range(len(blocks))]

        def join_blocks(name: str) -> Floats:
            return copy_to_host(
                self._arrays.xp.concatenate([block[name][at, world] for block, at in zip(blocks, rows)])
            )

        return {name: join_blocks(name) for name in blocks[-1]}
