"""What `--dry-run` prints: the episodes of a plan, and what they are estimated to cost."""

from __future__ import annotations

from safevla_bench.report import render
from safevla_bench.report.tables import Cell, Column, Table
from safevla_bench.rollout.estimate import Estimate, Span

_COLUMNS = (
    Column("Policy", numeric=False),
    Column("Suite", numeric=False),
    Column("Task", numeric=False),
    Column("Episodes"),
    Column("Horizon"),
    Column("Cameras"),
)
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def text(plan: Estimate) -> str:
    """The plan for people."""
    rows = tuple(
        tuple(Cell(str(one)) for one in (row.policy, row.suite, row.task_id, row.episodes, row.horizon, row.cameras))
        for row in plan.scenes
    )
    title = f"{plan.episodes} episodes, at most {plan.steps} steps; nothing has been run or written"
    return render.text(Table(title, _COLUMNS, rows, _notes(plan)))


def _notes(plan: Estimate) -> tuple[str, ...]:
    if plan.time_s is None or plan.disk_bytes is None:
        return ("There are no figures for this host, so neither time nor disk can be estimated.",)
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers, each with a core of its own"
    return (
        f"Estimate for episodes that all last their full horizon, with {workers}:",
        f"  time  {_time(plan.time_s)}, without the policies' own time",
        f"  disk  {_size(plan.disk_bytes)}",
        f"From figures {plan.source}.",
    )


def _time(span: Span) -> str:
    name, unit = ("h", 3600.0) if span.high >= 3600 else ("min", 60.0) if span.high >= 60 else ("s", 1.0)
    return f"{span.low / unit:.1f} to {span.high / unit:.1f} {name}"


def _size(span: Span) -> str:
    name, unit = next(one for one in _UNITS if span.high >= one[1] or one[1] == 1)
    return f"{span.low / unit:.1f} to {span.high / unit:.1f} {name}"
