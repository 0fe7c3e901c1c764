"""Tables computed from records: bodies in violations, times of violations, agreement with simulators' labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from safevla_bench.compare.policy_results import list_first
from safevla_bench.explain import exposure
from safevla_bench.explain.agreement import ANY_CLAUSE, Agreement, Disagreement, cohen_kappa, kappa_interval
from safevla_bench.explain.bodies import BodyViolation
from safevla_bench.judging.metrics import cell_members
from safevla_bench.judging.rates import Rate, interval_bounds
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables import columns
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.text import NO_VALUE, format_compact, format_significant
from safevla_recorder.episode import Ints


@dataclass(frozen=True, slots=True)
class _LimitRow:
    # A row of a table: a policy, a suite, and the result for one limit.
    policy: str | None
    suite: str | None
    limit: Any  # a `LimitExposure` or a `SpecOnset`


# The bodies in violations


@dataclass(frozen=True, slots=True)
class _KindRow:
    # The violations of one specification by one kind of body (or pair of kinds), for one policy on one suite.
    policy: str | None
    suite: str | None
    spec_id: str
    kinds: tuple[str, ...]
    violations: Sequence[BodyViolation]
    rate: Rate


def body_table(violations: Sequence[BodyViolation], scores: Scores) -> Table:
    """Return the table of bodies in violations, with a note if there are none."""
    # A row is one specification and one kind of body (or pair of kinds), for one policy on one suite.
    rows = [
        row for cell, members in cell_members(scores).items() for row in _kind_rows(cell, members, violations, scores)
    ]
    note = (
        "An episode may violate a specification with bodies of several kinds, so rows do not add up. A pair is two "
        "bodies in contact. Kinds follow from roles, robosuite's names and the goal; no verdict depends on them."
    )
    return tabulate(
        "Violations by kind of body",
        rows,
        columns.POLICY,
        columns.SUITE,
        text_column("Specification", lambda row: row.spec_id),
        text_column("Kind of body", lambda row: format_kinds(row.kinds)),
        Column(
            "Episodes", "episodes with a violating body of this kind", lambda row: Cell.count(row.rate.count, "bad")
        ),
        Column("%", "percentage of the judged episodes", lambda row: columns.rate_cell(row.rate)),
        Column("Worst", "largest value of a body of this kind", lambda row: _worst_cell(row.violations)),
        text_column("Bodies", lambda row: _format_bodies(row.violations), "each body with its number of episodes"),
        name="bodies",
        notes=[columns.describe_rates(row.rate for row in rows), note]
        if rows
        else ["No specification of contact or displacement was violated."],
        dash=columns.DASH,
    )


def _kind_rows(
    cell: tuple[str | None, str], members: Ints, violations: Sequence[BodyViolation], scores: Scores
) -> Iterator[_KindRow]:
    # Yield the rows of a cell (policy, suite); `members` are the indices of the cell's episodes, [n].
    # For each specification, the kinds of bodies that occur in the most episodes come first.
    judged = members[scores.is_judged[members]]
    numbers = set((judged + 1).tolist())  # violations name episodes by numbers from 1
    for spec in scores.specs:
        by_kind: dict[tuple[str, ...], list[BodyViolation]] = {}
        for violation in violations:
            if violation.number in numbers and violation.spec_id == spec.spec_id:
                by_kind.setdefault(violation.kinds, []).append(violation)
        rows = []
        for kinds, kind_violations in by_kind.items():
            # A mask of the judged episodes, [judged]: an episode with several violating bodies counts once.
            is_violated = np.isin(judged + 1, [violation.number for violation in kind_violations])
            rate = Rate.of_values(is_violated, scores.start[judged])
            rows.append(_KindRow(*cell, spec.spec_id, kinds, kind_violations, rate))
        yield from sorted(rows, key=lambda row: (-row.rate.count, row.kinds))


def format_kinds(kinds: Sequence[str]) -> str:
    """Return as text the kind of a body, or the kinds of a pair of bodies, such as `gripper – furniture`."""
    return " – ".join(kinds)


def _worst_cell(violations: Sequence[BodyViolation]) -> Cell:
    # Return the largest value of a body in these violations, with its unit. There must be at least one violation.
    peak = max(violations, key=lambda violation: violation.worst)
    # A signal without a unit only says whether the bodies touched.
    return Cell.amount(peak.worst, peak.unit) if peak.unit != "1" else Cell("touched", peak.worst)


def _format_bodies(violations: Sequence[BodyViolation]) -> str:
    # Return the three most frequent bodies (or pairs), with numbers of episodes, and how many other bodies there are.
    counts = Counter(" – ".join(violation.bodies) for violation in violations)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    return list_first([f"{name} ({counts[name]})" for name in ranked], most=3)


# Time in violation


def exposure_table(cells: Sequence[exposure.CellExposure]) -> Table:
    """Return the table of time in violation by policy × suite: of any limit, then of each violated specification."""
    # A row is the result for one limit in a cell (policy × suite). `violation_s` is the mean time in violation.
    # `first_s` is the median time of the first violation; None = no violation.
    # Limits without a violation have no row, except `ANY_LIMIT`.
    rows = [
        _LimitRow(cell.policy, cell.suite, limit)
        for cell in cells
        for limit in cell.limits
        if limit.spec_id == exposure.ANY_LIMIT or limit.first_s is not None
    ]
    return tabulate(
        "Time in violation",
        rows,
        columns.POLICY,
        columns.SUITE,
        text_column("Limit", lambda row: row.limit.spec_id),
        Column("n", "episodes judged by this limit", lambda row: row.limit.violation_s.n),
        Column(
            "In violation",
            "mean seconds per episode",
            lambda row: columns.mean_cell(row.limit.violation_s, "no episode", digits=2),
        ),
        Column("First violation", "seconds, median", lambda row: Cell.number(row.limit.first_s, 2, "none unsafe")),
        notes=(
            "A record lasts until the next record; the last record lasts for one control step. A displaced body stays "
            "in violation until it is put back.",
            "Below each mean is its 95 % interval (Gaffke), which holds for any distribution up to the cell's longest "
            "horizon.",
        ),
        name="exposure",
    )


# Time to violation


# The table has columns for these times, as fractions of the duration of the longest episode.
_SHARES = (0.25, 0.5)


def onset_table(cells: Sequence[exposure.CellOnset]) -> Table:
    """Return the table of first violations and near misses, with rows for each specification and for any limit."""
    # A row is one limit in one cell (policy × suite). Each episode ends in violation, in success or in failure.
    # `row.limit.incidence` contains, for each way to end, the share of episodes that have ended so by a given time.
    # `row.limit.incidence.censored` is the number of episodes that were cut short.
    # The duration of the longest episode, and fractions of this duration, rounded to two figures without duplicates.
    end_s = max((cell.end_s for cell in cells), default=0.0)
    times_s = sorted({float(format_significant(share * end_s, 2)) for share in _SHARES if end_s})
    incidences = [spec.incidence for cell in cells for spec in cell.specs]
    near_meaning = f"limit kept, but with a margin below {format_compact(100 * exposure.NEAR)} % of the limit"
    return tabulate(
        "When violations begin, and near misses",
        [_LimitRow(cell.policy, cell.suite, spec) for cell in cells for spec in cell.specs if _is_shown(spec)],
        columns.POLICY,
        columns.SUITE,
        text_column("Limit", lambda row: row.limit.spec_id),
        Column("n", "episodes in which the limit applies", lambda row: columns.format_count(row.limit.incidence)),
        Column(
            "Cut short", "episodes cut short before a violation", lambda row: Cell.fault(row.limit.incidence.censored)
        ),
        *(Column(f"by {format_compact(at_s)} s", "", partial(_violated_cell, at_s), "Violated %") for at_s in times_s),
        Column("at the end", value=partial(_violated_cell, end_s), group="Violated %"),
        Column("in success", value=partial(_ended_cell, exposure.SUCCEEDED), group="Ended without %"),
        Column("in failure", value=partial(_ended_cell, exposure.FAILED), group="Ended without %"),
        Column("Near misses %", near_meaning, lambda row: columns.rate_cell(row.limit.near_misses, "all cut short")),
        notes=(
            "Cumulative incidence (Aalen and Johansen): an episode ends with its first violation of the limit, else in "
            "success or in failure. An episode that is cut short counts until the cut, which is assumed to be random.",
            f"Below each share is its pointwise 95 % interval ({columns.name_method(incidences)}).",
        ),
        name="onset",
    )


def _is_shown(spec: exposure.SpecOnset) -> bool:
    # Return whether the table has a row. `ANY_LIMIT` always has one; other rows need a violation or a near miss.
    # `shares` contains the share of episodes with a violation by each time; the last time is the end.
    has_violation_or_near_miss = bool(spec.incidence.shares[exposure.VIOLATED][-1] or spec.near_misses.count)
    return spec.spec_id == exposure.ANY_LIMIT or has_violation_or_near_miss


def _violated_cell(time_s: float, row: _LimitRow) -> Cell:
    # Return the percentage of episodes with a violation of the limit up to this time, with its interval.
    # `shares` contains an array over times for each way in which an episode ends.
    # `low` and `high` are the ends of the interval of the share with a violation. `at` gives the index for this time.
    incidence = row.limit.incidence
    shares = (incidence.shares[exposure.VIOLATED], incidence.low, incidence.high)
    share, low, high = (float(values[incidence.at(time_s)]) for values in shares)
    return Cell.estimate(share, (low, high), digits=1, scale=100)


def _ended_cell(ending: int, row: _LimitRow) -> Cell:
    # Return the percentage of episodes that ended without a violation, in success or in failure (`ending`).
    # `shares` is [endings, times]; the last time is the end of the longest episode.
    return Cell.number(100 * float(row.limit.incidence.shares[ending][-1]), 1)


# Safety labels from a simulator


def agreement_table(rows: Sequence[Agreement]) -> Table:
    """Return the table that compares each simulator's label with our verdicts: on all clauses, then on each clause."""
    # `counts` is [2, 2]: row = simulator's label, column = our verdict; 0 = safe, 1 = unsafe.
    return tabulate(
        "Agreement with the simulator's own safety labels",
        rows,
        text_column("Theirs", lambda row: row.label, "a cost above 0 at some step"),
        text_column("Ours", lambda row: row.clause, "a violation of this specification"),
        columns.COUNT,
        Column("both", group="Unsafe by", value=lambda row: int(row.counts[1, 1])),
        Column("theirs alone", group="Unsafe by", value=lambda row: int(row.counts[1, 0])),
        Column("ours alone", group="Unsafe by", value=lambda row: int(row.counts[0, 1])),
        Column("neither", group="Unsafe by", value=lambda row: int(row.counts[0, 0])),
        Column("Agree %", value=lambda row: columns.rate_cell(row.agreeing, "no episode to compare")),
        Column("κ", "Cohen's kappa", _kappa_cell),
        Column("No label", "label unknown, not in n", lambda row: row.unlabeled),
        Column("Undecided", "verdict unknown or inactive, not in n", lambda row: row.undecided),
        name="agree",
        notes=(
            f"Ours: {ANY_CLAUSE} means that some clause is violated. κ is 1 at full agreement, 0 at chance level.",
            f"Below each share is its 95 % interval ({columns.name_method(row.agreeing for row in rows)}), below κ its "
            "95 % credible interval (Jeffreys), which assumes independent episodes.",
            "A label is unknown if the record has no label, or if the episode ended early without a cost.",
        ),
        dash=f"κ is undefined ({NO_VALUE}) if label and verdict call all episodes safe, or all unsafe.",
    )


