"""Episodes as a list: one row each, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import provenance_marks
from safevla_bench.report.tables import UNNAMED, Cell, Column, Table
from safevla_bench.scores import ACTIVE, Scores, null
from safevla_bench.text.numbers import NONE, fixed, significant, unit_text, with_unit


class EpisodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One episode of the list; what is not known is None, as everything is of an episode that left no record.

    `spec` and what follows up to `violated` (`share` is rho over the threshold) are of the worst specification, or of
    the one that was asked for; the first violation too is that one's then, and of the whole safe tier else.
    """

    number: int
    """Its place in the sources, from 1; episodes without a record come last."""
    episode_id: str
    policy: str | None
    benchmark: str
    task_id: str
    outcome: str
    success: bool | None = None
    safe: bool | None = None
    sbu: bool | None = None
    vsi: float | None = None
    spec: str | None = None
    rho: float | None = None
    unit: str | None = None
    threshold: float | None = None
    share: float | None = None
    depth: float | None = None
    violated: bool | None = None
    """Whether `spec` is."""
    first_violation_step: int | None = None
    first_violation_s: float | None = None
    first_violation_spec: str | None = None
    reason: str | None = None
    """Why there is no record."""
    broken_axes: tuple[str, ...] = ()
    """The axes of the scored specifications that the episode violates."""
    standin_assets: bool | None = None
    """Whether it was simulated with stand-ins for the host's own assets."""


def rows(scores: Scores, dt_s: NDArray[np.float64], spec_id: str | None = None) -> list[EpisodeRow]:
    """Every episode, in the order of the sources.

    Args:
        scores: the verdicts.
        dt_s: control step of each episode, [E].
        spec_id: a specification of any tier to look at alone: episodes where it reached no verdict are left out.
    """
    column = None if spec_id is None else [spec.spec_id for spec in scores.specs].index(spec_id)
    judged = range(len(scores)) if column is None else np.flatnonzero(scores.state[column] == ACTIVE)
    found = [_row(scores, float(dt_s[k]), int(k), column) for k in judged]
    return found if column is not None else [*found, *_absent(scores)]


def _row(scores: Scores, dt_s: float, index: int, asked: int | None) -> EpisodeRow:
    step, first = (int(values[index]) for values in scores.first_violation)
    column = int(scores.worst[index]) if asked is None else asked
    if asked is not None:
        step = int(scores.first[asked, index])
        first = asked if step >= 0 else -1
    spec = None if column < 0 else scores.specs[column]
    rho = None if spec is None else float(scores.rho[column, index])
    return EpisodeRow(
        number=index + 1,
        episode_id=scores.episode_id[index],
        policy=scores.policy[index],
        benchmark=scores.benchmark[index],
        task_id=scores.task_id[index],
        outcome=scores.outcome[index],
        success=bool(scores.success[index]),
        safe=bool(scores.safe[index]),
        sbu=bool(scores.sbu[index]),
        vsi=null(scores.vsi[index]),
        spec=None if spec is None else spec.spec_id,
        rho=rho,
        unit=None if spec is None else spec.unit,
        threshold=None if spec is None else spec.threshold,
        share=None if spec is None or rho is None else rho / spec.threshold,
        depth=None if spec is None else null(scores.depth[column, index]),
        violated=None if spec is None else bool(scores.violated[column, index]),
        first_violation_step=None if step < 0 else step,
        first_violation_s=None if step < 0 else step * dt_s,
        first_violation_spec=None if first < 0 else scores.specs[first].spec_id,
        broken_axes=tuple(dict.fromkeys(scores.specs[k].axis for k in scores.scored if scores.violated[k, index])),
        standin_assets=bool(scores.standin and scores.standin[index]),
    )


def _absent(scores: Scores) -> list[EpisodeRow]:
    return [
        EpisodeRow(
            number=number,
            episode_id=one.episode_id,
            policy=one.policy,
            benchmark=one.benchmark,
            task_id=one.task_id,
            outcome=one.outcome,
            reason=one.reason,
        )
        for number, one in enumerate(scores.absent, start=len(scores) + 1)
    ]


def table(shown: Sequence[EpisodeRow], total: int, *, asked: str | None = None) -> Table:
    """The rows as a table.

    Args:
        shown: what to print.
        total: how many episodes there are.
        asked: the specification looked at alone.
    """
    named = len({row.policy for row in shown}) > 1
    columns = (
        Column("#"),
        Column("Episode", numeric=False),
        *([Column("Policy", numeric=False)] if named else []),
        Column("Outcome", numeric=False),
        Column("Safe", numeric=False),
        Column("VSI"),
        *([] if asked else [Column("Worst specification", numeric=False)]),
        Column("Margin"),
        Column("First violation", numeric=False),
    )
    title = f"{len(shown)} of {total} episodes" + (f", judged by {asked} alone" if asked else "")
    cells = tuple(tuple(_cells(row, named, asked)) for row in shown)
    return Table(title, columns, cells, remarks=provenance_marks.of_episodes(shown))


def _cells(row: EpisodeRow, named: bool, asked: str | None) -> Iterable[Cell]:
    yield Cell(str(row.number), row.number)
    yield Cell(row.episode_id)
    if named:
        yield Cell(row.policy or UNNAMED)
    yield Cell(row.outcome)
    yield Cell(NONE if row.safe is None else "yes" if row.safe else "no")
    yield Cell(NONE if row.vsi is None else fixed(row.vsi, 3), row.vsi)
    if asked is None:
        yield Cell(row.spec or NONE)
    yield Cell(_margin(row), row.rho)
    yield Cell(_first(row))


def _margin(row: EpisodeRow) -> str:
    if row.rho is None or row.threshold is None or row.unit is None:
        return NONE
    unit, scale = unit_text(row.unit, row.threshold)
    return with_unit(significant(row.rho * scale), unit)


def _first(row: EpisodeRow) -> str:
    if row.first_violation_s is None:
        return NONE
    return f"{fixed(row.first_violation_s, 2)} s, step {row.first_violation_step}"
