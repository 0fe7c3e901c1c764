"""Tables of cells (policy × suite): headline, means (paper Tables 4 to 6), violations (7, 8), composition (10, 11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from safevla_bench.errors import RunError
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import (
    NOOP,
    SpecSummary,
    Summary,
    TaskRates,
    describe_clean_bound,
    describe_uneven,
    has_verdict,
    split_cell_clauses,
)
from safevla_bench.judging.rates import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, VSI_UNSAFE, Mean, Metric, Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report.published import printed_mean
from safevla_bench.report.tables import columns
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
from safevla_bench.statistics.intervals import Interval, combine_intervals, mean_rate_interval
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import NO_VALUE, format_fixed, spell_suite
from safevla_bench.trajectory.marks import is_chosen

AUXILIARY_SUITES = ("robocasa-pnp",)
"""Suites that are always auxiliary: the paper's check on five tasks with a different protocol (paper Table 6)."""
HOST_TITLES: Mapping[str, str] = {"libero": "LIBERO", "robocasa": "RoboCasa-365"}
"""Host -> the paper's name for all suites of the host."""


LIBERO_TORQUE_NOTE = (
    "On LIBERO, only joint 5 can exceed its torque limit: the actuators give at most 80 N·m (joints 1 to 5) or 12 N·m "
    "(joints 6 and 7), and the limits are 87 N·m (joints 1 to 4) and 12 N·m (joints 5 to 7). No joint can reach 87 N·m."
)


def torque_note(cells: Iterable[Summary]) -> str:
    """Return the note on the joints that can exceed their limit on LIBERO; "" if no results on LIBERO have torques."""
    # A cell is the summary of one policy on one suite.
    # `active` is the number of the cell's episodes to which the specification applies.
    specs = (spec for cell in cells if (cell.suite or "").startswith("libero-") for spec in cell.specs)
    return LIBERO_TORQUE_NOTE if any(spec.spec_id == "joint_torque" and spec.active for spec in specs) else ""


def suite_group(registry: Registry, suite: str | None) -> str:
    """Return the title of the suite's group: its host's title if the paper reports the suite, else the suite's name."""
    # Suite None (the records name no suite) and each suite that is not registered are separate groups.
    name = registry.canonical_suite(suite or "")
    benchmark = registry.benchmarks.get(name)
    if benchmark is None or not benchmark.published:
        return name
    return HOST_TITLES.get(benchmark.host, benchmark.host)


def published_suites(registry: Registry, title: str) -> list[str]:
    """Return the paper's main suites in the group with this title; suites with the same tasks are listed once."""
    # `published`: the paper reports results on the suite.
    names = [name for name, suite in registry.benchmarks.items() if suite.published and name not in AUXILIARY_SUITES]
    in_group = (registry.canonical_suite(name) for name in names if suite_group(registry, name) == title)
    return list(dict.fromkeys(in_group))


