"""What the tests of trackers share with those of commands."""

from __future__ import annotations

from cli.conftest import safevla

__all__ = ["safevla"]
