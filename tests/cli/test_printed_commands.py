"""Each command that another command prints does what it says, pasted into a shell, for every name of a file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from safevla_bench import cli

FOLDER = "my runs #2 it's"
_PRINTED = re.compile(r"(?:: |^ +)(safevla (?!--help)\S.*)$", re.MULTILINE)
_MEANT = {"DIR": "again", "SOURCE": "demo", "RUN": "run", "THIS_FILE": "limits.toml"}
"""What a user writes in the place of a capital word."""
_POLICY = """
from pathlib import Path
class Policy:
    def reset(self, *start): pass
    def act(self, observation):
        if Path("broken").exists():
            raise ValueError("the arm has 6 joints, 7 are needed")
        return [0.0] * 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a name that a shell does not take unquoted, in which a run, an archive and a policy lie."""
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    folder = Path(FOLDER)
    folder.mkdir()
    (tmp_path / "lab.py").write_text(_POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def find_commands(printed: str) -> list[str]:
    """Return the commands that a user would copy from an output, to the end of their lines."""
    commands = [found[1] for found in _PRINTED.finditer(printed)]
    return [
        re.sub(r"(?<![\w-])[A-Z_]{2,}(?![\w-])", lambda word: _MEANT.get(word[0], word[0]), line) for line in commands
    ]


def split_in_bash(line: str) -> list[str]:
    """Return the words that `safevla` gets if bash runs the line."""
    script = f'safevla() {{ printf "%s\\0" "$@"; }}\n{line}'
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), line
    return ran.stdout.split("\0")[:-1]


def run_printed(safevla, printed: str) -> dict[str, str]:
    """Run what is printed, then what that prints; return each command with its output."""
    ends: dict[str, str] = {}
    waiting = find_commands(printed)
    while waiting:
        line = waiting.pop(0)
        if line not in ends:
            words = split_in_bash(line)
            for out in {"again", "results"}.intersection(words) if "--out" in words else ():
                shutil.rmtree(out, ignore_errors=True)
            code, out, err = safevla(*words)
            assert code in (cli.OK, cli.CRASHED), f"{line}\n{err}"
            ends[line] = out
            waiting += find_commands(out + err)
    return ends


_RUN, _DEMO = shlex.quote(f"{FOLDER}/run"), shlex.quote(f"{FOLDER}/demo/rollouts.parquet")
_EVAL = f"eval --host fake --suite fake --task 0 --episodes 2 --policy random --out {_RUN}"
_BEGUN = {
    "demo": (f"demo --out {shlex.quote(f'{FOLDER}/demo')}",),
    "eval": (_EVAL,),
    "record": (f"{_EVAL} --record-only --set joint_torque=0.5",),
    "validate": (f"demo --out {shlex.quote(f'{FOLDER}/demo')}", f"validate {_DEMO}"),
    "convert": (f"demo --out {shlex.quote(f'{FOLDER}/demo')}", f"convert {_DEMO} {shlex.quote(f'{FOLDER}/a b.jsonl')}"),
    "episodes": (
        f"demo --out {shlex.quote(f'{FOLDER}/demo')}",
        f"episodes {_DEMO} --library paper-text --set joint_torque=0.5",
        f"show {_DEMO} --formula 'G(eef_speed < 0.5)'",
        f"select {_DEMO} --subject-to 'safety >= 0.4'",
        f"tables {_DEMO} --set joint_torque=0.5",
        f"sensitivity {_DEMO}",
    ),
    "registered": (
        f"{_EVAL} --policy lab=python:lab:Policy --dry-run --freeze {shlex.quote(f'{FOLDER}/a plan.json')}",
    ),
    "shards": (f"{_EVAL}-1 --shard 1/2", f"{_EVAL}-2 --shard 2/2", f"merge {_RUN}-1 {_RUN}-2 --out {_RUN}"),
    "catalog": ("specs", "tasks", "protocols", "protocols --entries"),
    "open": (_EVAL, f"open {shlex.quote(FOLDER)}", f"verify {_RUN}"),
    "unjudged": (f"{_EVAL} --record-only", f"open {_RUN}", f"score {shlex.quote(FOLDER)}"),
}


@pytest.mark.parametrize("lines", _BEGUN.values(), ids=_BEGUN)
def test_a_printed_command_runs_as_it_stands(safevla, folder, lines):
    ends = {}
    for line in lines:
        _, out, err = safevla(*split_in_bash(f"safevla {line}"))
        ends |= run_printed(safevla, out + err)
    assert ends


def list_numbered() -> Iterator[str]:
    """Yield the demo's episodes in JSON with numbers for ids, which are not those of their positions."""
    for number, line in enumerate(Path("demo.jsonl").read_text().splitlines()):
        yield json.dumps({**json.loads(line), "episode_id": str(20 - number)})


def test_the_printed_command_shows_the_episode_that_it_is_printed_for_even_if_ids_are_numbers(safevla, folder):
    safevla.ok("demo", "--out", "demo")
    safevla.ok("convert", "demo/rollouts.parquet", "demo.jsonl")
    Path("numbered.jsonl").write_text("\n".join(list_numbered()) + "\n")
    worst = max(safevla.json("episodes", "numbered.jsonl"), key=lambda row: row["vsi"] or 0)
    ((command, shown),) = list(run_printed(safevla, safevla.ok("episodes", "numbered.jsonl", "--sort", "vsi")).items())[
        :1
    ]
    assert command == f"safevla show numbered.jsonl :{21 - int(worst['episode_id'])}"
    assert worst["episode_id"] in shown.split("\n")[0]


def test_the_printed_command_judges_as_the_list_did(safevla, folder):
    safevla.ok("demo", "--out", "demo")
    rules = ("--set", "joint_torque=0.001")
    ((_, shown), *_) = run_printed(safevla, safevla.ok("episodes", "demo/rollouts.parquet", *rules)).items()
    assert "joint_torque" in shown.split("robustness")[0]


def test_the_command_that_completes_a_shard_trusts_what_the_shard_names(safevla, folder):
    Path("broken").touch()
    safevla(*split_in_bash(f"safevla {_EVAL} --policy lab=python:lab:Policy --shard 1/1 --episodes 5"))
    Path("broken").unlink()
    _, out, err = safevla("merge", f"{FOLDER}/run", "--out", "whole")
    (command,) = find_commands(out + err)
    assert "--record-only" in command
    assert safevla(*split_in_bash(command))[0] in (cli.OK, cli.CRASHED)


def test_the_command_that_continues_a_run_trusts_what_the_run_names(safevla, folder):
    words = split_in_bash(f"safevla {_EVAL} --policy lab=python:lab:Policy --episodes 5")
    Path("broken").touch()
    code, out, err = safevla(*words)
    assert code == cli.USER_ERROR
    os.remove("broken")
    again = safevla.refuses(*words)  # without --resume
    for printed in (again, out + err):
        (command, *_) = run_printed(safevla, printed)
        assert command.startswith("safevla eval --resume ")
        assert "run.json" in command
