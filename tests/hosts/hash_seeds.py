"""Digests of whole records that a new process makes under a given PYTHONHASHSEED."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import closing

import numpy as np

from safevla_bench.archive.jsonl import encode_json
from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed

HASH_SEEDS = (0, 1, 2)


def record_digests(hash_seed: int, host: str, suite: str, *tasks: str) -> list[str]:
    """Return the SHA-256 of the record of one step of each task, made in a process of that hash seed."""
    command = [sys.executable, "-W", "ignore", __file__, host, suite, *tasks]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    digests = [line.split()[-1] for line in output.splitlines() if line.startswith("digest ")]
    assert len(digests) == len(tasks)
    return digests


def _print_digests(name: str, suite: str, *tasks: str) -> None:
    host = make_host(name)
    for task in (task for task in host.tasks(suite) if task.task_id in tasks):
        with closing(host.make(task, Wants())) as env:
            env.reset(EpisodeSeed(0, 7, 1))
            env.step(np.array(task.still))
            print("digest", hashlib.sha256(encode_json(env.recorded())).hexdigest())


if __name__ == "__main__":
    _print_digests(*sys.argv[1:])
