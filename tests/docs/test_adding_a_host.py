"""The hosts of howto/adding-a-host.md and another-engine.md keep every rule, are found, and are shown as they are."""

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
    return (request.config.rootpath / "docs" / "howto" / f"{EXAMPLES[name][0]}.md").read_text(encoding="utf-8")


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
    files_shown = re.findall(r"```\{literalinclude\} \.\./\.\./examples/(\S+)\n", page)
    files = [path.relative_to(example) for path in example.rglob("*") if path.is_file()]
    assert sorted(files_shown) == sorted(f"{name}/{file.as_posix()}" for file in files if "dist-info" not in str(file))


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
    name, page, example, tmp_path, monkeypatch, safevla
):
    require_engine(name)
    (command,) = re.findall(r"^safevla (eval .*)$", page, re.MULTILINE)
    monkeypatch.chdir(example)
    imported = set(sys.modules)
    with monkeypatch.context() as installation:
        installation.syspath_prepend(example)
        safevla.ok(*shlex.split(command))
    for module in set(sys.modules) - imported:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(example)):
            del sys.modules[module]
    run = example / "runs" / EXAMPLES[name][2][0]
    (episode,) = json.loads((run / "scores.json").read_text())["episodes"]
    assert "max_contact_force_under_200N" in episode["active_specs"]
    monkeypatch.chdir(tmp_path)
    command = ["score", run, "--library", "paper-text"]
    assert "--rules as-judged" in safevla.refuses(*command).replace("\n", " ")
    safevla.ok(*command, "--rules", "as-judged")
    safevla.ok("verify", run, "--rules", "as-judged")


def test_a_host_on_another_engine_takes_at_most_150_lines(request):
    host = request.config.rootpath / "examples" / "another_engine" / "bullet_host" / "__init__.py"
    assert len(host.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize(
    ("name", "package", "count", "violated"),
    [("another-engine", "numpy", 10, []), ("mujoco-loop", "mujoco", 3, ["non_target_max_disp_5mm"])],
)
def test_the_loop_of_the_page_is_recorded_by_the_recorder_alone_and_judged(
    request, tmp_path, monkeypatch, name, package, count, violated
):
    pytest.importorskip(package)
    root = request.config.rootpath
    page = (root / "docs" / "howto" / f"{name}.md").read_text(encoding="utf-8")
    loop, rules = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "toml"))
    (tmp_path / "push.toml").write_text(rules)
    code = f"import sys; sys.modules['safevla_bench'] = None\n{loop}"
    environment = {**os.environ, "PYTHONPATH": str(root / "recorder" / "src")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^safevla (score .*)$", page, re.MULTILINE)
    assert run_command_line(shlex.split(command)) == 0
    episodes = json.loads((tmp_path / "runs" / "push" / "scores.json").read_text())["episodes"]
    assert len(episodes) == count
    assert "max_contact_force_under_200N" in episodes[0]["active_specs"]
    assert [episode["violated_specs"] for episode in episodes] == [violated] * count


MANY_WORLDS = """
import sys
from types import ModuleType, SimpleNamespace
import numpy as np

sys.modules["safevla_bench"] = None

class Worlds:
    sim_freq, control_freq = 100, 20
    num_envs = 64

    def __init__(self):
        self.unwrapped = self.scene = self
        self.agent = SimpleNamespace(finger1_link="left", finger2_link="right", tcp=SimpleNamespace(pose=self.pose()))
        self.cube = SimpleNamespace(pose=self.pose())
        self.table_scene = SimpleNamespace(table="table")
        self.action_space = SimpleNamespace(sample=lambda: np.ones((64, 4), dtype=np.float32))

    def pose(self):
        return SimpleNamespace(p=np.zeros((64, 3), dtype=np.float32), q=np.tile(np.float32([1, 0, 0, 0]), (64, 1)))

    def reset(self, seed):
        self.steps = 0

    def _after_simulation_step(self):
        raise AssertionError("nothing is recorded before an episode")

    def step(self, action):
        self.steps += 1
        for _ in range(5):
            self._after_simulation_step()
        ended = self.steps >= 4 + np.arange(64) % 5
        return None, None, ended, np.zeros(64, dtype=bool), {"success": np.arange(64) % 2 == 0}

    def get_pairwise_contact_forces(self, one, other):
        strength = {"left": 300.0, "right": 4.0}.get(one, 0.0) if other is self.cube else 0.0
        return np.full((64, 3), strength, dtype=np.float32) * (np.arange(64)[:, None] % 4 == 0)

for name in ("gymnasium", "mani_skill", "mani_skill.envs", "torch"):
    sys.modules[name] = ModuleType(name)
sys.modules["gymnasium"].make = lambda name, **options: Worlds()
sys.modules["torch"].stack, sys.modules["torch"].ones_like = np.stack, np.ones_like
"""
"""A stand-in for ManiSkill and torch."""


def test_the_loop_over_many_worlds_of_the_page_is_recorded_and_judged(request, tmp_path, monkeypatch):
    root = request.config.rootpath
    page = (root / "docs" / "howto" / "another-engine.md").read_text(encoding="utf-8")
    loop = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "push.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    environment = {**os.environ, "PYTHONPATH": str(root / "recorder" / "src")}
    subprocess.run([sys.executable, "-c", MANY_WORLDS + loop], cwd=tmp_path, env=environment, check=True)
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["score", "runs/many", "--rules", "push.toml"]) == 0
    episodes = json.loads((tmp_path / "runs" / "many" / "scores.json").read_text())["episodes"]
    assert len(episodes) == 128
    unsafe = [episode for episode in episodes if "max_contact_force_under_200N" in episode["violated_specs"]]
    assert len(unsafe) == 32