@dataclass(frozen=True)
class Roster:
    """Facts about policies: kinds of training, and which policies are privileged, auxiliary or published."""

    training: Mapping[str, str] = field(default_factory=dict)
    privileged: Collection[str | None] = ()
    auxiliary: Collection[str] = ()
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`paper:NAME` -> suite -> kind of training, for the published policies in tables."""

    def is_auxiliary(self, cell: Summary | TaskRates | SensitivityCurve) -> bool:
        """Return whether a summary is auxiliary (by its policy or suite), and so left out of means and marks."""
        # `is_chosen`: a search chose the initial states of the suite, so its rates are not the benchmark's rates.
        suite = cell.suite or ""
        return columns.policy_name(cell) in self.auxiliary or spell_suite(suite) in AUXILIARY_SUITES or is_chosen(suite)

    def check_names(self, scores: Scores) -> None:
        """Raise `RunError` if `training` or `auxiliary` names a policy without recorded or absent episodes."""
        # Absent episodes were planned, but left no record.
        policies = {policy or UNNAMED for policy in (*scores.policy, *(episode.policy for episode in scores.absent))}
        for name in (*self.training, *self.auxiliary):
            if name not in policies:
                remedy = f"Policies with episodes: {', '.join(sorted(policies)) or 'none'}."
                raise RunError(f"no episode has the policy {name!r}", remedy=remedy)

    def is_privileged(self, policy: str | None) -> bool:
        # Return whether the policy sees simulator state that no real robot has. None = a policy without a name.
        # `privileged` contains the names of the policies that see simulator state.
        return policy in self.privileged

    def competing_policies(self, policies: Iterable[str | None]) -> set[str | None]:
        """Return the policies whose values may be marked as the best: no published policy, and `noop` only if no other
        policy was measured. Privileged policies are included only if all measured policies but `noop` are privileged.
        """
        # `published` contains the paper's policies. Privileged policies see simulator state that no real robot has.
        measured_policies = {policy for policy in policies if policy not in self.published}
        acting = measured_policies - {NOOP} or measured_policies  # `noop` competes only if it is alone
        # If all acting policies are privileged, they compete with each other; otherwise, no privileged policy competes.
        return {policy for policy in acting if not self.is_privileged(policy)} or acting

    def policy_column(self) -> Column:
        # Return the column with the policy's name, for rows that are summaries of one policy on one suite (cells).
        # In auxiliary rows, which are not part of any mean, the name has the remark `auxiliary`.
        return text_column("Policy", lambda cell: self.policy_cell(cell.policy, auxiliary=self.is_auxiliary(cell)))

    def policy_cell(self, policy: str | None, *, auxiliary: bool = False) -> Cell:
        """Return the cell that names a policy; its detail lists facts about the policy, such as `privileged state`."""
        # Remark -> whether it is true of the policy.
        holds_by_remark = {
            "privileged state": self.is_privileged(policy),
            "does nothing": policy == NOOP,
            "auxiliary": auxiliary,
            "published": policy in self.published,
        }
        return Cell(policy or UNNAMED, detail=", ".join(remark for remark, holds in holds_by_remark.items() if holds))

    def training_kind(self, policy: str | None, suite: str | None) -> str:
        """Return a policy's kind of training (for this suite if the policy is published); a dash if it is unknown."""
        # `training` comes from the user, and overrides what the paper prints.
        name = policy or UNNAMED
        return self.training.get(name) or self.published.get(name, {}).get(suite or "") or NO_VALUE


def headline_table(
    cells: Sequence[Summary], aggregate: Summary | None = None, *, privileged: Collection[str | None] = ()
) -> Table:
    """Return the table of headline numbers, with a row per policy × suite, and a row for `aggregate` if a single policy
    has several rows. A row of a `privileged` policy says that the policy used state which no real robot has.
    """
    # Policies are never pooled with each other, so `aggregate` (the summary of all episodes) needs a single policy.
    is_one_policy = len({cell.policy for cell in cells}) == 1
    pooled_rows = [aggregate] if aggregate is not None and len(cells) > 1 and is_one_policy else []
    simulators = {(cell.policy, cell.suite or ""): cell.simulator for cell in cells}

    def policy_cell(cell: Summary) -> Cell:
        # Return the cell with the policy's name and, if the policy is privileged, a remark.
        # `privileged` are the policies that see simulator state which no real robot has.
        # `pooled_rows` is empty, or contains only the summary of all episodes.
        if cell in pooled_rows:
            return Cell("All, pooled", emphasis="total")
        return Cell(columns.policy_name(cell), detail="privileged state" if cell.policy in privileged else "")

    def suite_cell(cell: Summary) -> Cell:
        # Return the cell with the suite's name. The name is empty in the pooled row.
        # In any other row without a suite, the name is a dash.
        # The detail says that stand-ins replaced the host's own assets.
        name = cell.suite or ("" if cell in pooled_rows else NO_VALUE)
        return Cell(name, detail=provenance_marks.STANDIN if cell.standin_assets else "")

    return tabulate(
        "Headline numbers",
        [*cells, *pooled_rows],
        text_column("Policy", policy_cell),
        text_column("Suite", suite_cell),
        Column("n", "episodes that ran to their end", columns.format_count),
        *columns.metric_columns((SR, SAFETY, SBU, VSI)),
        *columns.lost_columns(cells),
        name="headline",
        notes=(
            columns.describe_intervals(cells),
            _clean_note(cells),
            *columns.lost_notes(cells),
            provenance_marks.describe_simulators(simulators),
        ),
        dash=columns.DASH,
        remarks=provenance_marks.warn_of_cells(cells),
    )


