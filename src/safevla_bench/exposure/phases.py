"""Phases of a task with a held object: each record belongs to one.

    before grasp     the records before the first `grip` of the episode; all of them where there is none
    transport        the records in which `transport` holds: a target gripped, more than 5 cm above its start
    after release    the records after the last `grip`
    handling         the rest, between the first and the last `grip`: gripping, lifting, lowering, gripping again

Every record of such an episode has exactly one phase, so that times by phase add up. Tasks without the tag
`held_target`, and episodes whose records lack a field that `transport` reads, have no phases.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench import signals
from safevla_bench.errors import UnknownTaskError
from safevla_bench.tasks import Registry
from safevla_bench.trajectory import Batch

PHASES = ("before grasp", "handling", "transport", "after release")
BEFORE, HANDLING, TRANSPORT, AFTER = range(4)
NO_PHASE = -1
_HELD = "held_target"


def phases(reading: signals.RecordFields, held: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Return the phase of each record, an index into `PHASES`, [N]; -1 throughout episodes without phases.

    Args:
        reading: the batch.
        held: whether the task of each episode has a held object, [E].
    """
    batch = reading.batch
    derived = signals.derive_signals(reading, ("grip", "transport"))
    grip, transport = (derived[name].astype(np.bool_) for name in ("grip", "transport"))
    row = np.arange(len(grip))
    first, last = _grip_ends(row, grip, batch.starts)
    phase = np.full(len(grip), HANDLING, dtype=np.int8)
    phase[transport] = TRANSPORT
    phase[row < reading.spread_over_records(first)] = BEFORE
    phase[row > reading.spread_over_records(last)] = AFTER
    for lacking in signals.missing_fields(reading, ("grip", "transport")).values():
        held = held & ~lacking
    phase[reading.spread_over_records(~held)] = NO_PHASE
    return phase


def _grip_ends(
    row: NDArray[np.int64], grip: NDArray[np.bool_], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last gripped row of each episode, [E]; both are its end where there is no grip."""
    begins, ends = starts[:-1], starts[1:]
    first = np.minimum.reduceat(np.where(grip, row, len(row)), begins)
    last = np.maximum.reduceat(np.where(grip, row, -1), begins)
    return np.minimum(first, ends), np.where(last < 0, ends, last)


def holding(batch: Batch, registry: Registry) -> NDArray[np.bool_]:
    """True for episodes whose task has a held object, [E]; False for a task without an entry."""
    tasks = [(header.benchmark, header.task_id) for header in batch.headers]
    by_task = {task: _task_has_held_object(registry, *task) for task in dict.fromkeys(tasks)}
    return np.array([by_task[task] for task in tasks], dtype=np.bool_)


def _task_has_held_object(registry: Registry, benchmark: str, task_id: str) -> bool:
    try:
        return _HELD in registry.task_tags(benchmark, task_id)
    except UnknownTaskError:
        return False
