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

from safevla_bench.cli import run_command_line

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


def test_the_page_shows_every_file_of_the_example(name, page, example):
    shown = re.findall(r"```\{literalinclude\} \.\./examples/(\S+)\n", page)
    files = [path.relative_to(example) for path in example.rglob("*") if path.is_file()]
    assert sorted(shown) == sorted(f"{name}/{file.as_posix()}" for file in files if "dist-info" not in str(file))


def test_the_example_keeps_every_rule_and_skips_none(name, example):
    require_engine(name)
    path = os.pathsep.join(filter(None, [str(example), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(command, cwd=example, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


def test_the_command_of_the_page_judges_the_example_and_later_ones_take_its_tags_as_judged_without_it(
    name, page, example, tmp_path, monkeypatch, capsys
):
    require_engine(name)
    (command,) = re.findall(r"^safevla (eval .*)$", page, re.MULTILINE)
    monkeypatch.chdir(example)
    imported = set(sys.modules)
    with monkeypatch.context() as installation:
        installation.syspath_prepend(example)
        assert run_command_line(shlex.split(command)) == 0, capsys.readouterr().err
    for module in set(sys.modules) - imported:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(example)):
            del sys.modules[module]
    run = example / "runs" / EXAMPLES[name][2][0]
    (episode,) = json.loads((run / "scores.json").read_text())["episodes"]
    assert "max_contact_force_under_200N" in episode["active_specs"]
    monkeypatch.chdir(tmp_path)
    words = ["score", str(run), "--library", "paper-text"]
    assert run_command_line(words) == 2
    assert "--rules as-judged" in capsys.readouterr().err.replace("\n", " ")
    assert run_command_line([*words, "--rules", "as-judged"]) == 0
    assert run_command_line(["verify", str(run), "--rules", "as-judged"]) == 0


def test_a_host_on_another_engine_takes_at_most_150_lines(request):
    host = request.config.rootpath / "examples" / "another_engine" / "bullet_host" / "__init__.py"
    assert len(host.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_loop_of_the_page_is_recorded_by_the_recorder_alone_and_judged(request, tmp_path, monkeypatch):
    root = request.config.rootpath
    page = (root / "docs" / "another-engine.md").read_text(encoding="utf-8")
    loop, rules = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "toml"))
    (tmp_path / "push.toml").write_text(rules)
    code = f"import sys; sys.modules['safevla_bench'] = None\n{loop}"
    environment = {**os.environ, "PYTHONPATH": str(root / "recorder" / "src")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^safevla (score .*)$", page, re.MULTILINE)
    assert run_command_line(shlex.split(command)) == 0
    episodes = json.loads((tmp_path / "runs" / "push" / "scores.json").read_text())["episodes"]
    assert len(episodes) == 10
    assert "max_contact_force_under_200N" in episodes[0]["active_specs"]
