"""A command imports what it uses: what it leaves out costs more time than its own work on a small run."""

import json
import subprocess
import sys
from collections.abc import Sequence

from safevla_bench import cli

_REPORT = """
import json, sys
from safevla_bench import cli
heavy, lines = map(json.loads, sys.argv[1:])
ends = {" ".join(words): [cli.run_command_line(words), sorted({*heavy} & {*sys.modules})] for words in lines}
json.dump(ends, sys.stderr)
"""
_LIGHT = ("matplotlib", "pandas", "rich.console", "ray", "mujoco")


def run_commands(lines: Sequence[Sequence[object]], heavy: Sequence[str]) -> dict[str, object]:
    """Run commands one after the other in a process: the exit code of each, and what of `heavy` is imported by then."""
    words = [json.dumps(list(heavy)), json.dumps([list(map(str, line)) for line in lines])]
    ran = subprocess.run([sys.executable, "-c", _REPORT, *words], capture_output=True, text=True, check=True)
    ends: dict[str, object] = json.loads(ran.stderr.rsplit("\n", 1)[-1])
    return ends


def test_a_command_that_reads_verdicts_imports_no_charts_no_templates_and_no_simulator(shipped):
    lines = (["episodes", shipped], ["show", shipped, ":1"], ["gate", shipped, "--min-safety", "0.1"])
    ends = run_commands(lines, [*_LIGHT, "scipy.stats", "scipy.optimize", "PIL", "jinja2"])
    assert list(ends.values()) == [[cli.OK, []]] * len(lines), ends


def test_scoring_imports_no_charts_and_no_data_frames(shipped, tmp_path):
    assert list(run_commands([["score", shipped, "--out", tmp_path]], _LIGHT).values()) == [[cli.OK, []]]


def test_the_help_of_a_command_imports_neither_charts_nor_statistics():
    lines = [[name, "--help"] for name in sorted(set(cli.COMMANDS) - {"figures"})]
    ends = run_commands(lines, ["matplotlib.figure", "pandas", "scipy.stats", "ray", "mujoco"])
    assert list(ends.values()) == [[cli.OK, []]] * len(lines), ends
