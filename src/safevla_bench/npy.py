"""The head of NumPy's array files, read without NumPy, whose own reader runs Python's parser over a stranger's text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': *'([^']{1,40})', *'fortran_order': *(True|False), *"
    rb"'shape': *\(((?:\d{1,15}(?:, ?|(?=\))))*)\),? *\} *\n",
    re.DOTALL,
)
"""What NumPy writes before the numbers of a plain array."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is said of an array: its dtype's text, its shape, `C` or `F` order, and where its numbers begin."""

    descr: str
    shape: tuple[int, ...]
    order: str
    end: int


def head(content: bytes) -> Head | None:
    """The head of a file's bytes; None where they are no plain array of version 1.0."""
    found = _HEAD.match(content)
    if not found:
        return None
    shape = tuple(int(size) for size in re.findall(rb"\d+", found[3]))
    return Head(found[1].decode("latin-1"), shape, "F" if found[2] == b"True" else "C", found.end())
