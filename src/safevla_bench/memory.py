"""A memory limit that the operating system enforces while untrusted files are read.

In every format, a few bytes can expand to gigabytes, and the sizes that a file states are not reliable. So each reader
runs within `limit_memory`, which lowers the process's soft limit RLIMIT_DATA during its `with` block. An allocation
beyond the limit fails, and `limit_memory` raises an error about the file.
"""

from __future__ import annotations

import errno
import math
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from safevla_bench.errors import DamageError, Place, SafevlaError

T = TypeVar("T")
SETTING = "SAFEVLA_MEMORY_GIB"  # environment variable: additional memory for reading [GiB]; default `DEFAULT_GIB`
DEFAULT_GIB = 4.0
_STATM = "/proc/self/statm"  # Linux's file with the sizes of this process's memory, in pages


def read_budget() -> int:
    """Return the memory that reading may use [bytes]. Raises `SafevlaError` unless `SETTING` is a positive number."""
    text = os.environ.get(SETTING, "")  # empty = use the default
    try:
        gib = float(text or DEFAULT_GIB)
    except ValueError:
        gib = math.nan
    if not 0 < gib < 1 << 20:
        raise SafevlaError(f"{SETTING}={text} is not a size in GiB", remedy=f"Write {SETTING}={DEFAULT_GIB:g}.")
    return int(gib * (1 << 30))


def is_enforced() -> bool:
    """Return whether the operating system enforces the limit: Linux does, macOS and Windows do not."""
    return sys.platform == "linux" and os.path.exists(_STATM)


class _DataLimit:
    """The soft memory limit of this process, which is lowered while at least one thread is reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the two values below
        self._readers = 0  # number of threads that are reading
        self._former_limits: tuple[int, int] | None = None  # soft and hard limit to restore; None = not lowered

    def enter(self) -> None:
        # Counts one more reading thread. The first thread lowers the memory limit of this process.
        budget_bytes = read_budget()
        with self._lock:
            if self._readers == 0 and is_enforced():
                self._lower(budget_bytes)  # if this raises an error, the thread is not counted
            self._readers += 1

    def leave(self) -> None:
        # Decrements the number of reading threads; the last thread to end restores the former limit.
        with self._lock:
            self._readers -= 1
            if self._readers == 0 and self._former_limits is not None:
                import resource

                resource.setrlimit(resource.RLIMIT_DATA, self._former_limits)
                self._former_limits = None

    def _lower(self, budget_bytes: int) -> None:
        # Sets the limit so that reading can use about `budget_bytes` more memory than is in use now.
        import resource

        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].allocate_buffer(1)  # pyarrow's allocator reserves 1 GiB on first use
        with open(_STATM, "rb", buffering=0) as stream:
            pages = stream.read().split()
        # Convert fields 1, 2 and 5 of statm from pages to bytes.
        resident, shared, data = (int(pages[k]) * resource.getpagesize() for k in (1, 2, 5))
        # RLIMIT_DATA limits reserved memory, but allocators reserve more than they use; pyarrow reserves 1 GiB.
        # If the budget were added to the reserved memory, a reader could use idle reserved memory beyond the budget.
        # So the limit is the resident memory plus the budget, but at least the reserved memory plus half of the budget.
        new_limit = max(resident - shared + budget_bytes, data + budget_bytes // 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # An existing limit that is not above the new limit stays.
        finite_limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        if all(limit > new_limit for limit in finite_limits):
            resource.setrlimit(resource.RLIMIT_DATA, (new_limit, hard))
            self._former_limits = soft, hard


_LIMIT = _DataLimit()


@contextmanager
def limit_memory(file: object) -> Iterator[None]:
    """Limit this process's memory to its current size plus `read_budget` while the `with` block reads an untrusted
    file. Blocks may be nested and run in several threads: the first block sets the limit, the last block restores the
    former limit. Do not yield inside a block; use `limit_each`. Raises `DamageError` for the file if memory runs out.
    """
    try:
        _LIMIT.enter()
        try:
            yield
        finally:
            _LIMIT.leave()
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        error.__traceback__ = None  # the traceback's frames would keep the file's data in memory
        raise memory_error(file) from None


def _is_out_of_memory(error: Exception) -> bool:
    # Returns whether memory ran out: in Python, NumPy or pyarrow, or while importing a module or starting a thread.
    match error:
        case MemoryError():  # includes NumPy's `_ArrayMemoryError` and pyarrow's `ArrowMemoryError`
            return True
        case SystemError():  # CPython 3.11 replaces the MemoryError of some imports by a SystemError
            return "without exception set" in str(error) or "without setting an exception" in str(error)
        case ImportError() | RuntimeError():
            return re.search("failed to map segment|annot allocate|can't start new thread", str(error)) is not None
        case OSError():
            return error.errno == errno.ENOMEM
    return False


def memory_error(file: object) -> DamageError:
    """Return the error for a file whose reading needed too much memory."""
    gib = read_budget() / (1 << 30)
    return DamageError(
        f"reading needs more memory than the limit of {gib:g} GiB",
        remedy=f"A small file that needs so much memory may be malicious. If you trust it, set {SETTING}={2 * gib:g}.",
        place=Place(file=str(file)),
    )


def limit_each(file: object, items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterator that reads an untrusted file; each item is read within `limit_memory`."""
    # A limit must not stay in force while the caller uses an item, so each item gets a separate `with` block.
    iterator = iter(items)
    while True:
        with limit_memory(file):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
        del item  # otherwise, the item would stay in memory while the next item is read