def _clean_note(cells: Iterable[Summary]) -> str:
    # Return a note on how unsafe a policy may be although no episode was unsafe; "" if every cell has unsafe episodes.
    # The note is about the smallest cell (policy × suite) in which all episodes are safe.
    # `count` of the `n` judged episodes of a cell are safe.
    rates = [cell.rates[SAFETY.key] for cell in cells if has_verdict(cell)]
    # Episodes with the same initial state (start) are not independent, so starts are counted if there are fewer.
    clean_counts = [rate.starts or rate.n for rate in rates if rate.count == rate.n]
    if not clean_counts:
        return ""
    # A cell without `starts` has one episode per start, so the word `starts` is right for all cells.
    noun = " starts" if any(rate.starts for rate in rates) else ""
    return f"If no episode of {min(clean_counts)}{noun} was unsafe, {describe_clean_bound(min(clean_counts))}."


def severity_table(cells: Sequence[Summary], roster: Roster) -> Table:
    """Return the table of P[U|S] (unsafe among successes), VSI and VSI|U (among unsafe), a row per policy × suite."""
    # A cell summarizes one policy on one suite. VSI is the mean depth (0 to 1) of each episode's worst violation.
    return tabulate(
        "Unsafe successes and severity",
        cells,
        roster.policy_column(),
        columns.SUITE,
        columns.COUNT,
        *columns.metric_columns((UNSAFE_SUCCESS, VSI, VSI_UNSAFE)),
        name="severity",
        notes=(columns.describe_intervals(cells),),
        dash=columns.DASH,
    )


# Violations by specification


