"""Rules of the whole suite: tests repeat exactly, and continuous integration skips nothing in silence."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

_REPEATABLE = settings(derandomize=True, deadline=None, print_blob=True, database=None)
settings.register_profile("quick", _REPEATABLE, max_examples=25)
settings.register_profile("thorough", _REPEATABLE, max_examples=100)  # `make test-long`
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and children inherit it; what Ctrl-C does could then not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

OWN_ENVIRONMENTS = {"robocasa": "robocasa", "metaworld": "metaworld", "maniskill": "mani_skill"}
"""Mark of tests -> the package that they need."""
ALLOWED_SKIPS = Path(__file__).parents[1] / ".ci" / "allowed-skips"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Yield a `report.browser.Browser` that the tests of a module share; without Chromium they are skipped."""
    from report.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        pytest.skip("there is no chromium (Debian: chromium)")
    shared = Browser(tmp_path_factory.mktemp("profile"))
    yield shared
    shared.close()


class Command:
    """`safevla` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        from safevla_bench import cli

        code = cli.run_command_line([str(argument) for argument in arguments])
        return code, *self.capsys.readouterr()

    def ok(self, *arguments: object) -> str:
        """Return stdout of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return out

    def json(self, *arguments: object) -> Any:
        """Return what a command prints with `--format json`, whatever its exit code."""
        return json.loads(self(*arguments, "--format", "json")[1])

    def refuses(self, *arguments: object) -> str:
        """Return stderr of a command that refuses wrong input."""
        code, out, err = self(*arguments)
        assert code == 2, out + err
        assert "Traceback" not in err
        return err


@pytest.fixture
def safevla(capsys):
    return Command(capsys)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's archive."""
    from safevla_bench.jobs import demo

    return demo.unpack_archive(tmp_path_factory.mktemp("demo") / "out")


def pytest_configure(config: pytest.Config) -> None:
    """Guard skips where a green run is taken as proof: under ``CI=true``."""
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(SkipGuard(read_allowed(ALLOWED_SKIPS)), "skip-guard")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put LIBERO's tests first, so that no worker ends alone with them.

    Leave those of hosts with an environment of their own to it: `make test-robocasa`, `make test-metaworld` and so on.
    """
    items.sort(key=lambda item: item.get_closest_marker("libero") is None)
    absent = [mark for mark, name in OWN_ENVIRONMENTS.items() if not is_installed(name)]
    elsewhere = [item for item in items if any(item.get_closest_marker(name) for name in absent)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def is_installed(package: str) -> bool:
    """True for a package; a folder of tests by the same name is a namespace without a file of its own."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def pytest_collection_finish() -> None:
    """Take what is imported by now out of garbage collection, which some libraries ask for at every call."""
    gc.freeze()


def read_allowed(path: Path) -> tuple[str, ...]:
    """Node ids, or prefixes of them that end in ``*``; what follows `` # `` is the reason."""
    lines = (f" {line}".split(" #")[0].strip() for line in path.read_text().splitlines())
    return tuple(line for line in lines if line)


class SkipGuard:
    """Turns a passing session with skipped (or expectedly failing) tests into a failure, unless each is allowed."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed
        self.refused: list[str] = []

    def is_allowed(self, nodeid: str) -> bool:
        return any(nodeid.startswith(a[:-1]) if a.endswith("*") else nodeid == a for a in self.allowed)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not self.is_allowed(report.nodeid):
            self.refused.append(report.nodeid)

    pytest_runtest_logreport = note
    pytest_collectreport = note

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.refused:
            return
        terminalreporter.section("skipped, and not named in .ci/allowed-skips", red=True)
        for nodeid in self.refused:
            terminalreporter.line(nodeid)
