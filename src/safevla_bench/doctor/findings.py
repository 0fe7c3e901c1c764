"""What an examination finds, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, what was found, and what to do about it."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """Something works less well than it could, or cannot be promised."""
    return Finding(check, "warning", found, remedy)


def error(check: str, found: str, remedy: str) -> Finding:
    """Something does not work."""
    return Finding(check, "error", found, remedy)
