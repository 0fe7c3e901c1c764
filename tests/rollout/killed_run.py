"""A rollout that kills its process group at an instant: `killed_run.py DIR WORKERS INSTANT HOST`.

INSTANT is `event:K`, the K-th change of the disk since the run began; `finish:K`, the K-th since its completion began;
or `never`. An instant may lie in the middle of a write.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from safevla_bench import files
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request, RequestedPolicy
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.sources.runs import writer as writing

REQUEST = Request(
    host="fake",
    suites=("fake",),
    tasks=(0, 1),
    episodes=5,
    policies=(RequestedPolicy("lethal", arguments={"pause_s": "0.002"}), "random"),
    max_steps=6,
)
LIBERO = Request(host="libero", suites=("libero-object",), tasks=(0,), episodes=30, policies=("random",), max_steps=3)
REQUESTS = {"fake": REQUEST, "libero": LIBERO}


class Halves:
    """A file that writes in two pieces, with something done between them."""

    def __init__(self, stream, between) -> None:
        self.stream, self.between = stream, between

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self.stream.write(content[:half])
        self.stream.flush()
        self.between()
        self.stream.write(content[half:])
        return len(content)


class Fuse:
    """Counts the changes of the disk from the moment it is lit."""

    def __init__(self, remaining: int) -> None:
        self.remaining, self.lit = remaining, False

    def burn(self) -> None:
        self.remaining -= self.lit
        if self.lit and self.remaining == 0:
            os.killpg(0, signal.SIGKILL)

    def before(self, change):
        def changing(*args, **options):
            self.burn()
            return change(*args, **options)

        return changing

    def torn(self, stored):
        @contextmanager
        def storing(path):
            with stored(path) as stream:
                yield Halves(stream, self.burn)

        return storing

    def finish(self, completed):
        def finishing(writer, **facts):
            self.lit = True
            completed(writer, **facts)

        return finishing


def main(folder: Path, workers: int, instant: str, host: str) -> None:
    since, _, number = instant.partition(":")
    fuse = Fuse(int(number or 0))
    for name in ("fsync", "mkdir", "replace", "rmdir", "truncate", "unlink"):
        setattr(os, name, fuse.before(getattr(os, name)))
    files._synced_file = fuse.torn(files._synced_file)
    writing.RunFolderWriter.finish = fuse.finish(writing.RunFolderWriter.finish)
    fuse.lit = since == "event"
    roll_out(REQUESTS[host], folder, running=ExecutionOptions(workers=workers, resume=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
