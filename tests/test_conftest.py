"""The guard on skipped tests, tried on a small suite of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="never")
def test_skips(): pass

@pytest.mark.parametrize("n", [1, 2])
def test_skips_inside(n): pytest.skip("no GPU")

@pytest.mark.xfail(reason="known")
def test_fails_as_expected(): assert False
"""
NAMES = ("skips", "skips_inside[1]", "skips_inside[2]", "fails_as_expected")
SKIPPED = [f"tests/test_small.py::test_{name}" for name in NAMES]


def run_small_suite(folder: Path, allowed: str, ci: str = "true") -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    (folder / ".ci" / "allowed-skips").write_text(allowed)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_small.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(Path(__file__).with_name("conftest.py"), folder / "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, cwd=folder, env=os.environ | {"CI": ci}, capture_output=True, text=True, check=False)


def refused(output: str) -> list[str]:
    _, _, section = output.partition("not named in .ci/allowed-skips")
    return [line for line in section.splitlines() if line.startswith("tests/")]


def test_each_skip_and_expected_failure_fails_the_run_by_name(tmp_path: Path) -> None:
    result = run_small_suite(tmp_path, "# nothing\n")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert refused(result.stdout) == SKIPPED


def test_names_and_prefixes_allow_their_tests_and_no_others(tmp_path: Path) -> None:
    result = run_small_suite(tmp_path, f"{SKIPPED[3]} # why\ntests/test_small.py::test_skips_inside[*\n")
    assert refused(result.stdout) == [SKIPPED[0]]


def test_skips_pass_outside_continuous_integration(tmp_path: Path) -> None:
    assert run_small_suite(tmp_path, "", ci="").returncode == pytest.ExitCode.OK
