"""A row of the table of benchmarks, and how its ratio is measured."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A ratio and its target; `measured` says on what, `reason` why a target is missed."""

    what: str
    ratio: float | None
    target: float
    more: bool = False
    """The target is a least ratio, not a greatest."""
    measured: str = ""
    reason: str = ""

    @property
    def met(self) -> bool:
        return self.ratio is not None and (self.ratio >= self.target if self.more else self.ratio <= self.target)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of all threads and of the processes that it starts and waits for."""
    start = _cpu_clock()
    call()
    return _cpu_clock() - start


def _cpu_clock() -> float:
    waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + waited_for.ru_utime + waited_for.ru_stime


def compared(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    times: int = 7,
    clock: Callable[[Callable[[], object]], float] = cpu_seconds,
) -> float:
    """Our time over theirs: each measured in turn; the ratio of the least times, which other work disturbs least."""
    pairs = [(clock(ours), clock(theirs)) for _ in range(times)]
    return min(one for one, _ in pairs) / min(other for _, other in pairs)


def printed(ratio: float | None) -> str:
    """Three figures, whole digits never cut: 0.721, 41.3, 2,720."""
    if ratio is None:
        return "–"
    return f"{float(f'{ratio:.3g}'):,.0f}" if ratio >= 100 else f"{ratio:.3g}"
