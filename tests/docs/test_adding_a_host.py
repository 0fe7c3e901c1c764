"""The host of docs/adding-a-host.md keeps every rule, is found by its entry point, and is shown as it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")


@pytest.fixture
def page(request) -> str:
    return (request.config.rootpath / "docs" / "adding-a-host.md").read_text(encoding="utf-8")


@pytest.fixture
def example(request, tmp_path) -> Path:
    """A copy of the example, installed as far as Python can tell."""
    source = request.config.rootpath / "examples" / "adding_a_host"
    folder = shutil.copytree(source, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    dist = folder / "tiny_host-0.1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"{name} = {target}" for name, target in points.items()]
    (dist / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


def run_module(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_page_shows_every_file_of_the_example_as_it_is(page, example):
    shown = re.findall(r"```(?:python|toml)\n(.*?)```\n", page, re.DOTALL)
    files = sorted(path for path in example.iterdir() if path.is_file())
    assert len(shown) == len(files)
    for path in files:
        assert path.read_text(encoding="utf-8") in shown, f"copy {path.name} into docs/adding-a-host.md"


def test_the_example_keeps_every_rule_and_skips_none(example):
    result = run_module(["pytest", "-q", "-rs", "-p", "no:cacheprovider"], example)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


def test_the_command_of_the_page_judges_the_example(page, example):
    (command,) = re.findall(r"^safevla (eval .*)$", page, re.MULTILINE)
    result = run_module(["safevla_bench", *shlex.split(command)], example)
    assert result.returncode == 0, result.stderr
    (episode,) = json.loads((example / "runs" / "tiny" / "scores.json").read_text())["episodes"]
    assert "stable_grasp_maintained_2cm" in episode["active_specs"]
