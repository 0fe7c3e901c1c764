"""Findings of the checks of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckVerdict = Literal["agrees", "differs", "unchecked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, its verdict, and the details or the reason why it is open."""

    check: str
    verdict: CheckVerdict
    said: str
    wanted: bool = True
    """True if the user asked for the check; if it is open, the verification is open."""


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Return whether no check differs."""
        return all(finding.verdict != "differs" for finding in self.findings)

    @property
    def has_open_checks(self) -> bool:
        """Return whether a check that was asked for is open."""
        return any(finding.verdict == "unchecked" and finding.wanted for finding in self.findings)


def agreement(check: str, detail: str) -> Finding:
    """Return the finding of a check that agrees."""
    return Finding(check, "agrees", detail)


def mismatch(check: str, detail: str) -> Finding:
    """Return the finding of a check that differs."""
    return Finding(check, "differs", detail)


def open_check(check: str, detail: str, *, wanted: bool = True) -> Finding:
    """Return the finding of a check that could not be made; `detail` is the reason."""
    return Finding(check, "unchecked", detail, wanted)
