"""Runs cases by their number, in processes that a hang, a crash or a full memory may end.

A case's number is all there is to it: its kind and every draw follow. Time is counted in the processor's, so that a
busy machine makes no hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

TESTS = Path(__file__).parents[1]
SECONDS, BATCH_SECONDS = 5, 600
"""Of a case, in processor time; of a batch, by the clock, for one that sleeps."""
MEMORY = 6 << 30
GROWTH_KIB = 300 << 10
"""Address space of a process; how much a single case may add to its peak of resident memory."""
BATCH = 500


def kinds() -> dict[str, tuple[int, Callable[[Random, Path], str]]]:
    """Each kind of case and its share; imported late, as only workers need them."""
    from fuzz import formulas, records, replies, rules, runfolders

    return {
        "record": (28, records.text_form),
        "damaged": (8, records.bytes_form),
        "npz": (8, records.npz_form),
        "parquet": (8, records.parquet_form),
        "specs": (11, rules.library),
        "registry": (11, rules.registry),
        "formula": (12, formulas.formula),
        "reply": (12, replies.reply),
        "run": (2, runfolders.run),
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
    """Run a case here; returns its kind and `right` or `refused`, raises where it fails."""
    shares = {kind: share for kind, (share, _) in kinds().items()}
    kind = only or Random(f"kind {case}").choices(list(shares), list(shares.values()))[0]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        return f"{kind} {kinds()[kind][1](Random(case), Path(folder))}"


def run_cases(
    numbers: Sequence[int], only: str | None = None, report: Callable[[str], None] = lambda line: None
) -> Outcome:
    """Run cases in worker processes, one at a time; a process that ends early costs the case that ended it."""
    outcome = Outcome()
    left = list(numbers)
    while left:
        done = _batch(left[:BATCH], outcome, only)
        left = left[done:]
        report(f"{len(numbers) - len(left)} of {len(numbers)}, failures: {sorted(outcome.failures) or 'none'}")
    return outcome


def _batch(numbers: Sequence[int], outcome: Outcome, only: str | None) -> int:
    """How many of the cases a worker got through, the one that ended it included."""
    command = [sys.executable, "-m", "fuzz", "--worker", *map(str, numbers), *(["--kind", only] if only else [])]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=TESTS, stdout=out, stderr=err, timeout=BATCH_SECONDS, check=False)
        out.seek(0)
        err.seek(0)
        begun, errors = 0, err.read()[-4000:]
        for message in map(json.loads, out.read().splitlines()):
            begun += "begun" in message
            if "result" in message:
                outcome.counts[message["result"]] += 1
            if "failed" in message:
                outcome.failures[message["case"]] = message["failed"]
    if not begun:
        raise AssertionError(f"the worker did not start:\n{errors}")
    if "begun" in message:
        outcome.failures[message["begun"]] = f"ended the process: a hang, a crash or too much memory\n{errors}"
    return begun


def work(numbers: Sequence[int], only: str | None) -> None:
    """A worker: a line before each case and one after it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # says where it hangs, then ends the process as by default
    kinds()
    for case in numbers:
        _send(begun=case)
        with _measure_growth() as growth:
            try:
                message = {"case": case, "result": run_case(case, only)}
            except MemoryError:
                message = {"case": case, "failed": "MemoryError\n" + traceback.format_exc()[-3000:]}
            except Exception:
                message = {"case": case, "failed": traceback.format_exc()[-4000:]}
        if growth():
            message = {"case": case, "failed": f"needs {growth() >> 10} MiB"}
        _send(**message)


@contextlib.contextmanager
def _measure_growth() -> Iterator[Callable[[], int]]:
    """The alarm is set; how much the peak of memory grew beyond what is allowed, in KiB, else 0."""
    before = _peak_kib()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield (lambda: grown if (grown := _peak_kib() - before) > GROWTH_KIB else 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _peak_kib() -> int:
    """Of this program's resident memory; `getrusage` counts what the process held as another program, too."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])


def _send(**message: object) -> None:
    print(json.dumps(message), flush=True)
