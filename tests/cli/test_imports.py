"""A command imports what it uses: what it leaves out costs more time than its own work on a small run."""

import json
import subprocess
import sys

import pytest

from safevla_bench import cli
from safevla_bench.jobs import demo

_REPORT = """
import json, sys
from safevla_bench import cli
code = cli.run_command_line(sys.argv[2:])
json.dump([code, sorted(set(sys.argv[1].split(",")) & set(sys.modules))], sys.stderr)
"""
_HEAVY = "matplotlib,pandas,rich.console,scipy.stats,PIL,jinja2,ray,mujoco,scipy.optimize"


def imports_of(*words: str, heavy: str = _HEAVY) -> list[object]:
    ran = subprocess.run([sys.executable, "-c", _REPORT, heavy, *words], capture_output=True, text=True)
    found: list[object] = json.loads(ran.stderr.rsplit("\n", 1)[-1])
    return found


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return str(demo.unpack_archive(tmp_path_factory.mktemp("demo")))


@pytest.mark.parametrize("words", [("episodes",), ("show", "1"), ("gate", "--min-safety", "0.1")])
def test_a_command_that_reads_verdicts_imports_no_charts_no_templates_and_no_simulator(archive, words):
    assert imports_of(words[0], archive, *words[1:]) == [cli.OK, []]


def test_scoring_imports_no_charts_and_no_data_frames(archive, tmp_path):
    heavy = "matplotlib,pandas,rich.console,ray,mujoco"
    assert imports_of("score", archive, "--out", str(tmp_path), heavy=heavy) == [cli.OK, []]


@pytest.mark.parametrize("name", sorted(set(cli.COMMANDS) - {"figures"}))
def test_the_help_of_a_command_imports_neither_charts_nor_statistics(name):
    assert imports_of(name, "--help", heavy="matplotlib.figure,pandas,scipy.stats,ray,mujoco") == [cli.OK, []]
