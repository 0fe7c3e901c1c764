"""Facts that stand in two places stay equal."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import safevla_recorder
from safevla_bench import __version__

ROOT = Path(__file__).parents[1]


def test_the_citation_and_the_installed_distribution_have_the_package_s_version():
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == __version__
    assert version("safevla-bench") == __version__


def test_both_distributions_have_the_same_version_from_one_file_and_neither_requires_the_other():
    assert safevla_recorder.__version__ == __version__
    own, recorder = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "recorder"))
    assert own["tool"]["hatch"]["version"]["path"] == f"recorder/{recorder['tool']['hatch']['version']['path']}"
    assert not any("safevla" in name for name in own["project"]["dependencies"])


def test_the_recorder_needs_numpy_alone_from_python_3_8_on():
    project = tomllib.loads((ROOT / "recorder" / "pyproject.toml").read_text())["project"]
    assert [re.match(r"[\w-]+", name)[0] for name in project["dependencies"]] == ["numpy"]
    assert not any("<" in name for name in project["dependencies"])
    assert project["requires-python"] == ">=3.8"


def test_workflows_run_targets_of_the_makefile_alone_and_pin_each_action_by_digest():
    texts = [path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = [words for text in texts for words in re.findall(r"\bmake ([a-z][a-z -]*[a-z])", text)]
    named += [match for text in texts for match in re.findall(r"^ +target: \[(.*)\]$", text, re.M)]
    assert {word.strip() for words in named for word in re.split(r"[ ,]+", words)} <= targets
    actions = [action for text in texts for action in re.findall(r"uses: (\S+)", text)]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in actions if action != "./")
    assert all("permissions:\n  contents: read\n" in text for text in texts)


def test_what_takes_minutes_prints_a_heartbeat_and_its_exit_code_is_kept(tmp_path):
    makefile = (ROOT / "Makefile").read_text()
    assert all(line.startswith(".ci/heartbeat ") for line in re.findall(r"^(?:\w+_)?PIP := (.*)$", makefile, re.M))
    assert ".ci/heartbeat $(BIN)/python -m sphinx -W" in makefile
    log = tmp_path / "log"
    until_said = f"until grep -q 'still running after 0 min' {log}; do sleep 0.01; done; exit 7"
    with log.open("wb") as stderr:
        command = [ROOT / ".ci" / "heartbeat", "sh", "-c", until_said]
        ran = subprocess.run(command, stderr=stderr, env={**os.environ, "HEARTBEAT_S": "0.01"}, check=False)
    assert ran.returncode == 7


def test_each_line_that_a_mutation_without_effect_changes_is_in_its_module():
    entries = tomllib.loads((ROOT / ".ci" / "equivalent_mutants.toml").read_text())["mutant"]
    modules = [path for folder in ("src", "recorder/src") for path in (ROOT / folder).rglob("*.py")]
    for entry in entries:
        texts = [path.read_text() for path in modules if path.as_posix().endswith(entry["module"])]
        assert any(entry["line"] in text for text in texts), entry
