"""The fake host keeps every rule of a host; fakes that break one rule fail that one and no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mutants
from fake_conformance import FakeConformance
from safevla_bench.hosts.conformance import HostConformance

RULES = {name for name in dir(HostConformance) if name.startswith("test_")}
MUTANTS = {name: mutant for name, mutant in vars(mutants).items() if hasattr(mutant, "breaks")}
SUITE = """
import mutants
from fake_conformance import FakeConformance

for name, mutant in vars(mutants).items():
    if hasattr(mutant, "breaks"):
        factory = f"mutants:{name}.host" if hasattr(mutant, "host") else f"mutants:{name}"
        needs = getattr(mutant, "needs", ())
        given = {"factory": factory, "trials": FakeConformance.trials[:1], "needs": needs}
        given["touch_with_one_finger"] = FakeConformance.over_the_block if name == "OneFinger" else None
        if hasattr(mutant, "bare_states"):
            given["bare"] = lambda self, *told, few=mutant.bare_states: FakeConformance.bare(self, *told)[few]
        globals()[f"Test{name}"] = type(f"Test{name}", (FakeConformance,), given)
"""


class TestFakeHost(FakeConformance):
    touch_with_one_finger = None  # the gripper is a point


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> tuple[dict[str, set[str]], str]:
    """The rules that fail for each mutant, and all that pytest says."""
    folder = tmp_path_factory.mktemp("mutants")
    (folder / "test_mutants.py").write_text(SUITE)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(mutants.__file__).parent}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "test_mutants.py"]
    environment = {**os.environ, "COLUMNS": "400"}
    told = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout
    found: dict[str, set[str]] = {}
    for name, rule in re.findall(r"^(?:FAILED|ERROR) test_mutants\.py::Test(\w+)::(\w+)", told, re.MULTILINE):
        found.setdefault(name, set()).add(rule)
    return found, told


@pytest.mark.parametrize("name", MUTANTS)
def test_a_host_that_breaks_one_rule_fails_that_one_alone(broken, name):
    found, told = broken
    assert found.get(name) == {MUTANTS[name].breaks}, told


def test_every_rule_is_broken_by_some_mutant():
    assert {mutant.breaks for mutant in MUTANTS.values()} == RULES


def test_a_failure_reads_as_one_sentence_about_the_host(broken):
    _, told = broken
    assert "\nfake task 0: with the recorder the simulator's state differs from record 2 on.\n" in told
    assert "\nfake task 0: the role target is given to ['block', 'tray'], not to ['block'].\n" in told
    expected = "not (21, 15): one after settling, and one after each action."
    for states in ("(0, 15)", "(20, 15)"):
        assert f"\nfake task 0: bare() returns states of shape {states}, {expected}\n" in told
    assert "Traceback" not in told
