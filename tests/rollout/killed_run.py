"""A rollout that kills its process group at an instant: `killed_run.py DIR WORKERS INSTANT HOST`.

INSTANT is `event:K`, the K-th change of the disk since the run began; `finish:K`, the K-th since its completion began;
or `never`. An instant may lie in the middle of a write.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.sources.runs import writer as writing
from scenes import watch_disk

REQUEST = Request(
    host="fake",
    suites=("fake",),
    episodes=5,
    policies=("lethal", "random"),
    policy_arguments={"lethal": {"pause_s": "0.002"}},
    max_steps=6,
)
LIBERO = Request(host="libero", suites=("libero-object",), tasks=(0,), episodes=30, policies=("random",), max_steps=3)
REQUESTS = {"fake": REQUEST, "libero": LIBERO}


class Fuse:
    """Counts the changes of the disk from the moment it is lit, and kills the process group at the last."""

    def __init__(self, left: int, *, lit: bool) -> None:
        self.left, self.lit = left, lit

    def burn(self, change: str) -> None:
        self.left -= self.lit
        if self.lit and self.left == 0:
            os.killpg(0, signal.SIGKILL)

    def light_before(self, complete):
        def completing(writer):
            self.lit = True
            complete(writer)

        return completing


def main(folder: Path, workers: int, instant: str, host: str) -> None:
    since, _, number = instant.partition(":")
    fuse = Fuse(int(number or 0), lit=since == "event")
    watch_disk(fuse.burn)
    writing.RunWriter.finish = fuse.light_before(writing.RunWriter.finish)
    roll_out(REQUESTS[host], folder, running=ExecutionOptions(workers=workers, resume=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
