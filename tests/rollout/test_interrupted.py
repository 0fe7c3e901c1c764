"""Ctrl-C, as a terminal sends it, to the command and all its workers; and the death of the command alone."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folders import contents
from safevla_bench import cli
from safevla_bench.sources.runs.parts import count_progress
from scenes import anyone_in

RUN = ["--host", "fake", "--suite", "fake", "--task", "0,1", "--episodes", "5", "--max-steps", "30"]
RUN += ["--policy", "lethal", "--policy-arg", "pause_s=0.002"]
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


def wait_for_episodes(process: subprocess.Popen[str], run: Path, count: int) -> None:
    while not (run / "run.json").exists() or count_progress(run)[0] < count:
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, cli.INTERRUPTED), (signal.SIGTERM, cli.TERMINATED)])
def test_ctrl_c_or_sigterm_keeps_what_is_done_and_prints_the_command_that_goes_on(tmp_path, lethal, number, code):
    run = tmp_path / "run"
    process = start(lethal, "eval", *RUN, "--workers", "2", "--out", str(run))
    wait_for_episodes(process, run, 2)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=TIMEOUT_S)
    done, planned = count_progress(run)
    assert 2 <= done < planned == 10
    assert process.returncode == code
    assert "Traceback" not in err
    assert f"{done} of 10" in err
    (command,) = (line.strip() for line in err.splitlines() if line.startswith("  safevla "))
    resume = ["eval", "--resume", "--out", str(run), "--workers", "2", "--trust", str(run / "run.json")]
    assert shlex.split(command) == ["safevla", *resume], "run.json names the policy, code of a plug-in"
    for words in (resume, ["eval", *RUN, "--out", str(tmp_path / "whole")]):
        assert cli.run_command_line(words) == 0
    assert contents(run) == contents(tmp_path / "whole")


def test_no_worker_outlives_the_process_that_started_it(tmp_path, lethal):
    process = start(lethal, "eval", *RUN, "--workers", "2", "--out", str(tmp_path / "run"))
    wait_for_episodes(process, tmp_path / "run", 1)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    while anyone_in(process.pid):
        time.sleep(0.01)
