"""The recipes for Slurm and Kubernetes give, shard after shard, what one run gives; their numbers are set by hand."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from folders import contents
from safevla_bench import cli

CONFIG = """
host = "fake"
suite = ["fake"]
policy = ["random"]
max-steps = 5
out = "never"
"""


@pytest.fixture
def submitted(request, tmp_path):
    """Runs the script as a job of an array, or as the job after it."""
    (tmp_path / "asked.toml").write_text(CONFIG)
    places = {"SHARDS": "2", "CONFIG": str(tmp_path / "asked.toml"), "OUT": str(tmp_path / "array")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def submit(*words: str, **slurm: str) -> None:
        environment = {**os.environ, **places, "PATH": path, **slurm}
        script = str(request.config.rootpath / "examples" / "slurm.sh")
        subprocess.run(["bash", script, *words], env=environment, check=True)

    return submit


@pytest.mark.long
def test_an_array_of_jobs_and_the_job_after_it_give_the_bytes_of_one_run(submitted, tmp_path):
    for number in ("2", "1", "1"):  # in any order, and once more as after a preemption
        submitted("--seed", "3", SLURM_ARRAY_TASK_ID=number)
    for _ in range(2):  # once more, as after a preemption in the last step
        submitted("--set", "missing=deactivate")
    cli.run_command_line(
        ["eval", "--config", str(tmp_path / "asked.toml"), "--seed", "3", "--out", str(tmp_path / "whole")]
        + ["--set", "missing=deactivate"]
    )
    assert contents(tmp_path / "array" / "merged") == contents(tmp_path / "whole")


@pytest.fixture
def start_pod(request, tmp_path):
    """Starts the container of a Job, with the places of its volumes changed and `safevla` that of this Python."""
    recipe = (request.config.rootpath / "examples" / "kubernetes.yaml").read_text()
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "eval.toml").write_text(CONFIG)
    (tmp_path / "runs").mkdir()
    jobs = {job["metadata"]["name"]: job["spec"] for job in yaml.safe_load_all(recipe)}

    def start(name: str, **variables: str) -> subprocess.Popen[bytes]:
        pod = jobs[name]["template"]["spec"]
        (container,) = pod["containers"]
        mounted = {volume["mountPath"] for volume in container["volumeMounts"]}
        *words, script = container["command"]
        for place in ("/runs", "/asked"):
            assert place in mounted or place not in script
            script = script.replace(place, f"{tmp_path}{place}")
        own = {entry["name"]: entry["value"] for entry in container["env"]}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen([*words, script], env={**os.environ, **own, "PATH": path, **variables})

    return start


@pytest.mark.long
def test_the_jobs_of_kubernetes_give_the_bytes_of_one_run(start_pod, tmp_path):
    for number in ("1", "0", "0"):
        assert start_pod("shards", JOB_COMPLETION_INDEX=number, SHARDS="2").wait() == 0
    for _ in range(2):
        assert start_pod("merge").wait() == 0
    whole = str(tmp_path / "whole")
    cli.run_command_line(["eval", "--config", str(tmp_path / "asked" / "eval.toml"), "--out", whole])
    assert contents(tmp_path / "runs" / "merged") == contents(tmp_path / "whole")


def test_a_pod_that_is_evicted_passes_sigterm_on_and_waits_for_the_run(start_pod, tmp_path):
    (tmp_path / "safevla").write_text(
        "#!/bin/sh\ntrap 'touch ended; exit 143' TERM\ntouch began\nwhile :; do sleep 0.1; done\n"
    )
    (tmp_path / "safevla").chmod(0o755)
    pod = start_pod("shards", JOB_COMPLETION_INDEX="0", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    while not (tmp_path / "runs" / "began").exists() and pod.poll() is None:
        time.sleep(0.05)
    pod.terminate()
    assert pod.wait(timeout=50) == 143
    assert (tmp_path / "runs" / "ended").exists()


def test_a_job_whose_time_is_nearly_up_stops_its_run_and_queues_itself_again(request, tmp_path):
    for name, script in {"safevla": "touch began; exec sleep 60", "scontrol": 'echo "$@" >queued'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    places = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "2",
    }
    script = ["bash", str(request.config.rootpath / "examples" / "slurm.sh")]
    with subprocess.Popen(script, cwd=tmp_path, env={**os.environ, **places}) as job:
        while not (tmp_path / "began").exists() and job.poll() is None:
            time.sleep(0.05)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=50) == 0  # before its run would have ended
    assert (tmp_path / "queued").read_text() == "requeue 7_2\n"


def test_the_image_installs_the_libraries_that_the_check_asks_for_and_sees_what_it_builds_from(request):
    root = request.config.rootpath
    recipe = (root / "Dockerfile").read_text()
    checked = runpy.run_path(str(root / ".ci" / "check_system.py"))["LIBRARIES"]
    assert all(package in recipe for _, package, _ in checked)
    assert {f"constraints/hashed/{name}.txt" for name in ("core", "libero", "robocasa")} <= set(
        re.findall(r"constraints/hashed/\w+\.txt", recipe)
    )
    copied = [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    needed = re.findall(r'"(?:\.\./)?/?(src|recorder|README.md|LICENSE)', (root / "pyproject.toml").read_text())
    assert {*needed, "pyproject.toml", "constraints"} <= set(copied)
    assert all((root / name).exists() for name in copied)


@pytest.mark.parametrize(("fails", "code"), [("doctor", 1), ("demo", 1), ("nothing", 0)])
def test_an_image_whose_doctor_or_demo_fails_is_not_an_image_and_its_archive_is_one_for_apptainer(
    request, tmp_path, fails, code
):
    podman = tmp_path / "podman"
    podman.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\ncase "$*" in *" {fails}"*) exit 1 ;; esac\n')
    podman.chmod(0o755)
    places = {"ENGINE": str(podman), "BASE": "any", "ARCHIVE": str(tmp_path / "core.tar")}
    script = [request.config.rootpath / ".ci" / "build_image", "core"]
    assert subprocess.run(script, env={**os.environ, **places}, check=False).returncode == code
    assert ("--format oci-archive" in (tmp_path / "asked").read_text()) == (code == 0)
