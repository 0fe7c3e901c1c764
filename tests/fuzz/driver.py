"""Runs cases by their number, in a process that a hang, a crash or a full memory may end.

A case's number is all there is to it: its kind and every draw follow. Time is counted in the processor's, so that a
busy machine makes no hang.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import re
import resource
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

TESTS = Path(__file__).parents[1]
SECONDS, CLOCK_SECONDS = 5, 600
"""Of a case, in processor time; and by the clock, for one that sleeps."""
MEMORY = 6 << 30
GROWTH_KIB = 300 << 10
"""Address space of a process; how much a single case may add to its peak of resident memory."""
BATCH = 500
"""Cases of a process."""


def kinds() -> dict[str, tuple[int, Callable[[Random, Path], str]]]:
    """Each kind of case and its share; imported late, as only workers need them."""
    from fuzz import formats, records, runfolders

    return {
        "record": (50, records.text_form),
        "run": (2, runfolders.run),
        **{name: (0, run) for name, run in formats.KINDS.items()},  # only where asked for
    }


@dataclass
class Outcome:
    """What became of some cases."""

    counts: Counter[str] = field(default_factory=Counter)
    """"kind outcome" -> how often; the outcome is `right` or `refused`."""
    failures: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name:20} {count}" for name, count in sorted(self.counts.items())]
        lines += [f"--- case {case}\n{why}" for case, why in sorted(self.failures.items())]
        return "\n".join([*lines, f"{sum(self.counts.values())} cases, {len(self.failures)} failures"])


def run_case(case: int, only: str | None = None) -> str:
    """Run a case here; returns its kind and `right` or `refused`, raises if it fails."""
    shares = {kind: share for kind, (share, _) in kinds().items()}
    kind = only or Random(f"kind {case}").choices(list(shares), list(shares.values()))[0]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        return f"{kind} {kinds()[kind][1](Random(case), Path(folder))}"


def run_cases(numbers: Iterable[int], only: str | None = None) -> Outcome:
    """Run cases in a process of their own, which the case that ends it costs; where that hung is on stderr."""
    outcome, pool = Outcome(), _make_pool()
    for case in numbers:
        try:
            result, problem = pool.submit(_try_case, case, only).result()
        except BrokenProcessPool:
            result, problem, pool = "", "ended the process: a hang, a crash or too much memory", _make_pool()
        if problem:
            outcome.failures[case] = problem
        else:
            outcome.counts[result] += 1
    pool.shutdown()
    return outcome


def _make_pool() -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, _limit_process, max_tasks_per_child=BATCH)


def _limit_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # says where it hangs, then ends the process as by default
    kinds()


def _try_case(case: int, only: str | None) -> tuple[str, str]:
    """The result, or what is wrong."""
    result, problem, before = "", "", _peak_kib()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_SECONDS)
    try:
        result = run_case(case, only)
    except Exception:
        problem = traceback.format_exc()[-4000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = _peak_kib() - before
    return result, f"needs {grown >> 10} MiB" if grown > GROWTH_KIB else problem


def _peak_kib() -> int:
    """Of this program's resident memory; `getrusage` counts what the process held as another program, too."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