def _kappa_cell(row: Agreement) -> Cell:
    # Return Cohen's kappa with its interval; a dash if it is undefined.
    # `counts` [2, 2] are the numbers of episodes by label and verdict (safe, unsafe).
    ends = interval_bounds(kappa_interval(row.counts))
    return Cell.dash() if ends is None else Cell.estimate(float(cohen_kappa(row.counts)), ends, 3)


def disagreement_table(rows: Sequence[Disagreement], scores: Scores) -> Table:
    """Return the table of episodes in which the simulator's label and our verdict differ."""
    return tabulate(
        "Episodes in which label and verdict disagree",
        rows,
        # `row.episode` is an index into the scores.
        text_column("Episode", lambda row: scores.episode_id[row.episode]),
        text_column("Policy", lambda row: scores.policy[row.episode] or UNNAMED),
        text_column("Theirs", _describe_label),
        text_column("Ours", lambda row: _describe_verdict(scores, row.episode)),
        name="disagree",
    )


def _describe_label(row: Disagreement) -> str:
    # Return the name of the simulator's label, such as a kind of cost, and the label's verdict on the episode.
    # The verdict is `safe`, or the total cost and the first record with a cost. `first` is -1 if there is no cost.
    if row.cost.first < 0:
        return f"{row.label}: safe"
    return f"{row.label}: total {format_compact(row.cost.total)}, from record {row.cost.first}"


def _describe_verdict(scores: Scores, index: int) -> str:
    # Return as text the specifications that this episode violates, and the first violating record; `safe` without any.
    # `index` is the episode's index in the scores.
    violated = [scores.specs[k].spec_id for k in scores.scored_columns if scores.is_violated[k, index]]
    # Item 0 of `first_violation` is the first violating record of each episode.
    return f"{', '.join(violated)}, from record {scores.first_violation[0][index]}" if violated else "safe"
