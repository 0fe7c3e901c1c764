"""The terminal of all tests here, and the demo's records."""

from __future__ import annotations

from pathlib import Path

import pytest

from safevla_bench.jobs import demo


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Tables as on a terminal of this width, whatever the tests run in."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="session")
def shipped(tmp_path_factory) -> Path:
    """The demo's archive."""
    return demo.unpack_archive(tmp_path_factory.mktemp("demo") / "out")
