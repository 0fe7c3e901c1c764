"""The terminal of all tests here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Tables as on a terminal of this width, whatever the tests run in."""
    monkeypatch.setenv("COLUMNS", "120")
