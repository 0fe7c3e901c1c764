"""Whole jobs as one call each: `roll_out`, `judge`, and `evaluate` = roll out, judge and report."""

from __future__ import annotations

from pathlib import Path

from safevla_bench import hosts, rollout
from safevla_bench.evaluate.judged import Judged, contestants, judge, judged_by, lost, rescorer
from safevla_bench.evaluate.outputs import (
    INTERRUPTED,
    document,
    exposed,
    material,
    report,
    score_files,
    submit,
    write,
)
from safevla_bench.evaluate.preparation import Prepared, estimate, prepare, tasks_of
from safevla_bench.evaluate.request import (
    ENTERED,
    PLAINLY,
    PRESET,
    PROTOCOL,
    Judge,
    Request,
    Running,
    entered,
    left_open,
)
from safevla_bench.evaluate.rollouts import roll_out

__all__ = [
    "ENTERED",
    "INTERRUPTED",
    "PLAINLY",
    "PRESET",
    "PROTOCOL",
    "Judge",
    "Judged",
    "Prepared",
    "Request",
    "Running",
    "contestants",
    "document",
    "entered",
    "estimate",
    "evaluate",
    "exposed",
    "judge",
    "judged_by",
    "left_open",
    "lost",
    "material",
    "prepare",
    "report",
    "rescorer",
    "roll_out",
    "score_files",
    "submit",
    "write",
]


def evaluate(
    request: Request,
    by: Judge,
    out: Path,
    observer: rollout.Observer | None = None,
    running: Running = PLAINLY,
) -> Judged:
    """Roll out, judge and report into one run folder; takes and raises what `roll_out` and `judge` do.

    A mistake in a library, or a task without tags, costs no rollout.
    """
    _, known = by.load()
    if by.applicability == "on":
        for task in tasks_of(hosts.host(request.host, request.host_arguments), request):
            known.tags(task.benchmark, task.task_id, by.capabilities)
    roll_out(request, out, observer, running)
    judged = judge([out], by)
    write(judged, out)
    return judged
