"""Tables of cells: headline numbers, violations by specification (paper Tables 7, 8), composition of SBU (10, 11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import NOOP, SpecSummary, Summary, TaskRates, describe_clean_bound, has_verdict
from safevla_bench.judging.rates import HEADLINE, SAFETY, SBU, Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables.columns import (
    COUNT,
    DASH,
    SUITE,
    WILSON,
    describe_intervals,
    lost_columns,
    lost_notes,
    mean_cell,
    metric_columns,
    policy_name,
    rate_cell,
    why_no_safety,
)
from safevla_bench.report.tables.table import (
    UNNAMED,
    Cell,
    Column,
    Table,
    add_notes,
    table_file_name,
    tabulate,
    text_column,
)
from safevla_bench.sensitivity.curves import SensitivityCurve
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import NO_VALUE, format_fixed
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
    """Return the title of the group of suites that `suite` is in: the host's for the paper's, else its own name."""
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


def headline_table(
    cells: Sequence[Summary], aggregate: Summary | None = None, *, privileged: Collection[str | None] = ()
) -> Table:
    """Return the table of the headline numbers, a row per policy × suite; of one policy `aggregate`, too.

    Rows of `privileged` policies say that they used simulator state which no real robot has.
    """
    is_one_policy = len({cell.policy for cell in cells}) == 1
    pooled = [aggregate] if aggregate is not None and len(cells) > 1 and is_one_policy else []
    simulated = provenance_marks.describe_simulators(
        {(cell.policy, cell.suite or ""): cell.simulator for cell in cells}
    )

    def policy_cell(cell: Summary) -> Cell:
        if cell in pooled:
            return Cell("All, pooled", emphasis="total")
        return Cell(policy_name(cell), detail="privileged state" if cell.policy in privileged else "")

    def suite_cell(cell: Summary) -> Cell:
        name = cell.suite or ("" if cell in pooled else NO_VALUE)
        return Cell(name, detail=provenance_marks.STANDIN if cell.standin_assets else "")

    return tabulate(
        "Headline numbers",
        [*cells, *pooled],
        (
            text_column("Policy", policy_cell),
            text_column("Suite", suite_cell),
            Column("n", "episodes that ran to their end", lambda cell: cell.n),
            *metric_columns(HEADLINE),
            *lost_columns(cells),
        ),
        name="headline",
        notes=(describe_intervals(cells), _clean_note(cells), *lost_notes(cells), simulated),
        dash=DASH,
        remarks=provenance_marks.warn_of_cells(cells),
    )


def _clean_note(cells: Iterable[Summary]) -> str:
    clean = [rate.n for cell in cells if has_verdict(cell) and (rate := cell.rates[SAFETY.key]).count == rate.n]
    return f"Where none of {min(clean)} was unsafe, {describe_clean_bound(min(clean))}." if clean else ""


# Violations by specification


def constraint_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of the share of judged episodes that violate each scored specification, a row per cell.

    Where a specification is inactive in every episode there is a dash, never a zero. All cells must have the same
    specifications; else `KeyError`. `title` is the group of suites.
    """
    specs = {spec.spec_id: spec.axis for cell in cells for spec in cell.specs if spec.tier == "safe"}
    return tabulate(
        f"Violation rates by specification{': ' if title else ''}{title}",
        cells,
        (
            roster.policy_column(),
            SUITE,
            COUNT,
            Column("Unsafe %", "episodes that violate any of them", _unsafe_cell),
            *(
                Column(spec_id, group=axis.replace("_", " ").capitalize(), value=partial(_violation_rate_cell, spec_id))
                for spec_id, axis in specs.items()
            ),
            *lost_columns(cells),
        ),
        name=table_file_name("violations", title),
        notes=(
            WILSON,
            "In %, of the judged episodes of the cell. An episode may violate several, so that the rates do not add up "
            "to Unsafe.",
            torque_note(cells),
            *lost_notes(cells),
        ),
        dash=f"{NO_VALUE} without a reason below it: inactive. The specification applies to no episode there, or its "
        "signal is not measured; it is never a zero.",
    )


def _unsafe_cell(cell: Summary) -> Cell:
    if not has_verdict(cell):
        return Cell.dash(why_no_safety(cell))
    safety = cell.rates[SAFETY.key]
    return rate_cell(Rate.of(safety.n - safety.count, safety.n), n=cell.n)


def _violation_rate_cell(spec_id: str, cell: Summary) -> Cell:
    spec = {spec.spec_id: spec for spec in cell.specs}[spec_id]
    if not spec.active:
        return Cell.dash()
    return Cell.dash("vacuous") if spec.vacuous == spec.active else rate_cell(spec.violations, n=cell.n)


