"""examples/slurm.sh gives, shard after shard, what one run gives; here the array's number is set by hand."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from folders import contents
from safevla_bench import cli

ASKED = """
host = "fake"
suite = ["fake"]
policy = ["random"]
max-steps = 5
out = "never"
"""


@pytest.fixture
def submitted(request, tmp_path):
    """Runs the script as a job of an array, or as the job after it."""
    (tmp_path / "asked.toml").write_text(ASKED)
    places = {"SHARDS": "2", "CONFIG": str(tmp_path / "asked.toml"), "OUT": str(tmp_path / "array")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def submit(**slurm: str) -> None:
        environment = {**os.environ, **places, "PATH": path, **slurm}
        subprocess.run(["bash", str(request.config.rootpath / "examples" / "slurm.sh")], env=environment, check=True)

    return submit


@pytest.mark.long
def test_an_array_of_jobs_and_the_job_after_it_give_the_bytes_of_one_run(submitted, tmp_path):
    for number in ("2", "1", "1"):  # in any order, and once more as after a preemption
        submitted(SLURM_ARRAY_TASK_ID=number)
    submitted()
    cli.run_command_line(["eval", "--config", str(tmp_path / "asked.toml"), "--out", str(tmp_path / "whole")])
    assert contents(tmp_path / "array" / "merged") == contents(tmp_path / "whole")


def test_the_image_installs_the_libraries_that_the_check_asks_for(request):
    root = request.config.rootpath
    recipe = (root / "examples" / "safevla.def").read_text()
    checked = runpy.run_path(str(root / ".ci" / "check_system.py"))["LIBRARIES"]
    assert all(package in recipe for _, package, _ in checked)
    sources = [line.split()[0] for line in recipe.split("%files")[1].split("%post")[0].strip().splitlines()]
    assert all((root / source).exists() for source in sources)
