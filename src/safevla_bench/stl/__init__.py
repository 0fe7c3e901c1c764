"""Signal temporal logic: formulas, their text, and their robustness over many episodes."""

from __future__ import annotations
