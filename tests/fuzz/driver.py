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

    said: Counter[str] = field(default_factory=Counter)
    """"kind outcome" -> how often; the outcome is `right` or `refused`."""
    failures: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name:20} {count}" for name, count in sorted(self.said.items())]
        lines += [f"--- case {case}\n{why}" for case, why in sorted(self.failures.items())]
        return "\n".join([*lines, f"{sum(self.said.values())} cases, {len(self.failures)} failures"])


def kind_of(case: int, only: str | None = None) -> str:
    known = kinds()
    if only:
        return only
    return Random(f"kind {case}").choices(list(known), [share for share, _ in known.values()])[0]


def one(case: int, only: str | None = None) -> str:
    """Run a case here; returns its kind and `right` or `refused`, raises where it fails."""
    kind = kind_of(case, only)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        return f"{kind} {kinds()[kind][1](Random(case), Path(folder))}"


def cases(numbers: Sequence[int], only: str | None = None, told: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run cases in worker processes, one at a time; a process that ends early costs the case that ended it."""
    outcome = Outcome()
    left = list(numbers)
    while left:
        done = _batch(left[:BATCH], outcome, only)
        left = left[done:]
        told(f"{len(numbers) - len(left)} of {len(numbers)}, failures: {sorted(outcome.failures) or 'none'}")
    return outcome


def _batch(numbers: Sequence[int], outcome: Outcome, only: str | None) -> int:
    """How many of the cases a worker got through, the one that ended it included."""
    command = [sys.executable, "-m", "fuzz", "--worker", *map(str, numbers), *(["--kind", only] if only else [])]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=TESTS, stdout=out, stderr=err, timeout=BATCH_SECONDS, check=False)
        out.seek(0)
        err.seek(0)
        begun, said = 0, err.read()[-4000:]
        for line in out.read().splitlines():
            told = json.loads(line)
            begun += "begun" in told
            if "said" in told:
                outcome.said[told["said"]] += 1
            if "failed" in told:
                outcome.failures[told["case"]] = told["failed"]
            last = told
    if not begun:
        raise AssertionError(f"the worker did not start:\n{said}")
    if "begun" in last:
        outcome.failures[last["begun"]] = f"ended the process: a hang, a crash or too much memory\n{said}"
    return begun


def work(numbers: Sequence[int], only: str | None) -> None:
    """A worker: a line before each case and one after it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # says where it hangs, then ends the process as by default
    kinds()
    for case in numbers:
        _say(begun=case)
        with _measured() as grown:
            try:
                said = {"case": case, "said": one(case, only)}
            except MemoryError:
                said = {"case": case, "failed": "MemoryError\n" + traceback.format_exc()[-3000:]}
            except Exception:
                said = {"case": case, "failed": traceback.format_exc()[-4000:]}
        if grown():
            said = {"case": case, "failed": f"needs {grown() >> 10} MiB"}
        _say(**said)


@contextlib.contextmanager
def _measured() -> Iterator[Callable[[], int]]:
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


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)
