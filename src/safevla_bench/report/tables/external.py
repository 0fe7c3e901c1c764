"""What came from elsewhere, as tables: results that hold successes only, and how far replays went from recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from safevla_bench.foreign import ForeignEpisode, ForeignResults
from safevla_bench.foreign.results import LACKS
from safevla_bench.metrics import Rate
from safevla_bench.report.tables import Cell, Column, Table
from safevla_bench.report.tables.table import WILSON, count, proportion
from safevla_bench.text.numbers import NONE, significant
from safevla_bench.trajectory import Batch

NOT_RECORDED = "not recorded"


def imported(found: ForeignResults, source: str) -> Table:
    """SR of each suite and task; Safety, SBU and VSI are not recorded, and never zero."""
    errors = any(one.success is None for one in found.episodes)
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("n"),
        *([Column("Errors", meaning="outside n")] if errors else []),
        Column("SR %"),
        *(Column(name) for name in ("Safety %", "SBU %", "VSI")),
    )
    grouped: dict[str, dict[str, list[ForeignEpisode]]] = {}
    for one in found.episodes:
        grouped.setdefault(one.suite, {}).setdefault(one.task, []).append(one)
    rows = []
    for suite, tasks in grouped.items():
        rows.append(_row(suite, "all", [one for listed in tasks.values() for one in listed], errors))
        rows += [_row(suite, task, listed, errors) for task, listed in tasks.items()]
    notes = (WILSON, f"{found.kind} lacks {LACKS}.", *(f"{remark}." for remark in found.remarks))
    return Table(f"{found.kind}: {source}", columns, tuple(rows), notes)


def _row(suite: str, task: str, episodes: Sequence[ForeignEpisode], errors: bool) -> tuple[Cell, ...]:
    known = [one.success for one in episodes if one.success is not None]
    lost = len(episodes) - len(known)
    return (
        Cell(suite),
        Cell(task, emphasis="total" if task == "all" else ""),
        count(len(known)),
        *([count(lost, "bad" if lost else "")] if errors else []),
        proportion(Rate.of(sum(known), len(known)), "no episode"),
        *(Cell(NONE, detail=NOT_RECORDED) for _ in range(3)),
    )


def replayed(batch: Batch) -> Table | None:
    """How far each replay went from its recording; None where there is no replay."""
    columns = (
        Column("Episode", numeric=False),
        Column("Recorded as", numeric=False),
        Column("Outcome", numeric=False),
        Column("States"),
        Column("Position", meaning="largest divergence of a body or slider"),
        Column("Rotation", meaning="largest divergence of a body or hinge"),
        Column("From step", meaning="the first beyond the tolerance"),
    )
    rows, notes = [], []
    for header, extra in zip(batch.headers, batch.extra, strict=True):
        told = extra.get("header", {})
        replay = told.get("replay") if isinstance(told, Mapping) else None
        if isinstance(replay, Mapping):
            rows.append((Cell(header.episode_id), Cell(str(replay["episode"])), Cell(header.result), *_apart(replay)))
            notes.append(f"start: {replay['start']}")
            if "tolerance" in replay:
                notes.append(f"tolerance: {replay['tolerance']:g} m, rad")
    return Table("Replays", columns, tuple(rows), tuple(dict.fromkeys(notes))) if rows else None


def _apart(replay: Mapping[str, object]) -> tuple[Cell, ...]:
    found = replay.get("divergence")
    if not replay.get("compared") or not isinstance(found, Mapping):
        return tuple(Cell(NONE, detail="no states recorded") for _ in range(4))
    states = count(int(str(replay["compared"])))
    if replay["exact"]:
        return states, Cell("0", 0.0, "every bit"), Cell("0", 0.0, "every bit"), Cell(NONE, detail="never")
    steps = [one["first_step"] for one in found.values() if one["first_step"] is not None]
    first = Cell(str(min(steps)), min(steps), emphasis="bad") if steps else Cell(NONE, detail="never")
    return states, _largest(found, "m", 1000, "mm"), _largest(found, "rad", 1000, "mrad"), first


def _largest(found: Mapping[str, Mapping[str, object]], unit: str, scale: int, shown: str) -> Cell:
    """The coordinate that went furthest, by its name."""
    there = {name: float(str(one["max"])) for name, one in found.items() if one["unit"] == unit}
    if not there:
        return Cell(NONE)
    name = max(there, key=there.__getitem__)
    return Cell(f"{significant(scale * there[name])} {shown}", there[name], name.rpartition(" ")[0])
