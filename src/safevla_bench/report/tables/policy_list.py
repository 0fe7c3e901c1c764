"""What is known of policies besides their episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Summary
from safevla_bench.report.tables.table import UNNAMED, Cell, policy_name
from safevla_bench.text.numbers import NONE

AUXILIARY_SUITES = ("robocasa-pnp",)
"""Suites that are always auxiliary: the paper's five-task check, sampled by another protocol (its Table 6)."""


@dataclass(frozen=True)
class Roster:
    """Training kinds by policy, policies that saw privileged state, and policies that are auxiliary."""

    training: Mapping[str, str] = field(default_factory=dict)
    privileged: Collection[str | None] = ()
    auxiliary: Collection[str] = ()

    def is_auxiliary(self, cell: Summary) -> bool:
        """Whether the cell stays out of means and bests."""
        return policy_name(cell) in self.auxiliary or cell.suite in AUXILIARY_SUITES

    def is_privileged(self, policy: str | None) -> bool:
        return policy in self.privileged

    def competing(self, policies: Iterable[str | None]) -> set[str | None]:
        """The policies among which a best is sought: those that act, without privileged state where there are any."""
        every = set(policies)
        acting = every - {NOOP} or every
        return {one for one in acting if not self.is_privileged(one)} or acting

    def named(self, cell: Summary) -> Cell:
        """The cell that names the policy, with what must be known of it."""
        return self.name(cell.policy, auxiliary=self.is_auxiliary(cell))

    def name(self, policy: str | None, *, auxiliary: bool = False) -> Cell:
        told = [
            ("privileged state", self.is_privileged(policy)),
            ("does nothing", policy == NOOP),
            ("auxiliary", auxiliary),
        ]
        return Cell(policy or UNNAMED, detail=", ".join(word for word, holds in told if holds))

    def trained(self, policy: str | None) -> Cell:
        """How the policy was trained; a dash where nobody said."""
        return Cell(self.training.get(policy or "", NONE))
