"""What a check of a run folder found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["agrees", "differs", "unchecked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, whether it agrees, and what was seen, or why nothing could be."""

    check: str
    verdict: Verdict
    said: str
    wanted: bool = True
    """Whether it was asked for; where such a check could not be made, the answer is open."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Everything that was found, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Whether all that could be checked agrees."""
        return all(one.verdict != "differs" for one in self.findings)

    @property
    def open(self) -> bool:
        """Whether something that was asked for could not be checked."""
        return any(one.verdict == "unchecked" and one.wanted for one in self.findings)


def agrees(check: str, said: str) -> Finding:
    """What was looked at agrees."""
    return Finding(check, "agrees", said)


def differs(check: str, said: str) -> Finding:
    """It differs."""
    return Finding(check, "differs", said)


def unchecked(check: str, said: str, *, wanted: bool = True) -> Finding:
    """Nothing could be checked; `said` is why."""
    return Finding(check, "unchecked", said, wanted)
