"""What the tests of all commands share."""

from __future__ import annotations

import pytest

from safevla_bench import cli


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Tables as on a terminal of this width, whatever the tests run in."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def safevla(capsys):
    """Run the command in this process; returns exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run_command_line([str(one) for one in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
