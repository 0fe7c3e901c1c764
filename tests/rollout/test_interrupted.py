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
from safevla_bench import cli
from safevla_bench.sources.runs.parts import count_progress

ASKED = ["--host", "fake", "--suite", "fake", "--episodes", "5", "--max-steps", "30"]
ASKED += ["--policy", "lethal", "--policy-arg", "pause_s=0.002"]
TIMEOUT_S = 120


def start(lethal, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "safevla_bench", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(lethal), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.long)])
def test_ctrl_c_keeps_what_is_done_and_prints_the_command_that_goes_on(tmp_path, lethal, times):
    run = tmp_path / "run"
    process = start(lethal, "eval", *ASKED, "--workers", "2", "--out", str(run))
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
    resume = ["eval", "--resume", "--out", str(run), "--trust", str(run / "run.json")]
    for words in (resume, ["eval", *ASKED, "--out", str(tmp_path / "whole")]):
        assert cli.run_command_line(words) == cli.CRASHED  # one task of the fake host always crashes
    assert contents(run) == contents(tmp_path / "whole")
