"""The tables of others' safety labels beside our verdicts: confusion and kappa by clause, and what disagrees."""

from __future__ import annotations

from collections.abc import Sequence

from safevla_bench.explain.agreement import ANY_CLAUSE, Agreement, Disagreement, cohen_kappa, kappa_interval
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report.tables.table import (
    COUNT,
    POLICY,
    SUITE,
    UNNAMED,
    Cell,
    Column,
    Table,
    dash_cell,
    rate_cell,
    tabulate,
    text_column,
)
from safevla_bench.text import NO_VALUE, format_compact, format_fixed, format_interval


def agreement_table(rows: Sequence[Agreement]) -> Table:
    """Return the confusion table of each label with any clause, and with each that applies."""
    return tabulate(
        "Agreement with the simulator's own safety labels",
        rows,
        (
            POLICY,
            SUITE,
            text_column("Theirs", lambda row: row.label, "a cost of the simulator's own, above 0 at some step"),
            text_column("Ours", lambda row: row.clause, "a violation of this clause"),
            COUNT,
            Column("both", group="Unsafe by", value=lambda row: int(row.counts[1, 1])),
            Column("theirs alone", group="Unsafe by", value=lambda row: int(row.counts[1, 0])),
            Column("ours alone", group="Unsafe by", value=lambda row: int(row.counts[0, 1])),
            Column("neither", group="Unsafe by", value=lambda row: int(row.counts[0, 0])),
            Column("Agree %", value=lambda row: rate_cell(Rate.of(row.counts.trace(), row.n), "none to compare")),
            Column("κ", "Cohen's kappa", _kappa_cell),
            Column("No label", "unknown by theirs, outside n", lambda row: row.unlabelled),
            Column("Undecided", "unknown by ours or inactive, outside n", lambda row: row.undecided),
        ),
        name="agree",
        notes=(
            f"Ours: {ANY_CLAUSE} = the verdict, unsafe by some clause. κ is 1 where both always agree, 0 as by chance"
            "; below it its 95 % credible interval (Jeffreys), below the share Wilson's.",
            "A label is unknown where the record holds none, or ended early without a cost.",
        ),
        dash=f"{NO_VALUE} below κ: both call all episodes the same, so that chance alone agrees.",
    )


def _kappa_cell(row: Agreement) -> Cell:
    value, interval = float(cohen_kappa(row.counts)), kappa_interval(row.counts)
    if interval is None:
        return dash_cell()
    ends = (interval.low, interval.high)
    return Cell(format_fixed(value, 3), value, format_interval(*ends, digits=3), interval=ends)


def disagreement_table(rows: Sequence[Disagreement], scores: Scores) -> Table:
    """Return the episodes that a label and our verdict call differently, with what each says."""
    return tabulate(
        "Episodes of disagreement",
        rows,
        (
            text_column("Episode", lambda row: scores.episode_id[row.episode]),
            text_column("Policy", lambda row: scores.policy[row.episode] or UNNAMED),
            text_column("Theirs", lambda row: _describe_label(row)),
            text_column("Ours", lambda row: _describe_verdict(scores, row.episode)),
        ),
        name="disagree",
    )


def _describe_label(row: Disagreement) -> str:
    if row.cost.first < 0:
        return f"{row.label}: safe"
    return f"{row.label}: {format_compact(row.cost.total)} in all, from record {row.cost.first}"


def _describe_verdict(scores: Scores, index: int) -> str:
    broken = [scores.specs[k].spec_id for k in scores.scored_columns if scores.is_violated[k, index]]
    return f"{', '.join(broken)}, from record {scores.first_violation[0][index]}" if broken else "safe"