def violation_table(cell: Summary, *, scored: bool = True) -> Table:
    """Return the table of the violations of each specification in a cell.

    A specification that is inactive, vacuous or without a verdict in every episode has dashes. `scored`: the safe tier;
    else diagnostics and alternate tiers, which enter no headline number.
    """

    def judged(make_cell: Callable[[SpecSummary], Cell | int]) -> Callable[[SpecSummary], Cell | int]:
        return lambda spec: Cell.dash() if _why_unjudged(cell, spec) else make_cell(spec)

    stopped = "A violation stopped some episodes: what they would have violated later is not known."
    return tabulate(
        "Violations by specification" if scored else "Diagnostics and alternate limits, outside every score",
        [spec for spec in cell.specs if (spec.tier == "safe") == scored],
        (
            text_column("Specification", lambda spec: spec.spec_id),
            Column("Violated", "of the judged episodes in the cell", partial(_violated_cell, cell)),
            Column("% of all", "with 95 % Wilson interval", judged(lambda spec: rate_cell(spec.violations))),
            Column("of active", "of the episodes where it applies", judged(_active_cell)),
            Column("in successes", "violations in successful episodes", judged(lambda spec: spec.unsafe_success)),
            Column("Depth", "mean where it applies, 0 to 1", judged(lambda spec: mean_cell(spec.nsv, "ungraded"))),
            Column("Vacuous", "applies, but its condition never arose", lambda spec: spec.vacuous),
            Column("Inactive", "does not apply, or was not measured", lambda spec: sum(spec.inactive.values())),
        ),
        notes=(
            "An episode counts once for each specification that it violates.",
            stopped if cell.stopped_on_violation else "",
        ),
        dash=DASH,
    )


def _violated_cell(cell: Summary, spec: SpecSummary) -> Cell:
    broken, why = spec.violations.count, _why_unjudged(cell, spec)
    return Cell.dash(why) if why else replace(Cell.fault(broken), text=f"{broken}/{spec.violations.n}")


def _active_cell(spec: SpecSummary) -> Cell:
    return Cell(f"{spec.violations.count}/{spec.violations_when_active.n}", spec.violations.count)


def _why_unjudged(cell: Summary, spec: SpecSummary) -> str:
    """Return why there is no verdict: inactive in all episodes, vacuous in all where it applies, or not judged."""
    if not spec.active:
        return "inactive" if spec.inactive else "no episode"
    if spec.vacuous == spec.active:
        return "vacuous"
    return "" if spec.violations.n else why_no_safety(cell)


def composition_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of what the unsafe successes of each cell violated; shares add up to 100 % of a cell.

    A cell without an unsafe success or a verdict has one row of dashes. `title` is as in `constraint_table`.
    """
    columns = (
        *(text_column(name) for name in ("Policy", "Suite")),
        Column("n"),
        Column("Unsafe successes"),
        Column(SBU.heading, SBU.meaning),
        text_column("Specification"),
        Column("Violations", "in unsafe successes"),
        Column("Share %", "of the cell's violations"),
    )
    rows = tuple(row for cell in cells for row in _composition_rows(cell, roster))
    heading = f"What unsafe successes violate{': ' if title else ''}{title}"
    table = Table(heading, columns, rows, name=table_file_name("composition", title))
    return add_notes(table, "An unsafe success counts once for each specification that it violates.", dash=DASH)


def _composition_rows(cell: Summary, roster: Roster) -> Iterator[tuple[Cell, ...]]:
    """Yield a row per specification that unsafe successes violate, the most frequent first; one of dashes if none."""
    names = tuple(column.cell(cell) for column in (roster.policy_column(), SUITE, COUNT))
    if not has_verdict(cell):
        yield (*names, Cell.dash(why_no_safety(cell)), *[Cell.dash()] * 4)
        return
    head = (*names, Cell.count(cell.success_unsafe), rate_cell(cell.rates[SBU.key], n=cell.n))
    fired = [spec for spec in cell.specs if spec.tier == "safe" and spec.unsafe_success]
    total = sum(spec.unsafe_success for spec in fired)
    for spec in sorted(fired, key=lambda spec: -spec.unsafe_success):
        share = Fraction(100 * spec.unsafe_success, total)
        yield (*head, Cell(spec.spec_id), Cell.count(spec.unsafe_success), Cell(format_fixed(share, 0), float(share)))
    if not fired:
        yield (*head, Cell.dash("no unsafe success"), Cell.count(0), Cell.dash())
