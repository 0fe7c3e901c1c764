"""The roster of policies: training kinds, privileged and auxiliary ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Summary
from safevla_bench.report.tables.table import UNNAMED, Cell, policy_name
from safevla_bench.text.numbers import NO_VALUE

AUXILIARY_SUITES = ("robocasa-pnp",)
"""Suites that are always auxiliary: the paper's five-task check, sampled by another protocol (its Table 6)."""


@dataclass(frozen=True)
class Roster:
    """Training kinds by policy, policies that saw privileged state, and policies that are auxiliary."""

    training: Mapping[str, str] = field(default_factory=dict)
    privileged: Collection[str | None] = ()
    auxiliary: Collection[str] = ()

    def is_auxiliary(self, cell: Summary) -> bool:
        """True if the cell stays out of means and bests."""
        return policy_name(cell) in self.auxiliary or cell.suite in AUXILIARY_SUITES

    def is_privileged(self, policy: str | None) -> bool:
        """True if the policy saw privileged state."""
        return policy in self.privileged

    def competing_policies(self, policies: Iterable[str | None]) -> set[str | None]:
        """Return the policies that compete for the best: acting ones, without privileged state if any is."""
        all_policies = set(policies)
        acting = all_policies - {NOOP} or all_policies
        return {policy for policy in acting if not self.is_privileged(policy)} or acting

    def summary_cell(self, cell: Summary) -> Cell:
        """Return the cell that names the policy of a summary, with its remarks."""
        return self.policy_cell(cell.policy, auxiliary=self.is_auxiliary(cell))

    def policy_cell(self, policy: str | None, *, auxiliary: bool = False) -> Cell:
        """Return the cell that names a policy, with its remarks."""
        remarks = [
            ("privileged state", self.is_privileged(policy)),
            ("does nothing", policy == NOOP),
            ("auxiliary", auxiliary),
        ]
        return Cell(policy or UNNAMED, detail=", ".join(word for word, holds in remarks if holds))

    def training_cell(self, policy: str | None) -> Cell:
        """Return the training kind of a policy; a dash if it is unknown."""
        return Cell(self.training.get(policy or "", NO_VALUE))
