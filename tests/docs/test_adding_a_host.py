"""The hosts of docs/adding-a-host.md and another-engine.md keep every rule, are found, and are shown as they are."""

from __future__ import annotations

import importlib.util
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

EXAMPLES = {
    "adding_a_host": ("adding-a-host", "mujoco", ("smallest", "tiny")),
    "another_engine": ("another-engine", "pybullet", ("bullet",)),
}
"""Folder -> its page, the engine that it needs, and its hosts."""


@pytest.fixture(params=EXAMPLES)
def name(request) -> str:
    return request.param


@pytest.fixture
def page(request, name) -> str:
    return (request.config.rootpath / "docs" / f"{EXAMPLES[name][0]}.md").read_text(encoding="utf-8")


@pytest.fixture
def example(request, name, tmp_path) -> Path:
    """A copy of the example, installed as far as Python can tell."""
    source = request.config.rootpath / "examples" / name
    folder = shutil.copytree(source, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    dist = folder / f"{project['name'].replace('-', '_')}-0.1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{point} = {target}" for point, target in points.items()))
    ]
    (dist / "entry_points.txt").write_text("\n".join([*lines, ""]))
    return folder


def require_engine(name: str) -> None:
    engine = EXAMPLES[name][1]
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")


def run_module(arguments: list[str], folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": os.pathsep.join(filter(None, [str(path or folder), os.environ.get("PYTHONPATH", "")]))}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_shows_every_file_of_the_example(name, page, example):
    shown = re.findall(r"```\{literalinclude\} \.\./examples/(\S+)\n", page)
    files = [path.relative_to(example) for path in example.rglob("*") if path.is_file()]
    assert sorted(shown) == sorted(f"{name}/{file.as_posix()}" for file in files if "dist-info" not in str(file))


def test_the_example_keeps_every_rule_and_skips_none(name, example):
    require_engine(name)
    result = run_module(["pytest", "-q", "-rs", "-p", "no:cacheprovider"], example)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


def test_the_command_of_the_page_judges_the_example_and_later_ones_take_its_tags_as_judged_without_it(
    name, page, example, tmp_path
):
    require_engine(name)
    (command,) = re.findall(r"^safevla (eval .*)$", page, re.MULTILINE)
    result = run_module(["safevla_bench", *shlex.split(command)], example)
    assert result.returncode == 0, result.stderr
    run = example / "runs" / EXAMPLES[name][2][0]
    (episode,) = json.loads((run / "scores.json").read_text())["episodes"]
    assert "max_contact_force_under_200N" in episode["active_specs"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = run_module(["safevla_bench", "score", str(run), "--library", "paper-text"], elsewhere, elsewhere)
    assert again.returncode == 2
    assert "--rules", "as-judged" in again.stderr
    words = ["score", str(run), "--library", "paper-text", "--rules", "as-judged"]
    again = run_module(["safevla_bench", *words], elsewhere, elsewhere)
    assert again.returncode == 0, again.stderr
    verified = run_module(["safevla_bench", "verify", str(run), "--rules", "as-judged"], elsewhere, elsewhere)
    assert verified.returncode == 0, verified.stdout


def test_a_host_on_another_engine_takes_at_most_150_lines(request):
    host = request.config.rootpath / "examples" / "another_engine" / "bullet_host" / "__init__.py"
    assert len(host.read_text(encoding="utf-8").splitlines()) <= 150
