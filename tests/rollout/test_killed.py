"""Killed eight times, with all its processes, a run that is resumed each time ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folders import contents
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.sources.runs.parts import count_progress

sys.path.insert(0, str(Path(__file__).parent))
import killed_run

TIMEOUT_S = 120


def start(place: Path, folder: Path, workers: int, instant: str) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a kill of the group takes the workers with it, and nobody else."""
    return subprocess.Popen(
        [sys.executable, killed_run.__file__, str(folder), str(workers), instant],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
    )


def killed_at_a_random_time(place: Path, folder: Path, workers: int, after_s: float) -> int:
    """Wait until another episode is done, then a little longer, then kill."""
    before = count_progress(folder)[0]
    process = start(place, folder, workers, "never")
    while count_progress(folder)[0] == before and process.poll() is None:
        time.sleep(0.001)
    time.sleep(after_s)
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait(TIMEOUT_S)


@pytest.mark.long
def test_killed_eight_times_it_ends_with_the_bytes_of_an_unbroken_run(tmp_path, lethal):
    roll_out(killed_run.REQUEST, tmp_path / "unbroken")
    draw = random.Random(0)
    folder = tmp_path / "run"
    instants = ["event:2", f"event:{draw.randint(3, 20)}", "time", f"event:{draw.randint(1, 20)}", "time"]
    instants += [f"finish:{number}" for number in (draw.randint(1, 9), draw.randint(10, 90), 120)]
    done = []
    for instant in instants:
        workers = draw.choice((1, 2))
        if instant == "time":
            code = killed_at_a_random_time(lethal, folder, workers, draw.uniform(0, 0.02))
        else:
            code = start(lethal, folder, workers, instant).wait(TIMEOUT_S)
        assert code == -signal.SIGKILL, instant
        done.append(count_progress(folder)[0] if (folder / "run.json").exists() else 0)
    assert done == sorted(done)  # what was done once is done
    assert done[-1] == 30
    assert start(lethal, folder, 2, "never").wait(TIMEOUT_S) == 0
    assert contents(folder) == contents(tmp_path / "unbroken")
