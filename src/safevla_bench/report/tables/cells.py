"""Tables with one row a cell: headline numbers, violations of each specification, and the roster of policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.baseline import NOOP
from safevla_bench.judging.metrics import SpecSummary, Summary, describe_clean_bound, has_verdict
from safevla_bench.judging.scores import NO_VERDICT, Scores
from safevla_bench.report.tables.table import (
    UNNAMED,
    Cell,
    Column,
    Table,
    add_notes,
    count_cell,
    dash_cell,
    describe_intervals,
    lost_cells,
    lost_columns,
    lost_kinds,
    lost_notes,
    mean_cell,
    policy_name,
    rate_cell,
)
from safevla_bench.sensitivity.curves import SensitivityCurve
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import NO_VALUE

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
    """Training kinds by policy, policies that saw privileged state, and policies that are auxiliary."""

    training: Mapping[str, str] = field(default_factory=dict)
    privileged: Collection[str | None] = ()
    auxiliary: Collection[str] = ()

    def is_auxiliary(self, cell: Summary | SensitivityCurve) -> bool:
        """Return whether the cell stays out of means and bests: its policy is auxiliary, or its suite always is."""
        return policy_name(cell) in self.auxiliary or cell.suite in AUXILIARY_SUITES

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
        """Return the policies that compete for the best: all but `noop` and those that saw privileged state.

        If all but `noop` saw privileged state, they compete among themselves; `noop` competes only if there is nothing
        else.
        """
        all_policies = set(policies)
        acting = all_policies - {NOOP} or all_policies
        return {policy for policy in acting if not self.is_privileged(policy)} or acting

    def summary_cell(self, cell: Summary) -> Cell:
        """Return the cell that names the policy of a summary, with its remarks."""
        return self.policy_cell(cell.policy, auxiliary=self.is_auxiliary(cell))

    def policy_cell(self, policy: str | None, *, auxiliary: bool = False) -> Cell:
        """Return the cell that names a policy; its detail lists `privileged state`, `does nothing` and `auxiliary` as
        they hold.
        """
        remarks = [
            ("privileged state", self.is_privileged(policy)),
            ("does nothing", policy == NOOP),
            ("auxiliary", auxiliary),
        ]
        return Cell(policy or UNNAMED, detail=", ".join(word for word, holds in remarks if holds))

    def training_cell(self, policy: str | None) -> Cell:
        """Return the training kind of a policy; a dash if the roster has none."""
        return Cell(self.training.get(policy or "", NO_VALUE))


_HEADLINE = (
    Column("n", meaning="episodes that ran to their end"),
    Column("SR %", meaning="success rate"),
    Column("Safety %", meaning="share of judged episodes that break no limit"),
    Column("SBU %", meaning="succeeded but unsafe, of all judged episodes"),
    Column("P[U|S] %", meaning="unsafe, of the successes"),
    Column("VSI", meaning="mean severity of the worst violation, 0 to 1"),
    Column("VSI|U", meaning="the same over unsafe episodes only"),
)


def headline_table(
    cells: Sequence[Summary],
    aggregate: Summary | None = None,
    *,
    privileged: Collection[str | None] = (),
) -> Table:
    """Return the table of the headline numbers, a row per policy × suite, and last that of a single policy's suites.

    Args:
        cells: one summary a row.
        aggregate: all episodes pooled; without this, with a single cell, and with several policies, no last row.
        privileged: the policies that used simulator state no real robot has; their rows say so.
    """
    is_one_policy = len({cell.policy for cell in cells}) == 1
    pooled = [aggregate] if aggregate is not None and len(cells) > 1 and is_one_policy else []
    lost_names = lost_kinds(cells)
    columns = (Column("Policy", numeric=False), Column("Suite", numeric=False), *_HEADLINE)
    rows = [(*_name_cells(cell, privileged), *_headline_cells(cell), *lost_cells([cell], lost_names)) for cell in cells]
    for pooled_cell in pooled:
        names = Cell("All, pooled", emphasis="total"), Cell("", detail=_assets_note(pooled_cell))
        rows.append((*names, *_headline_cells(pooled_cell), *lost_cells([pooled_cell], lost_names)))
    table = Table("Headline numbers", (*columns, *lost_columns(lost_names)), tuple(rows), name="headline")
    simulated = provenance_marks.describe_simulators(
        {(cell.policy, cell.suite or ""): cell.simulator for cell in cells}
    )
    return replace(
        add_notes(table, describe_intervals(cells), _clean_note(cells), *lost_notes(lost_names, cells), simulated),
        remarks=provenance_marks.warn_of_cells(cells),
    )


def _clean_note(cells: Iterable[Summary]) -> str:
    clean = [rate.n for cell in cells if has_verdict(cell) and (rate := cell.rates["safety"]).count == rate.n]
    return f"Where none of {min(clean)} was unsafe, {describe_clean_bound(min(clean))}." if clean else ""


def _name_cells(cell: Summary, privileged: Collection[str | None]) -> tuple[Cell, Cell]:
    detail = "privileged state" if cell.policy in privileged else ""
    return Cell(policy_name(cell), detail=detail), Cell(cell.suite or NO_VALUE, detail=_assets_note(cell))


def _assets_note(cell: Summary) -> str:
    return provenance_marks.STANDIN if cell.standin_assets else ""


def _headline_cells(cell: Summary) -> tuple[Cell, ...]:
    """Return n and the six numbers of a cell; all but SR are dashes if no specification reached a verdict."""
    no_episode = "" if cell.n else "no episode"
    if not has_verdict(cell):
        return (count_cell(cell.n), rate_cell(cell.rates["sr"], no_episode), *[dash_cell(why_no_safety(cell))] * 5)
    return (
        count_cell(cell.n),
        rate_cell(cell.rates["sr"], no_episode),
        rate_cell(cell.rates["safety"], n=cell.n),
        rate_cell(cell.rates["sbu"], no_episode, n=cell.n),
        rate_cell(cell.rates["p_unsafe_given_success"], no_episode or "no success", n=cell.rates["sr"].count),
        mean_cell(cell.means["vsi"], n=cell.n),
        mean_cell(cell.means["vsi_given_unsafe"], "none unsafe"),
    )


def why_no_safety(cell: Summary) -> str:
    """Return why a cell without a judged episode has no rate of safety: no verdict, or no episode at all."""
    return NO_VERDICT if cell.n or cell.unjudged else "no episode"


def violation_table(cells: Sequence[Summary], *, scored: bool = True) -> Table:
    """Return the table of the violations of each specification, a row per cell and specification.

    A specification that is inactive, vacuous or without a verdict in every episode of a cell has dashes there.

    Args:
        cells: the summaries; with a single one the columns that name it are left out.
        scored: the safe tier; else diagnostics and alternate tiers, which enter no headline number.
    """
    several = len(cells) > 1
    naming = (Column("Policy", numeric=False), Column("Suite", numeric=False)) if several else ()
    rows = tuple(
        (*(_name_cells(cell, ()) if several else ()), *_violation_cells(cell, spec))
        for cell in cells
        for spec in cell.specs
        if (spec.tier == "safe") == scored
    )
    title = "Violations by specification" if scored else "Diagnostics and alternate limits, outside every score"
    table = Table(title, (*naming, *_VIOLATION), rows, name="violations-by-cell" if scored else "diagnostics")
    stopped = any(cell.stopped_on_violation for cell in cells)
    return add_notes(
        table,
        "An episode counts once for each specification that it violates.",
        "A violation stopped some episodes: what they would have violated later is not known." if stopped else "",
    )


_VIOLATION = (
    Column("Specification", numeric=False),
    Column("Violated", meaning="of the judged episodes in the cell"),
    Column("% of all", meaning="with 95 % Wilson interval"),
    Column("of active", meaning="of the episodes where it applies"),
    Column("in successes", meaning="violations in successful episodes"),
    Column("Depth", meaning="mean normalised depth where it applies, 0 to 1"),
    Column("Vacuous", meaning="applies, but its condition never arose"),
    Column("Inactive", meaning="does not apply, or was not measured"),
)


def _violation_cells(cell: Summary, spec: SpecSummary) -> tuple[Cell, ...]:
    """Return the row of a specification after policy and suite.

    Dashes and a reason where it is inactive in all episodes, vacuous in all where it applies, or not judged.
    """
    inactive = sum(spec.inactive.values())
    outside = (count_cell(spec.vacuous), count_cell(inactive))
    if not spec.active:
        return (Cell(spec.spec_id), dash_cell("inactive" if inactive else "no episode"), *[dash_cell()] * 4, *outside)
    if spec.vacuous == spec.active:
        return (Cell(spec.spec_id), dash_cell("vacuous"), *[dash_cell()] * 4, *outside)
    if not spec.violations.n:
        return (Cell(spec.spec_id), dash_cell(why_no_safety(cell)), *[dash_cell()] * 4, *outside)
    broken = spec.violations.count
    return (
        Cell(spec.spec_id),
        Cell(f"{broken}/{spec.violations.n}", broken, emphasis="bad" if broken else ""),
        rate_cell(spec.violations),
        Cell(f"{broken}/{spec.violations_when_active.n}", broken),
        count_cell(spec.unsafe_success),
        mean_cell(spec.nsv, "ungraded"),
        *outside,
    )
