"""Post-hoc safety evaluation of robot policies in simulators."""

from __future__ import annotations

__version__ = "0.1.0"
