"""The command of all tests here, what it is run on, and the demo's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from safevla_bench import cli
from safevla_bench.jobs import demo


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Tables as on a terminal of this width, whatever the tests run in."""
    monkeypatch.setenv("COLUMNS", "120")


class Command:
    """`safevla` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        code = cli.run_command_line([str(argument) for argument in arguments])
        return code, *self.capsys.readouterr()

    def ok(self, *arguments: object) -> str:
        """Return stdout of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == cli.OK, err
        return out

    def json(self, *arguments: object) -> Any:
        """Return what a command prints with `--format json`, whatever its exit code."""
        return json.loads(self(*arguments, "--format", "json")[1])

    def refuses(self, *arguments: object) -> str:
        """Return stderr of a command that a user has to mend."""
        code, out, err = self(*arguments)
        assert code == cli.USER_ERROR, out + err
        assert "Traceback" not in err
        return err


@pytest.fixture
def safevla(capsys):
    return Command(capsys)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory) -> Path:
    """The demo's archive."""
    return demo.unpack_archive(tmp_path_factory.mktemp("demo") / "out")
