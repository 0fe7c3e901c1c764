"""The table of a planned run: its episodes and the estimate of its time and disk space."""

from __future__ import annotations

from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.rollout.estimate import CostRange, RunEstimate

_COLUMNS = (
    Column("Policy", numeric=False),
    Column("Suite", numeric=False),
    Column("Task", numeric=False),
    Column("Episodes"),
    Column("Horizon"),
    Column("Cameras"),
)
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def estimate_table(plan: RunEstimate) -> Table:
    """Return the episodes of a plan, with the estimate as notes."""
    rows = tuple(
        tuple(
            Cell(str(value)) for value in (row.policy, row.suite, row.task_id, row.episodes, row.horizon, row.cameras)
        )
        for row in plan.scenes
    )
    title = f"{plan.episodes} episodes, at most {plan.steps} steps; nothing has been run or written"
    return Table(title, _COLUMNS, rows, _estimate_notes(plan))


def _estimate_notes(plan: RunEstimate) -> tuple[str, ...]:
    if plan.time_s is None or plan.disk_bytes is None:
        return ("There are no figures for this host, so neither time nor disk can be estimated.",)
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers, each with a core of its own"
    return (
        f"Estimate for episodes that all last their full horizon, with {workers}:",
        f"  time  {_format_duration(plan.time_s)}, without the policies' own time",
        f"  disk  {_format_size(plan.disk_bytes)}",
        f"From figures {plan.source}.",
    )


def _format_duration(span: CostRange) -> str:
    name, unit = ("h", 3600.0) if span.high >= 3600 else ("min", 60.0) if span.high >= 60 else ("s", 1.0)
    return f"{span.low / unit:.1f} to {span.high / unit:.1f} {name}"


def _format_size(span: CostRange) -> str:
    name, unit = next(pair for pair in _UNITS if span.high >= pair[1] or pair[1] == 1)
    return f"{span.low / unit:.1f} to {span.high / unit:.1f} {name}"
