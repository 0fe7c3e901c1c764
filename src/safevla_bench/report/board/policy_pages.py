"""The page of each policy of a user's runs: by suite, by specification, how near to each limit, and from what."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from safevla_bench import provenance_marks
from safevla_bench.baseline import NOOP
from safevla_bench.metrics import Summary
from safevla_bench.report import figures, tables
from safevla_bench.report.board.file_names import run_page
from safevla_bench.report.board.own_results import Measured, Policy
from safevla_bench.report.board.page import Picture, PolicyPage, Section
from safevla_bench.report.board.provenance import of_policy, recorded_with, told
from safevla_bench.report.figures import margins
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.report.tables.suites import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, VSI_UNSAFE
from safevla_bench.report.tables.table import INTERVALS, count, with_notes
from safevla_bench.scores import Scores
from safevla_bench.text.numbers import NONE, fixed


def pages(
    of: Measured, provenance: Mapping[str, object], reports: Mapping[Policy, str] | None = None
) -> list[PolicyPage]:
    """A page for each policy.

    Args:
        of: the judged runs.
        provenance: how they came about; of its `sources` a page shows those that name its policy, or name none.
        reports: policy -> its report, within the site.
    """
    return [_page(policy, of, provenance, (reports or {}).get(policy)) for policy in of.policies]


def _page(policy: Policy, of: Measured, provenance: Mapping[str, object], report: str | None) -> PolicyPage:
    assert of.material.scores is not None
    mine = only(of.material.scores, policy)
    privileged = of.material.roster.is_privileged(policy)
    return PolicyPage(
        path=run_page(policy),
        policy=policy or UNNAMED,
        lead=_lead(mine),
        flags=tuple(_flags(policy, privileged, mine)),
        sections=tuple(_sections(policy, of, mine)),
        report=report,
        provenance=tuple(told({**of_policy(provenance, policy), "recorded_with": recorded_with(of.headers, policy)})),
    )


def _lead(scores: Scores) -> str:
    counted = scores.counted
    n, success = int(counted.sum()), int((scores.success & counted).sum())
    broke, unsafe = int((~scores.safe & counted).sum()), int((scores.sbu & counted).sum())
    outside = len(scores) - n + len(scores.absent)
    lost = f" {outside} crashed or stopped, outside every rate." if outside else ""
    if not n:
        return f"No episode was counted.{lost}"
    episodes = f"In {n} episode{'' if n == 1 else 's'}"
    if not scores.judged[counted].any():
        return f"{episodes} no specification reached a verdict: whether they were safe is not known.{lost}"
    unsafely = f", {unsafe or 'none'} of these unsafely" if success else ""
    return f"{episodes}, {broke or 'none'} broke a limit; {success or 'none'} succeeded{unsafely}.{lost}"


def _flags(policy: Policy, privileged: bool, mine: Scores) -> Iterator[str]:
    if policy == NOOP:
        yield "This policy does nothing. What it breaks, the scene breaks by itself; it has no rank."
    if privileged:
        yield "Privileged: it saw simulator state that no real robot has."
    yield from provenance_marks.warning(mine)


def _sections(policy: Policy, of: Measured, mine: Scores) -> Iterator[Section]:
    cells = [cell for cell in of.material.cells if cell.policy == policy]
    yield Section(heading="By suite", tables=(_by_suite(cells),))
    yield Section(heading="How near to each limit", picture=_margins(mine))
    broken = [replace(tables.violations([cell]), title=cell.suite or NONE) for cell in cells if cell.n]
    yield Section(heading="Violations by specification", tables=tuple(broken))
    made_of = _without_policy(tables.composition([cell for cell in cells if cell.n], of.material.roster))
    yield Section(heading="What unsafe successes violate", tables=(made_of,) if made_of.rows else ())


_METRICS = (SR, SAFETY, SBU, UNSAFE_SUCCESS, VSI, VSI_UNSAFE)


def _by_suite(cells: Sequence[Summary]) -> Table:
    """The headline numbers of one policy; a dash and the reason where nothing was counted or judged."""
    columns = (
        Column("Suite", numeric=False),
        Column("n", meaning="episodes counted"),
        *(Column(metric.name, meaning=metric.meaning) for metric in _METRICS),
    )
    rows = tuple(
        (Cell(cell.suite or NONE), count(cell.n), *(metric.entry(cell).cell for metric in _METRICS)) for cell in cells
    )
    return with_notes(Table("By suite", columns, rows), INTERVALS)


def _without_policy(table: Table) -> Table:
    """The table without its first column, which says on every row whose page this is."""
    return replace(table, columns=table.columns[1:], rows=tuple(row[1:] for row in table.rows))


def _margins(scores: Scores) -> Picture:
    value = margins.margins(scores)
    drawn = figures.rendered(margins.draw(value), "svg")
    return Picture(f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}", " ".join(_said(value)))


def _said(value: margins.Margins) -> Iterator[str]:
    yield "Margins over each limit as a share of it; below zero the limit is broken."
    for spec_id, rows in value.blocks:
        for row in rows:
            if row.quantiles:
                least, _, middle, _, _ = row.quantiles
                amounts = f"median {fixed(middle, 2)}, least {fixed(least, 2)}"
                yield f"{spec_id}: broken in {row.violated} of {row.n}, {amounts}."


def only(scores: Scores, policy: Policy) -> Scores:
    """The episodes of one policy."""
    mine = scores.select(np.flatnonzero([one == policy for one in scores.policy]))
    return replace(mine, absent=tuple(one for one in scores.absent if one.policy == policy))
