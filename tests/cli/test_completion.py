"""Completion in the shell, as bash, zsh and fish ask for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

# What a core environment does not have, and no plug-in's module either.
_ABSENT = "mujoco robosuite libero robocasa metaworld mani_skill torch ray sphinx lab_plugin"
_ASK = f"""
import importlib.metadata, sys
class Absent:
    def find_spec(self, name, *where):
        if name.partition(".")[0] in {_ABSENT!r}.split():
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Absent())
installed = importlib.metadata.entry_points
def entry_points(**wanted):
    found = installed(**wanted)
    if wanted == {{"group": "safevla_bench.hosts"}}:
        lab = importlib.metadata.EntryPoint("lab", "lab_plugin:make", "safevla_bench.hosts")
        found = importlib.metadata.EntryPoints([*found, lab])
    return found
importlib.metadata.entry_points = entry_points
from safevla_bench.cli import main
main()
"""
_IN_BASH = """
compopt() { printf '%s;' "$@"; }
eval "$(_SAFEVLA_COMPLETE=bash_source "$PYTHON" -c "$SCRIPT")"
env() { local -x "${@:1:4}"; "$PYTHON" -c "$SCRIPT"; }
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=1
_safevla_completion safevla
printf '%s\\n' "${COMPREPLY[@]}"
"""


def run_shell(words: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the lines that a shell gets, which must not see an error."""
    ran = subprocess.run(words, env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", **environment},
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split("\n")[:-1]


def complete_in_bash(line: str) -> list[str]:
    """Return what the Tab key offers behind a line, by the script that bash reads."""
    return run_shell(["bash", "-c", _IN_BASH, "bash", line], {"SCRIPT": _ASK, "PYTHON": sys.executable})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("safevla sc", "score"),
        ("safevla eval --host l", "lab libero"),
        ("safevla eval --host fake --suite ", "fake"),
        ("safevla tables RUN --which ac", "active"),
        ("safevla eval --policy mine=scripted:", "careful hasty"),
        ("safevla eval --policy=scripted:h", "hasty"),
        ("safevla eval --entry pi0.5@l", "libero"),
        ("safevla eval --protocol openpi", "openpi"),
        ("safevla specs --explain self", "self_collision_free"),
        ("safevla score x --library paper-t", "paper-text"),
        ("safevla protocols openvla-o", "openvla-oft openvla-oft-rest-libero"),
        ("safevla score x --set self", "-o;nospace;self_collision_free="),
        ("safevla scorr --se", ""),
        ("safevla score --config no-such-file --se", "--set"),
    ],
)
def test_bash_completes_commands_options_and_their_values_in_a_core_environment(line, expected):
    assert complete_in_bash(line) == (expected.split() or [""])


@pytest.mark.parametrize(
    ("shell", "environment", "expected"),
    [
        ("zsh", {"COMP_WORDS": "safevla eval --host li", "COMP_CWORD": "3"}, ["plain", "libero", "_"]),
        ("fish", {"COMP_WORDS": "safevla eval --host li", "COMP_CWORD": "li"}, ["plain,libero"]),
    ],
)
def test_zsh_and_fish_complete_as_bash_does(shell, environment, expected):
    script = run_shell([sys.executable, "-c", _ASK], {"_SAFEVLA_COMPLETE": f"{shell}_source"})
    assert any("safevla" in line for line in script)
    asked = {"_SAFEVLA_COMPLETE": f"{shell}_complete", **environment}
    printed = run_shell([sys.executable, "-c", _ASK], asked)
    assert [line for line in printed if line][: len(expected)] == expected


def test_the_shell_completes_commands_without_importing_them():
    """A slow import would be felt at every press of the key."""
    script = (
        "import sys; from safevla_bench import cli\n"
        "try: cli.run_command_line([])\n"
        "finally: print('LOADED', sorted(name for name in ('numpy', 'matplotlib', 'pyarrow') if name in sys.modules))"
    )
    asked = {"_SAFEVLA_COMPLETE": "bash_complete", "COMP_LINE": "safevla sc"}
    assert run_shell([sys.executable, "-c", script], asked)[:2] == ["plain,score", "LOADED []"]