def constraint_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of violation rates (shares of judged episodes), with a row per policy × suite and a column
    per scored specification. A specification that is inactive in every episode has a dash, never a zero. Raises
    `KeyError` if the summaries have different specifications. `title` is the title of the group of suites.
    """
    # A cell is one policy on one suite. `roster` contains facts about policies, such as remarks next to their names.
    # `lost_columns` and `lost_notes` are about lost episodes: crashed, stopped, or without a verdict.
    # Specification -> its axis (kind of limit), which is the heading above its column.
    specs = {spec.spec_id: spec.axis for cell in cells for spec in cell.specs if spec.tier == "safe"}
    return tabulate(
        f"Violation rates by specification{': ' if title else ''}{title}",
        cells,
        roster.policy_column(),
        columns.SUITE,
        columns.COUNT,
        Column("Unsafe %", "episodes that violate any specification", _unsafe_cell),
        *(
            Column(spec_id, group=axis.replace("_", " ").capitalize(), value=partial(_violation_rate_cell, spec_id))
            for spec_id, axis in specs.items()
        ),
        *columns.lost_columns(cells),
        name=table_file_name("violations", title),
        notes=(
            columns.describe_rates(
                rate for cell in cells for rate in (cell.rates[SAFETY.key], *(s.violations for s in cell.specs))
            ),
            "Rates are in % of the cell's judged episodes. The rates do not add up to Unsafe %, because an episode may "
            "violate several specifications.",
            torque_note(cells),
            *columns.lost_notes(cells),
        ),
        dash=f"{NO_VALUE} never means zero. If no reason is below a dash, the specification is inactive: it applies to "
        "no episode of the cell, or its signal is not measured.",
    )


def _unsafe_cell(cell: Summary) -> Cell:
    # Return the percentage of unsafe episodes of a policy on a suite; without a verdict, a dash with the reason.
    if not has_verdict(cell):
        return Cell.dash(columns.why_no_safety(cell))
    return columns.rate_cell(cell.rates[SAFETY.key].complement, n=cell.n)


def _violation_rate_cell(spec_id: str, cell: Summary) -> Cell:
    # Return the percentage of judged episodes that violate the specification; a dash without any verdict on it.
    # `active` counts the episodes to which the specification applies.
    # `vacuous` counts the active episodes in which the specification's condition never arose.
    spec = {spec.spec_id: spec for spec in cell.specs}[spec_id]
    if not spec.active:
        return Cell.dash()
    return Cell.dash("vacuous") if spec.vacuous == spec.active else columns.rate_cell(spec.violations, n=cell.n)


def violation_table(cell: Summary, *, scored: bool = True) -> Table:
    """Return the table of violations by specification, for one policy on one suite. A specification that is inactive,
    vacuous or without a verdict in every episode has dashes. If `scored`, the table has the scored specifications.
    Otherwise, it has the diagnostics and alternate limits, which do not affect headline numbers.
    """
    # `cell` summarizes one policy on one suite; the table has a row per specification. The tier `safe` is scored.

    def judged_column(name: str, meaning: str, make_cell: Callable[[SpecSummary], Cell | int]) -> Column:
        # Return a column with `make_cell(spec)`, or a dash for a specification without a verdict.
        return Column(name, meaning, lambda spec: Cell.dash() if _why_unjudged(cell, spec) else make_cell(spec))

    method = columns.name_method(spec.violations for spec in cell.specs)
    stopped_note = "A violation stopped some episodes, whose later violations are therefore not known."
    return tabulate(
        "Violations by specification" if scored else "Diagnostics and alternate limits, which are not scored",
        [spec for spec in cell.specs if (spec.tier == "safe") == scored],
        text_column("Specification", lambda spec: spec.spec_id),
        Column("Violated", "number, out of the judged episodes in the cell", partial(_violated_cell, cell)),
        judged_column("% of all", f"share, with 95 % interval ({method})", lambda s: columns.rate_cell(s.violations)),
        judged_column(
            "of active", "number, out of the episodes in which the specification applies", _violated_of_active_cell
        ),
        judged_column("in successes", "violations in successful episodes", lambda spec: spec.unsafe_success),
        judged_column(
            "Depth",
            "mean depth over active episodes that are not vacuous, from 0 to 1",
            lambda spec: columns.mean_cell(spec.nsv, "ungraded"),
        ),
        Column("Vacuous", "the specification applies, but its condition never arose", lambda spec: spec.vacuous),
        Column(
            "Inactive",
            "the specification does not apply, or its signal was not measured",
            lambda spec: sum(spec.inactive.values()),
        ),
        notes=(
            "An episode counts once for each specification that it violates.",
            stopped_note if cell.stopped_on_violation else "",
        ),
        dash=columns.DASH,
    )


def _violated_cell(cell: Summary, spec: SpecSummary) -> Cell:
    # Return `violated/judged` in numbers of episodes, marked as bad if any episode violates the specification.
    # Without a verdict, return a dash with the reason.
    violated_count, why = spec.violations.count, _why_unjudged(cell, spec)
    return Cell.dash(why) if why else replace(Cell.fault(violated_count), text=f"{violated_count}/{spec.violations.n}")


def _violated_of_active_cell(spec: SpecSummary) -> Cell:
    # Return `violated/active`: how many episodes violate the specification, and to how many it applies.
    return Cell(f"{spec.violations.count}/{spec.violations_when_active.n}", spec.violations.count)


def _why_unjudged(cell: Summary, spec: SpecSummary) -> str:
    # Return why the specification has no verdict in any episode of the cell; "" if it has a verdict in some episode.
    # `active` counts the episodes to which the specification applies.
    # `inactive` maps each reason to the number of episodes in which the specification is inactive for this reason.
    if not spec.active:
        return "inactive" if spec.inactive else "no episode"
    # The specification applies to some episodes, but its condition never arose in them.
    if spec.vacuous == spec.active:
        return "vacuous"
    return "" if spec.violations.n else columns.why_no_safety(cell)


def composition_table(cells: Sequence[Summary], roster: Roster, title: str = "") -> Table:
    """Return the table of the specifications that unsafe successes violate. The shares in a cell add up to 100 %. A
    policy × suite without unsafe successes or verdicts has one row with dashes. `title` names the group of suites.
    """
    # `roster` contains facts about policies, such as their training. These facts determine marks of rows and names.
    # The columns, in the order of the cells in each row.
    heads = (
        *map(text_column, ("Policy", "Suite")),
        *map(Column, ("n", "Unsafe successes")),
        Column(SBU.heading, SBU.meaning),
        text_column("Specification"),
        Column("Violations", "number of violations in unsafe successes"),
        Column("Share %", "share of the cell's violations in unsafe successes"),
    )
    rows = tuple(row for cell in cells for row in _composition_rows(cell, roster))
    heading = f"What unsafe successes violate{': ' if title else ''}{title}"
    table = Table(heading, heads, rows, name=table_file_name("composition", title))
    return add_notes(table, "An unsafe success counts once for each specification that it violates.", dash=columns.DASH)


def _composition_rows(cell: Summary, roster: Roster) -> Iterator[tuple[Cell, ...]]:
    # Yield a row per violated specification, the most frequent first; a row with dashes if there is none.
    # `cell` is the summary of one policy on one suite.
    # `unsafe_success` is the number of successful episodes that violate the specification.
    name_cells = tuple(column.cell(cell) for column in (roster.policy_column(), columns.SUITE, columns.COUNT))
    # An episode that a violation stopped could have become an unsafe success. Then their number is unknown.
    unknown_reason = cell.rates[SBU.key].unknown or ("" if has_verdict(cell) else columns.why_no_safety(cell))
    if unknown_reason:
        yield (*name_cells, Cell.dash(unknown_reason), *[Cell.dash()] * 4)  # the other columns are empty
        return
    common_cells = (*name_cells, Cell.count(cell.success_unsafe), columns.rate_cell(cell.rates[SBU.key], n=cell.n))
    violated_specs = [spec for spec in cell.specs if spec.tier == "safe" and spec.unsafe_success]
    violation_count = sum(spec.unsafe_success for spec in violated_specs)
    for spec in sorted(violated_specs, key=lambda spec: -spec.unsafe_success):
        share = Fraction(100 * spec.unsafe_success, violation_count)  # in percent
        yield (
            *common_cells,
            Cell(spec.spec_id),
            Cell.count(spec.unsafe_success),
            Cell(format_fixed(share, 0), float(share)),
        )
    if not violated_specs:
        yield (*common_cells, Cell.dash("no unsafe success"), Cell.count(0), Cell.dash())


# Tables with a row per policy, a column per suite, and a column for the mean over suites (paper Tables 4 to 6)

LARGEST = "†"  # marks the largest SBU of a column, as in the paper
Cells = Mapping[str, Summary]  # suite -> the summary of one policy on this suite


@dataclass(frozen=True, slots=True)
class ExactCell:
    """A table cell with its exact value. If `competes`, the cell may be marked as the best or largest of its column."""

    cell: Cell
    exact: Fraction | None = None
    competes: bool = True


def exact_value(number: Rate | Mean) -> Fraction | None:
    """Return the exact value of a proportion or a mean; None if there is no value."""
    # Fractions have no rounding errors, so equal values are recognized as equal.
    if isinstance(number, Rate):
        return Fraction(number.count, number.n) if number.n else None
    return None if number.value is None else Fraction(number.value)


def suite_mean(metric: Metric, cells: Cells, suites: Sequence[str]) -> ExactCell:
    """Return the unweighted mean of a metric over suites, with its interval. If a suite was not run or judged, or has
    an unknown value, the cell is a dash, or the paper's printed mean of VSI. The mean leaves out suites in which the
    metric is undefined, such as P[U|S] without a success. The cell then says so, and is never marked as the best.
    """
    # `cells` maps suites to the summaries of one policy. `unknown` is the reason why a value is unknown, or "".
    run_cells = [cells[suite] for suite in suites if suite in cells]  # the summaries of the suites that were run
    if unknown_reasons := list(filter(None, (cell.number(metric).unknown for cell in run_cells))):
        # For VSI, the paper prints some means over suites without the values of the suites.
        printed = printed_mean(run_cells[0].policy, suites) if metric is VSI else None
        return ExactCell(Cell(metric.format(printed.vsi), printed.vsi) if printed else Cell.dash(unknown_reasons[0]))
    # A suite has a value only if some episode has a verdict. For a metric without verdicts (SR), any episode is enough.
    judged = [cell for cell in run_cells if (has_verdict(cell) if metric.needs_verdict else cell.n)]
    if len(judged) < len(suites):
        return ExactCell(Cell.dash(f"{len(judged)} of {len(suites)} suites"))
    numbers = [cell.number(metric) for cell in judged]
    exact_values = [value for value in map(exact_value, numbers) if value is not None]
    if not exact_values:
        # No suite has a value; the first suite's cell says why.
        return ExactCell(Cell.dash(columns.metric_cell(metric, judged[0]).detail))
    value = sum(exact_values, Fraction(0)) / len(exact_values)
    cell = Cell(metric.format(value), float(metric.scale * value))
    if len(exact_values) < len(suites):
        cell = replace(cell, detail=f"mean of {len(exact_values)} of {len(suites)} suites")
        return ExactCell(cell, value, competes=False)
    interval = _mean_interval(numbers)
    if interval is not None:  # otherwise, the cell keeps the value without an interval
        cell = Cell.estimate(value, (interval.low, interval.high), metric.digits, metric.scale)
    return ExactCell(cell, value)


def _mean_interval(numbers: Sequence[Rate | Mean]) -> Interval | None:
    """Return the interval of the unweighted mean of one number per suite; None if a number has no interval. If all
    numbers are rates of independent episodes, the interval follows from their counts. Otherwise (means, or printed
    rates with several possible counts), the intervals of the numbers are combined (MOVER).
    """
    # `ci` is the interval of one number. `Rate.of` assumes independent episodes and a known count.
    # A rate that differs from `Rate.of` has dependent episodes, or several possible counts.
    rates = [number for number in numbers if isinstance(number, Rate) and number == Rate.of(number.count, number.n)]
    if len(rates) == len(numbers):
        return mean_rate_interval([rate.count for rate in rates], [rate.n for rate in rates])
    estimates = [(number.value, Interval(*number.ci)) for number in numbers if number.value is not None and number.ci]
    if len(estimates) < len(numbers):
        return None
    # All suites have equal weights.
    return combine_intervals(estimates, [1 / len(estimates)] * len(estimates))


def suite_table(cells: Sequence[Summary], roster: Roster, title: str = "", *, order: Sequence[str] = ()) -> Table:
    """Return the table with a row per policy: SR, Safety and SBU for each suite, and means over suites, also of P[U|S]
    and VSI (paper Tables 4, 5). Auxiliary results are left out. Suites that are not in `order` come last.
    """
    main_cells = [cell for cell in cells if not roster.is_auxiliary(cell)]
    # Distinct names of suites; a missing name becomes a dash.
    suites = dict.fromkeys(cell.suite or NO_VALUE for cell in main_cells)
    suite_names = sorted(suites, key=lambda suite: order.index(suite) if suite in order else len(order))
    # Policy -> suite -> summary, and the policies whose values may be marked as the best of a column.
    policies = _cells_by_policy(main_cells)
    competing = roster.competing_policies(policies)
    uneven_by_suite = _find_uneven_suites(policies, suite_names, competing)
    # For each metric: a column for each suite, then a column for the mean.
    value_columns = [
        column
        for metric in (SR, SAFETY, SBU)
        for column in _metric_block(metric, policies, suite_names, competing, uneven_by_suite)
    ]
    for metric in (UNSAFE_SUCCESS, VSI):
        # The last column is the mean over suites, or the value of the only suite.
        mean = _metric_block(metric, policies, suite_names, competing, uneven_by_suite)[-1]
        value_columns.append(replace(mean, meaning=metric.meaning))
    table = tabulate(
        f"Main results: {title}" if title else "Main results",
        policies,
        text_column("Policy", roster.policy_cell),
        text_column("Training", lambda policy: roster.training_kind(policy, suite_names[0])),
        text_column("Suite", lambda policy: suite_names[0]) if len(suite_names) == 1 else None,
        Column("n", "episodes per suite", lambda policy: _episode_range_cell(policies[policy])),
        *value_columns,
        *columns.lost_columns(main_cells, lambda policy: policies[policy].values()),
        name=table_file_name("main", title),
    )
    over_starts = " and of rates over starts" if any(cell.rates[SR.key].starts for cell in main_cells) else ""
    mean_notes = [
        "Means over suites are unweighted; a policy that did not run all suites has no mean.",
        "Intervals of mean rates over suites: Clopper-Pearson (exact) if all n are equal, else Gaffke; of VSI"
        f"{over_starts}: MOVER.",
    ]
    notes = (columns.describe_intervals(main_cells), *(mean_notes if len(suite_names) > 1 else []))
    # Measured policies that cannot be marked as the best, such as privileged policies.
    unmarked = [policy or UNNAMED for policy in policies if policy not in {*competing, *roster.published}]
    uneven_notes = [
        f"Only SR is marked {f'on {suite}' if len(suite_names) > 1 else 'as the best'}: {reason}."
        for suite, reason in uneven_by_suite.items()
    ]
    notes = (*notes, *_mark_notes(table.rows, unmarked), *uneven_notes, *columns.lost_notes(main_cells))
    return add_notes(table, *notes, dash=columns.DASH)


def _episode_range_cell(cells: Mapping[str, Summary]) -> Cell:
    # Return the number of episodes per suite, as a range if the suites differ. `cells` maps suites to summaries.
    counts = sorted({cell.n for cell in cells.values()})
    return Cell.count(counts[0]) if len(counts) == 1 else Cell(f"{counts[0]}–{counts[-1]}")


def _mark_notes(rows: Iterable[Sequence[Cell]], unmarked: Sequence[str]) -> Iterator[str]:
    # Yield a note on each kind of mark that these rows have: bold for the best value, `LARGEST` for the largest SBU.
    # `unmarked` are the measured policies that are never marked.
    cells = [cell for row in rows for cell in row]
    without = f", without {' and '.join(unmarked)}" if unmarked else ""
    if any(cell.emphasis == "best" for cell in cells):
        yield f"Bold: the best value of a column{without}."
    if any(cell.mark == LARGEST for cell in cells):
        yield f"{LARGEST}: the largest SBU of a column{without}."


def _cells_by_policy(cells: Sequence[Summary]) -> dict[str | None, dict[str, Summary]]:
    # Return policy -> suite -> summary, in order of first appearance. A missing suite name becomes a dash.
    by_policy: dict[str | None, dict[str, Summary]] = {}
    for cell in cells:
        by_policy.setdefault(cell.policy, {})[cell.suite or NO_VALUE] = cell
    return by_policy


def _find_uneven_suites(
    policies: Mapping[str | None, Cells], suite_names: Sequence[str], competing: set[str | None]
) -> dict[str, str]:
    # Return suite -> the reason why the values of the competing policies cannot be compared on this suite.
    # The reason is that a scored specification judges some episodes, but other episodes lack its signals.
    rivals = [cells for policy, cells in policies.items() if policy in competing]
    reasons = {}
    for suite in suite_names:
        clauses = [split_cell_clauses(cells[suite]) for cells in rivals if suite in cells]
        if len(clauses) > 1 and (reason := describe_uneven(clauses)):
            reasons[suite] = reason
    return reasons


def _metric_block(
    metric: Metric,
    policies: Mapping[str | None, Cells],
    suite_names: Sequence[str],
    competing: set[str | None],
    uneven_suites: Collection[str],
) -> list[Column]:
    # Return a column for each suite and, if there are several suites, a column for the mean over them.
    # Rows are policies; only those in `competing` can be marked as the best of a column.
    # `policies` maps each policy to its summary on each suite.
    # On `uneven_suites`, specifications judge only some of the episodes. Values that depend on such suites get no mark.
    uneven = set(uneven_suites) if metric.needs_verdict else set()
    headings = [Column(short, group=metric.heading, meaning=name) for name, short in _short_names(suite_names).items()]
    # For each column: policy -> its cell.
    column_cells = [
        {policy: _exact_cell(metric, cells.get(name)) for policy, cells in policies.items()} for name in suite_names
    ]
    if len(suite_names) == 1:
        headings = [Column(metric.heading, metric.meaning)]
    else:
        headings.append(Column("mean", group=metric.heading, meaning="over suites"))
        column_cells.append({policy: suite_mean(metric, cells, suite_names) for policy, cells in policies.items()})
    # For each column: whether it depends on a suite with uneven specifications. The mean depends on all suites.
    depends = [*(name in uneven for name in suite_names), *([bool(uneven)] if len(suite_names) > 1 else [])]
    return [
        _mark_column(metric, heading, exact_cells, set() if is_uneven else competing)
        for heading, exact_cells, is_uneven in zip(headings, column_cells, depends, strict=True)
    ]


def _exact_cell(metric: Metric, cell: Summary | None) -> ExactCell:
    # Return the table's cell for the summary of one policy on one suite, with the exact value of the metric.
    # The exact value is None if it is not known. `cell` is None if the policy did not run the suite.
    if cell is None:
        return ExactCell(Cell.dash("not run"))
    is_known = has_verdict(cell) or not metric.needs_verdict  # SR needs no verdict on safety
    return ExactCell(columns.metric_cell(metric, cell), exact_value(cell.number(metric)) if is_known else None)


def _mark_column(
    metric: Metric, heading: Column, exact_cells: Mapping[str | None, ExactCell], competing: set[str | None]
) -> Column:
    """Return the column with marks: bold for the best value, a dagger for the largest SBU. Exact (unrounded) values
    decide. Cells are marked only if at least two competing values differ.
    """
    # `heading` is the column without values. Each policy is a row of the table.
    # `exact_cells` is policy -> cell, and `competing` are the policies whose cells may be marked.
    rivals = {policy: cell.exact for policy, cell in exact_cells.items() if policy in competing and cell.competes}
    exact_values = {policy: exact for policy, exact in rivals.items() if exact is not None}
    cells = {policy: exact_cell.cell for policy, exact_cell in exact_cells.items()}
    if len(set(exact_values.values())) > 1:
        least, largest = min(exact_values.values()), max(exact_values.values())
        best = largest if metric.better == "high" else least
        for policy, value in exact_values.items():
            if value == best:
                cells[policy] = replace(cells[policy], emphasis="best")
            if metric is SBU and value == largest:
                cells[policy] = replace(cells[policy], mark=LARGEST)
    return replace(heading, value=cells.__getitem__)


def _short_names(suite_names: Sequence[str]) -> dict[str, str]:
    # Return suite -> short name: without the part up to the first hyphen if this part is the same for all suites.
    # For example, `libero-goal` and `libero-object` become `goal` and `object`.
    prefixes = {name.partition("-")[0] for name in suite_names}
    prefix_length = len(prefixes.pop()) + 1 if len(prefixes) == 1 and all("-" in name for name in suite_names) else 0
    return {name: name[prefix_length:] for name in suite_names}


def auxiliary_table(cells: Sequence[Summary], roster: Roster) -> Table:
    """Return the table of auxiliary results (paper Table 6). They are in no mean, and are never marked as the best."""
    # A cell is the summary of one policy on one suite; the roster says which policies and suites are auxiliary.
    auxiliary_cells = [cell for cell in cells if roster.is_auxiliary(cell)]
    return tabulate(
        "Auxiliary results, excluded from every mean",
        auxiliary_cells,
        text_column("Policy", lambda cell: roster.policy_cell(cell.policy)),
        text_column("Training", lambda cell: roster.training_kind(cell.policy, cell.suite)),
        columns.SUITE,
        columns.COUNT,
        *columns.metric_columns((SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI)),
        *columns.lost_columns(auxiliary_cells),
        name="auxiliary",
        notes=(columns.describe_intervals(auxiliary_cells), *columns.lost_notes(auxiliary_cells)),
        dash=columns.DASH,
    )
