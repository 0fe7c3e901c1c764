"""What a CI log would act on, in the names of a stranger's records, is broken before it is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CASE = Path(__file__).parents[1] / "cases" / "appendix_b.json"
ACTS = "::error file=a.py::x"
SPECS = ["--set", "missing=deactivate"]


@pytest.fixture
def hostile(tmp_path):
    record = json.loads(CASE.read_bytes())
    record |= {"policy": ACTS, "episode_id": f"{ACTS}\n{ACTS}"}
    record |= {"instruction": f"##[group]a\n{ACTS} ##vso[task.complete]"}
    path = tmp_path / f"{ACTS.replace('/', '')}.json"
    path.write_text(json.dumps(record))
    return path


def find_commands(text: str) -> list[str]:
    """The lines that GitHub's or Azure's runner takes for commands; GitHub's trims them first."""
    return [line for line in text.splitlines() if line.strip().startswith("::") or "##[" in line or "##vso[" in line]


@pytest.mark.parametrize(
    "command",
    [
        ["score", *SPECS],
        ["episodes", *SPECS],
        ["episodes", "--format", "csv", *SPECS],
        ["tables", *SPECS],
        ["tables", "--format", "md", *SPECS],
        ["show", "NUMBER", *SPECS],
        ["gate", "--min-safety", "0", *SPECS],
        ["score"],
        ["validate"],
    ],
    ids=" ".join,
)
def test_no_name_is_a_command_to_a_ci_log(safevla, hostile, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *options = command
    words = [hostile, *([":1"] if options[:1] == ["NUMBER"] else []), *[word for word in options if word != "NUMBER"]]
    _, out, err = safevla(name, *words, *(["--out", tmp_path / "out"] if name == "score" else []))
    assert find_commands(out + err) == []
    assert "error file=a.py" in out + err or name == "tables"


def test_an_error_that_quotes_a_name_of_several_lines_is_not_a_command(safevla):
    code, out, err = safevla("score", "a\n  ::error::x\n##[error]x")
    assert code == 2
    assert find_commands(out + err) == []
    assert ": :error::x" in err
