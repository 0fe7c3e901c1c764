"""Diagnoses: the results of the checks of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One check: its level, what was found, and the remedy if there is one."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


def passed_check(check: str, detail: str) -> Diagnosis:
    """Return the diagnosis of a check that passed."""
    return Diagnosis(check, "ok", detail)


def warned_check(check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of something that works with limits, or may fail."""
    return Diagnosis(check, "warning", detail, remedy)


def failed_check(check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of something that does not work."""
    return Diagnosis(check, "error", detail, remedy)
