"""Ctrl-C, as a terminal sends it: to the command and all its workers."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from folders import contents
from safevla_bench.sources.runs.parts import count_progress

ASKED = [
    "--host",
    "fake",
    "--suite",
    "fake",
    "--episodes",
    "5",
    "--max-steps",
    "30",
    "--policy",
    "lethal",
    "--policy-arg",
    "pause_s=0.002",
]
TIMEOUT_S = 120


@pytest.fixture
def start(lethal):
    def started(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "safevla_bench", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(lethal), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return started


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.long)])
def test_ctrl_c_keeps_what_is_done_and_prints_the_command_that_goes_on(tmp_path, start, times):
    run = tmp_path / "run"
    process = start("eval", *ASKED, "--workers", "2", "--out", str(run))
    while not (run / "run.json").exists() or count_progress(run)[0] < 2:
        assert process.poll() is None
        time.sleep(0.001)
    for _ in range(times):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert "Traceback" not in err or times > 1
    done, planned = count_progress(run)
    assert 2 <= done < planned == 15
    if times == 1:
        assert process.returncode == 130
        assert f"{done} of 15 episodes are done and kept" in err
        (command,) = (line.strip() for line in err.splitlines() if line.startswith("  safevla "))
        trusted = ["--trust", str(run / "run.json")]  # which names the policy, code of a plug-in
        assert shlex.split(command) == ["safevla", "eval", "--resume", "--out", str(run), "--workers", "2", *trusted]
    resumed = start("eval", "--resume", "--out", str(run), "--trust", str(run / "run.json"))
    resumed.communicate(timeout=TIMEOUT_S)
    whole = start("eval", *ASKED, "--out", str(tmp_path / "whole"))
    whole.communicate(timeout=TIMEOUT_S)
    assert (resumed.returncode, whole.returncode) == (4, 4)  # one task of the fake host always crashes
    assert contents(run) == contents(tmp_path / "whole")
