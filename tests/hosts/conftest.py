"""What tests of hosts share."""

from __future__ import annotations

import importlib.metadata

import pytest


@pytest.fixture
def install_only(monkeypatch):
    """Make the given distributions, name -> version, the only ones that are installed."""

    def install(versions: dict[str, str]) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)

    return install
