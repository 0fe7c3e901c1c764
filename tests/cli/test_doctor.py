"""`safevla doctor` says what it finds, with remedies, and its exit code tells whether there is an error."""

from __future__ import annotations

import json

from safevla_bench import doctor
from safevla_bench.cli import OK, USER_ERROR, run_command_line
from safevla_bench.doctor.findings import failed_check, passed_check, warned_check


def examined(monkeypatch, *findings):
    monkeypatch.setattr(doctor, "examine_machine", lambda *_, **__: iter(findings))


def test_no_error_exits_0_and_names_the_next_command(monkeypatch, capsys):
    examined(
        monkeypatch, passed_check("Python", "3.11"), warned_check("GL", "missing: libGL", "apt-get install libgl1")
    )
    assert run_command_line(["doctor"]) == OK
    assert capsys.readouterr().out == (
        "ok       Python: 3.11\n"
        "warning  GL: missing: libGL\n"
        "           → apt-get install libgl1\n"
        "\n"
        "No error, 1 warning. Next: safevla demo\n"
    )


def test_an_error_exits_2(monkeypatch, capsys):
    examined(
        monkeypatch,
        failed_check("a", "bad", "mend"),
        failed_check("b", "bad", "mend"),
        warned_check("c", "so-so", "mend"),
    )
    assert run_command_line(["doctor"]) == USER_ERROR
    assert capsys.readouterr().out.endswith("\n2 errors, 1 warning. Mend what is an error, then ask again.\n")


def test_json_holds_every_finding(monkeypatch, capsys):
    examined(monkeypatch, passed_check("Python", "3.11"), failed_check("b", "bad", "mend"))
    assert run_command_line(["doctor", "--format", "json"]) == USER_ERROR
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "findings": [
            {"check": "Python", "level": "ok", "found": "3.11", "remedy": None},
            {"check": "b", "level": "error", "found": "bad", "remedy": "mend"},
        ],
    }


def test_what_a_simulator_says_cannot_command_the_terminal(monkeypatch, capsys):
    examined(monkeypatch, failed_check("b", "\x1b[31mred", "\x1b]0;title\x07"))
    run_command_line(["doctor"])
    assert "\x1b" not in capsys.readouterr().out
