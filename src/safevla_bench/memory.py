"""The limit on memory while foreign files are read, which the operating system enforces.

A few bytes can stand for gigabytes in every format, and no count of a file's own claims is reliable. So each reader
runs within `limit_memory`, which lowers the soft limit RLIMIT_DATA of the process for that time; an allocation beyond
it fails, and becomes an error about the file.
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
SETTING = "SAFEVLA_MEMORY_GIB"
"""Environment variable: GiB of memory that reading may take beyond what the process has; unset = `DEFAULT_GIB`."""
DEFAULT_GIB = 4.0
_STATM = "/proc/self/statm"


def read_budget() -> int:
    """Return the memory that reading may take, in bytes; raise `SafevlaError` unless the setting is a number > 0."""
    text = os.environ.get(SETTING, "")
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
    """The soft limit of this process, lowered while at least one thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._former: tuple[int, int] | None = None

    def enter(self) -> None:
        budget = read_budget()
        with self._lock:
            self._readers += 1
            if self._readers == 1 and is_enforced():
                self._lower(budget)

    def leave(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._readers == 0 and self._former is not None:
                import resource

                resource.setrlimit(resource.RLIMIT_DATA, self._former)
                self._former = None

    def _lower(self, budget: int) -> None:
        import resource

        if (pyarrow := sys.modules.get("pyarrow")) is not None:
            pyarrow.allocate_buffer(1)  # its allocator reserves 1 GiB when it is first used
        with open(_STATM, "rb", buffering=0) as stream:
            pages = stream.read().split()
        resident, shared, data = (int(pages[k]) * resource.getpagesize() for k in (1, 2, 5))
        # The limit counts address space. Allocators reserve more than they use (pyarrow's 1 GiB), which a file could
        # fill: so it is reckoned from what is resident, unless the process has reserved very much.
        limit = max(resident - shared + budget, data + budget // 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if not any(bound != resource.RLIM_INFINITY and bound <= limit for bound in (soft, hard)):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
            self._former = soft, hard


_LIMIT = _DataLimit()


@contextmanager
def limit_memory(file: object) -> Iterator[None]:
    """Limit what this process may allocate in the block, which reads a foreign file, to its present size and a budget.
    Blocks may be nested and run in several threads: the limit is set by the first and lifted after the last. Do not
    yield to a caller within one; `limit_each` does that. Raises `DamageError`, which names the file, where memory ran
    out.
    """
    _LIMIT.enter()
    try:
        yield
    except Exception as error:
        if not _is_exhaustion(error):
            raise
        error.__traceback__ = None  # its frames hold what was read, as long as the new error lives
        raise memory_error(file) from None
    finally:
        _LIMIT.leave()


def _is_exhaustion(error: Exception) -> bool:
    """Return whether memory ran out: in Python, NumPy or pyarrow, or as reading imports a module or starts a thread."""
    match error:
        case MemoryError():  # with NumPy's `_ArrayMemoryError` and pyarrow's `ArrowMemoryError`
            return True
        case SystemError():  # CPython 3.11 loses the MemoryError of some imports
            return "without exception set" in str(error) or "without setting an exception" in str(error)
        case ImportError() | RuntimeError():
            return re.search("failed to map segment|annot allocate|can't start new thread", str(error)) is not None
        case OSError():
            return error.errno == errno.ENOMEM
    return False


def memory_error(file: object) -> DamageError:
    """Return the error about a file whose reading ran out of memory."""
    gib = read_budget() / (1 << 30)
    return DamageError(
        f"memory ran out while it was read; the limit is {gib:g} GiB",
        remedy=f"A small file that takes so much is damaged or hostile. If you trust it: {SETTING}={2 * gib:g}.",
        place=Place(file=str(file)),
    )


def limit_each(file: object, items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterator that reads a foreign file; each is made within `limit_memory`."""
    iterator = iter(items)
    while True:
        with limit_memory(file):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
        del item
