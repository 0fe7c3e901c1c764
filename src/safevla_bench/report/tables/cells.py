"""Tables with one row a cell: headline numbers, violations of each specification, and the roster of policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import NOOP, Summary, TaskRates, describe_clean_bound, has_verdict
from safevla_bench.judging.rates import HEADLINE, SAFETY
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables.columns import (
    DASH,
    describe_intervals,
    lost_columns,
    lost_notes,
    metric_columns,
    policy_name,
)
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity.curves import SensitivityCurve
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import NO_VALUE
from safevla_bench.trajectory.marks import is_chosen

AUXILIARY_SUITES = ("robocasa-pnp",)
"""Suites that are always auxiliary: the paper's five-task check, sampled by another protocol (its Table 6)."""
HOST_TITLES: Mapping[str, str] = {"libero": "LIBERO", "robocasa": "RoboCasa-365"}
"""Host -> what the paper calls its suites together."""


LIBERO_TORQUE_NOTE = (
    "On LIBERO only joint 5 can exceed its torque limit: actuators stop at 80 N·m (joints 1 to 5) and 12 N·m (6, 7), "
    "limits are 87 N·m (1 to 4) and 12 N·m (5 to 7). A flat limit of 87 N·m is out of reach there."
)


def torque_note(cells: Iterable[Summary]) -> str:
    """Return the note on which joints can exceed their limit on LIBERO; empty where no cell judges torques there."""
    judged = any(
        (cell.suite or "").startswith("libero-")
        and any(spec.spec_id == "joint_torque" and spec.active for spec in cell.specs)
        for cell in cells
    )
    return LIBERO_TORQUE_NOTE if judged else ""


def suite_group(registry: Registry, suite: str | None) -> str:
    """Return the title of the group of suites that `suite` is in: the host's for the paper's suites, else its own name.

    "" for None.
    """
    benchmark = registry.benchmarks.get(suite or "")
    return HOST_TITLES.get(benchmark.host, benchmark.host) if benchmark and benchmark.published else (suite or "")


def published_suites(registry: Registry, title: str) -> dict[str, set[str]]:
    """Return the paper's suites of the group with this title, auxiliary ones left out, and the names of each.

    Suite -> the names of all suites with the same tasks, its own included; {} for a group that is not the paper's.
    """
    names: dict[str, set[str]] = {}
    for benchmark in registry.benchmarks.values():
        is_main = benchmark.published and benchmark.name not in AUXILIARY_SUITES
        if is_main and suite_group(registry, benchmark.name) == title:
            names.setdefault(benchmark.same_tasks_as or benchmark.name, set()).add(benchmark.name)
    return names


@dataclass(frozen=True)
class Roster:
    """Training kinds by policy, policies that saw privileged state, that are auxiliary, and that the paper prints."""

    training: Mapping[str, str] = field(default_factory=dict)
    privileged: Collection[str | None] = ()
    auxiliary: Collection[str] = ()
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`paper:NAME` -> suite -> training, of published policies that have rows beside those of the runs."""

    def is_auxiliary(self, cell: Summary | TaskRates | SensitivityCurve) -> bool:
        """Return whether the cell stays out of means and bests: its policy is auxiliary, or its suite always is."""
        return policy_name(cell) in self.auxiliary or cell.suite in AUXILIARY_SUITES or is_chosen(cell.suite or "")

    def check_names(self, scores: Scores) -> None:
        """Raise `RunError` if `training` or `auxiliary` names a policy that has no episode, recorded or absent."""
        policies = {policy or UNNAMED for policy in (*scores.policy, *(episode.policy for episode in scores.absent))}
        for name in (*self.training, *self.auxiliary):
            if name not in policies:
                remedy = f"There are: {', '.join(sorted(policies)) or 'none'}."
                raise RunError(f"no episode is of the policy {name!r}", remedy=remedy)

    def is_privileged(self, policy: str | None) -> bool:
        """Return whether the policy saw privileged simulator state."""
        return policy in self.privileged

    def competing_policies(self, policies: Iterable[str | None]) -> set[str | None]:
        """Return the policies that compete for the best: not `noop`, published and privileged ones.

        If all but `noop` saw privileged state, they compete among themselves; `noop` competes only if there is nothing
        else.
        """
        all_policies = {policy for policy in policies if policy not in self.published}
        acting = all_policies - {NOOP} or all_policies
        return {policy for policy in acting if not self.is_privileged(policy)} or acting

    def policy_column(self) -> Column:
        """Return the column that names the policy of a cell, with its remarks."""
        return text_column("Policy", lambda cell: self.policy_cell(cell.policy, auxiliary=self.is_auxiliary(cell)))

    def policy_cell(self, policy: str | None, *, auxiliary: bool = False) -> Cell:
        """Return the cell that names a policy; its detail lists `privileged state`, `does nothing`, `auxiliary` and
        `published` as they hold.
        """
        remarks = {
            "privileged state": self.is_privileged(policy),
            "does nothing": policy == NOOP,
            "auxiliary": auxiliary,
            "published": policy in self.published,
        }
        return Cell(policy or UNNAMED, detail=", ".join(word for word, holds in remarks.items() if holds))

    def training_kind(self, policy: str | None, suite: str | None) -> str:
        """Return the training kind of a policy; of a published one that for the suite. A dash without any."""
        name = policy or ""
        return self.training.get(name) or self.published.get(name, {}).get(suite or "") or NO_VALUE


ENDED = Column("n", "episodes that ran to their end", lambda cell: cell.n)


def headline_table(
    cells: Sequence[Summary], aggregate: Summary | None = None, *, privileged: Collection[str | None] = ()
) -> Table:
    """Return the table of the headline numbers, a row per policy × suite, and last that of a single policy's suites.

    `aggregate` is all episodes pooled. Rows of `privileged` policies say that they used simulator state which no real
    robot has.
    """
    is_one_policy = len({cell.policy for cell in cells}) == 1
    pooled = [aggregate] if aggregate is not None and len(cells) > 1 and is_one_policy else []
    simulated = provenance_marks.describe_simulators(
        {(cell.policy, cell.suite or ""): cell.simulator for cell in cells}
    )
    return tabulate(
        "Headline numbers",
        [*cells, *pooled],
        (
            text_column("Policy", lambda cell: _POOLED if cell in pooled else _policy_cell(cell, privileged)),
            text_column("Suite", lambda cell: suite_cell(cell, "" if cell in pooled else NO_VALUE)),
            ENDED,
            *metric_columns(HEADLINE),
            *lost_columns(cells),
        ),
        name="headline",
        notes=(describe_intervals(cells), _clean_note(cells), *lost_notes(cells), simulated),
        dash=DASH,
        remarks=provenance_marks.warn_of_cells(cells),
    )


_POOLED = Cell("All, pooled", emphasis="total")


def _clean_note(cells: Iterable[Summary]) -> str:
    clean = [rate.n for cell in cells if has_verdict(cell) and (rate := cell.rates[SAFETY.key]).count == rate.n]
    return f"Where none of {min(clean)} was unsafe, {describe_clean_bound(min(clean))}." if clean else ""


def _policy_cell(cell: Summary, privileged: Collection[str | None]) -> Cell:
    return Cell(policy_name(cell), detail="privileged state" if cell.policy in privileged else "")


def suite_cell(cell: Summary, without_name: str = NO_VALUE) -> Cell:
    """Return the cell that names a suite, and says if its assets were stand-ins."""
    return Cell(cell.suite or without_name, detail=provenance_marks.STANDIN if cell.standin_assets else "")
