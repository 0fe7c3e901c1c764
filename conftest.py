"""Collection of the examples in docstrings and in docs/."""

from __future__ import annotations

from pathlib import Path

import pytest

_TESTS = ("tests", "recorder/tests")
_ELSEWHERE = "recorder/tests/test_robosuite.py"
"""Tests of robosuite's own tasks; `make test-recorder` runs them in an environment of their own."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect a module for its examples only if it has some, so that no simulator is imported to look for them."""
    if collection_path == config.rootpath / _ELSEWHERE:
        return True
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    in_tests = any(collection_path.is_relative_to(config.rootpath / folder) for folder in _TESTS)
    return True if in_tests or ">>> " not in collection_path.read_text(encoding="utf-8") else None


@pytest.fixture(autouse=True)
def _examples_run_in_the_root(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.config.rootpath)
